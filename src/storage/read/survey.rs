//! The content of a directory: which files are the log, in which order, and where it ends. Read
//! only.
//!
//! A start, `verify`, `repair` and backups share it. The list of files in the newest segment says
//! what the log is. If that list is damaged, the survey makes its best guess and reports the
//! damage; a start then stops.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::Path;

use super::displaced::{Effort, Other, Stretch};
use super::found::{Found, Key, Segment, key_of};
use super::newest::{Ending, newest};
use super::scan::{Lookahead, Reader};
use super::source::Source;
use crate::storage::disk::{ReadFile, ReadFs, read_exact_at};
use crate::storage::error::Damage;
use crate::storage::error::OpenError;
use crate::storage::format::names::{Taken, parse_file_name};
use crate::storage::format::{
    Entry, FRAME_ALIGN, Identity, LogId, SegmentHeader, VERSION_MIN, file_name, segment_header,
};
use crate::storage::log::files::Files;
use crate::types::{JobId, Position, SegmentId};

/// A file of the log, at its place in the order.
#[derive(Debug)]
pub(super) enum Slot {
    /// The file is there.
    Present {
        handle: u32,
        /// Bytes of the file.
        size: u64,
        /// Where its last frame ends, if the log says so.
        end: Option<u32>,
        /// The log continues in it.
        is_newest: bool,
        /// Why its header cannot be used.
        header_damage: Option<Damage>,
    },
    /// The log's list names it, but it is not there.
    Missing(Entry),
}

impl Slot {
    /// Bytes to read.
    pub(super) fn size(&self) -> u64 {
        match self {
            Slot::Present { size, .. } => *size,
            Slot::Missing(_) => 0,
        }
    }
}

/// The content of a directory.
#[derive(Debug)]
pub(in crate::storage) struct Survey {
    /// The files of the log that are there.
    pub(in crate::storage) files: Files<dyn ReadFile>,
    /// All files of the log, in the order of history.
    pub(super) slots: Vec<Slot>,
    /// The names of the files, by handle: a file may have another file's name.
    names: HashMap<u32, String>,
    /// Damage that is not in a file of `slots`, and how many bytes it leaves unaccounted for;
    /// `None` if unknown.
    pub(super) damages: Vec<(Damage, Option<u64>)>,
    /// The durable position in the newest segment.
    pub(in crate::storage) attested: Position,
    /// Ids from this one on are unused, according to the lists of files and the puts of the newest
    /// segment.
    pub(in crate::storage) next_id: JobId,
    /// The bytes after the last sound frame of the newest segment, and their place.
    pub(super) tail: Option<(u32, Lookahead)>,
    /// Segments after a torn tail, newest first: nothing in them was ever acknowledged.
    pub(in crate::storage) segments_after_torn_tail: Vec<String>,
    /// Segments that the log does not list: the input or output of an interrupted compaction.
    pub(in crate::storage) unlisted: Vec<String>,
    /// Spare files and their sizes.
    pub(in crate::storage) spares: Vec<(String, u64)>,
    /// Torn tails that earlier starts saved.
    pub(in crate::storage) cuts: Vec<String>,
    /// Leftovers of interrupted work that nothing needs.
    pub(in crate::storage) useless: Vec<String>,
    /// Files that are not this log's.
    pub(in crate::storage) strangers: Vec<String>,
    /// The names that no new segment may have.
    pub(in crate::storage) taken: Taken,
    /// Every file in which a segment's bytes may lie by mistake; those whose own header does not
    /// fit first.
    pub(super) others: Vec<Other>,
    /// How much may be tried with them.
    pub(super) effort: Effort,
    /// Bytes in files that belong to other files.
    displaced: Vec<(String, Range<u64>)>,
}

