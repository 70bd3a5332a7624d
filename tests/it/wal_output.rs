//! The output of `bsd-wal`: it is correct, in words and in JSON.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bsd::storage::RealFs;
use bsd::storage::convert::build::Build;
use bsd::storage::format::Record;
use bsd::storage::inspect::Inspection;
use bsd::types::{Counters, JobId, JobState, SegmentId};
use bsd::{JobQueue, Options, PutOptions, SyncPolicy};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Launch, bsd_wal, program, skip, wal};
use crate::wal::{CANNOT, DAMAGED, OK, killed, now, repair_reporting, text};
use crate::wal_look::segments;

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn put(id: u64) -> Record<'static> {
    Record::Put {
        id: JobId(id),
        created_wall_ns: now().wall_ns,
        pri: 1,
        delay: 0,
        ttr: 60,
        tube: "t",
        body: b"body",
    }
}

fn bury(id: u64) -> Record<'static> {
    Record::Update {
        id: JobId(id),
        kick: 0,
        state: JobState::Buried,
        deadline_wall_ns: 0,
        pri: 2,
        delay: 0,
        counters: Counters::default(),
    }
}

fn delete(id: u64) -> Record<'static> {
    Record::Delete {
        id: JobId(id),
        put_segment: SegmentId(1),
    }
}

