//! Data directories written by earlier versions: each version from here on must read them.
//!
//! `tests/golden/v1/CASE` is a directory as bsd left it on the disk, without its lock, in version 1 of
//! the format; those in `v2` have what version 1 has not. Their files are never edited: the directories
//! of users do not change any more either. A case is added by writing its story below and running,
//! once,
//!
//! ```text
//! BSD_MAKE_GOLDEN=1 cargo test -p bsd-golden
//! ```
//!
//! which creates the missing directories, on a simulated disk, with a fixed log id and fixed times.
//! They come out the same, byte for byte, as long as the writing code has not changed. A test
//! requires that for the clean stop. If it fails, the format or the order of writes has changed: if
//! that was intended, add a case with the new bytes next to the old one, and require it of that one
//! instead.

#![allow(clippy::unwrap_used)] // all of this is a test

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::attributes::{Attributes, Reason, Unique};
use bsd::engine::{Engine, Flow, NewJob, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::convert::backup::{back_up, restore};
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::{FrameHeader, LogId, SegmentHeader, records, segment_header};
use bsd::storage::{OpenError, SimFs};
use bsd::types::{ClientId, JobId, Now, SettingClass, Ticket, Time};

/// 2027-01-15 08:00:00 UTC.
const WALL_NS: u64 = 1_800_000_000_000_000_000;
const MS_NS: i64 = 1_000_000;
const DIR: &str = "/data";

/// A directory's name, and how it comes about.
type Case = (&'static str, fn() -> SimFs);

const CASES: [Case; 7] = [
    ("clean-stop", clean_stop),
    ("killed", killed),
    ("torn-tail", torn_tail),
    ("compacted", compacted),
    ("damaged-middle", damaged_middle),
    ("kick-under-way", kick_under_way),
    ("restored", restored),
];

/// Those with frames of version 2.
const CASES_V2: [Case; 2] = [
    ("attributes", attributes),
    ("attributes-compacted", attributes_compacted),
];

fn all_cases() -> impl Iterator<Item = Case> {
    CASES.into_iter().chain(CASES_V2)
}

/// A server on a simulated disk, and one client.
struct Session {
    engine: Engine,
    client: ClientId,
    fs: SimFs,
    now: Now,
}

#[derive(Default)]
struct LastReply(Option<String>);

impl ReplySink for LastReply {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        self.0 = Some(format!("{reply:?}"));
    }
}

impl Session {
    fn open(fs: SimFs, now: Now) -> Result<Session, OpenError> {
        let options = Options {
            log_id: Some(LogId(*b"golden log no. 1")),
            ..Options::simulated(&fs, DIR)
        };
        let mut engine = Engine::open(&options, now)?;
        let client = engine.connect();
        Ok(Session {
            engine,
            client,
            fs,
            now,
        })
    }

    fn new() -> Session {
        let now = Now::new(Time(0), WALL_NS);
        Session::open(SimFs::new(1), now).unwrap()
    }

    /// Run a command, in the turn under way.
    fn send(&mut self, command: Command<'_>) -> Flow {
        let request = Request::Command(command);
        self.engine
            .run(self.client, request, self.now, &mut LastReply::default())
    }

    /// Run a command in a turn of its own, a millisecond after the last.
    fn run(&mut self, command: Command<'_>) -> String {
        let mut reply = LastReply::default();
        self.pass(MS_NS);
        let flow = self.engine.run(
            self.client,
            Request::Command(command.clone()),
            self.now,
            &mut reply,
        );
        assert_eq!(flow, Flow::Next, "{command:?}");
        self.engine.commit(self.now).unwrap();
        reply.0.unwrap()
    }

    fn pass(&mut self, ns: i64) {
        self.now.mono = Time(self.now.mono.0 + ns);
        self.now.wall_ns += ns as u64;
    }

    fn tick(&mut self) {
        self.pass(MS_NS);
        self.engine
            .tick(self.now, &mut LastReply::default())
            .unwrap();
        self.engine.commit(self.now).unwrap();
    }

    fn put(&mut self, pri: u32, delay: u32, body: &[u8]) {
        let reply = self.run(Command::put(pri, delay, 60, body));
        assert!(reply.starts_with("Inserted"), "{reply}");
    }

    fn take(&mut self, id: u64) {
        let reply = self.run(Command::ReserveJob(JobId(id)));
        assert!(reply.starts_with("Reserved"), "{reply}");
    }

    fn delete(&mut self, id: u64) {
        assert_eq!(self.run(Command::Delete(JobId(id))), "Deleted");
    }

    /// Put a job that has something beyond a plain job.
    fn put_with(&mut self, body: &[u8], attributes: &Attributes<'_>) {
        self.pass(MS_NS);
        let job = NewJob {
            tube: "mail",
            pri: 70,
            delay: 0,
            ttr: 60,
            body,
        };
        let put = self.engine.put_with(&job, attributes, self.now);
        assert!(put.unwrap().is_some());
        self.engine.commit(self.now).unwrap();
    }

    /// Give a job other attributes, in one frame with the update that buries it.
    fn fail(&mut self, id: u64, attributes: &Attributes<'_>) {
        self.pass(MS_NS);
        let bury = self.engine.queue().decide_bury(JobId(id), 71);
        let done = self
            .engine
            .attribute(JobId(id), bury.as_ref(), attributes, self.now);
        assert!(done.unwrap());
        self.engine.commit(self.now).unwrap();
    }

    fn set(&mut self, class: SettingClass, name: &str, value: &[u8]) {
        self.pass(MS_NS);
        assert!(self.engine.set(class, name, value, self.now).unwrap());
        self.engine.commit(self.now).unwrap();
    }

    /// A job in every state, one that is gone, and a tube that is paused.
    fn with_a_bit_of_everything() -> Session {
        let mut session = Session::new();
        session.put(10, 0, b"ready");
        session.put(20, 3600, b"delayed");
        session.run(Command::Use("mail".into()));
        session.put(30, 0, b"buried");
        session.put(40, 0, b"deleted");
        session.put(50, 0, b"released");
        session.put(60, 0, b"reserved\r\nwhen the server stopped");
        session.take(3);
        session.run(Command::Bury {
            id: JobId(3),
            pri: 31,
        });
        session.delete(4);
        session.take(5);
        session.run(Command::Release {
            id: JobId(5),
            pri: 51,
            delay: 0,
        });
        session.run(Command::pause_tube("mail", 600));
        session.take(6);
        session
    }
}

fn clean_stop() -> SimFs {
    let session = Session::with_a_bit_of_everything();
    session.engine.close(session.now).unwrap();
    session.fs
}

/// No marker at the end: the process was killed.
fn killed() -> SimFs {
    Session::with_a_bit_of_everything()
        .fs
        .crash_image(Crash::KeepAll)
}

/// The beginning of the last frame, an unacknowledged put of job 7, has arrived.
fn torn_tail() -> SimFs {
    let mut session = Session::with_a_bit_of_everything();
    let before = end_of_content(&session.fs, SEGMENT_1);
    session.put(70, 0, &[b'x'; 1000]);
    let path = Path::new(DIR).join(SEGMENT_1);
    let mut bytes = session.fs.read(&path).unwrap();
    bytes[before + 500..].fill(0);
    session.fs.write(&path, &bytes).unwrap();
    session.fs
}

/// Several segments, most of whose jobs are gone, and what compaction has made of them.
fn compacted() -> SimFs {
    let mut session = Session::new();
    for round in 0..8_u64 {
        for job in 0..16 {
            let body = vec![b'a' + (job as u8); 4000];
            session.put(job, 0, &body);
        }
        for job in 1..16 {
            session.delete(round * 16 + 1 + job);
        }
        for _ in 0..200 {
            session.tick();
        }
    }
    session.engine.close(session.now).unwrap();
    session.fs
}

/// A bit of the body of job 2 has flipped; later frames say that it was durable.
fn damaged_middle() -> SimFs {
    let session = Session::with_a_bit_of_everything();
    session.engine.close(session.now).unwrap();
    let path = Path::new(DIR).join(SEGMENT_1);
    let bytes = session.fs.read(&path).unwrap();
    let body = bytes
        .windows(7)
        .position(|window| window == b"delayed")
        .unwrap();
    session.fs.flip_bit(&path, body as u64 * 8).unwrap();
    session.fs
}

/// More jobs than one slice of a kick; killed between two of them.
const KICKED: u64 = 300;

fn kick_under_way() -> SimFs {
    let mut session = Session::new();
    session.pass(MS_NS);
    for id in 1..=KICKED {
        session.send(Command::put(1, 0, 60, b""));
        session.send(Command::ReserveJob(JobId(id)));
        session.send(Command::Bury {
            id: JobId(id),
            pri: 1,
        });
    }
    session.engine.commit(session.now).unwrap();
    session.pass(200 * MS_NS);
    session.tick(); // the log is idle
    assert_eq!(
        session.send(Command::Kick {
            tube: None,
            bound: 1000
        }),
        Flow::Blocked
    );
    session.engine.commit(session.now).unwrap();
    session.fs.crash_image(Crash::KeepAll)
}

/// A backup of a cleanly stopped log, and the directory restored from it.
fn restored() -> SimFs {
    let fs = clean_stop();
    let door: Arc<dyn Fs> = Arc::new(fs.clone());
    let (backup, restored) = (Path::new("/backup"), Path::new("/restored"));
    let now = Now::new(Time(0), WALL_NS + 1_000_000_000);
    back_up(&door, Path::new(DIR), backup, now, &mut |_, _| ()).unwrap();
    restore(&door, backup, restored, now, &mut |_, _| ()).unwrap();
    let target = SimFs::new(3);
    for name in fs.names(restored).unwrap() {
        let bytes = fs.read(restored.join(&name)).unwrap();
        target.write(Path::new(DIR).join(name), &bytes).unwrap();
    }
    target
}

/// What job 7 has, and job 8 at last.
const OF_A_KEY: Attributes<'static> = Attributes {
    key: Some("order-17"),
    unique: Some(Unique::Waiting),
    group: Some("customer-5"),
    tube: None,
    counted_from: Some(0),
    failures: None,
    reason: None,
    text: None,
    dead_lettered_from: None,
    counted_since_wall_ns: None,
};
const OF_A_DEAD_LETTER: Attributes<'static> = Attributes {
    key: None,
    unique: None,
    group: None,
    tube: Some("dead"),
    counted_from: Some(4),
    failures: Some(3),
    reason: Some(Reason::Failed),
    text: Some(b"no such host\xff"),
    dead_lettered_from: Some("mail"),
    counted_since_wall_ns: Some(WALL_NS),
};

