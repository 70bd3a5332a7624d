//! `bsd-ctl move --to`: the jobs of a tube go to another server. Whatever ends in between, and whatever
//! the other server refuses, each job is at one of the two.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::ctl::{NOT_DONE, OK, USAGE, command, done, said};
use crate::harness::{Launch, Server, wait_until};
use crate::http;
use crate::tls::House;
use crate::wire::put_command;

fn memory() -> Server {
    Launch::bsd().memory().start()
}

/// `bsd-ctl` asked of this server: its exit code, and all that it wrote.
fn ctl(server: &Server, line: &str) -> (Option<i32>, String) {
    let mut command = command(&server.address().to_string());
    said(&command.args(line.split_whitespace()).output().unwrap())
}

/// The command line that moves `mail` to that server.
fn to(there: &Server) -> String {
    format!("move mail --yes --to {}", there.address())
}

/// Put jobs with these numbers as bodies, of three priorities.
fn fill(server: &Server, tube: &str, numbers: std::ops::Range<u32>) {
    let mut wire = server.connect();
    wire.ask(&format!("use {tube}"));
    for some in numbers.collect::<Vec<_>>().chunks(500) {
        let puts = some
            .iter()
            .map(|number| put_command(number % 3, 0, number.to_string().as_bytes()));
        wire.send(puts.flatten().collect::<Vec<u8>>());
        for _ in some {
            assert!(wire.text().starts_with("INSERTED "));
        }
    }
}

