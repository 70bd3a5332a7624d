//! Members of a cluster as processes on loopback, each with a directory and an address of its own.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use bsd::random::Random;
use bsd::storage::disk::{Fs, RealFs};
use bsd_cluster::ledger::Ledger;
use bsd_cluster::member::{Member, NodeId};

use super::links::Links;
use crate::harness::{Exit, Launch, PATIENCE, POLL_EVERY, Server, peer_address, wait_until};
use crate::wire::Wire;

/// One member, whether its process runs or not.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) peer: SocketAddr,
    launch: Launch,
    pub(super) server: Option<Server>,
    /// Log lines of its earlier processes.
    pub(super) said: String,
}

/// Where clients may go now, for all threads.
#[derive(Debug, Clone, Default)]
pub(super) struct Doors(Arc<Mutex<Vec<SocketAddr>>>);

impl Doors {
    /// One of them.
    pub(super) fn pick(&self, random: &mut Random) -> Option<SocketAddr> {
        let doors = self.0.lock().unwrap();
        (!doors.is_empty()).then(|| random.pick(&doors))
    }
}

/// Members that are or become one cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    dir: TempDir,
    launch: Launch,
    pub(super) places: Vec<Place>,
    pub(super) doors: Doors,
    begun: u8,
    peer_of: fn(u8) -> SocketAddr,
    /// The links between the members, if it is not loopback alone.
    links: Option<Links>,
}

impl Cluster {
    /// Three members that vote, each started with the arguments of `launch` too.
    pub(super) fn of_three(launch: &Launch) -> Cluster {
        let mut cluster = Cluster::of_one(launch);
        cluster.add_two();
        cluster
    }

    /// Three members that reach each other by these links.
    pub(super) fn of_three_over(links: &Links, launch: &Launch) -> Cluster {
        let mut cluster = Cluster::begin(launch, peer_address, Some(links.clone()));
        cluster.add_two();
        cluster
    }

    /// Three members that vote, in these directories.
    pub(super) fn of_three_in(dirs: &[PathBuf; 3], launch: &Launch) -> Cluster {
        let mut cluster = Cluster::empty(launch, peer_address, None);
        for dir in dirs {
            let beginning = match cluster.places.first() {
                None => "--cluster-init".to_owned(),
                Some(first) => format!("--cluster-join={}", first.peer),
            };
            cluster.begun += 1;
            cluster.add_at(dir.clone(), peer_address(cluster.begun), &beginning);
        }
        cluster.wait_until_all_vote();
        cluster
    }

    fn add_two(&mut self) {
        let first = self.places[0].peer;
        for _ in 0..2 {
            self.add(&format!("--cluster-join={first}"));
        }
        self.wait_until_all_vote();
    }

    /// One member alone.
    pub(super) fn of_one(launch: &Launch) -> Cluster {
        Cluster::at(launch, peer_address)
    }

    /// One member alone; the addresses for peers, by number, are these.
    pub(super) fn at(launch: &Launch, peer_of: fn(u8) -> SocketAddr) -> Cluster {
        Cluster::begin(launch, peer_of, None)
    }

    fn begin(launch: &Launch, peer_of: fn(u8) -> SocketAddr, links: Option<Links>) -> Cluster {
        let mut cluster = Cluster::empty(launch, peer_of, links);
        cluster.add("--cluster-init");
        cluster
    }

    fn empty(launch: &Launch, peer_of: fn(u8) -> SocketAddr, links: Option<Links>) -> Cluster {
        Cluster {
            dir: tempfile::tempdir().unwrap(),
            launch: launch.clone(),
            places: Vec::new(),
            doors: Doors::default(),
            begun: 0,
            peer_of,
            links,
        }
    }

    /// The members that are added from now on are started with the arguments of `launch`; returns those
    /// before.
    pub(super) fn launched_with(&mut self, launch: &Launch) -> Launch {
        std::mem::replace(&mut self.launch, launch.clone())
    }

