//! Work of a member beside its loop, on threads: it sends its log to another one, receives one, and
//! asks to be added.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use tracing::{info, warn};

use crate::peers::{BlockingLink, PeerError, PeerTls};
use bsd::SetupError;
use bsd::clock::Clock;
use bsd::storage::convert::parts::LogParts;
use bsd::storage::convert::rebuild::Rebuild;
use bsd::storage::disk::Fs;
use bsd::storage::format::{LogId, SegmentHeader, Stamp, segment_header};
use bsd_cluster::ledger::Base;
use bsd_cluster::member::{ClusterId, Members, NodeId};
use bsd_cluster::wire::{Begin, End, Frame, Intake, Join, JoinAnswer, Me, Purpose, Taken};
use bsd_cluster::{install, ledger_dir};

/// Bytes of a log that are sent at a time.
const PIECE_SIZE: usize = 256 << 10;
/// How long the other end may take for a step. The last one of a snapshot is the whole installation.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a member may take to answer a server that asks to be added.
const ASK_PATIENCE: Duration = Duration::from_secs(10);
/// How long the thread of a server that asks to be added waits before it asks again, and that of a copy
/// that did not come before it says so.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Message of a thread to the loop.
pub(super) enum Mail {
    /// Someone asks to be added.
    Join(Join, Sender<JoinAnswer>),
    /// This server is a member of this cluster; whether it could become one here is to be answered.
    Joined(ClusterId, Members, Sender<Result<(), SetupError>>),
    /// No one has added it yet, for this reason; it asks again.
    NotAdded(String),
    /// Up to which entry a copy of the log goes that has this stamp.
    Base(Stamp, Sender<Option<Base>>),
    /// How a snapshot has fared.
    Sent(NodeId, Result<u64, PeerError>),
    /// A copy has come from this member and is complete; whether it is used now is to be answered.
    Came(NodeId, Base, Sender<bool>),
    /// No copy has come.
    Failed(NodeId, String),
}

/// Starts the threads.
pub(super) struct Courier {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    certificates: Certificates,
    post: Post,
    /// How a thread is started: there may be none.
    pub(super) spawn: Spawn,
}

/// Present certificates of members, if they use any. Clones are one: a thread that runs for long
/// sees the new ones after SIGHUP.
#[derive(Clone)]
struct Certificates(Arc<Mutex<Option<PeerTls>>>);

