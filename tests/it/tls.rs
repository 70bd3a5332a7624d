//! The protocol over TLS: what clients do with it, certificates, and reading them again.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

use crate::auth::{new_token, write_private};
use crate::clients::{python_with, script};
use crate::harness::{Exit, Launch, Server, program, skip, wait_until, wait_until_it_is};
use crate::http::Site;
use crate::wire::Wire;
use bsd::check::volume::volume;

const USAGE: Option<i32> = Some(5);

/// Someone who signs certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Identity {
    cert: String,
    key: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub(crate) fn issue(&self, name: &str) -> Identity {
        self.issue_until(name, 4000)
    }

    pub(crate) fn issue_until(&self, name: &str, year: i32) -> Identity {
        self.issue_for(name, &["localhost".to_owned()], year)
    }

    fn issue_for(&self, name: &str, hosts: &[String], year: i32) -> Identity {
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap();
        Identity {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Clients that trust it, in these versions, as `identity`.
    pub(crate) fn client(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        identity: Option<&Identity>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { cert, key }) => builder
                .with_client_auth_cert(
                    vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
                    PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
                )
                .unwrap(),
        })
    }
}

impl Identity {
    /// A server that shows it.
    pub(crate) fn server(&self) -> Arc<rustls::ServerConfig> {
        let cert = CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert], key);
        Arc::new(config.unwrap())
    }

    /// Make it that of the server, in a house.
    pub(crate) fn be_the_servers(&self, house: &House) {
        house.write("cert.pem", &self.cert);
        house.write("key.pem", &self.key);
    }

    /// The files of the certificate and of the key, in a house.
    pub(crate) fn write(&self, house: &House) -> (PathBuf, PathBuf) {
        let cert = house.write("client.pem", &self.cert);
        (cert, house.write("client-key.pem", &self.key))
    }
}

/// A directory with the files of a server, and who signed them.
pub(crate) struct House {
    pub(crate) authority: Authority,
    dir: tempfile::TempDir,
}

impl House {
    pub(crate) fn new() -> House {
        let house = House {
            authority: Authority::new(),
            dir: tempfile::tempdir().unwrap(),
        };
        house.write("ca.pem", &house.authority.0.pem());
        house.certify("the server");
        house
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        write_private(&path, text);
        path
    }

    /// Give the server a new certificate with this name.
    pub(crate) fn certify(&self, name: &str) {
        self.authority.issue(name).be_the_servers(self);
    }

    /// The same, for these names and addresses.
    pub(crate) fn certify_for(&self, name: &str, hosts: &[String]) {
        let identity = self.authority.issue_for(name, hosts, 4000);
        identity.be_the_servers(self);
    }

    /// A server that also speaks TLS, on a port that the kernel chooses.
    pub(crate) fn launch(&self) -> Launch {
        [
            ("-l", Path::new("tls:127.0.0.1:0")),
            ("--tls-cert", &self.path("cert.pem")),
            ("--tls-key", &self.path("key.pem")),
        ]
        .into_iter()
        .fold(Launch::bsd(), |launch, (flag, value)| {
            launch.arg(flag).arg(value)
        })
    }

    /// Who trusts this house and speaks either version.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        self.authority.client(&[&TLS13, &TLS12], None)
    }

    pub(crate) fn connect(&self, server: &Server) -> Wire {
        Wire::connect_tls(address(server), self.client()).unwrap()
    }
}

/// Where a server speaks TLS.
pub(crate) fn address(server: &Server) -> SocketAddr {
    let mut stderr = String::new();
    // Lines are written by a thread of their own.
    wait_until("it says where it speaks TLS", || {
        stderr = server.stderr();
        stderr.contains("INFO ready: ")
    });
    let (_, rest) = stderr.split_once("listening on tls:").unwrap();
    rest.lines().next().unwrap().parse().unwrap()
}

fn stats_of(wire: &mut Wire) -> String {
    wire.ask("stats-tube default")
}

