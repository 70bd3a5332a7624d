//! The decisions of a list of servers, with servers and a clock that are made up: hours pass in an instant.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::member::{AWAY_MAX, AWAY_MIN, Look, Member, Peer};
use super::round::{Answer, Ending, Round, Step, WAIT_STEP, ending, wait_at};
use crate::config::{Address, Config};
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Job, JobId};

/// How long an attempt to connect takes.
const LATENCY: Duration = Duration::from_millis(20);

/// Servers: their jobs, with the times at which they become ready, and the times at which the server
/// begins or ceases to be there, beginning with being there.
struct World {
    now: Instant,
    jobs: Vec<BTreeMap<JobId, Instant>>,
    changes: Vec<Vec<Instant>>,
    attempts: Vec<Vec<Instant>>,
    given_back: usize,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn world<T>(look: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| look(world.as_mut().unwrap()))
}

impl World {
    fn is_up(&self, server: usize) -> bool {
        let changes = self.changes[server].iter();
        changes.filter(|at| **at <= self.now).count() % 2 == 0
    }

    /// When something happens at a server next.
    fn next_event(&self, server: usize) -> Option<Instant> {
        let ready = self.jobs[server].values().map(|at| (*at).max(self.now));
        let changes = self.changes[server].iter().copied();
        ready.chain(changes.filter(|at| *at > self.now)).min()
    }

    /// What a reserve is answered now.
    fn reserve(&mut self, server: usize) -> Result<Option<Job>> {
        if !self.is_up(server) {
            return Err(Error::new(ErrorKind::Connect, "refused"));
        }
        let now = self.now;
        let mut ready = self.jobs[server].iter().filter(|(_, at)| **at <= now);
        let Some(id) = ready.next().map(|(id, _)| *id) else {
            return Ok(None);
        };
        self.jobs[server].remove(&id);
        let (tube, body) = (None, Vec::new());
        Ok(Some(Job { id, tube, body }))
    }
}

#[derive(Debug)]
struct Ghost(usize);

#[derive(Debug)]
struct Attempt(Option<Box<Ghost>>, Instant);

impl Peer for Ghost {
    type Attempt = Attempt;

    fn fresh(config: &Config) -> Ghost {
        match &config.addresses[0] {
            Address::Tcp { port, .. } => Ghost(usize::from(*port)),
            Address::Unix(path) => panic!("{path:?}"),
        }
    }

    fn leave(&mut self) {}

    fn attempt(self: Box<Ghost>) -> Attempt {
        world(|world| world.attempts[self.0].push(world.now));
        Attempt(Some(self), world(|world| world.now) + LATENCY)
    }

    fn look(attempt: &mut Attempt) -> Look<Ghost> {
        if world(|world| world.now) < attempt.1 {
            return Look::Trying;
        }
        let Some(ghost) = attempt.0.take() else {
            return Look::Gone;
        };
        let is_up = world(|world| world.is_up(ghost.0));
        let refused = || Error::new(ErrorKind::Connect, "refused");
        Look::Over(ghost, is_up.then_some(()).ok_or_else(refused))
    }
}

/// A client of a list, as the two that there are.
struct List {
    members: Vec<Member<Ghost>>,
    turn: usize,
    waits: Vec<Duration>,
}

impl List {
    /// Of servers whose changes are at these seconds.
    fn new(changes: &[&[u64]]) -> List {
        let now = Instant::now();
        let at = |seconds: &u64| now + Duration::from_secs(*seconds);
        let new = World {
            now,
            jobs: vec![BTreeMap::new(); changes.len()],
            changes: changes
                .iter()
                .map(|it| it.iter().map(at).collect())
                .collect(),
            attempts: vec![Vec::new(); changes.len()],
            given_back: 0,
        };
        WORLD.replace(Some(new));
        let member = |index| {
            let config: Config = format!("host:{index}").parse().unwrap();
            Member::new(&format!("server-{index}"), &config)
        };
        List {
            members: (0..changes.len()).map(member).collect(),
            turn: 0,
            waits: Vec::new(),
        }
    }

