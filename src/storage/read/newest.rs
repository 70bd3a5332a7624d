//! Where the log ends, and which files it has, as the newest segment says.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::found::Segment;
use super::salvage::{Piece, salvage};
use super::scan::{Lookahead, Step};
use crate::storage::error::Damage;
use crate::storage::error::OpenError;
use crate::storage::format::{
    Entries, Entry, FrameFault, FrameKind, Record, Stamp, file_name, segment_header,
};
use crate::types::{JobId, Position, SegmentId};

/// Facts about the log in the segment in which it ends.
pub(in crate::storage) struct Newest {
    /// The other files, and how often each is named: once, except in a forged list.
    list: BTreeMap<Entry, u32>,
    /// The entry of this segment.
    own: Option<Entry>,
    pub(in crate::storage) next_id: JobId,
    /// The greatest durable position that any of its frames names.
    pub(in crate::storage) durable: Position,
    /// Up to which entry of a replicated log it goes.
    pub(in crate::storage) stamp: Stamp,
    /// The bytes after its last sound frame, and their place.
    pub(super) tail: Option<(u32, Lookahead)>,
    sealed: bool,
    is_damaged: bool,
}

/// Where a log ends.
pub(super) struct Ending {
    /// Facts in the segment in which the log ends; `None`: no list of files can be read.
    pub(super) newest: Option<Newest>,
    /// Segments after a torn tail, newest first: nothing in them ever counted.
    pub(super) segments_after_torn_tail: Vec<Segment>,
    /// The segment in which the log must continue, which is missing.
    pub(super) goes_on: Option<Damage>,
    /// True if something that was read to find the end is damaged.
    pub(super) is_damaged: bool,
}

/// A segment file that the disk does not return.
#[derive(Debug)]
pub(super) struct Unread {
    name: String,
    pub(super) error: io::Error,
}

impl Unread {
    fn of(segment: &Segment) -> impl Fn(io::Error) -> Unread + '_ {
        |error| Unread {
            name: segment.name.clone(),
            error,
        }
    }

    pub(super) fn into_error(self, dir: &Path) -> OpenError {
        OpenError::io("read", &dir.join(&self.name), &self.error)
    }
}

impl Ending {
    /// Find the segment in which the log ends, and read what it says about the others. Segments
    /// after a torn tail are removed from `segments`. A server may be writing to them.
    pub(super) fn find(segments: &mut Vec<Segment>) -> Result<Ending, Unread> {
        let mut ending = Ending {
            newest: None,
            segments_after_torn_tail: Vec::new(),
            goes_on: None,
            is_damaged: false,
        };
        loop {
            let Some(index) = newest(segments) else {
                let last = segments.last();
                ending.goes_on =
                    last.map(|last| missing_after(last.header.identity.last, &last.name));
                return Ok(ending);
            };
            let segment = &segments[index];
            let Some(newest) = Newest::read(segment).map_err(Unread::of(segment))? else {
                return Ok(ending);
            };
            let lead = Lead::up_to(newest.durable, &segments[..index])?;
            if lead != Lead::Ends {
                let goes_on = || missing_after(segment.first(), &segment.name);
                ending.goes_on = newest.sealed.then(goes_on);
                ending.is_damaged = newest.is_damaged || lead == Lead::Damaged;
                ending.newest = Some(newest);
                return Ok(ending);
            }
            ending.segments_after_torn_tail.push(segments.remove(index));
        }
    }
}

/// The last segment that no compaction made: the log ends in it, unless it follows a torn tail.
pub(super) fn newest(segments: &[Segment]) -> Option<usize> {
    let of_generation_0 = |segment: &Segment| segment.header.identity.generation == 0;
    segments.iter().rposition(of_generation_0)
}

/// Whether the frames of some segments lead up to the next segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lead {
    /// They do.
    Whole,
    /// They did: something says that there were more of them than there are now.
    Damaged,
    /// They do not: the log ends there. A crash removed some of them before anything said that they
    /// were durable, or a server has not written the last of them yet.
    Ends,
}

impl Lead {
    /// Examine the segments `before` another one, from `durable` on.
    fn up_to(durable: Position, before: &[Segment]) -> Result<Lead, Unread> {
        let mut lead = Lead::Whole;
        for segment in before {
            let is_open = segment.header.identity.generation == 0;
            if !is_open || segment.first() < durable.segment() {
                continue;
            }
            let mut reader = segment.reader();
            loop {
                let here = Position::new(segment.first(), reader.at());
                match reader.step().map_err(Unread::of(segment))? {
                    Step::Frame(frame) if frame.header.kind == FrameKind::Seal => break,
                    Step::Frame(_) => {}
                    // It is damage if more than this was durable: reading the whole log will tell.
                    Step::Bad(_) if here < durable => {
                        lead = Lead::Damaged;
                        break;
                    }
                    Step::Bad(_) => return Ok(Lead::Ends),
                }
            }
        }
        Ok(lead)
    }
}

