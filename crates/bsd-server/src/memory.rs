//! The allocator: jemalloc on Linux, elsewhere the system's own (FreeBSD's is jemalloc, too).
//!
//! On Linux, unused memory is returned to the system soon after clients have left.

#[cfg(target_os = "linux")]
use tikv_jemalloc_ctl::{Access, AsName, background_thread};

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How long unused memory is kept for reuse, milliseconds.
#[cfg(target_os = "linux")]
const KEPT_MS: isize = 1000;

/// From now on unused pages are returned to the system within seconds, by a thread of the
/// allocator, because an idle server neither allocates nor frees memory.
#[cfg(target_os = "linux")]
pub(crate) fn give_back() {
    let set = || -> tikv_jemalloc_ctl::Result<()> {
        // The arenas created from now on, and the existing one of the first thread.
        b"arenas.dirty_decay_ms\0".name().write(KEPT_MS)?;
        b"arena.0.dirty_decay_ms\0".name().write(KEPT_MS)?;
        background_thread::write(true)
    };
    if let Err(error) = set() {
        tracing::warn!("memory that is free may stay with the server: the allocator says {error}");
    }
}

/// The system's allocator does as it does.
#[cfg(not(target_os = "linux"))]
pub(crate) fn give_back() {}
