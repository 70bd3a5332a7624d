//! Tests of fair tubes: whose turn it is in whatever way jobs come and go, and how a tube becomes fair
//! and ceases to be.

use super::super::tests::{Fixture, at};
use super::*;
use crate::attributes::Attributes;
use crate::pattern::Pattern;
use crate::random::Random;
use crate::types::{Change, ClientId, JobId};

fn policy(f: &mut Fixture, tubes: &str, text: &str) {
    let policy = (!text.is_empty()).then(|| text.parse().unwrap());
    let pattern = Pattern::parse(tubes).unwrap();
    f.queue.set_policy(&pattern, policy, at(0));
}

/// A queue whose tube `default` is fair, and a client.
fn fair() -> (Fixture, ClientId) {
    let mut f = Fixture::new();
    policy(&mut f, "default", "fair=on");
    let client = f.queue.connect();
    (f, client)
}

fn attribute(f: &mut Fixture, id: JobId, group: Option<&str>, tube: Option<&str>) {
    let attributes = Attributes {
        group,
        tube,
        ..Attributes::default()
    };
    let list = attributes.encode().unwrap();
    f.apply(&Change::Attributes { id, list: &list }, at(0));
    f.queue.assert_groups();
}

/// A ready job of a group; of none if the name is empty.
fn put(f: &mut Fixture, client: ClientId, group: &str, pri: u32) -> JobId {
    let id = f.put(client, pri, 0);
    if !group.is_empty() {
        attribute(f, id, Some(group), None);
    }
    id
}

/// Reserves a job, the one that is shown to all who ask.
fn reserve(f: &mut Fixture, client: ClientId) -> Option<JobId> {
    let best = f.queue.best_ready(client, at(0));
    assert_eq!(f.queue.peek_ready("default"), best);
    f.queue.reserve(client, best?, at(0));
    f.queue.assert_groups();
    best
}

/// The groups of the jobs, by their first letters, in the order in which a client gets them and keeps
/// them.
fn order(f: &mut Fixture, client: ClientId) -> String {
    let mut order = String::new();
    while let Some(id) = reserve(f, client) {
        let group = f.queue.attributes(id).and_then(group_of);
        order.push(group.map_or('.', |group| group[0] as char));
    }
    order
}

fn reserved(f: &Fixture, tube: &str, name: &str) -> u32 {
    let tube = f.queue.tubes.find(tube).unwrap();
    let fair = f.queue.tubes[tube].policed.as_ref().unwrap().fair.as_ref();
    fair.unwrap().reserved(name.as_bytes())
}

/// Both are fair, and no jobs are in them: nothing is left of any group.
fn assert_nothing_is_left(f: &Fixture) {
    f.queue.assert_groups();
    assert_eq!(f.queue.fair_memory, 0);
}

#[test]
fn a_large_customer_does_not_hold_up_a_small_one() {
    let (mut f, client) = fair();
    (0..8).for_each(|_| _ = put(&mut f, client, "large", 5));
    (0..2).for_each(|_| _ = put(&mut f, client, "small", 5));
    put(&mut f, client, "", 5);
    put(&mut f, client, "", 5);
    // Jobs without a group are each a group, and no job is reserved beside them.
    assert_eq!(order(&mut f, client), "ls..lsllllll");
}

#[test]
fn without_the_policy_groups_mean_nothing() {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    for group in ["a", "a", "b", "", "b"] {
        put(&mut f, client, group, 5);
    }
    assert_eq!(order(&mut f, client), "aab.b");
    assert_eq!(f.queue.fair_memory, 0);
}

#[test]
fn a_group_with_few_reserved_jobs_never_passes_a_more_urgent_priority() {
    let (mut f, client) = fair();
    (0..3).for_each(|_| _ = put(&mut f, client, "small", 6));
    put(&mut f, client, "", 6);
    (0..4).for_each(|_| _ = put(&mut f, client, "large", 5));
    assert_eq!(order(&mut f, client), "lllls.ss");
    // A group has its turn by its most urgent job, also behind others of its own.
    put(&mut f, client, "a", 9);
    put(&mut f, client, "b", 8);
    put(&mut f, client, "a", 7);
    assert_eq!(order(&mut f, client), "aba");
}

#[test]
fn all_workers_have_work_as_long_as_any_group_has() {
    let (mut f, client) = fair();
    (0..100).for_each(|_| _ = put(&mut f, client, "only", 5));
    assert_eq!(order(&mut f, client).len(), 100);
    assert_eq!(reserved(&f, "default", "only"), 100);
    // The next of a group without reserved jobs comes before the next of this one.
    put(&mut f, client, "only", 5);
    put(&mut f, client, "other", 5);
    assert_eq!(order(&mut f, client), "oo");
    assert_eq!(reserved(&f, "default", "only"), 101);
}

