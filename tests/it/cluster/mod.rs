//! Three servers as one, as processes on loopback: what clients were told holds, whatever happens to
//! one of them, and to all of them one after another.
//!
//! `history` has the clients and the rules, `members` the processes, `links` the network between them,
//! `faults` what befalls both, and `rules` what a member refuses, and what tools may do beside it.

mod faults;
mod history;
mod links;
mod members;
mod rules;