/// A bit of everything, jobs with every attribute, one that is a plain job again, settings of each
/// class, and one that was removed.
fn with_attributes() -> Session {
    let mut session = Session::with_a_bit_of_everything();
    session.put_with(b"has a key", &OF_A_KEY);
    session.put_with(b"dies", &OF_A_KEY);
    session.fail(8, &OF_A_DEAD_LETTER);
    session.put_with(b"is plain again", &OF_A_KEY);
    session.fail(9, &Attributes::default());
    session.set(SettingClass::Policy, "mail-*", b"retry-min=5");
    session.set(SettingClass::Policy, "old", b"x");
    session.set(SettingClass::Schedule, "daily", b"0 8 * * *");
    session.set(SettingClass::Fired, "daily", b"\0\xff");
    session.set(SettingClass::Policy, "old", b"");
    session
}

fn attributes() -> SimFs {
    let session = with_attributes();
    session.engine.close(session.now).unwrap();
    session.fs
}

/// What compaction has left of the first segment begins with what needs version 2.
fn attributes_compacted() -> SimFs {
    let mut session = Session::new();
    session.put_with(b"has a key", &OF_A_KEY);
    session.set(SettingClass::Policy, "mail-*", b"retry-min=5");
    for _ in 0..6 {
        for _ in 0..16 {
            session.put(1, 0, &[b'a'; 4000]);
        }
        let last = session.engine.queue().next_id().0;
        for id in last - 16..last {
            session.delete(id);
        }
        for _ in 0..200 {
            session.tick();
        }
    }
    session.engine.close(session.now).unwrap();
    session.fs
}

