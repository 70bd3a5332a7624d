//! A pool of workers on one queue: threads that reserve, work, and delete; a job whose work fails
//! is tried again a few times, then buried.
//!
//! `cargo run --example worker_pool -- DIR` puts some jobs into a queue in
//! DIR and works on all that are there. End it at any time, with `kill -9` too: what was put and
//! not finished is worked on the next time.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bsd::{JobError, PutOptions, Queue, Reserved, Session};

const WORKERS: usize = 4;
/// A job whose work has failed so often is put aside.
const TRIES_MAX: u32 = 3;

/// Put `count` jobs, and have all jobs of the queue worked on: how many were done, and how many
/// were put aside.
pub(crate) fn run(dir: &Path, count: u32) -> Result<(u64, u64), Box<dyn Error>> {
    let queue = Queue::open(dir)?;
    let done = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (session, done) = (queue.session(), done.clone());
            thread::spawn(move || work(&session, &done))
        })
        .collect();

    let bodies = (0..count).map(|number| number.to_string());
    for put in queue
        .put_many("sums", bodies, PutOptions::default())
        .wait()?
    {
        put?; // on the disk
    }

    for worker in workers {
        worker.join().expect("a worker does not panic")?;
    }
    let kept = queue.close()?;
    Ok((done.load(Ordering::Relaxed), kept.buried))
}

/// Work until nothing has come for a while. A service would use `reserve` and go on for ever: when
/// the queue is closed it is told so.
fn work(session: &Session, done: &AtomicU64) -> Result<(), JobError> {
    session.watch("sums").wait()?;
    while let Some(job) = session.reserve_within(Duration::from_millis(500)).wait()? {
        match sum(job.body()) {
            Ok(_) => match job.delete().wait() {
                Ok(()) => _ = done.fetch_add(1, Ordering::Relaxed),
                // It took longer than the job's time to run: someone else has it now.
                Err(JobError::NotFound) => {}
                Err(error) => return Err(error),
            },
            Err(why) => put_off(session, job, &why)?,
        }
    }
    Ok(())
}

/// The work of a job.
fn sum(body: &[u8]) -> Result<u64, String> {
    let number: u64 = String::from_utf8_lossy(body)
        .parse()
        .map_err(|error| format!("{error}"))?;
    match number % 10 {
        7 => Err("jobs that end with a 7 fail".to_owned()),
        _ => Ok((0..=number).sum()),
    }
}

/// Try again later, with a lower priority each time; or never.
fn put_off(session: &Session, job: Reserved, why: &str) -> Result<(), JobError> {
    // The queue counts, so that the program need not.
    let releases = session.stats_job(job.id()).wait()?.releases;
    if releases + 1 < TRIES_MAX {
        return job.release(70_000 + releases, Duration::ZERO).wait();
    }
    eprintln!("job {} is put aside: {why}", job.id());
    job.bury(0).wait()
}

#[allow(dead_code, reason = "a test runs `run`")]
fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("give a directory")?;
    let (done, aside) = run(Path::new(&dir), 1000)?;
    println!("{done} jobs done, {aside} put aside");
    Ok(())
}
