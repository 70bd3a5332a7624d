//! The archive of a cluster: the member that leads writes it, another one goes on when that is lost, and
//! when all three are lost with their disks it becomes a server, or a new cluster.
//!
//! `BSD_LOSSES` says how often all three are lost; how much each loss cost is printed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use bsd::check::volume::volume;
use bsd::random::Random;

use super::members::{Cluster, Doors};
use crate::harness::{Launch, POLL_EVERY, Server, peer_address, wait_until, wal};
use crate::wire::{Wire, inserted, job_of, put_command};

const HTTP: [&str; 2] = ["--http", "127.0.0.1:0"];
const PUTTERS: usize = 3;

/// Jobs whose put was acknowledged: the body, and when.
#[derive(Debug, Default)]
struct Told(Mutex<BTreeMap<u64, (Vec<u8>, Instant)>>);

impl Told {
    fn jobs(&self) -> BTreeMap<u64, (Vec<u8>, Instant)> {
        self.0.lock().unwrap().clone()
    }

    /// Put jobs through any member until it is over; no two have the same body.
    fn fill(&self, nth: u64, doors: &Doors, bodies: &AtomicU64, over: &AtomicBool) {
        let mut random = Random::new(7 + nth);
        while !over.load(Ordering::Relaxed) {
            let door = doors.pick(&mut random);
            let Some(mut wire) = door.and_then(|door| Wire::connect(door).ok()) else {
                thread::sleep(POLL_EVERY);
                continue;
            };
            while !over.load(Ordering::Relaxed) {
                let number = bodies.fetch_add(1, Ordering::Relaxed);
                let body = format!("body {number}").into_bytes();
                let Some(id) = put(&mut wire, &body) else {
                    break;
                };
                let before = self.0.lock().unwrap().insert(id, (body, Instant::now()));
                assert_eq!(before, None, "id {id} was given out twice");
            }
        }
    }
}

/// The id, if it is acknowledged.
fn put(wire: &mut Wire, body: &[u8]) -> Option<u64> {
    wire.try_send(&put_command(0, 0, body)).ok()?;
    let reply = wire.try_reply().ok()?;
    inserted(std::str::from_utf8(&reply).ok()?)
}

/// A place with a directory for an archive, and servers that use it.
struct Place {
    dir: TempDir,
    launch: Launch,
}

impl Place {
    fn new() -> Option<Place> {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join("archive")).unwrap();
        let launch = Launch::bsd_alone()?.args(HTTP);
        Some(Place { dir, launch })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn url(&self) -> String {
        format!("file://{}", self.at("archive").display())
    }

    /// Members, and servers that are alone, with this archive.
    fn archived(&self) -> Launch {
        self.launch.clone().args(["--archive", &self.url()])
    }

