//! Calls mean what they mean on a real disk; they are counted, traced, and stopped.

use super::*;

#[test]
fn a_program_can_be_stopped_at_every_operation_and_changes_nothing_after_it() {
    let program = |fs: &SimFs| -> io::Result<()> {
        let file = fs.open(path("/a"), OpenMode::CreateNew)?;
        write_all_at(&*file, b"1", 0)?;
        file.sync()?;
        fs.sync_dir(path("/"))?;
        fs.rename(path("/a"), path("/b"))
    };
    let states = |number| {
        let fs = SimFs::new(1);
        fs.crash_at(number);
        let stopped = program(&fs).unwrap_err();
        assert!(stopped.get_ref().unwrap().is::<SimulatedCrash>());
        assert!(fs.is_crashed() && fs.lock_dir(path("/")).is_err());
        let durable = fs.crash_image(Crash::DropUnsynced);
        (
            fs.names("/").unwrap().concat(),
            durable.names("/").unwrap().concat(),
        )
    };
    let expected = [("", ""), ("a", ""), ("a", ""), ("a", ""), ("a", "a")];
    for (nth, (visible, durable)) in expected.into_iter().enumerate() {
        assert_eq!(
            states(nth as u64 + 1),
            (visible.into(), durable.into()),
            "operation {nth}"
        );
    }
    let fs = SimFs::new(1);
    fs.crash_at(6);
    program(&fs).unwrap();
    assert!(!fs.is_crashed());
}

#[test]
fn the_same_seed_gives_the_same_trace_and_the_same_crash() {
    let run = |seed| {
        let fs = SimFs::new(seed);
        for name in ["/a", "/b", "/c", "/d", "/e"] {
            write_all_at(&*create(&fs, name), &[1; PAGE], 5).unwrap();
        }
        for entry in fs.read_dir(path("/")).unwrap() {
            fs.open(&path("/").join(entry.name), OpenMode::ReadWrite)
                .unwrap()
                .sync()
                .unwrap();
        }
        create(&fs, "/f").write_at(&[3; 3 * PAGE], 0).unwrap();
        let image = fs.crash_image(Crash::Random { seed: 4 });
        let names = image.names("/").unwrap();
        let files: Vec<_> = names.iter().map(|name| image.read(name).unwrap()).collect();
        (fs.trace(), names, files)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).0, run(2).0);
}

#[test]
fn the_trace_tells_what_was_asked_where_and_whether_it_failed() {
    let fs = SimFs::new(1);
    let file = create(&fs, "a");
    fs.inject(Fault::fail(OpKind::Write, Errno::IO));
    file.write_at(b"12", 3).unwrap_err();
    fs.rename(path("a"), path("b")).unwrap();
    file.set_size(9).unwrap();
    let operation = |number, kind, name, offset, len, failed| {
        let path = path(name).into();
        Operation {
            number,
            kind,
            path,
            offset,
            len,
            failed,
        }
    };
    let expected = [
        operation(1, OpKind::Create, "/a", 0, 0, false),
        operation(2, OpKind::Write, "/a", 3, 2, true),
        operation(3, OpKind::Rename, "/a", 0, 0, false),
        operation(4, OpKind::SetSize, "/b", 0, 9, false),
    ];
    assert_eq!(fs.trace(), expected);
    fs.clear_trace();
    assert_eq!((fs.trace().len(), fs.operations()), (0, 4));
}

