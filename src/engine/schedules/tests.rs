//! Schedules in virtual time, on a disk that crashes.

use super::*;
use crate::engine::{Options, ReplySink};
use crate::protocol::{Command, Decoder, Limits, Reply, Request, encode};
use crate::storage::SimFs;
use crate::storage::disk::sim::Crash;
use crate::types::{ClientId, Ticket};

/// 2026-12-01T00:00:30Z
const BEGIN_NS: u64 = 1_796_083_230_000_000_000;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// All replies, as they would be sent.
#[derive(Default)]
struct Replies(Vec<u8>);

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        encode(&reply, &mut self.0);
    }
}

struct Server {
    disk: SimFs,
    engine: Engine,
    client: ClientId,
    now: Now,
    job_size_max: u32,
}

fn options(disk: &SimFs) -> Options {
    Options::simulated(disk, "/log")
}

/// The order to set a schedule of this name, which ends a pause.
fn named(name: &str, schedule: Schedule) -> SetSchedule {
    SetSchedule {
        name: name.to_owned(),
        schedule,
        keeps_pause: false,
    }
}

fn schedule(words: &str) -> Schedule {
    let schedule: Schedule = words.parse().unwrap();
    Schedule {
        body: b"body".to_vec(),
        ..schedule
    }
}

fn beginning() -> Now {
    Now::new(Time(0), BEGIN_NS)
}

impl Server {
    fn new() -> Server {
        Server::on(SimFs::new(1))
    }

    fn on(disk: SimFs) -> Server {
        let engine = Engine::open(&options(&disk), beginning()).unwrap();
        Server::of(disk, engine, beginning())
    }

    fn of(disk: SimFs, mut engine: Engine, now: Now) -> Server {
        let client = engine.connect();
        Server {
            disk,
            engine,
            client,
            now,
            job_size_max: 65_535,
        }
    }

    /// With a schedule of this name.
    fn with(name: &str, words: &str) -> Server {
        let mut server = Server::new();
        server.set(name, words);
        server
    }

    fn set(&mut self, name: &str, words: &str) {
        let set = self
            .engine
            .set_schedule(&named(name, schedule(words)), self.now);
        assert_eq!(set.unwrap(), ScheduleChange::Done);
        self.engine.commit(self.now).unwrap();
    }

    fn say(&mut self, line: &str) -> String {
        let bytes = format!("{line}\r\n");
        let (mut decoder, mut replies) = (Decoder::default(), Replies::default());
        let limits = Limits::of(self.job_size_max);
        let mut input = bytes.as_bytes();
        let request = decoder.decode(&mut input, limits).expect("a whole request");
        self.engine
            .run(self.client, request, self.now, &mut replies);
        self.engine.commit(self.now).unwrap();
        String::from_utf8(replies.0).unwrap()
    }

    /// All that is to be done now. Returns how many turns that took; `None`: the disk failed.
    fn try_turns(&mut self) -> Option<usize> {
        for turn in 1..1000 {
            self.engine.tick(self.now, &mut Replies::default()).ok()?;
            self.engine.commit(self.now).ok()?;
            let next = self.engine.next_deadline(self.now);
            if next.is_none_or(|next| next > self.now.mono) {
                return Some(turn);
            }
        }
        panic!("there is always more to do at once");
    }

    fn turns(&mut self) -> usize {
        self.try_turns().expect("the disk works")
    }

    /// Time goes on, from one thing to do to the next: what is not among them is not done.
    fn try_wait(&mut self, seconds: u64) -> Option<()> {
        let end = self.now.mono.plus_seconds(seconds as u32);
        loop {
            self.try_turns()?;
            let next = self.engine.next_deadline(self.now);
            let next = next.filter(|next| *next <= end).unwrap_or(end);
            self.now.wall_ns += next.since(self.now.mono) as u64;
            self.now.mono = next;
            if next == end {
                self.try_turns()?;
                return Some(());
            }
        }
    }

