//! Bits that rot, and files that are missing, swapped, cut, foreign, or back from the dead.
//!
//! Damage to acknowledged data stops the start, with the file, the place and the job; and nothing
//! on the disk is changed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use bsd::engine::Engine;
use bsd::random::Random;
use bsd::storage::Damage;
use bsd::storage::disk::ReadFs;
use bsd::storage::disk::sim::{Crash, OpKind};
use bsd::storage::format::{
    FrameBuilder, FrameKind, Identity, LogId, Record, SegmentHeader, file_name, parse_file_name,
    segment_header,
};
use bsd::storage::read::scan::{self, Reader};
use bsd::storage::{OpenError, SimFs, SyncPolicy};
use bsd::types::{JobId, Position, SegmentId};

use super::driver::{DIR, Driver, Step, after_restart, options, path};

const TURN: Step = Step::Turn { ms: 0 };

fn put(size: usize) -> Step {
    Step::put(1, [1, 0, 1000], size)
}

/// A log of several segments, one of them compacted, that went idle and was then killed.
fn log() -> Driver {
    let opened = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
    let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    let mut steps = Vec::new();
    for nth in 0..34 {
        steps.extend([put(5000), put(700), TURN, Step::Reserve { worker: 0 }]);
        steps.extend([Step::Bury { nth: 0, pri: 2 }, TURN]);
        if nth >= 8 {
            steps.extend([Step::Delete { nth: 2 }, TURN]);
        }
    }
    steps.push(Step::Turn { ms: 500 });
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    let names = segments(&driver.fs);
    assert!(
        names.len() >= 3 && names.iter().any(|name| !name.ends_with(".00000")),
        "{names:?}"
    );
    driver.kill();
    driver.now = after_restart(driver.now);
    driver
}

pub(super) fn segments(fs: &SimFs) -> Vec<String> {
    let names = fs.names(DIR).expect("the directory is there");
    names
        .into_iter()
        .filter(|name| name.starts_with("segment-"))
        .collect()
}

fn copy(driver: &Driver) -> SimFs {
    driver.fs.crash_image(Crash::KeepAll)
}

fn contents(fs: &SimFs) -> BTreeMap<String, Vec<u8>> {
    let names = fs.names(DIR).expect("the directory is there");
    names
        .into_iter()
        .map(|name| (name.clone(), fs.read(path(&name)).unwrap_or_default()))
        .collect()
}

/// Where the frames of a file end; zeros set aside follow.
fn end(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| (last + 1).next_multiple_of(8))
}

/// Where the two frames of the marker begin, at the end of the log.
fn marker(bytes: &[u8]) -> usize {
    let is_frame = |at: &usize| bytes[*at..].starts_with(b"bFRM");
    let mut frames = (0..end(bytes)).step_by(8).rev().filter(is_frame);
    frames.nth(1).expect("a marker")
}

/// Open a log that must not open: why not. Nothing on the disk is changed by that.
fn refused(driver: &Driver, fs: &SimFs) -> OpenError {
    let before = contents(fs);
    let Err(error) = Engine::open(&options(fs, SyncPolicy::Always), driver.now) else {
        panic!("a damaged log was opened");
    };
    assert!(
        contents(fs) == before,
        "the start that was refused changed the directory"
    );
    let changes = [
        OpKind::Write,
        OpKind::SetSize,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::Create,
    ];
    assert!(
        fs.trace()
            .iter()
            .all(|operation| !changes.contains(&operation.kind))
    );
    error
}

fn damages(driver: &Driver, fs: &SimFs) -> Vec<Damage> {
    match refused(driver, fs) {
        OpenError::Damaged { damages, .. } => damages,
        other => panic!("not called damaged: {other}"),
    }
}

/// Open a log that must have everything.
fn whole(driver: &Driver, fs: &SimFs) -> Driver {
    let last = driver.history.last();
    let opened = Driver::open(fs, SyncPolicy::Always, driver.now, &driver.history, last);
    opened.unwrap_or_else(|stop| panic!("{stop}"))
}

