//! One encrypted connection: a socket and the session on it, which together look like a stream. The
//! socket may block: then each call does.
//!
//! The memory of the session is bounded and reported, so that the bounds on client memory count it:
//! * [`TlsStream::held`]: bytes that arrived and have not been read, at most one record and what
//!   one read of the socket brings; in the handshake, at most 64 KiB, which rustls checks.
//! * [`TlsStream::sealed`]: bytes of replies that are encrypted and not sent, at most
//!   [`SEALED_MAX`]. A write is over only when the socket has all of it: until then the replies
//!   count as unsent, and the same bytes must be offered again.

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::Connection;

use super::certificate::{explained, name_of};

/// Bytes that are encrypted at a time: one record.
const SEALED_MAX: usize = 16 << 10;
/// Bytes that the session decrypts ahead of being read before it takes no more.
const OPENED_MAX: usize = 16 << 10;
/// The first byte of a handshake, and that of one that is refused.
const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;

/// An encrypted connection, of a client or of a peer.
#[derive(Debug)]
pub(crate) struct TlsStream<S = TcpStream> {
    socket: S,
    session: Connection,
    /// Bytes of the write that has not come to its end.
    sealed: usize,
    /// Bytes that have been decrypted and not read.
    opened: usize,
    /// Bytes that have arrived and that the session could not take yet.
    ahead: Vec<u8>,
    /// The record of which a part has arrived.
    record: Record,
    /// Bytes of the handshake that have arrived, until it is over.
    shaken: usize,
    /// The last read took all that the socket had. It is false after a read that did not ask the
    /// socket: something may have arrived since, and its event may be over.
    is_drained: bool,
}

impl<S> TlsStream<S> {
    /// Begin a session; the handshake follows.
    pub(crate) fn new(socket: S, session: impl Into<Connection>) -> TlsStream<S> {
        TlsStream {
            socket,
            session: session.into(),
            sealed: 0,
            opened: 0,
            ahead: Vec::new(),
            record: Record::default(),
            shaken: 0,
            is_drained: false,
        }
    }

    pub(crate) fn socket(&self) -> &S {
        &self.socket
    }

    pub(crate) fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }
}

impl<S: Read + Write> TlsStream<S> {
    /// Continue the handshake with what one read brings; true once it is over.
    ///
    /// # Errors
    /// The handshake has failed, and the other end has been told why; or nothing has arrived
    /// (`WouldBlock`).
    pub(crate) fn shake_hands(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        self.push_own()?;
        let count = self.socket.read(buffer)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.shaken == 0 && ![HANDSHAKE, ALERT].contains(&buffer[0]) {
            return Err(invalid("it does not speak TLS"));
        }
        self.open(&buffer[..count])?;
        self.push_own()?;
        let is_over = !self.session.is_handshaking();
        self.shaken = if is_over { 0 } else { self.shaken + count };
        Ok(is_over)
    }

