//! Replaying the files of a log, and telling how the last one ends.

use std::io;

use super::super::error::OpenError;
use super::super::files::Files;
use super::super::format::{Entry, FrameFault, FrameKind, segment_header};
use super::super::fs::ReadFile;
use super::super::kicks::Kicks;
use super::super::plant::{Bug, planted};
use super::super::scan::{Damage, End, EndFacts, Reader, Step, Survey, describe, verdict};
use super::list::Newest;
use super::{Opening, Replay};
use crate::types::{Place, Position};

/// Where the sound part of the log ends.
pub(super) struct LogEnd {
    pub(super) handle: u32,
    pub(super) at: u32,
    /// The same, in the log.
    pub(super) position: Position,
    pub(super) previous: u32,
    pub(super) end: End,
    /// Where the last byte behind it that is not zero ends.
    pub(super) garbage: u32,
    /// The last frame is the marker of a clean stop.
    pub(super) clean_stop: bool,
    /// It is a marker.
    pub(super) is_marked: bool,
}

/// What the records of a log came to.
#[derive(Default)]
pub(super) struct Replayed {
    /// Where it ends; `None`: it has no file.
    pub(super) end: Option<LogEnd>,
    pub(super) records: u64,
    pub(super) kicks: Kicks,
}

impl Opening<'_> {
    /// Replay every file in order, up to the end of what is sound.
    pub(super) fn replay_files(
        &self,
        files: &mut Files<dyn ReadFile>,
        newest: &Newest,
        replay: &mut dyn Replay,
        damages: &mut Vec<Damage>,
    ) -> Result<Replayed, OpenError> {
        let handles: Vec<u32> = files.in_order().collect();
        let total = handles
            .iter()
            .map(|handle| u64::from(files.get(*handle).entry.end))
            .sum();
        let mut done = 0;
        let mut replayed = Replayed::default();
        for (index, handle) in handles.iter().enumerate() {
            let mut file = FileReplay {
                opening: self,
                files: &mut *files,
                handle: *handle,
                newest,
                is_newest: index + 1 == handles.len(),
                done: &mut done,
                total,
            };
            replayed.end = Some(file.run(replay, &mut replayed, damages)?);
        }
        Ok(replayed)
    }
}

/// The replay of one file.
struct FileReplay<'a, 'b> {
    opening: &'a Opening<'b>,
    files: &'a mut Files<dyn ReadFile>,
    handle: u32,
    newest: &'a Newest,
    is_newest: bool,
    done: &'a mut u64,
    total: u64,
}

impl FileReplay<'_, '_> {
    /// Replay the file up to its end, its torn tail, or, gathering all damage, past it.
    fn run(
        &mut self,
        replay: &mut dyn Replay,
        replayed: &mut Replayed,
        damages: &mut Vec<Damage>,
    ) -> Result<LogEnd, OpenError> {
        let log_file = self.files.get(self.handle);
        let (entry, seed, file) = (log_file.entry, log_file.seed, log_file.file.clone());
        let path = self.opening.options.dir.join(entry.file_name());
        let io = |error: io::Error| OpenError::io("read", &path, &error);
        let size = match self.is_newest {
            true => file.size().map_err(io)?,
            // What lies behind the recorded end is not part of the log.
            false => file.size().map_err(io)?.min(entry.end.into()),
        };
        let mut reader = Reader::new(file.clone(), seed, size, segment_header::SIZE as u32);
        let mut last = None;
        loop {
            if !self.is_newest && reader.at() == entry.end {
                return Ok(self.end_at(&reader, End::Whole, 0, last));
            }
            let step = match reader.step() {
                Err(_) if planted(Bug::ReadErrorIsEnd) => {
                    return Ok(self.end_at(&reader, End::Clean, 0, last));
                }
                step => step.map_err(io)?,
            };
            let fault = match step {
                Step::Frame(frame) => {
                    last = Some(frame.header.kind);
                    *self.done += u64::from(frame.end() - frame.at);
                    for (offset, record) in frame.records() {
                        let place = Place {
                            file: self.handle,
                            offset,
                        };
                        replayed.records += 1;
                        replayed.kicks.note(&record);
                        if let Err(what) = replay.replay(self.files, place, &record) {
                            damages.push(Damage {
                                file: entry.file_name(),
                                range: Some((offset.into(), record.size() as u64)),
                                what,
                                jobs: record.job().into_iter().collect(),
                            });
                        }
                    }
                    (self.opening.progress)(*self.done, self.total);
                    continue;
                }
                Step::Bad(fault) => fault,
            };
            let survey = match self.newest.tail {
                Some((at, survey)) if self.is_newest && at == reader.at() => survey,
                _ => reader.survey().map_err(io)?,
            };
            let end = self.judge(&reader, &entry, &survey);
            if end != End::Corrupt {
                return Ok(self.end_at(&reader, end, survey.garbage_end, last));
            }
            let jobs = match fault {
                FrameFault::Record { job, .. } => job.into_iter().collect(),
                FrameFault::Header => reader.jobs_behind_bad_header().map_err(io)?,
                _ => Vec::new(),
            };
            let at = reader.at();
            let next = survey
                .next_frame
                .filter(|next| self.is_newest || *next < entry.end);
            let until = next.map_or(size.max(entry.end.into()), u64::from);
            damages.push(Damage {
                file: entry.file_name(),
                range: Some((at.into(), until - u64::from(at))),
                what: describe(fault),
                jobs,
            });
            match next {
                Some(next) => reader.skip_to(next),
                None => return Ok(self.end_at(&reader, End::Corrupt, 0, None)),
            }
        }
    }

    fn judge(&self, reader: &Reader, entry: &Entry, survey: &Survey) -> End {
        let here = Position::new(entry.first, reader.at());
        verdict(EndFacts {
            complete: false,
            // A file that compaction wrote was whole before the log named it.
            // Another file that is not the newest was found to lead up to it.
            attested: !self.is_newest
                || self.files.get(self.handle).compacted
                || survey.durable > here
                || self.newest.durable > here,
            garbage: survey.garbage_end > reader.at(),
        })
    }

    fn end_at(&self, reader: &Reader, end: End, garbage: u32, last: Option<FrameKind>) -> LogEnd {
        let clean_stop = last == Some(FrameKind::CleanStop);
        LogEnd {
            handle: self.handle,
            at: reader.at(),
            position: Position::new(self.files.get(self.handle).entry.first, reader.at()),
            previous: reader.previous(),
            end,
            garbage,
            clean_stop,
            is_marked: last.is_some_and(FrameKind::is_marker),
        }
    }
}
