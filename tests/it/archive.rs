//! A real server with an archive in a directory: its machine is lost, it is restored, a standby
//! takes over, and it comes back. Runs where the feature `archive` is built in.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::archive_seen::{hardly_held, metric};
use crate::harness::{Launch, Server, bsd_wal, wait_until, wal};

fn wal_ok(args: &[&str]) -> String {
    let (code, said) = wal(args);
    assert_eq!(code, Some(0), "{args:?}: {said}");
    said
}

/// A server with its log in `dir` and its archive at `url`.
fn server(dir: &Path, url: &str) -> Server {
    let launch = Launch::bsd().dir(dir).arg("--archive").arg(url);
    launch.arg("--archive-interval").arg("20").start()
}

/// The jobs of a restored directory.
fn jobs(dir: &Path) -> usize {
    let listed = wal_ok(&["dump", "--json", dir.to_str().unwrap()]);
    listed
        .lines()
        .filter(|line| line.contains("\"tube\""))
        .count()
}

/// Restores to `dir`, which must not exist, and counts its jobs; nothing, if that is refused.
fn restored(url: &str, dir: &Path) -> Option<usize> {
    let (code, _) = wal(&["archive", "restore", url, dir.to_str().unwrap()]);
    (code == Some(0)).then(|| jobs(dir))
}

#[test]
fn a_machine_that_is_lost_is_restored_from_its_archive_and_goes_on_there() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let url = format!("file://{}", at("archive").display());
    fs::create_dir(at("archive")).unwrap();
    let first = server(&at("data"), &url);
    let mut client = first.connect();
    for number in 0..100 {
        client.put(format!("job {number}").as_bytes());
    }
    wait_until("all jobs are archived", || {
        let tried = at("tried");
        let found = restored(&url, &tried);
        let _ = fs::remove_dir_all(&tried);
        found == Some(100)
    });
    first.kill();
    fs::remove_dir_all(at("data")).unwrap();
    let said = wal_ok(&["archive", "verify", &url]);
    assert!(said.contains("every object is as it was put"), "{said}");
    // The number of connections changes nothing but the time.
    let reports = ["1", "2", "256"].map(|number| {
        let dir = at(&format!("by-{number}"));
        let dir = dir.to_str().unwrap();
        let flags = ["--json", "--connections", number];
        let said = wal_ok(&[&["archive", "restore", &url, dir][..], &flags].concat());
        let verified = wal_ok(&[&["archive", "verify", &url][..], &flags].concat());
        (said.replace(dir, "DIR"), verified)
    });
    assert!(reports.iter().all(|it| *it == reports[0]), "{reports:?}");
    for wrong in ["0", "257", "many"] {
        let (code, said) = wal(&["archive", "verify", &url, "--connections", wrong]);
        assert_eq!(code, Some(5), "{said}");
        assert!(said.contains("a number from 1 to 256"), "{said}");
    }
    let dir = at("data");
    let said = wal_ok(&["archive", "restore", &url, dir.to_str().unwrap()]);
    assert!(said.contains("100 jobs"), "{said}");
    let second = server(&dir, &url);
    let id = second.connect().put(b"one more");
    assert!(id > 1 << 32, "no id is given out twice: {id}");
    let exit = second.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert_eq!(
        restored(&url, &at("again")),
        Some(101),
        "a clean stop archives the rest"
    );
}

#[test]
fn the_old_server_stops_by_itself_when_another_has_taken_over_its_archive() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let url = format!("file://{}", at("archive").display());
    fs::create_dir(at("archive")).unwrap();
    let old = server(&at("old"), &url);
    old.connect().put(b"first");
    wait_until("there is a base", || {
        let has_job = restored(&url, &at("new")) == Some(1);
        if !has_job {
            let _ = fs::remove_dir_all(at("new"));
        }
        has_job
    });
    let new = server(&at("new"), &url);
    wait_until("the new server has claimed the archive", || {
        wal(&["archive", "ls", &url]).1.contains("epoch 2")
    });
    // It may have noticed already.
    if let Ok(mut late) = TcpStream::connect(old.address()) {
        let _ = late.write_all(b"put 0 0 1 14\r\nof the old one\r\n");
    }
    let exit = old.wait();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    assert!(exit.stderr.contains("another writer"), "{exit:?}");
    assert_eq!(new.stop().code, Some(0));
    assert_eq!(restored(&url, &at("seen")), Some(1));
}

