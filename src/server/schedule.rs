//! Whose turn it is: the clients with something to run or to be written, in the order in which
//! they are served.
//!
//! Who comes anew is served before who has had a share and is left over. So whoever asks for
//! little waits for what others began, never for all that they still want; and one of those who
//! are left over goes on in each turn, whoever else comes.

use std::collections::VecDeque;

use crate::types::ClientId;

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

    /// Who is next. When the turn `is_full`, only the first of those who are left over, once.
    pub(super) fn next(&mut self, is_full: bool) -> Option<ClientId> {
        if !is_full && let Some(client) = self.anew.pop_front() {
            return Some(client);
        }
        if self.left_over_before == 0 || (is_full && self.has_gone_on) {
            return None;
        }
        self.has_gone_on = true;
        self.left_over_before -= 1;
        self.left_over.pop_front()
    }

    /// True when nobody is listed.
    pub(super) fn is_empty(&self) -> bool {
        self.anew.is_empty() && self.next_turn.is_empty() && self.left_over.is_empty()
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

    fn order(schedule: &mut Schedule, is_full: bool) -> Vec<u32> {
        std::iter::from_fn(|| schedule.next(is_full))
            .map(|client| client.0)
            .collect()
    }

    #[test]
    fn f22_who_comes_anew_is_served_before_who_is_left_over() {
        let mut schedule = schedule(&[1, 2], &[8, 9]);
        assert_eq!(order(&mut schedule, false), [1, 2, 8, 9]);
        assert!(schedule.is_empty());
    }

    #[test]
    fn f22_a_full_turn_lets_one_go_on_and_keeps_the_others_in_order() {
        let mut schedule = schedule(&[1, 2], &[8, 9]);
        assert_eq!(order(&mut schedule, true), [8]);
        schedule.come(ClientId(3));
        schedule.begin_turn();
        assert_eq!(order(&mut schedule, true), [9]);
        schedule.begin_turn();
        assert_eq!(order(&mut schedule, true), []);
        assert_eq!(order(&mut schedule, false), [1, 2, 3]);
    }

    #[test]
    fn nobody_is_served_twice_in_a_turn() {
        let mut schedule = schedule(&[1], &[8]);
        assert_eq!(schedule.next(false), Some(ClientId(1)));
        schedule.come_again(ClientId(1));
        assert_eq!(schedule.next(false), Some(ClientId(8)));
        schedule.leave_over(ClientId(8));
        assert_eq!(schedule.next(false), None);
        assert!(!schedule.is_empty());
        schedule.begin_turn();
        assert_eq!(order(&mut schedule, false), [1, 8]);
    }
}
