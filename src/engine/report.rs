//! The documents of `stats`, `stats-job`, `stats-tube` and the lists of tubes.

use super::store::Store;
use super::{Engine, PROTOCOL_VERSION, ReplySink};
use crate::attributes::Attributes;
use crate::protocol::{
    Command, JobExtended, JobStats, Op, PolicyStats, Reply, ServerStats, TubeStats,
    write_listed_tube, write_tube_list,
};
use crate::queue::{TubeFailures, TubeList};
use crate::types::{ClientId, JobId, JobState, Now, SECOND_NS, Time};

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
        let mut document = std::mem::take(&mut self.document);
        document.clear();
        let found = match command {
            Command::Stats => self.stats(now, &mut document),
            Command::StatsJob(id) => self.stats_job(*id, now, &mut document),
            Command::StatsTube(tube) => self.stats_tube(tube, now, &mut document),
            Command::StatsJobExtended(id) => self.stats_job_extended(*id, now, &mut document),
            Command::StatsPolicy(tube) => self.stats_policy(tube, now.mono, &mut document),
            Command::StatsSchedule(name) => self.stats_schedule(name, now, &mut document),
            Command::ListTubes => {
                self.count(Op::ListTubes);
                let list = TubeDocument::new(self.queue.tube_list());
                if list.size() > LONG_DOCUMENT {
                    sink.reply_in_parts(client, self.after(), list);
                    self.document = document;
                    return;
                }
                write_tube_list(self.queue.tube_names(), &mut document);
                true
            }
            Command::ListTubesWatched => {
                self.count(Op::ListTubesWatched);
                write_tube_list(self.queue.watched(client), &mut document);
                true
            }
            Command::Capabilities(allowed) => {
                self.count(Op::Capabilities);
                write_tube_list(allowed.words(), &mut document);
                true
            }
            Command::ListTubeUsed => {
                self.count(Op::ListTubeUsed);
                let tube = self.queue.used_tube(client);
                sink.reply(client, self.after(), Reply::Using(tube));
                self.document = document;
                return;
            }
            _ => unreachable!("{command:?} is no question"),
        };
        let reply = if found {
            Reply::Yaml(&document)
        } else {
            Reply::NotFound
        };
        sink.reply(client, self.after(), reply);
        self.document = document;
    }

    fn stats_job(&mut self, id: JobId, now: Now, out: &mut Vec<u8>) -> bool {
        self.count(Op::StatsJob);
        let Some(job) = self.queue.job(id) else {
            return false;
        };
        let deadline = job
            .deadline
            .filter(|_| matches!(job.state, JobState::Reserved | JobState::Delayed));
        let file = match &self.store {
            Store::Log(log) => log.files().segment_of(job.place).0,
            Store::Memory(_) => 0,
        };
        let stats = JobStats {
            id,
            tube: job.tube,
            state: job.state,
            pri: job.pri,
            age: seconds(now.mono.since(job.created)),
            delay: job.delay,
            ttr: job.ttr,
            time_left: deadline.map_or(0, |deadline| seconds(deadline.since(now.mono))),
            file,
            counters: job.counters,
        };
        stats.write(out);
        true
    }

    fn stats_job_extended(&mut self, id: JobId, now: Now, out: &mut Vec<u8>) -> bool {
        self.count(Op::StatsJobExtended);
        let Some(job) = self.queue.job(id) else {
            return false;
        };
        let due = job.deadline.filter(|_| job.state == JobState::Delayed);
        let attributes = self.queue.attributes(id).and_then(Attributes::decode);
        let stats = JobExtended {
            id,
            tube: job.tube,
            state: job.state,
            deliveries: self.queue.deliveries(id),
            attributes: attributes.unwrap_or_default(),
            due_at: due.map(|due| unix_seconds(now.to_wall(due))),
            expires_at: self.expires_at(id, now).map(unix_seconds),
        };
        stats.write(out);
        true
    }

    fn stats_policy(&mut self, tube: &str, now: Time, out: &mut Vec<u8>) -> bool {
        self.count(Op::StatsPolicy);
        let Some((set_for, policy)) = self.queue.policy_of(tube) else {
            return false;
        };
        let TubeFailures {
            by_reason,
            set_aside,
            puts_refused,
        } = self.queue.tube_failures(tube, now);
        let stats = PolicyStats {
            tube,
            set_for,
            values: policy.values(),
            jobs: self.queue.job_count(tube),
            bytes: self.queue.body_bytes(tube),
            failures: by_reason,
            set_aside,
            puts_refused,
        };
        stats.write(out);
        true
    }

    fn stats_schedule(&mut self, name: &str, now: Now, out: &mut Vec<u8>) -> bool {
        self.count(Op::StatsSchedule);
        let Some(document) = self.schedule_document(name, now) else {
            return false;
        };
        document.write(out);
        true
    }

    fn stats_tube(&mut self, tube: &str, now: Now, out: &mut Vec<u8>) -> bool {
        self.count(Op::StatsTube);
        let Some(found) = self.queue.tube_stats(tube, now.mono) else {
            return false;
        };
        let stats = TubeStats {
            name: tube,
            jobs: found.jobs,
            total_jobs: found.total_jobs,
            current_using: found.using.into(),
            current_watching: found.watching.into(),
            current_waiting: found.waiting,
            cmd_delete: found.deletes,
            cmd_pause_tube: found.pauses,
            pause: found.pause,
            pause_time_left: seconds(found.pause_left_ns),
        };
        stats.write(out);
        true
    }

    fn stats(&mut self, now: Now, out: &mut Vec<u8>) -> bool {
        self.count(Op::Stats);
        let queue = self.queue.stats();
        let (user_us, system_us) = self.cpu_times.map_or((0, 0), |cpu_times| cpu_times());
        let system = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let (hostname, os) = (text(system.nodename()), text(system.version()));
        let platform = text(system.machine());
        let log = self.log();
        let disk = log.and_then(|log| log.missing_on_disk());
        let memory = &self.memory_shortage;
        let extra = [
            ("disk-full", u64::from(disk.is_some())),
            ("disk-missing-bytes", disk.unwrap_or(0)),
            ("memory-full", u64::from(memory.is_on())),
            ("memory-missing-bytes", memory.missing()),
        ];
        let (oldest, current) = log.map(|log| log.segments()).unwrap_or_default();
        let stats = ServerStats {
            jobs: queue.jobs,
            commands: &self.commands,
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
            rusage_utime_us: user_us,
            rusage_stime_us: system_us,
            uptime: seconds(now.mono.since(self.started)),
            binlog_oldest_index: oldest.0,
            binlog_current_index: current.0,
            binlog_records_migrated: log.map_or(0, |log| log.records_migrated()),
            binlog_records_written: log.map_or(0, |log| log.records_written()),
            binlog_max_size: log.map_or(0, |log| log.segment_size().into()),
            draining: self.draining,
            id: &self.run_id,
            hostname: &hostname,
            os: &os,
            platform: &platform,
            extra: &extra,
        };
        stats.write(out);
        true
    }
}

/// Rounded up.
fn unix_seconds(wall_ns: u64) -> u64 {
    wall_ns.div_ceil(SECOND_NS as u64)
}

fn seconds(ns: i64) -> u64 {
    (ns.max(0) / SECOND_NS) as u64
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
