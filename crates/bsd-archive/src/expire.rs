//! Finds the parts of an archive that may be removed, and removes them so that an interrupted run
//! can begin again.
//!
//! Everything before a base goes, if that base was read back: every part of it was compared with its
//! checksum a moment before. A joined object goes when its last link does. Of what is before it,
//! pinned bases stay, and one of each day and week as `thinning` says, each with its parts and without
//! the links after it: see `apart`.
//!
//! The order is that in which a restore asks: first what stays apart is marked, then a mark says with
//! which link the chain begins now, then the older bases lose their marks, then the links go and the
//! parts that no base which stays refers to. Claims stay for ever, so that a writer that was replaced
//! finds the number after its last link taken, however late it comes.
//!
//! A base that becomes one apart is read back, too. If it is damaged, another one of its day or week
//! stays. If there is no other, or it is pinned, the base before it becomes the oldest: with the links
//! after that one the same state can still be made. So it is where the list of a base cannot be read: its
//! day lies between those of the bases beside it, and each of these days needs another base, or none.
//! If the list of a pinned base cannot be read, or of one that stays apart and has no other in its place,
//! then its parts are not known, and so no part is removed.
//!
//! Another run may want to keep a base that this one removes. It marks the base before it looks
//! whether that is still there; this one looks for marks after it has removed the base. So at least one
//! of the two sees that both have happened, and removes the mark: in the end a base is whole, or gone.
//!
//! A server may be putting links and a base meanwhile. Its base is younger than every complete one,
//! so its parts have a greater [`Part::since`](super::format::Part::since) than the number of the
//! base that stays; and it uses no other parts than those of the newest complete base.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::apart::{Found as Marked, Marks, State};
use super::chain::{Bad, LOOK_BACK_MAX, base, begin, check_parts};
use super::format::{
    BaseList, HEAD_SIZE, Head, Kind, bases_dir, begins_dir, chain_dir, claims_dir, kept_dir,
    number_in, numbered, part_name, parts_dir, since_in,
};
use super::labels::{Names, names};
use super::links::{Listing, Pieces};
use super::reader::{READINGS, Reader};
use super::store::{Listed, Store, Trouble};
use super::thinning::Thinning;
use bsd::storage::format::LogId;
use bsd::types::Position;

/// Objects that one call removes.
const REMOVED_AT_ONCE: usize = 1000;

/// Links that one call looks at.
const LOOKED_AT_ONCE: usize = 16;

/// The parts that must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keep {
    /// Every moment of the last N ns, as far as it can be restored now.
    pub age_ns: u64,
    /// Bases to keep at least; 0 counts as 1.
    pub bases: usize,
    /// Of each of this number of days, of UTC, the last base. The day of the last link is the first.
    pub days: u64,
    /// Of each of this number of weeks, which begin on Monday, the last base. The week of the last link is
    /// the first.
    pub weeks: u64,
}

/// The objects that an expiry removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    log: LogId,
    /// The first link that stays.
    begin: u64,
    /// Old marks: of bases, of where the chain began, and of what stayed apart; and names.
    marks: Vec<String>,
    /// Objects with links.
    holders: Vec<Listed>,
    links: u64,
    parts: Vec<Listed>,
    /// The number of the oldest base that stays.
    pub base: u64,
    /// Where it ends.
    pub from: Position,
    /// When that was durable, ns since 1970.
    pub from_wall_ns: u64,
    /// Bases that are removed.
    pub bases: u64,
    /// States that stay apart, before that base.
    pub apart: Vec<State>,
    /// The numbers of the bases that are removed.
    gone: BTreeSet<u64>,
}

/// A part of a removal: a call of the store, or a few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Mark a base that stays apart.
    Keep(u64),
    /// Say with which link the chain begins.
    Begin,
    /// Remove objects.
    Remove(Vec<String>),
    /// See to bases that one run keeps and another one removes.
    Settle,
}

