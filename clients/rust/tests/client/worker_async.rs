//! The worker with handlers that are awaited: what it does with a job is what it does with a blocking
//! handler.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bsd_client::worker::{Failure, JobSource, Outcome, Running, Task, Worker};
use bsd_client::{Failed, Put, Servers, State};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Semaphore;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Subscriber;
use tracing::{Event, Metadata};

use crate::harness::{PATIENCE, Server, wait_until};
use crate::worker::{Mail, Seen, ends_each_job, handle, limit, texts};

fn runtime() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn queue() -> bsd::Queue {
    bsd::Queue::open_with(&bsd::Options::default(), bsd::Bounds::default()).unwrap()
}

/// Does what the body says, but not at once.
fn worker(runtime: &Runtime) -> Worker {
    Worker::asynchronous(runtime.handle().clone(), |mail: Task<Mail>| async move {
        tokio::task::yield_now().await;
        handle(mail)
    })
}

#[test]
fn each_job_ends_as_its_handler_says_at_bsd() {
    let (Some(server), runtime) = (Server::bsd(&[]), runtime()) else {
        return;
    };
    let mut client = server.client();
    client.set_policy("mail", &limit(2)).unwrap();
    let seen = ends_each_job(worker(&runtime), server.config());
    let dead = Outcome::Failed(Failed::DeadLettered("dead".to_owned()));
    assert_eq!(seen.count(|it| *it == dead), 2);
    let failed = texts(&mut client, "dead", State::Ready);
    assert_eq!(
        failed,
        ["no route to host", "the handler panicked: out of paper"]
    );
}

#[test]
fn each_job_ends_as_its_handler_says_at_beanstalkd() {
    let (Some(server), runtime) = (Server::beanstalkd(), runtime()) else {
        return;
    };
    let seen = ends_each_job(worker(&runtime), server.config());
    assert_eq!(seen.count(|it| *it == Outcome::Failed(Failed::Buried)), 2);
}

#[test]
fn each_job_ends_as_its_handler_says_on_a_queue_in_this_process() {
    let (queue, runtime) = (queue(), runtime());
    let policy = "delivery-limit=2 dead-letter=dead";
    queue.set_policy("mail", policy).unwrap().wait().unwrap();
    let seen = ends_each_job(worker(&runtime), queue);
    let dead = Outcome::Failed(Failed::DeadLettered("dead".to_owned()));
    assert_eq!(seen.count(|it| *it == dead), 2);
}

#[test]
fn each_job_ends_as_its_handler_says_on_a_list_of_servers() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    for server in [&one, &two] {
        server.client().set_policy("mail", &limit(2)).unwrap();
    }
    let servers = Servers::new([("one", one.config()), ("two", two.config())]).unwrap();
    ends_each_job(worker(&runtime()), servers);
}

/// How many handlers were called, and how many of them have ended or were dropped.
#[derive(Default)]
struct Calls {
    begun: AtomicU64,
    over: AtomicU64,
}

/// A call of a handler.
struct Called(Arc<Calls>);

impl Called {
    fn new(calls: &Arc<Calls>) -> Called {
        calls.begun.fetch_add(1, Ordering::SeqCst);
        Called(calls.clone())
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        self.0.over.fetch_add(1, Ordering::SeqCst);
    }
}

/// A worker whose handlers run until the semaphore has permits, and what is seen of them.
struct Held {
    running: Running,
    seen: Arc<Seen>,
    may_end: Arc<Semaphore>,
    calls: Arc<Calls>,
}

fn held(runtime: &Handle, source: impl JobSource, concurrency: usize, grace: Duration) -> Held {
    let (seen, may_end) = (Arc::new(Seen::default()), Arc::new(Semaphore::new(0)));
    let calls: Arc<Calls> = Arc::default();
    let (gate, count) = (may_end.clone(), calls.clone());
    let worker = Worker::asynchronous_raw(runtime.clone(), move |_| {
        let (gate, called) = (gate.clone(), Called::new(&count));
        async move {
            gate.acquire().await?.forget();
            drop(called);
            Ok::<(), Failure>(())
        }
    });
    let worker = worker.concurrency(concurrency).grace(grace);
    let running = worker.metrics(seen.clone()).start(source).unwrap();
    Held {
        running,
        seen,
        may_end,
        calls,
    }
}

