//! Backup, restore and offline compaction: between any two operations of a server, and through a
//! crash at every operation of their own.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_BACKUP_RUNS`, `BSD_BACKUP_SEED` | random runs of a server while backups are taken; the seed of the first | 40; new each run |

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bsd::random::Random;
use bsd::storage::convert::backup::{BackedUp, back_up, restore};
use bsd::storage::convert::offline::{Compacted, compact};
use bsd::storage::disk::sim::{Crash, Errno, Fault, OpKind};
use bsd::storage::disk::{Dir, DirEntry, DirLock, File, Fs, LockError, OpenMode, ReadFile, ReadFs};
use bsd::storage::inspect::Inspection;
use bsd::storage::{OpenError, SimFs, SyncPolicy};
use bsd::types::{Now, Time};

use super::driver::{DIR, Driver, Setup, Step, after_restart, path};
use super::oracle::History;
use super::workload::{Mood, random_steps, tour};
use bsd::check::volume::{seed_of_run, volume};

const BACKUP: &str = "/backup";
const RESTORED: &str = "/restored";

type Files = BTreeMap<String, Vec<u8>>;

fn files(fs: &SimFs, dir: &str) -> Files {
    let names = fs.names(dir).unwrap_or_default();
    let read = |name: &String| fs.read(Path::new(dir).join(name)).unwrap();
    names
        .iter()
        .map(|name| (name.clone(), read(name)))
        .collect()
}

/// The log is as it was.
fn unchanged(fs: &SimFs, before: &Files) {
    let after = files(fs, DIR);
    assert!(
        after.keys().eq(before.keys()),
        "{:?} {:?}",
        after.keys(),
        before.keys()
    );
    let changed = before.iter().find(|(name, bytes)| after[*name] != **bytes);
    assert!(changed.is_none(), "{} was changed", changed.unwrap().0);
}

fn copy(fs: &SimFs) -> SimFs {
    fs.crash_image(Crash::KeepAll)
}

/// When a backup is restored: the segment that is begun says so, and nothing else does.
const AT: Now = Now::new(Time(0), 0);

fn door(fs: &SimFs) -> Arc<dyn Fs> {
    Arc::new(fs.clone())
}

fn take(fs: &Arc<dyn Fs>, now: Now) -> Result<BackedUp, OpenError> {
    back_up(fs, Path::new(DIR), Path::new(BACKUP), now, &mut |_, _| ())
}

fn give_back(fs: &SimFs) -> Result<(), OpenError> {
    let (from, to) = (Path::new(BACKUP), Path::new(RESTORED));
    restore(&door(fs), from, to, AT, &mut |_, _| ()).map(drop)
}

fn squeeze(fs: &SimFs, now: Now) -> Result<Compacted, OpenError> {
    compact(&door(fs), Path::new(DIR), now, &|_, _| ())
}

/// A disk on which the restored directory is the server's directory.
fn restored(fs: &SimFs) -> SimFs {
    let disk = SimFs::new(1);
    for (name, bytes) in files(fs, RESTORED) {
        disk.write(Path::new(DIR).join(name), &bytes).unwrap();
    }
    disk
}

/// A server starts on `fs`, and recovers a state of `history` from `least` on.
fn starts(fs: &SimFs, now: Now, history: &History, least: usize) {
    Driver::open(fs, SyncPolicy::Always, now, history, least)
        .unwrap_or_else(|stop| panic!("{stop}"));
}

fn opened(fs: &SimFs, sync: SyncPolicy) -> Driver {
    let mut driver = Driver::begin(fs, sync).unwrap_or_else(|stop| panic!("{stop}"));
    driver.keeps_all = true;
    driver
}

/// A log of several segments, some rewritten, with jobs in all states, whose server was killed.
fn killed(steps: &[Step]) -> Driver {
    let mut driver = opened(&SimFs::new(1), SyncPolicy::Always);
    driver.run(steps).unwrap_or_else(|stop| panic!("{stop}"));
    end(&mut driver);
    driver
}