fn standby(dir: &Path, url: &str) -> Server {
    let launch = Launch::bsd().dir(dir).arg("--follow").arg(url);
    follow(launch.arg("--archive-interval").arg("20"))
}

/// Start a standby; it has begun to follow.
pub(crate) fn follow(launch: Launch) -> Server {
    let launch = launch.arg("--http").arg("127.0.0.1:0");
    let mut server = launch.spawn_until_it_says("the copy is");
    assert!(server.is_running(), "it ended: {}", server.stderr());
    server
}

/// Output of `bsd-ctl` with these words, in JSON, and its exit code.
pub(crate) fn ctl(server: &Server, words: &[&str]) -> (Option<i32>, Value) {
    let mut command = crate::ctl::command(&server.address().to_string());
    command.env("BSD_CTL_HTTP", crate::http::address(server).to_string());
    let output = command.args(words).arg("--json").output().unwrap();
    let said = serde_json::from_slice(&output.stdout);
    let said = said.unwrap_or_else(|error| panic!("{words:?}: {error}: {output:?}"));
    (output.status.code(), said)
}

fn text(answer: &crate::http::Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

pub(crate) fn jobs_of_standby(server: &Server) -> u64 {
    let (_, said) = ctl(server, &["standby"]);
    said["jobs"].as_u64().unwrap()
}

#[test]
fn a_standby_follows_serves_no_one_and_takes_over_when_told_to() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let url = format!("file://{}", at("archive").display());
    fs::create_dir(at("archive")).unwrap();
    let old = server(&at("old"), &url);
    let mut client = old.connect();
    for number in 0..100 {
        client.put(format!("job {number}").as_bytes());
    }
    wait_until("there is a base", || restored(&url, &at("tried")).is_some());
    let copy = standby(&at("new"), &url);
    wait_until("all is copied", || jobs_of_standby(&copy) == 100);
    TcpStream::connect(copy.address()).expect_err("a standby listens");
    let http = crate::http::address(&copy);
    let ready = crate::http::send(http, "GET /readyz", &[], b"");
    assert_eq!(ready.status, 503);
    assert!(text(&ready).contains("standby"), "{ready:?}");
    let metrics = crate::http::send(http, "GET /metrics", &[], b"");
    let metrics = text(&metrics);
    assert!(metrics.contains("\nbsd_standby_jobs 100\n"), "{metrics}");

    // It goes on where it was.
    copy.kill();
    for number in 100..150 {
        client.put(format!("job {number}").as_bytes());
    }
    let copy = standby(&at("new"), &url);
    assert!(copy.stderr().contains("opened again"), "{}", copy.stderr());
    wait_until("all is copied", || jobs_of_standby(&copy) == 150);

    old.kill();
    let (code, said) = ctl(&copy, &["promote"]);
    assert_eq!(
        (code, &said["serves"]),
        (Some(0), &Value::Bool(true)),
        "{said}"
    );
    let new = copy.serving();
    let mut client = new.connect();
    assert!(client.ask("stats").contains("current-jobs-ready: 150"));
    assert!(client.put(b"after") > 1 << 32, "no id is given out twice");
    wait_until("its claim is noted", || at("new").join("archived").exists());
    new.kill();
    let launch = Launch::bsd().dir(&at("new")).arg("--follow").arg(&url);
    let new = launch.arg("--archive-interval").arg("20").start();
    assert!(
        new.stderr().contains("has taken over before"),
        "{}",
        new.stderr()
    );
    assert!(
        new.connect()
            .ask("stats")
            .contains("current-jobs-ready: 151")
    );

    // The old server comes back.
    let launch = Launch::bsd().dir(&at("old")).arg("--archive").arg(&url);
    let exit = launch.spawn().wait();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    assert!(exit.stderr.contains("has taken over"), "{exit:?}");
    assert_eq!(new.stop().code, Some(0));
    assert_eq!(restored(&url, &at("seen")), Some(151));
}

