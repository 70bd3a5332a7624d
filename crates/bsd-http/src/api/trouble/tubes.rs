//! Tubes in which jobs are not done, or fail.

use super::{FINDINGS_MAX, Finding, Kind, RISE_MIN, Seen, Subject, Troubles};
use crate::snapshot::TubeFigures;
use bsd::human::Age;
use bsd::types::SECOND_NS;

/// A tube of which something is to be told. The greater the weight, the earlier it is.
type Suspect<'a> = (i64, &'a str, &'a TubeFigures);

/// What is wrong with a tube, and by how much.
fn faults<'a>(
    seen: &Seen,
    name: &str,
    tube: &TubeFigures,
) -> impl Iterator<Item = (Kind, i64)> + 'a {
    let jobs = &tube.jobs;
    let is_paused = tube.pause_left_ns > 0;
    let has_ready = jobs.ready > 0;
    // Every connection watches `default` at first, workers or not.
    let has_workers = tube.watching > 0 && seen.workers() > 0;
    let waits_long = tube.oldest_ready_ns > seen.wait_max_ns;
    let rise = seen.rise.of_tube(name);
    let weight = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let risen = |kind, count: u64| (count > RISE_MIN).then(|| (kind, weight(count)));
    let of_ready = match (tube.takes_dead_letters, is_paused, has_workers) {
        (true, ..) => Some(Kind::DeadLetters),
        (_, true, _) => Some(Kind::Paused),
        (_, _, false) => Some(Kind::NoWorkers),
        _ if waits_long => Some(Kind::WaitsLong),
        _ => None,
    };
    [
        of_ready
            .filter(|_| has_ready)
            .map(|kind| (kind, tube.oldest_ready_ns)),
        (jobs.buried > 0).then(|| (Kind::Buried, weight(jobs.buried))),
        risen(Kind::Failures, rise.failures),
        risen(Kind::SetAside, rise.set_aside),
        risen(Kind::PutsRefused, rise.puts_refused),
    ]
    .into_iter()
    .flatten()
}

/// Kinds that tubes have.
const KINDS: [Kind; 8] = [
    Kind::NoWorkers,
    Kind::Paused,
    Kind::WaitsLong,
    Kind::Failures,
    Kind::SetAside,
    Kind::PutsRefused,
    Kind::DeadLetters,
    Kind::Buried,
];

