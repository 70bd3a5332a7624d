//! Bases that are asked for, their names and pins, and what stays of an archive when the links around a
//! base have expired.

use std::collections::BTreeSet;

use super::apart::State;
use super::expire::{Found, Keep, Plan, plan};
use super::format::{
    BaseName, HEAD_SIZE, Head, Kind, Named, bases_dir, chain_dir, claims_dir, kept_dir, names_dir,
    number_in, numbered, parts_dir, pins_dir,
};
use super::histories::{LOG, MS_NS, World, keys};
use super::labels::{NAMES_MAX, PINS_MAX, find, pinned, unpin};
use super::order::{Made, NotMade, Order};
use super::seal::is_sealed;
use super::sim::SimStore;
use super::store::Store;
use super::survey::{Depth, Survey, survey};
use super::tests::archived_with;
use super::unopened::look;
use super::writer::{Done, Failure};
use super::{Codec, Key, RestoreError, Until};
use bsd::storage::disk::sim::Crash;

const ALL: Keep = Keep {
    age_ns: 0,
    bases: 1,
    days: 0,
    weeks: 0,
};

fn order(name: Option<&str>, is_pinned: bool) -> Order {
    Order {
        name: name.map(|name| BaseName::parse(name).unwrap()),
        is_pinned,
    }
}

fn ask(world: &mut World, name: Option<&str>, is_pinned: bool) {
    let writer = world.writer.as_mut().unwrap();
    writer.ask_for_base(order(name, is_pinned));
}

/// Have a base made, and wait for the answer.
pub(super) fn base(
    world: &mut World,
    name: Option<&str>,
    is_pinned: bool,
) -> Result<Made, NotMade> {
    ask(world, name, is_pinned);
    world.archive();
    world.writer.as_mut().unwrap().answer().unwrap()
}

pub(super) fn seen(store: &SimStore, depth: Depth) -> Survey {
    survey(&store.reader(), LOG, depth, &mut |_, _| ()).unwrap()
}

pub(super) fn found(world: &World, keep: Keep) -> Found {
    let (reader, wall_ns) = (world.store.reader(), world.now.wall_ns);
    plan(&reader, LOG, keep, wall_ns, &mut |_, _| ()).unwrap()
}

pub(super) fn expire(world: &World, keep: Keep) -> Option<Plan> {
    let found = found(world, keep);
    assert_eq!(found.skipped, []);
    let plan = found.plan?;
    plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    Some(plan)
}

/// More links, and a base.
pub(super) fn more(world: &mut World) {
    for _ in 0..12 {
        world.put(3000);
        world.archive();
    }
    base(world, None, false).unwrap();
}

/// Nothing is wrong there, and what stays apart is exactly this.
pub(super) fn assert_apart(store: &SimStore, wanted: &[State]) {
    for depth in [Depth::Lists, Depth::Everything] {
        let found = seen(store, depth);
        assert_eq!(found.bad, [], "{depth:?}");
        assert_eq!(found.apart, wanted, "{depth:?}");
    }
    let unopened = look(&store.reader(), LOG, &mut |_, _| ()).unwrap();
    assert_eq!(unopened.bad, []);
}

/// It is restored exactly so.
pub(super) fn assert_restored(world: &World, state: State) {
    let untils = [
        Until::Base(state.base),
        Until::Position(state.at),
        Until::Wall(state.wall_ns),
    ];
    for until in untils {
        let (restored, _) = world.check(until).unwrap();
        assert_eq!((restored.base, restored.end), (state.base, state.at));
        assert_eq!(restored.links, 0, "a base needs no link");
    }
}

pub(super) fn state(made: Made) -> State {
    State {
        base: made.base,
        at: made.end,
        wall_ns: made.wall_ns,
    }
}

pub(super) fn refusal(world: &World, until: Until) -> String {
    match world.restored(until) {
        Err(RestoreError::Refused(why)) => why,
        other => panic!("{until:?}: {other:?}"),
    }
}

fn count(store: &SimStore, dir: &str) -> usize {
    store.list(dir, "").unwrap().len()
}

