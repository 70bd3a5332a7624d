//! Memory: what clients make the server hold is bounded, and comes back when they have left.

use std::collections::HashMap;
use std::io;

use tempfile::TempDir;

use crate::harness::{Launch, Server, wait_until};
use crate::wire::Wire;

const MIB: u64 = 1 << 20;

fn start(max_memory: Option<&str>) -> Option<Server> {
    let launch = Launch::bsd_alone()?.arg("--memory");
    let launch = match max_memory {
        Some(bytes) => launch.arg("--max-memory").arg(bytes),
        None => launch,
    };
    Some(launch.start())
}

/// Have the server hold much more than `before`, by clients that then leave.
fn swell_and_leave(server: &Server, before: u64, mut clients: Vec<Wire>, ask: impl Fn(&mut Wire)) {
    wait_until("the server holds much", || {
        clients.iter_mut().for_each(&ask);
        server.resident_memory() > before + 20 * MIB
    });
    drop(clients);
    wait_until("memory has come back", || {
        server.resident_memory() * 10 <= before * 13
    });
}

/// Nothing but the time that passes makes it come back: the server has nothing to do meanwhile.
///
/// How much the kernel holds for a client that does not read is a setting of the machine, for a
/// unix socket less than for TCP: they ask again until it is the server that holds the replies.
#[test]
fn f25_g55_memory_comes_back_when_those_who_never_read_have_left() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let launch = launch.memory().arg("-l");
    let server = launch.arg(format!("unix:{}", socket.display())).start();
    server.connect().put(&[b'x'; 65_000]);
    let before = server.resident_memory();
    let connect = || Wire::connect_unix(&socket).unwrap();
    let clients = (0..200).map(|_| connect()).collect();
    swell_and_leave(&server, before, clients, |client| {
        match client.send_at_once("peek 1\r\n".repeat(64).as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
            _ => {}
        }
    });
}

#[test]
fn f25_memory_comes_back_when_those_who_watched_much_have_left() {
    let Some(server) = start(None) else { return };
    // Tables that stay once they have been used are 3 MiB: little compared with these jobs.
    let mut wire = server.connect();
    for _ in 0..300 {
        wire.put(&[b'x'; 65_000]);
    }
    let before = server.resident_memory();
    let mut clients: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        watch(client, index, 20_000);
    }
    swell_and_leave(&server, before, clients, |_| {});
}

/// Watch `count` tubes that only this client uses; returns how often each reply came, without its
/// number.
fn watch(client: &mut Wire, index: usize, count: usize) -> HashMap<String, usize> {
    let mut replies = HashMap::new();
    let all: Vec<usize> = (0..count).collect();
    for some in all.chunks(500) {
        let lines = some.iter().map(|at| format!("watch w-{index}-{at}\r\n"));
        client.send(lines.collect::<String>());
        for _ in some {
            let reply = client.text();
            let word = reply.split(' ').next().unwrap().to_owned();
            *replies.entry(word).or_default() += 1;
        }
    }
    replies
}

#[test]
fn f24_watch_lists_are_bounded_and_harm_no_one_else() {
    let Some(server) = start(Some("16m")) else {
        return;
    };
    let mut greedy: Vec<_> = (0..8).map(|_| server.connect()).collect();
    let mut refused = 0;
    for (index, client) in greedy.iter_mut().enumerate() {
        let replies = watch(client, index, 5_000);
        refused += replies.get("OUT_OF_MEMORY").copied().unwrap_or_default();
        assert!(
            replies["WATCHING"] >= 60,
            "a short list is granted: {replies:?}"
        );
    }
    assert!(refused > 20_000, "{refused} watches were refused");
    let resident = server.resident_memory();
    assert!(resident <= (16 + 32) * MIB, "{resident} bytes");
    assert_eq!(greedy[0].ask("watch w-0-0"), greedy[0].ask("watch w-0-1"));
    let mut other = server.connect();
    other.put(&[b'x'; 60_000]);
    assert_eq!(other.ask("watch a"), "WATCHING 2");
    assert_eq!(other.ask("use b"), "USING b");
    drop(greedy);
    wait_until("a long list is granted again", || {
        let mut client = server.connect();
        watch(&mut client, 9, 500).get("WATCHING") == Some(&500)
    });
}

