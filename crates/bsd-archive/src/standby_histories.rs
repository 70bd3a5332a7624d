//! Histories of a server, its archive and a standby: two disks that crash, a store that fails.
//!
//! The oracle is the history of the server: whatever the standby holds must be what the server's
//! queue held after the frame up to which the standby says that it goes. When it is promoted it has
//! everything that was archived, and the old server can put nothing any more.
//!
//! `BSD_STANDBY_RUNS` says how many there are; `BSD_ARCHIVE_FIRST` and `BSD_ARCHIVE_SEED` as in
//! `histories`.

use std::path::Path;
use std::sync::Arc;

use super::follow::{Did, FollowError, Follower, Promoted, Setup, has_taken_over};
use super::format::{Head, Kind, chain_dir, numbered};
use super::histories::{
    BEAT_SECONDS, Sink, State, World, any_codec, codecs, each_seed, is_same, jobs_of, state_of,
};
use super::moment::Until;
use super::refill::restore_if_empty;
use super::restore::restore;
use super::writer::{Done, Failure, Writer};
use bsd::check::extended::assert_beats;
use bsd::check::failing::each_call;
use bsd::engine::{Engine, Options, Standby};
use bsd::protocol::{Command, Request};
use bsd::random::Random;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::{Crash, Errno, Fault, OpKind};
use bsd::storage::marker_file::{STANDBY_MARKER, read_marker, write_marker};
use bsd::storage::{IDS_SKIPPED, SimFs, SyncPolicy, Trail};
use bsd::types::{Position, SECOND_NS, SegmentId};

const RUNS: u64 = 3000;
const DIR: &str = "/standby";

/// A standby and its disk.
struct Side {
    disk: SimFs,
    follower: Follower,
}

fn options(disk: &SimFs) -> Options {
    Options {
        dir: Some(DIR.into()),
        segment_size: 64 << 10,
        fs: Arc::new(disk.clone()),
        ..Options::default()
    }
}

fn follower(world: &World, disk: &SimFs) -> Follower {
    Follower::new(Setup {
        store: Arc::new(world.store.clone()),
        wait: Arc::new(world.store.clone()),
        log: None,
        options: options(disk),
        node: "standby".to_owned(),
    })
}

impl Side {
    fn new(world: &World, seed: u64) -> Side {
        let disk = SimFs::new(seed ^ 0x5bd1);
        if seed.is_multiple_of(5) {
            // As the root of a file system has it: no other directory can take the place of this one.
            let dir = Path::new(DIR);
            Fs::create_dir_all(&disk, &dir.join("lost+found")).unwrap();
            for dir in [dir, Path::new("/")] {
                Fs::sync_dir(&disk, dir).unwrap();
            }
        }
        let follower = follower(world, &disk);
        Side { disk, follower }
    }

    fn crash(&mut self, world: &World, how: Crash) {
        self.disk = self.disk.crash_image(how);
        self.follower = follower(world, &self.disk);
    }

    /// One step, whose result is held against the history.
    fn step(&mut self, world: &World) -> Option<Did> {
        let did = match self.follower.step(world.now, &mut |_, _| ()) {
            Ok(did) => Some(did),
            Err(FollowError::Trouble(_) | FollowError::Nothing(_)) => None,
            Err(FollowError::Refused(why)) => panic!("no one was told to take over: {why}"),
            Err(FollowError::Failed(_)) if self.disk.is_crashed() => {
                self.crash(
                    world,
                    Crash::Random {
                        seed: self.disk.operations(),
                    },
                );
                None
            }
            Err(FollowError::Failed(error)) => panic!("{error}"),
        };
        // A refused step may have taken records of a frame that is not complete.
        let standby = self.follower.standby();
        let is_whole = did.is_some() && !standby.is_some_and(Standby::is_kicking);
        if is_whole && let Some((at, wall_ns)) = self.follower.at() {
            let queue = self.follower.standby().unwrap().queue();
            let jobs = jobs_of(queue, &world.given, world.now);
            assert_known(world, (at, wall_ns), &jobs, Judged::Jobs);
        }
        did
    }
}

/// What is held against the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// The jobs of a copy. Those of a clear that is not over are still there, or in part.
    Jobs,
    /// A queue that was promoted: a kick that was interrupted is finished.
    Promoted,
}

