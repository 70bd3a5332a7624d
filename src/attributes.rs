//! What a job has beyond a plain job: a key, a group, a count of failures and so on.
//!
//! A list of entries, in the form in which both the queue and the log keep it:
//!
//! ```text
//! list  = entry*                        in ascending order of their tags, each tag at most once
//! entry = TAG SIZE bytes                1 byte, 2 bytes little-endian, SIZE bytes
//! ```
//!
//! [`TAGS`] says which there are; a test compares the table of `storage-format.md` with it. A list
//! says all there is: what is not in it, the job does not have. An empty list is that of a plain job.
//!
//! Nothing here decides anything: bytes in, values out. Decoding never panics, whatever the bytes
//! are, and takes only what [`Attributes::encode`] writes.

use crate::types::{TUBE_NAME_MAX, is_tube_name, is_tube_name_byte};

/// Bytes of a worker's text at most.
pub const TEXT_SIZE_MAX: usize = 4 << 10;
/// Bytes of a list at most: all entries, each as large as it can be.
pub const LIST_SIZE_MAX: usize =
    10 * ENTRY_SIZE_MIN + 4 * TUBE_NAME_MAX + TEXT_SIZE_MAX + 2 * (1 + 4) + size_of::<u64>();
/// Bytes of an entry without its content.
const ENTRY_SIZE_MIN: usize = 3;

/// In place of a time, in [`Attributes::counted_since_wall_ns`].
pub const RESERVED_SINCE: u64 = 0;

const KEY: u8 = 1;
const UNIQUE: u8 = 2;
const GROUP: u8 = 3;
const TUBE: u8 = 4;
const COUNTED_FROM: u8 = 5;
const FAILURES: u8 = 6;
const REASON: u8 = 7;
const TEXT: u8 = 8;
const DEAD_LETTERED_FROM: u8 = 9;
const COUNTED_SINCE: u8 = 10;

/// The tags: each with its name, its bytes, and its meaning.
pub const TAGS: [(u8, &str, &str, &str); 10] = [
    (
        KEY,
        "key",
        "1 to 200",
        "characters of tube names; who puts a job may ask that no other has its key",
    ),
    (
        UNIQUE,
        "unique",
        "1",
        "how long its key is its own: 0 until it is deleted, 1 until it is reserved",
    ),
    (
        GROUP,
        "group",
        "1 to 200",
        "characters of tube names; the group that it belongs to",
    ),
    (
        TUBE,
        "tube",
        "1 to 200",
        "the tube that it was moved to; without it, it is in that of its put",
    ),
    (
        COUNTED_FROM,
        "counted_from",
        "4",
        "reserves of the job before those deliveries that its tube's policy counts",
    ),
    (
        FAILURES,
        "failures",
        "4",
        "deliveries that had failed when it was set aside",
    ),
    (
        REASON,
        "reason",
        "1",
        "of the last failure: 0 released, 1 its time ran out, 2 its client has left, 3 a worker said \
         so, 4 expired, 5 buried",
    ),
    (
        TEXT,
        "text",
        "0 to 4096",
        "what the worker said of the last failure; any bytes",
    ),
    (
        DEAD_LETTERED_FROM,
        "dead_lettered_from",
        "1 to 200",
        "the tube from which it came as a dead letter",
    ),
    (
        COUNTED_SINCE,
        "counted_since",
        "8",
        "wall time from which they are counted, and a dead letter's time to expire; ns since 1970; 0: it was reserved as a dead letter and does not expire",
    ),
];

/// How long the key of a job is its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unique {
    /// Until the job is deleted.
    Exists,
    /// Until it is reserved.
    Waiting,
}

impl Unique {
    const ALL: [Unique; 2] = [Unique::Exists, Unique::Waiting];

    /// Its name, in commands and dumps.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Unique::Exists => "exists",
            Unique::Waiting => "waiting",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(word: &str) -> Option<Unique> {
        Unique::ALL.into_iter().find(|it| it.word() == word)
    }
}

/// Why a delivery of a job failed, or why it was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A client released it.
    Released,
    /// The time of a reservation ran out.
    Ttr,
    /// The client that had reserved it has left.
    Disconnected,
    /// A worker said that it failed.
    Failed,
    /// It was not reserved in time.
    Expired,
    /// A client buried it.
    Buried,
}

