//! Opening a log: what a crash may have left, what that means, and how to continue.
//!
//! Nothing on the disk is changed before everything has been read and understood. The order:
//!
//! 1. Lock the directory; separate bsd's names from strangers.
//! 2. Sync, so that what is read is on the disk.
//! 3. Find the segment in which the log ends, and read it: its manifest and the switches after it
//!    name every file of the log.
//! 4. Check that each file is there, and replay them in order; collect all damage.
//! 5. If there is damage, report it and change nothing. Otherwise remove the leftovers of
//!    interrupted work, and write again what nothing in the log proves to be on the disk (after a
//!    failed sync there are bytes that can be read but that no later sync writes). Then continue at
//!    the end of the newest segment, or after a torn tail in a new one.
//!
//! The newest segment's list outranks the directory: a file that it does not name is the output of
//! a compaction that never took effect, or the input of one that did.

//!
//! | where | what |
//! |---|---|
//! | `foreign` | directories that a start leaves alone |
//! | `replay` | how the records are applied |
//! | `resume` | what a start changes on the disk |

mod foreign;
mod replay;
mod resume;

use std::io;
use std::path::Path;
use std::sync::Arc;

use self::foreign::{refuse_foreign, refuse_lost, refuse_member, refuse_unknown};
pub(in crate::storage) use self::replay::{Anything, Fresh};
pub use self::replay::{Progress, Replay};

use self::replay::Replaying;
use crate::storage::disk::descriptors::Descriptors;
use crate::storage::disk::{DirLock, Fs, OpenMode};
use crate::storage::error::OpenError;
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::{EPOCH_MIN, Entry, FrameKind, Identity, LogId, Stamp};
use crate::storage::incomplete::{finish_move, sync_ancestors};
use crate::storage::log::files::Files;
use crate::storage::log::kicks::Kicks;
use crate::storage::log::rotate::{NewSegment, NotBegun, first_segment_size};
use crate::storage::log::skip::after_loss;
use crate::storage::log::spares::Spares;
use crate::storage::log::{Active, Log, LogOptions, Resumed};
use crate::storage::read::{Found, Source, Survey, walk};
use crate::storage::standby;
use crate::types::{JobId, Now, Position, SegmentId};

/// How an opened log had ended, and what else was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The directory had no log: a new one was made.
    pub is_new: bool,
    /// The last frame of the log is the marker of a clean stop.
    pub clean_stop: bool,
    /// Bytes of a torn tail that were dropped, and the file in which they were saved, if there was
    /// room.
    pub torn: Option<(u64, Option<String>)>,
    /// Records replayed.
    pub records: u64,
    /// Files that are not bsd's, or not this log's; they were left alone.
    pub strangers: Vec<String>,
}

impl Log {
    /// Open the log in `options.dir`, or make one there, and replay it into `replay`.
    ///
    /// When this returns, everything that was replayed is durable. On damage, only the lock file in
    /// the directory was changed. On another error nothing that the log needs was changed: spares
    /// may have been given up, leftovers removed, and a directory without a log may hold an
    /// unfinished one.
    pub fn open(
        fs: Arc<dyn Fs>,
        options: LogOptions,
        now: Now,
        replay: &mut dyn Replay,
        progress: Progress<'_>,
    ) -> Result<(Log, Recovery), OpenError> {
        Log::open_held(fs, options, None, now, replay, progress)
    }

    /// The same, with the directory's lock if the caller holds it.
    pub(crate) fn open_held(
        fs: Arc<dyn Fs>,
        mut options: LogOptions,
        held: Option<Box<dyn DirLock>>,
        now: Now,
        replay: &mut dyn Replay,
        progress: Progress<'_>,
    ) -> Result<(Log, Recovery), OpenError> {
        options.segment_size = options.segment_size.max(SEGMENT_SIZE_MIN);
        let dir = options.dir.clone();
        make_data_dir(&*fs, &dir)?;
        let fs: Arc<dyn Fs> = match Descriptors::over(fs, &dir) {
            Ok(descriptors) => Arc::new(descriptors),
            Err(error) => return Err(OpenError::io("open", &dir, &error)),
        };
        let names = fs
            .read_dir(&dir)
            .map_err(|error| OpenError::io("list", &dir, &error))?;
        refuse_foreign(&*fs, &dir, &names)?;
        if !options.member {
            refuse_member(&*fs, &dir, &names)?;
        }
        let lock = match held {
            Some(lock) => lock,
            None => fs
                .lock_dir(&dir)
                .map_err(|error| OpenError::lock(&dir, error))?,
        };
        finish_move(&*fs, &dir)?;
        // Listed again, now that only this process can change it.
        let source = Source::strict(fs.clone());
        let found = Found::read(&source, &dir)?;
        let opening = Opening {
            fs,
            options,
            now,
            progress,
        };
        if found.is_empty() {
            refuse_unknown(&dir, &found.strangers)?;
            refuse_lost(&dir, &found)?;
            opening.make(found, lock)
        } else {
            opening.read(&source, found, lock, replay)
        }
    }
}

