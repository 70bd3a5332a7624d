//! A closed loop of jobs in another protocol than beanstalkd's: each client puts as many as the pipeline
//! is deep, reserves as many, and deletes those. One thread, as in `driver`.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};

use crate::connection::{Connection, READ_SIZE};
use crate::options::{BodySizes, Shape};
use crate::process::{check, now, own_cpu};
use crate::random::Random;
use crate::script::Op;
use crate::tally::{Outcome, Tally};

/// A server without a word for this long counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Half of what a connection can keep until the rest of it comes.
pub(super) const BODY_SIZE_MAX: usize = READ_SIZE / 2;

/// A client's side of a protocol, without a socket.
pub(super) trait Talk {
    /// Commands whose answers say that they are done. The others count as done when they are sent or,
    /// where the server brings jobs without being asked, when the job is here.
    const ANSWERED: &'static [Op];

    /// What a client says first.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// Handle what has come, and say what has to be said at once. Returns how many bytes of it were
    /// complete.
    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize>;

    /// Both sides have said who they are, and what the client wants.
    fn is_ready(&self) -> bool;

    fn put(&mut self, body: &[u8], out: &mut Vec<u8>);

    fn reserve(&mut self, count: usize, out: &mut Vec<u8>);

    /// Delete all jobs that are reserved.
    fn delete(&mut self, out: &mut Vec<u8>);

    /// Commands of this kind that are done and were not told yet.
    fn done(&mut self, op: Op) -> usize;
}

/// How many of puts, reserves and deletes are done and were not told yet.
#[derive(Debug, Default)]
pub(super) struct Done([usize; 3]);

impl Done {
    pub(super) fn add(&mut self, op: Op, count: usize) {
        self.0[op as usize] += count;
    }

    pub(super) fn tell(&mut self, op: Op) -> usize {
        std::mem::take(&mut self.0[op as usize])
    }
}

#[derive(Debug)]
struct Worker<T> {
    connection: Connection,
    talk: T,
    phase: Op,
    /// Commands of the phase that are not done.
    left: usize,
    sent_at: u64,
}

/// Clients of one queue.
#[derive(Debug)]
pub(super) struct Load<T> {
    poll: Poll,
    events: Events,
    buffer: Vec<u8>,
    workers: Vec<Worker<T>>,
    pipeline: usize,
    sizes: BodySizes,
    block: Vec<u8>,
    random: Random,
    tally: Tally,
    begun: Instant,
    is_started: bool,
    heard_at: Instant,
}

impl<T: Talk> Load<T> {
    /// Connect, and let the clients say who they are.
    pub(super) fn new(
        address: SocketAddr,
        shape: Shape,
        sizes: &BodySizes,
        client: impl Fn() -> T,
    ) -> io::Result<Load<T>> {
        let mut random = Random::new(0);
        let byte = |_| b' ' + random.below(95) as u8;
        let mut load = Load {
            poll: Poll::new()?,
            events: Events::with_capacity(1024),
            buffer: vec![0; READ_SIZE],
            workers: Vec::new(),
            pipeline: shape.pipeline,
            sizes: sizes.clone(),
            block: (0..sizes.max()).map(byte).collect(),
            random: Random::new(1),
            tally: Tally::new(),
            begun: now(),
            is_started: false,
            heard_at: now(),
        };
        for number in 0..shape.connections {
            let registry = load.poll.registry();
            let mut connection = Connection::open(address, None, registry, Token(number))?;
            connection.set_nodelay()?;
            let mut talk = client();
            talk.begin(&mut connection.output);
            load.workers.push(Worker {
                connection,
                talk,
                // Before the first put.
                phase: Op::Delete,
                left: 0,
                sent_at: 0,
            });
        }
        while !load.workers.iter().all(|worker| worker.talk.is_ready()) {
            load.turn(SILENCE_MAX)?;
        }
        Ok(load)
    }

