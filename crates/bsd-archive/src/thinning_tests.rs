//! One state of each day and of each week stays when everything around it has expired.

use std::collections::BTreeMap;

use super::Until;
use super::apart::State;
use super::apart_tests::{
    assert_apart, assert_restored, base, expire, found, more, refusal, seen, state,
};
use super::expire::{Keep, Plan, Step, plan};
use super::format::{BaseList, HEAD_SIZE, bases_dir, chain_dir, kept_dir, numbered, part_name};
use super::histories::{LOG, World};
use super::levels::{Levels, pass};
use super::store::Store;
use super::survey::Depth;
use super::tests::archived_with;
use bsd::clock::utc;
use bsd::storage::disk::sim::Crash;

const HOUR_MS: u64 = 3_600_000;
const DAY_NS: u64 = 24 * HOUR_MS * 1_000_000;
/// The 11th of January 2027, a Monday: the clock of the tests begins four days later.
const MONDAY: u64 = 20_829;

/// Three days in full, and a base for each of ten days and of four weeks.
const KEEP: Keep = Keep {
    age_ns: 3 * DAY_NS,
    bases: 1,
    days: 10,
    weeks: 4,
};

/// A day with two bases, at 14 and at 20.
fn day(world: &mut World, made: &mut Vec<State>) {
    for _ in 0..2 {
        world.put(700);
        world.pass(6 * HOUR_MS);
        made.push(state(base(world, None, false).unwrap()));
    }
    world.pass(12 * HOUR_MS - 30_000);
    world.put(10);
    world.archive();
}

fn days(count: u64) -> (World, Vec<State>) {
    let mut world = archived_with(1 << 30);
    let mut made = Vec::new();
    for _ in 0..count {
        day(&mut world, &mut made);
    }
    (world, made)
}

/// The states before the base `oldest` that are the last ones of their day or week, of those that count.
fn wanted(world: &World, made: &[State], oldest: u64) -> Vec<State> {
    let end = world.now.wall_ns / DAY_NS;
    let week_of = |day: u64| (day - MONDAY) / 7;
    let (mut of_days, mut of_weeks) = (BTreeMap::new(), BTreeMap::new());
    for state in made {
        let day = state.wall_ns / DAY_NS;
        of_days.insert(utc(state.wall_ns)[..10].to_owned(), (day, *state));
        of_weeks.insert(week_of(day), *state);
    }
    let of_days = of_days.into_values();
    let of_days = of_days.filter(|(day, _)| end - day < KEEP.days);
    let of_weeks = of_weeks.into_iter();
    let of_weeks = of_weeks.filter(|(week, _)| week_of(end) - week < KEEP.weeks);
    let all = of_days.map(|it| it.1).chain(of_weeks.map(|it| it.1));
    let all: BTreeMap<u64, State> = all.map(|state| (state.base, state)).collect();
    all.into_values()
        .filter(|state| state.base < oldest)
        .collect()
}

fn damage(world: &World, state: State) -> String {
    let link = world.store.object(&numbered(&chain_dir(LOG), state.base));
    let list = BaseList::decode(&link.unwrap()[HEAD_SIZE..]).unwrap();
    let file = list.files.last().unwrap();
    let (offset, part) = file.parts().last().unwrap();
    let name = part_name(LOG, &file.name, offset, part);
    world.store.set_object(&name, None);
    name
}

