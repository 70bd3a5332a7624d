//! How the server handles its environment at the start: sockets and a notify socket of a service
//! manager, a user to become, a directory that may not be usable, a limit of memory.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Exit, Launch, PATIENCE, Server, program, skip, wait_until};
use crate::wire::{Wire, put_command};

const CANNOT_START: Option<i32> = Some(1);
const IN_USE: Option<i32> = Some(10);
/// Hands descriptors 0 and 1 on as systemd does: from 3 on, and meant for this process.
const HAND_ON_TWO: &str =
    "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\"";
const HAND_ON_ONE: &str = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";

fn handing_on(launch: Launch, script: &str) -> Launch {
    launch.wrapped(&["sh", "-c", script, "sh"])
}

fn stdio(listener: impl Into<OwnedFd>) -> Stdio {
    Stdio::from(listener.into())
}

fn tcp_listener() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// A directory that other users can get at, unlike a temporary one.
fn open_dir() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

#[test]
fn sockets_that_a_service_manager_opened_are_used_in_place_of_its_own() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let path = dir.path().join("activated");
    let unix = UnixListener::bind(&path).unwrap();
    let (tcp, address) = tcp_listener();
    let launch = handing_on(launch, HAND_ON_TWO);
    let server = launch.spawn_with(stdio(tcp), stdio(unix));

    // The sockets exist before the server does: no client has to try twice.
    let mut over_tcp = Wire::connect(address).unwrap();
    let mut over_unix = Wire::connect_unix(&path).unwrap();
    let id = over_tcp.put(b"activated");
    let found = over_unix.ask(&format!("peek {id}"));
    assert_eq!(found, format!("FOUND {id} 9\r\nactivated"));

    drop((over_tcp, over_unix));
    let exit = server.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(exit.stderr.contains("-l has no effect"), "{exit:?}");
    assert_eq!(exit.stderr.matches("listening on").count(), 2, "{exit:?}");
    assert!(
        path.exists(),
        "the file of a socket that is not its own is left alone"
    );
}

#[test]
fn a_descriptor_that_is_no_listening_socket_stops_the_start() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let file = fs::File::create(dir.path().join("file")).unwrap();
    let exit = handing_on(launch, HAND_ON_ONE)
        .spawn_with(stdio(file), Stdio::null())
        .wait();
    assert_one_line(&exit, CANNOT_START, &["sockets that were passed on"]);
}

/// It would be served as if it had none of what was asked for.
#[test]
fn a_layer_cannot_be_had_of_a_socket_that_was_passed_on() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let (listener, _) = tcp_listener();
    let layered = ["-l", "proxy:127.0.0.1", "--proxy-from", "127.0.0.1"];
    let exit = handing_on(launch.args(layered), HAND_ON_ONE)
        .spawn_with(stdio(listener), Stdio::null())
        .wait();
    let words = ["-l proxy:127.0.0.1", "take the socket unit away"];
    assert_one_line(&exit, CANNOT_START, &words);
}

/// It would look as if it served, and refuse every client.
#[test]
fn f16_a_socket_that_was_passed_on_and_does_not_listen_stops_the_start() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let bound = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&bound, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    for socket in [bound, OwnedFd::from(end)] {
        let exit = handing_on(launch.clone(), HAND_ON_ONE)
            .spawn_with(stdio(socket), Stdio::null())
            .wait();
        assert_one_line(
            &exit,
            CANNOT_START,
            &["sockets that were passed on", "does not listen"],
        );
    }
}

/// Sockets that are meant for another process, such as the parent, are not ours.
#[test]
fn sockets_that_are_meant_for_another_process_are_left_alone() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let server = launch
        .wrapped(&["env", "LISTEN_PID=1", "LISTEN_FDS=1"])
        .start();
    server.connect().put(b"x");
    assert_eq!(server.stop().code, Some(0));
}

/// The socket at which a service manager hears what its service has to say.
struct Manager {
    _dir: TempDir,
    socket: UnixDatagram,
    variable: String,
}

impl Manager {
    fn new() -> Manager {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let variable = format!("NOTIFY_SOCKET={}", path.display());
        Manager {
            _dir: dir,
            socket,
            variable,
        }
    }

    fn supervise(&self, launch: Launch) -> Launch {
        launch.wrapped(&["env", &self.variable])
    }

    /// With a watchdog that bites after so long.
    fn supervise_closely(&self, launch: Launch, microseconds: u32) -> Launch {
        let watchdog = format!("WATCHDOG_USEC={microseconds}");
        launch.wrapped(&["env", &self.variable, &watchdog])
    }

