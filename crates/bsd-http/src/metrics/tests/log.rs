//! The metrics of the log, compared with the directory on the disk, with the reading of `bsd-wal`,
//! and with the counts of this test.

use std::path::Path;

use super::*;
use crate::health::no_room;
use bsd::engine::Figures;
use bsd::storage::convert::offline;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::{Crash, Errno, Fault, OpKind};
use bsd::storage::format::parse_file_name;
use bsd::storage::inspect::Inspection;
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::SECOND_NS;

const DIR: &str = "/d";
const SEGMENT_SIZE: u32 = 64 << 10;

/// An engine on a disk of its own, and the counts of its work.
struct Bench {
    fs: SimFs,
    engine: Engine,
    client: ClientId,
    now: Now,
    records: u64,
}

impl Bench {
    fn begin(change: impl FnOnce(&mut Options)) -> Bench {
        let (fs, now) = (SimFs::new(1), Clock::start().now());
        let mut options = Options {
            dir: Some(DIR.into()),
            segment_size: SEGMENT_SIZE,
            fs: Arc::new(fs.clone()),
            ..Options::default()
        };
        change(&mut options);
        let mut engine = Engine::open(&options, now).unwrap();
        let client = engine.connect();
        Bench {
            fs,
            engine,
            client,
            now,
            records: 0,
        }
    }

    /// Run a command that writes `records` records; whether it has put a job.
    fn run(&mut self, command: Command<'_>, records: u64) -> bool {
        let mut inserted = Inserted(0);
        let request = Request::Command(command);
        self.engine
            .run(self.client, request, self.now, &mut inserted);
        self.engine.commit(self.now).unwrap();
        self.records += records;
        inserted.0 == 1
    }

    fn put(&mut self, size: usize) -> bool {
        let body = vec![7; size];
        let put = Command::put(1, 0, 100, &body);
        self.run(put, 1)
    }

    /// One turn of the loop.
    fn turn(&mut self) {
        self.engine.tick(self.now, &mut Inserted(0)).unwrap();
        self.engine.commit(self.now).unwrap();
    }

    fn pass(&mut self, ns: i64) {
        self.now.mono.0 += ns;
        self.now.wall_ns += ns as u64;
    }

    fn figures(&self) -> Figures {
        self.engine.figures(self.now)
    }

    fn page(&self) -> String {
        written(|page| of_log(page, &self.figures().log.unwrap()))
    }

    fn value(&self, sample: &str) -> u64 {
        value(&self.page(), sample) as u64
    }

    /// The files of the log in the directory: their first numbers, and generations.
    fn segments(&self) -> Vec<(u32, u32)> {
        let names = self.fs.names(DIR).unwrap();
        let found = names.iter().filter_map(|name| parse_file_name(name));
        let mut found: Vec<_> = found
            .map(|(first, generation)| (first.0, generation))
            .collect();
        found.sort_unstable();
        found
    }

    fn inspection(&self) -> Inspection {
        inspection(&self.fs.crash_image(Crash::KeepAll))
    }

    /// Bytes of the log, to the ends of its last frames.
    fn written(&self) -> u64 {
        let segments = self.inspection().segments;
        segments.iter().map(|segment| segment.used).sum()
    }
}

fn inspection(fs: &SimFs) -> Inspection {
    Inspection::read(Arc::new(fs.clone()), Path::new(DIR), &mut |_, _| ()).unwrap()
}

/// How many jobs were put.
struct Inserted(u64);

impl ReplySink for Inserted {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        self.0 += u64::from(matches!(reply, Reply::Inserted(_)));
    }
}

/// Puts and deletes, until a compaction has taken effect; never past the first.
fn with_a_compaction() -> Bench {
    let mut bench = Bench::begin(|_| ());
    let (mut next, mut was_under_way) = (1, false);
    for _ in 0..5000 {
        assert!(bench.put(1000));
        if bench.engine.queue().stats().jobs.ready > 250 {
            // One in four stays.
            next += u64::from(next % 4 == 0);
            bench.run(Command::Delete(JobId(next)), 1);
            next += 1;
        }
        bench.turn();
        if bench.value("bsd_log_compactions_total") > 0 {
            assert!(was_under_way, "it came out of nothing");
            while bench.value("bsd_log_compacting") == 1 {
                bench.turn();
            }
            return bench;
        }
        let names = bench.fs.names(DIR).unwrap();
        let is_under_way = bench.value("bsd_log_compacting") == 1;
        let has_output = names.iter().any(|name| name == "compaction");
        assert!(is_under_way || !has_output, "{names:?}");
        was_under_way |= is_under_way;
    }
    panic!("no compaction");
}

