//! Rotation: continuing in a new segment.
//!
//! The order is given by what a crash must find: the new segment is complete and durable, with a
//! list of all files, before it has a name; it has its name before the old one is sealed; and the
//! old one is synced before anything in the new one is acknowledged.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::storage::disk::errno::is_full;
use crate::storage::disk::{File, Fs, is_missing, write_all_at};
use crate::storage::error::StoreError;
use crate::storage::format::{
    EMPTY_FRAME_SIZE, Entries, Entry, FRAME_OVERHEAD_MAX, FrameBuilder, FrameKind, Identity,
    Record, SegmentHeader, Stamp, VERSION_MIN, segment_header,
};
use crate::storage::log::kicks::Kicks;
use crate::storage::log::spares::Spare;
use crate::storage::log::sync::SyncPolicy;
use crate::storage::log::{Active, Log};
use crate::types::{JobId, Position, SegmentId};

/// The first segment of a log has the segment size divided by this, so that a small queue is small
/// on the disk and a first start is quick.
const FIRST_SEGMENT_DIVISOR: u32 = 16;

impl Log {
    /// Continue in a new segment that has room for a record of `size` bytes. `Ok(false)`: the disk
    /// is full, and the log stays in this segment.
    pub(crate) fn rotate(&mut self, size: u64, wall_ns: u64) -> Result<bool, StoreError> {
        self.rotate_past(SegmentId(0), size, wall_ns)
    }

    /// The same; the new segment has a number greater than `past`.
    pub(in crate::storage::log) fn rotate_past(
        &mut self,
        past: SegmentId,
        size: u64,
        wall_ns: u64,
    ) -> Result<bool, StoreError> {
        assert!(!self.is_holding(), "a segment ends with what is written");
        self.budget.credit = 0;
        let need = size + FRAME_OVERHEAD_MAX as u64;
        let cost = self.segment_cost();
        let fits = |size: u32| need + cost <= u64::from(size);
        let Some(spare) = self.spares.take(fits) else {
            return Ok(false);
        };
        // The length of the old segment's last frames is known before they are written: so the new
        // segment's manifest can say where the old one ends.
        let old = self.files.get(self.active.handle);
        let (old_seed, old_file, old_entry) = (old.seed, old.file.clone(), old.entry);
        let seal_at = old_entry.end + self.frame.size() as u32;
        let mut entries = self.entries();
        if let Some(last) = entries.last_mut() {
            last.end = seal_at + EMPTY_FRAME_SIZE as u32;
        }
        let mut segment = self.next_segment(old_entry.first.max(past))?;
        let (entry, file, previous) = loop {
            match self.create_segment(&spare, segment, &entries, wall_ns) {
                Ok(made) => break made,
                Err(begun) if begun.is_taken() => {
                    begun.warn();
                    self.files.taken.add(segment, 0);
                    segment = self.next_segment(segment)?;
                }
                Err(NotBegun {
                    error,
                    path,
                    is_nameless: true,
                }) if is_full(&error) => {
                    tracing::warn!("no room to begin {}: {error}", path.display());
                    self.spares.note_lacking(&error);
                    self.spares.discard(spare);
                    return Ok(false);
                }
                Err(NotBegun { error, path, .. }) => {
                    return Err(self.fail(StoreError::new("begin the segment", &path, &error)));
                }
            }
        };

        if !self.frame.is_empty() {
            self.write_frame()?;
        }
        let mut seal = FrameBuilder::default();
        seal.begin(Vec::new(), old_seed, seal_at);
        let (seal, _) = seal.finish(FrameKind::Seal, self.durable, self.active.previous);
        self.write_at_end(&seal)?;
        if let Err(error) =
            old_file.set_size(u64::from(self.files.get(self.active.handle).entry.end))
        {
            let path = self.dir.join(old_entry.file_name());
            return Err(self.fail(StoreError::new("cut", &path, &error)));
        }
        match (&mut self.sync_thread, self.options.sync) {
            (Some(thread), SyncPolicy::Interval(_) | SyncPolicy::Never) => {
                thread.request(old_file, self.written);
            }
            _ => self.sync_now()?,
        }

        for trail in &self.trails {
            let end = self.files.get(self.active.handle).entry.end;
            trail.rotate(end, segment, file.clone());
        }
        let handle = self.files.add(entry, false, Position::ZERO, file);
        self.files.list(handle);
        self.files.set_open(handle);
        self.active = Active {
            handle,
            capacity: spare.size,
            previous,
        };
        let old_is_durable = self.durable == self.written;
        self.written = Position::new(segment, entry.end);
        if old_is_durable {
            self.set_durable(self.written);
        }
        Ok(true)
    }

