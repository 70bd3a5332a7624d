//! Three nodes of RabbitMQ with quorum queues. They find each other by a program of Erlang, `epmd`, which
//! is started here too: otherwise a node would start one that stays.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::beside::amqp::{Begin, Client};
use crate::beside::talk::Single;
use crate::beside::{Node, System, patiently, write_new};
use crate::options::Shape;
use crate::servers::{DataDir, Ended, Programs, free_addresses};

/// A node that has just started takes its time.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Declared so that the nodes end before their directory goes.
#[derive(Debug)]
pub(super) struct RabbitMq {
    nodes: Vec<Node>,
    _epmd: Ended,
    _dir: DataDir,
    version: String,
    /// Queues made.
    made: usize,
}

impl RabbitMq {
    fn queue(&self) -> String {
        format!("jobs-{}", self.made)
    }

    fn client(&self, begin: Begin) -> Client {
        Client::new(self.queue(), begin)
    }
}

impl System for RabbitMq {
    type Talk = Client;

    const NAME: &'static str = "RabbitMQ";

    /// What is put while nobody leads is confirmed when somebody does.
    const ANSWER_MAX: Duration = ANSWER_MAX;

    fn start(program: &Path, programs: &Programs) -> io::Result<RabbitMq> {
        let dir = programs.directory()?;
        // For clients, for the nodes, and one for `epmd`.
        let addresses: [SocketAddr; 7] = free_addresses()?;
        let names = addresses[6];
        let mut epmd = Command::new("epmd");
        epmd.args(["-port", &names.port().to_string(), "-address", "127.0.0.1"]);
        let mut epmd = programs.pinned(epmd);
        epmd.stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut rabbit = RabbitMq {
            nodes: Vec::new(),
            _epmd: Ended::start(&mut epmd)?,
            _dir: dir,
            version: String::new(),
            made: 0,
        };
        // A node that does not find it there starts another one, or fails.
        patiently(|| TcpStream::connect(names))?;
        let home = rabbit._dir.absolute()?;
        write_new(&home.join("environment"), b"")?;
        for (nth, addresses) in addresses[..6].chunks_exact(2).enumerate() {
            let command = command(program, programs, &home, nth, addresses, names)?;
            rabbit.nodes.push(Node::start(command, addresses[0])?);
            // One after the other: the first one lets them in, and two at once may be too many. That they
            // know the queue that was made by way of the first says that they are in.
            match nth {
                0 => rabbit.version = rabbit.wait(nth, Begin::Make)?.version,
                _ => rabbit.wait_until_level(nth)?,
            }
        }
        Ok(rabbit)
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn nodes(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Its clients make it; the node that they ask leads it.
    fn make_queue(&mut self) -> io::Result<usize> {
        self.made += 1;
        let leader = self.made % self.nodes.len();
        self.wait(leader, Begin::Make)?;
        Ok(leader)
    }

    fn worker(&self, shape: Shape) -> Client {
        let count = u16::try_from(shape.pipeline).unwrap_or(u16::MAX);
        self.client(Begin::Work(count))
    }

    fn putter(&self) -> Client {
        self.client(Begin::Put)
    }

    fn wait_until_level(&mut self, at: usize) -> io::Result<()> {
        self.wait(at, Begin::Look).map(drop)
    }
}

impl RabbitMq {
    /// A client of this node, when there can be one.
    fn wait(&mut self, at: usize, begin: Begin) -> io::Result<Client> {
        let queue = self.queue();
        let client = || Client::new(queue.clone(), begin);
        let single = self.nodes[at].wait_until(|at| Single::open(at, client(), ANSWER_MAX))?;
        Ok(single.talk)
    }
}

/// `addresses`: for clients, for nodes; `names`: where `epmd` listens.
fn command(
    program: &Path,
    programs: &Programs,
    home: &Path,
    nth: usize,
    addresses: &[SocketAddr],
    names: SocketAddr,
) -> io::Result<Command> {
    let name = node_name(nth);
    let file = home.join(format!("{name}.conf"));
    write_new(&file, configuration(nth, addresses[0]).as_bytes())?;
    let mut command = programs.pinned(Command::new(program));
    command
        // Its cookie is there.
        .env("HOME", home)
        .env("ERL_EPMD_PORT", names.port().to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_CRASH_DUMP", home.join("crash"))
        .env("RABBITMQ_NODENAME", name)
        .env("RABBITMQ_DIST_PORT", addresses[1].port().to_string())
        .env("RABBITMQ_CONFIG_FILE", file)
        .env("RABBITMQ_CONF_ENV_FILE", home.join("environment"))
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", home.join("plugins"))
        .env("RABBITMQ_MNESIA_BASE", home.join("data"))
        .env("RABBITMQ_LOG_BASE", home.join("log"))
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}",
        )
        // The script then becomes the node, and is no process beside it.
        .env("RUNNING_UNDER_SYSTEMD", "true")
        .env_remove("NOTIFY_SOCKET")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Ok(command)
}

fn node_name(nth: usize) -> String {
    format!("n{nth}@localhost")
}

fn configuration(nth: usize, client: SocketAddr) -> String {
    let mut text = format!(
        "listeners.tcp.1 = {client}\n\
         cluster_formation.peer_discovery_backend = classic_config\n"
    );
    for known in [0, nth].into_iter().take(nth + 1) {
        let name = node_name(known);
        let line = format!("cluster_formation.classic_config.nodes.{known} = {name}\n");
        text.push_str(&line);
    }
    text
}
