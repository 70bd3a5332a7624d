//! The ledger: raft's log and hard state of one node, durable.
//!
//! It is append only: nothing that is durable is ever cut or overwritten. An entry of an index that
//! is there already replaces it, and all after it. One commit is one write and one sync, and now and
//! then zeros ahead of those that follow. What is in the ledger is not yet true: only what is committed
//! is, and that goes into the ordinary log too (`storage`), which the ledger knows nothing of. Once it
//! is durable there, the ledger may drop it.
//!
//! # What must stay true
//!
//! * After `commit()` has returned without an error, term, vote and entries survive any crash.
//!   After a crash during it: all of it, or a beginning of the entries, or nothing.
//! * An entry that was answered for is never missing silently: a start refuses a damaged ledger.
//!   Only the last frames of the last file can be lost without a trace, and only if nothing later
//!   says that they were durable. Each frame says that of what is before it; when a commit index
//!   alone has changed, a frame is written for that, and is not synced.
//! * After a write or sync that failed for another reason than a full disk nothing is written any
//!   more: only a start, which reads the disk, knows its content.
//! * A tail that a crash has torn is never appended to: a new file says where the old one ends.
//!
//! # What it assumes
//!
//! One process has the data directory: its lock is the log's. That the ledger's entries are not
//! missing at the front is for the caller to check: [`Ledger::base`] must not be after what the log
//! has.
//!
//! | file | question |
//! |---|---|
//! | here | what does a ledger do? |
//! | `format` | what are the bytes? |
//! | `read` | which frames of a file are sound, and what follows them? |
//! | `open` | which ledger do these files hold? |
//! | `write` | how does a commit get to the disk, and when is there another file? |
//! | `files` | how is a file made? |
//! | `held` | what is known without reading? |
//! | `view` | what does a ledger say that is read only? |

mod files;
mod format;
mod held;
mod open;
mod read;
#[cfg(test)]
mod tests;
mod view;
mod write;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raft::eraftpb::Entry;

use self::files::{LedgerFile, Spare, file_name, remove_if_there};
pub(super) use self::files::{failed, full_or_failed};
use self::format::{Batch, Opening, Seed};
use self::held::Held;
pub use self::view::LedgerView;
use super::member::{ClusterId, Members, NodeId};
use bsd::ErrorClass;
use bsd::storage::disk::{Fs, ReadFile};
use bsd::storage::{OpenError, StoreError};

/// Beginning of a ledger: everything up to `index` is in the log, and not here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Base {
    /// The index of the last entry that is not here any more; 0: there was none.
    pub index: u64,
    /// Its term.
    pub term: u64,
    /// The membership at this index.
    pub members: Members,
}

/// Whose ledger it is. Written once, into every file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Which cluster.
    pub cluster: ClusterId,
    /// Which disk of it.
    pub node: NodeId,
}

/// State that raft must not forget, besides its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    /// The latest term seen.
    pub term: u64,
    /// Whom this node has voted for in that term; 0: no one.
    pub vote: u64,
    /// Every entry up to this index is committed. May be behind after a crash.
    pub commit: u64,
}

/// How large things are, bytes. The default is for servers; tests want less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// A file has this much space set aside, or down to an eighth of it on a disk that is nearly
    /// full, and is left when that is used up.
    pub file: u64,
    /// Entries in memory, those that are not on the disk yet not counted.
    pub recent: usize,
    /// A frame that has become larger than this is ended before the next entry.
    pub frame: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            file: 32 << 20,
            recent: 16 << 20,
            frame: 1 << 20,
        }
    }
}

impl Sizes {
    /// The sizes that a file may have, the best first.
    fn of_files(self) -> impl Iterator<Item = u64> {
        (0..4).map(move |half| self.file >> half)
    }
}

/// Why the ledger could not be written.
#[derive(Debug, Clone)]
pub enum LedgerError {
    /// There is no room. Nothing was lost and nothing is durable that was not; the call can be
    /// repeated.
    Full(StoreError),
    /// The content of the disk is unknown. Every later call that writes returns the same error.
    Failed(StoreError),
}

impl LedgerError {
    /// True if the call can be repeated when there is room.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, LedgerError::Full(_))
    }

    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        let (LedgerError::Full(error) | LedgerError::Failed(error)) = self;
        error.class()
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerError::Full(StoreError {
                doing, path, cause, ..
            }) => {
                let path = path.display();
                let relief = match self.class() {
                    class @ ErrorClass::Descriptors => class.relief(),
                    _ => "free space on its disk",
                };
                write!(
                    f,
                    "the ledger has no room: could not {doing} {path}: {cause}; this node agrees \
                     to nothing until there is room: {relief}"
                )
            }
            LedgerError::Failed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LedgerError {}

