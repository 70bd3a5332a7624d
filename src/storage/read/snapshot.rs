//! A log that a server is writing, held still: which files it had at one instant, and up to where.
//!
//! Nothing is asked of the server, no lock is taken and nothing is written. The files are enough,
//! because of the order in which a server changes them: a file is whole before it has its name; it
//! has its name before the list in the newest segment speaks of it; it loses its name after the list
//! has dropped it; a segment is sealed after the next one has its name; and bytes once written are
//! never written again with others. So:
//!
//! 1. The names are listed and the files opened. An open file can still be read when compaction has
//!    removed it.
//! 2. The newest segment is read, frame by frame, up to where they end. Everything acknowledged
//!    before step 1 has been written before it, into the files that were opened: it is in there.
//! 3. The list of files as of that end is matched with what was opened. A file that the list names
//!    and that was not there, or not any more, came or went meanwhile: begin again.
//!
//! What was read ahead may be older than what lies behind it. That makes the end an earlier one, but
//! none before step 1; and a frame that does not parse counts as damage only when it does not parse
//! a second time, read after whatever speaks against it.
//!
//! A [`Snapshot`] is a file system in which the directory holds these files and nothing else, cut
//! at that end, and in which nothing can be changed: what reads a log that nobody uses reads this
//! one. It is what a crash at that instant would leave, with the tail that a crash may tear cut
//! away. Two generations of a segment are never in it together.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::found::{Key, key_of};
use super::newest::Newest;
use super::scan::{Frame, Reader, Step};
use crate::storage::disk::{DirEntry, DirLock, LockError, ReadFile, ReadFs, read_exact_at};
use crate::storage::error::OpenError;
use crate::storage::format::{
    Entry, FrameFault, FrameKind, LogId, Seed, SegmentHeader, parse_file_name, segment_header,
};
use crate::types::{Position, SegmentId};

/// How often the files are listed anew before it is said that they do not hold still. Each time has
/// to meet a compaction that ends within the few milliseconds that it takes.
const ATTEMPTS: usize = 100;
/// A file that is missing so many times in a row did not just come or go: by then, the segment in
/// which its removal is written down would have been read.
const MISSING_TIMES: usize = 3;

/// The files of a log at one instant.
#[derive(Debug, Clone)]
pub(in crate::storage) struct Snapshot {
    dir: PathBuf,
    /// Of which log.
    pub(in crate::storage) log: LogId,
    /// In the order of history, the newest segment last.
    pub(in crate::storage) files: Vec<HeldFile>,
    /// Where the log ended.
    pub(in crate::storage) end: Position,
    /// Up to here, the log itself says, it was on stable storage.
    pub(in crate::storage) durable: Position,
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

/// A segment file that was found.
#[derive(Debug)]
struct Opened {
    header: SegmentHeader,
    size: u64,
    file: Arc<dyn ReadFile>,
}

impl Opened {
    fn number(&self) -> SegmentId {
        self.header.identity.first
    }

    fn key(&self) -> Key {
        let identity = &self.header.identity;
        (identity.first, identity.last, identity.generation)
    }

    fn follow(&self) -> Follower {
        let seed = self.header.identity.seed();
        let start = segment_header::SIZE as u32;
        Follower(Reader::new(self.file.clone(), seed, self.size, start))
    }
}

/// What one attempt came to.
enum Attempt {
    Held(Box<Snapshot>),
    /// The list names a file that was not found.
    Missing(Entry),
    /// Something changed under our hands.
    Moved,
    /// This is no sound log, whatever happens meanwhile.
    Unsound,
}

impl Snapshot {
    /// Hold the log in `dir` still. `None`: it is damaged, or no log, or does not hold still; what
    /// is wrong is for those to say who read it as it is.
    ///
    /// # Errors
    /// When the disk does not answer.
    pub(in crate::storage) fn take(
        fs: &dyn ReadFs,
        dir: &Path,
    ) -> Result<Option<Snapshot>, OpenError> {
        let mut missing: Option<(Entry, usize)> = None;
        for _ in 0..ATTEMPTS {
            match attempt(fs, dir)? {
                Attempt::Held(snapshot) => return Ok(Some(*snapshot)),
                Attempt::Unsound => return Ok(None),
                Attempt::Moved => missing = None,
                Attempt::Missing(entry) => {
                    let times = match missing {
                        Some((before, times)) if before == entry => times + 1,
                        _ => 1,
                    };
                    if times == MISSING_TIMES {
                        return Ok(None);
                    }
                    missing = Some((entry, times));
                }
            }
        }
        Ok(None)
    }

