//! Whole servers with an engine in memory, each on a thread of this process, and blocking clients.

mod threads;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;

use super::core::REQUESTS_PER_CONNECTION;
use super::*;
use bsd::engine::{Options, ReplySink};
use bsd::protocol::{Command, Reply};
use bsd::storage::{Log, SimFs, SyncPolicy};
use bsd::types::JobId;

/// No reply takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that runs until this is dropped.
struct Running {
    address: String,
    stopper: Stopper,
    door: Door,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

/// A server whose turns the test runs itself, and where it listens. If the test waits for something
/// that does not come, the server is told to stop.
fn by_hand() -> (Server, SocketAddr) {
    by_hand_with(None)
}

fn by_hand_with(dir: Option<&Path>) -> (Server, SocketAddr) {
    by_hand_within(dir, bounds(1000), None)
}

fn by_hand_within(
    dir: Option<&Path>,
    bounds: Bounds,
    memory_max: Option<u64>,
) -> (Server, SocketAddr) {
    by_hand_on(bounds, |reactor| Options {
        dir: dir.map(Path::to_owned),
        memory_max,
        ..in_memory(reactor)
    })
}

fn by_hand_on(bounds: Bounds, options: impl Fn(&Reactor) -> Options) -> (Server, SocketAddr) {
    let reactor = Reactor::new().unwrap();
    let address = Address::parse("127.0.0.1:0", &Port::Number(0)).unwrap();
    let listener = Bound::bind(&address, None).unwrap().listen().unwrap();
    let address = listener.name().parse().unwrap();
    let clock = Clock::start();
    let options = options(&reactor);
    let engine = Engine::open(&options, clock.now()).unwrap();
    let stopper = reactor.stopper();
    std::thread::spawn(move || {
        std::thread::sleep(PATIENCE);
        stopper.stop()
    });
    let server = Server::new(reactor, engine, vec![listener], bounds, clock).unwrap();
    (server, address)
}

/// Run turns until the condition is true. The caller has done what makes it true.
fn turn_until(server: &mut Server, is_so: impl Fn(&Server) -> bool) {
    let mut events = reactor::events();
    while !is_so(server) {
        assert!(!server.turn(&mut events).unwrap());
    }
}

impl Running {
    fn start() -> Running {
        Running::start_at("127.0.0.1:0", 1000)
    }

    fn start_at(address: &str, connections_max: usize) -> Running {
        let reactor = Reactor::new().unwrap();
        let address = Address::parse(address, &Port::Number(0)).unwrap();
        let listener = Bound::bind(&address, None).unwrap().listen().unwrap();
        let (address, stopper) = (listener.name().to_owned(), reactor.stopper());
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let clock = Clock::start();
            let engine = Engine::open(&in_memory(&reactor), clock.now()).unwrap();
            let bounds = bounds(connections_max);
            let server = Server::new(reactor, engine, vec![listener], bounds, clock).unwrap();
            tell.send(server.door()).unwrap();
            server.run()
        });
        Running {
            address,
            stopper,
            door: told.recv().unwrap(),
            thread: Some(thread),
        }
    }

    fn client(&self) -> Client<TcpStream> {
        connect(self.address.parse().unwrap())
    }

    fn stop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.stopper.stop().unwrap();
            thread.join().unwrap().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

fn bounds(connections_max: usize) -> Bounds {
    let (bounds, _) = Bounds::within(None);
    Bounds {
        connections_max,
        ..bounds
    }
}

fn in_memory(reactor: &Reactor) -> Options {
    Options {
        dir: None,
        sync: SyncPolicy::Always,
        segment_size: 1 << 20,
        job_size_max: 1 << 20,
        memory_max: None,
        waker: Some(reactor.waker()),
        progress: None,
        ..Options::default()
    }
}

struct Client<S>(S);

fn connect(address: SocketAddr) -> Client<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    Client(stream)
}

/// Connect `count` clients, some at a time: a system may let no more than 128 wait.
fn connect_all(server: &mut Server, address: SocketAddr, count: usize) -> Vec<Client<TcpStream>> {
    let mut clients: Vec<Client<TcpStream>> = Vec::new();
    let before = server.connection_count;
    while clients.len() < count {
        let more = (count - clients.len()).min(64);
        clients.extend((0..more).map(|_| connect(address)));
        let all = before + clients.len();
        turn_until(server, |server| server.connection_count == all);
    }
    clients
}

