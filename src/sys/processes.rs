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
