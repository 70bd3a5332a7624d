//! A consistent view of a log that a server is writing: which files it had at one instant, and up
//! to where.
//!
//! The server is not asked, no lock is taken and nothing is written. The files are enough, because
//! of the order in which a server changes them: a file is complete before it has its name; it has
//! its name before the list in the newest segment mentions it; it loses its name after the list has
//! dropped it; a segment is sealed after the next one has its name; and written bytes are never
//! overwritten with different ones. So:
//!
//! 1. The names are listed and the files opened. An open file stays readable after compaction has
//!    removed it.
//! 2. The newest segment is read, frame by frame, to its end. Everything acknowledged before step 1
//!    was written before it, into the files that were opened: so it is included.
//! 3. The list of files at that end is compared with the opened files. If the list names a file
//!    that was not there, or no longer, the file came or went meanwhile: begin again.
//!
//! Bytes that were read ahead may be older than those after them. That makes the end earlier, but
//! never earlier than step 1; and a frame that does not parse counts as damage only when it fails a
//! second time, read after whatever contradicts it.
//!
//! `found` lists the files, and `newest` reads the end and the list, as for a start. This file only
//! decides when to begin again. If something is damaged there is no snapshot: those who read past
//! damage report it.
//!
//! A [`Snapshot`] is a read-only file system in which the directory holds exactly these files, cut
//! at that end: the code that reads an unused log reads this one. It is what a crash at that
//! instant would leave, without the tail that a crash may tear. It never holds two generations of a
//! segment.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::found::{Found, Key, Segment, key_of};
use super::newest::{Ending, Newest};
use super::source::Source;
use crate::ErrorClass;
use crate::storage::disk::{DirEntry, DirLock, LockError, ReadFile, ReadFs};
use crate::storage::error::OpenError;
use crate::storage::format::{Entry, LogId, Seed, Stamp};
use crate::types::Position;

/// Listings of the files at most before the snapshot is given up. To fail, each attempt has to meet
/// a compaction that ends within the same few milliseconds.
const ATTEMPTS: usize = 100;
/// A file that is missing this number of times in a row did not just come or go: by then, the
/// segment that records its removal would have been read.
const MISSING_TIMES: usize = 3;

/// The files of a log at one instant.
#[derive(Debug, Clone)]
pub(in crate::storage) struct Snapshot {
    dir: PathBuf,
    /// The log's id.
    pub(in crate::storage) log: LogId,
    /// In the order of history, the newest segment last.
    pub(in crate::storage) files: Vec<HeldFile>,
    /// Where the log ended.
    pub(in crate::storage) end: Position,
    /// The log itself says that it was on stable storage up to here.
    pub(in crate::storage) durable: Position,
    /// Up to which entry of a replicated log it goes.
    pub(in crate::storage) stamp: Stamp,
}

/// A file of a [`Snapshot`].
#[derive(Debug, Clone)]
pub(in crate::storage) struct HeldFile {
    pub(in crate::storage) entry: Entry,
    pub(in crate::storage) seed: Seed,
    /// Bytes of it that are part of the log.
    pub(in crate::storage) size: u64,
    pub(in crate::storage) file: Arc<dyn ReadFile>,
}

impl HeldFile {
    pub(in crate::storage) fn name(&self) -> String {
        self.entry.file_name()
    }
}

/// The result of one attempt.
enum Attempt {
    Held(Box<Snapshot>),
    /// A file of this name should be there, and was not found.
    Missing(String),
    /// Something changed during the attempt.
    Moved,
    /// It is damaged, or no log, independent of concurrent changes.
    Unsound,
}

impl Snapshot {
    /// Take a snapshot of the log in `dir`. `None`: it is damaged, or no log, or keeps changing;
    /// the code that reads it as it is reports what is wrong.
    ///
    /// # Errors
    /// If the disk does not answer.
    pub(in crate::storage) fn take(
        fs: &dyn ReadFs,
        dir: &Path,
    ) -> Result<Option<Snapshot>, OpenError> {
        let mut missing: Option<(String, usize)> = None;
        for _ in 0..ATTEMPTS {
            match attempt(fs, dir)? {
                Attempt::Held(snapshot) => return Ok(Some(*snapshot)),
                Attempt::Unsound => return Ok(None),
                Attempt::Moved => missing = None,
                Attempt::Missing(name) => {
                    let times = match missing {
                        Some((before, times)) if before == name => times + 1,
                        _ => 1,
                    };
                    if times == MISSING_TIMES {
                        return Ok(None);
                    }
                    missing = Some((name, times));
                }
            }
        }
        Ok(None)
    }

