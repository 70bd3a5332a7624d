//! The protocol over TLS, as clients speak it that mean harm or are broken.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use bsd::random::Random;
use rustls::ClientConnection;

use crate::harness::{Server, program, skip, wait_until};
use crate::tls::{House, address};

fn start(house: &House) -> Server {
    house.launch().memory().arg("-VV").start()
}

fn tcp(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(address(server)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    stream
}

/// All that comes until the server closes the connection, which may be with a reset.
fn rest(mut stream: &TcpStream) -> Vec<u8> {
    let mut came = Vec::new();
    match stream.read_to_end(&mut came) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("not closed"),
        _ => came,
    }
}

/// Others are served, plain and encrypted, and no one's job is there but theirs.
fn assert_serves(house: &House, server: &Server) {
    let mut wire = house.connect(server);
    let id = wire.put(b"x");
    assert_eq!(server.connect().ask(&format!("delete {id}")), "DELETED");
    assert_eq!(wire.stat("stats", "current-jobs-ready"), "0");
}

/// A client after its handshake, whose records the test sends itself.
fn shaken(house: &House, server: &Server) -> (TcpStream, ClientConnection) {
    let name = "localhost".try_into().unwrap();
    let mut session = ClientConnection::new(house.client(), name).unwrap();
    let mut stream = tcp(server);
    while session.is_handshaking() {
        session.complete_io(&mut stream).unwrap();
    }
    (stream, session)
}

/// Encrypted bytes for these.
fn sealed(session: &mut ClientConnection, bytes: &[u8]) -> Vec<u8> {
    session.writer().write_all(bytes).unwrap();
    let mut sealed = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut sealed).unwrap();
    }
    sealed
}

fn await_answer(stream: &mut TcpStream, session: &mut ClientConnection) {
    loop {
        session.read_tls(stream).unwrap();
        let came = session.process_new_packets().unwrap();
        if came.plaintext_bytes_to_read() > 0 {
            return;
        }
    }
}

#[test]
fn plain_clients_and_garbage_are_closed_with_one_line_for_many() {
    let house = House::new();
    let server = start(&house);
    let alone = |bytes: &[u8]| {
        let mut stream = tcp(&server);
        // It may be closed before all is written.
        let _ = stream.write_all(bytes);
        rest(&stream)
    };
    for _ in 0..20 {
        assert_eq!(alone(b"stats\r\n"), b"", "nothing is said in the clear");
    }
    wait_until("it is told", || server.stderr().contains(" WARN "));
    let said = server.stderr();
    let warnings = said.lines().filter(|line| line.contains(" WARN "));
    let warnings: Vec<_> = warnings.collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("it does not speak TLS"),
        "{warnings:?}"
    );
    alone(b"GET / HTTP/1.1\r\n\r\n");
    // This one waits until its time is up.
    alone(&[22]);
    for noise in 0..50 {
        let mut bytes = Random::new(noise).bytes(2000);
        bytes[..3].copy_from_slice(&[22, 3, 1]);
        bytes[3..5].copy_from_slice(&(noise as u16 * 300).to_be_bytes());
        let mut stream = tcp(&server);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        rest(&stream);
    }
    assert_serves(&house, &server);
}

