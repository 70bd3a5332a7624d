//! A server that is one of several: its replica, its peers, and what it does for its clients.
//!
//! Runs in the server's loop, as the rest of a turn does:
//!
//! ```text
//! poll -> peers: read -> replica: begin -> clients, if it leads -> replica: decide, propose
//!      -> peers: write -> ledger: one write, one sync -> peers: write -> replies
//! ```
//!
//! A leader's messages leave before its own disk syncs. Long work is done on threads, which talk to
//! the loop by [`Mail`]: a snapshot that is sent or received, a server that asks to be added.
//!
//! | file | question |
//! |---|---|
//! | here | what does a member do in each turn? |
//! | `archivist` | who archives the log while the member leads? |
//! | `begin` | how does a server become a member? |
//! | `desk` | what do other threads see of the cluster and ask of it? |
//! | `turn` | what does the server do for its member? |
//! | `draining` | are jobs taken, no matter who leads? |
//! | `flags` | what does the command line say of it? |
//! | `snapshot` | how does a copy of the log get from one member to another? |

mod archivist;
mod begin;
mod desk;
mod draining;
mod flags;
mod snapshot;
#[cfg(test)]
mod tests;
mod turn;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

use mio::Token;
use mio::event::Event;
use tracing::{debug, error, info, warn};

use self::archivist::Archiving;
pub use self::archivist::Archivist;
pub use self::begin::{MemberError, Setup};
pub use self::desk::{
    Ask, ClusterDesk, LeaderReport, MemberReport, Report, Standing as MemberStanding, Unarchived,
};
use self::draining::Draining;
pub use self::flags::{Beginning, ClusterArgs, ClusterConfig, PeerFiles};
use self::snapshot::{Courier, Mail};
use super::core::Core;
use super::forward::{Leader, Target};
use super::peers::{PeerError, PeerTls, PeerTlsFiles, Peers, Received};
use super::process::Heart;
use super::pulse::{Pulse, Stage};
use super::tls::end_of;
use bsd::engine::{Engine, Options};
use bsd::storage::disk::Fs;
use bsd::types::{Now, Ticket, Time};
use bsd_cluster::member::{Members, NodeId};
use bsd_cluster::node::{Change, Role};
use bsd_cluster::replica::{Replica, ReplicaError, Standing};
use bsd_cluster::wire::{Join, JoinAnswer, Me, Purpose};

/// Messages of peers that are stepped in one turn, so that a turn stays short.
const MESSAGES_A_TURN: usize = 1024;
/// Entries that one member can commit by itself are committed in the turn that decides them: after
/// this number of steps.
const READY_TURNS: usize = 4;
/// The report for other threads is made again this often, nanoseconds.
const REPORT_NS: i64 = 100_000_000;
/// A cluster is begun in an empty directory after this, nanoseconds: a member of another one, which
/// takes this server for another of its members, has called by then.
const LISTEN_NS: i64 = 3_000_000_000;
/// Why a member is not ready that reads its log again.
const READS: &str = "it reads its log again";
/// A leader that is to stop waits no longer than this for another one to lead, nanoseconds.
const HAND_OVER_NS: i64 = 1_000_000_000;

/// Copies of the log that did not come to a member.
#[derive(Debug, Default)]
struct Failing {
    why: String,
    times: u32,
}

