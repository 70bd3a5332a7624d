//! `bsd-wal archive rehearse`: what it says of an archive that is well, damaged or not there, and what it
//! leaves behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::ROOT;
use crate::console::Page;
use crate::harness::{Launch, bsd_wal, wait_until, wal};
use crate::http::Site;

/// A directory with an archive of 100 jobs, whose server has ended, and an empty one.
struct Place {
    dir: TempDir,
    url: String,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        let archive = dir.path().join("archive");
        fs::create_dir(&archive).unwrap();
        fs::create_dir(dir.path().join("scratch")).unwrap();
        let url = format!("file://{}", archive.display());
        let launch = Launch::bsd().dir(&dir.path().join("data"));
        let launch = launch.args(["--archive", &url, "--archive-interval", "20"]);
        let server = launch.start();
        let mut client = server.connect();
        let bases = || !files(&archive, "/bases/").is_empty();
        wait_until("there is a base", bases);
        for number in 0..100 {
            client.put(format!("job {number}").as_bytes());
        }
        assert_eq!(server.stop().code, Some(0));
        Place { dir, url }
    }

    fn archive(&self) -> PathBuf {
        self.dir.path().join("archive")
    }

    fn scratch(&self) -> PathBuf {
        self.dir.path().join("scratch")
    }

    /// Nothing is left of a rehearsal.
    fn is_clean(&self) -> bool {
        fs::read_dir(self.scratch()).unwrap().next().is_none()
    }

    fn rehearse(&self, flags: &[&str]) -> (Option<i32>, Value) {
        let scratch = self.scratch();
        let scratch = scratch.to_str().unwrap();
        let words = ["archive", "rehearse", &self.url, "--dir", scratch, "--json"];
        let mut command = Command::new(bsd_wal());
        let output = command.args(words).args(flags).output().unwrap();
        let said = serde_json::from_slice(&output.stdout);
        let said = said.unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code(), said)
    }
}

/// The files below a directory whose path has this part, and what is in them.
fn files(dir: &Path, part: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, part));
        } else if path.to_str().unwrap().contains(part)
            && let Ok(bytes) = fs::read(&path)
        {
            found.insert(path, bytes);
        }
    }
    found
}

#[test]
fn a_rehearsal_says_how_long_a_restore_takes_and_leaves_nothing_behind() {
    let place = Place::new();
    let before = files(&place.archive(), "");
    let (code, said) = place.rehearse(&["--connections", "2"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        (&said["is_well"], &said["kept"]),
        (&true.into(), &Value::Null)
    );
    assert_eq!(said["findings"], Value::Array(Vec::new()));
    let facts = &said["restored"];
    assert_eq!(facts["jobs"], 100, "{said}");
    for fact in ["restore_ms", "verify_ms", "behind_ms"] {
        assert!(facts[fact].is_u64(), "{fact}: {said}");
    }
    assert!(facts["bytes"].as_u64() > Some(1000), "{said}");
    // It is what a restore says.
    let restored = place.dir.path().join("restored");
    let dir = restored.to_str().unwrap();
    let (code, output) = wal(&["archive", "restore", &place.url, dir, "--json"]);
    assert_eq!(code, Some(0), "{output}");
    let restored: Value = serde_json::from_str(&output).unwrap();
    for fact in ["base", "links", "records", "jobs", "end", "time"] {
        assert_eq!(facts[fact], restored[fact], "{fact}");
    }
    assert!(place.is_clean());
    assert!(
        files(&place.archive(), "") == before,
        "the archive was changed"
    );
    let scratch = place.scratch();
    let scratch = scratch.to_str().unwrap();
    let (code, said) = wal(&["archive", "rehearse", &place.url, "--dir", scratch]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("100 jobs") && said.contains("before this rehearsal began"));
}

#[test]
fn a_rehearsal_that_is_kept_is_a_data_directory() {
    let place = Place::new();
    let (code, said) = place.rehearse(&["--keep"]);
    assert_eq!(code, Some(0), "{said}");
    let kept = PathBuf::from(said["kept"].as_str().unwrap());
    assert!(kept.starts_with(place.scratch()), "{said}");
    let (_, dump) = wal(&["dump", kept.to_str().unwrap()]);
    let jobs = dump.lines().filter(|line| line.contains("\"job "));
    assert_eq!(jobs.count(), 100, "{dump}");
    let server = Launch::bsd().dir(&kept).start();
    assert!(server.connect().put(b"one more") > 100);
}

#[test]
fn a_rehearsal_finds_what_is_damaged_or_missing() {
    let place = Place::new();
    let links = files(&place.archive(), "/chain/");
    let (last, bytes) = links.last_key_value().unwrap();
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    fs::write(last, &flipped).unwrap();
    let (code, said) = place.rehearse(&[]);
    assert_eq!((code, &said["restored"]), (Some(1), &Value::Null), "{said}");
    let finding = said["findings"][0].as_str().unwrap();
    let name = last.file_name().unwrap().to_str().unwrap();
    assert!(
        finding.contains("damaged") && finding.contains(name),
        "{said}"
    );
    assert!(place.is_clean());
    // Nothing is kept where nothing was restored.
    let (code, said) = place.rehearse(&["--keep"]);
    assert_eq!((code, &said["kept"]), (Some(1), &Value::Null), "{said}");
    assert!(place.is_clean());
    let (code, words) = wal(&["archive", "rehearse", &place.url]);
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("NOT WELL"), "{words}");
}

#[test]
fn a_rehearsal_that_cannot_be_made_says_why() {
    let place = Place::new();
    let empty = place.scratch();
    let nothing = format!("file://{}", empty.display());
    let (code, said) = wal(&["archive", "rehearse", &nothing]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no archive here"), "{said}");
    let missing = place.dir.path().join("missing");
    let dir = ["--dir", missing.to_str().unwrap()];
    let (code, said) = wal(&[&["archive", "rehearse", &place.url][..], &dir].concat());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no directory can be made in"), "{said}");
    assert!(place.is_clean());
}

#[test]
fn a_server_is_told_of_the_rehearsals_of_the_script() {
    let place = Place::new();
    let site = Site::start(Launch::bsd().dir(&place.dir.path().join("data")));
    let programs = bsd_wal().parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    let run = |args: &[&str]| {
        Command::new(Path::new(ROOT).join("contrib/backup/bsd-rehearsal"))
            .args(args)
            .env("PATH", &path)
            .env("BSD_CTL_HTTP", site.address.to_string())
            .output()
            .unwrap()
    };
    let told = || site.get("/api/v1/log").json()["checks"]["rehearsal"].clone();
    assert_eq!(told(), Value::Null);
    let scratch = place.scratch();
    let output = run(&[&place.url, scratch.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stderr, b"");
    assert_eq!(told()["failed"], false);
    assert_eq!(told()["note"], place.url.as_str());
    assert!(place.is_clean());
    let page = Page::shown(&site, "/durability");
    let said = page.fact("Last rehearsal");
    assert!(said.contains(&place.url), "{said}");
    // A place without an archive; a command line without a place.
    let output = run(&[&format!("file://{}", scratch.display())]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(told()["failed"], true);
    assert_eq!(told()["note"], "bsd-rehearsal: exit code 2");
    for wrong in [&[][..], &[""], &["a", "b", "c"]] {
        assert_eq!(run(wrong).status.code(), Some(5), "{wrong:?}");
        assert_eq!(told()["note"], "bsd-rehearsal: it was given no archive");
    }
}