/// Kill the server; all that it has written is on the disk.
fn end(driver: &mut Driver) {
    driver.kill();
    driver.fs = driver.fs.crash_image(Crash::KeepAll);
    for name in driver.fs.names(DIR).unwrap() {
        let file = driver.fs.open(&path(name), OpenMode::ReadWrite).unwrap();
        file.sync().unwrap();
    }
    driver.fs.sync_dir(Path::new(DIR)).unwrap();
    driver.now = after_restart(driver.now);
    driver.history = History::new(driver.history.now().clone());
}

/// Puts, most of which stay long enough to be spread over many segments; some are reserved, buried
/// and kicked, some deleted, so that every segment holds some garbage.
fn life() -> Vec<Step> {
    let mut steps = vec![Step::Pause {
        tube: 1,
        seconds: 3000,
    }];
    for nth in 0..240 {
        let (tube, delay) = (nth % 3, if nth % 7 == 0 { 3000 } else { 0 });
        steps.push(Step::put(
            tube,
            [nth as u32 % 5, delay, 100],
            400 + nth * 37 % 2000,
        ));
        let worker = nth % 3;
        match nth % 6 {
            0 | 1 => steps.extend([Step::Reserve { worker }, Step::Bury { nth, pri: 3 }]),
            2 => steps.extend([Step::Reserve { worker }, Step::DeleteReserved { nth }]),
            3 => steps.push(Step::Delete { nth: nth * 31 }),
            4 => steps.push(Step::Kick { tube, bound: 1 }),
            _ => {}
        }
        steps.push(Step::Turn { ms: 1 });
    }
    steps.push(Step::Turn { ms: 150 });
    steps
}

// A server that runs on while a tool reads.

thread_local! {
    /// The server, and what it will do next; on the thread of the test, which is the tool's too.
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

struct Server {
    driver: Driver,
    steps: std::vec::IntoIter<Step>,
    /// Steps between two operations of the tool.
    pace: usize,
}

impl Server {
    fn run(&mut self, count: usize) {
        for step in self.steps.by_ref().take(count) {
            self.driver
                .step(step)
                .unwrap_or_else(|stop| panic!("{stop}"));
        }
    }
}

/// The disk, on which the server has done a few things before each operation.
#[derive(Debug)]
struct Shared(SimFs);

fn meanwhile() {
    SERVER.with_borrow_mut(|server| {
        if let Some(server) = server {
            server.run(server.pace);
        }
    });
}

impl ReadFs for Shared {
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn ReadFile>> {
        meanwhile();
        Ok(Arc::new(SharedFile(self.0.open_read(path)?)))
    }
    fn read_dir(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        meanwhile();
        self.0.read_dir(dir)
    }
    fn share_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        meanwhile();
        self.0.share_dir(dir)
    }
}

impl Fs for Shared {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        meanwhile();
        self.0.create_dir(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        meanwhile();
        self.0.create_dir_all(dir)
    }
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        meanwhile();
        Ok(Arc::new(SharedFile(self.0.open(path, mode)?)))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        meanwhile();
        self.0.rename(from, to)
    }
    fn replace(&self, from: &Path, to: &Path) -> io::Result<()> {
        meanwhile();
        self.0.replace(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        meanwhile();
        self.0.remove_file(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        meanwhile();
        self.0.remove_dir(dir)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        meanwhile();
        self.0.sync_dir(dir)
    }
    fn open_dir(&self, dir: &Path) -> io::Result<Box<dyn Dir>> {
        self.0.open_dir(dir)
    }
    fn lock_dir(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        meanwhile();
        self.0.lock_dir(dir)
    }
}

#[derive(Debug)]
struct SharedFile<F: ?Sized>(Arc<F>);

/// A read that a write overtakes: its first half is older than the second.
fn read_in_halves(
    file: &(impl ReadFile + ?Sized),
    buf: &mut [u8],
    offset: u64,
) -> io::Result<usize> {
    let half = (buf.len() / 2).min(4096);
    let (first, second) = buf.split_at_mut(half);
    let count = file.read_at(first, offset)?;
    if count < half {
        return Ok(count);
    }
    meanwhile();
    Ok(count + file.read_at(second, offset + count as u64)?)
}

impl<F: ReadFile + ?Sized> ReadFile for SharedFile<F> {
    fn size(&self) -> io::Result<u64> {
        meanwhile();
        self.0.size()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        meanwhile();
        read_in_halves(&*self.0, buf, offset)
    }
}

impl File for SharedFile<dyn File> {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        meanwhile();
        self.0.write_at(buf, offset)
    }
    fn sync(&self) -> io::Result<()> {
        meanwhile();
        self.0.sync()
    }
    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_size(size)
    }
    fn allocate(&self, size: u64) -> io::Result<()> {
        self.0.allocate(size)
    }
    fn zero(&self, size: u64) -> io::Result<bool> {
        self.0.zero(size)
    }
}