const SEGMENT_1: &str = "segment-0000000001.00000";

fn end_of_content(fs: &SimFs, name: &str) -> usize {
    let bytes = fs.read(Path::new(DIR).join(name)).unwrap();
    bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

fn directory(case: &str) -> PathBuf {
    let is_v2 = CASES_V2.iter().any(|(name, _)| *name == case);
    let version = if is_v2 { "v2" } else { "v1" };
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(version)
        .join(case)
}

/// The files of a case, by name.
#[allow(clippy::disallowed_methods)] // a test's own data, no file of the server's
fn files(case: &str) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(directory(case))
        .unwrap_or_else(|error| panic!("no golden directory {case}: {error}"))
        .map(|entry| entry.unwrap())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The files of a simulated directory, without the lock.
fn simulated_files(fs: &SimFs) -> Vec<(String, Vec<u8>)> {
    let names = fs
        .names(DIR)
        .unwrap()
        .into_iter()
        .filter(|name| name != "lock");
    let read = |name: String| {
        let bytes = fs.read(Path::new(DIR).join(&name)).unwrap();
        (name, bytes)
    };
    let mut files: Vec<(String, Vec<u8>)> = names.map(read).collect();
    files.sort();
    files
}

/// A copy of a case on a simulated disk.
fn disk(case: &str) -> SimFs {
    let fs = SimFs::new(2);
    for (name, bytes) in files(case) {
        fs.write(Path::new(DIR).join(name), &bytes).unwrap();
    }
    fs
}

/// Open a copy of a case a minute after it was written.
fn open(case: &str) -> Result<Session, OpenError> {
    let now = Now::new(Time(0), WALL_NS + 60_000_000_000);
    Session::open(disk(case), now)
}

/// `id tube state pri body`, for every job.
fn jobs(session: &mut Session, ids: std::ops::RangeInclusive<u64>) -> Vec<String> {
    let mut found = Vec::new();
    for id in ids {
        let Some(job) = session.engine.queue().job(JobId(id)) else {
            continue;
        };
        let line = format!("{id} {} {} {}", job.tube, job.state.word(), job.pri);
        let mut body = Body::default();
        let request = Request::Command(Command::Peek(JobId(id)));
        session
            .engine
            .run(session.client, request, session.now, &mut body);
        found.push(format!("{line} {}", body.0.escape_ascii()));
    }
    found
}

#[derive(Default)]
struct Body(Vec<u8>);

impl ReplySink for Body {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        let Reply::Found(_, body) = reply else {
            panic!("{reply:?}")
        };
        self.0 = body.to_vec();
    }
}

