//! A small blocking client that sends raw bytes and reads whole replies.
//!
//! It knows one thing of the protocol: after `RESERVED`, `FOUND`, `OK` and the answer to a batch comes a
//! chunk whose length the line tells. A reply that does not come in time fails the test with what came.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a reply may take before the test fails.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const READ_SIZE: usize = 16 * 1024;

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<rustls::StreamOwned<rustls::ClientConnection, TcpStream>>),
}

/// One connection to a server.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: Stream,
    /// The bytes that have arrived; those before `start` have been returned.
    input: Vec<u8>,
    start: usize,
}

impl Wire {
    /// Connect over TCP.
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Wire> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Wire {
            stream: Stream::Tcp(stream),
            input: Vec::new(),
            start: 0,
        })
    }

    /// Connect over TCP, and speak TLS there to who calls itself localhost.
    pub(crate) fn connect_tls(
        address: SocketAddr,
        config: std::sync::Arc<rustls::ClientConfig>,
    ) -> io::Result<Wire> {
        Wire::connect_tls_behind(address, config, b"")
    }

    /// The same, behind what is sent in the clear.
    pub(crate) fn connect_tls_behind(
        address: SocketAddr,
        config: std::sync::Arc<rustls::ClientConfig>,
        header: &[u8],
    ) -> io::Result<Wire> {
        let Wire {
            stream: Stream::Tcp(mut stream),
            input,
            start,
        } = Wire::connect(address)?
        else {
            unreachable!("a connection over TCP");
        };
        stream.write_all(header)?;
        let name = "localhost".try_into().unwrap();
        let session = rustls::ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut tls = rustls::StreamOwned::new(session, stream);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(Wire {
            stream: Stream::Tls(Box::new(tls)),
            input,
            start,
        })
    }

    /// The session below.
    pub(crate) fn tls(&mut self) -> &mut rustls::StreamOwned<rustls::ClientConnection, TcpStream> {
        match &mut self.stream {
            Stream::Tls(stream) => stream,
            other => panic!("no session: {other:?}"),
        }
    }

    /// Connect to a unix socket.
    pub(crate) fn connect_unix(path: &Path) -> io::Result<Wire> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_write_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Wire {
            stream: Stream::Unix(stream),
            input: Vec::new(),
            start: 0,
        })
    }

    /// Send bytes as they are.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes.as_ref())
            .expect("the server takes what is sent");
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tls(stream) => stream.write_all(bytes),
        }
    }

    /// Send so much of it as goes at once, over a unix socket; its size, or why nothing went.
    pub(crate) fn send_at_once(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Stream::Unix(stream) = &mut self.stream else {
            panic!("no unix socket");
        };
        stream.set_nonblocking(true)?;
        let sent = stream.write(bytes);
        stream.set_nonblocking(false)?;
        sent
    }

    /// The next reply, with its CR LF and its chunk.
    pub(crate) fn reply(&mut self) -> Vec<u8> {
        self.try_reply().unwrap_or_else(|error| {
            panic!(
                "no reply: {error}; so far: {:?}",
                String::from_utf8_lossy(self.pending())
            )
        })
    }

    pub(crate) fn try_reply(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(size) = reply_size(self.pending()) {
                let reply = self.pending()[..size].to_vec();
                self.start += size;
                return Ok(reply);
            }
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The next reply without its final CR LF, as text.
    pub(crate) fn text(&mut self) -> String {
        text_of(&self.reply())
    }

    pub(crate) fn try_text(&mut self) -> io::Result<String> {
        self.try_reply().map(|reply| text_of(&reply))
    }

    /// Send one line and read one reply.
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n"));
        self.text()
    }

    pub(crate) fn try_ask(&mut self, line: &str) -> io::Result<String> {
        self.try_send(format!("{line}\r\n").as_bytes())?;
        self.try_text()
    }

    /// Put a job that has `body`; its id. Panics on any reply but `INSERTED`.
    pub(crate) fn put(&mut self, body: &[u8]) -> u64 {
        let reply = self.try_put(body);
        inserted(&reply).unwrap_or_else(|| panic!("put was answered {reply:?}"))
    }

    /// Put a job that has `body`; the reply.
    pub(crate) fn try_put(&mut self, body: &[u8]) -> String {
        self.send(put_command(0, 0, body));
        self.text()
    }

    /// Reserve a job that is ready now; its id.
    pub(crate) fn reserve(&mut self) -> u64 {
        self.send("reserve-with-timeout 0\r\n");
        let reply = self.reply();
        let job = job_of(&reply);
        job.unwrap_or_else(|| panic!("no job: {:?}", String::from_utf8_lossy(&reply)))
            .0
    }

    /// The value of a key of a YAML dictionary that a `stats` command answers.
    pub(crate) fn stat(&mut self, command: &str, key: &str) -> String {
        let document = self.ask(command);
        let value = document
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        value
            .unwrap_or_else(|| panic!("no {key:?} in {document:?}"))
            .to_owned()
    }

    /// End the sending side; the server reads an end of file.
    pub(crate) fn shut_down_sending(&mut self) {
        // The server may have closed already: then there is nothing to shut down.
        let _ = match &self.stream {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write),
            Stream::Tls(stream) => stream.sock.shutdown(Shutdown::Write),
        };
    }

    /// All that comes until the server closes the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        self.try_rest().unwrap_or_else(|error| {
            panic!(
                "not closed: {error}; came: {:?}",
                String::from_utf8_lossy(self.pending())
            )
        })
    }

    pub(crate) fn try_rest(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? > 0 {}
        let rest = self.pending().to_vec();
        self.start = self.input.len();
        Ok(rest)
    }

    fn pending(&self) -> &[u8] {
        &self.input[self.start..]
    }

    fn fill(&mut self) -> io::Result<usize> {
        self.input.drain(..self.start);
        self.start = 0;
        let mut arrived = [0; READ_SIZE];
        loop {
            let read = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(&mut arrived),
                Stream::Unix(stream) => stream.read(&mut arrived),
                Stream::Tls(stream) => stream.read(&mut arrived),
            };
            match read {
                // A read with a timeout is interrupted when the machine is paused.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => {
                    let size = other?;
                    self.input.extend_from_slice(&arrived[..size]);
                    return Ok(size);
                }
            }
        }
    }
}

