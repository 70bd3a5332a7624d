//! A file of a simulated disk: its content as processes see it, as it is on the platter, and the
//! changes between the two.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use super::content::{Content, Extents, PAGE_SIZE, Page, pages};

/// A change of a file that no sync has covered yet.
#[derive(Debug, Clone)]
pub(super) struct Unsynced {
    pub(super) sequence: u64,
    /// The bytes written; empty if only the size changed.
    pub(super) range: Range<u64>,
    /// The pages of `range` as they were in the cache after the write.
    pub(super) pages: Vec<(u64, Page)>,
    /// The size of the file after the change, if it changed.
    pub(super) size: Option<u64>,
    /// A failed sync marked the pages as clean: no later sync writes them.
    stuck: bool,
}

#[derive(Debug, Clone)]
pub(super) struct FileNode {
    /// The name that processes see, or the last one they saw.
    pub(super) path: Arc<Path>,
    /// True while processes see a name of it.
    linked: bool,
    /// Open handles.
    pub(super) handles: u32,
    pub(super) visible: Content,
    pub(super) durable: Content,
    /// Oldest first.
    pub(super) unsynced: Vec<Unsynced>,
    extents: Extents,
    /// Space freed by un-synced changes of the size: a crash that undoes them takes it again.
    given_back: Extents,
    /// Bytes that un-synced overwrites take in addition to the old ones, on copy-on-write storage.
    copies: u64,
    /// Ranges that cannot be read.
    pub(super) unreadable: Vec<Range<u64>>,
}

impl FileNode {
    pub(super) fn new(path: PathBuf) -> FileNode {
        FileNode {
            path: path.into(),
            linked: false,
            handles: 0,
            visible: Content::default(),
            durable: Content::default(),
            unsynced: Vec::new(),
            extents: Extents::default(),
            given_back: Extents::default(),
            copies: 0,
            unreadable: Vec::new(),
        }
    }

    pub(super) fn link(&mut self, path: &Path) {
        self.linked = true;
        if *self.path != *path {
            self.path = path.into();
        }
    }

    pub(super) fn unlink(&mut self) {
        self.linked = false;
    }

    /// True while it can be reached.
    pub(super) fn is_present(&self) -> bool {
        self.linked || self.handles > 0
    }

    pub(super) fn durable_size(&self) -> u64 {
        self.durable.size()
    }

    /// The bytes that it takes.
    pub(super) fn space(&self) -> u64 {
        self.extents.len() + self.copies
    }

    /// Allocate space for a write of `range`, which is not empty, when `free` bytes are free.
    /// Returns the end of the part that fits.
    pub(super) fn take_space(
        &mut self,
        range: Range<u64>,
        free: u64,
        copy_on_write: bool,
    ) -> io::Result<u64> {
        let end = if copy_on_write {
            range.end.min(range.start.saturating_add(free))
        } else {
            self.extents.reach(range.clone(), free)
        };
        if end == range.start {
            return Err(Errno::NOSPC.into());
        }
        let range = range.start..end;
        if copy_on_write {
            self.copies += range.end - range.start - self.extents.missing(range.clone());
        }
        self.extents.insert(range);
        Ok(end)
    }

    pub(super) fn set_size(&mut self, size: u64, sequence: u64) {
        self.given_back.insert_all(self.extents.from(size));
        self.extents.truncate(size);
        self.change_size(size, sequence);
    }

    pub(super) fn allocate(&mut self, size: u64, free: u64, sequence: u64) -> io::Result<()> {
        if self.extents.missing(0..size) > free {
            return Err(Errno::NOSPC.into());
        }
        self.extents.insert(0..size);
        self.change_size(size.max(self.visible.size()), sequence);
        Ok(())
    }