fn build(dir: &Path, records: &[Record<'_>]) {
    let mut build = Build::begin(Arc::new(RealFs), dir, 64 << 10, now()).unwrap();
    for record in records {
        build.append(record).unwrap();
    }
    build.finish().unwrap();
}

/// The file and the offset of the records that `is_it` chooses among those of `dump --records`.
fn records(dir: &Path, is_it: impl Fn(&Value) -> bool) -> Vec<(std::path::PathBuf, usize)> {
    let (code, said) = wal(&["dump", text(dir), "--records", "--json"]);
    assert_eq!(code, OK, "{said}");
    let lines = said.lines().map(parse).filter(is_it);
    let place = |line: Value| {
        let file = dir.join(line["file"].as_str().unwrap());
        (file, line["offset"].as_u64().unwrap() as usize)
    };
    lines.map(place).collect()
}

/// Make the checksums of records wrong, and nothing else.
fn spoil(places: &[(std::path::PathBuf, usize)]) {
    for (file, at) in places {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[*at] ^= 1;
        std::fs::write(file, bytes).unwrap();
    }
}

/// A log of jobs 1 to 9 in which the records of one state and of two deletes are damaged.
fn forged(dir: &Path) {
    let mut history: Vec<Record<'_>> = (1..=9).map(put).collect();
    history.extend([bury(2), bury(5), delete(3), delete(6), delete(4), delete(7)]);
    build(dir, &history);
    let is = |line: &Value, kind: &str, ids: &[u64]| {
        line["record"] == kind && line["id"].as_u64().is_some_and(|id| ids.contains(&id))
    };
    let places = records(dir, |line| {
        is(line, "update", &[2]) || is(line, "delete", &[3, 4])
    });
    assert_eq!(places.len(), 3);
    spoil(&places);
}

/// The JSON that a report must contain about the damage, from the library's report.
fn expected_damages(dir: &Path) -> Vec<Value> {
    let inspection = Inspection::read(Arc::new(RealFs), dir, &mut |_, _| ()).unwrap();
    let ranges = |ranges: &[std::ops::RangeInclusive<u64>]| -> Vec<[u64; 2]> {
        ranges
            .iter()
            .map(|ids| [*ids.start(), *ids.end()])
            .collect()
    };
    let ids = |jobs: &[JobId]| jobs.iter().map(|job| job.0).collect::<Vec<_>>();
    let damage = |loss: &bsd::storage::inspect::Loss| {
        json!({
            "file": loss.damage.file,
            "offset": loss.damage.range.map(|(offset, _)| offset),
            "size": loss.damage.range.map(|(_, size)| size),
            "what": loss.damage.what,
            "hit": ids(&loss.damage.jobs),
            "missing": ranges(&loss.missing),
            "perhaps_missing": ranges(&loss.perhaps_missing),
            "missing_from": loss.missing_from.map(|id| id.0),
            "older": ids(&loss.older),
            "again": ids(&loss.again),
            "plain": ids(&loss.plain),
            "unknown_bytes": loss.unknown_bytes,
        })
    };
    inspection.losses.iter().map(damage).collect()
}

#[test]
fn t6_what_is_older_and_what_runs_again_is_counted_apart_in_every_report() {
    let dir = TempDir::new().unwrap();
    let [log, new, report, again] =
        ["log", "new", "report.json", "again"].map(|name| dir.path().join(name));
    forged(&log);
    let totals = json!({
        "missing": 0, "perhaps_missing": 0, "older": 1, "again": 2, "plain": 0, "missing_from": null,
    });
    let (code, said) = wal(&["verify", text(&log), "--json"]);
    assert_eq!(code, DAMAGED, "{said}");
    let verdict = parse(&said);
    assert_eq!(verdict["totals"], totals, "{said}");
    assert_eq!(verdict["damages"], json!(expected_damages(&log)), "{said}");
    let lists = |key: &str| -> Vec<u64> {
        let damages = verdict["damages"].as_array().unwrap().iter();
        damages
            .flat_map(|damage| damage[key].as_array().unwrap())
            .map(|id| id.as_u64().unwrap())
            .collect()
    };
    assert_eq!((lists("older"), lists("again")), (vec![2], vec![3, 4]));
    assert!(
        verdict["damages"]
            .as_array()
            .unwrap()
            .iter()
            .all(|it| it["unknown_bytes"] == 0)
    );

    let (code, said) = repair_reporting(&log, &new, &report);
    assert_eq!(code, DAMAGED, "{said}");
    for line in [
        "back in an older state: 1 job\n",
        "will run again: 2 jobs\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    let written = parse(&std::fs::read_to_string(&report).unwrap());
    let (_, said) = wal(&["repair", text(&log), "--output", text(&again), "--json"]);
    let mut printed = parse(&said);
    printed["output"] = json!(text(&new));
    assert_eq!(written, printed, "one report, wherever it goes");
    assert_eq!(written["totals"], totals);
    assert_eq!(written["damages"], verdict["damages"]);
    assert_eq!(
        (&written["jobs_found"], &written["jobs_written"]),
        (&json!(7), &json!(7))
    );
}

#[test]
fn t6_bytes_of_which_nothing_is_known_are_counted_and_null_where_no_one_can_count_them() {
    let dir = TempDir::new().unwrap();
    let [cut, gone] = ["cut", "gone"].map(|name| dir.path().join(name));
    for log in [&cut, &gone] {
        segments(log, 3);
    }
    let file = "segment-0000000002.00000";
    let mut bytes = std::fs::read(cut.join(file)).unwrap();
    bytes[20_000..30_000].fill(0);
    std::fs::write(cut.join(file), bytes).unwrap();
    std::fs::remove_file(gone.join(file)).unwrap();
    let [cut, gone] = [&cut, &gone].map(|log| {
        let (code, said) = wal(&["verify", text(log), "--json"]);
        assert_eq!(code, DAMAGED, "{said}");
        let damages = parse(&said)["damages"].clone();
        assert_eq!(damages, json!(expected_damages(log)));
        damages
    });
    let unknown = cut
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|it| it["unknown_bytes"].as_u64());
    let unknown: u64 = unknown.sum();
    assert!((10_000..=21_000).contains(&unknown), "{cut}");
    assert!(
        gone.as_array()
            .unwrap()
            .iter()
            .any(|it| it["unknown_bytes"].is_null()),
        "{gone}"
    );
}

#[test]
fn t11_a_pause_that_is_over_is_not_shown_as_running() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let pause = |tube, until_wall_ns| Record::Pause {
        tube,
        until_wall_ns,
        duration: 60,
    };
    build(
        &log,
        &[
            put(1),
            pause("over", 1_000_000_000),
            pause("running", u64::MAX),
        ],
    );
    let (code, said) = wal(&["info", text(&log)]);
    assert_eq!(code, OK, "{said}");
    assert!(
        said.contains("paused: running for another ") && !said.contains("over"),
        "{said}"
    );
    let info = parse(&wal(&["info", text(&log), "--json"]).1);
    assert_eq!(info["pauses"].as_array().unwrap().len(), 1, "{info}");
    assert_eq!(info["pauses"][0]["tube"], "running");
}

