//! The open log as an archive sees it: the durable position, and the files that hold the bytes.
//!
//! The log publishes facts here and never waits. The archive reads segments as they were first
//! written, below the durable position, through the files that it finds here: a file stays readable
//! after compaction has removed its name, for as long as it is held. Nothing cuts a sealed segment:
//! only the end of the open one is given back, behind all frames.
//!
//! Invariants:
//! * The segments are neighbours in the order of the log, and the open one is the last.
//! * What is held beside the open segment is bounded, in bytes and in files: what goes beyond it is
//!   let go, the oldest first, whether it was archived or not. The last sealed segment is held in any
//!   case: an archive that has all of it is not to have a gap because it is large.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::storage::disk::{File, read_exact_at};
use crate::storage::format::LogId;
use crate::types::{Position, SegmentId, Time};

/// Sealed segments that are held at most: each may need a descriptor.
pub const HELD_SEGMENTS_MAX: usize = 64;

/// The facts that an open log publishes.
#[derive(Debug)]
pub struct Trail {
    hold_max: u64,
    /// Age of the oldest missing bytes at which an archive is late.
    lag_max_ns: Option<i64>,
    shared: Mutex<Shared>,
    /// The log is let go: nothing is published any more.
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct Shared {
    log: Option<LogId>,
    durable: Position,
    segments: VecDeque<Held>,
    /// The archive has everything before this.
    archived: Option<Position>,
    /// It has everything that was durable at this moment; before it has told, when it was first asked.
    has_all_of: Option<Time>,
}

#[derive(Debug)]
struct Held {
    id: SegmentId,
    file: Arc<dyn File>,
    /// Where it ends; `None`: it is the open segment.
    end: Option<u32>,
}

/// Durable bytes of one segment that follow a position.
#[derive(Debug, Clone)]
pub struct Stretch {
    file: Arc<dyn File>,
    /// Where it begins.
    pub from: Position,
    /// Where it ends, in the same segment; the same as `from` if there is nothing.
    pub to: Position,
}

impl Stretch {
    /// Its first bytes, at most `size_max`.
    ///
    /// # Errors
    /// If the disk does not return them.
    pub fn read(&self, size_max: u32) -> io::Result<Vec<u8>> {
        let size = (self.to.offset() - self.from.offset()).min(size_max);
        let mut bytes = vec![0; size as usize];
        read_exact_at(&*self.file, &mut bytes, self.from.offset().into())?;
        Ok(bytes)
    }
}

impl Trail {
    /// A trail that holds at most `hold_max` bytes of sealed segments, and at least one of them.
    #[must_use]
    pub fn new(hold_max: u64) -> Trail {
        Trail {
            hold_max,
            lag_max_ns: None,
            shared: Mutex::default(),
            is_over: AtomicBool::new(false),
        }
    }

    /// The same; the archive is late if it lacks something older than `lag_max`.
    #[must_use]
    pub fn with_lag_max(self, lag_max: Option<Duration>) -> Trail {
        let ns = |it: Duration| i64::try_from(it.as_nanos()).unwrap_or(i64::MAX);
        Trail {
            lag_max_ns: lag_max.map(ns),
            ..self
        }
    }

    /// The archive has everything before `archived`, and all that was durable at `has_all_of`.
    pub fn note_archived(&self, archived: Option<Position>, has_all_of: Time) {
        let mut shared = self.shared();
        shared.archived = archived;
        shared.has_all_of = shared.has_all_of.max(Some(has_all_of));
    }

    /// True if the archive lacks something older than the limit: the loss of this machine would
    /// cost more than was agreed.
    #[must_use]
    pub fn is_late(&self, now: Time) -> bool {
        let Some(lag_max_ns) = self.lag_max_ns else {
            return false;
        };
        let mut shared = self.shared();
        if shared
            .archived
            .is_some_and(|at| shared.bytes_after(at) == 0)
        {
            shared.has_all_of = shared.has_all_of.max(Some(now));
        }
        now.since(*shared.has_all_of.get_or_insert(now)) > lag_max_ns
    }

