//! The same change, of all jobs that a filter matches. First they are counted, then changed: no
//! more than were counted, none that was put later, and none at all if they are more than the
//! caller has seen (`most`).
//!
//! Nothing of this is whole: a crash, or who cancels it, leaves the first of the changes done and
//! the others not. But where all jobs of a tube in some states are to be deleted, they are cleared.
//!
//! A delete that can be undone holds its jobs back first: see `undo`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::clear::{Refused, Whole};
use super::fields::{Fields, needed};
use super::filter::{Filter, STATES};
use super::jobs::{fields_of, parse_action};
use super::look::job_value;
use super::register::{End, Progress, Register, Stage, Told};
use super::undo::{HELD_MAX, Hold, Next, Took, UNDO_MAX_SECONDS};
use super::{bad, tube_name};
use crate::answer::{Answer, Problem};
use crate::doorway::Doorway;
use crate::guard::Asker;
use bsd::attributes::Attributes;
use bsd::door::{COST_MAX, JobError, Looked, Scan, Slice, Step, Work};
use bsd::engine::{Altered, JobAction};
use bsd::queue::Queue;
use bsd::types::{JobId, JobState, SECOND_NS, Ticket, Time};

/// Jobs a second that may be asked for as the rate of a task.
pub(crate) const RATE_MAX: u64 = 1_000_000;
/// A task waits for the disk when it has logged this number of bytes that are not durable yet, so
/// that no sync takes long because of it.
const AHEAD_MAX: usize = 64 << 10;
/// Cost of a change in the log.
const CHANGE_COST: usize = 64;
/// The same of a job that is held back or brought back, which logs its text too.
const HOLD_COST: usize = 512;
/// Jobs that are shown of those that were only counted.
const SAMPLE_MAX: usize = 10;
/// So often it looks whether the disk has caught up.
const DISK_LOOK_NS: i64 = 1_000_000;
/// A task that waits looks so often whether it is still wanted.
const LOOK_AGAIN_NS: i64 = SECOND_NS / 4;

/// The request.
#[derive(Debug)]
struct Plan {
    action: JobAction,
    filter: Filter,
    dry_run: bool,
    /// Jobs a second.
    rate: Option<u64>,
    /// If more jobs are meant none is changed.
    most: Option<u64>,
    /// No more are meant than these, the first ones.
    limit: Option<u64>,
    /// Seconds for which a delete can be undone.
    undo: Option<u64>,
}

impl Plan {
    fn parse(fields: &Fields) -> Result<Plan, Problem> {
        let word = needed("action", fields.text("action")?)?;
        let mut known = vec![
            "action", "filter", "dry_run", "rate", "most", "limit", "undo",
        ];
        known.extend(fields_of(word));
        fields.only(&known)?;
        let undo = fields.number("undo", 1, UNDO_MAX_SECONDS)?;
        if undo.is_some() && word != "delete" {
            return Err(bad(
                "undo is for the action delete; undo others by another task",
            ));
        }
        Ok(Plan {
            undo,
            action: parse_action(word, fields)?,
            filter: Filter::parse(&needed("filter", fields.object("filter")?)?)?,
            dry_run: fields.flag("dry_run")?,
            rate: fields.number("rate", 1, RATE_MAX)?,
            most: most(fields)?,
            limit: fields.number("limit", 1, u64::MAX)?,
        })
    }

    /// The states of jobs that are meant, and to which this can be done.
    fn states(&self) -> Result<Vec<JobState>, Problem> {
        let can = |state: &JobState| match self.action {
            JobAction::Delete | JobAction::Priority(_) | JobAction::Move { .. } => true,
            // Each job says whether it was set aside.
            JobAction::Redrive => true,
            JobAction::Kick => *state != JobState::Ready,
            JobAction::Bury => *state != JobState::Buried,
            JobAction::Delay(_) => *state != JobState::Delayed,
            JobAction::TakeBack => *state == JobState::Reserved,
        };
        let meant = self.filter.states.iter().copied();
        let states: Vec<_> = meant.filter(can).collect();
        match states.is_empty() {
            false => Ok(states),
            true => Err(bad(format!(
                "jobs in these states cannot be changed by {:?}",
                self.action.word()
            ))),
        }
    }

