//! The worker: at bsd, at beanstalkd, and on a queue in this process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bsd_client::worker::{
    Failure, JobInfo, JobSession, JobSource, Metrics, Outcome, Retry, Running, Task, Worker,
};
use bsd_client::{
    Client, Config, DeadLetter, Error, Failed, Inserted, Job, JobId, Policy, Put, Servers, State,
};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::harness::{Server, wait_until};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Mail {
    pub(crate) to: String,
}

fn mail(to: &str) -> Put {
    Put::json(&Mail { to: to.to_owned() }).unwrap().tube("mail")
}

/// Counts what the worker says.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) started: AtomicU64,
    pub(crate) done: AtomicU64,
    pub(crate) touched: AtomicU64,
    pub(crate) troubles: AtomicU64,
    pub(crate) outcomes: Mutex<Vec<Outcome>>,
}

impl Metrics for Seen {
    fn started(&self, _: &JobInfo) {
        self.started.fetch_add(1, Ordering::SeqCst);
    }

    fn finished(&self, _: &JobInfo, outcome: &Outcome, _: Duration) {
        self.outcomes.lock().unwrap().push(outcome.clone());
        self.done
            .fetch_add(u64::from(*outcome == Outcome::Done), Ordering::SeqCst);
    }

    fn touched(&self, _: &JobInfo) {
        self.touched.fetch_add(1, Ordering::SeqCst);
    }

    fn trouble(&self, _: &Error) {
        self.troubles.fetch_add(1, Ordering::SeqCst);
    }
}

impl Seen {
    pub(crate) fn ended(&self) -> usize {
        self.outcomes.lock().unwrap().len()
    }

    pub(crate) fn count(&self, of: impl Fn(&Outcome) -> bool) -> usize {
        self.outcomes
            .lock()
            .unwrap()
            .iter()
            .filter(|outcome| of(outcome))
            .count()
    }
}

/// Does what the body says.
pub(crate) fn handle(mail: Task<Mail>) -> Result<(), Failure> {
    match &*mail.to {
        "nowhere" => Err(Failure::new("no route to host")),
        "never" => Err(Failure::new("no such person").never_again()),
        "panic" => panic!("out of paper"),
        _ => Ok(()),
    }
}

/// The same worker wherever its jobs come from: three are done, and one each fails, panics, is given up
/// and cannot be read. Two deliveries may fail.
fn ends_each_job_as_its_handler_says(source: impl JobSource) -> Arc<Seen> {
    ends_each_job(Worker::new(handle), source)
}

/// The same with a worker that has the handler already.
pub(crate) fn ends_each_job(worker: Worker, source: impl JobSource) -> Arc<Seen> {
    let mut session = source.open(&["mail".to_owned()]).unwrap();
    for to in ["a", "nowhere", "b", "panic", "never", "c"] {
        session.put(mail(to)).unwrap();
    }
    session.put(Put::new("no json").tube("mail")).unwrap();
    let seen = Arc::new(Seen::default());
    let retry = Retry {
        limit: 2,
        min: Duration::ZERO,
        ..Retry::default()
    };
    let worker = worker.tube("mail").concurrency(3).retry(retry);
    let running = worker.metrics(seen.clone()).start(source).unwrap();
    wait_until("all jobs are ended", || seen.ended() >= 9);
    let summary = running.stop();
    assert_eq!((summary.done, summary.failed, summary.abandoned), (3, 6, 0));
    assert_eq!(seen.count(|it| *it == Outcome::Done), 3);
    assert_eq!(seen.count(|it| *it == Outcome::Buried), 2);
    assert_eq!(seen.count(|it| *it == Outcome::Failed(Failed::Released)), 2);
    assert_eq!(session.reserve(Duration::ZERO).unwrap(), None);
    seen
}

pub(crate) fn limit(limit: u32) -> Policy {
    Policy {
        delivery_limit: Some(limit),
        dead_letter: DeadLetter::Tube("dead".to_owned()),
        ..Policy::default()
    }
}

/// The texts of the jobs of a tube in this state.
pub(crate) fn texts(client: &mut Client, tube: &str, state: State) -> Vec<String> {
    let page = client.list_jobs(tube, state, None, 100).unwrap();
    let ids = page.jobs.into_iter().map(|(id, _)| id);
    let mut texts: Vec<_> = ids
        .filter_map(|id| client.stats_job_extended(id).unwrap().text)
        .collect();
    texts.sort();
    texts
}

