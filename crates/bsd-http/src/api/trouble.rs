//! What is wrong now, why, and what to do: one list for the API, `bsd-ctl doctor` and the console.
//!
//! [`findings`] is a pure function: from what was [`Seen`] to the list. `look` takes what is seen, `see` asks for it,
//! `past` remembers how far the totals were some minutes ago, and `tubes` judges tubes.
//!
//! The cost is bounded: the figures of tubes are those of a scrape, no job is looked at, and the
//! list has at most [`FINDINGS_MAX`] findings. The others are counted.

pub(crate) mod look;
mod past;
mod see;
mod tubes;

use hyper::StatusCode;
use serde_json::{Value, json};

pub(crate) use self::look::{Hold, Seen};
pub(crate) use self::past::{OfTube, Past};
pub(crate) use self::see::{see, see_in};
use super::checks::KINDS;
use crate::State;
use crate::answer::{Answer, Problem, json};
use crate::cluster::words_of;
use crate::query::{Query, encode};
use bsd::human::{Age, Size};
use bsd::types::{SECOND_NS, Time};
use bsd_archive::Report;
use bsd_net::MemberStanding as Standing;

/// Findings of a list. The others are counted.
pub(crate) const FINDINGS_MAX: usize = 100;
/// A ready job that was put longer ago has waited too long, unless the request says otherwise.
pub(crate) const WAIT_MAX_SECONDS: u64 = 900;
/// The longest time that a request may name: a year.
pub(crate) const WAIT_MAX_SECONDS_MAX: u64 = 365 * 86_400;
/// A certificate that ends within this time is to be replaced.
const CERTIFICATE_SECONDS: i64 = 14 * 86_400;
/// A check of each of [`KINDS`] that succeeded longer ago is old, ns.
const CHECK_OLD_NS: [u64; KINDS.len()] = [2 * DAY_NS, 2 * DAY_NS, 31 * DAY_NS];
const DAY_NS: u64 = 86_400 * SECOND_NS as u64;
/// An archive or a standby that is further behind is in trouble.
const LAG_MAX_NS: i64 = 60 * SECOND_NS;
/// Entries that a member may lack.
const LAG_ENTRIES_MAX: u64 = 1000;
/// Clocks that differ by this are apart.
const CLOCKS_APART_NS: u64 = SECOND_NS as u64;
/// Percent of a limit at which it is near.
const NEAR_PERCENT: u64 = 80;
/// A disk with more room than this is not nearly full, however large it is.
const ROOM_MIN: u64 = 1 << 30;
/// So often within the time of [`past::WINDOW_NS`] something has to happen to be told.
const RISE_MIN: u64 = 10;

/// How urgent a finding is. The most urgent comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    /// Clients are refused or wait, or acknowledged work is at risk.
    Critical,
    /// Jobs are not done, or that will come.
    Warning,
    /// Someone may have wanted it so.
    Notice,
}

impl Severity {
    pub(crate) const ALL: [Severity; 3] = [Severity::Critical, Severity::Warning, Severity::Notice];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Notice => "notice",
        }
    }
}

/// Declares the kinds of findings with their words and severities.
macro_rules! kinds {
    ($($kind:ident $word:literal $severity:ident,)*) => {
        /// What a finding is about. In the order in which they are told, of one severity.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind { $($kind,)* }

        impl Kind {
            pub(crate) const ALL: &[Kind] = &[$(Kind::$kind,)*];

            pub(crate) fn word(self) -> &'static str {
                match self { $(Kind::$kind => $word,)* }
            }

            pub(crate) fn severity(self) -> Severity {
                match self { $(Kind::$kind => Severity::$severity,)* }
            }
        }
    };
}

kinds! {
    LoopStuck "loop-stuck" Critical,
    NoLeader "no-leader" Critical,
    DiskFull "disk-full" Critical,
    MemoryFull "memory-full" Critical,
    ArchiveRefuses "archive-refuses-puts" Critical,
    LedgerFull "ledger-full" Critical,
    MemberAway "member-away" Critical,
    CheckFailed "check-failed" Critical,
    CertificateExpired "certificate-expired" Critical,
    ArchiveGap "archive-gap" Critical,
    ArchiveLags "archive-lags" Critical,
    NoWorkers "no-workers" Warning,
    Paused "paused" Warning,
    WaitsLong "waits-long" Warning,
    Failures "failures" Warning,
    SetAside "set-aside" Warning,
    PutsRefused "puts-refused" Warning,
    Timeouts "timeouts" Warning,
    Draining "draining" Warning,
    MemoryHigh "memory-high" Warning,
    DiskLow "disk-low" Warning,
    Descriptors "descriptors" Warning,
    SchedulesWait "schedules-wait" Warning,
    SchedulesMissed "schedules-missed" Warning,
    CertificateEnds "certificate-ends" Warning,
    ArchiveDown "archive-down" Warning,
    StandbyLags "standby-lags" Warning,
    MemberLags "member-lags" Warning,
    ClocksApart "clocks-apart" Warning,
    CheckOld "check-old" Warning,
    DeadLetters "dead-letters" Notice,
    Buried "buried" Notice,
    FirstBase "first-base" Notice,
}

