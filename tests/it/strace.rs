//! The server under `strace`: system calls that are delayed or made to fail, and the list of those
//! that were made, in order.
//!
//! strace runs next to the server (`-D`), not in front of it: the process that the harness started,
//! signals and waits for is the server itself. A call is identified by the lines of the trace at
//! which it began and ended. Their order is causal: a thread that learned of the end of another
//! thread's call makes its next call on a later line.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::harness::{Launch, skip, wait_until};

/// This many bytes of each buffer are shown: as many as fit into a small segment.
const SHOWN_SIZE: &str = "65536";

/// True where strace is installed and may trace; otherwise the reason is printed.
pub(crate) fn is_permitted() -> bool {
    let mut probe = Command::new("strace");
    probe
        .args(["-D", "-o", "/dev/null", "true"])
        .stderr(Stdio::null());
    let permitted = probe.status().is_ok_and(|status| status.success());
    if !permitted {
        skip("strace is not installed, or may not trace processes here");
    }
    permitted
}

/// Where the calls of one process, at a time, are written down.
#[derive(Debug)]
pub(crate) struct Tracer {
    dir: TempDir,
    calls: String,
    options: Vec<String>,
}

impl Tracer {
    /// Write down these calls, given as strace wants them.
    pub(crate) fn of(calls: &str) -> Tracer {
        Tracer {
            dir: TempDir::new().unwrap(),
            calls: calls.to_owned(),
            options: Vec::new(),
        }
    }

    /// Let something happen to some of them: strace's `inject` expression.
    pub(crate) fn inject(mut self, expression: &str) -> Tracer {
        self.options
            .extend(["-e".to_owned(), format!("inject={expression}")]);
        self
    }

    /// With a variable (`NAME=VALUE`) in the environment of the server.
    pub(crate) fn env(mut self, variable: &str) -> Tracer {
        self.options.extend(["-E".to_owned(), variable.to_owned()]);
        self
    }

    /// The same server, traced from its first instruction on.
    pub(crate) fn wrap(&self, launch: Launch) -> Launch {
        let file = self.file();
        let calls = format!("trace={}", self.calls);
        // Of other calls the kernel tells strace nothing, so the server is not much slower.
        let mut words = vec![
            "strace",
            "-D",
            "-f",
            "--seccomp-bpf",
            "-q",
            "-y",
            "-s",
            SHOWN_SIZE,
        ];
        words.extend(["-o", file.to_str().unwrap(), "-e", &calls]);
        words.extend(self.options.iter().map(String::as_str));
        launch.wrapped(&words)
    }

    /// The calls so far.
    pub(crate) fn so_far(&self) -> Trace {
        Trace::parse(&std::fs::read_to_string(self.file()).unwrap_or_default())
    }

    /// All calls of a process that has ended.
    pub(crate) fn all(&self) -> Trace {
        wait_until("the trace is complete", || self.so_far().is_complete);
        self.so_far()
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("trace")
    }
}

/// Kill the strace of a process, which goes on without it.
pub(crate) fn end_tracer_of(process: u32) {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    let tracer = tracer.and_then(|id| Pid::from_raw(id.trim().parse().ok()?));
    kill_process(tracer.expect("it is traced"), Signal::KILL).unwrap();
}

/// One system call.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) thread: u32,
    pub(crate) name: String,
    /// Everything between the parentheses, in strace's notation.
    pub(crate) args: String,
    /// `None`: it did not return.
    pub(crate) result: Option<i64>,
    /// strace made it fail.
    pub(crate) was_injected: bool,
    /// The line at which it began.
    pub(crate) begin: usize,
    /// The line at which it returned; that of the end of the world if it did not.
    pub(crate) end: usize,
}

impl fmt::Debug for Call {
    /// Without the length of the written data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call {
            thread,
            name,
            args,
            result,
            ..
        } = self;
        let (begin, end) = (self.begin, self.end);
        write!(
            f,
            "{begin}..{end}: {thread} {name}({args:.100}) = {result:?}"
        )
    }
}

impl Call {
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.result.is_some_and(|result| result >= 0)
    }

    /// The descriptor that it was given first.
    pub(crate) fn descriptor(&self) -> Option<u32> {
        let digits = self.args.split('<').next()?;
        digits.parse().ok()
    }

    /// The file of the descriptor when the call was made.
    pub(crate) fn path(&self) -> &Path {
        let inside = self.args.split_once('<').map_or("", |(_, rest)| rest);
        Path::new(inside.split_once('>').map_or("", |(path, _)| path))
    }

    /// True when that is a socket.
    pub(crate) fn is_on_socket(&self) -> bool {
        self.path().to_string_lossy().starts_with("socket:")
    }

    /// True for a write to a socket that a client reads.
    pub(crate) fn is_reply(&self) -> bool {
        let writes = ["sendto", "sendmsg", "write", "writev"];
        writes.contains(&&*self.name) && self.is_on_socket() && self.args.contains(r"\r\n")
    }

    /// True for a read from a socket that brought something.
    pub(crate) fn is_request(&self) -> bool {
        let reads = ["recvfrom", "read"];
        reads.contains(&&*self.name) && self.is_on_socket() && self.result > Some(0)
    }
}