/// A log of 300 jobs in several files, every third of them deleted.
fn thinned(dir: &Path) {
    let options = Options {
        dir: Some(dir.to_owned()),
        sync: SyncPolicy::Never,
        segment_size: 64 << 10,
        ..Options::default()
    };
    let mut queue = JobQueue::open_with(&options).unwrap();
    let put = |queue: &mut JobQueue| queue.put("t", &[b'x'; 1000], PutOptions::default());
    let ids: Vec<JobId> = (0..300).map(|_| put(&mut queue).unwrap()).collect();
    ids.iter()
        .step_by(3)
        .for_each(|id| queue.delete(*id).unwrap());
    queue.close().unwrap();
}

/// Lose 20 KB in the middle of the first file.
fn lose(dir: &Path) {
    let names = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = names
        .filter(|path| text(path).contains("segment-"))
        .collect();
    files.sort();
    let mut bytes = std::fs::read(&files[0]).unwrap();
    bytes[20_000..40_000].fill(0xff);
    std::fs::write(&files[0], bytes).unwrap();
}

/// The ids in the ranges of a verdict's damages.
fn ids(verdict: &Value, key: &str) -> Vec<u64> {
    let damages = verdict["damages"].as_array().unwrap().iter();
    let ranges = damages.flat_map(|damage| damage[key].as_array().unwrap());
    ranges
        .flat_map(|range| range[0].as_u64().unwrap()..=range[1].as_u64().unwrap())
        .collect()
}

#[test]
fn f40_what_is_known_to_be_lost_what_may_be_and_what_was_deleted_is_told_apart() {
    let dir = TempDir::new().unwrap();
    let [fresh, compacted] = ["fresh", "compacted"].map(|name| dir.path().join(name));
    for log in [&fresh, &compacted] {
        thinned(log);
    }
    assert_eq!(wal(&["compact", text(&compacted)]).0, OK);
    let (_, said) = wal(&["history", text(&compacted), "1"]);
    assert!(
        said.contains("it was deleted, and compaction has dropped its records"),
        "{said}"
    );
    for (log, key, words, fate) in [
        (&fresh, "missing", "known to be missing", "lost"),
        (
            &compacted,
            "perhaps_missing",
            "missing unless deleted before",
            "perhaps lost",
        ),
    ] {
        lose(log);
        let (code, said) = wal(&["verify", text(log), "--json"]);
        assert_eq!(code, DAMAGED, "{said}");
        let verdict = parse(&said);
        let lost = ids(&verdict, key);
        let count = verdict["totals"][key].as_u64().unwrap();
        assert!(count > 5 && count == lost.len() as u64, "{key}: {said}");
        let (_, said) = wal(&["verify", text(log)]);
        let line = said.lines().find(|line| line.contains(words)).expect(&said);
        assert!(line.contains(&count.to_string()), "{count}: {line}");
        for id in [lost[0], lost[lost.len() / 2]] {
            let id = id.to_string();
            let (code, said) = wal(&["history", text(log), &id]);
            assert_eq!(code, DAMAGED, "{said}");
            assert!(
                said.contains(&format!("job {id}: it is lost in the damage")),
                "{said}"
            );
            assert_eq!(said.contains("unless"), fate == "perhaps lost", "{said}");
            assert!(!said.contains("it was deleted"), "{said}");
            let (_, said) = wal(&["history", text(log), &id, "--json", "-q"]);
            assert_eq!(said, "");
            let (_, said) = wal(&["history", text(log), &id, "--json"]);
            let end = parse(said.lines().rfind(|line| line.starts_with('{')).unwrap());
            assert_eq!(end["end"]["fate"], fate, "{said}");
        }
        // Far from the damage a job is what it was.
        let history = |id: &str| {
            let said = wal(&["history", text(log), id, "--json"]).1;
            let end = said.lines().rfind(|line| line.starts_with('{')).unwrap();
            parse(end)["end"]["fate"].clone()
        };
        assert_eq!(history("299"), "there");
        let deleted = history("298");
        assert!(deleted == "deleted" || deleted == "dropped", "{deleted}");
        assert_eq!(history("5000"), "never put");
    }
}

#[test]
fn f40_a_damaged_last_word_on_a_job_is_told_of_in_its_history() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    forged(&log);
    for (id, words) in [
        ("2", "job 2: the record of its last state is damaged"),
        ("3", "job 3: the record that deletes it is damaged"),
    ] {
        let (code, said) = wal(&["history", text(&log), id]);
        assert!(code == DAMAGED && said.contains(words), "{said}");
    }
    let (_, said) = wal(&["history", text(&log), "6"]);
    assert!(
        said.contains(": deleted (") && !said.contains("job 6: "),
        "{said}"
    );
}

