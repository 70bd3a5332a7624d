//! A list of servers: each tube is on one of them, and jobs come from all of them.

mod placement;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::placement::score;
use crate::blocking::Client;
use crate::calls::{self, Call};
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Failed, Inserted, Job, Put, check_tube};

/// Between attempts to reach a server that is away.
const AWAY_MIN: Duration = Duration::from_millis(100);
const AWAY_MAX: Duration = Duration::from_secs(5);
/// The longest wait at a server that cannot end one, and between looks at servers that are away.
const WAIT_STEP: Duration = Duration::from_secs(1);

/// Servers, each alone or a cluster, among which tubes are shared out.
///
/// A tube is on the server with the highest [`score`], unless it is pinned to another. Every client that
/// has the same names and pins finds a tube at the same server. If a server is away the jobs of its tubes
/// wait there, and puts into them are refused; all other tubes work on.
///
/// ```
/// use bsd_client::{Config, Servers};
///
/// let one: Config = "10.0.0.1:11300".parse()?;
/// let cluster: Config = "10.0.1.1:11300,10.0.1.2:11300,10.0.1.3:11300".parse()?;
/// let servers = Servers::new([("one", one), ("cluster", cluster)])?.pin("billing", "cluster")?;
/// assert_eq!(servers.place("billing"), "cluster");
/// # Ok::<(), bsd_client::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Servers {
    list: Vec<(String, Config)>,
    pins: BTreeMap<String, usize>,
}

impl Servers {
    /// These servers, by their names. A name is what places tubes: an address may change, and a name may
    /// not.
    ///
    /// # Errors
    /// [`Usage`](ErrorKind::Usage): the list is empty, or two have the same name.
    pub fn new<N: Into<String>>(list: impl IntoIterator<Item = (N, Config)>) -> Result<Servers> {
        let list = list.into_iter().map(|(name, config)| (name.into(), config));
        let list: Vec<(String, Config)> = list.collect();
        let mut names: Vec<_> = list.iter().map(|(name, _)| name).collect();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::usage(format!("two servers are called {}", pair[0])));
        }
        if list.is_empty() {
            return Err(Error::usage("the list has no server"));
        }
        let pins = BTreeMap::new();
        Ok(Servers { list, pins })
    }

    /// Have a tube on this server, whatever its score is.
    ///
    /// # Errors
    /// [`Usage`](ErrorKind::Usage): there is no such server, or it is no name of a tube.
    pub fn pin(mut self, tube: &str, server: &str) -> Result<Servers> {
        check_tube(tube)?;
        let found = self.list.iter().position(|(name, _)| name == server);
        let unknown = || Error::usage(format!("no server is called {server}"));
        self.pins
            .insert(tube.to_owned(), found.ok_or_else(unknown)?);
        Ok(self)
    }

    /// The name of the server on which a tube is.
    #[must_use]
    pub fn place(&self, tube: &str) -> &str {
        &self.list[self.index_of(tube)].0
    }

    fn index_of(&self, tube: &str) -> usize {
        let pinned = self.pins.get(tube).copied();
        let names = self.list.iter().map(|(name, _)| name.as_str());
        pinned
            .or_else(|| placement::place(names, tube))
            .unwrap_or(0)
    }

    /// A client of all of them. Connections are made when they are first used.
    #[must_use]
    pub fn client(&self) -> ServersClient {
        let member = |(name, config): &(String, Config)| Member {
            name: name.clone(),
            config: config.clone(),
            at: At::Here(Box::new(Client::new(config.clone()))),
            failures: 0,
        };
        ServersClient {
            members: self.list.iter().map(member).collect(),
            servers: self.clone(),
            watched: vec!["default".to_owned()],
            turn: 0,
        }
    }
}

/// A job, and the server that it is on: ids of different servers may be the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerJob {
    /// The job.
    pub job: Job,
    server: usize,
}

/// Where the client of a server is.
#[derive(Debug)]
enum At {
    Here(Box<Client>),
    /// A thread tries to connect it.
    Connecting(Receiver<(Box<Client>, Result<()>)>),
    /// It is away, and not looked for before then.
    Away(Box<Client>, Instant),
}

