//! The engine with everything that a request of a client needs, and what a client may take of a
//! turn.
//!
//! It runs requests and parks their replies. It does not know which sockets are ready, and it closes
//! none: it says which client must give way.

use std::io;

use tracing::{enabled, trace};

use super::auth::{Auth, Pass};
use super::bounds::{Bounds, StalledClients};
use super::connection::{Connection, Ending, Input};
use super::output::{Outputs, REPLIED_PER_TURN_MAX};
use super::pulse::Pulse;
use super::schedule::Room;
use bsd::clock::Clock;
use bsd::door::Desk;
use bsd::engine::{Engine, Flow, ReplySink};
use bsd::protocol::{Command, Limits, Protocol, Refusal, Reply, Request};
use bsd::storage::{Log, StoreError};
use bsd::types::{ClientId, Now, Position, SECOND_NS, Ticket, Time};

/// Requests run for one connection before the next connection is served.
pub(super) const REQUESTS_PER_CONNECTION: usize = 512;
/// Requests run in one turn of the loop, more or less by those of one connection. It bounds how
/// long a reply, a timer or a new connection waits for the requests of others.
const REQUESTS_PER_TURN: usize = 4096;
/// Number of tubes examined that counts as one more request (see [`Engine::take_visits`]).
const VISITS_PER_REQUEST: usize = 4;
/// Bytes read in one turn of the loop, more or less by one read.
const BYTES_PER_TURN: usize = 2 << 20;
/// Cost of a connection before the next one is served, more or less by one request: the bytes of
/// its replies, and `REQUEST_COST` for each request. A connection that cost this much, including
/// the bytes that it sent, is served after those that cost less.
const SHARE: usize = 32 << 10;
const REQUEST_COST: usize = SHARE / REQUESTS_PER_CONNECTION;
/// If many connections are newly listed in one turn, each gets its part of the turn, but at least
/// this many requests and this many bytes of replies. The rest of its work is left over.
const LEAST_REQUESTS: usize = 16;
const LEAST_SHARE: usize = 2 << 10;
/// A read takes about as long as this number of small requests.
const READ_COST: usize = 8;
/// A digest of a token takes about as long as this number of small requests.
const AUTH_COST: usize = 4;
/// Bytes of bodies on their way that memory is for, or half of the bound on held input if that is
/// less. Past it, what has come of a body goes to the disk, and so does the rest of this body, each
/// time that so much is held of it.
const BODIES_MAX: usize = 8 << 20;
const SET_ASIDE_MIN: usize = 16 << 10;
/// While the disk is full, a body that is partly there and has not grown for this time, nanoseconds, is
/// refused.
const BEGUN_FOR_NS: i64 = 10 * SECOND_NS;
/// Bytes read at a time when more than half of the bound on held input is in use.
const SMALL_READ_SIZE: usize = 2 << 10;

/// While more bytes than this are kept, in memory or on the disk, only for clients that read bodies of
/// jobs that are gone, a client that takes nothing of one for this many nanoseconds is closed.
const LENT_MAX: u64 = 256 << 20;
const LENT_FOR_NS: i64 = 10 * SECOND_NS;

/// How long calls of other threads may take in a turn, in nanoseconds, more or less by one call.
const DOOR_SLICE_NS: i64 = 200_000;

/// The line that ends a waiting reserve.
const ABORT: &[u8; 7] = b"abort\r\n";

/// The engine, and what its replies and limits depend on: all of the server that requests need.
pub(super) struct Core {
    pub(super) engine: Engine,
    pub(super) outputs: Outputs,
    /// Takes in the calls of other threads. Every reply passes through it.
    pub(super) desk: Desk,
    /// The time at which the turn began.
    pub(super) now: Now,
    /// Bytes of memory held for input that is incomplete or may not run yet.
    pub(super) input_held: usize,
    /// Clients ordered by when the bytes held for them last changed.
    holders: StalledClients,
    /// Who may do what, if tokens are asked for.
    pub(super) auth: Option<Auth>,
    /// The commands that clients may use.
    pub(super) protocol: Protocol,
    bounds: Bounds,
    requests_left: usize,
    bytes_left: usize,
    /// Share of each newly listed client in this turn.
    first_share: Share,
    /// When a sync began in the background, and up to which position.
    syncing: Option<(Time, Position)>,
    /// A request of this size, bytes, had to wait for a commit.
    put_off: Option<usize>,
}

