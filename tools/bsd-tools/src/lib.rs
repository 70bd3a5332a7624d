//! What bsd's command line tools have in common: what they show people, and how their manual pages
//! are made. Neither the server nor the library needs it.

pub mod human;
#[cfg(feature = "man")]
pub mod man;
