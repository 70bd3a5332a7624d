//! Whether replies left in the right order: none before all that it depends on was durable.
//!
//! A [`Ledger`] is a trace of system calls sorted for this purpose. Marks in the bodies of jobs
//! show which write the reply of a put or reserve depends on; for other commands, the turn of the
//! loop in which the request was read shows it. The inner format of the log is not used here.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use crate::strace::{Call, Trace};

/// All calls that determine the order of replies and syncs.
pub(crate) const CALLS: &str = "pwrite64,fdatasync,fsync,fallocate,ftruncate,/^rename,close,\
                     recvfrom,read,sendto,sendmsg,write,writev,/^epoll_p?wait$";
/// Replies after which a client relies on something that is in the log.
const ACKNOWLEDGEMENTS: [&str; 6] = [
    "INSERTED ",
    "DELETED",
    "RELEASED",
    "BURIED",
    "KICKED",
    "RESERVED ",
];

/// A body that is found again in a trace.
pub(crate) fn marked_body(client: usize, number: usize, size: usize) -> Vec<u8> {
    let mut body = format!("<{client}/{number}>").into_bytes();
    body.resize(body.len().max(size), b'.');
    body
}

/// The marks of all bodies in a buffer that strace shows.
fn marks(shown: &str) -> impl Iterator<Item = &str> {
    let ends = shown.match_indices(">.").map(|(at, _)| at + 1);
    ends.filter_map(|end| Some(&shown[shown[..end].rfind('<')?..end]))
}

pub(crate) fn is_wait(call: &Call) -> bool {
    call.is("epoll_wait") || call.is("epoll_pwait")
}

pub(crate) fn is_rename(call: &Call) -> bool {
    call.name.starts_with("rename")
}

pub(crate) fn is_of_segment(call: &Call) -> bool {
    call.path().to_string_lossy().contains("/segment-")
}

/// Nothing depends on the files of a compaction before its switch, which is in the log.
pub(crate) fn is_of_compaction(call: &Call) -> bool {
    call.args.contains("/compaction")
}

pub(crate) fn is_acknowledgement(call: &Call) -> bool {
    call.is_reply() && acknowledges(&call.args)
}

fn acknowledges(reply: &str) -> bool {
    ACKNOWLEDGEMENTS.iter().any(|word| reply.contains(word))
}

/// The target of a sync: one use of a descriptor, or the names in the data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Descriptor { number: u32, uses: usize },
    Names,
}

/// One thing done to a target, by the lines of the trace.
#[derive(Clone)]
struct Event {
    target: Target,
    begin: usize,
    end: usize,
    text: String,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}: {:.150}", self.begin, self.end, self.text)
    }
}

/// A trace, sorted by what matters to the order of acknowledgements.
#[derive(Debug, Default)]
struct Ledger {
    /// The loop's writes to the log, and the files that it named, without failed calls.
    writes: Vec<Event>,
    syncs: Vec<Event>,
    requests: Vec<Event>,
    replies: Vec<Event>,
    /// The lines at which the loop looked at its sockets: once or twice before it writes, and then
    /// when the turn is over.
    looks: Vec<usize>,
}

impl Ledger {
    fn of(trace: &Trace, dir: &Path) -> Ledger {
        let mut ledger = Ledger::default();
        let mut uses: HashMap<u32, usize> = HashMap::new();
        for call in &trace.calls {
            let number = call.descriptor().unwrap_or(u32::MAX);
            let uses = uses.entry(number).or_default();
            ledger.take(
                call,
                call.thread == trace.main,
                Target::Descriptor {
                    number,
                    uses: *uses,
                },
                dir,
            );
            if call.is("close") {
                *uses += 1;
            }
        }
        ledger
    }

