//! Reading a directory that holds a log, and changing nothing: what is there, which of it is the log,
//! where the log ends, and what is damaged.
//!
//! A start, every tool and a backup read through here, so they cannot disagree: a log is intact for
//! `verify` exactly when a server starts on it. What to do about what was found is decided elsewhere:
//! by `recover` for a start, by `inspect` for reports, by `convert` for copies.
//!
//! | file | question |
//! |---|---|
//! | `found` | what is in this directory, by names and headers? |
//! | `newest` | where does the log end, and which files does it list? |
//! | `survey` | which files are the log, in which order? |
//! | `walk` | what do all records say, in order, and what is damaged? |
//! | `scan` | is this a sound frame, and what does the end of a file mean? |
//! | `salvage` | which records are sound inside damage? |
//! | `source` | what if the disk does not give every byte? |
//! | `snapshot` | what if a server is writing to it meanwhile? |

mod found;
mod newest;
mod salvage;
pub mod scan;
mod snapshot;
mod source;
mod survey;
mod walk;

pub(in crate::storage) use self::found::Found;
pub(in crate::storage) use self::salvage::{Piece, salvage};
pub(in crate::storage) use self::snapshot::{HeldFile, Snapshot};
pub(in crate::storage) use self::source::Source;
pub(in crate::storage) use self::survey::Survey;
pub(in crate::storage) use self::walk::{LogEnd, Sink, walk};
pub use self::walk::{SegmentReport, TornTail};
