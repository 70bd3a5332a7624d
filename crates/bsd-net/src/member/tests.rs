//! Members whose turns the test takes: simulated disks, time as the test says, real sockets over
//! loopback. What comes over a socket is waited for, and nothing else is.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use mio::Events;

use super::archivist::{Archiving, Archivist};
use super::flags::{Beginning, ClusterConfig};
use super::*;
use crate::bounds::Bounds;
use crate::peers::BlockingLink;
use crate::{Reactor, reactor};
use bsd::clock::Clock;
use bsd::door::{self, Door};
use bsd::engine::ReplySink;
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::disk::ReadFs;
use bsd::storage::disk::sim::{Crash, Errno, Fault, OpKind};
use bsd::storage::format::Stamp;
use bsd::storage::{SimFs, Trail};
use bsd::types::{ClientId, SECOND_NS};
use bsd::{ErrorClass, SetupError};
use bsd_cluster::ledger_dir;
use bsd_cluster::member::ClusterId;
use bsd_cluster::wire::{Frame, Taken, VERSIONS};

const DIR: &str = "/data";
const MS: i64 = SECOND_NS / 1000;
/// An event that does not come within this time does not come at all.
const PATIENCE_NS: i64 = 60 * SECOND_NS;
const JOBS: u64 = 7;

struct NoOne;

impl ReplySink for NoOne {
    fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
}

fn begin() -> Now {
    Now::new(Time(SECOND_NS), 1_800_000_000_000_000_000)
}

fn options(disk: &SimFs) -> Options {
    Options {
        dir: Some(DIR.into()),
        fs: Arc::new(disk.clone()),
        segment_size: 1 << 20,
        ..Options::default()
    }
}

fn a_put() -> Command<'static> {
    Command::put(0, 0, 60, b"a job")
}

/// A disk with the log of a single server that has some jobs.
fn with_jobs() -> SimFs {
    let disk = SimFs::new(1);
    let mut engine = Engine::open(&options(&disk), begin()).unwrap();
    let client = engine.connect();
    for _ in 0..JOBS {
        let put = a_put();
        engine.run(client, Request::Command(put), begin(), &mut NoOne);
    }
    engine.close(begin()).unwrap();
    disk
}

/// One member, and its server's loop.
struct Site {
    member: Member,
    core: Core,
    desk: ClusterDesk,
    reactor: Reactor,
    events: Events,
    now: Now,
}

impl Site {
    fn open(disk: &SimFs, beginning: Beginning) -> Result<Site, MemberError> {
        Site::with(disk, beginning, None)
    }

    /// One with certificates. It does not wait before it begins a cluster.
    fn with(disk: &SimFs, beginning: Beginning, tls: Option<PeerTls>) -> Result<Site, MemberError> {
        let mut site = Site::at("127.0.0.1:0", disk, beginning, tls)?;
        let begins_at = &mut site.member.begins_at;
        *begins_at = begins_at.map(|_| begin().mono);
        Ok(site)
    }

    fn at(
        address: &str,
        disk: &SimFs,
        beginning: Beginning,
        tls: Option<PeerTls>,
    ) -> Result<Site, MemberError> {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let reactor = Reactor::new().unwrap();
        let desk = ClusterDesk::new(reactor.waker());
        let config = ClusterConfig {
            peer: address,
            listen: address,
            client: None,
            beginning,
            files: None,
        };
        let setup = Setup {
            config: &config,
            client: "127.0.0.1:1".to_owned(),
            http: "http://127.0.0.1:2".to_owned(),
            options: options(disk),
            listener,
            reactor: &reactor,
            desk: desk.clone(),
            archivist: None,
            now: begin(),
        };
        let (member, engine) = Member::open_with(setup, tls)?;
        let (_, calls) = Door::new(door::Bounds::default(), reactor.waker());
        let core = Core::new(engine, calls, Bounds::within(None).0, begin());
        Ok(Site {
            member,
            core,
            desk,
            reactor,
            events: reactor::events(),
            now: begin(),
        })
    }

