//! Flags of TLS.

use std::path::PathBuf;

use clap::Args;

use super::TlsFiles;
use bsd::UsageError;

/// The flags, as they were said.
#[derive(Debug, Clone, Args)]
pub struct TlsArgs {
    /// Show this certificate to clients of the listeners that begin with tls:, and of HTTP if that
    /// does (PEM, with those between it and the authority that clients know); SIGHUP reads all files
    /// of TLS again
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Let in only clients with a certificate of an authority in FILE (PEM) at those listeners, HTTP
    /// among them
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// The files that are to be read; `None`: there is no TLS. `is_wanted` if a listener needs it.
    ///
    /// # Errors
    /// The missing flag.
    pub fn files(&self, is_wanted: bool) -> Result<Option<TlsFiles>, UsageError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), _) if !is_wanted => Err(
                "no listener uses the certificate; say where with -l tls:ADDR or --http tls:ADDR"
                    .into(),
            ),
            (Some(cert), Some(key)) => Ok(Some(TlsFiles {
                cert: cert.clone(),
                key: key.clone(),
                client_ca: self.tls_client_ca.clone(),
            })),
            _ if is_wanted => {
                Err("a listener with tls: needs --tls-cert FILE and --tls-key FILE".into())
            }
            _ => Ok(None),
        }
    }
}
