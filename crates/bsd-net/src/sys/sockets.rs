//! How is a socket made, and how is its file kept hold of?

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Gid, Mode, RawMode, Uid};
use rustix::net::{AddressFamily, SocketType};

/// Whether a read that did not fill its buffer has taken everything that was there, the end of the
/// stream included or announced later: `epoll(7)` promises this for TCP, `kqueue(2)` does not.
pub(crate) const SHORT_READ_EMPTIES_TCP: bool = cfg!(target_os = "linux");

/// A stream socket that is closed on `exec` and does not block.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    use rustix::net::SocketFlags;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

/// In three steps: a program that another thread starts in between inherits the socket.
#[cfg(target_vendor = "apple")]
pub(crate) fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Probe the other end of a connection when nothing has come for `after`, `count` times with `between`
/// between them.
pub(crate) fn probe_after(
    socket: impl AsFd,
    after: Duration,
    between: Duration,
    count: u32,
) -> rustix::io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(&socket, after)?;
    sockopt::set_tcp_keepintvl(&socket, between)?;
    sockopt::set_tcp_keepcnt(&socket, count)
}

/// End a connection on which what was sent is not taken for so long. Only Linux can.
pub(crate) fn give_up_after(socket: impl AsFd, untaken: Duration) -> rustix::io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        let ms = u32::try_from(untaken.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(socket, ms)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (socket, untaken);
        Ok(())
    }
}

/// Whether a socket that was passed on listens. macOS cannot tell: there it is taken to.
pub(crate) fn listens(socket: impl AsFd) -> io::Result<bool> {
    #[cfg(not(target_vendor = "apple"))]
    return Ok(rustix::net::sockopt::socket_acceptconn(socket)?);
    #[cfg(target_vendor = "apple")]
    {
        let _ = socket;
        Ok(true)
    }
}

/// The address of a service manager's socket. On Linux a name that begins with `@` is not in the
/// file system.
pub(crate) fn manager_address(name: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = name.as_encoded_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(Path::new(name))
}

/// Permissions as they are written down, such as `0o660`.
pub(crate) fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits as RawMode)
}

/// The file of a Unix socket that is not bound yet gets these permissions, minus the umask: at no
/// moment does it have more.
#[cfg(target_os = "linux")]
pub(crate) fn limit_mode(socket: impl AsFd, bits: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(socket, mode(bits))?)
}

/// Other systems refuse that. For a moment the file has what the umask leaves; no one can connect
/// before the socket listens, and by then [`Node::set_mode`] has done its work.
#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_mode(_: impl AsFd, _: u32) -> io::Result<()> {
    Ok(())
}

/// The file of a Unix socket itself, whichever file has its name later.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) struct Node(OwnedFd);

/// While this exists, no other file of the file system has the inode number.
#[cfg(target_os = "linux")]
impl Node {
    pub(crate) fn of(path: &Path) -> io::Result<Node> {
        use rustix::fs::OFlags;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Node(rustix::fs::open(path, flags, Mode::empty())?))
    }

    pub(crate) fn give_to(&self, _: &Path, uid: Uid, gid: Gid) -> io::Result<()> {
        let own = rustix::fs::fstat(&self.0)?;
        if (own.st_uid, own.st_gid) == (uid.as_raw(), gid.as_raw()) {
            // A filter of system calls may refuse even what changes nothing.
            return Ok(());
        }
        let flags = AtFlags::EMPTY_PATH;
        Ok(rustix::fs::chownat(
            &self.0,
            "",
            Some(uid),
            Some(gid),
            flags,
        )?)
    }

    pub(crate) fn set_mode(&self, _: &Path, bits: u32) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        // For a file that was opened with `O_PATH`, the system changes permissions only by name.
        // This name always means the file, whatever the directory contains now.
        let name = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        Ok(rustix::fs::chmod(name, mode(bits))?)
    }

    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        let own = rustix::fs::fstat(&self.0)?;
        Ok(identity_at(path)? == Some((own.st_dev, own.st_ino)))
    }
}

/// Where a file cannot be held open without opening what it stands for, its number is remembered.
/// Its directory must belong to who starts the server: another who may write there could put
/// another file in its place between two calls.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) struct Node(Identity);

#[cfg(not(target_os = "linux"))]
impl Node {
    pub(crate) fn of(path: &Path) -> io::Result<Node> {
        let found = identity_at(path)?;
        found
            .map(Node)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn give_to(&self, path: &Path, uid: Uid, gid: Gid) -> io::Result<()> {
        self.expect_at(path)?;
        let (owner, flags) = ((Some(uid), Some(gid)), AtFlags::SYMLINK_NOFOLLOW);
        Ok(rustix::fs::chownat(
            rustix::fs::CWD,
            path,
            owner.0,
            owner.1,
            flags,
        )?)
    }

    pub(crate) fn set_mode(&self, path: &Path, bits: u32) -> io::Result<()> {
        self.expect_at(path)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chmodat(
            rustix::fs::CWD,
            path,
            mode(bits),
            flags,
        )?)
    }

    pub(crate) fn is_at(&self, path: &Path) -> io::Result<bool> {
        Ok(identity_at(path)? == Some(self.0))
    }

    fn expect_at(&self, path: &Path) -> io::Result<()> {
        match self.is_at(path)? {
            true => Ok(()),
            false => Err(io::Error::other("another program has replaced the socket")),
        }
    }
}

#[cfg(target_os = "linux")]
type Identity = (u64, u64);
#[cfg(not(target_os = "linux"))]
type Identity = (rustix::fs::Dev, u64);

/// Device and inode of what has this name; `None`: nothing has.
fn identity_at(path: &Path) -> io::Result<Option<Identity>> {
    match rustix::fs::lstat(path) {
        Err(rustix::io::Errno::NOENT) => Ok(None),
        found => found
            .map(|found| Some((found.st_dev, found.st_ino)))
            .map_err(io::Error::from),
    }
}
