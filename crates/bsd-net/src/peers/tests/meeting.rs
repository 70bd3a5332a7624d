//! Who calls whom, at which address, and what is said.

use super::*;

#[test]
fn messages_pass_both_ways_in_order_and_addresses_with_the_greetings() {
    let (mut one, mut two) = pair();
    for index in 1..=500 {
        one.send(NodeId(2), index, index as usize);
        two.send(NodeId(1), 1000 + index, 1);
    }
    both(&mut one, &mut two, |one, two| {
        one.messages().len() == 500 && two.messages().len() == 500
    });
    assert_eq!(two.messages(), (1..=500).collect::<Vec<_>>());
    assert_eq!(one.messages(), (1001..=1500).collect::<Vec<_>>());
    assert_eq!(one.peers.client_address(NodeId(2)), Some("client-2:11300"));
    assert_eq!(
        one.peers.peer_address(NodeId(2)),
        Some(two.address().as_str())
    );
    assert_eq!(
        (one.state(2).sent, one.state(2).dropped, one.state(2).queued),
        (500, 0, 0)
    );
    assert_eq!(
        one.count(|it| matches!(it, Received::Connected(NodeId(2)))),
        1
    );
    assert_eq!((one.failures(), one.peers.refused()), (0, 0));
}

#[test]
fn g12_where_http_reaches_a_peer_comes_with_the_greetings() {
    let (one, two) = pair();
    let (of_two, of_one) = ("http://client-2:11380", "http://client-1:11380");
    assert_eq!(one.peers.http_address(NodeId(2)), Some(of_two));
    assert_eq!(two.peers.http_address(NodeId(1)), Some(of_one));
    assert_eq!(one.state(2).http, of_two);
}

#[test]
fn whether_a_peer_archives_comes_with_the_greetings() {
    let (one, two) = pair();
    assert_eq!(one.state(2).archives, Some(false));
    assert_eq!(two.state(1).archives, Some(true));
}

#[test]
fn g10_a_clock_that_is_apart_is_known_by_as_much_as_is_certain() {
    const AT: u64 = 1_800_000_000_000_000_000;
    let seconds = |seconds: i64| seconds * SECOND_NS;
    for (ours, theirs, ahead) in [
        (AT, AT, Some(0)),
        (AT, AT + 3_600_000_000_000, Some(seconds(3600))),
        (AT, AT - 5_000_000_000, Some(seconds(-5))),
        // It does not say.
        (AT, 0, None),
    ] {
        let (mut one, mut two) = (Site::new(1), Site::new(2));
        one.peers.set_wall(ours);
        two.peers.set_wall(theirs);
        let (one, _two) = meet(one, two);
        assert_eq!(one.state(2).clock_ahead_ns, ahead, "{ours} {theirs}");
    }
}

#[test]
fn a_large_message_arrives_whole() {
    let (mut one, mut two) = pair();
    let mut message = one.message(NodeId(2), 1, 0);
    message.msg_type = MessageType::MsgAppend;
    let entry = Entry {
        index: 2,
        term: 1,
        data: vec![9; 16 << 20].into(),
        ..Entry::default()
    };
    message.entries = vec![entry].into();
    one.peers.send(NodeId(2), message.clone());
    both(&mut one, &mut two, |_, two| !two.messages().is_empty());
    let is_it =
        |it: &Received| matches!(it, Received::Message { message: it, .. } if *it == message);
    assert_eq!(two.count(is_it), 1);
}

/// A peer that sends a message of megabytes is heard of only when it has come: until then it says that it
/// lives by sending.
#[test]
fn a_large_message_is_seen_to_move_at_both_ends_and_a_small_one_is_not() {
    let (mut one, mut two) = pair();
    let moves = |site: &Site, of: u64| {
        site.count(|it| matches!(it, Received::Moves(node) if *node == NodeId(of)))
    };
    one.send(NodeId(2), 1, 1000);
    both(&mut one, &mut two, |_, two| two.messages() == [1]);
    assert_eq!((moves(&one, 2), moves(&two, 1)), (0, 0));
    one.send(NodeId(2), 2, 8 << 20);
    both(&mut one, &mut two, |_, two| moves(two, 1) >= 64);
    assert_eq!(
        two.messages(),
        [1],
        "it is said before the message has come"
    );
    both(&mut one, &mut two, |_, two| two.messages() == [1, 2]);
    assert!(moves(&one, 2) > 0 && moves(&two, 1) < (8 << 20) / MOVED_SIZE + 1);
    assert_eq!((moves(&one, 1), moves(&two, 2)), (0, 0));
}

#[test]
fn a_node_that_falls_is_called_again_and_nothing_old_is_sent() {
    let (mut one, two) = pair();
    let (address, known) = (two.address(), members(&[(2, two.address())]));
    drop(two);
    one.until(|one| one.failures() > 0);
    one.send(NodeId(2), 1, 10);
    assert_eq!(one.state(2).dropped, 1, "there is no connection");
    let mut two = Site::new(2);
    two.peers.me.peer.clone_from(&address);
    let listener = StdListener::bind(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    two.peers.listener = TcpListener::from_std(listener);
    two.poll
        .registry()
        .register(&mut two.peers.listener, FIRST, Interest::READABLE)
        .unwrap();
    two.peers.may_accept = true;
    one.peers.set_members(1, &known, one.now);
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.state(2).is_connected
    });
    one.send(NodeId(2), 2, 10);
    both(&mut one, &mut two, |_, two| !two.messages().is_empty());
    assert_eq!(two.messages(), [2]);
}

