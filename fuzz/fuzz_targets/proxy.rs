//! Any header of the PROXY protocol: see `bsd_net::any_proxy_header`.

#![no_main]

use bsd_net::any_proxy_header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| any_proxy_header(data));
