//! A base that is asked for: what was asked, how far it is, and what came of it.
//!
//! One is under way at a time. Its log ends where the log ended when the writer began it, which is
//! after it was asked for: a base that was under way then is completed first, and is another one.
//! An order is kept in memory: a server that ends before its base is complete has made none.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::format::BaseName;
use bsd::storage::Trail;
use bsd::types::{Now, Position, Time};

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Order {
    /// Its name, if it is to have one: no other base of the log has it.
    pub name: Option<BaseName>,
    /// It stays until it is unpinned.
    pub is_pinned: bool,
}

/// A base that is complete in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Its number.
    pub base: u64,
    /// Where its log ends: it has everything that was durable before it was begun.
    pub end: Position,
    /// When it was put, ns since 1970.
    pub wall_ns: u64,
    /// Bytes of its files.
    pub size: u64,
    /// Those of them that an earlier base had, and that were not uploaded again.
    pub reused: u64,
}

/// Why no base was made, or why one that was made has no name: in words, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotMade(pub String);

/// How far an order is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The writer has not begun it: another base is under way, or the store does not answer.
    Waiting,
    /// Its files are being put.
    Making,
    /// It is complete in the store.
    Made(Made),
    /// It cannot be carried out, and why.
    Refused(String),
}

/// An order, and how far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ordered {
    /// Which order of this server it is, from 1 on.
    pub nth: u64,
    /// What was asked for.
    pub order: Order,
    /// When, ns since 1970.
    pub asked_wall_ns: u64,
    /// For how long it has taken, or did, ns.
    pub took_ns: i64,
    /// How far it is.
    pub stage: Stage,
    asked: Time,
}

impl Ordered {
    /// Nothing more comes of it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Made(_) | Stage::Refused(_))
    }
}

/// Where a writer is asked for a base. The last order is kept.
#[derive(Debug, Default)]
pub struct Orders(Mutex<Desk>);

#[derive(Debug, Default)]
struct Desk {
    last: Option<Ordered>,
    /// The writer has not seen it.
    is_new: bool,
    /// The orders are for the log of this trail: the writer of an earlier lead takes none, and what it
    /// says of its own is not said of these.
    of: Option<Arc<Trail>>,
    /// Wakes the thread of the writer.
    bell: Option<SyncSender<()>>,
    /// Why no base will be made any more.
    closed: Option<String>,
}

impl Desk {
    fn is_of(&self, trail: &Arc<Trail>) -> bool {
        self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, trail))
    }

    /// An order that is over is left to no writer.
    fn set(&mut self, stage: Stage, now: Time) {
        if let Some(last) = self.last.as_mut().filter(|it| !it.is_over()) {
            last.took_ns = now.since(last.asked).max(0);
            last.stage = stage;
            self.is_new &= !last.is_over();
        }
    }
}

impl Orders {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ask for a base. It is not there yet on return: see [`Orders::last`].
    ///
    /// # Errors
    /// Another order is under way: it is returned.
    pub fn ask(&self, order: Order, now: Now) -> Result<Ordered, Ordered> {
        let mut desk = self.lock();
        if let Some(last) = desk.last.as_ref().filter(|it| !it.is_over()) {
            return Err(last.clone());
        }
        let stage = desk.closed.clone();
        let ordered = Ordered {
            nth: desk.last.as_ref().map_or(1, |it| it.nth + 1),
            order,
            asked_wall_ns: now.wall_ns,
            took_ns: 0,
            stage: stage.map_or(Stage::Waiting, Stage::Refused),
            asked: now.mono,
        };
        desk.is_new = !ordered.is_over();
        desk.last = Some(ordered.clone());
        if let Some(bell) = &desk.bell {
            // If the channel is full, the thread wakes anyway. If it is closed, the thread ends, and refuses
            // the order.
            let _ = bell.try_send(());
        }
        Ok(ordered)
    }

    /// The last order; `None`: there was no order.
    #[must_use]
    pub fn last(&self, now: Time) -> Option<Ordered> {
        let mut last = self.lock().last.clone();
        if let Some(last) = last.as_mut().filter(|it| !it.is_over()) {
            last.took_ns = now.since(last.asked).max(0);
        }
        last
    }

    /// An order for the log of this trail that its writer has not seen.
    pub(super) fn take(&self, trail: &Arc<Trail>) -> Option<Order> {
        let mut desk = self.lock();
        if !desk.is_of(trail) {
            return None;
        }
        let is_new = std::mem::take(&mut desk.is_new);
        let last = desk.last.as_ref().filter(|_| is_new)?;
        Some(last.order.clone())
    }

