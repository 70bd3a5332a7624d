//! How `bsd-wal` looks: pictures of a log, colours on a terminal and nowhere else.

use std::path::Path;
use std::process::Command;

use bsd::{JobQueue, Options, PutOptions, SyncPolicy};
use tempfile::TempDir;

use crate::harness::{bsd_wal, program, skip, wal};
use crate::wal::{DAMAGED, OK, text};

/// A log of about `count` segments of 64 KiB, cleanly stopped.
pub(crate) fn segments(dir: &Path, count: usize) {
    let options = Options {
        dir: Some(dir.to_owned()),
        sync: SyncPolicy::Never,
        segment_size: 64 << 10,
        ..Options::default()
    };
    let mut queue = JobQueue::open_with(&options).unwrap();
    for _ in 0..count * 6 {
        queue
            .put("t", &[b'x'; 10_000], PutOptions::default())
            .unwrap();
        queue.tick().unwrap();
    }
    queue.close().unwrap();
}

/// The lines of the picture, which is the end of what `command` says.
fn picture(command: &str, dir: &Path) -> Vec<String> {
    let (_, said) = wal(&[command, text(dir)]);
    let lines: Vec<&str> = said.lines().collect();
    let begin = lines.iter().rposition(|line| line.is_empty()).unwrap();
    // The standard error follows the standard output here.
    let lines = lines[begin + 1..]
        .iter()
        .filter(|line| !line.starts_with("bsd-wal:"));
    lines.map(|line| (*line).to_owned()).collect()
}

#[test]
fn a_picture_shows_each_file_and_where_it_is_damaged() {
    let dir = TempDir::new().unwrap();
    segments(dir.path(), 4);
    let whole = picture("info", dir.path());
    assert!(whole.len() >= 5, "{whole:?}");
    assert!(
        whole[1].starts_with("segment-0000000001.00000 "),
        "{whole:?}"
    );
    assert!(
        whole[1].contains("|############################| 100 % full"),
        "{whole:?}"
    );
    assert_eq!(picture("verify", dir.path()), whole);

    // In the middle of the second file.
    let file = dir.path().join("segment-0000000002.00000");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let drawn = picture("verify", dir.path());
    assert_eq!(drawn[1], whole[1]);
    assert!(drawn[2].ends_with("DAMAGED"), "{drawn:?}");
    let cells = drawn[2].split('|').nth(1).unwrap();
    let first = cells.find('X').unwrap();
    assert!(
        (8..=15).contains(&first) && cells.matches('X').count() < 8,
        "{cells}"
    );

    std::fs::remove_file(&file).unwrap();
    let drawn = picture("verify", dir.path());
    assert!(
        drawn
            .iter()
            .any(|line| line.contains("002.00000") && line.contains("MISSING")),
        "{drawn:?}"
    );
}

#[test]
fn a_picture_of_many_files_fits_on_a_screen() {
    let dir = TempDir::new().unwrap();
    segments(dir.path(), 100);
    let drawn = picture("info", dir.path());
    assert!((20..=41).contains(&drawn.len()), "{drawn:?}");
    assert!(drawn[1].contains(" files, 1 to "), "{drawn:?}");
    for line in &drawn {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_pipe_gets_plain_text() {
    let dir = TempDir::new().unwrap();
    segments(dir.path(), 2);
    for command in ["verify", "info", "dump", "--help"] {
        let output = Command::new(bsd_wal())
            .args([command, text(dir.path())])
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm-256color")
            .output()
            .unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(
            !said.contains('\x1b') && !said.contains('█'),
            "{command}: {said}"
        );
    }
}

/// The output of `verify` on a terminal.
fn on_a_terminal(dir: &Path, variables: &[(&str, &str)]) -> String {
    let command = format!("{} verify {}", bsd_wal().display(), text(dir));
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &command, "/dev/null"]);
    script.env_remove("NO_COLOR").env("TERM", "xterm");
    let output = script.envs(variables.iter().copied()).output().unwrap();
    assert_eq!(output.status.code(), OK);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_terminal_gets_colours_unless_they_are_not_wanted() {
    if program("script").is_none() {
        return skip("script is not installed");
    }
    let dir = TempDir::new().unwrap();
    segments(dir.path(), 2);
    let utf8 = ("LC_ALL", "C.UTF-8");
    let said = on_a_terminal(dir.path(), &[utf8]);
    assert!(
        said.contains("\x1b[32mintact\x1b[0m") && said.contains('█'),
        "{said}"
    );
    let said = on_a_terminal(dir.path(), &[utf8, ("NO_COLOR", "1")]);
    assert!(!said.contains('\x1b') && said.contains('█'), "{said}");
    let said = on_a_terminal(dir.path(), &[("LC_ALL", "C")]);
    assert!(said.is_ascii() && said.contains("####"), "{said}");
    let said = on_a_terminal(dir.path(), &[utf8, ("TERM", "dumb")]);
    assert!(!said.contains('\x1b'), "{said}");
}

#[test]
fn a_damaged_log_is_drawn_by_info_too() {
    let dir = TempDir::new().unwrap();
    segments(dir.path(), 2);
    let file = dir.path().join("segment-0000000001.00000");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[30_000] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let (code, said) = wal(&["info", text(dir.path())]);
    assert_eq!(code, DAMAGED);
    assert!(
        said.contains("DAMAGED") && said.contains("bsd-wal verify"),
        "{said}"
    );
}
