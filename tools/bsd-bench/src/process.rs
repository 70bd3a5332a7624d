//! The resources of this process and of measured ones: time, processor, memory; and interrupts.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Processor time in `/proc/PID/stat` is counted in hundredths of a second (`USER_HZ`, `time(7)`)
/// on every architecture that Rust knows Linux on.
const TICK: Duration = Duration::from_millis(10);

/// `f_type` of a file system that lives in memory (`statfs(2)`).
#[cfg(target_os = "linux")]
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Set by the first SIGINT or SIGTERM.
static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The clock of a program that measures time.
#[allow(clippy::disallowed_methods)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// From now on [`check`] notices the first SIGINT or SIGTERM, so that the servers started here are
/// ended and their directories removed; the second one ends the process.
pub(crate) fn catch_interrupts() -> io::Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(flag))?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(())
}

/// # Errors
/// Returns an error after an interrupt.
pub(crate) fn check() -> io::Result<()> {
    match INTERRUPTED.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(io::Error::other("interrupted")),
        _ => Ok(()),
    }
}

/// Sleep until `deadline`.
pub(crate) fn sleep_until(deadline: Instant) -> io::Result<()> {
    loop {
        check()?;
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// Processor time that this process has used, all threads.
pub(crate) fn own_cpu() -> Duration {
    let (user, system) = bsd_net::cpu_times();
    Duration::from_micros(user + system)
}

/// The resources that another process has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Processor time of all its threads, to a hundredth of a second.
    pub(crate) cpu: Duration,
    /// Bytes of its memory that are resident.
    pub(crate) resident: u64,
}

/// The resources that the process `pid` has used so far.
pub(crate) fn usage(pid: u32) -> io::Result<Usage> {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/{name}")).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("process {pid} cannot be seen: {error}"),
            )
        })
    };
    let (stat, status) = (read("stat")?, read("status")?);
    let unknown = || io::Error::other(format!("/proc/{pid} is not as proc(5) says"));
    Ok(Usage {
        cpu: cpu(&stat).ok_or_else(unknown)?,
        resident: resident(&status).ok_or_else(unknown)?,
    })
}

/// The 14th and 15th field; the second, a name in brackets, may contain anything.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(TICK * (ticks()? + ticks()?))
}

fn resident(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// Bytes that the process `pid` has read so far, from files, sockets and the system.
pub(crate) fn bytes_read(pid: u32) -> io::Result<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
    let line = io.lines().find_map(|line| line.strip_prefix("rchar:"));
    let count = line.and_then(|count| count.trim().parse().ok());
    count.ok_or_else(|| io::Error::other(format!("/proc/{pid}/io is not as proc(5) says")))
}

/// Suspend a process, like a paused virtual machine.
pub(crate) fn suspend(pid: u32) -> io::Result<()> {
    signal(pid, Signal::STOP)
}

/// Continue a suspended process.
pub(crate) fn resume(pid: u32) -> io::Result<()> {
    signal(pid, Signal::CONT)
}

fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("no such process"))?;
    Ok(rustix::process::kill_process(pid, signal)?)
}

/// True if `dir` is in memory, where a sync costs nothing.
#[cfg(target_os = "linux")]
pub(crate) fn is_in_memory(dir: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statfs(dir)?.f_type as i64 == TMPFS_MAGIC)
}

/// Not known here: nobody is told.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_in_memory(_: &Path) -> io::Result<bool> {
    Ok(false)
}

/// The processors for processes: this one uses the last, those that it starts use the others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cores(usize);

impl Cores {
    /// `None` when there is only one.
    pub(crate) fn split() -> Option<Cores> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (count > 1).then_some(Cores(count))
    }

    /// The command line that restricts a program to the other processors (`taskset(1)`).
    pub(crate) fn keep_others(self, command: Command) -> Command {
        let mut pinned = Command::new("taskset");
        pinned.args(["--cpu-list", &format!("0-{}", self.0 - 2)]);
        pinned.arg(command.get_program()).args(command.get_args());
        pinned
    }

    /// Restrict this process to the last processor.
    pub(crate) fn keep_this(self) -> io::Result<()> {
        let (core, pid) = ((self.0 - 1).to_string(), std::process::id().to_string());
        let arguments = ["--cpu-list", "--pid", &core, &pid];
        let output = Command::new("taskset").args(arguments).output()?;
        if output.status.success() {
            Ok(())
        } else {
            Err(io::Error::other(
                "taskset cannot keep this process to one processor",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_name() {
        let stat = "7 (a) b) 9 (c) S 1 1 1 0 -1 4194560 99 0 0 0 120 30 0 0 20 0 1 0 5 1 1";
        assert_eq!(cpu(stat), Some(Duration::from_millis(1500)));
        assert_eq!(cpu("7 (a) S 1"), None);
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(
            resident("VmPeak:\t 9 kB\nVmRSS:\t    128 kB\n"),
            Some(131_072)
        );
        assert_eq!(resident("VmPeak:\t 9 kB\n"), None);
    }

    #[test]
    fn this_process_can_be_seen() {
        let usage = usage(std::process::id()).unwrap();
        assert!(usage.resident > 100 << 10);
        assert!(bytes_read(std::process::id()).unwrap() > 0);
    }
}
