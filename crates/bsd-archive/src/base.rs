//! A base in the making: the files of the log as they were at one instant, a part at a time.
//!
//! A part is named by its place, its content and the base for which it was put. A file that has not
//! changed since the last complete base is not uploaded again: it is read back and compared. It is put
//! again where it is encrypted with a key that was not given. Parts of earlier bases are not used, because
//! an expiry may be about to remove them. A part that the store holds with other content, which no
//! writer has put, stays as it is, and the next name is taken.

use std::collections::HashMap;

use crate::format::{BaseFile, BaseList, PART_SIZE_MAX, Part, part_name};
use crate::store::{Put, Store, Trouble};
use bsd::storage::convert::parts::LogParts;
use bsd::storage::format::LogId;
use bsd::types::Position;

/// Objects of one part's name that are looked at before the store is given up.
const ATTEMPTS_MAX: u32 = 16;

/// A base whose files are being uploaded.
#[derive(Debug)]
pub(super) struct Making {
    log: LogId,
    files: LogParts,
    sizes: Vec<(String, u64)>,
    list: BaseList,
    /// The parts of the last complete base, by file and offset.
    known: HashMap<(String, u64), Part>,
    /// Bytes of the last file of the list that are there.
    done: u64,
    /// Bytes that the last complete base has, too.
    reused: u64,
}

impl Making {
    /// Begin one; the chain's next link has the number `first_link`, and its newest base is `last`.
    pub(super) fn begin(
        log: LogId,
        files: LogParts,
        first_link: u64,
        last: Option<&BaseList>,
    ) -> Making {
        let files_of = last.iter().flat_map(|list| &list.files);
        let known = files_of.flat_map(|file| {
            let parts = file.parts();
            parts.map(|(offset, part)| ((file.name.clone(), offset), part))
        });
        let list = BaseList {
            end: files.end(),
            first_link,
            files: Vec::new(),
        };
        Making {
            log,
            sizes: files.files().collect(),
            files,
            list,
            known: known.collect(),
            done: 0,
            reused: 0,
        }
    }

    /// Where its log ends.
    pub(super) fn end(&self) -> Position {
        self.list.end
    }

    /// Bytes that are in the store, and bytes in all.
    pub(super) fn progress(&self) -> (u64, u64) {
        let all = self.sizes.iter().map(|(_, size)| size).sum();
        (self.list.size(), all)
    }

    /// Bytes that were not uploaded, because the last complete base has them.
    pub(super) fn reused(&self) -> u64 {
        self.reused
    }

    /// Upload the next part. The list, if that was the last one.
    pub(super) fn step(
        &mut self,
        store: &dyn Store,
        part_max: u32,
    ) -> Result<Option<&BaseList>, Trouble> {
        // Every file of the list is complete, but perhaps the last.
        let last = self.list.files.len().checked_sub(1);
        let is_open = |index: &usize| self.done < self.sizes[*index].1;
        let (index, offset) = match last.filter(is_open) {
            Some(index) => (index, self.done),
            None => (self.list.files.len(), 0),
        };
        let Some((name, size)) = self.sizes.get(index) else {
            return Ok(Some(&self.list));
        };
        let rest = size - offset;
        let count = rest.min(part_max.min(PART_SIZE_MAX).into()) as usize;
        let bytes = self.files.read(index, offset, count);
        let bytes = bytes
            .map_err(|error| Trouble::passing(format!("cannot read {name} of the log: {error}")))?;
        let part = self.keep(store, name, offset, &bytes)?;
        if part.since < self.list.first_link {
            self.reused += u64::from(part.size);
        }
        if index == self.list.files.len() {
            self.list.files.push(BaseFile {
                name: name.clone(),
                parts: Vec::new(),
            });
        }
        self.list.files[index].parts.push(part);
        self.done = offset + count as u64;
        Ok(None)
    }

    /// The part of the last base, if that is the same and sound; else one that is put now.
    fn keep(
        &self,
        store: &dyn Store,
        file: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<Part, Trouble> {
        let mut part = Part {
            size: bytes.len() as u32,
            crc: crc32fast::hash(bytes),
            since: self.list.first_link,
            attempt: 0,
        };
        let known = self.known.get(&(file.to_owned(), offset));
        if let Some(known) = known.filter(|it| (it.size, it.crc) == (part.size, part.crc)) {
            let name = part_name(self.log, file, offset, *known);
            match store.get(&name) {
                Ok(found) if found.as_deref() == Some(bytes) => return Ok(*known),
                // Put again, it needs no key that was given up.
                Err(trouble) if !trouble.lacks_key => return Err(trouble),
                _ => {}
            }
        }
        while !upload(store, &part_name(self.log, file, offset, part), bytes)? {
            if part.attempt == ATTEMPTS_MAX {
                let name = part_name(self.log, file, offset, part);
                return Err(Trouble::passing(format!(
                    "{name} and its namesakes hold something else: what the store keeps is not what \
                     was put; look at the store, or archive to another place"
                )));
            }
            part.attempt += 1;
        }
        Ok(part)
    }
}

/// `false`: something else is there.
fn upload(store: &dyn Store, name: &str, bytes: &[u8]) -> Result<bool, Trouble> {
    Ok(match store.put_if_absent(name, bytes)? {
        Put::Done => true,
        Put::Exists => store.get(name)?.as_deref() == Some(bytes),
    })
}
