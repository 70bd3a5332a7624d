//! The help of every command, its examples, its exit codes, and the manual pages made from it.
#![allow(clippy::unwrap_used, reason = "a test's unwrap is a check")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at files from outside"
)]

use std::path::Path;
use std::process::Command;

use bsd::{JobQueue, Options, PutOptions, SyncPolicy};
use tempfile::TempDir;

const BSD_WAL: &str = env!("CARGO_BIN_EXE_bsd-wal");
const OK: Option<i32> = Some(0);

/// `bsd-wal` with these arguments: its exit code, and what it wrote.
fn wal(args: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(BSD_WAL).args(args).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// A log with jobs in two tubes.
fn write_log(dir: &Path) {
    let options = Options {
        dir: Some(dir.to_owned()),
        sync: SyncPolicy::Never,
        segment_size: 64 << 10,
        ..Options::default()
    };
    let mut queue = JobQueue::open_with(&options).unwrap();
    for number in 0..21 {
        let tube = if number < 20 { "mail" } else { "video" };
        queue
            .put(tube, tube.as_bytes(), PutOptions::default())
            .unwrap();
    }
    queue.close().unwrap();
}

/// The archive of which the examples tell; the test has another one.
const ARCHIVE: &str = "file:///var/backups/bsd";

/// An archive of the log in `dir`, made before the moment of which the examples tell.
fn write_archive(dir: &Path, url: &str) {
    use bsd::engine::{Engine, Options};
    use bsd::storage::{RealFs, Trail};
    use bsd::types::{Now, Time};
    use bsd_archive::format::BaseName;
    use bsd_archive::order::Order;
    use bsd_archive::{Codec, Done, Sizes, Writer, open};
    use std::sync::Arc;

    /// 2026-11-22 17:00:00 UTC.
    const WALL_NS: u64 = 1_795_366_800_000_000_000;
    let now = Now::new(Time(0), WALL_NS);
    let options = Options {
        dir: Some(dir.to_owned()),
        ..Options::default()
    };
    let mut engine = Engine::open(&options, now).unwrap();
    let trail = Arc::new(Trail::new(u64::MAX));
    engine.publish_to([trail.clone()]);
    let store = Arc::from(open(url, Codec::default()).unwrap());
    let (fs, sizes) = (Arc::new(RealFs), Sizes::default());
    let mut writer = Writer::new(store, trail, fs, dir.to_owned(), "test".into(), sizes);
    writer.ask_for_base(Order {
        name: BaseName::parse("before-upgrade"),
        is_pinned: false,
    });
    while writer.answer().is_none() {
        writer.step(WALL_NS, true).unwrap();
    }
    while writer.step(WALL_NS, true).unwrap() != Done::Nothing {}
    engine.close(now).unwrap();
}

/// Make the directory that of a member of a cluster.
fn write_ledger(dir: &Path) {
    use bsd::storage::RealFs;
    use bsd_cluster::ledger::{Base, Identity, Ledger};
    use bsd_cluster::member::{ClusterId, Member, Members, NodeId, Votes};
    use std::sync::Arc;

    let identity = Identity {
        cluster: ClusterId([1; 16]),
        node: NodeId(1),
    };
    let mut members = Members::default();
    members.put(Member {
        id: identity.node,
        peer: "127.0.0.1:12300".into(),
        client: String::new(),
        votes: Votes::VOTER,
    });
    let base = Base {
        members,
        ..Base::default()
    };
    Ledger::create(&(Arc::new(RealFs) as _), dir, identity, base).unwrap();
}

/// The examples of a command's help.
fn examples(command: &str) -> Vec<String> {
    let (code, help) = wal(&[command, "--help"]);
    assert_eq!(code, OK);
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let examples = lines.take_while(|line| !line.is_empty());
    examples.map(|line| line.trim().to_owned()).collect()
}

/// The names of all commands.
fn commands() -> Vec<String> {
    commands_below(&[])
}

/// The names of the commands that the help of this one lists.
fn commands_below(command: &[&str]) -> Vec<String> {
    let (_, help) = wal(&[command, &["--help"]].concat());
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// The exit codes that a text lists, one per line: the help, or the table of `docs/bsd-wal.md`.
fn exit_codes(text: &str) -> Vec<String> {
    let rows = text.lines().map(|line| line.trim_matches(['|', ' ']));
    let words = rows.map(|row| row.replace('|', " ").replace('`', ""));
    let words = words.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "));
    let is_row = |row: &String| row.starts_with(|letter: char| letter.is_ascii_digit());
    words.filter(is_row).collect()
}

#[test]
fn the_page_and_the_help_of_every_command_say_the_same_of_exit_codes() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/bsd-wal.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("| exit code of `bsd-wal` |").unwrap();
    let table = exit_codes(table.split("\n\n").next().unwrap());
    assert_eq!(table.len(), 4, "{table:?}");
    for command in commands().iter().map(String::as_str).chain(["--help"]) {
        let (_, help) = wal(&[command, "--help"]);
        let (_, codes) = help.split_once("Exit codes:\n").expect(command);
        let codes = codes.split("\n\n").next().unwrap().replace("\n     ", " ");
        assert_eq!(exit_codes(&codes), table, "{command}");
    }
}

#[test]
fn the_examples_of_the_help_work() {
    let bin = Path::new(BSD_WAL).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    for command in commands() {
        let dir = TempDir::new().unwrap();
        let log = dir.path().join("bsd-data");
        write_log(&log);
        let archive = format!("file://{}/archive", dir.path().display());
        if command == "archive" {
            std::fs::create_dir(dir.path().join("archive")).unwrap();
            write_archive(&log, &archive);
        }
        if command == "ledger" {
            write_ledger(&log);
        }
        // The commands that create directories.
        let made: &[&[&str]] = match &*command {
            "restore" => &[&["backup", "bsd-data", "--output", "bsd-backup"]],
            "import" => &[&["export", "bsd-data", "--output", "binlogs"]],
            _ => &[],
        };
        for args in made {
            let mut run = Command::new(bin.join("bsd-wal"));
            run.arg("-q").args(*args).current_dir(dir.path());
            assert!(run.status().unwrap().success(), "{args:?}");
        }
        if command == "import" {
            std::fs::write(dir.path().join("binlogs/lock"), b"").unwrap();
        }
        let examples = examples(&command);
        assert!(!examples.is_empty(), "{command} has no examples");
        for example in examples {
            let mut run = Command::new("sh");
            let example = example.replace(ARCHIVE, &archive);
            run.args(["-c", &example]).current_dir(dir.path());
            let output = run.env("PATH", &path).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // Which moment of the archive it is.
            let is_note =
                |line: &&str| line.starts_with(&format!("bsd-wal: {archive}: the log as"));
            let said: String = said.lines().filter(|line| !is_note(line)).collect();
            assert_eq!((output.status.code(), &*said), (OK, ""), "{example}");
        }
    }
}

#[cfg(feature = "man")]
#[test]
fn f42_manual_pages_and_completions_are_there_for_every_command() {
    use std::collections::BTreeSet;

    let dir = TempDir::new().unwrap();
    let (code, said) = wal(&["man", dir.path().to_str().unwrap()]);
    assert_eq!(code, OK, "{said}");
    let commands = commands();
    let has = |name: &str| commands.iter().any(|command| command == name);
    assert!(has("verify") && !has("man"), "{commands:?}");
    let mut pages = BTreeSet::from(["bsd-wal.1".to_owned()]);
    for command in &commands {
        pages.insert(format!("bsd-wal-{command}.1"));
        let below = commands_below(&[command]).into_iter();
        pages.extend(below.map(|below| format!("bsd-wal-{command}-{below}.1")));
    }
    let found = std::fs::read_dir(dir.path().join("man1")).unwrap();
    let found: BTreeSet<String> = found
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, pages);
    for (page, usage) in [
        ("man1/bsd-wal-verify.1", "bsd\\-wal verify"),
        ("man8/bsd-server.8", ".TH bsd-server 8"),
    ] {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.path().join(page);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{page}");
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page.contains(usage), "{page}");
        assert!(page.contains(".SH OPTIONS"), "{page}");
        assert!(page.contains(".SH \"EXIT STATUS\""), "{page}");
        assert!(!page.contains("EXTRA"), "{page}");
    }
    for script in [
        "bash/bsd-wal",
        "zsh/_bsd-wal",
        "fish/bsd-wal.fish",
        "bash/bsd-server",
    ] {
        let script = std::fs::read_to_string(dir.path().join(script)).unwrap();
        assert!(script.contains("help"), "{script}");
    }
    assert_eq!(
        wal(&["man", dir.path().to_str().unwrap()]).0,
        OK,
        "a second time, over the first"
    );
}
