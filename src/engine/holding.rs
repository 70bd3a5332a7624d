//! Jobs that are held back for some time before they are deleted, so that the delete can be undone.
//!
//! A job that is held back is buried, with the reason in its text: that is one frame of the log, so it
//! is as durable and as widely known as any other change, and no worker is given the job. What it was
//! before is in the [`HeldJob`], which is in memory alone. If that is lost the job stays buried, and
//! anyone can kick it: nothing here deletes a job, and no start does.
//!
//! The text of a held job is the reason, and behind a newline the text that it had before. So a job that
//! is left behind has lost nothing of it, unless both together are longer than a text may be.
//!
//! A hold may not use the room that is set aside for updates on a full disk. So there is room for the way
//! back, and a job that has none for the hold is left as it is.
//!
//! A held job that someone kicks, moves, reserves or changes is held no more: a digest of all that can be
//! changed of a job says so.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use super::alter::Altered;
use super::commands::SERVED;
use super::failing::list_with;
use super::outcome::Logged;
use super::{Engine, ReplySink};
use crate::attributes::{Attributes, Reason, TEXT_SIZE_MAX};
use crate::queue::Queue;
use crate::storage::{AppendError, NO_KICK, Purpose, StoreError};
use crate::types::{Change, JobId, JobState, Now, Time};

/// Bytes of the reason at most.
pub const WHY_SIZE_MAX: usize = 300;

/// A job that is held back, and what it was before: some 60 bytes, and as many more as the reason took
/// of a text of 4 KiB.
#[derive(Debug)]
pub struct HeldJob {
    id: JobId,
    /// Of what it is while it is held.
    digest: u64,
    was: Was,
}

/// What a job was before it was held back.
#[derive(Debug)]
enum Was {
    Buried,
    /// Ready, or delayed until `due`.
    Waiting {
        due: Option<Time>,
        reason: Option<Reason>,
        /// Bytes that its text has beside its own; `None`: it had no text.
        before_text: Option<u16>,
        /// The end of its text, for which there is no room behind the reason.
        cut: Box<[u8]>,
    },
}

/// What became of a job that was to be brought back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// It is what it was before. Durable as the policy says once [`Engine::after`] is acknowledged.
    Done,
    /// It was deleted by someone else.
    Gone,
    /// Someone has kicked, reserved, moved or changed it: it is left as it is.
    Changed,
    /// There is no room on the disk. It is still held back.
    NoRoom,
}

impl HeldJob {
    /// The job.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.id
    }
}

impl Engine {
    /// Hold a job back: a ready or delayed one is buried, with this reason; a buried one is left as it
    /// is. `None` beside [`Altered::NotFound`], [`Altered::Reserved`] and [`Altered::NoRoom`], and then
    /// nothing has changed. Durable as the policy says once [`Engine::after`] is acknowledged.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    ///
    /// # Panics
    /// If the reason is longer than [`WHY_SIZE_MAX`].
    pub fn hold_back(
        &mut self,
        id: JobId,
        why: &str,
        now: Now,
    ) -> Result<(Altered, Option<HeldJob>), StoreError> {
        assert!(why.len() <= WHY_SIZE_MAX, "a reason of {} bytes", why.len());
        self.check()?;
        let Some(job) = self.queue.job(id) else {
            return Ok((Altered::NotFound, None));
        };
        let due = match job.state {
            JobState::Reserved => return Ok((Altered::Reserved, None)),
            JobState::Buried => return Ok((Altered::Same, self.held(id, Was::Buried))),
            JobState::Ready => None,
            JobState::Delayed => job.deadline,
        };
        let Some(bury) = self.queue.decide_bury(id, job.pri) else {
            unreachable!("job {id} exists")
        };
        let had = self.queue.attributes(id).and_then(Attributes::decode);
        let had = had.unwrap_or_default();
        let (text, rest) = behind_reason(why, had.text);
        let was = Was::Waiting {
            due,
            reason: had.reason,
            before_text: had.text.map(|_| why.len() as u16 + 1),
            cut: rest.into(),
        };
        let list = list_with(&self.queue, id, |had| Attributes {
            reason: Some(Reason::Buried),
            text: Some(&text),
            ..had
        });
        let logged = self.log_hold(&bury, (id, &list), now);
        match self.note_failure(logged)? {
            Logged::Done => Ok((Altered::Done, self.held(id, was))),
            Logged::Full => Ok((Altered::NoRoom, None)),
        }
    }