fn put(source: &impl JobSource, count: usize, ttr: Duration) {
    let mut session = source.open(&["default".to_owned()]).unwrap();
    for _ in 0..count {
        session.put(Put::new("x").ttr(ttr)).unwrap();
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn as_many_handlers_run_at_a_time_as_are_asked_for_on_one_thread() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let queue = queue();
    put(&queue, 30, 60 * SECOND);
    let held = held(runtime.handle(), queue, 20, PATIENCE);
    let started = || held.seen.started.load(Ordering::SeqCst);
    wait_until("twenty run", || started() == 20);
    held.may_end.add_permits(1);
    wait_until("the next one has begun", || started() == 21);
    assert_eq!(held.seen.ended(), 1);
    held.may_end.add_permits(29);
    wait_until("all are done", || held.seen.ended() == 30);
    assert_eq!(held.running.stop().done, 30);
}

fn touches(source: &(impl JobSource + Clone)) {
    let runtime = runtime();
    put(source, 1, SECOND);
    let held = held(runtime.handle(), source.clone(), 1, PATIENCE);
    // Four touches of a job of one second: its time would have been over.
    wait_until("the job is touched", || {
        held.seen.touched.load(Ordering::SeqCst) >= 4
    });
    held.may_end.add_permits(1);
    wait_until("the job is done", || held.seen.ended() == 1);
    assert_eq!(held.running.stop().done, 1);
    assert_eq!(held.seen.started.load(Ordering::SeqCst), 1);
}

#[test]
fn a_job_whose_handler_takes_longer_than_its_time_is_touched() {
    touches(&queue());
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    touches(&one.config());
    touches(&Servers::new([("one", one.config()), ("two", two.config())]).unwrap());
}

fn outlives(source: &(impl JobSource + Clone)) {
    let runtime = runtime();
    put(source, 1, 60 * SECOND);
    let held = held(runtime.handle(), source.clone(), 1, Duration::ZERO);
    wait_until("a handler runs", || {
        held.calls.begun.load(Ordering::SeqCst) == 1
    });
    let summary = held.running.stop();
    assert_eq!((summary.done, summary.abandoned), (0, 1));
    assert_eq!(*held.seen.outcomes.lock().unwrap(), [Outcome::Abandoned]);
    wait_until("the handler is dropped", || {
        held.calls.over.load(Ordering::SeqCst) == 1
    });
    let mut session = source.open(&["default".to_owned()]).unwrap();
    let job = session.reserve(PATIENCE).unwrap().unwrap();
    session.delete(job.id).unwrap();
}

#[test]
fn a_handler_that_outlives_the_grace_time_is_dropped_and_its_job_is_ready_again() {
    outlives(&queue());
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    outlives(&one.config());
    outlives(&Servers::new([("one", one.config()), ("two", two.config())]).unwrap());
}

#[test]
fn a_stop_lets_the_handlers_that_run_end_and_begins_nothing_more() {
    let (queue, runtime) = (queue(), runtime());
    put(&queue, 5, 60 * SECOND);
    let held = held(runtime.handle(), queue.clone(), 2, PATIENCE);
    wait_until("two run", || held.seen.started.load(Ordering::SeqCst) == 2);
    let (stopper, gate) = (held.running.stopper(), held.may_end.clone());
    stopper.stop();
    gate.add_permits(5);
    let summary = runtime.block_on(held.running.wait_async()).unwrap();
    assert_eq!((summary.done, summary.abandoned), (2, 0));
    let mut session = queue.open(&["default".to_owned()]).unwrap();
    for _ in 0..3 {
        assert!(session.reserve(Duration::ZERO).unwrap().is_some());
    }
}

#[tokio::test]
async fn a_runtime_of_one_thread_is_not_held_up_by_those_who_wait() {
    let queue = queue();
    put(&queue, 8, 60 * SECOND);
    let held = held(&Handle::current(), queue, 4, PATIENCE);
    let (stopper, gate) = (held.running.stopper(), held.may_end.clone());
    let seen = held.seen.clone();
    let waiting = tokio::spawn(held.running.wait_async());
    gate.add_permits(8);
    while seen.ended() < 8 {
        tokio::task::yield_now().await;
    }
    stopper.stop();
    assert_eq!(waiting.await.unwrap().unwrap().done, 8);
}

#[tokio::test]
async fn a_wait_that_is_dropped_stops_its_worker() {
    let queue = queue();
    let held = held(&Handle::current(), queue, 1, PATIENCE);
    let stopper = held.running.stopper();
    let waiting = tokio::spawn(held.running.wait_async());
    tokio::task::yield_now().await;
    assert!(!stopper.is_stopped());
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert!(stopper.is_stopped());
}

#[test]
fn a_worker_whose_runtime_is_shut_down_stops_and_fails_no_job() {
    let (queue, runtime) = (queue(), runtime());
    let policy = "delivery-limit=20 dead-letter=dead";
    queue.set_policy("default", policy).unwrap().wait().unwrap();
    put(&queue, 10, 60 * SECOND);
    let held = held(runtime.handle(), queue.clone(), 2, PATIENCE);
    wait_until("two run", || held.seen.started.load(Ordering::SeqCst) == 2);
    runtime.shutdown_background();
    let summary = held.running.wait();
    assert_eq!((summary.done, summary.abandoned), (0, 0));
    // One or two stop it, and each place has begun one more at most.
    assert!((2..=3).contains(&summary.failed), "{summary:?}");
    assert!(held.seen.troubles.load(Ordering::SeqCst) >= 2);
    assert_eq!(
        held.seen.ended(),
        held.seen.count(|it| *it == Outcome::Released)
    );
    let mut session = queue.open(&["default".to_owned()]).unwrap();
    for _ in 0..10 {
        assert!(session.reserve(Duration::ZERO).unwrap().is_some());
    }
}

#[test]
fn a_handler_is_called_inside_its_runtime() {
    let (queue, runtime) = (queue(), runtime());
    put(&queue, 1, 60 * SECOND);
    let is_inside: Arc<AtomicBool> = Arc::default();
    let (seen, found) = (Arc::new(Seen::default()), is_inside.clone());
    let worker = Worker::asynchronous_raw(runtime.handle().clone(), move |_| {
        let child = tokio::spawn(async {});
        found.store(Handle::try_current().is_ok(), Ordering::SeqCst);
        async move { Ok(child.await?) }
    });
    let running = worker.metrics(seen.clone()).start(queue).unwrap();
    wait_until("the job is done", || seen.ended() == 1);
    assert_eq!(running.stop().done, 1);
    assert!(is_inside.load(Ordering::SeqCst));
}

thread_local! {
    /// The spans in which this thread is.
    static INSIDE: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Knows in which spans a thread is.
#[derive(Default)]
struct Spans(Mutex<Vec<&'static Metadata<'static>>>);

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut spans = self.0.lock().unwrap();
        spans.push(span.metadata());
        Id::from_u64(spans.len() as u64)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        let metadata = self.0.lock().unwrap()[id.into_u64() as usize - 1];
        INSIDE.with_borrow_mut(|inside| inside.push(metadata.name()));
    }

    fn exit(&self, _: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.pop());
    }
}

