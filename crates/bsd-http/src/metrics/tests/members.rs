//! The metrics of a cluster, compared with a report in which every number is another.

use super::*;
use bsd_cluster::member::NodeId;
use bsd_net::{MemberReport, MemberStanding, Report as ClusterReport};

fn member(id: u64) -> MemberReport {
    MemberReport {
        id: NodeId(id),
        peer: format!("10.0.0.{id}:1"),
        client: String::new(),
        http: String::new(),
        clock_ahead_ns: None,
        votes: true,
        leads: false,
        is_this: false,
        is_connected: true,
        matched: None,
        lag: None,
        needs_snapshot: false,
        heard_ms: None,
    }
}

fn report() -> ClusterReport {
    let behind = MemberReport {
        lag: Some(31),
        needs_snapshot: true,
        is_connected: false,
        clock_ahead_ns: Some(-2_500_000_000),
        ..member(2)
    };
    let near = MemberReport {
        lag: Some(32),
        clock_ahead_ns: Some(1_250_000_000),
        votes: false,
        ..member(3)
    };
    ClusterReport {
        standing: MemberStanding::Leads,
        term: 11,
        committed: 12,
        applied: 13,
        last: 14,
        first: 15,
        ledger_bytes: 16,
        refused: 17,
        forwarded: 18,
        members: vec![member(1), behind, near, member(4), member(5)],
        ..ClusterReport::default()
    }
}

fn page(report: &ClusterReport) -> String {
    written(|page| cluster::write_report(page, report))
}

#[test]
fn t22_each_sample_of_a_cluster_is_what_its_report_says() {
    let of =
        |name: &str, id: u64| format!("{name}{{member=\"{}\",peer=\"10.0.0.{id}:1\"}}", NodeId(id));
    let (connected, lag) = (
        "bsd_cluster_member_connected",
        "bsd_cluster_member_lag_entries",
    );
    let (copy, ahead) = (
        "bsd_cluster_member_needs_copy",
        "bsd_cluster_member_clock_ahead_seconds",
    );
    let each = [
        (of(connected, 1), 1.0),
        (of(connected, 2), 0.0),
        (of(connected, 3), 1.0),
        (of(connected, 4), 1.0),
        (of(connected, 5), 1.0),
        (of(lag, 2), 31.0),
        (of(lag, 3), 32.0),
        (of(copy, 2), 1.0),
        (of(copy, 3), 0.0),
        (of(ahead, 2), -2.5),
        (of(ahead, 3), 1.25),
    ];
    let mut expected = vec![
        ("bsd_cluster_is_leader", 1.0),
        ("bsd_cluster_has_leader", 1.0),
        ("bsd_cluster_term", 11.0),
        ("bsd_cluster_committed_entry", 12.0),
        ("bsd_cluster_applied_entry", 13.0),
        ("bsd_cluster_last_entry", 14.0),
        ("bsd_cluster_ledger_bytes", 16.0),
        ("bsd_cluster_ledger_full", 0.0),
        ("bsd_cluster_members", 5.0),
        ("bsd_cluster_voters", 4.0),
        ("bsd_cluster_connected_members", 4.0),
        ("bsd_cluster_changing", 0.0),
        ("bsd_cluster_unarchived", 0.0),
        ("bsd_cluster_forwarded_clients", 18.0),
        ("bsd_cluster_refused_messages_total", 17.0),
        ("bsd_cluster_role{role=\"leader\"}", 1.0),
        ("bsd_cluster_role{role=\"follower\"}", 0.0),
        ("bsd_cluster_role{role=\"no leader\"}", 0.0),
        ("bsd_cluster_role{role=\"removed\"}", 0.0),
    ];
    expected.extend(each.iter().map(|(sample, value)| (&**sample, *value)));
    assert_samples(&page(&report()), &expected);

    // Whom it follows, a follower does not count: it has no numbers of others.
    let mut other = ClusterReport {
        standing: MemberStanding::Alone,
        ledger_lacks: Some(bsd::ErrorClass::Full),
        is_changing: true,
        ..report()
    };
    for member in &mut other.members {
        (member.lag, member.clock_ahead_ns) = (None, None);
    }
    let alone = page(&other);
    assert_eq!(value(&alone, "bsd_cluster_has_leader"), 0.0);
    assert_eq!(value(&alone, "bsd_cluster_is_leader"), 0.0);
    assert_eq!(value(&alone, "bsd_cluster_ledger_full"), 1.0);
    assert_eq!(value(&alone, "bsd_cluster_changing"), 1.0);
    for name in [lag, copy, ahead] {
        assert!(!alone.contains(&format!("{name}{{")), "{name}");
    }
    other.standing = MemberStanding::Follows;
    assert_eq!(value(&page(&other), "bsd_cluster_has_leader"), 1.0);
    assert_eq!(value(&page(&other), "bsd_cluster_is_leader"), 0.0);
}
