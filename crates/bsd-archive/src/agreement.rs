//! Every statement about an archive agrees with a restore of it: of archives that simulated servers
//! made, before and after an expiry, sound and damaged. Readers agree too when the store
//! misbehaves.
//!
//! `BSD_AGREEMENT_RUNS` says how many there are; `BSD_ARCHIVE_FIRST` and `BSD_ARCHIVE_SEED` as in
//! `histories`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::chain::{Bad, begin};
use super::expire::{Keep, plan};
use super::follow::{Did, FollowError, Follower, Setup};
use super::format::{Fault, HEAD_SIZE, Head, Kind, chain_dir, numbered};
use super::histories::{LOG, MS_NS, World, any_codec, codecs, each_seed};
use super::links::{Listing, Piece};
use super::reader::{READINGS, Reader, Wait};
use super::restore::{Restored, restore};
use super::sim::SimStore;
use super::store::{Answer, Flight, Listed, Put, Store, Trouble, Want};
use super::survey::{Depth, Survey, Why, survey};
use super::tests::{archived_with, follower};
use super::{RestoreError, Until};
use bsd::engine::Options;
use bsd::random::Random;
use bsd::storage::SimFs;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;
use bsd::types::{Now, Position};

const RUNS: u64 = 500;

fn restored(store: &SimStore, until: Until, now: Now) -> Result<Restored, RestoreError> {
    restored_by(&store.reader(), until, now)
}

fn restored_by(reader: &Reader<'_>, until: Until, now: Now) -> Result<Restored, RestoreError> {
    let fs: Arc<dyn Fs> = Arc::new(SimFs::new(1));
    let to = (&fs, Path::new("/data"));
    restore(reader, LOG, until, to, now, &mut |_, _| ())
}

fn seen(store: &SimStore, depth: Depth) -> Survey {
    survey(&store.reader(), LOG, depth, &mut |_, _| ()).unwrap()
}

/// The links that are there and sound, but for claims that an expiry has left.
fn heads(store: &SimStore) -> Vec<Head> {
    let first = begin(store, LOG).unwrap();
    let pieces = Listing::get(store, LOG, first - 1).unwrap().pieces(first);
    let mut heads = Vec::new();
    let sound = store.copy();
    for piece in pieces.0 {
        let bytes = sound.get(&piece.name(LOG)).unwrap().unwrap();
        match piece.joined {
            None => heads.extend(Head::decode(&bytes).ok().map(|(head, ..)| head)),
            Some(joined) => {
                let parts = joined.parts(LOG, &bytes).unwrap_or_default();
                let sound = parts.into_iter().flatten().map(|(head, ..)| head);
                heads.extend(sound.filter(|head| piece.has(head.number)));
            }
        }
    }
    heads.retain(|head| head.log == LOG);
    heads
}

/// How many histories there are, by what the heads of claims say, whatever their content is, and
/// whether the first of them is there.
fn lives(store: &SimStore) -> usize {
    let first = begin(store, LOG).unwrap();
    let pieces = Listing::get(store, LOG, first - 1).unwrap().pieces(first);
    let sound = store.copy();
    let is_new = |piece: &&Piece| {
        // Of a sealed object the head can be opened although what follows it is damaged.
        let head = sound.get_range(&piece.name(LOG), 0..HEAD_SIZE as u64);
        let bytes = head.unwrap().unwrap();
        let head = Head::decode_alone(&bytes).ok().map(|(head, ..)| head);
        head.is_some_and(|it| it.log == LOG && it.kind == Kind::Claim { goes_on: false })
    };
    let later = pieces.0.iter().filter(|piece| piece.first > first);
    1 + later.filter(is_new).count()
}

/// Whether this says that the link is not as it was put.
fn is_about(bad: &Bad, number: u64) -> bool {
    let words: Vec<&str> = bad.what.split([' ', ':']).collect();
    let number_at = |index: usize| words.get(index)?.parse::<u64>().ok();
    let range = match words.first() {
        Some(&"link") => number_at(1).map(|it| it..=it),
        Some(&"links") => number_at(1).zip(number_at(3)).map(|(from, to)| from..=to),
        _ => None,
    };
    bad.name == numbered(&chain_dir(LOG), number) || range.is_some_and(|it| it.contains(&number))
}

