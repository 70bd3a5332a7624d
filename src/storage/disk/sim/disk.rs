//! The content of a simulated disk: files and names, as processes see them, as they are on the
//! platter, and the changes between the two.
//!
//! This file has the names, and the space that all files share; a file's content is in `file`.
//!
//! Nothing here fails on purpose, counts, or knows of crashes: that is in `fault`, the handle in
//! `mod`, and `crash`. Names and files are separate, as in a file system: a file may have no name
//! (removed but open), or after a crash another name than before.
//!
//! Invariant: the visible content of a file is the durable content with all un-synced changes
//! applied in order, except where a sync failed or the platter was damaged; the same holds for the
//! names of a directory, without exception.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::content::Content;
use super::file::FileNode;
use crate::storage::disk::DirEntry;

/// A file or a directory, apart from its names; never used twice in the life of a disk.
pub(super) type InodeId = u64;

/// The root directory.
pub(super) const ROOT: InodeId = 0;

/// Removed files that are kept, for [`Disk::resurrect`] and as a source of stale bytes.
const REMOVED_MAX: usize = 64;

/// The largest size of a file, as on Linux.
const FILE_SIZE_MAX: u64 = i64::MAX as u64;

pub(super) type Names = BTreeMap<String, InodeId>;

#[derive(Debug, Clone, Default)]
pub(super) struct DirNode {
    pub(super) visible: Names,
    pub(super) durable: Names,
    /// The number of readers that share it by a `DirLock`; 0: a writer has it; `None`: it is
    /// unlocked.
    pub(super) readers: Option<u32>,
}

/// A place for a name: the directory, and the name in it.
pub(super) type NamePlace = (InodeId, String);

/// A change of names that no sync of a directory has covered yet. A removed and an added name
/// together are a rename, which is one change: it happens as a whole or not at all.
#[derive(Debug, Clone)]
pub(super) struct NameChange {
    pub(super) sequence: u64,
    pub(super) inode: InodeId,
    gone: Option<NamePlace>,
    come: Option<NamePlace>,
}

impl NameChange {
    /// The directory whose sync makes the change durable: the target's, for a rename.
    fn dir(&self) -> Option<InodeId> {
        self.come
            .as_ref()
            .or(self.gone.as_ref())
            .map(|entry| entry.0)
    }

    /// A file has at most one name. Removing its name removes the current one, which may differ
    /// from the intended one if an older change was left out.
    pub(super) fn apply(
        &self,
        dirs: &mut BTreeMap<InodeId, DirNode>,
        names: fn(&mut DirNode) -> &mut Names,
    ) {
        if self.gone.is_some() {
            let all = dirs.values_mut().map(names);
            all.for_each(|names| names.retain(|_, inode| *inode != self.inode));
        }
        if let Some((dir, name)) = &self.come
            && let Some(names) = dirs.get_mut(dir).map(names)
        {
            names.insert(name.clone(), self.inode);
        }
    }

    fn entries(&self) -> impl Iterator<Item = &NamePlace> {
        self.gone.iter().chain(&self.come)
    }
}

/// A file that is permanently removed, kept because disks do not erase their bytes.
#[derive(Debug, Clone)]
pub(super) struct Removed {
    path: Arc<Path>,
    pub(super) content: Content,
}

impl From<FileNode> for Removed {
    fn from(file: FileNode) -> Removed {
        Removed {
            path: file.path,
            content: file.durable,
        }
    }
}

/// Where the bytes of a write arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Landing {
    /// At the right place.
    Here,
    /// Nowhere. The size of the file grows all the same: it is stored elsewhere.
    Nowhere,
    /// On the platter at another place, over its content.
    At { inode: InodeId, offset: u64 },
}

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) files: BTreeMap<InodeId, FileNode>,
    pub(super) dirs: BTreeMap<InodeId, DirNode>,
    /// Un-synced changes of names, oldest first.
    pub(super) names: Vec<NameChange>,
    /// The last number given to an inode or a change.
    sequence: u64,
    /// Bytes that all files together may take.
    pub(super) quota: Option<u64>,
    pub(super) copy_on_write: bool,
    /// Oldest first.
    pub(super) removed: VecDeque<Removed>,
}