/// Where the bodies are.
fn bodies(driver: &Driver, bytes: &[u8]) -> Vec<(Range<usize>, JobId)> {
    let mut bodies = Vec::new();
    for (id, job) in &driver.history.now().jobs {
        let found = bytes
            .windows(job.body.len())
            .position(|window| *window == *job.body);
        bodies.extend(found.map(|at| (at..at + job.body.len(), JobId(*id))));
    }
    bodies
}

/// D14: a flipped bit anywhere in acknowledged data is found, and named.
#[test]
fn d14_a_bit_flipped_anywhere_in_the_log_stops_the_start_and_is_named() {
    let driver = log();
    let names = segments(&driver.fs);
    for (index, name) in names.iter().enumerate() {
        let bytes = driver.fs.read(path(name)).expect("a segment");
        let bodies = bodies(&driver, &bytes);
        // Nothing attests the last frames of all, which are the marker and hold nothing.
        let is_newest = index + 1 == names.len();
        let until = if is_newest {
            marker(&bytes)
        } else {
            end(&bytes)
        };
        let every = (0..until.min(420)).chain(until - 420..until);
        for at in every.chain((420..until).step_by(53)) {
            let fs = copy(&driver);
            fs.flip_bit(path(name), at as u64 * 8 + (at as u64 * 5) % 8)
                .expect("a bit");
            let damages = damages(&driver, &fs);
            let named = damages.iter().find(|damage| damage.file == *name);
            let Some(named) = named else {
                panic!("byte {at} of {name}: {damages:?}")
            };
            let (offset, size) = named.range.expect("the place is named");
            let range = offset as usize..(offset + size) as usize;
            assert!(range.contains(&at), "byte {at} of {name}: {named}");
            if let Some((_, job)) = bodies.iter().find(|(body, _)| body.contains(&at)) {
                assert_eq!(named.jobs, [*job], "byte {at} of {name}: {named}");
            }
        }
    }
}

/// The marker and the bytes after it hold nothing acknowledged.
#[test]
fn a_bit_flipped_behind_all_that_was_acknowledged_costs_nothing() {
    let driver = log();
    let names = segments(&driver.fs);
    let open = names.last().expect("there are segments");
    let bytes = driver.fs.read(path(open)).expect("a segment");
    let marker = marker(&bytes);
    for at in (marker..marker + 48).chain((marker + 48..bytes.len()).step_by(997)) {
        let fs = copy(&driver);
        fs.flip_bit(path(open), at as u64 * 8 + 3).expect("a bit");
        let driver = whole(&driver, &fs);
        assert!(driver.engine().recovery().torn.is_some());
        let again = whole(&driver, &fs.crash_image(Crash::DropUnsynced));
        assert!(
            again.engine().recovery().torn.is_none(),
            "a tail is cut once"
        );
    }
}

/// D20: a file that is missing is noticed, and named.
#[test]
fn d20_a_missing_segment_stops_the_start_and_is_named() {
    let driver = log();
    let names = segments(&driver.fs);
    for (index, name) in names.iter().enumerate() {
        let fs = copy(&driver);
        fs.write(path("spare-9"), &vec![0xee; 65_536])
            .expect("a place for it");
        fs.write(path("compaction"), b"half")
            .expect("a place for it");
        fs.remove(path(name)).expect("a segment");
        let damages = damages(&driver, &fs);
        let segment = |name: &str| name[..name.len() - 6].to_owned();
        assert!(
            damages
                .iter()
                .any(|damage| segment(&damage.file) == segment(name)),
            "{name}, {index} of {}: {damages:?}",
            names.len()
        );
    }
}

#[test]
fn a_sealed_segment_cut_at_any_length_stops_the_start_and_is_named() {
    let driver = log();
    let mut names = segments(&driver.fs);
    names.pop();
    for name in &names {
        let until = driver.fs.read(path(name)).expect("a segment").len();
        for size in (0..until).step_by(211).chain(until - 90..until) {
            let fs = copy(&driver);
            fs.truncate(path(name), size as u64).expect("a segment");
            let damages = damages(&driver, &fs);
            assert!(
                damages.iter().any(|damage| damage.file == *name),
                "{size}: {damages:?}"
            );
        }
    }
}

