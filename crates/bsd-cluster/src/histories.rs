//! Histories of a cluster: nodes, their disks and the network between them, in virtual time.
//!
//! Each history is a storm, in which machines crash at any operation of a disk, pause, are full or
//! lost, messages are lost, doubled, late or kept from some, and the membership changes; then all
//! that heals. Toy clients propose numbers and read. The oracle:
//!
//! * all nodes are handed the same entries, in order, without gaps, and after each change the same
//!   membership;
//! * in a term one node leads, and each votes once;
//! * acknowledged entries are in the history at the end;
//! * a read that was confirmed shows at least everything acknowledged before it began;
//! * each crash leaves disks from which the node starts;
//! * after healing an entry is committed and applied by all members, and those removed know it,
//!   within a bounded time.
//!
//! `BSD_CLUSTER_RUNS` and `BSD_CLUSTER_FIRST` say how many histories there are and which is the
//! first; `BSD_CLUSTER_HISTORY` repeats one.

mod counts;
mod disk;
mod oracle;
mod world;

use self::counts::Counts;
use self::world::World;
use bsd::check::volume::{number, run_each, volume};

const RUNS: u64 = 1000;

fn run(seed: u64) -> (u64, Counts) {
    let mut world = World::new(seed);
    world.storm();
    world.heal();
    world.end()
}

fn repeat(seed: u64) -> String {
    let test = "cargo test -p bsd-cluster --lib histories::no_acknowledged";
    format!("BSD_CLUSTER_HISTORY={seed} {test}")
}

#[test]
fn no_acknowledged_entry_is_lost_and_every_cluster_goes_on() {
    if let Some(seed) = number("BSD_CLUSTER_HISTORY") {
        let (trace, counts) = run(seed);
        eprintln!("history {seed}: trace {trace:016x}, {counts:?}");
        return;
    }
    let first = volume("BSD_CLUSTER_FIRST", 1);
    let runs = volume("BSD_CLUSTER_RUNS", RUNS);
    let sum = run_each(first..first + runs, repeat, |seed| run(seed).1);
    eprintln!("{runs} histories: {sum:?}");
    assert!(
        runs < RUNS || sum.all_seen(),
        "something never happened: {sum:?}"
    );
}

/// On whatever thread, and whatever has run there before.
#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 1..6 {
        let elsewhere = std::thread::spawn(move || run(seed));
        assert_eq!(run(seed), elsewhere.join().unwrap(), "{seed}");
    }
}