#[derive(Debug)]
struct Member {
    name: String,
    config: Config,
    at: At,
    failures: u32,
}

impl Member {
    /// Its client, if the server is not away. Never waits.
    fn here(&mut self, now: Instant) -> Option<&mut Client> {
        self.look(now);
        match &mut self.at {
            At::Here(client) => Some(client),
            _ => None,
        }
    }

    /// Look for a server that is away, on another thread.
    fn look(&mut self, now: Instant) {
        match &mut self.at {
            At::Here(_) => {}
            At::Connecting(found) => match found.try_recv() {
                Ok((client, result)) => self.found(client, result, now),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.begin_again(now),
            },
            At::Away(_, until) if now < *until => {}
            At::Away(..) => self.connect(),
        }
    }

    fn connect(&mut self) {
        let (sender, receiver) = channel();
        if let At::Away(mut client, _) = std::mem::replace(&mut self.at, At::Connecting(receiver)) {
            let name = "bsd-connect".to_owned();
            // If there is no thread the channel is closed, which is noticed by the next look.
            _ = std::thread::Builder::new().name(name).spawn(move || {
                let result = client.connect_once();
                _ = sender.send((client, result));
            });
        }
    }

    fn found(&mut self, client: Box<Client>, result: Result<()>, now: Instant) {
        match result {
            Ok(()) => {
                self.failures = 0;
                self.at = At::Here(client);
            }
            Err(_) => self.is_away(client, now),
        }
    }

    fn begin_again(&mut self, now: Instant) {
        let client = Box::new(Client::new(self.config.clone()));
        self.is_away(client, now);
    }

    fn is_away(&mut self, client: Box<Client>, now: Instant) {
        let pause = AWAY_MIN
            .saturating_mul(1 << self.failures.min(10))
            .min(AWAY_MAX);
        self.failures = self.failures.saturating_add(1);
        self.at = At::Away(client, now + pause);
    }

    /// A call at the server has failed: if it is away, look for it from time to time.
    fn note(&mut self, error: &Error) {
        let is_away = matches!(
            error.kind(),
            ErrorKind::Connect | ErrorKind::TimedOut | ErrorKind::Unanswered | ErrorKind::Protocol
        );
        if !is_away {
            return;
        }
        let fresh = At::Away(Box::new(Client::new(self.config.clone())), Instant::now());
        match std::mem::replace(&mut self.at, fresh) {
            At::Here(mut client) => {
                client.close();
                self.is_away(client, Instant::now());
            }
            other => self.at = other,
        }
    }

    /// Its client; waits for a server that is away as long as a call may take.
    fn client(&mut self) -> Result<&mut Client> {
        let until = Instant::now() + self.config.timeout;
        let away = |name: &str| Error::new(ErrorKind::Connect, format!("server {name} is away"));
        loop {
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            match &mut self.at {
                At::Here(_) => break,
                _ if left.is_zero() => return Err(away(&self.name)),
                At::Away(_, _) => self.connect(),
                At::Connecting(found) => match found.recv_timeout(left) {
                    Ok((client, Ok(()))) => self.found(client, Ok(()), now),
                    Ok((client, Err(error))) => {
                        self.found(client, Err(error.clone()), now);
                        return Err(error);
                    }
                    Err(RecvTimeoutError::Timeout) => return Err(away(&self.name)),
                    Err(RecvTimeoutError::Disconnected) => {
                        self.begin_again(now);
                        return Err(away(&self.name));
                    }
                },
            }
        }
        match &mut self.at {
            At::Here(client) => Ok(client),
            _ => Err(away(&self.name)),
        }
    }
}

/// A client of a list of servers: see [`Servers`].
///
/// It has what depends on placing: puts, and reserves over all servers. For everything else
/// [`on`](ServersClient::on) gives the client of the server on which a tube is.
#[derive(Debug)]
pub struct ServersClient {
    servers: Servers,
    members: Vec<Member>,
    watched: Vec<String>,
    /// The member that is asked first by the next reserve.
    turn: usize,
}

