//! Reading all files of a log in order: sound records are passed on, the end of each file is
//! judged, and damaged stretches are searched for sound records. A start and the tools share this
//! walk.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::displaced::{Displaced, Stretch};
use super::salvage::{Piece, salvage};
use super::scan::{End, EndFacts, Lookahead, Reader, Step, describe, verdict};
use super::source::{Hole, Source};
use super::survey::{Slot, Survey};
use crate::storage::disk::ReadFile;
use crate::storage::error::{Damage, OpenError, ReplayError};
use crate::storage::format::{
    Entry, FrameFault, FrameKind, JobEvent, Record, Seed, Stamp, delete, newer, put, segment_header,
};
use crate::storage::log::files::Files;
use crate::types::{JobId, Place, Position};

/// Receives the content of a log as it is read.
pub(in crate::storage) trait Sink {
    /// The next file of the log begins.
    fn begin_file(&mut self, compacted: bool);
    /// The next record of history. `Err` says why it cannot follow the records before it.
    fn record(
        &mut self,
        files: &mut Files<dyn ReadFile>,
        place: Place,
        record: &Record<'_>,
        is_salvaged: bool,
    ) -> Result<(), ReplayError>;
    /// Something is damaged at this place in the order of history, and `unknown_bytes` of it are
    /// unaccounted for; `None` if unknown.
    fn damage(&mut self, damage: Damage, compacted: bool, unknown_bytes: Option<u64>);
    /// In the last reported damage, a damaged record claims to be about this job.
    fn claim(&mut self, place: Place, job: JobId, event: JobEvent);
    /// Unaccounted bytes in the last reported damage; `None` if unknown.
    fn set_unaccounted(&mut self, unknown_bytes: Option<u64>);
    /// True if no more is wanted.
    fn is_over(&self) -> bool {
        false
    }
    /// Progress: bytes read so far, bytes in all.
    fn progress(&mut self, done: u64, total: u64);
}

/// One file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its name.
    pub file: String,
    /// The segments in it, its generation, and where its last frame should end.
    pub entry: Entry,
    /// Bytes of the file.
    pub size: u64,
    /// Where its last sound frame ends, bytes.
    pub used: u64,
    /// Sound frames.
    pub frames: u64,
    /// Sound records.
    pub records: u64,
    /// Bytes of sound records, without the log's own: lists of files, and of unfinished kicks.
    pub record_bytes: u64,
    /// Bytes of records that replay needs.
    pub live_bytes: u64,
    /// How it ends; [`End::Corrupt`] also if only its middle is damaged. `None`: it follows a torn
    /// tail, so nothing in it was ever acknowledged, and it was not read.
    pub end: Option<End>,
    /// The damaged byte ranges.
    pub damaged: Vec<Range<u64>>,
}

impl SegmentReport {
    /// Bytes of records that replay does not need.
    #[must_use]
    pub fn dead_bytes(&self) -> u64 {
        self.record_bytes.saturating_sub(self.live_bytes)
    }

    fn count(&mut self, record: &Record<'_>) {
        self.records += 1;
        if !matches!(
            record,
            Record::Kick { .. } | Record::Manifest { .. } | Record::Switch { .. }
        ) {
            self.record_bytes += record.size() as u64;
        }
    }
}

/// Bytes that a crash left after the sound part of a log; nothing in them was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The file.
    pub file: String,
    /// Where it begins.
    pub offset: u64,
    /// Bytes up to the last one that is not zero.
    pub size: u64,
}

/// Where the sound part of a log ends.
#[derive(Debug, Clone, Copy)]
pub(in crate::storage) struct LogEnd {
    /// The file.
    pub(in crate::storage) handle: u32,
    /// Where its last sound frame ends.
    pub(in crate::storage) position: Position,
    /// The checksum of that frame.
    pub(in crate::storage) previous: u32,
    /// How the file ends.
    pub(in crate::storage) end: End,
    /// Where the last byte after it that is not zero ends; 0 if all are zero.
    pub(in crate::storage) garbage: u32,
    /// The kind of the last frame; `None` without frames, or if damage follows it.
    pub(in crate::storage) last: Option<FrameKind>,
}

