//! HTTP, as a client sees it: who is let in, what is answered, and what slow, malformed and hostile
//! requests cost others.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::api::Description;
use crate::harness::{Launch, PATIENCE, Server, wait_until};

/// Connections that are served at a time; the bound that docs/limits.md names.
const CONNECTIONS_MAX: usize = 64;

/// How long the server waits for the header of a request.
const HEADER_TIME: Duration = Duration::from_secs(10);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn parse(raw: &[u8]) -> Answer {
        let end = raw.windows(4).position(|it| it == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(raw)));
        let head = String::from_utf8(raw[..end].to_vec()).unwrap();
        let is_chunked = head
            .to_ascii_lowercase()
            .contains("transfer-encoding: chunked");
        let body = &raw[end + 4..];
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head,
            body: if is_chunked {
                unchunk(body)
            } else {
                body.to_vec()
            },
        }
    }

    /// The value of a header field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self
            .head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "));
        fields
            .find(|(it, _)| it.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn unchunk(mut chunked: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let Some(line) = chunked.windows(2).position(|it| it == b"\r\n") else {
            return body;
        };
        let size = usize::from_str_radix(std::str::from_utf8(&chunked[..line]).unwrap(), 16);
        let size = size.unwrap();
        body.extend_from_slice(&chunked[line + 2..line + 2 + size]);
        if size == 0 {
            return body;
        }
        chunked = &chunked[line + 2 + size + 2..];
    }
}

/// A server with HTTP on a port of its own.
pub(crate) struct Site {
    pub(crate) server: Server,
    pub(crate) address: SocketAddr,
}

impl Site {
    pub(crate) fn start(launch: Launch) -> Site {
        Site::of(launch.arg("--http").arg("127.0.0.1:0").start())
    }

    /// A server that serves HTTP.
    pub(crate) fn of(server: Server) -> Site {
        let address = address(&server);
        Site { server, address }
    }

    /// A request with this beginning, fields and all, of which `Host` and `Connection` are added.
    pub(crate) fn send(&self, line: &str, fields: &[&str], body: &[u8]) -> Answer {
        let answer = answer_to(self.address, &written(self.address, line, fields, body));
        answer.unwrap_or_else(|why| panic!("{line}: {why}; it said: {}", self.server.stderr()))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), &[], b"")
    }

    /// Ask for a change, with a body in JSON.
    pub(crate) fn change(&self, method: &str, path: &str, body: &Value) -> Answer {
        let line = format!("{} {path}", method.to_uppercase());
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        self.send(&line, &["Content-Type: application/json"], body.as_bytes())
    }

    /// Send these bytes, and read until the server closes.
    fn raw(&self, request: &[u8]) -> Answer {
        let answer = answer_to(self.address, request);
        answer.unwrap_or_else(|why| panic!("{why}; it said: {}", self.server.stderr()))
    }

    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    fn is_healthy(&self) -> bool {
        self.get("/healthz").status == 200
    }
}

/// A request to any server, with this beginning, fields and all, of which `Host` and `Connection`
/// are added.
pub(crate) fn send(address: SocketAddr, line: &str, fields: &[&str], body: &[u8]) -> Answer {
    let answer = answer_to(address, &written(address, line, fields, body));
    answer.unwrap_or_else(|why| panic!("{line}: {why}"))
}