    /// All jobs of a tube that are to be deleted; `None`: it is to go from job to job.
    fn whole(&self) -> Option<Whole> {
        let is_in_parts = self.rate.is_some() || self.limit.is_some();
        let is_held_back = self.undo.is_some() && !self.dry_run;
        if self.action != JobAction::Delete || is_in_parts || is_held_back {
            return None;
        }
        Some(Whole {
            tube: self.filter.whole_tube()?.into(),
            states: self.filter.states.clone(),
        })
    }

    fn value(&self) -> Value {
        let mut value = json!({
            "action": self.action.word(),
            "filter": self.filter.value(),
            "dry_run": self.dry_run,
            "rate": self.rate,
            "most": self.most,
            "limit": self.limit,
            "undo": self.undo,
        });
        match &self.action {
            JobAction::Delay(seconds) => value["delay"] = json!(seconds),
            JobAction::Priority(pri) => value["priority"] = json!(pri),
            JobAction::Move { tube, kick } => {
                (value["to"], value["kick"]) = (json!(tube), json!(kick));
            }
            _ => {}
        }
        value
    }
}

fn most(fields: &Fields) -> Result<Option<u64>, Problem> {
    fields.number("most", 0, u64::MAX)
}

/// Check that a parsed task is written again in the same words.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn any_plan(fields: &Fields) {
    let Ok(plan) = Plan::parse(fields) else {
        return;
    };
    let value = plan.value();
    let again = Fields::parse(value.to_string().as_bytes()).and_then(|it| Plan::parse(&it));
    let again = again.unwrap_or_else(|problem| panic!("{value}: {problem:?}"));
    assert_eq!(again.value(), value);
    // It may be that nothing can be meant.
    let _ = plan.states();
}

/// `POST /api/v1/tasks`
pub(crate) fn start(
    doorway: &Doorway,
    tasks: &Register,
    fields: &Fields,
    asker: Asker,
) -> Result<Answer, Problem> {
    begin(doorway, tasks, Plan::parse(fields)?, asker)
}

/// `POST /api/v1/tubes/{tube}/redrive`
pub(crate) fn redrive(
    doorway: &Doorway,
    tasks: &Register,
    tube: String,
    fields: &Fields,
    asker: Asker,
) -> Result<Answer, Problem> {
    fields.only(&["to", "rate", "dry_run", "most"])?;
    let tube = tube_name(tube)?;
    let (action, states) = match fields.text("to")? {
        Some(to) if to != tube => {
            let action = JobAction::move_to(tube_name(to.to_owned())?, true);
            (action, vec![JobState::Buried])
        }
        _ => (JobAction::Redrive, STATES.to_vec()),
    };
    let plan = Plan {
        action,
        filter: Filter::of_tube(&tube, states)?,
        dry_run: fields.flag("dry_run")?,
        rate: fields.number("rate", 1, RATE_MAX)?,
        most: most(fields)?,
        limit: None,
        undo: None,
    };
    begin(doorway, tasks, plan, asker)
}

fn begin(doorway: &Doorway, tasks: &Register, plan: Plan, asker: Asker) -> Result<Answer, Problem> {
    let not_in = match &plan.action {
        JobAction::Move { tube: to, .. } if plan.filter.tube.name() == Some(&**to) => {
            return Err(bad(format!("the jobs of {to:?} are in that tube already")));
        }
        JobAction::Move { tube: to, .. } => Some(to.clone()),
        _ => None,
    };
    let states = plan.states()?;
    let asked = plan.value();
    let scan = Scan::new(plan.filter.clone(), states, not_in);
    tasks.start(doorway, (asked, asker), |progress| {
        Drive::new(plan, scan, progress)
    })
}

