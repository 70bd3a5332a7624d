//! Reading one of beanstalkd's files from start to end: its records, how it ends, what is damaged.
//!
//! A file ends where only zeros follow, or nothing. A record is used only if it is complete, and
//! only if beanstalkd can have written it. For any other record:
//!
//! * Its bytes stop and only zeros follow: a crash interrupted it. Nothing of it is used.
//! * The file ends inside it: beanstalkd makes a file as long as it is to be before it writes
//!   records, so this one was cut later. That is damage.
//! * Otherwise it is damaged. Its length may still be right: if another record, or the end, follows
//!   it, reading continues there. If not, reading stops: records are not searched byte by byte,
//!   because a body may contain bytes that look like one.

use std::io;

use super::binlog::{
    BODY_END, BadJob, HEAD_SIZE_MAX, Job, State, VERSION_SIZE, Version, decode_name, job,
};
use crate::storage::disk::zeros::data_end;
use crate::storage::disk::{ReadFile, read_exact_at};
use crate::storage::error::{Damage, ReplayError};

/// Bytes read in one call.
const CHUNK: usize = 1 << 20;
/// Disks write in units of this size, bytes, or of multiples.
const SECTOR: u64 = 512;
/// Why a record that its file ends inside of was not interrupted by a crash.
const WAS_CUT: &str = "beanstalkd makes a file as long as it is to be before it writes to it, so the \
                       end of this one was lost later, with all that was in it; if a longer one is \
                       elsewhere, import that";

/// A whole record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// A job with its tube, and where in the file its body begins.
    Whole { tube: String, job: Job, body: u64 },
    /// The new state of a job. If `whole_before` is given, the record may have been cut off there,
    /// counted from the start of the job, with zeros in place of the rest.
    Update {
        job: Job,
        whole_before: Option<usize>,
    },
}

/// Receives the content of a file, in order.
pub(super) trait Sink {
    /// The next record, and its offset. `Err` says why it cannot follow the records before it.
    fn record(&mut self, at: u64, record: Record) -> Result<(), ReplayError>;
    /// Take a damaged part.
    fn damage(&mut self, damage: Damage);
    /// Progress: bytes of the file read so far.
    fn progress(&mut self, done: u64);
}

/// How reading a file ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walked {
    pub(super) records: u64,
    /// Offset and size of a record that a crash interrupted, if nothing follows it.
    pub(super) torn: Option<(u64, u64)>,
    /// The last byte of the file is one of a record.
    pub(super) is_full: bool,
}

/// The layout that the first record of a file has: a machine of the other kind wrote it if it makes
/// sense there only.
pub(super) fn with_layout(file: &dyn ReadFile, version: Version) -> io::Result<Version> {
    let makes_sense = |version| -> io::Result<bool> {
        let mut walk = Walk::of("", file, version);
        walk.measure()?;
        Ok(matches!(walk.parse(VERSION_SIZE)?, Parsed::Record(..)))
    };
    let is_dense = !makes_sense(version)? && makes_sense(version.dense())?;
    Ok(if is_dense { version.dense() } else { version })
}

/// Read a file; `name` is used in reports. Bytes that the disk does not return are damage.
pub(super) fn walk(
    name: &str,
    file: &dyn ReadFile,
    version: Version,
    sink: &mut dyn Sink,
) -> Walked {
    let mut walk = Walk::of(name, file, version);
    if let Err(error) = walk.run(sink) {
        let size = walk.window.size.saturating_sub(walk.at);
        let what = format!("the disk does not give these bytes: {error}");
        sink.damage(walk.damage(size, what));
    }
    Walked {
        records: walk.records,
        torn: walk.torn,
        is_full: walk.at == walk.data_end && walk.data_end == walk.window.size,
    }
}

struct Walk<'a> {
    name: &'a str,
    window: Window<'a>,
    version: Version,
    /// After the last byte that is not zero.
    data_end: u64,
    /// Where the next record begins.
    at: u64,
    records: u64,
    torn: Option<(u64, u64)>,
}

/// The bytes where a record should begin.
enum Parsed {
    /// A record, and where it ends.
    Record(Record, u64),
    /// Not a record of beanstalkd; `end` is where it would end, if its length is plausible.
    Bad { what: String, end: Option<u64> },
}

/// A record before its body.
struct Head {
    has_name: bool,
    is_name_sound: bool,
    is_job_sound: bool,
    /// Where the job begins.
    job: u64,
    /// Where the body begins.
    end: u64,
}

