//! A ledger that is read, and neither put in order nor written to: that of a member whose server
//! does not run, for tools.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raft::eraftpb::Entry;

use super::files::{DIR_NAME, LedgerFile};
use super::held::Held;
use super::open::{View, begin, is_missing, numbers, read};
use super::{Base, HardState, Identity, Sizes, read_frame};
use crate::member::Members;
use bsd::storage::disk::{ReadFile, ReadFs};
use bsd::storage::{OpenError, StoreError};

/// Content of the files of a ledger, up to damage.
#[derive(Debug)]
pub struct LedgerView {
    /// `DIR/cluster`.
    dir: PathBuf,
    identity: Identity,
    files: VecDeque<LedgerFile<Arc<dyn ReadFile>>>,
    state: HardState,
    members: Vec<(u64, Members)>,
    held: Held,
    damage: Option<OpenError>,
}

impl LedgerView {
    /// Read the ledger in `dir`; `None`: `dir` has no ledger. Nothing on the disk changes.
    ///
    /// # Errors
    /// `Damaged`: not even the beginning of its files can be read; for damage behind it see
    /// [`LedgerView::damage`]. `Foreign`: a file is of a later version, or of another ledger. `Io`: the
    /// disk does not answer.
    pub fn read(fs: &dyn ReadFs, dir: &Path) -> Result<Option<LedgerView>, OpenError> {
        let data_dir = dir;
        let dir = data_dir.join(DIR_NAME);
        let numbers = match numbers(fs, &dir) {
            Ok(numbers) => numbers,
            Err(OpenError::Io(_)) if is_missing(fs, data_dir)? => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(newest) = numbers.last() else {
            return Ok(None);
        };
        let open = |path: &Path| {
            let file = fs.open_read(path)?;
            Ok((file.clone(), file))
        };
        let (begun, _) = begin(&dir, &numbers, &open)?;
        let identity = begun.identity;
        let (found, damage) = read(&dir, *newest, begun, Sizes::default())?;
        let View {
            files,
            state,
            members,
            held,
        } = found.into_view();
        Ok(Some(LedgerView {
            dir,
            identity,
            files,
            state,
            members,
            held,
            damage,
        }))
    }

    /// The unreadable part: everything in this view is before it.
    #[must_use]
    pub fn damage(&self) -> Option<&OpenError> {
        self.damage.as_ref()
    }

    /// Whose ledger it is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Its beginning.
    #[must_use]
    pub fn base(&self) -> Base {
        let (index, term) = self.held.base();
        let holds = self.members.iter().rev().find(|it| it.0 <= index);
        Base {
            index,
            term,
            members: holds.map(|it| it.1.clone()).unwrap_or_default(),
        }
    }

    /// Term, vote, and the index that was known to be committed.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        self.state
    }

    /// The latest membership, and the entry that brought it.
    #[must_use]
    pub fn members(&self) -> (u64, Members) {
        self.members.last().cloned().unwrap_or_default()
    }

    /// The index of the last entry; the base's without entries.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.held.last()
    }

    /// The entries from `from` on: as many as have `bytes_max` bytes of data and context together, and
    /// at least one if there is one. Each is checked.
    ///
    /// # Errors
    /// If the disk does not return them, or returns something else.
    ///
    /// # Panics
    /// If `from` is not after the base.
    pub fn entries(&self, from: u64, bytes_max: u64) -> Result<Vec<Entry>, StoreError> {
        assert!(from > self.held.base().0, "entry {from} is not here");
        let to = self.held.last() + 1;
        self.held.entries(from, to, bytes_max, |index| {
            read_frame(&self.dir, &self.held, index, |number| {
                let file = self.files.iter().find(|file| file.number == number)?;
                Some((&*file.file, file.seed))
            })
        })
    }
}
