//! The corpora of the fuzz targets, and short random runs of the targets' checks, for the tests of the
//! packages that the targets are about.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_FUZZ_RUNS` | random inputs of each check | about a second of each |
//! | `BSD_FUZZ_FIRST` | the number of the first of them | 0 |
//!
//! An input is random bytes, or a file of the corpus after a few random edits.

#![allow(clippy::unwrap_used, reason = "only tests call it")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;

use super::volume::volume;
use crate::random::Random;

/// A fuzz target: its check, the length of useful random inputs, and their number in an ordinary
/// run.
#[derive(Debug)]
pub struct Target {
    /// Its name, which is that of its corpus.
    pub name: &'static str,
    /// Check of an invariant for any bytes; panics if it is broken.
    pub check: fn(&[u8]),
    /// Bytes of a useful random input, at most.
    pub size_max: usize,
    /// Random inputs of an ordinary run.
    pub runs: u64,
}

impl Target {
    /// The files of its corpus, in the order of their names.
    fn corpus(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let dir = format!("{}/fuzz/corpus/{}", env!("CARGO_MANIFEST_DIR"), self.name);
        let entries = std::fs::read_dir(dir).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        #[allow(clippy::disallowed_methods)] // a test's own data, no file of the server's
        let read = |path: PathBuf| (path.clone(), std::fs::read(path).unwrap());
        paths.into_iter().map(read).collect()
    }

    /// Check every file of its corpus.
    ///
    /// # Panics
    /// One does not hold, or the corpus has too few files.
    pub fn check_corpus(&self) {
        let corpus = self.corpus();
        assert!(corpus.len() >= 5, "only {} seeds", corpus.len());
        for (path, bytes) in corpus {
            println!("seed {}", path.display());
            (self.check)(&bytes);
        }
    }

    /// Check random inputs; a failure says how to repeat it.
    ///
    /// # Panics
    /// One does not hold.
    pub fn check_random(&self) {
        let first = volume("BSD_FUZZ_FIRST", 0);
        let runs = volume("BSD_FUZZ_RUNS", self.runs);
        let corpus = self.corpus();
        for seed in first..first + runs {
            let input = random_input(seed, &corpus, self.size_max);
            if runs == 1 {
                // It may not come back to say it.
                eprintln!("input: b\"{}\"", input.escape_ascii());
            }
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.check)(&input))) else {
                continue;
            };
            eprintln!(
                "input: b\"{}\"\nto repeat: BSD_FUZZ_FIRST={seed} BSD_FUZZ_RUNS=1 cargo test --workspace --lib \
                 fuzz_target_{}",
                input.escape_ascii(),
                self.name
            );
            resume_unwind(panic);
        }
    }
}

/// The input of a number.
fn random_input(seed: u64, corpus: &[(PathBuf, Vec<u8>)], size_max: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    if random.below(2) == 0 {
        let size = 1 + random.below(size_max);
        return random.bytes(size);
    }
    let any_seed = |random: &mut Random| corpus[random.below(corpus.len())].1.clone();
    let mut input = any_seed(&mut random);
    for _ in 0..1 + random.below(6) {
        let other = any_seed(&mut random);
        edit(&mut input, &other, &mut random);
    }
    input
}

/// Change, insert, remove, or copy from another seed.
fn edit(input: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let size = 1 + random.below(8);
    let end = input.len().min(at + size);
    match random.below(4) {
        0 => {
            let new = random.bytes(end - at);
            input[at..end].copy_from_slice(&new);
        }
        1 => drop(input.splice(at..at, random.bytes(size))),
        2 => drop(input.drain(at..end)),
        _ => {
            let from = random.below(other.len() + 1);
            let to = other.len().min(from + random.below(64));
            input.splice(at..end, other[from..to].iter().copied());
        }
    }
}
