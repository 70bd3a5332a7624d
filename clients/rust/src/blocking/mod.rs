//! The blocking client.

mod pool;
mod stream;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use self::stream::Stream;
use crate::calls::{self, Call};
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Clear, Failed, Inserted, Job, JobId, Page, Put, State, check_tube};
use crate::link::{Link, Step};
use crate::methods::{methods, not_found};
use crate::policy::Policy;
use crate::reply::Reply;
use crate::request::Request;
use crate::schedule::Schedule;
use crate::stats::{
    ExtendedJobStats, JobStats, PolicyStats, ScheduleStats, ServerStats, TubeStats,
};

pub use self::pool::{Pool, Pooled};

/// Between looks whether a wait is over.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that are received at a time.
const RECEIVE_SIZE: usize = 32 * 1024;

/// A connection to a server, or to the member of a cluster that answers.
///
/// Each call waits for its answer, no longer than [`Config::timeout`] says. If the connection was lost,
/// the next call makes a new one, which uses and watches the same tubes. Jobs that the old one had
/// reserved are ready again then.
///
/// What was sent and not answered is sent once more only where that is safe: everything that only asks,
/// `use`, `watch`, `ignore`, `pause-tube`, reserves, `set-policy`, `schedule-set`, `delete`, and a put with
/// a key that is unique until the delete. Other calls return
/// [`Unanswered`](crate::ErrorKind::Unanswered). What was not sent as a whole is always sent again.
///
/// ```no_run
/// use bsd_client::{Client, Put};
/// use std::time::Duration;
///
/// let mut client = Client::connect("127.0.0.1:11300")?;
/// client.put(Put::new("to: you").tube("mail"))?;
///
/// client.watch("mail")?;
/// if let Some(job) = client.reserve(Duration::from_secs(5))? {
///     println!("{}", String::from_utf8_lossy(&job.body));
///     client.delete(job.id)?;
/// }
/// # Ok::<(), bsd_client::Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    link: Link,
    stream: Option<Stream>,
    buffer: Vec<u8>,
}

impl Client {
    /// Connect to the server at this address, or to one of several: see [`Config`]. Each address is tried
    /// once.
    ///
    /// # Errors
    /// [`Connect`](crate::ErrorKind::Connect), [`NotAuthorized`](crate::ErrorKind::NotAuthorized).
    pub fn connect<C>(config: C) -> Result<Client>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let mut client = Client::new(config.try_into()?);
        client.connect_now(false)?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    #[must_use]
    pub fn new(config: Config) -> Client {
        Client {
            link: Link::new(config, Instant::now()),
            stream: None,
            buffer: vec![0; RECEIVE_SIZE],
        }
    }

    methods!([] []);

    fn ready(&mut self) -> Result<()> {
        self.leave_if_closed();
        match self.link.is_up() {
            true => Ok(()),
            false => self.connect_now(true),
        }
    }

    /// The question is asked again only because the work must be something.
    fn connect_now(&mut self, is_patient: bool) -> Result<()> {
        let Call { request, read } = calls::capabilities();
        self.link.begin(vec![request], Instant::now(), is_patient);
        self.work(false);
        self.link.take().remove(0).and_then(read).map(|_| ())
    }

    pub(crate) fn run<T>(&mut self, call: Call<T>) -> Result<T> {
        let reply = self.exchange(vec![call.request]).remove(0)?;
        self.checked((call.read)(reply))
    }

