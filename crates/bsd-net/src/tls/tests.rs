//! The way in, with a server whose turns the test runs itself.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;
use crate::{Address, Bound, Bounds, Gate, Port, Reactor, Server, reactor};
use bsd::clock::Clock;
use bsd::engine::{Engine, Options};
use bsd::types::{SECOND_NS, Time};

/// A test that waits for longer than this fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server and a client of it, who trusts its certificate.
struct House {
    server: Server,
    plain: SocketAddr,
    tls: SocketAddr,
    client: Arc<ClientConfig>,
}

impl Tls {
    /// Of a certificate that is made for a test, and that one.
    pub(crate) fn made() -> (Tls, CertificateDer<'static>) {
        let dir = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.self_signed(&key).unwrap();
        let write = |name: &str, text: String| {
            let path = dir.path().join(name);
            #[allow(clippy::disallowed_methods)] // no file of the log
            std::fs::write(&path, text).unwrap();
            path
        };
        let files = TlsFiles {
            cert: write("cert.pem", cert.pem()),
            key: write("key.pem", key.serialize_pem()),
            client_ca: None,
        };
        (Tls::read(files).unwrap(), cert.der().clone())
    }
}

impl House {
    fn new() -> House {
        let (tls, cert) = Tls::made();
        let mut roots = RootCertStore::empty();
        roots.add(cert).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (server, plain, tls) = serve(tls);
        House {
            server,
            plain,
            tls,
            client: Arc::new(client),
        }
    }

    fn turn(&mut self) {
        let is_over = self.server.turn(&mut reactor::events()).unwrap();
        assert!(!is_over, "what the test waits for does not come");
    }

    /// A client that has sent its hello.
    fn hello(&self) -> (TcpStream, ClientConnection) {
        let name = "localhost".try_into().unwrap();
        let mut session = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        let mut stream = TcpStream::connect(self.tls).unwrap();
        session.write_tls(&mut stream).unwrap();
        (stream, session)
    }

    /// A client that has come in.
    fn shaken(&mut self) -> (TcpStream, ClientConnection) {
        let (mut stream, mut session) = self.hello();
        while self.begun() == 0 {
            self.turn();
        }
        while session.is_handshaking() {
            session.read_tls(&mut stream).unwrap();
            session.process_new_packets().unwrap();
        }
        session.write_tls(&mut stream).unwrap();
        while self
            .server
            .connections
            .iter()
            .flatten()
            .any(|it| it.entering.is_some())
        {
            self.turn();
        }
        (stream, session)
    }

    /// Send that, with turns of the server in between as far as they are needed.
    fn say(&mut self, stream: &mut TcpStream, session: &mut ClientConnection, bytes: &[u8]) {
        stream.set_nonblocking(true).unwrap();
        session.set_buffer_limit(None);
        session.writer().write_all(bytes).unwrap();
        while session.wants_write() {
            match session.write_tls(stream) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                written => _ = written.unwrap(),
            }
        }
    }

    /// How many handshakes have begun.
    fn begun(&self) -> usize {
        let connections = self.server.connections.iter().flatten();
        let begun = connections.filter(|it| it.entering.is_some() && it.stream.held() > 0);
        begun.count()
    }
}

fn serve(tls: Tls) -> (Server, SocketAddr, SocketAddr) {
    let reactor = Reactor::new().unwrap();
    let listen = |text| {
        let address = Address::parse(text, &Port::Number(0)).unwrap();
        Bound::bind(&address, None).unwrap().listen().unwrap()
    };
    let listeners = vec![listen("127.0.0.1:0"), listen("tls:127.0.0.1:0")];
    let plain = listeners[0].name().parse().unwrap();
    let encrypted = listeners[1].name().strip_prefix("tls:").unwrap();
    let encrypted = encrypted.parse().unwrap();
    let clock = Clock::start();
    let options = Options {
        dir: None,
        waker: Some(reactor.waker()),
        ..Options::default()
    };
    let engine = Engine::open(&options, clock.now()).unwrap();
    let stopper = reactor.stopper();
    std::thread::spawn(move || {
        std::thread::sleep(PATIENCE);
        stopper.stop()
    });
    let (bounds, _) = Bounds::within(None);
    let bounds = Bounds {
        connections_max: 1000,
        ..bounds
    };
    let server = Server::new(reactor, engine, listeners, bounds, clock).unwrap();
    let server = server.guarded_by(Gate::default().with_tls(Some(tls)));
    (server, plain, encrypted)
}