impl Survey {
    /// Survey `dir`, in which `found` lists at least one segment.
    ///
    /// # Errors
    /// If the disk does not answer. Damage is no error.
    pub(in crate::storage) fn of(
        source: &Source,
        dir: &Path,
        mut found: Found,
    ) -> Result<Survey, OpenError> {
        // A file without a sound header may still hold records, and the list of files.
        let unfit = Unfit::read(source, dir, &mut found)?;
        let Adopted {
            mut damages,
            others,
            effort,
            displaced,
        } = unfit.adopt(dir, &mut found)?;
        if source.is_strict() {
            keep_newest(&mut found.segments);
        }
        let Ending {
            newest,
            segments_after_torn_tail,
            mut goes_on,
            ..
        } = Ending::find(&mut found.segments).map_err(|unread| unread.into_error(dir))?;
        let is_old = goes_on.is_some();
        // The log continues in a file that is missing, or of which only the name can be read.
        if let Some(last) = &goes_on
            && damages.get(&last.file).is_some_and(is_file)
        {
            adopt_by_name(source, dir, &mut found, &last.file)?;
            goes_on = None;
        }
        let is_newest_there = goes_on.is_none();
        let mut files = Unlisted::of(found.segments, &damages);
        let has_list = newest.is_some() && !is_old;
        let mut survey = Survey {
            files: Files::new(found.log, found.epoch),
            slots: Vec::new(),
            names: HashMap::new(),
            damages: goes_on.map(|damage| (damage, None)).into_iter().collect(),
            attested: Position::ZERO,
            next_id: JobId(1),
            tail: None,
            // Its header is damaged, so what it is remains unknown: it is a stranger, and stays.
            segments_after_torn_tail: segments_after_torn_tail
                .into_iter()
                .map(|segment| segment.name)
                .filter(|name| !damages.contains_key(name))
                .collect(),
            unlisted: Vec::new(),
            spares: found.spares,
            cuts: found.cuts,
            useless: found.useless,
            strangers: found.strangers,
            taken: found.taken,
            others,
            effort,
            displaced,
        };
        match newest {
            None => survey.guess(&mut files, SegmentId(0), &mut damages),
            Some(newest) => {
                (survey.attested, survey.next_id) = (newest.durable, newest.next_id);
                survey.tail = newest.tail;
                survey.follow(source, dir, newest.entries(), &mut files, &mut damages)?;
                if is_old {
                    // Files made after this list are in no list.
                    let last = newest.entries().last().map(|entry| entry.last);
                    survey.guess(&mut files, last.unwrap_or_default(), &mut damages);
                }
            }
        }
        if is_newest_there {
            survey.mark_newest();
        }
        survey.leave(files, damages, has_list);
        Ok(survey)
    }

    /// Take the files that a list names.
    fn follow(
        &mut self,
        source: &Source,
        dir: &Path,
        entries: impl Iterator<Item = Entry>,
        files: &mut Unlisted,
        damages: &mut BTreeMap<String, Damage>,
    ) -> Result<(), OpenError> {
        let entries: Vec<Entry> = entries.collect();
        let wanted: BTreeSet<Key> = entries.iter().map(key_of).collect();
        for entry in &entries {
            if self.files.is_taken(entry.first) {
                if !self.is_replaced(entry) {
                    // A list that names a segment twice was not written by bsd; the first entry
                    // counts.
                    self.damages.push((twice(entry), Some(0)));
                }
                continue;
            }
            if let Some(segment) = files.take(entry) {
                self.take(*entry, Some(entry.end), segment, damages);
            } else if damages.get(&entry.file_name()).is_some_and(is_file) {
                let segment = open(source, dir, &entry.file_name(), header_of(entry, self))?;
                self.take(*entry, Some(entry.end), segment, damages);
            } else if let Some(output) = files.take_output_of(entry, &wanted) {
                self.replace(entry, output, damages);
            } else {
                self.slots.push(Slot::Missing(*entry));
                // Compaction may have been interrupted before it removed its inputs.
                for input in files.take_inputs_of(entry, &wanted) {
                    let (entry, end) = entry_of(&input);
                    self.take(entry, end, input, damages);
                }
            }
        }
        Ok(())
    }

    /// The list names a file that compaction has since replaced: the record of that is damaged.
    fn replace(&mut self, entry: &Entry, output: Segment, damages: &mut BTreeMap<String, Damage>) {
        let what = format!(
            "the log's list names this file, which is not there; {} was made of it, and is read in \
             its place",
            output.name
        );
        let damage = Damage::new(entry.file_name(), None, what);
        self.damages.push((damage, Some(0)));
        let (entry, end) = entry_of(&output);
        // Other inputs of it may have been there, and taken.
        let is_made_of = |slot: &Slot| match slot {
            Slot::Present { handle, .. } => {
                let other = self.files.get(*handle).entry;
                entry.first <= other.first && other.last <= entry.last
            }
            Slot::Missing(_) => false,
        };
        let from = self.slots.iter().position(is_made_of);
        for slot in self.slots.drain(from.unwrap_or(self.slots.len())..) {
            if let Slot::Present { handle, .. } = slot {
                // Handles are in the order of history: this one is not given out again.
                self.files.unlist(handle);
            }
        }
        self.take(entry, end, output, damages);
    }

