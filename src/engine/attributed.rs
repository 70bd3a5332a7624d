//! What jobs have beyond plain jobs: logged in the same frame as the put or the update that it belongs
//! to, so that a crash leaves both or neither.
//!
//! Nothing here decides what a job gets: the commands do. On a full disk such a pair is refused as a
//! whole, and nothing has changed; a caller that can do without the attributes asks again for the update
//! alone.

use super::Engine;
use super::outcome::Logged;
use super::store::{Store, size_of_records};
use crate::attributes::Attributes;
use crate::storage::format::delete;
use crate::storage::{AppendError, Begun, NO_KICK, Purpose, StoreError};
use crate::types::{Change, JobId, Now, Place};

/// A job that is to be put.
#[derive(Debug, Clone, Copy)]
pub struct NewJob<'a> {
    /// The tube.
    pub tube: &'a str,
    /// Smaller is more urgent.
    pub pri: u32,
    /// Seconds.
    pub delay: u32,
    /// Seconds, at least 1.
    pub ttr: u32,
    /// Its body.
    pub body: &'a [u8],
}

/// A put that is to be logged, with what its job has beyond a plain one.
pub(super) struct AttributedPut<'a> {
    pub(super) put: &'a Change<'a>,
    pub(super) tube: &'a str,
    /// What was begun of the body, and the rest.
    pub(super) body: (Option<&'a Begun>, &'a [u8]),
    pub(super) list: &'a [u8],
    /// The job that is deleted with it.
    pub(super) replaced: Option<JobId>,
}

impl Engine {
    /// Put a job that has something beyond a plain job. Returns its id; `None`: there is no room, or no
    /// id is left, and nothing has changed. Durable as the policy says once [`Engine::after`] is
    /// acknowledged. Clients that wait for it are served with the next [`Engine::tick`].
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    ///
    /// # Panics
    /// If no job can have these attributes.
    pub fn put_with(
        &mut self,
        job: &NewJob<'_>,
        attributes: &Attributes<'_>,
        now: Now,
    ) -> Result<Option<JobId>, StoreError> {
        self.check()?;
        let list = list_of(attributes);
        let Some(id) = self.queue.take_id() else {
            return Ok(None);
        };
        let put = Change::Put {
            id,
            tube: job.tube,
            pri: job.pri,
            delay: job.delay,
            ttr: job.ttr,
            created: now.mono,
            body_size: job.body.len() as u32,
        };
        let attributed = AttributedPut {
            put: &put,
            tube: job.tube,
            body: (None, job.body),
            list: &list,
            replaced: None,
        };
        let logged = self.log_put_with(&attributed, now);
        self.is_busy = true;
        Ok(match self.note_failure(logged)? {
            Some(Logged::Done) => Some(id),
            _ => None,
        })
    }

    /// Give a job other attributes, together with an update of it if there is one. `false`: there is no
    /// room, or no such job, and nothing has changed. Durable as the policy says once [`Engine::after`]
    /// is acknowledged. Clients that wait for it are served with the next [`Engine::tick`].
    ///
    /// # Errors
    /// When the disk failed, now or earlier: nothing more may be acknowledged.
    ///
    /// # Panics
    /// If no job can have these attributes, or if the update is of another job.
    pub fn attribute(
        &mut self,
        id: JobId,
        update: Option<&Change<'_>>,
        attributes: &Attributes<'_>,
        now: Now,
    ) -> Result<bool, StoreError> {
        self.check()?;
        let list = list_of(attributes);
        if self.queue.job(id).is_none() {
            return Ok(false);
        }
        let is_of_it = |it: &Change<'_>| matches!(it, Change::Update { id: of, .. } if *of == id);
        assert!(update.is_none_or(is_of_it), "an update of job {id}");
        let logged = match update {
            Some(update) => self.log_with_list(update, (id, &list), NO_KICK, now),
            None => self.log_list_alone(&Change::Attributes { id, list: &list }, now),
        };
        self.is_busy = true;
        Ok(matches!(self.note_failure(logged)?, Logged::Done))
    }

    pub(super) fn note_failure<T>(
        &mut self,
        logged: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Err(error) = &logged {
            self.failed = Some(error.clone());
        }
        logged
    }

    /// Log and apply a put, its attributes and the delete of the job that it replaces, in one frame.
    /// `None`: the beginning of its body could not be read. Then, and if there is no room, nothing
    /// happened.
    pub(super) fn log_put_with(
        &mut self,
        new: &AttributedPut<'_>,
        now: Now,
    ) -> Result<Option<Logged>, StoreError> {
        let Change::Put { id, .. } = *new.put else {
            unreachable!("this is no put: {:?}", new.put)
        };
        let attributes = Change::Attributes { id, list: new.list };
        match self.join_put_with(new, &attributes, now) {
            Ok(()) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Some(Logged::Full)),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let (begun, rest) = new.body;
        let logged = match begun {
            None => Some(self.log_put(new.put, new.tube, rest, now)?),
            Some(begun) => self.log_begun(new.put, new.tube, (begun, rest), now)?,
        };
        if let Some(Logged::Done) = logged {
            self.log_joined(&attributes, now)?;
            if let Some(replaced) = new.replaced {
                let deleted = self.log_delete(replaced, now)?;
                assert!(
                    matches!(deleted, Logged::Done),
                    "room was made for the delete of job {replaced}"
                );
            }
        }
        self.store.part()?;
        Ok(logged)
    }

