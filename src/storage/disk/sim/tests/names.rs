//! Effects of a crash on names.

use super::*;

#[test]
fn a_new_file_is_lost_without_a_sync_of_its_directory_even_when_its_content_is_synced() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a");
    write_all_at(&*file, b"content", 0).unwrap();
    file.sync().unwrap();
    assert!(
        fs.crash_image(Crash::DropUnsynced)
            .names("/")
            .unwrap()
            .is_empty()
    );
    fs.sync_dir(path("/")).unwrap();
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"content"
    );
}

#[test]
fn a_file_whose_name_is_synced_and_whose_content_is_not_is_empty() {
    let fs = SimFs::new(1);
    let file = create(&fs, "/a");
    write_all_at(&*file, b"content", 0).unwrap();
    fs.sync_dir(path("/")).unwrap();
    assert_eq!(fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(), b"");
}

#[test]
fn a_rename_without_a_sync_of_the_directory_may_be_lost_and_is_atomic() {
    let (fs, _file) = disk_with(b"new");
    fs.write("/b", b"old").unwrap();
    fs.replace(path("/a"), path("/b")).unwrap();
    assert_eq!(fs.names("/").unwrap(), ["b"]);
    assert_eq!(fs.unsynced_units(Granularity::Write), 1);
    let lost = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(lost.names("/").unwrap(), ["a", "b"]);
    assert_eq!(lost.read("/b").unwrap(), b"old");
    fs.sync_dir(path("/")).unwrap();
    let kept = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(kept.names("/").unwrap(), ["b"]);
    assert_eq!(kept.read("/b").unwrap(), b"new");
}

#[test]
fn a_removed_file_may_be_back_until_its_directory_is_synced() {
    let (fs, _file) = disk_with(b"a");
    fs.remove_file(path("/a")).unwrap();
    assert!(fs.names("/").unwrap().is_empty());
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced).read("/a").unwrap(),
        b"a"
    );
    fs.sync_dir(path("/")).unwrap();
    assert!(
        fs.crash_image(Crash::DropUnsynced)
            .names("/")
            .unwrap()
            .is_empty()
    );
}

#[test]
fn changes_of_names_survive_in_any_combination() {
    let fs = SimFs::new(1);
    ["/a", "/b"]
        .iter()
        .for_each(|name| fs.write(name, name.as_bytes()).unwrap());
    fs.remove_file(path("/a")).unwrap();
    fs.rename(path("/b"), path("/c")).unwrap();
    let names = |kept| {
        let crash = Crash::Subset {
            kept,
            granularity: Granularity::Write,
        };
        fs.crash_image(crash).names("/").unwrap().concat()
    };
    assert_eq!([0b00, 0b01, 0b10, 0b11].map(names), ["ab", "b", "ac", "c"]);
}

#[test]
fn a_file_has_one_name_whatever_changes_of_names_were_lost() {
    let (fs, _file) = disk_with(b"a");
    fs.rename(path("/a"), path("/b")).unwrap();
    fs.rename(path("/b"), path("/c")).unwrap();
    let crash = Crash::Subset {
        kept: 0b10,
        granularity: Granularity::Write,
    };
    assert_eq!(fs.crash_image(crash).names("/").unwrap(), ["c"]);
}

#[test]
fn a_directory_that_is_not_synced_into_its_parent_goes_with_all_that_is_in_it() {
    let fs = SimFs::new(1);
    fs.create_dir_all(path("/one/two")).unwrap();
    create(&fs, "/one/two/a").sync().unwrap();
    fs.sync_dir(path("/one/two")).unwrap();
    fs.sync_dir(path("/one")).unwrap();
    assert!(fs.crash_image(Crash::DropUnsynced).names("/one").is_err());
    fs.sync_dir(path("/")).unwrap();
    assert_eq!(
        fs.crash_image(Crash::DropUnsynced)
            .names("/one/two")
            .unwrap(),
        ["a"]
    );
}

#[test]
fn a_rename_between_directories_never_loses_the_file() {
    let fs = SimFs::new(1);
    fs.write("/one/a", b"a").unwrap();
    fs.create_dir_all(path("/two")).unwrap();
    fs.sync_dir(path("/")).unwrap();
    fs.rename(path("/one/a"), path("/two/a")).unwrap();
    create(&fs, "/one/a");
    fs.sync_dir(path("/one")).unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(image.read("/one/a").unwrap(), b"");
    assert_eq!(
        image.read("/two/a").unwrap(),
        b"a",
        "the name was given away, so it has moved"
    );
}

#[test]
fn a_sync_of_a_directory_says_nothing_of_another() {
    let fs = SimFs::new(1);
    fs.create_dir_all(path("/one")).unwrap();
    fs.sync_dir(path("/")).unwrap();
    create(&fs, "/a");
    create(&fs, "/one/a");
    fs.sync_dir(path("/one")).unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(image.names("/").unwrap(), ["one"]);
    assert_eq!(image.names("/one").unwrap(), ["a"]);
}

#[test]
fn an_open_file_outlives_its_name_until_it_is_closed() {
    let (fs, file) = disk_with(b"content");
    fs.remove_file(path("/a")).unwrap();
    fs.sync_dir(path("/")).unwrap();
    let mut bytes = [0; 7];
    read_exact_at(&*file, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"content");
    assert_eq!(fs.used(), 7);
    drop(file);
    assert_eq!(fs.used(), 0);
}

#[test]
fn a_file_created_and_moved_has_one_name_whichever_directory_is_synced_first() {
    let fs = SimFs::new(1);
    fs.create_dir_all(path("/one")).unwrap();
    fs.create_dir_all(path("/two")).unwrap();
    fs.sync_dir(path("/")).unwrap();
    create(&fs, "/one/a");
    fs.rename(path("/one/a"), path("/two/a")).unwrap();
    fs.sync_dir(path("/two")).unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(image.names("/two").unwrap(), ["a"]);
    fs.sync_dir(path("/one")).unwrap();
    let image = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(image.names("/two").unwrap(), ["a"]);
    assert!(image.names("/one").unwrap().is_empty());
}

#[test]
fn only_an_empty_directory_can_be_removed_and_it_may_be_back_until_its_parent_is_synced() {
    let (fs, _file) = disk_with(b"a");
    fs.create_dir_all(path("/d")).unwrap();
    fs.write("/d/f", b"f").unwrap();
    fs.sync_dir(path("/")).unwrap();
    assert!(fs.remove_dir(path("/d")).is_err());
    fs.remove_file(path("/d/f")).unwrap();
    fs.sync_dir(path("/d")).unwrap();
    fs.remove_dir(path("/d")).unwrap();
    assert_eq!(fs.names("/").unwrap(), ["a"]);
    let lost = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(lost.names("/").unwrap(), ["a", "d"]);
    fs.sync_dir(path("/")).unwrap();
    let kept = fs.crash_image(Crash::DropUnsynced);
    assert_eq!(kept.names("/").unwrap(), ["a"]);
}
