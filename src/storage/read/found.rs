//! The content of a data directory, as its names and the headers of its segments tell it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::kept::Kept;
use super::scan::Reader;
use crate::storage::disk::errno::wants_descriptor;
use crate::storage::disk::{DirEntry, ReadFile, ReadFs, read_exact_at};
use crate::storage::error::Damage;
use crate::storage::error::OpenError;
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::names::FIRST_SPARE;
use crate::storage::format::names::{
    CLUSTER_NAME, COMPACTION_NAME, IMPORT_NAME, IMPORTED_PREFIX, INSIDE_WHOLE, LOCK_NAME,
    LOST_AND_FOUND, STANDBY_MARKER, Taken, is_archive_marker, is_unfinished_marker, parse_cut_name,
    parse_file_name, parse_spare_name,
};
use crate::storage::format::{Entry, HeaderFault, LogId, SegmentHeader, newer, segment_header};
use crate::types::SegmentId;

/// Torn tails that are kept at most, each from one crash.
const CUTS_MAX: usize = 16;

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

    /// A reader of its frames.
    pub(super) fn reader(&self) -> Reader {
        let (file, seed) = (self.file.clone(), self.header.identity.seed());
        Reader::new(file, seed, self.size, segment_header::SIZE as u32)
    }

    /// Read each byte of it once from now on, as long as its file is open.
    pub(super) fn keep(&mut self) {
        self.file = Arc::new(Kept::new(self.file.clone()));
    }

    /// Which file it is, as its header says.
    pub(in crate::storage) fn key(&self) -> Key {
        let identity = &self.header.identity;
        (identity.first, identity.last, identity.generation)
    }
}

/// Which file of a log: its first and last segment, and its generation.
pub(in crate::storage) type Key = (SegmentId, SegmentId, u32);

/// The file that an entry of a list names.
pub(in crate::storage) fn key_of(entry: &Entry) -> Key {
    (entry.first, entry.last, entry.generation)
}

/// The content of a directory.
pub(in crate::storage) struct Found {
    pub(in crate::storage) log: LogId,
    /// The latest epoch of the log.
    pub(in crate::storage) epoch: u32,
    /// In order of number and generation.
    pub(in crate::storage) segments: Vec<Segment>,
    /// Files with the name of a segment but without a fitting header, by name: damage if the log
    /// needs them, strangers if not.
    pub(in crate::storage) unusable: BTreeMap<String, Damage>,
    /// Names and sizes.
    pub(in crate::storage) spares: Vec<(String, u64)>,
    pub(in crate::storage) strangers: Vec<String>,
    /// Torn tails that earlier starts saved; the latest ones.
    pub(in crate::storage) cuts: Vec<String>,
    /// Leftovers of an earlier run that nothing needs.
    pub(in crate::storage) useless: Vec<String>,
    /// It is the copy of a standby.
    pub(in crate::storage) is_standby: bool,
    /// The names that no new segment may have.
    pub(in crate::storage) taken: Taken,
    /// A file, no segment, that is only there once there was a log.
    left_of_a_log: Option<String>,
}

/// A segment file that the disk does not return, or that this program does not read.
struct Refused {
    name: String,
    why: Why,
}

enum Why {
    Io(io::Error),
    /// Its format has this version.
    Version(u16),
}

impl Refused {
    fn into_error(self, dir: &Path) -> OpenError {
        let path = dir.join(&self.name);
        match self.why {
            Why::Io(error) => OpenError::io("read", &path, &error),
            Why::Version(_) => OpenError::Foreign {
                path,
                what: self.why.to_string(),
            },
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Why::Io(error) => write!(f, "its header cannot be read: {error}"),
            Why::Version(version) => f.write_str(&newer(*version)),
        }
    }
}

/// Refuse a directory in which some files of a log are still in a subdirectory.
///
/// # Errors
/// [`OpenError::Foreign`].
pub(in crate::storage) fn refuse_interrupted_import(
    dir: &Path,
    names: &[DirEntry],
) -> Result<(), OpenError> {
    match names.iter().any(|entry| entry.name == IMPORT_NAME) {
        true => Err(OpenError::Foreign {
            path: dir.to_owned(),
            what:
                "the import of beanstalkd's log into this directory was interrupted; start again \
                   with --import"
                    .to_owned(),
        }),
        false => Ok(()),
    }
}

