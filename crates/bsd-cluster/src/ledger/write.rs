//! How a commit gets to the disk: its frames are formed, written behind the end of the newest file,
//! and synced. When the file's space is used up, or something lies behind its end, the ledger
//! continues in a new file, whose space was set aside before.

use super::files::{
    LedgerFile, NewFile, SPARE_NAME, Spare, failed, file_name, full_or_failed, make_spare,
};
use super::format::{Before, ENTRY_SIZE, FramePlace, Kind, NewBatch, Opening, put_frame};
use super::held::Place;
use super::{HardState, Ledger, LedgerError};
use crate::member::Members;
use bsd::ErrorClass;
use bsd::storage::disk::write_all_at;

/// Room beyond the bytes that are written at once, of a file that is made when the disk is nearly
/// full, bytes.
const LEAST_ROOM: u64 = 64 << 10;
/// A commit of fewer bytes than this is written onto space that was written to before …
const SMALL_COMMIT: u64 = 128 << 10;
/// … which is made for this number of commits like it, in bytes of this range.
const COMMITS_AHEAD: u64 = 32;
const AHEAD: (u64, u64) = (256 << 10, 1 << 20);

impl Ledger {
    pub(super) fn commit_durably(&mut self) -> Result<(), LedgerError> {
        let mut formed = self.form();
        let LedgerFile { end, capacity, .. } = *self.active();
        let is_over = end + self.buffer.len() as u64 > capacity && end > self.opening_end;
        if (self.is_torn || is_over) && self.rotate()? {
            formed = self.form();
        }
        self.write_zeros_ahead()?;
        self.write()?;
        let file = self.active().file.clone();
        if let Err(error) = file.sync() {
            let path = self.dir.join(file_name(self.active().number));
            return Err(self.latch(failed("sync", &path, &error)));
        }
        self.settle(formed);
        self.prepare_spare();
        Ok(())
    }

    /// Write zeros behind the place of a small commit, if that is on space that was never written to.
    ///
    /// When such space is written to, the file system has to note that, and a sync waits for its
    /// journal. With zeros it does so once for many commits. Where they have no room nothing is lost.
    fn write_zeros_ahead(&mut self) -> Result<(), LedgerError> {
        let size = self.buffer.len() as u64;
        let LedgerFile {
            end,
            touched,
            capacity,
            ..
        } = *self.active();
        let from = end + size;
        if from <= touched || from >= capacity || size >= SMALL_COMMIT {
            return Ok(());
        }
        let ahead = (size * COMMITS_AHEAD).clamp(AHEAD.0, AHEAD.1);
        let zeros = vec![0; ahead.min(capacity - from) as usize];
        let active = self.active();
        let touched = match write_all_at(&*active.file, &zeros, from) {
            Ok(()) => from + zeros.len() as u64,
            // The disk copies on write.
            Err(error) if ErrorClass::of(&error).is_short() => capacity,
            Err(error) => {
                let path = self.dir.join(file_name(active.number));
                return Err(self.latch(failed("write", &path, &error)));
            }
        };
        let active = self.files.len() - 1;
        self.files[active].touched = touched;
        Ok(())
    }

    /// Write the formed bytes behind the end of the file. If it fails for lack of room, a part of
    /// them may be there; the next attempt is written over it.
    fn write(&mut self) -> Result<(), LedgerError> {
        let active = self.active();
        if let Err(error) = write_all_at(&*active.file, &self.buffer, active.end) {
            let path = self.dir.join(file_name(active.number));
            return Err(self.latch(full_or_failed("write", &path, &error)));
        }
        Ok(())
    }

    /// Take over the formed batch as durable.
    fn settle(&mut self, formed: Formed) {
        let size = self.buffer.len() as u64;
        let active = self.files.len() - 1;
        let active = &mut self.files[active];
        active.end += size;
        active.crc = formed.crc;
        self.durable = active.end;
        formed
            .places
            .into_iter()
            .for_each(|place| self.held.settle(place));
        self.written_state = self.state;
        let last = self.last_index();
        self.written_last = (last, self.held.term(last).unwrap_or(0));
        self.pending = None;
        self.pending_members.clear();
        self.held.forget(self.sizes.recent, None);
        self.buffer.clear();
        self.buffer.shrink_to(4 * self.sizes.frame);
    }

    /// Only the commit index is new. It says to the one that reads the file that all before it was
    /// durable; that is worth a write, and no error if there is no room for it.
    pub(super) fn note_commit(&mut self) -> Result<(), LedgerError> {
        if self.is_torn {
            return Ok(());
        }
        let formed = self.form();
        if self.active().end + self.buffer.len() as u64 > self.active().capacity {
            return Ok(());
        }
        match self.write() {
            Err(LedgerError::Full(_)) => return Ok(()),
            written => written?,
        }
        let (end, active) = (self.buffer.len() as u64, self.files.len() - 1);
        self.files[active].end += end;
        self.files[active].crc = formed.crc;
        self.written_state = self.state;
        Ok(())
    }

