//! Changes over the API in a simulated run: of a job's priority, delay or tube, and to bury it
//! without reserving it. What a move does is one step of the history: after a crash the job is in the
//! one tube or in the other.

use bsd::attributes::Attributes;
use bsd::engine::{Altered, JobAction};
use bsd::random::Random;
use bsd::storage::disk::sim::Crash;
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::JobId;

use super::driver::{Answers, DIR, Driver, Setup, Step, Stop, TUBES, after_restart};
use super::oracle::{Effect, Placed, later};

/// A change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Priority(u32),
    /// Seconds.
    Delay(u32),
    Bury,
    Move {
        tube: usize,
        kick: bool,
    },
}

impl Change {
    fn any(random: &mut Random) -> Change {
        match random.below(8) {
            0 => Change::Priority(random.below(4) as u32 * 700),
            1 => Change::Delay(1 + random.below(3) as u32),
            2 => Change::Bury,
            _ => Change::Move {
                tube: random.below(TUBES.len()),
                kick: random.percent(30),
            },
        }
    }

    fn action(self) -> JobAction {
        match self {
            Change::Priority(pri) => JobAction::Priority(pri),
            Change::Delay(seconds) => JobAction::Delay(seconds),
            Change::Bury => JobAction::Bury,
            Change::Move { tube, kick } => JobAction::move_to(TUBES[tube], kick),
        }
    }
}

/// The steps, with some changes between them.
pub(super) fn among(steps: Vec<Step>, random: &mut Random) -> Vec<Step> {
    let chance = [0, 10, 40][random.below(3)];
    let mut all = Vec::with_capacity(steps.len());
    for step in steps {
        all.push(step);
        if random.percent(chance) {
            let (nth, change) = (random.below(1 << 20), Change::any(random));
            all.push(Step::Alter { nth, change });
        }
    }
    all
}

impl Driver {
    pub(super) fn alter(&mut self, nth: usize, change: Change) -> Result<(), Stop> {
        let Some(id) = self.nth(nth, |driver, id| !driver.is_reserved(id)) else {
            return Ok(());
        };
        let effects = self.effects(id, change);
        let now = self.now;
        let altered =
            self.engine_mut()
                .alter(JobId(id), &change.action(), now, &mut Answers::default());
        let after = self.engine().after();
        let Some(altered) = altered.ok().filter(|_| !self.fs.is_crashed()) else {
            return Err(self.unanswered(&effects));
        };
        match altered {
            Altered::Done => {
                assert!(
                    !effects.is_empty(),
                    "{change:?} of job {id} changed nothing"
                );
                self.history.push(&effects, after);
            }
            Altered::Same => assert!(effects.is_empty(), "{change:?} of job {id} was refused"),
            Altered::NoRoom => self.refused += 1,
            other => panic!("{change:?} of job {id}: {other:?}"),
        }
        if self.is_faulty {
            self.note_quarantined(after);
        }
        Ok(())
    }

    /// All of them or none; none, if it is so already.
    fn effects(&self, id: u64, change: Change) -> Vec<Effect> {
        let job = &self.history.now().jobs[&id];
        let (placed, mut counters) = (job.placed_at(self.now.wall_ns), self.counters(id));
        let is_buried = matches!(placed, Placed::Buried(_));
        vec![match change {
            Change::Priority(pri) if pri == job.pri => return Vec::new(),
            Change::Bury if is_buried => return Vec::new(),
            Change::Move { tube, .. } if TUBES[tube] == job.tube => return Vec::new(),
            Change::Priority(pri) => Effect::Priority(id, pri, placed, counters),
            Change::Delay(seconds) => {
                let until = later(self.now, seconds);
                Effect::Release(id, job.pri, seconds, until, counters)
            }
            Change::Bury => {
                counters.buries += 1;
                Effect::Bury(id, job.pri, counters)
            }
            Change::Move { tube, kick } => {
                let list = job.attributes.as_deref();
                let list = self.moved_list(list, TUBES[tube], counters.reserves);
                let tube = Some(TUBES[tube]);
                let moved = Effect::Attributes { id, list, tube };
                if !kick || placed == Placed::Ready {
                    return vec![moved];
                }
                counters.kicks += 1;
                return vec![Effect::Ready(id, counters), moved];
            }
        }]
    }

