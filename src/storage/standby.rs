//! The copy of a standby: a data directory that holds nothing but what came from elsewhere.
//!
//! A file in it says so, and up to where the copy goes. It is there before the copy has its name,
//! and removed, durably, before anyone else may change the log: by every start that is not one of
//! a standby. So a directory with that file can be thrown away, and one without cannot.

use std::io;
use std::path::Path;

use super::disk::{DirEntry, Fs, OpenMode};
use super::error::OpenError;
use super::format::names::{
    COMPACTION_NAME, LOCK_NAME, LOST_AND_FOUND, STANDBY_MARKER, file_name, is_as_empty,
    is_of_a_log, parse_cut_name, parse_file_name,
};
use super::marker_file::write_marker;
use crate::types::Position;

/// The marker of a copy that is being removed: not one that says how far it goes.
const VOID: &[u8] = b"void\n";

/// Remove the marker: from now on the log is not a copy. Durable on return.
///
/// # Errors
/// If the disk fails.
pub(super) fn remove_marker(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(STANDBY_MARKER);
    fs.remove_file(&path)
        .and_then(|()| fs.sync_dir(dir))
        .map_err(|error| OpenError::io("remove", &path, &error))
}

/// Cut the log of a copy at `at`, where it ended once. Nothing but what came from elsewhere was
/// appended since. Durable on return; it can be repeated.
///
/// # Errors
/// [`OpenError::InUse`]; otherwise if the disk fails.
pub fn cut(fs: &dyn Fs, dir: &Path, at: Position) -> Result<(), OpenError> {
    let _lock = fs
        .lock_dir(dir)
        .map_err(|error| OpenError::lock(dir, error))?;
    let cut = || -> io::Result<()> {
        let names = fs.read_dir(dir)?;
        let segment = |name: &str| parse_file_name(name).map(|(first, _)| first);
        let mut later: Vec<_> = names
            .iter()
            .filter_map(|entry| Some((segment(&entry.name)?, &entry.name)))
            .filter(|(first, _)| *first > at.segment())
            .collect();
        // From the end, so that what is left is a log at any time.
        later.sort();
        for (_, name) in later.iter().rev() {
            fs.remove_file(&dir.join(name))?;
            fs.sync_dir(dir)?;
        }
        let path = dir.join(file_name(at.segment(), 0));
        let file = fs.open(&path, OpenMode::ReadWrite)?;
        if file.size()? > at.offset().into() {
            file.set_size(at.offset().into())?;
            file.sync()?;
        }
        Ok(())
    };
    cut().map_err(|error| OpenError::io("cut the copy in", dir, &error))
}

/// True if no other directory can take the name of this one, as far as is known: it is the root of a file
/// system.
///
/// # Errors
/// If the disk fails.
pub fn is_root(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
    if fs.is_mount_point(dir) {
        return Ok(true);
    }
    match fs.read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(OpenError::io("list", dir, &error)),
        Ok(names) => Ok(names
            .iter()
            .any(|it| it.name == LOST_AND_FOUND && !it.is_file)),
    }
}

/// Remove a copy, all of it and nothing else, and leave an empty directory. If that is interrupted,
/// it is still a copy.
///
/// # Errors
/// [`OpenError::Foreign`] if it is no copy of a standby, or holds anything else;
/// [`OpenError::InUse`]; otherwise if the disk fails.
pub fn discard(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    let foreign = |what: String| OpenError::Foreign {
        path: dir.to_owned(),
        what,
    };
    let _lock = fs
        .lock_dir(dir)
        .map_err(|error| OpenError::lock(dir, error))?;
    let names = fs
        .read_dir(dir)
        .map_err(|error| OpenError::io("list", dir, &error))?;
    if !names.iter().any(|entry| entry.name == STANDBY_MARKER) {
        return Err(foreign("this is not the copy of a standby".to_owned()));
    }
    let is_other = |entry: &&DirEntry| !is_of_a_copy(&entry.name) && !is_as_empty(entry);
    if let Some(other) = names.iter().find(is_other) {
        let name = &other.name;
        return Err(foreign(format!(
            "a standby begins again here, and {name:?} is not a file of its copy; move it elsewhere"
        )));
    }
    // What is left after a crash is no copy up to anywhere.
    write_marker(fs, dir, STANDBY_MARKER, VOID)?;
    let remove = || -> io::Result<()> {
        // Not as listed above: a marker that a crash has left unfinished is gone now.
        for entry in fs.read_dir(dir)? {
            if entry.name != STANDBY_MARKER && !is_as_empty(&entry) {
                fs.remove_file(&dir.join(&entry.name))?;
            }
        }
        fs.sync_dir(dir)?;
        fs.remove_file(&dir.join(STANDBY_MARKER))?;
        fs.remove_file(&dir.join(LOCK_NAME))?;
        fs.sync_dir(dir)
    };
    remove().map_err(|error| OpenError::io("clear", dir, &error))
}

fn is_of_a_copy(name: &str) -> bool {
    is_of_a_log(name) || name == COMPACTION_NAME || parse_cut_name(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::disk::sim::Crash;
    use crate::storage::marker_file::read_marker;
    use crate::storage::{OpenError, SimFs};
    use crate::types::SegmentId;

    const DIR: &str = "/copy";

    /// A copy of three files that says how far it goes.
    fn copy(disk: &SimFs) {
        Fs::create_dir(disk, DIR.as_ref()).unwrap();
        for segment in 1..=3 {
            let path = Path::new(DIR).join(file_name(SegmentId(segment), 0));
            let file = Fs::open(disk, &path, OpenMode::CreateNew).unwrap();
            file.sync().unwrap();
        }
        write_marker(disk, DIR.as_ref(), STANDBY_MARKER, b"up to here").unwrap();
        Fs::sync_dir(disk, Path::new("/")).unwrap();
    }

    #[test]
    fn t16_half_of_a_copy_that_is_discarded_never_says_how_far_it_goes() {
        for cut in 0.. {
            let disk = SimFs::new(cut);
            copy(&disk);
            disk.crash_at(disk.operations() + cut);
            let done: Result<(), OpenError> = discard(&disk, DIR.as_ref());
            let hows = (0..20).map(|seed| Crash::Random { seed });
            for how in [Crash::DropUnsynced, Crash::KeepAll]
                .into_iter()
                .chain(hows)
            {
                let image = disk.crash_image(how);
                let marker = read_marker(&image, DIR.as_ref(), STANDBY_MARKER).unwrap();
                let names = crate::storage::disk::ReadFs::read_dir(&image, DIR.as_ref()).unwrap();
                let files = names
                    .iter()
                    .filter(|it| parse_file_name(&it.name).is_some());
                match (marker.as_deref(), files.count()) {
                    (Some(b"up to here"), files) => assert_eq!(files, 3, "cut {cut}, {how:?}"),
                    (Some(marker), _) => assert_eq!(marker, VOID, "cut {cut}, {how:?}"),
                    (None, files) => assert_eq!(files, 0, "cut {cut}, {how:?}"),
                }
                if marker.is_some() {
                    discard(&image, DIR.as_ref()).expect("it goes on where it was interrupted");
                }
            }
            if done.is_ok() {
                assert!(cut > 5);
                break;
            }
        }
    }
}
