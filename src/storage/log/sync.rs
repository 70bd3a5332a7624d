//! When written data becomes durable: the sync policies, and the thread that syncs.
//!
//! On a fast disk the loop syncs in its own turn; on a slow one a thread syncs while the loop
//! continues; and `-f N` never waits for the disk. The log sees only "durable up to P".

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use crate::clock::Clock;
use crate::storage::disk::File;
use crate::types::{Position, Time};

/// The loop does not wait for a disk whose syncs take longer than this, in nanoseconds …
const SLOW_NS: i64 = 1_000_000;
/// … until they take less than this.
const FAST_NS: i64 = SLOW_NS / 2;
/// Syncs of fewer bytes than this are faster on blocks that were written before. Larger syncs gain
/// nothing from pre-zeroed blocks.
const SMALL_SYNC_SIZE: u64 = 256 << 10;
/// A single very long sync says nothing about the next ones: it counts as at most this time,
/// nanoseconds.
const OUTLIER_NS: i64 = 4 * SLOW_NS;

/// When a record has to be on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Before the reply that acknowledges it leaves (`-f 0`, the default). A crash loses nothing
    /// that was acknowledged.
    Always,
    /// At most this number of milliseconds after it was acknowledged (`-f N`), also when the server
    /// goes idle. A power cut loses at most that time; a killed process loses nothing.
    Interval(u32),
    /// When the operating system decides (`-F`); a full segment is synced once, and so is a log
    /// that has gone idle. A power cut loses what the system had not written; a killed process
    /// loses nothing.
    Never,
}

/// Called from a background thread when the engine's `tick` has work to do.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A finished sync.
#[derive(Debug)]
pub(crate) struct Synced {
    /// Everything before this position is durable.
    pub(crate) upto: Position,
    /// How long it took, in nanoseconds.
    pub(crate) took_ns: i64,
    pub(crate) result: io::Result<()>,
}

/// How syncs have behaved recently: how long they take, so whether the loop should wait for them;
/// and how many bytes they write.
#[derive(Debug)]
pub(crate) struct Pace {
    clock: Clock,
    average_ns: i64,
    is_slow: bool,
    average_size: u64,
}

