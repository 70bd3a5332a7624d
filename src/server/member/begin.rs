//! How a server becomes a member: what a start finds, `init`, and being added.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc::channel;

use tracing::info;

use super::desk::ClusterDesk;
use super::snapshot::Courier;
use super::{FIRST_TOKEN, Member};
use crate::cluster::install;
use crate::cluster::ledger::{Base, Identity, Ledger};
use crate::cluster::member::{ClusterId, Member as Listed, Members, NodeId, Votes};
use crate::cluster::node::{self, Mark, Node, NodeError, Settings};
use crate::cluster::seat::{Seat, SeatError, Standing, log_options};
use crate::cluster::wire::{Me, VERSIONS};
use crate::cluster::{Beginning, ClusterConfig, ledger_dir};
use crate::engine::{Engine, Options};
use crate::server::Reactor;
use crate::server::peers::{PeerTls, PeerTlsFiles, Peers};
use crate::storage::OpenError;
use crate::storage::disk::Fs;
use crate::storage::format::Stamp;
use crate::types::{Now, Position};

/// Why a server cannot be a member.
#[derive(Debug)]
pub enum MemberError {
    /// The disk failed, or the directory is another's.
    Open(OpenError),
    /// The ledger and the log do not belong together.
    Node(NodeError),
    /// The address, or a certificate, is of no use.
    Peers(String),
    /// The cluster cannot be begun or joined.
    Seat(SeatError),
}

impl std::fmt::Display for MemberError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemberError::Open(error) => error.fmt(f),
            MemberError::Node(error) => error.fmt(f),
            MemberError::Peers(why) => f.write_str(why),
            MemberError::Seat(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for MemberError {}

impl From<OpenError> for MemberError {
    fn from(error: OpenError) -> MemberError {
        MemberError::Open(error)
    }
}

impl From<SeatError> for MemberError {
    fn from(error: SeatError) -> MemberError {
        MemberError::Seat(error)
    }
}

/// What a member is made of.
pub struct Setup<'a> {
    /// What the command line says.
    pub config: &'a ClusterConfig,
    /// Where clients reach this server.
    pub client: String,
    /// How its log is opened.
    pub options: Options,
    /// The socket for peers, bound.
    pub listener: TcpListener,
    /// What wakes the loop.
    pub reactor: &'a Reactor,
    /// What other threads see and ask.
    pub desk: ClusterDesk,
    /// The time.
    pub now: Now,
}