#[test]
fn at_bsd_the_policy_of_the_server_says_what_becomes_of_failures() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let mut client = server.client();
    client.set_policy("mail", &limit(2)).unwrap();
    let seen = ends_each_job_as_its_handler_says(server.config());
    let dead = Outcome::Failed(Failed::DeadLettered("dead".to_owned()));
    assert_eq!(seen.count(|it| *it == dead), 2);
    let failed = texts(&mut client, "dead", State::Ready);
    assert_eq!(
        failed,
        ["no route to host", "the handler panicked: out of paper"]
    );
    let buried = texts(&mut client, "mail", State::Buried);
    assert_eq!(buried[0], "no such person");
    assert!(
        buried[1].starts_with("the body cannot be read: "),
        "{buried:?}"
    );
}

#[test]
fn at_beanstalkd_the_worker_counts_by_itself() {
    let Some(server) = Server::beanstalkd() else {
        return;
    };
    let seen = ends_each_job_as_its_handler_says(server.config());
    assert_eq!(seen.count(|it| *it == Outcome::Failed(Failed::Buried)), 2);
    assert_eq!(server.client().stats_tube("mail").unwrap().buried, 4);
}

#[test]
fn the_same_worker_runs_on_a_queue_in_this_process() {
    let dir = tempfile::tempdir().unwrap();
    let queue = bsd::Queue::open(dir.path()).unwrap();
    let policy = "delivery-limit=2 dead-letter=dead";
    queue.set_policy("mail", policy).unwrap().wait().unwrap();
    let seen = ends_each_job_as_its_handler_says(queue.clone());
    let dead = Outcome::Failed(Failed::DeadLettered("dead".to_owned()));
    assert_eq!(seen.count(|it| *it == dead), 2);
    // Which of them was buried first is up to the threads.
    let mut buried = Vec::new();
    while let Ok(job) = queue.peek_buried("mail").wait() {
        queue.delete(job.id).wait().unwrap();
        buried.push(job.body);
    }
    assert!(buried.contains(&mail_body("never")), "{buried:?}");
}

fn mail_body(to: &str) -> Vec<u8> {
    serde_json::to_vec(&Mail { to: to.to_owned() }).unwrap()
}

#[test]
fn the_same_worker_takes_jobs_of_a_list_of_servers() {
    let (Some(one), Some(two)) = (Server::bsd(&[]), Server::bsd(&[])) else {
        return;
    };
    for server in [&one, &two] {
        server.client().set_policy("mail", &limit(2)).unwrap();
    }
    let servers = Servers::new([("one", one.config()), ("two", two.config())]).unwrap();
    ends_each_job_as_its_handler_says(servers);
}

/// A worker whose handler says that it runs, and ends when it is told to.
fn held(source: impl JobSource, grace: Duration) -> (Running, Arc<Seen>, Arc<AtomicBool>) {
    let (seen, may_end) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
    let gate = may_end.clone();
    let worker = Worker::raw(move |_| {
        wait_until("the handler may end", || gate.load(Ordering::SeqCst));
        Ok(())
    });
    let worker = worker.grace(grace).metrics(seen.clone());
    (worker.start(source).unwrap(), seen, may_end)
}

#[test]
fn a_job_whose_handler_takes_longer_than_its_time_is_touched() {
    let queue = bsd::Queue::open_with(&bsd::Options::default(), bsd::Bounds::default()).unwrap();
    for is_embedded in [true, false] {
        let server = if is_embedded { None } else { Server::bsd(&[]) };
        let put = Put::new("x").ttr(Duration::from_secs(1));
        let (running, seen, may_end) = match (&server, is_embedded) {
            (_, true) => {
                queue
                    .open(&["default".to_owned()])
                    .unwrap()
                    .put(put)
                    .unwrap();
                held(queue.clone(), Duration::from_secs(60))
            }
            (Some(server), false) => {
                server.client().put(put).unwrap();
                held(server.config(), Duration::from_secs(60))
            }
            (None, false) => return,
        };
        // Four touches of a job of one second: its time would have been over.
        wait_until("the job is touched", || {
            seen.touched.load(Ordering::SeqCst) >= 4
        });
        may_end.store(true, Ordering::SeqCst);
        wait_until("the job is done", || seen.ended() == 1);
        let summary = running.stop();
        assert_eq!((summary.done, seen.started.load(Ordering::SeqCst)), (1, 1));
    }
}

/// Two servers. The first one does not answer a touch before the jobs of the second one were touched,
/// which has its jobs only when the first was asked.
#[derive(Debug, Default)]
struct Two {
    opened: AtomicU64,
    is_asked: AtomicBool,
    touched: AtomicU64,
}

