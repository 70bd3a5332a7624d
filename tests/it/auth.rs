//! Tokens: each command under each role, wrong tokens, and a file that is read again.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Launch, Server, wait_until};
use crate::wire::Wire;

const USAGE: Option<i32> = Some(5);

/// `bsd-server --new-token`: the token, and its line.
pub(crate) fn new_token(scope: &str) -> (String, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_bsd-server"))
        .args(["--new-token", scope])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let mut lines = said.lines();
    let token = lines.next().unwrap().strip_prefix("token: ").unwrap();
    let line = lines.next().unwrap().strip_prefix("line:  ").unwrap();
    assert!(!line.contains(token), "the token itself is written nowhere");
    (token.to_owned(), line.to_owned())
}

/// A server that asks for tokens. Who opens its Unix socket need not show one.
struct House {
    dir: TempDir,
    server: Server,
}

impl House {
    fn new(lines: &[&str]) -> House {
        let dir = tempfile::tempdir().unwrap();
        write_private(&dir.path().join("tokens"), &lines.join("\n"));
        let server = launch(&dir).spawn();
        let socket = dir.path().join("socket");
        wait_until("it listens", || Wire::connect_unix(&socket).is_ok());
        let house = House { dir, server };
        wait_until("TCP too", || Wire::connect(house.server.address()).is_ok());
        house
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("tokens")
    }

    /// Someone who may do everything.
    fn owner(&self) -> Wire {
        Wire::connect_unix(&self.dir.path().join("socket")).unwrap()
    }

    fn with(&self, token: &str) -> Wire {
        let mut wire = self.server.connect();
        assert_eq!(wire.ask(&format!("auth {token}")), "AUTHENTICATED");
        wire
    }
}

fn launch(dir: &TempDir) -> Launch {
    let socket = format!("unix:{}", dir.path().join("socket").display());
    Launch::bsd()
        .memory()
        .arg("-VVV")
        .arg("-l")
        .arg(socket)
        .arg("--auth-file")
        .arg(dir.path().join("tokens"))
}

