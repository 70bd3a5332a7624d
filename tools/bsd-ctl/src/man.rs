//! `bsd-ctl man`: manual pages and shell completions. Not in the program that people run: see the
//! feature `man`.

use std::path::PathBuf;

use bsd_tools::man;
use clap::{Args, CommandFactory};

use crate::{Cli, Context, EXIT_OK, Failure};

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Where to write them: man1/, bash/, zsh/ and fish/ are made there
    out_dir: PathBuf,
}

/// Write all pages and completions, over those that are there, and print their names.
pub(crate) fn run(args: &ManArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let written = man::write(&Cli::command(), man::COMMANDS, &args.out_dir);
    for path in written.map_err(|error| Failure::Input(error.to_string()))? {
        writeln!(context.out, "{}", path.display())?;
    }
    Ok(EXIT_OK)
}
