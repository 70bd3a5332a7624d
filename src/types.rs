//! The types that every layer shares: ids, times, positions, job states.
//!
//! They have no behaviour beyond conversion and order, and know no layer above.

use std::fmt;
use std::time::Duration;

/// The id of a job: 1, 2, 3 … in the order of the `put` commands, never issued twice in the life of
/// a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One connection of the server, or one session of an embedding program. Handles are reused after
/// `disconnect`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// Whether a character is not seen, or changes how others are: what turns their direction round, what
/// has no width, and what separates lines. A name with one can look like another name.
#[must_use]
pub fn is_invisible(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// A name from elsewhere as it may be shown: what no name needs is replaced.
#[must_use]
pub fn shown_name(name: &str) -> String {
    let shown = |letter: char| match letter.is_control() || is_invisible(letter) {
        true => '\u{fffd}',
        false => letter,
    };
    name.chars().map(shown).collect()
}

/// Nanoseconds in a second.
pub const SECOND_NS: i64 = 1_000_000_000;

/// A point on the process's monotonic clock, in nanoseconds. The origin is arbitrary; a job that
/// was put before this process started may have a negative creation time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub i64);

impl Time {
    /// The point `seconds` later; saturates.
    #[must_use]
    pub fn plus_seconds(self, seconds: u32) -> Time {
        Time(self.0.saturating_add(i64::from(seconds) * SECOND_NS))
    }

    /// The point `time` later; saturates.
    #[must_use]
    pub(crate) fn plus(self, time: Duration) -> Time {
        let ns = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        Time(self.0.saturating_add(ns))
    }

    /// Nanoseconds from `earlier` to `self`; negative if `self` is earlier.
    #[must_use]
    pub fn since(self, earlier: Time) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The current time: the monotonic time, which everything inside the process uses, and the wall
/// time (nanoseconds since the Unix epoch), which is only written into records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock.
    pub mono: Time,
    /// Nanoseconds since 1970-01-01 UTC.
    pub wall_ns: u64,
}

impl Now {
    /// Both clocks: a point on the monotonic one, and nanoseconds since 1970-01-01 UTC.
    #[must_use]
    pub const fn new(mono: Time, wall_ns: u64) -> Now {
        Now { mono, wall_ns }
    }

    /// The wall time of a point on the monotonic clock, according to the current offset between the
    /// clocks.
    #[must_use]
    pub fn to_wall(self, at: Time) -> u64 {
        let offset = at.since(self.mono);
        self.wall_ns.saturating_add_signed(offset)
    }

    /// The monotonic time of a wall time, according to the current offset between the clocks.
    #[must_use]
    pub(crate) fn to_mono(self, wall_ns: u64) -> Time {
        let offset = wall_ns as i128 - self.wall_ns as i128;
        let offset = offset.clamp(i64::MIN as i128, i64::MAX as i128) as i64;
        Time(self.mono.0.saturating_add(offset))
    }
}

/// The number of a segment of the log: 1, 2, 3 … in the order in which they were created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SegmentId(pub u32);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A position in the history that the log records: a segment and a byte offset in it. Positions
/// grow with every append; "durable up to P" means that every byte before P is on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(u64);

impl Position {
    /// Before every record.
    pub const ZERO: Position = Position(0);

    /// The position of byte `offset` of `segment`.
    #[must_use]
    pub fn new(segment: SegmentId, offset: u32) -> Position {
        Position(u64::from(segment.0) << 32 | u64::from(offset))
    }

    /// The segment of this position.
    #[must_use]
    pub fn segment(self) -> SegmentId {
        SegmentId((self.0 >> 32) as u32)
    }

    /// The byte offset in that segment.
    #[must_use]
    pub fn offset(self) -> u32 {
        self.0 as u32
    }

    /// The form in which positions are stored: the segment in the upper half.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Position::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Position {
        Position(bits)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment(), self.offset())
    }
}

/// What a reply waits for: it may leave once its ticket, or a later one, is acknowledged. Opaque, and
/// ordered. It stands for a position of the log, or for a turn of a member of a cluster; an engine
/// compares only those of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ticket(u64);

