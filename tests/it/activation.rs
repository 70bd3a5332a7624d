//! What the server is handed at its start and what it makes of it: sockets and a notify socket of a
//! service manager, a user to become, a directory that may not be usable, a bound of memory.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::harness::{Exit, Launch, PATIENCE, Server, program, skip};
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
    let launch = handing_on(launch.arg("-V"), HAND_ON_TWO);
    let server = launch.spawn_with(stdio(tcp), stdio(unix));

    // The sockets are there before the server is: nobody has to try twice.
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

    /// The next message.
    fn hear(&self) -> String {
        let mut message = [0; 512];
        let size = self
            .socket
            .recv(&mut message)
            .expect("the service says something");
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

/// The user and group ids of `nobody`, where this process may become it.
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

/// It exits so, with one line on standard error that contains all of `words`.
fn assert_one_line(exit: &Exit, code: Option<i32>, words: &[&str]) {
    assert_eq!(exit.code, code, "{exit:?}");
    assert_eq!(exit.stderr.lines().count(), 1, "{exit:?}");
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

#[test]
fn missing_parents_of_the_directory_are_made() {
    let dir = TempDir::new().unwrap();
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch.dir(&dir.path().join("a/b/c"));
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

/// Runs the server where `dir` is a file system of its own that cannot be written to; nobody else
/// sees it, and it goes with the server.
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
