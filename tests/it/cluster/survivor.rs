//! Two of three members are lost for good: `bsd-wal ledger` makes a server of the third.

use std::collections::BTreeSet;

use rustix::process::Signal;

use super::members::{Cluster, pid_behind};
use crate::harness::{Launch, peer_address, wait_until, wal};

fn told(words: &[&str]) -> serde_json::Value {
    let (code, said) = wal(&[&["ledger"], words, &["--json"]].concat());
    assert_eq!(code, Some(0), "{said}");
    serde_json::from_str(&said).unwrap()
}

/// Each of the three is the last one in turn. A majority had what was acknowledged, so of each job two
/// of them have it.
#[test]
fn g03_the_last_member_that_is_left_becomes_a_server_and_a_new_cluster() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let mut cluster = Cluster::of_three(&launch);
    let leader = cluster.leader();
    let mut wire = cluster.server(leader).connect();
    let put: BTreeSet<u64> = (0..200)
        .map(|nth| wire.put(&vec![b'x'; 100 + nth]))
        .collect();
    // All at once, before any of them has done anything that it had not to.
    (0..3).for_each(|at| cluster.signal(at, Signal::STOP));
    (0..3).for_each(|at| cluster.kill(at));

    let new = |at: usize| cluster.dir().join(format!("recovered-{at}"));
    let mut having = Vec::new();
    for at in 0..3 {
        let dir = cluster.places[at].dir.to_str().unwrap();
        let facts = told(&["info", dir]);
        assert_eq!(facts["member"], cluster.id(at).to_string());
        assert_eq!(facts["members"].as_array().unwrap().len(), 3);
        assert_eq!(told(&["verify", dir])["intact"], true);
        let (code, entries) = wal(&["ledger", "dump", dir]);
        assert_eq!(code, Some(0), "{entries}");
        let done = told(&["recover", dir, "--output", new(at).to_str().unwrap()]);
        assert!(
            done["last"].as_u64() >= done["committed"].as_u64(),
            "{done}"
        );
        assert!(done["committed"].as_u64() >= done["log"].as_u64(), "{done}");

        let server = launch.clone().dir(&new(at)).start();
        let mut wire = server.connect();
        let is_there = |id: &&u64| wire.ask(&format!("peek {id}")).starts_with("FOUND");
        let jobs: BTreeSet<u64> = put.iter().filter(is_there).copied().collect();
        assert_eq!(done["jobs"], jobs.len() as u64);
        assert!(wire.put(b"new") > 1 << 32, "ids are left out");
        assert_eq!(server.stop().code, Some(0));
        having.push(jobs);
    }
    for id in &put {
        let having = having.iter().filter(|jobs| jobs.contains(id)).count();
        assert!(having >= 2, "job {id} is had by {having} of three");
    }

    let member = launch.dir(&new(0)).arg("--cluster-init");
    let member = member.arg(format!("--cluster={}", peer_address(9))).spawn();
    wait_until("it leads a cluster of its own", || {
        pid_behind(member.address()) == Some(member.id())
    });
    let id = having[0].first().unwrap();
    let mut wire = member.connect();
    assert!(wire.ask(&format!("peek {id}")).starts_with("FOUND"));
    assert!(wire.put(b"in the new cluster") > 1 << 32);
}

#[test]
fn g03_a_ledger_is_for_members_that_do_not_run() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let alone = tempfile::tempdir().unwrap();
    let server = launch.clone().dir(alone.path()).start();
    assert_eq!(server.stop().code, Some(0));
    let (code, said) = wal(&["ledger", "info", alone.path().to_str().unwrap()]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("has no ledger"), "{said}");
    let cluster = Cluster::of_one(&launch);
    let dir = cluster.places[0].dir.to_str().unwrap();
    let (code, said) = wal(&["ledger", "info", dir]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("process"), "{said}");
}
