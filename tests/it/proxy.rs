//! The PROXY protocol, bounds of an address, and time-outs of idle clients.

use std::net::SocketAddr;

use crate::harness::{Launch, Server, wait_until};
use crate::http::Site;
use crate::wire::Wire;

const USAGE: Option<i32> = Some(5);
const REFUSED: &str = "does not begin with a header";

fn launch() -> Launch {
    let words = ["-l", "proxy:127.0.0.1:0", "--proxy-from", "127.0.0.0/8,::1"];
    words.iter().fold(Launch::bsd().memory(), Launch::arg)
}

/// Where a server wants to be told who its clients are.
fn address(server: &Server, layers: &str) -> SocketAddr {
    wait_until("it listens", || server.stderr().contains("INFO ready: "));
    let stderr = server.stderr();
    let (_, rest) = stderr
        .split_once(&format!("listening on {layers}"))
        .unwrap();
    rest.lines().next().unwrap().parse().unwrap()
}

fn is_closed(wire: &mut Wire) -> bool {
    wire.try_rest().map_or(true, |rest| rest.is_empty())
}

#[test]
fn the_client_is_who_the_proxy_says_in_the_log_and_the_lists() {
    let site = Site::start(launch().arg("-VV").arg("--http").arg("127.0.0.1:0"));
    let at = address(&site.server, "proxy:");
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\x02\x0a\0\0\x09\x10\0\0\x50";
    for (header, client) in [
        (
            &b"PROXY TCP4 10.0.0.1 10.0.0.9 4096 11300\r\n"[..],
            "10.0.0.1:4096",
        ),
        (&v2[..], "10.0.0.2:4096"),
        (
            b"PROXY TCP6 2001:db8::7 ::1 4096 1\r\n",
            "[2001:db8::7]:4096",
        ),
    ] {
        // Byte by byte, and with the first request behind it.
        for step in [1, header.len() + 9] {
            let mut wire = Wire::connect(at).unwrap();
            let all = [header, b"use x\r\n"].concat();
            for piece in all.chunks(step) {
                wire.send(piece);
            }
            assert_eq!(wire.text(), "USING x", "{client}");
            let listed = site.get("/api/v1/clients").json().to_string();
            assert!(listed.contains(client), "{client}: {listed}");
        }
    }
    let mut unknown = Wire::connect(at).unwrap();
    unknown.send("PROXY UNKNOWN\r\nuse y\r\n");
    assert_eq!(unknown.text(), "USING y");
    let said = "10.0.0.1:4096";
    wait_until(said, || site.server.stderr().contains(said));
}

#[test]
fn without_a_header_or_with_a_wrong_one_nothing_runs() {
    let server = launch().start();
    let at = address(&server, "proxy:");
    let long = format!("PROXY UNKNOWN {}\r\nuse x\r\n", "x".repeat(200));
    for begin in [
        "use x\r\n",
        "PROXY TCP4 10.0.0.1 10.0.0.9 4096\r\nuse x\r\n",
        "PROXY TCP4 10.0.0.1 10.0.0.9 4096 99999\r\nuse x\r\n",
        &long,
    ] {
        let mut wire = Wire::connect(at).unwrap();
        wire.send(begin);
        assert!(is_closed(&mut wire), "{begin}");
    }
    let mut half = Wire::connect(at).unwrap();
    half.send("PROXY TCP4 10.0.0.1");
    half.shut_down_sending();
    assert!(is_closed(&mut half));
    wait_until(REFUSED, || server.stderr().contains(REFUSED));
    assert_eq!(server.stderr().matches(" WARN ").count(), 1);
    // A plain listener knows no such header.
    assert_eq!(server.connect().ask("PROXY UNKNOWN"), "UNKNOWN_COMMAND");
}

