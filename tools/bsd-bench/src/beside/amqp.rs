//! A client of AMQP 0-9-1, as far as a load of jobs in a quorum queue needs it: publishes that are
//! confirmed, deliveries, acknowledgements. The frames are those of the protocol's specification.
//!
//! ```text
//! type u8 | channel u16 | size u32 | payload | 0xCE       all numbers big-endian
//! method:  class u16 | method u16 | arguments
//! header:  class u16 | 0 u16 | size of the body u64 | flags u16 | properties
//! ```

use std::collections::VecDeque;
use std::io;

use crate::beside::talk::{Done, Talk};
use crate::script::Op;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const FRAME_END: u8 = 0xce;
/// Around a payload.
const FRAME_SIZE: usize = 8;
/// Everything but the connection itself is said here.
const CHANNEL: u16 = 1;

type Method = (u16, u16);
const START: Method = (10, 10);
const START_OK: Method = (10, 11);
const TUNE: Method = (10, 30);
const TUNE_OK: Method = (10, 31);
const OPEN: Method = (10, 40);
const OPEN_OK: Method = (10, 41);
const CLOSE: Method = (10, 50);
const CHANNEL_OPEN: Method = (20, 10);
const CHANNEL_OPEN_OK: Method = (20, 11);
const CHANNEL_CLOSE: Method = (20, 40);
const DECLARE: Method = (50, 10);
const DECLARE_OK: Method = (50, 11);
const QOS: Method = (60, 10);
const QOS_OK: Method = (60, 11);
const CONSUME: Method = (60, 20);
const CONSUME_OK: Method = (60, 21);
const PUBLISH: Method = (60, 40);
const DELIVER: Method = (60, 60);
const ACK: Method = (60, 80);
const SELECT: Method = (85, 10);
const SELECT_OK: Method = (85, 11);

/// Property flag and value: the message is kept on the disk.
const DELIVERY_MODE: u16 = 1 << 12;
const PERSISTENT: u8 = 2;

/// What a client does with the queue at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// Nothing; it only puts.
    Put,
    /// Ask whether it is there.
    Look,
    /// Make it, if it is not there.
    Make,
    /// Make it, if it is not there, and take so many jobs at a time.
    Work(u16),
}

#[derive(Debug)]
pub(super) struct Client {
    queue: String,
    begin: Begin,
    is_ready: bool,
    /// The server's.
    pub(super) version: String,
    frame_max: usize,
    /// The number of the next publish.
    next: u64,
    /// Publishes that are not confirmed.
    open: VecDeque<u64>,
    /// The delivery whose body is still coming, and how much of that.
    coming: Option<(u64, Option<u64>)>,
    /// Deliveries that are not acknowledged.
    jobs: VecDeque<u64>,
    done: Done,
}

impl Client {
    pub(super) fn new(queue: String, begin: Begin) -> Client {
        Client {
            queue,
            begin,
            is_ready: false,
            version: String::new(),
            frame_max: 4096,
            next: 1,
            open: VecDeque::new(),
            coming: None,
            jobs: VecDeque::new(),
            done: Done::default(),
        }
    }

    fn take_method(&mut self, method: Method, rest: Reader, out: &mut Vec<u8>) -> io::Result<()> {
        match method {
            START => {
                self.version = version(rest.0);
                let login = Writer::new(START_OK).table(&[]).short("PLAIN");
                login.long("\0guest\0guest").short("en_US").end(0, out);
            }
            TUNE => self.take_tune(rest, out)?,
            OPEN_OK => Writer::new(CHANNEL_OPEN).short("").end(CHANNEL, out),
            CHANNEL_OPEN_OK => match self.begin {
                Begin::Put => select(out),
                Begin::Look => self.declare(true, out),
                Begin::Make | Begin::Work(_) => self.declare(false, out),
            },
            DECLARE_OK => select(out),
            SELECT_OK => match self.begin {
                Begin::Work(count) => {
                    Writer::new(QOS).u32(0).u16(count).u8(0).end(CHANNEL, out);
                }
                _ => self.is_ready = true,
            },
            QOS_OK => {
                let consume = Writer::new(CONSUME).u16(0).short(&self.queue).short("");
                consume.u8(0).table(&[]).end(CHANNEL, out);
            }
            CONSUME_OK => self.is_ready = true,
            DELIVER => self.coming = Some((deliver(rest)?, None)),
            ACK => self.take_ack(rest)?,
            _ => return Err(refused(method, rest)),
        }
        Ok(())
    }