    /// The next message.
    fn hear(&self) -> String {
        let mut message = [0; 512];
        let size = loop {
            match self.socket.recv(&mut message) {
                // A read with a timeout is interrupted when the machine is paused.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                size => break size.expect("the service says something"),
            }
        };
        String::from_utf8_lossy(&message[..size])
            .trim_end()
            .to_owned()
    }

    fn has_heard_nothing(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let heard = self.socket.recv(&mut [0; 512]);
        heard.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// D25. That nothing is said before the replay is over is seen in a trace of system calls.
#[test]
fn the_service_manager_is_told_when_clients_are_served_and_when_it_stops() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let server = launch.start();
    let id = server.connect().put(b"kept");
    server.kill();

    let manager = Manager::new();
    let server = manager.supervise(launch).start();
    assert_eq!(manager.hear(), "READY=1");
    let found = server.connect().ask(&format!("peek {id}"));
    assert_eq!(found, format!("FOUND {id} 4\r\nkept"));
    assert_eq!(server.stop().code, Some(0));
    assert_eq!(manager.hear(), "STOPPING=1");
    assert!(manager.has_heard_nothing());
}

/// Also when no client has anything for it to do.
#[test]
fn f16_the_watchdog_is_answered_by_the_loop_for_as_long_as_it_runs() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let manager = Manager::new();
    let server = manager.supervise_closely(launch, 50_000).start();
    assert_eq!(manager.hear(), "READY=1");
    for _ in 0..5 {
        assert_eq!(manager.hear(), "WATCHDOG=1");
    }
    assert_eq!(server.stop().code, Some(0));
    let stopping = std::iter::repeat_with(|| manager.hear()).find(|said| said != "WATCHDOG=1");
    assert_eq!(stopping.as_deref(), Some("STOPPING=1"));
}

/// A terminal that closes and a `reload` of a service both send it.
#[test]
fn f16_sighup_changes_nothing_and_is_told() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let server = launch.start();
    let mut wire = server.connect();
    let id = wire.put(b"x");
    server.signal(Signal::HUP);
    wait_until("the signal is told", || server.stderr().contains("SIGHUP"));
    assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    let exit = server.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(exit.complaints().is_empty(), "{exit:?}");
}

#[test]
fn a_server_that_cannot_start_never_says_that_it_is_ready() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone().map(|launch| launch.dir(dir.path())) else {
        return;
    };
    let _holder = launch.start();
    let manager = Manager::new();
    assert_eq!(manager.supervise(launch).run_to_exit().code, IN_USE);
    assert!(manager.has_heard_nothing());
}

/// The user and group ids of `nobody`, if this process may become it.
fn nobody() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return None;
    }
    let id = |what: &str| {
        let output = Command::new("id").args([what, "nobody"]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let ids = id("-u").zip(id("-g"));
    if ids.is_none() {
        skip("there is no user nobody");
    }
    ids
}

/// The ids by which a process is judged, as the system shows them: real, effective, saved, files'.
fn ids_of(server: &Server, kind: &str) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(kind));
    line.unwrap()
        .split_whitespace()
        .map(|id| id.parse().unwrap())
        .collect()
}

#[test]
fn it_becomes_the_user_that_owns_its_directory() {
    let dir = open_dir();
    let (Some(launch), Some((user, group))) = (Launch::bsd_alone(), nobody()) else {
        return;
    };
    chown(dir.path(), Some(user), Some(group)).unwrap();
    let launch = launch.dir(&dir.path().join("data")).arg("-u").arg("nobody");
    let server = launch.start();
    let id = server.connect().put(b"nobody's");
    assert_eq!(ids_of(&server, "Uid:"), [user; 4]);
    assert_eq!(ids_of(&server, "Gid:"), [group; 4]);
    assert!(
        !ids_of(&server, "Groups:").contains(&0),
        "it is not in root's group any more"
    );
    server.kill();
    let found = launch.start().connect().ask(&format!("peek {id}"));
    assert_eq!(found, format!("FOUND {id} 8\r\nnobody's"));
}

/// Started by that user already, with groups that are not the user's.
#[test]
fn f16_it_leaves_the_groups_of_others_also_when_it_is_that_user_already() {
    let (Some(launch), Some((user, group))) = (Launch::bsd_alone(), nobody()) else {
        return;
    };
    if program("setpriv").is_none() {
        return skip("setpriv is not installed");
    }
    let launch = launch.memory().arg("-u").arg("nobody");
    let (reuid, regid) = (format!("--reuid={user}"), format!("--regid={group}"));
    let as_nobody = ["setpriv", &reuid, &regid, "--groups=0,4,24"];
    let may_leave = ["--inh-caps=+setgid", "--ambient-caps=+setgid"];

    let server = launch
        .clone()
        .wrapped(&[&as_nobody[..], &may_leave].concat());
    let server = server.start();
    let groups = ids_of(&server, "Groups:");
    for other in [0, 4, 24] {
        assert!(!groups.contains(&other), "{groups:?}");
    }
    let exit = server.stop();
    assert!(exit.complaints().is_empty(), "{exit:?}");

    // It may not: then it says so.
    let server = launch.wrapped(&as_nobody).start();
    assert!(ids_of(&server, "Groups:").contains(&24));
    let exit = server.stop();
    assert_one_line(&exit, Some(0), &["stays in groups", "(0, 4, 24)"]);
}