#[test]
fn handshakes_that_stop_anywhere_hold_no_one_up_and_leave_nothing() {
    let house = House::new();
    let server = start(&house);
    let name = "localhost".try_into().unwrap();
    let mut session = ClientConnection::new(house.client(), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    let mut halves: Vec<TcpStream> = (0..200)
        .map(|nth| {
            let mut stream = tcp(&server);
            stream.write_all(&hello[..nth * hello.len() / 199]).unwrap();
            stream
        })
        .collect();
    assert_serves(&house, &server);
    // Those who end in the middle are gone at once, without a warning.
    for half in halves.drain(..100) {
        half.shutdown(Shutdown::Write).unwrap();
        rest(&half);
    }
    assert!(!server.stderr().contains(" WARN "), "{}", server.stderr());
    drop(halves);
    wait_until("they are gone", || {
        server.connect().stat("stats", "current-connections") == "1"
    });
}

#[test]
fn a_request_that_is_cut_off_does_not_run_and_one_before_it_does() {
    let house = House::new();
    let server = start(&house);
    // Without a farewell; with half a record; with a whole record that holds half a request.
    for case in 0..3 {
        let (mut stream, mut session) = shaken(&house, &server);
        let put = sealed(&mut session, b"put 0 0 1 1\r\nx\r\n");
        let half = match case {
            0 => Vec::new(),
            1 => {
                let record = sealed(&mut session, b"put 0 0 1 1\r\ny\r\n");
                record[..record.len() - 1].to_vec()
            }
            _ => sealed(&mut session, b"put 0 0 1 1\r\ny"),
        };
        stream.write_all(&put).unwrap();
        stream.write_all(&half).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        rest(&stream);
        let mut wire = server.connect();
        assert_eq!(wire.stat("stats", "current-jobs-ready"), "1", "case {case}");
        let id = wire.reserve();
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    }
    assert_serves(&house, &server);
}

#[test]
fn a_record_that_comes_twice_or_changed_or_in_another_place_runs_nothing_and_ends_it() {
    let house = House::new();
    let server = start(&house);
    for case in 0..4 {
        let (mut stream, mut session) = shaken(&house, &server);
        let first = sealed(&mut session, b"put 0 0 1 1\r\na\r\n");
        let second = sealed(&mut session, b"put 0 0 1 1\r\nb\r\n");
        let mut changed = second.clone();
        *changed.last_mut().unwrap() ^= 1;
        let (sent, run) = match case {
            0 => (vec![&first, &first, &second], 1),
            1 => (vec![&first, &changed, &second], 1),
            2 => (vec![&second, &first], 0),
            _ => (vec![&first, &second], 2),
        };
        for (nth, record) in sent.into_iter().enumerate() {
            let _ = stream.write_all(record);
            // What comes after an answer is looked at by itself.
            if nth == 0 && run > 0 {
                await_answer(&mut stream, &mut session);
            }
        }
        let _ = stream.shutdown(Shutdown::Write);
        rest(&stream);
        let mut wire = server.connect();
        let ready: usize = wire.stat("stats", "current-jobs-ready").parse().unwrap();
        assert_eq!(ready, run, "case {case}");
        for _ in 0..ready {
            let id = wire.reserve();
            wire.ask(&format!("delete {id}"));
        }
    }
    assert_serves(&house, &server);
}

/// `openssl s_client`, with this on its standard input; what it says on both outputs.
fn openssl(house: &House, server: &Server, words: &[&str], input: &[u8]) -> Option<String> {
    let Some(openssl) = program("openssl") else {
        skip("there is no openssl");
        return None;
    };
    let mut child = Command::new(openssl)
        .args(["s_client", "-connect", &address(server).to_string()])
        .arg("-CAfile")
        .arg(house.path("ca.pem"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn older_versions_are_refused() {
    let house = House::new();
    let server = start(&house);
    for old in ["-tls1", "-tls1_1"] {
        let words = [old, "-cipher", "ALL:@SECLEVEL=0"];
        let Some(said) = openssl(&house, &server, &words, b"stats\r\n") else {
            return;
        };
        assert!(said.contains("alert"), "{old}: {said}");
        assert!(!said.contains("current-jobs"), "{old}: {said}");
    }
    assert_serves(&house, &server);
}

#[test]
fn a_session_is_not_negotiated_again() {
    let house = House::new();
    let server = start(&house);
    // `R` asks for it, in TLS 1.2.
    let Some(said) = openssl(&house, &server, &["-tls1_2"], b"R\n") else {
        return;
    };
    assert!(said.contains("RENEGOTIATING"), "{said}");
    assert!(said.contains("no renegotiation"), "{said}");
    assert_serves(&house, &server);
}

#[test]
fn a_client_that_never_reads_costs_bounded_memory_and_holds_no_one_up() {
    const SENT_MAX: usize = 64 << 20;
    let house = House::new();
    let server = start(&house);
    let mut quick = server.connect();
    let id = quick.put(&[b'x'; 60_000]);
    let before = server.resident_memory();
    let (mut deaf, mut session) = shaken(&house, &server);
    deaf.set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let packet = format!("peek {id}\r\n").repeat(1000);
    let mut sent = 0;
    while sent < SENT_MAX
        && deaf
            .write_all(&sealed(&mut session, packet.as_bytes()))
            .is_ok()
    {
        sent += packet.len();
    }
    assert!(sent < SENT_MAX, "it went on reading from who does not read");
    let other = quick.put(b"y");
    assert_eq!(quick.ask(&format!("delete {other}")), "DELETED");
    let grown = server.resident_memory().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes");
}
