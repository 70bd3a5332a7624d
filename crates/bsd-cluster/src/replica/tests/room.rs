//! The disks of several members are full at once: puts end while a majority still has room for the
//! deletes, and all deletes go through.

use bsd::policy::{DeadLetter, Policy, tubes};
use bsd::protocol::SetPolicy;

use super::*;

/// A request of a client.
#[derive(Debug, Clone)]
pub(super) enum Ask {
    /// A put of a body of this size, bytes.
    Put(usize),
    /// A put of this body.
    Text(String),
    /// A put with this delay, seconds.
    PutDelayed(u32),
    Delete(JobId),
    Peek(JobId),
    Reserve,
    /// A delivery of the default tube that fails is the last one.
    Limit,
}

/// Clients ask for this many puts at a time.
const AT_A_TIME: usize = 20;
/// An answer takes less than this many turns of a millisecond.
const TURNS: u32 = 5_000;

impl Life {
    /// Run these requests, one after another.
    pub(super) fn serve(&mut self, asks: Vec<Ask>, now: Now, replies: &mut Replies) {
        let client = *self.client.get_or_insert_with(|| self.engine.connect());
        for ask in asks {
            let (body, delay) = match &ask {
                Ask::Put(size) => (vec![b'x'; *size], 0),
                Ask::Text(text) => (text.clone().into_bytes(), 0),
                Ask::PutDelayed(seconds) => (Vec::new(), *seconds),
                Ask::Delete(_) | Ask::Peek(_) | Ask::Reserve | Ask::Limit => (Vec::new(), 0),
            };
            let put = Command::put(0, delay, 60, &body);
            let (asked, command) = match ask {
                Ask::Delete(id) => (Asked::Delete(id), Command::Delete(id)),
                Ask::Peek(id) => (Asked::Other, Command::Peek(id)),
                Ask::Reserve => (Asked::Other, Command::reserve(Some(Duration::ZERO))),
                Ask::Limit => {
                    let policy = Policy {
                        delivery_limit: Some(1),
                        dead_letter: DeadLetter::Delete,
                        ..Policy::default()
                    };
                    let tubes = tubes("default").unwrap();
                    let set = SetPolicy { tubes, policy };
                    (Asked::Other, Command::SetPolicy(Box::new(set)))
                }
                Ask::Put(_) | Ask::Text(_) | Ask::PutDelayed(_) => (Asked::Put(body.clone()), put),
            };
            let request = Request::Command(command);
            self.engine.run(client, request, now, replies);
            self.asked.push(asked);
        }
    }
}

impl World {
    pub(super) fn turns(&mut self, count: u32) {
        for _ in 0..count {
            self.pass_time();
            (0..3).for_each(|site| self.turn(site, false));
        }
    }

    /// Ask the leader, and wait for the answers. No one stops leading meanwhile.
    pub(super) fn ask(&mut self, asks: &[Ask]) -> Vec<Told> {
        self.told.clear();
        self.script = asks.to_vec();
        for _ in 0..TURNS {
            self.turns(1);
            if self.told.len() == asks.len() {
                return std::mem::take(&mut self.told);
            }
        }
        panic!(
            "{} of {} are answered: {asks:?}",
            self.told.len(),
            asks.len()
        );
    }

    /// Put jobs until none was accepted for a second.
    fn put_until_full(&mut self, size_max: usize) -> Vec<JobId> {
        let (mut ids, mut refused) = (Vec::new(), 0);
        while refused < 10 {
            let sizes = (0..AT_A_TIME).map(|_| Ask::Put(self.random.below(size_max)));
            let asks: Vec<Ask> = sizes.collect();
            let before = ids.len();
            for told in self.ask(&asks) {
                if let Told::Inserted(id) = told {
                    ids.push(id);
                }
            }
            refused = if ids.len() == before { refused + 1 } else { 0 };
            self.turns(if refused > 0 { 100 } else { 0 });
            assert!(ids.len() < 100_000, "there is room for ever");
        }
        ids
    }

    /// In any order, a few at a time.
    fn delete_all(&mut self, mut ids: Vec<JobId>) {
        while !ids.is_empty() {
            let count = ids.len().min(1 + self.random.below(AT_A_TIME));
            let chosen = (0..count).map(|_| ids.swap_remove(self.random.below(ids.len())));
            let chosen: Vec<JobId> = chosen.collect();
            self.oracle.delete_asked.extend(&chosen);
            let asks: Vec<Ask> = chosen.into_iter().map(Ask::Delete).collect();
            for told in self.ask(&asks) {
                assert!(matches!(told, Told::Deleted), "{told:?}");
            }
        }
    }
}

/// `rooms` of the leader and of the two others.
fn fill_and_empty(seed: u64, rooms: [Option<u64>; 3], size_max: usize) {
    println!("to repeat: fill_and_empty({seed}, {rooms:?}, {size_max})");
    let mut world = World::new(seed);
    world.peace();
    let leader = world.leader().unwrap();
    for (nth, room) in rooms.into_iter().enumerate() {
        world.sites[(leader + nth) % 3].set_room(room);
    }
    for round in 0..2 {
        let ids = world.put_until_full(size_max);
        println!("{round}: {} jobs", ids.len());
        assert!(round > 0 || !ids.is_empty(), "nothing was accepted");
        world.delete_all(ids);
        // What is kept back comes back, and the leader hears of it.
        world.turns(3_000);
    }
    world.peace();
    world.judge();
    // The leader hears that all have room.
    world.turns(1_000);
    let told = world.ask(&[Ask::Put(100)]);
    assert!(matches!(told[..], [Told::Inserted(_)]), "{told:?}");
}

#[test]
fn g04_when_all_disks_fill_up_puts_end_and_every_delete_goes_through() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let size_max = random.pick(&[200, 30_000, 65_000]);
        let room = 400_000 + random.below(2_000_000);
        let rooms = [(); 3].map(|()| Some(room + random.below(200_000)));
        fill_and_empty(seed, rooms, size_max);
    }
}

#[test]
fn g04_when_the_disks_of_all_but_the_leader_are_full_puts_end_and_every_delete_goes_through() {
    for seed in 10..16 {
        let mut random = Random::new(seed);
        let size_max = random.pick(&[200, 30_000, 65_000]);
        let room = [0, 300_000, 2_000_000].map(|most| Some(random.below(most + 1)));
        fill_and_empty(
            seed,
            [None, random.pick(&room), random.pick(&room)],
            size_max,
        );
    }
}
