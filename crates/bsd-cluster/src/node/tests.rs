//! A node alone, with a peer that may say anything.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::change::Step;
use super::timer::ELECTION_TICKS;
use super::*;
use crate::ledger::Identity;
use crate::member::{ClusterId, Member, Votes};
use bsd::check::volume::volume;
use bsd::random::Random;
use bsd::storage::SimFs;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;

const MS: i64 = 1_000_000;

fn member(id: u64, incoming: bool) -> Member {
    Member {
        id: NodeId(id),
        peer: format!("peer-{id}"),
        client: String::new(),
        votes: Votes {
            incoming,
            ..Votes::default()
        },
    }
}

fn members(voters: u64) -> Members {
    let mut members = Members::default();
    (1..=voters).for_each(|id| members.put(member(id, true)));
    members
}

fn base(index: u64, term: u64, voters: u64) -> Base {
    Base {
        index,
        term,
        members: members(voters),
    }
}

fn ledger(base: Base) -> Ledger {
    ledger_on(&SimFs::new(1), base)
}

fn ledger_on(disk: &SimFs, base: Base) -> Ledger {
    let identity = Identity {
        cluster: ClusterId([7; 16]),
        node: NodeId(1),
    };
    let disk: Arc<dyn Fs> = Arc::new(disk.clone());
    disk.create_dir_all(Path::new("/data")).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    Ledger::create(&disk, Path::new("/data"), identity, base).unwrap()
}

fn node(base: Base) -> Node {
    let mark = Mark {
        index: base.index,
        term: base.term,
    };
    Node::open(ledger(base), mark, None, 7, Time(0), Settings::default()).unwrap()
}

/// Turns until nothing is left to be done.
fn settle(node: &mut Node) -> (Vec<Message>, Vec<Committed>) {
    let (mut messages, mut committed) = (Vec::new(), Vec::new());
    while node.has_work() {
        messages.extend(node.outbox());
        let out = node.persist().unwrap();
        messages.extend(out.messages);
        if let Some(last) = out.committed.last() {
            node.applied(last.mark.index);
        }
        committed.extend(out.committed);
    }
    (messages, committed)
}

fn message(kind: MessageType, from: u64, term: u64) -> Message {
    let mut message = Message::default();
    message.set_msg_type(kind);
    (message.from, message.to, message.term) = (from, 1, term);
    message
}

/// The only voter, once it leads.
fn alone() -> Node {
    let mut node = node(base(0, 0, 1));
    (1..100).for_each(|at| node.tick(Time(at * 10 * MS)));
    settle(&mut node);
    assert_eq!(node.role(), Role::Leads(2));
    node
}

#[test]
fn a_single_voter_leads_and_commits_alone() {
    let mut node = alone();
    let index = node.propose(Bytes::from_static(b"x")).unwrap();
    let question = node.confirm_read();
    node.outbox();
    let out = node.persist().unwrap();
    assert_eq!(out.committed[0].mark, Mark { index, term: 2 });
    assert_eq!(out.committed[0].data, &b"x"[..]);
    assert_eq!(out.reads_confirmed, Some(question));
}

#[test]
fn a_single_voter_sends_nothing_to_learners_before_its_term_is_durable() {
    let mut first = base(0, 0, 1);
    first.members.put(member(2, false));
    let mut node = node(first);
    while node.status().is_elected as u8 == 0 {
        node.tick(Time(node.timer.now.0 + 10 * MS));
    }
    assert_eq!(node.outbox(), []);
    assert!(!node.persist().unwrap().messages.is_empty());
}

#[test]
fn nothing_is_proposed_that_is_empty_or_too_large_or_by_who_does_not_lead() {
    let mut node = alone();
    assert_eq!(node.propose(Bytes::new()), Err(NotLeader));
    let large = Bytes::from(vec![0; DATA_SIZE_MAX + 1]);
    assert_eq!(node.propose(large), Err(NotLeader));
    let mut other = self::node(base(0, 0, 3));
    assert_eq!(other.propose(Bytes::from_static(b"x")), Err(NotLeader));
    let change = other.change(Change::Remove(NodeId(2)));
    assert_eq!(change, Err(Refused::NotLeader(None)));
}

