//! Every file name in a data directory, and the way back from a name to its meaning.
//!
//! Nothing else in storage builds or parses such names, except for files of other formats: those of
//! a backup in `backup`, and beanstalkd's in `beanstalkd`.

use crate::storage::disk::DirEntry;
pub(in crate::storage) use crate::storage::disk::LOCK_NAME;
use std::collections::BTreeSet;

use crate::types::SegmentId;

/// Compaction writes into a file of this name until the copy is complete.
pub(in crate::storage) const COMPACTION_NAME: &str = "compaction";
/// The list of files of a backup: a directory that contains it is a backup.
pub(in crate::storage) const BACKUP_MANIFEST: &str = "backup.manifest";
/// While a directory of this name exists, an import of beanstalkd's log is unfinished.
pub(in crate::storage) const IMPORT_NAME: &str = "beanstalkd-import";
/// While a file of this name exists, the log is the copy of a standby, which no one has changed but
/// with what came from elsewhere.
pub const STANDBY_MARKER: &str = "standby";
/// A file of this name says which archives the log has been put into …
pub const ARCHIVE_MARKER: &str = "archived";
/// … and one of this name says that of a second archive, which is written at the same time.
pub const SECOND_ARCHIVE_MARKER: &str = "archived-2";
/// Suffix of the name of the next marker file, before it replaces the present one.
const NEW_WORD: &str = "-new";
/// A directory of this name has the ledger of a member of a cluster.
pub const CLUSTER_NAME: &str = "cluster";
/// Prefix of the names of the files in it.
pub const LEDGER_PREFIX: &str = "ledger-";
/// The prefix of the names of directories with imported files of beanstalkd.
pub(in crate::storage) const IMPORTED_PREFIX: &str = "beanstalkd-binlogs";
/// The prefix of the names of torn tails and segments that a start saved.
const CUT_PREFIX: &str = "cut-";
/// Numbers of spares stay below this; then they begin again.
pub(in crate::storage) const SPARE_NUMBER_END: u32 = 1_000_000_000;
/// The number of the spare that becomes the first segment of a new log. No other spare has it: one
/// with another number shows that there was a log.
pub(crate) const FIRST_SPARE: u32 = 0;

/// The name of the file of a segment and generation.
#[must_use]
pub fn file_name(first: SegmentId, generation: u32) -> String {
    format!("segment-{:010}.{:05}", first.0, generation)
}

/// The inverse of [`file_name`]; `None` for any other name.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<(SegmentId, u32)> {
    let (first, generation) = name.strip_prefix("segment-")?.split_once('.')?;
    let parsed = (SegmentId(first.parse().ok()?), generation.parse().ok()?);
    (file_name(parsed.0, parsed.1) == name).then_some(parsed)
}

/// The directory that a file system makes for itself at its root.
pub(in crate::storage) const LOST_AND_FOUND: &str = "lost+found";

/// Where a new log grows in a directory that cannot be replaced, and its name when it is whole. From
/// there its files are moved to where they belong; a start goes on with that.
pub(in crate::storage) const INSIDE: &str = "bsd.incomplete";
/// Name inside a directory whose content is complete.
pub const INSIDE_WHOLE: &str = "bsd.complete";

/// True for what a directory may hold that is empty otherwise: what its file system has made, and what
/// an interrupted call has left, a lock among it.
pub fn is_as_empty(entry: &DirEntry) -> bool {
    match entry.is_file {
        true => entry.name == LOCK_NAME,
        false => matches!(&*entry.name, LOST_AND_FOUND | INSIDE),
    }
}

/// True if a file of this name belongs to a log: a segment, or what a start removes or keeps aside.
/// The lock does not.
#[must_use]
pub fn is_log_file(name: &str) -> bool {
    name == STANDBY_MARKER
        || name == COMPACTION_NAME
        || is_unfinished_marker(name)
        || name.starts_with(CUT_PREFIX)
        || parse_file_name(name).is_some()
        || parse_spare_name(name).is_some()
}

/// True if a log that is being built may have a file of this name.
pub(in crate::storage) fn is_of_a_log(name: &str) -> bool {
    let has_own_name = [LOCK_NAME, STANDBY_MARKER].contains(&name);
    has_own_name
        || is_archive_marker(name)
        || is_unfinished_marker(name)
        || parse_file_name(name).is_some()
        || parse_spare_name(name).is_some()
}