/// Share of a connection before the next one is served.
#[derive(Debug, Clone, Copy)]
struct Share {
    requests: usize,
    /// Bytes of replies. Also the bound on the whole cost: replies, the bytes that were sent, and
    /// `REQUEST_COST` for each request.
    bytes: usize,
}

impl Share {
    const WHOLE: Share = Share {
        requests: REQUESTS_PER_CONNECTION,
        bytes: SHARE,
    };

    /// The share of each of `count` clients that come together.
    fn among(count: usize) -> Share {
        let count = count.max(1);
        Share {
            requests: (REQUESTS_PER_TURN / count).clamp(LEAST_REQUESTS, REQUESTS_PER_CONNECTION),
            bytes: (REPLIED_PER_TURN_MAX / count).clamp(LEAST_SHARE, SHARE),
        }
    }
}

impl Core {
    pub(super) fn new(engine: Engine, desk: Desk, bounds: Bounds, now: Now) -> Core {
        let outputs = Outputs::new(bounds.output_max);
        Core {
            engine,
            outputs,
            desk,
            now,
            input_held: 0,
            holders: StalledClients::default(),
            auth: None,
            protocol: Protocol::default(),
            bounds,
            requests_left: 0,
            bytes_left: 0,
            first_share: Share::WHOLE,
            syncing: None,
            put_off: None,
        }
    }

    pub(super) fn begin_turn(&mut self, now: Now) {
        self.now = now;
        self.outputs.begin_turn(now.mono);
        (self.requests_left, self.bytes_left) = (REQUESTS_PER_TURN, BYTES_PER_TURN);
        self.put_off = None;
    }

    pub(super) fn is_turn_full(&self) -> bool {
        self.put_off.is_some()
            || self.requests_left == 0
            || self.bytes_left == 0
            || self.outputs.is_full()
    }

    /// True if a request was put off, and there is still no room for it: only a commit makes some.
    pub(super) fn waits_for_commit(&self) -> bool {
        self.put_off
            .is_some_and(|size| !self.engine.has_room_for(size))
    }

    /// This many clients are newly listed in this turn.
    pub(super) fn share_out(&mut self, count: usize) {
        self.first_share = Share::among(count);
    }

    /// Which clients may still be served in this turn.
    pub(super) fn room(&self) -> Room {
        if self.is_turn_full() {
            Room::None
        } else if self.outputs.is_behind() {
            Room::Again
        } else {
            Room::All
        }
    }

    /// Run what the connection has begun; if there is nothing, what one read brings.
    pub(super) fn serve(
        &mut self,
        client: ClientId,
        connection: &mut Connection,
        buffer: &mut [u8],
    ) -> io::Result<()> {
        if std::mem::take(&mut connection.is_put_off) && connection.backlog_is_empty() {
            self.run(client, connection, &[]);
        } else if let Some(backlog) = connection.take_backlog() {
            let taken = self.run(client, connection, backlog.rest());
            connection.keep_backlog(backlog, taken);
        } else {
            let size = match self.input_held > self.bounds.input_max / 2 {
                true => SMALL_READ_SIZE,
                false => buffer.len(),
            };
            self.requests_left = self.requests_left.saturating_sub(READ_COST);
            let limits = self.limits(&connection.pass);
            match connection.read(&mut buffer[..size], limits)? {
                Input::Bytes(count) => self.run_new(client, connection, &buffer[..count]),
                Input::Body(count) => {
                    self.bytes_left = self.bytes_left.saturating_sub(count);
                    self.run(client, connection, &[]);
                    connection.takes_much |= count >= SHARE;
                }
                Input::Nothing => {}
                Input::End => connection.ending = Some(Ending::Closed),
            }
        }
        self.set_aside(client, connection);
        Ok(())
    }

    /// If memory is not for it, what is held of the body of a client goes to the disk. What is there of
    /// a body that will not come is let go.
    fn set_aside(&mut self, client: ClientId, connection: &mut Connection) {
        let decoder = &mut connection.decoder;
        let held = self.input_held - connection.counted + decoder.held();
        let is_much = held > BODIES_MAX.min(self.bounds.input_max / 2);
        if (is_much || decoder.begun() > 0)
            && let Some(bytes) = decoder.beginning()
            && bytes.len() >= SET_ASIDE_MIN
            && self.engine.keep_begun(client, bytes, self.now)
        {
            decoder.set_aside();
        }
        if decoder.begun() == 0 {
            self.engine.forget_begun(client);
        }
    }

