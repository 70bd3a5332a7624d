//! Every bit of a log of several segments, flipped in turn, and every length that its files can be
//! cut to: the verdict is exactly the one that the layout of the log foretells.
//!
//! The expected report is computed here, from the places of frames and records in the sound log:
//! the result of the records without those that the damage hits. The log is read on a disk that
//! returns one bit, or one length, differently, and that accepts no write: so half a million
//! verdicts fit into an ordinary run. A sample of them is also compared with the server's start and
//! repaired.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_WAL_BITS` | one in this many of the bits and lengths is repaired, too | 4001 |
//! | `BSD_WAL_KIB` | what is written to the log, KiB at least | 64 |
//! | `BSD_WAL_EVERY` | of the bits of each part of the log, one in this many is flipped | 1 |

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bsd::random::Random;
use bsd::storage::SimFs;
use bsd::storage::convert::offline::compact;
use bsd::storage::disk::sim::Crash;
use bsd::storage::disk::{DirEntry, DirLock, Fs, LockError, ReadFile, ReadFs};
use bsd::storage::format::{
    EMPTY_FRAME_SIZE, Record, SegmentHeader, parse_file_name, segment_header,
};
use bsd::storage::inspect::{Inspection, JobRecord, Loss};
use bsd::storage::read::scan::{Reader, Step};
use bsd::types::{JobId, JobState};
use bsd::{JobQueue, PutOptions};

use crate::wal::{DIR, check, copy, inspect, jobs, now, options};
use bsd::check::volume::volume;

/// A log that compaction has been through, that a crash has torn, and that was stopped cleanly: a
/// compacted file, one that was cut and sealed, and one or more that follow.
fn log(bytes: u64) -> SimFs {
    let disk = SimFs::new(1);
    let mut random = Random::new(9);
    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    work(&mut queue, &mut random, bytes / 2);
    queue.close().unwrap();
    compact(
        &(Arc::new(disk.clone()) as Arc<dyn Fs>),
        Path::new(DIR),
        now(),
        &|_, _| (),
    )
    .unwrap();

    let mut queue = JobQueue::open_with(&options(&disk, DIR)).unwrap();
    work(&mut queue, &mut random, bytes * 2 / 5);
    // The power goes in the middle of a write.
    let torn = disk.crash_image(Crash::KeepAll);
    drop(queue);
    let name = newest(&torn);
    let mut content = torn.read(&name).unwrap();
    let end = content.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    content[end.next_multiple_of(8)..][..100].fill(0x77);
    torn.write(&name, &content).unwrap();

    let mut queue = JobQueue::open_with(&options(&torn, DIR)).unwrap();
    work(&mut queue, &mut random, bytes * 3 / 10);
    queue.close().unwrap();
    torn.crash_image(Crash::KeepAll)
}

fn segments(disk: &SimFs) -> Vec<String> {
    let mut names = disk.names(DIR).unwrap();
    names.retain(|name| parse_file_name(name).is_some());
    names
}

fn newest(disk: &SimFs) -> String {
    format!("{DIR}/{}", segments(disk).pop().unwrap())
}

/// Write about `bytes` bytes: jobs of several tubes in all states, and pauses.
fn work(queue: &mut JobQueue, random: &mut Random, bytes: u64) {
    queue.watch("work").unwrap();
    let mut written = 0;
    let mut last = Vec::new();
    while written < bytes {
        let body = vec![b'a' + random.below(26) as u8; 400 + random.below(2000) as usize];
        written += body.len() as u64 + 100;
        let delay = if random.one_in(6) { 1000 } else { 0 };
        let put = PutOptions {
            delay: Duration::from_secs(delay),
            ..PutOptions::default()
        };
        let tube = random.pick(&["work", "default"]);
        last.push(queue.put(tube, &body, put).unwrap());
        for _ in 0..random.below(3) {
            let Some(job) = queue.reserve().unwrap() else {
                break;
            };
            match random.below(5) {
                0 => queue.delete(job.id).unwrap(),
                1 => queue.release(job.id, 9, Duration::from_secs(100)).unwrap(),
                2 => queue.release(job.id, 5, Duration::ZERO).unwrap(),
                _ => queue.bury(job.id, 7).unwrap(),
            }
        }
        if last.len() > 9 && random.one_in(2) {
            let id = last.remove(random.below(8) as usize);
            // Gone already, perhaps.
            let _ = queue.delete(id);
        }
        if random.one_in(12) {
            // One that is ready cannot be kicked.
            let _ = queue.kick(last[0]);
            let time = Duration::from_secs(random.below(2) * 600);
            queue.pause("work", time).unwrap();
        }
    }
}

