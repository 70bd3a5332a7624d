//! Random runs: clients, time, clean stops, operations that fail, crashes, crashes inside the
//! recovery from crashes.
//!
//! `BSD_SIM_RUNS` says how many seeds are tried. A failure prints the command that repeats it:
//! `BSD_SIM_SEED` is its seed, `BSD_SIM_COMMANDS` how many commands it takes, found by bisection.
//! Seeds that failed once are tried first, for ever.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bsd::check::volume::{number, volume};
use bsd::random::Random;
use bsd::storage::disk::sim::{Crash, Effect, Errno, Fault, OpKind};
use bsd::storage::{OpenError, SimFs, SyncPolicy};
use bsd::types::Now;

use super::alterations::among;
use super::beyond;
use super::driver::{Answer, Driver, Stop, after_restart, beginning};
use super::oracle::{History, State};
use super::workload::{Mood, random_steps};

/// Seeds that once found something.
const FOUND: &[u64] = &[60000157, 60005157];
/// Seeds that did before anything was changed over the API: without that they do what they did.
const WITHOUT_ALTERATIONS: &[u64] = &[2934, 11401, 17446, 22347];
/// Seeds that did before jobs had attributes, and logs settings.
const WITHOUT_BEYOND: &[u64] = FOUND;
const RUNS: u64 = 2000;
const LIVES: usize = 5;
/// More commands than any run has.
const COMMANDS_MAX: usize = LIVES * 1024;

/// A disk, and what must be on it.
struct Life {
    fs: SimFs,
    history: History,
    /// The oldest state that it may have now.
    least: usize,
    /// The oldest state that it may have after a power cut.
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

/// The result of a run.
struct Outcome {
    /// The replies to its clients.
    answers: Vec<Answer>,
    /// Commands that were run.
    commands: usize,
    crashes: u64,
}

/// One run: some lives, each ended by a crash. After `commands_max` commands the clients send no
/// more.
fn run(seed: u64, commands_max: usize) -> Outcome {
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
    let mut commands = 0;
    // Apart from the rest, so that seeds that found something do again what they did.
    let mut failing = Random::new(!seed);
    let mut altering = Random::new(seed.rotate_left(32) ^ 1);
    let mut adding = Random::new(seed.rotate_left(32) ^ 2);
    println!("seed {seed}: {sync:?}, {mood:?}");
    for _ in 0..LIVES {
        let steps = 20 + random.below(300);
        let mut steps = random_steps(&mut random, mood, steps);
        if !WITHOUT_ALTERATIONS.contains(&seed) {
            steps = among(steps, &mut altering);
            if !WITHOUT_BEYOND.contains(&seed) {
                steps = beyond::among(steps, &mut adding);
            }
        }
        steps.truncate(commands_max - commands);
        commands += steps.len();
        // Early in a life lies its recovery: crashes nest.
        let reach = [10, 60, 2000][random.below(3)];
        life.fs.crash_at(1 + random.below(reach) as u64);
        let fault = failing.percent(20).then(|| fault(&mut failing));
        let fails = fault.is_some();
        if let Some(fault) = fault {
            println!("{fault:?}");
            life.fs.inject(fault);
        }
        match Driver::open(&life.fs, sync, life.now, &life.history, life.least) {
            Err(stop) => {
                let is_excused =
                    life.fs.is_crashed() || fails || copies_on_write && wants_room(&stop);
                assert!(is_excused, "without any fault: {stop}");
            }
            Ok(mut driver) => {
                // On a full disk counters go without.
                driver.is_faulty = is_small || fails;
                let stop = driver.run(&steps);
                if let Err(stop) = &stop {
                    println!("{stop}");
                }
                // If every write needs new room, the disk may be too full to continue.
                if !life.fs.is_crashed() && !copies_on_write && !fails {
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
    let open = || Driver::open(&life.fs, sync, life.now, &life.history, life.least);
    let mut opened = open();
    if copies_on_write && opened.as_ref().is_err_and(wants_room) {
        life.fs.set_quota(None);
        opened = open();
    }
    let driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    driver.assert_goes_on_working();
    Outcome {
        answers,
        commands,
        crashes: LIVES as u64,
    }
}

/// A start that cannot make the end of the log durable on a full disk, and has said what to do.
fn wants_room(stop: &Stop) -> bool {
    matches!(stop, Stop::Open(OpenError::Io(error)) if error.cause.contains("make room"))
}

/// An operation of some kind that fails, once or from then on, or moves a few bytes only.
fn fault(random: &mut Random) -> Fault {
    let kind = OpKind::ALL[random.below(OpKind::ALL.len())];
    let error = [Errno::IO, Errno::NOSPC, Errno::MFILE][random.below(3)];
    let effect = match kind {
        OpKind::Read | OpKind::Write if random.percent(30) => Effect::Short(1 + random.below(900)),
        // A read finds no disk full.
        OpKind::Read => Effect::Fail(Errno::IO),
        _ => Effect::Fail(error),
    };
    let reach = [10, 60, 1000][random.below(3)];
    let fault = Fault::new(kind, effect).nth(1 + random.below(reach) as u64);
    if random.percent(40) {
        fault.for_ever()
    } else {
        fault
    }
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

fn tried(seed: u64, commands_max: usize) -> std::thread::Result<Outcome> {
    catch_unwind(AssertUnwindSafe(|| run(seed, commands_max)))
}

/// The crashes of a run.
fn run_or_say_how_to_repeat(seed: u64) -> u64 {
    let commands_max = number("BSD_SIM_COMMANDS").map_or(usize::MAX, |most| most as usize);
    match tried(seed, commands_max) {
        Ok(outcome) => outcome.crashes,
        Err(panic) => {
            let commands = shrink(commands_max.min(COMMANDS_MAX), &|most| {
                tried(seed, most).is_err()
            });
            eprintln!(
                "to repeat: BSD_SIM_SEED={seed} BSD_SIM_COMMANDS={commands} cargo test --test \
                 simulation seeds::random"
            );
            resume_unwind(panic);
        }
    }
}

/// A number of commands, at most `fails_with`, with which a run fails and with one less does not.
fn shrink(fails_with: usize, fails: &dyn Fn(usize) -> bool) -> usize {
    let (mut passes, mut fail) = (0, fails_with);
    if fails(0) {
        return 0;
    }
    while fail - passes > 1 {
        let middle = passes + (fail - passes) / 2;
        if fails(middle) {
            fail = middle
        } else {
            passes = middle
        }
    }
    fail
}

#[test]
fn random_lives_and_crashes_lose_and_invent_nothing() {
    if let Some(seed) = number("BSD_SIM_SEED") {
        run_or_say_how_to_repeat(seed);
        return;
    }
    let first = volume("BSD_SIM_FIRST", 0);
    let seeds = first..first + volume("BSD_SIM_RUNS", RUNS);
    let found = WITHOUT_ALTERATIONS.iter().chain(FOUND).copied();
    let seeds = found.chain(seeds);
    let crashes: u64 = seeds.map(run_or_say_how_to_repeat).sum();
    println!("{crashes} crashes, not counting the copies that are looked at");
}

#[test]
fn a_run_that_fails_is_shrunk_to_the_command_that_it_takes() {
    for needed in [0, 1, 2, 499, 1000] {
        assert_eq!(shrink(1000, &|commands| commands >= needed), needed);
    }
    assert!(run(7, usize::MAX).commands < COMMANDS_MAX);
    assert_eq!(run(7, 9).commands, 9);
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
    assert!(run(5, usize::MAX).answers == run(5, usize::MAX).answers);
}
