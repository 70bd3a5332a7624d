//! Nodes in one process, over loopback. Sockets are real, time is the test's.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener as StdListener, TcpStream as StdStream};

use bytes::Bytes;
use mio::{Events, Poll};
use raft::eraftpb::{Entry, MessageType};

use super::*;
use crate::clock::Clock;
use crate::cluster::member::{ClusterId, Member, Votes};
use crate::cluster::wire::{
    Answer, Encoder, Frame, Join, JoinAnswer, Purpose, Side, VERSIONS, Versions, Welcome, Why,
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
    one.peers.set_members(&members, one.now);
    two.peers.set_members(&members, two.now);
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

/// What the site answers to that.
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

#[test]
fn messages_pass_both_ways_in_order_and_addresses_with_the_greetings() {
    let (mut one, mut two) = pair();
    for index in 1..=500 {
        one.send(NodeId(2), index, index as usize);
        two.send(NodeId(1), 1000 + index, 1);
    }
    both(&mut one, &mut two, |one, two| {
        one.messages().len() == 500 && two.messages().len() == 500
    });
    assert_eq!(two.messages(), (1..=500).collect::<Vec<_>>());
    assert_eq!(one.messages(), (1001..=1500).collect::<Vec<_>>());
    assert_eq!(one.peers.client_address(NodeId(2)), Some("client-2:11300"));
    assert_eq!(
        one.peers.peer_address(NodeId(2)),
        Some(two.address().as_str())
    );
    assert_eq!(
        (one.state(2).sent, one.state(2).dropped, one.state(2).queued),
        (500, 0, 0)
    );
    assert_eq!(
        one.count(|it| matches!(it, Received::Connected(NodeId(2)))),
        1
    );
    assert_eq!((one.failures(), one.peers.refused()), (0, 0));
}

#[test]
fn a_large_message_arrives_whole() {
    let (mut one, mut two) = pair();
    let mut message = one.message(NodeId(2), 1, 0);
    message.msg_type = MessageType::MsgAppend;
    let entry = Entry {
        index: 2,
        term: 1,
        data: vec![9; 16 << 20].into(),
        ..Entry::default()
    };
    message.entries = vec![entry].into();
    one.peers.send(NodeId(2), message.clone());
    both(&mut one, &mut two, |_, two| !two.messages().is_empty());
    let is_it =
        |it: &Received| matches!(it, Received::Message { message: it, .. } if *it == message);
    assert_eq!(two.count(is_it), 1);
}

#[test]
fn a_node_that_falls_is_called_again_and_nothing_old_is_sent() {
    let (mut one, two) = pair();
    let (address, known) = (two.address(), members(&[(2, two.address())]));
    drop(two);
    one.until(|one| one.failures() > 0);
    one.send(NodeId(2), 1, 10);
    assert_eq!(one.state(2).dropped, 1, "there is no connection");
    let mut two = Site::new(2);
    two.peers.me.peer.clone_from(&address);
    let listener = StdListener::bind(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    two.peers.listener = TcpListener::from_std(listener);
    two.poll
        .registry()
        .register(&mut two.peers.listener, FIRST, Interest::READABLE)
        .unwrap();
    two.peers.may_accept = true;
    one.peers.set_members(&known, one.now);
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.state(2).is_connected
    });
    one.send(NodeId(2), 2, 10);
    both(&mut one, &mut two, |_, two| !two.messages().is_empty());
    assert_eq!(two.messages(), [2]);
}

#[test]
fn who_cannot_be_reached_is_called_less_and_less_often() {
    let mut site = Site::new(1);
    let nobody = StdListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    site.peers
        .set_members(&members(&[(2, nobody.to_string())]), site.now);
    let mut rests = Vec::new();
    for failures in 1..=9 {
        site.until(|site| site.failures() == failures);
        let until = site.peers.links[0].next_deadline(site.now).unwrap();
        rests.push(until.since(site.now));
        site.now = Time(until.0 - 1);
        site.turn();
        assert_eq!(site.failures(), failures, "not before its time");
        site.now = until;
    }
    let mut due = 50 * MS;
    for rest in rests {
        assert!((due * 3 / 4..=due).contains(&rest), "{rest} is not {due}");
        due = (2 * due).min(2000 * MS);
    }
}

