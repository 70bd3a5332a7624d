//! `bsd-wal repair`: everything that survives, in a new directory.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::inspect::{Inspection, repair};

use crate::human::{Meter, count};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, inspect};

pub(crate) fn run(dir: &Path, output: &Path, out: &mut dyn Write) -> Result<u8, Failure> {
    refuse_inside(dir, output)?;
    let old = inspect(dir)?;
    let mut meter = Meter::start("writing");
    let now = Clock::start().now();
    let repaired = repair::write(&old, Arc::new(RealFs), output, now, &mut |done, total| {
        meter.show(done, total);
    })?;
    drop(meter);
    print_losses(&old, out)?;
    for (id, why) in &repaired.unreadable {
        writeln!(out, "lost: job {id} could not be read again: {why}")?;
    }
    writeln!(
        out,
        "{}: {} of {}, the next id is {}; {} is as it was\nstart with\n  bsd-server -b {}",
        output.display(),
        count(repaired.jobs, "job"),
        old.job_count(),
        repaired.next_id,
        dir.display(),
        output.display(),
    )?;
    let is_all = old.is_intact() && repaired.unreadable.is_empty();
    Ok(if is_all { EXIT_OK } else { EXIT_DAMAGED })
}

fn print_losses(old: &Inspection, out: &mut dyn Write) -> Result<(), Failure> {
    if old.is_intact() {
        writeln!(out, "the log is intact; nothing had to be repaired")?;
    }
    for loss in &old.losses {
        writeln!(out, "damage: {loss}")?;
    }
    if let Some(torn) = &old.torn {
        writeln!(
            out,
            "left out: {} bytes at byte {} of {}: a torn tail, never acknowledged",
            torn.size, torn.offset, torn.file
        )?;
    }
    Ok(())
}

/// A directory inside the source would change it.
fn refuse_inside(dir: &Path, output: &Path) -> Result<(), Failure> {
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
            "{} lies inside {}, which is not to be changed; give a directory elsewhere",
            output.display(),
            dir.display()
        ))),
        _ => Ok(()),
    }
}
