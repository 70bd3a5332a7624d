//! `bsd-ctl` at a terminal: the live view shows the tubes, follows the keys, and ends with its
//! terminal; deletes ask first.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::ctl::{NOT_DONE, OK, done, feed, json_of};
use crate::harness::{Launch, Server, bsd_ctl, program, skip, wait_for, wait_until};
use crate::http::Site;

const COLUMNS: u16 = 80;
const ROWS: u16 = 24;

/// A terminal, and `bsd-ctl` in it, which does not outlive it.
struct Terminal {
    /// The end at which the screen is seen and keys are typed; `None`: it has hung up.
    far: Option<File>,
    /// The end of the program.
    near: OwnedFd,
    child: Child,
    screen: Vec<u8>,
}

/// Whether the system tells the program by SIGHUP that its terminal hangs up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Session {
    WithTerminal,
    WithoutTerminal,
}

impl Terminal {
    /// `bsd-ctl` with these words; `None`: `setsid` is missing.
    fn start(server: &Server, line: &str, session: Session) -> Option<Terminal> {
        let Some(setsid) = program("setsid") else {
            skip("setsid (of util-linux) is not installed");
            return None;
        };
        let far = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&far).unwrap();
        unlockpt(&far).unwrap();
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&far, size).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let near = open(ptsname(&far, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
        let mut command = Command::new(setsid);
        if session == Session::WithTerminal {
            command.arg("--ctty");
        }
        // `setsid` becomes the program: the id stays.
        command
            .arg(bsd_ctl())
            .args(line.split_whitespace())
            .env("BSD_CTL_ADDRESS", server.address().to_string())
            .env("TERM", "xterm")
            .stdin(Stdio::from(near.try_clone().unwrap()))
            .stdout(Stdio::from(near.try_clone().unwrap()))
            .stderr(Stdio::from(near.try_clone().unwrap()));
        Some(Terminal {
            far: Some(File::from(far)),
            near,
            child: command.spawn().unwrap(),
            screen: Vec::new(),
        })
    }

    fn type_keys(&mut self, keys: &[u8]) {
        self.far.as_mut().unwrap().write_all(keys).unwrap();
    }

    /// The output until now. Only differences are drawn, so that words are found in it, not
    /// phrases.
    fn shows(&mut self, what: &str) -> bool {
        if let Some(far) = &mut self.far {
            let is_readable = |far: &File| {
                let mut files = [PollFd::new(far, PollFlags::IN)];
                poll(&mut files, Some(&Timespec::default())).unwrap();
                files[0].revents().contains(PollFlags::IN)
            };
            let mut bytes = [0; 4096];
            while is_readable(far) {
                let size = far.read(&mut bytes).unwrap();
                self.screen.extend_from_slice(&bytes[..size]);
            }
        }
        String::from_utf8_lossy(&self.screen).contains(what)
    }

    fn wait_for(&mut self, what: &str) {
        wait_until(&format!("{what:?} is shown"), || self.shows(what));
    }

    fn hang_up(&mut self) {
        self.far = None;
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        wait_for(&mut self.child).expect("it goes on without its terminal")
    }

    /// Whether what is typed is shown, which the live view turns off while it runs.
    fn echoes(&self) -> bool {
        let modes = tcgetattr(&self.near).unwrap().local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON)
    }

    /// The screen before the view, the cursor and the line editing are there again.
    fn assert_restored(&mut self) {
        assert!(self.shows("\x1b[?1049l") && self.shows("\x1b[?25h"));
        assert!(self.echoes());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended by itself if the test went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A live view that shows a tube.
fn watching(server: &Server, session: Session) -> Option<Terminal> {
    done(server, "put watched x");
    let mut terminal = Terminal::start(server, "top --interval 0.1", session)?;
    terminal.wait_for("watched");
    assert!(!terminal.echoes());
    Some(terminal)
}

#[test]
fn top_shows_the_tubes_follows_the_keys_and_ends_with_q() {
    let server = Launch::bsd().memory().start();
    let Some(mut terminal) = watching(&server, Session::WithTerminal) else {
        return;
    };
    terminal.type_keys(b"h");
    terminal.wait_for("Ctrl-C");
    terminal.type_keys(b"hr");
    terminal.wait_for("reversed");
    server.kill();
    terminal.wait_for("trying");
    terminal.type_keys(b"q");
    assert_eq!(terminal.end().code(), OK);
    terminal.assert_restored();
}

#[test]
fn top_ends_with_its_terminal() {
    for session in [Session::WithTerminal, Session::WithoutTerminal] {
        let server = Launch::bsd().memory().start();
        let Some(mut terminal) = watching(&server, session) else {
            return;
        };
        terminal.hang_up();
        // Not by itself only: a signal may have come first, or both.
        terminal.end();
    }
}

#[test]
fn a_signal_ends_top_and_the_terminal_is_as_it_was() {
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        let server = Launch::bsd().memory().start();
        let Some(mut terminal) = watching(&server, Session::WithTerminal) else {
            return;
        };
        terminal.signal(signal);
        assert_eq!(terminal.end().code(), OK);
        terminal.assert_restored();
    }
}

