//! Time, the processors and their use by this process, signals to others; and interrupts.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGINT, SIGTERM};

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

/// Suspend a process, like a paused virtual machine.
pub(crate) fn suspend(pid: u32) -> io::Result<()> {
    signal(pid, Signal::STOP)
}

/// Continue a suspended process.
pub(crate) fn resume(pid: u32) -> io::Result<()> {
    signal(pid, Signal::CONT)
}

/// Ask a process to end.
pub(crate) fn terminate(pid: u32) -> io::Result<()> {
    signal(pid, Signal::TERM)
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

/// Not known here: no one is told.
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