/// The part of a server that makes it one of several.
pub struct Member {
    dir: PathBuf,
    fs: Arc<dyn Fs>,
    options: Options,
    me: Me,
    /// The files of the certificates, if members show them to each other.
    files: Option<PeerTlsFiles>,
    peers: Peers,
    /// `None`: it waits to become a member.
    replica: Option<Box<Replica>>,
    seed: u64,
    /// The members that the peers know of, and since which entry.
    members: Members,
    changed: u64,
    mail: Receiver<Mail>,
    courier: Courier,
    /// Members to which a snapshot is being sent.
    sending: Vec<NodeId>,
    /// Copies that did not come, until one does: to a member, and from one.
    failing: BTreeMap<NodeId, Failing>,
    draining: Draining,
    archiving: Archiving,
    not_received: Option<String>,
    is_receiving: bool,
    /// Who asked to be added, and is told when it is a member.
    joining: Vec<(Join, Sender<JoinAnswer>)>,
    /// A thread asks for us to be added.
    is_joining: bool,
    /// Why it was not, the last time.
    not_added: Option<String>,
    /// When it begins a cluster, if no member of another one has called until then.
    begins_at: Option<Time>,
    desk: ClusterDesk,
    reported_at: Option<Time>,
    /// The role that was logged last.
    said: Option<Role>,
    /// Answers to calls of other threads that had been parked before this turn.
    answers_before: u64,
    /// Clients that are passed on.
    forwarded: u64,
    /// It stops when another one leads, or then.
    stops_at: Option<Time>,
    /// Another one leads, and this one stops.
    is_over: bool,
    /// Where other threads see that the loop reads the log again.
    pulse: Arc<Pulse>,
    /// The service manager's heartbeat for each step of that.
    heart: Arc<OnceLock<Heart>>,
    standing: Standing,
    /// Replies up to this ticket may leave.
    acknowledged: Ticket,
    _lock: Box<dyn bsd::storage::disk::DirLock>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("me", &self.me)
            .field("replica", &self.replica)
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Something happened to a socket of a peer; `false`: the token is not a peer's.
    pub(super) fn on_event(&mut self, event: &Event) -> bool {
        self.peers.on_event(event.token())
    }

    /// Read the certificates again; connections that stand keep theirs. `false`: it has none.
    pub(super) fn reload(&mut self) -> bool {
        let Some(files) = &self.files else {
            return false;
        };
        match PeerTls::read(files) {
            Ok(tls) => {
                info!("SIGHUP: new connections of members get the certificates as they are now");
                self.peers.set_tls(tls.clone());
                self.courier.set_tls(tls);
            }
            Err(why) => error!("SIGHUP: {why}; the certificates of members stay as they were"),
        }
        true
    }

    /// Certificates of members, if they use any.
    pub(super) fn tls(&self) -> Option<&PeerTls> {
        self.peers.tls()
    }

    /// The file of the certificate that it shows to others, and when that ends.
    pub(super) fn certificate(&self) -> Option<(&Path, Option<i64>)> {
        let (files, tls) = self.files.as_ref().zip(self.tls())?;
        Some((&files.cert, end_of(&tls.signed().cert)))
    }

    /// This many clients are passed on to another member.
    pub(super) fn note_forwarded(&mut self, count: usize) {
        self.forwarded = count as u64;
    }

    /// Take what peers and threads have sent, and begin the turn. [`Standing::LostLeadership`]: close all
    /// clients, then call [`Member::step_down`].
    pub(super) fn begin_turn(
        &mut self,
        engine: &mut Engine,
        now: Now,
    ) -> Result<Standing, ReplicaError> {
        self.peers.set_wall(now.wall_ns);
        if let Some(replica) = &mut self.replica {
            replica.set_clock(now);
        }
        self.peers.turn(now.mono);
        self.read_peers();
        while let Ok(mail) = self.mail.try_recv() {
            self.read(mail, engine, now)?;
        }
        self.begin_if_due(engine, now)?;
        self.answer_asks(engine, now)?;
        self.conclude(engine, now)?;
        let Some(replica) = &mut self.replica else {
            self.standing = Standing::Follows;
            return Ok(self.standing);
        };
        self.draining.agree(replica, &mut self.peers, engine);
        self.standing = replica.begin(engine, now)?;
        self.tell_archivist(engine);
        Ok(self.standing)
    }

