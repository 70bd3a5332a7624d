//! What is read ahead: its order, its bounds, and a store that is slow, away or wrong.

use std::cell::Cell;
use std::time::Duration;

use super::ahead::{BYTES_AHEAD, Given, ReadAhead};
use super::reader::{READINGS, Reader, Wait};
use super::sim::SimStore;
use super::store::{Trouble, Want};
use bsd::types::SECOND_NS;

const CALL: Duration = Duration::from_millis(20);

/// A store with objects `0`, `1` …, each of which has its name as its content.
fn store_of(count: u64, seed: u64) -> SimStore {
    let store = SimStore::new(seed);
    for number in 0..count {
        let name = number.to_string();
        store.set_object(&name, Some(name.clone().into_bytes()));
    }
    store.set_call_time(CALL);
    store
}

/// All of them in the order in which they are given.
fn read_all(reader: Reader<'_>, count: u64) -> Result<Vec<Given<u64, Vec<u8>>>, Trouble> {
    let mut ahead = ReadAhead::new(reader);
    let mut wanted = (0..count).peekable();
    let mut given = Vec::new();
    loop {
        while let Some(number) = wanted.next_if(|_| ahead.has_room(10)) {
            ahead.push(number, Want::whole(&number.to_string()), 10);
        }
        let next = ahead.next(
            |number, bytes| match bytes == number.to_string().into_bytes() {
                true => Ok(bytes),
                false => Err("it is another".to_owned()),
            },
        )?;
        match next {
            Some(next) => given.push(next),
            None => return Ok(given),
        }
    }
}

fn sound(count: u64) -> Vec<Given<u64, Vec<u8>>> {
    let one = |number: u64| (number, Ok(number.to_string().into_bytes()));
    (0..count).map(one).collect()
}

#[test]
fn the_order_is_that_in_which_they_were_asked_for_whatever_ends_first() {
    for seed in 0..50 {
        for connections in [1, 2, 3, 8, 64] {
            let store = store_of(200, seed);
            // With faults, and with wrong answers until some seconds were waited for.
            store.set_faults(3 * (seed % 3));
            store.set_lies_for(5 * (seed % 2) as i64);
            let reader = store.reader().with_connections(connections);
            let given = read_all(reader, 200).unwrap();
            assert_eq!(given, sound(200), "seed {seed}, {connections} at a time");
        }
    }
}

#[test]
fn one_seed_gives_one_run() {
    let run = || {
        let store = store_of(100, 7);
        store.set_faults(10);
        let given = read_all(store.reader(), 100);
        (given, store.now(), store.calls())
    };
    assert_eq!(run(), run());
}

#[test]
fn an_object_that_is_wrong_each_time_is_given_in_its_turn_and_the_others_are_read() {
    for connections in [1, 8, 64] {
        let store = store_of(100, 1);
        store.set_object("30", None);
        store.set_object("31", Some(b"x".to_vec()));
        let reader = store.reader().with_connections(connections);
        let mut wanted = sound(100);
        wanted[30].1 = Err("it is missing".to_owned());
        wanted[31].1 = Err("it is another".to_owned());
        assert_eq!(read_all(reader, 100).unwrap(), wanted);
        // No sound object is read twice.
        assert_eq!(store.calls(), 98 + 2 * u64::from(READINGS));
    }
}

#[test]
fn a_store_that_fails_for_minutes_is_waited_for_and_one_that_fails_for_longer_is_given_up() {
    for connections in [1, 8, 64] {
        let store = store_of(100, 1);
        let reader = store.reader().with_connections(connections);
        store.set_away_for(240);
        assert_eq!(read_all(reader, 100).unwrap(), sound(100));
        assert!(store.now().0 > 240 * SECOND_NS);
        // Pauses grow: some calls a minute for each connection.
        assert!(store.calls() < 100 + 70 * connections as u64);
        store.set_away_for(3600);
        let trouble = read_all(reader, 100).unwrap_err();
        assert!(trouble.what.contains(" tries in 30"), "{trouble}");
        assert!(!trouble.is_final);
    }
}

#[test]
fn g17_what_is_read_ahead_is_bounded_and_never_nothing() {
    const MIB: u64 = 1 << 20;
    let store = SimStore::new(1);
    let count = |sizes: &mut dyn Iterator<Item = u64>, connections| {
        let reader = store.reader().with_connections(connections);
        let mut ahead: ReadAhead<'_, u64, ()> = ReadAhead::new(reader);
        let mut bytes = 0;
        for (number, size) in (0..).zip(sizes) {
            if !ahead.has_room(size) {
                assert!(number == 1 || bytes <= BYTES_AHEAD);
                return number;
            }
            ahead.push(number, Want::whole("it"), size);
            bytes += size;
        }
        u64::MAX
    };
    let same = std::iter::repeat::<u64>;
    assert_eq!(count(&mut same(100), 64), 128);
    assert_eq!(count(&mut same(100), 1), 2);
    assert_eq!(count(&mut same(0), 5000), 512);
    assert_eq!(count(&mut same(8 * MIB), 64), 8);
    assert_eq!(count(&mut same(64 * MIB + 96), 64), 1);
    assert_eq!(count(&mut same(u64::MAX), 64), 1);
    assert_eq!(count(&mut [40 * MIB, 40 * MIB].into_iter(), 64), 1);
}

#[test]
fn bytes_that_were_read_and_not_given_leave_no_room() {
    let store = SimStore::new(1);
    let half = BYTES_AHEAD / 2;
    for name in ["0", "1", "2"] {
        store.set_object(name, Some(Vec::new()));
    }
    let mut ahead = ReadAhead::new(store.reader());
    let checked = Cell::new(0);
    for number in [0, 1] {
        assert!(ahead.has_room(half));
        ahead.push(number, Want::whole(&number.to_string()), half);
    }
    assert!(!ahead.has_room(1));
    let check = |_: &i32, _| {
        checked.set(checked.get() + 1);
        Ok(())
    };
    assert_eq!(ahead.next(check), Ok(Some((0, Ok(())))));
    // The other one is here, and is not given yet.
    assert_eq!(checked.get(), 2);
    assert!(ahead.has_room(half) && !ahead.has_room(half + 1));
    assert_eq!(ahead.next(check), Ok(Some((1, Ok(())))));
    assert_eq!(ahead.next(check), Ok(None));
    assert!(ahead.has_room(u64::MAX));
}

/// Run with `--nocapture`, it prints what docs/disaster-recovery.md says.
#[test]
fn a_slow_store_is_read_as_many_times_as_fast_as_it_has_connections() {
    const OBJECTS: u64 = 10_000;
    let rate = |connections| {
        let store = store_of(OBJECTS, 1);
        let reader = store.reader().with_connections(connections);
        assert_eq!(read_all(reader, OBJECTS).unwrap().len() as u64, OBJECTS);
        OBJECTS as i64 * SECOND_NS / store.now().0
    };
    let rates = [1, 8, 64, 256].map(|connections| (connections, rate(connections)));
    for (connections, rate) in rates {
        println!("{connections} connections, 20 ms a request: {rate} objects/s");
    }
    let [(_, one), more @ ..] = rates;
    assert!((49..=51).contains(&one));
    for (connections, rate) in more {
        assert!(rate > one * connections as i64 * 8 / 10, "{rates:?}");
    }
}
