//! Expiry: what a restore needs stays, whatever else happens at the same time.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::base::Making;
use super::expire::{Found, Keep, Plan, plan};
use super::flight::InTurn;
use super::follow::{Did, FollowError, Follower, Setup};
use super::format::{BaseList, HEAD_SIZE, bases_dir, chain_dir, numbered, part_name};
use super::histories::{LOG, MS_NS, World};
use super::reader::Reader;
use super::restore::{restore, restore_copy};
use super::sim::SimStore;
use super::store::{Flight, Listed, Put, Store, Trouble};
use super::survey::{Depth, survey};
use super::tests::{archived_with, fenced};
use super::writer::Done;
use super::{RestoreError, Until};
use bsd::engine::Options;
use bsd::storage::SimFs;
use bsd::storage::convert::parts::LogParts;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;
use bsd::storage::marker_file::{STANDBY_MARKER, read_marker};
use bsd::types::Position;

const ALL: Keep = Keep {
    age_ns: 0,
    bases: 1,
    days: 0,
    weeks: 0,
};

/// A server with a base for every few jobs.
fn with_bases() -> World {
    let mut world = archived_with(0);
    for _ in 0..40 {
        world.put(3000);
        world.archive();
    }
    world
}

fn found(world: &World, keep: Keep) -> Found {
    let (reader, wall_ns) = (world.store.reader(), world.now.wall_ns);
    plan(&reader, LOG, keep, wall_ns, &mut |_, _| ()).unwrap()
}

fn planned(world: &World, keep: Keep) -> Plan {
    let found = found(world, keep);
    assert_eq!(found.skipped, []);
    found.plan.unwrap()
}

fn expire(world: &World, keep: Keep) -> Plan {
    let plan = planned(world, keep);
    plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    plan
}

fn expire_what_there_is(world: &World) {
    let found = plan(&world.store.reader(), LOG, ALL, u64::MAX, &mut |_, _| ()).unwrap();
    if let Some(plan) = found.plan {
        plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    }
}

fn assert_sound(world: &World) {
    let all = survey(
        &world.store.copy().reader(),
        LOG,
        Depth::Everything,
        &mut |_, _| (),
    )
    .unwrap();
    assert_eq!(all.bad, []);
}

fn newest_list(world: &World) -> BaseList {
    let marks = world.store.list(&bases_dir(LOG), "").unwrap();
    let number = super::format::number_in(&bases_dir(LOG), &marks.last().unwrap().name).unwrap();
    let link = world.store.object(&numbered(&chain_dir(LOG), number));
    BaseList::decode(&link.unwrap()[HEAD_SIZE..]).unwrap()
}

#[test]
fn a3_what_a_restore_of_the_time_that_stays_needs_stays_and_the_rest_goes() {
    let world = with_bases();
    let before = world.store.names().len();
    let keep = Keep {
        age_ns: 1500 * MS_NS,
        bases: 1,
        ..Keep::default()
    };
    let gone = expire(&world, keep);
    assert!(
        gone.bases > 1 && gone.links() > 5 && gone.parts() > 1,
        "{gone:?}"
    );
    assert!(world.store.names().len() < before / 2);
    assert_sound(&world);
    let mut refused = 0;
    for (position, _) in world.past_at(world.now.wall_ns) {
        match world.check(Until::Position(*position)) {
            Some((restored, _)) => assert!(restored.end <= *position),
            None => {
                assert!(*position < gone.from, "{position} is gone");
                refused += 1;
            }
        }
    }
    assert!(refused > 10, "{refused}");
    let oldest = world.now.wall_ns - keep.age_ns;
    assert!(gone.from_wall_ns <= oldest, "every moment of that time");
    assert!(world.check(Until::Wall(oldest)).is_some());
    assert_eq!(found(&world, keep).plan, None);
}

#[test]
fn a3_so_many_bases_stay_however_old_they_are() {
    let world = with_bases();
    let count = || world.store.list(&bases_dir(LOG), "").unwrap().len();
    let all = count();
    assert!(all >= 4, "{all}");
    let keep = |bases| Keep {
        age_ns: 0,
        bases,
        ..Keep::default()
    };
    let found = |bases| {
        let found = plan(
            &world.store.reader(),
            LOG,
            keep(bases),
            u64::MAX,
            &mut |_, _| (),
        );
        found.unwrap().plan
    };
    assert_eq!(found(all), None);
    assert_eq!(found(all + 1), None);
    assert_eq!(expire(&world, keep(3)).bases, all as u64 - 3);
    assert_eq!(count(), 3);
    assert_eq!(expire(&world, keep(0)).bases, 2);
    assert_eq!(count(), 1);
    assert_sound(&world);
    assert!(world.check(Until::End).is_some());
}

