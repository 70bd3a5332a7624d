//! Events that wake the live view: keys, signals, new rounds, and the end of the terminal. Between
//! these it sleeps.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

use super::keys::{Key, Keys};

/// The rest of a key's sequence comes this soon, also over a slow line; ns.
const SEQUENCE_NS: i64 = 50_000_000;

/// Rings when there is something to look at.
#[derive(Debug)]
pub(super) struct Bell(UnixStream);

impl Bell {
    pub(super) fn ring(&self) {
        // It rings already if there is no room, and no one listens if it is closed.
        let _ = (&self.0).write(&[0]);
    }
}

/// The event that ended a sleep.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Awake {
    /// Keys may have been pressed, the size may have changed, a round may be there.
    Keys(Vec<Key>),
    /// A signal asks for the end.
    Stop,
    /// The terminal has gone: no one looks any more.
    Gone,
}

/// The sleeper.
#[derive(Debug)]
pub(super) struct Waiter {
    bell: UnixStream,
    stop: Arc<AtomicBool>,
    keys: Keys,
}

/// A waiter, which signals wake, and the bell that wakes it too.
///
/// A second signal of the same kind ends the process at once: the first one does nothing as long as
/// a terminal that takes no output blocks the view.
pub(super) fn waiter() -> io::Result<(Waiter, Bell)> {
    let (bell, ringer) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    ringer.set_nonblocking(true)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
        signal_hook::low_level::pipe::register(signal, ringer.try_clone()?)?;
    }
    signal_hook::low_level::pipe::register(SIGWINCH, ringer.try_clone()?)?;
    let keys = Keys::default();
    Ok((Waiter { bell, stop, keys }, Bell(ringer)))
}

impl Waiter {
    /// Sleep until there is something to do.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub(super) fn wait(&mut self) -> io::Result<Awake> {
        let stdin = io::stdin();
        let mut files = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&self.bell, PollFlags::IN),
        ];
        let rest = Timespec {
            tv_sec: 0,
            tv_nsec: SEQUENCE_NS,
        };
        let timeout = self.keys.is_begun().then_some(&rest);
        match poll(&mut files, timeout) {
            Err(Errno::INTR) => return Ok(self.awake(Vec::new())),
            Err(error) => return Err(error.into()),
            Ok(0) => {
                let key = self.keys.give_up();
                return Ok(self.awake(key.into_iter().collect()));
            }
            Ok(_) => {}
        }
        let [terminal, bell] = files.map(|file| file.revents());
        if !bell.is_empty() {
            self.silence()?;
        }
        // A terminal that has hung up can be read for ever, and says nothing.
        if terminal.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Ok(Awake::Gone);
        }
        match terminal.contains(PollFlags::IN) {
            true => self.read(),
            false => Ok(self.awake(Vec::new())),
        }
    }

    fn awake(&self, keys: Vec<Key>) -> Awake {
        match self.stop.load(Ordering::Relaxed) {
            true => Awake::Stop,
            false => Awake::Keys(keys),
        }
    }

    fn read(&mut self) -> io::Result<Awake> {
        let mut bytes = [0; 256];
        match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(0) | Err(Errno::IO) => Ok(Awake::Gone),
            Ok(size) => {
                let keys = self.keys.read(&bytes[..size]);
                Ok(self.awake(keys))
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(self.awake(Vec::new())),
            Err(error) => Err(error.into()),
        }
    }

    fn silence(&mut self) -> io::Result<()> {
        let mut bytes = [0; 256];
        loop {
            match self.bell.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
