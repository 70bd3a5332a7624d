//! Rewriting files without their dead records: the copy, until it is durable under its name.
//!
//! A file, or a run of small neighbours, is copied to a new generation at the same place in the
//! order, without its dead records. So a record never overtakes another record of the same job. The
//! index is asked by place which records are alive: a record that the index does not point at is
//! dead.
//!
//! The remains of a crash at each step:
//! 1. copying into a file called `compaction`: it is removed at the next start;
//! 2. that file is synced, named as the new generation, and the directory synced: the list does not
//!    name it, so the next start removes it;
//! 3. a switch record is durable in the log: the list names the new file; the old ones are
//!    removed;
//! 4. the old files are removed, and the space after the end of the new one is given back: if the
//!    disk forgets any of this, the next start does it again.
//!
//! Later records may have killed records that the copy left out. Those later records come before
//! the switch in the log: if the switch is durable, so are they.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::subject::{Asked, Subject};
use crate::storage::disk::{File, Fs, read_exact_at, write_all_at};
use crate::storage::format::names::COMPACTION_NAME;
use crate::storage::format::{
    Entry, FrameBuilder, FrameKind, Identity, Record, Seed, SegmentHeader, VERSION_MIN,
    segment_header,
};
use crate::storage::log::files::Files;
use crate::storage::log::spares::Spare;
use crate::storage::read::scan::{Reader, Step, describe};
use crate::storage::read::{Piece, salvage};
use crate::types::{Place, Position, SegmentId};

/// Size of a batch of records that are examined, about, in bytes.
const BATCH_SIZE: usize = 256 << 10;
/// Size of the frames of the new file, about, in bytes.
const FRAME_SIZE: u64 = 256 << 10;

/// Why a compaction was abandoned. The log is unchanged.
#[derive(Debug)]
pub(crate) enum CompactionError {
    /// A disk operation failed.
    Io(io::Error),
    /// A checksum is wrong in a file that is part of the log.
    Damaged(String),
    /// The live records do not fit into the space set aside.
    NoRoom,
    /// A file that is not the log's has the name that the copy should get.
    NameTaken(SegmentId, u32),
    /// The directory could not be synced. The system may have dropped what it could not write, and
    /// reports that only once: the next sync of the directory would succeed without meaning
    /// anything.
    NameNotSynced(io::Error),
}

impl From<io::Error> for CompactionError {
    fn from(error: io::Error) -> CompactionError {
        CompactionError::Io(error)
    }
}

/// A file to be rewritten.
#[derive(Debug)]
struct Input {
    handle: u32,
    entry: Entry,
    seed: Seed,
    file: Arc<dyn File>,
}

/// Records to be asked about.
#[derive(Debug)]
struct Batch {
    handle: u32,
    /// The offset and subject of each record.
    records: Vec<(u32, Subject)>,
}

impl Batch {
    /// The places and subjects of its records.
    fn subjects(&self) -> Vec<Asked> {
        let place = |offset| Place {
            file: self.handle,
            offset,
        };
        let records = self.records.iter();
        let each = records.map(|(offset, subject)| (place(*offset), subject.clone()));
        each.collect()
    }

    /// Collect the sound records of a damaged stretch, and their bytes. Returns the byte ranges in
    /// which no sound record lies.
    fn salvage(
        &mut self,
        input: &Input,
        stretch: Range<u32>,
        sizes: &mut Vec<(u32, u32)>,
        records: &mut Vec<u8>,
    ) -> io::Result<Vec<Range<u32>>> {
        let first = sizes.len();
        salvage(&*input.file, input.seed, stretch.clone(), &mut |piece| {
            if let Piece::Record(offset, record) = piece {
                self.records.push((offset, Subject::of(&record)));
                sizes.push((offset, record.size() as u32));
            }
        })?;
        let (mut lost, mut at) = (Vec::new(), stretch.start);
        for (offset, size) in &sizes[first..] {
            let from = records.len();
            records.resize(from + *size as usize, 0);
            read_exact_at(&*input.file, &mut records[from..], u64::from(*offset))?;
            // Uses the bytes that were already read: a failing disk may return other bytes the
            // second time.
            if Record::decode_first(&records[from..], input.seed, *offset).is_none() {
                return Err(io::Error::other("the disk gives other bytes each time"));
            }
            lost.push(at..*offset);
            at = offset + size;
        }
        lost.push(at..stretch.end);
        Ok(lost)
    }
}

