//! The disk of one member is full, under load: of one that follows and of one that leads; all of it, or
//! where its ledger is, or where its log is.
//!
//! Each member has a small file system in memory. What fills it is a file of the test's, and jobs until
//! the member says that it has no room. The others go on, whatever was told holds, and the member
//! catches up when the file is gone: then it counts, with one other that is stopped.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use bsd::random::Random;

use super::faults::{CLIENTS, check_everywhere, clients, time_to_go_on, work_while};
use super::history::{Answer, History};
use super::members::{Cluster, pid_behind};
use super::rules::wait_until_alike;
use crate::faults::SmallDisk;
use crate::harness::{Launch, PATIENCE, POLL_EVERY, wait_until};
use crate::space::fill_up;
use bsd::check::volume::{seed_of_run, volume};

/// Bytes of a job that fills a disk.
const LARGE: usize = 256 << 10;
/// The bound of a job's size.
const JOB_SIZE_MAX: &str = "300000";
/// This many of them are there at a time where the log has to have room for them.
const FEW: usize = 8;
/// After this many jobs on a full disk a member copes.
const COPED: u32 = 400;
/// So much is left of disks that jobs fill.
const LEFT: u64 = 8 << 20;
/// A member says less than this in a round.
const LINES: usize = 300;
/// Line of a member that has no room.
const LEDGER_FULL: &str = "the ledger has no room";
const LOG_FULL: &str = "this member does not follow until there is room";

/// The part of a member that is on a small disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    Ledger,
    Log,
}

impl Part {
    /// A ledger begins with 32 MiB; a copy of the log comes to the disk of the ledger, too. Beside its
    /// log a member keeps back 7 MiB.
    fn size(self) -> &'static str {
        match self {
            Part::All => "128m",
            Part::Ledger => "192m",
            Part::Log => "96m",
        }
    }

    /// Lines of which it logs one.
    fn words(self) -> &'static [&'static str] {
        match self {
            Part::All => &[LEDGER_FULL, LOG_FULL],
            Part::Ledger => &[LEDGER_FULL],
            Part::Log => &[LOG_FULL],
        }
    }
}

/// Three members, each with a part of it on a small disk.
struct Site {
    part: Part,
    disks: Vec<SmallDisk>,
    cluster: Cluster,
    roomy: TempDir,
}

impl Site {
    fn build(part: Part, launch: &Launch) -> Option<Site> {
        let mut disks = Vec::new();
        for _ in 0..3 {
            disks.push(SmallDisk::mount(part.size())?);
        }
        let roomy = TempDir::new().unwrap();
        let dirs = [0, 1, 2].map(|nth| match part {
            Part::All | Part::Log => disks[nth].path().join("data"),
            Part::Ledger => roomy.path().join(format!("n{nth}")),
        });
        let mut site = Site {
            part,
            cluster: Cluster::of_three_in(&dirs, launch),
            disks,
            roomy,
        };
        if part != Part::All {
            (0..3).for_each(|at| site.part_ledger(at));
            site.cluster.wait_until_all_vote();
        }
        Some(site)
    }

    /// Its ledger is on another file system than its log from now on. It cannot be so from the
    /// beginning: the first copy of the log comes by way of the ledger's directory.
    fn part_ledger(&mut self, at: usize) {
        self.cluster.stop(at);
        let here = bsd_cluster::ledger_dir(&self.cluster.places[at].dir);
        let there = match self.part {
            Part::Ledger => self.disks[at].path().join("ledger"),
            _ => self.roomy.path().join(format!("ledger-{at}")),
        };
        let copied = Command::new("cp").arg("-a").args([&here, &there]).status();
        assert!(copied.unwrap().success());
        fs::remove_dir_all(&here).unwrap();
        symlink(&there, &here).unwrap();
        self.cluster.start(at);
        self.cluster.leader();
    }

    fn ballast(&self, at: usize) -> PathBuf {
        self.disks[at].path().join("ballast")
    }

    /// How often this member has said that it has no room.
    fn complaints(&self, at: usize) -> usize {
        let said = self.cluster.words_of(at);
        let words = self.part.words().iter();
        words.map(|words| said.matches(words).count()).sum()
    }
}

/// Puts of large jobs, one after another, through members that are well, and how long none was
/// acknowledged.
struct Pressure<'a> {
    history: &'a History,
    jobs: Vec<u64>,
    last: Instant,
    longest: Duration,
}

