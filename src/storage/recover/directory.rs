//! What a data directory holds, by its names and the headers of its segments.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::super::backup;
use super::super::beanstalkd::{UNDER_WAY, is_kept};
use super::super::error::OpenError;
use super::super::format::{
    Entry, HeaderFault, LogId, SegmentHeader, VERSION, parse_file_name, segment_header,
};
use super::super::fs::{DirEntry, ReadFile, ReadFs, read_exact_at};
use super::super::log::LogOptions;
use super::super::scan::Damage;
use super::super::space::{SEGMENT_SIZE_MIN, parse_spare_name};
use super::COMPACTION_NAME;
use crate::types::SegmentId;

/// What a start cut off or set aside has a name that begins so.
const CUT_PREFIX: &str = "cut-";
/// So many torn tails are kept; each is what one crash interrupted.
const CUTS_MAX: usize = 16;

/// A directory of beanstalkd's with no log of ours in it, or a backup, is not ours to touch.
pub(super) fn refuse_foreign(
    fs: &dyn ReadFs,
    options: &LogOptions,
    names: &[DirEntry],
) -> Result<(), OpenError> {
    if names.iter().any(|entry| entry.name == UNDER_WAY) {
        return Err(OpenError::Foreign {
            path: options.dir.clone(),
            what:
                "the import of beanstalkd's log into this directory was interrupted; start again \
                   with --import"
                    .to_owned(),
        });
    }
    if names.iter().any(|entry| entry.name == backup::MANIFEST) {
        let show = options.dir.display();
        return Err(OpenError::Foreign {
            path: options.dir.clone(),
            what: format!(
                "this is a backup, which no server writes to; make a directory of it with `bsd-wal \
                 restore {show} --output NEW`"
            ),
        });
    }
    let is_binlog = |entry: &&DirEntry| {
        let number = entry.name.strip_prefix("binlog.");
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let binlogs = names.iter().filter(is_binlog).count();
    if binlogs == 0
        || names
            .iter()
            .any(|entry| parse_file_name(&entry.name).is_some())
    {
        return Ok(());
    }
    let dir = &options.dir;
    if names.iter().any(|entry| entry.name == "lock") {
        fs.share_dir(dir).map_err(|error| error.at(dir))?;
    }
    let show = dir.display();
    Err(OpenError::Foreign {
        path: dir.clone(),
        what: format!(
            "this is beanstalkd's log ({binlogs} binlog files), which bsd does not change; make \
             bsd's log from it with `bsd-wal import {show} --output NEW`, then start with `-b NEW`; \
             or start with `-b {show} --import`, which does that once and keeps beanstalkd's files \
             in a subdirectory"
        ),
    })
}

/// A name that only a segment can have, and that no segment of this program's has, speaks of a log
/// all the same: a directory that holds one is not new.
pub(super) fn refuse_unknown(dir: &Path, strangers: &[String]) -> Result<(), OpenError> {
    let is_like_a_segment = |name: &&String| name.starts_with("segment-");
    match strangers.iter().find(is_like_a_segment) {
        None => Ok(()),
        Some(name) => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: format!(
                "{name:?} is called like the segment of a log, and not as this program calls one; \
                 move it elsewhere if a new log is to be made here"
            ),
        }),
    }
}

/// The names of segments that a directory has: of the log's own, of strangers, and of what was set
/// aside. Nothing new gets one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken(BTreeSet<(SegmentId, u32)>);

impl Taken {
    pub(super) fn by(names: &[DirEntry]) -> Taken {
        let own = |name: &str| match name.strip_prefix(CUT_PREFIX) {
            Some(rest) => parse_aside(rest),
            None => parse_file_name(name),
        };
        Taken(names.iter().filter_map(|entry| own(&entry.name)).collect())
    }

    /// Something that is not the log's has the name of this segment and generation.
    pub(in crate::storage) fn add(&mut self, segment: SegmentId, generation: u32) {
        self.0.insert((segment, generation));
    }

    /// The first number behind `last` that no file has.
    pub(in crate::storage) fn next_after(&self, last: SegmentId) -> Option<SegmentId> {
        let mut next = last.0.checked_add(1)?;
        for (number, _) in self.0.range((SegmentId(next), 0)..) {
            if number.0 > next {
                break;
            }
            next = number.0.checked_add(1)?;
        }
        Some(SegmentId(next))
    }

    /// The first generation of a segment, from `generation` on, that no file has.
    pub(in crate::storage) fn next_generation(&self, first: SegmentId, generation: u32) -> u32 {
        let mut next = generation;
        for (_, other) in self.0.range((first, generation)..=(first, u32::MAX)) {
            if *other > next {
                break;
            }
            next = other.saturating_add(1);
        }
        next
    }
}

