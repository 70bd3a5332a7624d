//! HTTP beside a server in this process: what the one does when the other is stuck, or gone.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::guard::Access;
use super::places::CONNECTIONS_MAX;
use super::{Http, ServerHandles, Setup, State};
use bsd::clock::Clock;
use bsd::door::{Door, JobError, Slice, Step, Work};
use bsd::engine::{Engine, Options};
use bsd::types::{JobId, SECOND_NS, Time};
use bsd_archive::{Report, Reporter};
use bsd_net::{Bounds, Pulse, Reactor, Server, Stage, Stopper};

const STUCK_AFTER: Duration = Duration::from_millis(50);
/// No change takes longer, however busy the machine.
const PATIENCE: Time = Time(20 * SECOND_NS);

/// A server without sockets of its own.
struct Running {
    door: Door,
    http: Option<Http>,
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
    archive: Reporter,
}

impl Running {
    fn start() -> Running {
        let clock = Clock::start();
        let archive = Reporter::default();
        let setup = Setup {
            port: 0,
            is_default: false,
            ..Setup::default()
        };
        let handles = ServerHandles {
            clock,
            pulse: Arc::default(),
            stuck_after: STUCK_AFTER,
            lines: None,
            tubes_max: 3,
            bodies_max: 1 << 20,
            dir: Some("/nowhere".into()),
            archives: vec![archive.clone()],
            standby: None,
            cluster: None,
        };
        let pulse: Arc<Pulse> = handles.pulse.clone();
        let http = Http::start(setup.bind().unwrap().unwrap(), handles).unwrap();
        let reactor = Reactor::new().unwrap();
        let stopper = reactor.stopper();
        let engine = Engine::open(&Options::default(), clock.now()).unwrap();
        let (bounds, _) = Bounds::within(None);
        let server = Server::new(reactor, engine, Vec::new(), bounds, clock).unwrap();
        let server = server.showing(pulse);
        let door = server.door();
        assert_eq!(status(&http, "/readyz"), 503, "it does not run yet");
        assert_eq!(status(&http, "/healthz"), 200);
        http.open(door.clone());
        let thread = std::thread::spawn(move || server.run().unwrap());
        Running {
            door,
            http: Some(http),
            stopper,
            thread: Some(thread),
            archive,
        }
    }

    fn wait_for(&self, path: &str, wanted: u16) {
        let http = self.http.as_ref().unwrap();
        let clock = Clock::start();
        while status(http, path) != wanted {
            assert!(
                clock.now().mono < PATIENCE,
                "{path} does not become {wanted}"
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop().unwrap();
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking(), "{joined:?}");
    }
}

fn status(http: &Http, path: &str) -> u16 {
    text(http, path).split(' ').nth(1).unwrap().parse().unwrap()
}

/// The whole answer.
fn text(http: &Http, path: &str) -> String {
    let mut stream = TcpStream::connect(http.address()).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

/// Run this on a clock that goes on when nothing else does.
pub(super) fn paused(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(test);
}

/// Shared state of requests before there is an engine.
pub(super) fn closed() -> State {
    let handles = ServerHandles {
        clock: Clock::start(),
        pulse: Arc::default(),
        stuck_after: STUCK_AFTER,
        lines: None,
        tubes_max: 3,
        bodies_max: 1 << 20,
        dir: None,
        archives: Vec::new(),
        standby: None,
        cluster: None,
    };
    State::new(handles, Access::new(None, Vec::new(), (11380, false))).unwrap()
}

/// Work that does not come to an end before it is told to.
struct Stuck {
    begun: Sender<()>,
    end: Receiver<()>,
}

impl Stuck {
    /// Begin it, and return when it has begun: what lets it end, and the thread that waits for that.
    fn begin(door: &Door) -> (Sender<()>, JoinHandle<Result<(), JobError>>) {
        let (begun, has_begun) = mpsc::channel();
        let (let_end, end) = mpsc::channel();
        let stuck = door.start(Stuck { begun, end });
        let stuck = std::thread::spawn(move || stuck.wait().map(drop));
        has_begun.recv().unwrap();
        (let_end, stuck)
    }
}

impl Work for Stuck {
    fn step(&mut self, _: &mut Slice<'_>) -> Step {
        self.begun.send(()).unwrap();
        self.end.recv().unwrap();
        Step::Done
    }
}

#[test]
fn a_stuck_loop_is_not_healthy_and_is_again_when_it_goes_on() {
    let running = Running::start();
    running.wait_for("/readyz", 200);
    let (let_end, stuck) = Stuck::begin(&running.door);
    running.wait_for("/healthz", 503);
    running.wait_for("/readyz", 503);
    // It says for how long, and nothing that only the loop knows.
    let page = text(running.http.as_ref().unwrap(), "/metrics");
    assert!(late_seconds(&page) > STUCK_AFTER.as_secs_f64(), "{page}");
    assert!(!page.contains("bsd_jobs"), "{page}");
    let_end.send(()).unwrap();
    stuck.join().unwrap().unwrap();
    running.wait_for("/healthz", 200);
    running.wait_for("/readyz", 200);
    let page = text(running.http.as_ref().unwrap(), "/metrics");
    assert!(page.contains("\nbsd_jobs{"), "{page}");
}

/// How late the loop is, as a page of metrics says.
fn late_seconds(page: &str) -> f64 {
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix("bsd_loop_late_seconds "));
    value.unwrap().parse().unwrap()
}

#[test]
fn a_history_that_is_being_read_is_told_of_and_no_other_is_read_meanwhile() {
    let running = Running::start();
    running.wait_for("/readyz", 200);
    let session = running.door.session();
    for _ in 0..2 {
        let put = bsd::door::put("t", b"b", bsd::PutOptions::default()).unwrap();
        session.run(put).wait().unwrap();
    }
    let http = running.http.as_ref().unwrap();
    http.state
        .histories
        .hold(JobId(1), http.state.handles.clock);
    let said = text(http, "/api/v1/jobs/1/history");
    assert!(said.starts_with("HTTP/1.1 202 "), "{said}");
    assert!(said.contains("\"state\":\"reading\""), "{said}");
    let page = text(http, "/jobs/1/history");
    assert!(page.contains("id=\"stage\">reading<"), "{page}");
    let said = text(http, "/api/v1/jobs/2/history");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    assert!(said.contains("retry-after: 1\r\n"), "{said}");
    assert_eq!(
        status(http, "/api/v1/jobs/3/history"),
        404,
        "it was never put"
    );
}

#[test]
fn four_scrapes_are_answered_at_a_time() {
    let running = Running::start();
    running.wait_for("/readyz", 200);
    let http = running.http.as_ref().unwrap();
    let scrapes = http.state.scrapes.clone();
    let all = scrapes.clone().try_acquire_many_owned(4).unwrap();
    assert!(scrapes.try_acquire().is_err(), "there are four");
    let said = text(http, "/metrics");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    assert!(said.contains("too many scrapes are under way"), "{said}");
    drop(all);
    assert_eq!(status(http, "/metrics"), 200);
    assert_eq!(scrapes.available_permits(), 4, "it was given back");
}

#[test]
fn g27_probes_are_answered_while_all_places_are_at_work() {
    let running = Running::start();
    running.wait_for("/readyz", 200);
    let http = running.http.as_ref().unwrap();
    let (let_end, stuck) = Stuck::begin(&running.door);
    let busy: Vec<TcpStream> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = TcpStream::connect(http.address()).unwrap();
            let request = b"GET /api/v1/tubes/default HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request).unwrap();
            stream
        })
        .collect();
    let clock = Clock::start();
    let refused = || text(http, "/static/icon.svg").contains("places for HTTP connections");
    while !refused() {
        assert!(clock.now().mono < PATIENCE, "they are not at work");
        std::thread::yield_now();
    }
    running.wait_for("/healthz", 503);
    assert_eq!(status(http, "/metrics"), 200);
    let_end.send(()).unwrap();
    stuck.join().unwrap().unwrap();
    running.wait_for("/healthz", 200);
    drop(busy);
    running.wait_for("/api/v1/tubes/default", 200);
}

