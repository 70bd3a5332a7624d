//! A real server with its archive in S3: its machine is lost under load, and the store fails in all
//! the ways in which stores fail. S3 is moto, or a small store in this process; nothing here leaves
//! the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::archive::{ctl, follow, jobs_of_standby};
use crate::archive_seen::metric;
use crate::archive_trouble::Ends;
use crate::harness::{Launch, Server, complaints, wait_until, wait_within};
use crate::http::{self, Site};
use crate::s3::client_over_tls;
use crate::s3::{Mood, Moto, SmallS3, URL, client_of, client_with, wal};
use crate::wire::{Wire, inserted, put_command};

/// moto asks for a signature and does not check it.
const SIGNED: &str = "Authorization: AWS4-HMAC-SHA256 \
    Credential=test/20261122/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00";

/// A request is given up after a minute.
const SILENCE: Duration = Duration::from_secs(150);

fn launch(moto: &Moto, dir: &Path) -> Launch {
    client_of(moto.address, Launch::bsd().dir(dir))
}

fn wal_ok(moto: &Moto, args: &[&str]) -> String {
    let (code, said) = wal(moto.address, args);
    assert_eq!(code, Some(0), "{args:?}: {said}");
    said
}

/// The bodies of the jobs of a directory, by id.
fn jobs(moto: &Moto, dir: &Path) -> BTreeMap<u64, String> {
    let listed = wal_ok(moto, &["dump", "--json", dir.to_str().unwrap()]);
    let jobs = listed.lines().filter(|line| line.contains("\"tube\""));
    let job = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        let body = value["body"].as_str().unwrap().to_owned();
        (value["id"].as_u64().unwrap(), body)
    };
    jobs.map(job).collect()
}

/// Assert that a client that puts `job 1`, `job 2`, … finds those up to `least` at least, none
/// after `most`, and none missing before the last one.
fn assert_is_prefix(found: &BTreeMap<u64, String>, least: u64, most: u64) {
    let count = found.len() as u64;
    assert!((least..=most).contains(&count), "{least} {count} {most}");
    for (nth, (id, body)) in (1..).zip(found) {
        assert_eq!((*id, body), (nth, &format!("job {nth}")));
    }
}

#[test]
fn a_machine_lost_under_load_is_replaced_from_s3_and_one_that_was_cut_off_stops_when_it_is_back() {
    let Some(moto) = Moto::start() else {
        return;
    };
    let place = TempDir::new().unwrap();
    let at = |name: &str| -> PathBuf { place.path().join(name) };
    let first = Site::start(launch(&moto, &at("data")));
    let (acknowledged, begun) = (AtomicU64::new(0), AtomicU64::new(0));
    let mut wire = first.server.connect();
    let (least, early) = thread::scope(|scope| {
        scope.spawn(|| {
            for nth in 1_u64.. {
                begun.store(nth, Ordering::SeqCst);
                let command = put_command(0, 0, format!("job {nth}").as_bytes());
                // It is killed in the middle of one of them.
                let Ok(reply) = wire.try_send(&command).and_then(|()| wire.try_reply()) else {
                    return;
                };
                let reply = String::from_utf8(reply).unwrap();
                assert_eq!(inserted(reply.trim_end()), Some(nth), "{reply}");
                acknowledged.store(nth, Ordering::SeqCst);
            }
        });
        // Everything that is acknowledged now is in the archive a little later.
        let archived = |seen: u64| {
            wait_until("what was acknowledged is archived", || {
                let dir = place.path().join("tried");
                let (code, _) = wal(
                    moto.address,
                    &["archive", "restore", URL, dir.to_str().unwrap()],
                );
                let found = (code == Some(0)).then(|| jobs(&moto, &dir).len() as u64);
                let _ = fs::remove_dir_all(&dir);
                found.is_some_and(|found| found >= seen)
            });
        };
        wait_until("there are jobs", || {
            acknowledged.load(Ordering::SeqCst) >= 50
        });
        archived(acknowledged.load(Ordering::SeqCst));
        let early = first.get("/api/v1/log").json()["archive"]["archived"].clone();
        let least = acknowledged.load(Ordering::SeqCst);
        archived(least);
        first.server.kill();
        (least, early)
    });
    fs::remove_dir_all(at("data")).unwrap();
    let most = begun.load(Ordering::SeqCst);

    let second = launch(&moto, &at("data")).arg("--restore-if-empty").start();
    assert!(second.stderr().contains("restored from s3://"));
    let new_id = second.connect().put(b"of the second server");
    let exit = second.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    let mut found = jobs(&moto, &at("data"));
    assert_eq!(
        found.remove(&new_id).as_deref(),
        Some("of the second server")
    );
    assert_is_prefix(&found, least, most);

    let early = early.as_str().unwrap();
    let before = at("before");
    let before = before.to_str().unwrap();
    wal_ok(
        &moto,
        &["archive", "restore", "--until", early, URL, before],
    );
    assert_is_prefix(&jobs(&moto, Path::new(before)), 1, least);
    wal_ok(&moto, &["archive", "verify", URL]);

    // A machine that is cut off is replaced while its server still runs.
    let has_the_archive = |site: &Site| {
        wait_until("the server has the archive", || {
            metric(site, "bsd_archive_up") == 1.0
                && metric(site, "bsd_archive_in_gap") == 0.0
                && metric(site, "bsd_archive_lag_bytes") == 0.0
        });
    };
    let cut_off = Site::start(launch(&moto, &at("data")));
    has_the_archive(&cut_off);
    cut_off.server.signal(Signal::STOP);
    let third = Site::start(launch(&moto, &at("third")).arg("--restore-if-empty"));
    third.server.connect().put(b"of the third server");
    has_the_archive(&third);
    cut_off.server.signal(Signal::CONT);
    let exit = cut_off.server.wait();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    assert!(exit.stderr.contains("another writer"), "{exit:?}");
    assert_eq!(third.server.stop().code, Some(0));
    wal_ok(&moto, &["archive", "verify", URL]);
}

