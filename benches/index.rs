//! Cost of finding a job as there are more of them: by its id (the id table), and by its place in
//! the order of ready and of delayed jobs.
//!
//! Only ratios of one run count: a look-up among a million jobs against one among ten thousand.
//! `BSD_BENCH_JOBS=10000000` adds ten million, or as many as it says.
#![allow(missing_docs)] // criterion's macros make public functions

use std::hint::black_box;

use bsd::queue::Queue;
use bsd::types::{Change, JobId, Place, Time};
use criterion::{Criterion, criterion_group, criterion_main};

const NOW: Time = Time(0);
/// Coprime to all sizes: strides that visit every job in an order no cache foresees.
const STRIDE: u64 = 7919;

fn sizes() -> Vec<u64> {
    let more = std::env::var("BSD_BENCH_JOBS").ok();
    let more = more.and_then(|jobs| jobs.parse().ok());
    [10_000, 100_000, 1_000_000]
        .into_iter()
        .chain(more)
        .collect()
}

fn put(queue: &mut Queue, pri: u32, delay: u32) -> JobId {
    let id = queue.take_id().expect("an id");
    let change = Change::Put {
        id,
        tube: "default",
        pri,
        delay,
        ttr: 60,
        created: NOW,
        body_size: 100,
    };
    let place = Place { file: 1, offset: 1 };
    queue.apply(&change, place, NOW).expect("a new id");
    id
}

fn delete(queue: &mut Queue, id: JobId) {
    let change = Change::Delete { id };
    queue.apply(&change, Place::NONE, NOW).expect("it is there");
}

/// A queue of `size` jobs with different priorities, or delays.
fn filled(size: u64, delayed: bool) -> Queue {
    let mut queue = Queue::new();
    queue.finish_replay(NOW);
    for number in 0..size {
        let key = (number * STRIDE % size) as u32;
        match delayed {
            true => put(&mut queue, 0, key + 1),
            false => put(&mut queue, key, 0),
        };
    }
    queue
}

fn ids(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("id table");
    for size in sizes() {
        let queue = filled(size, false);
        let mut next = 0;
        group.bench_function(format!("look up, {size} jobs"), |bencher| {
            bencher.iter(|| {
                next = (next + STRIDE) % size;
                black_box(queue.job(JobId(next + 1)).is_some())
            });
        });
    }
    group.finish();
}

/// A job enters the order in the middle and leaves it again.
fn orders(criterion: &mut Criterion) {
    for (name, delayed) in [("ready jobs", false), ("delayed jobs", true)] {
        let mut group = criterion.benchmark_group(name);
        for size in sizes() {
            let mut queue = filled(size, delayed);
            let mut next = 0;
            group.bench_function(format!("put and delete, {size} jobs"), |bencher| {
                bencher.iter(|| {
                    next = (next + STRIDE) % size;
                    let key = next as u32;
                    let id = match delayed {
                        true => put(&mut queue, 0, key + 1),
                        false => put(&mut queue, key, 0),
                    };
                    delete(&mut queue, id);
                });
            });
        }
        group.finish();
    }
}

/// The most urgent job is reserved and deleted, and one of any urgency comes.
fn first(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("ready jobs");
    for size in sizes() {
        let mut queue = filled(size, false);
        let client = queue.connect();
        let mut next = 0;
        group.bench_function(
            format!("reserve, delete and put another, {size} jobs"),
            |bencher| {
                bencher.iter(|| {
                    next = (next + STRIDE) % size;
                    let id = queue.best_ready(client, NOW).expect("there are jobs");
                    queue.reserve(client, id, NOW);
                    delete(&mut queue, id);
                    put(&mut queue, next as u32, 0)
                });
            },
        );
    }
    group.finish();
}

criterion_group!(benches, ids, orders, first);
criterion_main!(benches);
