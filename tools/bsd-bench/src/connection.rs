//! One connection of a load: bytes out, replies in, and which command each reply answers.
//!
//! It never blocks, and allocates nothing after its buffers have grown. What it reads is in a
//! buffer that all connections share; only an incomplete line is kept here, so ten thousand idle
//! connections cost little.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use crate::channel::{Channel, Tls, is_not_now};
use crate::wire::{LINE_SIZE_MAX, Op, Reply, parse_reply};

/// Bytes read at once. At least as large as an incomplete line.
pub(crate) const READ_SIZE: usize = 256 << 10;
const _: () = assert!(READ_SIZE > 4 * LINE_SIZE_MAX);

/// A command without a reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pending {
    pub(crate) op: Op,
    /// When it was sent, or should have been sent: nanoseconds on the load's clock.
    pub(crate) at: u64,
}

/// A connection to the server.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Channel,
    /// Commands to send.
    pub(crate) output: Vec<u8>,
    sent: usize,
    /// The beginning of an incomplete line.
    leftover: Vec<u8>,
    /// A reply whose body is still coming, and how much of that.
    unfinished: Option<(Reply, usize)>,
    /// In the order in which they were sent.
    pub(crate) pending: VecDeque<Pending>,
}

impl Connection {
    /// Begin to connect; a failure shows when the connection is used.
    pub(crate) fn open(
        address: SocketAddr,
        tls: Option<&Tls>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Connection> {
        let mut stream = TcpStream::connect(address)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Connection {
            stream: Channel::new(stream, tls)?,
            output: Vec::new(),
            sent: 0,
            leftover: Vec::new(),
            unfinished: None,
            pending: VecDeque::new(),
        })
    }

    /// Send small commands at once, instead of waiting for more.
    pub(crate) fn set_nodelay(&self) -> io::Result<()> {
        self.stream.socket.set_nodelay(true)
    }

    /// Write as much as the socket takes.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                // It would be asked again without an end.
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        self.stream.flush()
    }

    /// Read once into `buffer`, after the incomplete line. Returns the number of bytes there now,
    /// or `None` if nothing came. A read that does not fill the buffer has emptied the socket
    /// (`epoll(7)`), unless [`Connection::may_hold_more`].
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let kept = self.leftover.len();
        buffer[..kept].copy_from_slice(&self.leftover);
        loop {
            match self.stream.read(&mut buffer[kept..]) {
                Ok(0) => return Err(io::Error::other("the server has closed the connection")),
                Ok(count) => {
                    self.leftover.clear();
                    return Ok(Some(kept + count));
                }
                Err(error) if is_not_now(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// True with TLS: what was decrypted is not all that there is.
    pub(crate) fn may_hold_more(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Pass each complete reply in `bytes` to `each`, with the command that it answers.
    pub(crate) fn take(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Pending, Reply) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            let (reply, missing) = match self.unfinished.take() {
                Some(unfinished) => unfinished,
                None => match parse_reply(bytes)? {
                    Some((reply, size)) => {
                        bytes = &bytes[size..];
                        (reply, reply.tail_size())
                    }
                    None => break,
                },
            };
            if bytes.len() < missing {
                self.unfinished = Some((reply, missing - bytes.len()));
                return Ok(());
            }
            bytes = &bytes[missing..];
            let pending = self.pending.pop_front();
            each(pending.ok_or_else(unasked)?, reply)?;
        }
        // The next read puts it in front.
        self.leftover.extend_from_slice(bytes);
        Ok(())
    }
}

fn unasked() -> io::Error {
    io::Error::other("the server has sent a reply without a command")
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// A connection that has sent one reserve and one delete.
    fn connection() -> (Connection, TcpListener, mio::Poll) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let poll = mio::Poll::new().unwrap();
        let address = listener.local_addr().unwrap();
        let mut connection = Connection::open(address, None, poll.registry(), Token(0)).unwrap();
        for op in [Op::Reserve, Op::Delete] {
            connection.pending.push_back(Pending { op, at: 0 });
        }
        (connection, listener, poll)
    }

    #[test]
    fn replies_are_the_same_wherever_the_stream_is_cut() {
        let stream = b"RESERVED 7 5\r\nab\ncd\r\nDELETED\r\n";
        for cut in 0..=stream.len() {
            let (mut connection, _listener, _poll) = connection();
            let mut replies = Vec::new();
            let mut note = |pending: Pending, reply| {
                replies.push((pending.op, reply));
                Ok(())
            };
            connection.take(&stream[..cut], &mut note).unwrap();
            let kept = std::mem::take(&mut connection.leftover);
            let rest = [&kept, &stream[cut..]].concat();
            connection.take(&rest, &mut note).unwrap();
            let expected = [
                (Op::Reserve, Reply::Reserved(7, 5)),
                (Op::Delete, Reply::Deleted),
            ];
            assert_eq!(replies, expected, "cut at {cut}");
            assert!(connection.leftover.is_empty() && connection.pending.is_empty());
        }
    }

    #[test]
    fn a_reply_to_nothing_is_an_error() {
        let (mut connection, _listener, _poll) = connection();
        let result = connection.take(b"DELETED\r\nDELETED\r\nDELETED\r\n", |_, _| Ok(()));
        assert!(result.is_err());
    }
}
