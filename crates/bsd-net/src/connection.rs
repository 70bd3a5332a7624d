//! One client's side of a connection: its socket, and the requests that it has begun.
//!
//! A connection owns heap memory only while something is incomplete: the beginning of a request (in
//! the decoder), or input that arrived but may not run yet (the backlog). Replies to the client are
//! kept in `output`.

use std::fmt;
use std::io::{self, Read};

use super::auth::Pass;
use super::bounds::Since;
use super::layers::Layers;
use super::socket::{Entry, Stream};
use bsd::protocol::{Decoder, Limits};
use bsd::types::{ClientId, Time};

/// Result of [`Connection::read`].
#[derive(Debug)]
pub(super) enum Input {
    /// This many bytes are in the buffer.
    Bytes(usize),
    /// This many bytes have been added to the body that the decoder waits for.
    Body(usize),
    /// Nothing has arrived; there will be an event.
    Nothing,
    /// The client will send no more.
    End,
}

/// Why a connection is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Quit,
    Closed,
    Gone,
    Broken,
    Http,
    NoToken,
    WrongToken,
    OldToken,
    NotIn,
    SlowIn,
    LargeRequests,
    Dismissed,
    LentBody,
    UnreadReplies,
    Stalled,
    Idle,
    NoLead,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ending::Quit => "quit",
            Ending::Closed => "the client closed it",
            Ending::Gone => "the client is gone",
            Ending::Broken => "the connection is broken",
            Ending::Http => "it speaks HTTP",
            Ending::NoToken => "it has shown no token",
            Ending::WrongToken => "its token is wrong",
            Ending::OldToken => "its token does not hold any more",
            Ending::NotIn => "it did not come in",
            Ending::SlowIn => "it took too long to come in",
            Ending::LargeRequests => "its requests took too much memory",
            Ending::Dismissed => "an operator has closed it",
            Ending::LentBody => "it has not taken a body that is kept for it alone",
            Ending::UnreadReplies => "its unread replies took too much memory",
            Ending::Stalled => "it has not taken its replies",
            Ending::Idle => "it was idle for too long",
            Ending::NoLead => "this member of the cluster does not lead any more",
        })
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) decoder: Decoder,
    backlog: Option<Box<Backlog>>,
    /// Why the connection is to be closed after all replies have been sent; nothing more is read or
    /// run.
    pub(super) ending: Option<Ending>,
    /// The socket may hold bytes; the next event comes only after a read has emptied it.
    pub(super) readable: bool,
    /// The client has shut down its sending side; bytes before that may still be in the socket.
    pub(super) half_closed: bool,
    /// Listed to be served.
    pub(super) queued: bool,
    /// A request of it is complete, and had to wait.
    pub(super) is_put_off: bool,
    /// It cost a whole share or more when it was served last.
    pub(super) takes_much: bool,
    /// Listed to be closed.
    pub(super) leaving: bool,
    /// The part of [`Connection::held`] that the sum over all connections includes.
    pub(super) counted: usize,
    /// When that was last updated; never while nothing is held.
    pub(super) held_since: Since,
    /// When it connected, until the client has come in (see `gate`).
    pub(super) entering: Since,
    /// The layers that it has not come through yet.
    pub(super) left: Layers,
    /// It is counted among those of its address (see `per_address`).
    pub(super) is_counted: bool,
    /// When it was served last, or connected, or got the reply that it waited for.
    pub(super) served_at: Time,
    /// Rights of its token.
    pub(super) pass: Pass,
    /// It has just shown a wrong token.
    pub(super) wrong_token: bool,
    /// It has sent a line of HTTP, and is to be closed.
    pub(super) is_http: bool,
    /// When the client is to be told that its token was wrong; until then nothing runs.
    pub(super) told_at: Since,
}

/// The connection of a client, if it is open.
pub(super) fn slot(
    connections: &mut [Option<Box<Connection>>],
    client: ClientId,
) -> Option<&mut Connection> {
    connections.get_mut(client.0 as usize)?.as_deref_mut()
}

