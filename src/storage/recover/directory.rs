//! What a data directory holds, by its names and the headers of its segments.

use std::io;
use std::sync::Arc;

use super::super::backup;
use super::super::beanstalkd::{UNDER_WAY, is_kept};
use super::super::error::OpenError;
use super::super::format::{
    Entry, HeaderFault, LogId, SegmentHeader, VERSION, parse_file_name, segment_header,
};
use super::super::fs::{DirEntry, File, Fs, OpenMode, read_exact_at};
use super::super::log::LogOptions;
use super::super::scan::Damage;
use super::super::space::{SEGMENT_SIZE_MIN, parse_spare_name};
use super::COMPACTION_NAME;
use crate::types::SegmentId;

/// So many torn tails are kept; each is what one crash interrupted.
const CUTS_MAX: usize = 16;

/// A directory of beanstalkd's with no log of ours in it, or a backup, is not ours to touch.
pub(super) fn refuse_foreign(
    fs: &dyn Fs,
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

/// A segment file as found in the directory.
pub(in crate::storage) struct Segment {
    pub(in crate::storage) name: String,
    pub(in crate::storage) header: SegmentHeader,
    pub(in crate::storage) size: u64,
    pub(in crate::storage) file: Arc<dyn File>,
}

impl Segment {
    pub(super) fn first(&self) -> SegmentId {
        self.header.identity.first
    }

    pub(in crate::storage) fn is(&self, entry: &Entry) -> bool {
        let identity = &self.header.identity;
        identity.first == entry.first
            && identity.last == entry.last
            && identity.generation == entry.generation
    }
}

/// What a directory holds.
pub(in crate::storage) struct Found {
    pub(in crate::storage) log: LogId,
    /// In order of number and generation.
    pub(in crate::storage) segments: Vec<Segment>,
    /// Files with the name of a segment and no header that fits: damage where the log needs them,
    /// strangers where it does not.
    pub(in crate::storage) unusable: Vec<Damage>,
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
        fs: &dyn Fs,
        options: &LogOptions,
        names: Vec<DirEntry>,
    ) -> Result<Found, OpenError> {
        let mut found = Found {
            log: LogId([0; 16]),
            segments: Vec::new(),
            unusable: Vec::new(),
            spares: Vec::new(),
            strangers: Vec::new(),
            cuts: Vec::new(),
            useless: Vec::new(),
        };
        let mut cuts = Vec::new();
        for entry in names {
            match Kind::of(&entry) {
                Kind::Segment => found.take_segment(fs, options, entry)?,
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
        found.refuse_two_logs(options)?;
        Ok(found)
    }

    /// The damage of a file that the log needs and that has no header that fits.
    pub(super) fn take_unusable(&mut self, name: &str) -> Option<Damage> {
        let index = self
            .unusable
            .iter()
            .position(|damage| damage.file == name)?;
        Some(self.unusable.remove(index))
    }

    fn take_segment(
        &mut self,
        fs: &dyn Fs,
        options: &LogOptions,
        entry: DirEntry,
    ) -> Result<(), OpenError> {
        let path = options.dir.join(&entry.name);
        let open = || -> io::Result<(Arc<dyn File>, Vec<u8>)> {
            let file = fs.open(&path, OpenMode::ReadWrite)?;
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
            Ok(header) => self.unusable.push(damage(format!(
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
                self.unusable
                    .push(damage("the file ends inside its header".into()));
            }
            Err(HeaderFault::NotASegment) => {
                self.unusable
                    .push(damage("it does not begin like a segment".into()));
            }
            Err(HeaderFault::Checksum { stored, computed }) => self.unusable.push(damage(format!(
                "the header's checksum does not hold (stored {stored:08x}, computed \
                 {computed:08x})"
            ))),
        }
        Ok(())
    }

    /// Which of two logs the directory is for is not for a program to guess.
    fn refuse_two_logs(&mut self, options: &LogOptions) -> Result<(), OpenError> {
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
                path: options.dir.clone(),
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
        } else if !entry.is_file {
            Kind::Stranger
        } else if parse_file_name(name).is_some() {
            Kind::Segment
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
    format!("cut-{:010}-{offset:010}", segment.0)
}

/// The name under which a segment behind a torn tail is set aside, the so many-th of its name.
pub(super) fn aside_name(segment_name: &str, times: u16) -> String {
    match times {
        0 | 1 => format!("cut-{segment_name}"),
        _ => format!("cut-{segment_name}-{times}"),
    }
}

/// The segment of a name that [`cut_name`] or [`aside_name`] gave.
fn parse_cut_name(name: &str) -> Option<SegmentId> {
    let rest = name.strip_prefix("cut-")?;
    let is_count =
        |end: &str| matches!(end.parse::<u16>(), Ok(2..)) && !end.starts_with(['0', '+']);
    let set_aside = match rest.rsplit_once('-') {
        Some((segment_name, times)) if is_count(times) => parse_file_name(segment_name),
        _ => None,
    };
    if let Some((segment, _)) = set_aside.or_else(|| parse_file_name(rest)) {
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
