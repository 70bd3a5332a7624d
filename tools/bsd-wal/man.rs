//! `bsd-wal man`: manual pages and shell completions of both programs, from the definitions of
//! their command lines. Not in the programs that people run: see the feature `man`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bsd::storage::RealFs;
use bsd::storage::fs::{Fs, OpenMode, write_all_at};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{Cli, EXIT_OK, Failure};

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Where to write them: man1/, bash/, zsh/ and fish/ are made there
    out_dir: PathBuf,
}

/// Write all pages and completions, over those that are there, and print their names.
pub(crate) fn run(args: &ManArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    for command in [bsd::config::command(), Cli::command()] {
        for (name, bytes) in pages(&command)?.into_iter().chain(completions(&command)) {
            let path = args.out_dir.join(name);
            write_file(&path, &bytes).map_err(|error| {
                Failure::Refused(format!("cannot write {}: {error}", path.display()))
            })?;
            writeln!(out, "{}", path.display())?;
        }
    }
    Ok(EXIT_OK)
}

/// A page for the program, and one for each of its commands that is not hidden.
fn pages(program: &clap::Command) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let name = program.get_name().to_owned();
    let commands = program.get_subcommands().filter(|it| !it.is_hide_set());
    let commands: Vec<clap::Command> = commands
        .map(|command| {
            // A page's name is one word.
            let page = format!("{name}-{}", command.get_name());
            let usage = format!("{name} {}", command.get_name());
            command.clone().name(page).bin_name(usage)
        })
        .collect();
    [program]
        .into_iter()
        .chain(commands)
        .map(|command| {
            let man = clap_mangen::Man::new(command);
            let mut page = Vec::new();
            man.render(&mut page)?;
            Ok((Path::new("man1").join(man.get_filename()), page))
        })
        .collect()
}

fn completions(program: &clap::Command) -> Vec<(PathBuf, Vec<u8>)> {
    let name = program.get_name().to_owned();
    let shells = [
        (Shell::Bash, format!("bash/{name}")),
        (Shell::Zsh, format!("zsh/_{name}")),
        (Shell::Fish, format!("fish/{name}.fish")),
    ];
    let generate = |(shell, path)| {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut program.clone(), &name, &mut script);
        (PathBuf::from(path), script)
    };
    shells.into_iter().map(generate).collect()
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    RealFs.create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    match RealFs.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    write_all_at(&*RealFs.open(path, OpenMode::CreateNew)?, bytes, 0)
}
