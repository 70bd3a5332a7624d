//! Any commands, with crashes and failing calls at any operation: see `bsd::check::any_life`.

#![no_main]

use bsd::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::any_life(data));