    fn join_put_with(
        &mut self,
        new: &AttributedPut<'_>,
        attributes: &Change<'_>,
        now: Now,
    ) -> Result<(), AppendError> {
        let both = [*new.put, *attributes];
        let (begun, rest) = new.body;
        let size = begun.map_or(0, Begun::size) + size_of_records(&both, rest, now);
        match new.replaced {
            None => self.store.join_size(size, Purpose::Put, now),
            Some(_) => self.store.join_size(size + delete::SIZE, Purpose::Put, now),
        }
    }

    pub(super) fn log_list_alone(
        &mut self,
        attributes: &Change<'_>,
        now: Now,
    ) -> Result<Logged, StoreError> {
        self.make_way(Purpose::Update, now)?;
        self.log_attributes(attributes, now)
    }

    /// Log and apply an update, which belongs to the kick under way of this number, and what the job has
    /// from then on: both or neither.
    pub(super) fn log_with_list(
        &mut self,
        update: &Change<'_>,
        (id, list): (JobId, &[u8]),
        kick: u16,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let attributes = Change::Attributes { id, list };
        self.make_way(Purpose::Update, now)?;
        let both = [*update, attributes];
        match self.store.join_for(&both, &[], Purpose::Update, now) {
            Ok(()) => {}
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        }
        let logged = self.log_update(update, kick, Purpose::Update, now)?;
        if let Logged::Done = logged {
            self.log_joined(&attributes, now)?;
        }
        self.store.part()?;
        Ok(logged)
    }

    /// Log and apply attributes for which room was made, with the record before them.
    pub(super) fn log_joined(
        &mut self,
        attributes: &Change<'_>,
        now: Now,
    ) -> Result<(), StoreError> {
        let logged = self.log_attributes(attributes, now)?;
        // A panic leaves nothing of this on the disk: the frame is not written yet.
        assert!(
            matches!(logged, Logged::Done),
            "room was made for {attributes:?}"
        );
        Ok(())
    }

    /// Log and apply the attributes of a job that exists. They may use what updates may use.
    pub(super) fn log_attributes(
        &mut self,
        attributes: &Change<'_>,
        now: Now,
    ) -> Result<Logged, StoreError> {
        let Change::Attributes { list, .. } = attributes else {
            unreachable!("these are no attributes: {attributes:?}")
        };
        let place = match self.store.append(attributes, &[], Purpose::Update, now) {
            Ok(place) => place,
            Err(AppendError::NoRoom(_)) => return Ok(Logged::Full),
            Err(AppendError::Failed(error)) => return Err(error),
        };
        let applied = match self.queue.apply(attributes, place, now.mono) {
            Ok(applied) => applied,
            Err(error) => unreachable!("attributes are refused: {error}"),
        };
        assert!(!applied.orphan, "attributes are of a job that exists");
        self.store.keep_attributes(place, list.len());
        if let Some((place, list_size)) = applied.attributes_freed {
            self.store.free_attributes(place, list_size as usize);
        }
        Ok(Logged::Done)
    }
}

pub(super) fn list_of(attributes: &Attributes<'_>) -> Vec<u8> {
    let list = attributes.encode();
    list.unwrap_or_else(|| panic!("no job can have {attributes:?}"))
}

impl Store {
    fn keep_attributes(&mut self, place: Place, list_size: usize) {
        if let Store::Log(log) = self {
            log.files_mut().keep_attributes(place, list_size);
        }
    }

    /// The attributes at this place are garbage.
    pub(super) fn free_attributes(&mut self, place: Place, list_size: usize) {
        if let Store::Log(log) = self {
            log.files_mut().free_attributes(place, list_size);
        }
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::attributes::Reason;
    use crate::engine::{Altered, JobAction, Options};
    use crate::protocol::{Command, Reply, Request};
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;
    use crate::types::{ClientId, JobState, Ticket, Time};

    const NOW: Now = Now::new(Time(0), 1_800_000_000_000_000_000);
    const PLAIN: NewJob<'static> = NewJob {
        tube: "mail",
        pri: 5,
        delay: 0,
        ttr: 60,
        body: b"body",
    };

    struct Ignored;

    impl crate::engine::ReplySink for Ignored {
        fn reply(&mut self, _: ClientId, _: Ticket, _: Reply<'_>) {}
    }

    fn open(disk: &SimFs) -> Engine {
        let options = Options::simulated(disk, "/data");
        Engine::open(&options, NOW).unwrap()
    }

    fn failed(failures: u32, text: &[u8]) -> Attributes<'_> {
        Attributes {
            key: Some("k"),
            failures: Some(failures),
            reason: Some(Reason::Failed),
            text: Some(text),
            ..Attributes::default()
        }
    }

    fn list(engine: &Engine, id: JobId) -> Option<Vec<u8>> {
        engine.queue().attributes(id).map(<[u8]>::to_vec)
    }

