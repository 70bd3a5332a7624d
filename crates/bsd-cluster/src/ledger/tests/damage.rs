//! Bits that flip, files that are cut, missing, foreign, newer or forged.

use super::format::{
    ALIGN, FRAME_HEADER_SIZE, FramePlace, HEADER_SIZE, Kind, NewBatch, Seed, put_frame,
};
use super::*;

/// Two files, a replaced entry, a commit index alone at the end.
fn sample() -> SimFs {
    let disk = disk();
    let mut ledger = create(&disk);
    for it in &script()[..13] {
        act(&mut ledger, it).unwrap();
    }
    ledger.set_hard_state(state(4, 2, 13));
    ledger.commit().unwrap();
    assert_eq!(ledger.files.len(), 2);
    disk
}

fn open(disk: &SimFs) -> Result<Option<Ledger>, OpenError> {
    Ledger::open_with(&fs(disk), dir(), SMALL)
}

fn bytes(disk: &SimFs) -> Vec<(PathBuf, Vec<u8>)> {
    (1..=2)
        .map(|number| (path(number), disk.read(path(number)).unwrap()))
        .collect()
}

fn ends(disk: &SimFs) -> Vec<u64> {
    reopen(disk).files.iter().map(|file| file.end).collect()
}

/// Nothing but the commit index alone, the last frame, is attested by nothing.
#[test]
fn of_any_bit_that_flips_either_it_is_damage_or_only_the_last_frame_is_gone() {
    let whole = sample();
    let (last, ends) = (picture(&reopen(&whole)), ends(&whole));
    let mut older = last.clone();
    older.2.commit = 12;
    let note = (FRAME_HEADER_SIZE + 48) as u64;
    let mut torn = 0;
    for number in [1, 2] {
        let size = whole.read(path(number)).unwrap().len() as u64;
        let end = ends[number as usize - 1];
        for bit in 0..size.min(end + 40) * 8 {
            let disk = whole.crash_image(Crash::DropUnsynced);
            whole_again(&whole, &disk);
            disk.flip_bit(path(number), bit).unwrap();
            let before = bytes(&disk);
            match open(&disk) {
                Err(OpenError::Damaged { .. }) => {
                    assert!(bit / 8 < end, "bit {bit} of {number} is behind the end");
                    assert_eq!(bytes(&disk), before, "nothing was changed");
                }
                Ok(Some(ledger)) if bit / 8 >= end => assert_eq!(picture(&ledger), last),
                Ok(Some(ledger)) => {
                    assert!(
                        number == 2 && bit / 8 >= end - note,
                        "bit {bit} of {number}, which end at {ends:?}: {:?}",
                        picture(&ledger).2
                    );
                    assert_eq!(picture(&ledger), older);
                    assert!(ledger.is_torn);
                    torn += 1;
                }
                other => panic!("bit {bit} of {number}: {other:?}"),
            }
        }
    }
    assert_eq!(torn, note * 8);
}

/// The frame that was not synced is there too.
fn whole_again(from: &SimFs, to: &SimFs) {
    for (path, bytes) in bytes(from) {
        to.write(path, &bytes).unwrap();
    }
}

