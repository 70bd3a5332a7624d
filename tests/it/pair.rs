//! Two servers, beanstalkd and the one under test, that get the same commands and must reply the
//! same.
//!
//! Commands are written as text with a few forms:
//!
//! * `\r`, `\n`, `\t`, `\\`, `\xNN` are bytes;
//! * `{3}` is the id of the third job that appeared on that server (an unused number if there were
//!   not that many);
//! * `{x*200}` is `x` two hundred times.
//!
//! Commands are sent one at a time: each connection's reply is read from both servers before the
//! next command is sent, so both see the same order whatever their speed.

use std::collections::{HashMap, VecDeque};

use crate::harness::{Launch, Server};
use crate::normalise::{Ids, difference, normalise, printable};
use crate::wire::Wire;

/// How much of what happened is shown with a difference.
const HISTORY_LINES: usize = 25;
/// Ids from here on belong to no job.
const NO_JOB: u64 = 4_000_000_000;
/// The name of the connection that only makes sure of an order.
const BARRIER: &str = "barrier";

#[derive(Debug)]
struct Side {
    server: Server,
    wires: HashMap<String, Wire>,
    ids: Ids,
}

/// beanstalkd and the server under test.
#[derive(Debug)]
pub(crate) struct Pair {
    reference: Side,
    tested: Side,
    history: VecDeque<String>,
    replies: u64,
    /// The last reply of beanstalkd.
    expected: Vec<u8>,
}

impl Pair {
    /// Start both, or return `None` (with the reason printed) where beanstalkd is missing.
    pub(crate) fn start(flags: &[&str]) -> Option<Pair> {
        Pair::start_with(flags, Launch::bsd().memory())
    }

    /// Start beanstalkd without a log, and the given server under test.
    pub(crate) fn start_with(flags: &[&str], tested: Launch) -> Option<Pair> {
        let reference = Launch::beanstalkd()?;
        let with_flags = |launch: Launch| flags.iter().fold(launch, Launch::arg);
        Some(Pair {
            reference: Side::start(&with_flags(reference)),
            tested: Side::start(&with_flags(tested)),
            history: VecDeque::new(),
            replies: 0,
            expected: Vec::new(),
        })
    }

    /// How many replies were found to be the same.
    pub(crate) fn replies(&self) -> u64 {
        self.replies
    }

    /// How many jobs have appeared.
    pub(crate) fn jobs(&self) -> usize {
        self.reference.ids.count()
    }

    /// The last reply of beanstalkd was that a wait was over.
    pub(crate) fn reference_has_timed_out(&self) -> bool {
        self.expected == b"TIMED_OUT\r\n"
    }

    /// Send `text` and a CR LF to both, and compare one reply.
    pub(crate) fn ask(&mut self, name: &str, text: &str) -> String {
        self.send(name, &format!("{text}\\r\\n"));
        self.reply(name)
    }

    /// Send `text` as it is; no reply is awaited.
    pub(crate) fn send(&mut self, name: &str, text: &str) {
        self.note(format!("{name} {}", abridged(text)));
        for side in self.sides() {
            let bytes = expand(text, &side.ids);
            side.wire(name).send(bytes);
        }
    }

    /// Send a line that is answered later, and continue when both servers have received it.
    pub(crate) fn block(&mut self, name: &str, text: &str) {
        self.send(name, &format!("{text}\\r\\n"));
        // On loopback, data that is sent first arrives first, so the reply to a later command of
        // another connection shows that the earlier one was run. No counter changes.
        self.ask(BARRIER, "no-such-command");
    }

    /// Read one reply of each and compare; the reference's, as text.
    pub(crate) fn reply(&mut self, name: &str) -> String {
        let expected = self.reference.wire(name).try_reply();
        let expected = expected.unwrap_or_else(|error| self.fail("no reply of beanstalkd", error));
        self.note(format!("    < {}", abridged(&printable(&expected))));
        self.expected.clone_from(&expected);
        let got = self.tested.wire(name).try_reply();
        let got = got.unwrap_or_else(|error| self.fail("no reply of the tested one", error));
        self.compare(&expected, &got);
        self.replies += 1;
        printable(&expected)
    }

    /// `quit`; nothing more may come before both have closed.
    pub(crate) fn quit(&mut self, name: &str) {
        self.send(name, "quit\\r\\n");
        self.closed(name);
    }