impl Reason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Reason; 6] = [
        Reason::Released,
        Reason::Ttr,
        Reason::Disconnected,
        Reason::Failed,
        Reason::Expired,
        Reason::Buried,
    ];

    /// Its name, in commands and dumps.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Reason::Released => "released",
            Reason::Ttr => "ttr",
            Reason::Disconnected => "disconnected",
            Reason::Failed => "failed",
            Reason::Expired => "expired",
            Reason::Buried => "buried",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(word: &str) -> Option<Reason> {
        Reason::ALL.into_iter().find(|it| it.word() == word)
    }
}

/// What a job has beyond a plain one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes<'a> {
    /// Its key.
    pub key: Option<&'a str>,
    /// How long the key is its own.
    pub unique: Option<Unique>,
    /// The group that it belongs to.
    pub group: Option<&'a str>,
    /// The tube that it was moved to; `None`: it is in that of its put.
    pub tube: Option<&'a str>,
    /// Reserves of the job before those deliveries that its tube's policy counts; `None`: 0.
    pub counted_from: Option<u32>,
    /// Deliveries that had failed when it was set aside.
    pub failures: Option<u32>,
    /// Why the last one failed.
    pub reason: Option<Reason>,
    /// What the worker said of it.
    pub text: Option<&'a [u8]>,
    /// The tube from which it came as a dead letter.
    pub dead_lettered_from: Option<&'a str>,
    /// When they began to be counted, and when it became a dead letter: wall time, nanoseconds since
    /// 1970. [`RESERVED_SINCE`]: it was reserved as a dead letter, so that it does not expire.
    pub counted_since_wall_ns: Option<u64>,
}

impl<'a> Attributes<'a> {
    /// When it became a dead letter: wall time, nanoseconds since 1970. `None`: it is not a dead letter,
    /// or the time is not known any more.
    #[must_use]
    pub fn dead_lettered_at_wall_ns(&self) -> Option<u64> {
        let since = self.dead_lettered_from.and(self.counted_since_wall_ns);
        since.filter(|at| *at != RESERVED_SINCE)
    }

    /// The attributes in a list; `None` if no list is like this.
    #[must_use]
    pub fn decode(list: &'a [u8]) -> Option<Attributes<'a>> {
        let mut found = Attributes::default();
        let (mut rest, mut last) = (list, 0);
        while let Some((tag, bytes, behind)) = first_entry(rest)? {
            if tag <= last {
                return None;
            }
            found.take(tag, bytes)?;
            (rest, last) = (behind, tag);
        }
        Some(found)
    }

    fn take(&mut self, tag: u8, bytes: &'a [u8]) -> Option<()> {
        match tag {
            KEY => self.key = Some(word(bytes)?),
            UNIQUE => self.unique = Some(*Unique::ALL.get(one(bytes)?)?),
            GROUP => self.group = Some(word(bytes)?),
            TUBE => self.tube = Some(tube(bytes)?),
            COUNTED_FROM => self.counted_from = Some(count(bytes)?),
            FAILURES => self.failures = Some(count(bytes)?),
            REASON => self.reason = Some(*Reason::ALL.get(one(bytes)?)?),
            TEXT if bytes.len() <= TEXT_SIZE_MAX => self.text = Some(bytes),
            DEAD_LETTERED_FROM => self.dead_lettered_from = Some(tube(bytes)?),
            COUNTED_SINCE => self.counted_since_wall_ns = Some(time(bytes)?),
            _ => return None,
        }
        Some(())
    }

    /// The list of these attributes; `None` if there can be none: a name or the text is not as
    /// [`TAGS`] says.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut list = Vec::new();
        let mut push = |tag: u8, bytes: Option<&[u8]>| {
            let Some(bytes) = bytes else { return };
            list.push(tag);
            list.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
            list.extend_from_slice(bytes);
        };
        let word = |word: Option<&'a str>| word.map(str::as_bytes);
        push(KEY, word(self.key));
        push(
            UNIQUE,
            self.unique.map(|it| [it as u8]).as_ref().map(|it| &it[..]),
        );
        push(GROUP, word(self.group));
        push(TUBE, word(self.tube));
        for (tag, count) in [(COUNTED_FROM, self.counted_from), (FAILURES, self.failures)] {
            push(tag, count.map(u32::to_le_bytes).as_ref().map(|it| &it[..]));
        }
        push(
            REASON,
            self.reason.map(|it| [it as u8]).as_ref().map(|it| &it[..]),
        );
        push(TEXT, self.text);
        push(DEAD_LETTERED_FROM, word(self.dead_lettered_from));
        let time = self.counted_since_wall_ns.map(u64::to_le_bytes);
        push(COUNTED_SINCE, time.as_ref().map(|it| &it[..]));
        let is_one = Attributes::decode(&list).is_some_and(|found| found == *self);
        is_one.then_some(list)
    }

