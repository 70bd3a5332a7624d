//! Which certificate is shown to whom.
//!
//! A member of a cluster that passes its clients on knows the cluster's authority, and not that of the
//! clients. It says so in its hello, by a protocol of its own (ALPN), and is shown the certificate
//! that members know each other by.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tracing::warn;

use super::{certificates, end_of, explained, unreadable, warn_of_end};
use bsd::SetupError;

/// The protocol that a member asks for. No protocol is ever agreed on: this only says who asks.
pub(crate) const PASSED_ON: &[u8] = b"bsd-passed-on";

/// A certificate, those between it and the authority, and its key.
pub(crate) type Signed = Arc<CertifiedKey>;

/// Read them, in PEM. Warnings tell of a certificate that ends soon, and of a key that others can
/// read.
///
/// # Errors
/// The file, and its fault.
pub(crate) fn read_signed(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Signed, SetupError> {
    let chain = certificates(cert)?;
    let read = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("key", key, error))?;
    let signed = CertifiedKey::from_der(chain, read, provider).map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        let why = explained(&error);
        SetupError::new(format_args!(
            "cannot use the certificate {cert} with the key {key}: {why}"
        ))
    })?;
    warn_of_end(cert, end_of(&signed.cert));
    warn_of_readers(key);
    Ok(Arc::new(signed))
}

/// Warn if every user can read or write the key. A key that its group can read is accepted: other servers
/// of the machine may share it.
fn warn_of_readers(key: &Path) {
    let mode = std::fs::metadata(key).map_or(0, |it| it.permissions().mode() & 0o777);
    if mode & 0o007 != 0 {
        let key = key.display();
        warn!(
            "the key {key} has the rights {mode:04o}: everyone on this machine can read or change \
               it; make them 0600 (chmod 600)"
        );
    }
}

/// Certificate shown to members, if there is one; one for all clones.
#[derive(Debug, Clone, Default)]
pub(super) struct OfMembers(Arc<Mutex<Option<Signed>>>);

impl OfMembers {
    pub(super) fn set(&self, signed: Signed) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(signed);
    }

    fn get(&self) -> Option<Signed> {
        let signed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        signed.clone()
    }
}

/// The certificates in use.
#[derive(Debug)]
pub(super) struct Shown {
    of_clients: Signed,
    of_members: OfMembers,
}

impl Shown {
    pub(super) fn new(of_clients: Signed, of_members: OfMembers) -> Shown {
        Shown {
            of_clients,
            of_members,
        }
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Signed> {
        let asked = hello.alpn();
        let is_member = asked.is_some_and(|mut asked| asked.any(|protocol| protocol == PASSED_ON));
        let of_members = is_member.then(|| self.of_members.get()).flatten();
        Some(of_members.unwrap_or_else(|| Arc::clone(&self.of_clients)))
    }
}