/// A client that puts, and connects again to whichever server takes it, until it is told to end. Its
/// bodies, and whether the first or the second server acknowledged each. `has_found`: the second one has.
fn client(
    number: usize,
    servers: [SocketAddr; 2],
    has_found: &AtomicBool,
    is_over: &AtomicBool,
) -> Vec<(String, u8)> {
    let mut put = Vec::new();
    let mut connection = None;
    for nth in 0.. {
        let body = format!("client {number}, job {nth}");
        wait_until("a server takes the client", || {
            let mut found = (1..).zip(servers);
            let connect = |(which, at)| Some((which, Wire::connect(at).ok()?));
            connection = connection.take().or_else(|| found.find_map(connect));
            connection.is_some() || is_over.load(Ordering::SeqCst)
        });
        let Some((which, wire)) = connection
            .as_mut()
            .filter(|_| !is_over.load(Ordering::SeqCst))
        else {
            return put;
        };
        let command = put_command(0, 0, body.as_bytes());
        let reply = wire.try_send(&command).and_then(|()| wire.try_reply());
        match reply {
            Ok(reply) => {
                assert!(reply.starts_with(b"INSERTED "), "{reply:?}");
                has_found.fetch_or(*which == 2, Ordering::SeqCst);
                put.push((body, *which));
            }
            // No one knows whether it was put.
            Err(_) => {
                put.push((body, 0));
                connection = None;
            }
        }
    }
    put
}

#[test]
fn a_standby_on_s3_takes_over_while_clients_reconnect_and_the_old_server_stops_when_it_is_back() {
    let Some(moto) = Moto::start() else {
        return;
    };
    let place = TempDir::new().unwrap();
    let at = |name: &str| -> PathBuf { place.path().join(name) };
    let old = launch(&moto, &at("old")).start();
    old.connect().put(b"the first");
    wait_until("there is a base", || {
        let (code, _) = wal(moto.address, &["archive", "verify", URL]);
        code == Some(0)
    });
    let copy = Launch::bsd().dir(&at("new"));
    let copy = follow(client_with("--follow", moto.address, copy));
    let (servers, is_over) = ([old.address(), copy.address()], AtomicBool::new(false));
    let have_found = [const { AtomicBool::new(false) }; 4];
    let (new, puts) = thread::scope(|scope| {
        let (is_over, ended) = (&is_over, Ends(&is_over));
        let numbered = have_found.iter().enumerate();
        let clients: Vec<_> = numbered
            .map(|(number, found)| scope.spawn(move || client(number, servers, found, is_over)))
            .collect();
        wait_until("jobs are copied", || jobs_of_standby(&copy) > 200);
        old.kill();
        let began = Instant::now();
        let (code, said) = ctl(&copy, &["promote"]);
        println!("promoted after {:?}", began.elapsed());
        assert_eq!((code, &said["serves"]), (Some(0), &true.into()), "{said}");
        let copied = said["jobs"].as_u64().unwrap();
        let new = copy.serving();
        let is_found = |it: &AtomicBool| it.load(Ordering::SeqCst);
        wait_until("clients have found it", || {
            have_found.iter().all(is_found) && jobs_now(&new) > copied + 100
        });
        drop(ended);
        let puts = clients.into_iter().map(|it| it.join().unwrap());
        (new, puts.collect::<Vec<_>>())
    });
    // The old server comes back.
    let exit = launch(&moto, &at("old")).spawn().wait();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    assert!(exit.stderr.contains("has taken over"), "{exit:?}");
    assert_eq!(new.stop().code, Some(0));

    let found: Vec<String> = jobs(&moto, &at("new")).into_values().collect();
    let distinct: BTreeSet<&String> = found.iter().collect();
    assert_eq!(found.len(), distinct.len(), "a job is there twice");
    for puts in &puts {
        let is_there = |(body, _): &&(String, u8)| distinct.contains(body);
        let by = |server: u8| puts.iter().filter(move |(_, by)| *by == server);
        assert!(by(2).count() > 0, "it has found the new server");
        assert!(
            by(2).all(|put| is_there(&put)),
            "what it acknowledged is there"
        );
        // Of the old server the last ones may be missing, and no other.
        let kept = by(1).filter(is_there).count();
        assert!(by(1).take(kept).all(|put| is_there(&put)), "{puts:?}");
    }
    let known = puts
        .iter()
        .flatten()
        .filter(|(body, _)| distinct.contains(body));
    assert_eq!(known.count() + 1, found.len(), "and nothing else");
    wal_ok(&moto, &["archive", "verify", URL]);
}