    /// After a reply that is to something else, what follows cannot be understood.
    fn checked<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result
            && error.kind() == ErrorKind::Protocol
        {
            self.close();
        }
        result
    }

    fn run_all<T>(&mut self, calls: Vec<Call<T>>) -> Result<Vec<Result<T>>> {
        let (requests, reads): (Vec<_>, Vec<_>) = {
            let parts = calls.into_iter().map(|call| (call.request, call.read));
            parts.unzip()
        };
        let replies = self.exchange(requests).into_iter().zip(reads);
        Ok(replies
            .map(|(reply, read)| self.checked(reply.and_then(read)))
            .collect())
    }

    fn exchange(&mut self, requests: Vec<Request>) -> Vec<Result<Reply>> {
        self.leave_if_closed();
        self.link.begin(requests, Instant::now(), true);
        self.work(false);
        self.link.take()
    }

    /// The server may have closed a connection while it was idle: then nothing is sent on it.
    fn leave_if_closed(&mut self) {
        let is_closed = || self.stream.as_ref().is_none_or(Stream::is_closed);
        if self.link.was_idle(Instant::now()) && is_closed() {
            self.link.close();
        }
    }

    /// Whether there is a connection that the server has not closed. No reply may be due.
    #[cfg(feature = "worker")]
    pub(crate) fn is_connected(&self) -> bool {
        self.stream.as_ref().is_some_and(|it| !it.is_closed())
    }

    /// Do the work of the link; only until it has to receive, if that is asked for. True if it is done.
    fn work(&mut self, is_sending_only: bool) -> bool {
        loop {
            let now = Instant::now();
            let step = self.link.next(now);
            let result = match (step, self.stream.as_mut()) {
                (Step::Done, _) => return true,
                // What is still in a buffer would never be answered.
                (Step::Receive(until), Some(stream)) if is_sending_only => {
                    match stream.flush(until) {
                        Ok(true) => return false,
                        Ok(false) => continue,
                        Err(error) => Err(error),
                    }
                }
                (Step::Close, _) => {
                    self.stream = None;
                    continue;
                }
                (Step::Pause(until), _) => {
                    std::thread::sleep(until.saturating_duration_since(now));
                    continue;
                }
                (Step::Connect(address, until), _) => {
                    let address = address.clone();
                    match Stream::connect(&address, self.link.config(), until) {
                        Ok(stream) => {
                            self.stream = Some(stream);
                            self.link.connected(Instant::now());
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
                (Step::Send(..) | Step::Receive(_), None) => {
                    Err(io::ErrorKind::NotConnected.into())
                }
                (Step::Send(bytes, until), Some(stream)) => match stream.send(bytes, until) {
                    Ok(count) => {
                        self.link.sent(count.unwrap_or(0));
                        continue;
                    }
                    Err(error) => Err(error),
                },
                (Step::Receive(until), Some(stream)) => stream.receive(&mut self.buffer, until),
            };
            match result {
                Ok(None) => {}
                Ok(Some(0)) => self.link.lost(&closed(), Instant::now()),
                Ok(Some(count)) => self.link.received(&self.buffer[..count], Instant::now()),
                Err(error) => self.link.lost(&error, Instant::now()),
            }
        }
    }

    /// Send a reserve, and do not wait for its reply: see [`Client::finish_reserve`].
    pub(crate) fn begin_reserve<T>(&mut self, call: &Call<T>) -> bool {
        self.leave_if_closed();
        self.link
            .begin(vec![call.request.clone()], Instant::now(), false);
        self.work(true)
    }

    /// The socket, to be waited on.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd)
    }

    /// The reply to the reserve that was begun. With `is_cancelled` the wait ends first, if the server
    /// can do that.
    pub(crate) fn finish_reserve<T>(&mut self, call: &Call<T>, is_cancelled: bool) -> Result<T> {
        if is_cancelled {
            self.link.push(calls::abort().request);
            self.link.hasten(Duration::ZERO, Instant::now());
        }
        self.work(false);
        let reply = self.link.take().remove(0);
        self.checked(reply.and_then(call.read))
    }

    /// As [`reserve`](Client::reserve), but end the wait when `is_over` says so, which is asked every few
    /// hundredths of a second. A server without `abort` cannot end a wait: the connection is closed, or,
    /// if it has reserved jobs, the wait goes on to its end.
    ///
    /// # Errors
    /// As for [`reserve`](Client::reserve).
    pub fn reserve_until(
        &mut self,
        wait: Duration,
        is_over: impl FnMut() -> bool,
    ) -> Result<Option<Job>> {
        self.run_until(&calls::reserve(wait)?, wait, is_over)
    }

    /// As [`reserve_batch`](Client::reserve_batch), but end the wait when `is_over` says so.
    ///
    /// # Errors
    /// As for [`reserve_batch`](Client::reserve_batch); [`Unsupported`](crate::ErrorKind::Unsupported).
    pub fn reserve_batch_until(
        &mut self,
        most: u16,
        wait: Duration,
        is_over: impl FnMut() -> bool,
    ) -> Result<Vec<Job>> {
        self.run_until(&calls::reserve_batch(most, wait)?, wait, is_over)
    }

    fn run_until<T: Default>(
        &mut self,
        call: &Call<T>,
        wait: Duration,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<T> {
        self.ready()?;
        self.begin_reserve(call);
        let until = Instant::now() + wait;
        while Instant::now() < until && !is_over() {
            let stream = self.stream.as_ref();
            if stream.is_none_or(|stream| stream.is_readable(LOOK)) {
                return self.finish_reserve(call, false);
            }
        }
        if Instant::now() >= until {
            return self.finish_reserve(call, false); // the server ends it
        }
        let can_abort = self.has_capability("abort");
        if !can_abort && !self.is_holding_jobs() {
            self.close();
            return Ok(T::default());
        }
        self.finish_reserve(call, can_abort)
    }

    /// Close the connection: jobs that it has reserved are ready again. The next call makes a new one.
    pub fn close(&mut self) {
        self.link.close();
        self.stream = None;
    }

    /// Ready for another user: it uses and watches `default`, has no job reserved, and has the token and
    /// the timeout that were configured.
    pub(crate) fn reset(&mut self) {
        if self.link.is_holding() || self.link.is_busy() || self.link.has_other_token() {
            self.close();
        }
        self.link.forget_user();
    }
}

pub(crate) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed it")
}
