//! A queue on its thread, called from threads and from futures.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

mod deliveries;
mod search;
mod stats;
mod times;

use super::*;
use crate::attributes::{Reason, Unique};
use crate::door::{
    Bounds, Inserted, JobError, Pending, PutAttributes, PutOptions, Slice, Step, Task, Work,
    block_on,
};
use crate::engine::Options;
use crate::protocol::Conflict;
use crate::schedule::{Missed, Schedule};
use crate::storage::SimFs;
use crate::storage::disk::sim::{Fault, OpKind};
use crate::types::{JobId, JobState};

fn options(disk: &SimFs) -> Options {
    Options::simulated(disk, "/log")
}

fn on(disk: &SimFs) -> Queue {
    Queue::open_with(&options(disk), Bounds::default()).unwrap()
}

fn in_memory(bounds: Bounds) -> Queue {
    Queue::open_with(&Options::default(), bounds).unwrap()
}

fn put(session: &Session, body: &str) -> JobId {
    let put = session.put("default", body, PutOptions::default());
    put.wait().unwrap()
}

/// The last second that a job can be put for.
fn latest() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u32::MAX.into())
}

/// A call that was sent, without an answer so far.
fn sent<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    future
}

/// Keeps the engine's thread from doing anything else.
struct Hold {
    tell: Sender<()>,
    go_on: Receiver<()>,
}

impl Work for Hold {
    fn step(&mut self, _: &mut Slice<'_>) -> Step {
        self.tell.send(()).unwrap();
        let _ = self.go_on.recv();
        Step::Done
    }
}

/// The engine does nothing until the sender is dropped.
fn hold(queue: &Queue) -> (Pin<Box<Task<Hold>>>, Sender<()>) {
    let ((tell, told), (let_go, go_on)) = (channel(), channel());
    let task = sent(queue.door.start(Hold { tell, go_on }));
    told.recv().unwrap();
    (task, let_go)
}

#[test]
fn who_waits_is_woken_by_the_put_of_another_thread() {
    let queue = in_memory(Bounds::default());
    let worker = queue.session();
    let working = thread::spawn(move || {
        let job = worker.reserve().wait().unwrap();
        (job.id(), job.body().to_vec())
    });
    let id = put(&queue, "hello");
    assert_eq!(working.join().unwrap(), (id, b"hello".to_vec()));
}

#[test]
fn a_wait_ends_when_it_was_said_to() {
    let queue = in_memory(Bounds::default());
    let within = |ms| queue.reserve_within(Duration::from_millis(ms));
    assert!(within(5).wait().unwrap().is_none());
    assert!(within(0).wait().unwrap().is_none());
    put(&queue, "a");
    assert!(within(0).wait().unwrap().is_some());
}

#[test]
fn a_reserved_job_is_given_back_unless_it_is_finished() {
    let queue = in_memory(Bounds::default());
    let id = put(&queue, "a");
    let again = || queue.reserve().wait().unwrap();
    drop(again());
    let worker = queue.session();
    let panicked = thread::spawn(move || {
        let _job = worker.reserve().wait().unwrap();
        std::panic::resume_unwind(Box::new("a worker that fails"));
    });
    assert!(panicked.join().is_err());
    drop(again().delete());
    let job = again();
    let (held, let_go) = hold(&queue);
    drop(sent(job.delete()));
    drop(let_go);
    block_on(held).unwrap();
    drop(again());
    again().release(5, Duration::ZERO).wait().unwrap();
    again().bury(5).wait().unwrap();
    assert_eq!(queue.peek_buried("default").wait().unwrap().id, id);
    assert_eq!(queue.kick("default", 10).wait(), Ok(1));
    let job = again();
    job.touch().wait().unwrap();
    job.delete().wait().unwrap();
    assert_eq!(queue.peek(id).wait(), Err(JobError::NotFound));
}

