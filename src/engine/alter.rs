//! Changes of a job by its id, for an operator, over the API: it is deleted, kicked or buried
//! without reserving it, or its priority, its delay or its tube is changed.
//!
//! A job that a client has reserved is the client's: it is left alone, unless it is taken from the
//! client first, as if its time were up. A delete is one record, everything else one record of a
//! job's state, as a release is, except for a move. A job stays in its tube for life, so a move is
//! the put of a copy and the delete of the original, in one frame of the log: a crash leaves the one
//! or the other, never both and never neither.

use std::sync::Arc;

use super::commands::SERVED;
use super::outcome::{Handed, Logged};
use super::{Engine, ReplySink};
use crate::protocol::Op;
use crate::queue::JobView;
use crate::storage::{AppendError, NO_KICK, Purpose, StoreError};
use crate::types::{Change, Counters, JobId, JobState, Now};

/// Change of a job for an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobAction {
    /// As the command `delete`.
    Delete,
    /// As the command `kick-job`.
    Kick,
    /// It is buried, with the priority that it has.
    Bury,
    /// It is delayed for this many seconds from now, at least 1.
    Delay(u32),
    /// It gets this priority. It stays in its state; among buried jobs it comes last.
    Priority(u32),
    /// It is in another tube, under a new id, and as old as before. Among buried jobs it comes last.
    Move {
        /// The tube.
        tube: Box<str>,
        /// A delayed or buried job is kicked: it is ready there. Otherwise it keeps its state.
        kick: bool,
    },
    /// A dead letter goes back to the tube that it came from, ready, and its deliveries are counted from
    /// now on. A job that was set aside in its own tube is ready there, as after a kick.
    Redrive,
    /// It is taken from the client that has reserved it, and ready again, with the priority that it
    /// has and without a record. What the client does with it then is answered as after its time.
    TakeBack,
}

impl JobAction {
    /// Its name.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            JobAction::Delete => "delete",
            JobAction::Kick => "kick",
            JobAction::Bury => "bury",
            JobAction::Delay(_) => "delay",
            JobAction::Priority(_) => "priority",
            JobAction::Move { .. } => "move",
            JobAction::Redrive => "redrive",
            JobAction::TakeBack => "release",
        }
    }
}

/// Result of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Altered {
    /// It is done, and durable as the policy says once [`Engine::after`] is acknowledged. The job
    /// has this id now, or had it when it was deleted.
    Done(JobId),
    /// It was so before.
    Same,
    /// There is no such job.
    NotFound,
    /// A client has reserved it.
    Reserved,
    /// There is no room on the disk or in the memory, or no id is left. Nothing happened.
    NoRoom,
    /// Its body, which a move copies, could not be read as it was put. The job has been buried.
    Damaged,
}

impl Engine {
    /// Do this to a job that no client has reserved, or take it from the one that has.
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    pub fn alter(
        &mut self,
        id: JobId,
        action: &JobAction,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        self.check()?;
        let altered = self.try_alter(id, action, now, sink);
        if let Err(error) = &altered {
            self.failed = Some(error.clone());
        }
        altered
    }

    fn try_alter(
        &mut self,
        id: JobId,
        action: &JobAction,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        let Some(job) = self.queue.job(id) else {
            return Ok(Altered::NotFound);
        };
        let is_reserved = job.state == JobState::Reserved;
        if is_reserved && *action != JobAction::TakeBack {
            return Ok(Altered::Reserved);
        }
        let change = match action {
            JobAction::Delete => return self.delete_job(id, now),
            JobAction::Kick if job.state == JobState::Ready => return Ok(Altered::Same),
            JobAction::TakeBack if !is_reserved => return Ok(Altered::Same),
            JobAction::TakeBack => {
                // Someone may wait for it.
                self.is_busy |= self.queue.take_back(id, now.mono);
                return Ok(Altered::Done(id));
            }
            JobAction::Priority(pri) if *pri == job.pri => return Ok(Altered::Same),
            JobAction::Bury if job.state == JobState::Buried => return Ok(Altered::Same),
            JobAction::Move { tube, .. } if **tube == *job.tube => return Ok(Altered::Same),
            JobAction::Move { tube, kick } => {
                return self.move_job(id, (tube, *kick), now, sink);
            }
            JobAction::Redrive => return self.redrive(id, now, sink),
            JobAction::Kick => {
                self.count(Op::KickJob);
                self.queue.decide_kick(id)
            }
            JobAction::Priority(pri) => self.queue.decide_priority(id, *pri),
            JobAction::Bury => self.queue.decide_bury(id, job.pri),
            JobAction::Delay(seconds) => self.queue.decide_delay(id, (*seconds).max(1), now.mono),
        };
        let Some(change) = change else {
            unreachable!("job {id} exists and is not reserved")
        };
        let logged = match action {
            JobAction::Kick => self.log_kick(&change, id, NO_KICK, now)?,
            JobAction::Bury if self.has_deliveries(id) => {
                let pri = self.queue.job(id).map_or(0, |job| job.pri);
                self.bury_with(id, pri, None, now)?
            }
            _ => self.update(&change, Purpose::Update, now)?,
        };
        if let Logged::Full = logged {
            return Ok(Altered::NoRoom);
        }
        if *action == JobAction::Kick {
            self.serve_waiting(SERVED, now, sink)?;
        }
        Ok(Altered::Done(id))
    }