/// Let the server turn until something has come back to the client.
fn turn_until_answered(server: &mut Server, client: &Client<TcpStream>) {
    client.0.set_nonblocking(true).unwrap();
    turn_until(server, |_| client.0.peek(&mut [0]).is_ok());
    client.0.set_nonblocking(false).unwrap();
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// The next bytes are these.
    fn expect(&mut self, expected: &str) {
        let mut got = vec![0; expected.len()];
        let mut filled = 0;
        while filled < got.len() {
            match self.0.read(&mut got[filled..]) {
                Ok(count) if count > 0 => filled += count,
                end => panic!("{end:?} after {}", got[..filled].escape_ascii()),
            }
        }
        assert_eq!(String::from_utf8_lossy(&got), expected);
    }

    /// The next line says that a job was put; its id.
    fn inserted(&mut self) -> u64 {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let line = String::from_utf8(line).unwrap();
        let id = line.strip_prefix("INSERTED ").unwrap().trim_end();
        id.parse().unwrap()
    }

    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.escape_ascii().to_string(), "");
    }

    fn ask(&mut self, request: &str, reply: &str) {
        self.send(request);
        self.expect(reply);
    }
}

#[test]
fn commands_sent_together_are_answered_in_order() {
    let server = Running::start();
    let mut client = server.client();
    client.send("put 0 0 60 2\r\nhi\r\nreserve\r\nnonsense\r\ndelete 1\r\ndelete 1\r\n");
    client
        .expect("INSERTED 1\r\nRESERVED 1 2\r\nhi\r\nUNKNOWN_COMMAND\r\nDELETED\r\nNOT_FOUND\r\n");
}

#[test]
fn a_command_may_come_a_byte_at_a_time() {
    let server = Running::start();
    let mut client = server.client();
    for byte in b"put 0 0 60 5\r\nhello\r\n" {
        client.send([*byte]);
    }
    client.expect("INSERTED 1\r\n");
}

#[test]
fn more_commands_than_a_turn_runs_are_all_answered() {
    let server = Running::start();
    let mut client = server.client();
    let count = 5 * REQUESTS_PER_CONNECTION;
    client.send("use a\r\n".repeat(count));
    client.expect(&"USING a\r\n".repeat(count));
}

#[test]
fn what_follows_a_reserve_that_waits_runs_after_it() {
    let server = Running::start();
    let (mut worker, mut producer) = (server.client(), server.client());
    worker.send("reserve\r\nuse a\r\n");
    producer.ask("put 0 0 60 2\r\nhi\r\n", "INSERTED 1\r\n");
    worker.expect("RESERVED 1 2\r\nhi\r\nUSING a\r\n");
}

#[test]
fn a_reserve_with_a_timeout_is_answered_without_any_event() {
    let server = Running::start();
    let mut client = server.client();
    client.ask("reserve-with-timeout 1\r\n", "TIMED_OUT\r\n");
}

#[test]
fn a_client_that_shuts_down_its_side_waits_no_longer_and_is_answered_to_the_end() {
    let server = Running::start();
    let mut client = server.client();
    client.send("reserve\r\nuse a\r\nreserve\r\nuse b");
    client.0.shutdown(Shutdown::Write).unwrap();
    client.expect("TIMED_OUT\r\nUSING a\r\nTIMED_OUT\r\n");
    client.expect_end();
}

#[test]
fn quit_is_answered_by_what_was_asked_before_and_the_end() {
    let server = Running::start();
    let mut client = server.client();
    client.send("use a\r\nquit\r\nuse b\r\n");
    client.expect("USING a\r\n");
    client.expect_end();
}

#[test]
fn a_job_does_not_go_to_a_worker_that_is_gone() {
    let server = Running::start();
    let mut gone = server.client();
    gone.ask("use a\r\n", "USING a\r\n");
    gone.send("reserve\r\n");
    drop(gone);
    let mut worker = server.client();
    // A request that comes in a later turn than the end of the first client is served after it.
    for _ in 0..100 {
        worker.ask("use default\r\n", "USING default\r\n");
    }
    worker.ask("put 0 0 60 2\r\nhi\r\n", "INSERTED 1\r\n");
    worker.ask("reserve-with-timeout 0\r\n", "RESERVED 1 2\r\nhi\r\n");
}

