//! Servers as child processes: started on a free loopback port, waited for, signalled, and ended
//! by process id when the test lets go of them.
//!
//! Nothing here sleeps instead of checking: a server is up when it answers `stats` with its own
//! process id, and down when the kernel has returned its exit status. Polling is limited by
//! [`PATIENCE`].

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;

use bsd::random::Random;

use crate::ROOT;
use crate::wire::Wire;

/// How long anything that must happen may take before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(2);
const PORT_TRIES: usize = 5;

/// True when peers that are missing have to fail their tests (`BSD_REQUIRE_PEERS=1`).
pub(crate) fn peers_are_required() -> bool {
    std::env::var_os("BSD_REQUIRE_PEERS").is_some_and(|value| value == "1")
}

/// Report that a test cannot run here; a failure where peers are required.
pub(crate) fn skip(why: &str) {
    assert!(!peers_are_required(), "a peer is required but {why}");
    say_skipped(why);
}

/// Said on the real standard error: what passing tests print is swallowed, and a test that did
/// nothing is not to look like one that passed. The last of these lines has their number.
fn say_skipped(why: &str) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let nth = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    // `eprintln!` would be swallowed.
    let _ = writeln!(io::stderr(), "skipped ({nth} so far): {test}: {why}");
}

/// A program found on the path.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// The `bsd-wal` to test.
pub(crate) fn bsd_wal() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        tool(
            "bsd-wal",
            &["crates/bsd-archive/src", "crates/bsd-cluster/src"],
        )
    });
    &PROGRAM
}

/// The `bsd-ctl` to test.
pub(crate) fn bsd_ctl() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| tool("bsd-ctl", &["clients/rust/src"]));
    &PROGRAM
}

/// A tool of `tools/`: `cargo test` and `cargo build` put it next to the directory of this test's
/// program, `cargo test --test it` does not. One that is older than its sources, to which `beside`
/// belong, fails the test.
fn tool(name: &str, beside: &[&str]) -> PathBuf {
    let own = format!("tools/{name}/src");
    let mut sources = vec!["src", "tools/bsd-tools/src", &own];
    sources.extend(beside);
    built(name, &sources, "`cargo build`")
}

/// An example of the client for Rust, which `cargo test` makes as well.
pub(crate) fn client_example(name: &str) -> PathBuf {
    let sources = ["clients/rust/src", "clients/rust/examples"];
    let build = "`cargo build -p bsd-client --examples --all-features`";
    built(&format!("examples/{name}"), &sources, build)
}

/// A program beside the directory of this test's own, which is to be newer than its sources.
fn built(name: &str, sources: &[&str], build: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join(name);
    let built = program.metadata().and_then(|it| it.modified());
    let changed = sources
        .iter()
        .map(|dir| last_change(&Path::new(ROOT).join(dir)));
    assert!(
        built.is_ok_and(|built| changed.max().is_none_or(|changed| changed <= built)),
        "{} is missing, or older than its sources; build it: {build}, with --release if the test is \
         run so",
        program.display()
    );
    program
}

/// When a source below `dir` was changed last, of those that a program is made of.
fn last_change(dir: &Path) -> SystemTime {
    let mut last = SystemTime::UNIX_EPOCH;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let stem = name.trim_end_matches(".rs");
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        last = last.max(match entry.file_type().unwrap().is_dir() {
            true => last_change(&entry.path()),
            false => entry.metadata().unwrap().modified().unwrap(),
        });
    }
    last
}

/// Run `bsd-wal`: its exit code, and all that it wrote.
pub(crate) fn wal(args: &[impl AsRef<OsStr>]) -> (Option<i32>, String) {
    let output = Command::new(bsd_wal()).args(args).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// How a process ended (its exit code, `None` after a signal), and what it wrote to standard error.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

impl Exit {
    /// The lines that are warnings or errors.
    pub(crate) fn complaints(&self) -> Vec<&str> {
        complaints(&self.stderr)
    }
}

/// Those of a server's lines that are warnings or errors.
pub(crate) fn complaints(stderr: &str) -> Vec<&str> {
    stderr
        .lines()
        .filter(|line| !line.contains(" INFO "))
        .collect()
}

/// A command line of a server, without its address.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    program: PathBuf,
    args: Vec<OsString>,
    wrapper: Vec<OsString>,
}