/// Make the data directory if it is missing, but not its parent: if that is missing too, a disk is
/// not mounted or a path is misspelt, and an empty log would hide that.
pub fn make_data_dir(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    fs.create_dir(dir).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            let what = "something of this name is there that is no directory; give a directory";
            return OpenError::io("create", dir, &io::Error::new(error.kind(), what));
        }
        let is_missing = error.kind() == io::ErrorKind::NotFound;
        let parent = dir.parent().filter(|_| is_missing);
        let error = match parent {
            Some(parent) => {
                let what = format!(
                    "there is no directory {}; mount its disk, or make it (`mkdir -p {0}`), then \
                     start again",
                    parent.display()
                );
                io::Error::new(error.kind(), what)
            }
            None => error,
        };
        OpenError::io("create", dir, &error)
    })
}

struct Opening<'a> {
    fs: Arc<dyn Fs>,
    options: LogOptions,
    now: Now,
    progress: Progress<'a>,
}

/// A segment that is about to be created.
struct Beginning<'a> {
    segment: SegmentId,
    next_id: JobId,
    kicks: &'a Kicks,
    durable: Position,
    stamp: Stamp,
    /// Bytes of its file, at most.
    size: u32,
}

impl Opening<'_> {
    /// Make a log in a directory that has none.
    fn make(self, found: Found, lock: Box<dyn DirLock>) -> Result<(Log, Recovery), OpenError> {
        let dir = self.options.dir.clone();
        sync_ancestors(&*self.fs, &self.options.dir)?;
        let log = match self.options.log_id {
            Some(log) => log,
            None => {
                random_log_id().map_err(|error| OpenError::io("name a log in", &dir, &error))?
            }
        };
        self.end_standby(found.is_standby && !self.options.standby)?;
        self.clear(&found.useless)?;
        let mut files = Files::new(log, EPOCH_MIN);
        files.taken = found.taken;
        let size = first_segment_size(self.options.segment_size);
        let mut spares = self.spares(&found.spares)?;
        spares
            .start_over(size)
            .map_err(|error| OpenError::io("set space aside for a segment in", &dir, &error))?;
        let (active, end) = self.begin_segment(
            &mut files,
            &mut spares,
            Beginning {
                segment: SegmentId(1),
                next_id: JobId(1),
                kicks: &Kicks::default(),
                durable: Position::ZERO,
                stamp: Stamp::default(),
                size,
            },
        )?;
        let resumed = Resumed {
            files,
            active,
            spares,
            next_id: JobId(1),
            kicks: Kicks::default(),
            end,
            is_marked: true,
            clean_stop: false,
            stamp: Stamp::default(),
            lock,
        };
        let log = Log::resume(self.fs, self.options, resumed)?;
        Ok((
            log,
            Recovery {
                is_new: true,
                strangers: found.strangers,
                ..Recovery::default()
            },
        ))
    }

    /// Anyone who opens the copy of a standby for another purpose may change it: it is a log like others
    /// from now on.
    fn end_standby(&self, takes_over: bool) -> Result<(), OpenError> {
        let dir = &self.options.dir;
        if !takes_over {
            return Ok(());
        }
        tracing::info!(
            "{} was the copy of a standby, and is none any more",
            dir.display()
        );
        standby::remove_marker(&*self.fs, dir)
    }

    fn spares(&self, names: &[(String, u64)]) -> Result<Spares, OpenError> {
        let dir = &self.options.dir;
        Spares::open(self.fs.clone(), dir, names)
            .map_err(|error| OpenError::io("take over the space set aside in", dir, &error))
    }

    fn renew(&self, spares: &mut Spares) -> Result<(), OpenError> {
        let dir = &self.options.dir;
        spares
            .renew()
            .map_err(|error| OpenError::io("take over the space set aside in", dir, &error))
    }

    /// Create a segment after all of `files`.
    fn begin_segment(
        &self,
        files: &mut Files,
        spares: &mut Spares,
        new: Beginning<'_>,
    ) -> Result<(Active, Position), OpenError> {
        let dir = &self.options.dir;
        let entries: Vec<Entry> = files
            .in_order()
            .map(|handle| files.get(handle).entry)
            .collect();
        let spare = match spares.take_last() {
            Some(spare) => spare,
            None => spares.reserve(new.size, SEGMENT_SIZE_MIN)?.ok_or_else(|| {
                let doing = "set space aside for a segment in";
                OpenError::no_room(doing, dir, spares.lacking())
            })?,
        };
        let mut number = new.segment;
        let (end, previous) = loop {
            let segment = NewSegment {
                identity: Identity::new(files.log(), number),
                epoch: files.epoch,
                entries: &entries,
                next_id: new.next_id,
                kicks: new.kicks,
                durable: new.durable,
                stamp: new.stamp,
                wall_ns: self.now.wall_ns,
            };
            match (
                segment.create(&*self.fs, dir, &spare),
                number.0.checked_add(1),
            ) {
                (Ok(begun), _) => break begun,
                (Err(begun), Some(next)) if begun.is_taken() => {
                    begun.warn();
                    number = SegmentId(next);
                }
                (Err(NotBegun { error, path, .. }), _) => {
                    return Err(OpenError::io("begin the segment", &path, &error));
                }
            }
        };
        let entry = Entry {
            first: number,
            last: number,
            generation: 0,
            end,
        };
        let handle = files.add(entry, false, Position::ZERO, spare.file);
        files.list(handle);
        Ok((
            Active {
                handle,
                capacity: spare.size,
                previous,
            },
            Position::new(number, end),
        ))
    }

    /// Open an existing log.
    fn read(
        self,
        source: &Source,
        found: Found,
        lock: Box<dyn DirLock>,
        replay: &mut dyn Replay,
    ) -> Result<(Log, Recovery), OpenError> {
        let dir = self.options.dir.clone();
        self.sync_all(&found)?;
        let takes_over = found.is_standby && !self.options.standby;
        let mut survey = Survey::of(source, &dir, found)?;
        let mut spares = self.spares(&survey.spares)?;
        let mut replaying = Replaying::into(replay, self.progress);
        let walked = walk(source, &dir, &mut survey, &mut replaying)?;
        source.close();
        let (records, kicks, damages) = replaying.finish();
        let Some(end) = walked.end.filter(|_| damages.is_empty()) else {
            return Err(OpenError::Damaged { dir, damages });
        };
        let mut files = survey.files;
        files.taken = survey.taken;
        let mut files = files.open(&*self.fs, &self.options.dir)?;
        files.epoch = files.epoch.saturating_add(self.options.new_epoch.into());
        // First of all: what the log says about files that it does not need is acted upon only once
        // it is durable.
        self.write_again(&files, &mut spares, survey.attested, &end)?;
        self.clear(&survey.unlisted)?;
        self.clear(&survey.useless)?;
        self.set_aside(&survey.segments_after_torn_tail)?;
        self.cut_to_ends(&files, &end)?;
        self.renew(&mut spares)?;
        let mut recovery = Recovery {
            clean_stop: end.clean_stop(),
            records,
            strangers: survey.strangers,
            ..Recovery::default()
        };
        let resumed = Resumed {
            files,
            active: Active {
                handle: end.handle,
                capacity: 0,
                previous: end.previous,
            },
            spares,
            next_id: match takes_over {
                true => after_loss(survey.next_id, self.now.wall_ns),
                false => survey.next_id,
            },
            kicks,
            end: end.position,
            is_marked: end.last.is_some_and(FrameKind::is_marker),
            clean_stop: end.clean_stop(),
            stamp: walked.stamp,
            lock,
        };
        let in_new_segment = takes_over || self.options.new_epoch;
        let resumed = self.go_on(resumed, &end, in_new_segment, &mut recovery)?;
        // The last step: a crash before it leaves a copy.
        self.end_standby(takes_over)?;
        let log = Log::resume(self.fs, self.options, resumed)?;
        Ok((log, recovery))
    }

    /// After a crash of the process alone, the page cache may show what the disk does not have:
    /// whatever is read and served from now on must be on the disk.
    fn sync_all(&self, found: &Found) -> Result<(), OpenError> {
        let dir = &self.options.dir;
        for segment in &found.segments {
            let path = dir.join(&segment.name);
            self.fs
                .open(&path, OpenMode::ReadWrite)
                .and_then(|file| file.sync())
                .map_err(|error| OpenError::io("sync", &path, &error))?;
        }
        self.fs
            .sync_dir(dir)
            .map_err(|error| OpenError::io("sync", dir, &error))
    }
}

fn random_log_id() -> io::Result<LogId> {
    let mut bytes = [0; 16];
    crate::sys::random::fill(&mut bytes)?;
    Ok(LogId(bytes))
}
