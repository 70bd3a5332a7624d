//! `bsd-ctl cluster`: several servers as one. Begins a cluster, adds and removes members, shows the
//! leader and the lags, and transfers leadership.

use bsd::clock::Clock;
use bsd::human::Size;
use bsd::types::SECOND_NS;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::api::{Api, ApiArgs};
use crate::confirm::ask;
use crate::many::LOOK_EVERY;
use crate::stats::print_group;
use crate::table::Table;
use crate::{Context, EXIT_NOT_DONE, EXIT_OK, Failure, note};

const CLUSTER_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. The servers are started with --cluster ADDR.
One of them begins the cluster, with the jobs that it has; each other one, whose directory is empty,
is then added. A cluster of three works on while one of them is away. `bsd-ctl cluster COMMAND
--help` says more of each.

Examples:
  bsd-ctl cluster status

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = CLUSTER_HELP)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Begin a cluster of the server that is asked, with the jobs that it has
    Init(InitArgs),
    /// Add the server that is asked to the cluster of the member at ADDR
    Add(AddArgs),
    /// Remove a member, for ever
    Remove(RemoveArgs),
    /// Show the leader, the members, and their lags
    Status(StatusArgs),
    /// Transfer leadership to another member
    Transfer(TransferArgs),
}

const INIT_HELP: &str = concat!(
    "\
Asked of the first server. Waits until it leads. It serves clients at once, and is safe against the
loss of a machine when two others have been added.

Examples:
  bsd-ctl cluster init --http 10.0.0.1:11380

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = INIT_HELP)]
struct InitArgs {
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    api: ApiArgs,
}

const ADD_HELP: &str = concat!(
    "\
Asked of the new server, not of the cluster: ADDR is where members reach one of them, that is its
--cluster, not its --http. The directory of the new server must be new. It gets a copy of the log,
and votes when it has caught up. Waits until it is a member and follows. Ctrl-C, and --at-most, end
the waiting and not the asking: the server goes on until it is added, or ends.

Examples:
  bsd-ctl cluster add 10.0.0.1:12300 --http 10.0.0.2:11380

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = ADD_HELP)]
struct AddArgs {
    /// Where the other members reach one of them: IP:PORT
    #[arg(value_name = "ADDR")]
    at: String,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    api: ApiArgs,
}

const REMOVE_HELP: &str = concat!(
    "\
Asked of the leader. MEMBER is an id as `bsd-ctl cluster status` shows it, or as many of its first
digits as only one has, or the address by which the others reach it. What was removed never comes
back: stop that server. To add it again, as a new member, move its directory elsewhere first. Asks
before it does so, unless --yes. A member is not removed where too few of the others can be reached:
the cluster would stop.

Examples:
  bsd-ctl cluster remove 10.0.0.3:12300
  bsd-ctl cluster remove 3f9a --yes

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = REMOVE_HELP)]
struct RemoveArgs {
    /// The member: its id, the beginning of it, or its address for the others
    #[arg(value_name = "MEMBER")]
    member: String,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    api: ApiArgs,
}

const STATUS_HELP: &str = concat!(
    "\
As the server that is asked knows it. LAG is how many entries a member does not have, which only the
leader knows. HEARD is how long ago the server heard of it. A member is CONNECTED if it answers; one
that follows asks its leader alone. A member that is `learning` has no vote yet.
Exit code 1: the server is no member of a cluster, or knows no leader; or it leads, and is connected
to less than a majority.

Examples:
  bsd-ctl cluster status
  bsd-ctl cluster status --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = STATUS_HELP)]
struct StatusArgs {
    #[command(flatten)]
    api: ApiArgs,
}

