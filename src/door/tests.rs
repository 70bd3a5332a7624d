//! Both sides of the door on one thread: the test runs each turn of the loop.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::*;
use crate::engine::{Engine, Options, ReplySink};
use crate::protocol::{Command, Reply};
use crate::storage::SimFs;
use crate::storage::disk::sim::{Fault, OpKind};
use crate::types::{ClientId, JobId, JobState, Now, Ticket, Time};

/// Here only the desk has clients.
struct NoOthers;

impl ReplySink for NoOthers {
    fn reply(&mut self, client: ClientId, _: Ticket, reply: Reply<'_>) {
        panic!("{reply:?} for {client:?}, which did not ask");
    }
}

struct Loop {
    engine: Engine,
    desk: Desk,
    now: Now,
    /// This many calls, commands of a batch, or readings of the clock in a slice.
    slice: usize,
}

fn by_hand_within(bounds: Bounds, disk: Option<&SimFs>) -> (Door, Loop) {
    let now = Now::new(Time(1_000_000_000), 1_700_000_000_000_000_000);
    let mut options = Options::default();
    if let Some(disk) = disk {
        options.fs = Arc::new(disk.clone());
        options.dir = Some(PathBuf::from("/log"));
        options.segment_size = 1 << 16;
    }
    let engine = Engine::open(&options, now).unwrap();
    let (door, desk) = Door::new(bounds, Arc::new(|| {}));
    let turns = Loop {
        engine,
        desk,
        now,
        slice: usize::MAX,
    };
    (door, turns)
}

fn by_hand() -> (Door, Loop) {
    by_hand_within(Bounds::default(), None)
}

impl Loop {
    fn run(&mut self) {
        let mut left = self.slice;
        let mut is_over = || {
            left = left.saturating_sub(1);
            left == 0
        };
        self.desk
            .serve(&mut self.engine, self.now, &mut NoOthers, &mut is_over);
        let mut others = NoOthers;
        let mut replies = self.desk.replies(&mut others);
        self.engine.tick(self.now, &mut replies).unwrap();
    }

    fn commit(&mut self) {
        if let Err(error) = self.engine.commit(self.now) {
            return self.desk.fail(&error);
        }
        self.desk.acknowledge(self.engine.acknowledged());
    }

    fn turn(&mut self) {
        self.run();
        self.commit();
    }

    fn pass(&mut self, time: Duration) {
        self.now.mono.0 += time.as_nanos() as i64;
    }

    fn state(&self, id: JobId) -> JobState {
        self.engine.queue().job(id).unwrap().state
    }

    /// Send a call, and run turns until it is answered.
    fn answer<T>(&mut self, call: Pending<T>) -> Result<T, JobError> {
        let mut call = sent(call);
        for _ in 0..100 {
            self.turn();
            if let Some(answer) = look(&mut call) {
                return answer;
            }
        }
        panic!("a call is not answered");
    }
}

/// A future that was polled once, without a result.
fn sent<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(look(&mut future).is_none());
    future
}

fn look<F: Future>(future: &mut Pin<Box<F>>) -> Option<F::Output> {
    match future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn put(body: &[u8]) -> Command<'static> {
    put_into("default", body)
}

fn put_into(tube: &str, body: &[u8]) -> Command<'static> {
    super::put(tube, body, PutOptions::default()).unwrap()
}

