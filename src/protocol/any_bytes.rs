//! A property that must hold for any bytes; the fuzz target and its seeds use it.
//!
//! Compiled for tests and fuzzing only (feature `sim`). The decoder is compared with a model that has all bytes at
//! once and keeps no state. Both share the grammar of a line, which is compared with a table of its
//! own.

use super::decode::{self, LINE_SIZE_MAX, LONG_LINE_SIZE_MAX};
use super::extended::{self, Announced};
use super::parse::CRLF;
use super::{Decoder, Limits, Op, Protocol, Refusal, Request, parse};

/// The limits under which `data` is decoded: roomy, as beanstalkd and with extended commands, tight
/// for bodies, and short of memory.
const LIMITS: [Limits; 4] = [
    Limits {
        job_size_max: 65_535,
        memory_left: u64::MAX,
        protocol: Protocol::Beanstalkd,
    },
    Limits::of(65_535),
    Limits {
        job_size_max: 10,
        memory_left: 10,
        protocol: Protocol::Extended,
    },
    Limits {
        job_size_max: u32::MAX,
        memory_left: 300,
        protocol: Protocol::Beanstalkd,
    },
];

/// Smallest piece that is put directly into a body's buffer, bytes.
const DIRECT_MIN: usize = 7;

/// The sizes of the pieces in which `data` arrives: the smallest, odd ones, those around the
/// longest line, all at once.
const PIECE_SIZES: [usize; 8] = [1, 2, 3, 7, 223, 224, 225, usize::MAX];

/// The last request of a connection, which the server closes then. What comes behind it is decoded by
/// no one, and may be lost with it.
const HTTP: Request<'_> = Request::refused(Refusal::Http, None);

/// Panics unless `data`, cut into pieces of any size, gives the requests of the model within the
/// memory limits.
pub fn any_bytes(data: &[u8]) {
    for limits in LIMITS {
        let model = Model::of(data, limits);
        for size in PIECE_SIZES {
            let case = || format!("{limits:?}, pieces of {size}: {}", data.escape_ascii());
            let mut feed = Feed::new(limits);
            for piece in data.chunks(size) {
                feed.piece(piece);
                feed.piece(b""); // No news must change nothing.
            }
            assert_eq!(feed.requests, model.requests, "{}", case());
            assert!(
                !model.idle || feed.decoder.held() == 0,
                "idle, yet holds: {}",
                case()
            );
        }
    }
}

/// A decoder with its requests so far, in their `Debug` form.
pub(super) struct Feed {
    pub(super) decoder: Decoder,
    pub(super) requests: Vec<String>,
    limits: Limits,
    arrived: usize,
    /// The last request was [`HTTP`].
    is_http: bool,
}

impl Feed {
    pub(super) fn new(limits: Limits) -> Self {
        Feed {
            decoder: Decoder::default(),
            requests: Vec::new(),
            limits,
            arrived: 0,
            is_http: false,
        }
    }

    /// Decodes the bytes of one packet.
    pub(super) fn piece(&mut self, mut input: &[u8]) {
        if self.is_http {
            return;
        }
        self.arrived += input.len();
        let mut left = input.len();
        self.read_directly(&mut input);
        while let Some(request) = self.decoder.decode(&mut input, self.limits) {
            self.requests.push(format!("{request:?}"));
            assert!(input.len() < left, "a request out of no bytes: {request:?}");
            left = input.len();
            self.is_http = request == HTTP;
            if self.is_http {
                return;
            }
        }
        assert!(
            input.is_empty(),
            "bytes not consumed: {}",
            input.escape_ascii()
        );
        assert!(
            self.decoder.held() <= self.held_max(),
            "holds {}",
            self.decoder.held()
        );
    }

    /// Puts a piece that is long enough directly into the buffer of a long body, as the server
    /// does.
    fn read_directly(&mut self, input: &mut &[u8]) {
        if let Some(body) = self.decoder.body_buffer(DIRECT_MIN, self.limits)
            && input.len() >= DIRECT_MIN
        {
            let room = body.capacity() - body.len();
            let (bytes, rest) = input.split_at(room.min(input.len()));
            body.extend_from_slice(bytes);
            *input = rest;
        }
    }

    /// One line; or a body, at most as large as the limits allow, and at most four times the bytes
    /// that have arrived.
    fn held_max(&self) -> usize {
        let Limits {
            job_size_max,
            memory_left,
            protocol,
        } = self.limits;
        let body = memory_left.min(job_size_max.into()) + CRLF.len() as u64;
        // The ids of a batch, too, which no limit of jobs is about.
        let (line, body) = match protocol {
            Protocol::Beanstalkd => (LINE_SIZE_MAX, body as usize),
            Protocol::Extended => (
                LONG_LINE_SIZE_MAX,
                (body as usize).max(extended::IDS_SIZE_MAX as usize + CRLF.len()),
            ),
        };
        line.max(self.arrived.saturating_mul(4).min(body))
    }
}

/// The requests in a stream whose bytes are all known.
struct Model {
    requests: Vec<String>,
    /// The last byte ends a request.
    idle: bool,
}