#[test]
fn errors_are_those_of_a_real_file_system() {
    let (fs, _file) = disk_with(b"a");
    fs.create_dir_all(path("/dir")).unwrap();
    let open = |name, mode| errno(fs.open(path(name), mode));
    assert_eq!(open("/a", OpenMode::CreateNew), Some(Errno::EXIST));
    assert_eq!(open("/b", OpenMode::ReadWrite), Some(Errno::NOENT));
    assert_eq!(open("/none/b", OpenMode::CreateNew), Some(Errno::NOENT));
    assert_eq!(open("/a/b", OpenMode::ReadWrite), Some(Errno::NOTDIR));
    assert_eq!(open("/dir", OpenMode::ReadWrite), Some(Errno::ISDIR));
    assert_eq!(errno(fs.rename(path("/b"), path("/c"))), Some(Errno::NOENT));
    assert_eq!(
        errno(fs.rename(path("/a"), path("/dir"))),
        Some(Errno::EXIST)
    );
    assert_eq!(errno(fs.rename(path("/a"), path("/a"))), Some(Errno::EXIST));
    assert_eq!(errno(fs.remove_file(path("/b"))), Some(Errno::NOENT));
    assert_eq!(errno(fs.remove_file(path("/dir"))), Some(Errno::ISDIR));
    assert_eq!(errno(fs.read_dir(path("/a"))), Some(Errno::NOTDIR));
    assert_eq!(errno(fs.sync_dir(path("/none"))), Some(Errno::NOENT));
    assert_eq!(errno(fs.create_dir_all(path("/a/b"))), Some(Errno::NOTDIR));
    assert_eq!(errno(fs.create_dir_all(path("/a"))), Some(Errno::EXIST));
    assert_eq!(errno(fs.open_read(path("/b"))), Some(Errno::NOENT));
    assert_eq!(errno(fs.open_read(path("/a/b"))), Some(Errno::NOTDIR));
}

#[test]
fn offsets_and_sizes_past_the_largest_file_are_refused() {
    let (fs, file) = disk_with(b"a");
    assert_eq!(errno(file.write_at(b"x", u64::MAX)), Some(Errno::FBIG));
    assert_eq!(errno(file.set_size(u64::MAX)), Some(Errno::FBIG));
    assert_eq!(errno(file.allocate(1 << 63)), Some(Errno::FBIG));
    assert_eq!(file.read_at(&mut [0; 4], u64::MAX).unwrap(), 0);
    assert_eq!(fs.read("/a").unwrap(), b"a");
}

#[test]
fn a_write_of_nothing_does_not_make_the_file_grow_on_either_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (_fs, simulated) = disk_with(b"a");
    let real = RealFs
        .open(&dir.path().join("a"), OpenMode::CreateNew)
        .unwrap();
    write_all_at(&*real, b"a", 0).unwrap();
    for file in [simulated, real] {
        assert_eq!(file.write_at(b"", 100).unwrap(), 0);
        assert_eq!(file.size().unwrap(), 1);
    }
}

#[test]
fn read_dir_tells_sizes_and_directories_in_no_order() {
    let fs = SimFs::new(1);
    ["/a", "/b", "/c", "/d"]
        .iter()
        .for_each(|name| fs.write(name, b"1").unwrap());
    fs.create_dir_all(path("/e")).unwrap();
    let lists: Vec<_> = (0..20).map(|_| fs.read_dir(path("/")).unwrap()).collect();
    assert!(lists.iter().any(|list| list[0].name != lists[0][0].name));
    let find = |name: &str| lists[0].iter().find(|entry| entry.name == name).unwrap();
    assert_eq!((find("a").is_file, find("a").size), (true, 1));
    assert_eq!((find("e").is_file, find("e").size), (false, 0));
}

#[test]
fn a_directory_is_locked_once_and_a_crash_unlocks_it() {
    let fs = SimFs::new(1);
    fs.create_dir_all(path("/d")).unwrap();
    let lock = fs.lock_dir(path("/d")).unwrap();
    assert_eq!(fs.names("/d").unwrap(), ["lock"]);
    assert!(matches!(
        fs.lock_dir(path("/d")),
        Err(LockError::Held { .. })
    ));
    let image = fs.crash_image(Crash::KeepAll);
    image.lock_dir(path("/d")).unwrap();
    drop(lock);
    fs.lock_dir(path("/d")).unwrap();
}