/// The id and the body of the job that an answer hands out.
fn job(answer: Result<Answer, JobError>) -> (u64, Vec<u8>) {
    match answer {
        Ok(Answer::Reserved(Delivered { job, .. })) => (job.id.0, job.body),
        other => panic!("{other:?}"),
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn no_answer_is_given_before_what_it_promises_is_durable() {
    let disk = SimFs::new(1);
    let (door, mut turns) = by_hand_within(Bounds::default(), Some(&disk));
    let (producer, worker) = (door.session(), door.session());
    let mut inserted = sent(producer.run(put(b"a")));
    let mut reserved = sent(worker.reserve(None));
    turns.run();
    // Nothing of it has been written yet.
    turns.desk.acknowledge(turns.engine.acknowledged());
    assert_eq!(look(&mut inserted), None);
    assert_eq!(look(&mut reserved), None);
    turns.commit();
    assert_eq!(look(&mut inserted), Some(Ok(Answer::Inserted(JobId(1)))));
    assert_eq!(look(&mut reserved).map(job), Some((1, b"a".to_vec())));
}

#[test]
fn who_waits_for_a_job_gets_the_one_that_another_session_puts() {
    let (door, mut turns) = by_hand();
    let (producer, worker) = (door.session(), door.session());
    let mut first = sent(worker.reserve(None));
    let mut second = sent(worker.reserve(Some(SECOND)));
    turns.turn();
    assert_eq!(door.load(), (0, 0), "who waits keeps no one out");
    let _ = turns.answer(producer.run(put(b"a"))).unwrap();
    assert_eq!(look(&mut first).map(job), Some((1, b"a".to_vec())));
    assert_eq!(look(&mut second), None);
    let _ = turns.answer(producer.run(put(b"b"))).unwrap();
    turns.turn();
    assert_eq!(look(&mut second).map(job), Some((2, b"b".to_vec())));
    assert_eq!(door.load(), (0, 0));
}

#[test]
fn who_waits_in_a_session_waits_as_long_as_was_said() {
    let (door, mut turns) = by_hand();
    let worker = door.session();
    let mut patient = sent(worker.reserve(None));
    let mut hasty = sent(worker.reserve(Some(SECOND / 1000)));
    let mut at_once = sent(worker.reserve(Some(Duration::ZERO)));
    turns.turn();
    assert_eq!(look(&mut at_once), Some(Ok(Answer::NoJob)));
    assert_eq!(look(&mut hasty), None);
    assert!(turns.desk.next_deadline().is_some());
    turns.pass(SECOND / 1000);
    turns.turn();
    assert_eq!(look(&mut hasty), Some(Ok(Answer::NoJob)));
    assert_eq!(turns.desk.next_deadline(), None);
    let mut alone = sent(door.session().reserve(Some(SECOND)));
    turns.turn();
    turns.pass(SECOND);
    turns.turn();
    assert_eq!(look(&mut alone), Some(Ok(Answer::NoJob)));
    assert_eq!(look(&mut patient), None);
}

#[test]
fn two_who_wait_in_a_session_until_the_same_time_are_told_apart() {
    let (door, mut turns) = by_hand();
    let worker = door.session();
    let mut first = sent(worker.reserve(Some(SECOND)));
    let mut second = sent(worker.reserve(Some(SECOND)));
    turns.turn();
    let _ = turns.answer(door.session().run(put(b"a"))).unwrap();
    assert_eq!(look(&mut first).map(job), Some((1, b"a".to_vec())));
    turns.turn();
    turns.pass(SECOND);
    turns.turn();
    assert_eq!(look(&mut second), Some(Ok(Answer::NoJob)));
}

#[test]
fn who_waits_in_a_session_gets_what_it_asked_for_when_the_one_before_it_has_given_up() {
    for is_batch_first in [true, false] {
        let (door, mut turns) = by_hand();
        let worker = door.session();
        let wait = |is_batch, timeout| match is_batch {
            true => sent(worker.run(Command::ReserveBatch {
                most: 10,
                timeout: Some(timeout),
            })),
            false => sent(worker.reserve(Some(timeout))),
        };
        let mut hasty = wait(is_batch_first, SECOND);
        let mut patient = wait(!is_batch_first, 3 * SECOND);
        turns.turn();
        turns.pass(SECOND);
        turns.turn();
        assert_eq!(look(&mut hasty), Some(Ok(Answer::NoJob)));
        assert_eq!(look(&mut patient), None);
        for id in 1..=2 {
            let inserted = turns.answer(door.session().run(put(b"a")));
            assert_eq!(inserted, Ok(Answer::Inserted(JobId(id))));
        }
        let answer = look(&mut patient).unwrap().unwrap();
        let is_batch = matches!(answer, Answer::ReservedMany(_));
        assert_eq!(is_batch, !is_batch_first, "{answer:?}");
        assert_eq!(turns.state(JobId(1)), JobState::Reserved);
        assert_eq!(turns.state(JobId(2)), JobState::Ready);
    }
}

#[test]
fn other_calls_of_a_session_go_ahead_of_who_waits_in_it() {
    let (door, mut turns) = by_hand();
    let session = door.session();
    let mut waiting = sent(session.reserve(None));
    turns.turn();
    let watched = turns.answer(session.run(Command::Watch("mail".into())));
    assert_eq!(watched, Ok(Answer::Count(2)));
    assert_eq!(look(&mut waiting), None);
    let _ = turns.answer(session.run(put_into("mail", b"a"))).unwrap();
    assert_eq!(look(&mut waiting).map(job), Some((1, b"a".to_vec())));
}

#[test]
fn a_session_that_has_its_job_may_wait_for_the_next_in_the_same_turn() {
    let (door, mut turns) = by_hand();
    let (producer, worker) = (door.session(), door.session());
    let mut first = sent(worker.reserve(None));
    turns.turn();
    let mut inserted = sent(producer.run(put(b"a")));
    let mut second = sent(worker.reserve(None));
    let mut third = sent(worker.reserve(None));
    turns.turn();
    assert!(look(&mut inserted).is_some());
    assert_eq!(look(&mut first).map(job), Some((1, b"a".to_vec())));
    turns.turn();
    drop(second);
    turns.turn();
    let _ = turns.answer(producer.run(put(b"b"))).unwrap();
    assert_eq!(look(&mut third).map(job), Some((2, b"b".to_vec())));
    second = sent(worker.reserve(Some(SECOND)));
    turns.turn();
    assert_eq!(look(&mut second), None);
}

#[test]
fn a_job_that_no_one_takes_is_ready_again() {
    let (door, mut turns) = by_hand();
    let (producer, worker) = (door.session(), door.session());
    let gone_while_waiting = sent(worker.reserve(None));
    turns.turn();
    drop(gone_while_waiting);
    let _ = turns.answer(producer.run(put(b"a"))).unwrap();
    assert_eq!(turns.state(JobId(1)), JobState::Ready);

    let gone_before_it_was_given = sent(worker.reserve(None));
    turns.run();
    assert_eq!(turns.state(JobId(1)), JobState::Reserved);
    drop(gone_before_it_was_given);
    turns.commit();
    turns.turn();
    assert_eq!(turns.state(JobId(1)), JobState::Ready);

    let gone_before_it_was_taken = sent(worker.reserve(None));
    turns.turn();
    drop(gone_before_it_was_taken);
    turns.turn();
    assert_eq!(turns.state(JobId(1)), JobState::Ready);
}

/// Whenever its caller is gone.
#[test]
fn all_jobs_of_a_batch_without_a_caller_are_ready_again() {
    let (door, mut turns) = by_hand();
    let (producer, worker) = (door.session(), door.session());
    for body in [b"a", b"b"] {
        let _ = turns.answer(producer.run(put(body))).unwrap();
    }
    let batch = || {
        worker.run(Command::ReserveBatch {
            most: 10,
            timeout: None,
        })
    };
    let states = |turns: &Loop| [1, 2].map(|id| turns.state(JobId(id)));
    let gone_before_it_was_given = sent(batch());
    turns.run();
    assert_eq!(states(&turns), [JobState::Reserved; 2]);
    drop(gone_before_it_was_given);
    turns.commit();
    turns.turn();
    assert_eq!(states(&turns), [JobState::Ready; 2]);
    let gone_before_it_was_taken = sent(batch());
    turns.turn();
    drop(gone_before_it_was_taken);
    turns.turn();
    assert_eq!(states(&turns), [JobState::Ready; 2]);
    let taken = turns.answer(batch()).unwrap();
    let Answer::ReservedMany(jobs) = taken else {
        panic!("{taken:?}");
    };
    let told = jobs.iter().map(|one| (one.job.id.0, one.delivery.count));
    assert_eq!(Vec::from_iter(told), [(1, 3), (2, 3)]);
}

#[test]
fn a_session_ends_with_its_last_handle_and_leaves_its_jobs_ready() {
    let (door, mut turns) = by_hand();
    let worker = door.session();
    let _ = turns.answer(worker.run(put(b"a"))).unwrap();
    assert_eq!(job(turns.answer(worker.reserve(None))), (1, b"a".to_vec()));
    let other = worker.clone();
    drop(worker);
    turns.turn();
    assert_eq!(turns.state(JobId(1)), JobState::Reserved);
    assert_eq!(turns.engine.queue().stats().connections, 1);
    drop(other);
    turns.turn();
    assert_eq!(turns.state(JobId(1)), JobState::Ready);
    assert_eq!(turns.engine.queue().stats().connections, 0);
}

#[test]
fn a_call_beyond_the_bounds_is_refused_or_waits_as_its_caller_wants() {
    let bounds = Bounds {
        calls_max: 2,
        bytes_max: 100_000,
    };
    let (door, mut turns) = by_hand_within(bounds, None);
    let session = door.session();
    let mut large = sent(session.run(put(&[0; 60_000])));
    let mut next = sent(session.run(put(&[0; 60_000])));
    let mut small = sent(session.run(put(b"a")));
    let refusing = session.clone().refusing();
    let mut refused = Box::pin(refusing.run(put(b"b")));
    assert_eq!(look(&mut refused), Some(Err(JobError::Busy)));
    assert_eq!(door.load().0, 1, "who came first is not overtaken");
    drop(next);
    turns.turn();
    assert!(look(&mut large).is_some());
    assert!(look(&mut small).is_none(), "it is sent only now");
    next = sent(session.run(put(&[0; 200_000])));
    turns.turn();
    assert!(look(&mut small).is_some());
    assert!(look(&mut next).is_none());
    turns.turn();
    assert!(matches!(
        look(&mut next),
        Some(Err(JobError::TooBig { size: 200_000, .. }))
    ));
    assert_eq!(door.load(), (0, 0));
}

#[test]
fn a_batch_is_one_write_and_says_what_came_of_each() {
    let disk = SimFs::new(1);
    let (door, mut turns) = by_hand_within(Bounds::default(), Some(&disk));
    let session = door.session();
    turns.turn();
    let written = turns.engine.log().unwrap().written();
    let deletes = vec![
        put(b"a"),
        put_into("no tube", b"b"),
        Command::Delete(JobId(1)),
        Command::Delete(JobId(1)),
    ];
    let mut outcomes = sent(session.run_all(deletes));
    disk.clear_trace();
    turns.turn();
    assert_eq!(
        look(&mut outcomes).unwrap().unwrap(),
        [
            Ok(Answer::Inserted(JobId(1))),
            Err(JobError::BadTubeName("no tube".into())),
            Ok(Answer::Done),
            Err(JobError::NotFound),
        ]
    );
    assert!(turns.engine.log().unwrap().written() > written);
    let is = |kind| move |operation: &&crate::storage::disk::sim::Operation| operation.kind == kind;
    let trace = disk.trace();
    assert_eq!(trace.iter().filter(is(OpKind::Write)).count(), 1);
    assert_eq!(trace.iter().filter(is(OpKind::Sync)).count(), 1);
}

#[test]
fn calls_and_batches_that_take_longer_than_a_slice_go_on_in_the_next() {
    let (door, mut turns) = by_hand();
    let session = door.session();
    turns.slice = 2;
    let mut all = sent(session.run_all((0..5).map(|_| put(b"a")).collect()));
    let mut one = sent(session.run(put(b"b")));
    turns.turn();
    assert_eq!(turns.engine.queue().stats().jobs.ready, 2);
    assert!(turns.desk.has_more(turns.now));
    turns.turn();
    turns.turn();
    assert_eq!(look(&mut all).map(|all| all.unwrap().len()), Some(5));
    turns.turn();
    assert_eq!(look(&mut one), Some(Ok(Answer::Inserted(JobId(6)))));
    assert!(!turns.desk.has_more(turns.now));
}

#[test]
fn a_long_kick_holds_up_its_session_alone() {
    let (door, mut turns) = by_hand();
    let (session, other) = (door.session(), door.session());
    let options = PutOptions {
        delay: Duration::from_secs(1000),
        ..PutOptions::default()
    };
    let delayed = || super::put("t", b"a", options).unwrap();
    let put = session.run_all((0..1000).map(|_| delayed()).collect());
    assert_eq!(turns.answer(put).unwrap().len(), 1000);
    let mut kicked = sent(session.kick("t", 1000));
    let mut behind = sent(session.run(Command::Stats));
    let mut beside = sent(other.run(Command::Peek(JobId(1))));
    turns.turn();
    assert_eq!(look(&mut kicked), None);
    assert_eq!(look(&mut behind), None);
    assert!(look(&mut beside).is_some());
    let mut waiting = sent(session.reserve(None));
    for _ in 0..10 {
        turns.turn();
    }
    assert_eq!(look(&mut kicked), Some(Ok(1000)));
    assert!(matches!(
        look(&mut behind),
        Some(Ok(Answer::Report(crate::protocol::Report::Stats(_))))
    ));
    assert_eq!(look(&mut waiting), None, "it does not watch that tube");
    assert_eq!(door.load(), (0, 0));
}

#[test]
fn a_call_that_finds_no_tube_makes_none() {
    let (door, mut turns) = by_hand();
    let session = door.session();
    assert_eq!(turns.answer(session.kick("t", 1)), Ok(0));
    for peek in [
        Command::PeekReady,
        Command::PeekDelayed,
        Command::PeekBuried,
    ] {
        let peeked = turns.answer(session.run(peek(Some("t".into()))));
        assert_eq!(peeked, Err(JobError::NotFound));
    }
    let bad = Err(JobError::BadTubeName("a tube".into()));
    assert_eq!(turns.answer(session.kick("a tube", 1)), bad);
    let tubes: Vec<&str> = turns.engine.queue().tube_names().collect();
    assert_eq!(tubes, ["default"]);
    let _ = turns.answer(session.run(put_into("t", b"a"))).unwrap();
    let tube = turns.engine.queue().tube_stats("t", turns.now.mono);
    assert_eq!(tube.map(|tube| (tube.jobs.ready, tube.using)), Some((1, 0)));
}

/// Puts `left` jobs, one in each step, and counts them where others can see the number.
struct Puts {
    left: usize,
    done: Arc<AtomicUsize>,
    pause: Option<Duration>,
}

impl Work for Puts {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let Answer::Inserted(_) = slice.run(put(b"a")).unwrap() else {
            panic!("a put is answered by something else");
        };
        self.left -= 1;
        self.done.fetch_add(1, Ordering::Relaxed);
        match (self.left, self.pause) {
            (0, _) => Step::Done,
            (_, None) => Step::More,
            (_, Some(pause)) => {
                let at = slice.now().mono.0 + pause.as_nanos() as i64;
                Step::NotBefore(Time(at))
            }
        }
    }
}

fn puts(left: usize, pause: Option<Duration>) -> (Puts, Arc<AtomicUsize>) {
    let done = Arc::new(AtomicUsize::new(0));
    let work = Puts {
        left,
        done: done.clone(),
        pause,
    };
    (work, done)
}

#[test]
fn long_work_is_done_in_steps_beside_calls_and_comes_back_when_it_is_over() {
    let (door, mut turns) = by_hand();
    turns.slice = 1;
    let (work, done) = puts(3, None);
    let mut task = sent(door.start(work));
    turns.turn();
    let session = door.session();
    let mut calls: Vec<_> = (0..10).map(|_| sent(session.run(Command::Stats))).collect();
    for _ in 0..8 {
        turns.turn();
    }
    assert_eq!(done.load(Ordering::Relaxed), 3, "calls do not starve it");
    assert_eq!(look(&mut task).map(|work| work.unwrap().left), Some(0));
    let answered = calls.iter_mut().filter_map(look).count();
    assert!(answered > 2, "nor does it starve calls: {answered}");
}

#[test]
fn an_answer_counts_in_the_turn_in_which_it_has_a_ticket_whenever_it_was_asked_for() {
    let (door, mut turns) = by_hand();
    turns.slice = 1;
    let mut task = sent(door.start(puts(3, None).0));
    let mut answered = Vec::new();
    for _ in 0..10 {
        let before = turns.desk.answers();
        turns.run();
        answered.push(turns.desk.answers() - before);
        assert!(answered.contains(&1) || look(&mut task).is_none());
        turns.commit();
    }
    assert_eq!(answered.iter().sum::<u64>(), 1);
    assert_eq!(answered[0], 0, "it takes several turns: {answered:?}");
    assert!(look(&mut task).is_some());
}

#[test]
fn work_that_wants_to_wait_is_left_alone_until_then() {
    let (door, mut turns) = by_hand();
    let (work, done) = puts(2, Some(SECOND));
    let mut task = sent(door.start(work));
    turns.turn();
    turns.turn();
    assert_eq!(done.load(Ordering::Relaxed), 1);
    assert!(!turns.desk.has_more(turns.now));
    let at = turns.desk.next_deadline().unwrap();
    turns.pass(SECOND);
    assert_eq!(at, turns.now.mono);
    turns.turn();
    assert!(look(&mut task).is_some());
}

#[test]
fn a_task_that_is_cancelled_ends_with_what_was_done_and_one_that_is_dropped_just_ends() {
    let (door, mut turns) = by_hand();
    let (work, cancelled) = puts(1000, Some(SECOND));
    let mut task = sent(door.start(work));
    let (work, dropped) = puts(1000, None);
    let unwanted = sent(door.start(work));
    turns.slice = 1;
    turns.turn();
    turns.turn();
    task.cancel();
    drop(unwanted);
    turns.slice = 100;
    turns.turn();
    let left = look(&mut task).map(|work| work.unwrap().left);
    assert_eq!(left, Some(1000 - cancelled.load(Ordering::Relaxed)));
    let before = dropped.load(Ordering::Relaxed);
    turns.turn();
    assert_eq!(dropped.load(Ordering::Relaxed), before);
    assert!(!turns.desk.has_more(turns.now));
    assert_eq!(door.load(), (0, 0));
}

#[test]
fn a_disk_that_fails_is_reported_to_all_who_were_promised_something_and_all_who_come() {
    let disk = SimFs::new(1);
    let (door, mut turns) = by_hand_within(Bounds::default(), Some(&disk));
    let session = door.session();
    let mut waiting = sent(door.session().reserve(None));
    turns.turn();
    let mut parked = sent(session.run(put(b"a")));
    disk.inject(Fault::fail(OpKind::Sync, rustix::io::Errno::IO).for_ever());
    turns.turn();
    let is_told = |outcome: Option<Result<Answer, JobError>>| {
        assert!(
            matches!(outcome, Some(Err(JobError::Store(_)))),
            "{outcome:?}"
        );
    };
    is_told(look(&mut parked));
    // The waiting caller had its job, which never became durable.
    is_told(look(&mut waiting));
    is_told(look(&mut Box::pin(session.run(put(b"b")))));
}

#[test]
fn when_the_desk_is_gone_no_one_waits_for_it() {
    let (door, mut turns) = by_hand();
    let session = door.session();
    let mut waiting = sent(session.reserve(None));
    turns.turn();
    let mut queued = sent(session.run(put(b"a")));
    let (work, _) = puts(1, None);
    let mut task = sent(door.start(work));
    drop(turns);
    assert_eq!(look(&mut waiting), Some(Err(JobError::Closed)));
    assert_eq!(look(&mut queued), Some(Err(JobError::Closed)));
    assert!(matches!(look(&mut task), Some(Err(JobError::Closed))));
    let mut late = Box::pin(session.run(put(b"a")));
    assert_eq!(look(&mut late), Some(Err(JobError::Closed)));
}

#[test]
fn a_session_keeps_no_tube_in_existence_by_having_put_into_it() {
    let (door, mut turns) = by_hand();
    let session = door.session();
    let _ = turns.answer(session.run(put_into("mail", b"a"))).unwrap();
    assert!(turns.engine.queue().tube_exists("mail"));
    let _ = turns
        .answer(session.run(Command::Delete(JobId(1))))
        .unwrap();
    assert!(!turns.engine.queue().tube_exists("mail"));
}

/// A queue that follows has no clients: anyone who calls is told so, and anyone who only looks sees it.
#[test]
fn a_queue_that_follows_is_looked_at_and_refuses_all_else() {
    #[derive(Debug)]
    struct Look(Option<(u64, Result<Answer, JobError>)>);
    impl Work for Look {
        fn step(&mut self, slice: &mut Slice<'_>) -> Step {
            let jobs = slice.engine().queue().stats().jobs.total();
            self.0 = Some((jobs, slice.run(Command::Delete(JobId(1)))));
            Step::Done
        }
    }
    let (door, mut turns) = by_hand();
    let disk = SimFs::new(1);
    let options = Options {
        fs: Arc::new(disk),
        dir: Some(PathBuf::from("/log")),
        ..Options::default()
    };
    turns.engine = Engine::follow(&options, turns.now).unwrap();
    let session = door.session();
    let mut looked = sent(door.start(Look(None)));
    let mut asked = sent(session.run(Command::Delete(JobId(1))));
    let now = turns.now;
    turns
        .desk
        .serve(&mut turns.engine, now, &mut NoOthers, &mut || false);
    turns.desk.acknowledge(Ticket::NONE);
    let Look(seen) = look(&mut looked).unwrap().unwrap();
    assert_eq!(seen, Some((0, Err(JobError::NotLeader))));
    assert_eq!(look(&mut asked).unwrap(), Err(JobError::NotLeader));
}
