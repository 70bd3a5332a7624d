//! The replies of one client that have not left: encoded, in order, each with what it waits for.

use std::collections::VecDeque;
use std::io::{self, Write};

use bsd::engine::TubeDocument;
use bsd::protocol::{self, Reply, Shown};
use bsd::storage::{Body, BodyError};
use bsd::types::{JobId, Ticket};

/// Bytes written to one client before the next one is served, so that a large reply to a fast
/// client does not delay the others.
pub(super) const WRITTEN_PER_CLIENT_MAX: usize = 64 << 10;
/// Bytes at the front of a buffer that may have been sent before the rest is moved down.
const SENT_SLACK_MAX: usize = 64 << 10;

/// Replies that may leave once the log is durable up to `after`.
#[derive(Debug, Clone, Copy)]
struct Parked {
    after: Ticket,
    size: usize,
}

/// Encoded replies: `[sent | ready | parked, oldest first]`.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    sent: usize,
    ready: usize,
    parked: VecDeque<Parked>,
    /// The rest of the last reply, which is added part by part as it is sent; meanwhile no reply may
    /// follow it.
    rest: Option<Rest>,
}

/// A reply that is not held but made as it leaves.
#[derive(Debug)]
enum Rest {
    /// A long document.
    Document(Box<TubeDocument>),
    /// A large body.
    Body(Box<Sending>),
}

/// The body of a job on its way.
#[derive(Debug)]
struct Sending {
    job: JobId,
    body: Body,
    /// Bytes that have left, of the body and the end of the reply.
    sent: usize,
    /// The bytes of the buffer are those that come next.
    is_loaded: bool,
}

const BODY_END: &[u8] = b"\r\n";

impl Sending {
    /// Bytes that have not left.
    fn left(&self) -> usize {
        self.body.size() + BODY_END.len() - self.sent
    }

    /// Read what comes next.
    fn load(&mut self, bytes: &mut Vec<u8>) -> Result<(), BodyError> {
        let size = self.body.size();
        bytes.clear();
        if self.sent < size {
            self.body.read(self.sent, bytes)?;
        }
        let read = self.sent + bytes.len();
        if read >= size {
            bytes.extend_from_slice(&BODY_END[read - size..]);
        }
        self.is_loaded = true;
        Ok(())
    }
}

impl Buffer {
    pub(super) fn push(&mut self, after: Ticket, reply: &Reply<'_>) {
        let before = self.bytes.len();
        protocol::encode(reply, &mut self.bytes);
        self.park(after, self.bytes.len() - before);
    }

    /// A long document follows, part by part; its first line waits for `after`.
    pub(super) fn push_document(&mut self, after: Ticket, document: TubeDocument) {
        let before = self.bytes.len();
        protocol::encode_document_begin(document.size(), &mut self.bytes);
        self.park(after, self.bytes.len() - before);
        self.rest = Some(Rest::Document(Box::new(document)));
    }

