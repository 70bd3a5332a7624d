//! The decoder: requests however their bytes are split, limits, and what it holds.

use super::super::any_bytes::Feed;
use super::*;
use crate::types::JobId;

const LIMITS: Limits = Limits::of(100);

const BAD_FORMAT: Request<'_> = Request::refused(Refusal::BadFormat, None);

const DELETE: Request<'_> = Request::Command(Command::Delete(JobId(7)));

fn put(body: &[u8]) -> Request<'_> {
    Request::Command(Command::put(1, 2, 3, body))
}

fn put_refused(refusal: Refusal) -> Request<'static> {
    Request::refused(refusal, Some(Op::Put))
}

/// Feeds `pieces` to a new decoder and compares the requests.
fn expect(limits: Limits, pieces: &[&[u8]], requests: &[Request<'_>]) {
    let mut feed = Feed::new(limits);
    pieces.iter().for_each(|piece| feed.piece(piece));
    let expected: Vec<_> = requests
        .iter()
        .map(|request| format!("{request:?}"))
        .collect();
    let script = pieces.join(&b'|');
    assert_eq!(feed.requests, expected, "{}", script.escape_ascii());
}

#[test]
fn g49_a_line_of_http_is_known_however_long_it_is_and_however_it_comes() {
    const HTTP: Request<'_> = Request::refused(Refusal::Http, None);
    let limits = LIMITS;
    for line in ["GET / HTTP/1.1", "POST /a?b HTTP/1.0", "PUT x y HTTP/1.1 "] {
        let line = format!("{line}\r\n");
        expect(limits, &[line.as_bytes()], &[HTTP]);
        let bytes: Vec<&[u8]> = line.as_bytes().chunks(1).collect();
        expect(limits, &bytes, &[HTTP]);
    }
    let long = format!("DELETE /{}", "x".repeat(400));
    expect(limits, &[long.as_bytes()], &[HTTP]);
    for size in [1, 7, 8, 100, 223, 224] {
        let (head, rest) = long.as_bytes().split_at(size);
        expect(limits, &[head, rest], &[HTTP]);
    }
    for line in ["GET / HTTP/2", "GET", "get / HTTP/1.1", "GETS / HTTP/1.1"] {
        let unknown = Request::refused(Refusal::UnknownCommand, None);
        expect(limits, &[line.as_bytes(), b"\r\n"], &[unknown]);
    }
}

/// One of everything, errors included, with the expected requests.
fn script() -> (Vec<u8>, Vec<Request<'static>>) {
    let long = [&[b'x'; 300][..], b"\r\n"].concat();
    let big = [b"put 1 2 3 101\r\n", &[b'\n'; 101][..], b"\r\n"].concat();
    let parts: [(&[u8], Request<'_>); 13] = [
        (b"delete 7\r\n", DELETE),
        (b"put 1 2 3 5\r\nhello\r\n", put(b"hello")),
        (b"put 1 2 3 0\r\n\r\n", put(b"")),
        (b"put 1 2 3 4\r\n\r\n\r\n\r\n", put(b"\r\n\r\n")),
        (b"\r\n", Request::refused(Refusal::UnknownCommand, None)),
        (&long, BAD_FORMAT),
        (
            b"use tube\r\n",
            Request::Command(Command::Use("tube".into())),
        ),
        (b"put 1 2 3 2\r\nabcd", put_refused(Refusal::ExpectedCrlf)),
        (b"put 1 2 3 4 x\r\n", put_refused(Refusal::BadFormat)),
        (&big, put_refused(Refusal::JobTooBig)),
        (b"put 1 2 3\r\n", BAD_FORMAT),
        (b"a lone \r or \n ends nothing\r\n", {
            Request::refused(Refusal::UnknownCommand, None)
        }),
        (b"quit\r\n", Request::Quit),
    ];
    let (bytes, requests): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    (bytes.concat(), requests)
}

#[test]
fn a_script_says_the_same_at_every_split_point() {
    let (bytes, requests) = script();
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        expect(LIMITS, &[first, second], &requests);
    }
    expect(LIMITS, &bytes.chunks(1).collect::<Vec<_>>(), &requests);
}

#[test]
fn a_lone_cr_does_not_end_a_line() {
    expect(
        LIMITS,
        &[b"delete\r7\r\n"],
        &[Request::refused(Refusal::UnknownCommand, None)],
    );
    expect(
        LIMITS,
        &[b"use a\r", b"\r\n", b"delete 7\r\n"],
        &[BAD_FORMAT, DELETE],
    );
}

#[test]
fn a_lone_lf_does_not_end_a_line() {
    expect(
        LIMITS,
        &[b"\n", b"delete 7\n", b"\r\n", b"delete 7\r\n"],
        &[Request::refused(Refusal::UnknownCommand, None), DELETE],
    );
}

#[test]
fn a_line_has_at_most_224_bytes_with_its_crlf() {
    for (size, refusal) in [(222, Refusal::UnknownCommand), (223, Refusal::BadFormat)] {
        let line = [&vec![b'x'; size][..], b"\r\ndelete 7\r\n"].concat();
        let requests = [Request::refused(refusal, None), DELETE];
        for at in 0..line.len() {
            expect(LIMITS, &[&line[..at], &line[at..]], &requests);
        }
    }
}

const CAPABILITIES: Request<'_> =
    Request::Command(Command::Capabilities(super::super::Capabilities::ALL));

#[test]
fn an_extended_command_is_unknown_where_beanstalkds_protocol_is_spoken() {
    let line: &[u8] = b"capabilities\r\n";
    for at in 0..=line.len() {
        let pieces = [&line[..at], &line[at..]];
        expect(LIMITS, &pieces, &[CAPABILITIES]);
        let protocol = Protocol::Beanstalkd;
        let unknown = Request::refused(Refusal::UnknownCommand, None);
        expect(Limits { protocol, ..LIMITS }, &pieces, &[unknown]);
    }
}

fn put_with(tube: &str, body: &[u8]) -> Request<'static> {
    Request::Command(Command::PutWith(Box::new(super::super::PutWith {
        tube: Some(tube.to_owned().into()),
        pri: 1,
        delay: 0,
        ttr: 3,
        at: None,
        key: None,
        group: None,
        body: body.to_vec().into(),
    })))
}