/// Where something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    Server,
    Tube(String),
    /// By the address at which the other members reach it.
    Member(String),
    /// Which of two; `None`: the only one, or both.
    Archive(Option<&'static str>),
    /// Whom the certificate is shown to.
    Certificate(&'static str),
    /// A backup, a verification, or a rehearsal.
    Check(&'static str),
    Schedules,
}

impl Subject {
    /// Words for what a subject can be.
    pub(crate) const WORDS: [&str; 7] = [
        "server",
        "tube",
        "member",
        "archive",
        "certificate",
        "check",
        "schedules",
    ];

    pub(crate) fn word(&self) -> &'static str {
        match self {
            Subject::Server => "server",
            Subject::Tube(_) => "tube",
            Subject::Member(_) => "member",
            Subject::Archive(_) => "archive",
            Subject::Certificate(_) => "certificate",
            Subject::Check(_) => "check",
            Subject::Schedules => "schedules",
        }
    }

    /// Its name, if there are several of its kind.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Subject::Tube(name) | Subject::Member(name) => Some(name),
            Subject::Certificate(name) | Subject::Check(name) => Some(name),
            Subject::Archive(name) => *name,
            Subject::Server | Subject::Schedules => None,
        }
    }

    /// The page of the console that shows it.
    pub(crate) fn link(&self) -> String {
        match self {
            Subject::Server => "/".to_owned(),
            Subject::Tube(name) => format!("/tubes/{}", encode(name)),
            Subject::Member(_) => "/cluster".to_owned(),
            Subject::Archive(_) | Subject::Certificate(_) | Subject::Check(_) => {
                "/durability".to_owned()
            }
            Subject::Schedules => "/schedules".to_owned(),
        }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    pub(crate) subject: Subject,
    /// What is so, in sentences.
    pub(crate) why: String,
    /// What to do, in sentences; commands stand in backticks.
    pub(crate) what_to_do: String,
}

impl Finding {
    fn new(
        kind: Kind,
        subject: Subject,
        why: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Finding {
        Finding {
            kind,
            subject,
            why: why.into(),
            what_to_do: what_to_do.into(),
        }
    }

    pub(crate) fn severity(&self) -> Severity {
        self.kind.severity()
    }

    pub(crate) fn value(&self) -> Value {
        json!({
            "kind": self.kind.word(),
            "severity": self.severity().word(),
            "subject": {"of": self.subject.word(), "name": self.subject.name()},
            "why": self.why,
            "do": self.what_to_do,
            "link": self.subject.link(),
        })
    }
}

/// All that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Troubles {
    /// The most urgent first; [`FINDINGS_MAX`] at most.
    pub(crate) findings: Vec<Finding>,
    /// Those that are there beside these, in the order of [`Severity::ALL`].
    pub(crate) more: [u64; Severity::ALL.len()],
    /// Tubes that were looked at, and those that there are beside them.
    pub(crate) tubes: u64,
    pub(crate) tubes_left_out: u64,
    /// Tubes were left out because another member leads: how its HTTP is reached, if that is known.
    pub(crate) follows: Option<Option<String>>,
}

impl Troubles {
    /// Findings in all.
    pub(crate) fn count(&self) -> u64 {
        self.findings.len() as u64 + self.more.iter().sum::<u64>()
    }

    fn value(&self) -> Value {
        let more = Severity::ALL.iter().zip(self.more);
        let more = more.map(|(severity, count)| (severity.word().to_owned(), count.into()));
        json!({
            "findings": self.findings.iter().map(Finding::value).collect::<Vec<_>>(),
            "more": Value::Object(more.collect()),
            "count": self.count(),
            "tubes": self.tubes,
            "tubes_left_out": self.tubes_left_out,
            "follows": self.follows.is_some(),
            "leader": self.follows.as_ref().and_then(Option::as_deref),
        })
    }
}

