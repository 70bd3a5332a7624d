//! What of an archive may be removed, and how, so that whoever is interrupted can begin again.
//!
//! Everything before a base goes, if that base was read back: every part of it was compared with its
//! checksum a moment before. The order is that in which a restore asks: first a mark says with which
//! link the chain begins now, then the older bases lose their marks, then the links go and the parts
//! that no base which stays refers to. Claims stay for ever, so that a writer that was replaced finds
//! the number after its last link taken, however late it comes.
//!
//! A server may be putting links and a base meanwhile. Its base is younger than every complete one,
//! so its parts have a greater [`Part::since`](super::format::Part::since) than the number of the
//! base that stays; and it uses no other parts than those of the newest complete base.

use std::collections::BTreeSet;

use super::chain::{Bad, LOOK_BACK_MAX, begin, check_parts};
use super::format::{
    BaseList, HEAD_SIZE, Head, Kind, bases_dir, begins_dir, chain_dir, claims_dir, number_in,
    numbered, part_name, parts_dir, since_in,
};
use super::restore::base;
use super::store::{Listed, Store, Trouble};
use crate::storage::format::LogId;
use crate::types::Position;

/// So many objects are removed by one call.
const REMOVED_AT_ONCE: usize = 1000;

/// What has to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Every moment of the last so many ns, as far as it can be restored now.
    pub age_ns: u64,
    /// At least so many bases; 0 counts as 1.
    pub bases: usize,
}

/// What an expiry removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    log: LogId,
    /// The first link that stays.
    begin: u64,
    /// Old marks: of bases, and of where the chain began.
    marks: Vec<String>,
    links: Vec<Listed>,
    parts: Vec<Listed>,
    /// The number of the oldest base that stays.
    pub base: u64,
    /// Where it ends.
    pub from: Position,
    /// When that was durable, ns since 1970.
    pub from_wall_ns: u64,
    /// Bases that are removed.
    pub bases: u64,
}

/// A base that could stay.
struct Candidate {
    number: u64,
    head: Head,
    list: BaseList,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.marks.is_empty() && self.links.is_empty() && self.parts.is_empty()
    }

    /// Links that are removed.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.links.len() as u64
    }

    /// Parts of bases that are removed.
    #[must_use]
    pub fn parts(&self) -> u64 {
        self.parts.len() as u64
    }

    /// Bytes that are removed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let all = self.links.iter().chain(&self.parts);
        all.map(|object| object.size).sum()
    }

    /// Remove it. Interrupted or after an error, what is left is an archive; a new plan finds the
    /// rest.
    ///
    /// # Errors
    /// The store did not answer.
    pub fn carry_out(
        &self,
        store: &dyn Store,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(), Trouble> {
        let dir = begins_dir(self.log);
        store.put_if_absent(&numbered(&dir, self.begin), &[])?;
        let names = |objects: &[Listed]| -> Vec<String> {
            objects.iter().map(|object| object.name.clone()).collect()
        };
        let all = [self.marks.clone(), names(&self.links), names(&self.parts)];
        let total: usize = all.iter().map(Vec::len).sum();
        let mut done = 0;
        for names in &all {
            for names in names.chunks(REMOVED_AT_ONCE) {
                store.remove(names)?;
                done += names.len();
                progress(done as u64, total as u64);
            }
        }
        Ok(())
    }
}

/// What an expiry finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What would be removed; `None`: nothing.
    pub plan: Option<Plan>,
    /// Bases that would have done as the oldest, but are not as they were put; the newest first.
    pub skipped: Vec<Bad>,
}