#[test]
fn both_versions_carry_the_protocol_with_bodies_large_and_small() {
    let house = House::new();
    let dir = tempfile::tempdir().unwrap();
    let server = house.launch().dir(dir.path()).start();
    for version in [&TLS12, &TLS13] {
        let config = house.authority.client(&[version], None);
        let mut wire = Wire::connect_tls(address(&server), config).unwrap();
        for size in [0, 1, 100, 16_383, 16_384, 16_385, 40_000, 65_535] {
            let body: Vec<u8> = (0..size).map(|at: u32| (at * 7) as u8).collect();
            let id = wire.put(&body);
            let found = [format!("FOUND {id} {size}\r\n").as_bytes(), &body, b"\r\n"].concat();
            wire.send(format!("peek {id}\r\n"));
            assert_eq!(wire.reply(), found, "{size} bytes, {version:?}");
            assert_eq!(wire.reserve(), id);
            assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
        }
        let many = "put 0 0 60 1\r\nx\r\n".repeat(1000);
        wire.send(&many);
        for _ in 0..1000 {
            assert!(wire.text().starts_with("INSERTED "));
        }
        for _ in 0..1000 {
            let id = wire.reserve();
            wire.send(format!("delete {id}\r\n"));
            assert_eq!(wire.text(), "DELETED");
        }
        wire.send("quit\r\n");
        assert_eq!(wire.rest(), b"", "the end is said, not only there");
    }
}

#[test]
fn what_was_acknowledged_over_tls_is_there_after_kill_9() {
    let house = House::new();
    let dir = tempfile::tempdir().unwrap();
    let server = house.launch().dir(dir.path()).start();
    let mut wire = house.connect(&server);
    let ids: Vec<u64> = (0..100).map(|_| wire.put(b"kept")).collect();
    server.kill();
    let server = house.launch().dir(dir.path()).start();
    let mut wire = house.connect(&server);
    for id in ids {
        assert_eq!(
            wire.ask(&format!("peek {id}")),
            format!("FOUND {id} 4\r\nkept")
        );
    }
}

/// A body that leaves in pieces, each of them in several records, to a client that reads late: more
/// than the sockets take.
#[test]
fn g46_a_large_job_comes_whole_over_tls_with_a_log_and_without() {
    const SIZE: usize = 20_000_001;
    let house = House::new();
    let dir = tempfile::tempdir().unwrap();
    let launch = house.launch().arg("-z").arg("20m");
    let body: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    for launch in [launch.clone().dir(dir.path()), launch.memory()] {
        let server = launch.start();
        let mut late = house.connect(&server);
        let id = late.put(&body);
        late.send(format!("reserve-job {id}\r\n"));
        let mut other = house.connect(&server);
        wait_until("it is being sent", || {
            other.stat(&format!("stats-job {id}"), "state") == "reserved"
        });
        for _ in 0..100 {
            let id = other.put(b"y");
            assert_eq!(other.ask(&format!("delete {id}")), "DELETED");
        }
        let line = format!("RESERVED {id} {SIZE}\r\n").into_bytes();
        assert!(late.reply() == [&line, &body[..], b"\r\n"].concat());
        assert_eq!(late.ask(&format!("delete {id}")), "DELETED");
    }
}

/// Replies of 20 MB: more than the sockets take. Every byte must come, in order, although nearly
/// every write is cut short.
#[test]
fn replies_that_are_read_late_come_whole_and_those_of_others_do_not_wait() {
    let house = House::new();
    let server = house.launch().memory().start();
    let mut late = house.connect(&server);
    let body: Vec<u8> = (0..60_000_u32).map(|at| (at % 251) as u8).collect();
    let id = late.put(&body);
    const COUNT: usize = 350;
    for _ in 0..COUNT {
        late.send(format!("peek {id}\r\n"));
    }
    let mut other = house.connect(&server);
    for _ in 0..100 {
        let id = other.put(b"y");
        assert_eq!(other.ask(&format!("delete {id}")), "DELETED");
    }
    let found = [format!("FOUND {id} 60000\r\n").as_bytes(), &body, b"\r\n"].concat();
    for nth in 0..COUNT {
        assert!(late.reply() == found, "reply {nth} is another");
    }
    late.send("quit\r\n");
    assert_eq!(late.rest(), b"");
}

