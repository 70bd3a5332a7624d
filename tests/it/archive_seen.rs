//! Reports about an archive while it is written: in the metrics, in `/readyz`, in the API, on the
//! page about durability, and by `bsd-ctl`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::api::Description;
use crate::ctl;
use crate::harness::{Launch, complaints, wait_until};
use crate::http::Site;
use crate::wire::Wire;

/// A store in a directory that can go away, and come back with what it had.
pub(crate) struct Away {
    place: PathBuf,
}

impl Away {
    /// It is there.
    pub(crate) fn new(place: &Path) -> Away {
        fs::create_dir(place.join("store")).unwrap();
        fs::write(place.join("no directory"), "").unwrap();
        let away = Away {
            place: place.to_owned(),
        };
        away.come_back();
        away
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.place.join("archive").display())
    }

    /// From now on every call fails.
    pub(crate) fn go(&self) {
        self.point_to("no directory");
    }

    pub(crate) fn come_back(&self) {
        self.point_to("store");
    }

    /// At no moment there is nothing of that name: a directory would be made.
    fn point_to(&self, what: &str) {
        let link = self.place.join("link");
        symlink(self.place.join(what), &link).unwrap();
        fs::rename(link, self.place.join("archive")).unwrap();
    }
}

/// A server with its log in `dir` and its archive at `url`.
pub(crate) fn archived_at(dir: &Path, url: &str) -> Launch {
    let launch = Launch::bsd().dir(dir);
    launch.args(["--archive", url, "--archive-interval", "20"])
}

/// The value of a metric without labels.
pub(crate) fn metric(site: &Site, name: &str) -> f64 {
    let page = String::from_utf8(site.get("/metrics").body).unwrap();
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let line = line.unwrap_or_else(|| panic!("no {name} in {page}"));
    line.parse().unwrap()
}

/// `/readyz`, which must be 200, and its warnings.
pub(crate) fn warnings(site: &Site) -> Vec<String> {
    let answer = site.get("/readyz");
    assert_eq!(answer.status, 200, "{answer:?}");
    let json = answer.json();
    assert_eq!(json["status"], "ready");
    let warnings = json["warnings"].as_array().cloned().unwrap_or_default();
    let text = |it: Value| it.as_str().unwrap().to_owned();
    warnings.into_iter().map(text).collect()
}

pub(crate) fn page(site: &Site) -> String {
    String::from_utf8(site.get("/durability").body).unwrap()
}

/// `bsd-ctl archive`: its exit code, and what it says.
pub(crate) fn told(site: &Site) -> (Option<i32>, String) {
    let mut command = ctl::command(&site.server.address().to_string());
    command.env("BSD_CTL_HTTP", site.address.to_string());
    ctl::said(&command.arg("archive").output().unwrap())
}

/// Answer of the API, held to its description.
pub(crate) fn of_api(site: &Site) -> Value {
    let description = Description::of(site);
    let get = |path: &str| {
        let answer = site.get(path);
        description.hold(&answer, ("get", path), path, 200)["archive"].clone()
    };
    get("/api/v1/log");
    get("/api/v1/server")
}

fn wait_until_it_has_all(site: &Site) {
    wait_until("the archive has everything", || {
        metric(site, "bsd_archive_up") == 1.0
            && metric(site, "bsd_archive_bases_total") >= 1.0
            && metric(site, "bsd_archive_in_gap") == 0.0
            && metric(site, "bsd_archive_lag_bytes") == 0.0
    });
}

#[test]
fn an_archive_that_is_well_is_told_of_everywhere_in_the_same_numbers() {
    let place = TempDir::new().unwrap();
    let store = Away::new(place.path());
    let site = Site::start(archived_at(&place.path().join("log"), &store.url()));
    let mut wire = site.server.connect();
    for _ in 0..20 {
        wire.put(b"body");
    }
    wait_until_it_has_all(&site);
    assert_eq!(warnings(&site), Vec::<String>::new());
    assert_eq!(metric(&site, "bsd_archive_epoch"), 1.0);
    assert_eq!(metric(&site, "bsd_archive_gaps_total"), 0.0);
    assert_eq!(metric(&site, "bsd_archive_errors_total"), 0.0);
    wait_until(
        "nothing is archived between the first look and the last",
        || {
            let before = counters(&site);
            let said = Said::of(&site);
            let is_quiet = before[0] == 0.0 && counters(&site) == before;
            if is_quiet {
                said.check(before);
            }
            is_quiet
        },
    );
}

/// Bytes that are not archived, links, their bytes, and when the last base was made. What the log
/// writes by the clock changes them.
fn counters(site: &Site) -> [f64; 4] {
    [
        "bsd_archive_lag_bytes",
        "bsd_archive_links_total",
        "bsd_archive_bytes_total",
        "bsd_archive_last_base_timestamp_seconds",
    ]
    .map(|name| metric(site, name))
}

/// Everything that is told of an archive, beside the metrics.
struct Said {
    lag_seconds: f64,
    api: Value,
    page: String,
    tool: (Option<i32>, String),
}

impl Said {
    fn of(site: &Site) -> Said {
        Said {
            lag_seconds: metric(site, "bsd_archive_lag_seconds"),
            api: of_api(site),
            page: page(site),
            tool: told(site),
        }
    }

