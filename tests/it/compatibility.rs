//! How this version handles the directory of a later one: an invented format version 3, in the
//! header of a segment and in a frame. `golden` tests its own directories.

use std::fs;
use std::path::Path;

use bsd::storage::format::{
    FrameHeader, FrameKind, SegmentHeader, frame_header, frame_trailer, segment_header,
};
use tempfile::TempDir;

use crate::ROOT;
use crate::harness::{Launch, wal};

const CANNOT_START: Option<i32> = Some(1);
const CANNOT: Option<i32> = Some(2);
const SEGMENT: &str = "segment-0000000001.00000";

/// The log of a golden directory.
fn golden() -> Vec<u8> {
    let path = Path::new(ROOT)
        .join("tests/golden/v1/clean-stop")
        .join(SEGMENT);
    fs::read(path).expect("a golden directory")
}

fn set_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// As a later version begins a segment.
fn header_of_version_3() -> Vec<u8> {
    let mut bytes = golden();
    bytes[segment_header::VERSION] = 3;
    let crc = crc32fast::hash(&bytes[..segment_header::CRC]);
    set_u32(&mut bytes, segment_header::CRC, crc);
    bytes
}

/// A later version has continued in a segment of this one: a frame of an unknown kind.
fn frame_of_version_3() -> Vec<u8> {
    let mut bytes = golden();
    let header = SegmentHeader::decode(&bytes).expect("a segment");
    let seed = header.identity.seed();
    let (mut at, mut previous) = (segment_header::SIZE, 0);
    while let Some(frame) = FrameHeader::decode(&bytes[at..], seed, at as u32) {
        let end = at + frame_header::SIZE + frame.body_size as usize;
        let checksum = &bytes[end + frame_trailer::CHECKSUM..end + frame_trailer::SIZE];
        previous = u32::from_le_bytes(checksum.try_into().expect("four bytes"));
        at += frame.frame_size() as usize;
    }
    // A frame without records, made to need version 3; the seed as storage-format.md says.
    let mut frame = vec![0; frame_header::SIZE];
    frame[..frame_header::CRC].copy_from_slice(b"bFRM");
    set_u32(&mut frame, frame_header::PREVIOUS, previous);
    frame[frame_header::KIND] = 9;
    frame[frame_header::VERSION] = 3;
    let start = crc32fast::hash(
        &[
            &header.identity.log.0[..],
            &header.identity.first.0.to_le_bytes(),
            &header.identity.generation.to_le_bytes(),
        ]
        .concat(),
    ) ^ at as u32;
    let mut crc = crc32fast::Hasher::new_with_initial(start);
    crc.update(&frame[frame_header::BODY_SIZE..]);
    set_u32(&mut frame, frame_header::CRC, crc.finalize());
    bytes[at..at + frame.len()].copy_from_slice(&frame);
    let found = FrameHeader::decode(&bytes[at..], seed, at as u32).expect("a sound header");
    assert_eq!((found.kind, found.version), (FrameKind::Newer, 3));
    bytes
}

#[test]
fn a_directory_of_a_later_version_is_refused_by_name_and_left_as_it_is() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    for (what, bytes) in [
        ("a header", header_of_version_3()),
        ("a frame", frame_of_version_3()),
    ] {
        let temp = TempDir::new().expect("a directory");
        let (dir, new) = (temp.path().join("data"), temp.path().join("new"));
        fs::create_dir(&dir).expect("a directory");
        fs::write(dir.join(SEGMENT), &bytes).expect("a file");
        let assert_told = |command: &str, said: &str| {
            for words in [SEGMENT, "format version 3", "or a newer one"] {
                assert!(said.contains(words), "{what}, {command}: {said}");
            }
        };
        let exit = launch.clone().dir(&dir).run_to_exit();
        assert_eq!(exit.code, CANNOT_START, "{what}: {}", exit.stderr);
        assert_told("bsd-server", &exit.stderr);
        let (dir_text, new_text) = (dir.to_str().expect("text"), new.to_str().expect("text"));
        for command in [
            &["info"][..],
            &["verify"],
            &["verify", "--live"],
            &["dump"],
            &["history", "1"],
            &["compact"],
            &["repair", "--output", new_text],
            &["backup", "--output", new_text],
            &["export", "--output", new_text],
        ] {
            let (name, rest) = command.split_first().expect("a command");
            let line = [&[*name, dir_text], rest].concat();
            let (code, said) = wal(&line);
            assert_eq!(code, CANNOT, "{what}, {line:?}: {said}");
            assert_told(name, &said);
        }
        assert_eq!(fs::read(dir.join(SEGMENT)).expect("a file"), bytes);
        let names: Vec<String> = fs::read_dir(&dir)
            .expect("a directory")
            .map(|entry| {
                entry
                    .expect("a name")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .filter(|name| name != "lock")
            .collect();
        assert_eq!(names, [SEGMENT], "{what}");
    }
}
