//! Histories of a log with two archives, whose stores fail at different times. Each of them gives back a
//! prefix of the history, not older than what its own writer had reported; and of a machine that is lost
//! the one that is chosen has all that either had.
//!
//! `BSD_TWO_RUNS` says how many there are; `BSD_ARCHIVE_FIRST` and `BSD_ARCHIVE_SEED` as in `histories`.

use std::sync::Arc;

use super::claims::Which;
use super::histories::{World, each_seed, is_same};
use super::moment::Until;
use super::refill::chosen_of;
use super::sim::SimStore;
use super::writer::{Done, Failure, Writer};
use bsd::random::Random;
use bsd::storage::Trail;
use bsd::storage::disk::sim::Crash;
use bsd::types::Position;

const RUNS: u64 = 1000;
const DIR: &str = "/data";

/// An archive of the log, and what its writer has reported.
struct Side {
    store: SimStore,
    writer: Option<Writer>,
    archived: Option<Position>,
}

struct Two {
    world: World,
    sides: [Side; 2],
}

impl Two {
    fn new(seed: u64) -> Two {
        let side = |place, seed| Side {
            store: SimStore::at(place, seed),
            writer: None,
            archived: None,
        };
        Two {
            world: World::new(seed),
            sides: [
                side("sim://first", seed),
                side("sim://second", seed ^ 0xabcd),
            ],
        }
    }

    /// A server, which is given the archives in this order.
    fn start(&mut self, order: [Which; 2]) {
        self.world.start();
        for (side, which) in self.sides.iter_mut().zip(order) {
            let trail = Arc::new(Trail::new(self.world.hold_max));
            let writer = Writer::new(
                Arc::new(side.store.clone()),
                trail,
                Arc::new(self.world.disk.clone()),
                DIR.into(),
                "node".to_owned(),
                self.world.sizes,
            );
            side.writer = Some(writer.of(which));
        }
        let writers = self.sides.iter().filter_map(|side| side.writer.as_ref());
        let trails: Vec<_> = writers.map(|it| it.trail().clone()).collect();
        self.world.engine.as_mut().unwrap().publish_to(trails);
    }

    /// True if this one has nothing more to do. No one else writes to either.
    fn step(&mut self, index: usize) -> bool {
        let side = &mut self.sides[index];
        let writer = side.writer.as_mut().unwrap();
        let done = writer.step(self.world.now.wall_ns, true);
        side.archived = writer.archived().or(side.archived);
        match done {
            Ok(done) => done == Done::Nothing,
            Err(Failure::Trouble(_)) => false,
            Err(failure) => panic!("there is no other writer: {failure}"),
        }
    }

    fn archive(&mut self, index: usize) {
        for nth in 0..10_000 {
            self.sides[index].store.note_tries(nth);
            self.world.pass(1);
            if self.step(index) {
                let archived = self.sides[index].archived;
                assert_eq!(archived, Some(self.world.engine().log().unwrap().durable()));
                return;
            }
        }
        panic!("the writer does not come to an end");
    }

    fn crash(&mut self, how: Crash) {
        self.sides.iter_mut().for_each(|side| side.writer = None);
        self.world.crash(how);
    }

    /// It gives back a prefix that is not older than `archived`.
    fn check(&mut self, index: usize, archived: Option<Position>) -> Option<Position> {
        self.world.store = self.sides[index].store.clone();
        let Some((restored, _)) = self.world.check(Until::End) else {
            assert_eq!(archived, None, "what was archived is not there");
            return None;
        };
        let said = |past: &&(Position, _)| archived.is_some_and(|end| past.0 <= end);
        if let Some((least, wanted)) = self.world.past.iter().rfind(said) {
            let past = self.world.past_at(restored.wall_ns).iter();
            let found = past.rev().find(|(at, _)| *at <= restored.end);
            let is_as_then = found.is_some_and(|(_, it)| is_same(wanted, it, self.world.now));
            assert!(restored.end >= *least || is_as_then, "it is too old");
        }
        Some(restored.end)
    }

    /// The machine is lost: the log is made of the archive that is chosen, which has all that either had.
    fn lose(&mut self) {
        let stores = self.sides.each_ref().map(|side| side.store.copy());
        let chosen = chosen_of(&stores.each_ref().map(SimStore::reader), None).unwrap();
        let archived = self.sides[0].archived.max(self.sides[1].archived);
        if self.check(chosen, archived).is_none() {
            return;
        }
        let (restored, disk) = self.world.check(Until::End).unwrap();
        self.world.go_on_from(&restored, disk);
        self.sides[chosen].archived = Some(restored.end);
    }
}

fn history(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let mut two = Two::new(seed);
    two.world.sizes.frames_max = 200 + random.below(4000) as u32;
    two.world.hold_max = match random.below(3) {
        0 => random.below(100_000),
        _ => 1 << 20,
    };
    for side in &two.sides {
        side.store.set_faults(random.below(2) * random.below(25));
    }
    let (mut restores, mut refused) = (0, 0);
    for _ in 0..1 + random.below(4) {
        two.start(match random.percent(50) {
            true => [Which::First, Which::Second],
            false => [Which::Second, Which::First],
        });
        for _ in 0..random.below(30) {
            two.world.any_command(&mut random);
            two.world.pass(random.below(40));
            let index = random.below(2) as usize;
            if random.percent(10) {
                two.sides[index].store.set_away(random.percent(60));
            }
            for _ in 0..random.below(4) {
                two.step(random.below(2) as usize);
            }
        }
        two.sides.iter().for_each(|side| side.store.set_away(false));
        for index in [0, 1] {
            if random.percent(40) {
                two.archive(index);
            }
        }
        two.crash(match random.below(3) {
            0 => Crash::DropUnsynced,
            1 => Crash::KeepAll,
            _ => Crash::Random { seed },
        });
        for index in [0, 1] {
            match two.check(index, two.sides[index].archived) {
                Some(_) => restores += 1,
                None => refused += 1,
            }
        }
        if random.percent(30) {
            two.lose();
        }
    }
    (restores, refused)
}

#[test]
fn each_of_two_archives_gives_back_a_prefix_and_the_chosen_one_all_that_either_had() {
    let Some((restores, refused)) = each_seed("two_histories", ("BSD_TWO_RUNS", RUNS), history)
    else {
        return;
    };
    println!("{restores} restores, {refused} refused");
    assert!(restores > refused, "{restores} restores, {refused} refused");
}