#[test]
fn an_idle_connection_takes_24_kb_at_most() {
    let count = volume("BSD_IDLE_CONNECTIONS", 1000);
    crate::faults::raise_descriptor_limit();
    let house = House::new();
    let server = house.launch().memory().start();
    // What is needed once is there before: the cache of sessions among it.
    let first: Vec<Wire> = (0..300).map(|_| house.connect(&server)).collect();
    let before = server.resident_memory();
    let config = house.client();
    let connect = || Wire::connect_tls(address(&server), Arc::clone(&config)).unwrap();
    let mut idle: Vec<Wire> = (0..count).map(|_| connect()).collect();
    for wire in &mut idle {
        assert!(wire.ask("use t").starts_with("USING"));
    }
    let each = server.resident_memory().saturating_sub(before) / count;
    println!("{each} bytes for each idle connection over TLS");
    assert!(each <= 24 << 10, "{each} bytes");
    drop(first);
}

#[test]
fn clients_show_certificates_where_that_is_asked_and_their_names_are_told() {
    let house = House::new();
    let clients = Authority::new();
    let ca = house.write("clients.pem", &clients.0.pem());
    let launch = house.launch().memory().arg("--tls-client-ca").arg(ca);
    let site = Site::start(launch.arg("-VV").arg("--http").arg("127.0.0.1:0"));
    let at = address(&site.server);
    let strangers = Authority::new();
    let try_as = |identity: Option<&Identity>, version| {
        let config = house.authority.client(&[version], identity);
        // In TLS 1.3 a client is done before the server has looked at its certificate.
        Wire::connect_tls(at, config).and_then(|mut wire| {
            wire.try_send(b"stats\r\n")?;
            wire.try_reply().map(|_| wire)
        })
    };
    for version in [&TLS12, &TLS13] {
        assert!(try_as(None, version).is_err());
        assert!(try_as(Some(&strangers.issue("mailer")), version).is_err());
        assert!(try_as(Some(&clients.issue_until("mailer", 2020)), version).is_err());
        let _mailer = try_as(Some(&clients.issue("mailer\n<b>")), version).unwrap();
        // The one of the other version may be listed until its end has been read.
        wait_until_it_is(&vec!["mailer\u{fffd}<b>".to_owned()], "the names", || {
            let listed = site.get("/api/v1/clients").json();
            let names = listed["clients"].as_array().unwrap().iter();
            let names = names.filter_map(|client| client["name"].as_str());
            names.map(str::to_owned).collect()
        });
        let page = site.get("/clients").body;
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("(mailer\u{fffd}&lt;b&gt;)"), "{page}");
    }
    for said in ["TLS 1.2, mailer", "TLS 1.3, mailer"] {
        wait_until(said, || site.server.stderr().contains(said));
    }
    // Plain listeners ask for nothing.
    assert_eq!(stats_of(&mut site.server.connect()).get(..2), Some("OK"));
}

