//! Extended commands to the leader: whatever of them was acknowledged the next leader has, too. All disks
//! are compared as a whole; here is what that does not show.

use bsd::attributes::TEXT_SIZE_MAX;
use bsd::check::extended::{
    BEATS, any_change, any_end, any_put, assert_beats, beat, beat_of, is_scheduled,
};
use bsd::clearing::ClearedStates;
use bsd::queue::Queue;

use super::*;

/// A schedule fires every two seconds.
const SECONDS: u32 = 2;

/// Whether a job is one of the counted ones.
pub(super) fn is_beat(queue: &Queue, id: JobId) -> bool {
    queue.job(id).is_some_and(|job| job.tube == BEATS)
}

impl Cluster {
    /// Run an extended command if that may be; `false` if not.
    pub(super) fn extended(&mut self) -> Result<bool, Crashed> {
        let is_beating = (self.leader().schedules()).any(|it| it.schedule.tube == BEATS);
        if !is_beating {
            let set = Command::ScheduleSet(Box::new(beat(SECONDS, self.now)));
            return Ok(self.ask(self.boss, 0, set)?.is_some());
        }
        let mut random = self.extending.clone();
        self.extending.next();
        let nth = random.below(1usize << 20);
        let id = JobId(self.nth_id(nth).unwrap_or(1));
        self.interfere();
        match random.below(10) {
            0..4 => self.put_extended(&mut random),
            4..7 => match self.nth_reserved(nth) {
                Some((id, worker)) => {
                    let end = any_end(&mut random, JobId(id));
                    let said = self.ask(self.workers[worker], TEXT_SIZE_MAX, end)?;
                    self.keep_reserved();
                    Ok(said.is_some())
                }
                None => Ok(true),
            },
            _ => {
                let change = any_change(&mut random, &TUBES, id, false);
                // A kick of many waits: see `kick`.
                if let Command::Kick { .. } = change {
                    return Ok(true);
                }
                let said = self.ask(self.boss, 0, change)?;
                self.keep_reserved();
                Ok(said.is_some())
            }
        }
    }

    /// A clear of more jobs than its own frame deletes; soon after, other nodes lead.
    pub(super) fn clear_many(&mut self, turn: usize) {
        if self.mood.extended == 0 || self.mood.buried == 0 || turn > 8 {
            return;
        }
        if turn > 2 {
            if self.random.percent(60) {
                self.change_leader();
            }
            return;
        }
        let tube = TUBES[0].into();
        let states = ClearedStates::Buried;
        let clear = Command::ClearTube { tube, states };
        self.interfere();
        if self.ask(self.boss, 9 << 10, clear).is_err() {
            self.leader_crashed();
        }
    }

    fn put_extended(&mut self, random: &mut Random) -> Result<bool, Crashed> {
        let (id, size) = (
            self.leader().queue().next_id(),
            random.below(self.mood.size_max),
        );
        let tube = random.pick(&TUBES);
        let put = any_put(random, tube, body(id, size).to_vec(), self.now);
        let said = self.ask(self.boss, size, put)?;
        if let Some(Some(Said::Inserted(found))) = said {
            assert_eq!(found, id.0);
            self.bodies.insert(found, (found, size));
        }
        Ok(said.is_some())
    }

    /// Who has what, as the queue knows it: a policy may have taken it away.
    fn keep_reserved(&mut self) {
        let engine = self.nodes[self.leader].engine.as_ref();
        let queue = engine.expect("it is open").queue();
        self.reserved.retain(|(id, _)| {
            let job = queue.job(JobId(*id));
            job.is_some_and(|job| job.state == JobState::Reserved)
        });
    }

    pub(super) fn check_beats(&self, state: &Whole, who: &str) {
        assert_beats(state, SECONDS, who);
    }

    /// Time has passed, and there was room: nothing that was due has still to be done.
    pub(super) fn check_last_beat(&self) {
        let state = state_of(self.leader(), self.now);
        let period = u64::from(SECONDS) * 1_000_000_000;
        if let Some((_, fired)) = beat_of(&state) {
            assert_eq!(fired / period, self.now.wall_ns / period, "the last firing");
        }
    }

    /// A job that no client has put is one of a schedule.
    pub(super) fn check_scheduled(&self, id: u64, bytes: &[u8]) {
        assert!(is_scheduled(bytes), "job {id} was never put");
    }

    /// A client was given a job. Where a limit counts deliveries, the next leader counts this one.
    pub(super) fn note_counted(&mut self, id: u64) {
        let queue = self.leader().queue();
        let job = queue.job(JobId(id)).expect("it was handed out");
        let policy = queue.policy_of(job.tube);
        let has_limit = policy.is_some_and(|(_, policy)| policy.delivery_limit.is_some());
        let reserves = job.counters.reserves;
        if has_limit {
            self.counted.insert(id, reserves);
        }
    }

    /// Another node leads: what it does not have was not acknowledged.
    pub(super) fn forget_uncommitted(&mut self, node: usize) {
        let engine = self.nodes[node].engine.as_ref();
        let queue = engine.expect("it is open").queue();
        self.counted.retain(|id, count| {
            let job = queue.job(JobId(*id));
            *count = job.map_or(0, |job| job.counters.reserves).min(*count);
            *count > 0
        });
        self.bodies.retain(|id, _| *id < queue.next_id().0);
    }
}
