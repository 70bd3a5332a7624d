//! A follower and a leader as whole servers, whose turns the test runs itself.

use super::*;
use crate::{Address, Bound, Port, Reactor, reactor};
use bsd::engine::{Engine, Options};

/// A whole server, whose turns the test runs itself, and where it listens.
fn node() -> (Server, SocketAddr) {
    let reactor = Reactor::new().unwrap();
    let address = Address::parse("127.0.0.1:0", &Port::Number(0)).unwrap();
    let listener = Bound::bind(&address, None).unwrap().listen().unwrap();
    let address = listener.name().parse().unwrap();
    let clock = Clock::start();
    let options = Options {
        dir: None,
        waker: Some(reactor.waker()),
        ..Options::default()
    };
    let engine = Engine::open(&options, clock.now()).unwrap();
    let (bounds, _) = Bounds::within(None);
    let bounds = Bounds {
        connections_max: 100,
        ..bounds
    };
    let server = Server::new(reactor, engine, vec![listener], bounds, clock).unwrap();
    (server, address)
}

/// Send that; these are the next bytes that come, after turns of all these servers.
fn ask([one, other]: [&mut Server; 2], client: &mut TcpStream, request: &[u8], reply: &[u8]) {
    client.write_all(request).unwrap();
    let mut got = vec![0; reply.len()];
    let mut filled = 0;
    let clock = Clock::start();
    while filled < got.len() {
        assert!(clock.now().mono.0 < PATIENCE_NS, "{}", got.escape_ascii());
        turn_each([&mut *one, &mut *other]);
        match client.read(&mut got[filled..]) {
            Ok(count) if count > 0 => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            end => panic!("{end:?} after {}", got[..filled].escape_ascii()),
        }
    }
    assert_eq!(
        got.escape_ascii().to_string(),
        reply.escape_ascii().to_string()
    );
}

fn turn_each(servers: [&mut Server; 2]) {
    for server in servers {
        server.reactor.waker()();
        assert!(!server.turn(&mut reactor::events()).unwrap());
    }
}

#[test]
fn a_server_passes_sessions_on_and_serves_those_who_waited_once_it_leads() {
    let (mut leader, address) = node();
    let (mut follower, here) = node();
    let connect = || {
        let client = TcpStream::connect(here).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    };
    let leads = Leader::At(target(address, Layers::NONE));
    follower.forward.leader_is(leads, Time(0));
    let mut client = connect();
    ask(
        [&mut leader, &mut follower],
        &mut client,
        b"put 0 0 60 2\r\nhi\r\nreserve\r\n",
        b"INSERTED 1\r\nRESERVED 1 2\r\nhi\r\n",
    );
    assert_eq!((leader.connection_count, follower.connection_count), (1, 0));
    let now = follower.clock.now().mono;
    follower.forward.leader_is(Leader::None, now);
    let clock = Clock::start();
    while leader.connection_count > 0 {
        assert!(clock.now().mono.0 < PATIENCE_NS);
        turn_each([&mut leader, &mut follower]);
    }
    let mut waiting = connect();
    while follower.forward.count() == 0 {
        assert!(clock.now().mono.0 < PATIENCE_NS);
        turn_each([&mut leader, &mut follower]);
    }
    let now = follower.clock.now().mono;
    follower.forward.leader_is(Leader::Ourselves, now);
    ask(
        [&mut leader, &mut follower],
        &mut waiting,
        b"put 0 0 60 4\r\nhere\r\npeek 1\r\n",
        b"INSERTED 1\r\nFOUND 1 4\r\nhere\r\n",
    );
    assert_eq!(follower.connection_count, 1);
    assert_eq!(follower.forward.count(), 0);
}
