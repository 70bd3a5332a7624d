//! The list of files of a backup: a small text file, written last.
//!
//! ```text
//! bsd-backup 1
//! log 00112233445566778899aabbccddeeff
//! taken 1800000000000000000
//! end 12 4096
//! file segment-0000000011.00000 65536 5d1e8f00
//! file segment-0000000012.00000 4096 9a3b1c2d
//! crc 0badcafe
//! ```
//!
//! The files are in the order of history, each with its size and CRC-32; the last line has the
//! CRC-32 of all lines before it. A CRC-32 is enough here: it detects what a disk or a copy has
//! done to a file, not a deliberate change, and it is not alone. Every record and frame in the file
//! has a checksum of its own with another start value, and restoring checks those as well.

use std::fmt::{self, Write};

use crate::storage::format::{LogId, parse_file_name};
use crate::types::{Position, SegmentId};

const FIRST_LINE: &str = "bsd-backup 1";

/// The list of files of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The id of the log.
    pub log: LogId,
    /// When it was taken: wall time, ns since 1970.
    pub taken_wall_ns: u64,
    /// Where the log ended.
    pub end: Position,
    /// The files in the order of history.
    pub files: Vec<BackupFile>,
}

/// Why a list of files cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ManifestError {
    NotText,
    Unknown,
    Changed,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ManifestError::NotText => "it is not text",
            ManifestError::Unknown => "it does not read like one of version 1",
            ManifestError::Changed => "its checksum does not hold",
        })
    }
}

/// A file of a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupFile {
    /// Its name in the log.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// The CRC-32 of all of them.
    pub crc: u32,
}

impl BackupFile {
    /// Its name in the backup. The same segment with other content has another name, so the next
    /// backup never overwrites what one backup needs. It is never the name of a segment, so no
    /// server uses a backup as its log.
    pub(super) fn stored_name(&self) -> String {
        format!("{}-{:010}-{:08x}", self.name, self.size, self.crc)
    }

    /// The inverse of [`BackupFile::stored_name`]; `None` for any other name.
    pub(super) fn from_stored_name(stored: &str) -> Option<BackupFile> {
        let (rest, crc) = stored.rsplit_once('-')?;
        let (name, size) = rest.rsplit_once('-')?;
        let file = BackupFile::parse(name, size, crc)?;
        (file.stored_name() == stored).then_some(file)
    }

    fn parse(name: &str, size: &str, crc: &str) -> Option<BackupFile> {
        parse_file_name(name)?;
        Some(BackupFile {
            name: name.to_owned(),
            size: size.parse().ok()?,
            crc: u32::from_str_radix(crc, 16).ok()?,
        })
    }
}

impl Manifest {
    /// Bytes of all files.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    pub(super) fn encode(&self) -> String {
        let log = u128::from_be_bytes(self.log.0);
        let (taken, segment, offset) =
            (self.taken_wall_ns, self.end.segment().0, self.end.offset());
        let mut text =
            format!("{FIRST_LINE}\nlog {log:032x}\ntaken {taken}\nend {segment} {offset}\n");
        for BackupFile { name, size, crc } in &self.files {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "file {name} {size} {crc:08x}");
        }
        let crc = crc32fast::hash(text.as_bytes());
        let _ = writeln!(text, "crc {crc:08x}");
        text
    }

    /// The inverse of [`Manifest::encode`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let text = std::str::from_utf8(bytes).map_err(|_| ManifestError::NotText)?;
        let manifest = Manifest::parse(text).ok_or(ManifestError::Unknown)?;
        // Anything else than exactly what would have been written was changed.
        match manifest.encode() == text {
            true => Ok(manifest),
            false => Err(ManifestError::Changed),
        }
    }

    fn parse(text: &str) -> Option<Manifest> {
        let mut lines = text.strip_suffix('\n')?.lines();
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let _version = field("bsd-backup")?;
        let log = u128::from_str_radix(field("log")?, 16).ok()?;
        let taken_wall_ns = field("taken")?.parse().ok()?;
        let (segment, offset) = field("end")?.split_once(' ')?;
        let end = Position::new(SegmentId(segment.parse().ok()?), offset.parse().ok()?);
        let files = lines
            .map_while(|line| line.strip_prefix("file "))
            .map(|line| {
                let mut words = line.split(' ');
                BackupFile::parse(words.next()?, words.next()?, words.next()?)
            });
        Some(Manifest {
            log: LogId(log.to_be_bytes()),
            taken_wall_ns,
            end,
            files: files.collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let file = |name: &str, size, crc| BackupFile {
            name: name.to_owned(),
            size,
            crc,
        };
        Manifest {
            log: LogId([7; 16]),
            taken_wall_ns: 1_800_000_000_000_000_000,
            end: Position::new(SegmentId(12), 4096),
            files: vec![
                file("segment-0000000003.00002", 65_536, 0x5d1e_8f00),
                file("segment-0000000012.00000", 4096, 0x1c2d),
            ],
        }
    }

    #[test]
    fn what_was_written_is_read_back_and_every_changed_bit_is_noticed() {
        let text = manifest().encode();
        assert_eq!(Manifest::decode(text.as_bytes()), Ok(manifest()));
        for bit in 0..text.len() * 8 {
            let mut bytes = text.clone().into_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&bytes).is_err(), "bit {bit}");
        }
        for cut in 0..text.len() {
            assert!(Manifest::decode(&text.as_bytes()[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_stored_name_says_which_content_it_is_and_is_no_segments_name() {
        for file in manifest().files {
            let stored = file.stored_name();
            assert_eq!(parse_file_name(&stored), None);
            assert_eq!(BackupFile::from_stored_name(&stored), Some(file));
        }
        for other in ["manifest", "segment-0000000012.00000", "a-1-2", "lock"] {
            assert_eq!(BackupFile::from_stored_name(other), None);
        }
    }
}
