//! Changes of a job by its id, for an operator, over the API: it is deleted, kicked or buried
//! without reserving it, or its priority, its delay or its tube is changed.
//!
//! A job that a client has reserved is the client's: it is left alone, unless it is taken from the
//! client first, as if its time were up. A delete is one record, a move one of the tube that the job is
//! in, everything else one record of a job's state, as a release is. Where a job is moved and kicked,
//! both records are in one frame of the log.

use super::commands::SERVED;
use super::outcome::Logged;
use super::{Engine, ReplySink};
use crate::protocol::Op;
use crate::storage::{NO_KICK, Purpose, StoreError};
use crate::types::{JobId, JobState, Now};

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
    /// As the command `move-job`: it is in another tube, with the id, the age and the state that it has.
    /// Among buried jobs it comes last.
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
    /// It is moved to this tube, and kicked there if `kick` says so.
    #[must_use]
    pub fn move_to(tube: impl Into<Box<str>>, kick: bool) -> JobAction {
        let tube = tube.into();
        JobAction::Move { tube, kick }
    }

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
    /// It is done, and durable as the policy says once [`Engine::after`] is acknowledged.
    Done,
    /// It was so before.
    Same,
    /// There is no such job.
    NotFound,
    /// A client has reserved it.
    Reserved,
    /// There is no room on the disk or in the memory. Nothing happened.
    NoRoom,
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
                return Ok(Altered::Done);
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
        Ok(Altered::Done)
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
        Ok(altered(logged))
    }

    fn delete_job(&mut self, id: JobId, now: Now) -> Result<Altered, StoreError> {
        self.count(Op::Delete);
        Ok(altered(self.delete(id, now)?))
    }

    fn move_job(
        &mut self,
        id: JobId,
        (tube, kick): (&str, bool),
        now: Now,
        sink: &mut dyn ReplySink,
    ) -> Result<Altered, StoreError> {
        self.count(Op::MoveJob);
        let logged = self.move_to(id, (tube, kick), now)?;
        self.serve_waiting(SERVED, now, sink)?;
        Ok(altered(logged))
    }
}

fn altered(logged: Logged) -> Altered {
    match logged {
        Logged::Done => Altered::Done,
        Logged::Full => Altered::NoRoom,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::engine::Options;
    use crate::protocol::{Command, Reply, Request};
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;
    use crate::types::{ClientId, Ticket, Time};

    const NOW: Now = Now::new(Time(0), 1_800_000_000_000_000_000);
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
            job_size_max: 2 << 20,
            ..Options::simulated(fs, "/log")
        };
        Engine::open(&options, NOW)
    }

    /// A disk with a ready or buried job of each of the sizes, with ids from 1 on.
    fn filled() -> SimFs {
        let fs = SimFs::new(1);
        let mut engine = open(&fs).unwrap();
        let client = engine.connect();
        for (id, size) in (1..).map(JobId).zip(SIZES) {
            let put = Command::put(1, 0, 1, vec![b'x'; size]);
            engine.run(client, Request::Command(put), NOW, &mut Nowhere);
            if id.0 % 2 == 0 {
                let done = engine.alter(id, &JobAction::Bury, NOW, &mut Nowhere);
                assert_eq!(done.unwrap(), Altered::Done);
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
        assert_eq!(redrive(JobId(2)).unwrap(), Altered::Done);
        let job = engine.queue().job(JobId(2)).unwrap();
        assert_eq!((job.state, job.counters.kicks), (JobState::Ready, 1));
        assert_eq!(engine.queue().attributes(JobId(2)), None);
    }

    /// Move all of them, three at a commit.
    fn move_all(fs: &SimFs) -> Result<(), String> {
        let mut engine = open(fs).map_err(|error| error.to_string())?;
        let to = JobAction::move_to("to", false);
        for id in (1..=SIZES.len() as u64).map(JobId) {
            let done = engine.alter(id, &to, NOW, &mut Nowhere);
            let done = done.map_err(|error| error.to_string())?;
            if fs.is_crashed() {
                return Err("it has crashed".into());
            }
            assert_eq!(done, Altered::Done, "{id}");
            if id.0 % 3 == 0 {
                engine
                    .tick(NOW, &mut Nowhere)
                    .map_err(|error| error.to_string())?;
                engine.commit(NOW).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Of each job its size and its state.
    fn jobs(fs: &SimFs) -> BTreeMap<JobId, (u32, JobState)> {
        let engine = open(fs).unwrap_or_else(|error| panic!("{error}"));
        let jobs = engine.queue().ids().filter_map(|id| engine.queue().job(id));
        jobs.map(|job| (job.id, (job.body_size, job.state)))
            .collect()
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
            assert_eq!(done.unwrap(), Altered::Done);
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
                let put = Command::put(1, 0, 1, vec![b'x'; size as usize]);
                engine.run(client, Request::Command(put), NOW, &mut Nowhere);
                engine.commit(NOW).unwrap();
                engine.log().unwrap().left()
            };
            let left = put(10);
            lefts.push(put(left - short));
            // Buried, so that the move has a record of its state too.
            let id = JobId(1);
            for action in [JobAction::Bury, JobAction::move_to("to", true)] {
                let done = engine.alter(id, &action, NOW, &mut Nowhere);
                assert!(matches!(done.unwrap(), Altered::Done), "{short}");
                engine.commit(NOW).unwrap();
            }
        }
        for left in (200..400).step_by(8) {
            let is_near = |it: &u64| it.abs_diff(left) < 8;
            assert!(lefts.iter().any(is_near), "{left} in {lefts:?}");
        }
    }

    /// Put small jobs until there is no room for one.
    fn fill(engine: &mut Engine) {
        let client = engine.connect();
        loop {
            let next = engine.queue().next_id();
            let put = Command::put(1, 0, 1, vec![b'x'; 100]);
            engine.run(client, Request::Command(put), NOW, &mut Nowhere);
            engine.commit(NOW).unwrap();
            if engine.queue().job(next).is_none() {
                return;
            }
        }
    }

    #[test]
    fn a_full_disk_moves_nothing_and_loses_nothing() {
        let fs = filled();
        for room in [70_000, 200_000, 500_000] {
            let image = fs.crash_image(Crash::KeepAll);
            image.set_quota(Some(image.used() + room));
            let mut engine = open(&image).unwrap();
            fill(&mut engine);
            let wanted = jobs(&image.crash_image(Crash::KeepAll));
            let to = JobAction::move_to("t".repeat(200), false);
            // What a job has in another tube takes room that no other record gives back.
            let mut move_one = |id: u64| {
                let done = engine.alter(JobId(id), &to, NOW, &mut Nowhere).unwrap();
                engine.commit(NOW).unwrap();
                done
            };
            let ids = 1..=wanted.len() as u64;
            let moved: Vec<_> = ids.map(&mut move_one).collect();
            let count = |wanted| moved.iter().filter(|it| **it == wanted).count();
            let (done, refused) = (count(Altered::Done), count(Altered::NoRoom));
            assert_eq!(done + refused, moved.len(), "{room}: {moved:?}");
            assert!(refused > 0, "{room}: {done} were moved");
            drop(engine);
            assert_eq!(jobs(&image.crash_image(Crash::KeepAll)), wanted, "{room}");
        }
    }
}
