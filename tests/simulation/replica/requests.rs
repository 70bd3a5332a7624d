//! Random requests of clients to the leader: each is run only if the log has room for it and wants
//! no quiet moment.

use bsd::attributes::LIST_SIZE_MAX;
use bsd::engine::NewJob;

use super::super::beyond::{CLASS, LISTS, NAMES};
use super::*;

/// Requests.
impl Cluster {
    pub(super) fn run_requests(&mut self) -> Result<u64, Crashed> {
        let count = 1 + self.random.below(self.mood.turn);
        let mut run = 0;
        for _ in 0..count {
            if !self.request()? {
                break;
            }
            run += 1;
        }
        self.figures.requests += run;
        Ok(run)
    }

    /// Run a request if that may be; `false` if not.
    fn request(&mut self) -> Result<bool, Crashed> {
        if self.mood.extended > 0 && self.extending.percent(self.mood.extended) {
            return self.extended();
        }
        let jobs = self.leader().queue().stats().jobs.total() as usize;
        let worker = self.random.below(WORKERS);
        let client = self.workers[worker];
        let (pri, delay) = (
            self.random.below(4u32) * 700,
            self.random.pick(&[0, 0, 0, 1, 2, 40]),
        );
        let nth = self.random.below(1usize << 20);
        let tube = self.random.pick(&TUBES);
        let choice = match jobs > self.mood.jobs_max + 2 * self.mood.buried {
            true => 40 + self.random.below(20),
            false => self.random.below(100),
        };
        match choice {
            0..40 => self.put(tube, pri, delay),
            40..52 => self.delete_any(nth),
            52..60 => match self.nth_reserved(nth) {
                Some((id, worker)) => self.delete(self.workers[worker], id),
                None => self.delete_any(nth),
            },
            60..72 => {
                let command = Command::reserve(Some(Duration::ZERO));
                self.reserve(worker, command)
            }
            72..74 => match self.nth_id(nth) {
                Some(id) => self.reserve(worker, Command::ReserveJob(JobId(id))),
                None => Ok(true),
            },
            74..79 => match self.nth_reserved(nth) {
                Some((id, worker)) => {
                    let id = JobId(id);
                    self.let_go(worker, id, Command::Release { id, pri, delay })
                }
                None => Ok(true),
            },
            79..85 => match self.nth_reserved(nth) {
                Some((id, worker)) => {
                    let id = JobId(id);
                    self.let_go(worker, id, Command::Bury { id, pri })
                }
                None => Ok(true),
            },
            85 => match self.nth_reserved(nth) {
                Some((id, worker)) => {
                    let touch = Command::Touch(JobId(id));
                    Ok(self.ask(self.workers[worker], 0, touch)?.is_some())
                }
                None => Ok(true),
            },
            86..88 => self.kick(tube),
            88..90 => match self.nth_id(nth) {
                Some(id) => {
                    self.interfere();
                    let kick = Command::KickJob(JobId(id));
                    Ok(self.ask(self.boss, 0, kick)?.is_some())
                }
                None => Ok(true),
            },
            90 => {
                let delay = self.random.below(4);
                let pause = Command::pause_tube(tube, delay);
                Ok(self.ask(self.boss, 0, pause)?.is_some())
            }
            91 => {
                let now = self.now;
                self.lead().disconnect(client, now);
                self.reserved.retain(|(_, holder)| *holder != worker);
                self.workers[worker] = self.connect();
                Ok(true)
            }
            92 => self.bury_many(),
            93..96 => self.alter(nth),
            96 => self.put_with(tube, delay),
            97 => self.attribute(nth),
            98 => self.set(nth),
            _ => self.peek(nth),
        }
    }

    /// Whether a request that holds `size` bytes may be run now.
    fn may_run(&mut self, size: usize) -> bool {
        self.interfere();
        !self.leader().wants_quiet() && self.leader().has_room_for(size)
    }

