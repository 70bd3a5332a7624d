//! `bsd-ctl` over the server's API: lists, searches, moves, and its errors.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ctl::{NOT_DONE, OK, USAGE, command, said};
use crate::harness::{Launch, wait_until};
use crate::http::{Site, tokens};

const CANNOT: Option<i32> = Some(2);

fn site() -> Site {
    Site::start(Launch::bsd().memory())
}

/// Run it with these words: its exit code, and all that it wrote.
fn ctl(site: &Site, words: &[&str]) -> (Option<i32>, String) {
    at(&site.server.address().to_string(), site.address, words)
}

fn at(address: &str, http: SocketAddr, words: &[&str]) -> (Option<i32>, String) {
    let mut command = command(address);
    command.env("BSD_CTL_HTTP", http.to_string());
    said(&command.args(words).output().unwrap())
}

/// The same, of which all must be done.
fn done(site: &Site, words: &[&str]) -> String {
    let (code, said) = ctl(site, words);
    assert_eq!(code, OK, "{words:?}: {said}");
    said
}

fn json_of(site: &Site, words: &[&str]) -> Value {
    let said = done(site, &[words, &["--json"]].concat());
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Lines of JSON, as an array.
fn rows_of(site: &Site, words: &[&str]) -> Value {
    let said = done(site, &[words, &["--json"]].concat());
    let row = |line: &str| serde_json::from_str::<Value>(line).unwrap();
    Value::Array(said.lines().map(row).collect())
}

/// Ids of jobs that are listed.
fn ids(jobs: &Value) -> Vec<u64> {
    let jobs = jobs.as_array().unwrap().iter();
    jobs.map(|job| job["id"].as_u64().unwrap()).collect()
}

/// This many jobs in a tube, from id 1 on.
fn fill(site: &Site, tube: &str, count: u64) {
    let mut wire = site.server.connect();
    wire.ask(&format!("use {tube}"));
    for nth in 1..=count {
        wire.put(format!("body of {nth}.").as_bytes());
    }
}

#[test]
fn jobs_are_listed_over_several_pages() {
    let site = site();
    fill(&site, "a/b+c", 600);
    let listed = rows_of(&site, &["jobs", "a/b+c", "--limit", "555"]);
    assert_eq!(ids(&listed), (1..=555).collect::<Vec<_>>());
    let table = done(&site, &["jobs", "a/b+c", "--limit", "2"]);
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert_eq!(rows[1][..3], ["a/b+c", "1", "0"]);
    // The age is two words, `0 s`.
    assert_eq!(rows[1][5..], ["-", "10", "0", "0", "0"]);
    let (code, said) = ctl(&site, &["jobs", "a/b+c", "--state", "buried"]);
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("has no buried job"), "{said}");
}

#[test]
fn a_search_finds_a_text_in_bodies() {
    let site = site();
    fill(&site, "mail", 30);
    let found = rows_of(&site, &["search", "m*", "of 7."]);
    assert_eq!(ids(&found), [7]);
    let (code, said) = ctl(&site, &["search", "mail", "nowhere"]);
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("30 that were looked at"), "{said}");
}

#[test]
fn g50_a_tube_is_cleared_over_the_api_of_the_same_server_and_job_by_job_without_it() {
    let (site, other) = (site(), site());
    let clear = [
        "clear", "t/1", "--state", "ready", "--state", "buried", "--yes",
    ];
    let told = json!({"tube": "t/1", "deleted": 7, "counted": 7});
    let refill = || {
        fill(&site, "t/1", 9);
        let mut wire = site.server.connect();
        wire.ask("watch t/1");
        let [held, buried] = [wire.reserve(), wire.reserve()];
        assert_eq!(wire.ask(&format!("bury {buried} 0")), "BURIED");
        let delayed = wire.reserve();
        assert_eq!(wire.ask(&format!("release {delayed} 0 900")), "RELEASED");
        (wire, held, delayed)
    };
    let (mut wire, held, delayed) = refill();
    assert_eq!(json_of(&site, &clear[..]), told);
    let is_asked = || {
        site.server
            .stderr()
            .contains("POST /api/v1/tubes/t%2F1/clear: 200")
    };
    wait_until("the log says who has cleared", is_asked);
    for id in [held, delayed] {
        assert!(
            wire.ask(&format!("stats-job {id}")).starts_with("OK"),
            "{id}"
        );
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    }
    drop(wire);
    let _wire = refill();
    let (code, said) = ctl(&site, &clear[..6]);
    assert_eq!(code, NOT_DONE);
    assert!(
        said.contains("would delete 1 buried and 6 ready jobs"),
        "{said}"
    );
    // The API of another server is not asked, nor one that is not there.
    let (code, said) = at(&site.server.address().to_string(), other.address, &clear);
    assert_eq!((code, &*said), (OK, "7 jobs of t/1 deleted\n"));
    let (of_site, of_other) = (site.server.stderr(), other.server.stderr());
    assert_eq!(of_site.matches("/clear: 200").count(), 1, "{of_site}");
    assert!(!of_other.contains("/clear"), "{of_other}");
}

