//! Places for connections, and the memory for the bodies of requests: who gets a place, who gives way,
//! and how many bytes all requests together may hold.
//!
//! A connection is *at work* from the moment its request is complete until the answer is there. One
//! that is not at work gives way: it is idle, its request has not arrived in full, or it waits because
//! its token was wrong. A few places are kept for probes, and no other request is answered there. So
//! clients that hold all the other places, by slow requests or by slow answers, cannot make a server
//! look dead.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::warn;

/// How long a request may take, from its header to its answer.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(30);
/// How long a client may take to read an answer, and then to begin the next request.
pub(super) const IDLE_TIME: Duration = Duration::from_secs(30);
/// Connections that are open at a time. The next one takes the place of one that is not at work: of
/// the address that has the most connections, the one that has waited for longest.
pub const CONNECTIONS_MAX: usize = 64;
/// Connections beside those, where only probes are answered: when all others are at work.
pub(super) const PROBES_MAX: usize = 16;
/// At most one warning in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);
/// A body is held as it arrived and as it was understood.
const COPIES: usize = 2;

/// State of a connection.
#[derive(Debug)]
pub(super) struct Watch {
    begun: Instant,
    /// Only probes are answered.
    is_for_probes: bool,
    is_at_work: AtomicBool,
    /// A request of it has been answered.
    has_been_answered: AtomicBool,
    /// Milliseconds from its beginning to when it must have come further.
    deadline_ms: AtomicU64,
    /// The same of when it last came further.
    since_ms: AtomicU64,
    /// Bytes that are held for the body of its request.
    held: AtomicUsize,
}

impl Watch {
    pub(super) fn new(is_for_probes: bool) -> Watch {
        Watch {
            begun: Instant::now(),
            is_for_probes,
            is_at_work: AtomicBool::new(false),
            has_been_answered: AtomicBool::new(false),
            deadline_ms: AtomicU64::new(ms(IDLE_TIME)),
            since_ms: AtomicU64::new(0),
            held: AtomicUsize::new(0),
        }
    }

    /// The header of a request has arrived.
    pub(super) fn begin(&self) {
        self.come_further(false, REQUEST_TIME + IDLE_TIME);
    }

    /// More of its body has arrived.
    fn note_arrival(&self) {
        let since = ms(self.begun.elapsed());
        self.since_ms.store(since, Ordering::Relaxed);
    }

    /// The request is complete, and who sent it may send it.
    pub(super) fn work(&self) {
        self.come_further(true, REQUEST_TIME + IDLE_TIME);
    }

    /// The answer is there, or a part of it has left.
    pub(super) fn rest(&self) {
        self.has_been_answered.store(true, Ordering::Relaxed);
        self.come_further(false, IDLE_TIME);
    }

    fn come_further(&self, is_at_work: bool, time: Duration) {
        let since = ms(self.begun.elapsed());
        self.is_at_work.store(is_at_work, Ordering::Relaxed);
        self.since_ms.store(since, Ordering::Relaxed);
        self.deadline_ms.store(since + ms(time), Ordering::Relaxed);
    }

    pub(super) fn deadline(&self) -> Instant {
        self.begun + Duration::from_millis(self.deadline_ms.load(Ordering::Relaxed))
    }

    /// Only probes are answered here.
    pub(super) fn is_for_probes(&self) -> bool {
        self.is_for_probes
    }

    #[cfg(test)]
    pub(super) fn gives_way(&self) -> bool {
        self.waiting_since().is_some()
    }

