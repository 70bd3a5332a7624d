//! Material for tests of bytes: a log with fixed names, pseudo-random numbers, every kind of
//! record, and segments in memory.

use super::{
    Entries, Entry, FrameBuilder, FrameKind, Identity, LogId, Record, SegmentHeader, VERSION_MIN,
    segment_header,
};
use crate::attributes::Attributes;
use crate::check::volume::volume;
use crate::random::Random;
use crate::types::{Counters, JobId, JobState, Position, SegmentId, SettingClass};

/// 2027-01-15 08:00:00 UTC, in nanoseconds since 1970.
pub(in crate::storage) const WALL_NS: u64 = 1_800_000_000_000_000_000;

/// Segment 3, generation 0, of a log whose id is the bytes 0xa0, 0xa1, 0xa2 …
pub(in crate::storage) fn identity() -> Identity {
    Identity::new(
        LogId(std::array::from_fn(|index| 0xa0 + index as u8)),
        SegmentId(3),
    )
}

/// The header of that segment.
pub(in crate::storage) fn header() -> SegmentHeader {
    SegmentHeader {
        version: VERSION_MIN,
        identity: identity(),
        compacted: false,
        filtered_at: Position::ZERO,
        epoch: 1,
        created_wall_ns: WALL_NS,
    }
}

/// A position in that segment.
pub(in crate::storage) fn position(offset: u32) -> Position {
    Position::new(identity().first, offset)
}

/// A job put at [`WALL_NS`] into the tube `mail`.
pub(in crate::storage) fn put(id: u64, body: &[u8]) -> Record<'_> {
    Record::Put {
        id: JobId(id),
        created_wall_ns: WALL_NS,
        pri: 1024,
        delay: 0,
        ttr: 60,
        tube: "mail",
        body,
    }
}

/// One record of every kind, with distinct numbers in all fields.
pub(in crate::storage) fn one_of_each() -> Vec<Record<'static>> {
    vec![
        Record::Manifest {
            next_id: JobId(7),
            entries: Entries::List(&MANIFEST),
        },
        Record::Put {
            id: JobId(7),
            created_wall_ns: WALL_NS,
            pri: 1024,
            delay: 0,
            ttr: 60,
            tube: "mail",
            body: b"to: you",
        },
        Record::Update {
            id: JobId(7),
            kick: 1,
            state: JobState::Delayed,
            deadline_wall_ns: WALL_NS + 30_000_000_000,
            pri: 512,
            delay: 30,
            counters: Counters::new([5, 4, 3, 2, 1]),
        },
        Record::Pause {
            tube: "mail",
            until_wall_ns: WALL_NS + 90_000_000_000,
            duration: 90,
        },
        Record::Delete {
            id: JobId(7),
            put_segment: SegmentId(3),
        },
        Record::Kick {
            number: 1,
            tube: "mail",
            state: JobState::Buried,
            left: 1000,
            due_wall_ns: 0,
        },
        Record::Switch {
            removed: Entries::List(&MANIFEST),
            added: Entries::List(&SWITCHED),
        },
        Record::Setting {
            class: SettingClass::Policy,
            name: "mail-*",
            value: b"retry-min=5",
        },
        Record::Attributes {
            id: JobId(7),
            list: KEY_AND_FAILURES,
        },
    ]
}

/// The key `a-5`, and 2 failures of which the last one was that the time ran out.
const KEY_AND_FAILURES: &[u8] = b"\x01\x03\0a-5\x06\x04\0\x02\0\0\0\x07\x01\0\x01";

const MANIFEST: [Entry; 2] = [
    Entry {
        first: SegmentId(1),
        last: SegmentId(1),
        generation: 0,
        end: 65_536,
    },
    Entry {
        first: SegmentId(2),
        last: SegmentId(2),
        generation: 0,
        end: 40_000,
    },
];
const SWITCHED: [Entry; 1] = [Entry {
    first: SegmentId(1),
    last: SegmentId(2),
    generation: 1,
    end: 9_000,
}];

/// Numbers that often break code: small, large, around the middle.
pub(in crate::storage) fn number(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(4),
        1 => u64::MAX - random.below(4),
        2 => (1 << 32) - 2 + random.below(4),
        _ => random.next(),
    }
}

/// The seeds of a random test: `count` of them, times `BSD_TEST_SCALE`. Prints each, for the test
/// that fails.
pub(in crate::storage) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let scale = volume("BSD_TEST_SCALE", 1).max(1);
    (0..count * scale).inspect(|seed| println!("seed {seed}"))
}

/// The data that a random record borrows from.
pub(in crate::storage) struct Parts {
    tube: String,
    body: Vec<u8>,
    entries: Vec<Entry>,
    list: Vec<u8>,
}

impl Parts {
    pub(in crate::storage) fn random(random: &mut Random) -> Parts {
        const NAME: &[u8] = b"abcXYZ019-+/;.$_()";
        let tube_size = 1 + random.below(200);
        let letter = |_| NAME[random.below(NAME.len())] as char;
        let tube: String = (0..tube_size).map(letter).collect();
        let body_size = random.below(300);
        let entries = random.below(5);
        let tube = tube.replacen('-', "a", 1);
        let body = random.bytes(body_size);
        Parts {
            list: random_list(random, &tube, &body),
            tube,
            body,
            entries: (0..entries).map(|_| random_entry(random)).collect(),
        }
    }

