//! Faults that have no room of their own in the other modules: crafted records, very many tubes, a
//! disk that is full at any byte, too few descriptors, a directory that is gone.

use std::time::{Duration, Instant};

use bsd::check::volume::volume;
use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::disk::sim::{Crash, Errno, Fault, OpKind};
use bsd::storage::format::{
    FRAME_MAGIC, FrameHeader, Identity, SegmentHeader, frame_header, frame_trailer, put,
    segment_header,
};
use bsd::storage::{OpenError, SimFs, SyncPolicy};
use bsd::types::{ClientId, Ticket};

use super::driver::{DIR, Driver, Step, Stop, after_restart, beginning, options, path};
use super::oracle::{History, State};
use super::workload::tour;

const TURN: Step = Step::Turn { ms: 0 };
const SEGMENT: &str = "segment-0000000001.00000";

const fn put(size: usize) -> Step {
    Step::put(0, [1, 0, 9], size)
}

/// The value that the checksums of a file start from, computed here again from its definition.
fn seed(identity: &Identity) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&identity.log.0);
    crc.update(&identity.first.0.to_le_bytes());
    crc.update(&identity.generation.to_le_bytes());
    crc.finalize()
}

fn crc(start: u32, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new_with_initial(start);
    crc.update(bytes);
    crc.finalize()
}

fn set(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The segment with the field at `at` of its first put record set to `value`, and every checksum
/// over it corrected: what an attacker who knows the format can write.
fn crafted(bytes: &[u8], frame: usize, at: usize, value: u32) -> Vec<u8> {
    let seed = seed(
        &SegmentHeader::decode(bytes)
            .expect("a sound header")
            .identity,
    );
    let header = frame..frame + frame_header::SIZE;
    let size = u32::from_le_bytes(
        bytes[frame + frame_header::BODY_SIZE..][..4]
            .try_into()
            .expect("4 bytes"),
    );
    let record = header.end..header.end + size as usize;
    let mut bytes = bytes.to_vec();
    set(&mut bytes, record.start + at, value);
    let record_crc = crc(
        seed ^ record.start as u32,
        &bytes[record.start + put::KIND..record.end],
    );
    set(&mut bytes, record.start + put::CRC, record_crc);
    let header_crc = crc(
        seed ^ frame as u32,
        &bytes[frame + frame_header::BODY_SIZE..header.end],
    );
    let records = crc(0, &record_crc.to_le_bytes());
    let checksum = crc(records, &header_crc.to_le_bytes());
    set(&mut bytes, record.end + frame_trailer::CHECKSUM, checksum);
    bytes
}

/// D15: a length that says more or less than there is, with checksums that hold: an error, and no
/// byte that is not the job's.
#[test]
fn d15_a_crafted_length_is_an_error_and_shows_no_other_memory() {
    let opened = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
    let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    driver
        .run(&[put(100), TURN, put(50), Step::Turn { ms: 500 }])
        .unwrap_or_else(|stop| panic!("{stop}"));
    driver.kill();
    let bytes = driver.fs.read(path(SEGMENT)).expect("a segment");
    let frame = (segment_header::SIZE + 1..bytes.len())
        .find(|at| bytes[*at..].starts_with(&FRAME_MAGIC))
        .expect("the frame of the put");
    let open = |bytes: &[u8]| {
        let fs = driver.fs.crash_image(Crash::KeepAll);
        fs.write(path(SEGMENT), bytes).expect("a segment");
        Engine::open(&options(&fs, SyncPolicy::Always), driver.now)
    };
    let same = crafted(&bytes, frame, put::BODY_SIZE, 100);
    assert!(same == bytes, "the checksums here are those of the format");
    for size in [0, 1, 99, 101, 150, 60_000, 1 << 30, u32::MAX - 47, u32::MAX] {
        match open(&crafted(&bytes, frame, put::BODY_SIZE, size)) {
            Err(OpenError::Damaged { damages, .. }) => assert_eq!(damages[0].file, SEGMENT),
            Err(other) => panic!("a body of {size} bytes: {other}"),
            Ok(_) => panic!("a body of {size} bytes was believed"),
        }
    }
    let header = FrameHeader::decode(
        &bytes[frame..],
        SegmentHeader::decode(&bytes)
            .expect("a sound header")
            .identity
            .seed(),
        frame as u32,
    );
    assert!(header.is_some(), "and so is the place");
}

struct NoOne;

impl ReplySink for NoOne {
    fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
}

/// The time of two thousand rounds of put, reserve and delete, with `tubes` other tubes with one
/// job each.
fn cost_beside(tubes: usize) -> Duration {
    let mut engine = Engine::open(&Options::default(), beginning()).expect("memory alone");
    let client = engine.connect();
    let mut run = |command: Command<'_>| {
        engine.run(client, Request::Command(command), beginning(), &mut NoOne);
        engine.tick(beginning(), &mut NoOne).expect("memory alone");
    };
    let put = Command::put(1, 0, 9, b"x");
    for tube in 0..tubes {
        run(Command::Use(format!("tube-{tube}").into()));
        run(put.clone());
    }
    run(Command::Use("default".into()));
    let before = Instant::now();
    for nth in 0..2000 {
        run(put.clone());
        run(Command::reserve(Some(Duration::ZERO)));
        run(Command::Delete(bsd::types::JobId(tubes as u64 + 1 + nth)));
    }
    let took = before.elapsed();
    assert_eq!(engine.queue().next_id().0, tubes as u64 + 2001);
    assert_eq!(engine.queue().stats().jobs.total(), tubes as u64);
    took
}

