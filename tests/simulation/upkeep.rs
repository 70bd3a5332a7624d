//! Work other than commands: ended pauses, counters that no reply waits for, and the search for a
//! client that watches very many tubes.

use std::time::Duration;

use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Command, Reply, Request};
use bsd::storage::disk::sim::Crash;
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::{ClientId, JobId, Now, Ticket};

use super::driver::{after_restart, beginning, options};

const SEGMENT_SIZE: u32 = 64 << 10;
const MEMORY_MAX: u64 = 1 << 40;

/// The last reply.
#[derive(Default)]
struct Last(String);

impl ReplySink for Last {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        self.0 = format!("{reply:?}");
    }
}

/// An engine, the time, and one client.
struct Life {
    fs: SimFs,
    engine: Engine,
    client: ClientId,
    now: Now,
    last: Last,
}

impl Life {
    fn open(fs: &SimFs, now: Now) -> Life {
        let options = Options {
            segment_size: SEGMENT_SIZE,
            memory_max: Some(MEMORY_MAX),
            ..options(fs, SyncPolicy::Always)
        };
        let mut engine = Engine::open(&options, now).expect("a sound disk");
        Life {
            fs: fs.clone(),
            client: engine.connect(),
            engine,
            now,
            last: Last::default(),
        }
    }

    fn begin() -> Life {
        Life::open(&SimFs::new(1), beginning())
    }

    fn after_crash(&self) -> Life {
        let image = self.fs.crash_image(Crash::DropUnsynced);
        Life::open(&image, after_restart(self.now))
    }

    /// The reply to the client.
    fn ask(&mut self, command: Command<'_>) -> &str {
        self.ask_as(self.client, command)
    }

    fn ask_as(&mut self, client: ClientId, command: Command<'_>) -> &str {
        self.last.0.clear();
        let request = Request::Command(command);
        self.engine.run(client, request, self.now, &mut self.last);
        &self.last.0
    }

    /// A turn, this many milliseconds later.
    fn turn(&mut self, ms: u32) {
        let ns = i64::from(ms) * 1_000_000;
        self.now.mono.0 += ns;
        self.now.wall_ns += ns as u64;
        self.engine
            .tick(self.now, &mut self.last)
            .expect("a sound disk");
        self.engine.commit(self.now).expect("a sound disk");
    }

    /// Turns, until nothing is left to be done at once.
    fn settle(&mut self) {
        self.turn(0);
        while self
            .engine
            .next_deadline(self.now)
            .is_some_and(|due| due <= self.now.mono)
        {
            self.turn(0);
        }
    }

    fn memory(&self) -> u64 {
        MEMORY_MAX - self.engine.memory_left()
    }

    fn put(&mut self, body: &[u8]) -> bool {
        let put = Command::put(1, 0, 60, body);
        self.ask(put).starts_with("Inserted")
    }

    fn reserve(&mut self) -> String {
        let command = Command::reserve(Some(Duration::ZERO));
        self.ask(command).to_owned()
    }

    fn tubes(&self) -> u64 {
        self.engine.queue().stats().tubes
    }

    fn records(&self) -> u64 {
        self.engine.log().expect("there is a log").records_written()
    }
}

fn tube(number: u32) -> String {
    format!("tube-{number}")
}

const FOR_EVER: u32 = u32::MAX;

/// Pauses this many tubes forever, each of which vanishes when the next one is used.
fn pause_and_leave(life: &mut Life, count: u32) {
    for number in 0..count {
        let tube = tube(number);
        life.ask(Command::Use((&tube).into()));
        let pause = Command::pause_tube(&tube, FOR_EVER);
        assert_eq!(life.ask(pause), "Paused");
        if number % 50 == 0 {
            life.turn(0);
        }
    }
    life.ask(Command::Use("default".into()));
    life.settle();
}

#[test]
fn f20_tubes_that_vanished_while_they_were_paused_leave_nothing() {
    let mut life = Life::begin();
    let before = life.memory();
    pause_and_leave(&mut life, 100);
    assert!(
        life.memory() > before + 100 * 100,
        "what the log needs is counted"
    );
    pause_and_leave(&mut life, 20_000);
    // Compaction comes by everything that was written before.
    for _ in 0..20 {
        for _ in 0..500 {
            assert!(life.put(&[7; 200]));
        }
        for _ in 0..500 {
            assert!(life.reserve().starts_with("Reserved"));
        }
        life.turn(0);
        let last = life.engine.queue().next_id().0;
        for id in last - 500..last {
            assert_eq!(life.ask(Command::Delete(JobId(id))), "Deleted");
        }
        life.settle();
    }
    assert!(
        life.memory() < before + 50_000,
        "{} from {before}",
        life.memory()
    );
    assert!(
        life.fs.used() < 12 * u64::from(SEGMENT_SIZE),
        "{}",
        life.fs.used()
    );
    let life = life.after_crash();
    assert_eq!(life.tubes(), 1);
}