    fn wait(&mut self, seconds: u64) {
        self.try_wait(seconds).expect("the disk works");
    }

    /// The wall clock is set.
    fn set_clock(&mut self, seconds: i64) {
        let ns = seconds * SECOND_NS;
        self.now.wall_ns = self.now.wall_ns.checked_add_signed(ns).unwrap();
    }

    /// The power fails, and it takes a while until the server is there again.
    fn restart_after(&mut self, seconds: u64) {
        self.disk = self.disk.crash_image(Crash::DropUnsynced);
        self.now.wall_ns += seconds * SECOND_NS as u64;
        self.engine = Engine::open(&options(&self.disk), self.now).unwrap();
        self.client = self.engine.connect();
    }

    fn jobs(&self) -> u64 {
        self.engine.queue().stats().jobs.total()
    }

    /// Wall times of the puts of all jobs, in minutes since the beginning of the hour in which it began.
    fn minutes(&self) -> Vec<u64> {
        let ids = 1..=self.engine.queue().stats().total_jobs + 100;
        let jobs = ids.filter_map(|id| self.engine.queue().job(JobId(id)));
        let of = |wall_ns: u64| (wall_ns - (BEGIN_NS - 30 * SECOND_NS as u64)) / 1_000_000_000 / 60;
        jobs.map(|job| of(self.now.to_wall(job.created))).collect()
    }

    fn delete_all(&mut self) {
        for id in 1..=1000 {
            if self.engine.queue().job(JobId(id)).is_some() {
                let delete = Request::Command(Command::Delete(JobId(id)));
                self.engine
                    .run(self.client, delete, self.now, &mut Replies::default());
            }
        }
        self.engine.commit(self.now).unwrap();
    }

    fn view(&self, name: &str) -> ScheduleView<'_> {
        self.engine.schedule(name).unwrap()
    }

    fn fired_up_to(&self, name: &str) -> u64 {
        self.view(name).fired_up_to_ns as u64 / SECOND_NS as u64
    }
}

#[test]
fn each_firing_puts_one_job_also_after_restarts() {
    let mut server = Server::with("report", "cron=*/10_*_*_*_* tube=mail pri=7 ttr=9");
    assert_eq!(server.jobs(), 0);
    server.wait(HOUR);
    assert_eq!(server.minutes(), [10, 20, 30, 40, 50, 60]);
    let job = server.engine.queue().job(JobId(1)).unwrap();
    assert_eq!(
        (job.tube, job.pri, job.ttr, job.body_size),
        ("mail", 7, 9, 4)
    );
    server.restart_after(0);
    server.wait(30 * MINUTE);
    server.restart_after(1);
    server.wait(30 * MINUTE);
    assert_eq!(server.jobs(), 12);
    assert_eq!(server.engine.schedule_figures().fired, 3);
}

#[test]
fn without_schedules_there_is_nothing_to_do() {
    let mut server = Server::new();
    server.turns();
    assert_eq!(server.engine.schedules.due(), None);
    server.wait(1);
    assert_eq!(server.engine.next_deadline(server.now), None);
    server.set("a", "cron=0_0_1_1_* tube=mail");
    server.turns();
    // The wall clock may be set meanwhile.
    let next = server.engine.next_deadline(server.now).unwrap();
    assert!(next <= server.now.mono.plus_seconds(60));
    assert_eq!(
        server.engine.delete_schedule("a", server.now).unwrap(),
        ScheduleChange::Done
    );
    server.turns();
    server.wait(1);
    assert_eq!(server.engine.next_deadline(server.now), None);
}

#[test]
fn in_memory_alone_schedules_fire_too() {
    let engine = Engine::open(&Options::default(), beginning()).unwrap();
    let mut server = Server::of(SimFs::new(1), engine, beginning());
    server.set("a", "cron=*_*_*_*_* tube=mail key=k");
    server.wait(5 * MINUTE);
    assert_eq!(server.jobs(), 1);
    server.delete_all();
    server.wait(MINUTE);
    assert_eq!(server.jobs(), 1);
}

