//! HTTP over TLS: pages, certificates of clients, reading them again, and handshakes that go wrong.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;

use rustix::process::Signal;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::harness::{Launch, PATIENCE, Server, bsd_ctl, wait_until};
use crate::http::Answer;
use crate::tls::{Authority, House, Identity};

/// As many connections as HTTP has.
const CONNECTIONS: usize = 64;

/// A server whose HTTP speaks TLS, and where that is.
fn start(house: &House, launch: Launch) -> (Server, SocketAddr) {
    seen(encrypted(house, launch).start())
}

/// The same, which answers no client as itself while others lead.
pub(crate) fn spawn(house: &House, launch: Launch) -> (Server, SocketAddr) {
    seen(encrypted(house, launch).spawn())
}

fn encrypted(house: &House, launch: Launch) -> Launch {
    launch
        .arg("--http")
        .arg("tls:127.0.0.1:0")
        .arg("--tls-cert")
        .arg(house.path("cert.pem"))
        .arg("--tls-key")
        .arg(house.path("key.pem"))
}

/// Where its HTTP is, as it says.
fn seen(server: Server) -> (Server, SocketAddr) {
    let said = || {
        let stderr = server.stderr();
        let (_, rest) = stderr.split_once("HTTP on https://")?;
        rest.split_once("/\n")?.0.parse().ok()
    };
    wait_until("HTTP is served", || said().is_some());
    let address = said().unwrap();
    (server, address)
}

pub(crate) type Stream = StreamOwned<ClientConnection, TcpStream>;

pub(crate) fn connect(at: SocketAddr, config: Arc<ClientConfig>) -> Stream {
    let socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), socket)
}

/// A request with this beginning and fields, and what it is answered.
pub(crate) fn ask(stream: &mut Stream, line: &str, fields: &str, body: &str) -> io::Result<Answer> {
    let size = body.len();
    let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}");
    let request = format!("{head}Content-Length: {size}\r\n\r\n{body}");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    // The end is said: one that is not said is an error.
    stream.read_to_end(&mut answer)?;
    Ok(Answer::parse(&answer))
}

fn get(house: &House, at: SocketAddr, path: &str) -> Answer {
    let mut stream = connect(at, house.client());
    ask(&mut stream, &format!("GET {path}"), "", "").unwrap()
}

#[test]
fn pages_and_metrics_come_over_both_versions() {
    let house = House::new();
    let (_server, at) = start(&house, Launch::bsd().memory());
    for version in [&TLS12, &TLS13] {
        for path in ["/", "/metrics", "/api/v1/server", "/healthz"] {
            let config = house.authority.client(&[version], None);
            let answer = ask(&mut connect(at, config), &format!("GET {path}"), "", "");
            assert_eq!(answer.unwrap().status, 200, "{path}");
        }
    }
}

#[test]
fn a_browser_logs_in_from_pages_over_tls_and_sends_its_cookie_over_tls_alone() {
    let house = House::new();
    let tokens = crate::http::tokens();
    let launch = Launch::bsd().memory().arg("--http-tokens");
    let (_server, at) = start(&house, launch.arg(tokens.path()));
    let login = String::from_utf8(get(&house, at, "/login").body).unwrap();
    let (_, rest) = login.split_once("name=\"form\" value=\"").unwrap();
    let form = format!(
        "form={}&to=%2F&token=reader",
        rest.split_once('"').unwrap().0
    );
    let post = |origin: &str| {
        let fields =
            format!("Content-Type: application/x-www-form-urlencoded\r\nOrigin: {origin}\r\n");
        let mut stream = connect(at, house.client());
        ask(&mut stream, "POST /login", &fields, &form).unwrap()
    };
    let done = post("https://localhost");
    let cookie = done.field("set-cookie").unwrap();
    assert!(cookie.ends_with("; HttpOnly; Secure"), "{cookie}");
    assert_eq!(post("https://elsewhere").status, 403);
}

#[test]
fn clients_show_certificates_where_that_is_asked_and_the_audit_names_them() {
    let house = House::new();
    let clients = Authority::new();
    let ca = house.write("clients.pem", &clients.pem());
    let launch = Launch::bsd().memory().arg("--tls-client-ca").arg(&ca);
    let (server, at) = start(&house, launch);
    let drain = |identity: Option<&Identity>| {
        let config = house.authority.client(&[&TLS13], identity);
        let mut stream = connect(at, config);
        let fields = "Content-Type: application/json\r\n";
        ask(&mut stream, "POST /api/v1/drain", fields, "{}")
    };
    assert!(drain(None).is_err());
    let stranger = Authority::new().issue("stranger");
    assert!(drain(Some(&stranger)).is_err());
    let ann = clients.issue("Ann");
    assert_eq!(drain(Some(&ann)).unwrap().status, 200);
    let audited = |said: &str| {
        said.lines()
            .any(|line| line.contains("(Ann), anyone here: POST"))
    };
    wait_until("the audit names her", || audited(&server.stderr()));
    assert!(!server.stderr().contains("stranger"));

    let (cert, key) = ann.write(&house);
    let ctl = |more: &[&std::ffi::OsStr]| {
        let mut command = Command::new(bsd_ctl());
        command.env("BSD_CTL_HTTP", format!("https://localhost:{}", at.port()));
        command.arg("undrain").args(more).output().unwrap()
    };
    let ca = house.path("ca.pem");
    let flags = ["--tls-ca", "--tls-cert", "--tls-key"].map(std::ffi::OsStr::new);
    let files = [ca.as_os_str(), cert.as_os_str(), key.as_os_str()];
    let all: Vec<_> = flags
        .iter()
        .zip(files)
        .flat_map(|(flag, file)| [*flag, file])
        .collect();
    let done = ctl(&all);
    assert!(done.status.success(), "{done:?}");
    // Without a certificate, and without knowing who has signed the server's.
    for (part, why) in [
        (&all[..2], "CertificateRequired"),
        (&all[2..], "--tls-ca who has signed"),
    ] {
        let refused = ctl(part);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn sighup_changes_the_certificate_of_pages_and_protocol_together() {
    let house = House::new();
    let launch = Launch::bsd().memory().arg("-l").arg("tls:127.0.0.1:0");
    let (server, at) = start(&house, launch);
    let shown = |at| {
        let mut stream = connect(at, house.client());
        let _ = stream.write_all(b"quit\r\n");
        let shown = stream.conn.peer_certificates();
        shown.map(|shown| shown[0].to_vec())
    };
    let protocol = crate::tls::address(&server);
    let before = shown(at);
    assert!(before.is_some());
    assert_eq!(shown(protocol), before);
    house.certify("the server, later");
    server.signal(Signal::HUP);
    wait_until("the certificate is another", || shown(at) != before);
    assert_eq!(shown(protocol), shown(at));
    assert_eq!(get(&house, at, "/healthz").status, 200);
}

#[test]
fn handshakes_that_stop_or_are_none_hold_no_one_up() {
    let house = House::new();
    let (server, at) = start(&house, Launch::bsd().memory());
    // More than there is room for, none of which says a word.
    let silent: Vec<_> = (0..2 * CONNECTIONS)
        .map(|_| TcpStream::connect(at).unwrap())
        .collect();
    assert_eq!(get(&house, at, "/healthz").status, 200);
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        &[0x16, 3, 1, 0xff, 0xff],
    ] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(garbage).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // At most an alert comes back, and then the end.
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 20, "{said:?}");
    }
    assert_eq!(get(&house, at, "/healthz").status, 200);
    drop(silent);
    assert_eq!(server.stop().code, Some(0));
}