impl Connection {
    pub(super) fn new(stream: Stream) -> Connection {
        Connection {
            stream,
            decoder: Decoder::default(),
            backlog: None,
            ending: None,
            // The first event reports what arrived before the registration.
            readable: false,
            half_closed: false,
            queued: false,
            is_put_off: false,
            takes_much: false,
            leaving: false,
            counted: 0,
            held_since: Since::NEVER,
            entering: Since::NEVER,
            left: Layers::NONE,
            is_counted: false,
            served_at: Time(0),
            pass: Pass::Open,
            wrong_token: false,
            is_http: false,
            told_at: Since::NEVER,
        }
    }

    /// True when there may be input to serve.
    pub(super) fn has_input(&self) -> bool {
        self.ending.is_none()
            && !self.told_at.is_some()
            && (self.readable || self.is_put_off || self.backlog.is_some())
    }

    /// Read once: into `buffer`, or directly into a long body that still needs at least as much.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn read(&mut self, buffer: &mut [u8], limits: Limits) -> io::Result<Input> {
        let body = self.decoder.body_buffer(buffer.len(), limits);
        let is_body = body.is_some();
        let (room, read) = match body {
            Some(body) => (body.capacity() - body.len(), self.stream.read_into(body)),
            None => (buffer.len(), self.stream.read(buffer)),
        };
        match read {
            Ok(0) => Ok(Input::End),
            Ok(count) => {
                self.note_read(count, room);
                Ok(match is_body {
                    true => Input::Body(count),
                    false => Input::Bytes(count),
                })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(Input::Nothing)
            }
            // Still readable: the next turn tries again.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Input::Nothing),
            Err(error) => Err(error),
        }
    }

    /// A read has brought `count` bytes into a buffer with this room. The end of the input comes as one
    /// more event, unless it has been reported already.
    fn note_read(&mut self, count: usize, room: usize) {
        self.readable = count == room || self.half_closed || !self.stream.short_read_empties();
    }

    /// Whether the input that has not run begins with this line, for a client of which nothing may run.
    /// No more is read than the line has, and nothing once a byte differs. What is read stays input: it
    /// runs when it may.
    pub(super) fn comes_next(&mut self, line: &[u8; 7]) -> bool {
        loop {
            let rest = self.backlog.as_deref().map_or(&[][..], Backlog::rest);
            let seen = rest.len().min(line.len());
            if rest[..seen] != line[..seen] || seen == line.len() {
                return seen == line.len() && rest.starts_with(line);
            }
            if !self.readable || !self.read_ahead(&mut [0; 7][seen..]) {
                return false;
            }
        }
    }

    /// Read into the backlog. `false`: nothing has arrived, or the client will send no more, or the
    /// connection is broken. That is seen when it is read again.
    fn read_ahead(&mut self, buffer: &mut [u8]) -> bool {
        match self.stream.read(buffer) {
            Ok(0) => false,
            Ok(count) => {
                self.note_read(count, buffer.len());
                let backlog = self.backlog.get_or_insert_default();
                backlog.bytes.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                false
            }
            Err(error) => error.kind() == io::ErrorKind::Interrupted,
        }
    }

    /// Take the next step on the way in.
    ///
    /// # Errors
    /// The client does not come in, or (`WouldBlock`) nothing has arrived.
    pub(super) fn come_in(&mut self, buffer: &mut [u8]) -> io::Result<Entry> {
        let Connection {
            stream,
            left,
            half_closed,
            ..
        } = self;
        stream.come_through(left, *half_closed, buffer)
    }

    /// True if no input waits beside the decoder.
    pub(super) fn backlog_is_empty(&self) -> bool {
        self.backlog.is_none()
    }

    /// Take the input that could not run when it arrived; `None` when all of it has run.
    pub(super) fn take_backlog(&mut self) -> Option<Box<Backlog>> {
        self.backlog.take()
    }

    /// Keep the rest of a backlog of which `taken` more bytes have run.
    pub(super) fn keep_backlog(&mut self, mut backlog: Box<Backlog>, taken: usize) {
        backlog.start += taken;
        if !backlog.rest().is_empty() {
            self.backlog = Some(backlog);
        }
    }

    /// Keep bytes that may not run yet.
    pub(super) fn keep_input(&mut self, bytes: &[u8]) {
        debug_assert!(
            self.backlog.is_none(),
            "nothing is read before the backlog has run"
        );
        self.backlog = Some(Box::new(Backlog {
            bytes: bytes.to_vec(),
            start: 0,
        }));
    }

    /// Discard all input: the connection is to be closed.
    pub(super) fn drop_input(&mut self) {
        self.backlog = None;
        self.decoder = Decoder::default();
    }

    /// Bytes of heap memory held for the client's input.
    pub(super) fn held(&self) -> usize {
        let backlog = self.backlog.as_ref().map_or(0, |it| it.bytes.capacity());
        self.decoder.held() + backlog + self.held_below()
    }

    /// Memory below the protocol, which goes only with the connection itself.
    fn held_below(&self) -> usize {
        match self.leaving {
            true => 0,
            false => self.stream.held(),
        }
    }
}

