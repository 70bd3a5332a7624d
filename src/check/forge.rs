//! Damage to the files of a sound log: by accident, and by an attacker who knows the format and
//! corrects every checksum.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use super::comparable::{Answers, TUBES};
use super::{DIR, Input, beginning, contents, open, sound};
use crate::attributes::{Attributes, Reason};
use crate::engine::Engine;
use crate::protocol::{Command, Op, Request};
use crate::storage::SimFs;
use crate::storage::disk::sim::Crash;
use crate::storage::format::any_bytes::{correct_checksums, places};
use crate::types::{ClientId, JobId, Now, SettingClass};

/// A directory: the contents of its files by their names.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// Names that have a meaning in a data directory, and some that have none.
const NAMES: [&str; 16] = [
    "segment-0000000001.00000",
    "segment-0000000001.00001",
    "segment-0000000002.00000",
    "segment-0000000003.00000",
    "segment-0000000009.00000",
    "segment-4294967295.00000",
    "segment-0000000002.99999",
    "segment-1",
    "spare-7",
    "spare-4294967296",
    "compaction",
    "cut-0000000001-64",
    "binlog.1",
    "beanstalkd-import",
    "lock",
    "notes.txt",
];

/// A sound log, and how large its bodies are.
#[derive(Clone)]
pub(super) struct Sound {
    pub(super) files: Files,
    body_size: usize,
}

impl Sound {
    /// The body that was put as the job with this id.
    pub(super) fn body(&self, id: JobId) -> Vec<u8> {
        let nth = id.0 as usize - 1;
        let size = sizes(self.body_size)[nth % PUTS_A_ROUND];
        vec![letter(nth / PUTS_A_ROUND); size]
    }
}

const PUTS_A_ROUND: usize = 4;

fn sizes(body_size: usize) -> [usize; PUTS_A_ROUND] {
    [body_size, 9, 2 * body_size, 0]
}

fn letter(round: usize) -> u8 {
    b'a' + (round % 26) as u8
}

/// One of a few sound logs.
pub(super) fn any_log(input: &mut Input<'_>) -> Sound {
    static LOGS: OnceLock<[Sound; 6]> = OnceLock::new();
    let sound = |rounds, body_size, is_clean_stop, is_plain| Sound {
        files: log(rounds, body_size, is_clean_stop, is_plain),
        body_size,
    };
    let logs = LOGS.get_or_init(|| {
        [
            sound(3, 20, false, true),
            sound(3, 20, true, true),
            sound(40, 1500, false, true),
            sound(26, 3000, true, true),
            sound(3, 20, true, false),
            sound(26, 3000, false, false),
        ]
    });
    // The short ones are quicker, and have as many kinds of records.
    logs[input.pick(&[0, 1, 2, 3, 0, 4, 5, 4])].clone()
}

/// The log after `rounds` rounds of work: jobs in every state, and after a few rounds several
/// segments, some of them compacted. A log that is not plain has attributes and settings, too.
fn log(rounds: usize, body_size: usize, is_clean_stop: bool, is_plain: bool) -> Files {
    let disk = SimFs::new(1);
    let mut engine = sound(open(&disk, DIR, beginning()));
    let mut worker = Worker {
        client: engine.connect(),
        now: beginning(),
    };
    for nth in 0..rounds {
        worker.round(&mut engine, nth, body_size);
        if !is_plain {
            worker.go_beyond(&mut engine, nth);
        }
        worker.turn(&mut engine, 1);
    }
    worker.turn(&mut engine, 500); // counters
    worker.turn(&mut engine, 500); // the idle marker
    if is_clean_stop {
        sound(engine.close(worker.now))
    } else {
        drop(engine)
    }
    contents(&disk.crash_image(Crash::KeepAll), DIR)
}

struct Worker {
    client: ClientId,
    now: Now,
}

impl Worker {
    fn round(&mut self, engine: &mut Engine, nth: usize, body_size: usize) {
        let tube = TUBES[nth % TUBES.len()];
        let first = engine.queue().next_id().0;
        self.ask(engine, Command::Use(tube.into()));
        self.ask(engine, Command::Watch(tube.into()));
        for (nth_put, size) in sizes(body_size).into_iter().enumerate() {
            let body = vec![letter(nth); size];
            let (pri, ttr, body) = (nth as u32, 100, &body[..]);
            let delay = if nth_put == 1 { 1000 } else { 0 };
            let put = Command::put(pri, delay, ttr, body);
            self.ask(engine, put);
        }
        let op = Op::ReserveWithTimeout;
        self.ask(
            engine,
            Command::Reserve {
                timeout: Some(Duration::ZERO),
                op,
            },
        );
        self.ask(
            engine,
            Command::Bury {
                id: JobId(first),
                pri: 7,
            },
        );
        if nth > 5 {
            self.ask(engine, Command::Delete(JobId(first - 14)));
        }
        match nth % 5 {
            1 => self.ask(
                engine,
                Command::Kick {
                    tube: None,
                    bound: 3,
                },
            ),
            2 => self.ask(engine, Command::pause_tube(tube, 100_000)),
            3 => self.ask(engine, Command::Delete(JobId(first))),
            _ => {}
        }
    }

