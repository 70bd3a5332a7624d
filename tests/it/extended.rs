//! The extended commands over a real socket, as `docs/protocol.md` has them: a script for each, and
//! what a server answers that is told to speak beanstalkd's protocol alone.

use std::collections::BTreeMap;

use crate::harness::{Launch, Server};
use crate::normalise::Ids;
use crate::pair::expand;
use crate::wire::Wire;

/// Run a script on a server. Each line is a connection's name, a mark, and a text as in
/// [`crate::differential::run_script`]:
///
/// * `a > put 0 0 60 1\r\nx`: send that and a CR LF; `a | put`: send exactly that;
/// * `a < INSERTED 1`: this reply comes, its last CR LF left out;
/// * `a /`: close the connection;
/// * `# …`: a remark.
fn play_on(server: &Server, script: &str) {
    let mut wires: BTreeMap<&str, Wire> = BTreeMap::new();
    for line in script.lines().map(str::trim_start) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, rest) = line.split_once(' ').expect(line);
        let text = expand(rest.get(2..).unwrap_or_default(), &Ids::default());
        let wire = wires.entry(name).or_insert_with(|| server.connect());
        match &rest[..1] {
            ">" => wire.send([&text[..], b"\r\n"].concat()),
            "|" => wire.send(text),
            "<" => {
                let reply = String::from_utf8_lossy(&wire.reply())
                    .escape_debug()
                    .to_string();
                let expected = String::from_utf8_lossy(&text).escape_debug().to_string();
                assert_eq!(reply.strip_suffix("\\r\\n"), Some(&*expected), "{line}");
            }
            "/" => drop(wires.remove(name)),
            mark => panic!("no such mark: {mark:?} in {line:?}"),
        }
    }
}

fn play(flags: &[&str], script: &str) {
    if let Some(launch) = Launch::bsd_alone() {
        play_on(&launch.memory().args(flags).start(), script);
    }
}

#[test]
fn capabilities_lists_the_extended_commands() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let mut wire = server.connect();
    let listed = wire.ask("capabilities");
    let words = bsd::protocol::Capabilities::ALL.words();
    let lines: String = words.map(|word| format!("- {word}\n")).collect();
    assert!(listed.ends_with(&format!("\r\n---\n{lines}")), "{listed}");
    assert!(lines.contains("- capabilities\n"));
    assert_eq!(wire.ask("capabilities "), "BAD_FORMAT");
}

/// Each line, and what beanstalkd answers to it.
const LINES: [(&str, &str); 20] = [
    ("abort", "UNKNOWN_COMMAND"),
    ("reserve-batch 1 0", "BAD_FORMAT"),
    ("capabilities", "UNKNOWN_COMMAND"),
    ("put-with 0 0 60 1", "UNKNOWN_COMMAND"),
    ("put-with 0 0 60 1 tube=a", "UNKNOWN_COMMAND"),
    (
        "put-with 0 0 60 1 key=a conflict=replace",
        "UNKNOWN_COMMAND",
    ),
    ("list-jobs default ready 0 10", "UNKNOWN_COMMAND"),
    ("delete-batch 1", "UNKNOWN_COMMAND"),
    ("touch-batch 1", "UNKNOWN_COMMAND"),
    ("release-batch 1 0 1", "UNKNOWN_COMMAND"),
    ("fail 1 1", "UNKNOWN_COMMAND"),
    ("bury-with-reason 1 0 1", "UNKNOWN_COMMAND"),
    ("move-job 1 a", "UNKNOWN_COMMAND"),
    ("clear-tube a all", "UNKNOWN_COMMAND"),
    ("set-policy a rate=1/s", "UNKNOWN_COMMAND"),
    ("stats-job-extended 1", "BAD_FORMAT"),
    ("stats-policy a", "BAD_FORMAT"),
    ("schedule-set a 1 cron=@daily tube=a", "UNKNOWN_COMMAND"),
    ("schedule-delete a", "UNKNOWN_COMMAND"),
    ("stats-schedule a", "BAD_FORMAT"),
];