/// A `put` of priority `pri`, with a time to run that no test outlives.
pub(crate) fn put_command(pri: u32, delay: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("put {pri} {delay} 100000 {}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// The id in an `INSERTED` reply.
pub(crate) fn inserted(reply: &str) -> Option<u64> {
    reply.strip_prefix("INSERTED ")?.trim_end().parse().ok()
}

/// The id and body of a `RESERVED` or `FOUND` reply.
pub(crate) fn job_of(reply: &[u8]) -> Option<(u64, &[u8])> {
    let end = line_end(reply)?;
    let line = std::str::from_utf8(&reply[..end - 2]).ok()?;
    let mut words = line.split(' ');
    let word = words.next()?;
    let id = words.next()?.parse().ok()?;
    matches!(word, "RESERVED" | "FOUND").then(|| (id, &reply[end..reply.len() - 2]))
}

fn text_of(reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply);
    text.trim_end_matches("\r\n").to_owned()
}

/// The size of the first reply in `input`, or `None` while it is incomplete.
fn reply_size(input: &[u8]) -> Option<usize> {
    let end = line_end(input)?;
    let line = &input[..end - 2];
    if let Some(count) = line.strip_prefix(b"RESERVED_BATCH ") {
        let count: usize = std::str::from_utf8(count).ok()?.parse().ok()?;
        return (0..count).try_fold(end, |at, _| Some(at + reply_size(&input[at..])?));
    }
    let size = chunk_size(line).map_or(end, |chunk| end + chunk + 2);
    (input.len() >= size).then_some(size)
}

fn line_end(input: &[u8]) -> Option<usize> {
    input
        .windows(2)
        .position(|pair| pair == b"\r\n")
        .map(|at| at + 2)
}

fn chunk_size(line: &[u8]) -> Option<usize> {
    let line = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["JOB", _, _, size] => size.parse().ok(),
        ["RESERVED" | "FOUND", _, size] | ["OK", size] => size.parse().ok(),
        [
            "DELETED_BATCH" | "TOUCHED_BATCH" | "RELEASED_BATCH",
            _,
            size,
        ] => size.parse().ok(),
        _ => None,
    }
}

#[test]
fn a_reply_is_whole_with_its_chunk_and_not_before() {
    let replies: [&[u8]; 6] = [
        b"INSERTED 7\r\n",
        b"RESERVED 7 3\r\na\r\n\r\n",
        b"OK 4\r\n---\n\r\n",
        b"RESERVED_BATCH 2\r\nJOB 7 mail 3\r\na\r\n\r\nJOB 8 mail 0\r\n\r\n",
        b"DELETED_BATCH 2 8\r\n---\n- 2\n\r\n",
        b"KICKED\r\n",
    ];
    for reply in replies {
        for cut in 0..reply.len() {
            assert_eq!(reply_size(&reply[..cut]), None, "{cut} bytes");
        }
        assert_eq!(reply_size(&[reply, b"OK"].concat()), Some(reply.len()));
    }
}