impl std::fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Read what is in the directory: the member that it was, or nobody yet. The queue follows.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub fn open(setup: Setup<'_>) -> Result<(Member, Engine), MemberError> {
        let Setup {
            config,
            client,
            options,
            listener,
            reactor,
            desk,
            now,
        } = setup;
        let options = log_options(options);
        let Some(dir) = options.dir.clone() else {
            let why = "a member of a cluster keeps a log; give it a directory with -b";
            return Err(MemberError::Peers(why.into()));
        };
        let fs = options.fs.clone();
        let tls = peer_files(config).as_ref().map(PeerTls::read).transpose();
        let tls = tls.map_err(MemberError::Peers)?;
        crate::storage::make_data_dir(&*fs, &dir)?;
        let ledger_dir = ledger_dir(&dir);
        // A directory without a ledger has none after this either: an empty one is no member's.
        let is_new = !has_ledger(&*fs, &dir)?;
        if is_new {
            fs.create_dir(&ledger_dir)
                .map_err(|error| OpenError::io("create", &ledger_dir, &error))?;
        }
        let lock = fs
            .lock_dir(&ledger_dir)
            .map_err(|error| OpenError::lock(&ledger_dir, error))?;
        install::discard(&fs, &ledger_dir)?;
        let mut ledger = Ledger::open(&fs, &dir)?;
        if let Some(ledger) = &mut ledger {
            install::finish(&fs, &dir, &ledger_dir, &mut |base| {
                node::install(ledger, &base).map_err(|error| match error {
                    NodeError::Store(error) => error.into(),
                    other => OpenError::Foreign {
                        path: ledger_dir.clone(),
                        what: other.to_string(),
                    },
                })
            })?;
        }
        let mut engine = Engine::follow(&options, now)?;
        let seed = random_u64()?;
        let identity = match &ledger {
            Some(ledger) => ledger.identity(),
            None => Identity {
                cluster: ClusterId([0; 16]),
                node: NodeId(random_u64()?.max(1)),
            },
        };
        let me = Me {
            cluster: identity.cluster,
            node: identity.node,
            peer: config.peer.to_string(),
            client,
            versions: VERSIONS,
        };
        let registry = reactor.registry().try_clone();
        let peers = registry.and_then(|registry| {
            let of_reactor = (registry, FIRST_TOKEN);
            Peers::new(
                me.clone(),
                listener,
                tls.clone(),
                of_reactor,
                reactor.waker(),
                seed,
            )
        });
        let peers = peers.map_err(|error| MemberError::Peers(error.to_string()))?;
        let (sender, mail) = channel();
        let courier = Courier::new(
            fs.clone(),
            dir.clone(),
            tls.clone(),
            sender,
            reactor.waker(),
        );
        let mut member = Member {
            dir,
            fs,
            options,
            me,
            files: peer_files(config),
            peers,
            seat: None,
            seed,
            members: Members::default(),
            changed: 0,
            mail,
            courier,
            sending: Vec::new(),
            is_receiving: false,
            joining: Vec::new(),
            is_joining: false,
            not_added: None,
            desk,
            reported_at: None,
            said: None,
            calls_before: 0,
            forwarded: 0,
            stops_at: None,
            is_over: false,
            standing: Standing::Follows,
            acknowledged: Position::ZERO,
            _lock: lock,
        };
        match (ledger, config.beginning) {
            (Some(ledger), _) => member.sit_down(ledger, &engine, now)?,
            (None, Beginning::Init) => member.init(&mut engine, now)?,
            (None, Beginning::Join(address)) => {
                let asked = member.ask_to_be_added(address, &engine);
                asked.map_err(MemberError::Peers)?;
            }
            (None, Beginning::Wait) => info!(
                "no member of a cluster yet: begin one with `bsd-ctl cluster init`, or join one with \
                 `bsd-ctl cluster add ADDR`"
            ),
        }
        Ok((member, engine))
    }

    /// A node over this ledger, which goes on where the log ends.
    fn sit_down(&mut self, ledger: Ledger, engine: &Engine, now: Now) -> Result<(), MemberError> {
        let Stamp { index, term } = engine.stamp();
        let applied = Mark { index, term };
        let identity = ledger.identity();
        let node = Node::open(
            ledger,
            applied,
            None,
            self.seed,
            now.mono,
            Settings::default(),
        )
        .map_err(MemberError::Node)?;
        let seat = Seat::new(node, self.options.clone(), engine);
        self.me.cluster = identity.cluster;
        self.me.node = identity.node;
        self.peers.set_me(self.me.clone(), now.mono);
        self.peers
            .set_members(seat.members_changed(), seat.members(), now.mono);
        (self.changed, self.members) = (seat.members_changed(), seat.members().clone());
        info!(
            "cluster {}: this is member {}, peers reach it at {}",
            identity.cluster, identity.node, self.me.peer
        );
        self.seat = Some(Box::new(seat));
        Ok(())
    }

    /// Begin a cluster of this one member, with the jobs that are here.
    pub(super) fn init(&mut self, engine: &mut Engine, now: Now) -> Result<(), MemberError> {
        let mut cluster = [0; 16];
        crate::sys::random::fill(&mut cluster).map_err(cannot_draw)?;
        let mut members = Members::default();
        members.put(Listed {
            id: self.me.node,
            peer: self.me.peer.clone(),
            client: self.me.client.clone(),
            votes: Votes {
                incoming: true,
                ..Votes::default()
            },
        });
        let identity = Identity {
            cluster: ClusterId(cluster),
            node: self.me.node,
        };
        // Who comes later has not what is here: this entry stands for it, and is in no ledger. A log that
        // was a member's goes on with its numbers.
        let was = engine.stamp();
        let stamp = Stamp {
            index: was.index.max(1),
            term: was.term.max(1),
        };
        engine.stamp_as(stamp, now).map_err(OpenError::from)?;
        let base = Base {
            index: stamp.index,
            term: stamp.term,
            members,
        };
        let ledger = Ledger::create(&self.fs, &self.dir, identity, base)?;
        info!("began the cluster {}", identity.cluster);
        self.sit_down(ledger, engine, now)
    }

    /// Ask the member at `address` for this server to be added.
    pub(super) fn ask_to_be_added(
        &mut self,
        address: SocketAddr,
        engine: &Engine,
    ) -> Result<(), String> {
        if engine.queue().stats().jobs.total() > 0 || engine.stamp() != Stamp::default() {
            return Err(format!(
                "{} has a log with jobs, or that was a member's, and a server that joins gets the log \
                 of the cluster; give it an empty directory",
                self.dir.display()
            ));
        }
        if !self.is_joining {
            info!("asking the member at {address} to be added");
            self.is_joining = true;
            self.courier.ask_to_be_added(self.me.clone(), address);
        }
        Ok(())
    }

    /// The cluster has this server as a member.
    pub(super) fn join(
        &mut self,
        cluster: ClusterId,
        members: Members,
        engine: &Engine,
        now: Now,
    ) -> Result<(), SeatError> {
        let identity = Identity {
            cluster,
            node: self.me.node,
        };
        let base = Base {
            index: 0,
            term: 0,
            members,
        };
        let ledger = Ledger::create(&self.fs, &self.dir, identity, base)?;
        self.sit_down(ledger, engine, now)
            .map_err(|error| match error {
                MemberError::Open(error) => SeatError::Open(error),
                other => SeatError::Contradiction(other.to_string()),
            })
    }
}

fn has_ledger(fs: &dyn Fs, dir: &Path) -> Result<bool, OpenError> {
    let names = fs
        .read_dir(dir)
        .map_err(|error| OpenError::io("list", dir, &error))?;
    let ledger_dir = ledger_dir(dir);
    let name = ledger_dir.file_name().unwrap_or_default();
    Ok(names.iter().any(|entry| *entry.name == *name))
}

fn peer_files(config: &ClusterConfig) -> Option<PeerTlsFiles> {
    config.files.as_ref().map(|files| PeerTlsFiles {
        cert: files.cert.clone(),
        key: files.key.clone(),
        ca: files.ca.clone(),
    })
}

fn random_u64() -> Result<u64, OpenError> {
    let mut bytes = [0; 8];
    crate::sys::random::fill(&mut bytes).map_err(cannot_draw)?;
    Ok(u64::from_le_bytes(bytes))
}

fn cannot_draw(error: std::io::Error) -> OpenError {
    OpenError::io("draw a random number for", Path::new("this member"), &error)
}
