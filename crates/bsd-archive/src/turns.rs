//! A member of a cluster archives its log while it leads, and rests while it follows.
//!
//! The loop says when that changes, and never waits. It leaves a message, which replaces the one before,
//! and the thread of the archive reads it between two calls of the store. There is one such thread. So
//! a process never has two writers, even if its member is elected and steps down in quick succession.
//!
//! Each time that it leads a new writer claims the chain. If the log goes on where the chain stands,
//! because no other member has written meanwhile, then so does the chain. If not, a base follows. A
//! writer that finds its next number taken ends, and the next one finds out by whom: see `lead`.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::lead::Lead;
use super::report::Reporter;
use super::work::{Ended, PAUSE_MIN, Work};
use super::writer::Figures;
use bsd::clock::Clock;
use bsd::storage::Trail;

/// The newest message.
#[derive(Debug, Clone)]
enum Message {
    /// Another member leads, or none does.
    Rest,
    /// This one leads, and this trail tells of its log.
    Lead(Lead, Arc<Trail>),
    /// The server stops: put what there is, if this one leads.
    Stop { last: Option<Arc<Trail>> },
}

/// How a member tells its archive that it leads, and that it does not. Clones are one.
#[derive(Debug, Clone)]
pub struct Turns(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    hold_max: u64,
    lag_max: Option<Duration>,
    reporter: Reporter,
    clock: Clock,
    message: Mutex<Message>,
    wake: SyncSender<()>,
    /// Until the thread has it.
    woken: Mutex<Option<Receiver<()>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Turns {
    /// Of a member that does not lead yet. Its trails hold at most `hold_max` bytes of sealed segments;
    /// while it leads, the archive is late if it lacks something older than `lag_max`.
    #[must_use]
    pub fn new(
        hold_max: u64,
        lag_max: Option<Duration>,
        reporter: Reporter,
        clock: Clock,
    ) -> Turns {
        reporter.rest(clock.now().mono);
        let (wake, woken) = sync_channel(1);
        Turns(Arc::new(Shared {
            hold_max,
            lag_max,
            reporter,
            clock,
            message: Mutex::new(Message::Rest),
            wake,
            woken: Mutex::new(Some(woken)),
        }))
    }

    pub(super) fn reporter(&self) -> &Reporter {
        &self.0.reporter
    }

    /// This member leads from now on. Returns the trail to which its log is to be published, before
    /// anything is written to it. Does not wait.
    #[must_use]
    pub fn lead(&self, lead: Lead) -> Arc<Trail> {
        let trail = Trail::new(self.0.hold_max).with_lag_max(self.0.lag_max);
        let trail = Arc::new(trail);
        let orders = self.0.reporter.orders();
        orders.close(
            "this member began another term before the base was complete",
            self.0.clock.now().mono,
        );
        self.0.reporter.begin(trail.clone());
        orders.open(self.0.wake.clone(), trail.clone());
        self.say(Message::Lead(lead, trail.clone()));
        trail
    }

    /// This member does not lead any more. To be called before its log is let go. Does not wait: a call
    /// of the store may still be under way.
    pub fn rest(&self) {
        self.0.reporter.rest(self.0.clock.now().mono);
        self.say(Message::Rest);
    }

    /// The server stops, as what it is now.
    pub(super) fn stop(&self) {
        let last = match &*locked(&self.0.message) {
            Message::Lead(_, trail) => Some(trail.clone()),
            Message::Rest | Message::Stop { .. } => None,
        };
        self.say(Message::Stop { last });
    }

    fn say(&self, message: Message) {
        {
            let mut newest = locked(&self.0.message);
            match &*newest {
                Message::Lead(_, trail) if !matches!(message, Message::Stop { .. }) => trail.end(),
                Message::Stop { .. } => return,
                Message::Lead(..) | Message::Rest => {}
            }
            *newest = message;
        }
        // If it is full, the thread comes here anyway.
        let _ = self.0.wake.try_send(());
    }

    fn message(&self) -> Message {
        locked(&self.0.message).clone()
    }

    /// The thread: `work_of` makes the work of a lead, which counts on from these totals.
    pub(super) fn serve(
        &self,
        mut work_of: impl FnMut(Lead, Arc<Trail>, (Figures, u64)) -> Work,
    ) -> Result<(), Ended> {
        let Some(woken) = locked(&self.0.woken).take() else {
            return Ok(());
        };
        let mut totals = (Figures::default(), 0);
        loop {
            let (lead, trail) = match self.message() {
                Message::Stop { .. } => return Ok(()),
                Message::Rest => {
                    // The sender is here.
                    let _ = woken.recv();
                    continue;
                }
                Message::Lead(lead, trail) => (lead, trail),
            };
            let mut work = work_of(lead, trail.clone(), totals);
            let worked = self.work(&mut work, &trail, &woken);
            totals = work.totals();
            match worked {
                Err(Ended::Again) => drop(woken.recv_timeout(PAUSE_MIN)),
                other => other?,
            }
        }
    }

    /// Work as long as this lead lasts.
    fn work(&self, work: &mut Work, trail: &Arc<Trail>, woken: &Receiver<()>) -> Result<(), Ended> {
        loop {
            work.run(woken)?;
            match self.message() {
                Message::Lead(_, now) if Arc::ptr_eq(&now, trail) => {}
                Message::Stop { last: Some(last) } if Arc::ptr_eq(&last, trail) => {
                    return work.last();
                }
                Message::Lead(..) | Message::Rest | Message::Stop { .. } => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    fn lead(term: u64) -> Lead {
        Lead {
            cluster: [1; 16],
            member: 1,
            term,
        }
    }

    #[test]
    fn the_newest_message_counts_and_an_earlier_lead_is_over() {
        let reporter = Reporter::default();
        let turns = Turns::new(1 << 20, None, reporter.clone(), Clock::start());
        assert!(reporter.report().rests);
        let first = turns.lead(lead(1));
        assert!(!reporter.report().rests && !first.is_over());
        let second = turns.lead(lead(2));
        assert!(first.is_over() && !second.is_over());
        turns.rest();
        assert!(second.is_over() && reporter.report().rests);
        assert!(matches!(turns.message(), Message::Rest));
        let last = turns.lead(lead(3));
        turns.stop();
        assert!(!last.is_over(), "the rest is put");
        turns.rest();
        let Message::Stop { last: Some(found) } = turns.message() else {
            panic!("{:?}", turns.message());
        };
        assert!(Arc::ptr_eq(&last, &found));
    }

    #[test]
    fn what_a_call_of_an_earlier_lead_brings_is_not_reported() {
        let reporter = Reporter::default();
        let turns = Turns::new(1 << 20, None, reporter.clone(), Clock::start());
        let first = turns.lead(lead(1));
        let told = Report {
            epoch: Some(1),
            errors: 7,
            trouble: Some("the store is away".to_owned()),
            ..Report::default()
        };
        reporter.publish(&first, &told, None);
        assert_eq!(reporter.report(), told);
        turns.rest();
        let rests = Report {
            errors: 7,
            rests: true,
            ..Report::default()
        };
        assert_eq!(reporter.report(), rests, "totals stay");
        reporter.publish(&first, &told, None);
        assert_eq!(reporter.report(), rests);
        let _second = turns.lead(lead(2));
        reporter.publish(&first, &told, None);
        assert_eq!(reporter.report().epoch, None);
    }

    /// Leadership may change many times during one call of the store. Only the newest message is kept.
    #[test]
    fn no_more_than_one_lead_waits_for_the_thread() {
        let turns = Turns::new(1 << 20, None, Reporter::default(), Clock::start());
        let trails: Vec<_> = (0..1000).map(|term| turns.lead(lead(term))).collect();
        let held = trails.iter().filter(|it| Arc::strong_count(it) > 1);
        assert_eq!(held.count(), 1);
    }
}
