//! `bsd-wal backup`, `restore`, `verify --live` and `compact` with a real server: under the load of
//! ten clients, while segments are created and compacted all the time.
//!
//! Each client keeps its own history. What a backup restores has to be, for every client, the state
//! after some first part of that history, which has everything that the client had been answered
//! before the backup began.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `BSD_BACKUPS` | backups taken under load | 5 |

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bsd::random::Random;
use bsd::storage::RealFs;
use bsd::storage::inspect::Inspection;
use bsd::types::JobState;
use tempfile::TempDir;

use crate::harness::{Launch, Server, wait_until, wal};
use crate::wire::{Wire, inserted, put_command};
use bsd::check::volume::volume;

const CLIENTS: usize = 10;
/// Jobs that a client keeps, more or less.
const KEPT: usize = 120;
/// Commands that are sent at once.
const BATCH: usize = 16;

/// The command must do what it is asked.
fn wal_ok(args: &[&str]) -> String {
    let (code, said) = wal(args);
    assert_eq!(code, Some(0), "{args:?}: {said}");
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A change that a client made to its job with this number.
#[derive(Debug, Clone, Copy)]
enum Change {
    Put(u64),
    Bury(u64),
    Kick(u64),
    Delete(u64),
}

/// A client's jobs that are there, by its own numbers, and whether they are buried.
type Jobs = BTreeMap<u64, bool>;

fn apply(jobs: &mut Jobs, change: Change) {
    match change {
        Change::Put(number) | Change::Kick(number) => jobs.insert(number, false),
        Change::Bury(number) => jobs.insert(number, true),
        Change::Delete(number) => jobs.remove(&number),
    };
}

/// The commands of one client, in order.
#[derive(Debug, Default)]
struct Ledger {
    changes: Vec<Change>,
    /// This many of them have been answered.
    answered: usize,
}

/// The body of a job: whose it is, which, and a filling that depends on both.
fn body(client: usize, number: u64) -> Vec<u8> {
    let size = 20 + (number * 131 + client as u64 * 17) % 1500;
    let mut body = format!("{client}:{number}:").into_bytes();
    let filling = (0..size).map(|at| b'a' + ((at + number) % 26) as u8);
    body.extend(filling);
    body
}

fn parse(body: &[u8]) -> (usize, u64) {
    let text = String::from_utf8_lossy(body);
    let mut words = text.split(':');
    let mut word = || words.next().unwrap();
    (word().parse().unwrap(), word().parse().unwrap())
}

/// A client that puts, buries, kicks and deletes until it is stopped.
struct Client {
    number: usize,
    wire: Wire,
    random: Random,
    ledger: Arc<Mutex<Ledger>>,
    /// The server's ids of the jobs that are there.
    ids: BTreeMap<u64, u64>,
    jobs: Jobs,
    next: u64,
}

impl Client {
    fn run(mut self, stop: &AtomicBool) {
        self.wire.send(format!("use tube-{}\r\n", self.number));
        self.wire.reply();
        while !stop.load(Ordering::Relaxed) {
            if self.jobs.len() < KEPT {
                self.put()
            } else {
                self.change()
            }
        }
    }

    /// Record the commands, then send them.
    fn send(&mut self, changes: &[Change], bytes: &[u8]) {
        self.ledger
            .lock()
            .unwrap()
            .changes
            .extend_from_slice(changes);
        self.wire.send(bytes);
    }

    fn answered(&mut self, change: Change) {
        self.ledger.lock().unwrap().answered += 1;
        apply(&mut self.jobs, change);
    }

    fn put(&mut self) {
        let numbers: Vec<u64> = (self.next..).take(BATCH).collect();
        self.next += BATCH as u64;
        let changes: Vec<Change> = numbers.iter().map(|number| Change::Put(*number)).collect();
        let puts = numbers
            .iter()
            .flat_map(|number| put_command(5, 0, &body(self.number, *number)));
        let puts: Vec<u8> = puts.collect();
        self.send(&changes, &puts);
        for number in numbers {
            let id = inserted(&self.wire.text()).unwrap();
            self.ids.insert(number, id);
            self.answered(Change::Put(number));
        }
    }

    /// Change jobs, each at most once in a batch.
    fn change(&mut self) {
        let jobs: Vec<(u64, bool)> = self.jobs.iter().map(|(job, is)| (*job, *is)).collect();
        let (mut changes, mut bytes) = (Vec::new(), String::new());
        let from = self.random.below(jobs.len() as u64) as usize;
        for (number, is_buried) in jobs.iter().copied().skip(from).take(BATCH) {
            let id = self.ids[&number];
            let line = match (self.random.below(4), is_buried) {
                (0, false) => {
                    changes.push(Change::Bury(number));
                    format!("reserve-job {id}\r\nbury {id} 7\r\n")
                }
                (0, true) => {
                    changes.push(Change::Kick(number));
                    format!("kick-job {id}\r\n")
                }
                _ => {
                    changes.push(Change::Delete(number));
                    format!("delete {id}\r\n")
                }
            };
            bytes.push_str(&line);
        }
        self.send(&changes, bytes.as_bytes());
        for change in changes {
            if matches!(change, Change::Bury(_)) {
                assert!(self.wire.text().starts_with("RESERVED "));
            }
            let reply = self.wire.text();
            assert!(
                ["BURIED", "KICKED", "DELETED"].contains(&&reply[..]),
                "{change:?}: {reply}"
            );
            self.answered(change);
        }
    }
}

/// Ten clients at work.
struct Load {
    stop: Arc<AtomicBool>,
    ledgers: Vec<Arc<Mutex<Ledger>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(server: &Server) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let ledgers: Vec<Arc<Mutex<Ledger>>> = (0..CLIENTS).map(|_| Arc::default()).collect();
        let client = |number: usize| Client {
            number,
            wire: server.connect(),
            random: Random::new(number as u64 + 1),
            ledger: ledgers[number].clone(),
            ids: BTreeMap::new(),
            jobs: Jobs::new(),
            next: 0,
        };
        let clients: Vec<Client> = (0..CLIENTS).map(client).collect();
        let threads = clients.into_iter().map(|client| {
            let stop = stop.clone();
            std::thread::spawn(move || client.run(&stop))
        });
        Load {
            threads: threads.collect(),
            stop,
            ledgers,
        }
    }

    /// How much each client has been answered.
    fn answered(&self) -> Vec<usize> {
        let answered = |ledger: &Arc<Mutex<Ledger>>| ledger.lock().unwrap().answered;
        self.ledgers.iter().map(answered).collect()
    }

    /// Let the clients finish what they are at; what they have done.
    fn stop(self) -> Vec<Vec<Change>> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let changes = |ledger: &Arc<Mutex<Ledger>>| ledger.lock().unwrap().changes.clone();
        self.ledgers.iter().map(changes).collect()
    }
}

