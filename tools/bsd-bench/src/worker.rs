//! One worker of a load: a connection, and its progress in its script.

use std::io;

use crate::connection::{Connection, Pending};
use crate::script::{Script, State};
use crate::share::Budget;
use crate::tally::{Run, Tally};

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) connection: Connection,
    pub(crate) state: State,
    /// It measures the latency for another client; it is not part of the load.
    pub(crate) is_probe: bool,
}

impl Worker {
    /// True if everything that it has sent was answered.
    pub(crate) fn is_answered(&self) -> bool {
        self.connection.pending.is_empty()
    }

    /// It sends no more, and its replies will not be read.
    pub(crate) fn hear_no_more(&mut self) {
        self.connection.pending.clear();
        self.state.is_done = true;
    }

    /// Use and watch its tubes.
    pub(crate) fn send_setup(&mut self, at: u64) -> io::Result<()> {
        let Connection {
            output, pending, ..
        } = &mut self.connection;
        let sent = |op| pending.push_back(Pending { op, at });
        self.state.tubes().push_setup(output, sent)?;
        self.connection.flush()
    }

    /// Send the next batch of a closed loop.
    pub(crate) fn send_batch(
        &mut self,
        script: &Script,
        budget: &mut Budget,
        at: u64,
    ) -> io::Result<()> {
        let Connection {
            output, pending, ..
        } = &mut self.connection;
        while let Some(op) = self.state.next(script, budget, at, output) {
            pending.push_back(Pending { op, at });
            if self.state.is_phase_over() {
                break;
            }
        }
        self.connection.flush()
    }

    /// Send the command of an open loop that was `due`, if there is room for it and a command to
    /// send.
    pub(crate) fn send_one(
        &mut self,
        script: &Script,
        budget: &mut Budget,
        at: u64,
        due: u64,
    ) -> io::Result<bool> {
        let Connection {
            output, pending, ..
        } = &mut self.connection;
        if pending.len() >= script.pipeline {
            return Ok(false);
        }
        let Some(op) = self.state.next(script, budget, at, output) else {
            return Ok(false);
        };
        pending.push_back(Pending { op, at: due });
        self.connection.flush()?;
        Ok(true)
    }

    /// Handle the bytes of one read.
    pub(crate) fn take(
        &mut self,
        bytes: &[u8],
        script: &Script,
        tally: &mut Tally,
        at: u64,
    ) -> io::Result<()> {
        let (state, is_probe) = (&mut self.state, self.is_probe);
        let mut run: Option<Run> = None;
        self.connection.take(bytes, |pending, reply| {
            state.take(script, pending.op, reply)?;
            match &mut run {
                Some(run) if run.goes_on_with(pending) => run.count += 1,
                _ => {
                    if let Some(done) = run.replace(Run::begin(pending)) {
                        tally.record(done, at, is_probe);
                    }
                }
            }
            Ok(())
        })?;
        if let Some(done) = run {
            tally.record(done, at, is_probe);
            if self.is_answered() && !is_probe {
                tally.end_batch(done, at);
            }
        }
        Ok(())
    }
}