/// True if an object is not there each time that it is asked for: one answer of a store may be wrong.
fn is_gone(store: &dyn Store, name: &str) -> Result<bool, Trouble> {
    for _ in 0..READINGS {
        if store.get_range(name, 0..HEAD_SIZE as u64)?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A base that could stay.
#[derive(Debug)]
struct Candidate {
    number: u64,
    head: Head,
    list: BaseList,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.holders.is_empty() && self.parts.is_empty()
    }

    /// Links that are removed.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.links
    }

    /// Parts of bases that are removed.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.parts.len() as u64
    }

    /// Bytes that are removed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let all = self.holders.iter().chain(&self.parts);
        all.map(|object| object.size).sum()
    }

    /// Remove it. After an interruption or an error, the rest is an archive; a new plan finds the
    /// remains.
    ///
    /// # Errors
    /// The store did not answer; or, when all is done, another run has removed a base that was to stay.
    pub fn carry_out(
        &self,
        store: &dyn Store,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Trouble> {
        let steps = self.steps();
        let removed = |step: &Step| match step {
            Step::Remove(names) => names.len() as u64,
            _ => 0,
        };
        let total: u64 = steps.iter().map(removed).sum();
        let mut done = 0;
        for step in &steps {
            self.take(step, store)?;
            done += removed(step);
            if removed(step) > 0 {
                progress(done, total);
            }
        }
        Ok(())
    }

    /// All of it, in order.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.apart.iter().map(|it| Step::Keep(it.base)).collect();
        steps.push(Step::Begin);
        let names = |objects: &[Listed]| -> Vec<String> {
            objects.iter().map(|object| object.name.clone()).collect()
        };
        for names in [self.marks.clone(), names(&self.holders), names(&self.parts)] {
            let chunks = names.chunks(REMOVED_AT_ONCE);
            steps.extend(chunks.map(|names| Step::Remove(names.to_vec())));
        }
        steps.push(Step::Settle);
        steps
    }

    pub(super) fn take(&self, step: &Step, store: &dyn Store) -> Result<(), Trouble> {
        let log = self.log;
        match step {
            Step::Keep(base) => store
                .put_if_absent(&numbered(&kept_dir(log), *base), &[])
                .map(drop),
            Step::Begin => store
                .put_if_absent(&numbered(&begins_dir(log), self.begin), &[])
                .map(drop),
            Step::Remove(names) => store.remove(names),
            Step::Settle => self.settle(store),
        }
    }

    /// See the module.
    fn settle(&self, store: &dyn Store) -> Result<(), Trouble> {
        let dir = kept_dir(self.log);
        let apart: BTreeSet<u64> = self.apart.iter().map(|it| it.base).collect();
        let mut lost = None;
        for mark in store.list(&dir, "")? {
            let number = number_in(&dir, &mark.name);
            let own = number.filter(|it| apart.contains(it) || self.gone.contains(it));
            let Some(number) = own else { continue };
            let link = numbered(&chain_dir(self.log), number);
            if is_gone(store, &link)? {
                store.remove(&[mark.name])?;
                lost = lost.or(Some(number).filter(|it| apart.contains(it)));
            }
        }
        match lost {
            None => Ok(()),
            Some(base) => Err(Trouble::passing(format!(
                "another expiry has removed base {base}, which was to stay, at the same time: give all \
                 runs the same flags"
            ))),
        }
    }
}

/// Result of an expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The removal to be done; `None`: there is nothing to remove.
    pub plan: Option<Plan>,
    /// Bases that would have done, and the last link, where they are not as they were put.
    pub skipped: Vec<Bad>,
}

