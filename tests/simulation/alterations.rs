//! Changes over the API in a simulated run: of a job's priority, delay or tube, and to bury it
//! without reserving it. A move is one effect of the history: after a crash the job is in the one
//! tube or in the other, never in both and never in none.

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
            Change::Move { tube, kick } => JobAction::Move {
                tube: TUBES[tube].into(),
                kick,
            },
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
        let copy = self.engine().queue().next_id().0;
        let effects: Vec<Effect> = self.effect(id, copy, change).into_iter().collect();
        let (now, operations) = (self.now, self.fs.operations());
        let altered =
            self.engine_mut()
                .alter(JobId(id), &change.action(), now, &mut Answers::default());
        let after = self.engine().after();
        let is_move = matches!(change, Change::Move { .. });
        if is_move && matches!(altered, Ok(Altered::Done(_)) | Err(_)) {
            let happened = self.history.happened.get(&id).copied();
            let happened = happened.unwrap_or_default();
            self.history.happened.insert(copy, happened);
        }
        let Some(altered) = altered.ok().filter(|_| !self.fs.is_crashed()) else {
            return Err(self.unanswered(&effects));
        };
        match altered {
            Altered::Done(found) => {
                assert_eq!(found.0, if is_move { copy } else { id });
                assert_eq!(effects.len(), 1, "{change:?} of job {id} changed nothing");
                self.history.push(&effects, after);
            }
            Altered::Same => assert!(effects.is_empty(), "{change:?} of job {id} was refused"),
            Altered::NoRoom => self.refused += 1,
            Altered::Damaged => assert!(self.is_faulty && self.fs.operations() > operations),
            other => panic!("{change:?} of job {id}: {other:?}"),
        }
        if self.is_faulty {
            self.note_quarantined(after);
        }
        Ok(())
    }

    /// `None`: it is so already.
    fn effect(&self, id: u64, copy: u64, change: Change) -> Option<Effect> {
        let job = &self.history.now().jobs[&id];
        let (placed, mut counters) = (job.placed_at(self.now.wall_ns), self.counters(id));
        let is_buried = matches!(placed, Placed::Buried(_));
        Some(match change {
            Change::Priority(pri) if pri == job.pri => return None,
            Change::Bury if is_buried => return None,
            Change::Move { tube, .. } if TUBES[tube] == job.tube => return None,
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
                let is_kicked = kick && placed != Placed::Ready;
                counters.kicks += u32::from(is_kicked);
                Effect::Move {
                    id,
                    copy,
                    tube: TUBES[tube],
                    placed: if is_kicked { Placed::Ready } else { placed },
                    counters,
                    wall_ns: self.now.wall_ns,
                }
            }
        })
    }
}

const TURN: Step = Step::Turn { ms: 0 };

pub(super) const fn put(size: usize) -> Step {
    Step::Put {
        tube: 0,
        pri: 5,
        delay: 0,
        ttr: 9,
        size,
    }
}

/// The first job moves into a tube.
const fn first_to(tube: usize) -> Step {
    Step::Alter {
        nth: 0,
        change: Change::Move { tube, kick: false },
    }
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

/// Wherever a segment ends among the records of a move, and wherever a crash comes, the job is there
/// once.
#[test]
fn a_crash_in_a_move_across_the_end_of_a_segment_leaves_the_job_once() {
    let setup = Setup::from(SyncPolicy::Always);
    let largest = largest(setup);
    for left in (400..800).step_by(16) {
        let steps = [put(500), TURN, put(largest - left), TURN, first_to(1), TURN];
        assert!(crash_in_the_last_turn(&steps, setup) > 0, "{left}");
    }
}

/// The records of many moves in a turn are more than a frame holds: it ends between two of them.
#[test]
fn a_crash_in_many_moves_leaves_each_job_once() {
    let setup = Setup {
        sync: SyncPolicy::Always,
        segment_size: 4 << 20,
    };
    let mut steps = vec![put(65_000); 18];
    steps.push(TURN);
    steps.extend(vec![first_to(1); 18]);
    steps.push(TURN);
    assert!(crash_in_the_last_turn(&steps, setup) > 0);
}
