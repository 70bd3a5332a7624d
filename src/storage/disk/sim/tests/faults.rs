//! Planned faults, one by one, and direct changes of files by a test.

use super::*;

#[test]
fn every_kind_of_operation_can_fail_and_then_changes_nothing() {
    let all = |fs: &SimFs, file: &dyn File| -> Vec<Option<i32>> {
        let code = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error());
        let locked = match fs.lock_dir(path("/")) {
            Err(LockError::Io(error)) => Err(error),
            _ => Ok(()),
        };
        vec![
            code(fs.create_dir_all(path("/dir"))),
            code(fs.read_dir(path("/")).map(drop)),
            code(fs.open_read(path("/a")).map(drop)),
            code(fs.open(path("/new"), OpenMode::CreateNew).map(drop)),
            code(fs.rename(path("/b"), path("/c"))),
            code(fs.remove_file(path("/d"))),
            code(fs.sync_dir(path("/"))),
            code(locked),
            code(file.size().map(drop)),
            code(file.read_at(&mut [0; 1], 0).map(drop)),
            code(file.write_at(b"x", 0).map(drop)),
            code(file.sync()),
            code(file.set_size(50)),
            code(file.allocate(90)),
        ]
    };
    for (nth, kind) in OpKind::ALL.into_iter().enumerate() {
        let (fs, file) = disk_with(b"a");
        ["/b", "/d"]
            .iter()
            .for_each(|name| fs.write(name, b"").unwrap());
        fs.inject(Fault::fail(kind, Errno::MFILE));
        let results = all(&fs, &*file);
        let failed: Vec<_> = (0..results.len())
            .filter(|n| results[*n].is_some())
            .collect();
        assert_eq!(failed, [nth], "{kind:?}");
        assert_eq!(results[nth], Some(Errno::MFILE.raw_os_error()));
        // What the failed operation should have changed is unchanged.
        let names = fs.names("/").unwrap();
        assert_eq!(names.contains(&"dir".into()), kind != OpKind::CreateDir);
        assert_eq!(names.contains(&"new".into()), kind != OpKind::Create);
        assert_eq!(names.contains(&"b".into()), kind == OpKind::Rename);
        assert_eq!(names.contains(&"d".into()), kind == OpKind::Remove);
        let content = fs.read("/a").unwrap();
        assert_eq!(content[0] == b'x', kind != OpKind::Write);
        assert_eq!(
            content.len(),
            if kind == OpKind::Allocate { 50 } else { 90 }
        );
    }
}

#[test]
fn after_a_failed_sync_the_next_one_succeeds_and_makes_nothing_durable() {
    let (fs, file) = disk_with(b"old");
    write_all_at(&*file, b"new", 0).unwrap();
    fs.inject(Fault::fail(OpKind::Sync, Errno::IO));
    assert_eq!(errno(file.sync()), Some(Errno::IO));
    file.sync().unwrap();
    assert_eq!(
        fs.read("/a").unwrap(),
        b"new",
        "the cache is newer than the disk"
    );
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"old"
    );
    assert_eq!(fs.crash_image(Crash::KeepAll).read("/a").unwrap(), b"new");
}

#[test]
fn what_a_failed_sync_lost_is_durable_only_when_written_again() {
    let (fs, file) = disk_with(&[0; 2 * PAGE]);
    write_all_at(&*file, &[1; 2 * PAGE], 0).unwrap();
    fs.inject(Fault::fail(OpKind::Sync, Errno::IO));
    file.sync().unwrap_err();
    write_all_at(&*file, b"\x01", PAGE as u64).unwrap();
    file.sync().unwrap();
    let bytes = fs.crash_image(Crash::DropUnsynced).read("/a").unwrap();
    assert_eq!((bytes[0], bytes[PAGE - 1]), (0, 0));
    assert_eq!(
        (bytes[PAGE], bytes[2 * PAGE - 1]),
        (1, 1),
        "a page is synced whole"
    );
}

