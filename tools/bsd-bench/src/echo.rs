//! `bsd-bench echo`: a server that parses and answers, and does nothing else: the cost of sockets
//! and a loop, and so a limit for any server of this protocol under the same load.
//!
//! It does the work that no server can avoid: it reads every byte, finds the end of every line and
//! body, and answers each command with a reply of the right kind and size (a reserve with a body as
//! large as the last one that this connection put). It keeps no job. With a log it also does what
//! no durable server can avoid: in each turn of its loop in which a durable command came (anything
//! except a reserve or a touch, for example), one write of everything that came, and one sync,
//! before the replies are sent. The log is a file of zeros that is overwritten in a circle, which
//! is the cheapest way.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bsd::storage::RealFs;
use bsd::storage::disk::{File, Fs, OpenMode, write_all_at};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::connection::READ_SIZE;
use crate::process::check;
use crate::wire::{parse_number, push_line};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Listen on HOST
    #[arg(short = 'l', value_name = "HOST", default_value = "127.0.0.1")]
    host: std::net::IpAddr,
    /// Listen on PORT
    #[arg(short = 'p', value_name = "PORT", default_value_t = 11300)]
    port: u16,
    /// Write and sync the commands to a file in DIR, once a turn, before the replies are sent
    #[arg(short = 'b', value_name = "DIR")]
    dir: Option<PathBuf>,
    /// No effect; there is one way to sync
    #[arg(short = 'f', value_name = "MS", requires = "dir")]
    _interval: Option<u32>,
}

const LISTENER: Token = Token(usize::MAX);
/// Bytes of the file that is overwritten.
const LOG_SIZE: u64 = 64 << 20;

/// Serve until told to stop.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    bsd::rlimit::raise_descriptor_limit();
    let log = args.dir.as_deref().map(Log::create).transpose()?;
    let address = SocketAddr::new(args.host, args.port);
    Echo::listen(address, log)?.run()
}

/// The file to which all commands are written, and synced.
#[derive(Debug)]
pub(crate) struct Log {
    file: Arc<dyn File>,
    at: u64,
    /// The commands of this turn.
    turn: Vec<u8>,
}

impl Log {
    fn create(dir: &Path) -> io::Result<Log> {
        RealFs.create_dir_all(dir)?;
        let file = RealFs.open(&dir.join("echo.log"), OpenMode::CreateNew)?;
        let zeros = vec![0; 1 << 20];
        for at in (0..LOG_SIZE).step_by(zeros.len()) {
            write_all_at(&*file, &zeros, at)?;
        }
        file.sync()?;
        let turn = Vec::new();
        Ok(Log { file, at: 0, turn })
    }

    /// Make the commands of this turn durable, if any of them `has_to_last`.
    fn commit(&mut self, has_to_last: bool) -> io::Result<()> {
        if !has_to_last {
            self.turn.clear();
            return Ok(());
        }
        if self.at + self.turn.len() as u64 > LOG_SIZE {
            self.at = 0;
        }
        write_all_at(&*self.file, &self.turn, self.at)?;
        self.at += self.turn.len() as u64;
        self.turn.clear();
        self.file.sync()
    }
}

/// The state between two reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parse {
    Line,
    /// This many bytes of a body and its end are still to come.
    Body(usize),
}

/// The parser and the replies of one connection; no socket.
#[derive(Debug)]
struct Session {
    parse: Parse,
    /// The beginning of a line.
    leftover: Vec<u8>,
    body_size: usize,
    output: Vec<u8>,
}

/// State shared by all connections: the next id, the number of jobs, and bytes for bodies.
#[derive(Debug, Default)]
struct Shared {
    id: u64,
    ready: u64,
    body: Vec<u8>,
    /// A durable command came in this turn.
    has_to_last: bool,
}

impl Session {
    fn new() -> Session {
        Session {
            parse: Parse::Line,
            leftover: Vec::new(),
            body_size: 0,
            output: Vec::new(),
        }
    }

    /// Answer every command in `bytes`, the first of which may have begun earlier.
    fn take(&mut self, mut bytes: &[u8], shared: &mut Shared) {
        if !self.leftover.is_empty() {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                return self.leftover.extend_from_slice(bytes);
            };
            let mut line = std::mem::take(&mut self.leftover);
            line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.answer(&line, shared);
        }
        loop {
            match self.parse {
                Parse::Body(left) if bytes.len() < left => {
                    self.parse = Parse::Body(left - bytes.len());
                    return;
                }
                Parse::Body(left) => {
                    bytes = &bytes[left..];
                    self.parse = Parse::Line;
                    shared.id += 1;
                    shared.ready += 1;
                    shared.has_to_last = true;
                    push_line(b"INSERTED", &[shared.id], &mut self.output);
                }
                Parse::Line => match memchr::memchr(b'\n', bytes) {
                    None => return self.leftover.extend_from_slice(bytes),
                    Some(end) => {
                        self.answer(&bytes[..end], shared);
                        bytes = &bytes[end + 1..];
                    }
                },
            }
        }
    }

    fn answer(&mut self, line: &[u8], shared: &mut Shared) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        shared.has_to_last |= line.starts_with(b"rel") || matches!(line, [b'd' | b'b' | b'k', ..]);
        let reply: &[u8] = match line {
            [b'p', b'u', ..] => {
                self.body_size = last_number(line) as usize;
                self.parse = Parse::Body(self.body_size + 2);
                return;
            }
            [b'p', b'a', ..] => b"PAUSED",
            [b'r', b'e', b's', ..] if line.ends_with(b" 0") && shared.ready == 0 => b"TIMED_OUT",
            [b'r', b'e', b's', ..] => return self.reserve(shared),
            [b'r', ..] => b"RELEASED",
            [b'd', ..] => b"DELETED",
            [b'b', ..] => b"BURIED",
            [b'k', ..] => b"KICKED 1",
            [b't', ..] => b"TOUCHED",
            [b'u', ..] => b"USING default",
            [b'w', ..] => b"WATCHING 1",
            _ => b"UNKNOWN_COMMAND",
        };
        self.output.extend_from_slice(reply);
        self.output.extend_from_slice(b"\r\n");
    }

    fn reserve(&mut self, shared: &mut Shared) {
        shared.ready = shared.ready.saturating_sub(1);
        if shared.body.len() < self.body_size {
            shared.body.resize(self.body_size, b'x');
        }
        push_line(
            b"RESERVED",
            &[shared.id, self.body_size as u64],
            &mut self.output,
        );
        self.output
            .extend_from_slice(&shared.body[..self.body_size]);
        self.output.extend_from_slice(b"\r\n");
    }
}