/// A schedule and three of its firings, as far as the disk goes. Whether the schedule was acknowledged.
fn three_firings(server: &mut Server, words: &str) -> (bool, bool) {
    let set = server
        .engine
        .set_schedule(&named("a", schedule(words)), server.now);
    let is_set = set.is_ok() && server.engine.commit(server.now).is_ok();
    let is_set = is_set && !server.disk.is_crashed();
    let is_done = is_set && server.try_wait(3 * MINUTE).is_some();
    (is_set, is_done && !server.disk.is_crashed())
}

#[test]
fn a_crash_at_any_operation_around_firings_leaves_each_of_them_with_one_job() {
    for words in [
        "cron=*_*_*_*_* tube=mail",
        "cron=*_*_*_*_* tube=mail missed=once",
        "cron=*_*_*_*_* tube=mail missed=all",
    ] {
        let mut count = 0;
        for at in 0.. {
            let disk = SimFs::new(at);
            disk.crash_at(at);
            let Ok(engine) = Engine::open(&options(&disk), beginning()) else {
                continue;
            };
            let mut server = Server::of(disk, engine, beginning());
            let (is_set, is_done) = three_firings(&mut server, words);
            if is_done {
                assert!(count > 10, "{count} operations");
                break;
            }
            count += 1;
            for how in [
                Crash::KeepAll,
                Crash::DropUnsynced,
                Crash::Random { seed: at },
            ] {
                println!("{words}, operation {at}, {how:?}");
                let disk = server.disk.crash_image(how);
                // It is down for a moment, over no firing or over one.
                for down in [0, 31] {
                    let mut now = server.now;
                    now.wall_ns += down * SECOND_NS as u64;
                    let disk = disk.crash_image(Crash::KeepAll);
                    let engine = Engine::open(&options(&disk), now).unwrap();
                    let mut again = Server::of(disk, engine, now);
                    let is_there = again.engine.schedule("a").is_some();
                    assert!(is_there || !is_set);
                    let left = (BEGIN_NS + 3 * 60 * SECOND_NS as u64).saturating_sub(now.wall_ns);
                    again.wait(left / SECOND_NS as u64 + 1);
                    let mut minutes = again.minutes();
                    minutes.dedup();
                    assert_eq!(
                        minutes.len() as u64,
                        again.jobs(),
                        "none twice: {minutes:?}"
                    );
                    assert_eq!(again.jobs(), if is_there { 3 } else { 0 });
                }
            }
        }
    }
}

#[test]
fn what_was_missed_is_left_out_or_made_up_for() {
    for (missed, jobs) in [("skip", 0), ("once", 1), ("all", 5)] {
        let words = format!("cron=0_*_*_*_* tube=mail missed={missed}");
        let mut server = Server::with("a", &words);
        server.turns();
        server.restart_after(5 * HOUR + 10 * MINUTE);
        server.turns();
        assert_eq!(server.jobs(), jobs, "{missed}");
        assert_eq!(server.engine.schedule_figures().missed, 1);
        // Neither another time, nor instead of what comes.
        server.restart_after(0);
        server.turns();
        assert_eq!(server.jobs(), jobs, "{missed}");
        server.wait(HOUR);
        assert_eq!(server.jobs(), jobs + 1, "{missed}");
    }
}

#[test]
fn of_very_many_that_were_missed_the_last_ones_are_made_up_for() {
    let mut server = Server::with("a", "cron=*_*_*_*_* tube=mail missed=all");
    server.turns();
    server.restart_after(24 * 365 * HOUR);
    server.turns();
    assert_eq!(server.jobs(), 100);
    server.wait(MINUTE);
    assert_eq!(server.jobs(), 101);
}

