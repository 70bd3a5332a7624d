//! The documents of `stats`, `stats-job`, `stats-tube` and the tube lists.
//!
//! Clients read these with YAML parsers of every quality, with regular expressions and line by
//! line, so the form equals beanstalkd 1.13's byte for byte: the keys, their order, and which
//! values are quoted (`version`, `hostname`, `os`, `platform`, and tube names except in lists).
//! `stats-job` and `stats-tube` never get additional keys, since clients compare the whole
//! dictionary; `stats` may, after the known ones.
//!
//! The structs are plain data; other modules do the counting. All times are in whole seconds unless
//! the name says otherwise.

use super::number::push_u64;
use super::{Cursor, JobPage, Op};
use crate::types::{Counters, JobCounts, JobId, JobState};

/// The values of `stats-job`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobStats<'a> {
    /// The job.
    pub id: JobId,
    /// The tube it lives in.
    pub tube: &'a str,
    /// Its state.
    pub state: JobState,
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds since it was put.
    pub age: u64,
    /// The delay last requested, seconds.
    pub delay: u32,
    /// Seconds that a worker may take.
    pub ttr: u32,
    /// Seconds until a reserved or delayed job becomes ready, else 0.
    pub time_left: u64,
    /// The number of the log file that holds it; 0 without a log.
    pub file: u32,
    /// How often each event has happened to it.
    pub counters: Counters,
}

/// The values of `stats-tube`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TubeStats<'a> {
    /// The tube.
    pub name: &'a str,
    /// Jobs in it.
    pub jobs: JobCounts,
    /// Jobs ever put into it.
    pub total_jobs: u64,
    /// Connections that use it.
    pub current_using: u64,
    /// Connections that watch it.
    pub current_watching: u64,
    /// Connections that watch it and wait for a job.
    pub current_waiting: u64,
    /// Jobs deleted from it by clients.
    pub cmd_delete: u64,
    /// How often it was paused.
    pub cmd_pause_tube: u64,
    /// The length of the current pause, seconds; 0 without a pause.
    pub pause: u32,
    /// Seconds until that pause ends.
    pub pause_time_left: u64,
}

/// The values of `stats`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerStats<'a> {
    /// Jobs in all tubes.
    pub jobs: JobCounts,
    /// How often each command was run, indexed by `op as usize`. Some are counted but not shown, as
    /// in beanstalkd.
    pub commands: &'a [u64; Op::COUNT],
    /// Reservations that ran out of time.
    pub job_timeouts: u64,
    /// Jobs ever put.
    pub total_jobs: u64,
    /// The largest body a put may have, bytes.
    pub max_job_size: u64,
    /// Tubes that exist.
    pub current_tubes: u64,
    /// Open connections.
    pub current_connections: u64,
    /// Open connections that have put a job.
    pub current_producers: u64,
    /// Open connections that have reserved a job, or tried to.
    pub current_workers: u64,
    /// Open connections that wait for a job.
    pub current_waiting: u64,
    /// Connections ever accepted.
    pub total_connections: u64,
    /// The server's process id.
    pub pid: u32,
    /// The server's version: digits and dots, because clients parse it.
    pub version: &'a str,
    /// Processor time spent in user mode, microseconds.
    pub rusage_utime_us: u64,
    /// Processor time spent in the kernel, microseconds.
    pub rusage_stime_us: u64,
    /// Seconds since the start.
    pub uptime: u64,
    /// The oldest log file in use; 0 without a log.
    pub binlog_oldest_index: u32,
    /// The log file that is being written; 0 without a log.
    pub binlog_current_index: u32,
    /// Records copied by compaction.
    pub binlog_records_migrated: u64,
    /// Records written.
    pub binlog_records_written: u64,
    /// The size of a log file, bytes.
    pub binlog_max_size: u64,
    /// True when puts are refused.
    pub draining: bool,
    /// A random word that distinguishes this run of the server from others: hexadecimal digits,
    /// since it is not quoted.
    pub id: &'a str,
    /// The machine's name, from `uname`.
    pub hostname: &'a str,
    /// The system's version, from `uname`.
    pub os: &'a str,
    /// The machine's architecture, from `uname`.
    pub platform: &'a str,
    /// Keys that beanstalkd does not have; plain words, different from the keys above.
    pub extra: &'a [(&'a str, u64)],
}

