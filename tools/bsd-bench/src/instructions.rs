//! `bsd-bench instructions`: the instructions that a server runs for one command, as callgrind
//! counts them. Time depends on the machine and on what else it does; these counts hardly do.
//!
//! A count is the difference of two runs of the same server, one of which does more. So neither the
//! start nor the end counts. The work of the kernel is not counted at all.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use bsd_tools::client::Client;

use crate::control;
use crate::plot;
use crate::process::check;
use crate::report::{NONE, Table};
use crate::servers::{Kind, Policy, Program, Programs, Running};

/// Number of times that each step is done: enough for work by the clock to be little beside it.
const TIMES: u64 = 6400;
/// Commands that are sent together, and jobs that there are at a time.
const PIPELINE: u64 = 16;
const BODY: [u8; 100] = [b'b'; 100];
/// The first cell of the table, by which it is found in a page.
const TITLE: &str = "instructions";
/// A count may exceed the one of the page by this part of it.
const MORE_MAX: f64 = 0.02;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare with the table in this page; exit code 1 if a count is more than 2 % larger
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,
    /// Write the table into that page instead
    #[arg(long, requires = "golden")]
    write: bool,
    /// Keep the profiles, for callgrind_annotate, in this directory
    #[arg(long, value_name = "DIR")]
    profiles: Option<PathBuf>,
    #[command(flatten)]
    programs: Programs,
}

/// One command of a client, or a restart of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Put,
    Reserve,
    Delete,
    Touch,
    Release,
    Bury,
    Kick,
    Peek,
    StatsJob,
    Use,
    Watch,
    /// At the end, once: the server is killed and started again, and only what follows counts.
    Restart,
}

use Step::{Bury, Delete, Kick, Peek, Put, Release, Reserve, Restart, StatsJob, Touch, Use, Watch};

/// A row of the table: the instructions that `more` takes beyond `less`. The steps of both are done
/// for [`PIPELINE`] jobs, then for the next, until each was done [`TIMES`] times.
struct Row {
    name: &'static str,
    /// The servers that it is counted for: in memory, with a log.
    servers: [bool; 2],
    less: &'static [Step],
    more: &'static [Step],
}

/// Commands that write nothing, or only what a server with a log writes by the clock: reserves.
const IN_MEMORY: [bool; 2] = [true, false];
const WITH_A_LOG: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true, true];

const fn row(
    name: &'static str,
    servers: [bool; 2],
    less: &'static [Step],
    more: &'static [Step],
) -> Row {
    Row {
        name,
        servers,
        less,
        more,
    }
}

const CYCLE: &[Step] = &[Put, Reserve, Delete];

const ROWS: [Row; 14] = [
    row("put, reserve and delete", BOTH, &[], CYCLE),
    row("put and delete", BOTH, &[], &[Put, Delete]),
    row("put", BOTH, &[], &[Put]),
    row("reserve", IN_MEMORY, &[Put, Delete], CYCLE),
    row("touch", IN_MEMORY, CYCLE, &[Put, Reserve, Touch, Delete]),
    row("release", BOTH, CYCLE, &[Put, Reserve, Release, Delete]),
    row("bury", BOTH, CYCLE, &[Put, Reserve, Bury, Delete]),
    row(
        "kick of one",
        BOTH,
        &[Put, Reserve, Bury, Delete],
        &[Put, Reserve, Bury, Kick, Delete],
    ),
    row("peek", IN_MEMORY, CYCLE, &[Put, Reserve, Peek, Delete]),
    row(
        "stats-job",
        IN_MEMORY,
        CYCLE,
        &[Put, Reserve, StatsJob, Delete],
    ),
    row("use, of a new tube", IN_MEMORY, &[], &[Use]),
    row("watch of a new tube, ignore", IN_MEMORY, &[], &[Watch]),
    row(
        "replay of a put",
        WITH_A_LOG,
        &[Put, Restart],
        &[Put, Put, Restart],
    ),
    row(
        "replay of a put and its delete",
        WITH_A_LOG,
        &[Put, Delete, Restart],
        &[Put, Delete, Put, Delete, Restart],
    ),
];