impl Newest {
    /// Read the list of files from a segment, from damaged frames too. `None`: it has no list.
    fn read(segment: &Segment) -> io::Result<Option<Newest>> {
        let mut newest = Newest::new();
        let mut reader = segment.reader();
        let (mut has_list, mut was_read_again) = (false, false);
        while !newest.sealed {
            let fault = match reader.step()? {
                Step::Frame(frame) => {
                    (has_list, was_read_again) = (true, false);
                    newest.durable = newest.durable.max(frame.header.durable);
                    newest.stamp = newest.stamp.max(frame.header.stamp);
                    newest.sealed = frame.header.kind == FrameKind::Seal;
                    frame.raw_records().for_each(|bytes| newest.take_raw(bytes));
                    continue;
                }
                Step::Bad(fault) => fault,
            };
            let at = reader.at();
            let ahead = reader.look_ahead()?;
            let is_list = at == segment_header::SIZE as u32;
            newest.durable = newest.durable.max(ahead.durable);
            // Frames after a torn tail never counted; frames after damage did.
            let is_newer = matches!(fault, FrameFault::Newer(_));
            let is_damage =
                is_list || is_newer || ahead.durable > Position::new(segment.first(), at);
            // Whatever mentions these bytes was written after them. While a server is writing, they
            // may have been read before that.
            if is_damage && !std::mem::replace(&mut was_read_again, true) {
                reader.refresh();
                continue;
            }
            newest.is_damaged |= is_damage;
            let next = ahead.next_frame.filter(|_| is_damage);
            if is_list || next.is_some() {
                let until = next.map_or(segment.size, u64::from);
                has_list |= newest.salvage(segment, at, until)?;
            }
            if !has_list {
                return Ok(None);
            }
            match next {
                Some(next) => reader.skip_to(next),
                None => {
                    newest.tail = (!is_list).then_some((at, ahead));
                    break;
                }
            }
        }
        newest.own = Some(Entry {
            first: segment.first(),
            last: segment.first(),
            generation: 0,
            end: reader.at(),
        });
        Ok(Some(newest))
    }

    /// Collect the sound records of a stretch of the newest segment whose frames are damaged.
    /// Returns whether the list of files is among them.
    fn salvage(&mut self, segment: &Segment, from: u32, until: u64) -> io::Result<bool> {
        let until = u32::try_from(until.min(segment.size)).unwrap_or(u32::MAX);
        let seed = segment.header.identity.seed();
        let mut has_list = false;
        salvage(&*segment.file, seed, from..until.max(from), &mut |piece| {
            if let Piece::Record(_, record) = piece {
                has_list |= matches!(record, Record::Manifest { .. });
                self.take(&record);
            }
        })?;
        Ok(has_list)
    }

    /// The state before anything is read.
    fn new() -> Newest {
        Newest {
            list: BTreeMap::new(),
            own: None,
            next_id: JobId(1),
            durable: Position::ZERO,
            stamp: Stamp::default(),
            tail: None,
            sealed: false,
            is_damaged: false,
        }
    }

    /// All files in the order of their segments, this one last.
    pub(in crate::storage) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let named = |(entry, times): (&Entry, &u32)| std::iter::repeat_n(*entry, *times as usize);
        self.list.iter().flat_map(named).chain(self.own)
    }

    /// Apply a sound record of the newest segment. Of most of them only the kind matters, or the id.
    fn take_raw(&mut self, bytes: &[u8]) {
        if let Some(id) = Record::job_put(bytes) {
            self.note_put(id);
        } else if Record::is_of_files(bytes)
            && let Some(record) = Record::decode(bytes)
        {
            self.take(&record);
        }
    }

    fn note_put(&mut self, id: JobId) {
        self.next_id = self.next_id.max(JobId(id.0.saturating_add(1)));
    }

    /// Apply a record of the newest segment.
    fn take(&mut self, record: &Record<'_>) {
        match record {
            Record::Manifest { next_id, entries } => {
                self.next_id = *next_id;
                self.list.clear();
                self.add(entries);
            }
            Record::Switch { removed, added } => {
                for entry in removed.to_vec() {
                    self.list.remove(&entry);
                }
                self.add(added);
            }
            Record::Put { id, .. } => self.note_put(*id),
            _ => {}
        }
    }

    fn add(&mut self, entries: &Entries<'_>) {
        for entry in entries.to_vec() {
            *self.list.entry(entry).or_default() += 1;
        }
    }
}

fn missing_after(segment: SegmentId, name: &str) -> Damage {
    let next = SegmentId(segment.0.saturating_add(1));
    Damage::new(
        file_name(next, 0),
        None,
        format!("a segment of the log is missing: {name} says that the log goes on in one"),
    )
}
