//! Levels: whatever is joined, and whatever happens meanwhile, a restore gives what it gave before.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::claims::put_claim;
use super::claims::tests::claim;
use super::expire::{Keep, plan};
use super::flight::InTurn;
use super::follow::Did;
use super::format::{HEAD_SIZE, Head, chain_dir, numbered};
use super::histories::{LOG, World};
use super::joined::Joined;
use super::levels::{Levels, Pass, pass};
use super::reader::Reader;
use super::restore::{Restored, restore};
use super::sim::SimStore;
use super::store::{Flight, Listed, Put, Store, Trouble};
use super::survey::{Depth, Survey, survey};
use super::tests::{archived_with, follower};
use super::{RestoreError, Until};
use bsd::storage::SimFs;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;

const SMALL: Levels = Levels {
    fine_ns: 0,
    few: 5,
    many: 15,
    size_max: 1 << 20,
    objects_max: usize::MAX,
};

/// A server with one base, and some links after it.
fn with_links(count: u32) -> World {
    let mut world = archived_with(1 << 30);
    for _ in 0..count {
        world.put(10);
        world.archive();
    }
    world
}

fn passed(store: &SimStore, levels: Levels) -> Pass {
    pass(&store.reader(), LOG, levels, u64::MAX, &mut |_, _| true).unwrap()
}

/// Passes until there is nothing to do. Returns their sum.
fn compacted(store: &SimStore, levels: Levels) -> Pass {
    let mut all = Pass::default();
    loop {
        let one = passed(store, levels);
        let is_over = one.is_idle();
        all.add(one);
        if is_over {
            return all;
        }
    }
}

fn restored(store: &SimStore, until: Until, world: &World) -> Result<Restored, RestoreError> {
    restored_by(&store.reader(), until, world)
}

fn restored_by(reader: &Reader<'_>, until: Until, world: &World) -> Result<Restored, RestoreError> {
    let fs: Arc<dyn Fs> = Arc::new(SimFs::new(1));
    restore(
        reader,
        LOG,
        until,
        (&fs, Path::new("/data")),
        world.now,
        &mut |_, _| (),
    )
}

fn seen(store: &SimStore, depth: Depth) -> Survey {
    survey(&store.reader(), LOG, depth, &mut |_, _| ()).unwrap()
}

fn of(store: &SimStore, dir: &str) -> Vec<String> {
    let names = store.names().into_iter();
    names.filter(|name| name.contains(dir)).collect()
}

fn joined(store: &SimStore) -> Vec<Joined> {
    let names = of(store, "/joined/");
    names
        .iter()
        .map(|name| Joined::parse(LOG, name).unwrap())
        .collect()
}

#[test]
fn every_link_can_be_asked_for_as_before_and_there_are_few_objects() {
    let world = with_links(200);
    let before = world.store.copy();
    let all = seen(&before, Depth::Everything);
    let done = compacted(&world.store, SMALL);
    assert!(done.bad.is_empty() && done.links >= 200, "{done:?}");
    let (singles, joined) = (of(&world.store, "/chain/").len(), joined(&world.store));
    assert!(singles < 12 && joined.len() < 40, "{singles}, {joined:?}");
    assert!(joined.iter().any(|it| it.count() == 15));
    for depth in [Depth::Lists, Depth::Everything] {
        assert_eq!(seen(&world.store, depth), all);
    }
    let last = all.spans[0].link;
    for until in (all.spans[0].base..=last)
        .map(Until::Link)
        .chain([Until::End])
    {
        let wanted = restored(&before, until, &world).unwrap();
        assert_eq!(restored(&world.store, until, &world).unwrap(), wanted);
    }
    for (position, _) in world.past_at(world.now.wall_ns).iter().step_by(7) {
        let ask = |store| restored(store, Until::Position(*position), &world);
        assert_eq!(
            format!("{:?}", ask(&world.store)),
            format!("{:?}", ask(&before))
        );
    }
    let (from, to) = (all.spans[0].from_wall_ns, all.spans[0].to_wall_ns);
    for wall_ns in (from..to).step_by(((to - from) / 40) as usize) {
        let ask = |store| restored(store, Until::Wall(wall_ns), &world).unwrap();
        assert_eq!(ask(&world.store), ask(&before));
    }
}

