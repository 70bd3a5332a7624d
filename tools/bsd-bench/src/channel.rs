//! Transport of a connection: a socket, or a session of TLS on one.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// How to speak TLS to a server.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS to {:?}", self.name)
    }
}

impl Tls {
    /// To a server of this name, with a certificate of an authority in a file (PEM).
    pub(crate) fn new(name: &str, authority: &Path) -> io::Result<Tls> {
        let mut roots = RootCertStore::empty();
        let found = CertificateDer::pem_file_iter(authority).map_err(io::Error::other)?;
        for certificate in found {
            let certificate = certificate.map_err(io::Error::other)?;
            roots.add(certificate).map_err(io::Error::other)?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        Ok(Tls {
            config: Arc::new(config),
            name,
        })
    }

    fn session(&self) -> io::Result<ClientConnection> {
        let session = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let mut session = session.map_err(io::Error::other)?;
        // Otherwise it takes nothing after 64 KiB, until its handshake is over.
        session.set_buffer_limit(None);
        Ok(session)
    }
}

/// A socket, perhaps with a session on it.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) socket: TcpStream,
    session: Option<Box<ClientConnection>>,
}

impl Channel {
    pub(crate) fn new(socket: TcpStream, tls: Option<&Tls>) -> io::Result<Channel> {
        let session = tls.map(Tls::session).transpose()?.map(Box::new);
        Ok(Channel { socket, session })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.session.is_some()
    }
}

/// Send what the session has encrypted, as far as the socket takes it; the rest leaves with the next
/// call.
fn push(session: &mut ClientConnection, socket: &mut TcpStream) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(socket) {
            Err(error) if is_not_now(&error) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Ok(())
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.session {
            None => self.socket.write(bytes),
            Some(session) => {
                let count = session.writer().write(bytes)?;
                push(session, &mut self.socket)?;
                Ok(count)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.session {
            None => Ok(()),
            Some(session) => push(session, &mut self.socket),
        }
    }
}

impl Read for Channel {
    /// Reads the socket until it is empty or some bytes could be decrypted.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(session) = &mut self.session else {
            return self.socket.read(buffer);
        };
        loop {
            match session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            session.read_tls(&mut self.socket)?;
            session.process_new_packets().map_err(io::Error::other)?;
            push(session, &mut self.socket)?;
        }
    }
}

/// True also for the error of a socket that is still connecting.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    use io::ErrorKind::{NotConnected, WouldBlock};
    matches!(error.kind(), WouldBlock | NotConnected)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// A load may begin with more than a session takes by default.
    #[test]
    fn all_is_taken_before_the_handshake_is_over() {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let tls = Tls {
            config: Arc::new(config),
            name: ServerName::try_from("localhost").unwrap(),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut channel = Channel::new(socket, Some(&tls)).unwrap();
        let commands = vec![b'x'; 1 << 20];
        for _ in 0..2 {
            assert_eq!(channel.write(&commands).unwrap(), commands.len());
        }
    }
}
