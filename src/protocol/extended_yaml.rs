//! The documents of `stats-job-extended`, `stats-policy` and `stats-schedule`.
//!
//! In the form of beanstalkd's documents: one `key: value` per line. A key that has nothing to say is
//! left out, but for those that are always there.

use super::yaml::Document;
use crate::attributes::{Attributes, Reason};
use crate::schedule::Schedule;
use crate::types::{JobId, JobState};

/// The values of `stats-job-extended`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobExtended<'a> {
    /// The job.
    pub id: JobId,
    /// The tube that it is in.
    pub tube: &'a str,
    /// Its state.
    pub state: JobState,
    /// Deliveries that count towards the limit of its tube, the one under way included.
    pub deliveries: u32,
    /// What it has beyond a plain job.
    pub attributes: Attributes<'a>,
    /// When a delayed job is ready: Unix time in seconds, rounded up.
    pub due_at: Option<u64>,
    /// When it expires unless it is reserved before: Unix time in seconds, rounded up.
    pub expires_at: Option<u64>,
}

/// The values of `stats-policy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyStats<'a> {
    /// The tube.
    pub tube: &'a str,
    /// The name or the pattern under which the policy was set.
    pub set_for: &'a str,
    /// The names and values of the policy.
    pub values: Vec<(&'static str, String)>,
    /// Jobs that are in the tube.
    pub jobs: u64,
    /// Bytes of their bodies.
    pub bytes: u64,
    /// Deliveries that failed, and jobs that expired or were buried, by reason.
    pub failures: [u64; Reason::ALL.len()],
    /// Jobs whose limit was reached, or that expired.
    pub set_aside: u64,
    /// Puts that the policy has refused.
    pub puts_refused: u64,
}

/// The values of `stats-schedule`. Times are those of its time zone, as RFC 3339 has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleStats<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it says.
    pub schedule: &'a Schedule,
    /// No firing up to here is done again.
    pub fired_up_to: String,
    /// Firings that wait for room.
    pub waiting: usize,
    /// The next firings.
    pub next: Vec<String>,
}

impl JobExtended<'_> {
    /// Appends the document to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let attributes = self.attributes;
        let mut document = Document::begin(out);
        document.number("id", self.id.0);
        document.quoted("tube", self.tube);
        document.word("state", self.state.word());
        document.number("deliveries", self.deliveries);
        let mut quoted = |key: &str, value: Option<&str>| {
            if let Some(value) = value {
                document.quoted(key, value);
            }
        };
        quoted("key", attributes.key);
        quoted("unique", attributes.unique.map(|it| it.word()));
        quoted("group", attributes.group);
        quoted("reason", attributes.reason.map(Reason::word));
        let text = attributes.text.map(String::from_utf8_lossy);
        quoted("text", text.as_deref());
        quoted("dead-lettered-from", attributes.dead_lettered_from);
        let dead_lettered_at = attributes
            .dead_lettered_from
            .and(attributes.counted_since_wall_ns);
        let second = |ns: u64| ns / 1_000_000_000;
        for (key, value) in [
            ("dead-lettered-at", dead_lettered_at.map(second)),
            ("failures", attributes.failures.map(u64::from)),
            ("due-at", self.due_at),
            ("expires-at", self.expires_at),
        ] {
            if let Some(value) = value {
                document.number(key, value);
            }
        }
    }
}

impl PolicyStats<'_> {
    /// Appends the document to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut document = Document::begin(out);
        document.quoted("tube", self.tube);
        document.quoted("set-for", self.set_for);
        for (name, value) in &self.values {
            match *name {
                "dead-letter" | "expired" | "rate" => document.quoted(name, value),
                _ => document.word(name, value),
            }
        }
        document.number("current-jobs", self.jobs);
        document.number("current-bytes", self.bytes);
        for (reason, count) in Reason::ALL.into_iter().zip(self.failures) {
            document.number(&format!("total-{}", reason.word()), count);
        }
        document.number("total-set-aside", self.set_aside);
        document.number("total-puts-refused", self.puts_refused);
    }
}

