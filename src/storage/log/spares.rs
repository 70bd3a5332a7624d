//! Space set aside before it is needed: for the next segment, and for compaction.
//!
//! On a full disk the log must have room to delete, release and bury, and compaction must have room
//! to free space. So both are reserved ahead, as files named `spare-N` without content. A spare
//! becomes a segment by getting a header and a name. One that an interrupted start left is used
//! again, not leaked.
//!
//! Invariant: zeros are written only to a spare that is in the list. To take it out, wait until
//! that has ended.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ErrorClass;
use crate::storage::disk::errno::is_full;
use crate::storage::disk::zeros::is_file_of_zeros;
use crate::storage::disk::{File, Fs, OpenMode, write_all_at};
use crate::storage::error::StoreError;
use crate::storage::format::SEGMENT_SIZE_MIN;
use crate::storage::format::names::{FIRST_SPARE, SPARE_NUMBER_END, parse_spare_name, spare_name};
use crate::storage::log::zeros::Zeros;

/// Bytes of a spare for a log that has almost nothing left.
pub(crate) const LAST_RESORT_SIZE: u32 = 16 << 10;

/// Names that are tried at most for one spare: strangers may have some of them.
const NAMES_MAX: u32 = 1000;

/// A file of reserved space.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn File>,
    pub(crate) size: u32,
    /// Zeros were written over all of it, or were tried.
    zeroed: bool,
}

impl Spare {
    fn new(path: PathBuf, file: Arc<dyn File>, size: u32) -> Spare {
        Spare {
            path,
            file,
            size,
            zeroed: false,
        }
    }
}

/// The spare files of a log.
#[derive(Debug)]
pub(crate) struct Spares {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    next_number: u32,
    /// For the segments to come, in the order in which they are taken.
    segments: Vec<Spare>,
    /// The zeros being written over the first of them.
    zeros: Option<Zeros>,
    /// For the next output of compaction.
    pub(crate) compaction: Option<Spare>,
    /// Of the log of one of several servers: for entries that find the disk full. See `kept`.
    pub(super) kept: Option<Spare>,
    /// The disk was full when it was last asked.
    was_full: bool,
    /// The class of the error when there last was no room.
    lacking: ErrorClass,
}

impl Spares {
    /// Find the spares that an earlier run left in `dir`; those that are too small are left alone.
    /// Changes nothing: see [`Spares::renew`].
    pub(crate) fn open(fs: Arc<dyn Fs>, dir: &Path, names: &[(String, u64)]) -> io::Result<Spares> {
        let mut segments = Vec::new();
        let mut next_number = FIRST_SPARE + 1;
        for (name, size) in names {
            let Some(number) = parse_spare_name(name) else {
                continue;
            };
            next_number = next_number.max(number + 1);
            let size = u32::try_from(*size).unwrap_or(0);
            if size >= SEGMENT_SIZE_MIN {
                let path = dir.join(name);
                let file = fs.open(&path, OpenMode::ReadWrite)?;
                segments.push(Spare::new(path, file, size));
            }
        }
        // The smallest first: compaction takes from the end, where the largest are.
        segments.sort_by_key(|spare| spare.size);
        Ok(Spares {
            fs,
            dir: dir.to_owned(),
            next_number,
            segments,
            zeros: None,
            compaction: None,
            kept: None,
            was_full: false,
            lacking: ErrorClass::Full,
        })
    }