#[test]
fn a_pass_says_how_many_links_are_joined_after_it_and_how_many_are_not() {
    let world = with_links(100);
    let store = &world.store;
    let links = seen(store, Depth::Lists).links;
    let mut is_over = false;
    while !is_over {
        let few = Levels {
            objects_max: 3,
            ..SMALL
        };
        let done = passed(store, few);
        let in_objects: u64 = joined(store).iter().map(|it| it.count()).sum();
        let singles = of(store, "/chain/").len() as u64;
        assert_eq!((done.joined, done.singles), (in_objects, singles));
        assert_eq!(in_objects + singles, links);
        is_over = done.is_idle();
    }
    assert!(joined(store).len() > 5);
}

#[test]
fn links_that_are_young_and_the_last_one_with_bytes_stay_objects_of_their_own() {
    let mut world = with_links(100);
    let store = &world.store.clone();
    let heads: Vec<Head> = of(store, "/chain/")
        .iter()
        .map(|name| Head::decode(&store.object(name).unwrap()).unwrap().0)
        .collect();
    let young = heads[heads.len() - 30];
    let levels = Levels {
        fine_ns: world.now.wall_ns - young.wall_ns + 1,
        ..SMALL
    };
    while !pass(
        &store.reader(),
        LOG,
        levels,
        world.now.wall_ns,
        &mut |_, _| true,
    )
    .unwrap()
    .is_idle()
    {}
    assert!(joined(store).iter().all(|it| it.last < young.number));
    assert!(joined(store).iter().any(|it| it.last + 6 > young.number));
    // However many have gathered before it.
    for _ in 0..2 * SMALL.few {
        compacted(store, SMALL);
        let last = seen(store, Depth::Lists).spans[0].link;
        assert!(joined(store).iter().all(|it| it.last < last));
        world.put(10);
        world.archive();
    }
}

#[test]
fn claims_bases_and_gaps_are_never_joined_and_end_what_is_joined_before_them() {
    let mut world = with_links(7);
    world.crash(Crash::KeepAll);
    world.sizes.links_max = 3;
    world.start();
    for _ in 0..9 {
        world.put(10);
        world.archive();
    }
    let marked = of(&world.store, "/bases/").len() + of(&world.store, "/claims/").len();
    assert!(marked > 4);
    compacted(&world.store, SMALL);
    let all = joined(&world.store);
    for (dir, name) in ["/bases/", "/claims/"].iter().flat_map(|dir| {
        let names = of(&world.store, dir).into_iter();
        names.map(move |name| (*dir, name))
    }) {
        let number = name.rsplit(dir).next().unwrap().parse().unwrap();
        assert!(all.iter().all(|it| !it.has(number)), "{name}");
        assert!(
            world
                .store
                .object(&numbered(&chain_dir(LOG), number))
                .is_some()
        );
    }
    assert!(all.len() > 1);
    assert_eq!(seen(&world.store, Depth::Everything).bad, []);
}

#[test]
fn a_pass_that_ends_before_any_request_leaves_everything_and_the_next_one_ends_it() {
    let world = with_links(40);
    let wanted = restored(&world.store, Until::End, &world).unwrap();
    let links = seen(&world.store, Depth::Lists).links;
    let whole = world.store.copy();
    compacted(&whole, SMALL);
    let mut cut = 0;
    for calls in 0.. {
        let store = world.store.copy();
        store.set_calls_left(Some(calls));
        let done = pass(&store.reader(), LOG, SMALL, u64::MAX, &mut |_, _| true);
        store.set_calls_left(None);
        for depth in [Depth::Lists, Depth::Everything] {
            let all = seen(&store, depth);
            assert_eq!(
                (all.bad, all.lost, all.links),
                (vec![], vec![], links),
                "{calls}"
            );
        }
        assert_eq!(
            restored(&store, Until::End, &world).unwrap(),
            wanted,
            "{calls}"
        );
        compacted(&store, SMALL);
        assert_eq!(store.names(), whole.names(), "{calls}");
        if done.is_ok() {
            break;
        }
        cut += 1;
    }
    assert!(cut > 20);
}

