//! Any files of beanstalkd's: see `bsd::check::any_binlogs`.

#![no_main]

use bsd::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| check::any_binlogs(data));
