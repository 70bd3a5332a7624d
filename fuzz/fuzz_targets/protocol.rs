//! Any bytes from a client, in pieces of any size: see `bsd::protocol::any_bytes`.

#![no_main]

use bsd::protocol::any_bytes;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_bytes::any_bytes(data));