/// A record that was copied.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) subject: Subject,
    pub(crate) from: Place,
    /// Its offset in the new file.
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

/// The result of the copying. If it failed, the space can be used again.
pub(crate) type Copied = Result<Outcome, (CompactionError, Spare)>;

/// A compaction that is ready to take effect.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The handles of the files that are removed.
    pub(crate) inputs: Vec<u32>,
    /// The file that is added, unless nothing was alive.
    pub(crate) output: Option<(Entry, Arc<dyn File>)>,
    pub(crate) moved: Vec<Moved>,
    pub(crate) filtered_at: Position,
    /// Deletes that are no longer needed once the switch is durable.
    pub(crate) tombstones: Vec<(u32, SegmentId, u64)>,
    /// The space, if it was not used.
    pub(crate) spare: Option<Spare>,
    /// The damage in the inputs: none of the damaged records may be alive.
    pub(crate) damaged: Vec<DamagedInput>,
}

/// Damage in a file that is rewritten. The sound records in it were copied.
#[derive(Debug)]
pub(crate) struct DamagedInput {
    pub(crate) handle: u32,
    /// The place, and the fault.
    pub(crate) what: String,
    /// The bytes in which no sound record lies.
    pub(crate) lost: Vec<Range<u32>>,
}

/// The result of a step of a compaction.
#[derive(Debug)]
pub(super) enum Progress {
    /// There is more to be copied.
    More(Box<Compaction>),
    /// All is copied, or copying has failed.
    Done(Box<Copied>),
    /// There is no answer to which records are alive.
    Unanswered,
}

/// A compaction in progress: call [`Compaction::step`] until it is done. It owns everything it
/// needs and can run on any thread.
#[derive(Debug)]
pub(crate) struct Compaction {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    inputs: Vec<Input>,
    reading: usize,
    reader: Option<Reader>,
    /// The frames of the current batch.
    records: Vec<u8>,
    sizes: Vec<(u32, u32)>,
    output: Output,
    moved: Vec<Moved>,
    filtered_at: Position,
    tombstones: Vec<(u32, SegmentId, u64)>,
    damaged: Vec<DamagedInput>,
}

/// The file being written.
#[derive(Debug)]
struct Output {
    spare: Spare,
    header: SegmentHeader,
    seed: Seed,
    frame: FrameBuilder,
    end: u32,
    previous: u32,
}

impl Compaction {
    /// Start to rewrite the files with handles `inputs`, which are neighbours, into `spare`.
    pub(crate) fn begin(
        fs: Arc<dyn Fs>,
        dir: &Path,
        files: &mut Files,
        inputs: &[u32],
        spare: Spare,
        filtered_at: Position,
        wall_ns: u64,
    ) -> Result<Compaction, (CompactionError, Spare)> {
        let tombstones = files.tombstones_of(inputs);
        let inputs: Vec<Input> = inputs.iter().map(|handle| input(files, *handle)).collect();
        match Output::begin(&*fs, dir, files, &inputs, spare, filtered_at, wall_ns) {
            Err(failed) => Err(failed),
            Ok(output) => Ok(Compaction {
                fs,
                dir: dir.to_owned(),
                inputs,
                reading: 0,
                reader: None,
                records: Vec::new(),
                sizes: Vec::new(),
                output,
                moved: Vec::new(),
                filtered_at,
                tombstones,
                damaged: Vec::new(),
            }),
        }
    }