impl From<LedgerError> for StoreError {
    fn from(error: LedgerError) -> StoreError {
        match error {
            LedgerError::Full(error) | LedgerError::Failed(error) => error,
        }
    }
}

impl From<LedgerError> for OpenError {
    fn from(error: LedgerError) -> OpenError {
        OpenError::Io(error.into())
    }
}

/// An open ledger. See the head of this file.
#[derive(Debug)]
pub struct Ledger {
    fs: Arc<dyn Fs>,
    /// `DIR/cluster`.
    dir: PathBuf,
    sizes: Sizes,
    identity: Identity,
    /// Oldest first; never empty. The last one is written to.
    files: VecDeque<LedgerFile>,
    /// Where the frames of the last file began after its opening.
    opening_end: u64,
    /// Up to where the last file is durable.
    durable: u64,
    /// Nothing may be appended to the last file: something lies behind its end.
    is_torn: bool,
    /// Space for the next file.
    spare: Option<Spare>,
    /// When the last file has become this long, a spare that could not be made is tried again.
    spare_from: u64,
    /// The last attempt to make a spare failed.
    lacks_spare: bool,
    /// That was so once, and was said.
    has_lacked_spare: bool,
    base: Base,
    /// From which index on which membership holds; ascending. The first one holds at the base.
    members: Vec<(u64, Members)>,
    held: Held,
    state: HardState,
    /// As the disk has it.
    written_state: HardState,
    /// The last entry, or the base, as the disk has it: its index and term.
    written_last: (u64, u64),
    /// The first entry that is not on the disk.
    pending: Option<u64>,
    /// Indices of memberships that are not on the disk.
    pending_members: Vec<u64>,
    /// For the frames of a commit.
    buffer: Vec<u8>,
    failure: Option<StoreError>,
}

/// Making and opening.
impl Ledger {
    /// Make `dir`/cluster with a ledger that begins at `base`; `dir` exists. Its hard state is the
    /// base's term, no vote, and the base's index as committed. Durable on return.
    ///
    /// # Errors
    /// If there is one already, or the disk is full or fails. It can be repeated, also after a
    /// crash: until it has succeeded, [`Ledger::open`] may find a ledger or none.
    pub fn create(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        identity: Identity,
        base: Base,
    ) -> Result<Ledger, OpenError> {
        Ledger::create_with(fs, dir, identity, base, Sizes::default())
    }

    /// The same, with other sizes.
    ///
    /// # Errors
    /// See [`Ledger::create`].
    pub(crate) fn create_with(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        identity: Identity,
        base: Base,
        sizes: Sizes,
    ) -> Result<Ledger, OpenError> {
        open::create(fs, dir, identity, base, sizes)
    }

    /// Remove a new ledger that is not wanted, or that [`Ledger::create`] could not finish. Durable
    /// on return. Must not be called where there may have been a ledger before.
    ///
    /// # Errors
    /// If the disk fails: there may be one.
    pub fn abandon(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
        open::abandon(fs, dir)
    }

    /// Open the ledger in `dir`; `None`: `dir` has no ledger. The remains of a crash are put in
    /// order: a torn tail counts as not written, and everything that was read is durable on return.
    ///
    /// # Errors
    /// `Damaged`: something that was durable is gone or changed; nothing on the disk was changed.
    /// `Foreign`: a file is of a later version, or of another ledger. `Io`: the disk is full or
    /// fails.
    pub fn open(fs: &Arc<dyn Fs>, dir: &Path) -> Result<Option<Ledger>, OpenError> {
        Ledger::open_with(fs, dir, Sizes::default())
    }

    /// The same, with other sizes.
    ///
    /// # Errors
    /// See [`Ledger::open`].
    pub fn open_with(
        fs: &Arc<dyn Fs>,
        dir: &Path,
        sizes: Sizes,
    ) -> Result<Option<Ledger>, OpenError> {
        open::open(fs, dir, sizes)
    }
}

/// Reading.
impl Ledger {
    /// Whose ledger it is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Its beginning: grows with [`Ledger::discard`].
    #[must_use]
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// As it was set, whether durable or not.
    #[must_use]
    pub fn hard_state(&self) -> HardState {
        self.state
    }

