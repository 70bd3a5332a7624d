//! Everything at once, for as long as is asked for: good clients whose every change is held to
//! account, and hostile ones; a disk that is full twice, too few descriptors, standard error that
//! goes away, compaction, backups under way, and five kills.
//!
//! `BSD_SOAK_SECONDS` is the length of a run. The good clients are those of [`crate::crash`], whose
//! history is the oracle: after each kill, and at the end, no acknowledged change is lost. In the
//! last life, which is half of the run and ends with a clean stop, nothing may grow: memory,
//! descriptors, the directory.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::crash::{Oracle, Raise};
use crate::faults::SmallDisk;
use crate::harness::{Launch, Server, program, skip, wait_until, wal};
use bsd::check::volume::{seed_of_run, volume};
use bsd::random::Random;

const KILLS: u32 = 5;
/// Good clients, each on a connection of its own.
const CLIENTS: usize = 20;
/// Past this many jobs each of them only takes away.
const JOBS_A_CLIENT: usize = 400;
const SEGMENT_SIZE: u64 = 1 << 20;
const DISK_SIZE: &str = "48m";
/// Both limits of open files: the hostile clients use up the rest.
const DESCRIPTORS: &str = "--nofile=256:256";
/// Descriptors that the server keeps free of connections: for the log, the listeners and the
/// standard streams.
const DESCRIPTORS_AT_REST: u64 = 64;
const CROWD: usize = 300;
/// A backup is taken every minute, and in short runs ten times.
const BACKUP_EVERY_MAX: Duration = Duration::from_secs(60);
/// How often a life is looked at.
const LOOKS: u32 = 20;

/// Figures for people to read.
#[derive(Debug, Default)]
struct Figures {
    hostile_connections: AtomicU64,
    times_full: AtomicU64,
    updates_refused: AtomicU64,
    backups: AtomicU64,
}

/// One look at a running server from outside.
#[derive(Debug, Clone, Copy)]
struct Look {
    memory: u64,
    descriptors: u64,
    directory: u64,
}

impl Look {
    fn at(server: &Server, dir: &Path) -> Look {
        let open = fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
        Look {
            memory: server.resident_memory(),
            descriptors: open.count() as u64,
            directory: size_of(dir),
        }
    }
}

/// The space of the files in a directory, which come and go meanwhile.
pub(crate) fn size_of(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(dir).unwrap().filter_map(Result::ok);
    let metadata = entries.filter_map(|entry| entry.metadata().ok());
    metadata.map(|metadata| metadata.blocks() * 512).sum()
}

/// The greatest of each over some looks.
fn greatest(looks: &[Look]) -> Look {
    let max = |of: fn(&Look) -> u64| looks.iter().map(of).max().unwrap();
    Look {
        memory: max(|look| look.memory),
        descriptors: max(|look| look.descriptors),
        directory: max(|look| look.directory),
    }
}

/// A run.
struct Soak {
    disk: SmallDisk,
    /// Not on the disk that gets full.
    elsewhere: TempDir,
    figures: Figures,
    life: Duration,
}

impl Soak {
    fn data(&self) -> PathBuf {
        self.disk.path().join("data")
    }

    fn launch(&self) -> Launch {
        let size = SEGMENT_SIZE.to_string();
        let launch = Launch::bsd().dir(&self.data()).arg("-s").arg(size);
        launch.arg("-VV").wrapped(&["prlimit", DESCRIPTORS])
    }

    /// Run the good clients, the hostile ones and all that befalls the server until `end` returns.
    fn live(&self, oracle: &mut Oracle, address: SocketAddr, is_full: bool, end: impl FnOnce()) {
        let over = AtomicBool::new(false);
        oracle.others_fill_the_disk(is_full);
        oracle.work_while(address, || {
            thread::scope(|scope| {
                wait_until("the good clients are served", || {
                    connections(address) > CLIENTS as u64
                });
                for (nth, be_hostile) in HOSTILE.iter().enumerate() {
                    let (over, figures) = (&over, &self.figures);
                    scope.spawn(move || {
                        let mut random = Random::new(nth as u64 + 1);
                        while !over.load(Ordering::Relaxed) {
                            let made = be_hostile(address, &mut random, over);
                            let made = made.unwrap_or(0);
                            figures
                                .hostile_connections
                                .fetch_add(made, Ordering::Relaxed);
                            thread::sleep(Duration::from_millis(5));
                        }
                    });
                }
                scope.spawn(|| self.back_up_until(&over));
                if is_full {
                    scope.spawn(|| self.fill_disk_until(&over));
                }
                // However it ends, the others end, too.
                let _over = Raise(&over);
                end();
            });
        });
        let refused = oracle.others_fill_the_disk(false);
        self.figures
            .updates_refused
            .fetch_add(refused, Ordering::Relaxed);
    }

