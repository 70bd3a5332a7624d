//! The asynchronous client, on tokio.

mod pool;
mod stream;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;
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

pub use self::pool::{AsyncPool, AsyncPooled};

/// Bytes that are received at a time.
const RECEIVE_SIZE: usize = 32 * 1024;

/// The same as [`Client`](crate::Client), for tasks of tokio.
///
/// If the future of a call is dropped before it is ready, what it asked for may have been done or not.
/// The connection is closed before the next call then, so jobs that it has reserved are ready again.
///
/// ```no_run
/// use bsd_client::{AsyncClient, Put};
///
/// # async fn example() -> Result<(), bsd_client::Error> {
/// let mut client = AsyncClient::connect("127.0.0.1:11300").await?;
/// client.put(Put::new("to: you").tube("mail")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncClient {
    link: Link,
    stream: Option<Stream>,
    buffer: Vec<u8>,
    /// Something was given to the stream that may still be in a buffer of it.
    is_unflushed: bool,
}

impl AsyncClient {
    /// Connect to the server at this address, or to one of several: see [`Config`]. Each address is tried
    /// once.
    ///
    /// # Errors
    /// [`Connect`](crate::ErrorKind::Connect), [`NotAuthorized`](crate::ErrorKind::NotAuthorized).
    pub async fn connect<C>(config: C) -> Result<AsyncClient>
    where
        C: TryInto<Config>,
        Error: From<C::Error>,
    {
        let mut client = AsyncClient::new(config.try_into()?);
        client.connect_now(false).await?;
        Ok(client)
    }

    /// A client that connects when it is first used.
    #[must_use]
    pub fn new(config: Config) -> AsyncClient {
        AsyncClient {
            link: Link::new(config, Instant::now()),
            stream: None,
            buffer: vec![0; RECEIVE_SIZE],
            is_unflushed: false,
        }
    }

    methods!([async] [.await]);

    async fn ready(&mut self) -> Result<()> {
        self.leave_if_closed();
        match self.link.is_up() {
            true => Ok(()),
            false => self.connect_now(true).await,
        }
    }

    /// The question is asked again only because the work must be something.
    async fn connect_now(&mut self, is_patient: bool) -> Result<()> {
        let Call { request, read } = calls::capabilities();
        self.link.begin(vec![request], Instant::now(), is_patient);
        self.work().await;
        self.link.take().remove(0).and_then(read).map(|_| ())
    }

