//! Whose turn it is: the clients with something to run or to be written, in the order in which
//! they are served.
//!
//! Who comes anew is served before who has had a share and is left over. So whoever asks for
//! little waits for what others began, never for all that they still want; and one of those who
//! are left over goes on in each turn, whoever else comes.

use std::collections::VecDeque;

use crate::types::{ClientId, Time};

/// Who may still be served in a turn. One of those who are left over goes on in any case, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// Everybody.
    All,
    /// Who comes anew.
    Anew,
    /// Nobody.
    None,
}

/// Clients in two queues. Whoever lists a client sees to it that it is listed once.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    anew: VecDeque<ClientId>,
    /// Those who come anew in the next turn.
    next_turn: VecDeque<ClientId>,
    left_over: VecDeque<ClientId>,
    /// One of those who are left over has been served in this turn.
    has_gone_on: bool,
    /// Of those who are left over, so many had been there when the turn began.
    left_over_before: usize,
}

impl Schedule {
    /// A turn begins. Who is left over from now on is not served in it.
    pub(super) fn begin_turn(&mut self) {
        self.has_gone_on = false;
        self.left_over_before = self.left_over.len();
        self.anew.append(&mut self.next_turn);
    }

    /// List a client that comes anew.
    pub(super) fn come(&mut self, client: ClientId) {
        self.anew.push_back(client);
    }

    /// List a client that comes anew, and has been served in this turn.
    pub(super) fn come_again(&mut self, client: ClientId) {
        self.next_turn.push_back(client);
    }

    /// List a client that has had its share, or takes much each time.
    pub(super) fn leave_over(&mut self, client: ClientId) {
        self.left_over.push_back(client);
    }

    /// Who is next, of those for whom there is `room`.
    pub(super) fn next(&mut self, room: Room) -> Option<ClientId> {
        if room != Room::None
            && let Some(client) = self.anew.pop_front()
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

    /// How many come anew in this turn and have not been served.
    pub(super) fn anew(&self) -> usize {
        self.anew.len()
    }

    /// True when somebody is left over.
    pub(super) fn has_left_over(&self) -> bool {
        !self.left_over.is_empty()
    }

    /// True when nobody is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.anew.is_empty() && self.next_turn.is_empty() && self.left_over.is_empty()
    }
}

/// How long a part of a turn may take.
///
/// What a system call costs is not known beforehand: to write 64 KiB to who does not read can take
/// ten times as long as to write it to who does. So the clock decides; but it is looked at only
/// when so much has been done that it is worth it.
#[derive(Debug)]
pub(super) struct Stint {
    begun: Option<Time>,
    look_after: usize,
    done: usize,
}

/// How long a part of a turn may take, give or take what is done between two looks at the clock.
const STINT_NS: i64 = 500_000;

impl Stint {
    /// A part of a turn that looks at the clock each time `look_after` of something is done.
    pub(super) fn new(look_after: usize) -> Stint {
        Stint {
            begun: None,
            look_after,
            done: 0,
        }
    }

    /// So much more is done; true when the time is up. It runs from the first look.
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

    fn schedule(anew: &[u32], left_over: &[u32]) -> Schedule {
        let mut schedule = Schedule::default();
        anew.iter().for_each(|id| schedule.come(ClientId(*id)));
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
    fn f22_who_comes_anew_is_served_before_who_is_left_over() {
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
    fn f22_with_room_for_who_comes_anew_one_of_those_who_are_left_over_goes_on_behind_them() {
        let mut schedule = schedule(&[1, 2], &[8, 9]);
        assert_eq!(order(&mut schedule, Room::Anew), [1, 2, 8]);
        assert!(schedule.has_left_over());
        schedule.begin_turn();
        assert_eq!(order(&mut schedule, Room::Anew), [9]);
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
    fn nobody_is_served_twice_in_a_turn() {
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
