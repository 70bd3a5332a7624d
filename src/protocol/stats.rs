//! What `stats` and its kin say: as types for callers in this process, and as text for clients.
//!
//! Each document is one type. The engine fills it in, [`Report::write`] makes its text, and the library
//! gives it as it is; so text and types cannot differ. A field has the name of its key in the protocol,
//! with `_` for `-`. Where a value can be absent it is an `Option`; the text then has a 0, or leaves the
//! key out.
//!
//! Times have the precision of the server's clocks; the text has whole seconds.

use std::time::{Duration, SystemTime};

use crate::attributes::{Reason, Unique};
use crate::schedule::Missed;
use crate::types::{JobId, JobState};

/// One of the documents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Of the whole queue: `stats`.
    Stats(Box<Stats>),
    /// Of a tube: `stats-tube`.
    Tube(TubeStats),
    /// Of a job: `stats-job`.
    Job(JobStats),
    /// Of a job, what a plain one has not: `stats-job-extended`.
    ExtendedJob(Box<ExtendedJobStats>),
    /// Of a policy: `stats-policy`.
    Policy(Box<PolicyStats>),
    /// Of a schedule: `stats-schedule`.
    Schedule(Box<ScheduleStats>),
}

/// The figures of a whole queue, as `stats` of the protocol has them. Totals are since it was opened.
///
/// A session of the library counts as a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Ready jobs with a priority below 1,024.
    pub current_jobs_urgent: u64,
    /// Ready jobs.
    pub current_jobs_ready: u64,
    /// Reserved jobs.
    pub current_jobs_reserved: u64,
    /// Delayed jobs.
    pub current_jobs_delayed: u64,
    /// Buried jobs.
    pub current_jobs_buried: u64,
    /// Puts that were asked for.
    pub cmd_put: u64,
    /// Looks at a job by its id.
    pub cmd_peek: u64,
    /// Looks at the next ready job of a tube.
    pub cmd_peek_ready: u64,
    /// Looks at the next delayed job of a tube.
    pub cmd_peek_delayed: u64,
    /// Looks at the first buried job of a tube.
    pub cmd_peek_buried: u64,
    /// Reserves without a limit of time.
    pub cmd_reserve: u64,
    /// Reserves with one.
    pub cmd_reserve_with_timeout: u64,
    /// Deletes of one job.
    pub cmd_delete: u64,
    /// Releases of one job.
    pub cmd_release: u64,
    /// Changes of the tube that a connection puts into. Sessions of the library have none.
    pub cmd_use: u64,
    /// Tubes watched.
    pub cmd_watch: u64,
    /// Tubes no longer watched.
    pub cmd_ignore: u64,
    /// Jobs that a worker wanted to bury.
    pub cmd_bury: u64,
    /// Kicks of a tube.
    pub cmd_kick: u64,
    /// Touches of one job.
    pub cmd_touch: u64,
    /// Questions for this.
    pub cmd_stats: u64,
    /// Questions for the figures of a job.
    pub cmd_stats_job: u64,
    /// Questions for the figures of a tube.
    pub cmd_stats_tube: u64,
    /// Questions for the list of tubes.
    pub cmd_list_tubes: u64,
    /// Questions for the tube that a connection puts into.
    pub cmd_list_tube_used: u64,
    /// Questions for the tubes that a connection watches.
    pub cmd_list_tubes_watched: u64,
    /// Pauses of a tube.
    pub cmd_pause_tube: u64,
    /// Reservations whose time to run was over.
    pub job_timeouts: u64,
    /// Jobs put.
    pub total_jobs: u64,
    /// The largest body that a put may have, bytes.
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
    /// Connections that were ever open.
    pub total_connections: u64,
    /// The id of the process.
    pub pid: u32,
    /// The version of the protocol: digits and dots, because clients parse it.
    pub version: &'static str,
    /// Processor time that the process spent in user mode. `None`: it is not measured
    /// ([`Options::cpu_times`](crate::Options::cpu_times)).
    pub rusage_utime: Option<Duration>,
    /// Processor time that the system spent for the process. `None`: as above.
    pub rusage_stime: Option<Duration>,
    /// Time since the queue was opened.
    pub uptime: Duration,
    /// The number of the first file of the log. `None`: the queue is in memory only.
    pub binlog_oldest_index: Option<u32>,
    /// The number of the file that is written. `None`: as above.
    pub binlog_current_index: Option<u32>,
    /// Records that compaction has copied.
    pub binlog_records_migrated: u64,
    /// Records written.
    pub binlog_records_written: u64,
    /// The bound of a file's size, bytes. `None`: as above.
    pub binlog_max_size: Option<u64>,
    /// Puts are refused because someone said so.
    pub draining: bool,
    /// A random word that tells this run from others: hexadecimal digits.
    pub id: String,
    /// The name of the machine, from `uname`.
    pub hostname: String,
    /// The version of the system, from `uname`.
    pub os: String,
    /// The architecture of the machine, from `uname`.
    pub platform: String,
    /// Bytes that were missing on the disk for the put that was refused last. `None`: puts are not
    /// refused for that. In the protocol: `disk-full` and `disk-missing-bytes`.
    pub disk_missing_bytes: Option<u64>,
    /// Bytes that were missing in memory for the put that was refused last. `None`: puts are not refused
    /// for that. In the protocol: `memory-full` and `memory-missing-bytes`.
    pub memory_missing_bytes: Option<u64>,
}

