//! How much a test does, and from which seed: variables of the environment say. Runs of many seeds.

use std::num::NonZero;
use std::ops::{AddAssign, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::{env, thread};

/// A number from the environment.
///
/// # Panics
/// The variable is set, and is not a number.
pub fn number(variable: &str) -> Option<u64> {
    let value = env::var_os(variable)?;
    let number = value.to_str().and_then(|value| value.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{variable} is not a number: {}", value.display())))
}

/// A number from the environment, or `default` without it.
///
/// # Panics
/// As [`number`].
pub fn volume(variable: &str, default: u64) -> u64 {
    number(variable).unwrap_or(default)
}

/// The seed in `variable`, or a new one; either way it is printed under that name, so that it
/// repeats a run.
///
/// # Panics
/// As [`number`].
pub fn seed_of_run(variable: &str) -> u64 {
    let seed = number(variable).unwrap_or_else(|| {
        let elapsed = std::time::UNIX_EPOCH.elapsed();
        elapsed.map_or(1, |time| time.as_nanos() as u64)
    });
    println!("{variable}={seed}");
    seed
}

/// Adds up what the runs of all seeds return; as many run at a time as there are processors. If one
/// panics no more begin, and the panic goes on when the others are over; `repeat` is the command
/// that repeats a seed.
///
/// # Panics
/// A run has panicked.
pub fn run_each<T: AddAssign + Default + Send>(
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
