//! Members that are killed, stopped and replaced under load.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use bsd::random::Random;
use bsd_cluster::member::NodeId;
use bsd_cluster::wire::Versions;

use super::client::Client;
use super::history::History;
use super::links::Links;
use super::members::Cluster;
use crate::harness::{Launch, PATIENCE, POLL_EVERY, wait_until, wal};
use bsd::check::volume::{seed_of_run, volume};

/// Clients at work, each on a thread.
pub(super) const CLIENTS: usize = 8;
/// How long a member is paused; longer than the others wait for it.
const PAUSE: Duration = Duration::from_secs(1);
/// Load between faults, at most.
const LOAD: Duration = Duration::from_millis(1200);

/// A fault of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    KillLeader,
    KillFollower,
    KillAll,
    PauseLeader,
    PauseFollower,
    StopLeader,
    StopFollower,
    /// One after another, each as soon as the one before serves again.
    KillEach,
    /// Nothing comes from it to the others, nor from them to it.
    CutOffLeader,
    /// Its messages do not arrive.
    MuteLeader,
    MuteFollower,
    /// Messages to it do not arrive.
    DeafLeader,
    DeafFollower,
    /// Leader and one follower do not hear each other; the other one hears both.
    PartTwo,
    /// Everything comes late.
    SlowLinks,
}

const FAULTS: [Fault; 15] = [
    Fault::KillLeader,
    Fault::KillFollower,
    Fault::KillAll,
    Fault::PauseLeader,
    Fault::PauseFollower,
    Fault::StopLeader,
    Fault::StopFollower,
    Fault::KillEach,
    Fault::CutOffLeader,
    Fault::MuteLeader,
    Fault::MuteFollower,
    Fault::DeafLeader,
    Fault::DeafFollower,
    Fault::PartTwo,
    Fault::SlowLinks,
];

/// All clients at work until `until` returns.
pub(super) fn work_while(clients: &mut [Client<'_>], until: impl FnOnce()) {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for client in clients {
            let over = &over;
            scope.spawn(move || client.run_until(over));
        }
        // Clients end also if it panics.
        let _end = Defer(&over);
        until();
    });
}

struct Defer<'a>(&'a AtomicBool);

impl Drop for Defer<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) fn clients<'a>(
    count: usize,
    seed: u64,
    history: &'a History,
    cluster: &'a super::members::Doors,
) -> Vec<Client<'a>> {
    (0..count)
        .map(|number| Client::new(number, seed, history, cluster))
        .collect()
}

/// How long it takes until a put is acknowledged that comes through a member that is well. The first
/// door is that of a client who knows nothing: it tries all.
pub(super) fn time_to_go_on(
    cluster: &Cluster,
    history: &History,
    but: &[usize],
    since: Instant,
) -> Duration {
    loop {
        for at in cluster.running() {
            if but.contains(&at) {
                continue;
            }
            if history.probe(cluster.server(at).address()) {
                return since.elapsed();
            }
        }
        assert!(
            since.elapsed() < PATIENCE,
            "no work for {:?}\n{}",
            since.elapsed(),
            cluster.words()
        );
        thread::sleep(POLL_EVERY);
    }
}

/// Strike, and return how long nothing can be put. All members run after it.
fn strike(fault: Fault, cluster: &mut Cluster, history: &History, random: &mut Random) -> Duration {
    match fault {
        Fault::KillLeader | Fault::KillFollower | Fault::StopLeader | Fault::StopFollower => {
            let victim = match fault {
                Fault::KillLeader | Fault::StopLeader => cluster.leader(),
                _ => cluster.follower(random),
            };
            let since = Instant::now();
            match fault {
                Fault::KillLeader | Fault::KillFollower => cluster.kill(victim),
                _ => drop(cluster.stop(victim)),
            }
            let took = time_to_go_on(cluster, history, &[], since);
            thread::sleep(Duration::from_millis(random.below(500)));
            cluster.start(victim);
            took
        }
        Fault::PauseLeader | Fault::PauseFollower => {
            let victim = match fault {
                Fault::PauseLeader => cluster.leader(),
                _ => cluster.follower(random),
            };
            let since = Instant::now();
            cluster.signal(victim, Signal::STOP);
            let took = time_to_go_on(cluster, history, &[victim], since);
            thread::sleep(PAUSE.saturating_sub(since.elapsed()));
            cluster.signal(victim, Signal::CONT);
            took
        }
        Fault::KillAll => {
            let all = cluster.running();
            for at in &all {
                cluster.kill(*at);
            }
            let since = Instant::now();
            for at in all {
                cluster.start(at);
            }
            time_to_go_on(cluster, history, &[], since)
        }
        Fault::KillEach => {
            let mut worst = Duration::ZERO;
            for at in cluster.running() {
                let since = Instant::now();
                cluster.kill(at);
                cluster.start(at);
                worst = worst.max(time_to_go_on(cluster, history, &[], since));
            }
            worst
        }
        Fault::CutOffLeader
        | Fault::MuteLeader
        | Fault::MuteFollower
        | Fault::DeafLeader
        | Fault::DeafFollower => {
            let victim = match fault {
                Fault::MuteFollower | Fault::DeafFollower => cluster.follower(random),
                _ => cluster.leader(),
            };
            let is_mute = !matches!(fault, Fault::DeafLeader | Fault::DeafFollower);
            let is_deaf = !matches!(fault, Fault::MuteLeader | Fault::MuteFollower);
            part(
                cluster,
                history,
                &[victim],
                &[victim],
                |links, this, other| {
                    if is_mute {
                        links.cut(this, other);
                    }
                    if is_deaf {
                        links.cut(other, this);
                    }
                },
            )
        }
        Fault::PartTwo => {
            let (leader, follower) = (cluster.leader(), cluster.follower(random));
            let follower_id = cluster.id(follower);
            part(
                cluster,
                history,
                &[leader],
                &[leader, follower],
                |links, this, other| {
                    if other == follower_id {
                        links.cut(this, other);
                        links.cut(other, this);
                    }
                },
            )
        }
        Fault::SlowLinks => {
            let all = cluster.running();
            let late = Duration::from_millis(random.below(40));
            part(cluster, history, &all, &[], |links, this, other| {
                links.delay(this, other, late);
            })
        }
    }
}

