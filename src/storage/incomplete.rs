//! A directory that gets its name when it is complete: all or nothing.
//!
//! It grows next to the requested directory, under its name plus [`INCOMPLETE`]. If interrupted, there
//! is nothing under the requested name, and the next call starts over; after an error, nothing is left
//! next to it either ([`IncompleteDir`]).
//!
//! The root of a file system cannot be replaced by another directory. There the log grows in a
//! subdirectory (`INSIDE`), which gets another name when it is whole (`INSIDE_WHOLE`); then its
//! files are moved up. A crash in between leaves some here and some there: anyone who opens the log next
//! moves the rest, before anything is read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::storage::disk::{DirLock, Fs};
use crate::storage::error::OpenError;
use crate::storage::format::names::{INSIDE, INSIDE_WHOLE, LOCK_NAME, STANDBY_MARKER, is_as_empty};

/// The suffix of a directory's name before it is complete.
pub(in crate::storage) const INCOMPLETE: &str = ".incomplete";

/// A directory that grows next to the requested one, until it gets its name. Dropped before that,
/// when an error ends the work, it is removed with its content.
#[derive(Debug)]
pub(in crate::storage) struct IncompleteDir {
    fs: Arc<dyn Fs>,
    /// The requested directory.
    pub(in crate::storage) dir: PathBuf,
    /// Where it is now.
    pub(in crate::storage) path: PathBuf,
    /// Whether a file of this name is part of it.
    is_ours: fn(&str) -> bool,
    is_published: bool,
}

impl IncompleteDir {
    /// Create it, empty: leftovers of an interrupted call are removed, and nothing else. `dir` must
    /// be empty or missing.
    pub(in crate::storage) fn make(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        is_ours: fn(&str) -> bool,
    ) -> Result<IncompleteDir, OpenError> {
        let is_kept = refuse_what_is_there(&**fs, dir)? || fs.is_mount_point(dir);
        let path = match is_kept && is_ours(LOCK_NAME) {
            true => dir.join(INSIDE),
            false => {
                let mut name = dir.file_name().unwrap_or_default().to_owned();
                name.push(INCOMPLETE);
                dir.with_file_name(name)
            }
        };
        fs.create_dir_all(&path)
            .map_err(|error| OpenError::io("create", &path, &error))?;
        clear(&**fs, &path, is_ours)?;
        let made = IncompleteDir {
            fs: fs.clone(),
            dir: dir.to_owned(),
            path,
            is_ours,
            is_published: false,
        };
        sync_ancestors(&**fs, &made.path)?;
        Ok(made)
    }

    /// Give the directory, whose content is durable, its name. Durable on return. Until then `held`
    /// keeps others out: a server that opened it earlier could acknowledge a job, and a power cut
    /// could lose the whole directory.
    pub(in crate::storage) fn publish<T>(mut self, held: T) -> Result<(), OpenError> {
        if self.path == self.dir.join(INSIDE) {
            return self.move_up(held);
        }
        let renamed = self.fs.replace(&self.path, &self.dir);
        self.is_published = renamed.is_ok();
        let named = renamed.and_then(|()| self.fs.sync_dir(parent(&self.dir)));
        drop(held);
        named.map_err(|error| OpenError::io("give its name to", &self.dir, &error))
    }

    /// The same, of one that grows inside of the requested directory.
    fn move_up<T>(mut self, held: T) -> Result<(), OpenError> {
        let _lock = lock(&*self.fs, &self.dir)?;
        // A server may have begun a log here meanwhile, and ended.
        refuse_what_is_there(&*self.fs, &self.dir)?;
        let whole = self.dir.join(INSIDE_WHOLE);
        let renamed = self.fs.rename(&self.path, &whole);
        self.is_published = renamed.is_ok();
        let named = renamed.and_then(|()| self.fs.sync_dir(&self.dir));
        drop(held);
        named.map_err(|error| OpenError::io("give its name to", &whole, &error))?;
        finish_move(&*self.fs, &self.dir)
    }

    /// Another call may have started in the same place: what is locked is not ours.
    fn remove(&self) -> Result<(), OpenError> {
        let _lock = lock_if_ours(&*self.fs, &self.path, self.is_ours)?;
        let remove = || -> io::Result<()> {
            for entry in self.fs.read_dir(&self.path)? {
                if (self.is_ours)(&entry.name) {
                    self.fs.remove_file(&self.path.join(&entry.name))?;
                }
            }
            self.fs.remove_dir(&self.path)
        };
        remove().map_err(|error| OpenError::io("remove", &self.path, &error))
    }
}

impl Drop for IncompleteDir {
    fn drop(&mut self) {
        if !self.is_published {
            // If it cannot be removed, it is left as after a crash: the next call removes it. The
            // error that ended the work is the one to report.
            let _ = self.remove();
        }
    }
}