impl ScheduleStats<'_> {
    /// Appends the document to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let yes_or_no = |it: bool| if it { "true" } else { "false" };
        let schedule = self.schedule;
        let mut document = Document::begin(out);
        document.quoted("name", self.name);
        document.quoted("cron", &schedule.cron);
        document.quoted("tz", &schedule.tz);
        document.quoted("tube", &schedule.tube);
        document.number("pri", schedule.pri);
        document.number("ttr", schedule.ttr);
        if let Some(key) = &schedule.key {
            document.quoted("key", key);
        }
        document.quoted("missed", schedule.missed.word());
        document.word("paused", yes_or_no(schedule.is_paused));
        document.number("bytes", schedule.body.len() as u64);
        document.quoted("fired-up-to", &self.fired_up_to);
        document.number("waiting", self.waiting as u64);
        document.list("next", self.next.iter().map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_job_shows_what_it_has_and_leaves_out_the_rest() {
        let plain = JobExtended {
            id: JobId(7),
            tube: "mail",
            state: JobState::Ready,
            deliveries: 0,
            attributes: Attributes::default(),
            due_at: None,
            expires_at: None,
        };
        let short = "---\nid: 7\ntube: \"mail\"\nstate: ready\ndeliveries: 0\n";
        assert_eq!(written(|out| plain.write(out)), short);
        let dead = JobExtended {
            attributes: Attributes {
                reason: Some(Reason::Failed),
                text: Some(b"no \"host\"\n\xff"),
                dead_lettered_from: Some("mail"),
                counted_since_wall_ns: Some(1_800_000_000_999_999_999),
                failures: Some(8),
                ..Attributes::default()
            },
            expires_at: Some(1_800_003_600),
            ..plain
        };
        let long = "reason: \"failed\"\ntext: \"no \\\"host\\\"\\u000A\u{fffd}\"\n\
                    dead-lettered-from: \"mail\"\ndead-lettered-at: 1800000000\nfailures: 8\n\
                    expires-at: 1800003600\n";
        assert_eq!(written(|out| dead.write(out)), format!("{short}{long}"));
    }

    #[test]
    fn a_schedule_shows_what_it_says_and_when_it_fires() {
        let schedule = Schedule {
            cron: "0 8 * * *".to_owned(),
            tube: "mail".to_owned(),
            ..Schedule::default()
        };
        let mut stats = ScheduleStats {
            name: "daily",
            schedule: &schedule,
            fired_up_to: "2026-12-01T08:00:00Z".to_owned(),
            waiting: 0,
            next: Vec::new(),
        };
        let begin = "---\nname: \"daily\"\ncron: \"0 8 * * *\"\ntz: \"UTC\"\ntube: \"mail\"\n\
                     pri: 65536\nttr: 120\nmissed: \"skip\"\npaused: false\nbytes: 0\n\
                     fired-up-to: \"2026-12-01T08:00:00Z\"\nwaiting: 0\n";
        assert_eq!(
            written(|out| stats.write(out)),
            format!("{begin}next: []\n")
        );
        stats.next = vec!["a".to_owned(), "b".to_owned()];
        let next = "next:\n- \"a\"\n- \"b\"\n";
        assert_eq!(written(|out| stats.write(out)), format!("{begin}{next}"));
    }

    #[test]
    fn a_policy_shows_its_values_and_what_it_has_done() {
        let stats = PolicyStats {
            tube: "mail",
            set_for: "mail*",
            values: vec![
                ("delivery-limit", "8".to_owned()),
                ("rate", "10/s".to_owned()),
            ],
            jobs: 3,
            bytes: 30,
            failures: [1, 2, 3, 4, 5, 6],
            set_aside: 7,
            puts_refused: 8,
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
