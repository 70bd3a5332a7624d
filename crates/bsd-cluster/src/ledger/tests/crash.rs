//! A crash at every operation, of every kind.

use super::*;

/// Results that callers saw, beside their calls.
#[derive(Clone)]
pub(super) struct Model {
    /// Beginning of the ledger; nothing is ever discarded here.
    origin: Base,
    entries: Vec<Entry>,
    state: HardState,
    members: Vec<(u64, Members)>,
    /// A ledger's base is at most here.
    base_max: u64,
}

impl Model {
    pub(super) fn new(origin: Base) -> Model {
        Model {
            entries: Vec::new(),
            state: state(origin.term, 0, origin.index),
            members: vec![(origin.index, origin.members.clone())],
            base_max: origin.index,
            origin,
        }
    }

    fn term(&self, index: u64) -> Option<u64> {
        if index == self.origin.index {
            return Some(self.origin.term);
        }
        let nth = index.checked_sub(self.origin.index + 1)?;
        Some(self.entries.get(nth as usize)?.term)
    }

    pub(super) fn last(&self) -> u64 {
        self.origin.index + self.entries.len() as u64
    }

    fn members_at(&self, index: u64) -> &Members {
        let after = self.members.partition_point(|it| it.0 <= index);
        &self.members[after - 1].1
    }

    pub(super) fn act(&mut self, act: &Act) {
        match act {
            Act::Append(entries) => {
                let keep = entries[0].index - self.origin.index - 1;
                self.entries.truncate(keep as usize);
                self.entries.extend_from_slice(entries);
            }
            Act::State(state) => self.state = *state,
            Act::Members(index, peer) => put_members(&mut self.members, *index, members(*peer)),
            Act::Commit => {}
            Act::Discard(index, _) => self.base_max = self.base_max.max((*index).min(self.last())),
            Act::Reset(base) => {
                let state = HardState {
                    commit: base.index,
                    ..self.state
                };
                *self = Model::new(base.clone());
                self.state = state;
            }
        }
    }

    /// True if nothing differs but the commit index.
    fn is_as_durable(&self, other: &Model) -> bool {
        (self.state.term, self.state.vote) == (other.state.term, other.state.vote)
            && self.entries == other.entries
            && self.members == other.members
            && self.origin == other.origin
    }

    /// True if `ledger` has exactly the entries up to `last`, and the rest as it is here; the
    /// commit index and the base may be older, down to those of `oldest`.
    fn is(&self, ledger: &Ledger, last: u64, oldest: &Model) -> bool {
        let (base, found) = (ledger.base(), ledger.hard_state());
        let kept = (last - self.origin.index) as usize;
        let commit_min = if oldest.origin == self.origin {
            oldest.state.commit
        } else {
            self.state.commit
        };
        (self.origin.index..=self.base_max).contains(&base.index)
            && ledger.last_index() == last
            && (found.term, found.vote) == (self.state.term, self.state.vote)
            && found.commit >= commit_min
            && found.commit <= self.state.commit
            && all(ledger) == self.entries[(base.index - self.origin.index) as usize..kept]
            && (base.index..=last).all(|index| {
                ledger.term(index) == self.term(index)
                    && [self, oldest]
                        .iter()
                        .filter(|it| it.origin == self.origin)
                        .any(|it| it.members_at(index) == ledger.members_at(index))
            })
            && base.members == *ledger.members_at(base.index)
    }
}

/// A ledger and what it must be.
pub(super) struct Twin {
    /// At least this is durable.
    pub(super) durable: Model,
    /// This was asked for.
    pub(super) now: Model,
}

impl Twin {
    pub(super) fn new(origin: Base) -> Twin {
        Twin {
            durable: Model::new(origin.clone()),
            now: Model::new(origin),
        }
    }

    pub(super) fn act(&mut self, ledger: &mut Ledger, it: &Act) -> Result<(), LedgerError> {
        self.now.act(it);
        act(ledger, it)?;
        match it {
            Act::Commit if self.now.is_as_durable(&self.durable) => {}
            Act::Commit | Act::Reset(_) => self.durable = self.now.clone(),
            Act::Discard(..) => self.durable.base_max = self.now.base_max,
            _ => {}
        }
        Ok(())
    }