    fn reserve(&mut self, wait: Duration) -> Result<Option<(usize, JobId)>> {
        let now = || world(|world| world.now);
        let mut round = Round::new(self.members.len(), self.turn, now(), wait);
        loop {
            match round.next(now()) {
                Step::Ask(index) => {
                    let answer = self.answer(index);
                    round.asked(index, answer);
                }
                Step::Begin(_) => {
                    let order = round.order();
                    let here = order.filter(|it| self.members[*it].here(now()).is_some());
                    let here = here.collect();
                    round.begun(here);
                }
                Step::Wait(begun, time) => {
                    self.waits.push(time);
                    let until = now() + time;
                    let next = |it: &usize| world(|world| world.next_event(*it));
                    let first = begun.iter().filter_map(next).min();
                    let first = first.filter(|at| *at <= until);
                    let ready = begun
                        .into_iter()
                        .filter(|it| first.is_some() && next(it) == first);
                    let ready: Vec<_> = ready.collect();
                    world(|world| world.now = first.unwrap_or(until));
                    round.came(&ready);
                }
                Step::End(ends) => {
                    let answers = ends.into_iter().map(|(it, _)| (it, self.answer(it)));
                    round.ended(answers.collect::<Vec<_>>());
                }
                Step::GiveBack(index, id) => world(|world| {
                    world.jobs[index].insert(id, world.now);
                    world.given_back += 1;
                }),
                Step::Done => break,
            }
        }
        let found = round.result(self.members.iter().any(Member::is_here))?;
        Ok(found.map(|(server, job)| {
            self.turn = (server + 1) % self.members.len();
            (server, job.id)
        }))
    }

    fn answer(&mut self, index: usize) -> Answer {
        let now = world(|world| world.now);
        match self.members[index].here(now).is_some() {
            true => {
                let result = world(|world| world.reserve(index));
                self.members[index].answer(result, now)
            }
            false => Answer::Away,
        }
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Put a job that is ready after a time.
fn put(server: usize, id: JobId, after: Duration) {
    world(|world| world.jobs[server].insert(id, world.now + after));
}

/// How much time passes meanwhile.
fn takes<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let before = world(|world| world.now);
    let result = run();
    (world(|world| world.now) - before, result)
}

#[test]
fn servers_that_all_have_jobs_give_one_each_in_turn() {
    let mut list = List::new(&[&[], &[], &[]]);
    for id in 0..90 {
        put(id as usize % 3, id, Duration::ZERO);
    }
    for _ in 0..30 {
        let given = (0..3).map(|_| list.reserve(Duration::ZERO).unwrap().unwrap().0);
        assert_eq!(given.collect::<BTreeSet<_>>().len(), 3);
    }
    assert_eq!(list.reserve(Duration::ZERO).unwrap(), None);
}

#[test]
fn a_reserve_waits_its_whole_time_and_no_longer() {
    let mut list = List::new(&[&[], &[]]);
    assert_eq!(
        takes(|| list.reserve(seconds(3600)).unwrap()).0,
        seconds(3600)
    );
    let mut list = List::new(&[&[], &[0]]);
    assert_eq!(
        takes(|| list.reserve(seconds(3600)).unwrap()).0,
        seconds(3600)
    );
    let mut list = List::new(&[&[0], &[0]]);
    let (took, result) = takes(|| list.reserve(seconds(3600)));
    assert_eq!(took, seconds(3600));
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Connect);
    // Longer than any clock goes.
    let mut list = List::new(&[&[]]);
    put(0, 1, seconds(1_000_000));
    assert_eq!(list.reserve(Duration::MAX).unwrap(), Some((0, 1)));
}

