//! `--restore-if-empty`: a server whose directory is empty begins with what its archive has, and
//! does not begin at all where that cannot be read.

use std::fs;
use std::path::{Path, PathBuf};

use bsd::storage::format::file_name;
use bsd::types::SegmentId;
use tempfile::TempDir;

use crate::faults::SmallDisk;
use crate::harness::{Exit, Launch, wait_until, wal};

/// A place with an archive, and the address of that.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("archive")).unwrap();
        Place { dir }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn url(&self) -> String {
        format!("file://{}", self.at("archive").display())
    }

    fn launch(&self, dir: &str) -> Launch {
        let launch = Launch::bsd().dir(&self.at(dir));
        let launch = launch.args(["--archive", &self.url(), "--archive-interval", "20"]);
        launch.arg("--restore-if-empty")
    }

    /// An archive of this many jobs, whose server has gone with its directory.
    fn with_archive(jobs: usize) -> Place {
        let place = Place::new();
        let server = place.launch("lost").start();
        let mut wire = server.connect();
        for nth in 0..jobs {
            wire.put(format!("job {nth}").as_bytes());
        }
        let exit = server.stop();
        assert_eq!(exit.code, Some(0), "{exit:?}");
        fs::remove_dir_all(place.at("lost")).unwrap();
        place
    }

    /// Start a server that must not come to serve, and must leave nothing behind.
    fn refused(&self, code: i32) -> Exit {
        let exit = self.launch("data").run_to_exit();
        assert_eq!(exit.code, Some(code), "{exit:?}");
        assert!(!self.at("data").exists(), "nothing is left");
        assert!(!self.at("data.incomplete").exists(), "nothing is left");
        exit
    }

    /// The one file below the archive in whose path this stands, of several the first.
    fn object(&self, part: &str) -> PathBuf {
        let mut found = files(&self.at("archive"));
        found.retain(|path| path.to_str().unwrap().contains(part));
        found.sort();
        found.remove(0)
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

/// The root of a file system cannot be replaced, and has a directory of its own.
#[test]
fn g52_an_empty_root_of_a_file_system_is_refilled() {
    let place = Place::with_archive(20);
    let refilled = |dir: &str| {
        let server = place.launch(dir).args(["-s", "1m"]).start();
        let jobs = server.connect().stat("stats", "current-jobs-ready");
        assert_eq!(jobs, "20", "{}", server.stderr());
        assert!(server.stderr().contains("restored"), "{}", server.stderr());
        assert_eq!(server.stop().code, Some(0));
        let left = fs::read_dir(place.at(dir)).unwrap().flatten();
        let left: Vec<String> = left
            .map(|it| it.file_name().into_string().unwrap())
            .collect();
        assert!(
            !left.iter().any(|name| name.starts_with("bsd.")),
            "{left:?}"
        );
    };
    fs::create_dir_all(place.at("data/lost+found")).unwrap();
    refilled("data");
    if let Some(disk) = SmallDisk::mount("128m") {
        refilled(disk.path().to_str().unwrap());
    }
}

#[test]
fn an_empty_directory_gets_the_jobs_of_the_archive_and_the_server_goes_on_there() {
    let place = Place::with_archive(100);
    fs::create_dir(place.at("data")).unwrap();
    let server = place.launch("data").start();
    let mut wire = server.connect();
    assert!(wire.put(b"one more") > 1 << 32, "no id is given out twice");
    assert_eq!(wire.reserve(), 1);
    let said = server.stderr();
    assert!(said.contains("restored from file://"), "{said}");
    assert!(said.contains("100 jobs"), "{said}");
    assert_eq!(server.stop().code, Some(0));
    fs::remove_dir_all(place.at("data")).unwrap();
    let server = place.launch("data").start();
    assert!(server.stderr().contains("101 jobs"), "{}", server.stderr());
}

#[test]
fn a_directory_with_a_log_is_never_touched_and_the_archive_is_not_asked() {
    let place = Place::with_archive(10);
    let own = Launch::bsd().dir(&place.at("data")).start();
    own.connect().put(b"of another log");
    assert_eq!(own.stop().code, Some(0));
    // Anyone who read this archive would complain.
    fs::write(place.object("/chain/"), "damaged").unwrap();
    let server = place.launch("data").args(["--archive-new-log"]).start();
    assert!(!server.stderr().contains("restored"), "{}", server.stderr());
    assert_eq!(server.connect().put(b"one more"), 2);
}

#[test]
fn a_directory_with_other_files_is_refused_and_left_as_it_is() {
    let place = Place::with_archive(10);
    fs::create_dir(place.at("data")).unwrap();
    fs::write(place.at("data").join("precious"), "bytes").unwrap();
    let exit = place.launch("data").run_to_exit();
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.stderr.contains("precious"), "{exit:?}");
    assert_eq!(files(&place.at("data")), [place.at("data/precious")]);
}

#[test]
fn an_archive_with_no_log_yet_gives_an_empty_log_and_says_so() {
    let place = Place::new();
    let server = place.launch("data").start();
    let said = server.stderr();
    assert!(said.contains("nothing to restore"), "{said}");
    assert_eq!(server.connect().put(b"first"), 1);
}

#[test]
fn an_archive_that_is_damaged_is_not_restored_and_the_server_does_not_start() {
    let place = Place::with_archive(100);
    let link = place.object("/parts/");
    fs::write(&link, "damaged").unwrap();
    let exit = place.refused(3);
    assert!(exit.stderr.contains("the archive is damaged"), "{exit:?}");
    assert!(exit.stderr.contains("bsd-wal archive restore"), "{exit:?}");
}

