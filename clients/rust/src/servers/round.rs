//! A reserve over several servers, without sockets and without a clock.
//!
//! [`Round::next`] says what to do: ask a server, begin a wait at all of them, wait, end the waits, give
//! a job back, or that it is over. The clients of a list, the blocking one and the asynchronous one, do
//! that and report how it went.
//!
//! What must stay true:
//!
//! * A job that a server gave is the result, or it is given back: none is forgotten.
//! * While a wait is under way at a server nothing else is asked of it.
//! * Something is waited for between two times that all servers are gone through, so a round does not
//!   spin while servers are away.

use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, JobId};

/// The longest wait at a server that cannot end one, and between looks at servers that are away.
pub(super) const WAIT_STEP: Duration = Duration::from_secs(1);

/// What is to be done next. Servers are given by their index in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask this server for a job without a wait, and call [`Round::asked`].
    Ask(usize),
    /// Begin a wait of this length at the servers that are there, in the order of [`Round::order`], and
    /// call [`Round::begun`]. [`wait_at`] says how long it may be at each.
    Begin(Duration),
    /// Wait until one of these has something to say, no longer than this, and call [`Round::came`].
    Wait(Vec<usize>, Duration),
    /// End the waits as [`ending`] says, and call [`Round::ended`]. Those that have something to say
    /// are marked, and come first.
    End(Vec<(usize, bool)>),
    /// Release this job: another one was there first.
    GiveBack(usize, JobId),
    /// It is over.
    Done,
}

/// What a server had to say to a reserve.
#[derive(Debug)]
pub(super) enum Answer {
    /// It is away.
    Away,
    /// It has no job.
    Nothing,
    Job(Job),
    /// It is there, and refuses.
    Refused(Error),
}

/// How a wait at a server is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Its answer has come, or it ends by itself in [`WAIT_STEP`].
    Receive,
    /// With `abort`.
    Abort,
    /// By closing the connection.
    Close,
}

/// How long a wait may be at a server.
pub(super) fn wait_at(left: Duration, can_abort: bool) -> Duration {
    match can_abort {
        true => left,
        false => left.min(WAIT_STEP),
    }
}

/// How a wait is ended at a server that has something to say or not, and on whose connection jobs are
/// reserved or not.
pub(super) fn ending(is_ready: bool, can_abort: bool, is_holding: bool) -> Ending {
    match (is_ready, can_abort, is_holding) {
        (true, ..) => Ending::Receive,
        (false, true, _) => Ending::Abort,
        (false, false, true) => Ending::Receive,
        (false, false, false) => Ending::Close,
    }
}

#[derive(Debug)]
enum Phase {
    /// This many servers were asked.
    Ask(usize),
    /// No wait is under way.
    Rest,
    Waiting(Vec<usize>),
    Ending(Vec<(usize, bool)>),
    /// Jobs that came beside the one that is given.
    Extra(Vec<(usize, JobId)>),
}

/// A reserve over all servers.
#[derive(Debug)]
pub(super) struct Round {
    count: usize,
    first: usize,
    until: Instant,
    phase: Phase,
    found: Option<(usize, Job)>,
    problem: Option<Error>,
}

impl Round {
    /// A reserve at this many servers, which asks `first` first and waits for `wait`.
    pub(super) fn new(count: usize, first: usize, now: Instant, wait: Duration) -> Round {
        // What is longer than a century is as good as that.
        let far = now + Duration::from_secs(100 * 365 * 86_400);
        Round {
            count,
            first,
            until: now.checked_add(wait).unwrap_or(far),
            phase: Phase::Ask(0),
            found: None,
            problem: None,
        }
    }

    /// The servers, beginning with the one that is asked first.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (count, first) = (self.count, self.first);
        (0..count).map(move |step| (first + step) % count)
    }

    /// What is to be done next.
    pub(super) fn next(&mut self, now: Instant) -> Step {
        let left = self.until.saturating_duration_since(now);
        if let Phase::Extra(jobs) = &mut self.phase {
            match jobs.pop() {
                Some((server, id)) => return Step::GiveBack(server, id),
                None => self.phase = Phase::Rest,
            }
        }
        let is_settled = self.found.is_some() || self.problem.is_some();
        match &self.phase {
            Phase::Ask(asked) if !is_settled && *asked < self.count => {
                Step::Ask((self.first + asked) % self.count)
            }
            Phase::Ask(_) | Phase::Rest if is_settled || left.is_zero() => Step::Done,
            Phase::Ask(_) | Phase::Rest | Phase::Extra(_) => Step::Begin(left),
            Phase::Waiting(begun) if begun.len() < self.count => {
                Step::Wait(begun.clone(), left.min(WAIT_STEP))
            }
            Phase::Waiting(begun) => Step::Wait(begun.clone(), left),
            Phase::Ending(ends) => Step::End(ends.clone()),
        }
    }

    /// The server of [`Step::Ask`] has said this.
    pub(super) fn asked(&mut self, server: usize, answer: Answer) {
        if let Phase::Ask(asked) = &mut self.phase {
            *asked += 1;
        }
        _ = self.take(server, answer);
    }

    /// A wait was begun at these servers; the others are away.
    pub(super) fn begun(&mut self, servers: Vec<usize>) {
        self.phase = Phase::Waiting(servers);
    }

    /// These have something to say.
    pub(super) fn came(&mut self, ready: &[usize]) {
        if let Phase::Waiting(begun) = &mut self.phase {
            let ends = begun.drain(..);
            let mut ends: Vec<_> = ends.map(|it| (it, ready.contains(&it))).collect();
            ends.sort_by_key(|(_, is_ready)| !is_ready);
            self.phase = Phase::Ending(ends);
        }
    }

    /// The caller wants no job any more: the waits end, and no other begins.
    #[cfg(any(test, feature = "tokio"))]
    pub(super) fn stop(&mut self, now: Instant) {
        self.until = now;
        self.came(&[]);
    }

    /// The waits have ended, in the order of [`Step::End`].
    pub(super) fn ended(&mut self, answers: impl IntoIterator<Item = (usize, Answer)>) {
        let extra = answers.into_iter();
        let extra = extra.filter_map(|(server, answer)| Some((server, self.take(server, answer)?)));
        self.phase = Phase::Extra(extra.collect());
    }

    /// Keep what a server has said. A job is given if it is one too many.
    fn take(&mut self, server: usize, answer: Answer) -> Option<JobId> {
        match answer {
            Answer::Away | Answer::Nothing => {}
            Answer::Refused(error) => self.problem = Some(error),
            Answer::Job(job) if self.found.is_some() => return Some(job.id),
            Answer::Job(job) => self.found = Some((server, job)),
        }
        None
    }

    /// The job and its server, or why no job came: a job is more than an error of another server.
    ///
    /// # Errors
    /// [`Connect`](ErrorKind::Connect): no job came, and no server is there at the end.
    pub(super) fn result(self, is_any_here: bool) -> Result<Option<(usize, Job)>> {
        match (self.found, self.problem) {
            (Some(found), _) => Ok(Some(found)),
            (None, Some(error)) => Err(error),
            (None, None) if is_any_here => Ok(None),
            (None, None) => Err(Error::new(
                ErrorKind::Connect,
                "all servers of the list are away",
            )),
        }
    }
}
