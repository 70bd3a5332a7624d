//! Bodies as separate files, one per job, for programs that cannot read a log.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::storage::disk::{Fs, OpenMode, write_all_at};
use crate::storage::error::OpenError;
use crate::storage::incomplete::make_dir;
use crate::types::JobId;

/// A directory that bodies are written to. Existing files are never changed.
#[derive(Debug)]
pub struct Bodies {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
}

impl Bodies {
    /// Prepare to write to `dir`, which is created if missing.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn begin(fs: Arc<dyn Fs>, dir: &Path) -> Result<Bodies, OpenError> {
        make_dir(&*fs, dir)?;
        Ok(Bodies {
            fs,
            dir: dir.to_owned(),
        })
    }

    /// Write a body to a file named after its job. The content is durable on return, the name after
    /// [`Bodies::finish`].
    ///
    /// # Errors
    /// [`OpenError::Foreign`] if there is a file of that name; otherwise if the disk is full or
    /// fails.
    pub fn write(&mut self, job: JobId, body: &[u8]) -> Result<(), OpenError> {
        let path = self.dir.join(job.to_string());
        let write = || {
            let file = self.fs.open(&path, OpenMode::CreateNew)?;
            write_all_at(&*file, body, 0)?;
            file.sync()
        };
        write().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => OpenError::Foreign {
                path: path.clone(),
                what: "the file is there, and nothing is ever overwritten; move it elsewhere, or \
                       give another directory"
                    .to_owned(),
            },
            _ => OpenError::io("write", &path, &error),
        })
    }

    /// Make the names durable, too.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn finish(self) -> Result<(), OpenError> {
        let parent = match self.dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let sync = |dir: &Path| {
            self.fs
                .sync_dir(dir)
                .map_err(|error| OpenError::io("sync", dir, &error))
        };
        sync(&self.dir)?;
        sync(parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::SimFs;
    use crate::storage::disk::sim::Crash;

    #[test]
    fn bodies_survive_a_power_cut_once_all_are_written() {
        let disk = SimFs::new(1);
        let mut bodies = Bodies::begin(Arc::new(disk.clone()), Path::new("/out")).unwrap();
        bodies.write(JobId(7), b"seven").unwrap();
        bodies.write(JobId(9), b"").unwrap();
        bodies.finish().unwrap();
        let after = disk.crash_image(Crash::DropUnsynced);
        assert_eq!(after.read("/out/7").unwrap(), b"seven");
        assert_eq!(after.read("/out/9").unwrap(), b"");
    }

    #[test]
    fn a_file_that_is_there_is_left_as_it_is() {
        let disk = SimFs::new(1);
        disk.write("/out/7", b"mine").unwrap();
        let mut bodies = Bodies::begin(Arc::new(disk.clone()), Path::new("/out")).unwrap();
        let error = bodies.write(JobId(7), b"seven").unwrap_err();
        assert!(
            error.to_string().contains("give another directory"),
            "{error}"
        );
        assert_eq!(disk.read("/out/7").unwrap(), b"mine");
    }
}
