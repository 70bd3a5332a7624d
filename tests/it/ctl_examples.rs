//! The examples of the help and of the page of `bsd-ctl` work, and both say the same of exit codes.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::ROOT;
use crate::ctl::{NOT_DONE, OK, done, json_of, said};
use crate::harness::{Launch, Server, bsd_ctl};
use crate::http::Site;

/// The names of all commands.
fn commands() -> Vec<String> {
    let output = Command::new(bsd_ctl()).arg("--help").output().unwrap();
    let (_, help) = said(&output);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = commands
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn help(command: &str) -> String {
    let output = Command::new(bsd_ctl())
        .args([command, "--help"])
        .output()
        .unwrap();
    let (code, help) = said(&output);
    assert_eq!(code, OK, "{help}");
    help
}

fn page() -> String {
    std::fs::read_to_string(Path::new(ROOT).join("docs/bsd-ctl.md")).unwrap()
}

/// Jobs for one example: three in `mail` that are ready, then one buried and one delayed. The id of
/// the first one.
fn stage(server: &Server) -> u64 {
    let put = |line: &str| json_of(server, line)["id"].as_u64().unwrap();
    let first = put("put mail one");
    put("put mail two");
    put("put mail three");
    let buried = put("put mail four");
    put("put mail later --delay 1h");
    done(server, &format!("bury {buried}"));
    first
}

/// Run a line of a shell as people would, with this server for the default one, and its HTTP.
fn shell(
    server: &Server,
    http: Option<SocketAddr>,
    dir: &Path,
    line: &str,
) -> (Option<i32>, String) {
    let bin = bsd_ctl().parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let address = server.address().to_string();
    let line = line.replace("127.0.0.1:11300", &address);
    let mut command = Command::new("sh");
    command
        .args(["-c", &line])
        .current_dir(dir)
        .env("PATH", path);
    command.env("BSD_CTL_ADDRESS", address).stdin(Stdio::null());
    if let Some(http) = http {
        command.env("BSD_CTL_HTTP", http.to_string());
    }
    said(&command.output().unwrap())
}

#[test]
fn the_examples_of_the_help_work_with_both_servers() {
    let log = TempDir::new().unwrap();
    let bsd = Site::start(Launch::bsd().dir(log.path()));
    let other = Launch::bsd().memory().start();
    let bsd = (bsd.server, Some(bsd.address));
    let beanstalkd = Launch::beanstalkd().map(|launch| (launch.start(), None));
    for (server, http) in [bsd].into_iter().chain(beanstalkd) {
        for name in commands().iter().map(String::as_str).chain([""]) {
            let dir = TempDir::new().unwrap();
            std::fs::write(dir.path().join("body"), "body").unwrap();
            let text = help(if name.is_empty() { "--help" } else { name });
            // These ask the API only where there is one. The flag of some stands in the help of each of
            // their commands.
            let may_ask = [
                "bury", "clear", "delete", "kick", "release", "stats", "tubes",
            ]
            .contains(&name);
            let must_ask = text.contains("--http ")
                || [
                    "client", "cluster", "export", "import", "policy", "schedule",
                ]
                .contains(&name);
            if http.is_none() && must_ask && !may_ask {
                continue;
            }
            let examples = text.lines().skip_while(|line| *line != "Examples:").skip(1);
            let examples: Vec<&str> = examples.take_while(|line| !line.is_empty()).collect();
            assert!(!examples.is_empty(), "{name} has no examples");
            for example in examples {
                let is_forced = example.ends_with("--force");
                // No job has failed.
                let is_by_reason = example.contains("--reason");
                let asks = ["--tube", "--detach", "--undo", "--sort age", "bsd-ctl why "];
                let is_for_api =
                    is_forced || is_by_reason || asks.iter().any(|flag| example.contains(flag));
                if http.is_none() && is_for_api {
                    continue;
                }
                // Each on jobs of its own, whose ids the example could not know.
                let first = stage(&server);
                let example = with_ids(example.trim(), first);
                let example = example.replace("10.0.0.2:11300", &other.address().to_string());
                let (code, said) = shell(&server, http, dir.path(), &example);
                // The server has no archive, follows none, is one of none, and has no other clients; no
                // one watches the tubes, and the first task holds no job back.
                let wanted = match name {
                    "doctor" | "holder" | "free" | "archive" | "standby" | "promote" | "client"
                    | "cluster" | "undo" => NOT_DONE,
                    _ if is_forced || is_by_reason => NOT_DONE,
                    _ => OK,
                };
                assert_eq!(code, wanted, "{example}: {said}");
                if name == "drain" {
                    shell(&server, http, dir.path(), "bsd-ctl undrain");
                }
            }
        }
    }
}

/// The example, with jobs that are there for those called 1 to 3. Only delayed or buried jobs can be
/// kicked.
fn with_ids(example: &str, first: u64) -> String {
    let words: Vec<&str> = example.split(' ').collect();
    let is_about_jobs = [
        "job", "kick-job", "delete", "bury", "release", "holder", "free", "history",
    ]
    .contains(&words[1]);
    let word = |(at, word): (usize, &&str)| match word.parse::<u64>() {
        Ok(id) if is_about_jobs && at >= 2 && !words[at - 1].starts_with("--pri") => match words[1]
        {
            "kick-job" => first + 2 + id.saturating_sub(1).max(1),
            _ => first - 1 + id,
        }
        .to_string(),
        _ => (*word).to_owned(),
    };
    let words: Vec<String> = words.iter().enumerate().map(word).collect();
    words.join(" ")
}

#[test]
fn the_page_and_the_help_of_every_command_say_the_same_of_exit_codes() {
    let rows = |text: &str| -> Vec<String> {
        let text = text.replace("\n     ", " ").replace(['|', '`'], " ");
        let rows = text
            .lines()
            .map(|row| row.split_whitespace().collect::<Vec<_>>().join(" "));
        rows.filter(|row| row.starts_with(|letter: char| letter.is_ascii_digit()))
            .collect()
    };
    let page = page();
    let (_, table) = page.split_once("| exit code of `bsd-ctl` |").unwrap();
    let table = rows(table.split("\n\n").next().unwrap());
    assert_eq!(table.len(), 4, "{table:?}");
    for name in commands().iter().map(String::as_str).chain(["--help"]) {
        let text = help(name);
        let (_, codes) = text.split_once("Exit codes:\n").expect(name);
        assert_eq!(rows(codes.split("\n\n").next().unwrap()), table, "{name}");
        assert!(
            page.contains(&format!("`{name}")) || name == "--help",
            "{name} is not in the page"
        );
    }
}
