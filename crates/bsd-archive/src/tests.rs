//! Faults known from other archives, each in the name of a test.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::chain::{Bad, is_archive, logs};
use super::follow::{Follower, Setup};
use super::forget::{forget, objects};
use super::format::{HEAD_SIZE, Head, Kind, bases_dir, chain_dir, numbered, parts_dir};
use super::histories::{LOG, World};
use super::sim::SimStore;
use super::store::Store;
use super::survey::{Depth, Survey, survey};
use super::writer::{Done, Failure};
use super::{RestoreError, Until};
use bsd::engine::Options;
use bsd::protocol::Command;
use bsd::storage::disk::sim::Crash;
use bsd::storage::format::LogId;
use bsd::storage::{SimFs, SyncPolicy};
use bsd::types::{JobId, Position};

/// A server with some jobs, all of them archived.
fn archived() -> World {
    archived_with(1 << 30)
}

/// A standby that has followed nothing yet, and reads `store` in the time of `wait`.
pub(super) fn follower(store: Arc<dyn Store>, wait: &SimStore) -> Follower {
    Follower::new(Setup {
        store,
        wait: Arc::new(wait.clone()),
        log: None,
        options: Options {
            dir: Some("/standby".into()),
            fs: Arc::new(SimFs::new(5)),
            ..Options::default()
        },
        node: "standby".to_owned(),
    })
}

/// The same; a new base is made after `base_min` bytes.
pub(super) fn archived_with(base_min: u64) -> World {
    let mut world = World::new(1);
    world.sizes.base_min = base_min;
    world.sizes.links_max = u64::MAX;
    world.sizes.frames_max = 1 << 20;
    world.start();
    for _ in 0..5 {
        world.put(100);
        world.archive();
    }
    world
}

fn links(world: &World) -> Vec<String> {
    let names = world.store.names().into_iter();
    names
        .filter(|name| name.starts_with(&chain_dir(LOG)))
        .collect()
}

fn seen(store: &SimStore, depth: Depth) -> Survey {
    survey(&store.reader(), LOG, depth, &mut |_, _| ()).unwrap()
}

fn kind(world: &World, name: &str) -> Kind {
    Head::decode(&world.store.object(name).unwrap())
        .unwrap()
        .0
        .kind
}

/// The position up to which everything can be restored.
fn end(world: &World) -> Position {
    world.check(Until::End).unwrap().0.end
}

pub(super) fn fenced(world: &mut World) -> bool {
    for _ in 0..100 {
        match world.step() {
            Ok(Done::Nothing) => return false,
            Ok(_) => {}
            Err(Failure::Fenced(_)) => return true,
            Err(failure) => panic!("{failure}"),
        }
    }
    panic!("the writer does not come to an end");
}

#[test]
fn a1_a_put_whose_answer_was_lost_is_taken_for_the_writers_own() {
    let mut world = archived();
    let before = links(&world).len();
    world.store.set_faults(60);
    for _ in 0..20 {
        world.put(100);
        world.archive();
    }
    world.store.set_faults(0);
    assert!(links(&world).len() >= before + 20);
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.spans.len(), all.gaps.len()), (vec![], 1, 0));
    assert_eq!(
        end(&world),
        world.writer.as_ref().unwrap().archived().unwrap()
    );
}

#[test]
fn a2_of_two_writers_the_one_that_began_first_stops_and_the_chains_are_not_merged() {
    let mut world = archived();
    // The same directory on another machine, which has taken over.
    let mut other = World::new(2);
    other.sizes = world.sizes;
    other.disk = world.disk.crash_image(Crash::KeepAll);
    other.store = world.store.clone();
    other.start_with_past_of(&world);
    other.archive();
    other.put(77);
    other.archive();
    let taken = world.store.names();
    world.put(100);
    assert!(fenced(&mut world));
    assert!(fenced(&mut world), "for good");
    assert_eq!(
        world.store.names(),
        taken,
        "nothing was put, and nothing overwritten"
    );
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.epoch), (vec![], 2));
    other.check(Until::End).unwrap();
}