/// D27: were all tubes walked, this would take fifty times as long and more. The least of some
/// tries counts, each of a few milliseconds, and the bound is far from both: this is about how the
/// cost grows, not about time.
#[test]
fn d27_a_command_costs_the_same_beside_twenty_thousand_tubes() {
    let least = |tubes| (0..5).map(|_| cost_beside(tubes)).min().unwrap_or_default();
    let (few, many) = (least(1), least(20_000));
    println!("{few:?} beside one tube, {many:?} beside twenty thousand");
    assert!(
        many <= 12 * few,
        "{few:?} beside one tube, {many:?} beside twenty thousand"
    );
}

/// Run the tour on this disk, then repair the disk: nothing acknowledged is lost.
fn survive(fs: &SimFs, repair: impl Fn(&SimFs)) {
    let mut driver = match Driver::begin(fs, SyncPolicy::Always) {
        Ok(driver) => driver,
        Err(Stop::Open(_)) => {
            repair(fs);
            let history = History::new(State::default());
            let now = after_restart(beginning());
            Driver::open(fs, SyncPolicy::Always, now, &history, 0)
                .unwrap_or_else(|stop| panic!("on a repaired disk: {stop}"));
            return;
        }
        Err(stop) => panic!("{stop}"),
    };
    driver.is_faulty = true;
    // It may have failed; then it has said so.
    let _ = driver.run(&tour());
    let (least, least_durable) = (driver.least_acknowledged(), driver.least_durable());
    let now = after_restart(driver.now);
    for (how, least) in [
        (Crash::KeepAll, least),
        (Crash::DropUnsynced, least_durable),
    ] {
        let image = fs.crash_image(how);
        repair(&image);
        Driver::open(&image, SyncPolicy::Always, now, &driver.history, least)
            .unwrap_or_else(|stop| panic!("{how:?}, on a repaired disk: {stop}"));
    }
}

/// B12: the disk has room for a certain number of bytes, for every number.
#[test]
fn b12_a_disk_that_is_full_at_any_byte_costs_nothing_acknowledged() {
    let step = 4099 / volume("BSD_TEST_SCALE", 1).max(1) as usize;
    for quota in (0..600_000).step_by(step.max(1)) {
        for copies_on_write in [false, true] {
            println!("{quota} bytes, copy on write: {copies_on_write}");
            let fs = SimFs::new(1);
            fs.set_quota(Some(quota));
            fs.set_copy_on_write(copies_on_write);
            survive(&fs, |fs| fs.set_quota(None));
        }
    }
}

/// B28: no descriptor is left when a file is to be opened or made, once and from then on.
#[test]
fn b28_want_of_descriptors_costs_nothing_acknowledged() {
    for kind in [
        OpKind::Open,
        OpKind::Create,
        OpKind::ReadDir,
        OpKind::SyncDir,
        OpKind::Lock,
    ] {
        for error in [Errno::MFILE, Errno::NFILE] {
            for n in 1..25 {
                println!("{kind:?} {n}: {error}");
                for fault in [
                    Fault::fail(kind, error).nth(n),
                    Fault::fail(kind, error).nth(n).for_ever(),
                ] {
                    let fs = SimFs::new(1);
                    fs.inject(fault);
                    survive(&fs, SimFs::clear_faults);
                }
            }
        }
    }
}

/// B35: the file system turns read-only under a running engine, as it does after an error.
#[test]
fn b35_a_file_system_that_turns_read_only_ends_the_log_and_costs_nothing_acknowledged() {
    let changes = [
        OpKind::Create,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::Write,
        OpKind::SetSize,
        OpKind::Allocate,
        OpKind::Sync,
        OpKind::SyncDir,
    ];
    for n in 0..60 {
        let fs = SimFs::new(1);
        for kind in changes {
            let fault = Fault::fail(kind, Errno::ROFS);
            fs.inject(fault.nth(1 + n).for_ever());
        }
        survive(&fs, SimFs::clear_faults);
    }
}

/// B36: the directory is removed under a running engine. Its files are still open; but the next one
/// cannot be made, and then the log has failed.
#[test]
fn b36_a_directory_that_is_gone_ends_the_log_when_the_next_file_is_needed() {
    let opened = Driver::begin(&SimFs::new(1), SyncPolicy::Always);
    let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    driver
        .run(&[put(100), TURN])
        .unwrap_or_else(|stop| panic!("{stop}"));
    driver.fs.remove(DIR).expect("it is there");
    let stopped = (0..100).find_map(|_| driver.run(&[put(9000), TURN]).err());
    assert!(
        matches!(stopped, Some(Stop::Store(_))),
        "it goes on without its directory"
    );
    assert!(driver.run(&[put(1), TURN]).is_err());
}