    async fn run<T>(&mut self, call: Call<T>) -> Result<T> {
        let reply = self.exchange(vec![call.request]).await.remove(0)?;
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

    async fn run_all<T>(&mut self, calls: Vec<Call<T>>) -> Result<Vec<Result<T>>> {
        let (requests, reads): (Vec<_>, Vec<_>) = {
            let parts = calls.into_iter().map(|call| (call.request, call.read));
            parts.unzip()
        };
        let replies = self.exchange(requests).await.into_iter().zip(reads);
        Ok(replies
            .map(|(reply, read)| self.checked(reply.and_then(read)))
            .collect())
    }

    async fn exchange(&mut self, requests: Vec<Request>) -> Vec<Result<Reply>> {
        self.leave_if_closed();
        self.link.begin(requests, Instant::now(), true);
        self.work().await;
        self.link.take()
    }

    /// The server may have closed a connection while it was idle: then nothing is sent on it.
    fn leave_if_closed(&mut self) {
        let is_closed = || self.stream.as_ref().is_none_or(Stream::is_closed);
        if self.link.was_idle(Instant::now()) && is_closed() {
            self.link.close();
        }
    }

    /// Have a reserve sent by the next [`work`](AsyncClient::work), which ends when its reply has come.
    pub(crate) fn begin_reserve<T>(&mut self, call: &Call<T>) {
        self.leave_if_closed();
        self.link
            .begin(vec![call.request.clone()], Instant::now(), false);
    }

    /// Have the wait of a reserve that was begun end: [`work`](AsyncClient::work) goes on until it has.
    pub(crate) fn abort_reserve(&mut self) {
        self.link.push(calls::abort().request);
        self.hasten(Duration::ZERO);
    }

    /// Give a reserve that was begun, and ends by itself after `wait`, the time of a call from now on.
    pub(crate) fn hasten(&mut self, wait: Duration) {
        self.link.hasten(wait, Instant::now());
    }

    /// The reply to a reserve, when the work is done.
    pub(crate) fn take_reserved<T>(&mut self, call: &Call<T>) -> Result<T> {
        let reply = self.link.take().remove(0);
        self.checked(reply.and_then(call.read))
    }

    /// End what the dropped future of a call has left under way, and forget its result.
    pub(crate) async fn finish_work(&mut self) {
        if self.link.is_busy() {
            self.work().await;
            self.link.take();
        }
    }

    /// Whether this connection has reserved jobs other than this one.
    pub(crate) fn is_holding_besides(&self, id: Option<JobId>) -> bool {
        self.link.is_holding_besides(id)
    }

    /// Do the work of the link. If the future is dropped, what is under way stays so, and another one
    /// goes on with it.
    pub(crate) async fn work(&mut self) {
        loop {
            let now = Instant::now();
            let step = self.link.next(now);
            let result = match (step, self.stream.as_mut()) {
                (Step::Done, _) => return,
                (Step::Close, _) => {
                    self.stream = None;
                    continue;
                }
                (Step::Pause(until), _) => {
                    tokio::time::sleep_until(until.into()).await;
                    continue;
                }
                (Step::Connect(address, until), _) => {
                    let address = address.clone();
                    match Stream::connect(&address, self.link.config(), until).await {
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
                (Step::Send(bytes, until), Some(stream)) => {
                    self.is_unflushed = true;
                    match stream.send(bytes, until).await {
                        Ok(count) => {
                            self.link.sent(count.unwrap_or(0));
                            continue;
                        }
                        Err(error) => Err(error),
                    }
                }
                (Step::Receive(until), Some(stream)) => {
                    receive(stream, &mut self.buffer, &mut self.is_unflushed, until).await
                }
            };
            match result {
                Ok(None) => {}
                Ok(Some(0)) => self.link.lost(&crate::blocking::closed(), Instant::now()),
                Ok(Some(count)) => self.link.received(&self.buffer[..count], Instant::now()),
                Err(error) => self.link.lost(&error, Instant::now()),
            }
        }
    }

    /// As [`reserve`](AsyncClient::reserve), but end the wait when `over` is ready. A server without
    /// `abort` cannot end a wait: the connection is closed, or, if it has reserved jobs, the wait goes on
    /// to its end.
    ///
    /// # Errors
    /// As for [`reserve`](AsyncClient::reserve).
    pub async fn reserve_until(
        &mut self,
        wait: Duration,
        over: impl Future<Output = ()>,
    ) -> Result<Option<Job>> {
        let call = calls::reserve(wait)?;
        self.ready().await?;
        let is_holding = self.link.is_holding();
        self.link
            .begin(vec![call.request.clone()], Instant::now(), true);
        let is_over = {
            let (mut work, mut over) = (pin!(self.work()), pin!(over));
            let first = poll_fn(|context| match work.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending => over.as_mut().poll(context).map(|()| true),
            });
            first.await
        };
        if is_over && self.has_capability("abort") {
            self.abort_reserve();
        } else if is_over && !is_holding {
            self.close();
            return Ok(None);
        }
        self.work().await;
        self.take_reserved(&call)
    }

    /// Close the connection: jobs that it has reserved are ready again. The next call makes a new one.
    pub fn close(&mut self) {
        self.link.close();
        self.stream = None;
    }

    /// Ready for another user: it uses and watches `default`, has no job reserved, and has the token and
    /// the timeout that were configured.
    fn reset(&mut self) {
        if self.link.is_holding() || self.link.is_busy() || self.link.has_other_token() {
            self.close();
        }
        self.link.forget_user();
    }
}

async fn receive(
    stream: &mut Stream,
    buffer: &mut [u8],
    is_unflushed: &mut bool,
    until: Instant,
) -> io::Result<Option<usize>> {
    if *is_unflushed && !stream.flush(until).await? {
        return Ok(None);
    }
    *is_unflushed = false;
    stream.receive(buffer, until).await
}
