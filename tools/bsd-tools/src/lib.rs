//! What bsd's command line tools have in common: a client of the protocol, what they show people, and
//! how their manual pages are made. Neither the server nor the library needs it.

pub mod address;
pub mod client;
pub mod human;
#[cfg(feature = "man")]
pub mod man;
pub mod yaml;