#[test]
fn a_base_that_is_asked_for_is_complete_with_its_pin_and_its_name() {
    let mut world = archived_with(1 << 30);
    let bases = count(&world.store, &bases_dir(LOG));
    let first = base(&mut world, Some("before-upgrade"), true).unwrap();
    assert_eq!(count(&world.store, &bases_dir(LOG)), bases + 1);
    assert_eq!(first.end, world.engine().log().unwrap().durable());
    let name = BaseName::parse("before-upgrade").unwrap();
    let object = world.store.object(&name.object(LOG)).unwrap();
    let named = Named {
        base: first.base,
        end: first.end,
    };
    assert_eq!(Named::decode(&object), Ok(named));
    assert_eq!(find(&world.store.reader(), LOG, &name).unwrap(), first.base);
    let pins = BTreeSet::from([first.base]);
    assert_eq!(pinned(&world.store, LOG).unwrap(), pins);
    for depth in [Depth::Lists, Depth::Everything] {
        let found = seen(&world.store, depth);
        assert_eq!((found.bad.len(), found.apart.len()), (0, 0));
        assert_eq!(found.names, [(name.clone(), first.base)]);
        assert_eq!(found.pins, [first.base]);
    }
    let (restored, _) = world.check(Until::Base(first.base)).unwrap();
    assert_eq!((restored.end, restored.links), (first.end, 0));
    // What has not changed is not uploaded again.
    let second = base(&mut world, None, false).unwrap();
    assert!(second.base > first.base && second.size > 0);
    assert_eq!(second.reused, second.size);
    world.put(100);
    let third = base(&mut world, Some("after"), false).unwrap();
    assert!(third.reused < third.size, "{third:?}");
    let bases = count(&world.store, &bases_dir(LOG));
    let NotMade(why) = base(&mut world, Some("before-upgrade"), false).unwrap_err();
    assert!(why.contains("before-upgrade already"), "{why}");
    assert_eq!(count(&world.store, &bases_dir(LOG)), bases, "none is made");
}

#[test]
fn a_base_that_is_asked_for_has_what_was_put_before_although_one_is_under_way() {
    let mut world = World::new(1);
    world.sizes.part_max = 500;
    world.start();
    for _ in 0..20 {
        world.put(100);
    }
    // The first base.
    while world.writer.as_ref().unwrap().base_progress().is_none() {
        world.step().unwrap();
    }
    for _ in 0..20 {
        world.put(100);
    }
    let end = world.engine().log().unwrap().durable();
    let made = base(&mut world, None, false).unwrap();
    assert!(made.end >= end, "{} is before {end}", made.end);
    assert_eq!(world.writer.as_ref().unwrap().figures().bases, 2);
}

#[test]
fn a_base_that_is_asked_for_is_made_after_a_gap_too() {
    let mut world = archived_with(1 << 30);
    world.hold_max = 0;
    let writer = world.writer.as_mut().unwrap();
    writer.ask_for_base(order(Some("x"), true));
    while !world.writer.as_ref().unwrap().is_making_what_was_asked() {
        world.step().unwrap();
    }
    // The last link is lost, so the chain begins again with a base.
    let last = world.store.list(&chain_dir(LOG), "").unwrap().pop();
    world.store.set_object(&last.unwrap().name, None);
    world.writer.as_mut().unwrap().doubt();
    let mut has_gap = false;
    while world.writer.as_ref().unwrap().figures().bases < 2 {
        has_gap |= matches!(world.step().unwrap(), Done::Hole(_));
        world.pass(60);
    }
    assert!(has_gap);
    let made = world.writer.as_mut().unwrap().answer().unwrap().unwrap();
    let (restored, _) = world.check(Until::Base(made.base)).unwrap();
    assert_eq!(restored.end, made.end);
    assert_eq!(seen(&world.store, Depth::Lists).pins, [made.base]);
}

