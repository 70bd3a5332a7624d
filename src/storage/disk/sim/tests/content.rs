//! Effects of a crash on the content of files.

use super::*;

#[test]
fn a_synced_write_survives_a_power_cut_and_an_unsynced_one_does_not() {
    let (fs, file) = disk_with(b"old");
    write_all_at(&*file, b"new", 0).unwrap();
    assert_eq!(fs.read("/a").unwrap(), b"new");
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"old"
    );
    file.sync().unwrap();
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"new"
    );
    assert_eq!(fs.unsynced_units(Granularity::Sector), 0);
}

#[test]
fn a_sync_of_one_file_says_nothing_of_another() {
    let (fs, file) = disk_with(b"old");
    fs.write("/b", b"old").unwrap();
    let other = fs.open(path("/b"), OpenMode::ReadWrite).unwrap();
    write_all_at(&*file, b"new", 0).unwrap();
    write_all_at(&*other, b"new", 0).unwrap();
    other.sync().unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(
        (image.read("/a").unwrap(), image.read("/b").unwrap()),
        (b"old".into(), b"new".into())
    );
}

#[test]
fn kill_9_keeps_all_and_a_power_cut_after_it_may_still_take_it() {
    let (fs, file) = disk_with(b"old");
    write_all_at(&*file, b"new", 0).unwrap();
    create(&fs, "/b");
    let killed = fs.crash_image(Crash::KeepAll);
    assert_eq!(killed.read("/a").unwrap(), b"new");
    assert_eq!(killed.names("/").unwrap(), ["a", "b"]);
    let cut = killed.crash_image(Crash::DropUnsynced);
    assert_eq!(cut.read("/a").unwrap(), b"old");
    assert_eq!(cut.names("/").unwrap(), ["a"]);
}

#[test]
fn a_sync_after_a_kill_makes_the_dead_process_s_writes_durable() {
    let (fs, file) = disk_with(b"old");
    write_all_at(&*file, b"new", 0).unwrap();
    let killed = fs.crash_image(Crash::KeepAll);
    let file = killed.open(path("/a"), OpenMode::ReadWrite).unwrap();
    file.sync().unwrap();
    assert_eq!(
        killed.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"new"
    );
}

#[test]
fn every_subset_of_writes_can_survive() {
    let (fs, file) = disk_with(&[b'-'; 3 * PAGE]);
    for (nth, byte) in [b'a', b'b', b'c'].into_iter().enumerate() {
        write_all_at(&*file, &[byte; PAGE], (nth * PAGE) as u64).unwrap();
    }
    assert_eq!(fs.unsynced_units(Granularity::Write), 3);
    let firsts = |bytes: Vec<u8>| {
        bytes
            .chunks(PAGE)
            .map(|page| page[0] as char)
            .collect::<String>()
    };
    let outcomes: Vec<_> = all_subsets(&fs, Granularity::Write)
        .into_iter()
        .map(firsts)
        .collect();
    assert_eq!(
        outcomes,
        ["---", "a--", "-b-", "ab-", "--c", "a-c", "-bc", "abc"]
    );
}

