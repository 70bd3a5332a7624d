//! Operations that fail, once or for ever; and full disks.

use super::crash::Twin;
use super::*;
use bsd::check::failing::each_call;
use bsd::storage::disk::sim::{Errno, Fault};

const KINDS: [OpKind; 9] = [
    OpKind::Open,
    OpKind::Create,
    OpKind::Rename,
    OpKind::Remove,
    OpKind::SyncDir,
    OpKind::Write,
    OpKind::Sync,
    OpKind::SetSize,
    OpKind::Allocate,
];

/// Run the script; a call for which there is no room is made again, without the faults.
fn run(disk: &SimFs, what: &str) -> Option<Twin> {
    let made = Ledger::create_with(&fs(disk), dir(), IDENTITY, base(5, 2), SMALL);
    let mut ledger = made.ok()?;
    let mut twin = Twin::new(base(5, 2));
    for it in script() {
        match twin.act(&mut ledger, &it) {
            Ok(()) => {}
            Err(error) if error.is_full() => {
                disk.clear_faults();
                let again = twin.act(&mut ledger, &it);
                again.unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            Err(error) => {
                disk.clear_faults();
                let again = ledger.commit().unwrap_err();
                assert!(!again.is_full(), "{what}: {error}, {again}");
                ledger.reset(base(1000, 9)).unwrap_err();
                ledger.discard(1000, 0).unwrap_err();
                break;
            }
        }
    }
    disk.clear_faults();
    Some(twin)
}

#[test]
fn after_any_operation_failed_nothing_that_was_committed_is_missing() {
    for kind in KINDS {
        for (errno, for_ever) in [
            (Errno::IO, false),
            (Errno::IO, true),
            (Errno::NOSPC, false),
            (Errno::NOSPC, true),
        ] {
            for nth in 1.. {
                let disk = disk();
                let operations = disk.operations();
                let fault = Fault::fail(kind, errno).nth(nth);
                disk.inject(if for_ever { fault.for_ever() } else { fault });
                let what = format!("{kind:?} {nth}, {errno:?}, for ever: {for_ever}");
                let Some(twin) = run(&disk, &what) else {
                    // No more was promised than that it can be opened or made.
                    disk.clear_faults();
                    if Ledger::open_with(&fs(&disk), dir(), SMALL)
                        .unwrap()
                        .is_none()
                    {
                        create(&disk);
                    }
                    continue;
                };
                for how in [
                    Crash::KeepAll,
                    Crash::DropUnsynced,
                    Crash::Random { seed: nth },
                ] {
                    let image = disk.crash_image(how);
                    let found = Ledger::open_with(&fs(&image), dir(), SMALL);
                    let ledger = found.unwrap_or_else(|it| panic!("{what}, {how:?}: {it}"));
                    assert!(twin.allows(&ledger.unwrap()), "{what}, {how:?}");
                }
                let calls = disk.trace();
                let calls = calls
                    .iter()
                    .filter(|it| it.number > operations && it.kind == kind);
                if (calls.count() as u64) < nth {
                    break;
                }
            }
        }
    }
}

#[test]
fn g02_each_call_that_fails_while_a_ledger_is_made_or_opened_is_called_what_it_is() {
    let made = |disk: SimFs| {
        let made = Ledger::create_with(&fs(&disk), dir(), IDENTITY, base(5, 2), SMALL);
        made.map(drop).map_err(|error| (error.class(), error))
    };
    let is_there = |disk: &SimFs, what: &str| {
        let opened = Ledger::open_with(&fs(disk), dir(), SMALL);
        opened.unwrap_or_else(|error| panic!("{what}: {error}"))
    };
    let failures = each_call((&disk(), 8), SimFs::clone, made, |disk, what| {
        is_there(disk, what);
    });
    assert!(failures > 20, "{failures} were not made");
    let before = disk();
    let mut ledger = create(&before);
    let mut twin = Twin::new(base(5, 2));
    script()
        .iter()
        .for_each(|it| twin.act(&mut ledger, it).unwrap());
    drop(ledger);
    let opened = |disk: SimFs| {
        let opened = Ledger::open_with(&fs(&disk), dir(), SMALL);
        opened.map(drop).map_err(|error| (error.class(), error))
    };
    let failures = each_call((&before, 8), SimFs::clone, opened, |disk, what| {
        assert!(twin.allows(&is_there(disk, what).unwrap()), "{what}");
    });
    assert!(failures > 20, "{failures} were not opened");
}

#[test]
fn a_full_disk_is_said_and_the_commit_is_made_when_there_is_room() {
    let disk = disk();
    let mut ledger = create(&disk);
    disk.set_quota(Some(disk.used()));
    let mut refused = 0;
    for index in 6..200 {
        ledger.append(&[entry(index, 2, 100)]);
        let before = picture(&reopen(&disk.crash_image(Crash::DropUnsynced)));
        if let Err(error) = ledger.commit() {
            assert!(error.is_full(), "{error}");
            assert!(error.to_string().contains("free space"), "{error}");
            refused += 1;
            let image = disk.crash_image(Crash::DropUnsynced);
            assert_eq!(picture(&reopen(&image)), before);
            disk.set_quota(Some(disk.used() + SMALL.file + 1000));
            ledger.commit().unwrap();
        }
        assert_eq!(
            reopen(&disk.crash_image(Crash::DropUnsynced)).last_index(),
            index
        );
    }
    assert!(refused > 3, "{refused}");
}

/// A directory may need room for a name.
#[test]
fn g05_a_name_without_room_is_no_failure_and_the_ledger_goes_on() {
    let disk = disk();
    let mut ledger = create(&disk);
    disk.inject(Fault::fail(OpKind::Rename, Errno::NOSPC).for_ever());
    for index in 6..40 {
        ledger.append(&[entry(index, 2, 300)]);
        ledger.commit().unwrap();
        let image = disk.crash_image(Crash::DropUnsynced);
        assert_eq!(picture(&reopen(&image)), picture(&ledger));
    }
    assert!(count(&disk, OpKind::Rename) > 3, "it wants another file");
    ledger.set_aside().unwrap();
    assert!(ledger.reset(base(50, 3)).unwrap_err().is_full());
    disk.clear_faults();
    ledger.append(&[entry(40, 2, 300)]);
    ledger.commit().unwrap();
    assert!(ledger.files.len() > 1);
    ledger.reset(base(50, 3)).unwrap();
    let image = disk.crash_image(Crash::DropUnsynced);
    assert_eq!(picture(&reopen(&image)), picture(&ledger));
}

/// It keeps more than it has to, until there is room.
#[test]
fn g05_a_name_that_cannot_be_removed_for_want_of_room_is_no_failure() {
    let disk = disk();
    let mut ledger = create(&disk);
    for index in 6..40 {
        ledger.append(&[entry(index, 2, 300)]);
        ledger.commit().unwrap();
    }
    ledger.set_hard_state(state(2, 0, 39));
    ledger.commit().unwrap();
    disk.inject(Fault::fail(OpKind::Remove, Errno::NOSPC).for_ever());
    let before = picture(&ledger);
    assert!(ledger.discard(39, 0).unwrap_err().is_full());
    assert_eq!(picture(&ledger), before);
    disk.clear_faults();
    ledger.discard(39, 0).unwrap();
    assert!(ledger.base().index > 5);
}

/// A part of a frame is behind the end; what is written next is shorter.
#[test]
fn what_a_full_disk_left_of_a_frame_is_written_over() {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 3, 2, 400));
    ledger.commit().unwrap();
    disk.set_quota(Some(disk.used() + 900));
    ledger.append(&entries(9, 9, 2, 400));
    assert!(ledger.commit().unwrap_err().is_full());
    ledger.append(&entries(9, 1, 3, 7));
    ledger.commit().unwrap();
    let found = picture(&reopen(&disk.crash_image(Crash::DropUnsynced)));
    assert_eq!(found, picture(&ledger));
    disk.set_quota(None);
    let mut ledger = reopen(&disk);
    ledger.append(&entries(10, 3, 3, 50));
    ledger.commit().unwrap();
    let found = picture(&reopen(&disk.crash_image(Crash::DropUnsynced)));
    assert_eq!(found, picture(&ledger));
}

