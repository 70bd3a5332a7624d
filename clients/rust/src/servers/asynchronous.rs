//! The asynchronous client of a list of servers, on tokio.

use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::{Receiver, channel, error::TryRecvError};
use tokio::task::AbortHandle;
use tokio::time::{timeout, timeout_at};

use super::member::{Look, Member, Peer};
use super::methods::methods;
use super::round::{Answer, Ending, Round, Step, WAIT_STEP, ending, wait_at};
use super::{ServerJob, Servers};
use crate::asynchronous::AsyncClient;
use crate::calls::{self, Call};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::job::{Failed, Inserted, Job, JobId, Put, check_tube};

impl Servers {
    /// A client of all of them, for tasks of tokio. Connections are made when they are first used.
    #[must_use]
    pub fn async_client(&self) -> AsyncServersClient {
        let seat = |(name, config): &(String, Config)| Seat {
            member: Member::new(name, config),
            wait: None,
            owed: None,
        };
        AsyncServersClient {
            seats: self.list.iter().map(seat).collect(),
            servers: self.clone(),
            watched: vec!["default".to_owned()],
            turn: 0,
        }
    }
}

/// A task that tries to connect a client. It ends with the client of the list.
#[derive(Debug)]
pub(super) struct Attempt {
    found: Receiver<(Box<AsyncClient>, Result<()>)>,
    task: AbortHandle,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Peer for AsyncClient {
    type Attempt = Attempt;

    fn fresh(config: &Config) -> AsyncClient {
        AsyncClient::new(config.clone())
    }

    fn leave(&mut self) {
        self.close();
    }

    fn attempt(mut self: Box<AsyncClient>) -> Attempt {
        let (sender, found) = channel();
        let task = tokio::spawn(async move {
            let result = self.connect_once().await;
            _ = sender.send((self, result));
        });
        let task = task.abort_handle();
        Attempt { found, task }
    }

    fn look(attempt: &mut Attempt) -> Look<AsyncClient> {
        match attempt.found.try_recv() {
            Ok((client, result)) => Look::Over(client, result),
            Err(TryRecvError::Empty) => Look::Trying,
            Err(TryRecvError::Closed) => Look::Gone,
        }
    }
}

/// A reserve that is under way at a server.
#[derive(Debug)]
struct Wait {
    call: Call<Option<Job>>,
    /// The tubes that it waits for.
    watched: Vec<String>,
    /// The connection had jobs reserved when it began.
    is_holding: bool,
    /// It was told to end.
    is_aborted: bool,
}

/// A server, and the reserve that is under way at it.
#[derive(Debug)]
struct Seat {
    member: Member<AsyncClient>,
    wait: Option<Wait>,
    /// A job that the server gave and the caller has not got: the server is to have it back.
    owed: Option<JobId>,
}

impl Seat {
    /// Its client; waits for a server that is away as long as a call may take.
    async fn client(&mut self) -> Result<&mut AsyncClient> {
        self.settle().await;
        let until = Instant::now() + self.member.config().timeout;
        while let Some(attempt) = self.member.attempt(Instant::now()) {
            let look = match timeout_at(until.into(), &mut attempt.found).await {
                Ok(Ok((client, result))) => Look::Over(client, result),
                Ok(Err(_)) => Look::Gone,
                Err(_) => Look::Trying,
            };
            self.member.seen(look, Instant::now())?;
        }
        let missed = self.member.is_missed();
        self.member.peer_mut().ok_or(missed)
    }

    /// Have nothing under way, and give back the job that is owed. If this is dropped, the next call goes
    /// on with it.
    async fn settle(&mut self) {
        self.end_late().await;
        if let Some(id) = self.owed
            && let Some(client) = self.member.peer_mut()
        {
            client.finish_work().await;
            let result = client.give_back(id, Duration::ZERO).await;
            if let Err(error) = result {
                self.member.note(&error, Instant::now());
            }
        }
        self.owed = None;
    }

    /// End the wait that a dropped reserve has left behind, if there is one.
    async fn end_late(&mut self) -> Answer {
        if self.wait.is_some()
            && let Some(client) = self.member.peer_mut()
        {
            client.hasten(WAIT_STEP);
        }
        self.end(false).await
    }

    /// Have a reserve sent when this is next [driven](Seat::drive), if the server is there.
    async fn begin(
        &mut self,
        watched: &[String],
        left: impl FnOnce(&AsyncClient) -> Duration,
    ) -> Result<bool> {
        self.settle().await;
        let Some(client) = self.member.here(Instant::now()) else {
            return Ok(false);
        };
        client.watch_only(watched)?;
        let call = calls::reserve(left(client))?;
        client.begin_reserve(&call);
        self.wait = Some(Wait {
            call,
            watched: watched.to_vec(),
            is_holding: client.is_holding_jobs(),
            is_aborted: false,
        });
        Ok(true)
    }

