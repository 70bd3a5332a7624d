//! Compaction of a log that nobody uses: everything in it that is dead goes, at once.
//!
//! The log is opened as a server opens it, recovery included, and rewritten by the same compaction,
//! file by file, each crash-safe on its own: interrupted at any point it is a log on which a server
//! starts, and the next call goes on. What a server does in the background, and only when it is
//! worth it, is done here for every file that holds garbage; the open segment is sealed first, so
//! that what is dead in it goes too.
//!
//! Nothing that a client can see is changed: records are moved, or left out because nobody needs
//! them any more; none is added, and no clock is looked at.

use crate::storage::log::files::Files;
use std::path::Path;
use std::sync::Arc;

use crate::storage::disk::{Fs, ReadFile};
use crate::storage::error::OpenError;
use crate::storage::format::names::{COMPACTION_NAME, parse_spare_name};
use crate::storage::format::{Record, parse_file_name};
use crate::storage::inspect::Index as Jobs;
use crate::storage::log::spares::SEGMENT_SIZE_MIN;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{Log, LogOptions};
use crate::storage::recover::{Progress, Recovery, Replay};
use crate::types::{Now, Place};

/// The log goes on in a segment of this size, and of so much more for each file that its lists may
/// name; those that a server begins have the size that it is told.
const OPEN_SIZE: u32 = SEGMENT_SIZE_MIN;
const OPEN_SIZE_A_FILE: u32 = 128;
/// The open segment is sealed when so many bytes of it are dead.
const OPEN_GARBAGE_MIN: u64 = 4 << 10;
/// A file is rewritten when more than one in so many of its bytes is dead.
const GARBAGE_DIVISOR: u64 = 64;

/// What a compaction came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Files of the log, and space set aside for it, before.
    pub files_before: u64,
    /// Bytes of them.
    pub bytes_before: u64,
    /// The same after.
    pub files_after: u64,
    /// Bytes of them.
    pub bytes_after: u64,
    /// Files for whose rewriting there was no room on the disk, or that could not be read.
    pub left_alone: u64,
    /// Jobs in the log, before and after.
    pub jobs: u64,
    /// How the log had ended.
    pub recovery: Recovery,
}

/// Rewrite the log in `dir` so that only what is alive is left. Durable on return, and marked as
/// cleanly stopped.
///
/// # Errors
/// When the log is in use, damaged, or there is none, as for a server; nothing was changed then.
/// When the disk fails: the log is whole, and the call can be made again.
pub fn compact(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    now: Now,
    progress: Progress<'_>,
) -> Result<Compacted, OpenError> {
    let (files_before, bytes_before) = measure(&**fs, dir)?;
    if files_before == 0 {
        return Err(OpenError::Foreign {
            path: dir.to_owned(),
            what: "there is no log here: no file is called segment-…; give the directory that \
                   bsd-server's -b names"
                .to_owned(),
        });
    }
    let options = LogOptions {
        dir: dir.to_owned(),
        sync: SyncPolicy::Always,
        segment_size: OPEN_SIZE,
        cache_size: 0,
        log_id: None,
        new_epoch: false,
        waker: None,
    };
    let mut replayed = Replayed(Jobs::new());
    let (log, recovery) = Log::open(fs.clone(), options, now, &mut replayed, progress)?;
    let mut work = Work {
        log,
        jobs: replayed.0,
        now,
        left_alone: 0,
    };
    work.run(progress)?;
    let (left_alone, jobs) = (work.left_alone, work.jobs.len() as u64);
    work.log.close(now.wall_ns)?;
    let (files_after, bytes_after) = measure(&**fs, dir)?;
    Ok(Compacted {
        files_before,
        bytes_before,
        files_after,
        bytes_after,
        left_alone,
        jobs,
        recovery,
    })
}

/// How many files a log has, space set aside included, and their bytes; 0 files where there is no
/// segment.
fn measure(fs: &dyn Fs, dir: &Path) -> Result<(u64, u64), OpenError> {
    let mut names = fs
        .read_dir(dir)
        .map_err(|error| OpenError::io("list", dir, &error))?;
    let is_segment = |name: &str| parse_file_name(name).is_some();
    if !names.iter().any(|entry| is_segment(&entry.name)) {
        return Ok((0, 0));
    }
    names.retain(|entry| {
        let name = &entry.name;
        is_segment(name) || parse_spare_name(name).is_some() || name == COMPACTION_NAME
    });
    let bytes = names.iter().map(|entry| entry.size).sum();
    Ok((names.len() as u64, bytes))
}