impl JobStats<'_> {
    /// Appends the document.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut document = Document::begin(out);
        document.number("id", self.id.0);
        document.quoted("tube", self.tube);
        document.word("state", self.state.word());
        document.number("pri", self.pri);
        document.number("age", self.age);
        document.number("delay", self.delay);
        document.number("ttr", self.ttr);
        document.number("time-left", self.time_left);
        document.number("file", self.file);
        document.number("reserves", self.counters.reserves);
        document.number("timeouts", self.counters.timeouts);
        document.number("releases", self.counters.releases);
        document.number("buries", self.counters.buries);
        document.number("kicks", self.counters.kicks);
    }
}

impl TubeStats<'_> {
    /// Appends the document.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut document = Document::begin(out);
        document.quoted("name", self.name);
        document.jobs(self.jobs);
        document.number("total-jobs", self.total_jobs);
        document.number("current-using", self.current_using);
        document.number("current-watching", self.current_watching);
        document.number("current-waiting", self.current_waiting);
        document.number("cmd-delete", self.cmd_delete);
        document.number("cmd-pause-tube", self.cmd_pause_tube);
        document.number("pause", self.pause);
        document.number("pause-time-left", self.pause_time_left);
    }
}

impl ServerStats<'_> {
    /// Appends the document.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut document = Document::begin(out);
        document.jobs(self.jobs);
        for (key, op) in COMMAND_KEYS {
            document.number(key, self.commands[op as usize]);
        }
        document.number("job-timeouts", self.job_timeouts);
        document.number("total-jobs", self.total_jobs);
        document.number("max-job-size", self.max_job_size);
        document.number("current-tubes", self.current_tubes);
        document.number("current-connections", self.current_connections);
        document.number("current-producers", self.current_producers);
        document.number("current-workers", self.current_workers);
        document.number("current-waiting", self.current_waiting);
        document.number("total-connections", self.total_connections);
        document.number("pid", self.pid);
        document.quoted("version", self.version);
        document.seconds("rusage-utime", self.rusage_utime_us);
        document.seconds("rusage-stime", self.rusage_stime_us);
        document.number("uptime", self.uptime);
        document.number("binlog-oldest-index", self.binlog_oldest_index);
        document.number("binlog-current-index", self.binlog_current_index);
        document.number("binlog-records-migrated", self.binlog_records_migrated);
        document.number("binlog-records-written", self.binlog_records_written);
        document.number("binlog-max-size", self.binlog_max_size);
        document.word("draining", if self.draining { "true" } else { "false" });
        document.word("id", self.id);
        document.quoted("hostname", self.hostname);
        document.quoted("os", self.os);
        document.quoted("platform", self.platform);
        for (key, value) in self.extra {
            document.number(key, *value);
        }
    }
}

/// Appends the document of `list-tubes` and `list-tubes-watched`. The names are not quoted:
/// [`is_tube_name`](crate::types::is_tube_name) excludes everything that YAML could misread except
/// words like `null` and `1`, which beanstalkd does not quote either.
pub fn write_tube_list<'a>(names: impl Iterator<Item = &'a str>, out: &mut Vec<u8>) {
    let document = Document::begin(out);
    for name in names {
        write_listed_tube(name, document.out);
    }
}

/// Appends one line of that document.
pub fn write_listed_tube(name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"- ");
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
}

/// Appends a list of jobs, `[]` without jobs.
pub(super) fn write_ids(ids: &[JobId], out: &mut Vec<u8>) {
    if ids.is_empty() {
        return out.extend_from_slice(b"--- []\n");
    }
    let document = Document::begin(out);
    for id in ids {
        document.out.extend_from_slice(b"- ");
        push_u64(document.out, id.0);
        document.out.push(b'\n');
    }
}

