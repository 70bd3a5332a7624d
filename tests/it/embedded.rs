//! The library as a program uses it: threads, a simulated disk that crashes under them, a process
//! that is killed with -9, and the examples.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use bsd::storage::SimFs;
use bsd::storage::disk::sim::Crash;
use bsd::types::JobId;
use bsd::{Bounds, JobError, JobQueue, Options, PutOptions, Queue, Session};

use crate::ROOT;
use crate::wal::{DIR, options};
use bsd::check::volume::volume;

#[allow(clippy::unwrap_used, dead_code, reason = "an example, run as it is")]
#[path = "../../examples/worker_pool.rs"]
mod worker_pool;

#[allow(clippy::unwrap_used, dead_code, reason = "an example, run as it is")]
#[path = "../../examples/jobs_beside_a_database.rs"]
mod jobs_beside_a_database;

#[test]
fn the_example_of_a_worker_pool_does_all_jobs_but_those_that_fail() {
    let dir = tempfile::tempdir().unwrap();
    let (done, aside) = worker_pool::run(dir.path(), 100).unwrap();
    assert_eq!((done, aside), (90, 10));
    let (done, aside) = worker_pool::run(dir.path(), 0).unwrap();
    assert_eq!((done, aside), (0, 10));
}

#[test]
fn the_example_of_jobs_beside_a_database_mails_each_order_once() {
    let dir = tempfile::tempdir().unwrap();
    let mails = jobs_beside_a_database::run(dir.path()).unwrap();
    let of = |what: &str| format!("your {what} is on its way");
    assert_eq!(mails, ["book", "lamp", "chair"].map(of));
}

/// The replies that callers got, and the requests that were still open.
#[derive(Debug, Default)]
struct Told {
    put: BTreeSet<JobId>,
    delete_asked: BTreeSet<JobId>,
    deleted: BTreeSet<JobId>,
}

impl Told {
    fn check(&self, mut exists: impl FnMut(JobId) -> bool, context: &str) {
        for id in &self.put {
            if self.deleted.contains(id) {
                assert!(!exists(*id), "{context}: job {id} was deleted and is back");
            } else if !self.delete_asked.contains(id) {
                assert!(
                    exists(*id),
                    "{context}: job {id} was acknowledged and is lost"
                );
            }
        }
    }
}

/// Put and delete, one at a time and in batches, until the disk is gone.
fn put_and_delete(session: &Session, told: &Mutex<Told>) -> Result<(), JobError> {
    loop {
        let body = vec![b'x'; 300];
        let one = session.put("t", body.clone(), PutOptions::default());
        let one = one.wait()?;
        told.lock().unwrap().put.insert(one);
        let bodies = [body.clone(), body.clone(), body];
        let many = session.put_many("t", bodies, PutOptions::default());
        let many = many.wait()?.into_iter().collect::<Result<Vec<_>, _>>()?;
        told.lock().unwrap().put.extend(&many);
        let doomed = [one, many[1]];
        told.lock().unwrap().delete_asked.extend(doomed);
        session.delete(one).wait()?;
        told.lock().unwrap().deleted.insert(one);
        for deleted in session.delete_many([many[1]]).wait()? {
            deleted?;
        }
        told.lock().unwrap().deleted.insert(many[1]);
    }
}

/// Threads on a disk that stops at an operation; then what each kind of crash may leave of it.
fn crash_under_threads(seed: u64) {
    let disk = SimFs::new(seed);
    let queue = Queue::open_with(&options(&disk, DIR), Bounds::default()).unwrap();
    disk.crash_at(disk.operations() + 1 + seed * 13 % 400);
    let told = Mutex::new(Told::default());
    thread::scope(|scope| {
        for _ in 0..4 {
            let (session, told) = (queue.session(), &told);
            scope.spawn(move || {
                let ended = put_and_delete(&session, told);
                assert!(matches!(ended, Err(JobError::Store(_))), "{ended:?}");
            });
        }
    });
    assert!(queue.close().is_err());
    let told = told.into_inner().unwrap();
    for how in [Crash::DropUnsynced, Crash::KeepAll, Crash::Random { seed }] {
        let image = disk.crash_image(how);
        let mut queue = JobQueue::open_with(&options(&image, DIR)).unwrap();
        let context = format!("seed {seed}, {how:?}");
        told.check(|id| queue.stats_job(id).is_ok(), &context);
    }
}

