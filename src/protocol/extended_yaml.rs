//! The documents of `stats-job-extended`, `stats-policy` and `stats-schedule`.
//!
//! In the form of beanstalkd's documents: one `key: value` per line. A key that has nothing to say is
//! left out, but for those that are always there.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::yaml::Document;
use super::{ExtendedJobStats, PolicyStats, ScheduleStats};
use crate::attributes::Reason;

// Each takes its type apart as a whole: a field that has no line here is an error of the compiler.
impl ExtendedJobStats {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let ExtendedJobStats {
            id,
            tube,
            state,
            deliveries,
            key,
            unique,
            group,
            reason,
            text,
            dead_lettered_from,
            dead_lettered_at,
            failures,
            due_at,
            expires_at,
        } = self;
        let mut document = Document::begin(out);
        document.number("id", id.0);
        document.quoted("tube", tube);
        document.word("state", state.word());
        document.number("deliveries", *deliveries);
        let text = text.as_deref().map(String::from_utf8_lossy);
        for (key, value) in [
            ("key", key.as_deref()),
            ("unique", unique.map(|it| it.word())),
            ("group", group.as_deref()),
            ("reason", reason.map(Reason::word)),
            ("text", text.as_deref()),
            ("dead-lettered-from", dead_lettered_from.as_deref()),
        ] {
            if let Some(value) = value {
                document.quoted(key, value);
            }
        }
        for (key, value) in [
            ("dead-lettered-at", dead_lettered_at.map(second_of)),
            ("failures", failures.map(u64::from)),
            ("due-at", due_at.map(second_from)),
            ("expires-at", expires_at.map(second_from)),
        ] {
            if let Some(value) = value {
                document.number(key, value);
            }
        }
    }
}

impl PolicyStats {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let PolicyStats {
            tube,
            set_for,
            policy,
            current_jobs,
            current_bytes,
            total_released,
            total_ttr,
            total_disconnected,
            total_failed,
            total_expired,
            total_buried,
            total_set_aside,
            total_puts_refused,
        } = self;
        let mut document = Document::begin(out);
        document.quoted("tube", tube);
        document.quoted("set-for", set_for);
        for (name, value) in policy.split(' ').filter_map(|word| word.split_once('=')) {
            match name {
                "dead-letter" | "expired" | "rate" => document.quoted(name, value),
                _ => document.word(name, value),
            }
        }
        document.number("current-jobs", *current_jobs);
        document.number("current-bytes", *current_bytes);
        document.number("total-released", *total_released);
        document.number("total-ttr", *total_ttr);
        document.number("total-disconnected", *total_disconnected);
        document.number("total-failed", *total_failed);
        document.number("total-expired", *total_expired);
        document.number("total-buried", *total_buried);
        document.number("total-set-aside", *total_set_aside);
        document.number("total-puts-refused", *total_puts_refused);
    }
}

impl ScheduleStats {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let ScheduleStats {
            name,
            cron,
            tz,
            tube,
            pri,
            ttr,
            key,
            missed,
            paused,
            bytes,
            fired_up_to: _,
            waiting,
            next: _,
            shown,
        } = self;
        let mut document = Document::begin(out);
        document.quoted("name", name);
        document.quoted("cron", cron);
        document.quoted("tz", tz);
        document.quoted("tube", tube);
        document.number("pri", *pri);
        document.number("ttr", ttr.as_secs());
        if let Some(key) = key {
            document.quoted("key", key);
        }
        document.quoted("missed", missed.word());
        document.word("paused", if *paused { "true" } else { "false" });
        document.number("bytes", *bytes);
        document.quoted("fired-up-to", &shown.fired_up_to);
        document.number("waiting", *waiting);
        document.list("next", shown.next.iter().map(String::as_str));
    }
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Unix time in seconds, rounded down.
fn second_of(time: SystemTime) -> u64 {
    since_1970(time).as_secs()
}

