//! Backups that a disk has changed: they heal, the change is reported, and what is left in them is
//! saved.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::wal;
use crate::wal::{CANNOT, DAMAGED, OK, text};
use crate::wal_look::segments;

fn backup(log: &Path, to: &Path) -> Value {
    let (code, said) = wal(&["-q", "backup", text(log), "--output", text(to)]);
    assert_eq!((code, &*said), (OK, ""));
    let (code, said) = wal(&["backup", text(log), "--output", text(to), "--json"]);
    assert_eq!(code, OK, "{said}");
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

/// The same, of a backup in which something has gone bad.
fn heal(log: &Path, to: &Path) -> (Value, String) {
    let (code, said) = wal(&["backup", text(log), "--output", text(to), "--json"]);
    assert_eq!(code, OK, "{said}");
    let report = said.lines().next().unwrap();
    (serde_json::from_str(report).unwrap(), said)
}

/// The files of a backup but its manifest and lock, in the order of history.
fn stored(backup: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(backup)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("segment-")
    };
    let mut stored: Vec<PathBuf> = names.filter(is_segment).collect();
    stored.sort();
    stored
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// The dump without its last line, which has the next id.
fn jobs_of(dir: &Path) -> String {
    let all = dump(dir);
    let (jobs, _) = all.trim_end().rsplit_once('\n').unwrap_or_default();
    jobs.to_owned()
}

fn dump(dir: &Path) -> String {
    let (code, said) = wal(&["dump", text(dir), "--json"]);
    assert_eq!(code, OK, "{said}");
    said
}

fn paths<const N: usize>(dir: &TempDir, names: [&str; N]) -> [PathBuf; N] {
    names.map(|name| dir.path().join(name))
}

#[test]
fn f39_a_backup_taken_onto_one_that_has_gone_bad_heals_it() {
    let dir = TempDir::new().unwrap();
    let [log, to, new] = paths(&dir, ["log", "backup", "new"]);
    segments(&log, 3);
    let whole = backup(&log, &to);
    assert_eq!(
        (&whole["copied_files"], &whole["healed"]),
        (&0.into(), &Value::Array(vec![]))
    );
    for file in stored(&to) {
        let size = fs::read(&file).unwrap().len();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        for at in [20, size / 2, size - 3] {
            flip(&file, at);
            let (code, said) = wal(&["restore", text(&to), "--output", text(&new)]);
            assert!(code == CANNOT && said.contains("--partial"), "{said}");
            let (report, said) = heal(&log, &to);
            assert_eq!(report["healed"], serde_json::json!([name]), "byte {at}");
            assert_eq!(report["copied_files"], 1);
            assert!(said.contains("had gone bad and was copied again"), "{said}");
            assert_eq!(backup(&log, &to), whole, "healed once and for all");
        }
        // Cut, and gone.
        fs::write(&file, &fs::read(&file).unwrap()[..size - 1]).unwrap();
        assert_eq!(heal(&log, &to).0["healed"], serde_json::json!([name]));
        fs::remove_file(&file).unwrap();
        assert_eq!(heal(&log, &to).0["copied_files"], 1);
    }
    let (code, said) = wal(&["restore", text(&to), "--output", text(&new)]);
    assert_eq!(code, OK, "{said}");
    assert_eq!(jobs_of(&new), jobs_of(&log));
}

/// Changes after the backup are lost, and their ids are not given out again: not by the first
/// restore, and not by a later restore of the same backup.
#[test]
fn g18_a_restored_backup_gives_out_no_id_of_what_came_after_it() {
    let dir = TempDir::new().unwrap();
    let [log, to] = paths(&dir, ["log", "backup"]);
    segments(&log, 2);
    backup(&log, &to);
    let mut least = 1 << 32;
    for name in ["one", "two", "three"] {
        let new = dir.path().join(name);
        let (code, said) = wal(&["restore", text(&to), "--output", text(&new)]);
        assert_eq!(code, OK, "{said}");
        let (_, info) = wal(&["info", text(&new)]);
        assert!(info.contains("ids were left out after a restore"), "{info}");
        let end: Value = serde_json::from_str(dump(&new).lines().last().unwrap()).unwrap();
        let next_id = end["end"]["next_id"].as_u64().unwrap();
        assert!(next_id > least, "{next_id} after {least}");
        least = next_id;
    }
}

#[test]
fn f39_a_backup_whose_list_of_files_has_gone_bad_is_taken_again_in_its_place() {
    let dir = TempDir::new().unwrap();
    let [log, other, to] = paths(&dir, ["log", "other", "backup"]);
    segments(&log, 2);
    segments(&other, 1);
    let whole = backup(&log, &to);
    flip(&to.join("backup.manifest"), 40);
    let (code, said) = wal(&["backup", text(&other), "--output", text(&to)]);
    assert!(
        code == CANNOT && said.contains("a backup of another log"),
        "{said}"
    );
    assert_eq!(heal(&log, &to).0["copied_files"], 0);
    assert_eq!(backup(&log, &to), whole);
}

/// Generations as `cp -al` makes them: each file of one is a file of all.
#[test]
fn f39_of_generations_that_share_their_files_the_newest_heals_and_the_others_give_what_they_have() {
    let dir = TempDir::new().unwrap();
    let [log, to, old, older, new] = paths(&dir, ["log", "backup", "backup.1", "backup.2", "new"]);
    segments(&log, 3);
    backup(&log, &to);
    for generation in [&old, &older] {
        fs::create_dir(generation).unwrap();
        for entry in fs::read_dir(&to).unwrap() {
            let entry = entry.unwrap();
            fs::hard_link(entry.path(), generation.join(entry.file_name())).unwrap();
        }
    }
    let shared = stored(&to).remove(1);
    flip(&shared, 30_000);
    heal(&log, &to);
    let (code, said) = wal(&["restore", text(&to), "--output", text(&new)]);
    assert_eq!(code, OK, "{said}");
    assert_eq!(jobs_of(&new), jobs_of(&log));
    for generation in [old, older] {
        let [saved] = paths(&dir, ["saved"]);
        let (code, said) = wal(&["restore", text(&generation), "--output", text(&saved)]);
        assert_eq!(code, CANNOT, "{said}");
        let args = [
            "restore",
            text(&generation),
            "--output",
            text(&saved),
            "--partial",
            "--json",
        ];
        let (code, said) = wal(&args);
        assert_eq!(code, DAMAGED, "{said}");
        let report: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(report["intact"], false, "{said}");
        assert_eq!(report["totals"]["missing"], 1, "{said}");
        let (all, left) = (dump(&log).lines().count(), dump(&saved).lines().count());
        assert_eq!(left, all - 1, "one job is lost");
        fs::remove_dir_all(saved).unwrap();
    }
}

#[test]
fn f39_commands_that_read_take_a_backup_as_the_log_that_it_is_of() {
    let dir = TempDir::new().unwrap();
    let [log, to, new] = paths(&dir, ["log", "backup", "new"]);
    segments(&log, 3);
    let before = backup(&log, &to);
    assert_eq!(dump(&to), dump(&log));
    for args in [
        &["dump", "", "--records"][..],
        &["history", "", "5"],
        &["info", "", "--live"],
    ] {
        let [of_backup, of_log] = [&to, &log].map(|dir| {
            let args: Vec<&str> = args
                .iter()
                .map(|arg| if arg.is_empty() { text(dir) } else { *arg })
                .collect();
            let (code, said) = wal(&args);
            assert_eq!(code, OK, "{args:?}: {said}");
            // A backup does not tell how the log was ended, and what is set aside. What is told
            // later says that the job is older.
            let lines = said
                .lines()
                .filter(|line| line.contains("put ") || line.contains("tube"));
            let ageless = lines.map(|line| match line.split_once(" s ago") {
                Some((line, _)) => line.trim_end_matches(|it: char| it.is_ascii_digit()),
                None => line,
            });
            ageless.map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(of_backup, of_log, "{args:?}");
        assert!(!of_log.is_empty(), "{args:?}");
    }
    let (code, said) = wal(&["verify", text(&to)]);
    assert!(
        code == OK && said.contains("a backup of the log as it was at 2"),
        "{said}"
    );
    let (_, said) = wal(&["verify", text(&to), "--json"]);
    let verdict: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(verdict["backup"]["end"], before["end"], "{said}");
    for command in ["repair", "export"] {
        let (code, said) = wal(&[command, text(&to), "--output", text(&new)]);
        assert_eq!(code, OK, "{command}: {said}");
        fs::remove_dir_all(&new).unwrap();
    }
    assert_eq!(backup(&log, &to), before, "nothing was changed");
    let (code, said) = wal(&["restore", text(&log), "--output", text(&new), "--partial"]);
    assert!(code == CANNOT && said.contains("is no backup"), "{said}");
}

/// The change of a file's bytes; `None` if it is gone.
type Fault = fn(&[u8]) -> Option<Vec<u8>>;

/// Whatever has happened to a backup: `verify` calls it damaged exactly when `restore` refuses it,
/// and `restore --partial` restores all jobs that it does not call lost.
#[test]
fn f39_whatever_is_wrong_with_a_backup_verify_says_so_and_the_rest_is_saved() {
    let dir = TempDir::new().unwrap();
    let [log, to, new] = paths(&dir, ["log", "backup", "new"]);
    segments(&log, 3);
    backup(&log, &to);
    let jobs = dump(&log).lines().count() as u64 - 1;
    let files = stored(&to);
    let manifest = to.join("backup.manifest");
    let mut faults: Vec<(&PathBuf, Fault)> = Vec::new();
    for file in files.iter().chain([&manifest]) {
        for fault in [
            (|_| None) as Fault,
            |bytes| Some(bytes[..bytes.len() - 1].to_vec()),
            |bytes| Some([bytes, b"more"].concat()),
            |bytes| Some([&bytes[..30], &[bytes[30] ^ 4], &bytes[31..]].concat()),
            |bytes| {
                let at = bytes.len() - 2;
                Some([&bytes[..at], &[bytes[at] ^ 4], &bytes[at + 1..]].concat())
            },
        ] {
            faults.push((file, fault));
        }
    }
    for (number, (file, fault)) in faults.into_iter().enumerate() {
        let sound = fs::read(file).unwrap();
        match fault(&sound) {
            Some(bytes) => fs::write(file, bytes).unwrap(),
            None => fs::remove_file(file).unwrap(),
        }
        let what = format!("fault {number} of {}", file.display());
        let (code, said) = wal(&["restore", text(&to), "--output", text(&new)]);
        assert_eq!(code, CANNOT, "{what}: {said}");
        let is_gone = !manifest.exists();
        let (code, said) = wal(&["verify", text(&to), "--json"]);
        assert_eq!(
            code,
            if is_gone { CANNOT } else { DAMAGED },
            "{what}: {said}"
        );
        if is_gone {
            assert!(said.contains("no complete backup"), "{what}: {said}");
        } else {
            let verdict: Value = serde_json::from_str(&said).unwrap();
            let (code, said) = wal(&["restore", text(&to), "--output", text(&new), "--partial"]);
            assert_eq!(code, DAMAGED, "{what}: {said}");
            let (_, left) = wal(&["dump", text(&new), "--json"]);
            let left = left.lines().count() as u64 - 1;
            let lost = |key: &str| verdict["totals"][key].as_u64().unwrap();
            let is_open = !verdict["totals"]["missing_from"].is_null();
            let told = lost("missing") + lost("perhaps_missing");
            assert!(
                left + told == jobs || is_open && left + told < jobs && left > 0,
                "{what}: {left} and {told} of {jobs}: {verdict}"
            );
            fs::remove_dir_all(&new).unwrap();
        }
        fs::write(file, sound).unwrap();
    }
}

#[test]
fn f42_a_stray_file_is_named_and_stops_neither_a_backup_nor_its_restore() {
    let dir = TempDir::new().unwrap();
    let [log, to, new, home] = paths(&dir, ["log", "backup", "new", "home"]);
    segments(&log, 2);
    backup(&log, &to);
    fs::write(to.join("letter"), "dear").unwrap();
    for command in ["backup", "restore"] {
        let (from, output) = if command == "backup" {
            (&log, &to)
        } else {
            (&to, &new)
        };
        let (code, said) = wal(&[command, text(from), "--output", text(output), "--json"]);
        assert_eq!(code, OK, "{command}: {said}");
        assert!(
            said.contains("\"letter\" in ") && said.contains("left out"),
            "{said}"
        );
        let report: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
        assert_eq!(report["strangers"], serde_json::json!(["letter"]));
    }
    assert_eq!(fs::read(to.join("letter")).unwrap(), b"dear");
    let (_, said) = wal(&["verify", text(&to)]);
    assert!(said.contains("other file: letter"), "{said}");
    // Another directory, such as a home directory, still does not become a backup.
    fs::create_dir(&home).unwrap();
    fs::write(home.join("letter"), "dear").unwrap();
    let (code, said) = wal(&["backup", text(&log), "--output", text(&home)]);
    assert!(
        code == CANNOT && said.contains("is no backup, and holds \"letter\""),
        "{said}"
    );
    assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
}
