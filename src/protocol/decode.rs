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

use super::extended::{self, Announced, Head};
use super::parse::{self, CRLF, PutLine};
use crate::attributes::TEXT_SIZE_MAX;

use super::{Command, Op, Protocol, Refusal, Request};

/// The longest line of a command, its CR LF included, in bytes (beanstalkd's line buffer).
pub(super) const LINE_SIZE_MAX: usize = 224;
/// The same of an extended command with arguments.
pub(super) const LONG_LINE_SIZE_MAX: usize = 1024;

/// Decodes one connection's bytes into requests. It holds only what is incomplete: an idle decoder
/// owns no heap memory.
#[derive(Debug, Default)]
pub struct Decoder {
    state: State,
    /// The beginning of the line or the body that `state` waits for; after a request that arrived
    /// in pieces, the bytes that this request borrows.
    held: Vec<u8>,
    /// What the line of an extended command said, of which the body is to come.
    head: Option<Box<Head>>,
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
    /// The commands that are known.
    pub protocol: Protocol,
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
    /// Nothing yet: the last request borrows `held`, which the next call frees.
    Lent,
}

impl Decoder {
    /// Decodes the next request and removes its bytes from the front of `input`, which holds the
    /// bytes that have arrived and were not decoded yet. `None`: more bytes are needed, and all of
    /// `input` has been consumed. Requests are returned in order, so call this until it returns
    /// `None`.
    #[inline]
    pub fn decode<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        match self.state {
            State::Line => self.line(input, limits),
            _ => self.go_on(input, limits),
        }
    }

    /// The same where the next bytes do not begin a line, or end what was lent.
    fn go_on<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        match self.state {
            State::LongLine { last } => self.long_line(last, input),
            State::Body { put, begun } => self.body(put, begun, input, limits),
            State::Skip { left, refusal, op } => self.skip(left, (refusal, op), input),
            State::Line | State::Lent => {
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
        let memory_left = self.memory_left(limits);
        let has_room = is_long && self.make_room(size_min, missing, memory_left);
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

    /// The received part of the current body, without its CR LF. The caller may keep it elsewhere,
    /// and then says so with [`Decoder::set_aside`]. `None` if no body of a job is being received.
    #[must_use]
    pub fn beginning(&self) -> Option<&[u8]> {
        let State::Body { put, begun } = self.state else {
            return None;
        };
        if self.head.as_deref().is_some_and(|head| !head.is_put()) {
            return None;
        }
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

    /// Bytes of heap memory held for an incomplete request: at most 224, for the line of an extended
    /// command 1,024, or four times the part of a body that has arrived. The memory that the last
    /// request borrows counts until the next call
    /// of [`Decoder::decode`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.capacity()
    }

    fn reset(&mut self) {
        *self = Decoder::default();
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
        match parse::put(line) {
            Some(put) => self.put(put, input, limits),
            None => self.other_line(line, input, limits),
        }
    }

    /// The same of a line that is no `put`. The request is made where it is returned: to move it costs
    /// more than to look at it.
    #[inline]
    fn other_line<'a, 'i: 'a>(
        &'a mut self,
        line: &'i [u8],
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        let mut request = Some(parse::line(line));
        if may_be_extended(request.as_ref(), limits) {
            request = match extended::announced(line) {
                Some(announced) => self.announced(announced, input, limits),
                None => extended::request(line).or(request),
            };
        }
        request
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

    /// Decides what happens to an announced body. beanstalkd checks the size before the bytes after
    /// it on the line.
    fn put<'a, 'i: 'a>(
        &'a mut self,
        put: PutLine,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        if put.body_size > limits.job_size_max {
            let refused = (Refusal::JobTooBig, Op::Put);
            self.skip(put.size_with_crlf(), refused, input)
        } else if put.trailing {
            Some(Request::refused(Refusal::BadFormat, Some(Op::Put)))
        } else if u64::from(put.body_size) > limits.memory_left {
            let refused = (Refusal::OutOfMemory, Op::Put);
            self.skip(put.size_with_crlf(), refused, input)
        } else if put.size_with_crlf() <= input.len() as u64 {
            Some(put.with(take(input, put.size_with_crlf() as usize)))
        } else {
            self.body(put, 0, input, limits)
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

/// Why a body of this size is skipped, of a line of an extended command. The ids of a batch count for no
/// limit of jobs: they are few, and a batch may free memory.
pub(super) fn refusal_of(head: Option<&Head>, body_size: u32, limits: Limits) -> Option<Refusal> {
    let is_over = u64::from(body_size) > limits.memory_left;
    match head {
        Some(Head::Batch(_)) => (body_size > extended::IDS_SIZE_MAX).then_some(Refusal::BadFormat),
        Some(Head::Fail(_) | Head::Bury(..)) => {
            (body_size > TEXT_SIZE_MAX as u32).then_some(Refusal::JobTooBig)
        }
        _ if body_size > limits.job_size_max => Some(Refusal::JobTooBig),
        None => Some(Refusal::BadFormat),
        Some(Head::Schedule(set)) if body_size > extended::schedule_size_max(set) => {
            Some(Refusal::JobTooBig)
        }
        Some(Head::PutWith(_) | Head::Schedule(_)) => is_over.then_some(Refusal::OutOfMemory),
    }
}

/// The request of a line and of its body, which is complete.
fn complete_request(put: PutLine, head: Option<Box<Head>>, bytes: &[u8]) -> Request<'_> {
    match head {
        None => put.with(bytes),
        Some(head) => head.with(bytes),
    }
}

impl PutLine {
    /// A body of another command, of which only the size counts.
    fn of_size(body_size: u32) -> PutLine {
        PutLine {
            pri: 0,
            delay: 0,
            ttr: 0,
            body_size,
            trailing: false,
        }
    }

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

/// Reads a line that is no `put`, without its CR LF. Extended commands are looked for last: those of
/// beanstalkd do not wait for it.
pub(super) fn request(line: &[u8], limits: Limits) -> Request<'_> {
    let request = parse::line(line);
    match may_be_extended(Some(&request), limits) {
        true => extended::request(line).unwrap_or(request),
        false => request,
    }
}

/// Whether beanstalkd knows no command of this line, or takes it for another one, and bsd may know it.
fn may_be_extended(request: Option<&Request<'_>>, limits: Limits) -> bool {
    use Refusal::{BadFormat, UnknownCommand};
    let is_unknown = matches!(
        request,
        Some(Request::Refused {
            refusal: UnknownCommand | BadFormat,
            counted: None,
        })
    );
    is_unknown && limits.protocol == Protocol::Extended
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
mod tests;
