//! A request that has begun and is incomplete: how much of it is kept, and where its next bytes belong.
//!
//! It exists only while something of a request is to come, or while a request that arrived in pieces
//! is lent.

use super::super::extended::{self, Announced, Head};
use super::super::parse::{self, CRLF, PutLine};
use super::super::{Op, Protocol, Refusal, Request};
use super::{
    LINE_SIZE_MAX, LONG_LINE_SIZE_MAX, Limits, at_most, line_end, refusal_of, request, take,
};

/// The request.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    state: State,
    /// The beginning of the line or the body that `state` waits for; after a request that arrived
    /// in pieces, the bytes that this request borrows.
    held: Vec<u8>,
    /// What the line of an extended command said, of which the body is to come.
    head: Option<Box<Head>>,
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
    /// A body that will be refused; `left` bytes of it are still to come. The operation counts.
    Skip { left: u64, refusal: Refusal, op: Op },
    /// Nothing: the last request borrows `held`.
    Lent,
}

impl Unfinished {
    /// Decodes the next request, which is this one.
    pub(super) fn decode<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        match self.state {
            State::Line | State::Lent => self.line(input, limits),
            State::LongLine { last } => self.long_line(last, input),
            State::Body { put, begun } => self.body(put, begun, input, limits),
            State::Skip { left, refusal, op } => self.skip(left, (refusal, op), input),
        }
    }

    /// Nothing more is to come of the request.
    pub(super) fn is_over(&self) -> bool {
        match self.state {
            State::Line => self.held.is_empty(),
            State::Lent => true,
            _ => false,
        }
    }

    /// See [`super::Decoder::body_buffer`].
    pub(super) fn body_buffer(&mut self, size_min: usize, limits: Limits) -> Option<&mut Vec<u8>> {
        let missing = self.missing()?;
        let is_long = missing >= size_min as u64 && self.growth(0, missing) >= size_min;
        let memory_left = self.memory_left(limits);
        let has_room = is_long && self.make_room(size_min, missing, memory_left);
        (has_room && self.spare() as u64 <= missing).then_some(&mut self.held)
    }

    /// See [`super::Decoder::refuse_body`].
    pub(super) fn refuse_body(&mut self) -> bool {
        let Some(left) = self.missing() else {
            return false;
        };
        let op = self.op();
        self.reset();
        self.state = State::Skip {
            left,
            refusal: Refusal::OutOfMemory,
            op,
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

    /// See [`super::Decoder::beginning`].
    pub(super) fn beginning(&self) -> Option<&[u8]> {
        let State::Body { put, begun } = self.state else {
            return None;
        };
        if self.head.as_deref().is_some_and(|head| !head.is_put()) {
            return None;
        }
        let left = u64::from(put.body_size - begun);
        Some(&self.held[..at_most(left, self.held.len())])
    }

    /// See [`super::Decoder::set_aside`].
    pub(super) fn set_aside(&mut self) {
        let size = self.beginning().map_or(0, <[u8]>::len);
        if let State::Body { begun, .. } = &mut self.state {
            *begun += size as u32;
            self.held = self.held.split_off(size);
        }
    }

    /// See [`super::Decoder::begun`].
    pub(super) fn begun(&self) -> usize {
        match self.state {
            State::Body { begun, .. } => begun as usize,
            _ => 0,
        }
    }

    /// See [`super::Decoder::held`].
    pub(super) fn held(&self) -> usize {
        self.held.capacity()
    }

    fn reset(&mut self) {
        *self = Unfinished::default();
    }

    /// What the body being received may take. Of ids it is bounded by itself.
    fn memory_left(&self, limits: Limits) -> u64 {
        match self.head.as_deref() {
            Some(head) if head.is_small() => u64::MAX,
            _ => limits.memory_left,
        }
    }

    /// The command whose body is being received.
    fn op(&self) -> Op {
        self.head.as_deref().map_or(Op::Put, Head::op)
    }

    fn line<'a, 'i: 'a>(&'a mut self, input: &mut &'i [u8], limits: Limits) -> Option<Request<'a>> {
        let room = LINE_SIZE_MAX.saturating_sub(self.held.len());
        let window = &input[..input.len().min(room)];
        let last = self.held.last().copied().unwrap_or_default();
        let found = match line_end(last, window) {
            None if window.len() == room => self.end_of_long(last, input, limits),
            found => found.ok_or(false),
        };
        match found {
            Ok(end) => self.ended_line(end, input, limits),
            Err(is_too_long) => self.unfinished_line(is_too_long, input),
        }
    }

    /// Looks for the end of a line that is too long for beanstalkd: one of an extended command may
    /// have more bytes. `Err`: the end has not come yet, and whether the line is too long for that, too.
    #[cold]
    fn end_of_long(&self, last: u8, input: &[u8], limits: Limits) -> Result<usize, bool> {
        if !self.may_be_long(input, limits) {
            return Err(true);
        }
        let room = LONG_LINE_SIZE_MAX - self.held.len();
        let window = &input[..input.len().min(room)];
        line_end(last, window).ok_or(window.len() == room)
    }

    /// Whether a line that is too long for beanstalkd, and goes on with `input`, begins as one of an
    /// extended command.
    fn may_be_long(&self, input: &[u8], limits: Limits) -> bool {
        limits.protocol == Protocol::Extended
            && extended::may_be_long(&self.head(extended::WORD_SIZE_MAX, input))
    }

    /// The first bytes of a line that goes on with `input`.
    fn head(&self, size: usize, input: &[u8]) -> Vec<u8> {
        let held = self.held.iter().chain(input).copied();
        held.take(size).collect()
    }

    /// The line ends at `end` of the input.
    fn ended_line<'a, 'i: 'a>(
        &'a mut self,
        end: usize,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
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
        if let Some(put) = parse::put(line) {
            return self.put(put, input, limits);
        }
        match extended::announced(line) {
            Some(announced) if limits.protocol == Protocol::Extended => {
                self.announced(announced, input, limits)
            }
            _ => Some(request(line, limits)),
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
        // Before other words: the line is not lent if a body follows.
        if limits.protocol == Protocol::Extended
            && let Some(announced) = extended::announced(&self.held[..size])
        {
            self.reset();
            return self.announced(announced, input, limits);
        }
        self.state = State::Lent;
        Some(request(&self.held[..size], limits))
    }

    /// All of `input` belongs to an unfinished line.
    fn unfinished_line(&mut self, too_long: bool, input: &mut &[u8]) -> Option<Request<'static>> {
        if too_long {
            let head = self.head(parse::METHOD_SIZE_MAX, input);
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

    /// Decides what happens to an announced body.
    fn put<'a, 'i: 'a>(
        &'a mut self,
        put: PutLine,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        match put.refusal(limits) {
            None => self.body(put, 0, input, limits),
            // What comes behind such a line is no body.
            Some(Refusal::BadFormat) => Some(Request::refused(Refusal::BadFormat, Some(Op::Put))),
            Some(refusal) => self.skip(put.size_with_crlf(), (refusal, Op::Put), input),
        }
    }

    /// The same for an extended command. Here also of a line that cannot be read the body is skipped.
    fn announced<'a, 'i: 'a>(
        &'a mut self,
        announced: Announced,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        let Announced {
            op,
            body_size,
            head,
        } = announced;
        let body = PutLine::of_size(body_size);
        if let Some(refusal) = refusal_of(head.as_ref(), body_size, limits) {
            return self.skip(body.size_with_crlf(), (refusal, op), input);
        }
        self.head = head.map(Box::new);
        self.body(body, 0, input, limits)
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
            return Some(complete_request(put, self.head.take(), arrived));
        }
        if !self.hold_body(arrived, missing, self.memory_left(limits)) {
            let refused = (Refusal::OutOfMemory, self.op());
            self.reset();
            return self.skip(missing - arrived.len() as u64, refused, input);
        }
        if complete {
            self.state = State::Lent;
            return Some(complete_request(put, self.head.take(), &self.held));
        }
        self.state = State::Body { put, begun };
        None
    }

    /// Skips `left` bytes and refuses the command that they belong to.
    fn skip(
        &mut self,
        left: u64,
        (refusal, op): (Refusal, Op),
        input: &mut &[u8],
    ) -> Option<Request<'static>> {
        let skipped = take(input, at_most(left, input.len()));
        let left = left - skipped.len() as u64;
        if left > 0 {
            self.state = State::Skip { left, refusal, op };
            return None;
        }
        self.state = State::Line;
        Some(Request::refused(refusal, Some(op)))
    }

    /// Keeps a piece of a line, which is known to fit.
    fn hold_line(&mut self, bytes: &[u8]) {
        if bytes.len() > self.spare() {
            let max = match self.held.len() + bytes.len() > LINE_SIZE_MAX {
                true => LONG_LINE_SIZE_MAX,
                false => LINE_SIZE_MAX,
            };
            let room = max - self.held.len();
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

/// The request of a line and of its body, which is complete.
fn complete_request(put: PutLine, head: Option<Box<Head>>, bytes: &[u8]) -> Request<'_> {
    match head {
        None => put.with(bytes),
        Some(head) => head.with(bytes),
    }
}
