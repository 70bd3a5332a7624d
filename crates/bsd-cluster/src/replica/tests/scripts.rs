//! Scripts of events and the states that they lead to: `crates/bsd-cluster/tests/scripts/*.txt`.
//!
//! A line that begins in the first column is an event. The indented lines after it are its
//! results, which are compared. `#` begins a comment; each script opens with one that says what it
//! shows. After an intended change this writes the results again:
//!
//! ```text
//! BSD_MAKE_GOLDEN=1 cargo test -p bsd-cluster --lib scripts
//! ```
//!
//! Members are numbered from 1. Each is as in the histories: real queue, log, ledger and node on
//! a simulated disk. A message takes a millisecond, a snapshot 20, and all arrive unless a script
//! cuts their way. In each millisecond every member has one turn. Time is simulated too.
//!
//! | event | what happens |
//! |---|---|
//! | `cluster 3` | three voters start; the log of each ends with entry 1 |
//! | `wait MS` | time passes |
//! | `put BODY [xN] [at M]` | a client of the leader, or of member M, puts a job, or N at once |
//! | `put-delayed S` | the same, with a delay in seconds |
//! | `fill SIZE` | jobs of this size are put until ten in a row were refused |
//! | `peek ID [at M]`, `delete ID`, `delete FROM..TO` | the client looks at a job, deletes some |
//! | `delay ID` | the seconds that the leader still lets a job wait |
//! | `cut M`, `heal` | nothing passes to or from a member; everything passes again |
//! | `disconnect M O` | M is told that its connection to O broke |
//! | `crash M`, `start M` | power fails, and what was not synced is lost; a start |
//! | `keep M`, `set-back M` | an image of its disk is kept; it starts with that image |
//! | `lose M` | its disk is gone |
//! | `room M BYTES`, `room M` | this much is free on its disk; its disk has no limit |
//! | `clock M S` | its wall clock is S seconds ahead |
//! | `transfer M`, `hand-over` | the leader transfers its leadership to M, or to the best voter |
//! | `add M`, `join M`, `promote M`, `remove M` | changes of the members; `join` starts a new one |
//! | `tell M O` | M tells O which membership it has |
//! | `recover M` | a server is made of what is on the disk of a member that is down |
//!
//! A state is printed when it has changed. `last` is the last entry that a member has; up to
//! `committed` it knows that a majority has them.

use std::fmt::Write as _;

use super::room::Ask;
use super::*;
use crate::survivor::Survivor;
use bsd::types::SECOND_NS;

/// Decides the times after which members ask for votes. With this one, member 1 leads first.
const SEED: u64 = 5;
/// A client waits this long.
const PATIENCE_MS: i64 = 500;

struct Script {
    world: World,
    /// The states that were printed last.
    states: Vec<String>,
    roles: Vec<Role>,
    images: Vec<Option<SimFs>>,
    out: String,
}

/// The words of an event.
type Words<'a> = [&'a str];

fn parsed<T: std::str::FromStr>(word: &str) -> T {
    let number = word.parse().ok();
    number.unwrap_or_else(|| panic!("'{word}' is not a number"))
}

/// The place of a member.
fn at(word: &str) -> usize {
    parsed::<usize>(word) - 1
}

impl Script {
    fn new(count: usize) -> Script {
        let mut world = World::new(SEED);
        world.is_scripted = true;
        assert_eq!(count, 3, "a cluster begins with three members");
        Script {
            world,
            states: vec![String::new(); count],
            roles: vec![Role::Follows(None); count],
            images: vec![None; count],
            out: String::new(),
        }
    }

    fn say(&mut self, line: &str) {
        _ = writeln!(self.out, "    {line}");
    }

    /// The results of an event.
    fn happens(&mut self, event: &str) -> String {
        let words: Vec<&str> = event.split(' ').collect();
        self.run(&words);
        self.tell_states();
        std::mem::take(&mut self.out)
    }