/// Assert that this is the state of the queue after the last frame that ends at `at` or before it;
/// or a turn later, if a kick that was interrupted there is finished.
fn assert_known(world: &World, (at, wall_ns): (Position, u64), state: &State, judged: Judged) {
    let past = world.past_at(wall_ns);
    let index = past.iter().rposition(|(end, _)| *end <= at).unwrap();
    let next = past.get(index + 1);
    let is_copy = judged == Judged::Jobs;
    let amid = [Some(&past[index]), next].into_iter().flatten();
    if is_copy && amid.clone().any(|(_, known)| known.has_clear()) {
        return;
    }
    // A server that was restored begins with two that it may have: see `World::go_on_from`.
    let of_end = past[..index].iter().rev();
    let mut of_end = of_end
        .take_while(|(end, _)| *end == past[index].0)
        .chain(next.filter(|_| !is_copy));
    let is_known = |known: &State| match judged {
        Judged::Jobs => known.difference_of_jobs(state, world.now, false).is_none(),
        Judged::Promoted => is_same(known, state, world.now),
    };
    let is_between = || {
        let (known, next) = (&past[index].1, next.map(|(_, next)| next));
        let state = match judged {
            // Of settings a copy tells nothing.
            Judged::Jobs => known.with_jobs_of(state),
            Judged::Promoted => state.clone(),
        };
        let on_the_way = |next| known.difference_on_the_way(next, &state, world.now);
        world.is_extended && next.is_some_and(|next| on_the_way(next).is_none())
    };
    if is_known(&past[index].1) || of_end.any(|(_, known)| is_known(known)) || is_between() {
        return;
    }
    let difference = past[index].1.difference_of_jobs(state, world.now, false);
    panic!("up to {at}: {difference:?}");
}

fn server_turn(world: &mut World, random: &mut Random, bases: &mut Random) {
    world.any_command(random);
    world.pass(random.below(400));
    match bases.below(100) {
        0..6 => world.ask_for_base(bases),
        6 => world.unpin(bases),
        7..10 => world.expire(bases),
        10..14 if !world.is_extended => world.pass(bases.below(4 * 86_400_000)),
        _ => {}
    }
    if random.percent(2) {
        world.expire(random);
    }
    if random.percent(8) {
        world.compact(random);
    }
    if random.percent(3) {
        world.store.set_away(random.percent(60));
    }
    world.try_steps(random.below(4));
}