#[test]
fn a_crash_amid_what_is_made_up_for_does_none_twice() {
    let mut server = Server::with("a", "cron=*_*_*_*_* tube=mail missed=all");
    server.turns();
    server.restart_after(3 * HOUR);
    // One turn: some of them.
    server
        .engine
        .tick(server.now, &mut Replies::default())
        .unwrap();
    server.engine.commit(server.now).unwrap();
    assert_eq!(server.jobs(), FIRED_A_TICK as u64);
    server.restart_after(0);
    server.turns();
    assert_eq!(server.jobs(), 100);
}

#[test]
fn a_firing_that_is_less_than_a_minute_late_is_done() {
    for (down, jobs) in [(31, 1), (90, 1), (91, 0)] {
        let mut server = Server::with("a", "cron=1_0_*_*_* tube=mail");
        server.restart_after(down);
        server.turns();
        assert_eq!(server.jobs(), jobs, "{down} seconds");
    }
}

#[test]
fn a_clock_that_is_set_back_does_nothing_twice_and_one_set_forward_is_as_a_stop() {
    let mut server = Server::with("a", "cron=0_*_*_*_* tube=mail");
    server.wait(HOUR);
    assert_eq!(server.jobs(), 1);
    server.set_clock(-(HOUR as i64));
    server.wait(HOUR);
    assert_eq!(server.jobs(), 1, "it has been one o'clock before");
    server.restart_after(0);
    server.set_clock(-(HOUR as i64));
    server.wait(HOUR);
    assert_eq!(server.jobs(), 1);
    server.wait(HOUR);
    assert_eq!(server.jobs(), 2);
    server.set_clock((10 * HOUR + 10 * MINUTE) as i64);
    server.wait(MINUTE);
    assert_eq!(server.jobs(), 2, "those are missed");
    server.wait(HOUR);
    assert_eq!(server.jobs(), 3);
    // Set forward to a moment after a firing: within a minute it is looked at.
    let mut server = Server::with("a", "cron=1_0_*_*_* tube=mail");
    server.turns();
    server.set_clock(25);
    server.wait(MINUTE);
    assert_eq!(server.jobs(), 1);
}

#[test]
fn without_room_a_firing_waits_for_it_and_is_done_once() {
    let disk = SimFs::new(1);
    disk.set_quota(Some(600 << 10));
    let mut server = Server::on(disk);
    server.set("a", "cron=*_*_*_*_* tube=other");
    server.turns();
    for size in [5000, 500, 1] {
        let put = format!("put 0 0 60 {size}\r\n{}", "b".repeat(size));
        while server.say(&put).starts_with("INSERTED") {
            while server.engine.keep_log(server.now).unwrap() {}
        }
    }
    let filled = server.jobs();
    server.wait(3 * MINUTE);
    assert_eq!((server.jobs(), server.view("a").waiting), (filled, 3));
    let shown = server.say("stats-schedule a");
    assert!(shown.contains("waiting: 3\n"), "{shown}");
    // It is tried again, but not over and over.
    assert!(server.turns() < 5);
    let next = server.engine.next_deadline(server.now).unwrap();
    assert!(next > server.now.mono && next <= server.now.mono.plus_seconds(1));
    for id in 1..filled {
        server.say(&format!("delete {id}"));
        while server.engine.keep_log(server.now).unwrap() {}
    }
    // Puts that were refused have taken ids.
    let left = server.jobs();
    assert!(left > 0 && left < 10, "{left} jobs");
    server.wait(2);
    assert_eq!((server.jobs(), server.view("a").waiting), (left + 3, 0));
    server.restart_after(0);
    server.wait(5);
    assert_eq!(server.jobs(), left + 3);
}

#[test]
fn a_server_that_takes_no_puts_fires_when_it_does_again() {
    let mut server = Server::with("a", "cron=0_*_*_*_* tube=mail");
    server.engine.drain();
    server.wait(HOUR + 10 * MINUTE);
    assert_eq!(server.jobs(), 0);
    server.engine.undrain();
    server.wait(1);
    assert_eq!(server.jobs(), 1);
    // What waits at the same time is bounded, and the last ones are kept.
    server.set("b", "cron=*_*_*_*_* tube=mail");
    server.engine.drain();
    server.wait(3 * HOUR);
    assert_eq!(server.view("b").waiting, MISSED_MAX);
    assert!(server.engine.schedule_figures().given_up > 70);
    server.engine.undrain();
    server.wait(1);
    assert_eq!(server.jobs(), 1 + 3 + MISSED_MAX as u64);
}