impl Model {
    fn of(mut bytes: &[u8], limits: Limits) -> Model {
        let mut requests = Vec::new();
        while let Some((request, rest)) = Model::next(bytes, limits) {
            requests.push(format!("{request:?}"));
            if request == HTTP {
                return Model {
                    requests,
                    idle: false,
                };
            }
            bytes = rest;
        }
        Model {
            requests,
            idle: bytes.is_empty(),
        }
    }

    fn next(bytes: &[u8], limits: Limits) -> Option<(Request<'_>, &[u8])> {
        let end = bytes.windows(2).position(|pair| pair == CRLF);
        let is_long = match end {
            Some(end) => end + CRLF.len() > LINE_SIZE_MAX,
            None => bytes.len() >= LINE_SIZE_MAX,
        };
        // Its end is not waited for.
        if is_long && parse::begins_as_http(bytes) {
            return Some((HTTP, b""));
        }
        let end = end?;
        let (line, rest) = (&bytes[..end], &bytes[end + CRLF.len()..]);
        let is_extended = limits.protocol == Protocol::Extended;
        let line_size_max = match is_extended && extended::may_be_long(line) {
            true => LONG_LINE_SIZE_MAX,
            false => LINE_SIZE_MAX,
        };
        if end + CRLF.len() > line_size_max {
            return Some((Request::refused(Refusal::BadFormat, None), rest));
        }
        let Some(put) = parse::put(line) else {
            return match extended::announced(line).filter(|_| is_extended) {
                Some(announced) => Model::announced(announced, rest, limits),
                None => Some((decode::request(line, limits), rest)),
            };
        };
        let refused = |refusal| Request::refused(refusal, Some(Op::Put));
        let too_big = put.body_size > limits.job_size_max;
        if put.trailing && !too_big {
            return Some((refused(Refusal::BadFormat), rest));
        }
        let (body, rest) = rest.split_at_checked(put.body_size as usize + CRLF.len())?;
        let request = if too_big {
            refused(Refusal::JobTooBig)
        } else if u64::from(put.body_size) > limits.memory_left {
            refused(Refusal::OutOfMemory)
        } else {
            put.with(body)
        };
        Some((request, rest))
    }

    fn announced(
        announced: Announced,
        rest: &[u8],
        limits: Limits,
    ) -> Option<(Request<'_>, &[u8])> {
        let Announced {
            op,
            body_size,
            head,
        } = announced;
        let (body, rest) = rest.split_at_checked(body_size as usize + CRLF.len())?;
        let refused = |refusal| Request::refused(refusal, Some(op));
        let request = match (decode::refusal_of(head.as_ref(), body_size, limits), head) {
            (None, Some(head)) => head.with(body),
            (refusal, _) => refused(refusal.unwrap_or(Refusal::BadFormat)),
        };
        Some((request, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Parts of requests, and bytes that break them.
    const FRAGMENTS: [&[u8]; 58] = [
        b"\r\n",
        b"\r\n",
        b"\r\n",
        b"\r",
        b"\n",
        b"\0",
        b" ",
        b"0",
        b"1",
        b"10",
        b"99",
        b"-1",
        b"4294967295",
        b"18446744073709551616",
        b"put ",
        b"put 0 0 1 ",
        b"put 0 0 1 3\r\nabc\r\n",
        b"put 1 2 3 4",
        b"peek ",
        b"reserve",
        b"reserve-with-timeout ",
        b"delete 1\r\n",
        b"kick ",
        b"use ",
        b"watch default\r\n",
        b"pause-tube",
        b"stats",
        b"quit",
        b"auth ",
        b"capabilities",
        b"abort",
        b"GET ",
        b"PUT 1 ",
        b" HTTP/1.1",
        b"put-with ",
        b"put-with 0 0 1 3 tube=a\r\nabc\r\n",
        b"put-with 1 0 3 4",
        b"delete-batch ",
        b"delete-batch 3\r\n1 2\r\n",
        b"touch-batch 14\r\ndelete 1\r\n1 2\r\n\r\n",
        b"release-batch 1 0 ",
        b"delete-batch 40000\r\n",
        b"reserve-batch 10 0\r\n",
        b"list-jobs tube ready 0 10\r\n",
        b" tube=",
        b" at=1",
        b" key=a",
        b" unique=waiting",
        b" conflict=replace",
        b" group=g",
        b"schedule-set a 3 cron=*_*_*_*_* tube=a\r\nabc\r\n",
        b"schedule-set a 10 cron=@daily",
        b"schedule-delete a\r\n",
        b"stats-schedule a\r\n",
        b"put-with 0 0 1 3 key=a unique=exists\r\nabc\r\n",
        &[b'8'; 300],
        b"tube",
        &[b'x'; 222],
    ];

    #[test]
    fn random_fragments_of_requests_hold() {
        for seed in 0..300 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let count = random.below(40);
            let pick = |_| FRAGMENTS[random.below(FRAGMENTS.len())];
            any_bytes(&(0..count).map(pick).collect::<Vec<_>>().concat());
        }
    }

    #[test]
    fn random_bytes_hold() {
        for seed in 0..100 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let count = random.below(600);
            any_bytes(&random.bytes(count));
        }
    }
}