    /// Messages of peers may commit decisions of earlier turns: their replies need not wait for
    /// this turn's sync.
    fn conclude(&mut self, engine: &mut Engine, now: Now) -> Result<(), ReplicaError> {
        let Some(replica) = self.replica.as_mut().filter(|it| it.leads(engine)) else {
            return Ok(());
        };
        if replica.has_ready() {
            persist(replica, &mut self.peers, engine, now)?;
            self.acknowledged = replica.acknowledge(engine);
        }
        Ok(())
    }

    /// The ticket up to which replies may leave, if this member leads.
    pub(super) fn acknowledged(&self) -> Ticket {
        self.acknowledged
    }

    fn read_peers(&mut self) {
        for _ in 0..MESSAGES_A_TURN {
            let Some(received) = self.peers.take() else {
                return;
            };
            match (received, &mut self.replica) {
                (Received::Message { from, message }, Some(replica)) if message.from == from.0 => {
                    replica.step(message);
                }
                (Received::Drains { from, drains }, Some(_)) => {
                    self.draining.hear(from, drains, &self.members);
                }
                (Received::Moves(peer), Some(replica)) => replica.moves(peer),
                (Received::Unreachable(peer), Some(replica)) => replica.unreachable(peer),
                (Received::LeftOut(changed), Some(replica)) => replica.left_out(changed),
                (Received::Called(hello, link), _) => match hello.purpose {
                    Purpose::Join => self.courier.hear_out(link),
                    Purpose::Snapshot if !self.is_receiving && self.replica.is_some() => {
                        self.is_receiving = self.courier.receive(link, hello.from);
                    }
                    _ => {}
                },
                (Received::Connected(peer), _) => debug!("messages go to member {peer}"),
                _ => {}
            }
        }
    }

    fn read(&mut self, mail: Mail, engine: &mut Engine, now: Now) -> Result<(), ReplicaError> {
        match mail {
            Mail::Join(join, answer) => self.consider(join, answer, engine),
            Mail::Joined(cluster, members, answer) => {
                let joined = match self.replica {
                    Some(_) => Ok(()),
                    None => self.join(cluster, members, engine, now)?,
                };
                (self.is_joining, self.not_added) = (joined.is_err(), None);
                // The thread may be gone.
                let _ = answer.send(joined);
            }
            Mail::NotAdded(why) => self.not_added = Some(why),
            Mail::Base(stamp, answer) => {
                // Entries after the last frame changed nothing: the copy has them too.
                let stamp = match stamp == engine.framed_stamp() {
                    true => engine.stamp(),
                    false => stamp,
                };
                let base = self
                    .replica
                    .as_ref()
                    .and_then(|replica| replica.base_at(stamp));
                // The thread may be gone.
                let _ = answer.send(base);
            }
            Mail::Sent(to, sent) => {
                self.sending.retain(|it| *it != to);
                self.note_sent(to, &sent);
                if let Some(replica) = &mut self.replica {
                    replica.snapshot_sent(to, sent.ok());
                }
            }
            Mail::Came(from, base, answer) => {
                self.is_receiving = false;
                let index = base.index;
                let is_wanted = self
                    .replica
                    .as_ref()
                    .is_some_and(|replica| replica.wants(&base, engine));
                let installed = match (is_wanted, &mut self.replica) {
                    (true, _) => self.while_reading(engine, now, |replica, engine| {
                        replica.install(engine, base, now)
                    })?,
                    (false, Some(replica)) => Some(replica.install(engine, base, now)?),
                    (false, None) => None,
                };
                let is_new = installed.unwrap_or(false);
                if is_new {
                    self.not_received = None;
                    let jobs = engine.queue().stats().jobs.total();
                    info!("took over the log of member {from}: {jobs} jobs, up to entry {index}");
                }
                // One that has as much needs it as little as one that has just got it: a refusal would have
                // it sent again.
                let has = self
                    .replica
                    .as_ref()
                    .is_some_and(|replica| replica.has(index));
                let _ = answer.send(is_new || has);
            }
            Mail::Failed(from, why) => {
                self.is_receiving = false;
                if self.not_received.as_ref() != Some(&why) {
                    warn!("a copy of the log of member {from} did not come: {why}; it comes again");
                }
                self.not_received = Some(why);
            }
        }
        Ok(())
    }