#[test]
fn the_bounds_of_a_tube_hold_for_schedules_and_each_waits_for_itself() {
    let mut server = Server::with("a", "cron=*_*_*_*_* tube=mail");
    server.set("b", "cron=*_*_*_*_* tube=other");
    assert_eq!(server.say("set-policy mail max-jobs=1"), "POLICY_SET\r\n");
    server.wait(3 * MINUTE);
    assert_eq!(server.jobs(), 1 + 3);
    server.delete_all();
    server.wait(1);
    assert_eq!((server.jobs(), server.view("a").waiting), (1, 1));
    server.delete_all();
    server.wait(1);
    assert_eq!((server.jobs(), server.view("a").waiting), (1, 0));
}

#[test]
fn while_another_job_has_the_key_nothing_is_put_and_that_is_over() {
    let mut server = Server::with("a", "cron=*_*_*_*_* tube=mail key=daily");
    // What has the key may be all that the tube may have.
    assert_eq!(server.say("set-policy mail max-jobs=1"), "POLICY_SET\r\n");
    let put = "put-with 0 0 60 1 tube=mail key=daily\r\nx";
    assert_eq!(server.say(put), "INSERTED 1\r\n");
    server.wait(3 * MINUTE);
    assert_eq!(server.jobs(), 1);
    let figures = server.engine.schedule_figures();
    assert_eq!((figures.fired, figures.key_conflicts), (0, 3));
    let of_clients = |server: &Server| server.engine.figures(server.now).key_conflicts;
    assert_eq!(of_clients(&server), 0, "no put of a client was refused");
    assert_eq!(server.say(put), "EXISTS 1\r\n");
    assert_eq!(of_clients(&server), 1);
    assert_eq!(server.fired_up_to("a"), BEGIN_NS / 1_000_000_000 + 150);
    server.delete_all();
    server.restart_after(0);
    server.turns();
    assert_eq!(server.jobs(), 0, "its time is over");
    server.wait(MINUTE);
    assert_eq!(server.jobs(), 1);
    let put = server.say("put-with 0 0 60 1 tube=mail key=daily\r\nx");
    assert!(put.starts_with("EXISTS "), "{put}");
}

#[test]
fn a_paused_schedule_fires_nothing_and_makes_up_for_nothing() {
    let mut server = Server::with("a", "cron=*_*_*_*_* tube=mail missed=all");
    server.wait(MINUTE);
    let paused = server.engine.pause_schedule("a", true, server.now).unwrap();
    assert_eq!(paused, ScheduleChange::Done);
    server.wait(HOUR);
    server.restart_after(HOUR);
    server.wait(HOUR);
    assert_eq!((server.jobs(), server.view("a").next_ns), (1, None));
    let resumed = server
        .engine
        .pause_schedule("a", false, server.now)
        .unwrap();
    assert_eq!(resumed, ScheduleChange::Done);
    server.turns();
    assert_eq!(server.jobs(), 1);
    server.restart_after(0);
    server.wait(2 * MINUTE);
    assert_eq!(server.jobs(), 3);
    let unknown = server.engine.pause_schedule("b", true, server.now).unwrap();
    assert_eq!(unknown, ScheduleChange::NotFound);
}