/// Unix time in seconds, rounded up: what is due then is due.
fn second_from(time: SystemTime) -> u64 {
    let time = since_1970(time);
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ShownTimes;
    use crate::schedule::Missed;
    use crate::types::{JobId, JobState};

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn at(seconds: u64, ns: u32) -> Option<SystemTime> {
        Some(UNIX_EPOCH + Duration::new(seconds, ns))
    }

    #[test]
    fn a_job_shows_what_it_has_and_leaves_out_the_rest() {
        let plain = ExtendedJobStats {
            id: JobId(7),
            tube: "mail".to_owned(),
            state: JobState::Ready,
            deliveries: 0,
            key: None,
            unique: None,
            group: None,
            reason: None,
            text: None,
            dead_lettered_from: None,
            dead_lettered_at: None,
            failures: None,
            due_at: None,
            expires_at: None,
        };
        let short = "---\nid: 7\ntube: \"mail\"\nstate: ready\ndeliveries: 0\n";
        assert_eq!(written(|out| plain.write(out)), short);
        let dead = ExtendedJobStats {
            reason: Some(Reason::Failed),
            text: Some(b"no \"host\"\n\xff".to_vec()),
            dead_lettered_from: Some("mail".to_owned()),
            dead_lettered_at: at(1_800_000_000, 999_999_999),
            failures: Some(8),
            due_at: at(1_800_000_100, 0),
            expires_at: at(1_800_003_599, 1),
            ..plain
        };
        let long = "reason: \"failed\"\ntext: \"no \\\"host\\\"\\u000A\u{fffd}\"\n\
                    dead-lettered-from: \"mail\"\ndead-lettered-at: 1800000000\nfailures: 8\n\
                    due-at: 1800000100\nexpires-at: 1800003600\n";
        assert_eq!(written(|out| dead.write(out)), format!("{short}{long}"));
    }

    #[test]
    fn a_schedule_shows_what_it_says_and_when_it_fires() {
        let mut stats = ScheduleStats {
            name: "daily".to_owned(),
            cron: "0 8 * * *".to_owned(),
            tz: "UTC".to_owned(),
            tube: "mail".to_owned(),
            pri: 65_536,
            ttr: Duration::from_secs(120),
            key: None,
            missed: Missed::Skip,
            paused: false,
            bytes: 0,
            fired_up_to: UNIX_EPOCH,
            waiting: 0,
            next: Vec::new(),
            shown: ShownTimes {
                fired_up_to: "2026-12-01T08:00:00Z".to_owned(),
                next: Vec::new(),
            },
        };
        let begin = "---\nname: \"daily\"\ncron: \"0 8 * * *\"\ntz: \"UTC\"\ntube: \"mail\"\n\
                     pri: 65536\nttr: 120\nmissed: \"skip\"\npaused: false\nbytes: 0\n\
                     fired-up-to: \"2026-12-01T08:00:00Z\"\nwaiting: 0\n";
        assert_eq!(
            written(|out| stats.write(out)),
            format!("{begin}next: []\n")
        );
        stats.shown.next = vec!["a".to_owned(), "b".to_owned()];
        let next = "next:\n- \"a\"\n- \"b\"\n";
        assert_eq!(written(|out| stats.write(out)), format!("{begin}{next}"));
    }

    #[test]
    fn a_policy_shows_its_values_and_what_it_has_done() {
        let stats = PolicyStats {
            tube: "mail".to_owned(),
            set_for: "mail*".to_owned(),
            policy: "delivery-limit=8 rate=10/s".to_owned(),
            current_jobs: 3,
            current_bytes: 30,
            total_released: 1,
            total_ttr: 2,
            total_disconnected: 3,
            total_failed: 4,
            total_expired: 5,
            total_buried: 6,
            total_set_aside: 7,
            total_puts_refused: 8,
        };
        assert_eq!(
            written(|out| stats.write(out)),
            "---\ntube: \"mail\"\nset-for: \"mail*\"\ndelivery-limit: 8\nrate: \"10/s\"\n\
             current-jobs: 3\ncurrent-bytes: 30\ntotal-released: 1\ntotal-ttr: 2\n\
             total-disconnected: 3\ntotal-failed: 4\ntotal-expired: 5\ntotal-buried: 6\n\
             total-set-aside: 7\ntotal-puts-refused: 8\n"
        );
    }
}
