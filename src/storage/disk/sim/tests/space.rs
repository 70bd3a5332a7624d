//! Quotas, reserved space, and copy-on-write storage.

use super::*;

#[test]
fn a_write_past_the_quota_is_short_and_then_fails() {
    let (fs, file) = disk_with(b"1234");
    fs.set_quota(Some(10));
    assert_eq!(file.write_at(b"abcdefgh", 4).unwrap(), 6);
    assert_eq!(errno(file.write_at(b"x", 10)), Some(Errno::NOSPC));
    assert_eq!(
        file.write_at(b"over", 0).unwrap(),
        4,
        "what is there has its space"
    );
    assert_eq!(fs.used(), 10);
    fs.set_quota(Some(11));
    assert_eq!(file.write_at(b"xy", 10).unwrap(), 1);
}

#[test]
fn writes_within_an_allocation_cannot_run_out_of_space() {
    let (fs, file) = disk_with(b"");
    fs.write("/b", b"").unwrap();
    fs.set_quota(Some(10_000));
    file.allocate(9_000).unwrap();
    let other = fs.open(path("/b"), OpenMode::ReadWrite).unwrap();
    assert_eq!(other.write_at(&[1; 2000], 0).unwrap(), 1000);
    write_all_at(&*file, &[1; 9_000], 0).unwrap();
    assert_eq!(errno(file.allocate(9_001)), Some(Errno::NOSPC));
    assert_eq!(file.size().unwrap(), 9_000);
}

#[test]
fn copy_on_write_storage_needs_space_again_for_each_overwrite_until_a_sync() {
    let (fs, file) = disk_with(b"");
    fs.set_copy_on_write(true);
    fs.set_quota(Some(150));
    file.allocate(100).unwrap();
    assert_eq!(file.write_at(&[1; 100], 0).unwrap(), 50);
    assert_eq!(errno(file.write_at(&[1; 100], 0)), Some(Errno::NOSPC));
    file.sync().unwrap();
    assert_eq!(file.write_at(&[1; 100], 50).unwrap(), 50);
}

#[test]
fn removing_and_cutting_give_space_back_and_a_hole_takes_none() {
    let (fs, file) = disk_with(&[1; 100]);
    fs.write("/b", &[1; 50]).unwrap();
    assert_eq!(fs.used(), 150);
    fs.remove_file(path("/b")).unwrap();
    assert_eq!(fs.used(), 100);
    file.set_size(40).unwrap();
    assert_eq!(fs.used(), 40);
    file.set_size(1 << 40).unwrap();
    assert_eq!(fs.used(), 40);
}

#[test]
fn a_full_disk_is_still_full_after_a_crash() {
    let (fs, _file) = disk_with(&[1; 100]);
    fs.set_quota(Some(100));
    let image = fs.crash_image(Crash::DropUnsynced);
    let file = image.open(path("/a"), OpenMode::ReadWrite).unwrap();
    assert_eq!(errno(file.write_at(b"x", 100)), Some(Errno::NOSPC));
}

#[test]
fn a_cut_that_a_crash_undoes_takes_its_space_again() {
    let (fs, file) = disk_with(&[1; 10_000]);
    file.set_size(40).unwrap();
    assert_eq!(fs.used(), 40);
    assert_eq!(fs.crash_image(Crash::DropUnsynced).used(), 10_000);
}

#[test]
fn so_does_one_of_space_that_was_set_aside_and_never_written() {
    let (fs, file) = disk_with(b"");
    file.allocate(9000).unwrap();
    file.sync().unwrap();
    file.set_size(10).unwrap();
    assert_eq!(fs.used(), 10);
    assert_eq!(fs.crash_image(Crash::KeepAll).used(), 10);
    assert_eq!(fs.crash_image(Crash::DropUnsynced).used(), 9000);
    file.sync().unwrap();
    assert_eq!(fs.crash_image(Crash::DropUnsynced).used(), 10);
}

#[test]
fn a_removed_file_that_was_open_gives_its_space_back_when_the_process_dies() {
    let (fs, _file) = disk_with(&[1; 100]);
    fs.remove_file(path("/a")).unwrap();
    assert_eq!(fs.used(), 100);
    assert_eq!(fs.crash_image(Crash::KeepAll).used(), 0);
}
