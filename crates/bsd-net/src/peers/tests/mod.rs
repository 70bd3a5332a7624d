//! Nodes in one process, over loopback. Sockets are real, time is the test's.
//!
//! | file | question |
//! |---|---|
//! | `meeting` | who calls whom, at which address, and what is said? |
//! | `strangers` | what may one who is none of ours, or does not behave, cost? |
//! | `blocking` | who is asked to be added, or for a snapshot, outside of the messages? |
//! | `tls` | who is believed, and what is seen on the way? |

mod blocking;
mod meeting;
mod strangers;
mod tls;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};

use bytes::Bytes;
use mio::{Events, Poll};
use raft::eraftpb::{Entry, MessageType};

use super::*;
use bsd::clock::Clock;
use bsd_cluster::member::{ClusterId, Member, Votes};
use bsd_cluster::wire::{
    Answer, Decoder, Encoder, Frame, Join, JoinAnswer, Purpose, Refused, Side, VERSIONS, Versions,
    Welcome, Why,
};

const FIRST: Token = Token(1 << 40);
const MS: i64 = SECOND_NS / 1000;
/// A test that waits for longer than this fails.
const PATIENCE_NS: i64 = 30 * SECOND_NS;

fn me(id: u64, peer: String) -> Me {
    Me {
        cluster: ClusterId([5; 16]),
        node: NodeId(id),
        peer,
        client: format!("client-{id}:11300"),
        http: format!("http://client-{id}:11380"),
        archives: id == 1,
        versions: VERSIONS,
    }
}

/// A node of which the test is the loop.
struct Site {
    peers: Peers,
    poll: Poll,
    now: Time,
    received: Vec<Received>,
}

impl Site {
    fn new(id: u64) -> Site {
        Site::with(id, None)
    }

    fn with(id: u64, tls: Option<PeerTls>) -> Site {
        let poll = Poll::new().unwrap();
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        let waker = mio::Waker::new(poll.registry(), Token(0)).unwrap();
        let peers = Peers::new(
            me(id, address.to_string()),
            listener,
            tls,
            (registry, FIRST),
            Arc::new(move || drop(waker.wake())),
            id,
        );
        Site {
            peers: peers.unwrap(),
            poll,
            now: Time(0),
            received: Vec::new(),
        }
    }

    fn id(&self) -> NodeId {
        self.peers.me.node
    }

    fn address(&self) -> String {
        self.peers.me.peer.clone()
    }

    /// A turn of the loop, which waits for events if there is nothing to do.
    fn turn(&mut self) {
        let mut events = Events::with_capacity(64);
        let due = self
            .peers
            .next_deadline(self.now)
            .is_some_and(|at| at <= self.now);
        let wait = Duration::from_millis(if due { 0 } else { 2 });
        self.poll.poll(&mut events, Some(wait)).unwrap();
        for event in &events {
            let is_own = event.token() == Token(0);
            assert!(self.peers.on_event(event.token()) || is_own);
        }
        self.peers.turn(self.now);
        while let Some(received) = self.peers.take() {
            self.received.push(received);
        }
        self.peers.flush(self.now);
    }

    fn pass(&mut self, ns: i64) {
        self.now = Time(self.now.0 + ns);
    }

    /// Take turns until that is so.
    fn until(&mut self, mut is_so: impl FnMut(&mut Site) -> bool) {
        let clock = Clock::start();
        while !is_so(self) {
            assert!(
                clock.now().mono.0 < PATIENCE_NS,
                "it does not come: {:?}",
                self.peers.states()
            );
            self.turn();
        }
    }

    fn messages(&self) -> Vec<u64> {
        let index = |received: &Received| match received {
            Received::Message { message, .. } => Some(message.index),
            _ => None,
        };
        self.received.iter().filter_map(index).collect()
    }

    fn count(&self, is_it: impl Fn(&Received) -> bool) -> usize {
        self.received.iter().filter(|it| is_it(it)).count()
    }

    fn failures(&self) -> usize {
        self.count(|it| matches!(it, Received::Unreachable(_)))
    }

    fn message(&self, to: NodeId, index: u64, size: usize) -> Message {
        heartbeat(self.id().0, to.0, index, size)
    }

    fn send(&mut self, to: NodeId, index: u64, size: usize) {
        let message = self.message(to, index, size);
        self.peers.send(to, message);
    }

    fn state(&self, of: u64) -> PeerState {
        let states = self.peers.states();
        states
            .into_iter()
            .find(|state| state.node == NodeId(of))
            .unwrap()
    }
}