#[test]
fn a_failed_sync_may_have_written_some_of_its_pages() {
    let (fs, file) = disk_with(&[0; PAGE]);
    write_all_at(&*file, &[1; PAGE], 0).unwrap();
    fs.inject(Fault::fail(OpKind::Sync, Errno::IO));
    file.sync().unwrap_err();
    file.sync().unwrap();
    let outcomes: Vec<_> = all_subsets(&fs, Granularity::Page)
        .into_iter()
        .map(|bytes| bytes[0])
        .collect();
    assert_eq!(outcomes, [0, 1]);
}

#[test]
fn an_old_failed_write_never_comes_back_over_a_newer_synced_one() {
    let (fs, file) = disk_with(&[0; PAGE]);
    write_all_at(&*file, &[1; PAGE], 0).unwrap();
    fs.inject(Fault::fail(OpKind::Sync, Errno::IO));
    file.sync().unwrap_err();
    write_all_at(&*file, &[2; PAGE], 0).unwrap();
    file.sync().unwrap();
    assert_eq!(fs.unsynced_units(Granularity::Page), 0);
    assert!(random_images(&fs, 50).all(|image| image.read("/a").unwrap() == [2; PAGE]));
}

#[test]
fn a_file_that_grew_before_a_failed_sync_may_be_left_with_the_size_and_without_the_content() {
    let (fs, file) = disk_with(b"");
    write_all_at(&*file, b"new", 0).unwrap();
    fs.inject(Fault::fail(OpKind::Sync, Errno::IO));
    file.sync().unwrap_err();
    file.sync().unwrap();
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        [0; 3]
    );
}

#[test]
fn a_failed_write_that_was_cut_off_does_not_come_back_when_the_file_grows() {
    let (fs, file) = disk_with(b"");
    write_all_at(&*file, &[1; PAGE], 0).unwrap();
    fs.inject(Fault::fail(OpKind::Sync, Errno::IO));
    file.sync().unwrap_err();
    for size in [0, PAGE as u64] {
        file.set_size(size).unwrap();
        file.sync().unwrap();
    }
    assert_eq!(all_subsets(&fs, Granularity::Page), [vec![0; PAGE]]);
}

#[test]
fn names_wait_for_the_next_sync_when_one_fails() {
    let fs = SimFs::new(1);
    create(&fs, "/a");
    fs.inject(Fault::fail(OpKind::SyncDir, Errno::IO));
    fs.sync_dir(path("/")).unwrap_err();
    assert!(
        fs.crash_image(Crash::DropUnsynced)
            .names("/")
            .unwrap()
            .is_empty()
    );
    fs.sync_dir(path("/")).unwrap();
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).names("/").unwrap(),
        ["a"]
    );
}

#[test]
fn a_sync_that_lies_leaves_its_writes_unsynced() {
    let (fs, file) = disk_with(b"old");
    write_all_at(&*file, b"new", 0).unwrap();
    create(&fs, "/b");
    fs.inject(Fault::new(OpKind::Sync, Effect::Lose));
    fs.inject(Fault::new(OpKind::SyncDir, Effect::Lose));
    file.sync().unwrap();
    fs.sync_dir(path("/")).unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(image.read("/a").unwrap(), b"old");
    assert_eq!(image.names("/").unwrap(), ["a"]);
}

#[test]
fn a_short_write_says_so_and_a_short_read_too() {
    let (fs, file) = disk_with(b"");
    fs.inject(Fault::new(OpKind::Write, Effect::Short(2)).for_ever());
    assert_eq!(file.write_at(b"hello", 0).unwrap(), 2);
    assert_eq!(fs.read("/a").unwrap(), b"he");
    write_all_at(&*file, b"hello", 0).unwrap();
    fs.inject(Fault::new(OpKind::Read, Effect::Short(1)));
    let mut bytes = [0; 5];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 1);
    read_exact_at(&*file, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"hello");
}

#[test]
fn an_interrupted_write_can_be_repeated() {
    let (fs, file) = disk_with(b"");
    fs.inject(Fault::fail(OpKind::Write, Errno::INTR));
    write_all_at(&*file, b"hello", 0).unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"hello");
}