#[test]
fn a_log_that_does_not_go_with_its_ledger_is_refused() {
    let open = |mark| {
        let ledger = ledger(base(10, 3, 3));
        Node::open(ledger, mark, None, 7, Time(0), Settings::default()).map(|_| ())
    };
    let mark = |index, term| Mark { index, term };
    assert!(matches!(
        open(mark(9, 3)),
        Err(NodeError::LogBehind { ledger: 10, .. })
    ));
    assert!(matches!(
        open(mark(11, 3)),
        Err(NodeError::LedgerBehind { ledger: 10, .. })
    ));
    assert!(matches!(
        open(mark(10, 2)),
        Err(NodeError::LedgerBehind { .. })
    ));
    assert!(open(mark(10, 3)).is_ok());
}

#[test]
fn a_snapshot_of_which_the_ledger_was_not_told_is_told_at_the_start() {
    let installed = base(20, 4, 5);
    let mark = Mark { index: 20, term: 4 };
    let ledger = ledger(base(10, 3, 3));
    let node = Node::open(
        ledger,
        mark,
        Some(&installed),
        7,
        Time(0),
        Settings::default(),
    )
    .unwrap();
    assert_eq!(node.members(), (20, &members(5)));
    let status = node.status();
    assert_eq!((status.term, status.commit, status.first), (4, 20, 21));
}

#[test]
fn a_snapshot_that_contradicts_what_is_committed_is_not_accepted() {
    let mut node = node(base(10, 3, 3));
    assert!(!node.accepts_snapshot(&base(10, 3, 3)));
    assert!(!node.accepts_snapshot(&base(0, 0, 3)));
    assert!(!node.accepts_snapshot(&base(20, 0, 3)));
    assert!(!node.accepts_snapshot(&base(u64::MAX, 4, 3)));
    assert!(!node.accepts_snapshot(&Base {
        members: Members::default(),
        ..base(20, 4, 3)
    }));
    assert!(node.accepts_snapshot(&base(20, 4, 3)));
    node.snapshot_installed(&base(20, 4, 3)).unwrap();
    assert_eq!(node.status().applied, 20);
    node.snapshot_installed(&base(15, 4, 3)).unwrap();
    assert_eq!(node.status().applied, 20);
}

#[test]
fn entries_after_a_snapshot_that_were_answered_for_stay() {
    let mut node = node(base(0, 0, 3));
    let mut append = message(MessageType::MsgAppend, 2, 5);
    append.set_entries((1..=9).map(|index| entry(index, 5)).collect());
    node.step(append);
    settle(&mut node);
    node.snapshot_installed(&base(4, 5, 3)).unwrap();
    let status = node.status();
    assert_eq!((status.applied, status.commit, status.last), (4, 4, 9));
}

/// One of three that leads, in term 2, and has handed out nothing yet.
fn elected() -> Node {
    let mut node = node(base(0, 0, 3));
    elect(&mut node);
    node
}

fn elect(node: &mut Node) {
    while !node.status().is_elected {
        node.tick(Time(node.timer.now.0 + 10 * MS));
        for asked in settle(node).0 {
            let answer = match asked.get_msg_type() {
                MessageType::MsgRequestPreVote => MessageType::MsgRequestPreVoteResponse,
                MessageType::MsgRequestVote => MessageType::MsgRequestVoteResponse,
                _ => continue,
            };
            node.step(message(answer, asked.to, asked.term));
        }
    }
}

#[test]
fn who_says_that_it_has_what_was_never_sent_is_not_believed() {
    let mut node = elected();
    let mut answer = message(MessageType::MsgAppendResponse, 2, 2);
    answer.index = 2;
    node.step(answer.clone());
    settle(&mut node);
    assert_eq!((node.status().refused, node.status().commit), (1, 0));
    answer.index = 1;
    node.step(answer);
    settle(&mut node);
    assert_eq!((node.status().refused, node.status().commit), (1, 1));
}

/// A member has everything up to this entry.
fn answers(node: &mut Node, from: u64, index: u64) -> Vec<Message> {
    let mut answer = message(MessageType::MsgAppendResponse, from, node.status().term);
    answer.index = index;
    node.step(answer);
    settle(node).0
}

/// The leader's view of member 2: whether it was set back, and its lag.
fn seen_of_2(node: &Node) -> (bool, Option<u64>) {
    let status = node.status();
    let two = status.members.iter().find(|it| it.member.id == NodeId(2));
    let two = two.unwrap();
    (two.is_set_back, two.progress.as_ref().map(|it| it.lag))
}

