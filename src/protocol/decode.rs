//! Decoding a connection's bytes into requests, however the network has split them.
//!
//! The decoder finds where lines and bodies end, and decides how much of an incomplete one is kept;
//! [`super::parse`] reads the content of a line. Invariants:
//!
//! * The same bytes give the same requests, split anywhere (as long as the limits stay the same).
//! * A complete request in `input` borrows from it and costs no allocation. Only an incomplete one
//!   is copied, and its memory grows as its bytes arrive, never because of a number in a `put`
//!   line. The rest of a long body need not be copied either: see [`Decoder::body_buffer`].
//! * An idle decoder is a few words and owns no heap memory: ten thousand idle connections cost
//!   nothing.
//! * After every error the decoder continues at the right place; no error ends the connection.
//!
//! Two things differ from beanstalkd, both for the better: a CR without LF does not make a line
//! wait for its 224th byte, and the end of an overlong line is found wherever it lies (beanstalkd
//! loses a CR LF that straddles its 224-byte buffer, and the next command with it).

use memchr::memchr;

use super::parse::{self, PutLine};
use super::{Command, Op, Refusal, Request};

/// The longest line of a command, its CR LF included, in bytes (beanstalkd's line buffer).
pub(super) const LINE_SIZE_MAX: usize = 224;

/// The end of a line, and of a body.
pub(super) const CRLF: &[u8] = b"\r\n";

/// Decodes one connection's bytes into requests. It holds only what is incomplete: an idle decoder
/// owns no heap memory.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
    /// The beginning of the line or the body that `state` waits for; after a request that arrived
    /// in pieces, the bytes that this request borrows.
    held: Vec<u8>,
}

/// There may be ten thousand of them.
const _: () = assert!(size_of::<Decoder>() <= 64);

/// The limits for decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Largest body a `put` may announce, bytes.
    pub job_size_max: u32,
    /// Bytes that incomplete bodies may take in addition to what is already held, without the CR LF
    /// after a body. A `put` that announces more is skipped and refused with `OUT_OF_MEMORY`; so is
    /// one in progress whose next bytes no longer fit.
    pub memory_left: u64,
}

/// The meaning of the next byte.
#[derive(Debug, Default)]
enum State {
    /// A line, which may have begun in `held`.
    #[default]
    Line,
    /// A line that is too long to keep. `last` is its last byte so far.
    LongLine { last: u8 },
    /// The body that this line announced, or the CR LF after it. The caller has `begun` bytes of it.
    Body { put: PutLine, begun: u32 },
    /// A body that will be refused; `left` bytes of it are still to come.
    Skip { left: u64, refusal: Refusal },
    /// Nothing yet: the last request borrows `held`, which the next call frees.
    Lent,
}