/// Of each kind the first tubes, and how many there are beside them.
fn suspects(seen: &Seen) -> [(Vec<Suspect<'_>>, u64); KINDS.len()] {
    let mut found: [Vec<Suspect<'_>>; KINDS.len()] = Default::default();
    let tubes = seen
        .snapshot
        .iter()
        .flat_map(|snapshot| snapshot.kept_tubes());
    for (name, tube) in tubes {
        for (kind, weight) in faults(seen, name, tube) {
            if let Some(nth) = KINDS.iter().position(|it| *it == kind) {
                found[nth].push((weight, name, tube));
            }
        }
    }
    found.map(|mut found| {
        let by_weight = |a: &Suspect<'_>, b: &Suspect<'_>| (b.0, a.1).cmp(&(a.0, b.1));
        let more = found.len().saturating_sub(FINDINGS_MAX);
        if more > 0 {
            // The first ones need not be in order with the others.
            found.select_nth_unstable_by(FINDINGS_MAX, by_weight);
            found.truncate(FINDINGS_MAX);
        }
        found.sort_unstable_by(by_weight);
        (found, more as u64)
    })
}

/// Names of tubes whose jobs wait long: of these it is asked what holds them back.
pub(super) fn waiting_long(seen: &Seen) -> Vec<String> {
    let found = suspects(seen).into_iter().zip(KINDS);
    let found = found.filter(|(_, kind)| *kind == Kind::WaitsLong);
    found
        .flat_map(|((found, _), _)| found)
        .map(|(_, name, _)| name.to_owned())
        .collect()
}

pub(super) fn judge(seen: &Seen, all: &mut Vec<Finding>, troubles: &mut Troubles) {
    if let Some(snapshot) = &seen.snapshot {
        troubles.tubes = snapshot.kept_tubes().count() as u64;
        let there = snapshot.figures.queue.tubes;
        troubles.tubes_left_out = there.saturating_sub(troubles.tubes);
    }
    for ((found, more), kind) in suspects(seen).into_iter().zip(KINDS) {
        troubles.more[kind.severity() as usize] += more;
        all.extend(found.into_iter().map(|it| finding(seen, kind, it)));
    }
}

fn finding(seen: &Seen, kind: Kind, (_, name, tube): Suspect<'_>) -> Finding {
    let (why, what_to_do) = match kind {
        Kind::NoWorkers => no_workers(name, tube),
        Kind::Paused => paused(name, tube),
        Kind::WaitsLong => waits_long(seen, name, tube),
        Kind::DeadLetters => dead_letters(name, tube),
        Kind::Buried => buried(name, tube),
        _ => risen(seen, kind, name),
    };
    Finding::new(kind, Subject::Tube(name.to_owned()), why, what_to_do)
}

/// `1 job is ready`, `2 jobs are ready`
pub(super) fn jobs_are(count: u64, state: &str) -> String {
    match count {
        1 => format!("1 job is {state}"),
        _ => format!("{count} jobs are {state}"),
    }
}

/// How long ago the oldest ready job was put.
fn oldest(tube: &TubeFigures) -> Age {
    Age((tube.oldest_ready_ns / SECOND_NS).unsigned_abs())
}

/// A tube's name as a word of a shell.
fn word(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+".contains(&byte);
    match name.bytes().all(is_plain) {
        true => name.to_owned(),
        false => format!("'{name}'"),
    }
}

fn no_workers(name: &str, tube: &TubeFigures) -> (String, String) {
    let who = match tube.watching {
        0 => "no connection watches the tube",
        _ => "no worker is connected",
    };
    let (ready, oldest) = (jobs_are(tube.jobs.ready, "ready"), oldest(tube));
    let why = format!("{ready}, and {who}. The oldest was put {oldest} ago.");
    let name = word(name);
    let what_to_do = format!(
        "Start the workers of this tube, or look with `bsd-ctl clients` which tubes they watch. \
         `bsd-ctl move {name} TO` moves the jobs to another tube."
    );
    (why, what_to_do)
}

fn paused(name: &str, tube: &TubeFigures) -> (String, String) {
    let left = Age((tube.pause_left_ns / SECOND_NS).unsigned_abs());
    let (ready, oldest) = (jobs_are(tube.jobs.ready, "ready"), oldest(tube));
    let why =
        format!("The tube is paused for another {left}. {ready}; the oldest was put {oldest} ago.");
    (
        why,
        format!("`bsd-ctl unpause {}` ends the pause.", word(name)),
    )
}

fn waits_long(seen: &Seen, name: &str, tube: &TubeFigures) -> (String, String) {
    let (ready, oldest) = (jobs_are(tube.jobs.ready, "ready"), oldest(tube));
    let why = format!("{ready}, and the oldest was put {oldest} ago.");
    let hold = seen.holds.get(name).copied().unwrap_or_default();
    let reserved = tube.jobs.reserved;
    let word = word(name);
    let most = hold
        .max_reserved
        .filter(|most| reserved >= u64::from(*most));
    if let Some(most) = most {
        let most = match most {
            1 => "1 job".to_owned(),
            _ => format!("{most} jobs"),
        };
        return (
            format!("{why} Its policy lets {most} be reserved at a time; now: {reserved}."),
            format!(
                "`bsd-ctl why {word}` shows who has the reserved jobs. A higher `max-reserved` in \
                 the policy lets more workers work."
            ),
        );
    }
    if let Some(rate) = hold.rate {
        return (
            format!("{why} Its policy allows {rate} reserves."),
            format!("`bsd-ctl policy show {word}` shows the policy. Raise its `rate` if you can."),
        );
    }
    let watching = match tube.watching {
        1 => "1 connection watches".to_owned(),
        count => format!("{count} connections watch"),
    };
    let idle = match tube.waiting {
        0 => "none waits for a job",
        _ => "jobs come faster than they are done",
    };
    (
        format!("{why} {watching} the tube, and {idle}."),
        format!(
            "Start more workers. `bsd-ctl why {word}` shows who has the reserved jobs, and since \
             when."
        ),
    )
}

fn dead_letters(name: &str, tube: &TubeFigures) -> (String, String) {
    let letters = match tube.jobs.ready {
        1 => "1 dead letter waits".to_owned(),
        count => format!("{count} dead letters wait"),
    };
    let why = format!("{letters} here; the oldest was put {} ago.", oldest(tube));
    let name = word(name);
    let what_to_do = format!(
        "`bsd-ctl jobs {name} --bodies` shows why they failed. Repair the workers, then \
         `bsd-ctl redrive {name}` sends them back."
    );
    (why, what_to_do)
}

fn buried(name: &str, tube: &TubeFigures) -> (String, String) {
    let why = format!("{}.", jobs_are(tube.jobs.buried, "buried"));
    let name = word(name);
    let what_to_do = format!(
        "`bsd-ctl jobs {name} --state buried --bodies` shows them, and why. Repair the workers, \
         then `bsd-ctl kick {name} --all` makes them ready."
    );
    (why, what_to_do)
}

fn risen(seen: &Seen, kind: Kind, name: &str) -> (String, String) {
    let (rise, span) = (seen.rise.of_tube(name), seen.span());
    let name = word(name);
    match kind {
        Kind::SetAside => (
            format!(
                "{} jobs have reached their delivery limit, or have expired, within {span}.",
                rise.set_aside
            ),
            format!(
                "`bsd-ctl policy show {name}` says where they go, and `bsd-ctl job ID` why. Repair \
                 the workers, then `bsd-ctl redrive` sends them back."
            ),
        ),
        Kind::PutsRefused => (
            format!(
                "Its policy has refused {} puts within {span}.",
                rise.puts_refused
            ),
            format!(
                "`bsd-ctl policy show {name}` shows `max-jobs` and `max-bytes`. Start more \
                 workers, or raise the bound."
            ),
        ),
        _ => (
            format!("{} deliveries have failed within {span}.", rise.failures),
            format!(
                "`bsd-ctl jobs {name} --state delayed --bodies` shows jobs that are tried again, \
                 and `bsd-ctl tail --tube {name}` what happens now. Repair the workers."
            ),
        ),
    }
}
