//! The cost of a stranger, or of a peer that misbehaves.

use super::*;

#[test]
fn what_is_no_hello_is_closed_and_disturbs_no_one() {
    let (mut one, mut two) = pair();
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0",
        &[0xff; 100_000],
        b"bsd-peep",
    ];
    for garbage in garbage {
        let mut socket = call(&one);
        let _ = socket.write(garbage);
        one.until(|_| is_closed(&mut socket));
    }
    let mut hello = bytes_of(&hello(&one, 9));
    hello[30] ^= 1;
    let mut socket = call(&one);
    let Answer::Refused(refused) = answer(&mut one, &mut socket, &hello) else {
        panic!("it is welcome");
    };
    assert_eq!(refused.why, Why::Unreadable);
    one.until(|_| is_closed(&mut socket));
    let mut socket = call(&one);
    let early = [bytes_of(&self::hello(&one, 9)), b"x".to_vec()].concat();
    socket.write_all(&early).unwrap();
    one.until(|_| is_closed(&mut socket));
    assert_eq!(
        one.peers.refused(),
        6,
        "nothing can follow a hello before its answer"
    );
    one.send(NodeId(2), 1, 10);
    two.send(NodeId(1), 1, 10);
    both(&mut one, &mut two, |one, two| {
        one.messages() == [1] && two.messages() == [1]
    });
    assert_eq!((one.failures(), two.failures()), (0, 0));
}

#[test]
fn who_says_nothing_or_half_a_hello_is_closed_after_five_seconds() {
    let (mut one, _two) = pair();
    let (mut silent, mut half) = (call(&one), call(&one));
    half.write_all(&bytes_of(&hello(&one, 9))[..40]).unwrap();
    one.until(|one| one.peers.callers.len() == 3);
    let deadline = one.peers.next_deadline(one.now).unwrap();
    assert_eq!(deadline.since(one.now), 5 * SECOND_NS);
    one.now = Time(deadline.0 - 1);
    one.turn();
    assert!(!is_closed(&mut silent) && !is_closed(&mut half));
    one.now = deadline;
    one.until(|_| is_closed(&mut silent) && is_closed(&mut half));
    assert_eq!(
        (one.peers.callers.len(), one.failures()),
        (1, 0),
        "who is known may be silent"
    );
    one.pass(1000 * SECOND_NS);
    one.turn();
    assert_eq!((one.peers.callers.len(), one.failures()), (1, 0));
}

#[test]
fn a_stranger_is_told_why_it_is_refused() {
    let mut site = Site::new(1);
    let hello = hello(&site, 9);
    let table = [
        (
            Hello {
                cluster: ClusterId([6; 16]),
                ..hello.clone()
            },
            Why::Cluster,
        ),
        (
            Hello {
                to: NodeId(3),
                ..hello.clone()
            },
            Why::Node,
        ),
        (
            Hello {
                from: NodeId(1),
                ..hello.clone()
            },
            Why::Itself,
        ),
        (
            Hello {
                versions: Versions { min: 3, max: 9 },
                ..hello
            },
            Why::Version,
        ),
    ];
    for (hello, why) in table {
        let mut socket = call(&site);
        let Answer::Refused(refused) = answer(&mut site, &mut socket, &bytes_of(&hello)) else {
            panic!("{hello:?} is welcome");
        };
        assert_eq!(refused.why, why);
        site.until(|_| is_closed(&mut socket));
    }
    assert!(site.received.is_empty());
}

/// A stranger, and one that joins, call who follows or leads with the membership of entry 5.
#[test]
fn who_knows_an_older_membership_is_told_that_it_is_none_and_by_the_leader_also_who_knows_none() {
    let mut site = Site::new(1);
    let known = members(&[(1, site.address()), (2, "127.0.0.1:1".into())]);
    site.peers.set_members(5, &known, site.now);
    let table = [
        (false, 0, true),
        (false, 4, false),
        (false, 5, false),
        (false, 6, true),
        (true, 0, false),
        (true, 4, false),
        (true, 6, true),
    ];
    for (leads, knows, is_welcome) in table {
        site.peers.set_leads(leads);
        let stranger = Hello {
            members: knows,
            ..hello(&site, 9)
        };
        let refused = refusal(&mut site, &stranger);
        let told = refused.map(|it| (it.why, it.members));
        let expected = (!is_welcome).then_some((Why::NoMember, 5));
        assert_eq!(told, expected, "leads: {leads}, knows {knows}");
        let join = Hello {
            purpose: Purpose::Join,
            ..stranger.clone()
        };
        assert_eq!(refusal(&mut site, &join), None);
        let member = Hello {
            from: NodeId(2),
            ..stranger
        };
        assert_eq!(refusal(&mut site, &member), None);
    }
}

fn refusal(site: &mut Site, hello: &Hello) -> Option<Refused> {
    let mut socket = call(site);
    match answer(site, &mut socket, &bytes_of(hello)) {
        Answer::Refused(refused) => Some(refused),
        Answer::Welcome(_) => None,
    }
}

