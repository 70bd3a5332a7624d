//! Someone else leads, or no one, or one that cannot be reached: who waits, who is closed, who is given
//! back.

use super::*;

#[test]
fn another_leader_closes_all_that_are_joined_and_no_byte_passes_any_more() {
    for next in ["none", "another", "ourselves"] {
        let (mut house, leader) = House::led();
        let mut pairs: Vec<_> = (0..150).map(|_| house.pair(&leader)).collect();
        house.run_until_idle();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        for (client, link) in &mut pairs {
            client.write_all(b"to the leader before").unwrap();
            link.write_all(b"from the leader before").unwrap();
        }
        // The node knows what has come when it hears of the other leader.
        house.look();
        while !house.events.is_empty() {
            house.look();
        }
        house.lead(match next {
            "none" => Leader::None,
            "another" => at(&other, Layers::NONE),
            _ => Leader::Ourselves,
        });
        for (client, link) in &mut pairs {
            house.expect_end(client);
            house.expect_end(link);
        }
        house.expect_count(0);
        assert!(house.forward.next_returned().is_none());
    }
}

#[test]
fn the_same_leader_again_changes_nothing() {
    let (mut house, leader) = House::led();
    let (mut client, mut link) = house.pair(&leader);
    house.lead(at(&leader, Layers::NONE));
    house.send(&mut client, b"stats\r\n");
    house.expect(&mut link, b"stats\r\n");
}

#[test]
fn without_a_leader_a_client_waits_unread_and_is_closed_after_a_while() {
    let mut house = House::new();
    house.lead(Leader::None);
    let mut early = house.client();
    house.pass(4);
    let mut late = house.client();
    house.send(&mut late, b"put 0 0 60 2\r\nhi\r\n");
    house.pass(5);
    house.run_until_idle();
    assert_eq!((house.forward.count(), house.forward.held()), (2, 0));
    house.pass(1);
    house.expect_end(&mut early);
    assert_eq!(house.forward.count(), 1);
    let leader = house.follow(Layers::NONE);
    let mut link = house.link(&leader);
    house.expect(&mut link, b"put 0 0 60 2\r\nhi\r\n");
    assert_eq!(house.forward.next_deadline(), None, "it is joined");
}

#[test]
fn a_client_that_leaves_while_it_waits_is_let_go() {
    let mut house = House::new();
    house.lead(Leader::None);
    let client = house.client();
    rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    house.expect_count(0);
}

#[test]
fn those_who_wait_are_given_back_when_this_node_leads() {
    let mut house = House::new();
    house.lead(Leader::None);
    let mut client = house.client();
    let _entering = house.connect(PROXY);
    house.send(&mut client, b"stats\r\n");
    house.run_until_idle();
    house.lead(Leader::Ourselves);
    house.lead(Leader::None);
    assert!(house.forward.next_returned().is_none(), "after all not");
    house.lead(Leader::Ourselves);
    assert!(!house.forward.takes_clients() && house.forward.has_work());
    let mut accepted = house.forward.next_returned().unwrap();
    let mut got = [0; 7];
    accepted.stream.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"stats\r\n");
    house.expect_count(0);
    assert!(!house.forward.has_work());
}

#[test]
fn a_leader_that_refuses_is_asked_again_after_a_rest_and_left_for_another() {
    let mut house = House::new();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let leader = at(&gone, Layers::NONE);
    drop(gone);
    house.lead(leader);
    let mut first = house.client();
    let mut second = house.client();
    house.until("a refusal", |house| house.forward.failures > 0);
    house.run_until_idle();
    let failures = house.forward.failures;
    assert_eq!(house.forward.next_deadline(), Some(Time(REST_NS)));
    house.run_until_idle();
    assert_eq!(house.forward.failures, failures, "it rests");
    house.now.0 += REST_NS;
    house.until("another try", |house| house.forward.failures > failures);
    let leader = house.follow(Layers::NONE);
    for client in [&mut first, &mut second] {
        house.send(client, b"stats\r\n");
        let mut link = house.link(&leader);
        house.expect(&mut link, b"stats\r\n");
    }
}

#[test]
fn a_leader_that_refuses_for_too_long_costs_the_client_its_connection() {
    let mut house = House::new();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let leader = at(&gone, Layers::NONE);
    drop(gone);
    house.lead(leader);
    let mut client = house.client();
    for _ in 0..9 {
        house.pass(1);
        house.run_until_idle();
        assert_eq!(house.forward.count(), 1);
    }
    house.pass(1);
    house.expect_end(&mut client);
    house.expect_count(0);
}

#[test]
fn a_leader_that_does_not_answer_a_dial_is_given_up_in_time() {
    let mut house = House::new();
    // A queue for connections that is full: the next ones get no answer.
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&deaf, 0).unwrap();
    let address = deaf.local_addr().unwrap();
    let _full: Vec<_> = (0..2)
        .map(|_| mio::net::TcpStream::connect(address).unwrap())
        .collect();
    house.lead(at(&deaf, Layers::NONE));
    let mut client = house.client();
    house.run_until_idle();
    assert_eq!(house.forward.next_deadline(), Some(Time(DIAL_NS)));
    house.pass(5);
    house.until("the end of the dial", |house| house.forward.failures > 0);
    assert!(house.forward.own.is_empty(), "the link is gone");
    house.pass(4);
    house.run_until_idle();
    assert_eq!(house.forward.count(), 1, "the client is not");
    house.pass(1);
    house.expect_end(&mut client);
    house.expect_count(0);
}

#[test]
fn a_leader_that_accepts_and_never_answers_holds_its_clients_until_another_leads() {
    let (mut house, leader) = House::led();
    let mut client = house.client();
    let _silent = house.link(&leader);
    house.send(&mut client, b"put 0 0 60 2\r\nhi\r\nreserve\r\n");
    house.pass(3600);
    house.run_until_idle();
    assert_eq!((house.forward.count(), house.forward.held()), (1, 0));
    house.lead(Leader::None);
    house.expect_end(&mut client);
    house.expect_count(0);
}
