//! Kicks of several jobs that are under way.
//!
//! A kick of many jobs is logged in runs, over several turns of the loop and perhaps several
//! segments. A record before each run says how much of the kick is still to come, so that a log
//! that ends in the middle of one tells recovery to finish it: no kick is half-applied.
//!
//! The list here is the fold of the records, in operation and in recovery alike. A new segment
//! begins with the whole list, behind its list of files; so what older segments say of kicks no
//! longer matters, and compaction drops it.

use super::format::Record;
use super::log::{AppendError, Log, Purpose};
use crate::types::JobState;

/// So many kicks may be under way at a time: a new segment has to hold them all.
pub const KICKS_MAX: usize = 8;

/// A kick of which a part is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KickUnderWay {
    number: u32,
    /// The name of the tube.
    pub tube: String,
    /// Which of its jobs are kicked: delayed or buried ones.
    pub state: JobState,
    /// Delayed jobs that were due at this wall time, in nanoseconds since 1970, are not among them:
    /// nothing in the log says that they have become ready.
    pub due_wall_ns: u64,
    /// How many jobs it has still to kick.
    pub left: u32,
    run: u32,
}

/// What is kicked.
#[derive(Debug, Clone, Copy)]
pub struct Kicked<'a> {
    /// The name of the tube.
    pub tube: &'a str,
    /// Which of its jobs: delayed or buried ones.
    pub state: JobState,
    /// Delayed jobs that were due at this wall time, in nanoseconds since 1970, are not kicked.
    pub due_wall_ns: u64,
}

/// The kicks that are under way, in the order in which they were begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kicks {
    list: Vec<KickUnderWay>,
    /// The number of the kick that the next update belongs to.
    running: Option<u32>,
}

impl Kicks {
    /// Take in the next record of the log.
    pub(crate) fn note(&mut self, record: &Record<'_>) {
        match *record {
            // The first record of a segment; those that are under way follow.
            Record::Manifest { .. } => *self = Kicks::default(),
            Record::Kick {
                number,
                tube,
                state,
                left,
                run,
                due_wall_ns,
            } => {
                let kick = KickUnderWay {
                    number,
                    tube: tube.to_owned(),
                    state,
                    due_wall_ns,
                    left,
                    run,
                };
                self.set(kick);
            }
            Record::Update { .. } => self.count(),
            _ => {}
        }
    }

    fn set(&mut self, kick: KickUnderWay) {
        self.running = (kick.run > 0 && kick.left > 0).then_some(kick.number);
        let (number, is_over) = (kick.number, kick.left == 0);
        match self.list.iter_mut().find(|known| known.number == number) {
            Some(known) => *known = kick,
            None => self.list.push(kick),
        }
        if is_over {
            self.list.retain(|known| known.number != number);
        }
    }

    /// An update: of the kick that has a run, if one has.
    fn count(&mut self) {
        let Some(number) = self.running else { return };
        let running = self.list.iter_mut().find(|kick| kick.number == number);
        if let Some(kick) = running {
            kick.left = kick.left.saturating_sub(1);
            kick.run = kick.run.saturating_sub(1);
            if kick.run == 0 || kick.left == 0 {
                self.running = None;
            }
        }
        self.list.retain(|kick| kick.left > 0);
    }

    /// The kick that the next update belongs to.
    pub(crate) fn running(&self) -> Option<&KickUnderWay> {
        let number = self.running?;
        self.list.iter().find(|kick| kick.number == number)
    }

    /// The kicks that are under way.
    pub(crate) fn list(&self) -> &[KickUnderWay] {
        &self.list
    }

    /// What a new segment says of them. One that has a run comes last, so that its run goes on.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let is_running = |kick: &&KickUnderWay| Some(kick.number) == self.running;
        let others = self.list.iter().filter(move |kick| !is_running(kick));
        others
            .chain(self.list.iter().filter(is_running))
            .map(KickUnderWay::record)
    }

    /// A number that no kick under way has.
    pub(crate) fn free_number(&self) -> u32 {
        let is_free = |number: &u32| self.list.iter().all(|kick| kick.number != *number);
        (1..).find(is_free).unwrap_or_default()
    }
}