    /// True if a file that compaction made from this one, perhaps with others, is there in its
    /// place.
    fn is_replaced(&self, entry: &Entry) -> bool {
        let handle = self.files.covering(entry.first);
        handle.is_some_and(|handle| self.files.get(handle).entry.generation > entry.generation)
    }

    /// Take the files after `after` that no list names.
    fn guess(
        &mut self,
        files: &mut Unlisted,
        after: SegmentId,
        damages: &mut BTreeMap<String, Damage>,
    ) {
        for key in guess(files, after) {
            if let Some(segment) = files.segments.remove(&key)
                && !self.files.is_taken(segment.header.identity.first)
            {
                let (entry, end) = entry_of(&segment);
                self.attested = self.attested.max(Position::new(entry.first, 0));
                self.take(entry, end, segment, damages);
            }
        }
    }

    fn take(
        &mut self,
        entry: Entry,
        end: Option<u32>,
        segment: Segment,
        damages: &mut BTreeMap<String, Damage>,
    ) {
        let Segment {
            name,
            header,
            size,
            file,
        } = segment;
        let handle = self
            .files
            .add(entry, header.compacted, header.filtered_at, file);
        self.files.list(handle);
        let header_damage = damages.remove(&name);
        let size = size.min(u64::from(u32::MAX));
        self.names.insert(handle, name);
        self.slots.push(Slot::Present {
            handle,
            size,
            end,
            is_newest: false,
            header_damage,
        });
    }

    /// Only reading it shows where the last file ends.
    fn mark_newest(&mut self) {
        let files = &self.files;
        let last = self.slots.iter_mut().rev().find_map(|slot| match slot {
            Slot::Present {
                handle,
                end,
                is_newest,
                ..
            } => Some((*handle, end, is_newest)),
            Slot::Missing(_) => None,
        });
        if let Some((handle, end, is_newest)) = last
            && files.get(handle).entry.generation == 0
        {
            (*end, *is_newest) = (None, true);
        }
    }

    /// The remaining files are not part of the log.
    fn leave(&mut self, files: Unlisted, damages: BTreeMap<String, Damage>, has_list: bool) {
        let names = files.segments.into_values().map(|segment| segment.name);
        self.unlisted = names.filter(|name| !damages.contains_key(name)).collect();
        if has_list {
            // A file that the log does not need is not damage, in whatever state it is.
            self.strangers.extend(damages.into_keys());
        } else {
            // Nothing says what the log needs.
            let damages = damages.into_values().map(|damage| (damage, None));
            self.damages.extend(damages);
        }
    }

    /// These bytes in the file `name` belong to another file.
    pub(super) fn note_displaced(&mut self, name: &str, bytes: Range<u64>) {
        self.displaced.push((name.to_owned(), bytes));
    }

    /// True if bytes in the file `name` after `at` belong to another file: its own were
    /// overwritten.
    pub(super) fn has_others_bytes_after(&self, name: &str, at: u32) -> bool {
        let mut displaced = self.displaced.iter();
        displaced.any(|(file, bytes)| file == name && bytes.end > u64::from(at))
    }

    /// The name of a file.
    pub(super) fn name_of(&self, handle: u32) -> String {
        self.names.get(&handle).cloned().unwrap_or_default()
    }
}

/// The newest segment is read to find the list of files, and replayed last. Tools read it again:
/// they hold a log for long, and look at bodies later.
fn keep_newest(segments: &mut [Segment]) {
    if let Some(index) = newest(segments) {
        segments[index].keep();
    }
}

/// Segments whose header is damaged, or names another file: they may still hold records, of the
/// segment that their name says, of the one that their header says, or of both.
struct Unfit {
    /// The damage of each.
    damages: BTreeMap<String, Damage>,
    files: Vec<Other>,
    /// A segment, and the files in which there are frames of it.
    parts: BTreeMap<(SegmentId, u32), Vec<Part>>,
    /// Headers that were read, of whatever segment.
    headers: HashMap<(SegmentId, u32), SegmentHeader>,
}

/// A file with frames of a segment.
struct Part {
    segment: Segment,
    ahead: Lookahead,
}

