use super::look::Hold;
use super::past::{OfTube, Past};
use super::*;
use crate::snapshot::{Snapshot, TubeFigures};
use crate::tests::closed;
use bsd::engine::{Engine, Options};
use bsd::policy::{Per, Rate};
use bsd::queue::TubeFailures;
use bsd::types::{JobCounts, Now, Time};
use std::sync::Arc;

/// What is seen of a server that serves these tubes and has a worker.
fn seen(tubes: &[(&str, TubeFigures)]) -> Seen {
    let state = closed();
    let mut seen = Seen::outside(&state, WAIT_MAX_SECONDS);
    let now = seen.now;
    let engine = Engine::open(&Options::default(), now).unwrap();
    let mut figures = engine.figures(now);
    figures.queue.workers = 1;
    seen.snapshot = Some(Arc::new(Snapshot::of_tubes(figures, now, tubes)));
    seen.descriptors_max = None;
    seen
}

fn ready(count: u64, age_seconds: i64) -> TubeFigures {
    TubeFigures {
        jobs: JobCounts {
            ready: count,
            ..JobCounts::default()
        },
        watching: 1,
        oldest_ready_ns: age_seconds * SECOND_NS,
        ..TubeFigures::default()
    }
}

fn kinds(troubles: &Troubles) -> Vec<(Kind, Option<&str>)> {
    let findings = troubles.findings.iter();
    findings
        .map(|finding| (finding.kind, finding.subject.name()))
        .collect()
}

#[test]
fn where_all_is_well_nothing_is_found() {
    let found = findings(&seen(&[("mail", ready(5, 60))]));
    assert_eq!(found.count(), 0, "{found:?}");
    assert_eq!((found.tubes, found.follows), (1, None));
}

#[test]
fn each_tube_has_the_fault_that_holds_its_ready_jobs_back() {
    let unwatched = TubeFigures {
        watching: 0,
        ..ready(5, 1)
    };
    let paused = TubeFigures {
        pause_left_ns: 5 * SECOND_NS,
        ..ready(5, 1)
    };
    let buried = TubeFigures {
        jobs: JobCounts {
            buried: 3,
            ..JobCounts::default()
        },
        ..TubeFigures::default()
    };
    let dead = TubeFigures {
        takes_dead_letters: true,
        ..unwatched.clone()
    };
    let empty = TubeFigures {
        pause_left_ns: SECOND_NS,
        ..TubeFigures::default()
    };
    let seen = seen(&[
        ("buried", buried),
        ("dead", dead),
        ("empty", empty),
        ("long", ready(2, 3600)),
        ("longer", ready(2, 7200)),
        ("paused", paused),
        ("unwatched", unwatched),
    ]);
    let found = findings(&seen);
    let wanted = [
        (Kind::NoWorkers, Some("unwatched")),
        (Kind::Paused, Some("paused")),
        (Kind::WaitsLong, Some("longer")),
        (Kind::WaitsLong, Some("long")),
        (Kind::DeadLetters, Some("dead")),
        (Kind::Buried, Some("buried")),
    ];
    assert_eq!(kinds(&found), wanted);
    assert!(found.findings[2].why.contains("2 h 0 min"), "{found:?}");
}

#[test]
fn a_policy_that_holds_jobs_back_is_named() {
    let mut busy = ready(2, 3600);
    busy.jobs.reserved = 4;
    let mut seen = seen(&[("mail", busy)]);
    let why = |seen: &Seen| findings(seen).findings.remove(0).why;
    assert!(
        why(&seen).contains("1 connection watches"),
        "{}",
        why(&seen)
    );
    let mut hold = Hold {
        rate: Some(Rate {
            count: 10,
            per: Per::Minute,
        }),
        ..Hold::default()
    };
    seen.holds.insert("mail".to_owned(), hold);
    assert!(
        why(&seen).contains("allows 10/m reserves"),
        "{}",
        why(&seen)
    );
    hold.max_reserved = Some(4);
    seen.holds.insert("mail".to_owned(), hold);
    assert!(
        why(&seen).contains("lets 4 jobs be reserved"),
        "{}",
        why(&seen)
    );
}

#[test]
fn without_a_worker_the_default_tube_is_told_of_too() {
    let mut seen = seen(&[("default", ready(1, 1))]);
    assert_eq!(findings(&seen).count(), 0);
    let snapshot = Arc::get_mut(seen.snapshot.as_mut().unwrap()).unwrap();
    snapshot.figures.queue.workers = 0;
    assert_eq!(
        kinds(&findings(&seen)),
        [(Kind::NoWorkers, Some("default"))]
    );
}

#[test]
fn of_twenty_thousand_tubes_a_hundred_are_told_and_the_rest_is_counted() {
    let names: Vec<_> = (0..20_000).map(|nth| format!("tube-{nth:05}")).collect();
    let of = |nth: usize| TubeFigures {
        watching: 0,
        ..ready(1, nth as i64)
    };
    let tubes: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(nth, name)| (&**name, of(nth)))
        .collect();
    let found = findings(&seen(&tubes));
    assert_eq!(found.findings.len(), FINDINGS_MAX);
    assert_eq!(found.more, [0, 19_900, 0]);
    assert_eq!((found.count(), found.tubes), (20_000, 20_000));
    let first = found.findings[0].subject.name();
    assert_eq!(first, Some("tube-19999"), "the one that waits longest");
}