#[test]
fn who_cannot_be_reached_is_called_less_and_less_often() {
    let mut site = Site::new(1);
    let closed = StdListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    site.peers
        .set_members(1, &members(&[(2, closed.to_string())]), site.now);
    let mut rests = Vec::new();
    for failures in 1..=9 {
        site.until(|site| site.failures() == failures);
        let until = site.peers.links[0].next_deadline(site.now).unwrap();
        rests.push(until.since(site.now));
        site.now = Time(until.0 - 1);
        site.turn();
        assert_eq!(site.failures(), failures, "not before its time");
        site.now = until;
    }
    let mut due = 50 * MS;
    for rest in rests {
        assert!((due * 3 / 4..=due).contains(&rest), "{rest} is not {due}");
        due = (2 * due).min(2000 * MS);
    }
}

#[test]
fn a_name_is_looked_up_beside_the_loop() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    let port = two.peers.local_addr().unwrap().port();
    one.peers
        .set_members(1, &members(&[(2, format!("localhost:{port}"))]), one.now);
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.state(2).is_connected
    });
    // No name ends so (RFC 6761).
    one.peers
        .set_members(1, &members(&[(3, "absent.invalid:1".into())]), one.now);
    one.until(|one| one.failures() > 0);
}

#[test]
fn a_peer_of_another_cluster_is_not_connected_to() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    two.peers.me.cluster = ClusterId([6; 16]);
    one.peers
        .set_members(1, &members(&[(2, two.address())]), one.now);
    both(&mut one, &mut two, |one, _| one.failures() == 1);
    assert!(!one.state(2).is_connected);
}

#[test]
fn of_two_connections_of_a_peer_the_newest_is_heard() {
    let mut site = Site::new(1);
    let mut old = Raw::new(&mut site, 9);
    let mut new = Raw::new(&mut site, 9);
    site.until(|_| is_closed(&mut old.socket));
    let frame = new.frame(heartbeat(9, 1, 1, 1));
    new.socket.write_all(&frame).unwrap();
    site.until(|site| site.messages() == [1]);
    assert_eq!(site.peers.callers.len(), 1);
}

/// A new member learns of the others from the leader's entries: it must answer before.
#[test]
fn who_is_no_member_and_calls_is_answered_as_long_as_it_calls() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    one.peers
        .set_members(1, &members(&[(2, two.address())]), one.now);
    both(&mut one, &mut two, |_, two| {
        two.peers
            .states()
            .first()
            .is_some_and(|state| state.is_connected)
    });
    two.send(NodeId(1), 1, 1);
    both(&mut one, &mut two, |one, _| one.messages() == [1]);
    assert_eq!(two.peers.client_address(NodeId(1)), Some("client-1:11300"));
    two.send(NodeId(7), 1, 1);
    assert_eq!(two.peers.dropped, 1, "no one knows node 7");
    one.peers.set_members(1, &Members::default(), one.now);
    both(&mut one, &mut two, |_, two| two.peers.states().is_empty());
}

#[test]
fn an_address_that_a_peer_says_counts_until_the_membership_has_a_new_one() {
    let mut site = Site::new(1);
    let old = "127.0.0.1:2".to_owned();
    site.peers
        .set_members(1, &members(&[(9, old.clone())]), site.now);
    let _raw = Raw::new(&mut site, 9);
    let address = |site: &Site| site.peers.peer_address(NodeId(9)).unwrap().to_owned();
    assert_eq!(address(&site), "127.0.0.1:1");
    site.peers.set_members(1, &members(&[(9, old)]), site.now);
    assert_eq!(address(&site), "127.0.0.1:1");
    site.peers
        .set_members(1, &members(&[(9, "127.0.0.1:3".into())]), site.now);
    assert_eq!(address(&site), "127.0.0.1:3");
}

#[test]
fn an_address_that_does_not_answer_and_the_one_of_the_membership_are_tried_in_turn() {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    one.peers
        .set_members(1, &members(&[(2, two.address())]), one.now);
    let raw = Raw::new(&mut one, 2);
    assert_eq!(one.peers.peer_address(NodeId(2)), Some("127.0.0.1:1"));
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.state(2).is_connected
    });
    let failures = one.failures();
    // What it says while the connection stands is for the next one.
    let _again = Raw::new(&mut one, 2);
    drop(raw);
    one.turn();
    assert!(one.state(2).is_connected && one.failures() == failures);
}

#[test]
fn who_gets_another_identity_says_hello_again() {
    let (mut one, mut two) = pair();
    let other = Me {
        cluster: ClusterId([8; 16]),
        ..me(1, one.address())
    };
    one.peers.set_me(other, one.now);
    both(&mut one, &mut two, |one, _| {
        one.pass(MS);
        one.failures() > 0
    });
    let other = Me {
        cluster: ClusterId([8; 16]),
        ..me(2, two.address())
    };
    two.peers.set_me(other, two.now);
    both(&mut one, &mut two, |one, two| {
        one.pass(MS);
        two.pass(MS);
        one.state(2).is_connected && two.state(1).is_connected
    });
}

#[test]
fn tokens_of_others_are_left_alone() {
    let mut site = Site::new(1);
    for token in [0, FIRST.0 - 1, FIRST.0 + TOKENS, usize::MAX] {
        assert!(!site.peers.on_event(Token(token)));
    }
    assert!(site.peers.on_event(FIRST));
}
