//! A cluster of three members: the client is given all of their addresses, and goes on when its leader is
//! lost.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use bsd_client::{Client, Config, Put};

use crate::harness::{Server, wait_until};

/// Addresses of a member, which no one else gets while it is down: their IP address is one of loopback's
/// for this process and this member where there are such.
struct Member {
    clients: SocketAddr,
    peers: SocketAddr,
    http: SocketAddr,
}

impl Member {
    fn new(number: u8) -> Member {
        let [high, low] = (std::process::id() as u16).to_be_bytes();
        let ip = match cfg!(target_os = "linux") {
            true => Ipv4Addr::new(127, high.max(1), low, 200 + number),
            false => Ipv4Addr::LOCALHOST,
        };
        // All are held until the last one is found, so they differ.
        let held = [(); 3].map(|()| TcpListener::bind((ip, 0)).unwrap());
        let [clients, peers, http] = held.map(|it| it.local_addr().unwrap());
        Member {
            clients,
            peers,
            http,
        }
    }

    fn start(&self, dir: &Path, number: u8, joined: Option<&Member>) -> Option<Server> {
        let data = dir.join(format!("member-{number}")).display().to_string();
        let [clients, peers, http] = [self.clients, self.peers, self.http].map(|it| it.to_string());
        let mut args = vec![
            "-b",
            &data,
            "-l",
            &clients,
            "--http",
            &http,
            "--cluster",
            &peers,
        ];
        let joined = joined.map(|it| it.peers.to_string());
        match &joined {
            None => args.push("--cluster-init"),
            Some(joined) => args.extend(["--cluster-join", joined]),
        }
        Server::bsd_with_all(&args)
    }

    /// How many members vote, as this one knows.
    fn voters(&self) -> usize {
        let read = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.http)?;
            let request = format!("GET /api/v1/cluster HTTP/1.1\r\nHost: {}\r\n", self.http);
            stream.write_all(format!("{request}Connection: close\r\n\r\n").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        read().unwrap_or_default().matches("\"votes\":true").count()
    }
}

#[test]
fn a_client_of_a_cluster_goes_on_when_the_leader_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let members = [1, 2, 3].map(Member::new);
    let Some(first) = members[0].start(dir.path(), 1, None) else {
        return;
    };
    let start = |number: u8| {
        let member = &members[usize::from(number) - 1];
        member.start(dir.path(), number, Some(&members[0])).unwrap()
    };
    let _others = [start(2), start(3)];
    wait_until("three members vote", || members[0].voters() == 3);

    // A member that follows comes first: it passes the client on.
    let order = [&members[1], &members[0], &members[2]];
    let config = Config::new(order.map(|it| it.clients.to_string())).unwrap();
    let config = config.timeout(Duration::from_secs(60));
    let mut client = Client::connect(config).unwrap();
    client.use_tube("mail").unwrap();
    client.watch("mail").unwrap();
    let keyed = |number: u32| {
        Put::new(number.to_string())
            .key(format!("k-{number}"))
            .tube("mail")
    };
    for number in 0..10 {
        client.put(keyed(number)).unwrap();
    }
    first.kill();
    // A put with a key is sent again: none of them is there twice, and none is missing.
    for number in 10..20 {
        client.put(keyed(number)).unwrap();
    }
    let mut bodies = Vec::new();
    while let Some(job) = client.reserve(Duration::ZERO).unwrap() {
        client.delete(job.id).unwrap();
        bodies.push(String::from_utf8(job.body).unwrap().parse::<u32>().unwrap());
    }
    bodies.sort_unstable();
    assert_eq!(bodies, Vec::from_iter(0..20));
}
