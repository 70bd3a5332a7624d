//! `GET /api/v1/tubes/{tube}/why`: why the jobs of a tube are not done. Its figures, what its
//! policy holds back, who watches it, and who has its reserved jobs.
//!
//! All clients and their reserved jobs are looked at, a slice at a time, [`RESERVED_MAX`] jobs at most.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::look::tube_value;
use super::trouble::{Hold, Seen, WAIT_MAX_SECONDS, findings};
use super::{not_found, run, tube_name};
use crate::State;
use crate::answer::{Answer, Problem, json};
use crate::exposition::seconds;
use crate::snapshot::{LOOK_AFTER, Snapshot, TubeFigures, targets};
use bsd::door::{Slice, Step, Work};
use bsd::engine::Figures;
use bsd::queue::{JobView, Mark};
use bsd::types::{ClientId, JobId, Now, Time};

/// Reserved jobs that are looked at, those of other tubes too.
const RESERVED_MAX: usize = 100_000;
/// Clients that are told of one by one, of each kind.
pub(crate) const CLIENTS_MAX: usize = 20;

/// `GET /api/v1/tubes/{tube}/why`
pub(crate) async fn why(state: &State, tube: String) -> Result<Answer, Problem> {
    let look = Look::new(tube_name(tube)?);
    let look = run(&state.doorway, look).await?;
    let Some((tube, figures, now)) = look.found else {
        return Err(not_found("there is no such tube"));
    };
    let snapshot = Snapshot::of_tubes(figures, now, &[(&*look.name, tube.clone())]);
    let mut seen = Seen::outside(state, WAIT_MAX_SECONDS);
    seen.rise = state.past.rise(&snapshot);
    seen.snapshot = Some(Arc::new(snapshot));
    let hold = look.hold.as_ref().map(|(_, hold)| *hold);
    seen.holds
        .extend(hold.map(|hold| (look.name.clone(), hold)));
    let troubles = findings(&seen);
    let of_tube = |it: &&super::trouble::Finding| it.subject.word() == "tube";
    let found = troubles.findings.iter().filter(of_tube);
    let policy = look.hold.as_ref().map(|(set_for, hold)| {
        json!({
            "set_for": set_for,
            "max_reserved": hold.max_reserved,
            "rate": hold.rate.map(|rate| rate.to_string()),
        })
    });
    let value = json!({
        "tube": tube_value(&look.name, &tube),
        "takes_dead_letters": tube.takes_dead_letters,
        "policy": policy,
        "workers": seen.workers(),
        "watchers": look.watchers,
        "holders": look.holders.iter().map(|it| it.value(now)).collect::<Vec<_>>(),
        "holders_left_out": look.holders_left_out,
        "reserved_left_out": tube.jobs.reserved.saturating_sub(look.reserved),
        "findings": found.map(|it| it.value()).collect::<Vec<_>>(),
        "follows": troubles.follows.is_some(),
        "leader": troubles.follows.flatten(),
    });
    Ok(json(StatusCode::OK, &value))
}

/// A client that has reserved jobs of the tube.
struct Holder {
    client: ClientId,
    address: Option<String>,
    name: Option<String>,
    jobs: u64,
    /// The job that it has had for longest.
    first: JobId,
    /// When it reserved that, or touched it last, and when its time is up.
    since: Time,
    deadline: Time,
}

impl Holder {
    fn value(&self, now: Now) -> Value {
        json!({
            "client": self.client.0,
            "address": self.address,
            "name": self.name,
            "jobs": self.jobs,
            "first_job": self.first.0,
            "held_seconds": seconds(now.mono.since(self.since).max(0)),
            "time_left_seconds": seconds(self.deadline.since(now.mono).max(0)),
        })
    }
}

struct Look {
    name: String,
    found: Option<(TubeFigures, Figures, Now)>,
    /// The name or pattern under which the policy was set.
    hold: Option<(String, Hold)>,
    /// The next client, and the one whose jobs are looked at.
    next: u32,
    current: Option<Current>,
    looked_at: usize,
    watchers: Vec<Value>,
    holders: Vec<Holder>,
    holders_left_out: u64,
    /// Reserved jobs of the tube that were found.
    reserved: u64,
}

impl Look {
    fn new(name: String) -> Look {
        Look {
            name,
            found: None,
            hold: None,
            next: 0,
            current: None,
            looked_at: 0,
            watchers: Vec::new(),
            holders: Vec::new(),
            holders_left_out: 0,
            reserved: 0,
        }
    }

