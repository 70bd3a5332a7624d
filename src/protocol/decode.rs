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

mod unfinished;

use memchr::memchr;

use self::unfinished::Unfinished;
use super::extended::{self, Head};
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
    /// A request that has begun and is incomplete, or arrived in pieces and is lent.
    unfinished: Option<Box<Unfinished>>,
}

/// There may be ten thousand of them.
const _: () = assert!(size_of::<Decoder>() <= 8);

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

impl Limits {
    /// Every command, and bodies of this size at most, however much memory they take.
    #[must_use]
    pub const fn of(job_size_max: u32) -> Limits {
        Limits {
            job_size_max,
            memory_left: u64::MAX,
            protocol: Protocol::Extended,
        }
    }
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
        self.end_request();
        match self.unfinished {
            None => self.begin(input, limits),
            Some(_) => self.go_on(input, limits),
        }
    }

    /// Nothing is unfinished. A request that is whole, as most are, is made where it is returned: to move
    /// it costs more than to look at it. Nothing is taken of any other, which is left to `go_on`.
    fn begin<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        let window = &input[..input.len().min(LINE_SIZE_MAX)];
        let Some(end) = line_end(0, window) else {
            return self.go_on(input, limits);
        };
        let line = &input[..end - CRLF.len()];
        if let Some(put) = parse::put(line) {
            let size = end as u64 + put.size_with_crlf();
            if size > input.len() as u64 || put.refusal(limits).is_some() {
                return self.go_on(input, limits);
            }
            return Some(put.with(&take(input, size as usize)[end..]));
        }
        let mut request = Some(parse::line(line));
        if may_be_extended(request.as_ref(), limits) {
            if extended::announced(line).is_some() {
                return self.go_on(input, limits);
            }
            request = extended::request(line).or(request);
        }
        take(input, end);
        request
    }

    fn go_on<'a, 'i: 'a>(
        &'a mut self,
        input: &mut &'i [u8],
        limits: Limits,
    ) -> Option<Request<'a>> {
        if input.is_empty() && self.unfinished.is_none() {
            return None;
        }
        self.unfinished
            .get_or_insert_default()
            .decode(input, limits)
    }

    /// The buffer of the body being received, so that its next bytes can be appended directly. It
    /// has room for at least `size_min` bytes, and not for bytes after the body. Then call
    /// [`Decoder::decode`] without input, which returns the request if it is complete. `None` if
    /// fewer bytes are missing, if so few have arrived that the room would be more than three times
    /// as much, if no body is being received, or if there is no memory, which `decode` then
    /// handles.
    pub fn body_buffer(&mut self, size_min: usize, limits: Limits) -> Option<&mut Vec<u8>> {
        self.unfinished.as_mut()?.body_buffer(size_min, limits)
    }

    /// The last request is over: frees what it borrows, which the next call of [`Decoder::decode`] would
    /// do, too. That may take long: a client may send one large body in pieces and then nothing. A
    /// request that `decode` has not returned stays, also one that is complete.
    #[inline]
    pub fn end_request(&mut self) {
        if self.unfinished.as_ref().is_some_and(|it| it.is_over()) {
            self.unfinished = None;
        }
    }

    /// Gives up the body being received: the rest of it is skipped, and the `put` is refused with
    /// `OUT_OF_MEMORY`. `false` if no body is being received.
    pub fn refuse_body(&mut self) -> bool {
        self.unfinished.as_mut().is_some_and(|it| it.refuse_body())
    }

    /// The received part of the current body, without its CR LF. The caller may keep it elsewhere,
    /// and then says so with [`Decoder::set_aside`]. `None` if no body of a job is being received.
    #[must_use]
    pub fn beginning(&self) -> Option<&[u8]> {
        self.unfinished.as_ref()?.beginning()
    }

    /// The caller keeps what [`Decoder::beginning`] returned, behind what it has of this body: the
    /// `put` will have only the rest of it. That it comes from a caller that has no beginning, or has
    /// one of another body, would be wrong.
    pub fn set_aside(&mut self) {
        if let Some(unfinished) = &mut self.unfinished {
            unfinished.set_aside();
        }
    }

    /// Bytes that the caller keeps of the body being received.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.unfinished.as_ref().map_or(0, |it| it.begun())
    }

    /// Bytes of heap memory held for an incomplete request: at most 224, for the line of an extended
    /// command 1,024, or four times the part of a body that has arrived. The memory that the last
    /// request borrows counts until the next call
    /// of [`Decoder::decode`].
    #[must_use]
    pub fn held(&self) -> usize {
        self.unfinished.as_ref().map_or(0, |it| it.held())
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

    /// Why a `put` of this line is refused. beanstalkd checks the size before the bytes after it on the
    /// line.
    fn refusal(self, limits: Limits) -> Option<Refusal> {
        if self.body_size > limits.job_size_max {
            Some(Refusal::JobTooBig)
        } else if self.trailing {
            Some(Refusal::BadFormat)
        } else {
            let is_over = u64::from(self.body_size) > limits.memory_left;
            is_over.then_some(Refusal::OutOfMemory)
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
            Some(body) => Request::Command(Command::put(pri, delay, ttr, body)),
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
