//! A worker for tests: what it gets it says a line at a time. The first word of a job says what becomes
//! of it: `release` fails, `crash` ends this process, everything else is done. The exit code is 0 if it
//! was told to stop and all that it had begun came to its end. Usage: fleet HOST PORT

use std::process::ExitCode;
use std::time::Duration;

use bsd_client::worker::{Failure, Task, Worker};
use bsd_client::{Config, Error};

/// The exit code of a crash.
const CRASHED: i32 = 7;

fn work(job: Task<Vec<u8>>) -> Result<(), Failure> {
    let body = String::from_utf8(job.body.clone())?;
    println!("got {} {body}", job.id);
    match body.split(' ').next() {
        Some("crash") => std::process::exit(CRASHED),
        Some("release") => Err(Failure::new(body)),
        _ => Ok(()),
    }
}

fn main() -> Result<ExitCode, Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let config: Config = words.join(":").parse()?;
    let worker = Worker::raw(work).tube("work");
    let mut running = worker.grace(Duration::from_secs(20)).start(config)?;
    running.stop_on_signals()?;
    println!("up");
    Ok(match running.wait().abandoned {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