    fn run_new(&mut self, client: ClientId, connection: &mut Connection, input: &[u8]) {
        self.bytes_left = self.bytes_left.saturating_sub(input.len());
        let taken = self.run(client, connection, input);
        if taken < input.len() && connection.ending.is_none() {
            connection.keep_input(&input[taken..]);
        }
    }

    /// Run the requests that are complete with `input` until the input ends, or the connection has
    /// had its share, or it may not continue. Returns how many bytes were taken.
    ///
    /// A newly listed client that peeks at a large body is deferred: it is served with the clients
    /// that are left over. Otherwise the copies that thousands of clients want at once would make
    /// all clients wait.
    fn run(&mut self, client: ClientId, connection: &mut Connection, input: &[u8]) -> usize {
        let mut taken = 0;
        let mut cost = 0;
        let is_left_over = connection.takes_much;
        let Share {
            requests: mut share,
            bytes: bytes_max,
        } = match is_left_over {
            true => Share::WHOLE,
            false => self.first_share,
        };
        let mut put_off = false;
        let replied_before = self.outputs.replied();
        while share > 0
            && self.outputs.may_run(client)
            && self.outputs.replied() - replied_before < bytes_max
        {
            let mut rest = &input[taken..];
            // What the next request brings is in the input, and in what has come of it before.
            let size = connection.decoder.held() + rest.len();
            if size > 0 && !self.engine.has_room_for(size) {
                self.put_off = Some(size);
                connection.is_put_off = true;
                put_off = true;
                break;
            }
            let limits = self.limits(&connection.pass);
            let begun = connection.decoder.begun();
            let Some(mut request) = connection.decoder.decode(&mut rest, limits) else {
                taken = input.len();
                break;
            };
            // `input` begins with such a line only if no part of the line came in an earlier read.
            if !is_left_over
                && input[taken..].starts_with(b"peek")
                && self.engine.peeked_size(client, &request) >= bytes_max
            {
                put_off = true;
                cost += 1;
                break;
            }
            taken = input.len() - rest.len();
            share -= 1;
            trace_request(client, begun, &request);
            if let Request::Refused {
                refusal: Refusal::Http,
                ..
            } = request
            {
                connection.is_http = true;
                connection.ending = Some(Ending::Http);
                break;
            }
            if let Request::Auth(token) = request
                && let Some(auth) = self.auth.as_mut().filter(|_| !connection.pass.is_open())
            {
                cost += AUTH_COST;
                match auth.check(token) {
                    Some((pass, name)) => {
                        connection.pass = pass;
                        self.outputs.authenticate(client, name);
                    }
                    None => {
                        connection.wrong_token = true;
                        break;
                    }
                }
                continue;
            }
            if !connection.pass.allows(&mut request, client, &self.engine) {
                self.engine.forget_begun(client);
                // It may tell that a job is there: not before the job is durable.
                self.outputs
                    .reply(client, self.engine.after(), Reply::NotAuthorized);
                if connection.pass.is_asked() {
                    connection.ending = Some(Ending::NoToken);
                    break;
                }
            } else {
                assert_eq!(
                    self.engine.begun_of(client),
                    begun,
                    "a put has the beginning of its body, and no other"
                );
                let mut replies = self.desk.replies(&mut self.outputs);
                match self.engine.run(client, request, self.now, &mut replies) {
                    Flow::Next => {}
                    Flow::Blocked => self.block(client, connection.half_closed),
                    Flow::Close => {
                        connection.ending = Some(Ending::Quit);
                        break;
                    }
                }
            }
            let more = self.engine.take_visits() / VISITS_PER_REQUEST;
            share = share.saturating_sub(more);
            cost += 1 + more;
        }
        self.requests_left = self.requests_left.saturating_sub(cost);
        let bytes = taken + self.outputs.replied() - replied_before;
        let is_cut = share == 0 || self.outputs.replied() - replied_before >= bytes_max;
        connection.takes_much = put_off || is_cut || REQUEST_COST * cost + bytes >= SHARE;
        connection.decoder.end_request();
        taken
    }

    /// The client waits for a reply; if it has shut down its sending side, it does not wait.
    fn block(&mut self, client: ClientId, half_closed: bool) {
        self.outputs.block(client);
        if half_closed {
            self.half_close(client);
        }
    }