/// The jobs of [`Session::with_a_bit_of_everything`] after a restart.
const A_BIT_OF_EVERYTHING: [&str; 5] = [
    "1 default ready 10 ready",
    "2 default delayed 20 delayed",
    "3 mail buried 31 buried",
    "5 mail ready 51 released",
    r"6 mail ready 60 reserved\r\nwhen the server stopped",
];

#[test]
fn golden_directories_that_are_missing_are_made_on_request() {
    for (case, story) in all_cases() {
        if std::env::var_os("BSD_MAKE_GOLDEN").is_none() || directory(case).exists() {
            continue;
        }
        std::fs::create_dir_all(directory(case)).unwrap();
        for (name, bytes) in simulated_files(&story()) {
            #[allow(clippy::disallowed_methods)] // a test's own data, no file of the server's
            std::fs::write(directory(case).join(name), bytes).unwrap();
        }
    }
}

#[test]
fn d29_golden_clean_stop_is_written_the_same_to_the_byte() {
    assert_same("clean-stop", &clean_stop());
}

#[test]
fn golden_attributes_are_written_the_same_to_the_byte() {
    assert_same("attributes", &attributes());
}

fn assert_same(case: &str, today: &SimFs) {
    let (golden, today) = (files(case), simulated_files(today));
    let names = |files: &[(String, Vec<u8>)]| -> Vec<String> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    assert_eq!(names(&golden), names(&today));
    for ((name, golden), (_, today)) in golden.iter().zip(&today) {
        let first = golden.iter().zip(today).position(|(old, new)| old != new);
        assert_eq!(first, None, "{name}: the first byte that differs");
        assert_eq!(golden.len(), today.len(), "{name}");
    }
}

#[test]
fn golden_clean_stop_comes_back_whole() {
    let mut session = open("clean-stop").unwrap();
    assert!(session.engine.recovery().clean_stop);
    assert_eq!(session.engine.recovery().torn, None);
    assert_eq!(jobs(&mut session, 1..=10), A_BIT_OF_EVERYTHING);
    // Counters, the delay and the pause survive, less the minute that has passed.
    let queue = session.engine.queue();
    let counters = |id| queue.job(JobId(id)).unwrap().counters;
    assert_eq!((counters(3).reserves, counters(3).buries), (1, 1));
    assert_eq!((counters(5).reserves, counters(5).releases), (1, 1));
    assert_eq!(counters(6).reserves, 1);
    let due = queue.job(JobId(2)).unwrap().deadline.unwrap();
    assert_eq!((due.0 + 500 * MS_NS) / 1_000_000_000, 3540);
    let pause = queue.tube_stats("mail", Time(0)).unwrap();
    assert_eq!(
        (
            pause.pause,
            (pause.pause_left_ns + 500 * MS_NS) / 1_000_000_000
        ),
        (600, 540)
    );
    // No id is issued twice.
    assert_eq!(
        session.run(Command::put(1, 0, 1, b"")),
        "Inserted(JobId(7))"
    );
}

