//! Any bytes in a segment file, as they are and with every checksum made right: see
//! `bsd::storage::format::check`.

#![no_main]

use bsd::storage::format::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::any_bytes(data));
