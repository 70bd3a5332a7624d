//! The measured servers: each is started in an empty directory, and ended in any case.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bsd::UsageError;
use bsd::storage::RealFs;
use bsd::storage::disk::ReadFs;
use bsd_tools::client::Client;

use crate::channel::Tls;
use crate::control;
use crate::options::Shape;
use crate::plan::Plan;
use crate::process::{self, Cores, check, is_in_memory, now};
use crate::script::Workload;

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(300);

/// A program, its policy, and how it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) program: Program,
    pub(crate) policy: Policy,
    /// The load reaches it over TLS.
    pub(crate) tls: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Beanstalkd,
    Bsd,
    /// This program's own server, which does nothing.
    Echo,
}

/// When acknowledged jobs are on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// There is no log.
    Memory,
    /// At most this many milliseconds later; 0: before.
    Interval(u32),
    /// When the system decides.
    Never,
}

impl Kind {
    pub(crate) fn is_durable(self) -> bool {
        self.policy != Policy::Memory
    }

    pub(crate) fn is_echo(self) -> bool {
        self.program == Program::Echo
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.program, self.policy) {
            (Program::Echo, Policy::Memory) => f.write_str("echo")?,
            (Program::Echo, _) => f.write_str("echo-sync")?,
            (Program::Beanstalkd, Policy::Memory) => f.write_str("beanstalkd")?,
            (Program::Bsd, Policy::Memory) => f.write_str("bsd-memory")?,
            (Program::Beanstalkd, policy) => write!(f, "beanstalkd-{policy}")?,
            (Program::Bsd, policy) => write!(f, "bsd-{policy}")?,
        }
        f.write_str(if self.tls { TLS } else { "" })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Memory => f.write_str("memory"),
            Policy::Interval(ms) => write!(f, "f{ms}"),
            Policy::Never => f.write_str("F"),
        }
    }
}

/// Behind the name of a server that is reached over TLS.
const TLS: &str = "+tls";

impl FromStr for Kind {
    type Err = UsageError;

    fn from_str(text: &str) -> Result<Kind, UsageError> {
        let plain = text.strip_suffix(TLS);
        let tls = plain.is_some();
        let (name, policy) = plain.unwrap_or(text).split_once('-').unwrap_or((text, ""));
        let program = match name {
            "beanstalkd" if !tls => Program::Beanstalkd,
            "bsd" => Program::Bsd,
            "echo" if !tls => Program::Echo,
            _ => return Err(unknown(text).into()),
        };
        let interval = policy.strip_prefix('f').and_then(|ms| ms.parse().ok());
        let policy = match (program, policy, interval) {
            (Program::Beanstalkd | Program::Echo, "", _) | (Program::Bsd, "memory", _) => {
                Policy::Memory
            }
            (Program::Echo, "sync", _) => Policy::Interval(0),
            (Program::Beanstalkd | Program::Bsd, "F", _) => Policy::Never,
            (Program::Beanstalkd | Program::Bsd, _, Some(ms)) => Policy::Interval(ms),
            _ => return Err(unknown(text).into()),
        };
        Ok(Kind {
            program,
            policy,
            tls,
        })
    }
}

fn unknown(text: &str) -> String {
    format!(
        "'{text}' is not one of beanstalkd, beanstalkd-fMS, beanstalkd-F, bsd-memory, bsd-fMS, bsd-F, \
         echo, echo-sync; +tls may follow those of bsd"
    )
}

/// The paths of the programs, and where they may write.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Programs {
    /// The program to compare with
    #[arg(long, value_name = "PATH", default_value = "beanstalkd")]
    beanstalkd: PathBuf,
    /// The program to compare [default: bsd-server, in the directory of this program]
    #[arg(long, value_name = "PATH")]
    bsd: Option<PathBuf>,
    /// Where the logs are written, in directories of their own that are removed afterwards: use the
    /// disk to be measured
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// The certificate of "+tls" servers, for the name localhost (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The authority that the load knows (PEM)
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Keep this program on the last processor and the servers on the others (needs taskset)
    #[arg(long)]
    pin: bool,
    #[arg(skip)]
    is_beanstalkd_silent: bool,
    /// File for the profile of callgrind, if the instructions of a server are counted.
    #[arg(skip)]
    profile: Option<PathBuf>,
}