#[test]
fn a_directory_of_the_archive_that_is_not_there_is_not_taken_for_an_empty_archive() {
    let place = Place::with_archive(100);
    fs::rename(place.at("archive"), place.at("unmounted")).unwrap();
    let exit = place.refused(1);
    assert!(exit.stderr.contains("make it or mount it"), "{exit:?}");
    assert!(!place.at("archive").exists(), "nothing is made there");
}

#[test]
fn with_archives_of_several_logs_the_server_does_not_choose() {
    let place = Place::with_archive(3);
    let other = Launch::bsd().dir(&place.at("other"));
    let other = other.args(["--archive", &place.url(), "--archive-new-log"]);
    let other = other.start();
    other.connect().put(b"of another log");
    assert_eq!(other.stop().code, Some(0));
    let exit = place.refused(1);
    assert!(exit.stderr.contains("several logs"), "{exit:?}");
    assert!(exit.stderr.contains("--archive-log"), "{exit:?}");
    let log = fs::read_dir(place.at("archive/logs")).unwrap().next();
    let log = log.unwrap().unwrap().file_name().into_string().unwrap();
    let server = place.launch("data").args(["--archive-log", &log]).start();
    assert!(server.stderr().contains("restored"), "{}", server.stderr());
}

#[test]
fn g15_a_restored_server_is_archived_from_its_first_job_on_and_without_a_base() {
    let place = Place::with_archive(100);
    for life in 1..=3 {
        let server = place.launch("data").start();
        let found = format!("{} jobs", 99 + life);
        assert!(server.stderr().contains(&found), "{}", server.stderr());
        server.connect().put(b"one more");
        assert_eq!(server.stop().code, Some(0));
        fs::remove_dir_all(place.at("data")).unwrap();
    }
    let mut bases = files(&place.at("archive"));
    bases.retain(|path| path.to_str().unwrap().contains("/bases/"));
    assert_eq!(bases.len(), 1, "{bases:?}");
    let (code, said) = wal(&["archive", "verify", &place.url()]);
    assert_eq!(code, Some(0), "{said}");
}

/// Nothing that it acknowledges waits for a claim, and an old server is fenced by then.
#[test]
fn g15_a_restored_server_has_the_archive_before_it_serves() {
    let place = Place::with_archive(10);
    let claims = || {
        let mut claims = files(&place.at("archive"));
        claims.retain(|path| path.to_str().unwrap().contains("/claims/"));
        claims.len()
    };
    for life in 1..=3 {
        let before = claims();
        let server = match life {
            1 => place.launch("data").start(),
            _ => {
                let (url, data) = (place.url(), place.at("data"));
                let args = ["archive", "restore", &url, data.to_str().unwrap()];
                assert_eq!(wal(&args).0, Some(0));
                let launch = Launch::bsd().dir(&data).args(["--archive", &url]);
                launch.start()
            }
        };
        assert_eq!(claims(), before + 1, "life {life}");
        server.kill();
        fs::remove_dir_all(place.at("data")).unwrap();
    }
}

/// One lost object, or one directory that cannot be seen, does not make an archive an empty place.
#[test]
fn g23_an_archive_without_its_mark_is_still_one_and_a_second_log_is_not_begun_in_it() {
    let place = Place::with_archive(10);
    fs::remove_dir_all(place.at("archive/logs")).unwrap();
    let other = Launch::bsd().dir(&place.at("other"));
    let exit = other.args(["--archive", &place.url()]).run_to_exit();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    assert!(exit.stderr.contains("--archive-new-log"), "{exit:?}");
    let server = place.launch("data").start();
    assert!(server.stderr().contains("10 jobs"), "{}", server.stderr());
    assert_eq!(server.stop().code, Some(0));
    // Nothing is left but the marker.
    for entry in fs::read_dir(place.at("archive")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        }
    }
    let exit = place.launch("fresh").run_to_exit();
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.stderr.contains("nothing can be restored"), "{exit:?}");
}

/// The remains of a restore that was killed are not taken for anything, and go away.
#[test]
fn a12_a_restore_that_was_interrupted_is_done_again_from_the_beginning() {
    let place = Place::with_archive(50);
    let left = place.at("data.incomplete");
    fs::create_dir(&left).unwrap();
    let segment = file_name(SegmentId(1), 0);
    fs::write(left.join(segment), "the first bytes of").unwrap();
    let server = place.launch("data").start();
    assert!(server.stderr().contains("50 jobs"), "{}", server.stderr());
    assert!(!left.exists());
}

#[test]
fn a2_of_two_machines_that_are_started_at_once_one_goes_on_and_the_other_stops() {
    let place = Place::with_archive(20);
    let launch = |dir| place.launch(dir).spawn();
    let mut both = [launch("one"), launch("two")];
    let mut ended = None;
    wait_until("one of them stops", || {
        ended = both.iter_mut().position(|server| !server.is_running());
        ended.is_some()
    });
    let [one, two] = both;
    let (loser, winner) = match ended {
        Some(0) => (one, two),
        _ => (two, one),
    };
    let exit = loser.wait();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    assert!(exit.stderr.contains("another writer"), "{exit:?}");
    let winner = winner.serving();
    assert!(winner.connect().put(b"one more") > 1 << 32);
    let exit = winner.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let (code, said) = wal(&["archive", "verify", &place.url()]);
    assert_eq!(code, Some(0), "{said}");
}