/// One server's life, with clean stops and starts; backups are taken into the same directory all
/// the time, each is restored, and the log is verified in between.
fn back_up_all_along(sync: SyncPolicy, steps: Vec<Step>, pace: usize) {
    let disk = SimFs::new(1);
    let driver = opened(&disk, sync);
    SERVER.set(Some(Server {
        driver,
        steps: steps.into_iter(),
        pace,
    }));
    let shared: Arc<dyn Fs> = Arc::new(Shared(disk.clone()));
    let with = |work: &mut dyn FnMut(&mut Server)| {
        SERVER.with_borrow_mut(|server| work(server.as_mut().unwrap()));
    };
    loop {
        let (mut least, mut now, mut is_over) = (0, None, false);
        with(&mut |server| {
            server.run(60);
            least = server.driver.least_acknowledged();
            now = Some(server.driver.now);
            is_over = server.steps.len() == 0;
        });
        take(&shared, now.unwrap()).unwrap_or_else(|error| panic!("{error}"));
        let image = copy(&disk);
        give_back(&image).unwrap_or_else(|error| panic!("{error}"));
        with(&mut |server| {
            let now = after_restart(server.driver.now);
            starts(&restored(&image), now, &server.driver.history, least);
        });
        let live = Inspection::read_live(shared.clone(), Path::new(DIR), &mut |_, _| ()).unwrap();
        assert!(live.is_intact(), "{:?}", live.losses);
        assert!(live.live.is_some_and(|live| live.durable <= live.end));
        if is_over {
            break;
        }
    }
    SERVER.set(None);
}

/// A backup under load, with rotation and compaction between any two operations of it.
#[test]
fn a_backup_of_a_running_server_holds_all_that_was_acknowledged_before_it_began() {
    for pace in [0, 1, 2, 7, 30] {
        back_up_all_along(SyncPolicy::Always, tour(), pace);
    }
    back_up_all_along(SyncPolicy::Never, tour(), 3);
    back_up_all_along(SyncPolicy::Interval(20), tour(), 3);
}

#[test]
fn backups_of_random_servers() {
    let first = seed_of_run("BSD_BACKUP_SEED") >> 16;
    for seed in first..first + volume("BSD_BACKUP_RUNS", 40) {
        let mut random = Random::new(seed);
        let mood = Mood::any(&mut random);
        let steps = random_steps(&mut random, mood, 900);
        let sync = match random.below(3) {
            0 => SyncPolicy::Never,
            _ => SyncPolicy::Always,
        };
        println!("run {seed}: {mood:?} {sync:?}");
        back_up_all_along(sync, steps, random.below(12));
    }
}

// Crashes.

/// The tour that ends at every operation, or at one in `step`, and what may then be on the disk.
fn each_crash_of_the_tour(step: usize, mut look: impl FnMut(&SimFs, &Driver, Now, (u64, Crash))) {
    let steps = tour();
    for operation in (1..).step_by(step) {
        let fs = SimFs::new(1);
        fs.crash_at(operation);
        let Ok(mut driver) = Driver::begin(&fs, SyncPolicy::Always) else {
            continue;
        };
        if driver.run(&steps).is_ok() {
            assert!(operation > 300, "{operation} operations are not much");
            break;
        }
        let now = after_restart(driver.now);
        for how in ways(operation) {
            look(&fs, &driver, now, (operation, how));
        }
    }
}

