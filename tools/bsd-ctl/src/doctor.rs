//! `bsd-ctl doctor`: what is wrong now, why, and what to do.

use std::io::{self, IsTerminal, Write};

use bsd_tools::human::{Look, count, parse_age};
use clap::{Args, ValueEnum};
use serde_json::Value;

use crate::api::ApiArgs;
use crate::{Context, EXIT_NOT_DONE, EXIT_OK, Failure, names, note};

const AFTER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. A paragraph for each finding, the most urgent
first: what is so, and what to do. For cron: the exit code is 0 if nothing is wrong, and 1 if
something is. The oldest ready job of a tube is one of all priorities. It costs the server as much
as a scrape of its metrics, however many jobs it has.

Examples:
  bsd-ctl doctor
  bsd-ctl doctor --least warning
  bsd-ctl doctor --wait-max 1h --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// Only findings that are at least this urgent
    #[arg(long, value_name = "SEVERITY", value_enum, default_value = "notice")]
    least: Least,
    /// A ready job may have been put this long ago: 90, 5m, 2h, 3d
    #[arg(long, value_name = "AGE", value_parser = parse_age, default_value = "15m")]
    wait_max: u64,
    #[command(flatten)]
    api: ApiArgs,
}

/// How urgent a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Least {
    Notice,
    Warning,
    Critical,
}

impl Least {
    const ALL: [(Least, &'static str); 3] = [
        (Least::Critical, "critical"),
        (Least::Warning, "warning"),
        (Least::Notice, "notice"),
    ];

    /// Whether a word of the API names one that is at least as urgent. A later server may have more.
    fn has(self, word: &str) -> bool {
        let known = Least::ALL.iter().find(|(_, it)| *it == word);
        known.is_none_or(|(severity, _)| *severity >= self)
    }
}

pub(crate) fn run(args: &DoctorArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let mut troubles = api.get(&format!("/trouble?wait_max_seconds={}", args.wait_max))?;
    let all = troubles["findings"].take();
    let all = all.as_array().cloned().unwrap_or_default();
    let is_meant = |finding: &Value| args.least.has(finding["severity"].as_str().unwrap_or(""));
    let found: Vec<Value> = all.into_iter().filter(is_meant).collect();
    let more = Least::ALL
        .iter()
        .filter(|(severity, _)| *severity >= args.least);
    let more = more.map(|(_, word)| troubles["more"][*word].as_u64().unwrap_or(0));
    let more: u64 = more.sum();
    let is_well = found.is_empty() && more == 0;
    if context.global.json {
        troubles["findings"] = Value::Array(found);
        writeln!(context.out, "{troubles}")?;
    } else {
        print(&found, more, &troubles, context)?;
    }
    Ok(if is_well { EXIT_OK } else { EXIT_NOT_DONE })
}

fn print(
    found: &[Value],
    more: u64,
    troubles: &Value,
    context: &mut Context<'_>,
) -> io::Result<()> {
    for finding in found {
        write_finding(finding, context.out)?;
    }
    if more > 0 {
        let more = count(more, "finding");
        writeln!(context.out, "{more} more of this kind are not shown")?;
    }
    let tubes = count(troubles["tubes"].as_u64().unwrap_or(0), "tube");
    if found.is_empty() && more == 0 {
        writeln!(context.out, "nothing is wrong; {tubes} looked at")?;
    }
    let left_out = troubles["tubes_left_out"].as_u64().unwrap_or(0);
    if left_out > 0 {
        note(format_args!("{} not looked at", count(left_out, "tube")));
    }
    if troubles["follows"] == true {
        note(match troubles["leader"].as_str() {
            Some(leader) => format!(
                "this member does not lead, and tubes were left out: ask the leader with --http {}",
                names::shown(leader)
            ),
            None => "this member does not lead, and tubes were left out: ask the leader".to_owned(),
        });
    }
    Ok(())
}

/// `warning: tube mail: no workers`, and the paragraph.
fn write_finding(finding: &Value, out: &mut dyn Write) -> io::Result<()> {
    let text = |value: &Value| names::shown(value.as_str().unwrap_or_default());
    let subject = &finding["subject"];
    let subject = match subject["name"].as_str() {
        Some(name) => format!("{} {}", text(&subject["of"]), names::shown(name)),
        None => text(&subject["of"]),
    };
    let severity = text(&finding["severity"]);
    let look = Look::of_stdout();
    let severity = match severity.as_str() {
        "notice" => severity,
        _ => look.bad(severity),
    };
    let kind = text(&finding["kind"]).replace('-', " ");
    writeln!(out, "{severity}: {subject}: {kind}")?;
    write_advice(finding, out)?;
    writeln!(out)
}

/// What is so and what to do, in lines of the terminal.
pub(crate) fn write_advice(finding: &Value, out: &mut dyn Write) -> io::Result<()> {
    let text = |value: &Value| names::shown(value.as_str().unwrap_or_default());
    write_paragraph(&text(&finding["why"]), out)?;
    write_paragraph(&format!("Do: {}", text(&finding["do"])), out)
}

/// A paragraph, two blanks from the left.
pub(crate) fn write_paragraph(text: &str, out: &mut dyn Write) -> io::Result<()> {
    let width = match io::stdout().is_terminal() {
        true => Look::of_stdout().width,
        false => 100,
    };
    for line in lines(text, width.saturating_sub(2).max(20)) {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

/// Lines of at most this width, broken at blanks outside of commands.
fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words(text) {
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
    }
    lines
}

/// The words of a text; what stands in backticks is one, so that it can be copied.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_command = false;
    for letter in text.chars() {
        is_command ^= letter == '`';
        match (letter, words.last_mut()) {
            (' ', _) if !is_command => words.push(String::new()),
            (letter, Some(word)) => word.push(letter),
            (_, None) => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_is_broken_at_blanks_and_not_in_commands() {
        let text = "Then `bsd-ctl kick mail --all` makes them ready again.";
        assert_eq!(
            lines(text, 20),
            [
                "Then",
                "`bsd-ctl kick mail --all`",
                "makes them ready",
                "again."
            ]
        );
        assert_eq!(lines(text, 100), [text]);
    }

    #[test]
    fn the_least_severity_has_those_above_it() {
        assert!(Least::Warning.has("critical") && Least::Warning.has("warning"));
        assert!(!Least::Warning.has("notice") && Least::Notice.has("notice"));
        assert!(Least::Critical.has("a later one"));
    }
}
