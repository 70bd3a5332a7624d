//! Servers as child processes, on ports that the system chooses. Dropping one kills it, by its own id.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bsd_client::{Client, Config};
use rustix::process::{Pid, Signal, kill_process};

/// How long anything that must happen may take before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A test cannot run here; a failure where peers are required.
pub(crate) fn skip(why: &str) {
    let is_required = std::env::var_os("BSD_REQUIRE_PEERS").is_some_and(|value| value == "1");
    assert!(!is_required, "a peer is required but {why}");
    let thread = std::thread::current();
    // `eprintln!` would be swallowed.
    let name = thread.name().unwrap_or("a test");
    _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}

/// The server to test, if it was built.
pub(crate) fn bsd() -> Option<PathBuf> {
    let given = std::env::var_os("BSD_SERVER").map(PathBuf::from);
    let test = std::env::current_exe().unwrap();
    let program = given.unwrap_or_else(|| test.ancestors().nth(2).unwrap().join("bsd-server"));
    if !program.is_file() {
        skip(&format!(
            "{} is missing: build it, or set BSD_SERVER",
            program.display()
        ));
        return None;
    }
    Some(program)
}

/// The first beanstalkd on the path, so that another version can be tried; or Debian's.
pub(crate) fn beanstalkd() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin")]);
    let found = places
        .map(|place| place.join("beanstalkd"))
        .find(|program| program.is_file());
    if found.is_none() {
        skip("beanstalkd is not installed");
    }
    found
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    address: String,
}

/// The address in a line in which a server says where it listens.
fn listens(line: &str) -> Option<String> {
    let address = line
        .split_once("listening on ")?
        .1
        .split_whitespace()
        .next()?;
    Some(address.trim_end_matches(',').to_owned())
}

impl Server {
    fn spawn(program: &Path, args: &[String]) -> Server {
        let mut command = Command::new(program);
        let command = command.args(args).stdin(Stdio::null());
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, addresses) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(address) = listens(&line) {
                    _ = sender.send(address);
                }
            }
        });
        let address = addresses.recv_timeout(PATIENCE);
        let address = address.unwrap_or_else(|_| panic!("{program:?} {args:?} does not listen"));
        Server { child, address }
    }

    /// bsd with these flags; where they name no listener, on a free port of this machine.
    pub(crate) fn bsd(args: &[&str]) -> Option<Server> {
        let program = bsd()?;
        let mut all: Vec<String> = ["--http", "off", "-p", "0"].map(str::to_owned).to_vec();
        if !args.contains(&"-b") {
            all.push("--memory".to_owned());
        }
        if !args.contains(&"-l") {
            all.extend(["-l", "127.0.0.1"].map(str::to_owned));
        }
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        Some(Server::spawn(&program, &all))
    }

    /// bsd with exactly these flags.
    pub(crate) fn bsd_with_all(args: &[&str]) -> Option<Server> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        Some(Server::spawn(&bsd()?, &args))
    }

    /// beanstalkd, on a port that was free: it says where it listens only at its end. If another process
    /// takes the port first, on the next one.
    pub(crate) fn beanstalkd() -> Option<Server> {
        Server::beanstalkd_with(&[])
    }

    /// The same, with these flags.
    pub(crate) fn beanstalkd_with(args: &[&str]) -> Option<Server> {
        let program = beanstalkd()?;
        for _ in 0..5 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let mut command = Command::new(&program);
            command
                .args(["-l", "127.0.0.1", "-p", &address.port().to_string()])
                .args(args);
            let child = command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut server = Server {
                child,
                address: address.to_string(),
            };
            if server.is_itself() {
                return Some(server);
            }
        }
        panic!("five ports in a row were taken by others");
    }

    /// Whether it answers with its own process id, before it ends.
    fn is_itself(&mut self) -> bool {
        let mut is_itself = false;
        let id = self.child.id().to_string();
        wait_until("it serves or ends", || {
            if let Ok(mut client) = Client::connect(self.config()) {
                is_itself = client
                    .stats()
                    .is_ok_and(|stats| stats.get("pid") == Some(&id));
                return true;
            }
            self.child.try_wait().unwrap().is_some()
        });
        is_itself
    }

    /// Where it listens, as a client wants it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(crate) fn config(&self) -> Config {
        self.address.parse().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.config()).unwrap()
    }

    /// Have it take no more jobs.
    pub(crate) fn drain(&self) {
        kill_process(Pid::from_child(&self.child), Signal::USR1).unwrap();
        let mut client = self.client();
        wait_until("it drains", || {
            client.stats().unwrap().draining == Some(true)
        });
    }

    /// Kill it at once, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Look again and again until something is true.
pub(crate) fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_done() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