#[test]
fn a_reservation_counts_until_it_ends_however_that_is() {
    for way in 0..9 {
        let (mut f, client) = fair();
        let ids = [(); 2].map(|()| put(&mut f, client, "a", 5));
        f.queue.reserve(client, ids[0], at(0));
        assert_eq!(reserved(&f, "default", "a"), 1);
        let b = put(&mut f, client, "b", 5);
        assert_eq!(f.queue.peek_ready("default"), Some(b), "{way}");
        match way {
            0 => {
                let release = f.queue.decide_release(ids[0], 5, 7, at(0)).unwrap();
                f.apply(&release, at(0));
            }
            1 => f.bury(ids[0]),
            2 => _ = f.delete(ids[0]),
            3 => _ = f.tick(at(20)),
            4 => _ = f.queue.disconnect(client, at(0), 9),
            5 => {
                // Not at once, but as soon as the jobs of a client that has left are ready.
                f.queue.disconnect(client, at(0), 0);
                assert_eq!(reserved(&f, "default", "a"), 1);
                f.tick(at(0));
            }
            6 => assert!(f.queue.give_back(client, ids[0], at(0))),
            7 => assert!(f.queue.take_back(ids[0], at(0))),
            _ => attribute(&mut f, ids[0], Some("a"), Some("elsewhere")),
        }
        f.queue.assert_groups();
        assert_eq!(reserved(&f, "default", "a"), 0, "{way}");
        let first = if (3..8).contains(&way) {
            ids[0]
        } else {
            ids[1]
        };
        assert_eq!(f.queue.peek_ready("default"), Some(first), "{way}");
        for id in [ids[0], ids[1], b] {
            f.delete(id);
        }
        assert_nothing_is_left(&f);
    }
}

#[test]
fn a_job_that_is_moved_or_gets_another_group_counts_where_it_is() {
    let (mut f, client) = fair();
    policy(&mut f, "other", "fair=on");
    let ids = [(); 3].map(|()| put(&mut f, client, "a", 5));
    f.queue.reserve(client, ids[0], at(0));
    attribute(&mut f, ids[0], Some("a"), Some("other"));
    let counts = |f: &Fixture| ["default", "other"].map(|tube| reserved(f, tube, "a"));
    assert_eq!(counts(&f), [0, 1]);
    attribute(&mut f, ids[0], Some("b"), Some("default"));
    assert_eq!((counts(&f), reserved(&f, "default", "b")), ([0, 0], 1));
    attribute(&mut f, ids[0], None, None);
    assert_eq!(reserved(&f, "default", "b"), 0);
    // Ready jobs, too: here and there.
    attribute(&mut f, ids[0], Some("a"), None);
    attribute(&mut f, ids[2], Some("c"), None);
    assert_eq!(f.queue.peek_ready("default"), Some(ids[2]));
    attribute(&mut f, ids[2], Some("c"), Some("other"));
    assert_eq!(f.queue.peek_ready("default"), Some(ids[1]));
    assert_eq!(f.queue.peek_ready("other"), Some(ids[2]));
    ids.into_iter().for_each(|id| _ = f.delete(id));
    assert_nothing_is_left(&f);
}

#[test]
fn a_client_of_several_tubes_gets_the_best_of_the_jobs_that_come_first() {
    for is_wide in [false, true] {
        let (mut f, client) = fair();
        if is_wide {
            (f.queue.wide_len, f.queue.search_len) = (0, 0);
        }
        let holder = f.queue.connect();
        let first = put(&mut f, client, "a", 5);
        f.queue.reserve(holder, first, at(0));
        let of_a = put(&mut f, client, "a", 5);
        f.queue.use_tube(client, "plain", at(0));
        let plain = put(&mut f, client, "a", 5);
        f.queue.use_tube(client, "default", at(0));
        let of_b = put(&mut f, client, "b", 5);
        f.queue.watch(client, "plain");
        // Of `default` the job of b comes first, and it is younger than that of `plain`.
        for expected in [plain, of_b, of_a] {
            if !is_wide {
                assert_eq!(f.queue.best_ready(client, at(0)), Some(expected));
            }
            f.queue.wait(client, None);
            f.queue.go_on_searching(usize::MAX);
            assert_eq!(f.queue.next_match(), Some((client, expected)));
            f.queue.reserve(client, expected, at(0));
        }
        f.queue.wait(client, None);
        f.queue.go_on_searching(usize::MAX);
        let later = [(); 2].map(|()| put(&mut f, holder, "a", 5));
        assert_eq!(f.queue.next_match(), Some((client, later[0])));
        let other = put(&mut f, holder, "c", 5);
        assert_eq!(f.queue.next_match(), Some((client, other)));
    }
}

