//! A sound log with any damage done to it: see `bsd::check::any_directory`.

#![no_main]

use bsd::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::any_directory(data));
