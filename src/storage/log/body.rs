//! Large bodies, which are read piece by piece: none of them is in memory as a whole.
//!
//! A body is read twice. First its record is checked against its checksum, piece by piece, and each
//! piece leaves a checksum of its own: four bytes. Then the pieces are read again, each when it is
//! needed and as often as that is, and compared with what they were. So every byte was checked when
//! it is given out, and the record as a whole before the first one is.
//!
//! A file stays readable as long as a body in it is held, also after compaction has removed its
//! name: no file of records is ever written over. [`Loans`] says how many bytes are kept for that
//! reason alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::storage::disk::errno::wants_descriptor;
use crate::storage::disk::{File, read_exact_at};
use crate::storage::format::{Entry, Record, RecordCheck, Seed};
use crate::types::{JobId, Position};

/// Bytes of a body that are read at a time.
pub const PIECE: usize = 64 << 10;

/// Bytes that are kept although no one needs them but those who read them.
#[derive(Debug, Clone, Default)]
pub struct Loans(Arc<AtomicU64>);

impl Loans {
    /// How many there are now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A thing with an owner, which others may read for longer than the owner needs it. Anyone who holds the
/// thing holds its loan.
#[derive(Debug)]
pub struct Loan {
    all: Loans,
    /// Bytes, once the owner has let go.
    bytes: AtomicU64,
}

impl Loan {
    /// Of a thing that its owner needs.
    #[must_use]
    pub fn new(all: &Loans) -> Loan {
        Loan {
            all: all.clone(),
            bytes: AtomicU64::new(0),
        }
    }

    /// The owner needs these bytes no more. They count until the loan is dropped.
    pub fn let_go(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        self.all.0.fetch_add(bytes, Ordering::Relaxed);
        self.all.0.fetch_sub(before, Ordering::Relaxed);
    }

    fn is_let_go(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.let_go(0);
    }
}

/// A body in memory that can be lent.
#[derive(Debug)]
pub struct Bytes {
    /// The body.
    pub bytes: Box<[u8]>,
    /// Its loan.
    pub loan: Loan,
}

/// A body that can be given out, piece by piece.
#[derive(Debug)]
pub struct Body {
    /// Bytes.
    size: usize,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Log {
        record: Box<InLog>,
        /// The checksum of each piece.
        pieces: Vec<u32>,
    },
    Memory(Arc<Bytes>),
}

/// A record with a body, in a file of the log.
#[derive(Debug)]
pub(super) struct InLog {
    pub(super) file: Arc<dyn File>,
    pub(super) loan: Arc<Loan>,
    pub(super) entry: Entry,
    pub(super) seed: Seed,
    /// Where the record begins, and how many bytes of it come before the body.
    pub(super) offset: u32,
    pub(super) head_size: usize,
    pub(super) body_size: usize,
}

/// The first reading of a body in the log, before it can be given out.
#[derive(Debug)]
pub struct BodyCheck {
    id: JobId,
    record: Box<InLog>,
    sum: RecordCheck,
    pieces: Vec<u32>,
}

impl BodyCheck {
    pub(super) fn new(id: JobId, record: InLog) -> BodyCheck {
        BodyCheck {
            id,
            sum: RecordCheck::begin(record.seed, record.offset),
            record: Box::new(record),
            pieces: Vec::new(),
        }
    }

    /// The end of the record. Before that much of the log is written there is nothing to read.
    #[must_use]
    pub fn end(&self) -> Position {
        let InLog {
            entry,
            offset,
            head_size,
            body_size,
            ..
        } = &*self.record;
        Position::new(entry.first, offset + (head_size + body_size) as u32)
    }

    /// Read the next piece, into `scratch`. Says whether it was the last one: then everything is what
    /// was put.
    ///
    /// # Errors
    /// The record is not what was put, or cannot be read.
    pub fn step(&mut self, scratch: &mut Vec<u8>) -> Result<bool, BodyError> {
        let record = &*self.record;
        if self.pieces.is_empty() {
            record.read(0, record.head_size, scratch)?;
            let (head, size) = (&scratch[..], record.body_size);
            if !Record::is_head_of_put(head, self.id, record.head_size, size) {
                return Err(record.damaged());
            }
            self.sum.update(head);
        }
        record.read_piece(self.pieces.len() * PIECE, scratch)?;
        self.sum.update(scratch);
        self.pieces.push(crc32fast::hash(scratch));
        let is_last = self.pieces.len() * PIECE >= record.body_size;
        if is_last && !self.sum.holds() {
            return Err(record.damaged());
        }
        Ok(is_last)
    }