const MEMORY: Kind = Kind {
    program: Program::Bsd,
    policy: Policy::Memory,
    tls: false,
};
/// Without syncs: on a busy machine the counts differ less from run to run than with `-f 0`.
const LOG: Kind = Kind {
    policy: Policy::Never,
    ..MEMORY
};
/// The replayed records were synced: a start looks longer at the end of a log that was not.
const SYNCED: Kind = Kind {
    policy: Policy::Interval(0),
    ..MEMORY
};

/// Number of times that a run is counted for a table that is written. Work by the clock only adds
/// to a count, so the least one is right.
const RUNS: u32 = 3;
/// Number of times that it is counted before a count is called too large.
const RUNS_MAX: u32 = 6;

/// The name of a row, and a count for each column that it has.
type Counts = (String, Vec<Option<u64>>);

/// Count, print, and compare.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    let page = args
        .golden
        .as_deref()
        .map(std::fs::read_to_string)
        .transpose()?;
    let golden = page.as_deref().filter(|_| !args.write).map(parse);
    let dir = args.programs.directory()?;
    let mut counter = Counter {
        profiles: args.profiles.as_deref().unwrap_or(dir.path()),
        programs: args.programs.clone(),
        runs: if args.write { RUNS } else { 1 },
        known: HashMap::new(),
    };
    std::fs::create_dir_all(counter.profiles)?;
    let mut counts = Vec::new();
    for row in &ROWS {
        let mut cells = Vec::new();
        for (column, kind) in [MEMORY, LOG].into_iter().enumerate() {
            let before = golden.as_ref().and_then(|it| cell(it, row.name, column));
            let is_counted = row.servers[column];
            let kind = match row.more.contains(&Restart) {
                true => SYNCED,
                false => kind,
            };
            let count = is_counted.then(|| counter.row(row, kind, before));
            cells.push(count.transpose()?);
        }
        counts.push((row.name.to_owned(), cells));
    }
    let table = table(&counts);
    print!("{table}");
    match (&args.golden, &page, golden) {
        (Some(path), _, Some(golden)) => compare(&counts, &golden, path),
        (Some(path), Some(page), None) => plot::write(path, &replace(page, &table)?),
        _ => Ok(()),
    }
}

fn cell(counts: &[Counts], name: &str, column: usize) -> Option<u64> {
    let (_, cells) = counts.iter().find(|row| row.0 == name)?;
    *cells.get(column)?
}

fn is_more(now: u64, before: u64) -> bool {
    now as f64 > before as f64 * (1.0 + MORE_MAX)
}

/// Runs that were counted.
struct Counter<'a> {
    profiles: &'a Path,
    programs: Programs,
    /// Number of times that each is counted.
    runs: u32,
    /// Number of times that each was counted, and the least count.
    known: HashMap<(bool, &'static [Step]), (u32, u64)>,
}

impl Counter<'_> {
    /// The instructions for one time. If there are too many compared with `before`, they are counted
    /// again.
    fn row(&mut self, row: &Row, kind: Kind, before: Option<u64>) -> io::Result<u64> {
        let mut runs = self.runs;
        loop {
            let less = self.least(kind, row.less, runs)?;
            let more = self.least(kind, row.more, runs)?;
            let count = each(less, more);
            if runs >= RUNS_MAX || before.is_none_or(|before| !is_more(count, before)) {
                return Ok(count);
            }
            runs += 1;
        }
    }

    /// The least count of this many runs.
    fn least(&mut self, kind: Kind, steps: &'static [Step], runs: u32) -> io::Result<u64> {
        let key = (kind.is_durable(), steps);
        let (mut done, mut least) = self.known.get(&key).copied().unwrap_or((0, u64::MAX));
        while done < runs {
            (done, least) = (done + 1, least.min(self.count(kind, steps)?));
        }
        self.known.insert(key, (done, least));
        Ok(least)
    }

    /// The instructions of a server that is started, does this, and is stopped.
    fn count(&mut self, kind: Kind, steps: &[Step]) -> io::Result<u64> {
        check()?;
        let mut name = kind.to_string();
        for step in steps {
            _ = write!(name, "-{step:?}");
        }
        let profile = self.profiles.join(name.to_lowercase());
        self.programs.count_into(&profile);
        let flags = ["--http".to_owned(), "off".to_owned()];
        let mut server = Running::start(kind, &self.programs, &flags)?;
        let mut session = Session {
            client: control::connect(server.address)?,
            jobs: Vec::new(),
        };
        // In every run, so that what grows or is made only once makes no difference.
        session.run(CYCLE)?;
        match steps {
            [steps @ .., Restart] => {
                session.run(steps)?;
                server.restart_after_kill()?;
            }
            steps => session.run(steps)?,
        }
        server.stop()?;
        total(&profile)
    }
}

