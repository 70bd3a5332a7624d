//! What a worker is told of the job that it gets.

use super::*;

fn told(job: &Reserved) -> (&str, u32, u32, u64) {
    (job.tube(), job.deliveries(), job.pri(), job.ttr().as_secs())
}

#[test]
fn a_reserved_job_says_its_tube_and_how_often_it_was_handed_out() {
    let queue = on(&SimFs::new(1));
    let options = PutOptions {
        pri: 7,
        ttr: Duration::from_secs(60),
        ..PutOptions::default()
    };
    let id = queue.put("mail", "a", options).wait().unwrap();
    let worker = queue.session();
    worker.watch("mail").wait().unwrap();
    let first = worker.reserve().wait().unwrap();
    assert_eq!(told(&first), ("mail", 1, 7, 60));
    let age = first.age();
    assert_eq!(first.age(), age, "that of its delivery");
    first.release(8, Duration::ZERO).wait().unwrap();
    let within = worker.reserve_within(Duration::ZERO).wait().unwrap();
    let second = within.unwrap();
    assert_eq!(told(&second), ("mail", 2, 8, 60));
    assert!(second.age() >= age);
    drop(second); // given back, which writes nothing
    let third = worker.reserve_job(id).wait().unwrap();
    assert_eq!(third.deliveries(), 3);
    third.bury(9).wait().unwrap();
    let of_buried = worker.reserve_job(id).wait().unwrap();
    assert_eq!(told(&of_buried), ("mail", 4, 9, 60));
    drop(of_buried);
    queue.move_job(id, "other").wait().unwrap();
    worker.watch("other").wait().unwrap();
    let moved = worker.reserve().wait().unwrap();
    assert_eq!(told(&moved), ("other", 5, 9, 60));
}

#[test]
fn a_worker_that_waits_is_told_as_much_as_one_that_does_not() {
    let queue = in_memory(Bounds::default());
    let worker = queue.session();
    worker.watch("late").wait().unwrap();
    let waiting = sent(worker.reserve());
    let put = queue.put("late", "a", PutOptions::default());
    put.wait().unwrap();
    let job = block_on(waiting).unwrap();
    assert_eq!(told(&job), ("late", 1, 65_536, 120));
}

#[test]
fn each_job_of_a_batch_says_its_own_tube() {
    let queue = in_memory(Bounds::default());
    let worker = queue.session();
    for tube in ["a", "b", "c"] {
        worker.watch(tube).wait().unwrap();
        let put = queue.put(tube, tube, PutOptions::default());
        put.wait().unwrap();
    }
    let again = worker.reserve().wait().unwrap();
    assert_eq!(again.tube(), "a");
    drop(again);
    let batch = worker.reserve_batch(10, Duration::ZERO).wait().unwrap();
    assert_eq!(batch.len(), 3);
    for job in &batch {
        assert_eq!(job.tube().as_bytes(), job.body());
        assert_eq!(job.deliveries(), if job.tube() == "a" { 2 } else { 1 });
    }
}

#[test]
fn deliveries_are_counted_where_each_reserve_is_written_down() {
    let disk = SimFs::new(1);
    let queue = on(&disk);
    let set = queue.set_policy("default", "delivery-limit=5").unwrap();
    set.wait().unwrap();
    let id = put(&queue, "a");
    for count in 1..=2 {
        let job = queue.reserve().wait().unwrap();
        assert_eq!((job.id(), job.deliveries()), (id, count));
        let touched = job.touch().wait();
        assert_eq!(touched, Ok(()));
    }
    queue.close().unwrap();
    let queue = on(&disk);
    assert_eq!(queue.reserve().wait().unwrap().deliveries(), 3);
}