    fn redrive(
        &mut self,
        id: JobId,
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        let Some(logged) = self.send_back(id, now)? else {
            return Ok(Altered::Same);
        };
        self.serve_waiting(SERVED, now, sink)?;
        Ok(match logged {
            Logged::Done => Altered::Done(id),
            Logged::Full => Altered::NoRoom,
        })
    }

    fn delete_job(&mut self, id: JobId, now: Now) -> Result<Altered, StoreError> {
        self.count(Op::Delete);
        Ok(match self.delete(id, now)? {
            Logged::Done => Altered::Done(id),
            Logged::Full => Altered::NoRoom,
        })
    }

    fn move_job(
        &mut self,
        id: JobId,
        (tube, kick): (&str, bool),
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        if !self.has_room_for_tube(tube, now) {
            return Ok(Altered::NoRoom);
        }
        let Some(body_size) = self.queue.job(id).map(|job| job.body_size) else {
            return Ok(Altered::NotFound);
        };
        if self.memory_max.is_some() && !self.has_memory_for(body_size.into(), now) {
            return Ok(Altered::NoRoom);
        }
        self.make_way(Purpose::Delete, now)?;
        let body = match self.copy_body(id, now)? {
            Ok(body) => body,
            Err(altered) => return Ok(altered),
        };
        let Some(copy) = self.queue.take_id() else {
            return Ok(Altered::NoRoom);
        };
        let altered = self.replace(id, copy, (tube, kick), &body, now)?;
        self.serve_waiting(SERVED, now, sink)?;
        Ok(altered)
    }

    /// The body of a job, or the reason why it cannot be read.
    fn copy_body(&mut self, id: JobId, now: Now) -> Result<Result<Vec<u8>, Altered>, StoreError> {
        let Some(job) = self.queue.job(id) else {
            return Ok(Err(Altered::NotFound));
        };
        let (place, tube_size, body_size) = (job.place, job.put_tube_size, job.body_size as usize);
        let error = match self.store.read_body(place, id, tube_size, body_size) {
            Ok(body) => return Ok(Ok(body.to_vec())),
            Err(error) => error,
        };
        Ok(Err(match self.not_read(id, &error, now)? {
            Handed::NotNow => Altered::NoRoom,
            _ => Altered::Damaged,
        }))
    }

    /// Put a copy of a job into another tube and delete the original, in one frame.
    fn replace(
        &mut self,
        id: JobId,
        copy: JobId,
        (tube, kick): (&str, bool),
        body: &[u8],
        now: Now,
    ) -> Result<Altered, StoreError> {
        let Some(mut job) = self.queue.job(id) else {
            return Ok(Altered::NotFound);
        };
        if kick && job.state != JobState::Ready {
            job.state = JobState::Ready;
            job.counters.kicks = job.counters.kicks.saturating_add(1);
        }
        let list = self.list_of_copy(id, tube, now);
        let mut logged = vec![put_of_copy(&job, copy, tube)];
        logged.extend(
            list.as_deref()
                .map(|list| Change::Attributes { id: copy, list }),
        );
        if !is_as_put(&job) {
            logged.push(update_of_copy(&job, copy));
        }
        let logged = &logged[..];
        match self.store.join(logged, body, now) {
            Ok(()) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Altered::NoRoom),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let events = self.queue.event_count();
        let from: Arc<str> = job.tube.into();
        let is_done = self.log_copy(logged, tube, body, now)?;
        if is_done {
            let deleted = self.log_delete(id, now)?;
            // A panic leaves nothing of this on the disk: the frame is not written yet.
            assert!(
                matches!(deleted, Logged::Done),
                "room was made for the delete of job {id}"
            );
        }
        let moved = is_done.then_some((id, &*from, copy));
        self.queue.replace_events(events, moved, now.mono);
        self.store.part()?;
        Ok(match is_done {
            true => Altered::Done(copy),
            false => Altered::NoRoom,
        })
    }