#[test]
fn a3_a_base_that_cannot_be_read_back_does_not_become_the_oldest() {
    let world = with_bases();
    let list = newest_list(&world);
    let file = list.files.last().unwrap();
    let part = part_name(LOG, &file.name, 0, file.parts[0]);
    world.store.set_object(&part, None);
    let found = found(&world, ALL);
    assert_eq!(found.skipped[0].name, part);
    found
        .plan
        .unwrap()
        .carry_out(&world.store, &mut |_, _| ())
        .unwrap();
    let (restored, _) = world.check(Until::End).unwrap();
    assert_eq!(restored.skipped[0].name, part);
}

#[test]
fn a3_where_the_last_link_cannot_be_read_nothing_more_goes() {
    let mut world = with_bases();
    let keep = Keep {
        age_ns: 10_000 * MS_NS,
        bases: 1,
        ..Keep::default()
    };
    world.put(10);
    world.archive();
    let sound = planned(&world, keep);
    assert!(
        sound.base < newest_list(&world).first_link,
        "there are later ones"
    );
    world.now.wall_ns += 100_000 * MS_NS;
    let names = world.store.names().into_iter();
    let mut links = names.filter(|name| name.starts_with(&chain_dir(LOG)));
    let last = links.next_back();
    let last = last.unwrap();
    world.store.set_object(&last, Some(vec![1; 100]));
    let found = found(&world, keep);
    assert_eq!(found.skipped.len(), 1);
    assert_eq!(found.skipped[0].name, last);
    let plan = found.plan.unwrap();
    assert!(plan.base <= sound.base, "{} and {}", plan.base, sound.base);
}

#[test]
fn a3_the_parts_of_a_base_that_is_being_made_stay() {
    // What the expiry sees before the base, and removes while it is made; or sees meanwhile.
    for is_planned_first in [false, true] {
        let world = with_bases();
        let last = newest_list(&world);
        let first = is_planned_first.then(|| planned(&world, ALL));
        let links = world.store.list(&chain_dir(LOG), "").unwrap().len() as u64;
        let disk = world.disk.clone();
        let files = LogParts::take(&disk, "/data".as_ref()).unwrap().unwrap();
        let mut making = Making::begin(LOG, files, links + 1, Some(&last));
        while making.step(&world.store, 3000).unwrap().is_none() {
            match &first {
                Some(plan) => plan.carry_out(&world.store, &mut |_, _| ()).unwrap(),
                None => expire_what_there_is(&world),
            }
        }
        let list = making.step(&world.store, 3000).unwrap().unwrap().clone();
        for file in &list.files {
            for (offset, part) in file.parts() {
                let name = part_name(LOG, &file.name, offset, part);
                assert!(world.store.object(&name).is_some(), "{name} is gone");
            }
        }
    }
}

#[test]
fn a3_what_an_interrupted_base_has_left_goes_with_the_next_expiry() {
    let mut world = with_bases();
    let parts = || {
        let all = world.store.names().into_iter();
        all.filter(|name| name.contains("/parts/")).count()
    };
    let before = parts();
    let files = LogParts::take(&world.disk, "/data".as_ref())
        .unwrap()
        .unwrap();
    let mut making = Making::begin(LOG, files, 1, None);
    while making.step(&world.store, 3000).unwrap().is_none() {}
    assert!(parts() > before);
    expire(&world, ALL);
    let list = newest_list(&world);
    let used: usize = list.files.iter().map(|file| file.parts.len()).sum();
    let all = world.store.names().into_iter();
    assert_eq!(all.filter(|name| name.contains("/parts/")).count(), used);
    world.archive();
    assert_sound(&world);
}

#[test]
fn a2_a_writer_that_slept_through_an_expiry_finds_that_it_was_replaced() {
    let mut world = with_bases();
    let mut old = World::new(2);
    old.store = world.store.clone();
    old.disk = world.disk.crash_image(Crash::KeepAll);
    old.start_with_past_of(&world);
    old.archive();
    // Now `old` has the chain. It sleeps, and `world` is started again on a copy of its directory.
    world.crash(Crash::KeepAll);
    world.disk.remove("/data/archived").unwrap();
    world.start();
    let next = world.store.list(&chain_dir(LOG), "").unwrap().len() as u64 + 1;
    for _ in 0..150 {
        world.put(3000);
        world.archive();
    }
    let last = expire(&world, ALL);
    assert!(
        last.base > next,
        "the link after its last one is before the oldest base"
    );
    old.put(10);
    assert!(fenced(&mut old));
    assert_sound(&world);
    assert!(world.check(Until::End).is_some());
}