#[test]
fn while_a_server_is_away_its_job_waits_and_others_come_from_the_rest() {
    let mut list = List::new(&[&[], &[0, 100]]);
    put(1, 1, Duration::ZERO);
    for id in 2..52 {
        put(0, id, seconds(1));
        let (took, given) = takes(|| list.reserve(seconds(60)).unwrap());
        assert_eq!((took, given), (seconds(1), Some((0, id))));
    }
    let (took, given) = takes(|| list.reserve(seconds(600)).unwrap());
    assert_eq!(given, Some((1, 1)));
    // It is back after 100 seconds, is looked for after the longest pause, and is seen at the next look.
    assert!(took <= seconds(50) + AWAY_MAX + 2 * WAIT_STEP, "{took:?}");
}

#[test]
fn a_server_that_goes_away_during_a_wait_ends_it_at_no_other() {
    let mut list = List::new(&[&[5], &[]]);
    put(1, 1, seconds(20));
    let (took, given) = takes(|| list.reserve(seconds(60)).unwrap());
    assert_eq!((took, given), (seconds(20), Some((1, 1))));
    // No spinning: a long wait, and then one for each look at the server that is away.
    assert!(list.waits.len() <= 17, "{:?}", list.waits);
}

#[test]
fn a_job_that_comes_beside_another_is_given_back_and_comes_next() {
    let mut list = List::new(&[&[], &[]]);
    put(0, 1, seconds(5));
    put(1, 2, seconds(5));
    assert_eq!(list.reserve(seconds(60)).unwrap(), Some((0, 1)));
    assert_eq!(world(|world| world.given_back), 1);
    assert_eq!(list.reserve(Duration::ZERO).unwrap(), Some((1, 2)));
    // Of two that come at the same time the one whose turn it is gives its job.
    list.turn = 1;
    put(0, 3, seconds(5));
    put(1, 4, seconds(5));
    assert_eq!(list.reserve(seconds(60)).unwrap(), Some((1, 4)));
    assert_eq!(list.reserve(Duration::ZERO).unwrap(), Some((0, 3)));
}

#[test]
fn pauses_between_attempts_are_doubled_up_to_a_limit_and_end_with_the_absence() {
    let mut list = List::new(&[&[0, 60]]);
    _ = list.reserve(Duration::ZERO);
    let step = Duration::from_millis(1);
    let look = |list: &mut List| {
        world(|world| world.now += step);
        let now = world(|world| world.now);
        list.members[0].here(now).is_some()
    };
    while !look(&mut list) {}
    let attempts = world(|world| world.attempts[0].clone());
    let gaps = attempts.windows(2).map(|pair| pair[1] - pair[0]);
    let expected = (1..20).map(|power| (AWAY_MIN * (1 << power)).min(AWAY_MAX));
    for (gap, expected) in gaps.zip(expected) {
        // One look for the end of the attempt and one for the end of the pause.
        assert!(
            gap >= expected && gap <= expected + LATENCY + 2 * step,
            "{gap:?}, not {expected:?}"
        );
    }
    let error = Error::new(ErrorKind::Connect, "gone");
    let now = world(|world| world.now);
    list.members[0].note(&error, now);
    assert!(list.members[0].here(now + AWAY_MIN - step).is_none());
    assert_eq!(world(|world| world.attempts[0].len()), attempts.len());
    list.members[0].here(now + AWAY_MIN);
    assert_eq!(world(|world| world.attempts[0].len()), attempts.len() + 1);
}

#[test]
fn a_call_that_needs_a_server_tries_at_once_and_one_attempt_at_a_time() {
    let mut list = List::new(&[&[0]]);
    let now = world(|world| world.now);
    assert!(
        list.members[0].attempt(now).is_none(),
        "it is believed to be there"
    );
    _ = list.reserve(Duration::ZERO);
    for _ in 0..3 {
        assert!(list.members[0].attempt(now).is_some());
        assert!(list.members[0].here(now).is_none());
    }
    assert_eq!(world(|world| world.attempts[0].len()), 1);
    let missed = list.members[0].seen(Look::Trying, now).unwrap_err();
    assert_eq!(missed.kind(), ErrorKind::Connect);
    // The attempt vanishes, as a thread that could not be started does.
    assert!(list.members[0].seen(Look::Gone, now).is_err());
    assert!(list.members[0].attempt(now).is_some());
    let found = Look::Over(Box::new(Ghost(0)), Ok(()));
    list.members[0].seen(found, now).unwrap();
    assert!(list.members[0].is_here());
}