/// One random call; what it returned, and the content of what it read.
fn random_call(
    fs: &dyn Fs,
    dir: &Path,
    files: &mut Vec<Arc<dyn File>>,
    random: &mut Random,
) -> Result<Vec<u8>, io::ErrorKind> {
    let names = ["a", "b", "c", "d"].map(|name| dir.join(name));
    let (name, other) = (random.pick(&names), random.pick(&names));
    let (offset, len) = (random.below(3 * PAGE) as u64, random.below(2 * PAGE));
    let mut buf = vec![random.next() as u8; len];
    let done = |result: io::Result<()>| result.map(|()| Vec::new());
    let choice = random.below(16);
    let nth = random.below(files.len().max(1));
    let result = match (choice, files.get(nth)) {
        (0 | 1, _) => fs.open(&name, OpenMode::CreateNew).map(|file| {
            files.push(file);
            Vec::new()
        }),
        (2, _) => fs.open(&name, OpenMode::ReadWrite).map(|file| {
            files.push(file);
            Vec::new()
        }),
        (3, _) if random.below(2) == 0 => done(fs.replace(&name, &other)),
        (3, _) => done(fs.rename(&name, &other)),
        (4, _) => done(fs.remove_file(&name)),
        (5, _) => done(fs.sync_dir(dir)),
        (6, Some(_)) => {
            files.swap_remove(nth);
            Ok(Vec::new())
        }
        (7, Some(file)) => done(file.set_size(offset)),
        (8, Some(file)) => done(file.allocate(offset)),
        (9, Some(file)) => done(file.sync()),
        (10, Some(file)) => file.size().map(|size| size.to_le_bytes().to_vec()),
        (11 | 12, Some(file)) => file.read_at(&mut buf, offset).map(|count| {
            buf.truncate(count);
            buf
        }),
        (_, Some(file)) => done(write_all_at(&**file, &buf, offset)),
        (_, None) => Ok(Vec::new()),
    };
    result.map_err(|error| error.kind())
}

#[test]
fn a_disk_without_faults_does_what_the_real_one_does() {
    for seed in 0..30 {
        println!("seed {seed}");
        let real_dir = tempfile::tempdir().unwrap();
        let sim = SimFs::new(seed);
        sim.create_dir_all(path("/dir")).unwrap();
        let (mut one, mut two) = (Random::new(seed), Random::new(seed));
        let (mut real_files, mut sim_files) = (Vec::new(), Vec::new());
        for call in 0..200 {
            let real = random_call(&RealFs, real_dir.path(), &mut real_files, &mut one);
            let simulated = random_call(&sim, path("/dir"), &mut sim_files, &mut two);
            assert_eq!(real, simulated, "call {call} of seed {seed}");
        }
        let list = |fs: &dyn Fs, dir: &Path| {
            let mut entries = fs.read_dir(dir).unwrap();
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            entries
        };
        assert_eq!(
            list(&RealFs, real_dir.path()),
            list(&sim, path("/dir")),
            "seed {seed}"
        );
    }
}

/// The invariant of `disk`: durable content with every un-synced unit is what processes see.
#[test]
fn a_crash_that_keeps_every_unit_leaves_what_was_visible() {
    for (seed, granularity) in (0..200).flat_map(|seed| {
        [Granularity::Write, Granularity::Page, Granularity::Sector].map(|unit| (seed, unit))
    }) {
        println!("seed {seed}, {granularity:?}");
        let fs = SimFs::new(seed);
        fs.create_dir_all(path("/dir")).unwrap();
        fs.sync_dir(path("/")).unwrap();
        let (mut random, mut files) = (Random::new(seed), Vec::new());
        while fs.unsynced_units(granularity) < 40 && fs.operations() < 300 {
            let _ = random_call(&fs, path("/dir"), &mut files, &mut random);
        }
        if fs.unsynced_units(granularity) > 64 {
            continue; // more than a mask can name
        }
        let image = fs.crash_image(Crash::Subset {
            kept: u64::MAX,
            granularity,
        });
        let names = fs.names("/dir").unwrap();
        assert_eq!(image.names("/dir").unwrap(), names, "seed {seed}");
        for name in names.iter().map(|name| path("/dir").join(name)) {
            assert_eq!(
                image.read(&name).unwrap(),
                fs.read(&name).unwrap(),
                "seed {seed}"
            );
        }
        assert_eq!(image.unsynced_units(granularity), 0);
    }
}