/// The jobs of a tube as an export has them, in its order; none if it is not there.
fn jobs(server: &Server, tube: &str) -> Vec<Value> {
    let mut command = command(&server.address().to_string());
    let output = command.args(["export", tube]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn bodies(server: &Server) -> Vec<u32> {
    let jobs = jobs(server, "mail").into_iter();
    jobs.map(|job| job["body"].as_str().unwrap().parse().unwrap())
        .collect()
}

fn count(server: &Server, state: &str) -> u64 {
    let stats = server.connect().ask("stats-tube mail");
    let key = format!("current-jobs-{state}: ");
    let found = stats.lines().find_map(|line| line.strip_prefix(&key));
    found.map_or(0, |count| count.parse().unwrap())
}

/// Set the policy of `mail`; without words it is removed.
fn set_policy(server: &Server, words: &str) {
    let line = format!("set-policy mail {words}");
    assert_eq!(server.connect().ask(line.trim_end()), "POLICY_SET");
}

/// Each of all jobs is at one of the two servers at least; how many are at both.
fn each_is_somewhere(here: &Server, there: &Server, all: u32) -> usize {
    let mut found = BTreeMap::<u32, usize>::new();
    for number in bodies(here).into_iter().chain(bodies(there)) {
        *found.entry(number).or_default() += 1;
    }
    assert!(
        found.keys().copied().eq(0..all),
        "{} of {all} are left",
        found.len()
    );
    found.values().sum::<usize>() - found.len()
}

#[test]
fn ten_thousand_jobs_are_moved_in_their_order() {
    let (here, there) = (memory(), memory());
    fill(&here, "mail", 0..10_000);
    let order = bodies(&here);
    done(&here, "pause mail 1h");
    let told = done(&here, &to(&there));
    assert!(told.starts_with("10000 jobs of mail moved to "), "{told}");
    assert_eq!(bodies(&there), order);
    assert!(bodies(&here).is_empty());
    assert_eq!(ctl(&here, &to(&there)).0, NOT_DONE);
}

#[test]
fn state_priority_key_group_and_reason_are_kept_and_reserved_jobs_stay() {
    let (here, there) = (memory(), memory());
    let mut wire = here.connect();
    for line in [
        "put-with 7 0 9 3 tube=mail key=k group=g\r\none",
        "put-with 8 0 60 3 tube=mail key=w unique=waiting\r\ntwo",
        "put-with 9 1000 60 3 tube=mail\r\nten",
        "put-with 1 0 60 3 tube=mail\r\nbad",
        "put-with 0 0 60 4 tube=mail\r\nheld",
    ] {
        assert!(wire.ask(line).starts_with("INSERTED "), "{line}");
    }
    wire.ask("watch mail");
    let held = wire.reserve();
    let bad = wire.reserve();
    assert_eq!(
        wire.ask(&format!("bury-with-reason {bad} 1 7\r\nno host")),
        "BURIED"
    );
    let before = jobs(&here, "mail");
    let told = done(&here, &to(&there));
    assert!(told.contains("4 jobs of mail moved to "), "{told}");
    assert!(told.contains("1 reserved job left at "), "{told}");
    let after = jobs(&there, "mail");
    assert_eq!(after.len(), 4);
    for (one, other) in before.iter().zip(&after) {
        for name in [
            "state", "body", "priority", "ttr", "key", "unique", "group", "text",
        ] {
            assert_eq!(one[name], other[name], "{name} of {other}");
        }
    }
    let left = |job: &Value| job["time_left_seconds"].as_u64().unwrap();
    let delayed = after.iter().find(|job| job["state"] == "delayed").unwrap();
    assert!((900..=1000).contains(&left(delayed)), "{delayed}");
    let (code, told) = ctl(&here, &to(&there));
    assert_eq!(code, NOT_DONE);
    assert!(told.contains("1 is reserved by a worker"), "{told}");
    assert_eq!(wire.ask(&format!("release {held} 0 0")), "RELEASED");
    done(
        &here,
        &format!("{} --state delayed --state ready", to(&there)),
    );
    assert_eq!(count(&there, "ready"), 3);
}

#[test]
fn a_move_that_is_killed_again_and_again_loses_no_job() {
    let (here, there) = (memory(), memory());
    let all = 3_000;
    fill(&here, "mail", 0..all);
    for round in 1..=3 {
        let goal = round * 500;
        let mut child = start(&here, &to(&there));
        wait_until("some are moved", || {
            count(&there, "ready") >= goal || child.try_wait().unwrap().is_some()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until("its jobs are ready again", || count(&here, "reserved") == 0);
        // A batch at most is at both.
        let doubled = each_is_somewhere(&here, &there, all);
        assert!(
            doubled <= 100 * round as usize,
            "{doubled} jobs are at both"
        );
    }
    done(&here, &to(&there));
    assert!(bodies(&here).is_empty());
    each_is_somewhere(&here, &there, all);
}

fn start(server: &Server, line: &str) -> Child {
    let mut command = command(&server.address().to_string());
    command.args(line.split_whitespace());
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Either server is killed in the middle and started again: no job is lost.
#[test]
fn a_server_that_is_killed_in_between_loses_no_job() {
    for is_source in [true, false] {
        let dirs = [TempDir::new().unwrap(), TempDir::new().unwrap()];
        let start_in = |dir: &TempDir| Launch::bsd().dir(dir.path()).start();
        let [mut here, mut there] = dirs.each_ref().map(start_in);
        let all = 2_000;
        fill(&here, "mail", 0..all);
        let mut child = start(&here, &format!("{} --timeout 0.5", to(&there)));
        wait_until("some are moved", || {
            count(&there, "ready") >= 300 || child.try_wait().unwrap().is_some()
        });
        match is_source {
            true => {
                here.kill();
                child.wait().unwrap();
                here = start_in(&dirs[0]);
            }
            false => {
                there.kill();
                child.wait().unwrap();
                there = start_in(&dirs[1]);
            }
        }
        wait_until("its jobs are ready again", || count(&here, "reserved") == 0);
        let doubled = each_is_somewhere(&here, &there, all);
        assert!(doubled <= 100, "{doubled} jobs are at both");
        if !bodies(&here).is_empty() {
            done(&here, &to(&there));
        }
        assert!(bodies(&here).is_empty());
        each_is_somewhere(&here, &there, all);
    }
}

/// What is refused stays, as it was, and it is said what helps.
#[test]
fn a_target_that_refuses_leaves_the_rest_at_the_source() {
    let here = memory();
    let there = http::Site::start(Launch::bsd().memory().arg("-z").arg("10"));
    fill(&here, "mail", 0..300);
    let order = bodies(&here);
    // One failed delivery makes a dead letter.
    set_policy(&here, "delivery-limit=1 dead-letter=dead");
    set_policy(&there.server, "max-jobs=150");
    let go = to(&there.server);
    let (code, told) = ctl(&here, &go);
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.starts_with("150 jobs of mail moved to "), "{told}");
    assert!(
        told.contains("max-jobs") && told.contains("run the command again"),
        "{told}"
    );
    assert_eq!(
        (bodies(&there.server), bodies(&here)),
        (order[..150].to_vec(), order[150..].to_vec())
    );
    assert_eq!(jobs(&here, "dead").len(), 0);

    set_policy(&there.server, "");
    let drained = there.change("POST", "/api/v1/drain", &serde_json::json!({}));
    assert_eq!(drained.status, 200, "{}", drained.head);
    let (code, told) = ctl(&here, &go);
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.starts_with("0 jobs of mail moved to "), "{told}");
    assert!(told.contains("bsd-ctl undrain"), "{told}");
    assert_eq!(bodies(&here), order[150..]);
    there.change("DELETE", "/api/v1/drain", &Value::Null);

    // These alone stay.
    let mut wire = here.connect();
    for line in [
        "put-with 0 0 60 11 tube=mail\r\n12345678901",
        "put-with 0 0 60 1 tube=mail key=k\r\n1",
    ] {
        assert!(wire.ask(line).starts_with("INSERTED "), "{line}");
    }
    let mut other = there.server.connect();
    assert!(
        other
            .ask("put-with 0 0 60 1 tube=mail key=k\r\n2")
            .starts_with("INSERTED ")
    );
    let (code, told) = ctl(&here, &go);
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.starts_with("150 jobs of mail moved to "), "{told}");
    assert!(
        told.contains("1 job: not moved: other jobs have their keys"),
        "{told}"
    );
    assert!(
        told.contains("1 job: not moved: their bodies are too large"),
        "{told}"
    );
    assert!(
        told.contains("not all was moved: 2 jobs are still at "),
        "{told}"
    );
    assert_eq!((count(&here, "ready"), jobs(&here, "dead").len()), (2, 0));
}

#[test]
fn buried_jobs_are_buried_there_also_if_some_are_refused() {
    let (here, there) = (memory(), memory());
    fill(&here, "mail", 0..5);
    let mut worker = here.connect();
    worker.ask("watch mail");
    for _ in 0..5 {
        let id = worker.reserve();
        assert_eq!(worker.ask(&format!("bury {id} 0")), "BURIED");
    }
    set_policy(&there, "max-jobs=3");
    let (code, told) = ctl(&here, &to(&there));
    assert_eq!(code, NOT_DONE, "{told}");
    assert_eq!((count(&there, "buried"), count(&there, "delayed")), (3, 0));
    assert_eq!((count(&here, "buried"), count(&here, "ready")), (2, 0));
    set_policy(&there, "");
    done(&here, &to(&there));
    assert_eq!((count(&there, "buried"), bodies(&here).len()), (5, 0));
}

#[test]
fn a_tube_moves_from_beanstalkd_and_to_it() {
    let Some(beanstalkd) = Launch::beanstalkd() else {
        return;
    };
    let (old, new) = (beanstalkd.start(), memory());
    fill(&old, "mail", 0..30);
    let mut wire = old.connect();
    wire.ask("use mail");
    wire.send(put_command(0, 1000, b"100"));
    assert!(wire.text().starts_with("INSERTED "));
    wire.ask("watch mail");
    let buried = wire.reserve();
    assert_eq!(wire.ask(&format!("bury {buried} 5")), "BURIED");
    done(&old, &to(&new));
    assert!(!old.connect().ask("stats-tube mail").starts_with("OK") || count(&old, "ready") == 0);
    let states = |server: &Server| ["ready", "delayed", "buried"].map(|state| count(server, state));
    assert_eq!(states(&new), [29, 1, 1]);
    let order = bodies(&new);
    assert_eq!(states(&old), [0, 0, 0]);

    // There and back: what beanstalkd has no word for stays.
    let with_key = "put-with 0 0 60 3 tube=mail key=k\r\n200";
    assert!(new.connect().ask(with_key).starts_with("INSERTED "));
    let (code, told) = ctl(&new, &to(&old));
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(
        told.contains("1 job: not moved: they have a key or a group"),
        "{told}"
    );
    assert_eq!((states(&old), states(&new)), ([29, 1, 1], [1, 0, 0]));
    done(&new, "clear mail --state ready --yes");
    done(&old, &to(&new));
    assert_eq!(bodies(&new), order);
}

#[test]
fn both_servers_may_ask_for_a_token_over_tls() {
    let house = House::new();
    let (token, line) = crate::auth::new_token("all");
    house.write("lines", &line);
    let token_file = house.write("token", &token);
    let launch = || {
        house
            .launch()
            .memory()
            .arg("--auth-file")
            .arg(house.path("lines"))
    };
    // What asks whether it serves has no token.
    let (here, there) = (launch().spawn_bound(), launch().spawn_bound());
    let address = |server: &Server| format!("tls:localhost:{}", crate::tls::address(server).port());
    let mut wire = house.connect(&here);
    assert_eq!(wire.ask(&format!("auth {token}")), "AUTHENTICATED");
    assert_eq!(wire.ask("put-with 0 0 60 1 tube=mail\r\n1"), "INSERTED 1");
    let ca = house.path("ca.pem");
    let (token, ca) = (token_file.display(), ca.display());
    let from = format!(
        "--from {} --token-file {token} --tls-ca {ca}",
        address(&here)
    );
    let target = format!("--to {}", address(&there));
    let (code, told) = ctl(&here, &format!("move mail post {target} {from} --yes"));
    assert_eq!(code, USAGE, "{told}");
    let target = format!("{target} --to-tls-ca {ca}");
    let (code, told) = ctl(&here, &format!("move mail post {target} {from} --yes"));
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.contains("--to-token-file"), "{told}");
    let target = format!("{target} --to-token-file {token}");
    done(&here, &format!("move mail post {target} {from} --yes"));
    let mut wire = house.connect(&there);
    wire.ask(&format!(
        "auth {}",
        std::fs::read_to_string(house.path("token")).unwrap()
    ));
    assert_eq!(wire.stat("stats-tube post", "current-jobs-ready"), "1");
}

#[test]
fn a_server_is_not_moved_to_itself_and_a_pattern_keeps_names() {
    let (here, there) = (memory(), memory());
    for tube in ["mail", "mail-slow", "other"] {
        fill(&here, tube, 0..3);
    }
    let (code, told) = ctl(&here, &to(&here));
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.contains(" are one server: "), "{told}");
    for line in [
        "move mail",
        "move mail --to here --kick",
        "move mail --from here post",
    ] {
        assert_eq!(ctl(&here, line).0, USAGE, "{line}");
    }
    let (code, told) = ctl(&here, &format!("move mail --to {}", there.address()));
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.contains("--yes"), "{told}");
    done(
        &here,
        &format!("move mail* --to {} --limit 4 --yes", there.address()),
    );
    assert_eq!(
        (jobs(&there, "mail").len(), jobs(&there, "mail-slow").len()),
        (3, 1)
    );
    assert_eq!(jobs(&here, "other").len(), 3);
    let (code, told) = ctl(&here, "move none --to 127.0.0.1:1 --yes");
    assert_ne!(code, OK, "{told}");
}