    /// True if there are archives, and each lacks something older than the limit: one that has
    /// everything is enough, so that a store that is away refuses no puts while another is well.
    #[must_use]
    pub fn are_late(trails: &[Arc<Trail>], now: Time) -> bool {
        // Each is asked: one that has told nothing yet is late from the first question on.
        let late = trails.iter().filter(|trail| trail.is_late(now)).count();
        late > 0 && late == trails.len()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log is about to be let go: what is in its directory may change in other ways from now on.
    /// What was durable can still be read here.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// True after [`Trail::end`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// The log's id; `None` before a log has been attached.
    #[must_use]
    pub fn log(&self) -> Option<LogId> {
        self.shared().log
    }

    /// Everything before this position is on stable storage.
    #[must_use]
    pub fn durable(&self) -> Position {
        self.shared().durable
    }

    /// The durable bytes that follow `at` in its segment or, at the end of a sealed one, in the
    /// next. `None`: the segment is not held, or `at` lies beyond its end.
    #[must_use]
    pub fn after(&self, at: Position) -> Option<Stretch> {
        let shared = self.shared();
        let index = shared
            .segments
            .iter()
            .position(|held| held.id == at.segment())?;
        let held = &shared.segments[index];
        let stretch = shared.stretch(held, at.offset())?;
        match shared.segments.get(index + 1) {
            Some(next) if held.end == Some(at.offset()) => shared.stretch(next, 0),
            _ => Some(stretch),
        }
    }

    /// The bytes from `from` to `to`, which lie in one segment. `None`: it is not held, or they are
    /// not all durable.
    ///
    /// # Errors
    /// If the disk does not return them.
    pub fn read(&self, from: Position, to: Position) -> io::Result<Option<Vec<u8>>> {
        let stretch = {
            let shared = self.shared();
            let mut held = shared.segments.iter();
            let held = held.find(|held| held.id == from.segment());
            held.and_then(|held| shared.stretch(held, from.offset()))
        };
        match stretch {
            Some(stretch) if stretch.to.segment() == to.segment() && to <= stretch.to => {
                let size = to.offset().saturating_sub(from.offset());
                stretch.read(size).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Durable bytes after `at`, over all segments that are held.
    #[must_use]
    pub fn bytes_after(&self, at: Position) -> u64 {
        self.shared().bytes_after(at)
    }

    /// Segments before `segment` are not needed any more.
    pub fn release(&self, segment: SegmentId) {
        let mut shared = self.shared();
        while shared.segments.len() > 1 && shared.segments[0].id < segment {
            shared.segments.pop_front();
        }
    }

    /// Begin with these segments, the open one last.
    pub(super) fn attach(
        &self,
        log: LogId,
        segments: impl Iterator<Item = (SegmentId, Arc<dyn File>, u32)>,
        durable: Position,
    ) {
        let held = |(id, file, end)| Held {
            id,
            file,
            end: Some(end),
        };
        let mut shared = self.shared();
        shared.log = Some(log);
        shared.durable = durable;
        shared.segments = segments.map(held).collect();
        if let Some(open) = shared.segments.back_mut() {
            open.end = None;
        }
        shared.bound(self.hold_max);
    }

    /// The open segment ends at `end`, and `next` follows it.
    pub(super) fn rotate(&self, end: u32, next: SegmentId, file: Arc<dyn File>) {
        let mut shared = self.shared();
        if let Some(open) = shared.segments.back_mut() {
            open.end = Some(end);
        }
        shared.segments.push_back(Held {
            id: next,
            file,
            end: None,
        });
        shared.bound(self.hold_max);
    }

    /// Everything before this position is on stable storage.
    pub(super) fn set_durable(&self, durable: Position) {
        self.shared().durable = durable;
    }
}

impl Shared {
    fn bytes_after(&self, at: Position) -> u64 {
        let bytes = |held: &Held| -> u64 {
            let from = match held.id == at.segment() {
                true => at.offset(),
                false => 0,
            };
            let stretch = self.stretch(held, from);
            stretch.map_or(0, |it| u64::from(it.to.offset() - it.from.offset()))
        };
        let later = |held: &&Held| held.id >= at.segment();
        self.segments.iter().filter(later).map(bytes).sum()
    }

    /// The durable part of a segment from `from` on; `None` if it ends before that.
    fn stretch(&self, held: &Held, from: u32) -> Option<Stretch> {
        let durable = match self.durable.segment().cmp(&held.id) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => self.durable.offset(),
            std::cmp::Ordering::Greater => u32::MAX,
        };
        let to = held.end.unwrap_or(u32::MAX).min(durable);
        // A segment of which nothing is durable yet has nothing to give.
        let is_begun = from <= to || from == 0;
        is_begun.then(|| Stretch {
            file: held.file.clone(),
            from: Position::new(held.id, from),
            to: Position::new(held.id, to.max(from)),
        })
    }

    fn bound(&mut self, hold_max: u64) {
        let sealed = |held: &Held| held.end.map_or(0, u64::from);
        let mut bytes: u64 = self.segments.iter().map(sealed).sum();
        // The open segment, and the one before it: at its end stands a chain that lacks nothing.
        while self.segments.len() > 2
            && (bytes > hold_max || self.segments.len() > HELD_SEGMENTS_MAX + 1)
        {
            if let Some(gone) = self.segments.pop_front() {
                bytes -= sealed(&gone);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::log::sync::SyncPolicy;
    use crate::storage::log::sync::tests::{finish_syncs, log, write};

    const SIZE: u32 = 64 << 10;

    fn rotate(log: &mut crate::storage::Log) {
        let spare = log.reserve(SIZE, SIZE).unwrap().unwrap();
        log.spares.add(spare);
        assert!(log.rotate(0, 1).unwrap());
    }

    #[test]
    fn what_is_durable_is_read_across_segments_and_nothing_beyond_it() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Interval(50));
        let trail = Arc::new(Trail::new(1 << 20));
        log.publish_to([trail.clone()]);
        let begun = trail.durable();
        let written = write(&mut log);
        assert_eq!(trail.after(begun).unwrap().to, begun, "it is not synced");
        log.start_sync().unwrap();
        finish_syncs(&mut log);
        assert_eq!(trail.after(begun).unwrap().to, written);
        rotate(&mut log);
        finish_syncs(&mut log);
        let sealed = trail.after(begun).unwrap().to;
        assert!(sealed > written && sealed.segment() == begun.segment());
        let next = trail.after(sealed).unwrap();
        assert_eq!(next.from, Position::new(SegmentId(2), 0));
        assert!(trail.read(begun, sealed).unwrap().is_some());
        assert_eq!(
            trail
                .read(begun, Position::new(SegmentId(1), SIZE))
                .unwrap(),
            None
        );
    }

    #[test]
    fn of_two_archives_both_must_be_late_before_puts_are_refused() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Always);
        let lag_max = Some(Duration::from_nanos(30));
        let trails = [(); 2].map(|()| Arc::new(Trail::new(1 << 20).with_lag_max(lag_max)));
        assert!(!log.is_archive_late(Time(1000)), "there is no archive");
        log.publish_to(trails.iter().cloned());
        assert!(!log.is_archive_late(Time(1000)) && log.is_archive_late(Time(1031)));
        trails[1].note_archived(Some(trails[1].durable()), Time(1031));
        assert!(
            !log.is_archive_late(Time(5000)),
            "the second has everything"
        );
        let written = write(&mut log);
        finish_syncs(&mut log);
        assert!(trails.iter().all(|trail| trail.durable() == written));
        assert!(!log.is_archive_late(Time(5030)) && log.is_archive_late(Time(5031)));
        rotate(&mut log);
        assert_eq!(trails[0].durable(), trails[1].durable());
        log.publish_to([trails[1].clone()]);
        trails[1].note_archived(Some(trails[1].durable()), Time(5032));
        assert!(!log.is_archive_late(Time(9000)), "the first is not asked");
    }

    /// The bound on what is held is one for both: they hold the same files, the newest.
    #[test]
    fn two_archives_hold_the_same_files_of_which_the_one_with_more_has_all() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Always);
        let trails = [1 << 20, 1].map(|hold_max| Arc::new(Trail::new(hold_max)));
        log.publish_to(trails.iter().cloned());
        for _ in 0..5 {
            write(&mut log);
            finish_syncs(&mut log);
            rotate(&mut log);
        }
        let files = trails.each_ref().map(|trail| {
            let shared = trail.shared();
            let files = shared.segments.iter().map(|it| it.file.clone());
            files.collect::<Vec<_>>()
        });
        assert_eq!((files[0].len(), files[1].len()), (6, 2));
        for (one, other) in files[0].iter().rev().zip(files[1].iter().rev()) {
            assert!(Arc::ptr_eq(one, other));
        }
        // What one has archived it lets go; the other one goes on with what it holds.
        trails[1].release(trails[1].durable().segment());
        assert!(trails[0].after(Position::new(SegmentId(1), 0)).is_some());
    }

