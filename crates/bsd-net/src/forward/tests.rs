//! Pairs between clients and leaders that the test plays itself, over loopback. The time is the
//! test's own; only the sockets are waited for.

mod encrypted;
mod layers;
mod leaders;
mod servers;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use mio::{Events, Poll};

use super::*;
use bsd::clock::Clock;

/// A test that waits for longer than this for a socket fails.
const PATIENCE_NS: i64 = 20 * SECOND_NS;
/// A look at the sockets takes at most so long.
const LOOK: std::time::Duration = std::time::Duration::from_millis(2);

struct House {
    poll: Poll,
    events: Events,
    forward: Forward,
    gate: Gate,
    now: Time,
    buffer: Vec<u8>,
    listener: TcpListener,
}

impl House {
    fn new() -> House {
        let (bounds, _) = Bounds::within(None);
        House::within(Bounds {
            connections_max: 100_000,
            ..bounds
        })
    }

    fn within(bounds: Bounds) -> House {
        let poll = Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        House {
            poll,
            events: Events::with_capacity(64),
            forward: Forward::new(registry, &bounds),
            gate: Gate::default(),
            now: Time(0),
            buffer: vec![0; SLICE],
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
        }
    }

    /// A house that follows a leader.
    fn led() -> (House, TcpListener) {
        let mut house = House::new();
        let leader = house.follow(Layers::NONE);
        (house, leader)
    }

    fn follow(&mut self, layers: Layers) -> TcpListener {
        let leader = TcpListener::bind("127.0.0.1:0").unwrap();
        leader.set_nonblocking(true).unwrap();
        self.lead(at(&leader, layers));
        leader
    }

    fn lead(&mut self, leader: Leader) {
        self.forward.leader_is(leader, self.now);
    }

    /// Someone connects to a listener with these layers.
    fn connect(&mut self, layers: Layers) -> io::Result<TcpStream> {
        let client = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let (stream, peer) = self.listener.accept().unwrap();
        self.give(stream, peer, layers).map(|()| client)
    }

    fn give(&mut self, stream: TcpStream, peer: SocketAddr, layers: Layers) -> io::Result<()> {
        stream.set_nonblocking(true).unwrap();
        let stream = Stream::Tcp(mio::net::TcpStream::from_std(stream));
        let arrival = (stream, Peer::at(peer), layers);
        self.forward.admit(&mut self.gate, arrival, self.now)
    }

    fn client(&mut self) -> TcpStream {
        self.connect(Layers::NONE).unwrap()
    }

    /// A client, and the leader's end of its link.
    fn pair(&mut self, leader: &TcpListener) -> (TcpStream, TcpStream) {
        let client = self.client();
        let link = self.link(leader);
        (client, link)
    }

    /// The next link that the leader gets.
    fn link(&mut self, leader: &TcpListener) -> TcpStream {
        let mut link = None;
        self.until("a link", |_| {
            link = leader.accept().ok();
            link.is_some()
        });
        let link = link.unwrap().0;
        link.set_nonblocking(true).unwrap();
        link
    }

    /// Look at the sockets.
    fn look(&mut self) {
        let look = match self.forward.has_work() {
            true => std::time::Duration::ZERO,
            false => LOOK,
        };
        self.poll.poll(&mut self.events, Some(look)).unwrap();
        for event in &self.events {
            assert!(self.forward.on_event(event), "{event:?}");
        }
    }