/// A task under way.
struct Drive {
    plan: Plan,
    /// `None`: it looks for no more jobs.
    scan: Option<Scan<Filter>>,
    /// The jobs that are held back, of a delete that can be undone.
    hold: Option<Hold>,
    /// All are held that are to be: they are deleted or brought back.
    is_settling: bool,
    is_undone: bool,
    /// Those of the first jobs that were only counted.
    sample: Vec<Value>,
    /// When it had counted.
    begun: Option<Time>,
    /// Bytes logged since the log had got to `mark`, which is not durable yet.
    ahead: usize,
    mark: Ticket,
    matched: u64,
    changed: u64,
    skipped: u64,
    /// Why it goes on no more.
    reason: Option<String>,
    is_cancelled: bool,
    /// Of the jobs that were held back and are deleted.
    pace: Pace,
    progress: Arc<Progress>,
}

/// How many jobs were changed since when.
#[derive(Debug, Default)]
struct Pace {
    begun: Time,
    done: u64,
}

impl Pace {
    fn from(begun: Time) -> Pace {
        Pace { begun, done: 0 }
    }

    /// When the next job may be changed at this rate, if not now.
    fn next(&self, rate: u64, now: Time) -> Option<Time> {
        let after_ns = i128::from(self.done) * i128::from(SECOND_NS) / i128::from(rate);
        let after_ns = i64::try_from(after_ns).unwrap_or(i64::MAX);
        let due = self.begun.0.saturating_add(after_ns);
        (due > now.0).then(|| Time(due.min(now.0.saturating_add(LOOK_AGAIN_NS))))
    }
}

impl Work for Drive {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let step = match self.is_settling {
            true => self.settle(slice),
            false => self.go_on(slice),
        };
        self.tell(slice.now().mono);
        step
    }
}

impl Told for Drive {
    fn end(self) -> End {
        End {
            reason: self.reason,
            is_cancelled: self.is_cancelled,
            is_undone: self.is_undone,
            found: self.plan.dry_run.then(|| json!({"sample": self.sample})),
        }
    }
}

impl Drive {
    fn new(plan: Plan, scan: Scan<Filter>, progress: Arc<Progress>) -> Drive {
        let seconds = plan.undo.filter(|_| !plan.dry_run);
        Drive {
            hold: seconds.map(|seconds| Hold::new(seconds, progress.id)),
            is_settling: false,
            is_undone: false,
            sample: Vec::new(),
            plan,
            scan: Some(scan),
            begun: None,
            ahead: 0,
            mark: Ticket::NONE,
            matched: 0,
            changed: 0,
            skipped: 0,
            reason: None,
            is_cancelled: false,
            pace: Pace::default(),
            progress,
        }
    }

    fn go_on(&mut self, slice: &mut Slice<'_>) -> Step {
        let Some(mut scan) = self.scan.take() else {
            return Step::Done;
        };
        if self.progress.is_cancelled() {
            return self.cancel();
        }
        if let Some(whole) = self.plan.whole() {
            self.clear(&whole, slice);
            return Step::Done;
        }
        let mut cost = 0;
        loop {
            let until = self.not_before(slice);
            if let Some(until) = until.or_else(|| self.wait_for_disk(slice)) {
                self.scan = Some(scan);
                return Step::NotBefore(until);
            }
            let looked = match self.has_counted_enough() {
                true => Looked::End,
                false => scan.look(slice),
            };
            match looked {
                Looked::Passed => {}
                Looked::Match(id) => {
                    let before = self.changed;
                    self.meet(id, slice);
                    // One that is held back stays where it is, or is buried now.
                    if self.changed > before {
                        scan.leave();
                    }
                }
                Looked::End if self.begun.is_none() && self.may_act() => {
                    self.begun = Some(slice.now().mono);
                    scan = scan.again();
                }
                Looked::End => return self.end_of(&scan, slice),
                Looked::Failed(error) => self.reason = Some(error.to_string()),
            }
            if self.reason.is_some() || self.is_all() {
                return self.end_of(&scan, slice);
            }
            cost += scan.take_cost();
            if cost >= COST_MAX {
                // Not again in this turn.
                self.scan = Some(scan);
                return Step::NotBefore(Time(slice.now().mono.0 + 1));
            }
            // A look may read a body.
            if slice.is_over() {
                break;
            }
        }
        self.scan = Some(scan);
        Step::More
    }