fn each(less: u64, more: u64) -> u64 {
    (more.saturating_sub(less) + TIMES / 2) / TIMES
}

/// The total of a file of callgrind's.
fn total(profile: &Path) -> io::Result<u64> {
    let text = std::fs::read_to_string(profile)?;
    let mut lines = text.lines();
    let total = lines.find_map(|line| line.strip_prefix("totals:"));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| io::Error::other(format!("{} has no totals", profile.display())))
}

/// One connection, and the jobs that it has put and not deleted, of this batch.
struct Session {
    client: Client,
    jobs: Vec<u64>,
}

impl Session {
    fn run(&mut self, steps: &[Step]) -> io::Result<()> {
        for _ in 0..TIMES / PIPELINE {
            self.jobs.clear();
            for step in steps {
                self.batch(*step)?;
            }
        }
        Ok(())
    }

    /// Send this many commands together, and read their replies.
    fn batch(&mut self, step: Step) -> io::Result<()> {
        let mut bytes = Vec::new();
        for at in 0..PIPELINE as usize {
            // A put has no job yet, and some commands need none.
            let id = self.jobs.get(at).copied().unwrap_or(0);
            bytes.extend_from_slice(command(step, at, id).as_bytes());
            bytes.extend_from_slice(b"\r\n");
            if step == Put {
                bytes.extend_from_slice(&BODY);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        self.client.send(&bytes)?;
        if matches!(step, Put | Delete) {
            self.jobs.clear();
        }
        for _ in 0..PIPELINE {
            let reply = self.client.reply()?;
            if !reply.line.starts_with(expected(step)) {
                return Err(io::Error::other(format!("{step:?}: {}", reply.line)));
            }
            self.jobs.extend(reply.number_after("INSERTED"));
        }
        Ok(())
    }
}

fn command(step: Step, at: usize, id: u64) -> String {
    let is_even = at.is_multiple_of(2);
    match step {
        Put => format!("put 1024 0 60 {}", BODY.len()),
        Reserve => "reserve".into(),
        Delete => format!("delete {id}"),
        Touch => format!("touch {id}"),
        Release => format!("release {id} 1024 0"),
        Bury => format!("bury {id} 1024"),
        Kick => "kick 1".into(),
        Peek => format!("peek {id}"),
        StatsJob => format!("stats-job {id}"),
        Use if is_even => "use other".into(),
        Use => "use default".into(),
        Watch if is_even => "watch other".into(),
        Watch => "ignore other".into(),
        Restart => unreachable!("not one command"),
    }
}

fn expected(step: Step) -> &'static str {
    match step {
        Put => "INSERTED ",
        Reserve => "RESERVED ",
        Delete => "DELETED",
        Touch => "TOUCHED",
        Release => "RELEASED",
        Bury => "BURIED",
        Kick => "KICKED 1",
        Peek => "FOUND ",
        StatsJob => "OK ",
        Use => "USING ",
        Watch => "WATCHING ",
        Restart => unreachable!("not one command"),
    }
}

fn table(counts: &[Counts]) -> String {
    let mut table = Table::new([TITLE, "in memory", "with a log"]);
    for (name, cells) in counts {
        let cell = |cell: &Option<u64>| cell.map_or(NONE.to_owned(), thousands);
        table.push([name.clone()].into_iter().chain(cells.iter().map(cell)));
    }
    table.to_string()
}

/// `12,345`
fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

fn is_title(line: &str) -> bool {
    let mut cells = line.split('|').map(str::trim);
    cells.next() == Some("") && cells.next() == Some(TITLE)
}

/// The page with this table in place of its own.
fn replace(page: &str, table: &str) -> io::Result<String> {
    let lines: Vec<&str> = page.lines().collect();
    let first = lines.iter().position(|line| is_title(line));
    let first = first.ok_or_else(|| io::Error::other("the page has no table of instructions"))?;
    let rows = lines[first..]
        .iter()
        .take_while(|line| line.starts_with('|'));
    let after = first + rows.count();
    let mut text = String::new();
    let before = lines[..first].iter();
    let all = before
        .copied()
        .chain(table.lines())
        .chain(lines[after..].iter().copied());
    for line in all {
        _ = writeln!(text, "{line}");
    }
    Ok(text)
}

/// The counts of the table of a page.
fn parse(page: &str) -> Vec<Counts> {
    let lines = page.lines().skip_while(|line| !is_title(line));
    let rows = lines.take_while(|line| line.starts_with('|')).skip(2);
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap_or_default().to_owned();
        (
            name,
            cells
                .map(|cell| cell.replace(',', "").parse().ok())
                .collect(),
        )
    })
    .collect()
}