/// Everything that attests the end of the open segment lies after it and is cut, too: except for
/// the list at its start, a cut looks like a crash.
#[test]
fn the_open_segment_cut_at_any_length_is_damaged_or_ends_there() {
    let driver = log();
    let names = segments(&driver.fs);
    let name = names.last().expect("there are segments");
    let until = end(&driver.fs.read(path(name)).expect("a segment"));
    for size in (0..until).step_by(37) {
        let fs = copy(&driver);
        fs.truncate(path(name), size as u64).expect("a segment");
        match Engine::open(&options(&fs, SyncPolicy::Always), driver.now) {
            Ok(engine) => assert!(engine.queue().stats().jobs.total() > 0),
            Err(OpenError::Damaged { damages, .. }) => assert_eq!(damages[0].file, *name),
            Err(other) => panic!("{size}: {other}"),
        }
    }
    let fs = copy(&driver);
    fs.truncate(path(name), until as u64).expect("a segment");
    whole(&driver, &fs).assert_goes_on_working();
}

#[test]
fn bytes_appended_to_a_sealed_segment_are_not_read() {
    let driver = log();
    let name = &segments(&driver.fs)[1];
    let fs = copy(&driver);
    let mut bytes = fs.read(path(name)).expect("a segment");
    bytes.extend_from_within(100..6000);
    fs.write(path(name), &bytes).expect("a segment");
    whole(&driver, &fs).assert_goes_on_working();
}

#[test]
fn segments_that_were_swapped_stop_the_start() {
    let driver = log();
    let names = segments(&driver.fs);
    let fs = copy(&driver);
    let (one, other) = (fs.read(path(&names[0])), fs.read(path(&names[1])));
    fs.write(path(&names[0]), &other.expect("a segment"))
        .expect("a segment");
    fs.write(path(&names[1]), &one.expect("a segment"))
        .expect("a segment");
    let damages = damages(&driver, &fs);
    for name in &names[..2] {
        assert!(
            damages.iter().any(|damage| damage.file == *name),
            "{damages:?}"
        );
    }
}

/// The log does not need it, so nothing is lost; and bsd must not remove it.
#[test]
fn a_segment_duplicated_under_another_number_is_named_and_left_alone() {
    let driver = log();
    let names = segments(&driver.fs);
    for name in &names {
        for copy_name in ["segment-0000000099.00000", "segment-0000000001.00007"] {
            let fs = copy(&driver);
            let bytes = fs.read(path(name)).expect("a segment");
            fs.write(path(copy_name), &bytes).expect("a place for it");
            let engine = Engine::open(&options(&fs, SyncPolicy::Always), driver.now)
                .unwrap_or_else(|error| panic!("{name} as {copy_name}: {error}"));
            assert_eq!(engine.recovery().strangers, [copy_name]);
            assert!(fs.read(path(copy_name)).is_ok_and(|left| left == bytes));
        }
    }
}

/// The same under the number that the log would use next: another number is taken.
#[test]
fn a_strangers_segment_under_the_next_number_is_never_overwritten() {
    let driver = log();
    let newest = segments(&driver.fs).pop().expect("there are segments");
    let (number, _) = parse_file_name(&newest).expect("a segment");
    let stranger = file_name(SegmentId(number.0 + 1), 0);
    let fs = copy(&driver);
    fs.write(path(&stranger), b"of someone else")
        .expect("a place for it");
    let mut driver = whole(&driver, &fs);
    driver
        .run(&[put(9000), TURN].repeat(20))
        .unwrap_or_else(|stop| panic!("{stop}"));
    assert!(segments(&fs).last().is_some_and(|name| *name > stranger));
    assert!(
        fs.read(path(&stranger))
            .is_ok_and(|left| left == b"of someone else"),
        "the stranger's file was overwritten"
    );
}

