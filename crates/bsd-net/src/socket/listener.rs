//! Sockets that are bound, and those that listen; the files of Unix sockets.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use mio::{Interest, Registry, Token};
use rustix::net::{AddressFamily, SocketAddrUnix, sockopt};
use tracing::warn;

use super::address::Address;
use super::stream::{Peer, Stream};
use crate::layers::Layers;
use crate::process::Account;
use crate::sys::sockets::{self, stream_socket};

/// Connections that may wait to be accepted; the kernel lowers it to its own bound.
const BACKLOG: i32 = 4096;

/// A socket that is bound but does not listen yet: connections to it are refused.
#[derive(Debug)]
pub struct Bound {
    fd: OwnedFd,
    name: String,
    file: Option<SocketFile>,
    layers: Layers,
}

impl Bound {
    /// Bind `address`; if a name stands for several addresses, the first one that can be bound. The
    /// socket file of a server that no longer runs is replaced. A new socket file gets the owner
    /// `owner`, and `owner`'s own group.
    ///
    /// # Errors
    /// The name cannot be resolved, the address is in use or does not belong to this machine, or
    /// the owner of the file cannot be changed.
    pub fn bind(address: &Address, owner: Option<&Account>) -> io::Result<Bound> {
        match address {
            Address::Tcp { host, port, layers } => Ok(Bound {
                layers: *layers,
                ..bind_first(host, port.number()?)?
            }),
            Address::Unix { path, mode } => bind_path(path, *mode, owner),
        }
    }

    /// Where it will listen, as the start says it: with `tls:`, `proxy:` or `unix:` before it.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}{}", self.layers, self.name)
    }

    /// Let clients connect.
    ///
    /// # Errors
    /// Another process has begun to listen on the address since it was bound.
    pub fn listen(self) -> io::Result<Listener> {
        rustix::net::listen(&self.fd, BACKLOG)?;
        let socket = match self.file {
            Some(_) => ListeningSocket::from_unix(self.fd.into())?,
            None => ListeningSocket::from_tcp(self.fd.into())?,
        };
        let name = socket.name().unwrap_or(self.name);
        Ok(Listener {
            name: format!("{}{name}", self.layers),
            socket,
            file: self.file,
            layers: self.layers,
        })
    }
}

fn bind_first(host: &str, port: u16) -> io::Result<Bound> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match bind_tcp(address) {
            Ok(bound) => return Ok(bound),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn bind_tcp(address: SocketAddr) -> io::Result<Bound> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = stream_socket(family)?;
    // Without this, connections of the last run that remain in TIME_WAIT would prevent a restart.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &address)?;
    Ok(Bound {
        fd,
        name: address.to_string(),
        file: None,
        layers: Layers::NONE,
    })
}

fn bind_path(path: &Path, mode: Option<u32>, owner: Option<&Account>) -> io::Result<Bound> {
    let address = SocketAddrUnix::new(path)?;
    let fd = stream_socket(AddressFamily::UNIX)?;
    if let Some(mode) = mode {
        sockets::limit_mode(&fd, mode)?;
    }
    match rustix::net::bind(&fd, &address) {
        Err(rustix::io::Errno::ADDRINUSE) if is_stale(path, &address)? => {
            rustix::fs::unlink(path)?;
            rustix::net::bind(&fd, &address)?;
        }
        bound => bound?,
    }
    let file = SocketFile::new(path)?;
    if let Some(owner) = owner {
        file.give_to(owner)?;
    }
    if let Some(mode) = mode {
        file.set_mode(mode)?;
    }
    Ok(Bound {
        fd,
        name: format!("unix:{}", path.display()),
        file: Some(file),
        layers: Layers::NONE,
    })
}

/// True for a socket file on which no server listens. Anything that is not a socket must not be
/// replaced.
fn is_stale(path: &Path, address: &SocketAddrUnix) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = stream_socket(AddressFamily::UNIX)?;
    Ok(rustix::net::connect(&probe, address) == Err(rustix::io::Errno::CONNREFUSED))
}