/// As on a disk that copies on write.
#[test]
fn where_zeros_ahead_have_no_room_nothing_is_refused() {
    let disk = disk();
    let mut ledger = create(&disk);
    disk.inject(Fault::fail(OpKind::Write, Errno::NOSPC).nth(1));
    ledger.append(&[entry(6, 2, 10)]);
    ledger.commit().unwrap();
    let writes = count(&disk, OpKind::Write);
    ledger.append(&[entry(7, 2, 10)]);
    ledger.commit().unwrap();
    assert_eq!(count(&disk, OpKind::Write), writes + 1);
    assert_eq!(picture(&reopen(&disk)), picture(&ledger));
}

/// The next file is there before it is needed: a full disk whose newest file is used up can still
/// leave it, so that the old one can go.
#[test]
fn a_full_disk_gets_room_from_what_is_discarded() {
    let disk = disk();
    let mut ledger = create(&disk);
    for index in 6..11 {
        ledger.append(&[entry(index, 2, 300)]);
        ledger.set_hard_state(state(2, 0, index));
        ledger.commit().unwrap();
    }
    disk.set_quota(Some(disk.used()));
    for index in 11..300 {
        ledger.append(&[entry(index, 2, 300)]);
        ledger.set_hard_state(state(2, 0, index));
        ledger.commit().unwrap();
        ledger.discard(index, 0).unwrap();
    }
    assert_eq!(picture(&reopen(&disk)), picture(&ledger));
}

