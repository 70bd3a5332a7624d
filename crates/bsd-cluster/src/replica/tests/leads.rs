//! The first and the last turns of a lead: what chance seldom meets.

use raft::eraftpb::{Entry, Message, MessageType};

use super::room::Ask;
use super::*;
use crate::replica::ENTRY_COST;

/// This many entries after what is committed, of this term.
fn append(world: &World, to: usize, count: u64, term: u64) -> Message {
    let life = world.sites[to].life.as_ref().expect("it is up");
    let status = life.replica.status();
    let mut message = Message {
        msg_type: MessageType::MsgAppend,
        from: (to as u64 + 1) % 3 + 1,
        to: status.id.0,
        term,
        index: status.commit,
        log_term: status.term,
        commit: status.commit,
        ..Message::default()
    };
    let entries = (1..=count).map(|nth| Entry {
        index: status.commit + nth,
        term,
        ..Entry::default()
    });
    message.entries = entries.collect::<Vec<_>>().into();
    message
}

impl World {
    /// The leader is gone, and this site has all of its entries and many more, of which it does not
    /// know that they are committed: more than are applied in one turn.
    fn heir(&mut self) -> usize {
        self.peace();
        let leader = self.leader().unwrap();
        let term = self.life(leader).replica.status().term;
        self.sites[leader].life = None;
        let heir = (leader + 1) % 3;
        let message = append(self, heir, 10_000, term);
        self.life(heir).replica.step(message);
        heir
    }

    pub(super) fn life(&mut self, site: usize) -> &mut Life {
        self.sites[site].life.as_mut().expect("it is up")
    }
}

/// Most of what it has was not known to be committed before it leads.
#[test]
fn who_leads_serves_no_one_before_it_has_applied_all_that_is_committed() {
    let mut world = World::new(1);
    let heir = world.heir();
    let (mut waited, mut leads) = (0, false);
    while !leads {
        world.pass_time();
        (0..3).for_each(|site| world.turn(site, false));
        let life = world.life(heir);
        let stamp = life.engine.stamp().index;
        leads = life.leads();
        assert!(
            !leads || stamp > 10_000,
            "it leads with the jobs of entry {stamp}"
        );
        waited += u32::from(!leads && matches!(life.replica.role, Role::Leads(_)));
    }
    assert!(waited > 1, "it had too little to apply");
}

/// The committed entries of another leader have the numbers of those that were decided here.
#[test]
fn an_entry_of_another_leader_lets_no_reply_leave() {
    let mut world = World::new(1);
    (world.busy, world.puts, world.only_reads) = (100, 90, false);
    world.peace();
    let leader = world.leader().unwrap();
    world.wires.clear();
    let others = (0..3).filter(|other| *other != leader);
    world.cut.extend(others.map(|other| (leader, other)));
    let (fell, told) = (world.seen.fell, world.seen.replies);
    for _ in 0..10 {
        world.pass_time();
        world.turn(leader, true);
    }
    let life = world.life(leader);
    assert!(life.waiting.len() > 4, "it is asked for little");
    let status = life.replica.status();
    let count = status.last - status.commit;
    let mut message = append(&world, leader, count, status.term + 1);
    message.commit = status.last;
    world.life(leader).replica.step(message);
    world.turn(leader, false);
    assert_eq!(world.life(leader).replica.status().commit, status.last);
    assert_eq!(
        world.seen.replies, told,
        "replies to what only this member had left"
    );
    world.turn(leader, false);
    assert_eq!((world.seen.fell, world.seen.replies), (fell + 1, told));
}

/// It was paused while two others led one after the other: it hears of both in one turn.
#[test]
fn what_it_decided_is_applied_although_the_entry_behind_it_is_of_another_leader() {
    let mut world = World::new(1);
    world.peace();
    let leader = world.leader().unwrap();
    world.wires.clear();
    world.cut.extend((0..3).map(|other| (leader, other)));
    world.script = vec![Ask::Put(10)];
    world.pass_time();
    world.turn(leader, false);
    let life = world.life(leader);
    let Told::Inserted(id) = life.waiting[0].told else {
        panic!("it is not put");
    };
    let status = life.replica.status();
    assert_eq!(status.last, status.commit + 1);
    let mut message = append(&world, leader, 1, status.term + 1);
    (message.index, message.commit) = (status.last, status.last + 1);
    message.entries[0].index = status.last + 1;
    world.life(leader).replica.step(message);
    for _ in 0..5 {
        world.pass_time();
        world.turn(leader, false);
    }
    let life = world.life(leader);
    assert_eq!(life.engine.stamp().index, status.last + 1);
    assert!(life.engine.queue().job(id).is_some());
}

