//! Shared parts of the queue's tests, and the tests of changes, ids, counts and records.

use super::*;
use crate::random::Random;
use crate::types::SECOND_NS;

/// A point in time, in seconds.
pub(super) fn at(seconds: u32) -> Time {
    Time(i64::from(seconds) * SECOND_NS)
}

/// The put of a small job into tube "a".
fn plain_put(id: JobId, created: Time) -> Change<'static> {
    Change::Put {
        id,
        tube: "a",
        pri: 1,
        delay: 0,
        ttr: 1,
        created,
        body_size: 0,
    }
}

/// A queue, and short names for what an engine does with it.
pub(super) struct Fixture {
    pub(super) queue: Queue,
    /// The time to run of every job, in seconds.
    pub(super) ttr: u32,
    records: u32,
}

impl Fixture {
    pub(super) fn new() -> Fixture {
        let mut queue = Queue::new();
        queue.finish_replay(at(0));
        Fixture {
            queue,
            ttr: 10,
            records: 0,
        }
    }

    /// Where the next record goes.
    pub(super) fn place(&mut self) -> Place {
        self.records += 1;
        Place {
            file: 1,
            offset: self.records,
        }
    }

    /// Puts a job into the tube that the client uses, at time 0.
    pub(super) fn put(&mut self, client: ClientId, pri: u32, delay: u32) -> JobId {
        self.put_at(client, pri, delay, at(0))
    }

    pub(super) fn put_at(
        &mut self,
        client: ClientId,
        pri: u32,
        delay: u32,
        created: Time,
    ) -> JobId {
        let id = self.queue.take_id().unwrap();
        let tube = self.queue.used_tube(client).clone();
        let (ttr, body_size) = (self.ttr, 100);
        let put = Change::Put {
            id,
            tube: &tube,
            pri,
            delay,
            ttr,
            created,
            body_size,
        };
        self.apply(&put, created);
        id
    }

    pub(super) fn apply(&mut self, change: &Change<'_>, now: Time) -> Applied {
        let place = self.place();
        self.queue.apply(change, place, now).unwrap()
    }

    pub(super) fn delete(&mut self, id: JobId) -> Applied {
        self.apply(&Change::Delete { id }, at(0))
    }

    pub(super) fn bury(&mut self, id: JobId) {
        let change = self.queue.decide_bury(id, 5).unwrap();
        self.apply(&change, at(0));
    }

    pub(super) fn pause(&mut self, tube: &str, duration: u32, now: Time) -> Place {
        let until = now.plus_seconds(duration);
        self.apply(
            &Change::Pause {
                tube,
                duration,
                until,
            },
            now,
        );
        Place {
            file: 1,
            offset: self.records,
        }
    }

    /// Handles everything that is due; returns the clients whose wait ended.
    pub(super) fn tick(&mut self, now: Time) -> Vec<(ClientId, WaitEnd)> {
        let mut ended = Vec::new();
        while self.queue.tick(now, 3, &mut ended) {}
        ended
    }
}

fn state(f: &Fixture, job: JobId) -> JobState {
    f.queue.job(job).unwrap().state
}

#[test]
fn a_put_that_is_recorded_twice_is_an_error_and_changes_nothing() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let id = f.put(client, 5, 0);
    let again = plain_put(id, at(0));
    let error = f.queue.apply(&again, Place::NONE, at(0)).unwrap_err();
    assert_eq!(error, ApplyError::JobExists(id));
    assert_eq!(error.to_string(), "job 1 is put a second time");
    assert_eq!(
        (f.queue.stats().jobs.ready, f.queue.tube_exists("a")),
        (1, false)
    );
}

#[test]
fn ids_that_are_never_handed_out_are_errors() {
    let mut queue = Queue::new();
    for id in [JobId(0), JobId(u64::MAX)] {
        let put = plain_put(id, at(0));
        let applied = queue.apply(&put, Place::NONE, at(0));
        assert_eq!(applied, Err(ApplyError::IdOutOfRange(id)));
    }
}

#[test]
fn an_update_to_reserved_is_an_error() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let id = f.put(client, 5, 0);
    let counters = Counters::default();
    let (state, deadline) = (JobState::Reserved, at(0));
    let update = Change::Update {
        id,
        state,
        pri: 0,
        delay: 0,
        deadline,
        counters,
    };
    assert_eq!(
        f.queue.apply(&update, Place::NONE, at(0)),
        Err(ApplyError::Reserved(id))
    );
}

