//! A connection and its work, without sockets and without a clock.
//!
//! [`Link::next`] says what to do: connect, send these bytes, receive, wait, close, or that the work is
//! done. The clients, the blocking one and the asynchronous one, do that and report how it went. So
//! everything that is decided is decided here: what is sent when, what is sent once more after a
//! connection was lost, what a reply belongs to, and when the time is over.
//!
//! What must stay true:
//!
//! * An extended command is sent only on a connection whose own answer to `capabilities` lists it.
//! * A request that may have been run is sent again only if its [`Repeat`] allows it.
//! * A connection on which a reply is still due is never used for other work: it is closed.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use crate::calls::{authenticated, read_capabilities, refused};
use crate::config::{Address, Config};
use crate::error::{Error, ErrorKind, Result};
use crate::job::JobId;
use crate::reply::{Parser, Reply, Word};
use crate::request::{self, Effect, Repeat, Request};

/// Requests that may be under way at a time; when half of them are answered more are sent.
const IN_FLIGHT_MAX: usize = 256;
/// Bytes of requests that may be under way together with one whose reply has a body. They find room in
/// the buffers of any socket, so the server never has to read them to be read from.
const BESIDE_DOCUMENT_MAX: usize = 16 * 1024;
/// Bytes that are gathered before they are sent.
const SEND_SIZE: usize = 64 * 1024;

/// A connection on which a reply has just come is used without another look.
const RECENT: Duration = Duration::from_millis(1);

/// What is to be done next. Each has the time until which it may go on.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    /// Connect, and call [`Link::connected`] or [`Link::lost`].
    Connect(&'a Address, Instant),
    /// Send some of it, and call [`Link::sent`] or [`Link::lost`].
    Send(&'a [u8], Instant),
    /// Receive something, and call [`Link::received`] or [`Link::lost`]; or nothing when it is time.
    Receive(Instant),
    /// Do nothing until then.
    Pause(Instant),
    /// Close the connection.
    Close,
    /// The work is done.
    Done,
}

/// What a connection has been told, and is told again after a reconnect.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Session {
    used: String,
    watched: Vec<String>,
}

impl Default for Session {
    fn default() -> Session {
        Session {
            used: "default".to_owned(),
            watched: vec!["default".to_owned()],
        }
    }
}

/// What a reply before the work belongs to.
#[derive(Debug)]
enum Greeting {
    Auth,
    Capabilities,
    Session,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Down,
    Up,
}

/// A request of the work under way.
#[derive(Debug)]
struct Item {
    request: Request,
    /// The number of bytes of the connection up to its end.
    end: u64,
    result: Option<Result<Reply>>,
    /// It may have been run before.
    is_repeated: bool,
}

/// A connection and its work.
#[derive(Debug)]
pub(crate) struct Link {
    config: Config,
    token: Option<String>,
    state: State,
    must_close: bool,
    parser: Parser,
    output: Vec<u8>,
    output_sent: usize,
    /// Bytes of this connection: given to `output`, and sent.
    bytes_given: u64,
    bytes_sent: u64,
    greeting: VecDeque<Greeting>,
    greeting_deadline: Option<Instant>,
    /// What the connection was told, and what it shall have been told.
    told: Session,
    wanted: Session,
    capabilities: Vec<String>,
    /// Jobs that the connection has reserved.
    held: HashSet<JobId>,
    /// Which address is the next one.
    address: usize,
    /// Attempts since the last reply.
    failures: u32,
    not_before: Option<Instant>,
    /// Try again until the time is over, and not each address once.
    is_patient: bool,
    last_error: Option<Error>,
    last_reply: Option<Instant>,
    random: u64,
    work: Vec<Item>,
    unresolved: usize,
    unsent: VecDeque<usize>,
    in_flight: VecDeque<usize>,
    /// The time of a call.
    timeout: Duration,
    patience: Duration,
    deadline: Instant,
}