#[test]
fn a_power_cut_under_threads_loses_nothing_that_any_of_them_was_told() {
    for seed in 0..volume("BSD_LIBRARY_CRASHES", 40) {
        crash_under_threads(seed);
    }
}

/// The process that the next test kills: a pool of workers that prints each reply on a line before
/// it continues. In a run of all tests it does nothing.
#[test]
fn a_worker_pool_process() {
    let Some(dir) = std::env::var_os("BSD_POOL_DIR") else {
        return;
    };
    let queue = Queue::open(PathBuf::from(dir)).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (worker, producer) = (queue.session(), queue.session());
            scope.spawn(move || while say_deleted(&worker).is_ok() {});
            scope.spawn(move || while say_put(&producer).is_ok() {});
        }
    });
}

fn say_deleted(worker: &Session) -> Result<(), JobError> {
    let job = worker.reserve().wait()?;
    let id = job.id();
    println!("asked {id}");
    job.delete().wait()?;
    println!("deleted {id}");
    Ok(())
}

fn say_put(producer: &Session) -> Result<(), JobError> {
    let bodies = ["a", "b", "c"];
    let put = producer.put_many("default", bodies, PutOptions::default());
    for id in put.wait()? {
        println!("put {}", id?);
    }
    Ok(())
}

/// Read what the pool prints, and kill it after `lines` lines. Its last line may be cut off.
fn kill_after(dir: &Path, lines: usize) -> Told {
    let mut pool = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "embedded::a_worker_pool_process", "--nocapture"])
        .env("BSD_POOL_DIR", dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(pool.stdout.take().unwrap());
    let mut told = Told::default();
    let mut line = String::new();
    for number in 0.. {
        if number == lines {
            pool.kill().unwrap();
        }
        line.clear();
        if said.read_line(&mut line).unwrap() == 0 {
            break;
        }
        let Some((what, id)) = line
            .strip_suffix('\n')
            .and_then(|line| line.split_once(' '))
        else {
            continue;
        };
        let Ok(id) = id.parse().map(JobId) else {
            continue;
        };
        match what {
            "put" => _ = told.put.insert(id),
            "asked" => _ = told.delete_asked.insert(id),
            "deleted" => _ = told.deleted.insert(id),
            _ => {}
        }
    }
    pool.wait().unwrap();
    told
}

#[test]
fn a_worker_pool_killed_with_9_loses_nothing_that_it_was_told() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..volume("BSD_POOL_KILLS", 5) {
        let told = kill_after(dir.path(), 500 + 137 * round as usize);
        assert!(told.put.len() > 100, "the pool has worked: {told:?}");
        let queue = JobQueue::open_with(&Options {
            dir: Some(dir.path().to_owned()),
            ..Options::default()
        });
        let mut queue = queue.unwrap();
        told.check(|id| queue.stats_job(id).is_ok(), &format!("round {round}"));
    }
}

/// Four threads of one program on one handle, with a mutex around nothing.
#[test]
fn a_handle_goes_to_any_thread() {
    fn is_shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    let queue = Queue::open_with(&Options::default(), Bounds::default()).unwrap();
    is_shared(&queue);
    is_shared(&queue.session());
    let queue = Arc::new(queue);
    let puts = (0..4).map(|_| {
        let queue = queue.clone();
        thread::spawn(move || queue.put("t", "a", PutOptions::default()).wait())
    });
    let puts: Vec<_> = puts.collect();
    let ids: BTreeSet<_> = puts
        .into_iter()
        .map(|put| put.join().unwrap().unwrap())
        .collect();
    assert_eq!(ids.len(), 4);
}

/// The crates that the library needs, including this package.
#[test]
fn the_library_is_made_of_few_crates() {
    // Its own rustc: outside of `cargo test` rustup may not know which one is meant.
    let cargo = Path::new(env!("CARGO"));
    let output = Command::new(cargo)
        .env("RUSTC", cargo.with_file_name("rustc"))
        .args(["tree", "--offline", "-p", "bsd-queue", "-e", "normal"])
        .args(["--prefix", "none", "--no-dedupe"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    let tree = String::from_utf8(output.stdout).unwrap();
    let refused = String::from_utf8_lossy(&output.stderr);
    let crates: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(crates.contains("bsd-queue"), "{tree}{refused}");
    // Of these 12 are of the procedural macros with which croner is compiled.
    assert!(crates.len() <= 32, "{} crates: {crates:?}", crates.len());
}