#[test]
fn a5_a_restart_after_an_expiry_goes_on_without_a_new_base() {
    let mut world = with_bases();
    expire(&world, ALL);
    for _ in 0..3 {
        world.crash(Crash::KeepAll);
        world.start();
        let before = world.store.list(&bases_dir(LOG), "").unwrap();
        world.archive();
        assert_eq!(world.store.list(&bases_dir(LOG), "").unwrap(), before);
        assert_sound(&world);
    }
    world.put(10);
    assert!(!matches!(world.step(), Ok(Done::Gap(_))));
    world.archive();
    assert!(world.check(Until::End).is_some());
}

#[test]
fn a12_an_expiry_that_is_interrupted_at_any_call_leaves_an_archive_and_is_finished_later() {
    let world = with_bases();
    let spans = survey(&world.store.reader(), LOG, Depth::Lists, &mut |_, _| ());
    let spans = spans.unwrap().spans;
    let first_and_last = [spans[0].from, newest_list(&world).end];
    for calls in 0.. {
        let mut copy = World::new(3);
        copy.store = world.store.copy();
        copy.store.set_calls_left(Some(calls));
        let found = plan(&copy.store.reader(), LOG, ALL, u64::MAX, &mut |_, _| ());
        let done = found.and_then(|found| match found.plan {
            Some(plan) => plan.carry_out(&copy.store, &mut |_, _| ()),
            None => Ok(()),
        });
        copy.store.set_calls_left(None);
        assert_sound(&copy);
        assert_never_called_damaged(&copy, &first_and_last);
        let (restored, _) = copy.restored(Until::End).unwrap();
        assert_eq!(restored.end, world.check(Until::End).unwrap().0.end);
        if done.is_ok() {
            return;
        }
        expire_what_there_is(&copy);
        let rest = plan(&copy.store.reader(), LOG, ALL, u64::MAX, &mut |_, _| ()).unwrap();
        assert_eq!(rest.plan, None);
        assert_sound(&copy);
        assert!(calls < 1000);
    }
}