    /// A turn of the loop of a server, a millisecond after the last one.
    fn turn(&mut self) -> Result<(), ReplicaError> {
        self.now.mono.0 += MS;
        self.now.wall_ns += MS as u64;
        let wait = Duration::from_millis(1);
        self.reactor.poll(&mut self.events, Some(wait)).unwrap();
        for event in &self.events {
            let is_own = reactor::is_own_token(event.token());
            assert!(is_own || self.member.on_event(event));
        }
        self.core.begin_turn(self.now);
        let standing = self.member.begin_turn(&mut self.core.engine, self.now)?;
        if standing == Standing::LostLeadership {
            self.member.step_down(&mut self.core.engine, self.now)?;
        }
        self.member.tick_and_commit(&mut self.core)
    }

    fn until(&mut self, what: &str, is_so: impl FnMut(&mut Site) -> bool) {
        until(what, &mut [self], is_so);
    }

    fn leads(&self) -> bool {
        self.member
            .replica
            .as_ref()
            .is_some_and(|replica| replica.leads(&self.core.engine))
    }

    fn jobs(&self) -> u64 {
        self.core.engine.queue().stats().jobs.total()
    }

    /// Ask for it, and take one turn. The outer error ends the server.
    fn ask(&mut self, ask: Ask) -> Result<Result<String, SetupError>, ReplicaError> {
        let answer = self.desk.ask(ask);
        let turned = self.turn();
        match answer.try_recv() {
            Ok(answer) => turned.map(|()| answer),
            Err(_) => Err(turned.expect_err("it is answered, or the server ends")),
        }
    }

    /// One that leads its cluster alone.
    fn leader(disk: &SimFs) -> Site {
        let mut site = Site::open(disk, Beginning::Init).unwrap();
        site.until("it leads", |site| site.leads());
        site
    }

    /// One that leads a cluster, and one that follows in it and votes.
    fn two() -> (Site, Site) {
        let mut first = Site::leader(&SimFs::new(1));
        let address = first.member.me.peer.parse().unwrap();
        let mut second = Site::open(&SimFs::new(2), Beginning::Join(address)).unwrap();
        let votes = |site: &Site| {
            let report = site.desk.report();
            report.members.iter().filter(|it| it.votes).count()
        };
        let mut sites = [&mut first, &mut second];
        until("two vote", &mut sites, |site| votes(site) == 2);
        (first, second)
    }
}

/// Take turns of all until it is so of each.
fn until(what: &str, sites: &mut [&mut Site], mut is_so: impl FnMut(&mut Site) -> bool) {
    let clock = Clock::start();
    while !sites.iter_mut().all(|site| is_so(site)) {
        let is_late = clock.now().mono.0 > PATIENCE_NS;
        assert!(!is_late, "{what}: it does not come to that");
        for site in sites.iter_mut() {
            site.turn().unwrap();
        }
    }
}

/// Files of a ledger on this disk.
fn ledger_files(disk: &SimFs) -> Vec<String> {
    let listed = disk.read_dir(&ledger_dir(Path::new(DIR))).unwrap();
    let names = listed.into_iter().map(|entry| entry.name);
    names.filter(|name| name.starts_with("ledger")).collect()
}

#[test]
fn g01_a_full_disk_refuses_a_cluster_with_its_cause_and_the_server_goes_on() {
    let disk = with_jobs();
    let mut site = Site::open(&disk, Beginning::Wait).unwrap();
    disk.set_quota(Some(disk.used()));
    let why = site.ask(Ask::Init).unwrap().unwrap_err();
    assert_eq!(why.class(), ErrorClass::Full);
    let why = why.to_string();
    assert!(why.contains("No space left on device"), "{why}");
    assert!(why.contains("goes on as before"), "{why}");
    for word in ["empty", "remove", "delete"] {
        assert!(!why.contains(word), "{why}");
    }
    assert_eq!(ledger_files(&disk), Vec::<String>::new());
    assert_eq!(site.core.engine.stamp(), Stamp::default());
    for _ in 0..10 {
        site.turn().unwrap();
    }
    assert_eq!(site.jobs(), JOBS);
    disk.set_quota(None);
    site.ask(Ask::Init).unwrap().unwrap();
    site.until("it leads", |site| site.leads());
    assert_eq!(site.jobs(), JOBS);
}