#[test]
fn what_is_critical_comes_first_and_the_answer_has_every_field() {
    let mut seen = seen(&[("a/b c", ready(1, 3600))]);
    seen.unready = Some("no member leads".to_owned());
    seen.cluster = Some(bsd_net::Report {
        standing: Standing::Leads,
        ..bsd_net::Report::default()
    });
    let found = findings(&seen);
    assert_eq!(
        kinds(&found),
        [(Kind::NoLeader, None), (Kind::WaitsLong, Some("a/b c"))]
    );
    let value = found.value();
    assert_eq!(value["findings"][1]["link"], "/tubes/a%2Fb%20c");
    assert_eq!(value["findings"][1]["severity"], "warning");
    assert_eq!(value["more"]["critical"], 0);
}

#[test]
fn a_member_that_follows_leaves_tubes_to_the_leader() {
    let mut seen = seen(&[("mail", ready(1, 3600))]);
    seen.cluster = Some(bsd_net::Report {
        standing: Standing::Follows,
        ..bsd_net::Report::default()
    });
    seen.leader_http = Some("http://10.0.0.1:11380".to_owned());
    let found = findings(&seen);
    assert_eq!(found.count(), 0);
    assert_eq!(found.value()["leader"], "http://10.0.0.1:11380");
}

#[test]
fn a_certificate_and_an_old_check_are_told_in_time() {
    let mut seen = seen(&[]);
    let now_s = (seen.now.wall_ns / SECOND_NS as u64) as i64;
    for (left, kind) in [
        (-1, Some(Kind::CertificateExpired)),
        (60, Some(Kind::CertificateEnds)),
        (CERTIFICATE_SECONDS + 60, None),
    ] {
        seen.certificates[0].1 = Some(now_s + left);
        let found = findings(&seen);
        assert_eq!(found.findings.first().map(|it| it.kind), kind, "{left}");
    }
    for (nth, kind) in KINDS.iter().enumerate() {
        seen.succeeded_ns = seen.succeeded_ns.map(|_| 0);
        seen.succeeded_ns[nth] = seen.now.wall_ns - CHECK_OLD_NS[nth];
        assert_eq!(kinds(&findings(&seen)), []);
        seen.succeeded_ns[nth] -= 1;
        assert_eq!(kinds(&findings(&seen)), [(Kind::CheckOld, Some(*kind))]);
    }
    // A rehearsal is not expected every other day.
    assert_eq!(CHECK_OLD_NS, [2 * DAY_NS, 2 * DAY_NS, 31 * DAY_NS]);
}

/// Totals of failures of a tube at one time.
fn failed(at: i64, up_seconds: u64, count: u64) -> Snapshot {
    let now = Now::new(Time(at * SECOND_NS), 0);
    let engine = Engine::open(&Options::default(), now).unwrap();
    let mut figures = engine.figures(now);
    figures.uptime_seconds = up_seconds;
    let mut failures = TubeFailures::default();
    failures.by_reason[0] = count;
    let tube = TubeFigures {
        failures: Some(Box::new(failures)),
        ..TubeFigures::default()
    };
    Snapshot::of_tubes(figures, now, &[("mail", tube)])
}

#[test]
fn a_rise_is_one_of_ten_minutes_or_of_the_time_since_the_start() {
    let past = Past::default();
    let rise = |at: i64, count| {
        let snapshot = failed(at, at as u64, count);
        let rise = past.rise(&snapshot);
        past.note(&snapshot);
        (rise.span_ns / SECOND_NS, rise.of_tube("mail").failures)
    };
    assert_eq!(rise(30, 20), (30, 20));
    for minute in 1..=10 {
        assert_eq!(
            rise(30 + minute * 60, 20).0,
            if minute < 10 { 30 + minute * 60 } else { 600 }
        );
    }
    assert_eq!(rise(690, 25), (600, 5));
    assert_eq!(rise(6900, 25), (6210, 0));
    assert_eq!(rise(6960, 7), (6270, 7), "the tube has begun again");
}

#[test]
fn a_tube_without_failures_has_risen_by_nothing() {
    let past = Past::default();
    let mut snapshot = failed(5, 5, 0);
    assert_eq!(past.rise(&snapshot).of_tube("other"), OfTube::default());
    snapshot = failed(6, 6, 11);
    let mut seen = seen(&[]);
    seen.rise = past.rise(&snapshot);
    seen.snapshot = Some(Arc::new(snapshot));
    let found = findings(&seen);
    assert_eq!(kinds(&found), [(Kind::Failures, Some("mail"))]);
    assert!(found.findings[0].why.contains("11 deliveries"), "{found:?}");
}
