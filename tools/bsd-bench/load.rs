//! The load: a closed loop over many connections, in one thread.
//!
//! Each connection sends a batch of commands, waits for all the replies, and sends the next batch:
//! one system call a batch, and no allocation a command.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::histogram::Histogram;
use crate::{Shape, Volume, Workload, now};

/// A server that says nothing for so long is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What a load is to be.
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) shape: Shape,
    pub(crate) volume: Volume,
    pub(crate) workload: Workload,
}

/// What a load has shown.
pub(crate) struct Outcome {
    commands: u64,
    elapsed: Duration,
    latency: Histogram,
}

impl Outcome {
    pub(crate) fn rate(&self) -> f64 {
        self.commands as f64 / self.elapsed.as_secs_f64()
    }

    fn micros(&self, fraction: f64) -> f64 {
        self.latency.quantile(fraction) as f64 / 1e3
    }

    pub(crate) fn to_json(&self) -> String {
        format!(
            "{{\"commands\":{},\"seconds\":{:.3},\"commands_per_second\":{:.0},\"p50_us\":{:.1},\
             \"p99_us\":{:.1},\"p999_us\":{:.1},\"max_us\":{:.1}}}",
            self.commands,
            self.elapsed.as_secs_f64(),
            self.rate(),
            self.micros(0.5),
            self.micros(0.99),
            self.micros(0.999),
            self.micros(1.0)
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} commands/s ({} in {:.2} s); p50 {:.0} µs, p99 {:.0} µs, p99.9 {:.0} µs, max {:.0} µs",
            self.rate(),
            self.commands,
            self.elapsed.as_secs_f64(),
            self.micros(0.5),
            self.micros(0.99),
            self.micros(0.999),
            self.micros(1.0)
        )
    }
}

/// A load that runs: its connections, and what has been counted so far.
pub(crate) struct Load {
    poll: Poll,
    workers: Vec<Worker>,
    /// How many of them are not done.
    active: usize,
    script: Script,
    budget: Budget,
    commands: u64,
    latency: Histogram,
}

impl Load {
    pub(crate) fn new(plan: &Plan) -> io::Result<Load> {
        let poll = Poll::new()?;
        let connect = |index| Worker::connect(plan.address, &poll, Token(index));
        let workers = (0..plan.shape.connections)
            .map(connect)
            .collect::<io::Result<_>>()?;
        let script = Script::new(plan.workload, plan.shape.pipeline, plan.volume.body);
        let budget = Budget::new(plan.volume, plan.workload);
        Ok(Load {
            poll,
            workers,
            active: 0,
            script,
            budget,
            commands: 0,
            latency: Histogram::new(),
        })
    }

    pub(crate) fn run(mut self) -> io::Result<Outcome> {
        let begin = now();
        self.budget.start(begin);
        for worker in &mut self.workers {
            worker.start(&self.script, &mut self.budget, begin)?;
        }
        let mut events = Events::with_capacity(1024);
        self.active = self
            .workers
            .iter()
            .filter(|worker| worker.step.is_some())
            .count();
        while self.active > 0 {
            self.poll.poll(&mut events, Some(SILENCE_MAX))?;
            if events.is_empty() {
                return Err(io::Error::other("the server has stopped answering"));
            }
            for event in &events {
                self.serve(event.token().0)?;
            }
        }
        Ok(Outcome {
            commands: self.commands,
            elapsed: begin.elapsed(),
            latency: self.latency,
        })
    }

    fn serve(&mut self, index: usize) -> io::Result<()> {
        let worker = &mut self.workers[index];
        worker.write()?;
        let mut is_readable = true;
        while is_readable {
            is_readable = worker.read()?;
            let at = now();
            let replies = worker.take_replies()?;
            self.commands += replies as u64;
            self.latency
                .record(at.duration_since(worker.sent_at), replies as u64);
            if replies > 0 && worker.awaited == 0 {
                worker.next_batch(&self.script, &mut self.budget, at)?;
                self.active -= usize::from(worker.step.is_none());
            }
        }
        Ok(())
    }
}

/// How much is still to be done.
struct Budget {
    jobs_left: u64,
    end: Option<Instant>,
    seconds: Option<Duration>,
}

impl Budget {
    /// A drain ends when nothing is left to drain.
    fn new(volume: Volume, workload: Workload) -> Budget {
        let by_time = volume.jobs.is_none() && workload != Workload::Drain;
        let seconds = by_time.then(|| Duration::from_secs_f64(volume.seconds.clamp(0.0, 1e6)));
        Budget {
            jobs_left: volume.jobs.unwrap_or(u64::MAX),
            end: None,
            seconds,
        }
    }

