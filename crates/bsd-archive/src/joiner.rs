//! The thread `bsd-levels`: when links are joined, and what it reports.
//!
//! Once a minute there is a pass, while the archive is written; more often if links age sooner. It
//! shares nothing with the writer but the store, and neither waits for the other: a pass that fails or
//! is cut off leaves an archive that has everything, and the next one goes on.

use std::io;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::{info, warn};

use super::levels::{Levels, Pass, pass};
use super::reader::{Reader, Wait};
use super::store::{Store, Trouble};
use bsd::clock::Clock;
use bsd::storage::format::LogId;
use bsd::types::Time;

/// The pause between two passes, unless links age in less.
pub(super) const INTERVAL: Duration = Duration::from_secs(60);
/// The shortest one.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Objects that are read at the same time: the server has other things to do.
pub(super) const CONNECTIONS: usize = 8;
/// How long a server that stops waits for the call that is under way: nothing depends on it.
const LAST_CALL: Duration = Duration::from_secs(1);

/// What was joined since the start, and what there is of that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Joins {
    /// Joined objects that were made.
    pub objects: u64,
    /// Links of the archive that are in joined objects, and those that are objects of their own, after
    /// the last pass that read the lists; `None`: there was none.
    pub links: Option<(u64, u64)>,
    /// Passes that failed, or found something that is not as it was put.
    pub failures: u64,
    /// Wall time of the last pass that did not fail, ns since 1970; 0: none.
    pub wall_ns: u64,
    /// Why the last pass failed, or the first damage that it found.
    pub trouble: Option<String>,
}

/// Whether the thread is to stop, and a way to wait for that.
#[derive(Debug, Default)]
struct Stop {
    is_asked: Mutex<bool>,
    asked: Condvar,
}

impl Stop {
    fn ask(&self) {
        *self.is_asked.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.asked.notify_all();
    }

    /// Wait for this long, or until it is to stop: `true`.
    fn wait(&self, pause: Duration) -> bool {
        let asked = self.is_asked.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.asked.wait_timeout_while(asked, pause, |asked| !*asked);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The pauses of a reader, which end when the thread is to stop. Then nothing is tried again.
struct Patience {
    clock: Clock,
    stop: Arc<Stop>,
}

impl Wait for Patience {
    fn now(&self) -> Time {
        match self.stop.wait(Duration::ZERO) {
            true => Time(i64::MAX),
            false => self.clock.now().mono,
        }
    }

    fn pause(&self, pause: Duration, _: u32, _: &str) {
        self.stop.wait(pause);
    }
}

/// Joins links until it is dropped.
#[derive(Debug)]
pub(super) struct Joiner {
    stop: Arc<Stop>,
    stopped: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Joiner {
    /// Join what a writer puts into `store`. `log` says whose archive is being written, if one is;
    /// `report` is told what was joined after each pass.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub(super) fn start(
        store: Arc<dyn Store>,
        levels: Levels,
        clock: Clock,
        log: impl Fn() -> Option<LogId> + Send + 'static,
        report: impl Fn(&Joins) + Send + 'static,
    ) -> io::Result<Joiner> {
        let stop = Arc::new(Stop::default());
        let (finished, stopped) = channel();
        let mut work = Work {
            store,
            levels,
            clock,
            stop: stop.clone(),
            joins: Joins::default(),
        };
        let run = move || {
            work.run(&log, &report);
            // No one waits any more if that fails.
            let _ = finished.send(());
        };
        let thread = std::thread::Builder::new().name("bsd-levels".into());
        Ok(Joiner {
            stop,
            stopped,
            thread: Some(thread.spawn(run)?),
        })
    }

    /// It ends soon.
    pub(super) fn ask_to_stop(&self) {
        self.stop.ask();
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        self.stop.ask();
        let is_over = self.stopped.recv_timeout(LAST_CALL).is_ok();
        if let Some(thread) = self.thread.take().filter(|it| is_over || it.is_finished()) {
            // A panic in it has been reported already.
            let _ = thread.join();
        }
    }
}

struct Work {
    store: Arc<dyn Store>,
    levels: Levels,
    clock: Clock,
    stop: Arc<Stop>,
    joins: Joins,
}

impl Work {
    fn run(&mut self, log: &dyn Fn() -> Option<LogId>, report: &dyn Fn(&Joins)) {
        let interval = INTERVAL.min(Duration::from_nanos(self.levels.fine_ns));
        let interval = interval.max(INTERVAL_MIN);
        let mut pause = interval;
        while !self.stop.wait(pause) {
            pause = interval;
            let Some(log) = log() else {
                continue;
            };
            let done = self.pass(log);
            if self.stop.wait(Duration::ZERO) {
                return;
            }
            if done
                .as_ref()
                .is_ok_and(|pass| pass.is_cut && !pass.is_idle())
            {
                pause = Duration::ZERO;
            }
            self.note(done);
            report(&self.joins);
        }
    }

    fn pass(&self, log: LogId) -> Result<Pass, Trouble> {
        let patience = Patience {
            clock: self.clock,
            stop: self.stop.clone(),
        };
        let reader = Reader::new(&*self.store, &patience).with_connections(CONNECTIONS);
        let wall_ns = self.clock.now().wall_ns;
        let go_on = &mut |_, _| !self.stop.wait(Duration::ZERO);
        pass(&reader, log, self.levels, wall_ns, go_on)
    }

    fn note(&mut self, done: Result<Pass, Trouble>) {
        let trouble = match done {
            Ok(pass) => {
                self.joins.objects += pass.objects;
                self.joins.links = Some((pass.joined, pass.singles));
                pass.bad.first().map(ToString::to_string)
            }
            Err(trouble) => Some(trouble.what),
        };
        let had_trouble = self.joins.trouble.is_some();
        match &trouble {
            Some(what) => {
                self.joins.failures += 1;
                if !had_trouble {
                    warn!(
                        "links of the archive are not joined: {what}; nothing is removed for that, \
                         and it is tried again"
                    );
                }
            }
            None => {
                self.joins.wall_ns = self.clock.now().wall_ns;
                if had_trouble {
                    info!("links of the archive are joined again");
                }
            }
        }
        self.joins.trouble = trouble;
    }
}