    /// The index of the first entry, or of the one to come.
    #[must_use]
    pub(crate) fn first_index(&self) -> u64 {
        self.base.index + 1
    }

    /// The index of the last entry, durable or not; the base's without entries.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.held.last()
    }

    /// The term of an entry, or of the base.
    #[must_use]
    pub fn term(&self, index: u64) -> Option<u64> {
        self.held.term(index)
    }

    /// The membership that holds at `index`, as far as it was told: the base's, or the last one
    /// that [`Ledger::members_applied`] told of for this index or one before it. What a node that
    /// has applied up to `index` begins with.
    ///
    /// # Panics
    /// If `index` is before the base.
    #[must_use]
    pub(crate) fn members_at(&self, index: u64) -> &Members {
        assert!(
            index >= self.base.index,
            "the membership at {index} is forgotten"
        );
        let after = self.members.partition_point(|it| it.0 <= index);
        match after.checked_sub(1) {
            Some(nth) => &self.members[nth].1,
            None => &self.base.members,
        }
    }

    /// The latest membership that it was told of, and the entry that brought it.
    #[must_use]
    pub fn members(&self) -> (u64, &Members) {
        match self.members.last() {
            Some((index, members)) => (*index, members),
            None => (self.base.index, &self.base.members),
        }
    }

    /// True if there is no space set aside for the next file, because the disk had none.
    #[must_use]
    pub(crate) fn lacks_spare(&self) -> bool {
        self.spare.is_none() && self.lacks_spare
    }

    /// Bytes of all its files, without the space set aside.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.end).sum()
    }

    /// The entries from `from` up to but without `to`, durable or not: as many as have `bytes_max`
    /// bytes of data and context together, and at least one if the range is not empty. Recent ones
    /// come from memory, others from the disk, and are checked.
    ///
    /// # Errors
    /// If the disk does not return them, or returns something else.
    ///
    /// # Panics
    /// If the range is not part of the ledger.
    pub fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Result<Vec<Entry>, StoreError> {
        assert!(
            self.first_index() <= from && from <= to && to <= self.last_index() + 1,
            "entries {from} to {to} of a ledger of {} to {}",
            self.first_index(),
            self.last_index()
        );
        self.held
            .entries(from, to, bytes_max, |index| self.read(index))
    }

    /// The entries from `index` on that are in the same frame, and not replaced.
    fn read(&self, index: u64) -> Result<Vec<Entry>, StoreError> {
        let file_of = |number| {
            let file = self.files.iter().find(|file| file.number == number)?;
            Some((&*file.file as &dyn ReadFile, file.seed))
        };
        read_frame(&self.dir, &self.held, index, file_of)
    }
}

/// The entries from `index` on that are in the same frame, and not replaced.
fn read_frame<'a>(
    dir: &Path,
    held: &Held,
    index: u64,
    file_of: impl FnOnce(u64) -> Option<(&'a dyn ReadFile, Seed)>,
) -> Result<Vec<Entry>, StoreError> {
    let lost = |path: &Path, cause: &str| {
        let cause = io::Error::other(format!("entry {index}: {cause}"));
        StoreError::new("read", path, &cause)
    };
    let place = held
        .place(index)
        .ok_or_else(|| lost(dir, "its place is not known"))?;
    let path = dir.join(file_name(place.file));
    let (file, seed) = file_of(place.file).ok_or_else(|| lost(&path, "the file is gone"))?;
    let payload = read::read_payload(file, seed, place.at, place.size)
        .map_err(|error| StoreError::new("read", &path, &error))?;
    let mut entries = payload
        .and_then(|payload| Batch::decode(&payload))
        .ok_or_else(|| lost(&path, "the disk returned something else than was written"))?
        .entries;
    entries.retain(|entry| index <= entry.index && entry.index <= place.last);
    match entries.first() {
        Some(first) if first.index == index => Ok(entries),
        _ => Err(lost(&path, "it is not in its frame")),
    }
}

