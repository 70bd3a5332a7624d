//! Answers to commands, and what must hold of a command before it is run.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::attributes::{TEXT_SIZE_MAX, Unique, is_word};
use crate::protocol::{
    BATCH_MAX, BatchJob, Command, Conflict, JobKey, JobPage, PutWith, Reply, Report, Stats,
};
use crate::queue::{Delivery, TubeList};
use crate::storage::StoreError;
use crate::types::{JobId, is_tube_name};

/// The options of a put. Times are kept in whole seconds: a fraction is rounded up. More than
/// 4,294,967,295 s are refused with [`JobError::TooLong`].
///
/// ```
/// use std::time::Duration;
/// use bsd::PutOptions;
///
/// let later = PutOptions {
///     delay: Duration::from_secs(60),
///     ..PutOptions::default()
/// };
/// # assert_eq!(later.pri, 65_536);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutOptions {
    /// Jobs with a smaller priority are reserved first; below 1024 is urgent.
    pub pri: u32,
    /// Time before the job is ready.
    pub delay: Duration,
    /// Time that a worker may take before the job becomes ready again. Less than a second counts as
    /// one.
    pub ttr: Duration,
}

impl Default for PutOptions {
    /// Priority 65,536, no delay, 120 seconds to run.
    fn default() -> PutOptions {
        PutOptions {
            pri: 65_536,
            delay: Duration::ZERO,
            ttr: Duration::from_secs(120),
        }
    }
}

/// What a job has beyond a plain one.
///
/// ```
/// use bsd::{Conflict, PutAttributes, Unique};
///
/// let latest = PutAttributes {
///     key: Some("user-17".into()),
///     unique: Unique::Waiting,
///     conflict: Conflict::Replace,
///     ..PutAttributes::default()
/// };
/// # assert_eq!(latest.group, None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutAttributes {
    /// Its key: 1 to 200 of the letters, digits and `-+/;.$_()`. No put makes a second job with this
    /// key in its tube, as long as [`PutAttributes::unique`] says.
    pub key: Option<String>,
    /// Until when the key is the job's own. Nothing without a key.
    pub unique: Unique,
    /// What is done if another job has the key. Nothing without a key.
    pub conflict: Conflict,
    /// The group that it belongs to, of the same characters: groups take turns where a policy says
    /// `fair`.
    pub group: Option<String>,
    /// When it is ready, in place of [`PutOptions::delay`], which has no effect then. It is rounded up to
    /// a second. A time that is past is now; one after 7 February 2106 is refused with
    /// [`JobError::TooLong`].
    pub at: Option<SystemTime>,
}

impl Default for PutAttributes {
    /// None: that of a plain job. A key that is set is the job's own until it is deleted, and a put of
    /// a second job with it does nothing.
    fn default() -> PutAttributes {
        PutAttributes {
            key: None,
            unique: Unique::Exists,
            conflict: Conflict::Keep,
            group: None,
            at: None,
        }
    }
}

/// The result of a put with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// The job was put.
    New(JobId),
    /// Nothing was done: this job has the key.
    Exists(JobId),
}

impl Inserted {
    /// The job that has the key now, whichever put it.
    #[must_use]
    pub fn id(self) -> JobId {
        match self {
            Inserted::New(id) | Inserted::Exists(id) => id,
        }
    }
}

/// A job, with its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Body of the put.
    pub body: Vec<u8>,
}

/// A job that a session has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The job.
    pub job: Job,
    /// What is known of it beyond that.
    pub delivery: Delivery,
}

/// Where a page of a search ends. It is for a search of the same tubes and states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchCursor(pub(super) String);

/// A page of what a search finds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SearchPage {
    /// The jobs: tubes by name, and in each the ready, the delayed and the buried ones, in the order of
    /// their turn.
    pub jobs: Vec<JobId>,
    /// Jobs whose bodies were not searched: they have more than 1 MiB, or could not be read.
    pub unread: u64,
    /// Where the next page begins. `None`: this was the last one.
    pub next: Option<SearchCursor>,
}

