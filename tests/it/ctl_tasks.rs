//! The everyday tasks of the page of `bsd-ctl`: each is one command, and does what it says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ROOT;
use crate::ctl::{NOT_DONE, OK, USAGE, command, interrupt, said};
use crate::harness::{Launch, wait_until};
use crate::http::Site;
use crate::wire::inserted;

fn site() -> Site {
    Site::start(Launch::bsd().memory())
}

/// Run it with these words, apart by blanks: its exit code, and all that it wrote.
fn ctl(site: &Site, line: &str) -> (Option<i32>, String) {
    let mut command = command(&site.server.address().to_string());
    command.env("BSD_CTL_HTTP", site.address.to_string());
    said(&command.args(line.split_whitespace()).output().unwrap())
}

/// The same, of which all must be done.
fn done(site: &Site, line: &str) -> String {
    let (code, said) = ctl(site, line);
    assert_eq!(code, OK, "{line}: {said}");
    said
}

fn json_of(site: &Site, line: &str) -> Value {
    let (_, said) = ctl(site, &format!("{line} --json"));
    let first = said.lines().next().unwrap_or_default();
    serde_json::from_str(first).unwrap_or_else(|error| panic!("{line}: {error}: {said}"))
}

/// This many jobs in a tube, from the next id on.
fn fill(site: &Site, tube: &str, count: u64) {
    let mut wire = site.server.connect();
    wire.ask(&format!("use {tube}"));
    for nth in 1..=count {
        wire.put(format!("body {nth}.").as_bytes());
    }
}

/// Jobs of a tube that are in a state.
fn count(site: &Site, tube: &str, state: &str) -> u64 {
    let tube = json_of(site, &format!("tube {tube}"));
    tube[format!("current-jobs-{state}")].as_u64().unwrap_or(0)
}

/// Kinds of findings, and the tubes that they are about.
fn found(troubles: &Value) -> Vec<(&str, &str)> {
    let findings = troubles["findings"].as_array().unwrap().iter();
    findings
        .map(|it| {
            let (kind, name) = (it["kind"].as_str(), it["subject"]["name"].as_str());
            (kind.unwrap_or_default(), name.unwrap_or_default())
        })
        .collect()
}

#[test]
fn which_tube_is_stuck_and_why() {
    let site = site();
    assert_eq!(
        ctl(&site, "doctor"),
        (OK, "nothing is wrong; 1 tube looked at\n".to_owned())
    );
    fill(&site, "stuck", 3);
    fill(&site, "calm", 1);
    fill(&site, "held", 3);
    fill(&site, "mail-dead", 1);
    done(
        &site,
        "policy set mail dead-letter=mail-dead delivery-limit=2",
    );
    done(&site, "policy set held max-reserved=1");
    done(&site, "pause calm 1h");
    done(&site, "bury 3");
    let mut worker = site.server.connect();
    worker.ask("watch held");
    worker.ask("ignore default");
    let mine = worker.reserve();
    let troubles = json_of(&site, "doctor --wait-max 0");
    let wanted = [
        ("no-workers", "stuck"),
        ("paused", "calm"),
        ("waits-long", "held"),
        ("dead-letters", "mail-dead"),
        ("buried", "stuck"),
    ];
    assert_eq!(found(&troubles), wanted);
    let (code, said) = ctl(&site, "doctor --wait-max 0");
    assert_eq!(code, NOT_DONE);
    assert!(
        said.starts_with("warning: tube stuck: no workers\n"),
        "{said}"
    );
    assert!(
        said.contains("2 jobs are ready, and no connection"),
        "{said}"
    );
    assert!(said.contains("`bsd-ctl unpause calm`"), "{said}");
    assert_eq!(ctl(&site, "doctor --least critical").0, OK);
    // Lines end where the terminal does.
    let said = done(&site, "why held");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("held: 2 ready, 1 reserved"), "{said}");
    assert!(said.contains("lets 1 job be reserved at a time"), "{said}");
    assert!(
        said.contains(&format!("1 job reserved: job {mine}, for ")),
        "{said}"
    );
    let why = json_of(&site, "why held");
    assert_eq!(why["holders"][0]["first_job"], mine);
    assert_eq!(why["policy"]["max_reserved"], 1);
    let (code, said) = ctl(&site, "why none");
    assert_eq!(code, NOT_DONE, "{said}");
}

