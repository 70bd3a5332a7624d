//! The methods of the clients of a list: written once, for the blocking one and the asynchronous one.
//!
//! A client of a list has `servers`, `watched`, `turn`, a `member` of each server, `at` for the client of
//! a server that is to be used now, and `noted` for what a call at it has ended with.

macro_rules! methods {
    ($client:ident [$($asyncness:tt)?] [$($awaiting:tt)*]) => {
        /// Put a job into its tube, or into `default`, at the server on which the tube is.
        ///
        /// # Errors
        #[doc = concat!("As for [`", stringify!($client), "::put`];")]
        /// [`Connect`](crate::ErrorKind::Connect): that server is away.
        pub $($asyncness)? fn put(&mut self, put: Put) -> Result<Inserted> {
            let tube = put.tube.clone().unwrap_or_else(|| "default".to_owned());
            let index = self.servers.index_of(&tube);
            let result = self.at(index) $($awaiting)* ?.put(put.tube(tube)) $($awaiting)*;
            self.noted(index, result)
        }

        /// The same with `put-with`, whatever the job says.
        ///
        /// # Errors
        /// As for [`put`](Self::put); [`Unsupported`](crate::ErrorKind::Unsupported).
        pub $($asyncness)? fn put_with(&mut self, put: Put) -> Result<Inserted> {
            let tube = put.tube.clone().unwrap_or_else(|| "default".to_owned());
            let index = self.servers.index_of(&tube);
            let result = self.at(index) $($awaiting)* ?.put_with(put.tube(tube)) $($awaiting)*;
            self.noted(index, result)
        }

        /// Reserve jobs of these tubes alone, from now on. They are watched at all servers: jobs that are
        /// left on one, from before the list was changed, are found too.
        ///
        /// # Errors
        /// [`Usage`](crate::ErrorKind::Usage): no tube, or no name of one.
        pub fn watch_only<T: AsRef<str>>(
            &mut self,
            tubes: impl IntoIterator<Item = T>,
        ) -> Result<()> {
            let tubes: Vec<String> = tubes.into_iter().map(|it| it.as_ref().to_owned()).collect();
            for tube in &tubes {
                check_tube(tube)?;
            }
            match tubes.is_empty() {
                true => Err(Error::usage("there is no tube to watch")),
                false => {
                    self.watched = tubes;
                    Ok(())
                }
            }
        }

        /// What a reserve has ended with: the server behind the one that gave a job is the next to be
        /// asked first.
        fn over(&mut self, round: Round) -> Result<Option<ServerJob>> {
            let is_any_here = self.members().any(Member::is_here);
            let found = round.result(is_any_here)?;
            Ok(found.map(|(server, job)| {
                self.turn = (server + 1) % self.servers.list.len();
                ServerJob { job, server }
            }))
        }

        /// Delete a job.
        ///
        /// # Errors
        #[doc = concat!("As for [`", stringify!($client), "::delete`].")]
        pub $($asyncness)? fn delete(&mut self, job: &ServerJob) -> Result<()> {
            let result = self.of(job) $($awaiting)* ?.delete(job.job.id) $($awaiting)*;
            self.noted(job.server, result)
        }

        /// Give a job back that was reserved here, with a priority, ready after `delay`.
        ///
        /// # Errors
        #[doc = concat!("As for [`", stringify!($client), "::release`].")]
        pub $($asyncness)? fn release(
            &mut self,
            job: &ServerJob,
            pri: u32,
            delay: Duration,
        ) -> Result<()> {
            let client = self.of(job) $($awaiting)* ?;
            let result = client.release(job.job.id, pri, delay) $($awaiting)*;
            self.noted(job.server, result)
        }

        /// Set a job aside that was reserved here.
        ///
        /// # Errors
        #[doc = concat!("As for [`", stringify!($client), "::bury`].")]
        pub $($asyncness)? fn bury(&mut self, job: &ServerJob, pri: u32) -> Result<()> {
            let result = self.of(job) $($awaiting)* ?.bury(job.job.id, pri) $($awaiting)*;
            self.noted(job.server, result)
        }

        /// Restart the time to run of a job that was reserved here.
        ///
        /// # Errors
        #[doc = concat!("As for [`", stringify!($client), "::touch`].")]
        pub $($asyncness)? fn touch(&mut self, job: &ServerJob) -> Result<()> {
            let result = self.of(job) $($awaiting)* ?.touch(job.job.id) $($awaiting)*;
            self.noted(job.server, result)
        }

        /// Say that a job could not be done, and why.
        ///
        /// # Errors
        #[doc = concat!("As for [`", stringify!($client), "::fail`].")]
        pub $($asyncness)? fn fail(
            &mut self,
            job: &ServerJob,
            text: impl AsRef<[u8]>,
        ) -> Result<Failed> {
            let result = self.of(job) $($awaiting)* ?.fail(job.job.id, text) $($awaiting)*;
            self.noted(job.server, result)
        }

        /// The client of the server on which this tube is.
        ///
        /// # Errors
        /// [`Connect`](crate::ErrorKind::Connect): the server is away.
        pub $($asyncness)? fn on(&mut self, tube: &str) -> Result<&mut $client> {
            let index = self.servers.index_of(tube);
            self.at(index) $($awaiting)*
        }

        /// The client of the server of a job.
        ///
        /// # Errors
        /// [`Connect`](crate::ErrorKind::Connect): the server is away.
        pub $($asyncness)? fn of(&mut self, job: &ServerJob) -> Result<&mut $client> {
            self.at(job.server) $($awaiting)*
        }

        /// The name of the server that a job is on.
        #[must_use]
        pub fn server_of(&self, job: &ServerJob) -> &str {
            &self.servers.list[job.server].0
        }
    };
}

pub(super) use methods;
