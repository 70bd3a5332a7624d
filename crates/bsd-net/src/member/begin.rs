//! How a server becomes a member: what a start finds, `init`, and being added.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};

use tracing::info;

use super::archivist::{Archiving, Archivist};
use super::desk::ClusterDesk;
use super::flags::{Beginning, ClusterConfig};
use super::snapshot::Courier;
use super::{FIRST_TOKEN, LISTEN_NS, Member};
use crate::Reactor;
use crate::peers::{PeerTls, PeerTlsFiles, Peers};
use crate::process::Heart;
use bsd::ErrorClass;
use bsd::SetupError;
use bsd::engine::{Engine, Options};
use bsd::storage::disk::Fs;
use bsd::storage::format::Stamp;
use bsd::storage::{AppendError, OpenError};
use bsd::types::{Now, Ticket, Time};
use bsd_cluster::install;
use bsd_cluster::ledger::{Base, Identity, Ledger};
use bsd_cluster::ledger_dir;
use bsd_cluster::member::{ClusterId, Member as Listed, Members, NodeId, Votes};
use bsd_cluster::node::{self, Mark, Node, NodeError, Settings};
use bsd_cluster::replica::{Replica, ReplicaError, Standing, log_options};
use bsd_cluster::wire::{Me, VERSIONS};

/// Why a server cannot be a member.
#[derive(Debug)]
pub enum MemberError {
    /// The disk failed, or the directory is another's.
    Open(OpenError),
    /// The ledger and the log do not belong together.
    Node(NodeError),
    /// The address, or a certificate, is of no use.
    Peers(SetupError),
    /// The cluster cannot be begun or joined.
    Replica(ReplicaError),
}

impl std::fmt::Display for MemberError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemberError::Open(error) => error.fmt(f),
            MemberError::Node(NodeError::Store(error)) => error.fmt(f),
            MemberError::Node(error) => write!(f, "{error}; {}", self.class().advice()),
            MemberError::Peers(error) => error.fmt(f),
            MemberError::Replica(error) => error.fmt(f),
        }
    }
}

impl MemberError {
    /// Class of the error.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            MemberError::Open(error) => error.class(),
            MemberError::Node(NodeError::Store(error)) => error.class(),
            MemberError::Node(_) => ErrorClass::Diverged,
            MemberError::Peers(error) => error.class(),
            MemberError::Replica(error) => error.class(),
        }
    }
}

impl std::error::Error for MemberError {}

impl From<OpenError> for MemberError {
    fn from(error: OpenError) -> MemberError {
        MemberError::Open(error)
    }
}

impl From<ReplicaError> for MemberError {
    fn from(error: ReplicaError) -> MemberError {
        MemberError::Replica(error)
    }
}

impl From<SetupError> for MemberError {
    fn from(error: SetupError) -> MemberError {
        MemberError::Peers(error)
    }
}

impl From<NodeError> for MemberError {
    fn from(error: NodeError) -> MemberError {
        MemberError::Node(error)
    }
}

impl From<MemberError> for ReplicaError {
    fn from(error: MemberError) -> ReplicaError {
        match error {
            MemberError::Open(error) => ReplicaError::Open(error),
            MemberError::Node(error) => error.into(),
            MemberError::Peers(error) => ReplicaError::Setup(error),
            MemberError::Replica(error) => error,
        }
    }
}