/// Input that arrived but may not run yet; not all of it has run.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    start: usize,
}

impl Backlog {
    /// The bytes that have not run.
    pub(super) fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::output::Outputs;

    const LIMITS: Limits = Limits::of(1 << 20);

    /// A connection and its client.
    fn pair() -> (Connection, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let stream = Stream::Unix(mio::net::UnixStream::from_std(ours));
        (Connection::new(stream), theirs)
    }

    /// The same over TCP. The connection blocks, so that a read waits for the bytes.
    fn tcp_pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let stream = Stream::Tcp(mio::net::TcpStream::from_std(ours));
        (Connection::new(stream), theirs)
    }

    #[test]
    fn a_connection_that_is_idle_costs_little() {
        assert!(
            size_of::<Connection>() <= 120,
            "{}",
            size_of::<Connection>()
        );
        let (connection, _client) = pair();
        assert_eq!(connection.held(), 0);
        let mut outputs = Outputs::new(usize::MAX);
        outputs.open(bsd::types::ClientId(0));
        assert_eq!(outputs.held(), 0);
    }

    #[test]
    fn a_read_brings_bytes_then_nothing_then_the_end() {
        let (mut connection, mut client) = pair();
        let mut buffer = [0; 64];
        connection.readable = true;
        client.write_all(b"stats\r\n").unwrap();
        assert!(matches!(
            connection.read(&mut buffer, LIMITS),
            Ok(Input::Bytes(7))
        ));
        assert!(connection.readable, "a Unix socket may hold more");
        assert!(matches!(
            connection.read(&mut buffer, LIMITS),
            Ok(Input::Nothing)
        ));
        assert!(!connection.readable);
        client.shutdown(Shutdown::Write).unwrap();
        assert!(matches!(
            connection.read(&mut buffer, LIMITS),
            Ok(Input::End)
        ));
    }

    #[test]
    fn a_short_read_empties_a_tcp_socket_unless_its_end_has_been_announced() {
        let (mut connection, mut client) = tcp_pair();
        let mut buffer = [0; 64];
        for (half_closed, readable) in [(false, false), (true, true)] {
            connection.half_closed = half_closed;
            client.write_all(b"x").unwrap();
            assert!(matches!(
                connection.read(&mut buffer, LIMITS),
                Ok(Input::Bytes(1))
            ));
            assert_eq!(connection.readable, readable);
        }
        client.write_all(&[0; 64]).unwrap();
        connection.half_closed = false;
        let mut small = [0; 8];
        assert!(matches!(
            connection.read(&mut small, LIMITS),
            Ok(Input::Bytes(8))
        ));
        assert!(connection.readable, "a full buffer says nothing");
    }

    #[test]
    fn looking_ahead_reads_no_more_than_the_line_and_loses_nothing() {
        const LINE: &[u8; 7] = b"abort\r\n";
        let mut buffer = [0; 64];
        for (sent, comes) in [
            (&b"abort\r\n"[..], true),
            (b"abort\r\nstats\r\n", true),
            (b"abort", false),
            (b"abort \r\n", false),
            (b"delete 1\r\n", false),
            (b"", false),
        ] {
            for is_tcp in [true, false] {
                let (mut connection, mut tcp, mut unix) = match is_tcp {
                    true => {
                        let (connection, client) = tcp_pair();
                        client.set_nodelay(true).unwrap();
                        (connection, Some(client), None)
                    }
                    false => {
                        let (connection, client) = pair();
                        (connection, None, Some(client))
                    }
                };
                // A connection over TCP blocks here: it is not read without need.
                connection.readable = !sent.is_empty();
                tcp.iter_mut().for_each(|it| it.write_all(sent).unwrap());
                unix.iter_mut().for_each(|it| it.write_all(sent).unwrap());
                if is_tcp && sent.len() < LINE.len() {
                    continue;
                }
                assert_eq!(connection.comes_next(LINE), comes);
                assert_eq!(connection.comes_next(LINE), comes, "once more");
                let backlog = connection.take_backlog().unwrap_or_default();
                assert!(backlog.rest().len() <= LINE.len());
                let mut input = backlog.rest().to_vec();
                if input.len() < sent.len() {
                    let Ok(Input::Bytes(count)) = connection.read(&mut buffer, LIMITS) else {
                        panic!("there is more");
                    };
                    input.extend_from_slice(&buffer[..count]);
                }
                assert_eq!(input, sent);
            }
        }
    }

    #[test]
    fn the_end_of_the_input_is_not_lost_by_looking_ahead() {
        let (mut connection, mut client) = pair();
        connection.readable = true;
        client.write_all(b"abo").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        assert!(!connection.comes_next(b"abort\r\n"));
        assert!(connection.has_input());
        assert_eq!(connection.take_backlog().unwrap().rest(), b"abo");
        let mut buffer = [0; 64];
        let end = connection.read(&mut buffer, LIMITS);
        assert!(matches!(end, Ok(Input::End)), "{end:?}");
    }

    #[test]
    fn a_backlog_shrinks_as_it_runs_and_is_freed() {
        let (mut connection, _client) = pair();
        assert!(connection.take_backlog().is_none());
        connection.keep_input(b"quit\r\nstats\r\n");
        assert!(connection.has_input());
        let backlog = connection.take_backlog().unwrap();
        connection.keep_backlog(backlog, 6);
        let backlog = connection.take_backlog().unwrap();
        assert_eq!(backlog.rest(), b"stats\r\n");
        connection.keep_backlog(backlog, 7);
        assert!(!connection.has_input());
        assert_eq!(connection.held(), 0);
    }

    #[test]
    fn a_long_body_is_read_where_it_is_kept_and_the_end_of_it_through_the_buffer() {
        let (mut connection, mut client) = tcp_pair();
        let mut buffer = [0; 64];
        client.write_all(b"put 0 0 60 200\r\n").unwrap();
        assert!(matches!(
            connection.read(&mut buffer, LIMITS),
            Ok(Input::Bytes(16))
        ));
        assert!(
            connection
                .decoder
                .decode(&mut &buffer[..16], LIMITS)
                .is_none()
        );
        client.write_all(&[b'x'; 22]).unwrap();
        let Ok(Input::Bytes(mut came)) = connection.read(&mut buffer, LIMITS) else {
            panic!("so little is no reason to make room for 64");
        };
        assert!(
            connection
                .decoder
                .decode(&mut &buffer[..came], LIMITS)
                .is_none()
        );
        client.write_all(&[b'x'; 128]).unwrap();
        while came < 150 {
            match connection.read(&mut buffer, LIMITS).unwrap() {
                Input::Body(count) => came += count,
                input => panic!("{input:?}"),
            }
        }
        client.write_all(&[b'x'; 50]).unwrap();
        client.write_all(b"\r\n").unwrap();
        assert!(matches!(
            connection.read(&mut buffer, LIMITS),
            Ok(Input::Bytes(_))
        ));
    }

    #[test]
    fn a_connection_that_ends_has_no_input() {
        let (mut connection, _client) = pair();
        connection.keep_input(b"stats\r\n");
        connection.readable = true;
        connection.ending = Some(Ending::Quit);
        assert!(!connection.has_input());
    }
}