#[test]
fn a_turn_continues_a_few_handshakes_and_who_asks_for_little_does_not_wait() {
    const COUNT: usize = 60;
    const PER_TURN: usize = 8;
    let mut house = House::new();
    let _hellos: Vec<_> = (0..COUNT).map(|_| house.hello()).collect();
    let mut plain = TcpStream::connect(house.plain).unwrap();
    while house.server.connection_count <= COUNT {
        house.turn();
        assert!(house.begun() < COUNT / 2, "they are accepted faster");
    }
    while house.begun() == 0 {
        house.turn();
    }
    plain.write_all(b"stats\r\n").unwrap();
    let mut is_answered = false;
    for _ in 0..3 {
        let before = house.begun();
        house.turn();
        let more = house.begun() - before;
        assert!((1..=PER_TURN).contains(&more), "{more} in a turn");
        plain.set_nonblocking(true).unwrap();
        is_answered |= plain.peek(&mut [0]).is_ok();
    }
    assert!(is_answered, "beside {} handshakes", house.begun());
    while house.begun() < COUNT {
        house.turn();
    }
}

#[test]
fn who_has_not_come_in_after_ten_seconds_is_closed_and_the_others_are_not() {
    let mut house = House::new();
    let (_half, _) = house.hello();
    let _plain = TcpStream::connect(house.plain).unwrap();
    let (mut stream, mut session) = house.hello();
    while house.server.connection_count < 3 || house.begun() < 2 {
        house.turn();
    }
    // The client's last part of the handshake.
    while session.is_handshaking() {
        session.read_tls(&mut stream).unwrap();
        session.process_new_packets().unwrap();
    }
    session.write_tls(&mut stream).unwrap();
    let entering = |house: &House| {
        let connections = house.server.connections.iter().flatten();
        connections.filter(|it| it.entering.is_some()).count()
    };
    while entering(&house) > 1 {
        house.turn();
    }
    let at = house.server.gate.next_deadline().unwrap();
    house.server.core.now.mono = Time(at.0 - 1);
    house.server.turn_away();
    assert_eq!((house.server.connection_count, entering(&house)), (3, 1));
    house.server.core.now.mono = at;
    house.server.turn_away();
    assert_eq!((house.server.connection_count, entering(&house)), (2, 0));
    assert_eq!(house.server.gate.next_deadline(), None);
    house.server.core.now.mono = Time(at.0 + 100 * SECOND_NS);
    house.server.turn_away();
    assert_eq!(house.server.connection_count, 2);
}

#[test]
fn what_lies_below_the_protocol_is_counted_and_let_go() {
    let mut house = House::new();
    let (half, _) = house.hello();
    while house.begun() == 0 {
        house.turn();
    }
    assert!(house.server.core.input_held > 0, "a half handshake");
    drop(half);
    while house.server.connection_count > 0 {
        house.turn();
    }
    assert_eq!(house.server.core.input_held, 0);
    let (mut stream, mut session) = house.shaken();
    assert_eq!(house.server.core.input_held, 0);
    // A record of which the last byte is missing.
    session.writer().write_all(&[b'x'; 10_000]).unwrap();
    let mut record = Vec::new();
    session.write_tls(&mut record).unwrap();
    stream.write_all(&record[..record.len() - 1]).unwrap();
    while house.server.core.input_held < 10_000 {
        house.turn();
    }
    drop(stream);
    while house.server.connection_count > 0 {
        house.turn();
    }
    assert_eq!(house.server.core.input_held, 0);
}

/// Replies in the session are in the buffer too: a client that does not read is known.
#[test]
fn replies_that_lie_in_a_session_count_as_unread_until_the_socket_has_them() {
    let mut house = House::new();
    let (mut stream, mut session) = house.shaken();
    let put = [b"put 0 0 1 60000\r\n", &[b'x'; 60_000][..], b"\r\n"].concat();
    house.say(&mut stream, &mut session, &put);
    let peeks = b"peek 1\r\n".repeat(100);
    let sealed = |house: &House| {
        let connections = house.server.connections.iter().flatten();
        connections.map(|it| it.stream.sealed()).sum::<usize>()
    };
    while sealed(&house) == 0 {
        house.say(&mut stream, &mut session, &peeks);
        house.turn();
    }
    let outputs = &house.server.core.outputs;
    assert!(outputs.longest_stalled().is_some());
    assert!(outputs.held() > 60_000 + sealed(&house));
    drop(stream);
    while house.server.connection_count > 0 {
        house.turn();
    }
    assert_eq!(house.server.core.outputs.held(), 0);
}

/// A read may take what was decrypted before, while the event of what has arrived since is over.
#[test]
fn what_arrives_while_decrypted_bytes_are_left_is_read_without_another_event() {
    const JOBS: u64 = 60;
    let mut house = House::new();
    let (mut stream, mut session) = house.shaken();
    let put = [b"put 0 0 1 1000\r\n", &[b'x'; 1000][..], b"\r\n"].concat();
    house.say(
        &mut stream,
        &mut session,
        &put.repeat(JOBS.try_into().unwrap()),
    );
    let jobs = |house: &House| house.server.core.engine.queue().stats().total_jobs;
    while jobs(&house) == 0 {
        house.turn();
    }
    assert!(jobs(&house) < JOBS, "a share of a turn is less than that");
    house.say(&mut stream, &mut session, &put);
    while jobs(&house) <= JOBS {
        house.turn();
    }
}
