//! The figures of a scrape, taken from the engine a slice at a time. Scrapes that come within a
//! second of each other share one.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::State;
use super::answer::Problem;
use bsd::door::{Slice, Step, Work};
use bsd::engine::Figures;
use bsd::policy::DeadLetter;
use bsd::queue::{Queue, TubeFailures, TubeList, TubeTally};
use bsd::types::{JobCounts, Now, Time};

/// Age up to which a snapshot is shown.
const FRESH: Duration = Duration::from_secs(1);
/// How long the loop may take to give one. Prometheus gives up a scrape after 10 seconds.
const ASK_TIME: Duration = Duration::from_secs(5);
/// Tubes after which the time of the slice is checked.
pub(super) const LOOK_AFTER: usize = 16;
/// Tubes that are kept one by one, where more do not have lines of their own.
const KEPT_MAX: usize = 32_768;

/// The server in numbers.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) figures: Figures,
    pub(super) now: Now,
    names: String,
    /// The first of all tubes, in the order of `list-tubes`.
    tubes: Vec<TubeFigures>,
    /// The number of them that have lines of their own.
    own_count: usize,
    /// Those without lines of their own, in one.
    pub(super) rest: TubeFigures,
    pub(super) rest_count: u64,
}

/// A tube in numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct TubeFigures {
    pub(super) name_begin: u32,
    pub(super) name_len: u32,
    /// It has vanished, and only its totals are left.
    pub(super) is_gone: bool,
    pub(super) jobs: JobCounts,
    pub(super) using: u64,
    pub(super) watching: u64,
    pub(super) waiting: u64,
    pub(super) puts: u64,
    pub(super) deletes: u64,
    pub(super) pauses: u64,
    pub(super) pause_left_ns: i64,
    /// Of the ready jobs the age of the oldest, nanoseconds.
    pub(super) oldest_ready_ns: i64,
    /// What has failed; few tubes have any.
    pub(super) failures: Option<Box<TubeFailures>>,
    /// What has happened in it; tubes in which nothing has, and those past the bound, have none.
    pub(super) tally: Option<Box<TubeTally>>,
    /// A policy sends dead letters here.
    pub(super) takes_dead_letters: bool,
}

impl TubeFigures {
    /// Of the tube of this name, if there is one, or was until not long ago. Its totals are those of
    /// all tubes of this name that followed each other.
    pub(super) fn of(queue: &Queue, name: &str, now: Time) -> Option<TubeFigures> {
        let totals = queue.tube_totals(name, now)?;
        let failures = Some(queue.tube_failures(name, now));
        let failures = failures.filter(|it| *it != TubeFailures::default());
        let counted = TubeFigures {
            is_gone: true,
            puts: totals.puts,
            deletes: totals.deletes,
            pauses: totals.pauses,
            failures: failures.map(Box::new),
            tally: queue.tube_tally(name, now).cloned().map(Box::new),
            ..TubeFigures::default()
        };
        let Some(found) = queue.tube_stats(name, now) else {
            return Some(counted);
        };
        let oldest = queue.oldest_ready(name);
        Some(TubeFigures {
            is_gone: false,
            jobs: found.jobs,
            using: found.using.into(),
            watching: found.watching.into(),
            waiting: found.waiting,
            pause_left_ns: found.pause_left_ns,
            oldest_ready_ns: oldest.map_or(0, |put| now.since(put).max(0)),
            ..counted
        })
    }

    /// The longest of the times, and the sums of all else.
    fn add(&mut self, other: &TubeFigures) {
        let (jobs, more) = (&mut self.jobs, &other.jobs);
        jobs.urgent += more.urgent;
        jobs.ready += more.ready;
        jobs.reserved += more.reserved;
        jobs.delayed += more.delayed;
        jobs.buried += more.buried;
        self.using += other.using;
        self.watching += other.watching;
        self.waiting += other.waiting;
        self.puts += other.puts;
        self.deletes += other.deletes;
        self.pauses += other.pauses;
        self.pause_left_ns = self.pause_left_ns.max(other.pause_left_ns);
        self.oldest_ready_ns = self.oldest_ready_ns.max(other.oldest_ready_ns);
        if let Some(more) = &other.failures {
            let failures = self.failures.get_or_insert_default();
            for (count, more) in failures.by_reason.iter_mut().zip(more.by_reason) {
                *count += more;
            }
            failures.set_aside += more.set_aside;
            failures.puts_refused += more.puts_refused;
        }
        if let Some(more) = &other.tally {
            self.tally.get_or_insert_default().add(more);
        }
    }
}

