//! Lives by chance, each from what a crash has left of the one before.

use std::panic::{catch_unwind, resume_unwind};

use bsd::check::whole::Whole;
use bsd::engine::Engine;
use bsd::random::Random;
use bsd::storage::disk::sim::Crash;
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::Ticket;

use super::super::driver::{MS_NS, TUBES, after_restart, beginning, options};
use super::world::{Crashed, Known, Point, World, assert_keys, state_of};
use bsd::check::volume::{number, volume};

const RUNS: u64 = 120;
const LIVES: usize = 3;
/// Crashes of each life.
const CRASHES: usize = 4;
/// Jobs of a tube, more than a clear deletes in its own frame.
const MANY: usize = 1100;

/// A disk, and what must be on it.
struct History {
    fs: SimFs,
    known: Known,
    /// The first state of the next life.
    state: Whole,
    recoveries: u64,
    /// Recoveries in the middle of a tick, and of a clear.
    amid: u64,
    clears: u64,
}

/// What a life with a crash in it has left.
struct Wreck {
    fs: SimFs,
    known: Known,
    /// The last state that was acknowledged, the last that is durable, and the one that was under way.
    acknowledged: usize,
    durable: usize,
    last: usize,
}

impl History {
    fn begin(random: &mut Random, seed: u64) -> History {
        let sync = random.pick(&[
            SyncPolicy::Always,
            SyncPolicy::Always,
            SyncPolicy::Always,
            SyncPolicy::Interval(50),
            SyncPolicy::Never,
        ]);
        let size_max = random.pick(&[40, 1000, 8 << 10]);
        History {
            fs: SimFs::new(seed),
            known: Known::new(sync, beginning(), size_max),
            state: Whole::default(),
            recoveries: 0,
            amid: 0,
            clears: 0,
        }
    }

    /// The same disk for one more life.
    fn copy(&self) -> SimFs {
        self.fs.crash_image(Crash::KeepAll)
    }

    /// Fill a tube, and stop cleanly.
    fn fill(&mut self) {
        let fs = self.copy();
        let world = World::open(&fs, self.known.clone(), false);
        let mut world = world.unwrap_or_else(|error| panic!("{error}"));
        world.fill(TUBES[1], MANY).unwrap();
        let (state, known) = (world.state(), world.known);
        world.engine.close(known.now).unwrap();
        (self.fs, self.known, self.state) = (fs, known, state);
        self.restart_after(0);
    }

    /// Every body can be read. Apart from a life: reads are operations of the disk, too.
    fn check_bodies(&self) {
        let world = World::open(&self.copy(), self.known.clone(), false);
        let mut world = world.unwrap_or_else(|error| panic!("without any fault: {error}"));
        world.check_bodies();
    }

    fn restart_after(&mut self, ms: u64) {
        self.known.now = after_restart(self.known.now);
        self.known.now.wall_ns += ms * MS_NS as u64;
        self.known.recover(&self.state);
    }

    /// A life without a crash, its states, and the operations of its disk.
    fn whole_life(&self, seed: u64, steps: u64) -> (World, u64) {
        let fs = self.copy();
        let before = fs.operations();
        let world = World::open(&fs, self.known.clone(), true);
        let mut world = world.unwrap_or_else(|error| panic!("without any fault: {error}"));
        let first = &world.points.as_ref().unwrap()[0].state;
        let lost = self.state.difference(first, self.known.now, false);
        assert_eq!(lost, None, "it is opened a second time");
        world.live(seed, steps).expect("there is no crash");
        let count = fs.operations() - before;
        (world, count)
    }

    /// The same life up to a crash at this operation.
    fn crashed_life(&self, seed: u64, steps: u64, at: u64) -> Wreck {
        let fs = self.copy();
        fs.crash_at(fs.operations() + at);
        let Ok(mut world) = World::open(&fs, self.known.clone(), false) else {
            let known = self.known.clone();
            let (acknowledged, durable, last) = (0, 0, 0);
            return Wreck {
                fs,
                known,
                acknowledged,
                durable,
                last,
            };
        };
        let lived = world.live(seed, steps);
        assert!(matches!(lived, Err(Crashed)), "operation {at} never comes");
        let tickets = &world.tickets;
        let upto = |ticket: Ticket| tickets.iter().rposition(|after| *after <= ticket);
        let acknowledged = upto(world.engine.acknowledged()).unwrap_or(0);
        let durable = match self.known.sync {
            SyncPolicy::Always => acknowledged,
            _ => {
                let log = world.engine.log().expect("it has a log");
                upto(Ticket::at(log.durable())).unwrap_or(0)
            }
        };
        Wreck {
            fs,
            acknowledged,
            durable,
            last: tickets.len(),
            known: world.known,
        }
    }

