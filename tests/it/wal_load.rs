//! `bsd-wal dump --json` and `bsd-wal load`: a dump is loaded unchanged, and errors in between are
//! named.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_WAL_LOAD_ROUNDS`, `BSD_WAL_SEED` | random logs that are dumped and loaded; their seed | 8; new each run |

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bsd::random::Random;
use bsd::types::JobId;
use bsd::{JobError, JobQueue, Options, PutOptions, SyncPolicy};
use tempfile::TempDir;

use crate::ROOT;
use crate::harness::{bsd_wal, wal};
use crate::wal::{CANNOT, DAMAGED, OK, locate, text};
use bsd::check::volume::{seed_of_run, volume};

/// A log in `dir` of jobs in all states, with bodies that are text and bodies that are not.
fn random_log(dir: &Path, random: &mut Random) {
    let options = Options {
        dir: Some(dir.to_owned()),
        sync: SyncPolicy::Never,
        segment_size: 64 << 10,
        ..Options::default()
    };
    let mut queue = JobQueue::open_with(&options).unwrap();
    let tubes = ["default", "mail", "a/b;c.d$e_(f)+g-"];
    for tube in tubes {
        queue.watch(tube).unwrap();
    }
    let mut ids = Vec::new();
    for _ in 0..random.below(300) {
        let size = random.below(400);
        let body: Vec<u8> = match random.below(3) {
            0 => (0..size).map(|_| random.next() as u8).collect(),
            1 => (0..size).map(|_| random.next() as u8 % 128).collect(),
            _ => "žluťoučký \"kůň\"\\\r\n\0"
                .repeat(random.below(4) as usize)
                .into(),
        };
        let put = PutOptions {
            pri: random.next() as u32,
            delay: Duration::from_secs(
                [0, 0, 1, 100_000, u32::MAX.into()][random.below(5) as usize],
            ),
            ttr: Duration::from_secs(random.below(1000)),
        };
        ids.push(queue.put(random.pick(&tubes), &body, put).unwrap());
        // Whether a command finds the job in a state that it fits is left to chance.
        let id = ids[random.below(ids.len() as u64) as usize];
        match random.below(5) {
            0 => drop(queue.delete(id)),
            1 => drop(queue.kick(id)),
            _ => {}
        }
        if let Some(job) = queue.reserve().unwrap() {
            match random.below(5) {
                0 => queue.delete(job.id).unwrap(),
                1 => queue.release(job.id, 7, Duration::ZERO).unwrap(),
                2 => queue
                    .release(job.id, random.next() as u32, Duration::from_secs(5000))
                    .unwrap(),
                3 => queue.bury(job.id, random.next() as u32).unwrap(),
                _ => {}
            }
        }
        if random.one_in(50) {
            queue
                .pause(random.pick(&tubes), Duration::from_secs(random.below(9999)))
                .unwrap();
        }
        queue.tick().unwrap();
    }
    if random.one_in(2) {
        queue.close().unwrap()
    } else {
        drop(queue)
    }
}

fn dump(dir: &Path) -> String {
    let (code, said) = wal(&["dump", text(dir), "--json"]);
    assert_eq!(code, OK, "{said}");
    said
}

#[test]
fn a_dump_that_is_loaded_is_dumped_as_it_was() {
    let mut random = Random::new(seed_of_run("BSD_WAL_SEED"));
    let mut buried = 0;
    for round in 0..volume("BSD_WAL_LOAD_ROUNDS", 8) {
        let dir = TempDir::new().unwrap();
        let [log, file, new] = ["log", "jobs.jsonl", "new"].map(|name| dir.path().join(name));
        random_log(&log, &mut random);
        let before = dump(&log);
        std::fs::write(&file, &before).unwrap();
        let (code, said) = wal(&["load", text(&file), "--output", text(&new)]);
        assert_eq!(code, OK, "round {round}: {said}");
        assert_eq!(dump(&new), before, "round {round}");
        assert_eq!(wal(&["verify", text(&new)]).0, OK, "round {round}");
        buried += before.matches("\"buried_order\"").count();
    }
    assert!(buried > 0, "no job was buried in any round");
}

