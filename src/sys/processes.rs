//! What does the system tell about a process?
//!
//! Linux tells it in `/proc`. Elsewhere nothing is told here, and what would show it is left out.

/// The words of the command line of a process, separated by zeros; `None`: the system does not
/// tell.
pub(crate) fn command_line(pid: u32) -> Option<String> {
    match cfg!(target_os = "linux") {
        true => std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok(),
        false => None,
    }
}

/// The memory of this process, bytes; `None`: the system does not tell.
#[cfg(feature = "http")]
pub(crate) fn resident_memory() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The memory that this process and others share, bytes: the machine's, or less where the container
/// has less; `None`: the system does not tell.
#[cfg(feature = "server")]
pub(crate) fn machine_memory() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let container = container.and_then(|max| max.trim().parse().ok());
    Some(container.unwrap_or(u64::MAX).min(kib * 1024))
}