fn put_with_refused(refusal: Refusal) -> Request<'static> {
    Request::refused(refusal, Some(Op::PutWith))
}

/// A body that would do harm if it were taken for a command.
#[test]
fn the_body_of_an_extended_command_is_no_command_wherever_it_is_split() {
    let body = b"delete 9\r\n";
    let parts: [(&[u8], Request<'_>); 8] = [
        (
            b"put-with 1 0 3 10 tube=a\r\ndelete 9\r\n\r\n",
            put_with("a", body),
        ),
        (
            b"put-with 1 0 3 10 tube=a kez=b\r\ndelete 9\r\n\r\n",
            put_with_refused(Refusal::BadFormat),
        ),
        (
            b"put-with 1 0 3 10 tube=a\r\ndelete 9\r\nxx",
            put_with_refused(Refusal::ExpectedCrlf),
        ),
        (
            &[b"put-with 1 0 3 101 x\r\n", &[b'\n'; 103][..]].concat(),
            put_with_refused(Refusal::JobTooBig),
        ),
        (b"put-with 1 0 3 x\r\n", BAD_FORMAT),
        (b"put-with 1 0 3 0 tube=t\r\n\r\n", put_with("t", b"")),
        (b"capabilities\r\n", CAPABILITIES),
        (b"delete 7\r\n", DELETE),
    ];
    let (bytes, requests): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let bytes = bytes.concat();
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        expect(LIMITS, &[first, second], &requests);
    }
    expect(LIMITS, &bytes.chunks(1).collect::<Vec<_>>(), &requests);
}

