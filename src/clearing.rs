//! Which jobs a clear has decided are gone: a set that stays the same, whatever becomes of other jobs.
//!
//! A clear of many jobs is decided by one frame. The jobs are deleted afterwards, little by little; who
//! opens the log meanwhile finds here which ones are left to delete. So the set must not depend on the
//! time, on states, or on the order of later records: it names jobs by their ids and by the tube that
//! they were *put* into, which never changes.
//!
//! Of the jobs of a tube either those that are gone are listed, or those that stay: whatever is
//! shorter. A list is divided into parts that are values of settings; a set with a part that is lost is
//! no set, and then nothing is deleted.

use crate::types::{JobId, JobState, SETTING_SIZE_MAX, is_tube_name};

/// The states whose jobs are cleared. Reserved jobs never are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClearedStates {
    /// Ready jobs.
    Ready,
    /// Delayed jobs.
    Delayed,
    /// Buried jobs.
    Buried,
    /// All of these.
    All,
}

impl ClearedStates {
    /// The words for them.
    const WORDS: [(&str, ClearedStates); 4] = [
        ("ready", ClearedStates::Ready),
        ("delayed", ClearedStates::Delayed),
        ("buried", ClearedStates::Buried),
        ("all", ClearedStates::All),
    ];

    /// What a word means; `None` for another word.
    #[must_use]
    pub fn parse(word: &str) -> Option<ClearedStates> {
        let mut words = ClearedStates::WORDS.into_iter();
        words.find(|(of, _)| *of == word).map(|(_, states)| states)
    }

    /// True if jobs in this state are cleared.
    #[must_use]
    pub fn has(self, state: JobState) -> bool {
        match self {
            ClearedStates::Ready => state == JobState::Ready,
            ClearedStates::Delayed => state == JobState::Delayed,
            ClearedStates::Buried => state == JobState::Buried,
            ClearedStates::All => state != JobState::Reserved,
        }
    }
}

/// The jobs that a clear has decided are gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClearedJobs {
    /// The name of the tube.
    tube: Box<str>,
    rule: Rule,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// Those that were put into the tube, with ids below this one, without these.
    AllBut { below: JobId, kept: Vec<JobId> },
    /// These.
    These(Vec<JobId>),
}

/// In front of the ids of a part: which rule, how many parts there are, which one this is, the bound of
/// the ids (0: none), and the tube.
const RULE: usize = 0;
const TUBE_SIZE: usize = 1;
const PARTS: usize = 4;
const PART: usize = 8;
const BELOW: usize = 12;
const HEADER_SIZE: usize = 20;
const ALL_BUT: u8 = 1;
const THESE: u8 = 2;
/// The ids of a part take at most this many bytes.
const IDS_SIZE_MAX: usize = SETTING_SIZE_MAX - HEADER_SIZE - u8::MAX as usize;
/// The most bytes of a number that stands for the distance of two ids.
const NUMBER_SIZE_MAX: usize = 10;

impl ClearedJobs {
    /// Those that were put into a tube and have an id below this one, without these, in any order.
    pub(crate) fn all_but(tube: &str, below: JobId, mut kept: Vec<JobId>) -> ClearedJobs {
        kept.sort_unstable();
        ClearedJobs {
            tube: tube.into(),
            rule: Rule::AllBut { below, kept },
        }
    }

    /// These jobs of a tube, in any order.
    pub(crate) fn these(tube: &str, mut gone: Vec<JobId>) -> ClearedJobs {
        gone.sort_unstable();
        ClearedJobs {
            tube: tube.into(),
            rule: Rule::These(gone),
        }
    }

    /// The name of the tube that was cleared.
    pub(crate) fn tube(&self) -> &str {
        &self.tube
    }

