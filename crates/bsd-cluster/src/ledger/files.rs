//! The files of an open ledger: their names, how one is made, and the space for the next one.
//!
//! A file is complete and durable before it has a name: it is written as [`SPARE_NAME`], synced,
//! renamed, and its directory synced. A file of that name is ignored at a start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{FramePlace, HEADER_SIZE, Kind, Opening, Seed, encode_header, put_frame};
use super::{Identity, LedgerError};
use bsd::ErrorClass;
use bsd::storage::disk::{File, Fs, OpenMode, is_missing, write_all_at};
use bsd::storage::{LEDGER_PREFIX, StoreError};

/// The directory of the ledger, in the data directory.
pub(super) const DIR_NAME: &str = "cluster";
/// A file that is no part of the ledger yet.
pub(super) const SPARE_NAME: &str = "ledger-next";

/// The name of the file with this number.
pub(super) fn file_name(number: u64) -> String {
    format!("{LEDGER_PREFIX}{number:010}")
}

/// The number of the file with this name; `None`: it is no file of a ledger.
pub(super) fn file_number(name: &str) -> Option<u64> {
    let number = name.strip_prefix(LEDGER_PREFIX)?.parse().ok()?;
    (number > 0 && file_name(number) == name).then_some(number)
}

/// One file, which may be written to, or read only.
#[derive(Debug)]
pub(super) struct LedgerFile<F = Arc<dyn File>> {
    pub(super) number: u64,
    pub(super) seed: Seed,
    pub(super) file: F,
    /// Where its frames end.
    pub(super) end: u64,
    /// The checksum of its last frame.
    pub(super) crc: u32,
    /// It has space up to here, and is left when that is used up.
    pub(super) capacity: u64,
    /// Up to here its space was written to, if only with zeros.
    pub(super) touched: u64,
}

/// A file without a name that means anything, and how much space it has.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) file: Arc<dyn File>,
    pub(super) size: u64,
}

impl Spare {
    /// Have the first of `sizes` that fits, the largest first; each is larger than it is.
    pub(super) fn grow(&mut self, sizes: impl IntoIterator<Item = u64>) -> io::Result<()> {
        let mut grown = Ok(());
        for size in sizes {
            grown = self.file.allocate(size);
            match &grown {
                Ok(()) => self.size = size,
                Err(error) if ErrorClass::of(error).is_short() => continue,
                Err(_) => {}
            }
            break;
        }
        grown
    }
}

/// An error of this kind that no repetition can repair.
pub(crate) fn failed(doing: &'static str, path: &Path, cause: &io::Error) -> LedgerError {
    LedgerError::Failed(StoreError::new(doing, path, cause))
}

/// No room, or a failure.
pub(crate) fn full_or_failed(doing: &'static str, path: &Path, cause: &io::Error) -> LedgerError {
    let error = StoreError::new(doing, path, cause);
    if error.class().is_short() {
        LedgerError::Full(error)
    } else {
        LedgerError::Failed(error)
    }
}

/// Remove the file of this name, if there is one.
pub(super) fn remove_if_there(fs: &dyn Fs, path: &Path) -> io::Result<()> {
    match fs.remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// A file as [`SPARE_NAME`] with as much space set aside as there is: the first of `sizes` that
/// fits. After an error it is missing.
pub(super) fn make_spare(
    fs: &dyn Fs,
    dir: &Path,
    sizes: impl IntoIterator<Item = u64>,
) -> io::Result<Spare> {
    let path = dir.join(SPARE_NAME);
    remove_if_there(fs, &path)?;
    let file = fs.open(&path, OpenMode::CreateNew)?;
    let mut made = Err(io::ErrorKind::InvalidInput.into());
    for size in sizes {
        made = file.allocate(size).map(|()| size);
        if !made
            .as_ref()
            .is_err_and(|error| ErrorClass::of(error).is_short())
        {
            break;
        }
    }
    match made {
        Ok(size) => Ok(Spare { file, size }),
        Err(error) => {
            // If this fails too, the next attempt removes it.
            let _ = fs.remove_file(&path);
            Err(error)
        }
    }
}

/// A file before it has its name.
pub(super) struct NewFile<'a> {
    pub(super) fs: &'a dyn Fs,
    pub(super) dir: &'a Path,
    pub(super) identity: Identity,
    pub(super) number: u64,
    pub(super) opening: &'a Opening,
}

impl NewFile<'_> {
    fn path(&self) -> PathBuf {
        self.dir.join(file_name(self.number))
    }

    /// Header and opening; and the checksum of the latter.
    fn encode(&self) -> (Vec<u8>, u32) {
        let mut bytes = encode_header(self.identity, self.number).to_vec();
        let place = FramePlace {
            seed: Seed::new(self.identity, self.number),
            at: HEADER_SIZE as u64,
            durable: 0,
            previous: 0,
        };
        let crc = put_frame(&mut bytes, Kind::Opening, place, |bytes| {
            self.opening.encode(bytes);
        });
        (bytes, crc)
    }

    /// Turn a spare into this file. Durable on return.
    ///
    /// # Errors
    /// `Full`: nothing has happened, the spare is gone. `Failed`: it may be there or not, now or
    /// after a crash; and it says where the file before it ends. So nothing may be written there.
    pub(super) fn create(&self, spare: Spare) -> Result<LedgerFile, LedgerError> {
        let (bytes, crc) = self.encode();
        let (path, temporary) = (self.path(), self.dir.join(SPARE_NAME));
        if let Err(error) = write_all_at(&*spare.file, &bytes, 0) {
            // If this fails too, the next attempt removes it.
            let _ = self.fs.remove_file(&temporary);
            return Err(full_or_failed("write", &path, &error));
        }
        let failed = |error| failed("make", &path, &error);
        spare.file.sync().map_err(failed)?;
        if let Err(error) = self.fs.rename(&temporary, &path) {
            // A directory may need room for a name. If this fails too, the next attempt removes it.
            let _ = self.fs.remove_file(&temporary);
            return Err(match is_missing(self.fs, &path) {
                true => full_or_failed("make", &path, &error),
                false => failed(error),
            });
        }
        self.fs.sync_dir(self.dir).map_err(failed)?;
        Ok(LedgerFile {
            number: self.number,
            seed: Seed::new(self.identity, self.number),
            file: spare.file,
            end: bytes.len() as u64,
            crc,
            capacity: spare.size,
            touched: bytes.len() as u64,
        })
    }
}