#[test]
fn calls_that_fail_and_puts_that_come_late_harm_nothing() {
    let world = with_links(60);
    let wanted = restored(&world.store, Until::End, &world).unwrap();
    for seed in 0..100 {
        let store = world.store.copy_with(seed);
        store.set_faults(40);
        for _ in 0..3 {
            let _ = pass(&store.reader(), LOG, SMALL, u64::MAX, &mut |_, _| true);
        }
        store.set_faults(0);
        assert_eq!(seen(&store, Depth::Everything).bad, [], "{seed}");
        assert_eq!(
            restored(&store, Until::End, &world).unwrap(),
            wanted,
            "{seed}"
        );
        assert_eq!(compacted(&store, SMALL).bad, []);
    }
}

type Then = Box<dyn FnOnce(&SimStore) + Send>;

/// A store in which someone else does something before one of the calls, or which keeps something
/// else than what is put.
struct Between {
    store: SimStore,
    calls_left: AtomicU64,
    then: Mutex<Option<Then>>,
    spoil: Option<fn(&mut Vec<u8>)>,
    /// Lists say this at most, as of objects that are kept compressed.
    size_max: u64,
}

impl std::fmt::Debug for Between {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Between").finish_non_exhaustive()
    }
}

impl Between {
    fn new(store: &SimStore, calls: u64, then: impl FnOnce(&SimStore) + Send + 'static) -> Between {
        Between {
            store: store.clone(),
            calls_left: AtomicU64::new(calls),
            then: Mutex::new(Some(Box::new(then))),
            spoil: None,
            size_max: u64::MAX,
        }
    }

    fn call(&self) -> &SimStore {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0
            && let Some(then) = self.then.lock().unwrap().take()
        {
            then(&self.store);
        }
        &self.store
    }

    fn is_done(&self) -> bool {
        self.then.lock().unwrap().is_none()
    }
}

impl Store for Between {
    fn place(&self) -> &str {
        self.store.place()
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        self.call().tops()
    }

    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<Put, Trouble> {
        let mut bytes = bytes.to_vec();
        if let (Some(spoil), true) = (self.spoil, name.contains("/joined/")) {
            spoil(&mut bytes);
        }
        self.call().put_if_absent(name, &bytes)
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
        let mut listed = self.call().list(prefix, after)?;
        for it in &mut listed {
            it.size = it.size.min(self.size_max);
        }
        Ok(listed)
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        self.call().remove(names)
    }
}

/// The mutant that removes parts before the joined object is read back is found here.
#[test]
fn nothing_is_removed_for_a_joined_object_that_is_not_what_was_put() {
    let world = with_links(40);
    let before = world.store.names();
    let wanted = restored(&world.store, Until::End, &world).unwrap();
    let spoils: [fn(&mut Vec<u8>); 4] = [
        |bytes| *bytes.last_mut().unwrap() ^= 1,
        |bytes| bytes[40] ^= 1,
        |bytes| bytes.truncate(bytes.len() - 1),
        Vec::clear,
    ];
    for spoil in spoils {
        let store = world.store.copy();
        let spoiled = Between {
            spoil: Some(spoil),
            ..Between::new(&store, u64::MAX, |_| ())
        };
        let reader = Reader::new(&spoiled, &store);
        let done = pass(&reader, LOG, SMALL, u64::MAX, &mut |_, _| true).unwrap();
        assert!(!done.bad.is_empty() && done.is_idle(), "{done:?}");
        assert!(before.iter().all(|name| store.object(name).is_some()));
        // What was kept is not read by anyone.
        assert_eq!(seen(&store, Depth::Everything).bad, []);
        assert_eq!(restored(&store, Until::End, &world).unwrap(), wanted);
        // Nor is it overwritten.
        let kept = joined(&store)[0].name(LOG);
        let object = store.object(&kept);
        assert!(!passed(&store, SMALL).bad.is_empty());
        assert_eq!(store.object(&kept), object);
        assert!(before.iter().all(|name| store.object(name).is_some()));
    }
}

/// What another process may do meanwhile.
fn others() -> [fn(&SimStore); 3] {
    [
        |store| _ = compacted(store, SMALL),
        |store| _ = passed(store, SMALL),
        |store| {
            let levels = Levels {
                few: 4,
                many: 13,
                ..SMALL
            };
            _ = compacted(store, levels);
        },
    ]
}

