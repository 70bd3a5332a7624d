//! The extended commands: what beanstalkd does not have.

use super::Flow;
use super::commands::Turn;
use crate::protocol::{Command, Op, PutWith, Reply};
use crate::storage::{Begun, StoreError};
use crate::types::{Now, SECOND_NS};

impl Turn<'_> {
    /// Run one of them. Not inlined: the other commands of its caller would pay for it.
    #[inline(never)]
    pub(super) fn extended(
        &mut self,
        command: &Command<'_>,
        begun: Option<&Begun>,
    ) -> Result<Flow, StoreError> {
        match command {
            Command::PutWith(put) => self.put_with(put, begun),
            Command::Abort => self.abort(),
            Command::ListJobs(list) => self.list_jobs(list),
            Command::Batch { on_each, ids } => self.batch(*on_each, ids),
            Command::ReserveBatch { most, timeout } => {
                self.reserve(*timeout, Some(*most), Op::ReserveBatch)
            }
            other => unreachable!("{other:?} is a command of beanstalkd"),
        }
    }

    /// No reserve of the client waits: nothing is run for it while one does. Its connection has looked
    /// ahead, and has ended the wait before ([`Engine::half_closed`](super::Engine::half_closed)).
    fn abort(&mut self) -> Result<Flow, StoreError> {
        self.engine.count(Op::Abort);
        self.reply(Reply::Aborted)
    }

    /// A new job. A time at which it is ready becomes a delay: that is what the log has, and a clock
    /// that is set later does not change it.
    fn put_with(&mut self, put: &PutWith<'_>, begun: Option<&Begun>) -> Result<Flow, StoreError> {
        let delay = put.at.map_or(put.delay, |at| delay_until(at, self.now));
        let numbers = (put.pri, delay, put.ttr);
        self.put(
            Op::PutWith,
            put.tube.as_deref(),
            numbers,
            (begun, &put.body),
        )
    }
}

/// Seconds from now until this Unix time, rounded up: a job is never ready before it.
fn delay_until(at: u32, now: Now) -> u32 {
    let left_ns = (u64::from(at) * SECOND_NS as u64).saturating_sub(now.wall_ns);
    left_ns.div_ceil(SECOND_NS as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Time;

    #[test]
    fn a_time_becomes_a_delay_that_does_not_end_before_it() {
        let second = SECOND_NS as u64;
        for (wall_ns, at, delay) in [
            (0, 0, 0),
            (0, 7, 7),
            (1, 7, 7),
            (second - 1, 7, 7),
            (second, 7, 6),
            (7 * second, 7, 0),
            (7 * second + 1, 7, 0),
            (u64::MAX, u32::MAX, 0),
            (0, u32::MAX, u32::MAX),
        ] {
            let now = Now {
                mono: Time(5),
                wall_ns,
            };
            assert_eq!(delay_until(at, now), delay, "{at} at {wall_ns}");
        }
    }
}
