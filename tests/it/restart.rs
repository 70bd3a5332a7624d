//! State that stays the same after a stop, clean or not, and the next start.

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Launch, Server};
use crate::wire::job_of;

/// D2.
#[test]
fn d2_a_smaller_job_size_limits_new_puts_only() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let body = [b'b'; 60_000];
    let server = launch.start();
    let id = server.connect().put(&body);
    server.kill();
    for _ in 0..2 {
        let server = launch.clone().arg("-z").arg("100").start();
        let mut wire = server.connect();
        wire.send(format!("peek {id}\r\n"));
        assert_eq!(job_of(&wire.reply()), Some((id, &body[..])));
        assert_eq!(wire.try_put(&[b'b'; 101]), "JOB_TOO_BIG");
        server.kill();
    }
}

/// D1.
#[test]
fn d1_jobs_of_exactly_the_maximum_size_come_back_with_all_after_them() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let sizes = [65_535, 65_534, 65_533, 1, 0];
    let server = launch.start();
    let mut wire = server.connect();
    let jobs = sizes.map(|size| (wire.put(&vec![b'm'; size]), size));
    server.kill();
    let server = launch.start();
    let mut wire = server.connect();
    for (id, size) in jobs {
        wire.send(format!("peek {id}\r\n"));
        assert_eq!(
            job_of(&wire.reply()).map(|(id, body)| (id, body.len())),
            Some((id, size))
        );
    }
}

/// D18.
#[test]
fn no_id_is_issued_again_after_all_jobs_were_deleted() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let mut last = 0;
    for is_clean in [false, true, false, true] {
        let server = launch.start();
        let mut wire = server.connect();
        for _ in 0..10 {
            let id = wire.put(b"x");
            assert!(id > last, "{id} after {last}");
            assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
            last = id;
        }
        end(server, is_clean);
    }
}

fn end(server: Server, is_clean: bool) {
    if is_clean {
        assert_eq!(server.stop().code, Some(0));
    } else {
        server.kill();
    }
}

/// The visible state of jobs and tubes, without values that depend on the clock or the log's files.
fn visible(server: &Server, ids: &[u64]) -> String {
    let mut wire = server.connect();
    let jobs: String = ids
        .iter()
        .map(|id| wire.ask(&format!("stats-job {id}")))
        .collect();
    let others = [
        "stats-tube default",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
        "list-tubes",
    ];
    let text = jobs + &others.map(|line| wire.ask(line)).concat();
    // Commands are counted from the start of the process, and so are a tube's jobs.
    let changing = [
        "OK",
        "age",
        "time-left",
        "file",
        "pause-time-left",
        "cmd-",
        "total-jobs",
    ];
    let is_kept = |line: &&str| !changing.iter().any(|key| line.starts_with(key));
    text.lines()
        .filter(is_kept)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// D16, D17.
#[test]
fn d16_d17_a_restart_changes_nothing_that_clients_see() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let server = launch.start();
    let mut wire = server.connect();
    let ids: Vec<u64> = (0..12).map(|_| wire.put(b"x")).collect();
    for (nth, id) in ids.iter().enumerate().take(9) {
        assert_eq!(wire.reserve(), *id);
        let line = match nth % 3 {
            0 => format!("bury {id} {}", 50 - nth),
            1 => format!("release {id} {} 0", 50 + nth),
            _ => format!("release {id} 7 {}", 100_000 - nth),
        };
        assert!(["BURIED", "RELEASED"].contains(&&*wire.ask(&line)));
    }
    assert_eq!(wire.ask("kick 1"), "KICKED 1");
    assert_eq!(wire.ask("pause-tube default 100000"), "PAUSED");
    wire.send("quit\r\n");
    wire.rest();
    let before = visible(&server, &ids);
    assert!(
        before.contains("pause: 100000") && before.contains("state: buried"),
        "{before}"
    );
    end(server, true);
    for is_clean in [false, true, false] {
        let server = launch.start();
        assert_eq!(visible(&server, &ids), before);
        end(server, is_clean);
    }
}

#[test]
fn sigterm_and_sigint_stop_cleanly() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    for signal in [Signal::TERM, Signal::INT] {
        let server = launch.start();
        let mut idle = server.connect();
        let id = server.connect().put(b"kept");
        server.signal(signal);
        assert_eq!(server.wait().code, Some(0));
        assert!(idle.rest().is_empty());
        let server = launch.start();
        assert_eq!(
            server.connect().ask(&format!("peek {id}")),
            format!("FOUND {id} 4\r\nkept")
        );
    }
}