/// When a commit finds no room, one file is removed of those that are kept for members that are
/// behind.
#[test]
fn a_full_disk_gets_room_from_what_is_kept_for_others() {
    let disk = disk();
    let mut ledger = create(&disk);
    let (mut given, mut left) = (0, 0);
    for index in 6..300 {
        if index == 100 {
            disk.set_quota(Some(disk.used()));
        }
        ledger.append(&[entry(index, 2, 300)]);
        ledger.set_hard_state(state(2, 0, index));
        while ledger.commit().is_err_and(|error| error.is_full()) {
            assert!(ledger.give_up_oldest(index - 1).unwrap(), "{index}");
            let found = picture(&reopen(&disk.crash_image(Crash::DropUnsynced)));
            assert_eq!(found.1, *ledger.base(), "{index}");
            given += 1;
        }
        ledger.discard(index, u64::MAX).unwrap();
        left = ledger.last_index() - ledger.first_index();
        assert!(index < 100 || left > 60, "{index}: {left}");
    }
    assert!(given > 20 && left < 100, "{given}, {left}");
    assert_eq!(picture(&reopen(&disk)), picture(&ledger));
}

/// The entries that a waiting one may replace are in the only other file: nothing is known of it.
#[test]
fn nothing_is_given_up_before_a_replacement_is_written_that_reaches_back_a_file() {
    let disk = disk();
    let mut ledger = create(&disk);
    for index in 6..26 {
        ledger.append(&[entry(index, 2, 300)]);
        ledger.commit().unwrap();
    }
    assert!(ledger.files.len() > 2);
    ledger.set_hard_state(state(3, 0, 6));
    ledger.append(&entries(7, 1, 3, 10));
    assert!(!ledger.give_up_oldest(25).unwrap());
    ledger.commit().unwrap();
    assert!(ledger.give_up_oldest(6).unwrap());
    assert_eq!(picture(&reopen(&disk)), picture(&ledger));
}

#[test]
fn a_reset_without_room_changes_nothing_and_can_be_repeated() {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 3, 2, 10));
    ledger.commit().unwrap();
    let before = picture(&ledger);
    disk.set_quota(Some(disk.used()));
    assert!(ledger.reset(base(20, 3)).unwrap_err().is_full());
    assert_eq!(picture(&ledger), before);
    assert_eq!(
        picture(&reopen(&disk.crash_image(Crash::DropUnsynced))),
        before
    );
    disk.set_quota(None);
    ledger.reset(base(20, 3)).unwrap();
    assert_eq!(
        reopen(&disk.crash_image(Crash::DropUnsynced)).base(),
        &base(20, 3)
    );
}

#[test]
fn a_reset_has_the_room_that_was_set_aside_for_it() {
    let disk = disk();
    let mut ledger = create(&disk);
    disk.set_quota(Some(disk.used()));
    assert!(ledger.set_aside().unwrap_err().is_full());
    disk.set_quota(None);
    ledger.set_aside().unwrap();
    ledger.append(&entries(6, 3, 2, 10));
    ledger.commit().unwrap();
    disk.set_quota(Some(disk.used()));
    ledger.reset(base(20, 3)).unwrap();
    assert_eq!(
        reopen(&disk.crash_image(Crash::DropUnsynced)).base(),
        &base(20, 3)
    );
}

#[test]
fn a_disk_that_copies_on_write_may_be_full_at_any_write() {
    let disk = disk();
    disk.set_copy_on_write(true);
    let mut ledger = create(&disk);
    let mut refused = 0;
    for index in 6..80 {
        ledger.append(&[entry(index, 2, 300)]);
        disk.set_quota(Some(disk.used() + index % 5 * 150));
        if let Err(error) = ledger.commit() {
            assert!(error.is_full(), "{error}");
            refused += 1;
            disk.set_quota(None);
            ledger.commit().unwrap();
        }
        let image = disk.crash_image(Crash::DropUnsynced);
        image.set_quota(None);
        assert_eq!(picture(&reopen(&image)), picture(&ledger));
    }
    assert!(refused > 10, "{refused}");
}

#[test]
fn short_reads_and_writes_are_continued() {
    use bsd::storage::disk::sim::Effect;
    let disk = disk();
    for kind in [OpKind::Read, OpKind::Write] {
        disk.inject(Fault::new(kind, Effect::Short(13)).for_ever());
    }
    let mut ledger = create(&disk);
    for it in script() {
        act(&mut ledger, &it).unwrap();
    }
    assert_eq!(picture(&reopen(&disk)), picture(&ledger));
}

/// The page cache shows what the failed sync did not write. A start makes it durable.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_made_durable_by_the_start_that_reads_it() {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 3, 2, 10));
    disk.inject(Fault::fail(OpKind::Sync, Errno::IO));
    assert!(!ledger.commit().unwrap_err().is_full());
    assert_eq!(
        reopen(&disk.crash_image(Crash::DropUnsynced)).last_index(),
        5
    );
    let found = picture(&reopen(&disk));
    assert_eq!(
        picture(&reopen(&disk.crash_image(Crash::DropUnsynced))),
        found
    );
}