/// One server after the other, each with a base of its own: `count` histories in the archive.
fn write_histories(count: usize, place: &Path, url: &str) {
    for number in 1..=count {
        let dir = place.join(format!("data-{number}"));
        if number > 1 {
            wal_ok(&["archive", "restore", url, dir.to_str().unwrap()]);
            // It does not know where it stands in the chain: it needs a base.
            fs::remove_file(dir.join("archived")).unwrap();
        }
        let server = server(&dir, url);
        server.connect().put(b"one more");
        wait_until("there is a base", || {
            let (_, said) = wal(&["archive", "ls", url]);
            said.matches("  can be restored: ").count() == number
        });
        assert_eq!(server.stop().code, Some(0));
    }
}

#[test]
fn an_archive_that_has_expired_up_to_a_base_gives_back_what_came_after_it() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let url = format!("file://{}", at("archive").display());
    fs::create_dir(at("archive")).unwrap();
    write_histories(3, place.path(), &url);
    let objects = || {
        let dir = fs::read_dir(at("archive")).unwrap();
        let log = dir.map(|entry| entry.unwrap().path());
        let log = log
            .into_iter()
            .find(|path| path.is_dir() && !path.ends_with("logs"))
            .unwrap();
        fs::read_dir(log.join("chain")).unwrap().count()
    };
    let before = objects();
    let expire = |more: &[&str]| {
        let all = ["archive", "expire", "--keep", "0s", "--bases", "1", &url];
        wal_ok(&[&all, more].concat())
    };
    let said = expire(&["--dry-run"]);
    assert!(said.contains("would remove 2 bases"), "{said}");
    assert_eq!(objects(), before);
    let said: Value = serde_json::from_str(&expire(&["--json"])).unwrap();
    assert_eq!(said["bases"], 2, "{said}");
    assert!(objects() < before);
    assert!(expire(&[]).contains("nothing is to be removed"));
    let said = wal_ok(&["archive", "verify", &url]);
    assert!(said.contains("every object is as it was put"), "{said}");
    assert_eq!(restored(&url, &at("seen")), Some(3));
    let (code, said) = wal(&["archive", "expire", &url]);
    assert_eq!(code, Some(5), "what is to stay has to be said: {said}");
    // The server of the last directory goes on with the archive.
    let server = server(&at("data-3"), &url);
    server.connect().put(b"after");
    assert_eq!(server.stop().code, Some(0));
    assert_eq!(restored(&url, &at("again")), Some(4));
}