fn batch(on_each: super::super::OnEach, ids: &[u64]) -> Request<'static> {
    let ids = ids.iter().copied().map(JobId).collect();
    Request::Command(Command::Batch { on_each, ids })
}

#[test]
fn the_ids_of_a_batch_are_no_commands_wherever_they_are_split() {
    use super::super::OnEach::{Delete, Release, Touch};
    let refused = |refusal, op| Request::refused(refusal, Some(op));
    let large = [b"delete-batch 32769\r\n", &[b'\n'; 32_771][..]].concat();
    let parts: [(&[u8], Request<'_>); 8] = [
        (b"delete-batch 6\r\n1 2  3\r\n", batch(Delete, &[1, 2, 3])),
        (b"delete-batch 0\r\n\r\n", batch(Delete, &[])),
        (
            b"touch-batch 10\r\ndelete 9\r\n\r\n",
            refused(Refusal::BadFormat, Op::TouchBatch),
        ),
        (b"touch-batch 1\r\n9\r\n", batch(Touch, &[9])),
        (
            b"release-batch 4 5 1\r\n9\r\n",
            batch(Release { pri: 4, delay: 5 }, &[9]),
        ),
        (
            b"release-batch 4 5 1\r\n99\r",
            refused(Refusal::ExpectedCrlf, Op::ReleaseBatch),
        ),
        (&large, refused(Refusal::BadFormat, Op::DeleteBatch)),
        (b"delete 7\r\n", DELETE),
    ];
    let (bytes, requests): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let begin = bytes[..6].concat().len();
    let bytes = bytes.concat();
    // A body that is too large is skipped, however it comes: its middle looks alike everywhere.
    for at in (0..begin + 100).chain(bytes.len() - 100..=bytes.len()) {
        let (first, second) = bytes.split_at(at);
        expect(LIMITS, &[first, second], &requests);
    }
    expect(LIMITS, &bytes.chunks(1).collect::<Vec<_>>(), &requests);
    // No limit of jobs is about them.
    let none_left = Limits {
        job_size_max: 0,
        memory_left: 0,
        ..LIMITS
    };
    for at in 0..20 {
        let (first, second) = bytes[..24].split_at(at);
        expect(none_left, &[first, second], &requests[..1]);
    }
}

#[test]
fn the_ids_of_a_batch_are_not_set_aside_and_can_be_let_go_of() {
    let mut decoder = Decoder::default();
    let mut input = &b"delete-batch 50\r\n0123456789"[..];
    assert_eq!(decoder.decode(&mut input, LIMITS), None);
    assert_eq!(decoder.beginning(), None);
    decoder.set_aside();
    assert_eq!(decoder.begun(), 0);
    assert!(decoder.refuse_body());
    let mut input = &[&[b'x'; 40][..], b"\r\ndelete 7\r\n"].concat()[..];
    let refused = Request::refused(Refusal::OutOfMemory, Some(Op::DeleteBatch));
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(refused));
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(DELETE));
}

#[test]
fn a_line_of_an_extended_command_has_at_most_1024_bytes_with_its_crlf() {
    for (blanks, request) in [(1024 - 25, put_with("a", b"")), (1024 - 24, BAD_FORMAT)] {
        let blanks = " ".repeat(blanks);
        let line = format!("put-with 1 0 3 0{blanks} tube=a\r\n");
        assert_eq!(line.len() > 1024, request == BAD_FORMAT);
        // Of a line that is refused no body is skipped: its size was not read.
        let end: &[u8] = match request == BAD_FORMAT {
            true => b"delete 7\r\n",
            false => b"\r\ndelete 7\r\n",
        };
        let bytes = [line.as_bytes(), end].concat();
        for at in 0..bytes.len() {
            let pieces = [&bytes[..at], &bytes[at..]];
            expect(LIMITS, &pieces, &[request.clone(), DELETE]);
        }
        expect(
            LIMITS,
            &bytes.chunks(1).collect::<Vec<_>>(),
            &[request, DELETE],
        );
        let beanstalkd = Limits {
            protocol: Protocol::Beanstalkd,
            ..LIMITS
        };
        expect(beanstalkd, &[line.as_bytes()], &[BAD_FORMAT]);
    }
}

