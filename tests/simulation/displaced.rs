//! Blocks of one file that lie in another: nothing that is in the bytes is lost, no deleted job comes
//! back, and a start, `verify` and `repair` say the same.

use std::path::Path;

use bsd::engine::Engine;
use bsd::storage::disk::sim::Crash;
use bsd::storage::inspect::{Inspection, JobRecord, repair};
use bsd::storage::{OpenError, SyncPolicy};
use bsd::types::JobId;

use super::driver::options;
use super::reading::{Fault, Sound, begin, busy_life, door, ended, go_idle, inspect, is_kept, run};

/// A log of several segments, some of which compaction has written.
fn sound(is_marked: bool) -> Sound {
    let mut driver = begin(SyncPolicy::Always);
    run(&mut driver, &busy_life());
    if is_marked {
        go_idle(&mut driver);
    }
    let fs = ended(&mut driver, false);
    let sound = Sound::of(&fs, driver.now, is_marked);
    let compacted = sound.files.keys().filter(|name| !name.ends_with(".00000"));
    assert!(
        compacted.count() > 1 && sound.files.len() > 4,
        "{:?}",
        sound.files.keys()
    );
    sound
}

fn pairs(sound: &Sound) -> Vec<(String, String)> {
    let names: Vec<&String> = sound.files.keys().collect();
    let mut pairs = Vec::new();
    for (nth, one) in names.iter().enumerate() {
        pairs.extend(
            names[nth + 1..]
                .iter()
                .map(|other| ((*one).clone(), (*other).clone())),
        );
    }
    pairs
}

/// All of it lies in both files, and it is different there.
fn is_felt(sound: &Sound, fault: &Fault) -> bool {
    let (Fault::Exchanged(one, other, range) | Fault::Overwritten(one, other, range)) = fault
    else {
        return true;
    };
    let range = range.start as usize..range.end as usize;
    let [one, other] = [one, other].map(|name| sound.files[name].get(range.clone()));
    one.is_some() && other.is_some() && one != other
}

/// Assert that `repair` writes exactly the sound content.
fn is_repaired(sound: &Sound, fault: &Fault) {
    let (whole, fs) = (
        Fault::Zeros(first(sound), 0..0).happen(sound),
        fault.happen(sound),
    );
    let refused = Engine::open(
        &options(&fs.crash_image(Crash::KeepAll), SyncPolicy::Always),
        sound.now,
    );
    let Err(OpenError::Damaged { .. }) = refused else {
        panic!("{fault:?}: {:?}", refused.map(|_| ()));
    };
    let found = inspect(&fs);
    assert!(!found.is_intact(), "{fault:?}");
    let new = Path::new("/new");
    let written = repair::write(&found, door(&fs), new, sound.now, &mut |_, _| ());
    let written = written.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    assert!(written.unreadable.is_empty(), "{fault:?}");
    let repaired = Inspection::read(door(&fs), new, &mut |_, _| ()).expect("a log");
    let (expected, found) = (jobs(&inspect(&whole)), jobs(&repaired));
    let ids = |jobs: &[JobRecord]| -> Vec<JobId> { jobs.iter().map(|job| job.id).collect() };
    assert_eq!(ids(&found), ids(&expected), "{fault:?}");
    assert_eq!(found, expected, "{fault:?}");
}

fn first(sound: &Sound) -> String {
    sound.files.keys().next().expect("a file").clone()
}

fn jobs(log: &Inspection) -> Vec<JobRecord> {
    let read = |id| log.read_job(id).expect("a job").expect("a job");
    log.jobs().map(|job| read(job.id)).collect()
}

#[test]
fn g35_leading_blocks_that_two_segments_have_exchanged_cost_no_job_and_bring_none_back() {
    let sound = sound(true);
    for (one, other) in pairs(&sound) {
        for size in [
            64,
            512,
            1024,
            4096,
            8192,
            16384,
            20480,
            32768,
            65536,
            1 << 20,
        ] {
            let fault = Fault::Exchanged(one.clone(), other.clone(), 0..size);
            is_kept(&sound, &fault);
            is_repaired(&sound, &fault);
        }
    }
}

#[test]
fn g35_it_is_the_same_for_blocks_at_any_place() {
    let sound = sound(true);
    let mut felt = 0;
    for (one, other) in pairs(&sound) {
        for start in (4096..65536).step_by(4096) {
            // At least one record lies in such a block as a whole.
            for size in [8192, 16384] {
                let fault = Fault::Exchanged(one.clone(), other.clone(), start..start + size);
                if is_felt(&sound, &fault) {
                    is_kept(&sound, &fault);
                    felt += 1;
                }
            }
        }
    }
    assert!(felt > 90, "{felt}");
}

/// The content of the overwritten block is gone; the other file is whole.
#[test]
fn g35_a_block_that_was_written_over_another_file_costs_what_was_there_and_no_more() {
    let sound = sound(true);
    for (one, other) in pairs(&sound) {
        for (one, other) in [(&one, &other), (&other, &one)] {
            for range in [
                0..512,
                0..4096,
                0..32768,
                0..65536,
                4096..8192,
                12288..20480,
            ] {
                let fault = Fault::Overwritten(one.clone(), other.clone(), range);
                if is_felt(&sound, &fault) {
                    is_kept(&sound, &fault);
                }
            }
        }
    }
}

/// Nothing marks the end of the log: what lies in the other file says that it is no torn tail.
#[test]
fn g35_the_end_of_a_log_that_was_not_marked_is_not_taken_for_a_torn_tail() {
    let sound = sound(false);
    let newest = sound.files.keys().next_back().expect("a file").clone();
    for (one, other) in pairs(&sound) {
        if other != newest {
            continue;
        }
        for start in (0..65536).step_by(4096) {
            let fault = Fault::Exchanged(one.clone(), other.clone(), start..start + 4096);
            if is_felt(&sound, &fault) {
                is_kept(&sound, &fault);
            }
        }
    }
}
