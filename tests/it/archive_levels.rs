//! Links of an archive become few objects, by the server and by `bsd-wal archive compact`, and nothing
//! that can be restored changes.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::archive_seen::metric;
use crate::harness::{Launch, wait_until, wal};
use crate::http::Site;

/// Objects below a directory of the only log.
fn objects(archive: &Path, dir: &str) -> usize {
    let logs = fs::read_dir(archive).unwrap();
    let dirs = logs.map(|log| log.unwrap().path().join(dir));
    dirs.filter_map(|dir| Some(fs::read_dir(dir).ok()?.count()))
        .sum()
}

fn json(args: &[&str]) -> Value {
    let (code, said) = wal(&[args, &["--json"]].concat());
    assert_eq!(code, Some(0), "{said}");
    serde_json::from_str(&said).unwrap()
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
    let ls = json(&["archive", "ls", &url]);
    // By hand.
    let done = json(&["archive", "compact", &url, "--fine", "0s"]);
    assert!(
        done["links"].as_u64() >= Some(60) && done["removed"].as_u64() >= Some(60),
        "{done}"
    );
    assert_eq!(done["damages"], Value::Array(Vec::new()));
    assert!(objects(&archive, "joined") > 0 && objects(&archive, "chain") <= links - 60);
    assert_eq!(json(&["archive", "ls", &url]), ls);
    let verified = json(&["archive", "verify", &url]);
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
    assert!(metric(&site, "bsd_archive_last_join_timestamp_seconds") > 0.0);
    assert_eq!(site.server.stop().code, Some(0));
    let verified = json(&["archive", "verify", &url]);
    assert_eq!(verified["is_whole"], true, "{verified}");
    let restored = dir.path().join("restored");
    let restored = restored.to_str().unwrap();
    let facts = json(&["archive", "restore", &url, restored]);
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
    json(&[
        "archive",
        "restore",
        &url,
        before.to_str().unwrap(),
        "--until",
        &link,
    ]);
}