    /// Ask without a wait. A job that came for a reserve of the same tubes whose future was dropped is
    /// the first.
    async fn ask(&mut self, watched: &[String]) -> Result<Answer> {
        if self
            .wait
            .as_ref()
            .is_some_and(|wait| wait.watched == watched)
            && let answer @ Answer::Job(_) = self.end_late().await
        {
            return Ok(answer);
        }
        match self.begin(watched, |_| Duration::ZERO).await? {
            true => Ok(self.end(true).await),
            false => Ok(Answer::Away),
        }
    }

    /// Until the reply to the reserve has come. This may be dropped, and begun again.
    async fn drive(&mut self) {
        if let Some(client) = self.member.peer_mut() {
            client.work().await;
        }
    }

    /// End the wait. If this is dropped the wait is still under way, and is ended later.
    async fn end(&mut self, is_ready: bool) -> Answer {
        let (Some(client), Some(wait)) = (self.member.peer_mut(), &mut self.wait) else {
            self.wait = None;
            return Answer::Away;
        };
        let can_abort = client.has_capability("abort");
        match ending(is_ready, can_abort, wait.is_holding) {
            Ending::Close => {
                client.close();
                self.wait = None;
                return Answer::Nothing;
            }
            Ending::Abort if !wait.is_aborted => {
                wait.is_aborted = true;
                client.abort_reserve();
            }
            Ending::Abort | Ending::Receive => {}
        }
        client.work().await;
        let result = client.take_reserved(&wait.call);
        self.wait = None;
        let answer = self.member.answer(result, Instant::now());
        if let Answer::Job(job) = &answer {
            self.owed = Some(job.id);
        }
        answer
    }

    /// The future of a reserve has ended or was dropped. Where no other job is reserved the connection is
    /// closed, so the server has back what it gave or may just have given. Where one is, the connection
    /// must stay: it is [settled](Seat::settle) before the next use.
    fn leave(&mut self) {
        let Some(client) = self.member.peer_mut() else {
            return;
        };
        let must_close = match (&self.wait, self.owed) {
            (Some(wait), _) => !wait.is_holding,
            (None, Some(_)) => !client.is_holding_besides(self.owed),
            (None, None) => false,
        };
        if must_close {
            client.close();
            self.wait = None;
            self.owed = None;
        }
    }
}

/// The same as [`ServersClient`](crate::ServersClient), for tasks of tokio.
///
/// It has what depends on placing: puts, and reserves over all servers. For everything else
/// [`on`](AsyncServersClient::on) gives the client of the server on which a tube is. An attempt to reach
/// a server that is away is a task of the runtime: one at a time for each server, which ends with this
/// client.
///
/// # If a future is dropped
///
/// No job is lost with the future of a reserve, whenever it is dropped. At each server at which it
/// waits:
///
/// * The connection has no jobs reserved: it is closed at once, so a job that the server has just sent
///   is ready again. The next call makes a new connection.
/// * It has: it stays, since closing it would take those jobs away. The wait is ended before the next
///   call at this server, with `abort`, or without that after a second at most. A job that has come is
///   the result of that call, if it is a reserve of the same tubes, and else it is released with its
///   priority. If no call comes, its time to run ends.
///
/// Where a policy counts deliveries, a job that becomes ready so has failed once.
/// [`reserve_until`](AsyncServersClient::reserve_until) ends a wait and keeps the connections. If the
/// future of another call is dropped, it is as for [`AsyncClient`]: what it asked for may have been done,
/// and the connection is closed before its next use.
///
/// ```no_run
/// use bsd_client::{Config, Put, Servers};
/// use std::time::Duration;
///
/// # async fn example() -> Result<(), bsd_client::Error> {
/// let one: Config = "10.0.0.1:11300".parse()?;
/// let two: Config = "10.0.0.2:11300".parse()?;
/// let servers = Servers::new([("one", one), ("two", two)])?;
/// let mut client = servers.async_client();
/// client.put(Put::new("to: you").tube("mail")).await?;
///
/// client.watch_only(["mail"])?;
/// while let Some(job) = client.reserve(Duration::from_secs(5)).await? {
///     println!("from {}", client.server_of(&job));
///     client.delete(&job).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncServersClient {
    servers: Servers,
    seats: Vec<Seat>,
    watched: Vec<String>,
    /// The server that is asked first by the next reserve.
    turn: usize,
}

impl AsyncServersClient {
    methods!(AsyncClient [async] [.await]);

    /// Reserve a job of the watched tubes at any of the servers, and wait for one no longer than `wait`.
    ///
    /// The servers take turns: the one that gave the last job is asked last. While it waits it waits at
    /// all of them, and ends the wait at the others with `abort` when one has a job. A server without
    /// `abort` is left by closing the connection, or, if that has reserved jobs, after a second at most;
    /// a job that comes meanwhile is released. The future may be dropped:
    /// [what happens then](AsyncServersClient#if-a-future-is-dropped).
    ///
    /// # Errors
    /// [`Connect`](crate::ErrorKind::Connect): all servers are away when the time is over.
    pub async fn reserve(&mut self, wait: Duration) -> Result<Option<ServerJob>> {
        self.reserve_until(wait, pending()).await
    }

