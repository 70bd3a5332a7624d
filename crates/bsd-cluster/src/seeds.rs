//! Runs that a seed determines, as many at a time as there are processors: each on one thread.

use std::num::NonZero;
use std::ops::{AddAssign, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A number from the environment.
pub(super) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Adds up what the runs of all seeds return. If one panics no more begin, and the panic goes on
/// when the others are over; `repeat` is the command that repeats a seed.
pub(super) fn run_each<T: AddAssign + Default + Send>(
    seeds: Range<u64>,
    repeat: impl Fn(u64) -> String + Sync,
    run: impl Fn(u64) -> T + Sync,
) -> T {
    let rest = Mutex::new(seeds);
    let lock = || rest.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || lock().next();
    let share = || {
        let mut sum = T::default();
        while let Some(seed) = next() {
            sum += catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|panic| {
                *lock() = 0..0;
                eprintln!("to repeat: {}", repeat(seed));
                resume_unwind(panic)
            });
        }
        sum
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let shares: Vec<_> = (0..processors).map(|_| scope.spawn(share)).collect();
        let mut sum = T::default();
        for share in shares {
            sum += share.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        sum
    })
}

#[test]
fn every_seed_is_run_once_and_the_one_that_fails_is_named() {
    let repeat = |seed| format!("the run of seed {seed}");
    assert_eq!(run_each(3..1_000, repeat, |seed| seed), 499_497);
    let begun = Mutex::new(0);
    let named = Mutex::new(Vec::new());
    let failed = catch_unwind(AssertUnwindSafe(|| {
        let repeat = |seed| {
            named.lock().unwrap().push(seed);
            repeat(seed)
        };
        run_each(0..u64::MAX, repeat, |seed| {
            *begun.lock().unwrap() += 1;
            assert!(seed != 7, "it failed");
            seed
        })
    }));
    let panic = *failed.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!((panic, named.into_inner().unwrap()), ("it failed", vec![7]));
    assert!(begun.into_inner().unwrap() > 7);
}
