//! Changes of a start on the disk, after everything has been read and nothing is damaged: it
//! removes the leftovers of interrupted work and makes the log ready for appending.

use std::cmp::Ordering;
use std::io;
use std::path::PathBuf;

use super::{Beginning, Opening, Recovery};
use crate::ErrorClass;
use crate::storage::disk::errno::is_full;
use crate::storage::disk::{File, OpenMode, ReadFile, read_exact_at, write_all_at};
use crate::storage::error::{OpenError, StoreError};
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::names::{aside_name, cut_name};
use crate::storage::format::{EMPTY_FRAME_SIZE, FrameBuilder, FrameKind, entry};
use crate::storage::log::Resumed;
use crate::storage::log::files::Files;
use crate::storage::log::spares::Spares;
use crate::storage::read::LogEnd;
use crate::storage::read::scan::End;
use crate::types::Position;

/// Bytes that are written again in one call.
const REWRITE_SIZE: usize = 1 << 20;
/// Bytes of the smallest segment in which a log can continue, without its list.
const LAST_RESORT_SIZE: u32 = 1 << 10;

/// Storage that copies on write needs room for that, and may have none.
fn cannot_write_again(path: PathBuf, error: &io::Error) -> OpenError {
    let what_next = if is_full(error) {
        "; make room on that disk, then start again: nothing is lost"
    } else {
        ""
    };
    OpenError::Io(StoreError {
        doing: "write again",
        path,
        cause: format!("{error}{what_next}"),
        class: ErrorClass::of(error),
    })
}