/// A server can be in the middle of anything when its files are listed, and so can one that has
/// been killed, or lost its power, in the middle of it: also between the name of a new segment and
/// the seal of the one before.
#[test]
fn a_backup_in_the_middle_of_any_operation_is_one_that_a_server_starts_on() {
    each_crash_of_the_tour(2, |fs, driver, now, (operation, how)| {
        let least = match how {
            Crash::KeepAll => driver.least_acknowledged(),
            _ => driver.least_durable(),
        };
        let image = fs.crash_image(how);
        let live = Inspection::read_live(door(&image), Path::new(DIR), &mut |_, _| ());
        assert!(live.is_ok_and(|live| live.is_intact() && live.live.is_some()));
        take(&door(&image), now)
            .and_then(|_| give_back(&image))
            .unwrap_or_else(|error| panic!("operation {operation}, {how:?}: {error}"));
        starts(&restored(&image), now, &driver.history, least);
    });
}

const WAYS: [Crash; 2] = [Crash::DropUnsynced, Crash::KeepAll];

fn ways(random: u64) -> impl Iterator<Item = Crash> {
    WAYS.into_iter().chain([Crash::Random { seed: random }])
}

/// Several, for one of them has to lose just that name that matters.
fn random_ways(nth: u64) -> impl Iterator<Item = Crash> {
    (0..6).map(move |way| Crash::Random {
        seed: nth * 6 + way,
    })
}

/// A tool at work on a disk.
type Work<'a> = &'a dyn Fn(&SimFs) -> Result<(), OpenError>;

/// Pass what a crash at each operation of `work` may leave, done on a copy of `fs`, to `check`.
/// Returns the number of operations.
fn crash_everywhere(fs: &SimFs, work: Work<'_>, check: &dyn Fn(SimFs)) -> u64 {
    for nth in 0.. {
        let disk = copy(fs);
        disk.crash_at(disk.operations() + nth);
        let done = work(&disk);
        if !disk.is_crashed() {
            done.unwrap_or_else(|error| panic!("without any fault: {error}"));
            return nth;
        }
        for how in WAYS.into_iter().chain(random_ways(nth)) {
            check(disk.crash_image(how));
        }
    }
    unreachable!("work comes to an end")
}

/// The backup on `fs` can be restored, and is the log as it was in one of `histories`.
fn is_backup_of(fs: &SimFs, now: Now, histories: &[&History]) {
    give_back(fs).unwrap_or_else(|error| panic!("{error}"));
    let disk = restored(fs);
    let jobs = |disk: &SimFs| {
        Inspection::read(door(disk), Path::new(DIR), &mut |_, _| ())
            .unwrap()
            .job_count()
    };
    let is_it = |history: &&&History| history.now().jobs.len() == jobs(&disk);
    let history = histories.iter().find(is_it);
    let history = history.unwrap_or_else(|| panic!("{} jobs are of no backup", jobs(&disk)));
    starts(&disk, now, history, 0);
}

/// A crash at every operation of a backup.
#[test]
fn a_first_backup_that_a_crash_ends_is_none_and_can_be_taken_again() {
    let driver = killed(&life());
    let (now, source) = (driver.now, files(&driver.fs, DIR));
    let operations = crash_everywhere(&driver.fs, &|fs| take(&door(fs), now).map(drop), &|fs| {
        unchanged(&fs, &source);
        let is_complete = fs.read(Path::new(BACKUP).join("backup.manifest")).is_ok();
        match give_back(&copy(&fs)) {
            Err(OpenError::Foreign { .. } | OpenError::Io(_)) if !is_complete => {}
            Ok(()) if is_complete => {}
            other => panic!("complete: {is_complete}, {other:?}"),
        }
        take(&door(&fs), now).unwrap_or_else(|error| panic!("{error}"));
        is_backup_of(&fs, now, &[&driver.history]);
    });
    assert!(operations > 40, "{operations}");
}

/// A server's disk with a backup of an earlier time; what it was then; and the server now, killed.
fn outdated() -> (History, Driver) {
    let steps = life();
    let mut driver = opened(&SimFs::new(1), SyncPolicy::Always);
    driver
        .run(&steps[..500])
        .unwrap_or_else(|stop| panic!("{stop}"));
    driver.turn(150).unwrap_or_else(|stop| panic!("{stop}"));
    take(&door(&driver.fs), driver.now).unwrap_or_else(|error| panic!("{error}"));
    let then = History::new(driver.history.now().clone());
    driver
        .run(&steps[500..])
        .unwrap_or_else(|stop| panic!("{stop}"));
    end(&mut driver);
    assert_ne!(
        then.now().jobs.len(),
        driver.history.now().jobs.len(),
        "the two can be told apart"
    );
    (then, driver)
}

