//! `/api/v1/jobs/{id}/history`: what the log still holds about a job, also of one that is deleted.
//!
//! All of the log is read for it, as `bsd-wal history --live` does, by a thread that ends with it:
//! neither the loop nor this thread does any of it. There is one such thread at a time. A request
//! waits for a moment; then it is told how far the reading is, and asks again. A reading that no
//! one asks about any more ends by itself. The result is given once: a later request begins a new
//! reading.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{gone, job_id, not_found, run};
use crate::State;
use crate::answer::{Answer, Problem, json};
use crate::guard::Asker;
use bsd::clock::{Clock, utc};
use bsd::door::{Slice, Step, Work};
use bsd::storage::inspect::history::{Event, History, HistoryEntry, State as JobAt};
use bsd::storage::inspect::{Access, Opened};
use bsd::storage::{OpenError, RealFs};
use bsd::types::{JobId, SECOND_NS, Time};

/// How long an answer waits for the reading to end.
const WAIT: Duration = Duration::from_millis(150);
/// A reading ends when no one has asked about it for this time.
const WANTED_NS: i64 = 10 * SECOND_NS;
/// Longest time of a reading.
const READING_NS: i64 = 60 * SECOND_NS;
/// Records about a job that are kept: the first, and the last.
const EVENTS_MAX: usize = 1000;
/// Damage that is told of.
const DAMAGE_MAX: usize = 100;
/// So often a reading begins again because compaction has removed a file of it.
const TRIES: usize = 4;
/// Work and rest come in pieces of this length, as long as each other: a reading takes half of a
/// processor, and half of what the disk can do.
const PIECE_NS: i64 = SECOND_NS / 100;

/// Files that a reading has open at a time, and the directory.
pub(crate) const DESCRIPTORS: usize = 64 + 2;

/// The reading that is under way, or has ended and was not told yet.
#[derive(Debug, Default)]
pub(crate) struct Histories(Mutex<Option<Arc<Reading>>>);

/// A reading of the log for one job. The thread writes how far it is, and others read it.
#[derive(Debug)]
struct Reading {
    job: JobId,
    /// Who asked first.
    owner: Asker,
    clock: Clock,
    begun: Time,
    /// When no one wants it any more.
    wanted_until: AtomicI64,
    is_cancelled: AtomicBool,
    read: AtomicU64,
    all: AtomicU64,
    end: OnceLock<Result<Value, Problem>>,
    has_ended: Notify,
}

impl Reading {
    fn new(job: JobId, clock: Clock, owner: Asker) -> Reading {
        let begun = clock.now().mono;
        Reading {
            job,
            owner,
            clock,
            begun,
            wanted_until: AtomicI64::new(begun.0 + WANTED_NS),
            is_cancelled: AtomicBool::new(false),
            read: AtomicU64::new(0),
            all: AtomicU64::new(0),
            end: OnceLock::new(),
            has_ended: Notify::new(),
        }
    }

    /// Someone asks about it.
    fn want(&self) {
        let until = self.clock.now().mono.0 + WANTED_NS;
        self.wanted_until.store(until, Ordering::Relaxed);
    }

    fn is_wanted(&self, now: Time) -> bool {
        !self.is_cancelled.load(Ordering::Relaxed)
            && now.0 < self.wanted_until.load(Ordering::Relaxed)
    }

    /// Why it must end, if it must.
    fn why_not(&self, now: Time) -> Option<String> {
        if !self.is_wanted(now) {
            return Some("the reading was ended, because no one asked about it any more".into());
        }
        (now.since(self.begun) > READING_NS).then(|| {
            let seconds = READING_NS / SECOND_NS;
            format!(
                "reading the log took more than {seconds} seconds; `bsd-wal history DIR {} --live` \
                 has no such bound",
                self.job
            )
        })
    }

    /// How far it is.
    fn progress(&self) -> Value {
        json!({
            "id": self.job.0,
            "state": "reading",
            "read_bytes": self.read.load(Ordering::Relaxed),
            "log_bytes": self.all.load(Ordering::Relaxed),
        })
    }

    /// Read the log in `dir`, on a thread of its own.
    fn run(&self, dir: &Path) {
        let _ending = Ending(self);
        let read = self.read_log(dir);
        // It ends once.
        let _ = self.end.set(read.map(|history| self.value(&history)));
    }

    fn read_log(&self, dir: &Path) -> Result<History, Problem> {
        let mut rest = Rest::new(self.clock);
        for _ in 0..TRIES {
            let opened = Opened::new(Arc::new(RealFs), dir, Access::Sparing, &mut |_, _| ())
                .map_err(unreadable)?;
            let mut goes_on = |done, all| {
                self.read.store(done, Ordering::Relaxed);
                self.all.store(all, Ordering::Relaxed);
                rest.take();
                self.why_not(self.clock.now().mono).is_none()
            };
            let read = opened.history_within(self.job, EVENTS_MAX, &mut goes_on);
            if let Some(why) = self.why_not(self.clock.now().mono) {
                return Err(Problem::unavailable(why));
            }
            match read.map_err(unreadable)? {
                Some(history) if opened.live.is_some() && !opened.has_lost_files() => {
                    return Ok(history);
                }
                _ => {}
            }
        }
        Err(Problem::unavailable(format!(
            "the log is compacted faster than it can be read, or its end is damaged; ask again, or \
             see what `bsd-wal verify {} --live` says",
            dir.display()
        )))
    }