#[test]
fn only_errors_of_a_server_that_is_away_make_it_so() {
    for (kind, is_here) in [
        (ErrorKind::Connect, false),
        (ErrorKind::TimedOut, false),
        (ErrorKind::Unanswered, false),
        (ErrorKind::Protocol, false),
        (ErrorKind::DeadlineSoon, true),
        (ErrorKind::NotAuthorized, true),
        (ErrorKind::Draining, true),
    ] {
        let mut list = List::new(&[&[]]);
        let now = world(|world| world.now);
        let answer = list.members[0].answer(Err(Error::new(kind, "x")), now);
        assert_eq!(matches!(answer, Answer::Refused(_)), is_here, "{kind:?}");
        assert_eq!(list.members[0].is_here(), is_here, "{kind:?}");
    }
}

#[test]
fn a_wait_ends_as_its_server_can() {
    assert_eq!(wait_at(seconds(60), true), seconds(60));
    assert_eq!(wait_at(seconds(60), false), WAIT_STEP);
    for (is_ready, can_abort, is_holding, expected) in [
        (true, true, true, Ending::Receive),
        (true, true, false, Ending::Receive),
        (true, false, true, Ending::Receive),
        (true, false, false, Ending::Receive),
        (false, true, true, Ending::Abort),
        (false, true, false, Ending::Abort),
        (false, false, true, Ending::Receive),
        (false, false, false, Ending::Close),
    ] {
        assert_eq!(ending(is_ready, can_abort, is_holding), expected);
    }
}

#[test]
fn a_round_that_is_stopped_begins_no_other_wait_and_takes_what_has_come() {
    let now = Instant::now();
    let job = |id| Job {
        id,
        tube: None,
        body: Vec::new(),
    };
    for came in [None, Some(7)] {
        let mut round = Round::new(2, 0, now, seconds(60));
        for server in 0..2 {
            assert_eq!(round.next(now), Step::Ask(server));
            round.asked(server, Answer::Nothing);
        }
        assert_eq!(round.next(now), Step::Begin(seconds(60)));
        round.begun(vec![0, 1]);
        assert_eq!(round.next(now), Step::Wait(vec![0, 1], seconds(60)));
        round.stop(now);
        assert_eq!(round.next(now), Step::End(vec![(0, false), (1, false)]));
        let second = came.map_or(Answer::Nothing, |id| Answer::Job(job(id)));
        round.ended([(0, Answer::Nothing), (1, second)]);
        assert_eq!(round.next(now), Step::Done);
        let found = round.result(true).unwrap();
        assert_eq!(
            found.map(|(server, job)| (server, job.id)),
            came.map(|id| (1, id))
        );
    }
}

#[test]
fn whatever_happens_each_job_is_given_once_and_none_is_left() {
    for seed in 1..200_u64 {
        let mut random = seed;
        let mut below = |most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % most
        };
        // Each server is away up to three times in the first ten minutes.
        let changes: Vec<Vec<u64>> = (0..=below(4))
            .map(|_| {
                let mut times: Vec<_> = (0..2 * below(4)).map(|_| below(600)).collect();
                times.sort_unstable();
                times
            })
            .collect();
        let changes: Vec<_> = changes.iter().map(Vec::as_slice).collect();
        let mut list = List::new(&changes);
        let mut left: BTreeSet<JobId> = (0..below(60)).collect();
        for id in &left {
            put(
                below(changes.len() as u64) as usize,
                *id,
                Duration::from_millis(below(700_000)),
            );
        }
        let end = world(|world| world.now) + seconds(800);
        while world(|world| world.now) < end {
            if let Ok(Some((_, id))) = list.reserve(Duration::from_millis(1 + below(90_000))) {
                assert!(left.remove(&id), "seed {seed}: job {id} was given twice");
            }
        }
        assert!(left.is_empty(), "seed {seed}: {left:?}");
    }
}