#[test]
fn f17_its_unix_socket_is_the_users_and_goes_at_a_clean_stop() {
    let dir = open_dir();
    let (Some(launch), Some((user, group))) = (Launch::bsd_alone(), nobody()) else {
        return;
    };
    chown(dir.path(), Some(user), Some(group)).unwrap();
    let socket = dir.path().join("socket");
    let address = format!("unix:{},mode=0660", socket.display());
    let launch = launch.memory().arg("-u").arg("nobody");
    let server = launch.clone().arg("-l").arg(&address).start();
    let found = fs::symlink_metadata(&socket).unwrap();
    assert_eq!((found.uid(), found.gid()), (user, group));
    assert_eq!(found.permissions().mode() & 0o777, 0o660);
    assert!(Wire::connect_unix(&socket).unwrap().put(b"x") > 0);
    let exit = server.stop();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(exit.complaints().is_empty(), "{exit:?}");
    assert!(!socket.exists());

    // It must not remove a socket of another owner.
    let server = launch.arg("-l").arg(&address).start();
    fs::remove_file(&socket).unwrap();
    let _other = UnixListener::bind(&socket).unwrap();
    assert_eq!(server.stop().code, Some(0));
    assert!(socket.exists());
}

/// In a directory that the user cannot write the file has to stay, and that is reported.
#[test]
fn f17_a_unix_socket_that_cannot_be_removed_is_told_and_replaced_by_the_next_start() {
    let dir = open_dir();
    let (Some(launch), Some(_)) = (Launch::bsd_alone(), nobody()) else {
        return;
    };
    let socket = dir.path().join("socket");
    let launch = launch.memory().arg("-u").arg("nobody");
    let launch = launch.arg("-l").arg(format!("unix:{}", socket.display()));
    for _ in 0..2 {
        let exit = launch.start().stop();
        assert_one_line(&exit, Some(0), &["cannot remove the socket", "directory"]);
        assert!(socket.exists());
    }
}

/// It exits so, with one complaint on standard error that contains all of `words`.
fn assert_one_line(exit: &Exit, code: Option<i32>, words: &[&str]) {
    assert_eq!(exit.code, code, "{exit:?}");
    assert_eq!(exit.complaints().len(), 1, "{exit:?}");
    for word in words {
        assert!(exit.stderr.contains(word), "{word:?} in {exit:?}");
    }
}

#[test]
fn a_directory_that_is_not_the_users_to_write_stops_the_start() {
    let dir = open_dir();
    let (Some(launch), Some(_)) = (Launch::bsd_alone(), nobody()) else {
        return;
    };
    let data = dir.path().join("data");
    let exit = launch
        .clone()
        .dir(&data)
        .arg("-u")
        .arg("nobody")
        .run_to_exit();
    assert_one_line(
        &exit,
        CANNOT_START,
        &[&data.to_string_lossy(), "Permission denied"],
    );
    assert!(!data.exists());

    // There it is, but root's.
    let server = launch.clone().dir(&data).start();
    server.connect().put(b"root's");
    server.kill();
    let exit = launch.dir(&data).arg("-u").arg("nobody").run_to_exit();
    assert_one_line(
        &exit,
        CANNOT_START,
        &[&data.to_string_lossy(), "Permission denied"],
    );
}

