//! A directory that is about to be read: without writers, in use, or a backup.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::losses::Loss;
use super::{Inspection, Live, Pass, Progress, RecordPlace, survey};
use crate::storage::convert::backup::{Fault, Manifest, View, is_backup};
use crate::storage::disk::{DirLock, ReadFs};
use crate::storage::error::{Damage, OpenError, too_few_descriptors};
use crate::storage::format::Record;
use crate::storage::read::{Snapshot, Source, walk};

/// Who else may use a directory while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Other readers. If there is a writer, it is not read.
    Shared,
    /// Anyone: no lock is taken, and the state of the log at one instant is read.
    Live,
    /// Like `Shared`; if there is a writer, like `Live`.
    Either,
    /// Like `Live`, but at most 64 files are open at a time. A file that compaction has removed by
    /// the time that it is read counts as damage: see [`Opened::has_lost_files`].
    Sparing,
}

/// A directory that is about to be read.
#[derive(Debug)]
pub struct Opened {
    dir: PathBuf,
    source: Source,
    lock: Option<Box<dyn DirLock>>,
    /// See [`Inspection::live`].
    pub live: Option<Live>,
    /// Nothing else can change it meanwhile.
    pub is_locked: bool,
    /// There may be a writer.
    pub is_in_use: bool,
    /// It is a backup.
    pub is_backup: bool,
    /// The backup's list of files, unless that is damaged.
    pub backup: Option<Manifest>,
    faults: Vec<Fault>,
    /// Files that are opened again when they are read, and where.
    reopened: Option<(Arc<dyn ReadFs>, Snapshot)>,
}

impl Opened {
    /// Open the log or the backup in `dir`. Every byte of a backup is compared with its checksum
    /// here. Changes nothing.
    ///
    /// # Errors
    /// [`OpenError::InUse`]: there is a writer, and `access` does not allow that;
    /// [`OpenError::Foreign`]: an incomplete backup; [`OpenError::Io`]: a disk operation failed.
    pub fn new(
        fs: Arc<dyn ReadFs>,
        dir: &Path,
        access: Access,
        progress: Progress<'_>,
    ) -> Result<Opened, OpenError> {
        let names = fs
            .read_dir(dir)
            .map_err(|error| OpenError::io("list", dir, &error))?;
        if is_backup(&names) {
            return Opened::backup(fs, dir, progress);
        }
        match access {
            Access::Live => return Opened::live(fs, dir),
            Access::Sparing => return Opened::sparing(fs, dir),
            Access::Shared | Access::Either => {}
        }
        let source = Source::new(fs.clone());
        match source.lock(dir) {
            Err(OpenError::InUse { .. }) if access == Access::Either => Opened::live(fs, dir),
            lock => Ok(Opened::of(dir, source, lock?)),
        }
    }

    fn of(dir: &Path, source: Source, lock: Option<Box<dyn DirLock>>) -> Opened {
        Opened {
            dir: dir.to_owned(),
            source,
            is_locked: lock.is_some(),
            lock,
            live: None,
            is_in_use: false,
            is_backup: false,
            backup: None,
            faults: Vec::new(),
            reopened: None,
        }
    }

    /// Like `live`, through a source that opens files again.
    fn sparing(fs: Arc<dyn ReadFs>, dir: &Path) -> Result<Opened, OpenError> {
        let few = Source::strict(fs.clone());
        Ok(match Snapshot::take(&few, dir)? {
            Some(snapshot) => Opened::at(dir, snapshot, Some(fs)),
            None => Opened {
                is_in_use: true,
                ..Opened::of(dir, Source::new(fs), None)
            },
        })
    }

    /// Opened by [`Access::Sparing`], or with too few descriptors for all files, and a file that
    /// was there then is not any more: its content may be missing in the results, and reported
    /// damage may be no damage.
    #[must_use]
    pub fn has_lost_files(&self) -> bool {
        let reopened = self.reopened.as_ref();
        reopened.is_some_and(|(fs, snapshot)| !snapshot.is_whole(&**fs))
    }

    fn live(fs: Arc<dyn ReadFs>, dir: &Path) -> Result<Opened, OpenError> {
        Ok(match Snapshot::take_of_many(fs.clone(), dir)? {
            Some((snapshot, is_reopened)) => Opened::at(dir, snapshot, is_reopened.then_some(fs)),
            // Damaged, or no log: it is read as it is, and the faults are reported.
            None => Opened {
                is_in_use: true,
                ..Opened::of(dir, Source::changing(fs), None)
            },
        })
    }

