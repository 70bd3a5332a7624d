//! Instructions that the engine runs for one command, as callgrind counts them: the command is
//! decoded, run and logged, its reply is encoded, and 16 of them are committed together. There is no
//! socket, no second thread and no clock: so a count is the same on a busy machine, and it is held
//! to `counts.txt` beside this file.
//!
//! Only a release is counted. `tests/instructions/run` counts a whole server, with its loop and its
//! sockets.
//!
//! ```text
//! cargo test --release -p bsd-instructions                     fails if a count is 2 % larger
//! BSD_MAKE_GOLDEN=1 cargo test --release -p bsd-instructions   writes the counts: say why
//! ```
//!
//! The counts also depend on the compiler, and on the instructions that `memchr`, `crc32fast` and the C
//! library find in the processor. The first line of the file names both; with others the counts say
//! nothing, and are not compared.

#![allow(clippy::disallowed_methods)] // no file of a log is written

use std::fmt::Write as _;
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bsd::engine::{Engine, Options, ReplySink};
use bsd::protocol::{Decoder, Limits, Reply, encode};
use bsd::storage::SyncPolicy;
use bsd::types::{ClientId, Now, Ticket, Time};

/// Number of times that a step is counted, and jobs that there are at a time.
const TIMES: usize = 1024;
const BATCH: usize = 16;
const BODY: [u8; 100] = [b'b'; 100];
/// 2027-01-15 08:00:00 UTC.
const WALL_NS: u64 = 1_800_000_000_000_000_000;
/// Time that passes with each batch.
const TURN_NS: u64 = 100_000;
/// A count may exceed the known one by this part of it: a fiftieth.
const PART_MAX: u64 = 50;

/// The name of a step, what is done for the jobs of a batch before it, and after it.
type Step = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const STEPS: [Step; 12] = [
    ("put", &[], &["delete"]),
    ("reserve", &["put"], &["delete"]),
    ("delete", &["put", "reserve"], &[]),
    ("touch", &["put", "reserve"], &["delete"]),
    ("release", &["put", "reserve"], &["delete"]),
    ("bury", &["put", "reserve"], &["delete"]),
    ("kick", &["put", "reserve", "bury"], &["delete"]),
    ("peek", &["put"], &["delete"]),
    ("stats-job", &["put"], &["delete"]),
    ("use", &[], &[]),
    ("watch", &[], &["ignore"]),
    ("replay", &["put"], &[]),
];

/// Where jobs are.
const STORES: [&str; 2] = ["memory", "log"];

/// Replies of a batch.
struct Replies(Vec<u8>);

impl ReplySink for Replies {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        encode(&reply, &mut self.0);
    }
}

/// An engine with one client.
struct Bench {
    engine: Engine,
    client: ClientId,
    decoder: Decoder,
    replies: Replies,
    now: Now,
    jobs: Vec<String>,
}

impl Bench {
    fn open(dir: Option<&Path>) -> Bench {
        let options = Options {
            dir: dir.map(Path::to_owned),
            sync: SyncPolicy::Never,
            ..Options::default()
        };
        let now = Now::new(Time(0), WALL_NS);
        let mut engine = Engine::open(&options, now).expect("an empty directory, or a sound log");
        Bench {
            client: engine.connect(),
            engine,
            decoder: Decoder::default(),
            replies: Replies(Vec::new()),
            now,
            jobs: Vec::new(),
        }
    }

    /// A batch of commands, in one turn. Notes the jobs that were put.
    fn batch(&mut self, name: &str, turn: impl FnOnce(&mut Bench, &[u8])) {
        let mut input = Vec::new();
        for at in 0..BATCH {
            // A put has no job yet, and some commands need none.
            let id = self.jobs.get(at).map_or("", |id| id);
            input.extend_from_slice(command(name, at, id).as_bytes());
            input.extend_from_slice(b"\r\n");
            if name == "put" {
                input.extend_from_slice(&BODY);
                input.extend_from_slice(b"\r\n");
            }
        }
        self.replies.0.clear();
        turn(self, &input);
        let replies = String::from_utf8_lossy(&self.replies.0);
        let good = replies.matches(expected(name)).count();
        assert_eq!(good, BATCH, "{name}: {replies}");
        if name == "put" {
            let id = |line: &str| Some(line.strip_prefix("INSERTED ")?.to_owned());
            self.jobs = replies.lines().filter_map(id).collect();
        }
    }