    /// The figures are of the moment when the look begins.
    fn begin(&mut self, slice: &Slice<'_>) -> bool {
        let (engine, now) = (slice.engine(), slice.now());
        let queue = engine.queue();
        let found = TubeFigures::of(queue, &self.name, now.mono).filter(|tube| !tube.is_gone);
        self.found = found.map(|mut tube| {
            tube.takes_dead_letters = targets(queue).contains(&*self.name);
            (tube, engine.figures(now), now)
        });
        let policy = queue.policy_of(&self.name);
        self.hold = policy.map(|(set_for, policy)| (set_for.to_owned(), Hold::of(policy)));
        self.found.is_some()
    }

    /// One step: a client, or one of its reserved jobs. `false` behind the last.
    fn look_on(&mut self, slice: &Slice<'_>) -> bool {
        match self.current.take() {
            Some(current) => self.look_at_job(current, slice),
            None if self.next >= slice.engine().queue().clients_bound() => return false,
            None => {
                self.next += 1;
                self.look_at_client(ClientId(self.next - 1), slice);
            }
        }
        true
    }

    fn look_at_client(&mut self, id: ClientId, slice: &Slice<'_>) {
        let queue = slice.engine().queue();
        let (Some(view), Some(link)) = (queue.client_view(id), slice.link(id)) else {
            return;
        };
        if self.watchers.len() < CLIENTS_MAX && queue.watches(id, &self.name) {
            self.watchers.push(json!({
                "client": id.0,
                "address": link.peer.map(|peer| peer.to_string()),
                "name": link.name.as_deref(),
                "waits": view.is_waiting,
                "worker": view.is_worker,
            }));
        }
        self.current = view.first_reserved.map(|mark| Current {
            id,
            mark,
            holder: None,
        });
    }

    fn look_at_job(&mut self, mut current: Current, slice: &Slice<'_>) {
        let (queue, id) = (slice.engine().queue(), current.id);
        // It may have left since the last slice.
        if queue.client_view(id).is_none() {
            return;
        }
        if self.looked_at == RESERVED_MAX {
            return self.end_client(current, slice);
        }
        self.looked_at += 1;
        let is_meant = |job: &JobView<'_>| job.tube == self.name && job.reserver == Some(id);
        if let Some(job) = queue.job(current.mark.id).filter(is_meant) {
            self.reserved += 1;
            current.hold(&job);
        }
        match queue.reserved_behind(id, current.mark) {
            Some(mark) => self.current = Some(Current { mark, ..current }),
            None => self.end_client(current, slice),
        }
    }

    fn end_client(&mut self, current: Current, slice: &Slice<'_>) {
        let (Some(holder), Some(link)) = (current.holder, slice.link(current.id)) else {
            return;
        };
        self.holders.push(Holder {
            address: link.peer.map(|peer| peer.to_string()),
            name: link.name.as_deref().map(str::to_owned),
            ..holder
        });
        if self.holders.len() > CLIENTS_MAX {
            self.holders.sort_by_key(|holder| holder.since);
            self.holders.pop();
            self.holders_left_out += 1;
        }
    }
}

/// A client whose reserved jobs are looked at.
struct Current {
    id: ClientId,
    /// The next job.
    mark: Mark,
    /// What it has of the tube, as far as was looked.
    holder: Option<Holder>,
}

impl Current {
    fn hold(&mut self, job: &JobView<'_>) {
        let deadline = job.deadline.unwrap_or_default();
        let since = Time(deadline.0.saturating_sub(Time(0).plus_seconds(job.ttr).0));
        let holder = self.holder.get_or_insert(Holder {
            client: self.id,
            address: None,
            name: None,
            jobs: 0,
            first: job.id,
            since,
            deadline,
        });
        holder.jobs += 1;
        if since < holder.since {
            (holder.first, holder.since, holder.deadline) = (job.id, since, deadline);
        }
    }
}

impl Work for Look {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        if self.found.is_none() && !self.begin(slice) {
            return Step::Done;
        }
        for looks in 1.. {
            if !self.look_on(slice) {
                self.holders.sort_by_key(|holder| holder.since);
                return Step::Done;
            }
            if looks % LOOK_AFTER == 0 && slice.is_over() {
                break;
            }
        }
        Step::More
    }
}