impl Link {
    pub(crate) fn new(config: Config, now: Instant) -> Link {
        Link {
            token: config.token.clone(),
            state: State::Down,
            must_close: false,
            parser: Parser::new(config.body_max),
            output: Vec::new(),
            output_sent: 0,
            bytes_given: 0,
            bytes_sent: 0,
            greeting: VecDeque::new(),
            greeting_deadline: None,
            told: Session::default(),
            wanted: Session::default(),
            capabilities: Vec::new(),
            held: HashSet::new(),
            address: 0,
            failures: 0,
            not_before: None,
            is_patient: true,
            last_error: None,
            last_reply: None,
            random: RandomState::new().hash_one(now),
            work: Vec::new(),
            unresolved: 0,
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            timeout: config.timeout,
            patience: Duration::ZERO,
            deadline: now,
            config,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The extended commands that the server of this connection has.
    pub(crate) fn capabilities(&self) -> &[String] {
        &self.capabilities
    }

    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up && self.greeting.is_empty() && !self.must_close
    }

    /// Whether puts go into this tube.
    pub(crate) fn uses(&self, tube: &str) -> bool {
        self.wanted.used == tube
    }

    /// Whether the connection has reserved jobs that were not finished.
    pub(crate) fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// The same, for jobs other than this one.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_holding_besides(&self, id: Option<JobId>) -> bool {
        self.held.iter().any(|held| Some(*held) != id)
    }

    /// Whether something was sent whose reply is due, or is being sent.
    pub(crate) fn is_busy(&self) -> bool {
        let is_sending = self.output_sent < self.output.len();
        is_sending || !self.in_flight.is_empty() || !self.greeting.is_empty()
    }

    /// Whether the connection was idle for so long that the server may have closed it meanwhile.
    pub(crate) fn was_idle(&self, now: Instant) -> bool {
        let is_recent = |at| now.duration_since(at) < RECENT;
        self.is_up() && !self.is_busy() && !self.last_reply.is_some_and(is_recent)
    }

    /// Whether a token was sent that is not the configured one: the connection has another role then.
    pub(crate) fn has_other_token(&self) -> bool {
        self.token != self.config.token
    }

    /// Forget the timeout, the token, and which tubes are used and watched: before the next work the
    /// connection is told the defaults. One that [has another token](Link::has_other_token) must have
    /// been closed.
    pub(crate) fn forget_user(&mut self) {
        self.wanted = Session::default();
        self.timeout = self.config.timeout;
        self.token.clone_from(&self.config.token);
    }

    /// Watch these tubes and no others: the connection is told before the next work. The names must have
    /// been checked.
    pub(crate) fn watch_only(&mut self, tubes: &[String]) {
        self.wanted.watched = tubes.to_vec();
    }

    /// Begin this work. What is under way is given up, and its connection is closed.
    pub(crate) fn begin(&mut self, requests: Vec<Request>, now: Instant, is_patient: bool) {
        if self.is_busy() {
            self.close();
        }
        let wait = requests.iter().map(|request| request.wait).max();
        self.patience = self.timeout + wait.unwrap_or_default();
        self.deadline = now + self.patience;
        self.is_patient = is_patient;
        self.last_error = None;
        self.failures = 0;
        self.work.clear();
        self.unsent.clear();
        self.unresolved = 0;
        for request in requests {
            self.push(request);
        }
    }

    /// Add a request to the work.
    pub(crate) fn push(&mut self, request: Request) {
        self.unsent.push_back(self.work.len());
        self.unresolved += 1;
        self.work.push(Item {
            request,
            end: 0,
            result: None,
            is_repeated: false,
        });
    }

    /// What is under way was told to end, or ends by itself after `wait`: from now on it has the time of
    /// a call, be its own time almost over or long.
    pub(crate) fn hasten(&mut self, wait: Duration, now: Instant) {
        self.patience = self.timeout + wait;
        self.deadline = now + self.patience;
    }

