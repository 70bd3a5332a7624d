//! From thread to thread: a bounded channel of calls, and a slot for one answer.
//!
//! This file knows nothing of jobs, and takes its locks from its parent's `sync`: the tests compile
//! it a second time, with the locks of a model checker, and try all orders in which threads can
//! meet here.
//!
//! Invariants:
//! * A sender wakes the other side unless that side is known to be awake; it stays awake until it
//!   has taken everything. So no call remains unseen.
//! * Callers that wait for room are admitted in the order in which they came. Free room wakes the
//!   first; a caller that is admitted, or gives up, wakes the next. So there is never free room
//!   that the first waiting caller has not been told about.
//! * A value given to a slot is taken once, or returned to one of the two sides.
//! * No waker is called while a lock is held.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll, Waker};

use super::sync::{Arc, Mutex, lock};

/// Size of calls: their number and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

/// Why a call was not sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused<T> {
    /// There is no room; the call is returned.
    Full(T),
    /// The channel is closed: no call will be taken.
    Closed,
}

/// Many threads send, one takes. `N` are notes, which need no room: their number is bounded by the
/// number of things that they refer to.
pub(super) struct Channel<T, N> {
    state: Mutex<Queued<T, N>>,
    bound: Load,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Queued<T, N> {
    calls: VecDeque<T>,
    notes: VecDeque<N>,
    /// Of the calls here, and of calls that were taken and still occupy something.
    load: Load,
    /// The taker has been woken and has not taken anything since.
    is_woken: bool,
    is_closed: bool,
    /// The wakers of those who wait for room, by ticket.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

impl<T, N> Channel<T, N> {
    /// A channel for calls that together occupy no more than `bound`; a single call may exceed it.
    /// `wake` is called, from any thread, when there is something to take.
    pub(super) fn new(bound: Load, wake: Box<dyn Fn() + Send + Sync>) -> Channel<T, N> {
        Channel {
            state: Mutex::new(Queued {
                calls: VecDeque::new(),
                notes: VecDeque::new(),
                load: Load::default(),
                is_woken: false,
                is_closed: false,
                waiting: BTreeMap::new(),
                next_ticket: 0,
            }),
            bound,
            wake,
        }
    }

    /// Send a call of `size` bytes; if that is not possible, it is returned at once.
    pub(super) fn try_send(&self, call: T, size: usize) -> Result<(), Refused<T>> {
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(Refused::Closed);
        }
        if !state.waiting.is_empty() || !state.has_room(self.bound, size) {
            return Err(Refused::Full(call));
        }
        state.push(call, size);
        let wake = state.is_to_be_woken();
        drop(state);
        if wake {
            (self.wake)();
        }
        Ok(())
    }

    /// Send the call when there is room for it and for those that came before it. `ticket` is the
    /// caller's place in the waiting order: `None` at first; [`Channel::give_up`] gives it up.
    pub(super) fn poll_send(
        &self,
        call: &mut Option<T>,
        size: usize,
        ticket: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Refused<T>>> {
        let mut state = lock(&self.state);
        if state.is_closed {
            *ticket = None;
            return Poll::Ready(Err(Refused::Closed));
        }
        let first = state.waiting.keys().next().copied();
        let is_first = first.is_none() || first == *ticket;
        if !is_first || !state.has_room(self.bound, size) {
            let ticket = *ticket.get_or_insert_with(|| {
                state.next_ticket += 1;
                state.next_ticket
            });
            state.waiting.insert(ticket, context.waker().clone());
            return Poll::Pending;
        }
        let next = ticket.take().and_then(|ticket| state.leave(ticket));
        if let Some(call) = call.take() {
            state.push(call, size);
        }
        let wake = state.is_to_be_woken();
        drop(state);
        next.into_iter().for_each(Waker::wake);
        if wake {
            (self.wake)();
        }
        Poll::Ready(Ok(()))
    }

    /// Stop waiting for room.
    pub(super) fn give_up(&self, ticket: u64) {
        let next = lock(&self.state).leave(ticket);
        next.into_iter().for_each(Waker::wake);
    }

    /// Leave a note. When the channel is closed, notes are ignored.
    pub(super) fn note(&self, note: N) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        state.notes.push_back(note);
        let wake = state.is_to_be_woken();
        drop(state);
        if wake {
            (self.wake)();
        }
    }

    /// Wake the taker, although there is nothing to take.
    pub(super) fn ring(&self) {
        (self.wake)();
    }

    /// Take everything, and append it to the queues. The next sender wakes the taker again.
    pub(super) fn take(&self, calls: &mut VecDeque<T>, notes: &mut VecDeque<N>) {
        let mut state = lock(&self.state);
        state.is_woken = false;
        calls.append(&mut state.calls);
        notes.append(&mut state.notes);
    }

    /// Calls occupy `more` in addition, even beyond the bound, and no longer occupy `less`.
    pub(super) fn settle(&self, more: Load, less: Load) {
        if more == less {
            return;
        }
        let mut state = lock(&self.state);
        state.load.calls = state.load.calls + more.calls - less.calls;
        state.load.bytes = state.load.bytes + more.bytes - less.bytes;
        let first = state.waiting.values().next().cloned();
        drop(state);
        first.into_iter().for_each(Waker::wake);
    }

    /// Size of the present calls.
    pub(super) fn load(&self) -> Load {
        lock(&self.state).load
    }

    /// From now on nothing can be sent. Returns what was sent and not taken.
    pub(super) fn close(&self) -> VecDeque<T> {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.notes.clear();
        let waiting = std::mem::take(&mut state.waiting);
        let calls = std::mem::take(&mut state.calls);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
        calls
    }
}

impl<T, N> Queued<T, N> {
    fn has_room(&self, bound: Load, size: usize) -> bool {
        let fits = self.load.bytes.saturating_add(size) <= bound.bytes;
        self.load.calls == 0 || (fits && self.load.calls < bound.calls)
    }

