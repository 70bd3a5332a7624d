//! The command line of `bsd-server`: what its flags mean, and its exit codes.
//!
//! The program itself is in `main.rs`. This library is here for manual pages and for tests; it
//! follows the server, and promises nothing to other programs.

pub mod config;