#[test]
fn with_beanstalkds_protocol_the_new_words_are_answered_as_by_beanstalkd() {
    let tested = Launch::bsd_alone().map(|it| it.memory().args(["--protocol", "beanstalkd"]));
    let launches = [tested, Launch::beanstalkd()];
    for server in launches.into_iter().flatten().map(|it| it.start()) {
        let mut wire = server.connect();
        for (line, answer) in LINES {
            assert_eq!(wire.ask(line), answer, "{line}");
        }
        // Their bodies are commands.
        assert_eq!(
            wire.ask("put-with 0 0 60 14\r\nlist-tube-used"),
            "UNKNOWN_COMMAND"
        );
        assert_eq!(wire.text(), "USING default");
        assert_eq!(
            wire.ask(&format!("put-with 0 0 60 1{}", " ".repeat(300))),
            "BAD_FORMAT"
        );
    }
}

#[test]
fn put_with_puts_into_a_tube_and_leaves_the_used_one() {
    play(
        &["-z", "10"],
        r"
        a > put-with 5 0 60 5 tube=mail\r\nhello
        a < INSERTED 1
        a > list-tube-used
        a < USING default
        a > put-with 1 0 60 2\r\n\r\n
        a < INSERTED 2
        a > peek-ready
        a < FOUND 2 2\r\n\r\n
        a > use mail
        a < USING mail
        a > peek-ready
        a < FOUND 1 5\r\nhello
        # A worker gets it as any other job.
        b > watch mail
        b < WATCHING 2
        b > reserve
        b < RESERVED 2 2\r\n\r\n
        b > reserve
        b < RESERVED 1 5\r\nhello
        b > reserve
        a > put-with 5 0 60 1 tube=mail\r\nx
        a < INSERTED 3
        b < RESERVED 3 1\r\nx
        # What is refused skips its body.
        a > put-with 0 0 60 8 tube=a tube=a\r\ndelete 1
        a < BAD_FORMAT
        a > put-with 0 0 60 8 colour=red\r\ndelete 1
        a < BAD_FORMAT
        a > put-with 0 0 60 8 tube=-a\r\ndelete 1
        a < BAD_FORMAT
        a > put-with 0 1 60 8 at=1\r\ndelete 1
        a < BAD_FORMAT
        a > put-with 0 0 60 8 at=4294967296\r\ndelete 1
        a < BAD_FORMAT
        a > put-with 0 0 60 11 tube=a\r\n{x*11}
        a < JOB_TOO_BIG
        a > put-with 0 0 60 11 colour=red\r\n{x*11}
        a < JOB_TOO_BIG
        a > put-with 0 0 60 1 tube=a\r\nxyz
        a < EXPECTED_CRLF
        a < UNKNOWN_COMMAND
        a > put-with 0 0 60
        a < BAD_FORMAT
        a > list-tubes
        a < OK 21\r\n---\n- default\n- mail\n
    ",
    );
}

#[test]
fn put_with_takes_a_time_in_place_of_a_delay() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let mut wire = server.connect();
    assert_eq!(wire.ask("put-with 0 0 60 1 at=0\r\nx"), "INSERTED 1");
    assert_eq!(wire.stat("stats-job 1", "state"), "ready");
    assert_eq!(wire.stat("stats-job 1", "delay"), "0");
    let put = "put-with 0 0 60 1 at=4294967295 tube=later\r\nx";
    assert_eq!(wire.ask(put), "INSERTED 2");
    assert_eq!(wire.stat("stats-job 2", "state"), "delayed");
    // The largest time is some way off.
    let delay: u64 = wire.stat("stats-job 2", "delay").parse().unwrap();
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_secs();
    assert!(
        (4294967295 - 60 - now..=4294967295 - now + 60).contains(&delay),
        "{delay}"
    );
}

#[test]
fn put_with_is_refused_while_the_server_drains() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let mut wire = server.connect();
    server.signal(rustix::process::Signal::USR1);
    crate::harness::wait_until("it drains", || wire.stat("stats", "draining") == "true");
    assert_eq!(wire.ask("put-with 0 0 60 1 tube=a\r\nx"), "DRAINING");
    assert_eq!(wire.ask("list-tubes"), "OK 14\r\n---\n- default\n");
}

