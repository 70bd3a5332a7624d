//! A start that cannot be: what is said of it, and that each way out is named.

use std::net::TcpListener;

use tempfile::TempDir;

use crate::harness::{Exit, Launch};

const SETUP: Option<i32> = Some(1);

/// It ended so, and said this and no raw error of the system.
fn assert_said(exit: &Exit, code: Option<i32>, words: &[&str]) {
    assert_eq!(exit.code, code, "{exit:?}");
    for word in words {
        assert!(exit.stderr.contains(word), "{word}: {exit:?}");
    }
}

#[test]
fn g44_a_data_directory_that_is_a_file_is_told_in_words() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let exit = Launch::bsd().dir(&file).run_to_exit();
    assert_said(
        &exit,
        SETUP,
        &["something of this name is there that is no directory"],
    );
    assert!(!exit.stderr.contains("os error"), "{exit:?}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}

#[test]
fn g44_where_no_socket_can_be_made_is_told_in_words() {
    let exit = Launch::bsd()
        .memory()
        .args(["-l", "unix:/no/such/socket"])
        .run_to_exit();
    let words = "cannot listen on unix:/no/such/socket: there is no directory /no/such; make it";
    assert_said(&exit, SETUP, &[words]);
    assert!(!exit.stderr.contains("os error"), "{exit:?}");
}

#[test]
fn g44_anyone_who_has_the_port_is_named_and_what_to_do() {
    let others = [
        (
            Some(Launch::bsd().memory()),
            "another bsd-server (process ",
            "stop that one first",
        ),
        (Launch::beanstalkd(), "beanstalkd ", "--import"),
    ];
    for (launch, who, what) in others {
        let Some(other) = launch.map(|launch| launch.start()) else {
            continue;
        };
        let at = other.address().to_string();
        let exit = Launch::bsd().memory().args(["-l", &at]).run_to_exit();
        let process = format!("process {})", other.id());
        assert_said(&exit, SETUP, &[who, &process, what, "-p PORT"]);
    }
    // Of the one that speaks another protocol the system tells.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let exit = Launch::bsd().memory().args(["-l", &at]).run_to_exit();
    let who = match cfg!(target_os = "linux") {
        true => format!("process {} (", std::process::id()),
        false => "another process".to_owned(),
    };
    assert_said(&exit, SETUP, &[&who, "listens there"]);
    {
        let exit = Launch::bsd().memory().args(["--http", &at]).run_to_exit();
        assert_said(&exit, SETUP, &[&who, "--http off"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn g52_a_log_that_cannot_be_where_no_one_said_names_b_and_memory() {
    // No one makes a directory there, not even root.
    let launch = Launch::bsd_alone().map(|launch| launch.wrapped(&["env", "-C", "/sys"]));
    let Some(launch) = launch else {
        return;
    };
    let exit = launch.run_to_exit();
    let ways = ["no -b was given", "-b DIR", "--memory"];
    assert_said(&exit, SETUP, &ways);
    let exit = launch.dir("/sys/other".as_ref()).run_to_exit();
    assert_said(&exit, SETUP, &["/sys/other"]);
    assert!(!exit.stderr.contains("no -b was given"), "{exit:?}");
}

#[test]
fn g52_the_directory_that_a_file_system_makes_is_no_stranger() {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    for _ in 0..2 {
        let server = Launch::bsd().dir(dir.path()).start();
        server.connect().put(b"x");
        let exit = server.stop();
        assert_eq!(exit.code, Some(0));
        assert!(exit.complaints().is_empty(), "{exit:?}");
    }
    // A file of that name, and any other directory, are.
    std::fs::create_dir(dir.path().join("mine")).unwrap();
    let exit = Launch::bsd().dir(dir.path()).start().stop();
    assert_eq!(exit.complaints().len(), 1, "{exit:?}");
}
