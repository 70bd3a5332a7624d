//! Where the files of a log are alive, and where they are damaged: the data for a picture of it.

use std::collections::HashMap;
use std::ops::Range;

use super::runs::JobEntry;
use super::{Inspection, SegmentReport};
use crate::storage::format::{put_size, update};
use crate::types::{JobId, Place, SegmentId};

/// A stretch of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cell {
    /// Bytes.
    pub size: u64,
    /// Bytes before the end of the frames of their file.
    pub used: u64,
    /// Bytes of records of live jobs.
    pub live: u64,
    /// Something in it is damaged.
    pub is_damaged: bool,
}

impl Cell {
    fn add(&mut self, other: Cell) {
        self.size += other.size;
        self.used += other.used;
        self.live += other.live;
        self.is_damaged |= other.is_damaged;
    }
}

/// Adjacent files, in cells of the same size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strip {
    /// A range of [`Inspection::segments`].
    pub segments: Range<usize>,
    /// From the start of the first file to the end of the last.
    pub cells: Vec<Cell>,
}

impl Strip {
    /// The sum of all cells.
    #[must_use]
    pub fn total(&self) -> Cell {
        let mut total = Cell::default();
        self.cells.iter().for_each(|cell| total.add(*cell));
        total
    }
}

/// A file that live jobs hold on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The file.
    pub file: String,
    /// The number of jobs whose body or state is in it.
    pub jobs: u64,
    /// The first of them, in the order of their ids.
    pub first: Vec<JobId>,
}

impl Inspection {
    /// The log's files, each cut into `cells` cells, in at most `strips_max` strips; if there are
    /// more files, several share one. Both numbers must not be 0.
    #[must_use]
    pub fn picture(&self, strips_max: usize, cells: usize) -> Vec<Strip> {
        let group = self.segments.len().div_ceil(strips_max).max(1);
        let mut canvas = Canvas::new(&self.segments, group, cells);
        for (index, segment) in self.segments.iter().enumerate() {
            canvas.paint(index, 0..segment.used, |cell, bytes| cell.used += bytes);
            for damaged in &segment.damaged {
                // Bytes after the end of a file that was cut are reported at its end.
                let start = damaged.start.min(segment.size.saturating_sub(1));
                let end = damaged.end.clamp(start + 1, segment.size.max(start + 1));
                canvas.paint(index, start..end, |cell, _| cell.is_damaged = true);
            }
        }
        let numbers = self.numbers();
        for (place, size) in self.live_records() {
            if let Some(index) = numbers.get(&self.files.segment_of(place)) {
                let start = u64::from(place.offset);
                canvas.paint(*index, start..start + size, |cell, bytes| {
                    cell.live += bytes
                });
            }
        }
        canvas.strips
    }

    /// The jobs in each of the first `files_max` files that hold anything alive, at most `jobs_max`
    /// of them named.
    #[must_use]
    pub fn pins(&self, files_max: usize, jobs_max: usize) -> Vec<Pin> {
        let live = self
            .segments
            .iter()
            .filter(|segment| segment.live_bytes > 0);
        let mut pins: Vec<(SegmentId, Pin)> = live
            .take(files_max)
            .map(|segment| (segment.entry.first, pin(segment)))
            .collect();
        for (id, entry) in self.index.iter() {
            let segments = self
                .records_of(id, &entry)
                .map(|(place, _)| self.files.segment_of(place));
            let segments: Vec<SegmentId> = segments.collect();
            let is_in = |(first, _): &&mut (SegmentId, Pin)| segments.contains(first);
            for (_, pin) in pins.iter_mut().filter(is_in) {
                pin.jobs += 1;
                if pin.first.len() < jobs_max {
                    pin.first.push(id);
                }
            }
        }
        pins.into_iter().map(|(_, pin)| pin).collect()
    }

    /// The names of files that the log needs and that are missing.
    pub fn missing_files(&self) -> impl Iterator<Item = &str> {
        let is_there = |name: &str| self.segments.iter().any(|segment| segment.file == name);
        self.losses
            .iter()
            .filter(|loss| loss.damage.range.is_none())
            .map(|loss| loss.damage.file.as_str())
            .filter(move |name| !is_there(name))
    }

    /// The index of each file.
    fn numbers(&self) -> HashMap<SegmentId, usize> {
        let files = self.segments.iter().enumerate();
        files
            .map(|(index, segment)| (segment.entry.first, index))
            .collect()
    }

    /// The records of live jobs, and their sizes.
    fn live_records(&self) -> impl Iterator<Item = (Place, u64)> {
        self.index
            .iter()
            .flat_map(|(id, entry)| self.records_of(id, &entry))
    }

