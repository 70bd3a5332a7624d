//! Shared parts of the tests of the ledger, and its behaviour without faults.

mod crash;
mod damage;
mod fault;
mod model;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};

use super::files::SPARE_NAME;
use super::*;
use crate::member::{Member, Votes};
use bsd::storage::SimFs;
use bsd::storage::disk::sim::{Crash, OpKind};

/// So small that a few entries fill a file, few are in memory, and a commit is several frames.
const SMALL: Sizes = Sizes {
    file: 2048,
    recent: 600,
    frame: 200,
};

const IDENTITY: Identity = Identity {
    cluster: ClusterId([7; 16]),
    node: NodeId(11),
};

fn fs(disk: &SimFs) -> Arc<dyn Fs> {
    Arc::new(disk.clone())
}

fn dir() -> &'static Path {
    Path::new("/data")
}

fn path(number: u64) -> PathBuf {
    dir().join("cluster").join(file_name(number))
}

fn disk() -> SimFs {
    let disk = SimFs::new(1);
    disk.create_dir_all(dir()).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk
}

fn members(peer: u64) -> Members {
    let mut members = Members::default();
    for id in 1..=3 {
        members.put(Member {
            id: NodeId(id),
            peer: format!("10.0.{peer}.{id}:11301"),
            client: format!("10.0.{peer}.{id}:11300"),
            votes: Votes::VOTER,
        });
    }
    members
}

fn base(index: u64, term: u64) -> Base {
    Base {
        index,
        term,
        members: members(index),
    }
}

fn entry(index: u64, term: u64, size: usize) -> Entry {
    let byte = (index * 31 + term * 7 + size as u64) as u8;
    Entry {
        index,
        term,
        entry_type: match index % 5 {
            0 => EntryType::EntryConfChangeV2,
            1 => EntryType::EntryConfChange,
            _ => EntryType::EntryNormal,
        },
        data: Bytes::from(vec![byte; size]),
        context: Bytes::from(vec![byte ^ 255; size % 7]),
        ..Entry::default()
    }
}

fn entries(from: u64, count: u64, term: u64, size: usize) -> Vec<Entry> {
    (from..from + count)
        .map(|index| entry(index, term, size))
        .collect()
}

fn state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

fn create(disk: &SimFs) -> Ledger {
    Ledger::create_with(&fs(disk), dir(), IDENTITY, base(5, 2), SMALL).unwrap()
}

fn reopen(disk: &SimFs) -> Ledger {
    Ledger::open_with(&fs(disk), dir(), SMALL).unwrap().unwrap()
}

/// The ledger that a start would find now; the open one is not disturbed.
fn kept(disk: &SimFs) -> Ledger {
    reopen(&disk.crash_image(Crash::KeepAll))
}

fn all(ledger: &Ledger) -> Vec<Entry> {
    let (first, last) = (ledger.first_index(), ledger.last_index());
    ledger.entries(first, last + 1, u64::MAX).unwrap()
}

/// Everything that a ledger says.
fn picture(ledger: &Ledger) -> (Identity, Base, HardState, Vec<Entry>, Vec<Option<u64>>) {
    let (before, last) = (ledger.base().index, ledger.last_index());
    assert_eq!(ledger.term(last + 1), None);
    assert!(before == 0 || ledger.term(before - 1).is_none());
    (
        ledger.identity(),
        ledger.base().clone(),
        ledger.hard_state(),
        all(ledger),
        (before..=last).map(|index| ledger.term(index)).collect(),
    )
}

fn count(disk: &SimFs, kind: OpKind) -> usize {
    disk.trace().iter().filter(|call| call.kind == kind).count()
}

/// A call of the ledger.
#[derive(Debug, Clone)]
enum Act {
    Append(Vec<Entry>),
    State(HardState),
    Members(u64, u64),
    Commit,
    Discard(u64, u64),
    Reset(Base),
}