    fn clear(&mut self, whole: &Whole, slice: &mut Slice<'_>) {
        let done = whole.clear(self.plan.most, self.plan.dry_run, slice);
        (self.matched, self.changed) = (done.matched, done.deleted);
        if self.plan.dry_run {
            self.sample = whole.first(SAMPLE_MAX, slice);
        }
        self.reason = done.refused.map(|refused| refused.to_string());
    }

    /// No job of it is changed any more; those that are held back are brought back.
    fn cancel(&mut self) -> Step {
        match &mut self.hold {
            Some(hold) if hold.count() > 0 => {
                hold.undo();
                self.is_settling = true;
                Step::More
            }
            _ => {
                self.is_cancelled = true;
                Step::Done
            }
        }
    }

    fn end_of(&mut self, scan: &Scan<Filter>, slice: &Slice<'_>) -> Step {
        if self.begun.is_some() && self.reason.is_none() {
            // Who was counted and not met again is reserved by now, or gone, or in another state.
            let done = self.changed + self.held();
            self.skipped = self.matched - done.min(self.matched);
        }
        self.tell_of(scan);
        match &mut self.hold {
            Some(hold) if hold.count() > 0 => {
                self.is_settling = true;
                match self.reason {
                    None => hold.begin(slice.now().mono),
                    // All of them or none.
                    Some(_) => hold.undo(),
                }
                Step::More
            }
            _ => Step::Done,
        }
    }

    /// Delete what is held back, when it is time for that, or bring it back.
    fn settle(&mut self, slice: &mut Slice<'_>) -> Step {
        let now = slice.now().mono;
        let mut cost = 0;
        loop {
            if let Some(until) = self.wait_for_disk(slice) {
                return Step::NotBefore(until);
            }
            let Some(hold) = &mut self.hold else {
                return Step::Done;
            };
            let is_waiting = hold.stage() == Stage::Held;
            if self.progress.is_cancelled() && hold.stage() != Stage::Returning {
                hold.undo();
            } else if let Some(until) = self.plan.rate.and_then(|rate| self.pace.next(rate, now))
                && hold.stage() == Stage::Running
            {
                return Step::NotBefore(until);
            }
            match hold.go_on(slice) {
                Next::Wait(until) => {
                    let again = now.0.saturating_add(LOOK_AGAIN_NS);
                    return Step::NotBefore(Time(until.0.min(again)));
                }
                Next::Did { deleted } => {
                    if hold.stage() == Stage::Running {
                        if is_waiting {
                            self.pace = Pace::from(now);
                        }
                        self.pace.done += 1;
                        self.changed += u64::from(deleted);
                        self.skipped += u64::from(!deleted);
                    }
                    self.ahead += HOLD_COST;
                }
                Next::Over => {
                    self.is_undone = hold.stage() == Stage::Returning && self.reason.is_none();
                    return Step::Done;
                }
                Next::Failed(reason) => {
                    self.reason = Some(reason);
                    return Step::Done;
                }
            }
            cost += HOLD_COST;
            if cost >= COST_MAX {
                // Not again in this turn.
                return Step::NotBefore(Time(now.0 + 1));
            }
            if slice.is_over() {
                return Step::More;
            }
        }
    }

