//! Small files in a data directory with facts about it: replaced as a whole, and read as a whole.
//! Their writers know their meaning.

use std::io;
use std::path::Path;

use super::disk::{Fs, OpenMode, ReadFs, read_exact_at, write_all_at};
use super::error::OpenError;
use super::format::names::unfinished_marker;
pub use super::format::names::{ARCHIVE_MARKER, SECOND_ARCHIVE_MARKER, STANDBY_MARKER};
pub use super::format::names::{INSIDE_WHOLE, is_as_empty};

/// No marker is longer, bytes.
pub(crate) const MARKER_SIZE_MAX: u64 = 64 << 10;

/// Content of the file `name`; `None`: there is no such file.
///
/// # Errors
/// If the disk does not answer.
pub fn read_marker(fs: &dyn ReadFs, dir: &Path, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
    let path = dir.join(name);
    let read = || -> io::Result<Vec<u8>> {
        let file = fs.open_read(&path)?;
        let mut marker = vec![0; file.size()?.min(MARKER_SIZE_MAX) as usize];
        read_exact_at(&*file, &mut marker, 0)?;
        Ok(marker)
    };
    match read() {
        Ok(marker) => Ok(Some(marker)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::io("read", &path, &error)),
    }
}

/// Replace what the file `name` says, or make it. Durable on return; after an error it says the one
/// or the other.
///
/// # Errors
/// If the disk is full or fails.
pub fn write_marker(fs: &dyn Fs, dir: &Path, name: &str, marker: &[u8]) -> Result<(), OpenError> {
    let (new, path) = (dir.join(unfinished_marker(name)), dir.join(name));
    let write = || -> io::Result<()> {
        match fs.remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = fs.open(&new, OpenMode::CreateNew)?;
        write_all_at(&*file, marker, 0)?;
        file.sync()?;
        fs.replace(&new, &path)?;
        fs.sync_dir(dir)
    };
    write().map_err(|error| OpenError::io("write", &path, &error))
}
