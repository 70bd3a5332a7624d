//! Real client libraries do all that they can against beanstalkd and against the server under
//! test, with the same outcome.
//!
//! Each script of `tests/clients` takes a host and a port and prints a transcript: the results and
//! errors of the library, without parts that differ from run to run. The two transcripts are
//! compared. `.ci/run` installs the libraries.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ROOT;
use crate::harness::{Launch, program, skip, wait_for};

/// The least that a transcript of a working library has.
const TRANSCRIPT_LINES_MIN: usize = 30;

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(ROOT).join("tests/clients").join(name)
}

/// A folder that `.ci/run` fills, below `target` unless a variable names another.
pub(crate) fn folder(variable: &str, below_target: &str) -> PathBuf {
    let default = || Path::new(ROOT).join("target").join(below_target);
    std::env::var_os(variable).map_or_else(default, PathBuf::from)
}

/// The script's transcript of one server.
fn transcript(command: &mut Command, launch: &Launch) -> String {
    let server = launch.start();
    let address = ["127.0.0.1".to_owned(), server.port().to_string()];
    let mut child = command
        .args(address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut stdout = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || stdout.read_to_string(&mut text).map(|_| text));
    let status = wait_or_end(&mut child);
    let text = reader.join().unwrap().unwrap();
    assert!(status, "{command:?} failed after:\n{text}");
    text
}

fn wait_or_end(child: &mut Child) -> bool {
    let status = wait_for(child);
    if status.is_none() {
        let _ = child.kill();
    }
    status.is_some_and(|status| status.success())
}

fn compare(command: impl Fn() -> Command) {
    let Some(beanstalkd) = Launch::beanstalkd() else {
        return;
    };
    let expected = transcript(&mut command(), &beanstalkd);
    let got = transcript(&mut command(), &Launch::bsd().memory());
    let lines = expected.lines().count();
    assert!(
        lines >= TRANSCRIPT_LINES_MIN,
        "the script did too little:\n{expected}"
    );
    for (number, (expected, got)) in expected.lines().zip(got.lines()).enumerate() {
        assert_eq!(got, expected, "line {} of the transcript", number + 1);
    }
    assert_eq!(got.lines().count(), lines);
    println!("{lines} lines are the same");
}

/// A Python interpreter that has the library, or `None` with the reason printed.
pub(crate) fn python_with(library: &str) -> Option<PathBuf> {
    let python = folder("BSD_VENV", "venv").join("bin/python");
    let has_it = Command::new(&python)
        .args(["-c", &format!("import {library}")])
        .status();
    if has_it.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    skip(&format!("{} has no {library}", python.display()));
    None
}

fn compare_python(library: &str, name: &str) {
    let Some(python) = python_with(library) else {
        return;
    };
    compare(|| {
        let mut command = Command::new(&python);
        command.arg("-B").arg(script(name));
        command
    });
}

#[test]
fn greenstalk_for_python_sees_no_difference() {
    compare_python("greenstalk", "greenstalk_client.py");
}

#[test]
fn pystalk_for_python_sees_no_difference() {
    compare_python("pystalk", "pystalk_client.py");
}

#[test]
fn jackd_for_node_sees_no_difference() {
    let modules = folder("BSD_NODE_MODULES", "node/node_modules");
    let (Some(node), true) = (program("node"), modules.join("jackd").is_dir()) else {
        return skip(&format!(
            "there is no node, or no jackd in {}",
            modules.display()
        ));
    };
    compare(|| {
        let mut command = Command::new(&node);
        command
            .env("NODE_PATH", &modules)
            .arg(script("jackd_client.js"));
        command
    });
}

#[test]
fn beaneater_for_ruby_sees_no_difference() {
    let ruby = program("ruby");
    let has_it = |ruby: &PathBuf| {
        let status = Command::new(ruby)
            .args(["-e", "require 'beaneater'"])
            .stderr(Stdio::null())
            .status();
        status.is_ok_and(|status| status.success())
    };
    let Some(ruby) = ruby.filter(has_it) else {
        return skip("there is no ruby with beaneater");
    };
    compare(|| {
        let mut command = Command::new(&ruby);
        command.arg(script("beaneater_client.rb"));
        command
    });
}
