//! TLS between nodes: each end shows a certificate of the cluster's authority.
//!
//! TLS 1.3 alone, since both ends are ours. Nothing is resumed: a connection lives long, and each is
//! checked against the authority that is configured then. Who dials also checks that the certificate
//! is for the host that it dialed. A certificate is not tied to a node: the authority should be the
//! cluster's own.
//!
//! Members that pass their clients on use the same certificates, at a listener of clients.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use super::PeerError;
use crate::tls::{PASSED_ON, Signed, certificates, read_signed, unusable};
use bsd::SetupError;

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

/// Content of the files.
#[derive(Debug, Clone)]
pub(crate) struct PeerTls {
    signed: Signed,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    /// The same, to pass clients on.
    forwarder: Arc<ClientConfig>,
}

impl PeerTls {
    /// Read the files.
    ///
    /// # Errors
    /// The file, and its fault.
    pub(crate) fn read(files: &PeerTlsFiles) -> Result<PeerTls, SetupError> {
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
        let signed = read_signed(&files.cert, &files.key, &provider)?;
        let shown = Arc::new(SingleCertAndKey::from(Arc::clone(&signed)));
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(SetupError::new)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&shown) as _);
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(SetupError::new)?
            .with_root_certificates(roots)
            .with_client_cert_resolver(shown);
        client.resumption = Resumption::disabled();
        let mut forwarder = client.clone();
        forwarder.alpn_protocols = vec![PASSED_ON.to_vec()];
        Ok(PeerTls {
            signed,
            server: Arc::new(server),
            client: Arc::new(client),
            forwarder: Arc::new(forwarder),
        })
    }

    /// Certificate that this node shows to others.
    pub(crate) fn signed(&self) -> Signed {
        Arc::clone(&self.signed)
    }

    /// A session for a client that is passed on, with the node whose certificate is for `host`.
    pub(crate) fn pass_on(&self, host: IpAddr) -> Result<Connection, rustls::Error> {
        let session = ClientConnection::new(Arc::clone(&self.forwarder), host.into());
        session.map(Connection::from)
    }

    /// The settings of [`PeerTls::pass_on`], for links that others make.
    pub(crate) fn forwarder(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.forwarder)
    }

    /// A session with who connects to us.
    pub(super) fn answer(&self) -> Result<Connection, PeerError> {
        Ok(ServerConnection::new(Arc::clone(&self.server))?.into())
    }

    /// A session with who listens at `HOST:PORT`.
    pub(super) fn dial(&self, address: &str) -> Result<Connection, PeerError> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| format!("'{}' is no name of a host", host.escape_debug()))?;
        Ok(ClientConnection::new(Arc::clone(&self.client), name)?.into())
    }
}
