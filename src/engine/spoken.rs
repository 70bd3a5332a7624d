//! A queue that is spoken to as a client speaks, in virtual time, on a simulated disk: for tests.

use super::{Altered, Engine, JobAction, Options, ReplySink};
use crate::protocol::{Decoder, Limits, Reply, encode};
use crate::storage::SimFs;
use crate::storage::disk::sim::Crash;
use crate::types::{ClientId, JobId, JobState, Now, SECOND_NS, Ticket, Time};

pub(super) const BEGIN_NS: u64 = 1_800_000_000_000_000_000;

/// All replies, as they would be sent.
#[derive(Default)]
pub(super) struct Replies(pub(super) Vec<u8>);

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        encode(&reply, &mut self.0);
    }
}

/// A server with a client, and its disk.
pub(super) struct Server {
    pub(super) disk: SimFs,
    pub(super) engine: Engine,
    pub(super) client: ClientId,
    pub(super) now: Now,
}

pub(super) fn engine(disk: &SimFs, now: Now) -> Engine {
    try_engine(disk, now).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) fn try_engine(disk: &SimFs, now: Now) -> Result<Engine, crate::OpenError> {
    let options = Options::simulated(disk, "/log");
    Engine::open(&options, now)
}

impl Server {
    pub(super) fn new() -> Server {
        let disk = SimFs::new(1);
        let now = Now::new(Time(0), BEGIN_NS);
        let engine = engine(&disk, now);
        Server::on(disk, engine, now)
    }

    /// With a client of this engine.
    pub(super) fn on(disk: SimFs, mut engine: Engine, now: Now) -> Server {
        let client = engine.connect();
        Server {
            disk,
            engine,
            client,
            now,
        }
    }

    /// With this policy of the tube `default`.
    pub(super) fn with_policy(policy: &str) -> Server {
        let mut server = Server::new();
        server.policy("default", policy);
        server
    }

    pub(super) fn policy(&mut self, tube: &str, policy: &str) {
        let line = format!("set-policy {tube} {policy}");
        assert_eq!(self.say(line.trim_end()), "POLICY_SET\r\n");
    }

    pub(super) fn say_as(&mut self, client: ClientId, line: &str) -> String {
        let said = self.try_say_as(client, line);
        said.unwrap_or_else(|| panic!("the disk failed: {line}"))
    }

    /// `None`: the disk has failed, and no reply leaves.
    pub(super) fn try_say_as(&mut self, client: ClientId, line: &str) -> Option<String> {
        let bytes = format!("{line}\r\n");
        let (mut decoder, mut replies) = (Decoder::default(), Replies::default());
        let limits = Limits::of(65_535);
        let mut input = bytes.as_bytes();
        let request = decoder.decode(&mut input, limits).expect("a whole request");
        self.engine.run(client, request, self.now, &mut replies);
        self.engine.commit(self.now).ok()?;
        Some(String::from_utf8(replies.0).unwrap())
    }

    pub(super) fn say(&mut self, line: &str) -> String {
        self.say_as(self.client, line)
    }

    /// Says these lines, each answered as expected.
    pub(super) fn talk(&mut self, lines: &[(&str, &str)]) {
        for (line, reply) in lines {
            assert_eq!(self.say(line), format!("{reply}\r\n"), "{line}");
        }
    }

    /// Time goes on, a second at a time; says what clients that wait are told.
    pub(super) fn wait(&mut self, seconds: u32) -> String {
        let mut replies = Replies::default();
        for _ in 0..seconds {
            self.now.mono = self.now.mono.plus_seconds(1);
            self.now.wall_ns += SECOND_NS as u64;
            self.tick(&mut replies);
        }
        String::from_utf8(replies.0).unwrap()
    }

    pub(super) fn tick(&mut self, replies: &mut Replies) {
        loop {
            self.engine.tick(self.now, replies).unwrap();
            self.engine.commit(self.now).unwrap();
            let next = self.engine.next_deadline(self.now);
            if next.is_none_or(|next| next > self.now.mono) {
                return;
            }
        }
    }

    /// The power fails: what was not synced is lost.
    pub(super) fn crash(&mut self) {
        self.disk = self.disk.crash_image(Crash::DropUnsynced);
        self.engine = engine(&self.disk, self.now);
        self.client = self.engine.connect();
    }

    pub(super) fn state(&self, id: u64) -> Option<(String, JobState)> {
        let job = self.engine.queue().job(JobId(id))?;
        Some((job.tube.to_owned(), job.state))
    }

    pub(super) fn is_at(&self, id: u64, tube: &str, state: JobState) {
        assert_eq!(self.state(id), Some((tube.to_owned(), state)));
    }

    pub(super) fn says_of(&mut self, id: u64, key: &str) -> Option<String> {
        let all = self.say(&format!("stats-job-extended {id}"));
        let found = all
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        found.map(str::to_owned)
    }

    pub(super) fn alter(&mut self, id: u64, action: &JobAction) -> Altered {
        let mut replies = Replies::default();
        self.engine
            .alter(JobId(id), action, self.now, &mut replies)
            .unwrap()
    }
}
