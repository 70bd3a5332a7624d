//! Which objects hold the links of a chain: each link its own, or a joined object several.
//!
//! A joined object is put before those that it is made of go, so a link may be in several objects
//! for a while, or for long if a removal was interrupted. One that is made of others counts only
//! when one of its links is nowhere else: then the removal had begun, and it had been read back.
//! Until then what is read is what was read before. Where it counts it counts for all its links.
//!
//! All that is taken for granted of the sizes in lists is in [`Piece`]: they bound what is read at a
//! time, and an object without content is a gap.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::format::{
    Bad, Fault, HEAD_SIZE, LINK_SIZE_MAX, chain_dir, joined_dir, number_in, numbered,
};
use super::joined::{HEADER_SIZE, JOINED_SIZE_MAX, Joined, link_of};
use super::reader::Reader;
use super::seal::{OVERHEAD_MAX, may_be_head_alone};
use super::store::{Listed, Store, Trouble, Want};
use bsd::storage::format::LogId;

/// A list in which links are missing is made again up to this often: others were joining them.
const LISTINGS_MAX: u32 = 4;

/// An object with links, and those that are read from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) first: u64,
    pub(super) last: u64,
    /// Bytes, as the list says.
    size: u64,
    /// `None`: it is a link of its own.
    pub(super) joined: Option<Joined>,
}

impl Piece {
    pub(super) fn single(number: u64, size: u64) -> Piece {
        Piece {
            first: number,
            last: number,
            size,
            joined: None,
        }
    }

    /// All of a joined object.
    pub(super) fn whole(joined: Joined) -> Piece {
        Piece {
            first: joined.first,
            last: joined.last,
            size: HEADER_SIZE as u64 + joined.size,
            joined: Some(joined),
        }
    }

    pub(super) fn has(&self, number: u64) -> bool {
        (self.first..=self.last).contains(&number)
    }

    pub(super) fn links(&self) -> u64 {
        self.last - self.first + 1
    }

    /// Bytes of its links.
    pub(super) fn size(&self) -> u64 {
        self.joined.map_or(self.size, |joined| joined.size)
    }

    /// Bytes without the heads.
    pub(super) fn content(&self) -> u64 {
        self.size().saturating_sub(self.links() * HEAD_SIZE as u64)
    }

    /// Bytes of memory that it takes when it is read.
    pub(super) fn memory(&self) -> u64 {
        self.size().min(LINK_SIZE_MAX)
    }

    /// The fault, if it is too large to be read.
    pub(super) fn excess(&self) -> Option<String> {
        let max = match self.joined {
            Some(_) => HEADER_SIZE as u64 + JOINED_SIZE_MAX,
            None => LINK_SIZE_MAX + OVERHEAD_MAX,
        };
        let size = self.size;
        (size > max).then(|| format!("it has {size} bytes, more than a link can have"))
    }

    /// It may be a link without content: that of a gap, or of a claim of a writer without a name.
    pub(super) fn is_empty(&self) -> bool {
        self.joined.is_none() && may_be_head_alone(self.size)
    }

    /// Its object has links that are not read from it.
    pub(super) fn is_cut(&self) -> bool {
        self.joined
            .is_some_and(|it| (it.first, it.last) != (self.first, self.last))
    }

    pub(super) fn name(&self, log: LogId) -> String {
        match self.joined {
            Some(joined) => joined.name(log),
            None => numbered(&chain_dir(log), self.first),
        }
    }

    /// One of its links has this fault.
    pub(super) fn bad(&self, log: LogId, number: u64, what: Fault) -> Bad {
        let name = self.name(log);
        match self.joined {
            Some(_) => Bad::joined(name, (number, number), &what),
            None => Bad { name, what },
        }
    }

    /// All of its object.
    pub(super) fn want(&self, log: LogId) -> Want {
        Want::whole(&self.name(log))
    }

    /// The heads of `count` of its links.
    pub(super) fn want_heads(&self, log: LogId, number: u64, count: u64) -> Want {
        Want {
            name: self.name(log),
            range: Some(match self.joined {
                Some(joined) => joined.heads(number, count),
                None => 0..HEAD_SIZE as u64,
            }),
        }
    }
}