/// A removal that the disk forgot: the file is not part of the log any more, and goes again.
#[test]
fn a_removed_segment_that_comes_back_changes_nothing() {
    let driver = log();
    let fs = copy(&driver);
    let old = "segment-0000000001.00000";
    assert!(
        !segments(&fs).iter().any(|name| name == old),
        "it was compacted"
    );
    let source = driver.fs.clone();
    source.resurrect(path(old)).expect("it was there");
    let bytes = source.read(path(old)).expect("it is there again");
    fs.write(path(old), &bytes).expect("a place for it");
    let driver = whole(&driver, &fs);
    assert!(!segments(&driver.fs).iter().any(|name| name == old));
    driver.assert_goes_on_working();
}

/// D32: leftovers of interrupted work are recognised and removed, or used.
#[test]
fn d32_leftovers_of_interrupted_work_are_cleared_and_strangers_left_alone() {
    let driver = log();
    let fs = copy(&driver);
    let strangers = ["notes.txt", "segment-1", "segment-0000000001.1", "binlog.1"];
    for name in strangers.iter().chain(&["compaction", "spare-7"]) {
        fs.write(path(name), b"something").expect("a place for it");
    }
    fs.write(path("spare-9"), &vec![0xee; 80_000])
        .expect("a place for it");
    let driver = whole(&driver, &fs);
    let mut expected = strangers.to_vec();
    expected.sort_unstable();
    assert_eq!(driver.engine().recovery().strangers, expected);
    let names = fs.names(DIR).expect("the directory is there");
    assert!(
        strangers
            .iter()
            .all(|name| names.iter().any(|other| other == name))
    );
    assert!(
        !names
            .iter()
            .any(|name| name == "compaction" || name == "spare-7")
    );
    driver.assert_goes_on_working();
}

/// Space set aside by an earlier start may hold anything. After a log's end there are zeros.
#[test]
fn a_spare_that_holds_garbage_does_not_make_every_end_a_torn_one() {
    let driver = log();
    let fs = copy(&driver);
    for name in fs.names(DIR).expect("the directory is there") {
        if name.starts_with("spare-") {
            fs.remove(path(name)).expect("a spare");
        }
    }
    fs.write(path("spare-9"), &vec![0xee; 65_536])
        .expect("a place for it");
    let mut driver = whole(&driver, &fs);
    let before = segments(&fs).len();
    while segments(&fs).len() == before {
        driver
            .run(&[put(6000), TURN])
            .unwrap_or_else(|stop| panic!("{stop}"));
    }
    driver.kill();
    driver.now = after_restart(driver.now);
    let again = whole(&driver, &fs.crash_image(Crash::KeepAll));
    assert_eq!(again.engine().recovery().torn, None);
}

fn header(log: u8, segment: u32) -> SegmentHeader {
    let (first, last) = (SegmentId(segment), SegmentId(segment));
    SegmentHeader {
        version: 1,
        identity: Identity {
            log: LogId([log; 16]),
            first,
            last,
            generation: 0,
        },
        compacted: false,
        filtered_at: Position::ZERO,
        epoch: 1,
        created_wall_ns: 0,
    }
}