    /// A job follows, its body piece by piece; its line waits for `after`.
    pub(super) fn push_body(
        &mut self,
        after: Ticket,
        (shown, job): (Shown<'_>, JobId),
        body: Body,
    ) {
        let before = self.bytes.len();
        protocol::encode_body_begin(shown, job, body.size(), &mut self.bytes);
        self.park(after, self.bytes.len() - before);
        self.rest = Some(Rest::Body(Box::new(Sending {
            job,
            body,
            sent: 0,
            is_loaded: false,
        })));
    }

    /// Replies leave in order, so a reply that waits no longer than the one before it shares its
    /// entry.
    fn park(&mut self, after: Ticket, size: usize) {
        match self.parked.back_mut() {
            Some(last) if after <= last.after => last.size += size,
            _ => self.parked.push_back(Parked { after, size }),
        }
    }

    /// Release the replies that waited for a ticket up to this one.
    pub(super) fn release(&mut self, acknowledged: Ticket) {
        while let Some(front) = self
            .parked
            .front()
            .filter(|front| front.after <= acknowledged)
        {
            self.ready += front.size;
            self.parked.pop_front();
        }
    }

    fn unsent(&self) -> &[u8] {
        &self.bytes[self.sent..self.sent + self.ready]
    }

    fn mark_sent(&mut self, count: usize) {
        self.sent += count;
        self.ready -= count;
        if let Some(Rest::Body(sending)) = &mut self.rest
            && sending.is_loaded
        {
            sending.sent += count;
            if sending.left() == 0 {
                self.rest = None;
            }
        }
        if self.sent >= SENT_SLACK_MAX && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Bytes that have not left.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// True if something may leave.
    pub(super) fn has_ready(&self) -> bool {
        self.ready > 0 || self.pending() == 0 && self.rest.is_some()
    }

    /// Bytes that may leave, with what is left of a large body once its line may.
    pub(super) fn unread(&self) -> usize {
        match &self.rest {
            Some(Rest::Body(sending)) if sending.is_loaded => sending.left(),
            Some(Rest::Body(sending)) if self.parked.is_empty() => self.ready + sending.left(),
            _ => self.ready,
        }
    }

    /// True when something waits for the log.
    pub(super) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// True if the last reply is not all here.
    pub(super) fn has_rest(&self) -> bool {
        self.rest.is_some()
    }

    /// True if it is one with a body that no one needs but the client.
    pub(super) fn is_lent(&self) -> bool {
        matches!(&self.rest, Some(Rest::Body(sending)) if sending.body.is_only_lent())
    }

    /// True when nothing is left to send.
    pub(super) fn is_done(&self) -> bool {
        self.pending() == 0 && self.rest.is_none()
    }

    /// Make the next part of the rest, once everything before it has been sent.
    fn go_on(&mut self) -> io::Result<()> {
        if self.pending() > 0 {
            return Ok(());
        }
        match &mut self.rest {
            None => return Ok(()),
            Some(Rest::Document(document)) => {
                self.bytes.clear();
                if !document.write_part(&mut self.bytes) {
                    protocol::encode_document_end(&mut self.bytes);
                    self.rest = None;
                }
            }
            Some(Rest::Body(sending)) => match sending.load(&mut self.bytes) {
                Ok(()) => {}
                // There may be a descriptor in the next turn.
                Err(BodyError::NoDescriptor { .. }) => self.bytes.clear(),
                Err(error) => {
                    let job = sending.job;
                    tracing::error!(
                        "job {job}: {error}, after it had been checked: the reply is cut off"
                    );
                    return Err(io::Error::other(error.to_string()));
                }
            },
        }
        (self.sent, self.ready) = (0, self.bytes.len());
        Ok(())
    }

    /// The socket takes no more for now: a piece of a body is read again when it does.
    fn unload(&mut self) {
        if let Some(Rest::Body(sending)) = &mut self.rest
            && std::mem::take(&mut sending.is_loaded)
        {
            self.bytes = Vec::new();
            (self.sent, self.ready) = (0, 0);
        }
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        let rest = match &self.rest {
            None => 0,
            Some(Rest::Document(document)) => document.held(),
            Some(Rest::Body(sending)) => size_of::<Sending>() + sending.body.held(),
        };
        self.capacity() + rest
    }

    /// Bytes of memory without those of the rest.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity() + self.parked.capacity() * size_of::<Parked>()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.parked.clear();
        self.rest = None;
        (self.sent, self.ready) = (0, 0);
    }

    /// Write ready bytes until all are written, the socket takes no more, or the next client is to be
    /// served. An event follows only a write that would block, so no client is missed. Adds what
    /// was written to `taken`, also if an error follows.
    pub(super) fn write_to(
        &mut self,
        out: &mut impl Write,
        writable: &mut bool,
        taken: &mut usize,
    ) -> io::Result<()> {
        let mut budget = WRITTEN_PER_CLIENT_MAX;
        while *writable && budget > 0 {
            self.go_on()?;
            if self.ready == 0 {
                break;
            }
            let bytes = self.unsent();
            match out.write(&bytes[..bytes.len().min(budget)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.mark_sent(count);
                    *taken += count;
                    budget -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => *writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if !*writable {
            self.unload();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_one_position_are_parked_together() {
        let mut buffer = Buffer::default();
        for _ in 0..100 {
            buffer.push(Ticket::turn(10), &Reply::Deleted);
        }
        assert_eq!(buffer.parked.len(), 1);
    }
}