    fn push(&mut self, call: T, size: usize) {
        self.calls.push_back(call);
        self.load.calls += 1;
        self.load.bytes += size;
    }

    fn is_to_be_woken(&mut self) -> bool {
        !std::mem::replace(&mut self.is_woken, true)
    }

    /// A caller no longer waits. Returns the one that must check for room now.
    fn leave(&mut self, ticket: u64) -> Option<Waker> {
        self.waiting.remove(&ticket);
        self.waiting.values().next().cloned()
    }
}

/// The two sides of a slot for one value.
pub(super) fn slot<T>() -> (Giver<T>, Taker<T>) {
    let slot = Arc::new(Mutex::new(Slot::Empty(None)));
    (Giver(Some(slot.clone())), Taker(slot))
}

enum Slot<T> {
    /// Nothing was given yet; the waker of the taker.
    Empty(Option<Waker>),
    Full(T),
    /// The value was taken, or one of the two sides is gone.
    Over,
}

/// The side that gives. Dropping it without giving tells the taker that nothing will come.
pub(super) struct Giver<T>(Option<Arc<Mutex<Slot<T>>>>);

/// The side that takes.
pub(super) struct Taker<T>(Arc<Mutex<Slot<T>>>);

impl<T> Giver<T> {
    /// Give the value; it is returned if the taker no longer waits.
    pub(super) fn give(mut self, value: T) -> Result<(), T> {
        match self.0.take() {
            Some(slot) => fill(&slot, Slot::Full(value)),
            None => Err(value),
        }
    }

    /// True when the taker no longer waits for the value.
    pub(super) fn is_abandoned(&self) -> bool {
        let Some(slot) = &self.0 else { return true };
        matches!(*lock(slot), Slot::Over)
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            let _ = fill(&slot, Slot::Over);
        }
    }
}

/// Put `with` into an empty slot, and wake the taker.
fn fill<T>(slot: &Mutex<Slot<T>>, with: Slot<T>) -> Result<(), T> {
    let mut state = lock(slot);
    let waker = match &mut *state {
        Slot::Empty(waker) => waker.take(),
        Slot::Full(_) | Slot::Over => match with {
            Slot::Full(value) => return Err(value),
            Slot::Empty(_) | Slot::Over => return Ok(()),
        },
    };
    *state = with;
    drop(state);
    waker.into_iter().for_each(Waker::wake);
    Ok(())
}

impl<T> Taker<T> {
    /// The value, once it is there; `None` if none will come.
    pub(super) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0);
        if let Slot::Empty(waker) = &mut *state {
            if !waker
                .as_ref()
                .is_some_and(|old| old.will_wake(context.waker()))
            {
                *waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        }
        Poll::Ready(match std::mem::replace(&mut *state, Slot::Over) {
            Slot::Full(value) => Some(value),
            Slot::Empty(_) | Slot::Over => None,
        })
    }

    /// Stop waiting. Returns what was given and not taken.
    pub(super) fn abandon(&self) -> Abandoned<T> {
        match std::mem::replace(&mut *lock(&self.0), Slot::Over) {
            Slot::Empty(_) => Abandoned::Empty,
            Slot::Full(value) => Abandoned::Full(value),
            Slot::Over => Abandoned::Over,
        }
    }
}

impl<T> Drop for Taker<T> {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Content of a slot when its taker gave up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Abandoned<T> {
    /// Nothing was given yet. The giver gets the value back when it gives.
    Empty,
    Full(T),
    Over,
}
