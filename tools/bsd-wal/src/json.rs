//! Jobs and records as JSON objects, one per line; and parsing jobs from them.
//!
//! Numbers are exact. Times are RFC 3339 in UTC, to the nanosecond. A body in UTF-8 is text in
//! `body`; any other body is in `body_base64`.
//!
//! The format of a dump is [`Line`]: an object for each job, in the order of their ids; then one
//! `{"pause":…}` for each paused tube and one `{"setting":…}` for each setting; then `{"end":…}` with the number of jobs and the next id, so
//! that a truncated dump is noticed.

use std::io::Write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bsd::UsageError;
use bsd::storage::format::{Entries, Entry, Record};
use bsd::storage::inspect::history::{Event, Fate, History, HistoryEntry, State};
use bsd::storage::inspect::{JobRecord, PauseRecord, RecordPlace, SettingRecord};
use bsd::types::{Counters, JobId, JobState};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::beyond::{AttributesObject, SettingObject};
use crate::human::{parse_timestamp, timestamp};

/// Bytes, as text if they are UTF-8.
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
    #[serde(skip_serializing_if = "Option::is_none")]
    buried_order: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<AttributesObject>,
    #[serde(flatten)]
    body: Body<'a>,
}

/// One line for a job, with its place among all buried jobs.
pub(crate) fn print_job(
    job: &JobRecord,
    buried_order: Option<u64>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
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
        buried_order,
        attributes: AttributesObject::of_job(&job.attributes),
        body: Body::new(&job.body),
    };
    print(&line, out)
}

/// One line for the pause of a tube.
pub(crate) fn print_pause(pause: &PauseRecord<'_>, out: &mut dyn Write) -> Result<(), Failure> {
    let line = LastLine::Pause(Pause {
        tube: pause.tube.to_owned(),
        until: timestamp(pause.until_wall_ns),
        duration: pause.duration,
    });
    print(&line, out)
}

/// One line for a setting.
pub(crate) fn print_setting(setting: &SettingRecord, out: &mut dyn Write) -> Result<(), Failure> {
    let SettingRecord { class, name, value } = setting;
    let object = SettingObject::of(*class, name, value);
    print(&LastLine::Setting(object), out)
}

/// The last line of a dump.
pub(crate) fn print_end(jobs: u64, next_id: JobId, out: &mut dyn Write) -> Result<(), Failure> {
    let next_id = next_id.0;
    print(&LastLine::End(End { jobs, next_id }), out)
}

/// The pause of a tube.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pause {
    tube: String,
    until: String,
    duration: u32,
}

/// The end of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    /// The jobs before it.
    pub(crate) jobs: u64,
    /// The id of the next job.
    pub(crate) next_id: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum LastLine {
    Pause(Pause),
    Setting(SettingObject),
    End(End),
}

/// A parsed line of a dump.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A job, and its place among all buried jobs.
    Job(Box<JobRecord>, Option<u64>),
    Pause {
        tube: String,
        until_wall_ns: u64,
        duration: u32,
    },
    Setting(SettingRecord),
    End(End),
}

/// A line as written; which fields belong together is checked afterwards.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine {
    id: Option<u64>,
    tube: Option<String>,
    state: Option<String>,
    pri: Option<u32>,
    delay: Option<u32>,
    ttr: Option<u32>,
    created: Option<String>,
    deadline: Option<String>,
    #[serde(default)]
    reserves: u32,
    #[serde(default)]
    timeouts: u32,
    #[serde(default)]
    releases: u32,
    #[serde(default)]
    buries: u32,
    #[serde(default)]
    kicks: u32,
    buried_order: Option<u64>,
    body: Option<String>,
    body_base64: Option<String>,
    attributes: Option<AttributesObject>,
    pause: Option<Pause>,
    setting: Option<SettingObject>,
    end: Option<End>,
}

/// Parse a line of a dump.
///
/// # Errors
/// The fault of the line, in words.
pub(crate) fn parse_line(bytes: &[u8]) -> Result<Line, UsageError> {
    let line: RawLine = serde_json::from_slice(bytes).map_err(|error| describe(&error))?;
    match line {
        RawLine {
            pause: Some(pause),
            id: None,
            setting: None,
            end: None,
            ..
        } => Ok(Line::Pause {
            until_wall_ns: parse_timestamp(&pause.until)?,
            tube: pause.tube,
            duration: pause.duration,
        }),
        RawLine {
            setting: Some(setting),
            id: None,
            pause: None,
            end: None,
            ..
        } => Ok(Line::Setting(setting.record()?)),
        RawLine {
            end: Some(end),
            id: None,
            pause: None,
            setting: None,
            ..
        } => Ok(Line::End(end)),
        RawLine {
            pause: None,
            setting: None,
            end: None,
            ..
        } => job(line),
        _ => Err("a line is a job, a pause, a setting or the end, not two of them".into()),
    }
}

