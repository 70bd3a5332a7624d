//! The documents of `stats`, `stats-job`, `stats-tube` and the tube lists.
//!
//! Clients read these with YAML parsers of every quality, with regular expressions and line by
//! line, so the form equals beanstalkd 1.13's byte for byte: the keys, their order, and which
//! values are quoted (`version`, `hostname`, `os`, `platform`, and tube names except in lists).
//! `stats-job` and `stats-tube` never get additional keys, since clients compare the whole
//! dictionary; `stats` may, after the known ones.
//!
//! What they say is in `stats`, as plain data; other modules do the counting.
//!
//! beanstalkd shows no counter of `reserve-job`, `kick-job` and `quit`, nor has it extended commands.

use std::time::Duration;

use super::number::push_u64;
use super::{Cursor, JobPage, JobStats, Report, Stats, TubeStats};
use crate::types::JobId;

impl Report {
    /// Appends the document.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Report::Stats(stats) => stats.write(out),
            Report::Tube(stats) => stats.write(out),
            Report::Job(stats) => stats.write(out),
            Report::ExtendedJob(stats) => stats.write(out),
            Report::Policy(stats) => stats.write(out),
            Report::Schedule(stats) => stats.write(out),
        }
    }
}

// Each takes its type apart as a whole: a field that has no line here is an error of the compiler.
impl JobStats {
    fn write(&self, out: &mut Vec<u8>) {
        let JobStats {
            id,
            tube,
            state,
            pri,
            age,
            delay,
            ttr,
            time_left,
            file,
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
        } = self;
        let mut document = Document::begin(out);
        document.number("id", id.0);
        document.quoted("tube", tube);
        document.word("state", state.word());
        document.number("pri", *pri);
        document.number("age", age.as_secs());
        document.number("delay", delay.as_secs());
        document.number("ttr", ttr.as_secs());
        document.number("time-left", time_left.map_or(0, |it| it.as_secs()));
        document.number("file", file.unwrap_or(0));
        document.number("reserves", *reserves);
        document.number("timeouts", *timeouts);
        document.number("releases", *releases);
        document.number("buries", *buries);
        document.number("kicks", *kicks);
    }
}

impl TubeStats {
    fn write(&self, out: &mut Vec<u8>) {
        let TubeStats {
            name,
            current_jobs_urgent,
            current_jobs_ready,
            current_jobs_reserved,
            current_jobs_delayed,
            current_jobs_buried,
            total_jobs,
            current_using,
            current_watching,
            current_waiting,
            cmd_delete,
            cmd_pause_tube,
            pause,
            pause_time_left,
        } = self;
        let mut document = Document::begin(out);
        document.quoted("name", name);
        document.number("current-jobs-urgent", *current_jobs_urgent);
        document.number("current-jobs-ready", *current_jobs_ready);
        document.number("current-jobs-reserved", *current_jobs_reserved);
        document.number("current-jobs-delayed", *current_jobs_delayed);
        document.number("current-jobs-buried", *current_jobs_buried);
        document.number("total-jobs", *total_jobs);
        document.number("current-using", *current_using);
        document.number("current-watching", *current_watching);
        document.number("current-waiting", *current_waiting);
        document.number("cmd-delete", *cmd_delete);
        document.number("cmd-pause-tube", *cmd_pause_tube);
        document.number("pause", pause.map_or(0, |it| it.as_secs()));
        let left = pause_time_left.map_or(0, |it| it.as_secs());
        document.number("pause-time-left", left);
    }
}