    fn turn(&mut self, mut input: &[u8]) {
        let limits = Limits::of(65_535);
        self.now.mono.0 += TURN_NS as i64;
        self.now.wall_ns += TURN_NS;
        while let Some(request) = self.decoder.decode(&mut input, limits) {
            self.engine
                .run(self.client, request, self.now, &mut self.replies);
        }
        let ticked = self.engine.tick(self.now, &mut self.replies);
        ticked.expect("the disk works");
        self.engine.commit(self.now).expect("the disk works");
    }
}

fn command(name: &str, at: usize, id: &str) -> String {
    match name {
        "put" => format!("put 1024 0 60 {}", BODY.len()),
        "reserve" => "reserve".into(),
        "release" => format!("release {id} 1024 0"),
        "bury" => format!("bury {id} 1024"),
        "kick" => "kick 1".into(),
        "use" if at.is_multiple_of(2) => "use other".into(),
        "use" => "use default".into(),
        "watch" | "ignore" => format!("{name} tube-{at}"),
        name => format!("{name} {id}"),
    }
}

/// How the reply to the command begins.
fn expected(name: &str) -> &'static str {
    match name {
        "put" => "INSERTED ",
        "reserve" => "RESERVED ",
        "delete" => "DELETED\r\n",
        "touch" => "TOUCHED\r\n",
        "release" => "RELEASED\r\n",
        "bury" => "BURIED\r\n",
        "kick" => "KICKED 1\r\n",
        "peek" => "FOUND ",
        "stats-job" => "OK ",
        "use" => "USING ",
        "watch" | "ignore" => "WATCHING ",
        name => unreachable!("{name} is not sent"),
    }
}

/// What callgrind counts: it is told the name.
#[inline(never)]
fn counted_turn(bench: &mut Bench, input: &[u8]) {
    bench.turn(black_box(input));
}

/// The same, for a start.
#[inline(never)]
fn counted_open(dir: &Path) -> Bench {
    Bench::open(black_box(Some(dir)))
}

/// Do a step as often as it is counted, in a process of its own, after `rounds` in which it is not.
fn count(name: &str, rounds: usize, dir: Option<&Path>) {
    let (_, before, after) = STEPS.iter().find(|step| step.0 == name).expect("a step");
    let mut bench = Bench::open(dir);
    // Before anything is counted, each thing was done: what is made only once makes no difference.
    for is_counted in (0..=rounds).map(|round| round == rounds) {
        for _ in 0..TIMES / BATCH {
            before
                .iter()
                .for_each(|name| bench.batch(name, Bench::turn));
            match is_counted {
                _ if name == "replay" => {}
                false => bench.batch(name, Bench::turn),
                true => bench.batch(name, counted_turn),
            }
            after.iter().for_each(|name| bench.batch(name, Bench::turn));
        }
    }
    if let ("replay", Some(dir)) = (name, dir) {
        bench.engine.close(bench.now).expect("the disk works");
        black_box(counted_open(dir));
    }
}

/// Instructions of one command.
fn instructions(name: &str, store: &str) -> io::Result<u64> {
    let times = TIMES as u64;
    Ok(match name {
        // Without what a start costs that has nothing to replay.
        "replay" => (counted(name, 2, store)? - counted(name, 1, store)?) / times,
        _ => counted(name, 1, store)? / times,
    })
}

/// Instructions of a step that is done [`TIMES`] times, after `rounds` of them.
fn counted(name: &str, rounds: usize, store: &str) -> io::Result<u64> {
    let place = tempfile::tempdir()?;
    let profile = place.path().join("profile");
    let mut command = Command::new("valgrind");
    command
        .args([
            "--quiet",
            "--tool=callgrind",
            "--toggle-collect=*::counted_*",
        ])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .args(["--count", name, &rounds.to_string()]);
    if store == "log" {
        command.arg(place.path().join("log"));
    }
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let error = format!("{name}: {}: {said}", output.status);
        return Err(io::Error::other(error));
    }
    let text = std::fs::read_to_string(&profile)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let total = total.and_then(|total| total.trim().parse().ok());
    total.ok_or_else(|| io::Error::other(format!("{name}: no totals: {text}")))
}

