//! The disk of a machine: what of the ledger is on it after a crash.

use std::path::Path;
use std::sync::Arc;

use crate::ledger::{Base, Identity, Ledger, Sizes};
use bsd::random::Random;
use bsd::storage::SimFs;
use bsd::storage::disk::Fs;
use bsd::storage::disk::sim::Crash;

/// The root: nothing needs more, and every path is short.
const DIR: &str = "/";

/// Small, so that a history has many files.
const SIZES: Sizes = Sizes {
    file: 4 << 10,
    recent: 512,
    frame: 512,
};

pub(super) struct Disk {
    fs: SimFs,
    random: Random,
    /// A new ledger, until the machine starts for the first time.
    new: Option<Ledger>,
}

impl Disk {
    /// A disk with a new ledger.
    pub(super) fn new(seed: u64, identity: Identity, base: Base) -> Disk {
        let fs = SimFs::new(seed);
        let made = Ledger::create_with(&arc(&fs), Path::new(DIR), identity, base, SIZES);
        Disk {
            fs,
            random: Random::new(seed),
            new: Some(made.unwrap()),
        }
    }

    /// The machine dies at this operation, counted from now.
    pub(super) fn crash_in(&self, operations: u64) {
        if !self.is_crashed() {
            self.fs.crash_at(self.fs.operations() + operations);
        }
    }

    pub(super) fn crash_now(&self) {
        self.fs.crash_at(0);
    }

    pub(super) fn no_crash(&self) {
        if !self.is_crashed() {
            self.fs.crash_at(u64::MAX);
        }
    }

    pub(super) fn is_crashed(&self) -> bool {
        self.fs.is_crashed()
    }

    pub(super) fn set_full(&self, is_full: bool) {
        self.fs.set_quota(is_full.then(|| self.fs.used()));
    }

    /// The machine starts: the ledger, as the crash left it. `None`: the disk is full.
    pub(super) fn start(&mut self) -> Option<Ledger> {
        self.new.take().or_else(|| {
            self.restart();
            self.open()
        })
    }

    fn restart(&mut self) {
        let seed = self.random.next();
        let how = self.random.pick(&[
            Crash::DropUnsynced,
            Crash::KeepAll,
            Crash::Random { seed },
            Crash::Random { seed },
        ]);
        self.fs = self.fs.crash_image(how);
    }

    fn open(&self) -> Option<Ledger> {
        match Ledger::open_with(&arc(&self.fs), Path::new(DIR), SIZES) {
            Ok(ledger) => Some(ledger.unwrap()),
            Err(bsd::storage::OpenError::Io(_)) => None,
            Err(error) => panic!("the ledger does not open: {error}"),
        }
    }
}

fn arc(fs: &SimFs) -> Arc<dyn Fs> {
    Arc::new(fs.clone())
}
