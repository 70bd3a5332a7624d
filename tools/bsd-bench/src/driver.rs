//! The load: many connections in one thread, closed loop or open.
//!
//! *Closed*: each connection sends a batch, waits for all of its replies, and sends the next.
//! *Open*: commands are due at fixed times, whatever the server does; the first connection with
//! room sends each one, and its latency counts from the time when it was due, so a stall of the
//! server counts for every command that would have waited (no "coordinated omission").
//!
//! A *probe* is an additional connection that puts and deletes, one command at a time, in a tube of
//! its own; its latencies are counted separately. It runs in the same loop, which serves it first,
//! so that the rest of the load never delays it.
//!
//! One system call sends a batch, one reads it, and no command allocates.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use crate::connection::{Connection, READ_SIZE};
use crate::pace::Pace;
use crate::plan::Plan;
use crate::process::{check, now, own_cpu};
use crate::script::{Script, State};
use crate::share::{Budget, Tubes};
use crate::tally::{Outcome, Tally};
use crate::worker::Worker;

/// A server without a reply for this long counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// How often the progress is shown on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The worker that is the probe, if there is one.
const PROBE: usize = 0;
/// Connections of a herd that arrive in one turn of the loop.
const ARRIVALS_A_TURN: usize = 16;

/// A load that is ready to run, or runs.
#[derive(Debug)]
pub(crate) struct Load {
    plan: Plan,
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    workers: Vec<Worker>,
    script: Script,
    probe_script: Script,
    budget: Budget,
    probe_budget: Budget,
    pace: Option<Pace>,
    tally: Tally,
    /// Time zero of its clock.
    begin: Instant,
    is_started: bool,
    /// Workers that are not done, without the probe.
    active: usize,
    finished_at: Option<u64>,
    heard_at: Instant,
    told_at: Instant,
    told_commands: u64,
}

impl Plan {
    /// Run it from start to end.
    pub(crate) fn run(&self) -> io::Result<Outcome> {
        Load::new(self)?.run()
    }
}

impl Load {
    /// Connect, and prepare the connections.
    pub(crate) fn new(plan: &Plan) -> io::Result<Load> {
        let begin = now();
        let mut load = Load {
            plan: plan.clone(),
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            buffer: vec![0; READ_SIZE],
            workers: Vec::new(),
            script: plan.script(),
            probe_script: plan.probe_script(),
            budget: Budget { left: 0, end: 0 },
            probe_budget: Budget { left: 0, end: 0 },
            pace: None,
            tally: Tally::new(),
            begin,
            is_started: false,
            active: 0,
            finished_at: None,
            heard_at: begin,
            told_at: begin,
            told_commands: 0,
        };
        if plan.probe {
            load.arrive(true)?;
        }
        while !plan.herd && load.active < plan.shape.connections {
            load.arrive(false)?;
        }
        while load.workers.iter().any(|worker| !worker.is_answered()) {
            load.turn(PROGRESS_INTERVAL)?;
        }
        Ok(load)
    }

    /// Run to the end.
    pub(crate) fn run(mut self) -> io::Result<Outcome> {
        self.start()?;
        self.finish()
    }