fn jobs_now(server: &Server) -> u64 {
    let said = server.connect().stat("stats", "current-jobs-ready");
    said.parse().unwrap()
}

#[test]
fn a8_moto_keeps_an_object_although_it_is_put_again() {
    let Some(moto) = Moto::start() else {
        return;
    };
    let put = |body: &[u8]| {
        let fields = ["If-None-Match: *", SIGNED];
        http::send(moto.address, "PUT /bucket/once", &fields, body).status
    };
    assert_eq!((put(b"first"), put(b"second")), (200, 412));
    let found = http::send(moto.address, "GET /bucket/once", &[SIGNED], b"");
    assert_eq!(found.body, b"first");
}

#[test]
fn a11_a_store_without_conditional_writes_is_refused_at_the_start() {
    let store = SmallS3::start(Mood::Overwrites);
    let place = TempDir::new().unwrap();
    let launch = Launch::bsd().dir(&place.path().join("data"));
    let exit = client_of(store.address, launch).run_to_exit();
    assert_eq!(exit.code, Some(6), "{exit:?}");
    assert!(exit.stderr.contains("conditional writes"), "{exit:?}");
}

#[test]
fn a_store_over_tls_is_used_if_its_certificate_is_of_an_authority_of_the_system() {
    let [house, stranger] = [(); 2].map(|()| crate::tls::House::new());
    let store = SmallS3::start_tls(house.authority.issue("store").server());
    let place = TempDir::new().unwrap();
    let launch = |house: &crate::tls::House| {
        let launch = Launch::bsd().dir(&place.path().join("data"));
        Site::start(client_over_tls(
            store.address,
            &house.path("ca.pem"),
            launch,
        ))
    };
    let site = launch(&stranger);
    site.server.connect().put(b"one");
    wait_until("the certificate is refused", || {
        site.server.stderr().contains("invalid peer certificate")
    });
    assert_eq!(store.requests(), 0);
    assert_eq!(site.server.stop().code, Some(0));

    let site = launch(&house);
    wait_until("the archive is written", || {
        metric(&site, "bsd_archive_up") == 1.0
            && metric(&site, "bsd_archive_bases_total") == 1.0
            && metric(&site, "bsd_archive_lag_bytes") == 0.0
    });
    assert_eq!(site.server.stop().code, Some(0));
}