    /// What a job that had this list has in the tube that it is moved to.
    fn moved_list(&self, had: Option<&[u8]>, tube: &str, reserves: u32) -> Vec<u8> {
        let moved = Attributes {
            tube: Some(tube),
            counted_from: Some(reserves),
            counted_since_wall_ns: Some(self.now.wall_ns),
            failures: None,
            dead_lettered_from: None,
            ..had.and_then(Attributes::decode).unwrap_or_default()
        };
        moved.encode().expect("a list")
    }
}

const TURN: Step = Step::Turn { ms: 0 };

pub(super) const fn put(size: usize) -> Step {
    Step::put(0, [5, 0, 9], size)
}

/// A change of the first job.
const fn first(change: Change) -> Step {
    Step::Alter { nth: 0, change }
}

/// The driver after these steps, on a new disk.
pub(super) fn after(steps: &[Step], setup: Setup) -> Driver {
    let begun = Driver::begin(&SimFs::new(1), setup);
    let mut driver = begun.unwrap_or_else(|stop| panic!("{stop}"));
    driver.run(steps).unwrap_or_else(|stop| panic!("{stop}"));
    driver
}

/// The size of the largest body that has room in the first segment behind the job that is moved.
pub(super) fn largest(setup: Setup) -> usize {
    let fits = |size: usize| {
        let names = after(&[put(500), TURN, put(size), TURN], setup)
            .fs
            .names(DIR);
        let segments = names.expect("the directory exists");
        let segments = segments.iter().filter(|name| name.starts_with("segment-"));
        segments.count() == 1
    };
    let (mut low, mut high) = (50_000, 65_000);
    assert!(fits(low) && !fits(high));
    while high - low > 1 {
        let middle = (low + high) / 2;
        match fits(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// Crash at each operation of the last turn, and recover from it; the number of crashes.
pub(super) fn crash_in_the_last_turn(steps: &[Step], setup: Setup) -> u32 {
    let last = steps
        .iter()
        .rposition(|step| matches!(step, Step::Put { .. }));
    let begin = &steps[..last.map_or(0, |last| last + 2)];
    let mut crashes = 0;
    for at in after(begin, setup).fs.operations() + 1.. {
        let fs = SimFs::new(1);
        fs.crash_at(at);
        let begun = Driver::begin(&fs, setup);
        let mut driver = begun.unwrap_or_else(|stop| panic!("{stop}"));
        if driver.run(steps).is_ok() {
            break;
        }
        for how in [
            Crash::KeepAll,
            Crash::DropUnsynced,
            Crash::Random { seed: at },
        ] {
            let least = match how {
                Crash::KeepAll => driver.least_acknowledged(),
                _ => driver.least_durable(),
            };
            let (image, now) = (fs.crash_image(how), after_restart(driver.now));
            let opened = Driver::open(&image, setup, now, &driver.history, least);
            opened.unwrap_or_else(|stop| panic!("after {how:?} at {at}: {stop}"));
            crashes += 1;
        }
    }
    crashes
}

/// Wherever a segment ends among the records of a move, and wherever a crash comes, the job is buried in
/// its tube or ready in the other one.
#[test]
fn a_crash_in_a_move_across_the_end_of_a_segment_leaves_both_records_or_none() {
    let setup = Setup::from(SyncPolicy::Always);
    let largest = largest(setup);
    let (tube, kick) = (1, true);
    for left in (0..600).step_by(8) {
        let steps = [
            put(500),
            TURN,
            first(Change::Bury),
            TURN,
            put(largest - left),
            TURN,
            first(Change::Move { tube, kick }),
            TURN,
        ];
        assert!(crash_in_the_last_turn(&steps, setup) > 0, "{left}");
    }
}