impl LogEnd {
    /// The offset in its file.
    pub(in crate::storage) fn at(&self) -> u32 {
        self.position.offset()
    }

    /// The log was stopped cleanly.
    pub(in crate::storage) fn clean_stop(&self) -> bool {
        self.last == Some(FrameKind::CleanStop)
    }
}

/// The state of the log as a whole.
#[derive(Debug, Default)]
pub(in crate::storage) struct Walked {
    pub(in crate::storage) segments: Vec<(u32, SegmentReport)>,
    pub(in crate::storage) torn: Option<TornTail>,
    /// Where the last file that was read ends.
    pub(in crate::storage) end: Option<LogEnd>,
    /// Up to which entry of a replicated log it goes.
    pub(in crate::storage) stamp: Stamp,
    /// The next bytes lie after the end of the log.
    is_over: bool,
}

/// Read the log in `survey`.
pub(in crate::storage) fn walk(
    source: &Source,
    dir: &Path,
    survey: &mut Survey,
    sink: &mut dyn Sink,
) -> Result<Walked, OpenError> {
    let slots = std::mem::take(&mut survey.slots);
    let total = slots.iter().map(|slot| slot.size()).sum();
    let mut walk = Walk {
        source,
        dir,
        survey,
        sink,
        total,
        done: 0,
        walked: Walked::default(),
    };
    for slot in slots {
        match slot {
            Slot::Missing(entry) => walk.missing(&entry),
            Slot::Present {
                handle,
                size,
                end,
                is_newest,
                header_damage,
            } => {
                let mut file = walk.file(handle, size, end, is_newest);
                walk.read(&mut file, header_damage)?;
            }
        }
    }
    for (damage, unknown_bytes) in std::mem::take(&mut walk.survey.damages) {
        walk.sink.damage(damage, false, unknown_bytes);
    }
    Ok(walk.walked)
}

/// A file that is being read.
struct Reading {
    handle: u32,
    name: String,
    entry: Entry,
    seed: Seed,
    file: Arc<dyn ReadFile>,
    compacted: bool,
    /// Bytes of the file that can be part of the log.
    size: u64,
    /// Where its last frame ends, if the log says so.
    end: Option<u32>,
    is_newest: bool,
}

impl Reading {
    /// True if the sound frames end where the file should end, and the last of them is of this
    /// kind.
    fn is_whole(&self, at: u32, last: Option<FrameKind>) -> bool {
        match self.end {
            Some(end) => at == end,
            None => !self.is_newest && last == Some(FrameKind::Seal),
        }
    }
}

impl Reading {
    fn end_at(&self, reader: &Reader, end: End, garbage: u32, last: Option<FrameKind>) -> LogEnd {
        LogEnd {
            handle: self.handle,
            position: Position::new(self.entry.first, reader.at()),
            previous: reader.previous(),
            end,
            garbage,
            last,
        }
    }
}

struct Walk<'a> {
    source: &'a Source,
    dir: &'a Path,
    survey: &'a mut Survey,
    sink: &'a mut dyn Sink,
    total: u64,
    done: u64,
    walked: Walked,
}

