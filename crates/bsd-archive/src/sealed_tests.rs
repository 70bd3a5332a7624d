//! Objects that are compressed or encrypted: their bytes, who can read them, and everything that is
//! done with an archive of them.

use std::path::Path;
use std::sync::Arc;

use super::ahead::ReadAhead;
use super::expire::{Keep, plan};
use super::follow::Did;
use super::format::{
    BODY_SIZE_MAX, HEAD_SIZE, Head, chain_dir, joined_dir, number_in, numbered, parts_dir,
};
use super::histories::{LOG, World, keys};
use super::levels::{Levels, pass};
use super::restore::restore;
use super::seal::{Closed, check, enough_for, is_sealed, open, seal};
use super::sim::SimStore;
use super::store::{Put, Store, Want};
use super::survey::{Depth, Survey, survey};
use super::tests::follower;
use super::unopened::{Unopened, look};
use super::writer::Failure;
use super::{Codec, KEYS_MAX, Key, RestoreError, Until};
use bsd::random::Random;
use bsd::storage::SimFs;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;

const NAME: &str = "log/chain/00000000000000000001";

fn many_keys() -> Vec<Key> {
    (0..KEYS_MAX).map(|nth| Key::new([nth as u8; 32])).collect()
}

/// Bytes of which some repeat.
fn content(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        match random.percent(50) {
            true => bytes.extend_from_slice(b"some words that come again"),
            false => bytes.extend_from_slice(&random.next().to_le_bytes()),
        }
    }
    bytes.truncate(size);
    bytes
}

