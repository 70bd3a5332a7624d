//! One connection as bytes: a socket, encrypted or not, blocking or not.
//!
//! It holds at most `RAW_SIZE` bytes that have arrived and are not decrypted, one record that is, and
//! `SEALED_MAX` bytes that are encrypted and not sent. Nothing is sent before the handshake is over.

use std::io::{self, ErrorKind, Read, Write};

use rustls::Connection as Session;

use crate::tls::explained;

/// Bytes that are taken from an encrypted socket at a time.
const RAW_SIZE: usize = 64 << 10;
/// Bytes that are encrypted at a time.
const SEALED_MAX: usize = 64 << 10;

/// A socket, and the session on it if there is one.
#[derive(Debug)]
pub(super) struct Channel<S> {
    socket: S,
    session: Option<Box<Encrypted>>,
    /// The socket takes no more until it says so.
    is_blocked: bool,
    /// Bytes that the socket has taken so far.
    sent: u64,
}

#[derive(Debug)]
struct Encrypted {
    session: Session,
    /// Bytes that have arrived, from `used` on not yet given to the session.
    raw: Vec<u8>,
    used: usize,
}

impl<S> Channel<S> {
    pub(super) fn plain(socket: S) -> Channel<S> {
        Channel {
            socket,
            session: None,
            is_blocked: false,
            sent: 0,
        }
    }

    pub(super) fn encrypted(socket: S, session: Session) -> Channel<S> {
        let session = Encrypted {
            session,
            raw: Vec::new(),
            used: 0,
        };
        Channel {
            session: Some(Box::new(session)),
            ..Channel::plain(socket)
        }
    }

    pub(super) fn socket(&self) -> &S {
        &self.socket
    }

    pub(super) fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// The same connection on another kind of socket.
    pub(super) fn on<T>(self, change: impl FnOnce(S) -> io::Result<T>) -> io::Result<Channel<T>> {
        Ok(Channel {
            socket: change(self.socket)?,
            session: self.session,
            is_blocked: false,
            sent: self.sent,
        })
    }

    /// The socket takes more.
    pub(super) fn unblock(&mut self) {
        self.is_blocked = false;
    }

    /// Bytes that the socket has taken so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }
}

impl<S: Read + Write> Channel<S> {
    /// Send what is encrypted and not sent.
    pub(super) fn push(&mut self) -> io::Result<()> {
        if let Some(Encrypted { session, .. }) = self.session.as_deref_mut() {
            while session.wants_write() {
                if self.is_blocked {
                    return Err(ErrorKind::WouldBlock.into());
                }
                match session.write_tls(&mut self.socket) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(count) => self.sent += count as u64,
                    Err(error) => note(&mut self.is_blocked, error)?,
                }
            }
        }
        Ok(())
    }

    /// Go on until the handshake is over; for a socket that blocks.
    pub(super) fn shake_hands(&mut self) -> io::Result<()> {
        while let Some(true) = self.session.as_ref().map(|it| it.session.is_handshaking()) {
            self.push()?;
            if !self.pull()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        self.push()
    }

    /// Give the session what one read of the socket brings; false at its end. There is a session.
    fn pull(&mut self) -> io::Result<bool> {
        let Some(Encrypted { session, raw, used }) = self.session.as_deref_mut() else {
            return Ok(false);
        };
        if *used == raw.len() {
            raw.resize(RAW_SIZE, 0);
            let read = self.socket.read(raw);
            raw.truncate(*read.as_ref().unwrap_or(&0));
            *used = 0;
            if read? == 0 {
                return Ok(false);
            }
        }
        let mut rest = &raw[*used..];
        if session.read_tls(&mut rest)? == 0 {
            return Err(invalid("a record is longer than the protocol allows"));
        }
        *used = raw.len() - rest.len();
        if let Err(error) = session.process_new_packets() {
            // The other end is told why; if it does not listen, the end must be enough.
            let _ = self.push();
            return Err(invalid(explained(&error)));
        }
        match self.push() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
            pushed => pushed.map(|()| true),
        }
    }
}

impl<S: Read + Write> Read for Channel<S> {
    /// Until it says `WouldBlock`, more may be there, here or in the socket.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(Encrypted { session, .. }) = self.session.as_deref_mut() {
            match session.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            match self.pull() {
                Ok(true) => {}
                // Without a farewell the end is an end too: frames have sizes and checksums.
                Ok(false) => return Ok(0),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        loop {
            match self.socket.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }
}

impl<S: Read + Write> Write for Channel<S> {
    /// The accepted bytes may still be encrypted and not sent: see [`Channel::push`].
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        if let Some(Encrypted { session, .. }) = self.session.as_deref_mut() {
            if session.is_handshaking() {
                return Err(ErrorKind::WouldBlock.into());
            }
            let part = &bytes[..bytes.len().min(SEALED_MAX)];
            let count = session.writer().write(part)?;
            return match self.push() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(count),
                pushed => pushed.map(|()| count),
            };
        }
        loop {
            if self.is_blocked {
                return Err(ErrorKind::WouldBlock.into());
            }
            match self.socket.write(bytes) {
                Ok(count) => {
                    self.sent += count as u64;
                    return Ok(count);
                }
                Err(error) => note(&mut self.is_blocked, error)?,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

/// A write that was interrupted is tried again; one that would block, after an event.
fn note(is_blocked: &mut bool, error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        kind => {
            *is_blocked |= kind == ErrorKind::WouldBlock;
            Err(error)
        }
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}