    /// Send the first commands.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.begin = now();
        (self.heard_at, self.told_at) = (self.begin, self.begin);
        self.is_started = true;
        self.tally = Tally::new();
        let is_draining = self.script.is_draining();
        self.budget = Budget {
            left: self.plan.jobs.unwrap_or(u64::MAX),
            end: match self.plan.time {
                Some(time) if self.plan.jobs.is_none() && !is_draining => nanos(time),
                _ => u64::MAX,
            },
        };
        self.probe_budget = Budget {
            left: u64::MAX,
            end: u64::MAX,
        };
        let connections = self.workers.len();
        self.pace = self.plan.rate.map(|rate| Pace::new(rate, connections));
        (0..self.workers.len()).try_for_each(|index| {
            self.go_on(index, 0)?;
            self.look_after_probe()
        })
    }

    /// Continue until everything is done.
    pub(crate) fn finish(mut self) -> io::Result<Outcome> {
        let cpu = own_cpu();
        loop {
            self.note_end();
            if self.finished_at.is_some() && self.is_quiet() {
                break;
            }
            self.come()?;
            let wait = self.dispatch()?;
            self.turn(wait)?;
            self.tell()?;
        }
        let wall = self.elapsed();
        let spun = self.pace.as_ref().map_or(Duration::ZERO, |pace| pace.spun);
        let used = (own_cpu() - cpu).saturating_sub(spun);
        let finished = self.finished_at.unwrap_or(wall);
        Ok(Outcome {
            commands: self.tally.commands,
            elapsed: Duration::from_nanos(finished),
            latency: self.tally.latency,
            probe: self.tally.probe,
            totals: self.tally.totals,
            busy: used.as_secs_f64() / (wall as f64 / 1e9).max(1e-9),
        })
    }

    /// When the workers are done the probe continues for a while, and finishes its command: that
    /// may be the longest wait of all.
    fn note_end(&mut self) {
        let is_over = self.active == 0 && !self.has_arrivals();
        if is_over && self.finished_at.is_none() && self.is_answered() {
            let at = self.elapsed();
            self.finished_at = Some(at);
            self.probe_budget.end = at + nanos(self.plan.linger);
        }
    }

    /// True if every worker has its replies, without the probe.
    fn is_answered(&self) -> bool {
        let mut workers = self.workers.iter();
        workers.all(|worker| worker.is_probe || worker.is_answered())
    }

    fn is_quiet(&self) -> bool {
        self.workers.iter().all(|worker| worker.state.is_done)
    }

    fn elapsed(&self) -> u64 {
        nanos(self.begin.elapsed())
    }

    /// One more connection.
    fn arrive(&mut self, is_probe: bool) -> io::Result<()> {
        let index = self.workers.len();
        let prefix = self.plan.tube_prefix;
        let tubes = if is_probe {
            Tubes::all("probe", 1)
        } else if self.plan.shares_tubes {
            Tubes::all(prefix, self.plan.tubes)
        } else {
            let number = index - usize::from(self.plan.probe);
            Tubes::share(prefix, self.plan.tubes, number, self.plan.shape.connections)
        };
        let connection = self.connect(index)?;
        self.workers.push(Worker {
            connection,
            state: State::new(tubes, index as u64 + 1),
            is_probe,
        });
        self.active += usize::from(!is_probe);
        self.begin_setup(index)
    }

    fn connect(&self, index: usize) -> io::Result<Connection> {
        let tls = self.plan.tls.as_ref();
        Connection::open(self.plan.address, tls, self.poll.registry(), Token(index))
    }

    fn begin_setup(&mut self, index: usize) -> io::Result<()> {
        let at = self.elapsed();
        let worker = &mut self.workers[index];
        worker.connection.set_nodelay()?;
        worker.send_setup(at)
    }

    /// A herd arrives a few at a time, so that the turns of the loop stay short.
    fn come(&mut self) -> io::Result<()> {
        for _ in 0..ARRIVALS_A_TURN {
            if self.has_arrivals() {
                self.arrive(false)?;
                self.look_after_probe()?;
            }
        }
        Ok(())
    }

    fn has_arrivals(&self) -> bool {
        let here = self.workers.len() - usize::from(self.plan.probe);
        self.plan.herd && here < self.plan.shape.connections
    }

    /// Wait at most `wait` for events, and handle them.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        check()?;
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        let before = now();
        let result = match self.poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
            Ok(()) if events.is_empty() => self.hear_nothing(before, wait),
            Ok(()) => {
                self.heard_at = before;
                events.iter().try_for_each(|event| {
                    self.serve(event.token().0)?;
                    self.look_after_probe()
                })
            }
        };
        self.events = events;
        result
    }

    fn hear_nothing(&mut self, before: Instant, wait: Duration) -> io::Result<()> {
        if let Some(pace) = self.pace.as_mut().filter(|_| wait.is_zero()) {
            pace.spun += before.elapsed();
        }
        if self.workers.iter().all(Worker::is_answered) {
            self.heard_at = before;
        }
        if self.heard_at.elapsed() > SILENCE_MAX {
            Err(io::Error::other(format!(
                "{} has said nothing for {} s",
                self.plan.address,
                SILENCE_MAX.as_secs()
            )))
        } else {
            Ok(())
        }
    }

    /// The probe goes first: the work of this program for the rest of the load must not delay it.
    fn look_after_probe(&mut self) -> io::Result<()> {
        if self.plan.probe {
            self.serve(PROBE)
        } else {
            Ok(())
        }
    }

    fn serve(&mut self, index: usize) -> io::Result<()> {
        self.exchange(index).map_err(|error| {
            let address = self.plan.address;
            io::Error::new(error.kind(), format!("{address}: {error}"))
        })
    }

    fn exchange(&mut self, index: usize) -> io::Result<()> {
        self.workers[index].connection.flush()?;
        if self.is_started && self.plan.is_deaf && !self.workers[index].is_probe {
            return Ok(());
        }
        while let Some(filled) = self.workers[index].connection.read(&mut self.buffer)? {
            let at = self.elapsed();
            self.take(index, filled, at)?;
            self.go_on(index, at)?;
            let may_hold_more = self.workers[index].connection.may_hold_more();
            if filled < self.buffer.len() && !may_hold_more {
                break;
            }
            // Long replies may continue as long as the server sends.
            if !self.workers[index].is_probe {
                self.look_after_probe()?;
            }
        }
        Ok(())
    }

    /// Handle the bytes of one read.
    fn take(&mut self, index: usize, filled: usize, at: u64) -> io::Result<()> {
        let worker = &mut self.workers[index];
        let script = if worker.is_probe {
            &self.probe_script
        } else {
            &self.script
        };
        worker.take(&self.buffer[..filled], script, &mut self.tally, at)
    }

    /// A connection may have something to send now.
    fn go_on(&mut self, index: usize, at: u64) -> io::Result<()> {
        if !self.is_started {
            return Ok(());
        }
        let worker = &mut self.workers[index];
        if worker.state.is_done {
            return Ok(());
        }
        if let (Some(pace), false) = (&mut self.pace, worker.is_probe) {
            pace.list(index);
            return Ok(());
        }
        if !worker.is_answered() {
            return Ok(());
        }
        let is_one_of_herd = self.plan.herd && !worker.is_probe;
        if is_one_of_herd && worker.state.rounds > 0 && worker.state.is_round_over() {
            return self.come_again(index);
        }
        if worker.is_probe {
            return worker.send_batch(&self.probe_script, &mut self.probe_budget, at);
        }
        worker.send_batch(&self.script, &mut self.budget, at)?;
        if self.plan.is_deaf {
            worker.hear_no_more();
        }
        self.active -= usize::from(worker.state.is_done);
        Ok(())
    }

    /// A client of a herd disconnects, and connects again.
    fn come_again(&mut self, index: usize) -> io::Result<()> {
        self.workers[index].connection = self.connect(index)?;
        self.workers[index].state.rounds = 0;
        self.begin_setup(index)
    }

    /// Send what is due in an open loop; returns how long the loop may wait then.
    fn dispatch(&mut self) -> io::Result<Duration> {
        let is_over = self.active == 0 && self.finished_at.is_none() && self.is_answered();
        if self.has_arrivals() || is_over {
            return Ok(Duration::ZERO);
        }
        let Some(pace) = &mut self.pace else {
            return Ok(PROGRESS_INTERVAL);
        };
        let at = nanos(self.begin.elapsed());
        while pace.due() <= at {
            let Some(index) = pace.take() else {
                // No connection has room: only a reply can help. If all are done, nothing will
                // come.
                let is_waiting = self.active > 0 || self.finished_at.is_some();
                return Ok(PROGRESS_INTERVAL * u32::from(is_waiting));
            };
            let worker = &mut self.workers[index];
            if worker.send_one(&self.script, &mut self.budget, at, pace.due())? {
                pace.issue();
                pace.list(index);
            }
            self.active -= usize::from(worker.state.is_done);
        }
        Ok(PROGRESS_INTERVAL.min(pace.wait(at)))
    }

    /// Show the progress on a terminal.
    fn tell(&mut self) -> io::Result<()> {
        let since = self.told_at.elapsed();
        if !self.plan.progress || since < PROGRESS_INTERVAL || !io::stderr().is_terminal() {
            return Ok(());
        }
        let commands = self.tally.commands;
        let rate = (commands - self.told_commands) as f64 / since.as_secs_f64();
        let (all, p99) = (self.begin.elapsed(), self.tally.latency.quantile(0.99));
        eprint!(
            "\r\x1b[K{:.0} s  {rate:.0} commands/s  {commands} in all  p99 {:.0} µs",
            all.as_secs_f64(),
            p99.as_secs_f64() * 1e6
        );
        io::stderr().flush()?;
        (self.told_at, self.told_commands) = (now(), commands);
        Ok(())
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