impl Pressure<'_> {
    fn put(&mut self, cluster: &Cluster, but: usize) {
        for at in cluster.running() {
            let door = cluster.server(at).address();
            if at == but {
                continue;
            }
            match self.history.probe_with(door, LARGE) {
                Answer::Told(id) => self.jobs.push(id),
                // Others are asked, and it again.
                Answer::Refused | Answer::None => continue,
            }
            let now = Instant::now();
            self.longest = self.longest.max(now - self.last);
            self.last = now;
            return;
        }
        assert!(
            self.last.elapsed() < PATIENCE,
            "nothing is put for {:?}\n{}",
            self.last.elapsed(),
            cluster.words()
        );
        thread::sleep(POLL_EVERY);
    }

    fn delete_all_but(&mut self, keep: usize, cluster: &Cluster, but: Option<usize>) {
        let since = Instant::now();
        let is_other = |at: &usize| Some(*at) != but;
        while self.jobs.len() > keep {
            let mut doors = cluster.running().into_iter().filter(is_other);
            let door = |at| cluster.server(at).address();
            if doors.any(|at| self.history.delete_probe(door(at), self.jobs[0])) {
                self.jobs.remove(0);
            }
            assert!(since.elapsed() < PATIENCE, "{}", cluster.words());
        }
    }
}

/// Who leads, as the others say; waits for it. It may be `victim` again: its ledger gives up a file when
/// the log has what is in it.
fn leader_for_others(cluster: &Cluster, victim: usize) -> usize {
    let since = Instant::now();
    loop {
        let others = (0..3).filter(|at| *at != victim);
        let mut pids = others.filter_map(|at| pid_behind(cluster.server(at).address()));
        let leader = pids.find_map(|pid| (0..3).find(|at| cluster.server(*at).id() == pid));
        if let Some(leader) = leader {
            return leader;
        }
        assert!(since.elapsed() < PATIENCE, "{}", cluster.words());
        thread::sleep(POLL_EVERY);
    }
}

/// The disk of `victim` is full, and has room again. How long nothing was acknowledged, at the longest.
fn strike(site: &mut Site, victim: usize, history: &History, random: &mut Random) -> Duration {
    let led = site.cluster.leader() == victim;
    let before = site.complaints(victim);
    history.may_refuse(true);
    fill_up(site.disks[victim].path());
    let mut pressure = Pressure {
        history,
        jobs: Vec::new(),
        last: Instant::now(),
        longest: Duration::ZERO,
    };
    // Who comes to one that led and does not know who leads now waits for ten seconds.
    let closed = if led { vec![victim] } else { Vec::new() };
    site.cluster.open_doors(&closed);
    let since = Instant::now();
    let mut puts = 0;
    // Where all is on one disk, each part lives on what the other gives up, and there may be no
    // complaint.
    while site.complaints(victim) == before && (site.part != Part::All || puts < COPED) {
        pressure.put(&site.cluster, victim);
        puts += 1;
        if site.part != Part::Log {
            pressure.delete_all_but(FEW, &site.cluster, Some(victim));
            // What the ledger gives up someone else takes.
            fill_up(site.disks[victim].path());
        }
        assert!(
            since.elapsed() < 2 * PATIENCE,
            "it has room for ever\n{}",
            site.cluster.words()
        );
    }
    let leader = leader_for_others(&site.cluster, victim);
    // It ends and begins on its full disk.
    if random.one_in(2) {
        site.cluster.kill(victim);
        site.cluster.start(victim);
        site.cluster.open_doors(&closed);
    }
    let runs = site.cluster.places[victim].server.as_mut();
    assert!(
        runs.unwrap().is_running(),
        "{}",
        site.cluster.words_of(victim)
    );
    let answers = || history.answers.load(std::sync::atomic::Ordering::Relaxed);
    let seen = answers();
    while answers() < seen + 300 {
        pressure.put(&site.cluster, victim);
        pressure.delete_all_but(FEW, &site.cluster, Some(victim));
    }

    fs::remove_file(site.ballast(victim)).unwrap();
    site.cluster.open_doors(&[]);
    // With one of the others stopped nothing can be put without it.
    let other = (0..3).find(|at| *at != victim && *at != leader).unwrap();
    site.cluster.signal(other, Signal::STOP);
    time_to_go_on(&site.cluster, history, &[other], Instant::now());
    site.cluster.signal(other, Signal::CONT);
    pressure.delete_all_but(0, &site.cluster, None);
    wait_until("it follows a leader that has room", || {
        history.probe_with(site.cluster.server(victim).address(), 0) != Answer::Refused
    });
    history.may_refuse(false);
    pressure.longest
}