/// Trouble on the links of each of these to all others, for a while. Clients of those that are `lost`
/// may have to wait.
fn part(
    cluster: &Cluster,
    history: &History,
    victims: &[usize],
    lost: &[usize],
    trouble: impl Fn(&Links, NodeId, NodeId),
) -> Duration {
    let ids = cluster.running().into_iter().map(|at| (at, cluster.id(at)));
    let ids: Vec<(usize, NodeId)> = ids.collect();
    let since = Instant::now();
    for (victim, id) in ids.iter().filter(|(at, _)| victims.contains(at)) {
        for (_, other) in ids.iter().filter(|(at, _)| at != victim) {
            trouble(cluster.links(), *id, *other);
        }
    }
    let took = time_to_go_on(cluster, history, lost, since);
    thread::sleep(PAUSE.saturating_sub(since.elapsed()));
    cluster.links().repair();
    took
}

/// Every acknowledgement holds: now, on the next leader, and after everything was stopped and
/// started.
pub(super) fn check_everywhere(cluster: &mut Cluster, history: &History) {
    let leader = cluster.leader();
    history.check(&mut cluster.server(leader).connect(), "at the end");
    cluster.stop(leader);
    let next = cluster.leader();
    assert_ne!(next, leader);
    history.check(&mut cluster.server(next).connect(), "on the next leader");
    cluster.start(leader);
    cluster.wait_until_all_vote();
    let all = cluster.running();
    for at in &all {
        cluster.stop(*at);
    }
    for at in &all {
        let dir = cluster.places[*at].dir.display().to_string();
        let (code, said) = wal(&["verify", &dir]);
        assert_eq!(code, Some(0), "{dir}: {said}\n{}", cluster.words());
    }
    for at in &all {
        cluster.start(*at);
    }
    let leader = cluster.leader();
    history.check(&mut cluster.server(leader).connect(), "after a start");
    history.assert_sound("at the end", || cluster.words());
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_deleted_comes_back_whatever_happens_to_members() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    // It is wanted at the end, which may be an hour from now: if it is missing, that is said now.
    wal(&["--version"]);
    let seed = seed_of_run("BSD_CLUSTER_SEED");
    let rounds = volume("BSD_CLUSTER_FAULTS", 8);
    let mut random = Random::new(seed);
    let history = History::default();
    let mut cluster = Cluster::of_three_over(&Links::default(), &launch);
    let doors = cluster.doors.clone();
    let mut clients = clients(CLIENTS, seed, &history, &doors);
    let mut faults = Vec::new();
    work_while(&mut clients, || {
        for round in 0..rounds {
            if faults.is_empty() {
                faults = FAULTS.to_vec();
                random.shuffle(&mut faults);
            }
            let fault = faults.pop().unwrap();
            // The length of the load is what varies here; nothing is waited for.
            thread::sleep(LOAD / 4 + LOAD * random.below(75) / 100);
            let before = history.answers.load(Ordering::Relaxed);
            let took = strike(fault, &mut cluster, &history, &mut random);
            println!("{round}: {fault:?} after {before} answers: work went on after {took:?}");
            let seen = history.answers.load(Ordering::Relaxed);
            wait_until("clients are served", || {
                history.answers.load(Ordering::Relaxed) > seen
            });
            history.assert_sound(&format!("{round}: {fault:?}"), || cluster.words());
        }
    });
    check_everywhere(&mut cluster, &history);
    let (puts, deletes) = (history.puts(), history.deletes());
    println!("{puts} puts and {deletes} deletes were acknowledged");
    assert!(puts > 100, "{puts}");
}

/// The next version is this one that says it speaks one version more, and says more in each hello.
#[test]
fn a_rolling_upgrade_under_load_loses_nothing_and_ends_in_time() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let seed = seed_of_run("BSD_CLUSTER_SEED");
    let history = History::default();
    let links = Links::default();
    let mut cluster = Cluster::of_three_over(&links, &launch);
    let doors = cluster.doors.clone();
    let mut clients = clients(CLIENTS, seed, &history, &doors);
    work_while(&mut clients, || {
        let mut members = cluster.running();
        let leader = cluster.leader();
        members.sort_by_key(|at| *at == leader);
        for at in members {
            let since = Instant::now();
            let exit = cluster.stop(at);
            let took = time_to_go_on(&cluster, &history, &[], since);
            println!("{at} stopped: work went on after {took:?}");
            if at == leader {
                let handed = exit
                    .stderr
                    .contains("stopping: leadership is transferred to member");
                assert!(handed, "{}", exit.stderr);
            }
            links.speaks(cluster.id(at), Versions { min: 1, max: 3 });
            cluster.start(at);
            let own = cluster.server(at).address();
            wait_until("clients are served through it", || history.probe(own));
            cluster.wait_until_all_are_connected();
        }
    });
    check_everywhere(&mut cluster, &history);
}