#[test]
fn others_that_join_the_same_links_at_any_moment_harm_nothing() {
    let world = with_links(40);
    let wanted = restored(&world.store, Until::End, &world).unwrap();
    for other in others() {
        for calls in 0.. {
            let store = world.store.copy();
            let between = Between::new(&store, calls, other);
            let reader = Reader::new(&between, &store);
            let mut is_over = false;
            while !is_over {
                let done = pass(&reader, LOG, SMALL, u64::MAX, &mut |_, _| true).unwrap();
                is_over = done.is_idle();
            }
            assert_eq!(seen(&store, Depth::Everything).bad, [], "{calls}");
            assert_eq!(
                restored(&store, Until::End, &world).unwrap(),
                wanted,
                "{calls}"
            );
            if !between.is_done() {
                break;
            }
        }
    }
}

#[test]
fn who_reads_while_links_are_joined_reads_the_same() {
    let world = with_links(40);
    let wanted = restored(&world.store, Until::End, &world).unwrap();
    let all = seen(&world.store, Depth::Lists);
    let (span, links) = (all.spans[0], all.links);
    let middle = Until::Wall(span.from_wall_ns + (span.to_wall_ns - span.from_wall_ns) / 2);
    let at_middle = restored(&world.store, middle, &world).unwrap();
    for other in others() {
        for calls in 0.. {
            let read = |run: &dyn Fn(&Reader<'_>)| {
                let store = world.store.copy();
                let between = Between::new(&store, calls, other);
                run(&Reader::new(&between, &store));
                between.is_done()
            };
            let mut is_done = read(&|reader| {
                let found = restored_by(reader, Until::End, &world).unwrap();
                assert_eq!(found, wanted, "{calls}");
            });
            is_done |= read(&|reader| {
                let found = restored_by(reader, middle, &world).unwrap();
                assert_eq!(found, at_middle, "{calls}");
            });
            for depth in [Depth::Lists, Depth::Everything] {
                is_done |= read(&|reader| {
                    let all = survey(reader, LOG, depth, &mut |_, _| ()).unwrap();
                    assert_eq!((all.bad, all.links), (vec![], links), "{calls}");
                });
            }
            if !is_done {
                break;
            }
        }
    }
}

#[test]
fn an_expiry_and_a_compaction_at_the_same_time_leave_an_archive() {
    let mut world = archived_with(0);
    for _ in 0..40 {
        world.put(1500);
        world.archive();
    }
    let expire = |store: &SimStore| {
        let keep = Keep {
            age_ns: 0,
            bases: 2,
            ..Keep::default()
        };
        let found = plan(&store.reader(), LOG, keep, u64::MAX, &mut |_, _| ()).unwrap();
        if let Some(plan) = found.plan {
            plan.carry_out(store, &mut |_, _| ()).unwrap();
        }
    };
    let wanted = restored(&world.store, Until::End, &world).unwrap();
    let check = |store: &SimStore, calls: u64| {
        for depth in [Depth::Lists, Depth::Everything] {
            assert_eq!(seen(store, depth).bad, [], "{calls}");
        }
        assert_eq!(restored(store, Until::End, &world).unwrap(), wanted);
        compacted(store, SMALL);
        expire(store);
        assert_eq!(seen(store, Depth::Everything).bad, [], "{calls}");
        let begin = super::chain::begin(store, LOG).unwrap();
        assert!(joined(store).iter().all(|it| it.last >= begin), "{calls}");
        assert_eq!(restored(store, Until::End, &world).unwrap(), wanted);
    };
    for calls in 0.. {
        let store = world.store.copy();
        let between = Between::new(&store, calls, expire);
        let reader = Reader::new(&between, &store);
        let done = pass(&reader, LOG, SMALL, u64::MAX, &mut |_, _| true);
        assert!(done.is_ok());
        check(&store, calls);
        if !between.is_done() {
            break;
        }
    }
    for calls in 0.. {
        let store = world.store.copy();
        let between = Between::new(&store, calls, |store| _ = compacted(store, SMALL));
        let reader = Reader::new(&between, &store);
        let keep = Keep {
            age_ns: 0,
            bases: 2,
            ..Keep::default()
        };
        let found = plan(&reader, LOG, keep, u64::MAX, &mut |_, _| ()).unwrap();
        assert_eq!(found.skipped, []);
        let planned = found.plan.unwrap();
        planned.carry_out(&between, &mut |_, _| ()).unwrap();
        check(&store, calls);
        if !between.is_done() {
            break;
        }
    }
}