    fn turn(&mut self) {
        self.look();
        let House {
            forward,
            gate,
            now,
            buffer,
            ..
        } = self;
        forward.turn(*now, gate, buffer);
        let held: usize = forward.pairs.iter().flatten().map(|it| it.held()).sum();
        assert_eq!(forward.held, held, "held bytes are counted");
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut House) -> bool) {
        let clock = Clock::start();
        while !is_so(self) {
            assert!(clock.now().mono.0 < PATIENCE_NS, "it never comes: {what}");
            self.turn();
        }
    }

    /// Turns until nothing moves by itself any more.
    fn run_until_idle(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            self.turn();
            let is_quiet = self.events.is_empty() && !self.forward.has_work();
            quiet = if is_quiet { quiet + 1 } else { 0 };
        }
    }

    fn send(&mut self, to: &mut TcpStream, mut bytes: &[u8]) {
        self.until("room for what is sent", |_| {
            while !bytes.is_empty() {
                match to.write(bytes) {
                    Ok(count) => bytes = &bytes[count..],
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                    Err(error) => panic!("{error}"),
                }
            }
            true
        });
    }

    /// The next bytes that come there.
    fn take(&mut self, from: &mut TcpStream, count: usize) -> Vec<u8> {
        let mut got = vec![0; count];
        let mut filled = 0;
        self.until("what was sent", |_| {
            while filled < count {
                match from.read(&mut got[filled..]) {
                    Ok(0) => panic!("an end after {}", got[..filled].escape_ascii()),
                    Ok(more) => filled += more,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                    Err(error) => panic!("{error}"),
                }
            }
            true
        });
        got
    }

    fn expect(&mut self, from: &mut TcpStream, bytes: &[u8]) {
        let got = self.take(from, bytes.len());
        assert!(got == bytes, "{}", got.escape_ascii());
    }

    /// Expect the end of the connection, orderly or not.
    fn expect_end(&mut self, from: &mut TcpStream) {
        self.until("an end", |_| match from.read(&mut [0]) {
            Ok(0) => true,
            Ok(_) => panic!("no end"),
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        });
    }

    /// Nothing has come there, however long one waits.
    fn expect_nothing(&mut self, from: &mut TcpStream) {
        self.run_until_idle();
        let error = from.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }

    fn expect_count(&mut self, count: usize) {
        self.until("that many pairs", |house| house.forward.count() == count);
        if count == 0 {
            let forward = &self.forward;
            assert_eq!((forward.held, forward.own.len()), (0, 0));
            assert_eq!(forward.next_deadline(), None);
            assert!(forward.waiting.longest().is_none() && forward.stuck.longest().is_none());
        }
    }

    fn pass(&mut self, seconds: i64) {
        self.now.0 += seconds * SECOND_NS;
    }
}

fn at(leader: &TcpListener, layers: Layers) -> Leader {
    let address = leader.local_addr().unwrap();
    Leader::At(target(address, layers))
}

/// Of a leader on this machine.
fn target(address: SocketAddr, layers: Layers) -> Target {
    Target {
        address,
        layers,
        host: [127, 0, 0, 1].into(),
    }
}

const PROXY: Layers = Layers {
    proxy: true,
    tls: false,
};

/// Bytes that look different everywhere.
fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