#[test]
fn the_oldest_five_buried_and_their_errors() {
    let site = site();
    fill(&site, "mail", 9);
    let mut worker = site.server.connect();
    worker.ask("watch mail");
    for nth in 1..=7 {
        let id = worker.reserve();
        let text = format!("no host {nth}");
        worker.send(format!(
            "bury-with-reason {id} 0 {}\r\n{text}\r\n",
            text.len()
        ));
        assert_eq!(worker.text(), "BURIED");
    }
    let table = done(&site, "jobs mail --state buried --limit 5 --bodies");
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 6, "{table}");
    for (nth, row) in (1..).zip(&rows[1..]) {
        assert!(
            row.ends_with(&format!("buried  no host {nth} | body {nth}.")),
            "{table}"
        );
    }
    let lines = done(&site, "jobs mail --state buried --reason buried --json");
    assert_eq!(lines.lines().count(), 7, "{lines}");
    let old = ctl(&site, "jobs mail --older-than 1h");
    assert_eq!(old.0, NOT_DONE, "{}", old.1);
}

#[test]
fn move_ten_thousand_jobs() {
    let site = site();
    let mut wire = site.server.connect();
    wire.ask("use mail");
    for _ in 0..100 {
        wire.send("put 0 0 60 1\r\nx\r\n".repeat(101));
        for _ in 0..101 {
            assert!(inserted(&wire.text()).is_some());
        }
    }
    let said = done(&site, "move mail post --limit 10000 --yes");
    assert_eq!(said, "10000 jobs of mail to post moved\n");
    assert_eq!(count(&site, "mail", "ready"), 100);
    assert_eq!(count(&site, "post", "ready"), 10_000);
}

#[test]
fn replay_at_a_hundred_a_second_and_close_the_terminal() {
    let site = site();
    fill(&site, "mail", 20);
    done(&site, "bury --tube mail --yes");
    assert_eq!(count(&site, "mail", "buried"), 20);
    let said = done(&site, "redrive mail --rate 100 --detach --yes");
    assert!(said.starts_with("task "), "{said}");
    let id = said.split(' ').nth(1).unwrap();
    assert!(said.contains(&format!("`bsd-ctl cancel {id}`")), "{said}");
    // The command has ended, and the server goes on.
    wait_until("it is done", || {
        let task = site.get(&format!("/api/v1/tasks/{id}")).json();
        (&task["state"], &task["rate"]) == (&json!("done"), &json!(100))
    });
    assert_eq!(count(&site, "mail", "ready"), 20);
}

#[test]
fn delete_by_body() {
    let site = site();
    fill(&site, "mail", 30);
    let (code, said) = ctl(&site, "delete --tube m* --contains 7.");
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("would delete 3 jobs of m*"), "{said}");
    let said = done(&site, "delete --tube m* --contains 7. --yes");
    assert_eq!(said, "3 jobs of m* deleted\n");
    assert_eq!(count(&site, "mail", "ready"), 27);
    assert_eq!(
        ctl(&site, "delete 1 --contains 7.").0,
        Some(5),
        "for a tube"
    );
    done(&site, "bury --tube mail --contains 9. --yes");
    let kicked = json_of(&site, "kick mail --all --contains 19. --yes");
    assert_eq!(kicked["changed"], 1);
    assert_eq!(count(&site, "mail", "buried"), 2);
}

