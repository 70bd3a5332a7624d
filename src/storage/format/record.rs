//! Records: each is one change of state, or of the log's own files.
//!
//! A record has its own length and its own CRC, so a body can be checked without the rest of its
//! frame. The layouts of the parent module say which bytes are which.

use super::{
    Seed, VERSION_MIN, attributes, delete, entry, file_name, kick, manifest, pause, put, set_u16,
    set_u32, set_u64, setting, switch, u16_at, u32_at, u64_at, update,
};
use crate::attributes::{Attributes, LIST_SIZE_MAX};
use crate::types::{
    Counters, JobId, JobState, SETTING_SIZE_MAX, SegmentId, SettingClass, is_setting_name,
    is_tube_name,
};

pub(super) const KIND_PUT: u8 = 1;
pub(super) const KIND_UPDATE: u8 = 2;
pub(super) const KIND_DELETE: u8 = 3;
pub(super) const KIND_PAUSE: u8 = 4;
pub(super) const KIND_MANIFEST: u8 = 5;
pub(super) const KIND_SWITCH: u8 = 6;
pub(super) const KIND_KICK: u8 = 7;
pub(super) const KIND_SETTING: u8 = 8;
pub(super) const KIND_ATTRIBUTES: u8 = 9;

/// One file of the log, as manifests and switches name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The first segment in it.
    pub first: SegmentId,
    /// The last segment in it.
    pub last: SegmentId,
    /// How often it was rewritten.
    pub generation: u32,
    /// Where its last frame ends, in bytes.
    pub end: u32,
}

impl Entry {
    /// The file's name.
    #[must_use]
    pub fn file_name(&self) -> String {
        file_name(self.first, self.generation)
    }
}

