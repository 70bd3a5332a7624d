//! The engine and its log on a simulated disk: what a crash, a fault, a full disk or damage may
//! cost, against a model of what it must not.
//!
//! | where | what |
//! |---|---|
//! | `oracle` | the model: all that must survive, as a map, and its history |
//! | `driver` | runs commands on an engine, on virtual time, and writes the history |
//! | `workload` | what clients do: one script, and seeded chance |
//! | `beyond` | what jobs have beyond plain jobs, and settings |
//! | `alterations` | what is changed over the API, moves above all |
//! | `crashes` | a crash at every file operation, and inside the recovery after it; `BSD_CRASH_EVERY` |
//! | `defects` | crafted records, very many tubes, a disk full at any byte, too few descriptors |
//! | `exhaustive` | every short sequence of commands, every crash in it; `BSD_EXHAUSTIVE_LENGTH` |
//! | `extended` | lives under policies, with keys, reasons, clears and schedules; `BSD_EXTENDED_RUNS`, `BSD_EXTENDED_SEED` |
//! | `faults` | every file operation fails, once and from then on |
//! | `policies` | what is kept when not every acknowledgement waits for the disk |
//! | `budget` | disks of every size, filled and emptied in every order; `BSD_BUDGET_RUNS`, `BSD_BUDGET_SEED` |
//! | `full_disk` | no room: at once, bit by bit, and on storage that copies on write |
//! | `kicks` | a kick of many jobs is done whole or not at all |
//! | `names` | few descriptors, and nothing made over a name that something has |
//! | `bounds` | how large the log grows, and how often bytes are copied |
//! | `damage` | flipped bits, missing, swapped, cut and foreign files |
//! | `displaced` | blocks of one file that lie in another |
//! | `tools` | backup of a log in use, restore, offline compaction; a crash at every operation of them |
//! | `clocks` | clocks that jump |
//! | `upkeep` | pauses that are over, counters, reserves that take several turns |
//! | `replica` | a leader and followers: no disk has what was not committed; `BSD_REPLICA_RUNS`, `BSD_REPLICA_SEED` |
//! | `seeds` | random runs; `BSD_SIM_RUNS` says how many, `BSD_SIM_SEED` repeats one |
#![allow(clippy::unwrap_used, reason = "a test's unwrap is a check")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests look at files and clocks from outside"
)]

#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod alterations;
mod batches;
mod beyond;
mod bounds;
mod budget;
mod clocks;
mod crashes;
mod damage;
mod defects;
mod displaced;
mod driver;
mod exhaustive;
mod extended;
mod faults;
mod full_disk;
mod kicks;
mod names;
mod oracle;
mod policies;
mod reading;
mod replica;
mod seeds;
mod tools;
mod upkeep;
mod workload;
