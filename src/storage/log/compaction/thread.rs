//! The copying on its own thread, and the messages between that thread and the loop.
//!
//! The thread asks which records are alive, one batch at a time, because the index belongs to the
//! loop.

use std::io;
use std::sync::mpsc::{Receiver, SendError, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::rewrite::{Compaction, Copied, Progress};
use super::subject::Asked;
use crate::storage::log::sync::Waker;

/// A message from the thread to the loop.
#[derive(Debug)]
enum Message {
    Query(Vec<Asked>),
    Done(Box<Copied>),
}

/// A compaction whose records are copied on a thread.
#[derive(Debug)]
pub(super) struct CompactionThread {
    messages: Receiver<Message>,
    answers: Sender<Vec<bool>>,
    /// Ends when the channels above are closed.
    _thread: Joined,
}

/// Message from the thread to the loop.
pub(super) enum Told {
    /// It asked a question, and was answered.
    Asked,
    /// No message yet.
    Nothing,
    /// It has finished.
    Done(Box<Copied>),
    /// It ended without a result.
    Gone,
}

impl CompactionThread {
    /// Start the copying; `waker` wakes the loop when there is a message. Returns the compaction if
    /// no thread can be started.
    pub(super) fn start(
        compaction: Box<Compaction>,
        waker: Waker,
    ) -> Result<CompactionThread, Box<Compaction>> {
        let (begin, begun) = channel();
        let (to_loop, messages) = channel();
        let (answers, from_loop) = channel();
        let thread = Joined::spawn("bsd-compact", move || {
            let Ok(compaction) = begun.recv() else {
                return;
            };
            let copied = run(compaction, |records| {
                to_loop.send(Message::Query(records)).ok()?;
                waker();
                from_loop.recv().ok()
            });
            if let Some(copied) = copied {
                // If the log is closed by now, the next start removes the unfinished file.
                let _ = to_loop.send(Message::Done(copied));
                waker();
            }
        });
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => {
                tracing::warn!("could not start a thread: {error}");
                return Err(compaction);
            }
        };
        begin
            .send(compaction)
            .map_err(|SendError(compaction)| compaction)?;
        Ok(CompactionThread {
            messages,
            answers,
            _thread: thread,
        })
    }

    /// Answer the thread, and wait at most `wait` for its question.
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

/// A thread that has ended when this is dropped. A closed log gives up its directory: the next
/// process that opens it must not find threads of this one still working in its files.
#[derive(Debug)]
struct Joined(Option<JoinHandle<()>>);

impl Joined {
    fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Joined> {
        let thread = Builder::new().name(name.into()).spawn(work)?;
        Ok(Joined(Some(thread)))
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

/// Copy everything. `None` if the loop is gone and does not answer.
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
            // Nothing is ever sent: it continues when the other end is dropped.
            let _ = may_go.recv();
            (0..10_000).for_each(|_| std::thread::yield_now());
            ended.store(true, Ordering::SeqCst);
        });
        drop(go);
        drop(thread.unwrap());
        assert!(has_ended.load(Ordering::SeqCst));
    }
}