impl Snapshot {
    /// The tubes with lines of their own, from the one with this number on, with their names.
    pub(super) fn tubes_from(&self, index: usize) -> impl Iterator<Item = (&str, &TubeFigures)> {
        let tubes = self.tubes[..self.own_count].get(index..);
        self.named(tubes.unwrap_or_default())
    }

    /// The first 32,768 tubes, or as many as have lines of their own, with their names; of those that
    /// are there.
    pub(super) fn kept_tubes(&self) -> impl Iterator<Item = (&str, &TubeFigures)> {
        self.named(&self.tubes).filter(|(_, tube)| !tube.is_gone)
    }

    fn named<'a>(
        &'a self,
        tubes: &'a [TubeFigures],
    ) -> impl Iterator<Item = (&'a str, &'a TubeFigures)> {
        tubes.iter().map(|tube| {
            let begin = tube.name_begin as usize;
            (&self.names[begin..begin + tube.name_len as usize], tube)
        })
    }
}

/// The last snapshot, and when it was there.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<Option<(Instant, Arc<Snapshot>)>>);

impl Snapshots {
    /// One that is not older than `FRESH`; `None` from a loop that is stuck or does not answer. A
    /// caller that comes while one is being taken waits for it.
    pub(super) async fn take(&self, state: &State) -> Result<Option<Arc<Snapshot>>, Problem> {
        let mut last = self.0.lock().await;
        if let Some(snapshot) = fresh(&last) {
            return Ok(Some(snapshot));
        }
        let Some(snapshot) = survey(state).await? else {
            return Ok(None);
        };
        *last = Some((Instant::now(), snapshot.clone()));
        Ok(Some(snapshot))
    }

    /// One that is taken now, for who has to see what was done a moment ago. One at a time.
    pub(super) async fn renew(&self, state: &State) -> Result<Option<Arc<Snapshot>>, Problem> {
        let mut last = self.0.lock().await;
        let Some(snapshot) = survey(state).await? else {
            return Ok(None);
        };
        *last = Some((Instant::now(), snapshot.clone()));
        Ok(Some(snapshot))
    }

    /// The same as `take`, where nothing can be shown without one.
    pub(super) async fn demand(&self, state: &State) -> Result<Arc<Snapshot>, Problem> {
        self.take(state).await?.ok_or_else(silent)
    }

    /// Something has changed that someone wants to see.
    pub(super) async fn forget(&self) {
        *self.0.lock().await = None;
    }

    /// The same as `demand`, but no one else is shown one that was taken for this.
    pub(super) async fn take_aside(&self, state: &State) -> Result<Arc<Snapshot>, Problem> {
        let last = fresh(&*self.0.lock().await);
        match last {
            Some(snapshot) => Ok(snapshot),
            None => survey(state).await?.ok_or_else(silent),
        }
    }
}

fn fresh(last: &Option<(Instant, Arc<Snapshot>)>) -> Option<Arc<Snapshot>> {
    let last = last.as_ref();
    let last = last.filter(|(taken, _)| taken.elapsed() < FRESH);
    last.map(|(_, snapshot)| snapshot.clone())
}

fn silent() -> Problem {
    Problem::unavailable("the loop does not answer")
}

async fn survey(state: &State) -> Result<Option<Arc<Snapshot>>, Problem> {
    if state.is_stuck() || state.doorway.is_reading_again() {
        return Ok(None);
    }
    let door = state.doorway.door()?;
    let survey = door.start(Survey::new(state.handles.tubes_max));
    let survey = match timeout(ASK_TIME, survey).await {
        Ok(survey) => survey.map_err(|error| Problem::unavailable(error.to_string()))?,
        Err(_) => return Ok(None),
    };
    let snapshot = survey.snapshot.map(Arc::new);
    let snapshot = snapshot.ok_or_else(|| Problem::unavailable("the loop did not begin"))?;
    Ok(Some(snapshot))
}

/// The work of taking one.
struct Survey {
    tubes_max: usize,
    snapshot: Option<Snapshot>,
    list: TubeList,
    next: usize,
    /// Tubes to which policies send dead letters.
    for_dead_letters: HashSet<Box<str>>,
}