#[test]
fn f42_a_tube_that_is_not_there_is_an_error_and_what_is_there_is_printed() {
    let dir = TempDir::new().unwrap();
    killed(dir.path());
    for args in [
        &["--tube", "typo"][..],
        &["--tube", "default", "--tube", "typo"],
        &["--tube", "typo", "--json"],
        &["--tube", "typo", "--quiet"],
    ] {
        let (code, said) = wal(&[&["dump", text(dir.path())], args].concat());
        assert!(
            code == CANNOT && said.contains("there is no tube \"typo\""),
            "{said}"
        );
        assert_eq!(
            said.contains("default ready"),
            args.contains(&"default"),
            "{said}"
        );
        assert_eq!(
            said.contains("{\"end\":"),
            args.contains(&"--json"),
            "{said}"
        );
    }
    let (code, said) = wal(&["dump", text(dir.path()), "--records", "--job", "77"]);
    assert!(
        code == CANNOT && said.contains("no record of job 77"),
        "{said}"
    );
    let (code, said) = wal(&["dump", text(dir.path()), "--tube", "default"]);
    assert!(code == OK && said.lines().count() == 2, "{said}");
}

#[test]
fn f42_where_no_one_reads_on_a_command_ends_as_cat_does() {
    let dir = TempDir::new().unwrap();
    segments(dir.path(), 8);
    for args in [&["dump", "--json"][..], &["dump", "--records", "--json"]] {
        let mut command = Command::new(bsd_wal());
        command.args(args).arg(dir.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut first = [0; 10];
        let mut stdout = child.stdout.take().unwrap();
        stdout.read_exact(&mut first).unwrap();
        drop(stdout);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(13), "{:?}", output.status);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn f42_a_directory_in_use_is_shown_as_it_was_at_one_instant() {
    let dir = TempDir::new().unwrap();
    let server = Launch::bsd().dir(dir.path()).start();
    let mut wire = server.connect();
    wire.put(b"one");
    for live in [&[][..], &["--live"]] {
        for args in [
            &["info"][..],
            &["dump"],
            &["dump", "--json"],
            &["dump", "--records", "--job", "1"],
            &["history", "1"],
        ] {
            let mut all = vec![args[0], text(dir.path())];
            all.extend(&args[1..]);
            all.extend(live);
            let (code, said) = wal(&all);
            assert_eq!(code, OK, "{all:?}: {said}");
            assert_eq!(
                said.contains("is in use, and was read"),
                live.is_empty(),
                "{all:?}: {said}"
            );
            assert!(said.contains("one") || args[0] != "dump", "{all:?}: {said}");
        }
    }
    let (code, said) = wal(&["verify", text(dir.path())]);
    assert!(code == CANNOT && said.contains("--live"), "{said}");
    assert_eq!(wal(&["verify", text(dir.path()), "--live"]).0, OK);
    server.stop();
}

#[test]
fn f42_every_command_that_makes_something_tells_programs_what_it_tells_people() {
    let dir = TempDir::new().unwrap();
    let [log, backup, restored, binlogs, imported, dump, loaded] = [
        "log", "backup", "restored", "binlogs", "imported", "dump", "loaded",
    ]
    .map(|name| dir.path().join(name));
    killed(&log);
    let report = |args: &[&str]| {
        let (code, said) = wal(&[args, &["--json"]].concat());
        assert_eq!(code, OK, "{args:?}: {said}");
        parse(said.lines().next().unwrap())
    };
    let keys = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let backed = report(&["backup", text(&log), "--output", text(&backup)]);
    assert_eq!(backed["files"], backed["copied_files"]);
    assert_eq!(backed["source"], text(&log));
    let end = backed["end"].as_str().unwrap();
    assert!(end.starts_with("1:"), "{backed}");
    let whole = report(&["restore", text(&backup), "--output", text(&restored)]);
    assert_eq!(
        (&whole["end"], &whole["bytes"]),
        (&backed["end"], &backed["bytes"])
    );
    assert!(whole["taken"].as_str().unwrap().starts_with('2'), "{whole}");
    let compacted = report(&["compact", text(&restored)]);
    assert_eq!(compacted["jobs"], 2);
    let number = |key: &str| compacted[key].as_u64().unwrap();
    assert_eq!(
        number("freed_bytes"),
        number("bytes_before").saturating_sub(number("bytes_after"))
    );
    assert!(
        compacted["torn"].is_null() && number("files_after") > 0,
        "{compacted}"
    );
    let exported = report(&["export", text(&log), "--output", text(&binlogs)]);
    assert_eq!(
        (&exported["jobs"], &exported["next_id"]),
        (&json!(2), &json!(4))
    );
    assert_eq!(
        exported["start"],
        format!("beanstalkd -b {}", text(&binlogs))
    );
    let import = report(&["import", text(&binlogs), "--output", text(&imported)]);
    assert_eq!(
        (&import["jobs"], &import["next_id"]),
        (&json!(2), &json!(4))
    );
    assert_eq!(
        (&import["intact"], &import["damages"]),
        (&json!(true), &json!([]))
    );
    let (_, lines) = wal(&["dump", text(&log), "--json"]);
    std::fs::write(&dump, lines).unwrap();
    let load = report(&["load", text(&dump), "--output", text(&loaded)]);
    assert_eq!(
        load,
        json!({ "output": text(&loaded), "jobs": 2, "next_id": 4 })
    );
    for (report, key) in [
        (&backed, "healed"),
        (&whole, "strangers"),
        (&exported, "too_large"),
    ] {
        assert_eq!(report[key], json!([]), "{:?}", keys(report));
    }
}

#[test]
fn f42_quiet_is_the_same_for_every_command_whatever_it_finds() {
    let dir = TempDir::new().unwrap();
    let [log, hurt] = ["log", "hurt"].map(|name| dir.path().join(name));
    killed(&log);
    forged(&hurt);
    for (log, code) in [(&log, OK), (&hurt, DAMAGED)] {
        let new = dir.path().join("new");
        for args in [
            &["verify", "DIR"][..],
            &["verify", "DIR", "--live", "--json"],
            &["info", "DIR"],
            &["dump", "DIR"],
            &["dump", "DIR", "--records"],
            &["history", "DIR", "3"],
            &["repair", "DIR", "--output", "NEW"],
            &["export", "DIR", "--output", "NEW"],
        ] {
            let args = args.iter().map(|arg| match *arg {
                "DIR" => text(log),
                "NEW" => text(&new),
                arg => arg,
            });
            let args: Vec<&str> = args.chain(["-q"]).collect();
            assert_eq!(wal(&args), (code, String::new()), "{args:?}");
            let _ = std::fs::remove_dir_all(&new);
        }
    }
    for command in ["verify", "info", "dump", "compact"] {
        let (code, said) = wal(&[command, "-q", text(&dir.path().join("gone"))]);
        assert!(code == CANNOT && said.contains("check the path"), "{said}");
    }
}

#[test]
fn f42_an_error_of_the_system_ends_in_what_to_do_about_that_one() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for (path, hint) in [
        (
            dir.path().join("gone"),
            "No such file or directory (os error 2); check the path\n",
        ),
        (file, "Not a directory (os error 20); give a directory\n"),
    ] {
        let (code, said) = wal(&["verify", text(&path)]);
        assert!(code == CANNOT && said.ends_with(hint), "{said}");
    }
}

#[test]
fn f42_a_picture_is_as_wide_as_the_terminal() {
    if program("script").is_none() || program("stty").is_none() {
        return skip("script or stty is not installed");
    }
    let dir = TempDir::new().unwrap();
    segments(dir.path(), 3);
    for columns in [70_usize, 80, 132, 200] {
        let wal = bsd_wal().display();
        let run = format!("stty cols {columns}; {wal} info {}", text(dir.path()));
        let mut script = Command::new("script");
        script.args(["-q", "-e", "-c", &run, "/dev/null"]);
        script
            .env("LC_ALL", "C")
            .env("NO_COLOR", "1")
            .env("TERM", "xterm");
        let output = script.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let lines = said.lines().map(|line| line.trim_end_matches('\r'));
        let drawn: Vec<&str> = lines
            .filter(|line| line.starts_with("segment-") && line.contains('|'))
            .collect();
        assert!(drawn.len() >= 3, "{said}");
        for line in drawn {
            let width = line.chars().count();
            assert!(width <= columns && width + 4 > columns, "{columns}: {line}");
        }
    }
}