#[test]
fn a_client_that_takes_no_replies_holds_up_no_one_and_is_answered_later() {
    let server = Running::start();
    let (mut greedy, mut other) = (server.client(), server.client());
    let body = "x".repeat(1 << 20);
    other.ask(
        &format!("put 0 0 60 {}\r\n{body}\r\n", body.len()),
        "INSERTED 1\r\n",
    );
    let mut sender = Client(greedy.0.try_clone().unwrap());
    // More than the sockets and the server take together, so that some of it must be held.
    let count = 64;
    let asking = std::thread::spawn(move || sender.send("peek 1\r\n".repeat(count)));
    for _ in 0..100 {
        other.ask("use a\r\n", "USING a\r\n");
    }
    let reply = format!("FOUND 1 {}\r\n{body}\r\n", body.len());
    for _ in 0..count {
        greedy.expect(&reply);
    }
    asking.join().unwrap();
}

#[test]
fn a_client_past_the_bound_is_turned_away_and_the_others_go_on() {
    let server = Running::start_at("127.0.0.1:0", 1);
    let mut first = server.client();
    first.ask("use a\r\n", "USING a\r\n");
    server.client().expect_end();
    first.ask("use b\r\n", "USING b\r\n");
}

#[test]
fn a_unix_socket_serves_and_its_file_goes_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q");
    let mut server = Running::start_at(&format!("unix:{}", path.display()), 10);
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = Client(stream);
    client.ask("put 0 0 60 2\r\nhi\r\n", "INSERTED 1\r\n");
    client.send("use a\r\nreserve\r\n");
    client.0.shutdown(Shutdown::Write).unwrap();
    client.expect("USING a\r\nRESERVED 1 2\r\nhi\r\n");
    client.expect_end();
    server.stop();
    assert!(!Path::new(&path).exists());
}

#[test]
fn a_server_that_is_stopped_closes_its_connections() {
    let mut server = Running::start();
    let mut client = server.client();
    client.ask("use a\r\n", "USING a\r\n");
    server.stop();
    client.expect_end();
}

#[test]
fn two_servers_in_one_process_share_nothing() {
    let (one, two) = (Running::start(), Running::start());
    let (mut client, mut other) = (one.client(), two.client());
    client.ask("put 0 0 60 2\r\nhi\r\n", "INSERTED 1\r\n");
    other.ask("reserve-with-timeout 0\r\n", "TIMED_OUT\r\n");
    drop(one);
    other.ask("use a\r\n", "USING a\r\n");
}

