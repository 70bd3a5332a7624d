//! Replies that leave, and those that are held.

use super::buffer::WRITTEN_PER_CLIENT_MAX;
use super::*;
use bsd::engine::{Engine, Options};
use bsd::protocol::{Command, Request};
use bsd::types::{JobId, Now, SECOND_NS};

const ONE: ClientId = ClientId(0);
const TWO: ClientId = ClientId(1);

/// A socket that takes `room` bytes and then would block.
struct Socket {
    bytes: Vec<u8>,
    room: usize,
    writes: usize,
}

impl Socket {
    fn new() -> Socket {
        Socket {
            bytes: Vec::new(),
            room: usize::MAX,
            writes: 0,
        }
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).unwrap()
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = bytes.len().min(self.room);
        self.bytes.extend_from_slice(&bytes[..count]);
        self.room -= count;
        self.writes += 1;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn at(offset: u32) -> Ticket {
    Ticket::turn(offset.into())
}

fn outputs() -> Outputs {
    let mut outputs = Outputs::new(1 << 30);
    outputs.open(ONE);
    outputs.open(TWO);
    outputs
}

/// One turn's sending, for this client alone.
fn send_dirty(outputs: &mut Outputs, client: ClientId, socket: &mut Socket) {
    outputs.begin_turn(Time(0));
    while let Some(listed) = outputs.next_dirty() {
        assert_eq!(listed, client);
        outputs.send(client, socket).unwrap();
    }
}

#[test]
fn nothing_leaves_before_the_log_has_caught_up() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    outputs.reply(ONE, at(10), Reply::Inserted(JobId(1)));
    outputs.reply(ONE, at(20), Reply::Inserted(JobId(2)));
    send_dirty(&mut outputs, ONE, &mut socket);
    outputs.acknowledge(at(9));
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.text(), "");
    outputs.acknowledge(at(10));
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.text(), "INSERTED 1\r\n");
    outputs.acknowledge(at(25));
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.text(), "INSERTED 1\r\nINSERTED 2\r\n");
    assert!(outputs.is_empty(ONE));
}

#[test]
fn a_reply_that_need_not_wait_does_not_overtake_one_that_must() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    outputs.reply(ONE, at(10), Reply::Deleted);
    outputs.reply(ONE, Ticket::NONE, Reply::NotFound);
    assert_eq!(outputs.send(ONE, &mut socket).unwrap(), Sent::Part);
    assert_eq!(socket.text(), "");
    outputs.acknowledge(at(10));
    assert_eq!(outputs.send(ONE, &mut socket).unwrap(), Sent::All);
    assert_eq!(socket.text(), "DELETED\r\nNOT_FOUND\r\n");
}

#[test]
fn a_reply_before_the_one_that_waits_leaves_at_once() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    outputs.reply(ONE, Ticket::NONE, Reply::NotFound);
    outputs.reply(ONE, at(10), Reply::Deleted);
    assert_eq!(outputs.send(ONE, &mut socket).unwrap(), Sent::Part);
    assert_eq!(socket.text(), "NOT_FOUND\r\n");
}

#[test]
fn one_client_that_waits_does_not_hold_up_another() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    outputs.reply(ONE, at(10), Reply::Deleted);
    outputs.reply(TWO, Ticket::NONE, Reply::NotFound);
    assert_eq!(outputs.send(TWO, &mut socket).unwrap(), Sent::All);
    assert_eq!(socket.text(), "NOT_FOUND\r\n");
}

#[test]
fn many_replies_take_one_write() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    for id in 0..100 {
        outputs.reply(ONE, at(id), Reply::Inserted(JobId(u64::from(id))));
    }
    outputs.acknowledge(at(100));
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.writes, 1);
    assert_eq!(socket.text().lines().count(), 100);
}

#[test]
fn a_full_socket_goes_on_where_it_stopped() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    socket.room = 5;
    outputs.reply(ONE, Ticket::NONE, Reply::NotFound);
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.text(), "NOT_F");
    assert!(!outputs.has_dirty(), "it would be tried again and again");
    // A further reply does not try a socket that is known to be full.
    outputs.reply(ONE, Ticket::NONE, Reply::Deleted);
    socket.room = usize::MAX;
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.text(), "NOT_F");
    outputs.set_writable(ONE);
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.text(), "NOT_FOUND\r\nDELETED\r\n");
}

