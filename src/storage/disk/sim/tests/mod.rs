//! The fault model, item by item.

mod calls;
mod content;
mod faults;
mod names;
mod space;

use super::*;
use crate::storage::disk::{RealFs, read_exact_at, write_all_at};

const PAGE: usize = 4096;
const SECTOR: usize = 512;

fn path(name: &str) -> &Path {
    Path::new(name)
}

fn create(fs: &SimFs, name: &str) -> Arc<dyn File> {
    fs.open(path(name), OpenMode::CreateNew).unwrap()
}

/// A disk with a durable file `/a` of this content, open.
fn disk_with(bytes: &[u8]) -> (SimFs, Arc<dyn File>) {
    let fs = SimFs::new(1);
    fs.write("/a", bytes).unwrap();
    let file = fs.open(path("/a"), OpenMode::ReadWrite).unwrap();
    (fs, file)
}

/// All disks that a crash may leave when each unit is kept or dropped: the content of `/a`.
fn all_subsets(fs: &SimFs, granularity: Granularity) -> Vec<Vec<u8>> {
    let count = fs.unsynced_units(granularity);
    let crash = |kept| Crash::Subset { kept, granularity };
    (0..1 << count)
        .map(|kept| fs.crash_image(crash(kept)).read("/a").unwrap())
        .collect()
}

fn random_images(fs: &SimFs, count: u64) -> impl Iterator<Item = SimFs> {
    (0..count).map(|seed| fs.crash_image(Crash::Random { seed }))
}

fn errno<T: fmt::Debug>(result: io::Result<T>) -> Option<Errno> {
    result
        .unwrap_err()
        .raw_os_error()
        .map(Errno::from_raw_os_error)
}
