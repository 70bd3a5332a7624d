//! Refusals of a member, the view of its clients, and tools beside it.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::members::{Cluster, id_of, members_of};
use crate::harness::{Launch, peer_address, wait_until, wait_until_it_is, wal};
use crate::wire::{Wire, inserted, put_command};

const USAGE: Option<i32> = Some(5);

/// The jobs in this directory, one a line, as `bsd-wal dump` has them.
fn dump(dir: &Path, more: &[&str]) -> String {
    let words = [&["dump", "--json", dir.to_str().unwrap()], more].concat();
    let (code, said) = wal(&words);
    assert_eq!(code, Some(0), "{said}");
    said
}

/// Wait until the logs of all members have the same jobs.
pub(super) fn wait_until_alike(cluster: &Cluster) -> String {
    let mut same = String::new();
    wait_until_it_is(&Vec::new(), "jobs that not all members have", || {
        let dirs = cluster.running().into_iter();
        let dumps = dirs.map(|at| dump(&cluster.places[at].dir, &["--live"]));
        let dumps: Vec<String> = dumps.collect();
        let sets = dumps.iter().map(|dump| dump.lines().collect());
        let sets: Vec<BTreeSet<&str>> = sets.collect();
        let is_in_all = |line: &str| sets.iter().all(|set| set.contains(line));
        let lines = sets.iter().flatten().filter(|line| !is_in_all(line));
        let mut differ: Vec<String> = lines.map(|line| (*line).to_owned()).collect();
        if differ.is_empty() && dumps.iter().any(|dump| *dump != dumps[0]) {
            differ.push("the order of the lines".to_owned());
        }
        same.clone_from(&dumps[0]);
        differ
    });
    same
}

#[test]
fn clients_of_any_member_share_one_queue() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let cluster = Cluster::of_three(&launch);
    let mut wires = cluster.connect_to_each();
    for nth in 0..30 {
        let body = format!("job {nth}");
        let id = wires[nth % 3].put(body.as_bytes());
        let found = format!("FOUND {id} {}\r\n{body}", body.len());
        assert_eq!(wires[(nth + 1) % 3].ask(&format!("peek {id}")), found);
    }
    for nth in 0..30 {
        let id = wires[nth % 3].reserve();
        assert_eq!(
            wires[(nth + 1) % 3].ask(&format!("delete {id}")),
            "NOT_FOUND"
        );
        assert_eq!(wires[nth % 3].ask(&format!("delete {id}")), "DELETED");
        assert_eq!(wires[(nth + 2) % 3].ask(&format!("peek {id}")), "NOT_FOUND");
    }
}

/// Repeat what a client of this member does, in a tube of its own each time, until no connection ends in
/// it: on a busy machine another member may lead meanwhile, and the leader's clients are closed.
fn until_none_is_closed(at: usize, mut act: impl FnMut(&str) -> io::Result<()>) {
    let mut tries = 0;
    wait_until("no connection ends", || {
        tries += 1;
        act(&format!("tube-{at}-{tries}")).is_ok()
    });
}

/// A member that follows passes bytes on: bodies of extended commands, and `abort` while a reserve
/// waits.
#[test]
fn extended_commands_come_through_any_member_and_all_members_have_what_they_did() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let cluster = Cluster::of_three(&launch);
    for at in cluster.running() {
        until_none_is_closed(at, |tube| {
            extended_commands_come_through(cluster.server(at).connect(), tube)
        });
    }
    wait_until_alike(&cluster);
}