/// A moment is there, or refused because it is not.
fn assert_never_called_damaged(world: &World, moments: &[Position]) {
    for moment in moments {
        match world.restored(Until::Position(*moment)) {
            Ok(_) | Err(RestoreError::Refused(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a12_objects_that_are_removed_in_part_are_never_called_damaged() {
    let world = with_bases();
    let past = world.past_at(world.now.wall_ns);
    let ends = [past[past.len() / 4].0, past[past.len() / 2].0];
    let plan = planned(&world, ALL);
    for seed in 0..50 {
        let mut copy = World::new(seed);
        copy.store = world.store.copy_with(seed);
        copy.store.set_faults(60);
        while plan.carry_out(&copy.store, &mut |_, _| ()).is_err() {
            copy.store.set_faults(0);
            assert_never_called_damaged(&copy, &ends);
            assert_sound(&copy);
            copy.store.set_faults(60);
        }
    }
}

/// A store in which someone else does something before one of the calls.
#[derive(Debug)]
struct Meanwhile {
    store: SimStore,
    calls_left: AtomicU64,
    /// The store after that, unless this link was put before.
    then: SimStore,
    unless: String,
    is_done: AtomicBool,
}

impl Meanwhile {
    /// After `calls` calls everything happens that `then` has seen since.
    fn new(store: &SimStore, calls: u64, then: &SimStore) -> Meanwhile {
        let number = store.list(&chain_dir(LOG), "").unwrap().len() as u64 + 1;
        Meanwhile {
            store: store.copy(),
            calls_left: AtomicU64::new(calls),
            then: then.clone(),
            unless: numbered(&chain_dir(LOG), number),
            is_done: AtomicBool::new(false),
        }
    }

    fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Relaxed)
    }

    fn call(&self) -> &SimStore {
        let left = self.calls_left.load(Ordering::Relaxed);
        self.calls_left
            .store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 && self.store.object(&self.unless).is_none() {
            self.is_done.store(true, Ordering::Relaxed);
            self.store
                .names()
                .iter()
                .chain(&self.then.names())
                .for_each(|name| self.store.set_object(name, self.then.object(name)));
        }
        &self.store
    }
}

impl Store for Meanwhile {
    fn place(&self) -> &str {
        self.store.place()
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        self.call().tops()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        self.call().put_if_absent(name, bytes)
    }

    fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Trouble> {
        self.call().get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Option<Vec<u8>>, Trouble> {
        self.call().get_range(name, range)
    }

    fn flight(&self, _: usize) -> Box<dyn Flight + '_> {
        Box::new(InTurn::new(self))
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        self.call().list(prefix, after)
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        self.call().remove(names)
    }
}

/// The archive now, and the archive after everything of that has expired.
fn before_and_after() -> (SimStore, World) {
    let mut world = with_bases();
    let before = world.store.copy();
    for _ in 0..150 {
        world.put(3000);
        world.archive();
    }
    expire(&world, ALL);
    let (old, new) = (before.list(&chain_dir(LOG), ""), newest_list(&world));
    assert!((old.unwrap().len() as u64) < new.first_link - 1);
    (before, world)
}

fn follower_on(disk: &SimFs, store: Arc<dyn Store>) -> Follower {
    let options = Options {
        dir: Some("/standby".into()),
        segment_size: 64 << 10,
        fs: Arc::new(disk.clone()),
        ..Options::default()
    };
    Follower::new(Setup {
        store,
        wait: Arc::new(SimStore::new(1)),
        log: None,
        options,
        node: "standby".to_owned(),
    })
}

#[test]
fn a12_what_an_interrupted_replacement_of_a_copy_has_left_goes_with_the_next_copy() {
    let world = with_bases();
    let (disk, store) = (SimFs::new(5), Arc::new(world.store.copy()));
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let next = Path::new("/standby.next");
    restore_copy(&store.reader(), LOG, (&fs, next), world.now, &mut |_, _| ()).unwrap();
    let mut follower = follower_on(&disk, store);
    let did = follower.step(world.now, &mut |_, _| ()).unwrap();
    assert_eq!(did, Did::Restored);
    assert_eq!(read_marker(&disk, next, STANDBY_MARKER).unwrap(), None);
}

#[test]
fn a12_what_an_expiry_takes_away_from_who_is_reading_is_not_called_damaged() {
    let (before, world) = before_and_after();
    let (mut interrupted, mut whole) = (0, 0);
    for calls in 1.. {
        let store = Meanwhile::new(&before, calls, &world.store);
        let fs: Arc<dyn Fs> = Arc::new(SimFs::new(1));
        let to = (&fs, Path::new("/data"));
        match restore(
            &Reader::new(&store, &store.store),
            LOG,
            Until::End,
            to,
            world.now,
            &mut |_, _| (),
        ) {
            Ok(_) => whole += 1,
            Err(RestoreError::Store(trouble)) => {
                assert!(trouble.what.contains("an expiry"), "{trouble}");
                interrupted += 1;
            }
            Err(error) => panic!("after {calls} calls: {error}"),
        }
        let is_over = !store.is_done();
        let store = Meanwhile::new(&before, calls, &world.store);
        match survey(
            &Reader::new(&store, &store.store),
            LOG,
            Depth::Everything,
            &mut |_, _| (),
        ) {
            Ok(seen) => assert_eq!(seen.bad, [], "after {calls} calls"),
            Err(trouble) => assert!(trouble.what.contains("an expiry"), "{trouble}"),
        }
        if is_over {
            break;
        }
    }
    assert!(interrupted > 5 && whole > 1, "{interrupted}, {whole}");
}

#[test]
fn a2_a_standby_that_slept_through_an_expiry_takes_over_with_everything() {
    let (before, world) = before_and_after();
    let end = world.check(Until::End).unwrap().0.end;
    let mut late = 0;
    for calls in 1..20 {
        let store = Arc::new(Meanwhile::new(&before, u64::MAX, &world.store));
        let mut follower = follower_on(&SimFs::new(5), store.clone());
        while follower.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
        store.calls_left.store(calls, Ordering::Relaxed);
        let promoted = loop {
            match follower.promote(world.now, true, &mut |_, _| ()) {
                Ok(Some(promoted)) => break promoted,
                Ok(None) => {}
                Err(FollowError::Trouble(what)) => {
                    let is_known = what.contains("an expiry") || what.contains("read again");
                    assert!(is_known, "{what}");
                }
                Err(error) => panic!("{error:?}"),
            }
        };
        assert_eq!(promoted.given_up, None);
        if store.is_done() {
            assert_eq!(promoted.at, end, "after {calls} calls");
            late += 1;
        }
    }
    assert!(late > 3, "{late}");
}

#[test]
fn a3_a_base_with_no_bytes_after_it_goes_with_its_parts() {
    let mut world = archived_with(1 << 30);
    // A base with the first link after the last one.
    world.sizes.links_max = 0;
    for _ in 0..2 {
        let (restored, disk) = world.check(Until::End).unwrap();
        world.go_on_from(&restored, disk);
        world.start();
        while world.writer.as_ref().unwrap().figures().bases == 0 {
            world.step().unwrap();
        }
    }
    expire(&world, ALL);
    assert_sound(&world);
    assert!(world.check(Until::End).is_some());
}
