//! A worker's view of the queue: watched tubes and reserved jobs.

use std::time::{Duration, SystemTime};

use super::reserved::Reserved;
use crate::UsageError;
use crate::clearing::ClearedStates;
use crate::door::{
    self, Answer, Inserted, Job, JobError, Outcome, Pending, PutAttributes, PutOptions, Search,
    SearchCursor, SearchPage, Searching, Slice, whole_seconds,
};
use crate::engine::{ScheduleChange, ScheduleRun};
use crate::policy;
use crate::protocol::{
    BATCH_MAX, Command, Cursor, ExtendedJobStats, JobPage, JobStats, ListJobs, OnEach, PAGE_MAX,
    PolicyStats, Report, ScheduleStats, SetPolicy, SetSchedule, Stats, TubeStats,
};
use crate::schedule::{self, Schedule};
use crate::types::{JobId, JobState};

/// A session of a [`Queue`](super::Queue): it watches tubes, and jobs that it reserves belong to
/// it.
///
/// It is a handle: its clones are the same session, from any thread. Most programs want one session
/// for each worker. When the last clone is dropped, and with it all its reserved jobs, those jobs
/// are ready again.
///
/// A call does nothing before it is waited for ([`Pending::wait`]) or awaited: `Pending` is a
/// future that needs no particular runtime.
#[derive(Debug, Clone)]
pub struct Session(door::Session);

impl Session {
    pub(super) fn new(session: door::Session) -> Session {
        Session(session)
    }

    /// The same session; calls through this handle are refused with [`JobError::Busy`] if they
    /// would have to wait for room.
    #[must_use]
    pub fn refusing(self) -> Session {
        Session(self.0.refusing())
    }

    /// Watch a tube: [`Session::reserve`] takes jobs from all watched tubes, at first only from
    /// `default`. Gives how many are watched. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`]; [`JobError::OutOfSpace`].
    pub fn watch(&self, tube: &str) -> Pending<u64> {
        self.0
            .run_as(Command::Watch(tube.to_owned().into()), |answer, _| {
                count(answer)
            })
    }

    /// Stop watching a tube. Gives how many are left. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::NotIgnored`].
    pub fn ignore(&self, tube: &str) -> Pending<u64> {
        self.0
            .run_as(Command::Ignore(tube.to_owned().into()), |answer, _| {
                count(answer)
            })
    }

    /// Put a job into `tube`. Durable when its id is given, as the policy says.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::TooBig`], [`JobError::TooLong`], [`JobError::OutOfSpace`].
    pub fn put(&self, tube: &str, body: impl Into<Vec<u8>>, options: PutOptions) -> Pending<JobId> {
        let put = door::put(tube, body, options);
        self.0.try_as(put, |answer, _| inserted(answer))
    }

    /// Put a job into `tube` that is ready at this time; [`PutOptions::delay`] has no effect. A time that
    /// is past is now. The time becomes a delay when the job is put, rounded up to a second: a clock that
    /// is set later does not change it. Durable when its id is given, as the policy says.
    ///
    /// # Errors
    /// As for [`Session::put`].
    pub fn put_at(
        &self,
        tube: &str,
        body: impl Into<Vec<u8>>,
        options: PutOptions,
        at: SystemTime,
    ) -> Pending<JobId> {
        let attributes = PutAttributes {
            at: Some(at),
            ..PutAttributes::default()
        };
        let put = door::put_with(tube, body, options, attributes);
        self.0.try_as(put, |answer, _| inserted(answer))
    }

    /// Put a job that has a key or a group into `tube`, unless another job has its key: then nothing is
    /// put, and that job is given. With [`Conflict::Replace`](crate::Conflict::Replace) the other job is
    /// deleted together with the put, unless it is reserved; a crash leaves the one job or the other.
    /// Durable when the result is given, as the policy says, be the job a new one or not.
    ///
    /// # Errors
    /// As for [`Session::put`]; [`JobError::BadKey`].
    pub fn put_with(
        &self,
        tube: &str,
        body: impl Into<Vec<u8>>,
        options: PutOptions,
        attributes: PutAttributes,
    ) -> Pending<Inserted> {
        let put = door::put_with(tube, body, options, attributes);
        self.0.try_as(put, |answer, _| put_or_not(answer))
    }