/// A list of entries, decoded or as bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries<'a> {
    /// To be encoded.
    List(&'a [Entry]),
    /// As read.
    Bytes(&'a [u8]),
}

impl Entries<'_> {
    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Entries::List(list) => list.len(),
            Entries::Bytes(bytes) => bytes.len() / entry::SIZE,
        }
    }

    /// True if it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries, in order.
    #[must_use]
    pub fn to_vec(&self) -> Vec<Entry> {
        match self {
            Entries::List(list) => list.to_vec(),
            Entries::Bytes(bytes) => bytes.chunks_exact(entry::SIZE).map(decode_entry).collect(),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Entries::Bytes(bytes) => out.extend_from_slice(bytes),
            Entries::List(list) => {
                for item in *list {
                    for value in [item.first.0, item.last.0, item.generation, item.end] {
                        out.extend_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
    }
}

fn decode_entry(bytes: &[u8]) -> Entry {
    Entry {
        first: SegmentId(u32_at(bytes, entry::FIRST)),
        last: SegmentId(u32_at(bytes, entry::LAST)),
        generation: u32_at(bytes, entry::GENERATION),
        end: u32_at(bytes, entry::END),
    }
}

/// A record: one change of state, or of the log's own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are those of the layouts of the parent module
pub enum Record<'a> {
    /// A new job.
    Put {
        id: JobId,
        created_wall_ns: u64,
        pri: u32,
        delay: u32,
        ttr: u32,
        tube: &'a str,
        body: &'a [u8],
    },
    /// The whole mutable state of a job.
    Update {
        id: JobId,
        /// The number of the kick that it belongs to; 0 for none.
        kick: u16,
        state: JobState,
        deadline_wall_ns: u64,
        pri: u32,
        delay: u32,
        counters: Counters,
    },
    /// The job is gone.
    Delete { id: JobId, put_segment: SegmentId },
    /// A tube is paused, or no longer (`until_wall_ns` 0).
    Pause {
        tube: &'a str,
        until_wall_ns: u64,
        duration: u32,
    },
    /// A kick of several jobs is unfinished: it has still to kick `left` jobs of the tube that are
    /// in `state`. Its updates carry its number.
    Kick {
        number: u16,
        tube: &'a str,
        state: JobState,
        left: u32,
        due_wall_ns: u64,
    },
    /// A named setting of the log has this value from now on; an empty value removes it.
    Setting {
        class: SettingClass,
        name: &'a str,
        value: &'a [u8],
    },
    /// What a job has beyond a plain job, from now on.
    Attributes {
        id: JobId,
        /// As [`Attributes::encode`] writes it.
        list: &'a [u8],
    },
    /// All other files of the log.
    Manifest {
        next_id: JobId,
        entries: Entries<'a>,
    },
    /// Files replaced by compaction.
    Switch {
        removed: Entries<'a>,
        added: Entries<'a>,
    },
}

impl<'a> Record<'a> {
    /// Bytes of the record.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Record::Put { tube, body, .. } => put_size(tube.len(), body.len()),
            Record::Update { .. } => update::SIZE,
            Record::Delete { .. } => delete::SIZE,
            Record::Pause { tube, .. } => pause::SIZE + tube.len(),
            Record::Kick { tube, .. } => kick::SIZE + tube.len(),
            Record::Setting { name, value, .. } => setting_size(name.len(), value.len()),
            Record::Attributes { list, .. } => attributes_size(list.len()),
            Record::Manifest { entries, .. } => manifest::SIZE + entries.len() * entry::SIZE,
            Record::Switch { removed, added } => {
                switch::SIZE + (removed.len() + added.len()) * entry::SIZE
            }
        }
    }

    /// The format version that a reader of it must know.
    #[must_use]
    pub fn version(&self) -> u16 {
        match self {
            Record::Setting { .. } | Record::Attributes { .. } => 2,
            _ => VERSION_MIN,
        }
    }

    /// Bytes of the body in it.
    pub(super) fn body_size(&self) -> usize {
        match self {
            Record::Put { body, .. } => body.len(),
            _ => 0,
        }
    }

    /// The size of the record that `bytes` begins with, according to its own length fields; `None`
    /// if that is more than there is. This only finds the end: nothing is trusted before the CRC is
    /// checked.
    pub(super) fn size_of(bytes: &[u8]) -> Option<usize> {
        let size = usize::try_from(Record::size_claimed(bytes)?).ok()?;
        (size <= bytes.len()).then_some(size)
    }

    /// The size that the length fields of a record claim. `bytes` is its beginning: as many bytes
    /// as there are, up to [`put::SIZE`], which is enough for every kind. `None` if no record
    /// begins so.
    #[inline] // a start calls it for each record
    pub(in crate::storage) fn size_claimed(bytes: &[u8]) -> Option<u64> {
        let fixed_size = match *bytes.get(put::KIND)? {
            KIND_PUT => put::SIZE,
            KIND_UPDATE => return Some(update::SIZE as u64),
            KIND_DELETE => delete::SIZE,
            KIND_PAUSE => pause::SIZE,
            KIND_MANIFEST => manifest::SIZE,
            KIND_SWITCH => switch::SIZE,
            KIND_KICK => kick::SIZE,
            KIND_SETTING => setting::SIZE,
            KIND_ATTRIBUTES => attributes::SIZE,
            _ => return None,
        };
        let fixed = bytes.get(..fixed_size)?;
        let entries = |at| u64::from(u32_at(fixed, at)) * entry::SIZE as u64;
        let variable = match fixed[put::KIND] {
            KIND_PUT => u64::from(fixed[put::TUBE_SIZE]) + u64::from(u32_at(fixed, put::BODY_SIZE)),
            KIND_PAUSE => u64::from(fixed[pause::TUBE_SIZE]),
            KIND_KICK => u64::from(fixed[kick::TUBE_SIZE]),
            KIND_SETTING => {
                let value = u32_at(fixed, setting::VALUE_SIZE);
                u64::from(fixed[setting::NAME_SIZE]) + u64::from(value)
            }
            KIND_ATTRIBUTES => u64::from(u16_at(fixed, attributes::LIST_SIZE)),
            KIND_MANIFEST => entries(manifest::ENTRIES),
            KIND_SWITCH => entries(switch::REMOVED) + entries(switch::ADDED),
            _ => 0,
        };
        Some(fixed_size as u64 + variable)
    }

    /// The job that a damaged record names, if records of its kind name a job.
    pub(in crate::storage) fn believable_job(bytes: &[u8]) -> Option<JobId> {
        match *bytes.get(put::KIND)? {
            KIND_PUT | KIND_UPDATE | KIND_DELETE | KIND_ATTRIBUTES => bytes
                .get(put::ID..put::ID + 8)
                .map(|_| JobId(u64_at(bytes, put::ID))),
            _ => None,
        }
    }

    /// The job that a sound record puts, if it is a put.
    pub(in crate::storage) fn job_put(bytes: &[u8]) -> Option<JobId> {
        (*bytes.get(put::KIND)? == KIND_PUT).then(|| Record::believable_job(bytes))?
    }

    /// True if a sound record is about the files of the log.
    pub(in crate::storage) fn is_of_files(bytes: &[u8]) -> bool {
        let kind = bytes.get(put::KIND);
        kind.is_some_and(|kind| matches!(*kind, KIND_MANIFEST | KIND_SWITCH))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.encode_behind(0, out);
    }

    /// Encode a put whose body has `begun` bytes more, in front of those in the record. They are zeros
    /// in `out`. Other records have no body.
    pub(super) fn encode_behind(&self, begun: usize, out: &mut Vec<u8>) {
        let start = out.len();
        match *self {
            Record::Put {
                id,
                created_wall_ns,
                pri,
                delay,
                ttr,
                tube,
                body,
            } => {
                let bytes = grow(out, put::SIZE);
                bytes[put::KIND] = KIND_PUT;
                bytes[put::TUBE_SIZE] = tube.len() as u8;
                set_u64(bytes, put::ID, id.0);
                set_u64(bytes, put::CREATED, created_wall_ns);
                set_u32(bytes, put::PRI, pri);
                set_u32(bytes, put::DELAY, delay);
                set_u32(bytes, put::TTR, ttr);
                set_u32(bytes, put::BODY_SIZE, (begun + body.len()) as u32);
                out.extend_from_slice(tube.as_bytes());
                out.resize(out.len() + begun, 0);
                out.extend_from_slice(body);
            }
            Record::Update {
                id,
                kick,
                state,
                deadline_wall_ns,
                pri,
                delay,
                counters,
            } => {
                let bytes = grow(out, update::SIZE);
                bytes[update::KIND] = KIND_UPDATE;
                bytes[update::STATE] = state_to_byte(state);
                set_u16(bytes, update::KICK, kick);
                set_u64(bytes, update::ID, id.0);
                set_u64(bytes, update::DEADLINE, deadline_wall_ns);
                set_u32(bytes, update::PRI, pri);
                set_u32(bytes, update::DELAY, delay);
                set_u32(bytes, update::RESERVES, counters.reserves);
                set_u32(bytes, update::TIMEOUTS, counters.timeouts);
                set_u32(bytes, update::RELEASES, counters.releases);
                set_u32(bytes, update::BURIES, counters.buries);
                set_u32(bytes, update::KICKS, counters.kicks);
            }
            Record::Delete { id, put_segment } => {
                let bytes = grow(out, delete::SIZE);
                bytes[delete::KIND] = KIND_DELETE;
                set_u64(bytes, delete::ID, id.0);
                set_u32(bytes, delete::PUT_SEGMENT, put_segment.0);
            }
            Record::Pause {
                tube,
                until_wall_ns,
                duration,
            } => {
                let bytes = grow(out, pause::SIZE);
                bytes[pause::KIND] = KIND_PAUSE;
                bytes[pause::TUBE_SIZE] = tube.len() as u8;
                set_u64(bytes, pause::UNTIL, until_wall_ns);
                set_u32(bytes, pause::DURATION, duration);
                out.extend_from_slice(tube.as_bytes());
            }
            Record::Kick {
                number,
                tube,
                state,
                left,
                due_wall_ns,
            } => {
                let bytes = grow(out, kick::SIZE);
                bytes[kick::KIND] = KIND_KICK;
                bytes[kick::TUBE_SIZE] = tube.len() as u8;
                set_u32(bytes, kick::NUMBER, number.into());
                set_u32(bytes, kick::LEFT, left);
                set_u32(bytes, kick::STATE, state_to_byte(state).into());
                set_u64(bytes, kick::DUE, due_wall_ns);
                out.extend_from_slice(tube.as_bytes());
            }
            Record::Setting { class, name, value } => {
                let bytes = grow(out, setting::SIZE);
                bytes[setting::KIND] = KIND_SETTING;
                bytes[setting::NAME_SIZE] = name.len() as u8;
                bytes[setting::CLASS] = class as u8;
                set_u32(bytes, setting::VALUE_SIZE, value.len() as u32);
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(value);
            }
            Record::Attributes { id, list } => {
                let bytes = grow(out, attributes::SIZE);
                bytes[attributes::KIND] = KIND_ATTRIBUTES;
                set_u16(bytes, attributes::LIST_SIZE, list.len() as u16);
                set_u64(bytes, attributes::ID, id.0);
                out.extend_from_slice(list);
            }
            Record::Manifest { next_id, entries } => {
                let bytes = grow(out, manifest::SIZE);
                bytes[manifest::KIND] = KIND_MANIFEST;
                set_u64(bytes, manifest::NEXT_ID, next_id.0);
                set_u32(bytes, manifest::ENTRIES, entries.len() as u32);
                entries.encode(out);
            }
            Record::Switch { removed, added } => {
                let bytes = grow(out, switch::SIZE);
                bytes[switch::KIND] = KIND_SWITCH;
                set_u32(bytes, switch::REMOVED, removed.len() as u32);
                set_u32(bytes, switch::ADDED, added.len() as u32);
                removed.encode(out);
                added.encode(out);
            }
        }
        debug_assert_eq!(out.len() - start, self.size() + begun);
    }

    /// Decode a record from exactly these bytes; the caller checks its CRC.
    pub(in crate::storage) fn decode(bytes: &'a [u8]) -> Option<Record<'a>> {
        match *bytes.get(put::KIND)? {
            KIND_PUT => {
                let tube = put_tube(bytes);
                Some(Record::Put {
                    id: JobId(u64_at(bytes, put::ID)),
                    created_wall_ns: u64_at(bytes, put::CREATED),
                    pri: u32_at(bytes, put::PRI),
                    delay: u32_at(bytes, put::DELAY),
                    ttr: u32_at(bytes, put::TTR),
                    tube: tube_name(tube)?,
                    body: &bytes[put::SIZE + tube.len()..],
                })
            }
            KIND_UPDATE => Some(Record::Update {
                id: JobId(u64_at(bytes, update::ID)),
                kick: u16_at(bytes, update::KICK),
                state: state_from_byte(bytes[update::STATE])?,
                deadline_wall_ns: u64_at(bytes, update::DEADLINE),
                pri: u32_at(bytes, update::PRI),
                delay: u32_at(bytes, update::DELAY),
                counters: Counters {
                    reserves: u32_at(bytes, update::RESERVES),
                    timeouts: u32_at(bytes, update::TIMEOUTS),
                    releases: u32_at(bytes, update::RELEASES),
                    buries: u32_at(bytes, update::BURIES),
                    kicks: u32_at(bytes, update::KICKS),
                },
            }),
            KIND_DELETE => Some(Record::Delete {
                id: JobId(u64_at(bytes, delete::ID)),
                put_segment: SegmentId(u32_at(bytes, delete::PUT_SEGMENT)),
            }),
            KIND_PAUSE => Some(Record::Pause {
                tube: tube_name(&bytes[pause::SIZE..])?,
                until_wall_ns: u64_at(bytes, pause::UNTIL),
                duration: u32_at(bytes, pause::DURATION),
            }),
            KIND_KICK => Some(Record::Kick {
                number: u16::try_from(u32_at(bytes, kick::NUMBER)).ok()?,
                tube: tube_name(&bytes[kick::SIZE..])?,
                state: match u32_at(bytes, kick::STATE) {
                    1 => JobState::Delayed,
                    2 => JobState::Buried,
                    _ => return None,
                },
                left: u32_at(bytes, kick::LEFT),
                due_wall_ns: u64_at(bytes, kick::DUE),
            }),
            KIND_SETTING => decode_setting(bytes),
            KIND_ATTRIBUTES => decode_attributes(bytes),
            KIND_MANIFEST => Some(Record::Manifest {
                next_id: JobId(u64_at(bytes, manifest::NEXT_ID)),
                entries: Entries::Bytes(&bytes[manifest::SIZE..]),
            }),
            KIND_SWITCH => {
                let removed = u32_at(bytes, switch::REMOVED) as usize * entry::SIZE;
                let (removed, added) = bytes[switch::SIZE..].split_at_checked(removed)?;
                Some(Record::Switch {
                    removed: Entries::Bytes(removed),
                    added: Entries::Bytes(added),
                })
            }
            _ => None,
        }
    }

    /// The job that the record is about.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Record::Put { id, .. }
            | Record::Update { id, .. }
            | Record::Delete { id, .. }
            | Record::Attributes { id, .. } => Some(*id),
            _ => None,
        }
    }

    /// Check and decode the record at the start of `bytes`, which lie at `offset`; returns the
    /// record and its size. `None` if no sound record begins here.
    #[must_use]
    pub(crate) fn decode_first(
        bytes: &'a [u8],
        seed: Seed,
        offset: u32,
    ) -> Option<(Record<'a>, usize)> {
        let bytes = Record::first_intact(bytes, seed, offset)?;
        Record::decode(bytes).map(|record| (record, bytes.len()))
    }

    /// Check the record at the start of `bytes` as [`Record::decode_first`] does; returns the format
    /// version that a reader of it must know, and its size.
    #[inline] // a start calls it for each record
    pub(super) fn check_first(bytes: &[u8], seed: Seed, offset: u32) -> Option<(u16, usize)> {
        let bytes = Record::first_intact(bytes, seed, offset)?;
        let version = match bytes[put::KIND] {
            // Nearly all records are puts. Only the name of its tube may be wrong in one.
            KIND_PUT => is_tube_name(put_tube(bytes)).then_some(VERSION_MIN)?,
            _ => Record::decode(bytes)?.version(),
        };
        Some((version, bytes.len()))
    }

    /// The bytes of the record at the start of `bytes`, if its CRC is right.
    fn first_intact(bytes: &[u8], seed: Seed, offset: u32) -> Option<&[u8]> {
        let bytes = &bytes[..Record::size_of(bytes)?];
        let is_intact = seed.crc(offset, &bytes[put::KIND..]) == u32_at(bytes, put::CRC);
        is_intact.then_some(bytes)
    }

    /// Decode a copy of a record that was checked at its original place.
    #[must_use]
    pub(crate) fn decode_copy(bytes: &'a [u8]) -> Option<Record<'a>> {
        if Record::size_of(bytes)? == bytes.len() {
            Record::decode(bytes)
        } else {
            None
        }
    }

    /// Whether `head` is the beginning of a put of this job, up to its body of `body_size` bytes.
    /// Checks no checksum.
    #[must_use]
    pub(crate) fn is_head_of_put(
        head: &[u8],
        id: JobId,
        head_size: usize,
        body_size: usize,
    ) -> bool {
        head.len() == head_size
            && head_size >= put::SIZE
            && head[put::KIND] == KIND_PUT
            && usize::from(head[put::TUBE_SIZE]) == head_size - put::SIZE
            && u64_at(head, put::ID) == id.0
            && u32_at(head, put::BODY_SIZE) as usize == body_size
    }

    /// Check and decode a single put record that lies at `offset`, as when a body is read for a
    /// client. `None` if anything is wrong.
    #[must_use]
    pub(crate) fn decode_put(bytes: &'a [u8], seed: Seed, offset: u32) -> Option<Record<'a>> {
        match Record::decode_first(bytes, seed, offset)? {
            (record @ Record::Put { .. }, size) if size == bytes.len() => Some(record),
            _ => None,
        }
    }
}

/// Bytes of a put record.
#[must_use]
pub fn put_size(tube_size: usize, body_size: usize) -> usize {
    put::SIZE + tube_size + body_size
}

/// Bytes of the record of a setting.
#[must_use]
pub fn setting_size(name_size: usize, value_size: usize) -> usize {
    setting::SIZE + name_size + value_size
}

/// Bytes of the record of a job's attributes.
#[must_use]
pub fn attributes_size(list_size: usize) -> usize {
    attributes::SIZE + list_size
}

fn decode_setting(bytes: &[u8]) -> Option<Record<'_>> {
    let name_size = usize::from(bytes[setting::NAME_SIZE]);
    let (name, value) = bytes[setting::SIZE..].split_at_checked(name_size)?;
    let name = std::str::from_utf8(name).ok()?;
    let is_one = is_setting_name(name) && value.len() <= SETTING_SIZE_MAX;
    let class = SettingClass::from_byte(bytes[setting::CLASS])?;
    is_one.then_some(Record::Setting { class, name, value })
}