impl Walk<'_> {
    fn of<'a>(name: &'a str, file: &'a dyn ReadFile, version: Version) -> Walk<'a> {
        Walk {
            name,
            window: Window::new(file),
            version,
            data_end: 0,
            at: VERSION_SIZE,
            records: 0,
            torn: None,
        }
    }

    fn measure(&mut self) -> io::Result<()> {
        self.window.size = self.window.file.size()?;
        self.data_end = self.window.data_end()?;
        Ok(())
    }

    fn run(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        self.measure()?;
        while self.at < self.data_end {
            sink.progress(self.at);
            let bad = match self.parse(self.at)? {
                Parsed::Record(record, end) => match sink.record(self.at, record) {
                    Ok(()) => {
                        self.records += 1;
                        self.at = end;
                        continue;
                    }
                    Err(error) => (error.to_string(), Some(end)),
                },
                Parsed::Bad { what, end } => (what, end),
            };
            let (what, end) = bad;
            if end.is_some_and(|end| end > self.window.size) {
                let size = self.window.size - self.at;
                sink.damage(self.damage(size, format!("{what}; {WAS_CUT}")));
                break;
            }
            if self.is_torn(end)? {
                self.torn = Some((self.at, self.data_end - self.at));
                break;
            }
            self.pass(what, end, sink)?;
        }
        Ok(())
    }

    /// Report the bad record here, and continue after it or, if its end is unknown, at the end of
    /// the file.
    fn pass(&mut self, what: String, end: Option<u64>, sink: &mut dyn Sink) -> io::Result<()> {
        let next = match end {
            Some(end) if end <= self.data_end && self.is_boundary(end)? => end,
            _ => self.data_end,
        };
        let what = if next == self.data_end && end != Some(next) {
            format!("{what}; what follows in this file cannot be understood")
        } else {
            what
        };
        sink.damage(self.damage(next - self.at, what));
        self.at = next;
        Ok(())
    }

    fn damage(&self, size: u64, what: String) -> Damage {
        Damage::new(self.name, Some((self.at, size)), what)
    }

    /// True if a crash cut off the record here: its rest, up to `end`, is zeros. A
    /// damaged length also leads past all data; but then it covers other records.
    fn is_torn(&mut self, end: Option<u64>) -> io::Result<bool> {
        let (at, data_end) = (self.at, self.data_end);
        let Some(end) = end.filter(|end| *end > data_end) else {
            return Ok(false);
        };
        let head = self.head(at)?;
        // The last byte that is not zero in a whole record, unless an update deletes the job.
        let state = head.job + self.version.state_offset() as u64;
        let last = if head.has_name { end - 1 } else { state };
        let sector = last / SECTOR * SECTOR;
        let is_cut = (sector > at && (data_end..=last).contains(&sector))
            // beanstalkd writes the name's size, the name, the job and the body one after the
            // other.
            || (head.has_name && data_end <= head.job)
            || (head.has_name && (state + 1..=head.end).contains(&data_end));
        let is_rest_sound = (data_end <= head.job || head.is_name_sound)
            && (data_end <= head.end || head.is_job_sound);
        Ok(is_cut && is_rest_sound && !self.has_body_end_inside(head.end)?)
    }

    /// The part of the record at `at` before its body.
    fn head(&mut self, at: u64) -> io::Result<Head> {
        let version = self.version;
        let (width, job_size) = (version.name_size_width(), version.job_size());
        let bytes = self.window.get(at, HEAD_SIZE_MAX)?;
        let name_size = bytes
            .get(..width)
            .and_then(|bytes| version.decode_name_size(bytes));
        let name_size = name_size.unwrap_or(0);
        let job = width + name_size;
        let name = bytes.get(width..job);
        let fields = bytes.get(job..job + job_size);
        Ok(Head {
            has_name: name_size > 0,
            is_name_sound: name_size == 0 || name.is_some_and(|name| decode_name(name).is_some()),
            is_job_sound: fields.is_some_and(|fields| version.decode_job(fields).is_ok()),
            job: at + job as u64,
            end: at + (job + job_size) as u64,
        })
    }

    /// True if, from `at` on, there is an end of line after which a record seems to begin, or only
    /// zeros.
    fn has_body_end_inside(&mut self, mut at: u64) -> io::Result<bool> {
        while at + 2 <= self.data_end {
            let size = (self.data_end - at).min(CHUNK as u64) as usize;
            let bytes = self.window.get(at, size)?.to_vec();
            for found in memchr::memmem::find_iter(&bytes, &BODY_END) {
                let next = at + found as u64 + 2;
                if next >= self.data_end {
                    return Ok(true);
                }
                // Its body is not read: this may be called at every end of line.
                let head = self.head(next)?;
                if head.is_name_sound && head.is_job_sound {
                    return Ok(true);
                }
            }
            at += (size - 1).max(1) as u64;
        }
        Ok(false)
    }

    /// True if a record, or only zeros, begin at `at`.
    fn is_boundary(&mut self, at: u64) -> io::Result<bool> {
        Ok(at >= self.data_end || matches!(self.parse(at)?, Parsed::Record(..)))
    }

    fn parse(&mut self, at: u64) -> io::Result<Parsed> {
        let version = self.version;
        let (width, job_size) = (version.name_size_width(), version.job_size());
        let data_end = self.data_end;
        let file_size = self.window.size;
        let bytes = self.window.get(at, HEAD_SIZE_MAX)?;
        let bad = |what: &str, end| {
            let what = what.to_owned();
            Ok(Parsed::Bad { what, end })
        };
        if bytes.len() < width {
            return bad("the file ends inside a record", Some(at + width as u64));
        }
        let Some(name_size) = version.decode_name_size(bytes) else {
            return bad("no tube has a name so long", None);
        };
        let head_size = width + name_size + job_size;
        let head_end = at + head_size as u64;
        if bytes.len() < head_size {
            return bad("the file ends inside a record", Some(head_end));
        }
        let (name, fields) = bytes[width..head_size].split_at(name_size);
        let body_size = version.body_size(fields).filter(|_| name_size > 0);
        let end = head_end + body_size.map_or(0, u64::from);
        let job = match version.decode_job(fields) {
            Ok(job) => job,
            Err(BadJob(what)) => return bad(what, Some(end)),
        };
        if name_size == 0 {
            let state = at + (width + version.state_offset()) as u64;
            // A file that ends inside the sector was cut: no crash leaves it so.
            let whole_before = whole_before(&job, at + width as u64, state, data_end)
                .filter(|_| (state / SECTOR + 1) * SECTOR <= file_size);
            let record = Record::Update { job, whole_before };
            return Ok(Parsed::Record(record, end));
        }
        let Some(tube) = decode_name(name) else {
            return bad("no tube has such a name", Some(end));
        };
        if job.state == State::Deleted {
            return bad("a whole job that is deleted", Some(end));
        }
        let record = Record::Whole {
            tube: tube.to_owned(),
            job,
            body: head_end,
        };
        if end > file_size {
            return bad("the file ends inside a body", Some(end));
        }
        let (body_end, id) = (end - BODY_END.len() as u64, job.id);
        if self.window.get(body_end, BODY_END.len())? != BODY_END {
            let what = format!("the body of job {id} does not end where it should");
            return bad(&what, Some(end));
        }
        Ok(Parsed::Record(record, end))
    }
}

