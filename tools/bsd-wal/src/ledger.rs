//! `bsd-wal ledger`: what the ledger of a member of a cluster has, and a server made of the last member
//! that is left.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bsd::clock::Clock;
use bsd::storage::RealFs;
use bsd::storage::disk::Fs;
use bsd_cluster::survivor::{Changes, Recovered, Survivor, SurvivorError};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::dump::describe;
use crate::human::{Meter, count, note};
use crate::repair::refuse_inside;
use crate::report::{Report, ids};
use crate::{EXIT_DAMAGED, EXIT_OK, Failure, json};

/// Ids that people are shown at most; `--json` has them all.
const IDS_SHOWN: usize = 20;

const AFTER_HELP: &str = concat!(
    "\
A member of a cluster has a ledger beside its log, in DIR/cluster: what it has answered for, whether it
knew that a majority has that or not. These commands only read DIR, and no server may run on it.

If two of three members are lost for good, `recover` makes a server of the third. It takes over the log
and the whole ledger, and says which jobs may or may not have been acknowledged. What the others had
acknowledged without this member cannot be known here. If two members are left, nothing of this is
needed: they are a majority.

Examples:
  bsd-wal ledger info bsd-data
  bsd-wal ledger verify bsd-data
  bsd-wal ledger dump bsd-data --uncertain
  bsd-wal ledger recover bsd-data --output bsd-data-recovered

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct LedgerArgs {
    #[command(subcommand)]
    command: LedgerCommand,
}

#[derive(Subcommand)]
enum LedgerCommand {
    /// Show whose ledger it is, and which entries it has
    Info(InfoArgs),
    /// Read every byte of a ledger and report damage
    Verify(InfoArgs),
    /// List the entries of a ledger, one line for each change
    Dump(DumpArgs),
    /// Make a server of the last member that is left
    Recover(RecoverArgs),
}

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
struct InfoArgs {
    /// The data directory of a member
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
struct DumpArgs {
    /// The data directory of a member
    dir: PathBuf,
    /// Only entries of which it is not known whether a majority has them
    #[arg(long)]
    uncertain: bool,
    /// Print JSON Lines: an object for each change
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
struct RecoverArgs {
    /// The data directory of the member that is left
    dir: PathBuf,
    /// The data directory to create; it must be empty or not exist
    #[arg(long, value_name = "NEW")]
    output: PathBuf,
    /// Take over everything before damage of the ledger
    #[arg(long)]
    partial: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &LedgerArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    match &args.command {
        LedgerCommand::Info(args) => info(args, out),
        LedgerCommand::Verify(args) => verify(args, out),
        LedgerCommand::Dump(args) => dump(args, out),
        LedgerCommand::Recover(args) => recover(args, out),
    }
}

impl From<SurvivorError> for Failure {
    fn from(error: SurvivorError) -> Failure {
        match error {
            SurvivorError::Refused(why) => Failure::Refused(why),
            SurvivorError::Open(error) => Failure::Open(error),
        }
    }
}

fn open(dir: &Path) -> Result<Survivor, Failure> {
    let fs: Arc<dyn Fs> = Arc::new(RealFs);
    Ok(Survivor::open(&fs, dir)?)
}

/// Report the damage, if there is any.
fn exit_code(survivor: &Survivor) -> u8 {
    match survivor.ledger().damage() {
        None => EXIT_OK,
        Some(damage) => {
            note(damage);
            EXIT_DAMAGED
        }
    }
}

#[derive(Serialize)]
struct Facts {
    dir: String,
    cluster: String,
    member: String,
    members: Vec<Who>,
    intact: bool,
    term: u64,
    /// The first and the last entry; the first is after the last one in an empty list.
    first: u64,
    last: u64,
    /// Up to which entry it is known that a majority has them.
    committed: u64,
    uncertain: Told,
}

#[derive(Serialize)]
struct Who {
    id: String,
    peer: String,
}

/// Changes, by the jobs that they are about.
#[derive(Serialize)]
struct Told {
    entries: u64,
    put: Vec<u64>,
    deleted: Vec<u64>,
    others: u64,
}

impl From<&Changes> for Told {
    fn from(changes: &Changes) -> Told {
        Told {
            entries: changes.entries,
            put: ids(&changes.put),
            deleted: ids(&changes.deleted),
            others: changes.others,
        }
    }
}

impl Told {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        if self.entries == 0 {
            return writeln!(out, "  of every entry it is known that a majority has it");
        }
        writeln!(
            out,
            "  {} of which it is not known whether a majority has them, so clients may or may not have \
             been told:",
            count(self.entries, "entry")
        )?;
        for (what, jobs) in [("put", &self.put), ("deleted", &self.deleted)] {
            writeln!(out, "    {what}: {}", shown(jobs))?;
        }
        writeln!(out, "    other changes: {}", self.others)
    }
}

fn shown(jobs: &[u64]) -> String {
    let more = jobs.len().saturating_sub(IDS_SHOWN);
    let jobs: Vec<String> = jobs.iter().take(IDS_SHOWN).map(u64::to_string).collect();
    match (jobs.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (_, 0) => jobs.join(" "),
        (_, more) => format!("{} and {more} more (--json has all)", jobs.join(" ")),
    }
}

impl Facts {
    fn of(dir: &Path, survivor: &Survivor) -> Result<Facts, Failure> {
        let ledger = survivor.ledger();
        let mut uncertain = Changes::default();
        survivor.entries(survivor.committed() + 1, &mut |_, records| {
            uncertain.count(records);
            Ok::<(), Failure>(())
        })?;
        let (_, members) = ledger.members();
        let who = |id: &dyn ToString, peer: &str| Who {
            id: id.to_string(),
            peer: peer.to_owned(),
        };
        Ok(Facts {
            dir: dir.display().to_string(),
            cluster: ledger.identity().cluster.to_string(),
            member: ledger.identity().node.to_string(),
            members: members
                .list
                .iter()
                .map(|it| who(&it.id, &it.peer))
                .collect(),
            intact: ledger.damage().is_none(),
            term: ledger.hard_state().term,
            first: ledger.base().index + 1,
            last: ledger.last_index(),
            committed: survivor.committed(),
            uncertain: Told::from(&uncertain),
        })
    }
}

impl Report for Facts {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(
            out,
            "{}: the ledger of member {} of cluster {}",
            self.dir, self.member, self.cluster
        )?;
        for Who { id, peer } in &self.members {
            writeln!(out, "  member {id} at {peer}")?;
        }
        let Facts {
            first,
            last,
            committed,
            term,
            ..
        } = self;
        match first <= last {
            true => writeln!(out, "  entries {first} to {last}, term {term}")?,
            false => writeln!(out, "  no entries after {last}, term {term}")?,
        }
        writeln!(out, "  a majority has everything up to entry {committed}")?;
        self.uncertain.words(out)
    }
}

fn info(args: &InfoArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let survivor = open(&args.dir)?;
    Facts::of(&args.dir, &survivor)?.tell(args.json, out)?;
    Ok(exit_code(&survivor))
}

#[derive(Serialize)]
struct Verdict {
    dir: String,
    intact: bool,
    entries: u64,
}

impl Report for Verdict {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let state = match self.intact {
            true => "intact",
            false => "DAMAGED",
        };
        let entries = count(self.entries, "entry");
        writeln!(out, "{}: the ledger is {state}, {entries}", self.dir)
    }
}

