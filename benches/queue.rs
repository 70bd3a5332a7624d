//! Cost of the operations of the queue, alone and with many jobs or tubes around.
//!
//! Only ratios within one run mean anything: a put among 20,000 tubes against one among few, a
//! cycle over a million waiting jobs against one over none, a slice of a flood against its size.
#![allow(missing_docs)]

use std::hint::black_box;

use bsd::queue::Queue;
use bsd::types::{Change, ClientId, JobId, Place, Time};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

const NOW: Time = Time(0);

fn queue() -> Queue {
    let mut queue = Queue::new();
    queue.finish_replay(NOW);
    queue
}

fn put(queue: &mut Queue, tube: &str, delay: u32) -> JobId {
    let id = queue.take_id().expect("an id");
    let change = Change::Put {
        id,
        tube,
        pri: 10,
        delay,
        ttr: 60,
        created: NOW,
        body_size: 100,
    };
    queue
        .apply(&change, Place { file: 1, offset: 1 }, NOW)
        .expect("a new id");
    id
}

fn cycle(queue: &mut Queue, client: ClientId) {
    put(queue, "default", 0);
    let id = queue.best_ready(client, NOW).expect("a job was put");
    queue.reserve(client, id, NOW);
    queue
        .apply(&Change::Delete { id }, Place::NONE, NOW)
        .expect("a delete is always in order");
}

/// Put, reserve, delete, with a number of ready jobs already there.
fn cycles(c: &mut Criterion) {
    for waiting in [0, 1_000_000] {
        let mut queue = queue();
        let client = queue.connect();
        (0..waiting).for_each(|_| _ = put(&mut queue, "default", 0));
        c.bench_function(&format!("cycle, {waiting} ready"), |b| {
            b.iter(|| cycle(&mut queue, client));
        });
    }
}

/// A put into one tube after another, and the delete that keeps the number of jobs as it is.
fn tubes(c: &mut Criterion) {
    for count in [1, 20_000] {
        let mut queue = queue();
        let names: Vec<_> = (0..count).map(|number| format!("tube-{number}")).collect();
        names.iter().for_each(|name| _ = put(&mut queue, name, 0));
        let mut next = 0;
        c.bench_function(&format!("put and delete, {count} tubes"), |b| {
            b.iter(|| {
                // A stride that visits all tubes in an order no cache foresees.
                next = (next + 7919) % count;
                let id = put(&mut queue, &names[next], 0);
                queue
                    .apply(&Change::Delete { id }, Place::NONE, NOW)
                    .expect("in order")
            });
        });
    }
}

/// A thousand of half a million delayed jobs that become due at once, over 2,000 tubes.
fn flood(c: &mut Criterion) {
    let fill = || {
        let mut queue = queue();
        (0..500_000).for_each(|n| _ = put(&mut queue, &format!("tube-{}", n % 2000), 1));
        queue
    };
    let mut group = c.benchmark_group("flood");
    group
        .sample_size(10)
        .bench_function("tick, 1000 due of 500000", |b| {
            b.iter_batched_ref(
                fill,
                |queue| queue.tick(Time(i64::MAX), 1000, &mut Vec::new()),
                BatchSize::PerIteration,
            );
        });
}

/// Replay of 100,000 puts.
fn replay(c: &mut Criterion) {
    c.bench_function("apply, 100000 puts", |b| {
        b.iter_batched(
            Queue::new,
            |mut queue| {
                (0..100_000).for_each(|_| _ = put(&mut queue, "default", 0));
                black_box(queue)
            },
            BatchSize::PerIteration,
        );
    });
}

criterion_group!(benches, cycles, tubes, flood, replay);
criterion_main!(benches);
