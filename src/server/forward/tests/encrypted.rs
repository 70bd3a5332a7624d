//! Clients that speak TLS with this node: their sessions end here.

use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;
use crate::server::tls::Tls;

const TLS: Layers = Layers {
    proxy: false,
    tls: true,
};

/// A client: what has come for it, and whether it has been told that nothing follows.
struct Client {
    stream: TcpStream,
    session: ClientConnection,
    got: Vec<u8>,
    is_told: bool,
}

impl Client {
    fn new(house: &mut House) -> Client {
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
        let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
        session.set_buffer_limit(None);
        Client {
            stream: house.connect(TLS).unwrap(),
            session,
            got: Vec::new(),
            is_told: false,
        }
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
            let state = self.session.process_new_packets().unwrap();
            self.is_told |= state.peer_has_closed();
            let _ = self.session.reader().read_to_end(&mut self.got);
        }
    }
}

#[test]
fn what_came_encrypted_passes_plain_and_the_other_way_round() {
    let (mut house, leader) = House::led();
    let mut client = Client::new(&mut house);
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
    house.settle();
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
    let mut client = Client::new(&mut house);
    let mut hello = Vec::new();
    client.session.write_tls(&mut hello).unwrap();
    house.send(&mut client.stream, &hello[..hello.len() / 2]);
    house.settle();
    assert!(house.forward.held() > 0);
    house.pass(10);
    house.expect_count(0);
}
