//! Schedules whose firings are counted: no one touches their jobs, and nothing makes them wait.

use std::collections::BTreeMap;

use bsd::check::extended::{by_second, firings};
use bsd::check::whole::Whole;
use bsd::protocol::{Command, SetSchedule};
use bsd::schedule::Missed;
use bsd::types::{Now, SECOND_NS};

/// The tube of their jobs.
pub(super) const TUBE: &str = "beats";
/// The schedules: what each does with what it has missed.
const ALL: [(&str, Missed); 3] = [
    ("beat-all", Missed::All),
    ("beat-once", Missed::Once),
    ("beat-skipped", Missed::Skip),
];
const SECONDS: u32 = 15;
/// What is later than this was missed.
const LATE_NS: u64 = 60 * SECOND_NS as u64;

/// How far one has come.
#[derive(Debug, Clone)]
struct Beat {
    missed: Missed,
    upto: u64,
    /// How many firings there have been when the log says this of how far it has come.
    counts: BTreeMap<u64, usize>,
}

impl Beat {
    fn count(&self) -> usize {
        self.counts.values().last().copied().unwrap_or(0)
    }

    /// Everything is done that is due now.
    fn go_on(&mut self, now: Now) {
        let due = firings(self.upto, now.wall_ns, SECONDS);
        if due.is_empty() {
            return;
        }
        let is_late = |at: &&u64| **at < now.wall_ns - LATE_NS;
        let late = due.iter().filter(is_late).count();
        let given_up = late - late.min(self.missed.most());
        let mut count = self.count();
        for at in &due[given_up..] {
            count += 1;
            self.counts.insert(*at, count);
        }
        if given_up == due.len() {
            self.counts.insert(now.wall_ns, count);
        }
        self.upto = now.wall_ns;
    }

    /// A crash has left this much of it.
    fn recover(&mut self, name: &str, fired: u64, count: usize) {
        let known = self.counts.get(&fired);
        assert_eq!(
            known,
            Some(&count),
            "{name} has fired {count} times up to {fired}: {:?}",
            self.counts
        );
        self.counts.retain(|at, _| *at <= fired);
        self.upto = fired;
    }
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Beats(BTreeMap<&'static str, Beat>);

impl Beats {
    /// The commands that set those that are not there.
    pub(super) fn missing(&self) -> Vec<Command<'static>> {
        let new = ALL.iter().filter(|(name, _)| !self.0.contains_key(name));
        let set = |(name, missed): &(&str, Missed)| {
            let schedule = by_second(name, TUBE, SECONDS, *missed);
            let name = (*name).to_owned();
            Command::ScheduleSet(Box::new(SetSchedule {
                name,
                schedule,
                keeps_pause: false,
            }))
        };
        new.map(set).collect()
    }

    /// One was set.
    pub(super) fn note_set(&mut self, command: &Command<'_>, now: Now) {
        let Command::ScheduleSet(set) = command else {
            return;
        };
        if let Some((name, missed)) = ALL.iter().find(|(name, _)| *name == set.name) {
            let (missed, upto) = (*missed, now.wall_ns);
            let counts = BTreeMap::from([(upto, 0)]);
            let beat = Beat {
                missed,
                upto,
                counts,
            };
            self.0.insert(name, beat);
        }
    }

    /// All that is due was done: each firing has its job.
    pub(super) fn settle(&mut self, state: &Whole, now: Now) {
        for (name, beat) in &mut self.0 {
            beat.go_on(now);
            let count = count(state, name);
            assert_eq!(count, beat.count(), "the jobs of {name}: {beat:?}");
        }
    }

    /// After a crash, or in the middle of a tick: as far as each says that it has come, it has.
    pub(super) fn recover(&mut self, state: &Whole) {
        self.0.retain(|name, beat| {
            let fired = state.fired_up_to(name);
            if let Some(fired) = fired {
                beat.recover(name, fired, count(state, name));
            }
            fired.is_some()
        });
    }
}

/// Each has a name, and so bodies, of another length.
fn count(state: &Whole, name: &str) -> usize {
    let jobs = state.jobs.values();
    jobs.filter(|job| job.tube == TUBE && job.size as usize == name.len())
        .count()
}