/// The tubes to which policies send dead letters. There are so few policies that one step looks at all.
pub(crate) fn targets(queue: &Queue) -> HashSet<Box<str>> {
    let targets = queue.policies();
    let targets = targets.filter_map(|(_, policy)| match &policy.dead_letter {
        DeadLetter::Tube(to) => Some(to.clone()),
        DeadLetter::Bury | DeadLetter::Delete => None,
    });
    targets.collect()
}

impl Survey {
    fn new(tubes_max: usize) -> Survey {
        Survey {
            tubes_max,
            snapshot: None,
            list: TubeList::default(),
            next: 0,
            for_dead_letters: HashSet::new(),
        }
    }

    fn begin(&mut self, slice: &Slice<'_>) -> Snapshot {
        let engine = slice.engine();
        self.list = engine.queue().tube_list();
        self.for_dead_letters = targets(engine.queue());
        let room = self.tubes_max.max(KEPT_MAX).min(self.list.len());
        let mut snapshot = Snapshot::new(engine.figures(slice.now()), slice.now(), room);
        let others = engine.queue().tally_of_others();
        if *others != TubeTally::default() {
            snapshot.rest.tally = Some(Box::new(others.clone()));
        }
        snapshot
    }
}

impl Work for Survey {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let mut snapshot = match self.snapshot.take() {
            Some(snapshot) => snapshot,
            None => self.begin(slice),
        };
        let mut step = Step::Done;
        let mut seen = 0;
        for name in self.list.names_from(self.next) {
            if seen == LOOK_AFTER {
                seen = 0;
                if slice.is_over() {
                    step = Step::More;
                    break;
                }
            }
            seen += 1;
            self.next += 1;
            // It may have vanished since the list was made.
            let found = TubeFigures::of(slice.engine().queue(), name, slice.now().mono);
            if let Some(mut tube) = found {
                tube.takes_dead_letters = self.for_dead_letters.contains(name);
                snapshot.add(name, tube, self.tubes_max);
            }
        }
        if step == Step::Done {
            self.list = TubeList::default();
            // Those that have vanished since were in the list.
            let (queue, begun) = (slice.engine().queue(), snapshot.now.mono);
            let before = queue.departed_tubes(begun).filter(|(at, _)| *at < begun);
            for (_, name) in before {
                if let Some(tube) = TubeFigures::of(queue, name, begun) {
                    snapshot.add(name, tube, self.tubes_max);
                }
            }
        }
        self.snapshot = Some(snapshot);
        step
    }
}

impl Snapshot {
    /// One without tubes, with room for `room` of them.
    fn new(figures: Figures, now: Now, room: usize) -> Snapshot {
        Snapshot {
            figures,
            now,
            names: String::new(),
            tubes: Vec::with_capacity(room),
            own_count: 0,
            rest: TubeFigures::default(),
            rest_count: 0,
        }
    }

    /// One that is taken of this engine.
    #[cfg(test)]
    pub(super) fn taken(engine: &mut bsd::engine::Engine, now: Now, tubes_max: usize) -> Snapshot {
        let mut survey = Survey::new(tubes_max);
        while Slice::alone(engine, now, |slice| survey.step(slice)) != Step::Done {}
        survey.snapshot.unwrap()
    }

    /// One with these tubes, all of them empty.
    #[cfg(test)]
    pub(super) fn sample(figures: Figures, now: Now, names: &[&str], tubes_max: usize) -> Snapshot {
        let mut snapshot = Snapshot::new(figures, now, names.len());
        for name in names {
            snapshot.add(name, TubeFigures::default(), tubes_max);
        }
        snapshot
    }

    /// One with these tubes.
    pub(super) fn of_tubes(figures: Figures, now: Now, tubes: &[(&str, TubeFigures)]) -> Snapshot {
        let mut snapshot = Snapshot::new(figures, now, tubes.len());
        for (name, tube) in tubes {
            snapshot.add(name, tube.clone(), tubes.len());
        }
        snapshot
    }

    fn add(&mut self, name: &str, mut tube: TubeFigures, tubes_max: usize) {
        if self.own_count < tubes_max {
            self.own_count += 1;
        } else {
            self.rest.add(&tube);
            self.rest_count += 1;
        }
        if self.tubes.len() < tubes_max.max(KEPT_MAX) {
            (tube.name_begin, tube.name_len) = (self.names.len() as u32, name.len() as u32);
            self.names.push_str(name);
            self.tubes.push(tube);
        }
    }
}
