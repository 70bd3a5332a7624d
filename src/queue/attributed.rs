//! What jobs have beyond plain jobs: a side table, with an entry for each job that has anything.
//!
//! A list is kept as the log has it (see [`crate::attributes`]), and read when it is needed. Of a job
//! that was moved the table also has the tube that it was put into: its put record names that one, and
//! it goes back there when its list names no tube any more.
//!
//! A [`Job`](super::job::Job) says in a flag whether it has an entry, so other jobs cost a test of it.

use std::collections::BTreeSet;

use super::handle::{Handle, OfAttributes};
use super::ids::IdTable;
use super::slab::Slab;
use crate::types::{JobId, Place};

/// What the allocator takes beside the bytes of a list, about.
const ALLOCATION_SIZE: usize = 16;
/// What the set of moved jobs takes for each of them, about.
const MOVED_SIZE: usize = 12;

/// What a job has beyond a plain one.
#[derive(Debug)]
pub(super) struct Attributed {
    /// The record that says so.
    pub(super) place: Place,
    /// The size of the name of the tube that the job was put into, that name, and the list; without the
    /// name, and 0, if the job is in that tube.
    bytes: Box<[u8]>,
}

impl Attributed {
    pub(super) fn new(place: Place, home: Option<&str>, list: &[u8]) -> Attributed {
        let home = home.unwrap_or_default().as_bytes();
        let bytes = [&[home.len() as u8][..], home, list].concat();
        Attributed {
            place,
            bytes: bytes.into(),
        }
    }

    /// The tube that the job was put into, if it is in another one.
    pub(super) fn home(&self) -> Option<&str> {
        let size = usize::from(self.bytes[0]);
        let name = std::str::from_utf8(&self.bytes[1..1 + size]).ok();
        name.filter(|name| !name.is_empty())
    }

    pub(super) fn list(&self) -> &[u8] {
        &self.bytes[1 + usize::from(self.bytes[0])..]
    }

    /// The record that is garbage without this, and the size of its list.
    pub(super) fn freed(&self) -> Option<(Place, u32)> {
        let list_size = self.list().len() as u32;
        (!self.place.is_none()).then_some((self.place, list_size))
    }
}

/// The entries of all jobs that have one.
pub(super) struct AttributedJobs {
    slab: Slab<OfAttributes, Attributed>,
    ids: IdTable<OfAttributes>,
    /// Bytes of the lists and names.
    bytes: usize,
    /// Jobs that are not in the tube that they were put into.
    moved: BTreeSet<JobId>,
}

impl AttributedJobs {
    pub(super) fn new() -> AttributedJobs {
        AttributedJobs {
            slab: Slab::new(),
            ids: IdTable::new(),
            bytes: 0,
            moved: BTreeSet::new(),
        }
    }

    /// The jobs that are not in the tube that they were put into.
    pub(super) fn moved(&self) -> impl ExactSizeIterator<Item = JobId> {
        self.moved.iter().copied()
    }

    pub(super) fn get(&self, id: JobId) -> Option<&Attributed> {
        Some(&self.slab[self.ids.get(id)?])
    }

    /// Enter what a job has; returns what it had.
    pub(super) fn set(&mut self, id: JobId, new: Attributed) -> Option<Attributed> {
        self.bytes += new.bytes.len();
        match new.home() {
            Some(_) => self.moved.insert(id),
            None => self.moved.remove(&id),
        };
        match self.ids.get(id) {
            Some(handle) => {
                let before = std::mem::replace(&mut self.slab[handle], new);
                self.bytes -= before.bytes.len();
                Some(before)
            }
            None => {
                let handle = self.slab.insert(new);
                let is_new = self.ids.insert(id, handle);
                assert!(is_new, "job {id} was not found and is there");
                None
            }
        }
    }

    /// Forget a job; returns what it had.
    pub(super) fn remove(&mut self, id: JobId) -> Option<Attributed> {
        let before = self.slab.remove(self.ids.get(id)?);
        self.ids.remove(id);
        self.moved.remove(&id);
        self.bytes -= before.bytes.len();
        Some(before)
    }

    /// Move an entry to where there is room: few that are left of many shall not hold the memory of all.
    pub(super) fn move_down(&mut self, id: JobId) {
        if let Some(handle) = self.ids.get(id) {
            let entry = self.slab.remove(handle);
            let handle: Handle<OfAttributes> = self.slab.insert(entry);
            self.ids.replace(id, handle);
        }
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        let entry = Slab::<OfAttributes, Attributed>::entry_size() + ALLOCATION_SIZE;
        let moved = self.moved.len() * MOVED_SIZE;
        self.slab.len() * entry + self.bytes + self.ids.memory() + moved
    }

    /// Where the record of the job's attributes is said to be.
    pub(super) fn place_mut(&mut self, id: JobId) -> Option<&mut Place> {
        let handle = self.ids.get(id)?;
        Some(&mut self.slab[handle].place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Attributes;

    /// The bound of a job with a key, without the key: the index of keys apart.
    #[test]
    fn what_a_job_with_a_key_costs_beside_a_plain_one() {
        let mut jobs = AttributedJobs::new();
        let key = Attributes {
            key: Some("0123456789abcdef"),
            ..Attributes::default()
        };
        let list = key.encode().unwrap();
        for id in 1..=100_000 {
            jobs.set(JobId(id), Attributed::new(Place::NONE, None, &list));
        }
        let each = jobs.memory().div_ceil(100_000);
        assert!(each <= 70, "{each} bytes");
    }
}
