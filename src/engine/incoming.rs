//! Bodies on their way: their beginnings are in the log's spool while the rest is to come.
//!
//! The reader of requests decides which bodies are not held in memory. A beginning belongs to the next
//! request of its client: the put that it is the beginning of, or a refusal of that put. It is let go
//! with that request, or with the client.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::store::Store;
use super::{Engine, Log};
use crate::storage::Begun;
use crate::types::{ClientId, Now, Time};

/// After the spool had no room, bodies are held in memory for this time, nanoseconds.
const HELD_FOR_NS: i64 = 100_000_000;

/// The beginnings of bodies.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    of_clients: BTreeMap<ClientId, (Begun, Time)>,
    /// Their clients, ordered by when the beginning last grew.
    order: BTreeSet<(Time, ClientId)>,
    /// Until then there is no room.
    held_until: Option<Time>,
    /// It was said that the spool cannot be written.
    is_told: bool,
}

impl Incoming {
    #[inline(always)]
    pub(super) fn take(&mut self, client: ClientId) -> Option<Begun> {
        match self.of_clients.is_empty() {
            true => None,
            false => self.take_from_list(client),
        }
    }

    fn take_from_list(&mut self, client: ClientId) -> Option<Begun> {
        let (begun, grown) = self.of_clients.remove(&client)?;
        self.order.remove(&(grown, client));
        Some(begun)
    }

    /// Something was written to the spool, or not. Says which.
    fn note(&mut self, written: io::Result<()>, log: &Log, now: Now) -> bool {
        let Err(error) = written else {
            self.held_until = None;
            return true;
        };
        self.held_until = Some(Time(now.mono.0.saturating_add(HELD_FOR_NS)));
        if !std::mem::replace(&mut self.is_told, true) {
            let dir = log.dir().display();
            tracing::warn!(
                "large bodies that come slowly are held in memory: they cannot be kept in {dir} \
                 meanwhile: {error}"
            );
        }
        false
    }

    fn keep(&mut self, client: ClientId, begun: Begun, now: Time) {
        self.order.insert((now, client));
        self.of_clients.insert(client, (begun, now));
    }
}

impl Engine {
    /// Keep what comes next of the body of a client's put on the disk. `false`: there is no log, or no
    /// room; or several servers have to have what is put before it is written, and until then the
    /// leader holds it anyway. The body is then as it was, and its rest has to be held in memory.
    pub fn keep_begun(&mut self, client: ClientId, bytes: &[u8], now: Now) -> bool {
        if self.failed.is_some() || self.is_one_of_several() {
            return false;
        }
        let Store::Log(log) = &mut self.store else {
            return false;
        };
        let incoming = &mut self.incoming;
        let mut begun = incoming.take(client).unwrap_or_default();
        let is_held = incoming.held_until.is_some_and(|until| now.mono < until);
        let kept = match is_held || log.is_short() {
            true => false,
            false => incoming.note(log.spool(&mut begun, bytes), log, now),
        };
        // What comes and has to be held in memory is a sign of life, too.
        if begun.size() > 0 {
            incoming.keep(client, begun, now.mono);
        } else {
            log.forget_begun(begun);
        }
        kept
    }

    /// Bytes that are kept of the body of a client's put.
    #[must_use]
    pub fn begun_of(&self, client: ClientId) -> usize {
        let begun = self.incoming.of_clients.get(&client);
        begun.map_or(0, |(begun, _)| begun.size())
    }

    /// The client whose beginning has not grown for the longest time, and since when.
    #[must_use]
    pub fn longest_begun(&self) -> Option<(Time, ClientId)> {
        self.incoming.order.first().copied()
    }

    /// The body of a client will not come.
    pub fn forget_begun(&mut self, client: ClientId) {
        if let Some(begun) = self.incoming.take(client) {
            self.give_back_begun(begun);
        }
    }

    pub(super) fn give_back_begun(&mut self, begun: Begun) {
        if let Some(log) = self.store.log() {
            log.forget_begun(begun);
        }
    }

    /// Bytes of bodies on their way that are on the disk.
    #[must_use]
    pub fn spooled(&self) -> u64 {
        self.log().map_or(0, Log::spooled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Options, ReplySink};
    use crate::protocol::{Command, Reply, Request};
    use crate::storage::SimFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};
    use crate::types::Ticket;

    const NOW: Now = Now::new(Time(1_000_000_000), 1_700_000_000_000_000_000);

    /// The last reply.
    #[derive(Default)]
    struct Last(Vec<u8>);