/// Parts of a member.
pub struct Setup<'a> {
    /// Settings of the command line.
    pub config: &'a ClusterConfig,
    /// Where clients reach this server.
    pub client: String,
    /// Where HTTP reaches it, for people who look at another member; empty: nowhere.
    pub http: String,
    /// How its log is opened.
    pub options: Options,
    /// The socket for peers, bound.
    pub listener: TcpListener,
    /// The reactor of the loop.
    pub reactor: &'a Reactor,
    /// The desk for other threads.
    pub desk: ClusterDesk,
    /// Who archives its log while it leads; `None`: it is not archived.
    pub archivist: Option<Box<dyn Archivist>>,
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
    /// Read what is in the directory: the member that it was, or no one yet. The queue follows.
    ///
    /// # Errors
    /// See [`MemberError`].
    pub fn open(setup: Setup<'_>) -> Result<(Member, Engine), MemberError> {
        let tls = peer_files(setup.config).as_ref().map(PeerTls::read);
        let tls = tls.transpose()?;
        Member::open_with(setup, tls)
    }

    /// The same, with these certificates.
    pub(super) fn open_with(
        setup: Setup<'_>,
        tls: Option<PeerTls>,
    ) -> Result<(Member, Engine), MemberError> {
        let Setup {
            config,
            client,
            http,
            options,
            listener,
            reactor,
            desk,
            archivist,
            now,
        } = setup;
        let heart = Arc::new(OnceLock::new());
        let options = with_heart(log_options(options, archivist.is_some()), &heart);
        let Some(dir) = options.dir.clone() else {
            let why = "a member of a cluster keeps a log; give it a directory with -b";
            return Err(SetupError::new(why).into());
        };
        let fs = options.fs.clone();
        bsd::storage::make_data_dir(&*fs, &dir)?;
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
                Ok::<_, MemberError>(node::install(ledger, &base)?)
            })?;
        }
        let mut engine = Engine::follow(&options, now)?;
        if let Some(ledger) = ledger.as_ref().filter(|it| is_only_begun(it, &engine)) {
            stamp(&mut engine, ledger.base(), &dir, now)?;
        }
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
            http,
            archives: archivist.is_some(),
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
        let peers = peers.map_err(|error| SetupError::of_socket(error.to_string(), error))?;
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
            replica: None,
            seed,
            members: Members::default(),
            changed: 0,
            mail,
            courier,
            sending: Vec::new(),
            failing: BTreeMap::new(),
            draining: super::Draining::default(),
            archiving: Archiving::by(archivist),
            not_received: None,
            is_receiving: false,
            joining: Vec::new(),
            is_joining: false,
            not_added: None,
            begins_at: None,
            desk,
            reported_at: None,
            said: None,
            answers_before: 0,
            forwarded: 0,
            stops_at: None,
            is_over: false,
            pulse: Arc::default(),
            heart,
            standing: Standing::Follows,
            acknowledged: Ticket::NONE,
            _lock: lock,
        };
        match (ledger, config.beginning) {
            (Some(ledger), _) => member.sit_down(ledger, &engine, now)?,
            (None, Beginning::Init) if is_empty(&engine) => {
                info!(
                    "a cluster is begun here, if no member of another one calls this server first"
                );
                member.begins_at = Some(Time(now.mono.0 + LISTEN_NS));
            }
            (None, Beginning::Init) => member.init(&mut engine, now)?,
            (None, Beginning::Join(address)) => {
                member.ask_to_be_added(address, &engine)?;
            }
            (None, Beginning::Wait) => info!(
                "no member of a cluster yet: begin one with `bsd-ctl cluster init`, or join one with \
                 `bsd-ctl cluster add ADDR`"
            ),
        }
        Ok((member, engine))
    }

    /// In an empty directory a cluster is begun after a while. A disk that is lost, or not mounted,
    /// looks the same: then the other members of its cluster call, and nothing is begun.
    pub(super) fn begin_if_due(
        &mut self,
        engine: &mut Engine,
        now: Now,
    ) -> Result<(), ReplicaError> {
        let Some(at) = self.begins_at.filter(|_| self.replica.is_none()) else {
            return Ok(());
        };
        if let Some(why) = self.is_missed(engine) {
            return Err(why.into());
        }
        if now.mono >= at {
            self.begins_at = None;
            self.init(engine, now)?;
        }
        Ok(())
    }

    /// The directory is empty, and the members of a cluster take this server for one of them.
    pub(super) fn is_missed(&self, engine: &Engine) -> Option<OpenError> {
        let hello = self.peers.stranger().filter(|_| is_empty(engine))?;
        Some(OpenError::Foreign {
            path: self.dir.clone(),
            what: format!(
                "it is empty, and member {} of cluster {} calls this server as its member {to}: the \
                 disk of that one is lost, or is not mounted, and no other cluster is begun. Mount it; \
                 if it is lost, `bsd-ctl cluster remove {to}` there, and start this server with \
                 --cluster-join in place of --cluster-init",
                hello.from,
                hello.cluster,
                to = hello.to
            ),
        })
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
        )?;
        let replica = Replica::new(node, self.options.clone(), engine);
        self.me.cluster = identity.cluster;
        self.me.node = identity.node;
        self.peers.set_me(self.me.clone(), now.mono);
        self.peers
            .set_members(replica.members_changed(), replica.members(), now.mono);
        (self.changed, self.members) = (replica.members_changed(), replica.members().clone());
        info!(
            "cluster {}: this is member {}, peers reach it at {}",
            identity.cluster, identity.node, self.me.peer
        );
        self.replica = Some(Box::new(replica));
        Ok(())
    }

    /// Begin a cluster of this one member, with the jobs that are here.
    ///
    /// The ledger comes first: its file can be removed again, what the log says cannot. A start
    /// that finds the one without the other goes on: [`is_only_begun`].
    ///
    /// # Errors
    /// See [`MemberError`]; then [`Member::take_back`] is to be called.
    pub(super) fn init(&mut self, engine: &mut Engine, now: Now) -> Result<(), MemberError> {
        let mut cluster = [0; 16];
        bsd::sys::random::fill(&mut cluster).map_err(cannot_draw)?;
        let mut members = Members::default();
        members.put(Listed {
            id: self.me.node,
            peer: self.me.peer.clone(),
            client: self.me.client.clone(),
            votes: Votes::VOTER,
        });
        let identity = Identity {
            cluster: ClusterId(cluster),
            node: self.me.node,
        };
        // Who comes later has not what is here: this entry stands for it, and is in no ledger. A log that
        // was a member's goes on with its numbers.
        let was = engine.stamp();
        let base = Base {
            index: was.index.max(1),
            term: was.term.max(1),
            members,
        };
        let ledger = Ledger::create(&self.fs, &self.dir, identity, base.clone())?;
        stamp(engine, &base, &self.dir, now)?;
        info!("began the cluster {}", identity.cluster);
        self.sit_down(ledger, engine, now)
    }

    /// A cluster could not be begun or joined: nothing of its ledger stays, and the server is what
    /// it was. Returns the error for the person who asked.
    ///
    /// # Errors
    /// The failure, if it cannot be taken back: only a start can find out the state.
    pub(super) fn take_back(&self, error: MemberError) -> Result<SetupError, ReplicaError> {
        // A ledger that is not ours is left alone.
        let is_ours = !matches!(error, MemberError::Open(OpenError::Foreign { .. }));
        let abandoned = is_ours.then(|| Ledger::abandon(&*self.fs, &self.dir));
        match abandoned.transpose() {
            Ok(_) => {
                let text = format!("{error}; this server goes on as before");
                Ok(SetupError::caused_by(text, error.class(), error))
            }
            Err(_) => Err(error.into()),
        }
    }

    /// Ask the member at `address` for this server to be added.
    pub(super) fn ask_to_be_added(
        &mut self,
        address: SocketAddr,
        engine: &Engine,
    ) -> Result<(), SetupError> {
        if !is_empty(engine) {
            return Err(SetupError::new(format_args!(
                "{} has a log with jobs, or that was a member's, and a server that joins gets the log \
                 of the cluster; give it a new directory, and keep this one",
                self.dir.display()
            )));
        }
        if !self.is_joining {
            info!("asking the member at {address} to be added");
            self.is_joining = self.courier.ask_to_be_added(self.me.clone(), address);
        }
        match self.is_joining {
            true => Ok(()),
            false => Err(SetupError::new("no thread can be started; ask again later")),
        }
    }

    /// The cluster has this server as a member. `Err`: it is none yet, and may ask again.
    pub(super) fn join(
        &mut self,
        cluster: ClusterId,
        members: Members,
        engine: &Engine,
        now: Now,
    ) -> Result<Result<(), SetupError>, ReplicaError> {
        let identity = Identity {
            cluster,
            node: self.me.node,
        };
        let base = Base {
            index: 0,
            term: 0,
            members,
        };
        match Ledger::create(&self.fs, &self.dir, identity, base) {
            Ok(ledger) => Ok(Ok(self.sit_down(ledger, engine, now)?)),
            Err(error) => self.take_back(error.into()).map(Err),
        }
    }
}

