//! Going through the jobs that a filter may mean, one look at a time: tubes by name, in each of them
//! the ready, the delayed and the buried jobs, in the order of their turn; or, where their ids are
//! listed, those jobs alone, by their ids. Between two looks anything may happen to any job.
//!
//! Jobs that were put after the first look are not among them, so that no scan goes on for ever. A
//! job that changes its state meanwhile may be passed by, or looked at twice.

use std::collections::{BTreeSet, VecDeque};

use super::call::{Answer, JobError};
use super::work::Slice;
use crate::pattern::Pattern;
use crate::protocol::Command;
use crate::queue::{JobView, Lost, Mark, Queue, TubeList};
use crate::types::{JobId, JobState, Now, is_tube_name};

/// Buried jobs that are remembered after a look at them: when one of them is buried no more, the
/// scan goes on behind the one before.
const MARKS_KEPT: usize = 32;
/// Larger bodies are not looked into.
const BODY_SIZE_MAX: u32 = 1 << 20;
/// Cost of one look without a body.
const LOOK_COST: usize = 64;
/// Tubes that are looked at at a time, to see whether they are meant.
const NAMES_A_LOOK: usize = 16;
/// Bytes that are read and logged in a turn of the loop, of one piece of work; one job may have more.
pub const COST_MAX: usize = 256 << 10;

/// Which jobs a scan is for.
pub trait Sought {
    /// The tubes that they are in.
    fn tubes(&self) -> &Pattern;

    /// Only these, in the order of their ids, each once.
    fn listed(&self) -> Option<&[JobId]> {
        None
    }

    /// Whether a job may be meant, as far as that can be said without its body.
    fn matches(&self, _: &Queue, _: &JobView<'_>, _: Now) -> bool {
        true
    }

    /// Bytes that a look at a job reads beside those of its body.
    fn text_size(&self, _: &Queue, _: JobId) -> usize {
        0
    }

    /// The body has to be looked at too.
    fn needs_body(&self) -> bool;

    /// Whether a body is one of those that are meant.
    fn matches_body(&self, body: &[u8]) -> bool;
}

/// Result of a look.
#[derive(Debug, Clone, PartialEq)]
pub enum Looked {
    /// This job is meant.
    Match(JobId),
    /// Nothing here.
    Passed,
    /// There are no more.
    End,
    /// Nothing can be looked at any more.
    Failed(JobError),
}

/// Where a scan is: behind this job of this tube and state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct At {
    tube: Box<str>,
    /// Which of the states.
    nth: usize,
    mark: Option<Mark>,
}

impl At {
    /// `STATE.KEY.ID.TUBE`; where no job was looked at yet, with dashes.
    fn text(&self, states: &[JobState]) -> String {
        let (state, tube) = (states[self.nth].word(), &self.tube);
        match self.mark {
            Some(Mark { key, id }) => format!("{state}.{key}.{id}.{tube}"),
            None => format!("{state}.-.-.{tube}"),
        }
    }

    fn parse(text: &str, states: &[JobState]) -> Option<At> {
        let mut parts = text.splitn(4, '.');
        let word = parts.next()?;
        let mark = match (parts.next()?, parts.next()?) {
            ("-", "-") => None,
            (key, id) => Some(Mark {
                key: key.parse().ok()?,
                id: JobId(id.parse().ok()?),
            }),
        };
        Some(At {
            nth: states.iter().position(|state| state.word() == word)?,
            mark,
            tube: parts
                .next()
                .filter(|it| is_tube_name(it.as_bytes()))?
                .into(),
        })
    }
}

/// A scan under way.
#[derive(Debug)]
pub struct Scan<F> {
    filter: F,
    states: Vec<JobState>,
    /// A tube that is left out.
    not_in: Option<Box<str>>,
    /// Jobs from this one on are too new.
    ids_below: Option<JobId>,
    /// The tubes that are there, and how many of them were looked at.
    list: Option<(TubeList, usize)>,
    /// The tubes to come.
    tubes: BTreeSet<Box<str>>,
    at: Option<At>,
    /// Where it is to begin.
    resume: Option<At>,
    /// How many of the listed jobs were looked at.
    listed: usize,
    recent: VecDeque<Mark>,
    /// Bytes since they were asked for.
    cost: usize,
    looked_at: u64,
    unread: u64,
}