#[test]
fn replies_too_many_for_one_turn_reach_all_clients() {
    let (mut server, address) = by_hand();
    let mut clients: Vec<_> = (0..100).map(|_| connect(address)).collect();
    turn_until(&mut server, |server| {
        server.connection_count == clients.len()
    });
    let body = vec![b'x'; 60_000];
    for (index, _) in server
        .connections
        .iter()
        .enumerate()
        .filter(|(_, slot)| slot.is_some())
    {
        let client = ClientId(index as u32);
        server
            .core
            .outputs
            .reply(client, Ticket::NONE, Reply::Found(JobId(1), &body));
    }
    let stopper = server.reactor.stopper();
    let thread = std::thread::spawn(move || server.run());
    let reply = format!("FOUND 1 60000\r\n{}\r\n", "x".repeat(60_000));
    for client in &mut clients {
        client.expect(&reply);
    }
    stopper.stop().unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn a_job_of_a_worker_that_is_gone_goes_to_another() {
    let server = Running::start();
    let (mut gone, mut worker) = (server.client(), server.client());
    gone.ask("put 0 0 60 2\r\nhi\r\n", "INSERTED 1\r\n");
    gone.ask("reserve\r\n", "RESERVED 1 2\r\nhi\r\n");
    drop(gone);
    worker.ask("reserve\r\n", "RESERVED 1 2\r\nhi\r\n");
}

#[test]
fn memory_held_for_a_request_is_given_back_when_it_has_run() {
    let (mut server, address) = by_hand();
    let mut client = connect(address);
    client.send("put 0 0 60 50000\r\n".to_owned() + &"x".repeat(40000));
    turn_until(&mut server, |server| server.core.input_held >= 40000);
    client.send("x".repeat(10000) + "\r\n");
    turn_until(&mut server, |server| server.core.input_held == 0);
    client.expect("INSERTED 1\r\n");
    client.send("put 0 0 60 50000\r\n".to_owned() + &"x".repeat(40000));
    turn_until(&mut server, |server| server.core.input_held >= 40000);
    drop(client);
    turn_until(&mut server, |server| server.connection_count == 0);
    assert_eq!((server.core.input_held, server.core.outputs.held()), (0, 0));
}

#[test]
fn a_body_of_many_reads_arrives_whole_and_so_does_what_follows_it() {
    let server = Running::start();
    let mut client = server.client();
    let body: String = (0..1_000_000u32)
        .map(|n| char::from(b'a' + (n * 7 / 3 % 26) as u8))
        .collect();
    for id in 1..=3 {
        client.send(format!(
            "put 0 0 60 1000000\r\n{body}\r\nreserve\r\ndelete {id}\r\n"
        ));
        client.expect(&format!(
            "INSERTED {id}\r\nRESERVED {id} 1000000\r\n{body}\r\nDELETED\r\n"
        ));
    }
}

#[test]
fn connections_that_have_nothing_to_do_are_not_looked_at() {
    let (mut server, address) = by_hand();
    let mut clients: Vec<_> = (0..50).map(|_| connect(address)).collect();
    turn_until(&mut server, |server| server.connection_count == 50);
    clients[7].send("use a\r\n");
    let mut events = reactor::events();
    server.turn(&mut events).unwrap();
    // Each new connection is reported writable once; after that only real events are reported.
    while events.iter().count() > 1 {
        clients[7].expect("USING a\r\n");
        clients[7].send("use a\r\n");
        server.turn(&mut events).unwrap();
    }
    assert!(server.runnable.is_empty() && !server.core.outputs.has_dirty());
    clients[7].expect("USING a\r\n");
}

/// Two clients put, the second one after the request of the first was run and before it is
/// answered; returns how many jobs there are at the end of that turn.
fn jobs_of_one_turn(dir: Option<&Path>) -> usize {
    let (mut server, address) = by_hand_with(dir);
    let (mut first, mut second) = (connect(address), connect(address));
    turn_until(&mut server, |server| server.connection_count == 2);
    let mut events = reactor::events();
    let has_run = |server: &Server| server.core.engine.queue().stats().total_jobs as usize;
    first.send("put 0 0 60 2\r\nhi\r\n");
    while has_run(&server) == 0 {
        server.reactor.poll(&mut events, None).unwrap();
        server.begin_turn();
        server.take_events(&events);
        server.serve();
    }
    second.send("put 0 0 60 2\r\nhi\r\n");
    assert!(!server.look_again(&mut events).unwrap());
    let run = has_run(&server);
    server
        .core
        .tick_and_commit(&server.clock, &server.pulse)
        .unwrap();
    server.send();
    first.expect("INSERTED 1\r\n");
    run
}

#[test]
fn a_request_that_comes_before_a_sync_shares_it() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(jobs_of_one_turn(Some(dir.path())), 2);
}

#[test]
fn without_a_sync_to_share_no_reply_waits_for_a_second_look() {
    assert_eq!(jobs_of_one_turn(None), 1);
}

#[test]
fn f22_who_asks_for_little_is_served_before_what_others_have_begun() {
    let (mut server, address) = by_hand();
    let mut events = reactor::events();
    let mut greedy: Vec<_> = (0..50).map(|_| connect(address)).collect();
    let mut other = connect(address);
    turn_until(&mut server, |server| server.connection_count == 51);
    let body = "x".repeat(60_000);
    greedy[0].send(format!("put 0 0 60 60000\r\n{body}\r\n"));
    turn_until(&mut server, |server| {
        server.core.engine.queue().stats().total_jobs == 1
    });
    for client in &mut greedy {
        client.send("peek 1\r\n".repeat(64));
    }
    // Each has had one share by now, and wants more.
    turn_until(&mut server, |server| {
        let greedy = server.connections.iter().flatten();
        greedy.filter(|it| it.takes_much).count() == 50
    });
    other.send("use a\r\n");
    let mut turns = 0;
    while !server.core.engine.queue().tube_exists("a") {
        assert!(!server.turn(&mut events).unwrap());
        turns += 1;
        assert!(turns <= 3, "it waits behind those who are left over");
    }
    assert!(!server.runnable.is_empty());
    other.expect("USING a\r\n");
}

