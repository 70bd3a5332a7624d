//! Any bytes in a segment file, as they are and with every checksum made right: see
//! `bsd::storage::format::any_bytes`.

#![no_main]

use bsd::storage::format::any_bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::any_bytes(data));