#[test]
fn a_pinned_base_stays_alone_until_it_is_unpinned_and_is_restored_exactly() {
    let mut world = archived_with(0);
    more(&mut world);
    let pinned = state(base(&mut world, Some("good"), true).unwrap());
    let named = base(&mut world, Some("other"), false).unwrap();
    more(&mut world);
    let plan = expire(&world, ALL).unwrap();
    assert_eq!(plan.apart, [pinned]);
    assert!(plan.bases > 2 && plan.links() > 10, "{plan:?}");
    assert_apart(&world.store, &[pinned]);
    assert_restored(&world, pinned);
    // Its links are gone, and so is a base that was only named.
    assert!(world.check(Until::Base(named.base)).is_none());
    assert_eq!(count(&world.store, &names_dir(LOG)), 1);
    let claims = count(&world.store, &claims_dir(LOG));
    let before = format!("{:020}", plan.base - 1);
    let links = world.store.list(&chain_dir(LOG), "").unwrap();
    let before = links
        .iter()
        .filter(|it| it.name < format!("{}{before}", chain_dir(LOG)));
    assert!(before.count() <= claims + 2, "{links:?}");
    // Moments around it are refused, with it and the first base of the rest as the nearest ones.
    let hint = format!("base:{}", pinned.base);
    let next = format!("base:{}", plan.base);
    for until in [
        Until::Wall(pinned.wall_ns + 1),
        Until::Link(pinned.base + 1),
        Until::Position(named.end),
    ] {
        if until == Until::Position(pinned.at) {
            continue;
        }
        let why = refusal(&world, until);
        assert!(why.contains(&hint) && why.contains(&next), "{why}");
    }
    let why = refusal(&world, Until::Wall(pinned.wall_ns - 1));
    assert!(
        why.contains("the nearest one is") && why.contains(&hint),
        "{why}"
    );
    assert!(world.check(Until::End).is_some());
    assert_eq!(expire(&world, ALL), None);
    // Also while the chain goes on, and the server starts again.
    world.crash(Crash::KeepAll);
    world.start();
    more(&mut world);
    expire(&world, ALL).unwrap();
    assert_apart(&world.store, &[pinned]);
    assert_restored(&world, pinned);
    let reader = world.store.reader();
    assert!(unpin(&reader, LOG, pinned.base).unwrap());
    assert!(!unpin(&reader, LOG, pinned.base).unwrap());
    assert_restored(&world, pinned);
    let plan = expire(&world, ALL).unwrap();
    assert_eq!((plan.bases, &plan.apart[..]), (1, &[][..]));
    assert_apart(&world.store, &[]);
    let why = refusal(&world, Until::Base(pinned.base));
    assert!(why.contains("expired"), "{why}");
    for dir in [pins_dir(LOG), kept_dir(LOG), names_dir(LOG)] {
        assert_eq!(count(&world.store, &dir), 0, "{dir}");
    }
    // Nothing of it is left.
    let used = seen(&world.store, Depth::Everything);
    assert_eq!(used.bad, []);
    assert_eq!(expire(&world, ALL), None);
}

/// An archive with a pinned base in the middle, which has not expired, and that base.
fn with_pinned() -> (World, State) {
    let mut world = archived_with(0);
    more(&mut world);
    let pinned = state(base(&mut world, Some("good"), true).unwrap());
    more(&mut world);
    (world, pinned)
}

#[test]
fn an_expiry_that_is_interrupted_anywhere_leaves_what_is_pinned_and_the_next_one_ends_it() {
    let (world, pinned) = with_pinned();
    let store = world.store.copy();
    let mut interrupted = 0;
    for calls in 0.. {
        let mut world = World::new(1);
        world.store = store.copy();
        let planned = plan(&world.store.reader(), LOG, ALL, u64::MAX, &mut |_, _| ());
        let planned = planned.unwrap().plan.unwrap();
        world.store.set_calls_left(Some(calls));
        let done = planned.carry_out(&world.store, &mut |_, _| ());
        world.store.set_calls_left(None);
        let all = seen(&world.store, Depth::Everything);
        assert_eq!(all.bad, [], "after {calls} calls");
        assert_eq!(all.pins, [pinned.base]);
        let restored = world.restored(Until::Base(pinned.base)).unwrap().0;
        assert_eq!(restored.end, pinned.at);
        assert!(world.restored(Until::End).is_ok());
        let again = plan(&world.store.reader(), LOG, ALL, u64::MAX, &mut |_, _| ());
        if let Some(plan) = again.unwrap().plan {
            plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
        }
        assert_apart(&world.store, &[pinned]);
        if done.is_ok() {
            break;
        }
        interrupted += 1;
    }
    assert!(interrupted > 4, "{interrupted}");
}