fn act(ledger: &mut Ledger, act: &Act) -> Result<(), LedgerError> {
    match act {
        Act::Append(entries) => ledger.append(entries),
        Act::State(state) => ledger.set_hard_state(*state),
        Act::Members(index, peer) => ledger.members_applied(*index, members(*peer)),
        Act::Commit => return ledger.commit(),
        Act::Discard(index, keep) => return ledger.discard(*index, *keep),
        Act::Reset(base) => return ledger.reset(base.clone()),
    }
    Ok(())
}

/// Appends, replacing appends, hard states, memberships, several files, discards, a reset.
fn script() -> Vec<Act> {
    use Act::*;
    vec![
        Append(entries(6, 3, 2, 20)),
        State(state(3, 1, 5)),
        Commit,
        State(state(3, 1, 7)),
        Commit,
        Append(entries(9, 6, 3, 90)),
        Commit,
        Append(entries(12, 5, 4, 120)),
        State(state(4, 2, 9)),
        Commit,
        State(state(4, 2, 12)),
        Members(10, 77),
        Commit,
        Append(entries(17, 4, 4, 300)),
        Commit,
        Append(entries(18, 1, 5, 0)),
        State(state(5, 0, 17)),
        Commit,
        Discard(16, 0),
        Append(entries(19, 9, 5, 150)),
        Commit,
        State(state(5, 3, 20)),
        Commit,
        Append(entries(28, 2, 5, 700)),
        State(state(5, 3, 29)),
        Commit,
        Members(25, 78),
        Commit,
        Discard(26, 1000),
        Append(entries(30, 3, 5, 10)),
        Commit,
        State(state(6, 1, 29)),
        Reset(base(40, 6)),
        Append(entries(41, 3, 6, 60)),
        State(state(6, 1, 41)),
        Commit,
    ]
}

#[test]
fn what_was_committed_is_there_after_a_start_and_after_a_power_cut() {
    let disk = disk();
    let mut ledger = create(&disk);
    assert_eq!(picture(&ledger), picture(&kept(&disk)));
    for it in script() {
        act(&mut ledger, &it).unwrap();
        if matches!(it, Act::Commit | Act::Reset(_) | Act::Discard(..)) {
            let last = picture(&ledger);
            assert_eq!(picture(&reopen(&disk.crash_image(Crash::KeepAll))), last);
            let mut found = picture(&reopen(&disk.crash_image(Crash::DropUnsynced)));
            assert!(found.2.commit <= last.2.commit);
            found.2.commit = last.2.commit;
            assert_eq!(found, last, "after {it:?}");
        }
    }
}

#[test]
fn a_directory_without_a_ledger_has_none_and_one_with_a_ledger_gets_no_other() {
    let disk = disk();
    assert!(Ledger::open(&fs(&disk), dir()).unwrap().is_none());
    disk.create_dir(&dir().join("cluster")).unwrap();
    assert!(Ledger::open(&fs(&disk), dir()).unwrap().is_none());
    drop(create(&disk));
    let refused = Ledger::create(&fs(&disk), dir(), IDENTITY, base(5, 2)).unwrap_err();
    assert!(refused.to_string().contains("there is a ledger already"));
    assert_eq!(kept(&disk).base(), &base(5, 2));
}

#[test]
fn a_commit_is_one_write_and_one_sync_and_of_a_commit_index_alone_no_sync() {
    let disk = disk();
    let mut ledger = Ledger::create(&fs(&disk), dir(), IDENTITY, base(5, 2)).unwrap();
    // The first commit would make it.
    ledger.try_spare();
    let mut cost = |work: &mut dyn FnMut(&mut Ledger)| {
        disk.clear_trace();
        work(&mut ledger);
        ledger.commit().unwrap();
        assert_eq!(
            disk.trace().len(),
            count(&disk, OpKind::Write) + count(&disk, OpKind::Sync)
        );
        (count(&disk, OpKind::Write), count(&disk, OpKind::Sync))
    };
    assert_eq!(cost(&mut |_| ()), (0, 0));
    assert_eq!(
        cost(&mut |it| it.append(&entries(6, 3000, 2, 1000))),
        (1, 1)
    );
    assert_eq!(cost(&mut |it| it.set_hard_state(state(2, 0, 8))), (1, 0));
    // A small one, and the first: with zeros behind it.
    assert_eq!(cost(&mut |it| it.set_hard_state(state(2, 1, 8))), (2, 1));
    assert_eq!(cost(&mut |it| it.set_hard_state(state(3, 0, 8))), (1, 1));
    assert_eq!(cost(&mut |it| it.members_applied(7, members(1))), (1, 1));
    assert_eq!(cost(&mut |_| ()), (0, 0));
}