#[test]
fn g01_whatever_fails_while_a_cluster_is_begun_it_is_refused_and_undone_or_is_called_what_it_is() {
    let before = with_jobs();
    let run = |fault: Option<Fault>| {
        let disk = before.crash_image(Crash::KeepAll);
        let mut site = Site::open(&disk, Beginning::Wait).unwrap();
        disk.clear_trace();
        fault.into_iter().for_each(|fault| disk.inject(fault));
        let asked = site.ask(Ask::Init);
        let trace = disk.trace();
        disk.clear_faults();
        (disk, site, asked, trace)
    };
    let (.., asked, calls) = run(None);
    asked.unwrap().unwrap();
    let (mut refused, mut ended) = (0, 0);
    let errors = [
        (Errno::NOSPC, ErrorClass::Full),
        (Errno::IO, ErrorClass::Disk),
        (Errno::MFILE, ErrorClass::Descriptors),
    ];
    for kind in OpKind::ALL {
        let count = calls.iter().filter(|call| call.kind == kind).count() as u64;
        for (nth, (errno, class)) in (1..=count).flat_map(|nth| errors.map(|it| (nth, it))) {
            let what = format!("{kind:?} {nth} of {count}: {errno}");
            let (disk, mut site, asked, _) = run(Some(Fault::fail(kind, errno).nth(nth)));
            let mut is_refused = false;
            match asked {
                Ok(Ok(_)) => {}
                Ok(Err(why)) => {
                    assert_eq!(why.class(), class, "{what}: {why}");
                    assert!(!why.to_string().contains("empty"), "{what}: {why}");
                    is_refused = true;
                    refused += 1;
                }
                Err(error) => {
                    assert_eq!(error.class(), class, "{what}: {error}");
                    ended += 1;
                }
            }
            for how in [Crash::KeepAll, Crash::DropUnsynced] {
                let image = disk.crash_image(how);
                let again = Site::open(&image, Beginning::Wait);
                let again = again.unwrap_or_else(|error| panic!("{what}, {how:?}: {error}"));
                assert_eq!(again.jobs(), JOBS, "{what}, {how:?}");
                let is_member = again.member.replica.is_some();
                assert!(!(is_refused && is_member), "{what}, {how:?}: it was begun");
            }
            if is_refused {
                let begun = site
                    .ask(Ask::Init)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                begun.unwrap_or_else(|why| panic!("{what}: {why}"));
            }
        }
    }
    assert!(refused > 10, "{refused} were refused, {ended} ended");
}

/// A crash at any call of it: the next start is a member or not, and has the jobs; and can be one.
#[test]
fn g01_a_crash_while_a_cluster_is_begun_leaves_a_server_that_starts() {
    let before = with_jobs();
    let (mut members, mut others) = (0, 0);
    for stop in 1.. {
        let disk = before.crash_image(Crash::KeepAll);
        let mut site = Site::open(&disk, Beginning::Wait).unwrap();
        disk.crash_at(disk.operations() + stop);
        let _ = site.ask(Ask::Init);
        let is_over = !disk.is_crashed();
        drop(site);
        for how in [
            Crash::KeepAll,
            Crash::DropUnsynced,
            Crash::Random { seed: stop },
        ] {
            let what = format!("stopped at operation {stop}, {how:?}");
            let image = disk.crash_image(how);
            let again = Site::open(&image, Beginning::Init);
            let mut again = again.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(again.jobs(), JOBS, "{what}");
            again.until("it leads", |site| site.leads());
            let begun = ledger_files(&disk.crash_image(how)).len();
            (members, others) = (members + begun.min(1), others + usize::from(begun == 0));
        }
        if is_over {
            break;
        }
    }
    assert!(members > 3 && others > 3, "{members} and {others}");
}

/// Who calls this one to send it a copy of its log.
fn sender(site: &mut Site) -> BlockingLink {
    let me = Me {
        cluster: site.member.me.cluster,
        node: NodeId(9),
        peer: "127.0.0.1:9".to_owned(),
        client: String::new(),
        http: String::new(),
        archives: false,
        versions: VERSIONS,
    };
    let (to, address) = (site.member.me.node, site.member.me.peer.clone());
    let patience = Duration::from_secs(60);
    let dialed = std::thread::spawn(move || {
        BlockingLink::dial(&me, to, &address, Purpose::Snapshot, None, patience)
    });
    site.until("it is called", |_| dialed.is_finished());
    dialed.join().unwrap().unwrap().0
}

