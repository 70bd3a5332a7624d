//! The parts that bsd's command line tools share: a client of the protocol, output for people, and
//! their manual pages. Neither the server nor the library needs it.

pub mod address;
pub mod client;
pub mod human;
#[cfg(feature = "man")]
pub mod man;
pub mod yaml;
