//! Manual pages and shell completions of a program, from the definition of its command line. Not in
//! the released programs: see the feature `man`.

use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use bsd::storage::RealFs;
use bsd::storage::disk::{Fs, OpenMode, write_all_at};
use clap::builder::Resettable;
use clap_complete::Shell;
use rustix::fs::Mode;

/// The section of the manual for programs for administrators.
pub const DAEMONS: &str = "8";
/// The section of the manual for programs for everyone.
pub const COMMANDS: &str = "1";

/// Write the pages and completions of `program` into `out_dir`, replacing existing ones: `man1/` or
/// `man8/`, `bash/`, `zsh/` and `fish/`. Returns their paths.
///
/// # Errors
/// One cannot be written: says which, and why.
pub fn write(program: &clap::Command, section: &str, out_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let failed = |what: String| {
        move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
    };
    let pages = pages(program, section).map_err(failed("no page was made".into()))?;
    let files = pages.into_iter().chain(completions(program));
    let write = |(name, bytes): (PathBuf, Vec<u8>)| {
        let path = out_dir.join(name);
        let written = write_file(&path, &bytes);
        written.map_err(failed(format!("cannot write {}", path.display())))?;
        Ok(path)
    };
    files.map(write).collect()
}

/// A page for the program, and one for each of its visible commands, and of theirs.
fn pages(program: &clap::Command, section: &str) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut program = program.clone().disable_help_subcommand(true);
    program.build();
    let name = program.get_name().to_owned();
    let mut commands = Vec::new();
    collect(&program, (&name, &name), &mut commands);
    [program]
        .into_iter()
        .chain(commands)
        .map(|command| page(command, section))
        .collect()
}

/// The visible commands below this one, with the names of their pages, which are one word.
fn collect(command: &clap::Command, (page, usage): (&str, &str), found: &mut Vec<clap::Command>) {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let page = format!("{page}-{}", below.get_name());
        let usage = format!("{usage} {}", below.get_name());
        found.push(below.clone().name(page.clone()).bin_name(usage.clone()));
        collect(below, (&page, &usage), found);
    }
}

fn page(command: clap::Command, section: &str) -> io::Result<(PathBuf, Vec<u8>)> {
    let notes = command.get_after_help().map(ToString::to_string);
    // They would get the heading EXTRA.
    let man = clap_mangen::Man::new(command.after_help(Resettable::Reset)).section(section);
    let mut page = Vec::new();
    man.render(&mut page)?;
    write_notes(&notes.unwrap_or_default(), &mut page)?;
    let name = Path::new(&format!("man{section}")).join(man.get_filename());
    Ok((name, page))
}

/// The text below the options in the help: a section for each paragraph that has a title.
fn write_notes(notes: &str, page: &mut Vec<u8>) -> io::Result<()> {
    for paragraph in notes.split("\n\n") {
        let titled = paragraph
            .split_once(":\n")
            .filter(|(title, _)| !title.contains('\n'));
        let (heading, text) = match titled {
            Some(("Exit codes", text)) => ("EXIT STATUS".to_owned(), text),
            Some((title, text)) => (title.to_uppercase(), text),
            None => ("NOTES".to_owned(), paragraph),
        };
        writeln!(page, ".SH \"{heading}\"\n.nf")?;
        for line in text.lines() {
            // A line that begins with a dot or an apostrophe would be a macro call.
            let line = line.replace('\\', "\\e").replace('-', "\\-");
            writeln!(page, "\\&{line}")?;
        }
        writeln!(page, ".fi")?;
    }
    Ok(())
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
        let script = match shell {
            Shell::Bash => repaired(&script, &name),
            _ => script,
        };
        (PathBuf::from(path), script)
    };
    shells.into_iter().map(generate).collect()
}

/// clap_complete 4.6 writes the `-` in a program's name in two ways into a script for bash, so that
/// no word below a command is completed.
fn repaired(script: &[u8], name: &str) -> Vec<u8> {
    let script = String::from_utf8_lossy(script);
    let (wrong, right) = (name.replace('-', "__subcmd__"), name.replace('-', "__"));
    script.replace(&wrong, &right).into_bytes()
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    RealFs.create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    match RealFs.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    write_all_at(&*RealFs.open(path, OpenMode::CreateNew)?, bytes, 0)?;
    // Unlike the files of a log, these are readable by everyone.
    rustix::fs::chmod(path, Mode::from_raw_mode(0o644))?;
    Ok(())
}