/// D19: a file of another version is not touched, whatever its content.
#[test]
fn d19_a_segment_of_a_newer_version_is_refused_and_left_alone() {
    let driver = log();
    let name = &segments(&driver.fs)[1];
    let fs = copy(&driver);
    let mut bytes = fs.read(path(name)).expect("a segment");
    bytes[segment_header::VERSION] = 3;
    let crc = crc32(&bytes[..segment_header::CRC]);
    bytes[segment_header::CRC..segment_header::SIZE].copy_from_slice(&crc.to_le_bytes());
    fs.write(path(name), &bytes).expect("a segment");
    match refused(&driver, &fs) {
        OpenError::Foreign { path: at, what } => {
            assert_eq!(at, path(name));
            assert!(what.contains("version 3"), "{what}");
        }
        other => panic!("{other}"),
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Stale bytes after the end of the log: a frame of another log, segment or generation, or of
/// another place in this file, is no evidence of anything. One for exactly this place is.
#[test]
fn a_frame_behind_the_end_is_evidence_only_if_it_belongs_there() {
    let driver = log();
    let name = segments(&driver.fs).pop().expect("there are segments");
    let bytes = driver.fs.read(path(&name)).expect("a segment");
    let own = SegmentHeader::decode(&bytes)
        .expect("a sound header")
        .identity;
    let at = end(&bytes).next_multiple_of(4096) as u32;
    let with = |identity: Identity, for_offset: u32| {
        let (log, seed) = (Position::new(own.first, u32::MAX), identity.seed());
        let mut frame = FrameBuilder::default();
        frame.begin(Vec::new(), seed, for_offset);
        let (frame, _) = frame.finish(FrameKind::Idle, log, 0);
        let mut bytes = bytes.clone();
        bytes[at as usize..at as usize + frame.len()].copy_from_slice(&frame);
        let fs = copy(&driver);
        fs.write(path(&name), &bytes).expect("a segment");
        fs
    };
    let log = LogId([8; 16]);
    let first = SegmentId(own.first.0 - 1);
    for stale in [
        with(Identity { log, ..own }, at),
        with(Identity { first, ..own }, at),
        with(
            Identity {
                generation: 1,
                ..own
            },
            at,
        ),
        with(own, at + 4096),
        with(own, at - 8),
    ] {
        assert!(whole(&driver, &stale).engine().recovery().torn.is_some());
    }
    assert_eq!(damages(&driver, &with(own, at))[0].file, name);
}

/// A frame that is sound, and in its place, and of another history: as when a write was lost that
/// should have replaced it.
#[test]
fn a_sound_frame_that_does_not_follow_the_one_before_it_is_damage() {
    let run = |pri| {
        let opened = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
        let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
        for nth in 0..5 {
            let pri = if nth == 2 { pri } else { 1 };
            let put = Step::put(0, [pri, 0, 9], 300);
            driver
                .run(&[put, TURN])
                .unwrap_or_else(|stop| panic!("{stop}"));
        }
        driver.kill();
        driver.now = after_restart(driver.now);
        driver
    };
    let name = "segment-0000000001.00000";
    let (driver, other) = (run(1), run(2));
    let bytes = driver.fs.read(path(name)).expect("a segment");
    let others = other.fs.read(path(name)).expect("a segment");
    let frames: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at..].starts_with(b"bFRM"))
        .collect();
    // The manifest's frame is the first.
    let (third, fourth) = (frames[3], frames[4]);
    let mut spliced = bytes.clone();
    spliced[third..fourth].copy_from_slice(&others[third..fourth]);
    assert!(spliced != bytes);
    let fs = copy(&driver);
    fs.write(path(name), &spliced).expect("a segment");
    assert_eq!(
        damages(&driver, &fs)[0].range.map(|range| range.0),
        Some(fourth as u64)
    );
}