fn written(address: SocketAddr, line: &str, fields: &[&str], body: &[u8]) -> Vec<u8> {
    let mut request = format!("{line} HTTP/1.1\r\nHost: {address}\r\n");
    for field in fields.iter().chain(&["Connection: close"]) {
        request.push_str(&format!("{field}\r\n"));
    }
    if !body.is_empty() {
        request.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    request.push_str("\r\n");
    [request.as_bytes(), body].concat()
}

/// Send a request, and read until the server closes; or why there is no answer.
///
/// On a machine that is stopped or busy for long this process may come to send only after the time for
/// a header: the server has closed the connection by then, and has read nothing. Then it is sent again.
fn answer_to(address: SocketAddr, request: &[u8]) -> Result<Answer, String> {
    loop {
        let begun = Instant::now();
        let mut stream = connect(address);
        // It may have been refused before its end.
        let sent = stream.write_all(request);
        let sent_after = begun.elapsed();
        let (said, end) = read_all(&mut stream);
        if !said.is_empty() {
            return Ok(Answer::parse(&said));
        }
        if sent_after < HEADER_TIME {
            return Err(format!(
                "no answer: sent after {sent_after:?} ({sent:?}), ended after {:?} ({end:?})",
                begun.elapsed()
            ));
        }
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn rest(stream: &mut TcpStream) -> Vec<u8> {
    read_all(stream).0
}

/// What comes until the other end closes, and how that ended. A process that was stopped and goes on
/// is told that its read was interrupted, as there is a time limit for that.
fn read_all(stream: &mut TcpStream) -> (Vec<u8>, io::Result<()>) {
    let mut all = Vec::new();
    let mut buffer = [0; 64 << 10];
    let mut has_head = false;
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return (all, Ok(())),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return (all, Err(error)),
        };
        all.extend_from_slice(&buffer[..count]);
        if !has_head {
            // A stream of events has no end: its head is all that is waited for. Only the head is
            // looked through, so that a long body is read as fast as it comes.
            let text = String::from_utf8_lossy(&all);
            has_head = text.contains("\r\n\r\n");
            if has_head && text.contains("content-type: text/event-stream\r\n") {
                return (all, Ok(()));
            }
        }
    }
}

/// Where HTTP is, as the server says at its start.
pub(crate) fn address(server: &Server) -> SocketAddr {
    let said = || {
        let stderr = server.stderr();
        let (_, rest) = stderr.split_once("HTTP on http://")?;
        rest.split_once("/\n")?.0.parse().ok()
    };
    wait_until("HTTP is served", || said().is_some());
    said().unwrap()
}

fn memory() -> Launch {
    Launch::bsd().memory()
}

#[test]
fn a_server_is_healthy_and_ready_and_tells_browsers_to_be_careful() {
    let site = Site::start(memory());
    for (path, status) in [("/healthz", "ok"), ("/readyz", "ready")] {
        let answer = site.get(path);
        assert_eq!(
            (answer.status, &answer.json()["status"]),
            (200, &status.into())
        );
        for (field, value) in [
            ("content-type", "application/json"),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.field(field), Some(value), "{field}");
        }
        let policy = answer.field("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'self';"), "{policy}");
        let head = site.send(&format!("HEAD {path}"), &[], b"");
        assert_eq!((head.status, head.body.len()), (200, 0));
    }
}

#[test]
fn what_there_is_not_is_a_problem_with_a_name() {
    let site = Site::start(memory());
    let nothing = site.get("/nothing");
    assert_eq!(nothing.status, 404);
    assert_eq!(
        nothing.field("content-type"),
        Some("application/problem+json")
    );
    let problem = nothing.json();
    assert_eq!(problem["status"], 404);
    assert_eq!(problem["title"], "Not Found");
    assert!(problem["detail"].is_string() && problem["type"].is_string());
    let other = site.send("DELETE /healthz", &[], b"");
    assert_eq!((other.status, other.field("allow")), (405, Some("GET")));
}