impl<F: Sought> Scan<F> {
    /// Jobs that the filter means in these states, but none of the tube `not_in`.
    #[must_use]
    pub fn new(filter: F, states: Vec<JobState>, not_in: Option<Box<str>>) -> Scan<F> {
        Scan {
            filter,
            states,
            not_in,
            ids_below: None,
            list: None,
            tubes: BTreeSet::new(),
            at: None,
            resume: None,
            listed: 0,
            recent: VecDeque::new(),
            cost: 0,
            looked_at: 0,
            unread: 0,
        }
    }

    /// Once more from the beginning, and again without jobs that are newer than the first look.
    #[must_use]
    pub fn again(self) -> Scan<F> {
        let first = self.ids_below;
        let mut scan = Scan::new(self.filter, self.states, self.not_in);
        scan.ids_below = first;
        scan.unread = self.unread;
        scan
    }

    /// The same scan, from where another one had got to: `after` is what [`Scan::mark`] gave. If the
    /// job that stands there was buried and is so no more, it begins with the first buried one. `None`: no
    /// scan of these states gives such a mark.
    #[must_use]
    pub fn behind(mut self, after: &str) -> Option<Scan<F>> {
        if let Some(ids) = self.filter.listed() {
            let last = after.parse().map(JobId).ok()?;
            self.listed = ids.partition_point(|id| *id <= last);
            return Some(self);
        }
        self.resume = Some(At::parse(after, &self.states)?);
        Some(self)
    }

    /// Where it is; `None` before the first tube and behind the last.
    #[must_use]
    pub fn mark(&self) -> Option<String> {
        if let Some(ids) = self.filter.listed() {
            let last = self.listed.checked_sub(1)?;
            return ids.get(last).map(ToString::to_string);
        }
        self.at.as_ref().map(|at| at.text(&self.states))
    }