    impl ReplySink for Last {
        fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
            self.0.clear();
            crate::protocol::encode(&reply, &mut self.0);
        }
    }

    fn open(fs: &SimFs) -> Engine {
        let options = Options {
            job_size_max: 4 << 20,
            ..Options::simulated(fs, "/log")
        };
        Engine::open(&options, NOW).unwrap()
    }

    fn body() -> Vec<u8> {
        (0..2_000_001).map(|at| (at / 3) as u8).collect()
    }

    fn run(engine: &mut Engine, client: ClientId, command: Command<'_>) -> Vec<u8> {
        let mut last = Last::default();
        engine.run(client, Request::Command(command), NOW, &mut last);
        engine.commit(NOW).unwrap();
        last.0
    }

    fn put(body: &[u8]) -> Command<'_> {
        Command::put(1, 0, 60, body)
    }

    /// Keep all but the last 100,001 bytes of the body.
    fn begin(engine: &mut Engine, client: ClientId, body: &[u8]) {
        for piece in body[..body.len() - 100_001].chunks(70_000) {
            assert!(engine.keep_begun(client, piece, NOW));
        }
    }

    #[test]
    fn g46_a_body_that_was_begun_on_the_disk_is_in_the_log_as_one_that_came_at_once() {
        let fs = SimFs::new(1);
        let mut engine = open(&fs);
        let (client, other) = (engine.connect(), engine.connect());
        let body = body();
        begin(&mut engine, client, &body);
        begin(&mut engine, other, &body[1..]);
        let rest = &body[body.len() - 100_001..];
        assert_eq!(run(&mut engine, client, put(rest)), b"INSERTED 1\r\n");
        // The next one of the same client has nothing of it.
        assert_eq!(run(&mut engine, client, put(b"small")), b"INSERTED 2\r\n");
        assert!(engine.spooled() > 1 << 20);
        engine.disconnect(other, NOW);
        assert_eq!(engine.spooled(), 0);
        let look = |engine: &mut Engine, client, id: u64| {
            run(engine, client, Command::Peek(crate::types::JobId(id)))
        };
        let found = [
            format!("FOUND 1 {}\r\n", body.len()).as_bytes(),
            &body,
            b"\r\n",
        ]
        .concat();
        assert!(look(&mut engine, client, 1) == found);
        drop(engine);
        let mut engine = open(&fs);
        let client = engine.connect();
        assert!(look(&mut engine, client, 1) == found);
        assert_eq!(look(&mut engine, client, 2), b"FOUND 2 5\r\nsmall\r\n");
    }

    #[test]
    fn g46_a_body_that_cannot_be_read_back_is_one_put_refused_and_the_log_goes_on() {
        let fs = SimFs::new(1);
        let mut engine = open(&fs);
        let client = engine.connect();
        let body = body();
        for has_frame in [false, true] {
            begin(&mut engine, client, &body);
            let mut last = Last::default();
            if has_frame {
                let small = Request::Command(put(b"in the same frame"));
                let other = engine.connect();
                engine.run(other, small, NOW, &mut last);
            }
            fs.inject(Fault::fail(OpKind::Read, Errno::IO));
            let rest = &body[body.len() - 100_001..];
            assert_eq!(run(&mut engine, client, put(rest)), b"INTERNAL_ERROR\r\n");
            assert_eq!(engine.spooled(), 0);
        }
        begin(&mut engine, client, &body);
        let rest = &body[body.len() - 100_001..];
        let inserted = run(&mut engine, client, put(rest));
        assert!(inserted.starts_with(b"INSERTED "));
        drop(engine);
        let engine = open(&fs);
        assert_eq!(engine.queue().stats().jobs.ready, 2);
    }

    #[test]
    fn g46_without_room_for_the_beginning_it_stays_with_its_owner_and_is_taken_later() {
        let fs = SimFs::new(1);
        let mut engine = open(&fs);
        let client = engine.connect();
        let body = body();
        assert!(engine.keep_begun(client, &body[..1000], NOW));
        fs.set_quota(Some(fs.used()));
        assert!(!engine.keep_begun(client, &body[1000..400_000], NOW));
        fs.set_quota(None);
        assert!(
            !engine.keep_begun(client, &body[1000..400_000], NOW),
            "it was full just now"
        );
        assert_eq!(engine.begun_of(client), 1000);
        let later = Now {
            mono: Time(NOW.mono.0 + HELD_FOR_NS),
            ..NOW
        };
        assert!(engine.keep_begun(client, &body[1000..400_000], later));
        assert_eq!(engine.begun_of(client), 400_000);
        let inserted = run(&mut engine, client, put(&body[400_000..]));
        assert_eq!(inserted, b"INSERTED 1\r\n");
        let found = run(&mut engine, client, Command::Peek(crate::types::JobId(1)));
        assert!(found.ends_with(&[&body[..], b"\r\n"].concat()));
    }

    #[test]
    fn g46_without_a_log_no_beginning_is_kept() {
        let mut engine = Engine::open(&Options::default(), NOW).unwrap();
        let client = engine.connect();
        assert!(!engine.keep_begun(client, b"begun", NOW));
        assert_eq!((engine.begun_of(client), engine.spooled()), (0, 0));
    }
}
