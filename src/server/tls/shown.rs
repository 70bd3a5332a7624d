//! Which certificate is shown to whom.
//!
//! A member of a cluster that passes its clients on knows the cluster's authority, and not that of the
//! clients. It says so in its hello, by a protocol of its own (ALPN), and is shown the certificate
//! that members know each other by.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::{certificates, unusable};

/// The protocol that a member asks for. No protocol is ever agreed on: this only says who asks.
pub(in crate::server) const PASSED_ON: &[u8] = b"bsd-passed-on";

/// A certificate, those between it and the authority, and its key.
pub(in crate::server) type Signed = Arc<CertifiedKey>;

/// Read them, in PEM.
///
/// # Errors
/// What is wrong with which file.
pub(in crate::server) fn read_signed(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Signed, String> {
    let chain = certificates(cert)?;
    let read = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable("key", key, &error))?;
    let signed = CertifiedKey::from_der(chain, read, provider).map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        format!("cannot use the certificate {cert} with the key {key}: {error}")
    })?;
    Ok(Arc::new(signed))
}

/// What members are shown, as far as there are any; one for all clones.
#[derive(Debug, Clone, Default)]
pub(super) struct OfMembers(Arc<Mutex<Option<Signed>>>);

impl OfMembers {
    #[cfg(feature = "cluster")]
    pub(super) fn set(&self, signed: Signed) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(signed);
    }

    fn get(&self) -> Option<Signed> {
        let signed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        signed.clone()
    }
}

/// What is shown.
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