/// Segments of two logs: which of them is meant is not for a program to guess.
#[test]
fn segments_of_another_log_stop_the_start_however_many_they_are() {
    let driver = log();
    for foreign in [1, 2, 3, 9] {
        let fs = copy(&driver);
        for segment in 0..foreign {
            let name = format!("segment-{:010}.00000", 200 + segment);
            fs.write(path(name), &header(8, 200 + segment).encode())
                .expect("a place for it");
        }
        match refused(&driver, &fs) {
            OpenError::Foreign { what, .. } => {
                assert!(what.contains("segment-0000000200.00000"), "{what}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_segment_that_cannot_be_read_is_an_error_of_the_disk_and_not_damage() {
    let driver = log();
    for name in segments(&driver.fs) {
        let fs = copy(&driver);
        fs.fail_reads(path(&name), 0..70_000).expect("a segment");
        match refused(&driver, &fs) {
            OpenError::Io(error) => assert_eq!(error.path, path(&name)),
            other => panic!("{other}"),
        }
        fs.heal_reads(path(&name)).expect("a segment");
        whole(&driver, &fs);
    }
}

/// A write that was reported done and is not there, or landed elsewhere in the file.
#[test]
fn writes_that_were_lost_or_misdirected_are_found_when_later_ones_tell_of_them() {
    use bsd::storage::disk::sim::{Effect, Fault};
    let elsewhere = Effect::Misdirect {
        path: path("segment-0000000001.00000"),
        offset: 300,
    };
    for effect in [Effect::Lose, elsewhere] {
        let opened = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
        let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
        let some = [put(900), TURN, put(900), TURN];
        driver.run(&some).unwrap_or_else(|stop| panic!("{stop}"));
        driver.fs.inject(Fault::new(OpKind::Write, effect.clone()));
        driver.run(&some).unwrap_or_else(|stop| panic!("{stop}"));
        driver.kill();
        let fs = copy(&driver);
        let damages = damages(&driver, &fs);
        assert_eq!(damages[0].file, "segment-0000000001.00000", "{effect:?}");
    }
}

/// A server on a copy of the log in which a body has rotted, which was found when it was asked for;
/// the disk, the segment and the job.
fn with_a_body_that_rots() -> (Driver, SimFs, String, JobId) {
    let mut driver = log();
    let fs = copy(&driver);
    driver = whole(&driver, &fs);
    driver.is_faulty = true;
    let name = segments(&fs).remove(0);
    let bytes = fs.read(path(&name)).expect("a segment");
    let (range, job) = bodies(&driver, &bytes).remove(0);
    fs.flip_bit(path(&name), range.start as u64 * 8)
        .expect("a bit");
    let nth = nth_of(&driver, job);
    driver
        .run(&[Step::Peek { nth }, TURN])
        .unwrap_or_else(|stop| panic!("{stop}"));
    (driver, fs, name, job)
}

/// Where a job that is alive is among all.
fn nth_of(driver: &Driver, job: JobId) -> usize {
    let jobs = &driver.history.now().jobs;
    let nth = jobs.keys().position(|id| *id == job.0);
    nth.expect("it is alive")
}

/// The damaged record is dead: its file is rewritten without it, and the next start is clean.
#[test]
pub(super) fn f35_when_the_job_of_a_rotten_body_is_deleted_its_file_is_rewritten_without_it() {
    let (mut driver, fs, name, job) = with_a_body_that_rots();
    let nth = nth_of(&driver, job);
    let turns = std::iter::repeat_n(TURN, 200);
    let steps: Vec<Step> = [Step::Delete { nth }].into_iter().chain(turns).collect();
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    assert!(!segments(&fs).contains(&name), "the segment is still there");
    driver.kill();
    whole(&driver, &fs.crash_image(Crash::KeepAll));
}

/// Where the deletes are in a segment.
fn deletes(fs: &SimFs, name: &Path) -> Vec<u32> {
    let bytes = fs.read(name).expect("a segment");
    let header = SegmentHeader::decode(&bytes).expect("a sound header");
    let (seed, first) = (header.identity.seed(), segment_header::SIZE as u32);
    let file = fs.open_read(name).expect("a segment");
    let mut reader = Reader::new(file, seed, bytes.len() as u64, first);
    let mut deletes = Vec::new();
    while let Ok(scan::Step::Frame(frame)) = reader.step() {
        let records = frame.records();
        let of_deletes = records.filter(|(_, record)| matches!(record, Record::Delete { .. }));
        deletes.extend(of_deletes.map(|(at, _)| at));
    }
    deletes
}

/// A delete that rots keeps its job dead as long as it is not dropped: its file is not rewritten.
#[test]
pub(super) fn f35_a_file_with_a_rotten_delete_that_is_needed_is_left_alone() {
    let opened = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
    let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    driver.is_faulty = true;
    let puts = |count| std::iter::repeat_n([put(5000), TURN], count).flatten();
    let steps = puts(30).chain([Step::Delete { nth: 0 }, TURN]);
    let steps: Vec<Step> = steps.chain(puts(30)).collect();
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    let fs = driver.fs.clone();
    let mut names = segments(&fs).into_iter();
    let name = names
        .find(|name| !deletes(&fs, &path(name)).is_empty())
        .expect("the delete is in a sealed segment");
    assert!(names.next().is_some(), "it is sealed");
    let at = deletes(&fs, &path(&name))[0];
    fs.flip_bit(path(&name), 8 * u64::from(at) + 40)
        .expect("a bit");
    // All puts in the file with the delete: the file is garbage, except for the delete itself.
    let beside = std::iter::repeat_n([Step::Delete { nth: 24 }, TURN], 35).flatten();
    let steps: Vec<Step> = beside.chain(std::iter::repeat_n(TURN, 100)).collect();
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    let is_there = segments(&fs).contains(&name);
    driver.kill();
    let image = fs.crash_image(Crash::KeepAll);
    assert!(
        is_there,
        "the delete was dropped, and a start finds {:?}",
        {
            let started = Engine::open(&options(&image, SyncPolicy::Always), driver.now);
            started.map(|engine| engine.queue().stats().jobs.total())
        }
    );
    assert_eq!(damages(&driver, &image)[0].file, name);
}

/// Whatever rots under a running server, and however much is compacted then: the next start either
/// reports damage, or has every live job unchanged, and no deleted one.
#[test]
pub(super) fn f35_whatever_rots_under_a_running_server_is_told_of_or_was_dead() {
    let begun = log();
    let (mut started, mut refused) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let fs = copy(&begun);
        let mut driver = whole(&begun, &fs);
        driver.is_faulty = true;
        let names = segments(&fs);
        let name = path(&names[random.below(names.len() as u64 - 1) as usize]);
        let size = end(&fs.read(&name).expect("a segment"));
        // Deletes are small, and a lost delete affects another job.
        let deletes = deletes(&fs, &name);
        let bit = match random.below(2) {
            0 if !deletes.is_empty() => {
                let at = deletes[random.below(deletes.len() as u64) as usize];
                8 * u64::from(at) + random.below(8 * 24)
            }
            _ => random.below(8 * size as u64),
        };
        fs.flip_bit(&name, bit).expect("a bit");
        let rounds = random.below(60);
        let steps = (0..rounds).flat_map(|_| {
            let nth = random.below(20) as usize;
            [
                put(3000),
                Step::Delete { nth },
                TURN,
                Step::Delete { nth },
                TURN,
            ]
        });
        let steps: Vec<Step> = steps.chain(std::iter::repeat_n(TURN, 50)).collect();
        let what = format!("seed {seed}: bit {bit} of {}", name.display());
        driver
            .run(&steps)
            .unwrap_or_else(|stop| panic!("{what}: {stop}"));
        driver.kill();
        let image = fs.crash_image(Crash::KeepAll);
        match Engine::open(&options(&image, SyncPolicy::Always), driver.now) {
            Err(OpenError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("{what}: {error}"),
            Ok(engine) => {
                drop(engine);
                whole(&driver, &fs.crash_image(Crash::KeepAll));
                started += 1;
            }
        }
    }
    assert!(
        started > 5 && refused > 5,
        "{started} started, {refused} refused"
    );
}

/// P3: a body that rots while the server runs is not served, and takes only its own job out.
#[test]
pub(super) fn a_body_that_rots_under_a_running_server_is_not_served_and_not_copied() {
    let (mut driver, fs, name, job) = with_a_body_that_rots();
    let name = &name;
    // Compaction of its segment stops at it and changes nothing; the damage is not laundered.
    let steps: Vec<Step> = (0..60)
        .flat_map(|_| [put(4000), Step::Delete { nth: 30 }, TURN])
        .collect();
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    assert!(
        segments(&fs).contains(name),
        "the segment is still as it was"
    );
    driver.kill();
    let damages = damages(&driver, &fs.crash_image(Crash::KeepAll));
    assert_eq!(
        (damages[0].file.as_str(), &damages[0].jobs[..]),
        (name.as_str(), &[job][..])
    );
}