/// Takes in which records are alive, and where.
struct Replayed(Jobs);

impl Replay for Replayed {
    fn replay(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
    ) -> Result<(), String> {
        self.0.fold(files, place, record)
    }
}

struct Work {
    log: Log,
    jobs: Jobs,
    now: Now,
    left_alone: u64,
}

impl Work {
    fn run(&mut self, progress: Progress<'_>) -> Result<(), OpenError> {
        // Space that was set aside is of use to a server alone, which sets it aside again.
        self.release_space()?;
        self.seal()?;
        let groups = self.groups();
        let size = |group: &Vec<u32>| -> u64 {
            let ends = group
                .iter()
                .map(|handle| self.log.files.get(*handle).entry.end);
            ends.map(u64::from).sum()
        };
        let sizes: Vec<u64> = groups.iter().map(size).collect();
        let (mut done, total) = (0, sizes.iter().sum());
        for (group, size) in groups.iter().zip(sizes) {
            progress(done, total);
            self.rewrite(group)?;
            done += size;
        }
        self.release_space()
    }

    fn release_space(&mut self) -> Result<(), OpenError> {
        let dir = &self.log.dir;
        let released = self.log.spares.release_all();
        released
            .map(drop)
            .map_err(|error| OpenError::io("give back the space set aside in", dir, &error))
    }

    /// Go on in a new segment, if much of the open one is dead.
    fn seal(&mut self) -> Result<(), OpenError> {
        let open = self.log.files.get(self.log.active.handle);
        if open.garbage() < OPEN_GARBAGE_MIN {
            return Ok(());
        }
        let names = OPEN_SIZE_A_FILE.saturating_mul(self.log.files.len() as u32);
        let size = OPEN_SIZE.saturating_add(names);
        let Some(spare) = self.log.reserve(size, size)? else {
            self.left_alone += 1;
            return Ok(());
        };
        self.log.spares.add(spare);
        self.log.rotate(0, self.now.wall_ns)?;
        Ok(())
    }

    /// Runs of neighbours that become one file each, where that saves anything.
    fn groups(&self) -> Vec<Vec<u32>> {
        let (mut groups, mut group, mut live) = (Vec::new(), Vec::new(), 0);
        let files = &self.log.files;
        // Merged files are as large as the largest that there is: a server chose that size.
        let ends = files.in_order().map(|handle| files.get(handle).entry.end);
        let merged_max = u64::from(ends.max().unwrap_or(0));
        for handle in files
            .in_order()
            .filter(|handle| *handle != self.log.active.handle)
        {
            let more = files.get(handle).live();
            if live + more > merged_max && !group.is_empty() {
                groups.push(std::mem::take(&mut group));
                live = 0;
            }
            group.push(handle);
            live += more;
        }
        groups.push(group);
        groups.retain(|group| {
            group.len() > 1 || group.iter().any(|handle| self.has_garbage(*handle))
        });
        groups
    }

    fn has_garbage(&self, handle: u32) -> bool {
        let file = self.log.files.get(handle);
        file.garbage() * GARBAGE_DIVISOR > u64::from(file.entry.end)
    }

    fn rewrite(&mut self, group: &[u32]) -> Result<(), OpenError> {
        let live: u64 = group
            .iter()
            .map(|handle| self.log.files.get(*handle).live())
            .sum();
        // Frames cost something, and so does a header.
        let room = u32::try_from((live + live / 512 + 4096).max(SEGMENT_SIZE_MIN.into()));
        let spare = match (live, room) {
            (1.., Ok(size)) => self.log.reserve(size, size)?,
            _ => None,
        };
        let is_done = match (live, spare) {
            (1.., None) => false,
            (_, spare) => self
                .log
                .rewrite(group, spare, &mut self.jobs, self.now.wall_ns)?,
        };
        if !is_done {
            self.left_alone += group.len() as u64;
        }
        Ok(())
    }
}