fn last_number(line: &[u8]) -> u64 {
    let at = memchr::memrchr(b' ', line).map_or(line.len(), |at| at + 1);
    parse_number(&line[at..]).0
}

#[derive(Debug)]
struct Client {
    stream: TcpStream,
    session: Session,
    sent: usize,
}

impl Client {
    fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.session.output.len() {
            match self.stream.write(&self.session.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.session.output.clear();
        self.sent = 0;
        Ok(())
    }
}

/// The server.
#[derive(Debug)]
pub(crate) struct Echo {
    poll: Poll,
    listener: TcpListener,
    clients: Vec<Option<Client>>,
    free: Vec<usize>,
    shared: Shared,
    log: Option<Log>,
    buffer: Vec<u8>,
    /// Clients with replies that wait for the sync.
    parked: Vec<usize>,
}

impl Echo {
    pub(crate) fn listen(address: SocketAddr, log: Option<Log>) -> io::Result<Echo> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Echo {
            poll,
            listener,
            clients: Vec::new(),
            free: Vec::new(),
            shared: Shared::default(),
            log,
            buffer: vec![0; READ_SIZE],
            parked: Vec::new(),
        })
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serve until told to stop.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while check().is_ok() {
            match self.poll.poll(&mut events, Some(Duration::from_secs(1))) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    Token(index) => self.serve(index),
                }
            }
            self.release()?;
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nodelay(true)?;
            let index = self.free.pop().unwrap_or(self.clients.len());
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll
                .registry()
                .register(&mut stream, Token(index), interest)?;
            if index == self.clients.len() {
                self.clients.push(None);
            }
            let session = Session::new();
            self.clients[index] = Some(Client {
                stream,
                session,
                sent: 0,
            });
        }
    }

    fn serve(&mut self, index: usize) {
        // A client with an error is disconnected.
        if self.exchange(index).is_err() && self.clients[index].take().is_some() {
            self.free.push(index);
        }
    }

    fn exchange(&mut self, index: usize) -> io::Result<()> {
        let Some(client) = &mut self.clients[index] else {
            return Ok(());
        };
        if self.log.is_none() {
            client.flush()?;
        }
        loop {
            let count = match client.stream.read(&mut self.buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let bytes = &self.buffer[..count];
            client.session.take(bytes, &mut self.shared);
            match &mut self.log {
                Some(log) => log.turn.extend_from_slice(bytes),
                None => client.flush()?,
            }
            if count < self.buffer.len() {
                break;
            }
        }
        if self.log.is_some() {
            self.parked.push(index);
        }
        Ok(())
    }

    /// Sync, then send the replies of this turn.
    fn release(&mut self) -> io::Result<()> {
        if let Some(log) = &mut self.log {
            log.commit(std::mem::take(&mut self.shared.has_to_last))?;
        }
        for index in std::mem::take(&mut self.parked) {
            let is_gone = self.clients[index]
                .as_mut()
                .is_some_and(|client| client.flush().is_err());
            if is_gone {
                self.clients[index] = None;
                self.free.push(index);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_the_same_wherever_the_stream_is_cut() {
        let stream = b"use a\r\nput 0 0 1 3\r\na\nb\r\nreserve\r\ndelete 1\r\nbad\r\n";
        let expected =
            b"USING default\r\nINSERTED 1\r\nRESERVED 1 3\r\nxxx\r\nDELETED\r\nBURIED\r\n";
        for cut in 0..=stream.len() {
            let (mut session, mut shared) = (Session::new(), Shared::default());
            session.take(&stream[..cut], &mut shared);
            session.take(&stream[cut..], &mut shared);
            assert_eq!(session.output, expected, "cut at {cut}");
        }
    }

    #[test]
    fn only_what_changes_a_job_for_good_has_to_last() {
        let lasts = |stream: &[u8]| {
            let mut shared = Shared::default();
            Session::new().take(stream, &mut shared);
            shared.has_to_last
        };
        assert!(lasts(b"put 0 0 1 1\r\na\r\n") && lasts(b"delete 1\r\n"));
        assert!(lasts(b"release 1 0 0\r\n") && lasts(b"bury 1 0\r\n") && lasts(b"kick 1\r\n"));
        assert!(!lasts(b"reserve\r\ntouch 1\r\nuse a\r\nwatch a\r\n"));
    }

    #[test]
    fn there_is_nothing_to_drain_once_as_much_was_reserved_as_put() {
        let (mut session, mut shared) = (Session::new(), Shared::default());
        session.take(b"put 0 0 1 1\r\na\r\n", &mut shared);
        session.take(
            b"reserve-with-timeout 0\r\nreserve-with-timeout 0\r\n",
            &mut shared,
        );
        assert!(
            session
                .output
                .ends_with(b"RESERVED 1 1\r\nx\r\nTIMED_OUT\r\n")
        );
    }
}