#[test]
fn entries_are_as_many_as_were_asked_for_and_at_least_one() {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 40, 2, 100));
    ledger.commit().unwrap();
    let some = |from, to, max| -> Vec<u64> {
        let found = ledger.entries(from, to, max).unwrap();
        found.iter().map(|entry| entry.index).collect()
    };
    assert!(some(6, 6, 1000).is_empty());
    assert_eq!(some(6, 9, 0), [6]);
    assert_eq!(some(6, 9, 1000), [6, 7, 8]);
    assert_eq!(some(7, 40, 250), [7, 8]);
    assert_eq!(some(44, 46, 0), [44]);
    assert_eq!(some(6, 46, u64::MAX), (6..46).collect::<Vec<_>>());
}

#[test]
fn replaced_entries_are_gone_before_and_after_the_commit() {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 10, 2, 200));
    ledger.commit().unwrap();
    ledger.append(&entries(9, 2, 3, 10));
    assert_eq!((ledger.last_index(), ledger.term(10)), (10, Some(3)));
    assert_eq!((ledger.term(8), ledger.term(11)), (Some(2), None));
    assert_eq!(all(&ledger)[3..], entries(9, 2, 3, 10));
    assert_eq!(kept(&disk).last_index(), 15);
    ledger.commit().unwrap();
    assert_eq!(picture(&kept(&disk)), picture(&ledger));
}

#[test]
fn a_membership_is_found_from_its_index_on_and_what_is_before_the_base_is_forgotten() {
    let disk = disk();
    let mut ledger = create(&disk);
    for from in (6..36).step_by(5) {
        ledger.append(&entries(from, 5, 2, 300));
        ledger.commit().unwrap();
    }
    ledger.set_hard_state(state(2, 0, 35));
    for (index, peer) in [(8, 80), (30, 81), (20, 82), (30, 83)] {
        ledger.members_applied(index, members(peer));
    }
    ledger.commit().unwrap();
    let check = |ledger: &Ledger| {
        let from = ledger.base().index;
        for (index, peer) in [
            (5, 5),
            (7, 5),
            (8, 80),
            (20, 82),
            (29, 82),
            (30, 83),
            (99, 83),
        ] {
            assert!(
                index < from || *ledger.members_at(index) == members(peer),
                "{index}"
            );
        }
        assert_eq!(*ledger.members_at(from), ledger.base().members);
    };
    check(&ledger);
    check(&kept(&disk));
    ledger.append(&entries(36, 30, 2, 300));
    ledger.commit().unwrap();
    ledger.discard(32, 0).unwrap();
    assert!(ledger.base().index > 8);
    check(&ledger);
    check(&kept(&disk));
}

#[test]
fn whole_files_go_and_as_much_stays_as_was_asked_for() {
    let disk = disk();
    let mut ledger = create(&disk);
    for index in 6..60 {
        ledger.append(&[entry(index, 2, 250)]);
        ledger.set_hard_state(state(2, 0, index));
        ledger.commit().unwrap();
    }
    let before = ledger.bytes();
    ledger.discard(5, 0).unwrap();
    assert_eq!(ledger.base().index, 5);
    ledger.discard(59, before / 2).unwrap();
    assert!(ledger.bytes() >= before / 2 && ledger.bytes() < before / 2 + SMALL.file);
    let last = picture(&ledger);
    assert_eq!(picture(&kept(&disk)), last);
    assert_eq!(
        picture(&reopen(&disk.crash_image(Crash::DropUnsynced))).1,
        last.1
    );
    ledger.discard(40, 0).unwrap();
    assert!(ledger.base().index <= 40 && ledger.base().index > 30);
    ledger.discard(59, 0).unwrap();
    assert!(ledger.bytes() <= SMALL.file);
    let files = disk.names(dir().join("cluster")).unwrap();
    assert_eq!(files.iter().filter(|name| file_number_of(name)).count(), 1);
    assert_eq!(picture(&kept(&disk)), picture(&ledger));
}