/// Such as a home directory that others may pass through but not list.
#[test]
fn the_parent_of_its_directory_need_not_be_readable() {
    let dir = open_dir();
    let (Some(launch), Some((user, group))) = (Launch::bsd_alone(), nobody()) else {
        return;
    };
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    chown(&data, Some(user), Some(group)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let server = launch.dir(&data).arg("-u").arg("nobody").start();
    assert!(server.connect().put(b"reached") > 0);
}

#[test]
fn an_unknown_user_stops_the_start() {
    let Some(launch) = Launch::bsd_alone().map(Launch::memory) else {
        return;
    };
    let exit = launch.arg("-u").arg("no-such-user").run_to_exit();
    assert_one_line(
        &exit,
        CANNOT_START,
        &["no-such-user", "there is no such user"],
    );
}

/// Where a disk is not mounted, an empty log on the disk below it would hide that.
#[test]
fn f18_only_the_directory_itself_is_made_and_not_its_parents() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let data = dir.path().join("a/b");
    for launch in [
        launch.clone().dir(&data),
        launch.clone().dir(&data).arg("--import"),
    ] {
        let exit = launch.run_to_exit();
        let parent = dir.path().join("a");
        let words = [
            &*data.to_string_lossy(),
            &format!("there is no directory {};", parent.display()),
            "mkdir -p",
        ];
        assert_one_line(&exit, CANNOT_START, &words);
        assert!(!parent.exists());
    }
    fs::create_dir(dir.path().join("a")).unwrap();
    let launch = launch.dir(&data);
    let server = launch.start();
    let id = server.connect().put(b"deep");
    server.kill();
    let found = launch.start().connect().ask(&format!("peek {id}"));
    assert_eq!(found, format!("FOUND {id} 4\r\ndeep"));
}

#[test]
fn a_file_in_place_of_the_directory_stops_the_start_and_is_left_alone() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let file = dir.path().join("file");
    fs::write(&file, "notes").unwrap();
    for path in [file.clone(), file.join("below")] {
        let exit = launch.clone().dir(&path).run_to_exit();
        assert_one_line(&exit, CANNOT_START, &[&path.to_string_lossy()]);
        assert_eq!(fs::read_to_string(&file).unwrap(), "notes");
    }
}

/// Runs the server with `dir` as a read-only file system of its own; it is invisible to others, and
/// ends with the server.
fn on_read_only(launch: Launch, dir: &Path) -> Option<Launch> {
    const MOUNT: &str = "mount -t tmpfs -o ro tmpfs \"$0\"";
    let may = program("unshare").is_some_and(|unshare| {
        let mut probe = Command::new(unshare);
        probe
            .args(["-m", "sh", "-c", MOUNT])
            .arg(dir)
            .stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    });
    if !may {
        skip("a read-only file system cannot be mounted");
        return None;
    }
    let script = format!("{MOUNT} && exec \"$@\"");
    Some(launch.wrapped(&["unshare", "-m", "sh", "-c", &script, dir.to_str()?]))
}

#[test]
fn a_read_only_file_system_stops_the_start() {
    let dir = TempDir::new().unwrap();
    for data in [dir.path().to_owned(), dir.path().join("data")] {
        let launch = Launch::bsd_alone().map(|launch| launch.dir(&data));
        let Some(launch) = launch.and_then(|launch| on_read_only(launch, dir.path())) else {
            return;
        };
        let exit = launch.run_to_exit();
        assert_one_line(
            &exit,
            CANNOT_START,
            &[&data.to_string_lossy(), "Read-only file system"],
        );
    }
}

#[test]
fn past_the_bound_of_memory_puts_are_refused_until_jobs_are_deleted() {
    const BODY_SIZE: usize = 10_000;
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    for launch in [
        launch.clone().memory(),
        launch.dir(&dir.path().join("data")),
    ] {
        let server = launch.arg("--max-memory").arg("8m").start();
        let mut wire = server.connect();
        // With a log the bodies are not in memory: many small jobs fill it as well.
        let ids = fill_memory(&mut wire);
        let before = server.resident_memory();
        for _ in 0..200 {
            assert_eq!(wire.try_put(&[b'r'; BODY_SIZE]), "OUT_OF_MEMORY");
        }
        let grown = server.resident_memory().saturating_sub(before);
        assert!(grown < 1 << 20, "{grown} bytes for puts that were refused");
        assert_eq!(wire.reserve(), ids[0], "everything else goes on");
        for some in ids[..ids.len() / 2].chunks(100) {
            let deletes = some.iter().map(|id| format!("delete {id}\r\n"));
            wire.send(deletes.collect::<String>());
            some.iter()
                .for_each(|id| assert_eq!(wire.text(), "DELETED", "job {id}"));
        }
        assert!(wire.put(&[b'n'; BODY_SIZE]) > 0);
    }
}

/// Put jobs until they are refused; their ids.
fn fill_memory(wire: &mut Wire) -> Vec<u64> {
    const AT_A_TIME: usize = 100;
    let mut ids = Vec::new();
    for _ in 0..10_000 {
        wire.send(put_command(0, 0, &[b'm'; 10]).repeat(AT_A_TIME));
        let replies: Vec<String> = (0..AT_A_TIME).map(|_| wire.text()).collect();
        ids.extend(
            replies
                .iter()
                .filter_map(|reply| crate::wire::inserted(reply)),
        );
        if replies.iter().any(|reply| reply == "OUT_OF_MEMORY") {
            return ids;
        }
    }
    panic!("memory never fills up");
}