#[test]
fn a2_a_writer_without_work_notices_that_another_has_taken_over() {
    let mut world = archived();
    world.writer.as_mut().unwrap().check_owner().unwrap();
    let mut other = World::new(2);
    other.sizes = world.sizes;
    other.disk = world.disk.crash_image(Crash::KeepAll);
    other.store = world.store.clone();
    other.start_with_past_of(&world);
    other.archive();
    let asked = world.writer.as_mut().unwrap().check_owner();
    assert!(matches!(asked, Err(Failure::Fenced(_))), "{asked:?}");
}

#[test]
fn a4_after_a_restore_changes_are_archived_and_the_earlier_chain_is_untouched() {
    let mut world = archived();
    let old: Vec<_> = world.store.names();
    let (restored, disk) = world.check(Until::End).unwrap();
    world.go_on_from(&restored, disk);
    world.start();
    world.put(100);
    world.archive();
    for name in old {
        assert_eq!(world.store.object(&name), world.store.copy().object(&name));
    }
    let all = seen(&world.store, Depth::Everything);
    assert_eq!(
        (all.bad, all.spans.len(), all.spans[0].bases),
        (vec![], 1, 1),
        "the history goes on"
    );
    let (again, _) = world.check(Until::End).unwrap();
    assert_eq!(again.jobs, 6);
    let before = world.check(Until::Wall(restored.wall_ns)).unwrap();
    assert_eq!(before.0.jobs, 5);
}

/// The store was away for too long, and has come back.
pub(super) fn fall_into_a_gap(world: &mut World) {
    world.hold_max = 1;
    world.crash(Crash::KeepAll);
    world.start();
    world.archive();
    world.store.set_away(true);
    // More than the open segment and the one before it, which is held in any case.
    for _ in 0..60 {
        world.put(5000);
    }
    let _ = world.step();
    assert_eq!(world.gaps, 1);
    assert!(world.writer.as_ref().unwrap().is_in_gap());
    world.store.set_away(false);
}