/// Fill the way from there until nothing more is taken; how many bytes that were.
fn fill(house: &mut House, from: &mut TcpStream, bytes: &[u8]) -> usize {
    let mut sent = 0;
    loop {
        match from.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                house.run_until_idle();
                if let Err(error) = from.write(&bytes[sent..sent + 1]) {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    return sent;
                }
                sent += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_session_passes_both_ways_byte_for_byte_wherever_it_is_cut() {
    let (mut house, leader) = House::led();
    let (mut client, mut link) = house.pair(&leader);
    let up = b"put 0 0 60 5\r\n\r\n\0\xff\n\r\nreserve\r\ndelete 1\r\n";
    let down = b"INSERTED 1\r\nRESERVED 1 5\r\n\r\n\0\xff\n\r\nDELETED\r\n";
    for (bytes, is_up) in [(&up[..], true), (&down[..], false)] {
        for cut in 0..=bytes.len() {
            for part in [&bytes[..cut], &bytes[cut..]] {
                let (from, to) = match is_up {
                    true => (&mut client, &mut link),
                    false => (&mut link, &mut client),
                };
                house.send(from, part);
                house.expect(to, part);
            }
        }
    }
    assert_eq!(house.forward.held(), 0);
}

#[test]
fn much_passes_both_ways_at_once() {
    let (mut house, leader) = House::led();
    let (mut client, mut link) = house.pair(&leader);
    let (up, down) = (noise(5_000_001, 1), noise(4_000_003, 2));
    let mut left = [(&up[..], Vec::new()), (&down[..], Vec::new())];
    let mut step = 0;
    let mut buffer = vec![0; 100_000];
    house.until("all of it", |house| {
        step += 1;
        for (index, (sent, got)) in left.iter_mut().enumerate() {
            let (from, to) = match index {
                0 => (&mut client, &mut link),
                _ => (&mut link, &mut client),
            };
            let piece = sent.len().min(1 + step * 7919 % 90_001);
            if let Ok(count) = from.write(&sent[..piece]) {
                *sent = &sent[count..];
            }
            let room = 1 + step * 104_729 % 99_991;
            if let Ok(count) = to.read(&mut buffer[..room]) {
                got.extend_from_slice(&buffer[..count]);
            }
        }
        assert!(house.forward.held() <= 2 * SLICE);
        left[0].1.len() == up.len() && left[1].1.len() == down.len()
    });
    assert!(left[0].1 == up && left[1].1 == down);
}

#[test]
fn a_side_that_takes_nothing_slows_the_other_and_holds_no_more_than_a_slice() {
    let (mut house, leader) = House::led();
    let (client, link) = house.pair(&leader);
    for (mut from, mut to) in [(&client, &link), (&link, &client)].map(|(from, to)| {
        let clone = |it: &TcpStream| it.try_clone().unwrap();
        (clone(from), clone(to))
    }) {
        let bytes = noise(32 << 20, 3);
        let sent = fill(&mut house, &mut from, &bytes);
        assert!(sent < bytes.len(), "the kernel takes all of it");
        let held = house.forward.held();
        assert!((1..=SLICE).contains(&held), "{held}");
        house.expect(&mut to, &bytes[..sent]);
        house.run_until_idle();
        assert_eq!(house.forward.held(), 0);
    }
}

#[test]
fn one_pair_that_is_stuck_keeps_no_other_waiting() {
    let (mut house, leader) = House::led();
    let (mut stuck, _deaf) = house.pair(&leader);
    fill(&mut house, &mut stuck, &noise(32 << 20, 4));
    let (mut client, mut link) = house.pair(&leader);
    house.send(&mut client, b"stats\r\n");
    house.expect(&mut link, b"stats\r\n");
}

#[test]
fn beyond_the_bound_on_memory_those_close_whose_bytes_have_not_moved_for_longest() {
    let (bounds, _) = Bounds::within(None);
    let mut house = House::within(Bounds {
        output_max: SLICE / 2,
        connections_max: 100,
        ..bounds
    });
    let leader = house.follow(Layers::NONE);
    let bytes = noise(32 << 20, 5);
    let mut pairs = Vec::new();
    let mut closed = 0;
    while closed == 0 {
        let (mut client, link) = house.pair(&leader);
        house.now.0 += 1;
        fill(&mut house, &mut client, &bytes);
        pairs.push((client, link));
        closed = pairs.len() - house.forward.count();
        let is_one_alone = house.forward.stuck.len() == 1;
        assert!(is_one_alone || house.forward.held() <= house.forward.held_max);
        assert!(pairs.len() < 50, "no one gives way");
    }
    for (index, (client, _)) in pairs.iter_mut().enumerate() {
        let is_open = |error: io::Error| error.kind() == ErrorKind::WouldBlock;
        let is_closed = !client.read(&mut [0]).is_err_and(is_open);
        assert_eq!(is_closed, index < closed, "{index}");
    }
}

#[test]
fn the_end_of_one_direction_is_passed_on_and_leaves_the_other() {
    let (mut house, leader) = House::led();
    for is_client_first in [true, false] {
        let (client, link) = house.pair(&leader);
        let (mut first, mut second) = match is_client_first {
            true => (client, link),
            false => (link, client),
        };
        house.send(&mut first, b"the last\r\n");
        first.shutdown(Shutdown::Write).unwrap();
        house.expect(&mut second, b"the last\r\n");
        house.expect_end(&mut second);
        house.send(&mut second, b"and an answer\r\n");
        house.expect(&mut first, b"and an answer\r\n");
        second.shutdown(Shutdown::Write).unwrap();
        house.expect_end(&mut first);
        house.expect_count(0);
    }
}

#[test]
fn what_is_kept_leaves_before_the_end() {
    let (mut house, leader) = House::led();
    let (mut client, mut link) = house.pair(&leader);
    let bytes = noise(32 << 20, 6);
    let sent = fill(&mut house, &mut link, &bytes);
    drop(link);
    house.run_until_idle();
    house.expect(&mut client, &bytes[..sent]);
    house.expect_end(&mut client);
    drop(client);
    house.expect_count(0);
}

#[test]
fn a_client_that_leaves_at_once_has_sent_what_it_sent() {
    let (mut house, leader) = House::led();
    let (mut client, mut link) = house.pair(&leader);
    house.send(&mut client, b"put 0 0 60 2\r\nhi\r\n");
    drop(client);
    house.expect(&mut link, b"put 0 0 60 2\r\nhi\r\n");
    house.expect_end(&mut link);
    house.send(&mut link, b"INSERTED 1\r\n");
    drop(link);
    house.expect_count(0);
}

#[test]
fn a_client_whose_leader_has_ended_has_a_while_for_the_rest() {
    let (mut house, leader) = House::led();
    let (mut client, link) = house.pair(&leader);
    drop(link);
    house.expect_end(&mut client);
    house.run_until_idle();
    assert_eq!(house.forward.count(), 1, "the client has not ended");
    assert_eq!(house.forward.next_deadline(), Some(Time(LINGER_NS)));
    house.pass(10);
    house.expect_count(0);
}

#[test]
fn thousands_of_pairs_that_are_idle_hold_nothing_but_themselves() {
    assert!(size_of::<Pair>() <= 400, "{}", size_of::<Pair>());
    let room = bsd::rlimit::raise_descriptor_limit();
    // Here, too, a pair has four ends.
    let count = (room / 8).min(2000);
    let (mut house, leader) = House::led();
    let mut pairs: Vec<_> = (0..count).map(|_| house.pair(&leader)).collect();
    for (client, link) in &mut pairs {
        client.write_all(b"reserve\r\n").unwrap();
        link.write_all(b"TIMED_OUT\r\n").unwrap();
    }
    for (client, link) in &mut pairs {
        house.expect(link, b"reserve\r\n");
        house.expect(client, b"TIMED_OUT\r\n");
    }
    assert_eq!(house.forward.connections(), 2 * count);
    let kept: usize = house
        .forward
        .pairs
        .iter()
        .flatten()
        .map(|it| it.held())
        .sum();
    assert_eq!((kept, house.forward.held()), (0, 0));
    assert!(!house.forward.has_work());
    drop(pairs);
    house.expect_count(0);
}

#[test]
fn pairs_take_two_of_the_connections_there_may_be() {
    let (bounds, _) = Bounds::within(None);
    let mut house = House::within(Bounds {
        connections_max: 5,
        ..bounds
    });
    house.lead(Leader::None);
    let first = house.client();
    let _second = house.client();
    assert!(house.connect(Layers::NONE).is_err());
    assert_eq!(house.forward.connections(), 4);
    rustix::net::sockopt::set_socket_linger(&first, Some(std::time::Duration::ZERO)).unwrap();
    drop(first);
    house.expect_count(1);
    let _third = house.client();
}

#[test]
fn an_address_has_its_connections_back_when_they_end() {
    let (mut house, leader) = House::led();
    house.gate = Gate::default().with_each_max(Some(1));
    for _ in 0..3 {
        let (client, link) = house.pair(&leader);
        assert!(house.connect(Layers::NONE).is_err());
        drop((client, link));
        house.expect_count(0);
    }
}

#[test]
fn tokens_of_pairs_are_those_of_no_one_else() {
    let house = House::new();
    let last = FIRST_TOKEN + 2 * house.forward.count_max;
    assert!(last <= LAST_TOKEN);
    assert!(FIRST_TOKEN > u32::MAX as usize || usize::BITS == 32);
    const { assert!(LAST_TOKEN < usize::MAX - 1_000_000) };
}