    /// The number of the next segment: one that no file has, not even a stranger.
    fn next_segment(&mut self, last: SegmentId) -> Result<SegmentId, StoreError> {
        self.files.taken.next_after(last).ok_or_else(|| {
            let error = io::Error::other("no segment number is left");
            let dir = self.dir.clone();
            self.fail(StoreError::new("begin another segment in", &dir, &error))
        })
    }

    /// The entries of all files, in order.
    fn entries(&self) -> Vec<Entry> {
        self.files
            .in_order()
            .map(|handle| self.files.get(handle).entry)
            .collect()
    }

    /// Turn a spare into a segment: header and manifest, durable, before it gets its name.
    fn create_segment(
        &mut self,
        spare: &Spare,
        segment: SegmentId,
        entries: &[Entry],
        wall_ns: u64,
    ) -> Result<(Entry, Arc<dyn File>, u32), NotBegun> {
        let new = NewSegment {
            identity: Identity::new(self.files.log(), segment),
            epoch: self.files.epoch,
            entries,
            next_id: self.next_id,
            kicks: &self.kicks,
            durable: self.durable,
            stamp: self.stamps.own(),
            wall_ns,
        };
        let (end, checksum) = new.create(&*self.fs, &self.dir, spare)?;
        let entry = Entry {
            first: segment,
            last: segment,
            generation: 0,
            end,
        };
        Ok((entry, spare.file.clone(), checksum))
    }
}

/// The content of a segment before it gets its name.
pub(crate) struct NewSegment<'a> {
    pub(crate) identity: Identity,
    pub(crate) epoch: u32,
    pub(crate) entries: &'a [Entry],
    pub(crate) next_id: JobId,
    pub(crate) kicks: &'a Kicks,
    pub(crate) durable: Position,
    /// Up to which entry of a replicated log the segments before it go.
    pub(crate) stamp: Stamp,
    pub(crate) wall_ns: u64,
}

impl NewSegment<'_> {
    /// Write header and manifest into `spare`, make them durable, and give the file its name.
    /// Returns where the first frame of records goes, and the checksum of the manifest's frame.
    pub(crate) fn create(
        &self,
        fs: &dyn Fs,
        dir: &Path,
        spare: &Spare,
    ) -> Result<(u32, u32), NotBegun> {
        let header = SegmentHeader {
            version: VERSION_MIN,
            identity: self.identity,
            compacted: false,
            filtered_at: Position::ZERO,
            epoch: self.epoch,
            created_wall_ns: self.wall_ns,
        };
        let mut frame = FrameBuilder::default();
        frame.begin(
            Vec::new(),
            self.identity.seed(),
            segment_header::SIZE as u32,
        );
        frame.set_stamp(self.stamp);
        let entries = Entries::List(self.entries);
        frame.push(&Record::Manifest {
            next_id: self.next_id,
            entries,
        });
        self.kicks.records().for_each(|kick| {
            frame.push(&kick);
        });
        let (frame, checksum) = frame.finish(FrameKind::Data, self.durable, 0);
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&frame);
        let end = bytes.len() as u32;
        let path = dir.join(self.identity.file_name());
        if let Err(error) = write_start(spare, &bytes) {
            return Err(NotBegun {
                error,
                path,
                is_nameless: true,
            });
        }
        let not_begun = |error, is_nameless| NotBegun {
            error,
            path: path.clone(),
            is_nameless,
        };
        let synced = spare.file.sync();
        synced.map_err(|error| not_begun(error, false))?;
        let named = fs.rename(&spare.path, &path);
        named.map_err(|error| {
            let is_taken = error.kind() == io::ErrorKind::AlreadyExists;
            // A directory may need room for a name.
            let is_refused = is_full(&error) && is_missing(fs, &path);
            not_begun(error, is_taken || is_refused)
        })?;
        let name_synced = fs.sync_dir(dir);
        name_synced.map_err(|error| not_begun(error, false))?;
        Ok((end, checksum))
    }
}