const TRANSFER_HELP: &str = concat!(
    "\
Asked of the leader, for example before its machine is stopped. MEMBER is an id, as many of its
first digits as only one has, or the address by which the others reach it. All clients are
disconnected, and jobs that were reserved are ready again, as after a restart.

Examples:
  bsd-ctl cluster transfer 10.0.0.2:12300
  bsd-ctl cluster transfer 3f9a

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = TRANSFER_HELP)]
struct TransferArgs {
    /// The member: its id, the beginning of it, or its address for the others
    #[arg(value_name = "MEMBER")]
    member: String,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
struct WaitArgs {
    /// Do not wait until it is done
    #[arg(long)]
    no_wait: bool,
    /// Wait no longer than this
    #[arg(long, value_name = "SECONDS", value_parser = crate::put::parse_seconds, default_value = "60")]
    at_most: u32,
}

pub(crate) fn run(args: &ClusterArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    match &args.command {
        ClusterCommand::Init(args) => init(args, context),
        ClusterCommand::Add(args) => add(args, context),
        ClusterCommand::Remove(args) => remove(args, context),
        ClusterCommand::Status(args) => status(args, context),
        ClusterCommand::Transfer(args) => transfer(args, context),
    }
}

fn init(args: &InitArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let answer = api.post("/cluster/init", &json!({}))?;
    let leads = |cluster: &Value| cluster["standing"] == "leader";
    args.wait.until(leads, answer, &api, context)
}

fn add(args: &AddArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let answer = api.post("/cluster/join", &json!({"address": args.at}))?;
    let is_member = |cluster: &Value| {
        ["follower", "leader"].contains(&cluster["standing"].as_str().unwrap_or_default())
            && members(cluster).any(|member| member["this"] == true)
    };
    args.wait.until(is_member, answer, &api, context)
}

fn remove(args: &RemoveArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let (id, peer) = find(&api.get("/cluster")?, &args.member)?;
    ask(
        &format!("remove member {id} ({peer}) from the cluster, for ever"),
        args.yes,
    )?;
    let answer = api.post("/cluster/remove", &json!({"member": id}))?;
    let is_gone = |cluster: &Value| {
        let is_there = members(cluster).any(|member| member["id"] == *id);
        cluster["standing"] == "removed" || !is_there && cluster["changing"] == false
    };
    args.wait.until(is_gone, answer, &api, context)
}

fn transfer(args: &TransferArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    let (id, _) = find(&api.get("/cluster")?, &args.member)?;
    let answer = api.post("/cluster/transfer", &json!({"member": id}))?;
    let leads = |cluster: &Value| cluster["leader"]["id"] == *id;
    args.wait.until(leads, answer, &api, context)
}

impl WaitArgs {
    /// Look at the cluster until it is so, and report the result.
    fn until(
        &self,
        is_done: impl Fn(&Value) -> bool,
        answer: Value,
        api: &Api,
        context: &mut Context<'_>,
    ) -> Result<u8, Failure> {
        let begun = answer["answer"].as_str().unwrap_or_default().to_owned();
        if self.no_wait {
            context.tell(answer, begun)?;
            return Ok(EXIT_OK);
        }
        let clock = Clock::start();
        let mut said = Value::Null;
        loop {
            let cluster = api.get("/cluster")?;
            if is_done(&cluster) {
                let line = format!("{begun}: done; {}", in_short(&cluster));
                context.tell(cluster, line)?;
                return Ok(EXIT_OK);
            }
            let trouble = &cluster["trouble"];
            if clock.now().mono.0 >= i64::from(self.at_most) * SECOND_NS {
                let why = match trouble.as_str() {
                    Some(trouble) => format!(": {trouble}"),
                    None => String::new(),
                };
                return Err(Failure::NotDone(format!(
                    "{begun}: it is not done after {} seconds{why}; it may be done yet: look with \
                     `bsd-ctl cluster status`",
                    self.at_most
                )));
            }
            if let Some(text) = trouble.as_str().filter(|_| said != *trouble) {
                note(text);
                said = trouble.clone();
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn members(cluster: &Value) -> impl Iterator<Item = &Value> {
    cluster["members"].as_array().into_iter().flatten()
}

/// The id and the address of the one member that is meant.
fn find(cluster: &Value, wanted: &str) -> Result<(String, String), Failure> {
    let text = |member: &Value, key: &str| member[key].as_str().unwrap_or_default().to_owned();
    let wanted = wanted.to_ascii_lowercase();
    let is_meant = |member: &&Value| {
        let is_id = !wanted.is_empty() && text(member, "id").starts_with(&wanted);
        is_id || text(member, "peer") == wanted
    };
    let mut found = members(cluster).filter(is_meant);
    match (found.next(), found.next()) {
        (Some(member), None) => Ok((text(member, "id"), text(member, "peer"))),
        (Some(_), Some(_)) => Err(Failure::NotDone(format!(
            "{wanted} is the beginning of more than one member's id: give more of it"
        ))),
        (None, _) => Err(Failure::NotDone(format!(
            "the cluster has no member {wanted}: `bsd-ctl cluster status` shows those that it has"
        ))),
    }
}

/// The cluster in one line.
fn in_short(cluster: &Value) -> String {
    let count = members(cluster).count();
    let leader = cluster["leader"]["id"].as_str().unwrap_or("no one");
    match (cluster["standing"].as_str(), count) {
        (Some("removed"), _) => "this server is no member any more".to_owned(),
        (_, 1) => format!("1 member, {leader} leads"),
        (_, count) => format!("{count} members, {leader} leads"),
    }
}

fn status(args: &StatusArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let cluster = args.api.open(context)?.get("/cluster")?;
    let code = match is_well(&cluster) {
        true => EXIT_OK,
        false => EXIT_NOT_DONE,
    };
    if context.global.json {
        context.tell(cluster, "")?;
        return Ok(code);
    }
    print_group("cluster", lines(&cluster).into_iter(), context.out)?;
    if members(&cluster).next().is_some() {
        writeln!(context.out)?;
        table(&cluster).print(context.out)?;
    }
    Ok(code)
}

/// Jobs are served, as far as the server that was asked can know: it follows a leader, or leads and
/// is connected to a majority. For a moment a leader without one does not know yet that it no
/// longer leads.
fn is_well(cluster: &Value) -> bool {
    let voters = || members(cluster).filter(|member| member["votes"] == true);
    let connected = voters()
        .filter(|member| member["connected"] == true)
        .count();
    match cluster["standing"].as_str() {
        Some("leader") => 2 * connected > voters().count(),
        Some("follower") => !cluster["leader"].is_null(),
        _ => false,
    }
}

fn said(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => "-".to_owned(),
    }
}

fn lines(cluster: &Value) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("cluster", said(&cluster["cluster"])),
        ("this member", said(&cluster["member"])),
        ("it is", standing(cluster)),
    ];
    if let Some(trouble) = cluster["trouble"].as_str() {
        let what = match cluster["cluster"].is_null() {
            true => "not added yet",
            false => "trouble",
        };
        lines.push((what, trouble.to_owned()));
    }
    if cluster["cluster"].is_null() {
        return lines;
    }
    let ledger = cluster["ledger_bytes"].as_u64().unwrap_or_default();
    let clients = cluster["leader"]["client"].as_str().unwrap_or("-");
    lines.extend([
        ("clients of the leader", clients.to_owned()),
        ("term", said(&cluster["term"])),
        ("committed entry", said(&cluster["committed"])),
        ("applied entry", said(&cluster["applied"])),
        (
            "entries of the ledger",
            format!("{} to {}", cluster["first"], cluster["last"]),
        ),
        ("bytes of the ledger", Size(ledger).to_string()),
        ("clients passed on", said(&cluster["forwarded_clients"])),
    ]);
    if cluster["changing"] == true {
        lines.push(("members", "a change is under way".to_owned()));
    }
    lines
}

fn standing(cluster: &Value) -> String {
    match cluster["standing"].as_str() {
        Some("leader") => "the leader".to_owned(),
        Some("follower") => "a follower".to_owned(),
        Some("no leader") => "a follower without a leader: clients wait".to_owned(),
        Some("removed") => {
            "removed: stop it; to add it again, move its directory elsewhere first".to_owned()
        }
        _ if cluster["joining"] == true => "no member yet; it asks to be added".to_owned(),
        _ => "no member yet: `bsd-ctl cluster init`, or `add`".to_owned(),
    }
}

fn table(cluster: &Value) -> Table {
    let mut table = Table::new(&[
        "MEMBER",
        "PEERS AT",
        "CLIENTS AT",
        "STATE",
        "CONNECTED",
        "LAG",
        "HEARD",
    ]);
    for member in members(cluster) {
        let is = |key: &str| member[key] == true;
        let state = match (is("leads"), is("votes"), is("needs_snapshot")) {
            (true, _, _) => "leads",
            (false, _, true) => "gets a copy",
            (false, true, false) => "follows",
            (false, false, false) => "learning",
        };
        let heard = member["heard_seconds"].as_f64();
        let heard = heard.filter(|_| !is("this"));
        let id = said(&member["id"]);
        table.push(vec![
            if is("this") { format!("{id} *") } else { id },
            said(&member["peer"]),
            said(&member["client"]),
            state.to_owned(),
            if is("connected") { "yes" } else { "no" }.to_owned(),
            said(&member["lag"]),
            heard.map_or("-".to_owned(), |seconds| format!("{seconds:.1} s")),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t25_it_is_well_only_with_a_leader_and_a_majority() {
        let cluster = |standing: &str, leader: Value, connected: [bool; 3]| {
            let members = connected.map(|it| json!({"votes": true, "connected": it}));
            json!({"standing": standing, "leader": leader, "members": members})
        };
        let leader = || json!({"id": "00aa000000000001", "client": null});
        let (all, two, one) = ([true; 3], [true, true, false], [true, false, false]);
        for (standing, leader, connected, wanted) in [
            ("leader", leader(), all, true),
            ("leader", leader(), two, true),
            ("leader", leader(), one, false),
            ("follower", leader(), one, true),
            ("follower", Value::Null, all, false),
            ("no leader", Value::Null, all, false),
            ("removed", leader(), all, false),
            ("waiting", Value::Null, all, false),
        ] {
            let cluster = cluster(standing, leader, connected);
            assert_eq!(is_well(&cluster), wanted, "{cluster}");
        }
        let mut learning = cluster("leader", leader(), two);
        learning["members"][1]["votes"] = false.into();
        assert!(!is_well(&learning), "who learns is no part of a majority");
    }

    #[test]
    fn a_member_is_meant_by_its_id_its_beginning_or_its_address() {
        let cluster = json!({"members": [
            {"id": "00aa000000000001", "peer": "10.0.0.1:12300"},
            {"id": "00ab000000000002", "peer": "10.0.0.2:12300"},
        ]});
        let found = |wanted: &str| find(&cluster, wanted).map(|(id, _)| id).ok();
        let first = Some("00aa000000000001".to_owned());
        for wanted in ["00aa000000000001", "00AA", "00aa", "10.0.0.1:12300"] {
            assert_eq!(found(wanted), first, "{wanted}");
        }
        for wanted in ["", "00a", "1", "10.0.0.1", "10.0.0.3:12300"] {
            assert_eq!(found(wanted), None, "{wanted}");
        }
    }
}