    /// Start one more server on a new directory and a new address; its number.
    pub(super) fn add(&mut self, beginning: &str) -> usize {
        self.begun += 1;
        let dir = self.dir.path().join(format!("n{}", self.begun));
        let peer = (self.peer_of)(self.begun);
        self.add_at(dir, peer, beginning)
    }

    /// The same on this directory and address.
    pub(super) fn add_at(&mut self, dir: PathBuf, peer: SocketAddr, beginning: &str) -> usize {
        let mut launch = self.launch.clone().dir(&dir).arg(beginning);
        let peer = match &self.links {
            Some(links) => {
                launch = launch.arg(format!("--cluster-listen={peer}"));
                links.lead_to(peer)
            }
            None => peer,
        };
        let launch = launch.arg(format!("--cluster={peer}"));
        self.places.push(Place {
            dir,
            peer,
            launch,
            server: None,
            said: String::new(),
        });
        self.start(self.places.len() - 1);
        self.places.len() - 1
    }

    /// Start a member that does not run.
    pub(super) fn start(&mut self, at: usize) {
        let place = &mut self.places[at];
        assert!(place.server.is_none(), "{at} runs");
        place.server = Some(place.launch.spawn_bound());
        self.open_doors(&[]);
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self, at: usize) {
        let server = self.take(at);
        self.keep_words(at, &server);
        server.kill();
    }

    /// SIGTERM, which it obeys.
    pub(super) fn stop(&mut self, at: usize) -> Exit {
        let exit = self.take(at).stop();
        self.places[at].said += &exit.stderr;
        assert_eq!(exit.code, Some(0), "{at}: {}", exit.stderr);
        exit
    }

    /// A member whose process has ended by itself, and how.
    pub(super) fn take_ended(&mut self) -> Option<(usize, Exit)> {
        let running = self.running();
        let mut servers = running.into_iter();
        let at = servers.find(|at| {
            let server = self.places[*at].server.as_mut();
            server.is_some_and(|server| !server.is_running())
        })?;
        let exit = self.take(at).wait();
        self.places[at].said += &exit.stderr;
        Some((at, exit))
    }

    fn take(&mut self, at: usize) -> Server {
        self.open_doors(&[at]);
        self.places[at].server.take().expect("it runs")
    }

    fn keep_words(&mut self, at: usize, server: &Server) {
        self.places[at].said += &server.stderr();
    }

    /// Clients may go to each member that runs, but these.
    pub(super) fn open_doors(&self, but: &[usize]) {
        let running = self.places.iter().enumerate();
        let running = running.filter(|(at, _)| !but.contains(at));
        let open = running.filter_map(|(_, place)| Some(place.server.as_ref()?.address()));
        *self.doors.0.lock().unwrap() = open.collect();
    }

    pub(super) fn signal(&self, at: usize, signal: Signal) {
        self.server(at).signal(signal);
    }

    /// The process of a member that runs.
    pub(super) fn server(&self, at: usize) -> &Server {
        self.places[at].server.as_ref().expect("it runs")
    }

    /// A connection to each member that runs.
    pub(super) fn connect_to_each(&self) -> Vec<Wire> {
        let servers = self.places.iter().filter_map(|it| it.server.as_ref());
        servers.map(Server::connect).collect()
    }