#[test]
fn a_name_is_looked_up_beside_the_loop() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    let port = two.peers.local_addr().unwrap().port();
    one.peers
        .set_members(&members(&[(2, format!("localhost:{port}"))]), one.now);
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.state(2).is_connected
    });
    // No name ends so (RFC 6761).
    one.peers
        .set_members(&members(&[(3, "nobody.invalid:1".into())]), one.now);
    one.until(|one| one.failures() > 0);
}

#[test]
fn what_is_no_hello_is_closed_and_disturbs_nobody() {
    let (mut one, mut two) = pair();
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0",
        &[0xff; 100_000],
        b"bsd-peep",
    ];
    for garbage in garbage {
        let mut socket = call(&one);
        let _ = socket.write(garbage);
        one.until(|_| is_closed(&mut socket));
    }
    let mut hello = bytes_of(&hello(&one, 9));
    hello[30] ^= 1;
    let mut socket = call(&one);
    let Answer::Refused(refused) = answer(&mut one, &mut socket, &hello) else {
        panic!("it is welcome");
    };
    assert_eq!(refused.why, Why::Unreadable);
    one.until(|_| is_closed(&mut socket));
    let mut socket = call(&one);
    let early = [bytes_of(&self::hello(&one, 9)), b"x".to_vec()].concat();
    socket.write_all(&early).unwrap();
    one.until(|_| is_closed(&mut socket));
    assert_eq!(
        one.peers.refused(),
        6,
        "nothing can follow a hello before its answer"
    );
    one.send(NodeId(2), 1, 10);
    two.send(NodeId(1), 1, 10);
    both(&mut one, &mut two, |one, two| {
        one.messages() == [1] && two.messages() == [1]
    });
    assert_eq!((one.failures(), two.failures()), (0, 0));
}

#[test]
fn who_says_nothing_or_half_a_hello_is_closed_after_five_seconds() {
    let (mut one, _two) = pair();
    let (mut silent, mut half) = (call(&one), call(&one));
    half.write_all(&bytes_of(&hello(&one, 9))[..40]).unwrap();
    one.until(|one| one.peers.callers.len() == 3);
    let deadline = one.peers.next_deadline(one.now).unwrap();
    assert_eq!(deadline.since(one.now), 5 * SECOND_NS);
    one.now = Time(deadline.0 - 1);
    one.turn();
    assert!(!is_closed(&mut silent) && !is_closed(&mut half));
    one.now = deadline;
    one.until(|_| is_closed(&mut silent) && is_closed(&mut half));
    assert_eq!(
        (one.peers.callers.len(), one.failures()),
        (1, 0),
        "who is known may be silent"
    );
    one.pass(1000 * SECOND_NS);
    one.turn();
    assert_eq!((one.peers.callers.len(), one.failures()), (1, 0));
}

#[test]
fn a_stranger_is_told_why_it_is_refused() {
    let mut site = Site::new(1);
    let hello = hello(&site, 9);
    let table = [
        (
            Hello {
                cluster: ClusterId([6; 16]),
                ..hello.clone()
            },
            Why::Cluster,
        ),
        (
            Hello {
                to: NodeId(3),
                ..hello.clone()
            },
            Why::Node,
        ),
        (
            Hello {
                from: NodeId(1),
                ..hello.clone()
            },
            Why::Itself,
        ),
        (
            Hello {
                versions: Versions { min: 2, max: 9 },
                ..hello
            },
            Why::Version,
        ),
    ];
    for (hello, why) in table {
        let mut socket = call(&site);
        let Answer::Refused(refused) = answer(&mut site, &mut socket, &bytes_of(&hello)) else {
            panic!("{hello:?} is welcome");
        };
        assert_eq!(refused.why, why);
        site.until(|_| is_closed(&mut socket));
    }
    assert!(site.received.is_empty());
}