impl ServersClient {
    /// Put a job into its tube, or into `default`, at the server on which the tube is.
    ///
    /// # Errors
    /// As for [`Client::put`]; [`Connect`](ErrorKind::Connect): that server is away.
    pub fn put(&mut self, put: Put) -> Result<Inserted> {
        let tube = put.tube.clone().unwrap_or_else(|| "default".to_owned());
        let index = self.servers.index_of(&tube);
        self.with(index, |client| client.put(put.tube(tube)))
    }

    /// Reserve jobs of these tubes alone, from now on. They are watched at all servers: jobs that are
    /// left on one, from before the list was changed, are found too.
    ///
    /// # Errors
    /// [`Usage`](ErrorKind::Usage): no tube, or no name of one.
    pub fn watch_only<T: AsRef<str>>(&mut self, tubes: impl IntoIterator<Item = T>) -> Result<()> {
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

    /// Reserve a job of the watched tubes at any of the servers, and wait for one no longer than `wait`.
    ///
    /// The servers take turns: the one that gave the last job is asked last. While it waits it waits at
    /// all of them, and ends the wait at the others with `abort` when one has a job. A server without
    /// `abort` is left by closing the connection, or, if that has reserved jobs, after a second at most;
    /// a job that comes meanwhile is released.
    ///
    /// # Errors
    /// [`Connect`](ErrorKind::Connect): all servers are away, and were so for the whole time.
    pub fn reserve(&mut self, wait: Duration) -> Result<Option<ServerJob>> {
        let until = Instant::now() + wait;
        if let Some(found) = self.reserve_at_once()? {
            return Ok(Some(found));
        }
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return self.nothing();
            }
            if let Some(found) = self.reserve_waiting(left)? {
                return Ok(Some(found));
            }
        }
    }

    fn nothing(&self) -> Result<Option<ServerJob>> {
        let is_away = |member: &Member| !matches!(member.at, At::Here(_));
        match self.members.iter().all(is_away) {
            true => Err(Error::new(
                ErrorKind::Connect,
                "all servers of the list are away",
            )),
            false => Ok(None),
        }
    }

    /// Ask each server in its turn, without waiting.
    fn reserve_at_once(&mut self) -> Result<Option<ServerJob>> {
        let call = calls::reserve(Duration::ZERO)?;
        let count = self.members.len();
        for step in 0..count {
            let index = (self.turn + step) % count;
            let watched = self.watched.clone();
            let Some(client) = self.members[index].here(Instant::now()) else {
                continue;
            };
            client.watch_only(&watched)?;
            client.begin_reserve(&call);
            match client.finish_reserve(&call, false) {
                Ok(Some(job)) => return Ok(Some(self.given(index, job))),
                Ok(None) => {}
                Err(error) => self.failed(index, error)?,
            }
        }
        Ok(None)
    }

    /// A job of this server: the one behind it has the next turn.
    fn given(&mut self, server: usize, job: Job) -> ServerJob {
        self.turn = (server + 1) % self.members.len();
        ServerJob { job, server }
    }

    /// An error of a reserve at one server: it is the caller's only if the server is there.
    fn failed(&mut self, index: usize, error: Error) -> Result<()> {
        self.members[index].note(&error);
        match matches!(self.members[index].at, At::Here(_)) {
            true => Err(error),
            false => Ok(()),
        }
    }

    /// Wait at all servers that are there.
    fn reserve_waiting(&mut self, left: Duration) -> Result<Option<ServerJob>> {
        let (mut begun, mut shortest) = (Vec::new(), left);
        for index in 0..self.members.len() {
            let watched = self.watched.clone();
            let Some(client) = self.members[index].here(Instant::now()) else {
                shortest = shortest.min(WAIT_STEP);
                continue;
            };
            client.watch_only(&watched)?;
            let wait = match client.has_capability("abort") {
                true => left,
                false => left.min(WAIT_STEP),
            };
            let call = calls::reserve(wait)?;
            client.begin_reserve(&call);
            begun.push((index, call));
        }
        let ready = self.wait_for_one(&begun, shortest);
        let mut found = None;
        let mut problem = None;
        // Those that are ready come first: their job is taken, and the others are left.
        let (first, others): (Vec<_>, Vec<_>) = begun
            .into_iter()
            .partition(|(index, _)| ready.contains(index));
        for (index, call) in first.into_iter().chain(others) {
            match self.end_wait(index, &call, ready.contains(&index)) {
                Ok(Some(job)) if found.is_none() => found = Some(self.given(index, job)),
                Ok(Some(job)) => {
                    _ = self.with(index, |client| client.give_back(job.id, Duration::ZERO));
                }
                Ok(None) => {}
                Err(error) => problem = self.failed(index, error).err().or(problem),
            }
        }
        match (found, problem) {
            (None, Some(error)) => Err(error),
            (found, _) => Ok(found),
        }
    }

    /// The members whose socket has something to read, or had none, after a wait for one of them.
    fn wait_for_one(&self, begun: &[(usize, Call<Option<Job>>)], time: Duration) -> Vec<usize> {
        let socket = |index: usize| match &self.members[index].at {
            At::Here(client) => client.socket(),
            _ => None,
        };
        let (mut indices, mut sockets, mut ready) = (Vec::new(), Vec::new(), Vec::new());
        for (index, _) in begun {
            match socket(*index) {
                Some(socket) => {
                    indices.push(*index);
                    sockets.push(PollFd::from_borrowed_fd(socket, PollFlags::IN));
                }
                None => ready.push(*index),
            }
        }
        let time = if ready.is_empty() {
            time
        } else {
            Duration::ZERO
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

    fn end_wait(
        &mut self,
        index: usize,
        call: &Call<Option<Job>>,
        is_ready: bool,
    ) -> Result<Option<Job>> {
        let At::Here(client) = &mut self.members[index].at else {
            return Ok(None);
        };
        let can_abort = client.has_capability("abort");
        if !is_ready && !can_abort && !client.is_holding_jobs() {
            client.close();
            return Ok(None);
        }
        client.finish_reserve(call, !is_ready && can_abort)
    }

    fn with<T>(&mut self, index: usize, call: impl FnOnce(&mut Client) -> Result<T>) -> Result<T> {
        let member = &mut self.members[index];
        let result = call(member.client()?);
        if let Err(error) = &result {
            member.note(error);
        }
        result
    }

    /// Delete a job.
    ///
    /// # Errors
    /// As for [`Client::delete`].
    pub fn delete(&mut self, job: &ServerJob) -> Result<()> {
        self.with(job.server, |client| client.delete(job.job.id))
    }

    /// Give a job back that was reserved here, with a priority, ready after `delay`.
    ///
    /// # Errors
    /// As for [`Client::release`].
    pub fn release(&mut self, job: &ServerJob, pri: u32, delay: Duration) -> Result<()> {
        self.with(job.server, |client| client.release(job.job.id, pri, delay))
    }

    /// Set a job aside that was reserved here.
    ///
    /// # Errors
    /// As for [`Client::bury`].
    pub fn bury(&mut self, job: &ServerJob, pri: u32) -> Result<()> {
        self.with(job.server, |client| client.bury(job.job.id, pri))
    }

    /// Restart the time to run of a job that was reserved here.
    ///
    /// # Errors
    /// As for [`Client::touch`].
    pub fn touch(&mut self, job: &ServerJob) -> Result<()> {
        self.with(job.server, |client| client.touch(job.job.id))
    }

    /// Say that a job could not be done, and why.
    ///
    /// # Errors
    /// As for [`Client::fail`].
    pub fn fail(&mut self, job: &ServerJob, text: impl AsRef<[u8]>) -> Result<Failed> {
        self.with(job.server, |client| client.fail(job.job.id, text))
    }

    /// The client of the server on which this tube is.
    ///
    /// # Errors
    /// [`Connect`](ErrorKind::Connect): the server is away.
    pub fn on(&mut self, tube: &str) -> Result<&mut Client> {
        let index = self.servers.index_of(tube);
        self.members[index].client()
    }

    /// The client of the server of a job.
    ///
    /// # Errors
    /// [`Connect`](ErrorKind::Connect): the server is away.
    pub fn of(&mut self, job: &ServerJob) -> Result<&mut Client> {
        self.members[job.server].client()
    }

    /// The name of the server that a job is on.
    #[must_use]
    pub fn server_of(&self, job: &ServerJob) -> &str {
        &self.members[job.server].name
    }
}