#[test]
fn a_backup_that_a_crash_ends_leaves_the_one_before_or_the_new_one() {
    let (then, driver) = outdated();
    let (now, source) = (driver.now, files(&driver.fs, DIR));
    crash_everywhere(&driver.fs, &|fs| take(&door(fs), now).map(drop), &|fs| {
        unchanged(&fs, &source);
        is_backup_of(&copy(&fs), now, &[&then, &driver.history]);
        take(&door(&fs), now).unwrap_or_else(|error| panic!("{error}"));
        is_backup_of(&fs, now, &[&driver.history]);
    });
}

/// A crash at every operation of a restore.
#[test]
fn a_restore_that_a_crash_ends_is_nothing_or_whole_and_the_backup_is_as_it_was() {
    let driver = killed(&life());
    let now = driver.now;
    take(&door(&driver.fs), now).unwrap_or_else(|error| panic!("{error}"));
    let backup = files(&driver.fs, BACKUP);
    crash_everywhere(&driver.fs, &give_back, &|fs| {
        assert!(files(&fs, BACKUP) == backup, "the backup was changed");
        if files(&fs, RESTORED).is_empty() {
            give_back(&fs).unwrap_or_else(|error| panic!("{error}"));
        }
        starts(&restored(&fs), now, &driver.history, 0);
    });
}

/// The second one gets an error, and the first one does not notice it.
#[test]
fn two_restores_to_one_place_at_a_time_do_not_meet() {
    let driver = killed(&life());
    take(&door(&driver.fs), driver.now).unwrap_or_else(|error| panic!("{error}"));
    let mut refused = 0;
    let to = (Path::new(BACKUP), Path::new(RESTORED));
    let first = restore(&door(&driver.fs), to.0, to.1, driver.now, &mut |_, _| {
        let second = restore(&door(&driver.fs), to.0, to.1, driver.now, &mut |_, _| ());
        assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
        refused += 1;
    });
    first.unwrap_or_else(|error| panic!("{error}"));
    assert!(refused > 0);
    let fs = restored(&driver.fs);
    starts(&fs, driver.now, &driver.history, 0);
}

/// A crash at every operation of an offline compaction.
#[test]
fn an_offline_compaction_that_a_crash_ends_changes_no_job_and_can_be_run_again() {
    let driver = killed(&life());
    let now = driver.now;
    let operations = crash_everywhere(&driver.fs, &|fs| squeeze(fs, now).map(drop), &|fs| {
        starts(&copy(&fs), now, &driver.history, 0);
        squeeze(&fs, now).unwrap_or_else(|error| panic!("{error}"));
        starts(&fs, now, &driver.history, 0);
    });
    assert!(operations > 40, "{operations}");
}

/// Torn tails, unfinished segments: everything that a start repairs is repaired.
#[test]
fn an_offline_compaction_of_what_any_crash_leaves_changes_no_job() {
    each_crash_of_the_tour(5, |fs, driver, now, (operation, how)| {
        let image = fs.crash_image(how);
        squeeze(&image, now)
            .unwrap_or_else(|error| panic!("operation {operation}, {how:?}: {error}"));
        starts(&image, now, &driver.history, driver.least_durable());
    });
}