    /// Ask which of the next records are alive, and copy those.
    pub(super) fn step(
        mut self: Box<Self>,
        ask: &mut dyn FnMut(Vec<Asked>) -> Option<Vec<bool>>,
    ) -> Progress {
        let copied = match self.next_batch() {
            Ok(None) => return Progress::Done(Box::new(self.finish())),
            Ok(Some(batch)) => match ask(batch.subjects()) {
                Some(live) => self.copy(batch, &live),
                None => return Progress::Unanswered,
            },
            Err(error) => Err(error),
        };
        match copied {
            Ok(()) => Progress::More(self),
            Err(error) => Progress::Done(Box::new(Err((error, self.output.spare)))),
        }
    }

    /// The next records to ask about; `None` when all have been seen.
    fn next_batch(&mut self) -> Result<Option<Batch>, CompactionError> {
        self.records.clear();
        self.sizes.clear();
        while let Some(input) = self.inputs.get(self.reading) {
            let reader = self.reader.get_or_insert_with(|| {
                let (file, end) = (input.file.clone(), input.entry.end);
                Reader::new(file, input.seed, end.into(), segment_header::SIZE as u32)
            });
            let mut batch = Batch {
                handle: input.handle,
                records: Vec::new(),
            };
            while reader.at() < input.entry.end && self.records.len() < BATCH_SIZE {
                match reader.step()? {
                    Step::Frame(frame) => {
                        for (offset, record) in frame.records() {
                            batch.records.push((offset, Subject::of(&record)));
                            self.sizes.push((offset, record.size() as u32));
                            self.records
                                .extend_from_slice(frame.record_bytes(offset, &record));
                        }
                    }
                    Step::Bad(fault) => {
                        let at = reader.at();
                        let next = reader.look_ahead()?.next_frame;
                        let until = next.map_or(input.entry.end, |next| next.min(input.entry.end));
                        let lost =
                            batch.salvage(input, at..until, &mut self.sizes, &mut self.records)?;
                        let file = input.entry.file_name();
                        self.damaged.push(DamagedInput {
                            handle: input.handle,
                            what: format!("{file} at byte {at}: {}", describe(fault)),
                            lost,
                        });
                        reader.skip_to(until);
                    }
                }
            }
            if !batch.records.is_empty() {
                return Ok(Some(batch));
            }
            self.reading += 1;
            self.reader = None;
        }
        Ok(None)
    }

    /// Copy the records of `batch` that `live` marks as alive.
    fn copy(&mut self, batch: Batch, live: &[bool]) -> Result<(), CompactionError> {
        let mut at = 0;
        for (index, (offset, subject)) in batch.records.into_iter().enumerate() {
            let size = self.sizes[index].1;
            let bytes = &self.records[at..at + size as usize];
            at += size as usize;
            if !live[index] {
                continue;
            }
            let Some(record) = Record::decode_copy(bytes) else {
                unreachable!("the record was sound when its frame was read");
            };
            let to = self.output.push(&record)?;
            let from = Place {
                file: batch.handle,
                offset,
            };
            self.moved.push(Moved {
                subject,
                from,
                offset: to,
                size,
            });
        }
        Ok(())
    }

    /// Make the new file durable under its name, ready for the switch.
    fn finish(mut self) -> Copied {
        let inputs = self.inputs.iter().map(|input| input.handle).collect();
        let output = if self.moved.is_empty() {
            None
        } else {
            match self.output.name(&*self.fs, &self.dir) {
                Ok(entry) => Some((entry, self.output.spare.file.clone())),
                Err(error) => return Err((error, self.output.spare)),
            }
        };
        Ok(Outcome {
            inputs,
            spare: output.is_none().then_some(self.output.spare),
            output,
            moved: self.moved,
            filtered_at: self.filtered_at,
            tombstones: self.tombstones,
            damaged: self.damaged,
        })
    }

    /// The handles of the files that are rewritten.
    pub(super) fn inputs(&self) -> Vec<u32> {
        self.inputs.iter().map(|input| input.handle).collect()
    }
}