/// A page under a name that was bound to this address again sends that name.
#[test]
fn a_request_under_a_strangers_name_is_refused() {
    let site = Site::start(memory().arg("--http-name").arg("queue.example"));
    for (host, status) in [
        ("127.0.0.1", 200),
        ("localhost:1", 200),
        ("queue.example", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("", 400),
        ("localhost\r\nHost: localhost", 400),
    ] {
        let request = format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(site.raw(request.as_bytes()).status, status, "{host}");
    }
    let none = site.raw(b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_eq!(none.status, 400);
}

#[test]
fn malformed_and_oversized_requests_are_refused_and_others_served() {
    let site = Site::start(memory());
    let long = "x".repeat(20 << 10);
    let many = "a: b\r\n".repeat(100);
    for (request, statuses) in [
        ("nonsense\r\n\r\n".to_owned(), &[400][..]),
        (
            format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            &[414, 431],
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nx: {long}\r\n\r\n"),
            &[431],
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"),
            &[431],
        ),
        (
            "GET / HTTP/9.9\r\nHost: localhost\r\n\r\n".to_owned(),
            &[400, 505],
        ),
        (
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"
                .to_owned(),
            &[400],
        ),
        (
            "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n".to_owned(),
            &[400],
        ),
    ] {
        let answer = site.raw(request.as_bytes());
        assert!(
            statuses.contains(&answer.status),
            "{request:.60}: {}",
            answer.head
        );
        assert!(site.is_healthy());
    }
}

/// A request that smuggles a second one past a proxy: a length in two ways at once.
#[test]
fn a_request_of_two_lengths_is_never_two_requests() {
    let site = Site::start(memory());
    let request = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\
        Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\
        Connection: close\r\n\r\n";
    let mut stream = site.connect();
    stream.write_all(request).unwrap();
    let said = String::from_utf8(rest(&mut stream)).unwrap();
    assert!(!said.contains("HTTP/1.1 200"), "{said}");
}

/// Twice as many as are served at a time, and each of them stops in the middle.
#[test]
fn clients_that_stop_in_the_middle_keep_no_one_out() {
    let site = Site::start(memory());
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        let mut stream = site.connect();
        // The server may have given its place to another already.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHo");
        slow.push(stream);
    }
    assert!(site.is_healthy());
    assert!(site.get("/readyz").status == 200);
    let first = slow.first_mut().unwrap();
    assert_eq!(rest(first).len(), 0, "the longest idle one has made way");
    site.server.connect();
}

/// Requests that anyone can send take no place from others, and one line of the log tells of them.
#[test]
fn g27_requests_whose_bodies_do_not_come_keep_no_one_out() {
    let site = Site::start(memory());
    let mut slow: Vec<TcpStream> = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        let mut stream = site.connect();
        let head = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx";
        // The server may have given its place to another already.
        let _ = stream.write_all(head.as_bytes());
        slow.push(stream);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(site.get(path).status, 200, "{path}");
    }
    let told = "HTTP connections closed before their request was complete: ";
    wait_until("it is told", || site.server.stderr().contains(told));
    assert_eq!(site.server.stderr().matches(told).count(), 1);
}

#[test]
fn g29_a_body_is_read_only_of_who_may_send_it_and_a_stranger_s_is_small() {
    let file = tokens();
    let site = Site::start(memory().arg("--http-tokens").arg(file.path()));
    let head = "POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Content-Type: application/json\r\nContent-Length: 2000000\r\n\r\n";
    assert_eq!(
        site.raw(head.as_bytes()).status,
        401,
        "nothing of it has come"
    );
    for size in [8 << 10, (8 << 10) + 1] {
        let answer = site.send("POST /login", &[], "x".repeat(size).as_bytes());
        let status = if size > 8 << 10 { 413 } else { 403 };
        assert_eq!(answer.status, status, "{size}");
    }
}

/// What the page of the login sends, with this token.
fn login_form(site: &Site, token: &str) -> String {
    let login = String::from_utf8(site.get("/login").body).unwrap();
    let (_, word) = login.split_once("name=\"form\" value=\"").unwrap();
    let (word, _) = word.split_once('"').unwrap();
    format!("form={word}&token={token}")
}

/// A server with these files of tokens for HTTP and for the protocol.
fn with_tokens(http: &std::path::Path, protocol: &std::path::Path) -> Site {
    let launch = memory().arg("--http-tokens").arg(http);
    let launch = launch.arg("--http").arg("127.0.0.1:0");
    let server = launch.arg("--auth-file").arg(protocol).spawn();
    wait_until("it is ready", || server.stderr().contains(" ready: "));
    Site::of(server)
}

#[test]
fn g30_guesses_over_http_and_over_the_protocol_are_told_of_in_one_line() {
    let file = tokens();
    let auth = tempfile::NamedTempFile::new().unwrap();
    let (_, line) = crate::auth::new_token("all");
    std::fs::write(auth.path(), line).unwrap();
    let site = with_tokens(file.path(), auth.path());
    let guess = "Authorization: Bearer no_one";
    assert_eq!(site.send("GET /api/v1/server", &[guess], b"").status, 401);
    let form = login_form(&site, "no_one");
    assert_eq!(site.send("POST /login", &[], form.as_bytes()).status, 403);
    assert_eq!(site.send("POST /logout", &[], form.as_bytes()).status, 303);
    let mut wire = crate::wire::Wire::connect(site.server.address()).unwrap();
    wire.send("auth no_one\r\n");
    assert_eq!(wire.rest(), b"NOT_AUTHORIZED\r\n");
    let right = "Authorization: Bearer reader";
    assert_eq!(site.send("GET /api/v1/server", &[right], b"").status, 200);
    let said = site.server.stderr();
    assert_eq!(said.matches("wrong tokens: 1 so far").count(), 1, "{said}");
    assert_eq!(said.matches("wrong tokens").count(), 1, "{said}");
    assert!(!said.contains("audit"), "{said}");
}

