//! TLS: whom a client believes, and how it shows who it is.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Result};

/// Authorities that a client believes, and its own certificate, for addresses with `tls:`.
///
/// ```no_run
/// use bsd_client::{Client, Config, Tls};
///
/// let tls = Tls::with_authorities(&std::fs::read("ca.pem")?)?;
/// let config: Config = "tls:queue.example:11301".parse()?;
/// let client = Client::connect(config.tls(tls))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn wrong(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::usage(format!("{what} cannot be used: {error}")).because(error)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| wrong("a certificate", error))?;
    match read.is_empty() {
        false => Ok(read),
        true => Err(Error::usage("there is no certificate in PEM")),
    }
}

fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots
            .add(certificate)
            .map_err(|error| wrong("an authority", error))?;
    }
    Ok(roots)
}

impl Tls {
    /// Believe servers whose certificate is of one of these authorities, PEM.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): the PEM has no certificate that can be used.
    pub fn with_authorities(pem: &[u8]) -> Result<Tls> {
        Tls::new(pem, None)
    }

    /// The same, and show this certificate (PEM, with those between it and its authority) to servers
    /// that ask for one; `key` is its private key, PEM.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): one of them cannot be used.
    pub fn with_identity(authorities: &[u8], certificate: &[u8], key: &[u8]) -> Result<Tls> {
        Tls::new(authorities, Some((certificate, key)))
    }

    fn new(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<Tls> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(roots(authorities)?);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
        let verifier = verifier
            .build()
            .map_err(|error| wrong("the authorities", error))?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("the cipher suites", error))?
            .with_webpki_verifier(verifier);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key);
                let key = key.map_err(|error| wrong("the private key", error))?;
                builder
                    .with_client_auth_cert(certificates(certificate)?, key)
                    .map_err(|error| wrong("the certificate", error))?
            }
        };
        Ok(Tls::with_config(Arc::new(config)))
    }

    /// Any configuration of rustls.
    #[must_use]
    pub fn with_config(config: Arc<ClientConfig>) -> Tls {
        Tls { config, name: None }
    }

    /// The name that the server's certificate must have, if it is not the host of the address.
    ///
    /// # Errors
    /// [`Usage`](crate::ErrorKind::Usage): it is no name and no IP address.
    pub fn server_name(mut self, name: &str) -> Result<Tls> {
        self.name = Some(server_name(name)?);
        Ok(self)
    }

    /// What a connection to this host needs.
    pub(crate) fn of(&self, host: &str) -> Result<(Arc<ClientConfig>, ServerName<'static>)> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => server_name(host)?,
        };
        Ok((self.config.clone(), name))
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>> {
    let read = ServerName::try_from(name.to_owned());
    read.map_err(|error| wrong(&format!("the server's name {name:?}"), error))
}