/// The command line that counts the instructions of a program, in user space and of all threads,
/// and writes them to `profile` when it ends.
fn callgrind(profile: &Path, program: &Command) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--tool=callgrind"]);
    let mut file = OsString::from("--callgrind-out-file=");
    file.push(profile);
    command.arg(file);
    command.arg(program.get_program()).args(program.get_args());
    command
}

impl Programs {
    /// Write the logs to `dir` instead.
    pub(crate) fn write_to(&mut self, dir: &Path) {
        dir.clone_into(&mut self.dir);
    }

    /// Do not show beanstalkd's standard error.
    pub(crate) fn silence_beanstalkd(&mut self) {
        self.is_beanstalkd_silent = true;
    }

    /// Count the instructions of the servers that are started from now on, and do not show their
    /// standard error.
    pub(crate) fn count_into(&mut self, profile: &Path) {
        self.profile = Some(profile.to_owned());
    }

    /// An empty directory of its own.
    pub(crate) fn directory(&self) -> io::Result<DataDir> {
        DataDir::create(&self.dir)
    }

    /// A disk of `size` bytes that fills up soon, if a file system may be mounted.
    pub(crate) fn small_disk(&self, size: u64) -> io::Result<SmallDisk> {
        SmallDisk::mount(&self.dir, size)
    }

    /// Called once before the measurements.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        bsd::rlimit::raise_descriptor_limit();
        if is_in_memory(&self.dir)? {
            eprintln!(
                "bsd-bench: {} is in memory, where a sync costs nothing; give a disk with --dir",
                self.dir.display()
            );
        }
        match (self.pin, Cores::split()) {
            (true, Some(cores)) => cores.keep_this(),
            (true, None) => Err(io::Error::other("--pin needs two processors")),
            (false, _) => Ok(()),
        }
    }

    /// The path of bsd-server.
    pub(crate) fn bsd(&self) -> io::Result<PathBuf> {
        match &self.bsd {
            Some(path) => Ok(path.clone()),
            None => Ok(std::env::current_exe()?.with_file_name("bsd-server")),
        }
    }

    fn command(&self, kind: Kind, address: SocketAddr, dir: &Path) -> io::Result<Command> {
        let mut command = match kind.program {
            Program::Beanstalkd => Command::new(&self.beanstalkd),
            Program::Bsd => Command::new(self.bsd()?),
            Program::Echo => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("echo");
                command
            }
        };
        command.args(["-l", "127.0.0.1", "-p", &address.port().to_string()]);
        match kind.policy {
            Policy::Memory if kind.program == Program::Bsd => _ = command.arg("--memory"),
            Policy::Memory => {}
            Policy::Interval(ms) => _ = command.arg("-b").arg(dir).arg(format!("-f{ms}")),
            Policy::Never => _ = command.arg("-b").arg(dir).arg("-F"),
        }
        Ok(command)
    }

    /// Have the server listen at `address` for TLS; returns how to speak to it.
    fn listen_for_tls(&self, command: &mut Command, address: SocketAddr) -> io::Result<Tls> {
        let (Some(cert), Some(key), Some(authority)) =
            (&self.tls_cert, &self.tls_key, &self.tls_ca)
        else {
            let message = "a server with +tls needs --tls-cert, --tls-key and --tls-ca";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        };
        command.args(["-l", &format!("tls:{address}")]);
        command
            .arg("--tls-cert")
            .arg(cert)
            .arg("--tls-key")
            .arg(key);
        Tls::new("localhost", authority)
    }

    /// The command on the processors of the servers, if they have some of their own.
    pub(crate) fn pinned(&self, command: Command) -> Command {
        match Cores::split() {
            Some(cores) if self.pin => cores.keep_others(command),
            _ => command,
        }
    }
}

