//! A log that came from another member takes the place of the one in the data directory.
//!
//! The copy is built in `cluster/incoming` and gets that name when every byte of it has been checked.
//! To install it is to move its files into the data directory, in steps of which each can be
//! repeated:
//!
//! | step | after a crash the next start |
//! |---|---|
//! | 1. the copy is complete under `cluster/incoming` | removes it: it will be sent again |
//! | 2. its list of files and its base are written into it, and it is renamed to `cluster/installing` | goes on with step 3 |
//! | 3. log files that are not on the list are removed from the data directory, files of the list are moved there | goes on |
//! | 4. the ledger begins again at the base | goes on: all of it again, to the same end |
//! | 5. `cluster/installing` is removed | has the new log |
//!
//! The log is open again only after step 5, so nothing that it makes is taken for a file of the
//! earlier one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ledger::{Base, LedgerError, failed, full_or_failed};
use super::member::Members;
use bsd::ErrorClass;
use bsd::storage::OpenError;
use bsd::storage::disk::{Fs, OpenMode, read_exact_at, write_all_at};
use bsd::storage::is_log_file;

/// Where a copy is built, in the directory of the ledger.
const INCOMING: &str = "incoming";
/// The copy that is being installed.
const INSTALLING: &str = "installing";
/// Name of the list: names of files, and the base.
const LIST: &str = "list";
const MAGIC: &[u8; 8] = b"bsdINST\n";

/// Where the copy has to be built.
#[must_use]
pub fn incoming(ledger_dir: &Path) -> PathBuf {
    ledger_dir.join(INCOMING)
}

/// Remove the remains of a copy that was not installed.
///
/// # Errors
/// If the disk fails.
pub fn discard(fs: &Arc<dyn Fs>, ledger_dir: &Path) -> Result<(), OpenError> {
    for entry in list(&**fs, ledger_dir)? {
        if entry.starts_with(INCOMING) {
            remove_all(&**fs, &ledger_dir.join(entry))?;
        }
    }
    Ok(())
}

/// The copy in `incoming` is the log from now on, and begins at `base`: step 2, from which there is no
/// way back. Durable on return; [`finish`] does the rest.
///
/// # Errors
/// [`LedgerError::Full`]: there is no room for the list or the name, and nothing has happened.
/// Otherwise the disk has failed.
pub fn begin(fs: &Arc<dyn Fs>, ledger_dir: &Path, base: &Base) -> Result<(), LedgerError> {
    let from = ledger_dir.join(INCOMING);
    let listed = fs.read_dir(&from);
    let listed = listed.map_err(|error| full_or_failed("list", &from, &error))?;
    let names: Vec<String> = listed
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| is_log_file(name))
        .collect();
    let bytes = encode(&names, base);
    let path = from.join(LIST);
    let write = || -> io::Result<()> {
        match fs.remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = fs.open(&path, OpenMode::CreateNew)?;
        write_all_at(&*file, &bytes, 0)?;
        file.sync()?;
        fs.sync_dir(&from)
    };
    write().map_err(|error| full_or_failed("write", &path, &error))?;
    if let Err(error) = fs.rename(&from, &ledger_dir.join(INSTALLING)) {
        let listed = fs.read_dir(ledger_dir);
        let has = |name: &str| {
            listed
                .as_ref()
                .map(|all| all.iter().any(|it| it.name == name))
        };
        return Err(match (has(INCOMING), has(INSTALLING)) {
            // A directory may need room for a name.
            (Ok(true), Ok(false)) => full_or_failed("rename", &from, &error),
            _ => failed("rename", &from, &error),
        });
    }
    let synced = fs.sync_dir(ledger_dir);
    synced.map_err(|error| failed("sync", ledger_dir, &error))
}

/// True if a copy is being installed: the next start goes on with that.
///
/// # Errors
/// If the disk does not answer.
pub fn is_under_way(fs: &Arc<dyn Fs>, ledger_dir: &Path) -> Result<bool, OpenError> {
    Ok(list(&**fs, ledger_dir)?
        .iter()
        .any(|name| name == INSTALLING))
}

