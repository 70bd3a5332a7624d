//! Any bytes from a peer: no panic, bounded memory, the same replies however they are cut.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use bsd::check::corpus::Target;
use bsd_client::wire::{Parser, Reply};
use bsd_client::{Client, Config, any_replies};

/// The generator of Marsaglia (xorshift64), from a seed that is printed.
struct Random(u64);

impl Random {
    fn new(what: &str) -> Random {
        let given = std::env::var("BSD_CLIENT_SEED").ok();
        let seed = given.and_then(|text| text.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(what)
        });
        println!("{what}: repeat with BSD_CLIENT_SEED={seed}");
        Random(seed | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

const PIECES: [&[u8]; 24] = [
    b"INSERTED 1\r\n",
    b"RESERVED 1 2\r\nhi\r\n",
    b"FOUND 7 0\r\n\r\n",
    b"OK 14\r\n---\n- default\n\r\n",
    b"RESERVED_BATCH 2\r\nJOB 1 a 1\r\nx\r\nJOB 2 b 0\r\n\r\n",
    b"RESERVED_BATCH 1000\r\n",
    b"RESERVED_BATCH 99999999999999999999\r\n",
    b"JOB 1 a 1\r\n",
    b"DELETED_BATCH 2 8\r\n---\n- 2\n\r\n",
    b"DEAD_LETTERED dead\r\n",
    b"NOT_FOUND\r\n",
    b"TIMED_OUT\r\n",
    b"KICKED\r\n",
    b"KICKED 3\r\n",
    b"OK 18446744073709551615\r\n",
    b"RESERVED 1 18446744073709551613\r\n",
    b"OK 99999999\r\n",
    b"USING \xff\r\n",
    b"\r\n",
    b" ",
    b"\n",
    b"1",
    b"\0",
    b"INSERTED -1\r\n",
];

fn stream(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(12) {
        match random.below(4) {
            0 => bytes.extend((0..random.below(20)).map(|_| random.below(256) as u8)),
            _ => bytes.extend_from_slice(PIECES[random.below(PIECES.len())]),
        }
    }
    // Most streams begin well.
    if random.below(3) == 0 && !bytes.is_empty() {
        let at = random.below(bytes.len());
        bytes[at] = random.below(256) as u8;
    }
    bytes
}

/// The replies in a stream that comes in such pieces, and whether it broke.
fn replies(bytes: &[u8], mut size: impl FnMut() -> usize) -> (Vec<Reply>, bool) {
    let mut parser = Parser::new(1024);
    let (mut found, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(size().clamp(1, rest.len()));
        rest = others;
        parser.push(piece);
        loop {
            match parser.next_reply() {
                Ok(Some(reply)) => found.push(reply),
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, false)
}

#[test]
fn any_bytes_give_the_same_replies_however_they_are_cut() {
    let mut random = Random::new("any bytes");
    for _ in 0..20_000 {
        let bytes = stream(&mut random);
        let whole = replies(&bytes, || usize::MAX);
        let single = replies(&bytes, || 1);
        let pieces = replies(&bytes, || 1 + random.below(7));
        assert_eq!(whole, single, "{:?}", String::from_utf8_lossy(&bytes));
        assert_eq!(whole, pieces, "{:?}", String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn a_server_that_sends_any_bytes_makes_errors_and_no_panic() {
    let mut random = Random::new("a hostile server");
    for _ in 0..60 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let config: Config = listener.local_addr().unwrap().to_string().parse().unwrap();
        let answers = [stream(&mut random), stream(&mut random)];
        let server = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 256];
                _ = stream.read(&mut request);
                _ = stream.write_all(b"UNKNOWN_COMMAND\r\n");
                _ = stream.write_all(&answer);
            }
            // Dropped: later connections are refused.
        });
        let config = config.timeout(Duration::from_millis(300));
        let config = config.backoff(Duration::from_millis(1), Duration::from_millis(2));
        if let Ok(mut client) = Client::connect(config) {
            _ = client.stats();
            _ = client.reserve_batch(10, Duration::ZERO);
            _ = client.list_jobs("default", bsd_client::State::Ready, None, 10);
        }
        // It may wait for a second connection that never comes.
        drop(server);
    }
}

#[test]
fn fuzz_target_replies() {
    let target = Target {
        name: "replies",
        check: any_replies,
        size_max: 500,
        runs: 5000,
    };
    target.check_corpus();
    target.check_random();
}
