//! Every short sequence of commands, a crash after every file operation of it, every way in which
//! that crash can turn out.
//!
//! From each of three logs (a new one; one whose segment is nearly full, so that a put continues in
//! the next; one that is half garbage, so that a delete starts compaction) every sequence of up to
//! `BSD_EXHAUSTIVE_LENGTH` commands is run. The disk crashes after every operation that changed
//! something during the last command: earlier crashes belong to shorter sequences. Every subset of
//! the un-synced units is then kept, if there are at most [`UNITS_MAX`], in the finest units for
//! which that holds; otherwise samples. The recovery from each must reach a state that the oracle
//! allows. Regularly the power also fails inside that recovery, and regularly the recovered queue
//! continues to the end.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bsd::check::volume::volume;
use bsd::engine::Engine;
use bsd::storage::disk::sim::{Crash, Granularity, OpKind, Operation};
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::Now;

use super::alterations::Change;
use super::beyond::Beyond;
use super::driver::{Driver, Step, after_restart, beginning, options};
use super::oracle::{History, State};

/// Every subset of the un-synced units is tried if there are at most this many, by the length of
/// the sequence: the longest sequences, which are the most, then cost about as much as the rest.
const UNITS_MAX: [usize; 5] = [10, 10, 10, 5, 5];
/// Ways of crashing that are sampled where there are more.
const SAMPLES: u64 = 12;
/// One in this many recoveries is crashed too …
const NESTED_EVERY: u64 = 3;
/// … and one in this many continues to work.
const WORKS_EVERY: u64 = 24;
const SYNC: SyncPolicy = SyncPolicy::Always;

const fn put(tube: usize, delay: u32, size: usize) -> Step {
    Step::put(tube, [5, delay, 9], size)
}

/// The commands, with their names in failure reports. They share a turn, except for those that end
/// one.
const COMMANDS: [(&str, Step); 15] = [
    ("put", put(0, 0, 30)),
    ("put-large", put(1, 0, 7000)),
    ("put-delayed", put(0, 2, 0)),
    ("reserve", Step::Reserve { worker: 0 }),
    ("delete-first", Step::Delete { nth: 0 }),
    ("delete-last", Step::Delete { nth: usize::MAX }),
    ("delete-reserved", Step::DeleteReserved { nth: 0 }),
    (
        "release",
        Step::Release {
            nth: 0,
            pri: 8,
            delay: 1,
        },
    ),
    ("bury", Step::Bury { nth: 0, pri: 3 }),
    ("kick", Step::Kick { tube: 0, bound: 2 }),
    (
        "move",
        Step::Alter {
            nth: 0,
            change: Change::Move {
                tube: 2,
                kick: false,
            },
        },
    ),
    (
        "pause",
        Step::Pause {
            tube: 1,
            seconds: 30,
        },
    ),
    (
        "attribute",
        Step::Beyond(Beyond::Attribute { nth: 0, list: 4 }),
    ),
    ("set", Step::Beyond(Beyond::Set { name: 0, size: 9 })),
    ("idle", Step::Turn { ms: 150 }),
];

/// A log to begin with.
struct Base {
    name: &'static str,
    fs: SimFs,
    history: History,
    now: Now,
}

impl Base {
    /// No log yet: the first command finds a directory that was just made.
    fn new_log() -> Base {
        Base {
            name: "new",
            fs: SimFs::new(1),
            history: History::new(State::default()),
            now: beginning(),
        }
    }

    /// The disk after these steps and a clean stop.
    fn after(name: &'static str, steps: &[Step]) -> Base {
        let new = Base::new_log();
        let mut driver = new.open(&new.fs).unwrap_or_else(|stop| panic!("{stop}"));
        driver
            .run(steps)
            .and_then(|()| driver.step(Step::Restart))
            .unwrap_or_else(|stop| panic!("{stop}"));
        let fs = driver.fs.crash_image(Crash::DropUnsynced);
        let now = after_restart(driver.now);
        Base {
            name,
            fs,
            now,
            history: driver.history,
        }
    }

    /// One large put fits into the segment, and no more.
    fn nearly_full() -> Base {
        let mut steps = vec![put(0, 0, 6900); 8];
        steps.extend([put(0, 0, 20), Step::Turn { ms: 0 }]);
        Base::after("full", &steps)
    }

    /// In the first segment of two nearly everything is dead, and in the last one much is.
    fn half_garbage() -> Base {
        let turn = Step::Turn { ms: 0 };
        let mut steps = vec![put(0, 0, 100)];
        steps.extend(vec![put(1, 0, 6500); 12]);
        steps.push(turn);
        steps.extend([Step::Reserve { worker: 0 }, Step::Bury { nth: 0, pri: 1 }]);
        steps.extend(vec![Step::Delete { nth: 2 }; 4]);
        steps.push(turn);
        Base::after("garbage", &steps)
    }

