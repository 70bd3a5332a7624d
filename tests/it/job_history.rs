//! `/api/v1/jobs/{id}/history`, and its page: what it tells is what happened, and what `bsd-wal`
//! tells; also of jobs that are gone, and while the log is compacted.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::api::Description;
use crate::console::Page;
use crate::harness::{Launch, wait_until, wal};
use crate::http::Site;

use crate::wire::{Wire, put_command};

/// The history of a job, when the log has been read for it.
fn history(site: &Site, id: u64) -> Value {
    let described = Description::of(site);
    let path = format!("/api/v1/jobs/{id}/history");
    let mut told = Value::Null;
    wait_until("the log was read", || {
        let answer = site.get(&path);
        let status = answer.status;
        assert!([200, 202].contains(&status), "{answer:?}");
        told = described.check(&answer, "get", &path, status);
        status == 200
    });
    assert_eq!(told["state"], "done");
    told
}

/// History of a job by `bsd-wal`, in a log that is in use: a line for each record.
fn told_by_wal(dir: &Path, id: u64) -> Vec<Value> {
    let id = id.to_string();
    let dir = dir.to_str().unwrap();
    let (_, said) = wal(&["history", dir, &id, "--live", "--json"]);
    let lines = said.lines().filter(|line| line.starts_with('{'));
    let lines = lines.map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line: &Value| line["end"].is_null()).collect()
}

/// Job 1 is put, times out, is released, buried and kicked; job 2 is deleted.
fn live_two_lives(wire: &mut Wire) {
    wire.ask("use t");
    wire.ask("watch t");
    wire.send(put_command(7, 0, b"body"));
    assert_eq!(wire.text(), "INSERTED 1");
    assert_eq!(wire.reserve(), 1);
    assert_eq!(wire.ask("release 1 9 0"), "RELEASED");
    assert_eq!(wire.reserve(), 1);
    assert_eq!(wire.ask("bury 1 9"), "BURIED");
    wire.send(put_command(1, 0, b"other"));
    assert_eq!(wire.text(), "INSERTED 2");
    assert_eq!(wire.ask("kick-job 1"), "KICKED");
    assert_eq!(wire.ask("delete 2"), "DELETED");
}

#[test]
fn what_has_happened_to_a_job_is_told_as_it_happened_and_as_bsd_wal_tells_it() {
    let dir = tempfile::TempDir::new().unwrap();
    let dir = dir.path().join("log");
    let site = Site::start(Launch::bsd().dir(&dir));
    live_two_lives(&mut site.server.connect());
    let told = history(&site, 1);
    let events = told["events"].as_array().unwrap();
    let words: Vec<_> = events.iter().map(|event| &event["what"]).collect();
    assert_eq!(
        words,
        [
            "put in t, 4 bytes, pri 7, delay 0, ttr 100000",
            "reserved, released; now ready, pri 9",
            "reserved, buried; now buried",
            "kicked; now ready",
        ]
    );
    assert_eq!(
        (&told["now"], &told["left_out"]),
        (&"ready".into(), &0.into())
    );
    assert_eq!(
        events[0]["after"], events[0]["before"],
        "the time of a put is known"
    );
    assert_eq!(events[2]["job"]["state"], "buried");
    assert_eq!(events[3]["job"]["kicks"], 1);
    let gone = history(&site, 2);
    assert_eq!(gone["now"], "gone");
    assert_eq!(gone["events"][1]["event"], "deleted");
    for (id, told) in [(1, &told), (2, &gone)] {
        let events = told["events"].as_array().unwrap();
        let by_wal = told_by_wal(&dir, id);
        assert_eq!(by_wal.len(), events.len());
        for (event, line) in events.iter().zip(&by_wal) {
            for name in ["event", "file", "offset", "size", "salvaged"] {
                assert_eq!(event[name], line[name], "{name}");
            }
            assert_eq!(event["what"], line["words"]);
        }
    }
    for (path, status) in [
        ("/api/v1/jobs/99/history", 404),
        ("/api/v1/jobs/x/history", 400),
        ("/api/v1/jobs/1/history?x=1", 400),
    ] {
        assert_eq!(site.get(path).status, status, "{path}");
    }
    let cancel = site.change("delete", "/api/v1/jobs/1/history", &Value::Null);
    assert_eq!(cancel.status, 404, "nothing is being read");
}

/// The page with the history of a job, when the log has been read for it.
fn page(site: &Site, id: u64) -> Page {
    let path = format!("/jobs/{id}/history");
    let mut page = Page::shown(site, &path);
    wait_until("the log was read", || {
        let is_read = !page.text.contains("id=\"stage\"");
        if !is_read {
            page = Page::shown(site, &path);
        }
        is_read
    });
    page
}

#[test]
fn a_page_tells_the_life_of_a_job_that_is_there_or_gone() {
    let dir = tempfile::TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(&dir.path().join("log")));
    live_two_lives(&mut site.server.connect());
    let job = Page::shown(&site, "/jobs/1");
    assert!(
        job.text.contains("href=\"/jobs/1/history\""),
        "{}",
        job.text
    );
    let told = page(&site, 1);
    for wanted in ["is ready now.", "reserved, buried; now buried", "between "] {
        assert!(told.text.contains(wanted), "{wanted}: {}", told.text);
    }
    assert_eq!(told.text.matches("<li class=\"changed\">").count(), 3);
    let gone = Page::of(&site, "/jobs/2");
    assert_eq!(gone.answer.status, 404);
    assert!(
        gone.text.contains("href=\"/jobs/2/history\""),
        "{}",
        gone.text
    );
    let told = page(&site, 2);
    assert!(told.text.contains("Job 2 was deleted."), "{}", told.text);
    assert!(
        told.text.contains("<li class=\"deleted\">"),
        "{}",
        told.text
    );
}

#[test]
fn without_a_log_jobs_have_no_history() {
    let site = Site::start(Launch::bsd().memory());
    site.server.connect().put(b"x");
    let answer = site.get("/api/v1/jobs/1/history");
    assert_eq!(answer.status, 404);
    assert!(answer.json()["detail"].to_string().contains("keeps no log"));
    assert!(!Page::shown(&site, "/jobs/1").text.contains("/history"));
}

/// Files come and go while they are read: what is told is whole, or that it cannot be told.
#[test]
fn a_history_is_whole_while_the_log_is_compacted() {
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(&dir.path().join("log"));
    let site = Site::start(launch.arg("-s").arg("65536"));
    let mut wire = site.server.connect();
    wire.ask("use pinned");
    assert_eq!(wire.put(b"pinned"), 1);
    assert_eq!(wire.ask("kick-job 1"), "NOT_FOUND");
    let is_over = AtomicBool::new(false);
    let compactions = |site: &Site| {
        let server = site.get("/api/v1/server").json();
        server["log"]["compactions"].as_u64().unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut wire = site.server.connect();
            wire.ask("use churn");
            while !is_over.load(Ordering::Relaxed) {
                let id = wire.put(&[b'x'; 20_000]);
                wire.ask(&format!("delete {id}"));
            }
        });
        let mut told = 0;
        wait_until("the log was compacted and read", || {
            let answer = site.get("/api/v1/jobs/1/history");
            match answer.status {
                200 => {
                    let read = answer.json();
                    assert_eq!(read["events"][0]["event"], "put", "{read}");
                    assert_eq!(read["damage"], Value::Array(Vec::new()), "{read}");
                    told += 1;
                }
                status => assert!([202, 503].contains(&status), "{answer:?}"),
            }
            told >= 20 && compactions(&site) >= 3
        });
        is_over.store(true, Ordering::Relaxed);
    });
}
