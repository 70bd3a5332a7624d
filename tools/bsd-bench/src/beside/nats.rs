//! Three nodes of NATS JetStream: a stream of three replicas that a job leaves when it is acknowledged
//! (`workqueue`), and one consumer of it that all clients pull from. The protocol is text:
//!
//! ```text
//! PUB subject reply size\r\nbody\r\n          SUB subject id\r\n
//! MSG subject id [reply] size\r\nbody\r\n       HMSG subject id [reply] size-of-headers size\r\n…\r\n
//! ```

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::beside::talk::{Done, Single, Talk};
use crate::beside::{Node, System, patiently, write_new};
use crate::options::Shape;
use crate::script::Op;
use crate::servers::{DataDir, Programs, free_addresses};
use crate::wire::{parse_number, push_number};

const CONSUMER: &str = "workers";
/// A question to a cluster that is about to agree on who leads gets no answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The client must be done with a job in this time: longer than any run.
const ACK_WAIT_NS: u64 = 3_600_000_000_000;

/// What a subscription is for is its number.
const PUTS: u64 = 1;
const JOBS: u64 = 2;
const DELETES: u64 = 3;
const ANSWERS: u64 = 4;

/// Declared so that the nodes end before their directory goes.
#[derive(Debug)]
pub(super) struct Nats {
    nodes: Vec<Node>,
    _dir: DataDir,
    version: String,
    /// Streams made.
    made: usize,
}

impl Nats {
    fn stream(&self) -> String {
        format!("jobs-{}", self.made)
    }

    /// What the cluster says to a request, to whichever node answers.
    fn ask(&self, subject: &str, request: &Value) -> io::Result<Value> {
        let mut failure = io::Error::other("there is no node");
        for node in &self.nodes {
            match ask(node.client, subject, request) {
                Err(error) => failure = error,
                answer => return answer,
            }
        }
        Err(failure)
    }

    /// The node that leads the stream, if all have all of it.
    fn leader(&self) -> io::Result<usize> {
        let stream = self.stream();
        let told = self.ask(&format!("$JS.API.STREAM.INFO.{stream}"), &json!({}))?;
        let replicas = told["cluster"]["replicas"].as_array();
        let are_current = replicas.is_some_and(|replicas| {
            let is_current = |it: &Value| it["current"] == true && it["offline"] != true;
            replicas.len() == 2 && replicas.iter().all(is_current)
        });
        match self.position(&told["cluster"]["leader"]) {
            Some(leader) if are_current => Ok(leader),
            _ => Err(io::Error::other(format!("{stream} is not level: {told}"))),
        }
    }

    fn position(&self, name: &Value) -> Option<usize> {
        (0..self.nodes.len()).find(|nth| *name == *node_name(*nth))
    }

    /// Let the node lead the consumer that leads the stream.
    fn lead_consumer(&self, leader: usize) -> io::Result<()> {
        let on = format!("{}.{CONSUMER}", self.stream());
        let told = self.ask(&format!("$JS.API.CONSUMER.INFO.{on}"), &json!({}))?;
        if self.position(&told["cluster"]["leader"]) == Some(leader) {
            return Ok(());
        }
        let wish = json!({"placement": {"preferred": node_name(leader)}});
        self.ask(&format!("$JS.API.CONSUMER.LEADER.STEPDOWN.{on}"), &wish)?;
        Err(io::Error::other("another node leads the consumer"))
    }
}

impl System for Nats {
    type Talk = Client;

    const NAME: &'static str = "NATS";

    /// What is put while nobody leads may be lost without a word.
    const ANSWER_MAX: Duration = Duration::from_millis(200);

