//! What servers tell about themselves, tubes, jobs, policies and schedules.
//!
//! Each type has the entries that matter as fields, and all of them by the name that they have in the
//! protocol: [`get`](ServerStats::get) finds those of later versions too. A number that an older server does
//! not tell is 0.

use std::time::Duration;

use crate::document::{self, Value};
use crate::error::{Error, Result};
use crate::job::State;

/// How the value of an entry is read. An entry that is not there has its default.
trait Field: Default {
    /// `None`: there is no such entry.
    fn read(value: Option<&Value>) -> Option<Self>;
}

fn word(value: Option<&Value>) -> Option<&str> {
    match value {
        Some(Value::Word(word)) => Some(word),
        _ => None,
    }
}

macro_rules! parsed {
    ($($type:ty),*) => {
        $(impl Field for $type {
            fn read(value: Option<&Value>) -> Option<$type> {
                word(value)?.parse().ok()
            }
        })*
    };
}

parsed!(u32, u64, State);

impl Field for String {
    fn read(value: Option<&Value>) -> Option<String> {
        word(value).map(str::to_owned)
    }
}

impl Field for bool {
    fn read(value: Option<&Value>) -> Option<bool> {
        match word(value)? {
            "true" | "on" | "yes" | "1" => Some(true),
            "false" | "off" | "no" | "0" => Some(false),
            _ => None,
        }
    }
}

/// Seconds, with or without a fraction.
impl Field for Duration {
    fn read(value: Option<&Value>) -> Option<Duration> {
        let word = word(value)?;
        match word.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => Duration::try_from_secs_f64(word.parse().ok()?).ok(),
        }
    }
}

impl<T: Field> Field for Option<T> {
    fn read(value: Option<&Value>) -> Option<Option<T>> {
        match value {
            None => Some(None),
            Some(_) => T::read(value).map(Some),
        }
    }
}

impl Field for Vec<String> {
    fn read(value: Option<&Value>) -> Option<Vec<String>> {
        match value? {
            Value::List(items) => Some(items.clone()),
            Value::Word(_) => None,
        }
    }
}

macro_rules! stats {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $key:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            entries: Vec<(String, Value)>,
        }

        impl $name {
            /// From the document of a reply.
            ///
            /// # Errors
            /// [`Protocol`](crate::ErrorKind::Protocol): an entry cannot be read.
            pub(crate) fn read(document: &[u8]) -> Result<$name> {
                let entries = document::map(document)?;
                $(let $field = field(&entries, $key)?;)*
                Ok($name { $($field,)* entries })
            }

            /// All entries that are one word, by their names in the protocol.
            pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
                let words = self.entries.iter();
                words.filter_map(|(name, value)| Some((name.as_str(), word(Some(value))?)))
            }

            /// An entry by its name in the protocol.
            #[must_use]
            pub fn get(&self, name: &str) -> Option<&str> {
                word(find(&self.entries, name))
            }
        }
    };
}

fn find<'a>(entries: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    let found = entries.iter().find(|(it, _)| it == name);
    found.map(|(_, value)| value)
}

fn field<T: Field>(entries: &[(String, Value)], name: &str) -> Result<T> {
    let Some(value) = find(entries, name) else {
        return Ok(T::default());
    };
    let wrong = || {
        Error::protocol(format!(
            "the entry {name} is {value:?}, which cannot be read"
        ))
    };
    T::read(Some(value)).ok_or_else(wrong)
}

stats! {
    /// What `stats` tells of a server.
    ServerStats {
        /// Ready jobs with a priority below 1,024.
        urgent: u64 = "current-jobs-urgent",
        /// Ready jobs.
        ready: u64 = "current-jobs-ready",
        /// Reserved jobs.
        reserved: u64 = "current-jobs-reserved",
        /// Delayed jobs.
        delayed: u64 = "current-jobs-delayed",
        /// Buried jobs.
        buried: u64 = "current-jobs-buried",
        /// Jobs put since the start.
        total_jobs: u64 = "total-jobs",
        /// Reservations whose time was over, since the start.
        job_timeouts: u64 = "job-timeouts",
        /// The largest body that a put may have, bytes.
        max_job_size: u64 = "max-job-size",
        /// Tubes.
        tubes: u64 = "current-tubes",
        /// Connections.
        connections: u64 = "current-connections",
        /// Connections that wait for a job.
        waiting: u64 = "current-waiting",
        /// The version of the protocol.
        version: String = "version",
        /// Time since the start.
        uptime: Duration = "uptime",
        /// The server takes no jobs.
        draining: Option<bool> = "draining",
    }
}

stats! {
    /// What `stats-tube` tells of a tube.
    TubeStats {
        /// Its name.
        name: String = "name",
        /// Ready jobs with a priority below 1,024.
        urgent: u64 = "current-jobs-urgent",
        /// Ready jobs.
        ready: u64 = "current-jobs-ready",
        /// Reserved jobs.
        reserved: u64 = "current-jobs-reserved",
        /// Delayed jobs.
        delayed: u64 = "current-jobs-delayed",
        /// Buried jobs.
        buried: u64 = "current-jobs-buried",
        /// Jobs put since the tube is there.
        total_jobs: u64 = "total-jobs",
        /// Connections that use it.
        using: u64 = "current-using",
        /// Connections that watch it.
        watching: u64 = "current-watching",
        /// Connections that watch it and wait for a job.
        waiting: u64 = "current-waiting",
        /// How long it was paused for.
        pause: Duration = "pause",
        /// How long the pause still lasts.
        pause_left: Duration = "pause-time-left",
    }
}