    /// A copy has come to that member, or not: what goes wrong in the same way is said once.
    fn note_sent(&mut self, to: NodeId, sent: &Result<u64, PeerError>) {
        let why = match sent {
            Ok(index) => {
                self.failing.remove(&to);
                return info!("member {to} has a copy of the log, up to entry {index}");
            }
            Err(why) => why.to_string(),
        };
        let failing = self.failing.entry(to).or_default();
        if failing.why != why {
            warn!(
                "a copy of the log did not come to member {to}: {why}; it is sent again, after longer \
                 and longer times"
            );
        }
        (failing.why, failing.times) = (why.clone(), failing.times + 1);
    }

    /// Someone asks to be added.
    fn consider(&mut self, join: Join, answer: Sender<JoinAnswer>, engine: &Engine) {
        let refuse = |why: String| {
            // Anyone who asked may be gone.
            let _ = answer.send(JoinAnswer::Refused(why));
        };
        let Some(replica) = &mut self.replica else {
            return refuse("the server there is no member of a cluster itself".into());
        };
        if !replica.leads(engine) {
            let leader = match replica.role(engine) {
                Role::Follows(Some(leader)) => Some(leader),
                _ => None,
            };
            let peer = leader.and_then(|leader| self.peers.peer_address(leader));
            return match (leader, peer) {
                (Some(node), Some(peer)) => {
                    let peer = peer.to_owned();
                    let _ = answer.send(JoinAnswer::Elsewhere { node, peer });
                }
                _ => refuse("no member leads now; ask again".into()),
            };
        }
        let same = |it: &&bsd_cluster::member::Member| it.peer == join.peer && it.id != join.node;
        if let Some(other) = replica.members().list.iter().find(same) {
            let id = other.id;
            if other.votes != bsd_cluster::member::Votes::default() {
                return refuse(format!(
                    "member {id} has the address {} already; if its disk is lost, remove it first: \
                     bsd-ctl cluster remove {id}",
                    join.peer
                ));
            }
            // It was added and never came: its disk was lost before it was used.
            let why = match replica.change(Change::Remove(id)) {
                Ok(()) => "an earlier one at this address is being removed; ask again".to_owned(),
                Err(why) => why.to_string(),
            };
            return refuse(why);
        }
        let change = Change::Add {
            id: join.node,
            peer: join.peer.clone(),
            client: join.client.clone(),
        };
        if replica.members().get(join.node).is_none()
            && let Err(why) = replica.change(change)
        {
            return refuse(why.to_string());
        }
        self.joining.push((join, answer));
    }

    /// Whether a stop that was asked for, now or before, may be now. A leader transfers leadership
    /// first: so the clients need not wait until the others miss it.
    pub(super) fn may_stop(&mut self, is_asked: bool, engine: &Engine, now: Time) -> bool {
        let leads = self.replica.as_ref().is_some_and(|it| it.leads(engine));
        if let Some(at) = self.stops_at {
            return !leads || now >= at;
        }
        if !is_asked || !leads {
            return is_asked;
        }
        let Some(heir) = self
            .replica
            .as_mut()
            .and_then(|replica| replica.hand_over())
        else {
            return true;
        };
        info!("stopping: leadership is transferred to member {heir}");
        self.stops_at = Some(Time(now.0 + HAND_OVER_NS));
        false
    }