#[test]
fn a_key_is_that_of_one_job_of_its_tube_until_that_is_deleted() {
    let script = r"
        a > put-with 5 0 60 1 key=k tube=mail group=g\r\na
        a < INSERTED 1
        a > put-with 5 0 60 1 key=k tube=mail\r\nb
        a < EXISTS 1
        a > put-with 5 0 60 1 key=k\r\nb
        a < INSERTED 2
        a > put-with 5 0 60 1 key=-k tube=mail\r\nb
        a < INSERTED 3
        # The used tube counts, too.
        b > use mail
        b < USING mail
        b > put-with 5 0 60 1 unique=waiting key=k\r\nb
        b < EXISTS 1
        # A put without a key is not compared.
        b > put 5 0 60 1\r\nb
        b < INSERTED 4
        b > watch mail
        b < WATCHING 2
        b > reserve-job 1
        b < RESERVED 1 1\r\na
        a > put-with 5 0 60 1 key=k tube=mail conflict=replace\r\nb
        a < EXISTS 1
        b > bury 1 5
        b < BURIED
        a > put-with 5 0 60 1 key=k tube=mail\r\nb
        a < EXISTS 1
        a > put-with 5 0 60 1 key=k tube=mail conflict=replace\r\nb
        a < INSERTED 5
        a > peek 1
        a < NOT_FOUND
        a > delete 5
        a < DELETED
        a > put-with 5 0 60 1 key=k tube=mail\r\nb
        a < INSERTED 6
    ";
    play(&[], script);
}

#[test]
fn a_key_may_be_free_once_its_job_is_reserved_and_a_released_job_does_not_take_it_back() {
    let script = r"
        a > put-with 5 9 60 1 key=k unique=waiting\r\na
        a < INSERTED 1
        a > put-with 5 0 60 1 key=k\r\nb
        a < EXISTS 1
        a > kick-job 1
        a < KICKED
        a > put-with 5 0 60 1 key=k\r\nb
        a < EXISTS 1
        a > reserve
        a < RESERVED 1 1\r\na
        a > put-with 6 0 60 1 key=k unique=waiting\r\nb
        a < INSERTED 2
        a > release 1 5 0
        a < RELEASED
        a > put-with 5 0 60 1 key=k\r\nb
        a < EXISTS 2
        a > put-with 6 0 60 1 key=k unique=waiting conflict=replace\r\nc
        a < INSERTED 3
        a > reserve-batch 10 0
        a < RESERVED_BATCH 2\r\nJOB 1 default 1\r\na\r\nJOB 3 default 1\r\nc
        a > put-with 5 0 60 1 key=k\r\nb
        a < INSERTED 4
    ";
    play(&[], script);
}

#[test]
fn attributes_of_a_key_are_refused_without_it_and_their_body_is_skipped() {
    let long = "k".repeat(201);
    let mut script = String::new();
    for attributes in [
        "unique=exists",
        "conflict=keep",
        "key=k unique=ready",
        "key=k conflict=fail",
        "key=k key=l",
        "key=",
        "key=a*b",
        &format!("key={long}"),
        "group=",
        "group=g group=g",
    ] {
        script += &format!("a > put-with 5 0 60 8 {attributes}\\r\\ndelete 1\n");
        script += "a < BAD_FORMAT\n";
    }
    // All of them as long as they may be: 1,024 bytes are not too few.
    let name = "n".repeat(200);
    script += &format!(
        "a > put-with 5 0 60 1 tube={name} key={name} group={name} unique=waiting \
         conflict=replace\\r\\nx\na < INSERTED 1\n"
    );
    play(&[], &script);
}

/// What was answered is kept by a server that is killed, and the key of a job that was reserved is free.
#[test]
fn keys_outlive_a_kill() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let launch = launch.dir(&dir.path().join("log"));
    let server = launch.start();
    play_on(
        &server,
        r"
        a > put-with 5 0 60 1 key=kept\r\na
        a < INSERTED 1
        a > put-with 4 0 60 1 key=freed unique=waiting\r\na
        a < INSERTED 2
        a > put-with 5 0 60 1 key=old\r\na
        a < INSERTED 3
        a > put-with 5 0 60 1 key=old conflict=replace\r\nb
        a < INSERTED 4
        a > put-with 5 0 60 1 key=gone\r\nb
        a < INSERTED 5
        a > delete 5
        a < DELETED
        a > put-with 5 0 60 1 key=waits unique=waiting\r\nb
        a < INSERTED 6
        a > reserve
        a < RESERVED 2 1\r\na
    ",
    );
    server.kill();
    let server = launch.start();
    play_on(
        &server,
        r"
        a > put-with 5 0 60 1 key=kept\r\na
        a < EXISTS 1
        a > put-with 5 0 60 1 key=freed unique=waiting\r\na
        a < INSERTED 7
        a > put-with 5 0 60 1 key=old\r\na
        a < EXISTS 4
        a > put-with 5 0 60 1 key=gone\r\nb
        a < INSERTED 8
        a > put-with 5 0 60 1 key=waits unique=waiting\r\nb
        a < EXISTS 6
    ",
    );
}

