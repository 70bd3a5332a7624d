//! `handover` under loom: the same source, with locks that try every order in which threads can
//! take them. The results hold for these few threads and calls, and for all their interleavings.

mod sync {
    pub(super) use loom::sync::{Arc, Mutex, MutexGuard};

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

#[path = "handover.rs"]
#[allow(
    clippy::duplicate_mod,
    reason = "once with the system's locks, once with loom's"
)]
mod handover;

use std::collections::VecDeque;
use std::future::poll_fn;

use loom::future::block_on;
use loom::sync::Condvar;
use loom::thread;

use self::handover::{Abandoned, Channel, Giver, Load, Refused, slot};
use self::sync::{Arc, Mutex, lock};

/// A channel, and what its taker sleeps on.
struct Post {
    channel: Channel<Giver<u32>, u32>,
    bell: Arc<(Mutex<bool>, Condvar)>,
}

impl std::ops::Deref for Post {
    type Target = Channel<Giver<u32>, u32>;

    fn deref(&self) -> &Self::Target {
        &self.channel
    }
}

fn channel(calls: usize) -> Arc<Post> {
    let bell = Arc::new((Mutex::new(false), Condvar::new()));
    let bound = Load {
        calls,
        bytes: usize::MAX,
    };
    let ringing = bell.clone();
    let ring = move || {
        *lock(&ringing.0) = true;
        ringing.1.notify_one();
    };
    Arc::new(Post {
        channel: Channel::new(bound, Box::new(ring)),
        bell,
    })
}

fn sleep(post: &Post) {
    let mut has_rung = lock(&post.bell.0);
    while !std::mem::take(&mut *has_rung) {
        has_rung = post.bell.1.wait(has_rung).unwrap();
    }
}

/// Send a call when there is room, and wait for its answer.
fn call(channel: &Post) -> Option<u32> {
    let (giver, taker) = slot();
    let (mut giver, mut ticket) = (Some(giver), None);
    block_on(poll_fn(|context| {
        channel.poll_send(&mut giver, 1, &mut ticket, context)
    }))
    .ok()?;
    block_on(poll_fn(|context| taker.poll(context)))
}

/// Answer `count` calls, as a loop does that sleeps in between.
fn answer(channel: &Post, count: u32) {
    let (mut calls, mut notes) = (VecDeque::new(), VecDeque::new());
    let mut answered = 0;
    while answered < count {
        channel.take(&mut calls, &mut notes);
        if calls.is_empty() {
            sleep(channel);
        }
        for giver in calls.drain(..) {
            answered += 1;
            let _ = giver.give(answered);
            let less = Load { calls: 1, bytes: 1 };
            channel.settle(Load::default(), less);
        }
    }
}

/// All interleavings with at most `preemptions` switches away from a thread that could have
/// continued.
fn all_orders(preemptions: usize, of: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(of);
}

#[test]
fn no_call_lies_unseen_and_each_is_answered_once() {
    all_orders(3, || {
        let channel = channel(2);
        let callers = [channel.clone(), channel.clone()]
            .map(|channel| thread::spawn(move || call(&channel).unwrap()));
        // A wake-up without any work, too.
        channel.ring();
        answer(&channel, 2);
        let mut got = callers.map(|caller| caller.join().unwrap());
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        assert_eq!(channel.load(), Load::default());
    });
}

#[test]
fn a_note_is_seen_whatever_calls_come_beside_it() {
    all_orders(2, || {
        let channel = channel(1);
        let noting = {
            let channel = channel.clone();
            thread::spawn(move || channel.note(7))
        };
        let calling = {
            let channel = channel.clone();
            thread::spawn(move || {
                let (giver, taker) = slot();
                assert!(channel.try_send(giver, 1).is_ok());
                drop(taker);
            })
        };
        let (mut calls, mut notes) = (VecDeque::new(), VecDeque::new());
        while calls.is_empty() || notes.is_empty() {
            channel.take(&mut calls, &mut notes);
            if calls.is_empty() || notes.is_empty() {
                sleep(&channel);
            }
        }
        noting.join().unwrap();
        calling.join().unwrap();
        assert!(calls.iter().all(Giver::is_abandoned));
        assert_eq!(notes, [7]);
    });
}

#[test]
fn room_that_comes_free_reaches_all_who_wait_for_it() {
    all_orders(2, || {
        let channel = channel(1);
        let callers = [channel.clone(), channel.clone()]
            .map(|channel| thread::spawn(move || call(&channel).unwrap()));
        answer(&channel, 2);
        for caller in callers {
            caller.join().unwrap();
        }
    });
}

#[test]
fn who_gives_up_a_place_lets_the_next_one_have_it() {
    all_orders(2, || {
        let channel = channel(1);
        let (first, _kept) = slot();
        assert!(channel.try_send(first, 1).is_ok());
        let patient = {
            let channel = channel.clone();
            thread::spawn(move || call(&channel).unwrap())
        };
        let (impatient, _taker) = slot();
        let (mut impatient, mut ticket) = (Some(impatient), None);
        let asked = block_on(poll_fn(|context| {
            let sent = channel.poll_send(&mut impatient, 1, &mut ticket, context);
            std::task::Poll::Ready(sent.is_pending())
        }));
        if asked && let Some(ticket) = ticket {
            channel.give_up(ticket);
        }
        answer(&channel, if asked { 2 } else { 3 });
        patient.join().unwrap();
    });
}

#[test]
fn a_channel_that_closes_leaves_no_one_waiting() {
    all_orders(3, || {
        let channel = channel(1);
        let callers =
            [channel.clone(), channel.clone()].map(|channel| thread::spawn(move || call(&channel)));
        drop(channel.close());
        for caller in callers {
            assert_eq!(caller.join().unwrap(), None);
        }
        let (late, _taker) = slot();
        assert!(matches!(channel.try_send(late, 1), Err(Refused::Closed)));
    });
}

#[test]
fn what_was_given_is_with_one_of_the_two_sides() {
    all_orders(3, || {
        let (giver, taker) = slot();
        let giving = thread::spawn(move || giver.give(7));
        let left = taker.abandon();
        let given = giving.join().unwrap();
        assert_eq!(left == Abandoned::Full(7), given == Ok(()));
        assert_eq!(left == Abandoned::Empty, given == Err(7));
    });
}

#[test]
fn a_giver_that_goes_away_is_noticed() {
    all_orders(3, || {
        let (giver, taker) = slot::<u32>();
        let leaving = thread::spawn(move || drop(giver));
        assert_eq!(block_on(poll_fn(|context| taker.poll(context))), None);
        leaving.join().unwrap();
    });
}