/// Write the first bytes of a spare. If storage copies on write and is full, there is room only
/// after the space set aside is given up; then as much of it as possible is set aside again.
fn write_start(spare: &Spare, bytes: &[u8]) -> io::Result<()> {
    match write_all_at(&*spare.file, bytes, 0) {
        Err(error) if is_full(&error) => {
            spare.file.set_size(0)?;
            write_all_at(&*spare.file, bytes, 0)?;
            match spare.file.allocate(spare.size.into()) {
                Err(error) if !is_full(&error) => Err(error),
                _ => Ok(()),
            }
        }
        written => written,
    }
}

/// A segment could not be created.
pub(crate) struct NotBegun {
    pub(crate) error: io::Error,
    /// Its name.
    pub(crate) path: PathBuf,
    /// True if the segment certainly has no name and no sync has failed: then the spare can be used
    /// again, and the log can continue where it is. A segment that may have a name, on the disk or
    /// after a crash, says where the one before it ends: nothing may be written there any more.
    is_nameless: bool,
}

impl NotBegun {
    /// True if a file that is not the log's has the name.
    pub(crate) fn is_taken(&self) -> bool {
        self.is_nameless && self.error.kind() == io::ErrorKind::AlreadyExists
    }

    pub(crate) fn warn(&self) {
        let path = self.path.display();
        tracing::warn!(
            "{path} is there and is not this log's: it is left alone, and its number too"
        );
    }
}

/// The size of a log's first segment.
pub(crate) fn first_segment_size(segment_size: u32) -> u32 {
    (segment_size / FIRST_SEGMENT_DIVISOR)
        .max(1 << 20)
        .min(segment_size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};
    use crate::storage::log::sync::tests::{finish_syncs, is_busy, log, write};

    const SIZE: u32 = 64 << 10;

    fn set_aside(log: &mut Log) {
        let spare = log.reserve(SIZE, SIZE).unwrap().unwrap();
        log.spares.add(spare);
    }

    fn segment(log: &Log) -> SegmentId {
        log.files.get(log.active.handle).entry.first
    }

    /// Storage that copies on write has no room for overwriting the space set aside.
    #[test]
    fn a_disk_without_room_for_the_next_segment_leaves_the_log_where_it_is_and_of_use() {
        let disk = SimFs::new(1);
        let mut log = log(&disk, SyncPolicy::Always);
        let begun = segment(&log);
        set_aside(&mut log);
        disk.inject(Fault::fail(OpKind::Write, Errno::NOSPC).for_ever());
        assert!(!log.rotate(0, 1).unwrap());
        disk.clear_faults();
        assert_eq!(segment(&log), begun);
        let written = write(&mut log);
        assert_eq!(finish_syncs(&mut log), written);
        set_aside(&mut log);
        assert!(log.rotate(0, 1).unwrap() && segment(&log) > begun);
    }

    /// A directory may need room for a name.
    #[test]
    fn g05_a_name_without_room_leaves_the_log_where_it_is_and_of_use() {
        let disk = SimFs::new(1);
        let mut log = log(&disk, SyncPolicy::Always);
        let begun = segment(&log);
        set_aside(&mut log);
        disk.inject(Fault::fail(OpKind::Rename, Errno::NOSPC));
        assert!(!log.rotate(0, 1).unwrap());
        assert_eq!(segment(&log), begun);
        let written = write(&mut log);
        assert_eq!(finish_syncs(&mut log), written);
        set_aside(&mut log);
        assert!(log.rotate(0, 1).unwrap() && segment(&log) > begun);
        set_aside(&mut log);
        disk.inject(Fault::fail(OpKind::Rename, Errno::IO));
        log.rotate(0, 1).unwrap_err();
    }

    /// The exact failure is unknown: nothing more is acknowledged.
    #[test]
    fn a_segment_that_cannot_be_begun_for_another_reason_is_the_end() {
        let disk = SimFs::new(1);
        let mut log = log(&disk, SyncPolicy::Always);
        set_aside(&mut log);
        disk.inject(Fault::fail(OpKind::Write, Errno::IO));
        log.rotate(0, 1).unwrap_err();
        assert!(log.commit(true).is_err());
    }

    #[test]
    fn where_no_reply_waits_the_thread_syncs_the_segment_that_is_left() {
        for policy in [SyncPolicy::Interval(50), SyncPolicy::Never] {
            let mut log = log(&SimFs::new(1), policy);
            let left = write(&mut log);
            set_aside(&mut log);
            assert!(log.durable() < left && !is_busy(&log));
            assert!(log.rotate(0, 1).unwrap() && is_busy(&log));
            assert!(finish_syncs(&mut log) > left);
        }
    }
}
