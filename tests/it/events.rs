//! `/api/v1/events` and `bsd-ctl tail`: what happens to jobs is told as it happens, in its order, to
//! those who listen, and costs no one else anything.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::ctl::{OK, command, done, said};
use crate::harness::{Launch, wait_until};
use crate::http::Site;
use crate::wire::{inserted, put_command};

/// Someone who listens to events.
struct Listener {
    lines: std::io::Lines<BufReader<TcpStream>>,
}

impl Listener {
    /// From when this returns on every event is told.
    fn at(site: &Site, query: &str) -> Listener {
        let mut stream = site.connect();
        let address = site.address;
        let request = format!("GET /api/v1/events{query} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(stream).lines();
        let status = lines.next().unwrap().unwrap();
        assert!(status.contains(" 200 "), "{status}");
        let begins = |line: std::io::Result<String>| line.unwrap() == ": listening";
        assert!(lines.any(begins), "nothing is told");
        Listener { lines }
    }

    /// The next event.
    fn next(&mut self) -> Value {
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    }

    /// The next event, its job and its tube.
    fn brief(&mut self) -> (String, u64, String) {
        let event = self.next();
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let job = event["job"].as_u64().unwrap_or(0);
        (text("event"), job, text("tube"))
    }
}

/// Changes of every kind, and what is to be told of them.
fn happen(site: &Site) -> Vec<(&'static str, u64, &'static str)> {
    let mut wire = site.server.connect();
    wire.ask("use mail");
    wire.ask("watch mail");
    let mut put = |ttr: u32, body: &str| {
        wire.send(format!("put 5 0 {ttr} {}\r\n{body}\r\n", body.len()));
        inserted(&wire.text()).unwrap()
    };
    assert_eq!((put(60, "one"), put(1, "two")), (1, 2));
    assert_eq!(wire.reserve(), 1);
    assert_eq!(wire.ask("release 1 9 0"), "RELEASED");
    assert_eq!(wire.reserve(), 2);
    // Its time is a second.
    wait_until("its time is up", || {
        wire.stat("stats", "current-jobs-reserved") == "0"
    });
    assert_eq!(wire.reserve(), 2);
    assert_eq!(wire.ask("bury 2 3"), "BURIED");
    wire.ask("kick 10");
    let change = |word: &str, body: Value| {
        let answer = site.change("post", &format!("/api/v1/jobs/2/{word}"), &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    };
    change("priority", json!({"priority": 4}));
    change("delay", json!({"delay": 100}));
    change("kick", json!({}));
    change("move", json!({"to": "post"}));
    assert_eq!(wire.ask("pause-tube mail 1"), "PAUSED");
    assert_eq!(wire.ask("pause-tube mail 0"), "PAUSED");
    let mut other = site.server.connect();
    other.ask("watch mail");
    assert_eq!(other.reserve(), 1);
    drop(other);
    wait_until("it is back", || {
        wire.stat("stats", "current-jobs-reserved") == "0"
    });
    assert_eq!(wire.ask("delete 2"), "DELETED");
    [
        ("put", 1),
        ("put", 2),
        ("reserve", 1),
        ("release", 1),
        ("reserve", 2),
        ("timeout", 2),
        ("reserve", 2),
        ("bury", 2),
        ("kick", 2),
        ("priority", 2),
        ("delay", 2),
        ("kick", 2),
        ("move", 2),
        ("pause", 0),
        ("pause", 0),
        ("reserve", 1),
        ("return", 1),
        ("delete", 2),
    ]
    .map(|(event, job)| (event, job, if event == "delete" { "post" } else { "mail" }))
    .to_vec()
}

#[test]
fn everything_that_happens_is_told_once_and_in_order() {
    let dir = tempfile::TempDir::new().unwrap();
    for launch in [Launch::bsd().memory(), Launch::bsd().dir(dir.path())] {
        let site = Site::start(launch);
        let mut listener = Listener::at(&site, "");
        let mut of_post = Listener::at(&site, "?tube=p*t");
        for (event, job, tube) in happen(&site) {
            let wanted = (event.to_owned(), job, tube.to_owned());
            assert_eq!(listener.brief(), wanted);
        }
        let moved = of_post.next();
        assert_eq!(
            (&moved["event"], &moved["to"], &moved["job"]),
            (&json!("move"), &json!("post"), &json!(2))
        );
        assert_eq!(of_post.brief().0, "delete");
    }
}

#[test]
fn what_is_told_is_as_described() {
    let site = Site::start(Launch::bsd().memory());
    let document = site.get("/api/v1/openapi.json").json();
    let schema = &document["components"]["schemas"]["Event"];
    let mut listener = Listener::at(&site, "");
    for _ in happen(&site) {
        let event = listener.next();
        let faults = crate::api::faults(&event, schema, &document, "event");
        assert!(faults.is_empty(), "{event}: {faults:?}");
    }
}

/// A client that does not read costs the others nothing, and is told how many events it missed.
#[test]
fn a_slow_listener_is_told_how_much_was_lost_and_holds_no_one_up() {
    let site = Site::start(Launch::bsd().memory());
    let mut listener = Listener::at(&site, "");
    let mut wire = site.server.connect();
    // More than the server, the sockets and the ring hold.
    let (rounds, batch) = (120, 1000);
    let commands = put_command(1, 0, b"x").repeat(batch as usize);
    for _ in 0..rounds {
        wire.send(&commands);
        (0..batch).for_each(|_| assert!(inserted(&wire.text()).is_some()));
    }
    let (mut heard, mut lost) = (0, 0);
    while heard + lost < rounds * batch {
        let event = listener.next();
        match event["event"].as_str() {
            Some("lost") => lost += event["events"].as_u64().unwrap(),
            Some("put") => heard += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(heard + lost, rounds * batch);
    assert!(lost > 0 && heard > 0, "{heard} heard, {lost} lost");
}

#[test]
fn eight_listen_and_no_more_until_one_has_left() {
    let site = Site::start(Launch::bsd().memory());
    let mut listeners: Vec<_> = (0..8).map(|_| Listener::at(&site, "")).collect();
    let refused = site.get("/api/v1/events");
    assert_eq!(refused.status, 503);
    assert_eq!(site.get("/api/v1/events?tube=a%20b").status, 400);
    listeners.pop();
    wait_until("another one can", || {
        let mut stream = site.connect();
        let address = site.address;
        let request = format!("GET /api/v1/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.contains(" 200 ")
    });
}

#[test]
fn tail_shows_a_line_for_each_event_of_the_tubes_that_are_meant() {
    let site = Site::start(Launch::bsd().memory());
    let address = site.server.address().to_string();
    let tail = |words: &[&str]| {
        let mut tail = command(&address);
        tail.env("BSD_CTL_HTTP", site.address.to_string());
        tail.arg("tail").args(words).stdout(Stdio::piped());
        let mut tail = tail.spawn().unwrap();
        // It listens from some moment on.
        wait_until("it has heard enough", || {
            done(&site.server, "put mail body --pri 7");
            done(&site.server, "put other body");
            tail.try_wait().unwrap().is_some()
        });
        let (code, said) = said(&tail.wait_with_output().unwrap());
        assert_eq!(code, OK, "{said}");
        said
    };
    let text = tail(&["--tube", "m*l", "--count", "2"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1..4], ["put", "mail", "job"], "{line}");
        assert!(line.ends_with(" priority=7 body size=4 B"), "{line}");
    }
    let text = tail(&["--json", "--count", "3"]);
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events.len(), 3);
    assert!(events.iter().all(|event| event["event"] == "put"), "{text}");
}
