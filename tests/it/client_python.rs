//! The client for Python of `clients/python`: its own tests against the server under test and against
//! beanstalkd, its types, and its package.
//!
//! Each of its modules of tests is a test here, so that they run side by side. The interpreter is that
//! of `BSD_VENV`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::{NamedTempFile, TempDir};

use crate::ROOT;
use crate::clients::python_with;
use crate::harness::{PATIENCE, wait_within};

/// The modules of its tests.
const MODULES: [&str; 6] = [
    "test_client",
    "test_docs",
    "test_hostile",
    "test_kit",
    "test_servers",
    "test_worker",
];
/// A module of tests ends within this time on a machine that does much else.
const MODULE_PATIENCE: Duration = PATIENCE.saturating_mul(4);

/// A process that is ended if its test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn package() -> PathBuf {
    Path::new(ROOT).join("clients/python")
}

/// Run it to its end, which must be a success, and return what it wrote.
pub(crate) fn run(command: &mut Command) -> String {
    let said = NamedTempFile::new().unwrap();
    // Both write behind each other.
    let append = || fs::OpenOptions::new().append(true).open(said.path());
    let child = command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stdout(append().unwrap())
        .stderr(append().unwrap())
        .spawn()
        .unwrap();
    let mut running = Running(child);
    let mut status = None;
    wait_within(MODULE_PATIENCE, "the tests end", || {
        status = running.0.try_wait().unwrap();
        status.is_some()
    });
    let text = fs::read_to_string(said.path()).unwrap();
    assert!(status.unwrap().success(), "{command:?}:\n{text}");
    text
}

/// Run one module of its tests.
fn suite(module: &str) {
    assert!(MODULES.contains(&module), "{module}");
    let Some(python) = python_with("unittest") else {
        return;
    };
    let built = || env!("CARGO_BIN_EXE_bsd-server").into();
    let server = std::env::var_os("BSD_SERVER_UNDER_TEST").unwrap_or_else(built);
    let text = run(Command::new(python)
        .args(["-W", "error", "-m", "unittest", "-v", module])
        .current_dir(package().join("tests"))
        .env("BSD_SERVER_UNDER_TEST", server));
    println!("{text}");
}

#[test]
fn the_python_client_is_as_the_kit_says() {
    suite("test_kit");
}

#[test]
fn the_python_client_repeats_what_is_safe_and_loses_no_job() {
    suite("test_client");
}

#[test]
fn the_python_client_survives_any_bytes() {
    suite("test_hostile");
}

#[test]
fn the_python_client_places_tubes_on_several_servers() {
    suite("test_servers");
}

#[test]
fn the_python_worker_stops_within_its_grace_time_and_loses_no_job_when_killed() {
    suite("test_worker");
}

#[test]
fn the_examples_of_the_page_on_clients_do_what_it_says() {
    suite("test_docs");
}

#[test]
fn each_module_of_tests_of_the_python_client_is_run() {
    let files = fs::read_dir(package().join("tests")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let modules: BTreeSet<String> = names
        .filter_map(|name| Some(name.strip_suffix(".py")?.to_owned()))
        .filter(|name| name.starts_with("test_"))
        .collect();
    assert_eq!(modules, MODULES.map(str::to_owned).into());
}

#[test]
fn the_python_client_has_strict_types() {
    let Some(python) = python_with("mypy") else {
        return;
    };
    let cache = TempDir::new().unwrap();
    run(Command::new(python)
        .args(["-m", "mypy", "--cache-dir"])
        .arg(cache.path())
        .current_dir(package()));
}

/// Without the network: the tool that builds packages is in the environment.
#[test]
fn the_python_client_can_be_installed_and_runs_from_there() {
    let Some(python) = python_with("setuptools") else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let (copy, installed) = (dir.path().join("copy"), dir.path().join("installed"));
    // A build writes beside its sources.
    run(Command::new("cp").arg("-r").arg(package()).arg(&copy));
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-index"])
        .args([
            "--disable-pip-version-check",
            "--no-build-isolation",
            "--target",
        ])
        .args([&installed, &copy]));
    assert!(installed.join("bsdq/py.typed").is_file());
    let help = run(Command::new(&python)
        .args(["-m", "bsdq", "worker", "--help"])
        .current_dir(dir.path())
        .env("PYTHONPATH", &installed));
    assert!(help.contains("MODULE:APP"), "{help}");
}