    /// How far the order is that the writer of the log of this trail has.
    pub(super) fn set(&self, trail: &Arc<Trail>, stage: Stage, now: Time) {
        let mut desk = self.lock();
        if desk.is_of(trail) {
            desk.set(stage, now);
        }
    }

    /// A writer of the log of this trail takes orders.
    pub(super) fn open(&self, bell: SyncSender<()>, trail: Arc<Trail>) {
        let mut desk = self.lock();
        (desk.bell, desk.of, desk.closed) = (Some(bell), Some(trail), None);
    }

    /// No one wakes the thread of the writer any more: it is about to end.
    pub(super) fn silence(&self) {
        self.lock().bell = None;
    }

    /// No writer takes orders any more, for this reason. The first one counts.
    pub(super) fn close(&self, why: &str, now: Time) {
        let mut desk = self.lock();
        (desk.bell, desk.of) = (None, None);
        let why = desk.closed.get_or_insert_with(|| why.to_owned()).clone();
        desk.set(Stage::Refused(why), now);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn now(ns: i64) -> Now {
        Now {
            mono: Time(ns),
            wall_ns: 1,
        }
    }

    /// Where the writer of the log of this trail takes orders, and no one is woken.
    fn opened() -> (Orders, Arc<Trail>) {
        let (orders, trail) = (Orders::default(), Arc::new(Trail::new(0)));
        orders.open(sync_channel(1).0, trail.clone());
        (orders, trail)
    }

    #[test]
    fn one_order_is_under_way_and_the_last_one_is_kept() {
        let (orders, trail) = opened();
        assert_eq!((orders.last(Time(0)), orders.take(&trail)), (None, None));
        let order = |name| Order {
            name: BaseName::parse(name),
            is_pinned: true,
        };
        let first = orders.ask(order("one"), now(5)).unwrap();
        assert_eq!((first.nth, &first.stage), (1, &Stage::Waiting));
        // Also one that is the same.
        assert_eq!(orders.ask(order("one"), now(6)), Err(first));
        assert_eq!(orders.take(&trail), Some(order("one")));
        assert_eq!(orders.take(&trail), None, "it is taken once");
        orders.set(&trail, Stage::Making, Time(7));
        assert_eq!(orders.last(Time(15)).unwrap().took_ns, 10);
        orders.set(&trail, Stage::Refused("it is late".into()), Time(25));
        let last = orders.last(Time(100)).unwrap();
        assert!(last.is_over() && last.took_ns == 20, "{last:?}");
        orders.set(&trail, Stage::Making, Time(30));
        assert_eq!(orders.last(Time(100)), Some(last), "it is over");
        assert_eq!(orders.ask(order("two"), now(6)).unwrap().nth, 2);
    }

    #[test]
    fn an_order_wakes_the_writer_and_is_refused_when_that_has_ended() {
        let (orders, trail) = opened();
        let (bell, rung) = sync_channel(1);
        orders.open(bell, trail.clone());
        orders.ask(Order::default(), now(5)).unwrap();
        assert_eq!(rung.recv(), Ok(()));
        orders.silence();
        assert!(rung.recv().is_err(), "no one can ring any more");
        orders.close("another writer", Time(6));
        orders.close("the end", Time(7));
        let refused = Stage::Refused("another writer".to_owned());
        assert_eq!(orders.last(Time(9)).unwrap().stage, refused);
        let late = orders.ask(Order::default(), now(8)).unwrap();
        assert_eq!((late.stage, orders.take(&trail)), (refused, None));
        let (bell, _rung) = sync_channel(1);
        orders.open(bell, trail);
        let next = orders.ask(Order::default(), now(9)).unwrap();
        assert_eq!(next.stage, Stage::Waiting);
    }
    /// The writer of an earlier lead may still be in a call of the store.
    #[test]
    fn an_order_is_for_one_log_and_one_that_is_over_is_left_to_no_writer() {
        let (orders, earlier) = opened();
        orders.ask(Order::default(), now(5)).unwrap();
        assert!(orders.take(&earlier).is_some());
        orders.close("another term", Time(6));
        let later = Arc::new(Trail::new(0));
        orders.open(sync_channel(1).0, later.clone());
        orders.ask(Order::default(), now(7)).unwrap();
        assert_eq!(orders.take(&earlier), None);
        orders.set(&earlier, Stage::Refused("its own".to_owned()), Time(8));
        assert_eq!(orders.last(Time(9)).unwrap().stage, Stage::Waiting);
        orders.set(&later, Stage::Refused("its store".to_owned()), Time(10));
        assert_eq!(orders.take(&later), None);
    }
}