    /// Bytes of all files.
    pub(in crate::storage) fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

fn attempt(fs: &dyn ReadFs, dir: &Path) -> Result<Attempt, OpenError> {
    let (opened, strays) = match open_segments(fs, dir)? {
        Segments::All(opened, strays) => (opened, strays),
        Segments::SomeGone => return Ok(Attempt::Moved),
        Segments::Unsound => return Ok(Attempt::Unsound),
    };
    Ok(match hold(fs, dir, opened, &strays) {
        Ok(attempt) => attempt,
        // A segment is cut to its length when the next one is begun.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Attempt::Moved,
        // Bytes that the disk does not give: those who read past them say which.
        Err(_) => Attempt::Unsound,
    })
}

fn segment_names(fs: &dyn ReadFs, dir: &Path) -> io::Result<Vec<DirEntry>> {
    let mut names = fs.read_dir(dir)?;
    names.retain(|entry| entry.is_file && parse_file_name(&entry.name).is_some());
    names.sort_by_key(|entry| parse_file_name(&entry.name));
    Ok(names)
}

/// The segments of a directory.
enum Segments {
    /// All that were listed, and the names of those that have no sound header that fits: where the
    /// log needs one of them, it is missing.
    All(Vec<Opened>, BTreeSet<String>),
    /// One was removed after it was listed: it may have been the newest.
    SomeGone,
    /// One of them is not of the same log.
    Unsound,
}

/// Open all segments that there are.
fn open_segments(fs: &dyn ReadFs, dir: &Path) -> Result<Segments, OpenError> {
    let names = segment_names(fs, dir).map_err(|error| OpenError::io("list", dir, &error))?;
    let mut opened: Vec<Opened> = Vec::new();
    let mut strays = BTreeSet::new();
    for DirEntry { name, .. } in names {
        let path = dir.join(&name);
        let segment = match open_segment(fs, &path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Segments::SomeGone);
            }
            other => other.map_err(|error| OpenError::io("read", &path, &error))?,
        };
        let fits = |segment: &Opened| segment.header.identity.file_name() == name;
        let Some(segment) = segment.filter(fits) else {
            strays.insert(name);
            continue;
        };
        let log = segment.header.identity.log;
        if opened
            .first()
            .is_some_and(|other| other.header.identity.log != log)
        {
            return Ok(Segments::Unsound);
        }
        opened.push(segment);
    }
    Ok(Segments::All(opened, strays))
}

/// `None`: it has no sound header, or the disk does not give it.
fn open_segment(fs: &dyn ReadFs, path: &Path) -> io::Result<Option<Opened>> {
    let file = fs.open_read(path)?;
    let mut header = [0; segment_header::SIZE];
    if read_exact_at(&*file, &mut header, 0).is_err() {
        return Ok(None);
    }
    let size = file.size()?;
    let header = SegmentHeader::decode(&header).ok();
    Ok(header.map(|header| Opened { header, size, file }))
}

/// Find out where the log ends, and which of the files are its own as of there.
fn hold(
    fs: &dyn ReadFs,
    dir: &Path,
    mut opened: Vec<Opened>,
    strays: &BTreeSet<String>,
) -> io::Result<Attempt> {
    loop {
        let of_generation_0 = |segment: &Opened| segment.header.identity.generation == 0;
        let Some(index) = opened.iter().rposition(of_generation_0) else {
            return Ok(Attempt::Unsound);
        };
        let newest = opened.remove(index);
        let Some(read) = read_newest(&newest)? else {
            return Ok(Attempt::Unsound);
        };
        match leads_up(&opened[..index], read.list.durable)? {
            None => return Ok(Attempt::Unsound),
            // It has just got its name and the one before is not sealed yet, or never will be: the
            // log ends in that one.
            Some(false) => continue,
            Some(true) => {}
        }
        // That it is sealed says that there is another one by now.
        if read.is_sealed && !has_successor(fs, dir, newest.number(), strays)? {
            return Ok(Attempt::Unsound);
        }
        return match_files(dir, opened, newest, read);
    }
}

/// What the newest segment says.
struct Read {
    list: Newest,
    end: u32,
    is_sealed: bool,
}

/// Read a segment up to where its frames end, its seal apart: a log that ends before a seal simply
/// ends there. `None`: it is damaged.
fn read_newest(newest: &Opened) -> io::Result<Option<Read>> {
    let mut list = Newest::new();
    let mut follower = newest.follow();
    let (mut end, mut is_sealed) = (follower.at(), false);
    while !is_sealed {
        let mut take = |frame: &Frame<'_>| {
            list.durable = list.durable.max(frame.header.durable);
            is_sealed = frame.header.kind == FrameKind::Seal;
            frame.records().for_each(|(_, record)| list.take(&record));
        };
        match follower.step(newest.number(), Position::ZERO, &mut take)? {
            Followed::Frame if !is_sealed => end = follower.at(),
            Followed::Frame => {}
            Followed::End => break,
            Followed::Damage => return Ok(None),
        }
    }
    // The first frame, with the list of files, is there before the file has a name.
    let has_list = end > segment_header::SIZE as u32;
    Ok(has_list.then_some(Read {
        list,
        end,
        is_sealed,
    }))
}

