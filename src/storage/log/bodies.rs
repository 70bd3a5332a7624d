//! Bodies of jobs that are read back from the log: from memory where they are there, else from a file.

use crate::storage::disk::read_exact_at;
use crate::storage::format::{Record, put_size};
use crate::storage::log::Log;
use crate::storage::log::body::{BodyCheck, BodyError, InLog};
use crate::types::{JobId, Place, Position};

/// The buffer of a larger body is dropped when the next one is read.
const SCRATCH_SIZE_MAX: usize = 1 << 20;

impl Log {
    /// The body of the job `id`, whose put record lies at `place`. It is checked, unless it has
    /// been in memory since it was put.
    pub fn read_body(
        &mut self,
        place: Place,
        id: JobId,
        tube_size: usize,
        body_size: usize,
    ) -> Result<&[u8], BodyError> {
        let size = put_size(tube_size, body_size);
        let body = size - body_size..;
        if place.file == self.active.handle
            && !self.frame.is_empty()
            && place.offset >= self.frame.offset()
        {
            let from = (place.offset - self.frame.offset()) as usize;
            return Ok(&self.frame.bytes()[from..from + size][body]);
        }
        let file = self.files.get(place.file);
        let position = Position::new(file.entry.first, place.offset);
        let at = || format!("{} at byte {}", file.entry.file_name(), place.offset);
        let held = self.mode.held();
        if let Some(record) = held.and_then(|held| held.get(position, size)) {
            return Ok(&record[body]);
        }
        if !file.compacted
            && let Some(record) = self.cache.get(position, size)
        {
            return Ok(&record[body]);
        }
        if self.scratch.capacity() > SCRATCH_SIZE_MAX.max(size) {
            self.scratch = Vec::new();
        }
        self.scratch.resize(size, 0);
        if let Err(error) = read_exact_at(&*file.file, &mut self.scratch, place.offset.into()) {
            return Err(BodyError::of_read(at(), &error));
        }
        match Record::decode_put(&self.scratch, file.seed, place.offset) {
            Some(Record::Put {
                id: found, body, ..
            }) if found == id && body.len() == body_size => Ok(&self.scratch[size - body_size..]),
            _ => {
                let at = at();
                let lost = place.offset..place.offset.saturating_add(size as u32);
                self.files.note_damage(place.file, &[lost], None);
                Err(BodyError::Damaged { at })
            }
        }
    }

    /// Begin to read the same body piece by piece. Nothing is read before [`Log::written`] has come to
    /// [`BodyCheck::end`].
    #[must_use]
    pub fn check_body(
        &self,
        place: Place,
        id: JobId,
        tube_size: usize,
        body_size: usize,
    ) -> BodyCheck {
        let file = self.files.get(place.file);
        let record = InLog {
            file: file.file.clone(),
            loan: file.loan.clone(),
            entry: file.entry,
            seed: file.seed,
            offset: place.offset,
            head_size: put_size(tube_size, 0),
            body_size,
        };
        BodyCheck::new(id, record)
    }

    /// A check has found the put record at `place` damaged, or it could not be read.
    pub(crate) fn note_damaged_put(&mut self, place: Place, tube_size: usize, body_size: usize) {
        let size = put_size(tube_size, body_size) as u32;
        let lost = place.offset..place.offset.saturating_add(size);
        self.files.note_damage(place.file, &[lost], None);
    }
}
