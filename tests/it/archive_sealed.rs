//! An archive that is compressed and encrypted, with the programs as they are: its server is lost and
//! comes back with another key, a standby follows it, and those who have no key learn which
//! one is needed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::archive::{follow, jobs_of_standby};
use crate::harness::{Launch, Server, wait_until, wal};

const SECRET: &str = "a letter that no store may read";
const JOBS: usize = 100;

/// A directory with an archive, the files of keys, and whatever else.
struct Place {
    dir: TempDir,
    url: String,
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("archive")).unwrap();
        for (name, digit) in [("one", "1"), ("two", "2"), ("three", "3")] {
            fs::write(dir.path().join(name), format!("{}\n", digit.repeat(64))).unwrap();
        }
        let url = format!("file://{}", dir.path().join("archive").display());
        Place { dir, url }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `flag` with the path of each of these files.
    fn keys(&self, flag: &str, names: &[&str]) -> Vec<String> {
        let path = |name: &&str| self.at(name).display().to_string();
        let flags = names.iter().map(|name| [flag.to_owned(), path(name)]);
        flags.flatten().collect()
    }

    fn launch(&self, dir: &str) -> Launch {
        let launch = Launch::bsd().dir(&self.at(dir));
        launch.args(["--archive-interval", "20"])
    }

    fn server(&self, dir: &str, flags: &[String]) -> Server {
        let launch = self.launch(dir).args(["--archive", &self.url]);
        launch.args(flags.iter().map(String::as_str)).start()
    }

    /// `bsd-wal archive COMMAND URL …` with these keys.
    fn archive(&self, command: &str, keys: &[&str], more: &[&str]) -> (Option<i32>, String) {
        let keys = self.keys("--archive-key", keys);
        let words = ["archive", command, &self.url];
        let words = words.iter().chain(more).map(|word| (*word).to_owned());
        wal(&words.chain(keys).collect::<Vec<_>>())
    }

    /// The jobs of a restore with these keys.
    fn restored(&self, name: &str, keys: &[&str]) -> usize {
        let dir = self.at(name);
        let (code, said) = self.archive("restore", keys, &[dir.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
        jobs(&[dir.to_str().unwrap()])
    }
}

fn jobs(words: &[&str]) -> usize {
    let (code, said) = wal(&[&["dump", "--json"], words].concat());
    assert_eq!(code, Some(0), "{said}");
    said.lines().filter(|it| it.contains(SECRET)).count()
}

/// The files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let below = entries.flat_map(|path| match path.is_dir() {
        true => files(&path),
        false => vec![path],
    });
    below.collect()
}

fn put(server: &Server, count: usize) {
    let mut client = server.connect();
    for number in 0..count {
        client.put(format!("{SECRET}, {number}").as_bytes());
    }
}

#[test]
fn an_encrypted_archive_is_read_with_any_of_its_keys_and_goes_on_with_another_one() {
    let place = Place::new();
    let mut flags = place.keys("--archive-key", &["one", "two"]);
    flags.push("--archive-compress".to_owned());
    let first = place.server("data", &flags);
    put(&first, JOBS);
    let copy = place.launch("copy").args(["--follow", &place.url]);
    let keys = place.keys("--archive-key", &["two"]);
    let standby = follow(copy.args(keys.iter().map(String::as_str)));
    wait_until("the standby has all jobs", || {
        jobs_of_standby(&standby) == JOBS as u64
    });
    assert_eq!(standby.stop().code, Some(0));
    let exit = first.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(
        exit.stderr
            .contains("compressed with level 3, encrypted for")
    );
    let shows = |path: &Path, words: &str| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(words.len()).any(|it| it == words.as_bytes())
    };
    for path in files(&place.at("archive")) {
        for words in [SECRET, "bsd-archive-base", "BSDARC"] {
            assert!(!shows(&path, words), "{}: {words}", path.display());
        }
    }
    for (name, keys) in [("by-one", &["one"][..]), ("by-two", &["three", "two"])] {
        let (code, said) = place.archive("verify", keys, &[]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("every object is as it was put"), "{said}");
        assert_eq!(place.restored(name, keys), JOBS);
    }
    let command = format!("cat {}", place.at("one").display());
    let words = [&place.url, "--archive-key-command", &command];
    assert_eq!(jobs(&words), JOBS);

    // The machine is lost, and the key of the first server is not to be used any more.
    fs::remove_dir_all(place.at("data")).unwrap();
    let mut flags = place.keys("--archive-key", &["three"]);
    flags.extend(place.keys("--archive-old-key", &["one"]));
    flags.push("--restore-if-empty".to_owned());
    let second = place.server("data", &flags);
    put(&second, JOBS);
    assert_eq!(second.stop().code, Some(0));
    assert_eq!(place.restored("all", &["one", "three"]), 2 * JOBS);
    let (code, said) = place.archive("ls", &["one"], &[]);
    assert_eq!(code, Some(2), "the last link is of the new key: {said}");
    let (code, said) = place.archive("expire", &["one", "three"], &["--keep", "1d", "--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    let dir = place.at("rehearsed");
    fs::create_dir(&dir).unwrap();
    let dir = ["--dir", dir.to_str().unwrap()];
    let (code, said) = place.archive("rehearse", &["three", "one"], &dir);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn without_a_key_an_archive_is_checked_as_far_as_it_can_be_and_the_key_is_named() {
    let place = Place::new();
    let first = place.server("data", &place.keys("--archive-key", &["one"]));
    put(&first, 10);
    assert_eq!(first.stop().code, Some(0));
    let verify = |keys: &[&str]| {
        let (code, said) = place.archive("verify", keys, &["--json"]);
        let json = said.lines().find(|line| line.starts_with('{'));
        let json = json.unwrap_or_else(|| panic!("{said}"));
        let report: Value = serde_json::from_str(json).unwrap();
        (code, report)
    };
    let (code, report) = verify(&[]);
    assert_eq!((code, &report["is_whole"]), (Some(0), &Value::Null));
    let log = &report["logs"][0];
    assert_eq!(log["objects"], log["encrypted"]);
    assert_eq!(log["damages"].as_array().map(Vec::len), Some(0));
    let id = log["keys"][0].as_str().unwrap().to_owned();
    assert_eq!(id.len(), 16);
    assert_eq!(verify(&["one"]).1["is_whole"], true);

    for keys in [&[][..], &["two"]] {
        let dir = place.at("refused");
        let (code, said) = place.archive("restore", keys, &[dir.to_str().unwrap()]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(&id) && !dir.exists(), "{said}");
        let server = place.server("data", &place.keys("--archive-key", keys));
        let exit = server.wait();
        assert_eq!(exit.code, Some(6), "{exit:?}");
        assert!(exit.stderr.contains(&id), "{exit:?}");
    }
    fs::write(place.at("two"), "hunter2").unwrap();
    let (code, said) = place.archive("verify", &["two"], &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("has no key") && !said.contains("hunter2"));

    let is_part = |path: &PathBuf| path.to_string_lossy().contains("/parts/");
    let part = files(&place.at("archive")).into_iter().find(is_part);
    let part = part.unwrap();
    let mut bytes = fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&part, bytes).unwrap();
    let (code, report) = verify(&[]);
    assert_eq!(code, Some(1), "{report}");
    let damages = report["logs"][0]["damages"].as_array().unwrap();
    let name = part.file_name().unwrap().to_str().unwrap();
    assert!(damages.len() == 1 && damages[0].as_str().unwrap().contains(name));
    assert_eq!(verify(&["one"]).0, Some(1));
}