#[test]
fn who_is_not_trusted_may_not_speak_for_others() {
    let words = ["-l", "proxy:127.0.0.1:0", "--proxy-from", "10.0.0.0/8"];
    let server = words
        .iter()
        .fold(Launch::bsd().memory(), Launch::arg)
        .start();
    let mut wire = Wire::connect(address(&server, "proxy:")).unwrap();
    // It may be closed before that arrives.
    let _ = wire.try_send(b"PROXY TCP4 10.0.0.1 10.0.0.9 4096 1\r\nuse x\r\n");
    assert!(is_closed(&mut wire));
    let why = "not of --proxy-from";
    wait_until(why, || server.stderr().contains(why));
}

#[test]
fn tls_comes_behind_the_header() {
    use crate::tls::House;
    let house = House::new();
    let words = ["-l", "proxy+tls:127.0.0.1:0", "--proxy-from", "127.0.0.1"];
    let launch = words.iter().fold(house.launch().memory(), Launch::arg);
    let site = Site::start(launch.arg("--http").arg("127.0.0.1:0"));
    let at = address(&site.server, "proxy+tls:");
    let header = b"PROXY TCP4 10.0.0.1 10.0.0.9 4096 1\r\n";
    let mut wire = Wire::connect_tls_behind(at, house.client(), header).unwrap();
    assert_eq!(wire.ask("use x"), "USING x");
    let listed = site.get("/api/v1/clients").json().to_string();
    assert!(listed.contains("10.0.0.1:4096"), "{listed}");
    assert!(Wire::connect_tls(at, house.client()).is_err(), "no header");
    assert!(Wire::connect_tls_behind(at, house.client(), b"PROXY\r\n").is_err());
}

#[test]
fn flags_that_do_not_go_together_are_wrong_usage() {
    let wrong: [&[&str]; 5] = [
        &["-l", "proxy:127.0.0.1"],
        &["--proxy-from", "127.0.0.1"],
        &["-l", "proxy:127.0.0.1", "--proxy-from", "everyone"],
        &["-l", "proxy:unix:/tmp/x", "--proxy-from", "127.0.0.1"],
        &["--max-connections-per-address", "0"],
    ];
    for words in wrong {
        let launch = words.iter().fold(Launch::bsd().memory(), Launch::arg);
        let exit = launch.run_to_exit();
        assert_eq!(exit.code, USAGE, "{words:?}: {exit:?}");
    }
}

#[test]
fn an_address_has_no_more_connections_than_it_may_also_behind_a_proxy() {
    let server = launch()
        .arg("--max-connections-per-address")
        .arg("3")
        .start();
    let at = address(&server, "proxy:");
    let come = |from: u8| {
        let mut wire = Wire::connect(at).unwrap();
        wire.send(format!(
            "PROXY TCP4 10.0.0.{from} 10.0.0.9 1 1\r\nuse x\r\n"
        ));
        wire.try_reply().is_ok().then_some(wire)
    };
    let mut first: Vec<Wire> = (0..3).map(|_| come(1).unwrap()).collect();
    assert!(come(1).is_none());
    assert!(come(2).is_some());
    // The proxy is not counted, and those who come without it are counted by themselves.
    let direct: Vec<Wire> = (0..3).map(|_| server.connect()).collect();
    let mut fourth = server.connect();
    assert!(is_closed(&mut fourth));
    drop(direct);
    first.pop();
    wait_until("there is room again", || come(1).is_some());
}

#[test]
fn who_asks_for_nothing_is_closed_and_who_waits_or_works_is_not() {
    let server = Launch::bsd()
        .memory()
        .arg("--idle-timeout")
        .arg("1")
        .start();
    let mut works = server.connect();
    works.put(b"x");
    works.reserve();
    let mut waits = server.connect();
    waits.send("watch other\r\nignore default\r\nreserve\r\n");
    assert_eq!(
        (waits.text(), waits.text()),
        ("WATCHING 2".into(), "WATCHING 1".into())
    );
    let mut idle = server.connect();
    assert_eq!(idle.ask("use x"), "USING x");
    assert_eq!(idle.rest(), b"");
    // As long again.
    let mut again = server.connect();
    assert_eq!(again.rest(), b"");
    assert_eq!(works.ask("use other"), "USING other");
    works.put(b"y");
    assert!(waits.text().starts_with("RESERVED 2"));
}
