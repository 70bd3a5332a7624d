//! `bsd-ctl export` and `import`: the jobs of a tube as lines of JSON, from one running server into
//! another; and `move --to`, which moves them. Over the protocol: bodies of any size, some jobs at a time,
//! so memory stays small.

mod between;
mod carry;
mod end;
mod export;
mod import;

pub(crate) use self::between::{Elsewhere, What};
pub(crate) use self::export::{ExportArgs, run_export};
pub(crate) use self::import::{ImportArgs, run_import};

use bsd_tools::client::Client;

use crate::Failure;

/// Jobs, and bytes of their bodies, that are asked for at a time.
const BATCH_JOBS: usize = 100;
const BATCH_SIZE: u64 = 4 << 20;

/// Check that the server has the commands of bsd's that are needed. beanstalkd would take the body of
/// a command that it does not know for commands.
fn check_can(client: &mut Client, needed: &[&str]) -> Result<(), Failure> {
    let reply = client.ask("capabilities")?;
    let known = String::from_utf8_lossy(&reply.data).into_owned();
    let has = |word: &&&str| !known.lines().any(|line| line == format!("- {word}"));
    match needed.iter().find(has) {
        None => Ok(()),
        Some(word) => Err(Failure::NotDone(format!(
            "the server at {} does not have `{word}`: this needs bsd, with --protocol extended and \
             a right to use it",
            client.address()
        ))),
    }
}