    /// The results of the work, in its order. An open one has become an error.
    pub(crate) fn take(&mut self) -> Vec<Result<Reply>> {
        let open = || Err(Error::new(ErrorKind::Unanswered, "the call was given up"));
        let work = self.work.drain(..);
        let results = work.map(|item| item.result.unwrap_or_else(open)).collect();
        self.unresolved = 0;
        self.unsent.clear();
        results
    }

    /// What is to be done next.
    pub(crate) fn next(&mut self, now: Instant) -> Step<'_> {
        loop {
            if self.must_close {
                self.must_close = false;
                return Step::Close;
            }
            if self.unresolved == 0 {
                return Step::Done;
            }
            if now >= self.deadline {
                self.expire();
                continue;
            }
            if self.state == State::Down {
                if let Some(until) = self.not_before.filter(|until| now < *until) {
                    return Step::Pause(until.min(self.deadline));
                }
                let until = (now + self.config.connect_timeout).min(self.deadline);
                let index = self.address % self.config.addresses.len();
                return Step::Connect(&self.config.addresses[index], until);
            }
            if self.greeting_deadline.is_some_and(|until| now >= until) {
                let late = io::Error::new(io::ErrorKind::TimedOut, "no answer to the greeting");
                self.lost(&late, now);
                continue;
            }
            if self.told != self.wanted && self.greeting.is_empty() && self.in_flight.is_empty() {
                self.tell_session(now);
            }
            if self.greeting.is_empty() {
                self.fill();
            }
            let until = self
                .greeting_deadline
                .unwrap_or(self.deadline)
                .min(self.deadline);
            if self.output_sent < self.output.len() {
                return Step::Send(&self.output[self.output_sent..], until);
            }
            if !self.greeting.is_empty() || !self.in_flight.is_empty() {
                return Step::Receive(until);
            }
            if self.unresolved > 0 {
                self.fail_all(&Error::new(
                    ErrorKind::Unanswered,
                    "the connection was closed",
                ));
            }
        }
    }

    /// The connection is there: greet the server.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.reset();
        self.state = State::Up;
        if let Some(token) = self.token.clone() {
            match request::auth(&token) {
                Ok(auth) => self.greet(Greeting::Auth, &auth.bytes, now),
                Err(error) => return self.give_up(&error),
            }
        }
        self.greet(Greeting::Capabilities, &request::capabilities().bytes, now);
        self.tell_session(now);
    }

    fn greet(&mut self, greeting: Greeting, line: &[u8], now: Instant) {
        self.give(line);
        self.greeting.push_back(greeting);
        self.greeting_deadline = Some(now + self.config.connect_timeout);
    }

    /// Tell the connection which tubes it uses and watches.
    fn tell_session(&mut self, now: Instant) {
        let (told, wanted) = (self.told.clone(), self.wanted.clone());
        let uses = (told.used != wanted.used).then(|| request::use_tube(&wanted.used));
        let watches = wanted
            .watched
            .iter()
            .filter(|tube| !told.watched.contains(tube));
        let ignores = told
            .watched
            .iter()
            .filter(|tube| !wanted.watched.contains(tube));
        let lines = uses.into_iter();
        let lines = lines.chain(watches.map(|tube| request::watch(tube)));
        let lines = lines.chain(ignores.map(|tube| request::ignore(tube)));
        // The names were checked when they were set.
        for line in lines.flatten() {
            self.greet(Greeting::Session, &line.bytes, now);
        }
        self.told = wanted;
    }

    fn give(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
        self.bytes_given += bytes.len() as u64;
    }

    /// Put requests into the output, as many as may be under way.
    fn fill(&mut self) {
        if self.in_flight.len() > IN_FLIGHT_MAX / 2 {
            return;
        }
        let waiting = |link: &Link| {
            let items = link.in_flight.iter().map(|index| &link.work[*index]);
            items.fold((0, false), |(bytes, has_document), item| {
                let request = &item.request;
                (
                    bytes + request.bytes.len(),
                    has_document || request.has_document,
                )
            })
        };
        let (mut bytes, mut has_document) = waiting(self);
        while let Some(index) = self.unsent.front().copied() {
            let request = &self.work[index].request;
            if let Some(command) = request.needs
                && !self.capabilities.iter().any(|it| it == command)
            {
                self.unsent.pop_front();
                self.resolve(index, Err(Error::unsupported(command)));
                continue;
            }
            let is_first = self.in_flight.is_empty();
            has_document |= request.has_document;
            bytes += request.bytes.len();
            let is_full = self.in_flight.len() >= IN_FLIGHT_MAX
                || self.output.len() - self.output_sent >= SEND_SIZE
                || (has_document && bytes > BESIDE_DOCUMENT_MAX);
            if is_full && !is_first {
                return;
            }
            self.unsent.pop_front();
            self.in_flight.push_back(index);
            let request = &self.work[index].request.bytes;
            self.output.extend_from_slice(request);
            self.bytes_given += request.len() as u64;
            self.work[index].end = self.bytes_given;
        }
    }

    /// This many bytes were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.output_sent += count;
        self.bytes_sent += count as u64;
        if self.output_sent >= self.output.len() {
            self.output.clear();
            self.output_sent = 0;
            if self.output.capacity() > 4 * SEND_SIZE {
                self.output = Vec::new();
            }
        }
    }

    /// These bytes have arrived.
    pub(crate) fn received(&mut self, bytes: &[u8], now: Instant) {
        self.parser.push(bytes);
        loop {
            let reply = match self.parser.next_reply() {
                Ok(Some(reply)) => reply,
                Ok(None) => return,
                Err(error) => return self.break_off(&error),
            };
            if let Some(greeting) = self.greeting.pop_front() {
                if let Err(error) = self.greeted(&greeting, reply) {
                    return self.give_up(&error);
                }
                if self.greeting.is_empty() {
                    self.greeting_deadline = None;
                }
            } else if let Some(index) = self.in_flight.pop_front() {
                self.answered(index, reply, now);
            } else {
                let text = "the server sent a reply to nothing";
                return self.break_off(&Error::protocol(text));
            }
            if self.state == State::Down {
                return;
            }
        }
    }

    fn greeted(&mut self, greeting: &Greeting, reply: Reply) -> Result<()> {
        match greeting {
            Greeting::Auth => authenticated(reply).map(|_| ()),
            Greeting::Capabilities => {
                self.capabilities = read_capabilities(reply)?;
                Ok(())
            }
            Greeting::Session => match reply {
                Reply::Using(_) | Reply::Watching(_) => Ok(()),
                other => Err(refused(&other)),
            },
        }
    }

    fn answered(&mut self, index: usize, reply: Reply, now: Instant) {
        self.failures = 0;
        self.last_reply = Some(now);
        self.deadline = now + self.patience;
        self.note(index, &reply);
        let item = &self.work[index];
        let is_unclear = item.is_repeated && item.request.repeat == Repeat::Check;
        let result = match is_unclear && reply == Reply::Word(Word::NotFound) {
            false => Ok(reply),
            true => {
                let text = "the connection ended before the reply; the job is not there now, \
                            because of this call or for another reason";
                Err(Error::new(ErrorKind::Unanswered, text))
            }
        };
        self.resolve(index, result);
    }

    /// Keep what a reply says about the connection.
    fn note(&mut self, index: usize, reply: &Reply) {
        match reply {
            Reply::Reserved(id, _) => _ = self.held.insert(*id),
            Reply::Batch(jobs) => self.held.extend(jobs.iter().map(|job| job.id)),
            _ => {}
        }
        match (&self.work[index].request.effect, reply) {
            (Effect::Use(tube), Reply::Using(_)) => {
                self.wanted.used.clone_from(tube);
                self.told.used.clone_from(tube);
            }
            (Effect::Watch(tube), Reply::Watching(_)) if !self.wanted.watched.contains(tube) => {
                self.wanted.watched.push(tube.clone());
                self.told = self.wanted.clone();
            }
            (Effect::Ignore(tube), Reply::Watching(_)) => {
                self.wanted.watched.retain(|it| it != tube);
                self.told = self.wanted.clone();
            }
            (
                Effect::Finish(ids),
                Reply::Each(..)
                | Reply::DeadLettered(_)
                | Reply::Word(Word::Deleted | Word::Released | Word::Buried | Word::NotFound),
            ) => {
                for id in ids {
                    self.held.remove(id);
                }
            }
            (Effect::Token(token), Reply::Word(Word::Authenticated | Word::UnknownCommand)) => {
                self.token = Some(token.clone());
            }
            (Effect::Token(_), _) => self.close(),
            (Effect::Capabilities, _) => {
                self.capabilities = read_capabilities(reply.clone()).unwrap_or_default();
            }
            _ => {}
        }
    }

    fn resolve(&mut self, index: usize, result: Result<Reply>) {
        let item = &mut self.work[index];
        if item.result.is_none() {
            item.result = Some(result);
            self.unresolved -= 1;
        }
    }

    /// The connection could not be made, or has ended.
    pub(crate) fn lost(&mut self, error: &io::Error, now: Instant) {
        let index = self.address % self.config.addresses.len();
        let address = &self.config.addresses[index];
        let is_of_connect = self.state == State::Down;
        let text = match is_of_connect {
            true => format!("cannot connect to {address}: {error}"),
            false => format!("the connection to {address} ended: {error}"),
        };
        let kind = ErrorKind::Connect;
        let source = io::Error::new(error.kind(), error.to_string());
        self.last_error = Some(Error::new(kind, text).because(source));
        let mut again = Vec::new();
        for index in std::mem::take(&mut self.in_flight) {
            let item = &mut self.work[index];
            let may_have_run = self.bytes_sent >= item.end;
            let is_repeated = self.config.repeats && item.request.repeat != Repeat::Never;
            if may_have_run && !is_repeated {
                self.resolve(index, Err(unanswered(error)));
            } else {
                item.is_repeated |= may_have_run;
                again.push(index);
            }
        }
        for index in again.into_iter().rev() {
            self.unsent.push_front(index);
        }
        self.close();
        self.must_close &= !is_of_connect;
        self.failures = self.failures.saturating_add(1);
        self.address = self.address.wrapping_add(1);
        let addresses = u32::try_from(self.config.addresses.len()).unwrap_or(u32::MAX);
        if self.failures > addresses {
            self.not_before = Some(now + self.backoff(self.failures - addresses));
        }
        if !self.is_patient && self.failures >= addresses {
            let error = self.last_error.clone();
            self.fail_all(&error.unwrap_or_else(|| Error::new(kind, "no connection")));
        }
    }

    /// The pause before attempt `count`: doubled each time, a half of it by chance.
    fn backoff(&mut self, count: u32) -> Duration {
        let doubled = 1_u32.checked_shl(count - 1).unwrap_or(u32::MAX);
        let longest = self
            .config
            .backoff_min
            .saturating_mul(doubled)
            .min(self.config.backoff_max);
        // The generator of Marsaglia (xorshift64).
        self.random |= 1;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let half = longest / 2;
        half + half.mul_f64((self.random >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// The bytes of the peer make no sense: what was asked and not answered is an error.
    fn break_off(&mut self, error: &Error) {
        for index in std::mem::take(&mut self.in_flight) {
            self.resolve(index, Err(error.clone()));
        }
        if !self.greeting.is_empty() {
            self.fail_all(error);
        }
        self.close();
    }

    /// The server wants nothing of us: trying again does not help.
    fn give_up(&mut self, error: &Error) {
        self.fail_all(error);
        self.close();
    }

    fn fail_all(&mut self, error: &Error) {
        self.unsent.clear();
        self.in_flight.clear();
        for index in 0..self.work.len() {
            self.resolve(index, Err(error.clone()));
        }
    }

    /// The time is over.
    fn expire(&mut self) {
        let late = io::Error::new(io::ErrorKind::TimedOut, "no answer within the time");
        let is_busy = self.is_busy();
        for index in std::mem::take(&mut self.in_flight) {
            let item = &self.work[index];
            let may_have_run = self.bytes_sent >= item.end || item.is_repeated;
            let error = match may_have_run && item.request.repeat != Repeat::Always {
                true => unanswered(&late),
                false => Error::new(ErrorKind::TimedOut, "no answer within the time"),
            };
            self.resolve(index, Err(error));
        }
        for index in std::mem::take(&mut self.unsent) {
            let item = &self.work[index];
            let is_unclear = item.is_repeated && item.request.repeat != Repeat::Always;
            let error = match self.last_error.clone() {
                _ if is_unclear => unanswered(&late),
                Some(error) => error,
                None => Error::new(ErrorKind::TimedOut, "no answer within the time"),
            };
            self.resolve(index, Err(error));
        }
        if is_busy {
            self.close();
        }
    }

    /// Have the connection closed; what it had reserved is not reserved any more.
    pub(crate) fn close(&mut self) {
        self.must_close |= self.state == State::Up;
        self.state = State::Down;
        self.in_flight.clear();
        self.reset();
    }

    fn reset(&mut self) {
        self.parser.reset();
        self.output.clear();
        self.output_sent = 0;
        self.bytes_given = 0;
        self.bytes_sent = 0;
        self.greeting.clear();
        self.greeting_deadline = None;
        self.told = Session::default();
        self.capabilities.clear();
        self.held.clear();
        self.not_before = None;
    }
}

fn unanswered(error: &io::Error) -> Error {
    let text = format!("the call was sent and not answered, and may have been done: {error}");
    let source = io::Error::new(error.kind(), error.to_string());
    Error::new(ErrorKind::Unanswered, text).because(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls;

    /// A link that waits in a reserve of an hour.
    fn waiting(now: Instant) -> Link {
        let mut link = Link::new("host".parse().unwrap(), now);
        let call = calls::reserve(Duration::from_secs(3600)).unwrap();
        link.begin(vec![call.request], now, false);
        assert!(matches!(link.next(now), Step::Connect(..)));
        link.connected(now);
        send(&mut link, now);
        link.received(b"OK 12\r\n---\n- abort\n\r\n", now);
        send(&mut link, now);
        link
    }

    fn send(link: &mut Link, now: Instant) {
        while let Step::Send(bytes, _) = link.next(now) {
            let size = bytes.len();
            link.sent(size);
        }
    }

    #[test]
    fn a_wait_that_is_told_to_end_has_the_time_of_a_call() {
        let now = Instant::now();
        let timeout = Link::new("host".parse().unwrap(), now).config.timeout;
        for later in [0, 1800, 3600, 7200].map(Duration::from_secs) {
            let (mut link, now) = (waiting(now), now + later);
            link.push(calls::abort().request);
            link.hasten(Duration::ZERO, now);
            send(&mut link, now);
            let Step::Receive(until) = link.next(now) else {
                panic!("after {later:?}");
            };
            assert_eq!(until, now + timeout);
            assert!(link.is_up());
            link.received(b"TIMED_OUT\r\nABORTED\r\n", now);
            assert!(matches!(link.next(now), Step::Done));
            // One that does not answer is given up then.
            let mut link = waiting(now);
            link.push(calls::abort().request);
            link.hasten(Duration::ZERO, now);
            send(&mut link, now);
            assert!(matches!(link.next(now + timeout), Step::Close));
        }
    }
}