impl Ticket {
    /// Of a reply that waits for nothing.
    pub const NONE: Ticket = Ticket(0);
    /// After every other one.
    pub const LAST: Ticket = Ticket(u64::MAX);

    /// Acknowledged when the log has come to `position`.
    #[must_use]
    pub fn at(position: Position) -> Ticket {
        Ticket(position.0)
    }

    /// Acknowledged when all that was decided up to the end of this turn is committed.
    #[must_use]
    pub fn turn(number: u64) -> Ticket {
        Ticket(number)
    }
}

/// Where a record lies now: a handle of an open log file, and the record's byte offset in it. The
/// queue keeps one for each job without looking inside; compaction moves records and so changes
/// places, never positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Place {
    /// The log's handle of the file; 0 is never used.
    pub file: u32,
    /// The offset of the record in that file, in bytes.
    pub offset: u32,
}

impl Place {
    /// No place: the record does not exist.
    pub const NONE: Place = Place { file: 0, offset: 0 };

    /// True for [`Place::NONE`].
    #[must_use]
    pub fn is_none(self) -> bool {
        self.file == 0
    }
}

/// The state of a job as clients see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Waiting for a worker.
    Ready,
    /// Held by a worker. Not a durable state: after a restart the job is ready.
    Reserved,
    /// Waiting for a point in time.
    Delayed,
    /// Set aside until a client kicks it.
    Buried,
}

impl JobState {
    /// The word that `stats-job` uses.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            JobState::Ready => "ready",
            JobState::Reserved => "reserved",
            JobState::Delayed => "delayed",
            JobState::Buried => "buried",
        }
    }
}

/// Priorities below this are urgent (`protocol.txt`, "current-jobs-urgent").
pub const URGENT_BELOW: u32 = 1024;

/// How many jobs are in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobCounts {
    /// Ready jobs with a priority below [`URGENT_BELOW`]; they count as ready, too.
    pub urgent: u64,
    /// Ready jobs.
    pub ready: u64,
    /// Reserved jobs, including those of disconnected clients until they are ready again.
    pub reserved: u64,
    /// Delayed jobs.
    pub delayed: u64,
    /// Buried jobs.
    pub buried: u64,
}

impl JobCounts {
    /// Jobs in any state.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ready + self.reserved + self.delayed + self.buried
    }

    pub(crate) fn enter(&mut self, state: JobState, pri: u32) {
        *self.of(state) += 1;
        self.urgent += u64::from(is_urgent(state, pri));
    }

    pub(crate) fn leave(&mut self, state: JobState, pri: u32) {
        let count = self.of(state);
        assert!(*count > 0, "a job leaves a state that no job is in");
        *count -= 1;
        self.urgent -= u64::from(is_urgent(state, pri));
    }

    fn of(&mut self, state: JobState) -> &mut u64 {
        match state {
            JobState::Ready => &mut self.ready,
            JobState::Reserved => &mut self.reserved,
            JobState::Delayed => &mut self.delayed,
            JobState::Buried => &mut self.buried,
        }
    }
}

fn is_urgent(state: JobState, pri: u32) -> bool {
    state == JobState::Ready && pri < URGENT_BELOW
}

/// How often each event has happened to a job; the counters survive a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Counters {
    /// Times reserved.
    pub reserves: u32,
    /// Reservations that ran out of time.
    pub timeouts: u32,
    /// Times released by a client.
    pub releases: u32,
    /// Times buried.
    pub buries: u32,
    /// Times kicked.
    pub kicks: u32,
}

impl Counters {
    /// The counts in the order of the fields, which is that of `stats-job`.
    #[must_use]
    pub const fn new([reserves, timeouts, releases, buries, kicks]: [u32; 5]) -> Counters {
        Counters {
            reserves,
            timeouts,
            releases,
            buries,
            kicks,
        }
    }
}

/// The longest tube name, in bytes.
pub const TUBE_NAME_MAX: usize = 200;