    /// What a request beside the commands said, which was begun when replies waited for `awaited`.
    fn beside(&mut self, awaited: Ticket, done: Result<bool, StoreError>) -> Result<bool, Crashed> {
        let is_done = self.sound(done)?;
        if self.leader().after() > awaited {
            self.new_acks.push(self.leader().after());
        }
        assert!(is_done || self.is_short, "there is room");
        self.refused += u64::from(!is_done);
        Ok(true)
    }

    fn put_with(&mut self, tube: &'static str, delay: u32) -> Result<bool, Crashed> {
        let size = self.random.below(self.mood.size_max);
        let list = self.random.pick(&LISTS);
        if !self.may_run(size + LIST_SIZE_MAX) {
            return Ok(false);
        }
        let id = self.leader().queue().next_id();
        let body = body(id, size);
        let job = NewJob {
            tube,
            pri: 700,
            delay,
            ttr: 2,
            body: &body,
        };
        let (now, awaited) = (self.now, self.leader().after());
        let put = self.lead().put_with(&job, &list, now);
        if let Ok(Some(found)) = put {
            assert_eq!(found, id);
            self.bodies.insert(id.0, (id.0, size));
        }
        self.beside(awaited, put.map(|id| id.is_some()))
    }

    /// Any job gets other attributes; if it is reserved, it is released with them.
    fn attribute(&mut self, nth: usize) -> Result<bool, Crashed> {
        let Some(id) = self.nth_id(nth) else {
            return Ok(true);
        };
        if !self.may_run(LIST_SIZE_MAX) {
            return Ok(false);
        }
        let list = self.random.pick(&LISTS);
        let (now, awaited) = (self.now, self.leader().after());
        let is_reserved = self.reserved.iter().any(|(job, _)| *job == id);
        let queue = self.leader().queue();
        let release = queue.decide_release(JobId(id), 3, 1, now.mono);
        let update = release.filter(|_| is_reserved);
        let done = self
            .lead()
            .attribute(JobId(id), update.as_ref(), &list, now);
        if let Ok(true) = done {
            self.reserved.retain(|(job, _)| *job != id);
        }
        self.beside(awaited, done)
    }

    fn set(&mut self, nth: usize) -> Result<bool, Crashed> {
        let size = self.random.pick(&[0, 9, 3000]);
        if !self.may_run(size) {
            return Ok(false);
        }
        let (now, awaited) = (self.now, self.leader().after());
        let (name, value) = (NAMES[nth % NAMES.len()], vec![b'v'; size]);
        let done = self.lead().set(CLASS, name, &value, now);
        self.beside(awaited, done)
    }

    pub(super) fn nth_id(&self, nth: usize) -> Option<u64> {
        let queue = self.leader().queue();
        // A job that a clear is about to take is gone for all but the clear.
        let is_free = |id: &JobId| queue.job(*id).is_some() && !extended::is_beat(queue, *id);
        let ids = queue.ids().filter(is_free).map(|id| id.0);
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        ids.get(nth % ids.len().max(1)).copied()
    }

    pub(super) fn nth_reserved(&self, nth: usize) -> Option<(u64, usize)> {
        self.reserved.get(nth % self.reserved.len().max(1)).copied()
    }

    pub(super) fn interfere(&mut self) {
        if let Some((_, expected)) = &mut self.kicker {
            *expected = None;
        }
    }

    /// `None`: not now. Otherwise what was said, unless the client has to wait.
    pub(super) fn ask(
        &mut self,
        client: ClientId,
        size: usize,
        command: Command<'_>,
    ) -> Result<Option<Option<Said>>, Crashed> {
        if self.leader().wants_quiet() || !self.leader().has_room_for(size) {
            return Ok(None);
        }
        let (now, mut replies) = (self.now, Replies::default());
        let awaited = self.leader().after();
        let flow = self
            .lead()
            .run(client, Request::Command(command.clone()), now, &mut replies);
        self.crashed(self.leader)?;
        let said = (flow == Flow::Next).then(|| {
            let (_, after, said) = replies.0.pop().unwrap();
            if after > awaited {
                self.new_acks.push(after);
            }
            said
        });
        if said == Some(Said::OutOfMemory) {
            let is_policed = self.mood.extended > 0;
            assert!(
                self.is_short || is_policed,
                "{command:?} is refused on a disk with room"
            );
            self.refused += 1;
        }
        assert_ne!(said, Some(Said::Failed), "{command:?}");
        Ok(Some(said))
    }