    /// Take all the room there is during the middle of a life. The log may take again what it gives
    /// back then: if another process is quicker, see docs/limits.md.
    fn fill_disk_until(&self, over: &AtomicBool) {
        let started = Instant::now();
        let path = self.disk.path().join("someone-elses");
        let block = vec![1; 64 << 10];
        while started.elapsed() < self.life / 4 {
            thread::sleep(Duration::from_millis(5));
        }
        let mut file = fs::File::create(&path).unwrap();
        while file.write_all(&block).is_ok() {}
        while started.elapsed() < self.life * 3 / 4 && !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        self.figures.times_full.fetch_add(1, Ordering::Relaxed);
        fs::remove_file(&path).unwrap();
    }

    fn backup_dir(&self) -> PathBuf {
        self.elsewhere.path().join("backup")
    }

    fn back_up_until(&self, over: &AtomicBool) {
        let every = BACKUP_EVERY_MAX.min(self.life / 3);
        let mut last = Instant::now();
        while !over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
            if last.elapsed() < every {
                continue;
            }
            let data = self.data();
            let words = [
                Path::new("backup"),
                &data,
                Path::new("--output"),
                &self.backup_dir(),
            ];
            // Where the server is killed or begins at the same time it may be refused; what it
            // calls a backup is looked at in the end.
            if wal(&words).0 == Some(0) {
                self.figures.backups.fetch_add(1, Ordering::Relaxed);
            }
            last = Instant::now();
        }
    }

    /// Standard error is a file, or a pipe whose reader goes away in the middle of a life.
    fn start(&self, is_piped: bool) -> Server {
        match is_piped {
            true => self.launch().start_heard(20_000),
            false => self.launch().start(),
        }
    }
}

