//! The cost of an archive: requests and bytes an hour, and what a day of churn stores.
//!
//! A server on a simulated disk and its writer, called as the threads call it, with a simulated
//! store that counts and a clock that is set on. Nothing here depends on real time.
//!
//! `BSD_COST_HOURS` says for how many hours of churn is stored, 4 if it is not set.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use super::chain::{Item, Walk, for_each_part, parts_of};
use super::format::{BaseList, HEAD_SIZE, Kind};
use super::histories::{LOG, Sink};
use super::joiner::{CONNECTIONS, INTERVAL};
use super::levels::{Levels, pass};
use super::sim::{Requests, SimStore};
use super::work::{OWNER_INTERVAL_NS, PROOF_INTERVAL_NS};
use super::writer::{Done, Sizes, Writer};
use super::{Codec, LEVEL_DEFAULT, Trouble};
use bsd::check::volume::volume;
use bsd::engine::{Engine, Options};
use bsd::protocol::{Command, Request};
use bsd::random::Random;
use bsd::storage::{SimFs, Trail};
use bsd::types::{ClientId, JobId, Now, SECOND_NS, Time};

const DIR: &str = "/data";
/// The loop has nothing to do after this number of turns.
const TURNS_MAX: usize = 10_000;
/// 100.8 MB an hour.
const JOBS_A_SECOND: u64 = 4;
const BODY_SIZE: usize = 7000;
/// As many jobs are there at any time: half an hour of them, 50 MB.
const BACKLOG: u64 = JOBS_A_SECOND * 1800;
const WORDS: [&str; 16] = [
    "\"to\":",
    "\"from\":",
    "\"subject\":",
    "customer",
    "invoice",
    "order",
    "@example.com",
    "{",
    "},",
    "\"retries\":0,",
    "thumbnail",
    "https://images.example.net/",
    "welcome",
    "please",
    "the",
    "and",
];

/// A body of the kind that jobs have: words, names and numbers.
fn text(random: &mut Random, size: usize) -> Vec<u8> {
    let mut text = Vec::with_capacity(size + 64);
    while text.len() < size {
        let mut bits = random.next();
        for _ in 0..8 {
            text.extend_from_slice(WORDS[(bits & 15) as usize].as_bytes());
            bits >>= 4;
        }
        let _ = write!(text, " {bits:x} ");
    }
    text.truncate(size);
    text
}

/// A server, its writer and what joins its links.
struct Archived {
    engine: Engine,
    client: ClientId,
    writer: Writer,
    store: SimStore,
    levels: Option<Levels>,
    random: Random,
    now: Now,
    jobs: VecDeque<JobId>,
    owner_asked: Time,
    proved: Time,
    joined: Time,
}

impl Archived {
    /// One that has a backlog of jobs, before its archive begins.
    fn start(levels: Option<Levels>, codec: Codec) -> Archived {
        let (disk, store) = (SimFs::new(1), SimStore::new(1).with_codec(codec));
        let now = Now {
            mono: Time(SECOND_NS),
            wall_ns: 1_800_000_000_000_000_000,
        };
        let options = Options {
            dir: Some(DIR.into()),
            fs: Arc::new(disk.clone()),
            log_id: Some(LOG),
            ..Options::default()
        };
        let mut engine = Engine::open(&options, now).unwrap();
        let client = engine.connect();
        let trail = Arc::new(Trail::new(1 << 30));
        engine.publish_to([trail.clone()]);
        let mut archived = Archived {
            client,
            engine,
            writer: Writer::new(
                Arc::new(store.clone()),
                trail,
                Arc::new(disk),
                DIR.into(),
                "node".to_owned(),
                Sizes::default(),
            ),
            store,
            levels,
            random: Random::new(1),
            now,
            jobs: VecDeque::new(),
            owner_asked: now.mono,
            proved: now.mono,
            joined: now.mono,
        };
        while (archived.jobs.len() as u64) < BACKLOG {
            archived.put();
            archived.turn();
        }
        archived
    }

    fn run(&mut self, command: Command<'_>) {
        let request = Request::Command(command);
        self.engine.run(self.client, request, self.now, &mut Sink);
    }