/// Jobs of two groups in all states.
fn in_all_states(f: &mut Fixture, client: ClientId) {
    for group in ["a", "a", "a", "a", "b", "b", "", ""] {
        put(f, client, group, 5);
    }
    for group in ["a", "b", ""] {
        let [buried, delayed] = [(); 2].map(|()| put(f, client, group, 5));
        f.bury(buried);
        let delay = f.queue.decide_delay(delayed, 50, at(0)).unwrap();
        f.apply(&delay, at(0));
    }
    for id in [1, 2] {
        f.queue.reserve(client, JobId(id), at(0));
    }
}

#[test]
fn a_tube_becomes_fair_and_ceases_to_be_with_jobs_in_all_states() {
    for tubes in ["default", "*"] {
        let mut f = Fixture::new();
        let client = f.queue.connect();
        in_all_states(&mut f, client);
        let before = f.queue.memory();
        policy(&mut f, tubes, "fair=on");
        f.queue.assert_groups();
        assert!(f.queue.memory() > before);
        assert_eq!(reserved(&f, "default", "a"), 2);
        // Another policy, as fair as before.
        policy(&mut f, tubes, "fair=on max-jobs=100");
        f.queue.assert_groups();
        assert_eq!(f.queue.peek_ready("default"), Some(JobId(5)));
        policy(&mut f, tubes, "max-jobs=100");
        assert_eq!(f.queue.peek_ready("default"), Some(JobId(3)));
        f.tick(at(0));
        assert_nothing_is_left(&f);
        assert_eq!(f.queue.memory(), before);
        policy(&mut f, tubes, "fair=on");
        policy(&mut f, tubes, "");
        policy(&mut f, tubes, "fair=on");
        f.tick(at(0));
        // What has become ready meanwhile is the second of its group.
        assert_eq!(order(&mut f, client), "b..baa");
        f.tick(at(60));
        f.queue.assert_groups();
    }
}

#[test]
fn a_queue_is_as_fair_after_replay_and_then_no_job_is_reserved() {
    let mut f = Fixture::new();
    f.queue = Queue::new();
    let list = |group| Attributes {
        group: Some(group),
        ..Attributes::default()
    };
    for (policy_comes, id) in [(false, 1), (true, 2), (false, 3)] {
        if policy_comes {
            policy(&mut f, "default", "fair=on");
        }
        let put = Change::Put {
            id: JobId(id),
            tube: "default",
            pri: 5,
            delay: 0,
            ttr: 10,
            created: at(0),
            body_size: 1,
        };
        f.apply(&put, at(0));
        let list = list(if id < 3 { "a" } else { "b" }).encode().unwrap();
        let id = JobId(id);
        f.apply(&Change::Attributes { id, list: &list }, at(0));
        assert_eq!(f.queue.fair_memory, 0);
    }
    f.queue.finish_replay(at(0));
    f.queue.assert_groups();
    let client = f.queue.connect();
    f.tick(at(0));
    assert_eq!(order(&mut f, client), "aba");
}

#[test]
fn a_tube_of_a_pattern_is_fair_from_its_first_job_on() {
    let mut f = Fixture::new();
    policy(&mut f, "*", "fair=on");
    let client = f.queue.connect();
    f.queue.use_tube(client, "mail", at(0));
    f.queue.watch(client, "mail");
    f.queue.ignore(client, "default", at(0));
    for group in ["a", "a", "b"] {
        put(&mut f, client, group, 5);
    }
    let first = f.queue.peek_ready("mail").unwrap();
    f.queue.reserve(client, first, at(0));
    assert_eq!(f.queue.peek_ready("mail"), Some(JobId(3)));
}

/// A tube with `count` jobs, all of `a` but for the last two.
fn large(count: usize) -> (Fixture, ClientId) {
    let mut f = Fixture::new();
    let client = f.queue.connect();
    for nth in 0..count {
        let group = if nth + 2 < count { "a" } else { "b" };
        let id = f.put(client, 5, 0);
        let list = Attributes {
            group: Some(group),
            ..Attributes::default()
        };
        let list = list.encode().unwrap();
        f.apply(&Change::Attributes { id, list: &list }, at(0));
    }
    (f, client)
}

