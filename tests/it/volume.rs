//! How much a test does, and from which seed: variables of the environment say.

/// A number from the environment, or `default` without it.
pub(crate) fn volume(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number: {value}"))
    })
}

/// The seed in `variable`, or a new one; either way it is printed under that name, so that it
/// repeats a run.
pub(crate) fn seed_of_run(variable: &str) -> u64 {
    let fresh = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(1, |time| time.as_nanos() as u64);
    let seed = volume(variable, fresh);
    println!("{variable}={seed}");
    seed
}