/// True for a name that the protocol allows: 1 to 200 of the letters, digits and `-+/;.$_()`, not
/// beginning with `-` (`protocol.txt`, "Names").
#[must_use]
pub fn is_tube_name(name: &[u8]) -> bool {
    (1..=TUBE_NAME_MAX).contains(&name.len())
        && name[0] != b'-'
        && name.iter().all(|byte| is_tube_name_byte(*byte))
}

/// True for a byte that may occur in a tube name.
#[must_use]
pub(crate) fn is_tube_name_byte(byte: u8) -> bool {
    IN_TUBE_NAMES[usize::from(byte)]
}

/// A start looks at every byte of the name in each put record: a table is fastest.
const IN_TUBE_NAMES: [bool; 256] = {
    let mut table = [false; 256];
    let others = b"-+/;.$_()";
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    let mut byte = 0;
    while byte < table.len() {
        table[byte] |= (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    table
};

/// The longest name of a setting, in bytes.
pub(crate) const SETTING_NAME_MAX: usize = 200;
/// The largest value of a setting, in bytes.
pub(crate) const SETTING_SIZE_MAX: usize = 64 << 10;

/// True for a name that a setting can have: 1 to 200 bytes of text.
#[must_use]
pub(crate) fn is_setting_name(name: &str) -> bool {
    (1..=SETTING_NAME_MAX).contains(&name.len())
}

/// What a named setting of the log is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SettingClass {
    /// The policy of a tube, or of the tubes whose names fit a pattern.
    Policy = 1,
    /// A schedule.
    Schedule = 2,
    /// How far a schedule has come.
    Fired = 3,
    /// A part of a clear of a tube that is not over.
    Clear = 4,
}

impl SettingClass {
    /// All of them.
    pub const ALL: [SettingClass; 4] = [
        SettingClass::Policy,
        SettingClass::Schedule,
        SettingClass::Fired,
        SettingClass::Clear,
    ];

    /// Its name, in dumps.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            SettingClass::Policy => "policy",
            SettingClass::Schedule => "schedule",
            SettingClass::Fired => "fired",
            SettingClass::Clear => "clear",
        }
    }

    /// The one with this name.
    #[must_use]
    pub fn parse(word: &str) -> Option<SettingClass> {
        SettingClass::ALL.into_iter().find(|it| it.word() == word)
    }

    /// The one with this number, as the log has it.
    #[must_use]
    pub(crate) fn from_byte(byte: u8) -> Option<SettingClass> {
        SettingClass::ALL.into_iter().find(|it| *it as u8 == byte)
    }
}

/// A change of durable state: decided, logged, applied, and replayed. All times are on the
/// monotonic clock; the log converts them to wall time and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// A new job, ready, or delayed until `created + delay` when `delay` is not 0.
    Put {
        /// Its id.
        id: JobId,
        /// The tube that it stays in.
        tube: &'a str,
        /// Smaller is more urgent.
        pri: u32,
        /// Seconds.
        delay: u32,
        /// Seconds, at least 1.
        ttr: u32,
        /// When it was put.
        created: Time,
        /// Bytes.
        body_size: u32,
    },
    /// The whole mutable state of a job, from now on.
    Update {
        /// The job.
        id: JobId,
        /// `Ready`, `Delayed` or `Buried`; never `Reserved`.
        state: JobState,
        /// The new priority.
        pri: u32,
        /// The last delay requested, in seconds.
        delay: u32,
        /// When a delayed job becomes due; ignored in other states.
        deadline: Time,
        /// The counters.
        counters: Counters,
    },
    /// The job is removed permanently.
    Delete {
        /// The job.
        id: JobId,
    },
    /// What a job has beyond a plain job, from now on.
    Attributes {
        /// The job.
        id: JobId,
        /// A list of [attributes](crate::attributes).
        list: &'a [u8],
    },
    /// A named setting has this value from now on.
    Setting {
        /// What it is about.
        class: SettingClass,
        /// Its name.
        name: &'a str,
        /// Its value; an empty one removes it.
        value: &'a [u8],
    },
    /// No job of the tube is handed out before `until`. A `duration` of 0 cancels a pause.
    Pause {
        /// The tube.
        tube: &'a str,
        /// Seconds, as `stats-tube` shows them.
        duration: u32,
        /// The end of the pause.
        until: Time,
    },
}