    /// Since when it has not come further; `None` if it is at work.
    fn waiting_since(&self) -> Option<Instant> {
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        (!self.is_at_work.load(Ordering::Relaxed)).then(|| self.begun + since)
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A connection that has a place.
#[derive(Debug)]
struct Open {
    task: AbortHandle,
    peer: SocketAddr,
    watch: Arc<Watch>,
}

/// All places.
#[derive(Debug)]
pub(super) struct Places {
    /// Bytes that the bodies of requests may take, all together. One body may exceed it.
    bytes_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    open: Vec<Open>,
    bytes: usize,
    /// Connections that were closed or refused before their request was complete.
    closed: u64,
    last_warning: Option<Instant>,
}

impl Places {
    pub(super) fn new(bytes_max: usize) -> Places {
        Places {
            bytes_max,
            taken: Mutex::default(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for another connection; `None`: all are taken. [`Places::seat`] takes it.
    pub(super) fn find(&self, peer: SocketAddr) -> Option<Arc<Watch>> {
        let mut taken = self.taken();
        taken.open.retain(|open| !open.task.is_finished());
        let is_for_probes = [false, true].into_iter().find(|is_for_probes| {
            let max = [CONNECTIONS_MAX, PROBES_MAX][usize::from(*is_for_probes)];
            let of_kind = taken.open.iter();
            let count = of_kind
                .filter(|it| it.watch.is_for_probes == *is_for_probes)
                .count();
            count < max || taken.make_room(*is_for_probes)
        });
        if is_for_probes.is_none() {
            taken.note(peer, "all places are taken");
        }
        is_for_probes.map(|is_for_probes| Arc::new(Watch::new(is_for_probes)))
    }

    /// A connection has begun in the place that was found for it.
    pub(super) fn seat(&self, task: AbortHandle, peer: SocketAddr, watch: Arc<Watch>) {
        self.taken().open.push(Open { task, peer, watch });
    }

    /// Memory for the body of a request, none yet.
    pub(super) fn hold<'a>(&'a self, watch: &'a Arc<Watch>) -> Held<'a> {
        Held {
            places: self,
            watch,
        }
    }
}

impl Taken {
    /// Close a connection of a kind that is not at work; false: each is at work.
    fn make_room(&mut self, is_for_probes: bool) -> bool {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for open in &self.open {
            *counts.entry(open.peer.ip()).or_default() += 1;
        }
        let kind = self.open.iter().enumerate();
        let kind = kind.filter(|(_, open)| open.watch.is_for_probes == is_for_probes);
        let waiting = kind.filter_map(|(at, open)| {
            let since = open.watch.waiting_since()?;
            Some((std::cmp::Reverse(counts[&open.peer.ip()]), since, at))
        });
        let Some((_, _, at)) = waiting.min() else {
            return false;
        };
        self.close(at, "all places are taken");
        true
    }

    /// Close a connection, and tell if it has never had a complete request.
    fn close(&mut self, at: usize, why: &str) {
        let open = self.open.swap_remove(at);
        open.task.abort();
        let held = open.watch.held.swap(0, Ordering::Relaxed);
        self.bytes -= held;
        if held > 0 || !open.watch.has_been_answered.load(Ordering::Relaxed) {
            self.note(open.peer, why);
        }
    }

    fn note(&mut self, peer: SocketAddr, why: &str) {
        self.closed += 1;
        let is_due = |at: Instant| at.elapsed() >= WARNING_INTERVAL;
        if self.last_warning.is_none_or(is_due) {
            self.last_warning = Some(Instant::now());
            warn!(
                "HTTP connections closed before their request was complete: {} so far; the last \
                 one, of {peer}: {why}",
                self.closed
            );
        }
    }

    /// The connection, another than this one, whose body has not grown for the longest time.
    fn longest_holder(&self, but: &Arc<Watch>) -> Option<usize> {
        let others = self.open.iter().enumerate();
        let others = others.filter(|(_, open)| !Arc::ptr_eq(&open.watch, but));
        let holders = others.filter_map(|(at, open)| {
            let holds = open.watch.held.load(Ordering::Relaxed) > 0;
            Some((open.watch.waiting_since().filter(|_| holds)?, at))
        });
        holders.min().map(|(_, at)| at)
    }
}

/// The memory that the body of a request takes, until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    places: &'a Places,
    watch: &'a Arc<Watch>,
}

impl Held<'_> {
    /// `count` bytes more have arrived. False if there is no room for them, and no other request
    /// that could give way.
    pub(super) fn grow(&self, count: usize) -> bool {
        let count = COPIES * count;
        self.watch.note_arrival();
        let mut taken = self.places.taken();
        taken.bytes += count;
        let mine = count + self.watch.held.fetch_add(count, Ordering::Relaxed);
        while taken.bytes > self.places.bytes_max && taken.bytes > mine {
            match taken.longest_holder(self.watch) {
                Some(at) => taken.close(at, "requests hold all the memory that they may"),
                None => return false,
            }
        }
        true
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.bytes -= self.watch.held.swap(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::paused;

    fn peer(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 1))
    }

    /// A connection from there that lasts until it is closed.
    fn seat(places: &Places, last: u8) -> Option<Arc<Watch>> {
        let watch = places.find(peer(last))?;
        let task = tokio::spawn(std::future::pending::<()>());
        places.seat(task.abort_handle(), peer(last), watch.clone());
        Some(watch)
    }

    fn has_place(places: &Places, watch: &Arc<Watch>) -> bool {
        let taken = places.taken();
        taken.open.iter().any(|it| Arc::ptr_eq(&it.watch, watch))
    }

    #[test]
    fn g27_a_request_that_is_not_complete_gives_way_and_one_at_work_does_not() {
        paused(async {
            let places = Places::new(0);
            let all: Vec<_> = (0..CONNECTIONS_MAX)
                .map(|_| seat(&places, 1).unwrap())
                .collect();
            all.iter().for_each(|watch| watch.work());
            all[7].begin();
            let next = seat(&places, 2).unwrap();
            assert!(!next.is_for_probes() && !has_place(&places, &all[7]));
            next.work();
            let probes: Vec<_> = (0..PROBES_MAX).map(|_| seat(&places, 3).unwrap()).collect();
            assert!(probes.iter().all(|watch| watch.is_for_probes()));
            assert!(seat(&places, 4).unwrap().is_for_probes());
            assert!(!has_place(&places, &probes[0]));
            all.iter().for_each(|watch| watch.rest());
            assert!(!seat(&places, 4).unwrap().is_for_probes());
        });
    }

    #[test]
    fn g27_the_address_with_the_most_connections_gives_way_first() {
        paused(async {
            let places = Places::new(0);
            let single = seat(&places, 1).unwrap();
            for _ in 0..3 * CONNECTIONS_MAX {
                seat(&places, 2).unwrap();
            }
            assert!(has_place(&places, &single));
        });
    }

    #[test]
    fn g29_the_body_that_has_not_grown_for_longest_gives_way() {
        paused(async {
            let places = Places::new(COPIES * 100);
            let [old, new, big] = [1, 2, 3].map(|last| seat(&places, last).unwrap());
            let of_old = places.hold(&old);
            assert!(of_old.grow(50));
            tokio::time::advance(Duration::from_secs(1)).await;
            let of_new = places.hold(&new);
            assert!(of_new.grow(50));
            assert!(has_place(&places, &old));
            assert!(of_new.grow(1));
            assert!(!has_place(&places, &old) && has_place(&places, &new));
            drop(of_old);
            new.work();
            let of_big = places.hold(&big);
            assert!(!of_big.grow(100), "what is at work does not give way");
            drop((of_new, of_big));
            assert_eq!(places.taken().bytes, 0);
            assert!(places.hold(&big).grow(1000), "one may exceed it");
        });
    }
}