fn fill_disks(part: Part) {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch.arg("-z").arg(JOB_SIZE_MAX);
    let Some(mut site) = Site::build(part, &launch) else {
        return;
    };
    let seed = seed_of_run("BSD_CLUSTER_SEED");
    let rounds = volume("BSD_CLUSTER_FULL_DISKS", 2);
    let mut random = Random::new(seed);
    let history = History::default();
    let doors = site.cluster.doors.clone();
    let mut clients = clients(CLIENTS, seed, &history, &doors);
    work_while(&mut clients, || {
        for round in 0..rounds {
            let (victim, role) = match round % 2 {
                0 => (site.cluster.follower(&mut random), "follower"),
                _ => (site.cluster.leader(), "leader"),
            };
            let took = strike(&mut site, victim, &history, &mut random);
            println!("{round}: {part:?} of a {role}: no work was done for {took:?}");
            let words = || site.cluster.words();
            history.assert_sound(&format!("{round}: {part:?} of a {role}"), words);
            let said = site.cluster.words_of(victim).lines().count();
            assert!(said < LINES, "{said} lines about a full disk");
        }
    });
    wait_until_alike(&site.cluster);
    check_everywhere(&mut site.cluster, &history);
}

/// The disks of two or of all three are full: puts are refused, and workers empty the cluster.
#[test]
fn g04_when_the_disks_of_a_majority_are_full_puts_end_and_workers_empty_the_cluster() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch.arg("-z").arg(JOB_SIZE_MAX);
    let Some(site) = Site::build(Part::All, &launch) else {
        return;
    };
    for full in [2, 3] {
        let leader = site.cluster.leader();
        let history = History::default();
        history.may_refuse(true);
        let members = (0..3).map(|nth| (leader + 1 + nth) % 3);
        let full: Vec<usize> = members.take(full).collect();
        for at in &full {
            fill_up(site.disks[*at].path());
            let ballast = fs::File::options().write(true).open(site.ballast(*at));
            let ballast = ballast.unwrap();
            let size = ballast.metadata().unwrap().len();
            ballast.set_len(size.saturating_sub(LEFT)).unwrap();
        }
        let (mut jobs, mut refused) = (Vec::new(), 0);
        let since = Instant::now();
        // A leader that is short may transfer leadership, and its clients are closed.
        while refused < 50 {
            for at in site.cluster.running() {
                match history.probe_with(site.cluster.server(at).address(), LARGE) {
                    Answer::Told(id) => {
                        refused = 0;
                        jobs.push(id);
                    }
                    Answer::Refused => refused += 1,
                    Answer::None => {}
                }
            }
            assert!(since.elapsed() < 2 * PATIENCE, "{}", site.cluster.words());
        }
        println!("{full:?}: refused after {} jobs", jobs.len());
        let since = Instant::now();
        while let Some(id) = jobs.last() {
            let doors = site.cluster.running().into_iter();
            let mut doors = doors.map(|at| site.cluster.server(at).address());
            if doors.any(|door| history.delete_probe(door, *id)) {
                jobs.pop();
            }
            assert!(
                since.elapsed() < PATIENCE,
                "{} jobs cannot be deleted\n{}",
                jobs.len(),
                site.cluster.words()
            );
        }
        for at in &full {
            fs::remove_file(site.ballast(*at)).unwrap();
        }
        wait_until("puts are accepted again", || {
            let door = site.cluster.server(site.cluster.leader()).address();
            matches!(history.probe_with(door, LARGE), Answer::Told(_))
        });
        history.assert_sound("full disks", || site.cluster.words());
    }
    wait_until_alike(&site.cluster);
}

#[test]
fn while_the_disk_of_a_member_is_full_the_others_go_on_and_then_it_catches_up() {
    fill_disks(Part::All);
}

#[test]
fn while_the_ledger_of_a_member_cannot_grow_the_others_go_on_and_then_it_catches_up() {
    fill_disks(Part::Ledger);
}

#[test]
fn while_the_log_of_a_member_cannot_grow_the_others_go_on_and_then_it_catches_up() {
    fill_disks(Part::Log);
}
