//! An archive in a directory: of another disk, or of another machine, mounted.
//!
//! Files and directories are for their owner alone: they hold the bodies of jobs. What `root` makes
//! belongs to whom the directory belongs to: a server that is not `root` goes on with it. An object is
//! written under a name of its own, synced, and then linked to its name, which fails if the name is
//! taken: also on a network drive.
//!
//! The directory itself is never made: where it is missing, a disk is not mounted. Where its mount
//! point is there and empty, the file [`MARKER`] tells: what had one a moment ago and has none, or
//! another, is another directory, and nothing is written to it or believed of it.

use std::fs;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::flight::Threads;
use super::format::MARKER;
use super::store::{Flight, Listed, Put, Store, Trouble};
use bsd::storage::RealFs;
use bsd::storage::disk::{Fs, OpenMode, ReadFs, read_exact_at, write_all_at};
use bsd::storage::marker_file::is_as_empty;
use bsd::sys::random::fill;

/// Prefix of the names of unfinished files, which no list shows.
const UNFINISHED: &str = ".new-";

/// Objects in files. Clones are of the same store.
#[derive(Debug, Clone)]
pub(super) struct LocalStore {
    root: PathBuf,
    url: String,
    /// Content of the marker; `None`: there was none when it was looked for.
    marker: Arc<Mutex<Option<Vec<u8>>>>,
}

impl LocalStore {
    /// The store in the directory `root`, which need not be there yet.
    pub(super) fn new(root: PathBuf, url: &str) -> LocalStore {
        let marker = read(&root.join(MARKER), 0..u64::MAX).ok();
        LocalStore {
            root,
            url: url.to_owned(),
            marker: Arc::new(Mutex::new(marker)),
        }
    }

    fn marker(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.marker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self, doing: &str, name: &str, why: impl std::fmt::Display) -> Trouble {
        Trouble::passing(format!("cannot {doing} {name} at {}: {why}", self.url))
    }

    /// The directory is there, and the one that it was.
    fn look(&self, doing: &str, name: &str) -> Result<(), Trouble> {
        if !self.root.is_dir() {
            return Err(self.trouble(doing, name, "the directory is not there; mount it"));
        }
        let mut known = self.marker();
        let found = match read(&self.root.join(MARKER), 0..u64::MAX) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(self.trouble(doing, name, error)),
        };
        if known.is_some() && *known != found {
            let why = format!(
                "the directory is not the one that it was (its file {MARKER} is gone, or another); \
                 is its disk mounted?"
            );
            return Err(self.trouble(doing, name, why));
        }
        *known = found;
        Ok(())
    }

    /// Make the directories between the root and an object.
    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        if dir == self.root || dir.is_dir() {
            return Ok(());
        }
        let parent = dir.parent().unwrap_or(&self.root);
        self.make_dirs(parent)?;
        match rustix::fs::mkdir(dir, Mode::RWXU) {
            Ok(()) => self.give_to_owner(dir)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        RealFs.sync_dir(parent)
    }

    /// What `root` has made is for whom the directory belongs to.
    fn give_to_owner(&self, made: &Path) -> io::Result<()> {
        let owner = fs::metadata(&self.root)?;
        match fs::symlink_metadata(made)?.uid() == 0 && owner.uid() != 0 {
            true => lchown(made, Some(owner.uid()), Some(owner.gid())),
            false => Ok(()),
        }
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<Put> {
        let dir = path.parent().unwrap_or(&self.root);
        self.make_dirs(dir)?;
        // In containers each process may have the number 1.
        let mut random = [0; 8];
        fill(&mut random)?;
        let number = u64::from_le_bytes(random);
        let new = dir.join(format!("{UNFINISHED}{number:016x}"));
        let file = RealFs.open(&new, OpenMode::CreateNew)?;
        let written = || -> io::Result<Put> {
            self.give_to_owner(&new)?;
            write_all_at(&*file, bytes, 0)?;
            file.sync()?;
            match rustix::fs::link(&new, path) {
                Ok(()) => Ok(Put::Done),
                Err(Errno::EXIST) => Ok(Put::Exists),
                Err(error) => Err(error.into()),
            }
        };
        let put = written();
        RealFs.remove_file(&new).or_else(unless_missing)?;
        RealFs.sync_dir(dir)?;
        put
    }

    /// The files below a directory.
    fn walk(&self, dir: &Path, found: &mut Vec<Listed>) -> io::Result<()> {
        let entries = match RealFs.read_dir(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = dir.join(&entry.name);
            if path.is_dir() {
                self.walk(&path, found)?;
            } else if !entry.name.starts_with(UNFINISHED)
                && let Some(name) = path.strip_prefix(&self.root).ok().and_then(Path::to_str)
            {
                let size = match RealFs.open_read(&path) {
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    file => file?.size()?,
                };
                let name = name.to_owned();
                found.push(Listed { name, size });
            }
        }
        Ok(())
    }
}