fn extended_commands_come_through(mut wire: Wire, tube: &str) -> io::Result<()> {
    const JOBS: u64 = 300;
    wire.try_send(format!("watch {tube}\r\nreserve\r\nabort\r\n").as_bytes())?;
    for expected in ["WATCHING 2", "TIMED_OUT", "ABORTED"] {
        assert_eq!(wire.try_text()?, expected);
    }
    for _ in 0..JOBS {
        let inserted = wire.try_ask(&format!("put-with 5 0 600 8 tube={tube}\r\ndelete 1"))?;
        assert!(inserted.starts_with("INSERTED "), "{inserted}");
    }
    let batch = wire.try_ask("reserve-batch 1000 10")?;
    let jobs = batch.lines().filter_map(|line| line.strip_prefix("JOB "));
    let ids: Vec<&str> = jobs.map(|job| job.split(' ').next().unwrap()).collect();
    assert_eq!(ids.len() as u64, JOBS, "{batch}");
    let (released, deleted) = ids.split_at(100);
    let mut ask = |line: &str, ids: &[&str]| {
        let ids = ids.join(" ");
        wire.try_ask(&format!("{line} {}\r\n{ids}", ids.len()))
    };
    let done = ask("touch-batch", &ids)?;
    assert_eq!(done, format!("TOUCHED_BATCH {JOBS} 7\r\n--- []\n"));
    let done = ask("release-batch 5 0", released)?;
    assert_eq!(done, "RELEASED_BATCH 100 7\r\n--- []\n");
    let done = ask("delete-batch", deleted)?;
    assert_eq!(done, "DELETED_BATCH 200 7\r\n--- []\n");
    let listed = wire.try_ask(&format!("list-jobs {tube} ready 0 1000"))?;
    assert_eq!(listed.matches("- id: ").count(), 100);
    let ids = released.join(" ");
    let done = wire.try_ask(&format!("delete-batch {}\r\n{ids}", ids.len()))?;
    assert_eq!(done, "DELETED_BATCH 100 7\r\n--- []\n");
    Ok(())
}

/// Through followers and the leader; the waiting client has it when a majority has.
#[test]
fn g46_a_large_job_comes_through_any_member_in_pieces() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let cluster = Cluster::of_three(&launch.arg("-z").arg("4m"));
    let body: Vec<u8> = (0..3_000_001).map(|at| (at % 251) as u8).collect();
    for nth in cluster.running() {
        until_none_is_closed(nth, |tube| {
            a_large_job_comes_through(cluster.connect_to_each(), nth, tube, &body)
        });
    }
}

fn a_large_job_comes_through(
    mut wires: Vec<Wire>,
    nth: usize,
    tube: &str,
    body: &[u8],
) -> io::Result<()> {
    let (mut waiting, putting) = (wires.remove(nth), &mut wires[0]);
    waiting.try_ask(&format!("watch {tube}"))?;
    waiting.try_send(b"reserve\r\n")?;
    putting.try_ask(&format!("use {tube}"))?;
    putting.try_send(&put_command(0, 0, body))?;
    let id = inserted(&putting.try_text()?).unwrap();
    let line = format!("RESERVED {id} {}\r\n", body.len()).into_bytes();
    assert!(waiting.try_reply()? == [&line, body, b"\r\n"].concat());
    assert_eq!(waiting.try_ask(&format!("delete {id}"))?, "DELETED");
    Ok(())
}

#[test]
fn the_largest_body_is_8_mib_whatever_was_asked_for() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let cluster = Cluster::of_three(&launch.arg("-z").arg("100000000"));
    let leader = cluster.leader();
    let follower = cluster.running().into_iter().find(|at| *at != leader);
    let follower = follower.unwrap();
    let said = cluster.words_of(leader);
    assert!(said.contains("too large for a cluster"), "{said}");
    // Where members write megabytes for longer than an election, another one may lead: the connection ends.
    let put = |size: usize| {
        let command = put_command(0, 0, &vec![b'x'; size]);
        let mut reply = Vec::new();
        wait_until("a put is answered", || {
            let mut wire = cluster.server(follower).connect();
            let sent = wire.try_send(&command);
            let told = sent.and_then(|()| wire.try_reply());
            told.map(|told| reply = told).is_ok()
        });
        String::from_utf8(reply).unwrap()
    };
    let id = inserted(put(8 << 20).trim_end()).unwrap();
    assert_eq!(put((8 << 20) + 1), "JOB_TOO_BIG\r\n");
    let mut wire = cluster.server(cluster.leader()).connect();
    let stats = wire.ask(&format!("stats-job {id}"));
    assert!(stats.starts_with("OK"), "{stats}");
    wait_until_alike(&cluster);
}