/// The number of frames in the marker at the end of a log.
const MARKER: usize = 2;

/// The damage to a disk: a flipped bit, or a shorter file.
#[derive(Debug, Clone, Copy)]
enum Change {
    Bit { file: usize, bit: u64 },
    Cut { file: usize, size: u64 },
}

/// The files of the log, with one change. Nothing can be written.
#[derive(Debug)]
struct Image {
    files: Arc<Vec<(String, Vec<u8>)>>,
    change: Change,
}

#[derive(Debug)]
struct ImageFile {
    files: Arc<Vec<(String, Vec<u8>)>>,
    index: usize,
    change: Change,
}

impl ImageFile {
    fn len(&self) -> u64 {
        match self.change {
            Change::Cut { file, size } if file == self.index => size,
            _ => self.files[self.index].1.len() as u64,
        }
    }
}

impl ReadFile for ImageFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.len())
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = buf.len().min(self.len().saturating_sub(offset) as usize);
        let from = offset as usize;
        buf[..count].copy_from_slice(&self.files[self.index].1[from..from + count]);
        if let Change::Bit { file, bit } = self.change
            && file == self.index
            && (offset..offset + count as u64).contains(&(bit / 8))
        {
            buf[(bit / 8 - offset) as usize] ^= 1 << (bit % 8);
        }
        Ok(count)
    }
}

impl ReadFs for Image {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        let is_it = |(name, _): &(String, Vec<u8>)| path.ends_with(name);
        let index = self.files.iter().position(is_it);
        Ok(Arc::new(ImageFile {
            files: self.files.clone(),
            index: index.ok_or(io::ErrorKind::NotFound)?,
            change: self.change,
        }))
    }
    fn read_dir(&self, _: &Path) -> io::Result<Vec<DirEntry>> {
        let names = self.files.iter().enumerate();
        let entry = |(index, (name, bytes)): (usize, &(String, Vec<u8>))| DirEntry {
            name: name.clone(),
            is_file: true,
            size: match self.change {
                Change::Cut { file, size } if file == index => size,
                _ => bytes.len() as u64,
            },
        };
        Ok(names.map(entry).collect())
    }
    fn share_dir(&self, _: &Path) -> Result<Box<dyn DirLock>, LockError> {
        Err(LockError::Io(io::ErrorKind::Unsupported.into()))
    }
}

/// A record, as far as it matters for the remaining jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Put(JobId, JobState),
    Update(JobId, JobState),
    Delete(JobId),
    /// Pauses, kicks, and records about the log's own files.
    Other,
}

/// A record and where it lies.
#[derive(Debug, Clone)]
struct Laid {
    bytes: Range<u64>,
    told: Told,
}

/// A frame and where it lies, padding included.
#[derive(Debug, Clone)]
struct Framed {
    bytes: Range<u64>,
    records: Vec<Laid>,
}

/// A segment file.
#[derive(Debug)]
struct Segment {
    name: String,
    frames: Vec<Framed>,
    compacted: bool,
}

impl Segment {
    fn read(disk: &SimFs, name: String) -> Segment {
        let path = Path::new(DIR).join(&name);
        let bytes = disk.read(&path).unwrap();
        let header = SegmentHeader::decode(&bytes).unwrap();
        let file = disk.open_read(&path).unwrap();
        let first = segment_header::SIZE as u32;
        let mut reader = Reader::new(file, header.identity.seed(), bytes.len() as u64, first);
        let mut frames = Vec::new();
        while let Step::Frame(frame) = reader.step().unwrap() {
            let lay = |(at, record): (u32, Record<'_>)| Laid {
                bytes: u64::from(at)..u64::from(at) + record.size() as u64,
                told: tell(&record),
            };
            frames.push(Framed {
                bytes: frame.at.into()..frame.end().into(),
                records: frame.records().map(lay).collect(),
            });
        }
        Segment {
            name,
            frames,
            compacted: header.compacted,
        }
    }

    /// Where the last frame ends.
    fn end(&self) -> u64 {
        self.frames.last().unwrap().bytes.end
    }
}

fn tell(record: &Record<'_>) -> Told {
    match record {
        Record::Put { id, delay: 0, .. } => Told::Put(*id, JobState::Ready),
        Record::Put { id, .. } => Told::Put(*id, JobState::Delayed),
        Record::Update { id, state, .. } => Told::Update(*id, *state),
        Record::Delete { id, .. } => Told::Delete(*id),
        _ => Told::Other,
    }
}