/// Make an archive: servers that start, crash, are restored and expire things, on a bad store.
fn any_archive(random: &mut Random, seed: u64) -> World {
    let (mut world, mut codecs) = (World::new(seed), codecs(seed));
    world.sizes.frames_max = 200 + random.below(4000) as u32;
    world.sizes.base_min = random.below(9000);
    world.hold_max = match random.below(3) {
        0 => random.below(60_000),
        _ => 1 << 20,
    };
    let faults = random.below(2) * random.below(20);
    for _ in 0..1 + random.below(3) {
        world.store = world.store.with_codec(any_codec(&mut codecs));
        world.store.set_faults(faults);
        world.start();
        for _ in 0..random.below(40) {
            world.any_command(random);
            world.pass(random.below(40));
            if random.percent(4) {
                world.store.set_away(random.percent(60));
            }
            if random.percent(6) {
                world.compact(random);
            }
            world.try_steps(random.below(4));
        }
        world.store.set_away(false);
        if random.percent(60) {
            world.archive();
        }
        world.store.set_faults(0);
        world.crash(Crash::Random { seed });
        if random.percent(40) {
            // Also a life that is begun in the middle of another one's positions.
            let until = match random.percent(50) {
                true => Until::End,
                false => Until::Wall(world.now.wall_ns - random.below(900 * MS_NS)),
            };
            if let Some((restored, disk)) = world.check(until) {
                world.go_on_from(&restored, disk);
            }
        }
    }
    // Nothing comes late any more.
    world.store = world.store.copy();
    world
}

/// Spoil some objects. Returns whether lists alone show it.
fn damage(store: &SimStore, random: &mut Random) -> bool {
    let dirs = ["/chain/", "/joined/", "/parts/"];
    let is_object = |name: &&String| dirs.iter().any(|dir| name.contains(dir));
    let names: Vec<String> = store.names().iter().filter(is_object).cloned().collect();
    let mut is_listed = true;
    for _ in 0..1 + random.below(3) {
        let Some(name) = names.get(random.below(names.len().max(1) as u64) as usize) else {
            break;
        };
        let Some(mut bytes) = store.object(name) else {
            continue;
        };
        if random.percent(60) {
            store.set_object(name, None);
        } else if !bytes.is_empty() {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
            store.set_object(name, Some(bytes));
            is_listed = false;
        }
    }
    is_listed
}

