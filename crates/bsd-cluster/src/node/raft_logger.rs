//! Log lines of raft, as events of `tracing`.

use slog::{Drain, Level, Logger, Never, OwnedKVList, Record};

/// Passes on what `tracing` has a listener for.
struct ToTracing;

impl Drain for ToTracing {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, _: &OwnedKVList) -> Result<(), Never> {
        let says = record.msg();
        match record.level() {
            Level::Critical | Level::Error => tracing::error!(target: "raft", "{says}"),
            Level::Warning => tracing::warn!(target: "raft", "{says}"),
            Level::Info => tracing::debug!(target: "raft", "{says}"),
            Level::Debug | Level::Trace => tracing::trace!(target: "raft", "{says}"),
        }
        Ok(())
    }
}

pub(super) fn logger() -> Logger {
    Logger::root(ToTracing, slog::o!())
}
