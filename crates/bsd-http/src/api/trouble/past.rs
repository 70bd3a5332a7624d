//! How far the totals were some minutes ago: what rises is told, and not what has been so for long.
//!
//! A round each minute, of the whole server and of the first tubes that have failures. All of it in
//! less than 1 MiB.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::snapshot::{Snapshot, TubeFigures};
use bsd::types::{SECOND_NS, Time};

/// A rise is one of this time, or of the time since the start.
pub(super) const WINDOW_NS: i64 = 10 * 60 * SECOND_NS;
/// Firings that were missed are told for an hour.
const MISSED_NS: i64 = 3600 * SECOND_NS;
/// Time between two rounds.
const EVERY_NS: i64 = 60 * SECOND_NS;
/// Rounds that are kept: those of the hour.
const ROUNDS_MAX: usize = 61;
/// Rounds in which tubes are kept: those of the ten minutes.
const TUBE_ROUNDS: usize = 11;
/// Tubes of which totals are kept.
const TUBES_MAX: usize = 500;

/// Totals of a tube, or how much they have risen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OfTube {
    pub(crate) failures: u64,
    pub(crate) set_aside: u64,
    pub(crate) puts_refused: u64,
}

impl OfTube {
    fn of(tube: &TubeFigures) -> Option<OfTube> {
        let failures = tube.failures.as_ref()?;
        Some(OfTube {
            failures: failures.by_reason.iter().sum(),
            set_aside: failures.set_aside,
            puts_refused: failures.puts_refused,
        })
    }

    /// A tube that has vanished and is there again began from 0.
    fn since(self, before: OfTube) -> OfTube {
        if self.failures < before.failures || self.puts_refused < before.puts_refused {
            return self;
        }
        OfTube {
            failures: self.failures - before.failures,
            set_aside: self.set_aside.saturating_sub(before.set_aside),
            puts_refused: self.puts_refused - before.puts_refused,
        }
    }
}

/// Totals of the server at one time.
#[derive(Debug, Default)]
struct Round {
    at: Time,
    timeouts: u64,
    missed: u64,
    tubes: HashMap<Box<str>, OfTube>,
}

impl Round {
    fn of(snapshot: &Snapshot) -> Round {
        let schedules = &snapshot.figures.schedules;
        let tubes = snapshot.kept_tubes();
        let tubes = tubes.filter_map(|(name, tube)| Some((name.into(), OfTube::of(tube)?)));
        Round {
            at: snapshot.now.mono,
            timeouts: snapshot.figures.queue.timeouts,
            missed: schedules.missed + schedules.given_up,
            tubes: tubes.take(TUBES_MAX).collect(),
        }
    }
}

/// What has risen, and within which time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rise {
    pub(crate) span_ns: i64,
    pub(crate) timeouts: u64,
    /// Within an hour.
    pub(crate) missed: u64,
    pub(crate) tubes: HashMap<Box<str>, OfTube>,
}

impl Rise {
    pub(crate) fn of_tube(&self, name: &str) -> OfTube {
        self.tubes.get(name).copied().unwrap_or_default()
    }
}

/// The rounds of the last hour.
#[derive(Debug, Default)]
pub(crate) struct Past(Mutex<VecDeque<Round>>);

impl Past {
    /// So it is now. A round that comes too early is left out.
    pub(crate) fn note(&self, snapshot: &Snapshot) {
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = rounds.back().map(|round| round.at);
        if last.is_some_and(|at| snapshot.now.mono.since(at) < EVERY_NS) {
            return;
        }
        rounds.push_back(Round::of(snapshot));
        if rounds.len() > ROUNDS_MAX {
            rounds.pop_front();
        }
        let old = rounds.len().saturating_sub(TUBE_ROUNDS);
        if let Some(round) = old.checked_sub(1).and_then(|at| rounds.get_mut(at)) {
            round.tubes = HashMap::new();
        }
    }

    /// What has risen since. Before the server has run for that long, all totals have.
    pub(crate) fn rise(&self, snapshot: &Snapshot) -> Rise {
        let rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = snapshot.now.mono;
        let start = now
            .0
            .saturating_sub(snapshot.figures.uptime_seconds as i64 * SECOND_NS);
        let none = Round {
            at: Time(start),
            ..Round::default()
        };
        let before = |span_ns: i64| {
            let mut old = rounds.iter().rev();
            let old = old.find(|round| now.since(round.at) >= span_ns);
            old.unwrap_or(&none)
        };
        let (recent, hour) = (before(WINDOW_NS), before(MISSED_NS));
        let current = Round::of(snapshot);
        // A tube that is missing had no failures, unless there was no place for it.
        let is_full = recent.tubes.len() == TUBES_MAX;
        let rise = |name: &str, tube: OfTube| match recent.tubes.get(name) {
            Some(before) => tube.since(*before),
            None if is_full => OfTube::default(),
            None => tube,
        };
        let tubes = current.tubes.into_iter();
        Rise {
            span_ns: now.since(recent.at),
            timeouts: current.timeouts.saturating_sub(recent.timeouts),
            missed: current.missed.saturating_sub(hour.missed),
            tubes: tubes
                .map(|(name, tube)| (name.clone(), rise(&name, tube)))
                .collect(),
        }
    }
}