/// Why a call was refused. Except for [`JobError::Store`] and [`JobError::Closed`], nothing
/// happened and the queue continues.
#[derive(Debug, Clone)]
pub enum JobError {
    /// No such job, or its state does not allow this, or it is not reserved here.
    NotFound,
    /// A tube's name must be 1 to 200 of the letters, digits and `-+/;.$_()`, not beginning with
    /// `-`.
    BadTubeName(String),
    /// A key or a group must be 1 to 200 of the letters, digits and `-+/;.$_()`.
    BadKey(String),
    /// The body is larger than [`Options::job_size_max`](crate::engine::Options::job_size_max).
    TooBig {
        /// Bytes of the body.
        size: usize,
        /// The bound.
        size_max: u32,
    },
    /// A batch of more jobs than one may have.
    TooMany {
        /// Jobs of the batch.
        count: usize,
        /// The bound.
        count_max: usize,
    },
    /// A delay, a time to run or a pause of more than 4,294,967,295 s, or a point in time that is further
    /// than that from 1970.
    TooLong(Duration),
    /// No room on the disk, or the memory bound is reached: try again when jobs have been deleted.
    /// Or no job id is left, which is possible only after an import of the largest ids.
    OutOfSpace,
    /// The last watched tube cannot be ignored.
    NotIgnored,
    /// The body of this job could not be read back as it was put; the job has been buried.
    Damaged,
    /// A job that this session has reserved must be finished or touched within a second; then try
    /// again.
    DeadlineSoon,
    /// The server is draining: it takes no more jobs.
    Draining,
    /// The server follows another member of its cluster, which alone changes jobs.
    NotLeader,
    /// Too many calls are under way, so there is no room for this one: try again.
    Busy,
    /// The queue was closed before the call was answered. The requested change may have been made.
    Closed,
    /// The disk failed. The queue can no longer be used: drop it, and open it again. The requested
    /// change may have been made.
    Store(StoreError),
}

impl PartialEq for JobError {
    fn eq(&self, other: &JobError) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for JobError {}

impl std::fmt::Display for JobError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            JobError::NotFound => write!(f, "no such job, or not in a state that allows this"),
            JobError::BadTubeName(name) => write!(
                f,
                "{name:?} is no tube name: 1 to 200 of the letters, digits and -+/;.$_(), not \
                 beginning with -"
            ),
            JobError::BadKey(name) => write!(
                f,
                "{name:?} is no key and no group: 1 to 200 of the letters, digits and -+/;.$_()"
            ),
            JobError::TooBig { size, size_max } => {
                write!(f, "the body has {size} bytes, the bound is {size_max}")
            }
            JobError::TooMany { count, count_max } => {
                write!(f, "the batch has {count} jobs, the bound is {count_max}")
            }
            JobError::TooLong(time) => {
                write!(
                    f,
                    "a time of {} s, the bound is {}",
                    time.as_secs(),
                    u32::MAX
                )
            }
            JobError::OutOfSpace => {
                write!(f, "there is no room; try again when jobs have been deleted")
            }
            JobError::NotIgnored => write!(f, "the last watched tube cannot be ignored"),
            JobError::Damaged => {
                write!(
                    f,
                    "the body could not be read back as it was put; the job was buried"
                )
            }
            JobError::DeadlineSoon => write!(
                f,
                "a job that this session has reserved must be finished or touched within a second"
            ),
            JobError::Draining => write!(f, "the server is draining and takes no more jobs"),
            JobError::NotLeader => write!(
                f,
                "this server follows another member of its cluster; ask the one that leads"
            ),
            JobError::Busy => {
                write!(
                    f,
                    "too many calls are under way; try again when some are answered"
                )
            }
            JobError::Closed => write!(
                f,
                "the queue was closed before it answered; open it again to see what was done"
            ),
            JobError::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for JobError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            JobError::Store(error) => Some(error),
            _ => None,
        }
    }
}

impl From<StoreError> for JobError {
    fn from(error: StoreError) -> JobError {
        JobError::Store(error)
    }
}

/// A time as the protocol and the log have it, in whole seconds: a fraction is rounded up, so that nothing
/// happens too early.
///
/// # Errors
/// [`JobError::TooLong`].
pub(crate) fn whole_seconds(time: Duration) -> Result<u32, JobError> {
    let up = u64::from(time.subsec_nanos() > 0);
    let seconds = u32::try_from(time.as_secs().saturating_add(up));
    seconds.map_err(|_| JobError::TooLong(time))
}

impl PutOptions {
    /// Priority, delay and time to run, as commands have them.
    fn parts(self) -> Result<(u32, u32, u32), JobError> {
        let PutOptions { pri, delay, ttr } = self;
        Ok((pri, whole_seconds(delay)?, whole_seconds(ttr)?.max(1)))
    }
}

/// The command that puts a job into a tube.
///
/// # Errors
/// [`JobError::TooLong`].
pub fn put(
    tube: &str,
    body: impl Into<Vec<u8>>,
    options: PutOptions,
) -> Result<Command<'static>, JobError> {
    let (pri, delay, ttr) = options.parts()?;
    Ok(Command::Put {
        tube: Some(tube.to_owned().into()),
        pri,
        delay,
        ttr,
        body: Cow::Owned(body.into()),
    })
}

