//! Files that are cut, flipped, missing or torn.
//!
//! beanstalkd's records have no checksums. So what can be demanded is: never a panic; never a job
//! with a body that is not whole; what a damage did not touch is as it was, or a damage is
//! reported.

use std::collections::BTreeMap;

use bsd::random::Random;
use bsd::storage::convert::beanstalkd::export;

use super::binlog::{Job, Version, job};
use super::*;
use crate::harness::wal;
use bsd::check::volume::{seed_of_run, volume};

const V7: Version = Version::V7;
const SECTOR: usize = 512;

/// The place in the file of each of these records, and its job.
fn layout(records: &[(u64, Vec<u8>)]) -> Vec<(std::ops::Range<usize>, u64)> {
    let mut at = 4;
    records
        .iter()
        .map(|(id, bytes)| {
            at += bytes.len();
            (at - bytes.len()..at, *id)
        })
        .collect()
}

#[test]
fn d1_a_job_of_exactly_the_limit_is_kept_and_all_after_it() {
    for size in [65_533, 65_534, 65_535] {
        let body = vec![b'x'; size];
        let records = [V7.put(&job(1, &body)), V7.put(&job(2, b"after"))];
        let jobs = import_sound(&[V7.file(&records)]);
        assert_eq!(jobs.ids(), [1, 2], "{size}");
        assert_eq!(jobs.job(1).body, body);
    }
}

/// A file in which the record `last` lies so that its byte number `shift` begins a sector.
fn aligned(version: Version, before: &Job, last: &[u8], shift: usize) -> (Vec<u8>, usize) {
    let filler = |size: usize| version.put(&job(99, &vec![b'f'; size]));
    let head = 4 + version.put(before).len();
    let size = (0..SECTOR)
        .find(|size| (head + filler(*size).len() + shift).is_multiple_of(SECTOR))
        .unwrap();
    let at = head + filler(size).len();
    let file = version.file(&[version.put(before), filler(size), last.to_vec()]);
    (file, at)
}

#[test]
fn d11_a_torn_update_does_not_delete() {
    for version in [Version::V5, V7, Version::V7Dense] {
        let old = job(1, b"precious");
        let updates = [
            old.buried(),
            Job {
                counters: [1, 0, 1, 0, 0],
                delay: 9,
                deadline_ns: WALL_NS + SECOND_NS,
                ..old.in_state(super::binlog::DELAYED)
            },
        ];
        for update in updates.map(|job| version.update(&job)) {
            for shift in 1..update.len() {
                let (mut file, at) = aligned(version, &old, &update, shift);
                file[at + shift..].fill(0);
                let import = import_from(&disk(&[file]));
                let what = format!("{version:?} torn at {shift}: {:?}", import.notes);
                assert_eq!(import.jobs.ids(), [1, 99], "{what}");
                assert_eq!(import.damages, [""; 0], "{what}");
                let state = if version == Version::V7Dense { 68 } else { 76 };
                let is_whole = shift > version.name_width() + state;
                let found = import.jobs.job(1).state.word();
                assert!(is_whole || found == "ready", "{what}: {found}");
                assert!(is_whole || !import.notes.is_empty() || shift <= version.name_width());
            }
        }
    }
}

#[test]
fn a_delete_that_reached_the_disk_deletes_wherever_it_lies() {
    for shift in 1..84 {
        let old = job(1, b"done");
        let deleted = Job {
            counters: [1, 0, 0, 0, 0],
            ..old.clone()
        };
        let (file, _) = aligned(V7, &old, &V7.delete(&deleted), shift);
        let import = import_from(&disk(&[file]));
        // If the counters lie in a sector that may not have been written, their values are unknown.
        let is_doubtful = (4 + 57..4 + 76).contains(&shift);
        match import.jobs.ids()[..] {
            [99] => assert!(import.notes.is_empty(), "{shift}"),
            [1, 99] => assert!(is_doubtful && import.notes.len() == 1, "{shift}"),
            _ => panic!("{shift}: {:?}", import.jobs.ids()),
        }
    }
}

