//! The flags of a member of a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use bsd::UsageError;

/// The flags, as they are given.
#[derive(Debug, Clone, clap::Args)]
pub struct ClusterArgs {
    /// Be a member of a cluster: every acknowledged job is on a majority of its members. The others
    /// reach this one at ADDR (IP:PORT). A new member waits for `bsd-ctl cluster init` or `add`
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["memory", "import"])]
    cluster: Option<SocketAddr>,

    /// Listen to the other members at ADDR (IP:PORT) instead, where something passes on to it what comes
    /// to the address of --cluster: another address of a container, a relay
    #[arg(long, value_name = "ADDR", requires = "cluster")]
    cluster_listen: Option<SocketAddr>,

    /// Members pass clients on to this server at ADDR (IP:PORT, with tls:, proxy: or proxy+tls: before
    /// it as that listener has) [default: the first TCP address of -l, with tls: if one has that and
    /// there is a --cluster-cert]
    #[arg(long, value_name = "ADDR", requires = "cluster")]
    cluster_client: Option<String>,

    /// Begin a cluster of this one member, with the jobs of DIR, if DIR is no member's yet
    #[arg(long, requires = "cluster", conflicts_with = "cluster_join")]
    cluster_init: bool,

    /// Ask the member at ADDR to be added, if DIR is no member's yet; DIR must be empty
    #[arg(long, value_name = "ADDR", requires = "cluster")]
    cluster_join: Option<SocketAddr>,

    /// The certificate that this member shows to the others (PEM); needed unless all are on loopback
    #[arg(long, value_name = "FILE", requires_all = ["cluster_key", "cluster_ca"])]
    cluster_cert: Option<PathBuf>,

    /// The key of --cluster-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cluster_cert")]
    cluster_key: Option<PathBuf>,

    /// The authority whose certificates the members have (PEM): no one else is heard
    #[arg(long, value_name = "FILE", requires = "cluster_cert")]
    cluster_ca: Option<PathBuf>,
}

/// First step of a server without a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// Wait to be told.
    Wait,
    /// Begin a cluster.
    Init,
    /// Ask this member to be added.
    Join(SocketAddr),
}

/// The files with which members know each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerFiles {
    /// Certificate, and those between it and the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority of all members.
    pub ca: PathBuf,
}

/// Settings of a member from its command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Where other members reach it.
    pub peer: SocketAddr,
    /// Where it listens to them.
    pub listen: SocketAddr,
    /// Where clients reach it; `None`: where it listens.
    pub client: Option<String>,
    /// Its first step if it is no member yet.
    pub beginning: Beginning,
    /// How members know each other; `None`: all are on loopback.
    pub files: Option<PeerFiles>,
}

impl ClusterArgs {
    /// Settings that the flags mean; `None`: no member.
    ///
    /// # Errors
    /// Why they cannot be.
    pub fn config(&self) -> Result<Option<ClusterConfig>, UsageError> {
        let Some(peer) = self.cluster else {
            return Ok(None);
        };
        let files = match (&self.cluster_cert, &self.cluster_key, &self.cluster_ca) {
            (Some(cert), Some(key), Some(ca)) => Some(PeerFiles {
                cert: cert.clone(),
                key: key.clone(),
                ca: ca.clone(),
            }),
            _ => None,
        };
        if peer.ip().is_unspecified() || peer.port() == 0 {
            return Err(UsageError::new(format_args!(
                "--cluster {peer}: the other members cannot connect to that; give the address by \
                 which they reach this machine"
            )));
        }
        let listen = self.cluster_listen.unwrap_or(peer);
        if files.is_none()
            && let Some((flag, address)) = [("--cluster", peer), ("--cluster-listen", listen)]
                .into_iter()
                .find(|(_, address)| !address.ip().is_loopback())
        {
            return Err(UsageError::new(format_args!(
                "{flag} {address} is not on loopback: members there know each other by \
                 certificates; give --cluster-cert, --cluster-key and --cluster-ca"
            )));
        }
        let beginning = match self.cluster_join {
            Some(member) => Beginning::Join(member),
            None if self.cluster_init => Beginning::Init,
            None => Beginning::Wait,
        };
        Ok(Some(ClusterConfig {
            peer,
            listen,
            client: self.cluster_client.clone(),
            beginning,
            files,
        }))
    }
}