/// A record that deletes a job, with zeros after it, may be another update whose last sector was
/// not written: then its state reads as zero. In that case, returns the offset in the job from
/// which bytes may be unwritten, as [`job`] counts. `start` is where the job begins, `state` where its
/// state is.
fn whole_before(found: &Job, start: u64, state: u64, data_end: u64) -> Option<usize> {
    let cut = state / SECTOR * SECTOR;
    let is_zero_from_cut = cut > start && data_end <= cut;
    (found.state == State::Deleted && is_zero_from_cut).then(|| job::STATE - (state - cut) as usize)
}

/// A file with a part of it in memory.
struct Window<'a> {
    file: &'a dyn ReadFile,
    size: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn ReadFile) -> Window<'a> {
        Window {
            file,
            size: 0,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// `size` bytes at `at`, at most a chunk; fewer at the end of the file.
    fn get(&mut self, at: u64, size: usize) -> io::Result<&[u8]> {
        let left = self.size.saturating_sub(at);
        let size = left.min(size as u64) as usize;
        let held_until = self.start + self.bytes.len() as u64;
        if at < self.start || at + size as u64 > held_until {
            let ahead = left.min(CHUNK as u64) as usize;
            // If the disk refuses a sector further ahead, that is reported when it is needed.
            self.fill(at, ahead).or_else(|_| self.fill(at, size))?;
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + size])
    }

    fn fill(&mut self, at: u64, size: usize) -> io::Result<()> {
        self.start = at;
        self.bytes.resize(size, 0);
        let filled = read_exact_at(self.file, &mut self.bytes, at);
        if filled.is_err() {
            self.bytes.clear();
        }
        filled
    }

    /// After the last byte that is not zero. Bytes that the disk does not return count as data: the
    /// walk reports them.
    fn data_end(&mut self) -> io::Result<u64> {
        let mut end = self.size;
        while end > 0 {
            let size = end.min(CHUNK as u64) as usize;
            let start = end - size as u64;
            match self.get(start, size) {
                Ok(bytes) => match data_end(bytes) {
                    0 => end = start,
                    inside => return Ok(start + inside as u64),
                },
                Err(_) => return Ok(end),
            }
        }
        Ok(0)
    }
}