#[test]
fn day_after_day_the_last_state_of_each_day_and_week_stays_and_nothing_else() {
    let (mut world, mut made) = days(20);
    let mut oldest = 0;
    for nth in 0..40 {
        day(&mut world, &mut made);
        let plan = expire(&world, KEEP).unwrap();
        assert!(world.now.wall_ns - plan.from_wall_ns >= KEEP.age_ns);
        let wanted = wanted(&world, &made, plan.base);
        assert_eq!(plan.apart, wanted, "day {nth}");
        oldest = oldest.max((world.now.wall_ns - wanted[0].wall_ns) / DAY_NS);
        assert_apart(&world.store, &wanted);
        assert_eq!(expire(&world, KEEP), None);
        if nth % 8 > 0 {
            continue;
        }
        for state in &made {
            let is_there = wanted.contains(state) || state.base >= plan.base;
            match is_there {
                true => assert_restored(&world, *state),
                false => assert!(world.check(Until::Base(state.base)).is_none()),
            }
        }
        let (first, second) = (wanted[1], wanted[2]);
        for until in [
            Until::Wall(second.wall_ns - 1),
            Until::Link(second.base - 1),
            Until::Position(made[made.iter().position(|it| *it == second).unwrap() - 1].at),
        ] {
            let why = refusal(&world, until);
            for state in [first, second] {
                assert!(why.contains(&format!("base:{}", state.base)), "{why}");
            }
        }
        // Servers, standbys and passes that join links do not care for it.
        let levels = Levels {
            fine_ns: 0,
            few: 3,
            ..Levels::default()
        };
        let now = world.now.wall_ns;
        let joined = pass(&world.store.reader(), LOG, levels, now, &mut |_, _| true).unwrap();
        assert_eq!(joined.bad, []);
        assert_apart(&world.store, &wanted);
        world.crash(Crash::KeepAll);
        world.start();
        assert!(world.check(Until::End).is_some());
    }
    assert!(oldest > 15, "weeks outlive days: {oldest}");
    // Without the flags nothing of it is kept any more.
    let plain = Keep {
        days: 0,
        weeks: 0,
        ..KEEP
    };
    assert_eq!(expire(&world, plain).unwrap().apart, []);
    assert_apart(&world.store, &[]);
    assert_eq!(world.store.list(&kept_dir(LOG), "").unwrap(), []);
    assert!(world.check(Until::End).is_some());
}

#[test]
fn an_expiry_that_is_interrupted_anywhere_leaves_each_day_and_the_next_one_ends_it() {
    let (mut world, mut made) = days(14);
    expire(&world, KEEP).unwrap();
    for _ in 0..3 {
        day(&mut world, &mut made);
    }
    let (store, now) = (world.store.copy(), world.now);
    let planned = |world: &World| -> Option<Plan> {
        let reader = world.store.reader();
        let found = plan(&reader, LOG, KEEP, now.wall_ns, &mut |_, _| ()).unwrap();
        assert_eq!(found.skipped, []);
        found.plan
    };
    let mut interrupted = 0;
    for calls in 0.. {
        world.store = store.copy();
        let first = planned(&world).unwrap();
        assert_eq!(first.apart, wanted(&world, &made, first.base));
        world.store.set_calls_left(Some(calls));
        let done = first.carry_out(&world.store, &mut |_, _| ());
        world.store.set_calls_left(None);
        let all = seen(&world.store, Depth::Everything);
        assert_eq!((all.bad, all.lost), (vec![], vec![]), "after {calls} calls");
        for state in &first.apart {
            let (restored, _) = world.check(Until::Base(state.base)).unwrap();
            assert_eq!(restored.end, state.at);
        }
        if let Some(again) = planned(&world) {
            assert_eq!((&again.apart, again.base), (&first.apart, first.base));
            again.carry_out(&world.store, &mut |_, _| ()).unwrap();
        }
        assert_apart(&world.store, &first.apart);
        if done.is_ok() {
            break;
        }
        interrupted += 1;
    }
    assert!(interrupted > 5, "{interrupted}");
}

#[test]
fn another_base_of_the_day_stays_for_one_that_is_damaged() {
    let (world, made) = days(8);
    // The third day has two.
    let (other, last) = (made[4], made[5]);
    let keep = Keep { weeks: 0, ..KEEP };
    let part = damage(&world, last);
    let found = found(&world, keep);
    assert_eq!(found.skipped.len(), 1);
    assert_eq!(found.skipped[0].name, part);
    let plan = found.plan.unwrap();
    assert!(plan.base > last.base);
    assert!(plan.apart.contains(&other) && !plan.apart.contains(&last));
    plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    assert_apart(&world.store, &plan.apart);
    assert_restored(&world, other);
}

#[test]
fn where_the_only_base_of_a_day_is_damaged_the_links_before_it_stay() {
    let (world, made) = days(8);
    let (before, other, last) = (made[3], made[4], made[5]);
    damage(&world, other);
    damage(&world, last);
    let found = found(&world, Keep { weeks: 0, ..KEEP });
    assert_eq!(found.skipped.len(), 2, "{found:?}");
    let plan = found.plan.unwrap();
    assert_eq!(plan.base, before.base, "the last one before that day");
    plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    let (restored, _) = world.check(Until::Position(last.at)).unwrap();
    assert_eq!((restored.base, restored.end), (before.base, last.at));
}

/// Change a byte of the list of a base. Returns its link, as it was.
fn damage_list(world: &World, state: State) -> (String, Vec<u8>) {
    let name = numbered(&chain_dir(LOG), state.base);
    let sound = world.store.object(&name).unwrap();
    let mut changed = sound.clone();
    *changed.last_mut().unwrap() ^= 1;
    world.store.set_object(&name, Some(changed));
    (name, sound)
}