impl Pace {
    pub(crate) fn new(clock: Clock) -> Pace {
        Pace {
            clock,
            average_ns: 0,
            is_slow: false,
            average_size: 0,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now().mono
    }

    /// Note a sync of `size` bytes that began at `begun` and has just ended.
    pub(crate) fn note_since(&mut self, begun: Time, size: u64) {
        self.note(self.now().since(begun), size);
    }

    /// Note a sync of `size` bytes that took `took_ns` nanoseconds.
    pub(crate) fn note(&mut self, took_ns: i64, size: u64) {
        self.average_size = self.average_size - self.average_size / 8 + size / 8;
        self.average_ns += (took_ns.min(OUTLIER_NS) - self.average_ns) / 8;
        if self.average_ns > SLOW_NS {
            self.is_slow = true;
        } else if self.average_ns < FAST_NS {
            self.is_slow = false;
        }
    }

    /// True if syncs write so few bytes that they are faster on blocks that were written before.
    pub(crate) fn writes_are_small(&self) -> bool {
        self.average_size < SMALL_SYNC_SIZE
    }

    /// True if the loop should continue during a sync.
    pub(crate) fn is_slow(&self) -> bool {
        self.is_slow
    }
}

/// A thread that syncs files in the order of the requests.
pub(crate) struct SyncThread {
    requests: Option<Sender<(Arc<dyn File>, Position)>>,
    done: Receiver<Synced>,
    /// Requests without an answer.
    pending: usize,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for SyncThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncThread")
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl SyncThread {
    pub(crate) fn start(waker: Waker, clock: Clock) -> io::Result<SyncThread> {
        let (requests, incoming) = channel::<(Arc<dyn File>, Position)>();
        let (outgoing, done) = channel();
        let thread = std::thread::Builder::new()
            .name("bsd-sync".into())
            .spawn(move || {
                for (file, upto) in incoming {
                    let begun = clock.now().mono;
                    let result = file.sync();
                    let took_ns = clock.now().mono.since(begun);
                    // A failure ends the log: later syncs must not count as successes.
                    let failed = result.is_err();
                    if outgoing
                        .send(Synced {
                            upto,
                            took_ns,
                            result,
                        })
                        .is_err()
                    {
                        return;
                    }
                    waker();
                    if failed {
                        return;
                    }
                }
            })?;
        Ok(SyncThread {
            requests: Some(requests),
            done,
            pending: 0,
            thread: Some(thread),
        })
    }

    /// Request that everything before `upto` becomes durable. All of it that is not durable yet
    /// lies in `file` and in the files of earlier requests.
    pub(crate) fn request(&mut self, file: Arc<dyn File>, upto: Position) {
        self.pending += 1;
        if let Some(requests) = &self.requests
            && requests.send((file, upto)).is_err()
        {
            tracing::error!("the sync thread has ended");
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// The next answer, if there is one.
    pub(crate) fn poll(&mut self) -> Option<Synced> {
        match self.done.try_recv() {
            Ok(synced) => {
                self.pending -= 1;
                Some(synced)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self.wait(),
        }
    }

    /// Wait for the next answer; `None` if no request is open. A thread that ended without an
    /// answer has synced nothing.
    pub(crate) fn wait(&mut self) -> Option<Synced> {
        if self.pending == 0 {
            return None;
        }
        self.pending -= 1;
        let gone = |_| Synced {
            upto: Position::ZERO,
            took_ns: 0,
            result: Err(io::Error::other("the sync thread has ended")),
        };
        Some(self.done.recv().unwrap_or_else(gone))
    }
}

impl Drop for SyncThread {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread ends when the channel closes; a panic in it has been reported already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(in crate::storage) mod tests {
    use std::path::Path;

    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::{Fs, OpenMode};
    use crate::storage::format::Record;
    use crate::storage::log::{Log, LogOptions, Purpose};
    use crate::storage::recover::Fresh;
    use crate::types::{Now, SegmentId};

    fn paced(syncs_ns: &[i64]) -> Pace {
        let mut pace = Pace::new(Clock::start());
        syncs_ns.iter().for_each(|took| pace.note(*took, 4096));
        pace
    }

    #[test]
    fn a_disk_is_slow_when_its_syncs_are() {
        assert!(!paced(&[100_000; 100]).is_slow());
        assert!(paced(&[2_000_000; 100]).is_slow());
    }

    #[test]
    fn one_sync_that_takes_long_does_not_make_a_disk_slow() {
        let mut pace = paced(&[100_000; 100]);
        pace.note(10_000_000_000, 4096);
        assert!(!pace.is_slow());
    }

    #[test]
    fn a_disk_that_was_slow_for_a_while_is_fast_again() {
        let mut pace = paced(&[5_000_000; 100]);
        (0..100).for_each(|_| pace.note(200_000, 4096));
        assert!(!pace.is_slow());
    }

    #[test]
    fn between_slow_and_fast_nothing_changes() {
        let between = (SLOW_NS + FAST_NS) / 2;
        let mut pace = paced(&[between; 100]);
        assert!(!pace.is_slow());
        (0..100).for_each(|_| pace.note(2 * SLOW_NS, 4096));
        (0..100).for_each(|_| pace.note(between, 4096));
        assert!(pace.is_slow());
    }

    #[test]
    fn syncs_of_much_are_told_from_those_of_little() {
        let mut pace = paced(&[100_000; 100]);
        assert!(pace.writes_are_small());
        (0..100).for_each(|_| pace.note(100_000, 1 << 20));
        assert!(!pace.writes_are_small());
        (0..100).for_each(|_| pace.note(100_000, 8192));
        assert!(pace.writes_are_small());
    }

    #[test]
    fn a_thread_is_busy_until_its_answer_has_been_taken() {
        let disk = SimFs::new(1);
        let file = disk.open(Path::new("/file"), OpenMode::CreateNew).unwrap();
        let mut thread = SyncThread::start(Arc::new(|| ()), Clock::start()).unwrap();
        assert!(!thread.is_busy() && thread.poll().is_none() && thread.wait().is_none());
        let upto = Position::new(SegmentId(1), 64);
        thread.request(file, upto);
        assert!(thread.is_busy());
        let synced = thread.wait().unwrap();
        assert!(synced.upto == upto && synced.result.is_ok());
        assert!(!thread.is_busy() && thread.wait().is_none());
    }

    /// The failed sync may have lost what the second request is about: a later sync that succeeds
    /// would not say so.
    #[test]
    fn t12_after_a_sync_that_failed_the_thread_makes_no_other() {
        use crate::storage::disk::sim::{Errno, Fault, OpKind};
        let disk = SimFs::new(1);
        let file = disk.open(Path::new("/file"), OpenMode::CreateNew).unwrap();
        let mut thread = SyncThread::start(Arc::new(|| ()), Clock::start()).unwrap();
        disk.inject(Fault::fail(OpKind::Sync, Errno::IO));
        for offset in [64, 128] {
            thread.request(file.clone(), Position::new(SegmentId(1), offset));
        }
        let answers: Vec<_> = std::iter::from_fn(|| thread.wait()).collect();
        assert_eq!(answers.len(), 2);
        assert!(answers.iter().all(|synced| synced.result.is_err()));
        let syncs = disk.trace().into_iter();
        assert_eq!(syncs.filter(|call| call.kind == OpKind::Sync).count(), 1);
    }

    /// A new log that has a thread to sync on.
    pub(in crate::storage) fn log(disk: &SimFs, sync: SyncPolicy) -> Log {
        let options = LogOptions {
            dir: "/log".into(),
            sync,
            segment_size: 64 << 10,
            cache_size: 0,
            log_id: None,
            new_epoch: false,
            standby: false,
            member: false,
            waker: Some(Arc::new(|| ())),
        };
        let now = Now::new(Time(0), 1);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        Log::open(fs, options, now, &mut Fresh, &|_, _| ())
            .unwrap()
            .0
    }

    /// Write something; returns up to where the log has come.
    pub(in crate::storage) fn write(log: &mut Log) -> Position {
        let record = Record::Pause {
            tube: "t",
            until_wall_ns: 0,
            duration: 0,
        };
        log.append(&record, Purpose::Update, 1).unwrap();
        log.commit(true).unwrap();
        log.written()
    }

    pub(in crate::storage) fn is_busy(log: &Log) -> bool {
        log.sync_thread.as_ref().is_some_and(SyncThread::is_busy)
    }

    /// Let the thread finish all requests; returns up to where the log is durable.
    pub(in crate::storage) fn finish_syncs(log: &mut Log) -> Position {
        while is_busy(log) {
            log.poll_syncs().unwrap();
            std::thread::yield_now();
        }
        log.durable()
    }

    /// The timer fires once for what was written: there is no second request.
    #[test]
    fn with_an_interval_a_sync_that_falls_due_during_another_is_made_too() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Interval(50));
        write(&mut log);
        log.start_sync().unwrap();
        assert!(is_busy(&log));
        let written = write(&mut log);
        log.start_sync().unwrap();
        assert_eq!(finish_syncs(&mut log), written);
    }

    /// One sync after the other on a slow disk would make replies wait for two.
    #[test]
    fn what_is_written_during_a_slow_sync_is_left_to_the_next_one_where_replies_wait() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Always);
        let before = log.written();
        (0..100).for_each(|_| log.pace.note(2 * SLOW_NS, 4096));
        let first = write(&mut log);
        assert!(is_busy(&log));
        let second = write(&mut log);
        assert_eq!(finish_syncs(&mut log), first);
        assert!(before < first && first < second);
        log.commit(false).unwrap();
        assert_eq!(finish_syncs(&mut log), second);
    }
}
