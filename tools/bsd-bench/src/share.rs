//! The share of one connection: its part of the work, and its tubes.

use std::io::{self, Write};

use crate::wire::{Op, push_number};

/// The remaining work: rounds of a job each, or commands of a mix.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) left: u64,
    /// When it ends, on the load's clock.
    pub(crate) end: u64,
}

impl Budget {
    /// Take up to `wanted`; none when it is over.
    pub(crate) fn take(&mut self, wanted: usize, at: u64) -> usize {
        if at >= self.end {
            return 0;
        }
        let taken = self.left.min(wanted as u64);
        self.left -= taken;
        taken as usize
    }
}

/// The tubes of one connection: some of all, in turn.
#[derive(Debug)]
pub(crate) struct Tubes {
    prefix: &'static str,
    all: Vec<usize>,
    next: usize,
}

impl Tubes {
    /// All of them, in turn.
    pub(crate) fn all(prefix: &'static str, count: usize) -> Tubes {
        Tubes::share(prefix, count, 0, 1)
    }

    /// Connection `index` of `connections` gets its share of `count` tubes, or shares one if there
    /// are too few. With no tubes: the default tube.
    pub(crate) fn share(
        prefix: &'static str,
        count: usize,
        index: usize,
        connections: usize,
    ) -> Tubes {
        let all = match count {
            0 => Vec::new(),
            count => (index % count..count).step_by(connections.max(1)).collect(),
        };
        let next = 0;
        Tubes { prefix, all, next }
    }

    pub(crate) fn are_many(&self) -> bool {
        self.all.len() > 1
    }

    /// Watch them all and use the first; one command per call of `sent`, and at least one, so that
    /// its reply shows that the connection works.
    pub(crate) fn push_setup(&self, out: &mut Vec<u8>, mut sent: impl FnMut(Op)) -> io::Result<()> {
        if self.all.is_empty() {
            out.extend_from_slice(b"use default\r\n");
            sent(Op::Use);
        }
        for (index, number) in self.all.iter().enumerate() {
            if index == 0 {
                write!(out, "use {}{number}\r\n", self.prefix)?;
                sent(Op::Use);
            }
            write!(out, "watch {}{number}\r\n", self.prefix)?;
            sent(Op::Watch);
        }
        Ok(())
    }

    /// Use the next.
    pub(crate) fn push_use(&mut self, out: &mut Vec<u8>) {
        self.next = (self.next + 1) % self.all.len();
        out.extend_from_slice(b"use ");
        out.extend_from_slice(self.prefix.as_bytes());
        push_number(self.all[self.next] as u64, out);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_with_its_time_or_its_jobs() {
        let mut budget = Budget { left: 5, end: 10 };
        assert_eq!(
            [budget.take(3, 0), budget.take(3, 9), budget.take(3, 9)],
            [3, 2, 0]
        );
        let mut budget = Budget { left: 5, end: 10 };
        assert_eq!(budget.take(3, 10), 0);
    }

    #[test]
    fn every_tube_has_a_connection_and_every_connection_a_tube() {
        for (tubes, connections) in [(1, 4), (3, 4), (4, 4), (10, 4), (1, 1)] {
            let share = |index| Tubes::share("t", tubes, index, connections).all;
            let shares: Vec<_> = (0..connections).map(share).collect();
            assert!(shares.iter().all(|share| !share.is_empty()));
            assert!((0..tubes).all(|tube| shares.iter().any(|share| share.contains(&tube))));
        }
        assert!(Tubes::share("t", 0, 0, 4).all.is_empty());
    }
}