/// A directory that is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct DataDir(PathBuf);

impl DataDir {
    fn create(parent: &Path) -> io::Result<DataDir> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("bsd-bench-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot create {}: {error}", dir.display()),
            )
        })?;
        Ok(DataDir(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("bsd-bench: cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A small file system in memory, which is unmounted when this is dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk(DataDir);

impl SmallDisk {
    fn mount(parent: &Path, size: u64) -> io::Result<SmallDisk> {
        let dir = DataDir::create(parent)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "bsd-bench"]);
        let output = mount.arg(&dir.0).stdin(Stdio::null()).output();
        let output = output.map_err(|error| {
            io::Error::new(error.kind(), format!("mount cannot be run: {error}"))
        })?;
        if output.status.success() {
            Ok(SmallDisk(dir))
        } else {
            let message = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(message.trim().to_owned()))
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let done = Command::new("umount").arg(self.path()).status();
        if !done.as_ref().is_ok_and(|status| status.success()) {
            eprintln!(
                "bsd-bench: {} stays mounted; unmount it: {done:?}",
                self.path().display()
            );
        }
    }
}

/// A server that was started here, and is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    /// Declared before the directory, so that it is dropped first.
    child: Ended,
    command: Command,
    /// Where it speaks plainly.
    pub(crate) address: SocketAddr,
    /// Where it speaks TLS.
    tls: Option<(SocketAddr, Tls)>,
    dir: DataDir,
}

/// Addresses of this machine at which no one listens, all different.
pub(crate) fn free_addresses<const COUNT: usize>() -> io::Result<[SocketAddr; COUNT]> {
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); COUNT];
    // All are held until the last one is known.
    let mut held = Vec::new();
    for address in &mut addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        held.push(listener);
    }
    Ok(addresses)
}

/// A child that is ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Ended(Child);

