//! The cluster as other threads see it, and their requests.

use std::collections::VecDeque;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ClientConfig;

use super::Member;
use bsd::engine::Engine;
use bsd::types::{Now, SECOND_NS};
use bsd::{ErrorClass, SetupError};
use bsd_cluster::member::NodeId;
use bsd_cluster::node::{Change, Role};
use bsd_cluster::replica::ReplicaError;

/// A request to a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Begin a cluster of this server.
    Init,
    /// Add this server to the cluster of the member at this address.
    Join(SocketAddr),
    /// Remove a member.
    Remove(NodeId),
    /// Transfer leadership to a member.
    Transfer(NodeId),
}

/// Role of a server in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// It is no member yet.
    #[default]
    Waiting,
    /// It follows a leader.
    Follows,
    /// It knows no leader.
    Alone,
    /// It leads.
    Leads,
    /// It was removed.
    Removed,
}

impl Standing {
    /// Its word, in lower case.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Standing::Waiting => "waiting",
            Standing::Follows => "follower",
            Standing::Alone => "no leader",
            Standing::Leads => "leader",
            Standing::Removed => "removed",
        }
    }
}

/// Who leads, as far as it is known where that is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderReport {
    /// Which member.
    pub id: String,
    /// Where clients reach it; empty: not known.
    pub client: String,
    /// Where HTTP reaches it, `http://ADDR` or `https://ADDR`; empty: not known.
    pub http: String,
}

/// A member that leads without an archive, and one that has an archive and does not lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unarchived {
    /// Who leads.
    pub leader: NodeId,
    /// Who would archive, if it led.
    pub other: NodeId,
}

/// One member, as another one sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberReport {
    /// Which.
    pub id: NodeId,
    /// Where other members reach it.
    pub peer: String,
    /// Where clients reach it.
    pub client: String,
    /// Where HTTP reaches it; empty: not known.
    pub http: String,
    /// Nanoseconds by which its wall clock is at least ahead of the one here, or behind if that is
    /// negative, as of the last time that this server connected to it.
    pub clock_ahead_ns: Option<i64>,
    /// It votes.
    pub votes: bool,
    /// It leads.
    pub leads: bool,
    /// This is the server that says all this.
    pub is_this: bool,
    /// There is a connection to it, and it answers, if this server asks it anything; of the server
    /// itself always.
    pub is_connected: bool,
    /// It has everything up to this entry, as the leader knows.
    pub matched: Option<u64>,
    /// Entries that it does not have, as the leader knows.
    pub lag: Option<u64>,
    /// It gets a copy of the whole log.
    pub needs_snapshot: bool,
    /// Milliseconds since it was last heard of.
    pub heard_ms: Option<u64>,
}

/// A server's view of its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The cluster; empty: none.
    pub cluster: String,
    /// This member.
    pub node: String,
    /// It asks to be added to a cluster.
    pub is_joining: bool,
    /// Why it was not added, the last time that it asked; or what is wrong with a member.
    pub trouble: Option<String>,
    /// Nothing is archived, although a member could: who leads, and who could. The leader was started
    /// without an archive. `None`: that is not so, or not known.
    pub unarchived: Option<Unarchived>,
    /// Its role.
    pub standing: Standing,
    /// The term.
    pub term: u64,
    /// The leader, if there is one as far as is known.
    pub leader: Option<LeaderReport>,
    /// The last entry that is known to be committed, that is applied here, and that is in the ledger.
    pub committed: u64,
    /// See `committed`.
    pub applied: u64,
    /// See `committed`.
    pub last: u64,
    /// The first entry that is still in the ledger.
    pub first: u64,
    /// Bytes of the ledger on the disk.
    pub ledger_bytes: u64,
    /// Which room the ledger lacks: without it this member agrees to nothing.
    pub ledger_lacks: Option<ErrorClass>,
    /// A change of the membership is under way.
    pub is_changing: bool,
    /// Messages of peers that were refused.
    pub refused: u64,
    /// Clients that are passed on to the leader.
    pub forwarded: u64,
    /// The members.
    pub members: Vec<MemberReport>,
}

type Answer = Sender<Result<String, SetupError>>;

/// Where other threads see the cluster and ask of it. Clones are one desk.
#[derive(Clone)]
pub struct ClusterDesk(Arc<Shared>);

struct Shared {
    report: Mutex<Report>,
    asks: Mutex<VecDeque<(Ask, Answer)>>,
    links: Mutex<Option<Arc<ClientConfig>>>,
    waker: Arc<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for ClusterDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterDesk").finish_non_exhaustive()
    }
}