/// `GET /api/v1/trouble`
pub(crate) async fn trouble(state: &State, query: &Query) -> Result<Answer, Problem> {
    let wait_max = query.number("wait_max_seconds", 0, WAIT_MAX_SECONDS_MAX)?;
    let troubles = look_for(state, wait_max.unwrap_or(WAIT_MAX_SECONDS)).await?;
    Ok(json(StatusCode::OK, &troubles.value()))
}

/// What is wrong now. A ready job may have been put this many seconds ago.
pub(crate) async fn look_for(state: &State, wait_max_seconds: u64) -> Result<Troubles, Problem> {
    Ok(findings(&see(state, wait_max_seconds).await?))
}

/// The list of what is wrong.
pub(crate) fn findings(seen: &Seen) -> Troubles {
    let mut troubles = Troubles::default();
    let mut all = Vec::new();
    of_cluster(seen, &mut all);
    of_server(seen, &mut all);
    of_archives(seen, &mut all);
    of_checks(seen, &mut all);
    match seen.membership() {
        Some(standing) if standing != Standing::Leads => {
            troubles.follows = Some(seen.leader_http.clone());
        }
        _ => tubes::judge(seen, &mut all, &mut troubles),
    }
    all.sort_by_key(|finding| (finding.severity(), finding.kind));
    for finding in all.drain(FINDINGS_MAX.min(all.len())..) {
        troubles.more[finding.severity() as usize] += 1;
    }
    troubles.findings = all;
    troubles
}

/// The loop, room, memory, clients and schedules.
fn of_server(seen: &Seen, all: &mut Vec<Finding>) {
    let mut tell = |kind, why: String, what_to_do: &str| {
        all.push(Finding::new(kind, Subject::Server, why, what_to_do));
    };
    if let Some(late) = &seen.stuck {
        tell(
            Kind::LoopStuck,
            format!("The loop has not turned for {late}. No client is served."),
            "Look at the disk: it may not answer. If it is well, keep a backtrace of the process, \
             and restart the server.",
        );
    }
    let Some(snapshot) = &seen.snapshot else {
        return;
    };
    let figures = &snapshot.figures;
    let log = figures.log.as_ref();
    if let Some(missing) = log.and_then(|log| log.missing) {
        let lack = log.map_or("the disk is full", |log| log.lacking.lack());
        tell(
            Kind::DiskFull,
            format!(
                "Puts are refused: {lack}. The last one lacked {}.",
                Size(missing)
            ),
            "Free disk space, or let workers delete jobs. Do not delete files of the data \
             directory. `/readyz` says which room is missing.",
        );
    }
    if let Some(missing) = figures.memory_missing {
        let missing = Size(missing);
        tell(
            Kind::MemoryFull,
            format!("Puts are refused: --max-memory is reached. The last one lacked {missing}."),
            "Let workers delete jobs, or restart the server with a larger --max-memory.",
        );
    } else if let Some(most) = figures.memory_max {
        let used = figures.queue_memory + figures.bodies_memory + figures.pauses_memory;
        if is_near(used, most) {
            tell(
                Kind::MemoryHigh,
                format!(
                    "Jobs use {} of the {} of --max-memory.",
                    Size(used),
                    Size(most)
                ),
                "Let workers delete jobs, or raise --max-memory before puts are refused.",
            );
        }
    }
    if figures.is_draining {
        tell(
            Kind::Draining,
            "The server drains: puts are refused because someone asked for it.".to_owned(),
            "`bsd-ctl undrain` has it take puts again.",
        );
    }
    if let Some((free, size)) = seen.disk {
        let log_size = log.map_or(0, |log| log.live + log.dead);
        if free < size / 10 && free < log_size.max(ROOM_MIN) {
            tell(
                Kind::DiskLow,
                format!(
                    "{} are free on the disk of the log, which has {}.",
                    Size(free),
                    Size(log_size)
                ),
                "Free disk space, or let workers delete jobs, before puts are refused.",
            );
        }
    }
    if let Some(most) = seen.descriptors_max
        && is_near(figures.queue.connections, most)
    {
        let connections = figures.queue.connections;
        tell(
            Kind::Descriptors,
            format!("{connections} clients are connected, and {most} files can be open."),
            "Raise `LimitNOFILE=` or `ulimit -n` before clients are refused; look with \
             `bsd-ctl clients` whether clients leave connections open.",
        );
    }
    let timeouts = seen.rise.timeouts;
    if timeouts > RISE_MIN {
        tell(
            Kind::Timeouts,
            format!(
                "{timeouts} reservations ran out of time within {}.",
                seen.span()
            ),
            "Look at the workers: they hang, or take longer than the time to run. Let them touch \
             long jobs, or put jobs with a longer one.",
        );
    }
    of_schedules(seen, all);
}

