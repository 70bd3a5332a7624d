//! Any bytes from a server, in pieces of any size: see `bsd_client::any_replies`.

#![no_main]

use bsd_client::any_replies;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_replies(data));
