//! Usage of a process so far, by `proc(5)`: processor time, memory, bytes read.

use std::io;
use std::time::Duration;

/// Processor time in `/proc/PID/stat` is counted in hundredths of a second (`USER_HZ`, `time(7)`)
/// on every architecture that Rust knows Linux on.
const TICK: Duration = Duration::from_millis(10);

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