/// True if it is an object, or a directory that has one.
fn has_file(path: &Path) -> io::Result<bool> {
    if !path.is_dir() {
        return Ok(true);
    }
    for entry in RealFs.read_dir(path)? {
        if !entry.name.starts_with(UNFINISHED) && has_file(&path.join(&entry.name))? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn unless_missing(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

fn read(path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
    let file = RealFs.open_read(path)?;
    let end = range.end.min(file.size()?);
    let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
    read_exact_at(&*file, &mut bytes, range.start)?;
    Ok(bytes)
}

impl Store for LocalStore {
    fn place(&self) -> &str {
        &self.url
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        self.look("put", name)?;
        let put = self.put(&self.root.join(name), bytes);
        put.map_err(|error| self.trouble("put", name, error))
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Trouble> {
        self.get_range(name, 0..u64::MAX)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Option<Vec<u8>>, Trouble> {
        match read(&self.root.join(name), range) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.look("get", name).map(|()| None)
            }
            Err(error) => Err(self.trouble("get", name, error)),
        }
    }

    fn flight(&self, connections: usize) -> Box<dyn Flight + '_> {
        let store = self.clone();
        Box::new(Threads::new(connections, move |want| store.answer(want)))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        let mut found = Vec::new();
        let walked = self.walk(&self.root.join(prefix), &mut found);
        walked.map_err(|error| self.trouble("list", prefix, error))?;
        self.look("list", prefix)?;
        found.retain(|it| it.name.as_str() > after);
        found.sort();
        Ok(found)
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        self.look("list", "/")?;
        let entries = RealFs.read_dir(&self.root);
        let entries = entries.map_err(|error| self.trouble("list", "/", error))?;
        let mut tops = Vec::new();
        // A file system makes directories of its own in its root, which may be for `root` alone.
        for entry in entries.into_iter().filter(|entry| !is_as_empty(entry)) {
            let has_file = has_file(&self.root.join(&entry.name));
            if has_file.map_err(|error| self.trouble("list", &entry.name, error))? {
                tops.push(entry.name);
            }
        }
        Ok(tops)
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        for name in names {
            let removed = RealFs.remove_file(&self.root.join(name));
            removed
                .or_else(unless_missing)
                .map_err(|error| self.trouble("remove", name, error))?;
        }
        if names.iter().any(|name| name == MARKER) {
            *self.marker() = None;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{Codec, open};

    fn store(root: &Path) -> Box<dyn Store> {
        open(&format!("file://{}", root.display()), Codec::default()).unwrap()
    }

    #[test]
    fn what_root_puts_belongs_to_whom_the_directory_belongs_to() {
        const OWNER: u32 = 4321;
        let dir = tempfile::tempdir().unwrap();
        if lchown(dir.path(), Some(OWNER), Some(OWNER)).is_err() {
            println!("skipped: only root gives files away");
            return;
        }
        store(dir.path())
            .put_if_absent("a/chain/1", b"one")
            .unwrap();
        for made in ["a", "a/chain", "a/chain/1"] {
            let found = fs::metadata(dir.path().join(made)).unwrap();
            assert_eq!((found.uid(), found.gid()), (OWNER, OWNER), "{made}");
        }
    }

    #[test]
    fn the_root_of_a_file_system_holds_no_archive_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        fs::create_dir_all(dir.path().join("lost+found/#12")).unwrap();
        assert_eq!(
            store.put_if_absent("lost+found/#12/found", b"one"),
            Ok(Put::Done)
        );
        assert_eq!(store.tops(), Ok(vec![]));
        assert_eq!(store.put_if_absent("a/chain/1", b"one"), Ok(Put::Done));
        assert_eq!(store.tops(), Ok(vec!["a".to_owned()]));
    }

    #[test]
    fn a_directory_keeps_what_is_put_once_and_lists_it_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        for name in ["a/chain/2", "a/chain/1", "b", "a/chain/3"] {
            assert_eq!(store.put_if_absent(name, b"one"), Ok(Put::Done));
        }
        assert_eq!(store.put_if_absent("a/chain/2", b"two"), Ok(Put::Exists));
        assert_eq!(store.get("a/chain/2"), Ok(Some(b"one".to_vec())));
        assert_eq!(store.get_range("b", 1..9), Ok(Some(b"ne".to_vec())));
        assert_eq!(store.get_range("b", 7..9), Ok(Some(Vec::new())));
        assert_eq!(store.get("a/chain/4"), Ok(None));
        let names = |after| -> Vec<String> {
            let listed = store.list("a/chain/", after).unwrap().into_iter();
            listed.map(|it| it.name).collect()
        };
        assert_eq!(names(""), ["a/chain/1", "a/chain/2", "a/chain/3"]);
        assert_eq!(names("a/chain/1"), ["a/chain/2", "a/chain/3"]);
        assert_eq!(store.list("none/", ""), Ok(Vec::new()));
        let mut tops = store.tops().unwrap();
        tops.sort();
        assert_eq!(tops, ["a", "b"]);
        let gone = ["a/chain/1".to_owned(), "a/chain/9".to_owned()];
        store.remove(&gone).unwrap();
        assert_eq!(names(""), ["a/chain/2", "a/chain/3"]);
        let rest = ["a/chain/2".to_owned(), "a/chain/3".to_owned()];
        store.remove(&rest).unwrap();
        assert_eq!(store.tops(), Ok(vec!["b".to_owned()]));
    }

    #[test]
    fn g24_what_is_archived_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store.put_if_absent("log/chain/1", b"secret").unwrap();
        let mode = |name: &str| {
            let found = dir.path().join(name).metadata().unwrap();
            found.permissions().mode() & 0o777
        };
        assert_eq!(mode("log/chain/1"), 0o600);
        assert_eq!((mode("log"), mode("log/chain")), (0o700, 0o700));
    }

    #[test]
    fn g16_a_directory_that_is_not_mounted_is_neither_made_nor_written_to_nor_believed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, away) = (dir.path().join("archive"), dir.path().join("away"));
        let missing = store(&root);
        assert!(missing.put_if_absent("x", b"").is_err() && missing.get("x").is_err());
        assert!(missing.list("x/", "").is_err() && !root.exists());
        RealFs.create_dir(&root).unwrap();
        let store = store(&root);
        store.put_if_absent(MARKER, b"this one").unwrap();
        store.put_if_absent("x", b"1").unwrap();
        // The disk is not mounted any more: its mount point is there.
        RealFs.rename(&root, &away).unwrap();
        RealFs.create_dir(&root).unwrap();
        let refused = store.put_if_absent("y", b"2").unwrap_err();
        assert!(refused.what.contains("mounted"), "{refused}");
        assert!(store.get("x").is_err() && store.list("x/", "").is_err());
        assert!(store.tops().is_err());
        assert_eq!(RealFs.read_dir(&root).unwrap().len(), 0);
        RealFs.remove_dir(&root).unwrap();
        RealFs.rename(&away, &root).unwrap();
        assert_eq!(store.put_if_absent("y", b"2"), Ok(Put::Done));
        assert_eq!(store.get("x"), Ok(Some(b"1".to_vec())));
    }
}
