//! The one door to what differs between operating systems; sockets and groups are in `bsd-net`.
//!
//! Every other module is the same on Linux, macOS and FreeBSD. `docs/platforms.md` says what each
//! of them promises, and what was only compiled.
//!
//! | file | question |
//! |---|---|
//! | `files` | when is a file durable, where is room for it, how does it get an unused name? |
//! | `locks` | which locks of a file see each other, and who holds one? |
//! | `processes` | what does the system tell about a process? |
//! | `random` | where do bytes come from that no one can guess? |
//!
//! A function that a system cannot serve says so: it returns an error or `None`, never a weaker
//! promise under the same name.

pub(crate) mod files;
pub(crate) mod locks;
pub mod processes;
pub mod random;
