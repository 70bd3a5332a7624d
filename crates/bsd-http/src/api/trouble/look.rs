//! What is looked at: the figures of a scrape, what reports say without the engine, and a few
//! policies.

use std::collections::HashMap;
use std::sync::Arc;

use super::past::Rise;
use crate::api::checks::{Check, KINDS};
use crate::snapshot::Snapshot;
use crate::{ServerHandles, State, cluster};
use bsd::door::{Slice, Step, Work};
use bsd::human::{Age, Span};
use bsd::policy::{Policy, Rate};
use bsd::types::{Now, SECOND_NS};
use bsd_archive::Report;
use bsd_archive::standby::StandbyReport;
use bsd_net::{CertificateOf, MemberStanding, Report as ClusterReport};

/// What the policy of a tube holds back.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Hold {
    pub(crate) max_reserved: Option<u32>,
    pub(crate) rate: Option<Rate>,
}

impl Hold {
    pub(crate) fn of(policy: &Policy) -> Hold {
        Hold {
            max_reserved: policy.max_reserved,
            rate: policy.rate,
        }
    }
}

/// All that findings are made from.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) now: Now,
    /// How late the loop is, if it is stuck.
    pub(crate) stuck: Option<Span>,
    /// `None`: the loop does not answer, or serves no one.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    pub(crate) rise: Rise,
    /// A ready job that was put longer ago has waited too long.
    pub(crate) wait_max_ns: i64,
    /// Of tubes whose jobs wait long.
    pub(crate) holds: HashMap<String, Hold>,
    pub(crate) archives: Vec<Report>,
    /// Puts are refused because of the archive.
    pub(crate) archive_refuses: bool,
    pub(crate) standby: Option<StandbyReport>,
    pub(crate) cluster: Option<ClusterReport>,
    /// Why this member serves no client.
    pub(crate) unready: Option<String>,
    pub(crate) leader_http: Option<String>,
    /// Whom they are shown to, and when they end, seconds since 1970.
    pub(crate) certificates: [(&'static str, Option<i64>); 2],
    pub(crate) checks: [Option<Check>; KINDS.len()],
    /// When each check succeeded last, ns since 1970; 0: it was told of none.
    pub(crate) succeeded_ns: [u64; KINDS.len()],
    /// Free bytes, and all bytes, of the disk of the log.
    pub(crate) disk: Option<(u64, u64)>,
    pub(crate) descriptors_max: Option<u64>,
}

impl Seen {
    /// What is known without the engine.
    pub(crate) fn outside(state: &State, wait_max_seconds: u64) -> Seen {
        let handles = &state.handles;
        let now = handles.clock.now();
        let late = handles.pulse.beat(now.mono).late;
        let pulse = &handles.pulse;
        let membership = cluster::membership(handles);
        let wait_max = i64::try_from(wait_max_seconds).unwrap_or(i64::MAX);
        Seen {
            now,
            stuck: state.is_stuck().then_some(Span(late.as_secs_f64())),
            snapshot: None,
            rise: Rise::default(),
            wait_max_ns: wait_max.saturating_mul(SECOND_NS),
            holds: HashMap::new(),
            archives: handles.archives(),
            archive_refuses: handles.is_archive_late(),
            standby: handles.standby.as_ref().map(|seat| seat.report()),
            cluster: cluster::report(handles).ok(),
            unready: cluster::why_not_ready(handles),
            leader_http: membership.and_then(|it| it.leader_http),
            certificates: [
                ("clients", pulse.certificate_end(CertificateOf::Clients)),
                ("members", pulse.certificate_end(CertificateOf::Members)),
            ],
            checks: state.checks.all(),
            succeeded_ns: state.checks.successes(),
            disk: disk(handles),
            descriptors_max: rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
        }
    }

    /// Role of this server in its cluster, if it is a member.
    pub(super) fn membership(&self) -> Option<MemberStanding> {
        self.cluster.as_ref().map(|report| report.standing)
    }

    /// Clients that have reserved jobs, or tried to.
    pub(crate) fn workers(&self) -> u64 {
        let snapshot = self.snapshot.as_ref();
        snapshot.map_or(0, |snapshot| snapshot.figures.queue.workers)
    }

    /// The time within which totals have risen.
    pub(super) fn span(&self) -> Age {
        Age((self.rise.span_ns / SECOND_NS).unsigned_abs())
    }
}

/// Free bytes for a user without privileges, and all bytes, of the disk of the log.
fn disk(handles: &ServerHandles) -> Option<(u64, u64)> {
    let found = rustix::fs::statvfs(handles.dir.as_ref()?).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Some((bytes(found.f_bavail), bytes(found.f_blocks)))
}

/// What policies there are. They are so few that one step looks at all.
#[derive(Default)]
pub(super) struct LookAtPolicies {
    /// One of them holds jobs back.
    pub(super) hold_back: bool,
}

impl Work for LookAtPolicies {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let mut policies = slice.engine().queue().policies();
        self.hold_back =
            policies.any(|(_, policy)| policy.max_reserved.is_some() || policy.rate.is_some());
        Step::Done
    }
}

/// What the policies of some tubes hold back.
pub(super) struct LookAtHolds {
    pub(super) tubes: Vec<String>,
    pub(super) holds: HashMap<String, Hold>,
}

impl Work for LookAtHolds {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let queue = slice.engine().queue();
        for tube in self.tubes.drain(..) {
            if let Some((_, policy)) = queue.policy_of(&tube) {
                self.holds.insert(tube, Hold::of(policy));
            }
        }
        Step::Done
    }
}
