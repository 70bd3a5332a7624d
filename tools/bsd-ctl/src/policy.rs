//! `bsd-ctl policy`: what a server does of itself for the jobs of a tube.

use bsd::policy::Policy;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::api::{ApiArgs, escaped};
use crate::stats::print_group;
use crate::table::Table;
use crate::{Context, EXIT_OK, Failure, listing, names};

const POLICY_HELP: &str = concat!(
    "\
Over the server's API, which beanstalkd does not have. A policy is of a tube, or of the tubes that
match a PATTERN and have none of their own: of several patterns the longest counts. In a PATTERN, *
stands for any characters and ? for one; put it in quotes. `bsd-ctl policy set --help` has the names
of values.

Examples:
  bsd-ctl policy set mail delivery-limit=8 dead-letter=mail-dead
  bsd-ctl policy show mail
  bsd-ctl policy show
  bsd-ctl policy remove mail

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = POLICY_HELP)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Subcommand)]
enum PolicyCommand {
    /// Set the policy of a tube, in place of the one that it has
    Set(SetArgs),
    /// Show the policy of a tube and what it has done, or all policies
    Show(ShowArgs),
    /// Remove the policy of a tube
    Remove(RemoveArgs),
}

const SET_HELP: &str = concat!(
    "\
A policy is set as a whole: what is not named has its default. The names, with their defaults:
  delivery-limit=N             deliveries of a job that may fail [none]
  dead-letter=bury|delete|TUBE where a job goes whose limit is reached [bury]
  retry-min=SECONDS            delay after the first delivery that failed [no delay]
  retry-multiplier=X           how much longer each further delay is, 1 to 10 [2]
  retry-max=SECONDS            the longest delay [86400]
  retry-jitter=PERCENT         by how much a delay is longer or shorter by chance [0]
  expire-after=SECONDS         a job that was not reserved for this long expires [never]
  expired=delete|dead-letter   what becomes of a job that expires [delete]
  max-jobs=N, max-bytes=N      more jobs, or bytes of bodies, are refused [none]
  max-reserved=N               jobs that are reserved at one time, at most [none]
  rate=N/s|N/m|N/h             reserves in that time, at most [none]
  fair=on|off                  groups with few reserved jobs come first [off]

Examples:
  bsd-ctl policy set mail delivery-limit=8 dead-letter=mail-dead retry-min=5 retry-max=600
  bsd-ctl policy set 'mail-*' rate=100/s

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = SET_HELP)]
struct SetArgs {
    /// The tube, or those whose whole name is like this
    #[arg(value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tubes: String,
    /// A name and its value
    #[arg(value_name = "NAME=VALUE", required = true)]
    values: Vec<String>,
    #[command(flatten)]
    api: ApiArgs,
}

const SHOW_HELP: &str = concat!(
    "\
Without a TUBE all policies are shown, a line each.

Examples:
  bsd-ctl policy show
  bsd-ctl policy show --json

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = SHOW_HELP)]
struct ShowArgs {
    /// The tube; or a pattern, as it was set
    #[arg(value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tubes: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

const REMOVE_HELP: &str = concat!(
    "\
The tube has then what a pattern says, if one matches.

Examples:
  bsd-ctl policy remove mail
  bsd-ctl policy remove 'mail-*'

",
    exit_codes!()
);

#[derive(Args)]
#[command(after_help = REMOVE_HELP)]
struct RemoveArgs {
    /// The tube; or a pattern, as it was set
    #[arg(value_name = "TUBE|PATTERN", value_parser = names::parse_pattern)]
    tubes: String,
    #[command(flatten)]
    api: ApiArgs,
}

pub(crate) fn run(args: &PolicyArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    match &args.command {
        PolicyCommand::Set(args) => set(args, context),
        PolicyCommand::Show(args) => match &args.tubes {
            Some(tubes) => show_one(tubes, &args.api, context),
            None => show_all(&args.api, context),
        },
        PolicyCommand::Remove(args) => remove(args, context),
    }
}

fn path(tubes: &str) -> String {
    format!("/tubes/{}/policy", escaped(tubes))
}

fn set(args: &SetArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let body = object(&args.values)?;
    let api = args.api.open(context)?;
    let done = api.put(&path(&args.tubes), &body)?;
    let said = format!("{} has the policy {}", args.tubes, line(&done["policy"]));
    context.tell(done, said)?;
    Ok(EXIT_OK)
}

/// The values as the API has them. A mistake is told before the server is asked.
fn object(values: &[String]) -> Result<Value, Failure> {
    let policy = values.join(" ").parse::<Policy>();
    let policy = policy.map_err(|error| Failure::Usage(error.to_string()))?;
    if policy == Policy::default() {
        let why = "this policy says nothing; `bsd-ctl policy remove` removes one";
        return Err(Failure::Usage(why.to_owned()));
    }
    let values = policy.values().into_iter();
    let values = values.map(|(name, value)| (name.to_owned(), value.into()));
    Ok(Value::Object(values.collect::<Map<_, _>>()))
}

fn remove(args: &RemoveArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let api = args.api.open(context)?;
    api.delete(&path(&args.tubes))?;
    context.tell(
        json!({"tubes": args.tubes, "removed": true}),
        format_args!("the policy of {} is removed", args.tubes),
    )?;
    Ok(EXIT_OK)
}

/// A policy as one would set it.
fn line(policy: &Value) -> String {
    let values = policy.as_object().into_iter().flatten();
    let words = values.map(|(name, value)| format!("{}={}", names::shown(name), text(value)));
    words.collect::<Vec<_>>().join(" ")
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => names::shown(text),
        other => other.to_string(),
    }
}

