//! The files of a log in use, as they were at one instant: for a copy that goes elsewhere.

use std::io;
use std::path::Path;

use crate::storage::disk::{ReadFs, read_exact_at};
use crate::storage::error::OpenError;
use crate::storage::format::{LogId, Stamp};
use crate::storage::read::Snapshot;
use crate::types::Position;

/// The files of a log at one instant. They are held open: what compaction removes meanwhile stays
/// on the disk until this is dropped.
#[derive(Debug)]
pub struct LogParts(Snapshot);

impl LogParts {
    /// The log in `dir`, which a server may be using. `None`: it is damaged, no log, or changes too
    /// fast.
    ///
    /// # Errors
    /// If the disk does not answer.
    pub fn take(fs: &dyn ReadFs, dir: &Path) -> Result<Option<LogParts>, OpenError> {
        Ok(Snapshot::take(fs, dir)?.map(LogParts))
    }

    /// The log's id.
    #[must_use]
    pub fn log(&self) -> LogId {
        self.0.log
    }

    /// Where the log ended. Not all of it need be durable.
    #[must_use]
    pub fn end(&self) -> Position {
        self.0.end
    }

    /// Up to which entry of a replicated log it goes.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.0.stamp
    }

    /// Names and sizes of the files, in the order of history.
    pub fn files(&self) -> impl Iterator<Item = (String, u64)> {
        self.0.files.iter().map(|held| (held.name(), held.size))
    }

    /// `size` bytes at `offset` of a file, by its index in [`LogParts::files`].
    ///
    /// # Errors
    /// If the disk does not return them.
    pub fn read(&self, file: usize, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let held = self.0.files.get(file).ok_or(io::ErrorKind::NotFound)?;
        let mut bytes = vec![0; size];
        read_exact_at(&*held.file, &mut bytes, offset)?;
        Ok(bytes)
    }
}
