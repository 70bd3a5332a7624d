//! Three servers as one, as processes on loopback: what clients were told holds, whatever happens to
//! one of them, and to all of them one after another.
//!
//! `client` has the clients, `history` the rules, `members` the processes, `links` the network between
//! them, `faults` what befalls both, `full` disks that are full, and `rules` what a member refuses, and
//! what tools may do beside it, `survivor` what becomes of the last one that is left, `archived` what
//! has the archive that they write.

mod archived;
mod client;
mod faults;
mod full;
mod history;
mod links;
mod members;
mod rules;
mod survivor;