impl Launch {
    /// The server under test.
    pub(crate) fn bsd() -> Launch {
        let built = || OsString::from(env!("CARGO_BIN_EXE_bsd-server"));
        let program = std::env::var_os("BSD_SERVER_UNDER_TEST").unwrap_or_else(built);
        Launch {
            program: program.into(),
            args: Vec::new(),
            wrapper: Vec::new(),
        }
    }

    /// The server under test, or `None` where beanstalkd stands in for it, for a test of what only
    /// bsd promises.
    pub(crate) fn bsd_alone() -> Option<Launch> {
        let launch = Launch::bsd();
        if launch.is_beanstalkd() {
            say_skipped("beanstalkd stands in for the server under test");
            return None;
        }
        Some(launch)
    }

    /// beanstalkd, or `None` (with the reason printed) where it is not installed.
    pub(crate) fn beanstalkd() -> Option<Launch> {
        let found = program("beanstalkd");
        if found.is_none() {
            skip("beanstalkd is not installed");
        }
        found.map(|program| Launch {
            program,
            args: Vec::new(),
            wrapper: Vec::new(),
        })
    }

    /// True for beanstalkd, also when it stands in as the server under test.
    pub(crate) fn is_beanstalkd(&self) -> bool {
        self.program.file_name() == Some(OsStr::new("beanstalkd"))
    }

    /// Without a log, which is beanstalkd's default.
    pub(crate) fn memory(self) -> Launch {
        if self.is_beanstalkd() {
            self
        } else {
            self.arg("--memory")
        }
    }

    /// With the log in `dir`.
    pub(crate) fn dir(self, dir: &Path) -> Launch {
        self.arg("-b").arg(dir)
    }

    /// With one more argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Launch {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// With more arguments.
    pub(crate) fn args(self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Launch {
        args.into_iter().fold(self, Launch::arg)
    }

    /// Run by another program, such as `prlimit`, which must become the server by `exec`.
    pub(crate) fn wrapped(mut self, wrapper: &[&str]) -> Launch {
        self.wrapper = wrapper.iter().map(OsString::from).collect();
        self
    }

    /// Start it and wait until it serves. Panics with its standard error if it does not.
    pub(crate) fn start(&self) -> Server {
        for _ in 0..PORT_TRIES {
            let mut server = self.spawn();
            match server.wait_until_it_serves() {
                Ok(()) => return server,
                Err(exit) if is_port_taken(&exit.stderr) => {}
                Err(exit) => panic!("{self:?} did not start: {exit:#?}"),
            }
        }
        panic!("{self:?}: {PORT_TRIES} ports in a row were taken by others");
    }

    /// Start it and return at once; it may or may not come to serve.
    pub(crate) fn spawn(&self) -> Server {
        self.spawn_with(Stdio::null(), Stdio::null())
    }

    /// Start it and return when it has said that it is ready, whether it serves or not, or has ended.
    pub(crate) fn spawn_bound(&self) -> Server {
        self.spawn_until_it_says("ready: ")
    }

    /// Start it and return when it has said this, or has ended, but not because another process has its
    /// port.
    pub(crate) fn spawn_until_it_says(&self, said: &str) -> Server {
        for _ in 0..PORT_TRIES {
            let mut server = self.spawn();
            wait_until(&format!("it has said {said:?}, or ended"), || {
                server.stderr().contains(said) || !server.is_running()
            });
            if !is_port_taken(&server.stderr()) {
                return server;
            }
        }
        panic!("{self:?}: {PORT_TRIES} ports in a row were taken by others");
    }

    /// Start it with these descriptors 0 and 1, for a wrapper that passes them on.
    pub(crate) fn spawn_with(&self, stdin: Stdio, stdout: Stdio) -> Server {
        let stderr = NamedTempFile::new().unwrap();
        let to_file = Stdio::from(stderr.reopen().unwrap());
        self.spawn_on(stdin, stdout, to_file, stderr)
    }

    /// Start it with a pipe for its standard error, whose reader goes away after this many bytes.
    pub(crate) fn start_heard(&self, bytes: u64) -> Server {
        for _ in 0..PORT_TRIES {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut server = self.spawn_saying(writer.into());
            let heard = thread::spawn(move || {
                let mut said = Vec::new();
                reader.take(bytes).read_to_end(&mut said).map(|_| said)
            });
            let Err(exit) = server.wait_until_it_serves() else {
                return server;
            };
            let said = heard.join().unwrap().unwrap();
            let said = String::from_utf8_lossy(&said);
            assert!(
                is_port_taken(&said),
                "{self:?} did not start: {exit:?}: {said}"
            );
        }
        panic!("{self:?}: {PORT_TRIES} ports in a row were taken by others");
    }

    /// The same with a standard error of the test's own, so that [`Server::stderr`] is empty.
    pub(crate) fn spawn_saying(&self, stderr: Stdio) -> Server {
        let unused = NamedTempFile::new().unwrap();
        self.spawn_on(Stdio::null(), Stdio::null(), stderr, unused)
    }

    fn spawn_on(&self, stdin: Stdio, stdout: Stdio, to: Stdio, stderr: NamedTempFile) -> Server {
        let port = free_port();
        let child = self
            .command(port)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(to)
            .spawn()
            .unwrap_or_else(|error| panic!("{self:?}: {error}"));
        Server {
            child,
            port,
            stderr,
        }
    }

    /// Start it, expecting it to end by itself.
    pub(crate) fn run_to_exit(&self) -> Exit {
        self.spawn().wait()
    }

    /// Tests run side by side: the default address is for those that ask for it.
    fn http(&self) -> Vec<OsString> {
        let asks = |arg: &OsString| arg.to_string_lossy().starts_with("--http");
        let is_silent = self.is_beanstalkd() || self.args.iter().any(asks);
        let off = if is_silent {
            &[][..]
        } else {
            &["--http", "off"]
        };
        off.iter().map(OsString::from).collect()
    }

    fn command(&self, port: u16) -> Command {
        let mut words = self.wrapper.clone();
        words.push(self.program.clone().into());
        words.extend(["-l", "127.0.0.1", "-p"].map(OsString::from));
        words.push(port.to_string().into());
        words.extend(self.http());
        words.extend(self.args.iter().cloned());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }
}

/// An address for the peers of a member, which no one else gets while the member is down: its IP
/// address is one of loopback's for this process and this number where that can be had, so that the
/// kernel gives it to no client, and its port has been given out to no other test of this process.
pub(crate) fn peer_address(number: u8) -> SocketAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let ip = match cfg!(target_os = "linux") {
        true => Ipv4Addr::new(127, high.max(1), low, number + 1),
        false => Ipv4Addr::LOCALHOST,
    };
    unused_address(ip)
}