/// An unknown attribute is damage, and so is one that is not as the first ones were defined: a later
/// version gets a number of its own.
fn decode_attributes(bytes: &[u8]) -> Option<Record<'_>> {
    let list = &bytes[attributes::SIZE..];
    if list.len() > LIST_SIZE_MAX {
        return None;
    }
    Attributes::decode(list)?;
    let id = JobId(u64_at(bytes, attributes::ID));
    Some(Record::Attributes { id, list })
}

/// The name of the tube in a put.
fn put_tube(bytes: &[u8]) -> &[u8] {
    &bytes[put::SIZE..put::SIZE + usize::from(bytes[put::TUBE_SIZE])]
}

fn tube_name(bytes: &[u8]) -> Option<&str> {
    if is_tube_name(bytes) {
        std::str::from_utf8(bytes).ok()
    } else {
        None
    }
}

fn state_to_byte(state: JobState) -> u8 {
    match state {
        JobState::Ready => 0,
        JobState::Delayed => 1,
        JobState::Buried => 2,
        JobState::Reserved => unreachable!("a reservation is never written to the log"),
    }
}

pub(super) fn state_from_byte(byte: u8) -> Option<JobState> {
    match byte {
        0 => Some(JobState::Ready),
        1 => Some(JobState::Delayed),
        2 => Some(JobState::Buried),
        _ => None,
    }
}