#[test]
fn a_writer_that_goes_on_meanwhile_is_not_hindered_and_loses_nothing() {
    let mut world = with_links(40);
    let before = world.store.copy();
    world.sizes.links_max = 50;
    world.crash(Crash::KeepAll);
    world.start();
    for _ in 0..20 {
        world.put(10);
        world.archive();
    }
    let old = before.names();
    let names = world.store.names().into_iter();
    let new: Vec<_> = names.filter(|name| !old.contains(name)).collect();
    assert!(new.iter().any(|name| name.contains("/bases/")));
    let wanted = restored(&world.store, Until::End, &world).unwrap();
    for calls in 0.. {
        let (store, after, new) = (before.copy(), world.store.clone(), new.clone());
        let write = move |store: &SimStore| {
            for name in &new {
                assert_eq!(store.object(name), None, "{name}");
                store.set_object(name, after.object(name));
            }
        };
        let between = Between::new(&store, calls, write);
        let reader = Reader::new(&between, &store);
        let done = pass(&reader, LOG, SMALL, u64::MAX, &mut |_, _| true).unwrap();
        assert_eq!(done.bad, [], "{calls}");
        if !between.is_done() {
            break;
        }
        for depth in [Depth::Lists, Depth::Everything] {
            assert_eq!(seen(&store, depth).bad, [], "{calls}");
        }
        let found = restored(&store, Until::End, &world).unwrap();
        assert_eq!(found, wanted, "{calls}");
    }
}

#[test]
fn a_writer_that_starts_goes_on_where_it_was_and_needs_no_base() {
    let mut world = with_links(60);
    for _ in 0..3 {
        compacted(&world.store, SMALL);
        world.crash(Crash::KeepAll);
        world.start();
        // The link that would be the last one is that of the claim.
        compacted(&world.store, SMALL);
        world.put(10);
        world.archive();
        world.put(10);
        world.archive();
        let all = seen(&world.store, Depth::Everything);
        assert_eq!((all.bad, all.lost, all.spans.len()), (vec![], vec![], 1));
        assert_eq!(of(&world.store, "/bases/").len(), 1);
    }
    world.check(Until::End).unwrap();
}

/// The last link is lost, and what is left ends in a joined object.
#[test]
fn a_writer_and_a_standby_go_on_behind_joined_links_when_the_last_one_is_lost() {
    let mut world = with_links(40);
    let store = Arc::new(world.store.clone());
    compacted(&store, SMALL);
    let end = joined(&store).last().unwrap().last;
    for name in of(&store, "/chain/") {
        if name > numbered(&chain_dir(LOG), end) {
            store.set_object(&name, None);
        }
    }
    assert_eq!(seen(&store, Depth::Lists).spans[0].link, end);
    let mut standby = follower(store.clone(), &store);
    while standby.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
    world.crash(Crash::KeepAll);
    world.start();
    world.put(10);
    world.archive();
    assert!(store.object(&numbered(&chain_dir(LOG), end + 1)).is_some());
    for depth in [Depth::Lists, Depth::Everything] {
        assert_eq!(seen(&store, depth).bad, []);
    }
    let wanted = world.check(Until::End).unwrap().0.end;
    while standby.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
    let promoted = standby.promote(world.now, false, &mut |_, _| ()).unwrap();
    assert_eq!(promoted.unwrap().at, wanted);
}