    /// Give the jobs of this round attributes, and change a setting.
    fn go_beyond(&self, engine: &mut Engine, nth: usize) {
        let next = engine.queue().next_id().0;
        let failed = Attributes {
            key: Some("key-1"),
            failures: Some(nth as u32),
            reason: Some(Reason::Ttr),
            ..Attributes::default()
        };
        let moved = Attributes {
            tube: Some(TUBES[(nth + 1) % TUBES.len()]),
            text: Some(b"no such host"),
            ..failed
        };
        let lists = [failed, moved, Attributes::default()];
        for (id, list) in (next - 4..next).zip(lists) {
            sound(engine.attribute(JobId(id), None, &list, self.now));
        }
        let update = engine.queue().decide_bury(JobId(next - 1), 3);
        sound(engine.attribute(JobId(next - 1), update.as_ref(), &moved, self.now));
        let value = [b'v'; 300];
        let value = &value[..[5, 0, 300][nth % 3]];
        let name = ["mail", "mail-*"][nth % 2];
        sound(engine.set(SettingClass::Policy, name, value, self.now));
    }

    fn ask(&self, engine: &mut Engine, command: Command<'_>) {
        let request = Request::Command(command);
        engine.run(self.client, request, self.now, &mut Answers::default());
    }

    fn turn(&mut self, engine: &mut Engine, ms: u64) {
        for _ in 0..4 {
            sound(engine.tick(self.now, &mut Answers::default()));
            sound(engine.commit(self.now));
        }
        self.now.mono.0 += ms as i64 * 1_000_000;
        self.now.wall_ns += ms * 1_000_000;
    }
}

/// Damage a directory. Returns whether a wrong record may have a right checksum.
pub(super) fn damage(files: &mut Files, input: &mut Input<'_>) -> bool {
    let choice = input.byte() % 16;
    if choice == 0 {
        let name = input.pick(&NAMES).to_owned();
        let content = match input.below(3) {
            0 => input.bytes(100).to_vec(),
            1 => vec![input.byte(); 70_000],
            _ => any_name(files, input).map_or(Vec::new(), |name| files[&name].clone()),
        };
        files.insert(name, content);
        return false;
    }
    let Some(name) = any_name(files, input) else {
        return false;
    };
    match choice {
        1 => drop(files.remove(&name)),
        2 => swap(files, &name, input),
        3..=8 => forge(files.entry(name).or_default(), input),
        _ => spoil(files.entry(name).or_default(), input),
    }
    (3..=8).contains(&choice)
}

/// Swap two files; or, if there is only one, rename it.
fn swap(files: &mut Files, name: &str, input: &mut Input<'_>) {
    let other = match input.below(3) {
        0 => Some(input.pick(&NAMES).to_owned()),
        _ => any_name(files, input),
    };
    let (Some(other), Some(content)) = (other, files.remove(name)) else {
        return;
    };
    if let Some(old) = files.insert(other, content) {
        files.insert(name.to_owned(), old);
    }
}

/// Files with content are chosen more often.
fn any_name(files: &Files, input: &mut Input<'_>) -> Option<String> {
    let segments = files.keys().filter(|name| name.starts_with("segment-"));
    let segments: Vec<&String> = segments.collect();
    let all: Vec<&String> = files.keys().collect();
    let names = match input.below(8) {
        1.. if !segments.is_empty() => segments,
        _ => all,
    };
    (!names.is_empty()).then(|| names[input.below(names.len())].clone())
}

/// Change a field in a segment, and correct all checksums.
fn forge(bytes: &mut [u8], input: &mut Input<'_>) {
    let places = places(bytes);
    let place = places[input.below(places.len())];
    let at = (place + input.below(64)).min(bytes.len());
    let size = input.pick(&[1, 1, 2, 4, 4, 8]).min(bytes.len() - at);
    let old = bytes[at..at + size].iter().rev();
    let old = old.fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    let new = match input.below(4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        _ => input.number(),
    };
    bytes[at..at + size].copy_from_slice(&new.to_le_bytes()[..size]);
    correct_checksums(bytes);
}

/// A change of a file's bytes as it happens on a disk.
pub(super) fn spoil(bytes: &mut Vec<u8>, input: &mut Input<'_>) {
    let choice = input.below(8);
    let range = any_range(bytes, input);
    match choice {
        0..=2 => {
            let bit = input.below(8);
            let byte = bytes.get_mut(range.start);
            byte.into_iter().for_each(|byte| *byte ^= 1 << bit);
        }
        3 => bytes.truncate(range.start),
        4 => {
            let byte = input.pick(&[0, 0, 0xff, b'b', b'7']);
            bytes[range].fill(byte);
        }
        5 => {
            let to = input.place(bytes.len() - range.len() + 1);
            bytes.copy_within(range, to);
        }
        6 => bytes.extend_from_within(range),
        _ => {
            let new = input.bytes(range.len().min(40));
            bytes[range.start..range.start + new.len()].copy_from_slice(new);
        }
    }
}

/// Usually where there are bytes other than the zeros at the end.
fn any_range(bytes: &[u8], input: &mut Input<'_>) -> Range<usize> {
    let last = bytes.iter().rposition(|byte| *byte != 0);
    let used = last.map_or(0, |last| last + 1);
    let bound = match input.below(8) {
        0 => bytes.len(),
        _ => bytes.len().min(used + 64),
    };
    let start = input.place(bound);
    let size = input.pick(&[1, 4, 8, 40, 512, 4096, 70_000]);
    start..bytes.len().min(start + size)
}
