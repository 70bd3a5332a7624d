//! One connection of a peer as bytes: a socket, encrypted or not, blocking or not. Nothing is sent
//! before the handshake is over. [`TlsStream`] says what an encrypted one holds.

use std::io::{self, ErrorKind, IoSlice, Read, Write};

use mio::net::TcpStream;
use rustls::Connection as Session;

use crate::tls::TlsStream;

/// Bytes that are read at a time in the handshake of a socket that blocks.
const PIECE_SIZE: usize = 4 << 10;

/// A socket, or a session on one.
#[derive(Debug)]
pub(super) enum Channel {
    Plain(Counted),
    Encrypted(Box<TlsStream<Counted>>),
}

/// A socket that counts what it takes. Once it takes no more, it is not asked again before
/// [`Channel::unblock`].
#[derive(Debug)]
pub(super) struct Counted {
    socket: TcpStream,
    is_blocked: bool,
    sent: u64,
}

impl Channel {
    pub(super) fn new(socket: TcpStream, session: Option<Session>) -> Channel {
        let counted = Counted {
            socket,
            is_blocked: false,
            sent: 0,
        };
        match session {
            Some(session) => Channel::Encrypted(Box::new(TlsStream::new(counted, session))),
            None => Channel::Plain(counted),
        }
    }

    fn counted(&self) -> &Counted {
        match self {
            Channel::Plain(counted) => counted,
            Channel::Encrypted(stream) => stream.socket(),
        }
    }

    fn counted_mut(&mut self) -> &mut Counted {
        match self {
            Channel::Plain(counted) => counted,
            Channel::Encrypted(stream) => stream.socket_mut(),
        }
    }

    pub(super) fn socket(&self) -> &TcpStream {
        &self.counted().socket
    }

    pub(super) fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.counted_mut().socket
    }

    /// The socket takes more.
    pub(super) fn unblock(&mut self) {
        self.counted_mut().is_blocked = false;
    }

    /// Bytes that the socket has taken so far.
    pub(super) fn sent(&self) -> u64 {
        self.counted().sent
    }

    /// Go on until the handshake is over; for a socket that blocks.
    pub(super) fn shake_hands(&mut self) -> io::Result<()> {
        if let Channel::Encrypted(stream) = self {
            stream.flush()?;
            while !stream.shake_hands(&mut [0; PIECE_SIZE])? {}
        }
        Ok(())
    }
}

impl Read for Channel {
    /// Until it says `WouldBlock`, more may be there, here or in the socket.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = match self {
                Channel::Plain(counted) => counted.read(buffer),
                Channel::Encrypted(stream) => stream.read(buffer),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl Write for Channel {
    /// After `WouldBlock` the same bytes must be offered again: see [`TlsStream`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Channel::Plain(counted) => counted.write(bytes),
            Channel::Encrypted(stream) => stream.write(bytes),
        }
    }

    /// Send what the session has to say itself.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Channel::Plain(_) => Ok(()),
            Channel::Encrypted(stream) => stream.flush(),
        }
    }
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.read(buffer)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// A write that was interrupted is tried again.
    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        loop {
            if self.is_blocked {
                return Err(ErrorKind::WouldBlock.into());
            }
            match self.socket.write_vectored(parts) {
                Ok(count) => {
                    self.sent += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_blocked = error.kind() == ErrorKind::WouldBlock;
                    return Err(error);
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