impl KickUnderWay {
    fn record(&self) -> Record<'_> {
        Record::Kick {
            number: self.number,
            tube: &self.tube,
            state: self.state,
            left: self.left,
            run: self.run,
            due_wall_ns: self.due_wall_ns,
        }
    }

    /// Which of the kicks under way it is.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Log {
    /// Append that the next `run` updates are those of a kick that has `left` jobs to kick, these
    /// included; with 0 the kick is over. `number` is what the first such call of the kick
    /// returned, and `None` in that call. Durable with the records that follow: a log that ends
    /// before the last update tells of the kick in [`Log::kicks_under_way`]. At most [`KICKS_MAX`]
    /// kicks may be under way.
    ///
    /// # Errors
    /// As those of [`Log::append`].
    pub fn announce_kick(
        &mut self,
        number: Option<u32>,
        what: Kicked<'_>,
        left: u32,
        run: u32,
        wall_ns: u64,
    ) -> Result<u32, AppendError> {
        let number = number.unwrap_or_else(|| self.kicks.free_number());
        let record = Record::Kick {
            number,
            tube: what.tube,
            state: what.state,
            left,
            run,
            due_wall_ns: what.due_wall_ns,
        };
        let purpose = match left {
            0 => Purpose::Delete,
            _ => Purpose::Update,
        };
        self.append(&record, purpose, wall_ns)?;
        Ok(number)
    }

    /// Append that the next update is not the kick's that has announced it, if one has.
    ///
    /// # Errors
    /// As those of [`Log::append`].
    pub fn interrupt_kick(&mut self, wall_ns: u64) -> Result<(), AppendError> {
        let Some(kick) = self.kicks.running().cloned() else {
            return Ok(());
        };
        let what = Kicked {
            tube: &kick.tube,
            state: kick.state,
            due_wall_ns: kick.due_wall_ns,
        };
        self.announce_kick(Some(kick.number), what, kick.left, 0, wall_ns)?;
        Ok(())
    }

    /// Whether the next update that is appended is one of this kick.
    #[must_use]
    pub fn is_kicking(&self, number: u32) -> bool {
        self.kicks.running == Some(number)
    }

    /// The kicks of which the log has a part.
    #[must_use]
    pub fn kicks_under_way(&self) -> &[KickUnderWay] {
        self.kicks.list()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::format::Entries;
    use crate::types::{Counters, JobId};

    fn kick(number: u32, left: u32, run: u32) -> Record<'static> {
        Record::Kick {
            number,
            tube: "t",
            state: JobState::Buried,
            left,
            run,
            due_wall_ns: 0,
        }
    }

    fn update() -> Record<'static> {
        Record::Update {
            id: JobId(1),
            state: JobState::Ready,
            deadline_wall_ns: 0,
            pri: 0,
            delay: 0,
            counters: Counters::default(),
        }
    }

    fn lefts(kicks: &Kicks) -> Vec<(u32, u32)> {
        let pairs = kicks.list().iter().map(|kick| (kick.number, kick.left));
        pairs.collect()
    }

    fn noted(records: &[Record<'_>]) -> Kicks {
        let mut kicks = Kicks::default();
        records.iter().for_each(|record| kicks.note(record));
        kicks
    }

    #[test]
    fn each_update_of_a_run_is_one_less_and_those_behind_the_run_are_somebody_elses() {
        let kicks = noted(&[kick(1, 5, 2), update(), update(), update()]);
        assert_eq!(lefts(&kicks), [(1, 3)]);
    }

    #[test]
    fn a_kick_is_over_with_its_last_update_or_when_it_says_so() {
        assert_eq!(lefts(&noted(&[kick(1, 2, 2), update(), update()])), []);
        assert_eq!(lefts(&noted(&[kick(1, 5, 2), update(), kick(1, 0, 0)])), []);
    }

    #[test]
    fn a_new_segment_goes_on_where_the_last_one_ended_also_inside_a_run() {
        let mut kicks = noted(&[kick(1, 9, 3), update(), kick(2, 7, 7), update()]);
        let carried = kicks.clone();
        let manifest = Record::Manifest {
            next_id: JobId(1),
            entries: Entries::List(&[]),
        };
        kicks.note(&manifest);
        assert_eq!(lefts(&kicks), []);
        carried.records().for_each(|record| kicks.note(&record));
        kicks.note(&update());
        assert_eq!(lefts(&kicks), [(1, 8), (2, 5)]);
    }

    #[test]
    fn numbers_are_used_again_when_they_are_free() {
        let kicks = noted(&[kick(1, 9, 0), kick(2, 9, 0), kick(1, 0, 0)]);
        assert_eq!(kicks.free_number(), 1);
        assert_eq!(noted(&[kick(1, 9, 0)]).free_number(), 2);
    }
}