/// Whether the segments before the newest, from `durable` on, each lead up to a seal. `None`: one
/// is damaged.
fn leads_up(before: &[Opened], durable: Position) -> io::Result<Option<bool>> {
    for segment in before {
        let is_first_written = segment.header.identity.generation == 0;
        if !is_first_written || segment.number() < durable.segment() {
            continue;
        }
        let mut follower = segment.follow();
        let mut is_sealed = false;
        while !is_sealed {
            let mut take = |frame: &Frame<'_>| is_sealed = frame.header.kind == FrameKind::Seal;
            match follower.step(segment.number(), durable, &mut take)? {
                Followed::Frame => {}
                Followed::End => return Ok(Some(false)),
                Followed::Damage => return Ok(None),
            }
        }
    }
    Ok(Some(true))
}

fn has_successor(
    fs: &dyn ReadFs,
    dir: &Path,
    segment: SegmentId,
    strays: &BTreeSet<String>,
) -> io::Result<bool> {
    let mut names = segment_names(fs, dir)?;
    names.retain(|entry| !strays.contains(&entry.name));
    let mut numbers = names
        .iter()
        .filter_map(|entry| parse_file_name(&entry.name));
    Ok(numbers.any(|(number, _)| number > segment))
}

fn match_files(dir: &Path, opened: Vec<Opened>, newest: Opened, read: Read) -> io::Result<Attempt> {
    let mut files = Vec::new();
    let opened = opened.into_iter();
    let mut opened: BTreeMap<Key, Opened> =
        opened.map(|segment| (segment.key(), segment)).collect();
    for entry in read.list.entries() {
        let Some(segment) = opened.remove(&key_of(&entry)) else {
            return Ok(Attempt::Missing(entry));
        };
        // As it is now: it may have been cut to its length since it was opened.
        let size = segment.file.size()?.min(entry.end.into());
        files.push(held(segment, entry, size));
    }
    let identity = newest.header.identity;
    let (first, last, end) = (identity.first, identity.last, read.end);
    let entry = Entry {
        first,
        last,
        generation: 0,
        end,
    };
    files.push(held(newest, entry, end.into()));
    Ok(Attempt::Held(Box::new(Snapshot {
        dir: dir.to_owned(),
        log: identity.log,
        files,
        end: Position::new(first, end),
        durable: read.list.durable,
    })))
}

fn held(segment: Opened, entry: Entry, size: u64) -> HeldFile {
    HeldFile {
        entry,
        seed: segment.header.identity.seed(),
        size,
        file: segment.file,
    }
}

/// A reader of a file that is being written.
struct Follower(Reader);

/// What came next.
enum Followed {
    /// A sound frame.
    Frame,
    /// No frame, and nothing that says that there was one.
    End,
    /// No sound frame, where something says that there was one.
    Damage,
}

impl Follower {
    fn at(&self) -> u32 {
        self.0.at()
    }

    /// Hand the next frame to `take`. `segment` is the number of the file; `attested`, what others
    /// say was durable.
    fn step(
        &mut self,
        segment: SegmentId,
        attested: Position,
        take: &mut dyn FnMut(&Frame<'_>),
    ) -> io::Result<Followed> {
        match self.try_step(take)? {
            None => return Ok(Followed::Frame),
            // Of a later version of the program: who reads the log whole says so.
            Some(FrameFault::Newer(_)) => return Ok(Followed::Damage),
            Some(_) => {}
        }
        let here = Position::new(segment, self.at());
        let ahead = self.0.look_ahead()?;
        if ahead.durable.max(attested) <= here {
            return Ok(Followed::End);
        }
        // What speaks of it was written after it, and has been read by now.
        self.0.refresh();
        match self.try_step(take)? {
            None => Ok(Followed::Frame),
            Some(_) => Ok(Followed::Damage),
        }
    }

    /// Hand the next frame to `take`, or say why there is none.
    fn try_step(&mut self, take: &mut dyn FnMut(&Frame<'_>)) -> io::Result<Option<FrameFault>> {
        match self.0.step()? {
            Step::Frame(frame) => {
                take(&frame);
                Ok(None)
            }
            Step::Bad(fault) => Ok(Some(fault)),
        }
    }
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