/// The state of each job, and where that is recorded.
type Left = BTreeMap<JobId, (JobState, (usize, u64))>;

/// The jobs that result from records, each with the number of its file.
fn fold<'a>(records: impl Iterator<Item = (usize, &'a Laid)>) -> Left {
    let mut left = Left::new();
    for (file, record) in records {
        let place = (file, record.bytes.start);
        match record.told {
            Told::Put(id, state) => drop(left.insert(id, (state, place))),
            Told::Update(id, state) => {
                left.entry(id).and_modify(|job| *job = (state, place));
            }
            Told::Delete(id) => drop(left.remove(&id)),
            Told::Other => {}
        }
    }
    left
}

/// The expected report about a damaged log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verdict {
    /// File, offset and bytes of each damage; none: the log is intact.
    damages: Vec<(String, u64, u64)>,
    /// Offset and bytes of the torn tail.
    torn: Option<(u64, u64)>,
    missing: Vec<JobId>,
    older: Vec<JobId>,
    again: Vec<JobId>,
    jobs: Vec<(JobId, JobState)>,
}

/// All records in the order of history, each with the number of its file.
fn records(segments: &[Segment]) -> impl Iterator<Item = (usize, &Laid)> {
    segments.iter().enumerate().flat_map(|(file, segment)| {
        let records = segment.frames.iter().flat_map(|frame| &frame.records);
        records.map(move |record| (file, record))
    })
}

struct Sound {
    disk: SimFs,
    files: Arc<Vec<(String, Vec<u8>)>>,
    segments: Vec<Segment>,
    left: Left,
    jobs: BTreeMap<JobId, JobRecord>,
    next_id: JobId,
}

impl Sound {
    fn new() -> Sound {
        let least = volume("BSD_WAL_KIB", 64) << 10;
        let disk = log(least);
        let names = segments(&disk);
        let segments: Vec<Segment> = names
            .iter()
            .map(|name| Segment::read(&disk, name.clone()))
            .collect();
        let files = names.into_iter().zip(&segments).map(|(name, segment)| {
            let mut bytes = disk.read(Path::new(DIR).join(&name)).unwrap();
            // Some of the zeros that were written ahead are enough.
            bytes.truncate(segment.end() as usize + 4096);
            (name, bytes)
        });
        let files = Arc::new(files.collect::<Vec<_>>());
        let written: u64 = segments.iter().map(Segment::end).sum();
        let compacted = segments.iter().filter(|segment| segment.compacted).count();
        assert!(
            written >= least && segments.len() >= 3 && compacted > 0,
            "{written} bytes in {} segments, {compacted} of them compacted",
            segments.len()
        );
        let found = inspect(&disk, DIR).unwrap();
        assert!(found.is_intact() && found.clean_stop, "{:#?}", found.losses);
        let left = fold(records(&segments));
        Sound {
            jobs: jobs(&found),
            next_id: found.next_id,
            disk: copy(&disk),
            files,
            segments,
            left,
        }
    }

    fn is_newest(&self, file: usize) -> bool {
        file + 1 == self.segments.len()
    }

    /// The jobs without these records, and what that means.
    fn without(&self, is_lost: impl Fn(usize, &Laid) -> bool) -> Verdict {
        let left = fold(records(&self.segments).filter(|(file, record)| !is_lost(*file, record)));
        let sound = &self.left;
        let ids = |of: &Left, is_hit: &dyn Fn(&JobId) -> bool| {
            of.keys().copied().filter(is_hit).collect::<Vec<_>>()
        };
        let is_older = |id: &JobId| sound.get(id).is_some_and(|job| *job != left[id]);
        Verdict {
            damages: Vec::new(),
            torn: None,
            missing: ids(sound, &|id| !left.contains_key(id)),
            older: ids(&left, &is_older),
            again: ids(&left, &|id| !sound.contains_key(id)),
            jobs: left.iter().map(|(id, job)| (*id, job.0)).collect(),
        }
    }