    fn value(&self, history: &History) -> Value {
        let damage = history.damages.iter().take(DAMAGE_MAX);
        let mut value = self.progress();
        value["state"] = json!("done");
        value["events"] = history.entries.iter().map(event_value).collect();
        value["left_out"] = json!(history.left_out);
        value["damage"] = damage.map(|damage| json!(damage.to_string())).collect();
        value
    }
}

fn unreadable(error: OpenError) -> Problem {
    Problem::unavailable(error.to_string())
}

/// The thread of a reading ends, even if by a panic, which is reported elsewhere: another reading
/// may begin.
struct Ending<'a>(&'a Reading);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let broken = Err(Problem::unavailable(
            "the reading broke off; the server's log says why",
        ));
        // Mostly it has ended well.
        let _ = self.0.end.set(broken);
        self.0.has_ended.notify_waiters();
    }
}

/// Rests as long as it has worked.
struct Rest {
    clock: Clock,
    since: Time,
}

impl Rest {
    fn new(clock: Clock) -> Rest {
        let since = clock.now().mono;
        Rest { clock, since }
    }

    fn take(&mut self) {
        let worked = self.clock.now().mono.since(self.since);
        if worked >= PIECE_NS {
            let rest = worked.min(10 * PIECE_NS);
            std::thread::sleep(Duration::from_nanos(rest.unsigned_abs()));
            self.since = self.clock.now().mono;
        }
    }
}

fn event_value(entry: &HistoryEntry) -> Value {
    let mut value = json!({
        "event": "deleted",
        "after": entry.after_wall_ns.map(utc),
        "before": entry.before_wall_ns.map(utc),
        "file": entry.file,
        "offset": entry.position.offset(),
        "size": entry.size,
        "salvaged": entry.is_salvaged,
        "what": entry.event.in_words(&utc),
    });
    let state = match &entry.event {
        Event::Put {
            tube,
            ttr,
            body_size,
            state,
        } => {
            value["event"] = json!("put");
            value["tube"] = json!(tube);
            value["ttr"] = json!(ttr);
            value["body_size"] = json!(body_size);
            state
        }
        Event::Changed { state, .. } => {
            value["event"] = json!("changed");
            state
        }
        Event::Attributes(_) => {
            value["event"] = json!("attributes");
            return value;
        }
        Event::Deleted => return value,
    };
    value["job"] = state_value(state);
    value
}

fn state_value(at: &JobAt) -> Value {
    json!({
        "state": at.state.word(),
        "priority": at.pri,
        "delay": at.delay,
        "due": at.deadline_wall_ns.map(utc),
        "reserves": at.counters.reserves,
        "timeouts": at.counters.timeouts,
        "releases": at.counters.releases,
        "buries": at.counters.buries,
        "kicks": at.counters.kicks,
    })
}

impl Histories {
    fn slot(&self) -> MutexGuard<'_, Option<Arc<Reading>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reading for this job: the one under way, or a new one.
    fn begin(
        &self,
        (job, owner): (JobId, Asker),
        clock: Clock,
        dir: &Path,
    ) -> Result<Arc<Reading>, Problem> {
        let mut slot = self.slot();
        if let Some(reading) = &*slot {
            let is_it = reading.job == job && reading.is_wanted(clock.now().mono);
            if is_it {
                reading.want();
                return Ok(reading.clone());
            }
            if reading.end.get().is_none() {
                return Err(Problem::unavailable(format!(
                    "the log is being read for the history of job {}, one at a time; ask again",
                    reading.job
                )));
            }
        }
        let reading = Arc::new(Reading::new(job, clock, owner));
        let (shared, dir): (_, PathBuf) = (reading.clone(), dir.to_owned());
        let thread = std::thread::Builder::new().name("bsd-history".into());
        let spawned = thread.spawn(move || shared.run(&dir));
        spawned.map_err(|error| {
            Problem::unavailable(format!("no thread can be had that reads the log: {error}"))
        })?;
        *slot = Some(reading.clone());
        Ok(reading)
    }

    /// Take the result of a reading that is done; only once.
    fn take(&self, reading: &Arc<Reading>) -> Option<Result<Value, Problem>> {
        let end = reading.end.get()?;
        let mut slot = self.slot();
        slot.take_if(|it| Arc::ptr_eq(it, reading));
        Some(end.clone())
    }

    /// How far the reading for this job is, without asking for one.
    pub(crate) fn look(&self, job: JobId) -> Option<Value> {
        let slot = self.slot();
        let reading = slot.as_ref().filter(|reading| reading.job == job)?;
        reading.want();
        let mut progress = reading.progress();
        if reading.end.get().is_some() {
            progress["state"] = json!("done");
        }
        Some(progress)
    }

    /// End the reading that is under way.
    pub(crate) fn cancel(&self) {
        if let Some(reading) = &*self.slot() {
            reading.is_cancelled.store(true, Ordering::Relaxed);
        }
    }
}