#[test]
fn a_batch_is_done_to_those_that_are_there_and_names_the_others() {
    let script = r"
        a > put 0 0 60 1\r\na
        a < INSERTED 1
        a > put 0 0 60 1\r\nb
        a < INSERTED 2
        a > put 0 0 60 1\r\nc
        a < INSERTED 3
        b > reserve-job 1
        b < RESERVED 1 1\r\na
        b > reserve-job 2
        b < RESERVED 2 1\r\nb
        a > touch-batch 3\r\n1 2
        a < TOUCHED_BATCH 0 12\r\n---\n- 1\n- 2\n
        b > touch-batch 5\r\n1 2 3
        b < TOUCHED_BATCH 2 8\r\n---\n- 3\n
        # Only those that this client has reserved, each once.
        a > release-batch 7 0 3\r\n1 2
        a < RELEASED_BATCH 0 12\r\n---\n- 1\n- 2\n
        b > release-batch 7 0 3\r\n1 1
        b < RELEASED_BATCH 1 8\r\n---\n- 1\n
        a > delete-batch 9\r\n1 2 3 9 3
        a < DELETED_BATCH 2 16\r\n---\n- 2\n- 9\n- 3\n
        b > delete-batch 1\r\n2
        b < DELETED_BATCH 1 7\r\n--- []\n
        a > delete-batch 0\r\n
        a < DELETED_BATCH 0 7\r\n--- []\n
        # What is refused skips its body.
        a > put 0 0 60 1\r\nd
        a < INSERTED 4
        a > delete-batch 8\r\ndelete 4
        a < BAD_FORMAT
        a > touch-batch 2\r\n4 
        a < BAD_FORMAT
        a > delete-batch 2\r\n4
        a | x
        a < EXPECTED_CRLF
        a > delete-batch 32769\r\n{4 *16384}4
        a < BAD_FORMAT
        a > delete-batch 2001\r\n{4 *1000}4
        a < BAD_FORMAT
        a > delete-batch x
        a < BAD_FORMAT
        a > list-tube-used
        a < USING default
    ";
    play(&[], script);
}

#[test]
fn a_batch_has_at_most_a_thousand_ids() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let mut wire = server.connect();
    wire.put(b"x");
    let ids = vec!["1"; 1000].join(" ");
    let missing = "- 1\n".repeat(999);
    let answer = wire.ask(&format!("delete-batch {}\r\n{ids}", ids.len()));
    assert_eq!(answer, format!("DELETED_BATCH 1 4000\r\n---\n{missing}"));
    let answer = wire.ask(&format!("touch-batch {}\r\n{ids} 1", ids.len() + 2));
    assert_eq!(answer, "BAD_FORMAT");
}

#[test]
fn jobs_that_a_batch_releases_go_to_those_who_wait_in_the_usual_order() {
    let script = r"
        a > put 0 0 60 1\r\na
        a < INSERTED 1
        a > put 0 0 60 1\r\nb
        a < INSERTED 2
        a > reserve
        a < RESERVED 1 1\r\na
        a > reserve
        a < RESERVED 2 1\r\nb
        b > reserve
        a > release-batch 5 0 3\r\n1 2
        a < RELEASED_BATCH 2 7\r\n--- []\n
        b < RESERVED 1 1\r\na
    ";
    play(&[], script);
}