#[test]
fn changes_to_what_does_not_exist_are_orphans() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let id = f.put(client, 5, 0);
    let update = f.queue.decide_bury(id, 5).unwrap();
    f.delete(id);
    assert!(f.delete(id).orphan);
    assert!(f.apply(&update, at(0)).orphan);
    let lift = Change::Pause {
        tube: "a",
        duration: 0,
        until: at(0),
    };
    assert!(f.apply(&lift, at(0)).orphan);
    assert!(!f.queue.tube_exists("a"));
}

#[test]
fn f27_a_delayed_job_needs_no_more_than_a_ready_one_and_its_place_in_an_order() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let before = f.queue.memory();
    (0..10_000).for_each(|_| _ = f.put(client, 5, 10));
    let each = (f.queue.memory() - before) / 10_000;
    assert!(each <= 80, "{each} bytes");
}

#[test]
fn ids_never_go_back() {
    let mut f = Fixture::new();
    assert_eq!(f.queue.take_id(), Some(JobId(1)));
    assert_eq!(f.queue.take_id(), Some(JobId(2)));
    f.queue.set_next_id(JobId(2));
    assert_eq!(f.queue.next_id(), JobId(3));
    let id = JobId(70);
    let put = plain_put(id, at(0));
    f.apply(&put, at(0));
    assert_eq!(f.queue.take_id(), Some(JobId(71)));
}

#[test]
fn an_update_takes_a_job_out_of_every_state_into_every_state() {
    for from in 0..4 {
        for to in [JobState::Ready, JobState::Delayed, JobState::Buried] {
            let mut f = Fixture::new();
            let client = f.queue.connect();
            let id = f.put(client, 5, if from == 1 { 9 } else { 0 });
            match from {
                2 => f.bury(id),
                3 => _ = f.queue.reserve(client, id, at(0)),
                _ => {}
            }
            let counters = Counters {
                kicks: 3,
                ..Counters::default()
            };
            let deadline = at(20);
            f.apply(
                &Change::Update {
                    id,
                    state: to,
                    pri: 7,
                    delay: 4,
                    deadline,
                    counters,
                },
                at(0),
            );
            let job = f.queue.job(id).unwrap();
            assert_eq!(
                (job.state, job.pri, job.delay, job.counters),
                (to, 7, 4, counters)
            );
            assert_eq!(job.deadline, (to == JobState::Delayed).then_some(deadline));
            assert_eq!(job.reserver, None);
            let mut expected = JobCounts::default();
            expected.enter(to, 7);
            assert_eq!(f.queue.stats().jobs, expected);
            assert!(f.delete(id).put_freed.is_some());
            assert_eq!(f.queue.stats().jobs, JobCounts::default());
        }
    }
}

#[test]
fn buried_jobs_are_in_order_of_their_last_burial() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let jobs: Vec<_> = (0..3).map(|_| f.put(client, 5, 0)).collect();
    for index in [1, 0, 2, 1] {
        f.bury(jobs[index]);
    }
    for index in [0, 2, 1] {
        assert_eq!(f.queue.peek_buried("default"), Some(jobs[index]));
        f.delete(jobs[index]);
    }
    assert_eq!(f.queue.peek_buried("default"), None);
}

#[test]
fn only_buried_and_delayed_jobs_are_kicked_or_fetched_from_aside() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let (ready, delayed) = (f.put(client, 5, 0), f.put(client, 5, 3));
    let (buried, reserved) = (f.put(client, 5, 0), f.put(client, 5, 0));
    f.bury(buried);
    f.queue.reserve(client, reserved, at(0));
    for id in [ready, reserved, JobId(99)] {
        assert_eq!(f.queue.decide_kick(id), None);
        assert_eq!(f.queue.decide_reserve_job(id), None);
    }
    for id in [delayed, buried] {
        assert!(f.queue.decide_reserve_job(id).is_some());
        let kick = f.queue.decide_kick(id).unwrap();
        f.apply(&kick, at(0));
        assert_eq!(state(&f, id), JobState::Ready);
        assert_eq!(f.queue.job(id).unwrap().counters.kicks, 1);
    }
}

