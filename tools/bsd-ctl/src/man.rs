//! `bsd-ctl man`: manual pages and shell completions. Not in the program that people run: see the
//! feature `man`.
//!
//! The completions of clap know words of the command line alone. Names of tubes come from the server:
//! a small function of each shell asks `bsd-ctl tubes --names`, where a tube is expected.

use std::path::{Path, PathBuf};

use bsd::storage::RealFs;
use bsd::storage::disk::{Fs, OpenMode, read_exact_at, write_all_at};
use bsd_tools::man;
use clap::{Args, Command, CommandFactory};

use crate::{Cli, Context, EXIT_OK, Failure};

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Where to write them: man1/, bash/, zsh/ and fish/ are made there
    out_dir: PathBuf,
}

/// Write all pages and completions, over those that are there, and print their names.
pub(crate) fn run(args: &ManArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let failed = |error: std::io::Error| Failure::Input(error.to_string());
    let program = Cli::command();
    let written = man::write(&program, man::COMMANDS, &args.out_dir).map_err(failed)?;
    let commands = commands_of_tubes(&program);
    type Make<'a> = &'a dyn Fn(&str) -> String;
    let scripts: [(&str, Make<'_>); 3] = [
        ("bash/bsd-ctl", &|script| {
            format!("{script}{}", bash(&commands))
        }),
        ("zsh/_bsd-ctl", &zsh),
        ("fish/bsd-ctl.fish", &|script| {
            format!("{script}{}", fish(&commands))
        }),
    ];
    for (path, make) in scripts {
        rewrite(&args.out_dir.join(path), make).map_err(failed)?;
    }
    for path in written {
        writeln!(context.out, "{}", path.display())?;
    }
    Ok(EXIT_OK)
}

/// Commands whose first words are tubes, as `mail` of `bsd-ctl jobs mail` is.
fn commands_of_tubes(program: &Command) -> Vec<String> {
    let is_of_tubes = |command: &&Command| {
        let mut words = command.get_positionals();
        words.next().is_some_and(|word| {
            let names = word.get_value_names().unwrap_or_default();
            let id = word.get_id().as_str();
            let is_tube = names.iter().any(|name| name.contains("TUBE"));
            is_tube || ["tube", "pattern", "name"].contains(&id)
        })
    };
    let commands = program.get_subcommands().filter(|it| !it.is_hide_set());
    let commands = commands.filter(is_of_tubes);
    commands.map(|it| it.get_name().to_owned()).collect()
}

/// The function of clap is asked first. A tube may be called `$(reboot)`: nothing of a name is
/// executed.
fn bash(commands: &[String]) -> String {
    let commands = commands.iter().map(|command| format!("{command}:*"));
    let commands = commands.collect::<Vec<_>>().join(" | ");
    format!(
        r#"
# Names of tubes, where one is expected.
_bsd_ctl_and_tubes() {{
    _bsd__ctl "$@"
    local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" tubes
    [[ $COMP_CWORD -gt 1 && $word != -* ]] || return 0
    case "$command:${{COMP_WORDS[COMP_CWORD-1]}}" in
        move:--to) return 0 ;;
        *:--tube | *:--to) COMPREPLY=() ;;
        *:-*) return 0 ;;
        {commands}) ;;
        *) return 0 ;;
    esac
    tubes="$(bsd-ctl tubes --names --timeout 2 2>/dev/null)" || return 0
    local tube
    while IFS= read -r tube; do
        [[ $tube == "$word"* ]] && COMPREPLY+=("$(printf %q "$tube")")
    done <<<"$tubes"
    return 0
}}
complete -F _bsd_ctl_and_tubes -o bashdefault -o default bsd-ctl
"#
    )
}

/// In place of files, which clap's script offers.
fn zsh(script: &str) -> String {
    let is_of_tubes = |line: &&str| {
        let line = line.trim_start_matches('\'').trim_start_matches(':');
        let word = line.split(" -- ").next().unwrap_or_default();
        let is_word = ["tube", "tubes", "pattern", "from", "to"].contains(&word);
        is_word || line.starts_with("name -- The tube:") || line.contains(":TUBE")
    };
    let lines = script.lines().map(|line| match is_of_tubes(&line) {
        true => line.replace(":_default'", ":_bsd_ctl_tubes'"),
        false => line.to_owned(),
    });
    let script = lines.collect::<Vec<_>>().join("\n") + "\n";
    let function = r#"
# Names of tubes, where one is expected.
_bsd_ctl_tubes() {
    local -a tubes
    tubes=(${(f)"$(bsd-ctl tubes --names --timeout 2 2>/dev/null)"})
    compadd -a tubes
}

"#;
    let end = "\nif [ \"$funcstack[1]\" =";
    script.replacen(end, &format!("{function}{}", &end[1..]), 1)
}

fn fish(commands: &[String]) -> String {
    let commands = commands.join(" ");
    format!(
        r#"
# Names of tubes, where one is expected.
function __bsd_ctl_tubes
    bsd-ctl tubes --names --timeout 2 2>/dev/null
end
complete -c bsd-ctl -n "__fish_seen_subcommand_from {commands}" -f -a "(__bsd_ctl_tubes)"
complete -c bsd-ctl -n "__fish_seen_subcommand_from delete bury tail" -l tube -x -a "(__bsd_ctl_tubes)"
"#
    )
}

/// Replace a script by what is made of it, which is longer.
fn rewrite(path: &Path, make: &dyn Fn(&str) -> String) -> std::io::Result<()> {
    let file = RealFs.open(path, OpenMode::ReadWrite)?;
    let size = usize::try_from(file.size()?).map_err(std::io::Error::other)?;
    let mut script = vec![0; size];
    read_exact_at(&*file, &mut script, 0)?;
    let script = String::from_utf8(script).map_err(std::io::Error::other)?;
    write_all_at(&*file, make(&script).as_bytes(), 0)
}
