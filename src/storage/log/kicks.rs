//! Unfinished kicks of several jobs.
//!
//! A kick of many jobs is logged over several turns of the loop, and perhaps several segments. A
//! record before each slice says how many jobs are still to come, and each update of the kick
//! carries its number. So a log that ends in the middle of a kick tells recovery to finish it: no
//! kick is half-applied, and updates by other clients in the meantime do not count for it.
//!
//! The list here is computed from the records, in operation and in recovery alike. A new segment
//! begins with the complete list, after its list of files; so kick records in older segments no
//! longer matter, and compaction drops them.

use crate::storage::format::Record;
use crate::types::JobState;

/// Kicks that may be unfinished at a time at most: a new segment has to hold them all.
pub const KICKS_MAX: usize = 8;
/// The kick number of an update that belongs to no kick of several jobs.
pub const NO_KICK: u16 = 0;

/// A kick that is partly in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KickUnderWay {
    number: u16,
    /// The name of the tube.
    pub tube: String,
    /// Which jobs are kicked: delayed or buried ones.
    pub state: JobState,
    /// Delayed jobs that were due at this wall time, in nanoseconds since 1970, are not kicked: the
    /// log does not record that they became ready.
    pub due_wall_ns: u64,
    /// How many jobs remain to be kicked.
    pub left: u32,
}

/// The jobs that a kick is about.
#[derive(Debug, Clone, Copy)]
pub struct Kicked<'a> {
    /// The name of the tube.
    pub tube: &'a str,
    /// Which jobs: delayed or buried ones.
    pub state: JobState,
    /// Delayed jobs that were due at this wall time, in nanoseconds since 1970, are not kicked.
    pub due_wall_ns: u64,
}

/// The unfinished kicks, in the order in which they began.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kicks {
    list: Vec<KickUnderWay>,
}

impl Kicks {
    /// Apply the next record of the log.
    pub(crate) fn note(&mut self, record: &Record<'_>) {
        match *record {
            // The first record of a segment; the records of the unfinished kicks follow.
            Record::Manifest { .. } => *self = Kicks::default(),
            Record::Kick {
                number,
                tube,
                state,
                left,
                due_wall_ns,
            } => {
                let kick = KickUnderWay {
                    number,
                    tube: tube.to_owned(),
                    state,
                    due_wall_ns,
                    left,
                };
                self.set(kick);
            }
            Record::Update { kick, .. } if kick != NO_KICK => self.count(kick),
            _ => {}
        }
    }

    fn set(&mut self, kick: KickUnderWay) {
        let (number, is_over) = (kick.number, kick.left == 0);
        match self.list.iter_mut().find(|known| known.number == number) {
            Some(known) => *known = kick,
            None => self.list.push(kick),
        }
        if is_over {
            self.list.retain(|known| known.number != number);
        }
    }

    /// Count an update of this kick.
    fn count(&mut self, number: u16) {
        // The kick is over, and compaction has dropped its record.
        let Some(kick) = self.list.iter_mut().find(|kick| kick.number == number) else {
            return;
        };
        kick.left -= 1;
        if kick.left == 0 {
            self.list.retain(|kick| kick.number != number);
        }
    }

    /// The unfinished kicks.
    pub(crate) fn list(&self) -> &[KickUnderWay] {
        &self.list
    }

    /// The records of the unfinished kicks, for a new segment.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.list.iter().map(KickUnderWay::record)
    }

    /// A number that no unfinished kick has.
    pub(crate) fn free_number(&self) -> u16 {
        let is_free = |number: &u16| self.list.iter().all(|kick| kick.number != *number);
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
            due_wall_ns: self.due_wall_ns,
        }
    }

    /// The number of the kick.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::format::Entries;
    use crate::types::{Counters, JobId};

    fn kick(number: u16, left: u32) -> Record<'static> {
        Record::Kick {
            number,
            tube: "t",
            state: JobState::Buried,
            left,
            due_wall_ns: 0,
        }
    }

    fn update(kick: u16) -> Record<'static> {
        Record::Update {
            id: JobId(1),
            kick,
            state: JobState::Ready,
            deadline_wall_ns: 0,
            pri: 0,
            delay: 0,
            counters: Counters::default(),
        }
    }

    fn lefts(kicks: &Kicks) -> Vec<(u16, u32)> {
        let pairs = kicks.list().iter().map(|kick| (kick.number, kick.left));
        pairs.collect()
    }

    fn noted(records: &[Record<'_>]) -> Kicks {
        let mut kicks = Kicks::default();
        records.iter().for_each(|record| kicks.note(record));
        kicks
    }

    #[test]
    fn f38_each_update_counts_for_the_kick_that_it_names_and_those_of_others_for_none() {
        let kicks = [kick(1, 5), kick(2, 9), update(1), update(0), update(2)];
        assert_eq!(lefts(&noted(&kicks)), [(1, 4), (2, 8)]);
        let of_none_under_way = [kick(1, 5), update(2), update(3)];
        assert_eq!(lefts(&noted(&of_none_under_way)), [(1, 5)]);
    }

    #[test]
    fn a_kick_is_over_with_its_last_update_or_when_it_says_so() {
        assert_eq!(lefts(&noted(&[kick(1, 2), update(1), update(1)])), []);
        assert_eq!(lefts(&noted(&[kick(1, 5), update(1), kick(1, 0)])), []);
        assert_eq!(lefts(&noted(&[kick(1, 1), update(1), update(1)])), []);
    }

    #[test]
    fn a_new_segment_goes_on_where_the_last_one_ended() {
        let mut kicks = noted(&[kick(1, 9), update(1), kick(2, 7), update(2)]);
        let carried = kicks.clone();
        let manifest = Record::Manifest {
            next_id: JobId(1),
            entries: Entries::List(&[]),
        };
        kicks.note(&manifest);
        assert_eq!(lefts(&kicks), []);
        carried.records().for_each(|record| kicks.note(&record));
        kicks.note(&update(1));
        assert_eq!(lefts(&kicks), [(1, 7), (2, 6)]);
    }

    #[test]
    fn numbers_are_used_again_when_they_are_free() {
        let kicks = noted(&[kick(1, 9), kick(2, 9), kick(1, 0)]);
        assert_eq!(kicks.free_number(), 1);
        assert_eq!(noted(&[kick(1, 9)]).free_number(), 2);
    }
}