    /// The clients are gone: follow; or stop, if leadership was transferred for that.
    pub(super) fn step_down(&mut self, engine: &mut Engine, now: Now) -> Result<(), ReplicaError> {
        self.rest_archivist(engine);
        if self.replica.is_some() {
            info!("this member does not lead any more; its clients were closed");
            // A queue that follows is made by reading the whole log.
            self.is_over = self.stops_at.is_some();
            if !self.is_over {
                self.while_reading(engine, now, |replica, engine| {
                    replica.step_down(engine, now)
                })?;
            }
        }
        Ok(())
    }

    /// The log is read again, which may take long. Other threads see before that this member does
    /// not lead, and is not ready.
    fn while_reading<T>(
        &mut self,
        engine: &mut Engine,
        now: Now,
        read: impl FnOnce(&mut Replica, &mut Engine) -> Result<T, ReplicaError>,
    ) -> Result<Option<T>, ReplicaError> {
        let report = Report {
            standing: MemberStanding::Alone,
            leader: None,
            trouble: Some(READS.to_owned()),
            ..self.make_report(engine, now)
        };
        let Some(replica) = &mut self.replica else {
            return Ok(None);
        };
        self.desk.publish(report);
        self.reported_at = None;
        self.pulse.read_again(now.mono);
        let done = read(replica, engine)?;
        self.pulse.set_stage(Stage::Running);
        Ok(Some(done))
    }

    /// Take the parts of the rest of the server.
    pub(super) fn show(&mut self, pulse: Arc<Pulse>, heart: Option<Heart>) {
        self.pulse = pulse;
        // A member is shown once.
        if let Some(heart) = heart {
            let _ = self.heart.set(heart);
        }
    }

    /// Nothing of this turn is to be done any more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// After requests were run: the queue's own work, proposals, the ledger.
    pub(super) fn tick_and_commit(&mut self, core: &mut Core) -> Result<(), ReplicaError> {
        let now = core.now;
        let Some(replica) = &mut self.replica else {
            core.engine.follow_on(now)?;
            self.peers.flush(now.mono);
            self.report(&core.engine, now);
            return Ok(());
        };
        {
            let mut replies = core.desk.replies(&mut core.outputs);
            replica.decide(&mut core.engine, &mut replies, now)?;
        }
        self.draining
            .agree(replica, &mut self.peers, &mut core.engine);
        let answers = core.desk.answers();
        let replied = core.outputs.replied() > 0 || answers != self.answers_before;
        self.answers_before = answers;
        replica.propose(&mut core.engine, replied)?;
        for turns in 1.. {
            persist(replica, &mut self.peers, &mut core.engine, now)?;
            // More only if it needs no other turn: an entry that one member alone has to have.
            if !replica.has_ready() || turns == READY_TURNS {
                break;
            }
        }
        self.peers.flush(now.mono);
        self.acknowledged = replica.acknowledge(&mut core.engine);
        self.follow_members(&core.engine, now);
        self.send_snapshots();
        self.report(&core.engine, now);
        Ok(())
    }

    /// The peers are those of the membership.
    fn follow_members(&mut self, engine: &Engine, now: Now) {
        let Some(replica) = &mut self.replica else {
            return;
        };
        if self.changed != replica.members_changed() {
            (self.changed, self.members) = (replica.members_changed(), replica.members().clone());
            self.peers
                .set_members(self.changed, &self.members, now.mono);
            let members = &self.members;
            self.failing.retain(|id, _| members.get(*id).is_some());
        }
        let (members, cluster, leads) = (&self.members, self.me.cluster, replica.leads(engine));
        self.peers.set_leads(leads);
        self.joining.retain(|(join, answer)| {
            let told = match members.get(join.node) {
                Some(_) => JoinAnswer::Invited {
                    cluster,
                    members: members.clone(),
                },
                None if !leads => JoinAnswer::Refused("another member leads now; ask again".into()),
                None => return true,
            };
            // Anyone who asked may be gone.
            let _ = answer.send(told);
            false
        });
    }

