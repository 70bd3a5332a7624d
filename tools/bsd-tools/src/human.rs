//! What a person types and sees: spans of time, colours, and progress on a terminal in addition to the output.
//!
//! A pipe or a file gets only plain text: colours, block characters and meters are for terminals.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use bsd::UsageError;
use bsd::clock::Clock;
use bsd::human::{Age, Size};
use bsd::types::SECOND_NS;
use clap::builder::styling::{AnsiColor, Style};

/// A time span as typed, in seconds: `90`, `5m`, `2h`, `3d`.
pub fn parse_age(text: &str) -> Result<u64, UsageError> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        unit => return Err(format!("'{unit}' is not one of the units s, m, h and d").into()),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "a number of seconds is expected, or one with s, m, h or d")?;
    number
        .checked_mul(unit)
        .ok_or_else(|| "the number is too large".into())
}

/// A number with the noun that it counts.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Abilities of the standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    colour: bool,
    /// Characters beyond ASCII.
    pub unicode: bool,
    /// Characters of a line.
    pub width: usize,
}

/// The width for output that is no terminal, or does not tell its width.
const WIDTH: usize = 80;

impl Look {
    /// Colours on a terminal that has them, unless `NO_COLOR` is set and not empty
    /// (<https://no-color.org>); block characters if the locale uses UTF-8.
    pub fn of_stdout() -> Look {
        let is_terminal = io::stdout().is_terminal();
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .find_map(variable);
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        let is_dumb = variable("TERM").is_none_or(|term| term == "dumb");
        Look {
            colour: is_terminal
                && !is_dumb
                && std::env::var_os("NO_COLOR").is_none_or(|it| it.is_empty()),
            width: rustix::termios::tcgetwinsize(io::stdout())
                .ok()
                .map(|size| usize::from(size.ws_col))
                .filter(|width| *width > 0)
                .unwrap_or(WIDTH),
            unicode: is_terminal && (locale.contains("utf-8") || locale.contains("utf8")),
        }
    }

    /// Plain text, 80 columns wide.
    pub const PLAIN: Look = Look {
        colour: false,
        unicode: false,
        width: WIDTH,
    };

    /// True if colours are shown.
    #[must_use]
    pub fn has_colour(self) -> bool {
        self.colour
    }

    /// Mark something good.
    pub fn good(self, text: impl fmt::Display) -> String {
        self.paint(AnsiColor::Green.on_default(), text)
    }

    /// Mark something damaged or lost.
    pub fn bad(self, text: impl fmt::Display) -> String {
        self.paint(AnsiColor::Red.on_default().bold(), text)
    }

    fn paint(self, style: Style, text: impl fmt::Display) -> String {
        if self.colour {
            format!("{style}{text}{style:#}")
        } else {
            text.to_string()
        }
    }
}

/// `--quiet` was given: no meters and no notes. One process runs one command.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// The command line, or the exit code where it is wrong (`usage`) or asks for help. That is printed.
pub fn parse<Cli: clap::Parser>(usage: u8) -> Result<Cli, ExitCode> {
    Cli::try_parse().map_err(|error| {
        // If the terminal is gone, there is no one to report it to.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { usage } else { 0 })
    })
}

/// Standard output, or nowhere with `--quiet`: then there are no meters and no notes either.
pub fn output(quiet: bool) -> Box<dyn Write> {
    IS_QUIET.store(quiet, Ordering::Relaxed);
    match quiet {
        true => Box::new(io::sink()),
        false => Box::new(io::BufWriter::new(io::stdout().lock())),
    }
}

/// True if [`output`] was told so.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Shows the progress of a long task: on a terminal, after the first second.
pub struct Meter {
    doing: &'static str,
    /// The unit of counting; `None`: bytes.
    noun: Option<&'static str>,
    clock: Clock,
    /// When to show next; `None`: never.
    next_ns: Option<i64>,
    is_shown: bool,
}

/// The bar of a meter, characters.
const BAR: u64 = 24;

impl Meter {
    /// For a task measured in bytes.
    pub fn start(doing: &'static str) -> Meter {
        Meter::new(doing, None)
    }

    /// For a task measured in items.
    pub fn counting(doing: &'static str, noun: &'static str) -> Meter {
        Meter::new(doing, Some(noun))
    }

    fn new(doing: &'static str, noun: Option<&'static str>) -> Meter {
        let is_watched = io::stderr().is_terminal() && !is_quiet();
        Meter {
            doing,
            noun,
            clock: Clock::start(),
            next_ns: is_watched.then_some(SECOND_NS),
            is_shown: false,
        }
    }

    /// Show that `done` of `all` is done.
    pub fn show(&mut self, done: u64, all: u64) {
        let Some(next_ns) = self.next_ns else { return };
        let now = self.clock.now().mono.0;
        if now < next_ns {
            return;
        }
        self.next_ns = Some(now + SECOND_NS / 4);
        self.is_shown = true;
        eprint!("\r{}\x1b[K", self.line(done.min(all), all, now as u64));
    }

    /// One line, at most 80 characters for realistic numbers.
    fn line(&self, done: u64, all: u64, elapsed_ns: u64) -> String {
        let filled = (done * BAR).checked_div(all).unwrap_or(BAR) as usize;
        let bar = format!("{:<width$}", "#".repeat(filled), width = BAR as usize);
        let percent = (done * 100).checked_div(all).unwrap_or(100);
        let second = SECOND_NS as u128;
        let rate = u128::from(done) * second / u128::from(elapsed_ns.max(1));
        let left = (u128::from(all - done)).checked_div(rate).unwrap_or(0) as u64;
        let (done, rate) = match self.noun {
            None => (Size(done).to_string(), Size(rate as u64).to_string()),
            Some(noun) => (format!("{done} {noun}"), rate.to_string()),
        };
        format!(
            "{} [{bar}] {percent} %, {done}, {rate}/s, {} left",
            self.doing,
            Age(left)
        )
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_typed_with_and_without_a_unit() {
        let ages = ["90", "90s", "5m", "2h", "3d"].map(|text| parse_age(text).unwrap());
        assert_eq!(ages, [90, 90, 300, 7200, 259_200]);
        for wrong in [
            "",
            "m",
            "5 m",
            "5w",
            "-5",
            "5.5",
            "99999999999999999999",
            "213503982334602d",
        ] {
            assert!(parse_age(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_meter_says_how_much_how_fast_and_how_long_yet() {
        let second = SECOND_NS as u64;
        let line = Meter::start("reading").line(1 << 30, 4 << 30, 2 * second);
        assert_eq!(
            line,
            "reading [######                  ] 25 %, 1.0 GiB, 512.0 MiB/s, 6 s left"
        );
        let line = Meter::counting("writing", "jobs").line(0, 0, 2 * second);
        assert!(line.ends_with("100 %, 0 jobs, 0/s, 0 s left"), "{line}");
    }
}
