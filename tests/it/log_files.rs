//! `/api/v1/log` and the page about durability: the files of the log, what is damaged in them, and the
//! job that holds the oldest of them.

use std::path::Path;

use serde_json::{Value, json};

use crate::api::Description;
use crate::console::Page;
use crate::harness::Launch;
use crate::http::Site;
use crate::wire::{Wire, inserted, put_command};

/// Bytes of a body of which a segment of 64 KiB holds one.
const BODY_SIZE: usize = 60_000;

fn start(dir: &Path) -> Site {
    let launch = Launch::bsd().dir(dir).arg("-s").arg("65536");
    Site::start(launch)
}

fn log(site: &Site) -> Value {
    let path = "/api/v1/log";
    Description::of(site).check(&site.get(path), "get", path, 200)
}

/// Put this many jobs, each into a segment of its own.
fn fill(wire: &mut Wire, count: usize) {
    for _ in 0..count {
        wire.send(put_command(5, 0, &[b'x'; BODY_SIZE]));
        inserted(&wire.text()).unwrap();
    }
}

#[test]
fn the_files_of_the_log_are_told_with_the_job_that_holds_the_oldest() {
    let dir = tempfile::TempDir::new().unwrap();
    let site = start(&dir.path().join("log"));
    let mut wire = site.server.connect();
    assert_eq!(log(&site)["oldest_job"], Value::Null);
    fill(&mut wire, 4);
    let told = log(&site);
    assert_eq!(
        (&told["sync"], &told["sync_interval_ms"]),
        (&json!("always"), &json!(null))
    );
    let files = told["files"].as_array().unwrap();
    assert!(files.len() >= 4, "{told}");
    assert_eq!(told["segments"], files.len());
    for file in files {
        let name = file["name"].as_str().unwrap();
        assert!(dir.path().join("log").join(name).is_file(), "{name}");
        let of = |name: &str| file[name].as_u64().unwrap();
        assert_eq!(of("size"), of("live_bytes") + of("dead_bytes"));
    }
    let open: Vec<_> = files
        .iter()
        .filter(|file| file["written_now"] == true)
        .collect();
    assert_eq!(open, [files.last().unwrap()]);
    for id in 1..4 {
        let told = log(&site);
        assert_eq!(told["oldest_job"]["id"], id);
        let first = &told["oldest_job"]["first_segment"];
        let files = told["files"].as_array().unwrap();
        assert!(
            files.iter().any(|file| file["first_segment"] == *first),
            "{told}"
        );
        let page = Page::shown(&site, "/durability").text;
        assert!(
            page.contains(&format!("<a href=\"/jobs/{id}\">job {id}</a>")),
            "{page}"
        );
        wire.ask(&format!("delete {id}"));
    }
    let memory = Site::start(Launch::bsd().memory());
    assert_eq!(memory.get("/api/v1/log").status, 404);
}

#[test]
fn the_last_thousand_files_are_told() {
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(&dir.path().join("log"));
    let site = Site::start(launch.arg("-s").arg("65536").arg("-F"));
    fill(&mut site.server.connect(), 1010);
    let told = log(&site);
    let files = told["files"].as_array().unwrap();
    assert_eq!(files.len(), 1000);
    assert_eq!(files.last().unwrap()["written_now"], true);
    let all = told["segments"].as_u64().unwrap();
    assert!(all >= 1010, "{all}");
    assert_eq!(told["files_left_out"], all - 1000);
    let page = Page::shown(&site, "/durability").text;
    assert_eq!(page.matches("<rect class=\"dead\"").count(), 1000);
    assert!(
        page.contains("its file is before those that are shown"),
        "{page}"
    );
}

#[test]
fn damage_that_was_met_is_told_with_its_place() {
    let dir = tempfile::TempDir::new().unwrap();
    let dir = dir.path().join("log");
    let site = start(&dir);
    fill(&mut site.server.connect(), 3);
    drop(site);
    // Nothing of it is in memory now.
    let site = start(&dir);
    let whole = log(&site);
    assert!(
        whole["files"]
            .as_array()
            .unwrap()
            .iter()
            .all(|it| it["damage"] == json!([]))
    );
    let name = whole["files"][0]["name"].as_str().unwrap();
    let path = dir.join(name);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|it| it == [b'x'; 9]).unwrap() + 1000;
    bytes[at] = b'y';
    std::fs::write(&path, bytes).unwrap();
    let job = site.get("/api/v1/jobs/1").json();
    assert!(job["body"].is_null() || job["status"] == 500, "{job}");
    let told = log(&site);
    let file = &told["files"][0];
    let place = &file["damage"][0];
    let (begin, end) = (
        place["begin"].as_u64().unwrap(),
        place["end"].as_u64().unwrap(),
    );
    assert!((begin..end).contains(&(at as u64)), "{at}: {told}");
    assert_eq!(file["damaged_bytes"], end - begin);
    let page = Page::shown(&site, "/durability").text;
    let wanted = format!("Damage in {name}: bytes {begin} to {end}.");
    assert!(page.contains(&wanted), "{page}");
}