/// Appends a page of jobs. A cursor has dashes: a point or a colon would make a number of it.
pub(super) fn write_jobs(page: &JobPage, out: &mut Vec<u8>) {
    let mut document = Document::begin(out);
    match page.next {
        None => document.word("next", "0"),
        Some(Cursor { id, key, client }) => document.word("next", &format!("{id}-{key}-{client}")),
    }
    if page.jobs.is_empty() {
        return document.word("jobs", "[]");
    }
    document.out.extend_from_slice(b"jobs:\n");
    for (id, size) in &page.jobs {
        document.number("- id", id.0);
        document.number("  size", *size);
    }
}

/// The counters that `stats` shows, in its order: beanstalkd has none for `reserve-job`,
/// `kick-job` and `quit`, nor for the extended commands.
const COMMAND_KEYS: [(&str, Op); 22] = [
    ("cmd-put", Op::Put),
    ("cmd-peek", Op::Peek),
    ("cmd-peek-ready", Op::PeekReady),
    ("cmd-peek-delayed", Op::PeekDelayed),
    ("cmd-peek-buried", Op::PeekBuried),
    ("cmd-reserve", Op::Reserve),
    ("cmd-reserve-with-timeout", Op::ReserveWithTimeout),
    ("cmd-delete", Op::Delete),
    ("cmd-release", Op::Release),
    ("cmd-use", Op::Use),
    ("cmd-watch", Op::Watch),
    ("cmd-ignore", Op::Ignore),
    ("cmd-bury", Op::Bury),
    ("cmd-kick", Op::Kick),
    ("cmd-touch", Op::Touch),
    ("cmd-stats", Op::Stats),
    ("cmd-stats-job", Op::StatsJob),
    ("cmd-stats-tube", Op::StatsTube),
    ("cmd-list-tubes", Op::ListTubes),
    ("cmd-list-tube-used", Op::ListTubeUsed),
    ("cmd-list-tubes-watched", Op::ListTubesWatched),
    ("cmd-pause-tube", Op::PauseTube),
];

/// A YAML document being written: one `key: value` per line.
pub(super) struct Document<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Document<'a> {
    pub(super) fn begin(out: &'a mut Vec<u8>) -> Self {
        out.extend_from_slice(b"---\n");
        Document { out }
    }

    pub(super) fn number(&mut self, key: &str, value: impl Into<u64>) {
        self.line(key, |out| push_u64(out, value.into()));
    }

    /// A value that needs no quotes.
    pub(super) fn word(&mut self, key: &str, value: &str) {
        self.line(key, |out| out.extend_from_slice(value.as_bytes()));
    }

    pub(super) fn quoted(&mut self, key: &str, value: &str) {
        self.line(key, |out| push_quoted(out, value));
    }

    /// A list of quoted values.
    pub(super) fn list<'i>(&mut self, key: &str, values: impl ExactSizeIterator<Item = &'i str>) {
        if values.len() == 0 {
            return self.word(key, "[]");
        }
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b":\n");
        for value in values {
            self.out.extend_from_slice(b"- ");
            push_quoted(self.out, value);
            self.out.push(b'\n');
        }
    }

    /// Seconds with six decimals.
    fn seconds(&mut self, key: &str, microseconds: u64) {
        const SECOND_US: u64 = 1_000_000;
        self.line(key, |out| {
            push_u64(out, microseconds / SECOND_US);
            out.extend_from_slice(format!(".{:06}", microseconds % SECOND_US).as_bytes());
        });
    }

    fn jobs(&mut self, jobs: JobCounts) {
        self.number("current-jobs-urgent", jobs.urgent);
        self.number("current-jobs-ready", jobs.ready);
        self.number("current-jobs-reserved", jobs.reserved);
        self.number("current-jobs-delayed", jobs.delayed);
        self.number("current-jobs-buried", jobs.buried);
    }

    fn line(&mut self, key: &str, push_value: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b": ");
        push_value(self.out);
        self.out.push(b'\n');
    }
}