    /// The members that run.
    pub(super) fn running(&self) -> Vec<usize> {
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, place)| place.server.is_some())
            .map(|(at, _)| at)
            .collect()
    }

    /// Who leads, as a client sees it by the process that answers; waits for it.
    pub(super) fn leader(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(leader) = self.leader_now() {
                return leader;
            }
            thread::sleep(POLL_EVERY);
        }
        panic!("no one leads:\n{}", self.words());
    }

    fn leader_now(&self) -> Option<usize> {
        let running = self.running();
        running.iter().find_map(|at| {
            let pid = pid_behind(self.server(*at).address())?;
            let leads = |it: &&usize| self.server(**it).id() == pid;
            running.iter().find(leads).copied()
        })
    }

    /// Someone who runs and does not lead.
    pub(super) fn follower(&self, random: &mut Random) -> usize {
        let leader = self.leader();
        let others: Vec<usize> = self
            .running()
            .into_iter()
            .filter(|at| *at != leader)
            .collect();
        random.pick(&others)
    }

    /// Wait until each member that runs votes, as the leader has it.
    pub(super) fn wait_until_all_vote(&self) {
        let peers: Vec<String> = self
            .running()
            .iter()
            .map(|at| self.places[*at].peer.to_string())
            .collect();
        let mut seen = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(leader) = self.leader_now() {
                seen = members_of(&self.places[leader].dir);
                let votes = |peer: &String| {
                    let mut voters = seen.iter().filter(|it| it.votes.incoming);
                    voters.any(|it| it.peer == *peer)
                };
                if peers.iter().all(votes) {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "{seen:?}\n{}", self.words());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Wait until each member that runs is connected to all others, as far as it has said.
    pub(super) fn wait_until_all_are_connected(&self) {
        let running = self.running();
        let others = running.len() - 1;
        for at in running {
            let words = || self.server(at).stderr();
            wait_until("it is connected to the others", || {
                words().matches("connected to a peer").count() >= others
            });
        }
    }

    /// The links between the members.
    pub(super) fn links(&self) -> &Links {
        self.links.as_ref().expect("they are linked by a relay")
    }

    /// The id of a member.
    pub(super) fn id(&self, at: usize) -> NodeId {
        id_of(&self.places[at].dir)
    }

    /// All that all members have said.
    pub(super) fn words(&self) -> String {
        let mut words = String::new();
        for (at, place) in self.places.iter().enumerate() {
            let now = place.server.as_ref().map(Server::stderr);
            let now = now.unwrap_or_default();
            words += &format!("--- {at}, {}:\n{}{now}", place.peer, place.said);
        }
        words
    }

    /// Log lines of this member in all its lives.
    pub(super) fn words_of(&self, at: usize) -> String {
        let place = &self.places[at];
        let now = place.server.as_ref().map(Server::stderr);
        place.said.clone() + &now.unwrap_or_default()
    }

    /// Where the directories are, and what tests put beside them.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// A test that fails shows what the members said.
impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("{}", self.words());
        }
    }
}

/// The process that serves who connects there.
pub(super) fn pid_behind(address: SocketAddr) -> Option<u32> {
    let mut wire = Wire::connect(address).ok()?;
    wire.try_send(b"stats\r\n").ok()?;
    let stats = String::from_utf8(wire.try_reply().ok()?).ok()?;
    let pid = stats.lines().find_map(|line| line.strip_prefix("pid: "))?;
    pid.parse().ok()
}

/// The members as the ledger in this directory has them, whether its server runs or not.
pub(super) fn members_of(dir: &Path) -> Vec<Member> {
    with_ledger(dir, |ledger| ledger.members().1.list.clone()).unwrap_or_default()
}

/// The id of the member whose directory this is.
pub(super) fn id_of(dir: &Path) -> NodeId {
    let mut id = None;
    wait_until("its ledger can be copied", || {
        id = with_ledger(dir, |ledger| ledger.identity().node);
        id.is_some()
    });
    id.unwrap()
}

/// Look at a copy: opening it would change what is there. A file may go meanwhile.
fn with_ledger<T>(dir: &Path, look: impl FnOnce(&Ledger) -> T) -> Option<T> {
    let copy = tempfile::tempdir().unwrap();
    let to = bsd_cluster::ledger_dir(copy.path());
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(bsd_cluster::ledger_dir(dir)).ok()? {
        let entry = entry.ok()?;
        if entry.file_type().ok()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).ok()?;
        }
    }
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    let ledger = Ledger::open(&fs, copy.path()).ok()??;
    Some(look(&ledger))
}
