//! Several servers under the same load, in turn: medians and ratios.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::load::{Load, Plan};
use crate::{CompareArgs, Shape, Workload, now};

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(30);

/// A kind of server to be measured.
struct Candidate {
    name: &'static str,
    program: PathBuf,
    flags: &'static [&'static str],
    is_durable: bool,
}

fn candidates(args: &CompareArgs) -> [Candidate; 4] {
    let kind = |name, program: &Path, flags, is_durable| Candidate {
        name,
        program: program.into(),
        flags,
        is_durable,
    };
    [
        kind("beanstalkd (memory)", &args.beanstalkd, &[], false),
        kind("beanstalkd -b -f0", &args.beanstalkd, &["-f0"], true),
        kind("bsd --memory", &args.bsd, &["--memory"], false),
        kind("bsd -b -f0", &args.bsd, &["-f0"], true),
    ]
}

/// A server that was started here, and is ended when this is dropped.
struct Running {
    child: Child,
    address: SocketAddr,
    dir: PathBuf,
}

impl Running {
    fn start(candidate: &Candidate, parent: &Path) -> io::Result<Running> {
        let address = free_address()?;
        let dir = parent.join(format!("bsd-bench-{}", std::process::id()));
        std::fs::create_dir_all(&dir)?;
        let mut command = Command::new(&candidate.program);
        command.args(["-l", "127.0.0.1", "-p", &address.port().to_string()]);
        command.args(candidate.flags).stdin(Stdio::null());
        if candidate.is_durable {
            command.arg("-b").arg(&dir);
        }
        let child = command.spawn().map_err(|error| {
            io::Error::other(format!(
                "cannot start {}: {error}",
                candidate.program.display()
            ))
        })?;
        let mut running = Running {
            child,
            address,
            dir,
        };
        running.wait_until_it_listens()?;
        Ok(running)
    }

    fn wait_until_it_listens(&mut self) -> io::Result<()> {
        let deadline = now() + START_MAX;
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                return Err(io::Error::other(format!(
                    "the server ended at its start: {status}"
                )));
            }
            if now() > deadline {
                return Err(io::Error::other("the server does not come to listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Measure all, and print.
pub(crate) fn run(args: &CompareArgs) -> io::Result<()> {
    let candidates = candidates(args);
    // The kinds take turns, so that a machine that gets slower does so for all of them.
    let mut rates: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..args.rounds.max(1) {
        for (row, &shape) in args.shapes.iter().enumerate() {
            for (column, candidate) in candidates.iter().enumerate() {
                let rate = measure(candidate, shape, args)?;
                rates.entry((row, column)).or_default().push(rate);
            }
        }
    }
    let median = |row, column| rates.get(&(row, column)).map_or(0.0, |rates| median(rates));
    for (row, shape) in args.shapes.iter().enumerate() {
        let medians: Vec<f64> = (0..candidates.len())
            .map(|column| median(row, column))
            .collect();
        print_row(args, *shape, &candidates, &medians);
    }
    Ok(())
}

fn measure(candidate: &Candidate, shape: Shape, args: &CompareArgs) -> io::Result<f64> {
    let server = Running::start(candidate, &args.dir)?;
    let (address, volume) = (server.address, args.volume);
    let outcome = Load::new(&Plan {
        address,
        shape,
        volume,
        workload: Workload::Cycle,
    })?
    .run()?;
    Ok(outcome.rate())
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Rates, and how they stand to beanstalkd's without and with a log.
fn print_row(args: &CompareArgs, shape: Shape, candidates: &[Candidate], medians: &[f64]) {
    if !args.json {
        println!(
            "{shape}: commands/s, median of {} (× memory, × -f0 of beanstalkd)",
            args.rounds
        );
    }
    for (candidate, rate) in candidates.iter().zip(medians) {
        let (to_memory, to_durable) = (rate / medians[0], rate / medians[1]);
        if args.json {
            println!(
                "{{\"shape\":\"{shape}\",\"server\":\"{}\",\"commands_per_second\":{rate:.0},\
                 \"to_memory\":{to_memory:.2},\"to_durable\":{to_durable:.2}}}",
                candidate.name
            );
        } else {
            println!(
                "  {:<20} {rate:>10.0}  {to_memory:>6.2}  {to_durable:>6.2}",
                candidate.name
            );
        }
    }
}
