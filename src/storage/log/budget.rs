//! Memory of the log about room: when the disk was full, what compaction needs, what is refused.
//! `room` decides by it.

use crate::shortage::Shortage;

/// A disk that was full is not asked again for this many nanoseconds, unless something was freed.
const ASK_AGAIN_NS: u64 = 100_000_000;

/// Known facts about the available room.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// Wall time of the last call.
    pub(crate) now_ns: u64,
    /// When the disk was last full, and for how many bytes.
    pub(super) full: Option<(u64, u32)>,
    /// The live bytes of the sealed file that had most of them, at the last look.
    pub(crate) most_alive: u64,
    /// Bytes that the current compaction works in.
    pub(crate) work_size: u32,
    /// Whether puts or updates are refused.
    pub(crate) shortage: Shortage,
    /// Whether deletes are refused: what was set aside for them is not there.
    pub(super) deletes: Shortage,
    /// Bytes that had died when the log last found nothing that could make way.
    pub(crate) no_way_at: Option<u64>,
    /// How often a compaction was over, or a segment was left for want of room.
    pub(super) ways_made: u64,
    /// Bytes that records may still take without a look at the room there is, see
    /// [`Log::grant_credit`](super::Log::grant_credit). 0 when anything else uses room.
    pub(super) credit: u64,
}

impl Budget {
    pub(super) fn is_known_full(&self, size_min: u32) -> bool {
        self.full.is_some_and(|(at, size)| {
            size_min >= size && self.now_ns >= at && self.now_ns - at < ASK_AGAIN_NS
        })
    }

    /// Note that space was given back to the disk: it may have room now.
    pub(crate) fn note_freed(&mut self) {
        self.full = None;
        self.no_way_at = None;
    }

    /// Note that a compaction is over, or that the open segment is another one.
    pub(super) fn note_way(&mut self) {
        self.ways_made += 1;
        self.note_freed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise puts were refused for as long as the clock went back.
    #[test]
    fn t24_a_full_disk_is_asked_again_after_the_clock_was_set_back() {
        let mut budget = Budget {
            now_ns: 1_000 * ASK_AGAIN_NS,
            ..Budget::default()
        };
        budget.full = Some((budget.now_ns, 100));
        assert!(budget.is_known_full(100));
        assert!(!budget.is_known_full(99), "less may fit");
        budget.now_ns -= 1;
        assert!(!budget.is_known_full(100), "the clock was set back");
        budget.now_ns += ASK_AGAIN_NS;
        assert!(budget.is_known_full(100));
        budget.now_ns += 1;
        assert!(!budget.is_known_full(100), "it was long ago");
    }
}
