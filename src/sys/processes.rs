//! Facts about a process.
//!
//! Linux tells it in `/proc`. Elsewhere nothing is told here, and what would show it is left out.

/// The words of the command line of a process, separated by zeros; `None`: the system does not
/// tell.
pub fn command_line(pid: u32) -> Option<String> {
    match cfg!(target_os = "linux") {
        true => std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok(),
        false => None,
    }
}

/// A process that listens at this TCP port; `None`: the system does not tell this one.
pub fn listener_at(port: u16) -> Option<u32> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let rows: String = tables.into_iter().flatten().collect();
    // A number, both addresses, the state, five columns, the number of the socket.
    let sockets = rows.lines().filter_map(|row| {
        let columns: Vec<&str> = row.split_whitespace().collect();
        let (_, own) = columns.get(1)?.rsplit_once(':')?;
        let listens = *columns.get(3)? == "0A" && u16::from_str_radix(own, 16) == Ok(port);
        listens.then(|| format!("socket:[{}]", columns.get(9).unwrap_or(&"")))
    });
    let sockets: Vec<String> = sockets.collect();
    let has_one = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        files.any(|file| {
            let to = std::fs::read_link(file.path()).unwrap_or_default();
            sockets
                .iter()
                .any(|socket| to.as_os_str() == socket.as_str())
        })
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(has_one)
}

/// The memory of this process, bytes; `None`: the system does not tell.
pub fn resident_memory() -> Option<u64> {
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
pub fn machine_memory() -> Option<u64> {
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
