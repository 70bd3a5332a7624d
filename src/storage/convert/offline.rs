//! Compaction of a log that is not in use: removes all garbage at once.
//!
//! The log is opened as a server opens it, with recovery, and rewritten by the same compaction,
//! file by file, each crash-safe on its own: interrupted at any point it is a log on which a server
//! starts, and the next call continues. A server compacts in the background, and only when it is
//! worth it; this does it for every file with garbage. The open segment is sealed first, so that
//! its garbage goes too.
//!
//! Nothing that a client can see is changed: records are moved, or left out because they are no
//! longer needed; none is added, and no clock is read.

use crate::storage::log::files::Files;
use std::path::Path;
use std::sync::Arc;

use crate::storage::disk::{DirEntry, Fs, ReadFile};
use crate::storage::error::{OpenError, ReplayError};
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::names::{COMPACTION_NAME, STANDBY_MARKER, parse_spare_name};
use crate::storage::format::{Record, parse_file_name};
use crate::storage::inspect::JobIndex;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{Log, LogOptions};
use crate::storage::recover::{Progress, Recovery, Replay};
use crate::types::{Now, Place};

/// The log continues in a segment of this size, plus space for each file that its lists may name. A
/// server creates later segments in its own size.
const OPEN_SIZE: u32 = SEGMENT_SIZE_MIN;
const OPEN_SIZE_A_FILE: u32 = 128;
/// Dead bytes from which on the open segment is sealed.
const OPEN_GARBAGE_MIN: u64 = 4 << 10;
/// A file is rewritten when its dead bytes exceed its size divided by this.
const GARBAGE_DIVISOR: u64 = 64;

/// The result of a compaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Files of the log, and of space set aside for it, before.
    pub files_before: u64,
    /// Bytes of them.
    pub bytes_before: u64,
    /// The same after.
    pub files_after: u64,
    /// Bytes of them.
    pub bytes_after: u64,
    /// Files that could not be rewritten for lack of room on the disk, or that could not be read.
    pub left_alone: u64,
    /// Jobs in the log, before and after.
    pub jobs: u64,
    /// How the log had ended.
    pub recovery: Recovery,
}

/// Rewrite the log in `dir` so that only live records are left. Durable on return, and marked as
/// cleanly stopped.
///
/// # Errors
/// If the log is in use, damaged or missing, as for a server, or is the copy of a standby; then nothing
/// was changed. If the disk fails: the log is intact, and the call can be repeated.
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
    refuse_standby(&**fs, dir)?;
    let options = LogOptions {
        dir: dir.to_owned(),
        sync: SyncPolicy::Always,
        segment_size: OPEN_SIZE,
        cache_size: 0,
        log_id: None,
        new_epoch: false,
        standby: false,
        member: false,
        waker: None,
    };
    let mut replayed = Replayed(JobIndex::new());
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

/// Refuse the copy of a standby: who else writes there makes another log of it, and the standby could not
/// go on with it.
fn refuse_standby(fs: &dyn Fs, dir: &Path) -> Result<(), OpenError> {
    let names = fs
        .read_dir(dir)
        .map_err(|error| OpenError::io("list", dir, &error))?;
    let is_marker = |entry: &DirEntry| entry.is_file && entry.name == STANDBY_MARKER;
    if !names.iter().any(is_marker) {
        return Ok(());
    }
    let show = dir.display();
    Err(OpenError::Foreign {
        path: dir.to_owned(),
        what: format!(
            "this is the copy of a standby, which its server keeps; leave it as it is: the server \
             compacts it by itself. For a compact log of its own, run `bsd-wal backup {show} --output \
             BACKUP`, `bsd-wal restore BACKUP --output NEW` and `bsd-wal compact NEW`"
        ),
    })
}

/// The number of a log's files, including space set aside, and their bytes; 0 files if there is no
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

/// Notes which records are alive, and where.
struct Replayed(JobIndex);

impl Replay for Replayed {
    fn replay(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
    ) -> Result<(), ReplayError> {
        self.0.fold(files, place, record)
    }
}

struct Work {
    log: Log,
    jobs: JobIndex,
    now: Now,
    left_alone: u64,
}

impl Work {
    fn run(&mut self, progress: Progress<'_>) -> Result<(), OpenError> {
        // Only a server needs space set aside, and it sets it aside again.
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

    /// Continue in a new segment, if much of the open one is dead.
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

    /// Runs of neighbours to merge into one file each, if that saves anything.
    fn groups(&self) -> Vec<Vec<u32>> {
        let (mut groups, mut group, mut live) = (Vec::new(), Vec::new(), 0);
        let files = &self.log.files;
        // Merged files are at most as large as the largest existing one: a server chose that size.
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
        // Frames take some bytes, and so does a header.
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