    /// The first `size` bytes, for which there is space, are zeros from now on. Until a sync, a
    /// crash may undo that page by page.
    pub(super) fn zero(&mut self, size: u64, sequence: u64) {
        if self.visible.written().any(|range| range.start < size) {
            self.write(&vec![0; size as usize], 0, sequence);
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64, sequence: u64) {
        let before = self.visible.size();
        self.visible.write(bytes, offset);
        let size = self.visible.size();
        let range = offset..offset + bytes.len() as u64;
        let numbers = pages(offset, bytes.len() as u64).map(|(number, _)| number);
        let pages = numbers
            .map(|number| (number, self.visible.page(number)))
            .collect();
        let size = (size != before).then_some(size);
        self.unsynced.push(Unsynced {
            sequence,
            range,
            pages,
            size,
            stuck: false,
        });
    }

    pub(super) fn change_size(&mut self, size: u64, sequence: u64) {
        if size != self.visible.size() {
            self.visible.resize(size);
            self.unsynced.push(Unsynced::of_size(size, sequence));
        }
    }

    /// The number of bytes read: up to the end of the file, or up to what cannot be read.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = offset.saturating_add(buf.len() as u64);
        let bad = self
            .unreadable
            .iter()
            .filter(|bad| bad.start < end && bad.end > offset);
        match bad.map(|bad| bad.start).min() {
            Some(start) if start <= offset => Err(Errno::IO.into()),
            Some(start) => Ok(self
                .visible
                .read(&mut buf[..(start - offset) as usize], offset)),
            None => Ok(self.visible.read(buf, offset)),
        }
    }

    /// Write the dirty pages and the size to the platter. Pages that an earlier failed sync marked
    /// as clean are written only if they changed since.
    pub(super) fn sync(&mut self) {
        let mut flushed = BTreeSet::new();
        for change in self.unsynced.extract_if(.., |change| !change.stuck) {
            change.apply(&mut self.durable);
            flushed.extend(change.pages.iter().map(|(number, _)| *number));
        }
        let size = self.durable.size();
        for change in &mut self.unsynced {
            change
                .pages
                .retain(|(number, _)| !flushed.contains(number) && change.range.end <= size);
        }
        self.unsynced.retain(|change| !change.pages.is_empty());
        self.given_back = Extents::default();
        self.copies = 0;
    }

    /// Mark the dirty pages as clean without writing them, or only some of them: a crash shows
    /// which. The size waits for the next sync.
    pub(super) fn fail_sync(&mut self) {
        let mut sizes = Vec::new();
        for change in &mut self.unsynced {
            let size = change.size.take();
            sizes.extend(size.map(|size| Unsynced::of_size(size, change.sequence)));
            change.stuck = true;
        }
        self.unsynced.retain(|change| !change.pages.is_empty());
        self.unsynced.extend(sizes);
        self.unsynced.sort_by_key(|change| change.sequence);
    }

    /// Bytes that arrive on the platter by mistake, over its content, and are visible at once. They
    /// change no size.
    pub(super) fn overwrite(&mut self, bytes: &[u8], offset: u64) {
        for content in [&mut self.visible, &mut self.durable] {
            let room = content
                .size()
                .saturating_sub(offset)
                .min(bytes.len() as u64);
            content.put_bytes(&bytes[..room as usize], offset);
        }
    }

    /// Flip one bit, counted from bit 0 of byte 0, on the platter and in the cache.
    pub(super) fn flip_bit(&mut self, bit: u64) -> io::Result<()> {
        let mut byte = [0];
        if self.visible.read(&mut byte, bit / 8) == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        byte[0] ^= 1 << (bit % 8);
        self.visible.put_bytes(&byte, bit / 8);
        if self.durable.read(&mut byte, bit / 8) == 1 {
            byte[0] ^= 1 << (bit % 8);
            self.durable.put_bytes(&byte, bit / 8);
        }
        Ok(())
    }

    /// Content that is durable and visible, with nothing un-synced.
    pub(super) fn replace(&mut self, content: Content) {
        self.extents.truncate(content.size());
        self.extents.insert(0..content.size());
        self.restart(content);
    }

    /// Set the content that a crash left.
    pub(super) fn restart(&mut self, mut content: Content) {
        // Cuts bytes that a write left past the end when the size was lost.
        content.resize(content.size());
        self.extents.insert_all(self.given_back.from(0));
        self.given_back = Extents::default();
        self.extents.truncate(content.size());
        self.extents.insert_all(content.written());
        self.visible = content.clone();
        self.durable = content;
        self.unsynced.clear();
        self.copies = 0;
    }
}

impl Unsynced {
    fn of_size(size: u64, sequence: u64) -> Unsynced {
        Unsynced {
            sequence,
            range: 0..0,
            pages: Vec::new(),
            size: Some(size),
            stuck: false,
        }
    }

    fn apply(&self, content: &mut Content) {
        for (number, page) in &self.pages {
            content.put_block(*number, 0..PAGE_SIZE as usize, page);
        }
        if let Some(size) = self.size {
            content.resize(size);
        }
    }
}