#[test]
fn a_body_of_put_with_is_held_and_refused_as_one_of_put() {
    let mut decoder = Decoder::default();
    let line = b"put-with 1 0 3 50 tube=a\r\n0123456789";
    assert_eq!(decoder.decode(&mut &line[..], LIMITS), None);
    assert_eq!(decoder.beginning(), Some(&b"0123456789"[..]));
    assert!(decoder.refuse_body());
    assert_eq!(decoder.held(), 0);
    let mut input = &[&[b'x'; 40][..], b"\r\ndelete 7\r\n"].concat()[..];
    let refused = put_with_refused(Refusal::OutOfMemory);
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(refused));
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(DELETE));
    let none_left = Limits {
        memory_left: 9,
        ..LIMITS
    };
    let refused = put_with_refused(Refusal::OutOfMemory);
    expect(
        none_left,
        &[&line[..], b"0123456789", &[b'x'; 32]],
        &[refused],
    );
}

#[test]
fn an_overlong_line_is_refused_once_and_not_kept() {
    let mut feed = Feed::new(LIMITS);
    for _ in 0..100 {
        feed.piece(&[b'x'; 1000]);
    }
    assert_eq!((feed.requests.len(), feed.decoder.held()), (0, 0));
    feed.piece(b"\r");
    feed.piece(b"\ndelete 7\r\n");
    assert_eq!(
        feed.requests,
        [BAD_FORMAT, DELETE].map(|request| format!("{request:?}"))
    );
}

#[test]
fn a_request_in_one_piece_is_not_copied() {
    let bytes = b"put 1 2 3 5\r\nhello\r\nuse tube\r\n";
    let mut input = &bytes[..];
    let mut decoder = Decoder::default();
    let Some(Request::Command(Command::Put { body, .. })) = decoder.decode(&mut input, LIMITS)
    else {
        panic!("no put");
    };
    assert!(std::ptr::eq(&*body, &bytes[13..18]));
    let Some(Request::Command(Command::Use(tube))) = decoder.decode(&mut input, LIMITS) else {
        panic!("no use");
    };
    assert!(std::ptr::eq(tube.as_bytes(), &bytes[24..28]));
    assert_eq!(decoder.held(), 0);
}

#[test]
fn an_announced_body_takes_no_memory_before_it_arrives() {
    let mut feed = Feed::new(Limits {
        job_size_max: u32::MAX,
        memory_left: u64::MAX,
        protocol: Protocol::Beanstalkd,
    });
    feed.piece(b"put 1 2 3 4294967295\r\n");
    assert_eq!(feed.decoder.held(), 0);
    for _ in 0..1000 {
        feed.piece(&[0; 100]);
    }
    assert!(feed.decoder.held() <= 400_000, "{}", feed.decoder.held());
}

#[test]
fn a_body_may_be_read_where_it_is_kept_and_not_a_byte_further() {
    let mut decoder = Decoder::default();
    assert!(decoder.body_buffer(1, LIMITS).is_none(), "a line is next");
    let mut input = &b"put 1 2 3 50\r\n0123456789"[..];
    assert_eq!(decoder.decode(&mut input, LIMITS), None);
    assert!(decoder.body_buffer(31, LIMITS).is_none(), "10 have come");
    assert!(decoder.held() <= 40);
    let mut rest = vec![b'x'; 40];
    rest.extend_from_slice(CRLF);
    while !rest.is_empty() {
        let body = decoder.body_buffer(7, LIMITS).expect("there are more");
        let room = body.capacity() - body.len();
        assert!((7..=rest.len()).contains(&room), "{room} of {}", rest.len());
        body.extend(rest.drain(..7));
        let missing = rest.len();
        assert!(decoder.body_buffer(missing + 1, LIMITS).is_none());
    }
    let mut whole = b"0123456789".to_vec();
    whole.resize(50, b'x');
    assert_eq!(decoder.decode(&mut &[][..], LIMITS), Some(put(&whole)));
    assert!(decoder.body_buffer(1, LIMITS).is_none(), "it is lent");
}

