//! Any jobs of a dump: see `bsd::check::any_jobs`.

#![no_main]

use bsd::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::any_jobs(data));
