//! TLS to the server's HTTP, and to servers between which jobs are moved: the trusted authority, and the
//! certificate of this tool.

use std::path::{Path, PathBuf};

use bsd_client::Tls;
use clap::Args;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::Failure;

/// The files, all in PEM.
#[derive(Args)]
pub(crate) struct TlsArgs {
    /// The certificates of the authority that has signed the server's (PEM); without it, those that
    /// browsers trust
    #[arg(
        long,
        value_name = "FILE",
        env = "BSD_CTL_TLS_CA",
        hide_env_values = true
    )]
    tls_ca: Option<PathBuf>,
    /// The certificate to show, where the server asks for one (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        env = "BSD_CTL_TLS_CERT",
        hide_env_values = true
    )]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        env = "BSD_CTL_TLS_KEY",
        hide_env_values = true
    )]
    tls_key: Option<PathBuf>,
}

impl TlsArgs {
    /// # Errors
    /// A file cannot be read, or has not the expected content.
    pub(crate) fn read(&self) -> Result<TlsConfig, Failure> {
        let mut config = TlsConfig::builder();
        if let Some(path) = &self.tls_ca {
            config = config.root_certs(RootCerts::new_with_certs(&certificates(path)?));
        }
        if let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let shown = ClientCert::new_with_certs(&certificates(cert)?, private_key(key)?);
            config = config.client_cert(Some(shown));
        }
        Ok(config.build())
    }
}

impl TlsArgs {
    /// # Errors
    /// As of [`TlsArgs::read`].
    pub(crate) fn for_protocol(&self) -> Result<Option<Tls>, Failure> {
        let TlsArgs {
            tls_ca,
            tls_cert,
            tls_key,
        } = self;
        for_protocol(tls_ca.as_deref(), tls_cert.as_deref(), tls_key.as_deref())
    }
}

/// TLS for beanstalkd's protocol; `None` without an authority.
///
/// # Errors
/// A file cannot be read, or has not the expected content.
pub(crate) fn for_protocol(
    ca: Option<&Path>,
    cert: Option<&Path>,
    key: Option<&Path>,
) -> Result<Option<Tls>, Failure> {
    let Some(path) = ca else { return Ok(None) };
    let authorities = text_of(path)?;
    let tls = match (cert, key) {
        (Some(cert), Some(key)) => Tls::with_identity(
            authorities.as_bytes(),
            text_of(cert)?.as_bytes(),
            text_of(key)?.as_bytes(),
        ),
        _ => Tls::with_authorities(authorities.as_bytes()),
    };
    tls.map(Some).map_err(|error| unusable(path, &error))
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let mut found = Vec::new();
    for item in parse_pem(text_of(path)?.as_bytes()) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unusable(path, &error))? {
            found.push(certificate);
        }
    }
    match found.is_empty() {
        true => Err(unusable(path, &"there is no certificate in it")),
        false => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, Failure> {
    PrivateKey::from_pem(text_of(path)?.as_bytes()).map_err(|error| unusable(path, &error))
}

fn text_of(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Input(format!("cannot use {} for TLS: {error}", path.display()))
}
