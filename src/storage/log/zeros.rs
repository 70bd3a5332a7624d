//! Writing zeros ahead, over a future segment file, on a thread of its own.
//!
//! Later writes then overwrite existing blocks, and a sync has only the data to write. The zeros
//! use the same disk as the log: they are written in small pieces, each synced, and no faster than
//! the log needs them. So no sync of the log waits for many of them, and an idle server writes
//! none.
//!
//! Invariant: nothing else writes to the file while this exists. [`Zeros::stop`] and dropping it
//! return when the thread has ended.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;

use crate::storage::disk::{File, write_all_at};

/// Size of the pieces in which zeros are written and synced, bytes.
const PIECE: u32 = 256 << 10;

/// Zeros that are being written.
#[derive(Debug)]
pub(crate) struct Zeros {
    order: Arc<Order>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// Work for the thread.
#[derive(Debug, Default)]
struct Order {
    /// Write up to this offset.
    wanted: AtomicU32,
    stop: AtomicBool,
}

impl Zeros {
    /// Prepare to write zeros over the first `size` bytes of a file, when [`Zeros::go_on_to`] asks
    /// for them.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn begin(file: Arc<dyn File>, size: u32) -> io::Result<Zeros> {
        let order = Arc::new(Order::default());
        let orders = order.clone();
        let thread = std::thread::Builder::new()
            .name("bsd-zeros".into())
            .spawn(move || write_zeros(&*file, size, &orders))?;
        Ok(Zeros {
            order,
            thread: Some(thread),
        })
    }

    /// Request zeros up to this offset; they are written in the background.
    pub(crate) fn go_on_to(&self, offset: u32) {
        let before = self.order.wanted.fetch_max(offset, Ordering::Relaxed);
        if before / PIECE < offset / PIECE
            && let Some(thread) = &self.thread
        {
            thread.thread().unpark();
        }
    }

    /// Whether the thread has been told to stop, for tests that hold it up until then.
    #[cfg(test)]
    pub(crate) fn is_told_to_stop(&self) -> impl Fn() -> bool + Send + use<> {
        let order = self.order.clone();
        move || order.stop.load(Ordering::Relaxed)
    }

    /// True if all zeros are written, or writing failed.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stop writing. On return the file is free, and the zeros written so far are durable.
    ///
    /// # Errors
    /// If zeros could not be written or synced. The file still reads as zeros.
    pub(crate) fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        self.order.stop.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        let panicked = |_| {
            Err(io::Error::other(
                "the thread that writes zeros has panicked",
            ))
        };
        thread.join().unwrap_or_else(panicked)
    }
}

impl Drop for Zeros {
    fn drop(&mut self) {
        // The file is no longer used, or is used without zeros.
        let _ = self.end();
    }
}

fn write_zeros(file: &dyn File, size: u32, order: &Order) -> io::Result<()> {
    let zeros = vec![0; PIECE.min(size) as usize];
    let mut at = 0;
    while at < size {
        if order.stop.load(Ordering::Relaxed) {
            break;
        }
        let piece = PIECE.min(size - at);
        if order.wanted.load(Ordering::Relaxed).min(size) < at + piece {
            std::thread::park();
            continue;
        }
        write_all_at(file, &zeros[..piece as usize], at.into())?;
        file.sync()?;
        at += piece;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};
    use crate::storage::disk::{Fs, OpenMode, RealFs, read_exact_at};

    fn noise(dir: &Path, size: u32) -> Arc<dyn File> {
        let file = RealFs.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        write_all_at(&*file, &vec![0xa5; size as usize], 0).unwrap();
        file
    }

    fn zeros_at_the_start(file: &dyn File, size: u32) -> usize {
        let mut bytes = vec![0; size as usize];
        read_exact_at(file, &mut bytes, 0).unwrap();
        bytes.iter().take_while(|byte| **byte == 0).count()
    }

    fn wait_until_finished(zeros: &Zeros) {
        while !zeros.is_finished() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn all_of_the_file_is_zeros_when_all_was_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let size = 2 * PIECE + 4096;
        let file = noise(dir.path(), size + 1);
        let zeros = Zeros::begin(file.clone(), size).unwrap();
        zeros.go_on_to(u32::MAX);
        wait_until_finished(&zeros);
        zeros.stop().unwrap();
        assert_eq!(zeros_at_the_start(&*file, size + 1), size as usize);
    }

    #[test]
    fn no_more_is_written_than_was_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let size = 4 * PIECE;
        let file = noise(dir.path(), size);
        let zeros = Zeros::begin(file.clone(), size).unwrap();
        zeros.go_on_to(2 * PIECE + 1);
        while zeros_at_the_start(&*file, size) < 2 * PIECE as usize {
            std::thread::yield_now();
        }
        zeros.stop().unwrap();
        assert_eq!(zeros_at_the_start(&*file, size), 2 * PIECE as usize);
    }

    #[test]
    fn nothing_is_written_after_a_stop() {
        let dir = tempfile::tempdir().unwrap();
        let file = noise(dir.path(), PIECE);
        let zeros = Zeros::begin(file.clone(), PIECE).unwrap();
        zeros.stop().unwrap();
        assert_eq!(zeros_at_the_start(&*file, PIECE), 0);
    }

    #[test]
    fn a_failure_is_told_by_stop() {
        let disk = SimFs::new(1);
        let file = disk.open(Path::new("/a"), OpenMode::CreateNew).unwrap();
        disk.inject(Fault::fail(OpKind::Write, Errno::IO));
        let zeros = Zeros::begin(file, PIECE).unwrap();
        zeros.go_on_to(PIECE);
        wait_until_finished(&zeros);
        assert!(zeros.stop().is_err());
    }
}