/// What an expiry would remove of the archive of `log`, after the oldest base that stays was read
/// back. The age counts from the last link, or from `wall_ns` if that is earlier.
///
/// # Errors
/// The store did not answer.
pub fn plan(
    store: &dyn Store,
    log: LogId,
    keep: Keep,
    wall_ns: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Found, Trouble> {
    let mut found = Found {
        plan: None,
        skipped: Vec::new(),
    };
    // The parts first: none of these is of a base that is complete later.
    let parts = store.list(&parts_dir(log), "")?;
    let candidates = candidates(store, log)?;
    let end_ns = last_wall_ns(store, log)?.map_or(wall_ns, |last| last.min(wall_ns));
    let since_ns = end_ns.saturating_sub(keep.age_ns);
    let Some(newest) = choose(&candidates, since_ns, keep.bases) else {
        return Ok(found);
    };
    for index in (0..=newest).rev() {
        let plan = gather(store, log, &candidates[index..], &parts)?;
        if plan.is_empty() {
            break;
        }
        let mut done = 0;
        let list = &candidates[index].list;
        let read = &mut |bytes| {
            done += bytes;
            progress(done, list.size());
        };
        match check_parts(store, log, list, read)?.pop() {
            None => {
                let bases = index as u64;
                found.plan = Some(Plan { bases, ..plan });
                break;
            }
            Some(bad) => found.skipped.push(bad),
        }
    }
    Ok(found)
}

/// When the last link was durable, by the clock of its writer.
fn last_wall_ns(store: &dyn Store, log: LogId) -> Result<Option<u64>, Trouble> {
    let links = store.list(&chain_dir(log), "")?;
    let Some(last) = links.last() else {
        return Ok(None);
    };
    let head = store.get_range(&last.name, 0..HEAD_SIZE as u64)?;
    let head = head.and_then(|head| Head::decode_alone(&head).ok());
    Ok(head.map(|(head, ..)| head.wall_ns))
}

/// The bases whose lists can be read, the oldest first.
fn candidates(store: &dyn Store, log: LogId) -> Result<Vec<Candidate>, Trouble> {
    let (marks, chain) = (bases_dir(log), chain_dir(log));
    let mut candidates = Vec::new();
    for mark in store.list(&marks, "")? {
        let Some(number) = number_in(&marks, &mark.name) else {
            continue;
        };
        if let Ok((head, list)) = base(store, log, number, &numbered(&chain, number))? {
            candidates.push(Candidate { number, head, list });
        }
    }
    Ok(candidates)
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

/// Everything that is not needed if the first of these bases is the oldest.
fn gather(
    store: &dyn Store,
    log: LogId,
    stay: &[Candidate],
    parts: &[Listed],
) -> Result<Plan, Trouble> {
    let oldest = &stay[0];
    let chain = chain_dir(log);
    let begin = first_to_stay(store, log, oldest)?;
    let (bases, begins) = (bases_dir(log), begins_dir(log));
    let is_before =
        |dir: &str, name: &str, number: u64| number_in(dir, name).is_some_and(|it| it < number);
    let mut marks = Vec::new();
    for (dir, number) in [(&bases, oldest.number), (&begins, begin)] {
        let listed = store.list(dir, "")?.into_iter().map(|it| it.name);
        marks.extend(listed.filter(|name| is_before(dir, name, number)));
    }
    let claims = store.list(&claims_dir(log), "")?;
    let claims: BTreeSet<u64> = claims
        .iter()
        .filter_map(|mark| number_in(&claims_dir(log), &mark.name))
        .collect();
    let links = store.list(&chain, "")?.into_iter().filter(|link| {
        let number = number_in(&chain, &link.name);
        number.is_some_and(|number| number < begin && !claims.contains(&number))
    });
    let used: BTreeSet<String> = stay
        .iter()
        .flat_map(|it| &it.list.files)
        .flat_map(|file| {
            let parts = file.parts();
            parts.map(|(offset, part)| part_name(log, &file.name, offset, part))
        })
        .collect();
    let is_dead = |part: &&Listed| {
        let since = since_in(log, &part.name);
        since.is_some_and(|since| since < oldest.number) && !used.contains(&part.name)
    };
    Ok(Plan {
        log,
        begin,
        marks,
        links: links.collect(),
        parts: parts.iter().filter(is_dead).cloned().collect(),
        base: oldest.number,
        from: oldest.list.end,
        from_wall_ns: oldest.head.wall_ns,
        bases: 0,
    })
}

/// The first link that has to stay for this base: where the bytes after its end begin, or the last
/// link with bytes before that, for a writer that starts while there are no later ones.
fn first_to_stay(store: &dyn Store, log: LogId, oldest: &Candidate) -> Result<u64, Trouble> {
    let first = oldest.list.first_link;
    let began = begin(store, log)?.max(first.saturating_sub(LOOK_BACK_MAX));
    for number in (began..first).rev() {
        let name = numbered(&chain_dir(log), number);
        let head = store.get_range(&name, 0..HEAD_SIZE as u64)?;
        let head = head.and_then(|head| Head::decode_alone(&head).ok());
        match head.map(|(head, ..)| head.kind) {
            Some(Kind::Frames) => return Ok(number),
            // It goes, with its parts.
            Some(Kind::Base) => break,
            _ => {}
        }
    }
    Ok(first)
}
