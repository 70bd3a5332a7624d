//! Links of an archive become few objects, by the server and by `bsd-wal archive compact`, and nothing
//! that can be restored changes.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::archive_seen::{metric, of_api, page, told};
use crate::ctl;
use crate::harness::{Launch, wait_until, wal};
use crate::http::Site;

/// Objects below a directory of the only log.
fn objects(archive: &Path, dir: &str) -> usize {
    let logs = fs::read_dir(archive).unwrap();
    let dirs = logs.map(|log| log.unwrap().path().join(dir));
    dirs.filter_map(|dir| Some(fs::read_dir(dir).ok()?.count()))
        .sum()
}

fn read(args: &[&str]) -> Value {
    let (code, said) = wal(&[args, &["--json"]].concat());
    assert_eq!(code, Some(0), "{said}");
    serde_json::from_str(&said).unwrap()
}

/// Waits until every surface has the same numbers, and at least `objects_min` joined objects are made.
fn assert_joins_are_told_of(site: &Site, objects_min: u64) {
    let number = |name: &str| metric(site, name) as u64;
    let numbers = || {
        [
            "bsd_archive_joined_links",
            "bsd_archive_single_links",
            "bsd_archive_joined_total",
        ]
        .map(number)
    };
    let last_pass = || number("bsd_archive_last_join_timestamp_seconds");
    wait_until("nothing is joined between two looks", || {
        let (before, first) = (numbers(), last_pass());
        let joins = of_api(site)["joins"].clone();
        let (page, (code, said)) = (page(site), told(site));
        if numbers() != before {
            return false;
        }
        let [joined, singles, objects] = before;
        assert!(
            first > 1_700_000_000 && objects >= objects_min,
            "{before:?}"
        );
        assert!(joined >= 60 && singles >= 2, "{before:?}");
        // There is a pass each second.
        let last = joins["last_pass_timestamp_seconds"].as_u64().unwrap();
        assert!((first..=last_pass()).contains(&last), "{joins}");
        let expected = json!({
            "last_pass_timestamp_seconds": last,
            "joined_links": joined,
            "single_links": singles,
            "objects": objects,
            "failures": 0,
            "trouble": null,
        });
        assert_eq!(joins, expected);
        for text in ["Links that have aged", "In joined objects"] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert_eq!(code, ctl::OK, "{said}");
        let line = |name: &str| {
            let line = said.lines().find_map(|line| line.trim().strip_prefix(name));
            line.map(str::trim).map(str::to_owned)
        };
        assert_eq!(line("joined links"), Some(joined.to_string()), "{said}");
        assert_eq!(line("single links"), Some(singles.to_string()), "{said}");
        true
    });
}

#[test]
fn links_that_age_become_few_objects_and_every_moment_stays() {
    let dir = TempDir::new().unwrap();
    let archive = dir.path().join("archive");
    fs::create_dir(&archive).unwrap();
    let url = format!("file://{}", archive.display());
    let launch = || {
        let launch = Launch::bsd().dir(&dir.path().join("data"));
        launch.args(["--archive", &url, "--archive-interval", "1"])
    };
    let off = launch().args(["--archive-fine", "off"]);
    let site = Site::start(off);
    let mut wire = site.server.connect();
    wait_until("there are links", || {
        wire.put(b"body");
        metric(&site, "bsd_archive_links_total") > 100.0
    });
    assert_eq!(site.server.stop().code, Some(0));
    assert_eq!(objects(&archive, "joined"), 0);
    let links = objects(&archive, "chain");
    let ls = read(&["archive", "ls", &url]);
    // By hand.
    let done = read(&["archive", "compact", &url, "--fine", "0s"]);
    assert!(
        done["links"].as_u64() >= Some(60) && done["removed"].as_u64() >= Some(60),
        "{done}"
    );
    assert_eq!(done["damages"], Value::Array(Vec::new()));
    assert!(objects(&archive, "joined") > 0 && objects(&archive, "chain") <= links - 60);
    assert_eq!(read(&["archive", "ls", &url]), ls);
    let verified = read(&["archive", "verify", &url]);
    assert_eq!(verified["logs"], ls["logs"]);
    let (code, said) = wal(&["archive", "compact", &url, "--fine", "0s"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nothing is to be joined"), "{said}");
    // By the server.
    let site = Site::start(launch().args(["--archive-fine", "1s"]));
    let mut wire = site.server.connect();
    wait_until("the server has joined links", || {
        wire.put(b"body");
        metric(&site, "bsd_archive_joined_total") >= 1.0
    });
    assert_eq!(metric(&site, "bsd_archive_join_failures_total"), 0.0);
    assert_joins_are_told_of(&site, 1);
    assert_eq!(site.server.stop().code, Some(0));
    let verified = read(&["archive", "verify", &url]);
    assert_eq!(verified["is_whole"], true, "{verified}");
    let restored = dir.path().join("restored");
    let restored = restored.to_str().unwrap();
    let facts = read(&["archive", "restore", &url, restored]);
    let data = dir.path().join("data");
    let own = wal(&["dump", data.to_str().unwrap()]);
    assert_eq!(own, wal(&["dump", restored]), "{facts}");
    assert_eq!(
        own.1.lines().count() as u64,
        facts["jobs"].as_u64().unwrap()
    );
    // A link in a joined object.
    let before = dir.path().join("before");
    let link = format!("link:{}", links / 2);
    read(&[
        "archive",
        "restore",
        &url,
        before.to_str().unwrap(),
        "--until",
        &link,
    ]);
}

#[test]
fn damage_that_is_found_when_links_are_joined_is_told_of_and_the_archive_is_written() {
    let dir = TempDir::new().unwrap();
    let archive = dir.path().join("archive");
    fs::create_dir(&archive).unwrap();
    let url = format!("file://{}", archive.display());
    let launch = |fine| {
        let launch = Launch::bsd().dir(&dir.path().join("data"));
        launch.args([
            "--archive",
            &url,
            "--archive-interval",
            "1",
            "--archive-fine",
            fine,
        ])
    };
    let site = Site::start(launch("off"));
    let mut wire = site.server.connect();
    wait_until("there are links", || {
        wire.put(b"body");
        metric(&site, "bsd_archive_links_total") > 100.0
    });
    // It joins none.
    assert_eq!(of_api(&site)["joins"], Value::Null);
    assert!(page(&site).contains("Its links are not joined here."));
    assert!(!told(&site).1.contains("joined"));
    assert_eq!(site.server.stop().code, Some(0));
    let log = fs::read_dir(&archive).unwrap().map(|it| it.unwrap().path());
    let chain = log.map(|log| log.join("chain")).find(|it| it.is_dir());
    let name = format!("{:020}", 30);
    let link = chain.unwrap().join(&name);
    let mut bytes = fs::read(&link).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&link, bytes).unwrap();
    let site = Site::start(launch("1s"));
    let mut wire = site.server.connect();
    wait_until("a pass has found it", || {
        wire.put(b"body");
        metric(&site, "bsd_archive_join_failures_total") >= 1.0
    });
    assert_eq!(metric(&site, "bsd_archive_up"), 1.0);
    let joins = of_api(&site)["joins"].clone();
    let trouble = joins["trouble"].as_str().unwrap();
    assert!(trouble.contains(&name), "{joins}");
    assert!(joins["failures"].as_u64() >= Some(1), "{joins}");
    assert!(page(&site).contains(&name));
    let (code, said) = told(&site);
    assert!(code == ctl::OK && said.contains(&name), "{said}");
}