/// A count for each row that has one: a step in a store.
fn all_counts() -> io::Result<Vec<(String, u64)>> {
    let rows: Vec<_> = STEPS
        .iter()
        .flat_map(|step| STORES.map(|store| (step.0, store)))
        .filter(|row| *row != ("replay", "memory"))
        .collect();
    let (next, counts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((name, store)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            let count = instructions(name, store);
            let mut counts = counts.lock().expect("no thread panics");
            counts.push((format!("{name}, {store}"), count));
        }
    };
    let threads = std::thread::available_parallelism()?;
    std::thread::scope(|scope| (0..threads.get()).for_each(|_| _ = scope.spawn(work)));
    let mut counts = counts.into_inner().expect("no thread panics");
    counts.sort_by(|one, other| one.0.cmp(&other.0));
    counts
        .into_iter()
        .map(|(row, count)| Ok((row, count?)))
        .collect()
}

/// The rows of `counts.txt`.
fn known(text: &str) -> Vec<(String, u64)> {
    let row = |line: &str| {
        let (name, count) = line.rsplit_once(' ')?;
        Some((name.trim().to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

/// The compiler and the processor, as far as counts depend on them.
fn machine() -> io::Result<String> {
    let output = Command::new("rustc").arg("--version").output()?;
    let compiler = String::from_utf8_lossy(&output.stdout);
    Ok([&["#", compiler.trim()], &features()[..]]
        .concat()
        .join(" "))
}

/// What the processor has of what checksums and searches choose by.
fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let all = [
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
        ("pclmulqdq", std::is_x86_feature_detected!("pclmulqdq")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let all = [("", false); 0];
    let there = all.into_iter().filter(|(_, is_there)| *is_there);
    there.map(|(name, _)| name).collect()
}

fn check() -> Result<(), String> {
    if cfg!(debug_assertions) {
        println!(
            "skipped: instructions are counted with `cargo test --release -p bsd-instructions`"
        );
        return Ok(());
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        if std::env::var_os("BSD_REQUIRE_PEERS").is_some_and(|is_set| is_set == "1") {
            return Err("BSD_REQUIRE_PEERS=1, but valgrind cannot be run".into());
        }
        println!("skipped: instructions are not counted, valgrind cannot be run");
        return Ok(());
    }
    let counts = all_counts().map_err(|error| error.to_string())?;
    let machine = machine().map_err(|error| error.to_string())?;
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("counts.txt");
    if std::env::var_os("BSD_MAKE_GOLDEN").is_some() {
        let mut text = format!("{machine}\n");
        for (row, count) in &counts {
            let _ = writeln!(text, "{row:<18} {count:>6}");
        }
        return std::fs::write(golden, text).map_err(|error| error.to_string());
    }
    let text = std::fs::read_to_string(&golden).map_err(|error| error.to_string())?;
    if !text.starts_with(&machine) {
        println!("not compared: counts.txt is of another machine than {machine}");
        return Ok(());
    }
    let known = known(&text);
    let mut wrong = String::new();
    for (row, count) in &counts {
        match known.iter().find(|it| it.0 == *row) {
            Some((_, before)) if *count > before + before / PART_MAX => {
                let _ = writeln!(wrong, "{row}: {count} instructions, {before} are known");
            }
            Some((_, before)) => println!("{row}: {count} ({before} are known)"),
            None => {
                _ = writeln!(
                    wrong,
                    "{row}: {count} instructions, and {golden:?} has no count"
                )
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{wrong}if this is as it should be, write them with BSD_MAKE_GOLDEN=1, and say in the \
             commit why they are worth it"
        )),
    }
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [flag, name, rounds, dir @ ..] = &args[..]
        && flag == "--count"
    {
        let rounds = rounds.parse().expect("a number");
        count(name, rounds, dir.first().map(Path::new));
        return ExitCode::SUCCESS;
    }
    // As of any test: a part of a name that was given chooses what runs.
    let mut names = args
        .iter()
        .filter(|arg| !arg.starts_with('-') && arg.parse::<u32>().is_err());
    if names.clone().count() > 0 && !names.any(|name| "instructions".contains(name.as_str())) {
        return ExitCode::SUCCESS;
    }
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