#[test]
fn to_run_one_now_changes_nothing_of_its_firings() {
    let mut server = Server::with("a", "cron=0_*_*_*_* tube=mail key=k paused=yes");
    let before = server.fired_up_to("a");
    let run = |server: &mut Server, name| server.engine.run_schedule_now(name, server.now).unwrap();
    assert_eq!(run(&mut server, "a"), ScheduleRun::Put(JobId(1)));
    assert_eq!(run(&mut server, "a"), ScheduleRun::Exists(JobId(1)));
    assert_eq!(run(&mut server, "b"), ScheduleRun::NotFound);
    server.engine.drain();
    assert_eq!(run(&mut server, "a"), ScheduleRun::Draining);
    server.engine.commit(server.now).unwrap();
    server.restart_after(0);
    assert_eq!((server.jobs(), server.fired_up_to("a")), (1, before));
}

#[test]
fn a_changed_schedule_goes_on_and_one_with_other_times_begins_now() {
    let mut server = Server::with("a", "cron=0_*_*_*_* tube=mail");
    server.wait(HOUR);
    let fired = server.fired_up_to("a");
    server.set("a", "cron=0_*_*_*_* tube=other missed=all");
    assert_eq!(server.fired_up_to("a"), fired);
    server.set_clock(-(HOUR as i64));
    server.wait(HOUR);
    assert_eq!(server.jobs(), 1, "it was done before the change");
    server.wait(20 * MINUTE);
    server.set("a", "cron=*/5_*_*_*_* tube=other missed=all");
    server.turns();
    assert_eq!(server.jobs(), 1, "nothing of the past");
    server.wait(5 * MINUTE);
    assert_eq!(server.jobs(), 2);
}

#[test]
fn what_is_deleted_is_gone_with_all_that_it_has_come_to() {
    for at in 0.. {
        let mut server = Server::with("a", "cron=*_*_*_*_* tube=mail missed=all");
        server.wait(MINUTE);
        let begun = server.disk.operations();
        server.disk.crash_at(begun + at);
        let deleted = server.engine.delete_schedule("a", server.now);
        let is_done = deleted.is_ok() && server.engine.commit(server.now).is_ok();
        let is_done = is_done && !server.disk.is_crashed();
        for how in [
            Crash::KeepAll,
            Crash::DropUnsynced,
            Crash::Random { seed: at },
        ] {
            let disk = server.disk.crash_image(how);
            let engine = Engine::open(&options(&disk), server.now).unwrap();
            let mut again = Server::of(disk, engine, server.now);
            let has = |class| again.engine.setting(class, "a").is_some();
            assert_eq!(has(SettingClass::Schedule), has(SettingClass::Fired));
            let is_there = has(SettingClass::Schedule);
            assert!(!is_there || !is_done);
            again.wait(MINUTE);
            assert_eq!(again.jobs(), if is_there { 2 } else { 1 });
        }
        if is_done {
            assert!(at > 0);
            let gone = server.engine.delete_schedule("a", server.now).unwrap();
            assert_eq!(gone, ScheduleChange::NotFound);
            return;
        }
    }
}

#[test]
fn there_are_not_too_many_and_none_that_cannot_be() {
    let mut server = Server::new();
    for nth in 0..SCHEDULES_MAX {
        server.set(&format!("s{nth}"), "cron=0_0_1_1_* tube=mail");
    }
    let one = schedule("cron=0_0_1_1_* tube=mail");
    let set = |server: &mut Server, name: &str, schedule: &Schedule| {
        server
            .engine
            .set_schedule(&named(name, schedule.clone()), server.now)
            .unwrap()
    };
    assert_eq!(set(&mut server, "more", &one), ScheduleChange::NoRoom);
    assert_eq!(set(&mut server, "s7", &one), ScheduleChange::Done);
    assert_eq!(
        server.engine.delete_schedule("s7", server.now).unwrap(),
        ScheduleChange::Done
    );
    assert_eq!(set(&mut server, "more", &one), ScheduleChange::Done);
    for (name, schedule) in [
        ("-a", one.clone()),
        (
            "a",
            Schedule {
                cron: "nonsense".into(),
                ..one.clone()
            },
        ),
        (
            "a",
            Schedule {
                tz: "Nowhere".into(),
                ..one.clone()
            },
        ),
        (
            "a",
            Schedule {
                body: vec![0; 65_536],
                ..one.clone()
            },
        ),
    ] {
        let refused = set(&mut server, name, &schedule);
        assert!(
            matches!(refused, ScheduleChange::Refused(_)),
            "{schedule:?}"
        );
    }
    server.restart_after(0);
    let figures = server.engine.schedule_figures();
    assert_eq!((figures.schedules, figures.paused), (SCHEDULES_MAX, 0));
    assert_eq!(server.engine.schedules().count(), SCHEDULES_MAX);
}

