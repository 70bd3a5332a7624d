//! Jobs and records as JSON objects, one a line.
//!
//! Numbers are exact. Times are RFC 3339 in UTC, to the nanosecond. Bytes that are UTF-8 are text in
//! `body`; all others are in `body_base64`.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bsd::storage::format::{Entries, Entry, Record};
use bsd::storage::inspect::{JobRecord, RecordPlace};
use bsd::types::Counters;
use serde::Serialize;

use crate::Failure;
use crate::human::timestamp;

/// Bytes, as text where they are.
#[derive(Serialize)]
enum Body<'a> {
    #[serde(rename = "body")]
    Text(&'a str),
    #[serde(rename = "body_base64")]
    Bytes(String),
}

impl Body<'_> {
    fn new(bytes: &[u8]) -> Body<'_> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Body::Text(text),
            Err(_) => Body::Bytes(STANDARD.encode(bytes)),
        }
    }
}

#[derive(Serialize)]
struct Counts {
    reserves: u32,
    timeouts: u32,
    releases: u32,
    buries: u32,
    kicks: u32,
}

impl From<Counters> for Counts {
    fn from(counters: Counters) -> Counts {
        let Counters {
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
        } = counters;
        Counts {
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
        }
    }
}

#[derive(Serialize)]
struct Job<'a> {
    id: u64,
    tube: &'a str,
    state: &'a str,
    pri: u32,
    delay: u32,
    ttr: u32,
    created: String,
    deadline: Option<String>,
    #[serde(flatten)]
    counts: Counts,
    #[serde(flatten)]
    body: Body<'a>,
}

/// One line for a job.
pub(crate) fn print_job(job: &JobRecord, out: &mut dyn Write) -> Result<(), Failure> {
    let line = Job {
        id: job.id.0,
        tube: &job.tube,
        state: job.state.word(),
        pri: job.pri,
        delay: job.delay,
        ttr: job.ttr,
        created: timestamp(job.created_wall_ns),
        deadline: job.deadline_wall_ns.map(timestamp),
        counts: job.counters.into(),
        body: Body::new(&job.body),
    };
    print(&line, out)
}

#[derive(Serialize)]
struct Placed<'a> {
    position: String,
    file: &'a str,
    offset: u32,
    size: usize,
    salvaged: bool,
    #[serde(flatten)]
    what: What<'a>,
}

#[derive(Serialize)]
#[serde(tag = "record", rename_all = "lowercase")]
enum What<'a> {
    Put {
        id: u64,
        tube: &'a str,
        pri: u32,
        delay: u32,
        ttr: u32,
        created: String,
        #[serde(flatten)]
        body: Body<'a>,
    },
    Update {
        id: u64,
        state: &'a str,
        pri: u32,
        delay: u32,
        deadline: Option<String>,
        #[serde(flatten)]
        counts: Counts,
    },
    Delete {
        id: u64,
        put_segment: u32,
    },
    Pause {
        tube: &'a str,
        until: Option<String>,
        duration: u32,
    },
    Kick {
        number: u32,
        tube: &'a str,
        state: &'static str,
        left: u32,
        run: u32,
    },
    Manifest {
        next_id: u64,
        files: Vec<File>,
    },
    Switch {
        removed: Vec<File>,
        added: Vec<File>,
    },
}

#[derive(Serialize)]
struct File {
    file: String,
    first: u32,
    last: u32,
    end: u32,
}

impl From<Entry> for File {
    fn from(entry: Entry) -> File {
        let (first, last) = (entry.first.0, entry.last.0);
        File {
            file: entry.file_name(),
            first,
            last,
            end: entry.end,
        }
    }
}

fn files(entries: &Entries<'_>) -> Vec<File> {
    entries.to_vec().into_iter().map(File::from).collect()
}

/// A wall time of which 0 stands for none.
fn time(wall_ns: u64) -> Option<String> {
    (wall_ns != 0).then(|| timestamp(wall_ns))
}

impl<'a> From<&Record<'a>> for What<'a> {
    fn from(record: &Record<'a>) -> What<'a> {
        match *record {
            Record::Put {
                id,
                created_wall_ns,
                pri,
                delay,
                ttr,
                tube,
                body,
            } => What::Put {
                id: id.0,
                tube,
                pri,
                delay,
                ttr,
                created: timestamp(created_wall_ns),
                body: Body::new(body),
            },
            Record::Update {
                id,
                state,
                deadline_wall_ns,
                pri,
                delay,
                counters,
            } => What::Update {
                id: id.0,
                state: state.word(),
                pri,
                delay,
                deadline: time(deadline_wall_ns),
                counts: counters.into(),
            },
            Record::Delete { id, put_segment } => What::Delete {
                id: id.0,
                put_segment: put_segment.0,
            },
            Record::Pause {
                tube,
                until_wall_ns,
                duration,
            } => What::Pause {
                tube,
                until: time(until_wall_ns),
                duration,
            },
            Record::Kick {
                number,
                tube,
                state,
                left,
                run,
            } => What::Kick {
                number,
                tube,
                state: state.word(),
                left,
                run,
            },
            Record::Manifest { next_id, entries } => What::Manifest {
                next_id: next_id.0,
                files: files(&entries),
            },
            Record::Switch { removed, added } => What::Switch {
                removed: files(&removed),
                added: files(&added),
            },
        }
    }
}

/// One line for a record.
pub(crate) fn print_record(
    place: &RecordPlace<'_>,
    record: &Record<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let line = Placed {
        position: place.position.to_string(),
        file: place.file,
        offset: place.position.offset(),
        size: place.size,
        salvaged: place.is_salvaged,
        what: record.into(),
    };
    print(&line, out)
}

fn print(line: &impl Serialize, out: &mut dyn Write) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, line).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}