/// A server whose store is not well: that is seen, and named in one line; then it is well.
fn trouble_and_its_end(store: &SmallS3, mood: Mood, words: &str) {
    let place = TempDir::new().unwrap();
    let launch = Launch::bsd().dir(&place.path().join("data"));
    let site = Site::start(client_of(store.address, launch));
    let mut wire = site.server.connect();
    wire.put(b"one");
    let is_up = || metric(&site, "bsd_archive_up") == 1.0;
    let has_all = || is_up() && metric(&site, "bsd_archive_lag_bytes") == 0.0;
    wait_until("the archive is written", || {
        has_all() && metric(&site, "bsd_archive_bases_total") == 1.0
    });
    store.set(mood);
    wire.put(b"two");
    wait_within(SILENCE, "the trouble is seen", || !is_up());
    let errors = metric(&site, "bsd_archive_errors_total");
    let before = store.requests();
    wait_within(SILENCE, "it is tried again", || {
        metric(&site, "bsd_archive_errors_total") >= errors + 2.0
    });
    // Each try is one request, which the client repeats three times at most.
    let tried = metric(&site, "bsd_archive_errors_total") - errors + 1.0;
    let made = (store.requests() - before) as f64;
    assert!(made <= 4.0 * tried, "{made} requests in {tried} tries");
    assert_eq!(wire.put(b"three"), 3, "the queue goes on");
    let said = site.server.stderr();
    let lines = complaints(&said);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains(words) && lines[0].contains(URL),
        "{lines:?}"
    );
    assert!(
        !said.contains("backing off"),
        "no line for each request: {said}"
    );
    store.set(Mood::Well);
    wait_within(SILENCE, "the archive is written again", has_all);
    let said = site.server.stderr();
    assert_eq!(said.matches("the archive is written again").count(), 1);
    assert_eq!(site.server.stop().code, Some(0));
}

#[test]
fn a10_a_store_that_fails_each_request_is_named_and_tried_again_until_it_is_well() {
    let store = SmallS3::start(Mood::Well);
    trouble_and_its_end(&store, Mood::Fails, "500");
}

#[test]
fn a10_a_store_that_refuses_the_credentials_is_named_and_tried_again_until_it_takes_them() {
    let store = SmallS3::start(Mood::Well);
    trouble_and_its_end(&store, Mood::Forbids, "403");
}

/// No one listens at the start, and someone does later.
#[test]
fn a10_a_store_where_no_one_listens_is_named_and_found_when_it_is_there() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let place = TempDir::new().unwrap();
    let launch = Launch::bsd().dir(&place.path().join("data"));
    let site = Site::start(client_of(address, launch));
    let mut wire = site.server.connect();
    wire.put(b"one");
    wait_until("the trouble is seen", || {
        metric(&site, "bsd_archive_errors_total") >= 1.0
    });
    assert_eq!(metric(&site, "bsd_archive_up"), 0.0);
    assert_eq!(wire.put(b"two"), 2, "the queue goes on");
    let said = site.server.stderr();
    let lines = complaints(&said);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("is not written"), "{lines:?}");
    // Another test's server may have the port by now.
    let Ok(listener) = TcpListener::bind(address) else {
        return;
    };
    let _store = SmallS3::serve(listener, Mood::Well);
    wait_until("the archive is written", || {
        metric(&site, "bsd_archive_up") == 1.0 && metric(&site, "bsd_archive_lag_bytes") == 0.0
    });
}

/// A request that is not answered is given up after a minute.
#[test]
fn a10_a_store_that_never_answers_is_named_and_the_queue_goes_on() {
    let store = SmallS3::start(Mood::Silent);
    let place = TempDir::new().unwrap();
    let launch = Launch::bsd().dir(&place.path().join("data"));
    let site = Site::start(client_of(store.address, launch));
    let mut wire = site.server.connect();
    wire.put(b"one");
    wait_until("the lag is seen although nothing is answered", || {
        metric(&site, "bsd_archive_lag_seconds") > 1.0
    });
    assert_eq!(metric(&site, "bsd_archive_up"), 0.0);
    wait_within(SILENCE, "it is given up", || {
        metric(&site, "bsd_archive_errors_total") >= 1.0
    });
    assert_eq!(wire.put(b"two"), 2);
    let said = site.server.stderr();
    assert_eq!(complaints(&said).len(), 1, "{said}");
    store.set(Mood::Well);
    wait_within(SILENCE, "the archive is written", || {
        metric(&site, "bsd_archive_up") == 1.0 && metric(&site, "bsd_archive_lag_bytes") == 0.0
    });
}

#[test]
fn g17_links_are_asked_for_many_at_a_time() {
    let place = TempDir::new().unwrap();
    let store = SmallS3::start(Mood::Well);
    let site = Site::start(client_of(
        store.address,
        Launch::bsd().dir(&place.path().join("log")),
    ));
    let mut wire = site.server.connect();
    wait_until("there are many links", || {
        wire.put(b"body");
        metric(&site, "bsd_archive_links_total") >= 20.0
            && metric(&site, "bsd_archive_bases_total") >= 1.0
    });
    assert_eq!(site.server.stop().code, Some(0));
    // Anyone who asks for one after another gets none.
    store.set(Mood::Together);
    let (code, said) = wal(store.address, &["archive", "verify", URL]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("every object is as it was put"), "{said}");
}
