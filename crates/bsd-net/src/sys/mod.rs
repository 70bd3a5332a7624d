//! The one door to what differs between operating systems, for sockets and groups.
//!
//! | file | question |
//! |---|---|
//! | `groups` | in which groups is this process? |
//! | `sockets` | how is a socket made, and how is its file kept hold of? |
//!
//! A function that a system cannot serve says so: it returns an error or `None`, never a weaker
//! promise under the same name.

pub(crate) mod groups;
pub(crate) mod sockets;