#[test]
fn the_directory_of_a_member_is_no_lone_servers_and_one_with_jobs_does_not_join() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let mut cluster = Cluster::of_one(&launch);
    cluster.leader();
    cluster.server(0).connect().put(b"kept");
    cluster.stop(0);
    let before = dump(&cluster.places[0].dir, &[]);
    let exit = launch.clone().dir(&cluster.places[0].dir).run_to_exit();
    assert_eq!(exit.code, Some(1), "{exit:?}");
    let words = "this is the directory of a member of a cluster; start the member with --cluster";
    assert!(exit.stderr.contains(words), "{exit:?}");
    assert_eq!(dump(&cluster.places[0].dir, &[]), before);
    cluster.start(0);
    cluster.leader();

    // The other way: a server that has jobs.
    let dir = cluster.dir().join("with-jobs");
    let alone = launch.clone().dir(&dir).start();
    alone.connect().put(b"own");
    assert_eq!(alone.stop().code, Some(0));
    let first = cluster.places[0].peer;
    let exit = launch
        .clone()
        .dir(&dir)
        .arg(format!("--cluster={}", peer_address(8)))
        .arg(format!("--cluster-join={first}"))
        .run_to_exit();
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.stderr.contains("has a log with jobs"), "{exit:?}");
    assert_eq!(members_of(&cluster.places[0].dir).len(), 1);
    // Nothing was done to it: it serves alone as before.
    let alone = launch.clone().dir(&dir).start();
    assert_eq!(alone.connect().ask("peek 1"), "FOUND 1 3\r\nown");
    assert_eq!(alone.stop().code, Some(0));
    // Nor to one that waited to become a member, and became none.
    let waiting = launch.clone().dir(&dir);
    let waiting = waiting
        .arg(format!("--cluster={}", peer_address(9)))
        .spawn();
    wait_until("it waits", || {
        waiting.stderr().contains("no member of a cluster yet")
            && waiting.stderr().contains("ready")
    });
    assert_eq!(waiting.stop().code, Some(0));
    let alone = launch.dir(&dir).start();
    assert_eq!(alone.connect().ask("peek 1"), "FOUND 1 3\r\nown");
}

#[test]
fn flags_that_cannot_be_are_refused_in_words() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let member = &*format!("--cluster={}", peer_address(0));
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["--cluster=0.0.0.0:12300"][..], "cannot connect to that"),
        (&["--cluster=10.0.0.1:12300"], "not on loopback"),
        (&["--cluster=127.0.0.1:12300", "--memory"], "cannot be used"),
        (&["--cluster-init"], "--cluster <ADDR>"),
        (&[member, "--cluster-client=q:11300"], "give IP:PORT"),
        (&[member, "--cluster-client=127.0.0.1"], "give IP:PORT"),
        (
            &[member, "--cluster-client=tls:127.0.0.1:11300"],
            "only if they have --cluster-cert",
        ),
    ] {
        let exit = launch.clone().dir(dir.path()).args(args).run_to_exit();
        assert_eq!(exit.code, USAGE, "{args:?}: {exit:?}");
        assert!(exit.stderr.contains(words), "{args:?}: {exit:?}");
    }
}

/// It would take as long as a start does.
#[test]
fn a_leader_that_is_stopped_does_not_read_its_log_again() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let mut cluster = Cluster::of_three(&launch);
    let leader = cluster.leader();
    cluster.server(leader).connect().put(b"in the log");
    // Who reads this calls it damaged.
    let files = std::fs::read_dir(&cluster.places[leader].dir).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let is_segment = |path: &PathBuf| path.to_string_lossy().contains("/segment-");
    let segment = files.filter(is_segment).min().unwrap();
    let opened = OpenOptions::new().write(true).open(segment);
    opened.unwrap().write_all(&[0xff; 64]).unwrap();
    let said = cluster.stop(leader).stderr;
    let words = "this member does not lead any more; its clients were closed";
    assert!(said.contains(words), "{said}");
    cluster.leader();
}

/// Put 200 jobs, and delete a hundred of them; the greatest id. On a busy machine the leader may
/// change meanwhile: then a job may be there twice.
fn fill(cluster: &Cluster) -> u64 {
    let mut ids = Vec::new();
    let mut deleted = 0;
    while deleted < 100 {
        let mut wire = cluster.server(0).connect();
        while ids.len() < 200 && wire.try_send(&put_command(0, 0, b"a body")).is_ok() {
            let Ok(reply) = wire.try_reply() else { break };
            ids.push(inserted(&String::from_utf8(reply).unwrap()).unwrap());
        }
        while ids.len() == 200 && deleted < 100 {
            let line = format!("delete {}\r\n", ids[deleted]);
            if wire.try_send(line.as_bytes()).is_err() || wire.try_reply().is_err() {
                break;
            }
            deleted += 1;
        }
    }
    ids[199]
}

