//! Facts about a process.
//!
//! Linux tells it in `/proc`. Elsewhere nothing is told here, and what would show it is left out.

#[cfg(target_os = "linux")]
use std::path::{Path, PathBuf};

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

/// The memory that this process and others share, bytes: the machine's, or less where its control group,
/// of a container or of a unit, may have less; `None`: the system does not tell.
#[cfg(target_os = "linux")]
pub fn machine_memory() -> Option<u64> {
    // Not from `/proc/meminfo`: a unit may have a `/proc` of processes alone.
    let info = rustix::system::sysinfo();
    let total = (info.totalram as u64).saturating_mul(info.mem_unit.into());
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups_of(&own).filter_map(|dir| {
        let limit = std::fs::read_to_string(dir.join("memory.max")).ok()?;
        limit.trim().parse().ok()
    });
    Some(limits.fold(total, u64::min))
}

/// `None`: the system does not tell.
#[cfg(not(target_os = "linux"))]
pub fn machine_memory() -> Option<u64> {
    None
}

/// The directories of the control group that `/proc/self/cgroup` names, and of those it is in.
#[cfg(target_os = "linux")]
fn groups_of(own: &str) -> impl Iterator<Item = PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = Path::new("/sys/fs/cgroup").join(path.unwrap_or_default());
    let groups: Vec<_> = path.ancestors().map(Path::to_owned).collect();
    groups
        .into_iter()
        .take_while(|dir| dir.starts_with("/sys/fs/cgroup"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_have_what_all_groups_around_it_allow() {
        let groups = |own| groups_of(own).collect::<Vec<_>>();
        let unit = groups("0::/system.slice/bsd.service\n");
        let wanted = ["/system.slice/bsd.service", "/system.slice", ""];
        assert_eq!(
            unit,
            wanted.map(|path| PathBuf::from(format!("/sys/fs/cgroup{path}")))
        );
        for own in ["0::/\n", "12:memory:/old\n", ""] {
            assert_eq!(groups(own), [PathBuf::from("/sys/fs/cgroup")], "{own}");
        }
        assert!(machine_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