fn verify(args: &InfoArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let survivor = open(&args.dir)?;
    let mut entries = 0;
    survivor.entries(0, &mut |_, _| {
        entries += 1;
        Ok::<(), Failure>(())
    })?;
    let verdict = Verdict {
        dir: args.dir.display().to_string(),
        intact: survivor.ledger().damage().is_none(),
        entries,
    };
    verdict.tell(args.json, out)?;
    Ok(exit_code(&survivor))
}

fn dump(args: &DumpArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let survivor = open(&args.dir)?;
    let committed = survivor.committed();
    let from = if args.uncertain { committed + 1 } else { 0 };
    survivor.entries(from, &mut |entry, records| {
        let is_certain = entry.index <= committed;
        for record in records {
            if args.json {
                json::print_entry((entry.index, entry.term, is_certain), record, out)?;
                continue;
            }
            let uncertain = if is_certain { "" } else { ", uncertain" };
            let (index, term) = (entry.index, entry.term);
            writeln!(out, "{index} term {term}{uncertain}: {}", describe(record))?;
        }
        Ok::<(), Failure>(())
    })?;
    Ok(exit_code(&survivor))
}

#[derive(Serialize)]
struct Done {
    source: String,
    output: String,
    intact: bool,
    jobs: u64,
    /// Up to which entry the log went.
    log: u64,
    committed: u64,
    last: u64,
    uncertain: Told,
}

impl Report for Done {
    fn words(&self, out: &mut dyn Write) -> io::Result<()> {
        let show = &self.output;
        writeln!(
            out,
            "{show}: {}, all that {} has, up to entry {}; its log alone went up to entry {}, and a \
             majority had everything up to entry {}",
            count(self.jobs, "job"),
            self.source,
            self.last,
            self.log,
            self.committed,
        )?;
        self.uncertain.words(out)?;
        writeln!(
            out,
            "  what the other members had acknowledged and this one had not cannot be known here\nkeep \
             {} as it is; start with\n  bsd-server -b {show}\nor, as the first member of a new \
             cluster, with --cluster and --cluster-init too",
            self.source
        )
    }
}

fn recover(args: &RecoverArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    refuse_inside(&args.dir, &args.output)?;
    let survivor = open(&args.dir)?;
    let mut meter = Meter::start("copying");
    let now = Clock::start().now();
    let mut progress = |done, total| meter.show(done, total);
    let Recovered {
        jobs,
        log,
        committed,
        last,
        uncertain,
    } = survivor.recover(&args.output, args.partial, now, &mut progress)?;
    drop(meter);
    let done = Done {
        source: args.dir.display().to_string(),
        output: args.output.display().to_string(),
        intact: survivor.ledger().damage().is_none(),
        jobs,
        log,
        committed,
        last,
        uncertain: Told::from(&uncertain),
    };
    done.tell(args.json, out)?;
    Ok(exit_code(&survivor))
}