    /// End the sending side of both.
    pub(crate) fn shut_down_sending(&mut self, name: &str) {
        self.note(format!("{name} sends no more"));
        for side in self.sides() {
            side.wire(name).shut_down_sending();
        }
    }

    /// Wait until both have closed the connection; nothing more may come.
    pub(crate) fn closed(&mut self, name: &str) {
        for side in self.sides() {
            let rest = side.wire(name).rest();
            assert!(
                rest.is_empty(),
                "{name} has unread replies: {}",
                printable(&rest)
            );
            side.wires.remove(name);
        }
    }

    /// Close every connection: nothing may come that was not asked for.
    pub(crate) fn finish(mut self) {
        let names: Vec<String> = self.reference.wires.keys().cloned().collect();
        for name in names {
            self.shut_down_sending(&name);
            self.closed(&name);
        }
    }

    fn sides(&mut self) -> [&mut Side; 2] {
        [&mut self.reference, &mut self.tested]
    }

    fn compare(&mut self, expected: &[u8], got: &[u8]) {
        let reference = normalise(expected, &mut self.reference.ids);
        let tested = normalise(got, &mut self.tested.ids);
        if let Some(what) = difference(&reference, &tested) {
            let (expected, got) = (printable(expected), printable(got));
            self.fail(
                &format!("not beanstalkd's reply: {expected}\nbut: {got}"),
                what,
            );
        }
    }

    fn fail(&self, what: &str, why: impl std::fmt::Display) -> ! {
        let history = Vec::from_iter(self.history.iter().map(String::as_str)).join("\n");
        let said = self.tested.server.stderr();
        panic!("{what}\n{why}\nafter, with beanstalkd's replies:\n{history}\nit said: {said}");
    }

    fn note(&mut self, line: String) {
        if self.history.len() == HISTORY_LINES * 2 {
            self.history.pop_front();
        }
        self.history.push_back(line);
    }
}

impl Side {
    fn start(launch: &Launch) -> Side {
        let server = launch.start();
        Side {
            server,
            wires: HashMap::new(),
            ids: Ids::default(),
        }
    }

    /// The connection of that name; opened, and seen to be accepted, at its first use.
    fn wire(&mut self, name: &str) -> &mut Wire {
        self.wires.entry(name.to_owned()).or_insert_with(|| {
            let mut wire = self.server.connect();
            assert_eq!(wire.ask("list-tube-used"), "USING default");
            wire
        })
    }
}

/// The bytes of a text with escapes, ids and repetitions.
pub(crate) fn expand(text: &str, ids: &Ids) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let size = match rest.as_bytes()[at] {
            b'{' => rest[at..].find('}').expect("a brace is closed") + 1,
            _ if rest[at..].starts_with("\\x") => 4,
            _ => 2,
        };
        let (form, after) = rest[at..].split_at(size);
        expand_form(form, ids, &mut bytes);
        rest = after;
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

fn expand_form(form: &str, ids: &Ids, bytes: &mut Vec<u8>) {
    match form.trim_matches(['{', '}']) {
        "\\r" => bytes.push(b'\r'),
        "\\n" => bytes.push(b'\n'),
        "\\t" => bytes.push(b'\t'),
        "\\\\" => bytes.push(b'\\'),
        hex if hex.starts_with("\\x") => bytes.push(u8::from_str_radix(&hex[2..], 16).unwrap()),
        braces => match braces.split_once('*') {
            Some((unit, count)) => bytes.extend(unit.repeat(count.parse().unwrap()).bytes()),
            None => {
                let ordinal: usize = braces.parse().unwrap();
                let id = ids.id(ordinal).unwrap_or(NO_JOB + ordinal as u64);
                bytes.extend(id.to_string().bytes());
            }
        },
    }
}

fn abridged(text: &str) -> String {
    const SHOWN: usize = 300;
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}… ({} characters)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

#[test]
fn text_expands_to_bytes_ids_and_repetitions() {
    let mut ids = Ids::default();
    normalise(b"INSERTED 70\r\n", &mut ids);
    assert_eq!(
        expand("a\\r\\n\\\\\\x00|{1}|{b*3}", &ids),
        b"a\r\n\\\0|70|bbb"
    );
    assert_eq!(expand("{2}", &ids), (NO_JOB + 2).to_string().into_bytes());
}
