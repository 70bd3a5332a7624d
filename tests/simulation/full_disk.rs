//! A full disk is not a failure: puts are refused, everything else continues, and puts work again
//! by themselves when there is room.

use bsd::storage::disk::sim::Crash;
use bsd::storage::{SimFs, SyncPolicy};

use super::driver::{Driver, SEGMENT_SIZE, Setup, Step, path};

const TURN: Step = Step::Turn { ms: 0 };
const SETUP: Setup = Setup {
    sync: SyncPolicy::Always,
    segment_size: 4 * SEGMENT_SIZE,
};
/// KiB that the disk has, and bytes of a body.
const DISKS: [(u64, usize); 5] = [
    (1024, 200),
    (1024, 900),
    (1024, 8000),
    (1666, 900),
    (1666, 8000),
];

fn put(size: usize) -> Step {
    Step::put(0, [1, 0, 1000], size)
}

fn run(driver: &mut Driver, steps: &[Step]) {
    driver.run(steps).unwrap_or_else(|stop| panic!("{stop}"));
}

/// As `run`; nothing may be refused.
fn run_unrefused(driver: &mut Driver, steps: &[Step]) {
    for step in steps {
        let refused = driver.refused;
        run(driver, &[*step]);
        assert_eq!(
            driver.refused,
            refused,
            "{step:?} is refused, {} bytes",
            driver.fs.used()
        );
    }
}

/// A queue that has taken all that the disk has.
fn full(quota: u64, size: usize) -> Driver {
    println!("quota {quota}, bodies of {size}");
    let fs = SimFs::new(1);
    fs.set_quota(Some(quota));
    let opened = Driver::begin(&fs, SETUP);
    let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
    fill(&mut driver, size);
    driver
}

fn fill(driver: &mut Driver, size: usize) {
    let before = driver.refused;
    while driver.refused == before {
        run(driver, &[put(size), put(size), put(size), TURN]);
    }
}

fn on_full_disks(test: impl Fn(&mut Driver, usize)) {
    for (quota_kib, size) in DISKS {
        test(&mut full(quota_kib << 10, size), size);
    }
}

fn reopen(driver: &Driver, how: Crash) -> Driver {
    let image = driver.fs.crash_image(how);
    let least = driver.least_durable();
    let opened = Driver::open(&image, SETUP, driver.now, &driver.history, least);
    opened.unwrap_or_else(|stop| panic!("after {how:?}: {stop}"))
}

/// The room that a large put has found is no room for what comes with it in one frame, near the end of
/// the only file. A debug build compares.
#[test]
fn a_large_put_and_small_ones_in_one_turn_find_the_room_that_there_is() {
    let setup = Setup {
        segment_size: 1 << 20,
        ..SETUP
    };
    for nth in 0..16 {
        let fs = SimFs::new(1);
        let opened = Driver::begin(&fs, setup);
        let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
        run_unrefused(&mut driver, &[put(4000 * nth), TURN]);
        for _ in 0..20 {
            run_unrefused(&mut driver, &[put(60_000)]);
            run_unrefused(&mut driver, &[put(300); 20]);
            run_unrefused(&mut driver, &[TURN]);
        }
    }
}

/// D6, D24: jobs are reserved, released, buried, kicked and deleted from space set aside.
#[test]
fn d6_d24_on_a_full_disk_everything_but_put_goes_on() {
    on_full_disks(|driver, _| {
        let reserve = Step::Reserve { worker: 0 };
        let each = [
            reserve,
            Step::Bury { nth: 0, pri: 2 },
            Step::Kick { tube: 0, bound: 1 },
            TURN,
            reserve,
            Step::Release {
                nth: 0,
                pri: 1,
                delay: 3,
            },
            Step::KickJob { nth: 0 },
            Step::Touch { nth: 0 },
            TURN,
            reserve,
            Step::DeleteReserved { nth: 0 },
            TURN,
        ];
        for _ in 0..driver.history.now().jobs.len() {
            run_unrefused(driver, &each);
        }
        assert_eq!(driver.history.now().jobs.len(), 0);
    });
}

