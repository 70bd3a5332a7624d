//! The copying on a thread of its own, and what it and the loop tell each other.
//!
//! The thread asks which records are alive, a batch at a time: the index is the loop's.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::rewrite::{Compaction, Copied, Progress};
use super::subject::Asked;
use crate::storage::log::sync::Waker;

/// What the thread tells the loop.
#[derive(Debug)]
enum Message {
    Query(Vec<Asked>),
    Done(Box<Copied>),
}

/// A compaction whose copying runs beside the loop.
#[derive(Debug)]
pub(super) struct Beside {
    messages: Receiver<Message>,
    answers: Sender<Vec<bool>>,
    /// Ends when the channels above are gone.
    _thread: Joined,
}

/// What the loop has heard of the thread.
pub(super) enum Told {
    /// It had a question, which is answered.
    Asked,
    /// Nothing yet.
    Nothing,
    /// It has come to its end.
    Done(Box<Copied>),
    /// It ended without a result.
    Gone,
}

impl Beside {
    /// Let the copying begin; `waker` tells the loop that there is something to take.
    pub(super) fn start(compaction: Box<Compaction>, waker: Waker) -> Beside {
        let (to_loop, messages) = channel();
        let (answers, from_loop) = channel();
        let thread = Joined::spawn("bsd-compact", move || {
            let copied = run(compaction, |records| {
                to_loop.send(Message::Query(records)).ok()?;
                waker();
                from_loop.recv().ok()
            });
            if let Some(copied) = copied {
                // The log may be closed by now; then the next start clears the unfinished file.
                let _ = to_loop.send(Message::Done(copied));
                waker();
            }
        });
        Beside {
            messages,
            answers,
            _thread: thread,
        }
    }

    /// Answer the thread, and wait for its question so long at most.
    pub(super) fn step(
        &self,
        wait: Option<Duration>,
        is_live: &dyn Fn(&[Asked]) -> Vec<bool>,
    ) -> Told {
        let message = match (self.messages.try_recv(), wait) {
            (Err(TryRecvError::Empty), Some(wait)) => {
                let message = self.messages.recv_timeout(wait);
                message.map_err(|_| TryRecvError::Empty)
            }
            (message, _) => message,
        };
        match message {
            Ok(Message::Done(copied)) => Told::Done(copied),
            Ok(Message::Query(records)) => match self.answers.send(is_live(&records)) {
                Ok(()) => Told::Asked,
                // The thread is gone; its channel will say so.
                Err(_) => Told::Nothing,
            },
            Err(TryRecvError::Empty) => Told::Nothing,
            Err(TryRecvError::Disconnected) => Told::Gone,
        }
    }
}

/// A thread that has ended when this is dropped. A log that is closed lets go of its directory:
/// whoever opens it next must not find the threads of the last one at work in its files.
#[derive(Debug)]
struct Joined(Option<JoinHandle<()>>);

impl Joined {
    fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Joined {
        match std::thread::Builder::new().name(name.into()).spawn(work) {
            Ok(thread) => Joined(Some(thread)),
            // The work is dropped, and its channels with it: whoever waits for it sees that.
            Err(error) => {
                tracing::warn!("could not start a thread: {error}");
                Joined(None)
            }
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic in it has been reported already.
            let _ = thread.join();
        }
    }
}

/// Copy all. `None`: nobody answers any more, the loop is gone.
fn run(
    mut compaction: Box<Compaction>,
    mut ask: impl FnMut(Vec<Asked>) -> Option<Vec<bool>>,
) -> Option<Box<Copied>> {
    loop {
        match compaction.step(&mut ask) {
            Progress::More(rest) => compaction = rest,
            Progress::Done(copied) => return Some(copied),
            Progress::Unanswered => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_thread_has_ended_when_it_is_let_go() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (go, may_go) = channel::<()>();
        let ended = has_ended.clone();
        let thread = Joined::spawn("test", move || {
            // Nobody sends: it goes on when the other end is dropped.
            let _ = may_go.recv();
            (0..10_000).for_each(|_| std::thread::yield_now());
            ended.store(true, Ordering::SeqCst);
        });
        drop(go);
        drop(thread);
        assert!(has_ended.load(Ordering::SeqCst));
    }
}
