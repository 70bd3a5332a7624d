//! Cost of the parts of the log: encoding a frame, scanning frames back, starting on a log that a
//! kill has left, and compaction.
//!
//! Files lie in a temporary directory and nothing is synced, so that it is the code that is
//! measured and not the disk. Only ratios of one run count: a scan against its bytes, a start
//! against its jobs.
#![allow(missing_docs)] // criterion's macros make public functions

use std::hint::black_box;
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::disk::{File, Fs, OpenMode, write_all_at};
use bsd::storage::format::{FrameBuilder, FrameKind, Identity, LogId, Record, Seed};
use bsd::storage::read::scan::{Reader, Step};
use bsd::storage::{RealFs, SyncPolicy};
use bsd::types::{ClientId, JobId, Position, SegmentId, Ticket};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tempfile::TempDir;

const BODY: [u8; 100] = [b'b'; 100];
const RECORDS_A_FRAME: u64 = 100;

fn seed() -> Seed {
    let identity = Identity::new(LogId([7; 16]), SegmentId(1));
    identity.seed()
}

fn put(id: u64) -> Record<'static> {
    Record::Put {
        id: JobId(id),
        created_wall_ns: 1,
        pri: 1024,
        delay: 0,
        ttr: 60,
        tube: "default",
        body: &BODY,
    }
}

/// A frame of puts at `offset`, built in `buffer`; the frame and its checksum.
fn frame(buffer: Vec<u8>, offset: u32, previous: u32) -> (Vec<u8>, u32) {
    let mut builder = FrameBuilder::default();
    builder.begin(buffer, seed(), offset);
    (0..RECORDS_A_FRAME).for_each(|id| _ = builder.push(&put(id)));
    builder.finish(FrameKind::Data, Position::ZERO, previous)
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("frame");
    let mut buffer = frame(Vec::new(), 0, 0).0;
    group.throughput(Throughput::Bytes(buffer.len() as u64));
    group.bench_function("encode, 100 puts of 100 bytes", |bencher| {
        bencher.iter(|| buffer = frame(std::mem::take(&mut buffer), black_box(64), 0).0);
    });
    group.finish();
}

/// A file of frames, each tied to the one before.
fn file_of_frames(dir: &TempDir, count: u32) -> Arc<dyn File> {
    let path = dir.path().join("frames");
    let file = RealFs.open(&path, OpenMode::CreateNew).expect("a new file");
    let (mut at, mut previous) = (0, 0);
    for _ in 0..count {
        let (bytes, checksum) = frame(Vec::new(), at, previous);
        write_all_at(&*file, &bytes, u64::from(at)).expect("there is space");
        at += bytes.len() as u32;
        previous = checksum;
    }
    file
}

/// Reads every frame and record; how many records there were.
fn scan_all(file: &Arc<dyn File>, size: u64) -> usize {
    let mut reader = Reader::new(file.clone(), seed(), size, 0);
    let mut count = 0;
    while let Step::Frame(frame) = reader.step().expect("the file can be read") {
        count += frame.records().count();
    }
    count
}

fn scan(criterion: &mut Criterion) {
    const FRAMES: u32 = 1000;
    let dir = TempDir::new().expect("a directory");
    let file = file_of_frames(&dir, FRAMES);
    let size = file.size().expect("it is there");
    let mut group = criterion.benchmark_group("frame");
    group.throughput(Throughput::Bytes(size));
    group.bench_function("scan, 100000 puts of 100 bytes", |bencher| {
        bencher.iter(|| {
            let count = scan_all(&file, black_box(size));
            assert_eq!(count as u64, u64::from(FRAMES) * RECORDS_A_FRAME);
        });
    });
    group.finish();
}

/// No one reads the replies.
struct Ignore;