    /// The version that was agreed on, and the name in the client's certificate, if it has one.
    pub(crate) fn agreed(&self) -> (&'static str, Option<Arc<str>>) {
        let version = match self.session.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
            _ => "TLS 1.3",
        };
        let certificates = self.session.peer_certificates().unwrap_or_default();
        (
            version,
            certificates.first().and_then(name_of).map(Arc::from),
        )
    }

    /// Read once into the free room of `bytes`, which is not zero.
    pub(crate) fn read_into(&mut self, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let mut piece = [0; SEALED_MAX];
        let room = piece.len().min(bytes.capacity() - bytes.len());
        let count = self.read(&mut piece[..room])?;
        bytes.extend_from_slice(&piece[..count]);
        Ok(count)
    }

    /// Bytes of memory held for what the client has sent.
    pub(crate) fn held(&self) -> usize {
        self.shaken.max(self.record.size) + self.opened + self.ahead.capacity()
    }

    /// Bytes of replies that lie encrypted in the session.
    pub(crate) fn sealed(&self) -> usize {
        self.sealed
    }

    /// True when the session has something to send that is no reply.
    pub(crate) fn owes(&self) -> bool {
        self.sealed == 0 && self.session.wants_write()
    }

    /// Whether the last read has left nothing, neither here nor in the socket.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_drained && self.opened == 0 && self.ahead.is_empty()
    }

    /// Tell the client that nothing follows. Only if everything before it has left.
    pub(crate) fn finish(&mut self) {
        if self.sealed == 0 && !self.session.is_handshaking() {
            self.session.send_close_notify();
            // A client that takes nothing more is not waited for.
            let _ = self.push();
        }
    }

    /// Take what was received, as far as the session can: it decrypts no further ahead than
    /// `OPENED_MAX`. The rest is kept.
    fn open(&mut self, mut received: &[u8]) -> io::Result<()> {
        while !received.is_empty() && self.opened <= OPENED_MAX {
            let all = received;
            if self.session.read_tls(&mut received)? == 0 {
                return Err(invalid("a record is longer than the protocol allows"));
            }
            self.record.grow(&all[..all.len() - received.len()]);
            let state = self.session.process_new_packets().map_err(|error| {
                // The client is told why; if it does not listen, the end must be enough.
                let _ = self.push();
                invalid(explained(&error))
            })?;
            self.opened = state.plaintext_bytes_to_read();
        }
        self.ahead.extend_from_slice(received);
        Ok(())
    }

    /// Bytes that have been decrypted; `None`: no bytes yet.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut reader = self.session.reader();
        // Without a message that nothing follows, an end is an end too: a request that is not
        // complete does not run anyway.
        let count = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
            Ok([]) => 0,
            Ok(_) => reader.read(buffer)?,
        };
        self.opened -= count;
        Ok(Some(count))
    }

    /// Send what the session has to say itself, as far as the socket takes it.
    fn push_own(&mut self) -> io::Result<()> {
        match self.push() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            pushed => pushed,
        }
    }

    /// Send what is encrypted, to its end.
    fn push(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    /// Decrypted bytes, or else those of one read of the socket. `Interrupted` if that does not
    /// complete a record.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.push_own()?;
        self.is_drained = false;
        if let Some(count) = self.take(buffer)? {
            return Ok(count);
        }
        if self.ahead.is_empty() {
            // What the socket brings passes through the caller's buffer; the session copies it.
            let count = self.socket.read(buffer)?;
            self.is_drained = count < buffer.len();
            match count {
                0 => _ = self.session.read_tls(&mut io::empty())?,
                _ => self.open(&buffer[..count])?,
            }
        } else {
            let ahead = std::mem::take(&mut self.ahead);
            self.open(&ahead)?;
        }
        self.push_own()?;
        let nothing_yet = || io::ErrorKind::Interrupted.into();
        self.take(buffer)?.ok_or_else(nothing_yet)
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    /// Encrypt a part of `bytes` and send all of that. While the socket takes no more
    /// (`WouldBlock`), the next call must offer the same bytes. So also until the handshake is over.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        if self.session.is_handshaking() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.sealed == 0 {
            let part = &bytes[..bytes.len().min(SEALED_MAX)];
            self.sealed = self.session.writer().write(part)?;
            self.push()?;
        }
        Ok(std::mem::take(&mut self.sealed))
    }

    /// Send what the session has to say itself.
    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The record of which a part has arrived: five bytes, of which the last two are the length of what
/// follows.
#[derive(Debug, Default)]
struct Record {
    /// Bytes of it that have arrived.
    size: usize,
    length: [u8; 2],
}

impl Record {
    const HEADER: usize = 5;

    fn end(&self) -> usize {
        Record::HEADER + usize::from(u16::from_be_bytes(self.length))
    }

    /// More has arrived.
    fn grow(&mut self, mut bytes: &[u8]) {
        while let [first, ..] = bytes {
            let mut more = 1;
            match self.size {
                0..3 => {}
                3 | 4 => self.length[self.size - 3] = *first,
                size => more = bytes.len().min(self.end() - size),
            }
            self.size += more;
            bytes = &bytes[more..];
            if self.size >= Record::HEADER && self.size == self.end() {
                self.size = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_record_that_has_arrived_is_known_however_it_arrives() {
        let records = [
            &[23, 3, 3, 0, 4, 1, 2, 3, 4][..],
            &[23, 3, 3, 1, 0],
            &[7; 256],
        ]
        .concat();
        for step in 1..records.len() {
            let mut record = Record::default();
            let mut fed = 0;
            for piece in records.chunks(step) {
                record.grow(piece);
                fed += piece.len();
                let expected = match fed {
                    _ if fed == records.len() => 0,
                    0..9 => fed,
                    fed => fed - 9,
                };
                assert_eq!(record.size, expected, "{fed} bytes, {step} at a time");
            }
        }
    }

    #[test]
    fn an_empty_record_is_over_with_its_header() {
        let mut record = Record::default();
        record.grow(&[23, 3, 3, 0, 0]);
        assert_eq!(record.size, 0);
        record.grow(&[23, 3]);
        assert_eq!(record.size, 2);
    }
}