    /// Go on for this long. What is on its way at the end is not counted now, and is in the next run.
    pub(super) fn run(&mut self, time: Duration) -> io::Result<Outcome> {
        let (begin, cpu) = (now(), own_cpu());
        let end = begin + time;
        self.tally = Tally::new();
        if !std::mem::replace(&mut self.is_started, true) {
            self.heard_at = begin;
            (0..self.workers.len()).try_for_each(|index| self.go_on(index))?;
        }
        while now() < end {
            self.turn(end.saturating_duration_since(now()))?;
        }
        let elapsed = begin.elapsed();
        let tally = std::mem::replace(&mut self.tally, Tally::new());
        Ok(Outcome {
            commands: tally.commands,
            elapsed,
            latency: tally.latency,
            probe: tally.probe,
            totals: tally.totals,
            busy: (own_cpu() - cpu).as_secs_f64() / elapsed.as_secs_f64(),
        })
    }

    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        check()?;
        match self.poll.poll(&mut self.events, Some(wait)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        let ready: Vec<usize> = self.events.iter().map(|event| event.token().0).collect();
        if !ready.is_empty() {
            self.heard_at = now();
        } else if self.heard_at.elapsed() >= SILENCE_MAX {
            let seconds = SILENCE_MAX.as_secs();
            return Err(io::Error::other(format!("nothing came for {seconds} s")));
        }
        ready.into_iter().try_for_each(|index| self.serve(index))
    }

    fn serve(&mut self, index: usize) -> io::Result<()> {
        let worker = &mut self.workers[index];
        worker.connection.flush()?;
        while let Some(filled) = worker.connection.read(&mut self.buffer)? {
            let bytes = &self.buffer[..filled];
            let used = worker.talk.take(bytes, &mut worker.connection.output)?;
            worker.connection.keep(&bytes[used..]);
            if filled < self.buffer.len() {
                break;
            }
        }
        match self.is_started {
            true => self.go_on(index),
            false => worker.connection.flush(),
        }
    }

    /// Count what is done, and begin the next phase when all of one is.
    fn go_on(&mut self, index: usize) -> io::Result<()> {
        let at = self.begun.elapsed().as_nanos() as u64;
        let worker = &mut self.workers[index];
        loop {
            let count = worker.talk.done(worker.phase);
            worker.left = worker.left.checked_sub(count).ok_or_else(|| {
                io::Error::other(format!("more answers than commands: {:?}", worker.phase))
            })?;
            self.tally.commands += count as u64;
            if count > 0 && T::ANSWERED.contains(&worker.phase) {
                let nanos = at.saturating_sub(worker.sent_at);
                self.tally.latency.record(nanos, count as u64);
            }
            if worker.left > 0 {
                return worker.connection.flush();
            }
            (worker.left, worker.sent_at) = (self.pipeline, at);
            let out = &mut worker.connection.output;
            worker.phase = match worker.phase {
                Op::Put => Op::Reserve,
                Op::Reserve => Op::Delete,
                _ => Op::Put,
            };
            match worker.phase {
                Op::Put => {
                    for _ in 0..self.pipeline {
                        let size = self.sizes.pick(&mut self.random);
                        worker.talk.put(&self.block[..size], out);
                    }
                }
                Op::Reserve => worker.talk.reserve(self.pipeline, out),
                _ => worker.talk.delete(out),
            }
        }
    }
}

/// One client that waits for what it is told.
#[derive(Debug)]
pub(super) struct Single<T> {
    stream: TcpStream,
    pub(super) talk: T,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl<T: Talk> Single<T> {
    /// Connect, and wait until both sides have said who they are; `patience`: for each word.
    pub(super) fn open(address: SocketAddr, talk: T, patience: Duration) -> io::Result<Single<T>> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        let mut single = Single {
            stream,
            talk,
            input: Vec::new(),
            out: Vec::new(),
        };
        single.talk.begin(&mut single.out);
        while !single.talk.is_ready() {
            single.exchange()?;
        }
        Ok(single)
    }

    /// Put a job, and wait for the answer.
    pub(super) fn put(&mut self) -> io::Result<()> {
        self.talk.put(b"body", &mut self.out);
        while self.talk.done(Op::Put) == 0 {
            self.exchange()?;
        }
        Ok(())
    }