    /// Log and apply the changes that make a copy; `false`: there was no room, and nothing is left
    /// of it.
    fn log_copy(
        &mut self,
        changes: &[Change<'_>],
        tube: &str,
        body: &[u8],
        now: Now,
    ) -> Result<bool, StoreError> {
        for change in changes {
            let logged = match *change {
                Change::Put { .. } => self.log_put(change, tube, body, now)?,
                Change::Attributes { .. } => self.log_attributes(change, now)?,
                _ => self.log_update(change, NO_KICK, Purpose::Update, now)?,
            };
            match (logged, *change) {
                (Logged::Done, _) => {}
                (Logged::Full, Change::Update { id, .. } | Change::Attributes { id, .. }) => {
                    let undone = self.log_delete(id, now)?;
                    assert!(
                        matches!(undone, Logged::Done),
                        "room was made for the delete of job {id}"
                    );
                    return Ok(false);
                }
                (Logged::Full, _) => return Ok(false),
            }
        }
        Ok(true)
    }
}

/// The put alone says all there is to say of the job, attributes apart.
fn is_as_put(job: &JobView<'_>) -> bool {
    job.state == JobState::Ready && job.delay == 0 && job.counters == Counters::default()
}

fn put_of_copy<'a>(job: &JobView<'_>, copy: JobId, tube: &'a str) -> Change<'a> {
    Change::Put {
        id: copy,
        tube,
        pri: job.pri,
        delay: 0,
        ttr: job.ttr,
        created: job.created,
        body_size: job.body_size,
    }
}

fn update_of_copy(job: &JobView<'_>, copy: JobId) -> Change<'static> {
    Change::Update {
        id: copy,
        state: job.state,
        pri: job.pri,
        delay: job.delay,
        deadline: job.deadline.unwrap_or_default(),
        counters: job.counters,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::engine::Options;
    use crate::protocol::{Command, Reply, Request};
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;
    use crate::types::{ClientId, Ticket, Time};

    const NOW: Now = Now {
        mono: Time(0),
        wall_ns: 1_800_000_000_000_000_000,
    };
    /// Some of them do not fit into what is left of a segment, and one is a frame of its own.
    const SIZES: [usize; 12] = [
        10, 20_000, 30_000, 5, 40_000, 9_000, 50_000, 1_200_000, 0, 60_000, 33_000, 1,
    ];

    struct Nowhere;

    impl ReplySink for Nowhere {
        fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
    }

    fn open(fs: &SimFs) -> Result<Engine, crate::OpenError> {
        let options = Options {
            dir: Some("/log".into()),
            segment_size: 64 << 10,
            job_size_max: 2 << 20,
            fs: Arc::new(fs.clone()),
            ..Options::default()
        };
        Engine::open(&options, NOW)
    }

    /// A disk with a ready or buried job of each of the sizes, with ids from 1 on.
    fn filled() -> SimFs {
        let fs = SimFs::new(1);
        let mut engine = open(&fs).unwrap();
        let client = engine.connect();
        for (id, size) in (1..).map(JobId).zip(SIZES) {
            let put = Command::Put {
                tube: None,
                pri: 1,
                delay: 0,
                ttr: 1,
                body: vec![b'x'; size].into(),
            };
            engine.run(client, Request::Command(put), NOW, &mut Nowhere);
            if id.0 % 2 == 0 {
                let done = engine.alter(id, &JobAction::Bury, NOW, &mut Nowhere);
                assert_eq!(done.unwrap(), Altered::Done(id));
            }
            engine.commit(NOW).unwrap();
        }
        fs
    }

    #[test]
    fn a_plain_job_that_is_sent_back_stays_plain() {
        let mut engine = open(&filled()).unwrap();
        let mut redrive = |id| engine.alter(id, &JobAction::Redrive, NOW, &mut Nowhere);
        assert_eq!(redrive(JobId(1)).unwrap(), Altered::Same, "it is ready");
        assert_eq!(redrive(JobId(2)).unwrap(), Altered::Done(JobId(2)));
        let job = engine.queue().job(JobId(2)).unwrap();
        assert_eq!((job.state, job.counters.kicks), (JobState::Ready, 1));
        assert_eq!(engine.queue().attributes(JobId(2)), None);
    }

    /// Move all of them, three at a commit.
    fn move_all(fs: &SimFs) -> Result<(), String> {
        let mut engine = open(fs).map_err(|error| error.to_string())?;
        let to = JobAction::Move {
            tube: "to".into(),
            kick: false,
        };
        for id in (1..=SIZES.len() as u64).map(JobId) {
            let done = engine.alter(id, &to, NOW, &mut Nowhere);
            let done = done.map_err(|error| error.to_string())?;
            if fs.is_crashed() {
                return Err("it has crashed".into());
            }
            assert!(
                matches!(done, Altered::Done(now) if now > id),
                "{id}: {done:?}"
            );
            if id.0 % 3 == 0 {
                engine
                    .tick(NOW, &mut Nowhere)
                    .map_err(|error| error.to_string())?;
                engine.commit(NOW).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Of each size how many jobs there are, and whether they are buried.
    fn jobs(fs: &SimFs) -> BTreeMap<u32, Vec<JobState>> {
        let engine = open(fs).unwrap_or_else(|error| panic!("{error}"));
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for job in engine.queue().ids().filter_map(|id| engine.queue().job(id)) {
            found.entry(job.body_size).or_default().push(job.state);
        }
        found
    }

    #[test]
    fn a_crash_in_a_move_leaves_the_job_once_and_in_its_state() {
        let disk = filled();
        let wanted = jobs(&disk.crash_image(Crash::KeepAll));
        assert_eq!(wanted.len(), SIZES.len());
        for at in 0.. {
            let fs = disk.crash_image(Crash::KeepAll);
            fs.crash_at(at);
            let moved = move_all(&fs);
            for how in [
                Crash::KeepAll,
                Crash::DropUnsynced,
                Crash::Random { seed: at },
            ] {
                assert_eq!(
                    jobs(&fs.crash_image(how)),
                    wanted,
                    "operation {at}, {how:?}"
                );
            }
            if !fs.is_crashed() {
                moved.unwrap();
                assert!(at > 40, "only {at} operations");
                break;
            }
        }
    }

    /// D17: also of those whose priority was changed while they were buried.
    #[test]
    fn d17_buried_jobs_of_another_priority_are_in_the_same_order_after_a_restart() {
        let fs = filled();
        let mut engine = open(&fs).unwrap();
        for id in [4, 2, 8] {
            let done = engine.alter(JobId(id), &JobAction::Priority(7), NOW, &mut Nowhere);
            assert_eq!(done.unwrap(), Altered::Done(JobId(id)));
        }
        engine.commit(NOW).unwrap();
        let order = |engine: &Engine| {
            let (queue, mut ids, mut mark) = (engine.queue(), Vec::new(), None);
            while let Ok(Some(next)) = queue.job_behind("default", JobState::Buried, mark) {
                ids.push(next.id.0);
                mark = Some(next);
            }
            ids
        };
        assert_eq!(order(&engine), [6, 10, 12, 4, 2, 8]);
        drop(engine);
        assert_eq!(order(&open(&fs).unwrap()), [6, 10, 12, 4, 2, 8]);
    }

    /// The records of a move are together from the first on, whatever is left of the segment.
    #[test]
    fn a_move_at_the_end_of_a_segment_has_room_for_all_of_its_records() {
        let mut lefts = Vec::new();
        for short in (0..640).step_by(8) {
            let mut engine = open(&SimFs::new(1)).unwrap();
            let client = engine.connect();
            let mut put = |size: u64| {
                let put = Command::Put {
                    tube: None,
                    pri: 1,
                    delay: 0,
                    ttr: 1,
                    body: vec![b'x'; size as usize].into(),
                };
                engine.run(client, Request::Command(put), NOW, &mut Nowhere);
                engine.commit(NOW).unwrap();
                engine.log().unwrap().left()
            };
            let left = put(10);
            lefts.push(put(left - short));
            // Buried, so that the copy needs an update too.
            let id = JobId(1);
            for action in [
                JobAction::Bury,
                JobAction::Move {
                    tube: "to".into(),
                    kick: false,
                },
            ] {
                let done = engine.alter(id, &action, NOW, &mut Nowhere);
                assert!(matches!(done.unwrap(), Altered::Done(_)), "{short}");
                engine.commit(NOW).unwrap();
            }
        }
        for left in (200..400).step_by(8) {
            let is_near = |it: &u64| it.abs_diff(left) < 8;
            assert!(lefts.iter().any(is_near), "{left} in {lefts:?}");
        }
    }

    #[test]
    fn a_full_disk_moves_nothing_and_loses_nothing() {
        let fs = filled();
        let wanted = jobs(&fs.crash_image(Crash::KeepAll));
        let mut refused = 0;
        for room in (0..3_000_000).step_by(100_000) {
            let image = fs.crash_image(Crash::KeepAll);
            image.set_quota(Some(image.used() + room));
            let Ok(mut engine) = open(&image) else {
                continue;
            };
            let to = JobAction::Move {
                tube: "to".into(),
                kick: false,
            };
            for id in (1..=SIZES.len() as u64).map(JobId) {
                let done = engine.alter(id, &to, NOW, &mut Nowhere).unwrap();
                refused += u32::from(done == Altered::NoRoom);
                assert!(
                    matches!(done, Altered::NoRoom | Altered::Done(_)),
                    "{done:?}"
                );
                engine.commit(NOW).unwrap();
            }
            drop(engine);
            assert_eq!(jobs(&image.crash_image(Crash::KeepAll)), wanted, "{room}");
        }
        assert!(refused > 0);
    }
}