#[test]
fn t20_after_a_copy_that_failed_the_next_one_is_received() {
    let mut site = Site::leader(&SimFs::new(1));
    for _ in 0..3 {
        let mut link = sender(&mut site);
        site.until("it is received", |site| site.member.is_receiving);
        link.send(&Frame::Taken(Taken::Installed)).unwrap();
        site.until("it has failed", |site| !site.member.is_receiving);
    }
}

#[test]
fn t20_where_no_thread_can_be_started_the_next_try_works() {
    let (mut site, none) = (
        Site::leader(&SimFs::new(1)),
        |_, _| Err(Errno::AGAIN.into()),
    );
    let spawn = std::mem::replace(&mut site.member.courier.spawn, none);
    let mut link = sender(&mut site);
    let closed = std::thread::spawn(move || link.receive().is_err());
    site.until("it is refused", |_| closed.is_finished());
    assert!(closed.join().unwrap() && !site.member.is_receiving);
    site.member.courier.spawn = spawn;
    let _talk = sender(&mut site);
    site.until("it is received", |site| site.member.is_receiving);

    let mut second = Site::open(&SimFs::new(2), Beginning::Wait).unwrap();
    let spawn = std::mem::replace(&mut second.member.courier.spawn, none);
    let address = site.member.me.peer.parse().unwrap();
    let why = second
        .ask(Ask::Join(address))
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(why.contains("no thread"), "{why}");
    second.member.courier.spawn = spawn;
    second.ask(Ask::Join(address)).unwrap().unwrap();
    let mut sites = [&mut site, &mut second];
    until("it is added", &mut sites, |site| {
        site.member.replica.is_some()
    });
}

#[test]
fn t21_a_stop_waits_for_a_successor_for_a_second_and_no_longer() {
    let (mut first, _second) = Site::two();
    let asked = first.now.mono;
    assert!(
        !first.member.may_stop(true, &first.core.engine, asked),
        "it transfers leadership"
    );
    let after = |ns| Time(asked.0 + ns);
    assert!(
        !first
            .member
            .may_stop(false, &first.core.engine, after(HAND_OVER_NS - 1))
    );
    assert!(first.leads(), "no one else does");
    assert!(
        first
            .member
            .may_stop(false, &first.core.engine, after(HAND_OVER_NS))
    );
}

#[test]
fn g10_draining_outlives_its_leader_and_ends_where_the_next_one_ends_it() {
    let (mut first, mut second) = Site::two();
    let drains = |site: &Site| site.core.engine.is_draining();
    assert!(!drains(&first) && !drains(&second));
    first.core.engine.drain();
    until("both drain", &mut [&mut first, &mut second], |site| {
        drains(site)
    });
    assert!(first.leads());
    let heir = second.member.me.node;
    first.ask(Ask::Transfer(heir)).unwrap().unwrap();
    until(
        "the other one leads",
        &mut [&mut first, &mut second],
        |site| site.leads() == (site.member.me.node == heir),
    );
    for _ in 0..100 {
        first.turn().unwrap();
        second.turn().unwrap();
        assert!(drains(&first) && drains(&second));
    }
    second.core.engine.undrain();
    until("neither drains", &mut [&mut first, &mut second], |site| {
        !drains(site)
    });
    // What is said to one that follows changes nothing.
    first.core.engine.drain();
    until("neither drains", &mut [&mut first, &mut second], |site| {
        !drains(site)
    });
    assert!(second.leads());
}

#[test]
fn t21_who_has_no_successor_stops_at_once() {
    let mut alone = Site::leader(&SimFs::new(1));
    let now = alone.now.mono;
    assert!(!alone.member.may_stop(false, &alone.core.engine, now));
    assert!(alone.member.may_stop(true, &alone.core.engine, now));
}

#[test]
fn t17_a_stop_hands_the_lead_to_no_one_who_does_not_answer() {
    let (mut first, second) = Site::two();
    drop(second);
    let lost = |site: &Site| site.member.peers.states().iter().all(|it| !it.is_connected);
    first.until("the connection is lost", |site| lost(site));
    let now = first.now.mono;
    assert!(!first.leads() || first.member.may_stop(true, &first.core.engine, now));
}

