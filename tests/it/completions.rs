//! Completions of `bsd-ctl` in the shells that they are for: of commands, of flags, and of tubes, whose
//! names the script asks a running server for.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::ctl::done;
use crate::harness::{Launch, Server, bsd_ctl, program, skip, wait_for};

/// What is typed behind `bsd-ctl`, and the only word that its last one can become.
const CASES: [(&str, &str); 12] = [
    ("unpa", "unpause"),
    ("schedule lis", "list"),
    ("jobs --conta", "--contains"),
    ("policy set --htt", "--http"),
    ("why mail-", "mail-letters"),
    ("top mail-", "mail-letters"),
    ("jobs --state ready mail-", "mail-letters"),
    ("pause od", "odd$(reboot)"),
    ("delete --tube mail-", "mail-letters"),
    ("tail --tube mail-", "mail-letters"),
    ("move mail-letters spa", "spare"),
    ("policy show mail-", "mail-letters"),
];

/// Lines of which no word is a tube.
const WITHOUT_TUBES: [&str; 4] = [
    "job mail-",
    "schedule show mail-",
    "schedule pause mail-",
    "holder mail-",
];

/// A server with tubes, and a directory with the scripts and with `bsd-ctl` alone on its path.
struct Shells {
    server: Server,
    dir: TempDir,
}

impl Shells {
    /// `None`: this `bsd-ctl` was built without its pages.
    fn start() -> Option<Shells> {
        let dir = TempDir::new().unwrap();
        let made = Command::new(bsd_ctl())
            .arg("man")
            .arg(dir.path())
            .output()
            .unwrap();
        if !made.status.success() {
            skip("bsd-ctl was built without the feature man");
            return None;
        }
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        symlink(bsd_ctl(), bin.join("bsd-ctl")).unwrap();
        let server = Launch::bsd().memory().start();
        for tube in ["mail-letters", "spare", "odd$(reboot)"] {
            done(&server, &format!("put {tube} x"));
        }
        Some(Shells { server, dir })
    }

    /// Where the script of this shell is.
    fn script(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A shell without anyone's settings; what it says on its standard output.
    fn run(&self, shell: &Path, args: &[&str]) -> String {
        let path = std::env::var("PATH").unwrap();
        let bin = self.dir.path().join("bin");
        let mut child = Command::new(shell)
            .args(args)
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", self.dir.path())
            .env("XDG_CONFIG_HOME", self.dir.path())
            .env("TERM", "dumb")
            .env("BSD_CTL_ADDRESS", self.server.address().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if wait_for(&mut child).is_none() {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{shell:?} {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

fn typed(line: &str) -> String {
    format!("bsd-ctl {line}")
}

#[test]
fn fish_completes_commands_flags_and_tubes() {
    let Some(fish) = program("fish") else {
        return skip("fish is not installed");
    };
    let Some(shells) = Shells::start() else {
        return;
    };
    let script = shells.script("fish/bsd-ctl.fish");
    let offered = |line: &str| {
        let ask = "source $argv[1]; complete -C $argv[2]";
        let args = [
            "--no-config",
            "-c",
            ask,
            script.to_str().unwrap(),
            &typed(line),
        ];
        let said = shells.run(&fish, &args);
        let words = said.lines().filter_map(|line| line.split('\t').next());
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    for (line, word) in CASES {
        assert_eq!(offered(line), [word], "{line}");
    }
    for line in WITHOUT_TUBES {
        assert!(
            !offered(line).iter().any(|it| it.contains("letters")),
            "{line}"
        );
    }
}

#[test]
fn bash_completes_commands_flags_and_tubes() {
    let Some(bash) = program("bash") else {
        return skip("bash is not installed");
    };
    let Some(shells) = Shells::start() else {
        return;
    };
    let script = shells.script("bash/bsd-ctl");
    let ask = r#"source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        _bsd_ctl_and_tubes bsd-ctl "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let offered = |line: &str| {
        let line = typed(line);
        let mut args = vec!["--norc", "-c", ask, "bash", script.to_str().unwrap()];
        args.extend(line.split(' '));
        let said = shells.run(&bash, &args);
        said.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (line, word) in CASES {
        // A name is offered as it is typed.
        let word = word.replace("$(", r"\$\(").replace(")", r"\)");
        assert_eq!(offered(line), [word], "{line}");
    }
    for line in WITHOUT_TUBES {
        assert!(
            !offered(line).iter().any(|it| it.contains("letters")),
            "{line}"
        );
    }
}

/// Lines are typed into a zsh at a terminal of its own. Its Tab completes the word, and tells the line
/// that has become of it.
const ZSH: &str = r#"
zmodload zsh/zpty
dir=$1; shift
mkfifo $dir/told
exec 3<>$dir/told
zpty typed zsh -f -i
zpty -w typed "fpath=($dir/zsh \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w typed "whole() { zle complete-word; print -r -- \"\$BUFFER\" >$dir/told; BUFFER= }"
zpty -w typed "zle -N whole; bindkey '^I' whole; print begun >$dir/told"
read -r -u 3 line
for line in "$@"; do
    zpty -w -n typed "$line"$'\t'
    read -r -u 3 line
    print -r -- "$line"
done
zpty -d typed
"#;

#[test]
fn zsh_completes_commands_flags_and_tubes() {
    let Some(zsh) = program("zsh") else {
        return skip("zsh is not installed");
    };
    let Some(shells) = Shells::start() else {
        return;
    };
    let lines = CASES.iter().map(|(line, _)| *line).chain(WITHOUT_TUBES);
    let lines: Vec<String> = lines.map(typed).collect();
    let mut args = vec!["-f", "-c", ZSH, "zsh", shells.dir.path().to_str().unwrap()];
    args.extend(lines.iter().map(String::as_str));
    let said = shells.run(&zsh, &args);
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said.len(), lines.len(), "{said:?}");
    for ((line, word), said) in CASES.iter().zip(&said) {
        let (before, _) = line.rsplit_once(' ').unwrap_or(("", line));
        let word = word.replace("$(", r"\$\(").replace(")", r"\)");
        let whole = typed(format!("{before} {word}").trim_start());
        assert_eq!(said.trim_end().trim_end_matches('='), whole, "{line}");
    }
    for (line, said) in WITHOUT_TUBES.iter().zip(&said[CASES.len()..]) {
        assert!(!said.contains("letters"), "{line}: {said}");
    }
}
