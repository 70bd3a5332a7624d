//! `bsd-client` beside `beanstalkc`, at the same server: `bsd-client-beside HOST:PORT`.
//!
//! Each case is timed in rounds, in which the two take turns, so that both see the same machine. The
//! figures are medians of the rounds, in microseconds for each job, and their ratio.

use std::error::Error;
use std::time::{Duration, Instant};

use beanstalkc::Beanstalkc;
use bsd_client::{Client, Put};

const ROUNDS: usize = 21;
const JOBS: usize = 1000;
const BODY: &[u8] = b"{\"to\":\"someone@example.org\",\"subject\":\"a body of some sixty bytes\"}";

type Timed = Result<f64, Box<dyn Error>>;

/// Microseconds for each job.
fn time(run: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Timed {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / JOBS as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Rounds of one and the other, in turns.
fn compare(
    name: &str,
    mut ours: impl FnMut() -> Timed,
    mut theirs: impl FnMut() -> Timed,
) -> Result<(), Box<dyn Error>> {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(ours()?);
        other.push(theirs()?);
    }
    let (one, other) = (median(one), median(other));
    let ratio = other / one;
    println!("{name:24} bsd-client {one:8.2} us   beanstalkc {other:8.2} us   ratio {ratio:5.2}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("give HOST:PORT of a server without jobs")?;
    let (host, port) = address.rsplit_once(':').ok_or("give HOST:PORT")?;
    let mut ours = Client::connect(&*address)?;
    let mut theirs = Beanstalkc::new().host(host).port(port.parse()?).connect()?;
    let ttr = Duration::from_secs(120);

    let mut ours_puts = || {
        time(|| {
            for _ in 0..JOBS {
                ours.put(Put::new(BODY))?;
            }
            Ok(())
        })
    };
    let mut theirs_puts = || {
        time(|| {
            for _ in 0..JOBS {
                theirs.put(BODY, 65_536, Duration::ZERO, ttr)?;
            }
            Ok(())
        })
    };
    compare("put", &mut ours_puts, &mut theirs_puts)?;

    // As many jobs are reserved as were put.
    let mut ours_works = || {
        time(|| {
            for _ in 0..JOBS {
                let job = ours.reserve(Duration::ZERO)?.ok_or("no job")?;
                ours.delete(job.id)?;
            }
            Ok(())
        })
    };
    let mut theirs_works = || {
        time(|| {
            for _ in 0..JOBS {
                theirs.reserve()?.delete()?;
            }
            Ok(())
        })
    };
    compare("reserve, delete", &mut ours_works, &mut theirs_works)?;

    let puts = vec![Put::new(BODY); JOBS];
    let mut ours_batches = || {
        time(|| {
            for result in ours.put_many(&puts)? {
                result?;
            }
            Ok(())
        })
    };
    compare("put, 1000 at once", &mut ours_batches, || {
        time(|| {
            for _ in 0..JOBS {
                theirs.put(BODY, 65_536, Duration::ZERO, ttr)?;
            }
            Ok(())
        })
    })?;

    let mut ours_batches = || {
        time(|| {
            let mut left = JOBS;
            while left > 0 {
                let jobs = ours.reserve_batch(100, Duration::ZERO)?;
                let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
                ours.delete_batch(&ids)?;
                left = left.saturating_sub(ids.len());
            }
            Ok(())
        })
    };
    compare("reserve, delete by 100", &mut ours_batches, || {
        time(|| {
            for _ in 0..JOBS {
                theirs.reserve()?.delete()?;
            }
            Ok(())
        })
    })?;

    let mut ours_stats = || {
        time(|| {
            for _ in 0..JOBS {
                ours.stats_tube("default")?;
            }
            Ok(())
        })
    };
    compare("stats-tube", &mut ours_stats, || {
        time(|| {
            for _ in 0..JOBS {
                theirs.stats_tube("default")?;
            }
            Ok(())
        })
    })
}