/// Who was not heard of for so long does not answer.
const SILENT_NS: i64 = 2 * SECOND_NS;

/// No more questions wait than these.
const ASKS_MAX: usize = 16;

impl ClusterDesk {
    /// A desk whose questions are answered by the loop that `waker` wakes.
    #[must_use]
    pub fn new(waker: Arc<dyn Fn() + Send + Sync>) -> ClusterDesk {
        ClusterDesk(Arc::new(Shared {
            report: Mutex::default(),
            asks: Mutex::default(),
            links: Mutex::default(),
            waker,
        }))
    }

    /// How things are; at most a tenth of a second old.
    #[must_use]
    pub fn report(&self) -> Report {
        lock(&self.0.report).clone()
    }

    /// Ask for something. What comes is what was begun, or why not; nothing comes if the loop ends.
    #[must_use]
    pub fn ask(&self, ask: Ask) -> Receiver<Result<String, SetupError>> {
        let (sender, answer) = channel();
        let mut asks = lock(&self.0.asks);
        if asks.len() < ASKS_MAX {
            asks.push_back((ask, sender));
        } else {
            let why = "too many questions wait; ask again";
            // The receiver is still here.
            let _ = sender.send(Err(SetupError::new(why)));
        }
        drop(asks);
        (self.0.waker)();
        answer
    }

    /// How a thread encrypts what it passes on to another member: it shows the certificate of this
    /// one, and trusts the authority of the members alone. A member's certificate is for the host of
    /// its peer address. `None`: this member has none.
    #[must_use]
    pub fn links(&self) -> Option<Arc<ClientConfig>> {
        lock(&self.0.links).clone()
    }

    /// From now on links are encrypted so.
    pub(super) fn certify(&self, links: Arc<ClientConfig>) {
        *lock(&self.0.links) = Some(links);
    }

    pub(super) fn publish(&self, report: Report) {
        *lock(&self.0.report) = report;
    }