    pub(super) fn half_close(&mut self, client: ClientId) {
        let mut replies = self.desk.replies(&mut self.outputs);
        self.engine.half_closed(client, self.now, &mut replies);
    }

    /// Look whether a client that waits for a job has sent `abort`. Its reserve ends then, and the line
    /// runs when that was answered. Everything else waits, unread, as it does for each other client that
    /// is blocked.
    pub(super) fn look_for_abort(&mut self, client: ClientId, connection: &mut Connection) {
        if self.protocol == Protocol::Extended
            && self.outputs.is_blocked(client)
            && self.engine.queue().is_waiting(client)
        {
            if connection.comes_next(ABORT) {
                self.half_close(client);
            }
            self.count_held(client, connection);
        }
    }

    /// Anyone who has not shown the token that it needs brings no bodies, and no long lines.
    fn limits(&self, pass: &Pass) -> Limits {
        if pass.is_asked() {
            return Limits {
                job_size_max: 0,
                memory_left: 0,
                protocol: Protocol::Beanstalkd,
            };
        }
        Limits {
            job_size_max: self.engine.job_size_max(),
            memory_left: self.engine.memory_left(),
            protocol: self.protocol,
        }
    }

    /// Something that is no request has cost as much as this many.
    pub(super) fn charge(&mut self, requests: usize) {
        self.requests_left = self.requests_left.saturating_sub(requests);
    }

    /// The engine's part of a turn after the requests. Then replies may leave as far as the log has
    /// caught up.
    pub(super) fn tick_and_commit(
        &mut self,
        clock: &Clock,
        pulse: &Pulse,
    ) -> Result<(), StoreError> {
        let mut replies = self.desk.replies(&mut self.outputs);
        self.engine.tick(self.now, &mut replies)?;
        self.commit(clock, pulse)?;
        self.acknowledge(self.engine.acknowledged());
        Ok(())
    }

    /// Replies and answers that wait for a ticket up to this one may leave.
    pub(super) fn acknowledge(&mut self, acknowledged: Ticket) {
        self.outputs.acknowledge(acknowledged);
        self.desk.acknowledge(acknowledged);
        self.engine.tell_events(self.now);
    }

    /// Commit, and measure how long it takes until the data is durable.
    fn commit(&mut self, clock: &Clock, pulse: &Pulse) -> Result<(), StoreError> {
        let begun = self.engine.will_wait().then(|| clock.now().mono);
        self.engine.commit(self.now)?;
        if let Some(begun) = begun {
            pulse.note_sync(clock.now().mono.since(begun));
            return Ok(());
        }
        let Some(log) = self.engine.log() else {
            return Ok(());
        };
        if let Some((since, upto)) = self.syncing
            && log.durable() >= upto
        {
            pulse.note_sync(self.now.mono.since(since));
            self.syncing = None;
        }
        if log.is_syncing() && self.syncing.is_none() {
            self.syncing = Some((self.now.mono, log.written()));
        }
        Ok(())
    }

    /// Run calls of other threads, as many as a slice of the turn allows.
    pub(super) fn serve_door(&mut self, clock: &Clock, pulse: &Pulse) {
        // The clock is read after the first call, or in the first step.
        let mut seen: Option<(Time, Time)> = None;
        let mut is_over = || {
            let now = clock.now().mono;
            let (begun, _) = *seen.get_or_insert((now, now));
            seen = Some((begun, now));
            now.since(begun) >= DOOR_SLICE_NS
        };
        let Core {
            engine,
            desk,
            outputs,
            now,
            ..
        } = self;
        desk.serve(engine, *now, outputs, &mut is_over);
        if let Some((begun, last)) = seen {
            pulse.note_calls(last.since(begun));
        }
    }

    /// Update the sum of held bytes with this connection.
    pub(super) fn count_held(&mut self, client: ClientId, connection: &mut Connection) {
        let held = connection.held();
        if held == 0 && connection.counted == 0 {
            return;
        }
        self.input_held = self.input_held - connection.counted + held;
        connection.counted = held;
        let since = (held > 0).then_some(self.now.mono);
        self.holders
            .replace(client, &mut connection.held_since, since);
    }

    /// When a client reaches the maximum time without taking anything.
    pub(super) fn next_idle(&self) -> Option<Time> {
        let lent = self.longest_lent().map(|(until, _)| until);
        let begun = self.longest_begun().map(|(until, _)| until);
        let others = lent.into_iter().chain(begun);
        self.next_stalled().into_iter().chain(others).min()
    }

