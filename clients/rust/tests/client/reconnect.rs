//! Lost connections: what is sent once more, what is not, and what is then said.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use bsd_client::{Client, Config, ErrorKind, Inserted, Put};

use crate::harness::Server;

/// What a peer does with a line: it answers, says nothing more, or closes the connection.
#[derive(Clone, Copy)]
enum Does {
    Says(&'static str),
    Closes,
}

use Does::{Closes, Says};

/// beanstalkd's answer to `capabilities`.
const OLD: Does = Says("UNKNOWN_COMMAND\r\n");
const NEW: Does = Says("OK 15\r\n---\n- put-with\n\r\n");

/// A peer that treats the lines of each connection so, one connection after the other.
fn peer(connections: Vec<Vec<(&'static str, Does)>>) -> (Config, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config: Config = listener.local_addr().unwrap().to_string().parse().unwrap();
    let thread = std::thread::spawn(move || {
        for lines in connections {
            let (mut stream, _) = listener.accept().unwrap();
            let mut input = BufReader::new(stream.try_clone().unwrap());
            for (expected, does) in lines {
                let mut line = String::new();
                input.read_line(&mut line).unwrap();
                assert_eq!(line.trim_end(), expected);
                match does {
                    Says(reply) => stream.write_all(reply.as_bytes()).unwrap(),
                    Closes => break,
                }
            }
        }
    });
    (config, thread)
}

fn client(config: Config) -> Client {
    let config = config.backoff(Duration::from_millis(1), Duration::from_millis(2));
    Client::connect(config).unwrap()
}

/// Connecting asks once more.
const GREETING: [(&str, Does); 2] = [("capabilities", OLD), ("capabilities", OLD)];
const NEW_GREETING: [(&str, Does); 2] = [("capabilities", NEW), ("capabilities", NEW)];

fn after(
    greeting: &[(&'static str, Does)],
    rest: &[(&'static str, Does)],
) -> Vec<(&'static str, Does)> {
    [greeting, rest].concat()
}

#[test]
fn a_put_that_was_sent_and_not_answered_is_not_sent_again() {
    let lost = [("put 65536 0 120 1", Says("")), ("x", Closes)];
    let (config, peer) = peer(vec![after(&GREETING, &lost)]);
    let error = client(config).put(Put::new("x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unanswered);
    assert!(error.is_transient());
    peer.join().unwrap();
}

#[test]
fn a_put_with_a_key_a_question_and_a_reserve_are_sent_again() {
    let line = "put-with 65536 0 120 1 key=k";
    let lost = [(line, Says("")), ("x", Closes)];
    let kept = [
        (line, Says("")),
        ("x", Says("EXISTS 7\r\n")),
        ("list-tube-used", Closes),
    ];
    let again = [
        ("list-tube-used", Says("USING default\r\n")),
        ("reserve-with-timeout 0", Closes),
    ];
    let last = [("reserve-with-timeout 0", Says("RESERVED 3 1\r\na\r\n"))];
    let (config, peer) = peer(vec![
        after(&NEW_GREETING, &lost),
        after(&NEW_GREETING[..1], &kept),
        after(&NEW_GREETING[..1], &again),
        after(&NEW_GREETING[..1], &last),
    ]);
    let mut client = client(config);
    assert_eq!(
        client.put(Put::new("x").key("k")).unwrap(),
        Inserted::Exists(7)
    );
    assert_eq!(client.used_tube().unwrap(), "default");
    assert_eq!(client.reserve(Duration::ZERO).unwrap().unwrap().id, 3);
    peer.join().unwrap();
}

#[test]
fn a_delete_that_is_repeated_says_when_it_is_not_clear_what_was_done() {
    for (reply, kind) in [
        ("DELETED\r\n", None),
        ("NOT_FOUND\r\n", Some(ErrorKind::Unanswered)),
    ] {
        let again = [("capabilities", OLD), ("delete 5", Says(reply))];
        let (config, peer) = peer(vec![
            after(&GREETING, &[("delete 5", Closes)]),
            again.to_vec(),
        ]);
        let deleted = client(config).delete(5);
        assert_eq!(deleted.err().map(|error| error.kind()), kind);
        peer.join().unwrap();
    }
}

#[test]
fn a_new_connection_is_told_the_tubes_and_asked_for_its_own_capabilities() {
    let session = [
        ("use a", Says("USING a\r\n")),
        ("watch b", Says("WATCHING 2\r\n")),
        ("ignore default", Says("WATCHING 1\r\n")),
        ("stats-job 1", Closes),
    ];
    let again = [
        ("capabilities", OLD),
        ("use a", Says("USING a\r\n")),
        ("watch b", Says("WATCHING 1\r\n")),
        ("ignore default", Says("WATCHING 1\r\n")),
        ("stats-job 1", Says("NOT_FOUND\r\n")),
        ("", Closes),
    ];
    let (config, peer) = peer(vec![after(&NEW_GREETING, &session), again.to_vec()]);
    let mut client = client(config);
    client.use_tube("a").unwrap();
    client.watch("b").unwrap();
    client.ignore("default").unwrap();
    assert_eq!(client.stats_job(1).unwrap_err().kind(), ErrorKind::NotFound);
    // The second server is an old one: the body is never sent to it.
    let keyed = client.put(Put::new("quit").key("k"));
    assert_eq!(keyed.unwrap_err().kind(), ErrorKind::Unsupported);
    drop(client);
    peer.join().unwrap();
}

#[test]
fn a_connection_that_was_closed_while_it_was_idle_loses_no_put() {
    let put = [
        ("put 65536 0 120 1", Says("")),
        ("x", Says("INSERTED 1\r\n")),
    ];
    let (config, peer) = peer(vec![GREETING.to_vec(), after(&GREETING[..1], &put)]);
    let mut client = client(config);
    // The second connection is accepted only after the first one was closed.
    loop {
        match client.put(Put::new("x")) {
            Ok(inserted) => break assert_eq!(inserted.id(), 1),
            // The close had not arrived yet.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unanswered),
        }
    }
    peer.join().unwrap();
}

#[test]
fn a_server_that_is_silent_ends_a_call_by_its_timeout() {
    let silent = [("list-tube-used", Says("")), ("", Closes)];
    let put = [
        ("capabilities", OLD),
        ("put 65536 0 120 1", Says("")),
        ("x", Says("")),
        ("", Closes),
    ];
    let (config, peer) = peer(vec![after(&GREETING, &silent), put.to_vec()]);
    let mut client = client(config.timeout(Duration::from_millis(300)));
    assert_eq!(client.used_tube().unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(
        client.put(Put::new("x")).unwrap_err().kind(),
        ErrorKind::Unanswered
    );
    drop(client);
    peer.join().unwrap();
}

#[test]
fn where_no_server_is_a_connect_is_refused_and_a_second_address_serves() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = unused.local_addr().unwrap().to_string();
    drop(unused);
    assert_eq!(
        Client::connect(&*nowhere).unwrap_err().kind(),
        ErrorKind::Connect
    );
    let mut later = Client::new(
        Config::new([&nowhere])
            .unwrap()
            .timeout(Duration::from_millis(100)),
    );
    assert_eq!(later.stats().unwrap_err().kind(), ErrorKind::Connect);
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let config = Config::new([nowhere.as_str(), server.address()]).unwrap();
    let mut client = Client::connect(config).unwrap();
    client.put(Put::new("x")).unwrap();
}

#[test]
fn a_client_goes_on_after_its_server_was_killed_and_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let data = dir.path().join("data").display().to_string();
    let start = || Server::bsd(&["-l", &socket, "-b", &data]);
    let Some(server) = start() else {
        return;
    };
    let mut client = Client::connect(server.address()).unwrap();
    client.use_tube("mail").unwrap();
    client.watch("mail").unwrap();
    let id = client.put(Put::new("one")).unwrap().id();
    assert_eq!(client.reserve(Duration::ZERO).unwrap().unwrap().id, id);
    server.kill();
    let server = start().unwrap();
    assert_eq!(client.reserve(Duration::ZERO).unwrap().unwrap().id, id);
    server.kill();
    let _server = start().unwrap();
    client.put(Put::new("two")).unwrap();
    assert_eq!(client.stats_tube("mail").unwrap().ready, 2);
    assert!(!client.is_holding_jobs());
}