#[test]
fn who_is_connected_and_is_removed_has_to_call_again_and_is_told_since_when() {
    let (mut one, mut two) = pair();
    let left_out = |site: &Site| site.count(|it| matches!(it, Received::LeftOut(7)));
    one.peers
        .set_members(7, &members(&[(1, one.address())]), one.now);
    both(&mut one, &mut two, |_, two| {
        two.pass(MS);
        left_out(two) > 0
    });
    assert!(two.failures() > 0 && !is_heard(&one));
}

/// Someone sends it messages.
fn is_heard(site: &Site) -> bool {
    site.peers.callers.iter().any(|it| it.from().is_some())
}

/// Two nodes of which the first knows itself alone, since entry 6; the second knows both since entry
/// `knows`, and is heard.
fn heard_as_a_stranger(knows: u64) -> (Site, Site, Members) {
    let (mut one, mut two) = (Site::new(1), Site::new(2));
    let all = members(&[(1, one.address()), (2, two.address())]);
    let without = members(&[(1, one.address())]);
    one.peers.set_members(6, &without, one.now);
    two.peers.set_members(knows, &all, two.now);
    both(&mut one, &mut two, |one, _| is_heard(one));
    (one, two, without)
}

/// It has joined, and who follows cannot know whether it is about to be added or has been removed since.
#[test]
fn who_knows_no_membership_and_is_none_has_to_call_again_once_and_by_a_new_leader_is_told() {
    let (mut one, mut two, without) = heard_as_a_stranger(0);
    one.peers.set_members(7, &without, one.now);
    assert!(!is_heard(&one));
    both(&mut one, &mut two, |one, two| {
        two.pass(MS);
        is_heard(one)
    });
    one.peers.set_leads(false);
    assert!(is_heard(&one) && two.count(|it| matches!(it, Received::LeftOut(_))) == 0);
    one.peers.set_leads(true);
    both(&mut one, &mut two, |_, two| {
        two.pass(MS);
        two.count(|it| matches!(it, Received::LeftOut(7))) > 0
    });
}

/// Otherwise a member that was away could not be told of anything by a leader that it does not know yet.
#[test]
fn who_knows_a_newer_membership_is_heard_by_those_that_do_not_know_it() {
    let (mut one, _two, without) = heard_as_a_stranger(9);
    one.peers.set_members(7, &without, one.now);
    one.peers.set_leads(true);
    assert!(is_heard(&one));
}

#[test]
fn a_frame_that_is_repeated_damaged_or_of_another_closes_the_connection() {
    let mut site = Site::new(1);
    type Bad = fn(&mut Raw) -> Vec<u8>;
    let table: [Bad; 4] = [
        |raw| raw.frame(heartbeat(9, 1, 2, 5)).repeat(2),
        |raw| {
            let mut bytes = raw.frame(heartbeat(9, 1, 2, 5));
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        },
        |raw| raw.frame(heartbeat(8, 1, 2, 5)),
        |raw| {
            let mut bytes = Vec::new();
            let chunk = Frame::Chunk(Bytes::from_static(b"x"));
            raw.encoder.encode(&chunk, &mut bytes).unwrap();
            bytes
        },
    ];
    let mut count = 0;
    for (at, bad) in table.into_iter().enumerate() {
        let mut raw = Raw::new(&mut site, 9);
        let mut bytes = raw.frame(heartbeat(9, 1, 1, 5));
        bytes.extend(bad(&mut raw));
        raw.socket.write_all(&bytes).unwrap();
        site.until(|_| is_closed(&mut raw.socket));
        // What was in order before is taken.
        count += if at == 0 { 2 } else { 1 };
        assert_eq!(site.messages().len(), count, "{at}");
    }
    assert!(site.peers.callers.is_empty());
}

#[test]
fn a_flood_is_read_piece_by_piece_and_not_at_all_if_no_one_takes_it() {
    let mut site = Site::new(1);
    let (mut raw, mut other) = (Raw::new(&mut site, 9), Raw::new(&mut site, 8));
    let frames: Vec<u8> = (0..4000)
        .flat_map(|at| raw.frame(heartbeat(9, 1, at, 10_000)))
        .collect();
    let mut sent = 0;
    let mut flood = move || match raw.socket.write(&frames[sent..]) {
        Ok(count) => {
            sent += count;
            sent < frames.len()
        }
        Err(_) => false,
    };
    // No one takes anything.
    for _ in 0..2000 {
        while flood() {}
        let mut events = Events::with_capacity(8);
        site.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        events
            .iter()
            .for_each(|event| _ = site.peers.on_event(event.token()));
        let before = site.peers.waiting;
        site.peers.turn(site.now);
        let more = site.peers.waiting - before;
        assert!(
            more <= (1 << 20) + (2 * READ_SIZE) + (200 << 10),
            "{more} in a turn"
        );
        assert!(site.peers.waiting <= INBOX_SIZE_MAX + (2 << 20));
    }
    assert!(site.peers.waiting >= INBOX_SIZE_MAX);
    assert_ne!(
        site.peers.next_deadline(site.now),
        Some(site.now),
        "and it does not turn for nothing"
    );
    let frame = other.frame(heartbeat(8, 1, 5000, 1));
    other.socket.write_all(&frame).unwrap();
    site.until(|site| {
        while flood() {}
        site.messages().len() == 4001
    });
    let from_one: Vec<u64> = site
        .messages()
        .into_iter()
        .filter(|index| *index < 5000)
        .collect();
    assert_eq!(from_one, (0..4000).collect::<Vec<_>>());
    assert_eq!(site.peers.waiting, 0);
}

