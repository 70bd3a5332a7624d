//! Which files are the log, and in which order: by the rules of a start where the log's own list
//! can be read, and as well as can be guessed where it cannot.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::source::Source;
use crate::storage::error::OpenError;
use crate::storage::files::Files;
use crate::storage::format::{
    Entry, Identity, LogId, SegmentHeader, parse_file_name, segment_header,
};
use crate::storage::fs::{Fs, OpenMode, read_exact_at};
use crate::storage::recover::{Found, Segment, find, newest};
use crate::storage::scan::Damage;
use crate::types::{JobId, Position};

/// A file of the log, in its place in the order.
#[derive(Debug)]
pub(super) enum Slot {
    /// It is there.
    Present {
        handle: u32,
        /// Bytes of the file.
        size: u64,
        /// Where its last frame ends, where the log says so.
        end: Option<u32>,
        /// The log goes on in it.
        is_newest: bool,
        /// Its header, which cannot be used.
        header_damage: Option<Damage>,
    },
    /// The log's list names it, and it is not there.
    Missing(Entry),
}

impl Slot {
    /// Bytes to be read.
    pub(super) fn size(&self) -> u64 {
        match self {
            Slot::Present { size, .. } => *size,
            Slot::Missing(_) => 0,
        }
    }
}

/// A file that is not part of the log's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Its name.
    pub name: String,
    /// What it is, in words.
    pub what: &'static str,
    /// Bytes of space that it sets aside for the log; 0 where it does not.
    pub reserved: u64,
}

/// What a directory holds.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) files: Files,
    pub(super) slots: Vec<Slot>,
    /// The names of the files, by handle: one may have another's.
    names: HashMap<u32, String>,
    /// Damage that is not in a file of `slots`.
    pub(super) damages: Vec<Damage>,
    /// What the newest segment says was durable.
    pub(super) attested: Position,
    pub(super) next_id: JobId,
    pub(super) leftovers: Vec<Leftover>,
    pub(super) strangers: Vec<String>,
}

impl Contents {
    /// List `dir`.
    pub(super) fn read(source: &Source, dir: &Path) -> Result<Contents, OpenError> {
        let mut found = find(source, dir)?;
        if found.segments.is_empty() && found.unusable.is_empty() {
            return Err(not_a_log(dir, &found));
        }
        let mut damages = std::mem::take(&mut found.unusable);
        let looker = || Arc::new(source.clone());
        let (mut behind, mut list_damages) = (Vec::new(), Vec::new());
        let mut listed = newest(looker(), dir, &mut found, &mut behind, &mut list_damages)?;
        // The file in which the log goes on may be one without a sound header: it may hold the
        // list all the same.
        let goes_on = |damage: &Damage| list_damages.iter().any(|other| other.file == damage.file);
        let is_last = listed.is_none() || damages.iter().any(goes_on);
        adopt(source, dir, &mut found, &damages)?;
        if is_last {
            list_damages.clear();
            listed = newest(looker(), dir, &mut found, &mut behind, &mut list_damages)?;
        }
        // That its first frame cannot be read is seen again when the file is walked.
        list_damages.retain(|damage| damage.range.is_none());
        let has_list = listed.is_some();
        let (wanted, attested, next_id) = match listed {
            Some(newest) => {
                let entries = newest
                    .entries
                    .into_iter()
                    .map(|entry| (entry, Some(entry.end)));
                (entries.collect(), newest.durable, newest.next_id)
            }
            None => guess(&found.segments),
        };
        let mut contents = Contents {
            files: Files::new(found.log),
            slots: Vec::new(),
            names: HashMap::new(),
            damages: list_damages,
            attested,
            next_id,
            leftovers: leftovers(&found, behind),
            strangers: found.strangers,
        };
        let mut segments = found.segments;
        for (entry, end) in wanted {
            contents.take(entry, end, &mut segments, &mut damages);
        }
        contents.mark_newest();
        let unlisted = segments.into_iter().map(|segment| Leftover {
            name: segment.name,
            what: "a segment that the log does not list: the input or output of a compaction that \
                   was interrupted",
            reserved: 0,
        });
        contents.leftovers.extend(unlisted);
        match has_list {
            // What the log does not need is not damage, whatever it is.
            true => contents
                .strangers
                .extend(damages.into_iter().map(|damage| damage.file)),
            // Nobody knows what the log needs.
            false => contents.damages.extend(damages),
        }
        Ok(contents)
    }