    /// Put many jobs into `tube`, in order, with one write and one sync, unless they take longer
    /// than a turn of the engine. Each has its own result. All are durable when the results are
    /// given, as the policy says; after a crash before that the first of them may be there.
    ///
    /// # Errors
    /// For each: as for [`Session::put`]. For all of them, and then none is put: [`JobError::TooLong`].
    pub fn put_many<B: Into<Vec<u8>>>(
        &self,
        tube: &str,
        bodies: impl IntoIterator<Item = B>,
        options: PutOptions,
    ) -> Pending<Vec<Result<JobId, JobError>>> {
        let put = |body| door::put(tube, body, options);
        let puts: Result<_, _> = bodies.into_iter().map(put).collect();
        match puts {
            Ok(puts) => self.0.run_all_as(puts, |answer, _| each(answer, inserted)),
            Err(error) => self.0.refused(error, |answer, _| each(answer, inserted)),
        }
    }

    /// Reserve the most urgent ready job of the watched tubes; wait until there is one. The
    /// reservation ends with the process.
    ///
    /// # Errors
    /// [`JobError::DeadlineSoon`]: another job of this session must be finished first.
    pub fn reserve(&self) -> Pending<Reserved> {
        self.0.reserve_as(None, |answer, session| match answer {
            Answer::Reserved(job) => Ok(Reserved::new(session, job)),
            other => unreachable!("who waits for ever is answered {other:?}"),
        })
    }

    /// The same, but wait no longer than `timeout`; with [`Duration::ZERO`] do not wait.
    ///
    /// # Errors
    /// [`JobError::DeadlineSoon`]: another job of this session must be finished first.
    pub fn reserve_within(&self, timeout: Duration) -> Pending<Option<Reserved>> {
        self.0
            .reserve_as(Some(timeout), |answer, session| match answer {
                Answer::Reserved(job) => Ok(Some(Reserved::new(session, job))),
                _ => Ok(None),
            })
    }

    /// Reserve several of the most urgent ready jobs of the watched tubes: wait for the first one, no
    /// longer than `timeout`, then take those that are ready, `most` in all and 1 to 1,000, and 1 MiB of
    /// bodies together, which the first one alone may exceed. None within the time: an empty list. Each is
    /// given back unless it is finished.
    ///
    /// # Errors
    /// [`JobError::DeadlineSoon`]: another job of this session must be finished first.
    pub fn reserve_batch(&self, most: u16, timeout: Duration) -> Pending<Vec<Reserved>> {
        let most = most.clamp(1, BATCH_MAX as u16);
        let timeout = Some(timeout);
        let reserve = Command::ReserveBatch { most, timeout };
        self.0.run_as(reserve, |answer, session| match answer {
            Answer::ReservedMany(jobs) => {
                let reserved = |job| Reserved::new(session, job);
                Ok(jobs.into_iter().map(reserved).collect())
            }
            _ => Ok(Vec::new()),
        })
    }

    /// Reserve this job, whatever its tube and state, unless it is reserved.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`], [`JobError::Damaged`].
    pub fn reserve_job(&self, id: JobId) -> Pending<Reserved> {
        self.0
            .run_as(Command::ReserveJob(id), |answer, session| match answer {
                Answer::Reserved(job) => Ok(Reserved::new(session, job)),
                other => unreachable!("a reserve is answered {other:?}"),
            })
    }