    fn take(&mut self, call: &Call, by_loop: bool, descriptor: Target, dir: &Path) {
        if is_wait(call) && by_loop {
            self.looks.push(call.begin);
        }
        if !call.succeeded() {
            return;
        }
        let event = |target| Event {
            target,
            begin: call.begin,
            end: call.end,
            text: format!("{}({})", call.name, call.args),
        };
        let of_log = by_loop && !is_of_compaction(call);
        match &*call.name {
            "pwrite64" if of_log => self.writes.push(event(descriptor)),
            _ if is_rename(call) && of_log => self.writes.push(event(Target::Names)),
            "fdatasync" => self.syncs.push(event(descriptor)),
            "fsync" if call.path() == dir => self.syncs.push(event(Target::Names)),
            _ if call.is_request() => self.requests.push(event(descriptor)),
            _ if call.is_reply() => self.replies.push(event(descriptor)),
            _ => {}
        }
    }

    fn acknowledgements(&self) -> impl Iterator<Item = &Event> {
        self.replies
            .iter()
            .filter(|reply| acknowledges(&reply.text))
    }

    /// The line at which a write had become durable.
    fn durable_at(&self, write: &Event) -> usize {
        let covers = |sync: &&Event| sync.target == write.target && sync.begin > write.end;
        let ends = self.syncs.iter().filter(covers).map(|sync| sync.end);
        ends.min().unwrap_or(usize::MAX)
    }

    /// The last write that must be durable before this reply leaves; positions in the log being in
    /// order, so must all those before it. `None`: what it says was not written.
    fn depends_on(&self, reply: &Event) -> Option<usize> {
        if reply.text.contains("INSERTED ") {
            let mark = self.last_put(reply)?;
            return self
                .writes
                .iter()
                .position(|write| write.text.contains(&mark));
        }
        if reply.text.contains("RESERVED ") {
            let mark = marks(&reply.text).last()?;
            return self
                .writes
                .iter()
                .position(|write| write.text.contains(mark));
        }
        let before = |request: &&Event| request.target == reply.target && request.end < reply.begin;
        self.first_write_of_turn(self.requests.iter().rfind(before)?)
    }

    /// The mark of the last put that this reply acknowledges: some of those in one packet may be
    /// answered before the others.
    fn last_put(&self, reply: &Event) -> Option<String> {
        let of_client = |event: &&Event| event.target == reply.target && event.begin <= reply.begin;
        let replies = self.replies.iter().filter(of_client);
        let told: String = replies.map(|reply| reply.text.as_str()).collect();
        let last = told.rfind("INSERTED ")?;
        let before = ["INSERTED ", "OUT_OF_MEMORY"].map(|word| told[..last].matches(word).count());
        let requests = self.requests.iter().filter(of_client);
        let sent: String = requests
            .filter_map(|request| request.text.split('"').nth(1))
            .collect();
        marks(&sent).nth(before.iter().sum()).map(str::to_owned)
    }

    /// A command is in the first frame that was written after it was read, or in a later one of
    /// the same turn of the loop.
    fn first_write_of_turn(&self, request: &Event) -> Option<usize> {
        let is_done = |event: &Event, look| (request.begin..look).contains(&event.begin);
        let is_end = |look: usize| {
            let mut done = self.writes.iter().chain(&self.replies);
            look > request.begin && done.any(|event| is_done(event, look))
        };
        let turn_end = self.looks.iter().find(|look| is_end(**look));
        let turn = request.begin..turn_end.map_or(usize::MAX, |end| *end);
        let is_frame =
            |write: &Event| write.text.contains("/segment-") && write.target != Target::Names;
        self.writes
            .iter()
            .position(|write| turn.contains(&write.begin) && is_frame(write))
    }

    /// The first reply that left too early, with what it did not wait for.
    fn first_breach(&self) -> Option<(&Event, Option<&Event>)> {
        let durable: Vec<usize> = self
            .writes
            .iter()
            .map(|write| self.durable_at(write))
            .collect();
        self.acknowledgements().find_map(|reply| {
            let Some(last) = self.depends_on(reply) else {
                return Some((reply, None));
            };
            let late = durable[..=last]
                .iter()
                .position(|durable| *durable > reply.begin)?;
            Some((reply, Some(&self.writes[late])))
        })
    }
}