impl Two {
    /// With the second one alone.
    fn second() -> Two {
        Two {
            opened: AtomicU64::new(1),
            is_asked: AtomicBool::new(true),
            touched: AtomicU64::new(0),
        }
    }

    fn is_touched(&self) -> bool {
        self.touched.load(Ordering::SeqCst) >= 2
    }
}

/// A session with one of them, which has two jobs for it.
struct OneOfTwo {
    two: Arc<Two>,
    is_first: bool,
    left: u64,
}

struct TwoSource(Arc<Two>);

impl JobSource for TwoSource {
    fn open(&self, _: &[String]) -> Result<Box<dyn JobSession>, Error> {
        Ok(Box::new(OneOfTwo {
            two: self.0.clone(),
            is_first: self.0.opened.fetch_add(1, Ordering::SeqCst) == 0,
            left: 2,
        }))
    }
}

impl JobSession for OneOfTwo {
    fn put(&mut self, _: Put) -> Result<Inserted, Error> {
        Ok(Inserted::New(1))
    }

    fn reserve(&mut self, _: Duration) -> Result<Option<Job>, Error> {
        if self.left == 0 || !(self.is_first || self.two.is_asked.load(Ordering::SeqCst)) {
            std::thread::park_timeout(Duration::from_millis(5));
            return Ok(None);
        }
        self.left -= 1;
        let (tube, body) = (None, Vec::new());
        Ok(Some(Job { id: 1, tube, body }))
    }

    fn delete(&mut self, _: JobId) -> Result<(), Error> {
        Ok(())
    }

    fn release(&mut self, _: JobId, _: Duration) -> Result<(), Error> {
        Ok(())
    }

    fn fail(&mut self, _: JobId, _: &str, _: &Retry) -> Result<Failed, Error> {
        Ok(Failed::Released)
    }

    fn bury(&mut self, _: JobId, _: &str) -> Result<(), Error> {
        Ok(())
    }

    fn touch(&mut self, _: JobId) -> Result<(), Error> {
        let is_counted = u64::from(!self.is_first);
        self.two.touched.fetch_add(is_counted, Ordering::SeqCst);
        Ok(())
    }

    fn time_to_run(&mut self, _: JobId) -> Result<Duration, Error> {
        if self.is_first {
            self.two.is_asked.store(true, Ordering::SeqCst);
            wait_until("the other job is touched", || self.two.is_touched());
        }
        Ok(Duration::ZERO)
    }
}

#[test]
fn a_server_that_does_not_answer_a_touch_holds_up_no_job_of_another() {
    let two: Arc<Two> = Arc::default();
    let known = two.clone();
    let worker = Worker::raw(move |_| {
        wait_until("the job of the second is touched", || known.is_touched());
        Ok(())
    });
    let seen = Arc::new(Seen::default());
    let worker = worker.concurrency(2).metrics(seen.clone());
    let running = worker.start(TwoSource(two)).unwrap();
    wait_until("all jobs are done", || seen.ended() == 4);
    assert_eq!(running.stop().done, 4);
}

/// Counts, and panics then.
struct Panics(Arc<Seen>);

impl Metrics for Panics {
    fn started(&self, job: &JobInfo) {
        self.0.started(job);
        panic!("no counter");
    }

    fn finished(&self, job: &JobInfo, outcome: &Outcome, took: Duration) {
        self.0.finished(job, outcome, took);
        panic!("no counter");
    }

    fn touched(&self, job: &JobInfo) {
        self.0.touched(job);
        panic!("no counter");
    }
}

#[test]
fn metrics_that_panic_end_neither_the_work_nor_the_touches() {
    let two = Arc::new(Two::second());
    let known = two.clone();
    let worker = Worker::raw(move |_| {
        wait_until("the job is touched", || known.is_touched());
        Ok(())
    });
    let seen = Arc::new(Seen::default());
    let worker = worker.metrics(Panics(seen.clone()));
    let running = worker.start(TwoSource(two)).unwrap();
    wait_until("both jobs are done", || seen.ended() == 2);
    assert_eq!(running.stop().done, 2);
}

