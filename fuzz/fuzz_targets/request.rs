//! Any request over HTTP, as far as it is read without an engine: see `bsd_http::any_request`.

#![no_main]

use bsd_http::any_request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_request::any_request(data));