/// As the server counts them; 0 where it does not answer.
fn connections(address: SocketAddr) -> u64 {
    let Ok(mut wire) = crate::wire::Wire::connect(address) else {
        return 0;
    };
    if wire.try_send(b"stats\r\nquit\r\n").is_err() {
        return 0;
    }
    let said = wire.try_rest().unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix("current-connections: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Does some harm, but not to jobs of others, and returns how many connections it made. An error is
/// the server's refusal or end.
type Hostile = fn(SocketAddr, &mut Random, &AtomicBool) -> std::io::Result<u64>;

const HOSTILE: [Hostile; 6] = [
    crowd,
    never_read,
    send_garbage,
    leave_in_the_middle,
    wait_and_leave,
    pause_and_leave,
];

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_write_timeout(Some(Duration::from_millis(50)))?;
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    Ok(stream)
}

/// More connections than there are descriptors.
fn crowd(address: SocketAddr, _: &mut Random, over: &AtomicBool) -> std::io::Result<u64> {
    let mut all = Vec::new();
    while all.len() < CROWD && !over.load(Ordering::Relaxed) {
        all.push(connect(address)?);
    }
    Ok(all.len() as u64)
}

/// Asks for much and reads nothing.
fn never_read(address: SocketAddr, _: &mut Random, over: &AtomicBool) -> std::io::Result<u64> {
    let mut all = Vec::new();
    for _ in 0..10 {
        let mut stream = connect(address)?;
        let packet = "stats\r\nlist-tubes\r\n".repeat(200);
        while !over.load(Ordering::Relaxed) && stream.write_all(packet.as_bytes()).is_ok() {}
        all.push(stream);
    }
    Ok(all.len() as u64)
}

fn send_garbage(address: SocketAddr, random: &mut Random, _: &AtomicBool) -> std::io::Result<u64> {
    let mut stream = connect(address)?;
    let garbage: Vec<u8> = (0..5000).map(|_| random.next() as u8).collect();
    stream.write_all(&garbage)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(1)
}

/// Stop in the middle of a put, which therefore does not count.
fn leave_in_the_middle(
    address: SocketAddr,
    random: &mut Random,
    _: &AtomicBool,
) -> std::io::Result<u64> {
    let mut stream = connect(address)?;
    stream.write_all(b"use hostile\r\nput 0 0 60 60000\r\n")?;
    stream.write_all(&vec![b'h'; random.below(60_000) as usize])?;
    Ok(1)
}

/// On many tubes at once.
fn wait_and_leave(
    address: SocketAddr,
    random: &mut Random,
    _: &AtomicBool,
) -> std::io::Result<u64> {
    let mut stream = connect(address)?;
    let first = random.below(1000);
    let watches: String = (0..1000)
        .map(|nth| format!("watch hostile-{}\r\n", first + nth))
        .collect();
    stream.write_all(watches.as_bytes())?;
    stream.write_all(b"ignore default\r\nreserve-with-timeout 100\r\n")?;
    if random.one_in(2) {
        stream.shutdown(Shutdown::Write)?;
    }
    // As long as it is answered.
    while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
    Ok(1)
}

/// A tube that is gone with its last user.
fn pause_and_leave(
    address: SocketAddr,
    random: &mut Random,
    _: &AtomicBool,
) -> std::io::Result<u64> {
    let mut stream = connect(address)?;
    for _ in 0..20 {
        let tube = format!("paused-{}", random.next());
        let lines = format!("use {tube}\r\npause-tube {tube} 4294967295\r\nuse default\r\n");
        stream.write_all(lines.as_bytes())?;
    }
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(1)
}

#[test]
fn good_and_hostile_clients_full_disks_and_kills_lose_nothing_and_nothing_grows() {
    let seconds = volume("BSD_SOAK_SECONDS", 10);
    if program("prlimit").is_none() {
        return skip("prlimit is not installed");
    }
    let (Some(_), Some(disk)) = (Launch::bsd_alone(), SmallDisk::mount(DISK_SIZE)) else {
        return;
    };
    let mut random = Random::new(seed_of_run("BSD_SOAK_SEED"));
    let whole = Duration::from_secs(seconds.max(2));
    let soak = Soak {
        disk,
        elsewhere: TempDir::new().unwrap(),
        figures: Figures::default(),
        life: whole / 2 / KILLS,
    };
    let mut oracle = Oracle::new(CLIENTS, random.next(), true).on_small_disk(JOBS_A_CLIENT);
    let mut server = soak.start(false);
    for nth in 0..KILLS {
        let id_before = oracle.id_max();
        // Twice, and once the kill comes while it is full.
        let is_full = nth == 1 || nth == 3;
        let until = if nth == 3 {
            soak.life * 5 / 8
        } else {
            soak.life
        };
        let address = server.address();
        soak.live(&mut oracle, address, is_full, || {
            thread::sleep(until);
            server.kill();
        });
        server = soak.start(nth % 2 == 0);
        oracle.check(&server, id_before);
    }
    let before = soak.look_at_rest(&server);
    let looks = last_life(&soak, &mut oracle, &server, whole / 2);
    soak.finish(&mut oracle, server, before, &looks);
}

/// No server is killed in it. Checks the server, one thing after the other.
fn last_life(soak: &Soak, oracle: &mut Oracle, server: &Server, length: Duration) -> Vec<Look> {
    let mut looks = Vec::new();
    soak.live(oracle, server.address(), false, || {
        for _ in 0..LOOKS {
            thread::sleep(length / LOOKS);
            looks.push(Look::at(server, &soak.data()));
        }
    });
    looks
}

impl Soak {
    /// Under load the hostile clients decide how many descriptors are open, not the server.
    fn look_at_rest(&self, server: &Server) -> Look {
        wait_until("all clients are gone", || {
            connections(server.address()) == 1
        });
        Look::at(server, &self.data())
    }

    fn finish(&self, oracle: &mut Oracle, server: Server, before: Look, looks: &[Look]) {
        let id_before = oracle.id_max();
        let after = self.look_at_rest(&server);
        assert_eq!(server.stop().code, Some(0));
        let server = self.start(false);
        oracle.check(&server, id_before);
        assert_eq!(server.stop().code, Some(0));
        let data = self.data();
        let (code, said) = wal(&[Path::new("verify"), &data]);
        assert_eq!(code, Some(0), "{said}");
        let restored = self.elsewhere.path().join("restored");
        let words = [
            Path::new("restore"),
            &self.backup_dir(),
            Path::new("--output"),
            &restored,
        ];
        let (code, said) = wal(&words);
        assert_eq!(code, Some(0), "{said}");

        let (early, late) = looks.split_at(looks.len() / 2);
        let (early, late) = (greatest(early), greatest(late));
        println!(
            "{} jobs put, {} puts refused",
            oracle.id_max(),
            oracle.refused()
        );
        println!("{:?}", self.figures);
        println!("before {before:?}\nearly {early:?}\nlate {late:?}\nafter {after:?}");
        assert!(
            late.memory <= early.memory * 13 / 10 + (24 << 20),
            "memory grows"
        );
        assert!(after.descriptors <= DESCRIPTORS_AT_REST, "descriptors grow");
        let room = 4 * SEGMENT_SIZE;
        assert!(
            late.directory <= early.directory * 13 / 10 + room,
            "the directory grows"
        );
        assert_eq!(self.figures.times_full.load(Ordering::Relaxed), 2);
        assert!(self.figures.backups.load(Ordering::Relaxed) > 0);
    }
}
