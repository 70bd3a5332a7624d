//! A store that is not well for a long time, again and again, under load.
//!
//! `BSD_BAD_STORE_SECONDS` is the length of a run. Meanwhile the queue waits for nothing, memory and
//! directory stay bounded, and what is told is true; afterwards everything is in the archive.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::archive_seen::metric;
use crate::harness::{Launch, Server, complaints, wait_within};
use crate::http::Site;
use crate::s3::{Mood, SmallS3, URL, client_of, wal};
use crate::soak::size_of;
use bsd::check::volume::{seed_of_run, volume};
use bsd::random::Random;

const HOLD_MAX: u64 = 4 << 20;
/// Bytes of the directory beside the held ones: the log itself, and the files of compaction.
const BESIDE_HELD: u64 = 4 << 20;
const GROWTH_MAX: u64 = 24 << 20;
const BODY_SIZE: usize = 2000;
/// Jobs that are alive.
const ALIVE: usize = 200;
/// Pauses of the client, so that a run of an hour fits into a store in memory.
const PAUSE: Duration = Duration::from_millis(5);
/// A request that is not answered is given up after a minute.
const PATIENCE: Duration = Duration::from_secs(300);
const MOODS: [Mood; 5] = [
    Mood::Fails,
    Mood::Forbids,
    Mood::Slow,
    Mood::Full,
    Mood::Silent,
];

/// Ends the load, also where a check has failed.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Puts and deletes, until it is told to end. What is alive then, and the longest wait for a reply.
fn load(server: &Server, is_over: &AtomicBool) -> (VecDeque<u64>, Duration) {
    let (mut wire, mut alive, mut longest) = (server.connect(), VecDeque::new(), Duration::ZERO);
    while !is_over.load(Ordering::SeqCst) {
        let began = Instant::now();
        alive.push_back(wire.put(&[b'x'; BODY_SIZE]));
        if alive.len() > ALIVE {
            let oldest = alive.pop_front().unwrap();
            assert_eq!(wire.ask(&format!("delete {oldest}")), "DELETED");
        }
        longest = longest.max(began.elapsed());
        thread::sleep(PAUSE);
    }
    (alive, longest)
}

/// One spell of a mood, and one in which the store is well. Looks at the server meanwhile.
fn spell(site: &Site, store: &SmallS3, dir: &Path, mood: Mood, length: Duration) -> (u64, u64) {
    let mut greatest = (0, 0);
    for mood in [mood, Mood::Well] {
        store.set(mood);
        let end = Instant::now() + length;
        while Instant::now() < end {
            let (memory, directory) = (site.server.resident_memory(), size_of(dir));
            greatest = (greatest.0.max(memory), greatest.1.max(directory));
            let told = metric(site, "bsd_archive_lag_bytes");
            assert!(
                told <= (HOLD_MAX + BESIDE_HELD) as f64,
                "{told} bytes of lag"
            );
            thread::sleep(length / 10);
        }
    }
    greatest
}

#[test]
fn a7_a10_a_store_that_is_not_well_for_long_costs_bounded_memory_and_disk_and_is_caught_up_with() {
    let whole = Duration::from_secs(volume("BSD_BAD_STORE_SECONDS", 10));
    let mut random = Random::new(seed_of_run("BSD_BAD_STORE_SEED"));
    let place = TempDir::new().unwrap();
    let (dir, restored) = (place.path().join("data"), place.path().join("restored"));
    let store = SmallS3::start(Mood::Well);
    let hold = ["--archive-hold-max".to_owned(), HOLD_MAX.to_string()];
    let launch = client_of(
        store.address,
        Launch::bsd().dir(&dir).args(["-s", "262144"]),
    );
    let site = Site::start(launch.args(hold));
    wait_within(PATIENCE, "there is a base", || {
        metric(&site, "bsd_archive_bases_total") == 1.0
    });
    let is_over = AtomicBool::new(false);
    let (mut spells, mut least, mut most) = (0, u64::MAX, (0, 0));
    let (alive, longest) = thread::scope(|scope| {
        let ended = Ends(&is_over);
        let load = scope.spawn(|| load(&site.server, &is_over));
        let end = Instant::now() + whole;
        // Each at least once, and all kinds of lengths.
        while spells < MOODS.len() || Instant::now() < end {
            let share = 1 + random.below(20) as u32;
            let mood = MOODS[spells % MOODS.len()];
            let found = spell(&site, &store, &dir, mood, whole / 400 * share);
            spells += 1;
            least = least.min(found.0);
            most = (most.0.max(found.0), most.1.max(found.1));
            // What is older than a minute is not needed here.
            let (code, said) = wal(store.address, &["archive", "expire", "--keep", "1m", URL]);
            assert_eq!(code, Some(0), "{said}");
        }
        drop(ended);
        load.join().unwrap()
    });
    wait_within(PATIENCE, "it has caught up", || {
        metric(&site, "bsd_archive_up") == 1.0
            && metric(&site, "bsd_archive_in_gap") == 0.0
            && metric(&site, "bsd_archive_lag_bytes") == 0.0
    });
    let gaps = metric(&site, "bsd_archive_gaps_total");
    println!(
        "{spells} spells, {gaps} gaps, {} jobs put; memory {least} to {} bytes, directory at most {} \
         bytes; the longest wait was {longest:?}",
        alive.back().unwrap(),
        most.0,
        most.1
    );
    assert!(most.0 < least + GROWTH_MAX, "memory: {least}, {}", most.0);
    assert!(most.1 <= HOLD_MAX + BESIDE_HELD, "directory: {}", most.1);
    let exit = site.server.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    // Of each gap there is one line, and of each trouble. A store that is slow may leave several gaps
    // in one spell: a base closes each, and then it is behind again.
    let lines = complaints(&exit.stderr);
    let of_gaps = lines.iter().filter(|line| line.contains("GAP")).count();
    assert_eq!(of_gaps, gaps as usize, "{}", exit.stderr);
    assert!(lines.len() - of_gaps <= spells, "{}", exit.stderr);
    let (code, said) = wal(store.address, &["archive", "verify", URL]);
    assert_eq!(code, Some(0), "{said}");
    let to = restored.to_str().unwrap();
    let (code, said) = wal(store.address, &["archive", "restore", URL, to]);
    assert_eq!(code, Some(0), "{said}");
    let server = Launch::bsd().dir(&restored).start();
    let mut wire = server.connect();
    assert_eq!(
        wire.stat("stats", "current-jobs-ready"),
        alive.len().to_string()
    );
    for id in &alive {
        assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    }
}