#[test]
fn a_stop_lets_the_handler_that_runs_end_and_begins_nothing_more() {
    let Some(server) = Server::bsd(&[]) else {
        return;
    };
    let mut client = server.client();
    for _ in 0..5 {
        client.put(Put::new("x")).unwrap();
    }
    let (mut running, seen, may_end) = held(server.config(), Duration::from_secs(60));
    running.stop_on_signals().unwrap();
    wait_until("a handler runs", || {
        seen.started.load(Ordering::SeqCst) == 1
    });
    let stopper = running.stopper();
    // To this process, which is not ended by it.
    rustix::process::kill_process(rustix::process::getpid(), Signal::TERM).unwrap();
    wait_until("the signal has come", || stopper.is_stopped());
    assert_eq!(client.stats().unwrap().reserved, 1);
    may_end.store(true, Ordering::SeqCst);
    let summary = running.wait();
    assert_eq!((summary.done, summary.abandoned), (1, 0));
    let stats = client.stats().unwrap();
    assert_eq!((stats.ready, stats.reserved), (4, 0));
    assert_eq!(seen.started.load(Ordering::SeqCst), 1);
}

#[test]
fn a_handler_that_does_not_end_within_the_grace_time_loses_its_job() {
    let queue = bsd::Queue::open_with(&bsd::Options::default(), bsd::Bounds::default()).unwrap();
    let tubes = ["default".to_owned()];
    queue.open(&tubes).unwrap().put(Put::new("x")).unwrap();
    let server = Server::bsd(&[]);
    if let Some(server) = &server {
        server.client().put(Put::new("x")).unwrap();
    }
    let ends = |(running, seen, may_end): (Running, Arc<Seen>, Arc<AtomicBool>)| {
        wait_until("a handler runs", || {
            seen.started.load(Ordering::SeqCst) == 1
        });
        let summary = running.stop();
        assert_eq!((summary.done, summary.abandoned), (0, 1));
        assert_eq!(*seen.outcomes.lock().unwrap(), [Outcome::Abandoned]);
        may_end
    };
    let may_end = ends(held(queue.clone(), Duration::ZERO));
    let again = queue.open(&tubes).unwrap().reserve(Duration::from_secs(60));
    assert!(again.unwrap().is_some());
    may_end.store(true, Ordering::SeqCst);
    if let Some(server) = server {
        let may_end = ends(held(server.config(), Duration::ZERO));
        assert!(
            server
                .client()
                .reserve(Duration::from_secs(60))
                .unwrap()
                .is_some()
        );
        may_end.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_server_that_is_killed_loses_no_job_and_delivers_none_beyond_its_limit() {
    const JOBS: usize = 60;
    const LIMIT: u32 = 3;
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix:{}", dir.path().join("socket").display());
    let data = dir.path().join("data").display().to_string();
    let start = || Server::bsd(&["-l", &socket, "-b", &data]);
    let Some(mut server) = start() else {
        return;
    };
    let mut client = server.client();
    // A delivery that a crash ends counts: good jobs have more of them.
    client.set_policy("mail", &limit(1000)).unwrap();
    client.set_policy("poison", &limit(LIMIT)).unwrap();
    for number in 0..JOBS {
        client.put(mail(&number.to_string())).unwrap();
    }
    for _ in 0..5 {
        client
            .put(
                Put::json(&Mail {
                    to: "poison".to_owned(),
                })
                .unwrap()
                .tube("poison"),
            )
            .unwrap();
    }
    let runs: Arc<Mutex<BTreeMap<(String, u64), u32>>> = Arc::default();
    let handler = {
        let runs = runs.clone();
        move |mail: Task<Mail>| {
            *runs
                .lock()
                .unwrap()
                .entry((mail.to.clone(), mail.id))
                .or_default() += 1;
            match &*mail.to {
                "poison" => Err(Failure::new("bad")),
                _ => Ok(()),
            }
        }
    };
    let seen = Arc::new(Seen::default());
    let config: Config = server.address().parse().unwrap();
    let worker = Worker::new(handler)
        .tube("mail")
        .tube("poison")
        .concurrency(4);
    let running = worker.metrics(seen.clone()).start(config).unwrap();
    for kill_at in [5, 20, 35] {
        wait_until("some jobs are done", || {
            seen.done.load(Ordering::SeqCst) >= kill_at
        });
        server.kill();
        server = start().unwrap();
    }
    let mut client = server.client();
    wait_until("no job is left", || {
        let stats = client.stats().unwrap();
        let dead = client.stats_tube("dead").map_or(0, |stats| stats.ready);
        (stats.ready, stats.reserved, stats.delayed, dead) == (5, 0, 0, 5)
    });
    running.stop();
    let runs = runs.lock().unwrap();
    for number in 0..JOBS {
        let number = number.to_string();
        assert!(
            runs.keys().any(|(to, _)| *to == number),
            "job {number} was never worked on"
        );
    }
    for ((to, id), count) in runs.iter().filter(|((to, _), _)| to == "poison") {
        assert!(*count <= LIMIT, "{to} {id} was delivered {count} times");
    }
}