    /// A record of any kind with random content.
    pub(in crate::storage) fn record(&self, random: &mut Random) -> Record<'_> {
        let (removed, added) = self.entries.split_at(random.below(self.entries.len() + 1));
        match random.below(9) {
            0 => Record::Put {
                id: JobId(number(random)),
                created_wall_ns: number(random),
                pri: number(random) as u32,
                delay: number(random) as u32,
                ttr: number(random) as u32,
                tube: &self.tube,
                body: &self.body,
            },
            1 => Record::Update {
                id: JobId(number(random)),
                kick: number(random) as u16,
                state: [JobState::Ready, JobState::Delayed, JobState::Buried][random.below(3)],
                deadline_wall_ns: number(random),
                pri: number(random) as u32,
                delay: number(random) as u32,
                counters: Counters::new([(); 5].map(|()| number(random) as u32)),
            },
            2 => Record::Delete {
                id: JobId(number(random)),
                put_segment: SegmentId(number(random) as u32),
            },
            3 => Record::Pause {
                tube: &self.tube,
                until_wall_ns: number(random),
                duration: number(random) as u32,
            },
            4 => Record::Kick {
                number: number(random) as u16,
                tube: &self.tube,
                state: [JobState::Delayed, JobState::Buried][random.below(2)],
                left: number(random) as u32,
                due_wall_ns: number(random),
            },
            5 => Record::Setting {
                class: SettingClass::ALL[random.below(4)],
                name: &self.tube,
                value: &self.body,
            },
            6 => Record::Attributes {
                id: JobId(number(random)),
                list: &self.list,
            },
            7 => Record::Manifest {
                next_id: JobId(number(random)),
                entries: Entries::List(&self.entries),
            },
            _ => Record::Switch {
                removed: Entries::List(removed),
                added: Entries::List(added),
            },
        }
    }
}

/// A list of attributes, each of which is there or not.
fn random_list(random: &mut Random, name: &str, text: &[u8]) -> Vec<u8> {
    let is_there = random.next();
    let has = |bit: u32| is_there >> bit & 1 == 1;
    let attributes = Attributes {
        key: has(0).then_some(name),
        group: has(1).then_some(name),
        tube: has(2).then_some(name),
        failures: has(3).then(|| number(random) as u32),
        text: has(4).then_some(text),
        dead_lettered_from: has(5).then_some(name),
        counted_since_wall_ns: has(6).then(|| number(random)),
        counted_from: has(7).then(|| number(random) as u32),
        ..Attributes::default()
    };
    attributes.encode().unwrap_or_default()
}

fn random_entry(random: &mut Random) -> Entry {
    Entry {
        first: SegmentId(number(random) as u32),
        last: SegmentId(number(random) as u32),
        generation: number(random) as u32,
        end: number(random) as u32,
    }
}

/// A record in a comparable form, however its entries are held.
pub(in crate::storage) fn plain(record: &Record<'_>) -> String {
    match record {
        Record::Manifest { next_id, entries } => {
            format!("manifest {next_id} {:?}", entries.to_vec())
        }
        Record::Switch { removed, added } => {
            format!("switch {:?} to {:?}", removed.to_vec(), added.to_vec())
        }
        other => format!("{other:?}"),
    }
}

/// The bytes of one frame for `offset` of the file with `identity`, and its checksum.
pub(in crate::storage) fn frame(
    identity: &Identity,
    offset: u32,
    kind: FrameKind,
    durable: Position,
    previous: u32,
    records: &[Record<'_>],
) -> (Vec<u8>, u32) {
    let mut builder = FrameBuilder::default();
    builder.begin(Vec::new(), identity.seed(), offset);
    for record in records {
        builder.push(record);
    }
    builder.finish(kind, durable, previous)
}

/// A segment in memory that grows as the log makes it grow.
pub(in crate::storage) struct Segment {
    pub(in crate::storage) identity: Identity,
    pub(in crate::storage) bytes: Vec<u8>,
    previous: u32,
}

impl Segment {
    /// Only the header.
    pub(in crate::storage) fn new() -> Segment {
        Segment {
            identity: identity(),
            bytes: header().encode().to_vec(),
            previous: 0,
        }
    }

    /// Where the next frame goes.
    pub(in crate::storage) fn end(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Append a frame of records that says that everything before `durable` is durable. Returns
    /// where it begins.
    pub(in crate::storage) fn push(&mut self, durable: u32, records: &[Record<'_>]) -> u32 {
        self.push_kind(FrameKind::Data, durable, records)
    }

    /// The same for a frame of any kind.
    pub(in crate::storage) fn push_kind(
        &mut self,
        kind: FrameKind,
        durable: u32,
        records: &[Record<'_>],
    ) -> u32 {
        self.push_frame(kind, position(durable), records)
    }

    /// The same with any position.
    pub(in crate::storage) fn push_frame(
        &mut self,
        kind: FrameKind,
        durable: Position,
        records: &[Record<'_>],
    ) -> u32 {
        let at = self.end();
        let (bytes, checksum) = frame(&self.identity, at, kind, durable, self.previous, records);
        self.bytes.extend(bytes);
        self.previous = checksum;
        at
    }
}

/// Where the first frame of a segment lies.
pub(in crate::storage) const FRAMES_BEGIN: u32 = segment_header::SIZE as u32;
