//! Script of a connection, with its handling of replies: workloads, without sockets or clock.
//!
//! A workload has rounds: as many puts as the pipeline is deep, then as many reserves, then as many
//! deletes. A closed loop sends one such phase at a time and waits for all of its replies; an open
//! loop sends command by command, whenever one is due.

use std::collections::VecDeque;
use std::io;

use clap::ValueEnum;

use crate::options::BodySizes;
use crate::share::{Budget, Tubes};
pub(crate) use crate::wire::Op;
use crate::wire::{Reply, push_line, push_number};
use bsd::random::Random;

/// Commands that each connection repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// put, reserve, delete
    Cycle,
    /// put, and leave the jobs there
    Put,
    /// reserve and delete jobs until no more are left
    Drain,
    /// Out of 100 commands 33 reserve, 26 put (2 with a delay), 26 delete, 7 touch, 4 release (1
    /// with a delay), 3 bury and 1 kick, in random order
    Mix,
    /// Reserve and bury jobs until no more are left.
    #[value(skip)]
    Bury,
    /// One kick.
    #[value(skip)]
    Kick,
    /// One `clear-tube` of the ready jobs of `default`.
    #[value(skip)]
    Clear,
    /// Use and pause one tube after another, each new and never used again.
    #[value(skip)]
    Pause,
    /// Ask for a job without waiting.
    #[value(skip)]
    Poll,
    /// Look at the first ready job.
    #[value(skip)]
    Peek,
    /// List all tubes.
    #[value(skip)]
    ListTubes,
    /// Put and delete, one after the other.
    #[value(skip)]
    Probe,
}

/// A workload with its numbers; the same for all connections.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) workload: Workload,
    pub(crate) pipeline: usize,
    /// Priorities are picked from 0 to this minus 1.
    pub(crate) priorities: u64,
    /// Seconds by which puts are delayed; in a mix, the delay of delayed ones, at least 1.
    pub(crate) delay: u64,
    /// Jobs that one kick should kick.
    pub(crate) kick: u64,
    /// A put may find the server without room.
    pub(crate) may_be_refused: bool,
    sizes: BodySizes,
    /// The longest body.
    block: Vec<u8>,
}

/// Seconds that a reserved job may take: longer than any run.
const TTR: u64 = 3600;

/// Seconds for which a tube is paused: as long as the protocol allows.
const PAUSE: u64 = 4_294_967_295;

/// Jobs that one kick of a mix should kick: usually as many as were buried since the last.
const MIX_KICK: u64 = 3;

impl Script {
    pub(crate) fn new(workload: Workload, pipeline: usize, sizes: BodySizes) -> Script {
        // Printable, and not compressible by a file system.
        let mut random = Random::new(0);
        let byte = |_| b' ' + random.below(95) as u8;
        let block = (0..sizes.max()).map(byte).collect();
        Script {
            workload,
            pipeline,
            priorities: 1,
            delay: 0,
            kick: MIX_KICK,
            may_be_refused: false,
            sizes,
            block,
        }
    }

    fn first(&self) -> Phase {
        match self.workload {
            Workload::Cycle | Workload::Put | Workload::Probe => Phase::Put,
            Workload::Drain | Workload::Bury | Workload::Poll => Phase::Reserve,
            Workload::Mix
            | Workload::Kick
            | Workload::Clear
            | Workload::Pause
            | Workload::Peek
            | Workload::ListTubes => Phase::Any,
        }
    }

    fn after(&self, phase: Phase) -> Phase {
        match (phase, self.workload) {
            (Phase::Use, _) => Phase::Put,
            (Phase::Put, Workload::Cycle) => Phase::Reserve,
            (Phase::Put, Workload::Probe) | (Phase::Reserve, _) => Phase::Finish,
            _ => Phase::Idle,
        }
    }

    /// True if it ends when there is nothing to reserve.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(self.workload, Workload::Drain | Workload::Bury)
    }

    fn push_put(&self, delay: u64, random: &mut Random, out: &mut Vec<u8>) {
        let priority = random.below(self.priorities);
        let body = &self.block[..self.sizes.pick(random)];
        push_line(b"put", &[priority, delay, TTR, body.len() as u64], out);
        out.extend_from_slice(body);
        out.extend_from_slice(b"\r\n");
    }
}