    fn put(&mut self) {
        self.jobs.push_back(self.engine.queue().next_id());
        let body = text(&mut self.random, BODY_SIZE);
        self.run(Command::Put {
            tube: None,
            pri: 1,
            delay: 0,
            ttr: 60,
            body: body.into(),
        });
    }

    /// What the loop does after commands.
    fn turn(&mut self) {
        for _ in 0..TURNS_MAX {
            self.engine.tick(self.now, &mut Sink).unwrap();
            self.engine.commit(self.now).unwrap();
            let due = self.engine.next_deadline(self.now);
            if due.is_none_or(|due| due > self.now.mono) {
                return;
            }
        }
        panic!("the loop does not come to an end");
    }

    /// A second, in which this number of jobs is put, and as many old ones are deleted.
    fn second(&mut self, jobs: u64) {
        self.now.mono.0 += SECOND_NS;
        self.now.wall_ns += SECOND_NS as u64;
        for _ in 0..jobs {
            self.put();
            let oldest = self.jobs.pop_front().unwrap();
            self.run(Command::Delete(oldest));
        }
        self.turn();
        self.write();
        self.join();
    }

    /// As the thread `bsd-archive` does.
    fn write(&mut self) {
        let mono = self.now.mono;
        if mono.since(self.proved) >= PROOF_INTERVAL_NS {
            self.proved = mono;
            self.writer.doubt();
        }
        let mut is_due = true;
        loop {
            match self.writer.step(self.now.wall_ns, is_due).unwrap() {
                Done::Nothing => break,
                Done::Link => is_due = false,
                Done::Some => {}
                Done::Gap(at) => panic!("a gap at {at}"),
                Done::Hole(number) => panic!("link {number} is gone"),
            }
            self.turn();
        }
        if mono.since(self.owner_asked) >= OWNER_INTERVAL_NS {
            self.owner_asked = mono;
            self.writer.check_owner().unwrap();
        }
    }

    /// As the thread `bsd-levels` does.
    fn join(&mut self) {
        let Some(levels) = self.levels else {
            return;
        };
        if self.now.mono.since(self.joined) < INTERVAL.as_nanos() as i64 {
            return;
        }
        self.joined = self.now.mono;
        let reader = self.store.reader().with_connections(CONNECTIONS);
        let wall_ns = self.now.wall_ns;
        let done = pass(&reader, LOG, levels, wall_ns, &mut |_, _| true).unwrap();
        assert_eq!((&done.bad[..], done.is_cut), (&[][..], false));
    }

    /// Requests in this time, in each second of which this number of jobs is put.
    fn minutes(&mut self, minutes: u64, jobs: u64) -> Requests {
        let before = self.store.requests();
        for _ in 0..60 * minutes {
            self.second(jobs);
        }
        self.store.requests().since(before)
    }

    /// Bytes that are left of the first base and all changes since, if they are compressed as one
    /// stream: what the archive is for, and nothing else.
    fn needed(&self) -> u64 {
        let reader = self.store.reader();
        let mut stream = zstd::stream::write::Encoder::new(Count(0), LEVEL_DEFAULT).unwrap();
        let mut walk = Walk::from(reader, LOG, 1).unwrap();
        let mut is_first = true;
        while let Some(item) = walk.next(u64::MAX).unwrap() {
            let Item::Link { head, link } = item else {
                panic!("{item:?}");
            };
            let body = &link[HEAD_SIZE..];
            if head.kind == Kind::Base && std::mem::take(&mut is_first) {
                let list = BaseList::decode(body).unwrap();
                let parts = parts_of(LOG, &list);
                let taken = for_each_part(&reader, &parts, &mut |_, bytes| {
                    stream.write_all(&bytes.unwrap()).unwrap();
                    Ok::<(), Trouble>(())
                });
                taken.unwrap();
            } else if head.kind == Kind::Frames {
                stream.write_all(body).unwrap();
            }
        }
        stream.finish().unwrap().0
    }
}