/// The objects of a chain, as lists say.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Links of their own: numbers and sizes, in order.
    pub(super) singles: Vec<(u64, u64)>,
    pub(super) joined: Vec<Joined>,
    /// Objects among them that are neither.
    pub(super) strangers: Vec<Bad>,
}

impl Listing {
    /// Those that have links after the number `after`.
    ///
    /// # Errors
    /// The store did not answer.
    pub(super) fn get(store: &dyn Store, log: LogId, after: u64) -> Result<Listing, Trouble> {
        let mut listing = Listing::get_once(store, log, after)?;
        let mut holes = listing.pieces(after + 1).holes(after);
        for _ in 1..LISTINGS_MAX {
            if holes.is_empty() {
                break;
            }
            // A list is not of one moment.
            listing = Listing::get_once(store, log, after)?;
            let before = std::mem::replace(&mut holes, listing.pieces(after + 1).holes(after));
            if before == holes {
                break;
            }
        }
        Ok(listing)
    }

    /// The links of their own first: one that is gone by then is in a joined object.
    fn get_once(store: &dyn Store, log: LogId, after: u64) -> Result<Listing, Trouble> {
        let mut listing = Listing::default();
        let dir = chain_dir(log);
        for Listed { name, size } in store.list(&dir, &numbered(&dir, after))? {
            match number_in(&dir, &name) {
                Some(number) => listing.singles.push((number, size)),
                None => listing.strangers.push(Bad::stranger(name)),
            }
        }
        let before = Joined::before(log, after + 1);
        for Listed { name, .. } in store.list(&joined_dir(log), &before)? {
            match Joined::parse(log, &name) {
                Some(joined) if joined.last > after => listing.joined.push(joined),
                Some(_) => {}
                None => listing.strangers.push(Bad::stranger(name)),
            }
        }
        Ok(listing)
    }

    fn has_single(&self, number: u64) -> bool {
        self.singles
            .binary_search_by_key(&number, |it| it.0)
            .is_ok()
    }

    /// The joined objects that count: each has a link that is in no other object that counts. Of those
    /// that could do without each other the largest one does not count.
    fn needed(&self, first: u64) -> BTreeSet<Joined> {
        let mut needed: BTreeSet<Joined> = self.joined.iter().copied().collect();
        let mut largest_first = self.joined.clone();
        largest_first.sort_unstable_by_key(|it| (Reverse(it.count()), it.first));
        for it in largest_first {
            let is_elsewhere = |number| {
                let others = needed.range(Joined::least(number)..);
                let mut others = others.take_while(|other| other.first <= number);
                self.has_single(number) || others.any(|other| *other != it && other.has(number))
            };
            if (it.first.max(first)..=it.last).all(is_elsewhere) {
                needed.remove(&it);
            }
        }
        needed
    }

    /// From which object each link from the number `first` on is read.
    pub(super) fn pieces(&self, first: u64) -> Pieces {
        let used = self.needed(first);
        let mut pieces = Vec::with_capacity(self.singles.len() + used.len());
        let mut next = first;
        let mut singles = self.singles.iter().copied().peekable();
        for it in used {
            let before = std::iter::from_fn(|| singles.next_if(|(number, _)| *number < it.first));
            let before = before.filter(|(number, _)| *number >= next);
            pieces.extend(before.map(|(number, size)| Piece::single(number, size)));
            while singles.next_if(|(number, _)| *number <= it.last).is_some() {}
            let from = next.max(it.first);
            if from <= it.last {
                pieces.push(Piece {
                    first: from,
                    ..Piece::whole(it)
                });
                next = it.last + 1;
            }
        }
        let rest = singles.filter(|(number, _)| *number >= next);
        pieces.extend(rest.map(|(number, size)| Piece::single(number, size)));
        Pieces(pieces)
    }
}

/// From which object each link of a chain is read, in their order.
#[derive(Debug, Default, Clone)]
pub(super) struct Pieces(pub(super) Vec<Piece>);

impl Pieces {
    /// The object of this link.
    pub(super) fn find(&self, number: u64) -> Option<&Piece> {
        let index = self.0.partition_point(|piece| piece.last < number);
        self.0.get(index).filter(|piece| piece.has(number))
    }

    /// The number of the last link.
    pub(super) fn last(&self) -> Option<u64> {
        self.0.last().map(|piece| piece.last)
    }

    /// Bytes of all links.
    pub(super) fn size(&self) -> u64 {
        self.0.iter().map(Piece::size).sum()
    }

