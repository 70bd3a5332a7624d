//! The bytes of beanstalkd's files: its C structs as they lie in memory on little-endian machines.
//!
//! A file begins with its version; then come records, then zeros that were written ahead. A record:
//!
//! ```text
//! version 7   name size (4)  name  job (80)  body      beanstalkd 1.5 and later; times in ns
//! version 5   name size (8)  name  job (77)  body      beanstalkd 1.4; times in µs
//! ```
//!
//! On 32-bit x86 the compiler leaves no padding before 64-bit fields: a job has 72 bytes in version 7
//! and 69 in version 5, whose name size has 4. The file does not say so; a record does, because it
//! makes sense in one layout only. Fields are given here as they lie elsewhere: see [`Layout`].
//!
//! Name and body are present if the name size is not 0: the record of a put, or of a whole job that
//! beanstalkd moved. Otherwise the record is an update of an earlier job. The body ends in CR LF,
//! which its size counts. A deleted job has state 0. Nothing has a checksum.
//!
//! Nothing here reads a file: bytes in, values out.

use crate::types::{Counters, JobId, SECOND_NS, TUBE_NAME_MAX, is_tube_name};

/// Bytes of the version at the start of a file.
pub(super) const VERSION_SIZE: u64 = 4;
/// The end of every body.
pub(super) const BODY_END: [u8; 2] = *b"\r\n";
/// The smallest record of a put, bytes.
pub(super) const PUT_SIZE_MIN: u64 = 4 + 1 + 80 + BODY_END.len() as u64;
/// Ids from this one on leave none for the next job.
pub(super) const ID_END: u64 = u64::MAX - 1;
/// Bytes of a record before its body, at most.
pub(super) const HEAD_SIZE_MAX: usize = 8 + TUBE_NAME_MAX + 80;

/// The offsets of a job's fields, in both versions. Bytes 12..16 and 36..40 are padding by the
/// compiler, and 77..80 in version 7; they may hold anything.
pub(super) mod job {
    /// u64.
    pub(in crate::storage::convert::beanstalkd) const ID: usize = 0;
    /// u32.
    pub(in crate::storage::convert::beanstalkd) const PRI: usize = 8;
    /// i64, a time.
    pub(in crate::storage::convert::beanstalkd) const DELAY: usize = 16;
    /// i64, a time.
    pub(in crate::storage::convert::beanstalkd) const TTR: usize = 24;
    /// i32, bytes with CR LF.
    pub(in crate::storage::convert::beanstalkd) const BODY_SIZE: usize = 32;
    /// i64, wall time.
    pub(in crate::storage::convert::beanstalkd) const CREATED: usize = 40;
    /// i64, wall time at which a delayed job becomes due or a reservation would have ended.
    pub(in crate::storage::convert::beanstalkd) const DEADLINE: usize = 48;
    /// u32.
    pub(in crate::storage::convert::beanstalkd) const RESERVES: usize = 56;
    /// u32.
    pub(in crate::storage::convert::beanstalkd) const TIMEOUTS: usize = 60;
    /// u32.
    pub(in crate::storage::convert::beanstalkd) const RELEASES: usize = 64;
    /// u32.
    pub(in crate::storage::convert::beanstalkd) const BURIES: usize = 68;
    /// u32.
    pub(in crate::storage::convert::beanstalkd) const KICKS: usize = 72;
    /// u8.
    pub(in crate::storage::convert::beanstalkd) const STATE: usize = 76;
}

/// The version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// beanstalkd 1.4.
    Five(Layout),
    /// beanstalkd 1.5 and later.
    Seven(Layout),
}

/// How a compiler lays out a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// 64-bit fields at multiples of 8: x86-64, arm64, 32-bit ARM.
    Padded,
    /// 64-bit fields at multiples of 4: 32-bit x86.
    Dense,
}

impl Layout {
    /// The fields of a job as [`Layout::Padded`] has them; `bytes` has all of them.
    fn padded(self, bytes: &[u8]) -> [u8; job::STATE + 1] {
        let mut fields = [0; job::STATE + 1];
        match self {
            Layout::Padded => fields.copy_from_slice(&bytes[..=job::STATE]),
            Layout::Dense => {
                let body_size_end = job::BODY_SIZE + 4;
                set(&mut fields, job::ID, &bytes[..12]);
                set(&mut fields, job::DELAY, &bytes[12..body_size_end - 4]);
                set(
                    &mut fields,
                    job::CREATED,
                    &bytes[body_size_end - 4..=job::STATE - 8],
                );
            }
        }
        fields
    }
}

