//! What `stats` and its kin say, and the lists of tubes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::store::Store;
use super::{Engine, PROTOCOL_VERSION, ReplySink};
use crate::attributes::{Attributes, Reason};
use crate::protocol::{
    Command, ExtendedJobStats, JobStats, Op, PolicyStats, Reply, Report, Stats, TubeStats,
    write_listed_tube, write_tube_list,
};
use crate::queue::{TubeFailures, TubeList};
use crate::types::{ClientId, Counters, JobId, JobState, Now, Time};

/// Documents with more bytes than this are written down as they leave.
const LONG_DOCUMENT: usize = 64 << 10;
/// Bytes that are written down at a time, at least, unless it is the end.
const DOCUMENT_PART: usize = 32 << 10;

/// The document of `list-tubes` where there are many: the tubes as they were when it was asked for,
/// written down in parts. It shares its memory with the queue and with others like it, as far as
/// the tubes are still the same.
#[derive(Debug)]
pub struct TubeDocument {
    list: TubeList,
    next: usize,
}

impl TubeDocument {
    fn new(list: TubeList) -> TubeDocument {
        TubeDocument { list, next: 0 }
    }

    /// Bytes of the whole document.
    #[must_use]
    pub fn size(&self) -> usize {
        "---\n".len() + "- \n".len() * self.list.len() + self.list.name_bytes()
    }

    /// Append the next part to `out`, some 32 KiB. `false`: it was the last one.
    pub fn write_part(&mut self, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        if self.next == 0 {
            out.extend_from_slice(b"---\n");
        }
        for name in self.list.names_from(self.next) {
            if out.len() - begin >= DOCUMENT_PART {
                return true;
            }
            write_listed_tube(name, out);
            self.next += 1;
        }
        false
    }

    /// The list that it is of.
    #[must_use]
    pub(crate) fn into_list(self) -> TubeList {
        self.list
    }

    /// Bytes of memory that it takes by itself: it shares the names.
    #[must_use]
    pub fn held(&self) -> usize {
        self.list.len() / 16 + size_of::<TubeDocument>()
    }
}

impl Engine {
    /// Answer one of the commands that only look.
    pub(super) fn report(
        &mut self,
        client: ClientId,
        command: &Command<'_>,
        now: Now,
        sink: &mut dyn ReplySink,
    ) {
        let report = match command {
            Command::Stats => Some(Report::Stats(Box::new(self.stats(now)))),
            Command::StatsJob(id) => self.stats_job(*id, now).map(Report::Job),
            Command::StatsTube(tube) => self.stats_tube(tube, now.mono).map(Report::Tube),
            Command::StatsJobExtended(id) => self
                .stats_job_extended(*id, now)
                .map(|stats| Report::ExtendedJob(Box::new(stats))),
            Command::StatsPolicy(tube) => self
                .stats_policy(tube, now.mono)
                .map(|stats| Report::Policy(Box::new(stats))),
            Command::StatsSchedule(name) => {
                self.count(Op::StatsSchedule);
                self.schedule_stats(name, now)
                    .map(|stats| Report::Schedule(Box::new(stats)))
            }
            _ => return self.list_names(client, command, sink),
        };
        let reply = report.as_ref().map_or(Reply::NotFound, Reply::Report);
        sink.reply(client, self.after(), reply);
    }

    fn list_names(&mut self, client: ClientId, command: &Command<'_>, sink: &mut dyn ReplySink) {
        let mut document = std::mem::take(&mut self.document);
        document.clear();
        let mut reply = None;
        match command {
            Command::ListTubes => {
                self.count(Op::ListTubes);
                let list = TubeDocument::new(self.queue.tube_list());
                if list.size() > LONG_DOCUMENT || sink.is_inside(client) {
                    sink.reply_in_parts(client, self.after(), list);
                    self.document = document;
                    return;
                }
                write_tube_list(self.queue.tube_names(), &mut document);
            }
            Command::ListTubesWatched => {
                self.count(Op::ListTubesWatched);
                write_tube_list(self.queue.watched(client), &mut document);
            }
            Command::Capabilities(allowed) => {
                self.count(Op::Capabilities);
                write_tube_list(allowed.words(), &mut document);
            }
            Command::ListTubeUsed => {
                self.count(Op::ListTubeUsed);
                reply = Some(Reply::Using(self.queue.used_tube(client)));
            }
            _ => unreachable!("{command:?} is no question"),
        }
        let reply = reply.unwrap_or(Reply::Yaml(&document));
        sink.reply(client, self.after(), reply);
        self.document = document;
    }