    fn records_of(
        &self,
        id: JobId,
        entry: &JobEntry,
    ) -> impl Iterator<Item = (Place, u64)> + use<> {
        let put = put_size(self.index.put_tube(entry).len(), entry.body_size as usize);
        let state = (!entry.update.is_none()).then_some((entry.update, update::SIZE as u64));
        let attributed = self.index.beyond.attributed.get(&id);
        let attributes = attributed.map(|it| (it.place, it.size() as u64));
        let changes = state.into_iter().chain(attributes);
        [(entry.put, put as u64)].into_iter().chain(changes)
    }
}

fn pin(segment: &SegmentReport) -> Pin {
    Pin {
        file: segment.file.clone(),
        jobs: 0,
        first: Vec::new(),
    }
}

/// Strips in progress.
struct Canvas {
    strips: Vec<Strip>,
    /// Bytes of each strip.
    totals: Vec<u64>,
    /// For each file: where it begins in its strip, and its bytes.
    files: Vec<(u64, u64)>,
    /// Files in a strip.
    group: usize,
}

impl Canvas {
    fn new(segments: &[SegmentReport], group: usize, cells: usize) -> Canvas {
        let mut files = Vec::new();
        let (mut strips, mut totals) = (Vec::new(), Vec::new());
        for (number, segments) in segments.chunks(group).enumerate() {
            let mut total = 0;
            for segment in segments {
                files.push((total, segment.size));
                total += segment.size;
            }
            let first = number * group;
            let bound = |cell: usize| total * cell as u64 / cells as u64;
            let cell = |cell| Cell {
                size: bound(cell + 1) - bound(cell),
                ..Cell::default()
            };
            totals.push(total);
            strips.push(Strip {
                segments: first..first + segments.len(),
                cells: (0..cells).map(cell).collect(),
            });
        }
        Canvas {
            strips,
            totals,
            files,
            group,
        }
    }

    /// Let `brush` change each cell that contains some of the bytes `range` of file `index`; it
    /// gets their number.
    fn paint(&mut self, index: usize, range: Range<u64>, mut brush: impl FnMut(&mut Cell, u64)) {
        let (base, size) = self.files[index];
        let (start, end) = (base + range.start.min(size), base + range.end.min(size));
        let total = self.totals[index / self.group];
        let cells = &mut self.strips[index / self.group].cells;
        let count = cells.len() as u64;
        let bound = |cell: u64| total * cell / count;
        // Bounds are rounded down: `start` lies in this cell, or in the one before.
        let mut at = (start * count).checked_div(total).unwrap_or(count);
        while at < count && bound(at) < end {
            let overlap = bound(at + 1).min(end).saturating_sub(bound(at).max(start));
            if overlap > 0 {
                brush(&mut cells[at as usize], overlap);
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::format;

    fn segment(first: u32, size: u64) -> SegmentReport {
        SegmentReport {
            file: String::new(),
            entry: format::Entry {
                first: SegmentId(first),
                last: SegmentId(first),
                generation: 0,
                end: 0,
            },
            size,
            used: size,
            frames: 0,
            records: 0,
            record_bytes: 0,
            live_bytes: 0,
            end: None,
            damaged: Vec::new(),
        }
    }

    #[test]
    fn every_byte_is_painted_once_and_in_its_place() {
        let segments = [
            segment(1, 1001),
            segment(2, 7),
            segment(3, 0),
            segment(4, 50),
        ];
        for cells in [1, 3, 10, 64, 3000] {
            for group in 1..=4 {
                let mut canvas = Canvas::new(&segments, group, cells);
                for (index, segment) in segments.iter().enumerate() {
                    for at in 0..segment.size {
                        canvas.paint(index, at..at + 1, |cell, bytes| cell.live += bytes);
                    }
                    canvas.paint(index, 0..segment.size, |cell, bytes| cell.used += bytes);
                }
                let cells = canvas.strips.iter().flat_map(|strip| &strip.cells);
                for cell in cells {
                    assert_eq!((cell.live, cell.used), (cell.size, cell.size), "{group}");
                }
                let total = canvas.strips.iter().map(|strip| strip.total().size);
                assert_eq!(total.sum::<u64>(), 1058);
            }
        }
    }

    #[test]
    fn files_share_a_strip_where_there_are_too_many() {
        let segments: Vec<_> = (1..=7).map(|number| segment(number, 10)).collect();
        let canvas = Canvas::new(&segments, 3, 4);
        let ranges = canvas.strips.iter().map(|strip| strip.segments.clone());
        assert_eq!(ranges.collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
    }
}