    /// Make the spares of an earlier run zeros again. A crash may have left a segment without a
    /// name, or the output of a compaction, with data in it. After the end of a log such data would
    /// look like a torn tail.
    pub(crate) fn renew(&mut self) -> io::Result<()> {
        for spare in std::mem::take(&mut self.segments) {
            if renew(&spare)? {
                self.segments.push(spare);
            } else {
                let Spare { path, file, .. } = spare;
                drop(file);
                self.fs.remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// The sizes of the spares for the segments to come.
    pub(crate) fn sizes(&self) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator + '_ {
        self.segments.iter().map(|spare| spare.size)
    }

    /// Bytes of the spares for the segments to come.
    pub(crate) fn bytes(&self) -> u64 {
        self.sizes().map(u64::from).sum()
    }

    /// The number of spares for the segments to come.
    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    /// A file that no name leads to: it is gone when it is closed.
    pub(super) fn create_nameless(&mut self) -> io::Result<Arc<dyn File>> {
        let (path, file) = self.create_file()?;
        self.fs.remove_file(&path)?;
        Ok(file)
    }

    /// Add a spare for the segments to come.
    pub(crate) fn add(&mut self, spare: Spare) {
        self.segments.push(spare);
    }

    /// Take the first spare that fits, for the next segment.
    pub(crate) fn take(&mut self, fits: impl Fn(u32) -> bool) -> Option<Spare> {
        let index = self.segments.iter().position(|spare| fits(spare.size))?;
        Some(self.take_at(index))
    }

    /// Take the spare that would be used last.
    pub(crate) fn take_last(&mut self) -> Option<Spare> {
        let index = self.segments.len().checked_sub(1)?;
        Some(self.take_at(index))
    }

    /// Take the spare at `index`, in the order of [`Spares::sizes`].
    pub(crate) fn take_at(&mut self, index: usize) -> Spare {
        if index == 0 {
            self.stop_zeros();
        }
        self.segments.remove(index)
    }

    /// Write zeros over the next segment in the background, until `part` of `whole` of it is done.
    pub(crate) fn write_zeros_ahead(&mut self, part: u64, whole: u64) {
        let Some(spare) = self.segments.first_mut().filter(|spare| !spare.zeroed) else {
            return;
        };
        if self.zeros.is_none() {
            match Zeros::begin(spare.file.clone(), spare.size) {
                Ok(zeros) => self.zeros = Some(zeros),
                Err(error) => {
                    spare.zeroed = true;
                    tracing::warn!("could not start a thread to write zeros ahead: {error}");
                }
            }
        }
        if let Some(zeros) = &self.zeros {
            zeros.go_on_to((u64::from(spare.size) * part.min(whole) / whole) as u32);
        }
        if self.zeros.as_ref().is_some_and(Zeros::is_finished) {
            spare.zeroed = true;
            self.stop_zeros();
        }
    }

    fn stop_zeros(&mut self) {
        // On copy-on-write storage zeros need room of their own. Without zeros, syncs take longer.
        if let Some(Err(error)) = self.zeros.take().map(Zeros::stop) {
            let dir = self.dir.display();
            tracing::warn!("could not write zeros ahead in {dir}: {error}");
        }
    }

    /// Reserve a file of `size` bytes, or of at least `size_min` if the disk has less. `Ok(None)`:
    /// the disk is full.
    pub(crate) fn reserve(
        &mut self,
        size: u32,
        size_min: u32,
    ) -> Result<Option<Spare>, StoreError> {
        match self.create(size, size_min) {
            Ok(spare) => {
                self.was_full = false;
                Ok(Some(spare))
            }
            Err(error) if is_full(&error) => {
                self.was_full = true;
                self.note_lacking(&error);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.lacking = ErrorClass::Full;
                Ok(None)
            }
            Err(error) => Err(StoreError::new("set space aside in", &self.dir, &error)),
        }
    }

    /// Which room was lacking when there last was none: [`ErrorClass::Full`] or
    /// [`ErrorClass::Descriptors`].
    pub(crate) fn lacking(&self) -> ErrorClass {
        self.lacking
    }

    pub(super) fn note_lacking(&mut self, error: &io::Error) {
        self.lacking = ErrorClass::of(error);
    }

    /// Set space aside for the first segment of a log: `size` bytes, or half of what the disk has. A
    /// segment that is full of dead records can only be left if there is room for another. What an
    /// earlier start left is given back: that one did not finish.
    pub(crate) fn start_over(&mut self, size: u32) -> io::Result<()> {
        self.release_all()?;
        self.next_number = FIRST_SPARE;
        let mut spare = self.create(size.saturating_mul(2), SEGMENT_SIZE_MIN + LAST_RESORT_SIZE)?;
        spare.size = size.min((spare.size / 2).max(SEGMENT_SIZE_MIN));
        spare.file.set_size(spare.size.into())?;
        self.segments.push(spare);
        Ok(())
    }

    fn create(&mut self, size: u32, size_min: u32) -> io::Result<Spare> {
        let (path, file) = self.create_file()?;
        match allocate_most(&*file, size, size_min, self.was_full) {
            Ok(size) => Ok(Spare::new(path, file, size)),
            Err(error) => {
                drop(file);
                // The space that it may hold is needed elsewhere. If it cannot be removed now, the
                // next start uses it.
                let _ = self.fs.remove_file(&path);
                Err(error)
            }
        }
    }

    /// A new file under the next unused name.
    fn create_file(&mut self) -> io::Result<(PathBuf, Arc<dyn File>)> {
        let mut tries = 0;
        loop {
            let path = self.dir.join(spare_name(self.next_number));
            self.next_number = match self.next_number + 1 {
                SPARE_NUMBER_END => FIRST_SPARE + 1,
                next => next,
            };
            tries += 1;
            match self.fs.open(&path, OpenMode::CreateNew) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < NAMES_MAX => {
                    let path = path.display();
                    tracing::warn!("{path} is not bsd's: it is left alone, another name is taken");
                }
                created => return Ok((path, created?)),
            }
        }
    }

    /// Reserve `size` bytes for the next output of compaction, or `size_min` if the disk has less;
    /// else keep what there was.
    pub(crate) fn grow_compaction(&mut self, size: u32, size_min: u32) -> Result<(), StoreError> {
        let Some(spare) = &mut self.compaction else {
            return Ok(());
        };
        for wanted in [size, size_min] {
            if spare.size >= wanted {
                return Ok(());
            }
            let grown = match spare.file.allocate(wanted.into()) {
                Err(error) if is_full(&error) => {
                    self.lacking = ErrorClass::of(&error);
                    // Some file systems keep the part that they could reserve.
                    spare.file.set_size(spare.size.into())
                }
                grown => grown.map(|()| spare.size = wanted),
            };
            grown.map_err(|error| StoreError::new("set space aside in", &self.dir, &error))?;
        }
        Ok(())
    }

    /// Reduce the room for the next output of compaction to `size` bytes.
    pub(crate) fn cut_compaction(&mut self, size: u32) -> Result<(), StoreError> {
        match &mut self.compaction {
            Some(spare) if spare.size > size => cut(&self.dir, spare, size),
            _ => Ok(()),
        }
    }

    /// Cut the spare that would be used last to at most `size` bytes.
    pub(crate) fn cut_last(&mut self, size: u32) -> Result<(), StoreError> {
        if self.segments.len() == 1 {
            self.stop_zeros();
        }
        match self.segments.last_mut() {
            Some(spare) => cut(&self.dir, spare, size),
            None => Ok(()),
        }
    }

    /// Give up a spare that was written to.
    pub(crate) fn discard(&self, spare: Spare) {
        let Spare { path, file, .. } = spare;
        drop(file);
        if let Err(error) = self.fs.remove_file(&path) {
            tracing::warn!("could not remove {}: {error}", path.display());
        }
    }

    /// Write into space that was reserved. `true`: that took everything that was set aside.
    pub(super) fn write(&mut self, file: &dyn File, bytes: &[u8], at: u32) -> io::Result<bool> {
        match write_all_at(file, bytes, at.into()) {
            // The disk is full although space was reserved: the storage copies on write. Nothing of this
            // write was acknowledged and no sync has failed, so it may be repeated after the space set
            // aside is freed.
            Err(error) if is_full(&error) => match self.release_all()? {
                true => write_all_at(file, bytes, at.into()).map(|()| true),
                false => Err(error),
            },
            written => written.map(|()| false),
        }
    }

    /// Give up every spare: on storage where reserving has no effect, this makes the space set
    /// aside usable. Returns whether there was any.
    pub(crate) fn release_all(&mut self) -> io::Result<bool> {
        let mut released = false;
        self.stop_zeros();
        let apart = self.compaction.take().into_iter().chain(self.kept.take());
        for spare in self.segments.drain(..).chain(apart) {
            let Spare { path, file, .. } = spare;
            drop(file);
            self.fs.remove_file(&path)?;
            released = true;
        }
        Ok(released)
    }
}

fn cut(dir: &Path, spare: &mut Spare, size: u32) -> Result<(), StoreError> {
    spare
        .file
        .set_size(size.into())
        .map_err(|error| StoreError::new("give back space in", dir, &error))?;
    spare.size = size;
    Ok(())
}

/// Reserve as much of `size` bytes as there is, by halves, but at least `size_min`. If the disk was
/// full, `size_min` is tried first: usually that is the only request.
fn allocate_most(file: &dyn File, size: u32, size_min: u32, was_full: bool) -> io::Result<u32> {
    if was_full {
        file.allocate(size_min.into())?;
    }
    let mut wanted = size;
    loop {
        match file.allocate(wanted.into()) {
            Ok(()) => return Ok(wanted),
            Err(error) if is_full(&error) && wanted > size_min => {
                // Some file systems keep the part that they could reserve.
                file.set_size(0)?;
                wanted = (wanted / 2).max(size_min);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Make a spare of an earlier run zeros again. `false`: there is no room for that any more.
fn renew(spare: &Spare) -> io::Result<bool> {
    // Space is taken also for what reads as zeros: a copy of the directory may have turned zeros
    // into holes.
    let size = u64::from(spare.size);
    let renewed = spare.file.zero(size).and_then(|is_done| match is_done {
        true => Ok(()),
        false => renew_by_reading(spare),
    });
    match renewed {
        Ok(()) => Ok(true),
        Err(error) if is_full(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The same where a file system cannot zero a range: read all of it, and give its space back for a
/// moment if something was written there.
fn renew_by_reading(spare: &Spare) -> io::Result<()> {
    // A power cut may have kept any page of what was written, not necessarily the first.
    if !is_file_of_zeros(&*spare.file, spare.size.into())? {
        spare.file.set_size(0)?;
    }
    spare.file.allocate(u64::from(spare.size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::{Errno, Fault, OpKind};
    use crate::storage::disk::zeros::is_zeros;
    use crate::storage::disk::{ReadFile, ReadFs};

    /// A file that holds up each write until `may_go_on` allows it.
    #[derive(Debug)]
    struct Gate {
        file: Arc<dyn File>,
        has_begun: std::sync::mpsc::Sender<()>,
        may_go_on: std::sync::Mutex<std::sync::mpsc::Receiver<()>>,
        events: Arc<std::sync::Mutex<Vec<&'static str>>>,
    }

    impl ReadFile for Gate {
        fn size(&self) -> io::Result<u64> {
            self.file.size()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.file.read_at(buf, offset)
        }
    }

    impl File for Gate {
        fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
            self.has_begun.send(()).unwrap();
            self.may_go_on.lock().unwrap().recv().unwrap();
            self.events.lock().unwrap().push("zeros are written");
            self.file.write_at(buf, offset)
        }
        fn sync(&self) -> io::Result<()> {
            self.file.sync()
        }
        fn set_size(&self, size: u64) -> io::Result<()> {
            self.file.set_size(size)
        }
        fn allocate(&self, size: u64) -> io::Result<()> {
            self.file.allocate(size)
        }
    }

    /// The write continues when the thread was told to stop, or otherwise when the spare was handed
    /// out: so the order of the two does not depend on chance.
    #[test]
    fn t1_a_spare_is_handed_out_only_when_no_zeros_are_being_written_to_it() {
        use std::sync::Mutex;
        use std::sync::mpsc::channel;
        let disk = SimFs::new(1);
        let file = disk.open(Path::new("/spare-0"), OpenMode::CreateNew);
        let events = Arc::new(Mutex::new(Vec::new()));
        let ((has_begun, begun), (go_on, may_go_on)) = (channel(), channel());
        let gate = Gate {
            file: file.unwrap(),
            has_begun,
            may_go_on: Mutex::new(may_go_on),
            events: events.clone(),
        };
        let mut spares = Spares::open(Arc::new(disk), Path::new("/"), &[]).unwrap();
        let path = PathBuf::from("/spare-0");
        // One piece is one write.
        let size = 4 * SEGMENT_SIZE_MIN;
        spares.add(Spare::new(path, Arc::new(gate), size));
        spares.write_zeros_ahead(1, 1);
        begun.recv().unwrap();
        let is_told_to_stop = spares.zeros.as_ref().unwrap().is_told_to_stop();
        let seen = events.clone();
        let opener = std::thread::spawn(move || {
            while !is_told_to_stop() && seen.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            go_on.send(()).unwrap();
        });
        let taken = spares.take(|_| true);
        events.lock().unwrap().push("the spare is handed out");
        opener.join().unwrap();
        assert!(taken.is_some());
        drop(spares);
        let expected = ["zeros are written", "the spare is handed out"];
        assert_eq!(*events.lock().unwrap(), expected);
    }

    #[test]
    fn f14_a_stranger_with_the_name_of_a_spare_is_left_alone_and_the_next_name_taken() {
        use crate::storage::RealFs;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        RealFs.create_dir_all(&at("spare-0")).unwrap();
        std::os::unix::fs::symlink(at("gone"), at("spare-1")).unwrap();
        std::os::unix::net::UnixListener::bind(at("spare-2")).unwrap();
        let mut spares = Spares::open(Arc::new(RealFs), dir.path(), &[]).unwrap();
        for number in 3..5 {
            let spare = spares.reserve(SEGMENT_SIZE_MIN, SEGMENT_SIZE_MIN).unwrap();
            assert_eq!(spare.unwrap().path, at(&spare_name(number)));
        }
        let names = RealFs.read_dir(dir.path()).unwrap();
        assert_eq!(names.iter().filter(|entry| !entry.is_file).count(), 3);
    }

    #[test]
    fn f14_with_more_strangers_than_names_are_tried_there_is_no_room() {
        let disk = SimFs::new(1);
        let dir = Path::new("/spares");
        for number in 1..=NAMES_MAX {
            disk.create_dir_all(&dir.join(spare_name(number))).unwrap();
        }
        let mut spares = Spares::open(Arc::new(disk.clone()), dir, &[]).unwrap();
        assert!(spares.reserve(1 << 20, 1 << 20).unwrap().is_none());
        assert!(spares.reserve(1 << 20, 1 << 20).unwrap().is_some());
    }

    #[test]
    fn on_a_disk_that_is_nearly_full_less_is_reserved_by_halves_down_to_the_least() {
        let disk = SimFs::new(1);
        let dir = Path::new("/spares");
        disk.create_dir_all(dir).unwrap();
        let reserve = |free: u64| {
            disk.set_quota(Some(disk.used() + free));
            let mut spares = Spares::open(Arc::new(disk.clone()), dir, &[]).unwrap();
            let spare = spares.reserve(1 << 20, 10_000).unwrap();
            let size = spare.as_ref().map(|spare| spare.size);
            if let Some(spare) = spare {
                disk.remove(&spare.path).unwrap();
            }
            size
        };
        assert_eq!(reserve(2 << 20), Some(1 << 20));
        assert_eq!(reserve((1 << 19) + 1), Some(1 << 19));
        assert_eq!(reserve((1 << 16) - 1), Some(1 << 15));
        assert_eq!(reserve(12 << 10), Some(10_000));
        assert_eq!(reserve(4 << 10), None);
    }

    /// Two spares of an earlier run: one unused, one that a crash took out of use.
    fn left_behind(disk: &SimFs) -> Spares {
        let dir = Path::new("/spares");
        disk.create_dir_all(dir).unwrap();
        let size = SEGMENT_SIZE_MIN;
        disk.write(dir.join("spare-0"), &vec![0; size as usize])
            .unwrap();
        // A power cut may keep what was written last, and not the first page.
        let mut bytes = vec![0; size as usize];
        bytes[size as usize - 1] = 7;
        disk.write(dir.join("spare-1"), &bytes).unwrap();
        let names = ["spare-0", "spare-1"].map(|name| (name.to_owned(), u64::from(size)));
        Spares::open(Arc::new(disk.clone()), dir, &names).unwrap()
    }

    #[test]
    fn f36_space_that_an_earlier_run_set_aside_is_kept_and_is_zeros_to_its_end() {
        let disk = SimFs::new(1);
        let mut spares = left_behind(&disk);
        // On a full disk, space that is given up may be gone for good.
        disk.set_quota(Some(disk.used()));
        spares.renew().unwrap();
        let sizes: Vec<u32> = spares.sizes().collect();
        assert_eq!(sizes, [SEGMENT_SIZE_MIN; 2]);
        for name in ["/spares/spare-0", "/spares/spare-1"] {
            let bytes = disk.read(name).unwrap();
            assert_eq!(bytes.len(), SEGMENT_SIZE_MIN as usize);
            assert!(is_zeros(&bytes), "{name}");
        }
        assert_eq!(disk.used(), 2 * u64::from(SEGMENT_SIZE_MIN));
    }

    #[test]
    fn g45_a_spare_of_an_earlier_run_is_read_only_where_a_range_cannot_be_zeroed() {
        let disk = SimFs::new(1);
        let mut spares = left_behind(&disk);
        disk.inject(Fault::fail(OpKind::Read, Errno::IO));
        spares.renew().unwrap();
        let refused = renew_by_reading(&spares.segments[0]);
        assert_eq!(Errno::from_io_error(&refused.unwrap_err()), Some(Errno::IO));
    }

    #[test]
    fn f36_a_spare_becomes_zeros_also_where_a_range_cannot_be_zeroed() {
        let disk = SimFs::new(1);
        let spares = left_behind(&disk);
        for spare in &spares.segments {
            renew_by_reading(spare).unwrap();
            let bytes = disk.read(&spare.path).unwrap();
            assert_eq!(bytes, vec![0; SEGMENT_SIZE_MIN as usize]);
        }
    }

    #[test]
    fn space_that_cannot_be_made_zeros_again_is_given_up() {
        let disk = SimFs::new(1);
        let mut spares = left_behind(&disk);
        disk.inject(Fault::fail(OpKind::Allocate, Errno::NOSPC).on("/spares/spare-1"));
        spares.renew().unwrap();
        assert_eq!(spares.len(), 1);
        assert_eq!(disk.names("/spares").unwrap(), ["spare-0"]);
    }
}