    fn stats_job(&mut self, id: JobId, now: Now) -> Option<JobStats> {
        self.count(Op::StatsJob);
        let job = self.queue.job(id)?;
        let deadline = job
            .deadline
            .filter(|_| matches!(job.state, JobState::Reserved | JobState::Delayed));
        let file = match &self.store {
            Store::Log(log) => Some(log.files().segment_of(job.place).0),
            Store::Memory(_) => None,
        };
        let Counters {
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
        } = job.counters;
        Some(JobStats {
            id,
            tube: job.tube.to_owned(),
            state: job.state,
            pri: job.pri,
            age: past(now.mono.since(job.created)),
            delay: seconds(job.delay),
            ttr: seconds(job.ttr),
            time_left: deadline.map(|deadline| past(deadline.since(now.mono))),
            file,
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
        })
    }

    fn stats_job_extended(&mut self, id: JobId, now: Now) -> Option<ExtendedJobStats> {
        self.count(Op::StatsJobExtended);
        let job = self.queue.job(id)?;
        let due = job.deadline.filter(|_| job.state == JobState::Delayed);
        let attributes = self.queue.attributes(id).and_then(Attributes::decode);
        let attributes = attributes.unwrap_or_default();
        let dead_lettered_at = attributes.dead_lettered_at_wall_ns();
        Some(ExtendedJobStats {
            id,
            tube: job.tube.to_owned(),
            state: job.state,
            deliveries: self.queue.deliveries(id),
            key: attributes.key.map(str::to_owned),
            unique: attributes.unique,
            group: attributes.group.map(str::to_owned),
            reason: attributes.reason,
            text: attributes.text.map(<[u8]>::to_vec),
            dead_lettered_from: attributes.dead_lettered_from.map(str::to_owned),
            dead_lettered_at: dead_lettered_at.map(at),
            failures: attributes.failures,
            due_at: due.map(|due| at(now.to_wall(due))),
            expires_at: self.expires_at(id, now).map(at),
        })
    }

    fn stats_policy(&mut self, tube: &str, now: Time) -> Option<PolicyStats> {
        self.count(Op::StatsPolicy);
        let (set_for, policy) = self.queue.policy_of(tube)?;
        let TubeFailures {
            by_reason,
            set_aside,
            puts_refused,
        } = self.queue.tube_failures(tube, now);
        let total = |reason: Reason| by_reason[reason as usize];
        Some(PolicyStats {
            tube: tube.to_owned(),
            set_for: set_for.to_owned(),
            policy: policy.to_string(),
            current_jobs: self.queue.job_count(tube),
            current_bytes: self.queue.body_bytes(tube),
            total_released: total(Reason::Released),
            total_ttr: total(Reason::Ttr),
            total_disconnected: total(Reason::Disconnected),
            total_failed: total(Reason::Failed),
            total_expired: total(Reason::Expired),
            total_buried: total(Reason::Buried),
            total_set_aside: set_aside,
            total_puts_refused: puts_refused,
        })
    }

    fn stats_tube(&mut self, tube: &str, now: Time) -> Option<TubeStats> {
        self.count(Op::StatsTube);
        let found = self.queue.tube_stats(tube, now)?;
        let is_paused = found.pause > 0;
        Some(TubeStats {
            name: tube.to_owned(),
            current_jobs_urgent: found.jobs.urgent,
            current_jobs_ready: found.jobs.ready,
            current_jobs_reserved: found.jobs.reserved,
            current_jobs_delayed: found.jobs.delayed,
            current_jobs_buried: found.jobs.buried,
            total_jobs: found.total_jobs,
            current_using: found.using.into(),
            current_watching: found.watching.into(),
            current_waiting: found.waiting,
            cmd_delete: found.deletes,
            cmd_pause_tube: found.pauses,
            pause: is_paused.then(|| seconds(found.pause)),
            pause_time_left: is_paused.then(|| past(found.pause_left_ns)),
        })
    }