    fn start(program: &Path, programs: &Programs) -> io::Result<Nats> {
        let dir = programs.directory()?;
        let addresses: [SocketAddr; 6] = free_addresses()?;
        let (clients, routes) = addresses.split_at(3);
        let mut nats = Nats {
            nodes: Vec::new(),
            _dir: dir,
            version: String::new(),
            made: 0,
        };
        let list = routes.iter().map(|route| format!("nats://{route}"));
        let list = list.collect::<Vec<_>>().join(", ");
        for nth in 0..3 {
            let home = nats._dir.absolute()?.join(node_name(nth));
            let text = configuration(nth, clients[nth], routes[nth], &list, &home);
            let file = home.with_extension("conf");
            write_new(&file, text.as_bytes())?;
            let mut command = Command::new(program);
            command.arg("--config").arg(file);
            let mut command = programs.pinned(command);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            nats.nodes.push(Node::start(command, clients[nth])?);
        }
        for node in &mut nats.nodes {
            nats.version = greet(node)?.version;
        }
        Ok(nats)
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn nodes(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    fn make_queue(&mut self) -> io::Result<usize> {
        self.made += 1;
        let stream = self.stream();
        let made = json!({
            "name": stream,
            "subjects": [stream],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": 3,
        });
        let consumer = json!({
            "stream_name": stream,
            "config": {
                "durable_name": CONSUMER,
                "ack_policy": "explicit",
                "ack_wait": ACK_WAIT_NS,
                "max_ack_pending": -1,
                "max_waiting": 1 << 16,
                "num_replicas": 3,
            },
        });
        // Until the three know each other there is no room for three replicas.
        patiently(|| self.ask(&format!("$JS.API.STREAM.CREATE.{stream}"), &made))?;
        let create = format!("$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{CONSUMER}");
        patiently(|| self.ask(&create, &consumer))?;
        let leader = patiently(|| self.leader())?;
        patiently(|| self.lead_consumer(leader))?;
        Ok(leader)
    }

    fn worker(&self, _: Shape) -> Client {
        Client::new(self.stream())
    }

    fn putter(&self) -> Client {
        Client::new(self.stream())
    }

    fn wait_until_level(&mut self, at: usize) -> io::Result<()> {
        greet(&mut self.nodes[at])?;
        patiently(|| self.leader())?;
        Ok(())
    }
}

/// A client of this node, when there can be one.
fn greet(node: &mut Node) -> io::Result<Client> {
    let client = || Client::new(String::new());
    let single = node.wait_until(|at| Single::open(at, client(), ANSWER_MAX))?;
    Ok(single.talk)
}

fn node_name(nth: usize) -> String {
    format!("n{nth}")
}

fn configuration(
    nth: usize,
    client: SocketAddr,
    route: SocketAddr,
    routes: &str,
    home: &Path,
) -> String {
    let (name, home) = (node_name(nth), home.display());
    format!(
        "server_name: {name}\n\
         listen: \"{client}\"\n\
         jetstream {{ store_dir: \"{home}\", sync_interval: always }}\n\
         cluster {{ name: bsd-bench, listen: \"{route}\", routes: [{routes}] }}\n"
    )
}

/// A request to the cluster by way of one node.
fn ask(address: SocketAddr, subject: &str, request: &Value) -> io::Result<Value> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let (request, number) = (request.to_string(), next_number());
    let mut out = Vec::new();
    push_connect(number, &mut out);
    let inbox = inbox(number, ANSWERS);
    push_pub(subject, &inbox, request.as_bytes(), &mut out);
    stream.write_all(&out)?;
    let (mut input, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        while let Some((said, size)) = parse(&input)? {
            if let Said::Message { sid, body, .. } = said
                && sid == ANSWERS
            {
                let answer: Value = serde_json::from_slice(body)?;
                return match answer.get("error") {
                    None => Ok(answer),
                    Some(error) => Err(io::Error::other(format!("{subject}: {error}"))),
                };
            }
            input.drain(..size);
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            size => input.extend_from_slice(&buffer[..size]),
        }
    }
}

#[derive(Debug)]
pub(super) struct Client {
    number: u64,
    stream: String,
    is_ready: bool,
    /// The server's.
    version: String,
    /// Where each job that it has is acknowledged.
    jobs: VecDeque<Vec<u8>>,
    done: Done,
}

impl Client {
    fn new(stream: String) -> Client {
        Client {
            number: next_number(),
            stream,
            is_ready: false,
            version: String::new(),
            jobs: VecDeque::new(),
            done: Done::default(),
        }
    }