/// A segment file as found in the directory.
pub(in crate::storage) struct Segment {
    pub(in crate::storage) name: String,
    pub(in crate::storage) header: SegmentHeader,
    pub(in crate::storage) size: u64,
    pub(in crate::storage) file: Arc<dyn ReadFile>,
}

impl Segment {
    pub(super) fn first(&self) -> SegmentId {
        self.header.identity.first
    }

    /// Which file it is, by its header.
    pub(in crate::storage) fn key(&self) -> Key {
        let identity = &self.header.identity;
        (identity.first, identity.last, identity.generation)
    }
}

/// Which file of a log: its first and its last segment, and its generation.
pub(in crate::storage) type Key = (SegmentId, SegmentId, u32);

/// Which file an entry of a list names.
pub(in crate::storage) fn key_of(entry: &Entry) -> Key {
    (entry.first, entry.last, entry.generation)
}

/// What a directory holds.
pub(in crate::storage) struct Found {
    pub(in crate::storage) log: LogId,
    /// In order of number and generation.
    pub(in crate::storage) segments: Vec<Segment>,
    /// Files with the name of a segment and no header that fits: damage where the log needs them,
    /// strangers where it does not.
    /// By their names.
    pub(in crate::storage) unusable: BTreeMap<String, Damage>,
    /// Names and sizes.
    pub(in crate::storage) spares: Vec<(String, u64)>,
    pub(in crate::storage) strangers: Vec<String>,
    /// Torn tails that earlier starts saved, the latest ones.
    pub(in crate::storage) cuts: Vec<String>,
    /// What an earlier run has left and nobody needs.
    pub(in crate::storage) useless: Vec<String>,
}

impl Found {
    pub(super) fn sort(
        fs: &dyn ReadFs,
        dir: &Path,
        names: Vec<DirEntry>,
    ) -> Result<Found, OpenError> {
        let mut found = Found {
            log: LogId([0; 16]),
            segments: Vec::new(),
            unusable: BTreeMap::new(),
            spares: Vec::new(),
            strangers: Vec::new(),
            cuts: Vec::new(),
            useless: Vec::new(),
        };
        let mut cuts = Vec::new();
        for entry in names {
            match Kind::of(&entry) {
                Kind::Segment if entry.is_file => found.take_segment(fs, dir, entry)?,
                Kind::Segment => found.refuse(Damage {
                    file: entry.name,
                    range: None,
                    what: "this is no regular file, but a link, a directory or a device; put the \
                           segment itself in its place"
                        .to_owned(),
                    jobs: Vec::new(),
                }),
                Kind::Spare if entry.size >= u64::from(SEGMENT_SIZE_MIN) => {
                    found.spares.push((entry.name, entry.size));
                }
                Kind::Spare | Kind::Unfinished => found.useless.push(entry.name),
                Kind::Cut(segment) => cuts.push((segment, entry.name)),
                Kind::Lock => {}
                Kind::Stranger => found.strangers.push(entry.name),
            }
        }
        cuts.sort();
        let surplus = cuts.len().saturating_sub(CUTS_MAX);
        found
            .useless
            .extend(cuts.drain(..surplus).map(|(_, name)| name));
        found.cuts = cuts.into_iter().map(|(_, name)| name).collect();
        found.spares.sort();
        found.strangers.sort();
        found.refuse_two_logs(dir)?;
        Ok(found)
    }

    /// The damage of a file that the log needs and that has no header that fits.
    pub(super) fn take_unusable(&mut self, name: &str) -> Option<Damage> {
        self.unusable.remove(name)
    }

    fn refuse(&mut self, damage: Damage) {
        self.unusable.insert(damage.file.clone(), damage);
    }

    fn take_segment(
        &mut self,
        fs: &dyn ReadFs,
        dir: &Path,
        entry: DirEntry,
    ) -> Result<(), OpenError> {
        let path = dir.join(&entry.name);
        let open = || -> io::Result<(Arc<dyn ReadFile>, Vec<u8>)> {
            let file = fs.open_read(&path)?;
            let mut header = vec![0; segment_header::SIZE.min(entry.size as usize)];
            read_exact_at(&*file, &mut header, 0)?;
            Ok((file, header))
        };
        let (file, header) = open().map_err(|error| OpenError::io("read", &path, &error))?;
        let damage = |what: String| Damage {
            file: entry.name.clone(),
            range: Some((0, segment_header::SIZE as u64)),
            what,
            jobs: Vec::new(),
        };
        match SegmentHeader::decode(&header) {
            Ok(header) if header.identity.file_name() == entry.name => {
                self.segments.push(Segment {
                    name: entry.name,
                    header,
                    size: entry.size,
                    file,
                });
            }
            Ok(header) => self.refuse(damage(format!(
                "its header says that this file was {}",
                header.identity.file_name()
            ))),
            Err(HeaderFault::Version(version)) => {
                return Err(OpenError::Foreign {
                    path,
                    what: format!(
                        "this segment has format version {version}, this program reads version \
                         {}; use the bsd that wrote it, or a newer one",
                        VERSION
                    ),
                });
            }
            Err(HeaderFault::Short) => {
                self.refuse(damage("the file ends inside its header".into()));
            }
            Err(HeaderFault::NotASegment) => {
                self.refuse(damage("it does not begin like a segment".into()));
            }
            Err(HeaderFault::Checksum { stored, computed }) => self.refuse(damage(format!(
                "the header's checksum does not hold (stored {stored:08x}, computed \
                 {computed:08x})"
            ))),
        }
        Ok(())
    }