impl Stats {
    fn write(&self, out: &mut Vec<u8>) {
        let Stats {
            current_jobs_urgent,
            current_jobs_ready,
            current_jobs_reserved,
            current_jobs_delayed,
            current_jobs_buried,
            cmd_put,
            cmd_peek,
            cmd_peek_ready,
            cmd_peek_delayed,
            cmd_peek_buried,
            cmd_reserve,
            cmd_reserve_with_timeout,
            cmd_delete,
            cmd_release,
            cmd_use,
            cmd_watch,
            cmd_ignore,
            cmd_bury,
            cmd_kick,
            cmd_touch,
            cmd_stats,
            cmd_stats_job,
            cmd_stats_tube,
            cmd_list_tubes,
            cmd_list_tube_used,
            cmd_list_tubes_watched,
            cmd_pause_tube,
            job_timeouts,
            total_jobs,
            max_job_size,
            current_tubes,
            current_connections,
            current_producers,
            current_workers,
            current_waiting,
            total_connections,
            pid,
            version,
            rusage_utime,
            rusage_stime,
            uptime,
            binlog_oldest_index,
            binlog_current_index,
            binlog_records_migrated,
            binlog_records_written,
            binlog_max_size,
            draining,
            id,
            hostname,
            os,
            platform,
            disk_missing_bytes,
            memory_missing_bytes,
        } = self;
        let mut document = Document::begin(out);
        document.number("current-jobs-urgent", *current_jobs_urgent);
        document.number("current-jobs-ready", *current_jobs_ready);
        document.number("current-jobs-reserved", *current_jobs_reserved);
        document.number("current-jobs-delayed", *current_jobs_delayed);
        document.number("current-jobs-buried", *current_jobs_buried);
        document.number("cmd-put", *cmd_put);
        document.number("cmd-peek", *cmd_peek);
        document.number("cmd-peek-ready", *cmd_peek_ready);
        document.number("cmd-peek-delayed", *cmd_peek_delayed);
        document.number("cmd-peek-buried", *cmd_peek_buried);
        document.number("cmd-reserve", *cmd_reserve);
        document.number("cmd-reserve-with-timeout", *cmd_reserve_with_timeout);
        document.number("cmd-delete", *cmd_delete);
        document.number("cmd-release", *cmd_release);
        document.number("cmd-use", *cmd_use);
        document.number("cmd-watch", *cmd_watch);
        document.number("cmd-ignore", *cmd_ignore);
        document.number("cmd-bury", *cmd_bury);
        document.number("cmd-kick", *cmd_kick);
        document.number("cmd-touch", *cmd_touch);
        document.number("cmd-stats", *cmd_stats);
        document.number("cmd-stats-job", *cmd_stats_job);
        document.number("cmd-stats-tube", *cmd_stats_tube);
        document.number("cmd-list-tubes", *cmd_list_tubes);
        document.number("cmd-list-tube-used", *cmd_list_tube_used);
        document.number("cmd-list-tubes-watched", *cmd_list_tubes_watched);
        document.number("cmd-pause-tube", *cmd_pause_tube);
        document.number("job-timeouts", *job_timeouts);
        document.number("total-jobs", *total_jobs);
        document.number("max-job-size", *max_job_size);
        document.number("current-tubes", *current_tubes);
        document.number("current-connections", *current_connections);
        document.number("current-producers", *current_producers);
        document.number("current-workers", *current_workers);
        document.number("current-waiting", *current_waiting);
        document.number("total-connections", *total_connections);
        document.number("pid", *pid);
        document.quoted("version", version);
        document.seconds("rusage-utime", rusage_utime.unwrap_or_default());
        document.seconds("rusage-stime", rusage_stime.unwrap_or_default());
        document.number("uptime", uptime.as_secs());
        document.number("binlog-oldest-index", binlog_oldest_index.unwrap_or(0));
        document.number("binlog-current-index", binlog_current_index.unwrap_or(0));
        document.number("binlog-records-migrated", *binlog_records_migrated);
        document.number("binlog-records-written", *binlog_records_written);
        document.number("binlog-max-size", binlog_max_size.unwrap_or(0));
        document.word("draining", if *draining { "true" } else { "false" });
        document.word("id", id);
        document.quoted("hostname", hostname);
        document.quoted("os", os);
        document.quoted("platform", platform);
        // Keys that beanstalkd does not have come after those that it has.
        document.number("disk-full", u64::from(disk_missing_bytes.is_some()));
        document.number("disk-missing-bytes", disk_missing_bytes.unwrap_or(0));
        document.number("memory-full", u64::from(memory_missing_bytes.is_some()));
        document.number("memory-missing-bytes", memory_missing_bytes.unwrap_or(0));
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
    fn seconds(&mut self, key: &str, time: Duration) {
        self.line(key, |out| {
            push_u64(out, time.as_secs());
            out.extend_from_slice(format!(".{:06}", time.subsec_micros()).as_bytes());
        });
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
    use crate::types::JobState;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn stats_job_reads_as_beanstalkd_writes_it() {
        let stats = JobStats {
            id: JobId(18_446_744_073_709_551_615),
            tube: "emails".to_owned(),
            state: JobState::Delayed,
            pri: 4_294_967_295,
            age: Duration::from_millis(86_400_999),
            delay: Duration::from_secs(60),
            ttr: Duration::from_secs(120),
            time_left: Some(Duration::from_millis(59_999)),
            file: Some(3),
            reserves: 5,
            timeouts: 6,
            releases: 7,
            buries: 8,
            kicks: 9,
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
            name: "default".to_owned(),
            current_jobs_urgent: 1,
            current_jobs_ready: 2,
            current_jobs_reserved: 3,
            current_jobs_delayed: 4,
            current_jobs_buried: 5,
            total_jobs: 6,
            current_using: 7,
            current_watching: 8,
            current_waiting: 9,
            cmd_delete: 10,
            cmd_pause_tube: 11,
            pause: Some(Duration::from_secs(12)),
            pause_time_left: Some(Duration::from_secs(13)),
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

    /// All numbers are different, so that swapped fields are noticed.
    fn stats() -> Stats {
        Stats {
            current_jobs_urgent: 1,
            current_jobs_ready: 2,
            current_jobs_reserved: 3,
            current_jobs_delayed: 4,
            current_jobs_buried: 5,
            cmd_put: 100,
            cmd_peek: 101,
            cmd_peek_ready: 102,
            cmd_peek_delayed: 103,
            cmd_peek_buried: 104,
            cmd_reserve: 105,
            cmd_reserve_with_timeout: 106,
            cmd_delete: 108,
            cmd_release: 109,
            cmd_use: 110,
            cmd_watch: 111,
            cmd_ignore: 112,
            cmd_bury: 113,
            cmd_kick: 114,
            cmd_touch: 116,
            cmd_stats: 117,
            cmd_stats_job: 118,
            cmd_stats_tube: 119,
            cmd_list_tubes: 120,
            cmd_list_tube_used: 121,
            cmd_list_tubes_watched: 122,
            cmd_pause_tube: 123,
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
            rusage_utime: Some(Duration::from_micros(20_171)),
            rusage_stime: Some(Duration::from_nanos(15_999_999_999)),
            uptime: Duration::from_secs(16),
            binlog_oldest_index: Some(17),
            binlog_current_index: Some(18),
            binlog_records_migrated: 19,
            binlog_records_written: 20,
            binlog_max_size: Some(10_485_760),
            draining: false,
            id: "eb6255dcf0c9d194".to_owned(),
            hostname: "vm".to_owned(),
            os: "#1 SMP".to_owned(),
            platform: "x86_64".to_owned(),
            disk_missing_bytes: Some(21),
            memory_missing_bytes: None,
        }
    }

    #[test]
    fn stats_reads_as_beanstalkd_writes_it() {
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
            platform: \"x86_64\"\n\
            disk-full: 1\n\
            disk-missing-bytes: 21\n\
            memory-full: 0\n\
            memory-missing-bytes: 0\n";
        assert_eq!(written(|out| stats().write(out)), expected);
    }

    #[test]
    fn what_is_absent_is_a_zero_in_the_text() {
        let stats = Stats {
            rusage_utime: None,
            binlog_oldest_index: None,
            binlog_max_size: None,
            disk_missing_bytes: None,
            draining: true,
            ..stats()
        };
        let text = written(|out| stats.write(out));
        for line in [
            "rusage-utime: 0.000000",
            "binlog-oldest-index: 0",
            "binlog-max-size: 0",
            "disk-full: 0",
            "disk-missing-bytes: 0",
            "draining: true",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
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