#[test]
fn f24_tubes_in_use_are_bounded_and_pauses_that_are_on_can_be_changed() {
    let Some(server) = start(Some("1m")) else {
        return;
    };
    let mut other = server.connect();
    other.ask("use paused");
    other.put(b"keeps the tube");
    assert_eq!(other.ask("pause-tube paused 100"), "PAUSED");
    let mut greedy = Vec::new();
    let refused = (0..1_000).find(|index| {
        let mut client = server.connect();
        let reply = client.ask(&format!("use greedy-{index}"));
        greedy.push(client);
        reply == "OUT_OF_MEMORY"
    });
    assert!(refused.is_some_and(|after| after > 50), "{refused:?}");
    assert_eq!(other.ask("use greedy-0"), "USING greedy-0");
    assert_eq!(other.ask("pause-tube greedy-0 100"), "OUT_OF_MEMORY");
    assert_eq!(other.ask("use paused"), "USING paused");
    assert_eq!(other.ask("pause-tube paused 200"), "PAUSED");
    assert_eq!(other.ask("pause-tube paused 0"), "PAUSED");
    other.put(b"a job of someone else");
    drop(greedy);
    wait_until("another tube may be used again", || {
        server.connect().ask("use another") == "USING another"
    });
    assert_eq!(other.ask("pause-tube default 100"), "PAUSED");
}

/// Each of them is of a tube that vanishes at once, and would have been paused for weeks.
#[test]
fn g28_pauses_of_tubes_that_vanished_are_refused_to_who_makes_them_and_cost_others_nothing() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let socket = dir.path().join("socket");
    let server = launch
        .dir(&dir.path().join("log"))
        .args(["--max-memory", "1m", "-s", "64k", "-f", "0"])
        .arg("-l")
        .arg(format!("unix:{}", socket.display()))
        .start();
    let mut greedy = server.connect();
    let mut other = Wire::connect_unix(&socket).unwrap();
    other.ask("use kept");
    let mut refused = 0;
    for round in 0..100 {
        let names = (0..200).map(|nth| format!("vanishing-{}", round * 200 + nth));
        let lines = names.map(|name| format!("use {name}\r\npause-tube {name} 3000000\r\n"));
        greedy.send(lines.collect::<String>());
        for _ in 0..200 {
            assert!(greedy.text().starts_with("USING vanishing-"));
            match &*greedy.text() {
                "PAUSED" => {}
                "OUT_OF_MEMORY" => refused += 1,
                reply => panic!("{reply}"),
            }
        }
        assert_eq!(
            other.ask(&format!("use used-{round}")),
            format!("USING used-{round}")
        );
        assert_eq!(other.ask("watch watched"), "WATCHING 2");
        assert_eq!(other.ask("ignore watched"), "WATCHING 1");
        if round % 10 == 0 {
            let pause = format!("pause-tube used-{round} 1");
            assert_eq!(other.ask(&pause), "PAUSED", "{refused} of {round} rounds");
        }
    }
    println!("{refused} of 20,000 were refused");
    other.put(b"a job of someone else");
    // Those that are dead are let go.
    wait_until("the greedy one may pause a tube again", || {
        greedy.ask("use last");
        greedy.ask("pause-tube last 1") == "PAUSED"
    });
    let told = server.stderr();
    let about = |words: &str| told.lines().filter(|line| line.contains(words)).count();
    assert_eq!(about("watch lists"), 0);
    assert_eq!(about("pauses take") > 0, refused > 0);
}