#[test]
fn a_base_whose_list_cannot_be_read_is_spared_where_its_day_has_another() {
    let (world, made) = days(8);
    let (other, last) = (made[4], made[5]);
    let (name, _) = damage_list(&world, last);
    let found = found(&world, Keep { weeks: 0, ..KEEP });
    let skipped: Vec<&String> = found.skipped.iter().map(|bad| &bad.name).collect();
    assert_eq!(skipped, [&name]);
    let plan = found.plan.unwrap();
    assert!(plan.base > last.base && plan.apart.contains(&other));
}

#[test]
fn where_the_list_of_the_only_base_of_a_day_cannot_be_read_the_links_before_it_stay() {
    let (world, made) = days(8);
    let (before, other, last) = (made[3], made[4], made[5]);
    damage_list(&world, other);
    damage_list(&world, last);
    // Of this one nothing can be had: no older one is there.
    damage_list(&world, made[0]);
    damage_list(&world, made[1]);
    let plain = Keep {
        days: 0,
        weeks: 0,
        ..KEEP
    };
    assert!(found(&world, plain).plan.unwrap().base > last.base);
    let found = found(&world, Keep { weeks: 0, ..KEEP });
    assert_eq!(found.skipped.len(), 4, "{found:?}");
    let plan = found.plan.unwrap();
    assert_eq!(plan.base, before.base, "the last one before that day");
    plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    let (restored, _) = world.check(Until::Position(last.at)).unwrap();
    assert_eq!((restored.base, restored.end), (before.base, last.at));
}

#[test]
fn nothing_of_a_base_apart_goes_while_its_list_cannot_be_read_and_its_day_has_no_other() {
    let (mut world, mut made) = days(8);
    let keep = Keep { weeks: 0, ..KEEP };
    let apart = made[5];
    assert!(expire(&world, keep).unwrap().apart.contains(&apart));
    let (name, sound) = damage_list(&world, apart);
    for _ in 0..2 {
        day(&mut world, &mut made);
        let found = found(&world, keep);
        assert_eq!(found.skipped[0].name, name);
        found
            .plan
            .unwrap()
            .carry_out(&world.store, &mut |_, _| ())
            .unwrap();
    }
    let changed = world.store.object(&name).unwrap();
    // It is put right again.
    world.store.set_object(&name, Some(sound));
    assert_restored(&world, apart);
    world.store.set_object(&name, Some(changed));
    for _ in 0..8 {
        day(&mut world, &mut made);
    }
    found(&world, keep)
        .plan
        .unwrap()
        .carry_out(&world.store, &mut |_, _| ())
        .unwrap();
    assert_eq!(world.store.object(&name), None, "its day is over");
    assert_eq!(found(&world, keep).skipped, []);
}

#[test]
fn a_hole_is_told_although_other_links_have_expired() {
    let (mut world, _) = days(8);
    let plan = expire(&world, KEEP).unwrap();
    more(&mut world);
    let marks = world.store.list(&bases_dir(LOG), "").unwrap();
    assert!(
        marks
            .iter()
            .all(|mark| mark.name >= numbered(&bases_dir(LOG), plan.base))
    );
    let links = world.store.list(&chain_dir(LOG), "").unwrap();
    let hole = &links[links.len() - 3].name;
    world.store.set_object(hole, None);
    for depth in [Depth::Lists, Depth::Everything] {
        let all = seen(&world.store, depth);
        assert_eq!(all.apart, plan.apart);
        assert!(all.bad.iter().any(|bad| bad.name == *hole), "{:?}", all.bad);
    }
}

/// All orders of `first` steps of one run and `second` of another one; true: the first one goes on.
fn orders(first: usize, second: usize) -> Vec<Vec<bool>> {
    if first == 0 || second == 0 {
        return vec![[vec![true; first], vec![false; second]].concat()];
    }
    let after = |is_first: bool, rest: Vec<Vec<bool>>| {
        let rest = rest.into_iter();
        rest.map(move |rest| [vec![is_first], rest].concat())
    };
    let of_first = after(true, orders(first - 1, second));
    let of_second = after(false, orders(first, second - 1));
    of_first.chain(of_second).collect()
}