    /// Form, in the buffer, the frames of all that is new, for the end of the file. Several if the
    /// entries are many: a reader has to hold a whole one. Each is a state that may be found alone.
    fn form(&mut self) -> Formed {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let active = self.active();
        let mut place = FramePlace {
            seed: active.seed,
            at: active.end,
            durable: self.durable,
            previous: active.crc,
        };
        let new_members = self
            .members
            .iter()
            .filter(|(index, _)| self.pending_members.binary_search(index).is_ok());
        let mut members: Vec<_> = new_members.map(|(index, it)| (*index, it)).collect();
        let mut places = Vec::new();
        let first = self.pending.unwrap_or(self.last_index() + 1);
        let mut rest = (first..=self.last_index()).filter_map(|index| self.held.recent(index));
        let mut next = rest.next();
        loop {
            let (mut entries, mut size) = (Vec::new(), 0);
            while let Some(entry) = next
                && (entries.is_empty() || size < self.sizes.frame)
            {
                size += ENTRY_SIZE + entry.data.len() + entry.context.len();
                entries.push(entry);
                next = rest.next();
            }
            let range = entries.first().zip(entries.last());
            let range = range.map(|(first, last)| (first.index, last.index));
            let last = range.map_or(self.last_index(), |range| range.1);
            let batch = NewBatch {
                state: HardState {
                    commit: self.state.commit.min(last),
                    ..self.state
                },
                previous_term: range.map_or(0, |it| self.held.term(it.0 - 1).unwrap_or(0)),
                members: std::mem::take(&mut members),
                entries: &entries,
            };
            let from = buffer.len();
            let mut size = 0;
            place.previous = put_frame(&mut buffer, Kind::Batch, place, |bytes| {
                let from = bytes.len();
                batch.encode(bytes);
                size = (bytes.len() - from) as u32;
            });
            places.extend(range.map(|(first, last)| Place {
                file: active.number,
                at: place.at,
                size,
                first,
                last,
            }));
            place.at += (buffer.len() - from) as u64;
            if next.is_none() {
                break;
            }
        }
        self.buffer = buffer;
        Formed {
            places,
            crc: place.previous,
        }
    }

    /// Continue in a new file. `false`: there is no room, and the file that is there can be used.
    fn rotate(&mut self) -> Result<bool, LedgerError> {
        let active = self.active();
        let path = self.dir.join(file_name(active.number));
        // All of it must be durable before another file says where it ends.
        if active.end > self.durable
            && let Err(error) = active.file.sync()
        {
            return Err(self.latch(failed("sync", &path, &error)));
        }
        let (end, file) = (active.end, active.file.clone());
        // Who waits for this commit comes with its commit index: without that a start would have a
        // membership of an entry that it does not know to be committed.
        let is_written = |it: &&(u64, Members)| self.pending_members.binary_search(&it.0).is_err();
        let members = self.members.iter().filter(is_written).cloned();
        let opening = Opening {
            state: self.written_state,
            before: Some(Before {
                number: active.number,
                end,
                crc: active.crc,
            }),
            index: self.written_last.0,
            term: self.written_last.1,
            members: members.collect(),
        };
        self.durable = end;
        let was_torn = self.is_torn;
        let begun = self
            .take_spare()
            .and_then(|spare| self.begin(spare, &opening));
        match begun {
            Err(LedgerError::Full(_)) if !was_torn => return Ok(false),
            begun => begun?,
        }
        // The space behind its end is not needed. What is there means nothing. On a full disk it stays:
        // when this file goes, another one as large has room.
        if !was_torn
            && !self.lacks_spare
            && let Err(error) = file.set_size(end)
        {
            tracing::warn!("could not cut {}: {error}", path.display());
        }
        Ok(true)
    }

    /// Turn the spare into the next file. Durable on return.
    pub(super) fn begin(&mut self, spare: Spare, opening: &Opening) -> Result<(), LedgerError> {
        let new = NewFile {
            fs: &*self.fs,
            dir: &self.dir,
            identity: self.identity,
            number: self.active().number + 1,
            opening,
        };
        let file = new.create(spare).map_err(|error| self.latch(error))?;
        (self.opening_end, self.durable, self.spare_from) = (file.end, file.end, 0);
        self.is_torn = false;
        self.files.push_back(file);
        Ok(())
    }

    /// Space for a new file: what was set aside before, or what there is now.
    pub(super) fn take_spare(&mut self) -> Result<Spare, LedgerError> {
        if let Some(spare) = self.spare.take() {
            return Ok(spare);
        }
        let least = self.buffer.len() as u64 + LEAST_ROOM;
        let sizes = self.sizes.of_files().chain([least]);
        make_spare(&*self.fs, &self.dir, sizes).map_err(|error| {
            let path = self.dir.join(SPARE_NAME);
            self.latch(full_or_failed("set aside", &path, &error))
        })
    }

    /// Set space aside for the next file: a little at once, so that the ledger goes on when the disk is
    /// full, and the rest when half of this file is used. After a failure it is tried again later.
    pub(super) fn prepare_spare(&mut self) {
        let LedgerFile { end, capacity, .. } = *self.active();
        let is_soon = end >= capacity / 2;
        let has = self.spare.as_ref().map_or(0, |spare| spare.size);
        let sizes = self.sizes.of_files().filter(|size| *size > has);
        let sizes: Vec<u64> = match is_soon {
            true => sizes.collect(),
            false => sizes.last().filter(|_| has == 0).into_iter().collect(),
        };
        if sizes.is_empty() || end < self.spare_from {
            return;
        }
        let made = match &mut self.spare {
            Some(spare) => spare.grow(sizes),
            None => make_spare(&*self.fs, &self.dir, sizes).map(|spare| self.spare = Some(spare)),
        };
        // Files are small, and many, while there is little room: it is said once.
        if let Err(error) = &made
            && !self.has_lacked_spare
            && self.spare.is_none()
        {
            let path = self.dir.join(SPARE_NAME);
            tracing::warn!("could not set aside {}: {error}", path.display());
            self.has_lacked_spare = true;
        }
        self.lacks_spare = self.spare.is_none();
        self.spare_from = match made {
            Ok(()) => 0,
            Err(_) => end + self.sizes.file / 16,
        };
    }
}

/// The batch formed in the buffer.
struct Formed {
    /// Where the entries will be.
    places: Vec<Place>,
    /// The checksum of the last frame.
    crc: u32,
}