/// Take over; `None` if there is nothing to take over with.
fn promote(world: &mut World, side: &mut Side) -> Option<Promoted> {
    let (mut last, mut at, mut tries) = (None, None, 0);
    while tries < 1000 {
        world.pass(60);
        // A clear of many jobs may be in as many links.
        let before = std::mem::replace(&mut at, side.follower.at());
        tries = if at == before { tries + 1 } else { 0 };
        match side.follower.promote(world.now, true, &mut |_, _| ()) {
            Ok(Some(promoted)) => return Some(promoted),
            Err(FollowError::Nothing(_)) if side.follower.at().is_none() => return None,
            Err(FollowError::Failed(_)) if side.disk.is_crashed() => {
                side.crash(world, Crash::Random { seed: 1 });
                if has_taken_over(&side.disk, DIR.as_ref()).unwrap() {
                    return None;
                }
            }
            Ok(None) => last = None,
            Err(FollowError::Trouble(what)) => last = Some(what),
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("it does not come to an end: {last:?}");
}

/// One history. Returns 1 if a standby was promoted, and 1 if the old server was there to be fenced.
fn history(seed: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let mut world = World::new(seed);
    let (mut codecs, mut bases) = (codecs(seed), Random::new(seed ^ 0xba5e));
    world.store = world.store.with_codec(any_codec(&mut codecs));
    world.is_extended = seed % 4 == 3;
    world.sizes.frames_max = 200 + random.below(4000) as u32;
    world.hold_max = match random.below(4) {
        0 => random.below(100_000),
        _ => 1 << 20,
    };
    let faults = random.below(2) * random.below(25);
    world.store.set_faults(faults);
    let mut side = Side::new(&world, seed);
    let is_alive = random.percent(50);
    for last in [false, true] {
        world.store = world.store.with_codec(any_codec(&mut codecs));
        world.start();
        for nth in 0..random.below(40) {
            if world.is_extended && nth == 9 && seed % 100 == 7 {
                world.clear_many();
            }
            server_turn(&mut world, &mut random, &mut bases);
            for _ in 0..random.below(4) {
                side.step(&world);
            }
            match random.below(25) {
                0 => side.crash(&world, Crash::Random { seed }),
                // In the middle of one of its next steps.
                1 => side
                    .disk
                    .crash_at(side.disk.operations() + random.below(60)),
                _ => {}
            }
        }
        if random.percent(30) {
            world.store.set_away(false);
            world.archive();
        }
        if last && is_alive {
            break;
        }
        world.crash(Crash::Random { seed });
        if let Some((restored, disk)) = world.check(Until::End)
            && !last
            && random.percent(30)
        {
            world.go_on_from(&restored, disk);
        }
    }
    world.store.set_away(false);
    // A restore takes many calls that all succeed.
    world.store.set_faults(faults.min(4));
    let archived = world.archived;
    world.check_promises(&mut bases);
    let best = world.check(Until::End);
    let Some(promoted) = promote(&mut world, &mut side) else {
        return (0, 0);
    };
    side.disk.crash_at(u64::MAX);
    let state = state_of(&promoted.engine, &world.given, world.now);
    let at = (promoted.at, promoted.wall_ns);
    assert_known(&world, at, &state, Judged::Promoted);
    assert_beats(&state, BEAT_SECONDS, "a promoted standby");
    let said = archived.and_then(|end| world.past.iter().rfind(|past| past.0 <= end));
    if let (Some((least, _)), None) = (said, &promoted.given_up) {
        assert!(
            promoted.at >= *least,
            "{} is too old, {least} was archived",
            promoted.at
        );
    }
    if let Some((restored, _)) = best {
        assert!(
            promoted.wall_ns >= restored.wall_ns,
            "a restore has more: {restored:?}, and not {promoted:?}"
        );
    }
    // A writer that has not begun comes after the standby.
    let is_fenced = world.writer.as_ref().is_some_and(|it| it.epoch().is_some());
    if is_fenced {
        assert!(fenced(&mut world), "the old server goes on");
    }
    go_on(&mut world, &side, promoted, &state);
    (1, u64::from(is_fenced))
}

/// The old server notices at its next put.
fn fenced(world: &mut World) -> bool {
    world.put(10);
    (0..1000).any(|_| {
        world.pass(60);
        let tick = world.engine.as_mut().unwrap().tick(world.now, &mut Sink);
        tick.unwrap();
        matches!(world.step(), Err(Failure::Fenced(_)))
    })
}

/// The new queue takes jobs, and a start finds them: it is not a copy any more.
fn go_on(world: &mut World, side: &Side, promoted: Promoted, state: &State) {
    let now = world.now;
    let mut engine = promoted.engine;
    assert_eq!(
        read_marker(&side.disk, DIR.as_ref(), STANDBY_MARKER).unwrap(),
        None
    );
    let client = engine.connect();
    let put = Command::Put {
        // No policy refuses it there.
        tube: Some("new".into()),
        pri: 1,
        delay: 0,
        ttr: 1,
        body: b"new".into(),
    };
    engine.run(client, Request::Command(put), now, &mut Sink);
    engine.commit(now).unwrap();
    let next_id = engine.log().unwrap().next_id().0;
    assert!(
        world.given.insert(next_id - 1),
        "id {} is given out twice",
        next_id - 1
    );
    let all = state_of(&engine, &world.given, now);
    assert_eq!(all.jobs.len(), state.jobs.len() + 1);
    // What was given up may have been more than the copy had.
    if promoted.given_up.is_none() {
        let calls = side.disk.operations() % 40;
        lost_again(world, &side.disk, &mut engine, calls, (state, &all));
    }
    engine.close(now).unwrap();
    let again = Engine::open(&options(&side.disk), now).unwrap();
    let found = state_of(&again, &world.given, now);
    assert_eq!(all.difference(&found, now, false), None);
}

/// The promoted server archives, and is lost after `calls` calls of the store: it was as `before`
/// when it was promoted, and is as `now`. Returns whether everything was archived, and how many
/// bases there are.
fn lost_again(
    world: &World,
    disk: &SimFs,
    engine: &mut Engine,
    calls: u64,
    (before, now): (&State, &State),
) -> (bool, usize) {
    let trail = Arc::new(Trail::new(1 << 20));
    engine.publish_to([trail.clone()]);
    let store = world.store.copy();
    store.set_calls_left(Some(calls));
    let fs: Arc<dyn Fs> = Arc::new(disk.clone());
    let node = "standby".to_owned();
    let (to, dir) = (Arc::new(store.clone()), DIR.into());
    let mut writer = Writer::new(to, trail, fs, dir, node, world.sizes);
    let is_all = loop {
        match writer.step(world.now.wall_ns, true) {
            Ok(Done::Nothing) => break true,
            Ok(_) => {}
            Err(Failure::Trouble(_)) => break false,
            Err(failure) => panic!("no one else is there: {failure}"),
        }
    };
    store.set_calls_left(None);
    let log = engine.log().unwrap().files().log();
    let image = SimFs::new(1);
    let fs: Arc<dyn Fs> = Arc::new(image.clone());
    let place = (&fs, std::path::Path::new(DIR));
    let done = restore(
        &store.reader(),
        log,
        Until::End,
        place,
        world.now,
        &mut |_, _| (),
    );
    let restored = done.unwrap();
    assert_eq!(restored.missing, None);
    let again = Engine::open(&options(&image), world.now).unwrap();
    let found = state_of(&again, &world.given, world.now);
    let is_before = !is_all && is_same(before, &found, world.now);
    if !is_before {
        assert_eq!(now.difference(&found, world.now, false), None);
    }
    let names = store.names().into_iter();
    (
        is_all,
        names.filter(|name| name.contains("/bases/")).count(),
    )
}

#[test]
fn g15_after_a_promotion_the_chain_goes_on_without_a_base_and_nothing_archived_is_lost() {
    let mut calls = 0;
    loop {
        let mut world = World::new(15);
        world.sizes.base_min = 1 << 30;
        world.sizes.links_max = 1000;
        world.start();
        world.put(10);
        world.archive();
        let mut side = Side::new(&world, 15);
        while side.step(&world) != Some(Did::Nothing) {}
        for _ in 0..3 {
            world.put(10);
        }
        world.archive();
        world.crash(Crash::KeepAll);
        let mut promoted = promote(&mut world, &mut side).unwrap();
        let before = state_of(&promoted.engine, &world.given, world.now);
        assert_eq!(before.jobs.len(), 4);
        let client = promoted.engine.connect();
        let put = Command::Put {
            tube: None,
            pri: 1,
            delay: 0,
            ttr: 1,
            body: b"new".into(),
        };
        let (now, engine) = (world.now, &mut promoted.engine);
        engine.run(client, Request::Command(put), now, &mut Sink);
        engine.commit(now).unwrap();
        world.given.insert(engine.log().unwrap().next_id().0 - 1);
        let after = state_of(engine, &world.given, world.now);
        let (is_all, bases) = lost_again(&world, &side.disk, engine, calls, (&before, &after));
        assert_eq!(bases, 1);
        if is_all {
            break;
        }
        calls += 1;
    }
    assert!(calls > 8, "{calls} calls");
}

/// Take over, unless that would give up what another server has done. Whatever else stands against it
/// is tried again.
fn take_over(world: &World, side: &mut Side) -> Result<Promoted, FollowError> {
    for _ in 0..1000 {
        match side.follower.promote(world.now, false, &mut |_, _| ()) {
            Ok(Some(promoted)) => return Ok(promoted),
            Ok(None) | Err(FollowError::Trouble(_)) => {}
            Err(error) => return Err(error),
        }
    }
    panic!("it does not take over");
}

/// A standby that has everything, and whose server is lost.
fn about_to_take_over(seed: u64, faults: u64) -> (World, Side) {
    let mut world = archived();
    let mut side = Side::new(&world, seed);
    while side.step(&world) != Some(Did::Nothing) {}
    world.crash(Crash::KeepAll);
    world.store = world.store.copy_with(seed);
    world.store.set_faults(faults);
    side.crash(&world, Crash::KeepAll);
    (world, side)
}

/// The chain goes on with the log of this server, without a base.
fn goes_on(world: &World, disk: &SimFs, engine: &mut Engine) {
    world.store.set_faults(0);
    let state = state_of(engine, &world.given, world.now);
    assert_eq!(state.jobs.len(), 5);
    let (is_all, bases) = lost_again(world, disk, engine, u64::MAX, (&state, &state));
    assert_eq!((is_all, bases), (true, 1));
}

/// It is killed at each call of its disk. Its own claim is not that of another server, whose changes
/// would have to be given up.
#[test]
fn g15_a_standby_that_is_killed_while_it_takes_over_does_it_when_it_is_told_again() {
    let (mut cuts, mut claimed) = (0, 0);
    loop {
        let (world, mut side) = about_to_take_over(15, 0);
        let before = claims(&world);
        side.disk.crash_at(side.disk.operations() + cuts);
        if let Ok(mut promoted) = take_over(&world, &mut side) {
            side.disk.crash_at(u64::MAX);
            goes_on(&world, &side.disk, &mut promoted.engine);
            break;
        }
        side.crash(&world, Crash::DropUnsynced);
        let mut engine = match has_taken_over(&side.disk, DIR.as_ref()).unwrap() {
            true => Engine::open(&options(&side.disk), world.now).unwrap(),
            false => {
                claimed += usize::from(claims(&world) > before);
                let again = take_over(&world, &mut side);
                again
                    .unwrap_or_else(|why| panic!("cut {cuts}: {why:?}"))
                    .engine
            }
        };
        goes_on(&world, &side.disk, &mut engine);
        cuts += 1;
    }
    assert!(cuts > 10 && claimed > 0, "{cuts} cuts, {claimed} claimed");
}

/// The marks of claims.
fn claims(world: &World) -> usize {
    let names = world.store.names().into_iter();
    names.filter(|name| name.contains("/claims/")).count()
}

#[test]
fn g15_a_standby_that_is_not_told_that_its_claim_was_put_takes_over_nevertheless() {
    let mut repeated = 0;
    for seed in 0..100 {
        let (world, mut side) = about_to_take_over(seed, 30);
        let before = claims(&world);
        let mut promoted = take_over(&world, &mut side).unwrap();
        repeated += usize::from(claims(&world) > before + 1);
        goes_on(&world, &side.disk, &mut promoted.engine);
    }
    assert!(repeated > 0);
}

/// A standby that was promoted and lost at once may have had more segments than the chain has. What
/// comes after its takeover has smaller numbers then.
#[test]
fn g15_a_standby_that_is_started_again_passes_the_takeover_of_a_server_that_was_lost_at_once() {
    let mut world = archived();
    let (restored, _) = world.check(Until::End).unwrap();
    let names = world.store.names().into_iter();
    let links = names.filter(|name| name.contains("/chain/"));
    let last = world.store.object(&links.max().unwrap()).unwrap();
    let (last, crc, _) = Head::decode(&last).unwrap();
    let takeover = Head {
        kind: Kind::Takeover,
        epoch: last.epoch + 1,
        number: last.number + 1,
        from: restored.end,
        to: Position::new(SegmentId(900), 0),
        previous: crc,
        segment_crc: 1,
        ..last
    };
    let (bytes, _) = takeover.encode(b"lost at once");
    let name = numbered(&chain_dir(last.log), takeover.number);
    world.store.set_object(&name, Some(bytes));
    let (restored, disk) = world.check(Until::End).unwrap();
    world.go_on_from(&restored, disk);
    world.start();
    // The end of the chain is inside a frame.
    world.put(4000);
    while world.step().unwrap() != Done::Link {}
    world.step().unwrap();
    let mut side = Side::new(&world, 15);
    while side.step(&world) != Some(Did::Nothing) {}
    assert_eq!(side.follower.jobs(), 5);
    side.crash(&world, Crash::KeepAll);
    assert_eq!(side.step(&world), Some(Did::Opened));
    world.archive();
    while side.step(&world) != Some(Did::Nothing) {}
    assert_eq!(
        (side.follower.jobs(), side.follower.figures().restores),
        (6, 0)
    );
}

/// A server with an archive of two halves, and the position between them.
fn archived_twice(seed: u64) -> (World, Position) {
    let mut world = World::new(seed);
    world.start();
    world.put(10);
    world.archive();
    let earlier = world.past.last().unwrap().0;
    world.put(10);
    world.archive();
    (world, earlier)
}

/// Two standbys are told to take over, one after the other.
#[test]
fn g20_a_second_standby_does_not_take_over_while_the_changes_of_the_first_are_not_archived() {
    for goes_on in [true, false] {
        let (mut world, earlier) = archived_twice(20);
        let mut second = Side::new(&world, 2);
        while second.step(&world) != Some(Did::Nothing) {}
        world.crash(Crash::KeepAll);
        // The first one, which has the archive's end, or an earlier moment of it.
        let until = match goes_on {
            true => Until::End,
            false => Until::Position(earlier),
        };
        let (restored, disk) = world.check(until).unwrap();
        world.go_on_from(&restored, disk);
        world.start();
        while world.writer.as_ref().unwrap().epoch().is_none() {
            world.step().unwrap();
        }
        world.put(10);
        let promote = |world: &World, side: &mut Side, force| {
            let (mut progress, now) = (|_, _| (), world.now);
            loop {
                match side.follower.promote(now, force, &mut progress) {
                    Ok(None) => {}
                    done => return done,
                }
            }
        };
        let names = world.store.names();
        match promote(&world, &mut second, false) {
            Err(FollowError::Refused(why)) => assert!(why.contains("took over"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(world.store.names(), names, "nothing was claimed");
        world.now.wall_ns += 3600 * SECOND_NS as u64;
        let claimed_at = |world: &World| {
            let names = world.store.names().into_iter();
            let mut links = names.filter(|name| name.starts_with(&chain_dir(world.log)));
            let last = world.store.object(&links.next_back().unwrap()).unwrap();
            Head::decode(&last).unwrap().0.wall_ns
        };
        if goes_on {
            // Its changes are in the archive: then the second has them.
            world.archive();
            let promoted = promote(&world, &mut second, false).unwrap().unwrap();
            assert_eq!(promoted.engine.queue().stats().jobs.total(), 3);
        } else {
            let promoted = promote(&world, &mut second, true).unwrap().unwrap();
            assert_eq!(promoted.engine.queue().stats().jobs.total(), 2);
            assert!(promoted.given_up.is_some());
        }
        assert_eq!(
            claimed_at(&world),
            world.now.wall_ns,
            "not when it was refused"
        );
        assert!(fenced(&mut world));
    }
}

/// A standby needs no other copy where the server is restored, not even after a gap.
#[test]
fn g15_a_standby_follows_a_chain_that_goes_on_after_a_loss() {
    for is_in_gap in [false, true] {
        let (mut world, earlier) = archived_twice(15);
        let mut side = Side::new(&world, 15);
        while side.step(&world) != Some(Did::Nothing) {}
        if is_in_gap {
            let (restored, disk) = world.check(Until::Position(earlier)).unwrap();
            world.go_on_from(&restored, disk);
            world.start();
            while world.writer.as_ref().unwrap().epoch().is_none() {
                world.step().unwrap();
            }
            assert_eq!(side.step(&world), None, "it waits for a base");
        }
        let (restored, disk) = world.check(Until::End).unwrap();
        assert_eq!((restored.jobs, restored.missing.is_some()), (2, is_in_gap));
        world.go_on_from(&restored, disk);
        world.start();
        world.put(10);
        world.archive();
        while side.step(&world) != Some(Did::Nothing) {}
        assert_eq!(
            (side.follower.jobs(), side.follower.figures().restores),
            (3, 1)
        );
        // A copy that is opened again, too.
        side.crash(&world, Crash::DropUnsynced);
        while side.step(&world) != Some(Did::Nothing) {}
        assert_eq!(
            (side.follower.jobs(), side.follower.figures().restores),
            (3, 0)
        );
    }
}

#[test]
fn a_standby_has_what_the_server_had_and_takes_over_with_everything_that_was_archived() {
    let Some((promoted, fenced)) =
        each_seed("standby_histories", ("BSD_STANDBY_RUNS", RUNS), history)
    else {
        return;
    };
    println!("{promoted} promoted, {fenced} with the old server alive");
    assert!(
        promoted > fenced && fenced > 0,
        "{promoted} promoted, {fenced} fenced"
    );
}

/// A start without `--follow` on the copy of a standby is a promotion too, and so is one by itself.
#[test]
fn g18_a_promoted_standby_gives_out_no_id_of_the_lost_end() {
    for is_promoted in [true, false] {
        let mut world = World::new(18);
        world.start();
        world.put(10);
        world.archive();
        let mut side = Side::new(&world, 18);
        while side.step(&world) != Some(Did::Nothing) {}
        for _ in 0..5 {
            world.put(10);
        }
        world.crash(Crash::KeepAll);
        let next_id = |engine: &Engine| {
            (
                engine.queue().next_id().0,
                engine.log().unwrap().next_id().0,
            )
        };
        let engine = if is_promoted {
            promote(&mut world, &mut side).unwrap().engine
        } else {
            drop(side.follower);
            Engine::open(&options(&side.disk), world.now).unwrap()
        };
        let (queue, log) = next_id(&engine);
        assert!(queue > IDS_SKIPPED && log == queue);
        drop(engine);
        // Nothing was put since, and a power cut keeps it.
        let disk = side.disk.crash_image(Crash::DropUnsynced);
        let engine = Engine::open(&options(&disk), world.now).unwrap();
        assert_eq!(next_id(&engine), (queue, log));
    }
}

/// No other directory can take its place, and what is whole is moved up file by file.
#[test]
fn a_copy_in_the_root_of_a_file_system_begins_again_wherever_it_is_interrupted() {
    let mut world = World::new(5);
    world.start();
    world.put(10);
    world.archive();
    for is_there in [false, true] {
        for cut in 0.. {
            let mut side = Side::new(&world, 5);
            if is_there {
                side.step(&world);
                // A marker that no one understands: another copy is made.
                write_marker(&side.disk, DIR.as_ref(), STANDBY_MARKER, b"?").unwrap();
                side.follower = follower(&world, &side.disk);
            }
            side.disk.crash_at(side.disk.operations() + cut);
            let did = side.follower.step(world.now, &mut |_, _| ());
            let is_crashed = side.disk.is_crashed();
            assert!(is_crashed || did.is_ok(), "{did:?}");
            side.crash(
                &world,
                match cut % 3 {
                    0 => Crash::DropUnsynced,
                    1 => Crash::KeepAll,
                    _ => Crash::Random { seed: cut },
                },
            );
            side.step(&world);
            assert_eq!(side.follower.jobs(), 1, "{is_there}, cut {cut}");
            if !is_crashed {
                assert!(cut > 20, "it is made in {cut} operations");
                break;
            }
        }
    }
}

/// Where no command waits for a sync, what a copy says of itself must wait for one.
#[test]
fn t16_a_copy_has_what_it_says_that_it_has_wherever_the_power_is_cut() {
    let mut world = World::new(16);
    world.start();
    world.put(10);
    world.archive();
    let follower = |world: &World, disk: &SimFs| {
        let options = Options {
            sync: SyncPolicy::Never,
            ..options(disk)
        };
        Follower::new(Setup {
            store: Arc::new(world.store.clone()),
            wait: Arc::new(world.store.clone()),
            log: None,
            options,
            node: "standby".to_owned(),
        })
    };
    let mut cuts = 0;
    loop {
        let disk = SimFs::new(cuts);
        let mut before = follower(&world, &disk);
        while before.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
        world.put(10);
        world.archive();
        // Longer than the copy may go without a note of how far it is.
        world.pass(6000);
        disk.crash_at(disk.operations() + cuts);
        let is_cut = loop {
            match before.step(world.now, &mut |_, _| ()) {
                Ok(Did::Nothing) => break false,
                Ok(_) => {}
                Err(_) => break true,
            }
        };
        let disk = disk.crash_image(Crash::DropUnsynced);
        let mut after = follower(&world, &disk);
        let did = after.step(world.now, &mut |_, _| ()).unwrap();
        assert_eq!(did, Did::Opened, "cut {cuts}");
        let state = jobs_of(after.standby().unwrap().queue(), &world.given, world.now);
        assert_known(&world, after.at().unwrap(), &state, Judged::Jobs);
        if !is_cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 5, "{cuts} operations");
}

/// Tries after which a standby whose archive is complete has taken over.
const TRIES_MAX: u32 = 20;

/// A server whose jobs are all archived.
fn archived() -> World {
    let mut world = World::new(21);
    world.start();
    (0..5).for_each(|_| _ = world.put(10));
    world.archive();
    world
}

#[test]
fn a_restore_can_be_repeated_whatever_call_of_the_disk_has_failed() {
    let world = archived();
    let restored = |disk: &SimFs| {
        let (store, fs): (_, Arc<dyn Fs>) = (world.store.copy(), Arc::new(disk.clone()));
        let at = (&fs, Path::new(DIR));
        restore_if_empty(&store.reader(), None, at, world.now, &mut |_, _| ())
    };
    let whole = SimFs::new(1);
    restored(&whole).unwrap();
    let mut failures = 0;
    for kind in OpKind::ALL {
        let calls = whole.trace();
        let count = calls.iter().filter(|call| call.kind == kind).count() as u64;
        for nth in 1..=count {
            let what = format!("{kind:?} {nth} of {count}");
            let disk = SimFs::new(1);
            disk.inject(Fault::fail(kind, Errno::IO).nth(nth));
            failures += usize::from(restored(&disk).is_err());
            disk.clear_faults();
            restored(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            let engine = Engine::open(&options(&disk), world.now).unwrap();
            assert_eq!(engine.queue().stats().jobs.total(), 5, "{what}");
        }
    }
    assert!(failures > 20, "{failures} restores failed");
}

#[test]
fn g02_each_call_that_fails_while_an_empty_directory_is_restored_is_called_what_it_is() {
    let world = archived();
    let restored = |disk: SimFs| {
        let (store, fs): (_, Arc<dyn Fs>) = (world.store.copy(), Arc::new(disk));
        let reader = store.reader();
        let at = (&fs, Path::new(DIR));
        restore_if_empty(&reader, None, at, world.now, &mut |_, _| ())
    };
    let work = |disk| {
        let restored = restored(disk).map(drop);
        restored.map_err(|error| (error.class(), error))
    };
    let failures = each_call((&SimFs::new(1), 4), SimFs::clone, work, |disk, what| {
        restored(disk.clone()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let engine = Engine::open(&options(disk), world.now).unwrap();
        assert_eq!(engine.queue().stats().jobs.total(), 5, "{what}");
    });
    assert!(failures > 20, "{failures} restores failed");
}

#[test]
fn g02_each_call_that_fails_until_a_standby_has_taken_over_is_called_what_it_is() {
    let world = archived();
    let standby = |disk: &SimFs| {
        let store = world.store.copy();
        Follower::new(Setup {
            store: Arc::new(store.clone()),
            wait: Arc::new(store),
            log: None,
            options: options(disk),
            node: "standby".to_owned(),
        })
    };
    let take_over = |mut follower: Follower| {
        for _ in 0..TRIES_MAX {
            match follower.promote(world.now, false, &mut |_, _| ()) {
                Ok(Some(_)) => return Ok(()),
                // There is more to apply, or no room to begin a life: it is tried again.
                Ok(None) | Err(FollowError::Trouble(_)) => {}
                Err(FollowError::Failed(error)) => return Err((error.class(), error)),
                Err(other) => panic!("{other:?}"),
            }
        }
        panic!("it does not take over");
    };
    let empty = SimFs::new(1);
    let with_copy = SimFs::new(2);
    let mut follower = standby(&with_copy);
    while follower.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
    drop(follower);
    for before in [empty, with_copy] {
        let failures = each_call((&before, 4), standby, take_over, |disk, what| {
            let has = has_taken_over(disk, Path::new(DIR)).unwrap();
            let taken = if has {
                Ok(())
            } else {
                take_over(standby(disk))
            };
            taken.unwrap_or_else(|(_, error)| panic!("{what}: {error}"));
            let engine = Engine::open(&options(disk), world.now);
            let engine = engine.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(engine.queue().stats().jobs.total(), 5, "{what}");
        });
        assert!(failures > 20, "{failures} did not take over");
    }
}