#[test]
fn a_token_is_asked_for_behind_a_certificate_and_neither_stands_for_the_other() {
    let house = House::new();
    let clients = Authority::new();
    let ca = house.write("clients.pem", &clients.0.pem());
    let (token, line) = new_token("put");
    let (nameless, nameless_line) = new_token("put");
    let tokens = house.path("tokens");
    write_private(&tokens, &format!("{line} Ann\n{nameless_line}\n"));
    let launch = house.launch().memory().arg("--tls-client-ca").arg(ca);
    let launch = launch.arg("--auth-file").arg(tokens);
    let server = launch.arg("--http").arg("127.0.0.1:0").spawn();
    // It says this last.
    wait_until("it serves", || server.stderr().contains("INFO ready: "));
    let site = Site::of(server);
    let connect = |identity: Option<&Identity>| {
        let config = house.authority.client(&[&TLS13], identity);
        Wire::connect_tls(address(&site.server), config).unwrap()
    };
    let mailer = clients.issue("mailer");
    // A token without a certificate, and a certificate without a token.
    let mut wire = connect(None);
    let answer = wire.try_send(format!("auth {token}\r\n").as_bytes());
    assert!(answer.and_then(|()| wire.try_reply()).is_err());
    let mut wire = connect(Some(&mailer));
    assert_eq!(wire.try_put(b"x"), "NOT_AUTHORIZED");
    // Who has both goes by the name of the token, or else by that of the certificate.
    for (token, expected) in [(&token, "Ann"), (&nameless, "mailer")] {
        let mut wire = connect(Some(&mailer));
        assert_eq!(wire.ask(&format!("auth {token}")), "AUTHENTICATED");
        assert!(wire.try_put(b"x").starts_with("INSERTED"));
        assert_eq!(wire.ask("reserve-with-timeout 0"), "NOT_AUTHORIZED");
        let listed = site.get("/api/v1/clients").json();
        let named = listed["clients"].as_array().unwrap().iter();
        let named: Vec<_> = named.map(|client| &client["name"]).collect();
        assert!(named.iter().any(|name| *name == expected), "{listed}");
    }
}

fn exit_with(house: &House, change: impl FnOnce(Launch) -> Launch) -> Exit {
    change(house.launch().memory()).run_to_exit()
}

/// Certificate that `openssl x509 -req` made of a request without extensions, and its key.
const OLD_CERT: &str = "\
-----BEGIN CERTIFICATE-----
MIIBITCByAIUcgrX+okanLaTvhINLgxvFJAI7iswCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJYXV0aG9yaXR5MCAXDTI2MTEyNjE4MjIxNloYDzIxMjYxMTAyMTgyMjE2
WjARMQ8wDQYDVQQDDAZtYWlsZXIwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAARI
Q2zgXOExZJ19Nw7sIx4NLR4KDeFDpWuF6+mwEkC+iDAEzw1AfJ0RmiY//Jl/MEek
Tu3ya2AgrxIo7Zxe19rDMAoGCCqGSM49BAMCA0gAMEUCIQCZM0L5h+Bri8wneKzB
VxUG2qHqmP4ShxV4JBKJHtRy4QIgMiMaQHNEMUY8aVfZUA2//0eqeELUcrXkRjhs
SMfIA4o=
-----END CERTIFICATE-----
";
const OLD_KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgrT+NYlakbSUhDY0C
nOGic/ApxiMnaHNMNcHLlonIL2KhRANCAARIQ2zgXOExZJ19Nw7sIx4NLR4KDeFD
pWuF6+mwEkC+iDAEzw1AfJ0RmiY//Jl/MEekTu3ya2AgrxIo7Zxe19rD
-----END PRIVATE KEY-----
";

#[test]
fn g33_a_certificate_of_version_1_is_refused_in_words_that_say_how_to_make_another() {
    const CAUSE: &str = "the certificate is of X.509 version 1, and only version 3 is taken";
    const COMMAND: &str = "`openssl x509 -req` does with `-extfile FILE`";
    let house = House::new();
    let files = [
        house.write("old.pem", OLD_CERT),
        house.write("old.key", OLD_KEY),
    ];
    // The server's own.
    let exit = exit_with(&house, |launch| {
        launch
            .arg("--tls-cert")
            .arg(&files[0])
            .arg("--tls-key")
            .arg(&files[1])
    });
    assert_eq!(exit.code, USAGE, "{exit:?}");
    assert!(
        exit.stderr.contains(CAUSE) && exit.stderr.contains(COMMAND),
        "{exit:?}"
    );
    // A client's. rustls shows such a certificate only if it is not asked to check it.
    let launch = house
        .launch()
        .memory()
        .arg("--tls-client-ca")
        .arg(house.path("ca.pem"));
    let server = launch.start();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = PrivateKeyDer::from_pem_slice(OLD_KEY.as_bytes()).unwrap();
    let key = provider.key_provider.load_private_key(key).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(OLD_CERT.as_bytes()).unwrap()];
    let shown = CertifiedKey::new(chain, key);
    let mut roots = RootCertStore::empty();
    roots.add(house.authority.0.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
    let answer = Wire::connect_tls(address(&server), Arc::new(config)).and_then(|mut wire| {
        wire.try_send(b"stats\r\n")?;
        wire.try_reply()
    });
    assert!(answer.is_err(), "{answer:?}");
    wait_until("it says why", || {
        server.stderr().contains("clients did not come in")
    });
    let said = server.stderr();
    assert!(said.contains(CAUSE) && said.contains(COMMAND), "{said}");
}

