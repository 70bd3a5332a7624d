//! What `bsd-bench cluster` measures beside bsd: three nodes of another system, which replicate what they
//! acknowledge and have it on the disks of a majority by then, as bsd's members.
//!
//! They start once a round, after bsd's rows, because some take long to start; each load has a queue of
//! its own, and its clients ask the node that leads it. A system that cannot be started is left out,
//! with a line that says so.
//!
//! | where | what |
//! |---|---|
//! | `talk` | the load: puts, reserves and deletes in turn, whatever they are called there |
//! | `nats` | NATS JetStream: streams of three replicas, `sync_interval: always` |
//! | `rabbitmq`, `amqp` | RabbitMQ: quorum queues; the protocol that it speaks |

mod amqp;
mod nats;
mod rabbitmq;
mod talk;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bsd::storage::RealFs;
use bsd::storage::disk::{Fs, OpenMode, write_all_at};

use crate::beside::nats::Nats;
use crate::beside::rabbitmq::RabbitMq;
use crate::beside::talk::{Load, Single, Talk};
use crate::limit::Times;
use crate::options::{BodySizes, Shape};
use crate::process::{check, now, usage};
use crate::servers::{Ended, Programs};
use crate::tally::Outcome;

/// How long a node may take to start, and a cluster to agree.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
pub(crate) struct Wanted {
    /// Measure three nodes of NATS JetStream too: the path of nats-server, 2.10 or later
    #[arg(long, value_name = "PATH")]
    nats: Option<PathBuf>,
    /// Measure three nodes of RabbitMQ too: the path of its own script rabbitmq-server, not of one that
    /// becomes another user; erl and epmd have to be in the PATH
    #[arg(long, value_name = "PATH")]
    rabbitmq: Option<PathBuf>,
}

/// A system of three nodes that keep queues together.
trait System: Sized {
    type Talk: Talk;

    const NAME: &'static str;
    /// How long a client waits for the answer to a put before it asks again.
    const ANSWER_MAX: Duration;

    /// Start three nodes, and wait until they serve.
    fn start(program: &Path, programs: &Programs) -> io::Result<Self>;

    fn version(&self) -> &str;

    fn nodes(&mut self) -> &mut [Node];

    /// Make a queue of three replicas, which is used from now on. Returns the node that leads it.
    fn make_queue(&mut self) -> io::Result<usize>;

    /// A client that puts, reserves and deletes.
    fn worker(&self, shape: Shape) -> Self::Talk;

    /// A client that only puts.
    fn putter(&self) -> Self::Talk;

    /// Wait until this node, which was started again, is as the others.
    fn wait_until_level(&mut self, at: usize) -> io::Result<()>;
}

/// A process of such a system.
#[derive(Debug)]
struct Node {
    child: Ended,
    command: Command,
    client: SocketAddr,
}

impl Node {
    fn start(mut command: Command, client: SocketAddr) -> io::Result<Node> {
        Ok(Node {
            child: Ended::start(&mut command)?,
            command,
            client,
        })
    }

    fn restart(&mut self) -> io::Result<()> {
        self.child = Ended::start(&mut self.command)?;
        Ok(())
    }

    /// Wait until it does what it is asked for.
    fn wait_until<T>(&mut self, ask: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
        let Node {
            child,
            command,
            client,
        } = self;
        patiently_while(
            || ask(*client),
            || {
                child.status()?.map_or(Ok(()), |status| {
                    let program = command.get_program().display();
                    Err(io::Error::other(format!("{program} ended: {status}")))
                })
            },
        )
    }
}

/// Ask until there is an answer.
fn patiently<T>(ask: impl Fn() -> io::Result<T>) -> io::Result<T> {
    patiently_while(ask, || Ok(()))
}

/// Ask until there is an answer, as long as it makes sense.
fn patiently_while<T>(
    ask: impl Fn() -> io::Result<T>,
    mut makes_sense: impl FnMut() -> io::Result<()>,
) -> io::Result<T> {
    let deadline = now() + PATIENCE;
    loop {
        check()?;
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if now() > deadline => return Err(error),
            Err(_) => makes_sense()?,
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = RealFs.open(path, OpenMode::CreateNew)?;
    write_all_at(&*file, bytes, 0)
}

/// What a load has shown, and the processor time of all nodes, each command.
pub(crate) type Measured = (Outcome, Duration);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Nats,
    RabbitMq,
}

/// A system that can be measured here.
#[derive(Debug)]
pub(crate) struct Other {
    kind: Kind,
    program: PathBuf,
    /// It and its version.
    pub(crate) name: String,
}

/// Those that can be started.
pub(crate) fn find(
    wanted: &Wanted,
    programs: &Programs,
    bodies: &BodySizes,
) -> io::Result<Vec<Other>> {
    let asked = [
        (Kind::Nats, Nats::NAME, "--nats", &wanted.nats),
        (
            Kind::RabbitMq,
            RabbitMq::NAME,
            "--rabbitmq",
            &wanted.rabbitmq,
        ),
    ];
    let mut found = Vec::new();
    for (kind, name, option, program) in asked {
        let other = match program {
            None => Err(io::Error::other(format!("there is no {option}"))),
            Some(program) => Other::look(kind, name, program, programs, bodies),
        };
        match other {
            Ok(other) => found.push(other),
            Err(error) => {
                check()?;
                eprintln!("bsd-bench: {name} is not measured: {error}");
            }
        }
    }
    Ok(found)
}