    fn held(&self) -> u64 {
        self.hold.as_ref().map_or(0, Hold::count)
    }

    /// There is something to change.
    fn may_act(&self) -> bool {
        !self.plan.dry_run && self.matched > 0
    }

    /// As many are counted as may be meant.
    fn has_counted_enough(&self) -> bool {
        let limit = self.plan.limit.filter(|_| self.begun.is_none());
        limit.is_some_and(|limit| self.matched >= limit)
    }

    /// As many were changed as were counted.
    fn is_all(&self) -> bool {
        self.begun.is_some() && self.changed + self.skipped + self.held() >= self.matched
    }

    /// When the next job may be changed, if not now.
    fn not_before(&self, slice: &Slice<'_>) -> Option<Time> {
        let pace = Pace {
            begun: self.begun?,
            done: self.changed + self.skipped + self.held(),
        };
        pace.next(self.plan.rate?, slice.now().mono)
    }

    /// When to look again whether the disk has caught up, if too much is not durable.
    fn wait_for_disk(&mut self, slice: &Slice<'_>) -> Option<Time> {
        let engine = slice.engine();
        if engine.acknowledged() >= self.mark {
            (self.mark, self.ahead) = (engine.after(), 0);
        }
        let now = slice.now().mono;
        (self.ahead >= AHEAD_MAX).then(|| Time(now.0.saturating_add(DISK_LOOK_NS)))
    }

    /// One more is meant. If that is more than may be changed, nothing is.
    fn count(&mut self) {
        self.matched += 1;
        let most = self.plan.most.filter(|most| self.matched > *most);
        self.reason = most.map(|most| Refused::TooMany(most).to_string());
        if self.hold.is_some() && self.matched > HELD_MAX {
            self.reason = Some(format!(
                "more jobs match than the {HELD_MAX} that can be held back; nothing was changed: \
                 ask without `undo`, or for some of them"
            ));
        }
    }

    /// Whether the action is for this job: one that was not set aside is not sent back.
    fn is_for(&self, id: JobId, queue: &Queue) -> bool {
        if self.plan.action != JobAction::Redrive {
            return true;
        }
        let has = queue.attributes(id).and_then(Attributes::decode);
        has.is_some_and(|has| has.dead_lettered_from.is_some())
            || queue
                .job(id)
                .is_some_and(|job| job.state == JobState::Buried)
    }

    /// Count a job, or change it.
    fn meet(&mut self, id: JobId, slice: &mut Slice<'_>) {
        if !self.is_for(id, slice.engine().queue()) {
            return;
        }
        if self.begun.is_none() {
            self.count();
            if self.plan.dry_run && self.sample.len() < SAMPLE_MAX {
                let queue = slice.engine().queue();
                let job = queue.job(id);
                self.sample
                    .extend(job.map(|job| job_value(queue, &job, slice.now())));
            }
            return;
        }
        if let Some(hold) = &mut self.hold {
            match hold.take(id, slice) {
                Took::Held | Took::Again => {}
                Took::Skipped => self.skipped += 1,
                Took::Failed(reason) => self.reason = Some(reason),
            }
            self.ahead += HOLD_COST;
            return;
        }
        match slice.alter(id, &self.plan.action) {
            Ok(Altered::Done) => self.changed += 1,
            // Perhaps it was this task that made it so.
            Ok(Altered::Same) => {}
            Ok(Altered::NotFound | Altered::Reserved) => self.skipped += 1,
            Ok(Altered::NoRoom) => self.reason = Some(JobError::OutOfSpace.to_string()),
            Err(error) => self.reason = Some(error.to_string()),
        }
        self.ahead += CHANGE_COST;
    }