/// Make both checksums of a sealed object right, if it has a header.
fn sum_up(name: &str, bytes: &mut [u8]) {
    let Some(keys) = bytes.get(11).map(|keys| usize::from(*keys)) else {
        return;
    };
    let size = 64 + 56 * keys + 8;
    if bytes.len() < size {
        return;
    }
    let body = crc32fast::hash(&bytes[size..]);
    bytes[size - 8..size - 4].copy_from_slice(&body.to_le_bytes());
    let crc = crc32fast::hash(&[name.as_bytes(), &bytes[..size - 4]].concat());
    bytes[size - 4..size].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn what_is_sealed_is_read_back_with_any_of_its_keys_as_a_whole_or_its_head_alone() {
    let all = many_keys();
    for size in [0, 1, 95, 96, 97, 200, 5000, 300_000] {
        let plain = content(size, size as u64);
        for level in [None, Some(1), Some(19)] {
            for count in [0, 1, 2, KEYS_MAX] {
                let sealed = seal(NAME, &plain, level, &all[..count]).unwrap();
                let Some(sealed) = sealed else {
                    assert_eq!(count, 0, "it is put as it is");
                    continue;
                };
                assert!(is_sealed(&sealed));
                let is_small = level.is_some() && size >= 5000;
                assert_eq!(is_small, sealed.len() < size, "{size} {level:?}");
                for key in all.iter().take(count.max(1)) {
                    let key = std::slice::from_ref(key);
                    let found = open(NAME, &sealed, u64::MAX, key);
                    assert_eq!(found.as_ref(), Ok(&plain));
                    for size_max in [0, 1, HEAD_SIZE as u64] {
                        let first = &sealed[..sealed.len().min(enough_for(size_max) as usize)];
                        let expected = plain[..size.min(size_max as usize)].to_vec();
                        assert_eq!(open(NAME, first, size_max, key), Ok(expected));
                    }
                }
            }
        }
    }
}

#[test]
fn every_changed_bit_every_length_and_another_name_are_noticed_without_a_key() {
    let plain = content(700, 1);
    for keys in [&[][..], &keys()] {
        let sealed = seal(NAME, &plain, Some(1), keys).unwrap().unwrap();
        assert_eq!(check(NAME, &sealed, u64::MAX).unwrap().size, 700);
        for bit in 0..8 * sealed.len() {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(check(NAME, &changed, u64::MAX).is_err(), "bit {bit}");
        }
        for size in 0..sealed.len() {
            assert!(check(NAME, &sealed[..size], u64::MAX).is_err(), "{size}");
        }
        let more = [&sealed[..], b"x"].concat();
        assert!(check(NAME, &more, u64::MAX).is_err());
        assert!(check("log/chain/2", &sealed, u64::MAX).is_err());
    }
}

#[test]
fn what_was_changed_with_its_checksums_made_right_is_not_opened() {
    let plain = content(700, 1);
    let sealed = seal(NAME, &plain, Some(1), &keys()).unwrap().unwrap();
    let one = &keys()[..1];
    for bit in 0..8 * sealed.len() {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        sum_up(NAME, &mut changed);
        let is_sum = (64 + 2 * 56..64 + 2 * 56 + 8).contains(&(bit / 8));
        let found = open(NAME, &changed, u64::MAX, one);
        assert_eq!(found.is_ok(), is_sum, "bit {bit}: {found:?}");
    }
    // Another object with the same key, under this name.
    let mut other = seal("other", &plain, None, &keys()).unwrap().unwrap();
    sum_up(NAME, &mut other);
    check(NAME, &other, u64::MAX).unwrap();
    let found = open(NAME, &other, u64::MAX, one);
    assert!(matches!(found, Err(Closed::Broken(_))), "{found:?}");
}

#[test]
fn no_bytes_make_a_reader_panic_or_ask_for_more_memory_than_an_object_may_have() {
    let mut random = Random::new(7);
    let (mut opened, mut refused) = (0, 0);
    for round in 0..30_000_u64 {
        let keys = &keys()[..random.below(3) as usize];
        let plain = content(random.below(400) as usize, round);
        let level = random.percent(50).then_some(1);
        let sealed = seal(NAME, &plain, level, keys).unwrap();
        let mut bytes = sealed.unwrap_or(plain);
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64 + 1) as usize;
            match random.below(5) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.next() as u8),
                // The header has fields of eight bytes from 16 on.
                2 if bytes.len() > 64 => bytes[16 + random.below(16) as usize] ^= 0xff,
                _ if at < bytes.len() => bytes[at] = random.next() as u8,
                _ => {}
            }
        }
        if random.percent(80) {
            sum_up(NAME, &mut bytes);
        }
        let size_max = random.pick(&[0, 50, 96, 97, 1000, u64::MAX]);
        match open(NAME, &bytes, size_max, keys) {
            Ok(plain) => {
                assert!(plain.len() as u64 <= size_max.min(BODY_SIZE_MAX + HEAD_SIZE as u64));
                opened += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(opened > 1000 && refused > 1000, "{opened} {refused}");
}

#[test]
fn a_small_object_that_says_to_have_more_than_a_link_can_is_not_unpacked() {
    let plain = vec![7; 1 << 20];
    let mut bomb = seal(NAME, &plain, Some(19), &[]).unwrap().unwrap();
    assert!(bomb.len() < 1000);
    for size in [
        (1 << 20) - 1,
        (1 << 20) + 1,
        BODY_SIZE_MAX + HEAD_SIZE as u64,
        BODY_SIZE_MAX + HEAD_SIZE as u64 + 1,
        u64::MAX,
    ] {
        bomb[16..24].copy_from_slice(&size.to_le_bytes());
        sum_up(NAME, &mut bomb);
        let found = open(NAME, &bomb, u64::MAX, &[]);
        assert!(matches!(found, Err(Closed::Broken(_))), "{size}");
    }
}

#[test]
fn the_same_content_is_never_the_same_bytes_twice() {
    let sealed = |_| seal(NAME, b"the same", None, &keys()).unwrap().unwrap();
    let mut all: Vec<Vec<u8>> = (0..100).map(sealed).collect();
    // The salt, which says with which key the object's own is encrypted, and that key itself.
    for part in [32..64, 72..120] {
        let mut parts: Vec<_> = all
            .iter()
            .map(|bytes| bytes[part.clone()].to_vec())
            .collect();
        parts.sort();
        parts.dedup();
        assert_eq!(parts.len(), 100);
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 100);
}

fn encrypting(keys: Vec<Key>) -> Codec {
    Codec::default().encrypting_for(keys)
}

#[test]
fn a_job_that_looks_like_a_sealed_object_is_read_back_from_a_plain_archive() {
    let store = SimStore::new(1);
    let plain = [&b"BSDSEA\r\n"[..], &[1; 900]].concat();
    store.put_if_absent("log/parts/x", &plain).unwrap();
    assert_eq!(store.get("log/parts/x"), Ok(Some(plain.clone())));
    let part = store.get_range("log/parts/x", 3..10).unwrap();
    assert_eq!(part.as_deref(), Some(&plain[3..10]));
    let part = store.get_range("log/parts/x", 90..300).unwrap();
    assert_eq!(part.as_deref(), Some(&plain[90..300]));
    assert_eq!(store.get("log/parts/y"), Ok(None));
}

#[test]
fn without_flags_every_object_is_put_as_it_is() {
    let world = archived(Codec::default());
    assert!(world.store.names().len() > 8);
    for name in world.store.names() {
        assert_eq!(world.store.object(&name), world.store.get(&name).unwrap());
    }
}

/// A server of which everything is archived, with several bases.
fn archived(codec: Codec) -> World {
    let mut world = World::new(1);
    world.store = world.store.with_codec(codec);
    world.start();
    add(&mut world, 40);
    world
}

fn add(world: &mut World, jobs: u64) {
    for nth in 0..jobs {
        world.put(300 + nth as u32);
        world.archive();
    }
}

fn surveyed(store: &SimStore, depth: Depth) -> Survey {
    survey(&store.reader(), LOG, depth, &mut |_, _| ()).unwrap()
}

fn unopened(store: &SimStore) -> Unopened {
    let closed = store.with_codec(Codec::default());
    look(&closed.reader(), LOG, &mut |_, _| ()).unwrap()
}

fn objects(world: &World, dir: &str) -> Vec<String> {
    let names = world.store.names().into_iter();
    names.filter(|name| name.starts_with(dir)).collect()
}

/// Everything that has content, but for the marker.
fn sealed_objects(world: &World) -> Vec<String> {
    [chain_dir(LOG), parts_dir(LOG)]
        .iter()
        .flat_map(|dir| objects(world, dir))
        .collect()
}

#[test]
fn an_archive_that_is_compressed_and_encrypted_is_verified_restored_expired_and_followed() {
    let [one, two] = keys();
    for codec in [
        Codec::default().compressing(Some(3)),
        encrypting(vec![one.clone()]),
        encrypting(vec![one.clone(), two]).compressing(Some(3)),
    ] {
        let world = archived(codec.clone());
        let shown = format!("{codec}");
        for name in sealed_objects(&world) {
            let bytes = world.store.object(&name).unwrap();
            let is_encrypted = !shown.contains("not encrypted");
            assert!(is_sealed(&bytes) || !is_encrypted, "{name}");
            let words = b"bsd-archive-base";
            let shows = bytes.windows(words.len()).any(|it| it == words);
            assert!(!(shows && is_encrypted), "{name}");
        }
        let all = surveyed(&world.store, Depth::Everything);
        assert_eq!((&all.bad[..], &all.lost[..]), (&[][..], &[][..]));
        assert_eq!(surveyed(&world.store, Depth::Lists), all);
        let (restored, _) = world.check(Until::End).unwrap();
        assert_eq!(restored.jobs, 40);
        let store = Arc::new(world.store.clone());
        let mut follower = follower(store, &world.store);
        while follower.step(world.now, &mut |_, _| ()).unwrap() != Did::Nothing {}
        assert_eq!(follower.jobs(), 40);
        let (age_ns, bases) = (0, 1);
        let found = plan(
            &world.store.reader(),
            LOG,
            Keep {
                age_ns,
                bases,
                ..Keep::default()
            },
            u64::MAX,
            &mut |_, _| (),
        )
        .unwrap();
        assert_eq!(found.skipped, []);
        let plan = found.plan.unwrap();
        assert!(plan.bases > 0 && plan.parts() > 0);
        plan.carry_out(&world.store, &mut |_, _| ()).unwrap();
        assert_eq!(surveyed(&world.store, Depth::Everything).bad, []);
        assert_eq!(world.check(Until::End).unwrap().0.jobs, 40);
    }
}

#[test]
fn links_that_were_sealed_are_joined_into_objects_that_are_and_their_heads_are_read_alone() {
    let few = Levels {
        fine_ns: 0,
        few: 5,
        many: 15,
        ..Levels::default()
    };
    for codec in [
        encrypting(keys().to_vec()).compressing(Some(3)),
        Codec::default().compressing(Some(3)),
        Codec::default(),
    ] {
        let world = archived(codec.clone());
        let before = surveyed(&world.store, Depth::Everything);
        while !pass(&world.store.reader(), LOG, few, u64::MAX, &mut |_, _| true)
            .unwrap()
            .is_idle()
        {}
        let joined = objects(&world, &joined_dir(LOG));
        assert!(!joined.is_empty());
        for depth in [Depth::Lists, Depth::Everything] {
            assert_eq!(surveyed(&world.store, depth).spans, before.spans);
        }
        assert_eq!(world.check(Until::End).unwrap().0.jobs, 40);
        for name in &joined {
            let there = world.store.object(name).unwrap();
            assert_eq!(is_sealed(&there), !codec.is_plain());
            // A part that begins anywhere, called for alone and by a flight.
            let whole = world.store.get(name).unwrap().unwrap();
            let want = Want {
                name: name.clone(),
                range: Some(32..32 + HEAD_SIZE as u64),
            };
            let mut flight = world.store.flight(1);
            flight.ask(1, want.clone());
            let (_, brought) = flight.answer(true).unwrap();
            let part = world.store.opened(&want, brought.unwrap().unwrap());
            assert_eq!(part.unwrap().unwrap(), whole[32..32 + HEAD_SIZE]);
            let part = world.store.get_range(name, 32..32 + HEAD_SIZE as u64);
            assert_eq!(part.unwrap().unwrap(), whole[32..32 + HEAD_SIZE]);
        }
        let found = unopened(&world.store);
        assert_eq!(found.bad, []);
        let mut there = world.store.object(&joined[0]).unwrap();
        *there.last_mut().unwrap() ^= 1;
        world.store.set_object(&joined[0], Some(there));
        let bad = unopened(&world.store).bad;
        assert!(bad.len() == 1 && bad[0].name == joined[0], "{bad:?}");
    }
}

#[test]
fn a_put_whose_answer_was_lost_is_the_writers_own_though_no_two_puts_have_the_same_bytes() {
    let mut world = archived(encrypting(keys().to_vec()).compressing(Some(1)));
    let before = objects(&world, &chain_dir(LOG)).len();
    world.store.set_faults(60);
    add(&mut world, 40);
    world.store.set_faults(0);
    assert!(objects(&world, &chain_dir(LOG)).len() >= before + 40);
    let all = surveyed(&world.store, Depth::Everything);
    assert_eq!((all.bad, all.gaps.len(), all.epoch), (vec![], 0, 1));
    // Parts too: no name was tried a second time for content that was there.
    let parts = objects(&world, &parts_dir(LOG));
    let fields = |name: &String| name.split('-').count();
    assert!(parts.iter().all(|name| fields(name) == 6), "{parts:?}");
    assert_eq!(world.check(Until::End).unwrap().0.jobs, 80);
}

#[test]
fn a_second_writer_is_found_out_also_if_it_has_the_same_key() {
    let mut world = archived(encrypting(keys().to_vec()));
    let mut other = World::new(2);
    other.sizes = world.sizes;
    other.disk = world.disk.crash_image(Crash::KeepAll);
    other.store = world.store.clone();
    other.start_with_past_of(&world);
    other.archive();
    world.put(100);
    assert!(super::tests::fenced(&mut world));
}

#[test]
fn a_key_is_changed_without_any_object_being_put_again() {
    let [old, new] = keys();
    let mut world = archived(encrypting(vec![old.clone()]));
    let before = world.store.names();
    let contents: Vec<_> = before.iter().map(|name| world.store.object(name)).collect();
    world.crash(Crash::KeepAll);
    // One that reads the old ones, and encrypts nothing for that key.
    let changed = encrypting(vec![new.clone()]).opening_with(vec![old.clone()]);
    world.store = world.store.with_codec(changed);
    world.start();
    add(&mut world, 3);
    for (name, content) in before.iter().zip(contents) {
        assert_eq!(world.store.object(name), content);
    }
    assert_eq!(surveyed(&world.store, Depth::Everything).bad, []);
    assert_eq!(world.check(Until::End).unwrap().0.jobs, 43);
    let last = objects(&world, &chain_dir(LOG)).pop().unwrap();
    let read = |key: &Key, name: &str| {
        let store = world.store.with_codec(encrypting(vec![key.clone()]));
        store.get(name)
    };
    assert!(read(&new, &last).is_ok() && read(&old, &before[0]).is_ok());
    let refused = read(&old, &last).unwrap_err();
    assert!(refused.is_final && refused.lacks_key);
    assert!(refused.what.contains(&new.id().to_string()), "{refused}");
}

#[test]
fn a_base_has_no_part_that_needs_a_key_which_was_given_up() {
    let [old, new] = keys();
    let mut world = World::new(1);
    (world.sizes.links_max, world.sizes.part_max) = (1, 64);
    world.store = world.store.with_codec(encrypting(vec![old.clone()]));
    let both = encrypting(vec![new.clone()]).opening_with(vec![old]);
    let alone = encrypting(vec![new]);
    for (codec, jobs) in [(None, 40), (Some(both), 2), (Some(alone), 2)] {
        if let Some(codec) = codec {
            world.crash(Crash::KeepAll);
            world.store = world.store.with_codec(codec);
        }
        world.start();
        add(&mut world, jobs);
        let keep = Keep {
            bases: 1,
            ..Keep::default()
        };
        let found = plan(&world.store.reader(), LOG, keep, u64::MAX, &mut |_, _| ()).unwrap();
        let expiry = found.plan.expect("there are older bases");
        expiry.carry_out(&world.store, &mut |_, _| ()).unwrap();
    }
    assert_eq!(surveyed(&world.store, Depth::Everything).bad, []);
    assert_eq!(world.check(Until::End).unwrap().0.jobs, 44);
}

#[test]
fn a_store_may_be_away_again_and_again_while_sealed_objects_come() {
    let store = SimStore::new(1).with_codec(encrypting(keys().to_vec()));
    let mut ahead = ReadAhead::new(store.reader().with_connections(1));
    for number in 0..100 {
        let content = number.to_string();
        store.put_if_absent(&content, content.as_bytes()).unwrap();
        if number % 10 == 0 {
            store.set_away_for(200);
        }
        ahead.push((), Want::whole(&content), 10);
        let read = ahead.next(|(), bytes| Ok(bytes)).unwrap();
        assert_eq!(read, Some(((), Ok(content.into_bytes()))));
    }
}

#[test]
fn without_its_key_nothing_is_restored_or_taken_over_and_the_error_names_the_key() {
    let [one, two] = keys();
    let mut world = archived(encrypting(vec![one.clone()]));
    let stranger = world.store.with_codec(encrypting(vec![two.clone()]));
    let plain = world.store.with_codec(Codec::default());
    for store in [&stranger, &plain] {
        let fs: Arc<dyn Fs> = Arc::new(SimFs::new(1));
        let to = (&fs, Path::new("/data"));
        let calls = store.calls();
        let restored = restore(
            &store.reader(),
            LOG,
            Until::End,
            to,
            world.now,
            &mut |_, _| (),
        );
        match restored {
            Err(RestoreError::Store(trouble)) => {
                assert!(trouble.lacks_key);
                assert!(trouble.what.contains(&one.id().to_string()), "{trouble}");
                assert!(!trouble.what.contains(&two.id().to_string()), "{trouble}");
            }
            other => panic!("{other:?}"),
        }
        assert!(
            store.calls() - calls < 10,
            "it is not tried again for minutes"
        );
        assert!(matches!(
            follower(Arc::new(store.clone()), store).step(world.now, &mut |_, _| ()),
            Err(super::follow::FollowError::Trouble(_))
        ));
    }
    // A server that was started with the wrong flags stops, and puts nothing.
    world.crash(Crash::KeepAll);
    let before = world.store.names();
    world.store = plain;
    world.start();
    let failure = (0..20).find_map(|_| world.step().err());
    match failure {
        Some(Failure::Refused(what)) => assert!(what.contains(&one.id().to_string()), "{what}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(world.store.names(), before);
}

#[test]
fn objects_in_the_place_of_others_are_named_with_and_without_the_key() {
    let world = archived(encrypting(keys().to_vec()));
    let sound = unopened(&world.store);
    assert_eq!((&sound.bad[..], sound.keys.len()), (&[][..], 2));
    assert_eq!(sound.encrypted, sealed_objects(&world).len() as u64);
    for dir in [chain_dir(LOG), parts_dir(LOG)] {
        let store = world.store.copy();
        let names = objects(&world, &dir);
        let (one, two) = (&names[names.len() - 1], &names[names.len() - 2]);
        store.set_object(one, world.store.object(two));
        store.set_object(two, world.store.object(one));
        for all in [
            surveyed(&store, Depth::Everything).bad,
            unopened(&store).bad,
        ] {
            let mut bad: Vec<_> = all.iter().map(|bad| &bad.name).collect();
            bad.sort();
            bad.dedup();
            assert_eq!(bad, [two, one], "{all:?}");
            assert!(all.iter().all(|bad| bad.what.contains("under this name")));
        }
    }
}

#[test]
fn what_is_missing_cut_or_changed_is_named_without_the_key_too() {
    let world = archived(encrypting(keys().to_vec()).compressing(Some(1)));
    let sealed = sealed_objects(&world);
    for (nth, name) in sealed.iter().enumerate() {
        let is_last = number_in(&chain_dir(LOG), name).is_some_and(|number| {
            let next = numbered(&chain_dir(LOG), number + 1);
            world.store.object(&next).is_none()
        });
        let store = world.store.copy();
        let mut bytes = store.object(name).unwrap();
        let changed = match nth % 3 {
            0 => {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                Some(bytes)
            }
            1 => {
                bytes.truncate(bytes.len() / 2);
                Some(bytes)
            }
            // That the last link or a part is missing only a base or the next link could tell.
            _ if is_last || name.contains("/parts/") => continue,
            _ => None,
        };
        store.set_object(name, changed);
        let bad = unopened(&store).bad;
        assert_eq!(bad.len(), 1, "{bad:?}");
        assert_eq!(&bad[0].name, name);
        let all = surveyed(&store, Depth::Everything).bad;
        assert!(all.contains(&bad[0]) || name.contains("/parts/"), "{all:?}");
    }
}

#[test]
fn what_small_objects_hold_takes_room_only_when_their_turn_comes() {
    let store = SimStore::new(1).with_codec(Codec::default().compressing(Some(1)));
    let size = 1 << 20;
    for number in 0..500 {
        let name = number.to_string();
        assert_eq!(store.put_if_absent(&name, &vec![1; size]), Ok(Put::Done));
        assert!(store.object(&name).unwrap().len() < 500);
    }
    let mut ahead = ReadAhead::new(store.reader());
    for number in 0..128_u64 {
        assert!(ahead.has_room(500));
        ahead.push(number, Want::whole(&number.to_string()), 500);
    }
    let opened = std::cell::Cell::new(0);
    for number in 0..128 {
        let next = ahead.next(|_, bytes| {
            opened.set(opened.get() + 1);
            Ok(bytes.len())
        });
        assert_eq!(next, Ok(Some((number, Ok(size)))));
        assert_eq!(opened.get(), number + 1);
    }
}

#[test]
fn a_writer_goes_on_where_one_without_flags_was_and_the_other_way() {
    let mut world = archived(Codec::default());
    for codec in [
        encrypting(keys().to_vec()),
        Codec::default()
            .compressing(Some(3))
            .opening_with(keys().to_vec()),
        Codec::default().opening_with(keys().to_vec()),
    ] {
        world.crash(Crash::KeepAll);
        world.store = world.store.with_codec(codec);
        world.start();
        add(&mut world, 5);
        let all = surveyed(&world.store, Depth::Everything);
        assert_eq!((all.bad, all.gaps.len()), (vec![], 0));
        world.check(Until::End).unwrap();
    }
    assert_eq!(world.check(Until::End).unwrap().0.jobs, 55);
}

#[test]
fn a_link_that_was_forged_is_called_that() {
    let world = archived(encrypting(keys().to_vec()));
    let last = objects(&world, &chain_dir(LOG)).pop().unwrap();
    let link = world.store.get(&last).unwrap().unwrap();
    assert!(Head::decode(&link).is_ok());
    let mut forged = world.store.object(&last).unwrap();
    let end = forged.len() - 1;
    forged[end] ^= 1;
    sum_up(&last, &mut forged);
    world.store.set_object(&last, Some(forged));
    let fault = Head::decode(&world.store.get(&last).unwrap().unwrap()).unwrap_err();
    assert!(fault.contains("forged"), "{fault}");
    let all = surveyed(&world.store, Depth::Everything);
    assert_eq!((all.bad.len(), &all.bad[0].what), (1, &fault));
}

#[test]
fn a_codec_says_what_it_does_and_not_with_what() {
    assert!(Codec::default().is_plain());
    let codec = encrypting(keys().to_vec()).compressing(Some(5));
    assert!(!codec.is_plain());
    let [one, two] = keys().map(|key| key.id());
    let shown = format!("compressed with level 5, encrypted for {one}, {two}");
    assert_eq!(codec.to_string(), shown);
    assert!(!format!("{codec:?}").contains("secret"));
}