#[test]
fn a_standby_that_was_asleep_reads_what_was_joined_meanwhile_and_takes_over_behind_it() {
    for is_followed in [true, false] {
        let mut world = with_links(10);
        let store = Arc::new(world.store.clone());
        let mut standby = follower(store.clone(), &store);
        while standby.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
        for _ in 0..50 {
            world.put(10);
            world.archive();
        }
        compacted(&store, SMALL);
        if is_followed {
            let calls = store.calls();
            while standby.step(world.now, &mut |_, _| ()).unwrap() == Did::Some {}
            // After a silence it looks for lost links, and finds them.
            world.pass(20_000);
            while standby.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
            while standby.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
            assert!(store.calls() - calls < 60, "not a call for each");
        }
        let end = restored(&store, Until::End, &world).unwrap();
        let promoted = loop {
            if let Some(promoted) = standby.promote(world.now, false, &mut |_, _| ()).unwrap() {
                break promoted;
            }
        };
        assert_eq!((promoted.given_up, promoted.at), (None, end.end));
        assert_eq!(standby.figures().restores, 1);
        assert_eq!(seen(&store, Depth::Everything).bad, []);
    }
}

#[test]
fn a_claim_under_a_number_that_was_joined_is_refused_and_is_not_read() {
    let world = with_links(40);
    compacted(&world.store, SMALL);
    let store = &world.store;
    let wanted = restored(store, Until::End, &world).unwrap();
    let number = joined(store)[1].first + 2;
    let (late, _) = claim(number, 9, "late");
    assert_eq!(put_claim(store, LOG, number, &late), Ok(false));
    for depth in [Depth::Lists, Depth::Everything] {
        let all = seen(store, depth);
        assert_eq!((all.bad, all.epoch), (vec![], 1));
    }
    assert_eq!(restored(store, Until::End, &world).unwrap(), wanted);
    assert_eq!(compacted(store, SMALL).bad, []);
}

#[test]
fn a_link_that_comes_again_after_it_was_joined_is_removed_again() {
    let world = with_links(40);
    let before = world.store.copy();
    compacted(&world.store, SMALL);
    let whole = world.store.names();
    let number = joined(&world.store)[1].first + 2;
    let name = numbered(&chain_dir(LOG), number);
    world.store.set_object(&name, before.object(&name));
    assert_eq!(seen(&world.store, Depth::Everything).bad, []);
    compacted(&world.store, SMALL);
    assert_eq!(world.store.names(), whole);
    // What is not the same stays, and is named.
    let other = numbered(&chain_dir(LOG), number + 1);
    world.store.set_object(&name, before.object(&other));
    let done = compacted(&world.store, SMALL);
    assert_eq!(
        done.bad.iter().map(|bad| &*bad.name).collect::<Vec<_>>(),
        [&*name]
    );
    assert!(world.store.object(&name).is_some());
    assert_eq!(seen(&world.store, Depth::Everything).bad, []);
}

#[test]
fn damage_in_a_joined_object_is_named_with_its_links_and_costs_only_what_follows() {
    let world = with_links(40);
    compacted(&world.store, SMALL);
    let hurt = joined(&world.store)[1];
    let name = hurt.name(LOG);
    let whole = world.store.object(&name).unwrap();
    let mut bytes = whole.clone();
    // The last body.
    *bytes.last_mut().unwrap() ^= 1;
    world.store.set_object(&name, Some(bytes));
    let all = seen(&world.store, Depth::Everything);
    assert_eq!(all.bad.len(), 1, "{:?}", all.bad);
    assert_eq!(all.bad[0].name, name);
    assert!(
        all.bad[0]
            .what
            .starts_with(&format!("link {}: ", hurt.last))
    );
    let before = Until::Link(hurt.last - 1);
    restored(&world.store, before, &world).unwrap();
    assert!(restored(&world.store, Until::End, &world).is_err());
    // The third head: no later body is found.
    let mut bytes = whole;
    bytes[32 + 2 * HEAD_SIZE + 50] ^= 1;
    world.store.set_object(&name, Some(bytes));
    let all = seen(&world.store, Depth::Everything);
    let links = format!("links {} to {}: ", hurt.first + 2, hurt.last);
    assert!(
        all.bad.len() == 1 && all.bad[0].what.starts_with(&links),
        "{:?}",
        all.bad
    );
    restored(&world.store, Until::Link(hurt.first + 1), &world).unwrap();
    // Nothing is joined with it, nor removed for it.
    let names = world.store.names();
    compacted(&world.store, Levels { many: 30, ..SMALL });
    assert!(world.store.object(&name).is_some());
    // All of it.
    world.store.set_object(&name, None);
    let all = seen(&world.store, Depth::Lists);
    assert_eq!(all.bad[0].name, numbered(&chain_dir(LOG), hurt.first));
    assert!(names.contains(&name));
}