/// The standing at each step of reading the log while `work` is done.
fn seen_while(site: &mut Site, work: impl FnOnce(&mut Site)) -> Vec<(MemberStanding, Stage)> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (desk, pulse, steps) = (site.desk.clone(), Arc::<Pulse>::default(), seen.clone());
    pulse.set_stage(Stage::Running);
    site.member.show(
        pulse.clone(),
        Some(Box::new(move || {
            let step = (desk.report().standing, pulse.stage());
            steps.lock().unwrap().push(step);
        })),
    );
    work(site);
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[test]
fn g07_before_a_former_leader_reads_its_log_again_others_see_that_it_does_not_lead() {
    let mut site = Site::leader(&with_jobs());
    assert_eq!(site.desk.report().standing, MemberStanding::Leads);
    let seen = seen_while(&mut site, |site| {
        site.member
            .step_down(&mut site.core.engine, site.now)
            .unwrap();
    });
    assert!(!seen.is_empty());
    let others = seen
        .iter()
        .filter(|it| **it != (MemberStanding::Alone, Stage::Reading));
    assert_eq!(others.count(), 0, "{seen:?}");
    let report = site.desk.report();
    assert_eq!(
        (report.leader, report.trouble),
        (None, Some(READS.to_owned()))
    );
    assert_eq!(site.member.pulse.stage(), Stage::Running);
    site.until("it leads again", |site| site.leads());
    assert_eq!(site.desk.report().standing, MemberStanding::Leads);
    assert_eq!(site.jobs(), JOBS);
}

#[test]
fn g13_each_step_of_reading_the_log_again_tells_the_service_manager() {
    let disk = with_jobs();
    let mut site = Site::leader(&disk);
    let steps = seen_while(&mut site, |site| {
        site.member
            .step_down(&mut site.core.engine, site.now)
            .unwrap();
    });
    assert!(!steps.is_empty());
}

/// It is asked with certificates that SIGHUP brings while it asks.
#[test]
fn g08_a_server_that_asks_to_be_added_shows_the_certificates_that_it_has_now() {
    let [of_leader, ours, strangers] = PeerTls::made();
    let mut leader = Site::with(&SimFs::new(1), Beginning::Init, Some(of_leader)).unwrap();
    leader.until("it leads", |site| site.leads());
    let address = leader.member.me.peer.parse().unwrap();
    let second = Site::with(&SimFs::new(2), Beginning::Join(address), Some(strangers));
    let mut second = second.unwrap();
    second.member.peers.set_tls(ours.clone());
    let mut sites = [&mut leader, &mut second];
    until("it is refused", &mut sites, |site| {
        site.leads() || site.member.not_added.is_some()
    });
    sites[1].member.courier.set_tls(ours);
    until("it is added", &mut sites, |site| {
        site.member.replica.is_some()
    });
}

#[test]
fn g09_a_copy_that_does_not_come_is_sent_after_longer_and_longer_times() {
    let rests: Vec<u64> = (0..9)
        .map(|failed| snapshot::rest_after(failed).as_secs())
        .collect();
    assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    let mut site = Site::leader(&SimFs::new(1));
    let (to, full) = (NodeId(7), || Err("the disk is full".into()));
    for times in 1..4 {
        site.member.note_sent(to, &full());
        assert_eq!(site.member.failing[&to].times, times);
    }
    site.member.note_sent(to, &Ok(5));
    assert!(site.member.failing.is_empty());
}

#[test]
fn g09_a_member_that_says_nothing_is_not_connected_and_when_it_was_last_heard_of_is_known() {
    let (mut first, second) = Site::two();
    let peer = second.member.me.node;
    let of_peer = |site: &Site| {
        let members = site.desk.report().members;
        members.into_iter().find(|it| it.id == peer).unwrap()
    };
    first.turn().unwrap();
    assert!(of_peer(&first).is_connected);
    // It does not run, and its connection stays open.
    let begun = first.now.mono;
    first.until("it is missed", |site| {
        site.now.mono.since(begun) > 4 * SECOND_NS && !site.leads()
    });
    let seen = of_peer(&first);
    assert!(!seen.is_connected);
    assert!(seen.heard_ms.is_some_and(|ms| ms >= 3_000), "{seen:?}");
    let states = first.member.peers.states();
    assert!(states.iter().any(|it| it.is_connected), "{states:?}");
}