/// Plan an expiry of the archive of `log`, after reading back the oldest base that stays, and those
/// that stay apart from now on. The age counts from the last link, or from `wall_ns` if that is earlier.
///
/// # Errors
/// The store did not answer.
pub fn plan(
    reader: &Reader<'_>,
    log: LogId,
    keep: Keep,
    wall_ns: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Found, Trouble> {
    let mut skipped = Vec::new();
    let Some(mut lists) = Lists::read(reader, log, &mut skipped)? else {
        return Ok(Found {
            plan: None,
            skipped,
        });
    };
    let last = last_wall_ns(reader, log, &lists.listing.pieces(1), &mut skipped)?;
    // Earlier than the last link, and never too late.
    let last = last.or_else(|| lists.bases.last().map(|base| base.head.wall_ns));
    let end_ns = last.map_or(wall_ns, |last| last.min(wall_ns));
    let since_ns = end_ns.saturating_sub(keep.age_ns);
    let thinning = Thinning {
        days: keep.days,
        weeks: keep.weeks,
        end_ns,
    };
    let mut next = choose(&lists.bases, since_ns, keep.bases);
    let (mut sound, mut broken) = (HashSet::new(), BTreeSet::new());
    if thinning.is_on() {
        let oldest = next.map_or(0, |index| lists.bases[index].number);
        let passed = lists.unread_bases.range(..oldest);
        skipped.extend(passed.map(|(_, bad)| bad.clone()));
    }
    lists.hold_unread_apart(thinning);
    let mut plan = None;
    while let Some(index) = next {
        if let Some(before) = lists.before_unread(index, thinning, &broken) {
            next = Some(before);
            continue;
        }
        let apart = lists.apart(index, thinning, &broken);
        let planned = lists.gather(reader, index, &apart)?;
        if planned.is_empty() {
            break;
        }
        let mut read_back = ReadBack {
            reader,
            log,
            sound: &mut sound,
            progress: &mut *progress,
        };
        let oldest = &lists.bases[index];
        if let Some(bad) = read_back.fault(&[oldest])? {
            skipped.push(bad.1);
            next = index.checked_sub(1);
            continue;
        }
        let is_new = |it: &&&Candidate| it.number >= lists.begin && !broken.contains(&it.number);
        let new: Vec<&Candidate> = apart.iter().filter(is_new).copied().collect();
        let Some((number, bad)) = read_back.fault(&new)? else {
            plan = Some(planned);
            break;
        };
        skipped.push(bad);
        broken.insert(number);
        if lists.needs(number, thinning, &broken) {
            // Without an older base nothing more can be had of it.
            let before = lists.bases.iter().rposition(|it| it.number < number);
            next = before.or(next);
        }
    }
    Ok(Found { plan, skipped })
}

/// Reads bases back, one after another.
struct ReadBack<'a, 'b> {
    reader: &'a Reader<'b>,
    log: LogId,
    /// Parts that were found sound.
    sound: &'a mut HashSet<String>,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl ReadBack<'_, '_> {
    /// The first of these that is not as it was put, and its fault.
    fn fault(&mut self, bases: &[&Candidate]) -> Result<Option<(u64, Bad)>, Trouble> {
        let total = bases.iter().map(|it| it.list.size()).sum();
        let mut done = 0;
        for it in bases {
            let mut read = |bytes| {
                done += bytes;
                (self.progress)(done, total);
            };
            let bad = check_parts(self.reader, self.log, &it.list, self.sound, &mut read)?;
            if let Some(bad) = bad.into_iter().next() {
                return Ok(Some((it.number, bad)));
            }
        }
        Ok(None)
    }
}

/// What there is, before anything is decided.
struct Lists {
    log: LogId,
    /// The first link of the chain.
    begin: u64,
    /// The bases of the chain whose lists can be read, the oldest first. It is not empty.
    bases: Vec<Candidate>,
    /// Those that are apart already.
    apart: Vec<Candidate>,
    /// Bases of the chain whose lists cannot be read, and which are not pinned.
    unread_bases: BTreeMap<u64, Bad>,
    /// Those that are apart, and are not pinned. Of one that is missing nothing is left.
    unread_apart: Vec<u64>,
    marks: Marks,
    /// Bases that stay, and whose lists cannot be read.
    unread: BTreeSet<u64>,
    names: Names,
    claims: BTreeSet<u64>,
    listing: Listing,
    parts: Vec<Listed>,
}

impl Lists {
    /// `None`: no base can be read.
    fn read(
        reader: &Reader<'_>,
        log: LogId,
        skipped: &mut Vec<Bad>,
    ) -> Result<Option<Lists>, Trouble> {
        // The parts first: none of these is of a base that is complete later.
        let parts = reader.list(&parts_dir(log), "")?;
        let begin = reader.again(|store| begin(store, log))?;
        let (bases, mut unread_bases) = candidates(reader, log, begin)?;
        let Some(newest) = bases.last().map(|it| it.number) else {
            return Ok(None);
        };
        // After the bases: each pin was put before its base.
        let marks = Marks::read(reader, log)?;
        unread_bases.retain(|number, _| !marks.pins.contains(number));
        let (mut apart, mut unread) = (Vec::new(), BTreeSet::new());
        let mut unread_apart = Vec::new();
        for number in marks.before(newest) {
            let is_pinned = marks.pins.contains(&number);
            let is_known = bases.iter().any(|it| it.number == number);
            if is_known || !is_pinned && number >= begin {
                continue;
            }
            match marks.find(reader, log, number)? {
                Marked::Claim => {}
                Marked::Base(head, list) if number < begin => {
                    apart.push(Candidate { number, head, list });
                }
                // Its mark has come meanwhile.
                Marked::Base(..) => drop(unread.insert(number)),
                Marked::Bad(bad) if !is_pinned => {
                    skipped.push(bad);
                    unread_apart.push(number);
                }
                Marked::Bad(bad) | Marked::Missing(bad) => {
                    skipped.push(bad);
                    if is_pinned {
                        unread.insert(number);
                    }
                }
            }
        }
        let claims = reader.list(&claims_dir(log), "")?;
        let claims = claims.iter();
        Ok(Some(Lists {
            log,
            begin,
            bases,
            apart,
            unread_bases,
            unread_apart,
            marks,
            unread,
            names: names(reader, log)?.0,
            claims: claims
                .filter_map(|mark| number_in(&claims_dir(log), &mark.name))
                .collect(),
            listing: reader.listing(log, 0)?,
            parts,
        }))
    }

    /// The numbers of all bases that are not among the `broken` ones, and when they were put.
    fn times(&self, broken: &BTreeSet<u64>) -> impl Iterator<Item = (u64, u64)> {
        let all = self.apart.iter().chain(&self.bases);
        let sound = all.filter(|it| !broken.contains(&it.number));
        sound.map(|it| (it.number, it.head.wall_ns))
    }

    /// Those that stay apart if the base with this index is the oldest.
    fn apart(&self, oldest: usize, thinning: Thinning, broken: &BTreeSet<u64>) -> Vec<&Candidate> {
        let chosen = thinning.chosen(self.times(broken));
        let stays = |number| chosen.contains(number) || self.marks.pins.contains(number);
        let all = self.apart.iter().chain(&self.bases[..oldest]);
        all.filter(|it| stays(&it.number)).collect()
    }

    /// Nothing that is sound can stay in the place of this base.
    fn needs(&self, number: u64, thinning: Thinning, broken: &BTreeSet<u64>) -> bool {
        let base = self.bases.iter().find(|it| it.number == number);
        let can_spare =
            base.is_none_or(|it| thinning.can_spare(it.head.wall_ns, self.times(broken)));
        self.marks.pins.contains(&number) || !can_spare
    }

    /// Nothing that is sound can stay in the place of this base, of which only the number is known.
    fn needs_unread(&self, number: u64, thinning: Thinning, broken: &BTreeSet<u64>) -> bool {
        let (mut before, mut after) = (0, u64::MAX);
        for (other, wall_ns) in self.times(broken) {
            match other < number {
                true => before = wall_ns.max(before),
                false => after = wall_ns.min(after),
            }
        }
        !thinning.can_spare_between(before, after, self.times(broken))
    }

    /// The index of the last base before one that cannot be read and must not expire, if the base
    /// with this index is after that. Without an older base nothing more can be had of it.
    fn before_unread(
        &self,
        index: usize,
        thinning: Thinning,
        broken: &BTreeSet<u64>,
    ) -> Option<usize> {
        let passed = self.unread_bases.range(..self.bases[index].number);
        let mut needed = passed.filter(|(number, _)| self.needs_unread(**number, thinning, broken));
        needed.find_map(|(number, _)| self.bases.iter().rposition(|it| it.number < *number))
    }

    /// What is left of a base that stays apart is not removed, unless something else is in its place.
    fn hold_unread_apart(&mut self, thinning: Thinning) {
        for number in std::mem::take(&mut self.unread_apart) {
            if self.needs_unread(number, thinning, &BTreeSet::new()) {
                self.unread.insert(number);
            }
        }
    }

    /// Everything that is not needed if the base with this index is the oldest, and these stay apart.
    fn gather(
        &self,
        reader: &Reader<'_>,
        oldest: usize,
        apart: &[&Candidate],
    ) -> Result<Plan, Trouble> {
        let (log, stay) = (self.log, &self.bases[oldest..]);
        let oldest = &stay[0];
        let pieces = self.listing.pieces(1);
        let begin = first_to_stay(reader, log, oldest, &pieces)?;
        let numbers: BTreeSet<u64> = apart.iter().map(|it| it.number).collect();
        let stays = |number: u64| {
            let is_apart = numbers.contains(&number) || self.unread.contains(&number);
            number >= begin || is_apart || self.claims.contains(&number)
        };
        let singles = self.listing.singles.iter();
        let singles = singles.filter(|(number, _)| !stays(*number));
        let joined = self.listing.joined.iter();
        let joined = joined.filter(|joined| joined.last < begin);
        let links = pieces.0.iter().map(|piece| match piece.joined {
            Some(joined) if joined.last < begin => piece.links(),
            None if !stays(piece.first) => 1,
            _ => 0,
        });
        let chain = chain_dir(log);
        let mut holders: Vec<Listed> = singles
            .map(|(number, size)| Listed {
                name: numbered(&chain, *number),
                size: *size,
            })
            .collect();
        for joined in joined {
            holders.push(Listed {
                name: joined.name(log),
                size: joined.size,
            });
        }
        let all = self.apart.len() + self.bases.len();
        let all_bases = self.apart.iter().chain(&self.bases).map(|it| it.number);
        Ok(Plan {
            log,
            begin,
            marks: self.old_marks(reader, (oldest.number, begin), &numbers)?,
            holders,
            links: links.sum(),
            parts: self.dead_parts(oldest.number, apart.iter().copied().chain(stay)),
            base: oldest.number,
            from: oldest.list.end,
            from_wall_ns: oldest.head.wall_ns,
            bases: (all - stay.len() - apart.len()) as u64,
            apart: apart
                .iter()
                .map(|it| State::of(&it.head, &it.list))
                .collect(),
            gone: all_bases
                .filter(|it| *it < oldest.number && !numbers.contains(it))
                .collect(),
        })
    }

    /// Marks and names that are of no use if the chain begins with this base and this link.
    fn old_marks(
        &self,
        reader: &Reader<'_>,
        (oldest, begin): (u64, u64),
        apart: &BTreeSet<u64>,
    ) -> Result<Vec<String>, Trouble> {
        let log = self.log;
        let mut marks = Vec::new();
        for (dir, number) in [(bases_dir(log), oldest), (begins_dir(log), begin)] {
            let listed = reader.list(&dir, "")?.into_iter().map(|it| it.name);
            let is_before = |name: &String| number_in(&dir, name).is_some_and(|it| it < number);
            marks.extend(listed.filter(is_before));
        }
        let kept = self.marks.kept.range(..oldest);
        let kept = kept.filter(|it| !apart.contains(it) && !self.unread.contains(it));
        marks.extend(kept.map(|number| numbered(&kept_dir(log), *number)));
        let is_gone =
            |base: u64| base < oldest && !apart.contains(&base) && !self.unread.contains(&base);
        let names = self.names.iter();
        let names = names.filter(|(_, named)| is_gone(named.base));
        marks.extend(names.map(|(name, _)| name.object(log)));
        Ok(marks)
    }

    /// The parts that none of these bases has.
    fn dead_parts<'a>(
        &self,
        oldest: u64,
        stay: impl Iterator<Item = &'a Candidate>,
    ) -> Vec<Listed> {
        if !self.unread.is_empty() {
            return Vec::new();
        }
        let files = stay.flat_map(|it| &it.list.files);
        let used: BTreeSet<String> = files
            .flat_map(|file| {
                let parts = file.parts();
                parts.map(|(offset, part)| part_name(self.log, &file.name, offset, part))
            })
            .collect();
        let is_dead = |part: &&Listed| {
            let since = since_in(self.log, &part.name);
            since.is_some_and(|since| since < oldest) && !used.contains(&part.name)
        };
        self.parts.iter().filter(is_dead).cloned().collect()
    }
}

