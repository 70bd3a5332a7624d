//! Tests of the server as a process: against beanstalkd, under real clients, under `kill -9`, on
//! full and foreign disks.
//!
//! Everything runs on loopback and is bounded in time; every process that a test starts is ended
//! by that test. Variables that change a run:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_REQUIRE_PEERS` | `1`: a peer that is missing fails its tests instead of skipping them | unset |
//! | `BSD_SERVER_UNDER_TEST` | the server binary to test in place of the one just built | unset |
//! | `BSD_VENV` | a Python virtual environment that has greenstalk, mypy, prometheus_client, pystalk and setuptools | `target/venv` |
//! | `BSD_NODE_MODULES` | a folder of npm packages that has jackd, playwright-core and axe-core | `target/node/node_modules` |
//! | `BSD_PICTURES` | a directory that a picture of every page of the console is written to, light and dark, 390 and 1280 wide | unset |
//! | `BSD_SCREENSHOT` | a file that a screenshot of the console is written to | unset |
//! | `BSD_DIFF_COMMANDS`, `BSD_DIFF_SEED` | random commands compared with beanstalkd; their seed | 10,000; new each run |
//! | `BSD_KILL_ROUNDS`, `BSD_KILL_SEED` | rounds of load and `kill -9`; their seed | 10; new each run |
//! | `BSD_CLUSTER_FAULTS`, `BSD_CLUSTER_FULL_DISKS`, `BSD_CLUSTER_SEED` | faults of members of a cluster under load; full disks, in each of three ways; the seed | 8; 2; new each run |
//! | `BSD_LIBRARY_CRASHES`, `BSD_POOL_KILLS` | power cuts on a simulated disk under threads of the library; kills of a pool of workers | 40; 5 |
//! | `BSDQ_CASES`, `BSDQ_SEED` | replies of a hostile server that the client for Python is given; their seed | 6,000; new each run |
//! | `BSD_FLEET_SECONDS`, `BSD_FLEET_SEED` | how long a fleet of workers is killed at random; its seed | 5; new each run |
//! | `BSD_SOAK_SECONDS`, `BSD_SOAK_SEED` | how long good and hostile clients, full disks and kills go on together; its seed | 10; new each run |
//! | `BSD_RPO_ROUNDS`, `BSD_RPO_SEED` | machines with an archive that are lost, and replaced by a restore or a promotion; if it is given, at most the last 1.5 s may go with each; the seed | 3; new each run |
//! | `BSD_BAD_STORE_SECONDS`, `BSD_BAD_STORE_SEED` | how long an archive is not well, again and again; its seed | 10; new each run |
//! | `BSD_IDLE_CONNECTIONS` | idle connections held open at once | 1,000 |
//! | `BSD_BACKUPS` | backups taken of a server under load | 5 |
//! | `BSD_BOUND_CYCLES`, `BSD_BOUND_ROUNDS` | put/reserve/delete cycles beside one pinned job; bury/kick rounds over a fixed set | 100,000; 100 |
#![allow(clippy::unwrap_used, reason = "a test's unwrap is a check")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at files and clocks from outside"
)]

mod activation;
mod api;
mod api_load;
mod archive;
mod archive_bases;
mod archive_days;
mod archive_levels;
mod archive_loss;
mod archive_refill;
mod archive_rehearsal;
mod archive_s3;
mod archive_sealed;
mod archive_seen;
mod archive_trouble;
mod archive_two;
mod auth;
mod backup;
mod bounds;
mod client_python;
mod clients;
mod cluster;
mod cluster_admin;
mod cluster_console;
mod compatibility;
mod completions;
mod console;
mod console_causes;
mod console_forms;
mod contrib;
mod crash;
mod ctl;
mod ctl_api;
mod ctl_examples;
mod ctl_move;
mod ctl_tasks;
#[cfg(target_os = "linux")]
mod ctl_terminal;
mod damaged_logs;
mod differential;
mod documented;
mod embedded;
mod events;
mod extended;
mod failing_calls;
mod faults;
mod fences;
mod fleet;
mod front;
mod generator;
mod handbook;
mod harness;
mod http;
mod http_tls;
mod inspection;
mod job_history;
mod large_jobs;
mod large_puts;
mod ledger;
mod library;
#[cfg(target_os = "linux")]
mod lines;
mod log_files;
mod memory;
mod metrics;
mod migration;
mod normalise;
mod packaged;
mod pages;
mod pair;
mod policies;
mod prometheus;
mod proxy;
mod recipes;
mod refusals;
mod restart;
mod s3;
mod schedules;
mod scripts;
mod selection;
mod soak;
mod space;
mod steering;
mod strace;
mod tidy;
mod tls;
mod tls_hostile;
mod tokens;
mod trace;
mod undo;
mod wal;
mod wal_backups;
mod wal_bits;
mod wal_commands;
mod wal_crash;
mod wal_load;
mod wal_look;
mod wal_output;
mod wal_shared;
mod wire;
mod words;

/// The root of the repository.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
