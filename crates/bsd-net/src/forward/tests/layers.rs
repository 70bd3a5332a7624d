//! The layers between a socket and the protocol: the client's address is passed on, and no client
//! twice.

use super::*;
use crate::proxy::{self, Introduction, Parsed};

#[test]
fn a_leader_that_asks_for_it_is_told_who_the_client_is_and_that_it_is_passed_on() {
    let mut house = House::new();
    let leader = house.follow(PROXY);
    let (mut client, mut link) = house.pair(&leader);
    house.send(&mut client, b"stats\r\n");
    let source = Some(client.local_addr().unwrap());
    let header = proxy::encode(source, client.peer_addr().ok());
    house.expect(&mut link, &header);
    house.expect(&mut link, b"stats\r\n");
    let said = Introduction {
        source,
        is_forwarded: true,
    };
    let size = header.len();
    assert_eq!(proxy::parse(&header), Ok(Parsed::Header { size, said }));
}

#[test]
fn what_another_node_has_passed_on_is_not_passed_on_again() {
    let (mut house, leader) = House::led();
    house.gate = Gate::default().with_trusted(vec!["127.0.0.1".parse().unwrap()]);
    let from = "10.0.0.1:1".parse().ok();
    let mut client = house.connect(PROXY).unwrap();
    house.send(&mut client, &proxy::encode(from, None));
    house.expect_end(&mut client);
    house.expect_count(0);
    assert!(leader.accept().is_err(), "no link was made");
    // A proxy that is no node may bring clients.
    let mut client = house.connect(PROXY).unwrap();
    house.send(
        &mut client,
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\nstats\r\n",
    );
    let mut link = house.link(&leader);
    house.expect(&mut link, b"stats\r\n");
}

#[test]
fn two_nodes_that_each_take_the_other_for_the_leader_pass_nothing_in_circles() {
    let mut nodes = [House::new(), House::new()];
    let listeners: [TcpListener; 2] = std::array::from_fn(|_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    });
    for (index, node) in nodes.iter_mut().enumerate() {
        node.gate = Gate::default().with_trusted(vec!["127.0.0.1".parse().unwrap()]);
        node.lead(at(&listeners[1 - index], PROXY));
    }
    let mut client = nodes[0].client();
    let mut accepted = 0;
    let clock = Clock::start();
    while client.read(&mut [0]).is_err() {
        assert!(clock.now().mono.0 < PATIENCE_NS);
        for (node, listener) in nodes.iter_mut().zip(&listeners) {
            node.turn();
            if let Ok((stream, peer)) = listener.accept() {
                accepted += 1;
                node.give(stream, peer, PROXY).unwrap();
            }
        }
    }
    assert_eq!(accepted, 1);
}

#[test]
fn a_leader_whose_address_leads_here_gets_no_one() {
    let mut house = House::new();
    house.lead(at(&house.listener, Layers::NONE));
    let mut client = house.client();
    house.listener.set_nonblocking(true).unwrap();
    let mut refused = None;
    house.until("this node's own link", |house| {
        if let Ok((stream, peer)) = house.listener.accept() {
            refused = house.give(stream, peer, Layers::NONE).err();
        }
        refused.is_some()
    });
    assert_eq!(refused.unwrap().to_string(), OWN);
    house.expect_end(&mut client);
}

#[test]
fn who_does_not_come_through_the_layers_in_time_is_closed() {
    let (mut house, _leader) = House::led();
    house.gate = Gate::default().with_trusted(vec!["127.0.0.1".parse().unwrap()]);
    let mut slow = house.connect(PROXY).unwrap();
    let mut wrong = house.connect(PROXY).unwrap();
    house.send(&mut wrong, b"stats\r\n");
    house.expect_end(&mut wrong);
    house.send(&mut slow, b"PROXY ");
    house.pass(9);
    house.expect_nothing(&mut slow);
    house.pass(1);
    house.expect_end(&mut slow);
    house.expect_count(0);
}

#[test]
fn a_leader_is_said_as_a_listener_is() {
    let target = |layers| {
        Ok(Target {
            address: "10.0.0.1:11300".parse().unwrap(),
            layers,
            host: [10, 0, 0, 9].into(),
        })
    };
    let parse = |text| Target::parse(text, "10.0.0.9:12300");
    assert_eq!(parse("10.0.0.1:11300"), target(Layers::NONE));
    assert_eq!(parse("proxy:10.0.0.1:11300"), target(PROXY));
    assert_eq!(
        parse("proxy+tls:10.0.0.1:11300")
            .unwrap()
            .layers
            .to_string(),
        "proxy+tls:"
    );
    for wrong in ["", "10.0.0.1", "leader:11300", "unix:/run/q", "http:1:2"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    assert!(Target::parse("10.0.0.1:11300", "leader:12300").is_err());
    let tls = parse("tls:10.0.0.1:11300").unwrap();
    let why = tls.dial(None).unwrap_err().to_string();
    assert!(why.contains("--cluster-cert"), "{why}");
}
