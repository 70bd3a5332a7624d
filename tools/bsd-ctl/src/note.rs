//! `bsd-ctl note`: tell the server that its log was backed up or verified, or that a restore of its
//! archive was rehearsed.

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::api::ApiArgs;
use crate::{Context, EXIT_OK, Failure};

const AFTER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. A backup, a verification and a rehearsal are made
beside the server, which does not see them; told of them, it shows the last of each on the page
/durability, in /metrics and in GET /api/v1/log, until it ends. For scripts: call it after
`bsd-wal backup`, `bsd-wal verify` and `bsd-wal archive rehearse`.

Examples:
  bsd-ctl note backup /var/backups/bsd/latest
  bsd-ctl note verify --failed 'exit code 1'
  bsd-ctl note rehearsal s3://bucket/queue

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct NoteArgs {
    /// The check that was done just now
    check: Check,
    /// A note about it: where the backup is, or what failed; at most 200 bytes
    #[arg(default_value = "")]
    text: String,
    /// It failed, or found damage
    #[arg(long)]
    failed: bool,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Check {
    Backup,
    Verify,
    Rehearsal,
}

impl Check {
    fn word(self) -> &'static str {
        match self {
            Check::Backup => "backup",
            Check::Verify => "verify",
            Check::Rehearsal => "rehearsal",
        }
    }
}

pub(crate) fn run(args: &NoteArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let word = args.check.word();
    let request = json!({"check": word, "failed": args.failed, "note": args.text});
    let checks = args.api.open(context)?.post("/log/checks", &request)?;
    context.tell(checks, format_args!("the server was told of the {word}"))?;
    Ok(EXIT_OK)
}