#[test]
fn one_file_of_tokens_is_for_the_protocol_and_for_http() {
    let file = tokens();
    let made = ["all", "work", "put", "all:*"].map(crate::auth::new_token);
    let mut lines = std::fs::read_to_string(file.path()).unwrap();
    made.iter()
        .for_each(|(_, line)| lines += &format!("{line}\n"));
    std::fs::write(file.path(), lines).unwrap();
    let site = with_tokens(file.path(), file.path());
    let [all, work, put, of_tubes] = made.each_ref().map(|(token, _)| &**token);
    for (token, puts, looks, changes) in [
        ("reader", false, true, false),
        ("master", true, true, true),
        (all, true, true, true),
        (work, false, true, false),
        (put, true, false, false),
        (of_tubes, true, false, false),
    ] {
        let mut wire = crate::wire::Wire::connect(site.server.address()).unwrap();
        assert_eq!(wire.ask(&format!("auth {token}")), "AUTHENTICATED");
        assert_eq!(wire.try_put(b"x") != "NOT_AUTHORIZED", puts, "{token}");
        let field = format!("Authorization: Bearer {token}");
        for (line, may) in [("GET /metrics", looks), ("POST /api/v1/drain", changes)] {
            let status = site.send(line, &[&field], b"").status;
            assert_eq!(status != 403, may, "{token}: {line}: {status}");
            assert_ne!(status, 401, "{token}: {line}");
        }
        site.send(
            "DELETE /api/v1/drain",
            &["Authorization: Bearer master"],
            b"",
        );
    }
    let answer = site.send("POST /login", &[], login_form(&site, put).as_bytes());
    assert_eq!(answer.status, 403);
    let page = String::from_utf8(answer.body).unwrap();
    assert!(
        page.contains("This token opens nothing over HTTP"),
        "{page}"
    );
    assert!(!site.server.stderr().contains("wrong tokens"));
}

#[test]
fn a_taken_default_address_is_a_warning_and_a_taken_address_that_was_asked_for_is_an_error() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch.memory();
    // All runs of this test on one machine mean the same address: one after the other.
    let turn = std::fs::File::open(std::env::temp_dir()).unwrap();
    turn.lock().unwrap();
    let first = launch.clone().arg("--http").arg("127.0.0.1:11380").spawn();
    wait_until("one of them has the address", || {
        TcpStream::connect("127.0.0.1:11380").is_ok()
    });
    let second = launch.clone().arg("--http-name").arg("any").start();
    let said = second.stderr();
    assert!(
        said.contains("HTTP is not served: 127.0.0.1:11380 is in use"),
        "{said}"
    );
    assert_eq!(said.matches("HTTP").count(), 1, "one line: {said}");
    let exit = launch.arg("--http").arg("127.0.0.1:11380").run_to_exit();
    assert_eq!(exit.code, Some(1));
    assert!(
        exit.stderr.contains("cannot serve HTTP on 127.0.0.1:11380"),
        "{}",
        exit.stderr
    );
    drop(first);
}

#[test]
fn http_off_is_off() {
    let server = memory().start();
    assert!(!server.stderr().contains("HTTP"), "{}", server.stderr());
}

#[test]
fn an_address_for_others_needs_tokens_that_no_one_else_can_read() {
    let Some(launch) = Launch::bsd_alone() else {
        return;
    };
    let launch = launch.memory();
    let exit = launch.clone().arg("--http").arg("0.0.0.0:0").run_to_exit();
    assert_eq!(exit.code, Some(1));
    assert!(exit.stderr.contains("without tokens"), "{}", exit.stderr);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "admin:token\n").unwrap();
    // As of any file that a flag names.
    for flag in ["--http-tokens", "--auth-file"] {
        let exit = launch.clone().arg(flag).arg(file.path()).run_to_exit();
        assert_eq!(exit.code, Some(5), "{}", exit.stderr);
        assert!(exit.stderr.contains("line 1"), "{}", exit.stderr);
        assert!(
            exit.stderr.contains(&format!("{flag}: ")),
            "{}",
            exit.stderr
        );
    }
}