    fn tell(&self, now: Time) {
        let progress = &self.progress;
        let stage = match self.begun {
            None => Stage::Counting,
            Some(_) => Stage::Running,
        };
        progress.stage.store(stage as u8, Ordering::Relaxed);
        if let Some(hold) = self.hold.as_ref().filter(|_| self.begun.is_some()) {
            hold.tell(progress, now);
        }
        Progress::set(&progress.matched, self.matched);
        Progress::set(&progress.changed, self.changed);
        Progress::set(&progress.skipped, self.skipped);
        if let Some(scan) = &self.scan {
            self.tell_of(scan);
        }
    }

    fn tell_of(&self, scan: &Scan<Filter>) {
        Progress::set(&self.progress.looked_at, scan.looked_at());
        Progress::set(&self.progress.unread, scan.unread());
    }
}

#[cfg(test)]
mod undoing;

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::door::{Answer as Reply, PutOptions};
    use bsd::engine::{Engine, Options};
    use bsd::protocol::Command;
    use bsd::storage::{SimFs, SyncPolicy};
    use bsd::types::Now;

    pub(super) const NOW: Now = Now::new(Time(1_000_000_000), 1_700_000_000_000_000_000);

    pub(super) fn drive(asked: &Value) -> Drive {
        let plan = Fields::parse(asked.to_string().as_bytes()).and_then(|it| Plan::parse(&it));
        let plan = plan.unwrap();
        let scan = Scan::new(plan.filter.clone(), plan.states().unwrap(), None);
        Drive::new(plan, scan, Arc::new(Progress::default()))
    }

    pub(super) fn put(engine: &mut Engine, count: usize, size: usize) {
        Slice::alone(engine, NOW, |slice| {
            for _ in 0..count {
                let order = bsd::door::put("t", vec![b'x'; size], PutOptions::default()).unwrap();
                slice.run(order).unwrap();
            }
        });
    }

    /// Whether it is met as one that is listed or not met at all: the three numbers are of one sum.
    #[test]
    fn t23_a_job_that_is_reserved_after_it_was_counted_is_one_that_was_skipped() {
        for filter in [
            json!({"tube": "t"}),
            json!({"tube": "t", "ids": [1, 2, 3, 4]}),
        ] {
            let mut engine = Engine::open(&Options::default(), NOW).unwrap();
            put(&mut engine, 4, 1);
            let mut drive = drive(&json!({"action": "delete", "filter": filter, "rate": 1}));
            let mut at = NOW;
            let numbers = |drive: &Drive| (drive.matched, drive.changed, drive.skipped);
            Slice::alone(&mut engine, at, |slice| drive.step(slice));
            assert_eq!(numbers(&drive), (4, 1, 0), "{filter}");
            Slice::alone(&mut engine, at, |slice| {
                let tube = slice.run(Command::Watch("t".into()));
                assert!(tube.is_ok(), "{tube:?}");
                let job = slice.run(Command::ReserveJob(JobId(3)));
                assert!(matches!(job, Ok(Reply::Reserved(_))), "{job:?}");
            });
            for _ in 0..4 {
                at.mono = Time(at.mono.0 + SECOND_NS);
                Slice::alone(&mut engine, at, |slice| drive.step(slice));
            }
            assert_eq!(numbers(&drive), (4, 3, 1), "{filter}");
            let told = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::Relaxed);
            let progress = &drive.progress;
            assert_eq!((told(&progress.changed), told(&progress.skipped)), (3, 1));
        }
    }

    /// Jobs that another task has changed first are skipped: the three numbers have one sum here
    /// too.
    #[test]
    fn g34_of_two_tasks_that_overlap_each_says_what_it_has_skipped() {
        let mut engine = Engine::open(&Options::default(), NOW).unwrap();
        put(&mut engine, 4, 1);
        let asked = |rate: u64| json!({"action": "delete", "filter": {"tube": "t"}, "rate": rate});
        let [mut slow, mut fast] = [drive(&asked(1)), drive(&asked(1_000_000))];
        Slice::alone(&mut engine, NOW, |slice| slow.step(slice));
        let mut at = NOW;
        for _ in 0..100 {
            at.mono = Time(at.mono.0 + 2000);
            Slice::alone(&mut engine, at, |slice| fast.step(slice));
        }
        for _ in 0..4 {
            at.mono = Time(at.mono.0 + SECOND_NS);
            Slice::alone(&mut engine, at, |slice| slow.step(slice));
        }
        let numbers = [&slow, &fast].map(|it| (it.matched, it.changed, it.skipped));
        assert_eq!(numbers, [(4, 1, 3), (3, 3, 0)]);
    }

    #[test]
    fn all_jobs_of_a_tube_are_deleted_in_one_step_or_none() {
        let mut engine = Engine::open(&Options::default(), NOW).unwrap();
        put(&mut engine, 3000, 1);
        let all = |most: u64, is_dry_run: bool| {
            drive(
                &json!({"action": "delete", "filter": {"tube": "t"}, "most": most,
                "dry_run": is_dry_run}),
            )
        };
        let numbers = |drive: &Drive| (drive.matched, drive.changed, drive.reason.is_some());
        for (most, is_dry_run, wanted) in [
            (2999, false, (3000, 0, true)),
            (3000, true, (3000, 0, false)),
            (3000, false, (3000, 3000, false)),
            (3000, false, (0, 0, false)),
        ] {
            let mut drive = all(most, is_dry_run);
            let step = Slice::alone(&mut engine, NOW, |slice| drive.step(slice));
            assert_eq!((step, numbers(&drive)), (Step::Done, wanted));
        }
    }

    #[test]
    fn a_turn_reads_256_kib_of_bodies_and_one_more_at_most() {
        let mut engine = Engine::open(&Options::default(), NOW).unwrap();
        let size = 60 << 10;
        put(&mut engine, 20, size);
        let contains = json!({"data": "y"});
        let mut drive = drive(&json!({
            "action": "delete",
            "filter": {"tube": "t", "contains": contains},
        }));
        let mut turns = Vec::new();
        loop {
            let before = drive.scan.as_ref().map_or(0, Scan::looked_at);
            let step = Slice::alone(&mut engine, NOW, |slice| drive.step(slice));
            let Some(scan) = &drive.scan else {
                assert_eq!(step, Step::Done);
                break;
            };
            assert!(matches!(step, Step::NotBefore(_)), "{step:?}");
            turns.push(scan.looked_at() - before);
        }
        let most = (COST_MAX / size) as u64 + 1;
        assert_eq!((most, turns), (5, vec![5, 5, 5, 5]));
    }

    #[test]
    fn a_task_that_is_64_kib_ahead_of_the_disk_waits_for_it() {
        let options = Options {
            fs: Arc::new(SimFs::new(1)),
            dir: Some("/log".into()),
            sync: SyncPolicy::Always,
            ..Options::default()
        };
        let mut engine = Engine::open(&options, NOW).unwrap();
        let part = AHEAD_MAX / CHANGE_COST;
        put(&mut engine, 3 * part, 10);
        let catch_up = |engine: &mut Engine| {
            while engine.acknowledged() < engine.after() {
                engine.commit(NOW).unwrap();
                std::thread::yield_now();
            }
        };
        catch_up(&mut engine);
        let filter = json!({"tube": "t", "id_min": 1});
        let mut drive = drive(&json!({"action": "delete", "filter": filter}));
        let mut turns = Vec::new();
        while drive.changed < 3 * part as u64 {
            let before = drive.changed;
            // However often it is asked, it goes no further before the disk has what is there.
            for _ in 0..10 {
                Slice::alone(&mut engine, NOW, |slice| drive.step(slice));
            }
            turns.push(drive.changed - before);
            catch_up(&mut engine);
        }
        // The one that is begun when the disk has caught up does not count.
        let most = part as u64 + 1;
        assert_eq!(turns, [most, most, most - 3]);
    }
}
