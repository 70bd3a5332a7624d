//! Long work that is under way or done: its progress, its result, and its end. All of it is in
//! memory; its changes are in the log.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{bad, not_found};
use crate::answer::{Answer, Problem, Said, json};
use crate::doorway::Doorway;
use crate::exposition::seconds;
use crate::guard::Asker;
use bsd::door::Work;

/// Work of a kind that is under way at a time, that which only holds jobs back apart.
pub(crate) const RUNNING_MAX: usize = 8;
/// Deletes at a time that hold jobs back, or will.
pub(crate) const HOLDING_MAX: usize = 32;
/// No further one begins while all of them hold this number of jobs.
pub(crate) const HELD_ALL_MAX: u64 = 400_000;
/// Work of a kind that is over and can be asked for: the newest of this number …
pub(crate) const KEPT_MAX: usize = 64;
/// … and for how long.
pub(crate) const KEPT_TIME: Duration = Duration::from_secs(3600);

/// What work does while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Counting,
    Running,
    /// Jobs are held back, and it waits.
    Held,
    /// They are brought back.
    Returning,
}

impl Stage {
    const ALL: [Stage; 4] = [
        Stage::Counting,
        Stage::Running,
        Stage::Held,
        Stage::Returning,
    ];

    fn word(self) -> &'static str {
        match self {
            Stage::Counting => "counting",
            Stage::Running => "running",
            Stage::Held => "held",
            Stage::Returning => "returning",
        }
    }
}

/// How far a piece of work is. The loop writes it, and others read it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The number of the work.
    pub(super) id: u64,
    /// A [`Stage`].
    pub(super) stage: AtomicU8,
    pub(super) looked_at: AtomicU64,
    pub(super) unread: AtomicU64,
    pub(super) matched: AtomicU64,
    pub(super) changed: AtomicU64,
    pub(super) skipped: AtomicU64,
    /// Jobs that are held back, and for how long yet.
    pub(super) held: AtomicU64,
    pub(super) left_ms: AtomicU64,
    /// Jobs that were brought back, and those that could not be.
    pub(super) returned: AtomicU64,
    pub(super) gone: AtomicU64,
    pub(super) altered: AtomicU64,
    pub(super) no_room: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Progress {
    pub(super) fn set(number: &AtomicU64, value: u64) {
        number.store(value, Ordering::Relaxed);
    }

    fn stage(&self) -> Stage {
        let nth = usize::from(self.stage.load(Ordering::Relaxed));
        Stage::ALL.get(nth).copied().unwrap_or(Stage::Running)
    }

    /// No more of it is wanted.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Someone wants no more of it.
    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

/// How work ended.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    /// Why it did not come to its own end, for a person.
    pub(super) reason: Option<String>,
    pub(super) is_cancelled: bool,
    /// Its jobs were brought back.
    pub(super) is_undone: bool,
    /// Result of a search; the first jobs that were only counted.
    pub(super) found: Option<Value>,
}

/// Work that tells how it ended.
pub(super) trait Told: Work {
    fn end(self) -> End;
}

/// One piece of work.
#[derive(Debug)]
pub(super) struct Entry {
    id: u64,
    /// The request.
    asked: Value,
    /// Its owner.
    owner: Asker,
    /// It changes jobs, and does not only look for some.
    changes: bool,
    begun: Instant,
    progress: Arc<Progress>,
    end: OnceLock<(Instant, End)>,
}