    /// Log and apply what holds a job back. It may not use what is set aside for one update of each job:
    /// that is its way back.
    fn log_hold(
        &mut self,
        bury: &Change<'_>,
        (id, list): (JobId, &[u8]),
        now: Now,
    ) -> Result<Logged, StoreError> {
        let attributes = Change::Attributes { id, list };
        self.make_way(Purpose::Pause, now)?;
        match (self.store).join_for(&[*bury, attributes], &[], Purpose::Pause, now) {
            Ok(()) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let logged = self.log_update(bury, NO_KICK, Purpose::Pause, now)?;
        if let Logged::Done = logged {
            self.log_joined(&attributes, now)?;
        }
        self.store.part()?;
        Ok(logged)
    }

    fn held(&self, id: JobId, was: Was) -> Option<HeldJob> {
        let digest = digest(&self.queue, id)?;
        Some(HeldJob { id, digest, was })
    }

    /// No one has changed the job since it was held back.
    #[must_use]
    pub fn is_held(&self, held: &HeldJob) -> bool {
        digest(&self.queue, held.id) == Some(held.digest)
    }

    /// The job is buried and says that it is held back for this reason.
    #[must_use]
    pub fn is_held_for(&self, id: JobId, why: &str) -> bool {
        let list = self.queue.attributes(id).and_then(Attributes::decode);
        let text = list.and_then(|list| list.text);
        text.is_some_and(|text| text.starts_with(why.as_bytes()))
            && (self.queue.job(id)).is_some_and(|job| job.state == JobState::Buried)
    }

    /// Bring a job back to what it was before it was held back: with its priority ready, or delayed until
    /// the same time, with the reason and the text that it had. If that time is over it is ready. What is
    /// counted of it says that it was buried and kicked. A job that someone has changed is left alone.
    ///
    /// On a full disk it may be back in its state and keep the text of the hold.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn bring_back(
        &mut self,
        held: &HeldJob,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Returned, StoreError> {
        self.check()?;
        let id = held.id;
        if self.queue.job(id).is_none() {
            return Ok(Returned::Gone);
        }
        if !self.is_held(held) {
            return Ok(Returned::Changed);
        }
        let returned = self.try_bring_back(held, now, sink);
        self.note_failure(returned)
    }

    fn try_bring_back(
        &mut self,
        held: &HeldJob,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Returned, StoreError> {
        let id = held.id;
        let Was::Waiting {
            due,
            reason,
            before_text,
            cut,
        } = &held.was
        else {
            return Ok(Returned::Done);
        };
        let due = due.filter(|due| *due > now.mono);
        let Some(back) = self.queue.decide_return(id, due) else {
            unreachable!("job {id} is held back")
        };
        let text = before_text.map(|before| {
            let list = self.queue.attributes(id).and_then(Attributes::decode);
            let text = list.and_then(|list| list.text).unwrap_or_default();
            let own = text.get(usize::from(before)..).unwrap_or_default();
            [own, cut].concat()
        });
        let list = list_with(&self.queue, id, |had| Attributes {
            reason: *reason,
            text: text.as_deref(),
            ..had
        });
        let mut logged = self.log_with_list(&back, (id, &list), NO_KICK, now)?;
        if matches!(logged, Logged::Full) {
            // Every job has room for this set aside.
            logged = self.update(&back, Purpose::Update, now)?;
        }
        if matches!(logged, Logged::Full) {
            return Ok(Returned::NoRoom);
        }
        self.serve_waiting(SERVED, now, sink)?;
        Ok(Returned::Done)
    }
}

/// The text of a job that is held back, and the end of the text that it had, for which there is no room.
fn behind_reason<'a>(why: &str, had: Option<&'a [u8]>) -> (Vec<u8>, &'a [u8]) {
    let mut text = why.as_bytes().to_vec();
    let Some(had) = had else {
        return (text, &[]);
    };
    text.push(b'\n');
    let (kept, cut) = had.split_at(had.len().min(TEXT_SIZE_MAX - text.len()));
    text.extend_from_slice(kept);
    (text, cut)
}

/// Of all that can be changed of a job; `None` if it is not buried.
fn digest(queue: &Queue, id: JobId) -> Option<u64> {
    let job = queue.job(id)?;
    let of = job.counters;
    let counters = [of.reserves, of.timeouts, of.releases, of.buries, of.kicks];
    let mut hasher = DefaultHasher::new();
    (job.tube, job.pri, job.delay, counters, queue.attributes(id)).hash(&mut hasher);
    (job.state == JobState::Buried).then(|| hasher.finish())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::engine::{JobAction, NewJob, Options};
    use crate::protocol::Reply;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;
    use crate::types::{ClientId, SECOND_NS, Ticket};

    const NOW: Now = Now::new(Time(0), 1_800_000_000_000_000_000);
    const WHY: &str = "held back by task 1";

    struct Nowhere;

    impl ReplySink for Nowhere {
        fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
    }

    fn open(fs: &SimFs) -> Engine {
        let options = Options::simulated(fs, "/log");
        Engine::open(&options, NOW).unwrap()
    }

    fn put(engine: &mut Engine, delay: u32, has: &Attributes<'_>) -> JobId {
        let job = NewJob {
            tube: "mail",
            pri: 7,
            delay,
            ttr: 60,
            body: b"body",
        };
        let id = engine.put_with(&job, has, NOW).unwrap().unwrap();
        engine.commit(NOW).unwrap();
        id
    }

    fn hold(engine: &mut Engine, id: JobId) -> HeldJob {
        let (_, held) = engine.hold_back(id, WHY, NOW).unwrap();
        held.unwrap()
    }

    fn back(engine: &mut Engine, held: &HeldJob, at: Now) -> Returned {
        engine.bring_back(held, at, &mut Nowhere).unwrap()
    }

    type Shown = (JobState, u32, Option<Time>, Option<Vec<u8>>);

    fn shown(engine: &Engine, id: JobId) -> Shown {
        let job = engine.queue().job(id).unwrap();
        let list = engine.queue().attributes(id).map(<[u8]>::to_vec);
        let list = list.filter(|list| !list.is_empty());
        (job.state, job.pri, job.deadline, list)
    }

    #[test]
    fn a_job_that_is_brought_back_is_what_it_was_also_after_a_crash() {
        let long = vec![b't'; TEXT_SIZE_MAX];
        let failed = |text| Attributes {
            key: Some("k"),
            group: Some("g"),
            failures: Some(3),
            counted_from: Some(2),
            reason: Some(Reason::Ttr),
            text: Some(text),
            ..Attributes::default()
        };
        for has in [
            Attributes::default(),
            failed(b""),
            failed(b"why"),
            failed(&long),
        ] {
            for (delay, is_buried) in [(0, false), (100, false), (0, true)] {
                let fs = SimFs::new(1);
                let mut engine = open(&fs);
                let id = put(&mut engine, delay, &has);
                if is_buried {
                    let bury = JobAction::Bury;
                    engine.alter(id, &bury, NOW, &mut Nowhere).unwrap();
                }
                let before = shown(&engine, id);
                let held = hold(&mut engine, id);
                assert_eq!(matches!(held.was, Was::Buried), is_buried);
                assert!(engine.is_held(&held));
                assert_eq!(engine.is_held_for(id, WHY), !is_buried);
                assert_eq!(shown(&engine, id).0, JobState::Buried);
                engine.commit(NOW).unwrap();
                assert_eq!(back(&mut engine, &held, NOW), Returned::Done);
                assert_eq!(shown(&engine, id), before);
                engine.commit(NOW).unwrap();
                let again = open(&fs.crash_image(Crash::DropUnsynced));
                assert_eq!(shown(&again, id), before);
            }
        }
    }

    #[test]
    fn a_crash_leaves_a_held_job_buried_with_its_reason_and_its_text() {
        let fs = SimFs::new(1);
        let mut engine = open(&fs);
        let has = Attributes {
            text: Some(b"no route"),
            ..Attributes::default()
        };
        let id = put(&mut engine, 0, &has);
        hold(&mut engine, id);
        engine.commit(NOW).unwrap();
        let mut again = open(&fs.crash_image(Crash::DropUnsynced));
        let list = again.queue().attributes(id).and_then(Attributes::decode);
        let list = list.unwrap();
        assert_eq!(list.text, Some(&b"held back by task 1\nno route"[..]));
        assert_eq!(list.reason, Some(Reason::Buried));
        assert_eq!(shown(&again, id).0, JobState::Buried);
        let done = again.alter(id, &JobAction::Kick, NOW, &mut Nowhere);
        assert_eq!(done.unwrap(), Altered::Done);
    }

    #[test]
    fn a_job_that_someone_has_changed_is_held_no_more() {
        let move_to = |tube: &str| JobAction::move_to(tube, false);
        let ways = [
            vec![JobAction::Kick],
            vec![JobAction::Kick, JobAction::Bury],
            vec![move_to("other")],
            vec![move_to("other"), move_to("mail")],
            vec![JobAction::Priority(9)],
            vec![JobAction::Delay(9)],
        ];
        for actions in ways {
            for is_buried in [false, true] {
                let mut engine = open(&SimFs::new(1));
                let id = put(&mut engine, 0, &Attributes::default());
                if is_buried {
                    let bury = JobAction::Bury;
                    engine.alter(id, &bury, NOW, &mut Nowhere).unwrap();
                }
                let held = hold(&mut engine, id);
                for action in &actions {
                    engine.alter(id, action, NOW, &mut Nowhere).unwrap();
                }
                let before = shown(&engine, id);
                assert!(!engine.is_held(&held), "{actions:?} {is_buried}");
                assert_eq!(back(&mut engine, &held, NOW), Returned::Changed);
                assert_eq!(shown(&engine, id), before);
            }
        }
        let mut engine = open(&SimFs::new(1));
        let id = put(&mut engine, 0, &Attributes::default());
        let held = hold(&mut engine, id);
        engine
            .alter(id, &JobAction::Delete, NOW, &mut Nowhere)
            .unwrap();
        assert_eq!(back(&mut engine, &held, NOW), Returned::Gone);
        let none = engine.hold_back(id, WHY, NOW).unwrap();
        assert!(matches!(none, (Altered::NotFound, None)));
    }

    #[test]
    fn a_delayed_job_whose_time_is_over_is_ready() {
        let mut engine = open(&SimFs::new(1));
        let id = put(&mut engine, 5, &Attributes::default());
        let held = hold(&mut engine, id);
        let later = Now {
            mono: Time(5 * SECOND_NS),
            ..NOW
        };
        assert_eq!(back(&mut engine, &held, later), Returned::Done);
        assert_eq!(shown(&engine, id).0, JobState::Ready);
    }

    #[test]
    fn a_full_disk_holds_a_job_back_or_leaves_it_and_brings_each_back() {
        let fs = SimFs::new(1);
        fs.set_quota(Some(600 << 10));
        let mut engine = open(&fs);
        // The reason takes more room than a job.
        let (body, why) = ([b'b'; 50], "w".repeat(WHY_SIZE_MAX));
        let job = NewJob {
            tube: "mail",
            pri: 7,
            delay: 0,
            ttr: 60,
            body: &body,
        };
        let mut ids = Vec::new();
        while let Some(id) = engine.put_with(&job, &Attributes::default(), NOW).unwrap() {
            ids.push(id);
            engine.commit(NOW).unwrap();
        }
        let (mut held, mut refused) = (Vec::new(), 0);
        for id in ids {
            match engine.hold_back(id, &why, NOW).unwrap() {
                (Altered::Done, Some(job)) => held.push(job),
                (Altered::NoRoom, None) => {
                    refused += 1;
                    assert_eq!(shown(&engine, id).0, JobState::Ready);
                }
                other => panic!("{other:?}"),
            }
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
        }
        assert!(refused > 0, "{} have room", held.len());
        for job in held {
            assert_eq!(back(&mut engine, &job, NOW), Returned::Done);
            assert_eq!(shown(&engine, job.id()).0, JobState::Ready);
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
        }
    }

    #[test]
    fn what_is_remembered_of_a_job_is_small() {
        assert!(size_of::<HeldJob>() <= 64, "{}", size_of::<HeldJob>());
        let (text, cut) = behind_reason(&"w".repeat(WHY_SIZE_MAX), Some(&[b't'; TEXT_SIZE_MAX]));
        assert_eq!((text.len(), cut.len()), (TEXT_SIZE_MAX, WHY_SIZE_MAX + 1));
    }
}
