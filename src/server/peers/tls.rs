//! TLS between nodes: each end shows a certificate of the cluster's authority.
//!
//! TLS 1.3 alone, since both ends are ours. Nothing is resumed: a connection lives long, and each is
//! checked against the authority that is configured then. Who dials also checks that the certificate
//! is for the host that it dialed. A certificate is not tied to a node: the authority should be the
//! cluster's own.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use crate::server::tls::{certificates, unusable};

/// The files, all in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerTlsFiles {
    /// This node's certificate, for both ends of a connection and for the host of its peer address; and
    /// those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority of all nodes' certificates.
    pub ca: PathBuf,
}

/// What the files say.
#[derive(Debug, Clone)]
pub(crate) struct PeerTls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl PeerTls {
    /// Read the files.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub(crate) fn read(files: &PeerTlsFiles) -> Result<PeerTls, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.ca)? {
            let added = roots.add(certificate);
            added.map_err(|error| unusable("authority of peers", &files.ca, &error))?;
        }
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| unusable("authority of peers", &files.ca, &error))?;
        let chain = certificates(&files.cert)?;
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|error| unusable("key", &files.key, &error))?;
        let mismatch = |error: rustls::Error| {
            let (cert, key) = (files.cert.display(), files.key.display());
            format!("cannot use the certificate {cert} with the key {key}: {error}")
        };
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(mismatch)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(mismatch)?;
        client.resumption = Resumption::disabled();
        Ok(PeerTls {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }

    /// A session with who connects to us.
    pub(super) fn answer(&self) -> Result<Connection, String> {
        let session = ServerConnection::new(Arc::clone(&self.server));
        session
            .map(Connection::from)
            .map_err(|error| error.to_string())
    }

    /// A session with who listens at `HOST:PORT`.
    pub(super) fn dial(&self, address: &str) -> Result<Connection, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("'{}' is no name of a host", host.escape_debug()))?;
        let session = ClientConnection::new(Arc::clone(&self.client), name);
        session
            .map(Connection::from)
            .map_err(|error| error.to_string())
    }
}