/// The command that a connection sends now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing: the round is over.
    Idle,
    /// Continue with the next of several tubes.
    Use,
    Put,
    Reserve,
    /// A command for each job that was reserved.
    Finish,
    /// Any command.
    Any,
}

/// The progress of one connection in its script.
#[derive(Debug)]
pub(crate) struct State {
    tubes: Tubes,
    random: Random,
    /// The number of the next new tube; unique to this connection.
    new_tube: u64,
    phase: Phase,
    /// Jobs of this round.
    round: usize,
    /// Commands of this phase that are not sent yet.
    left: usize,
    /// Jobs to finish.
    ids: VecDeque<u64>,
    /// Outstanding replies with an id.
    awaited_ids: usize,
    /// The server had no job to hand out.
    is_drained: bool,
    /// Rounds begun.
    pub(crate) rounds: u64,
    /// Nothing is left to do.
    pub(crate) is_done: bool,
}

impl State {
    pub(crate) fn new(tubes: Tubes, seed: u64) -> State {
        State {
            tubes,
            random: Random::new(seed),
            new_tube: seed << 32,
            phase: Phase::Idle,
            round: 0,
            left: 0,
            ids: VecDeque::new(),
            awaited_ids: 0,
            is_drained: false,
            rounds: 0,
            is_done: false,
        }
    }

    pub(crate) fn tubes(&self) -> &Tubes {
        &self.tubes
    }

    /// Append the next command to `out`. `None`: more replies must come first, or there are no more
    /// commands.
    pub(crate) fn next(
        &mut self,
        script: &Script,
        budget: &mut Budget,
        at: u64,
        out: &mut Vec<u8>,
    ) -> Option<Op> {
        loop {
            match self.phase {
                Phase::Idle => {
                    if !self.begin_round(script, budget, at) {
                        return None;
                    }
                }
                Phase::Finish => match self.ids.pop_front() {
                    Some(id) => return Some(finish(script, id, out)),
                    None if self.awaited_ids > 0 => return None,
                    None => self.phase = Phase::Idle,
                },
                phase if self.left == 0 => {
                    self.phase = script.after(phase);
                    self.left = self.round;
                }
                _ => {
                    self.left -= 1;
                    return Some(self.send(script, out));
                }
            }
        }
    }

    fn begin_round(&mut self, script: &Script, budget: &mut Budget, at: u64) -> bool {
        let is_over = self.is_drained && script.is_draining();
        let wanted = if is_over { 0 } else { script.pipeline };
        self.round = budget.take(wanted, at);
        self.is_done = self.round == 0;
        self.left = match script.workload {
            Workload::Pause => 2 * self.round,
            _ => self.round,
        };
        self.phase = script.first();
        if self.phase == Phase::Put && self.tubes.are_many() {
            self.phase = Phase::Use;
            self.left = 1;
        }
        if self.is_done {
            self.phase = Phase::Idle;
        }
        self.rounds += u64::from(!self.is_done);
        !self.is_done
    }

    /// True if a batch of a closed loop ends here.
    pub(crate) fn is_phase_over(&self) -> bool {
        match self.phase {
            Phase::Use => false,
            Phase::Finish => self.ids.is_empty(),
            _ => self.left == 0,
        }
    }

    /// True if everything of this round was sent.
    pub(crate) fn is_round_over(&self) -> bool {
        match self.phase {
            Phase::Idle => true,
            Phase::Finish => self.ids.is_empty() && self.awaited_ids == 0,
            // There was nothing to reserve, so there is nothing to finish.
            Phase::Reserve => self.left == 0 && self.ids.is_empty() && self.awaited_ids == 0,
            _ => false,
        }
    }

    fn send(&mut self, script: &Script, out: &mut Vec<u8>) -> Op {
        match self.phase {
            Phase::Use => {
                self.tubes.push_use(out);
                Op::Use
            }
            Phase::Put => self.put(script, script.delay, out),
            Phase::Reserve => self.reserve(script, out),
            _ => match script.workload {
                Workload::Kick => push(Op::Kick, b"kick", &[script.kick], out),
                Workload::Clear => push(Op::Clear, b"clear-tube default ready", &[], out),
                Workload::Pause => self.pause(out),
                Workload::Peek => push(Op::Peek, b"peek-ready", &[], out),
                Workload::ListTubes => push(Op::ListTubes, b"list-tubes", &[], out),
                _ => self.any(script, out),
            },
        }
    }