    fn run(&mut self, words: &Words<'_>) {
        match *words {
            ["wait", ms] => _ = self.wait(parsed(ms), None),
            ["put", body] => self.put(body, 1, None),
            ["put", body, "at", member] => self.put(body, 1, Some(at(member))),
            ["put", body, times] => self.put(body, parsed(times.trim_start_matches('x')), None),
            ["put-delayed", seconds] => self.ask(vec![Ask::PutDelayed(parsed(seconds))], None),
            ["peek", id] => self.ask(vec![Ask::Peek(JobId(parsed(id)))], None),
            ["peek", id, "at", by] => self.ask(vec![Ask::Peek(JobId(parsed(id)))], Some(at(by))),
            ["delete", ids] => self.delete(ids),
            ["fill", size] => self.fill(parsed(size)),
            ["delay", id] => self.delay(JobId(parsed(id))),
            ["heal"] => self.world.cut.clear(),
            ["cut", member] => self.cut(at(member)),
            ["disconnect", by, from] => {
                self.world
                    .life(at(by))
                    .replica
                    .unreachable(NodeId(parsed(from)));
            }
            ["room", member, bytes] => self.world.sites[at(member)].set_room(Some(parsed(bytes))),
            ["room", member] => self.world.sites[at(member)].set_room(None),
            ["clock", member, seconds] => {
                self.world.sites[at(member)].ahead = parsed::<i64>(seconds) * SECOND_NS;
            }
            ["tell", by, to] => {
                let index = self.world.life(at(by)).replica.members_changed();
                self.world.life(at(to)).replica.left_out(index);
            }
            _ => self.of_disks(words),
        }
    }

    fn of_disks(&mut self, words: &Words<'_>) {
        match *words {
            ["crash", member] => {
                let image = self.synced(at(member));
                self.stop(at(member), image);
            }
            ["start", member] => self.world.boot(at(member)),
            ["lose", member] => self.stop(at(member), SimFs::new(SEED)),
            ["keep", member] => self.images[at(member)] = Some(self.synced(at(member))),
            ["set-back", member] => {
                let image = self.images[at(member)].take().expect("an image was kept");
                self.stop(at(member), image);
                self.world.boot(at(member));
            }
            ["recover", member] => self.recover(at(member)),
            _ => self.of_the_leader(words),
        }
    }

    fn of_the_leader(&mut self, words: &Words<'_>) {
        let id = |word| NodeId(parsed(word));
        let change = match *words {
            ["transfer", to] => {
                let begun = self.leader().transfer(id(to));
                return self.say(if begun { "begun" } else { "refused" });
            }
            ["hand-over"] => {
                let to = self.leader().hand_over();
                return match to {
                    Some(to) => self.say(&format!("begun: member {} is to lead", to.0)),
                    None => self.say("refused"),
                };
            }
            ["join", member] => return self.join(id(member)),
            ["add", member] => Change::Add {
                id: id(member),
                peer: format!("127.0.0.1:{member}"),
                client: String::new(),
            },
            ["promote", member] => Change::Promote(id(member)),
            ["remove", member] => Change::Remove(id(member)),
            _ => panic!("no such event: {words:?}"),
        };
        match self.leader().change(change) {
            Ok(()) => self.say("begun"),
            Err(refused) => self.say(&format!("refused: {refused:?}")),
        }
    }

    fn leader(&mut self) -> &mut Replica {
        let leader = self.world.leader().expect("one leads");
        &mut self.world.life(leader).replica
    }

    // ---- clients ----

    fn put(&mut self, body: &str, times: usize, by: Option<usize>) {
        let put = |_| Ask::Text(body.to_owned());
        self.ask((0..times).map(put).collect(), by);
    }

    fn delete(&mut self, ids: &str) {
        let (first, last) = ids.split_once("..").unwrap_or((ids, ids));
        let ids: Vec<JobId> = (parsed(first)..=parsed(last)).map(JobId).collect();
        self.world.oracle.delete_asked.extend(&ids);
        self.ask(ids.into_iter().map(Ask::Delete).collect(), None);
    }