#[test]
fn a_release_is_ready_without_and_delayed_with_a_delay() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let id = f.put(client, 5, 0);
    f.queue.reserve(client, id, at(0));
    let release = f.queue.decide_release(id, 9, 4, at(2)).unwrap();
    f.apply(&release, at(2));
    let job = f.queue.job(id).unwrap();
    assert_eq!((job.state, job.pri, job.delay), (JobState::Delayed, 9, 4));
    assert_eq!(job.deadline, Some(at(6)));
    assert_eq!((job.counters.releases, job.counters.reserves), (1, 1));
    assert_eq!(
        f.queue.dirty_count(),
        0,
        "the record of the release carries the count"
    );
    let release = f.queue.decide_release(id, 9, 0, at(2)).unwrap();
    f.apply(&release, at(2));
    assert_eq!(state(&f, id), JobState::Ready);
}

#[test]
fn peeks_see_the_tube_of_that_name_and_a_pin_keeps_seeing_it() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let ready = f.put(client, 5, 0);
    let (later, sooner) = (f.put(client, 5, 9), f.put(client, 5, 4));
    assert_eq!(f.queue.peek_ready("default"), Some(ready));
    assert_eq!(f.queue.peek_delayed("default"), Some(sooner));
    let pin = f.queue.pin_tube("default");
    for other in ["a", "no such tube"] {
        f.queue.use_tube(client, "a", at(0));
        assert_eq!(f.queue.peek_ready(other), None);
        assert_eq!(f.queue.peek_delayed(other), None);
        assert_eq!(f.queue.peek_buried(other), None);
    }
    f.delete(sooner);
    assert_eq!(f.queue.first_delayed(&pin), Some(later));
    f.bury(later);
    assert_eq!(f.queue.first_buried(&pin), Some(later));
    assert_eq!(f.queue.tube_counts(&pin).total(), 2);
    f.queue.unpin(pin, at(0));
}

#[test]
fn each_record_is_set_free_when_the_next_one_replaces_it() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let id = f.put(client, 5, 0);
    let put = Place { file: 1, offset: 1 };
    let bury = f.queue.decide_bury(id, 5).unwrap();
    assert_eq!(f.apply(&bury, at(0)), Applied::default());
    let first = Place { file: 1, offset: 2 };
    let kick = f.queue.decide_kick(id).unwrap();
    assert_eq!(f.apply(&kick, at(0)).update_freed, Some(first));
    let second = Place { file: 1, offset: 3 };
    let moved = Place { file: 2, offset: 9 };
    assert!(f.queue.put_is_at(id, put) && f.queue.update_is_at(id, second));
    assert!(!f.queue.move_put(id, second, moved) && !f.queue.move_update(id, first, moved));
    assert!(f.queue.move_put(id, put, moved) && f.queue.move_update(id, second, moved));
    let applied = f.delete(id);
    let dims = RecordDims {
        tube_len: 7,
        body_size: 100,
    };
    assert_eq!(applied.put_freed, Some((moved, dims)));
    assert_eq!(applied.update_freed, Some(moved));
    assert!(!f.queue.move_put(id, moved, put) && !f.queue.put_is_at(id, moved));
}

#[test]
fn a_pause_record_is_set_free_by_the_next_and_by_the_end_of_the_pause() {
    let mut f = Fixture::new();
    let first = f.pause("default", 5, at(0));
    let again = Change::Pause {
        tube: "default",
        duration: 7,
        until: at(7),
    };
    assert_eq!(f.apply(&again, at(0)).pause_freed, Some(first));
    let (second, moved) = (Place { file: 1, offset: 2 }, Place { file: 2, offset: 2 });
    assert!(!f.queue.move_pause("default", first, moved));
    assert!(f.queue.move_pause("default", second, moved));
    let lift = Change::Pause {
        tube: "default",
        duration: 0,
        until: at(0),
    };
    assert_eq!(f.apply(&lift, at(0)).pause_freed, Some(moved));
    assert_eq!(f.queue.tube_stats("default", at(0)).unwrap().pauses, 3);
    assert_eq!(f.queue.take_lapsed_pause(), None);
    assert_eq!(f.queue.next_deadline(), None);
}