impl Found {
    /// List a directory that nothing else changes meanwhile, and read the headers of its segments.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if there are segments of another version, or of two logs;
    /// [`OpenError::Io`].
    pub(in crate::storage) fn read(fs: &dyn ReadFs, dir: &Path) -> Result<Found, OpenError> {
        let (found, refused) = Found::list(fs, dir)?;
        match refused.into_iter().next() {
            Some(refused) => Err(refused.into_error(dir)),
            None => found.of_one_log(dir),
        }
    }

    /// The same for a directory that a server may be using: the server may not need a segment that
    /// cannot be read. `None`: a file that was listed is gone.
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if there are segments of two logs; [`OpenError::Io`] if it cannot be
    /// listed.
    pub(super) fn read_live(fs: &dyn ReadFs, dir: &Path) -> Result<Option<Found>, OpenError> {
        let (mut found, refused) = Found::list(fs, dir)?;
        for Refused { name, why } in refused {
            match why {
                Why::Io(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Why::Io(error) if wants_descriptor(&error) => {
                    return Err(OpenError::io("read", &dir.join(name), &error));
                }
                why => found.refuse(in_header(name, why.to_string())),
            }
        }
        found.of_one_log(dir).map(Some)
    }

    /// The content, and the segments whose content cannot be determined.
    fn list(fs: &dyn ReadFs, dir: &Path) -> Result<(Found, Vec<Refused>), OpenError> {
        let names = fs
            .read_dir(dir)
            .map_err(|error| OpenError::io("list", dir, &error))?;
        refuse_interrupted_import(dir, &names)?;
        if names.iter().any(|entry| entry.name == INSIDE_WHOLE) {
            return Err(OpenError::Foreign {
                path: dir.to_owned(),
                what: format!(
                    "the log is whole, and an interruption has left a part of it in {INSIDE_WHOLE}; \
                     start the server once, which moves that to where it belongs"
                ),
            });
        }
        let mut found = Found {
            log: LogId([0; 16]),
            epoch: 0,
            segments: Vec::new(),
            unusable: BTreeMap::new(),
            spares: Vec::new(),
            strangers: Vec::new(),
            cuts: Vec::new(),
            useless: Vec::new(),
            is_standby: false,
            taken: Taken::among(names.iter().map(|entry| &*entry.name)),
            left_of_a_log: names
                .iter()
                .find(shows_a_log)
                .map(|entry| entry.name.clone()),
        };
        let (mut cuts, mut refused) = (Vec::new(), Vec::new());
        for entry in names {
            match Kind::of(&entry) {
                Kind::Segment if entry.is_file => {
                    let name = entry.name.clone();
                    if let Err(why) = found.take_segment(fs, dir, entry) {
                        refused.push(Refused { name, why });
                    }
                }
                Kind::Segment => found.refuse(Damage::new(
                    entry.name,
                    None,
                    "this is no regular file, but a link, a directory or a device; put the \
                           segment itself in its place",
                )),
                Kind::Spare if entry.size >= u64::from(SEGMENT_SIZE_MIN) => {
                    found.spares.push((entry.name, entry.size));
                }
                Kind::Spare | Kind::Unfinished => found.useless.push(entry.name),
                Kind::Cut(segment) => cuts.push((segment, entry.name)),
                Kind::Standby => found.is_standby = true,
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
        Ok((found, refused))
    }

    /// True if there is no segment, sound or not.
    pub(in crate::storage) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.unusable.is_empty()
    }

    /// The fault, if there is no segment although there was a log once.
    pub(in crate::storage) fn lost(&self) -> Option<String> {
        let left = self.left_of_a_log.as_ref().filter(|_| self.is_empty())?;
        Some(format!(
            "a log was here ({left} is left of it), and all of its segments are missing; look for \
             the files called segment-… and put them back, or restore a backup to another \
             directory; to begin a new log, name an empty directory"
        ))
    }

    fn refuse(&mut self, damage: Damage) {
        self.unusable.insert(damage.file.clone(), damage);
    }

    fn take_segment(&mut self, fs: &dyn ReadFs, dir: &Path, entry: DirEntry) -> Result<(), Why> {
        let DirEntry { name, size, .. } = entry;
        let open = || -> io::Result<(Arc<dyn ReadFile>, Vec<u8>)> {
            let file = fs.open_read(&dir.join(&name))?;
            let mut header = vec![0; segment_header::SIZE.min(size as usize)];
            read_exact_at(&*file, &mut header, 0)?;
            Ok((file, header))
        };
        let (file, header) = open().map_err(Why::Io)?;
        let what = match SegmentHeader::decode(&header) {
            Ok(header) if header.identity.file_name() == name => {
                self.segments.push(Segment {
                    name,
                    header,
                    size,
                    file,
                });
                return Ok(());
            }
            Ok(header) => format!(
                "its header says that this file was {}",
                header.identity.file_name()
            ),
            Err(HeaderFault::Version(version)) => return Err(Why::Version(version)),
            Err(HeaderFault::Short) => "the file ends inside its header".into(),
            Err(HeaderFault::Order { last }) => {
                format!("its header says that it ends with segment {last}, before it begins")
            }
            Err(HeaderFault::NotASegment) => "it does not begin like a segment".into(),
            Err(HeaderFault::Checksum { stored, computed }) => format!(
                "the header's checksum does not hold (stored {stored:08x}, computed \
                 {computed:08x})"
            ),
        };
        self.refuse(in_header(name, what));
        Ok(())
    }

    /// A program must not guess to which of two logs a directory belongs.
    fn of_one_log(mut self, dir: &Path) -> Result<Found, OpenError> {
        self.segments
            .sort_by_key(|segment| (segment.first(), segment.header.identity.generation));
        let Some(first) = self.segments.first() else {
            return Ok(self);
        };
        self.log = first.header.identity.log;
        let epochs = self.segments.iter().map(|segment| segment.header.epoch);
        self.epoch = epochs.max().unwrap_or_default();
        let other = self
            .segments
            .iter()
            .find(|other| other.header.identity.log != self.log);
        match other {
            None => Ok(self),
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

/// True for a file that no start leaves before the first segment of a log is durable.
fn shows_a_log(entry: &&DirEntry) -> bool {
    let name = &entry.name[..];
    let is_later_spare = || parse_spare_name(name).is_some_and(|number| number != FIRST_SPARE);
    entry.is_file && (is_archive_marker(name) || is_later_spare() || parse_cut_name(name).is_some())
}

/// Damage in the header of a segment.
fn in_header(file: String, what: String) -> Damage {
    Damage::new(file, Some((0, segment_header::SIZE as u64)), what)
}

/// The meaning of a name.
enum Kind {
    Segment,
    Spare,
    /// The output of a compaction, or the next marker of a standby, that was not finished.
    Unfinished,
    /// A torn tail that an earlier start cut off this segment.
    Cut(SegmentId),
    /// Says that this is the copy of a standby.
    Standby,
    /// Also what a start has nothing to do with: the subdirectories with imported files, with a ledger,
    /// and of the file system; and the marker of archives.
    Lock,
    Stranger,
}

impl Kind {
    fn of(entry: &DirEntry) -> Kind {
        let name = &entry.name[..];
        let is_imported = !entry.is_file && name.starts_with(IMPORTED_PREFIX);
        let is_other = !entry.is_file && matches!(name, CLUSTER_NAME | LOST_AND_FOUND);
        if name == LOCK_NAME || is_archive_marker(name) || is_imported || is_other {
            Kind::Lock
        } else if parse_file_name(name).is_some() {
            Kind::Segment
        } else if !entry.is_file {
            Kind::Stranger
        } else if parse_spare_name(name).is_some() {
            Kind::Spare
        } else if name == STANDBY_MARKER {
            Kind::Standby
        } else if name == COMPACTION_NAME || is_unfinished_marker(name) {
            Kind::Unfinished
        } else if let Some(segment) = parse_cut_name(name) {
            Kind::Cut(segment)
        } else {
            Kind::Stranger
        }
    }
}