    /// It is well, and has these counters.
    fn check(&self, [_, links, bytes, base]: [f64; 4]) {
        assert_eq!(self.lag_seconds, 0.0);
        assert!(links >= 2.0 && bytes > 100.0, "{links} {bytes}");
        assert!(base > 1.7e9, "{base}");
        for (key, value) in [
            ("up", Value::from(true)),
            ("trouble", Value::Null),
            ("epoch", 1.into()),
            ("lag_bytes", 0.into()),
            ("in_gap", false.into()),
            ("links", (links as u64).into()),
            ("bytes", (bytes as u64).into()),
            ("last_base_timestamp_seconds", (base as u64).into()),
        ] {
            assert_eq!(self.api[key], value, "{key}: {}", self.api);
        }
        let archived = self.api["archived"].as_str().unwrap();
        for text in ["The archive", "It is written.", archived] {
            assert!(self.page.contains(text), "{text}: {}", self.page);
        }
        let (code, said) = &self.tool;
        assert_eq!(*code, ctl::OK, "{said}");
        assert!(said.contains(archived), "{said}");
    }
}

#[test]
fn a10_a_store_that_is_away_is_named_once_and_told_of_everywhere_and_the_queue_stays_ready() {
    let place = TempDir::new().unwrap();
    let store = Away::new(place.path());
    let site = Site::start(archived_at(&place.path().join("log"), &store.url()));
    let mut wire = site.server.connect();
    wire.put(b"before");
    wait_until_it_has_all(&site);
    store.go();
    wire.put(b"while it is away");
    wait_until("it is noticed, and tried again", || {
        metric(&site, "bsd_archive_up") == 0.0 && metric(&site, "bsd_archive_errors_total") >= 2.0
    });
    assert!(metric(&site, "bsd_archive_lag_bytes") > 0.0);
    assert!(metric(&site, "bsd_archive_lag_seconds") > 0.0);
    let said = warnings(&site);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("cannot be written"), "{said:?}");
    assert!(!said[0].contains("file:"), "who asks may have no token");
    let archive = of_api(&site);
    assert_eq!(archive["up"], false);
    let trouble = archive["trouble"].as_str().unwrap();
    // What it proves the place by is read before anything is put.
    assert!(trouble.contains("cannot get"), "{trouble}");
    assert!(page(&site).contains("It cannot be written: "));
    let (code, said) = told(&site);
    assert_eq!(code, ctl::NOT_DONE, "{said}");
    assert!(said.contains("cannot get"), "{said}");
    assert_eq!(wire.put(b"and one more"), 3, "the queue does not wait");
    store.come_back();
    wait_until_it_has_all(&site);
    assert_eq!(warnings(&site), Vec::<String>::new());
    assert_eq!(of_api(&site)["trouble"], Value::Null);
    let said = site.server.stderr();
    let lines = complaints(&said);
    assert_eq!(lines.len(), 1, "one line while it is away: {lines:?}");
    assert!(lines[0].contains("is not written"), "{lines:?}");
    assert_eq!(said.matches("the archive is written again").count(), 1);
}

#[test]
fn a_gap_is_told_of_everywhere_until_the_next_base() {
    assert_gap_is_told(|_, _| {});
}

/// It begins when the store answers again; but people must know before.
#[test]
fn a_gap_is_told_of_while_a_link_from_before_it_waits_for_the_store() {
    assert_gap_is_told(|site, wire| {
        wire.put(b"makes a link");
        wait_until("the link waits", || metric(site, "bsd_archive_up") == 0.0);
    });
}

/// A server that holds hardly anything for its archive while that is away, and has one job.
pub(crate) fn hardly_held(place: &Path) -> (Away, Site, Wire) {
    let store = Away::new(place);
    let launch = archived_at(&place.join("log"), &store.url());
    let site = Site::start(launch.args(["-s", "65536", "--archive-hold-max", "1"]));
    let mut wire = site.server.connect();
    wire.put(b"before");
    (store, site, wire)
}

/// With what is done after the store went away, before the log is let go.
fn assert_gap_is_told(first: impl FnOnce(&Site, &mut Wire)) {
    let place = TempDir::new().unwrap();
    let (store, site, mut wire) = hardly_held(place.path());
    wait_until_it_has_all(&site);
    store.go();
    first(&site, &mut wire);
    for _ in 0..10 {
        wire.put(&[b'x'; 60_000]);
    }
    wait_until("the gap is seen", || {
        metric(&site, "bsd_archive_in_gap") == 1.0 && metric(&site, "bsd_archive_up") == 0.0
    });
    assert_eq!(metric(&site, "bsd_archive_gaps_total"), 1.0);
    assert!(warnings(&site).iter().any(|it| it.contains("a gap")));
    let archive = of_api(&site);
    assert_eq!(
        (&archive["in_gap"], &archive["archived"]),
        (&Value::from(true), &Value::Null)
    );
    assert_eq!(told(&site).0, ctl::NOT_DONE);
    store.come_back();
    wait_until_it_has_all(&site);
    assert_eq!(metric(&site, "bsd_archive_gaps_total"), 1.0);
    assert_eq!(warnings(&site), Vec::<String>::new());
    assert_eq!(
        site.server.stderr().matches("GAP in the archive").count(),
        1
    );
}

#[test]
fn without_an_archive_nothing_is_told_of_one() {
    let place = TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(&place.path().join("log")));
    let metrics = String::from_utf8(site.get("/metrics").body).unwrap();
    assert!(!metrics.contains("archive"), "{metrics}");
    assert!(!page(&site).contains("The archive"));
    assert_eq!(of_api(&site), Value::Null);
    let (code, said) = told(&site);
    assert_eq!(code, ctl::NOT_DONE, "{said}");
    assert!(said.contains("--archive URL"), "{said}");
}
