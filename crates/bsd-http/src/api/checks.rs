//! `/api/v1/log/checks`: when the log was last backed up and verified, and when a restore of its archive
//! was last rehearsed, as those who did it say.
//!
//! The server cannot know by itself: scripts do that beside it, perhaps on another machine. The
//! last report of each is kept until the server ends.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use serde_json::{Value, json};

use super::fields::Fields;
use super::{bad, not_found};
use crate::ServerHandles;
use crate::answer::{Answer, Problem, Said, json};
use bsd::clock::utc;

/// Kinds of checks of a log that scripts report.
pub(crate) const KINDS: [&str; 3] = ["backup", "verify", "rehearsal"];
/// Bytes that may be said of it.
const NOTE_SIZE_MAX: usize = 200;

/// One that was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Check {
    /// When the server was told, ns since 1970.
    pub(crate) wall_ns: u64,
    /// It failed, or found damage.
    pub(crate) has_failed: bool,
    /// Note of the script: where the backup is, or what failed.
    pub(crate) note: String,
}

/// The last of each kind, in the order of [`KINDS`]; `None`: the server was told of none.
#[derive(Debug, Default)]
pub(crate) struct Checks(Mutex<[Told; KINDS.len()]>);

/// Last report of one kind.
#[derive(Debug, Clone, Default)]
struct Told {
    last: Option<Check>,
    /// When it was told of the last one that succeeded, ns since 1970; 0: of none.
    succeeded_ns: u64,
}

impl Checks {
    fn lock(&self) -> MutexGuard<'_, [Told; KINDS.len()]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> [Option<Check>; KINDS.len()] {
        self.lock().clone().map(|told| told.last)
    }

    /// When the server was told of the last success of each kind, ns since 1970; 0: of none.
    pub(crate) fn successes(&self) -> [u64; KINDS.len()] {
        self.lock().clone().map(|told| told.succeeded_ns)
    }

    fn note(&self, nth: usize, check: Check) {
        let told = &mut self.lock()[nth];
        if !check.has_failed {
            told.succeeded_ns = check.wall_ns;
        }
        told.last = Some(check);
    }
}

/// `POST`: one was done just now.
pub(crate) fn note(
    handles: &ServerHandles,
    checks: &Checks,
    fields: &Fields,
) -> Result<Answer, Problem> {
    if handles.dir.is_none() {
        return Err(not_found(
            "the server keeps no log: jobs are in memory alone",
        ));
    }
    fields.only(&["check", "failed", "note"])?;
    let kind = fields.text("check")?.unwrap_or_default();
    let nth = KINDS.iter().position(|known| *known == kind);
    let nth = nth.ok_or_else(|| bad(format!("check is one of {KINDS:?}")))?;
    let note = fields.text("note")?.unwrap_or_default();
    if note.len() > NOTE_SIZE_MAX {
        return Err(bad(format!("note has at most {NOTE_SIZE_MAX} bytes")));
    }
    let check = Check {
        wall_ns: handles.clock.now().wall_ns,
        has_failed: fields.flag("failed")?,
        note: note.to_owned(),
    };
    let said = match check.has_failed {
        true => format!("a {kind} has failed"),
        false => format!("a {kind} is done"),
    };
    checks.note(nth, check);
    Ok(Said(said).with(json(StatusCode::OK, &value(checks))))
}

pub(super) fn value(checks: &Checks) -> Value {
    let of = |check: Option<Check>| {
        check.map(|check| {
            json!({
                "at": utc(check.wall_ns),
                "failed": check.has_failed,
                "note": check.note,
            })
        })
    };
    let [backup, verify, rehearsal] = checks.all().map(of);
    json!({"backup": backup, "verify": verify, "rehearsal": rehearsal})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g40_a_failure_leaves_the_time_of_the_last_success_as_it_was() {
        let checks = Checks::default();
        assert_eq!(
            checks.successes(),
            [0, 0, 0],
            "it is there before anything was told"
        );
        let check = |wall_ns, has_failed| Check {
            wall_ns,
            has_failed,
            note: String::new(),
        };
        checks.note(0, check(5, false));
        checks.note(0, check(7, true));
        checks.note(1, check(8, true));
        assert_eq!(checks.successes(), [5, 0, 0]);
        let told = checks.all().map(|it| it.map(|check| check.wall_ns));
        assert_eq!(told, [Some(7), Some(8), None]);
        checks.note(0, check(9, false));
        checks.note(2, check(10, false));
        assert_eq!(checks.successes(), [9, 0, 10]);
    }
}