fn job(line: RawLine) -> Result<Line, UsageError> {
    let id = JobId(need(line.id, "id")?);
    let created = need(line.created, "created")?;
    let record = JobRecord {
        id,
        tube: need(line.tube, "tube")?,
        state: state(&need(line.state, "state")?)?,
        pri: need(line.pri, "pri")?,
        delay: need(line.delay, "delay")?,
        ttr: need(line.ttr, "ttr")?,
        created_wall_ns: parse_timestamp(&created)?,
        deadline_wall_ns: line.deadline.as_deref().map(parse_timestamp).transpose()?,
        counters: Counters::new([
            line.reserves,
            line.timeouts,
            line.releases,
            line.buries,
            line.kicks,
        ]),
        body: body(line.body, line.body_base64)?,
        attributes: match &line.attributes {
            Some(attributes) => attributes.list()?,
            None => Vec::new(),
        },
    };
    Ok(Line::Job(Box::new(record), line.buried_order))
}

fn need<T>(field: Option<T>, name: &str) -> Result<T, UsageError> {
    field.ok_or_else(|| format!("the field \"{name}\" of a job is missing").into())
}

fn state(word: &str) -> Result<JobState, UsageError> {
    match word {
        "ready" => Ok(JobState::Ready),
        "reserved" => Ok(JobState::Reserved),
        "delayed" => Ok(JobState::Delayed),
        "buried" => Ok(JobState::Buried),
        other => Err(format!("{other:?} is no state: ready, reserved, delayed or buried").into()),
    }
}

fn body(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, UsageError> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => STANDARD
            .decode(base64)
            .map_err(|error| format!("\"body_base64\" is no base64: {error}").into()),
        (None, None) => Err("the field \"body\" or \"body_base64\" of a job is missing".into()),
        (Some(_), Some(_)) => Err("a job has one of \"body\" and \"body_base64\"".into()),
    }
}

/// The error and its position in the line, without the parser's own line number, which is always 1.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or_default();
    format!("{what} (at byte {} of the line)", error.column())
}

/// A record in the history of one job.
#[derive(Serialize)]
struct HistoryLine<'a> {
    file: &'a str,
    position: String,
    offset: u32,
    size: usize,
    salvaged: bool,
    /// It happened at this time or later.
    after: Option<String>,
    /// It happened at this time or earlier.
    before: Option<String>,
    event: &'static str,
    /// The description for people.
    words: &'a str,
    #[serde(flatten)]
    put: Option<PutPart<'a>>,
    #[serde(flatten)]
    state: Option<StatePart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<AttributesObject>,
}

#[derive(Serialize)]
struct PutPart<'a> {
    tube: &'a str,
    ttr: u32,
    body_size: usize,
}

#[derive(Serialize)]
struct StatePart {
    state: &'static str,
    pri: u32,
    delay: u32,
    deadline: Option<String>,
    #[serde(flatten)]
    counts: Counts,
}

impl From<State> for StatePart {
    fn from(state: State) -> StatePart {
        StatePart {
            state: state.state.word(),
            pri: state.pri,
            delay: state.delay,
            deadline: state.deadline_wall_ns.map(timestamp),
            counts: state.counters.into(),
        }
    }
}

/// One line for a record in the history of a job, with its description.
pub(crate) fn print_history(
    entry: &HistoryEntry,
    words: &str,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let (event, put, state) = match &entry.event {
        Event::Put {
            tube,
            ttr,
            body_size,
            state,
        } => {
            let put = PutPart {
                tube,
                ttr: *ttr,
                body_size: *body_size,
            };
            ("put", Some(put), Some(*state))
        }
        Event::Changed { state, .. } => ("changed", None, Some(*state)),
        Event::Attributes(_) => ("attributes", None, None),
        Event::Deleted => ("deleted", None, None),
    };
    let attributes = match &entry.event {
        Event::Attributes(list) => Some(AttributesObject::of(list)),
        _ => None,
    };
    let line = HistoryLine {
        file: &entry.file,
        position: entry.position.to_string(),
        offset: entry.position.offset(),
        size: entry.size,
        salvaged: entry.is_salvaged,
        after: entry.after_wall_ns.map(timestamp),
        before: entry.before_wall_ns.map(timestamp),
        event,
        words,
        put,
        state: state.map(StatePart::from),
        attributes,
    };
    print(&line, out)
}

/// The outcome of a job.
#[derive(Serialize)]
struct HistoryEnd<'a> {
    fate: &'static str,
    /// The description for people; `null` if the records tell it.
    words: Option<&'a str>,
    next_id: u64,
}

