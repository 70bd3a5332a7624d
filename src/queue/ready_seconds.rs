//! In which seconds the ready jobs of a tube were put.
//!
//! Nearly every job that becomes ready was put in the newest of these seconds, or is older than most:
//! so the newest one is beside the others, and needs no search.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::types::{SECOND_NS, Time};

/// How many ready jobs were put in each second.
#[derive(Debug, Default)]
pub(super) struct ReadySeconds {
    newest: i32,
    /// Jobs of the newest second; 0: there is no such second.
    count: u32,
    /// Jobs of all other seconds, which are all older.
    older: BTreeMap<i32, u32>,
}

impl ReadySeconds {
    /// A job that was put at `created` is ready from now on. Says whether no other one of that second
    /// was.
    #[inline]
    pub(super) fn enter(&mut self, created: Time) -> bool {
        let second = second_of(created);
        if second == self.newest && self.count > 0 {
            self.count += 1;
            return false;
        }
        self.enter_another(second)
    }

    fn enter_another(&mut self, second: i32) -> bool {
        let newest = match self.count {
            0 => self.older.last_key_value().map(|(second, _)| *second),
            _ => Some(self.newest),
        };
        if newest >= Some(second) {
            let count = self.older.entry(second).or_default();
            *count += 1;
            return *count == 1;
        }
        if self.count > 0 {
            self.older.insert(self.newest, self.count);
        }
        (self.newest, self.count) = (second, 1);
        true
    }

    /// A job that was put at `created` is ready no more. Says whether no other one of that second is.
    ///
    /// # Panics
    /// If it was not counted.
    #[inline]
    pub(super) fn leave(&mut self, created: Time) -> bool {
        let second = second_of(created);
        if second == self.newest && self.count > 0 {
            self.count -= 1;
            return self.count == 0;
        }
        self.leave_older(second)
    }

    fn leave_older(&mut self, second: i32) -> bool {
        let Entry::Occupied(mut count) = self.older.entry(second) else {
            unreachable!("a ready job of second {second} was not counted")
        };
        *count.get_mut() -= 1;
        let is_last = *count.get() == 0;
        if is_last {
            count.remove();
        }
        is_last
    }

    /// The number of seconds.
    pub(super) fn len(&self) -> usize {
        self.older.len() + usize::from(self.count > 0)
    }

    /// The oldest second.
    pub(super) fn oldest(&self) -> Option<Time> {
        let newest = (self.count > 0).then_some(self.newest);
        let older = self.older.first_key_value().map(|(second, _)| *second);
        Some(Time(i64::from(older.or(newest)?) * SECOND_NS))
    }
}

/// A clock of the process does not come to the end of these in 68 years.
fn second_of(time: Time) -> i32 {
    let second = time.0.div_euclid(SECOND_NS);
    i32::try_from(second).unwrap_or(if second < 0 { i32::MIN } else { i32::MAX })
}