/// The file of a Unix socket. It is removed when this is dropped, unless another server has put its
/// own file there meanwhile.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// The file itself, whichever file has its name now.
    node: sockets::Node,
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        let node = sockets::Node::of(path)?;
        let path = std::path::absolute(path)?;
        Ok(SocketFile { path, node })
    }

    fn give_to(&self, owner: &Account) -> io::Result<()> {
        self.node.give_to(&self.path, owner.uid(), owner.gid())
    }

    fn set_mode(&self, mode: u32) -> io::Result<()> {
        self.node.set_mode(&self.path, mode)
    }

    fn remove(&self) -> io::Result<()> {
        if self.node.is_at(&self.path)? {
            rustix::fs::unlink(&self.path)?;
        }
        Ok(())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            warn!(
                "cannot remove the socket {}: {error}; it does no harm, the next start replaces \
                 it; for it to be removed, its directory must be the server's user's to write",
                self.path.display()
            );
        }
    }
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(mio::net::TcpListener),
    Unix(mio::net::UnixListener),
}

impl ListeningSocket {
    fn from_tcp(listener: std::net::TcpListener) -> io::Result<ListeningSocket> {
        listener.set_nonblocking(true)?;
        Ok(ListeningSocket::Tcp(mio::net::TcpListener::from_std(
            listener,
        )))
    }

    fn from_unix(listener: std::os::unix::net::UnixListener) -> io::Result<ListeningSocket> {
        listener.set_nonblocking(true)?;
        Ok(ListeningSocket::Unix(mio::net::UnixListener::from_std(
            listener,
        )))
    }

    /// The address as bound, with the port that the kernel chose; `None` for a Unix socket.
    fn name(&self) -> Option<String> {
        match self {
            ListeningSocket::Tcp(listener) => Some(listener.local_addr().ok()?.to_string()),
            ListeningSocket::Unix(_) => None,
        }
    }
}

/// A listening socket. The file of a Unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: ListeningSocket,
    name: String,
    /// Held for its `Drop`.
    #[allow(dead_code)]
    file: Option<SocketFile>,
    layers: Layers,
}

impl Listener {
    /// A TCP socket that listens already, passed on by systemd.
    ///
    /// # Errors
    /// The socket does not listen, or cannot be made non-blocking.
    pub(crate) fn from_tcp(listener: std::net::TcpListener) -> io::Result<Listener> {
        refuse_unless_it_listens(&listener)?;
        let socket = ListeningSocket::from_tcp(listener)?;
        Ok(Listener {
            name: socket.name().unwrap_or_default(),
            socket,
            file: None,
            layers: Layers::NONE,
        })
    }

    /// A Unix socket that listens already, passed on by systemd. Its file is left alone.
    ///
    /// # Errors
    /// The socket does not listen, or cannot be made non-blocking.
    pub(crate) fn from_unix(listener: std::os::unix::net::UnixListener) -> io::Result<Listener> {
        refuse_unless_it_listens(&listener)?;
        let address = listener.local_addr()?;
        let path = address.as_pathname().unwrap_or(Path::new("(unnamed)"));
        let name = format!("unix:{}", path.display());
        Ok(Listener {
            socket: ListeningSocket::from_unix(listener)?,
            name,
            file: None,
            layers: Layers::NONE,
        })
    }

    /// Where it listens, in readable form: `127.0.0.1:11300`, `unix:/run/bsd.sock`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Layers between its connections and the protocol.
    pub(crate) fn layers(&self) -> Layers {
        self.layers
    }

    /// The next connection that waits.
    pub(crate) fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                Ok((Stream::Tcp(stream), Peer::at(address)))
            }
            ListeningSocket::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                Ok((Stream::Unix(stream), Peer::Unknown))
            }
        }
    }

    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match &mut self.socket {
            ListeningSocket::Tcp(socket) => registry.register(socket, token, Interest::READABLE),
            ListeningSocket::Unix(socket) => registry.register(socket, token, Interest::READABLE),
        }
    }
}

