//! Calls of the disk fail, one by one: the error that comes out has the class of the cause.

use std::fmt::Display;

use crate::ErrorClass;
use crate::storage::SimFs;
use crate::storage::disk::sim::{Crash, Errno, Fault, OpKind};

/// The errors that a call of this kind may return, and their classes.
fn errors_of(kind: OpKind) -> &'static [(Errno, ErrorClass)] {
    const FULL: (Errno, ErrorClass) = (Errno::NOSPC, ErrorClass::Full);
    const DISK: (Errno, ErrorClass) = (Errno::IO, ErrorClass::Disk);
    const DESCRIPTORS: (Errno, ErrorClass) = (Errno::MFILE, ErrorClass::Descriptors);
    const READ_ONLY: (Errno, ErrorClass) = (Errno::ROFS, ErrorClass::Setup);
    const DENIED: (Errno, ErrorClass) = (Errno::ACCESS, ErrorClass::Setup);
    const MEMORY: (Errno, ErrorClass) = (Errno::NOMEM, ErrorClass::Memory);
    match kind {
        OpKind::Create => &[FULL, DISK, DESCRIPTORS, READ_ONLY],
        OpKind::Open => &[DISK, DESCRIPTORS, DENIED, MEMORY],
        OpKind::ReadDir | OpKind::Lock => &[DISK, DESCRIPTORS, DENIED],
        OpKind::CreateDir => &[FULL, DISK, READ_ONLY, DENIED],
        OpKind::Rename => &[FULL, DISK, READ_ONLY],
        OpKind::Remove => &[DISK, READ_ONLY],
        OpKind::SyncDir => &[DISK, DESCRIPTORS],
        OpKind::Write | OpKind::Sync | OpKind::Allocate => &[FULL, DISK],
        OpKind::Read | OpKind::Size | OpKind::SetSize => &[DISK],
    }
}

/// Let calls of the disk that `work` makes fail, one by one and with each error that such a call may
/// return: `calls_max` of each kind at most, evenly spread over all, the first and the last included.
/// Each run has a disk like `before`, on which `prepare` does what must not fail. Panics
/// unless `work` returns no error, or one of the class of the cause. `after` checks the disk of each
/// run, on which nothing fails any more. Returns how often `work` failed.
pub fn each_call<P, E: Display>(
    (before, calls_max): (&SimFs, u64),
    prepare: impl Fn(&SimFs) -> P,
    work: impl Fn(P) -> Result<(), (ErrorClass, E)>,
    after: impl Fn(&SimFs, &str),
) -> usize {
    let run = |fault: Option<Fault>| {
        let disk = before.crash_image(Crash::KeepAll);
        let prepared = prepare(&disk);
        disk.clear_trace();
        fault.into_iter().for_each(|fault| disk.inject(fault));
        let done = work(prepared);
        let trace = disk.trace();
        disk.clear_faults();
        (disk, done, trace)
    };
    let (_, done, calls) = run(None);
    done.unwrap_or_else(|(_, error)| panic!("without a fault: {error}"));
    let mut failures = 0;
    for kind in OpKind::ALL {
        let count = calls.iter().filter(|call| call.kind == kind).count() as u64;
        for (nth, (errno, class)) in sampled(count, calls_max).flat_map(|nth| {
            let errors = errors_of(kind).iter();
            errors.map(move |error| (nth, *error))
        }) {
            let what = format!("{kind:?} {nth} of {count}: {errno}");
            let (disk, done, _) = run(Some(Fault::fail(kind, errno).nth(nth)));
            if let Err((found, error)) = done {
                assert_eq!(found, class, "{what}: {error}");
                failures += 1;
            }
            after(&disk, &what);
        }
    }
    failures
}

/// At most `most` of the numbers from 1 to `count`.
fn sampled(count: u64, most: u64) -> impl Iterator<Item = u64> {
    let some = count.min(most);
    (0..some).map(move |at| 1 + at * (count - 1) / (some - 1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::comparable::Answers;
    use crate::check::{DIR, beginning, open};
    use crate::protocol::{Command, Request};

    #[test]
    fn the_calls_that_fail_are_spread_over_all() {
        let some = |count| sampled(count, 8).collect::<Vec<_>>();
        assert!(some(0).is_empty());
        assert_eq!(some(1), [1]);
        assert_eq!(some(3), [1, 2, 3]);
        assert_eq!(some(71), [1, 11, 21, 31, 41, 51, 61, 71]);
    }

    /// A disk with a log of some segments, whose server was killed.
    fn with_jobs(count: u64) -> SimFs {
        let (disk, now) = (SimFs::new(1), beginning());
        let mut engine = open(&disk, DIR, now).unwrap();
        let client = engine.connect();
        for _ in 0..count {
            let put = Command::put(0, 0, 60, vec![b'x'; 2000]);
            engine.run(client, Request::Command(put), now, &mut Answers::default());
            engine.commit(now).unwrap();
        }
        disk.crash_image(Crash::KeepAll)
    }

    #[test]
    fn g02_each_call_of_a_start_that_fails_is_called_what_it_is_and_costs_no_job() {
        for (disk, jobs) in [(SimFs::new(1), 0), (with_jobs(100), 100)] {
            let failures = each_call(
                (&disk, 8),
                SimFs::clone,
                |disk| {
                    let opened = open(&disk, DIR, beginning()).map(drop);
                    opened.map_err(|error| (error.class(), error))
                },
                |disk, what| {
                    let engine = open(disk, DIR, beginning());
                    let engine = engine.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(engine.queue().stats().jobs.total(), jobs, "{what}");
                },
            );
            assert!(failures > 20, "{failures} starts failed");
        }
    }
}