    /// True if a job is gone. `is_of_tube`: it was put into the tube that was cleared.
    pub(crate) fn has(&self, id: JobId, is_of_tube: impl FnOnce() -> bool) -> bool {
        match &self.rule {
            Rule::These(gone) => gone.binary_search(&id).is_ok(),
            Rule::AllBut { below, kept } => {
                id < *below && is_of_tube() && kept.binary_search(&id).is_err()
            }
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> usize {
        size_of_val(self.ids())
    }

    fn ids(&self) -> &[JobId] {
        match &self.rule {
            Rule::AllBut { kept, .. } => kept,
            Rule::These(gone) => gone,
        }
    }

    /// The parts of the set, each of which is the value of a setting.
    pub(crate) fn encode(&self) -> Vec<Vec<u8>> {
        let mut lists = vec![Vec::new()];
        let mut before = 0;
        for id in self.ids() {
            let list = lists.last_mut().filter(|list| {
                let is_full = list.len() + NUMBER_SIZE_MAX > IDS_SIZE_MAX;
                !is_full
            });
            let list = match list {
                Some(list) => list,
                None => {
                    before = 0;
                    lists.push(Vec::new());
                    lists.last_mut().expect("one was added")
                }
            };
            push_number(list, id.0 - before);
            before = id.0;
        }
        let (rule, below) = match self.rule {
            Rule::AllBut { below, .. } => (ALL_BUT, below.0),
            Rule::These(_) => (THESE, 0),
        };
        let parts = lists.len() as u32;
        let value = |(part, list): (usize, Vec<u8>)| {
            let mut value = vec![0; HEADER_SIZE];
            (value[RULE], value[TUBE_SIZE]) = (rule, self.tube.len() as u8);
            value[PARTS..PART].copy_from_slice(&parts.to_le_bytes());
            value[PART..BELOW].copy_from_slice(&(part as u32).to_le_bytes());
            value[BELOW..HEADER_SIZE].copy_from_slice(&below.to_le_bytes());
            value.extend_from_slice(self.tube.as_bytes());
            value.extend_from_slice(&list);
            value
        };
        lists.into_iter().enumerate().map(value).collect()
    }

    /// The set that has these parts, in order. `None`: they are not all of its parts, or no parts.
    pub(crate) fn decode<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<ClearedJobs> {
        let mut whole: Option<(Part, u32)> = None;
        for value in values {
            let part = Part::decode(value)?;
            match &mut whole {
                None if part.part == 0 => whole = Some((part, 1)),
                Some((first, count)) if part.follows(first, *count) => {
                    first.ids.extend(part.ids);
                    *count += 1;
                }
                _ => return None,
            }
        }
        let (set, _) = whole.filter(|(set, count)| set.parts == *count)?;
        if !set.ids.is_sorted() {
            return None;
        }
        Some(match set.rule {
            ALL_BUT => ClearedJobs::all_but(set.tube, set.below, set.ids),
            _ => ClearedJobs::these(set.tube, set.ids),
        })
    }
}

/// A part of a set.
struct Part<'a> {
    rule: u8,
    parts: u32,
    part: u32,
    below: JobId,
    tube: &'a str,
    ids: Vec<JobId>,
}

impl<'a> Part<'a> {
    fn decode(value: &'a [u8]) -> Option<Part<'a>> {
        let (header, rest) = value.split_at_checked(HEADER_SIZE)?;
        let (tube, mut list) = rest.split_at_checked(usize::from(header[TUBE_SIZE]))?;
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4"));
        let below = u64::from_le_bytes(header[BELOW..].try_into().expect("8 bytes"));
        let mut ids = Vec::new();
        let mut id = 0_u64;
        while !list.is_empty() {
            id = id.checked_add(take_number(&mut list)?)?;
            ids.push(JobId(id));
        }
        let is_one = matches!(header[RULE], ALL_BUT | THESE) && is_tube_name(tube);
        is_one.then(|| {
            Some(Part {
                rule: header[RULE],
                parts: number(PARTS),
                part: number(PART),
                below: JobId(below),
                tube: std::str::from_utf8(tube).ok()?,
                ids,
            })
        })?
    }

    fn follows(&self, first: &Part<'_>, count: u32) -> bool {
        let of = |part: &Part<'_>| (part.rule, part.parts, part.below);
        of(self) == of(first) && self.tube == first.tube && self.part == count
    }
}

/// Seven bits a byte, the lowest first; the highest bit says that more follow.
fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..NUMBER_SIZE_MAX {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * at);
        if shifted >> (7 * at) != bits {
            return None;
        }
        number |= shifted;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn decoded(parts: &[Vec<u8>]) -> Option<ClearedJobs> {
        ClearedJobs::decode(parts.iter().map(Vec::as_slice))
    }

