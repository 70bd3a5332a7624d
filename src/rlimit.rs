//! The limit of open files of this process, and the kernel's table for them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved for uses other than connections: the log, the listeners and the standard
/// streams.
const DESCRIPTORS_RESERVED: u64 = 64;

/// Raise the soft limit of open files to the hard one.
///
/// Returns how many connections fit next to the descriptors that the log needs: at least 1. If the
/// limit may not be raised, the soft limit counts.
pub fn raise_descriptor_limit() -> usize {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: highest(before.maximum),
        maximum: before.maximum,
    };
    // If this is refused, the soft limit is unchanged: it is read again below.
    let _ = setrlimit(Resource::Nofile, raised);
    room_for_connections(getrlimit(Resource::Nofile).current)
}

/// The soft limit that may be asked for under this hard one.
fn highest(hard: Option<u64>) -> Option<u64> {
    /// `OPEN_MAX` of macOS, which refuses more even where the hard limit is higher.
    const APPLE_MAX: u64 = 10_240;
    match cfg!(target_vendor = "apple") {
        true => Some(hard.unwrap_or(u64::MAX).min(APPLE_MAX)),
        false => hard,
    }
}

/// Descriptors for which the kernel's table gets room from the start, as far as the limit allows:
/// half a mebibyte of the kernel's memory.
const DESCRIPTOR_TABLE_LEN: u64 = 64 << 10;

/// Makes the kernel enlarge its table of this process's descriptors at once.
///
/// The kernel doubles the table when a descriptor does not fit. In a process with threads it then
/// waits until no processor uses the old table, which took up to 50 ms when thousands connected,
/// and all clients of the one serving thread waited with it. A table never shrinks, so a high
/// number has to be used only once. If that is not possible, the table grows as it is used.
pub fn widen_descriptor_table() {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let last = limit.min(DESCRIPTOR_TABLE_LEN).saturating_sub(1);
    let _ = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last as i32);
}

/// `None`: no limit.
fn room_for_connections(descriptors: Option<u64>) -> usize {
    let room = descriptors
        .unwrap_or(u64::MAX)
        .saturating_sub(DESCRIPTORS_RESERVED)
        .max(1);
    usize::try_from(room).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_becomes_the_hard_one() {
        let room = raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, highest(limit.maximum));
        assert_eq!(room, room_for_connections(limit.current));
    }

    #[test]
    fn connections_leave_descriptors_for_the_log() {
        assert_eq!(room_for_connections(Some(1024)), 960);
        assert_eq!(room_for_connections(Some(10)), 1);
        assert_eq!(room_for_connections(None), usize::MAX - 64);
    }
}