/// The names of the spans in which this thread is.
fn inside() -> Vec<&'static str> {
    INSIDE.with_borrow(Vec::clone)
}

#[test]
fn a_handler_is_in_the_span_of_its_job_also_after_it_has_awaited() {
    tracing::subscriber::set_global_default(Spans::default()).unwrap();
    let (queue, runtime) = (queue(), runtime());
    put(&queue, 2, 60 * SECOND);
    let (seen, found) = (Arc::new(Seen::default()), Arc::<Mutex<Vec<_>>>::default());
    let spans = found.clone();
    let blocking = Worker::raw(move |_| {
        spans.lock().unwrap().push(inside());
        Ok(())
    });
    let running = blocking.metrics(seen.clone()).start(queue.clone()).unwrap();
    wait_until("the jobs are done", || seen.ended() == 2);
    running.stop();
    put(&queue, 1, 60 * SECOND);
    let spans = found.clone();
    let awaited = Worker::asynchronous_raw(runtime.handle().clone(), move |_| {
        spans.lock().unwrap().push(inside());
        let spans = spans.clone();
        async move {
            tokio::task::yield_now().await;
            spans.lock().unwrap().push(inside());
            Ok::<(), Failure>(())
        }
    });
    let running = awaited.metrics(seen.clone()).start(queue).unwrap();
    wait_until("the job is done", || seen.ended() == 3);
    running.stop();
    assert_eq!(*found.lock().unwrap(), [["job"]; 4]);
    // Between its polls the thread of the runtime is in no span.
    assert!(
        runtime
            .block_on(runtime.spawn(async { inside() }))
            .unwrap()
            .is_empty()
    );
}