/// A failure is reported, nothing is left half-done, and the same call works once the disk does.
#[test]
fn every_operation_fails_once_in_backup_restore_and_compaction() {
    let driver = killed(&life());
    let now = driver.now;
    let back_up = |fs: &SimFs| take(&door(fs), now).map(drop);
    let there_and_back = |fs: &SimFs| back_up(fs).and_then(|()| give_back(fs));
    let squeeze = |fs: &SimFs| squeeze(fs, now).map(drop);
    let works: [Work<'_>; 2] = [&there_and_back, &squeeze];
    let source = files(&driver.fs, DIR);
    for (index, work) in works.into_iter().enumerate() {
        for kind in OpKind::ALL {
            for nth in 1.. {
                let disk = copy(&driver.fs);
                disk.inject(Fault::fail(kind, Errno::IO).nth(nth));
                disk.clear_trace();
                let done = work(&disk);
                let count = disk.trace().iter().filter(|op| op.kind == kind).count();
                disk.clear_faults();
                if done.is_ok() && (count as u64) < nth {
                    break;
                }
                if index == 0 {
                    assert!(files(&disk, DIR) == source, "{kind:?} {nth}");
                    if done.is_err() && files(&disk, RESTORED).is_empty() {
                        work(&disk).unwrap_or_else(|error| panic!("{kind:?} {nth}: {error}"));
                    }
                    starts(&restored(&disk), now, &driver.history, 0);
                } else {
                    work(&disk).unwrap_or_else(|error| panic!("{kind:?} {nth}: {error}"));
                    starts(&disk, now, &driver.history, 0);
                }
            }
        }
    }
}

// Their results.

#[test]
fn a_second_backup_copies_only_what_has_changed_and_removes_what_is_not_needed() {
    let (_, driver) = outdated();
    let now = driver.now;
    let before = files(&driver.fs, BACKUP);
    let second = take(&door(&driver.fs), now).unwrap();
    assert!(
        second.copied_files < second.files,
        "sealed segments are not copied again: {second:?}"
    );
    assert!(second.removed_files > 0, "{second:?}");
    let after = files(&driver.fs, BACKUP);
    // The manifest and the lock are the two others.
    assert_eq!(after.len() as u64, second.files + 2, "{:?}", after.keys());
    assert!(before.keys().any(|name| !after.contains_key(name)));
    let third = take(&door(&driver.fs), now).unwrap();
    assert_eq!((third.copied_files, third.removed_files), (0, 0));
}

#[test]
fn an_offline_compaction_leaves_what_is_alive_and_a_second_one_finds_nothing_to_do() {
    let driver = killed(&life());
    let now = driver.now;
    let live = |fs: &SimFs| {
        let inspection = Inspection::read(door(fs), Path::new(DIR), &mut |_, _| ()).unwrap();
        assert!(inspection.is_intact());
        inspection.live_and_dead_bytes().0
    };
    let alive = live(&driver.fs);
    let first = squeeze(&driver.fs, now).unwrap();
    assert_eq!(first.jobs, driver.history.now().jobs.len() as u64);
    assert_eq!(first.left_alone, 0);
    assert!(first.bytes_after < first.bytes_before, "{first:?}");
    assert!(live(&driver.fs) <= alive);
    let names = driver.fs.names(DIR).unwrap();
    assert!(
        !names
            .iter()
            .any(|name| name.starts_with("spare") || name == "compaction")
    );
    // The live records, and the segment in which the log continues.
    let dead = first.bytes_after - alive;
    assert!(
        dead <= (64 << 10) + (8 << 10),
        "{dead} bytes too many: {first:?}"
    );
    let second = squeeze(&driver.fs, now).unwrap();
    assert_eq!(second.bytes_after, first.bytes_after);
    starts(&driver.fs, now, &driver.history, 0);
}

#[test]
fn a_damaged_log_is_neither_backed_up_nor_compacted_and_the_last_backup_stays() {
    let (then, driver) = outdated();
    let stored = files(&driver.fs, BACKUP);
    let is_new = |name: &String| {
        name.starts_with("segment-") && !stored.keys().any(|stored| stored.starts_with(name))
    };
    let new: Vec<String> = files(&driver.fs, DIR).into_keys().filter(is_new).collect();
    assert!(new.len() >= 2, "{new:?}");
    for name in new {
        let fs = copy(&driver.fs);
        fs.flip_bit(path(name), 8 * 5000).unwrap();
        let source = files(&fs, DIR);
        let works = [
            take(&door(&fs), driver.now).map(drop),
            squeeze(&fs, driver.now).map(drop),
        ];
        for done in works {
            assert!(matches!(done, Err(OpenError::Damaged { .. })), "{done:?}");
        }
        unchanged(&fs, &source);
        is_backup_of(&fs, driver.now, &[&then]);
    }
}

/// A log that was restored and went on by itself has files of the same names and sizes as the one
/// that it came from.
#[test]
fn a_file_of_the_same_name_and_size_with_other_content_is_copied_again() {
    let other = life().into_iter().map(|step| match step {
        Step::Put {
            tube,
            pri,
            delay,
            ttr,
            size,
        } => Step::put(tube, [pri, delay, ttr + 1], size),
        step => step,
    });
    let (one, other) = (killed(&life()), killed(&other.collect::<Vec<Step>>()));
    let sizes = |fs: &SimFs| {
        let sizes = files(fs, DIR).into_iter();
        let sizes = sizes.map(|(name, bytes)| (name, bytes.len()));
        sizes.collect::<Vec<(String, usize)>>()
    };
    assert_eq!(sizes(&one.fs), sizes(&other.fs));
    take(&door(&one.fs), one.now).unwrap();
    for (name, bytes) in files(&other.fs, DIR) {
        one.fs.write(path(name), &bytes).unwrap();
    }
    let second = take(&door(&one.fs), one.now).unwrap();
    assert_eq!(second.copied_files, second.files);
    give_back(&one.fs).unwrap();
    starts(&restored(&one.fs), other.now, &other.history, 0);
}

/// A live check of a directory that is not in use reports the same as an ordinary one, whatever is
/// wrong.
#[test]
fn a_live_check_finds_what_an_ordinary_one_finds() {
    let driver = killed(&life());
    let check = |fs: &SimFs, what: &str| {
        let dir = Path::new(DIR);
        let ordinary = Inspection::read(door(fs), dir, &mut |_, _| ());
        let live = Inspection::read_live(door(fs), dir, &mut |_, _| ());
        match (ordinary, live) {
            (Ok(ordinary), Ok(live)) => {
                assert_eq!(ordinary.losses, live.losses, "{what}");
                assert_eq!(ordinary.job_count(), live.job_count(), "{what}");
            }
            (Err(_), Err(_)) => {}
            (ordinary, live) => panic!("{what}: {ordinary:?} {live:?}"),
        }
    };
    check(&driver.fs, "nothing");
    for (name, bytes) in files(&driver.fs, DIR) {
        if !name.starts_with("segment-") {
            continue;
        }
        let fs = copy(&driver.fs);
        fs.remove(path(&name)).unwrap();
        check(&fs, &format!("{name} is missing"));
        for at in (0..80).chain((80..bytes.len()).step_by(1999)) {
            let fs = copy(&driver.fs);
            fs.flip_bit(path(&name), at as u64 * 8 + at as u64 % 8)
                .unwrap();
            check(&fs, &format!("{name} has a flipped bit in byte {at}"));
        }
        for at in (0..bytes.len() as u64).step_by(4999) {
            let fs = copy(&driver.fs);
            fs.truncate(path(&name), at).unwrap();
            check(&fs, &format!("{name} is cut to {at} bytes"));
            let fs = copy(&driver.fs);
            fs.fail_reads(path(&name), at..at + 1).unwrap();
            check(&fs, &format!("{name} cannot be read at byte {at}"));
        }
    }
}

#[test]
fn a_backup_of_another_log_and_a_strangers_directory_are_left_alone() {
    let driver = killed(&life());
    let fs = &driver.fs;
    fs.write(Path::new(BACKUP).join("letter"), b"dear").unwrap();
    let refused = take(&door(fs), driver.now);
    assert!(matches!(refused, Err(OpenError::Foreign { .. })));
    fs.remove(Path::new(BACKUP).join("letter")).unwrap();
    take(&door(fs), driver.now).unwrap();
    let backup = files(fs, BACKUP);
    // Another log, in the place of this one.
    for name in fs.names(DIR).unwrap() {
        fs.remove(Path::new(DIR).join(name)).unwrap();
    }
    let options = bsd::Options {
        log_id: Some(bsd::storage::format::LogId([8; 16])),
        ..super::driver::options(fs, Setup::from(SyncPolicy::Always))
    };
    bsd::JobQueue::open_with(&options).unwrap().close().unwrap();
    let refused = take(&door(fs), driver.now);
    assert!(
        matches!(refused, Err(OpenError::Foreign { .. })),
        "{refused:?}"
    );
    assert!(files(fs, BACKUP) == backup);
}