#[test]
fn f20_the_end_of_a_pause_is_kept_as_long_as_a_restart_could_bring_the_pause_back() {
    let mut life = Life::begin();
    pause_and_leave(&mut life, 500);
    // So many that compaction happens repeatedly, with a crash at each stage of it.
    for round in 0..200 {
        assert!(life.put(&[7; 900]));
        assert!(life.reserve().starts_with("Reserved"));
        let id = JobId(life.engine.queue().next_id().0 - 1);
        assert_eq!(life.ask(Command::Delete(id)), "Deleted");
        life.turn(0);
        assert_eq!(life.after_crash().tubes(), 1, "round {round}");
    }
}

#[test]
fn f20_on_a_full_disk_a_tube_that_vanished_is_not_paused_after_a_restart() {
    let mut life = Life::begin();
    life.fs.set_quota(Some(1 << 20));
    let other = life.engine.connect();
    for number in 0..4_000 {
        let tube = tube(number);
        life.ask_as(other, Command::Watch((&tube).into()));
        let pause = Command::pause_tube(&tube, FOR_EVER);
        assert_eq!(life.ask(pause), "Paused");
        life.turn(0);
    }
    while life.put(&[7; 200]) {
        life.turn(0);
    }
    life.engine.disconnect(other, life.now);
    (0..100).for_each(|_| life.turn(1));
    let last = life.engine.queue().next_id().0;
    for id in 1..last {
        life.ask(Command::Delete(JobId(id)));
        life.turn(1);
    }
    life.settle();
    assert_eq!((life.tubes(), life.after_crash().tubes()), (1, 1));
}

/// T4 and its neighbour: both counts reach the log soon, without a clean stop.
#[test]
fn t4_counts_of_reserves_and_timeouts_survive_a_crash_two_seconds_later() {
    let mut life = Life::begin();
    assert!(life.put(b"x"));
    assert!(life.reserve().starts_with("Reserved"));
    life.turn(0);
    life.turn(60);
    life.turn(120);
    let counters = |life: &Life| {
        let job = life.engine.queue().job(JobId(1)).expect("a job");
        (job.counters.reserves, job.counters.timeouts)
    };
    assert_eq!(counters(&life.after_crash()), (1, 0));
    life.turn(60_000);
    assert_eq!(counters(&life), (1, 1));
    life.turn(60);
    life.turn(120);
    assert_eq!(counters(&life.after_crash()), (1, 1));
}

#[test]
fn t11_counters_are_logged_a_few_hundred_in_a_turn() {
    let mut life = Life::begin();
    for _ in 0..3_000 {
        assert!(life.put(b"x"));
    }
    for _ in 0..3_000 {
        assert!(life.reserve().starts_with("Reserved"));
    }
    life.turn(0);
    let mut before = life.records();
    let begun = before;
    while life.engine.queue().dirty_count() > 0 {
        life.turn(60);
        let records = life.records() - before;
        assert!((1..=520).contains(&records), "{records}");
        before += records;
    }
    assert_eq!(before - begun, 3_000);
}

#[test]
fn f21_a_reserve_that_has_much_to_look_through_is_answered_in_a_later_turn() {
    let mut life = Life::begin();
    for number in 0..3_000 {
        life.ask(Command::Watch(tube(number).into()));
    }
    let other = life.engine.connect();
    for number in 5_000..8_000 {
        life.ask_as(other, Command::Watch(tube(number).into()));
        life.ask(Command::Use(tube(number).into()));
        assert!(life.put(b"x"));
    }
    life.settle();
    assert_eq!(life.reserve(), "", "not yet");
    life.settle();
    assert_eq!(life.last.0, "TimedOut");
    life.ask(Command::Use(tube(77).into()));
    assert!(life.put(b"y"));
    assert_eq!(life.reserve(), "");
    life.engine
        .half_closed(life.client, life.now, &mut life.last);
    assert_eq!(life.last.0, "", "there may be a job");
    life.settle();
    assert!(life.last.0.starts_with("Reserved"), "{}", life.last.0);
}

/// A client with a long list pays for the lists of clients that have left: however many come in a
/// turn, the remaining lists do not grow.
#[test]
fn f21_watch_lists_of_clients_that_come_and_go_do_not_pile_up() {
    const LIST_LEN: usize = 1_000;
    let mut life = Life::begin();
    let watches_after = |life: &mut Life, clients: usize| {
        for _ in 0..clients {
            let client = life.engine.connect();
            for number in 0..LIST_LEN {
                life.ask_as(client, Command::Watch(tube(number as u32).into()));
            }
            life.engine.disconnect(client, life.now);
        }
        life.engine.queue().clients_memory()
    };
    let (few, many) = (watches_after(&mut life, 3), watches_after(&mut life, 30));
    assert!(many <= 2 * few, "{few} bytes, and later {many}");
}