impl Entry {
    fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    fn state(&self) -> &'static str {
        match self.end.get() {
            Some((_, end)) if end.reason.is_some() => "failed",
            Some((_, end)) if end.is_undone => "undone",
            Some((_, end)) if end.is_cancelled => "cancelled",
            Some(_) => "done",
            None => self.progress.stage().word(),
        }
    }

    /// It holds jobs back before it deletes them.
    fn holds(&self) -> bool {
        holds(&self.asked)
    }

    /// It waits, and does nothing else: the jobs that are to be deleted are all held back.
    fn only_holds(&self) -> bool {
        self.progress.stage() == Stage::Held
    }

    fn value(&self) -> Value {
        let end = self.end.get();
        let upto = end.map_or_else(Instant::now, |(at, _)| *at);
        let took = upto.duration_since(self.begun);
        let took = seconds(i64::try_from(took.as_nanos()).unwrap_or(i64::MAX));
        let reason = end.and_then(|(_, end)| end.reason.as_ref());
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let progress = &self.progress;
        let mut value = self.asked.clone();
        for (name, of_progress) in [
            ("id", json!(self.id)),
            ("state", json!(self.state())),
            ("reason", json!(reason)),
            ("took_seconds", json!(took)),
            ("looked_at", json!(number(&progress.looked_at))),
            ("unread", json!(number(&progress.unread))),
            ("matched", json!(number(&progress.matched))),
        ] {
            value[name] = of_progress;
        }
        if self.changes {
            value["changed"] = json!(number(&progress.changed));
            value["skipped"] = json!(number(&progress.skipped));
        }
        if self.holds() {
            let left = number(&progress.left_ms) as f64 / 1000.0;
            value["held"] = json!(number(&progress.held));
            value["undo_left_seconds"] = json!(if end.is_some() { 0.0 } else { left });
            value["returned"] = json!(number(&progress.returned));
            value["not_returned"] = json!({
                "gone": number(&progress.gone),
                "changed": number(&progress.altered),
                "no_room": number(&progress.no_room),
            });
        }
        value
    }
}

/// Work that was asked for like this holds jobs back before it deletes them.
fn holds(asked: &Value) -> bool {
    asked["undo"].is_number() && asked["dry_run"] != true
}

/// All work of a kind.
#[derive(Debug)]
pub(crate) struct Register {
    /// Name of one, and path of all.
    name: &'static str,
    list: &'static str,
    changes: bool,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    last: u64,
    by_id: BTreeMap<u64, Arc<Entry>>,
}

impl Entries {
    /// Forget work that was done long ago, and the oldest beyond the limit.
    fn prune(&mut self) {
        self.by_id.retain(|_, entry| {
            let end = entry.end.get();
            end.is_none_or(|(at, _)| at.elapsed() < KEPT_TIME)
        });
        let is_over = |(id, entry): (&u64, &Arc<Entry>)| entry.is_over().then_some(*id);
        let over: Vec<u64> = self.by_id.iter().filter_map(is_over).collect();
        for id in over.iter().take(over.len().saturating_sub(KEPT_MAX)) {
            self.by_id.remove(id);
        }
    }

    fn under_way(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.by_id.values().filter(|entry| !entry.is_over())
    }

    /// Whether there is a place for work that was asked for like this.
    fn check_room(&self, asked: &Value) -> Result<(), Problem> {
        let refused = |why: String| Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, why));
        let running = self.under_way().filter(|entry| !entry.only_holds());
        if running.count() >= RUNNING_MAX {
            return refused(format!(
                "too many are under way: {RUNNING_MAX}; wait until one is done, or cancel one"
            ));
        }
        if !holds(asked) {
            return Ok(());
        }
        let holding = self.under_way().filter(|entry| entry.holds());
        let held = holding.map(|entry| entry.progress.held.load(Ordering::Relaxed));
        let held: Vec<u64> = held.collect();
        if held.len() >= HOLDING_MAX || held.iter().sum::<u64>() >= HELD_ALL_MAX {
            return refused(format!(
                "too many jobs are held back: {HOLDING_MAX} deletes at a time, and {HELD_ALL_MAX} \
                 jobs; wait until the time of one is over, or delete without `undo`"
            ));
        }
        Ok(())
    }
}

impl Register {
    /// Of work that changes jobs.
    pub(crate) fn of_tasks() -> Register {
        Register::new("task", "tasks", true)
    }

    /// Of work that looks for some.
    pub(crate) fn of_searches() -> Register {
        Register::new("search", "searches", false)
    }

    fn new(name: &'static str, list: &'static str, changes: bool) -> Register {
        Register {
            name,
            list,
            changes,
            entries: Mutex::default(),
        }
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, Entries> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.prune();
        entries
    }