/// The steps of a run, of which those that put marks belong together: of each base alone it matters
/// whether its mark comes before or after a step of the other run.
fn blocks(plan: &Plan) -> Vec<Vec<Step>> {
    let mut steps = plan.steps();
    let begin = steps.iter().position(|step| *step == Step::Begin).unwrap();
    let rest = steps.split_off(begin + 1);
    let rest = rest.into_iter().map(|step| vec![step]);
    std::iter::once(steps).chain(rest).collect()
}

/// Each state is restored exactly, or refused; nothing is damaged, and what is marked is there.
fn assert_whole_or_gone(world: &World, made: &[State], what: &str) {
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.lost), (vec![], vec![]), "{what}");
    for state in made {
        if let Some((restored, _)) = world.check(Until::Base(state.base)) {
            assert_eq!(restored.end, state.at, "{what}");
        }
    }
    for mark in world.store.list(&kept_dir(LOG), "").unwrap() {
        let name = mark.name.rsplit_once('/').unwrap().1.to_owned();
        let link = world.store.object(&format!("{}{name}", chain_dir(LOG)));
        assert!(link.is_some(), "{what}: {} keeps nothing", mark.name);
    }
    assert!(world.check(Until::End).is_some(), "{what}");
}

/// One keeps a base for a day, and the other one for the week, which has a later one of that day; or the
/// other one keeps none, or more links.
#[test]
fn two_expiries_with_other_flags_leave_each_base_whole_or_gone_in_any_order_of_their_steps() {
    let (mut world, _) = days(8);
    let (store, now) = (world.store.copy(), world.now);
    let keep = |age: u64, days, weeks| Keep {
        age_ns: age * DAY_NS,
        bases: 1,
        days,
        weeks,
    };
    let planned = |world: &World, keep: Keep| {
        let reader = world.store.reader();
        let found = plan(&reader, LOG, keep, now.wall_ns, &mut |_, _| ()).unwrap();
        found.plan
    };
    let pairs = [
        (keep(2, 5, 0), keep(2, 0, 0)),
        (keep(2, 6, 0), keep(3, 0, 2)),
        (keep(4, 0, 2), keep(2, 6, 0)),
    ];
    let (mut gone, mut refused) = (0, 0);
    for (one, other) in pairs {
        world.store = store.copy();
        let plans = [one, other].map(|keep| planned(&world, keep).unwrap());
        assert!(!plans[0].apart.is_empty() && plans[0].apart != plans[1].apart);
        let steps = [blocks(&plans[0]), blocks(&plans[1])];
        let orders = orders(steps[0].len(), steps[1].len());
        assert!(orders.len() >= 70, "eight over four: {}", orders.len());
        let both = plans.iter().flat_map(|plan| &plan.apart);
        let both: Vec<State> = both.copied().collect();
        for (nth, order) in orders.iter().enumerate() {
            world.store = store.copy();
            let mut at = [steps[0].iter(), steps[1].iter()];
            let until = if nth % 5 == 0 {
                nth % order.len()
            } else {
                order.len()
            };
            for is_first in &order[..until] {
                let which = usize::from(!is_first);
                for step in at[which].next().unwrap() {
                    let done = plans[which].take(step, &world.store);
                    refused += u64::from(done.is_err());
                }
            }
            if until < order.len() {
                // Both were interrupted. The next run for which something has aged ends it.
                let later = Keep { age_ns: 0, ..one };
                let plan = planned(&world, later).unwrap();
                plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
            }
            assert_whole_or_gone(&world, &both, &format!("{one:?}, {other:?}, {order:?}"));
            let there = plans[0].apart.iter();
            gone += there
                .filter(|it| world.check(Until::Base(it.base)).is_none())
                .count();
        }
    }
    assert!(gone > 100 && refused > 100, "{gone}, {refused}");
}

/// One answer of a store may be wrong: a state that is there stays.
#[test]
fn an_expiry_that_hears_wrongly_that_a_base_is_gone_leaves_its_mark() {
    let (world, _) = days(8);
    let keep = Keep { days: 5, ..KEEP };
    let found = plan(
        &world.store.reader(),
        LOG,
        keep,
        world.now.wall_ns,
        &mut |_, _| (),
    );
    let plan = found.unwrap().plan.unwrap();
    plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
    world.store.set_lies_for(1);
    for _ in 0..1000 {
        // A list may be wrong, too.
        plan.take(&Step::Settle, &world.store).unwrap();
    }
    world.store.set_lies_for(0);
    assert!(!plan.apart.is_empty());
    for state in &plan.apart {
        let mark = numbered(&kept_dir(LOG), state.base);
        assert!(world.store.copy().get(&mark).unwrap().is_some(), "{mark}");
    }
}
