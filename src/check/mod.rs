//! Properties that must hold for any input, across all layers: the fuzz targets `directory`,
//! `import`, `load` and `commands`, and their seeds, use them.
//!
//! | where | what |
//! |---|---|
//! | `directory` | a log with any damage: recovery and verification agree, and a repair is sound |
//! | `forge` | damage, done to a log that was sound |
//! | `corpus` | the seeds of each target, and random inputs |
//! | `binlogs` | any files of beanstalkd's: imported or refused, and left as they were |
//! | `dump` | any jobs: loaded as described, or refused by name |
//! | `life` | any commands, and crashes at any operation: nothing acknowledged is lost |
//! | `past` | what must be there after a crash |
//! | `failing` | calls of the disk fail, one by one: the class of the error stays |
//! | `comparable` | the jobs of a log, as an engine and as an inspection have them |
//! | `whole` | everything that a restart has to bring back, to compare |
//! | `volume` | how much a test does, and from which seed |
//! | `extended` | random commands beyond those of beanstalkd |
//!
//! Compiled for tests and fuzzing only (feature `sim`); not part of the library. Random bytes alone find little
//! here: checksums and rules of order reject nearly all of them. So each check reads its bytes as a
//! list of decisions ([`Input`]), and builds a case from them that gets far. Any bytes are a case,
//! and the same bytes are the same case.
//!
//! The properties of one connection's bytes and of one segment are next to the code that they
//! check: see [`crate::protocol::any_bytes`] and [`crate::storage::format::any_bytes`]; those of one
//! request are in `http`.

mod binlogs;
mod comparable;
pub mod corpus;
mod directory;
mod dump;
pub mod extended;
pub mod failing;
mod forge;
mod life;
mod past;
pub mod volume;
pub mod whole;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::engine::{Engine, Options};
use crate::storage::format::LogId;
use crate::storage::inspect::Inspection;
use crate::storage::{OpenError, SimFs};
use crate::types::{Now, SECOND_NS, Time};

pub use self::binlogs::any_binlogs;
pub use self::directory::any_directory;
pub use self::dump::any_jobs;
pub use self::life::any_life;

/// The directory of the log.
const DIR: &str = "/data";
/// The directory for output.
const NEW: &str = "/new";
/// The smallest segment size.
const SEGMENT_SIZE: u32 = 64 << 10;
/// The wall clock when a case begins: 2027-01-15 08:00:00 UTC.
const WALL_NS: u64 = 1_800_000_000 * SECOND_NS as u64;

/// Decisions, one after the other; after the end, zeros forever.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, at most `count`.
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A number below `count`, which is at most 65,536.
    fn below(&mut self, count: usize) -> usize {
        let number = match count {
            0..=256 => self.byte().into(),
            _ => usize::from(self.u16()),
        };
        number % count.max(1)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A number below `bound`, which may be large.
    fn place(&mut self, bound: usize) -> usize {
        let place = usize::from(self.u16()) << 8 | usize::from(self.byte());
        place % bound.max(1)
    }

    /// Numbers that often break code: mostly small ones, and extreme ones.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX,
            254 => u64::MAX - 1,
            253 => 1 << 63,
            252 => 1 << 32,
            251 => (1 << 32) - 1,
            250 => WALL_NS,
            249 => WALL_NS + u64::from(self.u16()) * SECOND_NS as u64,
            248 => u64::from(self.u16()),
            small => small.into(),
        }
    }
}

/// The clocks when a case begins.
fn beginning() -> Now {
    Now::new(Time(5 * SECOND_NS), WALL_NS)
}

/// The options of a case's engines: without threads, and without chance.
fn options(disk: &SimFs, dir: &str) -> Options {
    Options {
        dir: Some(dir.into()),
        segment_size: SEGMENT_SIZE,
        fs: Arc::new(disk.clone()),
        log_id: Some(LogId([7; 16])),
        ..Options::default()
    }
}

fn open(disk: &SimFs, dir: &str, now: Now) -> Result<Engine, OpenError> {
    Engine::open(&options(disk, dir), now)
}

fn inspect(disk: &SimFs, dir: &str) -> Result<Inspection, OpenError> {
    Inspection::read(Arc::new(disk.clone()), Path::new(dir), &mut |_, _| ())
}

/// On a sound disk nothing fails.
fn sound<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("without any fault: {error}"))
}

/// Every file of an existing directory.
fn contents(disk: &SimFs, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let names = disk.names(dir).unwrap_or_default();
    let content = |name: &String| disk.read(Path::new(dir).join(name)).unwrap_or_default();
    names
        .into_iter()
        .map(|name| (name.clone(), content(&name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::corpus::Target;
    use super::{any_binlogs, any_directory, any_jobs, any_life};
    use crate::protocol::Capabilities;
    use crate::protocol::any_bytes as protocol_check;
    use crate::storage::format::any_bytes as any_segment;

    #[test]
    fn fuzz_target_protocol() {
        let target = Target {
            name: "protocol",
            check: protocol_check::any_bytes,
            size_max: 400,
            runs: 2000,
        };
        target.check_corpus();
        target.check_random();
    }

    #[test]
    fn the_seeds_of_the_protocol_have_every_extended_command() {
        let dir = format!("{}/fuzz/corpus/protocol", env!("CARGO_MANIFEST_DIR"));
        let mut lines = Vec::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            #[allow(clippy::disallowed_methods)] // a test's own data, no file of the server's
            let seed = std::fs::read(entry.unwrap().path()).unwrap();
            let all = seed.split(|byte| *byte == b'\n');
            lines.extend(all.map(|line| String::from_utf8_lossy(line).trim().to_owned()));
        }
        for (word, _) in Capabilities::COMMANDS {
            let is_it = |line: &String| line.split(' ').next() == Some(word);
            assert!(lines.iter().any(is_it), "no seed has {word}");
        }
    }

    #[test]
    fn fuzz_target_segment() {
        let target = Target {
            name: "segment",
            check: any_segment::any_bytes,
            size_max: 2000,
            runs: 2000,
        };
        target.check_corpus();
        target.check_random();
    }

    #[test]
    fn fuzz_target_directory() {
        let target = Target {
            name: "directory",
            check: any_directory,
            size_max: 40,
            runs: 500,
        };
        target.check_corpus();
        target.check_random();
    }

    #[test]
    fn fuzz_target_import() {
        let target = Target {
            name: "import",
            check: any_binlogs,
            size_max: 300,
            runs: 1000,
        };
        target.check_corpus();
        target.check_random();
    }

    #[test]
    fn fuzz_target_load() {
        let target = Target {
            name: "load",
            check: any_jobs,
            size_max: 300,
            runs: 1000,
        };
        target.check_corpus();
        target.check_random();
    }

    #[test]
    fn fuzz_target_commands() {
        let target = Target {
            name: "commands",
            check: any_life,
            size_max: 300,
            runs: 1000,
        };
        target.check_corpus();
        target.check_random();
    }
}