#[test]
fn d12_a_torn_put_never_becomes_a_job() {
    let body = vec![b'x'; 1500];
    let (whole, torn) = (V7.put(&job(1, b"whole")), V7.put(&job(2, &body)));
    let file = V7.file(&[whole.clone(), torn.clone()]);
    let start = 4 + whole.len();
    for at in start..start + torn.len() - 1 {
        let mut zeroed = file.clone();
        zeroed[at..].fill(0);
        let cut = file[..at].to_vec();
        for bytes in [zeroed, cut] {
            let import = import_from(&disk(&[bytes]));
            assert_eq!(import.jobs.ids(), [1], "torn at {}", at - start);
        }
    }
}

#[test]
fn a_torn_tail_is_told_and_is_not_damage_where_a_crash_can_leave_it() {
    let body = vec![b'x'; 1500];
    let (whole, torn) = (V7.put(&job(1, b"whole")), V7.put(&job(2, &body)));
    let file = V7.file(&[whole.clone(), torn]);
    let start = 4 + whole.len();
    let by_call = [4, 4 + 7, 4 + 7 + 80].map(|size| start + size);
    let by_sector = [512, 1024, 1536];
    for at in by_call.into_iter().chain(by_sector) {
        let mut bytes = file.clone();
        bytes[at..].fill(0);
        let import = import_from(&disk(&[bytes]));
        assert_eq!(import.damages, [""; 0], "{at}");
        assert!(
            import.notes[0].contains("binlog.1 at byte"),
            "{:?}",
            import.notes
        );
    }
}

#[test]
fn a_record_that_stops_short_before_others_is_damage() {
    let torn = V7.put(&job(2, b"x"));
    let mut first = V7.cut_file(&[V7.put(&job(1, b"whole"))]);
    first.extend(&torn[..torn.len() - 2]);
    let second = V7.file(&[V7.put(&job(3, b"later"))]);
    let import = import_from(&disk(&[first, second]));
    assert_eq!(import.jobs.ids(), [1, 3]);
    assert!(
        import.damages[0].contains("was lost later"),
        "{:?}",
        import.damages
    );
}

#[test]
fn d13_a_torn_copy_does_not_destroy_the_original() {
    let old = job(1, &[b'x'; 600]);
    let first = V7.cut_file(&[V7.put(&old), V7.put(&job(2, b"two"))]);
    let copy = V7.put(&old.buried());
    let second = V7.file(std::slice::from_ref(&copy));
    let sound = import_sound(std::slice::from_ref(&first));
    for at in 4..4 + copy.len() - 1 {
        let mut zeroed = second.clone();
        zeroed[at..].fill(0);
        for torn in [zeroed, second[..at].to_vec()] {
            let import = import_from(&disk(&[first.clone(), torn]));
            assert!(import.jobs.jobs == sound.jobs, "torn at {at}");
        }
    }
}

/// Some of everything, and what each record is about.
fn history(version: Version) -> (Vec<(u64, Vec<u8>)>, Vec<u8>) {
    let old = [1, 2, 3, 4].map(|id| job(id, format!("body of {id}").as_bytes()));
    let late = Job {
        delay: 100,
        deadline_ns: WALL_NS + 50 * SECOND_NS,
        ..old[3].in_state(super::binlog::DELAYED)
    };
    let kicked = Job {
        counters: [1, 0, 0, 1, 1],
        ..old[0].clone()
    };
    let records = vec![
        (1, version.put(&old[0])),
        (2, version.put(&old[1])),
        (1, version.update(&old[0].buried())),
        (3, version.put(&old[2])),
        (4, version.put(&late)),
        (2, version.delete(&old[1])),
        (1, version.update(&kicked)),
        (3, version.update(&old[2].buried())),
    ];
    let bytes: Vec<Vec<u8>> = records.iter().map(|(_, bytes)| bytes.clone()).collect();
    let file = version.file(&bytes);
    (records, file)
}

/// The fault of an import after damage to the records of the jobs `hit`; `None` if it is correct.
fn fault(import: &Import, sound: &Jobs, hit: Option<u64>) -> Option<String> {
    let others = |jobs: &Jobs| -> BTreeMap<_, _> {
        let all = jobs.jobs.clone().into_iter();
        // The damaged record itself may be about anything now.
        all.filter(|(id, _)| Some(id.0) != hit && (1..=4).contains(&id.0))
            .collect()
    };
    let (expected, found) = (others(sound), others(&import.jobs));
    if import.damages.is_empty() && found != expected {
        return Some(format!("unnoticed: {found:#?}\ninstead of {expected:#?}"));
    }
    // The reported damage may have put one of the jobs in the place of another.
    let bodies = [1, 2, 3, 4].map(|id| format!("body of {id}").into_bytes());
    let strange = found.values().find(|job| !bodies.contains(&job.body));
    if let Some(job) = strange {
        return Some(format!("a body that no one put: {job:?}"));
    }
    None
}