#[test]
fn who_is_no_member_any_more_is_told_so_by_the_leader_alone() {
    let mut site = Site::new(1);
    let asks = |site: &mut Site, hello: &Hello| {
        let mut socket = call(site);
        answer(site, &mut socket, &bytes_of(hello))
    };
    let hello = hello(&site, 9);
    let join = Hello {
        purpose: Purpose::Join,
        ..hello.clone()
    };
    let known = members(&[(1, site.address()), (2, "127.0.0.1:1".into())]);
    site.peers.set_members(&known, site.now);
    let is_welcome = |answer| matches!(answer, Answer::Welcome(_));
    assert!(
        is_welcome(asks(&mut site, &hello)),
        "who follows does not know for certain"
    );
    site.peers.set_leads(true);
    let Answer::Refused(refused) = asks(&mut site, &hello) else {
        panic!("welcome");
    };
    assert_eq!(refused.why, Why::NoMember);
    assert!(is_welcome(asks(&mut site, &join)));
    let member = Hello {
        from: NodeId(2),
        ..hello
    };
    assert!(is_welcome(asks(&mut site, &member)));
}

#[test]
fn a_peer_of_another_cluster_is_not_connected_to() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    two.peers.me.cluster = ClusterId([6; 16]);
    one.peers
        .set_members(&members(&[(2, two.address())]), one.now);
    both(&mut one, &mut two, |one, _| one.failures() == 1);
    assert!(!one.state(2).is_connected);
}

#[test]
fn a_frame_that_is_repeated_damaged_or_of_another_closes_the_connection() {
    let mut site = Site::new(1);
    type Bad = fn(&mut Raw) -> Vec<u8>;
    let table: [Bad; 4] = [
        |raw| raw.frame(heartbeat(9, 1, 2, 5)).repeat(2),
        |raw| {
            let mut bytes = raw.frame(heartbeat(9, 1, 2, 5));
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        },
        |raw| raw.frame(heartbeat(8, 1, 2, 5)),
        |raw| {
            let mut bytes = Vec::new();
            let chunk = Frame::Chunk(Bytes::from_static(b"x"));
            raw.encoder.encode(&chunk, &mut bytes).unwrap();
            bytes
        },
    ];
    let mut count = 0;
    for (at, bad) in table.into_iter().enumerate() {
        let mut raw = Raw::new(&mut site, 9);
        let mut bytes = raw.frame(heartbeat(9, 1, 1, 5));
        bytes.extend(bad(&mut raw));
        raw.socket.write_all(&bytes).unwrap();
        site.until(|_| is_closed(&mut raw.socket));
        // What was in order before is taken.
        count += if at == 0 { 2 } else { 1 };
        assert_eq!(site.messages().len(), count, "{at}");
    }
    assert!(site.peers.callers.is_empty());
}

#[test]
fn a_flood_is_read_piece_by_piece_and_not_at_all_if_nobody_takes_it() {
    let mut site = Site::new(1);
    let (mut raw, mut other) = (Raw::new(&mut site, 9), Raw::new(&mut site, 8));
    let frames: Vec<u8> = (0..4000)
        .flat_map(|at| raw.frame(heartbeat(9, 1, at, 10_000)))
        .collect();
    let mut sent = 0;
    let mut flood = move || match raw.socket.write(&frames[sent..]) {
        Ok(count) => {
            sent += count;
            sent < frames.len()
        }
        Err(_) => false,
    };
    // Nobody takes anything.
    for _ in 0..2000 {
        while flood() {}
        let mut events = Events::with_capacity(8);
        site.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        events
            .iter()
            .for_each(|event| _ = site.peers.on_event(event.token()));
        let before = site.peers.waiting;
        site.peers.turn(site.now);
        let more = site.peers.waiting - before;
        assert!(
            more <= (1 << 20) + (2 * READ_SIZE) + (200 << 10),
            "{more} in a turn"
        );
        assert!(site.peers.waiting <= INBOX_SIZE_MAX + (2 << 20));
    }
    assert!(site.peers.waiting >= INBOX_SIZE_MAX);
    assert_ne!(
        site.peers.next_deadline(site.now),
        Some(site.now),
        "and it does not turn for nothing"
    );
    let frame = other.frame(heartbeat(8, 1, 5000, 1));
    other.socket.write_all(&frame).unwrap();
    site.until(|site| {
        while flood() {}
        site.messages().len() == 4001
    });
    let from_one: Vec<u64> = site
        .messages()
        .into_iter()
        .filter(|index| *index < 5000)
        .collect();
    assert_eq!(from_one, (0..4000).collect::<Vec<_>>());
    assert_eq!(site.peers.waiting, 0);
}

