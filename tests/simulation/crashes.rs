//! A crash at every file operation, and inside the recovery after it: every one inside that after each
//! `BSD_CRASH_EVERY`-th operation.

use bsd::engine::Engine;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::{Crash, Granularity};
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::Now;

use super::driver::{Driver, Step, after_restart, beginning, options, path};
use super::oracle::{History, State};
use super::workload::tour;
use bsd::check::volume::volume;

/// Expected content of the disk after a run that a crash ended.
pub(super) struct Wreck {
    fs: SimFs,
    history: History,
    /// The first state that a power cut may leave.
    least_durable: usize,
    /// The first state that a killed process may leave.
    least_acknowledged: usize,
    now: Now,
}

impl Wreck {
    /// Run the steps on a new disk that stops for good at operation `crash_at`. `None`: it did not
    /// come to that.
    pub(super) fn at(steps: &[Step], sync: SyncPolicy, crash_at: u64) -> Option<Wreck> {
        let fs = SimFs::new(1);
        fs.crash_at(crash_at);
        let Ok(mut driver) = Driver::begin(&fs, sync) else {
            let (history, now) = (History::new(State::default()), beginning());
            return Some(Wreck {
                fs,
                history,
                least_durable: 0,
                least_acknowledged: 0,
                now,
            });
        };
        let result = driver.run(steps);
        if !fs.is_crashed() {
            result.unwrap_or_else(|stop| panic!("without any fault: {stop}"));
            return None;
        }
        Some(Wreck {
            least_durable: driver.least_durable(),
            least_acknowledged: driver.least_acknowledged(),
            fs,
            history: driver.history,
            now: after_restart(driver.now),
        })
    }

    /// Recover from a crash of this kind, and see that nothing is wrong.
    pub(super) fn recover(&self, how: Crash, sync: SyncPolicy) -> Driver {
        let least = if how == Crash::KeepAll {
            self.least_acknowledged
        } else {
            self.least_durable
        };
        let image = self.fs.crash_image(how);
        let opened = Driver::open(&image, sync, self.now, &self.history, least);
        let driver = opened.unwrap_or_else(|stop| panic!("after {how:?}: {stop}"));
        // The recovered state is durable: a power cut right now changes nothing.
        let cut = image.crash_image(Crash::DropUnsynced);
        let again = Driver::open(&cut, sync, self.now, &driver.history, 0);
        again.unwrap_or_else(|stop| panic!("after {how:?} and a power cut: {stop}"));
        driver
    }

    /// Crash inside the recovery from a crash, at operation `nested` of it, and recover from that.
    /// `false`: the recovery was over before.
    fn recover_twice(&self, first: Crash, nested: u64) -> bool {
        let image = self.fs.crash_image(first);
        image.crash_at(nested);
        if Engine::open(&options(&image, SyncPolicy::Always), self.now).is_ok() {
            return false;
        }
        for second in [
            Crash::DropUnsynced,
            Crash::KeepAll,
            Crash::Random { seed: nested },
        ] {
            let image = image.crash_image(second);
            let opened = Driver::open(
                &image,
                SyncPolicy::Always,
                self.now,
                &self.history,
                self.least_durable,
            );
            opened.unwrap_or_else(|stop| panic!("{first:?}, at {nested} {second:?}: {stop}"));
        }
        true
    }

    /// All subsets of the un-synced units, where they are few.
    fn subsets(&self) -> Vec<Crash> {
        let mut ways = Vec::new();
        for granularity in [Granularity::Write, Granularity::Page] {
            let units = self.fs.unsynced_units(granularity);
            if (1..=5).contains(&units) {
                ways.extend((1..1 << units).map(|kept| Crash::Subset { kept, granularity }));
            }
        }
        ways
    }
}

/// Power cuts that lose all, some, or nothing of the un-synced changes, and the death of the
/// process.
fn ways(random: u64) -> Vec<Crash> {
    let random = (0..random).map(|seed| Crash::Random { seed });
    [Crash::DropUnsynced, Crash::KeepAll]
        .into_iter()
        .chain(random)
        .collect()
}

/// D7, D8, D11, D12, D13, D28, D32: frames torn at every write and page, files half made, names and
/// sizes that did not arrive, at every step of first start, rotation and compaction.
#[test]
fn d7_d8_d11_d12_d13_d28_d32_a_crash_at_any_operation_costs_nothing_acknowledged() {
    let steps = tour();
    let mut operation = 1;
    while let Some(wreck) = Wreck::at(&steps, SyncPolicy::Always, operation) {
        for how in ways(4).into_iter().chain(wreck.subsets()) {
            println!("operation {operation}, {how:?}");
            let driver = wreck.recover(how, SyncPolicy::Always);
            if operation % 16 == 0 {
                driver.assert_goes_on_working();
            }
        }
        operation += 1;
    }
    assert!(
        operation > 300,
        "the tour is too short to say anything: {operation} operations"
    );
}