    /// A client asks for these together, and waits for the replies.
    fn ask(&mut self, asks: Vec<Ask>, by: Option<usize>) {
        let count = asks.len();
        (self.world.script, self.world.script_at) = (asks, by);
        let is_answered = self.wait(PATIENCE_MS, Some(count));
        if !is_answered {
            self.say(match self.world.script.is_empty() {
                true => "no reply",
                false => "no client is served",
            });
        }
        self.world.script.clear();
    }

    fn fill(&mut self, size: usize) {
        let (mut put, mut refused) = (0, 0);
        while refused < 10 {
            assert!(put < 1000, "the disks do not fill up");
            self.world.told.clear();
            (self.world.script, self.world.script_at) = (vec![Ask::Put(size)], None);
            for _ in 0..PATIENCE_MS {
                self.turns();
                if !self.world.told.is_empty() {
                    break;
                }
            }
            match self.world.told.first() {
                Some(Told::Inserted(_)) => (put, refused) = (put + 1, 0),
                _ => refused += 1,
            }
        }
        self.world.told.clear();
        self.world.script.clear();
        self.say(&format!("{put} jobs are put, then puts are refused"));
    }

    fn delay(&mut self, id: JobId) {
        let now = self.world.now.mono;
        let leader = self.world.leader().expect("one leads");
        let job = self.world.life(leader).engine.queue().job(id);
        let deadline = job.expect("it is there").deadline.expect("it is delayed");
        let seconds = (deadline.since(now) + SECOND_NS / 2) / SECOND_NS;
        self.say(&format!("{seconds} s"));
    }

    // ---- time ----

    fn turns(&mut self) {
        self.world.pass_time();
        (0..self.world.sites.len()).for_each(|site| self.world.turn(site, false));
    }

    /// Let this much time pass, or until this many replies came; print changes of roles and the
    /// replies. Returns whether this number came.
    fn wait(&mut self, ms: i64, replies: Option<usize>) -> bool {
        let (mut told, mut count) = (Vec::new(), 0);
        for ms in 1..=ms {
            self.turns();
            let mut lines = std::mem::take(&mut self.world.notes);
            lines.extend(self.changes_of_roles());
            count += self.world.told.len();
            for told in self.world.told.drain(..) {
                lines.push(match told {
                    Told::Inserted(id) => format!("INSERTED {}", id.0),
                    Told::Reserved(id, _) => format!("RESERVED {}", id.0),
                    Told::Deleted => "DELETED".to_owned(),
                    Told::Other(reply) => {
                        let text = String::from_utf8_lossy(&reply);
                        text.trim_end().replace("\r\n", " ")
                    }
                });
            }
            told.extend(lines.into_iter().map(|line| (ms, line)));
            if Some(count) == replies {
                break;
            }
        }
        self.tell_events(&told);
        Some(count) == replies
    }

    fn changes_of_roles(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for (at, site) in self.world.sites.iter().enumerate() {
            let Some(life) = &site.life else { continue };
            let role = life.role();
            let before = std::mem::replace(&mut self.roles[at], role);
            let change = match (before, role) {
                _ if before == role => continue,
                (_, Role::Leads(term)) => format!("leads in term {term}"),
                (Role::Leads(_), _) => "steps down".to_owned(),
                (_, Role::Removed) => "learns that it was removed".to_owned(),
                _ => continue,
            };
            lines.push(format!("{} {change}", at + 1));
        }
        lines
    }

    /// Of more than three in the same millisecond, print the first and the last one.
    fn tell_events(&mut self, told: &[(i64, String)]) {
        for chunk in told.chunk_by(|one, other| one.0 == other.0) {
            let (ms, first) = &chunk[0];
            match chunk {
                [_, .., (_, last)] if chunk.len() > 3 => {
                    self.say(&format!("after {ms} ms: {first}"));
                    self.say(&format!("… {} more, at last: {last}", chunk.len() - 1));
                }
                _ => chunk
                    .iter()
                    .for_each(|(ms, it)| self.say(&format!("after {ms} ms: {it}"))),
            }
        }
    }

    // ---- members ----

    /// Its disk after a power cut.
    fn synced(&self, member: usize) -> SimFs {
        self.world.sites[member]
            .disk
            .crash_image(Crash::DropUnsynced)
    }