/// The last line of a history, with the description of the outcome.
pub(crate) fn print_history_end(
    history: &History,
    words: Option<&str>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let fate = match history.fate {
        Fate::There => "there",
        Fate::Kicked => "kicked",
        Fate::Older => "older",
        Fate::Again => "again",
        Fate::Deleted => "deleted",
        Fate::Dropped => "dropped",
        Fate::Unknown => "unknown",
        Fate::Lost => "lost",
        Fate::PerhapsLost => "perhaps lost",
        Fate::NeverPut => "never put",
    };
    let next_id = history.next_id.0;
    let end = HistoryEnd {
        fate,
        words,
        next_id,
    };
    print(&serde_json::json!({ "end": end }), out)
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
        /// The number of the kick of several jobs that it belongs to.
        #[serde(skip_serializing_if = "Option::is_none")]
        kick: Option<u16>,
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
        number: u16,
        tube: &'a str,
        state: &'static str,
        left: u32,
        due: Option<String>,
    },
    Setting(SettingObject),
    Attributes {
        id: u64,
        attributes: AttributesObject,
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

/// A wall time; 0 stands for none.
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
                kick,
                state,
                deadline_wall_ns,
                pri,
                delay,
                counters,
            } => What::Update {
                id: id.0,
                kick: (kick > 0).then_some(kick),
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
                due_wall_ns,
            } => What::Kick {
                number,
                tube,
                state: state.word(),
                left,
                due: time(due_wall_ns),
            },
            Record::Setting { class, name, value } => {
                What::Setting(SettingObject::of(class, name, value))
            }
            Record::Attributes { id, list } => What::Attributes {
                id: id.0,
                attributes: AttributesObject::of(list),
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

#[derive(Serialize)]
struct OfEntry<'a> {
    entry: u64,
    term: u64,
    certain: bool,
    #[serde(flatten)]
    what: What<'a>,
}

/// One line for a record of an entry: its index, its term, and whether a majority is known to have it.
pub(crate) fn print_entry(
    (entry, term, certain): (u64, u64, bool),
    record: &Record<'_>,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let what = record.into();
    let line = OfEntry {
        entry,
        term,
        certain,
        what,
    };
    print(&line, out)
}

/// One line.
pub(crate) fn print(line: &impl Serialize, out: &mut dyn Write) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, line).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        parse_line(line.as_bytes()).unwrap_err().to_string()
    }

    const JOB: &str = r#""id":7,"tube":"t","state":"ready","pri":1,"delay":0,"ttr":60,"created":"2026-01-31T12:00:00Z""#;

    #[test]
    fn a_job_is_read_as_it_was_printed() {
        for body in [&b"text \"quoted\" \n\x1b"[..], &[0xff, 0], b""] {
            let job = JobRecord {
                id: JobId(u64::MAX - 1),
                tube: "t".to_owned(),
                state: JobState::Delayed,
                pri: u32::MAX,
                delay: 5,
                ttr: 60,
                created_wall_ns: 1_800_000_000_123_456_789,
                deadline_wall_ns: Some(1_800_000_009_000_000_001),
                counters: Counters::new([1, 2, 3, 4, 5]),
                body: body.to_vec(),
                attributes: b"\x01\x01\0k".to_vec(),
            };
            let mut line = Vec::new();
            assert!(print_job(&job, Some(3), &mut line).is_ok());
            assert!(line.is_ascii() || std::str::from_utf8(&line).is_ok());
            assert!(!line.contains(&0x1b), "nothing reaches a terminal as it is");
            assert_eq!(parse_line(&line), Ok(Line::Job(Box::new(job), Some(3))));
        }
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let job = |rest: &str| format!("{{{JOB},{rest}}}");
        assert!(parse_line(job(r#""body":"x""#).as_bytes()).is_ok());
        assert!(refused("{").contains("EOF while parsing an object (at byte 1 of the line)"));
        assert!(refused("{}").contains("\"id\" of a job is missing"));
        assert!(refused(&format!("{{{JOB}}}")).contains("\"body_base64\" of a job is missing"));
        assert!(refused(&job(r#""body":"x","body_base64":"eA==""#)).contains("one of"));
        assert!(refused(&job(r#""body_base64":"?""#)).contains("no base64"));
        assert!(refused(&job(r#""body":"x","colour":1"#)).contains("unknown field `colour`"));
        assert!(refused(&job(r#""body":"x","end":{"jobs":1,"next_id":2}"#)).contains("not two"));
        let setting = r#""setting":{"class":"policy","name":"t","value":"v"}"#;
        assert!(parse_line(format!("{{{setting}}}").as_bytes()).is_ok());
        assert!(refused(&job(&format!(r#""body":"x",{setting}"#))).contains("not two"));
        assert!(refused(&format!("{{{setting},\"id\":1}}")).contains("not two"));
        let other = format!("{{{setting}}}").replace("policy", "law");
        assert!(refused(&other).contains("\"law\" is no class"));
        let key = job(r#""body":"x","attributes":{"key":"a b"}"#);
        assert!(refused(&key).contains("characters"));
        let ready = r#""state":"ready""#;
        let other = job(r#""body":"x""#).replace(ready, r#""state":"asleep""#);
        assert!(refused(&other).contains("\"asleep\" is no state"));
        let negative = job(r#""body":"x""#).replace(r#""pri":1"#, r#""pri":-1"#);
        assert!(refused(&negative).contains("invalid value: integer `-1`"));
    }
}
