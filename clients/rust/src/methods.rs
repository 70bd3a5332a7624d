//! The methods of the clients: written once, for the blocking client and the asynchronous one.
//!
//! A client has `run` for one call, `run_all` for several that are sent together, `ready` and
//! `connect_now` to be connected, and `link`.

macro_rules! methods {
    ([$($asyncness:tt)?] [$($awaiting:tt)*]) => {
        /// The extended commands of the server, as it tells them to this connection. beanstalkd has none.
        ///
        /// # Errors
        /// No connection can be made.
        pub $($asyncness)? fn capabilities(&mut self) -> Result<&[String]> {
            self.ready() $($awaiting)* ?;
            Ok(self.link.capabilities())
        }

        /// Whether the server lists this command among its [`capabilities`](Self::capabilities).
        ///
        /// # Errors
        /// No connection can be made.
        pub $($asyncness)? fn supports(&mut self, command: &str) -> Result<bool> {
            self.ready() $($awaiting)* ?;
            Ok(self.link.capabilities().iter().any(|it| it == command))
        }

        /// Send a token, now and on each later connection, in place of the one that was configured.
        /// `false`: the server asks for none.
        ///
        /// # Errors
        /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized): the token is wrong. The server closes
        /// the connection then.
        pub $($asyncness)? fn auth(&mut self, token: &str) -> Result<bool> {
            let is_asked_for = self.run(calls::auth(token)?) $($awaiting)* ?;
            self.run(calls::capabilities()) $($awaiting)* ?;
            Ok(is_asked_for)
        }

        /// Put a job, as durable when it is answered as the server's sync policy says.
        ///
        /// With a tube, a key, a group or a time it is `put-with` where the server has that. If not,
        /// the tube is used first, the time becomes a delay, and a key or a group is refused as
        /// [`Unsupported`](crate::ErrorKind::Unsupported).
        ///
        /// # Errors
        /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), [`Draining`](crate::ErrorKind::Draining),
        /// [`JobTooBig`](crate::ErrorKind::JobTooBig); [`Unanswered`](crate::ErrorKind::Unanswered) if
        /// the connection ended. Only a put with a key that lasts until the delete is sent again.
        pub $($asyncness)? fn put(&mut self, put: Put) -> Result<Inserted> {
            let is_plain = put.tube.is_none() && put.at.is_none() && !put.has_key_or_group();
            if is_plain || self.must_put_plainly(&put) $($awaiting)* ? {
                return self.run(calls::put(&put)?) $($awaiting)*;
            }
            self.run(calls::put_with(&put)?) $($awaiting)*
        }

        /// Put a job with `put-with`, whatever it says.
        ///
        /// # Errors
        /// As for [`put`](Self::put); [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn put_with(&mut self, put: Put) -> Result<Inserted> {
            self.run(calls::put_with(&put)?) $($awaiting)*
        }

        /// Put many jobs: all are sent at once, and each has its own result.
        ///
        /// # Errors
        /// An argument is wrong, or no connection can be made: nothing was sent. For each: as for
        /// [`put`](Self::put).
        pub $($asyncness)? fn put_many(&mut self, puts: &[Put]) -> Result<Vec<Result<Inserted>>> {
            self.ready() $($awaiting)* ?;
            if self.link.capabilities().iter().any(|it| it == "put-with") {
                let one = |put: &Put| match put.tube.is_none() && put.at.is_none() && !put.has_key_or_group() {
                    true => calls::put(put),
                    false => calls::put_with(put),
                };
                let puts: Result<Vec<_>> = puts.iter().map(one).collect();
                return self.run_all(puts?) $($awaiting)*;
            }
            let mut results = Vec::with_capacity(puts.len());
            for puts in puts.chunk_by(|one, other| one.tube == other.tube) {
                if let Some(put) = puts.iter().find(|put| put.has_key_or_group() || put.tube.is_some()) {
                    self.must_put_plainly(put) $($awaiting)* ?;
                }
                if puts.iter().any(Put::has_key_or_group) {
                    return Err(Error::unsupported("put-with"));
                }
                let puts: Result<Vec<_>> = puts.iter().map(calls::put).collect();
                results.extend(self.run_all(puts?) $($awaiting)* ?);
            }
            Ok(results)
        }

        /// Whether a put must be a plain one, because the server has no other; then its tube is used.
        $($asyncness)? fn must_put_plainly(&mut self, put: &Put) -> Result<bool> {
            if self.supports("put-with") $($awaiting)* ? {
                return Ok(false);
            }
            if put.has_key_or_group() {
                return Err(Error::unsupported("put-with"));
            }
            match &put.tube {
                Some(tube) if !self.link.uses(tube) => {
                    self.run(calls::use_tube(tube)?) $($awaiting)* ?;
                }
                _ => {}
            }
            Ok(true)
        }

        /// Use a tube: puts without a tube go there. At first it is `default`.
        ///
        /// # Errors
        /// [`Usage`](crate::ErrorKind::Usage): it is no name of a tube.
        pub $($asyncness)? fn use_tube(&mut self, tube: &str) -> Result<()> {
            self.run(calls::use_tube(tube)?) $($awaiting)* .map(|_| ())
        }

        /// Watch a tube: reserves take jobs from all watched tubes, at first only from `default`.
        /// Gives how many are watched.
        ///
        /// # Errors
        /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
        pub $($asyncness)? fn watch(&mut self, tube: &str) -> Result<u64> {
            self.run(calls::watch(tube)?) $($awaiting)*
        }

        /// Stop watching a tube. Gives how many are left.
        ///
        /// # Errors
        /// [`NotIgnored`](crate::ErrorKind::NotIgnored): it is the last one.
        pub $($asyncness)? fn ignore(&mut self, tube: &str) -> Result<u64> {
            self.run(calls::ignore(tube)?) $($awaiting)*
        }

        /// Reserve the most urgent ready job of the watched tubes, and wait for one, no longer than
        /// `wait`: whole seconds, rounded up. `None`: there was none.
        ///
        /// If the connection ends it is asked again: a job that was on its way is ready again then.
        ///
        /// # Errors
        /// [`DeadlineSoon`](crate::ErrorKind::DeadlineSoon).
        pub $($asyncness)? fn reserve(&mut self, wait: Duration) -> Result<Option<Job>> {
            self.run(calls::reserve(wait)?) $($awaiting)*
        }

        /// The same, and wait without an end: only the loss of the connection, and of all attempts to
        /// make a new one, ends it. If the machine of the server vanishes without a word nothing does, so
        /// [`reserve`](Self::reserve) is better where that may happen.
        ///
        /// # Errors
        /// [`DeadlineSoon`](crate::ErrorKind::DeadlineSoon).
        pub $($asyncness)? fn reserve_endlessly(&mut self) -> Result<Job> {
            self.run(calls::reserve_endlessly()) $($awaiting)*
        }

        /// Reserve this job, whatever its tube and state, unless it is reserved.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn reserve_job(&mut self, id: JobId) -> Result<Job> {
            self.run(calls::reserve_job(id)) $($awaiting)*
        }

        /// Reserve these jobs, each whatever its tube and state, unless it is reserved: all are asked
        /// for at once, and each has its own result.
        ///
        /// # Errors
        /// No connection can be made. For each: [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn reserve_jobs(&mut self, ids: &[JobId]) -> Result<Vec<Result<Job>>> {
            let calls = ids.iter().map(|id| calls::reserve_job(*id)).collect();
            self.run_all(calls) $($awaiting)*
        }

        /// Reserve several jobs: wait for the first one as [`reserve`](Self::reserve) does, then take
        /// those that are ready, `most` in all, 1 to 1,000, and 1 MiB of bodies. None: an empty list.
        ///
        /// Without `reserve-batch` they are reserved one after the other, until none is ready.
        ///
        /// # Errors
        /// [`DeadlineSoon`](crate::ErrorKind::DeadlineSoon).
        pub $($asyncness)? fn reserve_batch(&mut self, most: u16, wait: Duration) -> Result<Vec<Job>> {
            if self.supports("reserve-batch") $($awaiting)* ? {
                return self.run(calls::reserve_batch(most, wait)?) $($awaiting)*;
            }
            let first = self.run(calls::reserve(wait)?) $($awaiting)* ?;
            let mut jobs = Vec::from_iter(first);
            while !jobs.is_empty() && jobs.len() < usize::from(most) {
                match self.run(calls::reserve(Duration::ZERO)?) $($awaiting)* {
                    Ok(Some(job)) => jobs.push(job),
                    // What is reserved already is more than an error about the next one.
                    Ok(None) | Err(_) => break,
                }
            }
            Ok(jobs)
        }

        /// Delete a job that is ready, delayed, buried, or reserved by this connection.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound). If the connection ended the delete is sent once
        /// more; where the job is not found then, it is [`Unanswered`](crate::ErrorKind::Unanswered).
        pub $($asyncness)? fn delete(&mut self, id: JobId) -> Result<()> {
            self.run(calls::delete(id)) $($awaiting)*
        }

        /// Give back a job that this connection has reserved, with a priority, ready after `delay`.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound), [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
        pub $($asyncness)? fn release(&mut self, id: JobId, pri: u32, delay: Duration) -> Result<()> {
            self.run(calls::release(id, pri, delay)?) $($awaiting)*
        }

        /// Set a job that this connection has reserved aside until it is kicked.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound), [`OutOfMemory`](crate::ErrorKind::OutOfMemory).
        pub $($asyncness)? fn bury(&mut self, id: JobId, pri: u32) -> Result<()> {
            self.run(calls::bury(id, pri)) $($awaiting)*
        }

        /// The same, and say why, in at most 4,096 bytes.
        ///
        /// # Errors
        /// As for [`bury`](Self::bury); [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn bury_with_reason(
            &mut self,
            id: JobId,
            pri: u32,
            text: impl AsRef<[u8]>,
        ) -> Result<()> {
            self.run(calls::bury_with_reason(id, pri, text.as_ref())?) $($awaiting)*
        }

        /// Restart the time to run of a job that this connection has reserved.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound): its time was over.
        pub $($asyncness)? fn touch(&mut self, id: JobId) -> Result<()> {
            self.run(calls::touch(id)) $($awaiting)*
        }

        /// Say that a job could not be done, and why, in at most 4,096 bytes. The policy of its tube
        /// says what becomes of it; without one it is ready at once.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound), [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
        /// [`Unsupported`](crate::ErrorKind::Unsupported): release or bury it instead.
        pub $($asyncness)? fn fail(&mut self, id: JobId, text: impl AsRef<[u8]>) -> Result<Failed> {
            self.run(calls::fail(id, text.as_ref())?) $($awaiting)*
        }

        /// Delete at most 1,000 jobs, all or nothing across a crash. Gives those that were not found.
        ///
        /// Without `delete-batch` they are deleted one by one, all sent at once.
        ///
        /// # Errors
        /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory): nothing was done.
        pub $($asyncness)? fn delete_batch(&mut self, ids: &[JobId]) -> Result<Vec<JobId>> {
            if self.supports("delete-batch") $($awaiting)* ? {
                return self.run(calls::delete_batch(ids)?) $($awaiting)*;
            }
            let calls = ids.iter().map(|id| calls::delete(*id)).collect();
            not_found(ids, self.run_all(calls) $($awaiting)* ?)
        }

        /// Restart the time to run of at most 1,000 jobs. Gives those that are not reserved here.
        ///
        /// Without `touch-batch` they are touched one by one, all sent at once.
        ///
        /// # Errors
        /// No connection, or no answer in time.
        pub $($asyncness)? fn touch_batch(&mut self, ids: &[JobId]) -> Result<Vec<JobId>> {
            if self.supports("touch-batch") $($awaiting)* ? {
                return self.run(calls::touch_batch(ids)?) $($awaiting)*;
            }
            let calls = ids.iter().map(|id| calls::touch(*id)).collect();
            not_found(ids, self.run_all(calls) $($awaiting)* ?)
        }

        /// Give back at most 1,000 jobs, all or nothing across a crash. Gives those that are not
        /// reserved here.
        ///
        /// Without `release-batch` they are released one by one, all sent at once.
        ///
        /// # Errors
        /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory): nothing was done.
        pub $($asyncness)? fn release_batch(
            &mut self,
            ids: &[JobId],
            pri: u32,
            delay: Duration,
        ) -> Result<Vec<JobId>> {
            if self.supports("release-batch") $($awaiting)* ? {
                return self.run(calls::release_batch(ids, pri, delay)?) $($awaiting)*;
            }
            let calls: Result<_> = ids.iter().map(|id| calls::release(*id, pri, delay)).collect();
            not_found(ids, self.run_all(calls?) $($awaiting)* ?)
        }

        /// Make at most `bound` jobs of the used tube ready: buried ones or, without those,
        /// delayed ones. Gives how many.
        ///
        /// # Errors
        /// [`Unanswered`](crate::ErrorKind::Unanswered).
        pub $($asyncness)? fn kick(&mut self, bound: u32) -> Result<u64> {
            self.run(calls::kick(bound)) $($awaiting)*
        }

        /// Make a buried or delayed job ready.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn kick_job(&mut self, id: JobId) -> Result<()> {
            self.run(calls::kick_job(id)) $($awaiting)*
        }

        /// Hand out no job of this tube for a time; zero ends a pause.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound): there is no such tube.
        pub $($asyncness)? fn pause_tube(&mut self, tube: &str, time: Duration) -> Result<()> {
            self.run(calls::pause(tube, time)?) $($awaiting)*
        }

        /// A job, whatever its state.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn peek(&mut self, id: JobId) -> Result<Job> {
            self.run(calls::peek(id)) $($awaiting)*
        }

        /// These jobs, whatever their states: all are asked for at once, and each has its own result.
        ///
        /// # Errors
        /// No connection can be made. For each: [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn peek_jobs(&mut self, ids: &[JobId]) -> Result<Vec<Result<Job>>> {
            let calls = ids.iter().map(|id| calls::peek(*id)).collect();
            self.run_all(calls) $($awaiting)*
        }

        /// The next ready job of the used tube.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound): no such job is there.
        pub $($asyncness)? fn peek_ready(&mut self) -> Result<Job> {
            self.run(calls::peek_next(State::Ready)) $($awaiting)*
        }

        /// The delayed job of the used tube that is due next.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound): no such job is there.
        pub $($asyncness)? fn peek_delayed(&mut self) -> Result<Job> {
            self.run(calls::peek_next(State::Delayed)) $($awaiting)*
        }

        /// The first buried job of the used tube.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound): no such job is there.
        pub $($asyncness)? fn peek_buried(&mut self) -> Result<Job> {
            self.run(calls::peek_next(State::Buried)) $($awaiting)*
        }

        /// The tube that is used, as the server says it.
        ///
        /// # Errors
        /// No connection, or no answer in time.
        pub $($asyncness)? fn used_tube(&mut self) -> Result<String> {
            self.run(calls::used_tube()) $($awaiting)*
        }

        /// The tubes that are watched, as the server says it.
        ///
        /// # Errors
        /// No connection, or no answer in time.
        pub $($asyncness)? fn watched_tubes(&mut self) -> Result<Vec<String>> {
            self.run(calls::watched_tubes()) $($awaiting)*
        }

        /// All tubes.
        ///
        /// # Errors
        /// [`NotAuthorized`](crate::ErrorKind::NotAuthorized): the token is for some tubes.
        pub $($asyncness)? fn tubes(&mut self) -> Result<Vec<String>> {
            self.run(calls::tubes()) $($awaiting)*
        }

        /// What is known of the server.
        ///
        /// # Errors
        /// No connection, or no answer in time.
        pub $($asyncness)? fn stats(&mut self) -> Result<ServerStats> {
            self.run(calls::stats()) $($awaiting)*
        }

        /// What is known of a tube.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn stats_tube(&mut self, tube: &str) -> Result<TubeStats> {
            self.run(calls::stats_tube(tube)?) $($awaiting)*
        }

        /// What is known of a job.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn stats_job(&mut self, id: JobId) -> Result<JobStats> {
            self.run(calls::stats_job(id)) $($awaiting)*
        }

        /// What is known of these jobs: all are asked for at once, and each has its own result.
        ///
        /// # Errors
        /// No connection can be made. For each: [`NotFound`](crate::ErrorKind::NotFound).
        pub $($asyncness)? fn stats_jobs(&mut self, ids: &[JobId]) -> Result<Vec<Result<JobStats>>> {
            let calls = ids.iter().map(|id| calls::stats_job(*id)).collect();
            self.run_all(calls) $($awaiting)*
        }

        /// What a job has beyond a plain one, and why its last delivery failed.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound), [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn stats_job_extended(&mut self, id: JobId) -> Result<ExtendedJobStats> {
            self.run(calls::stats_job_extended(id)) $($awaiting)*
        }

        /// What these jobs have beyond plain ones: all are asked for at once, and each has its own result.
        ///
        /// # Errors
        /// No connection can be made. For each: as for [`stats_job_extended`](Self::stats_job_extended).
        pub $($asyncness)? fn stats_jobs_extended(
            &mut self,
            ids: &[JobId],
        ) -> Result<Vec<Result<ExtendedJobStats>>> {
            let calls = ids.iter().map(|id| calls::stats_job_extended(*id)).collect();
            self.run_all(calls) $($awaiting)*
        }

        /// Delete all jobs of a tube that are in these states, but no reserved ones. Gives how many.
        ///
        /// # Errors
        /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory),
        /// [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn clear_tube(&mut self, tube: &str, states: Clear) -> Result<u64> {
            self.run(calls::clear(tube, states)?) $($awaiting)*
        }

        /// A page of the jobs of a tube that are in one state: the first one, or the one behind
        /// [`Page::next`] of the page before. At most `limit` jobs, 1 to 1,000; it may have fewer, or
        /// none, and not be the last one.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound): no such tube, or begin again at the first page;
        /// [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn list_jobs(
            &mut self,
            tube: &str,
            state: State,
            after: Option<&str>,
            limit: u16,
        ) -> Result<Page> {
            let after = after.unwrap_or("0");
            self.run(calls::list_jobs(tube, state, after, limit)?) $($awaiting)*
        }

        /// Have a job that is ready, delayed, buried, or reserved here in another tube, in its state.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound), [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn move_job(&mut self, id: JobId, tube: &str) -> Result<()> {
            self.run(calls::move_job(id, tube)?) $($awaiting)*
        }

        /// Set the policy of a tube, or of the tubes that match a pattern and have none of their own.
        /// The default removes it.
        ///
        /// # Errors
        /// [`BadFormat`](crate::ErrorKind::BadFormat): the values contradict each other;
        /// [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn set_policy(&mut self, tubes: &str, policy: &Policy) -> Result<()> {
            self.run(calls::set_policy(tubes, policy)?) $($awaiting)*
        }

        /// The policy that holds for a tube, and what it has done.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound): the tube has no policy;
        /// [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn stats_policy(&mut self, tube: &str) -> Result<PolicyStats> {
            self.run(calls::stats_policy(tube)?) $($awaiting)*
        }

        /// Have the server put a job again and again. A schedule of this name is replaced.
        ///
        /// # Errors
        /// [`BadFormat`](crate::ErrorKind::BadFormat): the expression or the time zone is not right;
        /// [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn set_schedule(&mut self, name: &str, schedule: &Schedule) -> Result<()> {
            self.run(calls::set_schedule(name, schedule)?) $($awaiting)*
        }

        /// Remove a schedule. Jobs that it has put stay.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound), [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn delete_schedule(&mut self, name: &str) -> Result<()> {
            self.run(calls::delete_schedule(name)?) $($awaiting)*
        }

        /// A schedule, and when it fires next.
        ///
        /// # Errors
        /// [`NotFound`](crate::ErrorKind::NotFound), [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn stats_schedule(&mut self, name: &str) -> Result<ScheduleStats> {
            self.run(calls::stats_schedule(name)?) $($awaiting)*
        }

        /// Connect, unless there is a connection. Each address is tried once.
        pub(crate) $($asyncness)? fn connect_once(&mut self) -> Result<()> {
            match self.link.is_up() {
                true => Ok(()),
                false => self.connect_now(false) $($awaiting)*,
            }
        }

        /// Watch these tubes and no others, from the next call on.
        pub(crate) fn watch_only(&mut self, tubes: &[String]) -> Result<()> {
            for tube in tubes {
                check_tube(tube)?;
            }
            self.link.watch_only(tubes);
            Ok(())
        }

        /// Give a job back that was reserved and not begun, with the priority that it has.
        pub(crate) $($asyncness)? fn give_back(&mut self, id: JobId, delay: Duration) -> Result<()> {
            let pri = self.stats_job(id) $($awaiting)* ?.pri;
            self.release(id, pri, delay) $($awaiting)*
        }

        pub(crate) fn has_capability(&self, command: &str) -> bool {
            self.link.capabilities().iter().any(|it| it == command)
        }

        /// Have later calls take this long at most: see [`Config::timeout`](crate::Config::timeout).
        pub fn set_timeout(&mut self, timeout: Duration) {
            self.link.set_timeout(timeout);
        }

        /// Whether this connection has reserved jobs that were not finished.
        #[must_use]
        pub fn is_holding_jobs(&self) -> bool {
            self.link.is_holding()
        }
    };
}

pub(crate) use methods;

use crate::error::{ErrorKind, Result};
use crate::job::JobId;

/// The jobs that were not found, of single commands in place of a batch; the first other error.
pub(crate) fn not_found(ids: &[JobId], results: Vec<Result<()>>) -> Result<Vec<JobId>> {
    let mut missing = Vec::new();
    for (id, result) in ids.iter().zip(results) {
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => missing.push(*id),
            Err(error) => return Err(error),
        }
    }
    Ok(missing)
}