    /// It is down, and this is its disk when it starts.
    fn stop(&mut self, member: usize, disk: SimFs) {
        let site = &mut self.world.sites[member];
        (site.life, site.disk) = (None, disk);
        self.roles[member] = Role::Follows(None);
    }

    fn cut(&mut self, member: usize) {
        for other in (0..self.world.sites.len()).filter(|other| *other != member) {
            self.world.cut.extend([(member, other), (other, member)]);
        }
    }

    /// A member that was added starts on an empty disk. The leader sends it what it lacks.
    fn join(&mut self, id: NodeId) {
        let members = self.leader().members().clone();
        let disk = SimFs::new(id.0);
        let fs: Arc<dyn Fs> = Arc::new(disk.clone());
        let engine = Engine::follow(&options(&disk), self.world.now).unwrap();
        engine.close(self.world.now).unwrap();
        fs.create_dir(&ledger_dir(Path::new(DIR))).unwrap();
        let identity = Identity {
            cluster: ClusterId([7; 16]),
            node: id,
        };
        let base = Base {
            index: 0,
            term: 0,
            members,
        };
        Ledger::create_with(&fs, Path::new(DIR), identity, base, SIZES).unwrap();
        self.world.sites.push(Site::new(disk));
        self.states.push(String::new());
        self.roles.push(Role::Follows(None));
        self.images.push(None);
        let site = self.world.sites.len() - 1;
        assert_eq!(site as u64 + 1, id.0, "members are numbered");
        self.world.boot(site);
    }

    fn recover(&mut self, member: usize) {
        let fs: Arc<dyn Fs> = Arc::new(self.world.sites[member].disk.crash_image(Crash::KeepAll));
        let survivor = Survivor::open(&fs, Path::new(DIR)).unwrap();
        let done = survivor.recover(
            Path::new("/recovered"),
            false,
            self.world.now,
            &mut |_, _| {},
        );
        let done = done.unwrap();
        self.say(&format!(
            "jobs {}; its log ends with entry {}, committed {}, last {}",
            done.jobs, done.log, done.committed, done.last
        ));
        let uncertain = done.uncertain;
        for (what, ids) in [("put", uncertain.put), ("deleted", uncertain.deleted)] {
            if !ids.is_empty() {
                let ids: Vec<String> = ids.iter().map(|id| id.0.to_string()).collect();
                self.say(&format!("not certain: {what} {}", ids.join(" ")));
            }
        }
    }

    // ---- states ----

    fn tell_states(&mut self) {
        for at in 0..self.states.len() {
            let state = state(&self.world.sites[at]);
            if state != self.states[at] {
                self.say(&format!("{}: {state}", at + 1));
                self.states[at] = state;
            }
        }
    }
}

fn state(site: &Site) -> String {
    let Some(life) = &site.life else {
        return "down".to_owned();
    };
    let (replica, status) = (&life.replica, life.replica.status());
    let mut text = match life.role() {
        Role::Leads(_) => "leads".to_owned(),
        Role::Follows(Some(leader)) => format!("follows {}", leader.0),
        Role::Follows(None) => "knows no leader".to_owned(),
        Role::Removed => "removed".to_owned(),
    };
    let jobs = life.engine.queue().stats().jobs.total();
    let (term, last, commit) = (status.term, status.last, status.commit);
    _ = write!(
        text,
        ", term {term}, last {last}, committed {commit}, jobs {jobs}"
    );
    let ids = |which: fn(Votes) -> bool| {
        let list = status.members.iter().filter(|it| which(it.member.votes));
        list.map(|it| it.member.id.0.to_string())
            .collect::<Vec<_>>()
            .join(" ")
    };
    _ = write!(text, ", voters {}", ids(|votes| votes.incoming));
    let learners = ids(|votes| votes == Votes::default());
    if !learners.is_empty() {
        _ = write!(text, ", learners {learners}");
    }
    if replica.ledger_lacks().is_some() {
        text.push_str(", its ledger has no room");
    }
    for peer in status.members.iter().filter(|it| it.member.id != status.id) {
        let id = peer.member.id.0;
        if peer.is_set_back {
            let lag = peer.progress.as_ref().map_or(0, |it| it.lag);
            _ = write!(text, "; {id} was set back and lacks {lag}");
        }
        if peer.progress.as_ref().is_some_and(|it| it.needs_snapshot) {
            _ = write!(text, "; {id} waits for a snapshot");
        }
        if peer.is_short {
            _ = write!(text, "; {id} has no room");
        }
    }
    text
}

