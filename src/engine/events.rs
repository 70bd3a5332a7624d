//! Events of jobs, told to other threads once they are acknowledged.
//!
//! The engine writes events into a [`Feed`], a ring that forgets the oldest; anyone who listens reads
//! from it at a pace of its own, and sees by the numbers of the events how many it has missed. So a
//! listener never holds anything up. An event is in the feed only when the ticket is acknowledged
//! that a reply given after it would wait for: no one hears of what a crash could take back.
//!
//! The engine has no hold of the feed: it stops keeping events when the last listener has dropped it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Engine;
use crate::queue::Event;
use crate::types::{Now, Ticket};

/// Events that a feed has, and events that may wait until they are acknowledged.
pub const FEED_MAX: usize = 16_384;

/// An event, as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Its number. They grow by one; where some are missing, they were lost.
    pub number: u64,
    /// When it happened: nanoseconds since 1970.
    pub wall_ns: u64,
    /// The event.
    pub event: Event,
}

/// The last events that were acknowledged.
pub struct Feed {
    ring: Mutex<VecDeque<Told>>,
    ring_bell: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

impl Feed {
    /// `bell` is called from the engine's thread when there is something new. It must not wait.
    pub fn new(bell: impl Fn() + Send + Sync + 'static) -> Feed {
        Feed {
            ring: Mutex::default(),
            ring_bell: Box::new(bell),
        }
    }

    /// The events from this number on, at most `count` of them.
    #[must_use]
    pub fn read(&self, from: u64, count: usize) -> Vec<Told> {
        let ring = self.ring();
        let first = ring.partition_point(|told| told.number < from);
        ring.range(first..).take(count).cloned().collect()
    }

    fn add(&self, new: impl Iterator<Item = Told>) {
        let mut ring = self.ring();
        for told in new {
            if ring.len() == FEED_MAX {
                ring.pop_front();
            }
            ring.push_back(told);
        }
        drop(ring);
        (self.ring_bell)();
    }

    fn ring(&self) -> MutexGuard<'_, VecDeque<Told>> {
        // What a panic left behind is whole: an event is in it or not.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's side.
#[derive(Debug, Default)]
pub(super) struct Telling {
    feed: Weak<Feed>,
    /// Events that are not acknowledged.
    waiting: VecDeque<(Ticket, Told)>,
    /// The number of the next event.
    next: u64,
}

impl Telling {
    /// Number the events, and keep them until `after` is acknowledged. Past the bound the oldest are
    /// lost.
    fn keep(&mut self, (events, lost): (Vec<Event>, u64), after: Ticket, now: Now) {
        for event in events {
            if self.waiting.len() == FEED_MAX {
                self.waiting.pop_front();
            }
            let told = Told {
                number: self.next,
                wall_ns: now.to_wall(event.at),
                event,
            };
            self.waiting.push_back((after, told));
            self.next += 1;
        }
        self.next += lost;
    }

    /// Tell what waited for a ticket up to this one.
    fn tell(&mut self, feed: &Feed, upto: Ticket) {
        let count = self.waiting.partition_point(|(after, _)| *after <= upto);
        if count > 0 {
            feed.add(self.waiting.drain(..count).map(|(_, told)| told));
        }
    }
}

/// Events.
impl Engine {
    /// From now on events are written into this feed, until it is dropped everywhere else. There is
    /// one at a time: the one before gets no more. Returns the number of the next event.
    pub fn listen(&mut self, feed: &Arc<Feed>, now: Now) -> u64 {
        let (earlier, after) = (self.queue.take_events(), self.after());
        let telling = &mut self.telling;
        telling.keep(earlier, after, now);
        if !std::ptr::eq(telling.feed.as_ptr(), Arc::as_ptr(feed)) {
            telling.waiting.clear();
            telling.feed = Arc::downgrade(feed);
        }
        self.queue.watch_events(true);
        self.telling.next
    }