    fn open(&self, fs: &SimFs) -> Result<Driver, super::driver::Stop> {
        Driver::open(fs, SYNC, self.now, &self.history, 0)
    }

    /// Run a sequence that ends at operation `crash_at`, if it comes to that.
    fn run(&self, commands: &[usize], crash_at: u64) -> Run {
        let fs = self.fs.crash_image(Crash::DropUnsynced);
        fs.crash_at(crash_at);
        let mut before_last = 0;
        let Ok(mut driver) = self.open(&fs) else {
            assert!(fs.is_crashed(), "it does not start without any fault");
            return Run {
                fs,
                driver: None,
                before_last,
            };
        };
        for (nth, command) in commands.iter().enumerate() {
            if nth + 1 == commands.len() {
                before_last = fs.operations();
            }
            let step = COMMANDS[*command].1;
            let result = driver.run(&[step, Step::Turn { ms: 0 }]);
            if fs.is_crashed() {
                break;
            }
            result.unwrap_or_else(|stop| panic!("without any fault: {stop}"));
        }
        let driver = Some(driver);
        Run {
            fs,
            driver,
            before_last,
        }
    }
}

/// A sequence that was run to its end or to its crash.
struct Run {
    fs: SimFs,
    /// `None`: it crashed while it was being opened.
    driver: Option<Driver>,
    /// Operations before the last command.
    before_last: u64,
}

/// Crashes, counted, of sequences that begin with one log.
struct Explorer {
    base: Base,
    counts: Counts,
}

/// The counts so far.
#[derive(Default)]
struct Counts {
    sequences: u64,
    crashes: u64,
    /// Recoveries that were crashed.
    nested: u64,
    /// Last commands that gave a file its name: for a segment, or for what compaction wrote.
    named: u64,
}

impl Explorer {
    fn new(base: Base) -> Explorer {
        Explorer {
            base,
            counts: Counts::default(),
        }
    }

    /// All sequences of up to `length` commands that begin with `commands`.
    fn explore(&mut self, commands: &mut Vec<usize>, length: usize) {
        self.crash_in(commands);
        if commands.len() == length {
            return;
        }
        for command in 0..COMMANDS.len() {
            commands.push(command);
            self.explore(commands, length);
            commands.pop();
        }
    }

    /// Crash after each operation of the last command that changed the disk.
    fn crash_in(&mut self, commands: &[usize]) {
        let name = format!("{}:{}", self.base.name, name(commands));
        let explored = catch_unwind(AssertUnwindSafe(|| {
            self.counts.sequences += 1;
            let whole = self.base.run(commands, u64::MAX);
            let trace = whole.fs.trace();
            let last = trace
                .iter()
                .filter(|operation| operation.number > whole.before_last);
            let names = |operation: &Operation| operation.kind == OpKind::Rename;
            self.counts.named += u64::from(last.clone().any(names));
            for operation in last.filter(|operation| changes(operation.kind)) {
                let operation = operation.number;
                println!("{name}, behind operation {operation}");
                let run = self.base.run(commands, operation + 1);
                self.counts.crash(&self.base, &run, commands.len());
            }
        }));
        if let Err(panic) = explored {
            eprintln!(
                "to repeat: BSD_EXHAUSTIVE_ONLY={name} cargo test --test simulation exhaustive"
            );
            resume_unwind(panic);
        }
    }
}

impl Counts {
    /// Every way in which a crash here can turn out.
    fn crash(&mut self, base: &Base, run: &Run, length: usize) {
        let (history, least_durable, least_acknowledged, now) = match &run.driver {
            Some(driver) => (
                &driver.history,
                driver.least_durable(),
                driver.least_acknowledged(),
                after_restart(driver.now),
            ),
            None => (&base.history, 0, 0, base.now),
        };
        for how in ways(&run.fs, UNITS_MAX[length.min(4)]) {
            let least = match how {
                Crash::KeepAll => least_acknowledged,
                _ => least_durable,
            };
            let image = run.fs.crash_image(how);
            self.crashes += 1;
            let opened = Driver::open(&image, SYNC, now, history, least);
            let driver = opened.unwrap_or_else(|stop| panic!("after {how:?}: {stop}"));
            if image.unsynced_units(Granularity::Write) > 0 {
                // The recovered state is durable: a power cut right now changes nothing.
                let cut = image.crash_image(Crash::DropUnsynced);
                self.crashes += 1;
                Driver::open(&cut, SYNC, now, &driver.history, 0)
                    .unwrap_or_else(|stop| panic!("after {how:?} and a power cut: {stop}"));
            }
            if self.crashes.is_multiple_of(WORKS_EVERY) {
                driver.assert_goes_on_working();
            }
            drop(driver);
            if self.crashes.is_multiple_of(NESTED_EVERY) {
                self.crash_recovery(run, how, (history, least_durable, now));
            }
        }
    }