    fn take(&self) -> Option<(Ask, Answer)> {
        lock(&self.0.asks).pop_front()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in it is replaced as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    pub(super) fn answer_asks(
        &mut self,
        engine: &mut Engine,
        now: Now,
    ) -> Result<(), ReplicaError> {
        while let Some((ask, answer)) = self.desk.take() {
            let outcome = self.do_as_asked(ask, engine, now)?;
            // Anyone who asked may be gone.
            let _ = answer.send(outcome);
        }
        Ok(())
    }

    fn do_as_asked(
        &mut self,
        ask: Ask,
        engine: &mut Engine,
        now: Now,
    ) -> Result<Result<String, SetupError>, ReplicaError> {
        let refused = |why: &dyn Display| Err(SetupError::new(why));
        let is_member = || refused(&"this server is a member of a cluster already");
        Ok(match (ask, &mut self.replica) {
            (Ask::Init | Ask::Join(_), Some(_)) => is_member(),
            (Ask::Init, None) => match (self.is_missed(engine), self.begins_at.take()) {
                (Some(why), _) => Err(SetupError::caused_by(why.to_string(), why.class(), why)),
                (None, _) => match self.init(engine, now) {
                    Ok(()) => Ok(format!("began the cluster {}", self.me.cluster)),
                    Err(error) => Err(self.take_back(error)?),
                },
            },
            (Ask::Join(address), None) => {
                self.begins_at = None;
                let asked = self.ask_to_be_added(address, engine);
                asked.map(|()| format!("asking the member at {address} to be added"))
            }
            (_, None) => refused(&"this server is no member of a cluster"),
            (Ask::Remove(id), Some(replica)) => match replica.change(Change::Remove(id)) {
                Ok(()) => Ok(format!("removing member {id}")),
                Err(why) => refused(&why),
            },
            (Ask::Transfer(id), Some(replica)) if replica.leads(engine) => {
                match replica.members().get(id).map(|it| it.votes.incoming) {
                    None => refused(&format_args!("there is no member {id}")),
                    Some(_) if id == self.me.node => {
                        refused(&format_args!("member {id} leads already"))
                    }
                    Some(false) => refused(&format_args!(
                        "member {id} has no vote yet: it is catching up; ask again later"
                    )),
                    Some(true) if replica.transfer(id) => {
                        Ok(format!("transferring leadership to member {id}"))
                    }
                    Some(true) => refused(&format_args!(
                        "member {id} does not answer, or leadership is being transferred already: ask \
                         again later"
                    )),
                }
            }
            (Ask::Transfer(_), Some(replica)) => match replica.role(engine) {
                Role::Follows(Some(leader)) => {
                    refused(&format_args!("member {leader} leads: ask that one"))
                }
                _ => refused(&"no member leads now: ask again"),
            },
        })
    }

    pub(super) fn make_report(&self, engine: &Engine, now: Now) -> Report {
        let Some(replica) = &self.replica else {
            return Report {
                node: self.me.node.to_string(),
                is_joining: self.is_joining,
                trouble: self.not_added.clone(),
                ..Report::default()
            };
        };
        let status = replica.status();
        let leader = status.leader.map(|id| {
            let (client, http) = match id == self.me.node {
                true => (Some(&*self.me.client), Some(&*self.me.http)),
                false => (self.peers.client_address(id), self.peers.http_address(id)),
            };
            LeaderReport {
                id: id.to_string(),
                client: client.unwrap_or_default().to_owned(),
                http: http.unwrap_or_default().to_owned(),
            }
        });
        let standing = match replica.role(engine) {
            Role::Leads(_) => Standing::Leads,
            Role::Follows(Some(_)) => Standing::Follows,
            Role::Follows(None) => Standing::Alone,
            Role::Removed => Standing::Removed,
        };
        let states = self.peers.states();
        let archives = |id: NodeId| match id == self.me.node {
            true => Some(self.me.archives),
            false => states.iter().find(|it| it.node == id)?.archives,
        };
        let unarchived = status.leader.filter(|it| archives(*it) == Some(false));
        let unarchived = unarchived.and_then(|leader| {
            let mut ids = status.members.iter().map(|it| it.member.id);
            let other = ids.find(|id| archives(*id) == Some(true))?;
            Some(Unarchived { leader, other })
        });
        // Who leads, or wants to, hears of all others all the time; who follows hears of its
        // leader.
        let asks_all = matches!(standing, Standing::Leads | Standing::Alone);
        let is_recent = |at| now.mono.since(at) <= SILENT_NS;
        let mut refused = status.members.iter().filter_map(|it| {
            let id = it.member.id;
            if it.is_set_back {
                return Some(format!(
                    "member {id} has less than it had acknowledged, and does not follow: its disk is \
                     older than it was"
                ));
            }
            let why = it.refused.as_ref()?;
            Some(format!("messages of member {id} are refused: {why}"))
        });
        let short = status.members.iter().filter(|it| it.is_short);
        let short: Vec<String> = short.map(|it| it.member.id.to_string()).collect();
        let is_short = || {
            let (who, is) = match short.len() {
                1 => ("the disk of member", "is"),
                _ => ("the disks of members", "are"),
            };
            let ids = short.join(", ");
            format!("{who} {ids} {is} full: make room there, or delete jobs")
        };
        let trouble = refused
            .next()
            .or_else(|| (!short.is_empty()).then(is_short));
        let members = status.members.iter().map(|it| {
            let (id, reach) = (it.member.id, &it.progress);
            let state = states.iter().find(|state| state.node == id);
            let is_this = id == self.me.node;
            let is_silent = asks_all && !it.heard.is_some_and(is_recent);
            let is_connected = state.is_some_and(|it| it.is_connected) && !is_silent;
            MemberReport {
                id,
                peer: it.member.peer.clone(),
                client: state.map_or(&it.member.client, |it| &it.client).clone(),
                http: match is_this {
                    true => self.me.http.clone(),
                    false => state.map_or_else(String::new, |it| it.http.clone()),
                },
                clock_ahead_ns: match is_this {
                    true => Some(0),
                    false => state.and_then(|it| it.clock_ahead_ns),
                },
                votes: it.member.votes.incoming,
                leads: status.leader == Some(id),
                is_this,
                is_connected: is_this || is_connected,
                matched: reach.as_ref().map(|reach| reach.matched),
                lag: reach.as_ref().map(|reach| reach.lag),
                needs_snapshot: reach.as_ref().is_some_and(|reach| reach.needs_snapshot),
                heard_ms: it
                    .heard
                    .map(|at| now.mono.since(at).max(0) as u64 / 1_000_000),
            }
        });
        Report {
            cluster: self.me.cluster.to_string(),
            node: self.me.node.to_string(),
            is_joining: false,
            trouble,
            unarchived,
            standing,
            term: status.term,
            leader,
            committed: status.commit,
            applied: match engine.is_following() {
                true => engine.stamp().index,
                false => status.applied,
            },
            last: status.last,
            first: status.first,
            ledger_bytes: status.ledger_bytes,
            ledger_lacks: replica.ledger_lacks(),
            is_changing: status.is_changing,
            refused: status.refused + self.peers.refused(),
            forwarded: self.forwarded,
            members: members.collect(),
        }
    }
}
