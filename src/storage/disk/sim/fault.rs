//! Planned faults, and their times.

use std::path::{Path, PathBuf};

pub use rustix::io::Errno;

/// The kinds of file operation. Each call of the traits is one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// `create_dir` and `create_dir_all`.
    CreateDir,
    /// `read_dir`.
    ReadDir,
    /// `open` of a file that exists.
    Open,
    /// `open` of a new file.
    Create,
    /// `rename`.
    Rename,
    /// `remove_file`, `remove_dir`.
    Remove,
    /// `sync_dir`.
    SyncDir,
    /// `lock_dir`.
    Lock,
    /// `size`.
    Size,
    /// `read_at`.
    Read,
    /// `write_at`.
    Write,
    /// `sync`.
    Sync,
    /// `set_size`.
    SetSize,
    /// `allocate`.
    Allocate,
}

impl OpKind {
    /// All of them, for tests that let each fail in turn.
    pub const ALL: [OpKind; 14] = [
        OpKind::CreateDir,
        OpKind::ReadDir,
        OpKind::Open,
        OpKind::Create,
        OpKind::Rename,
        OpKind::Remove,
        OpKind::SyncDir,
        OpKind::Lock,
        OpKind::Size,
        OpKind::Read,
        OpKind::Write,
        OpKind::Sync,
        OpKind::SetSize,
        OpKind::Allocate,
    ];
}

/// The effect of a fault on an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// It returns this error and changes nothing; in addition, a sync marks its pages as clean.
    Fail(Errno),
    /// A read or a write moves at most this number of bytes, and reports so. No effect on other
    /// operations.
    Short(usize),
    /// A write or a sync reports success and does nothing, except that a write grows the size. No
    /// effect on other operations.
    Lose,
    /// A write reports success and durably overwrites what is at `offset` of the file `path`, or is
    /// lost if there is no such place. No effect on other operations.
    Misdirect {
        /// The file that it arrives in.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
    },
}

/// A fault: the operations that it strikes, and its effect.
///
/// By default it strikes once: the next operation of its kind, on any file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    kind: OpKind,
    effect: Effect,
    path: Option<PathBuf>,
    /// Operations to let pass before the first that is struck.
    spare: u64,
    for_ever: bool,
}

impl Fault {
    /// Strike the next operation of this kind.
    #[must_use]
    pub fn new(kind: OpKind, effect: Effect) -> Fault {
        Fault {
            kind,
            effect,
            path: None,
            spare: 0,
            for_ever: false,
        }
    }

    /// Let the next operation of this kind fail.
    #[must_use]
    pub fn fail(kind: OpKind, error: Errno) -> Fault {
        Fault::new(kind, Effect::Fail(error))
    }

    /// Strike the `n`-th operation from now on, counted from 1, among those that match.
    #[must_use]
    pub fn nth(self, n: u64) -> Fault {
        Fault {
            spare: n.saturating_sub(1),
            ..self
        }
    }

    /// Strike also every operation after the first one struck.
    #[must_use]
    pub fn for_ever(self) -> Fault {
        Fault {
            for_ever: true,
            ..self
        }
    }

    /// Strike, and count, only operations on this file or directory, by its name at the time. For a
    /// rename that is the old name.
    #[must_use]
    pub fn on(self, path: impl AsRef<Path>) -> Fault {
        Fault {
            path: Some(path.as_ref().to_path_buf()),
            ..self
        }
    }

    fn is_for(&self, kind: OpKind, path: &Path) -> bool {
        self.kind == kind && self.path.as_deref().is_none_or(|only| same(only, path))
    }
}

/// A relative path begins at the root.
fn same(one: &Path, other: &Path) -> bool {
    one.strip_prefix("/").unwrap_or(one) == other.strip_prefix("/").unwrap_or(other)
}

/// The faults that can still strike.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Count an operation and return its effect. If several faults match, the one added first
    /// strikes, and the others let it pass.
    pub(super) fn strike(&mut self, kind: OpKind, path: &Path) -> Option<Effect> {
        let mut struck = None;
        for (nth, fault) in self.0.iter_mut().enumerate() {
            if !fault.is_for(kind, path) {
            } else if fault.spare > 0 {
                fault.spare -= 1;
            } else if struck.is_none() {
                struck = Some(nth);
            }
        }
        let nth = struck?;
        let effect = self.0[nth].effect.clone();
        if !self.0[nth].for_ever {
            self.0.remove(nth);
        }
        Some(effect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAIL: Option<Effect> = Some(Effect::Fail(Errno::IO));

    fn strikes(faults: &mut Faults, kind: OpKind, path: &str) -> Option<Effect> {
        faults.strike(kind, Path::new(path))
    }

    #[test]
    fn a_fault_strikes_the_nth_operation_of_its_kind_once() {
        let mut faults = Faults::default();
        faults.add(Fault::fail(OpKind::Write, Errno::IO).nth(2));
        assert_eq!(strikes(&mut faults, OpKind::Write, "/a"), None);
        assert_eq!(strikes(&mut faults, OpKind::Read, "/a"), None);
        assert_eq!(strikes(&mut faults, OpKind::Write, "/a"), FAIL);
        assert_eq!(strikes(&mut faults, OpKind::Write, "/a"), None);
    }

    #[test]
    fn a_fault_for_ever_strikes_from_its_first_operation_on_until_cleared() {
        let mut faults = Faults::default();
        faults.add(Fault::fail(OpKind::Write, Errno::IO).nth(2).for_ever());
        let struck: Vec<_> = (0..4)
            .map(|_| strikes(&mut faults, OpKind::Write, "/a").is_some())
            .collect();
        assert_eq!(struck, [false, true, true, true]);
        faults.clear();
        assert_eq!(strikes(&mut faults, OpKind::Write, "/a"), None);
    }

    #[test]
    fn a_fault_on_a_file_neither_strikes_nor_counts_other_files() {
        let mut faults = Faults::default();
        faults.add(Fault::fail(OpKind::Sync, Errno::IO).on("d/a").nth(2));
        assert_eq!(strikes(&mut faults, OpKind::Sync, "/d/a"), None);
        assert_eq!(strikes(&mut faults, OpKind::Sync, "/d/b"), None);
        assert_eq!(strikes(&mut faults, OpKind::Sync, "/d/a"), FAIL);
    }

    #[test]
    fn two_faults_for_the_next_operation_strike_one_after_the_other() {
        let mut faults = Faults::default();
        faults.add(Fault::fail(OpKind::Write, Errno::INTR));
        faults.add(Fault::new(OpKind::Write, Effect::Short(1)));
        assert_eq!(
            strikes(&mut faults, OpKind::Write, "/a"),
            Some(Effect::Fail(Errno::INTR))
        );
        assert_eq!(
            strikes(&mut faults, OpKind::Write, "/a"),
            Some(Effect::Short(1))
        );
    }
}