    fn start(&mut self, at: Instant) {
        self.end = self.seconds.map(|seconds| at + seconds);
    }

    /// Take up to `wanted` jobs; none when it is over.
    fn take(&mut self, wanted: usize, at: Instant) -> usize {
        if self.end.is_some_and(|end| at >= end) {
            return 0;
        }
        let taken = self.jobs_left.min(wanted as u64);
        self.jobs_left -= taken;
        taken as usize
    }
}

/// The bytes of a command of each kind, and what follows what.
struct Script {
    workload: Workload,
    pipeline: usize,
    put: Vec<u8>,
    reserve: &'static [u8],
}

/// What a connection is waiting for the replies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Put,
    Reserve,
    Delete,
}

impl Script {
    fn new(workload: Workload, pipeline: usize, body: usize) -> Script {
        let mut put = format!("put 0 0 600 {body}\r\n").into_bytes();
        put.resize(put.len() + body, b'x');
        put.extend_from_slice(b"\r\n");
        let reserve = match workload {
            Workload::Drain => b"reserve-with-timeout 0\r\n".as_slice(),
            Workload::Cycle | Workload::Put => b"reserve\r\n",
        };
        Script {
            workload,
            pipeline,
            put,
            reserve,
        }
    }

    fn first(&self) -> Step {
        if self.workload == Workload::Drain {
            Step::Reserve
        } else {
            Step::Put
        }
    }

    /// What comes after the replies to `step`; `None`: begin again.
    fn after(&self, step: Step) -> Option<Step> {
        match step {
            Step::Put if self.workload == Workload::Cycle => Some(Step::Reserve),
            Step::Reserve => Some(Step::Delete),
            Step::Put | Step::Delete => None,
        }
    }
}

/// One connection of the load.
struct Worker {
    stream: TcpStream,
    /// `None`: it has done its part.
    step: Option<Step>,
    /// Jobs of this round of put, reserve, delete.
    jobs: usize,
    /// Replies of this batch that have not come yet.
    awaited: usize,
    sent_at: Instant,
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    filled: usize,
    /// Jobs reserved and not deleted yet.
    ids: Vec<u64>,
    /// The server has nothing more to hand out.
    is_drained: bool,
}