/// One job of another tube: nothing is done, not to the others either.
#[test]
fn a_batch_with_a_job_of_a_tube_that_the_token_is_not_for_does_nothing() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let (token, line) = crate::auth::new_token("work:mail-*");
    let dir = tempfile::tempdir().unwrap();
    let (tokens, socket) = (dir.path().join("tokens"), dir.path().join("socket"));
    crate::auth::write_private(&tokens, &line);
    let launch = launch
        .memory()
        .arg("-l")
        .arg(format!("unix:{}", socket.display()));
    let server = launch.arg("--auth-file").arg(&tokens).spawn();
    crate::harness::wait_until("it listens", || {
        Wire::connect_unix(&socket).is_ok() && Wire::connect(server.address()).is_ok()
    });
    let mut owner = Wire::connect_unix(&socket).unwrap();
    for tube in ["mail-a", "mail-b", "other"] {
        owner.ask(&format!("put-with 0 0 60 1 tube={tube}\r\nx"));
    }
    let mut wire = server.connect();
    assert_eq!(wire.ask(&format!("auth {token}")), "AUTHENTICATED");
    assert_eq!(wire.ask("delete-batch 5\r\n1 2 3"), "NOT_AUTHORIZED");
    assert_eq!(owner.stat("stats", "current-jobs-ready"), "3");
    let deleted = wire.ask("delete-batch 5\r\n1 2 9");
    assert_eq!(deleted, "DELETED_BATCH 2 8\r\n---\n- 9\n");
    assert_eq!(
        wire.ask("put-with 0 0 60 1 tube=mail-a\r\nx"),
        "NOT_AUTHORIZED"
    );
    let listed = wire.ask("capabilities");
    assert!(
        listed.contains("- delete-batch\n") && !listed.contains("put-with"),
        "{listed}"
    );
}

#[test]
fn list_jobs_has_the_jobs_of_a_tube_in_one_state_page_by_page() {
    let script = r"
        a > list-jobs mail ready 0 10
        a < NOT_FOUND
        a > list-jobs default ready 0 10
        a < OK 21\r\n---\nnext: 0\njobs: []\n
        a > put-with 5 0 60 1 tube=mail\r\na
        a < INSERTED 1
        a > put-with 4 0 60 2 tube=mail\r\nbb
        a < INSERTED 2
        a > put-with 5 0 60 3 tube=mail\r\nccc
        a < INSERTED 3
        a > put-with 5 1000 60 4 tube=mail\r\ndddd
        a < INSERTED 4
        a > list-jobs mail ready 0 2
        a < OK 58\r\n---\nnext: 1-5-0\njobs:\n- id: 2\n  size: 2\n- id: 1\n  size: 1\n
        a > list-jobs mail ready 1-5-0 2
        a < OK 36\r\n---\nnext: 0\njobs:\n- id: 3\n  size: 3\n
        a > list-jobs mail delayed 0 1
        a < OK 36\r\n---\nnext: 0\njobs:\n- id: 4\n  size: 4\n
        # The cursor stands also where its job is gone, unless it was buried.
        a > delete 1
        a < DELETED
        a > list-jobs mail ready 1-5-0 2
        a < OK 36\r\n---\nnext: 0\njobs:\n- id: 3\n  size: 3\n
        b > reserve-job 2
        b < RESERVED 2 2\r\nbb
        b > reserve-job 3
        b < RESERVED 3 3\r\nccc
        a > list-jobs mail reserved 0 1000
        a < OK 54\r\n---\nnext: 0\njobs:\n- id: 2\n  size: 2\n- id: 3\n  size: 3\n
        a > list-jobs default reserved 0 1000
        a < OK 21\r\n---\nnext: 0\njobs: []\n
        b > bury 2 1
        b < BURIED
        b > bury 3 1
        b < BURIED
        a > list-jobs mail buried 0 1
        a < OK 40\r\n---\nnext: 2-0-0\njobs:\n- id: 2\n  size: 2\n
        a > list-jobs mail buried 2-0-0 1
        a < OK 36\r\n---\nnext: 0\njobs:\n- id: 3\n  size: 3\n
        a > kick-job 2
        a < KICKED
        a > list-jobs mail buried 2-0-0 1
        a < NOT_FOUND
        a > list-jobs mail urgent 0 1
        a < BAD_FORMAT
        a > list-jobs mail ready 0 1001
        a < BAD_FORMAT
    ";
    play(&[], script);
}