    /// Jobs of the archive, now, by a restore to the directory `name`.
    fn restore(&self, name: &str) -> (PathBuf, BTreeMap<u64, Vec<u8>>) {
        let dir = self.at(name);
        let (code, said) = wal(&["archive", "restore", &self.url(), dir.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
        let jobs = jobs_in(&dir);
        (dir, jobs)
    }

    /// Every object is as it was put, and of one log. Returns what was said.
    fn verify(&self) -> String {
        let (code, said) = wal(&["archive", "verify", &self.url()]);
        assert_eq!(code, Some(0), "{said}");
        let logs = said.lines().filter(|line| line.starts_with("log "));
        assert_eq!(logs.count(), 1, "{said}");
        said
    }
}

/// Ids and bodies of the jobs in a directory that no server uses.
fn jobs_in(dir: &Path) -> BTreeMap<u64, Vec<u8>> {
    let words = ["dump", "--json", dir.to_str().unwrap()];
    let (code, said) = wal(&words);
    assert_eq!(code, Some(0), "{said}");
    let jobs = said.lines().filter(|line| line.contains("\"tube\""));
    let jobs = jobs.map(|line| {
        let job: Value = serde_json::from_str(line).unwrap();
        let body = job["body"].as_str().unwrap_or_default();
        (job["id"].as_u64().unwrap(), body.as_bytes().to_vec())
    });
    jobs.collect()
}

/// The state of the log of a server, and then that of its archive.
fn seen(server: &Server) -> (Value, Value) {
    let site = crate::http::address(server);
    let json = |path: &str| {
        let answer = crate::http::send(site, &format!("GET {path}"), &[], b"");
        // While a member reads its log again there is nothing to see.
        match answer.status {
            200 => answer.json(),
            _ => Value::Null,
        }
    };
    let log = json("/api/v1/log");
    (log, json("/api/v1/server")["archive"].clone())
}

/// The server says that everything in its log is durable, and then that all of that is archived. What
/// happens meanwhile may be missing.
fn has_all(server: &Server) -> bool {
    let (log, archive) = seen(server);
    log["unsynced_bytes"] == 0
        && archive["up"] == true
        && archive["in_gap"] == false
        && archive["lag_bytes"] == 0
        && archive["archived"].is_string()
}

/// Wait until the member that leads says that nothing is missing.
fn wait_until_archived(cluster: &Cluster) {
    wait_until("the member that leads has archived everything", || {
        has_all(cluster.server(cluster.leader()))
    });
}

/// When it goes, it is over.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Put with several clients while `work` is done. What was told is added.
fn under_load<T>(cluster: &mut Cluster, told: &Told, work: impl FnOnce(&mut Cluster) -> T) -> T {
    static BODIES: AtomicU64 = AtomicU64::new(0);
    let (over, doors) = (AtomicBool::new(false), cluster.doors.clone());
    thread::scope(|scope| {
        for nth in 0..PUTTERS {
            let (doors, over) = (&doors, &over);
            scope.spawn(move || told.fill(nth as u64, doors, &BODIES, over));
        }
        // Also if it fails: the clients end.
        let _ends = Ends(&over);
        work(cluster)
    })
}

/// Waits until `count` more jobs are acknowledged.
fn wait_for_more(told: &Told, count: usize) {
    let before = told.0.lock().unwrap().len();
    wait_until("clients go on", || {
        told.0.lock().unwrap().len() >= before + count
    });
}

/// All three at once, and their disks.
fn lose_all(cluster: &mut Cluster) {
    let running = cluster.running();
    running
        .iter()
        .for_each(|at| cluster.signal(*at, Signal::STOP));
    running.iter().for_each(|at| cluster.kill(*at));
    for place in &cluster.places {
        fs::remove_dir_all(&place.dir).unwrap();
    }
}

/// A server has these jobs, with their bodies.
fn assert_serves(server: &Server, jobs: &BTreeMap<u64, Vec<u8>>) {
    let mut wire = server.connect();
    for (id, body) in jobs {
        wire.send(format!("peek {id}\r\n"));
        let reply = wire.reply();
        assert_eq!(job_of(&reply), Some((*id, &body[..])));
    }
    let newest = jobs.keys().max().copied().unwrap_or(0);
    assert!(
        wire.put(b"after the restore") > newest + (1 << 31),
        "ids are left out"
    );
}

#[test]
fn three_machines_that_are_lost_come_back_from_the_archive_that_any_of_them_wrote() {
    let Some(place) = Place::new() else { return };
    for nth in 0..volume("BSD_LOSSES", 1) {
        lose_three(&place, nth);
    }
}

fn lose_three(place: &Place, nth: u64) {
    let mut random = Random::new(nth);
    let told = Told::default();
    let archive = place.at("archive");
    fs::remove_dir_all(&archive).unwrap();
    fs::create_dir(&archive).unwrap();
    let mut cluster = Cluster::of_three(&place.archived());
    let first = cluster.leader();
    under_load(&mut cluster, &told, |cluster| {
        wait_for_more(&told, 200);
        cluster.kill(first);
        let next = cluster.leader();
        assert_ne!(next, first);
        wait_until("the next leader writes the archive", || {
            let words = cluster.words_of(next);
            words.contains("this member writes the archive")
        });
        wait_for_more(&told, 200);
        cluster.start(first);
    });
    wait_until_archived(&cluster);
    let said = told.jobs();
    let (_, early) = place.restore(&format!("early-{nth}"));
    assert!(said.keys().all(|id| early.contains_key(id)));
    // What follows is lost up to some moment.
    let count = 100 + random.below(2000) as usize;
    under_load(&mut cluster, &told, |cluster| {
        wait_for_more(&told, count);
        lose_all(cluster);
    });
    let lost_at = Instant::now();
    place.verify();
    let (dir, jobs) = place.restore(&format!("late-{nth}"));
    let all = told.jobs();
    let missing = all.iter().filter(|(id, _)| !jobs.contains_key(*id));
    let missing: Vec<_> = missing.map(|(id, (_, at))| (*at, *id)).collect();
    for (at, id) in &missing {
        assert!(!said.contains_key(id), "{id} was archived at {at:?}");
    }
    // A prefix: each job that was told of before the oldest one that is missing is there.
    if let Some((oldest, _)) = missing.iter().min() {
        println!(
            "loss {nth}: {} of {} jobs, {} ms",
            missing.len(),
            all.len(),
            lost_at.duration_since(*oldest).as_millis()
        );
    }
    for (id, body) in &jobs {
        if let Some((told, _)) = all.get(id) {
            assert_eq!(body, told, "{id}");
        }
    }
    let server = place.launch.clone().dir(&dir).start();
    assert_serves(&server, &jobs);
    assert_eq!(server.stop().code, Some(0));
}

#[test]
fn a_restored_archive_becomes_a_server_or_the_first_member_of_a_new_cluster() {
    let Some(place) = Place::new() else { return };
    let told = Told::default();
    let mut cluster = Cluster::of_three(&place.archived());
    under_load(&mut cluster, &told, |_| wait_for_more(&told, 100));
    wait_until_archived(&cluster);
    lose_all(&mut cluster);
    drop(cluster);
    let (dirs, jobs): (Vec<_>, Vec<_>) = ["alone", "n1"]
        .map(|name| place.restore(name))
        .into_iter()
        .unzip();
    assert!(told.jobs().keys().all(|id| jobs[0].contains_key(id)));
    assert_eq!(jobs[0], jobs[1]);
    // Alone, and without the archive: it stays that of the cluster.
    let server = place.launch.clone().dir(&dirs[0]).start();
    assert_serves(&server, &jobs[0]);
    assert_eq!(server.stop().code, Some(0));
    let dirs = [dirs[1].clone(), place.at("n2"), place.at("n3")];
    let mut cluster = Cluster::of_three_in(&dirs, &place.archived());
    assert_serves(cluster.server(cluster.leader()), &jobs[1]);
    under_load(&mut cluster, &told, |cluster| {
        wait_for_more(&told, 100);
        // The one that was restored is lost, too.
        let leader = cluster.leader();
        cluster.kill(leader);
        wait_for_more(&told, 100);
    });
    wait_until_archived(&cluster);
    lose_all(&mut cluster);
    place.verify();
    let (_, jobs) = place.restore("again");
    assert!(told.jobs().keys().all(|id| jobs.contains_key(id)));
}

#[test]
fn a_server_that_takes_the_archive_over_stops_the_members_that_come_to_lead() {
    let Some(place) = Place::new() else { return };
    let mut cluster = Cluster::of_three(&place.archived());
    cluster.server(cluster.leader()).connect().put(b"a job");
    wait_until_archived(&cluster);
    let (dir, jobs) = place.restore("new");
    let server = place.archived().dir(&dir).start();
    assert_serves(&server, &jobs);
    // Each in turn: with one of three there is no leader any more.
    for _ in 0..2 {
        let mut ended = None;
        wait_until("a member that leads finds the other writer", || {
            ended = cluster.take_ended();
            ended.is_some()
        });
        let (at, exit) = ended.unwrap();
        assert_eq!(exit.code, Some(6), "{at}: {exit:?}");
        assert!(
            exit.stderr.contains("has taken over from this cluster"),
            "{exit:?}"
        );
    }
    assert_eq!(server.stop().code, Some(0));
    place.verify();
}

/// Claims, which are a link and a mark with the same number.
fn claims_in(archive: &Path) -> Vec<PathBuf> {
    let mut logs = fs::read_dir(archive).unwrap().map(|it| it.unwrap().path());
    let log = logs.find(|it| it.join("claims").is_dir()).unwrap();
    let marks = fs::read_dir(log.join("claims")).unwrap();
    let names = marks.map(|it| it.unwrap().file_name());
    names.map(|name| log.join("chain").join(name)).collect()
}

#[test]
fn a_damaged_claim_is_told_of_once_and_kept_and_the_archive_goes_on_when_it_is_put_right() {
    let Some(place) = Place::new() else { return };
    let mut cluster = Cluster::of_three(&place.archived());
    cluster.server(cluster.leader()).connect().put(b"a job");
    wait_until_archived(&cluster);
    let first = cluster.leader();
    let claims = claims_in(&place.at("archive"));
    let sound: Vec<Vec<u8>> = claims.iter().map(|it| fs::read(it).unwrap()).collect();
    for (claim, bytes) in claims.iter().zip(&sound) {
        let mut bytes = bytes.clone();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(claim, bytes).unwrap();
    }
    cluster.kill(first);
    let next = cluster.leader();
    wait_until("the next leader says what is damaged", || {
        cluster.words_of(next).contains("DAMAGE in the archive")
    });
    let address = crate::http::address(cluster.server(next));
    let ready = || {
        let answer = crate::http::send(address, "GET /readyz", &[], b"");
        (answer.status, answer.json()["warnings"].to_string())
    };
    wait_until("it is in the answer of /readyz", || {
        let (status, warnings) = ready();
        assert_eq!(status, 200, "the queue goes on");
        warnings.contains("an object of the archive is damaged")
    });
    let (_, archive) = seen(cluster.server(next));
    let trouble = archive["trouble"].as_str().unwrap();
    let names = claims
        .iter()
        .map(|it| it.file_name().unwrap().to_str().unwrap());
    let named: Vec<&str> = names.filter(|name| trouble.contains(name)).collect();
    assert_eq!(named.len(), 1, "{trouble}");
    assert!(trouble.contains("keep it"), "{trouble}");
    cluster.server(next).connect().put(b"another job");
    for (claim, bytes) in claims.iter().zip(&sound) {
        fs::write(claim, bytes).unwrap();
    }
    // A lead is begun with a look of its own: no minute has to pass.
    cluster.start(first);
    cluster.wait_until_all_vote();
    cluster.kill(next);
    wait_until_archived(&cluster);
    let words = cluster.words_of(next);
    assert_eq!(words.matches("DAMAGE in the archive").count(), 1, "{words}");
    place.verify();
    assert_eq!(place.restore("all").1.len(), 2);
}

#[test]
fn each_member_says_which_one_writes_the_archive() {
    let Some(place) = Place::new() else { return };
    let cluster = Cluster::of_three(&place.archived());
    cluster.server(cluster.leader()).connect().put(b"a job");
    wait_until_archived(&cluster);
    let leader = cluster.leader();
    let id = cluster.id(leader).to_string();
    for at in cluster.running() {
        let server = cluster.server(at);
        let (log, archive) = seen(server);
        assert_eq!(archive["member"], log["archive"]["member"]);
        assert_eq!(archive["member"], *id);
        assert_eq!(archive["rests"], at != leader);
        let address = crate::http::address(server);
        let get = |path: &str| {
            let answer = crate::http::send(address, &format!("GET {path}"), &[], b"");
            String::from_utf8(answer.body).unwrap()
        };
        assert_eq!(get("/metrics").contains("bsd_archive_up 1\n"), at == leader);
        assert_eq!(get("/metrics").contains("bsd_archive"), at == leader);
        assert!(!get("/readyz").contains("warnings"));
        let page = get("/durability?view=member");
        match at == leader {
            true => assert!(page.contains("It is written."), "{page}"),
            false => {
                let sentence = format!("Member {id} leads, and writes it.");
                assert!(page.contains(&sentence), "{page}");
            }
        }
        let mut command = crate::ctl::command(&server.address().to_string());
        command.env("BSD_CTL_HTTP", address.to_string());
        let output = command.arg("archive").output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(
            said.contains(&format!("member {id}")),
            at != leader,
            "{said}"
        );
    }
}

/// Whichever member leads, each archive gets all, and becomes a log with the same jobs.
#[test]
fn a_cluster_writes_two_archives_whichever_member_leads() {
    let Some(place) = Place::new() else { return };
    let second = format!("file://{}", place.at("second").display());
    fs::create_dir(place.at("second")).unwrap();
    let mut cluster = Cluster::of_three(&place.archived().args(["--archive", &second]));
    let both_have_all = |cluster: &Cluster| {
        wait_until("both archives have everything", || {
            let server = cluster.server(cluster.leader());
            let (log, _) = seen(server);
            let site = crate::http::address(server);
            let answer = crate::http::send(site, "GET /api/v1/server", &[], b"");
            let archives = match answer.status {
                200 => answer.json()["archives"].clone(),
                _ => Value::Null,
            };
            let has_all =
                |it: &Value| it["up"] == true && it["in_gap"] == false && it["lag_bytes"] == 0;
            let all_have_all = |all: &Vec<Value>| all.len() == 2 && all.iter().all(has_all);
            log["unsynced_bytes"] == 0 && archives.as_array().is_some_and(all_have_all)
        });
    };
    let mut wire = cluster.server(cluster.leader()).connect();
    let first = wire.put(b"of the first leader");
    both_have_all(&cluster);
    let leader = cluster.leader();
    cluster.kill(leader);
    let mut wire = cluster.server(cluster.leader()).connect();
    let later = wire.put(b"of the second leader");
    both_have_all(&cluster);
    lose_all(&mut cluster);
    let (_, jobs) = place.restore("restored");
    assert_eq!(jobs.keys().copied().collect::<Vec<_>>(), [first, later]);
    let dir = place.at("restored from the second");
    let (code, said) = wal(&["archive", "restore", &second, dir.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(jobs_in(&dir), jobs);
}

/// A member that is started without the archive of the others.
fn add_without_archive(place: &Place, cluster: &mut Cluster) -> usize {
    let peer = cluster.places[0].peer;
    let archived = cluster.launched_with(&place.launch);
    let at = cluster.add(&format!("--cluster-join={peer}"));
    cluster.launched_with(&archived);
    cluster.wait_until_all_vote();
    at
}

#[test]
fn a_leader_without_the_archive_that_others_have_is_told_of_until_another_one_leads() {
    let Some(place) = Place::new() else { return };
    let mut cluster = Cluster::of_one(&place.archived());
    let without = add_without_archive(&place, &mut cluster);
    let peer = cluster.places[0].peer;
    cluster.add(&format!("--cluster-join={peer}"));
    cluster.wait_until_all_vote();
    let first = cluster.leader();
    cluster.server(first).connect().put(b"a job");
    wait_until_archived(&cluster);
    transfer(&cluster, without);
    let said = |at: usize| {
        cluster
            .words_of(at)
            .matches("nothing is archived: member ")
            .count()
    };
    let running = cluster.running();
    let ready = |at: usize| {
        let address = crate::http::address(cluster.server(at));
        let answer = crate::http::send(address, "GET /readyz", &[], b"");
        answer.json()["warnings"].to_string()
    };
    for at in &running {
        wait_until("it says that nothing is archived", || {
            said(*at) == 1 && ready(*at).contains("was started without --archive")
        });
    }
    let other = cluster.server(first);
    let (_, archive) = seen(other);
    let why = archive["trouble"].as_str().unwrap();
    assert!(why.contains(&cluster.id(without).to_string()), "{why}");
    let mut command = crate::ctl::command(&other.address().to_string());
    command.env("BSD_CTL_HTTP", crate::http::address(other).to_string());
    let output = command.arg("archive").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("nothing is archived"), "{text}");
    cluster.server(without).connect().put(b"another job");
    assert_eq!(place.restore("before").1.len(), 1);
    transfer(&cluster, first);
    wait_until_archived(&cluster);
    for at in &running {
        wait_until("it is over", || ready(*at) == "null");
        assert_eq!(said(*at), 1, "it is said once");
    }
    assert_eq!(place.restore("after").1.len(), 2);
}

/// Transfer leadership to this member.
fn transfer(cluster: &Cluster, to: usize) {
    let id = cluster.id(to).to_string();
    wait_until("leadership is transferred to it", || {
        let leader = cluster.server(cluster.leader());
        let body = format!("{{\"member\":\"{id}\"}}");
        let request = "POST /api/v1/cluster/transfer";
        let headers = ["Content-Type: application/json"];
        crate::http::send(
            crate::http::address(leader),
            request,
            &headers,
            body.as_bytes(),
        );
        cluster.leader() == to
    });
}

#[test]
fn a_member_that_is_refused_what_has_no_meaning_for_it_is_told_what_has() {
    let Some(place) = Place::new() else { return };
    let peer = format!("--cluster={}", peer_address(9));
    for (flag, said) in [
        ("--follow", "start a standby elsewhere"),
        ("--archive", "restore by hand"),
    ] {
        let mut launch = place.launch.clone().dir(&place.at("data"));
        launch = launch.arg(&peer).args([flag, &place.url()]);
        if flag == "--archive" {
            launch = launch.arg("--restore-if-empty");
        }
        let exit = launch.run_to_exit();
        assert_eq!(exit.code, Some(5), "{exit:?}");
        assert!(exit.stderr.contains(said), "{exit:?}");
    }
    assert!(!place.at("data").exists());
}