    /// True if a ledger that was opened after a crash is what was durable, or what was asked for,
    /// or a beginning of it.
    pub(super) fn allows(&self, ledger: &Ledger) -> bool {
        let (old, new) = (&self.durable, &self.now);
        let mut late = old.clone();
        late.base_max = new.base_max.min(old.last());
        late.state.commit = new.state.commit.min(old.last()).max(old.state.commit);
        if late.is(ledger, old.last(), old) {
            return true;
        }
        // Members may have been written before the rest, with the opening of a file.
        if new.origin == old.origin {
            late.members.clone_from(&new.members);
            if late.is(ledger, old.last(), old) {
                return true;
            }
        }
        let same = old
            .entries
            .iter()
            .zip(&new.entries)
            .take_while(|(one, other)| one == other);
        let first = new.origin.index + 1 + same.count() as u64;
        (first.min(new.last())..=new.last()).any(|last| {
            let mut new = new.clone();
            new.state.commit = new.state.commit.min(last);
            new.base_max = new.base_max.min(last);
            new.is(ledger, last, old)
        })
    }

    /// Describe the ledger that was found beside the durable one and the calls.
    pub(super) fn tell(&self, ledger: &Ledger) -> String {
        let one = |what: &str, it: &Model| {
            let terms: Vec<_> = it.entries.iter().map(|entry| entry.term).collect();
            let indices: Vec<_> = it.members.iter().map(|it| it.0).collect();
            format!(
                "\n{what}: {:?} from {} (base at most {}), terms {terms:?}, members {indices:?}",
                it.state, it.origin.index, it.base_max
            )
        };
        let mut found = Twin::new(ledger.base().clone());
        found.settle(ledger);
        one("found", &found.now) + &one("durable", &self.durable) + &one("asked for", &self.now)
    }

    /// The next life of what a crash has left.
    pub(super) fn settle(&mut self, ledger: &Ledger) {
        let mut found = Model {
            origin: self.now.origin.clone(),
            entries: self.now.entries.clone(),
            state: ledger.hard_state(),
            members: Vec::new(),
            base_max: ledger.base().index,
        };
        found.origin = ledger.base().clone();
        found.entries = all(ledger);
        found.members = ledger.members.clone();
        (self.durable, self.now) = (found.clone(), found);
    }
}

/// Use a ledger after a crash: what is committed to it is there again.
fn use_it(disk: &SimFs, what: &str) {
    let mut ledger = reopen(disk);
    let found = picture(&ledger);
    let cut = disk.crash_image(Crash::DropUnsynced);
    assert_eq!(
        picture(&reopen(&cut)),
        found,
        "{what}: durable after a start"
    );
    let HardState { term, commit, .. } = ledger.hard_state();
    ledger.append(&entries(commit + 1, 4, term + 1, 100));
    ledger.set_hard_state(state(term + 1, 3, commit + 2));
    ledger.commit().unwrap();
    let found = picture(&ledger);
    for how in [Crash::DropUnsynced, Crash::KeepAll] {
        assert_eq!(
            picture(&reopen(&disk.crash_image(how))),
            found,
            "{what}: {how:?}"
        );
    }
}

fn images(disk: &SimFs) -> Vec<(Crash, SimFs)> {
    use bsd::storage::disk::sim::Granularity;
    let mut kinds = vec![Crash::DropUnsynced, Crash::KeepAll];
    kinds.extend((0..4).map(|seed| Crash::Random { seed }));
    for granularity in [Granularity::Write, Granularity::Page, Granularity::Sector] {
        let units = disk.unsynced_units(granularity).min(6);
        let all = (1_u64 << units) - 1;
        let few = if units <= 3 { 1..all } else { 1..9 };
        kinds.extend(few.map(|kept| Crash::Subset { kept, granularity }));
        kinds.push(Crash::Subset {
            kept: all & !1,
            granularity,
        });
    }
    kinds
        .into_iter()
        .map(|how| (how, disk.crash_image(how)))
        .collect()
}

