//! The copy of a standby: how it keeps up with an archive, begins again, and takes over.
//!
//! A state machine without a thread and without a clock: each call does one thing, and can be
//! repeated after an error. The copy is a data directory that says that it is one
//! (`storage::standby`), and up to where it goes; after a restart it goes on there.
//!
//! ```text
//! start    a copy? -> open it      nothing? -> restore one      anything else? -> refuse
//! then     the next link -> its records -> the copy
//! again     a gap, another history, damage: restore beside the copy, then take its place
//! promote  links to the end -> claim the next number -> open the queue
//! ```
//!
//! A promoted standby has everything that the archive had when it was claimed: the number after the
//! last link that was applied is put by the one or by the other.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chain_reader::{Came, ChainReader, Later, Stop};
use super::claims::{Claims, Which, has_claimed};
use super::error::RestoreError;
use super::reader::{Reader, Wait};
use super::restore::{choose_log, restore_copy};
use super::store::{Store, Trouble};
use bsd::engine::{ApplyError, Engine, Options, Standby};
use bsd::storage::disk::Fs;
use bsd::storage::format::LogId;
use bsd::storage::marker_file::{STANDBY_MARKER, read_marker, write_marker};
use bsd::storage::settle;
use bsd::storage::standby::{cut, discard, is_root};
use bsd::storage::{OpenError, StoreError};
use bsd::types::{Now, Position, SECOND_NS, Time};

/// So often, at most, compaction has its turn, and it is noted how far the copy goes: after a restart
/// so much comes again.
const TEND_INTERVAL_NS: i64 = 5 * SECOND_NS;
/// After this silence the reader checks whether a link was lost.
const QUIET_NS: i64 = 10 * SECOND_NS;
/// The name of the next copy ends so while it is made.
const NEXT: &str = ".next";
const LINK_IS_MISSING: &str = "a link of the archive is missing";

/// The archive to follow, and the directory of the copy.
pub struct Setup {
    /// The archive.
    pub store: Arc<dyn Store>,
    /// How the archive is waited for during a restore.
    pub wait: Arc<dyn Wait>,
    /// Which log, if the archive has several.
    pub log: Option<LogId>,
    /// How the queue is opened; with a directory.
    pub options: Options,
    /// Who claims the archive, for people.
    pub node: String,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

/// Follows an archive.
#[derive(Debug)]
pub struct Follower {
    setup: Setup,
    dir: PathBuf,
    copy: Option<Copy>,
    /// Nothing that follows can be applied: the copy has to begin again.
    over: Option<String>,
    /// When the claim was first tried: it is repeated as it was.
    claimed_wall_ns: Option<u64>,
    figures: Figures,
}

#[derive(Debug)]
struct Copy {
    standby: Standby,
    chain_reader: ChainReader,
    /// When compaction last had its turn.
    tended: Time,
    /// When something last came.
    came: Time,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Links that were applied.
    pub links: u64,
    /// Records that were applied.
    pub records: u64,
    /// How often a copy was restored.
    pub restores: u64,
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Did {
    /// Nothing: the copy has everything that is in the archive.
    Nothing,
    /// Something; there may be more.
    Some,
    /// A copy that was there is opened again.
    Opened,
    /// A copy was restored.
    Restored,
}

/// Why a step was not done.
#[derive(Debug)]
pub enum FollowError {
    /// It may be possible later: the obstacle.
    Trouble(String),
    /// The archive has nothing that can be used, now: says why.
    Nothing(String),
    /// To take over would give up what another server has done: says what.
    Refused(String),
    /// It cannot go on: the disk failed, or the directory holds something else.
    Failed(OpenError),
}

impl From<Trouble> for FollowError {
    fn from(trouble: Trouble) -> FollowError {
        FollowError::Trouble(format!("the archive cannot be read: {trouble}"))
    }
}

impl From<OpenError> for FollowError {
    fn from(error: OpenError) -> FollowError {
        FollowError::Failed(error)
    }
}

impl From<StoreError> for FollowError {
    fn from(error: StoreError) -> FollowError {
        FollowError::Failed(error.into())
    }
}

impl From<RestoreError> for FollowError {
    fn from(error: RestoreError) -> FollowError {
        match error {
            RestoreError::Disk(error) => FollowError::Failed(error),
            RestoreError::Store(trouble) => trouble.into(),
            nothing => FollowError::Nothing(nothing.to_string()),
        }
    }
}

/// A queue that has taken over.
#[derive(Debug)]
pub struct Promoted {
    /// The queue.
    pub engine: Engine,
    /// The epoch of the archive from now on.
    pub epoch: u32,
    /// Up to where it has the history of the archive …
    pub at: Position,
    /// … which was durable at this time, by the clock of its writer, ns since 1970.
    pub wall_ns: u64,
    /// The archive goes on after that, and this could not be used: why.
    pub given_up: Option<String>,
}

impl Copy {
    /// Give compaction its turn, between two words. After the first nothing is applied, so a restart
    /// goes on there with the log as it is; after the second nothing is compacted, so a restart can
    /// cut the log there. What a marker says is there is durable before.
    fn tend(&mut self, fs: &dyn Fs, dir: &Path, now: Now) -> Result<(), FollowError> {
        self.standby.sync()?;
        write_marker(fs, dir, STANDBY_MARKER, &self.chain_reader.marker(None))?;
        self.standby.tend(now)?;
        let end = self.standby.sync()?;
        write_marker(
            fs,
            dir,
            STANDBY_MARKER,
            &self.chain_reader.marker(Some(end)),
        )?;
        self.tended = now.mono;
        Ok(())
    }
}

/// True if the log in `dir` has been archived, and is not a copy: a standby that has taken over is
/// a server like others, also when it is started again.
///
/// # Errors
/// If the disk does not answer.
pub fn has_taken_over(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
    Ok(has_claimed(fs, dir)? && read_marker(fs, dir, STANDBY_MARKER)?.is_none())
}

impl Follower {
    /// Nothing is read or made yet.
    #[must_use]
    pub fn new(setup: Setup) -> Follower {
        let dir = setup.options.dir.clone().unwrap_or_default();
        Follower {
            setup,
            dir,
            copy: None,
            over: None,
            claimed_wall_ns: None,
            figures: Figures::default(),
        }
    }