    /// The ranges of links that are missing after the number `after`.
    pub(super) fn holes(&self, after: u64) -> Vec<(u64, u64)> {
        let befores = std::iter::once(after).chain(self.0.iter().map(|piece| piece.last));
        let ranges = befores.zip(&self.0);
        let holes = ranges.filter(|(before, piece)| before + 1 < piece.first);
        holes
            .map(|(before, piece)| (before + 1, piece.first))
            .collect()
    }
}

impl Reader<'_> {
    /// See [`Listing::get`].
    pub(super) fn listing(&self, log: LogId, after: u64) -> Result<Listing, Trouble> {
        self.again(|store| Listing::get(store, log, after))
    }

    /// From which object each link after the number `after` is read.
    pub(super) fn pieces(&self, log: LogId, after: u64) -> Result<Pieces, Trouble> {
        Ok(self.listing(log, after)?.pieces(after + 1))
    }
}

/// True if a joined object has the link `number`: the number is taken, though its name may be free.
///
/// # Errors
/// The store did not answer.
pub(super) fn is_joined(store: &dyn Store, log: LogId, number: u64) -> Result<bool, Trouble> {
    Ok(!holders(store, log, number)?.is_empty())
}

/// The joined objects that have the link `number`.
fn holders(store: &dyn Store, log: LogId, number: u64) -> Result<Vec<Joined>, Trouble> {
    let listed = store.list(&joined_dir(log), &Joined::before(log, number))?;
    let joined = listed.iter().filter_map(|it| Joined::parse(log, &it.name));
    Ok(joined.filter(|joined| joined.has(number)).collect())
}