    /// The same on the clock of another machine, which this one is ahead of by `ahead_ns`. A time of 0
    /// stays 0.
    #[must_use]
    pub(crate) fn with_clock_behind(mut self, ahead_ns: i64) -> Attributes<'a> {
        let moved = |time: u64| match time {
            0 => 0,
            time => time.saturating_add_signed(ahead_ns.saturating_neg()).max(1),
        };
        self.counted_since_wall_ns = self.counted_since_wall_ns.map(moved);
        self
    }
}

/// The tube in a sound list that its job was moved to.
#[must_use]
pub fn tube_of(list: &[u8]) -> Option<&str> {
    let mut rest = list;
    while let Some((tag, bytes, behind)) = first_entry(rest)? {
        if tag == TUBE {
            return tube(bytes);
        }
        rest = behind;
    }
    None
}

/// The key in a sound list, and how long it is its job's own.
#[must_use]
pub(crate) fn key_of(list: &[u8]) -> Option<(&[u8], Unique)> {
    let (KEY, key, rest) = first_entry(list)?? else {
        return None;
    };
    let unique = match first_entry(rest)? {
        Some((UNIQUE, bytes, _)) => *Unique::ALL.get(one(bytes)?)?,
        _ => Unique::Exists,
    };
    Some((key, unique))
}

/// The group in a sound list.
#[must_use]
pub fn group_of(list: &[u8]) -> Option<&[u8]> {
    let mut rest = list;
    while let Some((tag, bytes, behind)) = first_entry(rest)? {
        if tag >= GROUP {
            return (tag == GROUP).then_some(bytes);
        }
        rest = behind;
    }
    None
}

/// A sound list without the tube: of a job whose put names the tube that it is in.
#[must_use]
pub(crate) fn without_tube(list: &[u8]) -> Vec<u8> {
    let plain = |it| Attributes { tube: None, ..it };
    let list = Attributes::decode(list).map(plain);
    list.and_then(|it| it.encode()).unwrap_or_default()
}

/// An entry: its tag, its content, and what follows it.
type Entry<'a> = (u8, &'a [u8], &'a [u8]);

/// The entry that `list` begins with; `Some(None)` at its end, `None` if there is no whole one.
#[allow(clippy::option_option, reason = "a list ends, or cannot be read")]
fn first_entry(list: &[u8]) -> Option<Option<Entry<'_>>> {
    if list.is_empty() {
        return Some(None);
    }
    let (head, rest) = list.split_first_chunk::<ENTRY_SIZE_MIN>()?;
    let size = u16::from_le_bytes([head[1], head[2]]);
    let (bytes, rest) = rest.split_at_checked(size.into())?;
    Some(Some((head[0], bytes, rest)))
}

fn one(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [byte] => Some(usize::from(*byte)),
        _ => None,
    }
}

fn count(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn time(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn tube(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes)
        .ok()
        .filter(|_| is_tube_name(bytes))
}

fn word(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|_| is_word(bytes))
}