/// Adopted files, and the known facts of them.
struct Adopted {
    damages: BTreeMap<String, Damage>,
    others: Vec<Other>,
    effort: Effort,
    displaced: Vec<(String, Range<u64>)>,
}

impl Unfit {
    /// Look under each identity that a file may have.
    fn read(source: &Source, dir: &Path, found: &mut Found) -> Result<Unfit, OpenError> {
        let mut unfit = Unfit {
            damages: std::mem::take(&mut found.unusable),
            files: Vec::new(),
            parts: BTreeMap::new(),
            headers: HashMap::new(),
        };
        // A link or a device is not opened: that may have any effect.
        let files = unfit.damages.values().filter(|damage| is_file(damage));
        // Without a sound header, the first file that can be read says which log it is.
        let mut log = Some(found.log).filter(|_| !found.segments.is_empty());
        for Damage { file: name, .. } in files {
            let Candidates { read, named } = Candidates::of(source, dir, name, log)?;
            if let Some(read) = read {
                unfit.headers.insert(identity_of(&read), read);
            }
            // The header says more than the name: how many segments were merged.
            let named = named
                .filter(|named| read.is_none_or(|read| identity_of(&read) != identity_of(named)));
            for header in read.into_iter().chain(named) {
                let segment = open(source, dir, name, header)?;
                let ahead = look_for_frames(dir, &segment)?;
                if ahead.frames > 0 {
                    log.get_or_insert(header.identity.log);
                    let parts = unfit.parts.entry(identity_of(&header)).or_default();
                    parts.push(Part { segment, ahead });
                }
            }
            let path = dir.join(name);
            let file = source.open_read(&path);
            unfit.files.push(Other {
                name: name.clone(),
                is_unfit: true,
                file: file.map_err(|error| OpenError::io("read", &path, &error))?,
            });
        }
        Ok(unfit)
    }

    /// Add the segments that these files are to those that were found.
    fn adopt(self, dir: &Path, found: &mut Found) -> Result<Adopted, OpenError> {
        let sizes = found.segments.iter().map(|segment| segment.size);
        let unfit_sizes = self.parts.values().flatten().map(|part| part.segment.size);
        let others = found.segments.iter().map(|segment| Other {
            name: segment.name.clone(),
            is_unfit: false,
            file: segment.file.clone(),
        });
        let mut adopted = Adopted {
            damages: self.damages,
            effort: Effort::for_log(sizes.chain(unfit_sizes).sum()),
            others: self.files.into_iter().chain(others).collect(),
            displaced: Vec::new(),
        };
        for (identity, parts) in self.parts {
            let is_it = |other: &Segment| identity_of(&other.header) == identity;
            // A copy of a file that is there is not needed.
            if found.segments.iter().any(is_it) {
                continue;
            }
            let name = file_name(identity.0, identity.1);
            // If parts of it are in several files, it is the one with its name.
            let rank = |part: &&Part| (part.segment.name == name, part.ahead.frames);
            let Some(Part { mut segment, ahead }) =
                parts.into_iter().rev().max_by_key(|part| rank(&part))
            else {
                continue;
            };
            let header = self.headers.get(&identity);
            if let Some(header) = header.filter(|header| is_of(header, &segment)) {
                segment.header = *header;
            }
            adopted.find_beginning(dir, &mut segment, &ahead)?;
            found.log = segment.header.identity.log;
            found.segments.push(segment);
        }
        found.segments.sort_by_key(Segment::key);
        Ok(adopted)
    }
}

impl Adopted {
    /// If the first frames of a segment lie in another file, read them there: its list of files is
    /// among them.
    fn find_beginning(
        &mut self,
        dir: &Path,
        segment: &mut Segment,
        ahead: &Lookahead,
    ) -> Result<(), OpenError> {
        let io = |error| OpenError::io("read", &dir.join(&segment.name), &error);
        let start = segment_header::SIZE as u32;
        let next = ahead.next_frame.unwrap_or(start);
        let stretch = Stretch {
            file: &*segment.file,
            seed: segment.header.identity.seed(),
            range: start..next.max(start),
            previous: Some(0),
        };
        if stretch.range.is_empty() {
            return Ok(());
        }
        let others = self
            .others
            .iter()
            .filter(|other| other.name != segment.name);
        let Some(displaced) = stretch.look_in(others, &mut self.effort).map_err(io)? else {
            return Ok(());
        };
        segment.file = displaced.in_place(segment.file.clone());
        for range in &displaced.ranges {
            let bytes = range.start.into()..range.end.into();
            self.displaced.push((displaced.name.clone(), bytes));
        }
        let end = displaced.ranges.last().map_or(start, |range| range.end);
        if let Some(damage) = self.damages.get_mut(&segment.name) {
            damage.range = Some((0, end.into()));
            damage.what = format!("{}; {}", damage.what, displaced.describe());
        }
        Ok(())
    }
}