fn show_all(api: &ApiArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let policies = listing::pages(&api.open(context)?, "/policies", "policies", u64::MAX)?;
    if context.global.json {
        writeln!(context.out, "{}", Value::Array(policies))?;
        return Ok(EXIT_OK);
    }
    let mut table = Table::new(&["TUBE", "POLICY"]);
    for policy in &policies {
        table.push(vec![text(&policy["tubes"]), line(&policy["policy"])]);
    }
    table.print(context.out)?;
    Ok(EXIT_OK)
}

fn show_one(tubes: &str, api: &ApiArgs, context: &mut Context<'_>) -> Result<u8, Failure> {
    let found = api.open(context)?.get(&path(tubes))?;
    if context.global.json {
        writeln!(context.out, "{found}")?;
    } else {
        print(&found, tubes, context)?;
    }
    match found["policy"].is_null() {
        false => Ok(EXIT_OK),
        true => Err(Failure::NotDone(format!(
            "tube \"{tubes}\" has no policy; `bsd-ctl policy set` sets one"
        ))),
    }
}

fn print(found: &Value, tubes: &str, context: &mut Context<'_>) -> Result<(), Failure> {
    let values = found["policy"].as_object().into_iter().flatten();
    let values = values.map(|(name, value)| (&**name, text(value)));
    let title = match found["set_for"].as_str() {
        Some(set_for) if set_for != tubes => {
            format!("policy of {tubes}, set for {}", names::shown(set_for))
        }
        _ => format!("policy of {tubes}"),
    };
    print_group(&title, values, context.out)?;
    let of_tube = [("jobs", "jobs"), ("bytes", "bytes of their bodies")];
    let of_tube = of_tube
        .into_iter()
        .filter(|(key, _)| found[*key].is_number());
    let lines = of_tube.map(|(key, label)| (label, found[key].to_string()));
    print_group("now", lines, context.out)?;
    let failures = found["failures"].as_object().into_iter().flatten();
    let failures = failures.map(|(reason, count)| (&**reason, count));
    let more = [("set aside", "set_aside"), ("puts refused", "puts_refused")];
    let more = more.map(|(label, key)| (label, &found[key]));
    let lines = failures
        .chain(more)
        .filter(|(_, value)| value.as_u64().is_some_and(|it| it > 0));
    let lines = lines.map(|(label, value)| (label, value.to_string()));
    print_group("failed", lines, context.out)?;
    let sources: Vec<String> = (found["dead_letters_of"].as_array().into_iter().flatten())
        .map(text)
        .collect();
    if !sources.is_empty() {
        let sources = sources.join(", ");
        writeln!(context.out, "dead letters come here from {sources}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_one_of_the_command_line() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            object(&words)
        };
        let body = of(&["delivery-limit=8", "dead-letter=dead"]).unwrap();
        assert_eq!(body, json!({"delivery-limit": "8", "dead-letter": "dead"}));
        for (words, reason) in [
            (&["delivery-limit"][..], "not a name and a value"),
            (&["limit=8"], "a policy has no 'limit'"),
            (&["rate=1/s", "rate=2/s"], "is there twice"),
            (&["dead-letter=bury"], "says nothing"),
        ] {
            match of(words) {
                Err(Failure::Usage(why)) => assert!(why.contains(reason), "{why}"),
                other => panic!("{words:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn every_name_of_a_value_is_in_the_help() {
        for (name, ..) in bsd::policy::NAMES {
            assert!(SET_HELP.contains(&format!("{name}=")), "{name}");
        }
    }

    #[test]
    fn what_a_server_says_is_fit_for_a_terminal() {
        let policy = json!({"dead-letter": "a\u{1b}[2J", "delivery-limit": 8});
        assert_eq!(line(&policy), "dead-letter=a\\u{1b}[2J delivery-limit=8");
    }
}