/// When the last link was durable, by the clock of its writer. `None`: no link is left, or the last one is
/// not as it was put.
fn last_wall_ns(
    reader: &Reader<'_>,
    log: LogId,
    pieces: &Pieces,
    skipped: &mut Vec<Bad>,
) -> Result<Option<u64>, Trouble> {
    let Some(last) = pieces.last() else {
        return Ok(None);
    };
    Ok(match reader.heads(log, pieces, &[last])?.pop() {
        Some(Ok(head)) => Some(head.wall_ns),
        Some(Err(what)) => {
            let name = numbered(&chain_dir(log), last);
            skipped.push(Bad { name, what });
            None
        }
        None => None,
    })
}

/// The bases from the link `begin` on whose lists can be read, the oldest first, and those whose lists
/// cannot.
fn candidates(
    reader: &Reader<'_>,
    log: LogId,
    begin: u64,
) -> Result<(Vec<Candidate>, BTreeMap<u64, Bad>), Trouble> {
    let marks = bases_dir(log);
    let (mut candidates, mut unread) = (Vec::new(), BTreeMap::new());
    for mark in reader.list(&marks, "")? {
        let number = number_in(&marks, &mark.name);
        let Some(number) = number.filter(|number| *number >= begin) else {
            continue;
        };
        match base(reader, log, number)? {
            None => {}
            Some(Ok((head, list))) => candidates.push(Candidate { number, head, list }),
            Some(Err(what)) => {
                let name = numbered(&chain_dir(log), number);
                unread.insert(number, Bad { name, what });
            }
        }
    }
    Ok((candidates, unread))
}

