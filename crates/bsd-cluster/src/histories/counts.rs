//! How often things happened.

use std::ops::AddAssign;

/// Counts of events, to see that every kind happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) acknowledged: u64,
    pub(super) reads: u64,
    pub(super) leads: u64,
    pub(super) crashes: u64,
    pub(super) crashes_at_sync: u64,
    pub(super) full: u64,
    pub(super) lost_disks: u64,
    pub(super) snapshots: u64,
    pub(super) changes: u64,
    pub(super) joint: u64,
    pub(super) removed: u64,
    pub(super) refused: u64,
    pub(super) cut_installs: u64,
}

impl Counts {
    fn list(&self) -> [u64; 12] {
        let Counts {
            acknowledged,
            reads,
            leads,
            crashes,
            crashes_at_sync,
            full,
            ..
        } = *self;
        let Counts {
            lost_disks,
            snapshots,
            changes,
            joint,
            removed,
            cut_installs,
            ..
        } = *self;
        [
            acknowledged,
            reads,
            leads,
            crashes,
            crashes_at_sync,
            full,
            lost_disks,
            snapshots,
            changes,
            joint,
            removed,
            cut_installs,
        ]
    }
    pub(super) fn all_seen(&self) -> bool {
        self.list().iter().all(|count| *count > 0)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.acknowledged += other.acknowledged;
        self.reads += other.reads;
        self.leads += other.leads;
        self.crashes += other.crashes;
        self.crashes_at_sync += other.crashes_at_sync;
        self.full += other.full;
        self.lost_disks += other.lost_disks;
        self.snapshots += other.snapshots;
        self.changes += other.changes;
        self.joint += other.joint;
        self.removed += other.removed;
        self.refused += other.refused;
        self.cut_installs += other.cut_installs;
    }
}