impl Decoder {
    /// Decodes the next request and removes its bytes from the front of `input`, which holds the
    /// bytes that have arrived and were not decoded yet. `None`: more bytes are needed, and all of
    /// `input` has been consumed. Requests are returned in order, so call this until it returns
    /// `None`.
    pub fn decode<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        match self.state {
            State::Line => self.line(input, limits),
            State::LongLine { last } => self.long_line(last, input),
            State::Body { put, begun } => self.body(put, begun, input, limits),
            State::Skip { left, refusal } => self.skip(left, refusal, input),
            State::Lent => {
                self.end_request();
                self.line(input, limits)
            }
        }
    }

    /// The buffer of the body being received, so that its next bytes can be appended directly. It
    /// has room for at least `size_min` bytes, and not for bytes after the body. Then call
    /// [`Decoder::decode`] without input, which returns the request if it is complete. `None` if
    /// fewer bytes are missing, if so few have arrived that the room would be more than three times
    /// as much, if no body is being received, or if there is no memory, which `decode` then
    /// handles.
    pub fn body_buffer(&mut self, size_min: usize, limits: Limits) -> Option<&mut Vec<u8>> {
        let missing = self.missing()?;
        let is_long = missing >= size_min as u64 && self.growth(0, missing) >= size_min;
        let has_room = is_long && self.make_room(size_min, missing, limits.memory_left);
        (has_room && self.spare() as u64 <= missing).then_some(&mut self.held)
    }

    /// The last request is over: frees what it borrows, which the next call of [`Decoder::decode`] would
    /// do, too. That may take long: a client may send one large body in pieces and then nothing. A
    /// request that `decode` has not returned stays, also one that is complete.
    pub fn end_request(&mut self) {
        if matches!(self.state, State::Lent) {
            self.reset();
        }
    }

    /// Gives up the body being received: the rest of it is skipped, and the `put` is refused with
    /// `OUT_OF_MEMORY`. `false` if no body is being received.
    pub fn refuse_body(&mut self) -> bool {
        let Some(left) = self.missing() else {
            return false;
        };
        self.reset();
        self.state = State::Skip {
            left,
            refusal: Refusal::OutOfMemory,
        };
        true
    }

    /// Bytes that are still to come of the body being received, with its CR LF; `None` if none is.
    fn missing(&self) -> Option<u64> {
        let State::Body { put, begun } = self.state else {
            return None;
        };
        Some(put.size_with_crlf() - u64::from(begun) - self.held.len() as u64)
    }

    /// The received part of the current body, without its CR LF. The caller may keep it elsewhere,
    /// and then says so with [`Decoder::set_aside`]. `None` if no body is being received.
    #[must_use]
    pub fn beginning(&self) -> Option<&[u8]> {
        let State::Body { put, begun } = self.state else {
            return None;
        };
        let left = u64::from(put.body_size - begun);
        Some(&self.held[..at_most(left, self.held.len())])
    }

    /// The caller keeps what [`Decoder::beginning`] returned, behind what it has of this body: the
    /// `put` will have only the rest of it. That it comes from a caller that has no beginning, or has
    /// one of another body, would be wrong.
    pub fn set_aside(&mut self) {
        let size = self.beginning().map_or(0, <[u8]>::len);
        if let State::Body { begun, .. } = &mut self.state {
            *begun += size as u32;
            self.held = self.held.split_off(size);
        }
    }

    /// Bytes that the caller keeps of the body being received.
    #[must_use]
    pub fn begun(&self) -> usize {
        match self.state {
            State::Body { begun, .. } => begun as usize,
            _ => 0,
        }
    }

    /// Bytes of heap memory held for an incomplete request: at most 224, or four times the part of
    /// a body that has arrived. The memory that the last request borrows counts until the next call
    /// of [`Decoder::decode`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.capacity()
    }

    fn reset(&mut self) {
        self.state = State::Line;
        self.held = Vec::new();
    }

    fn line<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8], limits: Limits) -> Option<Request<'a>> {
        let room = LINE_SIZE_MAX - self.held.len();
        let window = &input[..input.len().min(room)];
        let last = self.held.last().copied().unwrap_or_default();
        let Some(end) = line_end(last, window) else {
            return self.unfinished_line(window.len() == room, input);
        };
        let bytes = take(input, end);
        if self.held.is_empty() {
            self.whole_line(bytes, input, limits)
        } else {
            self.hold_line(bytes);
            self.held_line(input, limits)
        }
    }

    /// Reads a line that arrived in one piece; the request may borrow from the input.
    fn whole_line<'a, 'i: 'a>(
        &'a mut self,
        bytes: &'i [u8],
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        let line = &bytes[..bytes.len() - CRLF.len()];
        match parse::put(line) {
            Some(put) => self.put(put, input, limits),
            None => Some(parse::line(line)),
        }
    }

    /// Reads a line that arrived in pieces and is complete in `held`.
    fn held_line<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        let size = self.held.len() - CRLF.len();
        if let Some(put) = parse::put(&self.held[..size]) {
            self.reset();
            return self.put(put, input, limits);
        }
        self.state = State::Lent;
        Some(parse::line(&self.held[..size]))
    }

    /// All of `input` belongs to an unfinished line.
    fn unfinished_line(&mut self, too_long: bool, input: &mut &[u8]) -> Option<Request<'static>> {
        if too_long {
            let held = self.held.iter().chain(&**input).copied();
            let head: Vec<u8> = held.take(parse::METHOD_SIZE_MAX).collect();
            self.reset();
            if parse::begins_as_http(&head) {
                take(input, input.len());
                self.state = State::LongLine { last: 0 };
                return Some(Request::refused(Refusal::Http, None));
            }
            return self.long_line(0, input);
        }
        let bytes = take(input, input.len());
        self.hold_line(bytes);
        None
    }

    /// Looks for the end of a line that is refused whatever its content.
    fn long_line(&mut self, last: u8, input: &mut &[u8]) -> Option<Request<'static>> {
        let Some(end) = line_end(last, input) else {
            let last = input.last().copied().unwrap_or(last);
            self.state = State::LongLine { last };
            take(input, input.len());
            return None;
        };
        take(input, end);
        self.state = State::Line;
        Some(Request::refused(Refusal::BadFormat, None))
    }

    /// Decides what happens to an announced body. beanstalkd checks the size before the bytes after
    /// it on the line.
    fn put<'a, 'i: 'a>(
        &'a mut self,
        put: PutLine,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        if put.body_size > limits.job_size_max {
            self.skip(put.size_with_crlf(), Refusal::JobTooBig, input)
        } else if put.trailing {
            Some(Request::refused(Refusal::BadFormat, Some(Op::Put)))
        } else if u64::from(put.body_size) > limits.memory_left {
            self.skip(put.size_with_crlf(), Refusal::OutOfMemory, input)
        } else {
            self.body(put, 0, input, limits)
        }
    }

    fn body<'a, 'i: 'a>(
        &'a mut self,
        put: PutLine,
        begun: u32,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        let missing = put.size_with_crlf() - u64::from(begun) - self.held.len() as u64;
        let arrived = take(input, at_most(missing, input.len()));
        let complete = arrived.len() as u64 == missing;
        if complete && self.held.is_empty() {
            self.state = State::Line;
            return Some(put.with(arrived));
        }
        if !self.hold_body(arrived, missing, limits.memory_left) {
            self.reset();
            return self.skip(missing - arrived.len() as u64, Refusal::OutOfMemory, input);
        }
        if complete {
            self.state = State::Lent;
            return Some(put.with(&self.held));
        }
        self.state = State::Body { put, begun };
        None
    }

    /// Skips `left` bytes and refuses the `put` that they belong to.
    fn skip(&mut self, left: u64, refusal: Refusal, input: &mut &[u8]) -> Option<Request<'static>> {
        let skipped = take(input, at_most(left, input.len()));
        let left = left - skipped.len() as u64;
        if left > 0 {
            self.state = State::Skip { left, refusal };
            return None;
        }
        self.state = State::Line;
        Some(Request::refused(refusal, Some(Op::Put)))
    }

    /// Keeps a piece of a line, which is known to fit.
    fn hold_line(&mut self, bytes: &[u8]) {
        if bytes.len() > self.spare() {
            let room = LINE_SIZE_MAX - self.held.len();
            self.held
                .reserve_exact(self.growth(bytes.len(), room as u64));
        }
        self.held.extend_from_slice(bytes);
    }

    /// Keeps a piece of a body of which `missing` bytes were to come. `false`: there is no memory
    /// for it.
    fn hold_body(&mut self, bytes: &[u8], missing: u64, memory_left: u64) -> bool {
        let fits = self.make_room(bytes.len(), missing, memory_left);
        if fits {
            self.held.extend_from_slice(bytes);
        }
        fits
    }

    /// Makes room for `size` more bytes of a body of which `missing` are to come. `false`: there is
    /// no memory for them.
    fn make_room(&mut self, size: usize, missing: u64, memory_left: u64) -> bool {
        let spare = self.spare();
        if size <= spare {
            return true;
        }
        let memory_left = memory_left.saturating_add(CRLF.len() as u64);
        let fits = |growth: &usize| (growth - spare) as u64 <= memory_left;
        let sizes = [self.growth(size, missing), size];
        let growth = sizes.into_iter().find(fits);
        growth.is_some_and(|growth| self.held.try_reserve_exact(growth).is_ok())
    }

    fn spare(&self) -> usize {
        self.held.capacity() - self.held.len()
    }

    /// The number of bytes to make room for when `arrived` of the `missing` ones are here: three
    /// times as many as have arrived, so that pieces are not copied over and over, but no more than
    /// can ever come.
    fn growth(&self, arrived: usize, missing: u64) -> usize {
        at_most(missing, arrived.max(self.held.len().saturating_mul(3)))
    }
}

