use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc::channel;
use std::thread;

use super::*;
use crate::echo::Echo;
use crate::options::Shape;
use crate::script::Workload;
use crate::wire::Op;

/// A server that does nothing, until the test process ends.
fn echo() -> SocketAddr {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut echo = Echo::listen(any, None).unwrap();
    let address = echo.address().unwrap();
    thread::spawn(move || echo.run());
    address
}

fn plan(workload: Workload, connections: usize, pipeline: usize, jobs: u64) -> Plan {
    let shape = Shape {
        connections,
        pipeline,
    };
    Plan {
        jobs: Some(jobs),
        ..Plan::new(echo(), shape, workload)
    }
}

fn count(outcome: &Outcome, op: Op) -> u64 {
    outcome.total(op).count
}

#[test]
fn a_closed_loop_does_as_many_jobs_as_it_was_asked_for() {
    let outcome = plan(Workload::Cycle, 4, 8, 1001).run().unwrap();
    let counts = [Op::Put, Op::Reserve, Op::Delete].map(|op| count(&outcome, op));
    assert_eq!(counts, [1001; 3]);
    assert_eq!((outcome.commands, outcome.latency.count()), (3003, 3003));
}

#[test]
fn a_load_goes_over_many_tubes_and_bodies_of_any_size() {
    let outcome = Plan {
        tubes: 20,
        bodies: "0..300k".parse().unwrap(),
        priorities: 9,
        ..plan(Workload::Cycle, 3, 4, 100)
    };
    let outcome = outcome.run().unwrap();
    assert_eq!(count(&outcome, Op::Delete), 100);
    assert!(count(&outcome, Op::Use) >= 25);
}

#[test]
fn a_drain_ends_when_nothing_is_left() {
    let put = plan(Workload::Put, 2, 10, 500);
    put.run().unwrap();
    let drain = Plan {
        jobs: None,
        workload: Workload::Drain,
        ..put
    };
    assert_eq!(count(&drain.run().unwrap(), Op::Delete), 500);
}

#[test]
fn an_open_loop_sends_every_command_and_none_before_it_is_due() {
    let outcome = Plan {
        rate: Some(20_000.0),
        ..plan(Workload::Cycle, 3, 4, 200)
    };
    let outcome = outcome.run().unwrap();
    assert_eq!(outcome.commands, 600);
    assert!(outcome.elapsed >= Duration::from_micros(599 * 50));
}

/// The first command is answered when the last has long been due; nothing else could be sent
/// meanwhile. Each of them has waited since its due time.
#[test]
fn an_open_loop_charges_a_stall_to_all_that_were_due_meanwhile() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (shape, address) = (Shape::SINGLE, listener.local_addr().unwrap());
    let plan = Plan {
        jobs: Some(20),
        rate: Some(1000.0),
        ..Plan::new(address, shape, Workload::Put)
    };
    let (seen, first_seen) = channel();
    let (answer, may_answer) = channel();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer).unwrap();
        stream.write_all(b"USING default\r\n").unwrap();
        for number in 0..20 {
            let _ = stream.read(&mut buffer).unwrap();
            if number == 0 {
                seen.send(()).unwrap();
                may_answer.recv().unwrap();
            }
            stream.write_all(b"INSERTED 1\r\n").unwrap();
        }
    });
    let stall = thread::spawn(move || {
        first_seen.recv().unwrap();
        // The stall itself: the last command is due 19 ms after the first.
        thread::sleep(Duration::from_millis(40));
        answer.send(()).unwrap();
    });
    let outcome = plan.run().unwrap();
    stall.join().unwrap();
    server.join().unwrap();
    assert_eq!(outcome.commands, 20);
    let least = outcome.latency.quantile(0.0);
    assert!(least >= Duration::from_millis(20), "{least:?}");
}

#[test]
fn a_probe_is_counted_apart_and_goes_on_after_the_load() {
    let outcome = Plan {
        probe: true,
        linger: Duration::from_millis(20),
        ..plan(Workload::Put, 1, 1, 1)
    };
    let outcome = outcome.run().unwrap();
    assert_eq!(outcome.commands, 1);
    assert!(outcome.probe.count() >= 2);
}

#[test]
fn a_herd_comes_back_for_each_job() {
    let outcome = Plan {
        herd: true,
        probe: true,
        ..plan(Workload::Cycle, 40, 1, 120)
    };
    let outcome = outcome.run().unwrap();
    assert_eq!(count(&outcome, Op::Delete), 120);
    // Everyone has connected at least once, and once more for each job after the first.
    assert!(count(&outcome, Op::Use) >= 120);
}

#[test]
fn a_probe_goes_on_beside_clients_that_never_read() {
    let outcome = Plan {
        is_deaf: true,
        probe: true,
        linger: Duration::from_millis(20),
        ..plan(Workload::Peek, 40, 8, 320)
    };
    let outcome = outcome.run().unwrap();
    assert_eq!(outcome.commands, 0);
    assert!(outcome.probe.count() >= 2);
}

#[test]
fn a_herd_that_polls_watches_all_the_tubes_each_time_it_comes() {
    let outcome = Plan {
        herd: true,
        shares_tubes: true,
        tubes: 30,
        ..plan(Workload::Poll, 2, 4, 16)
    };
    let outcome = outcome.run().unwrap();
    assert_eq!(count(&outcome, Op::Reserve), 16);
    assert!(count(&outcome, Op::Watch) >= 4 * 30);
}

#[test]
fn pauses_are_counted_in_pairs_of_commands() {
    let outcome = plan(Workload::Pause, 3, 4, 50).run().unwrap();
    assert_eq!(
        (count(&outcome, Op::Use), count(&outcome, Op::Pause)),
        (50, 50)
    );
}

#[test]
fn a_server_that_goes_away_is_an_error_that_names_it() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = Plan::new(address, Shape::SINGLE, Workload::Put)
        .run()
        .unwrap_err();
    server.join().unwrap();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}