#[test]
fn g07_while_the_loop_reads_its_log_again_http_answers_by_itself() {
    let running = Running::start();
    running.wait_for("/readyz", 200);
    let http = running.http.as_ref().unwrap();
    let (let_end, stuck) = Stuck::begin(&running.door);
    let handles = &http.state.handles;
    handles.pulse.read_again(handles.clock.now().mono);
    let said = text(http, "/readyz");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    assert!(said.contains("reads its log again"), "{said}");
    assert_eq!(status(http, "/healthz"), 200);
    let page = text(http, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    assert!(!page.contains("bsd_jobs"), "{page}");
    assert_eq!(status(http, "/api/v1/tubes/default"), 503);
    let_end.send(()).unwrap();
    stuck.join().unwrap().unwrap();
    handles.pulse.set_stage(Stage::Running);
    running.wait_for("/readyz", 200);
    assert_eq!(status(http, "/api/v1/tubes/default"), 200);
}

#[test]
fn an_idle_loop_is_healthy() {
    let running = Running::start();
    running.wait_for("/readyz", 200);
    std::thread::sleep(4 * STUCK_AFTER);
    assert_eq!(status(running.http.as_ref().unwrap(), "/healthz"), 200);
}

#[test]
fn without_its_http_thread_the_queue_goes_on() {
    let mut running = Running::start();
    running.wait_for("/readyz", 200);
    let open = TcpStream::connect(running.http.as_ref().unwrap().address()).unwrap();
    drop(running.http.take());
    let session = running.door.session();
    let put = bsd::door::put("t", b"b", bsd::PutOptions::default()).unwrap();
    session.run(put).wait().unwrap();
    drop(open);
}

#[test]
fn when_the_server_is_gone_it_is_not_ready() {
    let mut running = Running::start();
    running.wait_for("/readyz", 200);
    running.stopper.stop().unwrap();
    running.thread.take().unwrap().join().unwrap();
    assert_eq!(status(running.http.as_ref().unwrap(), "/readyz"), 503);
    running.thread = Some(std::thread::spawn(|| ()));
}

#[test]
fn an_archive_in_trouble_leaves_the_server_ready_and_one_that_has_ended_does_not() {
    let running = Running::start();
    running.wait_for("/readyz", 200);
    let http = running.http.as_ref().unwrap();
    let tell = |report: Report| running.archive.set(&report, None);
    tell(Report {
        trouble: Some("cannot put".to_owned()),
        ..Report::default()
    });
    let said = text(http, "/readyz");
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    assert!(
        said.contains("\"warnings\":[\"the archive cannot be written"),
        "{said}"
    );
    tell(Report {
        ended: Some("the archive has another writer".to_owned()),
        ..Report::default()
    });
    let said = text(http, "/readyz");
    assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
    assert!(said.contains("the archive has ended"), "{said}");
}