    /// The parts of a file: the bytes of each, the verdict if one of them is damaged, and how many
    /// bytes may then be unaccounted for. Without the marker of the clean stop, at the end of the
    /// log.
    fn parts(&self, file: usize) -> Vec<(Range<u64>, Verdict, u64)> {
        let segment = &self.segments[file];
        let header = 0..segment_header::SIZE as u64;
        let mut parts = vec![(header.clone(), self.damaged(file, header, &|_, _| false), 0)];
        let markers = if self.is_newest(file) { MARKER } else { 0 };
        for frame in &segment.frames[..segment.frames.len() - markers] {
            let Range { start, end } = frame.bytes.clone();
            // The zeros over which a marker reaches might have been records.
            let zeros = if frame.records.is_empty() {
                end - start - EMPTY_FRAME_SIZE as u64
            } else {
                0
            };
            let mut at = start;
            for record in &frame.records {
                let is_it = |other: usize, laid: &Laid| other == file && laid.bytes == record.bytes;
                let before = self.damaged(file, start..end, &|_, _| false);
                parts.push((at..record.bytes.start, before, 0));
                let hit = self.damaged(file, start..end, &is_it);
                parts.push((record.bytes.clone(), hit, 0));
                at = record.bytes.end;
            }
            let rest = self.damaged(file, start..end, &|_, _| false);
            parts.push((at..end, rest, zeros));
        }
        parts
    }

    fn damaged(
        &self,
        file: usize,
        Range { start, end }: Range<u64>,
        is_lost: &dyn Fn(usize, &Laid) -> bool,
    ) -> Verdict {
        Verdict {
            damages: vec![(self.segments[file].name.clone(), start, end - start)],
            ..self.without(is_lost)
        }
    }

    /// The marker of the clean stop: nothing attests it, and it says nothing of jobs.
    fn marker(&self, bit: u64) -> Verdict {
        let segment = self.segments.last().unwrap();
        let frames = segment.frames.iter().rev().take(MARKER);
        let mut hit = frames.filter(|frame| frame.bytes.contains(&(bit / 8)));
        let start = hit.next().unwrap().bytes.start;
        let mut bytes = self.files.last().unwrap().1[start as usize..].to_vec();
        bytes[(bit / 8 - start) as usize] ^= 1 << (bit % 8);
        let used = bytes.iter().rposition(|byte| *byte != 0);
        Verdict {
            torn: used.map(|last| (start, last as u64 + 1)),
            ..self.without(|_, _| false)
        }
    }

    /// The expected report for a file that is cut to this size.
    fn cut(&self, file: usize, size: u64) -> Verdict {
        let segment = &self.segments[file];
        let first = segment_header::SIZE as u64;
        let whole = segment
            .frames
            .iter()
            .take_while(|frame| frame.bytes.end <= size);
        let end = whole.last().map_or(first, |frame| frame.bytes.end);
        let is_cut = |other: usize, record: &Laid| other == file && record.bytes.end > size;
        if self.is_newest(file) && end > first {
            // Everything that attests more lies after it, and is cut, too.
            let bytes = &self.files[file].1[end as usize..size as usize];
            let used = bytes.iter().rposition(|byte| *byte != 0);
            let is_behind = |other: usize, record: &Laid| other == file && record.bytes.end > end;
            return Verdict {
                torn: used.map(|last| (end, last as u64 + 1)),
                ..self.without(is_behind)
            };
        }
        let size_known = if self.is_newest(file) {
            size.max(first)
        } else {
            segment.end()
        };
        let mut verdict = self.damaged(file, end..size_known, &is_cut);
        if size < first {
            let header = (segment.name.clone(), 0, first);
            verdict.damages.insert(0, header);
        }
        verdict
    }

    fn image(&self, change: Change) -> Image {
        Image {
            files: self.files.clone(),
            change,
        }
    }

    /// The actual report about the log.
    fn found(&self, change: Change) -> (Verdict, Inspection) {
        let image = Arc::new(self.image(change));
        let found = Inspection::read(image, Path::new(DIR), &mut |_, _| ())
            .unwrap_or_else(|error| panic!("{change:?}: {error}"));
        let losses = &found.losses;
        let damage = |loss: &Loss| {
            let (offset, size) = loss.damage.range.unwrap_or((0, u64::MAX));
            (loss.damage.file.clone(), offset, size)
        };
        let missing = losses
            .iter()
            .flat_map(|loss| loss.missing.iter().cloned().flatten());
        let older: BTreeSet<JobId> = losses.iter().flat_map(|loss| loss.older.clone()).collect();
        let again: BTreeSet<JobId> = losses.iter().flat_map(|loss| loss.again.clone()).collect();
        let verdict = Verdict {
            damages: losses.iter().map(damage).collect(),
            torn: found.torn.as_ref().map(|torn| (torn.offset, torn.size)),
            missing: missing.map(JobId).collect(),
            older: older.into_iter().collect(),
            again: again.into_iter().collect(),
            jobs: found.jobs().map(|job| (job.id, job.state)).collect(),
        };
        (verdict, found)
    }