/// The version that bsd writes for beanstalkd.
const SEVEN: Version = Version::Seven(Layout::Padded);

impl Version {
    /// The version that a file of these first bytes has; `Err` is the number of an unknown one.
    pub(super) fn decode(bytes: [u8; VERSION_SIZE as usize]) -> Result<Version, u32> {
        match u32::from_le_bytes(bytes) {
            5 => Ok(Version::Five(Layout::Padded)),
            7 => Ok(Version::Seven(Layout::Padded)),
            unknown => Err(unknown),
        }
    }

    /// The same version as 32-bit x86 writes it.
    pub(super) fn dense(self) -> Version {
        match self {
            Version::Five(_) => Version::Five(Layout::Dense),
            Version::Seven(_) => Version::Seven(Layout::Dense),
        }
    }

    fn layout(self) -> Layout {
        let (Version::Five(layout) | Version::Seven(layout)) = self;
        layout
    }

    /// Bytes of the field that holds the size of the tube's name.
    pub(super) fn name_size_width(self) -> usize {
        match self {
            Version::Five(Layout::Padded) => 8,
            Version::Five(Layout::Dense) | Version::Seven(_) => 4,
        }
    }

    /// Bytes of a job without name and body.
    pub(super) fn job_size(self) -> usize {
        match self {
            Version::Five(_) => self.state_offset() + 1,
            Version::Seven(_) => (self.state_offset() + 1).next_multiple_of(4),
        }
    }

    /// The offset of a job's state.
    pub(super) fn state_offset(self) -> usize {
        match self.layout() {
            Layout::Padded => job::STATE,
            Layout::Dense => job::STATE - 8,
        }
    }

    /// The body's size with CR LF, according to these [`Version::job_size`] bytes, if it is
    /// possible.
    pub(super) fn body_size(self, bytes: &[u8]) -> Option<u32> {
        body_size(&self.layout().padded(bytes))
    }

    /// Nanoseconds in the unit of times.
    fn unit_ns(self) -> u64 {
        match self {
            Version::Five(_) => 1000,
            Version::Seven(_) => 1,
        }
    }

    /// The size of the name at the start of a record; `None` if no tube has so long a name.
    pub(super) fn decode_name_size(self, bytes: &[u8]) -> Option<usize> {
        let size = match self.name_size_width() {
            8 => u64::from_le_bytes(array(bytes, 0)),
            _ => u32::from_le_bytes(array(bytes, 0)).into(),
        };
        usize::try_from(size)
            .ok()
            .filter(|size| *size <= TUBE_NAME_MAX)
    }

    /// The job in these [`Version::job_size`] bytes.
    pub(super) fn decode_job(self, bytes: &[u8]) -> Result<Job, BadJob> {
        let unit = self.unit_ns();
        let bytes = &self.layout().padded(bytes);
        let id = u64_at(bytes, job::ID);
        let created = u64_at(bytes, job::CREATED);
        Ok(Job {
            id: match id {
                // One id must remain for the next job.
                0 | ID_END.. => return Err(BadJob("no job has such an id")),
                id => JobId(id),
            },
            pri: u32_at(bytes, job::PRI),
            delay: seconds(u64_at(bytes, job::DELAY), unit).ok_or(BadJob("no delay is so long"))?,
            ttr: seconds(u64_at(bytes, job::TTR), unit)
                .filter(|ttr| *ttr > 0)
                .ok_or(BadJob("no time to run is so long"))?,
            body_size: body_size(bytes).ok_or(BadJob("no body has such a size"))?,
            created_wall_ns: wall_ns(created, unit)
                .filter(|wall_ns| *wall_ns > 0)
                .ok_or(BadJob("there is no such time of creation"))?,
            deadline_wall_ns: wall_ns(u64_at(bytes, job::DEADLINE), unit)
                .ok_or(BadJob("there is no such deadline"))?,
            counters: Counters::new([
                u32_at(bytes, job::RESERVES),
                u32_at(bytes, job::TIMEOUTS),
                u32_at(bytes, job::RELEASES),
                u32_at(bytes, job::BURIES),
                u32_at(bytes, job::KICKS),
            ]),
            state: State::decode(bytes[job::STATE]).ok_or(BadJob("there is no such state"))?,
        })
    }
}