    /// Which of two logs the directory is for is not for a program to guess.
    fn refuse_two_logs(&mut self, dir: &Path) -> Result<(), OpenError> {
        self.segments
            .sort_by_key(|segment| (segment.first(), segment.header.identity.generation));
        let Some(first) = self.segments.first() else {
            return Ok(());
        };
        self.log = first.header.identity.log;
        let other = self
            .segments
            .iter()
            .find(|other| other.header.identity.log != self.log);
        match other {
            None => Ok(()),
            Some(other) => Err(OpenError::Foreign {
                path: dir.to_owned(),
                what: format!(
                    "{} and {} are of two different logs; move the files of one of them elsewhere",
                    first.name, other.name
                ),
            }),
        }
    }
}

/// What a name stands for.
enum Kind {
    Segment,
    Spare,
    /// The output of a compaction that did not get to its end.
    Unfinished,
    /// What an earlier start cut off a segment.
    Cut(SegmentId),
    /// Or the subdirectory with what was imported: nothing that a start has to do with.
    Lock,
    Stranger,
}

impl Kind {
    fn of(entry: &DirEntry) -> Kind {
        let name = &entry.name[..];
        if name == super::super::lock::LOCK_NAME || is_kept(entry) {
            Kind::Lock
        } else if parse_file_name(name).is_some() {
            Kind::Segment
        } else if !entry.is_file {
            Kind::Stranger
        } else if parse_spare_name(name).is_some() {
            Kind::Spare
        } else if name == COMPACTION_NAME {
            Kind::Unfinished
        } else if let Some(segment) = parse_cut_name(name) {
            Kind::Cut(segment)
        } else {
            Kind::Stranger
        }
    }
}

/// The name under which the tail of a segment is saved.
pub(super) fn cut_name(segment: SegmentId, offset: u32) -> String {
    format!("{CUT_PREFIX}{:010}-{offset:010}", segment.0)
}

/// The name under which a segment behind a torn tail is set aside, the so many-th of its name.
pub(super) fn aside_name(segment_name: &str, times: u16) -> String {
    match times {
        0 | 1 => format!("{CUT_PREFIX}{segment_name}"),
        _ => format!("{CUT_PREFIX}{segment_name}-{times}"),
    }
}

/// The segment and the generation of a name that [`aside_name`] gave, but for how it begins.
fn parse_aside(rest: &str) -> Option<(SegmentId, u32)> {
    let is_count =
        |end: &str| matches!(end.parse::<u16>(), Ok(2..)) && !end.starts_with(['0', '+']);
    let set_aside = match rest.rsplit_once('-') {
        Some((segment_name, times)) if is_count(times) => parse_file_name(segment_name),
        _ => None,
    };
    set_aside.or_else(|| parse_file_name(rest))
}

/// The segment of a name that [`cut_name`] or [`aside_name`] gave.
fn parse_cut_name(name: &str) -> Option<SegmentId> {
    let rest = name.strip_prefix(CUT_PREFIX)?;
    if let Some((segment, _)) = parse_aside(rest) {
        return Some(segment);
    }
    let (segment, offset) = rest.split_once('-')?;
    let segment = SegmentId(segment.parse().ok()?);
    let offset = offset.parse().ok()?;
    (cut_name(segment, offset) == name).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::super::super::format::file_name;
    use super::*;

    #[test]
    fn what_was_cut_off_a_segment_or_set_aside_is_known_by_its_name_and_nothing_else_is() {
        let segment = SegmentId(3);
        assert_eq!(parse_cut_name(&cut_name(segment, 4096)), Some(segment));
        let name = file_name(segment, 0);
        for times in [1, 2, 10, u16::MAX] {
            let aside = aside_name(&name, times);
            assert_eq!(parse_cut_name(&aside), Some(segment), "{aside}");
        }
        for stranger in [
            &name[..],
            "cut-",
            "cut-3-4096",
            "cut-0000000003-4096",
            "cut-spare-1",
            "cut-segment-0000000003-1",
            "cut-segment-0000000003-02",
            "cut-segment-0000000003-65536",
        ] {
            assert_eq!(parse_cut_name(stranger), None, "{stranger}");
        }
    }
}