    /// The power fails inside the recovery from a crash: at one operation of it, which is another
    /// one each time.
    fn crash_recovery(
        &mut self,
        run: &Run,
        how: Crash,
        (history, least, now): (&History, usize, Now),
    ) {
        let image = run.fs.crash_image(how);
        drop(Engine::open(&options(&image, SYNC), now));
        let operations = image.operations();
        self.nested += 1;
        let at = 1 + self.nested % operations;
        let image = run.fs.crash_image(how);
        image.crash_at(at);
        drop(Engine::open(&options(&image, SYNC), now));
        let second = match self.nested % 3 {
            0 => Crash::DropUnsynced,
            1 => Crash::KeepAll,
            _ => Crash::Random { seed: self.nested },
        };
        self.crashes += 2;
        Driver::open(&image.crash_image(second), SYNC, now, history, least)
            .unwrap_or_else(|stop| panic!("{how:?}, inside it at {at} {second:?}: {stop}"));
    }
}

/// The commands by their names.
fn name(commands: &[usize]) -> String {
    let names: Vec<&str> = commands.iter().map(|nth| COMMANDS[*nth].0).collect();
    names.join(",")
}

/// The inverse of [`name`].
fn parse(names: &str) -> Vec<usize> {
    let names = names.split(',').filter(|name| !name.is_empty());
    let find = |name| COMMANDS.iter().position(|command| command.0 == name);
    names
        .map(|name| find(name).unwrap_or_else(|| panic!("no command is called {name}")))
        .collect()
}

/// Whether an operation of this kind can change what a crash leaves.
fn changes(kind: OpKind) -> bool {
    !matches!(
        kind,
        OpKind::ReadDir | OpKind::Open | OpKind::Size | OpKind::Read
    )
}

/// Everything that a crash may do with un-synced changes, each once.
fn ways(fs: &SimFs, units_max: usize) -> Vec<Crash> {
    let mut ways = vec![Crash::KeepAll];
    if fs.unsynced_units(Granularity::Write) == 0 {
        return ways;
    }
    ways.push(Crash::DropUnsynced);
    // A subset of coarse units is one of fine ones too.
    let fine = [Granularity::Sector, Granularity::Page, Granularity::Write];
    let finest = fine
        .into_iter()
        .find(|granularity| fs.unsynced_units(*granularity) <= units_max);
    if let Some(granularity) = finest {
        let units = fs.unsynced_units(granularity);
        ways.extend((1..1 << units).map(|kept| Crash::Subset { kept, granularity }));
    }
    let samples = match finest {
        Some(Granularity::Sector) => 1,
        _ => SAMPLES,
    };
    ways.extend((0..samples).map(|seed| Crash::Random { seed }));
    ways
}

/// Explore everything that begins with `base`; or, when `BSD_EXHAUSTIVE_ONLY` names a sequence, it
/// alone.
fn explore(base: Base, crashes_min: u64) {
    let mut explorer = Explorer::new(base);
    if let Ok(only) = std::env::var("BSD_EXHAUSTIVE_ONLY") {
        if let Some((base, commands)) = only.split_once(':')
            && base == explorer.base.name
        {
            explorer.crash_in(&parse(commands));
        }
        return;
    }
    let length = volume("BSD_EXHAUSTIVE_LENGTH", 3) as usize;
    explorer.explore(&mut Vec::new(), length);
    let Counts {
        sequences,
        crashes,
        nested,
        named,
    } = explorer.counts;
    println!("{sequences} sequences, {crashes} crashes; {nested} recoveries crashed in turn");
    assert!(named > 0, "no segment was begun or rewritten");
    assert!(
        length < 3 || crashes >= crashes_min,
        "too few to say anything: {crashes} crashes"
    );
}

#[test]
fn every_short_history_of_a_new_log_survives_every_crash() {
    explore(Base::new_log(), 15_000);
}

#[test]
fn every_short_history_across_a_rotation_survives_every_crash() {
    explore(Base::nearly_full(), 40_000);
}

#[test]
fn every_short_history_across_a_compaction_survives_every_crash() {
    explore(Base::half_garbage(), 60_000);
}