    fn take(
        &mut self,
        entry: Entry,
        end: Option<u32>,
        segments: &mut Vec<Segment>,
        damages: &mut Vec<Damage>,
    ) {
        if self.files.is_taken(entry.first) {
            // A list that names a segment twice is no list of bsd's; the first counts.
            self.damages.push(Damage {
                file: entry.file_name(),
                range: None,
                what: "the log's list names it twice".to_owned(),
                jobs: Vec::new(),
            });
            return;
        }
        let is_damaged =
            |segment: &Segment| damages.iter().any(|damage| damage.file == segment.name);
        // How many segments were merged into a file only its own header and the list tell.
        let is_likely = |segment: &Segment| {
            let identity = segment.header.identity;
            let same = identity.first == entry.first && identity.generation == entry.generation;
            same && is_damaged(segment)
        };
        let is_it = |segment: &Segment| segment.is(&entry) || is_likely(segment);
        let Some(index) = segments.iter().position(is_it) else {
            self.slots.push(Slot::Missing(entry));
            return;
        };
        let Segment {
            name,
            header,
            size,
            file,
        } = segments.remove(index);
        let handle = self
            .files
            .add(entry, header.compacted, header.filtered_at, file);
        self.files.list(handle);
        let about_it = damages.iter().position(|damage| damage.file == name);
        let header_damage = about_it.map(|index| damages.remove(index));
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

    /// Where the last file ends is to be found out by reading it.
    fn mark_newest(&mut self) {
        let last = self.slots.iter_mut().rev().find_map(|slot| match slot {
            Slot::Present { end, is_newest, .. } => Some((end, is_newest)),
            Slot::Missing(_) => None,
        });
        if let Some((end, is_newest)) = last {
            (*end, *is_newest) = (None, true);
        }
    }

    /// The name of a file.
    pub(super) fn name_of(&self, handle: u32) -> String {
        self.names.get(&handle).cloned().unwrap_or_default()
    }
}

fn not_a_log(dir: &Path, found: &Found) -> OpenError {
    let is_beanstalkds = found
        .strangers
        .iter()
        .any(|name| name.starts_with("binlog."));
    let what = match is_beanstalkds {
        true => {
            "this is beanstalkd's log, not bsd's; give the directory that bsd-server's -b names"
        }
        false => {
            "there is no log here: no file is called segment-…; give the directory that \
             bsd-server's -b names"
        }
    };
    OpenError::Foreign {
        path: dir.to_owned(),
        what: what.to_owned(),
    }
}

/// Segments whose header is damaged, or is that of another name, may still hold records: take them
/// in under the identity that is most likely theirs. Their checksums tell whether it was.
fn adopt(
    source: &Source,
    dir: &Path,
    found: &mut Found,
    damages: &[Damage],
) -> Result<(), OpenError> {
    for damage in damages {
        let path = dir.join(&damage.file);
        let io = |error| OpenError::io("read", &path, &error);
        let file = source.open(&path, OpenMode::Read).map_err(io)?;
        let size = file.size().map_err(io)?;
        let mut bytes = vec![0; segment_header::SIZE.min(size as usize)];
        read_exact_at(&*file, &mut bytes, 0).map_err(io)?;
        let Some(header) = likely_header(&damage.file, &bytes, found) else {
            continue;
        };
        let identity = header.identity;
        let is_taken = |segment: &Segment| {
            let other = segment.header.identity;
            other.first == identity.first && other.generation == identity.generation
        };
        if !found.segments.iter().any(is_taken) {
            found.log = identity.log;
            found.segments.push(Segment {
                name: damage.file.clone(),
                header,
                size,
                file,
            });
        }
    }
    let key = |segment: &Segment| {
        (
            segment.header.identity.first,
            segment.header.identity.generation,
        )
    };
    found.segments.sort_by_key(key);
    Ok(())
}

fn likely_header(name: &str, bytes: &[u8], found: &Found) -> Option<SegmentHeader> {
    if let Ok(header) = SegmentHeader::decode(bytes) {
        // Sound, under the name of another; a copy of what is there is taken by nobody.
        let is_ours = found.segments.is_empty() || header.identity.log == found.log;
        return is_ours.then_some(header);
    }
    let (first, generation) = parse_file_name(name)?;
    let log = match found.segments.is_empty() {
        false => found.log,
        true => LogId(*bytes.get(segment_header::LOG_ID..)?.first_chunk()?),
    };
    let identity = Identity {
        log,
        first,
        last: first,
        generation,
    };
    Some(SegmentHeader {
        identity,
        compacted: generation > 0,
        filtered_at: Position::ZERO,
        created_wall_ns: 0,
    })
}

type Wanted = Vec<(Entry, Option<u32>)>;

/// The files of a log whose own list cannot be read. A rewritten file and those that it was made
/// from hold the same jobs; the older ones hold more, so they are taken where all are there: what
/// is dead in them costs at most that a job runs again.
fn guess(segments: &[Segment]) -> (Wanted, Position, JobId) {
    let mut kept: Vec<&Segment> = segments.iter().collect();
    let mut outputs = kept.clone();
    outputs.retain(|segment| segment.header.compacted);
    outputs.sort_by_key(|segment| std::cmp::Reverse(segment.header.identity.generation));
    for output in outputs {
        let Identity {
            first,
            last,
            generation,
            ..
        } = output.header.identity;
        let is_input = |segment: &&Segment| {
            let other = segment.header.identity;
            other.generation < generation && other.first >= first && other.last <= last
        };
        let covered: u64 = kept
            .iter()
            .filter(|segment| is_input(segment))
            .map(width)
            .sum();
        let all = u64::from(last.0.saturating_sub(first.0)) + 1;
        match covered >= all {
            true => kept.retain(|segment| !std::ptr::eq(*segment, output)),
            false => kept.retain(|segment| !is_input(segment)),
        }
    }
    let wanted: Wanted = kept.iter().map(|segment| entry_of(segment)).collect();
    let attested = kept
        .last()
        .map(|segment| Position::new(segment.header.identity.first, 0));
    (wanted, attested.unwrap_or(Position::ZERO), JobId(1))
}

fn width(segment: &&Segment) -> u64 {
    let Identity { first, last, .. } = segment.header.identity;
    u64::from(last.0.saturating_sub(first.0)) + 1
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

fn leftovers(found: &Found, behind: Vec<Segment>) -> Vec<Leftover> {
    let leftover = |name: &String, what| Leftover {
        name: name.clone(),
        what,
        reserved: 0,
    };
    let spares = found.spares.iter().map(|(name, size)| Leftover {
        reserved: *size,
        ..leftover(name, "space set aside; it holds nothing")
    });
    let cuts = found.cuts.iter().map(|name| {
        leftover(
            name,
            "saved by a start: what a crash had interrupted, never acknowledged",
        )
    });
    let useless = found
        .useless
        .iter()
        .map(|name| leftover(name, "left by interrupted work; the next start removes it"));
    let behind = behind.iter().map(|segment| {
        leftover(
            &segment.name,
            "a segment begun behind a torn tail, never acknowledged; the next start sets it aside",
        )
    });
    spares.chain(cuts).chain(useless).chain(behind).collect()
}