#[test]
fn g48_the_files_of_a_32_bit_x86_are_read() {
    let (_, dense) = history(Version::V7Dense);
    let (_, padded) = history(V7);
    assert_eq!(import_sound(&[dense]), import_sound(&[padded]));
    let empty = Version::V7Dense.file(&[]);
    assert_eq!(import_sound(&[empty]).ids(), [0; 0]);
}

#[test]
fn d14_a_flipped_bit_hits_the_job_of_its_record_alone_or_is_reported() {
    for version in [Version::V5, V7] {
        let (records, file) = history(version);
        let sound = import_sound(std::slice::from_ref(&file));
        let mut reported = 0;
        for (range, id) in layout(&records) {
            for bit in range.start * 8..range.end * 8 {
                let mut bytes = file.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let import = import_from(&disk(&[bytes]));
                let fault = fault(&import, &sound, Some(id));
                assert_eq!(fault, None, "{version:?}, bit {bit}");
                reported += u64::from(!import.damages.is_empty());
            }
        }
        assert!(reported > 1500, "only {reported} of the flips were noticed");
    }
}

#[test]
fn d14_zeros_in_the_middle_do_not_end_the_file_silently() {
    let (records, file) = history(V7);
    let places = layout(&records);
    for (range, id) in &places[..places.len() - 1] {
        let mut bytes = file.clone();
        bytes[range.clone()].fill(0);
        let import = import_from(&disk(&[bytes]));
        assert!(
            !import.damages.is_empty(),
            "the record of job {id} at {range:?}"
        );
    }
}

/// beanstalkd makes a file in its full size first, so a crash does not leave one that ends inside a
/// record.
#[test]
fn g48_a_file_that_ends_inside_a_record_was_cut_and_that_is_damage() {
    let records: Vec<Vec<u8>> = (1..=300).map(|id| V7.put(&job(id, b"body"))).collect();
    let file = V7.file(&records);
    let size = 4 + records[..51].concat().len();
    for cut in [1, 4, 30, 90, records[51].len() - 1] {
        let import = import_from(&disk(&[file[..size + cut].to_vec()]));
        assert_eq!(import.jobs.ids().len(), 51, "{cut}");
        let expected = format!("binlog.1 at byte {size} ({cut} bytes)");
        assert_eq!(import.damages.len(), 1, "{cut}: {:?}", import.damages);
        assert!(
            import.damages[0].contains(&expected),
            "{:?}",
            import.damages
        );
        assert!(
            import.damages[0].contains("was lost later"),
            "{:?}",
            import.damages
        );
        assert_eq!(import.notes, [""; 0]);
    }
    let import = import_from(&disk(&[file[..size].to_vec()]));
    assert!(
        import.notes[0].contains("compare its size"),
        "{:?}",
        import.notes
    );
}

#[test]
fn a_file_that_is_cut_at_any_byte_is_as_it_was_up_to_there() {
    for version in [Version::V5, V7, Version::V7Dense] {
        let (records, file) = history(version);
        for size in 4..file.len().min(4 + 1200) {
            let whole: Vec<Vec<u8>> = layout(&records)
                .iter()
                .zip(&records)
                .filter(|((range, _), _)| range.end <= size)
                .map(|(_, (_, bytes))| bytes.clone())
                .collect();
            let expected = import_sound(&[version.cut_file(&whole)]);
            let import = import_from(&disk(&[file[..size].to_vec()]));
            assert_eq!(import.jobs.jobs, expected.jobs, "{version:?} cut at {size}");
        }
    }
}

#[test]
fn d15_a_record_with_lengths_that_lead_nowhere_is_reported() {
    let sizes = [0_u32, 1, 3, 1 << 20, i32::MAX as u32, u32::MAX];
    for size in sizes {
        let (one, two) = (V7.put(&job(1, b"one")), V7.put(&job(2, b"two")));
        let mut again = V7.put(&job(1, b"one"));
        let at = 4 + 7 + 32;
        again[at..at + 4].copy_from_slice(&size.to_le_bytes());
        let import = import_from(&disk(&[V7.file(&[one, again, two])]));
        assert!(!import.damages.is_empty(), "body of {size}");
        assert_eq!(import.jobs.job(1).body, b"one", "body of {size}");
    }
    for name in [201_u32, 300, 1 << 31, u32::MAX] {
        let mut bad = V7.put(&job(2, b"two"));
        bad[..4].copy_from_slice(&name.to_le_bytes());
        let import = import_from(&disk(&[V7.file(&[V7.put(&job(1, b"one")), bad])]));
        assert_eq!(import.jobs.ids(), [1], "name of {name}");
        assert_eq!(import.damages.len(), 1, "name of {name}");
    }
}