#[test]
fn g09_the_lag_of_a_member_whose_disk_was_set_back_is_counted_from_what_it_has() {
    let mut node = elected();
    answers(&mut node, 2, 1);
    for _ in 0..9 {
        node.propose(Bytes::from_static(b"entry")).unwrap();
    }
    let last = node.status().last;
    answers(&mut node, 2, last);
    answers(&mut node, 3, last);
    assert_eq!(seen_of_2(&node), (false, Some(0)));

    // It asks to be elected, for it hears of no leader that it believes.
    let asks = |node: &mut Node, index| {
        let term = node.status().term;
        let mut asks = message(MessageType::MsgRequestPreVote, 2, term + 1);
        (asks.index, asks.log_term) = (index, term);
        let is_told = node.set_back.note(&node.raft.raft, &asks);
        node.step(asks);
        settle(node);
        is_told
    };
    assert!(!asks(&mut node, last), "it has all");
    assert_eq!(seen_of_2(&node), (false, Some(0)));
    assert!(asks(&mut node, last - 4));
    assert_eq!(seen_of_2(&node), (true, Some(4)));
    for _ in 0..1000 {
        assert!(!asks(&mut node, last - 4), "it is told once");
    }

    // What is sent to it does not follow what it has.
    let mut refuses = message(MessageType::MsgAppendResponse, 2, node.status().term);
    (refuses.reject, refuses.index, refuses.reject_hint) = (true, last, last - 6);
    node.step(refuses.clone());
    assert_eq!(seen_of_2(&node), (true, Some(6)));

    // The right disk is back.
    let status = node.status();
    assert!(status.members.iter().filter(|it| it.is_set_back).count() == 1);
    let mut has = message(MessageType::MsgAppendResponse, 2, status.term);
    has.index = last;
    assert!(node.set_back.note(&node.raft.raft, &has));
    answers(&mut node, 2, last);
    assert_eq!(seen_of_2(&node), (false, Some(0)));

    // What was not sent before, and is refused now, proves nothing.
    node.propose(Bytes::from_static(b"entry")).unwrap();
    (refuses.index, refuses.reject_hint) = (last + 1, last - 6);
    node.step(refuses);
    assert_eq!(seen_of_2(&node), (false, Some(1)));
}

#[test]
fn who_follows_answers_for_entries_when_they_are_durable() {
    let mut node = node(base(0, 0, 3));
    node.step(message(MessageType::MsgHeartbeat, 2, 5));
    settle(&mut node);
    let mut append = message(MessageType::MsgAppend, 2, 5);
    append.set_entries(vec![entry(1, 5)].into());
    node.step(append);
    let early = node.outbox();
    assert!(early.is_empty(), "it answers too early: {early:?}");
    let answers = node.persist().unwrap().messages;
    assert_eq!((answers.len(), answers[0].index), (1, 1));
}

#[test]
fn a_change_of_the_membership_is_durable_when_it_is_handed_out() {
    let disk = SimFs::new(1);
    let (ledger, settings) = (ledger_on(&disk, base(0, 0, 1)), Settings::default());
    let mut node = Node::open(ledger, Mark::default(), None, 7, Time(0), settings).unwrap();
    elect(&mut node);
    settle(&mut node);
    let add = Change::Add {
        id: NodeId(2),
        peer: "peer-2".into(),
        client: String::new(),
    };
    node.change(add).unwrap();
    while node.members().1.get(NodeId(2)).is_none() {
        node.outbox();
        node.persist().unwrap();
    }
    let disk: Arc<dyn Fs> = Arc::new(disk.crash_image(Crash::DropUnsynced));
    let ledger = Ledger::open(&disk, Path::new("/data")).unwrap().unwrap();
    assert_eq!(ledger.members(), node.members(), "after a power cut");
}

#[test]
fn an_answer_to_an_earlier_question_confirms_no_read_that_came_after_it() {
    let mut node = elected();
    answers(&mut node, 2, 1);
    let confirmed = |node: &mut Node, question: u64| {
        let mut answer = message(MessageType::MsgHeartbeatResponse, 2, 2);
        answer.context = question.to_le_bytes().to_vec().into();
        node.step(answer);
        node.outbox();
        node.persist().unwrap().reads_confirmed
    };
    let first = node.confirm_read();
    settle(&mut node);
    let second = node.confirm_read();
    assert_eq!(confirmed(&mut node, first), Some(first));
    assert_eq!(confirmed(&mut node, second), Some(second));
}

