//! Who is believed, and what is seen on the way.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;
use bsd_cluster::wire::{Begin, End, Intake, Taken};

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

impl PeerTls {
    /// Of two nodes at 127.0.0.1 that know each other, and of one of another cluster.
    pub(crate) fn made() -> [PeerTls; 3] {
        let (ours, other) = (Authority::new(), Authority::new());
        [&ours, &ours, &other].map(|authority| authority.node("127.0.0.1", authority))
    }
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
        .set_members(1, &members(&[(2, "192.0.2.1:1".into())]), site.now);
    site.turn();
    assert_eq!(site.failures(), 1, "it does not even call");
    assert!(has_to_be_encrypted("[::ffff:10.0.0.1]:1".parse().unwrap()));
    assert!(!has_to_be_encrypted("[::1]:1".parse().unwrap()));
}

/// Two nodes of which the first calls the second, which is not to be heard.
fn is_never_heard(mut one: Site, mut two: Site) {
    one.peers
        .set_members(1, &members(&[(2, two.address())]), one.now);
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
    let (hello, mut link) = called(&mut site);
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
    let Frame::Begin(begin) = link.receive().unwrap() else {
        panic!("no begin")
    };
    let mut intake = Intake::new(begin);
    let mut files = [Vec::new(), Vec::new()];
    loop {
        match link.receive().unwrap() {
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
    link.send(&Frame::Taken(Taken::Installed)).unwrap();
    assert_eq!(sending.join().unwrap(), Frame::Taken(Taken::Installed));
}