fn of_schedules(seen: &Seen, all: &mut Vec<Finding>) {
    let Some(snapshot) = &seen.snapshot else {
        return;
    };
    let waiting = snapshot.figures.schedules.waiting;
    if waiting > 0 {
        all.push(Finding::new(
            Kind::SchedulesWait,
            Subject::Schedules,
            format!("{waiting} jobs of schedules are due, and there is no room for them."),
            "Make room: the disk, the memory or the policy of their tube has none. \
             `bsd-ctl schedule list` shows which wait.",
        ));
    }
    let missed = seen.rise.missed;
    if missed > 0 {
        all.push(Finding::new(
            Kind::SchedulesMissed,
            Subject::Schedules,
            format!("Times of schedules were missed, or given up, {missed} times within an hour."),
            "The server was down, or had no room. `bsd-ctl schedule list` shows the schedules; \
             `bsd-ctl schedule run NAME` puts a job now.",
        ));
    }
}

fn is_near(used: u64, most: u64) -> bool {
    u128::from(used) * 100 > u128::from(most) * u128::from(NEAR_PERCENT)
}

fn of_archives(seen: &Seen, all: &mut Vec<Finding>) {
    of_standby(seen, all);
    let cluster = seen.cluster.as_ref();
    if let Some(unarchived) = cluster.and_then(|report| report.unarchived) {
        all.push(Finding::new(
            Kind::ArchiveGap,
            Subject::Archive(None),
            format!("{}.", sentence(&words_of(unarchived))),
            "Start the member that leads with the same --archive, or let another one lead: \
             `bsd-ctl cluster transfer`.",
        ));
    }
    if seen.archive_refuses {
        let lags = seen.archives.iter().map(|it| it.lag_ns(seen.now.mono));
        let lag = Age((lags.min().unwrap_or(0) / SECOND_NS).unsigned_abs());
        all.push(Finding::new(
            Kind::ArchiveRefuses,
            Subject::Archive(None),
            match seen.archives.len() {
                1 => format!(
                    "Puts are refused: the archive is {lag} behind, past --archive-lag-max."
                ),
                _ => format!(
                    "Puts are refused: both archives are behind, each by {lag} or more, past \
                     --archive-lag-max."
                ),
            },
            "`bsd-ctl archive` says what the store answers. Repair the store or its network.",
        ));
    }
    let names: &[_] = match seen.archives.len() {
        1 => &[("archive", None)],
        _ => &[
            ("first archive", Some("first")),
            ("second archive", Some("second")),
        ],
    };
    for (report, (archive, name)) in seen.archives.iter().zip(names) {
        of_archive(
            report,
            (archive, Subject::Archive(*name)),
            seen.now.mono,
            all,
        );
    }
}

fn of_archive(
    report: &Report,
    (archive, subject): (&str, Subject),
    now: Time,
    all: &mut Vec<Finding>,
) {
    let mut tell = |kind, why: String, what_to_do: &str| {
        all.push(Finding::new(kind, subject.clone(), why, what_to_do));
    };
    let lag_ns = report.lag_ns(now);
    let lag = Age((lag_ns / SECOND_NS).unsigned_abs());
    if report.is_in_gap && report.figures.gaps > 0 {
        tell(
            Kind::ArchiveGap,
            format!("The {archive} has a gap: what is new cannot be restored from it."),
            "Repair the store; the server then makes a base by itself. `bsd-ctl archive` shows how \
             far it is.",
        );
    } else if report.is_in_gap {
        let percent = report.base_percent();
        let why = match report.figures.base_wall_ns {
            0 => format!(
                "The first base of the {archive} is at {percent} %. Nothing can be restored yet."
            ),
            _ => format!(
                "The next base of the {archive} is at {percent} %. What is new cannot be restored yet."
            ),
        };
        tell(
            Kind::FirstBase,
            why,
            "Wait until it is complete: `bsd-ctl archive` shows how far it is.",
        );
    } else if lag_ns > LAG_MAX_NS {
        let bytes = Size(report.lag_bytes);
        tell(
            Kind::ArchiveLags,
            format!("The {archive} is {lag} behind: {bytes} would be lost with this machine."),
            "`bsd-ctl archive` says what the store answers. If it is well, it is slower than the \
             log grows.",
        );
    }
    if report.is_damaged {
        tell(
            Kind::ArchiveDown,
            format!("An object of the {archive} is damaged, and nothing is put there."),
            "`bsd-ctl archive` names it. Keep it: it may be the only copy. Put an earlier version of it \
             there, or archive to another address.",
        );
    } else if report.trouble.is_some() || report.ended.is_some() {
        tell(
            Kind::ArchiveDown,
            format!("The {archive} cannot be written; it is tried again."),
            "`bsd-ctl archive` says what the store answers. Repair the store or its network.",
        );
    }
}

