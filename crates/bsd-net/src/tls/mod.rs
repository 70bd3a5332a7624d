//! TLS: certificates and keys, read at the start and again on SIGHUP.
//!
//! The loop knows nothing of this but [`TlsStream`], which is one more kind of stream, and that a
//! handshake comes before the first request.

mod certificate;
mod flags;
mod shown;
mod stream;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

pub(crate) use self::certificate::end_of;
pub use self::certificate::explained;
pub use self::certificate::name_of;
pub(super) use self::certificate::warn_of_end;
pub use self::flags::TlsArgs;
pub(super) use self::shown::read_signed;
use self::shown::{OfMembers, Shown};
pub(super) use self::shown::{PASSED_ON, Signed};
pub(super) use self::stream::TlsStream;
use bsd::SetupError;

/// The files that TLS needs, all in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and the authority that clients know.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose certificates clients must have; `None`: clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Content of the files. All clones get what any of them has read again.
#[derive(Debug, Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    of_members: OfMembers,
    read: Arc<Mutex<Read>>,
}

/// Content of the files at the last reading.
#[derive(Debug)]
struct Read {
    config: Arc<ServerConfig>,
    /// When the certificate ends.
    end: Option<i64>,
}

impl Tls {
    /// Read the files.
    ///
    /// # Errors
    /// The file, and its fault.
    pub fn read(files: TlsFiles) -> Result<Tls, SetupError> {
        let of_members = OfMembers::default();
        let read = read(&files, &of_members)?;
        Ok(Tls {
            files: Arc::new(files),
            of_members,
            read: Arc::new(Mutex::new(read)),
        })
    }

    /// Read the files again: new connections get what they say now. Those that are open keep what
    /// they have.
    ///
    /// # Errors
    /// The file, and its fault; then everything stays as it was.
    pub(super) fn reload(&self) -> Result<(), SetupError> {
        let read = read(&self.files, &self.of_members)?;
        *self.last() = read;
        Ok(())
    }

    /// When the certificate ends, seconds since 1970, as far as that can be read.
    pub(super) fn end(&self) -> Option<i64> {
        self.last().end
    }

    /// The file of the certificate.
    pub(super) fn cert(&self) -> &Path {
        &self.files.cert
    }

    /// New connections of members of the cluster, which pass their clients on, get this certificate.
    pub(super) fn show_to_members(&self, signed: Signed) {
        self.of_members.set(signed);
    }

    /// Present settings for new connections.
    pub fn now(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.last().config)
    }

    fn last(&self) -> MutexGuard<'_, Read> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session whose handshake has not begun.
    pub(super) fn session(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(self.now())
    }
}

/// TLS 1.2 and 1.3, and no data before the handshake is over: such data could be replayed.
fn read(files: &TlsFiles, of_members: &OfMembers) -> Result<Read, SetupError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let of_clients = read_signed(&files.cert, &files.key, &provider)?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(SetupError::new)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
    };
    let end = end_of(&of_clients.cert);
    let shown = Shown::new(of_clients, of_members.clone());
    Ok(Read {
        config: Arc::new(builder.with_cert_resolver(Arc::new(shown))),
        end,
    })
}

fn verifier(
    path: &Path,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, SetupError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| unusable("certificates of clients", path, &error))?;
    }
    WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
        .build()
        .map_err(|error| unusable("certificates of clients", path, &error))
}

/// All certificates of a file in PEM; at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SetupError> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(|certificates| certificates.collect());
    let found = found.map_err(|error| unreadable("certificate", path, error))?;
    match found.is_empty() {
        true => Err(unusable("certificate", path, &"no certificate is in it")),
        false => Ok(found),
    }
}

/// Why such a file is of no use.
pub(super) fn unusable(what: &str, path: &Path, error: &dyn std::fmt::Display) -> SetupError {
    SetupError::new(cannot_use(what, path, error))
}

/// Why it cannot be read, or is not PEM.
fn unreadable(what: &str, path: &Path, error: pem::Error) -> SetupError {
    let text = cannot_use(what, path, &error);
    match error {
        pem::Error::Io(cause) => SetupError::io(text, cause),
        _ => SetupError::new(text),
    }
}

fn cannot_use(what: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot use the {what} in {}: {error}", path.display())
}