    fn take_message(&mut self, sid: u64, reply: Option<&[u8]>, body: &[u8]) -> io::Result<()> {
        match (sid, reply) {
            (PUTS, _) if memchr::memmem::find(body, b"\"error\"").is_some() => {
                return Err(io::Error::other(String::from_utf8_lossy(body)));
            }
            (PUTS, _) => self.done.add(Op::Put, 1),
            (JOBS, Some(reply)) => {
                self.jobs.push_back(reply.to_vec());
                self.done.add(Op::Reserve, 1);
            }
            (DELETES, _) => self.done.add(Op::Delete, 1),
            _ => return Err(io::Error::other("a message that nobody asked for")),
        }
        Ok(())
    }
}

impl Talk for Client {
    const ANSWERED: &'static [Op] = &[Op::Put, Op::Reserve, Op::Delete];

    fn begin(&mut self, out: &mut Vec<u8>) {
        push_connect(self.number, out);
    }

    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let mut used = 0;
        while let Some((said, size)) = parse(&bytes[used..])? {
            match said {
                Said::Info(info) => {
                    let info: Value = serde_json::from_slice(info)?;
                    self.version = info["version"].as_str().unwrap_or("?").to_owned();
                }
                Said::Ping => out.extend_from_slice(b"PONG\r\n"),
                Said::Pong => self.is_ready = true,
                Said::Message { sid, reply, body } => self.take_message(sid, reply, body)?,
            }
            used += size;
        }
        Ok(used)
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }

    fn put(&mut self, body: &[u8], out: &mut Vec<u8>) {
        push_pub(&self.stream, &inbox(self.number, PUTS), body, out);
    }

    /// One request for all of them.
    fn reserve(&mut self, count: usize, out: &mut Vec<u8>) {
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{CONSUMER}", self.stream);
        let request = json!({"batch": count}).to_string();
        let inbox = inbox(self.number, JOBS);
        push_pub(&subject, &inbox, request.as_bytes(), out);
    }

    /// An acknowledgement that is answered when it is kept.
    fn delete(&mut self, out: &mut Vec<u8>) {
        let inbox = inbox(self.number, DELETES);
        for job in self.jobs.drain(..) {
            push_pub(&String::from_utf8_lossy(&job), &inbox, b"+ACK", out);
        }
    }

    fn done(&mut self, op: Op) -> usize {
        self.done.tell(op)
    }
}

/// A client's own: an answer to a question of another one, which has given up, is none to this one's.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Where a client is answered, by what the answer is about.
fn inbox(number: u64, sid: u64) -> String {
    format!("_INBOX.{number}.{sid}")
}

fn push_connect(number: u64, out: &mut Vec<u8>) {
    let wishes = json!({
        "verbose": false,
        "pedantic": false,
        "headers": true,
        "no_responders": true,
        "protocol": 1,
        "lang": "rust",
        "version": env!("CARGO_PKG_VERSION"),
    });
    out.extend_from_slice(format!("CONNECT {wishes}\r\n").as_bytes());
    for sid in [PUTS, JOBS, DELETES, ANSWERS] {
        let inbox = inbox(number, sid);
        out.extend_from_slice(format!("SUB {inbox} {sid}\r\n").as_bytes());
    }
    out.extend_from_slice(b"PING\r\n");
}