/// Move the files of a whole log up to where they belong, if a publication was interrupted. The caller
/// has the lock of `dir`. Durable on return; it can be repeated.
///
/// # Errors
/// [`OpenError::Foreign`] if a name is taken: then that file, and its namesake, stay as they are.
/// Otherwise if the disk fails.
pub(in crate::storage) fn finish_move(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    let whole = dir.join(INSIDE_WHOLE);
    let list = |dir: &Path| {
        fs.read_dir(dir)
            .map_err(|error| OpenError::io("list", dir, &error))
    };
    if !list(dir)?.iter().any(|entry| entry.name == INSIDE_WHOLE) {
        return Ok(());
    }
    let mut names = list(&whole)?;
    // That it is a copy is known before anything else is here.
    names.sort_by_key(|entry| entry.name != STANDBY_MARKER);
    let failed = |error: &io::Error| OpenError::io("move the log out of", &whole, error);
    for entry in names.iter().filter(|entry| entry.name != LOCK_NAME) {
        let from = whole.join(&entry.name);
        match fs.rename(&from, &dir.join(&entry.name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(OpenError::Foreign {
                    path: from,
                    what: "the directory above has a file of this name, and nothing is ever \
                           overwritten; keep both, and move the one that is not of this log elsewhere"
                        .to_owned(),
                });
            }
            renamed => renamed.map_err(|error| failed(&error))?,
        }
    }
    let cleared = || -> io::Result<()> {
        fs.sync_dir(dir)?;
        if names.iter().any(|entry| entry.name == LOCK_NAME) {
            fs.remove_file(&whole.join(LOCK_NAME))?;
        }
        fs.remove_dir(&whole)?;
        fs.sync_dir(dir)
    };
    cleared().map_err(|error| failed(&error))
}

/// Finish what a crash has left of a new log in the root of a file system: it is whole, and not yet where
/// it belongs. Durable on return; it can be repeated.
///
/// # Errors
/// As when a log is opened.
pub fn settle(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    match fs.read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(OpenError::io("list", dir, &error)),
        Ok(names) if names.iter().all(|entry| entry.name != INSIDE_WHOLE) => return Ok(()),
        Ok(_) => {}
    }
    let _lock = lock(fs, dir)?;
    finish_move(fs, dir)
}

/// Nothing is ever overwritten. True if the directory has what its file system has made there, so that
/// it cannot be replaced.
fn refuse_what_is_there(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
    match fs.read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(OpenError::io("list", dir, &error)),
        Ok(names) if names.iter().all(is_as_empty) => Ok(!names.is_empty()),
        Ok(_) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: "the directory is not empty, and nothing is ever overwritten; give the name of \
                   one that does not exist"
                .to_owned(),
        }),
    }
}

/// Make a directory, and what leads to it, if it is missing. Durable on return, also if an interrupted
/// call has made it.
pub(in crate::storage) fn make_dir(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    fs.create_dir_all(dir)
        .map_err(|error| OpenError::io("create", dir, &error))?;
    sync_ancestors(fs, dir)
}

/// Make the name of a directory durable, and those of what leads to it.
pub(in crate::storage) fn sync_ancestors(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    for ancestor in dir.ancestors().skip(1) {
        let ancestor = if ancestor.as_os_str().is_empty() {
            Path::new(".")
        } else {
            ancestor
        };
        match fs.sync_dir(ancestor) {
            // A directory that this process may not read was not made by it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            other => other.map_err(|error| OpenError::io("sync what leads to", dir, &error))?,
        }
    }
    Ok(())
}

fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Remove from `dir` the leftovers of an interrupted call, and nothing else. A lock, where one
/// belongs, shows that no other call is working there.
fn clear(fs: &dyn Fs, dir: &Path, is_ours: fn(&str) -> bool) -> Result<(), OpenError> {
    let io = |error| OpenError::io("clear", dir, &error);
    let names = fs.read_dir(dir).map_err(io)?;
    if let Some(other) = names.iter().find(|entry| !is_ours(&entry.name)) {
        return Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "a directory of this name is needed, and there is one that holds {:?}; move it \
                 elsewhere",
                other.name
            ),
        });
    }
    let _lock = lock_if_ours(fs, dir, is_ours)?;
    names
        .iter()
        .filter(|entry| entry.name != LOCK_NAME)
        .try_for_each(|entry| fs.remove_file(&dir.join(&entry.name)))
        .map_err(io)
}

/// Lock a directory in which a lock belongs.
fn lock_if_ours(
    fs: &dyn Fs,
    dir: &Path,
    is_ours: fn(&str) -> bool,
) -> Result<Option<Box<dyn DirLock>>, OpenError> {
    if is_ours(LOCK_NAME) {
        lock(fs, dir).map(Some)
    } else {
        Ok(None)
    }
}