#[test]
fn the_end_of_a_request_frees_what_it_borrowed_and_keeps_a_request_that_is_complete() {
    let mut decoder = Decoder::default();
    let mut input = &b"put 1 2 3 50\r\n0123456789"[..];
    assert_eq!(decoder.decode(&mut input, LIMITS), None);
    let mut whole = b"0123456789".to_vec();
    whole.resize(50, b'x');
    let body = decoder.body_buffer(7, LIMITS).expect("there are more");
    body.extend_from_slice(&whole[10..]);
    body.extend_from_slice(CRLF);
    decoder.end_request();
    assert_eq!(decoder.decode(&mut &[][..], LIMITS), Some(put(&whole)));
    assert!(decoder.held() > 50);
    decoder.end_request();
    assert_eq!(decoder.held(), 0);
}

#[test]
fn no_room_is_made_for_a_body_without_memory() {
    let mut decoder = Decoder::default();
    let mut input = &b"put 1 2 3 50\r\n0123456789"[..];
    assert_eq!(decoder.decode(&mut input, LIMITS), None);
    let none_left = Limits {
        memory_left: 0,
        ..LIMITS
    };
    assert!(decoder.body_buffer(30, none_left).is_none());
    assert!(decoder.body_buffer(30, LIMITS).is_some());
}

#[test]
fn a_decoder_is_idle_and_empty_after_every_request() {
    let (bytes, requests) = script();
    let mut feed = Feed::new(LIMITS);
    let mut seen = 0;
    for byte in bytes {
        feed.piece(&[byte]);
        if feed.requests.len() > seen {
            assert_eq!(feed.decoder.held(), 0);
            seen += 1;
        }
    }
    assert_eq!(seen, requests.len());
}

#[test]
fn a_body_may_be_as_large_as_the_limit() {
    for (size, fits) in [(100, true), (101, false)] {
        let body = vec![b'b'; size];
        let head = format!("put 1 2 3 {size}\r\n");
        let request = if fits {
            put(&body)
        } else {
            put_refused(Refusal::JobTooBig)
        };
        expect(
            LIMITS,
            &[head.as_bytes(), &body, b"\r\ndelete 7\r\n"],
            &[request, DELETE],
        );
    }
}

#[test]
fn a_body_too_big_weighs_more_than_trailing_bytes() {
    let body = [b'b'; 101];
    expect(
        LIMITS,
        &[b"put 1 2 3 101 x\r\n", &body, b"\r\ndelete 7\r\n"],
        &[put_refused(Refusal::JobTooBig), DELETE],
    );
}

#[test]
fn a_body_for_which_there_is_no_memory_is_skipped() {
    for (memory_left, request) in [(5, put(b"hello")), (4, put_refused(Refusal::OutOfMemory))] {
        let limits = Limits {
            memory_left,
            ..LIMITS
        };
        let bytes = b"put 1 2 3 5\r\nhello\r\ndelete 7\r\n";
        for at in 0..=bytes.len() {
            expect(
                limits,
                &[&bytes[..at], &bytes[at..]],
                &[request.clone(), DELETE],
            );
        }
    }
}

#[test]
fn a_body_under_way_is_dropped_when_memory_runs_out() {
    let mut decoder = Decoder::default();
    let mut input = &b"put 1 2 3 50\r\n0123456789"[..];
    assert_eq!(decoder.decode(&mut input, LIMITS), None);
    assert!(decoder.held() >= 10);
    let none_left = Limits {
        memory_left: 0,
        ..LIMITS
    };
    let mut input = &[b'x'; 30][..];
    assert_eq!(decoder.decode(&mut input, none_left), None);
    assert_eq!(decoder.held(), 0);
    let mut input = &b"xxxxxxxxxx\r\ndelete 7\r\n"[..];
    let refused = put_refused(Refusal::OutOfMemory);
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(refused));
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(DELETE));
}

