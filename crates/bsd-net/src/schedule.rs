//! The order of service: clients with something to run or to be written.
//!
//! A client is *newly listed* when it asks for something, and *left over* when it has had its share
//! and wants more. Newly listed clients are served before those that are left over. So a client
//! that asks for little waits only for what others have begun, never for all that they still want.
//! In each turn at least one client that is left over continues, however many others come.

use std::collections::VecDeque;

use bsd::types::{ClientId, Time};

/// Which clients may still be served in a turn. In any case one client that is left over continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// All clients.
    All,
    /// Newly listed clients.
    Again,
    /// No client.
    None,
}

/// Clients in two queues. The caller makes sure that a client is listed only once.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    newly_listed: VecDeque<ClientId>,
    /// Clients that count as newly listed in the next turn.
    next_turn: VecDeque<ClientId>,
    left_over: VecDeque<ClientId>,
    /// One of the clients that are left over has been served in this turn.
    has_gone_on: bool,
    /// The number of clients that were left over when the turn began and have not been served
    /// since.
    left_over_before: usize,
}

impl Schedule {
    /// A turn begins. Clients that are left over from now on are not served in it.
    pub(super) fn begin_turn(&mut self) {
        self.has_gone_on = false;
        self.left_over_before = self.left_over.len();
        self.newly_listed.append(&mut self.next_turn);
    }

    /// List a client; it counts as newly listed.
    pub(super) fn come(&mut self, client: ClientId) {
        self.newly_listed.push_back(client);
    }

    /// List a client that has been served in this turn; it counts as newly listed in the next one.
    pub(super) fn come_again(&mut self, client: ClientId) {
        self.next_turn.push_back(client);
    }

    /// List a client that has had its share, or takes much each time, as left over.
    pub(super) fn leave_over(&mut self, client: ClientId) {
        self.left_over.push_back(client);
    }

    /// The next client, of those for which there is `room`.
    pub(super) fn next(&mut self, room: Room) -> Option<ClientId> {
        if room != Room::None
            && let Some(client) = self.newly_listed.pop_front()
        {
            return Some(client);
        }
        if self.left_over_before == 0 || (room != Room::All && self.has_gone_on) {
            return None;
        }
        self.has_gone_on = true;
        self.left_over_before -= 1;
        self.left_over.pop_front()
    }

    /// How many newly listed clients have not been served in this turn.
    pub(super) fn newly_listed(&self) -> usize {
        self.newly_listed.len()
    }

    /// True when a client is left over.
    pub(super) fn has_left_over(&self) -> bool {
        !self.left_over.is_empty()
    }

    /// True when no client is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.newly_listed.is_empty() && self.next_turn.is_empty() && self.left_over.is_empty()
    }
}

/// A bound on the time of a part of a turn.
///
/// The cost of a system call is not known in advance: writing 64 KiB to a client that does not read
/// can take ten times as long as writing it to one that does. So the clock decides. But it is read
/// only after enough work to be worth it.
#[derive(Debug)]
pub(super) struct Stint {
    begun: Option<Time>,
    look_after: usize,
    done: usize,
}

/// How long a part of a turn may take, more or less by the work between two readings of the clock.
const STINT_NS: i64 = 500_000;

impl Stint {
    /// A part of a turn that reads the clock each time `look_after` units of work are done.
    pub(super) fn new(look_after: usize) -> Stint {
        Stint {
            begun: None,
            look_after,
            done: 0,
        }
    }

    /// `more` units of work are done; true when the time is up. The time runs from the first
    /// reading.
    pub(super) fn is_up(&mut self, more: usize, clock: impl FnOnce() -> Time) -> bool {
        self.done += more;
        if self.done < self.look_after {
            return false;
        }
        self.done = 0;
        let now = clock();
        now.since(*self.begun.get_or_insert(now)) >= STINT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(newly_listed: &[u32], left_over: &[u32]) -> Schedule {
        let mut schedule = Schedule::default();
        newly_listed
            .iter()
            .for_each(|id| schedule.come(ClientId(*id)));
        left_over
            .iter()
            .for_each(|id| schedule.leave_over(ClientId(*id)));
        schedule.begin_turn();
        schedule
    }

    fn order(schedule: &mut Schedule, room: Room) -> Vec<u32> {
        std::iter::from_fn(|| schedule.next(room))
            .map(|client| client.0)
            .collect()
    }

    #[test]
    fn f22_who_comes_again_is_served_before_who_is_left_over() {
        let mut schedule = schedule(&[1, 2], &[8, 9]);
        assert_eq!(order(&mut schedule, Room::All), [1, 2, 8, 9]);
        assert!(schedule.is_empty());
    }

    #[test]
    fn f22_a_full_turn_lets_one_go_on_and_keeps_the_others_in_order() {
        let mut schedule = schedule(&[1, 2], &[8, 9]);
        assert_eq!(order(&mut schedule, Room::None), [8]);
        schedule.come(ClientId(3));
        schedule.begin_turn();
        assert_eq!(order(&mut schedule, Room::None), [9]);
        schedule.begin_turn();
        assert!(order(&mut schedule, Room::None).is_empty());
        assert_eq!(order(&mut schedule, Room::All), [1, 2, 3]);
    }

    #[test]
    fn f22_with_room_for_who_comes_again_one_of_those_who_are_left_over_goes_on_behind_them() {
        let mut schedule = schedule(&[1, 2], &[8, 9]);
        assert_eq!(order(&mut schedule, Room::Again), [1, 2, 8]);
        assert!(schedule.has_left_over());
        schedule.begin_turn();
        assert_eq!(order(&mut schedule, Room::Again), [9]);
    }

    #[test]
    fn f22_the_clock_is_looked_at_when_it_is_worth_it_and_says_when_the_time_is_up() {
        let mut stint = Stint::new(10);
        assert!(!stint.is_up(9, || panic!("too early")));
        assert!(!stint.is_up(1, || Time(7)), "it runs from here");
        assert!(!stint.is_up(9, || panic!("too early")));
        assert!(!stint.is_up(20, || Time(6 + STINT_NS)));
        assert!(stint.is_up(10, || Time(7 + STINT_NS)));
    }

    #[test]
    fn no_one_is_served_twice_in_a_turn() {
        let mut schedule = schedule(&[1], &[8]);
        assert_eq!(schedule.next(Room::All), Some(ClientId(1)));
        schedule.come_again(ClientId(1));
        assert_eq!(schedule.next(Room::All), Some(ClientId(8)));
        schedule.leave_over(ClientId(8));
        assert_eq!(schedule.next(Room::All), None);
        assert!(!schedule.is_empty());
        schedule.begin_turn();
        assert_eq!(order(&mut schedule, Room::All), [1, 8]);
    }
}