/// The jobs in a data directory, by client; their bodies are as they were put.
fn jobs_in(dir: &Path) -> Vec<Jobs> {
    let log = Inspection::read(Arc::new(RealFs), dir, &mut |_, _| ()).unwrap();
    assert!(log.is_intact(), "{:?}", log.losses);
    let mut jobs = vec![Jobs::new(); CLIENTS];
    for summary in log.jobs() {
        let job = log.read_job(summary.id).unwrap().unwrap();
        let (client, number) = parse(&job.body);
        assert_eq!(job.body, body(client, number), "job {}", job.id);
        assert_eq!(job.tube, format!("tube-{client}"));
        let is_new = jobs[client].insert(number, job.state == JobState::Buried);
        assert_eq!(is_new, None, "{client}:{number} is there twice");
    }
    jobs
}

/// `found` is the result of a prefix of `changes`, at least the first `least` of them.
fn assert_prefix(changes: &[Change], least: usize, found: &Jobs) {
    let mut jobs = Jobs::new();
    for change in &changes[..least] {
        apply(&mut jobs, *change);
    }
    let mut rest = changes[least..].iter();
    while jobs != *found {
        let Some(change) = rest.next() else {
            panic!(
                "no state behind change {least} of {} is {found:?}",
                changes.len()
            );
        };
        apply(&mut jobs, *change);
    }
}