/// Run the script on a disk that stops at operation `stop`. `None`: the ledger was never made.
fn run(disk: &SimFs, stop: u64) -> Option<Twin> {
    disk.crash_at(stop);
    let made = Ledger::create_with(&fs(disk), dir(), IDENTITY, base(5, 2), SMALL);
    let mut ledger = made.ok()?;
    let mut twin = Twin::new(base(5, 2));
    for it in script() {
        if twin.act(&mut ledger, &it).is_err() {
            break;
        }
    }
    Some(twin)
}

#[test]
fn after_a_crash_at_any_operation_the_ledger_is_at_or_after_the_last_commit() {
    let whole = disk();
    run(&whole, u64::MAX).unwrap();
    let (first, last) = (disk().operations() + 1, whole.operations());
    assert!(last > 80, "{last} operations");
    for stop in first..=last + 1 {
        let disk = disk();
        let twin = run(&disk, stop);
        for (how, image) in images(&disk) {
            let what = format!("stopped at {stop} of {last}, {how:?}");
            let found = Ledger::open_with(&fs(&image), dir(), SMALL);
            let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
            match (&twin, &found) {
                (Some(twin), Some(ledger)) => {
                    assert!(twin.allows(ledger), "{what}: {}", twin.tell(ledger))
                }
                (None, Some(ledger)) => assert_eq!(ledger.base(), &base(5, 2)),
                (Some(_), None) => panic!("{what}: it is gone"),
                (None, None) => continue,
            }
            drop(found);
            let names = image.names(dir().join("cluster")).unwrap();
            assert!(
                names.iter().all(|name| name != SPARE_NAME),
                "{what}: {names:?}"
            );
            use_it(&image, &what);
        }
    }
}

/// Otherwise a member would ask other nodes than those that committed its entries: with one that
/// needs its vote and does not know it, neither would make progress.
#[test]
fn no_start_finds_a_membership_of_an_entry_that_it_does_not_know_to_be_committed() {
    let change_often = |disk: &SimFs| -> Result<(), LedgerError> {
        let mut ledger = create(disk);
        for index in 6..40 {
            ledger.append(&[entry(index, 2, 60)]);
            ledger.commit()?;
            ledger.set_hard_state(state(2, 0, index));
            ledger.members_applied(index, members(index % 3));
            ledger.commit()?;
        }
        Ok(())
    };
    let whole = disk();
    drop(create(&whole));
    let first = whole.operations() + 1;
    let whole = disk();
    change_often(&whole).unwrap();
    assert!(count(&whole, OpKind::Rename) > 3, "there are several files");
    for stop in first..=whole.operations() {
        let disk = disk();
        disk.crash_at(stop);
        let _ = change_often(&disk);
        for (how, image) in images(&disk) {
            let ledger = reopen(&image);
            let (known, commit) = (ledger.members().0, ledger.hard_state().commit);
            assert!(
                known <= commit,
                "stopped at {stop}, {how:?}: {known}, {commit}"
            );
        }
    }
}

/// A start that is itself interrupted, anywhere, leaves what the next one finds.
#[test]
fn a_crash_during_a_start_loses_nothing() {
    let whole = disk();
    run(&whole, u64::MAX).unwrap();
    for stop in (disk().operations() + 8..=whole.operations()).step_by(3) {
        let disk = disk();
        let Some(twin) = run(&disk, stop) else {
            continue;
        };
        for seed in 0..2 {
            let how = Crash::Random { seed };
            let count = {
                let image = disk.crash_image(how);
                reopen(&image);
                image.operations()
            };
            for second in 1..=count {
                let image = disk.crash_image(how);
                image.crash_at(second);
                assert!(Ledger::open_with(&fs(&image), dir(), SMALL).is_err());
                for again in [Crash::DropUnsynced, Crash::Random { seed: second }] {
                    let ledger = reopen(&image.crash_image(again));
                    assert!(twin.allows(&ledger), "{stop}, {how:?}, {second}, {again:?}");
                }
            }
        }
    }
}
