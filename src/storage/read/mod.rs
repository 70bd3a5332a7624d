//! Reading a directory that holds a log, without changing it: what is there, which files are the
//! log, where the log ends, and what is damaged.
//!
//! A start, every tool and a backup read through this module, so they cannot disagree: `verify`
//! calls a log intact exactly when a server starts on it. Other rooms decide what to do with the
//! result: `recover` for a start, `inspect` for reports, `convert` for copies.
//!
//! | file | question |
//! |---|---|
//! | `found` | what is in this directory, by names and headers? |
//! | `newest` | where does the log end, and which files does it list? |
//! | `survey` | which files are the log, in which order? |
//! | `walk` | which records are there, in order, and what is damaged? |
//! | `scan` | is this a sound frame, and what does the end of a file mean? |
//! | `displaced` | does another file have the bytes that are missing here? |
//! | `salvage` | which records in a damaged stretch are sound? |
//! | `kept` | how is the newest segment read once and not twice? |
//! | `source` | what if the disk does not return every byte? |
//! | `snapshot` | what if a server is writing to it meanwhile? |

mod displaced;
mod found;
mod kept;
mod newest;
mod salvage;
pub mod scan;
mod snapshot;
mod source;
mod survey;
mod walk;

pub(in crate::storage) use self::found::{Found, refuse_interrupted_import};
pub(in crate::storage) use self::salvage::{Piece, salvage};
pub(in crate::storage) use self::snapshot::{HeldFile, Snapshot};
pub(in crate::storage) use self::source::Source;
pub(in crate::storage) use self::survey::Survey;
pub(in crate::storage) use self::walk::{LogEnd, Sink, walk};
pub use self::walk::{SegmentReport, TornTail};