/// Extend `out` by `size` zeros and return them.
fn grow(out: &mut Vec<u8>, size: usize) -> &mut [u8] {
    let start = out.len();
    out.resize(start + size, 0);
    &mut out[start..]
}

#[cfg(test)]
mod tests {
    use super::super::samples::{Parts, identity, one_of_each, plain, seeds};
    use super::super::{Identity, attribute};
    use super::*;
    use crate::random::Random;

    const OFFSET: u32 = 4096;

    /// A record with its CRC, for the place [`OFFSET`].
    fn sealed(record: &Record<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        correct_checksums(&mut bytes);
        bytes
    }

    fn correct_checksums(bytes: &mut [u8]) {
        let crc = identity().seed().crc(OFFSET, &bytes[put::KIND..]);
        set_u32(bytes, put::CRC, crc);
    }

    fn decoded(bytes: &[u8]) -> Option<(Record<'_>, usize)> {
        Record::decode_first(bytes, identity().seed(), OFFSET)
    }

    #[test]
    fn every_kind_of_record_is_decoded_as_it_was_encoded() {
        for seed in seeds(2000) {
            let mut random = Random::new(seed);
            let parts = Parts::random(&mut random);
            let record = parts.record(&mut random);
            let mut bytes = sealed(&record);
            assert_eq!(bytes.len(), record.size());
            bytes.extend([0xee; 60]); // what follows is not its business
            let (found, size) = decoded(&bytes).unwrap();
            assert_eq!((plain(&found), size), (plain(&record), record.size()));
            assert_eq!(found.job(), record.job());
        }
    }