#[test]
fn without_a_log_there_is_no_garbage_to_report() {
    let mut queue = Queue::new();
    queue.finish_replay(at(0));
    let id = queue.take_id().unwrap();
    let put = plain_put(id, at(0));
    queue.apply(&put, Place::NONE, at(0)).unwrap();
    let pause = Change::Pause {
        tube: "a",
        duration: 3,
        until: at(3),
    };
    queue.apply(&pause, Place::NONE, at(0)).unwrap();
    let applied = queue
        .apply(&Change::Delete { id }, Place::NONE, at(0))
        .unwrap();
    assert_eq!(applied, Applied::default());
    assert_eq!(queue.take_lapsed_pause(), None);
    assert!(!queue.move_put(id, Place::NONE, Place::NONE));
}

#[test]
fn a_snapshot_of_a_reserved_job_says_ready_and_leaves_it_reserved() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let id = f.put(client, 5, 0);
    f.queue.reserve(client, id, at(0));
    assert_eq!(f.queue.next_dirty(), Some(id));
    let Some(Change::Update {
        state, counters, ..
    }) = f.queue.snapshot(id)
    else {
        panic!()
    };
    assert_eq!((state, counters.reserves), (JobState::Ready, 1));
    let (first, second) = (f.place(), f.place());
    assert_eq!(f.queue.note_update(id, first), None);
    assert_eq!(f.queue.note_update(id, second), Some(first));
    assert!(f.queue.is_reserved_by(client, id) && f.queue.update_is_at(id, second));
    assert_eq!(f.queue.note_update(JobId(99), first), Some(first));
}

#[test]
fn a_job_that_is_gone_or_recorded_since_is_no_longer_dirty() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let jobs: Vec<_> = (0..4).map(|_| f.put(client, 5, 0)).collect();
    jobs.iter()
        .for_each(|id| _ = f.queue.reserve(client, *id, at(0)));
    f.delete(jobs[0]);
    f.bury(jobs[2]);
    assert_eq!(f.queue.dirty_count(), 2);
    assert_eq!(f.queue.next_dirty(), Some(jobs[1]));
    assert_eq!(f.queue.next_dirty(), Some(jobs[3]));
    assert_eq!(f.queue.next_dirty(), None);
}

#[test]
fn totals_begin_at_zero_after_replay() {
    let mut queue = Queue::new();
    for id in 1..=3 {
        let (id, created) = (JobId(id), at(0));
        let put = plain_put(id, created);
        queue.apply(&put, Place::NONE, at(0)).unwrap();
    }
    queue
        .apply(&Change::Delete { id: JobId(2) }, Place::NONE, at(0))
        .unwrap();
    queue.finish_replay(at(0));
    let tube = queue.tube_stats("a", at(0)).unwrap();
    assert_eq!((tube.total_jobs, tube.deletes, tube.jobs.ready), (0, 0, 2));
    assert_eq!(queue.stats().total_jobs, 0);
}

#[test]
fn a_running_pause_outlives_a_restart_even_if_nothing_else_needs_its_tube() {
    let mut queue = Queue::new();
    let place = Place { file: 1, offset: 1 };
    for (tube, duration) in [("long", 100), ("short", 5)] {
        let pause = Change::Pause {
            tube,
            duration,
            until: at(duration),
        };
        queue.apply(&pause, place, at(0)).unwrap();
    }
    queue.finish_replay(at(50));
    assert_eq!(queue.tube_names().collect::<Vec<_>>(), ["default", "long"]);
    let lapsed = queue.take_lapsed_pause().unwrap();
    assert_eq!((&*lapsed.tube, lapsed.early), ("short", false));
    assert_eq!(
        queue.tube_stats("long", at(50)).unwrap().pause_left_ns,
        at(50).0
    );
    queue.tick(at(100), 9, &mut Vec::new());
    assert_eq!(queue.tube_names().collect::<Vec<_>>(), ["default"]);
    assert_eq!(
        queue.take_lapsed_pause().map(|lapsed| lapsed.early),
        Some(false)
    );
}