/// Keys and rounds wake it; nothing else does.
#[test]
fn top_sleeps_while_nothing_happens() {
    let server = Launch::bsd().memory().start();
    done(&server, "put watched x");
    let line = "top --interval 3600";
    let Some(mut terminal) = Terminal::start(&server, line, Session::WithTerminal) else {
        return;
    };
    terminal.wait_for("watched");
    // The rounds are asked for by another thread; this is what its main thread did.
    let switches = || -> u64 {
        let path = format!("/proc/{}/status", terminal.child.id());
        let status = std::fs::read_to_string(path).unwrap();
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        let count = |line: &str| line.split_whitespace().nth(1).unwrap().parse::<u64>();
        counts.map(|line| count(line).unwrap()).sum()
    };
    // That it has not run proves something only if time has passed, which the lives of some other
    // processes are.
    wait_until("it sleeps", || {
        let before = switches();
        (0..30).for_each(|_| drop(done(&server, "stats")));
        switches() == before
    });
    terminal.type_keys(b"\x1b");
    assert_eq!(terminal.end().code(), OK);
}

#[test]
fn it_asks_at_a_terminal_before_it_deletes() {
    let server = Launch::bsd().memory().start();
    assert_eq!(feed(&server, "put t --lines", b"a\nb\n").0, OK);
    for (answer, code, left) in [("n\n", NOT_DONE, 2), ("y\n", OK, 0)] {
        let line = "clear t --state ready";
        let Some(mut terminal) = Terminal::start(&server, line, Session::WithTerminal) else {
            return;
        };
        terminal.wait_for("delete 2 ready jobs of tube t? [y/N]");
        terminal.type_keys(answer.as_bytes());
        assert_eq!(terminal.end().code(), code);
        let tubes = json_of(&server, "tubes");
        let ready = tubes.as_array().unwrap().iter();
        let ready = ready.map(|it| it["current-jobs-ready"].as_u64().unwrap());
        assert_eq!(ready.sum::<u64>(), left, "{tubes}");
    }
}

#[test]
fn ctrl_c_ends_it_while_it_asks_what_it_has_counted() {
    let site = Site::start(Launch::bsd().memory());
    let mut wire = site.server.connect();
    wire.put(b"one");
    wire.put(b"two");
    let line = format!("delete --tube default --http {}", site.address);
    let Some(mut terminal) = Terminal::start(&site.server, &line, Session::WithTerminal) else {
        return;
    };
    terminal.wait_for("delete 2 jobs of default? [y/N]");
    terminal.type_keys(b"\x03");
    let status = wait_for(&mut terminal.child).unwrap();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()));
    assert_eq!(wire.stat("stats-tube default", "current-jobs-ready"), "2");
}

#[test]
fn what_comes_while_it_asks_is_not_changed_unseen() {
    let site = Site::start(Launch::bsd().memory());
    let mut wire = site.server.connect();
    wire.put(b"one");
    wire.put(b"two");
    let line = format!("move default post --http {}", site.address);
    let Some(mut terminal) = Terminal::start(&site.server, &line, Session::WithTerminal) else {
        return;
    };
    terminal.wait_for("move 2 jobs of default to post? [y/N]");
    wire.put(b"three");
    terminal.type_keys(b"y\n");
    let status = wait_for(&mut terminal.child).unwrap();
    assert_eq!(status.code(), NOT_DONE);
    terminal.wait_for("nothing was changed");
    assert_eq!(wire.stat("stats-tube default", "current-jobs-ready"), "3");
}