#[test]
fn a_write_tears_into_pages_or_into_sectors() {
    let (fs, file) = disk_with(&[0; 2 * PAGE]);
    write_all_at(&*file, &[1; 2 * PAGE], 0).unwrap();
    assert_eq!(fs.unsynced_units(Granularity::Write), 1);
    assert_eq!(fs.unsynced_units(Granularity::Page), 2);
    assert_eq!(fs.unsynced_units(Granularity::Sector), 2 * PAGE / SECTOR);
    let torn = Crash::Subset {
        kept: 0b1010,
        granularity: Granularity::Sector,
    };
    let bytes = fs.crash_image(torn).read("/a").unwrap();
    let sectors: Vec<_> = bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
    assert_eq!(sectors, [0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_sector_never_mixes_two_times() {
    let (fs, file) = disk_with(&[b'0'; SECTOR]);
    write_all_at(&*file, b"11", 0).unwrap();
    write_all_at(&*file, b"22", 2).unwrap();
    for bytes in all_subsets(&fs, Granularity::Sector) {
        assert!([b"0000", b"1100", b"1122"].contains(&&bytes[..4].try_into().unwrap()));
    }
}

#[test]
fn of_two_writes_to_one_page_either_may_be_the_last_to_arrive() {
    let (fs, file) = disk_with(&[0; PAGE]);
    write_all_at(&*file, &[1; PAGE], 0).unwrap();
    write_all_at(&*file, &[2; PAGE], 0).unwrap();
    let outcomes: Vec<_> = all_subsets(&fs, Granularity::Page)
        .into_iter()
        .map(|bytes| bytes[0])
        .collect();
    assert_eq!(outcomes, [0, 1, 2, 2]);
}

#[test]
fn a_file_may_grow_without_its_content_and_content_may_arrive_without_the_size() {
    let (fs, file) = disk_with(b"");
    write_all_at(&*file, &[7; PAGE], 0).unwrap();
    let outcomes = all_subsets(&fs, Granularity::Page);
    assert_eq!(outcomes, [vec![], vec![0; PAGE], vec![], vec![7; PAGE]]);
}

#[test]
fn content_that_arrived_without_its_size_does_not_show_when_the_file_grows_later() {
    let (fs, file) = disk_with(b"");
    write_all_at(&*file, &[7; PAGE], 0).unwrap();
    let image = fs.crash_image(Crash::Subset {
        kept: 0b10,
        granularity: Granularity::Page,
    });
    image
        .open(path("/a"), OpenMode::ReadWrite)
        .unwrap()
        .set_size(10)
        .unwrap();
    assert_eq!(image.read("/a").unwrap(), [0; 10]);
}

#[test]
fn an_unsynced_cut_may_be_undone() {
    let (fs, file) = disk_with(b"abcdef");
    file.set_size(2).unwrap();
    assert_eq!(
        all_subsets(&fs, Granularity::Write),
        [b"abcdef".to_vec(), b"ab".to_vec()]
    );
    file.sync().unwrap();
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"ab"
    );
}

#[test]
fn an_unsynced_allocation_may_lose_its_size() {
    let (fs, file) = disk_with(b"");
    file.allocate(100).unwrap();
    assert_eq!(all_subsets(&fs, Granularity::Write), [vec![], vec![0; 100]]);
}

#[test]
fn a_random_crash_keeps_drops_and_tears() {
    let (fs, file) = disk_with(&[0; 4 * PAGE]);
    write_all_at(&*file, &[1; 4 * PAGE], 0).unwrap();
    let (mut kept, mut dropped, mut torn, mut sectors) = (0, 0, 0, 0);
    for image in random_images(&fs, 200) {
        let bytes = image.read("/a").unwrap();
        let ones = bytes.iter().filter(|byte| **byte == 1).count();
        assert_eq!(ones % SECTOR, 0);
        kept += usize::from(ones == bytes.len());
        dropped += usize::from(ones == 0);
        torn += usize::from(ones != 0 && ones != bytes.len());
        sectors += usize::from(ones % PAGE != 0);
    }
    assert!(
        [kept, dropped, torn, sectors]
            .iter()
            .all(|count| *count > 10)
    );
}

#[test]
fn a_random_crash_never_touches_what_is_synced() {
    let (fs, file) = disk_with(b"");
    write_all_at(&*file, &[1; 3 * SECTOR], 0).unwrap();
    file.sync().unwrap();
    write_all_at(&*file, &[2; 2 * PAGE], 3 * SECTOR as u64).unwrap();
    for image in random_images(&fs, 200) {
        let bytes = image.read("/a").unwrap();
        assert_eq!(bytes[..3 * SECTOR], [1; 3 * SECTOR]);
    }
}

#[test]
fn where_a_file_grew_without_content_there_are_zeros_or_noise_or_a_removed_file_s_bytes() {
    let (fs, file) = disk_with(b"");
    fs.write("/stale", &[9; PAGE]).unwrap();
    fs.remove("/stale").unwrap();
    write_all_at(&*file, &[1; PAGE], 0).unwrap();
    let (mut zeros, mut noise, mut stale) = (0, 0, 0);
    for bytes in random_images(&fs, 300).map(|image| image.read("/a").unwrap()) {
        for sector in bytes.chunks(SECTOR).filter(|sector| sector[0] != 1) {
            match sector {
                _ if sector == [0; SECTOR] => zeros += 1,
                _ if sector == [9; SECTOR] => stale += 1,
                _ => noise += 1,
            }
        }
    }
    assert!(
        zeros > 10 && noise > 10 && stale > 10,
        "{zeros} {noise} {stale}"
    );
}

#[test]
fn stale_bytes_never_appear_within_the_durable_size() {
    let (fs, file) = disk_with(&[0; PAGE]);
    fs.write("/stale", &[9; PAGE]).unwrap();
    fs.remove("/stale").unwrap();
    write_all_at(&*file, &[1; PAGE], 0).unwrap();
    for bytes in random_images(&fs, 200).map(|image| image.read("/a").unwrap()) {
        assert!(bytes.iter().all(|byte| *byte <= 1));
    }
}

#[test]
fn crash_images_nest() {
    let (fs, file) = disk_with(b"one");
    write_all_at(&*file, b"two", 0).unwrap();
    file.sync().unwrap();
    let first = fs.crash_image(Crash::Random { seed: 1 });
    let again = first.open(path("/a"), OpenMode::ReadWrite).unwrap();
    write_all_at(&*again, b"three", 0).unwrap();
    let second = first.crash_image(Crash::DropUnsynced);
    assert_eq!(second.read("/a").unwrap(), b"two");
    assert_eq!(first.read("/a").unwrap(), b"three");
    assert_eq!(fs.read("/a").unwrap(), b"two");
}

#[test]
fn old_handles_keep_writing_to_the_old_disk() {
    let (fs, file) = disk_with(b"old");
    let image = fs.crash_image(Crash::DropUnsynced);
    write_all_at(&*file, b"new", 0).unwrap();
    assert_eq!(image.read("/a").unwrap(), b"old");
}

#[test]
fn units_are_counted_from_the_oldest_whatever_they_belong_to() {
    let (fs, file) = disk_with(b"old");
    fs.write("/b", b"old").unwrap();
    let other = fs.open(path("/b"), OpenMode::ReadWrite).unwrap();
    write_all_at(&*other, b"new", 0).unwrap();
    write_all_at(&*file, b"new", 0).unwrap();
    create(&fs, "/c");
    let changed = |kept| {
        let granularity = Granularity::Write;
        let image = fs.crash_image(Crash::Subset { kept, granularity });
        let is_new = |name| image.read(name).unwrap() == b"new";
        (is_new("/b"), is_new("/a"), image.read("/c").is_ok())
    };
    assert_eq!(changed(0b001), (true, false, false));
    assert_eq!(changed(0b010), (false, true, false));
    assert_eq!(changed(0b100), (false, false, true));
}