#[test]
fn tools_read_the_log_of_a_member_that_runs_and_of_one_that_does_not() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let mut cluster = Cluster::of_three(&launch);
    let greatest = fill(&cluster);
    let live = wait_until_alike(&cluster);
    let count = live.matches("\"body\"").count();
    assert!(count >= 100, "{live}");
    for at in cluster.running() {
        let dir = cluster.places[at].dir.clone();
        let (dir, name) = (dir.to_str().unwrap(), format!("backup-{at}"));
        let (code, said) = wal(&["verify", dir, "--live"]);
        assert_eq!(code, Some(0), "{said}");
        let backup = cluster.dir().join(name);
        let backup = backup.to_str().unwrap();
        let (code, said) = wal(&["backup", dir, "--output", backup]);
        assert_eq!(code, Some(0), "{said}");
        let (code, said) = wal(&["verify", backup]);
        assert_eq!(code, Some(0), "{said}");
        // A backup of a member is a log as any other: a lone server goes on with it.
        let restored = cluster.dir().join(format!("restored-{at}"));
        let to = restored.to_str().unwrap();
        let (code, said) = wal(&["restore", backup, "--output", to]);
        assert_eq!(code, Some(0), "{said}");
        // All but the last line, which has the next id: a restored log leaves ids out.
        let jobs = |dump: &str| dump.trim_end().rsplit_once('\n').unwrap().0.to_owned();
        assert_eq!(jobs(&dump(&restored, &[])), jobs(&live));
        let alone = Launch::bsd().dir(&restored).start();
        let mut wire = alone.connect();
        assert_eq!(wire.stat("stats", "current-jobs-ready"), count.to_string());
        assert!(wire.put(b"next") > greatest);
    }
    let all = cluster.running();
    for at in &all {
        cluster.stop(*at);
    }
    for at in all {
        let dir = &cluster.places[at].dir;
        let (code, said) = wal(&["verify", dir.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(dump(dir, &[]), live);
    }
}

/// The runbook's advice for a lost majority: one directory goes on alone, and others join it.
#[test]
fn a_member_without_its_ledger_is_a_lone_server_with_its_jobs_and_begins_a_new_cluster() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let mut cluster = Cluster::of_three(&launch);
    let mut wire = cluster.server(0).connect();
    for nth in 0..50 {
        wire.put(format!("{nth}").as_bytes());
    }
    let live = wait_until_alike(&cluster);
    for at in cluster.running() {
        cluster.kill(at);
    }
    let dir = cluster.places[2].dir.clone();
    std::fs::remove_dir_all(bsd_cluster::ledger_dir(&dir)).unwrap();
    let alone = launch.clone().dir(&dir).start();
    assert_eq!(alone.connect().stat("stats", "current-jobs-ready"), "50");
    assert_eq!(alone.stop().code, Some(0));
    let jobs = |dump: &str| dump.lines().filter(|it| it.contains("\"body\"")).count();
    assert_eq!(jobs(&dump(&dir, &[])), jobs(&live));

    // The members that are left do not hear it, nor it them.
    let peer = cluster.places[2].peer;
    cluster.places.remove(2);
    let reborn = cluster.add_at(dir.clone(), peer, "--cluster-init");
    wait_until("it leads a cluster of its own", || {
        cluster.words_of(reborn).contains("this member leads")
    });
    cluster.start(0);
    cluster.start(1);
    wait_until("the others go on", || {
        let pid = super::members::pid_behind(cluster.server(0).address());
        [0, 1]
            .iter()
            .any(|at| pid == Some(cluster.server(*at).id()))
    });
    let mut wire = cluster.server(reborn).connect();
    let id = wire.put(b"of the new one");
    let mut wire = cluster.server(0).connect();
    assert_eq!(wire.ask(&format!("peek {id}")), "NOT_FOUND");
    assert_eq!(wire.stat("stats", "current-jobs-ready"), "50");
    assert_eq!(members_of(&dir).len(), 1);
    assert_eq!(members_of(&cluster.places[0].dir).len(), 3);
}

