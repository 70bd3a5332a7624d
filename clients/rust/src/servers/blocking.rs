//! The blocking client of a list of servers.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::member::{Look, Member, Peer};
use super::methods::methods;
use super::round::{Answer, Ending, Round, Step, ending, wait_at};
use super::{ServerJob, Servers};
use crate::blocking::Client;
use crate::calls::{self, Call};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::job::{Failed, Inserted, Job, Put, check_tube};

impl Servers {
    /// A client of all of them. Connections are made when they are first used.
    #[must_use]
    pub fn client(&self) -> ServersClient {
        let seat = |(name, config): &(String, Config)| Seat {
            member: Member::new(name, config),
            call: None,
        };
        ServersClient {
            seats: self.list.iter().map(seat).collect(),
            servers: self.clone(),
            watched: vec!["default".to_owned()],
            turn: 0,
        }
    }
}

impl Peer for Client {
    type Attempt = Receiver<(Box<Client>, Result<()>)>;

    fn fresh(config: &Config) -> Client {
        Client::new(config.clone())
    }

    fn leave(&mut self) {
        self.close();
    }

    /// On a thread. If that cannot be started the channel is closed, which the next look notices.
    fn attempt(mut self: Box<Client>) -> Self::Attempt {
        let (sender, receiver) = channel();
        let name = "bsd-connect".to_owned();
        _ = std::thread::Builder::new().name(name).spawn(move || {
            let result = self.connect_once();
            _ = sender.send((self, result));
        });
        receiver
    }

    fn look(attempt: &mut Self::Attempt) -> Look<Client> {
        match attempt.try_recv() {
            Ok((client, result)) => Look::Over(client, result),
            Err(TryRecvError::Empty) => Look::Trying,
            Err(TryRecvError::Disconnected) => Look::Gone,
        }
    }
}

/// A server, and the wait that is under way at it.
#[derive(Debug)]
struct Seat {
    member: Member<Client>,
    call: Option<Call<Option<Job>>>,
}

impl Seat {
    /// Its client; waits for a server that is away as long as a call may take.
    fn client(&mut self) -> Result<&mut Client> {
        let until = Instant::now() + self.member.config().timeout;
        while let Some(attempt) = self.member.attempt(Instant::now()) {
            let left = until.saturating_duration_since(Instant::now());
            let look = match attempt.recv_timeout(left) {
                Ok((client, result)) => Look::Over(client, result),
                Err(RecvTimeoutError::Timeout) => Look::Trying,
                Err(RecvTimeoutError::Disconnected) => Look::Gone,
            };
            self.member.seen(look, Instant::now())?;
        }
        let missed = self.member.is_missed();
        self.member.peer_mut().ok_or(missed)
    }

    /// Ask without a wait.
    fn ask(&mut self, watched: &[String]) -> Result<Answer> {
        let call = calls::reserve(Duration::ZERO)?;
        let Some(client) = self.member.here(Instant::now()) else {
            return Ok(Answer::Away);
        };
        client.watch_only(watched)?;
        client.begin_reserve(&call);
        let result = client.finish_reserve(&call, false);
        Ok(self.member.answer(result, Instant::now()))
    }

    /// Begin a wait, if the server is there.
    fn begin(&mut self, watched: &[String], left: Duration) -> Result<bool> {
        let Some(client) = self.member.here(Instant::now()) else {
            return Ok(false);
        };
        client.watch_only(watched)?;
        let call = calls::reserve(wait_at(left, client.has_capability("abort")))?;
        client.begin_reserve(&call);
        self.call = Some(call);
        Ok(true)
    }

    /// End the wait.
    fn end(&mut self, is_ready: bool) -> Answer {
        let (Some(client), Some(call)) = (self.member.peer_mut(), self.call.take()) else {
            return Answer::Away;
        };
        let can_abort = client.has_capability("abort");
        let ending = ending(is_ready, can_abort, client.is_holding_jobs());
        if ending == Ending::Close {
            client.close();
            return Answer::Nothing;
        }
        let result = client.finish_reserve(&call, ending == Ending::Abort);
        self.member.answer(result, Instant::now())
    }
}

