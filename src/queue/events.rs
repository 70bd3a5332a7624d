//! Events of jobs, for watchers. Without a watcher nothing is kept, and an event costs a branch.

use std::sync::Arc;

use super::Queue;
use super::handle::JobHandle;
use super::job::Durable;
use crate::types::{JobId, JobState, Time};

/// Events that are kept until they are taken; further ones are counted.
pub(crate) const EVENTS_MAX: usize = 8192;

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: Time,
    /// To which job; 0 where it is about a tube alone.
    pub job: JobId,
    /// The tube.
    pub tube: Arc<str>,
    /// What.
    pub what: Happened,
}

/// An event of a job or a tube.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// It was put.
    Put {
        /// Its priority.
        pri: u32,
        /// Seconds until it is ready.
        delay: u32,
        /// Bytes of its body.
        body_size: u32,
    },
    /// It was handed out to a client.
    Reserve,
    /// It was deleted.
    Delete,
    /// The client that had reserved it gave it back by command.
    Release {
        /// Its priority.
        pri: u32,
        /// Seconds until it is ready.
        delay: u32,
    },
    /// The client that had reserved it has left: it is ready.
    Return,
    /// The time of the client that had reserved it is up: it is ready.
    TimeOut,
    /// It was buried.
    Bury {
        /// Its priority.
        pri: u32,
    },
    /// It was kicked: it is ready.
    Kick,
    /// It was delayed where no one had reserved it.
    Delay {
        /// Seconds until it is ready.
        delay: u32,
    },
    /// It has another priority.
    Priority {
        /// This one.
        pri: u32,
    },
    /// It is in another tube.
    Move {
        /// This one.
        to: Arc<str>,
    },
    /// The tube was paused, or a pause ended by command.
    Pause {
        /// Length in seconds; 0 ends a pause.
        seconds: u32,
    },
}

/// The events that were not taken yet.
#[derive(Debug, Default)]
pub(super) struct Watched {
    events: Vec<Event>,
    /// Events that there was no room for, behind the others.
    lost: u64,
}

/// Watching.
impl Queue {
    /// From now on events are kept, or no more.
    pub(crate) fn watch_events(&mut self, is_on: bool) {
        match is_on {
            true => _ = self.watched.get_or_insert_default(),
            false => self.watched = None,
        }
    }

    /// True if events are kept.
    #[inline]
    pub(crate) fn watches_events(&self) -> bool {
        self.watched.is_some()
    }

    /// The events since the last time, and how many were lost behind them.
    pub(crate) fn take_events(&mut self) -> (Vec<Event>, u64) {
        let watched = self.watched.as_deref_mut().map(std::mem::take);
        let Watched { events, lost } = watched.unwrap_or_default();
        (events, lost)
    }

    /// How many events there are.
    #[cfg(test)]
    pub(crate) fn event_count(&self) -> usize {
        let watched = self.watched.as_deref();
        watched.map_or(0, |watched| watched.events.len())
    }

    fn note(&mut self, event: Event) {
        let Some(watched) = self.watched.as_deref_mut() else {
            return;
        };
        match watched.events.len() < EVENTS_MAX {
            true => watched.events.push(event),
            false => watched.lost += 1,
        }
    }

    /// Note something about a job, if anyone watches.
    #[inline]
    pub(super) fn note_job(&mut self, job: JobHandle, what: Happened, at: Time) {
        if self.watched.is_some() {
            let (id, tube) = (self.jobs[job].id, self.jobs[job].tube);
            let tube = self.tubes[tube].name.clone();
            self.note(Event {
                at,
                job: id,
                tube,
                what,
            });
        }
    }

    /// Note something about a tube, if anyone watches.
    pub(super) fn note_pause(&mut self, tube: &str, seconds: u32, at: Time) {
        if self.watched.is_some() {
            self.note(Event {
                at,
                job: JobId(0),
                tube: tube.into(),
                what: Happened::Pause { seconds },
            });
        }
    }

    /// Note the event of an update that is about to be applied. The counters tell which: each
    /// command but `reserve-job`, which has an event of its own, counts itself.
    #[inline]
    pub(super) fn note_change(&mut self, job: JobHandle, new: &Durable, at: Time) {
        if self.watched.is_none() {
            return;
        }
        let old = self.jobs.extra(job).counters;
        let (pri, delay) = (new.pri, new.delay);
        let what = if new.counters.kicks != old.kicks {
            Happened::Kick
        } else if new.counters.buries != old.buries {
            Happened::Bury { pri }
        } else if new.counters.releases != old.releases {
            Happened::Release { pri, delay }
        } else if new.state == JobState::Delayed && self.jobs[job].pri == pri {
            Happened::Delay { delay }
        } else if self.jobs[job].pri != pri {
            Happened::Priority { pri }
        } else {
            return;
        };
        self.note_job(job, what, at);
    }
}