    /// The same for a process that may not have as many files open: then they are opened again
    /// whenever they are read. `true`: it is so, and [`Snapshot::is_whole`] has to be asked after
    /// the last of them was read.
    ///
    /// # Errors
    /// As of [`Snapshot::take`].
    pub(in crate::storage) fn take_of_many(
        fs: Arc<dyn ReadFs>,
        dir: &Path,
    ) -> Result<Option<(Snapshot, bool)>, OpenError> {
        match Snapshot::take(&*fs, dir) {
            Err(error) if error.class() == ErrorClass::Descriptors => {
                let taken = Snapshot::take(&Source::strict(fs), dir)?;
                Ok(taken.map(|snapshot| (snapshot, true)))
            }
            taken => Ok(taken?.map(|snapshot| (snapshot, false))),
        }
    }

    /// All its files still have their names in the directory: so what was read under these names was
    /// theirs.
    pub(in crate::storage) fn is_whole(&self, fs: &dyn ReadFs) -> bool {
        let Ok(found) = fs.read_dir(&self.dir) else {
            return false;
        };
        let found: BTreeSet<String> = found.into_iter().map(|entry| entry.name).collect();
        self.files.iter().all(|held| found.contains(&held.name()))
    }

    /// Bytes of all files together.
    pub(in crate::storage) fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

fn attempt(fs: &dyn ReadFs, dir: &Path) -> Result<Attempt, OpenError> {
    let Some(mut found) = Found::read_live(fs, dir)? else {
        return Ok(Attempt::Moved);
    };
    let ending = match Ending::find(&mut found.segments) {
        Ok(ending) => ending,
        // A segment is cut to its length when the next one begins.
        Err(unread) if unread.error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Attempt::Moved);
        }
        // The disk does not return these bytes: the code that reads past them reports which.
        Err(_) => return Ok(Attempt::Unsound),
    };
    Ok(match (ending.goes_on, ending.newest) {
        // It was sealed during the read: the next one has its name by now.
        (Some(damage), _) => Attempt::Missing(damage.file),
        (None, Some(newest)) if !ending.is_damaged => hold(dir, found, &newest),
        _ => Attempt::Unsound,
    })
}

/// The files of the log, which must all have been found.
fn hold(dir: &Path, found: Found, newest: &Newest) -> Attempt {
    let segments = found.segments.into_iter();
    let mut segments: BTreeMap<Key, Segment> =
        segments.map(|segment| (segment.key(), segment)).collect();
    let (mut files, mut end) = (Vec::new(), Position::ZERO);
    for entry in newest.entries() {
        let Some(segment) = segments.remove(&key_of(&entry)) else {
            return Attempt::Missing(entry.file_name());
        };
        // The current size: it may have been cut to its length since it was listed.
        let Ok(size) = segment.file.size() else {
            return Attempt::Unsound;
        };
        files.push(HeldFile {
            entry,
            seed: segment.header.identity.seed(),
            size: size.min(entry.end.into()),
            file: segment.file,
        });
        end = Position::new(entry.first, entry.end);
    }
    Attempt::Held(Box::new(Snapshot {
        dir: dir.to_owned(),
        log: found.log,
        files,
        end,
        durable: newest.durable,
        stamp: newest.stamp,
    }))
}

impl ReadFs for Snapshot {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        let is_it = |held: &&HeldFile| path == self.dir.join(held.name());
        let held = self.files.iter().find(is_it);
        let held = held.ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(CutFile(held.clone())))
    }

    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        if dir != self.dir {
            return Err(io::ErrorKind::NotFound.into());
        }
        let entry = |file: &HeldFile| DirEntry {
            name: file.name(),
            is_file: true,
            size: file.size,
        };
        Ok(self.files.iter().map(entry).collect())
    }

    fn share_dir(&self, _: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Err(LockError::Io(io::ErrorKind::Unsupported.into()))
    }
}

/// A file that ends where the log did.
#[derive(Debug)]
struct CutFile(HeldFile);