#[test]
fn schedules_take_of_the_memory_that_there_is() {
    let options = Options {
        memory_max: Some(1 << 20),
        ..Options::default()
    };
    let engine = Engine::open(&options, beginning()).unwrap();
    let mut server = Server::of(SimFs::new(1), engine, beginning());
    let before = server.engine.memory_left();
    let large = Schedule {
        body: vec![b'x'; 60_000],
        ..schedule("cron=0_0_1_1_* tube=mail")
    };
    let set = |server: &mut Server, name: &str| {
        server
            .engine
            .set_schedule(&named(name, large.clone()), server.now)
            .unwrap()
    };
    let mut count = 0;
    while set(&mut server, &format!("s{count}")) == ScheduleChange::Done {
        count += 1;
    }
    assert!((5..9).contains(&count), "{count}");
    assert_eq!(
        set(&mut server, "s0"),
        ScheduleChange::Done,
        "in its own place"
    );
    for nth in 0..count {
        server
            .engine
            .delete_schedule(&format!("s{nth}"), server.now)
            .unwrap();
    }
    assert_eq!(server.engine.memory_left(), before);
}

#[test]
fn on_the_days_of_the_clock_a_fixed_time_fires_once() {
    for (begin, days) in [
        ("2026-03-28T20:00:00Z", 2),
        ("2026-10-24T20:00:00Z", 2),
        ("2027-03-27T20:00:00Z", 2),
        ("2027-10-30T20:00:00Z", 2),
    ] {
        let begin: jiff::Timestamp = begin.parse().unwrap();
        let now = Now::new(Time(0), begin.as_nanosecond() as u64);
        let disk = SimFs::new(1);
        let engine = Engine::open(&options(&disk), now).unwrap();
        let mut server = Server::of(disk, engine, now);
        server.set("a", "cron=30_2_*_*_* tz=Europe/Berlin tube=mail");
        server.set("b", "cron=*/30_*_*_*_* tz=Europe/Berlin tube=half-hours");
        server.wait(days * 24 * HOUR);
        let count = |tube| server.engine.queue().job_count(tube);
        assert_eq!((count("mail"), count("half-hours")), (days, days * 48));
    }
}

