//! Any bytes of a peer of a cluster: see `bsd_cluster::wire::check`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| bsd_cluster::wire::check(data));