impl Disk {
    pub(super) fn new() -> Disk {
        Disk {
            files: BTreeMap::new(),
            dirs: BTreeMap::from([(ROOT, DirNode::default())]),
            names: Vec::new(),
            sequence: ROOT,
            quota: None,
            copy_on_write: false,
            removed: VecDeque::new(),
        }
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    // Names.

    pub(super) fn lookup(&self, path: &Path) -> io::Result<InodeId> {
        components(path)?
            .iter()
            .try_fold(ROOT, |dir, name| self.lookup_in(dir, name))
    }

    fn lookup_in(&self, dir: InodeId, name: &str) -> io::Result<InodeId> {
        let dir = self.dirs.get(&dir).ok_or(Errno::NOTDIR)?;
        Ok(*dir.visible.get(name).ok_or(Errno::NOENT)?)
    }

    pub(super) fn lookup_file(&self, path: &Path) -> io::Result<InodeId> {
        let inode = self.lookup(path)?;
        if self.files.contains_key(&inode) {
            Ok(inode)
        } else {
            Err(Errno::ISDIR.into())
        }
    }

    pub(super) fn lookup_dir(&self, path: &Path) -> io::Result<InodeId> {
        let inode = self.lookup(path)?;
        if self.dirs.contains_key(&inode) {
            Ok(inode)
        } else {
            Err(Errno::NOTDIR.into())
        }
    }

    /// The directory of a path, which must exist, and the name in it, which need not.
    fn split(&self, path: &Path) -> io::Result<NamePlace> {
        let mut names = components(path)?;
        let name = names.pop().ok_or(Errno::ISDIR)?;
        let dir = names
            .iter()
            .try_fold(ROOT, |dir, name| self.lookup_in(dir, name))?;
        if self.dirs.contains_key(&dir) {
            Ok((dir, name))
        } else {
            Err(Errno::NOTDIR.into())
        }
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<InodeId> {
        let entry = self.split(path)?;
        if self.lookup_in(entry.0, &entry.1).is_ok() {
            return Err(Errno::EXIST.into());
        }
        let inode = self.next();
        self.files.insert(inode, FileNode::new(normal(path)?));
        self.rename_entry(inode, None, Some(entry));
        Ok(inode)
    }

    pub(super) fn create_dir_all(&mut self, path: &Path) -> io::Result<()> {
        let mut dir = ROOT;
        for name in components(path)? {
            dir = match self.lookup_in(dir, &name) {
                Ok(inode) => inode,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.create_dir((dir, name))
                }
                Err(error) => return Err(error),
            };
        }
        if self.dirs.contains_key(&dir) {
            Ok(())
        } else {
            Err(Errno::EXIST.into())
        }
    }

    pub(super) fn create_missing_dir(&mut self, path: &Path) -> io::Result<()> {
        if components(path)?.is_empty() {
            return Ok(());
        }
        let entry = self.split(path)?;
        match self.lookup_in(entry.0, &entry.1) {
            Ok(inode) if self.dirs.contains_key(&inode) => Ok(()),
            Ok(_) => Err(Errno::EXIST.into()),
            Err(_) => {
                self.create_dir(entry);
                Ok(())
            }
        }
    }

    fn create_dir(&mut self, entry: NamePlace) -> InodeId {
        let inode = self.next();
        self.dirs.insert(inode, DirNode::default());
        self.rename_entry(inode, None, Some(entry));
        inode
    }

    /// Handles of files that are open.
    pub(super) fn handles(&self) -> usize {
        self.files.values().map(|file| file.handles as usize).sum()
    }

    /// Rename a file or a directory, unless the new name is in use.
    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.lookup(from)?;
        let (dir, name) = self.split(to)?;
        match self.lookup_in(dir, &name) {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(_) => self.replace(from, to),
        }
    }

    /// The same; the file or empty directory that had the new name loses it.
    pub(super) fn replace(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.lookup(from)?;
        let (from, to) = (self.split(from)?, self.split(to)?);
        match self.lookup_in(to.0, &to.1) {
            Ok(there) if there == inode => return Ok(()),
            Ok(there) => self.check_replaceable(inode, there)?,
            Err(_) => {}
        }
        self.rename_entry(inode, Some(from), Some(to));
        Ok(())
    }