#[test]
fn reserve_batch_takes_what_is_ready_and_waits_for_the_first_job() {
    let script = r"
        a > reserve-batch 10 0
        a < TIMED_OUT
        a > put-with 5 0 60 1 tube=mail\r\na
        a < INSERTED 1
        a > put-with 4 0 60 4 tube=mail\r\n\r\n\r\n
        a < INSERTED 2
        a > put 9 0 60 0\r\n
        a < INSERTED 3
        b > watch mail
        b < WATCHING 2
        b > reserve-batch 2 0
        b < RESERVED_BATCH 2\r\nJOB 2 mail 4\r\n\r\n\r\n\r\nJOB 1 mail 1\r\na
        b > reserve-batch 1000 1000
        b < RESERVED_BATCH 1\r\nJOB 3 default 0\r\n
        b > delete-batch 5\r\n1 2 3
        b < DELETED_BATCH 3 7\r\n--- []\n
        b > reserve-batch 1000 1000
        a > put 9 0 60 1\r\nx
        a < INSERTED 4
        b < RESERVED_BATCH 1\r\nJOB 4 default 1\r\nx
        # In the last second of a job there is no wait.
        b > delete 4
        b < DELETED
        a > put 9 0 1 1\r\ny
        a < INSERTED 5
        b > reserve-batch 1 0\r\nreserve-batch 1 1000
        b < RESERVED_BATCH 1\r\nJOB 5 default 1\r\ny
        b < DEADLINE_SOON
        b > reserve-batch 0 0
        b < BAD_FORMAT
        b > reserve-batch 1001 0
        b < BAD_FORMAT
        b > reserve-batch 1
        b < BAD_FORMAT
    ";
    play(&[], script);
}

/// Large bodies come alone, through the way that gives them out in pieces.
#[test]
fn a_large_job_comes_alone_in_its_batch() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    for launch in [launch.clone().memory(), launch.dir(dir.path())] {
        let server = launch.args(["-z", "2m"]).start();
        let mut wire = server.connect();
        let large = "l".repeat(1_500_000);
        for body in ["a", "b", &large, "c"] {
            wire.put(body.as_bytes());
        }
        let batch = "reserve-batch 1000 10";
        let small = "RESERVED_BATCH 2\r\nJOB 1 default 1\r\na\r\nJOB 2 default 1\r\nb";
        assert_eq!(wire.ask(batch), small);
        let alone = format!("RESERVED_BATCH 1\r\nJOB 3 default 1500000\r\n{large}");
        assert!(wire.ask(batch) == alone);
        assert_eq!(wire.ask(batch), "RESERVED_BATCH 1\r\nJOB 4 default 1\r\nc");
        // Another client waits for it.
        let mut other = server.connect();
        other.send("reserve-batch 1000 1000\r\n");
        crate::harness::wait_until("it waits", || wire.stat("stats", "current-waiting") == "1");
        assert_eq!(wire.ask("release 3 0 0"), "RELEASED");
        assert!(other.text() == alone);
    }
}

/// A client that is gone, whether it has read a part of its batch or nothing, has reserved nothing.
#[test]
fn all_jobs_of_a_batch_are_ready_again_when_its_client_is_gone() {
    const JOBS: usize = 900;
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let mut producer = server.connect();
    let body = vec![b'x'; 1000];
    (0..JOBS).for_each(|_| _ = producer.put(&body));
    for sent in [
        "reserve-batch 1000 0\r\n",
        "reserve-batch 1000 0\r\nreserve-batch 1000 1000\r\n",
    ] {
        let mut wire = server.connect();
        wire.send(sent);
        let reserved = JOBS.to_string();
        let stat = |wire: &mut Wire, key| wire.stat("stats", key);
        let is_out = || stat(&mut producer, "current-jobs-reserved") == reserved;
        crate::harness::wait_until("they are reserved", is_out);
        drop(wire);
        let is_back = || stat(&mut producer, "current-jobs-ready") == reserved;
        crate::harness::wait_until("they are ready", is_back);
    }
    let batch = producer.ask("reserve-batch 1000 0");
    assert!(batch.starts_with("RESERVED_BATCH 900\r\n"));
}

/// What waits for a client that reads nothing is bounded; its jobs are ready again when it is closed.
#[test]
fn batches_that_no_one_reads_take_no_more_memory_than_other_replies() {
    const JOBS: usize = 400;
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().args(["--max-memory", "4m"]).start();
    let mut producer = server.connect();
    let body = vec![b'x'; 4000];
    (0..JOBS).for_each(|_| _ = producer.put(&body));
    // An eighth of 4 MiB is for replies, and half of that for batches.
    let reply = producer.ask("reserve-batch 1000 0");
    let count = reply
        .lines()
        .filter(|line| line.starts_with("JOB "))
        .count();
    assert!((1..=66).contains(&count), "{count}");
}

