//! The client and the worker with real servers.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_SERVER` | the server to test | `bsd-server` beside this test's directory |
//! | `BSD_REQUIRE_PEERS` | `1`: a server that is missing is a failure | its tests are skipped, and say so |
//! | `BSD_CLIENT_SEED` | the seed of the random tests, which print it | new each run |

#![allow(clippy::unwrap_used, reason = "a test's unwrap is a check")]

mod any_bytes;
mod calls;
mod cluster;
mod harness;
mod kit;
mod kit_calls;
mod kit_embedded;
mod kit_match;
mod kit_wire;
mod readme;
mod reconnect;
mod secure;
mod servers;
mod servers_async;
mod servers_secure;
mod worker;
mod worker_async;