    /// While the disk is full: the one whose body on the disk is refused next, and when.
    fn longest_begun(&self) -> Option<(Time, ClientId)> {
        let (since, client) = self.engine.longest_begun()?;
        let is_full = self.engine.log().is_some_and(Log::is_disk_full);
        is_full.then(|| (Time(since.0.saturating_add(BEGUN_FOR_NS)), client))
    }

    /// While too much is kept only because clients read it: the one to close next, and when.
    fn longest_lent(&self) -> Option<(Time, ClientId)> {
        if self.engine.lent() <= LENT_MAX {
            return None;
        }
        let (since, client) = self.outputs.longest_lent()?;
        Some((Time(since.0.saturating_add(LENT_FOR_NS)), client))
    }

    fn next_stalled(&self) -> Option<Time> {
        let (since, _) = self.outputs.longest_stalled()?;
        if self.outputs.is_over() {
            return Some(since);
        }
        let idle = i64::try_from(self.bounds.idle_output?.as_nanos()).unwrap_or(i64::MAX);
        Some(Time(since.0.saturating_add(idle)))
    }

    /// The client to close because someone said so, or it does not take its replies, and why.
    pub(super) fn next_to_close(&mut self) -> Option<(ClientId, Ending)> {
        if let Some(client) = self.outputs.next_dismissed() {
            return Some((client, Ending::Dismissed));
        }
        if let Some((until, client)) = self.longest_lent()
            && until <= self.now.mono
        {
            return Some((client, Ending::LentBody));
        }
        let (_, client) = self.outputs.longest_stalled()?;
        if self.outputs.is_over() {
            return Some((client, Ending::UnreadReplies));
        }
        (self.next_stalled()? <= self.now.mono).then_some((client, Ending::Stalled))
    }

    /// The client whose request is to be refused because too much is held for requests, or because
    /// others need the room that it takes on the disk. A client alone may exceed the bound.
    pub(super) fn next_to_refuse(&self) -> Option<ClientId> {
        if let Some((until, client)) = self.longest_begun()
            && until <= self.now.mono
        {
            return Some(client);
        }
        let is_over = self.input_held > self.bounds.input_max && self.holders.len() > 1;
        let (_, client) = self.holders.longest().filter(|_| is_over)?;
        Some(client)
    }

    pub(super) fn forget(&mut self, client: ClientId, connection: &mut Connection) {
        self.input_held -= connection.counted;
        self.holders
            .replace(client, &mut connection.held_since, None);
        self.outputs.close(client);
        self.engine.disconnect(client, self.now);
    }
}

/// Bodies are left out: they are long, and they may be confidential. So are tokens.
fn trace_request(client: ClientId, begun: usize, request: &Request<'_>) {
    if !enabled!(tracing::Level::TRACE) {
        return;
    }
    let client = client.0;
    match request {
        Request::Command(Command::Put {
            pri,
            delay,
            ttr,
            body,
            ..
        }) => {
            let size = begun + body.len();
            trace!(client, pri, delay, ttr, size, "put");
        }
        Request::Command(Command::PutWith(put)) => {
            let (pri, delay, ttr, at) = (put.pri, put.delay, put.ttr, put.at);
            let (tube, size) = (&put.tube, begun + put.body.len());
            let (key, group) = (&put.key, &put.group);
            trace!(
                client,
                pri,
                delay,
                ttr,
                at,
                ?tube,
                ?key,
                ?group,
                size,
                "put-with"
            );
        }
        Request::Command(Command::Fail { id, text }) => {
            trace!(client, id = id.0, size = text.len(), "fail");
        }
        Request::Command(Command::BuryWithReason { id, pri, text }) => {
            trace!(
                client,
                id = id.0,
                pri,
                size = text.len(),
                "bury-with-reason"
            );
        }
        Request::Command(Command::ScheduleSet(set)) => {
            let (name, words) = (&set.name, set.schedule.to_string());
            let size = set.schedule.body.len();
            trace!(client, name, words, size, "schedule-set");
        }
        Request::Command(command) => trace!(client, "{command:?}"),
        Request::Auth(_) => trace!(client, "auth"),
        Request::Quit => trace!(client, "quit"),
        Request::Refused { refusal, .. } => trace!(client, "refused: {refusal:?}"),
    }
}