    /// Recover from a crash of this kind, and see that nothing is wrong.
    fn recover(&mut self, wreck: &Wreck, points: &[Point], how: Crash) -> (SimFs, Whole) {
        let image = wreck.fs.crash_image(how);
        let fs = image.crash_image(Crash::KeepAll);
        let mut now = after_restart(wreck.known.now);
        now.wall_ns = wreck.known.now.wall_ns;
        let engine = Engine::open(&options(&fs, self.known.sync), now);
        let engine = engine.unwrap_or_else(|error| panic!("after {how:?}: {error}"));
        let found = state_of(&engine, now);
        let least = match how {
            Crash::KeepAll => wreck.acknowledged,
            _ => wreck.durable,
        };
        let last = wreck.last.min(points.len() - 1);
        let mut differences = Vec::new();
        let is_known = (least..=last).rev().any(|index| {
            let (state, next) = (&points[index].state, points.get(index + 1));
            let Some(difference) = state.difference(&found, now, false) else {
                assert_keys(state, &found);
                return true;
            };
            differences.push(format!("step {index}: {difference}"));
            let next = next.filter(|next| next.has_steps && index < last);
            let is_amid = next.is_some_and(|next| {
                let difference = state.difference_on_the_way(&next.state, &found, now);
                match &difference {
                    Some(it) => differences.push(format!("behind step {index}: {it}")),
                    None => assert_keys(state, &found),
                }
                difference.is_none()
            });
            self.amid += u64::from(is_amid);
            is_amid
        });
        assert!(
            is_known,
            "after {how:?} no state from {least} to {last} is what was recovered:\n{}",
            differences.join("\n")
        );
        self.recoveries += 1;
        self.clears += u64::from(engine.queue().clears() > 0);
        // The recovered state is durable.
        let again = fs.crash_image(Crash::DropUnsynced);
        let again = Engine::open(&options(&again, self.known.sync), now);
        let again = again.unwrap_or_else(|error| panic!("after {how:?} and again: {error}"));
        let lost = found.difference(&state_of(&again, now), now, false);
        assert_eq!(lost, None, "after {how:?} and a power cut");
        (image, found)
    }

    fn life(&mut self, random: &mut Random, is_filled: bool) {
        let (seed, steps) = (random.next(), 10 + random.below(80));
        self.known.clears_at = is_filled.then(|| random.below(8));
        self.check_bodies();
        let (world, operations) = self.whole_life(seed, steps);
        let points = world.points.as_ref().unwrap();
        let downtime = random.pick(&[0, 0, 1000, 40_000, 70_000, 400_000]);
        if random.percent(20) {
            // A clean stop.
            self.state = world.state();
            (self.fs, self.known) = (world.fs.clone(), world.known.clone());
            let now = self.known.now;
            world.engine.close(now).unwrap();
            return self.restart_after(downtime);
        }
        let mut left = None;
        let crashes = CRASHES * if is_filled { 4 } else { 1 };
        for _ in 0..crashes {
            let at = 1 + random.below(operations);
            let wreck = self.crashed_life(seed, steps, at);
            let chance = Crash::Random {
                seed: random.next(),
            };
            for how in [Crash::KeepAll, Crash::DropUnsynced, chance] {
                println!("    operation {at} of {operations}, {how:?}");
                let (fs, found) = self.recover(&wreck, points, how);
                left = Some((fs, found, wreck.known.now));
            }
        }
        let (fs, state, now) = left.expect("there were crashes");
        (self.fs, self.state) = (fs, state);
        self.known = world.known;
        self.known.now = now;
        self.restart_after(downtime);
    }
}

fn history(seed: u64) -> (u64, u64, u64) {
    let mut random = Random::new(seed);
    let mut history = History::begin(&mut random, seed);
    let is_filled = seed % 10 == 7;
    println!("seed {seed}: {:?}, {is_filled}", history.known.sync);
    if is_filled {
        history.fill();
    }
    for _ in 0..LIVES {
        history.life(&mut random, is_filled);
    }
    (history.recoveries, history.amid, history.clears)
}

#[test]
fn lives_under_policies_lose_nothing_and_do_nothing_twice() {
    let seeds = match number("BSD_EXTENDED_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let scale = volume("BSD_TEST_SCALE", 1);
            0..volume("BSD_EXTENDED_RUNS", RUNS * scale)
        }
    };
    let is_one = seeds.end - seeds.start == 1;
    let mut sums = (0, 0, 0);
    for seed in seeds {
        let done = catch_unwind(|| history(seed));
        let (recoveries, amid, clears) = done.unwrap_or_else(|panic| {
            eprintln!(
                "to repeat: BSD_EXTENDED_SEED={seed} cargo test --test simulation extended::lives"
            );
            resume_unwind(panic)
        });
        sums = (sums.0 + recoveries, sums.1 + amid, sums.2 + clears);
    }
    println!("{sums:?} recoveries, in the middle of ticks, in the middle of clears");
    assert!(is_one || sums.1 > 0 && sums.2 > 0, "{sums:?}");
}

/// A short life, and a crash at each of its operations. Returns the recoveries.
fn crash_everywhere(seed: u64, is_filled: bool) -> u64 {
    let mut random = Random::new(!seed);
    let mut history = History::begin(&mut random, seed);
    history.known.sync = SyncPolicy::Always;
    if is_filled {
        history.fill();
        history.known.clears_at = Some(2);
    }
    let steps = if is_filled { 8 } else { 40 };
    let (world, operations) = history.whole_life(seed, steps);
    let points = world.points.as_ref().unwrap();
    for at in 1..=operations {
        let wreck = history.crashed_life(seed, steps, at);
        let chance = Crash::Random { seed: at };
        for how in [Crash::KeepAll, Crash::DropUnsynced, chance] {
            println!("    seed {seed}, operation {at} of {operations}, {how:?}");
            history.recover(&wreck, points, how);
        }
    }
    history.recoveries
}

#[test]
fn a_crash_at_any_operation_of_a_life_under_policies_costs_nothing_acknowledged() {
    let lives = [(1, false), (2, false), (3, false), (7, true)];
    let recoveries = lives.map(|(seed, is_filled)| crash_everywhere(seed, is_filled));
    println!("{recoveries:?} recoveries");
    assert!(recoveries.iter().all(|count| *count > 60), "{recoveries:?}");
}