#[test]
fn what_is_lost_of_a_base_apart_is_told_and_what_expired_is_not() {
    let (world, pinned) = with_pinned();
    expire(&world, ALL).unwrap();
    let names = world.store.names().into_iter();
    let link = numbered(&chain_dir(LOG), pinned.base);
    let parts = names.filter(|name| name.starts_with(&parts_dir(LOG)));
    let mut told = 0;
    for name in parts.chain([link.clone()]) {
        let store = world.store.copy();
        store.set_object(&name, None);
        for depth in [Depth::Lists, Depth::Everything] {
            let found = seen(&store, depth);
            let is_here = found.apart.is_empty();
            assert_eq!(
                is_here,
                found.bad.iter().any(|bad| bad.name == name) && is_here
            );
            assert!(!found.bad.is_empty(), "{name} is missing, {depth:?}");
            told += u64::from(is_here);
        }
    }
    assert!(told >= 4, "{told}");
    let store = world.store.copy();
    store.set_object(&link, None);
    let unopened = look(&store.reader(), LOG, &mut |_, _| ()).unwrap();
    assert_eq!(unopened.bad[0].name, link);
}

#[test]
fn nothing_of_a_pinned_base_goes_although_its_list_cannot_be_read() {
    let (mut world, pinned) = with_pinned();
    let link = numbered(&chain_dir(LOG), pinned.base);
    let sound = world.store.object(&link).unwrap();
    let mut changed = sound.clone();
    *changed.last_mut().unwrap() ^= 1;
    for round in 0..2 {
        world.store.set_object(&link, Some(changed.clone()));
        let found = found(&world, ALL);
        assert_eq!(found.skipped[0].name, link);
        let plan = found.plan.unwrap();
        assert_eq!(plan.parts(), 0, "no one knows which ones it needs");
        plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
        let all = seen(&world.store, Depth::Lists);
        assert_eq!((&all.bad[0].name, all.bad.len()), (&link, 1), "{round}");
        // It is put right again.
        world.store.set_object(&link, Some(sound.clone()));
        assert_restored(&world, pinned);
        more(&mut world);
    }
    expire(&world, ALL).unwrap();
    assert_apart(&world.store, &[pinned]);
}

#[test]
fn a_pinned_base_that_is_damaged_keeps_what_can_still_make_its_state() {
    let (world, pinned) = with_pinned();
    let link = numbered(&chain_dir(LOG), pinned.base);
    let list = super::format::BaseList::decode(&world.store.object(&link).unwrap()[HEAD_SIZE..]);
    let list = list.unwrap();
    let file = list.files.last().unwrap();
    let (offset, part) = file.parts().last().unwrap();
    let part = super::format::part_name(LOG, &file.name, offset, part);
    world.store.set_object(&part, None);
    let found = found(&world, ALL);
    assert_eq!(found.skipped[0].name, part);
    let plan = found.plan.unwrap();
    assert!(
        plan.base < pinned.base,
        "{} stays with its links",
        plan.base
    );
    plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    let (restored, _) = world.check(Until::Position(pinned.at)).unwrap();
    assert_eq!((restored.base, restored.end), (plan.base, pinned.at));
}