    /// Begin work that was asked for like this, and answer 202 at once.
    pub(super) fn start<W: Told>(
        &self,
        doorway: &Doorway,
        (asked, owner): (Value, Asker),
        work: impl FnOnce(Arc<Progress>) -> W,
    ) -> Result<Answer, Problem> {
        let door = doorway.door()?;
        let entry = self.enter((asked, owner))?;
        let task = door.start(work(entry.progress.clone()));
        let kept = entry.clone();
        tokio::spawn(async move {
            let end = match task.await {
                Ok(work) => work.end(),
                Err(error) => End {
                    reason: Some(error.to_string()),
                    is_cancelled: false,
                    is_undone: false,
                    found: None,
                },
            };
            // It ends once.
            let _ = kept.end.set((Instant::now(), end));
        });
        let said = Said(format!("{} {}: {}", self.name, entry.id, entry.asked));
        Ok(said.with(json(StatusCode::ACCEPTED, &entry.value())))
    }

    fn enter(&self, (asked, owner): (Value, Asker)) -> Result<Arc<Entry>, Problem> {
        let mut entries = self.entries();
        entries.check_room(&asked)?;
        entries.last += 1;
        let id = entries.last;
        let entry = Arc::new(Entry {
            id,
            asked,
            owner,
            changes: self.changes,
            begun: Instant::now(),
            progress: Arc::new(Progress {
                id,
                ..Progress::default()
            }),
            end: OnceLock::new(),
        });
        entries.by_id.insert(id, entry.clone());
        Ok(entry)
    }

    fn find(&self, id: &str) -> Result<Arc<Entry>, Problem> {
        let id: u64 = id
            .parse()
            .map_err(|_| bad(format!("the id of a {} is a number", self.name)))?;
        let found = self.entries().by_id.get(&id).cloned();
        found.ok_or_else(|| {
            not_found(&format!(
                "there is no such {}; one that is over is kept for an hour",
                self.name
            ))
        })
    }

    /// All that there is, the newest first.
    pub(crate) fn list(&self) -> Answer {
        let entries = self.entries();
        let values = entries.by_id.values().rev().map(|entry| entry.value());
        let value = json!({self.list: values.collect::<Vec<_>>()});
        json(StatusCode::OK, &value)
    }

    /// One, with the result of a search.
    pub(crate) fn show(&self, id: &str) -> Result<Answer, Problem> {
        let entry = self.find(id)?;
        let mut value = entry.value();
        let end = entry.end.get();
        if let Some(Value::Object(found)) = end.and_then(|(_, end)| end.found.as_ref()) {
            for (name, part) in found {
                value[name] = part.clone();
            }
        }
        Ok(json(StatusCode::OK, &value))
    }

    /// Have a delete bring its jobs back. It is answered 202 when that has begun.
    pub(crate) fn undo(&self, id: &str, asker: Asker) -> Result<Answer, Problem> {
        let entry = self.find(id)?;
        asker.check_may_end(entry.owner)?;
        if !entry.holds() || entry.is_over() {
            let why = match (entry.holds(), entry.state()) {
                (true, "undone") => "it was undone already",
                (true, "done") => "its time is over, and its jobs are deleted",
                (true, _) => "it has ended, and holds no job back",
                (false, _) => "only a delete that was begun with `undo` can be undone",
            };
            return Err(Problem::new(StatusCode::CONFLICT, why));
        }
        entry.progress.cancel();
        let said = Said(format!("{} {}", self.name, entry.id));
        Ok(said.with(json(StatusCode::ACCEPTED, &entry.value())))
    }