#[test]
fn who_says_nothing_gives_way_and_a_peer_still_comes_in() {
    let mut site = Site::new(1);
    let _peer = Raw::new(&mut site, 9);
    let mut silent = Vec::new();
    for _ in 0..3 * CALLERS_MAX {
        silent.push(call(&site));
        site.turn();
    }
    site.until(|site| site.peers.refused() as usize == 1 + 2 * CALLERS_MAX);
    assert_eq!(site.peers.callers.len(), CALLERS_MAX);
    let mut late = Raw::new(&mut site, 8);
    let frame = late.frame(heartbeat(8, 1, 1, 1));
    late.socket.write_all(&frame).unwrap();
    site.until(|site| site.messages() == [1]);
    assert!(
        site.peers
            .callers
            .iter()
            .any(|it| it.from() == Some(NodeId(9))),
        "who is known stays"
    );
    drop(silent);
}

/// One that welcomes and then reads nothing.
fn deaf(site: &mut Site) -> StdStream {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    site.peers.set_members(&members(&[(2, address)]), site.now);
    site.turn();
    let (mut socket, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    let welcome = Welcome {
        version: 1,
        node: NodeId(2),
        nonce: 7,
        client: "moved:1".into(),
    };
    Answer::Welcome(welcome).encode(&mut bytes).unwrap();
    socket.write_all(&bytes).unwrap();
    site.until(|site| site.state(2).is_connected);
    socket
}

#[test]
fn what_waits_for_one_that_takes_nothing_is_bounded_and_ends_after_ten_seconds() {
    let mut site = Site::new(1);
    let _socket = deaf(&mut site);
    assert_eq!(site.peers.client_address(NodeId(2)), Some("moved:1"));
    for index in 0..1000 {
        site.send(NodeId(2), index, 100_000);
        site.turn();
        assert!(site.state(2).queued <= link::QUEUE_SIZE_MAX);
    }
    assert!(site.state(2).dropped > 0 && site.state(2).queued > link::QUEUE_SIZE_MAX - 200_000);
    assert_eq!(site.failures(), 0);
    let deadline = site.peers.next_deadline(site.now).unwrap();
    assert_eq!(deadline.since(site.now), 10 * SECOND_NS);
    site.now = Time(deadline.0 - 1);
    site.turn();
    assert_eq!(site.failures(), 0);
    site.now = deadline;
    site.turn();
    assert_eq!((site.failures(), site.state(2).queued), (1, 0));
    let PeerState { sent, dropped, .. } = site.state(2);
    assert!(
        sent + dropped == 1000 && sent > 0,
        "{sent} sent and {dropped} dropped"
    );
}

#[test]
fn one_that_says_something_after_its_welcome_is_closed() {
    let mut site = Site::new(1);
    let mut socket = deaf(&mut site);
    socket.write_all(b"x").unwrap();
    site.until(|site| site.failures() == 1);
}

#[test]
fn of_two_connections_of_a_peer_the_newest_is_heard() {
    let mut site = Site::new(1);
    let mut old = Raw::new(&mut site, 9);
    let mut new = Raw::new(&mut site, 9);
    site.until(|_| is_closed(&mut old.socket));
    let frame = new.frame(heartbeat(9, 1, 1, 1));
    new.socket.write_all(&frame).unwrap();
    site.until(|site| site.messages() == [1]);
    assert_eq!(site.peers.callers.len(), 1);
}

/// A new member learns of the others from the leader's entries: it must answer before.
#[test]
fn who_is_no_member_and_calls_is_answered_as_long_as_it_calls() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    one.peers
        .set_members(&members(&[(2, two.address())]), one.now);
    both(&mut one, &mut two, |_, two| {
        two.peers
            .states()
            .first()
            .is_some_and(|state| state.is_connected)
    });
    two.send(NodeId(1), 1, 1);
    both(&mut one, &mut two, |one, _| one.messages() == [1]);
    assert_eq!(two.peers.client_address(NodeId(1)), Some("client-1:11300"));
    two.send(NodeId(7), 1, 1);
    assert_eq!(two.peers.dropped, 1, "nobody knows node 7");
    one.peers.set_members(&Members::default(), one.now);
    both(&mut one, &mut two, |_, two| two.peers.states().is_empty());
}