#[test]
fn on_a_full_disk_jobs_that_stay_can_be_buried_and_kicked_for_ever() {
    on_full_disks(|driver, _| {
        for _ in 0..300 {
            let reserve = Step::Reserve { worker: 0 };
            let each = [reserve, Step::Bury { nth: 0, pri: 2 }, TURN];
            run_unrefused(driver, &each);
            run_unrefused(driver, &[Step::Kick { tube: 0, bound: 1 }, TURN]);
        }
    });
}

/// Puts work again by themselves, and the room is really there again.
#[test]
fn when_jobs_are_deleted_puts_work_again_and_fill_the_disk_as_before() {
    on_full_disks(|driver, size| {
        let most = driver.history.now().jobs.len();
        for _ in 0..4 {
            while !driver.history.now().jobs.is_empty() {
                run_unrefused(driver, &[Step::Delete { nth: 1 }, TURN]);
            }
            run(driver, &[Step::Turn { ms: 1000 }]);
            fill(driver, size);
            let now = driver.history.now().jobs.len();
            assert!(now * 10 >= most * 8, "{now} jobs fit, {most} did at first");
        }
    });
}

#[test]
fn when_half_of_the_jobs_are_deleted_puts_work_again() {
    on_full_disks(|driver, size| {
        let most = driver.history.now().jobs.len();
        for round in 0..4 {
            for nth in 0..most / 2 {
                run_unrefused(
                    driver,
                    &[
                        Step::Delete {
                            nth: nth * (1 + round),
                        },
                        TURN,
                    ],
                );
            }
            run(driver, &[Step::Turn { ms: 1000 }]);
            fill(driver, size);
            let now = driver.history.now().jobs.len();
            assert!(now * 10 >= most * 7, "{now} jobs fit, {most} did at first");
        }
    });
}

/// D22, and P6: the server starts on a full disk, however it had stopped.
#[test]
fn d22_it_starts_on_a_full_disk_after_a_stop_and_after_any_crash() {
    on_full_disks(|driver, _| {
        let used = driver.fs.used();
        driver.fs.set_quota(Some(used));
        run(
            driver,
            &[
                put(200),
                Step::Reserve { worker: 0 },
                Step::Bury { nth: 0, pri: 0 },
            ],
        );
        for how in [
            Crash::DropUnsynced,
            Crash::KeepAll,
            Crash::Random { seed: 4 },
        ] {
            let mut driver = reopen(driver, how);
            run_unrefused(&mut driver, &[Step::Delete { nth: 0 }, TURN, Step::Restart]);
            run_unrefused(&mut driver, &[Step::Delete { nth: 0 }, TURN]);
        }
    });
}

#[test]
fn d22_a_torn_tail_does_not_keep_it_from_starting_on_a_full_disk() {
    on_full_disks(|driver, _| {
        let names = driver.fs.names("/data").expect("the directory is there");
        let open = names
            .iter()
            .rfind(|name| name.starts_with("segment-"))
            .expect("a segment");
        let mut bytes = driver.fs.read(path(open)).expect("a segment");
        let end = bytes.iter().rposition(|byte| *byte != 0).expect("a frame") + 1;
        for garbage in [1, 600, SETUP.segment_size as usize] {
            let until = (end.next_multiple_of(8) + garbage).min(bytes.len());
            bytes[end.next_multiple_of(8)..until].fill(0xa5);
            let image = driver.fs.crash_image(Crash::KeepAll);
            image.write(path(open), &bytes).expect("a segment");
            image.set_quota(Some(image.used()));
            let last = driver.history.last();
            let opened = Driver::open(&image, SETUP, driver.now, &driver.history, last);
            let mut again = opened.unwrap_or_else(|stop| panic!("{garbage} bytes: {stop}"));
            assert!(again.engine().recovery().torn.is_some());
            run(&mut again, &[Step::Delete { nth: 0 }, TURN]);
            for _ in 0..3 {
                again = reopen(&again, Crash::DropUnsynced);
                run_unrefused(&mut again, &[Step::Delete { nth: 0 }, TURN]);
            }
        }
    });
}