fn lock(fs: &dyn Fs, dir: &Path) -> Result<Box<dyn DirLock>, OpenError> {
    fs.lock_dir(dir)
        .map_err(|error| OpenError::lock(dir, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;
    use crate::storage::disk::{OpenMode, write_all_at};
    use crate::storage::format::names::is_of_a_log;

    /// Both have found the place empty; the one without the lock gives up.
    #[test]
    fn who_gives_up_removes_nothing_of_another_who_has_the_same_place() {
        let disk = SimFs::new(1);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let make = || IncompleteDir::make(&fs, Path::new("/new"), is_of_a_log).unwrap();
        let (one, other) = (make(), make());
        let held = lock(&*fs, &one.path).unwrap();
        let segment = one.path.join("segment-0000000001.00000");
        disk.write(&segment, b"a log").unwrap();
        drop(other);
        assert_eq!(disk.read(&segment).unwrap(), b"a log");
        drop(held);
        drop(one);
        assert!(disk.names("/new.incomplete").is_err(), "nothing is left");
    }

    /// Whatever call is the last before the power cut: the directory is as good as empty, or has all.
    #[test]
    fn g52_a_directory_that_cannot_be_replaced_has_all_of_a_new_log_or_nothing() {
        let dir = Path::new("/disk");
        let file = |name: &str| format!("segment-000000000{name}.00000");
        let names = [&*file("1"), &*file("2"), &*file("3"), STANDBY_MARKER];
        let (mut nothing, mut all) = (0, 0);
        for calls in 1.. {
            let disk = SimFs::new(7);
            let fs: Arc<dyn Fs> = Arc::new(disk.clone());
            fs.create_dir(dir).unwrap();
            fs.create_dir(&dir.join("lost+found")).unwrap();
            fs.sync_dir(Path::new("/")).unwrap();
            fs.sync_dir(dir).unwrap();
            disk.crash_at(disk.operations() + calls);
            let build = || -> Result<(), OpenError> {
                let new = IncompleteDir::make(&fs, dir, is_of_a_log)?;
                let write = || -> io::Result<()> {
                    for name in names {
                        let file = fs.open(&new.path.join(name), OpenMode::CreateNew)?;
                        write_all_at(&*file, name.as_bytes(), 0)?;
                        file.sync()?;
                    }
                    fs.sync_dir(&new.path)
                };
                write().map_err(|error| OpenError::io("write", dir, &error))?;
                new.publish(())
            };
            let built = build();
            let after = disk.crash_image(Crash::DropUnsynced);
            let image: Arc<dyn Fs> = Arc::new(after.clone());
            let found = image.read_dir(dir).unwrap();
            match found.iter().all(is_as_empty) {
                // It can be done again.
                true => {
                    nothing += 1;
                    assert!(built.is_err());
                    drop(IncompleteDir::make(&image, dir, is_of_a_log).unwrap());
                }
                false => {
                    all += 1;
                    finish_move(&*image, dir).unwrap();
                    for name in names {
                        assert_eq!(
                            after.read(dir.join(name)).unwrap(),
                            name.as_bytes(),
                            "{calls}"
                        );
                    }
                    assert!(image.read_dir(&dir.join(INSIDE_WHOLE)).is_err());
                }
            }
            if built.is_ok() {
                break;
            }
        }
        assert!(nothing > 5 && all > 5, "{nothing} {all}");
    }

    /// A server has begun a log there since the place was found empty, and has ended.
    #[test]
    fn g52_a_log_that_came_meanwhile_is_not_overwritten_by_one_that_is_moved_up() {
        let dir = Path::new("/disk");
        let disk = SimFs::new(7);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        fs.create_dir(dir).unwrap();
        fs.create_dir(&dir.join("lost+found")).unwrap();
        let new = IncompleteDir::make(&fs, dir, is_of_a_log).unwrap();
        let name = "segment-0000000001.00000";
        disk.write(new.path.join(name), b"new").unwrap();
        disk.write(dir.join(name), b"acknowledged").unwrap();
        let refused = new.publish(()).unwrap_err();
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
        assert_eq!(disk.read(dir.join(name)).unwrap(), b"acknowledged");

        // Nor by what looks like the rest of an interrupted move.
        let whole = dir.join(INSIDE_WHOLE);
        fs.create_dir(&whole).unwrap();
        disk.write(whole.join(name), b"new").unwrap();
        let refused = finish_move(&*fs, dir).unwrap_err();
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
        assert_eq!(disk.read(dir.join(name)).unwrap(), b"acknowledged");
        assert_eq!(disk.read(whole.join(name)).unwrap(), b"new");
    }

    /// When dropped, it examines what a power cut would leave.
    struct Held(SimFs);

    impl Drop for Held {
        fn drop(&mut self) {
            let left = self.0.crash_image(Crash::DropUnsynced);
            assert!(left.names("/new").is_ok(), "its name is not durable");
        }
    }

    #[test]
    fn no_one_is_let_into_a_new_directory_whose_name_a_power_cut_could_take() {
        let disk = SimFs::new(1);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let incomplete = IncompleteDir::make(&fs, Path::new("/new"), is_of_a_log).unwrap();
        incomplete.publish(Held(disk)).unwrap();
    }
}