/// A client of a list of servers: see [`Servers`].
///
/// It has what depends on placing: puts, and reserves over all servers. For everything else
/// [`on`](ServersClient::on) gives the client of the server on which a tube is.
#[derive(Debug)]
pub struct ServersClient {
    servers: Servers,
    seats: Vec<Seat>,
    watched: Vec<String>,
    /// The server that is asked first by the next reserve.
    turn: usize,
}

impl ServersClient {
    methods!(Client [] []);

    /// Reserve a job of the watched tubes at any of the servers, and wait for one no longer than `wait`.
    ///
    /// The servers take turns: the one that gave the last job is asked last. While it waits it waits at
    /// all of them, and ends the wait at the others with `abort` when one has a job. A server without
    /// `abort` is left by closing the connection, or, if that has reserved jobs, after a second at most;
    /// a job that comes meanwhile is released.
    ///
    /// # Errors
    /// [`Connect`](crate::ErrorKind::Connect): all servers are away when the time is over.
    pub fn reserve(&mut self, wait: Duration) -> Result<Option<ServerJob>> {
        let mut round = Round::new(self.seats.len(), self.turn, Instant::now(), wait);
        loop {
            match round.next(Instant::now()) {
                Step::Ask(index) => {
                    let answer = self.seats[index].ask(&self.watched)?;
                    round.asked(index, answer);
                }
                Step::Begin(left) => {
                    let mut begun = Vec::new();
                    for index in round.order() {
                        if self.seats[index].begin(&self.watched, left)? {
                            begun.push(index);
                        }
                    }
                    round.begun(begun);
                }
                Step::Wait(begun, time) => round.came(&self.wait_for_one(&begun, time)),
                Step::End(ends) => {
                    let mut answers = Vec::new();
                    for (index, is_ready) in ends {
                        answers.push((index, self.seats[index].end(is_ready)));
                    }
                    round.ended(answers);
                }
                Step::GiveBack(index, id) => {
                    let result = self
                        .at(index)
                        .and_then(|it| it.give_back(id, Duration::ZERO));
                    _ = self.noted(index, result);
                }
                Step::Done => return self.over(round),
            }
        }
    }

    fn members(&self) -> impl Iterator<Item = &Member<Client>> {
        self.seats.iter().map(|seat| &seat.member)
    }

    /// The client of a server, to be used now.
    fn at(&mut self, index: usize) -> Result<&mut Client> {
        self.seats[index].client()
    }

    /// What a call at a server has ended with.
    fn noted<T>(&mut self, index: usize, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.seats[index].member.note(error, Instant::now());
        }
        result
    }

    /// The servers whose socket has something to read, or had none, after a wait for one of them.
    fn wait_for_one(&self, begun: &[usize], time: Duration) -> Vec<usize> {
        let socket = |index: usize| self.seats[index].member.peer()?.socket();
        let (mut indices, mut sockets, mut ready) = (Vec::new(), Vec::new(), Vec::new());
        for index in begun {
            match socket(*index) {
                Some(socket) => {
                    indices.push(*index);
                    sockets.push(PollFd::from_borrowed_fd(socket, PollFlags::IN));
                }
                None => ready.push(*index),
            }
        }
        let time = match ready.is_empty() {
            true => time,
            false => Duration::ZERO,
        };
        let time = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // An error, such as a signal, is as if nothing had come: the loop goes on.
        _ = poll(&mut sockets, Some(&time));
        let has_come =
            |(index, socket): (usize, &PollFd<'_>)| (!socket.revents().is_empty()).then_some(index);
        ready.extend(indices.into_iter().zip(&sockets).filter_map(has_come));
        ready
    }
}
