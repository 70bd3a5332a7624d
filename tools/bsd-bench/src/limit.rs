//! The limit of `bsd-bench cluster`: three nodes that only replicate, `bsd-bench replicate`.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bsd::storage::format::{delete, put_size};
use serde_json::{Value, json};

use crate::options::Shape;
use crate::process::check;
use crate::report::{Table, chosen, count, median, ratio};
use crate::servers::{Ended, Programs, free_addresses};

/// As many entries are on their way at once.
const IN_FLIGHT: [usize; 2] = [1, 8];
/// The load is jobs of this tube, each put, reserved and deleted: three commands and two records.
const TUBE: &str = "default";
const COMMANDS_A_JOB: usize = 3;

/// Measurement of three nodes that replicate the commands of one load as entries.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) shape: Shape,
    in_flight: usize,
    /// Bytes.
    entry: usize,
    entries: Vec<f64>,
    /// Ratios of the leader of three servers in the same round to this.
    ratios: Vec<f64>,
    latency: Vec<Value>,
}

/// How long entries are proposed, before measuring and then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) warmup: Duration,
    pub(crate) measured: Duration,
}

impl Limit {
    /// All the commands of a load that are on their way at once are in this number of entries at once.
    pub(crate) fn of(shape: Shape, body: f64) -> impl Iterator<Item = Limit> {
        let commands = shape.connections * shape.pipeline;
        let is_possible = move |in_flight: &usize| *in_flight <= commands;
        let ways = IN_FLIGHT.into_iter().filter(is_possible);
        ways.map(move |in_flight| Limit {
            shape,
            in_flight,
            entry: entry_size(commands / in_flight, body as usize),
            entries: Vec::new(),
            ratios: Vec::new(),
            latency: Vec::new(),
        })
    }

    /// One round more; `rate`: commands per second of three servers in it.
    pub(crate) fn measure(
        &mut self,
        programs: &Programs,
        times: Times,
        rate: f64,
    ) -> io::Result<()> {
        eprintln!("{} limit, {} in flight", self.shape, self.in_flight);
        let told = replicate(programs, self, times)?;
        let entries = told["entries_per_second"].as_f64();
        let entries = entries.ok_or_else(|| io::Error::other("a node says no rate"))?;
        self.entries.push(entries);
        self.ratios.push(rate / (entries * self.commands()));
        self.latency.push(told["latency_us"].clone());
        Ok(())
    }

    /// In an entry.
    fn commands(&self) -> f64 {
        (self.shape.connections * self.shape.pipeline / self.in_flight) as f64
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "load": self.shape.to_string(),
            "in_flight": self.in_flight,
            "entry_bytes": self.entry,
            "entries_per_second": self.entries,
            "of_it": self.ratios,
            "latency_us": self.latency,
        })
    }
}

fn entry_size(commands: usize, body: usize) -> usize {
    let job = put_size(TUBE.len(), body) + delete::SIZE;
    (job * commands).div_ceil(COMMANDS_A_JOB)
}

/// The limits beside what three servers did.
pub(crate) fn table(limits: &[Limit]) -> Table {
    let mut table = Table::new([
        "load",
        "in flight",
        "entry",
        "entries/s",
        "commands/s",
        "servers to it",
    ]);
    for it in limits {
        let entries = median(&it.entries);
        table.push([
            it.shape.to_string(),
            it.in_flight.to_string(),
            chosen(it.entry as u64),
            count(entries),
            count(entries * it.commands()),
            ratio(median(&it.ratios)),
        ]);
    }
    table
}

/// Figures that the leader of three nodes has measured.
fn replicate(programs: &Programs, limit: &Limit, times: Times) -> io::Result<Value> {
    let dir = programs.directory()?;
    let addresses: [SocketAddr; 3] = free_addresses()?;
    let list = addresses.map(|address| address.to_string());
    let (says, said) = mpsc::channel();
    let mut nodes = Vec::new();
    for nth in 1..=addresses.len() {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["replicate", "--node", &nth.to_string()]);
        command.args(["--addresses", &list.join(",")]);
        command.arg("--dir").arg(dir.path().join(nth.to_string()));
        command.args(["--size", &limit.entry.to_string()]);
        command.args(["--in-flight", &limit.in_flight.to_string()]);
        command.args(["--warmup", &times.warmup.as_secs_f64().to_string()]);
        command.args(["--seconds", &times.measured.as_secs_f64().to_string()]);
        let mut command = programs.pinned(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut node = Ended::start(&mut command)?;
        let (output, says) = (node.output()?, says.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Anyone who asks has ended.
                let _ = says.send(line);
            }
        });
        nodes.push(node);
    }
    drop(says);
    loop {
        check()?;
        match said.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => return serde_json::from_str(&line).map_err(io::Error::other),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other(
                    "three nodes that replicate have ended; what they said of it stands above",
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_commands_of_all_clients() {
        let shape: Shape = "50x16".parse().unwrap();
        let limits: Vec<Limit> = Limit::of(shape, 100.0).collect();
        let sizes: Vec<usize> = limits.iter().map(|it| it.entry).collect();
        let job = put_size(7, 100) + delete::SIZE;
        assert_eq!(sizes, [(800 * job).div_ceil(3), (100 * job).div_ceil(3)]);
        let alone: Vec<Limit> = Limit::of("1x1".parse().unwrap(), 100.0).collect();
        assert_eq!(alone.len(), 1);
    }
}