impl Output {
    fn begin(
        fs: &dyn Fs,
        dir: &Path,
        files: &Files,
        inputs: &[Input],
        mut spare: Spare,
        filtered_at: Position,
        wall_ns: u64,
    ) -> Result<Output, (CompactionError, Spare)> {
        let (Some(first), Some(last)) = (inputs.first(), inputs.last()) else {
            unreachable!("a compaction has inputs");
        };
        let generations = inputs.iter().map(|input| input.entry.generation);
        let generation = generations.max().unwrap_or(0).saturating_add(1);
        let identity = Identity {
            log: files.log(),
            first: first.entry.first,
            last: last.entry.last,
            generation: files.taken.next_generation(first.entry.first, generation),
        };
        let header = SegmentHeader {
            version: VERSION_MIN,
            identity,
            compacted: true,
            filtered_at,
            epoch: files.epoch,
            created_wall_ns: wall_ns,
        };
        let path = dir.join(COMPACTION_NAME);
        let begun = match fs.rename(&spare.path, &path) {
            Ok(()) => {
                spare.path = path;
                Ok(())
            }
            // It belongs to another program. A spare is not part of the log either, whatever it
            // contains.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        };
        let begun = begun.and_then(|()| write_all_at(&*spare.file, &header.encode(), 0));
        if let Err(error) = begun {
            return Err((error.into(), spare));
        }
        Ok(Output {
            spare,
            header,
            seed: identity.seed(),
            frame: FrameBuilder::default(),
            end: segment_header::SIZE as u32,
            previous: 0,
        })
    }

    /// Append a record; its offset in the file.
    fn push(&mut self, record: &Record<'_>) -> Result<u32, CompactionError> {
        let grown = u64::from(self.end) + self.frame.size() + record.size() as u64 + 64;
        if grown > u64::from(self.spare.size) {
            return Err(CompactionError::NoRoom);
        }
        if self.frame.is_empty() {
            self.frame.begin(Vec::new(), self.seed, self.end);
        }
        let offset = self.frame.push(record);
        if self.frame.size() >= FRAME_SIZE {
            self.flush()?;
        }
        Ok(offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.frame.is_empty() {
            return Ok(());
        }
        self.note_version()?;
        let (bytes, checksum) = self
            .frame
            .finish(FrameKind::Data, Position::ZERO, self.previous);
        write_all_at(&*self.spare.file, &bytes, self.end.into())?;
        self.previous = checksum;
        self.end += bytes.len() as u32;
        Ok(())
    }

    /// The header says what a reader of the first frame must know. Written again before the file is
    /// synced: it has no name yet, so no start looks into it before.
    fn note_version(&mut self) -> io::Result<()> {
        let version = self.frame.version();
        if self.end > segment_header::SIZE as u32 || version == self.header.version {
            return Ok(());
        }
        self.header.version = version;
        write_all_at(&*self.spare.file, &self.header.encode(), 0)
    }

    /// Sync the file and give it its name.
    fn name(&mut self, fs: &dyn Fs, dir: &Path) -> Result<Entry, CompactionError> {
        // The space after the end is given back only when the old files are gone: until then it
        // keeps other uses from taking room that the next compaction needs.
        self.flush()?;
        // If that fails, the log is unchanged: only this file may be lost. Nothing names it yet,
        // and it is removed.
        self.spare.file.sync()?;
        let path = dir.join(self.header.identity.file_name());
        match fs.rename(&self.spare.path, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let Identity {
                    first, generation, ..
                } = self.header.identity;
                return Err(CompactionError::NameTaken(first, generation));
            }
            renamed => renamed?,
        }
        self.spare.path = path;
        fs.sync_dir(dir).map_err(CompactionError::NameNotSynced)?;
        let Identity {
            first,
            last,
            generation,
            ..
        } = self.header.identity;
        Ok(Entry {
            first,
            last,
            generation,
            end: self.end,
        })
    }
}

fn input(files: &Files, handle: u32) -> Input {
    let file = files.get(handle);
    Input {
        handle,
        entry: file.entry,
        seed: file.seed,
        file: file.file.clone(),
    }
}