/// The end of the certificate that this server shows, if the page has one.
fn expiry(site: &Site) -> Option<f64> {
    let page = String::from_utf8(site.get("/metrics").body).unwrap();
    let name = "bsd_tls_certificate_expiry_seconds{shown_to=\"clients\"} ";
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    value.map(|value| value.parse().unwrap())
}

#[test]
fn g32_the_end_of_a_certificate_is_a_metric_and_one_that_is_over_is_named() {
    let house = House::new();
    let site = Site::start(house.launch().memory());
    // The first second of the year 4000.
    assert_eq!(expiry(&site), Some(64_060_588_800.0));
    let said = site.server.stderr();
    assert!(crate::harness::complaints(&said).is_empty(), "{said}");
    let old = house.authority.issue_until("the server", 2020);
    old.be_the_servers(&house);
    site.server.signal(Signal::HUP);
    wait_until("it has read the new ones", || {
        expiry(&site) == Some(1_577_836_800.0)
    });
    let words = format!(
        "WARN the certificate in {} expired on 2020-01-01: clients that check it cannot connect",
        house.path("cert.pem").display()
    );
    wait_until("it says that the certificate is over", || {
        site.server.stderr().contains(&words)
    });
    // The same at a start; without TLS there is no such metric.
    let site = Site::start(house.launch().memory());
    assert_eq!(expiry(&site), Some(1_577_836_800.0));
    assert!(site.server.stderr().contains(&words));
    assert_eq!(expiry(&Site::start(Launch::bsd().memory())), None);
}

#[test]
fn g32_a_key_that_everyone_on_the_machine_can_read_is_named() {
    let house = House::new();
    let key = house.path("key.pem");
    for (mode, is_open) in [(0o644, true), (0o602, true), (0o640, false), (0o600, false)] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        let server = house.launch().memory().start();
        let words = format!("WARN the key {} has the rights {mode:04o}", key.display());
        assert_eq!(server.stderr().contains(&words), is_open, "{mode:o}");
    }
}