/// Until this many clients wait for a job.
fn wait_for_waiting(server: &Server, count: u64) {
    let mut wire = server.connect();
    let is_so = || wire.stat("stats", "current-waiting") == count.to_string();
    crate::harness::wait_until("they wait", is_so);
}

#[test]
fn abort_ends_a_reserve_that_waits_and_nothing_else() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let (mut wire, mut other) = (server.connect(), server.connect());
    assert_eq!(wire.ask("abort"), "ABORTED");
    other.send("reserve\r\n");
    for (count, reserve) in [
        "reserve",
        "reserve-with-timeout 1000",
        "reserve-batch 10 1000",
    ]
    .into_iter()
    .enumerate()
    {
        wire.send(format!("{reserve}\r\n"));
        wait_for_waiting(&server, 2);
        // In pieces, in one, and with a command behind it.
        match count {
            0 => wire.send("abort\r\n"),
            1 => {
                wire.send("abo");
                wait_for_waiting(&server, 2);
                wire.send("rt\r\n");
            }
            _ => wire.send("abort\r\nlist-tube-used\r\n"),
        }
        assert_eq!(wire.text(), "TIMED_OUT");
        assert_eq!(wire.text(), "ABORTED");
    }
    assert_eq!(wire.text(), "USING default");
    // All in one packet.
    wire.send("reserve\r\nabort\r\nreserve\r\nabort\r\nabort\r\nlist-tube-used\r\n");
    let replies: Vec<String> = (0..6).map(|_| wire.text()).collect();
    assert_eq!(
        replies,
        [
            "TIMED_OUT",
            "ABORTED",
            "TIMED_OUT",
            "ABORTED",
            "ABORTED",
            "USING default"
        ]
    );
    // The other one waits all the time, and gets the job.
    wait_for_waiting(&server, 1);
    let id = wire.put(b"x");
    assert_eq!(other.text(), format!("RESERVED {id} 1\r\nx"));
}

/// What is not the line waits, as it does for beanstalkd, and is run then.
#[test]
fn other_input_of_a_client_that_waits_is_run_after_its_reply() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let body = "abort\r\n";
    let put = format!("put 0 0 60 {}\r\n{body}\r\n", body.len());
    for input in [
        "abort \r\nabort\r\n",
        "aborted\r\n",
        "use abort\r\n",
        &put,
        "abo",
    ] {
        let (mut wire, mut other) = (server.connect(), server.connect());
        wire.send("reserve-with-timeout 1000\r\n");
        wait_for_waiting(&server, 1);
        wire.send(input);
        // Its input was there before this is answered.
        other.ask("list-tubes");
        wait_for_waiting(&server, 1);
        let id = other.put(b"x");
        assert_eq!(wire.text(), format!("RESERVED {id} 1\r\nx"), "{input}");
        if input == "abo" {
            wire.send("rt\r\n");
        }
        let reply = wire.text();
        match input {
            "abo" => assert_eq!(reply, "ABORTED"),
            "use abort\r\n" => assert_eq!(reply, "USING abort"),
            _ if input == put => {
                assert!(reply.starts_with("INSERTED "), "{reply}");
                let id = reply["INSERTED ".len()..].to_owned();
                assert_eq!(
                    wire.ask(&format!("peek {id}")),
                    format!("FOUND {id} 7\r\n{}", body.trim_end())
                );
                wire.ask(&format!("delete {id}"));
            }
            _ => assert_eq!(reply, "BAD_FORMAT", "{input}"),
        }
        if input.ends_with("\r\nabort\r\n") {
            assert_eq!(wire.text(), "ABORTED");
        }
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    }
}

#[test]
fn with_beanstalkds_protocol_abort_waits_until_the_reserve_is_answered() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().args(["--protocol", "beanstalkd"]).start();
    let (mut wire, mut other) = (server.connect(), server.connect());
    wire.send("reserve\r\nabort\r\n");
    wait_for_waiting(&server, 1);
    let id = other.put(b"x");
    assert_eq!(wire.text(), format!("RESERVED {id} 1\r\nx"));
    assert_eq!(wire.text(), "UNKNOWN_COMMAND");
}
