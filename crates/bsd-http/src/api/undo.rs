//! Deletes that can be undone for some seconds. The jobs are held back first: buried, with a reason that
//! says so, which is durable and kept from workers like any change. When the time is over those that are
//! still held are deleted; until then all can be brought back to what they were.
//!
//! What they were is in this memory alone. After a crash, or when another server leads, nothing deletes
//! them: they are left buried, and the reason says what to do.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::register::{Progress, Stage};
use bsd::clock::utc;
use bsd::door::{JobError, Slice};
use bsd::engine::{Altered, HeldJob, JobAction, Returned};
use bsd::types::{JobId, Now, SECOND_NS, Time};

/// Jobs that a task may hold back: some 6 MB, and up to 30 MB where each has a text of 4 KiB.
pub(crate) const HELD_MAX: u64 = 100_000;
/// Seconds for which jobs may be held back.
pub(crate) const UNDO_MAX_SECONDS: u64 = 600;
/// How often a job that cannot be brought back, as the disk is full, is tried again before it and the
/// others are given up; four times a second.
const TRIES_MAX: u32 = 40;
/// Seconds of the console.
pub(crate) const UNDO_SECONDS: u64 = 60;

/// A delete that can be undone, under way.
#[derive(Debug)]
pub(super) struct Hold {
    seconds: u64,
    /// The number of the task.
    task: u64,
    /// The reason that the jobs have; from when the first is held.
    why: Option<String>,
    jobs: VecDeque<HeldJob>,
    stage: Stage,
    /// When they are deleted.
    until: Time,
    returned: u64,
    gone: u64,
    altered: u64,
    no_room: u64,
    /// How often the next job was not brought back for want of room.
    tries: u32,
}

/// What holding a job back has come to.
#[derive(Debug)]
pub(super) enum Took {
    Held,
    /// It is one that this task holds already.
    Again,
    Skipped,
    Failed(String),
}

/// What is next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Something was done to a job; `deleted`: it is deleted.
    Did {
        deleted: bool,
    },
    /// Nothing before this time.
    Wait(Time),
    /// All is done.
    Over,
    Failed(String),
}

impl Hold {
    /// Of a task with this number.
    pub(super) fn new(seconds: u64, task: u64) -> Hold {
        Hold {
            seconds,
            task,
            why: None,
            jobs: VecDeque::new(),
            stage: Stage::Running,
            until: Time(i64::MAX),
            returned: 0,
            gone: 0,
            altered: 0,
            no_room: 0,
            tries: 0,
        }
    }

    /// Jobs that are held.
    pub(super) fn count(&self) -> u64 {
        self.jobs.len() as u64
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Hold this job back.
    pub(super) fn take(&mut self, id: JobId, slice: &mut Slice<'_>) -> Took {
        let now = slice.now();
        let why = self
            .why
            .get_or_insert_with(|| reason(self.task, self.seconds, now));
        if slice.engine().is_held_for(id, why) {
            return Took::Again;
        }
        match slice.hold_back(id, why) {
            Ok((_, Some(held))) => {
                self.jobs.push_back(held);
                Took::Held
            }
            Ok((Altered::NoRoom, None)) => Took::Failed(format!(
                "{}; without `undo` jobs can be deleted all the same",
                JobError::OutOfSpace
            )),
            Ok((_, None)) => Took::Skipped,
            Err(error) => Took::Failed(error.to_string()),
        }
    }

    /// All are held: they are deleted after the time.
    pub(super) fn begin(&mut self, now: Time) {
        self.stage = Stage::Held;
        self.until = Time(now.0.saturating_add(self.seconds as i64 * SECOND_NS));
    }

    /// Bring them back from now on.
    pub(super) fn undo(&mut self) {
        self.stage = Stage::Returning;
    }

    /// The next job is deleted or brought back, where it is time for that.
    pub(super) fn go_on(&mut self, slice: &mut Slice<'_>) -> Next {
        if slice.engine().is_following() {
            return Next::Failed(format!(
                "{}; {} jobs were held back, and are left buried: kick them, or delete them, there",
                JobError::NotLeader,
                self.jobs.len()
            ));
        }
        let now = slice.now().mono;
        if self.stage == Stage::Held && now < self.until {
            return Next::Wait(self.until);
        }
        if self.stage == Stage::Held {
            self.stage = Stage::Running;
        }
        let Some(job) = self.jobs.pop_front() else {
            return Next::Over;
        };
        let done = match self.stage {
            Stage::Returning => slice
                .bring_back(&job)
                .map(|returned| self.count_back(returned, now)),
            _ => delete(&job, slice).map(|deleted| Next::Did { deleted }),
        };
        match done {
            Ok(next @ Next::Wait(_)) => {
                self.jobs.push_front(job);
                next
            }
            Ok(next) => next,
            Err(error) => {
                self.jobs.push_front(job);
                Next::Failed(error.to_string())
            }
        }
    }

    /// On a full disk there is room when a file was rewritten: that is waited for.
    fn count_back(&mut self, returned: Returned, now: Time) -> Next {
        let count = match returned {
            Returned::NoRoom if self.tries < TRIES_MAX => {
                self.tries += 1;
                return Next::Wait(Time(now.0.saturating_add(SECOND_NS)));
            }
            Returned::NoRoom => &mut self.no_room,
            Returned::Done => {
                self.tries = 0;
                &mut self.returned
            }
            Returned::Gone => &mut self.gone,
            Returned::Changed => &mut self.altered,
        };
        *count += 1;
        Next::Did { deleted: false }
    }

    pub(super) fn tell(&self, progress: &Progress, now: Time) {
        progress.stage.store(self.stage as u8, Ordering::Relaxed);
        let left_ns = match self.stage {
            Stage::Held => self.until.since(now).max(0),
            _ => 0,
        };
        for (number, value) in [
            (&progress.held, self.count()),
            (&progress.left_ms, left_ns as u64 / 1_000_000),
            (&progress.returned, self.returned),
            (&progress.gone, self.gone),
            (&progress.altered, self.altered),
            (&progress.no_room, self.no_room),
        ] {
            Progress::set(number, value);
        }
    }
}

/// Delete a job that is held; `false`: it is not any more.
fn delete(job: &HeldJob, slice: &mut Slice<'_>) -> Result<bool, JobError> {
    if !slice.engine().is_held(job) {
        return Ok(false);
    }
    let altered = slice.alter(job.id(), &JobAction::Delete)?;
    Ok(altered == Altered::Done)
}

/// The reason of jobs that this task holds back from now on. The time is in it, as tasks of two starts
/// may have the same number.
fn reason(task: u64, seconds: u64, now: Now) -> String {
    format!(
        "held back by task {task} since {}, to be deleted {seconds} s after the last of its jobs was; \
         if the server has ended since then it is not: kick it, or delete it",
        utc(now.wall_ns)
    )
}