#[test]
fn g06_an_empty_directory_begins_no_cluster_while_the_members_of_one_miss_it() {
    let (mut first, second) = Site::two();
    let (address, lost) = (second.member.me.peer.clone(), second.member.me.node);
    drop(second);
    let again = Site::at(&address, &SimFs::new(3), Beginning::Init, None);
    let mut again = again.unwrap();
    let clock = Clock::start();
    let error = loop {
        assert!(clock.now().mono.0 < PATIENCE_NS, "no one calls");
        first.turn().unwrap();
        if let Err(error) = again.turn() {
            break error;
        }
        assert!(
            again.member.replica.is_none(),
            "it has begun another cluster"
        );
    };
    assert_eq!(error.class(), ErrorClass::Setup);
    let (said, cluster) = (error.to_string(), first.member.me.cluster.to_string());
    for words in [cluster, lost.to_string(), "not mounted".to_owned()] {
        assert!(said.contains(&words), "{words}: {said}");
    }
    // Nor when it is told to.
    again.member.begins_at = None;
    let why = again.ask(Ask::Init).unwrap().unwrap_err();
    assert_eq!(why.to_string(), said);
}

#[test]
fn g06_an_empty_directory_that_no_one_misses_begins_a_cluster_after_a_while() {
    let site = Site::at("127.0.0.1:0", &SimFs::new(1), Beginning::Init, None);
    let mut site = site.unwrap();
    let begun = site.now.mono;
    site.until("it leads", |site| site.leads());
    assert!(site.now.mono.since(begun) >= LISTEN_NS);
    // With jobs there is nothing to be missed.
    let site = Site::at("127.0.0.1:0", &with_jobs(), Beginning::Init, None);
    assert!(site.unwrap().member.replica.is_some());
}

/// A word to an archivist: the term and the trail of a lead, and nothing for its end.
type Note = Option<(u64, Arc<Trail>)>;

/// What an archivist was told.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<Note>>>);

impl Archivist for Notes {
    fn lead(&self, _: ClusterId, _: NodeId, term: u64) -> Vec<Arc<Trail>> {
        let trail = Arc::new(Trail::new(1 << 20));
        self.0.lock().unwrap().push(Some((term, trail.clone())));
        vec![trail]
    }

    fn rest(&self) {
        self.0.lock().unwrap().push(None);
    }
}

impl Notes {
    /// All that was told since the last call.
    fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn the_archive_is_told_of_each_lead_and_its_end_and_has_nothing_that_is_not_committed() {
    let (mut first, mut second) = Site::two();
    let notes = Notes::default();
    first.member.archiving = Archiving::by(Some(Box::new(notes.clone())));
    first.turn().unwrap();
    first.turn().unwrap();
    let told = notes.take();
    let [Some((term, trail))] = &told[..] else {
        panic!("{} words", told.len());
    };
    assert!(trail.log().is_some());
    // No one else is there to agree to it.
    let engine = &mut first.core.engine;
    let written = engine.log().unwrap().written();
    let client = engine.connect();
    let put = a_put();
    engine.run(client, Request::Command(put), first.now, &mut NoOne);
    first.until("it leads no more", |site| !site.leads());
    first.turn().unwrap();
    assert!(trail.durable() <= written);
    assert!(matches!(notes.take()[..], [None]));
    let mut sites = [&mut first, &mut second];
    until("both know a leader", &mut sites, |site| {
        matches!(
            site.desk.report().standing,
            MemberStanding::Leads | MemberStanding::Follows
        )
    });
    let later = notes.take();
    match (first.leads(), later.last()) {
        (true, Some(Some((again, other)))) => {
            assert!(again > term && !Arc::ptr_eq(trail, other));
        }
        (false, None | Some(None)) => {}
        (leads, _) => panic!("{leads}, {} words", later.len()),
    }
}