/// The links from `number` to the end of the largest joined object that has it; `None`: no one has it.
/// A link that is not as it was put is given as it is, or empty.
///
/// # Errors
/// The store did not answer, or the object was joined with others meanwhile.
pub(super) fn links_from(
    store: &dyn Store,
    log: LogId,
    number: u64,
) -> Result<Option<Vec<Vec<u8>>>, Trouble> {
    let holders = holders(store, log, number)?;
    let Some(joined) = holders.into_iter().max_by_key(|it| it.count()) else {
        return Ok(None);
    };
    let name = joined.name(log);
    let Some(bytes) = store.get(&name)? else {
        return Err(Trouble::passing(format!("{name} is there no more")));
    };
    let parts = joined.parts(log, &bytes).unwrap_or_default();
    let links = parts.iter().skip((number - joined.first) as usize);
    let links = links.map(|part| match part {
        Ok(part) => link_of(&bytes, joined, part),
        Err(_) => Vec::new(),
    });
    let mut links: Vec<Vec<u8>> = links.collect();
    if links.is_empty() {
        links.push(Vec::new());
    }
    Ok(Some(links))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BaseList, Head, Kind, bases_dir};
    use crate::joined::JOINED_LINKS_MAX;
    use crate::sim::SimStore;
    use crate::survey::{Depth, survey};
    use bsd::types::{Position, SegmentId};

    const LOG: LogId = LogId([7; 16]);

    fn listing(singles: &[u64], joined: &[(u64, u64)]) -> Listing {
        Listing {
            singles: singles.iter().map(|number| (*number, 100)).collect(),
            joined: joined
                .iter()
                .map(|(first, last)| Joined {
                    first: *first,
                    last: *last,
                    size: 100 * (last - first + 1),
                })
                .collect(),
            strangers: Vec::new(),
        }
    }

    /// Each piece: its first and last link, and whether it is joined.
    fn pieces(listing: &Listing, first: u64) -> Vec<(u64, u64, bool)> {
        let pieces = listing.pieces(first).0.into_iter();
        let pieces = pieces.map(|it| (it.first, it.last, it.joined.is_some()));
        pieces.collect()
    }

    #[test]
    fn what_is_joined_is_read_from_its_parts_until_one_of_them_is_gone() {
        let all = listing(&[1, 2, 3, 4], &[(2, 3)]);
        let one = |number| (number, number, false);
        assert_eq!(pieces(&all, 1), [one(1), one(2), one(3), one(4)]);
        let some = listing(&[1, 3, 4], &[(2, 3)]);
        assert_eq!(pieces(&some, 1), [one(1), (2, 3, true), one(4)]);
        let none = listing(&[1, 4], &[(2, 3)]);
        assert_eq!(pieces(&none, 1), [one(1), (2, 3, true), one(4)]);
        assert_eq!(pieces(&none, 3), [(3, 3, true), one(4)]);
        assert_eq!(pieces(&none, 4), [one(4)]);
    }

    #[test]
    fn an_object_of_joined_ones_counts_when_one_of_those_is_gone() {
        let all = listing(&[7], &[(1, 2), (1, 6), (3, 4), (5, 6)]);
        let last = (7, 7, false);
        assert_eq!(
            pieces(&all, 1),
            [(1, 2, true), (3, 4, true), (5, 6, true), last]
        );
        let some = listing(&[7], &[(1, 2), (1, 6), (5, 6)]);
        assert_eq!(pieces(&some, 1), [(1, 6, true), last]);
        // A part that is before the beginning need not be there.
        let begun = listing(&[7], &[(1, 6), (3, 4), (5, 6)]);
        assert_eq!(pieces(&begun, 3), [(3, 4, true), (5, 6, true), last]);
    }

    #[test]
    fn objects_that_overlap_give_each_link_once_and_what_is_missing_is_missing() {
        let two = listing(&[8], &[(1, 4), (3, 6)]);
        assert_eq!(pieces(&two, 1), [(1, 4, true), (5, 6, true), (8, 8, false)]);
        assert_eq!(two.pieces(1).holes(0), [(7, 8)]);
        assert_eq!(two.pieces(1).find(7), None);
        assert_eq!(two.pieces(1).find(6).map(|it| it.first), Some(5));
        assert!(two.pieces(5).0[0].is_cut());
    }

    /// A month of a link a second, as lists show it: what is not read need not be there.
    #[test]
    fn a_list_of_thirty_days_of_links_is_short_and_reads_few_objects() {
        const LINKS: u64 = 30 * 86_400;
        const BASE_EVERY: u64 = 20_000;
        let store = SimStore::new(1);
        let head = |kind, number| Head {
            kind,
            epoch: 1,
            number,
            log: LOG,
            from: Position::new(SegmentId(1), number as u32),
            to: Position::new(
                SegmentId(1),
                number as u32 + u32::from(kind == Kind::Frames),
            ),
            seen_wall_ns: number,
            wall_ns: number,
            previous: 0,
            segment_crc: 0,
        };
        let dir = chain_dir(LOG);
        let mut next = 1;
        for base in (1..LINKS).step_by(BASE_EVERY as usize) {
            while next < base {
                let last = base.min(next + JOINED_LINKS_MAX) - 1;
                let size = 200 * (last - next + 1);
                let it = Joined {
                    first: next,
                    last,
                    size,
                };
                store.set_object(&it.name(LOG), Some(Vec::new()));
                next = last + 1;
            }
            let list = BaseList {
                end: Position::new(SegmentId(1), base as u32),
                first_link: base,
                files: Vec::new(),
            };
            let link = head(Kind::Base, base).encode(&list.encode()).0;
            store.set_object(&numbered(&dir, base), Some(link));
            store.set_object(&numbered(&bases_dir(LOG), base), Some(Vec::new()));
            next = base + 1;
        }
        // The window, and what has gathered before it.
        let young = LINKS - 3600 - 60;
        while next < young {
            let last = young.min(next + JOINED_LINKS_MAX) - 1;
            let it = Joined {
                first: next,
                last,
                size: 200 * (last - next + 1),
            };
            store.set_object(&it.name(LOG), Some(Vec::new()));
            next = last + 1;
        }
        for number in next..=LINKS {
            let link = head(Kind::Frames, number).encode(b"x").0;
            store.set_object(&numbered(&dir, number), Some(link));
        }
        let listing = Listing::get(&store, LOG, 0).unwrap();
        let objects = listing.singles.len() + listing.joined.len();
        assert!(objects < 5000, "{objects} names");
        let calls = store.calls();
        let all = survey(&store.reader(), LOG, Depth::Lists, &mut |_, _| ()).unwrap();
        assert_eq!((all.links, all.bad.len(), all.lost.len()), (LINKS, 0, 0));
        let bases = LINKS / BASE_EVERY + 1;
        let calls = store.calls() - calls;
        assert!(calls < 2 * bases + 12, "{calls} calls");
    }
}