/// With a capital letter.
fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|it| it.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn of_standby(seen: &Seen, all: &mut Vec<Finding>) {
    let standby = seen.standby.as_ref().filter(|report| !report.is_promoted);
    let Some(report) = standby else { return };
    let since = report.current_at.map_or(0, |at| seen.now.mono.since(at));
    if report.trouble.is_some() || report.at.is_none() || since > LAG_MAX_NS {
        all.push(Finding::new(
            Kind::StandbyLags,
            Subject::Server,
            "This standby does not follow: it could not take over with all that is archived.",
            "`bsd-ctl standby` says how far it is, and what the store answers.",
        ));
    }
}

/// Certificates, backups, verifications and rehearsals.
fn of_checks(seen: &Seen, all: &mut Vec<Finding>) {
    let now_s = i64::try_from(seen.now.wall_ns / SECOND_NS as u64).unwrap_or(i64::MAX);
    for (shown_to, end) in seen.certificates {
        let Some(left) = end.map(|end| end - now_s) else {
            continue;
        };
        let (kind, why) = match left {
            i64::MIN..=0 => (
                Kind::CertificateExpired,
                format!("The certificate that {shown_to} are shown has expired."),
            ),
            1..=CERTIFICATE_SECONDS => (
                Kind::CertificateEnds,
                format!(
                    "The certificate that {shown_to} are shown expires in {}.",
                    Age(left.unsigned_abs())
                ),
            ),
            _ => continue,
        };
        let what_to_do = "Put a new one in its place, and send SIGHUP to the server.";
        all.push(Finding::new(
            kind,
            Subject::Certificate(shown_to),
            why,
            what_to_do,
        ));
    }
    let told = seen.checks.iter().zip(seen.succeeded_ns).zip(CHECK_OLD_NS);
    for (kind, ((check, succeeded_ns), old_ns)) in KINDS.iter().zip(told) {
        if check.as_ref().is_some_and(|check| check.has_failed) {
            all.push(Finding::new(
                Kind::CheckFailed,
                Subject::Check(kind),
                format!("The last {kind} failed, or found damage."),
                "`/durability` of the console shows what it said. Run it again, as the same user: \
                 `systemctl start` with its unit.",
            ));
        } else if succeeded_ns > 0 && seen.now.wall_ns.saturating_sub(succeeded_ns) > old_ns {
            let age = Age::between(succeeded_ns, seen.now.wall_ns);
            all.push(Finding::new(
                Kind::CheckOld,
                Subject::Check(kind),
                format!("The last {kind} that succeeded was {age} ago."),
                "Look at what makes it: `systemctl list-timers`, and the lines of that unit.",
            ));
        }
    }
}

fn of_cluster(seen: &Seen, all: &mut Vec<Finding>) {
    let Some(report) = &seen.cluster else { return };
    if let Some(why) = &seen.unready {
        let kind = match report.ledger_lacks {
            Some(_) => Kind::LedgerFull,
            None => Kind::NoLeader,
        };
        all.push(Finding::new(
            kind,
            Subject::Server,
            format!("This member serves no client: {why}."),
            "`bsd-ctl cluster status`, asked of each member, shows which are away and which lack \
             room.",
        ));
    }
    for member in report.members.iter().filter(|member| !member.is_this) {
        let mut tell = |kind, why: String, what_to_do: &str| {
            let subject = Subject::Member(member.peer.clone());
            all.push(Finding::new(kind, subject, why, what_to_do));
        };
        let lag = member.lag.unwrap_or(0);
        if report.standing == Standing::Leads && !member.is_connected {
            tell(
                Kind::MemberAway,
                "The member is away: the loss of another one may stop the cluster.".to_owned(),
                "Start that server, or repair its network. If its disk is lost: \
                 `bsd-ctl cluster remove`, then add it with a new directory.",
            );
        } else if lag > LAG_ENTRIES_MAX {
            tell(
                Kind::MemberLags,
                format!("The member is {lag} entries behind the leader."),
                "Look at the disk and the network of that member.",
            );
        }
        let apart = member.clock_ahead_ns.unwrap_or(0).unsigned_abs();
        if apart >= CLOCKS_APART_NS {
            let apart = Age(apart / SECOND_NS as u64);
            tell(
                Kind::ClocksApart,
                format!("Its clock and the one here differ by {apart}."),
                "Look at NTP of both machines.",
            );
        }
    }
}

#[cfg(test)]
mod tests;