#[test]
fn random_bytes_are_reported_and_never_more() {
    let mut random = Random::new(seed_of_run("BSD_MIGRATION_SEED"));
    let (_, file) = history(V7);
    for round in 0..volume("BSD_MIGRATION_GARBAGE", 300) {
        let mut bytes = if random.one_in(2) {
            file.clone()
        } else {
            vec![0; 4 + random.below(3000) as usize]
        };
        bytes[0] = if random.one_in(2) { 5 } else { 7 };
        let used = bytes.len().min(1200);
        for _ in 0..1 + random.below(40) {
            let at = random.below(used as u64) as usize;
            if at >= 4 {
                bytes[at] = random.next() as u8;
            }
        }
        let import = import_from(&disk(&[bytes]));
        assert!(import.jobs.jobs.len() <= 8, "round {round}");
    }
}

#[test]
fn behind_a_damaged_record_the_reading_goes_on_where_the_next_one_begins() {
    let records = [1, 2, 3].map(|id| V7.put(&job(id, b"body")));
    let mut bytes = V7.file(&records);
    let end = 4 + records[0].len() + records[1].len();
    bytes[end - 1] = b'?';
    let import = import_from(&disk(&[bytes]));
    assert_eq!(import.jobs.ids(), [1, 3]);
    let expected = format!(
        "binlog.1 at byte {} ({} bytes)",
        4 + records[0].len(),
        records[1].len()
    );
    assert!(
        import.damages[0].starts_with(&expected),
        "{:?}",
        import.damages
    );
}

#[test]
fn behind_what_cannot_be_understood_the_next_file_is_read() {
    let mut first = V7.cut_file(&[1, 2, 3].map(|id| V7.put(&job(id, b"body"))));
    let second = 4 + V7.put(&job(1, b"body")).len();
    first[second..second + 4].fill(0xff);
    let size = first.len() - second;
    let next = V7.file(&[V7.put(&job(4, b"next"))]);
    let import = import_from(&disk(&[first, next]));
    assert_eq!(import.jobs.ids(), [1, 4]);
    let expected = format!("binlog.1 at byte {second} ({size} bytes)");
    assert!(
        import.damages[0].starts_with(&expected),
        "{:?}",
        import.damages
    );
}

#[test]
fn an_id_that_may_have_been_lost_is_not_given_out_again() {
    let mut file = V7.file(&[1, 2, 3].map(|id| V7.put(&job(id, b"body"))));
    let second = 4 + V7.put(&job(1, b"body")).len();
    file[second..second + 4].fill(0xff);
    let import = import_from(&disk(&[file]));
    assert_eq!(import.jobs.ids(), [1]);
    assert!(import.jobs.next_id >= JobId(4), "{}", import.jobs.next_id);
}

#[test]
fn d20_files_that_are_missing_are_named_and_a_huge_number_does_not_stall() {
    let file = |id| V7.cut_file(&[V7.put(&job(id, b"x"))]);
    let disk = disk(&[file(1), file(2), file(3)]);
    disk.remove(format!("{OLD}/binlog.2")).unwrap();
    disk.write(format!("{OLD}/binlog.4000000000"), &file(9))
        .unwrap();
    let import = import_from(&disk);
    assert_eq!(import.jobs.ids(), [1, 3, 9]);
    assert!(
        import.damages[0].contains("binlog.2 is missing"),
        "{:?}",
        import.damages
    );
    let gap = "binlog.4 to binlog.3999999999 are missing";
    assert!(import.damages[1].contains(gap), "{:?}", import.damages);
}

#[test]
fn names_that_beanstalkd_never_writes_are_told_and_not_read() {
    let disk = disk(&[V7.file(&[V7.put(&job(1, b"x"))])]);
    for name in ["binlog.007", "binlog.x", "binlog.", "binlog.99999999999"] {
        disk.write(format!("{OLD}/{name}"), &V7.file(&[V7.put(&job(2, b"y"))]))
            .unwrap();
    }
    let import = import_from(&disk);
    assert_eq!((import.jobs.ids(), import.notes.len()), (vec![1], 4));
}