impl Certificates {
    fn now(&self) -> Option<PeerTls> {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Option<PeerTls>> {
        // What is in it is replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Spawn = fn(thread::Builder, Box<dyn FnOnce() + Send>) -> io::Result<()>;

#[derive(Clone)]
struct Post {
    sender: Sender<Mail>,
    waker: Arc<dyn Fn() + Send + Sync>,
}

impl Post {
    /// `false`: the loop has ended.
    fn send(&self, mail: Mail) -> bool {
        let is_sent = self.sender.send(mail).is_ok();
        (self.waker)();
        is_sent
    }

    /// Send a question and wait for its answer; `None`: the loop has ended.
    fn ask<T>(&self, mail: impl FnOnce(Sender<T>) -> Mail) -> Option<T> {
        let (sender, answer) = channel();
        self.send(mail(sender))
            .then(|| answer.recv().ok())
            .flatten()
    }
}

impl Courier {
    pub(super) fn new(
        fs: Arc<dyn Fs>,
        dir: PathBuf,
        tls: Option<PeerTls>,
        sender: Sender<Mail>,
        waker: Arc<dyn Fn() + Send + Sync>,
    ) -> Courier {
        Courier {
            fs,
            dir,
            certificates: Certificates(Arc::new(Mutex::new(tls))),
            post: Post { sender, waker },
            spawn: |builder, work| builder.spawn(work).map(drop),
        }
    }

    /// Anyone who is called from now on is shown these certificates.
    pub(super) fn set_tls(&self, tls: PeerTls) {
        *self.certificates.locked() = Some(tls);
    }

    /// Whether the work has begun; if not, no mail will tell of it.
    fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
        let builder = thread::Builder::new().name(name.into());
        let started = (self.spawn)(builder, Box::new(work));
        if let Err(error) = &started {
            warn!("cannot start a thread for the cluster: {error}");
        }
        started.is_ok()
    }

    /// Send a copy of the log to a member, to which it did not come `failed` times; `false`: that
    /// cannot be begun.
    pub(super) fn send(&self, me: Me, (to, failed): (NodeId, u32), address: &str) -> bool {
        let address = address.to_owned();
        let (fs, tls, post) = (self.fs.clone(), self.certificates.now(), self.post.clone());
        let dir = self.dir.clone();
        if failed == 0 {
            info!(
                "member {to} lacks entries that are not kept any more: sending it a copy of the log"
            );
        }
        self.start("bsd-snapshot", move || {
            let sent = send(&*fs, &dir, &me, to, &address, tls.as_ref(), &post);
            if sent.is_err() {
                // It is wanted again at once, and the disk there may be full. No one waits for this
                // thread; it ends with the process.
                thread::sleep(rest_after(failed));
            }
            post.send(Mail::Sent(to, sent));
        })
    }

    /// Receive a copy of a log; `false`: that cannot be begun.
    pub(super) fn receive(&self, mut link: Box<BlockingLink>, from: NodeId) -> bool {
        let (fs, dir, post) = (self.fs.clone(), self.dir.clone(), self.post.clone());
        self.start("bsd-snapshot", move || {
            info!("member {from} sends a copy of its log");
            let came = receive(&fs, &dir, &mut link);
            let taken = match came {
                Ok(base) => match post.ask(|answer| Mail::Came(from, base, answer)) {
                    Some(true) => Taken::Installed,
                    _ => Taken::Refused("it is not installed there".into()),
                },
                Err(why) => {
                    let why = why.to_string();
                    // What came of it takes room. If this fails, the next copy or start removes it.
                    let _ = install::discard(&fs, &ledger_dir(&dir));
                    post.send(Mail::Failed(from, why.clone()));
                    Taken::Refused(why.chars().take(60).collect())
                }
            };
            // It sees by what this member answers what it has.
            let _ = link.send(&Frame::Taken(taken));
        })
    }

    /// Hear who asks to be added.
    pub(super) fn hear_out(&self, mut link: Box<BlockingLink>) {
        let post = self.post.clone();
        // Without a thread the connection ends, and it asks again.
        self.start("bsd-join", move || {
            let Ok(Frame::Join(join)) = link.receive() else {
                return;
            };
            let answer = post.ask(|answer| Mail::Join(join, answer));
            let stopped = || JoinAnswer::Refused("the member stops".into());
            let _ = link.send(&Frame::Invite(answer.unwrap_or_else(stopped)));
        });
    }

    /// Ask the member there, and the leader, for this server to be added, until it is; `false`:
    /// that cannot be begun.
    pub(super) fn ask_to_be_added(&self, me: Me, address: SocketAddr) -> bool {
        let (certificates, post) = (self.certificates.clone(), self.post.clone());
        self.start("bsd-join", move || {
            let mut at = address.to_string();
            let mut said = String::new();
            loop {
                let why = match ask_once(&me, &at, certificates.now().as_ref()) {
                    Ok(JoinAnswer::Invited { cluster, members }) => {
                        let joined = post.ask(|answer| Mail::Joined(cluster, members, answer));
                        match joined {
                            Some(Err(why)) => why.to_string(),
                            _ => return,
                        }
                    }
                    Ok(JoinAnswer::Elsewhere { peer, .. }) => {
                        at = peer;
                        continue;
                    }
                    Ok(JoinAnswer::Refused(why)) => why,
                    Err(error) => error.to_string(),
                };
                if why != said {
                    warn!("the member at {at} does not add this server: {why}; it is asked again");
                    let told = format!("the member at {at}: {why}; it is asked again");
                    post.send(Mail::NotAdded(told));
                    said = why;
                }
                at = address.to_string();
                // No one waits for this thread; it ends with the process.
                thread::sleep(ASK_AGAIN);
            }
        })
    }
}

/// How long nothing is sent to a member after a copy did not come to it, as did not `failed`
/// before.
pub(super) fn rest_after(failed: u32) -> Duration {
    ASK_AGAIN.saturating_mul(1 << failed.min(6))
}

fn ask_once(me: &Me, address: &str, tls: Option<&PeerTls>) -> io::Result<JoinAnswer> {
    let (mut link, _) =
        BlockingLink::dial(me, NodeId(0), address, Purpose::Join, tls, ASK_PATIENCE)?;
    link.send(&Frame::Join(Join {
        node: me.node,
        peer: me.peer.clone(),
        client: me.client.clone(),
    }))?;
    match link.receive()? {
        Frame::Invite(answer) => Ok(answer),
        _ => Err(io::Error::other("it answers something else")),
    }
}

/// Send the log in `dir` as it is at one instant. Returns the entry up to which it goes.
fn send(
    fs: &dyn Fs,
    dir: &Path,
    me: &Me,
    to: NodeId,
    address: &str,
    tls: Option<&PeerTls>,
    post: &Post,
) -> Result<u64, PeerError> {
    let parts = LogParts::take(fs, dir)?;
    let parts = parts.ok_or("the log cannot be read as it is now; see `bsd-wal verify --live`")?;
    let base = post.ask(|answer| Mail::Base(parts.stamp(), answer));
    let base = base
        .flatten()
        .ok_or("it does not lead any more, or has just changed its members")?;
    let index = base.index;
    let broken = |error| {
        PeerError::Io(
            format!("the connection to {address} is broken").into(),
            error,
        )
    };
    let (mut link, _) =
        BlockingLink::dial(me, to, address, Purpose::Snapshot, tls, PATIENCE).map_err(broken)?;
    let begin = Begin {
        index,
        term: base.term,
        members: base.members,
        files: parts.files().collect(),
    };
    let is_closed = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
        )
    };
    match stream(&mut link, begin, &parts) {
        Ok(()) => {}
        Err(Stop::Read(error)) => return Err(error),
        // Who refuses it says so and closes the connection.
        Err(Stop::Broken(error)) if is_closed(&error) => {
            return Err(match link.receive() {
                Ok(Frame::Taken(Taken::Refused(why))) => why.into(),
                _ => broken(error),
            });
        }
        Err(Stop::Broken(error)) => return Err(broken(error)),
    }
    match link.receive().map_err(broken)? {
        Frame::Taken(Taken::Installed) => Ok(index),
        Frame::Taken(Taken::Refused(why)) => Err(why.into()),
        _ => Err("it answers something else".into()),
    }
}

