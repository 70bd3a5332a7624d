//! Who may use a directory at the same time: one writer, or any number of readers.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::harness::{Launch, bsd_wal, wal};
use crate::wal::{CANNOT, OK, snapshot, text};
use crate::wal_look::segments;

/// A `bsd-wal dump` whose output is not read to its end: it stays in the middle of its work.
struct Reader(Child);

impl Reader {
    /// It has begun to write, so it has the directory. Whether it does is not asked of the lock: while
    /// a test holds that to see, `dump` finds it held, and reads as with `--live`.
    fn start(dir: &Path) -> Reader {
        let mut command = Command::new(bsd_wal());
        command.args(["dump", text(dir), "--json"]);
        let mut reader = Reader(command.stdout(Stdio::piped()).spawn().unwrap());
        let output = reader.0.stdout.as_mut().unwrap();
        output.read_exact(&mut [0]).unwrap();
        reader
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn f41_commands_that_read_run_side_by_side_and_a_server_is_told_who_reads() {
    let dir = TempDir::new().unwrap();
    let [log, new] = ["log", "new"].map(|name| dir.path().join(name));
    segments(&log, 4);
    let before = snapshot(&log);
    let reader = Reader::start(&log);
    for command in ["verify", "info", "dump", "export", "repair"] {
        let args: &[&str] = match command {
            "export" | "repair" => &[command, text(&log), "--output", text(&new)],
            _ => &[command, text(&log)],
        };
        let (code, said) = wal(args);
        assert_eq!(code, OK, "{command}: {said}");
        let _ = std::fs::remove_dir_all(&new);
    }
    assert_eq!(snapshot(&log), before);

    let who = format!("process {} (", reader.0.id());
    let exit = Launch::bsd().dir(&log).run_to_exit();
    assert_eq!(exit.code, Some(10), "{}", exit.stderr);
    for part in ["is being read by", &who, "dump", "does no harm"] {
        assert!(exit.stderr.contains(part), "{part}: {}", exit.stderr);
    }
    let (code, said) = wal(&["compact", text(&log)]);
    assert!(code == CANNOT && said.contains(&who), "{said}");
    drop(reader);
    Launch::bsd().dir(&log).start().stop();
}

#[test]
fn f41_a_message_names_the_server_that_has_a_directory() {
    let dir = TempDir::new().unwrap();
    let server = Launch::bsd().dir(dir.path()).start();
    let who = format!("is in use by process {} (", server.id());
    let exit = Launch::bsd().dir(dir.path()).run_to_exit();
    assert!(exit.stderr.contains(&who), "{}", exit.stderr);
    assert!(exit.stderr.contains("bsd-server"), "{}", exit.stderr);
    let (code, said) = wal(&["compact", text(dir.path())]);
    assert!(code == CANNOT && said.contains(&who), "{said}");
    server.stop();
}

#[test]
fn f15_without_the_lock_file_too_a_directory_has_one_server() {
    let dir = TempDir::new().unwrap();
    let server = Launch::bsd().dir(dir.path()).start();
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    let exit = Launch::bsd().dir(dir.path()).run_to_exit();
    assert_eq!(exit.code, Some(10), "{}", exit.stderr);
    let who = format!("process {} (", server.id());
    assert!(exit.stderr.contains(&who), "{}", exit.stderr);
    for command in ["repair", "compact"] {
        let new = dir.path().with_extension("new");
        let args: &[&str] = match command {
            "repair" => &[command, text(dir.path()), "--output", text(&new)],
            _ => &[command, text(dir.path())],
        };
        let (code, said) = wal(args);
        assert!(code == CANNOT && said.contains(&who), "{command}: {said}");
    }
    server.stop();
    Launch::bsd().dir(dir.path()).start().stop();
}