    fn stats(&mut self, now: Now) -> Stats {
        self.count(Op::Stats);
        let queue = self.queue.stats();
        let command = |op: Op| self.commands[op as usize];
        let cpu_times = self.cpu_times.map(|cpu_times| cpu_times());
        let system = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let log = self.log();
        let segments = log.map(|log| log.segments());
        let memory = &self.memory_shortage;
        Stats {
            current_jobs_urgent: queue.jobs.urgent,
            current_jobs_ready: queue.jobs.ready,
            current_jobs_reserved: queue.jobs.reserved,
            current_jobs_delayed: queue.jobs.delayed,
            current_jobs_buried: queue.jobs.buried,
            cmd_put: command(Op::Put),
            cmd_peek: command(Op::Peek),
            cmd_peek_ready: command(Op::PeekReady),
            cmd_peek_delayed: command(Op::PeekDelayed),
            cmd_peek_buried: command(Op::PeekBuried),
            cmd_reserve: command(Op::Reserve),
            cmd_reserve_with_timeout: command(Op::ReserveWithTimeout),
            cmd_delete: command(Op::Delete),
            cmd_release: command(Op::Release),
            cmd_use: command(Op::Use),
            cmd_watch: command(Op::Watch),
            cmd_ignore: command(Op::Ignore),
            cmd_bury: command(Op::Bury),
            cmd_kick: command(Op::Kick),
            cmd_touch: command(Op::Touch),
            cmd_stats: command(Op::Stats),
            cmd_stats_job: command(Op::StatsJob),
            cmd_stats_tube: command(Op::StatsTube),
            cmd_list_tubes: command(Op::ListTubes),
            cmd_list_tube_used: command(Op::ListTubeUsed),
            cmd_list_tubes_watched: command(Op::ListTubesWatched),
            cmd_pause_tube: command(Op::PauseTube),
            job_timeouts: queue.timeouts,
            total_jobs: queue.total_jobs,
            max_job_size: self.job_size_max.into(),
            current_tubes: queue.tubes,
            current_connections: queue.connections,
            current_producers: queue.producers,
            current_workers: queue.workers,
            current_waiting: queue.waiting,
            total_connections: queue.total_connections,
            pid: std::process::id(),
            version: PROTOCOL_VERSION,
            rusage_utime: cpu_times.map(|(user_us, _)| Duration::from_micros(user_us)),
            rusage_stime: cpu_times.map(|(_, system_us)| Duration::from_micros(system_us)),
            uptime: past(now.mono.since(self.started)),
            binlog_oldest_index: segments.map(|(oldest, _)| oldest.0),
            binlog_current_index: segments.map(|(_, current)| current.0),
            binlog_records_migrated: log.map_or(0, |log| log.records_migrated()),
            binlog_records_written: log.map_or(0, |log| log.records_written()),
            binlog_max_size: log.map(|log| log.segment_size().into()),
            draining: self.draining,
            id: self.run_id.clone(),
            hostname: text(system.nodename()),
            os: text(system.version()),
            platform: text(system.machine()),
            disk_missing_bytes: log.and_then(|log| log.missing_on_disk()),
            memory_missing_bytes: memory.is_on().then(|| memory.missing()),
        }
    }
}

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into())
}

/// Nanoseconds that have passed, or are left; none at the least.
fn past(ns: i64) -> Duration {
    Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
}

fn at(wall_ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(wall_ns)
}

/// A random word of 16 hexadecimal digits; the time, where the system has no random numbers.
pub(super) fn run_id(now: Now) -> String {
    let mut bytes = [0; 8];
    let number = match crate::sys::random::fill_now(&mut bytes) {
        Ok(()) => u64::from_le_bytes(bytes),
        Err(_) => now.wall_ns,
    };
    format!("{number:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Queue;
    use crate::types::Time;

    #[test]
    fn f23_a_document_in_parts_is_the_same_as_a_whole_one() {
        let mut queue = Queue::new();
        queue.finish_replay(Time(0));
        let client = queue.connect();
        for tubes in [0, 1, 10_000] {
            for number in 0..tubes {
                queue.watch(client, &format!("a-tube-with-a-number-{number}"));
            }
            let mut whole = Vec::new();
            write_tube_list(queue.tube_names(), &mut whole);
            let mut document = TubeDocument::new(queue.tube_list());
            let (mut parts, mut written) = (1, Vec::new());
            loop {
                let before = written.len();
                let goes_on = document.write_part(&mut written);
                assert!(written.len() - before < DOCUMENT_PART + 300);
                if !goes_on {
                    break;
                }
                parts += 1;
            }
            assert_eq!(written.len(), document.size());
            assert_eq!(written, whole);
            assert_eq!(parts > 1, tubes == 10_000);
        }
    }
}