/// The body's size with CR LF, according to these bytes of a job, if it is possible.
fn body_size(bytes: &[u8]) -> Option<u32> {
    let size = u32_at(bytes, job::BODY_SIZE);
    (size >= BODY_END.len() as u32 && i32::try_from(size).is_ok()).then_some(size)
}

/// The state of a job in beanstalkd's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Deleted,
    Ready,
    /// Ready again after a restart.
    Reserved,
    Buried,
    Delayed,
}

impl State {
    fn decode(byte: u8) -> Option<State> {
        match byte {
            0 => Some(State::Deleted),
            1 => Some(State::Ready),
            2 => Some(State::Reserved),
            3 => Some(State::Buried),
            4 => Some(State::Delayed),
            _ => None,
        }
    }

    fn encode(self) -> u8 {
        match self {
            State::Deleted => 0,
            State::Ready => 1,
            State::Reserved => 2,
            State::Buried => 3,
            State::Delayed => 4,
        }
    }
}

/// What beanstalkd never writes into a job, as words for a person.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadJob(pub(super) &'static str);

/// A job as a record has it, in bsd's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) pri: u32,
    /// Seconds, as last requested.
    pub(super) delay: u32,
    /// Seconds.
    pub(super) ttr: u32,
    /// Bytes, with CR LF.
    pub(super) body_size: u32,
    pub(super) created_wall_ns: u64,
    pub(super) deadline_wall_ns: u64,
    pub(super) counters: Counters,
    pub(super) state: State,
}

impl Job {
    /// True if the two can be records of one job: the constant fields are the same.
    pub(super) fn is_same_job(&self, other: &Job) -> bool {
        let fixed = |job: &Job| (job.id, job.ttr, job.body_size, job.created_wall_ns);
        fixed(self) == fixed(other)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + SEVEN.job_size(), 0);
        let bytes = &mut out[start..];
        let ns = |seconds: u32| u64::from(seconds) * SECOND_NS as u64;
        set(bytes, job::ID, &self.id.0.to_le_bytes());
        set(bytes, job::PRI, &self.pri.to_le_bytes());
        set(bytes, job::DELAY, &ns(self.delay).to_le_bytes());
        set(bytes, job::TTR, &ns(self.ttr).to_le_bytes());
        set(bytes, job::BODY_SIZE, &self.body_size.to_le_bytes());
        set(bytes, job::CREATED, &self.created_wall_ns.to_le_bytes());
        set(bytes, job::DEADLINE, &self.deadline_wall_ns.to_le_bytes());
        let counters = &self.counters;
        set(bytes, job::RESERVES, &counters.reserves.to_le_bytes());
        set(bytes, job::TIMEOUTS, &counters.timeouts.to_le_bytes());
        set(bytes, job::RELEASES, &counters.releases.to_le_bytes());
        set(bytes, job::BURIES, &counters.buries.to_le_bytes());
        set(bytes, job::KICKS, &counters.kicks.to_le_bytes());
        bytes[job::STATE] = self.state.encode();
    }
}

/// The beginning of a file of version 7.
pub(super) fn encode_version(out: &mut Vec<u8>) {
    out.extend_from_slice(&7_u32.to_le_bytes());
}

/// Bytes of a version 7 record of a whole job.
pub(super) fn put_size(tube: &str, body: &[u8]) -> u64 {
    let version = SEVEN;
    let head = version.name_size_width() + tube.len() + version.job_size();
    (head + body.len() + BODY_END.len()) as u64
}

/// A version 7 record of a whole job; `body` is without CR LF, `job.body_size` with it.
pub(super) fn encode_put(tube: &str, job: &Job, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(tube.len() as u32).to_le_bytes());
    out.extend_from_slice(tube.as_bytes());
    job.encode(out);
    out.extend_from_slice(body);
    out.extend_from_slice(&BODY_END);
}