#[test]
fn an_address_that_a_peer_says_counts_until_the_membership_has_a_new_one() {
    let mut site = Site::new(1);
    let old = "127.0.0.1:2".to_owned();
    site.peers
        .set_members(&members(&[(9, old.clone())]), site.now);
    let _raw = Raw::new(&mut site, 9);
    let address = |site: &Site| site.peers.peer_address(NodeId(9)).unwrap().to_owned();
    assert_eq!(address(&site), "127.0.0.1:1");
    site.peers.set_members(&members(&[(9, old)]), site.now);
    assert_eq!(address(&site), "127.0.0.1:1");
    site.peers
        .set_members(&members(&[(9, "127.0.0.1:3".into())]), site.now);
    assert_eq!(address(&site), "127.0.0.1:3");
}

#[test]
fn an_address_that_does_not_answer_and_the_one_of_the_membership_are_tried_in_turn() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    one.peers
        .set_members(&members(&[(2, two.address())]), one.now);
    let raw = Raw::new(&mut one, 2);
    assert_eq!(one.peers.peer_address(NodeId(2)), Some("127.0.0.1:1"));
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.state(2).is_connected
    });
    let failures = one.failures();
    // What it says while the connection stands is for the next one.
    let _again = Raw::new(&mut one, 2);
    drop(raw);
    one.turn();
    assert!(one.state(2).is_connected && one.failures() == failures);
}

#[test]
fn who_gets_another_identity_says_hello_anew() {
    let (mut one, mut two) = pair();
    let other = Me {
        cluster: ClusterId([8; 16]),
        ..me(1, one.address())
    };
    one.peers.set_me(other, one.now);
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.failures() > 0
    });
    let other = Me {
        cluster: ClusterId([8; 16]),
        ..me(2, two.address())
    };
    two.peers.set_me(other, two.now);
    both(&mut one, &mut two, |one, two| {
        one.pass(MS);
        two.pass(MS);
        one.state(2).is_connected && two.state(1).is_connected
    });
}

/// The connection that was handed over, once it is.
fn called(site: &mut Site) -> (Hello, Talk) {
    site.until(|site| site.count(|it| matches!(it, Received::Called(..))) == 1);
    match site.received.pop() {
        Some(Received::Called(hello, talk)) => (*hello, *talk),
        other => panic!("{other:?}"),
    }
}

const TALK: Duration = Duration::from_secs(20);

fn dial(
    from: &Me,
    to: &Site,
    purpose: Purpose,
    tls: Option<PeerTls>,
) -> std::thread::JoinHandle<io::Result<(Talk, Welcome)>> {
    let (from, address) = (from.clone(), to.address());
    let id = if purpose == Purpose::Join {
        NodeId(0)
    } else {
        to.id()
    };
    std::thread::spawn(move || Talk::dial(&from, id, &address, purpose, tls.as_ref(), TALK))
}

#[test]
fn a_node_without_a_cluster_asks_to_be_added_and_is_answered() {
    let mut site = Site::new(1);
    let newcomer = Me {
        cluster: ClusterId([0; 16]),
        ..me(9, "127.0.0.1:9".into())
    };
    let dialed = dial(&newcomer, &site, Purpose::Join, None);
    let (hello, mut talk) = called(&mut site);
    assert_eq!((hello.from, hello.purpose), (NodeId(9), Purpose::Join));
    let (mut newcomer, welcome) = dialed.join().unwrap().unwrap();
    assert_eq!(welcome.node, NodeId(1));
    let join = Join {
        node: NodeId(9),
        peer: "127.0.0.1:9".into(),
        client: String::new(),
    };
    newcomer.send(&Frame::Join(join.clone())).unwrap();
    assert_eq!(talk.receive().unwrap(), Frame::Join(join));
    let invite = Frame::Invite(JoinAnswer::Elsewhere {
        node: NodeId(2),
        peer: "b:1".into(),
    });
    talk.send(&invite).unwrap();
    assert_eq!(newcomer.receive().unwrap(), invite);
    assert!(site.peers.callers.is_empty());
    drop(talk);
    assert_eq!(
        newcomer.receive().unwrap_err().kind(),
        ErrorKind::UnexpectedEof
    );
}