    /// Totals since the start.
    #[must_use]
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Up to where the copy goes, and when that was durable by the clock of its writer, ns since
    /// 1970. `None`: not known yet.
    #[must_use]
    pub fn at(&self) -> Option<(Position, u64)> {
        let chain_reader = &self.copy.as_ref()?.chain_reader;
        Some((chain_reader.at(), chain_reader.wall_ns()))
    }

    /// The log that is followed.
    #[must_use]
    pub fn log(&self) -> Option<LogId> {
        self.copy.as_ref().map(|copy| copy.chain_reader.log())
    }

    /// The copy, to look at.
    #[must_use]
    pub fn standby(&self) -> Option<&Standby> {
        self.copy.as_ref().map(|copy| &copy.standby)
    }

    /// Jobs of the copy.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.copy.as_ref().map_or(0, |copy| copy.standby.jobs())
    }

    /// Open or restore the copy, or apply the next link.
    ///
    /// # Errors
    /// See [`FollowError`].
    pub fn step(
        &mut self,
        now: Now,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Did, FollowError> {
        if self.over.is_some() && self.is_healed()? {
            self.over = None;
        }
        if let Some(over) = self.over.clone() {
            return self.renew(&over, now, progress);
        }
        if self.copy.is_none() {
            return self.begin(now, progress);
        }
        let came = self.next(now)?;
        match came {
            Came::Link => {
                self.keep(now)?;
                Ok(Did::Some)
            }
            Came::Nothing => {
                self.keep(now)?;
                self.look_for_lost_links(now)?;
                Ok(Did::Nothing)
            }
            Came::Over(why) => self.renew(&why, now, progress),
        }
    }

    /// True if the copy can go on after all.
    fn is_healed(&mut self) -> Result<bool, Trouble> {
        match &mut self.copy {
            Some(copy) => Ok(copy.chain_reader.healed(&*self.setup.store)?.is_some()),
            None => Ok(false),
        }
    }

    fn chosen_log(&self) -> Result<LogId, RestoreError> {
        let reader = Reader::new(&*self.setup.store, &*self.setup.wait);
        choose_log(&reader, self.setup.log)
    }

    fn fs(&self) -> &Arc<dyn Fs> {
        &self.setup.options.fs
    }

    fn begin(&mut self, now: Now, progress: &mut dyn FnMut(u64, u64)) -> Result<Did, FollowError> {
        settle(&**self.fs(), &self.dir)?;
        let Some(marker) = read_marker(&**self.fs(), &self.dir, STANDBY_MARKER)? else {
            let log = self.chosen_log()?;
            let dir = self.dir.clone();
            let chain_reader = self.restore(log, &dir, now, progress)?;
            // What a crash has left when this one had been discarded, and not yet replaced.
            self.discard_copy(&self.next_dir())?;
            return self.open(chain_reader, true, now);
        };
        let (chain_reader, own) = match ChainReader::resume(&marker) {
            Ok(found) => found,
            Err(why) => return self.renew(&why, now, progress),
        };
        if self.setup.log.is_some_and(|log| log != chain_reader.log()) {
            return Err(FollowError::Failed(OpenError::Foreign {
                path: self.dir.clone(),
                what: "this is the copy of another log; give another directory".to_owned(),
            }));
        }
        if let Some(own) = own {
            cut(&**self.fs(), &self.dir, own)?;
        }
        match self.open(chain_reader, false, now) {
            // A copy can be had again.
            Err(FollowError::Failed(error @ OpenError::Damaged { .. })) => {
                self.renew(&error.to_string(), now, progress)
            }
            other => other,
        }
    }

    fn open(
        &mut self,
        chain_reader: ChainReader,
        is_new: bool,
        now: Now,
    ) -> Result<Did, FollowError> {
        let standby = Standby::open(&self.setup.options, now)?;
        self.over = None;
        let copy = self.copy.insert(Copy {
            standby,
            chain_reader,
            tended: now.mono,
            came: now.mono,
        });
        copy.tend(&*self.setup.options.fs, &self.dir, now)?;
        Ok(match is_new {
            true => Did::Restored,
            false => Did::Opened,
        })
    }

    fn restore(
        &mut self,
        log: LogId,
        dir: &Path,
        now: Now,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ChainReader, FollowError> {
        let reader = Reader::new(&*self.setup.store, &*self.setup.wait);
        let (_, chain_reader) = restore_copy(&reader, log, (self.fs(), dir), now, progress)?;
        self.figures.restores += 1;
        Ok(chain_reader)
    }

    /// Restore another copy, and have it take the place of this one. Until then this one stays, where
    /// another directory can take its place.
    fn renew(
        &mut self,
        why: &str,
        now: Now,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Did, FollowError> {
        self.over = Some(why.to_owned());
        self.expect_base(why)?;
        let kept = self.log();
        let chosen = kept.map_or_else(|| self.chosen_log(), Ok);
        let fs = self.fs().clone();
        let is_root = is_root(&*fs, &self.dir)?;
        let next = match is_root {
            true => self.dir.clone(),
            false => self.next_dir(),
        };
        let restored = chosen.map_err(FollowError::from).and_then(|log| {
            if is_root {
                // Without its copy it would not know any more which one it follows.
                self.setup.log = Some(log);
                // It holds the directory.
                self.copy = None;
                settle(&*fs, &next)?;
            }
            self.discard_copy(&next)?;
            self.restore(log, &next, now, progress)
        });
        let chain_reader = restored.map_err(|error| match error {
            FollowError::Nothing(what) => FollowError::Nothing(begins_again(why, &what)),
            other => other,
        })?;
        if is_root {
            return self.open(chain_reader, true, now);
        }
        self.copy = None;
        discard(&*fs, &self.dir)?;
        let parent = match self.dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs.replace(&next, &self.dir)
            .and_then(|()| fs.sync_dir(parent))
            .map_err(|error| OpenError::io("give its name to", &self.dir, &error))?;
        self.open(chain_reader, true, now)
    }

    fn next_dir(&self) -> PathBuf {
        let mut name = self.dir.file_name().unwrap_or_default().to_owned();
        name.push(NEXT);
        self.dir.with_file_name(name)
    }

    /// Remove the copy in this directory, if there is one.
    fn discard_copy(&self, dir: &Path) -> Result<(), FollowError> {
        let fs = &**self.fs();
        if read_marker(fs, dir, STANDBY_MARKER)?.is_some() {
            discard(fs, dir)?;
        }
        Ok(())
    }

    /// The copy can begin again only with a base that is newer than the copy.
    fn expect_base(&self, why: &str) -> Result<(), FollowError> {
        match &self.copy {
            Some(copy) if !copy.chain_reader.has_later_base(&*self.setup.store)? => {
                let what = "there is no base after that in the archive";
                Err(FollowError::Nothing(begins_again(why, what)))
            }
            _ => Ok(()),
        }
    }

    fn next(&mut self, now: Now) -> Result<Came, FollowError> {
        let (store, records) = (self.setup.store.clone(), &mut self.figures.records);
        let Some(copy) = &mut self.copy else {
            return Ok(Came::Nothing);
        };
        let standby = &mut copy.standby;
        let came = copy.chain_reader.step(&*store, &mut |record| {
            *records += 1;
            standby.apply(record, now)
        });
        match came {
            Ok(Came::Link) => {
                copy.came = now.mono;
                self.figures.links += 1;
                Ok(Came::Link)
            }
            Ok(other) => Ok(other),
            Err(Stop::Store(trouble)) => Err(trouble.into()),
            Err(Stop::Refused(ApplyError::Failed(error))) => Err(error.into()),
            Err(Stop::Refused(apart @ ApplyError::Contradiction(_))) => {
                Ok(Came::Over(apart.to_string()))
            }
            Err(Stop::Refused(full)) => {
                // Compaction may make room.
                copy.tend(&*self.setup.options.fs, &self.dir, now)?;
                Err(FollowError::Trouble(full.to_string()))
            }
        }
    }

    /// Write the applied records, and give compaction its turn from time to time.
    fn keep(&mut self, now: Now) -> Result<(), FollowError> {
        let Some(copy) = &mut self.copy else {
            return Ok(());
        };
        copy.standby.commit(now)?;
        let is_due = now.mono.since(copy.tended) >= TEND_INTERVAL_NS && copy.came > copy.tended;
        match is_due {
            true => copy.tend(&*self.setup.options.fs, &self.dir, now),
            false => Ok(()),
        }
    }

    fn look_for_lost_links(&mut self, now: Now) -> Result<(), FollowError> {
        let Some(copy) = &mut self.copy else {
            return Ok(());
        };
        if now.mono.since(copy.came) < QUIET_NS {
            return Ok(());
        }
        copy.came = now.mono;
        if copy.chain_reader.later(&*self.setup.store)? == Later::Skipped {
            self.over = Some(LINK_IS_MISSING.to_owned());
        }
        Ok(())
    }

    /// Take over: apply everything that is in the archive, claim it, and open the queue. `None`:
    /// something came meanwhile; ask again. With `force` also if another server has taken over
    /// whose changes are not in the archive, and if the archive cannot be applied.
    ///
    /// # Errors
    /// See [`FollowError`]. It is still a standby.
    pub fn promote(
        &mut self,
        now: Now,
        force: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<Promoted>, FollowError> {
        let given_up = match self.step(now, progress) {
            Ok(Did::Nothing) if self.over.is_none() => None,
            Ok(_) => return Ok(None),
            // What cannot be applied and cannot be restored either is given up.
            Err(FollowError::Nothing(what)) if self.copy.is_some() => Some(what),
            Err(error) => return Err(error),
        };
        let store = self.setup.store.clone();
        let Some(copy) = &mut self.copy else {
            return Ok(None);
        };
        let fs = &*self.setup.options.fs;
        let log = copy.chain_reader.log();
        let mut own = Claims::read(fs, &self.dir, log, Which::First)?;
        if !force {
            refuse_to_discard(&copy.chain_reader, &own, given_up.as_deref())?;
        }
        let mut goes_on = true;
        if given_up.is_some() {
            goes_on = copy.chain_reader.give_up(&*store)?;
        } else {
            match copy.chain_reader.later(&*store)? {
                Later::Nothing => {}
                // It was joined while this was asleep.
                Later::Joined => return Ok(None),
                // Lost, or expired meanwhile: the end of the chain is elsewhere.
                Later::Skipped => {
                    self.over = Some(LINK_IS_MISSING.to_owned());
                    return Ok(None);
                }
            }
        }
        // Before the claim: without room this one could not serve, and the other one would be fenced.
        let past = copy.chain_reader.at().segment();
        let Some(life) = copy.standby.begin_life(past, now)? else {
            let no_room = ApplyError::NoRoom(copy.standby.lacking());
            return Err(FollowError::Trouble(no_room.to_string()));
        };
        let life = Some(life).filter(|_| goes_on);
        // Tried again, it is the same claim.
        let wall_ns = *self.claimed_wall_ns.get_or_insert(now.wall_ns);
        let (claim, bytes) = copy.chain_reader.claim(&self.setup.node, life, wall_ns);
        own.note(fs, &self.dir, claim)?;
        if !copy.chain_reader.put_claim(&*store, &bytes)? {
            return Ok(None);
        }
        let Some(Copy {
            standby,
            chain_reader,
            ..
        }) = self.copy.take()
        else {
            return Ok(None);
        };
        Ok(Some(Promoted {
            engine: standby.promote(now)?,
            epoch: claim.epoch,
            at: chain_reader.at(),
            wall_ns: chain_reader.wall_ns(),
            given_up,
        }))
    }
}

/// Anyone who was told to take over may not know that another one was told before. A claim that this
/// one has put before a crash, or without being told that it was put, is not that of another.
fn refuse_to_discard(
    chain_reader: &ChainReader,
    own: &Claims,
    given_up: Option<&str>,
) -> Result<(), FollowError> {
    let at = chain_reader.at();
    let what = match (given_up, chain_reader.newcomer(own)) {
        (Some(why), _) => {
            format!("the archive goes on after {at}, and that would be given up: {why}")
        }
        (None, Some(who)) => format!(
            "{who}, and nothing of what it has done since is in the archive: that would be given up; \
             it is there in a moment if that server runs"
        ),
        (None, None) => return Ok(()),
    };
    Err(FollowError::Refused(what))
}

fn begins_again(why: &str, what: &str) -> String {
    format!("the copy cannot go on ({why}) and has to begin again: {what}")
}