/// Pass `size` bytes of `file`, starting at `from`, to `write`, piece by piece, with their offsets
/// from there.
fn copy(
    file: &dyn ReadFile,
    from: u64,
    size: u64,
    write: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < size {
        bytes.resize(REWRITE_SIZE.min((size - at) as usize), 0);
        read_exact_at(file, &mut bytes, from + at)?;
        write(&bytes, at)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// True if `saved` holds all `size` bytes of the tail at `at` of `file`. An earlier start that did
/// not finish may have saved it, and may since have begun to write a seal over its first bytes. It
/// saved the tail durably before that, so if the bytes after the seal differ, the tail is still as
/// it was found.
fn is_saved(saved: &dyn ReadFile, file: &dyn ReadFile, at: u32, size: u64) -> io::Result<bool> {
    if saved.size()? < size {
        return Ok(false);
    }
    let mut is_same = true;
    copy(file, at.into(), size, &mut |bytes, from| {
        let mut other = vec![0; bytes.len()];
        read_exact_at(saved, &mut other, from)?;
        let seal = (EMPTY_FRAME_SIZE as u64).saturating_sub(from) as usize;
        let seal = seal.min(bytes.len());
        let is_empty = seal > 0 && other[..seal].iter().all(|byte| *byte == 0);
        is_same &= bytes[seal..] == other[seal..] && !is_empty;
        Ok(())
    })?;
    Ok(is_same)
}

/// Make sure that the space after the end of the open segment, at `end`, exists: a copy of the
/// directory may have left it out. Returns how many bytes of it there are.
fn have_space(file: &dyn File, size: u32, end: u32) -> io::Result<u32> {
    match file.allocate(size.into()) {
        Ok(()) => Ok(size),
        Err(error) if is_full(&error) => {
            // The block in which the log ends exists, but nothing after it.
            let size = end.next_multiple_of(4096).min(size);
            file.set_size(size.into())?;
            Ok(size)
        }
        Err(error) => Err(error),
    }
}

impl Opening<'_> {
    /// Remove leftovers of interrupted work.
    pub(super) fn clear(&self, names: &[String]) -> Result<(), OpenError> {
        for name in names {
            let path = self.options.dir.join(name);
            tracing::info!("removing {}: the log does not need it", path.display());
            self.fs
                .remove_file(&path)
                .map_err(|error| OpenError::io("remove", &path, &error))?;
        }
        Ok(())
    }

    /// Give back the space after the ends of all files except the open one: it was set aside for
    /// them, and a crash has kept it.
    pub(super) fn cut_to_ends(&self, files: &Files, end: &LogEnd) -> Result<(), OpenError> {
        for handle in files.in_order().filter(|handle| *handle != end.handle) {
            let file = files.get(handle);
            let size = u64::from(file.entry.end);
            let cut = || {
                if file.file.size()? > size {
                    file.file.set_size(size)
                } else {
                    Ok(())
                }
            };
            let path = self.options.dir.join(file.entry.file_name());
            cut().map_err(|error| OpenError::io("cut", &path, &error))?;
        }
        Ok(())
    }

    /// Set aside the segments after a torn tail, newest first: if a crash interrupts this, no list
    /// names a segment that is gone.
    pub(super) fn set_aside(&self, segments_after_torn_tail: &[String]) -> Result<(), OpenError> {
        let dir = &self.options.dir;
        for name in segments_after_torn_tail {
            let path = dir.join(name);
            self.move_aside(name)
                .and_then(|()| self.fs.sync_dir(dir))
                .map_err(|error| OpenError::io("set aside", &path, &error))?;
        }
        Ok(())
    }

    /// Rename a segment; one with the same number may have been set aside before.
    fn move_aside(&self, name: &str) -> io::Result<()> {
        let dir = &self.options.dir;
        let mut times = 1;
        loop {
            let aside = dir.join(aside_name(name, times));
            match self.fs.rename(&dir.join(name), &aside) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && times < u16::MAX => {
                    times += 1;
                }
                renamed => return renamed,
            }
        }
    }

    /// Write the frames between `durable` and `end` once more, and sync them. After a failed sync,
    /// the system treats their bytes as written: they can be read now, and are lost in the next
    /// power cut. This includes frames without records: otherwise later frames would follow a hole.
    pub(super) fn write_again(
        &self,
        files: &Files,
        spares: &mut Spares,
        durable: Position,
        end: &LogEnd,
    ) -> Result<(), OpenError> {
        if end.position <= durable {
            return Ok(());
        }
        let handles: Vec<u32> = files.in_order().collect();
        let upto = handles
            .iter()
            .position(|handle| *handle == end.handle)
            .map_or(0, |at| at + 1);
        for handle in &handles[..upto] {
            let file = files.get(*handle);
            let until = if *handle == end.handle {
                end.at()
            } else {
                file.entry.end
            };
            let from = match file.entry.first.cmp(&durable.segment()) {
                Ordering::Less => continue,
                Ordering::Equal => durable.offset(),
                Ordering::Greater => 0,
            };
            // A file that compaction wrote was durable before the log named it.
            if !file.compacted && from < until {
                let (file, name) = (file.file.clone(), file.entry.file_name());
                let path = self.options.dir.join(name);
                self.rewrite(&*file, from, until, spares)
                    .map_err(|error| cannot_write_again(path, &error))?;
            }
        }
        Ok(())
    }

    fn rewrite(
        &self,
        file: &dyn File,
        from: u32,
        until: u32,
        spares: &mut Spares,
    ) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut at = from;
        while at < until {
            bytes.resize(REWRITE_SIZE.min((until - at) as usize), 0);
            read_exact_at(file, &mut bytes, at.into())?;
            let mut written = write_all_at(file, &bytes, at.into());
            if written.as_ref().is_err_and(is_full) && spares.release_all()? {
                written = write_all_at(file, &bytes, at.into());
            }
            written?;
            at += bytes.len() as u32;
        }
        file.sync()
    }

    /// Make the log ready for appending: after its last frame, or in a new segment if a torn tail
    /// follows that frame, if a new epoch begins, or if ids are left out.
    pub(super) fn go_on(
        &self,
        mut log: Resumed,
        end: &LogEnd,
        in_new_segment: bool,
        recovery: &mut Recovery,
    ) -> Result<Resumed, OpenError> {
        let file = log.files.get(end.handle);
        let first = file.entry.first;
        if end.end == End::Clean && !in_new_segment {
            let path = self.options.dir.join(file.entry.file_name());
            let size = file
                .file
                .size()
                .map_err(|error| OpenError::io("read", &path, &error))?;
            let size = u32::try_from(size).unwrap_or(u32::MAX);
            log.active.capacity = have_space(&*file.file, size, end.at())
                .map_err(|error| OpenError::io("set space aside in", &path, &error))?;
            return Ok(log);
        }
        let next = log.files.taken.next_after(first).ok_or_else(|| {
            let error = io::Error::other("no segment number is left");
            OpenError::io("begin another segment in", &self.options.dir, &error)
        })?;
        self.make_space_for_segment(&mut log, end)?;
        self.cut(&log, end, recovery)?;
        log.files
            .set_end(end.handle, end.at() + EMPTY_FRAME_SIZE as u32);
        let (active, start) = self.begin_segment(
            &mut log.files,
            &mut log.spares,
            Beginning {
                segment: next,
                next_id: log.next_id,
                kicks: &log.kicks,
                durable: end.position,
                stamp: log.stamp,
                size: self.options.segment_size,
            },
        )?;
        self.seal(&log.files, end)?;
        Ok(Resumed {
            active,
            end: start,
            is_marked: false,
            clean_stop: false,
            ..log
        })
    }

    /// Save the bytes of a torn tail.
    fn cut(&self, log: &Resumed, end: &LogEnd, recovery: &mut Recovery) -> Result<(), OpenError> {
        let size = u64::from(end.garbage.saturating_sub(end.at()));
        if size == 0 {
            return Ok(());
        }
        let file = log.files.get(end.handle);
        let name = cut_name(file.entry.first, end.at());
        let path = self.options.dir.join(&name);
        let save = || -> io::Result<()> {
            let saved = match self.fs.open(&path, OpenMode::CreateNew) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    let saved = self.fs.open(&path, OpenMode::ReadWrite)?;
                    if is_saved(&*saved, &*file.file, end.at(), size)? {
                        return Ok(());
                    }
                    saved
                }
                other => other?,
            };
            copy(&*file.file, end.at().into(), size, &mut |bytes, at| {
                write_all_at(&*saved, bytes, at)
            })?;
            saved.sync()
        };
        let saved = match save() {
            Ok(()) => Some(name),
            // Nothing in it was acknowledged: a full disk must not keep the server from starting.
            Err(error) => {
                tracing::warn!(
                    "the torn tail could not be saved as {}: {error}",
                    path.display()
                );
                // Half of it has no use, and the room is needed. It may not exist at all.
                let _ = self.fs.remove_file(&path);
                None
            }
        };
        recovery.torn = Some((size, saved));
        Ok(())
    }

    /// Get a spare for the segment that follows a torn tail. On a full disk, the tail itself and
    /// the other space set aside in its file provide the room: nothing in them was ever
    /// acknowledged.
    fn make_space_for_segment(&self, log: &mut Resumed, end: &LogEnd) -> Result<(), OpenError> {
        if log.spares.len() > 0 {
            return Ok(());
        }
        let reserved = log
            .spares
            .reserve(self.options.segment_size, SEGMENT_SIZE_MIN)?;
        if let Some(spare) = reserved {
            log.spares.add(spare);
            return Ok(());
        }
        let file = log.files.get(end.handle);
        let path = self.options.dir.join(file.entry.file_name());
        let size = u64::from(end.at()) + EMPTY_FRAME_SIZE as u64;
        tracing::warn!(
            "the disk is full: the torn tail of {} makes room",
            path.display()
        );
        file.file
            .set_size(size)
            .map_err(|error| OpenError::io("cut", &path, &error))?;
        let size_min = LAST_RESORT_SIZE + (log.files.len() * entry::SIZE) as u32;
        let reserved = log.spares.reserve(SEGMENT_SIZE_MIN, size_min)?;
        if let Some(spare) = reserved {
            log.spares.add(spare);
        }
        Ok(())
    }

    /// Write into the segment with the torn tail that the log continues in the next one, so that
    /// the loss of that one would be noticed, and give back the space after it. Overwrites only
    /// what was never acknowledged.
    fn seal(&self, files: &Files, end: &LogEnd) -> Result<(), OpenError> {
        let file = files.get(end.handle);
        let path = self.options.dir.join(file.entry.file_name());
        let mut seal = FrameBuilder::default();
        seal.begin(Vec::new(), file.seed, end.at());
        let (seal, _) = seal.finish(FrameKind::Seal, end.position, end.previous);
        write_all_at(&*file.file, &seal, end.at().into())
            .and_then(|()| file.file.set_size(u64::from(end.at()) + seal.len() as u64))
            .and_then(|()| file.file.sync())
            .map_err(|error| OpenError::io("seal", &path, &error))
    }
}
