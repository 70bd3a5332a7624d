//! Finds the parts of an archive that may be removed, and removes them so that an interrupted run
//! can begin again.
//!
//! Everything before a base goes, if that base was read back: every part of it was compared with its
//! checksum a moment before. A joined object goes when its last link does. The order is that in which a restore asks: first a mark says with which
//! link the chain begins now, then the older bases lose their marks, then the links go and the parts
//! that no base which stays refers to. Claims stay for ever, so that a writer that was replaced finds
//! the number after its last link taken, however late it comes.
//!
//! A server may be putting links and a base meanwhile. Its base is younger than every complete one,
//! so its parts have a greater [`Part::since`](super::format::Part::since) than the number of the
//! base that stays; and it uses no other parts than those of the newest complete base.

use std::collections::{BTreeSet, HashSet};

use super::chain::{Bad, LOOK_BACK_MAX, begin, check_parts};
use super::format::{
    BaseList, Head, Kind, bases_dir, begins_dir, chain_dir, claims_dir, number_in, numbered,
    part_name, parts_dir, since_in,
};
use super::links::{Listing, Pieces};
use super::reader::Reader;
use super::restore::base;
use super::store::{Listed, Store, Trouble};
use bsd::storage::format::LogId;
use bsd::types::Position;

/// Objects that one call removes.
const REMOVED_AT_ONCE: usize = 1000;

/// Links that one call looks at.
const LOOKED_AT_ONCE: usize = 16;

/// The parts that must stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Every moment of the last N ns, as far as it can be restored now.
    pub age_ns: u64,
    /// Bases to keep at least; 0 counts as 1.
    pub bases: usize,
}

/// The objects that an expiry removes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    log: LogId,
    /// The first link that stays.
    begin: u64,
    /// Old marks: of bases, and of where the chain began.
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
}

/// A base that could stay.
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
        let all = [self.marks.clone(), names(&self.holders), names(&self.parts)];
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

/// Result of an expiry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The removal to be done; `None`: there is nothing to remove.
    pub plan: Option<Plan>,
    /// Bases that would have done as the oldest, but are not as they were put; the newest first.
    pub skipped: Vec<Bad>,
}

/// Plan an expiry of the archive of `log`, after reading back the oldest base that stays. The age
/// counts from the last link, or from `wall_ns` if that is earlier.
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
    let mut found = Found {
        plan: None,
        skipped: Vec::new(),
    };
    // The parts first: none of these is of a base that is complete later.
    let parts = reader.list(&parts_dir(log), "")?;
    let candidates = candidates(reader, log)?;
    let listing = reader.listing(log, 0)?;
    let end_ns =
        last_wall_ns(reader, log, &listing.pieces(1))?.map_or(wall_ns, |last| last.min(wall_ns));
    let since_ns = end_ns.saturating_sub(keep.age_ns);
    let Some(newest) = choose(&candidates, since_ns, keep.bases) else {
        return Ok(found);
    };
    for index in (0..=newest).rev() {
        let plan = gather(reader, log, &candidates[index..], &listing, &parts)?;
        if plan.is_empty() {
            break;
        }
        let mut done = 0;
        let list = &candidates[index].list;
        let read = &mut |bytes| {
            done += bytes;
            progress(done, list.size());
        };
        let mut sound = HashSet::new();
        match check_parts(reader, log, list, &mut sound, read)?.pop() {
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
fn last_wall_ns(reader: &Reader<'_>, log: LogId, pieces: &Pieces) -> Result<Option<u64>, Trouble> {
    let Some(last) = pieces.last() else {
        return Ok(None);
    };
    let head = reader.heads(log, pieces, &[last])?.pop();
    Ok(head.and_then(Result::ok).map(|head| head.wall_ns))
}

/// The bases whose lists can be read, the oldest first.
fn candidates(reader: &Reader<'_>, log: LogId) -> Result<Vec<Candidate>, Trouble> {
    let marks = bases_dir(log);
    let mut candidates = Vec::new();
    for mark in reader.list(&marks, "")? {
        let Some(number) = number_in(&marks, &mark.name) else {
            continue;
        };
        if let Some(Ok((head, list))) = base(reader, log, number)? {
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
    reader: &Reader<'_>,
    log: LogId,
    stay: &[Candidate],
    listing: &Listing,
    parts: &[Listed],
) -> Result<Plan, Trouble> {
    let oldest = &stay[0];
    let pieces = listing.pieces(1);
    let begin = first_to_stay(reader, log, oldest, &pieces)?;
    let (bases, begins) = (bases_dir(log), begins_dir(log));
    let is_before =
        |dir: &str, name: &str, number: u64| number_in(dir, name).is_some_and(|it| it < number);
    let mut marks = Vec::new();
    for (dir, number) in [(&bases, oldest.number), (&begins, begin)] {
        let listed = reader.list(dir, "")?.into_iter().map(|it| it.name);
        marks.extend(listed.filter(|name| is_before(dir, name, number)));
    }
    let claims = reader.list(&claims_dir(log), "")?;
    let claims: BTreeSet<u64> = claims
        .iter()
        .filter_map(|mark| number_in(&claims_dir(log), &mark.name))
        .collect();
    let singles = listing.singles.iter();
    let singles = singles.filter(|(number, _)| *number < begin && !claims.contains(number));
    let joined = listing.joined.iter().filter(|joined| joined.last < begin);
    let links = pieces.0.iter().map(|piece| match piece.joined {
        Some(joined) if joined.last < begin => piece.links(),
        None if piece.first < begin && !claims.contains(&piece.first) => 1,
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
        holders,
        links: links.sum(),
        parts: parts.iter().filter(is_dead).cloned().collect(),
        base: oldest.number,
        from: oldest.list.end,
        from_wall_ns: oldest.head.wall_ns,
        bases: 0,
    })
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