impl Worker {
    fn connect(address: SocketAddr, poll: &Poll, token: Token) -> io::Result<Worker> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry()
            .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Worker {
            stream,
            step: None,
            jobs: 0,
            awaited: 0,
            sent_at: now(),
            output: Vec::new(),
            sent: 0,
            input: vec![0; 16 << 10],
            filled: 0,
            ids: Vec::new(),
            is_drained: false,
        })
    }

    /// Begin a round, if there is one to do.
    fn start(&mut self, script: &Script, budget: &mut Budget, at: Instant) -> io::Result<()> {
        let wanted = if self.is_drained { 0 } else { script.pipeline };
        self.jobs = budget.take(wanted, at);
        if self.jobs == 0 {
            self.step = None;
            return Ok(());
        }
        self.send(script.first(), script, at)
    }

    fn next_batch(&mut self, script: &Script, budget: &mut Budget, at: Instant) -> io::Result<()> {
        match self.step.and_then(|step| script.after(step)) {
            Some(Step::Delete) if self.ids.is_empty() => self.start(script, budget, at),
            Some(step) => self.send(step, script, at),
            None => self.start(script, budget, at),
        }
    }

    fn send(&mut self, step: Step, script: &Script, at: Instant) -> io::Result<()> {
        self.output.clear();
        self.sent = 0;
        self.awaited = if step == Step::Delete {
            self.ids.len()
        } else {
            self.jobs
        };
        match step {
            Step::Put => repeat(&script.put, self.jobs, &mut self.output),
            Step::Reserve => repeat(script.reserve, self.jobs, &mut self.output),
            Step::Delete => {
                for id in self.ids.drain(..) {
                    write!(self.output, "delete {id}\r\n")?;
                }
            }
        }
        self.step = Some(step);
        self.sent_at = at;
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Read once; true when there may be more. A read that does not fill the buffer has emptied
    /// the socket (`epoll(7)`).
    fn read(&mut self) -> io::Result<bool> {
        if self.filled == self.input.len() {
            self.input.resize(2 * self.filled, 0);
        }
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => Err(io::Error::other("the server has closed the connection")),
            Ok(count) => {
                self.filled += count;
                Ok(self.filled == self.input.len())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Take the complete replies; returns how many.
    fn take_replies(&mut self) -> io::Result<usize> {
        let (mut taken, mut count) = (0, 0);
        while let Some((reply, size)) = parse_reply(&self.input[taken..self.filled])? {
            self.take_reply(reply)?;
            taken += size;
            count += 1;
        }
        self.input.copy_within(taken..self.filled, 0);
        self.filled -= taken;
        Ok(count)
    }

    fn take_reply(&mut self, reply: Reply) -> io::Result<()> {
        match (self.step, reply) {
            (Some(Step::Put), Reply::Inserted) | (Some(Step::Delete), Reply::Deleted) => {}
            (Some(Step::Reserve), Reply::Reserved(id)) => self.ids.push(id),
            (Some(Step::Reserve), Reply::TimedOut) => self.is_drained = true,
            (step, reply) => {
                let message = format!("unexpected reply {reply:?} at {step:?}");
                return Err(io::Error::other(message));
            }
        }
        self.awaited = self
            .awaited
            .checked_sub(1)
            .ok_or_else(|| io::Error::other("the server has sent a reply that nobody asked for"))?;
        Ok(())
    }
}

fn repeat(command: &[u8], count: usize, output: &mut Vec<u8>) {
    for _ in 0..count {
        output.extend_from_slice(command);
    }
}

/// The replies that a load can get when all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Inserted,
    Reserved(u64),
    Deleted,
    TimedOut,
}

/// The first reply in `input`, with its size in bytes; `None` while it is incomplete.
fn parse_reply(input: &[u8]) -> io::Result<Option<(Reply, usize)>> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let (line, size) = (&input[..end], end + 1);
    if let Some(numbers) = line.strip_prefix(b"RESERVED ") {
        let (id, rest) = parse_number(numbers);
        let (body, _) = parse_number(rest.strip_prefix(b" ").unwrap_or_default());
        let size = size + body as usize + 2;
        return Ok((input.len() >= size).then_some((Reply::Reserved(id), size)));
    }
    match line.split(|byte| b" \r".contains(byte)).next() {
        Some(b"INSERTED") => Ok(Some((Reply::Inserted, size))),
        Some(b"DELETED") => Ok(Some((Reply::Deleted, size))),
        Some(b"TIMED_OUT") => Ok(Some((Reply::TimedOut, size))),
        _ => Err(io::Error::other(format!(
            "the server said: {}",
            line.escape_ascii()
        ))),
    }
}

fn parse_number(text: &[u8]) -> (u64, &[u8]) {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let digit = |byte: &u8| u64::from(byte - b'0');
    let number = text[..digits].iter().fold(0u64, |sum, byte| {
        sum.wrapping_mul(10).wrapping_add(digit(byte))
    });
    (number, &text[digits..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_taken_when_it_is_complete() {
        type Row = (&'static [u8], Option<(Reply, usize)>);
        let table: &[Row] = &[
            (b"", None),
            (b"INSERTED 1\r", None),
            (b"INSERTED 1\r\nDEL", Some((Reply::Inserted, 12))),
            (b"DELETED\r\n", Some((Reply::Deleted, 9))),
            (b"TIMED_OUT\r\n", Some((Reply::TimedOut, 11))),
            (b"RESERVED 7 3\r\nab\n", None),
            (b"RESERVED 7 3\r\nab\n\r", None),
            (b"RESERVED 7 3\r\nab\n\r\n", Some((Reply::Reserved(7), 19))),
        ];
        for (input, expected) in table {
            assert_eq!(
                parse_reply(input).unwrap(),
                *expected,
                "{}",
                input.escape_ascii()
            );
        }
        assert!(parse_reply(b"OUT_OF_MEMORY\r\n").is_err());
    }

    #[test]
    fn a_budget_of_jobs_is_handed_out_to_the_last() {
        let volume = Volume {
            jobs: Some(5),
            seconds: 0.0,
            body: 1,
        };
        let mut budget = Budget::new(volume, Workload::Cycle);
        let at = now();
        budget.start(at);
        assert_eq!(
            [budget.take(3, at), budget.take(3, at), budget.take(3, at)],
            [3, 2, 0]
        );
    }

    #[test]
    fn a_budget_of_seconds_ends_with_them() {
        let volume = Volume {
            jobs: None,
            seconds: 1.0,
            body: 1,
        };
        let mut budget = Budget::new(volume, Workload::Put);
        let at = now();
        budget.start(at);
        assert_eq!(budget.take(9, at), 9);
        assert_eq!(budget.take(9, at + Duration::from_secs(1)), 0);
    }
}
