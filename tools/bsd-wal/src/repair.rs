//! `bsd-wal repair`: everything that survives, in a new directory, and a report of the rest.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::disk::{File, Fs, OpenMode, write_all_at};
use bsd::storage::inspect::{Access, Inspection, repair};
use clap::Args;
use serde::Serialize;

use crate::human::{Look, Meter, count};
use crate::report::{Damage, Report, Torn, Totals, Unreadable, damages, unreadable};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, Source, inspect};

const AFTER_HELP: &str = concat!(
    "\
Jobs of which it is not known whether they had been deleted are kept: running again is better than
losing. The source is only read. Interrupted, the command can simply be run again.

Examples:
  bsd-wal repair bsd-data --output bsd-data-repaired
  bsd-wal repair bsd-data --output bsd-data-saved --report losses.json
  bsd-wal repair bsd-data --output bsd-data-again --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    pub(crate) source: Source,
    /// The directory to create; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
    /// Write the losses, the jobs in an older state and those that will run again to FILE, as JSON;
    /// it must not exist
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &RepairArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let RepairArgs {
        source: Source { dir },
        output,
        report,
        json,
    } = args;
    refuse_inside(dir, output)?;
    // It is better to notice before hours of work than afterwards that a report cannot be written.
    let report = report
        .as_ref()
        .map(|path| ReportFile::create(path, dir))
        .transpose()?;
    let done = inspect(dir, Access::Shared).and_then(|old| repair(&old, output));
    let done = match done {
        Ok(done) => done,
        Err(failure) => {
            report.map_or(Ok(()), ReportFile::discard)?;
            return Err(failure);
        }
    };
    // The report is written even if the output is closed.
    if let Some(report) = report {
        report.write(&done)?;
    }
    done.tell(*json, out)?;
    Ok(done.exit_code())
}

/// Write what survives in `old` into a new directory.
pub(crate) fn repair(old: &Inspection, output: &Path) -> Result<Repaired, Failure> {
    let mut meter = Meter::counting("writing", "jobs");
    let now = Clock::start().now();
    let repaired = repair::write(old, Arc::new(RealFs), output, now, &mut |done, total| {
        meter.show(done, total);
    })?;
    drop(meter);
    Ok(Repaired::new(old, &repaired, output))
}

/// The result of a repair, which `--report` writes, too.
#[derive(Serialize)]
pub(crate) struct Repaired {
    source: String,
    output: String,
    intact: bool,
    /// Jobs that the source still has, and how many of them are in the new log.
    jobs_found: usize,
    jobs_written: u64,
    next_id: u64,
    totals: Totals,
    damages: Vec<Damage>,
    torn: Option<Torn>,
    unreadable: Vec<Unreadable>,
    /// Why settings could not be read again.
    settings_unreadable: Vec<String>,
}

impl Repaired {
    fn new(old: &Inspection, repaired: &repair::Repaired, output: &Path) -> Repaired {
        Repaired {
            source: old.dir.display().to_string(),
            output: output.display().to_string(),
            intact: old.is_intact(),
            jobs_found: old.job_count(),
            jobs_written: repaired.jobs,
            next_id: repaired.next_id.0,
            totals: Totals::of(old),
            damages: damages(old),
            torn: old.torn.as_ref().map(Torn::from),
            unreadable: unreadable(&repaired.unreadable),
            settings_unreadable: repaired.settings_unreadable.clone(),
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        let is_all = self.unreadable.is_empty() && self.settings_unreadable.is_empty();
        if self.intact && is_all {
            EXIT_OK
        } else {
            EXIT_DAMAGED
        }
    }
}

impl Report for Repaired {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let look = Look::of_stdout();
        if self.intact {
            let intact = look.good("intact");
            writeln!(out, "the log is {intact}; nothing had to be repaired")?;
        }
        for damage in &self.damages {
            writeln!(out, "{}: {}", look.bad("damage"), damage.words)?;
        }
        if let Some(Torn { file, offset, size }) = &self.torn {
            writeln!(
                out,
                "left out: {size} bytes at byte {offset} of {file}: a torn tail, never acknowledged"
            )?;
        }
        for Unreadable { job, why } in &self.unreadable {
            let lost = look.bad("lost");
            writeln!(out, "{lost}: job {job} could not be read again: {why}")?;
        }
        for why in &self.settings_unreadable {
            let lost = look.bad("lost");
            writeln!(out, "{lost}: a setting could not be read again: {why}")?;
        }
        let Totals {
            missing,
            perhaps_missing,
            older,
            again,
            plain,
            missing_from,
        } = self.totals;
        let all = [
            ("lost", missing),
            ("lost unless they had been deleted", perhaps_missing),
            ("back in an older state", older),
            ("will run again", again),
            ("without the attributes that they had", plain),
            ("could not be read again", self.unreadable.len() as u64),
        ];
        for (words, number) in all.into_iter().filter(|(_, number)| *number > 0) {
            writeln!(out, "{words}: {}", count(number, "job"))?;
        }
        if let Some(from) = missing_from {
            writeln!(out, "lost: any job that was put from id {from} on")?;
        }
        let Repaired {
            source,
            output,
            jobs_found,
            next_id,
            ..
        } = self;
        writeln!(
            out,
            "{output}: {} of {jobs_found}, the next id is {next_id}; {source} is as it was\nstart \
             with\n  bsd-server -b {output}",
            count(self.jobs_written, "job"),
        )
    }
}

/// A report that will be written.
struct ReportFile {
    path: PathBuf,
    file: Arc<dyn File>,
}

impl ReportFile {
    fn create(path: &Path, dir: &Path) -> Result<ReportFile, Failure> {
        refuse_inside(dir, path)?;
        let file = RealFs.open(path, OpenMode::CreateNew).map_err(|error| {
            let todo = match error.kind() {
                io::ErrorKind::AlreadyExists => "; nothing is ever overwritten: give another name",
                _ => "",
            };
            let path = path.display();
            Failure::Refused(format!(
                "the report cannot be written to {path}: {error}{todo}"
            ))
        })?;
        Ok(ReportFile {
            path: path.to_owned(),
            file,
        })
    }

    /// Write all of it; durable on return.
    fn write(self, report: &Repaired) -> Result<(), Failure> {
        let write = || {
            let mut text = serde_json::to_vec_pretty(report)?;
            text.push(b'\n');
            write_all_at(&*self.file, &text, 0)?;
            self.file.sync()?;
            RealFs.sync_dir(parent(&self.path))
        };
        write().map_err(|error| {
            Failure::Refused(format!(
                "the new directory is complete, but the report cannot be written to {}: {error}; \
                 `bsd-wal verify {} --json` tells the same",
                self.path.display(),
                report.source
            ))
        })
    }

    /// There is nothing to report.
    fn discard(self) -> Result<(), Failure> {
        RealFs.remove_file(&self.path).map_err(|error| {
            let path = self.path.display();
            Failure::Refused(format!(
                "{path} is empty and cannot be removed: {error}; remove it"
            ))
        })
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Creating something inside the source would change it.
pub(crate) fn refuse_inside(dir: &Path, output: &Path) -> Result<(), Failure> {
    let parent = output.ancestors().skip(1).find_map(|parent| {
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        parent.canonicalize().ok()
    });
    match (dir.canonicalize(), parent) {
        (Ok(dir), Some(parent)) if parent.starts_with(&dir) => Err(Failure::Refused(format!(
            "{} lies inside {}, which is not to be changed; give one elsewhere",
            output.display(),
            dir.display()
        ))),
        _ => Ok(()),
    }
}