/// Positions to ask a restore for: the ends of links, their neighbours, and any others.
fn positions(heads: &[Head], world: &World) -> Vec<Position> {
    let beside = |at: Position| {
        let bits = at.to_bits();
        [bits.saturating_sub(1), bits, bits + 1].map(Position::from_bits)
    };
    let ends = heads.iter().flat_map(|head| [head.from, head.to]);
    let past = world.past_at(world.now.wall_ns).iter().map(|(at, _)| *at);
    let mut all: Vec<Position> = ends.chain(past.step_by(5)).flat_map(beside).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// True if bytes go on at the beginning of a segment, and this position is in front of that.
fn is_between_segments(heads: &[Head], position: Position) -> bool {
    let frames = heads.iter().filter(|head| head.kind == Kind::Frames);
    let in_segment = frames.filter(|head| head.to.segment() == position.segment());
    let last = in_segment.map(|head| head.to).max();
    last.is_none_or(|last| last < position)
}

/// Hold what is said of an archive against what restores do. Returns how many were done, and refused.
fn assert_agrees(world: &World, is_listed: bool) -> (u64, u64) {
    let (store, now) = (&world.store, world.now);
    let all = seen(store, Depth::Everything);
    if is_listed {
        assert_eq!(seen(store, Depth::Lists), all);
    }
    let heads = heads(store);
    let lives = lives(store);
    let (mut done, mut refused) = (0, 0);
    let mut note = |is_done: bool| match is_done {
        true => done += 1,
        false => refused += 1,
    };
    let end = restored(store, Until::End, now);
    assert_eq!(end.is_ok(), all.end.is_some(), "{end:?} {all:#?}");
    if let (Ok(end), Some(at)) = (&end, all.end) {
        // The last link may end inside a frame.
        assert!(end.end <= at, "{end:?} {all:#?}");
    }
    note(end.is_ok());
    for position in positions(&heads, world) {
        let spans = all.spans.iter();
        let is_in = spans
            .clone()
            .any(|it| it.from <= position && position <= it.to);
        match restored(store, Until::Position(position), now) {
            Ok(found) => {
                // A takeover drops what there was of a frame, which one can ask for, too.
                let is_end = all.spans.iter().any(|it| it.to == found.end);
                assert!(
                    is_in || is_end,
                    "{position} is restored: {found:?} {all:#?}"
                );
                assert!(found.end <= position, "{found:?}");
                note(true);
            }
            Err(RestoreError::Refused(why)) if why.contains("more than once") => {
                assert!(lives > 1, "{why}");
                note(false);
            }
            Err(error) => {
                let is_none = lives > 1 || is_between_segments(&heads, position);
                assert!(!is_in || is_none, "{position}: {error} {all:#?}");
                note(false);
            }
        }
    }
    // A link of a gap is one for which nothing can be restored, though a server went on after it.
    let is_of_gap = |head: &&Head| matches!(head.kind, Kind::Gap | Kind::Claim { .. });
    for head in heads.iter().filter(|head| !is_of_gap(head)) {
        let is_bad = all.bad.iter().any(|bad| is_about(bad, head.number));
        let spans = all.spans.iter();
        let is_in = spans
            .clone()
            .any(|it| it.base <= head.number && head.number <= it.link);
        let found = restored(store, Until::Link(head.number), now);
        let says = format!("link {}: {found:?} {all:#?}", head.number);
        assert!(is_bad || found.is_ok() == is_in, "{says}");
        note(found.is_ok());
    }
    (done, refused)
}

/// One archive.
fn history(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let world = any_archive(&mut random, seed);
    let sound = seen(&world.store, Depth::Everything);
    assert_eq!(sound.bad, [], "nothing is damaged");
    let is_hole = |why: &Why| matches!(why, Why::Bad(_));
    assert!(
        !sound.lost.iter().any(|lost| is_hole(&lost.why)),
        "{sound:#?}"
    );
    let mut sums = assert_agrees(&world, true);
    for _ in 0..2 {
        if random.percent(70) {
            world.expire(&mut random);
            if sound.bad.is_empty() {
                assert_eq!(seen(&world.store, Depth::Lists).bad, []);
            }
        }
        if random.percent(50) && seen(&world.store, Depth::Everything).bad.is_empty() {
            world.compact(&mut random);
        }
        let is_listed = match random.percent(50) {
            true => damage(&world.store, &mut random),
            false => true,
        };
        let more = assert_agrees(&world, is_listed);
        sums = (sums.0 + more.0, sums.1 + more.1);
        if !seen(&world.store, Depth::Everything).bad.is_empty() {
            break;
        }
    }
    world.store.set_faults(0);
    sums
}

#[test]
fn g14_what_ls_and_verify_say_of_an_archive_is_what_restores_do() {
    let Some((done, refused)) = each_seed("agreement", ("BSD_AGREEMENT_RUNS", RUNS), history)
    else {
        return;
    };
    println!("{done} restores, {refused} refused");
    assert!(
        done > refused && refused > 0,
        "{done} restores, {refused} refused"
    );
}

/// There is damage behind the head of a sealed claim: a history begins there nevertheless, and a position
/// that it shares with the one before is refused.
#[test]
fn g14_a_claim_of_which_only_the_head_can_be_opened_begins_a_history() {
    for seed in [1124, 1513] {
        history(seed);
    }
}

/// Two links are missing before a base: the last one that can be asked for is the one before them, and
/// not one of the two.
#[test]
fn g14_lists_name_no_missing_link_as_the_last_one_that_can_be_asked_for() {
    history(784);
}

/// A server with a base for every few links.
fn with_bases() -> World {
    let mut world = World::new(1);
    world.sizes.base_min = 1 << 30;
    world.sizes.links_max = 6;
    world.sizes.frames_max = 1 << 20;
    world.start();
    for _ in 0..45 {
        world.put(3000);
        world.archive();
    }
    world
}

#[test]
fn g14_an_archive_is_sound_after_each_expiry() {
    let mut world = with_bases();
    for day in 0..6 {
        for _ in 0..20 {
            world.put(2000 + 100 * day);
            world.archive();
        }
        let keep = Keep {
            age_ns: 300 * MS_NS,
            bases: 2,
            ..Keep::default()
        };
        let wall_ns = world.now.wall_ns;
        let found = plan(&world.store.reader(), LOG, keep, wall_ns, &mut |_, _| ()).unwrap();
        let plan = found.plan.unwrap();
        plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
        for depth in [Depth::Lists, Depth::Everything] {
            let all = seen(&world.store, depth);
            assert_eq!((all.bad, all.lost, all.spans.len()), (vec![], vec![], 1));
            assert_eq!(all.spans[0].from, plan.from);
        }
    }
}

#[test]
fn g14_a_hole_that_a_later_base_has_healed_is_told_once_with_what_it_costs() {
    let world = with_bases();
    let sound = seen(&world.store, Depth::Everything);
    let heads = heads(&world.store);
    let frames = heads.iter().filter(|head| head.kind == Kind::Frames);
    let lost = frames.clone().nth(4).unwrap();
    let name = numbered(&chain_dir(LOG), lost.number);
    world.store.set_object(&name, None);
    for depth in [Depth::Lists, Depth::Everything] {
        let all = seen(&world.store, depth);
        let bad: Vec<&str> = all.bad.iter().map(|bad| &*bad.name).collect();
        assert_eq!(bad, [&*name]);
        let [hole] = &all.lost[..] else {
            panic!("{all:#?}");
        };
        assert_eq!(hole.after, lost.from);
        let [before, after] = &all.spans[..] else {
            panic!("{all:#?}");
        };
        assert_eq!((before.to, Some(after.from)), (lost.from, hole.until));
        assert_eq!((after.to, all.end), (sound.spans[0].to, sound.end));
    }
    assert_agrees(&world, true);
}

/// Of a base that is damaged nothing is missing: the links beside it follow each other.
#[test]
fn g14_a_base_whose_link_is_gone_is_no_hole() {
    let world = with_bases();
    let bases: Vec<Head> = heads(&world.store)
        .into_iter()
        .filter(|head| head.kind == Kind::Base)
        .collect();
    let before = restored(&world.store, Until::End, world.now).unwrap();
    for base in &bases[1..] {
        world
            .store
            .set_object(&numbered(&chain_dir(LOG), base.number), None);
    }
    let all = seen(&world.store, Depth::Everything);
    assert_eq!((all.bad.len(), all.lost.len()), (bases.len() - 1, 0));
    let after = restored(&world.store, Until::End, world.now).unwrap();
    assert_eq!((after.base, after.end), (bases[0].number, before.end));
}

#[test]
fn g21_a_restore_outlasts_a_store_that_is_away_for_minutes() {
    let world = with_bases();
    let wanted = restored(&world.store, Until::End, world.now).unwrap();
    for calls in 0..30 {
        let store = world.store.copy();
        let fails = FailsAfter::new(&store, calls, 240);
        let found = restored_by(&Reader::new(&fails, &store), Until::End, world.now);
        assert_eq!(found.unwrap(), wanted, "after {calls} calls");
        let fails = FailsAfter::new(&store, calls, 240);
        let reader = Reader::new(&fails, &store);
        let all = survey(&reader, LOG, Depth::Everything, &mut |_, _| ()).unwrap();
        assert_eq!(all.bad, []);
    }
    let fails = FailsAfter::new(&world.store, 5, 3600);
    let reader = Reader::new(&fails, &world.store);
    match restored_by(&reader, Until::End, world.now) {
        Err(RestoreError::Store(trouble)) => {
            assert!(trouble.what.contains(" tries in 30"), "{trouble}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn g21_answers_that_are_wrong_now_and_then_are_not_called_damage() {
    let world = with_bases();
    let wanted = restored(&world.store, Until::End, world.now).unwrap();
    for seed in 0..20 {
        let store = world.store.copy_with(seed);
        // For as long as anyone reads.
        store.set_lies_for(1 << 20);
        let all = seen(&store, Depth::Everything);
        assert_eq!((all.bad, all.lost), (vec![], vec![]), "{seed}");
        assert_eq!(restored(&store, Until::End, world.now).unwrap(), wanted);
        let keep = Keep {
            age_ns: 0,
            bases: 1,
            ..Keep::default()
        };
        let found = plan(&store.reader(), LOG, keep, u64::MAX, &mut |_, _| ()).unwrap();
        assert_eq!(found.skipped, []);
    }
}

#[test]
fn g21_a_standby_reads_again_before_it_gives_anything_up() {
    let mut world = with_bases();
    let disk = SimFs::new(5);
    let mut follower = Follower::new(Setup {
        store: Arc::new(world.store.clone()),
        wait: Arc::new(world.store.clone()),
        log: None,
        options: Options {
            dir: Some("/standby".into()),
            segment_size: 64 << 10,
            fs: Arc::new(disk),
            ..Options::default()
        },
        node: "standby".to_owned(),
    });
    while follower.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
    world.put(100);
    world.archive();
    world.put(100);
    world.archive();
    world.put(100);
    world.archive();
    let heads = heads(&world.store);
    let [.., first, second, _] = &heads[..] else {
        panic!("{heads:?}");
    };
    // What the store says for a while, while the standby is asked to take over.
    for (number, is_there) in [(first.number, true), (second.number, false)] {
        let name = numbered(&chain_dir(LOG), number);
        let link = world.store.object(&name).unwrap();
        let mut flipped = link.clone();
        flipped[HEAD_SIZE + 1] ^= 1;
        world.store.set_object(&name, is_there.then_some(flipped));
        let mut tries = 0;
        while tries < READINGS - 1 {
            match follower.promote(world.now, false, &mut |_, _| ()) {
                // What came before it.
                Ok(None) => {}
                Err(FollowError::Trouble(_)) => tries += 1,
                other => panic!("{other:?}"),
            }
        }
        world.store.set_object(&name, Some(link));
    }
    let end = restored(&world.store, Until::End, world.now).unwrap();
    let promoted = loop {
        if let Some(promoted) = follower.promote(world.now, false, &mut |_, _| ()).unwrap() {
            break promoted;
        }
    };
    assert_eq!((promoted.given_up, promoted.at), (None, end.end));
    assert_eq!(follower.figures().restores, 1);
}

/// The same log on another machine, whose clock is an hour behind.
fn with_a_clock_behind() -> (World, World) {
    let mut world = with_bases();
    for _ in 0..100 {
        world.put(3000);
        world.archive();
    }
    world.crash(Crash::KeepAll);
    let early = heads(&world.store)[20].number;
    let (found, disk) = world.check(Until::Link(early)).unwrap();
    let mut other = World::new(2);
    other.sizes = world.sizes;
    other.disk = disk;
    other.store = world.store.clone();
    other.start_with_past_of(&world);
    assert!(found.jobs > 0);
    other.now.wall_ns -= 20_000 * MS_NS;
    for _ in 0..20 {
        other.put(1500);
        other.archive();
    }
    (world, other)
}

#[test]
fn g22_a_time_that_two_servers_had_is_refused_and_each_of_them_can_be_named() {
    let (old, new) = with_a_clock_behind();
    let all = seen(&new.store, Depth::Everything);
    assert_eq!(all.spans.len(), 2, "{all:#?}");
    let overlap: Range<u64> = all.spans[1].from_wall_ns..all.spans[0].to_wall_ns;
    assert!(!overlap.is_empty(), "{all:#?}");
    let now = old.now;
    let ask = |wall_ns| restored(&new.store, Until::Wall(wall_ns), now);
    let why = match ask(overlap.start + (overlap.end - overlap.start) / 2) {
        Err(RestoreError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let named = |why: &str| -> Vec<u64> {
        let links = why.split("link:").skip(1);
        let number = |text: &str| text.split(' ').next()?.parse().ok();
        links.filter_map(number).collect()
    };
    let links = named(&why);
    assert_eq!(links.len(), 2, "{why}");
    for (link, span) in links.iter().zip(&all.spans) {
        let found = restored(&new.store, Until::Link(*link), now).unwrap();
        assert!((span.base..=span.link).contains(&found.base), "{found:?}");
        assert!((span.base..=span.link).contains(link), "{why}");
    }
    // What only one of them had is had as before.
    assert!(ask(all.spans[0].from_wall_ns).is_ok());
    let later = ask(all.spans[1].to_wall_ns.max(all.spans[0].to_wall_ns));
    assert!(later.is_ok(), "{later:?}");
    // So is a position.
    let both = all.spans[1].from.max(all.spans[0].from);
    match restored(&new.store, Until::Position(both), now) {
        Err(RestoreError::Refused(why)) => assert_eq!(named(&why).len(), 2, "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn g22_a_moment_that_cannot_be_is_refused() {
    let mut world = archived_with(1 << 30);
    for _ in 0..60 {
        world.put(3000);
        world.archive();
    }
    let heads = heads(&world.store);
    let frames: Vec<&Head> = heads
        .iter()
        .filter(|head| head.kind == Kind::Frames)
        .collect();
    let turn = frames
        .windows(2)
        .find(|two| two[0].to.segment() != two[1].from.segment());
    let last_of_segment = turn.unwrap()[0].to;
    let refused = |until, words: &str| match restored(&world.store, until, world.now) {
        Err(RestoreError::Refused(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{until:?}: {other:?}"),
    };
    let behind = Position::new(last_of_segment.segment(), 99_999_999);
    refused(Until::Position(behind), "there is no position");
    let end = frames.last().unwrap().to;
    let behind = Position::new(end.segment(), 99_999_999);
    refused(Until::Position(behind), "before");
    refused(Until::Wall(world.now.wall_ns + 1), "in the future");
    refused(Until::Link(heads.len() as u64 + 1), "there is no link");
    assert!(restored(&world.store, Until::Wall(world.now.wall_ns), world.now).is_ok());
    assert!(restored(&world.store, Until::Position(last_of_segment), world.now).is_ok());
}

/// A store that counts what it is asked for at the same time, and goes away once.
#[derive(Debug)]
struct FailsAfter {
    store: SimStore,
    calls_left: AtomicU64,
    seconds: i64,
    /// The most bytes and objects that were under way.
    most: AtomicU64,
    most_objects: AtomicU64,
}

#[derive(Debug)]
struct CountedFlight<'a> {
    counter: &'a FailsAfter,
    flight: Box<dyn Flight + 'a>,
    /// What is under way, by tag.
    sizes: BTreeMap<u64, u64>,
}

impl Flight for CountedFlight<'_> {
    fn ask(&mut self, tag: u64, want: Want) {
        let store = self.counter.call();
        let size = store.object(&want.name).map_or(0, |it| it.len() as u64);
        self.sizes.insert(tag, size);
        let (bytes, objects) = (self.sizes.values().sum(), self.sizes.len() as u64);
        self.counter.most.fetch_max(bytes, Ordering::Relaxed);
        let most_objects = &self.counter.most_objects;
        most_objects.fetch_max(objects, Ordering::Relaxed);
        self.flight.ask(tag, want);
    }

    fn answer(&mut self, is_awaited: bool) -> Option<(u64, Answer)> {
        let (tag, answer) = self.flight.answer(is_awaited)?;
        self.sizes.remove(&tag);
        Some((tag, answer))
    }
}

impl FailsAfter {
    fn new(store: &SimStore, calls: u64, seconds: i64) -> FailsAfter {
        FailsAfter {
            store: store.clone(),
            calls_left: AtomicU64::new(calls),
            seconds,
            most: AtomicU64::new(0),
            most_objects: AtomicU64::new(0),
        }
    }

    fn call(&self) -> &SimStore {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.store.set_away_for(self.seconds);
        }
        &self.store
    }
}

impl Store for FailsAfter {
    fn place(&self) -> &str {
        self.store.place()
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

    fn answer(&self, want: &Want) -> Answer {
        self.call().answer(want)
    }

    fn opened(&self, want: &Want, bytes: Vec<u8>) -> Result<Result<Vec<u8>, Fault>, Trouble> {
        self.store.opened(want, bytes)
    }

    fn flight(&self, connections: usize) -> Box<dyn Flight + '_> {
        Box::new(CountedFlight {
            counter: self,
            flight: self.store.flight(connections),
            sizes: BTreeMap::new(),
        })
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<Listed>, Trouble> {
        self.call().list(prefix, after)
    }

    fn tops(&self) -> Result<Vec<String>, Trouble> {
        self.call().tops()
    }

    fn remove(&self, names: &[String]) -> Result<(), Trouble> {
        self.call().remove(names)
    }
}

#[test]
fn g17_links_are_read_many_at_a_time_and_a_list_of_them_reads_none() {
    let mut world = archived_with(1 << 30);
    for _ in 0..1000 {
        world.put(10);
        world.archive();
    }
    let links = heads(&world.store).len() as u64;
    assert!(links > 1000);
    // In calls that follow one another.
    let counted = |run: &dyn Fn(&Reader<'_>)| {
        let store = world.store.copy();
        store.set_call_time(Duration::from_millis(20));
        let counter = FailsAfter::new(&store, u64::MAX, 0);
        run(&Reader::new(&counter, &store));
        let most_objects = counter.most_objects.load(Ordering::Relaxed);
        (store.now().0 / (20 * MS_NS as i64), most_objects)
    };
    let (trips, at_a_time) = counted(&|reader| {
        let found = restored_by(reader, Until::End, world.now).unwrap();
        assert_eq!(found.jobs, 1005);
    });
    assert!(trips < 40 && at_a_time == 64, "{trips}, {at_a_time}");
    let (trips, _) = counted(&|reader| {
        let all = survey(reader, LOG, Depth::Everything, &mut |_, _| ()).unwrap();
        assert_eq!((all.links, all.bad), (links, vec![]));
    });
    assert!(trips < 40, "{trips}");
    let (trips, _) = counted(&|reader| {
        let all = survey(reader, LOG, Depth::Lists, &mut |_, _| ()).unwrap();
        assert_eq!(all.links, links);
    });
    assert!(trips < 12, "{trips}");
    let (trips, _) = counted(&|reader| {
        let middle = world.now.wall_ns - 20_000 * MS_NS;
        restored_by(reader, Until::Wall(middle), world.now).unwrap();
    });
    // Heads first, and then the links up to it.
    assert!(trips < 100, "{trips}");
}

/// A restore and a survey of an archive that may be damaged, each in several ways.
fn read_in_turn_and_ahead(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let world = any_archive(&mut random, seed);
    for _ in 0..random.below(3) {
        damage(&world.store, &mut random);
    }
    let run = |connections: usize| {
        let store = world.store.copy_with(seed);
        store.set_call_time(Duration::from_millis(20));
        store.set_faults(5);
        let reader = store.reader().with_connections(connections);
        let restored = restored_by(&reader, Until::End, world.now);
        let mut progress = Vec::new();
        let all = survey(&reader, LOG, Depth::Everything, &mut |done, total| {
            progress.push((done, total));
        });
        (restored.is_ok(), format!("{restored:?}"), all, progress)
    };
    let in_turn = run(1);
    for connections in [2, 7, 64] {
        assert_eq!(run(connections), in_turn, "{connections} at a time");
    }
    (in_turn.0.into(), (!in_turn.0).into())
}

#[test]
fn what_is_said_of_an_archive_does_not_depend_on_how_much_is_read_at_a_time() {
    let runs = ("BSD_AGREEMENT_RUNS", RUNS);
    let Some((restored, refused)) = each_seed("depend", runs, read_in_turn_and_ahead) else {
        return;
    };
    println!("{restored} restored, {refused} refused");
    assert!(restored > 0 && refused > 0, "{restored}, {refused}");
}

#[test]
fn a_standby_that_has_fallen_behind_reads_many_links_at_a_time() {
    let mut world = archived_with(1 << 30);
    let store = world.store.copy();
    let counter = Arc::new(FailsAfter::new(&store, u64::MAX, 0));
    let mut follower = follower(counter.clone(), &store);
    let mut follow = |now| while follower.step(now, &mut |_, _| ()).unwrap() != Did::Nothing {};
    let copy = |world: &World| {
        for name in world.store.names() {
            store.set_object(&name, world.store.object(&name));
        }
    };
    follow(world.now);
    store.set_call_time(Duration::from_millis(20));
    let mut links = heads(&world.store).len();
    // Few links at a time: one call for each, and one that finds no other.
    for _ in 0..20 {
        world.put(10);
        world.archive();
        copy(&world);
        let calls = store.calls();
        follow(world.now);
        let more = heads(&world.store).len() - links;
        links += more;
        assert_eq!(store.calls() - calls, more as u64 + 1);
    }
    for _ in 0..1000 {
        world.put(10);
        world.archive();
    }
    copy(&world);
    let (calls, began) = (store.calls(), store.now());
    follow(world.now);
    let more = heads(&world.store).len() - links;
    assert!(more >= 1000);
    // A list each time the listed ones are read; few calls are made twice.
    assert!(store.calls() - calls < more as u64 + 20);
    let trips = store.now().since(began) / (20 * MS_NS as i64);
    assert!(trips < 70, "{trips}");
    assert_eq!(counter.most_objects.load(Ordering::Relaxed), 64);
    let end = restored(&world.store, Until::End, world.now).unwrap();
    assert_eq!(follower.at().map(|(at, _)| at), Some(end.end));
    assert_eq!(
        (follower.jobs(), follower.figures().restores),
        (end.jobs, 1)
    );
}

#[test]
fn a_standby_that_has_fallen_behind_stops_where_it_would_have_stopped_link_by_link() {
    let mut world = archived_with(1 << 30);
    let before = world.store.copy();
    for _ in 0..300 {
        world.put(10);
        world.archive();
    }
    let heads = heads(&world.store);
    for (nth, is_missing) in [
        (20, true),
        (20, false),
        (83, true),
        (84, false),
        (150, true),
    ] {
        let bad = &heads[nth];
        let store = before.copy();
        let disk = SimFs::new(5);
        let mut follower = Follower::new(Setup {
            store: Arc::new(store.clone()),
            wait: Arc::new(store.clone()),
            log: None,
            options: Options {
                dir: Some("/standby".into()),
                fs: Arc::new(disk),
                ..Options::default()
            },
            node: "standby".to_owned(),
        });
        while follower.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
        for name in world.store.names() {
            store.set_object(&name, world.store.object(&name));
        }
        let name = numbered(&chain_dir(LOG), bad.number);
        let mut link = store.object(&name).unwrap();
        link[HEAD_SIZE] ^= 1;
        store.set_object(&name, (!is_missing).then_some(link));
        let mut said = String::new();
        for _ in 0..1000 {
            match follower.step(world.now, &mut |_, _| ()) {
                Ok(Did::Some) => {}
                Ok(_) => break,
                Err(FollowError::Trouble(what)) => said = what,
                Err(FollowError::Nothing(what)) => {
                    said = what;
                    break;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(follower.at().map(|(at, _)| at), Some(bad.from), "{nth}");
        assert_eq!(said.is_empty(), is_missing, "{said}");
        assert!(is_missing || said.contains(&name), "{said}");
    }
}
