//! Bodies on their way: what has come of them is kept in a file until the rest is here.
//!
//! A body goes into the log as a whole, and may come slowly. Beyond what memory is for, its beginning
//! is written to a file that all such bodies share, and read back when the body is complete.
//!
//! Invariants:
//! * The file has no name: it is a spare whose name is removed before anything is written to it. A
//!   crash leaves nothing of it, or a spare without content, which the next start removes.
//! * No reply depends on it, so it is never synced. What is read back is compared with the checksum
//!   of what was written.
//! * Its room is never taken from what the log has set aside: that is in files of its own.
//! * A body has whole slots. The room of slots that are given back goes back to the disk, and they are
//!   used again, the first ones first.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::storage::disk::{File, read_exact_at, write_all_at};
use crate::storage::log::Log;
use crate::storage::log::spares::Spares;

/// Bytes of a slot: as many are read at a time.
const SLOT: usize = 256 << 10;

/// The file, if there is one, and which slots of it are in use.
#[derive(Debug, Default)]
pub(super) struct Spool {
    file: Option<Arc<dyn File>>,
    /// Slots that the file has.
    slots: u32,
    /// Those of them that no body has.
    free: BTreeSet<u32>,
    /// Bytes of all bodies.
    size: u64,
}

/// The beginning of a body, in the spool. It has slots until [`Log::forget_begun`] takes it back.
#[derive(Debug, Default)]
pub struct Begun {
    slots: Vec<u32>,
    size: usize,
    sum: crc32fast::Hasher,
}

impl Begun {
    /// Bytes of it.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }
}

fn range_of(slot: u32) -> Range<u64> {
    let start = u64::from(slot) * SLOT as u64;
    start..start + SLOT as u64
}

impl Spool {
    /// Write what comes next of a body. After an error the body is as it was.
    fn write(&mut self, spares: &mut Spares, begun: &mut Begun, bytes: &[u8]) -> io::Result<()> {
        let (mut size, mut rest) = (begun.size, bytes);
        while !rest.is_empty() {
            let (index, at) = (size / SLOT, size % SLOT);
            if index == begun.slots.len() {
                begun.slots.push(self.take_slot());
            }
            let (piece, behind) = rest.split_at(rest.len().min(SLOT - at));
            let offset = range_of(begun.slots[index]).start + at as u64;
            write_all_at(&**self.file(spares)?, piece, offset)?;
            size += piece.len();
            rest = behind;
        }
        begun.size = size;
        self.size += bytes.len() as u64;
        begun.sum.update(bytes);
        Ok(())
    }

    /// Read all that was written of a body, which fills `bytes`.
    fn read(&self, begun: &Begun, bytes: &mut [u8]) -> io::Result<()> {
        let mut sum = crc32fast::Hasher::new();
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        for (slot, piece) in begun.slots.iter().zip(bytes.chunks_mut(SLOT)) {
            read_exact_at(&**file, piece, range_of(*slot).start)?;
            sum.update(piece);
        }
        match sum.finalize() == begun.sum.clone().finalize() {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it is not what was written",
            )),
        }
    }

    fn file(&mut self, spares: &mut Spares) -> io::Result<&Arc<dyn File>> {
        if self.file.is_none() {
            self.file = Some(spares.create_nameless()?);
        }
        self.file.as_ref().ok_or(io::ErrorKind::NotFound.into())
    }

    fn take_slot(&mut self) -> u32 {
        self.free.pop_first().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    fn give_back(&mut self, begun: Begun) {
        let before = self.slots;
        self.size -= begun.size as u64;
        self.free.extend(&begun.slots);
        while self.slots > 0 && self.free.remove(&(self.slots - 1)) {
            self.slots -= 1;
        }
        if self.slots == 0 {
            self.file = None;
        }
        let Some(file) = &self.file else {
            return;
        };
        // What cannot be given back is used again.
        if self.slots < before {
            let _ = file.set_size(range_of(self.slots).start);
        }
        for slot in begun.slots.into_iter().filter(|slot| *slot < self.slots) {
            let _ = file.give_back(range_of(slot));
        }
    }
}

impl Log {
    /// Write what comes next of a body to the spool. A sync never follows.
    ///
    /// # Errors
    /// There is no room, or the disk failed: then the body has what it had before. The log has not
    /// failed.
    pub(crate) fn spool(&mut self, begun: &mut Begun, bytes: &[u8]) -> io::Result<()> {
        self.spool.write(&mut self.spares, begun, bytes)
    }

    /// Read back what was written of a body.
    pub(super) fn read_begun(&self, begun: &Begun, bytes: &mut [u8]) -> io::Result<()> {
        self.spool.read(begun, bytes)
    }

