//! Random lives against a model. A failure prints its seed; `BSD_LEDGER_FIRST` and
//! `BSD_LEDGER_RUNS` choose seeds.

use super::crash::Twin;
use super::*;
use bsd::check::volume::volume;
use bsd::random::Random;
use bsd::storage::disk::sim::{Errno, Fault};

/// A random next call of raft.
fn draw(random: &mut Random, ledger: &Ledger) -> Act {
    let HardState { term, vote, commit } = ledger.hard_state();
    let last = ledger.last_index();
    match random.below(20_u64) {
        0..=6 => {
            let behind = random.pick(&[0, 0, 0, 1, 5]).min(last - commit);
            let count = 1 + random.below(8);
            let last_term = ledger.term(last - behind).unwrap();
            let size = random.pick(&[0, 10, 100, 700]);
            let term = last_term.max(term) + random.below(2);
            Act::Append(entries(last - behind + 1, count, term, size))
        }
        7..=8 => {
            let next = term + random.below(3);
            let vote = if next > term || vote == 0 {
                random.below(4)
            } else {
                vote
            };
            Act::State(state(next, vote, commit))
        }
        9..=10 => Act::State(state(term, vote, commit + random.below(last - commit + 1))),
        11 => Act::Members(commit.max(ledger.base().index), random.below(200)),
        12..=13 => Act::Discard(commit, random.pick(&[0, 0, 3000])),
        14 if random.one_in(3) => {
            let term = ledger.term(last).unwrap();
            Act::Reset(base(last + random.below(10), term))
        }
        _ => Act::Commit,
    }
}

fn trouble(random: &mut Random, disk: &SimFs) {
    let soon = 1 + random.below(30);
    match random.below(6_u64) {
        0..=2 => disk.crash_at(disk.operations() + soon),
        3 => {
            let kind = random.pick(&[OpKind::Write, OpKind::Sync, OpKind::SyncDir]);
            disk.inject(Fault::fail(kind, Errno::IO).nth(soon));
        }
        4 => disk.set_quota(Some(disk.used() + random.below(3000))),
        _ => {}
    }
}

fn live(seed: u64) {
    let mut random = Random::new(seed);
    let mut disk = disk();
    disk.set_copy_on_write(random.one_in(4));
    let mut ledger = create(&disk);
    let mut twin = Twin::new(base(5, 2));
    let mut ended = 0;
    while ended < 6 {
        trouble(&mut random, &disk);
        let acts = random.below(60_u64);
        for _ in 0..acts {
            let next = draw(&mut random, &ledger);
            match twin.act(&mut ledger, &next) {
                Ok(()) => {}
                Err(error) if error.is_full() => {
                    disk.set_quota(None);
                    disk.clear_faults();
                    if twin.act(&mut ledger, &next).is_err() {
                        break;
                    }
                }
                Err(_) => break,
            }
            if !matches!(next, Act::Reset(_)) {
                assert_eq!(ledger.last_index(), twin.now.last(), "seed {seed}");
            }
        }
        ended += 1;
        let how = match random.below(4_u64) {
            0 => Crash::DropUnsynced,
            1 => Crash::KeepAll,
            _ => Crash::Random {
                seed: random.next(),
            },
        };
        let image = disk.crash_image(how);
        image.set_quota(None);
        drop(ledger);
        disk = image;
        ledger = match Ledger::open_with(&fs(&disk), dir(), SMALL) {
            Ok(Some(ledger)) => ledger,
            other => panic!("seed {seed}, life {ended}, {how:?}: {other:?}"),
        };
        assert!(
            twin.allows(&ledger),
            "seed {seed}, life {ended}, {how:?}: {}",
            twin.tell(&ledger)
        );
        twin.settle(&ledger);
    }
}

#[test]
fn random_lives_never_lose_what_was_committed() {
    let first = volume("BSD_LEDGER_FIRST", 0);
    for seed in first..first + volume("BSD_LEDGER_RUNS", 300) {
        if std::panic::catch_unwind(|| live(seed)).is_err() {
            panic!(
                "to repeat: BSD_LEDGER_FIRST={seed} BSD_LEDGER_RUNS=1 cargo test -p bsd-cluster random_lives"
            );
        }
    }
}