#[test]
fn what_a_client_leaves_is_there_for_a_request_of_the_same_turn() {
    let (mut server, address) = by_hand();
    let (mut worker, mut next) = (connect(address), connect(address));
    turn_until(&mut server, |server| server.connection_count == 2);
    worker.send("put 0 0 60 1\r\na\r\nreserve\r\n");
    turn_until(&mut server, |server| {
        server.core.engine.queue().stats().jobs.reserved == 1
    });
    worker.expect("INSERTED 1\r\nRESERVED 1 1\r\na\r\n");
    drop(worker);
    next.send("reserve-with-timeout 0\r\n");
    turn_until(&mut server, |server| server.connection_count == 1);
    next.expect("RESERVED 1 1\r\na\r\n");
}

#[test]
fn f22_who_asks_for_little_is_served_before_the_first_of_many_large_bodies() {
    let (mut server, address) = by_hand();
    let mut events = reactor::events();
    let mut greedy = connect_all(&mut server, address, 200);
    let mut other = connect(address);
    turn_until(&mut server, |server| server.connection_count == 201);
    let body = "x".repeat(60_000);
    greedy[0].send(format!("put 0 0 60 60000\r\n{body}\r\n"));
    turn_until(&mut server, |server| {
        server.core.engine.queue().stats().total_jobs == 1
    });
    for (client, command) in greedy
        .iter_mut()
        .zip(["peek 1", "peek-ready"].iter().cycle())
    {
        client.send(format!("{command}\r\n").repeat(64));
    }
    other.send("use a\r\n");
    let mut turns = 0;
    while !server.core.engine.queue().tube_exists("a") {
        assert!(!server.turn(&mut events).unwrap());
        turns += 1;
        assert!(turns <= 3, "it waits for the first body of each");
    }
    other.expect("USING a\r\n");
    // Clients that were deferred are answered too, in order.
    let stopper = server.reactor.stopper();
    let thread = std::thread::spawn(move || server.run());
    greedy[0].expect("INSERTED 1\r\n");
    for client in &mut greedy {
        client.expect("FOUND 1 60000\r\n");
    }
    stopper.stop().unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn f22_of_many_that_come_together_each_has_a_small_first_share() {
    let (mut server, address) = by_hand();
    let mut events = reactor::events();
    let mut greedy = connect_all(&mut server, address, 200);
    let mut other = connect(address);
    turn_until(&mut server, |server| server.connection_count == 201);
    greedy[0].send(format!("put 0 0 60 1500\r\n{}\r\n", "x".repeat(1500)));
    turn_until(&mut server, |server| {
        server.core.engine.queue().stats().total_jobs == 1
    });
    for client in &mut greedy {
        client.send("peek 1\r\n".repeat(64));
    }
    other.send("use a\r\n");
    let mut turns = 0;
    while !server.core.engine.queue().tube_exists("a") {
        assert!(!server.turn(&mut events).unwrap());
        turns += 1;
        assert!(turns <= 3, "it waits for a whole share of each");
    }
    other.expect("USING a\r\n");
}

#[test]
fn f22_thousands_that_leave_at_once_are_closed_a_few_a_turn() {
    let (mut server, address) = by_hand();
    let count = 4 * CLOSES_PER_TURN;
    drop(connect_all(&mut server, address, count));
    let mut events = reactor::events();
    while server.connection_count > 0 {
        let before = server.connection_count;
        assert!(!server.turn(&mut events).unwrap());
        assert!(before - server.connection_count <= CLOSES_PER_TURN);
    }
    assert!(server.leaving.is_empty());
}

/// The server holds one job, as large as one can be whose copies are held. Each of `clients` asks for
/// it 1,024 times and takes nothing: more than sockets and server take together.
fn ask_for_much(server: &mut Server, clients: &mut [Client<TcpStream>]) {
    let count = clients.len();
    turn_until(server, |server| server.connection_count >= count);
    let body = "x".repeat(64 << 10);
    let mut sender = Client(clients[0].0.try_clone().unwrap());
    let sending =
        std::thread::spawn(move || sender.send(format!("put 0 0 60 65536\r\n{body}\r\n")));
    turn_until(server, |server| {
        server.core.engine.queue().stats().total_jobs == 1
    });
    sending.join().unwrap();
    for client in clients {
        client.send("peek 1\r\n".repeat(1024));
    }
}

#[test]
fn f24_a_client_that_takes_none_of_its_replies_for_too_long_is_closed_and_the_others_are_not() {
    let bounds = Bounds {
        idle_output: Some(Duration::from_millis(1)),
        ..bounds(1000)
    };
    let (mut server, address) = by_hand_within(None, bounds, None);
    let mut other = connect(address);
    let mut greedy = [connect(address)];
    ask_for_much(&mut server, &mut greedy);
    turn_until(&mut server, |server| server.connection_count == 1);
    assert_eq!(server.core.outputs.held(), 0);
    other.send("use a\r\n");
    turn_until(&mut server, |server| {
        server.core.engine.queue().tube_exists("a")
    });
    other.expect("USING a\r\n");
}

#[test]
fn f24_t11_unread_replies_past_their_bound_close_who_leaves_them_and_refuse_nobodys_put() {
    let bounds = Bounds {
        // Three of the replies.
        output_max: 200 << 10,
        ..bounds(1000)
    };
    let (mut server, address) = by_hand_within(None, bounds, Some(2 << 20));
    let mut other = connect(address);
    let mut greedy: Vec<_> = (0..8).map(|_| connect(address)).collect();
    ask_for_much(&mut server, &mut greedy);
    let mut events = reactor::events();
    let mut most = 0;
    while server.connection_count > 4 {
        assert!(!server.turn(&mut events).unwrap());
        most = most.max(server.core.outputs.held());
    }
    let least = 100 << 10;
    assert!(
        (least..=(300 << 10)).contains(&most),
        "{most} bytes were held"
    );
    other.send("put 0 0 60 2\r\nhi\r\n");
    turn_until(&mut server, |server| {
        server.core.engine.queue().stats().total_jobs == 2
    });
    other.expect("INSERTED 2\r\n");
}

#[test]
fn f24_bodies_half_sent_past_their_bound_are_refused_the_longest_lying_first() {
    let bounds = Bounds {
        input_max: 110_000,
        ..bounds(1000)
    };
    let (mut server, address) = by_hand_within(None, bounds, None);
    let mut clients: Vec<_> = (0..4).map(|_| connect(address)).collect();
    turn_until(&mut server, |server| server.connection_count == 4);
    for (index, client) in clients.iter_mut().enumerate() {
        client.send("put 0 0 60 50000\r\n".to_owned() + &"x".repeat(40000));
        let held = 40_000 * (index + 1).min(2);
        turn_until(&mut server, |server| {
            let last = server.connections[index].as_ref();
            server.core.input_held >= held && last.is_some_and(|it| it.held() >= 40_000)
        });
        assert!(server.core.input_held <= 110_000);
    }
    for client in &mut clients {
        client.send("x".repeat(10000) + "\r\n");
    }
    let stopper = server.reactor.stopper();
    let thread = std::thread::spawn(move || server.run());
    for client in &mut clients[..2] {
        client.expect("OUT_OF_MEMORY\r\n");
    }
    for client in &mut clients[2..] {
        client.expect("INSERTED ");
    }
    stopper.stop().unwrap();
    thread.join().unwrap().unwrap();
}

/// Body bytes on the disk that do not grow give way to the puts of others.
#[test]
fn g46_on_a_full_disk_a_body_that_has_not_grown_for_long_is_refused() {
    let disk = SimFs::new(1);
    let bounds = Bounds {
        input_max: 1_000_000,
        ..bounds(1000)
    };
    let (mut server, address) = by_hand_on(bounds, |reactor| Options {
        dir: Some("/log".into()),
        segment_size: 64 << 10,
        job_size_max: 4 << 20,
        fs: Arc::new(disk.clone()),
        ..in_memory(reactor)
    });
    let mut clients: Vec<_> = (0..2).map(|_| connect(address)).collect();
    let (mut events, mut now) = (reactor::events(), server.clock.now());
    for (nth, client) in clients.iter_mut().enumerate() {
        let mut sender = Client(client.0.try_clone().unwrap());
        let half = format!("put 0 0 60 3000000\r\n{}", "x".repeat(2_000_000));
        let sending = std::thread::spawn(move || sender.send(half));
        // One grows after the other, and neither is refused because this test takes long.
        while server.core.engine.begun_of(ClientId(nth as u32)) <= 1_900_000 {
            now.mono.0 += 1;
            server.clock = Clock::stopped(now);
            assert!(!server.turn(&mut events).unwrap());
        }
        sending.join().unwrap();
    }
    let mut other = connect(address);
    disk.set_quota(Some(disk.used()));
    assert_eq!(server.core.next_idle(), None, "there is room");
    let mut sender = Client(other.0.try_clone().unwrap());
    let put = format!("put 0 0 60 300000\r\n{}\r\n", "y".repeat(300_000));
    let sending = std::thread::spawn(move || sender.send(put));
    turn_until(&mut server, |_| sending.is_finished());
    sending.join().unwrap();
    turn_until_answered(&mut server, &other);
    other.expect("OUT_OF_MEMORY\r\n");
    assert!(server.core.engine.log().is_some_and(Log::is_disk_full));

    let until = server.core.next_idle().unwrap();
    server.core.now.mono = Time(until.0 - 1);
    assert_eq!(server.core.next_to_refuse(), None);
    server.core.now.mono = until;
    assert_eq!(server.core.next_to_refuse(), Some(ClientId(0)));
    server.make_way();
    let begun = [0, 1].map(|nth| server.core.engine.begun_of(ClientId(nth)) > 0);
    assert_eq!(begun, [false, true], "the other one has grown since");
    assert!(server.core.next_idle().unwrap() > until);
    disk.set_quota(None);
    let sending = std::thread::spawn(move || {
        for client in &mut clients {
            client.send("x".repeat(1_000_000) + "\r\n");
        }
        clients
    });
    turn_until(&mut server, |server| {
        server.core.engine.queue().stats().total_jobs == 1
    });
    let mut clients = sending.join().unwrap();
    for client in &clients {
        turn_until_answered(&mut server, client);
    }
    clients[0].expect("OUT_OF_MEMORY\r\n");
    assert_eq!(clients[1].inserted(), 2);
    assert_eq!(server.core.engine.spooled(), 0);
}

#[test]
fn t11_a_listener_that_rests_is_woken() {
    let (mut server, address) = by_hand();
    let _client = connect(address);
    let now = server.clock.now().mono;
    server
        .acceptor
        .rest(&io::Error::other("out of memory"), now);
    assert!(
        server.timeout().is_some(),
        "no event says that it may go on"
    );
    turn_until(&mut server, |server| server.connection_count == 1);
}

/// Anyone who has to show a token first brings no bodies.
#[test]
fn a_body_of_a_client_without_its_token_is_skipped_as_it_comes() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "all {}", "ab".repeat(32)).unwrap();
    let auth = Auth::read(file.path().to_owned()).unwrap();
    let (server, address) = by_hand();
    let mut server = server.guarded_by(Gate::default().with_auth(Some(auth)));
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(b"put 0 0 1 60000\r\n").unwrap();
    turn_until(&mut server, |server| server.connection_count == 1);
    client.write_all(&[b'x'; 50_000]).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    turn_until(&mut server, |server| {
        assert!(server.core.input_held <= 224, "{}", server.core.input_held);
        server.connection_count == 0
    });
}

