//! The requests of clients, and the replies to them.

use std::borrow::Cow;
use std::time::Duration;

use super::Report;
use crate::attributes::Unique;
use crate::clearing::ClearedStates;
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::schedule::Schedule;
use crate::types::{JobId, JobState};

/// The commands that `stats` counts, in no particular order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // each is the command of that name
pub enum Op {
    Put,
    Peek,
    PeekReady,
    PeekDelayed,
    PeekBuried,
    Reserve,
    ReserveWithTimeout,
    ReserveJob,
    Delete,
    Release,
    Use,
    Watch,
    Ignore,
    Bury,
    Kick,
    KickJob,
    Touch,
    Stats,
    StatsJob,
    StatsTube,
    ListTubes,
    ListTubeUsed,
    ListTubesWatched,
    PauseTube,
    Capabilities,
    PutWith,
    DeleteBatch,
    TouchBatch,
    ReleaseBatch,
    ListJobs,
    ReserveBatch,
    Abort,
    Fail,
    BuryWithReason,
    MoveJob,
    ClearTube,
    StatsJobExtended,
    SetPolicy,
    StatsPolicy,
    ScheduleSet,
    ScheduleDelete,
    StatsSchedule,
    Quit,
}

impl Op {
    /// The number of operations: the length of an array indexed by `op as usize`.
    pub const COUNT: usize = Op::Quit as usize + 1;
}

/// The commands that clients may be given to use, and who speaks to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// beanstalkd's commands and `auth`. Every other line is answered as by beanstalkd.
    Beanstalkd,
    /// The extended commands, too.
    #[default]
    Extended,
}

/// The extended commands that a client may use. A client asks for them before it sends one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u32);

impl Capabilities {
    /// The extended commands and their words, in the order of the document.
    pub const COMMANDS: [(&'static str, Op); 18] = [
        ("abort", Op::Abort),
        ("bury-with-reason", Op::BuryWithReason),
        ("capabilities", Op::Capabilities),
        ("clear-tube", Op::ClearTube),
        ("delete-batch", Op::DeleteBatch),
        ("fail", Op::Fail),
        ("list-jobs", Op::ListJobs),
        ("move-job", Op::MoveJob),
        ("put-with", Op::PutWith),
        ("release-batch", Op::ReleaseBatch),
        ("reserve-batch", Op::ReserveBatch),
        ("schedule-delete", Op::ScheduleDelete),
        ("schedule-set", Op::ScheduleSet),
        ("set-policy", Op::SetPolicy),
        ("stats-job-extended", Op::StatsJobExtended),
        ("stats-policy", Op::StatsPolicy),
        ("stats-schedule", Op::StatsSchedule),
        ("touch-batch", Op::TouchBatch),
    ];

    /// All of them.
    pub const ALL: Capabilities = Capabilities((1 << Capabilities::COMMANDS.len()) - 1);

    /// Leaves out those that are not allowed.
    pub fn retain(&mut self, is_allowed: impl Fn(Op) -> bool) {
        for (at, (_, op)) in Capabilities::COMMANDS.into_iter().enumerate() {
            if !is_allowed(op) {
                self.0 &= !(1 << at);
            }
        }
    }

    /// Their words, in order.
    pub fn words(self) -> impl Iterator<Item = &'static str> {
        let all = Capabilities::COMMANDS.into_iter().enumerate();
        all.filter(move |(at, _)| self.0 >> at & 1 == 1)
            .map(|(_, (word, _))| word)
    }
}