    #[test]
    fn g19_an_archive_is_late_by_the_age_of_what_it_lacks_and_not_while_it_lacks_nothing() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Always);
        let trail = Trail::new(1 << 20).with_lag_max(Some(Duration::from_nanos(30)));
        let trail = Arc::new(trail);
        log.publish_to([trail.clone()]);
        // The writer has not begun: from the first question on.
        assert!(!trail.is_late(Time(1000)) && !trail.is_late(Time(1030)));
        assert!(trail.is_late(Time(1031)));
        trail.note_archived(Some(trail.durable()), Time(1031));
        // An idle log is never late, however long no one asks.
        assert!(!trail.is_late(Time(5000)));
        write(&mut log);
        finish_syncs(&mut log);
        assert!(!trail.is_late(Time(5030)));
        assert!(trail.is_late(Time(5031)));
        // A gap: it lacks everything since.
        trail.note_archived(None, Time(5020));
        assert!(!trail.is_late(Time(5050)) && trail.is_late(Time(5051)));
        assert!(!Trail::new(1).is_late(Time(i64::MAX)));
    }

    #[test]
    fn what_is_held_is_bounded_and_the_oldest_is_let_go() {
        let mut log = log(&SimFs::new(1), SyncPolicy::Always);
        let trail = Arc::new(Trail::new(1));
        log.publish_to([trail.clone()]);
        let begun = trail.durable();
        write(&mut log);
        finish_syncs(&mut log);
        assert!(trail.after(begun).is_some());
        rotate(&mut log);
        assert!(trail.after(begun).is_some(), "one is held in any case");
        write(&mut log);
        finish_syncs(&mut log);
        rotate(&mut log);
        assert!(trail.after(begun).is_none());
    }
}