#[test]
fn a_lost_write_leaves_the_old_bytes_and_the_new_size() {
    let (fs, file) = disk_with(b"old");
    fs.inject(Fault::new(OpKind::Write, Effect::Lose));
    assert_eq!(file.write_at(b"newer", 0).unwrap(), 5);
    file.sync().unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"old\0\0");
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"old\0\0"
    );
}

#[test]
fn a_misdirected_write_lands_in_the_other_place_only() {
    let (fs, file) = disk_with(b"aaaa");
    fs.write("/b", b"bbbb").unwrap();
    let elsewhere = |path: &str, offset| Effect::Misdirect {
        path: path.into(),
        offset,
    };
    fs.inject(Fault::new(OpKind::Write, elsewhere("/b", 3)));
    fs.inject(Fault::new(OpKind::Write, elsewhere("/a", 2)));
    fs.inject(Fault::new(OpKind::Write, elsewhere("/none", 0)));
    for _ in 0..3 {
        assert_eq!(file.write_at(b"xy", 0).unwrap(), 2);
    }
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(
        (fs.read("/a").unwrap(), image.read("/a").unwrap()),
        (b"aaxy".into(), b"aaxy".into())
    );
    assert_eq!(
        (fs.read("/b").unwrap(), image.read("/b").unwrap()),
        (b"bbbx".into(), b"bbbx".into())
    );
}

#[test]
fn a_range_that_cannot_be_read_fails_until_healed_also_after_a_rename_and_a_crash() {
    let (fs, file) = disk_with(b"0123456789");
    fs.fail_reads("/a", 4..6).unwrap();
    assert_eq!(
        file.read_at(&mut [0; 10], 0).unwrap(),
        4,
        "up to the bad bytes"
    );
    assert_eq!(errno(file.read_at(&mut [0; 1], 5)), Some(Errno::IO));
    assert_eq!(file.read_at(&mut [0; 10], 6).unwrap(), 4);
    fs.rename(path("/a"), path("/b")).unwrap();
    let image = fs.crash_image(Crash::KeepAll);
    let file = image.open_read(path("/b")).unwrap();
    assert_eq!(errno(file.read_at(&mut [0; 1], 4)), Some(Errno::IO));
    image.heal_reads("/b").unwrap();
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
}

#[test]
fn a_flipped_bit_is_seen_at_once_and_after_a_crash_and_flips_back() {
    let (fs, file) = disk_with(b"ab");
    fs.flip_bit("/a", 9).unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"a\x60");
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"a\x60"
    );
    fs.flip_bit("/a", 9).unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"ab");
    assert!(fs.flip_bit("/a", 16).is_err());
    drop(file);
}

#[test]
fn a_removed_file_can_be_brought_back_also_after_a_crash() {
    let (fs, file) = disk_with(b"durable");
    write_all_at(&*file, b"visible", 0).unwrap();
    drop(file);
    fs.remove_file(path("/a")).unwrap();
    assert!(fs.resurrect("/a").is_err(), "it is not gone for good yet");
    fs.sync_dir(path("/")).unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    image.resurrect("a").unwrap();
    let again = image.crash_image(Crash::DropUnsynced);
    assert_eq!(again.read("/a").unwrap(), b"durable");
}

#[test]
fn what_a_test_writes_cuts_and_removes_is_durable_and_drags_nothing_else_along() {
    let fs = SimFs::new(1);
    create(&fs, "/other");
    fs.write("/dir/a", b"12345").unwrap();
    fs.write("/dir/b", b"").unwrap();
    fs.truncate("/dir/a", 3).unwrap();
    fs.remove("/dir/b").unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(image.names("/").unwrap(), ["dir"]);
    assert_eq!(image.names("/dir").unwrap(), ["a"]);
    assert_eq!(image.read("/dir/a").unwrap(), b"123");
    image.remove("/dir").unwrap();
    assert!(
        image
            .crash_image(Crash::DropUnsynced)
            .names("/")
            .unwrap()
            .is_empty()
    );
    assert_eq!(fs.operations(), 1);
}
