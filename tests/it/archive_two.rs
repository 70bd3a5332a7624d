//! A log with two archives: each has its own writer, and is told of. One that is away costs the other
//! nothing, and the one with the later end is restored. Another writer in either stops the server.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use serde_json::{Value, json};

use crate::api::Description;
use crate::archive::{ctl, follow, jobs_of_standby};
use crate::archive_seen::{Away, metric, page, told, warnings};
use crate::harness::{Launch, Server, wait_until, wal};
use crate::http::Site;

/// Two archives that can go away, and room for the directories of servers.
struct Place {
    dir: TempDir,
    stores: [Away; 2],
}

impl Place {
    fn new() -> Place {
        let dir = TempDir::new().unwrap();
        let stores = ["one", "two"].map(|name| {
            fs::create_dir(dir.path().join(name)).unwrap();
            Away::new(&dir.path().join(name))
        });
        Place { dir, stores }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A server that archives to these, the first one named first.
    fn launch(&self, dir: &Path, order: [usize; 2]) -> Launch {
        let [first, second] = order.map(|index| self.stores[index].url());
        let launch = Launch::bsd().dir(dir).args(["--archive-interval", "20"]);
        launch.args(["--archive", &first, "--archive", &second])
    }

    /// The jobs that an archive has; 0 before its first base.
    fn jobs(&self, index: usize) -> usize {
        let dir = self.at("looked at");
        let to = dir.to_str().unwrap();
        let (code, _) = wal(&["archive", "restore", &self.stores[index].url(), to]);
        if code != Some(0) {
            return 0;
        }
        let (code, said) = wal(&["dump", "--json", to]);
        assert_eq!(code, Some(0), "{said}");
        fs::remove_dir_all(dir).unwrap();
        said.lines()
            .filter(|line| line.contains("\"tube\""))
            .count()
    }

    /// What is said of the log in an archive.
    fn log(&self, index: usize) -> Value {
        let (code, said) = wal(&["archive", "ls", "--json", &self.stores[index].url()]);
        assert_eq!(code, Some(0), "{said}");
        let said: Value = serde_json::from_str(&said).unwrap();
        said["logs"][0].clone()
    }

    fn bases(&self, index: usize) -> u64 {
        let log = self.log(index);
        let spans = log["spans"].as_array().unwrap();
        spans
            .iter()
            .map(|span| span["bases"].as_u64().unwrap())
            .sum()
    }
}

const SECOND: &str = "{repository=\"2\"}";

/// The caller changes nothing meanwhile. The log does, once: its marker of an idle moment follows.
fn wait_until_both_have_all(site: &Site) {
    wait_until("everything is on the disk", || {
        metric(site, "bsd_log_unsynced_bytes") == 0.0
    });
    for label in ["", SECOND] {
        let of = |name: &str| metric(site, &format!("bsd_archive_{name}{label}"));
        wait_until("the archive has everything", || {
            of("up") == 1.0 && of("in_gap") == 0.0 && of("lag_bytes") == 0.0
        });
    }
}

#[test]
fn a_log_is_put_into_two_archives_and_each_is_told_of_and_has_all_of_it() {
    let place = Place::new();
    let site = Site::start(place.launch(&place.at("log"), [0, 1]));
    let mut wire = site.server.connect();
    for _ in 0..20 {
        wire.put(b"body");
    }
    wait_until_both_have_all(&site);
    assert_eq!((place.jobs(0), place.jobs(1)), (20, 20));
    assert_eq!(warnings(&site), Vec::<String>::new());
    let urls = [0, 1].map(|index| place.stores[index].url());
    let description = Description::of(&site);
    let api = |path: &str| {
        let answer = site.get(path);
        description.hold(&answer, ("get", path), path, 200)
    };
    api("/api/v1/log");
    wait_until("each is told of by the API and lacks nothing", || {
        let api = api("/api/v1/server");
        assert_eq!(api["archive"], api["archives"][0]);
        let archives = api["archives"].as_array().unwrap();
        let told: Vec<_> = archives.iter().map(|it| it["url"].clone()).collect();
        assert_eq!(told, urls);
        archives.iter().all(|it| it["lag_bytes"] == 0)
    });
    let (code, said) = told(&site);
    assert_eq!(code, Some(0), "{said}");
    let shown = page(&site);
    for (text, url) in ["first archive", "second archive"].iter().zip(&urls) {
        assert!(said.contains(text) && said.contains(url), "{said}");
        assert!(
            shown.contains(&format!("The {text}")) && shown.contains(url),
            "{shown}"
        );
    }
    // After a restart in the other order each goes on where it was.
    assert_eq!(site.server.stop().code, Some(0));
    let site = Site::start(place.launch(&place.at("log"), [1, 0]));
    site.server.connect().put(b"one more");
    wait_until_both_have_all(&site);
    assert_eq!(site.server.stop().code, Some(0));
    assert_eq!((place.jobs(0), place.jobs(1)), (21, 21));
    assert_eq!((place.bases(0), place.bases(1)), (1, 1));
}

#[test]
fn of_two_archives_one_that_is_away_costs_the_other_nothing_and_is_caught_up_with() {
    for away in [0, 1] {
        let place = Place::new();
        let dir = place.at("log");
        let lag_max = ["--archive-lag-max", "1s"];
        let site = Site::start(place.launch(&dir, [0, 1]).args(lag_max));
        let mut wire = site.server.connect();
        wire.put(b"before");
        wait_until_both_have_all(&site);
        place.stores[away].go();
        let label = ["", SECOND][away];
        wire.put(b"while it is away");
        wait_until("it is later than puts may wait for one archive", || {
            metric(&site, &format!("bsd_archive_lag_seconds{label}")) > 2.0
        });
        assert_eq!(metric(&site, &format!("bsd_archive_up{label}")), 0.0);
        wire.put(b"in the other one");
        wait_until("the other one has it", || place.jobs(1 - away) == 3);
        let said = warnings(&site).join("; ");
        assert_eq!(said.starts_with("second archive: "), away == 1, "{said}");
        let (code, said) = told(&site);
        assert_eq!(code, Some(1), "{said}");
        place.stores[away].come_back();
        wait_until_both_have_all(&site);
        assert_eq!(place.jobs(away), 3);
        assert_eq!(site.server.stop().code, Some(0));
    }
}

#[test]
fn of_two_archives_the_one_with_the_later_end_is_restored_and_both_go_on_from_there() {
    for later in [0, 1] {
        let place = Place::new();
        let site = Site::start(place.launch(&place.at("lost"), [0, 1]));
        let mut wire = site.server.connect();
        wire.put(b"in both");
        wait_until_both_have_all(&site);
        place.stores[1 - later].go();
        wire.put(b"in one");
        wait_until("it is archived", || place.jobs(later) == 2);
        site.server.kill();
        place.stores[1 - later].come_back();
        fs::remove_dir_all(place.at("lost")).unwrap();
        let launch = place.launch(&place.at("data"), [0, 1]);
        let site = Site::start(launch.arg("--restore-if-empty"));
        let said = site.server.stderr();
        let url = place.stores[later].url();
        let has_chosen = said.contains(&format!("of both archives {url} has the later end"));
        assert!(
            has_chosen && said.contains(&format!("restored from {url}, 2 jobs")),
            "{said}"
        );
        site.server.connect().put(b"after");
        wait_until_both_have_all(&site);
        assert_eq!(site.server.stop().code, Some(0));
        assert_eq!((place.jobs(0), place.jobs(1)), (3, 3));
        // The one that it was made of goes on without a base.
        assert_eq!(place.bases(later), 1);
    }
}

#[test]
fn with_two_archives_of_which_one_does_not_answer_nothing_is_restored() {
    let place = Place::new();
    let site = Site::start(place.launch(&place.at("lost"), [0, 1]));
    site.server.connect().put(b"in both");
    wait_until_both_have_all(&site);
    assert_eq!(site.server.stop().code, Some(0));
    for away in [0, 1] {
        place.stores[away].go();
        let launch = place.launch(&place.at("data"), [0, 1]);
        let exit = launch.arg("--restore-if-empty").run_to_exit();
        assert_ne!(exit.code, Some(0), "{exit:?}");
        assert!(exit.stderr.contains(&place.stores[away].url()), "{exit:?}");
        assert!(!place.at("data").exists());
        place.stores[away].come_back();
    }
    // Its end may be the later one: who knows better names the other alone.
    place.stores[1].go();
    let url = place.stores[0].url();
    let launch = Launch::bsd().dir(&place.at("data"));
    let launch = launch.args(["--archive", &url, "--restore-if-empty"]);
    let server = launch.start();
    assert!(server.stderr().contains("1 jobs"), "{}", server.stderr());
    assert_eq!(server.stop().code, Some(0));
    // A directory that has its log starts, whichever of them is away.
    let launch = place.launch(&place.at("data"), [0, 1]);
    let server = launch.arg("--restore-if-empty").start();
    server.connect().put(b"in one");
    assert_eq!(server.stop().code, Some(0));
    assert_eq!(place.jobs(0), 2);
}

#[test]
fn a_second_archive_begins_with_a_base_and_one_that_is_left_out_holds_nothing_back() {
    let place = Place::new();
    let dir = place.at("log");
    let urls = [0, 1].map(|index| place.stores[index].url());
    let alone = |index: usize| {
        let launch = Launch::bsd().dir(&dir).args(["-s", "65536"]);
        launch.args(["--archive-interval", "20", "--archive", &urls[index]])
    };
    let site = Site::start(alone(0));
    site.server.connect().put(b"in the first");
    wait_until("it is archived", || place.jobs(0) == 1);
    assert_eq!(site.server.stop().code, Some(0));

    let site = Site::start(place.launch(&dir, [0, 1]));
    site.server.connect().put(b"in both");
    wait_until_both_have_all(&site);
    assert_eq!(site.server.stop().code, Some(0));
    assert_eq!((place.jobs(0), place.jobs(1)), (2, 2));
    assert_eq!((place.bases(0), place.bases(1)), (1, 1));
    assert!(dir.join("archived").exists() && dir.join("archived-2").exists());

    // The first one is left out. Segments that it lacks go when they are of no other use.
    let site = Site::start(alone(1));
    let mut wire = site.server.connect();
    for _ in 0..200 {
        let id = wire.put(&[b'x'; 4000]);
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    }
    wait_until("it is archived", || {
        metric(&site, "bsd_archive_up") == 1.0 && metric(&site, "bsd_archive_lag_bytes") == 0.0
    });
    wait_until("compaction has removed what is dead", || {
        metric(&site, "bsd_log_segments") <= 5.0
    });
    assert_eq!(site.server.stop().code, Some(0));
    assert_eq!((place.jobs(0), place.jobs(1)), (2, 2));

    // It is given again, and lacks what is no longer there: a base.
    let site = Site::start(place.launch(&dir, [0, 1]));
    site.server.connect().put(b"in both again");
    wait_until_both_have_all(&site);
    assert_eq!(site.server.stop().code, Some(0));
    assert_eq!((place.jobs(0), place.jobs(1)), (3, 3));
}

#[test]
fn a_server_that_is_replaced_in_either_of_its_archives_stops() {
    for taken in [0, 1] {
        let place = Place::new();
        let site = Site::start(place.launch(&place.at("old"), [0, 1]));
        site.server.connect().put(b"in both");
        wait_until_both_have_all(&site);
        let launch = Launch::bsd().dir(&place.at("new"));
        let launch = launch.args(["--archive", &place.stores[taken].url()]);
        let new = launch.arg("--restore-if-empty").start();
        let exit = site.server.wait();
        assert_eq!(exit.code, Some(6), "{exit:?}");
        assert!(exit.stderr.contains("another writer"), "{exit:?}");
        assert_eq!(new.stop().code, Some(0));
        // Nor does it start again, whichever it is told first.
        for order in [[0, 1], [1, 0]] {
            let exit = place.launch(&place.at("old"), order).run_to_exit();
            assert_eq!(exit.code, Some(6), "{exit:?}");
        }
    }
}

#[test]
fn a_standby_follows_one_archive_and_writes_both_when_it_has_taken_over() {
    let place = Place::new();
    let urls = [0, 1].map(|index| place.stores[index].url());
    let old = place.launch(&place.at("old"), [0, 1]).start();
    old.connect().put(b"of the old one");
    wait_until("there is a base", || place.jobs(0) == 1);
    let launch = Launch::bsd().dir(&place.at("new"));
    let launch = launch.args(["--archive-interval", "20"]);
    let copy = follow(launch.args(["--follow", &urls[0], "--archive", &urls[1]]));
    wait_until("all is copied", || jobs_of_standby(&copy) == 1);
    let (code, said) = ctl(&copy, &["promote"]);
    assert_eq!(code, Some(0), "{said}");
    let exit = old.wait();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    let site = Site::of(copy.serving());
    site.server.connect().put(b"of the new one");
    wait_until_both_have_all(&site);
    assert_eq!(site.server.stop().code, Some(0));
    assert_eq!((place.jobs(0), place.jobs(1)), (2, 2));
    // The old one has lost in both.
    for order in [[0, 1], [1, 0]] {
        let exit = place.launch(&place.at("old"), order).run_to_exit();
        assert_eq!(exit.code, Some(6), "{exit:?}");
    }
}

fn base(server: &Server, words: &[&str]) -> (Option<i32>, String) {
    let mut command = crate::ctl::command(&server.address().to_string());
    command.env("BSD_CTL_HTTP", crate::http::address(server).to_string());
    let words = [&["archive", "base"], words].concat();
    crate::ctl::said(&command.args(words).output().unwrap())
}

#[test]
fn a_base_is_made_in_both_archives_or_in_the_one_that_is_named() {
    let place = Place::new();
    let urls = [0, 1].map(|index| place.stores[index].url());
    let site = Site::start(place.launch(&place.at("log"), [0, 1]));
    site.server.connect().put(b"a job");
    wait_until_both_have_all(&site);
    let (code, said) = base(&site.server, &["--name", "before", "--pin"]);
    assert_eq!(code, Some(0), "{said}");
    for (index, url) in urls.iter().enumerate() {
        assert!(said.contains(&format!("{url}: base ")), "{said}");
        let log = place.log(index);
        assert_eq!(log["names"][0]["name"], "before", "{log}");
        assert_eq!(log["pins"].as_array().map(Vec::len), Some(1), "{log}");
    }
    let (code, said) = base(&site.server, &["--name", "in-one", "--url", &urls[1]]);
    assert_eq!(code, Some(0), "{said}");
    let path = "/api/v1/archive/base";
    let answer = site.get(path);
    let last = Description::of(&site).hold(&answer, ("get", path), path, 200);
    assert_eq!(last["archives"][0]["name"], "before", "{last}");
    assert_eq!(last["archives"][1]["name"], "in-one", "{last}");
    let names = |index| place.log(index)["names"].as_array().map(Vec::len);
    assert_eq!((names(0), names(1)), (Some(1), Some(2)));
    let (code, said) = base(&site.server, &["--url", "file:///elsewhere"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains(&urls[0]) && said.contains(&urls[1]), "{said}");
    // Refused in one of them: it is said in which.
    let (code, said) = base(&site.server, &["--name", "in-one"]);
    assert_eq!(code, Some(1), "{said}");
    let in_first = format!("{}: it is complete; ", urls[0]);
    let in_second = format!("{}: a base has the name", urls[1]);
    assert!(said.contains(&(in_first + &in_second)), "{said}");
    // While one is away, it is not complete, and no other one is begun in either.
    place.stores[0].go();
    let (code, said) = base(&site.server, &["--no-wait"]);
    assert_eq!(code, Some(0), "{said}");
    let again = site.change("POST", path, &json!({}));
    assert_eq!(again.status, 409, "{again:?}");
    place.stores[0].come_back();
    wait_until("it is made in both", || {
        let last = site.get(path).json();
        [0, 1]
            .iter()
            .all(|index| last["archives"][*index]["state"] == "made")
    });
    // A pin goes in one archive at a time.
    let (code, said) = wal(&["archive", "unpin", &urls[0], "before"]);
    assert_eq!(code, Some(0), "{said}");
    let pins = |index| place.log(index)["pins"].as_array().map(Vec::len);
    assert_eq!((pins(0), pins(1)), (Some(0), Some(1)));
}
