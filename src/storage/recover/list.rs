//! Where the log ends, and which files it has: what the newest segment says.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::super::error::OpenError;
use super::super::files::Files;
use super::super::format::{
    Entries, Entry, FrameKind, Identity, Record, file_name, segment_header,
};
use super::super::fs::ReadFile;
use super::super::inspect::{Piece, salvage};
use super::super::plant::{Bug, planted};
use super::super::scan::{Damage, Reader, Step, Survey, describe};
use super::directory::{Found, Key, Segment, key_of};
use crate::types::{JobId, Position, SegmentId};

/// What the segment in which the log ends says of the log.
pub(in crate::storage) struct Newest {
    /// The other files, and how often each is named: once, but in a forged list.
    list: BTreeMap<Entry, u32>,
    /// This one.
    own: Option<Entry>,
    pub(in crate::storage) next_id: JobId,
    /// The greatest durable position that any of its frames tells of.
    pub(in crate::storage) durable: Position,
    /// What lies behind its last sound frame, and where that is.
    pub(super) tail: Option<(u32, Survey)>,
    sealed: bool,
}

/// Finds where a log ends.
pub(in crate::storage) struct Lister<'a> {
    dir: &'a Path,
    /// Lists of files are read also out of frames that are damaged: for tools, which go on there.
    salvages: bool,
}