#[test]
fn a_large_tube_becomes_fair_in_slices_while_all_else_goes_on() {
    const COUNT: u64 = 20_000;
    let (mut f, client) = large(COUNT as usize);
    let delayed = f.put(client, 0, 1);
    f.queue.reserve(client, JobId(1), at(0));
    f.queue.take_visits();
    policy(&mut f, "default", "fair=on");
    assert!(f.queue.take_visits() < 10);
    f.queue.assert_groups();
    assert_eq!(f.queue.next_deadline(), Some(at(0)));
    for _ in 0..3 {
        assert!(f.queue.tick(at(0), 256, &mut Vec::new()));
        assert!(f.queue.take_visits() < 1100);
    }
    f.queue.assert_groups();
    // Neither those who come nor the timers wait for it.
    let urgent = put(&mut f, client, "a", 1);
    assert_eq!(f.queue.peek_ready("default"), Some(urgent));
    f.delete(urgent);
    f.delete(JobId(3));
    f.delete(JobId(COUNT));
    f.queue.tick(at(2), 256, &mut Vec::new());
    assert_eq!(f.queue.peek_ready("default"), Some(delayed));
    f.delete(delayed);
    assert_eq!(f.queue.peek_ready("default"), Some(JobId(2)));
    let rest = (0..100).take_while(|_| f.queue.tick(at(2), 256, &mut Vec::new()));
    let rest = rest.count();
    assert!((60..90).contains(&rest), "{rest}");
    f.queue.assert_groups();
    // The first job of a group without reserved ones.
    assert_eq!(f.queue.peek_ready("default"), Some(JobId(COUNT - 1)));

    let memory = f.queue.memory();
    policy(&mut f, "default", "");
    assert_eq!(f.queue.peek_ready("default"), Some(JobId(2)));
    assert!(f.queue.memory() > memory - 50_000);
    assert!(f.queue.tick(at(2), 256, &mut Vec::new()));
    f.queue.assert_groups();
    assert!(f.queue.memory() < memory);
    f.tick(at(2));
    assert_nothing_is_left(&f);
}

#[test]
fn whatever_happens_while_a_tube_is_indexed_the_index_is_that_of_its_jobs() {
    for seed in 1..=4 {
        let mut random = Random::new(seed);
        let mut f = Fixture::new();
        let client = f.queue.connect();
        for _ in 0..3000 {
            let group = ["a", "b", "c", ""][random.below(4)];
            let id = f.put(client, random.below(3), 0);
            if !group.is_empty() {
                let list = Attributes {
                    group: Some(group),
                    ..Attributes::default()
                };
                let list = list.encode().unwrap();
                f.apply(&Change::Attributes { id, list: &list }, at(0));
            }
        }
        for _ in 0..50 {
            let id = f.queue.best_ready(client, at(0)).unwrap();
            f.queue.reserve(client, id, at(0));
        }
        policy(&mut f, "default", "fair=on");
        for step in 0..400 {
            let id = JobId(1 + random.below(3000));
            let state = f.queue.job(id).map(|job| job.state);
            match (random.below(5), state) {
                (_, None) | (0, _) => _ = put(&mut f, client, "b", random.below(4)),
                (1, _) => _ = f.delete(id),
                (2, _) => attribute(&mut f, id, Some("c"), None),
                (_, Some(JobState::Ready)) => {
                    let first = f.queue.best_ready(client, at(0)).unwrap();
                    let id = [id, first][random.below(2)];
                    _ = f.queue.reserve(client, id, at(0));
                }
                (_, Some(JobState::Reserved)) => {
                    let release = f.queue.decide_release(id, random.below(3), 0, at(0));
                    f.apply(&release.unwrap(), at(0));
                }
                _ => {}
            }
            if step % 3 == 0 {
                f.queue.tick(at(0), 1, &mut Vec::new());
            }
            f.queue.assert_groups();
        }
        f.tick(at(0));
        f.queue.assert_groups();
        assert_eq!(f.queue.next_deadline(), Some(Time(at(10).0 + 1)));
    }
}

/// More than one that has no group in a fair tube, and with a name of 10 bytes.
#[test]
fn what_a_ready_job_takes_that_is_alone_in_its_group() {
    const COUNT: u64 = 100_000;
    let (mut f, client) = fair();
    let begin = f.queue.memory();
    let jobs: Vec<_> = (0..COUNT).map(|_| f.put(client, 5, 0)).collect();
    let plain = (f.queue.memory() - begin) / COUNT;
    for id in &jobs {
        let list = format!("\x03\x0a\0{:010}", id.0);
        let list = list.as_bytes();
        f.apply(&Change::Attributes { id: *id, list }, at(0));
    }
    let all = (f.queue.memory() - begin) / COUNT;
    assert!(all - plain <= 330, "{} bytes beyond {plain}", all - plain);
    assert!(plain <= 90, "{plain} bytes");
    jobs.into_iter().for_each(|id| _ = f.delete(id));
    assert_nothing_is_left(&f);
}

#[test]
fn a_tube_with_something_due_by_its_policy_vanishes_with_its_last_job() {
    for text in ["expire-after=60", "fair=on"] {
        let mut f = Fixture::new();
        policy(&mut f, "x-*", text);
        let client = f.queue.connect();
        f.queue.use_tube(client, "x-1", at(0));
        let id = f.put(client, 5, 0);
        f.queue.use_tube(client, "default", at(0));
        f.delete(id);
        assert!(!f.queue.tube_exists("x-1"));
        assert_eq!(f.queue.next_deadline(), None, "{text}");
        f.tick(at(1000));
    }
}