impl Walk<'_> {
    fn file(&self, handle: u32, size: u64, end: Option<u32>, is_newest: bool) -> Reading {
        let file = self.survey.files.get(handle);
        Reading {
            handle,
            name: self.survey.name_of(handle),
            entry: file.entry,
            seed: file.seed,
            file: file.file.clone(),
            compacted: file.compacted,
            // What lies after the recorded end is not part of the log.
            size: end.map_or(size, |end| size.min(end.into())),
            end,
            is_newest,
        }
    }

    fn missing(&mut self, entry: &Entry) {
        let damage = Damage::new(
            entry.file_name(),
            None,
            if entry.first == entry.last {
                format!("segment {} of the log is missing", entry.first)
            } else {
                format!(
                    "segments {} to {} of the log are missing",
                    entry.first, entry.last
                )
            },
        );
        self.sink.begin_file(entry.generation > 0);
        self.sink.damage(damage, entry.generation > 0, None);
    }

    /// Read one file to its end, past all damage.
    fn read(&mut self, file: &mut Reading, header_damage: Option<Damage>) -> Result<(), OpenError> {
        let mut report = SegmentReport {
            file: file.name.clone(),
            entry: file.entry,
            size: file.size,
            used: 0,
            frames: 0,
            records: 0,
            record_bytes: 0,
            live_bytes: 0,
            end: None,
            damaged: Vec::new(),
        };
        if let Some(damage) = header_damage {
            let (start, size) = damage.range.unwrap_or_default();
            report.damaged.push(start..start + size);
            self.damage(file, damage, Some(0));
        }
        if self.walked.is_over {
            self.walked.segments.push((file.handle, report));
            return Ok(());
        }
        self.sink.begin_file(file.compacted);
        let end = self.read_frames(file, &mut report)?;
        self.report_holes(file, &mut report);
        self.walked.is_over = matches!(end.end, End::Clean | End::Torn);
        self.walked.end = Some(end);
        report.end = Some(if report.damaged.is_empty() {
            end.end
        } else {
            End::Corrupt
        });
        self.walked.segments.push((file.handle, report));
        Ok(())
    }

    fn read_frames(
        &mut self,
        file: &mut Reading,
        report: &mut SegmentReport,
    ) -> Result<LogEnd, OpenError> {
        let path = self.dir.join(&file.name);
        let io = |error: io::Error| OpenError::io("read", &path, &error);
        let first = segment_header::SIZE as u32;
        let mut reader = Reader::new(file.file.clone(), file.seed, file.size, first);
        let mut last = None;
        let begun = self.done;
        loop {
            if file.is_whole(reader.at(), last) {
                self.done = begun + file.size;
                return Ok(file.end_at(&reader, End::Whole, 0, last));
            }
            let fault = match reader.step().map_err(io)? {
                Step::Frame(frame) => {
                    last = Some(frame.header.kind);
                    self.walked.stamp = self.walked.stamp.max(frame.header.stamp);
                    report.frames += 1;
                    report.used = frame.end().into();
                    for (offset, record) in frame.records() {
                        self.record(file, report, offset, &record);
                    }
                    self.done = begun + u64::from(frame.end());
                    self.sink.progress(self.done, self.total);
                    if self.sink.is_over() {
                        return Ok(file.end_at(&reader, End::Clean, 0, last));
                    }
                    continue;
                }
                Step::Bad(FrameFault::Newer(version)) => {
                    let what =
                        format!("a frame at byte {}: {}", reader.at(), newer(version.into()));
                    return Err(OpenError::Foreign { path, what });
                }
                Step::Bad(fault) => fault,
            };
            let ahead = match self.survey.tail {
                Some((at, ahead)) if file.is_newest && at == reader.at() => ahead,
                _ => reader.look_ahead().map_err(io)?,
            };
            let end = self.judge(file, &reader, &ahead);
            if end != End::Corrupt {
                self.note_tail(file, &reader, &ahead, end);
                self.done = begun + file.size;
                return Ok(file.end_at(&reader, end, ahead.garbage_end, last));
            }
            let displaced = self.look_elsewhere(file, &reader, &ahead).map_err(io)?;
            if let Some(displaced) = displaced {
                self.read_elsewhere(file, report, &displaced);
                reader.read_in(file.file.clone(), file.size);
                continue;
            }
            last = None;
            let next = self
                .pass_damage(file, report, fault, reader.at(), &ahead)
                .map_err(io)?;
            match next {
                Some(next) => reader.skip_to(next),
                None => return Ok(file.end_at(&reader, End::Corrupt, 0, None)),
            }
        }
    }

    fn record(&mut self, file: &Reading, report: &mut SegmentReport, at: u32, record: &Record<'_>) {
        let size = record.size() as u64;
        report.count(record);
        let place = Place {
            file: file.handle,
            offset: at,
        };
        if let Err(error) = self
            .sink
            .record(&mut self.survey.files, place, record, false)
        {
            let range = Some((at.into(), size));
            let jobs = record.job().into_iter().collect();
            report.damaged.push(at.into()..u64::from(at) + size);
            self.damage(
                file,
                Damage {
                    file: file.name.clone(),
                    range,
                    what: error.to_string(),
                    jobs,
                },
                Some(0),
            );
        }
    }

    /// How a start judges the end of the sound frames. Bytes that the disk does not return may be
    /// anything.
    fn judge(&self, file: &Reading, reader: &Reader, ahead: &Lookahead) -> End {
        let at = reader.at();
        let here = Position::new(file.entry.first, at);
        let holes = self.source.holes(&file.name);
        let is_list_lost = file.is_newest && at == segment_header::SIZE as u32;
        verdict(EndFacts {
            complete: false,
            attested: !file.is_newest
                || file.compacted
                || ahead.durable > here
                || self.survey.attested > here
                || is_list_lost
                || holes.iter().any(|hole| hole.bytes.end > u64::from(at))
                || self.survey.has_others_bytes_after(&file.name, at),
            garbage: ahead.garbage_end > at,
        })
    }

    fn note_tail(&mut self, file: &Reading, reader: &Reader, ahead: &Lookahead, end: End) {
        if end == End::Torn {
            self.walked.torn = Some(TornTail {
                file: file.name.clone(),
                offset: reader.at().into(),
                size: u64::from(ahead.garbage_end.saturating_sub(reader.at())),
            });
        }
    }

    /// Look in the other files for what should be where the reader is.
    fn look_elsewhere(
        &mut self,
        file: &Reading,
        reader: &Reader,
        ahead: &Lookahead,
    ) -> io::Result<Option<Displaced>> {
        let size = file.size.max(file.end.unwrap_or(0).into());
        let end = ahead.next_frame.map_or(size, |next| size.min(next.into()));
        let stretch = Stretch {
            file: &*file.file,
            seed: file.seed,
            range: reader.at()..u32::try_from(end).unwrap_or(u32::MAX).max(reader.at()),
            previous: reader.known_previous(),
        };
        let Survey { others, effort, .. } = &mut *self.survey;
        let others = others.iter().filter(|other| other.name != file.name);
        stretch.look_in(others, effort)
    }

    /// Report what lies in another file, and read it there.
    fn read_elsewhere(
        &mut self,
        file: &mut Reading,
        report: &mut SegmentReport,
        displaced: &Displaced,
    ) {
        file.file = displaced.in_place(file.file.clone());
        self.survey.files.read_in(file.handle, file.file.clone());
        // What was seen after the end of the newest segment was not its own.
        self.survey.tail = None;
        for range in &displaced.ranges {
            let (start, end) = (u64::from(range.start), u64::from(range.end));
            file.size = file.size.max(end);
            report.damaged.push(start..end);
            self.survey.note_displaced(&displaced.name, start..end);
            let damage = Damage::new(
                file.name.clone(),
                Some((start, end - start)),
                displaced.describe(),
            );
            self.damage(file, damage, Some(0));
        }
    }

    /// Report the damage at `at`, salvage records from it, and say where to continue.
    fn pass_damage(
        &mut self,
        file: &Reading,
        report: &mut SegmentReport,
        fault: FrameFault,
        at: u32,
        ahead: &Lookahead,
    ) -> io::Result<Option<u32>> {
        let next = ahead
            .next_frame
            .filter(|next| file.end.is_none_or(|end| *next < end));
        let size = file.size.max(file.end.unwrap_or(0).into());
        let until = next.map_or(size, u64::from).max(at.into());
        let is_list = file.is_newest && at == segment_header::SIZE as u32;
        let what = if is_list {
            format!(
                "the list of the log's files cannot be read: {}",
                describe(fault)
            )
        } else {
            describe(fault)
        };
        let range = Some((at.into(), until - u64::from(at)));
        report.damaged.push(at.into()..until.max(u64::from(at) + 1));
        let damage = Damage::new(file.name.clone(), range, what);
        self.damage(file, damage, Some(0));
        let there = at..u32::try_from(until.min(file.size))
            .unwrap_or(u32::MAX)
            .max(at);
        let (accounted, is_nameless) = self.salvage(file, report, there)?;
        let least = if is_nameless { RECORD_SIZE_MIN } else { 0 };
        let unknown = (until - u64::from(at)).saturating_sub(accounted).max(least);
        self.sink.set_unaccounted(match (next, file.end) {
            // It is unknown how much was written after the last sound frame.
            (None, None) => None,
            _ if unknown < RECORD_SIZE_MIN => Some(0),
            _ => Some(unknown),
        });
        Ok(next)
    }

    /// Take what is sound in `range`. Returns how many bytes are accounted for, and whether one of the
    /// records among them may be about any job: the disk does not give its id, or it is 0, which no
    /// job has, or it is an update or a delete with more damage than one bit. Of a put, the ids
    /// around it tell ([`Sink::claim`]).
    fn salvage(
        &mut self,
        file: &Reading,
        report: &mut SegmentReport,
        range: Range<u32>,
    ) -> io::Result<(u64, bool)> {
        let place = |offset| Place {
            file: file.handle,
            offset,
        };
        let (files, sink) = (&mut self.survey.files, &mut *self.sink);
        let mut is_nameless = false;
        let accounted = salvage(&*file.file, file.seed, range, &mut |piece| match piece {
            Piece::Claim(claim) => {
                let id = u64::from(claim.at) + put::ID as u64;
                let id = id..id + size_of::<JobId>() as u64;
                let has_id = claim.job != JobId(0) && !self.source.lacks(&file.name, &id);
                let is_sure = claim.is_certain || claim.event == JobEvent::Put;
                is_nameless |= !has_id || !is_sure;
                if has_id {
                    sink.claim(place(claim.at), claim.job, claim.event);
                }
            }
            Piece::Record(at, record) => {
                report.count(&record);
                // A record that contradicts what is known is no worse than a lost one.
                let _ = sink.record(files, place(at), &record, true);
            }
        })?;
        Ok((accounted, is_nameless))
    }

    /// Report damage, with the disk's part in it.
    fn damage(&mut self, file: &Reading, mut damage: Damage, unknown_bytes: Option<u64>) {
        if let Some((offset, size)) = damage.range {
            let range = offset..offset + size;
            let holes = self.source.holes(&file.name);
            if let Some(hole) = holes.into_iter().find(|hole| overlap(&hole.bytes, &range)) {
                damage.what = format!("{} ({})", damage.what, describe_hole(&hole));
            }
        }
        self.sink.damage(damage, file.compacted, unknown_bytes);
    }

    /// Report bytes that could not be read but in which no damage was found: zeros written ahead,
    /// or space between records.
    fn report_holes(&mut self, file: &Reading, report: &mut SegmentReport) {
        for hole in self.source.holes(&file.name) {
            let is_known = report
                .damaged
                .iter()
                .any(|range| overlap(range, &hole.bytes));
            if is_known || hole.bytes.start >= file.size {
                continue;
            }
            report.damaged.push(hole.bytes.clone());
            let Range { start, end } = hole.bytes;
            let what = describe_hole(&hole);
            let range = Some((start, end - start));
            let damage = Damage::new(file.name.clone(), range, what);
            self.sink.damage(damage, file.compacted, Some(0));
        }
    }
}

/// The smallest record about a job.
const RECORD_SIZE_MIN: u64 = delete::SIZE as u64;

fn describe_hole(hole: &Hole) -> String {
    let Range { start, end } = hole.bytes;
    format!(
        "the disk does not give {} bytes from byte {start} on: {}",
        end - start,
        hole.cause
    )
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