#[test]
fn a_crash_inside_the_recovery_from_a_crash_costs_nothing_acknowledged() {
    let steps = tour();
    let mut crashes = 0;
    let every = volume("BSD_CRASH_EVERY", 5);
    for operation in (1..).step_by(every as usize) {
        let Some(wreck) = Wreck::at(&steps, SyncPolicy::Always, operation) else {
            break;
        };
        for first in ways(2) {
            println!("operation {operation}, {first:?}");
            let mut nested = 1;
            while wreck.recover_twice(first, nested) {
                nested += 1;
                crashes += 3;
            }
        }
    }
    println!("{crashes} recoveries that were crashed in turn");
}

/// A killed process leaves changes that are not on the disk yet. The next process continues from
/// them, and what it acknowledges is durable together with them.
#[test]
fn what_is_acknowledged_after_a_kill_at_any_operation_survives_a_power_cut() {
    let steps = tour();
    let put = Step::put(1, [2, 0, 9], 40);
    for operation in 1.. {
        let Some(wreck) = Wreck::at(&steps, SyncPolicy::Always, operation) else {
            break;
        };
        println!("operation {operation}");
        let mut driver = wreck.recover(Crash::KeepAll, SyncPolicy::Always);
        driver
            .run(&[put, Step::Turn { ms: 0 }])
            .unwrap_or_else(|stop| panic!("{stop}"));
        let least = driver.least_durable();
        assert_eq!(least, driver.history.last(), "the put is acknowledged");
        let cut = driver.fs.crash_image(Crash::DropUnsynced);
        let now = after_restart(driver.now);
        Driver::open(&cut, SyncPolicy::Always, now, &driver.history, least)
            .unwrap_or_else(|stop| panic!("after a power cut: {stop}"));
    }
}

/// A frame is cut off at every length: the disk kept the first part of the write.
#[test]
fn d11_d12_a_frame_torn_at_every_byte_is_dropped_whole() {
    let put = |size| Step::put(0, [1, 0, 9], size);
    let fs = SimFs::new(3);
    let mut driver = Driver::begin(&fs, SyncPolicy::Always).unwrap_or_else(|stop| panic!("{stop}"));
    let turn = Step::Turn { ms: 0 };
    let steps = [put(40), put(0), turn, Step::Reserve { worker: 0 }];
    driver.run(&steps).unwrap_or_else(|stop| panic!("{stop}"));
    let segment = path("segment-0000000001.00000");
    let before = fs.read(&segment).expect("the first segment is there");
    let history = driver.history.clone();
    let more = [Step::Bury { nth: 0, pri: 2 }, put(33), turn];
    driver.run(&more).unwrap_or_else(|stop| panic!("{stop}"));
    let after = fs.read(&segment).expect("the first segment is there");
    let start = before
        .iter()
        .zip(&after)
        .position(|(a, b)| a != b)
        .expect("a frame was written");
    let end = after
        .iter()
        .rposition(|byte| *byte != 0)
        .expect("a frame was written")
        + 1;
    for cut in start..end {
        let image = fs.crash_image(Crash::KeepAll);
        let torn = [&after[..cut], &before[cut..]].concat();
        image.write(&segment, &torn).expect("the file is there");
        let last = history.last();
        let opened = Driver::open(&image, SyncPolicy::Always, driver.now, &history, last);
        let opened = opened.unwrap_or_else(|stop| panic!("cut at {cut}: {stop}"));
        let torn = opened.engine().recovery().torn.is_some();
        assert_eq!(torn, cut > start, "cut at {cut}");
    }
}

/// D28: a directory that is new has a name only when the one above it is synced, and so on up.
#[test]
fn d28_a_data_directory_made_with_its_parents_survives_a_power_cut() {
    let fs = SimFs::new(1);
    // As after another program that mounts disks and makes directories without syncing them.
    fs.create_dir_all(std::path::Path::new("/var/lib/bsd"))
        .expect("room");
    let dir = Some("/var/lib/bsd/queue".into());
    let options = bsd::engine::Options {
        dir,
        ..options(&fs, SyncPolicy::Always)
    };
    drop(Engine::open(&options, beginning()).expect("a sound disk"));
    let image = fs.crash_image(Crash::DropUnsynced);
    let names = image
        .names("/var/lib/bsd/queue")
        .expect("the directory is still there");
    assert!(
        names.contains(&"segment-0000000001.00000".to_owned()),
        "{names:?}"
    );
}