/// An entry of a turn without a reply, as of a schedule, is on its way when a reserve asks for nothing
/// but whether this member still leads.
#[test]
fn a_reply_waits_for_what_was_decided_before_it_without_a_reply() {
    let mut world = World::new(1);
    world.peace();
    let leader = world.leader().unwrap();
    world.wires.clear();
    world.pass_time();
    let now = world.now;
    let life = world.life(leader);
    let mut replies = Replies(Vec::new());
    for (ask, has_replied) in [(Ask::Put(10), false), (Ask::Peek(JobId(1)), true)] {
        let standing = life.replica.begin(&mut life.engine, now).unwrap();
        assert_eq!(standing, Standing::Serves);
        life.serve(vec![ask], now, &mut replies);
        life.replica
            .decide(&mut life.engine, &mut replies, now)
            .unwrap();
        life.replica.propose(&mut life.engine, has_replied).unwrap();
    }
    let (asked, turn) = (life.replica.asked, life.replica.turn);
    let mut sent = life.replica.outbox();
    sent.extend(life.replica.persist(&mut life.engine, now).unwrap());
    let heartbeats = sent
        .into_iter()
        .filter(|it| it.msg_type == MessageType::MsgHeartbeat);
    for message in heartbeats {
        let to = message.to as usize - 1;
        world.wires.push((now.mono, to, message));
    }
    for _ in 0..20 {
        world.turns(1);
        world
            .wires
            .retain(|(_, _, message)| message.entries.is_empty());
    }
    let life = world.life(leader);
    assert!(life.replica.confirmed >= asked, "it still leads");
    assert!(
        life.replica.acknowledged < turn,
        "its entry is on no other disk"
    );
    world.turns(1_000);
    assert!(world.life(leader).replica.acknowledged >= turn);
}

#[test]
fn t18_who_cannot_apply_takes_a_bounded_number_of_entries_and_goes_on_when_it_can() {
    const MAX: usize = 10_000;
    const COUNT: u64 = 20;
    let mut world = World::new(1);
    world.peace();
    let leader = world.leader().unwrap();
    let term = world.life(leader).replica.status().term;
    let (at, now) = ((leader + 1) % 3, world.now);
    world.life(at).replica.pending_max = MAX;
    let send = |world: &mut World| {
        let mut message = append(world, at, COUNT, term);
        message.commit += COUNT;
        let life = world.life(at);
        life.replica.step(message);
        while life.replica.has_ready() {
            life.replica.outbox();
            life.replica.persist(&mut life.engine, now).unwrap();
        }
        (life.replica.pending_bytes, life.replica.status().last)
    };
    let (mut most, mut last) = (0, 0);
    for _ in 0..100 {
        (most, last) = send(&mut world);
    }
    let message = COUNT as usize * ENTRY_COST;
    assert!(MAX < most && most <= MAX + message, "{most} bytes wait");
    let life = world.life(at);
    while life.replica.pending_bytes > 0 {
        life.replica.advance(&mut life.engine, now).unwrap();
    }
    assert_eq!(send(&mut world).1, last + COUNT);
}

/// While leadership is being transferred nothing may be proposed, and connections end all the same.
#[test]
fn a_delivery_that_fails_while_nothing_may_be_proposed_is_counted_later() {
    let mut world = World::new(1);
    world.peace();
    let told = world.ask(&[Ask::Limit, Ask::Put(10), Ask::Reserve]);
    let Told::Reserved(id, _) = told[2] else {
        panic!("{told:?}");
    };
    let leader = world.leader().unwrap();
    world.cut.extend((0..3).map(|other| (leader, other)));
    world.pass_time();
    let now = world.now;
    let life = world.life(leader);
    life.replica.node.hand_over().expect("a peer is there");
    let client = life.client.take().unwrap();
    life.engine.disconnect(client, now);
    for _ in 0..10 {
        world.turns(1);
        let status = world.life(leader).replica.status();
        assert_eq!(status.last, status.commit);
    }
    world.cut.clear();
    world.oracle.delete_asked.insert(id);
    world.turns(5_000);
    let told = world.ask(&[Ask::Reserve]);
    assert!(matches!(&told[0], Told::Other(reply) if reply == b"TIMED_OUT\r\n"));
    let leader = world.leader().unwrap();
    assert!(world.life(leader).engine.queue().job(id).is_none());
}

/// It begins to lead while leadership is being transferred, so it may propose nothing in that turn.
#[test]
fn what_happens_as_it_begins_to_lead_waits_for_a_turn() {
    let mut world = World::new(1);
    let heir = world.heir();
    while !world.life(heir).may_lead() {
        world.pass_time();
        (0..3).for_each(|site| world.turn(site, false));
    }
    let now = world.now;
    let life = world.life(heir);
    assert!(!life.leads());
    life.replica.node.hand_over().expect("a peer is there");
    let standing = life.replica.begin(&mut life.engine, now).unwrap();
    assert_eq!(standing, Standing::Pauses);
    assert_eq!(life.engine.after(), Ticket::turn(life.replica.turn));
}
