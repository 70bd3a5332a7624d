//! The first bytes of a file, kept in memory after they were read once.
//!
//! A start reads the newest segment to find the list of files, and replays it last. Between the two
//! its bytes stay here: each byte of the log is read once, and what was checked is what is replayed.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use crate::storage::disk::zeros::is_zeros;
use crate::storage::disk::{ReadFile, read_exact_at};

/// Bytes of one piece.
const PIECE: usize = 1 << 20;
/// At most this many pieces are kept: a segment of the default size.
const PIECES_MAX: usize = 64;

/// A file whose first bytes are read from the disk once, as long as this is used.
#[derive(Debug)]
pub(super) struct Kept {
    file: Arc<dyn ReadFile>,
    /// The pieces from the start of the file on; those that are only zeros take no memory.
    pieces: Mutex<Vec<Option<Box<[u8]>>>>,
}

impl Kept {
    pub(super) fn new(file: Arc<dyn ReadFile>) -> Kept {
        Kept {
            file,
            pieces: Mutex::default(),
        }
    }

    fn read_piece(&self, number: usize) -> io::Result<Option<Box<[u8]>>> {
        let at = number * PIECE;
        let rest = self.file.size()?.saturating_sub(at as u64);
        let mut bytes = vec![0; rest.min(PIECE as u64) as usize];
        read_exact_at(&*self.file, &mut bytes, at as u64)?;
        let is_zeros = bytes.len() == PIECE && is_zeros(&bytes);
        Ok((!is_zeros).then(|| bytes.into_boxed_slice()))
    }
}

impl ReadFile for Kept {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let number = usize::try_from(offset / PIECE as u64).unwrap_or(usize::MAX);
        if number >= PIECES_MAX {
            return self.file.read_at(buf, offset);
        }
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        while pieces.len() <= number {
            let piece = self.read_piece(pieces.len())?;
            pieces.push(piece);
        }
        let from = (offset % PIECE as u64) as usize;
        let count = match &pieces[number] {
            Some(piece) => {
                let rest = piece.get(from..).unwrap_or_default();
                let count = rest.len().min(buf.len());
                buf[..count].copy_from_slice(&rest[..count]);
                count
            }
            None => {
                let count = (PIECE - from).min(buf.len());
                buf[..count].fill(0);
                count
            }
        };
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::random::Random;
    use crate::storage::SimFs;
    use crate::storage::disk::ReadFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};

    fn read(file: &dyn ReadFile, from: usize, to: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![1; to - from];
        read_exact_at(file, &mut bytes, from as u64).map(|()| bytes)
    }

    #[test]
    fn g45_bytes_are_those_of_the_file_and_are_read_once() {
        let mut random = Random::new(7);
        let mut content = random.bytes(3 * PIECE + 1000);
        content[PIECE..2 * PIECE].fill(0);
        let disk = SimFs::new(1);
        disk.write("/f", &content).unwrap();
        let kept = Kept::new(disk.open_read(Path::new("/f")).unwrap());
        assert_eq!(read(&kept, 0, content.len()).unwrap(), content);
        assert!(kept.pieces.lock().unwrap()[1].is_none());
        disk.inject(Fault::fail(OpKind::Read, Errno::IO));
        for _ in 0..100 {
            let from = random.below(content.len());
            let to = from + random.below(content.len() - from) + 1;
            assert_eq!(read(&kept, from, to).unwrap(), content[from..to]);
        }
        let past = read(&kept, content.len() - 1, content.len() + 1);
        assert_eq!(past.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_error_of_the_disk_is_passed_on_and_the_next_try_reads_again() {
        let disk = SimFs::new(1);
        disk.write("/f", &[7; 100]).unwrap();
        let kept = Kept::new(disk.open_read(Path::new("/f")).unwrap());
        disk.inject(Fault::fail(OpKind::Read, Errno::IO));
        assert!(read(&kept, 0, 100).is_err());
        assert_eq!(read(&kept, 0, 100).unwrap(), [7; 100]);
    }
}