    fn take_tune(&mut self, mut rest: Reader, out: &mut Vec<u8>) -> io::Result<()> {
        let (channels, frame_max, _) = (rest.u16()?, rest.u32()?, rest.u16()?);
        self.frame_max = frame_max as usize;
        // No heartbeats.
        let tune = Writer::new(TUNE_OK).u16(channels).u32(frame_max).u16(0);
        tune.end(0, out);
        Writer::new(OPEN).short("/").short("").u8(0).end(0, out);
        Ok(())
    }

    /// Passive: it must be there.
    fn declare(&self, is_passive: bool, out: &mut Vec<u8>) {
        let durable = 2;
        let declare = Writer::new(DECLARE).u16(0).short(&self.queue);
        let declare = declare.u8(durable | u8::from(is_passive));
        // Who makes it leads it: the locator of old versions says so by itself, later ones want to know.
        let kind = [
            ("x-queue-type", "quorum"),
            ("x-queue-leader-locator", "client-local"),
        ];
        declare.table(&kind).end(CHANNEL, out);
    }

    fn take_ack(&mut self, mut rest: Reader) -> io::Result<()> {
        let (tag, are_many) = (rest.u64()?, rest.u8()? & 1 == 1);
        let before = self.open.len();
        let is_meant = |open: u64| open == tag || (are_many && open < tag);
        self.open.retain(|open| !is_meant(*open));
        self.done.add(Op::Put, before - self.open.len());
        Ok(())
    }

    fn take_header(&mut self, mut rest: Reader) -> io::Result<()> {
        let (_, _, size) = (rest.u16()?, rest.u16()?, rest.u64()?);
        let (_, left) = self.coming.as_mut().ok_or_else(unasked)?;
        *left = Some(size);
        self.take_body(0)
    }

    fn take_body(&mut self, size: u64) -> io::Result<()> {
        let Some((tag, Some(left))) = &mut self.coming else {
            return Err(unasked());
        };
        *left = left.checked_sub(size).ok_or_else(unasked)?;
        if *left == 0 {
            self.jobs.push_back(*tag);
            self.done.add(Op::Reserve, 1);
            self.coming = None;
        }
        Ok(())
    }
}

impl Talk for Client {
    /// A delivery comes without being asked for, and an acknowledgement has no answer.
    const ANSWERED: &'static [Op] = &[Op::Put];

    fn begin(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"AMQP\x00\x00\x09\x01");
    }

    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<usize> {
        let mut used = 0;
        while let Some((kind, payload)) = frame(&bytes[used..])? {
            used += payload.len() + FRAME_SIZE;
            let mut rest = Reader(payload);
            match kind {
                METHOD => {
                    let method = (rest.u16()?, rest.u16()?);
                    self.take_method(method, rest, out)?;
                }
                HEADER => self.take_header(rest)?,
                BODY => self.take_body(payload.len() as u64)?,
                // A heartbeat.
                _ => {}
            }
        }
        Ok(used)
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }

    fn put(&mut self, body: &[u8], out: &mut Vec<u8>) {
        let publish = Writer::new(PUBLISH).u16(0).short("").short(&self.queue);
        publish.u8(0).end(CHANNEL, out);
        let header = Writer(Vec::new()).u16(PUBLISH.0).u16(0);
        let header = header.u64(body.len() as u64).u16(DELIVERY_MODE);
        push_frame(HEADER, CHANNEL, &header.u8(PERSISTENT).0, out);
        for part in body.chunks(self.frame_max - FRAME_SIZE) {
            push_frame(BODY, CHANNEL, part, out);
        }
        self.open.push_back(self.next);
        self.next += 1;
    }

    /// The server brings as many as are not acknowledged less than it was told at first.
    fn reserve(&mut self, _: usize, _: &mut Vec<u8>) {}

    fn delete(&mut self, out: &mut Vec<u8>) {
        for tag in self.jobs.drain(..) {
            Writer::new(ACK).u64(tag).u8(0).end(CHANNEL, out);
            self.done.add(Op::Delete, 1);
        }
    }

    fn done(&mut self, op: Op) -> usize {
        self.done.tell(op)
    }
}