    #[test]
    fn a_record_is_checked_as_it_is_decoded() {
        for seed in seeds(2000) {
            let mut random = Random::new(seed);
            let parts = Parts::random(&mut random);
            let mut bytes = sealed(&parts.record(&mut random));
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= random.below(4) as u8;
            // With a CRC that fits only what else is wrong is found.
            if random.below(2) == 0 {
                correct_checksums(&mut bytes);
            }
            let checked = Record::check_first(&bytes, identity().seed(), OFFSET);
            let decoded = decoded(&bytes).map(|(record, size)| (record.version(), size));
            assert_eq!(checked, decoded, "seed {seed}");
        }
    }

    #[test]
    fn the_longest_tube_and_the_empty_body_fit() {
        let tube = "x".repeat(200);
        let record = Record::Put {
            id: JobId(u64::MAX),
            created_wall_ns: u64::MAX,
            pri: u32::MAX,
            delay: u32::MAX,
            ttr: u32::MAX,
            tube: &tube,
            body: b"",
        };
        let bytes = sealed(&record);
        assert_eq!(decoded(&bytes), Some((record, put::SIZE + 200)));
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_detected() {
        for record in one_of_each() {
            let bytes = sealed(&record);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                // Also with bytes after it, which a longer length may include.
                flipped.extend([0; 300]);
                assert_eq!(decoded(&flipped), None, "bit {bit} of {record:?}");
            }
        }
    }