impl Lister<'_> {
    /// For a start, which stops at damage.
    pub(super) fn strict(dir: &Path) -> Lister<'_> {
        Lister {
            dir,
            salvages: false,
        }
    }

    /// For tools, which go on past damage.
    pub(in crate::storage) fn lenient(dir: &Path) -> Lister<'_> {
        Lister {
            dir,
            salvages: true,
        }
    }

    /// Find the segment in which the log ends, and read what it says of the others. Segments
    /// behind a torn tail are taken out of `found`, the newest first: they never mattered.
    pub(in crate::storage) fn newest(
        &self,
        found: &mut Found,
        behind: &mut Vec<Segment>,
        damages: &mut Vec<Damage>,
    ) -> Result<Option<Newest>, OpenError> {
        loop {
            let of_generation_0 = |segment: &Segment| segment.header.identity.generation == 0;
            let Some(index) = found.segments.iter().rposition(of_generation_0) else {
                damages.extend(std::mem::take(&mut found.unusable).into_values());
                if let Some(segment) = found.segments.last() {
                    damages.push(missing_after(segment.header.identity.last, &segment.name));
                }
                return Ok(None);
            };
            let Some(newest) = self.read_list(&found.segments[index], damages)? else {
                return Ok(None);
            };
            if self.is_reached(found, index, newest.durable)? {
                if newest.sealed {
                    let segment = &found.segments[index];
                    let missing = missing_after(segment.first(), &segment.name);
                    damages.push(found.take_unusable(&missing.file).unwrap_or(missing));
                }
                return Ok(Some(newest));
            }
            behind.push(found.segments.remove(index));
        }
    }

    /// Whether the frames before the segment at `index`, from `durable` on, lead up to it. Where
    /// they do not, a crash took some of them before anything told that they were durable, and the
    /// log ends there.
    fn is_reached(
        &self,
        found: &Found,
        index: usize,
        durable: Position,
    ) -> Result<bool, OpenError> {
        for segment in &found.segments[..index] {
            let is_open = segment.header.identity.generation == 0;
            if !is_open || segment.first() < durable.segment() {
                continue;
            }
            let path = self.dir.join(&segment.name);
            let seed = segment.header.identity.seed();
            let start = segment_header::SIZE as u32;
            let mut reader = Reader::new(segment.file.clone(), seed, segment.size, start);
            loop {
                let here = Position::new(segment.first(), reader.at());
                match reader
                    .step()
                    .map_err(|error| OpenError::io("read", &path, &error))?
                {
                    Step::Frame(frame) if frame.header.kind == FrameKind::Seal => break,
                    Step::Frame(_) => {}
                    // Damage, if more than this was durable: replay will report it.
                    Step::Bad(_) if here < durable => break,
                    Step::Bad(_) => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    fn read_list(
        &self,
        segment: &Segment,
        damages: &mut Vec<Damage>,
    ) -> Result<Option<Newest>, OpenError> {
        let path = self.dir.join(&segment.name);
        let io = |error: io::Error| OpenError::io("read", &path, &error);
        let mut newest = Newest::new();
        let seed = segment.header.identity.seed();
        let start = segment_header::SIZE as u32;
        let mut reader = Reader::new(segment.file.clone(), seed, segment.size, start);
        let mut frames = 0;
        while !newest.sealed {
            match reader.step().map_err(io)? {
                Step::Frame(frame) => {
                    frames += 1;
                    newest.durable = newest.durable.max(frame.header.durable);
                    newest.sealed = frame.header.kind == FrameKind::Seal;
                    for (_, record) in frame.records() {
                        newest.take(&record);
                    }
                }
                Step::Bad(fault) if frames == 0 => {
                    let survey = reader.survey().map_err(io)?;
                    let until = survey.next_frame.map_or(segment.size, u64::from);
                    let at = segment_header::SIZE as u64;
                    damages.push(Damage {
                        file: segment.name.clone(),
                        range: Some((at, until.saturating_sub(at))),
                        what: format!(
                            "the list of the log's files cannot be read: {}",
                            describe(fault)
                        ),
                        jobs: Vec::new(),
                    });
                    if !self.salvages || !newest.salvage(segment, start, until).map_err(io)? {
                        return Ok(None);
                    }
                    frames += 1;
                    newest.durable = newest.durable.max(survey.durable);
                    match survey.next_frame {
                        Some(next) => reader.skip_to(next),
                        None => break,
                    }
                }
                Step::Bad(_) => {
                    let survey = reader.survey().map_err(io)?;
                    let here = Position::new(segment.first(), reader.at());
                    newest.durable = newest.durable.max(survey.durable);
                    // Frames behind a torn tail never happened; behind damage, they did.
                    match survey.next_frame {
                        Some(next) if survey.durable > here => {
                            if self.salvages {
                                newest
                                    .salvage(segment, reader.at(), next.into())
                                    .map_err(io)?;
                            }
                            reader.skip_to(next);
                        }
                        _ => {
                            newest.tail = Some((reader.at(), survey));
                            break;
                        }
                    }
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
}

/// Match the list with the files. Returns those of the log, and the names of the others.
pub(super) fn list_files(
    found: &mut Found,
    newest: &Newest,
    damages: &mut Vec<Damage>,
) -> (Files<dyn ReadFile>, Vec<String>) {
    let mut files = Files::new(found.log);
    let segments = found.segments.drain(..);
    let mut segments: BTreeMap<Key, Segment> =
        segments.map(|segment| (segment.key(), segment)).collect();
    let take_in = |files: &mut Files<dyn ReadFile>, entry: Entry, segment: Segment| {
        let Segment { header, file, .. } = segment;
        let handle = files.add(entry, header.compacted, header.filtered_at, file);
        files.list(handle);
    };
    for entry in newest.entries() {
        if files.is_taken(entry.first) {
            damages.push(unlisted(&entry, "the log's list names it twice"));
            continue;
        }
        match segments.remove(&key_of(&entry)) {
            Some(segment) => take_in(&mut files, entry, segment),
            None if planted(Bug::MissingIgnored) => {}
            None => {
                let damage = found.take_unusable(&entry.file_name());
                damages.push(damage.unwrap_or_else(|| missing(&entry)));
            }
        }
    }
    while planted(Bug::LeftoverReplayed)
        && let Some((_, segment)) = segments.pop_last()
    {
        let Identity {
            first,
            last,
            generation,
            ..
        } = segment.header.identity;
        let end = segment.size as u32;
        let entry = Entry {
            first,
            last,
            generation,
            end,
        };
        if !files.is_taken(first) {
            take_in(&mut files, entry, segment);
        }
    }
    // What the log does not need and cannot be read is not ours to remove.
    let unusable = std::mem::take(&mut found.unusable);
    found.strangers.extend(unusable.into_keys());
    let leftovers = segments.into_values().map(|segment| segment.name);
    (files, leftovers.collect())
}

impl Newest {
    /// Take in the sound records of a stretch of the newest segment that, as frames, is damaged.
    /// Says whether the list of files is among them.
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

    /// Before anything has been read.
    pub(in crate::storage) fn new() -> Newest {
        Newest {
            list: BTreeMap::new(),
            own: None,
            next_id: JobId(1),
            durable: Position::ZERO,
            tail: None,
            sealed: false,
        }
    }

    /// All files in the order of their segments, this one last.
    pub(in crate::storage) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let named = |(entry, times): (&Entry, &u32)| std::iter::repeat_n(*entry, *times as usize);
        self.list.iter().flat_map(named).chain(self.own)
    }

    /// Take in a record of the newest segment.
    pub(in crate::storage) fn take(&mut self, record: &Record<'_>) {
        match record {
            Record::Manifest { next_id, entries } => {
                if !planted(Bug::IdsReused) {
                    self.next_id = *next_id;
                }
                self.list.clear();
                self.add(entries);
            }
            Record::Switch { removed, added } => {
                for entry in removed.to_vec() {
                    self.list.remove(&entry);
                }
                self.add(added);
            }
            Record::Put { id, .. } => {
                self.next_id = self.next_id.max(JobId(id.0.saturating_add(1)));
            }
            _ => {}
        }
    }

    fn add(&mut self, entries: &Entries<'_>) {
        for entry in entries.to_vec() {
            *self.list.entry(entry).or_default() += 1;
        }
    }
}

fn missing(entry: &Entry) -> Damage {
    match entry.first == entry.last {
        true => unlisted(
            entry,
            &format!("segment {} of the log is missing", entry.first),
        ),
        false => {
            let (first, last) = (entry.first, entry.last);
            unlisted(
                entry,
                &format!("segments {first} to {last} of the log are missing"),
            )
        }
    }
}

fn unlisted(entry: &Entry, what: &str) -> Damage {
    Damage {
        file: entry.file_name(),
        range: None,
        what: what.to_owned(),
        jobs: Vec::new(),
    }
}

fn missing_after(segment: SegmentId, name: &str) -> Damage {
    let next = SegmentId(segment.0.saturating_add(1));
    Damage {
        file: file_name(next, 0),
        range: None,
        what: format!("a segment of the log is missing: {name} says that the log goes on in one"),
        jobs: Vec::new(),
    }
}
