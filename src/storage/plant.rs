//! Mistakes that a test can make this program commit, to see whether the tests notice.
//!
//! Each [`Bug`] is one that a storage engine is known to have had, at the very place where the
//! correct step stands: `if planted(Bug::AckBeforeSync) { … }`. A test that plants one and runs a
//! check of the suite must see that check fail.
//!
//! They exist only where debug assertions do. In a release build [`planted`] is the constant
//! `false`, there is nothing that could plant a bug, and the wrong branches are not compiled in.
//! A bug is planted for one thread, so that tests beside it run the correct code; engines on a
//! simulated disk, which start no threads, are all in the thread of their test.

/// A mistake. What each says is what the program then does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A reply leaves when its record is written, not when it is synced.
    AckBeforeSync,
    /// A reply to a change of a job does not wait for the record of the change.
    UpdateNotAwaited,
    /// A sync that failed counts as done.
    SyncErrorIgnored,
    /// A sync that failed is made again, and believed when it then succeeds.
    SyncRetried,
    /// After a failure the log goes on when it is asked again.
    FailureForgotten,
    /// A write that moved fewer bytes than it was given counts as whole.
    ShortWriteIgnored,
    /// A write for which there was no room counts as done.
    FullIsSuccess,
    /// A disk that is full counts as one that has failed.
    FullIsFatal,
    /// A segment gets its name, and the directory is not synced.
    NameNotSynced,
    /// A new data directory is made, and those above it are not synced.
    ParentsNotSynced,
    /// A segment gets its name before its content is synced.
    NamedBeforeSynced,
    /// A full segment is left, and its last frames are not synced.
    RotationUnsynced,
    /// Frames do not say how much was durable.
    DurableNeverTold,
    /// Frames say that what was written was durable already.
    DurableTooEarly,
    /// The interval after which to sync goes by, and nothing happens.
    IntervalForgotten,
    /// A clean stop does not sync.
    StopUnsynced,
    /// A start believes the page cache: it does not sync before it reads.
    StartUnsynced,
    /// A start does not write again what a failed sync may have left in memory alone.
    NotWrittenAgain,
    /// The length in a frame's header is believed further than the file goes.
    LengthTrusted,
    /// The checksums of records are not looked at when frames are read: at a start, and when
    /// compaction copies.
    RecordUnchecked,
    /// A body is read for a client, and its checksum is not looked at.
    BodyUnchecked,
    /// Checksums do not depend on the log, the segment and the generation.
    IdentityUnchecked,
    /// Checksums do not depend on the place in the file.
    PlaceUnchecked,
    /// A frame is taken although it does not follow the one before it.
    ChainUnchecked,
    /// An error while reading at a start is taken for the end of the log.
    ReadErrorIsEnd,
    /// The log goes on behind its last sound frame, over a torn tail.
    TornTailAppendedTo,
    /// A torn tail is dropped without saying so in the log, which ends there for the next start.
    TornTailUnsealed,
    /// Space that an earlier run had in use is used again as it is.
    StaleSpareUsed,
    /// A file that the list names and that is not there is passed over.
    MissingIgnored,
    /// A file that the list does not name is part of the log if it fits.
    LeftoverReplayed,
    /// A number that some file has, though not of this log, is given to a new segment.
    NumberTaken,
    /// Compaction's output is not synced.
    OutputUnsynced,
    /// Compaction's output gets its name, and the directory is not synced.
    OutputNameNotSynced,
    /// Compaction removes what it has copied before the switch is durable.
    InputsRemovedEarly,
    /// Compaction leaves out deletes of jobs that an older file still holds.
    TombstoneDropped,
    /// Compaction leaves out records that are alive.
    LiveRecordDropped,
    /// Compaction never begins.
    GarbageKept,
    /// Ids begin again behind the greatest that is alive.
    IdsReused,
    /// A job that is buried twice keeps the place of the first time.
    BuriedOrderLost,
    /// A restart resets the counters of jobs.
    CountersReset,
    /// A restart forgets the priority that a release gave.
    PriorityLost,
    /// A restart forgets which tubes are paused.
    PauseForgotten,
    /// The wall clock decides how much of a delay is left, however far it has jumped.
    DeadlineUnclamped,
    /// A job that was made in the future stays so.
    CreationUnclamped,
}

#[cfg(debug_assertions)]
mod active {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this thread is to make this mistake.
    #[must_use]
    pub fn planted(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// A mistake that this thread makes until this is dropped.
    #[derive(Debug)]
    #[must_use = "the bug is gone when this is dropped"]
    pub struct Planted(());

    /// Let this thread make a mistake.
    pub fn plant(bug: Bug) -> Planted {
        PLANTED.set(Some(bug));
        Planted(())
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            PLANTED.set(None);
        }
    }
}

#[cfg(debug_assertions)]
pub use active::{Planted, plant, planted};

/// No mistake is made in a release build.
#[cfg(not(debug_assertions))]
#[must_use]
pub const fn planted(_: Bug) -> bool {
    false
}