/// # Errors
/// A count is larger than that of the page by more than [`MORE_MAX`], or the page has other rows.
fn compare(counts: &[Counts], golden: &[Counts], page: &Path) -> io::Result<()> {
    let names = |counts: &[Counts]| -> Vec<String> {
        counts.iter().map(|(name, _)| name.clone()).collect()
    };
    let page = page.display();
    if names(counts) != names(golden) {
        return Err(io::Error::other(format!(
            "{page} has other rows: write its table with --write"
        )));
    }
    let mut larger = String::new();
    for ((name, cells), (_, before)) in counts.iter().zip(golden) {
        for (cell, before) in cells.iter().zip(before) {
            let (Some(now), Some(before)) = (cell, before) else {
                continue;
            };
            let change = *now as f64 / *before as f64 - 1.0;
            if is_more(*now, *before) {
                _ = write!(
                    larger,
                    "\n{name}: {} in place of {}, {:+.1} %",
                    thousands(*now),
                    thousands(*before),
                    100.0 * change
                );
            } else if change < -MORE_MAX {
                eprintln!(
                    "bsd-bench: {name}: {:+.1} %: write it down with --write",
                    100.0 * change
                );
            }
        }
    }
    match larger.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "more instructions than in {page}, which another compiler also explains:{larger}\n\
             If that is worth it, write the table with --write, and say why in the commit"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(put: u64) -> Vec<Counts> {
        vec![
            ("put".into(), vec![Some(put), Some(9)]),
            ("replay".into(), vec![None, Some(12_345)]),
        ]
    }

    #[test]
    fn a_table_is_read_from_the_page_that_it_was_written_into() {
        let before = "# Page\n\n| instructions of a put | 7 |\n\n";
        let page = format!("{before}| instructions | x |\n|---|---|\n| old | 1 |\n\nMore.\n");
        let page = replace(&page, &table(&counts(1000))).unwrap();
        assert_eq!(parse(&page), counts(1000));
        assert!(
            page.starts_with(&format!("{before}|")) && page.ends_with(" |\n\nMore.\n"),
            "{page}"
        );
        assert!(replace("# Page\n", "").is_err());
    }

    #[test]
    fn two_percent_more_is_too_much_and_less_is_not() {
        let compare = |now: &[Counts]| compare(now, &counts(1000), Path::new("page"));
        assert!(compare(&counts(1020)).is_ok() && compare(&counts(1)).is_ok());
        let error = compare(&counts(1021)).unwrap_err().to_string();
        assert!(
            error.contains("put: 1,021 in place of 1,000, +2.1 %"),
            "{error}"
        );
        let error = compare(&counts(1)[..1]).unwrap_err().to_string();
        assert!(error.contains("other rows"), "{error}");
    }
}