impl Ended {
    pub(crate) fn start(command: &mut Command) -> io::Result<Ended> {
        let child = command.spawn().map_err(|error| {
            let program = command.get_program().display();
            io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
        })?;
        Ok(Ended(child))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its standard output, which was started as a pipe.
    pub(crate) fn output(&mut self) -> io::Result<std::process::ChildStdout> {
        let output = self.0.stdout.take();
        output.ok_or_else(|| io::Error::other("its standard output is not a pipe"))
    }

    /// How it has ended by itself, if it has.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// `kill -9`
    pub(crate) fn kill(&mut self) {
        // It may have ended already; then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Running {
    /// Start a server in an empty directory, with additional `flags`, and wait until it serves.
    pub(crate) fn start(kind: Kind, programs: &Programs, flags: &[String]) -> io::Result<Running> {
        let [address, over_tls] = free_addresses()?;
        let dir = DataDir::create(&programs.dir)?;
        let mut command = programs.command(kind, address, &dir.0)?;
        let tls = match kind.tls {
            true => Some((over_tls, programs.listen_for_tls(&mut command, over_tls)?)),
            false => None,
        };
        if !kind.is_echo() {
            command.args(flags);
        }
        if let Some(profile) = &programs.profile {
            command = callgrind(profile, &command);
        }
        let mut command = programs.pinned(command);
        command.stdin(Stdio::null());
        let is_silent = programs.is_beanstalkd_silent && kind.program == Program::Beanstalkd;
        if is_silent || programs.profile.is_some() {
            command.stderr(Stdio::null());
        }
        let child = Ended::start(&mut command)?;
        let mut running = Running {
            child,
            command,
            address,
            tls,
            dir,
        };
        running.wait_until_it_serves()?;
        Ok(running)
    }

    pub(crate) fn speaks_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// A load on it, over TLS if it is one of those.
    pub(crate) fn plan(&self, shape: Shape, workload: Workload) -> Plan {
        match &self.tls {
            None => Plan::new(self.address, shape, workload),
            Some((address, tls)) => Plan {
                tls: Some(tls.clone()),
                ..Plan::new(*address, shape, workload)
            },
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kill it (`kill -9`), start it again on its files, and measure the time until it answers the
    /// first command.
    pub(crate) fn restart_after_kill(&mut self) -> io::Result<Duration> {
        self.kill();
        let begin = now();
        self.child = Ended::start(&mut self.command)?;
        let served_at = self.wait_until_it_serves()?;
        Ok(served_at - begin)
    }

    /// Kill it (`kill -9`).
    pub(crate) fn kill(&mut self) {
        self.child.kill();
    }

    /// Ask it to stop (`kill`), and wait until it has.
    pub(crate) fn stop(&mut self) -> io::Result<()> {
        process::terminate(self.pid())?;
        let status = self.child.0.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("{:?}: {status}", self.command))),
        }
    }

    /// The files in its directory, by name.
    pub(crate) fn files(&self) -> io::Result<Vec<PathBuf>> {
        let entries = RealFs.read_dir(&self.dir.0)?;
        let files = entries.into_iter().filter(|entry| entry.is_file);
        let mut paths: Vec<_> = files.map(|entry| self.dir.0.join(entry.name)).collect();
        paths.sort();
        Ok(paths)
    }

    fn wait_until_it_serves(&mut self) -> io::Result<Instant> {
        let deadline = now() + START_MAX;
        loop {
            check()?;
            let answers = |mut client: Client| client.ask("use default").is_ok();
            if control::connect(self.address).is_ok_and(answers) {
                return Ok(now());
            }
            if let Some(status) = self.child.status()? {
                let message = format!("{:?} ended at its start: {status}", self.command);
                return Err(io::Error::other(message));
            }
            if now() > deadline {
                let message = format!("{:?} does not come to listen", self.command);
                return Err(io::Error::other(message));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use bsd::storage::disk::{Fs, OpenMode, write_all_at};

    use super::*;

    #[test]
    fn every_kind_of_server_is_said_as_it_is_read() {
        let kinds = [
            "beanstalkd",
            "beanstalkd-f0",
            "beanstalkd-f50",
            "beanstalkd-F",
            "bsd-memory",
            "bsd-f0",
            "bsd-f1000",
            "bsd-F",
            "bsd-memory+tls",
            "bsd-f0+tls",
            "echo",
            "echo-sync",
        ];
        for text in kinds {
            assert_eq!(text.parse::<Kind>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "bsd",
            "bsd-f",
            "beanstalkd-memory",
            "echo-f0",
            "redis",
            "echo+tls",
            "beanstalkd+tls",
            "bsd+tls",
        ] {
            assert!(wrong.parse::<Kind>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_small_disk_takes_no_more_than_its_size_and_goes_with_its_owner() {
        let disk = match SmallDisk::mount(&std::env::temp_dir(), 1 << 20) {
            Ok(disk) => disk,
            Err(error) if std::env::var_os("BSD_REQUIRE_PEERS").is_none() => {
                return eprintln!("skipped: a tmpfs cannot be mounted: {error}");
            }
            Err(error) => panic!("a tmpfs cannot be mounted: {error}"),
        };
        let path = disk.path().to_owned();
        let file = RealFs
            .open(&path.join("file"), OpenMode::CreateNew)
            .unwrap();
        let full = write_all_at(&*file, &vec![1; 2 << 20], 0).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        drop(file);
        drop(disk);
        assert!(!path.exists());
    }

    #[test]
    fn a_data_directory_goes_with_its_owner() {
        let dir = DataDir::create(&std::env::temp_dir()).unwrap();
        let path = dir.0.clone();
        assert!(path.is_dir());
        drop(dir);
        assert!(!path.exists());
    }
}