#[test]
fn export_here_and_import_there() {
    let (here, there) = (site(), site());
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("jobs.jsonl");
    let mut wire = here.server.connect();
    let mut put = |words: &str, body: &[u8]| {
        let line = format!("put-with 7 {words} {} tube=mail\r\n", body.len());
        wire.send([line.as_bytes(), body, b"\r\n"].concat());
        assert!(inserted(&wire.text()).is_some());
    };
    put("0 33", b"\xff\x00\r\n");
    put("3600 44", b"later");
    put("0 55", b"bad");
    wire.send("put-with 5 0 66 2 tube=mail key=k-1 unique=waiting group=g\r\nkk\r\n");
    assert!(inserted(&wire.text()).is_some());
    wire.send("reserve-job 3\r\n");
    wire.text();
    wire.send("bury-with-reason 3 9 7\r\nno host\r\n");
    assert_eq!(wire.text(), "BURIED");
    let output = command(&here.server.address().to_string())
        .args(["export", "mail"])
        .stderr(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), OK);
    std::fs::write(&file, &output.stdout).unwrap();
    let file = file.display();
    let told = json_of(&there, &format!("import {file}"));
    let all = json!({"lines": 4, "put": 4, "buried": 1, "there": 0, "freed": 0});
    assert_eq!(told, all);
    for state in ["ready", "delayed", "buried"] {
        let jobs = |site: &Site| {
            let listed = done(site, &format!("jobs mail --state {state} --bodies --json"));
            let kept = |line: &str| {
                let mut job: Value = serde_json::from_str(line).unwrap();
                let kept = [
                    "priority", "ttr", "state", "key", "unique", "group", "body", "text",
                ];
                let mut of_it: Vec<Value> = kept.iter().map(|key| job[*key].take()).collect();
                of_it.push((job["time_left_seconds"].as_f64() > Some(3000.0)).into());
                of_it
            };
            listed.lines().map(kept).collect::<Vec<_>>()
        };
        assert_eq!(jobs(&here), jobs(&there), "{state}");
    }
    // Behind what is done there is nothing; a key is not there twice.
    let told = json_of(&there, &format!("import {file} --skip 4"));
    assert_eq!((&told["put"], &told["lines"]), (&json!(0), &json!(4)));
    let told = json_of(&there, &format!("import {file} --tube mail"));
    assert_eq!((&told["put"], &told["there"]), (&json!(3), &json!(1)));
    let mut broken = output.stdout.clone();
    broken.extend(b"{\"body\":7}\n");
    std::fs::write(dir.path().join("broken"), broken).unwrap();
    let (code, said) = ctl(
        &there,
        &format!("import {}", dir.path().join("broken").display()),
    );
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("go on with --skip 4"), "{said}");
    if let Some(beanstalkd) = Launch::beanstalkd() {
        let server = beanstalkd.start();
        let mut import = command(&server.address().to_string());
        let mut import = import
            .args(["import", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may have ended before it has read.
        let _ = import.stdin.take().unwrap().write_all(&output.stdout);
        let output = import.wait_with_output().unwrap();
        assert_eq!(output.status.code(), NOT_DONE, "{output:?}");
    }
}

#[test]
fn watch_live_with_bodies() {
    let site = site();
    let mut wire = site.server.connect();
    let mut tail = command(&site.server.address().to_string());
    tail.env("BSD_CTL_HTTP", site.address.to_string());
    tail.args(["tail", "--bodies", "--event", "put", "--count", "1"]);
    let mut tail = tail.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("it has seen a put", || {
        wire.put(b"to: ann");
        wire.ask("pause-tube default 0");
        tail.try_wait().unwrap().is_some()
    });
    let (code, said) = said(&tail.wait_with_output().unwrap());
    assert_eq!(code, OK, "{said}");
    assert!(said.contains(" put      default job "), "{said}");
    assert!(said.ends_with(" | to: ann\n"), "{said}");
}

#[test]
fn what_happened_to_job_123() {
    let dir = TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(dir.path()));
    fill(&site, "mail", 130);
    done(&site, "bury 123");
    done(&site, "delete 123");
    let said = done(&site, "history 123");
    assert!(said.contains("put in mail, 9 bytes"), "{said}");
    assert!(
        said.ends_with("now: there is no job 123 any more\n"),
        "{said}"
    );
    assert_eq!(json_of(&site, "history 124")["now"], "ready");
    assert_eq!(ctl(&site, "history 999").0, NOT_DONE);
}

#[test]
fn who_holds_job_7_and_free_it() {
    let site = site();
    fill(&site, "mail", 8);
    let mut worker = site.server.connect();
    worker.ask("watch mail");
    worker.ask("ignore default");
    while worker.reserve() < 7 {}
    let said = done(&site, "holder 7");
    assert!(said.contains(" has reserved job 7 of mail, for "), "{said}");
    let holder = json_of(&site, "holder 7");
    let address = holder["address"].as_str().unwrap();
    assert!(said.contains(address), "{said}");
    let said = done(&site, "free 7");
    assert!(said.starts_with("job 7 was taken from client "), "{said}");
    assert_eq!(json_of(&site, "job 7")["state"], "ready");
    assert_eq!(worker.ask("touch 7"), "NOT_FOUND");
    let (code, said) = ctl(&site, "holder 7");
    assert_eq!(code, NOT_DONE);
    assert!(
        said.contains("no client has reserved job 7 of mail: it is ready"),
        "{said}"
    );
    assert_eq!(ctl(&site, "free 7").0, NOT_DONE);
    done(&site, "free 6 --close");
    assert_eq!(count(&site, "mail", "reserved"), 0);
}