impl PutLine {
    fn size_with_crlf(self) -> u64 {
        u64::from(self.body_size) + CRLF.len() as u64
    }

    /// The request of this line and the bytes after it, or the last of them, which end with a CR LF, or should.
    pub(super) fn with(self, bytes: &[u8]) -> Request<'_> {
        let PutLine {
            pri, delay, ttr, ..
        } = self;
        match bytes.strip_suffix(CRLF) {
            Some(body) => Request::Command(Command::Put {
                tube: None,
                pri,
                delay,
                ttr,
                body: body.into(),
            }),
            None => Request::refused(Refusal::ExpectedCrlf, Some(Op::Put)),
        }
    }
}

/// The index after the first CR LF in `bytes`; `last` is the byte before them.
fn line_end(last: u8, bytes: &[u8]) -> Option<usize> {
    let before = |at: usize| if at == 0 { last } else { bytes[at - 1] };
    let mut at = memchr(b'\n', bytes)?;
    while before(at) != b'\r' {
        at += 1 + memchr(b'\n', &bytes[at + 1..])?;
    }
    Some(at + 1)
}

/// Removes `count` bytes from the front of `input`.
fn take<'i>(input: &mut &'i [u8], count: usize) -> &'i [u8] {
    let (taken, rest) = input.split_at(count);
    *input = rest;
    taken
}

/// The smaller of the two.
fn at_most(limit: u64, count: usize) -> usize {
    usize::try_from(limit).map_or(count, |limit| limit.min(count))
}

#[cfg(test)]
mod tests {
    use super::super::any_bytes::Feed;
    use super::*;
    use crate::types::JobId;

    const LIMITS: Limits = Limits {
        job_size_max: 100,
        memory_left: u64::MAX,
    };

    const BAD_FORMAT: Request<'_> = Request::refused(Refusal::BadFormat, None);

    const DELETE: Request<'_> = Request::Command(Command::Delete(JobId(7)));

    fn put(body: &[u8]) -> Request<'_> {
        Request::Command(Command::Put {
            tube: None,
            pri: 1,
            delay: 2,
            ttr: 3,
            body: body.into(),
        })
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
        for (first, second) in
            (0..bytes.len()).flat_map(|at| (at..bytes.len()).map(move |to| (at, to)))
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
}