#[test]
fn g51_a_job_that_a_hung_worker_holds_is_freed_and_the_worker_closed() {
    let site = site();
    fill(&site, "default", 3);
    let mut hung = site.server.connect();
    let [one, two] = [hung.reserve(), hung.reserve()].map(|id| id.to_string());
    let (code, said) = ctl(&site, &["release", &one]);
    assert_eq!(code, NOT_DONE);
    let advice = format!("`bsd-ctl release {one} --force`");
    assert!(said.contains(&advice), "{said}");
    let freed = json_of(&site, &["release", &one, "--force", "--pri", "3"]);
    assert_eq!(freed, json!({"id": 1, "released": true}));
    let shown = json_of(&site, &["job", &one]);
    assert_eq!(
        (&shown["state"], &shown["pri"]),
        (&json!("ready"), &json!(3))
    );
    let (code, said) = ctl(&site, &["release", "3", "--force"]);
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("no client has reserved this job"), "{said}");
    let clients = json_of(&site, &["clients"]);
    let mut client = clients.as_array().unwrap().iter();
    let client = client.find(|it| it["has_reserved"] == true).unwrap();
    let id = client["id"].to_string();
    let said = done(&site, &["client", "show", &id]);
    assert!(
        said.contains(&format!("has reserved  {two} of default (")),
        "{said}"
    );
    let address = client["address"].as_str().unwrap();
    let said = done(&site, &["client", "close", &id]);
    let expected = format!("client {id} at {address} was closed; it had reserved 1 job\n");
    assert_eq!(said, expected);
    assert_eq!(hung.rest(), b"");
    assert_eq!(json_of(&site, &["job", &two])["state"], "ready");
    let (code, said) = ctl(&site, &["client", "close", &id]);
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("no such client is connected"), "{said}");
}

#[test]
fn a_move_asks_counts_and_leaves_what_is_reserved() {
    let site = site();
    fill(&site, "mail", 10);
    let mut wire = site.server.connect();
    wire.ask("watch mail");
    let mine = wire.reserve();
    let (code, said) = ctl(&site, &["move", "mail", "post"]);
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("would move 9 jobs of mail to post"), "{said}");
    let said = done(&site, &["move", "mail", "post", "--yes"]);
    assert_eq!(said, "9 jobs of mail to post moved\n");
    // They are the same jobs.
    let moved: Vec<u64> = (2..=10).collect();
    assert_eq!(ids(&rows_of(&site, &["jobs", "post"])), moved);
    wire.ask(&format!("release {mine} 0 0"));
    assert_eq!(ids(&rows_of(&site, &["jobs", "mail"])), [1]);
    let (code, said) = ctl(&site, &["move", "mail", "post", "--state", "buried"]);
    assert_eq!(code, NOT_DONE);
    assert!(
        said.contains("no job of mail to post can be changed"),
        "{said}"
    );
}

#[test]
fn what_is_buried_is_driven_back_there_or_elsewhere() {
    let site = site();
    fill(&site, "mail", 4);
    for id in ["1", "2", "3"] {
        done(&site, &["bury", id]);
    }
    let task = json_of(&site, &["redrive", "mail", "--yes", "--rate", "1000"]);
    assert_eq!(
        (&task["changed"], &task["rate"], &task["state"]),
        (&json!(3), &json!(1000), &json!("done"))
    );
    assert_eq!(ids(&rows_of(&site, &["jobs", "mail"])), [1, 2, 3, 4]);
    done(&site, &["bury", "4"]);
    done(&site, &["redrive", "mail", "--to", "post"]);
    assert_eq!(ids(&rows_of(&site, &["jobs", "post"])).len(), 1);
}