/// Counts what is written to it.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// With a comma for thousands.
fn count(count: u64) -> String {
    match count {
        0..1000 => count.to_string(),
        _ => format!("{},{:03}", count / 1000, count % 1000),
    }
}

/// The rows of a table of docs/disaster-recovery.md are these.
fn assert_documented(rows: &[String]) {
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/disaster-recovery.md"
    );
    let page = std::fs::read_to_string(page).unwrap();
    for row in rows {
        println!("{row}");
    }
    for row in rows {
        assert!(page.contains(row), "docs/disaster-recovery.md lacks {row}");
    }
}

/// Run with `--nocapture`, it prints what docs/disaster-recovery.md says.
#[test]
fn cost_of_an_hour() {
    let compressed = Codec::default().compressing(Some(LEVEL_DEFAULT));
    let levels = Some(Levels::default());
    let mut rows = Vec::new();
    for (name, levels, codec) in [
        ("links apart", None, Codec::default()),
        ("links joined", levels, Codec::default()),
        ("links joined, compressed", levels, compressed),
    ] {
        let mut archived = Archived::start(levels, codec);
        // Until links are as old as those that are joined, and behind a base.
        archived.minutes(125, JOBS_A_SECOND);
        let bases = archived.writer.figures().bases;
        let busy = archived.minutes(60, JOBS_A_SECOND);
        assert_eq!(archived.writer.figures().bases, bases);
        // The last of them have aged, too.
        archived.minutes(75, 0);
        let idle = archived.minutes(60, 0);
        let (joins, bytes) = (levels.is_some(), busy.bytes_put);
        assert!(busy.puts >= 3600 && bytes > 25_000_000, "{busy:?}");
        assert_eq!(busy.puts == 3600, !joins, "{busy:?}");
        assert_eq!((idle.puts, idle.removals, idle.bytes_put), (0, 0, 0));
        // It asks for another owner, for the marker of the store, and for its last link.
        let asked = 360 + 60 + 60;
        assert!(idle.gets == asked || joins && idle.gets < 2 * asked);
        // Where the chain begins, two lists of links, and the marks of claims and of bases.
        assert_eq!(idle.lists, if joins { 60 * 5 } else { 0 });
        for (what, it) in [("busy", busy), ("idle", idle)] {
            let (put, got) = (mb(it.bytes_put), mb(it.bytes_got));
            let counts = [it.puts, it.lists, it.gets, it.removals];
            let [puts, lists, gets, removals] = counts.map(count);
            rows.push(format!(
                "| {what}, {name} | {puts} | {lists} | {gets} | {removals} | {put} | {got} |"
            ));
        }
    }
    assert_documented(&rows);
}

/// Run with `--nocapture`, it prints where the bytes are.
#[test]
fn what_is_stored_is_little_more_than_what_the_live_data_and_the_changes_take() {
    let hours = volume("BSD_COST_HOURS", 4);
    let compressed = Codec::default().compressing(Some(LEVEL_DEFAULT));
    let mut archived = Archived::start(Some(Levels::default()), compressed);
    archived.minutes(60 * hours, JOBS_A_SECOND);
    let (stored, needed) = (archived.store.size(), archived.needed());
    let bases = archived.writer.figures().bases;
    let size_of = |dir: &str| -> u64 {
        let names = archived.store.names().into_iter();
        let of = names.filter(|name| name.contains(dir));
        of.map(|name| archived.store.object(&name).unwrap().len() as u64)
            .sum()
    };
    let rows = [
        format!("| what they take, compressed | {} |", mb(needed)),
        format!(
            "| links of the last hour; joined ones | {}; {} |",
            mb(size_of("/chain/")),
            mb(size_of("/joined/"))
        ),
        format!("| {bases} bases | {} |", mb(size_of("/parts/"))),
        format!(
            "| all ÷ what they take | {:.2} |",
            stored as f64 / needed as f64
        ),
    ];
    println!("{}", rows.join("\n"));
    let ratio = stored as f64 / needed as f64;
    assert!(ratio < 1.3, "{ratio}: {rows:#?}");
    assert!(bases >= 2, "{bases}");
}
