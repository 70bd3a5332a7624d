//! Members whose wall clocks differ.

use super::room::Ask;
use super::*;
use bsd::types::SECOND_NS;

const HOUR_NS: i64 = 3600 * SECOND_NS;
const DELAY: u32 = 600;

impl World {
    /// How long the leader has this job wait, seconds.
    fn delay_left(&self, id: JobId) -> i64 {
        let leader = self.leader().expect("one leads");
        let life = self.sites[leader].life.as_ref().expect("it is up");
        let job = life.engine.queue().job(id).expect("it is there");
        let deadline = job.deadline.expect("it is delayed");
        deadline.since(self.now.mono) / SECOND_NS
    }
}

/// Each of the others leads in turn: one hour ahead of the first leader, and two, or behind it.
#[test]
fn g10_a_delay_is_as_long_with_a_leader_whose_clock_differs() {
    for side in [HOUR_NS, -HOUR_NS, 0] {
        let mut world = World::new(1);
        world.peace();
        let first = world.leader().unwrap();
        for (nth, at) in [first, (first + 1) % 3, (first + 2) % 3]
            .into_iter()
            .enumerate()
        {
            world.ahead[at] = nth as i64 * side;
        }
        // Long enough for what the clocks were before to be forgotten.
        world.turns(3_000);
        let [Told::Inserted(id)] = world.ask(&[Ask::PutDelayed(DELAY)])[..] else {
            panic!("it is put");
        };
        world.turns(1_000);
        let mut leaders = BTreeSet::new();
        while leaders.len() < 3 {
            let leader = world.leader().unwrap();
            leaders.insert(leader);
            let left = world.delay_left(id);
            let passed = world.now.mono.0 / SECOND_NS;
            let least = i64::from(DELAY) - passed;
            assert!(
                (least..=i64::from(DELAY)).contains(&left),
                "{side}: with member {leader} it waits for {left} s, after {passed} s"
            );
            let heir = (0..3)
                .find(|at| !leaders.contains(at))
                .map_or(1, |at| at as u64 + 1);
            world.sites[leader]
                .life
                .as_mut()
                .unwrap()
                .replica
                .transfer(NodeId(heir));
            world.turns(1_000);
        }
    }
}