    /// Repair a sample of them.
    fn repair_some(&self, changes: &[Change]) {
        let some = changes.iter().filter(|change| match change {
            Change::Bit { bit, .. } => bit.is_multiple_of(volume("BSD_WAL_BITS", 4001)),
            Change::Cut { size, .. } => (size * 8 + 7).is_multiple_of(volume("BSD_WAL_BITS", 4001)),
        });
        let some: Vec<Change> = some.copied().collect();
        each(&some, |change| self.repair(change));
    }

    /// The same change on a disk that can be written: does the server agree, and does a repair keep
    /// all that is left?
    fn repair(&self, change: Change) {
        let disk = copy(&self.disk);
        let path = |file: usize| Path::new(DIR).join(&self.segments[file].name);
        match change {
            Change::Bit { file, bit } => disk.flip_bit(path(file), bit).unwrap(),
            Change::Cut { file, size } => disk.truncate(path(file), size).unwrap(),
        }
        check(&self.jobs, self.next_id, &disk, &format!("{change:?}"));
    }
}

/// Do `look` with each of `changes`, on all processors.
fn each(changes: &[Change], look: impl Fn(Change) + Sync) {
    let threads = thread::available_parallelism().map_or(1, |count| count.get());
    thread::scope(|scope| {
        for part in 0..threads {
            let look = &look;
            scope.spawn(move || {
                let mine = changes.iter().skip(part).step_by(threads);
                mine.for_each(|change| look(*change));
            });
        }
    });
}

/// The verdict is as expected, and there is nothing more to report; at most this many bytes may be
/// unaccounted for.
fn assert_is(
    found: &Inspection,
    verdict: &Verdict,
    (expected, unknown): (&Verdict, u64),
    change: Change,
) {
    let is_all_known = |loss: &Loss| {
        loss.perhaps_missing.is_empty()
            && loss.missing_from.is_none()
            && [Some(0), Some(unknown)].contains(&loss.unknown_bytes)
    };
    assert!(
        verdict == expected && found.losses.iter().all(is_all_known),
        "{change:?}: {:#?}\n{verdict:?}\nbut expected\n{expected:?}",
        found.losses
    );
}

#[test]
fn every_bit_of_a_log_of_several_segments_flipped_gives_the_verdict_that_its_place_foretells() {
    let sound = Sound::new();
    let every = volume("BSD_WAL_EVERY", 1) as usize;
    for file in 0..sound.segments.len() {
        for (bytes, expected, unknown) in sound.parts(file) {
            let bits = bytes.start * 8..bytes.end * 8;
            let bits: Vec<Change> = bits.map(|bit| Change::Bit { file, bit }).collect();
            let flipped: Vec<Change> = bits.iter().copied().step_by(every).collect();
            each(&flipped, |change| {
                let (verdict, found) = sound.found(change);
                assert_is(&found, &verdict, (&expected, unknown), change);
            });
            sound.repair_some(&bits);
        }
    }
    let (file, newest) = (sound.segments.len() - 1, sound.segments.last().unwrap());
    let [first, second] = &newest.frames[newest.frames.len() - MARKER..] else {
        panic!("a log ends in a marker");
    };
    let (start, end) = (first.bytes.start, second.bytes.end);
    let ends = (start..start + 40).chain(first.bytes.end - 8..end);
    let bytes = ends.chain((start..end).step_by(61));
    for bit in bytes.flat_map(|byte| byte * 8..byte * 8 + 8) {
        let change = Change::Bit { file, bit };
        let (verdict, found) = sound.found(change);
        assert_is(&found, &verdict, (&sound.marker(bit), 0), change);
    }
}

/// Missing jobs are known only with a put before and a put after the cut; this checks what is left.
#[test]
fn a_log_of_several_segments_cut_at_any_length_gives_the_verdict_that_its_place_foretells() {
    let sound = Sound::new();
    for (file, segment) in sound.segments.iter().enumerate() {
        let sizes = 0..segment.end();
        let sizes: Vec<Change> = sizes.map(|size| Change::Cut { file, size }).collect();
        each(&sizes, |change| {
            let Change::Cut { file, size } = change else {
                unreachable!("files are only cut");
            };
            let (verdict, found) = sound.found(change);
            let expected = sound.cut(file, size);
            assert_eq!(
                verdict.damages, expected.damages,
                "{change:?}: {:#?}",
                found.losses
            );
            assert_eq!(verdict.torn, expected.torn, "{change:?}");
            assert!(
                verdict.jobs == expected.jobs,
                "{change:?}: {verdict:?} {expected:?}"
            );
        });
        sound.repair_some(&sizes);
    }
}