/// Why a copy was not sent to its end.
enum Stop {
    Read(PeerError),
    Broken(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        Stop::Broken(error)
    }
}

/// All that a copy is.
fn stream(link: &mut BlockingLink, begin: Begin, parts: &LogParts) -> Result<(), Stop> {
    let files = begin.files.clone();
    link.send(&Frame::Begin(begin))?;
    let mut crc = crc32fast::Hasher::new();
    for (at, (name, size)) in files.iter().enumerate() {
        let mut offset = 0;
        while offset < *size {
            let count = (size - offset).min(PIECE_SIZE as u64) as usize;
            let bytes = parts.read(at, offset, count);
            let unread = |error| PeerError::Io(format!("cannot read {name}").into(), error);
            let bytes = bytes.map_err(|error| Stop::Read(unread(error)))?;
            crc.update(&bytes);
            link.send(&Frame::Chunk(Bytes::from(bytes)))?;
            offset += count as u64;
        }
    }
    let crc = crc.finalize();
    link.send(&Frame::End(End { crc }))?;
    Ok(())
}

/// Receive a log into `cluster/incoming`. Durable, checked and complete on return.
fn receive(fs: &Arc<dyn Fs>, dir: &Path, link: &mut BlockingLink) -> Result<Base, PeerError> {
    let ledger_dir = ledger_dir(dir);
    install::discard(fs, &ledger_dir)?;
    let Frame::Begin(begin) = link.receive()? else {
        return Err("it begins with something else".into());
    };
    let files = begin.files.clone();
    let mut intake = Intake::new(begin);
    let incoming = install::incoming(&ledger_dir);
    let mut rebuild = Rebuild::begin(fs, &incoming)?;
    let mut header = Vec::new();
    let end = loop {
        match link.receive()? {
            Frame::Chunk(bytes) => {
                for piece in intake.chunk(&bytes)? {
                    if piece.file == 0 && header.len() < segment_header::SIZE {
                        header.extend_from_slice(piece.bytes);
                    }
                    let (name, _) = &files[piece.file];
                    rebuild.write(name, piece.offset, piece.bytes)?;
                }
            }
            Frame::End(end) => break end,
            _ => return Err("it sends something else".into()),
        }
    };
    let begin = intake.end(end)?;
    let log = log_of(&header).ok_or("its first file is no segment")?;
    let now = Clock::start().now();
    let mut rebuilt = rebuild.open(log, now)?;
    rebuilt.set_stamp(Stamp {
        index: begin.index,
        term: begin.term,
    });
    rebuilt.finish(None)?;
    Ok(Base {
        index: begin.index,
        term: begin.term,
        members: begin.members,
    })
}

fn log_of(header: &[u8]) -> Option<LogId> {
    let header = SegmentHeader::decode(header).ok()?;
    Some(header.identity.log)
}