    /// The body, all pieces of which have been read.
    ///
    /// # Panics
    /// If they have not.
    #[must_use]
    pub fn into_body(self) -> Body {
        let size = self.record.body_size;
        assert!(
            self.pieces.len() * PIECE >= size,
            "a body is given out before it was checked"
        );
        Body {
            size,
            source: Source::Log {
                record: self.record,
                pieces: self.pieces,
            },
        }
    }
}

impl InLog {
    fn at(&self) -> String {
        format!("{} at byte {}", self.entry.file_name(), self.offset)
    }

    fn damaged(&self) -> BodyError {
        BodyError::Damaged { at: self.at() }
    }

    /// Read `size` bytes of the record from `from` on, in place of what is in `bytes`.
    fn read(&self, from: usize, size: usize, bytes: &mut Vec<u8>) -> Result<(), BodyError> {
        bytes.resize(size, 0);
        let at = u64::from(self.offset) + from as u64;
        read_exact_at(&*self.file, bytes, at).map_err(|error| BodyError::of_read(self.at(), &error))
    }

    /// Read the piece of the body that begins at `from`.
    fn read_piece(&self, from: usize, bytes: &mut Vec<u8>) -> Result<(), BodyError> {
        let size = PIECE.min(self.body_size - from);
        self.read(self.head_size + from, size, bytes)
    }
}

/// Why a body could not be read.
#[derive(Debug)]
pub enum BodyError {
    /// The bytes are not the ones that were put.
    Damaged {
        /// The file and offset.
        at: String,
    },
    /// The process has reached its limit of open files and needs one more. The state of the body is
    /// unknown; it can be read when a descriptor is free.
    NoDescriptor {
        /// The file and offset, and the system's error.
        at: String,
    },
    /// The disk did not return the bytes.
    Unreadable {
        /// The file and offset, and the system's error.
        at: String,
    },
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BodyError::Damaged { at } => write!(f, "its body is damaged in {at}"),
            BodyError::NoDescriptor { at } => write!(f, "its body cannot be read now from {at}"),
            BodyError::Unreadable { at } => write!(f, "its body cannot be read from {at}"),
        }
    }
}

impl BodyError {
    /// The disk has not returned what lies there.
    pub(super) fn of_read(at: String, error: &std::io::Error) -> BodyError {
        let at = format!("{at}: {error}");
        match wants_descriptor(error) {
            true => BodyError::NoDescriptor { at },
            false => BodyError::Unreadable { at },
        }
    }
}

impl Body {
    /// One that is in memory.
    #[must_use]
    pub fn in_memory(bytes: Arc<Bytes>) -> Body {
        Body {
            size: bytes.bytes.len(),
            source: Source::Memory(bytes),
        }
    }

    /// Bytes of the body.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Read from `from` on to the end of the piece, in place of what is in `bytes`.
    ///
    /// # Errors
    /// They are not what they were when they were checked, or cannot be read.
    pub fn read(&self, from: usize, bytes: &mut Vec<u8>) -> Result<(), BodyError> {
        let begin = from / PIECE * PIECE;
        match &self.source {
            Source::Log { record, pieces } => {
                record.read_piece(begin, bytes)?;
                if pieces.get(begin / PIECE) != Some(&crc32fast::hash(bytes)) {
                    return Err(record.damaged());
                }
                bytes.drain(..from - begin);
            }
            Source::Memory(body) => {
                bytes.clear();
                bytes.extend_from_slice(&body.bytes[from..self.size.min(begin + PIECE)]);
            }
        }
        Ok(())
    }

    /// Bytes of memory, without those of a body that is in memory anyway.
    #[must_use]
    pub fn held(&self) -> usize {
        match &self.source {
            Source::Log { pieces, .. } => size_of::<InLog>() + pieces.capacity() * size_of::<u32>(),
            Source::Memory(_) => 0,
        }
    }

    /// True if no one needs it, or the file in which it lies, but those who read it.
    #[must_use]
    pub fn is_only_lent(&self) -> bool {
        match &self.source {
            Source::Log { record, .. } => record.loan.is_let_go(),
            Source::Memory(body) => body.loan.is_let_go(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g46_bytes_are_lent_from_when_the_owner_lets_go_until_the_last_reader_does() {
        let loans = Loans::default();
        let lend = || {
            let (bytes, loan) = (vec![7; 100_000].into(), Loan::new(&loans));
            Arc::new(Bytes { bytes, loan })
        };
        let (read, unread) = (lend(), lend());
        let body = Body::in_memory(read.clone());
        assert!(!body.is_only_lent());
        for bytes in [read, unread] {
            bytes.loan.let_go(100_000);
        }
        assert!(body.is_only_lent());
        assert_eq!(loans.bytes(), 100_000);
        let mut piece = Vec::new();
        body.read(65_537, &mut piece).unwrap();
        assert_eq!(piece, vec![7; 100_000 - 65_537]);
        drop(body);
        assert_eq!(loans.bytes(), 0);
    }
}
