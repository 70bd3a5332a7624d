//! The same commands to beanstalkd and to the server under test: the same replies, byte for byte
//! except for what [`crate::normalise`] lists.
//!
//! The scripts are in [`crate::scripts`], random commands in [`crate::random`]. Left out on
//! purpose, because bsd means to differ: a line whose CR LF straddles byte 224, a lone CR in a
//! line, and the order in which several waiting clients are served.

use tempfile::TempDir;

use crate::generator::Generator;
use crate::harness::Launch;
use crate::pair::Pair;
use crate::wire::Wire;
use bsd::check::volume::{seed_of_run, volume};
use bsd::random::Random;

const JOB_SIZE_MAX: usize = 1000;

/// Run a script against both servers. Each line is a connection's name, a mark, and what it sends:
///
/// * `a put 0 0 60 1\r\nx`: send that and a CR LF, and compare one reply;
/// * `a& reserve`: the same, but the reply comes later;
/// * `a?`: compare one more reply;
/// * `a| put 0 0 60`: send exactly that;
/// * `a/`: send no more; `a!`: wait until the servers close the connection;
/// * `# …`: a remark.
pub(crate) fn run_script(flags: &[&str], script: &str) {
    let Some(mut pair) = Pair::start(flags) else {
        return;
    };
    run_on(&mut pair, script);
    pair.finish();
}

/// The same on servers that run.
pub(crate) fn run_on(pair: &mut Pair, script: &str) {
    for line in script.lines().map(str::trim_start) {
        if !line.is_empty() && !line.starts_with('#') {
            run_line(pair, line);
        }
    }
}

fn run_line(pair: &mut Pair, line: &str) {
    let (head, text) = line.split_once(' ').unwrap_or((line, ""));
    let name = head.trim_end_matches(['&', '?', '|', '/', '!']);
    match &head[name.len()..] {
        "" => drop(pair.ask(name, text)),
        "&" => pair.block(name, text),
        "?" => drop(pair.reply(name)),
        "|" => pair.send(name, text),
        "/" => pair.shut_down_sending(name),
        "!" => pair.closed(name),
        mark => panic!("no such mark: {mark:?} in {line:?}"),
    }
}

fn run_random(mut pair: Pair) {
    let mut generator = Generator::new(Random::new(seed_of_run("BSD_DIFF_SEED")), JOB_SIZE_MAX);
    let commands = volume("BSD_DIFF_COMMANDS", 10_000);
    while pair.replies() < commands {
        generator.step(&mut pair);
    }
    println!(
        "{} replies were the same, about {} jobs",
        pair.replies(),
        pair.jobs()
    );
    pair.finish();
}

#[test]
fn random_commands_are_answered_as_by_beanstalkd() {
    if let Some(pair) = Pair::start(&["-z", &JOB_SIZE_MAX.to_string()]) {
        run_random(pair);
    }
}

#[test]
fn a_log_changes_no_reply() {
    let dir = TempDir::new().unwrap();
    let tested = Launch::bsd().dir(dir.path()).arg("-f").arg("0");
    if let Some(pair) = Pair::start_with(&["-z", &JOB_SIZE_MAX.to_string()], tested) {
        run_random(pair);
    }
}

/// beanstalkd 1.12, which the comparison runs against, does not quote; 1.13 does.
#[test]
fn the_values_that_beanstalkd_1_13_quotes_are_quoted_and_no_others() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let server = launch.memory().start();
    let mut wire = server.connect();
    let job = wire.put(b"x");
    let documents = [
        "stats".into(),
        "stats-tube default".into(),
        format!("stats-job {job}"),
    ];
    let quoted: Vec<String> = documents
        .iter()
        .flat_map(|ask| quoted_keys(&mut wire, ask))
        .collect();
    assert_eq!(
        quoted,
        ["version", "hostname", "os", "platform", "name", "tube"]
    );
    assert_eq!(wire.ask("list-tubes"), "OK 14\r\n---\n- default\n");
    let version = wire.stat("stats", "version");
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    assert!(
        version.trim_matches('"').split('.').all(is_number),
        "{version} is digits and dots"
    );
}

fn quoted_keys(wire: &mut Wire, command: &str) -> Vec<String> {
    let document = wire.ask(command);
    let entries = document.lines().filter_map(|line| line.split_once(": "));
    let is_quoted =
        |value: &str| value.len() >= 2 && value.starts_with('"') && value.ends_with('"');
    entries
        .filter(|(_, value)| is_quoted(value))
        .map(|(key, _)| key.to_owned())
        .collect()
}