    /// Delete a job that is ready, delayed, buried, or reserved here. Durable when it has
    /// succeeded, as the policy says: the job never comes back.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn delete(&self, id: JobId) -> Pending<()> {
        self.0.run_as(Command::Delete(id), |answer, _| done(answer))
    }

    /// Delete many jobs, in order, with one write and one sync, unless they take longer than a turn
    /// of the engine. Each has its own result.
    ///
    /// # Errors
    /// For each: as for [`Session::delete`].
    pub fn delete_many(
        &self,
        ids: impl IntoIterator<Item = JobId>,
    ) -> Pending<Vec<Result<(), JobError>>> {
        let deletes = ids.into_iter().map(Command::Delete).collect();
        self.0.run_all_as(deletes, |answer, _| each(answer, done))
    }

    /// Delete at most 1,000 jobs that are ready, delayed, buried, or reserved here: after a crash all of
    /// them are gone or none. Gives those that were not found. Durable when it has succeeded, as the
    /// policy says.
    ///
    /// # Errors
    /// [`JobError::TooMany`]; [`JobError::OutOfSpace`], and then nothing happened.
    pub fn delete_batch(&self, ids: impl IntoIterator<Item = JobId>) -> Pending<Vec<JobId>> {
        self.batch(Ok(OnEach::Delete), ids)
    }

    /// Give back at most 1,000 jobs that are reserved here, with a priority, after a delay, which is
    /// rounded up to a second: after a crash the log says that of all of them or of none. Gives those that
    /// are not reserved here. Durable when it has succeeded, as the policy says.
    ///
    /// # Errors
    /// [`JobError::TooMany`], [`JobError::TooLong`]; [`JobError::OutOfSpace`], and then nothing happened.
    pub fn release_batch(
        &self,
        ids: impl IntoIterator<Item = JobId>,
        pri: u32,
        delay: Duration,
    ) -> Pending<Vec<JobId>> {
        let release = whole_seconds(delay).map(|delay| OnEach::Release { pri, delay });
        self.batch(release, ids)
    }

    /// Restart the time to run of at most 1,000 jobs that are reserved here. Gives those that are not.
    /// Nothing durable.
    ///
    /// # Errors
    /// [`JobError::TooMany`].
    pub fn touch_batch(&self, ids: impl IntoIterator<Item = JobId>) -> Pending<Vec<JobId>> {
        self.batch(Ok(OnEach::Touch), ids)
    }

    fn batch(
        &self,
        on_each: Result<OnEach, JobError>,
        ids: impl IntoIterator<Item = JobId>,
    ) -> Pending<Vec<JobId>> {
        let ids = ids.into_iter().collect();
        let batch = on_each.map(|on_each| Command::Batch { on_each, ids });
        self.0.try_as(batch, |answer, _| match answer {
            Answer::AllBut(missing) => Ok(missing),
            other => unreachable!("a batch is answered {other:?}"),
        })
    }

    /// Give back a job that is reserved here, with a priority, after a delay, which is rounded up to a
    /// second. Durable when it has succeeded, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::TooLong`], [`JobError::OutOfSpace`].
    pub fn release(&self, id: JobId, pri: u32, delay: Duration) -> Pending<()> {
        let command = door::release(id, pri, delay);
        self.0.try_as(command, |answer, _| done(answer))
    }

    /// Set a job that is reserved here aside until it is kicked. Durable when it has succeeded, as
    /// the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn bury(&self, id: JobId, pri: u32) -> Pending<()> {
        let command = Command::Bury { id, pri };
        self.0.run_as(command, |answer, _| done(answer))
    }

    /// Say what went wrong with a job that is reserved here, in at most 4,096 bytes, which need not be
    /// text. Its tube's policy says what becomes of it; without one it is ready at once. Gives the
    /// dead-letter tube if it has come there. Durable when it has succeeded, as the policy of syncs says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::TooBig`], [`JobError::OutOfSpace`].
    pub fn fail(&self, id: JobId, text: impl Into<Vec<u8>>) -> Pending<Option<Box<str>>> {
        let text = text.into().into();
        let fail = Command::Fail { id, text };
        self.0.run_as(fail, |answer, _| match answer {
            Answer::DeadLettered(tube) => Ok(Some(tube)),
            answer => done(answer).map(|()| None),
        })
    }

    /// The same as [`Session::bury`], with the reason, in at most 4,096 bytes, which need not be text.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::TooBig`], [`JobError::OutOfSpace`].
    pub fn bury_with_reason(&self, id: JobId, pri: u32, text: impl Into<Vec<u8>>) -> Pending<()> {
        let text = text.into().into();
        let bury = Command::BuryWithReason { id, pri, text };
        self.0.run_as(bury, |answer, _| done(answer))
    }

    /// Have a job that is ready, delayed, buried, or reserved here in another tube from now on, in the
    /// state that it has. Durable when it has succeeded, as the policy of syncs says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::BadTubeName`], [`JobError::OutOfSpace`].
    pub fn move_job(&self, id: JobId, tube: &str) -> Pending<()> {
        let tube = tube.to_owned().into();
        let command = Command::MoveJob { id, tube };
        self.0.run_as(command, |answer, _| done(answer))
    }

    /// Delete all jobs of a tube that are in these states, however many they are, but no reserved ones.
    /// Gives how many. Durable when it has succeeded, as the policy of syncs says; after a crash before
    /// that, all of them are gone or none. Their memory is freed afterwards, a few at a time.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::OutOfSpace`].
    pub fn clear_tube(&self, tube: &str, states: ClearedStates) -> Pending<u64> {
        let tube = tube.to_owned().into();
        let clear = Command::ClearTube { tube, states };
        self.0.run_as(clear, |answer, _| match answer {
            Answer::Count(count) => Ok(count),
            other => unreachable!("a clear is answered {other:?}"),
        })
    }

    /// Set the policy of a tube, or of the tubes that match a pattern and have none of their own: a line
    /// such as `delivery-limit=8 retry-min=5`, which replaces the one before; an empty one removes it.
    /// Durable when it has succeeded, as the policy of syncs says; then [`JobError::OutOfSpace`] may say
    /// that there are too many.
    ///
    /// # Errors
    /// What is wrong with the name or the line.
    pub fn set_policy(&self, tubes: &str, policy: &str) -> Result<Pending<()>, UsageError> {
        let set = SetPolicy {
            tubes: policy::tubes(tubes)?,
            policy: policy.parse()?,
        };
        let set = Command::SetPolicy(Box::new(set));
        Ok(self.0.run_as(set, |answer, _| done(answer)))
    }

    /// Put a job again and again, at the times that a schedule says. If there is one of this name, this
    /// one takes its place; one that is paused stays so. See `docs/schedules.md`. Durable when it has
    /// succeeded, as the policy says.
    ///
    /// # Errors
    /// What is wrong with the name or the schedule. The call's: [`JobError::OutOfSpace`] if there are
    /// too many; [`JobError::TooBig`] by its body.
    pub fn set_schedule(&self, name: &str, schedule: &Schedule) -> Result<Pending<()>, UsageError> {
        schedule::check_name(name)?;
        schedule.encode()?;
        let set = Command::ScheduleSet(Box::new(SetSchedule {
            name: name.to_owned(),
            schedule: schedule.clone(),
            keeps_pause: true,
        }));
        Ok(self.0.run_as(set, |answer, _| done(answer)))
    }

    /// Remove a schedule. Jobs that it has put stay. Durable when it has succeeded, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn delete_schedule(&self, name: &str) -> Pending<()> {
        let command = Command::ScheduleDelete(name.to_owned().into());
        self.0.run_as(command, |answer, _| done(answer))
    }

    /// Put the job of a schedule now, also of one that is paused. When it fires next stays the same. Gives
    /// the job that has the key of the schedule, if there is one: then nothing is put. Durable when it has
    /// succeeded, as the policy says.
    ///
    /// ```
    /// use bsd::{Inserted, Queue, Schedule};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let queue = Queue::open(dir.path())?;
    /// let report = Schedule {
    ///     cron: "0 8 * * 1-5".to_owned(),
    ///     tube: "mail".to_owned(),
    ///     body: b"daily-report".to_vec(),
    ///     ..Schedule::default()
    /// };
    /// queue.set_schedule("report", &report)?.wait()?;
    ///
    /// queue.pause_schedule("report").wait()?; // it fires no more
    /// let put = queue.run_schedule("report").wait()?; // but its job can be put
    /// assert!(matches!(put, Inserted::New(_)));
    /// assert_eq!(queue.peek_ready("mail").wait()?.body, b"daily-report");
    /// queue.resume_schedule("report").wait()?;
    /// # queue.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`], [`JobError::Draining`].
    pub fn run_schedule(&self, name: &str) -> Pending<Inserted> {
        let name = name.to_owned();
        let run = move |slice: &mut Slice<'_>| match slice.run_schedule_now(&name)? {
            ScheduleRun::Put(id) => Ok(Answer::Inserted(id)),
            ScheduleRun::Exists(id) => Ok(Answer::Exists(id)),
            ScheduleRun::NotFound => Err(JobError::NotFound),
            ScheduleRun::NoRoom => Err(JobError::OutOfSpace),
            ScheduleRun::Draining => Err(JobError::Draining),
        };
        self.0.run_once_as(run, |answer, _| put_or_not(answer))
    }

    /// Have a schedule put nothing until it is resumed; nothing is made up for later. Durable when it has
    /// succeeded, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn pause_schedule(&self, name: &str) -> Pending<()> {
        self.set_paused(name, true)
    }

    /// Have a schedule put its jobs again, from now on. Durable when it has succeeded, as the policy says.
    ///
    /// # Errors
    /// As for [`Session::pause_schedule`].
    pub fn resume_schedule(&self, name: &str) -> Pending<()> {
        self.set_paused(name, false)
    }

    fn set_paused(&self, name: &str, is_paused: bool) -> Pending<()> {
        let name = name.to_owned();
        let pause = move |slice: &mut Slice<'_>| match slice.pause_schedule(&name, is_paused)? {
            ScheduleChange::Done => Ok(Answer::Done),
            ScheduleChange::NotFound => Err(JobError::NotFound),
            // It was one before.
            ScheduleChange::NoRoom | ScheduleChange::Refused(_) => Err(JobError::OutOfSpace),
        };
        self.0.run_once_as(pause, |answer, _| done(answer))
    }

    /// Restart the time to run of a job that is reserved here. Nothing durable.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn touch(&self, id: JobId) -> Pending<()> {
        self.0.run_as(Command::Touch(id), |answer, _| done(answer))
    }

    /// Make a buried or delayed job ready. Durable when it has succeeded, as the policy says.
    ///
    /// # Errors
    /// [`JobError::NotFound`], [`JobError::OutOfSpace`].
    pub fn kick_job(&self, id: JobId) -> Pending<()> {
        self.0
            .run_as(Command::KickJob(id), |answer, _| done(answer))
    }

    /// Make at most `bound` jobs of a tube ready: buried ones or, without buried ones, delayed ones.
    /// Gives how many. Durable then, as the policy says; after a crash before that, all of them or
    /// none. Later calls of this session wait for its end.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`].
    pub fn kick(&self, tube: &str, bound: u32) -> Pending<u64> {
        self.0.kick(tube, bound)
    }

    /// Pause a tube for this time, which is rounded up to a second: none of its jobs is handed out.
    /// [`Duration::ZERO`] ends a pause. Durable when it has succeeded, as the policy says.
    ///
    /// # Errors
    /// [`JobError::BadTubeName`], [`JobError::TooLong`]; [`JobError::NotFound`] when there is no such tube.
    pub fn pause(&self, tube: &str, time: Duration) -> Pending<()> {
        let tube = tube.to_owned().into();
        let pause = whole_seconds(time).map(|delay| Command::PauseTube { tube, delay });
        self.0.try_as(pause, |answer, _| done(answer))
    }

    /// A job with its body, whatever its state.
    ///
    /// # Errors
    /// [`JobError::NotFound`]; [`JobError::Damaged`].
    pub fn peek(&self, id: JobId) -> Pending<Job> {
        self.0.run_as(Command::Peek(id), |answer, _| found(answer))
    }

    /// The next ready job of a tube.
    ///
    /// # Errors
    /// [`JobError::NotFound`]: no job has this id. [`JobError::BadTubeName`], [`JobError::Damaged`].
    pub fn peek_ready(&self, tube: &str) -> Pending<Job> {
        let command = Command::PeekReady(Some(tube.to_owned().into()));
        self.0.run_as(command, |answer, _| found(answer))
    }

    /// The delayed job of a tube that is due next.
    ///
    /// # Errors
    /// As for [`Session::peek_ready`].
    pub fn peek_delayed(&self, tube: &str) -> Pending<Job> {
        let command = Command::PeekDelayed(Some(tube.to_owned().into()));
        self.0.run_as(command, |answer, _| found(answer))
    }

    /// The first buried job of a tube.
    ///
    /// # Errors
    /// As for [`Session::peek_ready`].
    pub fn peek_buried(&self, tube: &str) -> Pending<Job> {
        let command = Command::PeekBuried(Some(tube.to_owned().into()));
        self.0.run_as(command, |answer, _| found(answer))
    }

    /// A page of the jobs of a tube that are in one state: the first one, or the one behind `after`, which
    /// is [`JobPage::next`] of the page before. Ready, delayed and buried jobs are in the order of their
    /// turn. It has at most `limit` jobs, and 1,000; it may have fewer, or none, and not be the last one. A
    /// job that changes its state between two pages may be passed by, or be on both.
    ///
    /// # Errors
    /// [`JobError::NotFound`] when there is no such tube, or when `after` stands at a job that is no longer
    /// buried: begin again. [`JobError::BadTubeName`].
    pub fn list_jobs(
        &self,
        tube: &str,
        state: JobState,
        after: Option<Cursor>,
        limit: u16,
    ) -> Pending<JobPage> {
        let list = ListJobs {
            tube: tube.to_owned().into(),
            state,
            after,
            limit: limit.clamp(1, PAGE_MAX),
        };
        let list = Command::ListJobs(Box::new(list));
        self.0.run_as(list, |answer, _| match answer {
            Answer::Jobs(page) => Ok(page),
            other => unreachable!("a list is answered {other:?}"),
        })
    }

    /// A page of the jobs that a search finds: the first one, or the one behind `after`, which is
    /// [`SearchPage::next`] of the page before. It has at most `limit` jobs, and 1,000, and ends earlier when
    /// 64 MiB of bodies were read: it may have fewer jobs, or none, and not be the last one. The engine
    /// does other calls meanwhile. Jobs that are put after the begin of a page are not on it; one that
    /// changes its state meanwhile may be passed by, or be found twice. If a buried job at which a page ended
    /// is buried no more, the next page begins with the first buried job of its tube. Dropping the call ends
    /// the search.
    ///
    /// ```
    /// use bsd::{PutOptions, Queue, Search};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let queue = Queue::open(dir.path())?;
    /// let id = queue.put("mail", "order 4711", PutOptions::default()).wait()?;
    /// queue.put("mail", "order 4712", PutOptions::default()).wait()?;
    ///
    /// let search = Search {
    ///     contains: b"4711".to_vec(),
    ///     ..Search::default()
    /// };
    /// let page = queue.search(&search, None, 100)?.wait()?;
    /// assert_eq!((page.jobs, page.next), (vec![id], None));
    /// # queue.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What is wrong with the search, or that `after` is of another one. The call's: those of all calls.
    pub fn search(
        &self,
        search: &Search,
        after: Option<&SearchCursor>,
        limit: u16,
    ) -> Result<Pending<SearchPage>, UsageError> {
        let mut searching = Searching::new(search, after, limit)?;
        let step = move |slice: &mut Slice<'_>| searching.step(slice);
        Ok(self.0.run_steps_as(step, |answer, _| match answer {
            Answer::Searched(page) => Ok(page),
            other => unreachable!("a search is answered {other:?}"),
        }))
    }

    /// The tubes that exist, in no particular order: `default`, and those with a job, a watcher or a
    /// pause. All of them at once, as strings of the caller; the engine's thread does not copy them.
    pub fn list_tubes(&self) -> Pending<Vec<String>> {
        self.0.run_as(Command::ListTubes, |answer, _| match answer {
            Answer::Tubes(tubes) => Ok(tubes.names_from(0).map(str::to_owned).collect()),
            other => unreachable!("a list of tubes is answered {other:?}"),
        })
    }

    /// The figures of the whole queue.
    pub fn stats(&self) -> Pending<Stats> {
        self.0
            .run_as(Command::Stats, |answer, _| match report(answer) {
                Report::Stats(stats) => Ok(*stats),
                other => unreachable!("figures of the queue are {other:?}"),
            })
    }

    /// The figures of a tube.
    ///
    /// # Errors
    /// [`JobError::NotFound`] when there is no such tube; [`JobError::BadTubeName`].
    pub fn stats_tube(&self, tube: &str) -> Pending<TubeStats> {
        let command = Command::StatsTube(tube.to_owned().into());
        self.0.run_as(command, |answer, _| match report(answer) {
            Report::Tube(stats) => Ok(stats),
            other => unreachable!("figures of a tube are {other:?}"),
        })
    }

    /// The figures of a job.
    ///
    /// ```
    /// use bsd::{JobState, PutOptions, Queue};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let queue = Queue::open(dir.path())?;
    /// let id = queue.put("mail", "to: you", PutOptions::default()).wait()?;
    ///
    /// let stats = queue.stats_job(id).wait()?;
    /// assert_eq!((stats.tube.as_str(), stats.state), ("mail", JobState::Ready));
    /// assert_eq!((stats.reserves, stats.time_left), (0, None));
    /// # queue.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn stats_job(&self, id: JobId) -> Pending<JobStats> {
        let command = Command::StatsJob(id);
        self.0.run_as(command, |answer, _| match report(answer) {
            Report::Job(stats) => Ok(stats),
            other => unreachable!("figures of a job are {other:?}"),
        })
    }

    /// What a job has beyond a plain one, and why its last delivery failed.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn stats_job_extended(&self, id: JobId) -> Pending<ExtendedJobStats> {
        let command = Command::StatsJobExtended(id);
        self.0.run_as(command, |answer, _| match report(answer) {
            Report::ExtendedJob(stats) => Ok(*stats),
            other => unreachable!("more of a job is {other:?}"),
        })
    }

    /// The policy of a tube, which need not exist, and what it has done.
    ///
    /// # Errors
    /// [`JobError::NotFound`] without a policy; [`JobError::BadTubeName`].
    pub fn stats_policy(&self, tube: &str) -> Pending<PolicyStats> {
        let command = Command::StatsPolicy(tube.to_owned().into());
        self.0.run_as(command, |answer, _| match report(answer) {
            Report::Policy(stats) => Ok(*stats),
            other => unreachable!("figures of a policy are {other:?}"),
        })
    }

    /// A schedule, how far it has come, and when it fires next.
    ///
    /// # Errors
    /// [`JobError::NotFound`].
    pub fn stats_schedule(&self, name: &str) -> Pending<ScheduleStats> {
        let command = Command::StatsSchedule(name.to_owned().into());
        self.0.run_as(command, |answer, _| match report(answer) {
            Report::Schedule(stats) => Ok(*stats),
            other => unreachable!("figures of a schedule are {other:?}"),
        })
    }
}

