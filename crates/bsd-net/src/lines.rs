//! Log lines of the server, written to standard error by a separate thread.
//!
//! Standard error may be a pipe that no process reads, a file on a full disk, or closed. None of
//! that may delay a client, stop the server or cause a panic: lines wait in a buffer of bounded
//! size, and lines that do not fit or cannot be written are dropped and counted. When writing works
//! again, the count is reported.
//!
//! `tracing-appender`'s writer is not used: it bounds lines instead of bytes, forgets what it
//! failed to write, and never reports that lines are missing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Bytes of lines that may wait to be written; the same number of bytes may be in the middle of
/// being written.
const WAITING_MAX: usize = 256 << 10;
/// How long no write is tried after a failure, so that a full disk is not tried for every line.
const REST: Duration = Duration::from_millis(100);

/// Lines on their way to a descriptor. Clones of it write to the same descriptor.
#[derive(Debug, Clone)]
pub struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Lines arrived, or were written or dropped.
    changed: Condvar,
    writer: OnceLock<ThreadId>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Lines that were not written and have not been reported yet.
    dropped: u64,
    /// All lines that were not written since the start.
    dropped_in_all: u64,
    is_writing: bool,
}

impl Lines {
    /// Write to `output` from now on. When lines were dropped and writing works again, `say` is
    /// called with their number, on the writing thread; what `say` writes here is never dropped for
    /// lack of room.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        output: impl AsFd + Send + 'static,
        say: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Lines> {
        let lines = Lines(Arc::default());
        let shared = Arc::clone(&lines.0);
        thread::Builder::new()
            .name("bsd-lines".into())
            .spawn(move || shared.write_for_ever(output.as_fd(), &say))?;
        Ok(lines)
    }

    /// How many lines have not been written so far.
    #[must_use]
    pub fn dropped_in_all(&self) -> u64 {
        self.0.lock().dropped_in_all
    }

    /// Wait until all lines so far are written or dropped, but no longer than `patience`.
    pub fn drain(&self, patience: Duration) {
        let is_busy = |state: &mut State| state.is_writing || !state.waiting.is_empty();
        let waited = self
            .0
            .changed
            .wait_timeout_while(self.0.lock(), patience, is_busy);
        // Whatever the result: lines that are left then are lost when the process ends.
        drop(waited);
    }
}

impl io::Write for Lines {
    /// Takes one line with its line feed. Never waits and never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.take(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// The state stays correct through a panic: each change of it is one step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, line: &[u8]) {
        let mut state = self.lock();
        let has_room = state.waiting.len() + line.len() <= WAITING_MAX;
        if has_room || self.writer.get() == Some(&thread::current().id()) {
            state.waiting.extend_from_slice(line);
            self.changed.notify_all();
        } else {
            state.dropped += 1;
            state.dropped_in_all += 1;
        }
    }

    fn write_for_ever(&self, output: BorrowedFd<'_>, say: &dyn Fn(u64)) {
        self.writer.get_or_init(|| thread::current().id());
        let mut batch = Vec::new();
        let mut is_inside_line = false;
        // Dropped lines that the next batch reports.
        let mut said = 0;
        loop {
            self.next_batch(&mut batch);
            if is_inside_line && write_all(output, b"\n") == 1 {
                is_inside_line = false;
            }
            let written = if is_inside_line {
                0
            } else {
                write_all(output, &batch)
            };
            is_inside_line |= batch[..written].last().is_some_and(|byte| *byte != b'\n');
            let lost = count_lines(&batch[written..]);
            if written < batch.len() {
                let mut state = self.lock();
                state.dropped += lost + said;
                state.dropped_in_all += lost;
                drop(state);
                said = 0;
                self.end_batch();
                thread::sleep(REST);
            } else {
                said = std::mem::take(&mut self.lock().dropped);
                if said > 0 {
                    say(said);
                }
                self.end_batch();
            }
        }
    }

    /// Wait for lines and take all of them.
    fn next_batch(&self, batch: &mut Vec<u8>) {
        batch.clear();
        let is_idle = |state: &mut State| state.waiting.is_empty();
        let mut state = self
            .changed
            .wait_while(self.lock(), is_idle)
            .unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        std::mem::swap(batch, &mut state.waiting);
    }

    fn end_batch(&self) {
        self.lock().is_writing = false;
        self.changed.notify_all();
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// Write as much as the descriptor takes, however long that takes; returns how much it took.
fn write_all(output: BorrowedFd<'_>, bytes: &[u8]) -> usize {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::write(output, &bytes[written..]) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Another program made it non-blocking: a terminal is shared.
                let mut waited_for = [PollFd::new(&output, PollFlags::OUT)];
                match poll(&mut waited_for, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
            Err(_) => break,
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn f11_what_is_said_is_written_in_order() {
        let (output, mut reader) = UnixStream::pair().unwrap();
        let mut lines = Lines::start(OwnedFd::from(output), |_| panic!("none is lost")).unwrap();
        let all: String = (0..1000).map(|nth| format!("line {nth}\n")).collect();
        for line in all.split_inclusive('\n') {
            lines.write_all(line.as_bytes()).unwrap();
        }
        let mut found = vec![0; all.len()];
        reader.read_exact(&mut found).unwrap();
        assert!(found == all.as_bytes());
        lines.drain(PATIENCE);
    }

    #[test]
    fn f11_a_reader_that_does_not_read_costs_lines_and_bounded_memory_and_is_told_how_many() {
        let (told, count) = mpsc::channel();
        let (output, mut reader) = UnixStream::pair().unwrap();
        let copy = OwnedFd::from(output.try_clone().unwrap());
        let mut lines = Lines::start(copy, move |dropped| told.send(dropped).unwrap()).unwrap();
        let line = [[b'x'; 99].as_slice(), b"\n"].concat();
        let total = 4 * WAITING_MAX / line.len();
        for _ in 0..total {
            lines.write_all(&line).unwrap();
        }
        assert!(lines.0.lock().waiting.capacity() <= 2 * WAITING_MAX);
        lines.drain(Duration::from_millis(1));
        let read_all = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.len()
        });
        let dropped = count.recv_timeout(PATIENCE).unwrap() as usize;
        lines.drain(PATIENCE);
        output.shutdown(std::net::Shutdown::Both).unwrap();
        let found = read_all.join().unwrap();
        assert_eq!(found, (total - dropped) * line.len());
        assert!(dropped >= total / 4, "{dropped} of {total}");
    }

    #[test]
    fn f11_a_descriptor_that_fails_costs_lines_and_nothing_else() {
        let (output, reader) = UnixStream::pair().unwrap();
        drop(reader);
        let mut lines = Lines::start(OwnedFd::from(output), |_| panic!("nothing works")).unwrap();
        for _ in 0..3 {
            lines.write_all(b"lost\n").unwrap();
            lines.drain(PATIENCE);
        }
        assert_eq!(lines.0.lock().dropped, 3);
        assert_eq!(lines.dropped_in_all(), 3);
    }
}