    #[test]
    fn a_record_cut_short_at_any_length_is_none() {
        for record in one_of_each() {
            let bytes = sealed(&record);
            for size in 0..bytes.len() {
                assert_eq!(decoded(&bytes[..size]), None, "{size} bytes of {record:?}");
                assert_eq!(Record::decode_copy(&bytes[..size]), None);
            }
        }
    }

    #[test]
    fn a_record_at_another_offset_or_of_another_file_is_none() {
        let seed = identity().seed();
        for record in one_of_each() {
            let bytes = sealed(&record);
            for bit in 0..32 {
                assert_eq!(Record::decode_first(&bytes, seed, OFFSET ^ 1 << bit), None);
            }
            let later = Identity {
                generation: 1,
                ..identity()
            };
            assert_eq!(Record::decode_first(&bytes, later.seed(), OFFSET), None);
        }
    }

    #[test]
    fn lengths_of_4_gib_claim_what_they_claim_and_find_nothing() {
        for (kind, fields, claimed) in [
            (
                KIND_PUT,
                &[put::BODY_SIZE][..],
                40 + 7 + u64::from(u32::MAX),
            ),
            (
                KIND_MANIFEST,
                &[manifest::ENTRIES],
                20 + 16 * u64::from(u32::MAX),
            ),
            (
                KIND_SWITCH,
                &[switch::REMOVED, switch::ADDED],
                16 + 32 * u64::from(u32::MAX),
            ),
            (
                KIND_SETTING,
                &[setting::VALUE_SIZE],
                12 + u64::from(u32::MAX),
            ),
        ] {
            let mut bytes = vec![0; 100];
            bytes[put::KIND] = kind;
            bytes[put::TUBE_SIZE] = if kind == KIND_PUT { 7 } else { 0 };
            for field in fields {
                set_u32(&mut bytes, *field, u32::MAX);
            }
            correct_checksums(&mut bytes);
            assert_eq!(Record::size_claimed(&bytes), Some(claimed), "kind {kind}");
            assert_eq!(Record::size_of(&bytes), None);
            assert_eq!(decoded(&bytes), None);
        }
    }