/// The index of the newest base that is old enough to be the oldest. A clock that was set back makes
/// it an older one.
fn choose(candidates: &[Candidate], since_ns: u64, bases: usize) -> Option<usize> {
    let is_too_late = |it: &Candidate| it.head.wall_ns > since_ns;
    let old = candidates.iter().position(is_too_late);
    let by_age = old.unwrap_or(candidates.len()).checked_sub(1)?;
    let by_count = candidates.len().checked_sub(bases.max(1))?;
    Some(by_age.min(by_count))
}

/// The first link that has to stay for this base: where the bytes after its end begin, or the last
/// link with bytes before that, for a writer that starts while there are no later ones.
fn first_to_stay(
    reader: &Reader<'_>,
    log: LogId,
    oldest: &Candidate,
    pieces: &Pieces,
) -> Result<u64, Trouble> {
    let first = oldest.list.first_link;
    let began = reader.again(|store| begin(store, log))?;
    let began = began.max(first.saturating_sub(LOOK_BACK_MAX));
    let numbers: Vec<u64> = (began..first).rev().collect();
    for numbers in numbers.chunks(LOOKED_AT_ONCE) {
        for head in reader.heads(log, pieces, numbers)?.into_iter().flatten() {
            match head.kind {
                Kind::Frames => return Ok(head.number),
                // It goes, with its parts.
                Kind::Base => return Ok(first),
                Kind::Claim { .. } | Kind::Takeover | Kind::Gap => {}
            }
        }
    }
    Ok(first)
}