/// Each step of reading the log tells the service manager, once the server runs.
fn with_heart(options: Options, heart: &Arc<OnceLock<Heart>>) -> Options {
    let (heart, tell) = (heart.clone(), options.progress.clone());
    Options {
        progress: Some(Arc::new(move |done, all| {
            if let Some(beat) = heart.get() {
                beat();
            }
            if let Some(tell) = &tell {
                tell(done, all);
            }
        })),
        ..options
    }
}

/// The log has what the ledger begins after, in the name of the cluster. Durable on return.
fn stamp(engine: &mut Engine, base: &Base, dir: &Path, now: Now) -> Result<(), OpenError> {
    let stamp = Stamp {
        index: base.index,
        term: base.term,
    };
    engine.stamp_as(stamp, now).map_err(|error| match error {
        AppendError::NoRoom(class) => OpenError::no_room("mark the log in", dir, class),
        AppendError::Failed(error) => error.into(),
    })
}

/// A crash came while this member began a cluster: its ledger was there, and the log did not say so
/// yet. It has never voted, so it never led.
fn is_only_begun(ledger: &Ledger, engine: &Engine) -> bool {
    let Base { index, members, .. } = ledger.base();
    let is_alone = members.list.len() == 1 && members.get(ledger.identity().node).is_some();
    let is_unused = ledger.last_index() == *index && ledger.hard_state().vote == 0;
    is_alone && is_unused && *index == 1 && engine.stamp() == Stamp::default()
}

/// It has no job, and was no member's.
fn is_empty(engine: &Engine) -> bool {
    engine.queue().stats().jobs.total() == 0 && engine.stamp() == Stamp::default()
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
    bsd::sys::random::fill(&mut bytes).map_err(cannot_draw)?;
    Ok(u64::from_le_bytes(bytes))
}

fn cannot_draw(error: std::io::Error) -> OpenError {
    OpenError::io("draw a random number for", Path::new("this member"), &error)
}