pub(super) fn inserted(answer: Answer) -> Result<JobId, JobError> {
    match answer {
        Answer::Inserted(id) => Ok(id),
        other => unreachable!("a put is answered {other:?}"),
    }
}

fn put_or_not(answer: Answer) -> Result<Inserted, JobError> {
    match answer {
        Answer::Inserted(id) => Ok(Inserted::New(id)),
        Answer::Exists(id) => Ok(Inserted::Exists(id)),
        other => unreachable!("a put is answered {other:?}"),
    }
}

pub(super) fn done(answer: Answer) -> Result<(), JobError> {
    match answer {
        Answer::Done => Ok(()),
        other => unreachable!("what is done is answered {other:?}"),
    }
}

pub(super) fn count(answer: Answer) -> Result<u64, JobError> {
    match answer {
        Answer::Count(count) => Ok(count),
        other => unreachable!("what is counted is answered {other:?}"),
    }
}

pub(super) fn found(answer: Answer) -> Result<Job, JobError> {
    match answer {
        Answer::Found(job) => Ok(job),
        other => unreachable!("a peek is answered {other:?}"),
    }
}

fn report(answer: Answer) -> Report {
    match answer {
        Answer::Report(report) => report,
        other => unreachable!("what is reported is answered {other:?}"),
    }
}

fn each<T>(
    answer: Answer,
    one: fn(Answer) -> Result<T, JobError>,
) -> Result<Vec<Result<T, JobError>>, JobError> {
    let of = |outcome: Outcome| outcome.and_then(one);
    match answer {
        Answer::Batch(outcomes) => Ok(outcomes.into_iter().map(of).collect()),
        other => unreachable!("a batch is answered {other:?}"),
    }
}