/// System calls in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    pub(crate) calls: Vec<Call>,
    /// The thread that the process began with.
    pub(crate) main: u32,
    /// The process has ended and nothing follows.
    pub(crate) is_complete: bool,
}

impl Trace {
    pub(crate) fn parse(text: &str) -> Trace {
        let mut trace = Trace::default();
        let mut unfinished: HashMap<u32, usize> = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let Some((thread, rest)) = line.split_once(' ') else {
                continue;
            };
            let (Ok(thread), rest) = (thread.parse(), rest.trim_start()) else {
                continue;
            };
            if trace.main == 0 {
                trace.main = thread;
            }
            if rest.starts_with("+++") {
                trace.is_complete |= thread == trace.main;
            } else if let Some(resumed) = rest.strip_prefix("<... ") {
                let begun = unfinished
                    .remove(&thread)
                    .map(|index| &mut trace.calls[index]);
                let rest = resumed.split_once("resumed>").map(|(_, rest)| rest);
                if let (Some(call), Some(rest)) = (begun, rest) {
                    finish(call, rest, number);
                }
            } else if let Some((name, rest)) = rest.split_once('(') {
                let mut call = begin(thread, name, number);
                match rest.strip_suffix(" <unfinished ...>") {
                    Some(args) => {
                        call.args = args.to_owned();
                        unfinished.insert(thread, trace.calls.len());
                    }
                    None => finish(&mut call, rest, number),
                }
                trace.calls.push(call);
            }
        }
        trace
    }

    /// Those of one name.
    pub(crate) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().filter(move |call| call.is(name))
    }

    /// The first for which `is` holds; panics with `what` if no call is.
    pub(crate) fn first(&self, what: &str, is: impl Fn(&Call) -> bool) -> &Call {
        self.calls
            .iter()
            .find(|call| is(call))
            .unwrap_or_else(|| panic!("{what} is not in the trace: {:#?}", self.calls))
    }
}

fn begin(thread: u32, name: &str, number: usize) -> Call {
    Call {
        thread,
        name: name.to_owned(),
        args: String::new(),
        result: None,
        was_injected: false,
        begin: number,
        end: usize::MAX,
    }
}

/// Take in the rest of a call: the rest of its arguments and `) = RESULT …`.
fn finish(call: &mut Call, rest: &str, number: usize) {
    let Some((args, result)) = rest.rsplit_once(" = ") else {
        return;
    };
    call.args.push_str(args.trim_end().trim_end_matches(')'));
    call.was_injected = result.ends_with("(INJECTED)");
    let word = result.split([' ', '<']).next();
    call.result = word.and_then(|word| word.parse().ok());
    if call.result.is_some() {
        call.end = number;
    }
}

#[test]
fn a_trace_tells_when_each_call_began_and_ended() {
    let trace = Trace::parse(
        "10 close(3</a b>)                  = 0\n\
         10 fdatasync(9</d/x> <unfinished ...>\n\
         11 sendto(12<socket:[5]>, \"INSERTED 1\\r\\n\", 12, 0, NULL, 0) = 12\n\
         10 <... fdatasync resumed>)          = -1 EIO (Input/output error) (INJECTED)\n\
         11 epoll_wait(3<anon_inode:[eventpoll]>,  <unfinished ...>\n\
         10 --- SIGTERM {si_signo=SIGTERM} ---\n\
         11 +++ exited with 4 +++\n",
    );
    let [close, sync, reply, wait] = &trace.calls[..] else {
        panic!("{trace:#?}");
    };
    assert_eq!((trace.main, trace.is_complete), (10, false));
    assert_eq!(
        (close.descriptor(), close.path()),
        (Some(3), Path::new("/a b"))
    );
    assert_eq!((sync.begin, sync.end, sync.result), (1, 3, Some(-1)));
    assert!(sync.was_injected && !sync.succeeded() && !close.was_injected);
    assert!(reply.is_reply() && !sync.is_reply() && reply.thread == 11);
    assert_eq!((wait.result, wait.end), (None, usize::MAX));
}