/// Steps 3 to 5, or the rest of them; `reset` is step 4. Returns whether there was anything to do.
/// The log must not be open.
///
/// # Errors
/// If the disk fails, or as of `reset`: the next call goes on.
pub fn finish<E: From<OpenError>>(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    ledger_dir: &Path,
    reset: &mut dyn FnMut(Base) -> Result<(), E>,
) -> Result<bool, E> {
    let from = ledger_dir.join(INSTALLING);
    if !is_under_way(fs, ledger_dir)? {
        return Ok(false);
    }
    let path = from.join(LIST);
    let io = |error| OpenError::io("install the copy", &path, &error);
    let waiting = list(&**fs, &from)?;
    if !waiting.iter().any(|name| name == LIST) {
        // The list goes last: everything else is done.
        remove_all(&**fs, &from)?;
        fs.sync_dir(ledger_dir).map_err(io)?;
        return Ok(true);
    }
    let bytes = read(&**fs, &path).map_err(io)?;
    let Some((names, base)) = decode(&bytes) else {
        let advice = ErrorClass::Diverged.advice();
        let what = format!("the list of a copy that is being installed is damaged; {advice}");
        return Err(OpenError::Foreign { path, what }.into());
    };
    for name in list(&**fs, dir)? {
        if is_log_file(&name) && !names.contains(&name) {
            fs.remove_file(&dir.join(&name)).map_err(io)?;
        }
    }
    for name in &names {
        if !waiting.contains(name) {
            continue;
        }
        let to = dir.join(name);
        match fs.remove_file(&to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error).into()),
            _ => {}
        }
        fs.rename(&from.join(name), &to).map_err(io)?;
    }
    fs.sync_dir(dir).map_err(io)?;
    fs.sync_dir(&from).map_err(io)?;
    reset(base)?;
    for name in list(&**fs, &from)? {
        if name != LIST {
            fs.remove_file(&from.join(name)).map_err(io)?;
        }
    }
    fs.sync_dir(&from).map_err(io)?;
    remove_all(&**fs, &from)?;
    fs.sync_dir(ledger_dir).map_err(io)?;
    Ok(true)
}

fn list(fs: &dyn Fs, dir: &Path) -> Result<Vec<String>, OpenError> {
    let listed = fs.read_dir(dir);
    let listed = listed.map_err(|error| OpenError::io("list", dir, &error))?;
    Ok(listed.into_iter().map(|entry| entry.name).collect())
}

/// A directory with its files, in which there are no directories.
fn remove_all(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    for name in list(fs, dir)? {
        let path = dir.join(name);
        fs.remove_file(&path)
            .map_err(|error| OpenError::io("remove", &path, &error))?;
    }
    fs.remove_dir(dir)
        .map_err(|error| OpenError::io("remove", dir, &error))
}

fn read(fs: &dyn Fs, path: &Path) -> io::Result<Vec<u8>> {
    let file = fs.open_read(path)?;
    let mut bytes = vec![0; file.size()?.min(16 << 20) as usize];
    read_exact_at(&*file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Magic, CRC of the rest, index, term, members, number of names, names with their sizes.
fn encode(names: &[String], base: &Base) -> Vec<u8> {
    let mut rest = Vec::new();
    rest.extend_from_slice(&base.index.to_le_bytes());
    rest.extend_from_slice(&base.term.to_le_bytes());
    base.members.encode(&mut rest);
    rest.extend_from_slice(&(names.len() as u32).to_le_bytes());
    for name in names {
        rest.push(name.len() as u8);
        rest.extend_from_slice(name.as_bytes());
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&crc32fast::hash(&rest).to_le_bytes());
    bytes.extend_from_slice(&rest);
    bytes
}

fn decode(bytes: &[u8]) -> Option<(Vec<String>, Base)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (crc, rest) = rest.split_first_chunk()?;
    if crc32fast::hash(rest) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (index, rest) = rest.split_first_chunk()?;
    let (term, rest) = rest.split_first_chunk()?;
    let (members, rest) = Members::decode(rest)?;
    let (count, mut rest) = rest.split_first_chunk()?;
    let mut names = Vec::new();
    for _ in 0..u32::from_le_bytes(*count) {
        let (size, after) = rest.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*size))?;
        names.push(std::str::from_utf8(name).ok()?.to_owned());
        rest = after;
    }
    let base = Base {
        index: u64::from_le_bytes(*index),
        term: u64::from_le_bytes(*term),
        members,
    };
    rest.is_empty().then_some((names, base))
}