/// Another cluster at the address of a member is not taken for it.
#[test]
fn a_node_of_another_cluster_at_the_address_of_a_member_changes_nothing() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let mut cluster = Cluster::of_three(&launch);
    let leader = cluster.leader();
    let gone = (0..3).find(|at| *at != leader).unwrap();
    cluster.stop(gone);
    let peer = cluster.places[gone].peer;
    let begins = |dir: &Path| {
        let launch = launch.clone().dir(dir).arg(format!("--cluster={peer}"));
        launch.arg("--cluster-init")
    };
    // In an empty directory it begins none: the disk may be lost, or not mounted.
    let exit = begins(&cluster.dir().join("empty")).run_to_exit();
    assert_eq!(exit.code, Some(1), "{exit:?}");
    assert!(exit.stderr.contains("calls this server"), "{exit:?}");
    let dir = cluster.dir().join("stranger");
    let alone = launch.clone().dir(&dir).start();
    let id = alone.connect().put(b"of the stranger");
    assert_eq!(alone.stop().code, Some(0));
    let stranger = begins(&dir).start();
    wait_until("the leader meets it", || {
        cluster
            .words_of(leader)
            .contains("it refuses us: this is a node of cluster")
    });
    let mut wire = cluster.server(leader).connect();
    assert_eq!(wire.ask(&format!("peek {id}")), "NOT_FOUND");
    wire.put(b"of the cluster");
    let found = stranger.connect().ask(&format!("peek {id}"));
    assert_eq!(found, format!("FOUND {id} 15\r\nof the stranger"));
    assert_eq!(stranger.stop().code, Some(0));
    cluster.start(gone);
    cluster.wait_until_all_vote();
    let all = wait_until_alike(&cluster);
    assert_eq!(all.matches("\"body\"").count(), 1, "{all}");
    assert_ne!(id_of(&dir).0, 0);
    assert_eq!(members_of(&dir).len(), 1);
}

mod steered {
    use super::super::client::Client;
    use super::super::history::History;
    use super::*;
    use std::thread;
    use std::time::Instant;

    use rustix::process::Signal;

    use crate::harness::{PATIENCE, POLL_EVERY};
    use crate::http::{address, send};
    use crate::tls::House;
    use crate::wire::Wire;
    use bsd::check::volume::seed_of_run;

    /// Ask a member to `remove` another one, or to transfer leadership to it with `transfer`; the
    /// answer's status and body.
    fn ask(cluster: &Cluster, at: usize, verb: &str, id: &str) -> (u16, String) {
        let body = format!("{{\"member\": \"{id}\"}}");
        let fields = ["Content-Type: application/json"];
        let line = format!("POST /api/v1/cluster/{verb}");
        let answer = send(address(cluster.server(at)), &line, &fields, body.as_bytes());
        (
            answer.status,
            String::from_utf8_lossy(&answer.body).into_owned(),
        )
    }

    fn remove_for_certain(cluster: &Cluster, gone: &Path, id: &str) {
        let peer_is_there = || {
            let leader = cluster.leader();
            let list = members_of(&cluster.places[leader].dir);
            list.iter().any(|it| it.id.to_string() == id)
        };
        wait_until("the member is removed", || {
            if peer_is_there() {
                ask(cluster, cluster.leader(), "remove", id);
            }
            !peer_is_there()
        });
        assert!(!gone.join("nothing").exists());
    }

    fn with_http() -> Option<Launch> {
        let launch = Launch::bsd_alone()?;
        Some(launch.arg("--http").arg("127.0.0.1:0"))
    }

    #[test]
    fn a_disk_that_is_lost_is_replaced_under_load_and_nothing_is_lost() {
        let Some(launch) = with_http() else {
            return;
        };
        let seed = seed_of_run("BSD_CLUSTER_SEED");
        let history = History::default();
        let mut cluster = Cluster::of_three(&launch);
        let doors = cluster.doors.clone();
        let mut clients: Vec<Client<'_>> = (0..4)
            .map(|number| Client::new(number, seed, &history, &doors))
            .collect();
        super::super::faults::work_while(&mut clients, || {
            let leader = cluster.leader();
            let lost = (0..3).find(|at| *at != leader).unwrap();
            let first = cluster.places[leader].peer;
            let id = id_of(&cluster.places[lost].dir).to_string();
            cluster.kill(lost);
            let (dir, peer) = (cluster.places[lost].dir.clone(), cluster.places[lost].peer);
            std::fs::remove_dir_all(&dir).unwrap();
            cluster.places.remove(lost);
            // Under the same address, on an empty disk: it is someone else, and has to wait.
            let new = cluster.add_at(dir.clone(), peer, &format!("--cluster-join={first}"));
            let words = format!(
                "member {id} has the address {peer} already; if its disk is lost, remove it first"
            );
            wait_until("it is refused", || cluster.words_of(new).contains(&words));
            remove_for_certain(&cluster, &dir, &id);
            cluster.wait_until_all_vote();
            assert_ne!(id_of(&dir).to_string(), id);
            // It counts: without another one there is a majority.
            let leader = cluster.leader();
            let other = (0..3).find(|at| *at != leader && *at != new);
            if let Some(other) = other {
                cluster.kill(other);
                let through = cluster.server(new).address();
                wait_until("work goes on", || history.probe(through));
                cluster.start(other);
            }
        });
        super::super::faults::check_everywhere(&mut cluster, &history);
    }