    pub(super) fn put(
        &mut self,
        tube: &'static str,
        pri: u32,
        delay: u32,
    ) -> Result<bool, Crashed> {
        let choice = match self.mood.large {
            true => self.random.below(400),
            false => 400,
        };
        let size = match choice {
            // Larger than a segment.
            0 => self.mood.segment_size as usize + 1000,
            1..5 => 60_000,
            5..20 => 0,
            _ => self.random.below(self.mood.size_max),
        };
        let size = size.min(1 << 20);
        if self.ask(self.boss, 0, Command::Use(tube.into()))?.is_none() {
            return Ok(false);
        }
        let id = self.leader().queue().next_id();
        let (body, ttr) = (body(id, size), 1 + self.random.below(4u32));
        let put = Command::put(pri, delay, ttr, &*body);
        match self.ask(self.boss, size, put)? {
            Some(Some(Said::Inserted(found))) => {
                assert_eq!(found, id.0);
                self.bodies.insert(found, (found, size));
                Ok(true)
            }
            other => Ok(other.is_some()),
        }
    }

    fn delete_any(&mut self, nth: usize) -> Result<bool, Crashed> {
        let is_free = |id: &u64| {
            let job = self.leader().queue().job(JobId(*id));
            job.is_some_and(|job| job.state != JobState::Reserved)
        };
        match self.nth_id(nth).filter(is_free) {
            Some(id) => self.delete(self.boss, id),
            None => Ok(true),
        }
    }

    fn delete(&mut self, client: ClientId, id: u64) -> Result<bool, Crashed> {
        self.interfere();
        let is_known = {
            let job = self.leader().queue().job(JobId(id));
            job.is_some_and(|job| client == self.boss || job.state == JobState::Reserved)
        };
        let before = self.refused;
        let said = self.ask(client, 0, Command::Delete(JobId(id)))?;
        // P6
        assert_eq!(self.refused, before, "a delete is refused");
        let is_refused = said == Some(Some(Said::OutOfMemory));
        if said.is_some() && !is_refused {
            assert!(!is_known || said == Some(Some(Said::Deleted)), "{said:?}");
            self.reserved.retain(|(job, _)| *job != id);
        }
        Ok(said.is_some())
    }

    fn reserve(&mut self, worker: usize, command: Command<'_>) -> Result<bool, Crashed> {
        self.interfere();
        let said = self.ask(self.workers[worker], 0, command)?;
        if let Some(Some(Said::Job(id, bytes))) = &said {
            self.check_body(*id, bytes);
            self.note_counted(*id);
            self.reserved.retain(|(job, _)| job != id);
            self.reserved.push((*id, worker));
        }
        Ok(said.is_some())
    }

    fn let_go(&mut self, worker: usize, id: JobId, command: Command<'_>) -> Result<bool, Crashed> {
        let before = self.refused;
        let said = self.ask(self.workers[worker], 0, command)?;
        if said.is_some() && self.refused == before {
            self.reserved.retain(|(job, _)| *job != id.0);
        }
        Ok(said.is_some())
    }