stats! {
    /// What `stats-job` tells of a job.
    JobStats {
        /// Its id.
        id: u64 = "id",
        /// Its tube.
        tube: String = "tube",
        /// Its state.
        state: State = "state",
        /// Its priority.
        pri: u32 = "pri",
        /// Time since its put.
        age: Duration = "age",
        /// The delay that it was last given.
        delay: Duration = "delay",
        /// The time that a worker has for it.
        ttr: Duration = "ttr",
        /// Until it is ready (delayed, reserved).
        time_left: Duration = "time-left",
        /// How often it was reserved.
        reserves: u32 = "reserves",
        /// How often the time to run was over.
        timeouts: u32 = "timeouts",
        /// How often it was released.
        releases: u32 = "releases",
        /// How often it was buried.
        buries: u32 = "buries",
        /// How often it was kicked.
        kicks: u32 = "kicks",
    }
}

stats! {
    /// What `stats-job-extended` tells of a job.
    ExtendedJobStats {
        /// Its id.
        id: u64 = "id",
        /// Its tube.
        tube: String = "tube",
        /// Its state.
        state: State = "state",
        /// Deliveries that count towards a limit.
        deliveries: u32 = "deliveries",
        /// The key that it was put with.
        key: Option<String> = "key",
        /// Until when the key is its own: `exists` or `waiting`.
        unique: Option<String> = "unique",
        /// The group that it was put with.
        group: Option<String> = "group",
        /// Why it was set aside or buried, or `failed`.
        reason: Option<String> = "reason",
        /// The last text that a worker gave.
        text: Option<String> = "text",
        /// The tube from which it came as a dead letter.
        dead_lettered_from: Option<String> = "dead-lettered-from",
        /// When it did, Unix time in seconds.
        dead_lettered_at: Option<u64> = "dead-lettered-at",
        /// Deliveries that had failed when it was set aside or buried.
        failures: Option<u32> = "failures",
        /// When it is ready, Unix time in seconds.
        due_at: Option<u64> = "due-at",
        /// When it expires, Unix time in seconds.
        expires_at: Option<u64> = "expires-at",
    }
}

stats! {
    /// What `stats-policy` tells of the policy of a tube. Its values are found with
    /// [`get`](PolicyStats::get).
    PolicyStats {
        /// The tube that was asked for.
        tube: String = "tube",
        /// The name or the pattern under which the policy was set.
        set_for: String = "set-for",
        /// Deliveries of a job that may fail.
        delivery_limit: Option<u32> = "delivery-limit",
        /// Where a job goes whose limit is reached.
        dead_letter: Option<String> = "dead-letter",
        /// Jobs that are in the tube, in whatever state.
        jobs: u64 = "current-jobs",
        /// Bytes of their bodies.
        bytes: u64 = "current-bytes",
        /// Deliveries that ended with `release`.
        total_released: u64 = "total-released",
        /// Deliveries whose time was over.
        total_ttr: u64 = "total-ttr",
        /// Deliveries whose client left.
        total_disconnected: u64 = "total-disconnected",
        /// Deliveries that ended with `fail`.
        total_failed: u64 = "total-failed",
        /// Jobs that have expired.
        total_expired: u64 = "total-expired",
        /// Jobs that a worker buried with a reason, or where deliveries are counted.
        total_buried: u64 = "total-buried",
        /// Jobs whose limit was reached, or that expired.
        total_set_aside: u64 = "total-set-aside",
        /// Puts that were refused because of a bound of the policy.
        total_puts_refused: u64 = "total-puts-refused",
    }
}

stats! {
    /// What `stats-schedule` tells of a schedule.
    ScheduleStats {
        /// Its name.
        name: String = "name",
        /// Its expression.
        cron: String = "cron",
        /// Its time zone.
        tz: String = "tz",
        /// Where its jobs are put.
        tube: String = "tube",
        /// Their priority.
        pri: u32 = "pri",
        /// The time that a worker has for one.
        ttr: Duration = "ttr",
        /// Their key.
        key: Option<String> = "key",
        /// What becomes of firings that were missed.
        missed: String = "missed",
        /// It does not fire.
        paused: bool = "paused",
        /// Bytes of the body of its jobs.
        bytes: u64 = "bytes",
        /// No firing up to here is done again: RFC 3339.
        fired_up_to: String = "fired-up-to",
        /// Firings that wait for room.
        waiting: u64 = "waiting",
        /// Its next five firings: RFC 3339.
        next: Vec<String> = "next",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_typed_fields_and_those_of_later_versions() {
        let document = b"---\nid: 1\ntube: \"default\"\nstate: ready\npri: 0\nage: 7\ndelay: 0\n\
            ttr: 60\ntime-left: 0\nfile: 0\nreserves: 2\ntimeouts: 0\nreleases: 0\nburies: 0\nkicks: 0\n";
        let job = JobStats::read(document).unwrap();
        assert_eq!(
            (job.age, job.state, job.reserves),
            (Duration::from_secs(7), State::Ready, 2)
        );
        assert_eq!(job.get("file"), Some("0"));
        assert_eq!(
            JobStats::read(b"---\nid: 1\n").unwrap().state,
            State::Unknown
        );
        assert!(JobStats::read(b"---\nid: one\n").is_err());
    }
}