fn is_of(header: &SegmentHeader, segment: &Segment) -> bool {
    header.identity.log == segment.header.identity.log
}

fn identity_of(header: &SegmentHeader) -> (SegmentId, u32) {
    (header.identity.first, header.identity.generation)
}

/// True if the problem of a segment is its header, and not that it is no regular file.
fn is_file(damage: &Damage) -> bool {
    damage.range.is_some()
}

/// Take the file that should be the newest one, although nothing in it can be read.
fn adopt_by_name(
    source: &Source,
    dir: &Path,
    found: &mut Found,
    name: &str,
) -> Result<(), OpenError> {
    let Some((first, generation)) = parse_file_name(name) else {
        return Ok(());
    };
    let header = header_with(found.log, (first, first, generation));
    found.segments.push(open(source, dir, name, header)?);
    Ok(())
}

/// Possible headers of a file.
struct Candidates {
    /// As its bytes say.
    read: Option<SegmentHeader>,
    /// As its name says.
    named: Option<SegmentHeader>,
}

impl Candidates {
    fn of(
        source: &Source,
        dir: &Path,
        name: &str,
        log: Option<LogId>,
    ) -> Result<Candidates, OpenError> {
        let path = dir.join(name);
        let io = |error| OpenError::io("read", &path, &error);
        let file = source.open_read(&path).map_err(io)?;
        let size = file.size().map_err(io)?;
        let mut bytes = [0; segment_header::SIZE];
        let read = bytes.len().min(size as usize);
        read_exact_at(&*file, &mut bytes[..read], 0).map_err(io)?;
        let header = SegmentHeader::decode(&bytes)
            .ok()
            .or_else(|| corrected(bytes));
        let mut written = [0; 16];
        written.copy_from_slice(&bytes[segment_header::LOG_ID..segment_header::FILTERED_AT]);
        let is_ours = |header: &SegmentHeader| log.is_none_or(|log| log == header.identity.log);
        let log = log.unwrap_or(LogId(written));
        let named = parse_file_name(name)
            .map(|(first, generation)| header_with(log, (first, first, generation)));
        Ok(Candidates {
            read: header.filter(is_ours),
            named,
        })
    }
}