#[test]
fn a_client_that_does_not_take_its_replies_is_not_served() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    let body = vec![b'x'; PENDING_MAX];
    assert!(outputs.may_run(ONE));
    outputs.reply(ONE, Ticket::NONE, Reply::Found(JobId(1), &body));
    assert!(!outputs.may_run(ONE));
    assert!(outputs.may_run(TWO));
    outputs.send(ONE, &mut socket).unwrap();
    assert!(outputs.may_run(ONE));
}

#[test]
fn a_large_reply_is_written_in_turns() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    let body = vec![b'x'; 2 * WRITTEN_PER_CLIENT_MAX];
    outputs.reply(ONE, Ticket::NONE, Reply::Found(JobId(1), &body));
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.bytes.len(), WRITTEN_PER_CLIENT_MAX);
    assert!(
        outputs.has_dirty(),
        "the next turn must not wait for an event"
    );
    send_dirty(&mut outputs, ONE, &mut socket);
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(
        socket.bytes.len(),
        body.len() + "FOUND 1 524288\r\n\r\n".len()
    );
    assert!(outputs.is_empty(ONE));
}

/// Clients to which something is written in one turn, in order.
fn turn(outputs: &mut Outputs) -> Vec<u32> {
    let mut order = Vec::new();
    outputs.begin_turn(Time(0));
    while let Some(client) = outputs.next_dirty() {
        outputs.send(client, &mut Socket::new()).unwrap();
        order.push(client.0);
    }
    order
}

#[test]
fn f22_a_turn_takes_and_writes_its_share_and_who_comes_again_goes_first() {
    let mut outputs = Outputs::new(1 << 30);
    let body = vec![b'x'; 4 * WRITTEN_PER_CLIENT_MAX];
    let clients: Vec<_> = (0..20).map(ClientId).collect();
    for &client in &clients {
        assert_eq!(outputs.is_full(), client.0 >= 4, "{client:?}");
        outputs.open(client);
        outputs.reply(client, Ticket::NONE, Reply::Found(JobId(1), &body));
    }
    assert_eq!(turn(&mut outputs), Vec::from_iter(0..16));
    assert!(!outputs.is_full());
    let last = ClientId(20);
    outputs.open(last);
    outputs.reply(last, Ticket::NONE, Reply::NotFound);
    let order: Vec<u32> = [20].into_iter().chain(16..20).chain(0..12).collect();
    assert_eq!(
        turn(&mut outputs),
        order,
        "those who are left over come last"
    );
}

#[test]
fn f22_when_a_turn_has_written_for_long_enough_only_who_comes_again_is_told_and_one_more() {
    let mut outputs = Outputs::new(1 << 30);
    let body = vec![b'x'; 2 * WRITTEN_PER_CLIENT_MAX];
    let small = ClientId(9);
    outputs.open(small);
    for client in (0..9).map(ClientId) {
        outputs.open(client);
        outputs.reply(client, Ticket::NONE, Reply::Found(JobId(1), &body));
    }
    // Each reading of the clock finds that this much time has passed.
    let mut time = 0;
    let mut turn = |outputs: &mut Outputs| {
        let mut order = Vec::new();
        outputs.begin_turn(Time(time));
        while let Some(client) = outputs.next_dirty() {
            outputs.send(client, &mut Socket::new()).unwrap();
            order.push(client.0);
            outputs.note_time(|| {
                time += SECOND_NS;
                Time(time)
            });
        }
        order
    };
    assert_eq!(turn(&mut outputs), [0, 1]);
    assert!(outputs.is_behind());
    outputs.reply(small, Ticket::NONE, Reply::NotFound);
    assert_eq!(turn(&mut outputs), [9, 2, 3]);
}

#[test]
fn f24_where_much_is_held_only_who_has_taken_all_is_served_and_past_the_bound_no_one() {
    let mut outputs = Outputs::new(100_000);
    outputs.open(ONE);
    outputs.open(TWO);
    let body = vec![b'x'; 60_000];
    outputs.reply(ONE, Ticket::NONE, Reply::Found(JobId(1), &body));
    assert!(!outputs.may_run(ONE) && outputs.may_run(TWO));
    assert!(!outputs.is_over());
    outputs.reply(TWO, Ticket::NONE, Reply::Found(JobId(1), &body));
    assert!(outputs.is_over());
    outputs.close(ONE);
    assert!(!outputs.is_over());
}

/// The document of `list-tubes` for `count` tubes with long names.
fn document(count: usize) -> (Engine, Outputs) {
    let now = Now::new(Time(0), 0);
    let mut engine = Engine::open(&Options::default(), now).unwrap();
    let mut outputs = Outputs::new(1 << 30);
    let client = engine.connect();
    assert_eq!(client, ONE);
    outputs.open(ONE);
    for number in 0..count {
        let name = format!("{number:0150}");
        let watch = Request::Command(Command::Watch((&name).into()));
        engine.run(ONE, watch, now, &mut outputs);
    }
    outputs.discard(ONE);
    let list = Request::Command(Command::ListTubes);
    engine.run(ONE, list, now, &mut outputs);
    (engine, outputs)
}