impl ReplySink for Ignore {
    fn reply(&mut self, _client: ClientId, _after: Ticket, _reply: Reply<'_>) {}
}

/// An engine with its directory. The engine goes first.
struct Log {
    engine: Engine,
    client: ClientId,
    clock: Clock,
    dir: TempDir,
}

impl Log {
    fn open(dir: TempDir, segment_size: u32) -> Log {
        let clock = Clock::start();
        let options = Options {
            dir: Some(dir.path().to_owned()),
            sync: SyncPolicy::Never,
            segment_size,
            ..Options::default()
        };
        let mut engine = Engine::open(&options, clock.now()).expect("a log of our own");
        let client = engine.connect();
        Log {
            engine,
            client,
            clock,
            dir,
        }
    }

    /// Dropped as a kill leaves it, without a clean stop.
    fn kill(self) -> TempDir {
        self.dir
    }

    fn run(&mut self, command: Command<'_>) {
        let request = Request::Command(command);
        self.engine
            .run(self.client, request, self.clock.now(), &mut Ignore);
    }

    /// A hundred commands share a frame.
    fn commit_now_and_then(&mut self, number: u64) {
        if number % RECORDS_A_FRAME == RECORDS_A_FRAME - 1 {
            self.engine
                .commit(self.clock.now())
                .expect("a disk that works");
        }
    }

    fn fill(&mut self, jobs: u64, body: &[u8]) {
        for number in 0..jobs {
            let (pri, delay, ttr) = (1024, 0, 60);
            self.run(Command::put(pri, delay, ttr, body));
            self.commit_now_and_then(number);
        }
    }

    fn delete_every_second(&mut self, jobs: u64) {
        for number in (1..=jobs).step_by(2) {
            self.run(Command::Delete(JobId(number)));
            self.commit_now_and_then(number / 2);
        }
    }

    /// Tick until there is nothing left to do; how many records were copied.
    fn compact(&mut self) -> u64 {
        loop {
            let now = self.clock.now();
            self.engine
                .tick(now, &mut Ignore)
                .expect("a disk that works");
            self.engine.commit(now).expect("a disk that works");
            let is_busy = self.engine.next_deadline(now) == Some(now.mono);
            let log = self.engine.log().expect("it has one");
            if !is_busy && !log.is_compacting() {
                return log.records_migrated();
            }
        }
    }
}

fn recovery(criterion: &mut Criterion) {
    const JOBS: u64 = 100_000;
    let mut group = criterion.benchmark_group("recovery");
    group.sample_size(10).throughput(Throughput::Elements(JOBS));
    let mut log = Log::open(TempDir::new().expect("a directory"), 8 << 20);
    log.fill(JOBS, &BODY);
    let mut dir = Some(log.kill());
    group.bench_function("open, 100000 jobs of 100 bytes", |bencher| {
        bencher.iter(|| {
            let log = Log::open(dir.take().expect("it was put back"), 8 << 20);
            assert_eq!(log.engine.queue().stats().jobs.ready, JOBS);
            dir = Some(log.kill());
        });
    });
    group.finish();
}

fn compaction(criterion: &mut Criterion) {
    const JOBS: u64 = 10_000;
    const BODY_SIZE: usize = 1000;
    let half_garbage = || {
        let mut log = Log::open(TempDir::new().expect("a directory"), 1 << 20);
        log.fill(JOBS, &[b'b'; BODY_SIZE]);
        log.delete_every_second(JOBS);
        log
    };
    let mut group = criterion.benchmark_group("compaction");
    group
        .sample_size(10)
        .throughput(Throughput::Bytes(JOBS * BODY_SIZE as u64));
    group.bench_function(
        "10000 jobs of 1000 bytes, half of them deleted",
        |bencher| {
            bencher.iter_batched_ref(
                half_garbage,
                |log| assert!(log.compact() > 0, "nothing was compacted"),
                BatchSize::PerIteration,
            );
        },
    );
    group.finish();
}

criterion_group!(benches, encode, scan, recovery, compaction);
criterion_main!(benches);