    fn kick(&mut self, tube: &'static str) -> Result<bool, Crashed> {
        if self.kicker.is_some() {
            return Ok(true);
        }
        let client = self.lead().connect();
        if self.ask(client, 0, Command::Use(tube.into()))?.is_none() {
            let now = self.now;
            self.lead().disconnect(client, now);
            return Ok(false);
        }
        let bound = self.random.pick(&[1, 3, 50, 1000]);
        let stats = self.leader().queue().tube_stats(tube, self.now.mono);
        let jobs = stats.map(|stats| stats.jobs).unwrap_or_default();
        let there = match jobs.buried {
            0 => jobs.delayed,
            buried => buried,
        };
        let expected = there.min(bound.into());
        let said = self.ask(client, 0, Command::Kick { tube: None, bound })?;
        match &said {
            None => {
                let now = self.now;
                self.lead().disconnect(client, now);
            }
            Some(None) => self.kicker = Some((client, (jobs.buried > 0).then_some(expected))),
            Some(Some(said)) => {
                if !self.is_short {
                    assert_eq!(*said, Said::Kicked(expected));
                }
                let now = self.now;
                self.lead().disconnect(client, now);
            }
        }
        Ok(said.is_some())
    }

    /// Take the replies of a tick: the client of a kick, and its count.
    pub(super) fn take_replies(&mut self, replies: Replies) {
        for (client, after, said) in replies.0 {
            let (Said::Kicked(count), Some((kicker, expected))) = (&said, self.kicker) else {
                continue;
            };
            assert_eq!(client, kicker);
            if let Some(expected) = expected.filter(|_| !self.is_short) {
                assert_eq!(*count, expected, "a kick is done whole");
            }
            self.figures.kicks += 1;
            if self.leader().log().unwrap().has_unwritten() {
                self.new_acks.push(after);
            }
            let now = self.now;
            self.lead().disconnect(client, now);
            self.kicker = None;
        }
    }

    fn bury_many(&mut self) -> Result<bool, Crashed> {
        for nth in 0..self.leader().queue().next_id().0 {
            let (id, now) = (JobId(nth), self.now);
            if self.leader().queue().job(id).is_none() || self.random.percent(20) {
                continue;
            }
            if self.leader().wants_quiet() || !self.leader().has_room_for(0) {
                return Ok(nth > 0);
            }
            self.interfere();
            let awaited = self.leader().after();
            let done = self
                .lead()
                .alter(id, &JobAction::Bury, now, &mut Replies::default());
            let done = self.sound(done)?;
            self.altered(awaited, done);
        }
        Ok(true)
    }

    fn altered(&mut self, awaited: Ticket, done: Altered) {
        if self.leader().after() > awaited {
            self.new_acks.push(self.leader().after());
        }
        assert!(done != Altered::NoRoom || self.is_short, "there is room");
        self.refused += u64::from(done == Altered::NoRoom);
    }

    fn alter(&mut self, nth: usize) -> Result<bool, Crashed> {
        let Some(id) = self.nth_id(nth) else {
            return Ok(true);
        };
        if self.leader().wants_quiet() || !self.leader().has_room_for(0) {
            return Ok(false);
        }
        self.interfere();
        let action = match self.random.below(6) {
            0 => JobAction::Priority(self.random.below(4)),
            1 => JobAction::Delay(1 + self.random.below(3u32)),
            2 => JobAction::Bury,
            _ => JobAction::move_to(self.random.pick(&TUBES), self.random.percent(30)),
        };
        let (now, awaited) = (self.now, self.leader().after());
        let done = self
            .lead()
            .alter(JobId(id), &action, now, &mut Replies::default());
        let done = self.sound(done)?;
        self.altered(awaited, done);
        Ok(true)
    }

    fn peek(&mut self, nth: usize) -> Result<bool, Crashed> {
        // Of the newest: they are held.
        let newest = self.leader().queue().next_id().0.saturating_sub(1);
        let there = self.leader().queue().job(JobId(newest)).is_some();
        let id = match there && self.random.percent(50) {
            true => Some(newest),
            false => self.nth_id(nth),
        };
        let Some(id) = id else { return Ok(true) };
        let said = self.ask(self.boss, 0, Command::Peek(JobId(id)))?;
        if let Some(Some(said)) = &said {
            let Said::Job(found, bytes) = said else {
                panic!("job {id} cannot be read: {said:?}");
            };
            self.check_body(*found, bytes);
        }
        Ok(said.is_some())
    }
}