/// An unused port of this address, which no other test of this process was given while there are such.
/// Where it can be, it is below those that the kernel gives to connections and to anyone who asks for
/// any: it is still unused when the server takes it.
fn unused_address(ip: Ipv4Addr) -> SocketAddr {
    static GIVEN: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());
    static FIRST_OF_ANY: LazyLock<u16> = LazyLock::new(|| {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        let first = range
            .ok()
            .and_then(|it| it.split_whitespace().next()?.parse().ok());
        first.unwrap_or(0)
    });
    // Above the default ports of a server, which some tests ask for.
    const FIRST: u16 = 13_000;
    let mut random = Random::new(RandomState::new().hash_one(ip));
    let unused = || {
        let below = u64::from(FIRST_OF_ANY.saturating_sub(FIRST));
        let port = match below {
            0 => 0,
            _ => FIRST + random.below(below) as u16,
        };
        TcpListener::bind((ip, port))
            .and_then(|it| it.local_addr())
            .ok()
    };
    let is_new = |address: &SocketAddr| GIVEN.lock().unwrap().insert(*address);
    let tries = std::iter::repeat_with(unused).take(10_000);
    let found = tries.flatten().find(is_new);
    found.expect("a port that is not in use")
}

/// Whether a server, bsd's or beanstalkd, has ended because another process has its port: between the
/// choice of a port and its use it may be taken.
pub(crate) fn is_port_taken(said: &str) -> bool {
    said.contains("Address already in use") || said.contains("listens there")
}

/// An unused port. Another process may take it before the server does: then the server reports that
/// and [`Launch::start`] takes the next one.
pub(crate) fn free_port() -> u16 {
    unused_address(Ipv4Addr::LOCALHOST).port()
}

/// A running server; dropping it kills it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    port: u16,
    stderr: NamedTempFile,
}

impl Server {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Wire {
        Wire::connect(self.address()).unwrap_or_else(|error| {
            panic!(
                "no connection to {}: {error}\n{}",
                self.address(),
                self.stderr()
            )
        })
    }

