//! The copying of one compaction, step by step: in the loop itself, or on a thread.
//!
//! Without a thread, a step depends only on the calls.

use std::time::Duration;

use super::rewrite::{Compaction, Copied, Progress};
use super::subject::Asked;
use super::thread::{CompactionThread, Told};
use crate::storage::log::sync::Waker;

/// Tells for each record, in the files with these handles, whether it is alive.
pub(crate) type IsLive<'a> = &'a dyn Fn(&[u32], &[Asked]) -> Vec<bool>;

/// A compaction whose records are being copied.
#[derive(Debug)]
pub(crate) struct Compactor {
    /// The handles of the files that are rewritten.
    inputs: Vec<u32>,
    copying: Copying,
}

#[derive(Debug)]
enum Copying {
    Here(Box<Compaction>),
    OnThread(CompactionThread),
}

/// The result of one step of the copying.
#[derive(Debug)]
pub(crate) enum Step {
    /// A batch was copied.
    More(Compactor),
    /// The thread has no question yet.
    Waiting(Compactor),
    /// All of these files are copied, or copying has failed.
    Done(Vec<u32>, Box<Copied>),
    /// The thread ended without a result.
    Lost(Vec<u32>),
}

impl Compactor {
    /// Start to copy, on a thread if there is a waker for it and one can be started.
    pub(crate) fn start(compaction: Compaction, waker: Option<&Waker>) -> Compactor {
        let (inputs, compaction) = (compaction.inputs(), Box::new(compaction));
        let copying = match waker {
            None => Copying::Here(compaction),
            Some(waker) => match CompactionThread::start(compaction, waker.clone()) {
                Ok(thread) => Copying::OnThread(thread),
                Err(compaction) => Copying::Here(compaction),
            },
        };
        Compactor { inputs, copying }
    }

    /// True if its steps wait for nothing: the next one can be taken at once.
    pub(crate) fn is_here(&self) -> bool {
        matches!(self.copying, Copying::Here(_))
    }

    /// Take a step, and wait for the thread no longer than `wait`.
    pub(crate) fn step(self, wait: Option<Duration>, is_live: IsLive<'_>) -> Step {
        let Compactor { inputs, copying } = self;
        match copying {
            Copying::Here(compaction) => {
                match compaction.step(&mut |records| Some(is_live(&inputs, &records))) {
                    Progress::More(compaction) => {
                        let copying = Copying::Here(compaction);
                        Step::More(Compactor { inputs, copying })
                    }
                    Progress::Done(copied) => Step::Done(inputs, copied),
                    Progress::Unanswered => Step::Lost(inputs),
                }
            }
            Copying::OnThread(thread) => {
                let told = thread.step(wait, &|records| is_live(&inputs, records));
                let copying = Copying::OnThread(thread);
                match told {
                    Told::Asked => Step::More(Compactor { inputs, copying }),
                    Told::Nothing => Step::Waiting(Compactor { inputs, copying }),
                    Told::Done(copied) => Step::Done(inputs, copied),
                    Told::Gone => Step::Lost(inputs),
                }
            }
        }
    }
}