    #[test]
    fn without_a_log_attributes_are_there_as_long_as_the_job() {
        let mut engine = Engine::open(&Options::default(), NOW).unwrap();
        let attributes = failed(1, b"why");
        let id = engine.put_with(&PLAIN, &attributes, NOW).unwrap().unwrap();
        assert_eq!(list(&engine, id), attributes.encode());
        let bury = engine.queue().decide_bury(id, 9);
        let later = failed(2, b"");
        assert!(engine.attribute(id, bury.as_ref(), &later, NOW).unwrap());
        assert_eq!(list(&engine, id), later.encode());
        assert_eq!(engine.queue().job(id).unwrap().state, JobState::Buried);
        let client = engine.connect();
        let delete = Request::Command(Command::Delete(id));
        engine.run(client, delete, NOW, &mut Ignored);
        assert_eq!(list(&engine, id), None);
        assert!(!engine.attribute(id, None, &later, NOW).unwrap());
    }

    #[test]
    fn a_job_that_an_operator_moves_keeps_what_it_has() {
        let disk = SimFs::new(1);
        let mut engine = open(&disk);
        let moved = Attributes {
            tube: Some("dead"),
            ..failed(3, b"why")
        };
        let id = engine.put_with(&PLAIN, &moved, NOW).unwrap().unwrap();
        assert_eq!(engine.queue().job(id).unwrap().tube, "dead");
        let action = JobAction::move_to("mail", false);
        let altered = engine.alter(id, &action, NOW, &mut Ignored).unwrap();
        assert_eq!(altered, Altered::Done);
        engine.commit(NOW).unwrap();
        let engine = open(&disk.crash_image(Crash::DropUnsynced));
        let kept = Attributes {
            tube: Some("mail"),
            counted_from: Some(0),
            counted_since_wall_ns: Some(NOW.wall_ns),
            failures: None,
            ..failed(3, b"why")
        };
        assert_eq!(list(&engine, id), kept.encode());
        assert_eq!(engine.queue().job(id).unwrap().tube, "mail");
    }

    /// Put jobs until the disk has no room.
    fn fill(engine: &mut Engine) -> Vec<JobId> {
        let body = [b'b'; 700];
        let job = NewJob {
            body: &body,
            ..PLAIN
        };
        let mut ids = Vec::new();
        while let Some(id) = engine.put_with(&job, &failed(0, b""), NOW).unwrap() {
            ids.push(id);
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
        }
        ids
    }

    #[test]
    fn on_a_full_disk_each_job_can_fail_again_and_a_pair_that_has_no_room_changes_nothing() {
        let disk = SimFs::new(1);
        disk.set_quota(Some(600 << 10));
        let mut engine = open(&disk);
        let ids = fill(&mut engine);
        assert!(ids.len() > 100, "{} jobs", ids.len());
        for id in &ids {
            let release = engine.queue().decide_release(*id, 5, 0, NOW.mono);
            let done = engine.attribute(*id, release.as_ref(), &failed(1, b""), NOW);
            assert!(done.unwrap(), "job {id} has set room aside");
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
        }
        let text = [b't'; 4000];
        let mut refused = 0;
        for id in &ids {
            let (before, state) = (list(&engine, *id), engine.queue().snapshot(*id));
            let bury = engine.queue().decide_bury(*id, 9);
            let done = engine.attribute(*id, bury.as_ref(), &failed(2, &text), NOW);
            if !done.unwrap() {
                refused += 1;
                assert_eq!(list(&engine, *id), before);
                assert_eq!(engine.queue().snapshot(*id), state);
            }
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
        }
        assert!(refused > 0, "texts of {} jobs have room", ids.len());
        let client = engine.connect();
        for id in ids {
            let delete = Request::Command(Command::Delete(id));
            engine.run(client, delete, NOW, &mut Ignored);
            assert!(
                engine.queue().job(id).is_none(),
                "job {id} cannot be deleted"
            );
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
        }
    }

    #[test]
    fn a_start_counts_as_alive_what_the_engine_had_counted() {
        let disk = SimFs::new(1);
        let mut engine = open(&disk);
        let body = [b'b'; 3000];
        let job = NewJob {
            body: &body,
            ..PLAIN
        };
        let client = engine.connect();
        for round in 0..120 {
            let id = engine.put_with(&job, &failed(round, b"why"), NOW);
            let id = id.unwrap().unwrap();
            let some = JobId(1 + id.0 / 2);
            engine
                .attribute(some, None, &failed(round, b"x"), NOW)
                .unwrap();
            if round % 3 > 0 {
                let delete = Request::Command(Command::Delete(JobId(id.0 - 1)));
                engine.run(client, delete, NOW, &mut Ignored);
            }
            engine.commit(NOW).unwrap();
            while engine.keep_log(NOW).unwrap() {}
            engine.log().unwrap().assert_accounts();
        }
        assert!(engine.log().unwrap().compactions() > 0);
        let again = open(&disk.crash_image(Crash::KeepAll));
        let accounts = |engine: &Engine| engine.log().unwrap().accounts();
        assert_eq!(accounts(&again), accounts(&engine));
    }
}