#[test]
fn f24_a_body_under_way_can_be_let_go_of_and_its_put_is_refused() {
    let mut decoder = Decoder::default();
    assert!(!decoder.refuse_body(), "a line is next");
    let mut input = &b"put 1 2 3 50\r\n0123456789"[..];
    assert_eq!(decoder.decode(&mut input, LIMITS), None);
    assert!(decoder.refuse_body());
    assert_eq!(decoder.held(), 0);
    let mut input = &[&[b'x'; 40][..], b"\r\ndelete 7\r\n"].concat()[..];
    let refused = put_refused(Refusal::OutOfMemory);
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(refused));
    assert_eq!(decoder.decode(&mut input, LIMITS), Some(DELETE));
}

/// Wherever the bytes are cut, and whichever parts of the body the caller has taken.
#[test]
fn g46_of_a_body_whose_beginning_was_set_aside_the_put_has_the_rest() {
    let body = b"a\r\nbody\r\n";
    let bytes = [&b"put 1 2 3 9\r\n"[..], body, b"\r\ndelete 7\r\n"].concat();
    let mut begun_most = 0;
    for (first, second) in (0..bytes.len()).flat_map(|at| (at..bytes.len()).map(move |to| (at, to)))
    {
        let mut decoder = Decoder::default();
        let mut aside = Vec::new();
        let mut seen = Vec::new();
        for piece in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
            let mut input = piece;
            while let Some(request) = decoder.decode(&mut input, LIMITS) {
                match request {
                    Request::Command(Command::Put { body, .. }) => {
                        seen.push([&aside[..], &body].concat());
                        begun_most = begun_most.max(aside.len());
                        aside.clear();
                    }
                    other => assert_eq!(other, DELETE),
                }
            }
            if let Some(beginning) = decoder.beginning() {
                aside.extend_from_slice(beginning);
                decoder.set_aside();
                assert!(decoder.held() <= 1, "no more than a CR is left");
            }
            assert_eq!(decoder.begun(), aside.len());
            assert_eq!(decoder.beginning().unwrap_or_default(), b"");
        }
        assert_eq!(seen, [body], "cut at {first} and {second}");
    }
    assert_eq!(begun_most, body.len());
}

#[test]
fn g46_a_body_that_was_set_aside_can_be_refused_and_nothing_of_it_is_left() {
    for end in [&b"xxxx\r\n"[..], b"xxxxxx"] {
        let mut decoder = Decoder::default();
        assert_eq!(
            decoder.decode(&mut &b"put 1 2 3 9\r\nabcde"[..], LIMITS),
            None
        );
        decoder.set_aside();
        assert_eq!((decoder.begun(), decoder.held()), (5, 0));
        let refusal = match end.ends_with(CRLF) {
            true => Refusal::OutOfMemory,
            false => Refusal::ExpectedCrlf,
        };
        if refusal == Refusal::OutOfMemory {
            assert!(decoder.refuse_body());
        }
        let mut input = &[end, b"delete 7\r\n"].concat()[..];
        assert_eq!(
            decoder.decode(&mut input, LIMITS),
            Some(put_refused(refusal))
        );
        assert_eq!(decoder.begun(), 0);
        assert_eq!(decoder.decode(&mut input, LIMITS), Some(DELETE));
    }
}

#[test]
fn after_a_missing_crlf_nothing_more_is_skipped() {
    expect(
        LIMITS,
        &[b"put 1 2 3 2\r\nabc\r\n\r\ndelete 7\r\n"],
        &[
            put_refused(Refusal::ExpectedCrlf),
            Request::refused(Refusal::UnknownCommand, None),
            DELETE,
        ],
    );
}