#[test]
fn memory_is_what_lives_there_and_comes_back() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let before = f.queue.memory();
    let jobs: Vec<_> = (0..10_000).map(|_| f.put(client, 5, 0)).collect();
    let per_job = (f.queue.memory() - before) / 10_000;
    assert!((60..=100).contains(&per_job), "{per_job}");
    for id in jobs {
        f.queue.reserve(client, id, at(0));
        f.delete(id);
    }
    assert_eq!(f.queue.memory(), before);
}

#[test]
fn f24_what_clients_take_is_told_apart_from_jobs_and_comes_back() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let before = f.queue.clients_memory();
    f.queue.watch(client, "w");
    let watching = f.queue.clients_memory();
    assert!((100..=1000).contains(&(watching - before)), "{watching}");
    // A tube with jobs counts as the jobs' memory; a watched tube whose last job is gone does not.
    f.queue.use_tube(client, "w", at(0));
    let job = f.put(client, 5, 0);
    let with_job = f.queue.clients_memory();
    assert!(with_job < watching - 100, "{with_job} and {watching}");
    f.put(client, 5, 0);
    assert_eq!(f.queue.clients_memory(), with_job);
    f.delete(job);
    assert_eq!(f.queue.clients_memory(), with_job);
    f.delete(JobId(job.0 + 1));
    assert_eq!(f.queue.clients_memory(), watching);
    f.queue.use_tube(client, "default", at(0));
    assert_eq!(f.queue.ignore(client, "w", at(0)), Some(1));
    assert_eq!(f.queue.clients_memory(), before);
    f.queue.disconnect(client, at(0), 10);
    assert!(f.queue.clients_memory() < before);
}

#[test]
#[should_panic(expected = "there is no client 0")]
fn a_client_that_left_is_a_bug_to_name() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    f.queue.disconnect(client, at(0), 0);
    f.queue.wait(client, None);
}

/// Of many jobs few are left, in no order: buried, reserved, delayed and ready ones.
#[test]
fn g36_jobs_that_move_keep_their_places_in_all_orders() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    let mut random = Random::new(36);
    let mut ids: Vec<_> = (0..600u32).map(|nth| f.put(client, nth % 7, 0)).collect();
    ids.extend((0..20).map(|nth| f.put(client, 0, 100 - nth)));
    random.shuffle(&mut ids[..600]);
    let (buried, reserved, ready) = (&ids[..40], &ids[40..60], &ids[60..80]);
    for id in buried {
        f.queue.reserve(client, *id, at(0));
        f.bury(*id);
    }
    for id in reserved {
        f.queue.reserve(client, *id, at(0));
    }
    let highest = |f: &Fixture| {
        let handles = f.queue.jobs.ids().map(|id| f.queue.jobs.expect(id).index());
        handles.max().unwrap()
    };
    assert!(highest(&f) >= 600);
    for id in &ids[80..600] {
        f.delete(*id);
    }
    // Every second buried job goes, from the middle and from both ends.
    for id in buried.iter().step_by(2) {
        f.delete(*id);
    }
    assert!(highest(&f) < 500, "no job has moved");

    let listed = |f: &Fixture, state| {
        let mut listed = Vec::new();
        while let Some(next) =
            (f.queue.job_behind("default", state, listed.last().copied())).unwrap()
        {
            listed.push(next);
        }
        listed.into_iter().map(|mark| mark.id).collect::<Vec<_>>()
    };
    let left: Vec<_> = buried.iter().skip(1).step_by(2).copied().collect();
    assert_eq!(listed(&f, JobState::Buried), left);
    let delayed: Vec<_> = ids[600..].iter().rev().copied().collect();
    assert_eq!(listed(&f, JobState::Delayed), delayed);
    let mut by_priority = ready.to_vec();
    by_priority.sort_by_key(|id| (f.queue.job(*id).unwrap().pri, *id));
    assert_eq!(listed(&f, JobState::Ready), by_priority);

    assert_eq!(f.queue.dirty_count(), reserved.len() as u64);
    for id in reserved {
        assert_eq!(f.queue.next_dirty(), Some(*id));
        let place = f.place();
        assert!(f.queue.is_reserved_by(client, *id));
        f.queue.note_update(*id, place);
    }
    assert_eq!(f.queue.next_dirty(), None);
    f.queue.disconnect(client, at(1), 1000);
    f.tick(at(1));
    assert_eq!(f.queue.stats().jobs.ready, 40);
}