#[test]
fn files_that_cannot_be_used_stop_the_start_and_are_named() {
    let house = House::new();
    let garbage = house.write("garbage.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let empty = house.write("empty.pem", "nothing here\n");
    let other = house.write("other.pem", &house.authority.issue("other").key);
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let broken = house.write("broken.pem", broken);
    for flag in ["--tls-cert", "--tls-key", "--tls-client-ca"] {
        let missing = house.path("missing.pem");
        for file in [&missing, &garbage, &empty, &broken] {
            let exit = exit_with(&house, |launch| launch.arg(flag).arg(file));
            assert_eq!(exit.code, USAGE, "{flag} {file:?}: {exit:?}");
            let name = file.file_name().unwrap().to_str().unwrap();
            assert!(exit.stderr.contains(name), "{flag}: {exit:?}");
        }
    }
    let exit = exit_with(&house, |launch| launch.arg("--tls-key").arg(&other));
    assert_eq!(exit.code, USAGE, "{exit:?}");
    assert!(exit.stderr.contains("other.pem"), "{exit:?}");
}

#[test]
fn flags_that_do_not_go_together_are_wrong_usage() {
    let house = House::new();
    let (cert, key) = (house.path("cert.pem"), house.path("key.pem"));
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let wrong: [&[&str]; 5] = [
        &["-l", "tls:127.0.0.1"],
        &["-l", "tls:127.0.0.1", "--tls-cert", cert],
        &["--tls-cert", cert, "--tls-key", key],
        &["--tls-client-ca", cert],
        &[
            "-l",
            "tls:unix:/tmp/x",
            "--tls-cert",
            cert,
            "--tls-key",
            key,
        ],
    ];
    for words in wrong {
        let launch = words.iter().fold(Launch::bsd().memory(), Launch::arg);
        let exit = launch.run_to_exit();
        assert_eq!(exit.code, USAGE, "{words:?}: {exit:?}");
    }
}

#[test]
fn sighup_reads_certificates_again_and_keeps_those_that_were_good() {
    let house = House::new();
    let server = house.launch().memory().start();
    let told = |what: &str, times| {
        server.signal(Signal::HUP);
        wait_until(what, || server.stderr().matches(what).count() == times);
    };
    let served_by = || {
        let mut wire = house.connect(&server);
        let chain = wire.tls().conn.peer_certificates().unwrap().to_vec();
        assert_eq!(stats_of(&mut wire).get(..2), Some("OK"));
        chain
    };
    let mut old = house.connect(&server);
    let first = served_by();
    house.certify("the server, renewed");
    assert_eq!(served_by(), first, "before SIGHUP");
    told("new connections get the certificates as they are now", 1);
    let second = served_by();
    assert_ne!(second, first);
    house.write("key.pem", "no key");
    told("the certificates stay as they were", 1);
    assert!(server.stderr().contains("key.pem"));
    assert_eq!(served_by(), second);
    house.certify("the server, renewed again");
    told("new connections get the certificates as they are now", 2);
    assert_ne!(served_by(), second);
    assert_eq!(
        stats_of(&mut old).get(..2),
        Some("OK"),
        "who is there stays"
    );
}

/// A client who was let in before does not come in again with what it kept of that.
#[test]
fn an_authority_that_is_no_longer_trusted_lets_no_one_in_after_sighup() {
    let house = House::new();
    let clients = Authority::new();
    let ca = house.write("clients.pem", &clients.0.pem());
    let server = house
        .launch()
        .memory()
        .arg("--tls-client-ca")
        .arg(&ca)
        .start();
    let config = house
        .authority
        .client(&[&TLS13, &TLS12], Some(&clients.issue("mailer")));
    let come = || {
        let mut wire = Wire::connect_tls(address(&server), Arc::clone(&config))?;
        wire.try_send(b"stats-tube default\r\n")?;
        wire.try_reply()
    };
    for _ in 0..3 {
        assert!(come().unwrap().starts_with(b"OK"), "a session is kept");
    }
    house.write("clients.pem", &Authority::new().0.pem());
    server.signal(Signal::HUP);
    wait_until("it has read", || {
        server.stderr().contains("as they are now")
    });
    assert!(come().is_err());
}

#[test]
fn pythons_ssl_and_greenstalk_work_over_tls() {
    let Some(python) = python_with("greenstalk") else {
        return;
    };
    let house = House::new();
    let server = house.launch().memory().start();
    let output = Command::new(python)
        .arg("-B")
        .arg(script("tls_client.py"))
        .arg(address(&server).port().to_string())
        .arg(house.path("ca.pem"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1000 jobs\n");
}

#[test]
fn nodes_tls_works() {
    let Some(node) = program("node") else {
        return skip("there is no node");
    };
    let house = House::new();
    let server = house.launch().memory().start();
    let output = Command::new(node)
        .arg(script("tls_client.js"))
        .arg(address(&server).port().to_string())
        .arg(house.path("ca.pem"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1000 jobs\n");
}