/// As an operator asks what a job was, and when, without a directory of its own for that.
#[test]
fn dump_history_and_info_read_an_archive_as_it_was_at_a_moment() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let url = format!("file://{}", at("archive").display());
    fs::create_dir(at("archive")).unwrap();
    fs::create_dir(at("tmp")).unwrap();
    let first = server(&at("data"), &url);
    let mut client = first.connect();
    client.put(b"deleted later");
    client.put(b"stays");
    wait_until("both are archived", || {
        let tried = at("tried");
        let found = restored(&url, &tried);
        let _ = fs::remove_dir_all(&tried);
        found == Some(2)
    });
    let listed = |what: &str| {
        let said: Value =
            serde_json::from_str(&wal_ok(&["archive", "ls", "--json", &url])).unwrap();
        said["logs"][0]["spans"][0][what]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let before = listed("to");
    assert_eq!(client.ask("delete 1"), "DELETED");
    assert_eq!(first.stop().code, Some(0));

    // What is said beside the output is not looked at, but for the exit code.
    let read = |args: &[&str]| {
        let mut command = Command::new(bsd_wal());
        let output = command
            .env("TMPDIR", at("tmp"))
            .args(args)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let dump = |more: &[&str]| read(&[&["dump", &url], more].concat());
    let (code, jobs, said) = dump(&["--until", &before]);
    assert_eq!((code, jobs.lines().count()), (Some(0), 2), "{said}");
    assert!(said.contains("the log as it was at"), "{said}");
    let (code, jobs, _) = dump(&[]);
    assert_eq!((code, jobs.lines().count()), (Some(0), 1));
    assert!(jobs.contains("stays"), "{jobs}");
    let (code, _, said) = dump(&["--job", "1"]);
    assert_eq!(code, Some(2), "{said}");
    let hint = format!("`bsd-wal history {url} 1`");
    assert!(said.contains(&hint), "{said}");
    let (code, life, said) = read(&["history", &url, "1"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(life.contains("deleted"), "{life}");
    let (code, life, _) = read(&["history", &url, "1", "--until", &before]);
    assert_eq!(code, Some(0));
    assert!(!life.contains("deleted ("), "{life}");
    let (code, info, said) = read(&["info", &url, "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["dir"], *url);

    // What cannot be meant is refused, and says what can.
    for (args, why) in [
        (&["dump", &url, "--live"][..], "--live"),
        (&["dump", &url, "--until", "99:1"], "ends at"),
        (&["verify", &url], "archive verify"),
        (&["repair", &url, "--output", "new"], "archive restore"),
        (
            &["info", "data", "--until", "1:1"],
            "--until is for archives",
        ),
    ] {
        let (code, output, said) = read(args);
        assert_eq!((code, &*output), (Some(2), ""), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    assert_eq!(
        fs::read_dir(at("tmp")).unwrap().count(),
        0,
        "nothing is left"
    );
}

/// Output of `ls` and `verify` in JSON, and their exit code.
fn looked(command: &str, url: &str) -> (Option<i32>, Value) {
    let output = Command::new(bsd_wal())
        .args(["archive", command, "--json", url])
        .output()
        .unwrap();
    let said = serde_json::from_slice(&output.stdout);
    let said = said.unwrap_or_else(|error| panic!("{command}: {error}: {output:?}"));
    (output.status.code(), said)
}

/// The files of the only log of an archive that are below this directory of it, by name.
fn objects(archive: &Path, below: &str) -> Vec<PathBuf> {
    let dirs = fs::read_dir(archive)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let log = dirs
        .into_iter()
        .find(|path| path.is_dir() && !path.ends_with("logs"));
    let entries = fs::read_dir(log.unwrap().join(below)).unwrap();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// Remove the last links, until the archive lacks its end for this reason.
fn cut_until_it_lacks_its_end(archive: &Path, url: &str, why: &str) {
    let number = |path: &Path| -> u64 {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.parse().unwrap()
    };
    loop {
        let lost = looked("ls", url).1["logs"][0]["lost"].clone();
        let mut lost = lost.as_array().unwrap().iter();
        if lost.any(|it| it["until"].is_null() && it["why"] == why) {
            return;
        }
        let links = objects(archive, "chain");
        assert!(links.len() > 1, "no link is left");
        let last = links.last().unwrap();
        let bases = objects(archive, "bases").into_iter();
        for base in bases.filter(|base| number(base) == number(last)) {
            fs::remove_file(base).unwrap();
        }
        fs::remove_file(last).unwrap();
    }
}

/// The archive at `url` lacks its end: every command that reads it says so in `words`, and by its exit
/// code.
fn assert_its_end_is_missed(url: &str, words: &str) {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let restore = |to: &str, more: &[&str]| {
        let dir = at(to);
        let args = ["archive", "restore", url, dir.to_str().unwrap()];
        let (code, said) = wal(&[more, &args].concat());
        assert!((1..11).contains(&jobs(&dir)), "{said}");
        (code, said)
    };
    let (code, said) = restore("new", &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(words), "{said}");
    assert_eq!(restore("quiet", &["-q"]), (Some(1), String::new()));
    for command in [
        &["info", url][..],
        &["info", url, "--json"],
        &["dump", url],
        &["dump", url, "--records"],
        &["history", url, "1"],
    ] {
        let (code, said) = wal(command);
        assert_eq!(code, Some(1), "{command:?}: {said}");
        assert!(said.contains(words), "{command:?}: {said}");
        let quiet = wal(&[&["-q"], command].concat());
        assert_eq!(quiet, (Some(1), String::new()), "{command:?}");
    }
    let (code, said) = wal(&["dump", url, "--job", "99"]);
    assert_eq!(code, Some(2), "{said}");
    for command in ["ls", "verify"] {
        let (code, said) = looked(command, url);
        let found = (code, &said["is_whole"]);
        assert_eq!(found, (Some(1), &false.into()), "{command}: {said}");
    }

    // A moment before that is all there.
    let (_, listed) = looked("ls", url);
    let until = format!("link:{}", listed["logs"][0]["spans"][0]["link"]);
    let dir = at("before");
    let args = ["archive", "restore", "--until", &until, url];
    let said = wal_ok(&[&args[..], &[dir.to_str().unwrap()]].concat());
    assert!(!said.contains(words), "{said}");
    assert_eq!(jobs(&dir), jobs(&at("new")));
    let said = wal_ok(&["info", url, "--until", &until]);
    assert!(!said.contains(words), "{said}");
}

#[test]
fn an_archive_with_a_gap_at_its_end_is_restored_and_the_exit_code_says_that_it_lacks_it() {
    let place = TempDir::new().unwrap();
    let (store, site, mut wire) = hardly_held(place.path());
    let is_restored = || {
        let to = place.path().join("tried");
        let found = restored(&store.url(), &to);
        let _ = fs::remove_dir_all(&to);
        found
    };
    wait_until("it is archived", || is_restored() == Some(1));
    store.go();
    for _ in 0..10 {
        wire.put(&[b'x'; 60_000]);
    }
    wait_until("the gap is seen", || {
        metric(&site, "bsd_archive_in_gap") == 1.0
    });
    store.come_back();
    // Of a live server nothing is missing, once the base after the gap is there.
    wait_until("there is a base again", || is_restored() == Some(11));
    drop(site);
    let archive = place.path().join("store");
    let why = "the server could not archive it";
    cut_until_it_lacks_its_end(&archive, &store.url(), why);
    assert_its_end_is_missed(&store.url(), "the archive has a gap after");
}

#[test]
fn an_archive_that_another_server_has_begun_to_write_is_restored_with_an_exit_code_that_says_so() {
    let place = TempDir::new().unwrap();
    let archive = place.path().join("archive");
    let url = format!("file://{}", archive.display());
    fs::create_dir(&archive).unwrap();
    write_histories(2, place.path(), &url);
    let why = "a server with another history has begun";
    cut_until_it_lacks_its_end(&archive, &url, why);
    let words = "a server with another history had the archive from";
    assert_its_end_is_missed(&url, words);
}

#[test]
fn g22_g25_t25_what_is_told_of_an_archive_is_true_and_what_cannot_be_meant_is_refused() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let url = format!("file://{}", at("archive").display());
    fs::create_dir(at("archive")).unwrap();
    write_histories(2, place.path(), &url);
    for (command, is_read) in [("ls", false), ("verify", true)] {
        let (code, said) = looked(command, &url);
        assert_eq!((code, &said["is_whole"]), (Some(0), &true.into()), "{said}");
        assert_eq!(said["every_byte_read"], is_read, "{said}");
    }
    let (_, said) = looked("ls", &url);
    let spans = &said["logs"][0]["spans"];
    let until = |until: &str| {
        let dir = at("until");
        let _ = fs::remove_dir_all(&dir);
        let to = dir.to_str().unwrap();
        wal(&["archive", "restore", "--until", until, &url, to])
    };
    for (span, jobs_then) in [(0, 1), (1, 2)] {
        let (code, said) = until(&format!("link:{}", spans[span]["link"]));
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(jobs(&at("until")), jobs_then);
    }
    for (moment, code, words) in [
        ("2500-01-01T00:00:00Z", 2, "in the future"),
        ("2026-11-26T00:00:00+24:00", 5, "is no time"),
        ("99:99999999", 2, "before 99:99999999"),
        ("link:99999", 2, "there is no link 99999"),
        ("link:0", 5, "a link has a number"),
    ] {
        let (found, said) = until(moment);
        assert_eq!(found, Some(code), "{moment}: {said}");
        assert!(said.contains(words), "{moment}: {said}");
        assert!(!at("until").exists());
    }

    // A part of the newest base, which no other one uses.
    let since = |path: &PathBuf| -> u64 {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.split('-').nth(5).unwrap().parse().unwrap()
    };
    let parts = objects(&at("archive"), "parts");
    let newest = parts.iter().max_by_key(|path| since(path)).unwrap();
    let sound = fs::read(newest).unwrap();
    let mut spoiled = sound.clone();
    spoiled[sound.len() / 2] ^= 1;
    fs::write(newest, spoiled).unwrap();
    let (code, said) = wal(&["archive", "expire", "--keep", "30", &url]);
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("30 has no unit"), "{said}");
    let expire = ["archive", "expire", "--keep", "0s", "--bases", "1", &url];
    let (code, said) = wal(&expire);
    assert_eq!(code, Some(1), "a base was skipped: {said}");
    assert!(said.contains("a sound base stays in its place"), "{said}");
    let (code, said) = looked("verify", &url);
    assert_eq!(
        (code, &said["is_whole"]),
        (Some(1), &false.into()),
        "{said}"
    );
    fs::write(newest, sound).unwrap();
    assert_eq!(wal(&expire).0, Some(0));
    assert_eq!(looked("verify", &url).1["is_whole"], true);
    let last = objects(&at("archive"), "chain").pop().unwrap();
    fs::write(&last, "").unwrap();
    let (code, said) = looked("ls", &url);
    assert_eq!(
        (code, &said["is_whole"]),
        (Some(1), &false.into()),
        "{said}"
    );
}

#[test]
fn g25_the_waiting_for_a_promotion_ends_while_the_store_is_away() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    let store = crate::archive_seen::Away::new(place.path());
    let old = server(&at("old"), &store.url());
    old.connect().put(b"first");
    let copy = standby(&at("new"), &store.url());
    wait_until("all is copied", || jobs_of_standby(&copy) == 1);
    old.kill();
    store.go();
    let mut command = crate::ctl::command(&copy.address().to_string());
    command.env("BSD_CTL_HTTP", crate::http::address(&copy).to_string());
    let output = command
        .args(["promote", "--timeout", "3"])
        .output()
        .unwrap();
    let (code, said) = crate::ctl::said(&output);
    assert_eq!(code, crate::ctl::NOT_DONE, "{said}");
    assert!(said.contains("goes on trying"), "{said}");
    store.come_back();
    let (code, said) = ctl(&copy, &["promote"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        copy.serving()
            .connect()
            .ask("stats")
            .contains("current-jobs-ready: 1")
    );
}

#[test]
fn the_data_directory_is_not_the_place_of_its_own_archive() {
    let place = TempDir::new().unwrap();
    let (data, link) = (place.path().join("data"), place.path().join("link"));
    let launch = |at: &Path| {
        let url = format!("file://{}", at.display());
        Launch::bsd().dir(&data).args(["--archive", &url])
    };
    let refused = |at: &Path| {
        let exit = launch(at).run_to_exit();
        assert_eq!(exit.code, Some(1), "{exit:?}");
        assert!(exit.stderr.contains("is the data directory"), "{exit:?}");
    };
    refused(&data);
    assert!(!data.exists(), "nothing was made");
    fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(&data, &link).unwrap();
    refused(&link);
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
}

#[test]
fn a_wrong_directory_is_not_waited_for() {
    let place = TempDir::new().unwrap();
    let url = format!("file://{}/archiv", place.path().display());
    let to = place.path().join("to");
    for words in [
        &["archive", "ls", &url][..],
        &["archive", "verify", &url],
        &["archive", "restore", &url, to.to_str().unwrap()],
        &["archive", "compact", &url],
    ] {
        let (code, said) = wal(words);
        assert_eq!(code, Some(2), "{words:?}: {said}");
        assert!(said.contains("make it or mount it"), "{said}");
        assert!(!said.contains("waited for"), "{said}");
    }
}