    /// Say what there is to say, and hear something.
    fn exchange(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        let mut buffer = [0; 4096];
        let size = self.stream.read(&mut buffer)?;
        if size == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.input.extend_from_slice(&buffer[..size]);
        let used = self.talk.take(&self.input, &mut self.out)?;
        self.input.drain(..used);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const PIPELINE: usize = 3;
    const OPS: [(Op, u8); 3] = [(Op::Put, b'p'), (Op::Reserve, b'r'), (Op::Delete, b'd')];

    /// Each command is a letter, and so is its answer. Those of deletes are not waited for.
    struct Letters {
        is_ready: bool,
        held: usize,
        done: Done,
    }

    impl Talk for Letters {
        const ANSWERED: &'static [Op] = &[Op::Put];

        fn begin(&mut self, out: &mut Vec<u8>) {
            out.push(b'?');
        }

        fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
            for byte in bytes {
                match OPS.iter().find(|(_, letter)| letter == byte) {
                    None if *byte == b'!' => out.push(b'!'),
                    None => self.is_ready = true,
                    Some((op, _)) => {
                        self.held += usize::from(*op == Op::Reserve);
                        self.done.add(*op, 1);
                    }
                }
            }
            Ok(bytes.len())
        }

        fn is_ready(&self) -> bool {
            self.is_ready
        }

        fn put(&mut self, _: &[u8], out: &mut Vec<u8>) {
            out.push(b'p');
        }

        fn reserve(&mut self, count: usize, out: &mut Vec<u8>) {
            out.extend(std::iter::repeat_n(b'r', count));
        }

        fn delete(&mut self, out: &mut Vec<u8>) {
            out.extend(std::iter::repeat_n(b'd', self.held));
            self.held = 0;
        }

        fn done(&mut self, op: Op) -> usize {
            self.done.tell(op)
        }
    }

    /// Read a letter, which must be this one. `None`: the client has gone.
    fn hear(stream: &mut TcpStream, expected: u8) -> Option<u8> {
        let mut heard = [0];
        let is_here = matches!(stream.read(&mut heard), Ok(1));
        assert!(!is_here || heard[0] == expected, "{}", heard[0] as char);
        is_here.then_some(expected)
    }

    /// Answer all commands of a phase but the last one, look twice that nothing comes but what was asked
    /// for, and answer the last one; until the client goes. Counts the commands.
    fn serve(stream: &mut TcpStream, commands: &mut u64) -> Option<()> {
        let say = |stream: &mut TcpStream, letter| stream.write_all(&[letter]).ok();
        hear(stream, b'?')?;
        say(stream, b'?')?;
        for (_, letter) in OPS.iter().cycle() {
            for nth in 1..=PIPELINE {
                hear(stream, *letter)?;
                *commands += 1;
                if nth < PIPELINE {
                    say(stream, *letter)?;
                }
            }
            for _ in 0..2 {
                say(stream, b'!')?;
                hear(stream, b'!')?;
            }
            say(stream, *letter)?;
        }
        None
    }

    #[test]
    fn each_phase_begins_when_all_of_the_one_before_is_done() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut commands = 0;
            serve(&mut stream, &mut commands);
            commands
        });
        let shape = Shape {
            connections: 1,
            pipeline: PIPELINE,
        };
        let client = || Letters {
            is_ready: false,
            held: 0,
            done: Done::default(),
        };
        let mut load = Load::new(address, shape, &BodySizes::fixed(1), client).unwrap();
        let (mut commands, mut answered) = (0, 0);
        while commands < 100 {
            // It fails when the server does, which says why.
            let Ok(outcome) = load.run(Duration::from_millis(5)) else {
                break;
            };
            commands += outcome.commands;
            answered += outcome.latency.count();
        }
        drop(load);
        let heard = server.join().unwrap();
        // All but what was on its way at the end.
        let open = heard - commands;
        assert!(commands >= 100 && open <= PIPELINE as u64, "{open}");
        // Only puts have latencies.
        assert!(answered * 3 >= commands && answered < commands / 2);
    }
}