#[test]
fn a_job_whose_put_is_lost_is_named() {
    let old = job(5, b"lost");
    let file = V7.file(&[V7.put(&job(1, b"x")), V7.update(&old.buried())]);
    let import = import_from(&disk(&[file]));
    assert!(import.damages[0].contains("job 5"), "{:?}", import.damages);
}

#[test]
fn what_the_disk_does_not_give_is_reported_and_the_rest_imported() {
    let big = job(2, &[b'x'; 20_000]);
    let first = V7.cut_file(&[
        V7.put(&job(1, b"one")),
        V7.put(&big),
        V7.put(&job(3, b"three")),
    ]);
    let second = V7.file(&[V7.put(&job(4, b"four"))]);
    let disk = disk(&[first, second]);
    disk.fail_reads(format!("{OLD}/binlog.1"), 9000..9001)
        .unwrap();
    let old = read(&disk).unwrap();
    let imported = write(&old, &disk).unwrap();
    let lost: Vec<u64> = imported.unreadable.iter().map(|(id, _)| id.0).collect();
    assert_eq!(lost, [2]);
    assert_eq!(
        jobs(Arc::new(disk.clone()), Path::new(NEW)).ids(),
        [1, 3, 4]
    );
    drop(old);
    disk.heal_reads(format!("{OLD}/binlog.1")).unwrap();
    disk.fail_reads(format!("{OLD}/binlog.1"), 50..51).unwrap();
    let old = read(&disk).unwrap();
    assert_eq!(old.job_count(), 1);
    assert!(
        old.damages[0]
            .to_string()
            .contains("the disk does not give")
    );
}

#[test]
fn a_body_that_changes_between_the_look_and_the_import_is_left_out_and_named() {
    let jobs = [3, 4].map(|id| job(id, format!("body of {id}").as_bytes()));
    let disk = disk(&[Version::V7.file(&jobs.each_ref().map(|job| Version::V7.put(job)))]);
    let old = read(&disk).unwrap();
    let path = format!("{OLD}/binlog.1");
    let mut bytes = disk.read(&path).unwrap();
    let end = b"body of 3\r\n";
    let at = bytes
        .windows(end.len())
        .position(|part| part == end)
        .unwrap();
    bytes[at + end.len() - 1] = b'!';
    disk.write(&path, &bytes).unwrap();
    let imported = write(&old, &disk).unwrap();
    let [(id, why)] = &imported.unreadable[..] else {
        panic!("{:?}", imported.unreadable);
    };
    assert_eq!(*id, JobId(3));
    assert!(why.contains("binlog.1 at byte") && why.contains("no longer what it was"));
    let new = jobs_of(&disk);
    assert_eq!(new.ids(), [4]);
}

fn jobs_of(disk: &SimFs) -> Jobs {
    super::jobs(Arc::new(disk.clone()), Path::new(NEW))
}

#[test]
fn an_export_leaves_a_directory_alone_that_holds_anything_of_someone_else() {
    let disk = disk(&[Version::V7.file(&[Version::V7.put(&job(3, b"body"))])]);
    write(&read(&disk).unwrap(), &disk).unwrap();
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let old = Inspection::read(fs.clone(), Path::new(NEW), &mut |_, _| ()).unwrap();
    let to = |dir: &str| {
        let result = export::write(&old, &fs, Path::new(dir), WALL_NS, &mut |_, _| ());
        result.map(|exported| exported.jobs)
    };
    disk.write("/out.incomplete/mine", b"mine").unwrap();
    let refused = to("/out").unwrap_err().to_string();
    assert!(refused.contains("\"mine\"; move it elsewhere"), "{refused}");
    disk.write("/there/mine", b"mine").unwrap();
    assert!(
        to("/there")
            .unwrap_err()
            .to_string()
            .contains("is not empty")
    );
    assert_eq!(disk.read("/out.incomplete/mine").unwrap(), b"mine");
    assert!(disk.names("/out").is_err());
    assert_eq!(to("/elsewhere").unwrap(), 1);
}