#[test]
fn f23_a_long_list_of_tubes_is_written_down_as_it_leaves_and_held_in_part_only() {
    let (_engine, mut outputs) = document(5000);
    assert!(outputs.held() < 20_000, "{}", outputs.held());
    assert!(!outputs.may_run(ONE), "what comes behind it waits");
    let mut socket = Socket::new();
    let size = 4 + "- default\n".len() + 5000 * 153;
    let mut turns = 0;
    while !outputs.is_empty(ONE) {
        send_dirty(&mut outputs, ONE, &mut socket);
        assert!(outputs.held() < 150_000, "{}", outputs.held());
        turns += 1;
    }
    assert!(turns >= size / (2 * WRITTEN_PER_TURN_MAX), "{turns}");
    let text = socket.text();
    assert!(text.starts_with(&format!("OK {size}\r\n---\n- default\n- 000")));
    assert!(text.ends_with("4999\n\r\n"));
    assert_eq!(text.len(), format!("OK {size}\r\n").len() + size + 2);
    assert!(outputs.may_run(ONE));
}

#[test]
fn f23_a_client_that_leaves_in_the_middle_of_a_document_leaves_nothing() {
    let (_engine, mut outputs) = document(5000);
    let mut socket = Socket::new();
    socket.room = 50_000;
    send_dirty(&mut outputs, ONE, &mut socket);
    assert!(outputs.longest_stalled().is_some());
    outputs.close(ONE);
    assert_eq!((outputs.held(), outputs.longest_stalled()), (0, None));
}

#[test]
fn f24_who_has_taken_nothing_for_longest_is_known() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    let mut send = |outputs: &mut Outputs, client, room, at| {
        outputs.begin_turn(Time(at));
        outputs.set_writable(client);
        socket.room = room;
        outputs.send(client, &mut socket).unwrap();
    };
    for client in [ONE, TWO] {
        outputs.reply(client, Ticket::NONE, Reply::NotFound);
    }
    assert_eq!(
        outputs.longest_stalled(),
        None,
        "no one has been offered anything"
    );
    send(&mut outputs, ONE, 0, 1);
    send(&mut outputs, TWO, 0, 2);
    assert_eq!(outputs.longest_stalled(), Some((Time(1), ONE)));
    send(&mut outputs, ONE, 1, 3);
    assert_eq!(outputs.longest_stalled(), Some((Time(2), TWO)));
    send(&mut outputs, TWO, 100, 4);
    assert_eq!(outputs.longest_stalled(), Some((Time(3), ONE)));
    outputs.close(ONE);
    assert_eq!(outputs.longest_stalled(), None);
}

#[test]
fn a_reply_ends_the_waiting_of_a_blocked_client() {
    let mut outputs = outputs();
    outputs.block(ONE);
    assert!(!outputs.may_run(ONE));
    outputs.reply(ONE, Ticket::NONE, Reply::TimedOut);
    assert!(outputs.may_run(ONE));
    assert_eq!(outputs.next_unblocked(), Some(ONE));
    assert_eq!(outputs.next_unblocked(), None);
}

#[test]
fn memory_is_counted_and_given_back() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    let body = vec![b'x'; 60_000];
    outputs.reply(ONE, Ticket::NONE, Reply::Found(JobId(1), &body));
    outputs.reply(TWO, Ticket::NONE, Reply::Found(JobId(1), &body));
    assert!(outputs.held() > 120_000);
    outputs.send(ONE, &mut socket).unwrap();
    outputs.close(TWO);
    assert_eq!(outputs.held(), 0);
    assert!(outputs.pool.is_empty(), "large buffers are not kept");
}

#[test]
fn the_next_holder_of_an_id_is_told_nothing_of_the_last_ones() {
    let (mut outputs, mut socket) = (outputs(), Socket::new());
    outputs.reply(ONE, at(10), Reply::Inserted(JobId(1)));
    outputs.send(ONE, &mut socket).unwrap();
    outputs.close(ONE);
    outputs.open(ONE);
    outputs.acknowledge(at(10));
    outputs.reply(ONE, Ticket::NONE, Reply::NotFound);
    send_dirty(&mut outputs, ONE, &mut socket);
    assert_eq!(socket.text(), "NOT_FOUND\r\n");
}
