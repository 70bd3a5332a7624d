//! The thread `bsd-archive`, which calls the writer. The loop of the server shares nothing with it but
//! the trail.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::joiner::{Joiner, Joins};
use super::lead::Lead;
use super::levels::Levels;
use super::report::{Report, Reporter};
use super::store::Store;
use super::turns::Turns;
use super::work::{Ended, LAST_LINK, Rung, Work};
use super::writer::Writer;
use bsd::clock::Clock;
use bsd::storage::Trail;

/// An archive that is being written, until this is dropped.
#[derive(Debug)]
pub struct Archive {
    store: Arc<dyn Store>,
    clock: Clock,
    joiner: Option<Joiner>,
    reporter: Reporter,
    stop: Option<SyncSender<()>>,
    /// Of a member: how its thread is told.
    turns: Option<Turns>,
    stopped: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Archive {
    /// Begin to call `writer`, and report to `reporter`. `ended` is called once, from the thread, if
    /// it must not go on: if another writer has the chain, or if the store cannot hold one.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub fn start(
        writer: Writer,
        interval: Duration,
        clock: Clock,
        reporter: Reporter,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Archive> {
        let (stop, stopping) = sync_channel(1);
        reporter.orders().open(stop.clone(), writer.trail().clone());
        let store = writer.store().clone();
        reporter.begin(writer.trail().clone());
        let mut work = Work::new(writer, interval, clock, reporter.clone(), 0);
        let run = move || {
            while work.run(&stopping)? == Rung::Woken {}
            work.last()
        };
        let mut archive = Archive::spawn(store, clock, reporter, run, ended)?;
        archive.stop = Some(stop);
        Ok(archive)
    }

    /// The same for the log of a member of a cluster: as `turns` says, `writer_of` makes a writer each
    /// time that the member begins to lead. `ended` is called if another server or cluster has the chain,
    /// and not if another member has it.
    ///
    /// # Errors
    /// The thread cannot be had.
    pub fn start_by_turns(
        turns: &Turns,
        store: Arc<dyn Store>,
        writer_of: impl Fn(Lead, Arc<Trail>) -> Writer + Send + 'static,
        interval: Duration,
        clock: Clock,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Archive> {
        let reporter = turns.reporter().clone();
        let (own, told) = (turns.clone(), reporter.clone());
        let run = move || {
            own.serve(|lead, trail, (figures, errors)| {
                let writer = writer_of(lead, trail).counting_on(figures);
                Work::new(writer, interval, clock, told.clone(), errors)
            })
        };
        let mut archive = Archive::spawn(store, clock, reporter, run, ended)?;
        archive.turns = Some(turns.clone());
        Ok(archive)
    }

    fn spawn(
        store: Arc<dyn Store>,
        clock: Clock,
        reporter: Reporter,
        run: impl FnOnce() -> Result<(), Ended> + Send + 'static,
        ended: impl FnOnce() + Send + 'static,
    ) -> io::Result<Archive> {
        let (finished, stopped) = channel();
        let told = reporter.clone();
        let run = move || {
            if run().is_err() {
                ended();
            }
            let why = "this server writes the archive no more";
            told.orders().close(why, clock.now().mono);
            // No one waits any more if that fails.
            let _ = finished.send(());
        };
        let thread = std::thread::Builder::new().name("bsd-archive".into());
        Ok(Archive {
            store,
            clock,
            joiner: None,
            reporter,
            stop: None,
            turns: None,
            stopped,
            thread: Some(thread.spawn(run)?),
        })
    }

    /// Join links that have aged, too.
    ///
    /// # Errors
    /// The thread for it cannot be had.
    pub fn with_levels(mut self, levels: Levels) -> io::Result<Archive> {
        let (reporter, told) = (self.reporter.clone(), self.reporter.clone());
        told.set_joins(&Joins::default());
        let log = move || reporter.archived_log();
        let report = move |joins: &Joins| told.set_joins(joins);
        let joiner = Joiner::start(self.store.clone(), levels, self.clock, log, report)?;
        self.joiner = Some(joiner);
        Ok(self)
    }

    /// Current state.
    #[must_use]
    pub fn report(&self) -> Report {
        self.reporter.report()
    }

    /// Wait until the chain is claimed, or the writer has ended, for at most `wait`: what is
    /// acknowledged after the claim is in the archive after an interval and an upload. True: it is
    /// claimed.
    #[must_use]
    pub fn wait_for_claim(&self, wait: Duration) -> bool {
        self.reporter.wait_for_claim(wait)
    }

    /// Put everything that is durable by now, for at most five seconds, and end. Returns the last
    /// report.
    pub fn finish(mut self) -> Report {
        self.end();
        self.report()
    }

    fn end(&mut self) {
        self.reporter.orders().silence();
        self.stop = None;
        if let Some(turns) = self.turns.take() {
            turns.stop();
        }
        if let Some(joiner) = &self.joiner {
            joiner.ask_to_stop();
        }
        let Some(thread) = self.thread.take() else {
            return;
        };
        match self.stopped.recv_timeout(LAST_LINK) {
            // A call of the store is under way: the process ends without it.
            Err(RecvTimeoutError::Timeout) => {}
            // A panic in it has been reported already.
            _ => drop(thread.join()),
        }
        self.joiner = None;
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        self.end();
    }
}