/// Knowledge of the engine about a job.
struct LookAtFate {
    id: JobId,
    fate: Option<&'static str>,
}

impl Work for LookAtFate {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let queue = slice.engine().queue();
        self.fate = Some(match queue.job(self.id) {
            Some(job) => job.state.word(),
            None if self.id < queue.next_id() => "gone",
            None => "never put",
        });
        Step::Done
    }
}

/// `GET /api/v1/jobs/{id}/history`
pub(crate) async fn history(state: &State, id: &str, asker: Asker) -> Result<Answer, Problem> {
    let value = read(state, id, asker).await?;
    let status = match value["state"] == "done" {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok(json(status, &value))
}

/// The known past of a job, or the progress of the reading.
pub(crate) async fn read(state: &State, id: &str, asker: Asker) -> Result<Value, Problem> {
    let id = job_id(id)?;
    let dir = state.handles.dir.as_deref();
    let dir = dir.ok_or_else(|| not_found("jobs have no history: the server keeps no log"))?;
    let look = run(&state.doorway, LookAtFate { id, fate: None }).await?;
    let fate = look.fate.ok_or_else(gone)?;
    if fate == "never put" {
        return Err(not_found("no job has had this id yet"));
    }
    let reading = state
        .histories
        .begin((id, asker), state.handles.clock, dir)?;
    let ended = reading.has_ended.notified();
    if reading.end.get().is_none() {
        // It may take longer.
        let _ = timeout(WAIT, ended).await;
    }
    let mut value = match state.histories.take(&reading) {
        None => reading.progress(),
        Some(read) => read?,
    };
    value["now"] = json!(fate);
    Ok(value)
}

/// `DELETE /api/v1/jobs/{id}/history`
pub(crate) fn cancel(state: &State, id: &str, asker: Asker) -> Result<Answer, Problem> {
    let progress = state.histories.look(job_id(id)?);
    let progress = progress.ok_or_else(|| not_found("no history of this job is being read"))?;
    let owner = state.histories.slot().as_ref().map(|reading| reading.owner);
    asker.check_may_end(owner.unwrap_or(asker))?;
    state.histories.cancel();
    Ok(json(StatusCode::OK, &progress))
}

#[cfg(test)]
impl Histories {
    /// As if the log were being read for this job, by a thread that does not end.
    pub(crate) fn hold(&self, job: JobId, clock: Clock) {
        *self.slot() = Some(Arc::new(Reading::new(job, clock, Asker::Local)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_ends_when_no_one_asks_about_it_and_when_it_takes_too_long() {
        let reading = Reading::new(JobId(7), Clock::start(), Asker::Local);
        let after = |ns: i64| Time(reading.begun.0 + ns);
        assert_eq!(reading.why_not(after(WANTED_NS - 1)), None);
        let why = reading.why_not(after(WANTED_NS)).unwrap();
        assert!(why.contains("no one asked"), "{why}");
        reading.wanted_until.store(i64::MAX, Ordering::Relaxed);
        assert_eq!(reading.why_not(after(READING_NS)), None);
        let why = reading.why_not(after(READING_NS + 1)).unwrap();
        assert!(why.contains("more than 60 seconds"), "{why}");
        reading.is_cancelled.store(true, Ordering::Relaxed);
        assert!(reading.why_not(after(0)).is_some());
    }

    #[test]
    fn a_reading_that_breaks_off_is_over() {
        let reading = Reading::new(JobId(7), Clock::start(), Asker::Local);
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ending = Ending(&reading);
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(broken.is_err());
        assert!(
            matches!(reading.end.get(), Some(Err(_))),
            "{:?}",
            reading.end
        );
    }

    /// The thread of the first does not end before it is told to.
    #[test]
    fn one_history_is_read_at_a_time() {
        let (histories, clock) = (Histories::default(), Clock::start());
        let first = Arc::new(Reading::new(JobId(1), clock, Asker::Local));
        *histories.slot() = Some(first.clone());
        let nowhere = Path::new("/nowhere");
        let same = histories
            .begin((JobId(1), Asker::Local), clock, nowhere)
            .unwrap();
        assert!(
            Arc::ptr_eq(&first, &same),
            "who asks for the same waits for it"
        );
        let refused = histories
            .begin((JobId(2), Asker::Local), clock, nowhere)
            .unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        // Also where no one wants it any more, as long as it is under way.
        histories.cancel();
        assert!(
            histories
                .begin((JobId(2), Asker::Local), clock, nowhere)
                .is_err()
        );
        assert!(
            histories
                .begin((JobId(1), Asker::Local), clock, nowhere)
                .is_err()
        );
        assert!(histories.take(&first).is_none());
        first.end.set(Ok(json!({}))).unwrap();
        let second = histories
            .begin((JobId(2), Asker::Local), clock, nowhere)
            .unwrap();
        assert_eq!(second.job, JobId(2));
        assert_eq!(histories.take(&first), Some(Ok(json!({}))));
        assert!(
            histories.look(JobId(2)).is_some(),
            "the other is still there"
        );
    }
}
