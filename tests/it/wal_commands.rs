//! `bsd-wal` in the hands of people: filters, histories, reports, help that was run, exit codes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bsd::types::JobId;
use bsd::{JobQueue, Options, PutOptions, SyncPolicy};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Launch, bsd_wal, wal};
use crate::wal::{CANNOT, DAMAGED, OK, USAGE, killed, locate, repair_reporting, snapshot, text};
use crate::wal_look::segments;
use crate::wire::{inserted, put_command};

fn open(dir: &Path) -> JobQueue {
    let options = Options {
        dir: Some(dir.to_owned()),
        sync: SyncPolicy::Never,
        segment_size: 64 << 10,
        ..Options::default()
    };
    JobQueue::open_with(&options).unwrap()
}

fn put(queue: &mut JobQueue, tube: &str, seconds: u64) -> JobId {
    let put = PutOptions {
        delay: Duration::from_secs(seconds),
        ..PutOptions::default()
    };
    queue.put(tube, tube.as_bytes(), put).unwrap()
}

/// Reserve the job that is next, which must be this one.
fn reserve(queue: &mut JobQueue, id: JobId) {
    assert_eq!(queue.reserve().unwrap().unwrap().id, id);
}

/// Change a byte of the body that is `text`.
fn damage(dir: &Path, text: &[u8]) {
    let (file, at) = locate(dir, text);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The ids that `dump --json` gives with these arguments.
fn dumped(dir: &Path, filter: &[&str]) -> Vec<u64> {
    let (code, said) = wal(&[&["dump", text(dir), "--json"], filter].concat());
    assert_eq!(code, OK, "{said}");
    let lines: Vec<Value> = said.lines().map(json).collect();
    let ids = lines
        .iter()
        .filter_map(|line| line["id"].as_u64())
        .collect::<Vec<_>>();
    let (end, jobs) = lines.split_last().unwrap();
    assert_eq!(end["end"]["jobs"], ids.len(), "{said}");
    assert_eq!(jobs.len(), ids.len(), "{said}");
    ids
}

#[test]
fn filters_choose_jobs_by_tube_state_id_and_age() {
    let dir = TempDir::new().unwrap();
    let mut queue = open(dir.path());
    queue.watch("mail").unwrap();
    for (tube, delay) in [("mail", 0), ("mail", 1000), ("video", 0), ("video", 1000)] {
        put(&mut queue, tube, delay);
    }
    reserve(&mut queue, JobId(1));
    queue.bury(JobId(1), 0).unwrap();
    queue.close().unwrap();
    let cases: [(&[&str], &[u64]); 8] = [
        (&["--tube", "mail"], &[1, 2]),
        (&["--tube", "mail", "--tube", "video"], &[1, 2, 3, 4]),
        (&["--state", "buried", "--state", "ready"], &[1, 3]),
        (&["--state", "delayed", "--tube", "video"], &[4]),
        (&["--job", "4", "--job", "2"], &[2, 4]),
        (&["--job", "4", "--tube", "mail"], &[]),
        (&["--min-age", "1h"], &[]),
        (&["--min-age", "0"], &[1, 2, 3, 4]),
    ];
    for (filter, ids) in cases {
        assert_eq!(dumped(dir.path(), filter), ids, "{filter:?}");
    }
    let (code, said) = wal(&["dump", text(dir.path()), "--job", "9"]);
    assert!(
        code == CANNOT && said.contains("there is no job 9"),
        "{said}"
    );
    for wrong in [
        ["--state", "reserved"],
        ["--min-age", "soon"],
        ["--job", "x"],
        ["--tube", "--records"],
    ] {
        let (code, said) = wal(&[&["dump", text(dir.path())], &wrong[..]].concat());
        assert_eq!(code, USAGE, "{said}");
    }
}

#[test]
fn records_are_listed_with_their_places_and_chosen_by_job() {
    let dir = TempDir::new().unwrap();
    let mut queue = open(dir.path());
    let id = put(&mut queue, "a", 0);
    put(&mut queue, "b", 0);
    queue.delete(id).unwrap();
    queue.close().unwrap();
    let records = ["dump", text(dir.path()), "--records", "--json"];
    let (_, all) = wal(&records);
    for line in all.lines().map(json) {
        let (offset, size) = (&line["offset"], &line["size"]);
        let bytes = std::fs::read(dir.path().join(line["file"].as_str().unwrap())).unwrap();
        let (offset, size) = (offset.as_u64().unwrap(), size.as_u64().unwrap());
        assert_eq!(line["position"], format!("1:{offset}"));
        // The record's own bytes name its job at the same place in each.
        if let Some(id) = line["id"].as_u64() {
            let at = offset as usize + 8;
            assert_eq!(bytes[at..at + 8], id.to_le_bytes(), "{line}");
            assert!(at + 8 < offset as usize + size as usize);
        }
    }
    let (_, one) = wal(&[&records[..], &["--job", "1"]].concat());
    let kinds: Vec<Value> = one
        .lines()
        .map(|line| json(line)["record"].clone())
        .collect();
    assert_eq!(kinds, ["put", "delete"]);
}

#[test]
fn bodies_become_files_and_files_that_are_there_are_refused() {
    let dir = TempDir::new().unwrap();
    let [log, out] = ["log", "out"].map(|name| dir.path().join(name));
    let mut queue = open(&log);
    put(&mut queue, "a", 0);
    put(&mut queue, "b", 0);
    queue.close().unwrap();
    let (code, said) = wal(&["dump", text(&log), "--bodies", text(&out)]);
    assert!(code == OK && said.contains("2 bodies"), "{said}");
    assert_eq!(std::fs::read(out.join("2")).unwrap(), b"b");
    std::fs::write(out.join("1"), "mine").unwrap();
    std::fs::remove_file(out.join("2")).unwrap();
    let (code, said) = wal(&["dump", text(&log), "--bodies", text(&out)]);
    assert!(
        code == CANNOT && said.contains("nothing is ever overwritten"),
        "{said}"
    );
    assert_eq!(std::fs::read(out.join("1")).unwrap(), b"mine");
    let before = snapshot(&log);
    for inside in [log.clone(), log.join("out")] {
        let (code, said) = wal(&["dump", text(&log), "--bodies", text(&inside)]);
        assert!(code == CANNOT && said.contains("lies inside"), "{said}");
    }
    assert_eq!(snapshot(&log), before);
}

#[test]
fn the_life_of_a_job_is_told_in_words() {
    let dir = TempDir::new().unwrap();
    let mut queue = open(dir.path());
    queue.watch("mail").unwrap();
    let id = put(&mut queue, "mail", 0);
    reserve(&mut queue, id);
    queue.release(id, 9, Duration::ZERO).unwrap();
    reserve(&mut queue, id);
    queue.bury(id, 9).unwrap();
    put(&mut queue, "video", 0);
    queue.kick(id).unwrap();
    reserve(&mut queue, id);
    queue.release(id, 9, Duration::from_secs(3000)).unwrap();
    queue.delete(id).unwrap();
    put(&mut queue, "video", 0);
    queue.close().unwrap();

    let (code, said) = wal(&["history", text(dir.path()), "1"]);
    assert_eq!(code, OK, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let told = [
        "put in mail, 4 bytes, pri 65536, delay 0, ttr 120",
        "reserved, released; now ready, pri 9",
        "reserved, buried; now buried",
        "kicked; now ready",
        "reserved, released with delay; now delayed by 3000 s, due 2",
        "deleted",
    ];
    assert_eq!(lines.len(), told.len(), "{said}");
    for (line, words) in lines.iter().zip(told) {
        assert!(line.contains(words), "{words}: {line}");
        assert!(line.contains("segment-0000000001.00000 at byte "), "{line}");
    }
    assert!(lines[2].starts_with("between 2"), "{said}");

    let (_, said) = wal(&["history", text(dir.path()), "1", "--json"]);
    let events: Vec<Value> = said.lines().map(json).collect();
    assert_eq!(events[0]["event"], "put");
    assert_eq!(events[0]["after"], events[0]["before"]);
    assert_eq!(
        (&events[4]["state"], &events[4]["delay"]),
        (&"delayed".into(), &3000.into())
    );
    assert_eq!(
        (&events[4]["reserves"], &events[4]["kicks"]),
        (&3.into(), &1.into())
    );
    assert_eq!(events[5]["words"], "deleted");

    let (code, said) = wal(&["history", text(dir.path()), "9"]);
    assert!(
        code == OK && said.contains("job 9 was never put: the next id is 4"),
        "{said}"
    );
}

/// The restored log has next to nothing of the job: it may have been acknowledged, and be lost.
#[test]
fn the_history_of_a_job_that_a_restore_lacks_does_not_say_that_it_was_deleted() {
    let dir = TempDir::new().unwrap();
    let [log, backup, new] = ["log", "backup", "new"].map(|name| dir.path().join(name));
    for ids in [1..=5, 6..=10] {
        let mut queue = open(&log);
        for id in ids {
            assert_eq!(put(&mut queue, "mail", 0), JobId(id));
        }
        queue.close().unwrap();
        if !backup.exists() {
            let (code, said) = wal(&["backup", text(&log), "--output", text(&backup)]);
            assert_eq!(code, OK, "{said}");
        }
    }
    let (code, said) = wal(&["restore", text(&backup), "--output", text(&new)]);
    assert_eq!(code, OK, "{said}");

    let (code, said) = wal(&["history", text(&new), "8"]);
    assert_eq!(code, OK, "{said}");
    for words in [
        "nothing of job 8 is left in the log: it was deleted, and compaction has dropped its records; or \
         it was put in the part that is lost; or it was never put",
        "look for the job in a backup, an archive",
    ] {
        assert!(said.contains(words), "{said}");
    }
    let fate = |log: &Path, id: &str| {
        let (_, said) = wal(&["history", text(log), id, "--json"]);
        json(said.lines().last().unwrap())["end"]["fate"].clone()
    };
    assert_eq!(fate(&new, "8"), "unknown");
    assert_eq!(fate(&new, "5"), "there");
    assert_eq!(fate(&new, &u64::MAX.to_string()), "never put");
    assert_eq!(fate(&log, "8"), "there");
    assert_eq!(fate(&log, "11"), "never put");
}

#[test]
fn the_copy_of_a_standby_is_not_compacted_and_stays_as_it_is() {
    let dir = TempDir::new().unwrap();
    let [log, backup, new] = ["log", "backup", "new"].map(|name| dir.path().join(name));
    segments(&log, 3);
    std::fs::write(log.join("standby"), "up to here\n").unwrap();
    let before = snapshot(&log);
    for flags in [&[][..], &["--json"], &["-q"]] {
        let (code, said) = wal(&[&["compact", text(&log)], flags].concat());
        assert_eq!(code, CANNOT, "{said}");
        assert!(
            said.contains("this is the copy of a standby, which its server keeps"),
            "{said}"
        );
        assert_eq!(snapshot(&log), before);
    }
    // What is told to do in its place.
    for command in [
        &["backup", text(&log), "--output", text(&backup)][..],
        &["restore", text(&backup), "--output", text(&new)],
        &["compact", text(&new)],
    ] {
        let (code, said) = wal(command);
        assert_eq!(code, OK, "{said}");
    }
    // A backup notes in the lock who reads.
    let mut after = snapshot(&log);
    let lock = log.join("lock");
    after.extend(before.get(&lock).map(|bytes| (lock.clone(), bytes.clone())));
    assert_eq!(after, before);
    std::fs::remove_file(log.join("standby")).unwrap();
    assert_eq!(wal(&["compact", text(&log)]).0, OK);
}

#[test]
fn what_a_repair_has_lost_is_reported_to_programs_as_to_people() {
    let dir = TempDir::new().unwrap();
    let [log, new, report] = ["log", "new", "report.json"].map(|name| dir.path().join(name));
    killed(&log);
    damage(&log, b"job 1");
    let (code, said) = repair_reporting(&log, &new, &report);
    assert_eq!(code, DAMAGED, "{said}");
    assert!(
        said.contains("lost: 1 job\n") && said.contains("job 1 is missing"),
        "{said}"
    );
    let written = json(&std::fs::read_to_string(&report).unwrap());
    assert_eq!(written["intact"], false);
    assert_eq!(written["totals"]["missing"], 1);
    assert_eq!(
        written["damages"][0]["missing"],
        serde_json::json!([[1, 1]])
    );
    assert_eq!(written["jobs_written"], 1);
    let (file, _) = locate(&log, b"job 3");
    assert_eq!(
        written["damages"][0]["file"],
        text(file.file_name().unwrap().as_ref())
    );

    let (code, said) = repair_reporting(&log, &dir.path().join("other"), &report);
    assert!(
        code == CANNOT && said.contains("nothing is ever overwritten"),
        "{said}"
    );
    assert!(!dir.path().join("other").exists());
    std::fs::remove_file(&report).unwrap();
    let (code, _) = repair_reporting(&log, &new, &report);
    assert!(
        code == CANNOT && !report.exists(),
        "no report of a repair that was not made"
    );
    let inside = log.join("report.json");
    let (code, said) = repair_reporting(&log, &dir.path().join("other"), &inside);
    assert!(code == CANNOT && said.contains("lies inside"), "{said}");
}

#[test]
fn what_verify_and_info_say_is_there_for_programs_too() {
    let dir = TempDir::new().unwrap();
    let mut queue = open(dir.path());
    for _ in 0..3 {
        put(&mut queue, "mail", 0);
    }
    queue.pause("mail", Duration::from_secs(5000)).unwrap();
    queue.close().unwrap();
    let (code, said) = wal(&["verify", text(dir.path()), "--json"]);
    assert_eq!(code, OK, "{said}");
    let verdict = json(&said);
    assert_eq!(
        (&verdict["intact"], &verdict["jobs"]),
        (&true.into(), &3.into())
    );
    assert_eq!(verdict["segments"][0]["end"], "clean");
    let (code, said) = wal(&["info", text(dir.path()), "--json"]);
    assert_eq!(code, OK, "{said}");
    let info = json(&said);
    assert_eq!(
        (&info["tubes"][0]["tube"], &info["all"]["ready"]),
        (&"mail".into(), &3.into())
    );
    assert_eq!(
        (&info["next_id"], &info["end"]),
        (&4.into(), &"clean".into())
    );
    assert_eq!(info["pinned"][0]["first"], serde_json::json!([1, 2, 3]));
    assert_eq!(info["pauses"][0]["tube"], "mail");
    assert!(info["reserved_bytes"].as_u64().unwrap() > 30_000, "{said}");
    assert_eq!(info["oldest"]["id"], 1);
    let (_, said) = wal(&["info", text(dir.path())]);
    assert!(said.contains("is held by 3 jobs: 1, 2, 3\n"), "{said}");

    damage(dir.path(), b"mail");
    let (code, said) = wal(&["verify", text(dir.path()), "--json"]);
    assert_eq!(code, DAMAGED, "{said}");
    let verdict = json(&said);
    assert_eq!(verdict["intact"], false);
    assert!(verdict["damages"][0]["offset"].is_u64(), "{said}");
    assert_eq!(verdict["damages"][0]["hit"], serde_json::json!([1]));
}

#[test]
fn how_far_a_log_in_use_was_checked_is_told_to_programs() {
    let dir = TempDir::new().unwrap();
    let server = Launch::bsd().dir(dir.path()).start();
    let mut wire = server.connect();
    for _ in 0..3 {
        wire.send(put_command(0, 0, b"job"));
        assert!(inserted(&wire.text()).is_some());
    }
    let (code, said) = wal(&["verify", text(dir.path()), "--live", "--json"]);
    assert_eq!(code, OK, "{said}");
    let live = &json(&said)["live"];
    let offset = |position: &Value| {
        let offset = position.as_str().unwrap().strip_prefix("1:").unwrap();
        offset.parse::<u64>().unwrap()
    };
    assert!(offset(&live["durable"]) <= offset(&live["end"]), "{said}");
    assert_eq!(json(&said)["segments"][0]["used"], offset(&live["end"]));
    let (_, said) = wal(&["verify", text(dir.path()), "--live"]);
    assert!(said.contains("up to segment 1 byte "), "{said}");
    server.stop();
    let (_, said) = wal(&["verify", text(dir.path()), "--json"]);
    assert!(json(&said)["live"].is_null(), "{said}");
}

#[test]
fn a_log_in_use_is_refused_with_what_can_be_done_meanwhile() {
    let dir = TempDir::new().unwrap();
    let [log, new] = ["log", "new"].map(|name| dir.path().join(name));
    let server = Launch::bsd().dir(&log).start();
    let (code, said) = wal(&["repair", text(&log), "--output", text(&new)]);
    let live = format!("bsd-wal verify {} --live", text(&log));
    assert!(code == CANNOT && said.contains(&live), "{said}");
    let (code, said) = wal(&["compact", text(&log)]);
    assert!(
        code == CANNOT && said.contains("stop that one first"),
        "{said}"
    );
    assert!(!said.contains("--live"), "{said}");
    server.stop();
}

#[test]
fn a_backup_that_is_refused_leaves_no_file_that_is_not_whole() {
    let dir = TempDir::new().unwrap();
    let [log, backup] = ["log", "backup"].map(|name| dir.path().join(name));
    segments(&log, 2);
    let file = log.join("segment-0000000001.00000");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[30_000] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (code, said) = wal(&["backup", text(&log), "--output", text(&backup)]);
    assert!(code == CANNOT && said.contains("bsd-wal repair"), "{said}");
    let left = std::fs::read_dir(&backup).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

/// More files than a process may have open, whatever it does.
#[test]
fn g36_a_log_of_more_files_than_may_be_open_is_looked_at_backed_up_repaired_and_exported() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    segments(&log, 120);
    let limited = |limit: &str, args: &str| {
        let bin = bsd_wal().display();
        let script = format!("ulimit {limit}; exec {bin} -q {args}");
        let run = Command::new("sh")
            .args(["-c", &script])
            .current_dir(dir.path())
            .output();
        let run = run.unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!((run.status.code(), &*said), (OK, ""), "{args}");
    };
    for args in [
        "verify log",
        "info log",
        "dump log --json",
        "dump log --records",
        "history log 7",
        "export log --output binlogs",
    ] {
        limited("-n 40", args);
    }
    // Of one in use, files are opened again where not all of them can be kept open.
    for args in ["verify log --live", "backup log --output backup"] {
        limited("-n 64", args);
    }
    // A command that writes a log has all its files open.
    for args in [
        "restore backup --output restored",
        "repair log --output repaired",
        "compact log",
    ] {
        limited("-S -n 80", args);
    }
}

/// A disk or a person may exchange blocks of two files.
#[test]
fn g35_a_log_whose_segments_have_exchanged_their_beginnings_is_refused_and_repaired_to_the_last_job()
 {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    segments(&log, 4);
    let expected = dumped(&log, &[]);
    let mut names: Vec<_> = std::fs::read_dir(&log)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| text(path).contains("segment-"))
        .collect();
    names.sort();
    let whole: Vec<_> = names
        .iter()
        .map(|name| std::fs::read(name).unwrap())
        .collect();
    let mut tried = 0;
    for (one, other) in [(0, 1), (1, 2), (0, names.len() - 1)] {
        for size in [512, 4096, 20480] {
            let mut bytes = [whole[one].clone(), whole[other].clone()];
            let [first, second] = &mut bytes;
            first[..size].swap_with_slice(&mut second[..size]);
            std::fs::write(&names[one], first).unwrap();
            std::fs::write(&names[other], second).unwrap();
            let (code, said) = wal(&["verify", text(&log)]);
            assert_eq!(code, DAMAGED, "{said}");
            let start = Launch::bsd().dir(&log).run_to_exit();
            assert_eq!(start.code, Some(3));
            tried += 1;
            let new = dir.path().join(format!("new-{tried}"));
            let (code, said) = wal(&["repair", text(&log), "--output", text(&new)]);
            assert_eq!(code, DAMAGED, "{said}");
            assert_eq!(
                dumped(&new, &[]),
                expected,
                "{one}, {other}, {size}: {said}"
            );
        }
        for (name, bytes) in names.iter().zip(&whole) {
            std::fs::write(name, bytes).unwrap();
        }
    }
}

#[test]
fn every_exit_code_means_what_the_help_says() {
    let dir = TempDir::new().unwrap();
    let [log, hurt, empty] = ["log", "hurt", "empty"].map(|name| dir.path().join(name));
    for log in [&log, &hurt] {
        killed(log);
    }
    damage(&hurt, b"job 1");
    std::fs::create_dir(&empty).unwrap();
    let mut number = 0;
    let mut check = |command: &[&str], log: &Path, code| {
        number += 1;
        let new = dir.path().join(format!("new-{number}"));
        let args = command.iter().map(|word| match *word {
            "DIR" => text(log),
            "NEW" => text(&new),
            word => word,
        });
        let args: Vec<&str> = args.collect();
        let (found, said) = wal(&args);
        assert_eq!(found, code, "{args:?}: {said}");
        let (found, said) = wal(&[&["-q"], &args[..]].concat());
        let repeated = if command.contains(&"NEW") && code != CANNOT {
            CANNOT
        } else {
            code
        };
        assert_eq!(found, repeated, "-q {args:?}: {said}");
    };
    let commands: [&[&str]; 7] = [
        &["verify", "DIR"],
        &["info", "DIR", "--json"],
        &["dump", "DIR"],
        &["dump", "DIR", "--records"],
        &["history", "DIR", "1"],
        &["repair", "DIR", "--output", "NEW"],
        &["dump", "DIR", "--bodies", "NEW"],
    ];
    for command in commands {
        check(command, &log, OK);
        check(command, &hurt, DAMAGED);
        check(command, &empty, CANNOT);
        check(&command[..1], &log, USAGE);
    }
    let server = Launch::bsd().dir(&log).start();
    for command in commands {
        let shows = ["info", "dump", "history"].contains(&command[0]);
        check(command, &log, if shows { OK } else { CANNOT });
    }
    server.stop();
    for help in ["--help", "--version"] {
        assert_eq!(wal(&[help]).0, OK);
    }
}

#[test]
fn quiet_says_nothing_but_errors() {
    let dir = TempDir::new().unwrap();
    killed(dir.path());
    for command in ["verify", "info", "dump"] {
        assert_eq!(wal(&[command, "-q", text(dir.path())]), (OK, String::new()));
    }
    let (code, said) = wal(&["--quiet", "verify", text(&dir.path().join("gone"))]);
    assert!(code == CANNOT && said.contains("No such file"), "{said}");
}