/// One of three that has got its own removal from a leader.
fn to_be_removed(commit: u64) -> Node {
    let mut node = node(base(0, 0, 3));
    let mut removal = entry(1, 5);
    removal.set_entry_type(EntryType::EntryConfChangeV2);
    removal.context = Step::Remove(NodeId(1)).encode().into();
    let mut append = message(MessageType::MsgAppend, 2, 5);
    append.set_entries(vec![removal].into());
    append.commit = commit;
    node.step(append);
    settle(&mut node);
    node
}

/// The entry came from the leader before it, who could not commit it any more.
#[test]
fn a_leader_whose_own_removal_is_committed_leads_no_more() {
    let mut node = to_be_removed(0);
    elect(&mut node);
    answers(&mut node, 3, 2);
    assert_eq!(node.role(), Role::Removed);
    assert!(!node.status().is_elected);
}

/// They have the entry, and do not know that it is committed: without it they may be no majority.
#[test]
fn who_was_removed_votes_for_members_that_do_not_know_it_yet() {
    let mut node = to_be_removed(1);
    assert_eq!(node.role(), Role::Removed);
    node.tick(Time(10 * MS));
    let mut asks = message(MessageType::MsgRequestPreVote, 3, 6);
    (asks.index, asks.log_term) = (1, 5);
    node.step(asks);
    let answers = settle(&mut node).0;
    let is_vote =
        |it: &Message| it.msg_type == MessageType::MsgRequestPreVoteResponse && !it.reject;
    assert!(answers.iter().any(is_vote), "{answers:?}");
}

#[test]
fn a_leader_that_no_majority_answers_leads_no_more() {
    let mut node = elected();
    answers(&mut node, 2, 1);
    assert_eq!(node.role(), Role::Leads(2));
    for _ in 0..=2 * ELECTION_TICKS {
        node.tick(Time(node.timer.now.0 + 10 * MS));
        settle(&mut node);
    }
    assert_eq!(node.role(), Role::Follows(None));
}

#[test]
fn members_between_which_a_large_message_moves_do_not_miss_each_other() {
    let mut leader = elected();
    answers(&mut leader, 2, 1);
    let mut follower = elected();
    follower.step(message(MessageType::MsgHeartbeat, 2, 7));
    assert_eq!(follower.role(), Role::Follows(Some(NodeId(2))));
    let pass = |node: &mut Node, ticks: usize, moves: bool| {
        for _ in 0..ticks {
            if moves {
                node.moves(NodeId(2));
            }
            node.tick(Time(node.timer.now.0 + 10 * MS));
            settle(node);
        }
        node.role()
    };
    assert_eq!(pass(&mut leader, 10 * ELECTION_TICKS, true), Role::Leads(2));
    let follows = Role::Follows(Some(NodeId(2)));
    assert_eq!(pass(&mut follower, 10 * ELECTION_TICKS, true), follows);
    // Nothing moves any more.
    let no_leader = Role::Follows(None);
    assert_eq!(pass(&mut leader, 2 * ELECTION_TICKS + 1, false), no_leader);
    assert_eq!(
        pass(&mut follower, 2 * ELECTION_TICKS + 1, false),
        no_leader
    );
}

#[test]
fn a_leader_that_is_to_leave_hands_over_the_lead_and_leaves_no_cluster_that_stands_still() {
    let mut node = elected();
    answers(&mut node, 2, 1);
    let leave = || Change::Remove(NodeId(1));
    assert_eq!(node.change(leave()), Err(Refused::NoMajority));
    answers(&mut node, 3, 1);
    let refused = node.change(leave()).unwrap_err();
    let Refused::HandsOver(to) = refused else {
        panic!("{refused}");
    };
    let is_it = |it: &Message| (it.to, it.msg_type) == (to.0, MessageType::MsgTimeoutNow);
    assert!(settle(&mut node).0.iter().any(is_it));
}

#[test]
fn a_learner_votes_when_it_has_caught_up_and_not_before() {
    let mut first = base(0, 0, 1);
    first.members.put(member(2, false));
    let mut node = node(first);
    (1..100).for_each(|at| node.tick(Time(at * 10 * MS)));
    settle(&mut node);
    answers(&mut node, 2, 1);
    for _ in 0..=LAG_MAX {
        node.propose(Bytes::from_static(b"x")).unwrap();
        settle(&mut node);
    }
    let vote = || Change::Promote(NodeId(2));
    assert_eq!(node.change(vote()), Err(Refused::NotCaughtUp));
    answers(&mut node, 2, 2);
    assert_eq!(node.change(vote()), Ok(()));
}