#[test]
fn golden_killed_comes_back_whole_but_for_the_last_counters() {
    let mut session = open("killed").unwrap();
    assert!(!session.engine.recovery().clean_stop);
    assert_eq!(session.engine.recovery().torn, None);
    assert_eq!(jobs(&mut session, 1..=10), A_BIT_OF_EVERYTHING);
}

#[test]
fn golden_torn_tail_is_cut_and_saved_and_the_log_goes_on_behind_it() {
    let mut session = open("torn-tail").unwrap();
    let (size, saved) = session.engine.recovery().torn.clone().unwrap();
    let saved = session
        .fs
        .read(Path::new(DIR).join(saved.unwrap()))
        .unwrap();
    assert_eq!((size, saved.len()), (500, 500));
    assert!(saved.starts_with(b"bFRM"));
    assert_eq!(jobs(&mut session, 1..=10), A_BIT_OF_EVERYTHING);
    let names = session.fs.names(DIR).unwrap();
    assert!(
        names.iter().any(|name| name == "segment-0000000002.00000"),
        "{names:?}"
    );
    // New puts survive a restart, too.
    session.put(1, 0, b"afterwards");
    let (fs, now) = (session.fs.clone(), session.now);
    session.engine.close(now).unwrap();
    let mut session = Session::open(fs, now).unwrap();
    assert_eq!(
        jobs(&mut session, 7..=10),
        ["7 mail ready 1 afterwards"].map(|job| { job.replace("mail", "default") })
    );
}

#[test]
fn golden_compacted_comes_back_whole() {
    let rewritten =
        |(name, _): &(String, Vec<u8>)| name.starts_with("segment-") && !name.ends_with(".00000");
    assert!(
        files("compacted").iter().any(rewritten),
        "compaction has left its mark"
    );
    let mut session = open("compacted").unwrap();
    assert_eq!(session.engine.recovery().torn, None);
    let expected: Vec<String> = (0..8)
        .map(|round| format!("{} default ready 0 {}", round * 16 + 1, "a".repeat(4000)))
        .collect();
    assert_eq!(jobs(&mut session, 1..=200), expected);
}

#[test]
fn golden_attributes_come_back_whole() {
    let mut session = open("attributes").unwrap();
    assert!(session.engine.recovery().clean_stop);
    let expected = [
        &A_BIT_OF_EVERYTHING[..],
        &["7 mail ready 70 has a key", "8 dead buried 71 dies"],
        &["9 mail buried 71 is plain again"],
    ];
    assert_eq!(jobs(&mut session, 1..=20), expected.concat());
    let queue = session.engine.queue();
    let of = |id| queue.attributes(JobId(id)).and_then(Attributes::decode);
    let expected = [None, Some(OF_A_KEY), Some(OF_A_DEAD_LETTER)];
    assert_eq!([6, 7, 8].map(of), expected);
    assert_eq!(of(9), Some(Attributes::default()));
    let setting = |class, name| session.engine.setting(class, name);
    assert_eq!(
        setting(SettingClass::Policy, "mail-*"),
        Some(&b"retry-min=5"[..])
    );
    assert_eq!(setting(SettingClass::Policy, "old"), None);
    assert_eq!(
        setting(SettingClass::Schedule, "daily"),
        Some(&b"0 8 * * *"[..])
    );
    assert_eq!(setting(SettingClass::Fired, "daily"), Some(&b"\0\xff"[..]));
}

#[test]
fn golden_attributes_that_were_compacted_come_back_whole() {
    let versions: Vec<u16> = segments("attributes-compacted")
        .map(|(header, _)| header.version)
        .collect();
    assert!(
        versions.contains(&1) && versions.contains(&2),
        "{versions:?}"
    );
    let mut session = open("attributes-compacted").unwrap();
    assert_eq!(jobs(&mut session, 1..=200), ["1 mail ready 70 has a key"]);
    let list = session.engine.queue().attributes(JobId(1));
    assert_eq!(list.and_then(Attributes::decode), Some(OF_A_KEY));
    let policy = session.engine.setting(SettingClass::Policy, "mail-*");
    assert_eq!(policy, Some(&b"retry-min=5"[..]));
}

