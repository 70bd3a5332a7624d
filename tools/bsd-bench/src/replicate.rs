//! `bsd-bench replicate`: a node of a cluster that replicates entries and does nothing with them. Three
//! of them are the limit of what three servers can do: the ledger, raft and the wire of bsd, without
//! commands, a queue, a log of its own or clients.
//!
//! The leader proposes entries of one size, as many at once as it is told, and prints one line of JSON
//! when it has measured. They end with the first of them, or by themselves after a time.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bsd::storage::RealFs;
use bsd::storage::disk::Fs;
use bsd::types::Time;
use bsd_cluster::ledger::{Base, Identity, Ledger};
use bsd_cluster::member::{ClusterId, Member, Members, NodeId, Votes};
use bsd_cluster::node::{Mark, Node, Out, Role, Settings};
use bsd_cluster::wire::{Decoder, Encoder, Frame, Message, Side};
use bytes::Bytes;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::{Value, json};

use crate::latency::Latency;
use crate::load::{parse_seconds, quantiles_to_json};
use crate::process::{check, now};

/// All nodes are of one process tree, so that their frames need no secret.
const NONCE: u64 = 1;
const READ_SIZE: usize = 256 << 10;
/// How long the others may take to be there.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longer than any election and any warm-up.
const LIFE: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which of the addresses is this node's, from 1 on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    node: u16,
    /// Where the nodes listen
    #[arg(
        long,
        value_name = "ADDR:PORT,…",
        value_delimiter = ',',
        required = true
    )]
    addresses: Vec<SocketAddr>,
    /// An empty directory for the ledger
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Bytes of an entry
    #[arg(long, value_name = "BYTES", default_value_t = 7_000, value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    size: u32,
    /// Entries that are proposed and not committed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: u32,
    /// How long to measure
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "2")]
    seconds: Duration,
    /// How long entries are proposed before measuring
    #[arg(long, value_name = "S", value_parser = parse_seconds, default_value = "0.3")]
    warmup: Duration,
}

/// The connection to one of the others: who has the greater number has dialed.
struct Peer {
    id: NodeId,
    stream: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
    /// Bytes that the socket has not taken yet.
    unsent: Vec<u8>,
}

impl Peer {
    fn new(me: NodeId, id: NodeId, stream: TcpStream) -> Peer {
        let (mine, theirs) = match me > id {
            true => (Side::Dialer, Side::Listener),
            false => (Side::Listener, Side::Dialer),
        };
        Peer {
            id,
            stream,
            encoder: Encoder::new(NONCE, mine),
            decoder: Decoder::new(NONCE, theirs, id, me),
            unsent: Vec::new(),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// All that has come.
    fn receive(&mut self, buffer: &mut [u8], node: &mut Node) -> io::Result<()> {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(size) => self.decoder.feed(&buffer[..size]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            while let Some(frame) = self.decoder.next().map_err(io::Error::other)? {
                if let Frame::Raft(message) = frame {
                    node.step(*message);
                }
            }
        }
    }
}

/// Figures of the leader.
struct Measure {
    begin: Instant,
    end: Instant,
    /// When those were proposed that are not committed, the oldest first.
    open: VecDeque<Instant>,
    latency: Latency,
    is_told: bool,
}

struct Site {
    node: Node,
    peers: Vec<Peer>,
    begun: Instant,
    entry: Bytes,
    in_flight: usize,
    times: (Duration, Duration),
    /// Since this node leads.
    measure: Option<Measure>,
}

/// Replicate until one of the others ends.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    match replicate(args) {
        Err(error) if is_end(error.kind()) => Ok(()),
        other => other,
    }
}

fn is_end(kind: ErrorKind) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, UnexpectedEof | ConnectionReset | BrokenPipe)
}

fn replicate(args: &Args) -> io::Result<()> {
    if usize::from(args.node) > args.addresses.len() {
        return Err(io::Error::other(format!(
            "there is no address for node {}: --addresses has {}",
            args.node,
            args.addresses.len()
        )));
    }
    let me = NodeId(args.node.into());
    let mut poll = Poll::new()?;
    let mut site = Site {
        node: open(me, &args.addresses, &args.dir)?,
        peers: connect(me, &args.addresses)?,
        begun: now(),
        entry: Bytes::from(vec![b'x'; args.size as usize]),
        in_flight: args.in_flight as usize,
        times: (args.warmup, args.seconds),
        measure: None,
    };
    for (at, peer) in site.peers.iter_mut().enumerate() {
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry()
            .register(&mut peer.stream, Token(at), interest)?;
    }
    let end = now() + args.warmup + args.seconds + LIFE;
    let (mut events, mut buffer) = (Events::with_capacity(16), vec![0; READ_SIZE]);
    while now() < end {
        check()?;
        let wait = until(site.node.next_deadline(), site.now());
        match poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        let now = site.now();
        site.node.tick(now);
        for peer in &mut site.peers {
            peer.receive(&mut buffer, &mut site.node)?;
        }
        site.propose();
        while site.node.has_work() {
            let messages = site.node.outbox();
            site.send(messages)?;
            let out = site.node.persist().map_err(io::Error::other)?;
            site.take(out)?;
            site.propose();
        }
        for peer in &mut site.peers {
            peer.flush()?;
        }
    }
    Ok(())
}

