//! Services of the process, and of the programs that started it: a user, signals during the start,
//! and systemd.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::unistd::{Gid, User, geteuid, getuid, setuid};
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing::warn;

use crate::sys;
use bsd::clock::Clock;
use bsd::types::{SECOND_NS, Time};

/// A user that the process may become.
#[derive(Debug, Clone)]
pub struct Account(User);

impl Account {
    /// The user of this name.
    ///
    /// # Errors
    /// No such account exists, or the system cannot look it up.
    pub fn find(name: &str) -> io::Result<Account> {
        let none = || io::Error::new(io::ErrorKind::NotFound, "there is no such user");
        User::from_name(name)?.map(Account).ok_or_else(none)
    }

    /// Become this user, with its group and all its supplementary groups, and no others. If the
    /// process is this user already and may not change its groups, it keeps them; a warning names
    /// the groups that are not the user's.
    ///
    /// # Errors
    /// The process is not allowed to.
    pub fn assume(&self) -> io::Result<()> {
        let Account(user) = self;
        let name = CString::new(user.name.as_str())?;
        // The groups first: afterwards the process may no longer change them.
        match sys::groups::enter(&name, user) {
            Err(error) if is_refused(&error) && user.uid == geteuid() => {
                warn_of_groups(&user.name, &sys::groups::foreign(&name, user)?);
            }
            outcome => outcome?,
        }
        // A filter of system calls may refuse even what changes nothing.
        match setuid(user.uid) {
            Err(Errno::EPERM) if user.uid == geteuid() && user.uid == getuid() => Ok(()),
            outcome => Ok(outcome?),
        }
    }

    pub(super) fn uid(&self) -> rustix::fs::Uid {
        rustix::fs::Uid::from_raw(self.0.uid.as_raw())
    }

    pub(super) fn gid(&self) -> rustix::fs::Gid {
        rustix::fs::Gid::from_raw(self.0.gid.as_raw())
    }
}

fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn warn_of_groups(name: &str, others: &[Gid]) {
    if others.is_empty() {
        return;
    }
    let others: Vec<String> = others.iter().map(Gid::to_string).collect();
    warn!(
        "the process stays in groups that {name} is not in ({}), and may not leave them: start it \
         as root, or without them",
        others.join(", ")
    );
}

/// While this exists, SIGTERM and SIGINT end the process at once, with exit code 0.
///
/// This is for the time before the loop runs. A replay may take long; nothing has been acknowledged
/// yet, and a crash at any moment does not harm the log. So there is nothing to wait for.
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

/// The program that started this process, if it wants status messages (`sd_notify(3)`): systemd or
/// another service manager.
///
/// Nothing here waits: a manager that does not read must not delay clients.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    watchdog: Option<Watchdog>,
    /// [`ServiceManager::notify_standby`] was the last word.
    is_standby: bool,
    /// The last message could not be sent, and that was logged.
    is_deaf: bool,
}

/// See [`ServiceManager::heart`].
pub(super) type Heart = Box<dyn Fn() + Send + Sync>;

const YEAR_US: u64 = 365 * 24 * 3600 * 1_000_000;

/// The manager ends the process if it gets no message for some time.
#[derive(Debug)]
struct Watchdog {
    interval_ns: i64,
    next: Time,
}

impl ServiceManager {
    /// The manager that the environment names: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`.
    #[must_use]
    pub fn from_env() -> ServiceManager {
        let text = |name| std::env::var(name).ok();
        let mut manager = ServiceManager::default();
        if let Some(name) = std::env::var_os("NOTIFY_SOCKET") {
            match connect_to_manager(&name) {
                Ok(socket) => manager.socket = Some(socket),
                Err(error) => manager.say_deaf(&error),
            }
        }
        manager.watchdog = watchdog(text("WATCHDOG_USEC"), text("WATCHDOG_PID"));
        manager
    }

    /// Clients are served from now on.
    pub(crate) fn notify_ready(&mut self) {
        match &self.watchdog {
            Some(watchdog) if self.is_standby => {
                let allowed_us = 2 * watchdog.interval_ns / 1000;
                self.notify(&format!("READY=1\nSTATUS=\nWATCHDOG_USEC={allowed_us}\n"));
            }
            _ => self.notify("READY=1\n"),
        }
        self.is_standby = false;
    }

    /// No one is served, and that may last: it does what it is for. It may wait for a store longer
    /// than a watchdog would, so that one waits a year.
    pub fn notify_standby(&mut self) {
        self.is_standby = true;
        self.notify(&format!(
            "READY=1\nSTATUS=standby: no one is served\nWATCHDOG_USEC={YEAR_US}\n"
        ));
    }

