//! `bsd-ctl` as a process: what it shows and does is the same with bsd and with beanstalkd, and it
//! says what it could not do.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Launch, Server, bsd_ctl, wait_until};

pub(crate) const OK: Option<i32> = Some(0);
pub(crate) const NOT_DONE: Option<i32> = Some(1);
const CANNOT: Option<i32> = Some(2);
pub(crate) const USAGE: Option<i32> = Some(5);

pub(crate) fn command(address: &str) -> Command {
    let mut command = Command::new(bsd_ctl());
    command.env("BSD_CTL_ADDRESS", address);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn said(output: &Output) -> (Option<i32>, String) {
    let said = [&output.stdout[..], &output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// Run it with this command line, words apart by blanks: its exit code, and all that it wrote.
fn ctl(server: &Server, line: &str) -> (Option<i32>, String) {
    let mut command = command(&server.address().to_string());
    said(&command.args(line.split_whitespace()).output().unwrap())
}

/// The same, of which all must be done.
pub(crate) fn done(server: &Server, line: &str) -> String {
    let (code, said) = ctl(server, line);
    assert_eq!(code, OK, "{line}: {said}");
    said
}

pub(crate) fn json_of(server: &Server, line: &str) -> Value {
    let said = done(server, &format!("{line} --json"));
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// The same with a standard input.
pub(crate) fn feed(server: &Server, line: &str, input: &[u8]) -> (Option<i32>, String) {
    let mut command = command(&server.address().to_string());
    command.args(line.split_whitespace());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    said(&child.wait_with_output().unwrap())
}

/// bsd, and beanstalkd where it is installed.
pub(crate) fn servers() -> Vec<Server> {
    let launches = [Some(Launch::bsd().memory()), Launch::beanstalkd()];
    let launches = launches.into_iter().flatten();
    launches.map(|launch| launch.start()).collect()
}

/// Without the times that depend on how fast the commands before were.
fn timeless(said: &str) -> String {
    let marks = [", age ", "for another ", "pause-time-left "];
    let line = |line: &str| {
        let at = marks
            .iter()
            .filter_map(|mark| Some(line.find(mark)? + mark.len()));
        format!("{}\n", &line[..at.min().unwrap_or(line.len())])
    };
    said.lines().map(line).collect()
}

#[test]
fn what_it_shows_and_does_is_the_same_with_both_servers() {
    let script = [
        ("put mail one --pri 5", OK),
        ("put mail two --delay 1h", OK),
        ("put other three --ttr 2m", OK),
        ("tubes --sort ready", OK),
        ("tubes *a* --reverse", OK),
        ("tubes none*", NOT_DONE),
        ("tube mail", OK),
        ("tube none", NOT_DONE),
        ("job 1", OK),
        ("job 9", NOT_DONE),
        ("peek mail", OK),
        ("peek mail --state delayed", OK),
        ("peek mail --state buried", NOT_DONE),
        ("bury 1", OK),
        ("bury 1 --pri 8", OK),
        ("bury 9", NOT_DONE),
        ("peek mail --state buried", OK),
        ("kick mail 5", OK),
        ("kick mail --all", OK),
        ("kick mail --all", NOT_DONE),
        ("kick none 1", NOT_DONE),
        ("release 2 --delay 1d --pri 3", OK),
        ("job 2", OK),
        ("kick-job 2 1", NOT_DONE),
        ("pause mail 90", OK),
        ("pause *e* 5m", OK),
        ("pause none 5m", NOT_DONE),
        ("pause mail 0", USAGE),
        ("unpause *", OK),
        ("delete 3", OK),
        ("delete 1 2", NOT_DONE),
        ("delete --yes 1 2 3", NOT_DONE),
        ("clear mail --state ready", NOT_DONE),
        ("tubes", OK),
    ];
    let transcript = |server: Server| {
        let lines = script.map(|(line, code)| {
            let (found, said) = ctl(&server, line);
            assert_eq!(found, code, "{line}: {said}");
            format!("$ {line}\n{}", timeless(&said))
        });
        lines.concat()
    };
    let mut transcripts = servers().into_iter().map(transcript);
    let bsd = transcripts.next().unwrap();
    for expected in [
        "$ put mail one --pri 5\njob 1 was put into mail\n",
        "mail         1       -      0     0         0        1       0         -       0       1\n",
        "there is no tube \"none*\"",
        "job 1 in tube mail: buried\n  priority 8,",
        "reserved 2 times",
        "0 jobs of mail kicked",
        "nothing was done: would delete 2 jobs, and the standard input is no terminal",
        "job 3 was not deleted",
    ] {
        assert!(bsd.contains(expected), "{expected} is not in {bsd}");
    }
    for other in transcripts {
        assert_eq!(other, bsd);
    }
}

#[test]
fn programs_are_told_the_same_in_json() {
    for server in servers() {
        assert_eq!(
            json_of(&server, "put 7 text"),
            json!({"id": 1, "tube": "7"})
        );
        let (code, _) = feed(&server, "put 7 -", b"\xff\x00");
        assert_eq!(code, OK);
        assert_eq!(json_of(&server, "job 1")["body"], "text");
        let job = json_of(&server, "job 2");
        assert_eq!(
            (&job["body_base64"], &job["tube"]),
            (&json!("/wA="), &json!("7"))
        );
        let (_, words) = ctl(&server, "job 2");
        assert!(words.contains("2 bytes, not text"), "{words}");
        let body = command(&server.address().to_string())
            .args(["job", "2", "--body"])
            .output();
        assert_eq!(body.unwrap().stdout, b"\xff\x00");
        let stats = json_of(&server, "stats");
        assert_eq!(stats["current-jobs-ready"], 2);
        assert_eq!(
            (&stats["draining"], stats["version"].is_string()),
            (&json!(false), true)
        );
        let tubes = json_of(&server, "tubes 7");
        assert_eq!(
            (&tubes[0]["name"], &tubes[0]["current-jobs-ready"]),
            (&json!("7"), &json!(2))
        );
        assert_eq!(json_of(&server, "tube 7")["total-jobs"], 2);
        assert_eq!(json_of(&server, "bury 1")["buried"], true);
        assert_eq!(
            json_of(&server, "kick 7 9"),
            json!({"tube": "7", "kicked": 1})
        );
        assert_eq!(
            json_of(&server, "pause 7 9"),
            json!({"tubes": ["7"], "seconds": 9})
        );
        let cleared = json_of(&server, "clear 7 --state ready --yes");
        assert_eq!(cleared, json!({"tube": "7", "deleted": 2, "counted": 2}));
        assert_eq!(done(&server, "stats -q"), "");
    }
}

#[test]
fn people_see_every_key_of_stats_once() {
    for server in servers() {
        let keys = json_of(&server, "stats").as_object().unwrap().len();
        let text = done(&server, "stats");
        let lines = text.lines().filter(|line| line.starts_with("  ")).count();
        assert_eq!(lines, keys, "{text}");
    }
}

#[test]
fn lines_become_jobs_and_a_refused_one_is_named() {
    for server in servers() {
        let (code, said) = feed(&server, "put a --lines", b"x\n\ny\r\nlast");
        assert_eq!((code, &*said), (OK, "4 jobs put into a, ids 1 to 4\n"));
        let body = |id: u64| json_of(&server, &format!("job {id}"))["body"].clone();
        assert_eq!([1, 2, 3, 4].map(body), ["x", "", "y", "last"]);
        let many = "line\n".repeat(3000);
        let (code, _) = feed(&server, "put b --lines", many.as_bytes());
        assert_eq!(
            (code, &json_of(&server, "tube b")["total-jobs"]),
            (OK, &json!(3000))
        );
        let long = [b"ok\n", &vec![b'x'; 70_000][..], b"\nafter\n"].concat();
        let (code, said) = feed(&server, "put c --lines", &long);
        assert_eq!(code, NOT_DONE, "{said}");
        assert!(
            said.contains("line 2 was not put: the body is larger"),
            "{said}"
        );
        assert!(said.contains("1 job put into c"), "{said}");
    }
}

#[test]
fn clear_deletes_what_was_counted_and_leaves_what_is_reserved() {
    for server in servers() {
        let mut wire = server.connect();
        let numbers: String = (0..1000).map(|number| format!("{number}\n")).collect();
        assert_eq!(feed(&server, "put t --lines", numbers.as_bytes()).0, OK);
        assert_eq!(feed(&server, "put t --delay 1h --lines", b"a\nb\n").0, OK);
        wire.ask("watch t");
        let reserved = wire.reserve();
        let (code, said) = ctl(&server, "clear t --state ready");
        assert_eq!(code, NOT_DONE);
        assert!(
            said.contains("would delete 999 ready jobs of tube t"),
            "{said}"
        );
        assert_eq!(json_of(&server, "tube t")["current-jobs-ready"], 999);
        done(&server, "clear t --state ready --state delayed --yes");
        let tube = json_of(&server, "tube t");
        for (state, left) in [("ready", 0), ("delayed", 0), ("reserved", 1)] {
            assert_eq!(tube[format!("current-jobs-{state}")], left, "{tube}");
        }
        let (code, said) = ctl(&server, &format!("delete {reserved}"));
        assert!(
            code == NOT_DONE && said.contains("a client has reserved it"),
            "{said}"
        );
        let (code, said) = ctl(&server, &format!("release {reserved}"));
        assert!(
            code == NOT_DONE && said.contains("a client has reserved it"),
            "{said}"
        );
    }
}

#[test]
fn ctrl_c_ends_a_clear_between_two_jobs_and_says_how_many_are_gone() {
    let server = Launch::bsd().memory().start();
    let numbers: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    assert_eq!(feed(&server, "put t --lines", numbers.as_bytes()).0, OK);
    let child = command(&server.address().to_string())
        .args(["clear", "t", "--state", "ready", "--yes", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut wire = server.connect();
    wait_until("a job is deleted", || {
        wire.stat("stats-tube t", "cmd-delete") != "0"
    });
    interrupt(&child);
    let (code, said) = said(&child.wait_with_output().unwrap());
    assert_eq!(code, NOT_DONE, "{said}");
    assert!(
        said.contains("stopped: ") && said.contains("run the command again"),
        "{said}"
    );
    let told: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let deleted: u64 = wire.stat("stats-tube t", "cmd-delete").parse().unwrap();
    assert_eq!(told["deleted"], deleted);
}

pub(crate) fn interrupt(child: &Child) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
}

#[test]
fn a_server_that_is_not_there_or_is_none_is_told_of() {
    let stopped = Launch::bsd().memory().start();
    let address = stopped.address().to_string();
    stopped.kill();
    let run = |address: &str, args: &[&str]| said(&command(address).args(args).output().unwrap());
    for address in [&*address, "unix:/no/such/socket"] {
        let (code, said) = run(address, &["stats"]);
        assert_eq!(code, CANNOT);
        let expected = format!("bsd-ctl: cannot connect to {address}: ");
        assert!(
            said.starts_with(&expected) && said.contains("BSD_CTL_ADDRESS"),
            "{said}"
        );
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    let (code, said) = run(&silent, &["tubes", "--timeout", "0.05"]);
    assert!(
        code == CANNOT && said.contains("no answer in time"),
        "{said}"
    );
    for line in [
        &["tube", "a b"][..],
        &["tube", "a\r\ndelete 1"],
        &["job", "x"],
        &["kick", "a"],
        &["kick", "a", "1", "--all"],
        &["clear", "a"],
        &["stats", "-a", "host:port"],
        &["stats", "--timeout", "0"],
        &["top"],
        &["top", "--json"],
        &["put", "a", "--ttr", "5w"],
        &["put", "a", "--delay", "4294967296"],
    ] {
        let (code, said) = run(&silent, line);
        assert_eq!(code, USAGE, "{line:?}: {said}");
    }
}

#[test]
fn a_unix_socket_serves_too() {
    let dir = TempDir::new().unwrap();
    let path = format!("unix:{}", dir.path().join("socket").display());
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().arg("-l").arg(&path).start();
    let output = command(&path).args(["put", "a", "b"]).output().unwrap();
    assert_eq!(said(&output), (OK, "job 1 was put into a\n".to_owned()));
    drop(server);
}

#[test]
fn top_asks_for_a_thousand_tubes_at_most_and_says_how_many_it_left_out() {
    let server = Launch::bsd().memory().start();
    let mut wire = server.connect();
    for number in 0..1003 {
        wire.ask(&format!("watch t{number:04}"));
    }
    let said = done(&server, "top --interval 0.1 --batch 1");
    // `default` is a tube too.
    assert!(
        said.contains("\ntubes: 1004, of which 4 are not asked for\n"),
        "{said}"
    );
    assert!(
        said.contains("\nt0998 ") && !said.contains("\nt0999 "),
        "{said}"
    );
    let said = done(&server, "top t1* --interval 0.1 --batch 1");
    assert!(
        said.contains("\nt1002 ") && !said.contains("not asked for"),
        "{said}"
    );
}

#[test]
fn top_in_lines_fits_80_columns() {
    for server in servers() {
        let tube = "a-long-name/".repeat(10);
        done(&server, &format!("put {tube} x"));
        let said = done(&server, "top --interval 0.1 --batch 2");
        assert_eq!(said.matches("\njobs: 1 ready").count(), 2, "{said}");
        assert_eq!(said.matches("\na-long-n~ng-name/ ").count(), 2, "{said}");
        assert!(
            said.lines().all(|line| line.chars().count() <= 80),
            "{said}"
        );
        let said = done(&server, "top default --interval 0.1 --batch 2 --json");
        let rounds: Vec<Value> = said
            .lines()
            .map(|it| serde_json::from_str(it).unwrap())
            .collect();
        assert_eq!(rounds.len(), 2);
        for round in rounds {
            assert_eq!(round["stats"]["current-jobs-ready"], 1);
            assert_eq!(round["tubes"].as_array().unwrap().len(), 1);
            assert!(round["per-second"]["put"].is_number(), "{round}");
        }
    }
}