impl Site {
    /// Time since this node began.
    fn now(&self) -> Time {
        Time(self.begun.elapsed().as_nanos() as i64)
    }

    /// Propose as many entries as may be on their way.
    fn propose(&mut self) {
        let Some(measure) = &mut self.measure else {
            return;
        };
        while measure.open.len() < self.in_flight && self.node.propose(self.entry.clone()).is_ok() {
            measure.open.push_back(now());
        }
    }

    fn send(&mut self, messages: Vec<Message>) -> io::Result<()> {
        for message in messages {
            let to = NodeId(message.to);
            let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == to) else {
                continue;
            };
            let frame = Frame::Raft(Box::new(message));
            let encoded = peer.encoder.encode(&frame, &mut peer.unsent);
            encoded.map_err(io::Error::other)?;
        }
        self.peers.iter_mut().try_for_each(Peer::flush)
    }

    fn take(&mut self, out: Out) -> io::Result<()> {
        self.send(out.messages)?;
        for committed in &out.committed {
            self.node.applied(committed.mark.index);
            // Entries without data are those that raft makes for itself.
            if !committed.data.is_empty() {
                self.count();
            }
        }
        if let Some(last) = out.committed.last() {
            let kept = self.node.durable_applied(last.mark.index);
            kept.map_err(io::Error::other)?;
        }
        match out.role {
            Some(Role::Leads(_)) => self.measure = Some(Measure::new(self.times)),
            Some(_) => self.measure = None,
            None => {}
        }
        Ok(())
    }

    /// An entry is committed.
    fn count(&mut self) {
        let Some(measure) = &mut self.measure else {
            return;
        };
        let (Some(proposed), at) = (measure.open.pop_front(), now()) else {
            return;
        };
        if (measure.begin..measure.end).contains(&at) {
            let took = (at - proposed).as_nanos() as u64;
            measure.latency.record(took, 1);
        } else if at >= measure.end && !std::mem::replace(&mut measure.is_told, true) {
            println!("{}", measure.to_json());
        }
    }
}

impl Measure {
    fn new((warmup, time): (Duration, Duration)) -> Measure {
        let begin = now() + warmup;
        Measure {
            begin,
            end: begin + time,
            open: VecDeque::new(),
            latency: Latency::new(),
            is_told: false,
        }
    }

    fn to_json(&self) -> Value {
        let seconds = (self.end - self.begin).as_secs_f64();
        json!({
            "entries_per_second": self.latency.count() as f64 / seconds,
            "latency_us": quantiles_to_json(&self.latency),
        })
    }
}

fn until(at: Time, now: Time) -> Duration {
    Duration::from_nanos(u64::try_from(at.0 - now.0).unwrap_or(0))
}

/// A new node, one of as many voters as there are addresses.
fn open(me: NodeId, addresses: &[SocketAddr], dir: &Path) -> io::Result<Node> {
    let mut members = Members::default();
    for (at, address) in addresses.iter().enumerate() {
        members.put(Member {
            id: NodeId(at as u64 + 1),
            peer: address.to_string(),
            client: String::new(),
            votes: Votes::VOTER,
        });
    }
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let identity = Identity {
        cluster: ClusterId([1; 16]),
        node: me,
    };
    let base = Base {
        index: 0,
        term: 0,
        members,
    };
    fs.create_dir_all(dir)?;
    let ledger = Ledger::create(&fs, dir, identity, base).map_err(io::Error::other)?;
    let settings = Settings::default();
    Node::open(ledger, Mark::default(), None, me.0, Time(0), settings).map_err(io::Error::other)
}

/// A connection to each of the others, in order.
fn connect(me: NodeId, addresses: &[SocketAddr]) -> io::Result<Vec<Peer>> {
    let at = me.0 as usize - 1;
    let listener = std::net::TcpListener::bind(addresses[at])?;
    let mut peers = Vec::new();
    for (nth, address) in addresses.iter().enumerate().take(at) {
        let mut stream = patiently(&format!("reach {address}"), || {
            std::net::TcpStream::connect(address)
        })?;
        stream.write_all(&me.0.to_le_bytes())?;
        peers.push((NodeId(nth as u64 + 1), stream));
    }
    listener.set_nonblocking(true)?;
    while peers.len() + 1 < addresses.len() {
        let (mut stream, _) = patiently("be reached by the others", || listener.accept())?;
        stream.set_nonblocking(false)?;
        let mut id = [0; 8];
        stream.read_exact(&mut id)?;
        peers.push((NodeId(u64::from_le_bytes(id)), stream));
    }
    peers.sort_by_key(|(id, _)| *id);
    let ready = |(id, stream): (NodeId, std::net::TcpStream)| {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Peer::new(me, id, TcpStream::from_std(stream)))
    };
    peers.into_iter().map(ready).collect()
}

/// The others may not be there yet.
fn patiently<T>(what: &str, call: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let deadline = now() + PATIENCE;
    loop {
        check()?;
        match call() {
            Err(error) if now() > deadline => {
                let patience = PATIENCE.as_secs();
                let message = format!("cannot {what} within {patience} seconds: {error}");
                return Err(io::Error::other(message));
            }
            Err(_) => std::thread::sleep(LOOK_EVERY),
            done => return done,
        }
    }
}