#[test]
fn of_a_file_that_is_cut_anywhere_nothing_wrong_is_read() {
    let whole = sample();
    let (last, ends) = (picture(&reopen(&whole)), ends(&whole));
    for number in [1, 2] {
        let size = whole.read(path(number)).unwrap().len() as u64;
        for cut in 0..size {
            let disk = whole.crash_image(Crash::KeepAll);
            disk.truncate(path(number), cut).unwrap();
            let is_whole = cut >= ends[number as usize - 1];
            match open(&disk) {
                Ok(Some(ledger)) => {
                    assert!(is_whole || number == 2, "{number} cut at {cut}");
                    assert!(!is_whole || picture(&ledger) == last);
                    // A beginning: all that is there is as it was, or as it was before.
                    let found = all(&ledger);
                    let written = [entries(6, 3, 2, 20), entries(9, 6, 3, 90)].concat();
                    let is_old = written.starts_with(&found);
                    assert!(is_old || last.3.starts_with(&found), "cut at {cut}");
                }
                Err(OpenError::Damaged { .. }) => assert!(!is_whole, "{number} cut at {cut}"),
                other => panic!("{number} cut at {cut}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_frame_of_zeros_is_damage_if_a_later_one_says_that_it_was_durable() {
    let disk = disk();
    let mut ledger = create(&disk);
    for index in 6..9 {
        ledger.append(&[entry(index, 2, 50)]);
        ledger.commit().unwrap();
    }
    let place = ledger.held.place(7).unwrap();
    let mut bytes = disk.read(path(1)).unwrap();
    let frame = place.at as usize..ledger.held.place(8).unwrap().at as usize;
    bytes[frame].fill(0);
    disk.write(path(1), &bytes).unwrap();
    let error = open(&disk).unwrap_err().to_string();
    assert!(
        error.contains(&format!("ledger-0000000001 at byte {}", place.at)),
        "{error}"
    );
}

/// No tool repairs a ledger: it is not sent to one.
#[test]
fn g10_who_has_a_damaged_ledger_is_told_what_helps_a_member() {
    let disk = disk();
    drop(create(&disk));
    let mut bytes = disk.read(path(1)).unwrap();
    bytes[70] ^= 1;
    disk.write(path(1), &bytes).unwrap();
    let error = open(&disk).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Damaged);
    let said = error.to_string();
    assert!(said.contains(ErrorClass::Diverged.advice()), "{said}");
    assert!(!said.contains("bsd-wal repair"), "{said}");
    assert!(
        said.contains("`bsd-wal ledger recover /data --help`"),
        "{said}"
    );
}

#[test]
fn a_frame_that_was_never_written_is_damage_and_not_a_shorter_ledger() {
    use bsd::storage::disk::sim::{Effect, Fault};
    for after in 1..4 {
        let disk = disk();
        let mut ledger = create(&disk);
        // The first write is of zeros ahead.
        disk.inject(Fault::new(OpKind::Write, Effect::Lose).nth(2));
        for index in 6..6 + after {
            ledger.append(&[entry(index, 2, 50)]);
            ledger.commit().unwrap();
        }
        // With nothing after it, nothing says that there was something.
        assert_eq!(open(&disk).is_err(), after > 1);
    }
}

#[test]
fn a_missing_file_is_damage_unless_it_is_the_oldest_one() {
    let disk = disk();
    let mut ledger = create(&disk);
    for index in 6..40 {
        ledger.append(&[entry(index, 2, 250)]);
        ledger.set_hard_state(state(2, 0, index));
        ledger.commit().unwrap();
    }
    assert!(ledger.files.len() > 4);
    let image = disk.crash_image(Crash::KeepAll);
    image.remove(path(2)).unwrap();
    let error = open(&image).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }));
    assert!(
        error
            .to_string()
            .contains("ledger-0000000002: the file is missing"),
        "{error}"
    );
    let image = disk.crash_image(Crash::KeepAll);
    image.remove(path(1)).unwrap();
    // As after a discard; the base is for the caller to compare.
    assert!(reopen(&image).base().index > 5);
}

#[test]
fn files_of_another_node_or_cluster_or_number_are_refused() {
    let other = |identity| {
        let disk = disk();
        let made = Ledger::create_with(&fs(&disk), dir(), identity, base(5, 2), SMALL);
        let mut ledger = made.unwrap();
        act(&mut ledger, &script()[0]).unwrap();
        ledger.commit().unwrap();
        disk.read(path(1)).unwrap()
    };
    let node = Identity {
        node: NodeId(12),
        ..IDENTITY
    };
    let cluster = Identity {
        cluster: ClusterId([8; 16]),
        ..IDENTITY
    };
    for identity in [node, cluster] {
        let disk = sample();
        disk.write(path(1), &other(identity)).unwrap();
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
        assert!(
            error.to_string().contains("files of two ledgers are mixed"),
            "{error}"
        );
    }
    // The header of one and the frames of the other.
    let disk = sample();
    let mut mixed = disk.read(path(1)).unwrap();
    mixed.truncate(HEADER_SIZE);
    mixed.extend_from_slice(&other(node)[HEADER_SIZE..]);
    disk.write(path(1), &mixed).unwrap();
    assert!(matches!(open(&disk), Err(OpenError::Damaged { .. })));
    let disk = sample();
    let second = disk.read(path(2)).unwrap();
    disk.write(path(3), &second).unwrap();
    let error = open(&disk).unwrap_err().to_string();
    assert!(error.contains("it has the header of file 2"), "{error}");
}