pub(crate) fn write_private(path: &std::path::Path, text: &str) {
    let mut file = std::fs::File::create(path).unwrap();
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Each command, the roles that may run it, and what it is answered then, up to its first blank.
/// `{id}` is a job of the tube `mail-a`, which the client uses and watches, `{padded}` its id in nine
/// digits.
const COMMANDS: [(&str, &str, &str); 46] = [
    ("put 0 0 60 1\r\nx", "all put", "INSERTED"),
    ("use mail-a", "all put work read", "USING"),
    ("watch mail-a", "all work", "WATCHING"),
    ("ignore mail-b", "all work", "WATCHING"),
    ("reserve-with-timeout 0", "all work", "RESERVED"),
    ("reserve", "all work", "RESERVED"),
    ("reserve-job {id}", "all work", "RESERVED"),
    ("touch {id}", "all work", "NOT_FOUND"),
    ("release {id} 0 0", "all work", "NOT_FOUND"),
    ("bury {id} 0", "all work", "NOT_FOUND"),
    ("delete {id}", "all work", "DELETED"),
    ("kick 1", "all work", "KICKED"),
    ("kick-job {id}", "all work", "NOT_FOUND"),
    ("peek {id}", "all work read", "FOUND"),
    ("peek-ready", "all work read", "FOUND"),
    ("peek-delayed", "all work read", "NOT_FOUND"),
    ("peek-buried", "all work read", "NOT_FOUND"),
    ("stats-job {id}", "all work read", "OK"),
    ("stats-tube mail-a", "all work read", "OK"),
    ("list-tubes", "all work read", "OK"),
    ("pause-tube mail-a 0", "all", "PAUSED"),
    ("stats", "all put work read", "OK"),
    ("list-tube-used", "all put work read", "USING"),
    ("list-tubes-watched", "all put work read", "OK"),
    ("capabilities", "all put work read", "OK"),
    ("abort", "all put work read", "ABORTED"),
    ("put-with 0 0 60 1 tube=mail-a\r\nx", "all put", "INSERTED"),
    ("put-with 0 0 60 1\r\nx", "all put", "INSERTED"),
    ("reserve-batch 10 0", "all work", "RESERVED_BATCH"),
    ("list-jobs mail-a ready 0 10", "all work read", "OK"),
    ("touch-batch 9\r\n{padded}", "all work", "TOUCHED_BATCH"),
    (
        "release-batch 0 0 9\r\n{padded}",
        "all work",
        "RELEASED_BATCH",
    ),
    ("delete-batch 9\r\n{padded}", "all work", "DELETED_BATCH"),
    ("fail {id} 3\r\nwhy", "all work", "NOT_FOUND"),
    ("bury-with-reason {id} 0 3\r\nwhy", "all work", "NOT_FOUND"),
    ("move-job {id} mail-a", "all work", "MOVED"),
    ("clear-tube mail-a buried", "all", "CLEARED"),
    ("stats-job-extended {id}", "all work read", "OK"),
    ("set-policy mail-a max-jobs=1000", "all", "POLICY_SET"),
    ("stats-policy mail-a", "all work read", "OK"),
    (
        "set-policy mail-a max-jobs=1000 dead-letter=mail-b",
        "all",
        "POLICY_SET",
    ),
    (
        "schedule-set mail 1 cron=0_0_1_1_* tube=mail-a\r\nx",
        "all",
        "SCHEDULE_SET",
    ),
    ("stats-schedule mail", "all work read", "OK"),
    ("schedule-delete mail", "all", "DELETED"),
    ("nonsense", "all put work read", "UNKNOWN_COMMAND"),
    ("delete x", "all put work read", "BAD_FORMAT"),
];

/// Answers to `token` for each command, on a fresh job in `tube` each time.
fn answers(house: &House, token: &str, tube: &str) -> Vec<(&'static str, String)> {
    let mut answers = Vec::new();
    for (command, _, _) in COMMANDS {
        let mut owner = house.owner();
        let set = format!("schedule-set mail 1 cron=0_0_1_1_* tube={tube}\r\nx");
        assert_eq!(owner.ask(&set), "SCHEDULE_SET");
        owner.ask(&format!("use {tube}"));
        let id = owner.put(b"body");
        let mut wire = house.with(token);
        // If it may.
        wire.ask(&format!("use {tube}"));
        wire.ask(&format!("watch {tube}"));
        wire.ask("ignore default");
        let command_of = |id: u64| {
            let padded = command.replace("{padded}", &format!("{id:09}"));
            padded.replace("{id}", &id.to_string())
        };
        let answer = wire.ask(&command_of(id));
        let word = answer.split([' ', '\r']).next().unwrap().to_owned();
        let there = wire.ask("list-tube-used");
        assert!(there.starts_with("USING"), "{command}: it is not closed");
        drop(wire);
        answers.push((command, word));
        // Nothing is left for the next one.
        owner.ask(&format!("watch {tube}"));
        loop {
            let job = owner.ask("reserve-with-timeout 0");
            let Some(id) = job.strip_prefix("RESERVED ") else {
                break;
            };
            let id = id.split(' ').next().unwrap();
            assert_eq!(owner.ask(&format!("delete {id}")), "DELETED");
        }
    }
    answers
}

#[test]
fn each_role_may_run_its_commands_and_no_others() {
    let roles = ["all", "put", "work", "read"];
    let tokens = roles.map(new_token);
    let lines = tokens.each_ref().map(|(_, line)| line.as_str());
    let house = House::new(&lines);
    for (role, (token, _)) in roles.into_iter().zip(&tokens) {
        for ((command, answer), (_, allowed, expected)) in
            answers(&house, token, "mail-a").into_iter().zip(COMMANDS)
        {
            let may = allowed.split(' ').any(|it| it == role);
            let expected = if may { expected } else { "NOT_AUTHORIZED" };
            assert_eq!(answer, expected, "{role}: {command}");
        }
    }
}

#[test]
fn with_a_pattern_a_token_is_for_those_tubes_alone() {
    let (all, all_line) = new_token("all:mail-*");
    let house = House::new(&[&all_line]);
    for ((command, answer), (_, _, expected)) in
        answers(&house, &all, "mail-a").into_iter().zip(COMMANDS)
    {
        let expected = match command {
            "list-tubes" => "NOT_AUTHORIZED",
            _ => expected,
        };
        assert_eq!(answer, expected, "{command}");
    }
    for (command, answer) in answers(&house, &all, "other") {
        let expected = match command {
            "use mail-a" => "USING",
            "watch mail-a" | "ignore mail-b" => continue,
            "stats" | "list-tube-used" | "list-tubes-watched" => continue,
            "capabilities" | "abort" => continue,
            "stats-tube mail-a" | "pause-tube mail-a 0" | "list-jobs mail-a ready 0 10" => continue,
            "clear-tube mail-a buried" => continue,
            about if about.contains("-policy mail-a") => continue,
            "put-with 0 0 60 1 tube=mail-a\r\nx" => "INSERTED",
            "nonsense" | "delete x" => continue,
            _ => "NOT_AUTHORIZED",
        };
        assert_eq!(answer, expected, "{command}");
    }
    // The tube that everyone uses and watches at first is not one of them.
    let mut wire = house.with(&all);
    for line in [
        "set-policy mail-* delivery-limit=1",
        "set-policy mail-? delivery-limit=1",
        "set-policy other delivery-limit=1",
        "set-policy mail-a delivery-limit=1 dead-letter=other",
        "stats-policy other",
        "schedule-set mail 1 cron=@daily tube=other\r\nx",
        // The one with this name puts into the tube `other`.
        "schedule-set mail 1 cron=@daily tube=mail-a\r\nx",
        "stats-schedule mail",
        "schedule-delete mail",
    ] {
        assert_eq!(wire.ask(line), "NOT_AUTHORIZED", "{line}");
    }
    assert_eq!(wire.try_put(b"x"), "NOT_AUTHORIZED");
    assert_eq!(wire.ask("reserve-with-timeout 0"), "NOT_AUTHORIZED");
    assert_eq!(wire.ask("watch mail-a"), "WATCHING 2");
    assert_eq!(wire.ask("reserve-with-timeout 0"), "NOT_AUTHORIZED");
    assert_eq!(wire.ask("ignore default"), "WATCHING 1");
    // The one of `put-with`, which named the tube.
    assert!(wire.ask("reserve-with-timeout 0").ends_with(" 1\r\nx"));
    assert_eq!(wire.ask("reserve-with-timeout 0"), "TIMED_OUT");
    assert_eq!(wire.ask("watch default"), "NOT_AUTHORIZED");
    assert_eq!(wire.ask("reserve-with-timeout 0"), "TIMED_OUT");
}

#[test]
fn what_is_watched_by_the_leave_of_one_token_is_not_reserved_by_that_of_another() {
    let tokens = ["all", "work:mail-*"].map(new_token);
    let house = House::new(&tokens.each_ref().map(|(_, line)| line.as_str()));
    let mut owner = house.owner();
    owner.ask("use other");
    owner.put(b"x");
    let mut wire = house.with(&tokens[0].0);
    wire.ask("watch other");
    wire.ask("watch mail-a");
    wire.ask("ignore default");
    assert_eq!(wire.ask(&format!("auth {}", tokens[1].0)), "AUTHENTICATED");
    assert_eq!(wire.ask("reserve-with-timeout 0"), "NOT_AUTHORIZED");
    assert_eq!(wire.ask("ignore other"), "WATCHING 1");
    assert_eq!(wire.ask("reserve-with-timeout 0"), "TIMED_OUT");
}

#[test]
fn before_a_token_every_command_is_refused_and_the_connection_closed() {
    let (token, line) = new_token("all");
    let house = House::new(&[&line]);
    for (command, _, _) in COMMANDS {
        let mut wire = house.server.connect();
        wire.send(format!("{command}\r\nauth {token}\r\nput 0 0 1 1\r\nx\r\n"));
        assert_eq!(wire.rest(), b"NOT_AUTHORIZED\r\n", "{command}");
    }
    // A body is skipped, not held.
    let mut wire = house.server.connect();
    wire.send("put 0 0 1 60000\r\n");
    wire.send([b'x'; 60_000]);
    wire.send("\r\nstats\r\n");
    assert_eq!(wire.rest(), b"NOT_AUTHORIZED\r\n");
    // The token may come in the same packet as what follows.
    let mut wire = house.server.connect();
    wire.send(format!("auth {token}\r\nput 0 0 1 1\r\nx\r\nquit\r\n"));
    assert_eq!(wire.rest(), b"AUTHENTICATED\r\nINSERTED 1\r\n");
    assert_eq!(house.owner().stat("stats", "total-jobs"), "1");
}

#[test]
fn a_wrong_token_is_answered_late_and_the_connection_closed() {
    let (token, line) = new_token("all");
    let house = House::new(&[&format!("{line} Ann")]);
    for wrong in ["", "x", &token[1..], &format!("{token} ")] {
        let mut wire = house.server.connect();
        wire.send(format!("auth {wrong}\r\nput 0 0 1 1\r\nx\r\n"));
        assert_eq!(wire.rest(), b"NOT_AUTHORIZED\r\n", "{wrong}");
    }
    // A right one of the same address is not late, and a wrong one after it ends it all the same.
    let mut wire = house.with(&token);
    wire.send("auth x\r\nput 0 0 1 1\r\nx\r\n");
    assert_eq!(wire.rest(), b"NOT_AUTHORIZED\r\n");
    assert_eq!(house.owner().stat("stats", "total-jobs"), "0");
    let told = "wrong tokens: 1 so far; the last one, of 127.0.0.1:";
    wait_until("it is told", || house.server.stderr().contains(told));
    let said = house.server.stderr();
    assert_eq!(said.matches(" WARN ").count(), 1, "{said}");
    assert!(!said.contains(&token), "{said}");
}

#[test]
fn where_no_token_is_asked_auth_is_an_unknown_command() {
    let server = Launch::bsd().memory().start();
    assert_eq!(server.connect().ask("auth x"), "UNKNOWN_COMMAND");
    let (token, line) = new_token("read");
    let house = House::new(&[&line]);
    let mut owner = house.owner();
    assert_eq!(owner.ask(&format!("auth {token}")), "UNKNOWN_COMMAND");
    assert_eq!(owner.try_put(b"x"), "INSERTED 1");
}

#[test]
fn sighup_closes_those_whose_token_is_gone_or_allows_something_else() {
    let tokens = ["all", "put", "work"].map(new_token);
    let [all, put, work] = tokens.each_ref().map(|(_, line)| line.clone());
    let house = House::new(&[&all, &put, &work]);
    let [mut stays, mut changed, mut gone] = tokens.each_ref().map(|(token, _)| house.with(token));
    let hup = |what: &str| {
        house.server.signal(Signal::HUP);
        wait_until(what, || house.server.stderr().contains(what));
    };
    // In the middle of a wait.
    gone.send("reserve\r\n");
    write_private(&house.file(), "nonsense");
    hup("the tokens stay as they were");
    assert!(
        changed
            .ask("stats-tube default")
            .starts_with("NOT_AUTHORIZED")
    );
    let widened = put.replace("put", "all");
    write_private(&house.file(), &format!("{all} Ann\n{widened}\n"));
    hup("the tokens are as the file has them now");
    assert_eq!(gone.rest(), b"");
    assert_eq!(changed.rest(), b"");
    assert_eq!(stays.ask("use x"), "USING x");
    assert!(house.with(&tokens[1].0).ask("stats").starts_with("OK"));
    let mut wire = house.server.connect();
    wire.send(format!("auth {}\r\n", tokens[2].0));
    assert_eq!(wire.rest(), b"NOT_AUTHORIZED\r\n");
}

#[test]
fn a_file_that_cannot_be_used_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    let (_, line) = new_token("all");
    let refused = |why: &str| {
        let exit = launch(&dir).run_to_exit();
        assert_eq!(exit.code, USAGE, "{why}: {exit:?}");
        assert!(exit.stderr.contains("tokens"), "{why}: {exit:?}");
        assert!(exit.stderr.contains(why), "{why}: {exit:?}");
    };
    refused("No such file");
    write_private(&file, "");
    refused("it has no tokens");
    write_private(&file, &format!("# who\n{line}\nall 12\n"));
    refused("line 3 is not ROLE SHA256");
    write_private(&file, &line);
    let rights = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&file, rights).unwrap();
    refused("its rights are 0644; make them 0600");
    for wrong in ["root", "all:", "all:a b", ""] {
        let exit = Launch::bsd().arg("--new-token").arg(wrong).run_to_exit();
        assert_eq!(exit.code, USAGE, "{wrong:?}: {exit:?}");
    }
}