/// To bury or release a job is no delivery, where the server has an API.
#[test]
fn a_job_is_buried_and_released_where_it_is() {
    let site = site();
    fill(&site, "mail", 3);
    let shown = |id: &str| {
        let job = json_of(&site, &["job", id]);
        ["state", "pri", "reserves", "buries", "kicks"].map(|key| job[key].clone())
    };
    done(&site, &["bury", "1"]);
    assert_eq!(
        shown("1"),
        [json!("buried"), json!(0), json!(0), json!(1), json!(0)]
    );
    done(&site, &["bury", "1", "--pri", "7"]);
    done(&site, &["bury", "2", "--pri", "8"]);
    assert_eq!(
        shown("2"),
        [json!("buried"), json!(8), json!(0), json!(1), json!(0)]
    );
    done(&site, &["release", "1"]);
    assert_eq!(
        shown("1"),
        [json!("ready"), json!(7), json!(0), json!(1), json!(1)]
    );
    done(&site, &["release", "2", "--delay", "1h", "--pri", "3"]);
    assert_eq!(
        shown("2"),
        [json!("delayed"), json!(3), json!(0), json!(1), json!(0)]
    );
    for word in ["bury", "release"] {
        let (code, said) = ctl(&site, &[word, "9"]);
        assert_eq!(code, NOT_DONE);
        assert!(said.contains("there is no job 9"), "{said}");
    }
    let mut wire = site.server.connect();
    wire.ask("watch mail");
    let mine = wire.reserve().to_string();
    let (code, said) = ctl(&site, &["bury", &mine]);
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("a client has reserved it"), "{said}");
}

/// Jobs of `mail` that failed, two of each kind: buried with a text, out of time, and disconnected.
fn fail_some(site: &Site) -> [Vec<u64>; 3] {
    let mut wire = site.server.connect();
    let policy = "set-policy mail delivery-limit=1";
    assert_eq!(wire.ask(policy), "POLICY_SET");
    wire.ask("use mail");
    wire.ask("watch mail");
    let mut reserved = |ttr: u32| {
        wire.send(format!("put 0 0 {ttr} 1\r\nx\r\n"));
        assert!(wire.text().starts_with("INSERTED"));
        wire.reserve()
    };
    let late = vec![reserved(1), reserved(1)];
    let said: Vec<u64> = (0..2).map(|_| reserved(100)).collect();
    let cut = vec![reserved(100), reserved(100)];
    for (id, text) in said.iter().zip(["no route to host", "no such user"]) {
        let fail = format!("fail {id} {}\r\n{text}", text.len());
        assert_eq!(wire.ask(&fail), "BURIED");
    }
    wait_until("the time of two is up", || {
        wire.stat("stats-tube mail", "current-jobs-buried") == "4"
    });
    drop(wire);
    wait_until("two are without their client", || {
        site.get("/api/v1/tubes/mail").json()["jobs"]["buried"] == 6
    });
    [said, late, cut]
}

#[test]
fn jobs_are_kicked_moved_sent_back_and_deleted_by_what_went_wrong_with_them() {
    let site = site();
    let [said, late, cut] = fail_some(&site);
    let (code, asked) = ctl(&site, &["kick", "mail", "--all", "--reason", "ttr"]);
    assert_eq!(code, NOT_DONE);
    assert!(asked.contains("would kick 2 jobs of mail"), "{asked}");
    let kicked = done(
        &site,
        &["kick", "mail", "--all", "--reason", "ttr", "--yes"],
    );
    assert_eq!(kicked, "2 jobs of mail kicked\n");
    assert_eq!(ids(&rows_of(&site, &["jobs", "mail"])), late);
    let text = ["--reason", "failed", "--text", "route to"];
    let deleted = done(&site, &[&["delete", "--tube", "mail"], &text[..]].concat());
    assert_eq!(deleted, "1 job of mail deleted\n");
    let back = done(&site, &["redrive", "mail", "--text", "such user"]);
    assert_eq!(back, "1 job of mail ready again\n");
    assert_eq!(
        json_of(&site, &["job", &said[1].to_string()])["state"],
        "ready"
    );
    let moved = ["move", "mail", "post", "--reason", "disconnected", "--yes"];
    assert_eq!(done(&site, &moved), "2 jobs of mail to post moved\n");
    let buried = rows_of(&site, &["jobs", "post", "--state", "buried"]);
    assert_eq!(ids(&buried), cut);
    for wrong in [
        &["kick", "mail", "5", "--reason", "ttr"][..],
        &["kick", "mail", "--all", "--reason", "TTR"],
        &["delete", "1", "--tube", "mail", "--reason", "ttr"],
        &["delete", "--reason", "ttr"],
        &["move", "mail", "post", "--text", ""],
    ] {
        let (code, said) = ctl(&site, wrong);
        assert_eq!(code, USAGE, "{wrong:?}: {said}");
    }
}