    /// Tell what is acknowledged by now. Call it once a turn, after [`Engine::commit`]; it costs
    /// nothing where no one listens.
    pub fn tell_events(&mut self, now: Now) {
        if !self.queue.watches_events() {
            return;
        }
        let Some(feed) = self.telling.feed.upgrade() else {
            self.queue.watch_events(false);
            self.telling.waiting.clear();
            return;
        };
        let (new, after) = (self.queue.take_events(), self.after());
        self.telling.keep(new, after, now);
        let upto = self.acknowledged();
        self.telling.tell(&feed, upto);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{JobAction, Options, ReplySink};
    use crate::protocol::{Command, Reply, Request};
    use crate::queue::Happened;
    use crate::storage::SimFs;
    use crate::types::{ClientId, JobId, Time};

    const NOW: Now = Now::new(Time(0), 1_800_000_000_000_000_000);

    struct Nowhere;

    impl ReplySink for Nowhere {
        fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
    }

    fn open() -> (Engine, ClientId) {
        let options = Options {
            dir: Some("/log".into()),
            fs: Arc::new(SimFs::new(1)),
            ..Options::default()
        };
        let mut engine = Engine::open(&options, NOW).unwrap();
        let client = engine.connect();
        (engine, client)
    }

    fn run(engine: &mut Engine, client: ClientId, command: Command<'_>) {
        engine.run(client, Request::Command(command), NOW, &mut Nowhere);
    }

    fn put(engine: &mut Engine, client: ClientId) {
        let put = Command::put(7, 0, 1, b"body");
        run(engine, client, put);
    }

    fn told(feed: &Feed) -> Vec<(u64, JobId, Happened)> {
        let of = |told: Told| (told.number, told.event.job, told.event.what);
        feed.read(0, usize::MAX).into_iter().map(of).collect()
    }

    #[test]
    fn no_one_hears_of_what_is_not_acknowledged() {
        let (mut engine, client) = open();
        put(&mut engine, client);
        let feed = Arc::new(Feed::new(|| ()));
        assert_eq!(engine.listen(&feed, NOW), 0);
        put(&mut engine, client);
        run(&mut engine, client, Command::Delete(JobId(1)));
        engine.tell_events(NOW);
        assert_eq!(told(&feed), []);
        engine.commit(NOW).unwrap();
        engine.tell_events(NOW);
        let put = Happened::Put {
            pri: 7,
            delay: 0,
            body_size: 4,
        };
        let wanted = [(0, JobId(2), put), (1, JobId(1), Happened::Delete)];
        assert_eq!(told(&feed), wanted);
    }

    #[test]
    fn a_move_is_one_event() {
        let (mut engine, client) = open();
        put(&mut engine, client);
        let feed = Arc::new(Feed::new(|| ()));
        engine.listen(&feed, NOW);
        let to = JobAction::move_to("to", false);
        engine.alter(JobId(1), &to, NOW, &mut Nowhere).unwrap();
        engine.commit(NOW).unwrap();
        engine.tell_events(NOW);
        let to = "to".into();
        assert_eq!(told(&feed), [(0, JobId(1), Happened::Move { to })]);
    }

    #[test]
    fn what_no_one_reads_is_lost_and_its_number_missing() {
        let (mut engine, client) = open();
        let feed = Arc::new(Feed::new(|| ()));
        engine.listen(&feed, NOW);
        let turns = 5;
        for _ in 0..turns {
            for _ in 0..crate::queue::EVENTS_MAX + 1 {
                put(&mut engine, client);
            }
            engine.commit(NOW).unwrap();
            engine.tell_events(NOW);
        }
        let (all, numbers) = (turns * (crate::queue::EVENTS_MAX as u64 + 1), told(&feed));
        assert_eq!(numbers.len(), FEED_MAX);
        assert!(numbers[0].0 > 0);
        // The last of each turn had no room.
        assert_eq!(numbers[FEED_MAX - 1].0, all - 2);
    }

    #[test]
    fn events_are_kept_no_more_when_no_one_listens() {
        let (mut engine, client) = open();
        let feed = Arc::new(Feed::new(|| ()));
        engine.listen(&feed, NOW);
        put(&mut engine, client);
        drop(feed);
        engine.tell_events(NOW);
        assert!(!engine.queue().watches_events());
        put(&mut engine, client);
        assert_eq!(engine.queue().event_count(), 0);
        // Anyone who comes next hears of nothing before.
        let feed = Arc::new(Feed::new(|| ()));
        let next = engine.listen(&feed, NOW);
        put(&mut engine, client);
        engine.commit(NOW).unwrap();
        engine.tell_events(NOW);
        let numbers: Vec<u64> = told(&feed).iter().map(|told| told.0).collect();
        assert_eq!(numbers, [next]);
    }
}