#[test]
fn a5_a_writer_that_was_away_for_too_long_names_a_gap_and_begins_a_new_base() {
    let mut world = archived();
    fall_into_a_gap(&mut world);
    world.archive();
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.gaps.len(), all.spans.len()), (vec![], 1, 2));
    world.check(Until::End).unwrap();
    // In the gap nothing is given out for the whole.
    let gap = links(&world)
        .into_iter()
        .find(|name| kind(&world, name) == Kind::Gap);
    let bytes = world.store.object(&gap.unwrap()).unwrap();
    let wall_ns = Head::decode(&bytes).unwrap().0.wall_ns;
    match world.restored(Until::Wall(wall_ns)) {
        Err(RestoreError::Refused(why)) => assert!(why.contains("gap"), "{why}"),
        other => panic!("{other:?}"),
    }
    world.check(Until::Position(all.gaps[0])).unwrap();
    // The base after it is damaged: that is said, and not that it is missing.
    let base = numbered(&chain_dir(world.log), all.spans[1].base);
    world.store.set_object(&base, Some(vec![1; 100]));
    match world.restored(Until::End) {
        Err(RestoreError::Bad {
            bad,
            sound: Some(at),
        }) => assert_eq!((bad.name, at), (base, all.gaps[0])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a5_one_wrong_answer_about_the_last_link_makes_no_gap() {
    let mut world = archived();
    world.store.set_lies_for(3600);
    for _ in 0..500 {
        world.writer.as_mut().unwrap().doubt();
        match world.step() {
            // The marker of the archive is read once: what is wrong with it is tried again.
            Ok(Done::Nothing) | Err(Failure::Trouble(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a5_a_restart_goes_on_where_the_chain_was_without_a_gap_and_without_a_new_base() {
    let mut world = archived();
    for how in [
        Crash::KeepAll,
        Crash::DropUnsynced,
        Crash::Random { seed: 3 },
    ] {
        world.put(50);
        world.crash(how);
        world.start();
        world.put(60);
        world.archive();
    }
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.gaps.len(), all.spans.len()), (vec![], 0, 1));
    assert_eq!((all.spans[0].bases, all.epoch), (1, 4));
    world.check(Until::End).unwrap();
}

/// The restore fails and names the object, and what lies before it can be had.
fn names_what_is_bad(spoil: impl Fn(&SimStore, &str, Vec<u8>), depths: &[Depth]) {
    let mut world = archived();
    world.put(50);
    world.archive();
    let names = links(&world);
    let frames = names
        .iter()
        .filter(|name| kind(&world, name) == Kind::Frames);
    let name = frames.clone().nth(2).unwrap();
    let before = frames.clone().nth(1).unwrap();
    let sound = Head::decode(&world.store.object(before).unwrap())
        .unwrap()
        .0
        .to;
    spoil(&world.store, name, world.store.object(name).unwrap());
    for depth in depths {
        let all = seen(&world.store, *depth);
        assert!(all.bad.iter().any(|bad| bad.name == *name), "{:?}", all.bad);
        assert_eq!(all.spans[0].to, sound);
    }
    match world.restored(Until::End) {
        Err(RestoreError::Bad {
            bad: Bad { name: bad, .. },
            sound: Some(at),
        }) => {
            assert_eq!((&bad, at), (name, sound));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.check(Until::Position(sound)).unwrap().0.end, sound);
}

const BOTH: &[Depth] = &[Depth::Lists, Depth::Everything];
/// Checks that read objects, because no list shows the fault.
const READ: &[Depth] = &[Depth::Everything];

#[test]
fn a6_a_missing_link_is_named_and_what_follows_it_is_not_used() {
    names_what_is_bad(|store, name, _| store.set_object(name, None), BOTH);
}

#[test]
fn a6_a_cut_link_is_named_and_not_taken_for_the_end() {
    let cut = |store: &SimStore, name: &str, mut bytes: Vec<u8>| {
        bytes.truncate(HEAD_SIZE + 8);
        store.set_object(name, Some(bytes));
    };
    names_what_is_bad(cut, READ);
}

#[test]
fn a6_a_flipped_bit_is_found() {
    let flip = |store: &SimStore, name: &str, mut bytes: Vec<u8>| {
        bytes[HEAD_SIZE + 5] ^= 4;
        store.set_object(name, Some(bytes));
    };
    names_what_is_bad(flip, READ);
}

#[test]
fn a6_a_link_that_is_a_copy_of_another_or_of_another_log_or_of_a_dead_epoch_is_named() {
    let change = |change: fn(&mut Head)| {
        move |store: &SimStore, name: &str, bytes: Vec<u8>| {
            let (mut head, _, body) = Head::decode(&bytes).unwrap();
            change(&mut head);
            store.set_object(name, Some(head.encode(body).0));
        }
    };
    names_what_is_bad(change(|head| head.number -= 1), READ);
    names_what_is_bad(change(|head| head.log.0[0] ^= 1), READ);
    names_what_is_bad(change(|head| head.epoch -= 1), READ);
    names_what_is_bad(change(|head| head.previous ^= 1), READ);
}

#[test]
fn a6_a_base_that_cannot_be_used_is_named_and_an_older_one_takes_its_place() {
    let mut world = archived_with(0);
    for _ in 0..40 {
        world.put(3000);
        world.archive();
    }
    let marks = world.store.list(&bases_dir(LOG), "").unwrap();
    assert!(marks.len() > 1, "{marks:?}");
    let newest = marks
        .last()
        .unwrap()
        .name
        .rsplit('/')
        .next()
        .unwrap()
        .to_owned();
    let name = format!("{}{newest}", chain_dir(LOG));
    let list = world.store.object(&name).unwrap();
    let list = super::format::BaseList::decode(&list[HEAD_SIZE..]).unwrap();
    let (file, part) = (
        list.files.last().unwrap(),
        list.files.last().unwrap().parts[0],
    );
    let part = super::format::part_name(LOG, &file.name, 0, part);
    world.store.set_object(&part, None);
    let all = seen(&world.store, Depth::Everything);
    assert!(all.bad.iter().any(|bad| bad.name == part), "{:?}", all.bad);
    let (restored, _) = world.check(Until::End).unwrap();
    assert_eq!(restored.skipped[0].name, part);
    assert!(restored.end > list.end);
}

#[test]
fn a7_the_queue_goes_on_while_the_store_is_away_and_what_is_held_is_bounded() {
    let mut world = archived();
    world.store.set_away(true);
    world.hold_max = 200_000;
    world.crash(Crash::KeepAll);
    world.start();
    for _ in 0..200 {
        let id = world.put(5000);
        world.command(Command::Delete(JobId(id)));
        assert!(matches!(world.step(), Err(Failure::Trouble(_))));
    }
    let held = world.writer.as_ref().unwrap().lag();
    assert!(held < 200_000 + (64 << 10), "{held}");
    world.store.set_away(false);
    world.archive();
    world.check(Until::End).unwrap();
}

/// A fault of a store that lasts a whole day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ill {
    Away,
    Full,
    /// A call takes twenty minutes.
    Slow,
    /// Most calls fail, in any way.
    Failing,
}

/// The most that the log held for the archive in a day with a change a minute, and the most that was
/// on the disk, with what was held of files that compaction had removed.
fn day(ill: Option<Ill>) -> (u64, u64) {
    let mut world = archived();
    world.hold_max = 300_000;
    world.crash(Crash::KeepAll);
    world.start();
    world.archive();
    world.store.set_away(ill == Some(Ill::Away));
    world.store.set_full(ill == Some(Ill::Full));
    world
        .store
        .set_faults(if ill == Some(Ill::Failing) { 90 } else { 0 });
    let (mut held, mut used) = (0, 0);
    for minute in 0..24 * 60 {
        world.pass(60_000);
        let id = world.put(3000);
        world.command(Command::Delete(JobId(id - 3)));
        if ill != Some(Ill::Slow) || minute % 20 == 0 {
            match world.step() {
                Ok(_) | Err(Failure::Trouble(_)) => {}
                Err(failure) => panic!("{ill:?}: {failure}"),
            }
        }
        let writer = world.writer.as_ref().unwrap();
        held = held.max(writer.lag());
        used = used.max(world.disk.used());
    }
    let writer = world.writer.as_ref().unwrap();
    let is_gap_told = writer.is_in_gap() || writer.lost().is_some();
    match ill {
        Some(Ill::Away | Ill::Full) => assert!(is_gap_told, "{ill:?}"),
        Some(Ill::Slow | Ill::Failing) => {}
        None => assert!(!is_gap_told && world.gaps == 0),
    }
    world.store.set_away(false);
    world.store.set_full(false);
    world.store.set_faults(0);
    world.archive();
    let writer = world.writer.as_ref().unwrap();
    assert_eq!((writer.lag(), writer.is_in_gap()), (0, false), "{ill:?}");
    let all = seen(&world.store, Depth::Everything);
    assert_eq!(
        (all.bad, all.gaps.len() as u64),
        (vec![], world.gaps),
        "{ill:?}"
    );
    world.check(Until::End).unwrap();
    (held, used)
}

#[test]
fn a7_a10_a_day_of_a_store_that_is_not_well_costs_no_more_than_the_bound_and_is_caught_up_with() {
    const SEGMENTS: u64 = 3 * (64 << 10);
    let (held, used) = day(None);
    assert!(held < 10_000, "{held}");
    for ill in [Ill::Away, Ill::Full, Ill::Slow, Ill::Failing] {
        let of_ill = day(Some(ill));
        assert!(of_ill.0 < 300_000 + SEGMENTS, "{ill:?}: {of_ill:?}");
        let room = used + 300_000 + SEGMENTS;
        assert!(of_ill.1 <= room, "{ill:?}: {of_ill:?}, {used} without");
    }
}

#[test]
fn a8_no_object_is_ever_overwritten() {
    let mut world = archived();
    world.store.set_faults(30);
    let mut known = std::collections::BTreeMap::new();
    for round in 0..40 {
        for name in world.store.names() {
            let bytes = world.store.object(&name).unwrap();
            let before = known.insert(name, bytes.clone());
            assert!(before.is_none_or(|before| before == bytes));
        }
        if round % 10 == 9 {
            world.crash(Crash::Random { seed: round });
            world.start();
        }
        world.put(900);
        world.archive();
    }
}

#[test]
fn a9_a_clock_that_goes_back_changes_nothing_but_the_times_that_can_be_asked_for() {
    let mut world = archived();
    world.now.wall_ns -= 3600 * 1_000_000_000;
    for _ in 0..5 {
        world.put(100);
        world.archive();
    }
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.spans.len()), (vec![], 1));
    let (restored, _) = world.check(Until::End).unwrap();
    assert_eq!(restored.jobs, 10);
    world.check(Until::Position(restored.end)).unwrap();
}

#[test]
fn a11_a_store_that_overwrites_is_refused_at_the_start() {
    let mut world = World::new(1);
    world.store.ignore_conditions();
    world.start();
    match world.step() {
        Err(Failure::Refused(why)) => assert!(why.contains("If-None-Match"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(links(&world).is_empty());
}

#[test]
fn a12_a_restore_that_was_interrupted_leaves_nothing_and_can_be_run_again() {
    let world = archived();
    let store = world.store.copy();
    let disk = bsd::storage::SimFs::new(1);
    for calls in 0.. {
        store.set_calls_left(Some(calls));
        let fs: Arc<dyn bsd::storage::disk::Fs> = Arc::new(disk.clone());
        let done = super::restore::restore(
            &store.reader(),
            LOG,
            Until::End,
            (&fs, Path::new("/data")),
            world.now,
            &mut |_, _| (),
        );
        match done {
            Ok(restored) => return assert_eq!(restored.jobs, 5),
            Err(RestoreError::Store(_)) => assert!(disk.names("/data").is_err()),
            Err(error) => panic!("{error}"),
        }
        assert!(calls < 1000);
    }
}

#[test]
fn a12_a_writer_that_ends_at_any_call_of_the_store_leaves_a_chain_that_the_next_one_goes_on_with() {
    for calls in 0..40 {
        let mut world = World::new(calls);
        world.start();
        world.put(100);
        world.store.set_calls_left(Some(calls));
        for _ in 0..40 {
            let _ = world.step();
        }
        world.store.set_calls_left(None);
        world.crash(Crash::DropUnsynced);
        world.start();
        world.put(100);
        world.archive();
        let all = seen(&world.store, Depth::Everything);
        assert_eq!(all.bad, vec![], "after {calls} calls");
        assert_eq!(world.check(Until::End).unwrap().0.jobs, 2);
    }
}

#[test]
fn a_moment_before_the_first_base_is_refused() {
    let world = archived();
    for until in [Until::Wall(5), Until::Position(Position::from_bits(5))] {
        assert!(matches!(
            world.restored(until),
            Err(RestoreError::Refused(_))
        ));
    }
    let far = Position::from_bits(u64::MAX);
    assert!(matches!(
        world.restored(Until::Position(far)),
        Err(RestoreError::Refused(_))
    ));
}

#[test]
fn an_idle_log_puts_nothing() {
    let mut world = archived();
    let before = (world.store.names(), world.store.calls());
    for _ in 0..50 {
        assert_eq!(world.step(), Ok(Done::Nothing));
    }
    assert_eq!((world.store.names(), world.store.calls()), before);
    let first = numbered(&chain_dir(LOG), 1);
    assert_eq!(links(&world)[0], first);
}

/// The numbers of the links that are bases, with where each ends.
fn bases(world: &World) -> Vec<(u64, Position)> {
    let heads = links(world).into_iter().map(|name| {
        let (head, ..) = Head::decode(&world.store.object(&name).unwrap()).unwrap();
        head
    });
    let bases = heads.filter(|head| head.kind == Kind::Base);
    bases.map(|head| (head.number, head.to)).collect()
}

/// A crash between the two would hide a base that is there.
#[test]
fn t13_no_base_is_in_the_chain_without_its_mark_whatever_fails() {
    let mut seen = 0;
    for seed in 0..40 {
        let mut world = World::new(seed);
        world.sizes.links_max = 2;
        world.sizes.base_min = 0;
        world.start();
        world.store.set_faults(40);
        for _ in 0..20 {
            world.put(500);
            for _ in 0..8 {
                let _ = world.step();
                for (number, _) in bases(&world) {
                    let mark = numbered(&bases_dir(LOG), number);
                    assert!(world.store.object(&mark).is_some(), "seed {seed}: {mark}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 0);
}

/// A power cut may take back everything that is not durable here.
#[test]
fn t14_a_base_is_put_when_its_end_is_durable_and_not_before() {
    let mut world = World::new(14);
    world.sync = SyncPolicy::Interval(50);
    world.start();
    world.put(100);
    let durable = |world: &World| world.writer.as_ref().unwrap().trail().durable();
    let written = world.past.last().unwrap().0;
    assert!(durable(&world) < written);
    for _ in 0..100 {
        world.step().unwrap();
        let early: Vec<_> = bases(&world)
            .into_iter()
            .filter(|(_, end)| *end > durable(&world))
            .collect();
        assert_eq!(early, []);
    }
    world.archive();
    assert!(durable(&world) >= written && !bases(&world).is_empty());
}

#[test]
fn t15_a_part_of_an_older_base_is_read_back_before_a_newer_one_refers_to_it() {
    let mut world = World::new(15);
    world.sizes.base_min = 1 << 30;
    world.sizes.links_max = 5;
    world.start();
    for _ in 0..5 {
        world.put(2000);
    }
    world.archive();
    let first = bases(&world);
    let parts = world.store.names().into_iter();
    let part = parts.filter(|name| name.starts_with(&parts_dir(LOG))).min();
    let part = part.unwrap();
    let mut rotten = world.store.object(&part).unwrap();
    rotten[100] ^= 1;
    world.store.set_object(&part, Some(rotten));
    for _ in 0..7 {
        world.put(100);
        world.archive();
    }
    let (last, _) = *bases(&world).last().unwrap();
    assert!(last > first[0].0);
    let (restored, _) = world.check(Until::End).unwrap();
    assert_eq!((restored.base, restored.skipped), (last, vec![]));
}

/// The machine is lost again after each call of the store that its writer makes.
#[test]
fn g15_after_a_restore_the_chain_goes_on_without_a_base_and_nothing_archived_is_lost_again() {
    let mut calls = 0;
    loop {
        let mut world = archived();
        let (restored, disk) = world.check(Until::End).unwrap();
        world.go_on_from(&restored, disk);
        world.start();
        world.put(100);
        let before = bases(&world);
        world.store.set_calls_left(Some(calls));
        let is_done = loop {
            match world.step() {
                Ok(Done::Nothing) => break true,
                Ok(_) => {}
                Err(Failure::Trouble(_)) => break false,
                Err(failure) => panic!("{failure}"),
            }
        };
        world.store.set_calls_left(None);
        // `check` holds it against the history.
        let (again, _) = world.check(Until::End).unwrap();
        assert!(again.end >= restored.end && again.missing.is_none());
        assert!(world.writer.as_ref().unwrap().archived() <= Some(again.end) || !is_done);
        if is_done {
            assert_eq!((again.jobs, bases(&world)), (6, before));
            break;
        }
        calls += 1;
    }
    assert!(calls > 8, "{calls} calls");
}

#[test]
fn g15_a_chain_goes_on_through_one_loss_after_another() {
    let mut world = archived();
    let before = bases(&world);
    let mut moments = Vec::new();
    for life in 1..=4 {
        let (restored, disk) = world.check(Until::End).unwrap();
        assert_eq!(restored.jobs, 4 + life);
        moments.push(restored.end);
        world.go_on_from(&restored, disk);
        world.start();
        world.put(100);
        world.archive();
        // A restart in between goes on as any.
        world.crash(Crash::DropUnsynced);
        world.start();
        world.archive();
    }
    assert_eq!(bases(&world), before);
    for (life, end) in moments.iter().enumerate() {
        let (earlier, _) = world.restored(Until::Position(*end)).unwrap();
        assert_eq!((earlier.end, earlier.jobs), (*end, 5 + life as u64));
    }
    assert!(moments.is_sorted());
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.spans.len(), all.gaps.len()), (vec![], 1, 0));
}

/// A log that was restored to an earlier moment is not where the chain stands.
#[test]
fn g15_where_a_base_is_needed_a_loss_before_it_restores_the_last_good_state_and_says_what_is_missing()
 {
    let mut world = archived();
    let earlier = world.past[world.past.len() / 2].0;
    let (restored, disk) = world.check(Until::Position(earlier)).unwrap();
    assert!(restored.jobs < 5);
    world.go_on_from(&restored, disk);
    world.start();
    world.put(100);
    let before = bases(&world);
    // The claim, and not the base.
    while world.writer.as_ref().unwrap().epoch().is_none() {
        world.step().unwrap();
    }
    let writer = world.writer.as_ref().unwrap();
    assert!(writer.is_in_gap() && bases(&world) == before);
    let (again, disk) = world.check(Until::End).unwrap();
    assert_eq!(again.jobs, 5);
    let missing = again.missing.clone().unwrap();
    assert!(missing.contains("first base was not complete"), "{missing}");
    // Anyone who is restored from there goes on with the chain.
    world.go_on_from(&again, disk);
    world.start();
    world.put(100);
    world.archive();
    assert_eq!(bases(&world), before);
    let (last, _) = world.check(Until::End).unwrap();
    assert_eq!((last.jobs, last.missing), (6, None));
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.spans.len()), (vec![], 1));
}

/// Of two machines that are restored at once, the one that claims the archive last has it.
#[test]
fn g15_of_two_restored_machines_one_goes_on_and_the_other_stops() {
    let mut world = archived();
    let (restored, disk) = world.check(Until::End).unwrap();
    let mut other = World::new(2);
    (other.sizes, other.store) = (world.sizes, world.store.clone());
    other.disk = disk.crash_image(Crash::KeepAll);
    world.go_on_from(&restored, disk);
    other.start_with_past_of(&world);
    world.start();
    world.put(100);
    world.archive();
    other.pass(7);
    other.put(200);
    other.archive();
    assert!(other.writer.as_ref().unwrap().epoch() > world.writer.as_ref().unwrap().epoch());
    world.put(100);
    assert!(fenced(&mut world));
    let (last, _) = other.check(Until::End).unwrap();
    assert_eq!(last.jobs, 6);
    assert_eq!(seen(&world.store, Depth::Everything).bad, []);
}

/// The only way to bound what a primary that is cut off from the store acknowledges.
#[test]
fn g19_puts_are_refused_while_the_archive_is_late_and_all_else_goes_on() {
    let mut world = World::new(19);
    world.lag_max = Some(Duration::from_secs(30));
    world.start();
    let first = world.put(10);
    world.archive();
    world.store.set_away(true);
    world.note_archived();
    let put = Command::Put {
        tube: None,
        pri: 1,
        delay: 0,
        ttr: 1,
        body: b"late".into(),
    };
    let second = world.put(10);
    world.pass(29_000);
    let third = world.put(10);
    world.pass(2_000);
    assert_eq!(world.reply(put), "OutOfMemory");
    assert_eq!(world.reply(Command::ReserveJob(JobId(first))), "Reserved");
    assert_eq!(world.reply(Command::Delete(JobId(second))), "Deleted");
    world.store.set_away(false);
    world.archive();
    world.note_archived();
    assert_eq!(world.put(10), third + 1);
}

#[test]
fn g16_a_place_that_is_not_the_archive_any_more_gets_nothing_and_the_chain_goes_on_after_it() {
    let mut world = archived();
    let kept = world.store.copy();
    // A mount point without its disk.
    for name in kept.names() {
        world.store.set_object(&name, None);
    }
    world.put(100);
    world.writer.as_mut().unwrap().doubt();
    for _ in 0..5 {
        match world.step() {
            Err(Failure::Trouble(trouble)) => {
                assert!(trouble.what.contains("mounted"), "{trouble}")
            }
            other => panic!("{other:?}"),
        }
    }
    // A start, too.
    world.crash(Crash::KeepAll);
    world.start();
    for _ in 0..5 {
        assert!(matches!(world.step(), Err(Failure::Trouble(_))));
    }
    assert_eq!(world.store.names(), [] as [String; 0]);
    for name in kept.names() {
        world.store.set_object(&name, kept.object(&name));
    }
    world.archive();
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.spans.len(), all.gaps.len()), (vec![], 1, 0));
    assert_eq!(world.check(Until::End).unwrap().0.jobs, 6);
}

#[test]
fn g16_a_link_that_is_lost_is_noticed_and_healed_by_a_base() {
    let mut world = archived();
    let before = bases(&world).len();
    let last = links(&world).pop().unwrap();
    world.store.set_object(&last, None);
    world.put(100);
    world.writer.as_mut().unwrap().doubt();
    let done = world.step().unwrap();
    assert!(matches!(done, Done::Hole(_)), "{done:?}");
    world.archive();
    assert_eq!(bases(&world).len(), before + 1);
    let (restored, _) = world.check(Until::End).unwrap();
    assert_eq!((restored.jobs, restored.missing), (6, None));
}

/// An empty directory in the place of the data must not begin a log beside the one that it lacks.
#[test]
fn g23_a_second_log_is_not_begun_in_an_archive_unless_that_is_meant() {
    let world = archived();
    for lost in [None, Some("logs/")] {
        let store = world.store.copy();
        for name in store.names() {
            if lost.is_some_and(|lost| name.starts_with(lost)) {
                store.set_object(&name, None);
            }
        }
        let before = store.names();
        let mut other = World::new(23);
        (other.log, other.store) = (LogId([9; 16]), store.clone());
        other.start();
        match other.step() {
            Err(Failure::Refused(why)) => assert!(why.contains("--archive-new-log"), "{why}"),
            done => panic!("{done:?}"),
        }
        assert_eq!(store.names(), before);
        other.writer = other.writer.take().map(|it| it.beside_others(true));
        other.archive();
        assert_eq!(logs(&store).unwrap(), [LOG, LogId([9; 16])]);
        // From now on it is one of them.
        other.crash(Crash::KeepAll);
        other.start();
        other.put(10);
        other.archive();
    }
}

#[test]
fn g23_a_log_that_is_forgotten_leaves_the_others_and_in_the_end_an_empty_place() {
    let world = archived();
    let mut other = World::new(23);
    (other.log, other.store) = (LogId([9; 16]), world.store.clone());
    other.start();
    other.writer = other.writer.take().map(|it| it.beside_others(true));
    other.archive();
    let store = &world.store;
    let forget = |log| {
        let (names, _) = objects(store, log).unwrap();
        forget(store, log, &names, &mut |_, _| ()).unwrap();
    };
    forget(other.log);
    assert_eq!(logs(store).unwrap(), [LOG]);
    assert_eq!(world.check(Until::End).unwrap().0.jobs, 5);
    assert!(is_archive(store).unwrap());
    forget(LOG);
    assert_eq!(store.names(), [] as [String; 0]);
    assert!(!is_archive(store).unwrap());
}
