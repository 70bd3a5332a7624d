//! Threads of the process that use a server through its door, beside its clients.

use super::*;

fn served_by_door(session: &door::Session, count: usize) {
    for _ in 0..count {
        let put = door::put("door", b"in", door::PutOptions::default()).unwrap();
        let Ok(door::Answer::Inserted(_)) = session.run(put).wait() else {
            panic!("a put is refused");
        };
        let Ok(door::Answer::Reserved(job)) = session.reserve(None).wait() else {
            panic!("no job where one was put");
        };
        let deleted = session.run(Command::Delete(job.job.id)).wait();
        assert_eq!(deleted, Ok(door::Answer::Done));
    }
}

#[test]
fn threads_put_and_reserve_through_the_door_while_clients_do_so_through_sockets() {
    let server = Running::start();
    let door = server.door.clone();
    let thread = std::thread::spawn(move || {
        let session = door.session();
        let watched = session.run(Command::Watch("door".into())).wait();
        assert_eq!(watched, Ok(door::Answer::Count(2)));
        served_by_door(&session, 500);
    });
    let mut client = server.client();
    client.send("use sock\r\nwatch sock\r\n");
    client.expect("USING sock\r\nWATCHING 2\r\n");
    for _ in 0..500 {
        client.send("put 0 0 60 2\r\nhi\r\nreserve\r\n");
        let id = client.inserted();
        client.expect(&format!("RESERVED {id} 2\r\nhi\r\n"));
        client.ask(&format!("delete {id}\r\n"), "DELETED\r\n");
    }
    thread.join().unwrap();
    // From a thread to a client, and back.
    let session = server.door.session();
    let mut waiting = server.client();
    waiting.ask("watch over\r\n", "WATCHING 2\r\n");
    waiting.send("reserve\r\n");
    let put = door::put("over", b"hi", door::PutOptions::default()).unwrap();
    let Ok(door::Answer::Inserted(id)) = session.run(put).wait() else {
        panic!("a put is refused");
    };
    waiting.expect(&format!("RESERVED {id} 2\r\nhi\r\n"));
}

/// Takes all the time that it gets, and never finishes.
struct Endless;

impl door::Work for Endless {
    fn step(&mut self, slice: &mut door::Slice<'_>) -> door::Step {
        while !slice.is_over() {}
        door::Step::More
    }
}

#[test]
fn work_without_an_end_holds_up_no_client_and_ends_when_it_is_cancelled() {
    let server = Running::start();
    let task = server.door.start(Endless);
    let mut task = Box::pin(task);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::future::Future::poll(task.as_mut(), &mut context).is_pending());
    let mut client = server.client();
    for _ in 0..100 {
        client.ask("use a\r\n", "USING a\r\n");
    }
    served_by_door_beside_work(&server.door);
    task.cancel();
    assert!(door::block_on(task).is_ok());
}

fn served_by_door_beside_work(door: &Door) {
    let session = door.session();
    let _ = session.run(Command::Watch("door".into())).wait();
    served_by_door(&session, 10);
}

#[test]
fn who_waits_at_the_door_of_a_server_that_stops_is_told() {
    let mut server = Running::start();
    let session = server.door.session();
    let waiting = std::thread::spawn(move || session.reserve(None).wait());
    let mut client = server.client();
    client.ask("use a\r\n", "USING a\r\n");
    server.stop();
    assert_eq!(waiting.join().unwrap(), Err(door::JobError::Closed));
}