    #[test]
    fn a_set_comes_back_from_its_parts_and_only_from_all_of_them() {
        let mut random = Random::new(7);
        for size in [0, 1, 2, 1000, 200_000] {
            let ids = |random: &mut Random| -> Vec<JobId> {
                let id = |at: u64| JobId(at * 1_000_000 + random.below(1_000_000) as u64);
                (1..=size).map(id).collect()
            };
            for set in [
                ClearedJobs::all_but("mail", JobId(u64::MAX), ids(&mut random)),
                ClearedJobs::these("mail", ids(&mut random)),
            ] {
                let parts = set.encode();
                assert!(parts.iter().all(|part| part.len() <= SETTING_SIZE_MAX));
                assert_eq!(decoded(&parts).as_ref(), Some(&set));
                assert_eq!(parts.len() > 1, size > 100_000, "{size}");
                for left_out in 0..parts.len() {
                    let mut parts = parts.clone();
                    parts.remove(left_out);
                    assert_eq!(decoded(&parts), None, "{size} {left_out}");
                }
                let doubled = [parts.clone(), parts].concat();
                assert_eq!(decoded(&doubled), None);
            }
        }
    }

    /// As storage-format.md says.
    #[test]
    fn the_bytes_of_a_part_are_those_of_the_format() {
        let set = ClearedJobs::all_but("ab", JobId(0x1234), vec![JobId(300), JobId(5)]);
        let fixed = [
            1, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0,
        ];
        let rest = [b'a', b'b', 5, 0xa7, 2];
        assert_eq!(set.encode(), [[&fixed[..], &rest].concat()]);
        let set = ClearedJobs::these("ab", Vec::new());
        let fixed = [2, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(set.encode(), [[&fixed[..], b"ab"].concat()]);
    }

    #[test]
    fn a_job_is_gone_by_its_id_and_the_tube_that_it_was_put_into() {
        let all_but = ClearedJobs::all_but("a", JobId(10), vec![JobId(7), JobId(3)]);
        let of = |set: &ClearedJobs, tube| -> Vec<u64> {
            let has = |id: &u64| set.has(JobId(*id), || tube == set.tube());
            (1..12).filter(has).collect()
        };
        assert_eq!(of(&all_but, "a"), [1, 2, 4, 5, 6, 8, 9]);
        assert!(of(&all_but, "b").is_empty());
        let these = ClearedJobs::these("a", vec![JobId(7), JobId(3)]);
        assert_eq!(of(&these, "a"), [3, 7]);
        assert_eq!(of(&these, "b"), [3, 7]);
    }

    #[test]
    fn what_is_no_set_is_told() {
        let sound = ClearedJobs::these("a", vec![JobId(1), JobId(u64::MAX)]).encode();
        assert!(decoded(&sound).is_some());
        for (at, byte) in [
            (RULE, 0),
            (RULE, 3),
            (TUBE_SIZE, 0),
            (TUBE_SIZE, 200),
            (PART, 1),
        ] {
            let mut value = sound[0].clone();
            value[at] = byte;
            assert_eq!(decoded(&[value]), None, "{at}: {byte}");
        }
        for tail in [&[0x80][..], &[0xff; 11], &[1]] {
            let value = [&sound[0][..], tail].concat();
            assert_eq!(decoded(&[value]), None, "{tail:?}");
        }
        for size in 0..sound[0].len() {
            assert_ne!(
                decoded(&[sound[0][..size].to_vec()]),
                decoded(&sound),
                "{size}"
            );
        }
        assert_eq!(decoded(&[]), None);
    }

    #[test]
    fn reserved_jobs_are_never_cleared() {
        let all = [JobState::Ready, JobState::Delayed, JobState::Buried];
        for (word, states) in ClearedStates::WORDS {
            assert_eq!(ClearedStates::parse(word), Some(states));
            assert!(!states.has(JobState::Reserved));
            let count = all.into_iter().filter(|state| states.has(*state)).count();
            assert_eq!(count, if states == ClearedStates::All { 3 } else { 1 });
        }
        assert_eq!(ClearedStates::parse("reserved"), None);
    }
}