/// Writing.
impl Ledger {
    /// Append entries, in memory only until [`Ledger::commit`]. They replace everything from the
    /// first one's index on.
    ///
    /// # Panics
    /// If their indices are not consecutive, if they leave a gap, or if they replace an entry that
    /// the last commit called committed: it would be lost.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else {
            return;
        };
        assert!(
            first.index > self.written_state.commit,
            "entry {} is committed, up to {}, and cannot be replaced",
            first.index,
            self.written_state.commit
        );
        for (entry, index) in entries.iter().zip(first.index..) {
            assert_eq!(entry.index, index, "entries are consecutive");
            self.held.push(entry.clone());
        }
        let pending = self.pending.map_or(first.index, |it| it.min(first.index));
        self.pending = Some(pending);
    }

    /// Set the hard state, in memory only until [`Ledger::commit`].
    ///
    /// # Panics
    /// If the term or the commit index goes back, or the vote in a term changes.
    pub(crate) fn set_hard_state(&mut self, state: HardState) {
        let is_kept = state.term > self.state.term
            || state.term == self.state.term
                && (self.state.vote == 0 || state.vote == self.state.vote);
        assert!(
            is_kept && state.commit >= self.state.commit,
            "hard state {state:?} does not follow {:?}",
            self.state
        );
        self.state = state;
    }

    /// Remember, with the next commit, that this membership holds from `index` on, which was
    /// applied: see [`Ledger::members_at`]. That commit must succeed before the log has `index`
    /// durably: else the next start may not find the membership that holds there.
    ///
    /// # Panics
    /// If the membership has more members or longer addresses than can be written.
    pub(crate) fn members_applied(&mut self, index: u64, members: Members) {
        assert_writable(&members);
        put_members(&mut self.members, index, members);
        self.pending_members.retain(|it| *it != index);
        self.pending_members.push(index);
        self.pending_members.sort_unstable();
    }

    /// Make durable all that came since the last call: one write and one sync. If nothing but the
    /// commit index has changed it is written, where there is room, and not synced: after a crash
    /// an older one may be there.
    ///
    /// # Errors
    /// [`LedgerError::Full`]: it can be called again, and more can be appended before. After any
    /// other error nothing can be written any more.
    ///
    /// # Panics
    /// If the commit index is after the last entry.
    pub fn commit(&mut self) -> Result<(), LedgerError> {
        self.check()?;
        assert!(
            self.state.commit <= self.last_index(),
            "index {} is committed, the last entry is {}",
            self.state.commit,
            self.last_index()
        );
        let HardState { term, vote, .. } = self.written_state;
        let must_sync = self.pending.is_some()
            || !self.pending_members.is_empty()
            || (term, vote) != (self.state.term, self.state.vote);
        if must_sync {
            self.commit_durably()
        } else if self.written_state != self.state {
            self.note_commit()
        } else {
            Ok(())
        }
    }

    /// Set space aside for the next file, unless it is there: a [`reset`](Ledger::reset) has room then.
    ///
    /// # Errors
    /// [`LedgerError::Full`]: nothing has happened. Any other error is the end, see
    /// [`Ledger::commit`].
    pub fn set_aside(&mut self) -> Result<(), LedgerError> {
        self.check()?;
        self.spare = Some(self.take_spare()?);
        Ok(())
    }

    /// A snapshot was installed: all entries are gone, and the ledger continues after `base`. The
    /// hard state stays, and what was not committed of it becomes durable; the base is committed.
    /// Durable on return.
    ///
    /// # Errors
    /// [`LedgerError::Full`]: nothing has happened. Any other error is the end, see
    /// [`Ledger::commit`].
    ///
    /// # Panics
    /// If the base is before a committed entry, which would be lost, or its membership cannot be
    /// written.
    pub fn reset(&mut self, base: Base) -> Result<(), LedgerError> {
        self.check()?;
        assert_writable(&base.members);
        assert!(
            base.index >= self.state.commit,
            "a ledger committed up to {} cannot begin at {}",
            self.state.commit,
            base.index
        );
        let state = HardState {
            commit: base.index,
            ..self.state
        };
        let opening = Opening {
            state,
            before: None,
            index: base.index,
            term: base.term,
            members: vec![(base.index, base.members.clone())],
        };
        let spare = self.take_spare()?;
        self.begin(spare, &opening)?;
        (self.state, self.written_state) = (state, state);
        self.written_last = (base.index, base.term);
        self.held.restart((base.index, base.term));
        self.members = opening.members;
        self.base = base;
        (self.pending, self.pending_members) = (None, Vec::new());
        // They are none of the ledger any more. What stays is removed at the next start.
        for file in self.files.drain(..self.files.len() - 1) {
            let path = self.dir.join(file_name(file.number));
            if let Err(error) = remove_if_there(&*self.fs, &path) {
                tracing::warn!("could not remove {}: {error}", path.display());
            }
        }
        Ok(())
    }

    /// Entries up to `index` are durable in the log: whole files of them go, the oldest first, as
    /// long as `keep_bytes` bytes stay; never the newest file. Nothing goes while entries or
    /// memberships wait for a commit. Durable on return.
    ///
    /// # Errors
    /// As of [`Ledger::commit`].
    pub fn discard(&mut self, index: u64, keep_bytes: u64) -> Result<(), LedgerError> {
        self.check()?;
        while self.pending.is_none()
            && self.bytes() - self.files[0].end >= keep_bytes
            && self.give_up_oldest(index)?
        {}
        Ok(())
    }

    /// The same of the oldest file alone, whatever is kept, and also while entries wait for a commit,
    /// which may have found no room. Returns whether it went.
    ///
    /// # Errors
    /// As of [`Ledger::commit`].
    pub(crate) fn give_up_oldest(&mut self, index: u64) -> Result<bool, LedgerError> {
        self.check()?;
        let [_, next, ..] = self.files.make_contiguous() else {
            return Ok(false);
        };
        let (next, written) = (next.number, self.written_last.0);
        let replaces = self.pending.is_some_and(|pending| pending <= written);
        // What an open ledger would begin with if the oldest file were not there. If what waits replaces
        // all that is in the other files, it is not known.
        let begins = match self.held.first_place_from(next) {
            Some(place) => place.first.max(self.first_index()) - 1,
            None if replaces => return Ok(false),
            None => written,
        };
        if begins > index || !self.pending_members.is_empty() {
            return Ok(false);
        }
        self.drop_oldest()?;
        self.held.drop_up_to(begins);
        self.base = Base {
            index: begins,
            term: self.held.base().1,
            members: self.members_at(begins).clone(),
        };
        let before = self.members.partition_point(|it| it.0 <= begins);
        self.members.drain(..before.saturating_sub(1));
        if self.lacks_spare {
            self.try_spare();
        }
        Ok(true)
    }

    /// Give back what is set aside for the next file, but for the least. Returns whether it was more.
    pub(crate) fn cut_spare(&mut self) -> bool {
        let least = self.sizes.of_files().last().unwrap_or(self.sizes.file);
        let spare = self.spare.as_mut().filter(|spare| spare.size > least);
        let is_cut = spare.is_some_and(|spare| {
            let cut = spare.file.set_size(least);
            if cut.is_ok() {
                spare.size = least;
            }
            cut.is_ok()
        });
        if is_cut {
            self.spare_from = self.active().end + self.sizes.file / 16;
        }
        is_cut
    }

    /// There may be room again for what [`Ledger::lacks_spare`] tells of.
    pub(crate) fn try_spare(&mut self) {
        self.spare_from = 0;
        self.prepare_spare();
    }

    /// One after the other, each durable: a hole in the row of files is damage.
    fn drop_oldest(&mut self) -> Result<(), LedgerError> {
        let Some(oldest) = self.files.front() else {
            return Ok(());
        };
        let path = self.dir.join(file_name(oldest.number));
        if let Err(error) = remove_if_there(&*self.fs, &path) {
            return Err(self.latch(full_or_failed("remove", &path, &error)));
        }
        if let Err(error) = self.fs.sync_dir(&self.dir) {
            return Err(self.latch(failed("sync", &self.dir, &error)));
        }
        self.files.pop_front();
        Ok(())
    }

    fn check(&self) -> Result<(), LedgerError> {
        match &self.failure {
            Some(failure) => Err(LedgerError::Failed(failure.clone())),
            None => Ok(()),
        }
    }

    /// Remember a failure that no repetition can repair.
    fn latch(&mut self, error: LedgerError) -> LedgerError {
        if let LedgerError::Failed(failure) = &error {
            self.failure = Some(failure.clone());
        }
        error
    }

    /// The file that is written to.
    fn active(&self) -> &LedgerFile {
        &self.files[self.files.len() - 1]
    }
}

/// Put a membership among those of other indices.
fn put_members(all: &mut Vec<(u64, Members)>, index: u64, members: Members) {
    match all.binary_search_by_key(&index, |it| it.0) {
        Ok(nth) => all[nth].1 = members,
        Err(nth) => all.insert(nth, (index, members)),
    }
}

/// A membership that is written must be readable: its encoding has bounds.
fn assert_writable(members: &Members) {
    let mut bytes = Vec::new();
    members.encode(&mut bytes);
    let found = Members::decode(&bytes);
    assert!(
        found.is_some_and(|(found, rest)| found == *members && rest.is_empty()),
        "this membership cannot be written: {members:?}"
    );
}