/// A double-quoted scalar (YAML 1.1, section 5.7). beanstalkd prints the value unchanged; a quote
/// or a line break in the machine's data would end the scalar, or the line.
fn push_quoted(out: &mut Vec<u8>, value: &str) {
    out.push(b'"');
    for char in value.chars() {
        match char {
            '"' | '\\' => out.extend_from_slice(&[b'\\', char as u8]),
            _ if char.is_control() || matches!(char, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.extend_from_slice(format!("\\u{:04X}", u32::from(char)).as_bytes());
            }
            _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All different, so that swapped fields are noticed.
    const JOBS: JobCounts = JobCounts {
        urgent: 1,
        ready: 2,
        reserved: 3,
        delayed: 4,
        buried: 5,
    };

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn stats_job_reads_as_beanstalkd_writes_it() {
        let stats = JobStats {
            id: JobId(18_446_744_073_709_551_615),
            tube: "emails",
            state: JobState::Delayed,
            pri: 4_294_967_295,
            age: 86_400,
            delay: 60,
            ttr: 120,
            time_left: 59,
            file: 3,
            counters: Counters {
                reserves: 5,
                timeouts: 6,
                releases: 7,
                buries: 8,
                kicks: 9,
            },
        };
        let expected = "---\n\
            id: 18446744073709551615\n\
            tube: \"emails\"\n\
            state: delayed\n\
            pri: 4294967295\n\
            age: 86400\n\
            delay: 60\n\
            ttr: 120\n\
            time-left: 59\n\
            file: 3\n\
            reserves: 5\n\
            timeouts: 6\n\
            releases: 7\n\
            buries: 8\n\
            kicks: 9\n";
        assert_eq!(written(|out| stats.write(out)), expected);
    }

    #[test]
    fn stats_tube_reads_as_beanstalkd_writes_it() {
        let stats = TubeStats {
            name: "default",
            jobs: JOBS,
            total_jobs: 6,
            current_using: 7,
            current_watching: 8,
            current_waiting: 9,
            cmd_delete: 10,
            cmd_pause_tube: 11,
            pause: 12,
            pause_time_left: 13,
        };
        let expected = "---\n\
            name: \"default\"\n\
            current-jobs-urgent: 1\n\
            current-jobs-ready: 2\n\
            current-jobs-reserved: 3\n\
            current-jobs-delayed: 4\n\
            current-jobs-buried: 5\n\
            total-jobs: 6\n\
            current-using: 7\n\
            current-watching: 8\n\
            current-waiting: 9\n\
            cmd-delete: 10\n\
            cmd-pause-tube: 11\n\
            pause: 12\n\
            pause-time-left: 13\n";
        assert_eq!(written(|out| stats.write(out)), expected);
    }

    fn server_stats<'a>(
        commands: &'a [u64; Op::COUNT],
        extra: &'a [(&'a str, u64)],
    ) -> ServerStats<'a> {
        ServerStats {
            jobs: JOBS,
            commands,
            job_timeouts: 6,
            total_jobs: 7,
            max_job_size: 65_535,
            current_tubes: 8,
            current_connections: 9,
            current_producers: 10,
            current_workers: 11,
            current_waiting: 12,
            total_connections: 13,
            pid: 14,
            version: "1.2.3",
            rusage_utime_us: 20_171,
            rusage_stime_us: 15_999_999,
            uptime: 16,
            binlog_oldest_index: 17,
            binlog_current_index: 18,
            binlog_records_migrated: 19,
            binlog_records_written: 20,
            binlog_max_size: 10_485_760,
            draining: false,
            id: "eb6255dcf0c9d194",
            hostname: "vm",
            os: "#1 SMP",
            platform: "x86_64",
            extra,
        }
    }

    #[test]
    fn stats_reads_as_beanstalkd_writes_it() {
        let commands = std::array::from_fn(|op| 100 + op as u64);
        let expected = "---\n\
            current-jobs-urgent: 1\n\
            current-jobs-ready: 2\n\
            current-jobs-reserved: 3\n\
            current-jobs-delayed: 4\n\
            current-jobs-buried: 5\n\
            cmd-put: 100\n\
            cmd-peek: 101\n\
            cmd-peek-ready: 102\n\
            cmd-peek-delayed: 103\n\
            cmd-peek-buried: 104\n\
            cmd-reserve: 105\n\
            cmd-reserve-with-timeout: 106\n\
            cmd-delete: 108\n\
            cmd-release: 109\n\
            cmd-use: 110\n\
            cmd-watch: 111\n\
            cmd-ignore: 112\n\
            cmd-bury: 113\n\
            cmd-kick: 114\n\
            cmd-touch: 116\n\
            cmd-stats: 117\n\
            cmd-stats-job: 118\n\
            cmd-stats-tube: 119\n\
            cmd-list-tubes: 120\n\
            cmd-list-tube-used: 121\n\
            cmd-list-tubes-watched: 122\n\
            cmd-pause-tube: 123\n\
            job-timeouts: 6\n\
            total-jobs: 7\n\
            max-job-size: 65535\n\
            current-tubes: 8\n\
            current-connections: 9\n\
            current-producers: 10\n\
            current-workers: 11\n\
            current-waiting: 12\n\
            total-connections: 13\n\
            pid: 14\n\
            version: \"1.2.3\"\n\
            rusage-utime: 0.020171\n\
            rusage-stime: 15.999999\n\
            uptime: 16\n\
            binlog-oldest-index: 17\n\
            binlog-current-index: 18\n\
            binlog-records-migrated: 19\n\
            binlog-records-written: 20\n\
            binlog-max-size: 10485760\n\
            draining: false\n\
            id: eb6255dcf0c9d194\n\
            hostname: \"vm\"\n\
            os: \"#1 SMP\"\n\
            platform: \"x86_64\"\n";
        assert_eq!(
            written(|out| server_stats(&commands, &[]).write(out)),
            expected
        );
    }

    #[test]
    fn keys_of_our_own_come_after_the_known_ones() {
        let extra = [("memory-bytes", 21), ("syncs", 22)];
        let document = written(|out| server_stats(&[0; Op::COUNT], &extra).write(out));
        assert!(document.ends_with("platform: \"x86_64\"\nmemory-bytes: 21\nsyncs: 22\n"));
    }

    #[test]
    fn draining_is_true_or_false() {
        let stats = ServerStats {
            draining: true,
            ..server_stats(&[0; Op::COUNT], &[])
        };
        assert!(written(|out| stats.write(out)).contains("\ndraining: true\n"));
    }

    #[test]
    fn a_list_of_tubes_is_not_quoted() {
        let names = ["default", "a-b+c/d;e.f$g_h(i)", "1"];
        let expected = "---\n- default\n- a-b+c/d;e.f$g_h(i)\n- 1\n";
        assert_eq!(
            written(|out| write_tube_list(names.into_iter(), out)),
            expected
        );
        assert_eq!(written(|out| write_tube_list([].into_iter(), out)), "---\n");
    }

    #[test]
    fn what_would_end_a_quoted_value_is_escaped() {
        for (value, quoted) in [
            ("", r#""""#),
            ("plain", r#""plain""#),
            (r#"a "b" \c"#, r#""a \"b\" \\c""#),
            ("a\nb\r\tc\0", r#""a\u000Ab\u000D\u0009c\u0000""#),
            ("\x7f\u{85}\u{2028}", r#""\u007F\u0085\u2028""#),
            ("Ü", r#""Ü""#),
        ] {
            assert_eq!(written(|out| push_quoted(out, value)), quoted);
        }
    }
}
