//! `bsd-wal archive verify` of an archive that is encrypted, without its keys.

use std::io::{self, Write};

use bsd_archive::format::log_name;
use bsd_archive::unopened::{Unopened, look};
use bsd_archive::{KeyId, Reader, Trouble};
use serde::Serialize;

use super::LookArgs;
use crate::human::{Meter, Size, count, note};
use crate::report::Report;
use crate::{EXIT_DAMAGED, EXIT_OK, Failure};

/// Check sizes and checksums, after `trouble` has said which key is missing.
pub(super) fn run(
    args: &LookArgs,
    reader: &Reader<'_>,
    trouble: &Trouble,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    note(format_args!(
        "{trouble}; without it only sizes and checksums are checked"
    ));
    let mut logs = Vec::new();
    for log in reader.logs()? {
        let mut meter = Meter::start("reading");
        let found = look(reader, log, &mut |done, total| meter.show(done, total))?;
        logs.push(Closed::from(&found));
    }
    let is_sound = logs.iter().all(|log| log.damages.is_empty());
    let all = Contents {
        url: args.url.clone(),
        is_whole: None,
        every_byte_read: true,
        logs,
    };
    all.tell(args.read.json, out)?;
    Ok(if is_sound { EXIT_OK } else { EXIT_DAMAGED })
}

#[derive(Serialize)]
struct Contents {
    url: String,
    /// Always `null`: whether anything can be restored is not known.
    is_whole: Option<bool>,
    every_byte_read: bool,
    logs: Vec<Closed>,
}

#[derive(Serialize)]
struct Closed {
    log: String,
    /// Links and parts of bases.
    objects: u64,
    encrypted: u64,
    bytes: u64,
    /// The ids of the keys, each of which opens something.
    keys: Vec<String>,
    damages: Vec<String>,
}

impl From<&Unopened> for Closed {
    fn from(found: &Unopened) -> Closed {
        Closed {
            log: log_name(found.log),
            objects: found.objects,
            encrypted: found.encrypted,
            bytes: found.bytes,
            keys: found.keys.iter().map(KeyId::to_string).collect(),
            damages: found.bad.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Report for Contents {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        for log in &self.logs {
            writeln!(
                out,
                "log {}: {} ({}), {} encrypted, keys: {}",
                log.log,
                count(log.objects, "object"),
                Size(log.bytes),
                log.encrypted,
                log.keys.join(" ")
            )?;
            for bad in &log.damages {
                writeln!(out, "  DAMAGED {bad}")?;
            }
            let checked = match log.damages.is_empty() {
                true => "every size and checksum holds",
                false => "sizes and checksums were checked",
            };
            writeln!(
                out,
                "  {checked}; what can be restored is not known without a key"
            )?;
        }
        Ok(())
    }
}
