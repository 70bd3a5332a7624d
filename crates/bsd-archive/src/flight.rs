//! Reads that are under way at the same time: by threads, or one after another.
//!
//! A thread has one request at a time, so there are as many requests as threads. They are started as
//! they are needed, and end when the flight is dropped, each after its request.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::store::{Answer, Flight, Store, Trouble, Want};

/// Reads one after another, each when its answer is asked for.
#[derive(Debug)]
pub(super) struct InTurn<'a> {
    store: &'a dyn Store,
    asked: VecDeque<(u64, Want)>,
}

impl<'a> InTurn<'a> {
    pub(super) fn new(store: &'a dyn Store) -> InTurn<'a> {
        InTurn {
            store,
            asked: VecDeque::new(),
        }
    }
}

impl Flight for InTurn<'_> {
    fn ask(&mut self, tag: u64, want: Want) {
        self.asked.push_back((tag, want));
    }

    fn answer(&mut self, is_awaited: bool) -> Option<(u64, Answer)> {
        let (tag, want) = match is_awaited {
            true => self.asked.pop_front()?,
            false => return None,
        };
        Some((tag, self.store.answer(&want)))
    }
}

type Read = Arc<dyn Fn(&Want) -> Answer + Send + Sync>;
/// A panic of a read is one of who waits for it.
type Answered = (u64, thread::Result<Answer>);

/// Reads by threads.
pub(super) struct Threads {
    read: Read,
    asked: Sender<(u64, Want)>,
    /// The other end of `asked`, which the threads share.
    line: Arc<Mutex<Receiver<(u64, Want)>>>,
    answered: Sender<Answered>,
    answers: Receiver<Answered>,
    under_way: usize,
    threads: usize,
    threads_max: usize,
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads")
            .field("under_way", &self.under_way)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Threads {
    /// At most `threads_max` reads at a time, which is at least 1.
    pub(super) fn new(
        threads_max: usize,
        read: impl Fn(&Want) -> Answer + Send + Sync + 'static,
    ) -> Threads {
        let (asked, line) = channel();
        let (answered, answers) = channel();
        Threads {
            read: Arc::new(read),
            asked,
            line: Arc::new(Mutex::new(line)),
            answered,
            answers,
            under_way: 0,
            threads: 0,
            threads_max: threads_max.max(1),
        }
    }

    fn start_one(&mut self) -> std::io::Result<()> {
        let (read, line, answered) = (self.read.clone(), self.line.clone(), self.answered.clone());
        let work = move || {
            loop {
                let next = line.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((tag, want)) = next else { return };
                let answer = catch_unwind(AssertUnwindSafe(|| read(&want)));
                if answered.send((tag, answer)).is_err() {
                    return;
                }
            }
        };
        let name = "archive read".to_owned();
        thread::Builder::new().name(name).spawn(work)?;
        self.threads += 1;
        Ok(())
    }
}

impl Flight for Threads {
    fn ask(&mut self, tag: u64, want: Want) {
        self.under_way += 1;
        if self.under_way > self.threads && self.threads < self.threads_max {
            let started = self.start_one();
            // With fewer threads it takes longer.
            if let (Err(error), 0) = (started, self.threads) {
                let what = format!("cannot start a thread to read {}: {error}", want.name);
                let answer = Ok(Err(Trouble::passing(what)));
                // Both ends of either are here.
                let _ = self.answered.send((tag, answer));
                return;
            }
        }
        let _ = self.asked.send((tag, want));
    }

    fn answer(&mut self, is_awaited: bool) -> Option<(u64, Answer)> {
        if self.under_way == 0 {
            return None;
        }
        let (tag, answer) = match is_awaited {
            true => self.answers.recv().ok()?,
            false => self.answers.try_recv().ok()?,
        };
        self.under_way -= 1;
        Some((tag, answer.unwrap_or_else(|panic| resume_unwind(panic))))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// Waits for answers to all, and returns their tags in the order in which they came.
    fn all(flight: &mut dyn Flight) -> Vec<u64> {
        std::iter::from_fn(|| flight.answer(true))
            .map(|(tag, answer)| {
                assert_eq!(answer, Ok(Some(tag.to_string().into_bytes())));
                tag
            })
            .collect()
    }

    #[test]
    fn reads_are_under_way_at_the_same_time() {
        // No read ends before three have begun.
        let barrier = Barrier::new(3);
        let mut threads = Threads::new(3, move |want| {
            barrier.wait();
            Ok(Some(want.name.clone().into_bytes()))
        });
        for tag in 0..9 {
            threads.ask(tag, Want::whole(&tag.to_string()));
        }
        let mut tags = all(&mut threads);
        tags.sort_unstable();
        assert_eq!(tags, (0..9).collect::<Vec<_>>());
        assert_eq!(threads.threads, 3);
        assert!(threads.answer(true).is_none() && threads.answer(false).is_none());
    }

    #[test]
    fn a_read_that_is_first_in_line_need_not_be_answered_first() {
        let (release, wait) = channel::<()>();
        let wait = Mutex::new(wait);
        let mut threads = Threads::new(2, move |want| {
            if want.name == "0" {
                wait.lock().unwrap().recv().unwrap();
            }
            Ok(Some(want.name.clone().into_bytes()))
        });
        for tag in 0..5 {
            threads.ask(tag, Want::whole(&tag.to_string()));
        }
        let mut tags: Vec<u64> = (0..4).map(|_| threads.answer(true).unwrap().0).collect();
        tags.sort_unstable();
        assert_eq!(tags, [1, 2, 3, 4]);
        assert!(threads.answer(false).is_none());
        release.send(()).unwrap();
        assert_eq!(all(&mut threads), [0]);
    }

    #[test]
    #[should_panic(expected = "of a read")]
    fn a_panic_of_a_thread_is_one_of_who_waits() {
        let mut threads = Threads::new(2, |_| panic!("of a read"));
        threads.ask(0, Want::whole("it"));
        threads.answer(true);
    }
}