#[test]
fn nothing_is_taken_or_promised_while_something_is_not_durable() {
    let mut node = alone();
    node.propose(Bytes::from_static(b"x")).unwrap();
    node.outbox();
    node.step(message(MessageType::MsgHeartbeat, 2, 9));
    assert_eq!(node.status().term, 2);
    assert_eq!(node.propose(Bytes::from_static(b"y")), Err(NotLeader));
    assert_eq!(node.outbox(), []);
    assert_eq!(node.persist().unwrap().committed.len(), 1);
    node.step(message(MessageType::MsgHeartbeat, 2, 9));
    assert_eq!(node.status().term, 9);
}

fn entry(index: u64, term: u64) -> Entry {
    let mut entry = Entry::default();
    (entry.index, entry.term) = (index, term);
    entry.data = Bytes::from_static(b"x");
    entry
}

#[test]
fn who_is_told_by_a_newer_membership_that_it_is_none_of_it_is_removed() {
    let mut node = node(base(10, 3, 3));
    node.left_out(10);
    assert_eq!(node.role(), Role::Follows(None));
    node.left_out(11);
    assert!(node.has_work());
    assert_eq!(node.persist().unwrap().role, Some(Role::Removed));
    (1..200).for_each(|at| node.tick(Time(at * 10 * MS)));
    assert!(!node.has_work());
}

#[test]
fn an_entry_with_a_change_that_is_none_is_refused() {
    let mut node = node(base(0, 0, 3));
    for (kind, context) in [
        (EntryType::EntryConfChange, vec![]),
        (EntryType::EntryConfChangeV2, vec![9, 9]),
    ] {
        let mut entry = entry(1, 5);
        entry.set_entry_type(kind);
        entry.context = context.into();
        let mut append = message(MessageType::MsgAppend, 2, 5);
        append.set_entries(vec![entry].into());
        node.step(append);
    }
    assert_eq!(node.status().refused, 2);
    assert_eq!(node.status().last, 0);
}

/// Any message, with numbers near those that the node knows of, so that it gets far.
fn anything(random: &mut Random, node: &Node) -> Message {
    let kinds = [
        MessageType::MsgAppend,
        MessageType::MsgAppend,
        MessageType::MsgAppend,
        MessageType::MsgAppendResponse,
        MessageType::MsgAppendResponse,
        MessageType::MsgHeartbeat,
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgTimeoutNow,
    ];
    let never = [
        MessageType::MsgSnapshot,
        MessageType::MsgPropose,
        MessageType::MsgHup,
        MessageType::MsgBeat,
        MessageType::MsgUnreachable,
        MessageType::MsgSnapStatus,
        MessageType::MsgCheckQuorum,
        MessageType::MsgTransferLeader,
        MessageType::MsgReadIndex,
        MessageType::MsgReadIndexResp,
    ];
    let status = node.status();
    let near = |random: &mut Random, number: u64| match random.below(40) {
        0 => 0,
        1 => random.next(),
        2 => u64::MAX,
        3..=30 => number,
        _ => number.saturating_add(2).saturating_sub(random.below(5)),
    };
    let mut message = message(
        random.pick(&kinds),
        random.below(5) + 1,
        near(random, status.term),
    );
    if random.one_in(20) {
        message.set_msg_type(random.pick(&never));
    }
    if random.one_in(50) {
        message.to = random.below(3);
    }
    let last = random.pick(&[status.last, status.commit, status.first]);
    message.index = near(random, last);
    let known = node.ledger().term(message.index).unwrap_or(status.term);
    message.log_term = if random.one_in(4) {
        near(random, status.term)
    } else {
        known
    };
    message.commit = near(random, random.clone().pick(&[status.commit, status.last]));
    message.commit_term = near(random, status.term);
    message.reject = random.one_in(3);
    message.reject_hint = near(random, status.last);
    if random.one_in(30) {
        message.request_snapshot = near(random, status.last);
        message.priority = random.below(3) - 1;
    }
    if random.one_in(4) {
        let context = random.below(4_u64);
        let force = b"CampaignTransfer".to_vec();
        message.context = random.pick(&[force, context.to_le_bytes().to_vec()]).into();
    }
    if message.get_msg_type() == MessageType::MsgAppend || random.one_in(20) {
        let mut at = (message.index, message.log_term);
        let entries = (0..random.below(4)).map(|_| {
            let next = (
                at.0.saturating_add(1),
                at.1.max(random.below(2) * message.term),
            );
            at = if random.one_in(30) {
                (near(random, at.0), near(random, at.1))
            } else {
                next
            };
            let mut entry = entry(at.0, at.1);
            if random.one_in(4) {
                let id = NodeId(random.below(5));
                let steps = [
                    Step::Remove(id),
                    Step::Voter(member(id.0, false)),
                    Step::Learner(member(id.0, false)),
                    Step::Replace(id, NodeId(random.below(5))),
                    Step::Leave,
                ];
                entry.set_entry_type(EntryType::EntryConfChangeV2);
                entry.context = random.pick(&steps).encode().into();
            }
            entry
        });
        message.set_entries(entries.collect::<Vec<_>>().into());
    }
    message
}