fn index(wire: &mut Wire) -> u64 {
    wire.stat("stats", "binlog-current-index").parse().unwrap()
}

/// A server with small segments.
fn small_segments(dir: &Path) -> Launch {
    Launch::bsd().dir(dir).arg("-s").arg("128k")
}

/// Backups under load, each brought up to date from the one before, while segments are begun
/// and compacted.
#[test]
fn a_backup_under_load_restores_all_that_was_acknowledged_before_it_began() {
    let Some(_) = Launch::bsd_alone() else { return };
    let dir = TempDir::new().unwrap();
    let (data, backup) = (dir.path().join("data"), dir.path().join("backup"));
    let server = small_segments(&data).start();
    let mut wire = server.connect();
    let load = Load::start(&server);
    let mut taken: Vec<(PathBuf, Vec<usize>)> = Vec::new();
    for round in 0..volume("BSD_BACKUPS", 5) {
        let begun = index(&mut wire);
        wait_until("segments are begun", || index(&mut wire) >= begun + 4);
        let answered = load.answered();
        wal_ok(&["backup", text(&data), "--output", text(&backup)]);
        let restored = dir.path().join(format!("restored-{round}"));
        wal_ok(&["restore", text(&backup), "--output", text(&restored)]);
        taken.push((restored, answered));
        let said = wal_ok(&["verify", "--live", text(&data)]);
        assert!(said.contains("read while in use"), "{said}");
        assert!(said.contains(": intact, "), "{said}");
    }
    let changes = load.stop();
    let migrated: u64 = wire
        .stat("stats", "binlog-records-migrated")
        .parse()
        .unwrap();
    assert!(migrated > 0, "nothing was compacted meanwhile");
    for (restored, answered) in taken {
        let jobs = jobs_in(&restored);
        for client in 0..CLIENTS {
            assert_prefix(&changes[client], answered[client], &jobs[client]);
        }
        let restored = small_segments(&restored).start();
        let total: usize = jobs.iter().map(Jobs::len).sum();
        let mut wire = restored.connect();
        let (ready, buried) = (
            wire.stat("stats", "current-jobs-ready"),
            wire.stat("stats", "current-jobs-buried"),
        );
        let found = ready.parse::<usize>().unwrap() + buried.parse::<usize>().unwrap();
        assert_eq!(found, total);
    }
}

/// A server that has gone through some load and is still running.
fn loaded(data: &Path) -> Server {
    let server = small_segments(data).start();
    let load = Load::start(&server);
    let mut wire = server.connect();
    wait_until("segments are begun", || index(&mut wire) >= 6);
    load.stop();
    server
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("segment-")
    };
    let mut segments: Vec<PathBuf> = entries.filter(is_segment).collect();
    segments.sort();
    segments
}

fn flip(path: &Path, at: usize) {
    let file = fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at as u64).unwrap();
}