#[test]
fn a_snapshot_of_a_stranger_is_refused_in_words() {
    let mut site = Site::new(1);
    let stranger = Me {
        cluster: ClusterId([9; 16]),
        ..me(9, "127.0.0.1:9".into())
    };
    let dialed = dial(&stranger, &site, Purpose::Snapshot, None);
    site.until(|_| dialed.is_finished());
    let error = dialed.join().unwrap().unwrap_err();
    assert!(
        error.to_string().contains("this is a node of cluster"),
        "{error}"
    );
}

#[test]
fn other_machines_need_tls() {
    let poll = Poll::new().unwrap();
    let peers = Peers::new(
        me(1, String::new()),
        StdListener::bind("0.0.0.0:0").unwrap(),
        None,
        (poll.registry().try_clone().unwrap(), FIRST),
        Arc::new(|| ()),
        1,
    );
    assert!(peers.unwrap_err().to_string().contains("need TLS"));
    let mut site = Site::new(1);
    site.peers
        .set_members(&members(&[(2, "192.0.2.1:1".into())]), site.now);
    site.turn();
    assert_eq!(site.failures(), 1, "it does not even call");
    assert!(has_to_be_encrypted("[::ffff:10.0.0.1]:1".parse().unwrap()));
    assert!(!has_to_be_encrypted("[::1]:1".parse().unwrap()));
}

#[test]
fn tokens_of_others_are_left_alone() {
    let mut site = Site::new(1);
    for token in [0, FIRST.0 - 1, FIRST.0 + TOKENS, usize::MAX] {
        assert!(!site.peers.on_event(Token(token)));
    }
    assert!(site.peers.on_event(FIRST));
}

mod tls {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;
    use crate::cluster::wire::{Begin, End, Intake, Taken};

    /// An authority, and a directory for what it signs.
    struct Authority {
        dir: tempfile::TempDir,
        issuer: Issuer<'static, KeyPair>,
        pem: String,
    }

    impl Authority {
        fn new() -> Authority {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let pem = params.self_signed(&key).unwrap().pem();
            Authority {
                dir: tempfile::tempdir().unwrap(),
                issuer: Issuer::new(params, key),
                pem,
            }
        }

        fn file(&self, name: &str, text: &str) -> std::path::PathBuf {
            let path = self.dir.path().join(name);
            #[allow(clippy::disallowed_methods)] // no file of the log
            std::fs::write(&path, text).unwrap();
            path
        }

        /// A node's certificate for that host; it believes in `ca`.
        fn node(&self, host: &str, ca: &Authority) -> PeerTls {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
            let cert = params.signed_by(&key, &self.issuer).unwrap();
            let files = PeerTlsFiles {
                cert: self.file("cert.pem", &cert.pem()),
                key: self.file("key.pem", &key.serialize_pem()),
                ca: self.file("ca.pem", &ca.pem),
            };
            PeerTls::read(&files).unwrap()
        }

        fn site(&self, id: u64) -> Site {
            Site::with(id, Some(self.node("127.0.0.1", self)))
        }
    }

    /// Two nodes of which the first calls the second, which is not to be heard.
    fn is_never_heard(mut one: Site, mut two: Site) {
        one.peers
            .set_members(&members(&[(2, two.address())]), one.now);
        both(&mut one, &mut two, |one, _| {
            one.pass(MS);
            one.failures() >= 3
        });
        assert!(!one.state(2).is_connected);
        assert!(two.received.is_empty() && two.peers.states().is_empty());
        assert!(two.peers.refused() >= 2);
    }

    #[test]
    fn messages_pass_encrypted_and_in_order() {
        let authority = Authority::new();
        let (mut one, mut two) = meet(authority.site(1), authority.site(2));
        for index in 0..300 {
            one.send(NodeId(2), index, 20_000);
            two.send(NodeId(1), index, 10);
        }
        both(&mut one, &mut two, |one, two| {
            one.messages().len() == 300 && two.messages().len() == 300
        });
        assert_eq!(two.messages(), (0..300).collect::<Vec<_>>());
        assert_eq!((one.failures(), two.failures()), (0, 0));
    }

