//! `bsd-ctl man`: manual pages and shell completions. Not in the program that people run: see the
//! feature `man`.
//!
//! The completions of clap know words of the command line alone. Names of tubes come from the server:
//! a small function of each shell asks `bsd-ctl tubes --names`, where a tube is expected.

use std::path::{Path, PathBuf};

use bsd::storage::RealFs;
use bsd::storage::disk::{Fs, OpenMode, read_exact_at, write_all_at};
use bsd_tools::man;
use clap::{Arg, Args, Command, CommandFactory};

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
    let places = Places::of(&program);
    type Make<'a> = &'a dyn Fn(&str) -> String;
    let scripts: [(&str, Make<'_>); 3] = [
        ("bash/bsd-ctl", &|script| {
            format!("{script}{}", bash(&places))
        }),
        ("zsh/_bsd-ctl", &zsh),
        ("fish/bsd-ctl.fish", &|script| {
            format!("{script}{}", fish(&places))
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

/// Where tubes are expected.
#[derive(Default)]
struct Places {
    /// Commands whose first words are tubes, as `mail` of `bsd-ctl jobs mail` is.
    commands: Vec<String>,
    /// Commands with such commands below them, and these.
    groups: Vec<(String, Vec<String>)>,
    /// Commands, or groups of some, with flags whose values are tubes, and these.
    flags: Vec<(String, String)>,
}

impl Places {
    fn of(program: &Command) -> Places {
        let mut places = Places::default();
        for command in program.get_subcommands().filter(|it| !it.is_hide_set()) {
            let name = command.get_name().to_owned();
            let below: Vec<&Command> = command.get_subcommands().collect();
            for flag in below
                .iter()
                .copied()
                .chain([command])
                .flat_map(flags_of_tubes)
            {
                let flag = (name.clone(), flag);
                if !places.flags.contains(&flag) {
                    places.flags.push(flag);
                }
            }
            let below = below.into_iter().filter(|it| is_of_tubes(it, &[]));
            let below: Vec<String> = below.map(|it| it.get_name().to_owned()).collect();
            if !below.is_empty() {
                places.groups.push((name, below));
            } else if is_of_tubes(command, &["tube", "pattern", "name"]) {
                places.commands.push(name);
            }
        }
        places
    }
}

/// The first word of a command is a tube: its value is called so, or the word has one of these names.
fn is_of_tubes(command: &Command, names: &[&str]) -> bool {
    let first = command.get_positionals().next();
    first.is_some_and(|word| takes_tube(word) || names.contains(&word.get_id().as_str()))
}

fn takes_tube(arg: &Arg) -> bool {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().any(|name| name.contains("TUBE"))
}

fn flags_of_tubes(command: &Command) -> impl Iterator<Item = String> {
    let flags = command.get_opts().filter(|flag| takes_tube(flag));
    flags.filter_map(|flag| Some(flag.get_long()?.to_owned()))
}

/// The function of clap is asked first. A tube may be called `$(reboot)`: nothing of a name is
/// executed.
fn bash(places: &Places) -> String {
    let commands = places.commands.iter().map(|name| format!("{name}:*"));
    let below = |(group, names): &(String, Vec<String>)| -> Vec<String> {
        let names = names.iter().map(|name| format!("'{group} {name}':*"));
        names.collect()
    };
    let commands = commands.chain(places.groups.iter().flat_map(below));
    let commands = commands.collect::<Vec<_>>().join(" | ");
    let groups = places.groups.iter().map(|(group, _)| group.as_str());
    let groups = groups.collect::<Vec<_>>().join(" | ");
    format!(
        r#"
# Names of tubes, where one is expected.
_bsd_ctl_and_tubes() {{
    _bsd__ctl "$@"
    local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" tubes
    [[ $COMP_CWORD -gt 1 && $word != -* ]] || return 0
    case "$command" in
        {groups}) [[ $COMP_CWORD -gt 2 ]] && command+=" ${{COMP_WORDS[2]}}" ;;
    esac
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

fn fish(places: &Places) -> String {
    let mut lines = vec![
        "\n# Names of tubes, where one is expected.".to_owned(),
        "function __bsd_ctl_tubes".to_owned(),
        "    bsd-ctl tubes --names --timeout 2 2>/dev/null".to_owned(),
        "end".to_owned(),
    ];
    let line = |condition: &str, what: &str| {
        format!(
            "complete -c bsd-ctl -n \"__fish_bsd_ctl_using_subcommand {condition}\" {what} -a \
             \"(__bsd_ctl_tubes)\""
        )
    };
    lines.push(line(&places.commands.join(" "), "-f"));
    for (group, names) in &places.groups {
        let names = names.join(" ");
        let condition = format!("{group}; and __fish_seen_subcommand_from {names}");
        lines.push(line(&condition, "-f"));
    }
    for (command, flag) in &places.flags {
        lines.push(line(command, &format!("-l {flag} -x")));
    }
    lines.join("\n") + "\n"
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