#[test]
fn the_commands_set_show_and_delete_schedules() {
    let mut server = Server::new();
    let set =
        "schedule-set mail.daily 4 cron=0_8_*_*_1-5 tz=Europe/Berlin tube=mail key=daily\r\nbody";
    assert_eq!(server.say(set), "SCHEDULE_SET\r\n");
    let shown = server.say("stats-schedule mail.daily");
    let (line, document) = shown.split_once("\r\n").unwrap();
    assert_eq!(line, format!("OK {}", document.len() - 2));
    assert_eq!(
        document,
        "---\nname: \"mail.daily\"\ncron: \"0 8 * * 1-5\"\ntz: \"Europe/Berlin\"\ntube: \"mail\"\n\
         pri: 65536\nttr: 120\nkey: \"daily\"\nmissed: \"skip\"\npaused: false\nbytes: 4\n\
         fired-up-to: \"2026-12-01T01:00:30+01:00\"\nwaiting: 0\nnext:\n\
         - \"2026-12-01T08:00:00+01:00\"\n- \"2026-12-02T08:00:00+01:00\"\n\
         - \"2026-12-03T08:00:00+01:00\"\n- \"2026-12-04T08:00:00+01:00\"\n\
         - \"2026-12-07T08:00:00+01:00\"\n\r\n"
    );
    let paused = "schedule-set mail.daily 0 tube=mail paused=yes missed=all cron=@daily\r\n";
    assert_eq!(server.say(paused), "SCHEDULE_SET\r\n");
    let shown = server.say("stats-schedule mail.daily");
    let end = "missed: \"all\"\npaused: true\nbytes: 0\nfired-up-to: \"2026-12-01T00:00:30+00:00\"\n\
               waiting: 0\nnext: []\n\r\n";
    assert!(shown.ends_with(end), "{shown}");
    assert_eq!(server.say("schedule-delete mail.daily"), "DELETED\r\n");
    for line in ["schedule-delete mail.daily", "stats-schedule mail.daily"] {
        assert_eq!(server.say(line), "NOT_FOUND\r\n", "{line}");
    }
    server.job_size_max = 10;
    for (line, reply) in [
        ("schedule-set a 4 cron=*_*_*_*_*\r\nbody", "BAD_FORMAT"),
        ("schedule-set a 4 tube=a\r\nbody", "BAD_FORMAT"),
        (
            "schedule-set a 4 cron=nonsense tube=a\r\nbody",
            "BAD_FORMAT",
        ),
        (
            "schedule-set a 4 cron=0_0_30_2_* tube=a\r\nbody",
            "BAD_FORMAT",
        ),
        (
            "schedule-set a 4 cron=@daily tz=No tube=a\r\nbody",
            "BAD_FORMAT",
        ),
        ("schedule-set a 4 cron=@daily tube=a \r\nbody", "BAD_FORMAT"),
        ("schedule-set -a 4 cron=@daily tube=a\r\nbody", "BAD_FORMAT"),
        ("schedule-set a 4\r\nbody", "BAD_FORMAT"),
        ("schedule-set a x", "BAD_FORMAT"),
        ("schedule-set a", "BAD_FORMAT"),
        ("schedule-set ", "BAD_FORMAT"),
        ("schedule-delete ", "BAD_FORMAT"),
        ("schedule-delete a b", "BAD_FORMAT"),
        ("stats-schedule -a", "BAD_FORMAT"),
        (
            "schedule-set a 11 cron=@daily tube=a\r\n01234567890",
            "JOB_TOO_BIG",
        ),
        (
            "schedule-set a 3 cron=@daily tube=a\r\nbody",
            "EXPECTED_CRLF",
        ),
        (
            "schedule-set a 10 cron=@daily tube=a\r\n0123456789",
            "SCHEDULE_SET",
        ),
        ("schedule-set", "UNKNOWN_COMMAND"),
    ] {
        assert_eq!(server.say(line), format!("{reply}\r\n"), "{line}");
    }
}

#[test]
fn what_is_not_understood_in_the_log_does_not_fire_and_can_be_set_again() {
    let mut server = Server::new();
    let class = SettingClass::Schedule;
    for value in [&b"nonsense"[..], b"cron=later tz=UTC tube=a\n"] {
        assert!(server.engine.set(class, "a", value, server.now).unwrap());
        server.engine.commit(server.now).unwrap();
        server.restart_after(0);
        server.wait(MINUTE);
        assert_eq!((server.engine.schedules().count(), server.jobs()), (0, 0));
    }
    server.set("a", "cron=*_*_*_*_* tube=mail");
    server.wait(MINUTE);
    assert_eq!(server.jobs(), 1);
}

#[test]
fn a_schedule_that_is_set_again_stays_paused_unless_that_is_said() {
    let mut server = Server::new();
    let each = |more: &str| format!("schedule-set a 0 tube=mail cron=*_*_*_*_*{more}\r\n");
    for (more, is_paused) in [
        ("", false),
        (" paused=yes", true),
        ("", true),
        (" pri=7", true),
        (" paused=no", false),
        ("", false),
    ] {
        assert_eq!(server.say(&each(more)), "SCHEDULE_SET\r\n");
        let view = server.view("a");
        assert_eq!(view.schedule.is_paused, is_paused, "{more}");
    }
}