/// No acknowledgement left before everything that it depends on was durable: file contents and
/// names. Returns the number of acknowledgements.
pub(crate) fn assert_synced_before_acknowledged(trace: &Trace, dir: &Path) -> usize {
    let ledger = Ledger::of(trace, dir);
    if let Some((reply, write)) = ledger.first_breach() {
        panic!("left before it was durable: {reply:#?} depends on {write:#?}");
    }
    ledger.acknowledgements().count()
}

#[test]
fn the_check_of_the_order_sees_each_way_to_break_it() {
    let call = |line: &str| format!("7 {line}\n");
    let turn = [
        call("epoll_wait(3<e>, [], 1, 0) = 1"),
        call(r#"recvfrom(5<socket:[1]>, "put ... <1/1>..", 99, 0) = 16"#),
        call(r#"pwrite64(9</d/spare-1>, "head", 4, 0) = 4"#),
        call("fdatasync(9</d/spare-1>) = 0"),
        call(r#"rename("/d/spare-1", "/d/segment-2") = 0"#),
        call("fsync(10</d>) = 0"),
        call(r#"pwrite64(9</d/segment-2>, "<1/1>..", 7, 4) = 7"#),
        call("fdatasync(9</d/segment-2>) = 0"),
        call(r#"sendto(5<socket:[1]>, "INSERTED 1\r\n", 12, 0) = 12"#),
    ];
    let breach = |lines: &[String]| {
        let trace = Trace::parse(&lines.concat());
        Ledger::of(&trace, Path::new("/d"))
            .first_breach()
            .map(|(_, write)| write.map_or(String::new(), |write| write.text.clone()))
    };
    assert_eq!(breach(&turn), None);
    for (left_out, expected) in [(5, "rename"), (7, "pwrite64")] {
        let mut lines = turn.to_vec();
        lines.remove(left_out);
        let found = breach(&lines).expect("a sync is missing");
        assert!(found.starts_with(expected), "{found}");
    }
    let mut lines = turn.to_vec();
    lines.remove(6);
    assert_eq!(breach(&lines).as_deref(), Some(""), "nothing was written");
    let mut lines = turn.to_vec();
    lines[7] = call("fdatasync(9</d/segment-2>) = -1 EIO (Input/output error) (INJECTED)");
    assert!(breach(&lines).is_some(), "the sync failed");
    let mut lines = turn.to_vec();
    lines.swap(7, 8);
    assert!(breach(&lines).is_some(), "the reply came first");
    let mut lines = turn.to_vec();
    lines[7] = call("close(9</d/segment-2>) = 0") + &turn[7];
    assert!(
        breach(&lines).is_some(),
        "another file has the descriptor now"
    );
}

#[test]
fn a_turn_in_which_the_sockets_are_looked_at_twice_is_one_turn() {
    let look = "7 epoll_wait(3<e>, [], 1, 0) = 1\n";
    let request = "7 recvfrom(5<socket:[1]>, \"delete 1\\r\\n\", 99, 0) = 10\n";
    let write = "7 pwrite64(9</d/segment-2>, \"frame\", 5, 4) = 5\n";
    let sync = "7 fdatasync(9</d/segment-2>) = 0\n";
    let reply = "7 sendto(5<socket:[1]>, \"DELETED\\r\\n\", 9, 0) = 9\n";
    let is_sound = |lines: &[&str]| {
        let trace = Trace::parse(&lines.concat());
        let ledger = Ledger::of(&trace, Path::new("/d"));
        assert_eq!(ledger.acknowledgements().count(), 1);
        ledger.first_breach().is_none()
    };
    assert!(is_sound(&[look, request, look, write, sync, reply, look]));
    assert!(!is_sound(&[look, request, look, write, reply, sync, look]));
    assert!(!is_sound(&[look, request, look, reply, write, sync, look]));
    assert!(!is_sound(&[look, request, look, reply, look, write, sync]));
}