/// An older bsd reads what needs no more than version 1.
#[test]
fn golden_directories_of_version_1_say_version_1_in_all_of_their_segments() {
    for (case, _) in CASES {
        assert!(
            segments(case).all(|(header, _)| header.version == 1),
            "{case}"
        );
    }
}

#[test]
fn golden_kick_under_way_is_finished() {
    let session = open("kick-under-way").unwrap();
    let queue = session.engine.queue();
    for id in 1..=KICKED {
        let job = queue.job(JobId(id)).unwrap();
        assert_eq!((job.state.word(), job.counters.kicks), ("ready", 1), "{id}");
    }
}

#[test]
fn golden_restored_comes_back_whole_and_is_another_epoch() {
    let mut session = open("restored").unwrap();
    assert_eq!(jobs(&mut session, 1..=10), A_BIT_OF_EVERYTHING);
    let epochs: Vec<u32> = segments("restored")
        .map(|(header, _)| header.epoch)
        .collect();
    assert_eq!(epochs, [1, 2]);
}

#[test]
fn golden_restored_is_made_today_in_another_epoch() {
    let headers = decoded(simulated_files(&restored()));
    let epochs: Vec<u32> = headers.map(|(header, _)| header.epoch).collect();
    // The second segment of the new epoch says which ids are left out.
    assert_eq!(epochs, [1, 2, 2]);
}

/// The headers and the bytes of a case's segments.
fn segments(case: &str) -> impl Iterator<Item = (SegmentHeader, Vec<u8>)> {
    decoded(files(case))
}

fn decoded(files: Vec<(String, Vec<u8>)>) -> impl Iterator<Item = (SegmentHeader, Vec<u8>)> {
    let is_segment = |(name, _): &(String, Vec<u8>)| name.starts_with("segment-");
    let decoded = |(_, bytes): (String, Vec<u8>)| (SegmentHeader::decode(&bytes).unwrap(), bytes);
    files.into_iter().filter(is_segment).map(decoded)
}

/// A later version has to read everything that this one writes.
#[test]
fn golden_directories_hold_every_kind_of_frame_and_of_record() {
    let mut kinds = BTreeSet::new();
    for (header, bytes) in all_cases().flat_map(|(case, _)| segments(case)) {
        let seed = header.identity.seed();
        let mut at = segment_header::SIZE;
        while let Some(frame) = FrameHeader::decode(&bytes[at..], seed, at as u32) {
            kinds.insert(format!("{:?}", frame.kind));
            for (_, record) in records(&bytes[at..], &frame, at as u32) {
                let word = format!("{record:?}");
                kinds.insert(word.split([' ', '(']).next().unwrap().to_owned());
            }
            at += frame.frame_size() as usize;
        }
    }
    let frames = ["CleanStop", "Data", "Idle", "Seal"];
    let records = [
        "Attributes",
        "Delete",
        "Kick",
        "Manifest",
        "Pause",
        "Put",
        "Setting",
        "Switch",
        "Update",
    ];
    let all: BTreeSet<String> = frames
        .into_iter()
        .chain(records)
        .map(str::to_owned)
        .collect();
    assert_eq!(kinds, all);
}

#[test]
fn golden_damage_in_the_middle_is_refused_with_file_offset_and_job() {
    let before = disk("damaged-middle");
    let Err(OpenError::Damaged { damages, .. }) = open("damaged-middle") else {
        panic!("the directory was opened")
    };
    let [damage] = &damages[..] else {
        panic!("{damages:?}")
    };
    assert_eq!(
        (damage.file.as_str(), &damage.jobs[..]),
        (SEGMENT_1, &[JobId(2)][..])
    );
    let (offset, size) = damage.range.unwrap();
    let bytes = before.read(Path::new(DIR).join(SEGMENT_1)).unwrap();
    let frame = &bytes[offset as usize..(offset + size) as usize];
    assert!(frame.starts_with(b"bFRM"));
    assert!(frame.windows(7).any(|window| window == b"eelayed"));
}

#[test]
fn golden_directories_are_left_as_they_are_when_opening_is_refused() {
    let fs = disk("damaged-middle");
    let now = Now::new(Time(0), WALL_NS);
    assert!(Session::open(fs.clone(), now).is_err());
    assert_eq!(simulated_files(&fs), files("damaged-middle"));
}