    fn check_replaceable(&self, inode: InodeId, there: InodeId) -> io::Result<()> {
        match (self.dirs.contains_key(&inode), self.dirs.get(&there)) {
            (false, Some(_)) => Err(Errno::ISDIR.into()),
            (true, None) => Err(Errno::NOTDIR.into()),
            (true, Some(dir)) if !dir.visible.is_empty() => Err(Errno::NOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.lookup_file(path)?;
        let entry = self.split(path)?;
        self.rename_entry(inode, Some(entry), None);
        Ok(())
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.lookup_dir(path)?;
        if self
            .dirs
            .get(&inode)
            .is_some_and(|dir| !dir.visible.is_empty())
        {
            return Err(Errno::NOTEMPTY.into());
        }
        let entry = self.split(path)?;
        self.rename_entry(inode, Some(entry), None);
        Ok(())
    }

    fn rename_entry(&mut self, inode: InodeId, gone: Option<NamePlace>, come: Option<NamePlace>) {
        let change = NameChange {
            sequence: self.next(),
            inode,
            gone,
            come,
        };
        change.apply(&mut self.dirs, |dir| &mut dir.visible);
        self.names.push(change);
        self.reindex_or_remove();
    }

    pub(super) fn list(&self, dir: InodeId) -> Vec<DirEntry> {
        let Some(dir) = self.dirs.get(&dir) else {
            return Vec::new();
        };
        let describe = |(name, inode): (&String, &InodeId)| {
            let file = self.files.get(inode);
            DirEntry {
                name: name.clone(),
                is_file: file.is_some(),
                size: file.map_or(0, |file| file.visible.size()),
            }
        };
        dir.visible.iter().map(describe).collect()
    }

    pub(super) fn sync_dir(&mut self, dir: InodeId) {
        self.flush_names(|change| change.dir() == Some(dir));
    }

    /// Make the selected changes durable, and the older ones of the same names that they depend on.
    fn flush_names(&mut self, chosen: impl Fn(&NameChange) -> bool) {
        let (mut entries, mut flushed) = (BTreeSet::new(), BTreeSet::new());
        for change in self.names.iter().rev() {
            if chosen(change) || change.entries().any(|entry| entries.contains(entry)) {
                entries.extend(change.entries());
                flushed.insert(change.sequence);
            }
        }
        for change in self
            .names
            .extract_if(.., |change| flushed.contains(&change.sequence))
        {
            change.apply(&mut self.dirs, |dir| &mut dir.durable);
        }
        self.reindex_or_remove();
    }

    /// After names have changed: update each file's name, and drop unreferenced files.
    pub(super) fn reindex_or_remove(&mut self) {
        self.files.values_mut().for_each(|file| file.unlink());
        self.link(ROOT, Path::new("/"));
        let mut used: BTreeSet<InodeId> = self.names.iter().map(|change| change.inode).collect();
        used.insert(ROOT);
        for dir in self.dirs.values() {
            used.extend(dir.visible.values().chain(dir.durable.values()));
        }
        self.dirs.retain(|inode, _| used.contains(inode));
        let unused =
            |(inode, file): &(&InodeId, &FileNode)| !used.contains(inode) && !file.is_present();
        let unused: Vec<_> = self
            .files
            .iter()
            .filter(unused)
            .map(|(inode, _)| *inode)
            .collect();
        let removed = unused.iter().filter_map(|inode| self.files.remove(inode));
        self.removed.extend(removed.map(Removed::from));
        let excess = self.removed.len().saturating_sub(REMOVED_MAX);
        self.removed.drain(..excess);
    }

    fn link(&mut self, dir: InodeId, path: &Path) {
        let Some(names) = self.dirs.get(&dir).map(|dir| dir.visible.clone()) else {
            return;
        };
        for (name, inode) in names {
            let path = path.join(name);
            match self.files.get_mut(&inode) {
                Some(file) => file.link(&path),
                None => self.link(inode, &path),
            }
        }
    }

    pub(super) fn close(&mut self, inode: InodeId) {
        let Some(file) = self.files.get_mut(&inode) else {
            return;
        };
        file.handles -= 1;
        if !file.is_present() {
            self.reindex_or_remove();
        }
    }

    // Content.

    /// The file behind an open handle, which keeps it from being dropped.
    pub(super) fn file(&mut self, inode: InodeId) -> io::Result<&mut FileNode> {
        Ok(self.files.get_mut(&inode).ok_or(Errno::STALE)?)
    }

    /// Write as much of `bytes` as fits; returns the number of bytes written.
    pub(super) fn write(
        &mut self,
        inode: InodeId,
        bytes: &[u8],
        offset: u64,
        landing: &Landing,
    ) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0); // and the file does not grow, wherever `offset` is
        }
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|end| *end <= FILE_SIZE_MAX);
        let range = offset..end.ok_or(Errno::FBIG)?;
        let (free, copy_on_write) = (self.free(), self.copy_on_write);
        let end = self.file(inode)?.take_space(range, free, copy_on_write)?;
        let bytes = &bytes[..(end - offset) as usize];
        let sequence = self.next();
        let file = self.file(inode)?;
        match landing {
            Landing::Here => file.write(bytes, offset, sequence),
            _ => file.change_size(end.max(file.visible.size()), sequence),
        }
        if let Landing::At { inode, offset } = *landing {
            self.file(inode)?.overwrite(bytes, offset);
        }
        Ok(bytes.len())
    }

    pub(super) fn set_size(&mut self, inode: InodeId, size: u64) -> io::Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        let sequence = self.next();
        self.file(inode)?.set_size(size, sequence);
        Ok(())
    }

    pub(super) fn allocate(&mut self, inode: InodeId, size: u64) -> io::Result<()> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        let (free, sequence) = (self.free(), self.next());
        self.file(inode)?.allocate(size, free, sequence)
    }

    pub(super) fn zero(&mut self, inode: InodeId, size: u64) -> io::Result<()> {
        self.allocate(inode, size)?;
        let sequence = self.next();
        self.file(inode)?.zero(size, sequence);
        Ok(())
    }

    /// Bytes that files take; a removed file counts while it is open.
    pub(super) fn used(&self) -> u64 {
        let present = self.files.values().filter(|file| file.is_present());
        present.map(FileNode::space).sum()
    }

    fn free(&self) -> u64 {
        self.quota
            .map_or(u64::MAX, |quota| quota.saturating_sub(self.used()))
    }

    // Changes that tests make to a disk without the program's knowledge.

    /// Give a file this content, durably; create the file and its directories if missing.
    pub(super) fn plant(&mut self, path: &Path, content: Content) -> io::Result<()> {
        if let Some(parent) = path.parent() {
            self.create_dir_all(parent)?;
        }
        let inode = match self.lookup_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(path)?,
            other => other?,
        };
        self.flush_name(path)?;
        self.file(inode)?.replace(content);
        Ok(())
    }

    /// Remove a file, or a directory with all that is in it, durably.
    pub(super) fn uproot(&mut self, path: &Path) -> io::Result<()> {
        let inode = self.lookup(path)?;
        let entry = self.split(path)?;
        self.rename_entry(inode, Some(entry), None);
        self.flush_names(|change| change.inode == inode);
        Ok(())
    }

    /// Bring back, durably, the file that was last removed under this name.
    pub(super) fn resurrect(&mut self, path: &Path) -> io::Result<()> {
        let path = normal(path)?;
        let found = self
            .removed
            .iter()
            .rev()
            .find(|removed| *removed.path == *path);
        let content = found.ok_or(Errno::NOENT)?.content.clone();
        self.plant(&path, content)
    }

    /// Make the name of a file durable, and those of the directories above it.
    fn flush_name(&mut self, path: &Path) -> io::Result<()> {
        let inodes: BTreeSet<_> = path
            .ancestors()
            .map(|path| self.lookup(path))
            .collect::<Result<_, _>>()?;
        self.flush_names(|change| inodes.contains(&change.inode));
        Ok(())
    }
}

/// The names that a path consists of. A relative path begins at the root.
fn components(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_string_lossy().into_owned()),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return Err(Errno::INVAL.into()),
        }
    }
    Ok(names)
}

/// The absolute form of a path.
pub(super) fn normal(path: &Path) -> io::Result<PathBuf> {
    Ok(components(path)?
        .iter()
        .fold(PathBuf::from("/"), |path, name| path.join(name)))
}