/// A header with one flipped bit corrected: for so few bytes, the checksum tells which bit it was.
fn corrected(mut bytes: [u8; segment_header::SIZE]) -> Option<SegmentHeader> {
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(header) = SegmentHeader::decode(&bytes) {
            return Some(header);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    None
}

fn header_with(log: LogId, (first, last, generation): Key) -> SegmentHeader {
    SegmentHeader {
        version: VERSION_MIN,
        identity: Identity {
            log,
            first,
            last,
            generation,
        },
        compacted: generation > 0,
        filtered_at: Position::ZERO,
        epoch: 0,
        created_wall_ns: 0,
    }
}

fn header_of(entry: &Entry, survey: &Survey) -> SegmentHeader {
    header_with(survey.files.log(), key_of(entry))
}

fn open(
    source: &Source,
    dir: &Path,
    name: &str,
    header: SegmentHeader,
) -> Result<Segment, OpenError> {
    let path = dir.join(name);
    let io = |error| OpenError::io("read", &path, &error);
    let file = source.open_read(&path).map_err(io)?;
    let size = file.size().map_err(io)?;
    Ok(Segment {
        name: name.to_owned(),
        header,
        size,
        file,
    })
}

/// Look for frames in a file, as if it were what its header says.
fn look_for_frames(dir: &Path, segment: &Segment) -> Result<Lookahead, OpenError> {
    let seed = segment.header.identity.seed();
    let before = (segment_header::SIZE - FRAME_ALIGN) as u32;
    let mut reader = Reader::new(segment.file.clone(), seed, segment.size, before);
    reader
        .look_ahead()
        .map_err(|error| OpenError::io("read", &dir.join(&segment.name), &error))
}

fn twice(entry: &Entry) -> Damage {
    Damage::new(entry.file_name(), None, "the log's list names it twice")
}

/// Files that are there and that the log has not listed so far.
struct Unlisted {
    segments: BTreeMap<Key, Segment>,
    /// Those with a damaged header, by their first segment and generation: only a file's own header
    /// and the list say how many segments were merged into it.
    unsure: HashMap<(SegmentId, u32), Key>,
}

impl Unlisted {
    fn of(segments: Vec<Segment>, damages: &BTreeMap<String, Damage>) -> Unlisted {
        let is_unsure = |segment: &&Segment| damages.contains_key(&segment.name);
        let unsure = segments.iter().filter(is_unsure).map(|segment| {
            let key = segment.key();
            ((key.0, key.2), key)
        });
        Unlisted {
            unsure: unsure.collect(),
            segments: segments.into_iter().map(|one| (one.key(), one)).collect(),
        }
    }

    fn take(&mut self, entry: &Entry) -> Option<Segment> {
        let unsure = self.unsure.get(&(entry.first, entry.generation)).copied();
        let exact = self.segments.remove(&key_of(entry));
        exact.or_else(|| self.segments.remove(&unsure?))
    }

    /// Take the file that compaction made from this one, perhaps with others.
    fn take_output_of(&mut self, entry: &Entry, wanted: &BTreeSet<Key>) -> Option<Segment> {
        let is_output = |key: &&Key| {
            let (first, last, generation) = **key;
            let covers = first <= entry.first && entry.last <= last;
            covers && generation > entry.generation && !wanted.contains(*key)
        };
        let before = self
            .segments
            .range(..=(entry.first, SegmentId(u32::MAX), u32::MAX));
        let outputs = before.map(|(key, _)| key).filter(is_output);
        let key = *outputs.max_by_key(|key| key.2)?;
        self.segments.remove(&key)
    }

    /// Take the files from which compaction made this one.
    fn take_inputs_of(&mut self, entry: &Entry, wanted: &BTreeSet<Key>) -> Vec<Segment> {
        let is_input = |key: &&Key| {
            let (_, last, generation) = **key;
            last <= entry.last && generation < entry.generation && !wanted.contains(*key)
        };
        let from = (entry.first, SegmentId(0), 0);
        let until = (entry.last, SegmentId(u32::MAX), u32::MAX);
        let within = self.segments.range(from..=until.max(from));
        let keys: Vec<Key> = within
            .map(|(key, _)| *key)
            .filter(|key| is_input(&key))
            .collect();
        keys.iter()
            .filter_map(|key| self.segments.remove(key))
            .collect()
    }
}

/// The files after `after`, for a log whose own list of them cannot be read. A rewritten file and
/// its inputs hold the same jobs. The inputs hold more, so they are taken if all of them are there:
/// their dead records can at most make a job run again.
fn guess(files: &Unlisted, after: SegmentId) -> Vec<Key> {
    let later = files.segments.keys().filter(|key| key.1 > after);
    let mut kept: BTreeSet<Key> = later.copied().collect();
    let mut outputs: Vec<Key> = kept.iter().copied().filter(|key| key.2 > 0).collect();
    outputs.sort_by_key(|key| std::cmp::Reverse(key.2));
    for output in outputs {
        let (first, last, generation) = output;
        let within = kept.range((first, SegmentId(0), 0)..=(last, last, u32::MAX));
        let is_input = |key: &&Key| key.1 <= last && key.2 < generation;
        let inputs: Vec<Key> = within.filter(is_input).copied().collect();
        let mut next = first.0;
        for input in &inputs {
            if input.0.0 <= next {
                next = next.max(input.1.0.saturating_add(1));
            }
        }
        if next > last.0 {
            kept.remove(&output);
        } else {
            inputs.iter().for_each(|input| {
                kept.remove(input);
            });
        }
    }
    kept.into_iter().collect()
}

fn entry_of(segment: &Segment) -> (Entry, Option<u32>) {
    let Identity {
        first,
        last,
        generation,
        ..
    } = segment.header.identity;
    let end = u32::try_from(segment.size).unwrap_or(u32::MAX);
    // A file that compaction wrote is exactly as long as its frames.
    (
        Entry {
            first,
            last,
            generation,
            end,
        },
        segment.header.compacted.then_some(end),
    )
}