fn push_pub(subject: &str, reply: &str, body: &[u8], out: &mut Vec<u8>) {
    for part in ["PUB ", subject, " ", reply, " "] {
        out.extend_from_slice(part.as_bytes());
    }
    push_number(body.len() as u64, out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(body);
    out.extend_from_slice(b"\r\n");
}

/// What a server says.
#[derive(Debug, PartialEq, Eq)]
enum Said<'a> {
    Info(&'a [u8]),
    Ping,
    Pong,
    Message {
        sid: u64,
        reply: Option<&'a [u8]>,
        body: &'a [u8],
    },
}

/// The first thing that is said, if all of it is here, and its size.
fn parse(bytes: &[u8]) -> io::Result<Option<(Said<'_>, usize)>> {
    let Some(end) = memchr::memchr(b'\n', bytes) else {
        return Ok(None);
    };
    let line = bytes[..end].trim_ascii_end();
    let (word, rest) = match memchr::memchr(b' ', line) {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, &line[..0]),
    };
    let said = match word {
        b"INFO" => Said::Info(rest),
        b"PING" => Said::Ping,
        b"PONG" => Said::Pong,
        b"MSG" | b"HMSG" => return parse_message(word, rest, bytes, end + 1),
        _ => return Err(io::Error::other(String::from_utf8_lossy(line))),
    };
    Ok(Some((said, end + 1)))
}

/// `rest`: what stands in its first line behind the word; `head`: the size of this line.
fn parse_message<'a>(
    word: &[u8],
    rest: &'a [u8],
    bytes: &'a [u8],
    head: usize,
) -> io::Result<Option<(Said<'a>, usize)>> {
    let mut fields = rest.split(|byte| *byte == b' ');
    let (_, sid) = (fields.next(), fields.next().unwrap_or_default());
    let mut others: Vec<&[u8]> = fields.collect();
    let size = parse_number(others.pop().unwrap_or_default()).0 as usize;
    let Some(body) = bytes.get(head..head + size) else {
        return Ok(None);
    };
    if bytes.len() < head + size + 2 {
        return Ok(None);
    }
    if word == b"HMSG" {
        // Jobs have no headers; what has some says what is wrong: `NATS/1.0 503`.
        let text = body.split(|byte| *byte == b'\r').next();
        let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        return Err(io::Error::other(text));
    }
    let said = Said::Message {
        sid: parse_number(sid).0,
        reply: others.pop(),
        body,
    };
    Ok(Some((said, head + size + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_the_same_wherever_the_stream_is_cut() {
        let stream = b"INFO {\"version\":\"2.15.1\"}\r\nPING\r\nPONG\r\n\
            MSG _INBOX.3.1 1 22\r\n{\"stream\":\"j\",\"seq\":1}\r\n\
            MSG j 2 $JS.ACK.j.workers.1 6\r\nab\r\ncd\r\nMSG _INBOX.3.3 3 0\r\n\r\n";
        for cut in 0..=stream.len() {
            let mut client = Client::new("j".into());
            let mut out = Vec::new();
            let used = client.take(&stream[..cut], &mut out).unwrap();
            let rest = &stream[used..];
            assert_eq!(client.take(rest, &mut out).unwrap(), rest.len());
            assert!(client.is_ready && client.version == "2.15.1");
            assert_eq!(out, b"PONG\r\n", "cut at {cut}");
            assert_eq!(client.jobs, [b"$JS.ACK.j.workers.1"]);
            let done = [Op::Put, Op::Reserve, Op::Delete].map(|op| client.done(op));
            assert_eq!(done, [1, 1, 1], "cut at {cut}");
        }
    }

    #[test]
    fn what_went_wrong_is_an_error() {
        for wrong in [
            &b"-ERR 'Authorization Violation'\r\n"[..],
            b"MSG _INBOX.3.1 1 37\r\n{\"error\":{\"code\":503},\"stream\":\"j\"}  \r\n",
            b"HMSG _INBOX.3.1 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
            b"MSG j 2 2\r\nab\r\n",
        ] {
            let result = Client::new("j".into()).take(wrong, &mut Vec::new());
            assert!(result.is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn a_job_is_deleted_where_the_server_said() {
        let mut client = Client::new("j".into());
        client.jobs.push_back(b"$JS.ACK.j.workers.1".to_vec());
        let mut out = Vec::new();
        client.delete(&mut out);
        let expected = format!(
            "PUB $JS.ACK.j.workers.1 _INBOX.{}.3 4\r\n+ACK\r\n",
            client.number
        );
        assert_eq!(out, expected.as_bytes());
    }
}