fn with_crc(mut header: Vec<u8>) -> Vec<u8> {
    let crc = crc32fast::hash(&header[..60]);
    header[60..64].copy_from_slice(&crc.to_le_bytes());
    header
}

#[test]
fn a_newer_version_is_refused_by_its_number() {
    let disk = sample();
    let mut bytes = disk.read(path(2)).unwrap();
    bytes[8] = 2;
    disk.write(path(2), &with_crc(bytes)).unwrap();
    let error = open(&disk).unwrap_err();
    assert!(matches!(error, OpenError::Foreign { .. }));
    let text = "it has ledger format version 2, this program reads version 1";
    assert!(error.to_string().contains(text), "{error}");

    // A frame that a newer version has written behind what this one knows.
    let disk = disk_with_frame(|place, bytes| {
        put_frame(bytes, Kind::Batch, place, |_| ());
        bytes[29] = 9;
        let crc = crc_of(place, &bytes[8..32]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    });
    let error = open(&disk).unwrap_err();
    assert!(error.to_string().contains("version 9"), "{error}");
}

fn crc_of(place: FramePlace, bytes: &[u8]) -> u32 {
    let mut hasher = place.seed.hasher(place.at);
    hasher.update(bytes);
    hasher.finalize()
}

/// A ledger of three entries, and behind it what `forge` makes.
fn disk_with_frame(forge: impl FnOnce(FramePlace, &mut Vec<u8>)) -> SimFs {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 3, 2, 10));
    ledger.set_hard_state(state(2, 1, 7));
    ledger.commit().unwrap();
    let file = ledger.active();
    let place = FramePlace {
        seed: file.seed,
        at: file.end,
        durable: ledger.durable,
        previous: file.crc,
    };
    let mut frame = Vec::new();
    forge(place, &mut frame);
    let mut bytes = disk.read(path(1)).unwrap();
    bytes.truncate(place.at as usize);
    bytes.extend_from_slice(&frame);
    disk.write(path(1), &bytes).unwrap();
    disk
}

/// Sound checksums do not make sense of what makes none.
#[test]
fn frames_that_cannot_follow_are_refused() {
    type Case = (&'static str, HardState, u64, Vec<Entry>);
    let cases: [Case; 8] = [
        ("missing", state(2, 1, 7), 2, entries(10, 1, 2, 1)),
        ("committed", state(2, 1, 7), 2, entries(7, 1, 2, 1)),
        ("another term", state(2, 1, 7), 1, entries(9, 1, 2, 1)),
        ("go back", state(1, 1, 7), 2, entries(9, 1, 2, 1)),
        ("go back", state(2, 2, 7), 2, entries(9, 1, 2, 1)),
        ("go back", state(2, 1, 6), 2, entries(9, 1, 2, 1)),
        ("committed", state(3, 0, 7), 2, entries(5, 1, 2, 1)),
        ("missing", state(3, 0, 11), 2, entries(9, 1, 2, 1)),
    ];
    for (what, state, previous_term, entries) in cases {
        let disk = disk_with_frame(|place, bytes| {
            let entries: Vec<_> = entries.iter().collect();
            let batch = NewBatch {
                state,
                previous_term,
                members: Vec::new(),
                entries: &entries,
            };
            put_frame(bytes, Kind::Batch, place, |bytes| batch.encode(bytes));
        });
        let error = open(&disk).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { .. }));
        assert!(error.to_string().contains(what), "{what}: {error}");
    }
}