fn select(out: &mut Vec<u8>) {
    Writer::new(SELECT).u8(0).end(CHANNEL, out);
}

fn deliver(mut rest: Reader) -> io::Result<u64> {
    // The consumer's name.
    rest.short()?;
    rest.u64()
}

/// Of the server's properties this one is looked for: a name, `S`, and a long string.
fn version(properties: &[u8]) -> String {
    let key = b"\x07versionS";
    let at = memchr::memmem::find(properties, key);
    let value = at.and_then(|at| {
        let mut rest = Reader(&properties[at + key.len()..]);
        let size = rest.u32().ok()? as usize;
        rest.take(size).ok()
    });
    String::from_utf8_lossy(value.unwrap_or(b"?")).into_owned()
}

fn refused(method: Method, mut rest: Reader) -> io::Error {
    let why = match method {
        CLOSE | CHANNEL_CLOSE => rest.u16().and_then(|code| {
            let text = String::from_utf8_lossy(rest.short()?);
            Ok(format!("{code} {text}"))
        }),
        (class, method) => Ok(format!("it says method {class}.{method}")),
    };
    why.map_or_else(|error| error, io::Error::other)
}

fn unasked() -> io::Error {
    io::Error::other("a part of a body came without a delivery, or too much of it")
}

/// The first frame, if all of it is here: its type and payload.
fn frame(bytes: &[u8]) -> io::Result<Option<(u8, &[u8])>> {
    if bytes.starts_with(b"AMQP") {
        return Err(io::Error::other("the server wants another version of AMQP"));
    }
    let mut rest = Reader(bytes);
    let (Ok(kind), Ok(_), Ok(size)) = (rest.u8(), rest.u16(), rest.u32()) else {
        return Ok(None);
    };
    let (Ok(payload), Ok(end)) = (rest.take(size as usize), rest.u8()) else {
        return Ok(None);
    };
    if end != FRAME_END {
        return Err(io::Error::other("a frame does not end as AMQP's do"));
    }
    Ok(Some((kind, payload)))
}

fn push_frame(kind: u8, channel: u16, payload: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    out.extend_from_slice(payload);
    out.push(FRAME_END);
}

/// Arguments that come.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self
            .0
            .split_at_checked(size)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number<const SIZE: usize>(&mut self) -> io::Result<[u8; SIZE]> {
        let bytes = self.take(SIZE)?;
        bytes.try_into().map_err(io::Error::other)
    }

    fn u8(&mut self) -> io::Result<u8> {
        Ok(u8::from_be_bytes(self.number()?))
    }

    fn u16(&mut self) -> io::Result<u16> {
        Ok(u16::from_be_bytes(self.number()?))
    }

    fn u32(&mut self) -> io::Result<u32> {
        Ok(u32::from_be_bytes(self.number()?))
    }

    fn u64(&mut self) -> io::Result<u64> {
        Ok(u64::from_be_bytes(self.number()?))
    }

    /// A string with its length in a byte.
    fn short(&mut self) -> io::Result<&'a [u8]> {
        let size = self.u8()?;
        self.take(size.into())
    }
}

/// Arguments that go.
struct Writer(Vec<u8>);

impl Writer {
    fn new((class, method): Method) -> Writer {
        Writer(Vec::with_capacity(64)).u16(class).u16(method)
    }

    fn push(mut self, bytes: &[u8]) -> Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(self, number: u8) -> Writer {
        self.push(&[number])
    }

    fn u16(self, number: u16) -> Writer {
        self.push(&number.to_be_bytes())
    }

    fn u32(self, number: u32) -> Writer {
        self.push(&number.to_be_bytes())
    }

    fn u64(self, number: u64) -> Writer {
        self.push(&number.to_be_bytes())
    }

    fn short(self, text: &str) -> Writer {
        self.u8(text.len() as u8).push(text.as_bytes())
    }

    fn long(self, text: &str) -> Writer {
        self.u32(text.len() as u32).push(text.as_bytes())
    }

    /// Names with texts.
    fn table(self, rows: &[(&str, &str)]) -> Writer {
        let all = rows.iter().fold(Writer(Vec::new()), |all, (name, text)| {
            all.short(name).u8(b'S').long(text)
        });
        self.u32(all.0.len() as u32).push(&all.0)
    }

