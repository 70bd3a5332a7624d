//! The policies under which an acknowledgement does not wait for the disk.
//!
//! Their promises: a killed process loses nothing acknowledged; a power cut loses at most the end
//! of the history, after the last sync, and leaves no gap in it.

use bsd::storage::SimFs;
use bsd::storage::SyncPolicy;
use bsd::storage::disk::sim::Crash;

use super::crashes::Wreck;
use super::driver::{Driver, MS_NS, Step};
use super::workload::tour;

const PUT: Step = Step::put(0, [1, 0, 5], 60);

fn begin(sync: SyncPolicy) -> Driver {
    Driver::begin(&SimFs::new(1), sync).unwrap_or_else(|stop| panic!("{stop}"))
}

fn run(driver: &mut Driver, steps: &[Step]) {
    driver.run(steps).unwrap_or_else(|stop| panic!("{stop}"));
}

fn jobs_after_power_cut(driver: &Driver, sync: SyncPolicy) -> usize {
    let image = driver.fs.crash_image(Crash::DropUnsynced);
    let least = driver.least_durable();
    let opened = Driver::open(&image, sync, driver.now, &driver.history, least);
    opened
        .unwrap_or_else(|stop| panic!("{stop}"))
        .history
        .now()
        .jobs
        .len()
}

fn crash_everywhere(sync: SyncPolicy) {
    let steps = tour();
    for operation in (1..).step_by(2) {
        let Some(wreck) = Wreck::at(&steps, sync, operation) else {
            return;
        };
        let random = (0..3).map(|seed| Crash::Random { seed });
        for how in [Crash::DropUnsynced, Crash::KeepAll]
            .into_iter()
            .chain(random)
        {
            println!("operation {operation}, {how:?}");
            wreck.recover(how, sync);
        }
    }
}

#[test]
fn with_an_interval_a_crash_at_any_operation_leaves_a_prefix() {
    crash_everywhere(SyncPolicy::Interval(40));
}

#[test]
fn without_syncs_a_crash_at_any_operation_leaves_a_prefix() {
    crash_everywhere(SyncPolicy::Never);
}

/// D10: a timer does it, not the next command.
#[test]
fn d10_with_an_interval_the_last_write_before_an_idle_spell_is_synced_by_tick_alone() {
    let sync = SyncPolicy::Interval(50);
    let mut driver = begin(sync);
    run(&mut driver, &[PUT]);
    let now = driver.now;
    driver.engine_mut().commit(now).expect("a sound disk");
    assert_eq!(
        driver.least_acknowledged(),
        1,
        "it is acknowledged before the sync"
    );
    assert_eq!(jobs_after_power_cut(&driver, sync), 0, "and not durable");
    let due = driver.engine().next_deadline(now).expect("a sync is due");
    assert!(due.0 <= now.mono.0 + 50 * MS_NS, "the sync is due in time");
    driver.pass(50 * MS_NS);
    driver.tick().unwrap_or_else(|stop| panic!("{stop}"));
    assert_eq!(
        jobs_after_power_cut(&driver, sync),
        1,
        "it is durable after the interval"
    );
}

#[test]
fn with_an_interval_the_sync_is_not_put_off_by_commands_that_keep_coming() {
    let sync = SyncPolicy::Interval(50);
    let mut driver = begin(sync);
    for _ in 0..6 {
        run(&mut driver, &[PUT, Step::Turn { ms: 10 }]);
    }
    assert!(
        jobs_after_power_cut(&driver, sync) >= 1,
        "60 ms later, the first job is durable"
    );
}

#[test]
fn without_syncs_a_clean_stop_makes_everything_durable() {
    let mut driver = begin(SyncPolicy::Never);
    run(&mut driver, &[PUT, PUT, Step::Turn { ms: 0 }]);
    assert_eq!(jobs_after_power_cut(&driver, SyncPolicy::Never), 0);
    driver.stop().unwrap_or_else(|stop| panic!("{stop}"));
    assert_eq!(jobs_after_power_cut(&driver, SyncPolicy::Never), 2);
}
