//! A flag that this server does not have: in words, why not, or which flag it is here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A part that a build may lack: the beginning of the names of its flags, its cargo feature, and
/// whether this build has it.
type Part = (&'static str, &'static str, bool);

const PARTS: [Part; 6] = [
    ("--archive", "archive", cfg!(feature = "archive")),
    ("--follow", "archive", cfg!(feature = "archive")),
    ("--restore-if-empty", "archive", cfg!(feature = "archive")),
    ("--cluster", "cluster", cfg!(feature = "cluster")),
    ("--http", "http", cfg!(feature = "http")),
    ("--tls", "tls", cfg!(feature = "tls")),
];

/// Names that other servers give to flags, and the flag here: beanstalkd's letters have no names.
const SAME: [(&str, &str); 18] = [
    ("--address", "-l ADDR"),
    ("--bind", "-l ADDR"),
    ("--binlog", "-b DIR"),
    ("--data", "-b DIR"),
    ("--data-dir", "-b DIR"),
    ("--dir", "-b DIR"),
    ("--host", "-l ADDR"),
    ("--listen", "-l ADDR"),
    ("--in-memory", "--memory"),
    ("--no-log", "--memory"),
    ("--max-job-size", "-z BYTES"),
    ("--maxmemory", "--max-memory BYTES"),
    ("--port", "-p PORT"),
    ("--segment-size", "-s BYTES"),
    ("--sync", "-f MS or -F"),
    ("--fsync", "-f MS or -F"),
    ("--user", "-u USER"),
    ("--verbose", "-V"),
];

/// What to say of a flag that there is not, if there is more to say than the name of a similar one.
fn words(flag: &str, parts: &[Part]) -> Option<String> {
    let part = parts.iter().find(|(name, ..)| flag.starts_with(name));
    if let Some((_, feature, false)) = part {
        return Some(format!(
            "this bsd-server has no {flag}: it was built without the feature `{feature}`; use the \
             server of the packages, or build one with `cargo build --release`, which has every feature"
        ));
    }
    let same = SAME.iter().find(|(name, _)| *name == flag);
    same.map(|(_, here)| {
        format!("there is no {flag}; bsd-server has {here}, as in `bsd-server -h`")
    })
}

/// The same error, with better words if there are any.
pub(super) fn explained(error: clap::Error) -> clap::Error {
    let flag = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(flag))) => flag,
        _ => return error,
    };
    match words(flag, &PARTS) {
        Some(words) => super::command().error(ErrorKind::UnknownArgument, format!("{words}\n")),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> String {
        super::super::Config::parse(line.split_whitespace())
            .unwrap_err()
            .text()
    }

    #[test]
    fn g43_a_flag_that_a_build_lacks_says_so_and_how_to_have_it() {
        let lacking = PARTS.map(|(name, feature, _)| (name, feature, false));
        for (flag, feature) in [
            ("--archive-interval", "archive"),
            ("--follow", "archive"),
            ("--cluster-init", "cluster"),
            ("--http", "http"),
            ("--tls-cert", "tls"),
        ] {
            let words = words(flag, &lacking).unwrap();
            let begin = format!(
                "this bsd-server has no {flag}: it was built without the feature `{feature}`; "
            );
            assert!(words.starts_with(&begin), "{words}");
        }
        for (name, feature, is_built_in) in PARTS {
            let said = said(&format!("bsd-server {name}-nonsense"));
            let names_it = said.contains(&format!("built without the feature `{feature}`"));
            assert_eq!(names_it, !is_built_in, "{said}");
        }
    }

    #[cfg(all(
        feature = "archive",
        feature = "cluster",
        feature = "http",
        feature = "tls"
    ))]
    #[test]
    fn g43_every_flag_of_a_part_is_known_as_one_of_it() {
        use clap::{Args, Command};
        let parts = [
            (
                "archive",
                super::super::ArchiveArgs::augment_args(Command::new("a")),
            ),
            (
                "cluster",
                super::super::ClusterArgs::augment_args(Command::new("c")),
            ),
            (
                "http",
                super::super::HttpArgs::augment_args(Command::new("h")),
            ),
            (
                "tls",
                super::super::TlsArgs::augment_args(Command::new("t")),
            ),
        ];
        for (feature, command) in parts {
            for flag in command.get_arguments().filter_map(|arg| arg.get_long()) {
                let flag = format!("--{flag}");
                let of = PARTS.iter().find(|(name, ..)| flag.starts_with(name));
                assert_eq!(of.map(|(_, feature, _)| *feature), Some(feature), "{flag}");
            }
        }
    }

    #[test]
    fn g44_a_name_that_other_servers_have_for_a_flag_leads_to_the_flag() {
        let said = said("bsd-server --port 11400");
        assert!(
            said.contains("there is no --port; bsd-server has -p PORT"),
            "{said}"
        );
        let command = super::super::command();
        for (name, here) in SAME {
            let is_flag = |long: &str| {
                command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(long))
            };
            assert!(!is_flag(&name[2..]), "{name} is a flag");
            for flag in here
                .split(" or ")
                .map(|flag| flag.split(' ').next().unwrap())
            {
                let there = match flag.strip_prefix("--") {
                    Some(long) => is_flag(long),
                    None => command
                        .get_arguments()
                        .any(|arg| arg.get_short() == flag.chars().nth(1)),
                };
                assert!(there, "{flag}");
            }
        }
    }
}