    /// Two commands for one pause: the tube is used first, or it would not exist.
    fn pause(&mut self, out: &mut Vec<u8>) -> Op {
        let is_used = self.left.is_multiple_of(2);
        out.extend_from_slice(if is_used { b"pause-tube p" } else { b"use p" });
        push_number(self.new_tube, out);
        if is_used {
            self.new_tube += 1;
            push(Op::Pause, b"", &[PAUSE], out)
        } else {
            push(Op::Use, b"", &[], out)
        }
    }

    fn put(&mut self, script: &Script, delay: u64, out: &mut Vec<u8>) -> Op {
        script.push_put(delay, &mut self.random, out);
        self.awaited_ids += usize::from(script.workload == Workload::Probe);
        Op::Put
    }

    fn reserve(&mut self, script: &Script, out: &mut Vec<u8>) -> Op {
        // In a cycle there is a job: this connection has put it.
        let line = match script.workload {
            Workload::Cycle => &b"reserve\r\n"[..],
            _ => b"reserve-with-timeout 0\r\n",
        };
        out.extend_from_slice(line);
        self.awaited_ids += 1;
        Op::Reserve
    }

    /// The weights balance ready and reserved jobs, and puts and deletes, so that a mix neither
    /// grows nor runs dry.
    fn any(&mut self, script: &Script, out: &mut Vec<u8>) -> Op {
        let choice = match self.ids.len() {
            0 => self.random.below(60),
            held if held > 4 * script.pipeline => 60,
            _ => self.random.below(100),
        };
        let delay = script.delay.max(1);
        match choice {
            0..33 => return self.reserve(script, out),
            33..57 => return self.put(script, script.delay, out),
            57..59 => return self.put(script, delay, out),
            59 => {
                push_line(b"kick", &[script.kick], out);
                return Op::Kick;
            }
            _ => {}
        }
        let id = self.ids.pop_front().unwrap_or_default();
        let priority = self.random.below(script.priorities);
        match choice {
            60..86 => push(Op::Delete, b"delete", &[id], out),
            86..89 => push(Op::Release, b"release", &[id, priority, 0], out),
            89 => push(Op::Release, b"release", &[id, priority, delay], out),
            90..93 => push(Op::Bury, b"bury", &[id, priority], out),
            _ => {
                self.ids.push_back(id);
                push(Op::Touch, b"touch", &[id], out)
            }
        }
    }

    /// Handle the reply to a command.
    pub(crate) fn take(&mut self, script: &Script, op: Op, reply: Reply) -> io::Result<()> {
        match (op, reply) {
            (Op::Put, Reply::Inserted(id)) if script.workload == Workload::Probe => {
                self.take_id(id);
            }
            (Op::Put, Reply::OutOfMemory) if script.may_be_refused => {
                self.awaited_ids -= usize::from(script.workload == Workload::Probe);
            }
            (Op::Reserve, Reply::Reserved(id, _)) => self.take_id(id),
            (Op::Reserve, Reply::TimedOut) => {
                self.awaited_ids -= 1;
                self.is_drained = true;
            }
            (Op::Put, Reply::Inserted(_))
            | (Op::Delete, Reply::Deleted)
            | (Op::Release, Reply::Released)
            | (Op::Bury, Reply::Buried)
            | (Op::Kick, Reply::Kicked)
            | (Op::Clear, Reply::Cleared)
            | (Op::Touch, Reply::Touched)
            | (Op::Use, Reply::Using)
            | (Op::Watch, Reply::Watching)
            | (Op::Pause, Reply::Paused)
            | (Op::ListTubes, Reply::Listed(_)) => {}
            _ => {
                let message = format!("the server answered {reply:?} to {op:?}");
                return Err(io::Error::other(message));
            }
        }
        Ok(())
    }

    fn take_id(&mut self, id: u64) {
        self.awaited_ids -= 1;
        self.ids.push_back(id);
    }
}

fn finish(script: &Script, id: u64, out: &mut Vec<u8>) -> Op {
    match script.workload {
        Workload::Bury => push(Op::Bury, b"bury", &[id, 0], out),
        _ => push(Op::Delete, b"delete", &[id], out),
    }
}

fn push(op: Op, word: &[u8], numbers: &[u64], out: &mut Vec<u8>) -> Op {
    push_line(word, numbers, out);
    op
}

#[cfg(test)]
mod tests;
