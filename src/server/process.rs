//! What the server asks of the process that it lives in, and of those that started it: file
//! descriptors, a user, signals while it starts, and systemd.

use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::{Uid, User, geteuid, initgroups, setgid, setuid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::socket::Listener;

/// Descriptors that connections leave free: for the log, the listeners and the standard streams.
const DESCRIPTORS_RESERVED: u64 = 64;

/// Raise the soft limit of open files to the hard one.
///
/// Returns how many connections that leaves room for, after those that the log needs: at least 1.
#[must_use]
pub fn raise_descriptor_limit() -> usize {
    let before = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: before.maximum,
        maximum: before.maximum,
    };
    // Where that is not allowed the soft limit stays, and is counted with below.
    let _ = setrlimit(Resource::Nofile, raised);
    room_for_connections(getrlimit(Resource::Nofile).current)
}

/// `None` is no limit at all.
fn room_for_connections(descriptors: Option<u64>) -> usize {
    let room = descriptors
        .unwrap_or(u64::MAX)
        .saturating_sub(DESCRIPTORS_RESERVED)
        .max(1);
    usize::try_from(room).unwrap_or(usize::MAX)
}

/// Become `name`, with its group and all the groups it is in. Nothing happens for a process that
/// is `name` already and is not root.
///
/// # Errors
/// There is no such user, or the process is not allowed to become it.
pub fn become_user(name: &str) -> io::Result<()> {
    let user = User::from_name(name)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "there is no such user"))?;
    if user.uid == geteuid() && user.uid != Uid::from_raw(0) {
        return Ok(());
    }
    // The groups first: afterwards the process may no longer change them.
    initgroups(&CString::new(user.name)?, user.gid)?;
    setgid(user.gid)?;
    setuid(user.uid)?;
    Ok(())
}

/// While this lives, SIGTERM and SIGINT end the process at once, with exit code 0.
///
/// That is for the time before the loop runs: a replay may be long, nothing has been acknowledged
/// yet, and a crash at any instant is harmless to the log, so there is nothing to wait for.
#[derive(Debug)]
pub struct ExitOnSignal {
    armed: Arc<AtomicBool>,
}

impl ExitOnSignal {
    /// From now on.
    ///
    /// # Errors
    /// The signals cannot be caught.
    pub fn arm() -> io::Result<ExitOnSignal> {
        let armed = Arc::new(AtomicBool::new(true));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::clone(&armed))?;
        }
        Ok(ExitOnSignal { armed })
    }
}

impl Drop for ExitOnSignal {
    fn drop(&mut self) {
        self.armed.store(false, Ordering::SeqCst);
    }
}

/// The sockets that systemd has opened for us (`sd_listen_fds(3)`), TCP or Unix; mostly none.
///
/// Call it early: it takes the variables out of the environment.
///
/// # Errors
/// A descriptor that was passed is no listening stream socket.
pub fn inherited_listeners() -> io::Result<Vec<Listener>> {
    let mut passed = listenfd::ListenFd::from_env();
    let listeners = (0..passed.len()).map(|index| inherited_listener(&mut passed, index));
    listeners.collect()
}

fn inherited_listener(passed: &mut listenfd::ListenFd, index: usize) -> io::Result<Listener> {
    // A descriptor of the other family is refused and stays where it is.
    if let Ok(Some(listener)) = passed.take_unix_listener(index) {
        return Listener::from_unix(listener);
    }
    match passed.take_tcp_listener(index)? {
        Some(listener) => Listener::from_tcp(listener),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Tell systemd, if it asked, that clients are served from now on.
pub fn notify_ready() {
    notify(NotifyState::Ready);
}

/// Tell systemd, if it asked, that the server is stopping.
pub fn notify_stopping() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// What this process has used of the processor, in user mode and in the kernel, in microseconds.
#[must_use]
pub fn cpu_times() -> (u64, u64) {
    use nix::sys::resource::{UsageWho, getrusage};
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return (0, 0);
    };
    let microseconds = |time: nix::sys::time::TimeVal| {
        time.tv_sec().max(0) as u64 * 1_000_000 + time.tv_usec().max(0) as u64
    };
    (
        microseconds(usage.user_time()),
        microseconds(usage.system_time()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_becomes_the_hard_one() {
        let room = raise_descriptor_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        assert_eq!(room, room_for_connections(limit.current));
    }

    #[test]
    fn connections_leave_descriptors_for_the_log() {
        assert_eq!(room_for_connections(Some(1024)), 960);
        assert_eq!(room_for_connections(Some(10)), 1);
        assert_eq!(room_for_connections(None), usize::MAX - 64);
    }

    #[test]
    fn an_unknown_user_is_an_error() {
        let error = become_user("no-such-user-at-all").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