#[test]
fn a_writer_that_ends_at_any_call_leaves_no_pin_without_a_base_and_no_name_of_another() {
    let mut pins = BTreeSet::new();
    for calls in 0..40 {
        let mut world = archived_with(1 << 30);
        ask(&mut world, Some("x"), true);
        world.store.set_calls_left(Some(calls));
        let mut answer = None;
        for _ in 0..12 {
            match world.step() {
                Ok(_) | Err(Failure::Trouble(_)) => {}
                Err(failure) => panic!("{failure}"),
            }
            answer = answer.or(world.writer.as_mut().unwrap().answer());
        }
        world.store.set_calls_left(None);
        world.crash(Crash::KeepAll);
        world.start();
        world.put(10);
        world.archive();
        let all = seen(&world.store, Depth::Everything);
        assert_eq!(all.bad, [], "after {calls} calls");
        pins.insert((all.pins.len(), all.names.len(), answer.is_some()));
        for base in all.pins.iter().chain(all.names.iter().map(|it| &it.1)) {
            assert!(
                world.check(Until::Base(*base)).is_some(),
                "after {calls} calls"
            );
        }
        if let Some(answer) = answer {
            let made = answer.unwrap();
            assert_eq!(all.pins, [made.base]);
            assert_eq!(all.names[0].1, made.base);
        }
        // What is left does not hinder the next one.
        more(&mut world);
        expire(&world, ALL);
        assert_eq!(seen(&world.store, Depth::Everything).bad, []);
    }
    assert!(
        pins.contains(&(0, 0, false)) && pins.contains(&(1, 1, true)),
        "{pins:?}"
    );
}

#[test]
fn the_pin_that_an_interrupted_writer_has_left_is_of_no_base() {
    let mut world = archived_with(1 << 30);
    world.crash(Crash::KeepAll);
    let last = world
        .store
        .list(&chain_dir(LOG), "")
        .unwrap()
        .pop()
        .unwrap();
    let next = number_in(&chain_dir(LOG), &last.name).unwrap() + 1;
    let pin = numbered(&pins_dir(LOG), next);
    world.store.set_object(&pin, Some(Vec::new()));
    world.start();
    world.sizes.base_min = 0;
    world.archive();
    let claim = world
        .store
        .object(&numbered(&chain_dir(LOG), next))
        .unwrap();
    let kind = Head::decode(&claim).unwrap().0.kind;
    assert!(matches!(kind, Kind::Claim { .. }), "{kind:?}");
    assert!(pinned(&world.store, LOG).unwrap().is_empty());
    base(&mut world, None, false).unwrap();
    more(&mut world);
    base(&mut world, None, false).unwrap();
    expire(&world, ALL).unwrap();
    assert_apart(&world.store, &[]);
    assert_eq!(seen(&world.store, Depth::Lists).pins, [0; 0]);
}

#[test]
fn there_are_no_more_names_and_pins_than_the_limits() {
    let mut world = archived_with(1 << 30);
    let last = base(&mut world, Some("last"), true).unwrap();
    let named = Named {
        base: last.base,
        end: last.end,
    };
    for nth in 1..NAMES_MAX {
        let name = BaseName::parse(&format!("n{nth}")).unwrap();
        let object = name.object(LOG);
        world.store.set_object(&object, Some(named.encode()));
    }
    let NotMade(why) = base(&mut world, Some("one-more"), false).unwrap_err();
    assert!(why.contains("1000 names"), "{why}");
    base(&mut world, None, true).unwrap();
    for nth in 2..PINS_MAX as u64 {
        let pin = numbered(&pins_dir(LOG), 1_000_000 + nth);
        world.store.set_object(&pin, Some(Vec::new()));
    }
    let NotMade(why) = base(&mut world, None, true).unwrap_err();
    assert!(why.contains("1000 pins"), "{why}");
    base(&mut world, None, false).unwrap();
    assert_eq!(seen(&world.store, Depth::Lists).names.len(), NAMES_MAX);
}

