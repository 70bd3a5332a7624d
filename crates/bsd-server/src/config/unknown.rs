//! A flag that this server does not have: in words, why not, or which flag it is here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

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

/// Hint about an unknown flag, if there is more to say than the name of a similar one.
fn words(flag: &str) -> Option<String> {
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
    match words(flag) {
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
