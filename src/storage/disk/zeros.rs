//! Where data ends, and only zeros follow.
//!
//! Files have space set aside, as zeros, and a start looks through all of it.

use std::io;

use super::{ReadFile, read_exact_at};

/// Bytes that are read at once.
const CHUNK: usize = 256 << 10;

/// Bytes that are compared at once.
const BLOCK: usize = 64;

/// Position after the last byte that is not zero; 0 if all are zeros.
pub(in crate::storage) fn data_end(bytes: &[u8]) -> usize {
    let (first, blocks) = bytes.as_rchunks::<BLOCK>();
    let (start, part) = match blocks.iter().rposition(|block| *block != [0; BLOCK]) {
        Some(last) => (first.len() + last * BLOCK, &blocks[last][..]),
        None => (0, first),
    };
    let last = part.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| start + last + 1)
}

/// Whether all bytes are zeros.
pub(in crate::storage) fn is_zeros(bytes: &[u8]) -> bool {
    data_end(bytes) == 0
}

/// Whether the first `size` bytes of a file are zeros.
pub(in crate::storage) fn is_file_of_zeros(file: &dyn ReadFile, size: u64) -> io::Result<bool> {
    let mut bytes = vec![0; size.min(CHUNK as u64) as usize];
    let mut at = 0;
    while at < size {
        bytes.truncate((size - at).min(CHUNK as u64) as usize);
        read_exact_at(file, &mut bytes, at)?;
        if !is_zeros(&bytes) {
            return Ok(false);
        }
        at += bytes.len() as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::{Fs, OpenMode, RealFs, write_all_at};

    #[test]
    fn data_ends_after_its_last_byte_wherever_that_is() {
        for size in 0..=3 * BLOCK {
            let mut bytes = vec![0; size];
            assert_eq!(data_end(&bytes), 0, "{size} zeros");
            for last in 0..size {
                bytes[last] = 1;
                assert_eq!(data_end(&bytes), last + 1, "of {size}, alone");
                bytes[..last].fill(0xff);
                assert_eq!(data_end(&bytes), last + 1, "of {size}, after others");
                bytes.fill(0);
            }
        }
    }

    #[test]
    fn a_file_is_of_zeros_up_to_its_first_other_byte() {
        let dir = tempfile::tempdir().unwrap();
        let file = RealFs
            .open(&dir.path().join("file"), OpenMode::CreateNew)
            .unwrap();
        let size = 2 * CHUNK as u64 + 5;
        file.set_size(size).unwrap();
        assert!(is_file_of_zeros(&*file, 0).unwrap());
        assert!(is_file_of_zeros(&*file, size).unwrap());
        let error = is_file_of_zeros(&*file, size + 1).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        for last in [size - 1, CHUNK as u64, CHUNK as u64 - 1, 0] {
            write_all_at(&*file, &[1], last).unwrap();
            assert!(!is_file_of_zeros(&*file, size).unwrap(), "{last}");
            assert!(is_file_of_zeros(&*file, last).unwrap(), "before {last}");
        }
    }
}