    /// Three members with one job, of which one is removed while it does not run; who led, and that one.
    fn without_one(launch: &Launch) -> (Cluster, usize, usize) {
        let mut cluster = Cluster::of_three(launch);
        let leader = cluster.leader();
        let gone = (0..3).find(|at| *at != leader).unwrap();
        cluster.server(leader).connect().put(b"before");
        let dir = cluster.places[gone].dir.clone();
        cluster.kill(gone);
        remove_for_certain(&cluster, &dir, &id_of(&dir).to_string());
        (cluster, leader, gone)
    }

    #[test]
    fn the_process_of_a_removed_member_changes_nothing_when_it_comes_back() {
        let Some(launch) = with_http() else {
            return;
        };
        let (mut cluster, leader, gone) = without_one(&launch);
        let id = id_of(&cluster.places[gone].dir).to_string();
        cluster.server(leader).connect().put(b"after");
        let term = |cluster: &Cluster| cluster.words_of(leader).matches("leads").count();
        let before = term(&cluster);
        cluster.start(gone);
        for words in [
            &*format!("{id} is no member of this cluster any more"),
            "this server was removed from the cluster: it serves no one",
        ] {
            wait_until("it is told", || cluster.words_of(gone).contains(words));
        }
        let get = |path: &str| {
            let answer = send(
                address(cluster.server(gone)),
                &format!("GET {path}"),
                &[],
                b"",
            );
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            (answer.status, body)
        };
        // The log has it a moment earlier.
        wait_until("it reports that", || {
            let (status, report) = get("/api/v1/cluster");
            status == 200 && report.contains("\"removed\"")
        });
        let (status, why) = get("/readyz");
        assert!(status == 503 && why.contains("it was removed"), "{why}");
        cluster.server(leader).connect().put(b"beside it");
        let jobs = cluster.server(leader).connect();
        assert_eq!({ jobs }.stat("stats", "current-jobs-ready"), "3");
        assert_eq!(term(&cluster), before, "{}", cluster.words());
        assert_eq!(members_of(&cluster.places[leader].dir).len(), 2);
    }

    /// The one that leads knows nothing of it, nor it of that one.
    #[test]
    fn a_removed_member_that_comes_back_is_told_by_one_that_it_knows_if_a_stranger_leads() {
        let Some(launch) = with_http() else {
            return;
        };
        let (mut cluster, leader, gone) = without_one(&launch);
        let first = cluster.places[leader].peer;
        let new = cluster.add(&format!("--cluster-join={first}"));
        cluster.wait_until_all_vote();
        wait_until("the new one leads", || {
            let at = cluster.leader();
            at == new || {
                ask(&cluster, at, "transfer", &cluster.id(new).to_string());
                false
            }
        });
        cluster.start(gone);
        let words = "this server was removed from the cluster: it serves no one";
        wait_until("it is told", || cluster.words_of(gone).contains(words));
        assert_eq!(cluster.leader(), new, "{}", cluster.words());
        cluster.server(new).connect().put(b"after");
    }

    /// The member that was asked to lead is paused: so nothing may be decided for as long as an
    /// election takes.
    #[test]
    fn jobs_that_come_over_http_wait_while_the_lead_is_being_handed_over() {
        let Some(launch) = with_http() else {
            return;
        };
        let cluster = Cluster::of_three(&launch);
        let leader = cluster.leader();
        let heir = (0..3).find(|at| *at != leader).unwrap();
        let id = cluster.id(heir).to_string();
        let post = |path: &str, body: &str| {
            let fields = ["Content-Type: application/json"];
            let line = format!("POST /api/v1/{path}");
            send(
                address(cluster.server(leader)),
                &line,
                &fields,
                body.as_bytes(),
            )
            .status
        };
        cluster.signal(heir, Signal::STOP);
        for nth in 0..5 {
            // Who has said nothing for a second is not asked.
            let asked = post("cluster/transfer", &format!("{{\"member\": \"{id}\"}}"));
            let is_expected = asked == 202 || nth > 0 && asked == 409;
            assert!(is_expected, "{asked}: {}", cluster.words());
            for _ in 0..5 {
                let put = post("tubes/default/jobs", "{\"body\": {\"data\": \"x\"}}");
                assert_eq!(put, 201, "{}", cluster.words());
            }
        }
        // It may find that it was asked, and lead: then connections end.
        cluster.signal(heir, Signal::CONT);
        let all = wait_until_alike(&cluster);
        assert_eq!(all.matches("\"body\"").count(), 25, "{all}");
    }

