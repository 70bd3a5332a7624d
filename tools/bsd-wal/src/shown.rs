//! Source of the commands that only show something: a directory that a server may be using, or an
//! archive as it was at one moment, which is restored into a temporary directory first.

use std::path::PathBuf;

use bsd::storage::inspect::Access;
use clap::Args;

use crate::{EXIT_OK, Failure};

#[derive(Args)]
pub(crate) struct Shown {
    /// The data directory, a backup of one, or the URL of an archive: it is restored into a
    /// temporary directory (see TMPDIR), which is removed at the end
    dir: PathBuf,
    /// Read the state at one instant, up to the last write, without a lock: a server may be using
    /// the directory, or may start meanwhile
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    moment: crate::archive::Moment,
}

/// A directory to read. A restored one is there for as long as this lives.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) access: Access,
    /// Its name on a command line.
    pub(crate) name: String,
    /// The exit code of the restore.
    restored: u8,
    _copy: Option<tempfile::TempDir>,
}

impl Place {
    /// The exit code of a command that has ended with `code` on what is here: an archive may lack its
    /// end.
    pub(crate) fn exit_code(&self, code: u8) -> u8 {
        code.max(self.restored)
    }
}

impl Shown {
    pub(crate) fn place(&self) -> Result<Place, Failure> {
        let name = self.moment.on_a_command_line(&self.dir);
        let Some(url) = url(&self.dir) else {
            self.moment.refuse_without_archive(&self.dir)?;
            return Ok(Place {
                dir: self.dir.clone(),
                access: self.access(),
                name,
                restored: EXIT_OK,
                _copy: None,
            });
        };
        if self.live {
            return Err(Failure::Refused(format!(
                "--live reads a directory, and {url} is an archive: leave it out"
            )));
        }
        let (copy, dir, restored) = self.moment.restore(url)?;
        Ok(Place {
            dir,
            access: Access::Shared,
            name,
            restored,
            _copy: Some(copy),
        })
    }

    /// A directory in use is accepted, too.
    fn access(&self) -> Access {
        if self.live {
            Access::Live
        } else {
            Access::Either
        }
    }
}

/// The URL of an archive, where a directory could stand.
fn url(dir: &std::path::Path) -> Option<&str> {
    dir.to_str().filter(|text| text.contains("://"))
}

/// A command that reads a directory was given an archive.
pub(crate) fn refuse_url(dir: &std::path::Path) -> Result<(), Failure> {
    let Some(url) = url(dir) else {
        return Ok(());
    };
    Err(Failure::Refused(format!(
        "{url} is an archive, and this command reads a directory: `bsd-wal archive restore {url} NEW` \
         makes one, `bsd-wal archive verify {url}` checks the archive"
    )))
}