/// A version 7 record of a job's new state.
pub(super) fn encode_update(job: &Job, out: &mut Vec<u8>) {
    out.extend_from_slice(&0_u32.to_le_bytes());
    job.encode(out);
}

/// The name of a tube in these bytes.
pub(super) fn decode_name(bytes: &[u8]) -> Option<&str> {
    is_tube_name(bytes)
        .then(|| std::str::from_utf8(bytes).ok())
        .flatten()
}

/// A time span, which clients give in seconds.
fn seconds(value: u64, unit_ns: u64) -> Option<u32> {
    let second = SECOND_NS as u64 / unit_ns;
    value
        .is_multiple_of(second)
        .then(|| u32::try_from(value / second).ok())
        .flatten()
}

/// A signed wall time that is not before 1970.
fn wall_ns(value: u64, unit_ns: u64) -> Option<u64> {
    let wall_ns = value.checked_mul(unit_ns)?;
    i64::try_from(wall_ns).is_ok().then_some(wall_ns)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            id: JobId(0x0102_0304_0506_0708),
            pri: 9,
            delay: 30,
            ttr: 60,
            body_size: 5,
            created_wall_ns: 1_800_000_000_000_000_000,
            deadline_wall_ns: 1_800_000_030_000_000_000,
            counters: Counters::new([1, 2, 3, 4, 5]),
            state: State::Delayed,
        }
    }

    /// The bytes of beanstalkd 1.12 for `put 6 100 7 4` into the tube `alpha`, as the job with id
    /// 2.
    #[test]
    fn a_record_is_what_beanstalkd_writes() {
        let written = "05000000616c7068610200000000000000060000000000000000e87648170000000086\
            3ba101000000060000000000000040d8fbf9730cea1840c072428b0cea180000000000\
            00000000000000000000000000000004000000646464640d0a";
        let written: Vec<u8> = (0..written.len() / 2)
            .map(|at| u8::from_str_radix(&written[at * 2..at * 2 + 2], 16).unwrap())
            .collect();
        let job = Job {
            id: JobId(2),
            pri: 6,
            delay: 100,
            ttr: 7,
            body_size: 6,
            created_wall_ns: 0x18ea_0c73_f9fb_d840,
            deadline_wall_ns: 0x18ea_0c8b_4272_c040,
            counters: Counters::default(),
            state: State::Delayed,
        };
        assert_eq!(SEVEN.decode_job(&written[9..89]), Ok(job));
        let mut encoded = Vec::new();
        encode_put("alpha", &job, b"dddd", &mut encoded);
        assert_eq!(encoded, written);
        assert_eq!(put_size("alpha", b"dddd"), written.len() as u64);
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut bytes = Vec::new();
        encode_update(&job(), &mut bytes);
        assert_eq!(SEVEN.decode_name_size(&bytes), Some(0));
        assert_eq!(SEVEN.decode_job(&bytes[4..]), Ok(job()));
    }

    #[test]
    fn what_beanstalkd_never_writes_is_no_job() {
        let mut sound = Vec::new();
        job().encode(&mut sound);
        let cases: [(usize, &[u8]); 11] = [
            (job::ID, &[0; 8]),
            (job::ID, &[255; 8]),
            (job::ID, &[254, 255, 255, 255, 255, 255, 255, 255]),
            (job::DELAY, &[1]),
            (job::TTR, &[0; 8]),
            (job::TTR, &[255; 8]),
            (job::BODY_SIZE, &[1]),
            (job::BODY_SIZE, &[255; 4]),
            (job::CREATED, &[0; 8]),
            (job::DEADLINE, &[255; 8]),
            (job::STATE, &[5]),
        ];
        for (at, value) in cases {
            let mut bytes = sound.clone();
            set(&mut bytes, at, value);
            assert!(SEVEN.decode_job(&bytes).is_err(), "field at {at}");
        }
    }

    #[test]
    fn versions_are_told_apart() {
        let five = Version::Five(Layout::Padded);
        assert_eq!(Version::decode([5, 0, 0, 0]), Ok(five));
        assert_eq!(Version::decode([7, 0, 0, 0]), Ok(SEVEN));
        assert_eq!(Version::decode([6, 0, 0, 0]), Err(6));
        assert_eq!(Version::decode([0, 0, 0, 7]), Err(7 << 24));
    }
}