    #[test]
    fn members_know_each_other_by_certificates_and_no_stranger_is_heard() {
        let Some(launch) = Launch::bsd_alone() else {
            return;
        };
        // Clients know another authority than members.
        let (house, doors) = (House::new(), House::new());
        let launch = launch.args(["-l", "tls:127.0.0.2"]);
        let launch = launch.arg("--tls-cert").arg(doors.path("cert.pem"));
        let launch = launch.arg("--tls-key").arg(doors.path("key.pem"));
        let with = |house: &House| {
            let files = [
                ("--cluster-cert", "cert.pem"),
                ("--cluster-key", "key.pem"),
                ("--cluster-ca", "ca.pem"),
            ];
            files.iter().fold(launch.clone(), |launch, (flag, name)| {
                launch.arg(flag).arg(house.path(name))
            })
        };
        house.certify_for("a member", &addresses());
        let mut cluster = Cluster::at(&with(&house), at_one_host);
        let first = cluster.places[0].peer;
        for _ in 0..2 {
            cluster.add(&format!("--cluster-join={first}"));
        }
        cluster.wait_until_all_vote();
        let leader = cluster.leader();
        let other = (0..3).find(|at| *at != leader).unwrap();
        // What members pass on is encrypted where there is a listener for that.
        let id = cluster.server(other).connect().put(b"kept");
        let members = members_of(&cluster.places[leader].dir);
        let is_tls = |it: &bsd_cluster::member::Member| it.client.starts_with("tls:127.0.0.2:");
        assert!(members.iter().all(is_tls), "{members:?}");
        let mut wire = doors.connect(cluster.server(other));
        let found = format!("FOUND {id} 4\r\nkept");
        assert_eq!(wire.ask(&format!("peek {id}")), found);

        // One whose certificate others have signed; one that trusts the members, who do not trust it;
        // and one without any. Each is told within a second, and is told again when it asks again.
        let (strangers, trusting) = (House::new(), House::new());
        strangers.certify_for("a stranger", &addresses());
        trusting.certify_for("a stranger", &addresses());
        std::fs::copy(house.path("ca.pem"), trusting.path("ca.pem")).unwrap();
        let join = |launch: Launch, name: &str| {
            let launch = launch.dir(&cluster.dir().join(name));
            let launch = launch.arg(format!("--cluster={}", at_one_host(0)));
            launch.arg(format!("--cluster-join={first}")).spawn()
        };
        for (server, why) in [
            (join(with(&strangers), "signed"), "invalid peer certificate"),
            (join(with(&trusting), "trusting"), "received fatal alert"),
            (join(launch.clone(), "plain"), "it is no node of bsd"),
        ] {
            let words = format!("the member at {first} does not add this server: {why}");
            let since = Instant::now();
            while !server.stderr().contains(&words) {
                assert!(since.elapsed() < PATIENCE, "{words}: {}", server.stderr());
                thread::sleep(POLL_EVERY);
            }
        }
        assert_eq!(members_of(&cluster.places[leader].dir).len(), 3);

        // A garbage client of the peers' port, too.
        let mut wire = Wire::connect(first).unwrap();
        wire.send("stats\r\n");
        assert!(!wire.rest().starts_with(b"OK"));

        // A change of the leader works over TLS.
        cluster.kill(leader);
        let mut wire = cluster.server(cluster.leader()).connect();
        assert_eq!(wire.ask(&format!("peek {id}")), found);
    }

    fn addresses() -> Vec<String> {
        vec![at_one_host(0).ip().to_string(), "localhost".to_owned()]
    }

    /// A certificate names one address for all.
    fn at_one_host(_: u8) -> std::net::SocketAddr {
        crate::harness::peer_address(0)
    }
}