/// `BSD_PEER_RUNS` says how many peers there are.
#[test]
fn no_message_makes_a_node_panic() {
    let (mut refused, mut taken, mut leads) = (0, 0, 0);
    for seed in 1..=volume("BSD_PEER_RUNS", 2_000) {
        let mut random = Random::new(seed);
        let voters = random.below(4_u64) + 1;
        let mut node = node(random.pick(&[base(0, 0, voters), base(10, 3, voters)]));
        for at in 1..200_i64 {
            node.tick(Time(at * random.below(200_i64) * MS));
            for _ in 0..random.below(4) {
                let message = anything(&mut random, &node);
                node.step(message);
                taken += 1;
            }
            leads += u64::from(node.status().is_elected);
            if random.one_in(4) {
                let _ = node.propose(Bytes::from_static(b"x"));
                node.confirm_read();
                node.transfer(NodeId(random.below(4)));
                let change = Change::Remove(NodeId(random.below(4)));
                let _ = node.change(change);
                node.snapshot_sent(NodeId(random.below(4)), Some(random.below(20)));
                node.unreachable(NodeId(random.below(4)));
                let _ = node.durable_applied(random.below(30));
            }
            if random.one_in(2) {
                settle(&mut node);
            }
        }
        refused += node.status().refused;
    }
    assert!(
        refused * 20 > taken && refused * 2 < taken,
        "{refused} of {taken} were refused"
    );
    assert!(leads > 0);
}

/// Voter 2 has all entries and is silent for more than a second; voter 3 has fewer, and answers.
#[test]
fn t17_the_lead_goes_to_no_one_who_does_not_answer() {
    let mut node = elected();
    answers(&mut node, 2, 1);
    let last = node.propose(Bytes::from_static(b"x")).unwrap();
    answers(&mut node, 2, last);
    let silent_from = node.timer.now;
    while node.timer.now.since(silent_from) <= REACHED_NS {
        node.tick(Time(node.timer.now.0 + 10 * MS));
        answers(&mut node, 3, 1);
    }
    assert_eq!(node.role(), Role::Leads(2));
    assert!(!node.transfer(NodeId(2)) && node.takes_proposals());
    assert_eq!(node.hand_over(), Some(NodeId(3)));
    assert!(!node.takes_proposals());
}

/// Both have all entries; one has no room, and then the other one.
#[test]
fn leadership_is_transferred_to_a_voter_that_has_room() {
    for (short, roomy) in [(2, 3), (3, 2)] {
        let mut node = elected();
        for (from, has_room) in [(short, false), (roomy, true)] {
            let mut answer = message(MessageType::MsgAppendResponse, from, node.status().term);
            answer.index = node.status().last;
            room::put(&mut answer, has_room);
            node.step(answer);
            settle(&mut node);
        }
        assert!(node.has_fit_successor());
        assert_eq!(node.hand_over(), Some(NodeId(roomy)));
    }
}

#[test]
fn t17_a_broken_connection_is_no_way_for_the_lead_until_there_is_an_answer() {
    let mut node = elected();
    (2..=3).for_each(|id| drop(answers(&mut node, id, 1)));
    (2..=3).for_each(|id| node.unreachable(NodeId(id)));
    assert_eq!(node.hand_over(), None);
    assert_eq!(
        node.change(Change::Remove(NodeId(3))),
        Err(Refused::NoMajority)
    );
    answers(&mut node, 3, 1);
    assert!(!node.transfer(NodeId(2)));
    assert!(node.transfer(NodeId(3)));
}