#[test]
fn a_damaged_link_is_named_and_stays_and_those_beside_it_are_joined() {
    let world = with_links(60);
    let singles = of(&world.store, "/chain/");
    let name = &singles[singles.len() / 2];
    let mut link = world.store.object(name).unwrap();
    *link.last_mut().unwrap() ^= 1;
    world.store.set_object(name, Some(link));
    let done = compacted(&world.store, SMALL);
    assert_eq!(
        done.bad.iter().map(|bad| &bad.name).collect::<Vec<_>>(),
        [name]
    );
    assert!(world.store.object(name).is_some());
    let left = of(&world.store, "/chain/").len();
    assert!(left < 25, "{left} of {}", singles.len());
    assert_eq!(seen(&world.store, Depth::Everything).bad.len(), 1);
}

/// The same links as a program of version 1 has put them.
fn of_version_1(store: &SimStore) {
    let mut previous = 0_u32;
    for name in of(store, "/chain/") {
        let mut link = store.object(&name).unwrap();
        link[8..10].copy_from_slice(&1_u16.to_le_bytes());
        link[72..76].copy_from_slice(&previous.to_le_bytes());
        previous = crc32fast::hash(&link[..92]);
        link[92..96].copy_from_slice(&previous.to_le_bytes());
        store.set_object(&name, Some(link));
    }
}

#[test]
fn links_of_version_1_are_read_and_followed_and_not_joined() {
    let mut world = with_links(30);
    world.crash(Crash::KeepAll);
    of_version_1(&world.store);
    let old = of(&world.store, "/chain/");
    assert_eq!(seen(&world.store, Depth::Everything).bad, []);
    assert!(passed(&world.store, SMALL).is_idle());
    world.start();
    for _ in 0..30 {
        world.put(10);
        world.archive();
    }
    compacted(&world.store, SMALL);
    assert!(old.iter().all(|name| world.store.object(name).is_some()));
    let (first, all) = (old.len() as u64, joined(&world.store));
    assert!(
        !all.is_empty() && all.iter().all(|it| it.first > first),
        "{all:?}"
    );
    assert_eq!(seen(&world.store, Depth::Everything).bad, []);
    world.check(Until::End).unwrap();
}

#[test]
fn a_joined_object_has_no_more_links_and_bytes_than_it_may() {
    let mut world = archived_with(1 << 30);
    for nth in 0..120 {
        world.put(if nth % 10 == 0 { 3000 } else { 10 });
        world.archive();
    }
    let levels = Levels {
        size_max: 4000,
        many: 20,
        ..SMALL
    };
    let one = Levels {
        objects_max: 2,
        ..levels
    };
    let pass = passed(&world.store.copy(), one);
    assert!(pass.objects <= 2 && pass.is_cut, "{pass:?}");
    compacted(&world.store, levels);
    let all = joined(&world.store);
    assert!(
        all.iter().all(|it| it.size <= 4000 && it.count() <= 20),
        "{all:?}"
    );
    assert!(all.iter().any(|it| it.size > 2000) && all.len() < 40);
    assert_eq!(seen(&world.store, Depth::Everything).bad, []);
}

#[test]
fn a_list_that_says_less_than_there_is_makes_no_object_too_large() {
    let mut world = archived_with(1 << 30);
    for nth in 0..120 {
        world.put(if nth % 10 < 2 { 2500 } else { 10 });
        world.archive();
    }
    let levels = Levels {
        size_max: 20_000,
        many: 40,
        ..SMALL
    };
    let store = &world.store;
    let smaller = Between {
        size_max: HEAD_SIZE as u64 + 1,
        ..Between::new(store, u64::MAX, |_| ())
    };
    let reader = Reader::new(&smaller, store);
    let mut passes = 0;
    while !pass(&reader, LOG, levels, u64::MAX, &mut |_, _| true)
        .unwrap()
        .is_idle()
    {
        passes += 1;
        assert!(passes < 100);
    }
    assert!(joined(store).iter().all(|it| it.size <= 20_000));
    let all = seen(store, Depth::Everything);
    assert!(of(store, "/chain/").len() < all.links as usize / 2);
    assert_eq!(all.bad, []);
}