/// The figures of a tube, as `stats-tube` of the protocol has them. Totals are since the tube was
/// created, or the queue opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TubeStats {
    /// Its name.
    pub name: String,
    /// Ready jobs with a priority below 1,024.
    pub current_jobs_urgent: u64,
    /// Ready jobs.
    pub current_jobs_ready: u64,
    /// Reserved jobs.
    pub current_jobs_reserved: u64,
    /// Delayed jobs.
    pub current_jobs_delayed: u64,
    /// Buried jobs.
    pub current_jobs_buried: u64,
    /// Jobs put into it.
    pub total_jobs: u64,
    /// Connections that put into it. Sessions of the library name a tube at each put, and are not
    /// counted.
    pub current_using: u64,
    /// Connections that watch it.
    pub current_watching: u64,
    /// Connections that watch it and wait for a job.
    pub current_waiting: u64,
    /// Jobs deleted from it.
    pub cmd_delete: u64,
    /// How often it was paused.
    pub cmd_pause_tube: u64,
    /// How long the pause is that is on. `None`: it is not paused.
    pub pause: Option<Duration>,
    /// Time until that pause ends. `None`: it is not paused.
    pub pause_time_left: Option<Duration>,
}

/// The figures of a job, as `stats-job` of the protocol has them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobStats {
    /// The job.
    pub id: JobId,
    /// The tube that it is in.
    pub tube: String,
    /// Its state.
    pub state: JobState,
    /// Its priority: smaller is more urgent.
    pub pri: u32,
    /// Time since it was put.
    pub age: Duration,
    /// The delay that it was last given, by a put or a release.
    pub delay: Duration,
    /// The time that a worker may take.
    pub ttr: Duration,
    /// Time until it is ready by itself. `None`: it is neither reserved nor delayed.
    pub time_left: Option<Duration>,
    /// The number of the file of the log that has it. `None`: the queue is in memory only.
    pub file: Option<u32>,
    /// How often it was handed out.
    pub reserves: u32,
    /// How often its time to run was over.
    pub timeouts: u32,
    /// How often a worker released it.
    pub releases: u32,
    /// How often it was buried.
    pub buries: u32,
    /// How often it was kicked.
    pub kicks: u32,
}

/// What a job has beyond a plain one, and why its last delivery failed, as `stats-job-extended` of the
/// protocol has it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtendedJobStats {
    /// The job.
    pub id: JobId,
    /// The tube that it is in.
    pub tube: String,
    /// Its state.
    pub state: JobState,
    /// Deliveries that count towards the limit of its tube's policy, the one under way included.
    pub deliveries: u32,
    /// The key that it was put with.
    pub key: Option<String>,
    /// Until when the key is its own. `None`: it has no key.
    pub unique: Option<Unique>,
    /// The group that it was put with.
    pub group: Option<String>,
    /// Why its last delivery failed, or it was set aside. `None`: nothing of that happened.
    pub reason: Option<Reason>,
    /// What the worker said of it, at most 4,096 bytes, which need not be text. The protocol's document
    /// has it as UTF-8, with U+FFFD for other bytes.
    pub text: Option<Vec<u8>>,
    /// The tube from which it came as a dead letter. `None`: it is no dead letter.
    pub dead_lettered_from: Option<String>,
    /// When it did.
    pub dead_lettered_at: Option<SystemTime>,
    /// Deliveries that had failed when it was set aside or buried.
    pub failures: Option<u32>,
    /// When it is ready. `None`: it is not delayed.
    pub due_at: Option<SystemTime>,
    /// When it expires unless it is reserved before. `None`: never.
    pub expires_at: Option<SystemTime>,
}

/// The policy of a tube and what it has done, as `stats-policy` of the protocol has them. Totals are since
/// the tube was created, or the queue opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStats {
    /// The tube that was asked for.
    pub tube: String,
    /// The name or the pattern under which the policy was set.
    pub set_for: String,
    /// The policy, in the form in which it is set: `delivery-limit=8 retry-min=5`. The protocol has a key
    /// for each of its values.
    pub policy: String,
    /// Jobs that are in the tube, in whatever state.
    pub current_jobs: u64,
    /// Bytes of their bodies.
    pub current_bytes: u64,
    /// Deliveries that ended with a release.
    pub total_released: u64,
    /// Deliveries whose time to run was over.
    pub total_ttr: u64,
    /// Deliveries whose connection or session ended.
    pub total_disconnected: u64,
    /// Deliveries that a worker reported as failed.
    pub total_failed: u64,
    /// Jobs that have expired.
    pub total_expired: u64,
    /// Jobs that were buried by a worker.
    pub total_buried: u64,
    /// Jobs whose limit was reached, or that expired.
    pub total_set_aside: u64,
    /// Puts that the policy has refused.
    pub total_puts_refused: u64,
}

/// A schedule, how far it has come and when it fires next, as `stats-schedule` of the protocol has them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleStats {
    /// Its name.
    pub name: String,
    /// When it fires: five fields of cron.
    pub cron: String,
    /// The time zone of that.
    pub tz: String,
    /// The tube that its jobs are put into.
    pub tube: String,
    /// Their priority.
    pub pri: u32,
    /// The time that a worker may take for one.
    pub ttr: Duration,
    /// Their key.
    pub key: Option<String>,
    /// What becomes of firings that were missed.
    pub missed: Missed,
    /// It does not fire.
    pub paused: bool,
    /// Bytes of the body of its jobs.
    pub bytes: u64,
    /// No firing up to here is done again.
    pub fired_up_to: SystemTime,
    /// Firings that wait for room.
    pub waiting: u64,
    /// Its next firings, at most five; none while it is paused.
    pub next: Vec<SystemTime>,
    /// The same times as the text has them.
    pub(crate) shown: ShownTimes,
}

/// Times of a schedule in its time zone, as RFC 3339 has them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ShownTimes {
    pub(crate) fired_up_to: String,
    pub(crate) next: Vec<String>,
}