impl ReadFile for CutFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(self.0.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = buf.len().min(rest);
        self.0.file.read_at(&mut buf[..count], offset)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::storage::SimFs;
    use crate::storage::format::samples::{Segment, frame, header, identity, position, put};
    use crate::storage::format::{
        Entries, FrameKind, Identity, Record, SegmentHeader, segment_header,
    };
    use crate::types::{JobId, SegmentId};

    const DIR: &str = "/d";

    /// A disk that changes as a server would change it: the first look shows the earlier state.
    #[derive(Debug)]
    struct Changing {
        disk: SimFs,
        /// Not in the first listing.
        hidden: Option<String>,
        /// In the first listing, then removed.
        removed: Option<String>,
        was_listed: AtomicBool,
        /// Reads as zeros the first time, except the header.
        unwritten: Range<usize>,
    }

    impl Changing {
        fn new(disk: &SimFs) -> Changing {
            Changing {
                disk: disk.clone(),
                hidden: None,
                removed: None,
                was_listed: AtomicBool::new(false),
                unwritten: 0..0,
            }
        }

        fn held(&self) -> Snapshot {
            let held = Snapshot::take(self, Path::new(DIR)).unwrap();
            held.expect("it can be held still")
        }
    }

    impl ReadFs for Changing {
        fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
            Ok(Arc::new(Written {
                file: self.disk.open_read(path)?,
                unwritten: self.unwritten.clone(),
                was_read: AtomicBool::new(false),
            }))
        }

        fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
            let mut names = self.disk.read_dir(dir)?;
            if !self.was_listed.swap(true, Ordering::Relaxed) {
                names.retain(|entry| Some(&entry.name) != self.hidden.as_ref());
                names.extend(self.removed.iter().map(|name| DirEntry {
                    name: name.clone(),
                    is_file: true,
                    size: 4096,
                }));
            }
            Ok(names)
        }

        fn share_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
            self.disk.share_dir(dir)
        }
    }

    #[derive(Debug)]
    struct Written {
        file: Arc<dyn ReadFile>,
        unwritten: Range<usize>,
        was_read: AtomicBool,
    }

    impl ReadFile for Written {
        fn size(&self) -> io::Result<u64> {
            self.file.size()
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let count = self.file.read_at(buf, offset)?;
            let is_first = offset > 0 && !self.was_read.swap(true, Ordering::Relaxed);
            for at in self.unwritten.clone().filter(|_| is_first) {
                buf[at - offset as usize] = 0;
            }
            Ok(count)
        }
    }

    /// A log of one segment with two jobs: where both frames begin, and the end.
    fn log() -> (SimFs, Segment, [u32; 3]) {
        let (disk, mut segment) = (SimFs::new(1), Segment::new());
        let (next_id, entries) = (JobId(1), Entries::List(&[]));
        segment.push(0, &[Record::Manifest { next_id, entries }]);
        let first = segment.push(0, &[put(1, b"one")]);
        let durable = segment.end();
        let second = segment.push(durable, &[put(2, b"two")]);
        let end = segment.end();
        (disk, segment, [first, second, end])
    }

    fn write(disk: &SimFs, identity: &Identity, bytes: &[u8]) {
        let path = Path::new(DIR).join(identity.file_name());
        disk.write(path, &[bytes, &[0; 500]].concat()).unwrap();
    }

    #[test]
    fn a_frame_that_was_read_before_it_was_written_is_read_again() {
        let (disk, segment, [first, second, end]) = log();
        write(&disk, &segment.identity, &segment.bytes);
        let unwritten = first as usize..second as usize;
        let changing = Changing {
            unwritten,
            ..Changing::new(&disk)
        };
        assert_eq!(changing.held().end, position(end));
    }

    #[test]
    fn a_segment_that_was_sealed_after_it_was_listed_is_listed_again_with_the_next() {
        let (disk, mut segment, _) = log();
        segment.push_kind(FrameKind::Seal, 0, &[]);
        write(&disk, &segment.identity, &segment.bytes);
        let (first, old) = (SegmentId(4), identity().first);
        let next = Identity {
            first,
            last: first,
            ..identity()
        };
        let header = SegmentHeader {
            identity: next,
            ..header()
        };
        let (last, end) = (old, segment.end());
        let entries = [Entry {
            first: old,
            last,
            generation: 0,
            end,
        }];
        let manifest = Record::Manifest {
            next_id: JobId(3),
            entries: Entries::List(&entries),
        };
        let at = segment_header::SIZE as u32;
        let (list, _) = frame(&next, at, FrameKind::Data, position(end), 0, &[manifest]);
        write(&disk, &next, &[&header.encode()[..], &list].concat());
        let changing = Changing {
            hidden: Some(next.file_name()),
            ..Changing::new(&disk)
        };
        let held = changing.held();
        assert_eq!(held.end, Position::new(first, at + list.len() as u32));
        assert_eq!(held.files.len(), 2);
    }

    #[test]
    fn where_a_file_was_removed_after_it_was_listed_all_are_listed_again() {
        let (disk, segment, [_, _, end]) = log();
        write(&disk, &segment.identity, &segment.bytes);
        // After it was listed and before it was opened, a server continued in the next one, and
        // compacted it.
        let changing = Changing {
            hidden: Some(segment.identity.file_name()),
            removed: Some("segment-0000000002.00000".to_owned()),
            ..Changing::new(&disk)
        };
        assert_eq!(changing.held().end, position(end));
    }

    /// It may be a stranger: the log does not list it.
    #[test]
    fn a_segment_that_is_not_listed_and_cannot_be_read_is_left_out() {
        let (disk, segment, [_, _, end]) = log();
        write(&disk, &segment.identity, &segment.bytes);
        let stranger = "/d/segment-0000000009.00000";
        disk.write(stranger, &[0; 100]).unwrap();
        disk.fail_reads(stranger, 0..10).unwrap();
        assert_eq!(Changing::new(&disk).held().end, position(end));
    }
}