#[test]
fn g46_a_large_body_is_checked_a_few_pieces_a_turn_and_then_leaves_in_pieces() {
    const SIZE: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (mut server, address) = by_hand_with(Some(dir.path()));
    let mut client = connect(address);
    turn_until(&mut server, |server| server.connection_count == 1);
    let put = door::put("default", vec![b'x'; SIZE], door::PutOptions::default()).unwrap();
    let door = server.door();
    let putting = std::thread::spawn(move || door.session().run(put).wait());
    turn_until(&mut server, |_| putting.is_finished());
    assert_eq!(
        putting.join().unwrap(),
        Ok(door::Answer::Inserted(JobId(1)))
    );
    client.send("reserve\r\n");
    turn_until(&mut server, |server| {
        server.core.engine.queue().stats().jobs.reserved == 1
    });
    let (mut events, mut turns) = (reactor::events(), 0);
    while server.core.outputs.is_blocked(ClientId(0)) {
        assert!(!server.turn(&mut events).unwrap());
        turns += 1;
    }
    assert!(turns >= SIZE / (256 << 10) - 1, "{turns} turns");
    let mut most = 0;
    let reading = std::thread::spawn(move || {
        client.expect(&format!("RESERVED 1 {SIZE}\r\n{}", "x".repeat(SIZE)));
        client.expect("\r\n");
    });
    while !reading.is_finished() {
        assert!(!server.turn(&mut events).unwrap());
        most = most.max(server.core.outputs.held());
    }
    reading.join().unwrap();
    assert!(most <= 256 << 10, "{most} bytes were held");
}
