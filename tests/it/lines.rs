//! The lines of the server on standard error, when they cannot be written: a pipe that is closed or
//! not read, a device that is full.

use std::fs::File;
use std::io::{PipeReader, Read};
use std::process::Stdio;

use rustix::pipe::fcntl_setpipe_size;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use tempfile::TempDir;

use crate::harness::{Launch, Server, wait_until};
use crate::wire::put_command;

const CANNOT_START: Option<i32> = Some(1);
/// The limit of `ulimit -f 1`, bytes.
const FILE_SIZE_MAX: usize = 512;

/// Lines for every request.
fn talkative() -> Option<Launch> {
    Launch::bsd_alone().map(|launch| launch.memory().arg("-VVV"))
}

/// A pipe that takes one page and no more until it is read.
fn narrow_pipe() -> (PipeReader, Stdio) {
    let (reader, writer) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&writer, 4096).unwrap();
    (reader, writer.into())
}

/// Make the server log many lines, and check that it continues.
fn make_it_talk(server: &Server) {
    let mut wire = server.connect();
    for _ in 0..20 {
        wire.send(put_command(0, 0, b"x").repeat(500));
        for _ in 0..500 {
            assert!(wire.text().starts_with("INSERTED "));
        }
    }
}

#[test]
fn f11_standard_error_that_is_closed_or_full_ends_nothing() {
    let Some(launch) = talkative() else {
        return;
    };
    let (_, closed) = std::io::pipe().unwrap();
    let full = File::options().write(true).open("/dev/full").unwrap();
    for stderr in [Stdio::from(closed), Stdio::from(full)] {
        let server = launch.spawn_saying(stderr).serving();
        make_it_talk(&server);
        server.signal(Signal::HUP);
        assert_eq!(server.stop().code, Some(0));
    }
}

/// A disk that was full took the beginning of a line: a file that may have 512 bytes (`ulimit -f`),
/// and later as many as it likes.
#[test]
fn f11_after_a_line_that_was_cut_off_the_next_one_begins_on_a_line_of_its_own() {
    let Some(launch) = talkative() else {
        return;
    };
    let limited = "trap '' XFSZ; ulimit -S -f 1; exec \"$@\"";
    let launch = launch.wrapped(&["sh", "-c", limited, "sh"]);
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("lines");
    let server = launch.spawn_saying(File::create(&path).unwrap().into());
    let server = server.serving();
    make_it_talk(&server);
    let process = Pid::from_raw(server.id() as i32);
    wait_until("the file is full", || {
        path.metadata().unwrap().len() == FILE_SIZE_MAX as u64
    });
    let hard = getrlimit(Resource::Fsize).maximum;
    let unlimited = Rlimit {
        current: hard,
        maximum: hard,
    };
    prlimit(process, Resource::Fsize, unlimited).unwrap();
    make_it_talk(&server);
    assert_eq!(server.stop().code, Some(0));
    let said = std::fs::read_to_string(&path).unwrap();
    let (full, rest) = said.split_at(FILE_SIZE_MAX);
    assert_eq!(rest.starts_with('\n'), !full.ends_with('\n'), "{said}");
    assert!(rest.contains("lines before this one are missing"), "{rest}");
    // A line may be cut off behind its first byte.
    let begins = |line: &str| line.starts_with("20") || line == "2";
    let is_one = |line: &str| line.matches("Z ").count() <= 1 && begins(line);
    assert!(said.lines().all(is_one), "{said}");
}

/// It delays neither clients nor the stop; when it is read again, the missing lines are reported.
#[test]
fn f11_a_pipe_that_no_one_reads_holds_up_neither_clients_nor_the_stop() {
    let Some(launch) = talkative() else {
        return;
    };
    let (reader, writer) = narrow_pipe();
    let server = launch.spawn_saying(writer).serving();
    make_it_talk(&server);
    assert_eq!(server.stop().code, Some(0));
    drop(reader);

    let (mut reader, writer) = narrow_pipe();
    let server = launch.spawn_saying(writer).serving();
    make_it_talk(&server);
    let mut said = String::new();
    let mut buffer = [0; 1 << 16];
    wait_until("it is told how many lines are missing", || {
        let count = reader.read(&mut buffer).unwrap();
        said.push_str(&String::from_utf8_lossy(&buffer[..count]));
        said.contains("lines before this one are missing")
    });
    server.kill();
}

/// Whatever ends it: it tries to write its last lines, but not forever.
#[test]
fn f11_a_start_that_fails_ends_with_its_code_also_when_no_one_is_told() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch
        .dir(&dir.path().join("missing/data"))
        .arg("-s")
        .arg("1");
    let (_reader, unread) = narrow_pipe();
    // Full before the server has said anything.
    let (_other, full) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&full, 4096).unwrap();
    std::io::Write::write_all(&mut &full, &[b'x'; 4096]).unwrap();
    let (_, closed) = std::io::pipe().unwrap();
    let device = File::options().write(true).open("/dev/full").unwrap();
    let all = [unread, full.into(), closed.into(), Stdio::from(device)];
    for stderr in all {
        assert_eq!(launch.spawn_saying(stderr).wait().code, CANNOT_START);
    }
}

#[test]
fn f19_a_start_says_where_what_how_safe_and_that_it_is_ready() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let place = format!("data directory {}", dir.path().display());
    let server = launch.clone().arg("-f").arg("7").start();
    let address = format!("listening on {}", server.address());
    let id = server.connect().put(b"x");
    let exit = server.stop();
    let lines: Vec<&str> = exit.stderr.lines().collect();
    let expected = [
        format!("{place}: new"),
        "sync policy: at most 7 ms".to_owned(),
        address,
        "ready: bsd-server ".to_owned(),
        "stopping".to_owned(),
    ];
    assert_eq!(lines.len(), expected.len(), "{exit:?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(&expected), "{expected:?} in {exit:?}");
    }

    let server = launch.start();
    server.connect().put(b"y");
    server.kill();
    let server = launch.start();
    assert!(
        server
            .connect()
            .ask(&format!("peek {id}"))
            .starts_with("FOUND")
    );
    let exit = server.stop();
    let read = exit.stderr.lines().next().unwrap();
    assert!(
        read.contains(&format!("{place}: 2 jobs read in ")),
        "{exit:?}"
    );
    assert!(read.contains("a stop that was not clean"), "{exit:?}");
    assert!(
        exit.stderr.contains("sync policy: before a reply"),
        "{exit:?}"
    );
    let exit = launch.start().stop();
    assert!(exit.stderr.contains("after a clean stop"), "{exit:?}");

    let exit = Launch::bsd().memory().start().stop();
    assert!(exit.stderr.contains("no log is kept"), "{exit:?}");
}

#[test]
fn f19_connections_are_told_from_twice_v_on_and_requests_from_three_times() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    for (flags, connections, requests) in [
        ("-c", false, false),
        ("-V", false, false),
        ("-VV", true, false),
        ("-VVV", true, true),
    ] {
        let server = launch.clone().arg(flags).start();
        server.connect().put(b"x");
        let exit = server.stop();
        assert_eq!(exit.stderr.contains("connected"), connections, "{exit:?}");
        assert_eq!(exit.stderr.contains("put"), requests, "{exit:?}");
    }
}