#[test]
fn t22_each_sample_of_the_log_is_what_the_directory_says() {
    let bench = with_a_compaction();
    let segments = bench.segments();
    let found = bench.inspection();
    let compacted: Vec<_> = found
        .segments
        .iter()
        .filter(|it| it.entry.generation > 0)
        .collect();
    let of_compacted: u64 = compacted.iter().map(|segment| segment.records).sum();
    let renamed = bench.fs.trace().into_iter().filter(|operation| {
        let is_output = operation.path.ends_with("compaction");
        operation.kind == OpKind::Rename && is_output
    });
    let spares: u64 = found
        .leftovers
        .iter()
        .map(|leftover| leftover.reserved)
        .sum();
    let newest = found.segments.last().unwrap();
    let lists = found
        .segments
        .iter()
        .filter(|it| it.entry.generation == 0)
        .count() as u64;
    assert!(!compacted.is_empty() && lists > 2, "{segments:?}");
    let page = bench.page();
    let of = |sample: &str| value(&page, sample) as u64;
    let expected = [
        ("bsd_log_segments", segments.len() as u64),
        ("bsd_log_first_segment", segments[0].0.into()),
        ("bsd_log_current_segment", segments.last().unwrap().0.into()),
        ("bsd_log_segment_max_bytes", SEGMENT_SIZE.into()),
        ("bsd_log_spooled_bytes", 0),
        ("bsd_log_unsynced_bytes", 0),
        ("bsd_log_compacting", 0),
        ("bsd_log_compactions_total", renamed.count() as u64),
        ("bsd_log_records_migrated_total", of_compacted),
        ("bsd_disk_full", 0),
        ("bsd_disk_missing_bytes", 0),
    ];
    for (sample, expected) in expected {
        assert_eq!(of(sample), expected, "{sample} of {segments:?}");
    }
    // One of the spares is for compaction.
    let for_compaction = spares + newest.size - newest.used - of("bsd_log_reserved_bytes");
    let mut sizes = found.leftovers.iter().map(|leftover| leftover.reserved);
    assert!(sizes.any(|size| size == for_compaction), "{for_compaction}");
    // Lists of files are not counted: no client has asked for them.
    assert_eq!(
        of("bsd_log_records_written_total"),
        bench.records + of("bsd_log_compactions_total")
    );
    // What is live is what is left of the log when it is rewritten.
    assert_eq!(
        of("bsd_log_live_bytes") + of("bsd_log_dead_bytes"),
        bench.written()
    );
    let copy = bench.fs.crash_image(Crash::KeepAll);
    let fs: Arc<dyn Fs> = Arc::new(copy.clone());
    offline::compact(&fs, Path::new(DIR), bench.now, &|_, _| ()).unwrap();
    let rewritten: u64 = inspection(&copy).segments.iter().map(|it| it.used).sum();
    let live = of("bsd_log_live_bytes");
    assert!(live.abs_diff(rewritten) < 4096, "{live}, {rewritten}");
}

#[test]
fn t22_what_is_written_and_what_is_durable_are_counted_as_the_disk_has_them() {
    let mut bench = Bench::begin(|options| options.sync = SyncPolicy::Interval(20));
    let [written, synced, writes] = [
        "bsd_log_unsynced_bytes",
        "bsd_log_synced_bytes_total",
        "bsd_log_writes_total",
    ];
    bench.turn();
    bench.pass(SECOND_NS);
    bench.turn();
    assert_eq!(bench.value(written), 0);
    let before = (bench.written(), bench.value(synced), bench.value(writes));
    for nth in 1..=3 {
        assert!(bench.put(1000 * nth));
        assert!(bench.put(100));
    }
    let grown = bench.written() - before.0;
    assert!(grown > 6000, "{grown}");
    assert_eq!(bench.value(written), grown);
    assert_eq!(bench.value(synced), before.1);
    assert_eq!(bench.value(writes), before.2 + 6);
    assert_eq!(bench.value("bsd_log_records_written_total"), bench.records);
    // What is durable is what a power cut leaves.
    let cut = |bench: &Bench| {
        let left = inspection(&bench.fs.crash_image(Crash::DropUnsynced));
        left.segments.iter().map(|it| it.used).sum::<u64>()
    };
    assert_eq!(cut(&bench), before.0);
    bench.pass(SECOND_NS);
    bench.turn();
    assert_eq!(bench.value(written), 0);
    assert_eq!(bench.value(synced), before.1 + cut(&bench) - before.0);
}

#[test]
fn t22_bodies_on_their_way_take_of_the_disk_what_the_page_says() {
    let mut bench = Bench::begin(|options| options.job_size_max = 1 << 20);
    let before = bench.fs.used();
    assert!(
        bench
            .engine
            .keep_begun(bench.client, &[7; 300_000], bench.now)
    );
    let spooled = bench.value("bsd_log_spooled_bytes");
    assert_eq!(bench.fs.used() - before, spooled);
    assert!(spooled >= 300_000, "{spooled}");
    bench.engine.forget_begun(bench.client);
    assert_eq!(bench.value("bsd_log_spooled_bytes"), 0);
    assert_eq!(bench.fs.used(), before);
}

#[test]
fn g02_a_log_that_can_open_no_file_is_not_called_a_full_disk() {
    let mut bench = Bench::begin(|_| ());
    let no_file = Fault::fail(OpKind::Create, Errno::MFILE).for_ever();
    bench.fs.inject(no_file);
    while bench.put(20_000) {}
    let why = no_room(bench.engine.log().unwrap()).unwrap();
    assert!(why.contains("limit of open files"), "{why}");
    bench.fs.clear_faults();
    bench.pass(10 * SECOND_NS);
    assert!(bench.put(20_000));
    assert_eq!(no_room(bench.engine.log().unwrap()), None);
}

#[test]
fn t22_a_full_disk_is_full_on_the_page_until_it_has_what_is_said_to_be_missing() {
    let mut bench = Bench::begin(|_| ());
    bench.fs.set_quota(Some(bench.fs.used()));
    while bench.put(20_000) {}
    assert_eq!(bench.value("bsd_disk_full"), 1);
    let missing = bench.value("bsd_disk_missing_bytes");
    assert!(missing > 0);
    bench.fs.set_quota(Some(bench.fs.used() + missing / 2));
    bench.pass(10 * SECOND_NS);
    assert!(!bench.put(20_000), "with half of {missing}");
    let missing = bench.value("bsd_disk_missing_bytes");
    // File systems give whole blocks.
    let room = missing.next_multiple_of(4096);
    bench.fs.set_quota(Some(bench.fs.used() + room));
    bench.pass(10 * SECOND_NS);
    assert!(bench.put(20_000), "with {missing}");
    assert_eq!(bench.value("bsd_disk_full"), 0);
    assert_eq!(bench.value("bsd_disk_missing_bytes"), 0);
}