#[test]
fn a_name_that_is_not_as_it_was_put_is_told_and_hinders_no_restore() {
    let (world, pinned) = with_pinned();
    let object = BaseName::parse("good").unwrap().object(LOG);
    for wrong in [&b"x"[..], b"bsd-archive-name 2\nlater\n", b""] {
        world.store.set_object(&object, Some(wrong.to_vec()));
        let stranger = format!("{}NOT-A-NAME", names_dir(LOG));
        world.store.set_object(&stranger, Some(Vec::new()));
        for depth in [Depth::Lists, Depth::Everything] {
            let all = seen(&world.store, depth);
            let bad: Vec<_> = all.bad.iter().map(|bad| bad.name.as_str()).collect();
            assert_eq!(bad.len(), 2, "{bad:?}");
            assert!(bad.contains(&&*object) && bad.contains(&&*stranger));
        }
        assert!(world.check(Until::End).is_some());
        assert!(world.check(Until::Base(pinned.base)).is_some());
        let name = BaseName::parse("good").unwrap();
        let found = find(&world.store.reader(), LOG, &name);
        assert!(matches!(found, Err(RestoreError::Bad { .. })), "{found:?}");
    }
}

#[test]
fn a_name_is_encrypted_as_other_objects_are_and_a_pin_needs_no_key() {
    let mut world = World::new(1);
    let keys: Vec<Key> = keys().to_vec();
    let codec = Codec::default().compressing(Some(1)).encrypting_for(keys);
    world.store = world.store.with_codec(codec);
    world.start();
    world.put(100);
    let made = base(&mut world, Some("secret"), true).unwrap();
    more(&mut world);
    let name = BaseName::parse("secret").unwrap();
    let object = world.store.object(&name.object(LOG)).unwrap();
    assert!(is_sealed(&object), "{object:?}");
    assert_eq!(find(&world.store.reader(), LOG, &name).unwrap(), made.base);
    world.sizes.base_min = 0;
    base(&mut world, None, false).unwrap();
    expire(&world, ALL).unwrap();
    assert_apart(&world.store, &[state(made)]);
    assert_restored(&world, state(made));
    // Without a key.
    let closed = world.store.with_codec(Codec::default());
    match find(&closed.reader(), LOG, &name) {
        Err(RestoreError::Store(trouble)) => assert!(trouble.lacks_key, "{trouble}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(pinned(&closed, LOG).unwrap(), BTreeSet::from([made.base]));
    let unopened = look(&closed.reader(), LOG, &mut |_, _| ()).unwrap();
    assert_eq!(unopened.bad, []);
    assert!(unpin(&closed.reader(), LOG, made.base).unwrap());
}

/// Two bases that are named at the same time, by a server and by the one that takes over from it.
#[test]
fn a_name_that_another_gives_meanwhile_is_told_and_the_base_is_there() {
    let mut world = archived_with(1 << 30);
    ask(&mut world, Some("x"), true);
    while !world.writer.as_ref().unwrap().is_making_what_was_asked() {
        world.step().unwrap();
    }
    let other = Named {
        base: 1,
        end: world.archived.unwrap(),
    };
    let object = BaseName::parse("x").unwrap().object(LOG);
    world.store.set_object(&object, Some(other.encode()));
    world.archive();
    let why = world
        .writer
        .as_mut()
        .unwrap()
        .answer()
        .unwrap()
        .unwrap_err()
        .0;
    assert!(why.contains("without a name, and pinned"), "{why}");
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad.len(), all.pins.len()), (0, 1));
    assert!(world.check(Until::Base(all.pins[0])).is_some());
    let _ = MS_NS;
}

#[test]
fn where_nothing_has_changed_several_bases_have_one_position_and_any_of_them_is_its_state() {
    let mut world = archived_with(1 << 30);
    let made = [true, true, false].map(|is_pinned| base(&mut world, None, is_pinned).unwrap());
    assert!(made.iter().all(|it| it.end == made[0].end));
    let ends = |world: &World| {
        let (restored, _) = world.check(Until::Position(made[0].end)).unwrap();
        assert_eq!(restored.end, made[0].end);
        restored.base
    };
    assert_eq!(
        expire(&world, ALL).unwrap().apart,
        [state(made[0]), state(made[1])]
    );
    assert_eq!(ends(&world), made[2].base, "it is in the chain, too");
    more(&mut world);
    expire(&world, ALL).unwrap();
    assert_apart(&world.store, &[state(made[0]), state(made[1])]);
    assert_eq!(ends(&world), made[1].base);
}