/// True for a key or a group: 1 to 200 of the characters of tube names.
#[must_use]
pub fn is_word(bytes: &[u8]) -> bool {
    (1..=TUBE_NAME_MAX).contains(&bytes.len()) && bytes.iter().all(|it| is_tube_name_byte(*it))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All of them, each with a value of its own.
    const ALL: Attributes<'static> = Attributes {
        key: Some("-key"),
        unique: Some(Unique::Waiting),
        group: Some("group"),
        tube: Some("dead"),
        counted_from: Some(2),
        failures: Some(3),
        reason: Some(Reason::Failed),
        text: Some(b"\xff no such host"),
        dead_lettered_from: Some("mail"),
        counted_since_wall_ns: Some(5),
    };

    #[test]
    fn attributes_are_decoded_as_they_were_encoded() {
        for found in [ALL, Attributes::default()] {
            let list = found.encode().unwrap();
            assert_eq!(Attributes::decode(&list), Some(found));
            assert_eq!(tube_of(&list), found.tube);
            let key = found.key.map(|key| (key.as_bytes(), Unique::Waiting));
            assert_eq!(key_of(&list), key);
            let plain = Attributes {
                tube: None,
                ..found
            };
            assert_eq!(without_tube(&list), plain.encode().unwrap());
        }
        assert_eq!(Attributes::default().encode(), Some(Vec::new()));
    }

    #[test]
    fn a_list_cut_short_is_none_unless_an_entry_ends_there() {
        let list = ALL.encode().unwrap();
        let mut whole = 0;
        for size in 0..list.len() {
            if let Some(found) = Attributes::decode(&list[..size]) {
                assert_eq!(found.encode().unwrap(), list[..size]);
                whole += 1;
            }
        }
        assert_eq!(whole, TAGS.len());
    }

    #[test]
    fn the_largest_list_is_as_large_as_is_said() {
        let name = "x".repeat(TUBE_NAME_MAX);
        let text = vec![0; TEXT_SIZE_MAX];
        let largest = Attributes {
            key: Some(&name),
            group: Some(&name),
            tube: Some(&name),
            dead_lettered_from: Some(&name),
            text: Some(&text),
            ..ALL
        };
        assert_eq!(largest.encode().unwrap().len(), LIST_SIZE_MAX);
        let text = vec![0; TEXT_SIZE_MAX + 1];
        let larger = Attributes {
            text: Some(&text),
            ..largest
        };
        assert_eq!(larger.encode(), None);
    }

    #[test]
    fn names_that_no_tube_or_key_has_are_refused() {
        let with = |key, tube| Attributes {
            key,
            tube,
            ..Attributes::default()
        };
        assert!(with(Some("-5"), None).encode().is_some());
        for key in ["", "a b", "ä"] {
            assert_eq!(with(Some(key), None).encode(), None, "{key:?}");
        }
        for tube in ["", "-a", "a*"] {
            assert_eq!(with(None, Some(tube)).encode(), None, "{tube:?}");
        }
    }

    #[test]
    fn unknown_tags_and_values_and_any_other_order_are_none() {
        for list in [
            &[11, 0, 0][..],
            &[0, 0, 0],
            &[UNIQUE, 1, 0, 2],
            &[UNIQUE, 2, 0, 1, 1],
            &[REASON, 1, 0, 6],
            &[FAILURES, 3, 0, 1, 1, 1],
            &[COUNTED_FROM, 1, 0, 1],
            &[COUNTED_SINCE, 4, 0, 1, 1, 1, 1],
            &[TEXT, 0, 0, TEXT, 0, 0],
            &[TEXT, 0, 0, UNIQUE, 1, 0, 1],
            &[TEXT, 255, 255],
            &[TEXT],
        ] {
            assert_eq!(Attributes::decode(list), None, "{list:?}");
        }
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for unique in Unique::ALL {
            assert_eq!(Unique::parse(unique.word()), Some(unique));
        }
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.word()), Some(reason));
        }
        assert_eq!((Unique::parse(""), Reason::parse("TTR")), (None, None));
    }

    #[test]
    fn times_of_another_clock_are_moved_and_none_becomes_none() {
        let moved = ALL.with_clock_behind(7);
        assert_eq!(moved.counted_since_wall_ns, Some(1));
        assert_eq!(moved.key, ALL.key);
        let later = Attributes {
            counted_since_wall_ns: Some(u64::MAX),
            ..ALL
        };
        let moved = later.with_clock_behind(7);
        assert_eq!(moved.counted_since_wall_ns, Some(u64::MAX - 7));
    }
}