fn file_number_of(name: &str) -> bool {
    files::file_number(name).is_some()
}

/// The file after the discarded one says that entries up to 20 were there; a later frame replaced
/// them from 12 on.
#[test]
fn a_replacement_that_reaches_into_a_discarded_file_moves_the_base() {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 15, 2, 100));
    ledger.commit().unwrap();
    ledger.set_hard_state(state(3, 0, 11));
    ledger.append(&entries(12, 2, 3, 100));
    ledger.commit().unwrap();
    assert_eq!(ledger.files.len(), 2);
    ledger.discard(10, 0).unwrap();
    assert_eq!(ledger.base().index, 5);
    ledger.discard(11, 0).unwrap();
    assert_eq!((ledger.base().index, ledger.base().term), (11, 2));
    assert_eq!(picture(&kept(&disk)), picture(&ledger));
}

#[test]
#[should_panic(expected = "cannot be replaced")]
fn a_committed_entry_cannot_be_replaced() {
    let mut ledger = create(&disk());
    ledger.append(&entries(6, 2, 2, 1));
    ledger.set_hard_state(state(2, 0, 7));
    ledger.commit().unwrap();
    ledger.append(&entries(7, 1, 3, 1));
}

#[test]
#[should_panic(expected = "does not follow")]
fn entries_leave_no_gap() {
    create(&disk()).append(&entries(7, 1, 2, 1));
}

#[test]
#[should_panic(expected = "does not follow")]
fn no_one_votes_twice_in_a_term() {
    let mut ledger = create(&disk());
    ledger.set_hard_state(state(3, 1, 5));
    ledger.set_hard_state(state(3, 2, 5));
}

#[test]
fn memory_is_bounded_and_what_is_not_in_it_is_read() {
    let disk = disk();
    let mut ledger = create(&disk);
    for from in (6..500).step_by(10) {
        ledger.append(&entries(from, 10, from, 40));
        ledger.commit().unwrap();
        assert!(ledger.held.recent(from).is_none());
        assert!(ledger.held.recent(from + 9).is_some());
    }
    disk.clear_trace();
    assert_eq!(ledger.entries(6, 7, 0).unwrap(), entries(6, 1, 6, 40));
    assert_eq!(count(&disk, OpKind::Read), 1);
}

#[test]
fn an_entry_that_the_disk_returns_wrongly_is_an_error_and_not_an_entry() {
    let disk = disk();
    let mut ledger = create(&disk);
    ledger.append(&entries(6, 20, 2, 50));
    ledger.commit().unwrap();
    let at = ledger.held.place(6).unwrap().at;
    disk.flip_bit(path(1), at * 8 + 600).unwrap();
    let error = ledger.entries(6, 7, 0).unwrap_err();
    assert!(error.to_string().contains("entry 6"), "{error}");
}

/// A file system notes space that is written to for the first time, and a sync waits for that.
#[test]
fn small_commits_are_written_onto_space_that_was_written_to_before() {
    let disk = disk();
    let sizes = Sizes::default();
    let mut ledger = Ledger::create_with(&fs(&disk), dir(), IDENTITY, base(5, 2), sizes).unwrap();
    let mut writes_of = |index, size| {
        let before = count(&disk, OpKind::Write);
        ledger.append(&[entry(index, 2, size)]);
        ledger.commit().unwrap();
        count(&disk, OpKind::Write) - before
    };
    // With zeros behind it, for those that follow; then one of a few when they are used up.
    assert_eq!(writes_of(6, 1000), 2);
    let more: usize = (7..207).map(|index| writes_of(index, 1000)).sum();
    assert_eq!(more, 200);
    let more: usize = (207..407).map(|index| writes_of(index, 1000)).sum();
    assert_eq!(more, 201);
    // A large one gains nothing.
    assert_eq!(writes_of(407, 200 << 10), 1);
}