/// A command, from whichever door it comes. One of the protocol borrows names and body from the bytes
/// that have arrived; one of another thread owns them. A `ttr` of 0 has become 1.
///
/// Where a tube may be missing, it is the one that the client uses. A command of the protocol names
/// none there; one of another thread does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// `put`, its body complete and its trailer checked.
    Put {
        /// The tube that it is put into.
        tube: Option<Cow<'a, str>>,
        /// Smaller is more urgent.
        pri: u32,
        /// Seconds.
        delay: u32,
        /// Seconds, at least 1.
        ttr: u32,
        /// The job's body, without the trailing CR LF.
        body: Cow<'a, [u8]>,
    },
    /// `peek`
    Peek(JobId),
    /// `peek-ready`
    PeekReady(Option<Cow<'a, str>>),
    /// `peek-delayed`
    PeekDelayed(Option<Cow<'a, str>>),
    /// `peek-buried`
    PeekBuried(Option<Cow<'a, str>>),
    /// `reserve` (no timeout: wait forever) and `reserve-with-timeout`
    Reserve {
        /// `None` waits forever.
        timeout: Option<Duration>,
        /// Which of the two commands it was, for the counters.
        op: Op,
    },
    /// `reserve-job`
    ReserveJob(JobId),
    /// `delete`
    Delete(JobId),
    /// `release`
    Release {
        /// The job.
        id: JobId,
        /// Its new priority.
        pri: u32,
        /// Seconds.
        delay: u32,
    },
    /// `bury`
    Bury {
        /// The job.
        id: JobId,
        /// Its new priority.
        pri: u32,
    },
    /// `touch`
    Touch(JobId),
    /// `kick`
    Kick {
        /// The tube.
        tube: Option<Cow<'a, str>>,
        /// The largest number of jobs to kick.
        bound: u32,
    },
    /// `kick-job`
    KickJob(JobId),
    /// `use`
    Use(Cow<'a, str>),
    /// `watch`
    Watch(Cow<'a, str>),
    /// `ignore`
    Ignore(Cow<'a, str>),
    /// `stats`
    Stats,
    /// `stats-job`
    StatsJob(JobId),
    /// `stats-tube`
    StatsTube(Cow<'a, str>),
    /// `list-tubes`
    ListTubes,
    /// `list-tube-used`
    ListTubeUsed,
    /// `list-tubes-watched`
    ListTubesWatched,
    /// `pause-tube`
    PauseTube {
        /// The tube.
        tube: Cow<'a, str>,
        /// Seconds.
        delay: u32,
    },
    /// `abort`, when no reserve waits
    Abort,
    /// `capabilities`, with those that the client may use: all, until its token was looked at.
    Capabilities(Capabilities),
    /// `put-with`, its body complete and its trailer checked. Boxed, because it is rare.
    PutWith(Box<PutWith<'a>>),
    /// `reserve-batch`
    ReserveBatch {
        /// Jobs at most, 1 to [`BATCH_MAX`].
        most: u16,
        /// `None` waits forever.
        timeout: Option<Duration>,
    },
    /// `fail`
    Fail {
        /// The job.
        id: JobId,
        /// What went wrong: at most [`TEXT_SIZE_MAX`](crate::attributes::TEXT_SIZE_MAX) bytes, which need not be text.
        text: Cow<'a, [u8]>,
    },
    /// `bury-with-reason`
    BuryWithReason {
        /// The job.
        id: JobId,
        /// Its new priority.
        pri: u32,
        /// Why: at most [`TEXT_SIZE_MAX`](crate::attributes::TEXT_SIZE_MAX) bytes, which need not be text.
        text: Cow<'a, [u8]>,
    },
    /// `move-job`
    MoveJob {
        /// The job.
        id: JobId,
        /// The tube that it is in from then on.
        tube: Cow<'a, str>,
    },
    /// `clear-tube`
    ClearTube {
        /// The tube.
        tube: Cow<'a, str>,
        /// Which of its jobs are deleted.
        states: ClearedStates,
    },
    /// `stats-job-extended`
    StatsJobExtended(JobId),
    /// `set-policy`. Boxed, because it is rare.
    SetPolicy(Box<SetPolicy>),
    /// `stats-policy`
    StatsPolicy(Cow<'a, str>),
    /// `schedule-set`, its body complete and its trailer checked. Boxed, because it is rare.
    ScheduleSet(Box<SetSchedule>),
    /// `schedule-delete`, with the name of a schedule
    ScheduleDelete(Cow<'a, str>),
    /// `stats-schedule`, with the name of a schedule
    StatsSchedule(Cow<'a, str>),
    /// `list-jobs`. Boxed, because it is rare.
    ListJobs(Box<ListJobs<'a>>),
    /// `delete-batch`, `touch-batch` and `release-batch`
    Batch {
        /// What is done to each of the jobs.
        on_each: OnEach,
        /// The jobs, [`BATCH_MAX`] at most.
        ids: Vec<JobId>,
    },
}

/// A policy, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetPolicy {
    /// The tube, or a pattern of tubes.
    pub tubes: Pattern,
    /// The policy; one that says nothing removes that of these tubes.
    pub policy: Policy,
}

/// A schedule, and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSchedule {
    /// Its name.
    pub name: String,
    /// The schedule. Whether it can be one, its expression, its time zone and its size, is not checked.
    pub schedule: Schedule,
    /// Where there is one of this name that is paused, this one is, too.
    pub keeps_pause: bool,
}

/// A question for a page of the jobs of a tube.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListJobs<'a> {
    /// The tube.
    pub tube: Cow<'a, str>,
    /// The state that the jobs are in.
    pub state: JobState,
    /// Where the page before ended; `None`: it is the first one.
    pub after: Option<Cursor>,
    /// Jobs of the page at most: 1 to [`PAGE_MAX`].
    pub limit: u16,
}

/// Jobs of a page at most.
pub const PAGE_MAX: u16 = 1000;

/// Where a page of jobs ended. It means something to the server that gave it, until that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The last job that was looked at.
    pub id: JobId,
    /// Where it stands in the order of its state.
    pub key: i64,
    /// Of a reserved job the number of its client, else 0.
    pub client: u32,
}

/// A page of the jobs of a tube that are in one state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobPage {
    /// The jobs, and the bytes of their bodies.
    pub jobs: Vec<(JobId, u32)>,
    /// Where the next page begins; `None`: there are no more jobs.
    pub next: Option<Cursor>,
}

/// Jobs of one batch at most.
pub const BATCH_MAX: usize = 1000;

/// What a batch does to each of its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnEach {
    /// As `delete`.
    Delete,
    /// As `touch`.
    Touch,
    /// As `release`.
    Release {
        /// The new priority.
        pri: u32,
        /// Seconds.
        delay: u32,
    },
}

impl OnEach {
    /// The command that does it to many, for its counter.
    #[must_use]
    pub fn op(self) -> Op {
        match self {
            OnEach::Delete => Op::DeleteBatch,
            OnEach::Touch => Op::TouchBatch,
            OnEach::Release { .. } => Op::ReleaseBatch,
        }
    }
}

/// A job to be put, and where and when it is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutWith<'a> {
    /// The tube that it is put into.
    pub tube: Option<Cow<'a, str>>,
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds; 0 if `at` is given.
    pub delay: u32,
    /// Seconds, at least 1.
    pub ttr: u32,
    /// When it is ready, Unix time in seconds, in place of a delay. A time that is past is now.
    pub at: Option<u32>,
    /// Its key, of which its tube has one job at most.
    pub key: Option<JobKey<'a>>,
    /// The group that it belongs to.
    pub group: Option<Cow<'a, str>>,
    /// The job's body, without the trailing CR LF.
    pub body: Cow<'a, [u8]>,
}

/// The key of a job to be put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobKey<'a> {
    /// 1 to 200 of the characters of tube names.
    pub name: Cow<'a, str>,
    /// How long no other job may have it.
    pub unique: Unique,
    /// What is done if another job has it.
    pub conflict: Conflict,
}

/// What a put does if its key is that of another job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Conflict {
    /// The other job stays, and nothing is put.
    #[default]
    Keep,
    /// The other job is deleted with the put, unless it is reserved.
    Replace,
}

impl Conflict {
    /// The one with this name in the protocol.
    #[must_use]
    pub fn parse(word: &str) -> Option<Conflict> {
        match word {
            "keep" => Some(Conflict::Keep),
            "replace" => Some(Conflict::Replace),
            _ => None,
        }
    }
}

/// There are as many of them as requests under way in a batch, and each is moved several times.
const _: () = assert!(size_of::<Command<'_>>() <= 64);

impl<'a> Command<'a> {
    /// A `put` into the client's tube, with its numbers in the order of the protocol: the priority, the
    /// delay and the time to run in seconds.
    #[must_use]
    pub fn put(pri: u32, delay: u32, ttr: u32, body: impl Into<Cow<'a, [u8]>>) -> Command<'a> {
        Command::Put {
            tube: None,
            pri,
            delay,
            ttr,
            body: body.into(),
        }
    }

    /// `pause-tube`, for this many seconds.
    #[must_use]
    pub fn pause_tube(tube: impl Into<Cow<'a, str>>, delay: u32) -> Command<'a> {
        let tube = tube.into();
        Command::PauseTube { tube, delay }
    }

    /// `reserve`, or with a timeout `reserve-with-timeout`.
    #[must_use]
    pub fn reserve(timeout: Option<Duration>) -> Command<'a> {
        let op = match timeout {
            None => Op::Reserve,
            Some(_) => Op::ReserveWithTimeout,
        };
        Command::Reserve { timeout, op }
    }

    /// The tube that it names.
    #[must_use]
    pub fn tube(&self) -> Option<&str> {
        match self {
            Command::Put { tube, .. }
            | Command::PeekReady(tube)
            | Command::PeekDelayed(tube)
            | Command::PeekBuried(tube)
            | Command::Kick { tube, .. } => tube.as_deref(),
            Command::PutWith(put) => put.tube.as_deref(),
            Command::MoveJob { tube, .. } | Command::StatsPolicy(tube) => Some(tube),
            Command::ListJobs(list) => Some(&list.tube),
            Command::ScheduleSet(set) => Some(&set.schedule.tube),
            Command::Use(tube)
            | Command::Watch(tube)
            | Command::Ignore(tube)
            | Command::StatsTube(tube)
            | Command::ClearTube { tube, .. }
            | Command::PauseTube { tube, .. } => Some(tube),
            _ => None,
        }
    }

    /// Its reply may come in a later turn: it waits for a job, or takes several turns.
    #[must_use]
    pub fn may_wait(&self) -> bool {
        use Command::{Kick, Reserve, ReserveBatch};
        matches!(self, Reserve { .. } | ReserveBatch { .. } | Kick { .. })
    }
}

/// Why a request was refused before it became a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// `BAD_FORMAT`
    BadFormat,
    /// `UNKNOWN_COMMAND`
    UnknownCommand,
    /// `JOB_TOO_BIG`, after the body has been skipped.
    JobTooBig,
    /// `EXPECTED_CRLF`
    ExpectedCrlf,
    /// `OUT_OF_MEMORY`, after the body has been skipped: there was no room to receive it.
    OutOfMemory,
    /// `UNKNOWN_COMMAND`: it is a line of HTTP, and what follows is not for a queue either.
    Http,
}

/// One request of a client, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request<'a> {
    /// A command to run.
    Command(Command<'a>),
    /// `auth`, and the token. beanstalkd does not know it, and nor does the engine; a server may ask
    /// for one.
    Auth(&'a [u8]),
    /// `quit`
    Quit,
    /// Bytes that are no command; the connection continues.
    Refused {
        /// The reply.
        refusal: Refusal,
        /// The operation whose counter is incremented anyway, as in beanstalkd.
        counted: Option<Op>,
    },
}

impl Request<'_> {
    /// A refused request; `counted` is the operation that counts anyway.
    pub(super) const fn refused(refusal: Refusal, counted: Option<Op>) -> Request<'static> {
        Request::Refused { refusal, counted }
    }
}

/// Why a body is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown<'a> {
    /// The client has reserved the job: `RESERVED`.
    Reserved,
    /// The client has reserved it as the only one of a batch: `RESERVED_BATCH`. This is its tube.
    Batch(&'a str),
    /// The client looks at it: `FOUND`.
    Found,
}

/// A job of a batch that the client has reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchJob<'a> {
    /// Its id.
    pub id: JobId,
    /// The tube that it is in.
    pub tube: &'a str,
    /// Its body.
    pub body: &'a [u8],
}

/// What a batch has done to those of its jobs that were there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // each is what its name says
pub enum Batched {
    Deleted,
    Touched,
    Released,
}

/// Every reply of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// `INSERTED <id>`
    Inserted(JobId),
    /// `EXISTS <id>`: the job that has the key of the put, of which nothing is done
    Exists(JobId),
    /// `USING <tube>`
    Using(&'a str),
    /// `RESERVED <id> <bytes>` and the body
    Reserved(JobId, &'a [u8]),
    /// `RESERVED_BATCH <count>`, and for each job `JOB <id> <tube> <bytes>` and the body
    ReservedBatch(&'a [BatchJob<'a>]),
    /// `FOUND <id> <bytes>` and the body
    Found(JobId, &'a [u8]),
    /// `OK <bytes>` and a YAML document (which includes its last newline)
    Yaml(&'a [u8]),
    /// `OK <bytes>` and a YAML document: the answer to `stats` and its kin
    Report(&'a Report),
    /// `OK <bytes>` and a YAML document: the answer to `list-jobs`
    Jobs(&'a JobPage),
    /// `WATCHING <count>`
    Watching(usize),
    /// `KICKED <count>`, the answer to `kick`
    KickedCount(u64),
    /// `KICKED`, the answer to `kick-job`
    Kicked,
    /// `DELETED`
    Deleted,
    /// `RELEASED`
    Released,
    /// `BURIED`
    Buried,
    /// `TOUCHED`
    Touched,
    /// `PAUSED`
    Paused,
    /// `ABORTED`
    Aborted,
    /// `DEAD_LETTERED <tube>`
    DeadLettered(&'a str),
    /// `MOVED`
    Moved,
    /// `CLEARED <count>`
    Cleared(u64),
    /// `POLICY_SET`
    PolicySet,
    /// `SCHEDULE_SET`
    ScheduleSet,
    /// `NOT_FOUND`
    NotFound,
    /// `DELETED_BATCH <count> <bytes>` and its kin, and a YAML list of the jobs that were not found
    Batched(Batched, u64, &'a [JobId]),
    /// `NOT_IGNORED`
    NotIgnored,
    /// `DEADLINE_SOON`
    DeadlineSoon,
    /// `TIMED_OUT`
    TimedOut,
    /// `DRAINING`
    Draining,
    /// `OUT_OF_MEMORY`
    OutOfMemory,
    /// `INTERNAL_ERROR`
    InternalError,
    /// `AUTHENTICATED`, the answer to `auth`
    Authenticated,
    /// `NOT_AUTHORIZED`: no token was shown, a wrong one, or one that does not allow this.
    NotAuthorized,
    /// The answer to a request that was refused.
    Refused(Refusal),
}