/// An API with a task that counts until it is cancelled, or until a look at it that is answered when the
/// caller was interrupted. Returns what it was asked until its state was told.
fn counting_api(
    listener: &TcpListener,
    begun: &Sender<()>,
    interrupted: Option<&Receiver<()>>,
) -> Vec<String> {
    let mut asked = Vec::new();
    let mut state = "counting";
    for stream in listener.incoming() {
        let mut stream = BufReader::new(stream.unwrap());
        let mut line = String::new();
        while stream.read_line(&mut line).unwrap() > 0 {
            let mut size = 0;
            loop {
                let mut header = String::new();
                stream.read_line(&mut header).unwrap();
                if header == "\r\n" {
                    break;
                }
                if let Some(value) = header.to_lowercase().strip_prefix("content-length:") {
                    size = value.trim().parse().unwrap();
                }
            }
            stream.read_exact(&mut vec![0; size]).unwrap();
            if line.starts_with("GET") {
                // Nothing more has to happen after the first one.
                let _ = begun.send(());
                if let Some(interrupted) = interrupted {
                    interrupted.recv().unwrap();
                    state = "done";
                }
            }
            if line.starts_with("DELETE") {
                state = "cancelled";
            }
            let words: Vec<&str> = line.split(' ').take(2).collect();
            asked.push(words.join(" "));
            let task = json!({"id": 1, "dry_run": true, "state": state, "matched": 3}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", task.len());
            stream
                .get_mut()
                .write_all((head + &task).as_bytes())
                .unwrap();
            line.clear();
            if state != "counting" && asked.last().is_some_and(|it| it.starts_with("GET")) {
                return asked;
            }
        }
    }
    asked
}

#[test]
fn ctrl_c_while_it_counts_changes_nothing() {
    interrupt_a_count(false);
}

#[test]
fn ctrl_c_just_as_it_has_counted_changes_nothing() {
    interrupt_a_count(true);
}

/// Ctrl-C before the first look at a count is answered; the count has ended by then, or not.
fn interrupt_a_count(has_ended: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((begun, has_begun), (interrupts, interrupted)) = (channel(), channel());
    let api = std::thread::spawn(move || {
        counting_api(&listener, &begun, has_ended.then_some(&interrupted))
    });
    let child = command("127.0.0.1:1")
        .args(["delete", "--tube", "mail", "--yes", "--http"])
        .arg(address.to_string())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    has_begun.recv().unwrap();
    interrupt(&child);
    interrupts.send(()).unwrap_or_default();
    let output = child.wait_with_output().unwrap();
    let (code, said) = said(&output);
    assert_eq!(code, NOT_DONE, "{said}");
    assert!(
        said.contains("stopped while counting: nothing was changed"),
        "{said}"
    );
    let asked = api.join().unwrap();
    let posts = asked.iter().filter(|it| it.starts_with("POST")).count();
    assert_eq!(posts, 1, "{asked:?}");
}

#[test]
fn an_undo_that_another_server_would_do_is_refused() {
    let (site, other) = (site(), site());
    for site in [&site, &other] {
        fill(site, "mail", 2);
    }
    for line in ["clear mail --state ready --yes", "delete 1 --yes"] {
        let mut command = command(&site.server.address().to_string());
        command
            .args(line.split(' '))
            .args(["--undo", "5s", "--http"]);
        let (code, said) = said(&command.arg(other.address.to_string()).output().unwrap());
        assert_eq!(code, USAGE, "{line}: {said}");
        assert!(said.contains("--http ADDRESS names where it is"), "{said}");
    }
    for site in [&site, &other] {
        assert_eq!(count(site, "mail", "ready"), 2);
    }
    done(&site, "clear mail --state ready --undo 5s --yes");
    assert_eq!(count(&site, "mail", "buried"), 2);
}

#[test]
fn the_page_has_the_command_of_each_task() {
    let page = std::fs::read_to_string(std::path::Path::new(ROOT).join("docs/bsd-ctl.md")).unwrap();
    let (_, table) = page.split_once("| task | command |").unwrap();
    let table = table.split("\n\n").next().unwrap();
    assert_eq!(
        table
            .lines()
            .filter(|line| line.contains("`bsd-ctl "))
            .count(),
        10,
        "{table}"
    );
    for name in [
        "doctor", "jobs", "move", "redrive", "delete", "export", "import", "tail", "history",
        "holder", "free",
    ] {
        assert!(
            table.contains(&format!("`bsd-ctl {name} ")) || name == "doctor",
            "{name}"
        );
    }
}