/// The command that puts a job with attributes into a tube.
///
/// # Errors
/// [`JobError::TooLong`].
pub(crate) fn put_with(
    tube: &str,
    body: impl Into<Vec<u8>>,
    options: PutOptions,
    attributes: PutAttributes,
) -> Result<Command<'static>, JobError> {
    let (pri, delay, ttr) = options.parts()?;
    let PutAttributes {
        key,
        unique,
        conflict,
        group,
        at,
    } = attributes;
    let since_1970 = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = at.map(|at| whole_seconds(since_1970(at))).transpose()?;
    Ok(Command::PutWith(Box::new(PutWith {
        tube: Some(tube.to_owned().into()),
        pri,
        delay: if at.is_none() { delay } else { 0 },
        ttr,
        at,
        key: key.map(|name| JobKey {
            name: Cow::Owned(name),
            unique,
            conflict,
        }),
        group: group.map(Cow::Owned),
        body: Cow::Owned(body.into()),
    })))
}

/// The command that releases a job.
///
/// # Errors
/// [`JobError::TooLong`].
pub(crate) fn release(id: JobId, pri: u32, delay: Duration) -> Result<Command<'static>, JobError> {
    let delay = whole_seconds(delay)?;
    Ok(Command::Release { id, pri, delay })
}

/// Check what the decoder of the protocol would refuse.
pub(super) fn check(command: &Command<'_>, job_size_max: u32) -> Result<(), JobError> {
    let size = body_size(command);
    let size_max = match command {
        Command::Fail { .. } | Command::BuryWithReason { .. } => TEXT_SIZE_MAX as u32,
        _ => job_size_max,
    };
    if size > size_max as usize {
        return Err(JobError::TooBig { size, size_max });
    }
    let count = match command {
        Command::Batch { ids, .. } => ids.len(),
        Command::ReserveBatch { most, .. } => usize::from(*most),
        _ => 0,
    };
    if count > BATCH_MAX {
        return Err(JobError::TooMany {
            count,
            count_max: BATCH_MAX,
        });
    }
    if let Some(name) = words_of(command).find(|name| !is_word(name.as_bytes())) {
        return Err(JobError::BadKey(name.into()));
    }
    match command.tube() {
        Some(tube) if !is_tube_name(tube.as_bytes()) => Err(JobError::BadTubeName(tube.into())),
        _ => Ok(()),
    }
}

/// The key and the group of a job that a command puts.
fn words_of<'a>(command: &'a Command<'_>) -> impl Iterator<Item = &'a str> {
    let put = match command {
        Command::PutWith(put) => Some(&**put),
        _ => None,
    };
    let key = put.and_then(|put| Some(&*put.key.as_ref()?.name));
    let group = put.and_then(|put| put.group.as_deref());
    key.into_iter().chain(group)
}

/// Bytes of the body that a command puts.
fn body_size(command: &Command<'_>) -> usize {
    match command {
        Command::Put { body, .. } => body.len(),
        Command::PutWith(put) => put.body.len(),
        Command::Fail { text, .. } | Command::BuryWithReason { text, .. } => text.len(),
        Command::ScheduleSet(set) => set.schedule.body.len(),
        _ => 0,
    }
}

/// Bytes that a command takes.
pub(super) fn size_of_command(command: &Command<'_>) -> usize {
    let ids = match command {
        Command::Batch { ids, .. } => size_of_val(&ids[..]),
        _ => 0,
    };
    let words: usize = words_of(command).map(str::len).sum();
    let tube = command.tube().map_or(0, str::len);
    size_of::<Command<'_>>() + body_size(command) + ids + tube + words
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// A job was put.
    Inserted(JobId),
    /// No job was put: this one has its key.
    Exists(JobId),
    /// A job is reserved by this session.
    Reserved(Delivered),
    /// Several jobs are reserved by this session.
    ReservedMany(Vec<Delivered>),
    /// A job was looked at.
    Found(Job),
    /// There was no job within the time.
    NoJob,
    /// The tube that this session uses.
    Using(Box<str>),
    /// The tube in which a job is ready that has failed too often.
    DeadLettered(Box<str>),
    /// A number.
    Count(u64),
    /// Figures.
    Report(Report),
    /// The tubes that exist.
    Tubes(TubeList),
    /// A list of words, in YAML.
    Document(Vec<u8>),
    /// Jobs of a tube.
    Jobs(JobPage),
    /// Jobs that were searched for.
    Searched(SearchPage),
    /// It is done to all jobs of a batch but these, which are not there or may not be changed here.
    AllBut(Vec<JobId>),
    /// The results of a batch, one for each command.
    Batch(Vec<Outcome>),
}

