//! A running server makes a base of its archive when it is asked to, with a name and a pin: an expiry
//! leaves it, and its state is restored exactly.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::archive::follow;
use crate::archive_seen::metric;
use crate::harness::{Launch, Server, wait_until, wal};
use crate::http::Site;
use crate::s3::{Mood, SmallS3, client_of};

/// Output of `bsd-ctl` with these words.
fn ctl(server: &Server, words: &[&str]) -> (Option<i32>, String) {
    let mut command = crate::ctl::command(&server.address().to_string());
    command.env("BSD_CTL_HTTP", crate::http::address(server).to_string());
    let Output {
        status,
        stdout,
        stderr,
    } = command.args(words).output().unwrap();
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8(said).unwrap())
}

fn json_of(said: &str) -> Value {
    serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn wal_json(args: &[&str]) -> Value {
    let (code, said) = wal(&[args, &["--json"]].concat());
    assert_eq!(code, Some(0), "{args:?}: {said}");
    json_of(&said)
}

/// Exit code 2, with this in what is said.
fn refused(args: &[&str], why: &str) -> String {
    let (code, said) = wal(args);
    assert_eq!(code, Some(2), "{args:?}: {said}");
    assert!(said.contains(why), "{args:?}: {said}");
    said
}

/// Restores into a new directory, and counts the jobs.
fn jobs(url: &str, dir: &Path, words: &[&str]) -> u64 {
    let dir = dir.to_str().unwrap();
    let facts = wal_json(&[&["archive", "restore", url, dir], words].concat());
    facts["jobs"].as_u64().unwrap()
}

#[test]
fn a_base_with_a_name_and_a_pin_is_made_stays_and_is_restored_exactly() {
    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("archive")).unwrap();
    let url = &*format!("file://{}", at("archive").display());
    let launch = Launch::bsd().dir(&at("data")).args(["--archive", url]);
    let site = Site::start(launch.args(["--archive-interval", "3600000"]));
    let mut wire = site.server.connect();
    for number in 0..50 {
        wire.put(format!("job {number}").as_bytes());
    }
    // The writer sleeps for an hour between two links, and is woken.
    let asked = ["--json", "archive", "base", "--name", "before", "--pin"];
    let (code, said) = ctl(&site.server, &asked);
    assert_eq!(code, Some(0), "{said}");
    let before = json_of(&said);
    assert_eq!(
        (&before["state"], &before["name"], &before["pin"]),
        (&json!("made"), &json!("before"), &json!(true))
    );
    let base = before["base"].to_string();
    let position = before["position"].as_str().unwrap();
    assert!(before["bytes"].as_u64() > Some(1000), "{before}");
    assert_eq!(site.get("/api/v1/archive/base").json(), before);
    for number in 50..80 {
        wire.put(format!("job {number}").as_bytes());
    }
    let (code, said) = ctl(&site.server, &["archive", "base"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("reused") && said.contains("position"),
        "{said}"
    );
    let (code, said) = ctl(&site.server, &["archive", "base", "--name", "before"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("a base has the name before already"),
        "{said}"
    );
    assert_eq!(metric(&site, "bsd_archive_bases_total"), 3.0);
    for number in 80..100 {
        wire.put(format!("job {number}").as_bytes());
    }
    let exit = site.server.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let audit = "POST /api/v1/archive/base: 202: the base before, pinned, is asked for";
    assert!(exit.stderr.contains(audit), "{}", exit.stderr);

    let ls = wal_json(&["archive", "ls", url]);
    let log = &ls["logs"][0];
    assert_eq!(
        log["names"],
        json!([{"name": "before", "base": before["base"]}])
    );
    assert_eq!(log["pins"], json!([before["base"]]));
    assert_eq!(log["apart"], json!([]));
    let named = ["--base", "before"];
    assert_eq!(jobs(url, &at("named"), &named), 50);

    let args = ["archive", "expire", url, "--keep", "0s", "--bases", "1"];
    let would = wal_json(&[&args[..], &["--dry-run"]].concat());
    let done = wal_json(&args);
    assert_eq!(would["apart"], done["apart"]);
    assert_eq!(done["apart"][0]["base"], before["base"]);
    let (code, said) = wal(&["archive", "ls", url]);
    assert_eq!(code, Some(0), "{said}");
    let line = format!("alone, position {position}, base {base}, named before, pinned");
    assert!(said.contains(&line), "{said}");
    let verified = wal_json(&["archive", "verify", url]);
    assert_eq!(verified["is_whole"], true, "{verified}");
    assert_eq!(verified["logs"], wal_json(&["archive", "ls", url])["logs"]);
    let time = verified["logs"][0]["apart"][0]["time"].as_str().unwrap();
    let numbered = format!("base:{base}");
    for (nth, words) in [
        &named[..],
        &["--base", &base],
        &["--until", &numbered],
        &["--until", position],
        &["--until", time],
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(jobs(url, &at(&format!("r{nth}")), words), 50, "{words:?}");
    }
    assert_eq!(jobs(url, &at("end"), &[]), 100);
    let (code, said) = wal(&["dump", url, "--until", &numbered]);
    assert_eq!(code, Some(0), "{said}");
    let link = format!("link:{}", before["base"].as_u64().unwrap() + 1);
    let to = at("refused");
    let until = [
        "archive",
        "restore",
        url,
        to.to_str().unwrap(),
        "--until",
        &link,
    ];
    let said = refused(&until, "does not go back so far");
    assert!(said.contains(&numbered), "{said}");

    let id = log["log"].as_str().unwrap();
    refused(&["archive", "forget", url, id, "--yes"], "1 pinned base");
    refused(
        &["archive", "unpin", url, "after"],
        "no base has the name after",
    );
    let (code, said) = wal(&["archive", "unpin", url, "before"]);
    assert_eq!(code, Some(0), "{said}");
    refused(&["archive", "unpin", url, "before"], "is not pinned");
    assert_eq!(wal_json(&args)["bases"], 1);
    let ls = wal_json(&["archive", "ls", url]);
    let log = &ls["logs"][0];
    assert_eq!((&log["apart"], &log["names"]), (&json!([]), &json!([])));
    let restore = ["archive", "restore", url, to.to_str().unwrap()];
    refused(&[&restore[..], &named].concat(), "no base has the name");
    refused(&[&restore[..], &["--base", &base]].concat(), "expired");
    assert_eq!(jobs(url, &at("end-again"), &[]), 100);
    let forget = ["archive", "forget", url, id];
    assert_eq!(wal_json(&forget)["removed"], false);
    let gone = wal_json(&[&forget[..], &["--yes"]].concat());
    assert_eq!((&gone["removed"], &gone["log"]), (&json!(true), &json!(id)));
}

#[test]
fn a_base_is_refused_where_no_archive_is_written_and_with_a_bad_name() {
    let site = Site::start(Launch::bsd().memory());
    let (code, said) = ctl(&site.server, &["archive", "base"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("keeps no archive"), "{said}");
    let answer = site.get("/api/v1/archive/base");
    assert_eq!(answer.status, 404);
    for name in ["UPPER", "a_b", ""] {
        let (code, said) = ctl(&site.server, &["archive", "base", "--name", name]);
        assert_eq!(code, Some(5), "{name}: {said}");
    }

    let place = TempDir::new().unwrap();
    let at = |name: &str| place.path().join(name);
    fs::create_dir(at("archive")).unwrap();
    let url = format!("file://{}", at("archive").display());
    let launch = |dir: &str| Launch::bsd().dir(&at(dir));
    let first = Site::start(launch("data").args(["--archive", &url]));
    for name in ["1", "x-", "9a"] {
        let body = json!({"name": name});
        let answer = first.change("POST", "/api/v1/archive/base", &body);
        assert_eq!(answer.status, 400, "{name}");
        let why = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(why.contains("begins with a letter"), "{why}");
    }
    let other = json!({"nome": "x"});
    let answer = first.change("POST", "/api/v1/archive/base", &other);
    assert_eq!(answer.status, 400);
    assert_eq!(
        first.get("/api/v1/archive/base").status,
        404,
        "none was asked for"
    );
    let (code, said) = ctl(&first.server, &["archive", "base"]);
    assert_eq!(code, Some(0), "{said}");
    let copy = follow(launch("copy").args(["--follow", &url]));
    let (code, said) = ctl(&copy, &["archive", "base"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("this is a standby"), "{said}");
}

#[test]
fn a_base_is_made_when_the_store_is_back_although_no_one_waits_for_it_any_more() {
    let place = TempDir::new().unwrap();
    let store = SmallS3::start(Mood::Well);
    let launch = Launch::bsd().dir(&place.path().join("data"));
    let site = Site::start(client_of(store.address, launch));
    wait_until("there is a base", || {
        metric(&site, "bsd_archive_bases_total") == 1.0
    });
    store.set(Mood::Fails);
    let asked = ["archive", "base", "--name", "late", "--at-most", "0"];
    let (code, said) = ctl(&site.server, &asked);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the server goes on with it"), "{said}");
    // One at a time.
    let (code, said) = ctl(&site.server, &["archive", "base"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("the base late was asked for before"),
        "{said}"
    );
    let answer = site.change("POST", "/api/v1/archive/base", &json!({}));
    assert_eq!(answer.status, 409);
    let last = || site.get("/api/v1/archive/base").json();
    assert_eq!(last()["base"], Value::Null);
    store.set(Mood::Well);
    wait_until("it is made", || last()["state"] == "made");
    assert_eq!(metric(&site, "bsd_archive_bases_total"), 2.0);
    let (code, said) = ctl(&site.server, &["archive", "base", "--no-wait"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("it is asked for"), "{said}");
    wait_until("the next one is made", || {
        metric(&site, "bsd_archive_bases_total") == 3.0
    });
    assert_eq!(site.server.stop().code, Some(0));
}