#[test]
fn a_job_that_cannot_be_read_again_is_left_out_of_an_export_and_named() {
    let jobs = [3, 4].map(|id| job(id, format!("body of {id}").as_bytes()));
    let disk = disk(&[Version::V7.file(&jobs.each_ref().map(|job| Version::V7.put(job)))]);
    write(&read(&disk).unwrap(), &disk).unwrap();
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let old = Inspection::read(fs.clone(), Path::new(NEW), &mut |_, _| ()).unwrap();
    let segments = disk.names(NEW).unwrap();
    let path = segments
        .iter()
        .map(|name| format!("{NEW}/{name}"))
        .find(|path| find(&disk.read(path).unwrap(), b"body of 3").is_some())
        .unwrap();
    let at = find(&disk.read(&path).unwrap(), b"body of 3").unwrap();
    disk.flip_bit(&path, at as u64 * 8).unwrap();
    let exported = export::write(&old, &fs, Path::new("/out"), WALL_NS, &mut |_, _| ()).unwrap();
    assert_eq!((exported.jobs, exported.unreadable[0].0), (1, JobId(3)));
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|other| other == part)
}

#[test]
fn while_files_are_read_progress_only_grows_up_to_the_bytes_of_all() {
    let file = |id| V7.file(&[V7.put(&job(id, &[b'x'; 9000]))]);
    let disk = disk(&[file(1), file(2), file(3)]);
    let mut told = Vec::new();
    let (fs, dir) = (Arc::new(disk.clone()), Path::new(OLD));
    Binlogs::read(fs, dir, &mut |done, total| told.push((done, total))).unwrap();
    let all: u64 = originals(&disk, OLD)
        .values()
        .map(|file| file.len() as u64)
        .sum();
    assert!(
        told.iter()
            .all(|(done, total)| done <= total && *total == all),
        "{told:?}"
    );
    assert!(told.is_sorted() && told.len() >= 3, "{told:?}");
    let last = told.last().map(|(done, _)| *done).unwrap_or(0);
    assert!(last > all * 2 / 3, "the last file begins there: {told:?}");
}

/// beanstalkd reserves a file before it writes the version: one of zeros only holds nothing.
#[test]
fn a_file_without_a_version_holds_nothing_only_if_all_of_it_is_zeros() {
    let sound = V7.file(&[V7.put(&job(1, b"body"))]);
    let size = 2_500_000;
    assert_eq!(import_sound(&[vec![0; size], sound.clone()]).ids(), [1]);
    for at in [4, 1_000_000, 2_000_000, size - 1] {
        let mut file = vec![0; size];
        file[at] = 1;
        let disk = disk(&[file, sound.clone()]);
        let refused = read(&disk).unwrap_err().to_string();
        assert!(refused.contains("format version 0"), "{at}: {refused}");
    }
}

#[test]
fn t5_the_command_imports_the_rest_of_a_damaged_log_and_its_exit_code_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new, json, sound] = ["old", "new", "json", "sound"].map(|name| dir.path().join(name));
    std::fs::create_dir(&old).unwrap();
    let jobs: Vec<Vec<u8>> = (1..=5).map(|id| V7.put(&job(id, b"body"))).collect();
    let file = V7.file(&jobs);
    std::fs::write(old.join("binlog.1"), &file).unwrap();
    let (code, said) = wal(&["import", text(&old), "--output", text(&sound)]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("damage"), "{said}");

    // A length of the third record that leads nowhere.
    let mut bytes = file.clone();
    let at = 4 + jobs[0].len() + jobs[1].len();
    bytes[at..at + 4].fill(0xff);
    std::fs::write(old.join("binlog.1"), &bytes).unwrap();
    let (code, said) = wal(&["import", text(&old), "--output", text(&new)]);
    assert_eq!(code, Some(1), "{said}");
    let told = format!("damage: binlog.1 at byte {at} ");
    assert!(
        said.contains(&told) && said.contains(": 2 jobs from 1 file,"),
        "{said}"
    );
    let (code, said) = wal(&["import", text(&old), "--output", text(&json), "--json"]);
    assert_eq!(code, Some(1), "{said}");
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["damages"][0]["offset"], at, "{said}");
    let counts = [&report["jobs"], &report["files"], &report["intact"]];
    assert_eq!(serde_json::json!(counts), serde_json::json!([2, 1, false]));
    let (code, said) = wal(&["dump", text(&new)]);
    assert!(code == Some(0) && said.lines().count() == 2, "{said}");
}