/// The sockets that systemd has opened for this process (`sd_listen_fds(3)`), TCP or Unix; usually
/// none.
///
/// Call it early: it removes the variables from the environment.
///
/// # Errors
/// A descriptor that was passed is not a listening stream socket.
pub fn inherited_listeners() -> io::Result<Vec<Listener>> {
    let mut passed = listenfd::ListenFd::from_env();
    let listeners = (0..passed.len()).map(|index| inherited_listener(&mut passed, index));
    listeners.collect()
}

fn inherited_listener(passed: &mut listenfd::ListenFd, index: usize) -> io::Result<Listener> {
    // A descriptor of the other family is refused and stays in place.
    if let Ok(Some(listener)) = passed.take_unix_listener(index) {
        return Listener::from_unix(listener);
    }
    match passed.take_tcp_listener(index)? {
        Some(listener) => Listener::from_tcp(listener),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// This server must not make it listen: a program that passes on a socket that is only bound, or a
/// connection, has made a mistake, and clients would be refused without any message.
fn refuse_unless_it_listens(socket: &impl AsFd) -> io::Result<()> {
    if sockets::listens(socket)? {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it does not listen; call listen(2) before it is passed on (systemd: Accept=no)",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Port;

    fn unix(path: &Path, mode: Option<u32>) -> Address {
        Address::Unix {
            path: path.to_owned(),
            mode,
        }
    }

    /// The umask removes nothing from a mode that was requested.
    #[test]
    fn f17_the_socket_file_has_the_mode_that_was_asked_for() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666, 0o777] {
            let path = dir.path().join("q");
            let bound = Bound::bind(&unix(&path, Some(mode)), None).unwrap();
            let found = std::fs::symlink_metadata(&path).unwrap().permissions();
            assert_eq!(found.mode() & 0o777, mode);
            drop(bound);
            assert!(!path.exists(), "{mode:o}");
        }
    }

    #[test]
    fn f16_a_socket_that_does_not_listen_is_refused() {
        let bound = Bound::bind(&loopback(), None).unwrap();
        let error = Listener::from_tcp(bound.fd.into()).unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
        let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let error = Listener::from_unix(OwnedFd::from(end).into()).unwrap_err();
        assert!(error.to_string().contains("does not listen"), "{error}");
    }

    fn loopback() -> Address {
        Address::parse("127.0.0.1:0", &Port::Number(0)).unwrap()
    }

    #[test]
    fn no_one_connects_before_listen() {
        let bound = Bound::bind(&loopback(), None).unwrap();
        let address: SocketAddr = {
            let fd = bound.fd.try_clone().unwrap();
            std::net::TcpListener::from(fd).local_addr().unwrap()
        };
        let refused = std::net::TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let listener = bound.listen().unwrap();
        assert_eq!(listener.name(), address.to_string());
        std::net::TcpStream::connect(address).unwrap();
    }

    #[test]
    fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let address = unix(&dir.path().join("q"), None);
        // A listener of the standard library leaves its file behind: a stale one.
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("q")).unwrap());
        let listener = Bound::bind(&address, None).unwrap().listen().unwrap();
        let in_use = Bound::bind(&address, None).unwrap_err();
        assert_eq!(in_use.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(
            !dir.path().join("q").exists(),
            "the file goes with the listener"
        );
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q");
        std::fs::create_dir(&path).unwrap();
        let error = Bound::bind(&unix(&path, None), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(path.is_dir());
    }

    #[test]
    fn a_socket_file_that_another_server_put_there_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("q");
        let first = Bound::bind(&unix(&path, None), None).unwrap();
        rustix::fs::unlink(&path).unwrap();
        let second = Bound::bind(&unix(&path, None), None).unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }
}