/// An answer, or the reason why it is missing.
pub(crate) type Outcome = Result<Answer, JobError>;

impl Answer {
    /// A reply, in a form that outlives the call in which it was given. Of the jobs that it hands out
    /// `deliveries` says the rest, in their order.
    pub(super) fn of(reply: Reply<'_>, deliveries: &mut Vec<Delivery>) -> Outcome {
        let job = |id, body: &[u8]| Job {
            id,
            body: body.to_vec(),
        };
        match reply {
            Reply::Inserted(id) => Ok(Answer::Inserted(id)),
            Reply::Exists(id) => Ok(Answer::Exists(id)),
            Reply::Reserved(id, body) => match deliveries.pop() {
                Some(delivery) => Ok(Answer::Reserved(Delivered {
                    job: job(id, body),
                    delivery,
                })),
                None => unreachable!("nothing is known of job {id}"),
            },
            Reply::ReservedBatch(jobs) => {
                let delivered = |(one, delivery): (&BatchJob<'_>, Delivery)| Delivered {
                    job: job(one.id, one.body),
                    delivery,
                };
                let all = jobs.iter().zip(deliveries.drain(..));
                Ok(Answer::ReservedMany(all.map(delivered).collect()))
            }
            Reply::Found(id, body) => Ok(Answer::Found(job(id, body))),
            Reply::Using(tube) => Ok(Answer::Using(tube.into())),
            Reply::Watching(count) => Ok(Answer::Count(count as u64)),
            Reply::KickedCount(count) | Reply::Cleared(count) => Ok(Answer::Count(count)),
            Reply::Report(report) => Ok(Answer::Report(report.clone())),
            Reply::Yaml(document) => Ok(Answer::Document(document.to_vec())),
            Reply::Batched(_, _, missing) => Ok(Answer::AllBut(missing.to_vec())),
            Reply::Jobs(page) => Ok(Answer::Jobs(page.clone())),
            Reply::TimedOut => Ok(Answer::NoJob),
            Reply::DeadlineSoon => Err(JobError::DeadlineSoon),
            Reply::NotFound => Err(JobError::NotFound),
            Reply::NotIgnored => Err(JobError::NotIgnored),
            Reply::OutOfMemory => Err(JobError::OutOfSpace),
            Reply::InternalError => Err(JobError::Damaged),
            Reply::Draining => Err(JobError::Draining),
            Reply::Kicked
            | Reply::Deleted
            | Reply::Released
            | Reply::Buried
            | Reply::Touched
            | Reply::Paused
            | Reply::Aborted
            | Reply::Moved
            | Reply::PolicySet
            | Reply::ScheduleSet => Ok(Answer::Done),
            Reply::DeadLettered(tube) => Ok(Answer::DeadLettered(tube.into())),
            Reply::Refused(refusal) => unreachable!("nothing was decoded: {refusal:?}"),
            Reply::Authenticated | Reply::NotAuthorized => {
                unreachable!("the server answers these itself, and only to its connections")
            }
        }
    }

    /// The jobs that the session has reserved with it.
    pub(super) fn reserved(&self) -> impl Iterator<Item = JobId> {
        let jobs = match self {
            Answer::Reserved(one) => std::slice::from_ref(one),
            Answer::ReservedMany(jobs) => jobs,
            _ => &[],
        };
        jobs.iter().map(|one| one.job.id)
    }

    /// Bytes that it takes.
    pub(super) fn size(&self) -> usize {
        let held = match self {
            Answer::Found(job) => job.body.len(),
            Answer::Reserved(one) => one.job.body.len(),
            Answer::ReservedMany(jobs) => jobs
                .iter()
                .map(|one| size_of::<Delivered>() + one.job.body.len())
                .sum(),
            Answer::Document(document) => document.len(),
            // What they hold is small, or shared with the queue.
            Answer::Report(_) => size_of::<Stats>(),
            Answer::Tubes(tubes) => tubes.len() / 16,
            Answer::Jobs(page) => size_of_val(&page.jobs[..]),
            Answer::Searched(page) => size_of_val(&page.jobs[..]),
            Answer::AllBut(ids) => size_of_val(&ids[..]),
            Answer::Batch(outcomes) => outcomes.iter().map(size_of_outcome).sum(),
            _ => 0,
        };
        size_of::<Answer>() + held
    }
}

pub(super) fn size_of_outcome(outcome: &Outcome) -> usize {
    outcome.as_ref().map_or(size_of::<Outcome>(), Answer::size)
}