/// D22: a start has looked into what it removes, and yet has the space of that.
#[test]
fn d22_leftovers_make_room_for_a_start_on_a_full_disk() {
    on_full_disks(|driver, _| {
        let names = |fs: &SimFs, kind: &str| -> Vec<String> {
            let names = fs.names("/data").expect("the directory is there");
            names
                .into_iter()
                .filter(|it| it.starts_with(kind))
                .collect()
        };
        let before = names(&driver.fs, "segment-");
        // Until one has gone for good.
        while before
            .iter()
            .all(|it| driver.fs.resurrect(path(it)).is_err())
        {
            run(driver, &[Step::Delete { nth: 0 }, TURN]);
        }
        let image = driver.fs.crash_image(Crash::KeepAll);
        // The last frame is torn, and nothing is set aside: the log goes on in a new segment.
        let open = names(&image, "segment-").pop().expect("a segment");
        let mut bytes = image.read(path(&open)).expect("a segment");
        let end = bytes.iter().rposition(|byte| *byte != 0).expect("a frame") + 1;
        bytes.resize(end.next_multiple_of(8), 0);
        bytes.push(0xa5);
        image.write(path(&open), &bytes).expect("a segment");
        for spare in names(&image, "spare-") {
            image.remove(path(&spare)).expect("a spare");
        }
        image.set_quota(Some(image.used() + 4096));
        let least = driver.least_durable();
        let opened = Driver::open(&image, SETUP, driver.now, &driver.history, least);
        let mut again = opened.unwrap_or_else(|stop| panic!("{stop}"));
        run(&mut again, &[Step::Delete { nth: 0 }, TURN]);
    });
}

/// D23: a refused put leaves nothing behind.
#[test]
fn d23_puts_that_are_refused_cost_no_memory_and_no_space() {
    let mut driver = full(1111 << 10, 700);
    let (used, memory) = (driver.fs.used(), driver.engine().queue().memory());
    for _ in 0..500 {
        run(&mut driver, &[put(700), TURN]);
    }
    assert!(driver.refused >= 500);
    assert_eq!(
        (driver.fs.used(), driver.engine().queue().memory()),
        (used, memory)
    );
}

/// The disk gets room again without a delete, from another program.
#[test]
fn when_the_disk_has_room_again_puts_work_again_by_themselves() {
    let mut driver = full(1111 << 10, 700);
    driver.fs.set_quota(Some(1500 << 10));
    // A full disk is not asked again at once.
    run(&mut driver, &[Step::Turn { ms: 100 }]);
    run_unrefused(&mut driver, &[put(700), TURN]);
}

/// Copy-on-write storage: the space set aside is no room for overwriting it. Every write may find
/// the disk full, and the log may fail, but only when there was nothing left to give up.
#[test]
fn d31_on_copy_on_write_storage_that_is_full_nothing_acknowledged_is_lost() {
    for (quota_kib, size) in DISKS {
        println!("quota {quota_kib} KiB, bodies of {size}");
        let fs = SimFs::new(1);
        fs.set_copy_on_write(true);
        fs.set_quota(Some(quota_kib << 10));
        let opened = Driver::begin(&fs, SETUP);
        let mut driver = opened.unwrap_or_else(|stop| panic!("{stop}"));
        fill(&mut driver, size);
        let delete = [Step::Delete { nth: 3 }, TURN];
        for _ in 0..driver.history.now().jobs.len() {
            run_unrefused(&mut driver, &delete);
        }
        run(&mut driver, &[Step::Turn { ms: 1000 }]);
        fill(&mut driver, size);
        run(&mut driver, &[Step::Restart]);
        for how in [
            Crash::DropUnsynced,
            Crash::KeepAll,
            Crash::Random { seed: 4 },
        ] {
            let mut driver = reopen(&driver, how);
            run_unrefused(&mut driver, &delete);
        }
    }
}