/// The name of the next marker file, before it replaces the one in the file `name`.
pub(in crate::storage) fn unfinished_marker(name: &str) -> String {
    format!("{name}{NEW_WORD}")
}

/// True if a marker file that was not finished has this name.
pub(in crate::storage) fn is_unfinished_marker(name: &str) -> bool {
    let of = name.strip_suffix(NEW_WORD);
    of.is_some_and(|of| of == STANDBY_MARKER || is_archive_marker(of))
}

/// True for the names of files that say which archives the log has been put into.
pub(in crate::storage) fn is_archive_marker(name: &str) -> bool {
    [ARCHIVE_MARKER, SECOND_ARCHIVE_MARKER].contains(&name)
}

/// The number in a spare file's name.
pub(in crate::storage) fn parse_spare_name(name: &str) -> Option<u32> {
    let number = name.strip_prefix("spare-")?.parse().ok()?;
    (number < SPARE_NUMBER_END && spare_name(number) == name).then_some(number)
}

/// The name of a spare file.
pub(in crate::storage) fn spare_name(number: u32) -> String {
    format!("spare-{number}")
}

/// The name under which the tail of a segment is saved.
pub(in crate::storage) fn cut_name(segment: SegmentId, offset: u32) -> String {
    format!("{CUT_PREFIX}{:010}-{offset:010}", segment.0)
}

/// The name under which a segment after a torn tail is set aside; `times` counts those with this
/// name.
pub(in crate::storage) fn aside_name(segment_name: &str, times: u16) -> String {
    match times {
        0 | 1 => format!("{CUT_PREFIX}{segment_name}"),
        _ => format!("{CUT_PREFIX}{segment_name}-{times}"),
    }
}

/// The segment and generation in a name made by [`aside_name`], given without its prefix.
fn parse_aside(rest: &str) -> Option<(SegmentId, u32)> {
    let is_count =
        |end: &str| matches!(end.parse::<u16>(), Ok(2..)) && !end.starts_with(['0', '+']);
    let set_aside = match rest.rsplit_once('-') {
        Some((segment_name, times)) if is_count(times) => parse_file_name(segment_name),
        _ => None,
    };
    set_aside.or_else(|| parse_file_name(rest))
}

/// The segment in a name made by [`cut_name`] or [`aside_name`].
pub(in crate::storage) fn parse_cut_name(name: &str) -> Option<SegmentId> {
    let rest = name.strip_prefix(CUT_PREFIX)?;
    if let Some((segment, _)) = parse_aside(rest) {
        return Some(segment);
    }
    let (segment, offset) = rest.split_once('-')?;
    let segment = SegmentId(segment.parse().ok()?);
    let offset = offset.parse().ok()?;
    (cut_name(segment, offset) == name).then_some(segment)
}

/// The names of segments in a directory: the log's own, those of strangers, and those set aside. No
/// new file gets one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taken(BTreeSet<(SegmentId, u32)>);

impl Taken {
    /// The names of segments among the names of a directory.
    pub(in crate::storage) fn among<'a>(names: impl Iterator<Item = &'a str>) -> Taken {
        let own = |name: &'a str| match name.strip_prefix(CUT_PREFIX) {
            Some(rest) => parse_aside(rest),
            None => parse_file_name(name),
        };
        Taken(names.filter_map(own).collect())
    }

    /// Note that a file that is not the log's has the name of this segment and generation.
    pub(in crate::storage) fn add(&mut self, segment: SegmentId, generation: u32) {
        self.0.insert((segment, generation));
    }

    /// The first number after `last` that no file has.
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

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_name_says_segment_and_generation_and_has_one_form() {
        assert_eq!(file_name(SegmentId(3), 0), "segment-0000000003.00000");
        for (first, generation) in [(0, 0), (1, 99_999), (u32::MAX, u32::MAX)] {
            let name = file_name(SegmentId(first), generation);
            assert_eq!(parse_file_name(&name), Some((SegmentId(first), generation)));
        }
        for name in [
            "segment-3.0",
            "segment-0000000003",
            "segment-0000000003.00000.bak",
            "segment-000000000x.00000",
            "segment-+000000003.00000",
            "segment-4294967296.00000",
            "Segment-0000000003.00000",
            "spare-0000000003.00000",
            "",
        ] {
            assert_eq!(parse_file_name(name), None, "{name}");
        }
    }
}
