//! Handles: small numbers that stand for a job, a tube or a client in the slab that has them.
//!
//! A handle says what it is the number of, and nothing of what that is: so a job can name its tube
//! and its client, and neither file needs the other.

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// The kinds of objects that handles number.
pub(super) enum OfJob {}
pub(super) enum OfJobExtra {}
pub(super) enum OfAttributes {}
pub(super) enum OfTube {}
pub(super) enum OfClient {}

pub(super) type JobHandle = Handle<OfJob>;
pub(super) type JobExtraHandle = Handle<OfJobExtra>;
pub(super) type TubeHandle = Handle<OfTube>;
pub(super) type ClientHandle = Handle<OfClient>;

/// The number of a value in the slab of its kind: four bytes, also as an `Option`.
pub(super) struct Handle<K> {
    index_plus_one: NonZeroU32,
    of: PhantomData<fn() -> K>,
}

impl<K> Handle<K> {
    /// The greatest handle.
    pub(super) const LAST: Handle<K> = Handle {
        index_plus_one: NonZeroU32::MAX,
        of: PhantomData,
    };

    /// The handle of entry `index`; `None` for the one index that no slab reaches.
    pub(super) fn from_index(index: u32) -> Option<Handle<K>> {
        let index_plus_one = NonZeroU32::new(index.wrapping_add(1))?;
        Some(Handle {
            index_plus_one,
            of: PhantomData,
        })
    }

    /// The number of the entry, from 0.
    pub(super) fn index(self) -> u32 {
        self.index_plus_one.get() - 1
    }
}

// Written by hand: derived, they would require the same traits of `K`.
impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Handle<K> {}

impl<K> PartialEq for Handle<K> {
    fn eq(&self, other: &Self) -> bool {
        self.index_plus_one == other.index_plus_one
    }
}

impl<K> Eq for Handle<K> {}

impl<K> PartialOrd for Handle<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Handle<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.index_plus_one.cmp(&other.index_plus_one)
    }
}

impl<K> fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index())
    }
}