    /// The same, but end the wait when `over` is ready: with `abort`, so the connections stay. A job that
    /// one of the servers has given by then is the result.
    ///
    /// # Errors
    /// As for [`reserve`](AsyncServersClient::reserve).
    pub async fn reserve_until(
        &mut self,
        wait: Duration,
        over: impl Future<Output = ()>,
    ) -> Result<Option<ServerJob>> {
        let mut round = Round::new(self.seats.len(), self.turn, Instant::now(), wait);
        let mut over = pin!(over);
        let leaving = Leaving(self);
        let list = &mut *leaving.0;
        loop {
            match round.next(Instant::now()) {
                Step::Ask(index) => {
                    let answer = list.seats[index].ask(&list.watched).await?;
                    round.asked(index, answer);
                }
                Step::Begin(left) => {
                    let mut begun = Vec::new();
                    for index in round.order() {
                        let wait =
                            |client: &AsyncClient| wait_at(left, client.has_capability("abort"));
                        if list.seats[index].begin(&list.watched, wait).await? {
                            begun.push(index);
                        }
                    }
                    round.begun(begun);
                }
                Step::Wait(begun, time) => {
                    let first = list.first_of(&begun);
                    let ready = timeout(time, unless(over.as_mut(), first)).await;
                    match ready {
                        Ok(Some(ready)) => round.came(&ready),
                        Ok(None) => round.stop(Instant::now()),
                        Err(_) => round.came(&[]),
                    }
                }
                Step::End(ends) => round.ended(list.end_all(&ends).await),
                Step::GiveBack(index, _) => list.seats[index].settle().await,
                Step::Done => {
                    let found = list.over(round)?;
                    if let Some(job) = &found {
                        list.seats[job.server].owed = None;
                    }
                    return Ok(found);
                }
            }
        }
    }

    fn members(&self) -> impl Iterator<Item = &Member<AsyncClient>> {
        self.seats.iter().map(|seat| &seat.member)
    }

    /// The client of a server, to be used now.
    async fn at(&mut self, index: usize) -> Result<&mut AsyncClient> {
        self.seats[index].client().await
    }

    /// What a call at a server has ended with.
    fn noted<T>(&mut self, index: usize, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.seats[index].member.note(error, Instant::now());
        }
        result
    }

    /// The servers whose reserve is over, when one of them is.
    async fn first_of(&mut self, begun: &[usize]) -> Vec<usize> {
        let seats = self.seats.iter_mut().enumerate();
        let begun = seats.filter(|(index, _)| begun.contains(index));
        let mut drives: Vec<_> = begun
            .map(|(index, seat)| (index, Box::pin(seat.drive())))
            .collect();
        poll_fn(|context| {
            let polled = drives.iter_mut();
            let ready: Vec<_> = polled
                .filter_map(|(index, drive)| {
                    drive.as_mut().poll(context).is_ready().then_some(*index)
                })
                .collect();
            match ready.is_empty() {
                true => Poll::Pending,
                false => Poll::Ready(ready),
            }
        })
        .await
    }

    /// End the waits at these servers, all at the same time, so that one that does not answer holds up
    /// no other.
    async fn end_all(&mut self, ends: &[(usize, bool)]) -> Vec<(usize, Answer)> {
        let mut answers: Vec<_> = ends.iter().map(|(index, _)| (*index, None)).collect();
        let seats = self.seats.iter_mut().enumerate();
        let mut under_way: Vec<_> = seats
            .filter_map(|(index, seat)| {
                let place = ends.iter().position(|(it, _)| *it == index)?;
                Some((place, Box::pin(seat.end(ends[place].1))))
            })
            .collect();
        poll_fn(|context| {
            under_way.retain_mut(|(place, end)| match end.as_mut().poll(context) {
                Poll::Ready(answer) => {
                    answers[*place].1 = Some(answer);
                    false
                }
                Poll::Pending => true,
            });
            match under_way.is_empty() {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
        drop(under_way);
        let answers = answers.into_iter();
        answers
            .map(|(index, answer)| (index, answer.unwrap_or(Answer::Away)))
            .collect()
    }
}

/// The first of the two that is ready: `None` if it is the end.
async fn unless<T>(
    mut over: Pin<&mut impl Future<Output = ()>>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => over.as_mut().poll(context).map(|()| None),
    })
    .await
}

/// A reserve under way: whatever way it ends, no server is left with a wait on a connection that could be
/// closed.
struct Leaving<'a>(&'a mut AsyncServersClient);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.seats.iter_mut().for_each(Seat::leave);
    }
}