#[test]
fn a_batch_is_reserved_and_each_of_its_jobs_is_given_back_unless_it_is_finished() {
    let queue = in_memory(Bounds::default());
    let batch = |most| queue.reserve_batch(most, Duration::ZERO).wait().unwrap();
    assert!(batch(10).is_empty());
    let ids: Vec<JobId> = ["a", "b", "c"].map(|body| put(&queue, body)).into();
    let mut jobs = batch(2);
    assert_eq!(jobs.iter().map(Reserved::id).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(jobs[1].body(), b"b");
    jobs.remove(0).delete().wait().unwrap();
    drop(jobs);
    let jobs = batch(0);
    assert_eq!(jobs.len(), 1, "none is asked for, which is one");
    drop(jobs);
    let kept: Vec<JobId> = batch(2000).into_iter().map(|job| job.keep().id).collect();
    assert_eq!(kept, ids[1..]);
    assert_eq!(queue.touch_batch(ids.clone()).wait(), Ok(vec![ids[0]]));
    let released = queue.release_batch(kept.clone(), 7, Duration::ZERO);
    assert_eq!(released.wait(), Ok(vec![]));
    assert_eq!(queue.delete_batch(ids.clone()).wait(), Ok(vec![ids[0]]));
    let many = queue.delete_batch((0..1001).map(JobId));
    let too_many = JobError::TooMany {
        count: 1001,
        count_max: 1000,
    };
    assert_eq!(many.wait(), Err(too_many));
}

#[test]
fn who_waits_for_a_batch_is_woken_and_a_batch_that_no_one_takes_is_given_back() {
    let queue = in_memory(Bounds::default());
    let worker = queue.session();
    let waiting = sent(worker.reserve_batch(10, Duration::from_secs(1000)));
    put(&queue, "a");
    assert_eq!(block_on(waiting).unwrap().len(), 1);
    put(&queue, "b");
    let (held, let_go) = hold(&queue);
    drop(sent(worker.reserve_batch(10, Duration::ZERO)));
    drop(let_go);
    block_on(held).unwrap();
    let worker = queue.session();
    let both = || worker.reserve_batch(10, Duration::ZERO).wait().unwrap();
    while both().len() < 2 {
        // What was dropped is given back in one of the next turns.
        thread::yield_now();
    }
}

#[test]
fn jobs_are_put_at_a_time_and_listed_page_by_page() {
    let queue = in_memory(Bounds::default());
    let options = PutOptions::default();
    let now = queue
        .put_at("mail", "a", options, UNIX_EPOCH)
        .wait()
        .unwrap();
    let then = queue
        .put_at("mail", "bb", options, latest())
        .wait()
        .unwrap();
    let list = |state, after| queue.list_jobs("mail", state, after, 1).wait();
    let page = list(JobState::Ready, None).unwrap();
    assert_eq!((page.jobs, page.next), (vec![(now, 1)], None));
    let page = list(JobState::Delayed, None).unwrap();
    assert_eq!(page.jobs, [(then, 2)]);
    let third = queue.put("mail", "c", options).wait().unwrap();
    let page = list(JobState::Ready, None).unwrap();
    assert_eq!(page.jobs, [(now, 1)]);
    let page = list(JobState::Ready, page.next).unwrap();
    assert_eq!((page.jobs, page.next), (vec![(third, 1)], None));
    let missing = queue.list_jobs("none", JobState::Ready, None, 10).wait();
    assert_eq!(missing, Err(JobError::NotFound));
}

#[test]
fn a_job_that_is_kept_stays_reserved_by_its_session() {
    let queue = in_memory(Bounds::default());
    let worker = queue.session();
    let id = put(&queue, "a");
    let job = worker.reserve_job(id).wait().unwrap().keep();
    assert_eq!(job.body, b"a");
    assert_eq!(queue.delete(id).wait(), Err(JobError::NotFound));
    worker.delete(id).wait().unwrap();
}

#[test]
fn a_future_of_a_job_that_is_dropped_loses_none() {
    let queue = in_memory(Bounds::default());
    let worker = queue.session();
    let waiting = sent(worker.reserve());
    // Its answer exists before the next job is requested.
    put(&queue, "a");
    drop(waiting);
    let job = queue.reserve().wait().unwrap();
    assert_eq!(job.body(), b"a");
}

#[test]
fn futures_need_no_runtime_and_those_that_wait_need_no_thread_each() {
    let queue = in_memory(Bounds::default());
    let sessions: Vec<_> = (0..100).map(|_| queue.session()).collect();
    let mut workers: Vec<_> = sessions.iter().map(|it| sent(it.reserve())).collect();
    let bodies = (0..100).map(|number: u32| number.to_string());
    let ids = block_on(queue.put_many("default", bodies, PutOptions::default())).unwrap();
    assert!(ids.iter().all(Result::is_ok));
    block_on(async {
        for worker in &mut workers {
            worker.await.unwrap().delete().await.unwrap();
        }
    });
    assert_eq!(queue.close().unwrap().total(), 0);
}

#[test]
fn calls_that_come_while_the_engine_is_busy_share_one_sync() {
    let disk = SimFs::new(1);
    let queue = on(&disk);
    let id = put(&queue, "first");
    let (held, let_go) = hold(&queue);
    let sessions: Vec<_> = (0..20).map(|_| queue.session()).collect();
    let puts = sessions
        .iter()
        .map(|session| sent(session.put("default", "a", PutOptions::default())));
    let puts: Vec<_> = puts.collect();
    let many = sent(queue.put_many("default", ["b", "c"], PutOptions::default()));
    let deleted = sent(queue.delete_many([id, id]));
    disk.clear_trace();
    drop(let_go);
    block_on(held).unwrap();
    for put in puts {
        block_on(put).unwrap();
    }
    assert_eq!(block_on(many).unwrap().len(), 2);
    let deleted = block_on(deleted).unwrap();
    assert_eq!(deleted, [Ok(()), Err(JobError::NotFound)]);
    let trace = disk.trace();
    let syncs = trace.iter().filter(|done| done.kind == OpKind::Sync);
    // In addition, the engine may mark an idle log.
    assert!((1..=2).contains(&syncs.count()), "{trace:?}");
}

#[test]
fn calls_beyond_the_bounds_wait_or_are_refused_and_who_waits_for_a_job_counts_for_nothing() {
    let queue = in_memory(Bounds {
        calls_max: 4,
        bytes_max: 1 << 20,
    });
    let (held, let_go) = hold(&queue);
    let sessions: Vec<_> = (0..20).map(|_| queue.session()).collect();
    let workers: Vec<_> = sessions
        .into_iter()
        .map(|session| thread::spawn(move || session.reserve().wait().map(|job| job.id())))
        .collect();
    let beyond: Vec<_> = (0..30).map(|_| sent(put_of(&queue))).collect();
    let refused = queue.session().refusing();
    assert_eq!(put_of(&refused).wait(), Err(JobError::Busy));
    assert!(queue.load().0 <= 4);
    drop(let_go);
    block_on(held).unwrap();
    for put in beyond {
        block_on(put).unwrap();
    }
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
}

fn put_of(session: &Session) -> Pending<JobId> {
    session.put("default", "a", PutOptions::default())
}

#[test]
fn a_disk_that_fails_is_an_error_for_every_caller() {
    let disk = SimFs::new(1);
    let queue = on(&disk);
    let worker = queue.session();
    let elsewhere = queue.session();
    elsewhere.watch("nothing").wait().unwrap();
    elsewhere.ignore("default").wait().unwrap();
    let waiting = thread::spawn(move || elsewhere.reserve().wait().map(|job| job.id()));
    disk.inject(Fault::fail(OpKind::Sync, rustix::io::Errno::IO).for_ever());
    let is_told = |error: JobError| {
        assert!(matches!(error, JobError::Store(_)), "{error:?}");
        assert!(error.to_string().contains("/log"), "{error}");
    };
    is_told(put_of(&queue).wait().unwrap_err());
    is_told(worker.reserve().wait().map(|job| job.id()).unwrap_err());
    is_told(waiting.join().unwrap().unwrap_err());
    is_told(queue.close().unwrap_err());
}

#[test]
fn a_close_says_what_is_kept_and_tells_all_others() {
    let disk = SimFs::new(1);
    let queue = on(&disk);
    let other = queue.clone();
    let worker = queue.session();
    worker.watch("nothing").wait().unwrap();
    worker.ignore("default").wait().unwrap();
    let waiting = sent(worker.reserve());
    let ids: Vec<_> = ["a", "b", "c"].map(|body| put(&queue, body)).into();
    let mine = queue.session();
    let reserved = mine.reserve_job(ids[0]).wait().unwrap();
    mine.reserve_job(ids[1])
        .wait()
        .unwrap()
        .bury(1)
        .wait()
        .unwrap();
    let (_held, let_go) = hold(&queue);
    let sent_before = sent(put_of(&queue));
    drop(let_go);
    let kept = queue.close().unwrap();
    assert!(block_on(sent_before).is_ok(), "what was sent is done");
    assert_eq!((kept.reserved, kept.ready, kept.buried), (1, 2, 1));
    let closed = Err(JobError::Closed);
    assert_eq!(block_on(waiting).map(|job| job.id()), closed);
    assert_eq!(put_of(&other).wait(), closed);
    assert_eq!(reserved.delete().wait(), Err(JobError::Closed));
    assert_eq!(other.close().map(|_| ()), Err(JobError::Closed));

    let queue = on(&disk);
    let mut bodies: Vec<_> = (0..3).map(|_| queue.reserve().wait().unwrap()).collect();
    bodies.sort_by_key(Reserved::id);
    assert_eq!(bodies[0].body(), b"a", "what was reserved is ready");
    assert_eq!(queue.peek_buried("default").wait().unwrap().id, ids[1]);
}

#[test]
fn the_last_handle_closes_the_queue_and_its_directory_is_free_then() {
    let dir = tempfile::tempdir().unwrap();
    let queue = Queue::open(dir.path()).unwrap();
    assert!(Queue::open(dir.path()).is_err());
    let session = queue.session();
    drop(queue);
    put(&session, "a");
    let job = session.reserve().wait().unwrap();
    drop(session);
    assert!(
        Queue::open(dir.path()).is_err(),
        "a reserved job is a handle"
    );
    drop(job);
    let queue = Queue::open(dir.path()).unwrap();
    assert_eq!(queue.close().unwrap().ready, 1);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let disk = SimFs::new(1);
    disk.inject(Fault::fail(OpKind::Sync, rustix::io::Errno::IO).for_ever());
    let error = Queue::open_with(&options(&disk), Bounds::default()).unwrap_err();
    assert!(error.to_string().contains("/log"), "{error}");
}

#[test]
fn looks_and_pauses_are_those_of_the_protocol() {
    let queue = in_memory(Bounds::default());
    let id = put(&queue, "a");
    assert_eq!(queue.peek_ready("default").wait().unwrap().id, id);
    assert_eq!(
        queue.peek_delayed("default").wait(),
        Err(JobError::NotFound)
    );
    queue
        .pause("default", Duration::from_secs(100))
        .wait()
        .unwrap();
    let none = queue.reserve_within(Duration::ZERO).wait().unwrap();
    assert!(none.is_none());
    assert!(matches!(
        queue.watch("a b").wait(),
        Err(JobError::BadTubeName(_))
    ));
}

/// Drops the last handle of the queue when it is woken, and reports that.
struct DropsAll {
    call: std::sync::Mutex<Option<Pin<Box<Pending<JobId>>>>>,
    tell: std::sync::Mutex<Sender<()>>,
}

impl std::task::Wake for DropsAll {
    fn wake(self: Arc<Self>) {
        drop(self.call.lock().unwrap().take());
        self.tell.lock().unwrap().send(()).unwrap();
    }
}

#[test]
fn the_last_handle_may_go_on_the_engines_own_thread() {
    let queue = in_memory(Bounds::default());
    let (held, let_go) = hold(&queue);
    let (tell, told) = channel();
    let waker = Arc::new(DropsAll {
        call: std::sync::Mutex::new(None),
        tell: std::sync::Mutex::new(tell),
    });
    let mut put = Box::pin(put_of(&queue.session()));
    let as_waker = Waker::from(waker.clone());
    let polled = put.as_mut().poll(&mut Context::from_waker(&as_waker));
    assert!(matches!(polled, Poll::Pending));
    *waker.call.lock().unwrap() = Some(put);
    drop((queue, held, let_go));
    told.recv().unwrap();
}

#[test]
fn a_policy_says_what_becomes_of_jobs_that_fail_and_a_worker_says_why() {
    let disk = SimFs::new(1);
    let queue = on(&disk);
    let policy = "delivery-limit=2 dead-letter=dead";
    let set = queue.set_policy("default", policy).unwrap();
    set.wait().unwrap();
    let error = queue.set_policy("default", "limit=2").unwrap_err();
    assert!(error.to_string().contains("a policy has no 'limit'"));
    let job = put(&queue, "job");
    for dead_letter in [None, Some("dead".into())] {
        let reserved = queue.reserve_job(job).wait().unwrap().keep();
        let failed = queue.fail(reserved.id, "no host").wait().unwrap();
        assert_eq!(failed, dead_letter);
    }
    let shown = queue.stats_job_extended(job).wait().unwrap();
    assert_eq!(shown.reason, Some(Reason::Failed));
    assert_eq!(shown.text.as_deref(), Some(&b"no host"[..]));
    assert_eq!(shown.dead_lettered_from.as_deref(), Some("default"));
    assert!(shown.dead_lettered_at.is_some() && shown.due_at.is_none());
    queue.move_job(job, "other").wait().unwrap();
    let kept = queue.reserve_job(job).wait().unwrap().keep();
    let too_long = vec![b'x'; 4097];
    assert!(matches!(
        queue.bury_with_reason(kept.id, 1, too_long).wait(),
        Err(JobError::TooBig {
            size: 4097,
            size_max: 4096
        })
    ));
    queue.bury_with_reason(kept.id, 1, "later").wait().unwrap();
    let shown = queue.stats_policy("default").wait().unwrap();
    assert_eq!((shown.total_failed, shown.total_set_aside), (2, 1));
    assert_eq!((&*shown.policy, &*shown.set_for), (policy, "default"));
    assert!(matches!(
        queue.stats_policy("other").wait(),
        Err(JobError::NotFound)
    ));
}

#[test]
fn a_schedule_is_set_shown_and_deleted() {
    let queue = on(&SimFs::new(1));
    let mut schedule = Schedule {
        cron: "0 0 1 1 *".to_owned(),
        tube: "mail".to_owned(),
        body: b"happy new year".to_vec(),
        missed: Missed::Once,
        ..Schedule::default()
    };
    queue
        .set_schedule("year", &schedule)
        .unwrap()
        .wait()
        .unwrap();
    let shown = queue.stats_schedule("year").wait().unwrap();
    assert_eq!((shown.missed, shown.bytes), (Missed::Once, 14));
    assert_eq!(shown.next.len(), 5);
    assert!(shown.next.iter().all(|it| *it > shown.fired_up_to));
    for _ in 0..2 {
        queue.pause_schedule("year").wait().unwrap();
        // To set it again ends no pause.
        let set = queue.set_schedule("year", &schedule).unwrap();
        set.wait().unwrap();
        let shown = queue.stats_schedule("year").wait().unwrap();
        assert!(shown.paused && shown.next.is_empty());
    }
    let first = queue.run_schedule("year").wait().unwrap();
    assert_eq!(first, Inserted::New(JobId(1)));
    schedule.key = Some("year".into());
    let set = queue.set_schedule("year", &schedule).unwrap();
    set.wait().unwrap();
    let second = queue.run_schedule("year").wait().unwrap();
    assert_eq!(second, Inserted::New(JobId(2)), "the first has no key");
    let third = queue.run_schedule("year").wait().unwrap();
    assert_eq!(third, Inserted::Exists(JobId(2)));
    queue.resume_schedule("year").wait().unwrap();
    let shown = queue.stats_schedule("year").wait().unwrap();
    assert!(!shown.paused);
    queue.delete_schedule("year").wait().unwrap();
    for pending in [
        queue.pause_schedule("year"),
        queue.resume_schedule("year"),
        queue.delete_schedule("year"),
    ] {
        assert_eq!(pending.wait(), Err(JobError::NotFound));
    }
    assert_eq!(queue.run_schedule("year").wait(), Err(JobError::NotFound));
    let gone = queue.stats_schedule("year").wait();
    assert!(matches!(gone, Err(JobError::NotFound)));
    let error = queue.set_schedule("-", &schedule).unwrap_err();
    assert!(
        error.to_string().contains("no name of a schedule"),
        "{error}"
    );
    schedule.tz = "Nowhere".to_owned();
    let error = queue.set_schedule("year", &schedule).unwrap_err();
    assert!(error.to_string().contains("no time zone"), "{error}");
}

#[test]
fn a_job_with_a_key_is_put_once_and_may_be_replaced() {
    let disk = SimFs::new(1);
    let queue = on(&disk);
    let key = |name: &str, unique, conflict| PutAttributes {
        key: Some(name.into()),
        unique,
        conflict,
        group: Some("g".into()),
        ..PutAttributes::default()
    };
    let put = |attributes| {
        let options = PutOptions::default();
        queue
            .put_with("default", "body", options, attributes)
            .wait()
    };
    let keep = key("k", Unique::Exists, Conflict::Keep);
    let replace = key("k", Unique::Exists, Conflict::Replace);
    assert_eq!(put(keep.clone()), Ok(Inserted::New(JobId(1))));
    assert_eq!(put(keep.clone()), Ok(Inserted::Exists(JobId(1))));
    assert_eq!(put(replace), Ok(Inserted::New(JobId(2))));
    let waiting = key("w", Unique::Waiting, Conflict::Keep);
    assert_eq!(put(waiting.clone()), Ok(Inserted::New(JobId(3))));
    let plain = PutAttributes::default();
    assert_eq!(put(plain).map(Inserted::id), Ok(JobId(4)));
    let reserved = queue.reserve_job(JobId(3)).wait().unwrap();
    assert_eq!(put(waiting), Ok(Inserted::New(JobId(5))));
    drop(reserved);
    for bad in ["", "a b", "\u{e4}"] {
        let bad_key = key(bad, Unique::Exists, Conflict::Keep);
        assert_eq!(put(bad_key), Err(JobError::BadKey(bad.into())));
        let bad_group = PutAttributes {
            group: Some(bad.into()),
            ..PutAttributes::default()
        };
        assert_eq!(put(bad_group), Err(JobError::BadKey(bad.into())));
    }
    assert_eq!(queue.close().unwrap().total(), 4);
    let queue = on(&disk);
    let put = queue.put_with("default", "body", PutOptions::default(), keep);
    assert_eq!(put.wait(), Ok(Inserted::Exists(JobId(2))));
}
