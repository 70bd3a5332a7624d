//! The replies of one client that have not left: encoded, in order, each with what it waits for.

use std::collections::VecDeque;
use std::io::{self, Write};

use crate::engine::TubeDocument;
use crate::protocol::{self, Reply};
use crate::types::Position;

/// Bytes written to one client before the next one is served, so that a large reply to a fast
/// client does not delay the others.
pub(super) const WRITTEN_PER_CLIENT_MAX: usize = 64 << 10;
/// Bytes at the front of a buffer that may have been sent before the rest is moved down.
const SENT_SLACK_MAX: usize = 64 << 10;

/// Replies that may leave once the log is durable up to `after`.
#[derive(Debug, Clone, Copy)]
struct Parked {
    after: Position,
    size: usize,
}

/// Encoded replies: `[sent | ready | parked, oldest first]`.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    sent: usize,
    ready: usize,
    parked: VecDeque<Parked>,
    /// A long document, which is encoded part by part as it is sent; meanwhile no reply may follow
    /// it.
    document: Option<Box<TubeDocument>>,
}

impl Buffer {
    pub(super) fn push(&mut self, after: Position, reply: &Reply<'_>) {
        let before = self.bytes.len();
        protocol::encode(reply, &mut self.bytes);
        self.park(after, self.bytes.len() - before);
    }

    /// A long document follows, part by part; its first line waits for `after`.
    pub(super) fn push_document(&mut self, after: Position, document: TubeDocument) {
        let before = self.bytes.len();
        protocol::encode_document_begin(document.size(), &mut self.bytes);
        self.park(after, self.bytes.len() - before);
        self.document = Some(Box::new(document));
    }

    /// Replies leave in order, so a reply that waits no longer than the one before it shares its
    /// entry.
    fn park(&mut self, after: Position, size: usize) {
        match self.parked.back_mut() {
            Some(last) if after <= last.after => last.size += size,
            _ => self.parked.push_back(Parked { after, size }),
        }
    }

    /// What waited for a position up to this one may leave.
    pub(super) fn release(&mut self, acknowledged: Position) {
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
        if self.sent >= SENT_SLACK_MAX && self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Bytes that have not left.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Bytes that may leave.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// True when something waits for the log.
    pub(super) fn has_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// True in the middle of a document.
    pub(super) fn has_document(&self) -> bool {
        self.document.is_some()
    }

    /// True when nothing is left to send.
    pub(super) fn is_done(&self) -> bool {
        self.pending() == 0 && self.document.is_none()
    }

    /// Encode the next part of a document, once everything before it has been sent.
    fn go_on(&mut self) {
        if self.pending() > 0 {
            return;
        }
        let Some(document) = &mut self.document else {
            return;
        };
        self.bytes.clear();
        self.sent = 0;
        if !document.write_part(&mut self.bytes) {
            protocol::encode_document_end(&mut self.bytes);
            self.document = None;
        }
        self.ready = self.bytes.len();
    }

    /// Bytes of memory.
    pub(super) fn held(&self) -> usize {
        let document = self.document.as_ref().map_or(0, |it| it.held());
        self.bytes.capacity() + self.parked.capacity() * size_of::<Parked>() + document
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.parked.clear();
        self.document = None;
        (self.sent, self.ready) = (0, 0);
    }

    /// Write ready bytes until there are none, the socket takes no more, or the next client is to be
    /// served. An event follows only a write that would block, so no client is missed. Adds what
    /// was written to `taken`, also if an error follows.
    pub(super) fn write_to(
        &mut self,
        out: &mut impl Write,
        writable: &mut bool,
        taken: &mut usize,
    ) -> io::Result<()> {
        let mut budget = WRITTEN_PER_CLIENT_MAX;
        while *writable && self.ready > 0 && budget > 0 {
            let bytes = self.unsent();
            match out.write(&bytes[..bytes.len().min(budget)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.mark_sent(count);
                    self.go_on();
                    *taken += count;
                    budget -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => *writable = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::SegmentId;

    #[test]
    fn replies_of_one_position_are_parked_together() {
        let mut buffer = Buffer::default();
        for _ in 0..100 {
            buffer.push(Position::new(SegmentId(1), 10), &Reply::Deleted);
        }
        assert_eq!(buffer.parked.len(), 1);
    }
}
