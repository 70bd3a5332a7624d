//! Random runs: clients, time, clean stops, crashes, crashes inside the recovery from crashes.
//!
//! `BSD_SIM_RUNS` says how many seeds are tried. `BSD_SIM_SEED` repeats one, and is printed with
//! every failure. Seeds that failed once are tried first, for ever.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bsd::storage::sim::Crash;
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::Now;

use super::driver::{Answer, Driver, after_restart, beginning};
use super::oracle::{History, State};
use super::workload::{Mood, Random, random_steps};

/// Seeds that once found something.
const FOUND: &[u64] = &[2934];
const RUNS: u64 = 2000;
const LIVES: usize = 5;

/// A disk, and what must be on it.
struct Life {
    fs: SimFs,
    history: History,
    /// What it has at least, as it is.
    least: usize,
    /// What it has at least after a power cut.
    least_durable: usize,
    now: Now,
}

impl Life {
    fn crash(&mut self, how: Crash) {
        println!("{how:?} at operation {}", self.fs.operations());
        if how != Crash::KeepAll {
            self.least = self.least_durable;
        }
        self.fs = self.fs.crash_image(how);
        self.now = after_restart(self.now);
    }
}

/// One run: some lives, each ended by a crash. Returns what its clients were answered.
fn run(seed: u64) -> Vec<Answer> {
    let mut random = Random::new(seed);
    let sync = match random.below(4) {
        0 => SyncPolicy::Interval(random.below(300) as u32),
        1 => SyncPolicy::Never,
        _ => SyncPolicy::Always,
    };
    let mood = Mood::any(&mut random);
    let history = History::new(State::default());
    let (fs, now) = (SimFs::new(seed), beginning());
    let is_small = random.percent(30);
    let copies_on_write = is_small && random.percent(40);
    if is_small {
        fs.set_quota(Some((260 + random.below(600) as u64) << 10));
        fs.set_copy_on_write(copies_on_write);
    }
    let mut life = Life {
        fs,
        history,
        least: 0,
        least_durable: 0,
        now,
    };
    let mut answers = Vec::new();
    println!("seed {seed}: {sync:?}, {mood:?}");
    for _ in 0..LIVES {
        let steps = 20 + random.below(300);
        let steps = random_steps(&mut random, mood, steps);
        // Early in a life lies its recovery: crashes nest.
        let reach = [10, 60, 2000][random.below(3)];
        life.fs.crash_at(1 + random.below(reach) as u64);
        match Driver::open(&life.fs, sync, life.now, &life.history, life.least) {
            Err(stop) => assert!(life.fs.is_crashed(), "without any fault: {stop}"),
            Ok(mut driver) => {
                // On a full disk counters go without.
                driver.is_faulty = is_small;
                let stop = driver.run(&steps);
                // Where every write needs new room the disk may be too full to go on.
                if !life.fs.is_crashed() && !copies_on_write {
                    stop.unwrap_or_else(|stop| panic!("without any fault: {stop}"));
                }
                life.least = driver.least_acknowledged();
                life.least_durable = driver.least_durable();
                life.now = driver.now;
                answers.append(&mut driver.answers);
                life.history = driver.history;
            }
        }
        life.crash(crash(&mut random));
    }
    life.fs.crash_at(u64::MAX);
    let opened = Driver::open(&life.fs, sync, life.now, &life.history, life.least);
    let driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    driver.assert_goes_on_working();
    answers
}

fn crash(random: &mut Random) -> Crash {
    match random.below(5) {
        0 => Crash::KeepAll,
        1 => Crash::DropUnsynced,
        _ => Crash::Random {
            seed: random.next(),
        },
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run_or_say_how_to_repeat(seed: u64) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
        eprintln!("to repeat: BSD_SIM_SEED={seed} cargo test --test it simulation::seeds");
        resume_unwind(panic);
    }
}

#[test]
fn random_lives_and_crashes_lose_and_invent_nothing() {
    if let Some(seed) = number("BSD_SIM_SEED") {
        return run_or_say_how_to_repeat(seed);
    }
    FOUND.iter().copied().for_each(run_or_say_how_to_repeat);
    (0..number("BSD_SIM_RUNS").unwrap_or(RUNS)).for_each(run_or_say_how_to_repeat);
}

#[test]
fn one_seed_run_twice_does_the_same_to_the_disk() {
    let trace = |seed| {
        let fs = SimFs::new(seed);
        let mut random = Random::new(seed);
        let steps = random_steps(&mut random, Mood::any(&mut Random::new(seed)), 400);
        let mut driver = Driver::begin(&fs, SyncPolicy::Always).unwrap_or_else(|_| panic!());
        driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
        (fs.trace(), driver.answers)
    };
    for seed in 0..3 {
        assert!(trace(seed) == trace(seed), "seed {seed}");
    }
    assert!(trace(1).0 != trace(2).0);
    assert_eq!(run(5), run(5));
}