fn heartbeat(from: u64, to: u64, index: u64, size: usize) -> Message {
    Message {
        msg_type: MessageType::MsgHeartbeat,
        from,
        to,
        term: 1,
        index,
        context: vec![7; size].into(),
        ..Message::default()
    }
}

fn members(list: &[(u64, String)]) -> Members {
    let mut members = Members::default();
    for (id, peer) in list {
        members.put(Member {
            id: NodeId(*id),
            peer: peer.clone(),
            client: format!("client-{id}:11300"),
            votes: Votes::default(),
        });
    }
    members
}

/// Two nodes that know each other and are connected both ways.
fn pair() -> (Site, Site) {
    meet(Site::new(1), Site::new(2))
}

fn meet(mut one: Site, mut two: Site) -> (Site, Site) {
    let members = members(&[(one.id().0, one.address()), (two.id().0, two.address())]);
    one.peers.set_members(1, &members, one.now);
    two.peers.set_members(1, &members, two.now);
    let stands = |site: &Site| {
        let states = site.peers.states();
        states.len() == 1 && states[0].is_connected && states[0].is_heard
    };
    both(&mut one, &mut two, |one, two| stands(one) && stands(two));
    (one, two)
}

fn both(one: &mut Site, two: &mut Site, mut is_so: impl FnMut(&mut Site, &mut Site) -> bool) {
    one.until(|one| {
        two.turn();
        is_so(one, two)
    });
}

/// A peer that does what the test wants.
struct Raw {
    socket: StdStream,
    encoder: Encoder,
}

fn hello(to: &Site, from: u64) -> Hello {
    Hello {
        from: NodeId(from),
        peer: "127.0.0.1:1".into(),
        client: String::new(),
        ..Hello::of(&to.peers.me, to.id(), Purpose::Messages)
    }
}

fn bytes_of(hello: &Hello) -> Vec<u8> {
    let mut bytes = Vec::new();
    hello.encode(&mut bytes).unwrap();
    bytes
}

fn call(site: &Site) -> StdStream {
    let socket = StdStream::connect(site.peers.local_addr().unwrap()).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// The site's answer to that.
fn answer(site: &mut Site, socket: &mut StdStream, said: &[u8]) -> Answer {
    socket.write_all(said).unwrap();
    let mut heard = Vec::new();
    site.until(|_| {
        let mut piece = [0; 1000];
        heard.extend_from_slice(match socket.read(&mut piece) {
            Ok(count) => &piece[..count],
            Err(_) => &[],
        });
        matches!(Answer::decode(&heard), Ok(Some(_)))
    });
    let (answer, size) = Answer::decode(&heard).unwrap().unwrap();
    assert_eq!(size, heard.len());
    answer
}

/// Whether the site has closed it.
fn is_closed(socket: &mut StdStream) -> bool {
    match socket.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

impl Raw {
    fn new(site: &mut Site, from: u64) -> Raw {
        let mut socket = call(site);
        let hello = bytes_of(&hello(site, from));
        let Answer::Welcome(welcome) = answer(site, &mut socket, &hello) else {
            panic!("it is refused");
        };
        let encoder = Encoder::new(welcome.nonce, Side::Dialer);
        site.until(|site| {
            site.peers
                .callers
                .iter()
                .any(|it| it.from() == Some(NodeId(from)))
        });
        Raw { socket, encoder }
    }

    fn frame(&mut self, message: Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.encoder
            .encode(&Frame::Raft(Box::new(message)), &mut bytes)
            .unwrap();
        bytes
    }
}

/// The connection that was handed over, once it is.
fn called(site: &mut Site) -> (Hello, BlockingLink) {
    site.until(|site| site.count(|it| matches!(it, Received::Called(..))) == 1);
    match site.received.pop() {
        Some(Received::Called(hello, link)) => (*hello, *link),
        other => panic!("{other:?}"),
    }
}

const STEP_MAX: Duration = Duration::from_secs(20);

fn dial(
    from: &Me,
    to: &Site,
    purpose: Purpose,
    tls: Option<PeerTls>,
) -> std::thread::JoinHandle<io::Result<(BlockingLink, Welcome)>> {
    let (from, address) = (from.clone(), to.address());
    let id = if purpose == Purpose::Join {
        NodeId(0)
    } else {
        to.id()
    };
    std::thread::spawn(move || {
        BlockingLink::dial(&from, id, &address, purpose, tls.as_ref(), STEP_MAX)
    })
}
