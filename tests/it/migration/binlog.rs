//! beanstalkd's files, written by an encoder of the tests' own: fields in the order in which
//! beanstalkd's structs have them, each at a multiple of its size.

use super::{SECOND_NS, WALL_NS};

pub(crate) const DELETED: u8 = 0;
pub(crate) const READY: u8 = 1;
pub(crate) const RESERVED: u8 = 2;
pub(crate) const BURIED: u8 = 3;
pub(crate) const DELAYED: u8 = 4;

/// A version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V5,
    V7,
    /// Version 7 as a 32-bit x86 writes it: fields of 8 bytes at multiples of 4.
    V7Dense,
}

/// A job in a record.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) id: u64,
    pub(crate) tube: &'static str,
    pub(crate) pri: u32,
    /// Seconds.
    pub(crate) delay: u64,
    /// Seconds.
    pub(crate) ttr: u64,
    pub(crate) created_ns: u64,
    pub(crate) deadline_ns: u64,
    /// Reserves, timeouts, releases, buries, kicks.
    pub(crate) counters: [u32; 5],
    pub(crate) state: u8,
    pub(crate) body: Vec<u8>,
}

/// A ready job that was just put.
pub(crate) fn job(id: u64, body: &[u8]) -> Job {
    Job {
        id,
        tube: "default",
        pri: id as u32 + 10,
        delay: 0,
        ttr: 60,
        created_ns: WALL_NS - id * SECOND_NS,
        deadline_ns: 0,
        counters: [0; 5],
        state: READY,
        body: body.to_vec(),
    }
}

impl Job {
    pub(crate) fn tube(self, tube: &'static str) -> Job {
        Job { tube, ..self }
    }

    pub(crate) fn in_state(&self, state: u8) -> Job {
        Job {
            state,
            ..self.clone()
        }
    }

    /// As after the first `bury`, with the reservation that is before it.
    pub(crate) fn buried(&self) -> Job {
        Job {
            counters: [1, 0, 0, 1, 0],
            deadline_ns: WALL_NS,
            ..self.in_state(BURIED)
        }
    }
}

impl Version {
    pub(crate) fn name_width(self) -> usize {
        match self {
            Version::V5 => 8,
            Version::V7 | Version::V7Dense => 4,
        }
    }

    pub(crate) fn job_size(self) -> usize {
        match self {
            Version::V5 => 77,
            Version::V7 => 80,
            Version::V7Dense => 72,
        }
    }

    /// A file: its records, then zeros up to a multiple of 4 KiB.
    pub(crate) fn file(self, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.cut_file(records);
        bytes.resize(bytes.len().next_multiple_of(4096).max(8192), 0);
        bytes
    }

    /// A file that ends with its last record, as when beanstalkd has gone on in another.
    pub(crate) fn cut_file(self, records: &[Vec<u8>]) -> Vec<u8> {
        let version: u32 = match self {
            Version::V5 => 5,
            Version::V7 | Version::V7Dense => 7,
        };
        let mut bytes = version.to_le_bytes().to_vec();
        bytes.extend(records.concat());
        bytes
    }

    /// The record of a put, or of a job that was moved.
    pub(crate) fn put(self, job: &Job) -> Vec<u8> {
        let mut bytes = self.name_size(job.tube.len());
        bytes.extend_from_slice(job.tube.as_bytes());
        bytes.extend(self.fields(job));
        bytes.extend_from_slice(&job.body);
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    /// The record of an update, or of a delete.
    pub(crate) fn update(self, job: &Job) -> Vec<u8> {
        [self.name_size(0), self.fields(job)].concat()
    }

    pub(crate) fn delete(self, job: &Job) -> Vec<u8> {
        self.update(&job.in_state(DELETED))
    }

    fn name_size(self, size: usize) -> Vec<u8> {
        let mut bytes = (size as u64).to_le_bytes().to_vec();
        bytes.truncate(self.name_width());
        bytes
    }

    fn fields(self, job: &Job) -> Vec<u8> {
        let unit = match self {
            Version::V5 => 1000,
            Version::V7 | Version::V7Dense => 1,
        };
        let time = |ns: u64| (ns / unit).to_le_bytes();
        let padding = match self {
            Version::V7Dense => &[][..],
            Version::V5 | Version::V7 => &[0; 4],
        };
        let mut bytes = job.id.to_le_bytes().to_vec();
        bytes.extend(job.pri.to_le_bytes());
        bytes.extend(padding);
        bytes.extend(time(job.delay * SECOND_NS));
        bytes.extend(time(job.ttr * SECOND_NS));
        bytes.extend((job.body.len() as u32 + 2).to_le_bytes());
        bytes.extend(padding);
        bytes.extend(time(job.created_ns));
        bytes.extend(time(job.deadline_ns));
        for counter in job.counters {
            bytes.extend(counter.to_le_bytes());
        }
        bytes.push(job.state);
        bytes.resize(self.job_size(), 0);
        bytes
    }
}
