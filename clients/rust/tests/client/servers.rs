//! A list of servers: placing, fair reserves, one that is away.

use std::time::Duration;

use bsd_client::{Client, Config, ErrorKind, Put, Servers};

use crate::harness::{Server, wait_until};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(30);

/// A tube that is on this server.
pub(crate) fn tube_on(servers: &Servers, name: &str) -> String {
    let mut tubes = (0..).map(|number| format!("tube-{number}"));
    tubes.find(|tube| servers.place(tube) == name).unwrap()
}

#[test]
fn tubes_are_placed_and_jobs_come_from_all_servers_in_turn() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    let mut list = vec![("one", one.config()), ("two", two.config())];
    let three = Server::beanstalkd();
    list.extend(three.as_ref().map(|server| ("three", server.config())));
    let names: Vec<_> = list.iter().map(|(name, _)| *name).collect();
    let servers = Servers::new(list).unwrap().pin("pinned", "two").unwrap();
    assert_eq!(servers.place("pinned"), "two");
    let mut client = servers.client();
    let tubes: Vec<_> = names.iter().map(|name| tube_on(&servers, name)).collect();
    for tube in &tubes {
        for _ in 0..20 {
            client.put(Put::new(tube.as_str()).tube(tube)).unwrap();
        }
    }
    client.put(Put::new("pinned").tube("pinned")).unwrap();
    assert_eq!(two.client().stats_tube("pinned").unwrap().ready, 1);
    client.watch_only(&tubes).unwrap();
    for turn in 0..20 {
        let mut given = Vec::new();
        for _ in &names {
            let job = client.reserve(NOW).unwrap().unwrap();
            given.push(client.server_of(&job).to_owned());
            client.delete(&job).unwrap();
        }
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), names.len(), "turn {turn}: {given:?}");
    }
    assert_eq!(client.reserve(NOW).unwrap(), None);
}

#[test]
fn a_job_is_found_at_whichever_server_it_comes_while_all_are_waited_for() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    let mut list = vec![("one", one.config()), ("two", two.config())];
    let three = Server::beanstalkd();
    list.extend(three.as_ref().map(|server| ("three", server.config())));
    let names: Vec<_> = list.iter().map(|(name, _)| *name).collect();
    let servers = Servers::new(list.clone()).unwrap();
    let tubes: Vec<_> = names.iter().map(|name| tube_on(&servers, name)).collect();
    let mut client = servers.client();
    client.watch_only(&tubes).unwrap();
    for round in 0..6 {
        let index = round % names.len();
        let (tube, config) = (tubes[index].clone(), list[index].1.clone());
        let putter = std::thread::spawn(move || {
            let mut client = Client::connect(config).unwrap();
            let is_waiting = |client: &mut Client| client.stats().unwrap().waiting > 0;
            wait_until("a client waits", || is_waiting(&mut client));
            client.put(Put::new("x").tube(tube)).unwrap();
        });
        let job = client.reserve(LONG).unwrap().unwrap();
        assert_eq!(client.server_of(&job), names[index]);
        client.delete(&job).unwrap();
        putter.join().unwrap();
    }
    for server in [&one, &two] {
        let stats = server.client().stats().unwrap();
        assert_eq!((stats.reserved, stats.ready), (0, 0));
    }
}

#[test]
fn a_server_that_is_away_keeps_its_tubes_and_the_others_work_on() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let data = dir.path().join("data").display().to_string();
    let start = || Server::bsd(&["-l", &socket, "-b", &data]);
    let (Some(one), Some(two)) = (Server::bsd(&[]), start()) else {
        return;
    };
    let quick: Config = two.address().parse().unwrap();
    let quick = quick.timeout(Duration::from_millis(500));
    let servers = Servers::new([("one", one.config()), ("two", quick)]).unwrap();
    let (here, away) = (tube_on(&servers, "one"), tube_on(&servers, "two"));
    let mut client = servers.client();
    client.watch_only([&here, &away]).unwrap();
    let waiting = client.put(Put::new("waits").tube(&away)).unwrap().id();
    two.kill();
    let refused = client.put(Put::new("x").tube(&away)).unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::Connect | ErrorKind::Unanswered),
        "{refused}"
    );
    for _ in 0..50 {
        client.put(Put::new("here").tube(&here)).unwrap();
        let job = client.reserve(LONG).unwrap().unwrap();
        assert_eq!(
            (client.server_of(&job), &*job.job.body),
            ("one", &b"here"[..])
        );
        client.delete(&job).unwrap();
    }
    let _two = start().unwrap();
    let job = client.reserve(LONG).unwrap().unwrap();
    assert_eq!((client.server_of(&job), job.job.id), ("two", waiting));
    client.put(Put::new("x").tube(&away)).unwrap();
}

#[test]
fn a_list_that_makes_no_sense_is_refused() {
    let config: Config = "127.0.0.1:1".parse().unwrap();
    let twice = [("a", config.clone()), ("a", config.clone())];
    assert_eq!(Servers::new(twice).unwrap_err().kind(), ErrorKind::Usage);
    let none: [(&str, Config); 0] = [];
    assert_eq!(Servers::new(none).unwrap_err().kind(), ErrorKind::Usage);
    let one = Servers::new([("a", config)]).unwrap();
    assert_eq!(one.pin("tube", "b").unwrap_err().kind(), ErrorKind::Usage);
}