impl Other {
    /// Start it once, to see whether it can be.
    fn look(
        kind: Kind,
        name: &str,
        program: &Path,
        programs: &Programs,
        bodies: &BodySizes,
    ) -> io::Result<Other> {
        let max = talk::BODY_SIZE_MAX;
        if bodies.max() > max {
            let message = format!("bodies may have {max} bytes at most");
            return Err(io::Error::other(message));
        }
        let version = match kind {
            Kind::Nats => Nats::start(program, programs)?.version().to_owned(),
            Kind::RabbitMq => RabbitMq::start(program, programs)?.version().to_owned(),
        };
        Ok(Other {
            kind,
            program: program.to_owned(),
            name: format!("{name} {version}"),
        })
    }

    /// One round: each load once.
    pub(crate) fn round(
        &self,
        programs: &Programs,
        shapes: &[Shape],
        times: Times,
        bodies: &BodySizes,
    ) -> io::Result<Vec<Measured>> {
        let measured = match self.kind {
            Kind::Nats => round::<Nats>(&self.program, programs, shapes, times, bodies),
            Kind::RabbitMq => round::<RabbitMq>(&self.program, programs, shapes, times, bodies),
        };
        measured.map_err(|error| self.named(&error))
    }

    /// From each kill of the node that leads to the next put that is acknowledged.
    pub(crate) fn silences(&self, programs: &Programs, kills: u32) -> io::Result<Vec<Duration>> {
        let silences = match self.kind {
            Kind::Nats => silences::<Nats>(&self.program, programs, kills),
            Kind::RabbitMq => silences::<RabbitMq>(&self.program, programs, kills),
        };
        silences.map_err(|error| self.named(&error))
    }

    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.name))
    }
}

fn round<S: System>(
    program: &Path,
    programs: &Programs,
    shapes: &[Shape],
    times: Times,
    bodies: &BodySizes,
) -> io::Result<Vec<Measured>> {
    let mut system = S::start(program, programs)?;
    let mut measure = |shape: &Shape| {
        eprintln!("{shape} {}", S::NAME);
        let leader = system.make_queue()?;
        let address = system.nodes()[leader].client;
        let mut load = Load::new(address, *shape, bodies, || system.worker(*shape))?;
        load.run(times.warmup)?;
        let before = cpu(&mut system)?;
        let outcome = load.run(times.measured)?;
        let used = cpu(&mut system)?.saturating_sub(before);
        let each = used.div_f64(outcome.commands.max(1) as f64);
        Ok((outcome, each))
    };
    shapes.iter().map(&mut measure).collect()
}

/// Of all nodes so far.
fn cpu<S: System>(system: &mut S) -> io::Result<Duration> {
    let nodes = system.nodes().iter();
    nodes.map(|node| Ok(usage(node.child.id())?.cpu)).sum()
}

/// A client that asks another node right after the one that leads was killed waits for this long.
fn silences<S: System>(
    program: &Path,
    programs: &Programs,
    kills: u32,
) -> io::Result<Vec<Duration>> {
    let mut silences = Vec::new();
    if kills == 0 {
        return Ok(silences);
    }
    let mut system = S::start(program, programs)?;
    for nth in 0..kills {
        eprintln!("{} kill {} of {kills}", S::NAME, nth + 1);
        let leader = system.make_queue()?;
        put::<S>(&mut system, leader)?;
        let other = (leader + 1) % system.nodes().len();
        system.nodes()[leader].child.kill();
        let begin = now();
        while put::<S>(&mut system, other).is_err() {
            check()?;
            if now() > begin + PATIENCE {
                let message = "nobody leads after the one that led was killed";
                return Err(io::Error::other(message));
            }
        }
        silences.push(now() - begin);
        system.nodes()[leader].restart()?;
        system.wait_until_level(leader)?;
    }
    Ok(silences)
}

/// Put a job by way of this node.
fn put<S: System>(system: &mut S, at: usize) -> io::Result<()> {
    let (address, putter) = (system.nodes()[at].client, system.putter());
    Single::open(address, putter, S::ANSWER_MAX)?.put()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        beside: Wanted,
        #[command(flatten)]
        programs: Programs,
    }

    #[test]
    fn what_cannot_be_started_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let missing = format!("{path}/missing");
        for wanted in [
            vec!["test", "--dir", path],
            vec!["test", "--dir", path, "--nats", &missing],
            vec!["test", "--dir", path, "--nats", "/bin/false"],
            vec!["test", "--dir", path, "--rabbitmq", "/bin/false"],
        ] {
            let cli = Cli::parse_from(&wanted);
            let found = find(&cli.beside, &cli.programs, &BodySizes::fixed(100)).unwrap();
            assert!(found.is_empty(), "{wanted:?}");
        }
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
    }
}
