//! A client: its used and watched tubes, its reserved jobs, and its wait. All of it is volatile.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::handle::{ClientHandle, TubeHandle};
use super::job::{DueKey, ReadyKey};
use super::order::Order;
use crate::types::{SECOND_NS, Time};

/// In the last second of a reservation its client does not wait (`protocol.txt`, `DEADLINE_SOON`).
const SAFETY_MARGIN_NS: i64 = SECOND_NS;

/// The watch list of a client. That of nearly every client is short, and takes no memory of its own.
pub(super) type Watched = SmallVec<[TubeHandle; 4]>;

/// A client.
pub(super) struct Client {
    pub(super) used: TubeHandle,
    pub(super) watched: Watched,
    /// Additional state, if it watches many tubes.
    pub(super) wide: Option<Box<Wide>>,
    pub(super) reserved: Order<DueKey>,
    pub(super) wait: Option<Wait>,
    pub(super) is_producer: bool,
    pub(super) is_worker: bool,
    /// It has disconnected.
    pub(super) is_ghost: bool,
    /// Its entry in the order of clients by next event.
    pub(super) timer: Option<(Time, ClientHandle)>,
}

/// A reserve command without an answer.
pub(super) struct Wait {
    pub(super) ticket: u64,
    pub(super) terms: Terms,
}

/// What a client waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terms {
    /// When the wait ends at the latest; `None`: never.
    pub until: Option<Time>,
    /// Jobs that it takes at most, of those that are ready when there is one; `None`: it asks for a
    /// single job.
    pub most: Option<u16>,
}

impl From<Option<Time>> for Terms {
    /// A wait for a single job.
    fn from(until: Option<Time>) -> Terms {
        Terms { until, most: None }
    }
}

/// Why a wait ended without a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// A job that the client has reserved is in its last second.
    DeadlineSoon,
    /// The time that the client wanted to wait is over.
    TimedOut,
}

impl Client {
    /// The index of a tube on the watch list.
    pub(super) fn watched_at(&self, tube: TubeHandle) -> Option<usize> {
        match &self.wide {
            Some(wide) => wide.places.get(&tube).map(|at| *at as usize),
            None => self.watched.iter().position(|other| *other == tube),
        }
    }

    /// When the last second of its first reservation begins.
    pub(super) fn margin_begins(&self) -> Option<Time> {
        let (deadline, _) = self.reserved.first()?;
        Some(Time(deadline.0.saturating_sub(SAFETY_MARGIN_NS)))
    }

    /// It waits, and not all jobs that were there at the start of the wait have been looked at.
    pub(super) fn is_searching(&self) -> bool {
        let wide = self.wide.as_ref().filter(|_| self.wait.is_some());
        wide.is_some_and(|wide| wide.searched != Searched::All)
    }

    /// The time of the next timed event. A reservation ends *after* its deadline.
    pub(super) fn due(&self) -> Option<Time> {
        match &self.wait {
            Some(_) if self.is_searching() => None,
            Some(wait) => self
                .margin_begins()
                .into_iter()
                .chain(wait.terms.until)
                .min(),
            None => self
                .reserved
                .first()
                .map(|(deadline, _)| Time(deadline.0.saturating_add(1))),
        }
    }
}

/// The additional state of a wide client.
pub(super) struct Wide {
    /// The index on the watch list of each tube.
    pub(super) places: BTreeMap<TubeHandle, u32>,
    /// While it waits: how far the search through the jobs that were there at the start of the wait
    /// has come.
    pub(super) searched: Searched,
}

/// How far the search for a waiting client has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Searched {
    Nothing,
    /// All jobs up to this one; no two tubes have a job with the same key.
    UpTo(ReadyKey),
    All,
}
