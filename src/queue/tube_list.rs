//! The list of all tubes, in the order in which clients see them.

use std::sync::Arc;

use super::handle::TubeHandle;

/// A tube and its name.
pub(super) type Listed = (TubeHandle, Arc<str>);

/// Tubes that are copied at most when a tube is created or removed while a list is held.
const LISTED_LEN: usize = 256;

/// The tubes at one moment, in the order of `list-tubes`: the order of creation, except that the
/// last one takes the place of a removed one. Taking a list is cheap, and it does not change when
/// tubes come and go; so a long list can be written in slices.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TubeList {
    /// All full except the last. They are shared; a change copies the part that it changes.
    parts: Vec<Arc<Vec<Listed>>>,
    len: usize,
    pub(super) name_bytes: usize,
}

impl TubeList {
    /// The number of tubes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: `default` always exists.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all names together.
    #[must_use]
    pub(crate) fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    /// The names from index `index` on, in constant time for the first.
    pub fn names_from(&self, index: usize) -> impl Iterator<Item = &str> {
        let parts = self.parts.get(index / LISTED_LEN..).unwrap_or_default();
        let names = parts.iter().flat_map(|part| part.iter());
        names.skip(index % LISTED_LEN).map(|(_, name)| &**name)
    }

    pub(super) fn listed(&self) -> impl Iterator<Item = &Listed> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    pub(super) fn push(&mut self, tube: TubeHandle, name: Arc<str>) {
        self.name_bytes += name.len();
        if self.len.is_multiple_of(LISTED_LEN) {
            self.parts.push(Arc::default());
        }
        self.len += 1;
        if let Some(last) = self.parts.last_mut() {
            Arc::make_mut(last).push((tube, name));
        }
    }

    /// Removes the tube at this index. If another tube was last, it moves to this index and is
    /// returned.
    pub(super) fn swap_remove(&mut self, index: usize) -> Option<TubeHandle> {
        let (tube, name) = self.pop()?;
        if index == self.len {
            self.name_bytes -= name.len();
            return None;
        }
        let part = Arc::make_mut(&mut self.parts[index / LISTED_LEN]);
        let (_, gone) = std::mem::replace(&mut part[index % LISTED_LEN], (tube, name));
        self.name_bytes -= gone.len();
        Some(tube)
    }

    fn pop(&mut self) -> Option<Listed> {
        let last = Arc::make_mut(self.parts.last_mut()?);
        let listed = last.pop()?;
        if last.is_empty() {
            self.parts.pop();
        }
        self.len -= 1;
        Some(listed)
    }
}