    /// Let one do no further step. Its changes stay; but a delete that can be undone is undone.
    pub(crate) fn cancel(&self, id: &str, asker: Asker) -> Result<Answer, Problem> {
        let entry = self.find(id)?;
        asker.check_may_end(entry.owner)?;
        entry.progress.cancel();
        Ok(json(StatusCode::OK, &entry.value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::paused;

    /// Jobs of one delete.
    const HELD_MAX: u64 = HELD_ALL_MAX / 4;

    fn over(register: &Register) -> u64 {
        let entry = register.enter((json!({}), Asker::Local)).unwrap();
        let end = End {
            reason: None,
            is_cancelled: false,
            is_undone: false,
            found: None,
        };
        entry.end.set((Instant::now(), end)).unwrap();
        entry.id
    }

    fn is_kept(register: &Register, id: u64) -> bool {
        register.show(&id.to_string()).is_ok()
    }

    fn enter(register: &Register, asked: Value) -> Option<Arc<Entry>> {
        match register.enter((asked, Asker::Local)) {
            Ok(entry) => Some(entry),
            Err(problem) => {
                assert_eq!(problem.status, StatusCode::TOO_MANY_REQUESTS);
                None
            }
        }
    }

    /// A delete that can be undone, and has come to the stage in which it waits.
    fn held(register: &Register, jobs: u64) -> Option<Arc<Entry>> {
        let entry = enter(register, json!({"undo": 60}))?;
        let progress = &entry.progress;
        progress.stage.store(Stage::Held as u8, Ordering::Relaxed);
        Progress::set(&progress.held, jobs);
        Some(entry)
    }

    #[test]
    fn eight_run_beside_32_deletes_that_only_hold_jobs_back() {
        let register = Register::of_tasks();
        let holding: Vec<_> = (0..HOLDING_MAX)
            .filter_map(|_| held(&register, 1))
            .collect();
        assert_eq!((holding.len(), HOLDING_MAX, RUNNING_MAX), (32, 32, 8));
        assert!(held(&register, 1).is_none());
        // A count holds none back.
        let count = json!({"undo": 60, "dry_run": true});
        let running = [count, json!({})].into_iter().cycle().take(RUNNING_MAX);
        let running: Vec<_> = running
            .filter_map(|asked| enter(&register, asked))
            .collect();
        assert_eq!(running.len(), RUNNING_MAX);
        assert!(enter(&register, json!({})).is_none());
        // One that is undone, or whose time is over, runs.
        let end = End {
            reason: None,
            is_cancelled: false,
            is_undone: false,
            found: None,
        };
        running[0].end.set((Instant::now(), end.clone())).unwrap();
        let stage = &holding[0].progress.stage;
        stage.store(Stage::Returning as u8, Ordering::Relaxed);
        assert!(enter(&register, json!({})).is_none());
        holding[0].end.set((Instant::now(), end)).unwrap();
        assert!(held(&register, 1).is_some());
    }

    #[test]
    fn no_delete_that_can_be_undone_begins_while_400_000_jobs_are_held_back() {
        let register = Register::of_tasks();
        assert_eq!(HELD_ALL_MAX, 400_000);
        let holding: Vec<_> = (0..4).filter_map(|_| held(&register, HELD_MAX)).collect();
        assert_eq!(holding.len(), 4);
        assert!(held(&register, 1).is_none());
        assert!(enter(&register, json!({})).is_some());
        Progress::set(&holding[0].progress.held, HELD_MAX - 1);
        assert!(held(&register, 1).is_some());
    }

    #[test]
    fn the_last_64_that_are_over_are_kept_for_an_hour() {
        paused(async {
            let register = Register::of_tasks();
            let running = register.enter((json!({}), Asker::Local)).unwrap();
            let first = over(&register);
            tokio::time::advance(KEPT_TIME - Duration::from_secs(1)).await;
            let second = over(&register);
            assert!(is_kept(&register, first) && is_kept(&register, second));
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(!is_kept(&register, first) && is_kept(&register, second));
            let others: Vec<u64> = (0..KEPT_MAX).map(|_| over(&register)).collect();
            assert_eq!(KEPT_MAX, 64);
            assert!(!is_kept(&register, second), "64 have ended since");
            assert!(others.iter().all(|id| is_kept(&register, *id)));
            assert!(is_kept(&register, running.id), "what is under way stays");
        });
    }
}
