//! Clients that speak TLS with this node: their sessions end here; and leaders that ask for it.

use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore};

use super::*;
use crate::peers::PeerTls;
use crate::proxy;
use crate::tls::Tls;

const TLS: Layers = Layers {
    proxy: false,
    tls: true,
};

/// One end of a session, a client or a leader: what has come for it, and whether it has been told that
/// nothing follows.
struct Talker {
    stream: TcpStream,
    session: Connection,
    got: Vec<u8>,
    is_told: bool,
}

impl Talker {
    fn new(stream: TcpStream, mut session: Connection) -> Talker {
        session.set_buffer_limit(None);
        Talker {
            stream,
            session,
            got: Vec::new(),
            is_told: false,
        }
    }

    fn client(house: &mut House) -> Talker {
        let (tls, cert) = Tls::made();
        house.gate = Gate::default().with_tls(Some(tls));
        let mut roots = RootCertStore::empty();
        roots.add(cert).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        Talker::new(house.connect(TLS).unwrap(), session.into())
    }

    /// A leader that shows its own clients a certificate that no node knows, and nodes that of `node`.
    fn leader(link: TcpStream, node: &PeerTls) -> Talker {
        let (tls, _) = Tls::made();
        tls.show_to_members(node.signed());
        Talker::new(link, tls.session().unwrap().into())
    }

    /// Send and receive what can be.
    fn step(&mut self) {
        let may_wait = |done: io::Result<usize>| match done {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            done => Some(done.unwrap()),
        };
        while self.session.wants_write()
            && may_wait(self.session.write_tls(&mut self.stream)).is_some()
        {}
        while let Some(1..) = may_wait(self.session.read_tls(&mut self.stream)) {
            let Ok(state) = self.session.process_new_packets() else {
                return;
            };
            self.is_told |= state.peer_has_closed();
            let _ = self.session.reader().read_to_end(&mut self.got);
        }
    }
}

#[test]
fn what_came_encrypted_passes_plain_and_the_other_way_round() {
    let (mut house, leader) = House::led();
    let mut client = Talker::client(&mut house);
    let up = noise(300_001, 7);
    client.session.writer().write_all(&up).unwrap();
    let mut link = None;
    house.until("a link", |_| {
        client.step();
        link = leader.accept().ok();
        link.is_some()
    });
    let mut link = link.unwrap().0;
    link.set_nonblocking(true).unwrap();
    let mut got = Vec::new();
    let mut buffer = vec![0; 10_000];
    house.until("what the client sent", |_| {
        client.step();
        if let Ok(count) = link.read(&mut buffer) {
            got.extend_from_slice(&buffer[..count]);
        }
        got.len() >= up.len()
    });
    assert!(got == up);
    let down = noise(3_000_001, 8);
    let mut left = &down[..];
    house.until("what the leader sent", |_| {
        client.step();
        if let Ok(count) = link.write(left) {
            left = &left[count..];
        }
        client.got.len() >= down.len()
    });
    assert!(client.got == down);
    house.run_until_idle();
    assert_eq!(house.forward.held(), 0);
    link.shutdown(Shutdown::Write).unwrap();
    house.until("the end", |_| {
        client.step();
        client.is_told
    });
    drop(client);
    house.expect_count(0);
}

#[test]
fn who_stops_in_the_middle_of_a_handshake_is_closed_in_time() {
    let (mut house, _leader) = House::led();
    let mut client = Talker::client(&mut house);
    let mut hello = Vec::new();
    client.session.write_tls(&mut hello).unwrap();
    house.send(&mut client.stream, &hello[..hello.len() / 2]);
    house.run_until_idle();
    assert!(house.forward.held() > 0);
    house.pass(10);
    house.expect_count(0);
}

/// A house that follows a leader whose listener has these layers, and the session of a node that leads.
fn led_over_tls(layers: Layers) -> (House, TcpListener, [PeerTls; 2]) {
    let [own, leader, other] = PeerTls::made();
    let mut house = House::new();
    house.forward.set_tls(own);
    let listener = house.follow(layers);
    (house, listener, [leader, other])
}

#[test]
fn a_link_is_encrypted_and_the_leader_shows_the_certificate_of_a_member() {
    let (mut house, listener, [node, _]) = led_over_tls(Layers {
        proxy: true,
        tls: true,
    });
    let mut client = house.client();
    let (from, to) = (client.local_addr().ok(), client.peer_addr().ok());
    let mut link = house.link(&listener);
    let header = proxy::encode(from, to);
    assert!(house.take(&mut link, header.len()) == header);
    let mut leader = Talker::leader(link, &node);
    let up = noise(300_001, 7);
    house.send(&mut client, &up[..1000]);
    let mut left = &up[1000..];
    house.until("what the client sends", |_| {
        leader.step();
        if let Ok(count) = client.write(left) {
            left = &left[count..];
        }
        leader.got.len() >= up.len()
    });
    assert!(leader.got == up);
    let down = noise(3_000_001, 8);
    leader.session.writer().write_all(&down).unwrap();
    let mut got = Vec::new();
    let mut buffer = vec![0; 10_000];
    house.until("what the leader sends", |_| {
        leader.step();
        if let Ok(count) = client.read(&mut buffer) {
            got.extend_from_slice(&buffer[..count]);
        }
        got.len() >= down.len()
    });
    assert!(got == down);
    house.run_until_idle();
    assert_eq!(house.forward.held(), 0);
    client.shutdown(Shutdown::Write).unwrap();
    house.until("the end", |_| {
        leader.step();
        leader.is_told
    });
    drop((leader, client));
    house.expect_count(0);
}

/// Anyone who took the leader's address gets not a byte of a client.
#[test]
fn a_leader_that_is_of_another_cluster_is_not_believed() {
    let (mut house, listener, [_, stranger]) = led_over_tls(TLS);
    let mut client = house.client();
    house.send(&mut client, b"stats\r\n");
    for nth in 1..=2 {
        let mut leader = Talker::leader(house.link(&listener), &stranger);
        house.until("it is refused", |house| {
            leader.step();
            house.forward.failures == nth
        });
        leader.step();
        assert!(leader.got.is_empty() && leader.session.is_handshaking());
        house.pass(1);
    }
    house.pass(10);
    house.expect_end(&mut client);
    house.expect_count(0);
}

#[test]
fn a_leader_that_does_not_end_its_handshake_is_given_up() {
    let (mut house, listener, [node, _]) = led_over_tls(TLS);
    let mut client = house.client();
    let mut leader = Talker::leader(house.link(&listener), &node);
    house.until("a hello", |_| {
        let _ = leader.session.read_tls(&mut leader.stream);
        leader.session.process_new_packets().unwrap();
        leader.session.wants_write()
    });
    let mut hello = Vec::new();
    leader.session.write_tls(&mut hello).unwrap();
    house.send(&mut leader.stream, &hello[..hello.len() / 2]);
    house.run_until_idle();
    assert!(house.forward.held() > 0);
    // Another one leads meanwhile, and is silent.
    let next = house.follow(TLS);
    house.run_until_idle();
    assert_eq!(house.forward.held(), 0);
    let mut link = house.link(&next);
    house.pass(5);
    house.run_until_idle();
    let mut rest = Vec::new();
    link.set_nonblocking(false).unwrap();
    link.read_to_end(&mut rest).unwrap();
    assert!(!rest.is_empty(), "there was a hello");
    house.pass(5);
    house.expect_end(&mut client);
    house.expect_count(0);
}