    /// Jobs looked at so far.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Jobs that are not known to be meant: their bodies are too large, or could not be read.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.unread
    }

    /// Bytes that were read since the last time.
    pub fn take_cost(&mut self) -> usize {
        std::mem::take(&mut self.cost)
    }

    /// Look at the next one. Takes some hundred nanoseconds, or as long as reading a body.
    pub fn look(&mut self, slice: &mut Slice<'_>) -> Looked {
        let queue = slice.engine().queue();
        if let Some(ids) = self.filter.listed() {
            self.ids_below.get_or_insert(queue.next_id());
            let Some(id) = ids.get(self.listed).copied() else {
                return Looked::End;
            };
            self.listed += 1;
            return self.judge(id, slice);
        }
        if self.list.is_none() {
            self.begin(queue);
        }
        if !self.is_listed() {
            self.list_some();
            return Looked::Passed;
        }
        if let Some(resume) = self.resume.take() {
            self.skip_to(resume);
        }
        let Some(at) = &self.at else {
            return self.next_tube();
        };
        match queue.job_behind(&at.tube, self.states[at.nth], at.mark) {
            Err(Lost) => self.go_back(),
            Ok(None) => self.next_state(),
            Ok(Some(mark)) => {
                self.advance(mark);
                return self.judge(mark.id, slice);
            }
        }
        Looked::Passed
    }

    fn begin(&mut self, queue: &Queue) {
        self.ids_below.get_or_insert(queue.next_id());
        self.list = Some(match self.filter.tubes().name() {
            Some(name) => {
                self.tubes.insert(name.into());
                (TubeList::default(), 0)
            }
            None => (queue.tube_list(), 0),
        });
    }

    fn is_listed(&self) -> bool {
        let list = self.list.as_ref();
        list.is_some_and(|(list, next)| *next >= list.len())
    }

    /// Keep the next tubes of the list whose names match.
    fn list_some(&mut self) {
        let Some((list, next)) = &mut self.list else {
            return;
        };
        let names = list.names_from(*next).take(NAMES_A_LOOK);
        for name in names {
            *next += 1;
            if self.filter.tubes().matches(name) {
                self.tubes.insert(name.into());
            }
        }
        self.cost += NAMES_A_LOOK * LOOK_COST;
        if *next >= list.len() {
            self.list = Some((TubeList::default(), 0));
        }
    }

    /// Leave out the tubes that were gone through before.
    fn skip_to(&mut self, resume: At) {
        self.tubes = self.tubes.split_off(&*resume.tube);
        self.at = self.tubes.remove(&resume.tube).then_some(resume);
    }

    fn next_tube(&mut self) -> Looked {
        let Some(tube) = self.tubes.pop_first() else {
            return Looked::End;
        };
        if self.not_in.as_ref() != Some(&tube) {
            self.at = Some(At {
                tube,
                nth: 0,
                mark: None,
            });
        }
        Looked::Passed
    }

    fn next_state(&mut self) {
        self.recent.clear();
        if let Some(at) = &mut self.at {
            (at.nth, at.mark) = (at.nth + 1, None);
        }
        let states = self.states.len();
        self.at.take_if(|at| at.nth == states);
    }

    fn advance(&mut self, mark: Mark) {
        if let Some(at) = &mut self.at {
            at.mark = Some(mark);
        }
        if self.recent.len() == MARKS_KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(mark);
    }

    /// The last job is buried no more: go on behind the one before, or begin with the first.
    fn go_back(&mut self) {
        self.recent.pop_back();
        let before = self.recent.back().copied();
        if let Some(at) = &mut self.at {
            at.mark = before;
        }
    }

    /// Whether a listed job is where the jobs that are meant are.
    fn has_place(&self, job: &JobView<'_>) -> bool {
        self.not_in.as_deref() != Some(job.tube)
            && self.states.contains(&job.state)
            && self.filter.tubes().matches(job.tube)
    }

    /// The job that was looked at last has been changed. If it was buried it is buried no more, or the
    /// last of all: go on where it was.
    pub fn leave(&mut self) {
        let state = self.at.as_ref().map(|at| self.states[at.nth]);
        if state == Some(JobState::Buried) {
            self.go_back();
        }
    }

    fn judge(&mut self, id: JobId, slice: &mut Slice<'_>) -> Looked {
        self.looked_at += 1;
        self.cost += LOOK_COST;
        let now = slice.now();
        let queue = slice.engine().queue();
        let Some(job) = queue.job(id) else {
            return Looked::Passed;
        };
        if self.filter.listed().is_some() && !self.has_place(&job) {
            return Looked::Passed;
        }
        self.cost += self.filter.text_size(queue, id);
        let is_old = self.ids_below.is_none_or(|below| id < below);
        if !is_old || !self.filter.matches(queue, &job, now) {
            return Looked::Passed;
        }
        if !self.filter.needs_body() {
            return Looked::Match(id);
        }
        if job.body_size > BODY_SIZE_MAX {
            self.unread += 1;
            return Looked::Passed;
        }
        self.cost += job.body_size as usize;
        match slice.run(Command::Peek(id)) {
            Ok(Answer::Found(job)) if self.filter.matches_body(&job.body) => Looked::Match(id),
            Ok(_) => Looked::Passed,
            Err(error @ (JobError::Store(_) | JobError::Closed)) => Looked::Failed(error),
            Err(_) => {
                self.unread += 1;
                Looked::Passed
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let states = [JobState::Ready, JobState::Buried];
        for (text, is_right) in [
            ("ready.5.7.a.b", true),
            ("buried.0.7.t", true),
            ("ready.-.-.t", true),
            ("ready.-5.7.t", true),
            ("delayed.5.7.t", false),
            ("ready.5.7.", false),
            ("ready.5.7", false),
            ("ready.5.-.t", false),
            ("", false),
        ] {
            let at = At::parse(text, &states);
            assert_eq!(at.is_some(), is_right, "{text}");
            assert!(at.is_none_or(|at| at.text(&states) == text), "{text}");
        }
    }
}