    /// The server is stopping.
    pub(crate) fn notify_stopping(&mut self) {
        self.notify("STOPPING=1\n");
    }

    /// When [`ServiceManager::tell_alive`] is due next.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        self.watchdog.as_ref().map(|watchdog| watchdog.next)
    }

    /// To be called once each turn of the loop: a loop that hangs must not look alive.
    pub(super) fn tell_alive(&mut self, now: Time) {
        let Some(watchdog) = &mut self.watchdog else {
            return;
        };
        if now >= watchdog.next {
            watchdog.next = Time(now.0.saturating_add(watchdog.interval_ns));
            self.notify("WATCHDOG=1\n");
        }
    }

    /// Tells the manager, whenever it is called and that is due, that what keeps the loop goes on:
    /// for work that takes longer than a turn may, step by step. `None`: no one waits for it.
    pub(super) fn heart(&self, clock: Clock) -> Option<Heart> {
        let interval_ns = self.watchdog.as_ref()?.interval_ns;
        let socket = self.socket.as_ref()?.try_clone().ok()?;
        let next = AtomicI64::new(0);
        Some(Box::new(move || {
            let now = clock.now().mono.0;
            if now >= next.load(Ordering::Relaxed) {
                next.store(now.saturating_add(interval_ns), Ordering::Relaxed);
                // If it cannot be sent, the next turn of the loop says so.
                let _ = socket.send(b"WATCHDOG=1\n");
            }
        }))
    }

    fn notify(&mut self, message: &str) {
        let Some(socket) = &self.socket else {
            return;
        };
        match socket.send(message.as_bytes()) {
            Ok(_) => self.is_deaf = false,
            Err(error) => self.say_deaf(&error),
        }
    }

    fn say_deaf(&mut self, error: &io::Error) {
        if !self.is_deaf {
            warn!("cannot notify the service manager: {error}");
        }
        self.is_deaf = true;
    }
}

fn connect_to_manager(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = sys::sockets::manager_address(name)?;
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Twice within the time that the manager allows, as `sd_watchdog_enabled(3)` recommends.
fn watchdog(microseconds: Option<String>, pid: Option<String>) -> Option<Watchdog> {
    const INTERVAL_MIN_NS: i64 = SECOND_NS / 1000;
    let is_ours = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    let microseconds: u32 = microseconds.filter(|_| is_ours)?.parse().ok()?;
    (microseconds > 0).then(|| Watchdog {
        interval_ns: (i64::from(microseconds) * 500).max(INTERVAL_MIN_NS),
        next: Time(0),
    })
}

/// The processor time of this process, in user mode and in the kernel, in microseconds.
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
    fn f16_the_watchdog_is_told_twice_in_its_time() {
        let text = |text: &str| Some(text.to_owned());
        let interval = |usec, pid| watchdog(usec, pid).map(|watchdog| watchdog.interval_ns);
        assert_eq!(interval(text("3000000"), None), Some(1_500_000_000));
        let own = std::process::id().to_string();
        assert_eq!(interval(text("1"), Some(own)), Some(1_000_000));
        assert_eq!(interval(text("3000000"), text("1")), None);
        assert_eq!(interval(None, None), None);
        for wrong in ["", "0", "x", "-1"] {
            assert_eq!(interval(text(wrong), None), None, "{wrong}");
        }
    }

    #[test]
    fn g13_long_work_tells_the_manager_that_it_goes_on_and_no_more_often_than_is_due() {
        let (socket, other) = UnixDatagram::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let watched = |interval_ns| ServiceManager {
            socket: Some(socket.try_clone().unwrap()),
            watchdog: Some(Watchdog {
                interval_ns,
                next: Time(0),
            }),
            ..ServiceManager::default()
        };
        let heard = || {
            let mut text = [0; 64];
            std::iter::from_fn(|| other.recv(&mut text).ok()).count()
        };
        let heart = watched(i64::MAX).heart(Clock::start()).unwrap();
        (0..1000).for_each(|_| heart());
        assert_eq!(heard(), 1);
        let heart = watched(0).heart(Clock::start()).unwrap();
        (0..5).for_each(|_| heart());
        assert_eq!(heard(), 5);
        assert!(ServiceManager::default().heart(Clock::start()).is_none());
    }

    #[test]
    fn f16_a_manager_that_does_not_read_holds_no_one_up() {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut manager = ServiceManager {
            socket: Some(socket),
            ..ServiceManager::default()
        };
        while !manager.is_deaf {
            manager.notify_ready();
        }
    }

    #[test]
    fn an_unknown_user_is_an_error() {
        let error = Account::find("no-such-user-at-all").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