/// A length in a sound header or payload takes no memory, and no time to speak of.
#[test]
fn forged_lengths_and_counts_are_refused() {
    for at in [24, 28, 32, 40, 44, 48, 52] {
        for value in [u32::MAX, 1 << 31, 1000] {
            let disk = disk_with_frame(|place, bytes| {
                put_frame(bytes, Kind::Batch, place, |bytes| {
                    let entries = entries(9, 2, 2, 30);
                    let batch = NewBatch {
                        state: state(2, 1, 8),
                        previous_term: 2,
                        members: Vec::new(),
                        entries: &[&entries[0], &entries[1]],
                    };
                    batch.encode(bytes);
                    bytes[FRAME_HEADER_SIZE + at..][..4].copy_from_slice(&value.to_le_bytes());
                });
            });
            assert!(
                matches!(open(&disk), Err(OpenError::Damaged { .. })),
                "{at}, {value}"
            );
        }
    }
    // The size in a frame's header, with a checksum that holds.
    for value in [u32::MAX, 1 << 31, 1 << 12] {
        let disk = disk_with_frame(|place, bytes| {
            put_frame(bytes, Kind::Batch, place, |bytes| bytes.extend([7; 100]));
            bytes[8..12].copy_from_slice(&u32::to_le_bytes(value));
            let crc = crc_of(place, &bytes[8..32]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        });
        assert!(
            reopen(&disk).is_torn,
            "longer than the file: not written as a whole"
        );
    }
}

/// A header says that four gigabytes follow, and the file is that long.
#[test]
fn a_long_file_with_a_forged_length_is_not_held_in_memory() {
    let disk = disk_with_frame(|place, bytes| {
        put_frame(bytes, Kind::Batch, place, |bytes| bytes.extend([7; 100]));
        let size = 64 << 20;
        bytes[8..12].copy_from_slice(&u32::to_le_bytes(size));
        let crc = crc_of(place, &bytes[8..32]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(size as usize + FRAME_HEADER_SIZE + ALIGN, 0);
    });
    let file = disk
        .open(&path(1), bsd::storage::disk::OpenMode::ReadWrite)
        .unwrap();
    let size = disk.read(path(1)).unwrap().len() as u64;
    let seed = Seed::new(IDENTITY, 1);
    let mut reader = read::Reader::new(file, seed, size, HEADER_SIZE as u64);
    let mut most = 0;
    while let read::Step::Frame(..) = reader.step().unwrap() {
        most = most.max(reader.held());
    }
    assert!(
        reader.held().max(most) <= 2 << 20,
        "{} bytes",
        reader.held()
    );
    assert!(reopen(&disk).is_torn);
}

#[test]
fn any_bytes_in_place_of_a_file_are_refused_without_a_panic() {
    use bsd::random::Random;
    for seed in 0..2000 {
        let mut random = Random::new(seed);
        let disk = sample();
        let number = 1 + random.below(2_u64);
        let mut bytes = disk.read(path(number)).unwrap();
        for _ in 0..1 + random.below(4_u64) {
            let from = random.below(bytes.len());
            let to = (from + random.below(200_usize)).min(bytes.len());
            let noise = random.bytes(to - from);
            match random.below(3_u64) {
                0 => bytes[from..to].copy_from_slice(&noise),
                1 => bytes[from..to].fill(0),
                _ => drop(bytes.drain(from..to)),
            }
        }
        disk.write(path(number), &bytes).unwrap();
        if let Ok(Some(ledger)) = open(&disk) {
            all(&ledger);
        }
    }
}

/// The bytes behind the end may be a part of anything: with more after them, they could come to
/// life.
#[test]
fn a_torn_tail_is_never_appended_to() {
    let disk = disk_with_frame(|_, bytes| bytes.extend([7; 500]));
    let before = disk.read(path(1)).unwrap();
    let mut ledger = reopen(&disk);
    assert!(ledger.is_torn);
    ledger.set_hard_state(state(2, 1, 8));
    ledger.commit().unwrap();
    let is_as_before = || disk.read(path(1)).unwrap() == before;
    assert!(is_as_before(), "a commit index is behind the tail");
    ledger.append(&entries(9, 2, 2, 10));
    ledger.commit().unwrap();
    assert!(is_as_before(), "entries are behind the tail");
    assert_eq!(ledger.files.len(), 2);
    assert_eq!(picture(&reopen(&disk)), picture(&ledger));
}

#[test]
fn a_sound_frame_that_does_not_follow_the_one_before_it_is_not_accepted() {
    for wrong in [0, 1] {
        let disk = disk_with_frame(|mut place, bytes| {
            place.previous ^= wrong;
            let entries = entries(9, 1, 2, 1);
            let batch = NewBatch {
                state: state(2, 1, 8),
                previous_term: 2,
                members: Vec::new(),
                entries: &[&entries[0]],
            };
            put_frame(bytes, Kind::Batch, place, |bytes| batch.encode(bytes));
        });
        let last = if wrong == 0 { 9 } else { 8 };
        assert_eq!(reopen(&disk).last_index(), last);
    }
}