/// A copy of a golden directory of version 2: attributes of every kind, and settings of each class.
fn with_attributes(dir: &Path) {
    let golden = Path::new(ROOT).join("tests/golden/v2/attributes");
    std::fs::create_dir(dir).unwrap();
    for entry in std::fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn attributes_and_settings_are_dumped_loaded_repaired_and_dumped_as_they_were() {
    let dir = TempDir::new().unwrap();
    let [log, file, loaded, repaired] =
        ["log", "jobs.jsonl", "loaded", "repaired"].map(|name| dir.path().join(name));
    with_attributes(&log);
    let before = dump(&log);
    for words in [
        r#""attributes":{"key":"order-17","unique":"waiting","group":"customer-5","counted_from":0}"#,
        r#""failures":3,"reason":"failed","text_base64":"#,
        r#""setting":{"class":"fired","name":"daily","value_base64":"AP8="}"#,
    ] {
        assert!(before.contains(words), "{words} is not in {before}");
    }
    std::fs::write(&file, &before).unwrap();
    for (line, new) in [
        (["load", text(&file), "--output", text(&loaded)], &loaded),
        (
            ["repair", text(&log), "--output", text(&repaired)],
            &repaired,
        ),
    ] {
        let (code, said) = wal(&line);
        assert_eq!(code, OK, "{line:?}: {said}");
        assert_eq!(dump(new), before, "{line:?}");
        assert_eq!(wal(&["verify", text(new)]).0, OK, "{line:?}");
    }
}

#[test]
fn an_export_says_which_attributes_and_settings_it_leaves_out() {
    let dir = TempDir::new().unwrap();
    let [log, new] = ["log", "new"].map(|name| dir.path().join(name));
    with_attributes(&log);
    let (code, said) = wal(&["export", text(&log), "--output", text(&new)]);
    assert_eq!(code, OK, "{said}");
    for words in [
        "left out: the attributes of 2 jobs",
        "left out: policy mail-*, which beanstalkd does not have",
        "left out: schedule daily, which",
    ] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
}

/// `bsd-wal load -` of this text.
fn load(input: &str, new: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(bsd_wal())
        .args(["load", "-", "--output", text(new)])
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read everything: its exit code tells.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

const JOB: &str = r#"{"id":7,"tube":"t","state":"ready","pri":1,"delay":0,"ttr":60,"created":"2026-01-31T12:00:00Z","body":"x"}"#;
const END: &str = r#"{"end":{"jobs":1,"next_id":9}}"#;

#[test]
fn a_line_that_is_wrong_is_named_and_nothing_is_built() {
    let dir = TempDir::new().unwrap();
    let new = dir.path().join("new");
    let later = JOB.replace("\"id\":7", "\"id\":8");
    let cases = [
        (
            format!("{JOB}\nnonsense\n{END}\n"),
            "line 2",
            "expected ident",
        ),
        (
            format!("{JOB}\n{JOB}\n{END}\n"),
            "line 2",
            "order of their ids",
        ),
        (
            format!("{later}\n\n{JOB}\n"),
            "line 3",
            "job 7 comes after job 8",
        ),
        (
            JOB.replace("ready", "idle"),
            "line 1",
            "\"idle\" is no state",
        ),
        (JOB.replace("\"t\"", "\"-t\""), "line 1", "no tube name"),
        (JOB.replace("ready", "delayed"), "line 1", "no deadline"),
        (
            JOB.replace("2026-01-31T12", "yesterday"),
            "line 1",
            "is no time",
        ),
        (
            JOB.replace("\"ttr\":60,", ""),
            "line 1",
            "\"ttr\" of a job is missing",
        ),
        (
            format!("{JOB}\n{END}\n{later}\n"),
            "line 3",
            "follows the end",
        ),
        (format!("{JOB}\n"), "line 1", "may have been cut"),
        (
            format!("{END}\n"),
            "line 1",
            "the dump had 1 job and 0 jobs came",
        ),
    ];
    for (input, line, why) in cases {
        let (code, said) = load(&input, &new, &[]);
        assert_eq!(code, CANNOT, "{input}: {said}");
        assert!(said.contains(line) && said.contains(why), "{input}: {said}");
        let left = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "{input}: nothing is left behind");
    }
    let (code, said) = load(&format!("{JOB}\n{END}\n"), &new, &[]);
    assert_eq!(code, OK, "{said}");
    let (code, said) = load(&format!("{JOB}\n{END}\n"), &new, &[]);
    assert!(code == CANNOT && said.contains("not empty"), "{said}");
}

#[test]
fn a_part_of_a_dump_is_loaded_when_that_is_asked_for() {
    let dir = TempDir::new().unwrap();
    let new = dir.path().join("new");
    let (code, said) = load(JOB, &new, &["--partial"]);
    assert_eq!(code, OK, "{said}");
    assert!(said.contains("1 job, the next id is 8"), "{said}");
    assert!(dump(&new).ends_with("{\"end\":{\"jobs\":1,\"next_id\":8}}\n"));
}

#[test]
fn a_file_that_cannot_be_read_is_named_before_anything_is_built() {
    let dir = TempDir::new().unwrap();
    let [gone, new] = ["gone", "new"].map(|name| dir.path().join(name));
    let (code, said) = wal(&["load", text(&gone), "--output", text(&new)]);
    assert!(code == CANNOT && said.contains("No such file"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn ids_that_a_dump_leaves_out_are_not_taken_for_lost_jobs() {
    let dir = TempDir::new().unwrap();
    let new = dir.path().join("new");
    let jobs = [7, 5000, 9000].map(|id| {
        let body = format!("\"body\":\"job {id}\"");
        JOB.replace("\"id\":7", &format!("\"id\":{id}"))
            .replace("\"body\":\"x\"", &body)
    });
    let (code, said) = load(&jobs.join("\n"), &new, &["--partial"]);
    assert_eq!(code, OK, "{said}");
    let (file, at) = locate(&new, b"job 5000");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let (code, said) = wal(&["verify", text(&new)]);
    assert_eq!(code, DAMAGED, "{said}");
    assert!(said.contains("; job 5000 is missing\n"), "{said}");
    assert!(said.contains("1 job known to be missing"), "{said}");
}

#[test]
fn behind_the_largest_id_nothing_can_be_put_and_the_rest_goes_on() {
    let dir = TempDir::new().unwrap();
    let new = dir.path().join("new");
    let largest = JobId(u64::MAX - 1);
    let job = |id: u64| JOB.replace("\"id\":7", &format!("\"id\":{id}"));
    let (code, said) = load(&job(largest.0), &new, &["--partial"]);
    assert!(code == CANNOT && said.contains("no job can have"), "{said}");
    assert_eq!(load(&job(largest.0 - 1), &new, &["--partial"]).0, OK);

    let mut queue = JobQueue::open(&new).unwrap();
    let put = |queue: &mut JobQueue| queue.put("t", b"one more", PutOptions::default());
    assert_eq!(put(&mut queue).unwrap(), largest);
    for _ in 0..2 {
        let refused = put(&mut queue);
        assert!(matches!(refused, Err(JobError::OutOfSpace)), "{refused:?}");
    }
    queue.delete(largest).unwrap();
    queue.close().unwrap();
    assert_eq!(wal(&["verify", text(&new)]).0, OK);
    // The id is not given out again either when the job is gone.
    let refused = put(&mut JobQueue::open(&new).unwrap());
    assert!(matches!(refused, Err(JobError::OutOfSpace)), "{refused:?}");
}