    fn end(self, channel: u16, out: &mut Vec<u8>) {
        push_frame(METHOD, channel, &self.0, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(client: &mut Client, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        assert_eq!(client.take(bytes, &mut out).unwrap(), bytes.len());
        out
    }

    fn method(method: Method) -> Vec<u8> {
        let mut out = Vec::new();
        Writer::new(method).end(CHANNEL, &mut out);
        out
    }

    fn ack(tag: u64, are_many: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let ack = Writer::new(ACK).u64(tag).u8(are_many.into());
        ack.end(CHANNEL, &mut out);
        out
    }

    #[test]
    fn a_client_says_what_the_server_waits_for_until_it_is_ready() {
        let mut client = Client::new("jobs".into(), Begin::Work(16));
        let mut start = Vec::new();
        let start_args = Writer::new(START).u8(0).u8(9);
        let start_args = start_args.table(&[("product", "RabbitMQ"), ("version", "3.10.8")]);
        start_args.end(0, &mut start);
        assert!(said(&mut client, &start).ends_with(b"\0guest\0guest\x05en_US\xce"));
        assert_eq!(client.version, "3.10.8");
        let mut tune = Vec::new();
        let tune_args = Writer::new(TUNE).u16(2047).u32(131_072).u16(60);
        tune_args.end(0, &mut tune);
        said(&mut client, &tune);
        let steps = [
            (OPEN_OK, CHANNEL_OPEN),
            (CHANNEL_OPEN_OK, DECLARE),
            (DECLARE_OK, SELECT),
            (SELECT_OK, QOS),
            (QOS_OK, CONSUME),
        ];
        for (heard, expected) in steps {
            assert!(!client.is_ready());
            let out = said(&mut client, &method(heard));
            let (_, payload) = frame(&out).unwrap().unwrap();
            let mut rest = Reader(payload);
            assert_eq!((rest.u16().unwrap(), rest.u16().unwrap()), expected);
        }
        said(&mut client, &method(CONSUME_OK));
        assert!(client.is_ready());
    }

    #[test]
    fn one_confirmation_may_be_of_all_that_came_before() {
        let mut client = Client::new("jobs".into(), Begin::Put);
        (0..5).for_each(|_| client.put(b"body", &mut Vec::new()));
        said(&mut client, &ack(2, false));
        assert_eq!(client.done(Op::Put), 1);
        said(&mut client, &ack(4, true));
        assert_eq!((client.done(Op::Put), client.done(Op::Put)), (3, 0));
        assert_eq!(client.open, [5]);
    }

    #[test]
    fn a_delivery_is_the_same_wherever_the_stream_is_cut() {
        let mut stream = Vec::new();
        let deliver = Writer::new(DELIVER).short("name").u64(7).u8(0);
        deliver.short("").short("jobs").end(CHANNEL, &mut stream);
        let header = Writer(Vec::new()).u16(60).u16(0).u64(6).u16(0);
        push_frame(HEADER, CHANNEL, &header.0, &mut stream);
        push_frame(BODY, CHANNEL, b"abcd", &mut stream);
        push_frame(BODY, CHANNEL, b"ef", &mut stream);
        for cut in 0..stream.len() {
            let mut client = Client::new("jobs".into(), Begin::Work(1));
            let mut out = Vec::new();
            let used = client.take(&stream[..cut], &mut out).unwrap();
            assert_eq!(client.done(Op::Reserve), 0, "cut at {cut}");
            said(&mut client, &stream[used..]);
            assert_eq!(client.done(Op::Reserve), 1, "cut at {cut}");
            client.delete(&mut out);
            assert_eq!(out, ack(7, false), "cut at {cut}");
            assert_eq!(client.done(Op::Delete), 1);
        }
    }

    #[test]
    fn what_the_server_refuses_is_an_error_that_says_why() {
        let mut client = Client::new("jobs".into(), Begin::Look);
        let mut close = Vec::new();
        let args = Writer::new(CHANNEL_CLOSE).u16(404).short("no queue 'jobs'");
        args.u16(50).u16(10).end(CHANNEL, &mut close);
        let error = client.take(&close, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "404 no queue 'jobs'");
        assert!(
            client
                .take(b"AMQP\x00\x01\x00\x00", &mut Vec::new())
                .is_err()
        );
    }
}