#[test]
fn tasks_are_listed_and_ended() {
    let site = site();
    fill(&site, "mail", 500);
    let body = json!({"action": "bury", "rate": 1, "filter": {"tube": "mail"}});
    let id = site.change("post", "/api/v1/tasks", &body).json()["id"].to_string();
    let said = done(&site, &["cancel", &id]);
    assert!(
        said.starts_with(&format!("task {id} is cancelled; ")),
        "{said}"
    );
    let tasks = json_of(&site, &["tasks"]);
    assert_eq!(tasks[0]["state"], "cancelled");
    assert!(done(&site, &["tasks"]).contains("bury"));
    let (code, said) = ctl(&site, &["cancel", "99"]);
    assert_eq!(code, NOT_DONE, "{said}");
}

#[test]
fn a_server_is_drained_waited_for_and_takes_puts_again() {
    let site = site();
    fill(&site, "mail", 2);
    let mut wire = site.server.connect();
    wire.ask("watch mail");
    assert_eq!(wire.reserve(), 1);
    let said = done(&site, &["drain"]);
    assert_eq!(said, "puts are refused; 1 job is reserved\n");
    assert_eq!(wire.try_put(b"x"), "DRAINING");
    for (until, wanted) in [("unreserved", "1 job is reserved"), ("empty", "2 jobs are")] {
        let words = ["drain", "--until", until, "--at-most", "0"];
        let (code, said) = ctl(&site, &words);
        assert_eq!(code, NOT_DONE, "{said}");
        assert!(said.contains(wanted), "{said}");
    }
    // The rest is done by a worker while someone waits.
    let mut waiting = command(&site.server.address().to_string());
    let http = site.address.to_string();
    waiting.env("BSD_CTL_HTTP", http).args(["drain", "--json"]);
    waiting.args(["--until", "empty"]).stdout(Stdio::null());
    let mut waiting = waiting.spawn().unwrap();
    assert_eq!(wire.ask("delete 1"), "DELETED");
    assert_eq!(wire.reserve(), 2);
    assert!(waiting.try_wait().unwrap().is_none());
    assert_eq!(wire.ask("delete 2"), "DELETED");
    assert_eq!(waiting.wait().unwrap().code(), OK);
    let drained = json_of(&site, &["drain", "--wait"]);
    assert_eq!(
        (&drained["draining"], &drained["jobs"]["ready"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(done(&site, &["undrain"]), "puts are taken\n");
    wire.put(b"x");
}

#[test]
fn who_waits_for_a_draining_that_is_ended_is_told() {
    let site = site();
    fill(&site, "mail", 1);
    let mut waiting = command(&site.server.address().to_string());
    let http = site.address.to_string();
    waiting.env("BSD_CTL_HTTP", http).stderr(Stdio::piped());
    let waiting = waiting.args(["drain", "--until", "empty"]).spawn().unwrap();
    wait_until("it drains", || site.get("/readyz").status == 503);
    done(&site, &["undrain"]);
    let output = waiting.wait_with_output().unwrap();
    let (code, said) = said(&output);
    assert_eq!(code, NOT_DONE, "{said}");
    assert!(said.contains("ended meanwhile"), "{said}");
}

#[test]
fn clients_are_listed() {
    let site = site();
    let mut wire = site.server.connect();
    wire.ask("use mail");
    let clients = json_of(&site, &["clients"]);
    assert_eq!(clients[0]["uses"], "mail");
    assert!(done(&site, &["clients"]).contains(" mail "));
}

#[test]
fn who_does_not_answer_as_the_api_is_named() {
    let site = site();
    let address = site.server.address().to_string();
    // The protocol's port is not HTTP's.
    let (code, said) = at(
        &address,
        site.server.address(),
        &["tasks", "--timeout", "2"],
    );
    assert_eq!(code, CANNOT, "{said}");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let no_one = port.local_addr().unwrap();
    drop(port);
    let (code, said) = at(&address, no_one, &["tasks"]);
    assert_eq!(code, CANNOT);
    assert!(said.contains("no one listens there"), "{said}");
}

fn set_mode(path: &str, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn g32_a_token_is_read_from_a_file_that_no_one_else_can_read() {
    let tokens = tokens();
    let site = Site::start(
        Launch::bsd()
            .memory()
            .arg("--http-tokens")
            .arg(tokens.path()),
    );
    let dir = TempDir::new().unwrap();
    let mine = dir.path().join("mine");
    std::fs::write(&mine, "reader\n").unwrap();
    let (code, said) = ctl(&site, &["tasks"]);
    assert_eq!(code, NOT_DONE);
    assert!(said.contains("--token-file"), "{said}");
    let mine = mine.to_str().unwrap();
    // G32: a token that others can read is none.
    for mode in [0o666, 0o640, 0o604] {
        set_mode(mine, mode);
        let (code, said) = ctl(&site, &["tasks", "--token-file", mine]);
        assert_eq!(code, CANNOT, "{said}");
        let why = format!("its rights are {mode:04o}; make them 0600 (chmod 600)");
        assert!(said.contains(&why), "{said}");
    }
    set_mode(mine, 0o600);
    done(&site, &["tasks", "--token-file", mine]);
    let (code, said) = ctl(&site, &["cancel", "1", "--token-file", mine]);
    assert_eq!(code, NOT_DONE, "{said}");
    assert!(said.contains("admin"), "{said}");
}

/// All that happens to jobs, again and again. The first job is never finished in time.
fn do_everything(site: &Site, tube: &str, is_over: &AtomicBool) {
    let (mut wire, mut slow) = (site.server.connect(), site.server.connect());
    wire.ask(&format!("use {tube}"));
    wire.send("put 0 0 1 1\r\nx\r\n");
    assert_eq!(wire.text(), "INSERTED 1");
    while !is_over.load(Ordering::Relaxed) {
        slow.ask("reserve-job 1");
        let id = wire.put(b"body");
        for command in [
            format!("reserve-job {id}"),
            format!("release {id} 0 0"),
            format!("reserve-job {id}"),
            format!("bury {id} 0"),
            format!("kick-job {id}"),
            format!("reserve-job {id}"),
            format!("fail {id} 3\r\nwhy"),
            format!("delete {id}"),
        ] {
            let said = wire.ask(&command);
            assert!(!said.starts_with("NOT_FOUND"), "{command}: {said}");
        }
    }
}

#[test]
fn top_has_rates_of_all_that_happens_in_each_tube() {
    let site = site();
    let mut command = command(&site.server.address().to_string());
    let words = "top busy --interval 0.1 --batch 600 --json";
    let mut child = command
        .env("BSD_CTL_HTTP", site.address.to_string())
        .args(words.split(' '))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let rounds = BufReader::new(child.stdout.take().unwrap()).lines();
    let kinds = [
        "put", "reserve", "delete", "release", "bury", "kick", "timeout", "fail",
    ];
    let is_over = AtomicBool::new(false);
    let (mut seen, mut seen_of_all) = (BTreeSet::new(), BTreeSet::new());
    std::thread::scope(|scope| {
        scope.spawn(|| do_everything(&site, "busy", &is_over));
        for round in rounds {
            let round: Value = serde_json::from_str(&round.unwrap()).unwrap();
            let is_seen = |of: &Value, kind: &str| of["per-second"][kind].as_f64() > Some(0.0);
            let tube = &round["tubes"][0];
            seen.extend(kinds.into_iter().filter(|kind| is_seen(tube, kind)));
            seen_of_all.extend(kinds.into_iter().filter(|kind| is_seen(&round, kind)));
            if seen.len() == kinds.len() && seen_of_all.len() == kinds.len() {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let all = BTreeSet::from(kinds);
    assert_eq!((seen, seen_of_all), (all.clone(), all));
    let said = done(
        &site,
        &["top", "--rates", "--interval", "0.1", "--batch", "1"],
    );
    assert!(
        said.contains(" READY  PUT/s  RES/s  DEL/s TIME/s"),
        "{said}"
    );
    assert!(
        said.lines().all(|line| line.chars().count() <= 80),
        "{said}"
    );
}
