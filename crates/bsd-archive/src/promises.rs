//! What an archive was said to keep, in the histories of its tests: each pinned base, and each state that
//! an expiry has left apart, is restored exactly, whatever happens.

use super::Until;
use super::apart::State;
use super::expire::Plan;
use super::format::BaseName;
use super::histories::{LOG, World};
use super::labels::unpin;
use super::order::Order;
use bsd::random::Random;

/// Promises of one archive.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// A base was asked for, and whether it is to be pinned.
    asked: Option<bool>,
    names: u64,
    pinned: Vec<State>,
    /// Left apart by the last expiry.
    kept: Vec<State>,
    /// Promises that were looked at.
    pub(super) checked: u64,
}

impl World {
    /// Have the writer make a base, with a name or without, pinned or not.
    pub(super) fn ask_for_base(&mut self, random: &mut Random) {
        let (Some(writer), promises) = (&mut self.writer, self.promises.get_mut()) else {
            return;
        };
        if promises.asked.is_some() {
            return;
        }
        promises.names += 1;
        let name = random.percent(50).then(|| format!("b{}", promises.names));
        let is_pinned = random.percent(50);
        promises.asked = Some(is_pinned);
        writer.ask_for_base(Order {
            name: name.and_then(|name| BaseName::parse(&name)),
            is_pinned,
        });
    }

    /// The writer has ended, and what was asked for with it.
    pub(super) fn forget_order(&mut self) {
        self.promises.get_mut().asked = None;
    }

    pub(super) fn note_answer(&mut self) {
        let promises = self.promises.get_mut();
        let writer = self.writer.as_mut().filter(|_| promises.asked.is_some());
        let Some(answer) = writer.and_then(|writer| writer.answer()) else {
            return;
        };
        let made = answer.unwrap();
        if promises.asked.take() == Some(true) {
            promises.pinned.push(State {
                base: made.base,
                at: made.end,
                wall_ns: made.wall_ns,
            });
        }
    }

    /// An expiry was carried out, or a part of it.
    pub(super) fn note_expiry(&self, plan: &Plan, is_done: bool) {
        let mut promises = self.promises.borrow_mut();
        match is_done {
            true => promises.kept.clone_from(&plan.apart),
            false => promises.kept.retain(|state| plan.apart.contains(state)),
        }
        for state in &promises.pinned {
            let stays = state.base >= plan.base || plan.apart.contains(state);
            assert!(
                stays,
                "{state} is pinned, and is not among what stays: {plan:?}"
            );
        }
    }

    /// Some pin is removed: the next expiry decides about its base.
    pub(super) fn unpin(&mut self, random: &mut Random) {
        let promises = self.promises.get_mut();
        if promises.pinned.is_empty() {
            return;
        }
        let nth = random.below(promises.pinned.len() as u64) as usize;
        let state = promises.pinned.remove(nth);
        // What fails is tried again.
        let _ = unpin(&self.store.reader(), LOG, state.base);
    }

    /// Two of the promises.
    pub(super) fn check_promises(&self, random: &mut Random) {
        let all: Vec<State> = {
            let promises = self.promises.borrow();
            let all = promises.pinned.iter().chain(&promises.kept);
            all.copied().collect()
        };
        for _ in 0..2 {
            if all.is_empty() {
                return;
            }
            let state = all[random.below(all.len() as u64) as usize];
            let restored = self.check(Until::Base(state.base));
            let (restored, _) = restored.unwrap_or_else(|| panic!("{state} was to be kept"));
            assert_eq!((restored.base, restored.end), (state.base, state.at));
            self.promises.borrow_mut().checked += 1;
        }
    }
}
