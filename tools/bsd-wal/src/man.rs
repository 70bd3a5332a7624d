//! `bsd-wal man`: manual pages and shell completions of `bsd-server` and `bsd-wal`. Not in the
//! released programs: see the feature `man`.

use std::io::Write;
use std::path::PathBuf;

use bsd_tools::man;
use clap::{Args, CommandFactory};

use crate::{Cli, EXIT_OK, Failure};

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Where to write them: man1/, man8/, bash/, zsh/ and fish/ are created there
    out_dir: PathBuf,
}

/// Write all pages and completions, replace existing ones, and print their names.
pub(crate) fn run(args: &ManArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    for (command, section) in [
        (bsd_server::config::command(), man::DAEMONS),
        (Cli::command(), man::COMMANDS),
    ] {
        let written = man::write(&command, section, &args.out_dir);
        for path in written.map_err(|error| Failure::Refused(error.to_string()))? {
            writeln!(out, "{}", path.display())?;
        }
    }
    Ok(EXIT_OK)
}
