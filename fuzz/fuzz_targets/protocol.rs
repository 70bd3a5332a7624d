//! Any bytes from a client, in pieces of any size: see `bsd::protocol::check`.

#![no_main]

use bsd::protocol::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::any_bytes(data));