#[test]
fn a_server_that_drains_is_healthy_and_not_ready() {
    let site = Site::start(memory());
    site.server.signal(Signal::USR1);
    wait_until("it drains", || site.get("/readyz").status == 503);
    let answer = site.get("/readyz");
    assert_eq!(answer.json()["reasons"][0], "it drains: puts are refused");
    assert!(site.is_healthy());
}

#[test]
fn backups_and_verifications_are_told_of_and_shown() {
    let dir = TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(dir.path()));
    let described = Description::of(&site);
    let path = "/api/v1/log/checks";
    let tell = |told: Value| described.send(&site, "post", path, &told, 200);
    assert_eq!(
        site.get("/api/v1/log").json()["checks"],
        json!({"backup": null, "rehearsal": null, "verify": null})
    );
    let checks = tell(json!({"check": "backup", "note": "/srv/<b>"}));
    assert_eq!(checks["verify"], Value::Null);
    assert_eq!(
        (&checks["backup"]["failed"], &checks["backup"]["note"]),
        (&json!(false), &json!("/srv/<b>"))
    );
    let checks = tell(json!({"check": "verify", "failed": true, "note": "x".repeat(200)}));
    assert_eq!(site.get("/api/v1/log").json()["checks"], checks);
    let metrics = String::from_utf8(site.get("/metrics").body).unwrap();
    for line in [
        "\nbsd_check_failed{check=\"backup\"} 0\n",
        "\nbsd_check_failed{check=\"verify\"} 1\n",
        "\nbsd_check_timestamp_seconds{check=\"backup\"} ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let page = String::from_utf8(site.get("/durability").body).unwrap();
    assert!(page.contains("/srv/&lt;b&gt;"), "{page}");
    for wrong in [
        json!({}),
        json!({"check": "scrub"}),
        json!({"check": "backup", "note": "x".repeat(201)}),
        json!({"check": "backup", "ok": true}),
    ] {
        assert_eq!(site.change("post", path, &wrong).status, 400, "{wrong}");
    }
    assert_eq!(site.get("/api/v1/log").json()["checks"], checks);
    let told = json!({"check": "backup"});
    let without = Site::start(memory());
    assert_eq!(without.change("post", path, &told).status, 404);
}

#[test]
fn draining_is_begun_and_ended_by_request_no_matter_who_began_it() {
    let site = Site::start(memory());
    let described = Description::of(&site);
    let path = "/api/v1/drain";
    let drain = |method| described.send(&site, method, path, &json!({}), 200);
    let mut wire = site.server.connect();
    for _ in 0..2 {
        assert_eq!(drain("post"), json!({"draining": true}));
        assert_eq!(wire.try_put(b"x"), "DRAINING");
        assert_eq!(site.get("/readyz").status, 503);
        assert_eq!(site.get("/api/v1/server").json()["draining"], true);
    }
    assert_eq!(drain("delete"), json!({"draining": false}));
    wire.put(b"x");
    site.server.signal(Signal::USR1);
    wait_until("it drains", || wire.try_put(b"x") == "DRAINING");
    drain("delete");
    wire.put(b"x");
    assert_eq!(site.get("/readyz").status, 200);
    let surplus = site.change("post", path, &json!({"until": "empty"}));
    assert_eq!(surplus.status, 400);
    let audit: Vec<String> = site.server.stderr().lines().map(str::to_owned).collect();
    let says = |end: &str| audit.iter().filter(|line| line.ends_with(end)).count();
    assert_eq!(says("POST /api/v1/drain: 200: puts are refused"), 1);
    assert_eq!(says("POST /api/v1/drain: 200: it was so before"), 1);
    assert_eq!(says("DELETE /api/v1/drain: 200: puts are taken again"), 2);
}

#[test]
fn a_server_without_room_is_not_ready_and_says_so() {
    let site = Site::start(memory().arg("--max-memory").arg("256k"));
    let mut wire = site.server.connect();
    let mut put = || wire.try_put(&[b'x'; 60000]);
    assert!(
        put().starts_with("INSERTED"),
        "the least bound has room for a job"
    );
    while put().starts_with("INSERTED") {}
    assert!(put().starts_with("OUT_OF_MEMORY"));
    let answer = site.get("/readyz");
    assert_eq!(answer.status, 503);
    let reason = answer.json()["reasons"][0].to_string();
    assert!(reason.contains("--max-memory is reached"), "{reason}");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Anyone,
    Read,
    Admin,
}