    #[test]
    fn a_certificate_of_another_authority_is_refused_at_either_end() {
        let (ours, theirs) = (Authority::new(), Authority::new());
        // The stranger believes in us: it is we who must refuse.
        let stranger = theirs.node("127.0.0.1", &ours);
        is_never_heard(Site::with(1, Some(stranger.clone())), ours.site(2));
        is_never_heard(ours.site(1), Site::with(2, Some(stranger)));
    }

    #[test]
    fn a_certificate_for_another_host_is_refused_by_who_dials() {
        let authority = Authority::new();
        let elsewhere = authority.node("elsewhere.example", &authority);
        is_never_heard(authority.site(1), Site::with(2, Some(elsewhere)));
    }

    #[test]
    fn who_shows_no_certificate_or_speaks_no_tls_is_refused() {
        let authority = Authority::new();
        let mut site = authority.site(1);
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
        session
            .writer()
            .write_all(&bytes_of(&hello(&site, 9)))
            .unwrap();
        let mut socket = call(&site);
        let mut is_over = false;
        site.until(|_| {
            let _ = session.write_tls(&mut socket);
            is_over |= match session.read_tls(&mut socket) {
                Ok(0) => true,
                Ok(_) => session.process_new_packets().is_err(),
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
            is_over
        });
        let mut plain = call(&site);
        plain.write_all(&bytes_of(&hello(&site, 9))).unwrap();
        site.until(|site| is_closed(&mut plain) && site.peers.callers.is_empty());
        assert_eq!(site.peers.refused(), 2);
        assert!(site.received.is_empty() && site.peers.states().is_empty());
    }

    #[test]
    fn a_handshake_that_stops_ends_after_five_seconds() {
        let authority = Authority::new();
        let mut site = authority.site(1);
        let mut half = call(&site);
        half.write_all(&[22, 3, 1, 1, 0, 1]).unwrap();
        site.until(|site| site.peers.callers.len() == 1);
        site.turn();
        assert!(!is_closed(&mut half));
        site.pass(5 * SECOND_NS);
        site.until(|_| is_closed(&mut half));
    }

    #[test]
    fn a_snapshot_travels_on_its_own_connection() {
        let authority = Authority::new();
        let mut site = authority.site(2);
        let tls = authority.node("127.0.0.1", &authority);
        let sender = me(1, "127.0.0.1:9".into());
        let dialed = dial(&sender, &site, Purpose::Snapshot, Some(tls));
        let (hello, mut talk) = called(&mut site);
        assert_eq!((hello.from, hello.purpose), (NodeId(1), Purpose::Snapshot));
        let (mut sender, _) = dialed.join().unwrap().unwrap();
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
        let begin = Begin {
            index: 5,
            term: 2,
            members: members(&[(1, "a:1".into())]),
            files: vec![("segment-1".into(), 2_999_990), ("segment-2".into(), 10)],
        };
        let sent = bytes.clone();
        let sending = std::thread::spawn(move || {
            sender.send(&Frame::Begin(begin)).unwrap();
            for chunk in sent.chunks(100_000) {
                sender
                    .send(&Frame::Chunk(Bytes::copy_from_slice(chunk)))
                    .unwrap();
            }
            let crc = crc32fast::hash(&sent);
            sender.send(&Frame::End(End { crc })).unwrap();
            sender.receive().unwrap()
        });
        let Frame::Begin(begin) = talk.receive().unwrap() else {
            panic!("no begin")
        };
        let mut intake = Intake::new(begin);
        let mut files = [Vec::new(), Vec::new()];
        loop {
            match talk.receive().unwrap() {
                Frame::Chunk(chunk) => {
                    for piece in intake.chunk(&chunk).unwrap() {
                        files[piece.file].extend_from_slice(piece.bytes);
                    }
                }
                Frame::End(end) => break assert!(intake.end(end).is_ok()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(files.concat(), bytes);
        talk.send(&Frame::Taken(Taken::Installed)).unwrap();
        assert_eq!(sending.join().unwrap(), Frame::Taken(Taken::Installed));
    }
}