#[test]
fn who_says_nothing_gives_way_and_a_peer_still_comes_in() {
    let mut site = Site::new(1);
    let _peer = Raw::new(&mut site, 9);
    let mut silent = Vec::new();
    for _ in 0..3 * CALLERS_MAX {
        silent.push(call(&site));
        site.turn();
    }
    site.until(|site| site.peers.refused() as usize == 1 + 2 * CALLERS_MAX);
    assert_eq!(site.peers.callers.len(), CALLERS_MAX);
    let mut late = Raw::new(&mut site, 8);
    let frame = late.frame(heartbeat(8, 1, 1, 1));
    late.socket.write_all(&frame).unwrap();
    site.until(|site| site.messages() == [1]);
    assert!(
        site.peers
            .callers
            .iter()
            .any(|it| it.from() == Some(NodeId(9))),
        "who is known stays"
    );
    drop(silent);
}

/// Someone at the address of node 2, who says that it is `node`.
fn welcomed(site: &mut Site, node: u64) -> StdStream {
    let listener = StdListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    site.peers
        .set_members(1, &members(&[(2, address)]), site.now);
    site.turn();
    let (mut socket, _) = listener.accept().unwrap();
    let mut bytes = Vec::new();
    let welcome = Welcome {
        version: 1,
        node: NodeId(node),
        nonce: 7,
        client: "moved:1".into(),
        http: String::new(),
        wall_ns: 0,
        archives: None,
    };
    Answer::Welcome(welcome).encode(&mut bytes).unwrap();
    socket.write_all(&bytes).unwrap();
    socket
}

/// As an older program: it would take the frame for a fault, and close.
#[test]
fn g10_who_speaks_version_1_is_not_told_what_it_cannot_read() {
    let mut site = Site::new(1);
    let mut socket = welcomed(&mut site, 2);
    site.until(|site| site.state(2).is_connected);
    site.peers.set_drains(true);
    site.send(NodeId(2), 1, 10);
    site.until(|site| site.state(2).sent == 1);
    let mut bytes = vec![0; 64 << 10];
    let count = socket.read(&mut bytes).unwrap();
    let (_, size) = Hello::decode(&bytes[..count]).unwrap().unwrap();
    let mut decoder = Decoder::new(7, Side::Dialer, NodeId(1), NodeId(2));
    decoder.feed(&bytes[size..count]);
    loop {
        match decoder.next().unwrap() {
            Some(Frame::Raft(_)) => return,
            Some(other) => panic!("{other:?}"),
            None => {
                let count = socket.read(&mut bytes).unwrap();
                decoder.feed(&bytes[..count]);
            }
        }
    }
}

/// One that welcomes and then reads nothing.
fn deaf(site: &mut Site) -> StdStream {
    let socket = welcomed(site, 2);
    site.until(|site| site.state(2).is_connected);
    socket
}

/// Its disk is another one, or its address: it has forgotten what node 2 has answered for.
#[test]
fn another_node_at_the_address_of_a_peer_is_not_taken_for_it() {
    let mut site = Site::new(1);
    let _socket = welcomed(&mut site, 3);
    site.until(|site| site.failures() == 1);
    assert!(!site.state(2).is_connected);
}

#[test]
fn what_waits_for_one_that_takes_nothing_is_bounded_and_ends_after_ten_seconds() {
    let mut site = Site::new(1);
    let _socket = deaf(&mut site);
    assert_eq!(site.peers.client_address(NodeId(2)), Some("moved:1"));
    for index in 0..1000 {
        site.send(NodeId(2), index, 100_000);
        site.turn();
        assert!(site.state(2).queued <= link::QUEUE_SIZE_MAX);
    }
    assert!(site.state(2).dropped > 0 && site.state(2).queued > link::QUEUE_SIZE_MAX - 200_000);
    assert_eq!(site.failures(), 0);
    let deadline = site.peers.next_deadline(site.now).unwrap();
    assert_eq!(deadline.since(site.now), 10 * SECOND_NS);
    site.now = Time(deadline.0 - 1);
    site.turn();
    assert_eq!(site.failures(), 0);
    site.now = deadline;
    site.turn();
    assert_eq!((site.failures(), site.state(2).queued), (1, 0));
    let PeerState { sent, dropped, .. } = site.state(2);
    assert!(
        sent + dropped == 1000 && sent > 0,
        "{sent} sent and {dropped} dropped"
    );
}

#[test]
fn one_that_says_something_after_its_welcome_is_closed() {
    let mut site = Site::new(1);
    let mut socket = deaf(&mut site);
    socket.write_all(b"x").unwrap();
    site.until(|site| site.failures() == 1);
}