/// Every route as the server describes it: method, a path, and the least role that is let in.
fn routes(site: &Site) -> Vec<(String, String, Role)> {
    let line = "GET /api/v1/openapi.json";
    let document = site
        .send(line, &["Authorization: Bearer master"], b"")
        .json();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let path = path.replace("{tube}", "default").replace("{id}", "1");
            let path = path.replace("{task}", "1").replace("{search}", "1");
            let path = path.replace("{client}", "1");
            let role = match operation["x-role"].as_str().unwrap() {
                "anyone" => Role::Anyone,
                "read" => Role::Read,
                "admin" => Role::Admin,
                other => panic!("{other}"),
            };
            routes.push((method.to_uppercase(), path, role));
        }
    }
    assert!(routes.len() >= 8, "{routes:?}");
    routes
}

/// A file of two tokens: `reader` may look, `master` may do everything.
pub(crate) fn tokens() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines = "# two\nread:saltsalt:e819096d8f8af340037dbafd01c8067d67227641f09bbaeddbb5ec2fc22f653b\nadmin:peppersalt:1526d76ea124230fc3abeb06e6dca542afe9f447860044bae259daed21030a77\n";
    std::fs::write(file.path(), lines).unwrap();
    file
}

#[test]
fn every_route_lets_in_the_roles_that_it_should() {
    let file = tokens();
    let site = Site::start(memory().arg("--http-tokens").arg(file.path()));
    for (method, path, needed) in routes(&site) {
        for (field, role) in [
            (None, Role::Anyone),
            (Some("Authorization: Basic reader"), Role::Anyone),
            (Some("Authorization: reader"), Role::Anyone),
            (Some("Authorization: Bearer reader"), Role::Read),
            (Some("authorization: bearer master"), Role::Admin),
        ] {
            let answer = site.send(&format!("{method} {path}"), field.as_slice(), b"");
            let is_let_in = answer.status != 401 && answer.status != 403;
            assert_eq!(
                is_let_in,
                role >= needed,
                "{path} {field:?}: {}",
                answer.head
            );
            if answer.status == 401 {
                assert_eq!(answer.field("www-authenticate"), Some("Bearer"));
            }
        }
    }
}

#[test]
fn g34_a_search_is_ended_by_who_began_it_or_by_an_admin() {
    let file = tokens();
    let site = Site::start(memory().arg("--http-tokens").arg(file.path()));
    let [reader, admin] = ["reader", "master"].map(|it| format!("Authorization: Bearer {it}"));
    let json = "Content-Type: application/json";
    let begin = |who: &str| {
        let body = br#"{"filter": {"tube": "*"}}"#;
        let begun = site.send("POST /api/v1/search", &[who, json], body);
        assert_eq!(begun.status, 202, "{begun:?}");
        begun.json()["id"].to_string()
    };
    let end = |who: &str, id: &str| {
        let line = format!("DELETE /api/v1/search/{id}");
        site.send(&line, &[who], b"").status
    };
    let (of_reader, of_admin) = (begin(&reader), begin(&admin));
    assert_eq!(end(&reader, &of_admin), 403);
    assert_eq!(end(&reader, &of_reader), 200);
    assert_eq!(end(&admin, &begin(&reader)), 200);
    assert_eq!(end(&admin, &of_admin), 200);
}

#[test]
fn g34_streams_are_not_for_pages_of_other_sites() {
    let site = Site::start(memory());
    for path in ["/events?of=tasks", "/api/v1/events"] {
        let answer = site.send(&format!("GET {path}"), &["Sec-Fetch-Site: cross-site"], b"");
        assert_eq!(answer.status, 403, "{path}");
    }
}

/// Connections are kept, and close when the client wants.
#[test]
fn a_connection_serves_many_requests() {
    let site = Site::start(memory());
    let mut stream = site.connect();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", site.address);
    let mut buffer = [0; 4096];
    for _ in 0..100 {
        stream.write_all(request.as_bytes()).unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"}\n") {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "closed too early");
            said.extend_from_slice(&buffer[..count]);
        }
        assert_eq!(Answer::parse(&said).status, 200);
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!(stream.read(&mut buffer).unwrap(), 0);
}