    fn send_snapshots(&mut self) {
        let Some(replica) = &mut self.replica else {
            return;
        };
        for wanted in replica.take_snapshots() {
            let to = wanted.to;
            let failed = self.failing.get(&to).map_or(0, |it| it.times);
            match self.peers.peer_address(to) {
                Some(_) if self.sending.contains(&to) => {}
                Some(address) if self.courier.send(self.me.clone(), (to, failed), address) => {
                    self.sending.push(to);
                }
                _ => replica.snapshot_sent(to, None),
            }
        }
    }

    /// Where clients have to go.
    pub(super) fn leader(&self, engine: &Engine) -> Leader {
        let Some(replica) = &self.replica else {
            return Leader::None;
        };
        if replica.leads(engine) {
            return Leader::Ourselves;
        }
        let Role::Follows(Some(leader)) = replica.role(engine) else {
            return Leader::None;
        };
        let address = self.peers.client_address(leader);
        let at = address.zip(self.peers.peer_address(leader));
        match at.map(|(address, peer)| Target::parse(address, peer)) {
            Some(Ok(target)) => Leader::At(target),
            _ => Leader::None,
        }
    }

    /// True if requests of clients are run.
    pub(super) fn serves(&self) -> bool {
        self.standing == Standing::Serves
    }

    /// True if another turn should come at once.
    pub(super) fn has_work(&self, engine: &Engine) -> bool {
        self.replica
            .as_ref()
            .is_some_and(|replica| replica.has_work(engine))
    }

    /// When another turn has to come.
    pub(super) fn next_deadline(&self, now: Time) -> Option<Time> {
        let of_seat = self.replica.as_ref().map(|replica| replica.next_deadline());
        let of_report = self.reported_at.map(|at| Time(at.0 + REPORT_NS));
        let of_peers = self.peers.next_deadline(now);
        let deadlines = [of_seat, of_report, of_peers, self.begins_at];
        deadlines.into_iter().flatten().min()
    }

    /// Say who leads when that changes, and let other threads see how things are.
    fn report(&mut self, engine: &Engine, now: Now) {
        let role = self.replica.as_ref().map(|replica| replica.role(engine));
        let is_due = |at: Time| now.mono.since(at) >= REPORT_NS;
        if role == self.said && !self.reported_at.is_none_or(is_due) {
            return;
        }
        if role != self.said {
            match role {
                Some(Role::Leads(term)) => {
                    let jobs = engine.queue().stats().jobs.total();
                    info!("this member leads (term {term}): {jobs} jobs");
                }
                Some(Role::Follows(Some(leader))) => {
                    let client = self.peers.client_address(leader).unwrap_or("unknown");
                    info!("member {leader} leads; clients are passed on to {client}");
                }
                Some(Role::Follows(None)) => info!("no member is known to lead; clients wait"),
                Some(Role::Removed) => error!(
                    "this server was removed from the cluster: it serves no one; stop it; to add it \
                     again, move its directory elsewhere first"
                ),
                None => {}
            }
            self.said = role;
        }
        self.reported_at = Some(now.mono);
        let report = self.make_report(engine, now);
        if report.leader.is_some() {
            self.archiving.tell(report.unarchived);
        }
        self.desk.publish(report);
    }
}

/// A step of the replica: what may leave before the own disk has synced, the sync, what waits for that, and
/// then the log. A leader waits for the answers of others more than for their logs.
fn persist(
    replica: &mut Replica,
    peers: &mut Peers,
    engine: &mut Engine,
    now: Now,
) -> Result<(), ReplicaError> {
    for message in replica.outbox() {
        peers.send(NodeId(message.to), message);
    }
    peers.flush(now.mono);
    for message in replica.persist(engine, now)? {
        peers.send(NodeId(message.to), message);
    }
    peers.flush(now.mono);
    replica.advance(engine, now)
}

/// The first token of the peers: in a quarter that nothing else uses.
pub(super) const FIRST_TOKEN: Token = Token(usize::MAX / 4);