#[test]
fn verify_live_names_a_flipped_byte_under_a_running_server_and_no_backup_is_taken() {
    let Some(_) = Launch::bsd_alone() else { return };
    let dir = TempDir::new().unwrap();
    let (data, backup) = (dir.path().join("data"), dir.path().join("backup"));
    let mut server = loaded(&data);
    let (code, said) = wal(&["verify", text(&data)]);
    assert_eq!(code, Some(2), "without --live it is in use: {said}");
    // The server writes a marker when it has gone idle; what it is at by then does not matter.
    wal_ok(&["verify", "--live", text(&data)]);
    let sealed = segments(&data).remove(0);
    flip(&sealed, 1000);
    let (code, said) = wal(&["verify", "--live", text(&data)]);
    assert_eq!(code, Some(1), "{said}");
    let name = sealed.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(&format!("damage: {name} at byte")), "{said}");
    let (code, said) = wal(&["backup", text(&data), "--output", text(&backup)]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains(name) && said.contains("bsd-wal repair"),
        "{said}"
    );
    assert!(server.is_running(), "nothing disturbs the server");
}

#[test]
fn restore_refuses_what_is_not_as_it_was_and_what_it_would_overwrite() {
    let Some(_) = Launch::bsd_alone() else { return };
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let (data, backup, new) = (path("data"), path("backup"), path("new"));
    loaded(&data).stop();
    wal_ok(&["backup", text(&data), "--output", text(&backup)]);
    let refused = |why: &str| {
        let (code, said) = wal(&["restore", text(&backup), "--output", text(&new)]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!new.exists());
    };
    for segment in segments(&backup) {
        let bytes = fs::read(&segment).unwrap();
        flip(&segment, bytes.len() / 2);
        refused("its checksum is");
        fs::write(&segment, &bytes[..bytes.len() - 1]).unwrap();
        refused("bytes instead of");
        fs::remove_file(&segment).unwrap();
        refused("it is missing");
        fs::write(&segment, &bytes).unwrap();
    }
    let manifest = backup.join("backup.manifest");
    flip(&manifest, 40);
    refused("list of files is damaged");
    flip(&manifest, 40);
    fs::create_dir(&new).unwrap();
    fs::write(new.join("mine"), "precious").unwrap();
    let (code, said) = wal(&["restore", text(&backup), "--output", text(&new)]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("nothing is ever overwritten"), "{said}");
    assert_eq!(fs::read_dir(&new).unwrap().count(), 1);
    fs::remove_file(new.join("mine")).unwrap();
    wal_ok(&["restore", text(&backup), "--output", text(&new)]);
    assert_eq!(jobs_in(&new), jobs_in(&data));
}

#[test]
fn a_server_is_not_started_on_a_backup() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let (data, backup) = (dir.path().join("data"), dir.path().join("backup"));
    loaded(&data).stop();
    wal_ok(&["backup", text(&data), "--output", text(&backup)]);
    let names = || fs::read_dir(&backup).unwrap().count();
    let before = names();
    let exit = launch.dir(&backup).run_to_exit();
    assert_eq!(exit.code, Some(1), "{}", exit.stderr);
    assert!(exit.stderr.contains("bsd-wal restore"), "{}", exit.stderr);
    assert_eq!(names(), before);
}

#[test]
fn compact_frees_what_is_dead_and_refuses_a_directory_in_use_or_without_a_log() {
    let Some(_) = Launch::bsd_alone() else { return };
    let dir = TempDir::new().unwrap();
    let data = dir.path().join("data");
    let server = loaded(&data);
    let (code, said) = wal(&["compact", text(&data)]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("is in use by process"), "{said}");
    server.kill();
    let jobs = jobs_in(&data);
    let said = wal_ok(&["compact", text(&data)]);
    assert!(said.contains(" freed"), "{said}");
    assert_eq!(jobs_in(&data), jobs);
    let restarted = small_segments(&data).start();
    let ready = restarted.connect().stat("stats", "current-jobs-ready");
    let alive = jobs.iter().flat_map(Jobs::values);
    assert_eq!(
        ready,
        alive.filter(|is_buried| !**is_buried).count().to_string()
    );
    let none = dir.path().join("none");
    fs::create_dir(&none).unwrap();
    let (code, said) = wal(&["compact", text(&none)]);
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(fs::read_dir(&none).unwrap().count(), 0, "nothing was made");
}
