//! Cost of the protocol: decoding requests and encoding replies, without engine or sockets.
//!
//! `cargo bench --bench parse`. Only ratios of one run count.

#![allow(missing_docs)] // criterion's macros make public functions

use std::hint::black_box;

use bsd::protocol::{Decoder, Limits, Reply, Request, encode};
use bsd::types::JobId;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const LIMITS: Limits = Limits::of(65_535);

/// The size of the bodies, bytes.
const BODY_SIZE: usize = 100;

fn put() -> Vec<u8> {
    [b"put 1024 0 60 100\r\n", &[b'b'; BODY_SIZE][..], b"\r\n"].concat()
}

/// Decodes all of `bytes`; how many requests they were.
fn decode_all(decoder: &mut Decoder, mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some(request) = decoder.decode(&mut bytes, LIMITS) {
        black_box::<Request<'_>>(request);
        count += 1;
    }
    count
}

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    let put = put();
    let mut decoder = Decoder::default();
    for (name, bytes) in [
        ("put of 100 bytes", &put[..]),
        ("reserve", b"reserve\r\n"),
        ("delete", b"delete 123456\r\n"),
        (
            "pause-tube, the last to be looked for",
            b"pause-tube emails 60\r\n",
        ),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| decoder.decode(&mut black_box(bytes), LIMITS).is_some());
        });
    }
    group.bench_function("put of 100 bytes in two pieces", |bencher| {
        let (first, second) = put.split_at(put.len() / 2);
        bencher.iter(|| {
            decode_all(&mut decoder, black_box(first)) + decode_all(&mut decoder, black_box(second))
        });
    });
    let cycle = [&put[..], b"reserve\r\ndelete 123456\r\n"]
        .concat()
        .repeat(100);
    group.throughput(Throughput::Elements(300));
    group.bench_function("300 pipelined put, reserve, delete", |bencher| {
        bencher.iter(|| decode_all(&mut decoder, black_box(&cycle)));
    });
    group.finish();
}

fn encode_replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    let body = [b'b'; BODY_SIZE];
    let mut out = Vec::with_capacity(1024);
    for (name, reply) in [
        ("inserted", Reply::Inserted(JobId(123_456))),
        (
            "reserved with 100 bytes",
            Reply::Reserved(JobId(123_456), &body),
        ),
        ("deleted", Reply::Deleted),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                encode(black_box(&reply), &mut out);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decode, encode_replies);
criterion_main!(benches);