    /// The log as it was at one instant; `reopened`: where its files are opened again.
    fn at(dir: &Path, snapshot: Snapshot, reopened: Option<Arc<dyn ReadFs>>) -> Opened {
        let (end, durable) = (snapshot.end, snapshot.durable);
        Opened {
            live: Some(Live { end, durable }),
            is_in_use: true,
            reopened: reopened.map(|fs| (fs, snapshot.clone())),
            ..Opened::of(dir, Source::new(Arc::new(snapshot)), None)
        }
    }

    fn backup(
        fs: Arc<dyn ReadFs>,
        dir: &Path,
        progress: Progress<'_>,
    ) -> Result<Opened, OpenError> {
        let lock = Source::new(fs.clone()).lock(dir)?;
        // Again, now that no backup is being taken into it.
        let names = fs
            .read_dir(dir)
            .map_err(|error| OpenError::io("list", dir, &error))?;
        let view = View::read(fs, dir, &names, progress)?;
        let (manifest, faults) = (view.manifest.clone(), view.faults.clone());
        Ok(Opened {
            is_backup: true,
            backup: manifest,
            faults,
            ..Opened::of(dir, Source::new(Arc::new(view)), lock)
        })
    }

    /// Read all of it. The result holds the lock.
    ///
    /// # Errors
    /// Those of [`Inspection::read`], except [`OpenError::InUse`].
    pub fn inspect(mut self, progress: Progress<'_>) -> Result<Inspection, OpenError> {
        let inspection = self.read(progress)?;
        if self.has_lost_files() {
            return Err(too_few_descriptors(&self.dir));
        }
        Ok(Inspection {
            _lock: self.lock.take(),
            ..inspection
        })
    }

    /// The same, without the lock.
    pub(super) fn read(&self, progress: Progress<'_>) -> Result<Inspection, OpenError> {
        let mut inspection = Inspection::read_source(&self.source, &self.dir, progress)?;
        for fault in &self.faults {
            inspection.add(fault);
        }
        Ok(Inspection {
            is_locked: self.is_locked,
            live: self.live,
            is_backup: self.is_backup,
            backup: self.backup.clone(),
            ..inspection
        })
    }

    /// See [`read_records`](super::read_records).
    ///
    /// # Errors
    /// Those of [`Opened::inspect`].
    pub fn records(
        &self,
        visit: &mut dyn FnMut(RecordPlace<'_>, &Record<'_>) -> bool,
        progress: Progress<'_>,
    ) -> Result<Vec<Damage>, OpenError> {
        let mut survey = survey(&self.source, &self.dir)?;
        let mut pass = Pass {
            visit,
            progress,
            is_over: false,
            damages: Vec::new(),
            file: (0, String::new()),
        };
        walk(&self.source, &self.dir, &mut survey, &mut pass)?;
        let mut damages = pass.damages;
        for fault in &self.faults {
            if !damages.iter().any(|damage| damage.file == fault.file) {
                damages.push(Damage::from(fault));
            }
        }
        Ok(damages)
    }
}

impl From<&Fault> for Damage {
    fn from(fault: &Fault) -> Damage {
        Damage::new(fault.file.clone(), None, fault.what.clone())
    }
}

impl Inspection {
    /// Report a changed file of a backup, unless the damage in its records says it all.
    fn add(&mut self, fault: &Fault) {
        if self
            .losses
            .iter()
            .any(|loss| loss.damage.file == fault.file)
        {
            return;
        }
        let torn = self.torn.as_ref().filter(|torn| torn.file == fault.file);
        let is_end_gone = fault.cut != Some(0) || torn.is_some();
        let torn_bytes = torn.map_or(0, |torn| torn.size);
        self.losses.push(Loss {
            damage: Damage::from(fault),
            missing: Vec::new(),
            perhaps_missing: Vec::new(),
            missing_from: is_end_gone.then_some(self.next_id),
            older: Vec::new(),
            again: Vec::new(),
            plain: Vec::new(),
            unknown_bytes: fault.cut.map(|cut| cut + torn_bytes),
        });
    }
}