    /// The resident memory of the process, in bytes.
    pub(crate) fn resident_memory(&self) -> u64 {
        self.status("VmRSS:") * 1024
    }

    /// The number of this name in the kernel's status of the process.
    pub(crate) fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// End it as a power switch does (SIGKILL), and wait until it is gone.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Ask it to stop (SIGTERM), and wait for that.
    pub(crate) fn stop(self) -> Exit {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Wait until it ends by itself.
    pub(crate) fn wait(mut self) -> Exit {
        match wait_for(&mut self.child) {
            Some(status) => self.exit(status),
            None => panic!(
                "the server went on for {PATIENCE:?}; it said: {}",
                self.stderr()
            ),
        }
    }

    /// True while the process is there.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Its standard error: all that it had said when this was called, and perhaps more.
    pub(crate) fn stderr(&self) -> String {
        wait_until("its lines are written", || !self.is_writing_lines());
        let mut text = Vec::new();
        self.stderr
            .reopen()
            .unwrap()
            .read_to_end(&mut text)
            .unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Lines are written by a thread of their own, which is woken before who asked has the answer:
    /// while it does not sleep there may be lines that are not in the file yet.
    fn is_writing_lines(&self) -> bool {
        let stat_of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat"));
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let mut stats = tasks.into_iter().flatten().flatten().flat_map(stat_of);
        let writer = stats.find_map(|stat| Some(stat.split_once("(bsd-lines) ")?.1.to_owned()));
        // A process that is stopped writes nothing, and one that has ended has no such thread.
        writer.is_some_and(|state| !state.starts_with(['S', 'T', 't', 'Z', 'X']))
    }

    /// Wait until it serves, which it must.
    pub(crate) fn serving(mut self) -> Server {
        match self.wait_until_it_serves() {
            Ok(()) => self,
            Err(exit) => panic!("it did not start: {exit:#?}"),
        }
    }

    fn wait_until_it_serves(&mut self) -> Result<(), Exit> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Err(self.exit(status));
            }
            if self.answers_as_itself() {
                return Ok(());
            }
            assert!(
                Instant::now() < deadline,
                "not serving; it said: {}",
                self.stderr()
            );
            thread::sleep(POLL_EVERY);
        }
    }

    /// Another test's server may have won the port: only the process id tells. The connection is
    /// seen closed by the server, so that its counters are the same after every start.
    fn answers_as_itself(&self) -> bool {
        let Ok(mut wire) = Wire::connect(self.address()) else {
            return false;
        };
        let mut answer = || -> io::Result<Vec<u8>> {
            wire.try_send(b"stats\r\nquit\r\n")?;
            wire.try_rest()
        };
        let own = format!("\npid: {}\n", self.child.id());
        answer().is_ok_and(|stats| String::from_utf8_lossy(&stats).contains(&own))
    }

    fn exit(&self, status: ExitStatus) -> Exit {
        Exit {
            code: status.code(),
            stderr: self.stderr(),
        }
    }

    fn end(&mut self) {
        // The child is reaped only here and in `try_wait`, so its id cannot be another's by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that waits in vain does not say why.
        if thread::panicking()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            println!("the server had ended: {status}; it said: {}", self.stderr());
        }
        self.end();
    }
}

/// Wait for a child, at most for [`PATIENCE`].
pub(crate) fn wait_for(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(POLL_EVERY);
    }
    None
}

/// Poll `done` until it holds; panics with `what` if it does not within [`PATIENCE`].
pub(crate) fn wait_until(what: &str, done: impl FnMut() -> bool) {
    wait_within(PATIENCE, what, done);
}

/// Poll `look` until it returns what is expected; panics with what it returned last if it does not.
pub(crate) fn wait_until_it_is<T>(expected: &T, what: &str, mut look: impl FnMut() -> T)
where
    T: PartialEq + std::fmt::Debug,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = look();
        if found == *expected {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain: {what} are {found:?}, not {expected:?}"
        );
        thread::sleep(POLL_EVERY);
    }
}

/// The same as [`wait_until`] with another patience, for what takes its time on any machine.
pub(crate) fn wait_within(patience: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !done() {
        assert!(
            Instant::now() < deadline,
            "waited {patience:?} in vain until {what}"
        );
        thread::sleep(POLL_EVERY);
    }
}