/// The events of this script with their results, in the form of the script.
fn replay(text: &str) -> String {
    let mut script: Option<Script> = None;
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.starts_with(' ')) {
        _ = writeln!(out, "{line}");
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let outcome = match (line.split_once(' '), &mut script) {
            (Some(("cluster", count)), None) => {
                let new = script.insert(Script::new(parsed(count)));
                new.tell_states();
                std::mem::take(&mut new.out)
            }
            (_, Some(script)) => script.happens(line),
            (_, None) => panic!("a script begins with a cluster"),
        };
        out.push_str(&outcome);
    }
    out
}

fn dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

#[allow(clippy::disallowed_methods)] // these are files of the tree
fn check(name: &str) {
    let path = dir().join(name).with_extension("txt");
    let recorded = std::fs::read_to_string(&path).unwrap();
    assert!(recorded.starts_with("# "), "it opens with what it shows");
    let now = replay(&recorded);
    if std::env::var_os("BSD_MAKE_GOLDEN").is_some() {
        return std::fs::write(&path, now).unwrap();
    }
    for (nth, (now, recorded)) in now.lines().zip(recorded.lines()).enumerate() {
        let place = format!("{}:{}", path.display(), nth + 1);
        assert_eq!(
            now, recorded,
            "{place}: if this change is intended, BSD_MAKE_GOLDEN=1 writes the results again"
        );
    }
    assert_eq!(now, recorded, "{}", path.display());
}

#[test]
fn a_majority_elects_a_leader_and_one_without_a_majority_steps_down() {
    check("election");
}

#[test]
fn nothing_is_acknowledged_without_a_majority() {
    check("no-majority");
}

#[test]
fn a_put_is_acknowledged_when_a_majority_has_it_or_never() {
    check("replication");
}

#[test]
fn a_leader_that_was_replaced_answers_no_read() {
    check("reads");
}

#[test]
fn a_power_cut_everywhere_loses_nothing_that_was_acknowledged() {
    check("power-cut");
}

#[test]
fn t17_leadership_is_transferred_to_no_member_that_does_not_answer() {
    check("transfer");
}

#[test]
fn a_member_that_was_away_for_long_gets_a_snapshot() {
    check("snapshot");
}

#[test]
fn a_new_member_votes_when_it_has_caught_up() {
    check("join");
}

#[test]
fn a_removed_member_is_told_and_a_leader_does_not_remove_itself() {
    check("remove");
}

#[test]
fn a_lost_disk_is_replaced_by_a_new_member() {
    check("replace");
}

#[test]
fn g09_a_member_whose_disk_was_set_back_is_seen() {
    check("set-back");
}

#[test]
fn g03_a_survivor_has_what_was_acknowledged_and_names_what_is_not_certain() {
    check("survivor");
}

#[test]
fn t19_a_leader_without_room_hands_over() {
    check("full-leader");
}

#[test]
fn g04_puts_end_when_the_disks_of_a_majority_are_full() {
    check("full-followers");
}

#[test]
fn g10_a_delay_is_as_long_with_a_leader_whose_clock_differs() {
    check("clocks");
}

#[test]
#[allow(clippy::disallowed_methods)] // these are files of the tree
fn each_script_has_a_test() {
    let tests = include_str!("scripts.rs");
    let files: Vec<_> = std::fs::read_dir(dir()).unwrap().collect();
    assert!(files.len() > 10, "{} scripts", files.len());
    for file in files {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy();
        let check = format!("    check(\"{name}\");\n");
        assert!(tests.contains(&check), "{} has no test", path.display());
    }
}