    #[test]
    fn sound_bytes_that_mean_nothing_are_none() {
        let changed = |record: &Record<'_>, at: usize, value: u8| {
            let mut bytes = sealed(record);
            bytes[at] = value;
            correct_checksums(&mut bytes);
            decoded(&bytes).is_some()
        };
        let all = one_of_each();
        assert!(changed(&all[1], put::PRI, 1), "only the number has changed");
        assert!(!changed(&all[1], put::KIND, 0));
        assert!(!changed(&all[1], put::KIND, 10));
        assert!(!changed(&all[1], put::TUBE_SIZE, 0), "a tube has a name");
        assert!(
            !changed(&all[1], put::SIZE, b'-'),
            "no tube's name begins like this"
        );
        assert!(!changed(&all[1], put::SIZE, 0xff));
        assert!(
            !changed(&all[2], update::STATE, 3),
            "no job is written as reserved"
        );
        assert!(!changed(&all[3], pause::SIZE, b' '));
        assert!(changed(&all[7], setting::CLASS, 2));
        assert!(!changed(&all[7], setting::CLASS, 5), "an unknown class");
        assert!(!changed(&all[7], setting::CLASS, 0));
        assert!(!changed(&all[7], setting::SIZE, 0xff), "a name is text");
        assert!(changed(&all[8], attributes::ID, 1));
        let second = attributes::SIZE + attribute::SIZE + 3;
        assert_eq!(sealed(&all[8])[second], 6, "the count of failures");
        assert!(!changed(&all[8], second, 11), "an unknown attribute");
        assert!(!changed(&all[8], second, 1), "one that comes twice");
    }

    #[test]
    fn settings_and_attributes_as_large_as_they_can_be_fit_and_larger_ones_are_damage() {
        let name = "n".repeat(200);
        let value = [7; SETTING_SIZE_MAX + 1];
        let setting = |value| Record::Setting {
            class: SettingClass::Schedule,
            name: &name,
            value,
        };
        let bytes = sealed(&setting(&value[1..]));
        assert_eq!(decoded(&bytes).unwrap().0, setting(&value[1..]));
        assert_eq!(decoded(&sealed(&setting(&value))), None);
        let text = [1; crate::attributes::TEXT_SIZE_MAX + 1];
        let of_text = |text| Attributes {
            text: Some(text),
            ..Attributes::default()
        };
        let list = of_text(&text[1..]).encode().unwrap();
        let mut longer = [&list[..], &[1]].concat();
        (longer[1], longer[2]) = (1, 16);
        let record = |list| Record::Attributes { id: JobId(1), list };
        assert!(decoded(&sealed(&record(&list))).is_some());
        assert_eq!(decoded(&sealed(&record(&longer))), None);
        assert_eq!(of_text(&text).encode(), None);
    }

    #[test]
    fn only_what_version_1_does_not_know_needs_a_later_one() {
        let versions: Vec<u16> = one_of_each().iter().map(Record::version).collect();
        assert_eq!(versions, [1, 1, 1, 1, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn a_put_is_read_alone_and_nothing_else_is_taken_for_one() {
        let seed = identity().seed();
        for record in one_of_each() {
            let mut bytes = sealed(&record);
            let is_put = matches!(record, Record::Put { .. });
            assert_eq!(Record::decode_put(&bytes, seed, OFFSET).is_some(), is_put);
            bytes.push(0);
            assert_eq!(
                Record::decode_put(&bytes, seed, OFFSET),
                None,
                "a byte too many"
            );
        }
    }

    #[test]
    fn a_copy_is_decoded_wherever_it_lies() {
        for record in one_of_each() {
            let mut bytes = sealed(&record);
            set_u32(&mut bytes, put::CRC, 0);
            assert_eq!(plain(&Record::decode_copy(&bytes).unwrap()), plain(&record));
        }
    }
}