    /// A body is in the log, or will not come: the room of its beginning is free again.
    pub fn forget_begun(&mut self, begun: Begun) {
        if !begun.slots.is_empty() {
            self.spool.give_back(begun);
            self.budget.note_freed();
        }
    }

    /// Bytes of bodies on their way that are on the disk.
    #[must_use]
    pub fn spooled(&self) -> u64 {
        self.spool.size
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};

    const DIR: &str = "/spool";

    fn spool() -> (SimFs, Spares, Spool) {
        use crate::storage::disk::Fs;
        let disk = SimFs::new(1);
        disk.create_dir_all(Path::new(DIR)).unwrap();
        let spares = Spares::open(Arc::new(disk.clone()), Path::new(DIR), &[]).unwrap();
        (disk, spares, Spool::default())
    }

    fn body(nth: u8, size: usize) -> Vec<u8> {
        (0..size).map(|at| (at / 7) as u8 ^ nth).collect()
    }

    fn is_back(spool: &Spool, begun: &Begun, body: &[u8]) -> bool {
        let mut bytes = vec![0; begun.size()];
        spool.read(begun, &mut bytes).is_ok() && bytes == body
    }

    #[test]
    fn g46_bodies_that_come_in_turns_are_read_back_and_the_room_of_each_is_used_again() {
        let (disk, mut spares, mut spool) = spool();
        let bodies: Vec<_> = (0..4).map(|nth| body(nth, 3 * SLOT + 1000)).collect();
        let mut begun: Vec<Begun> = bodies.iter().map(|_| Begun::default()).collect();
        for from in (0..bodies[0].len()).step_by(100_000) {
            for (begun, body) in begun.iter_mut().zip(&bodies) {
                let piece = &body[from..body.len().min(from + 100_000)];
                spool.write(&mut spares, begun, piece).unwrap();
            }
        }
        assert_eq!(spool.slots, 16);
        assert!(disk.names(DIR).unwrap().is_empty(), "the file has no name");
        let last = begun.pop().unwrap();
        for (begun, body) in begun.into_iter().zip(&bodies) {
            assert!(is_back(&spool, &begun, body));
            spool.give_back(begun);
        }
        let mut next = Begun::default();
        spool.write(&mut spares, &mut next, &bodies[1]).unwrap();
        assert_eq!(spool.slots, 16, "no new slots are taken");
        assert_eq!(spool.size, 2 * (bodies[0].len() as u64));
        assert!(is_back(&spool, &last, &bodies[3]) && is_back(&spool, &next, &bodies[1]));
        spool.give_back(last);
        assert!(spool.slots < 16, "the end of the file is cut");
        assert!(is_back(&spool, &next, &bodies[1]));
        spool.give_back(next);
        assert_eq!((spool.slots, spool.file.is_none()), (0, true));
        assert_eq!(spool.size, 0);
    }

    #[test]
    fn g46_without_room_a_body_stays_as_it_was_and_goes_on_when_there_is_room() {
        let (disk, mut spares, mut spool) = spool();
        let whole = body(1, 2 * SLOT);
        let mut begun = Begun::default();
        spool
            .write(&mut spares, &mut begun, &whole[..1000])
            .unwrap();
        disk.set_quota(Some(disk.used() + 1000));
        for _ in 0..2 {
            assert!(
                spool
                    .write(&mut spares, &mut begun, &whole[1000..])
                    .is_err()
            );
            assert!(is_back(&spool, &begun, &whole[..1000]));
        }
        disk.set_quota(None);
        spool
            .write(&mut spares, &mut begun, &whole[1000..])
            .unwrap();
        assert!(is_back(&spool, &begun, &whole));
        let mut other = Begun::default();
        disk.inject(Fault::fail(OpKind::Write, Errno::IO));
        assert!(spool.write(&mut spares, &mut other, &whole).is_err());
        assert_eq!(other.size(), 0);
        spool.give_back(other);
        assert!(is_back(&spool, &begun, &whole));
    }

    #[test]
    fn g46_what_is_read_back_is_what_was_written_or_it_is_an_error() {
        let (_, mut spares, mut spool) = spool();
        let mut begun = Begun::default();
        spool
            .write(&mut spares, &mut begun, &body(1, 300_000))
            .unwrap();
        let mut bytes = vec![0; 300_000];
        spool.read(&begun, &mut bytes).unwrap();
        let file = spool.file.clone().unwrap();
        write_all_at(&*file, b"?", 280_000).unwrap();
        let error = spool.read(&begun, &mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
