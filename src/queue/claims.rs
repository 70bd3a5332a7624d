//! Claims of keys: an ordered set, in which the oldest job that claims a key is found.
//!
//! A claim has the hash of a key and its tube, and its job; the key itself is among the attributes of
//! the job. So a claim is small, and a search for a key compares what is found.

#[cfg(any(test, feature = "sim"))]
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hasher};

use super::handle::TubeHandle;
use super::order::Order;
use crate::types::JobId;

/// The claim of a job: by the hash of its tube and its key, then by its age.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
pub(super) struct Claim {
    hash: u32,
    id: JobId,
}

impl Claim {
    /// That of a job for a key in a tube.
    pub(super) fn new(tube: TubeHandle, key: &[u8], id: JobId) -> Claim {
        Claim {
            hash: hash(tube, key),
            id,
        }
    }

    /// The job.
    pub(super) fn id(self) -> JobId {
        self.id
    }
}

/// The claims of all jobs.
pub(super) struct Claims {
    order: Order<Claim>,
    len: usize,
}

impl Claims {
    pub(super) fn new() -> Claims {
        Claims {
            order: Order::new(),
            len: 0,
        }
    }

    /// A job claims a key from now on.
    pub(super) fn insert(&mut self, claim: Claim) {
        self.order.insert(claim);
        self.len += 1;
    }

    /// A job claims a key no more.
    pub(super) fn remove(&mut self, claim: Claim) {
        self.order.remove(&claim);
        self.len -= 1;
    }

    /// The claims of a key, and of others with the same hash, the oldest first.
    pub(super) fn of<'a>(
        &'a self,
        tube: TubeHandle,
        key: &[u8],
    ) -> impl Iterator<Item = Claim> + use<'a> {
        let hash = hash(tube, key);
        let before_all = Claim { hash, id: JobId(0) };
        let next = move |last: &Claim| {
            let next = self.order.after(last);
            next.filter(|claim| claim.hash == hash)
        };
        std::iter::successors(next(&before_all), next)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.len * size_of::<Claim>()
    }

    /// Checks that these are all.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn assert_are(&self, expected: &BTreeSet<Claim>) {
        assert_eq!(self.len, expected.len(), "the number of claims of keys");
        let next = |last: &Claim| self.order.after(last);
        let found = std::iter::successors(self.order.first(), next);
        assert!(found.eq(expected.iter().copied()), "claims of keys");
    }
}

/// The same in every process: nothing here is random. A tube keeps its handle as long as it has jobs.
fn hash(tube: TubeHandle, key: &[u8]) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u32(tube.index());
    hasher.write(key);
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_takes_twelve_bytes() {
        assert_eq!(size_of::<Claim>(), 12);
    }

    #[test]
    fn the_claims_of_a_key_come_by_age_and_those_of_other_keys_are_left_out() {
        let tube = |index| TubeHandle::from_index(index).unwrap();
        let mut claims = Claims::new();
        let mut all = BTreeSet::new();
        for id in (1..2000).rev() {
            let key = [b'k', (id % 5) as u8];
            let claim = Claim::new(tube(id as u32 % 2), &key, JobId(id));
            claims.insert(claim);
            all.insert(claim);
        }
        claims.assert_are(&all);
        for id in 1..=10 {
            let of = claims.of(tube(id as u32 % 2), &[b'k', (id % 5) as u8]);
            let found = of.map(|claim| claim.id().0);
            assert!(found.eq((id..2000).step_by(10)), "{id}");
        }
        assert_eq!(claims.of(tube(0), b"other").count(), 0);
        all.into_iter().for_each(|claim| claims.remove(claim));
        assert_eq!(claims.memory(), 0);
    }
}
