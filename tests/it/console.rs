//! The console: what its pages say is what the protocol says, whatever is in names and bodies. And in
//! a real browser, which a script of `tests/clients` drives.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clients::{folder, script};
use crate::harness::{Launch, program, skip, wait_until};
use crate::http::{Answer, Site};
use crate::wire::{Wire, put_command};

pub(crate) const HTML: &str = "Accept: text/html";

/// A page, as a browser asks for it.
pub(crate) struct Page {
    pub(crate) answer: Answer,
    pub(crate) text: String,
}

impl Page {
    pub(crate) fn of(site: &Site, path: &str) -> Page {
        Page::with(site, path, &[])
    }

    pub(crate) fn with(site: &Site, path: &str, fields: &[&str]) -> Page {
        let fields = [&[HTML], fields].concat();
        let answer = site.send(&format!("GET {path}"), &fields, b"");
        let text = String::from_utf8(answer.body.clone()).unwrap();
        Page { answer, text }
    }

    pub(crate) fn shown(site: &Site, path: &str) -> Page {
        let page = Page::of(site, path);
        assert_eq!(page.answer.status, 200, "{path}: {}", page.text);
        page
    }

    /// The text of the part with this id.
    pub(crate) fn part(&self, id: &str) -> &str {
        let (_, rest) = self
            .text
            .split_once(&format!("id=\"{id}\">"))
            .unwrap_or_else(|| panic!("no {id} in {}", self.text));
        rest.split_once('<').unwrap().0
    }

    /// The text of the part with this id without the commas of its number.
    fn number(&self, id: &str) -> String {
        self.part(id).replace(',', "")
    }

    /// The text beside a name.
    pub(crate) fn fact(&self, name: &str) -> &str {
        let (_, rest) = self
            .text
            .split_once(&format!("<dt>{name}</dt><dd>"))
            .unwrap_or_else(|| panic!("no {name} in {}", self.text));
        rest.split_once("</dd>").unwrap().0
    }
}

pub(crate) fn memory() -> Site {
    Site::start(Launch::bsd().memory())
}

/// A job in each state, and some in other tubes.
fn fill(wire: &mut Wire) {
    assert_eq!(wire.ask("use quiet"), "USING quiet");
    assert_eq!(wire.put(b"{\"a\":[1,\"<b>\"]}"), 1);
    for body in [&b"<script>alert(1)</script>&\"'"[..], b"\x00\xff", b"four"] {
        wire.put(body);
    }
    wire.send(put_command(7, 100_000, b"later"));
    wire.text();
    wire.ask("watch quiet");
    assert_eq!(wire.reserve(), 1);
    assert_eq!(wire.reserve(), 2);
    assert_eq!(wire.ask("bury 2 5"), "BURIED");
    assert_eq!(wire.ask("release 1 5 0"), "RELEASED");
    wire.reserve();
}

#[test]
fn pages_say_what_the_protocol_says() {
    let dir = tempfile::TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(&dir.path().join("log")));
    let mut wire = site.server.connect();
    fill(&mut wire);
    let overview = [
        ("jobs-ready", "current-jobs-ready"),
        ("jobs-reserved", "current-jobs-reserved"),
        ("jobs-delayed", "current-jobs-delayed"),
        ("jobs-buried", "current-jobs-buried"),
        ("urgent", "current-jobs-urgent"),
        ("clients", "current-connections"),
        ("producers", "current-producers"),
        ("workers", "current-workers"),
        ("waiting", "current-waiting"),
        ("tubes", "current-tubes"),
        ("put", "total-jobs"),
    ];
    // The page may be a second old: the connection of the start may be on it, or a count that was
    // not synced.
    wait_until("the overview says what the protocol says", || {
        let page = Page::shown(&site, "/");
        let differs = overview
            .iter()
            .find(|(id, key)| page.number(id) != wire.stat("stats", key));
        if let Some((id, _)) = differs {
            eprintln!("{id} differs: {}", page.number(id));
        }
        differs.is_none() && page.part("verdict-mark") == "durable"
    });
    let tubes = Page::shown(&site, "/tubes");
    let tube = Page::shown(&site, "/tubes/quiet");
    for state in ["ready", "reserved", "delayed", "buried"] {
        let said = wire.stat("stats-tube quiet", &format!("current-jobs-{state}"));
        assert_eq!(
            tubes.number(&format!("tube:quiet:{state}")),
            said,
            "{state}"
        );
        assert_eq!(tube.number(&format!("jobs-{state}")), said, "{state}");
    }
    for (id, key) in [
        ("puts", "total-jobs"),
        ("deletes", "cmd-delete"),
        ("users", "current-using"),
        ("watchers", "current-watching"),
        ("pauses", "cmd-pause-tube"),
    ] {
        assert_eq!(tube.number(id), wire.stat("stats-tube quiet", key), "{id}");
    }
    for id in 1..=5 {
        let job = Page::shown(&site, &format!("/jobs/{id}"));
        for (name, key) in [
            ("Priority", "pri"),
            ("Reserves", "reserves"),
            ("Timeouts", "timeouts"),
            ("Releases", "releases"),
            ("Buries", "buries"),
            ("Kicks", "kicks"),
        ] {
            let said = wire.stat(&format!("stats-job {id}"), key);
            assert_eq!(job.fact(name), said, "{name} of {id}");
        }
        let state = wire.stat(&format!("stats-job {id}"), "state");
        assert!(job.fact("State").contains(&format!(">{state}<")), "{id}");
    }
    // Counts of reserves are written some time after, and a page may be a second old.
    wait_until("the page has all that is written", || {
        let written = wire.stat("stats", "binlog-records-written");
        Page::shown(&site, "/durability").number("written") == written
    });
    let durability = Page::shown(&site, "/durability");
    assert_eq!(durability.fact("Sync policy"), "-f 0: before each reply");
}

#[test]
fn clients_are_listed_with_what_they_do() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire);
    let list = Page::shown(&site, "/clients");
    let link = |it: &Page| {
        let (_, rest) = it.text.split_once("href=\"/clients/")?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let id = link(&list).unwrap_or_else(|| panic!("{}", list.text));
    assert!(
        list.text.contains("producer, worker, busy with jobs"),
        "{}",
        list.text
    );
    let client = Page::shown(&site, &format!("/clients/{id}"));
    assert!(client.text.contains("Watches 2 tubes"), "{}", client.text);
    for link in ["/tubes/quiet", "/tubes/default", "/jobs/3", "/jobs/1"] {
        let is_reserved = !link.starts_with("/jobs") || {
            let state = wire.stat(&format!("stats-job {}", &link[6..]), "state");
            state == "reserved"
        };
        assert_eq!(
            client.text.contains(&format!("href=\"{link}\"")),
            is_reserved,
            "{link}"
        );
    }
    assert_eq!(Page::of(&site, "/clients/4000000").answer.status, 404);
}

#[test]
fn jobs_of_a_state_are_listed_in_their_order_page_by_page() {
    let site = memory();
    let mut wire = site.server.connect();
    for _ in 0..120 {
        wire.put(b"x");
    }
    let first = Page::shown(&site, "/tubes/default");
    assert!(first.text.contains("href=\"/jobs/100\"") && !first.text.contains("/jobs/101\""));
    let (_, next) = first.text.split_once("rel=\"next\"").unwrap_or_default();
    assert!(next.starts_with(">Next<"));
    let (link, _) = first.text.split_once("\" rel=\"next\"").unwrap();
    let link = link.rsplit_once("href=\"").unwrap().1.replace("&amp;", "&");
    let second = Page::shown(&site, link.split_once('#').unwrap().0);
    assert!(second.text.contains("href=\"/jobs/101\"") && second.text.contains("/jobs/120\""));
    assert!(!second.text.contains("rel=\"next\""));
    let none = Page::shown(&site, "/tubes/default?state=buried");
    assert!(none.text.contains("No job is buried here."));
}

#[test]
fn names_and_bodies_are_text_whatever_is_in_them() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire);
    let hostile = Page::shown(&site, "/jobs/2");
    assert!(!hostile.text.contains("<script>alert"), "{}", hostile.text);
    assert!(
        hostile
            .text
            .contains("&lt;script&gt;alert(1)&lt;/script&gt;&amp;")
    );
    let peeked = Page::shown(&site, "/tubes/quiet?state=buried");
    assert!(peeked.text.contains("&lt;script&gt;") && !peeked.text.contains("<script>"));
    let bytes = Page::shown(&site, "/jobs/3");
    assert!(bytes.text.contains("000000  00 ff"), "{}", bytes.text);
    let json = Page::shown(&site, "/jobs/1");
    assert!(
        json.text
            .contains("\n    <span class=\"s\">&quot;&lt;b&gt;&quot;</span>\n"),
        "{}",
        json.text
    );
    let name = "a+/;.$_()-b";
    wire.ask(&format!("use {name}"));
    wait_until("the tube is in the snapshot that pages share", || {
        Page::shown(&site, "/").number("tubes") == wire.stat("stats", "current-tubes")
    });
    let tubes = Page::shown(&site, "/tubes");
    let path = "/tubes/a%2B%2F%3B.%24_%28%29-b";
    assert!(
        tubes.text.contains(&format!("href=\"{path}\"")),
        "{}",
        tubes.text
    );
    assert!(
        Page::shown(&site, path)
            .text
            .contains(&format!("<h1>Tube {name}</h1>"))
    );
    for echoed in [
        "/tubes?q=%22%3E%3Cb%3E",
        "/jobs/%3Cb%3E",
        "/%3Cb%3E",
        "/tubes/%3Cb%3E",
    ] {
        let page = Page::of(&site, echoed);
        assert!(
            !page.text.contains("<b>") || echoed.starts_with("/tubes?"),
            "{echoed}"
        );
        assert!(!page.text.contains("\"><b>"), "{echoed}");
        assert!(page.text.contains("</html>"), "{echoed}");
    }
}

#[test]
fn what_there_is_not_is_a_page_for_browsers_and_a_problem_for_programs() {
    let site = memory();
    for path in ["/nothing", "/jobs/7", "/tubes/none"] {
        let page = Page::of(&site, path);
        let kind = page.answer.field("content-type");
        assert_eq!(
            (page.answer.status, kind),
            (404, Some("text/html; charset=utf-8")),
            "{path}"
        );
        assert!(page.text.contains("<h1>Not Found</h1>"), "{path}");
        let kind = site.get(path);
        assert_eq!(
            kind.field("content-type"),
            Some("application/problem+json"),
            "{path}"
        );
    }
    let api = site.send("GET /api/v1/jobs/7", &[HTML], b"");
    assert_eq!(api.field("content-type"), Some("application/problem+json"));
    let other = site.send("POST /tubes", &[HTML], b"");
    assert_eq!((other.status, other.field("allow")), (405, Some("GET")));
}

#[test]
fn browsers_are_told_to_be_careful_and_keep_only_what_is_part_of_the_program() {
    let site = memory();
    let page = Page::shown(&site, "/");
    let policy = page.answer.field("content-security-policy").unwrap();
    for part in [
        "default-src 'self'",
        "frame-ancestors 'none'",
        "form-action 'self'",
    ] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe") && !page.text.contains("style=\""));
    for (field, value) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "same-origin"),
    ] {
        assert_eq!(page.answer.field(field), Some(value));
    }
    for (path, kind) in [
        ("/static/console.css", "text/css; charset=utf-8"),
        ("/static/console.js", "text/javascript; charset=utf-8"),
        ("/static/icon.svg", "image/svg+xml"),
    ] {
        let answer = site.get(path);
        assert_eq!(
            (answer.status, answer.field("content-type")),
            (200, Some(kind))
        );
        assert_eq!(answer.field("cache-control"), Some("no-cache"), "{path}");
        let tag = answer.field("etag").unwrap();
        let again = site.send(
            &format!("GET {path}"),
            &[&format!("If-None-Match: {tag}")],
            b"",
        );
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
    }
}

/// Sorted, filtered and paged here: the engine is asked for one snapshot.
#[test]
fn twenty_thousand_tubes_are_listed_a_page_at_a_time() {
    const TUBES: usize = 20_000;
    let site = memory();
    let mut wire = site.server.connect();
    // The replies are read as they come: they and the requests need not fit into the sockets.
    for nth in 0..TUBES {
        wire.send(format!("use tube-{nth:05}\r\n"));
        wire.send(put_command(0, 0, b"x"));
        wire.reply();
        wire.reply();
    }
    wire.send("use tube-12345\r\n");
    wire.reply();
    wire.send(put_command(0, 0, b"x"));
    wire.reply();
    // Behind the tube named default.
    let first = Page::shown(&site, "/tubes");
    assert!(
        first.text.contains("20,001 tubes, 1 to 100 here."),
        "{:.3000}",
        first.text
    );
    assert!(first.text.contains("tube-00098<") && !first.text.contains("tube-00099<"));
    let last = Page::shown(&site, "/tubes?page=201");
    assert!(last.text.contains("tube-19999<") && !last.text.contains("tube-19998<"));
    let past = Page::shown(&site, "/tubes?page=9999");
    assert!(past.text.contains("No tube."));
    let most = Page::shown(&site, "/tubes?sort=-ready");
    assert_eq!(most.number("tube:tube-12345:ready"), "2");
    let found = Page::shown(&site, "/tubes?q=-1234");
    assert!(found.text.contains("10 tubes with"), "{:.3000}", found.text);
    let metrics = String::from_utf8(site.get("/metrics").body).unwrap();
    assert!(
        metrics.contains("bsd_tubes_summed_up 19001\n"),
        "as many as before"
    );
    let page = Page::of(&site, "/tubes?sort=size");
    assert_eq!(page.answer.status, 400);
}

/// Read from a stream of events until `wanted` is in it.
pub(crate) fn read_until(stream: &mut impl Read, wanted: &str) -> String {
    let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut buffer).unwrap();
        assert!(
            count > 0,
            "no {wanted} in {}",
            String::from_utf8_lossy(&said)
        );
        said.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&said);
        if text.contains(wanted) {
            return text.into_owned();
        }
    }
}

/// An open stream, as a browser has one.
pub(crate) fn listen(site: &Site, of: &str) -> std::net::TcpStream {
    let mut stream = site.connect();
    let head = format!(
        "GET /events?of={of} HTTP/1.1\r\nHost: {}\r\n\r\n",
        site.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream
}

/// The status of an answer that may have no end.
fn status(stream: &mut impl Read) -> String {
    let mut said = [0; 12];
    stream.read_exact(&mut said).unwrap();
    String::from_utf8_lossy(&said[9..]).into_owned()
}

#[test]
fn what_changes_is_told_and_what_does_not_is_not() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire);
    let mut stream = listen(&site, "tube&name=quiet");
    let said = read_until(&mut stream, "\n\n");
    assert!(said.contains("text/event-stream"), "{said}");
    assert!(
        said.contains("\"jobs-ready\":\"2\"") && said.contains("\"jobs-buried\":\"1\""),
        "{said}"
    );
    wire.put(b"another");
    let said = read_until(&mut stream, "\"jobs-ready\":\"3\"");
    assert!(!said.contains("jobs-buried"), "{said}");
    assert_eq!(site.get("/events?of=nothing").status, 400);
}

/// Each open page holds a stream: as many as are allowed, and their places come free.
#[test]
fn open_pages_are_bounded_and_end_with_the_server() {
    let site = memory();
    let mut streams: Vec<_> = (0..16).map(|_| listen(&site, "overview")).collect();
    for stream in &mut streams {
        read_until(stream, "data: ");
    }
    assert_eq!(status(&mut listen(&site, "overview")), "503");
    assert_eq!(
        Page::of(&site, "/").answer.status,
        200,
        "pages are shown all the same"
    );
    streams.pop();
    wait_until("the place of one that has left is free", || {
        status(&mut listen(&site, "overview")) == "200"
    });
    let exit = site.server.stop();
    assert_eq!(exit.code, Some(0), "{}", exit.stderr);
    for mut stream in streams {
        let mut rest = Vec::new();
        // Cut off or ended, as the system has it.
        let _ = stream.read_to_end(&mut rest);
    }
}

/// A client that puts, reserves and deletes until told to end; sometimes there is more to do,
/// sometimes less.
fn work(site: &Site, is_over: &AtomicBool) {
    let mut wire = site.server.connect();
    wire.ask("use busy");
    wire.ask("watch busy");
    let mut waiting = 0;
    for round in 0_u64.. {
        let wave = (round as f64 / 2000.0).sin();
        for _ in 0..=(3.0 + 2.5 * wave) as u64 {
            wire.put(b"busy");
            waiting += 1;
        }
        for _ in 0..waiting.min(3) {
            let id = wire.reserve();
            assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
            waiting -= 1;
        }
        if is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// Three jobs of `mail` become dead letters: of two a worker says why.
fn set_some_aside(site: &Site) {
    let mut wire = site.server.connect();
    let policy = "set-policy mail delivery-limit=1 dead-letter=mail-dead";
    assert_eq!(wire.ask(policy), "POLICY_SET");
    wire.ask("use mail");
    wire.ask("watch mail");
    for said in [Some("no route to host"), Some("no such user"), None] {
        let id = wire.put(b"body");
        assert_eq!(wire.reserve(), id);
        let (line, answer) = match said {
            Some(text) => (
                format!("fail {id} {}\r\n{text}", text.len()),
                "DEAD_LETTERED mail-dead",
            ),
            None => (format!("release {id} 0 0"), "RELEASED"),
        };
        assert_eq!(wire.ask(&line), answer);
    }
}

#[test]
fn two_directories_of_pictures_are_put_side_by_side_on_one_page() {
    let Some(node) = program("node") else {
        return skip("node is not installed");
    };
    let dir = tempfile::TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    for (picture, bytes) in [
        ("before/same.png", "same"),
        ("after/same.png", "same"),
        ("before/tubes.png", "old"),
        ("after/tubes.png", "new"),
        ("after/added.png", "new"),
    ] {
        std::fs::create_dir_all(at(picture).parent().unwrap()).unwrap();
        std::fs::write(at(picture), bytes).unwrap();
    }
    let output = Command::new(node)
        .arg(script("pictures.js"))
        .args([at("before"), at("after"), at("page.html")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(at("page.html")).unwrap();
    assert!(page.contains("2 of 3 pictures differ"), "{page}");
    let [old, new] = ["before/tubes.png", "after/tubes.png"].map(|it| page.find(it).unwrap());
    assert!(old < new, "the old one is on the left: {page}");
    assert!(page.contains("after/added.png") && !page.contains("before/added.png"));
    assert!(page.contains("<li>same.png</li>") && !page.contains("after/same.png"));
}

#[test]
fn a_browser_shows_every_page_in_order() {
    let modules = folder("BSD_NODE_MODULES", "node/node_modules");
    let has_modules = ["playwright-core", "axe-core"].map(|it| modules.join(it).is_dir());
    let (Some(node), Some(chromium), [true, true]) =
        (program("node"), program("chromium"), has_modules)
    else {
        return skip(&format!(
            "there is no node, no chromium, or no playwright-core and axe-core in {}",
            modules.display()
        ));
    };
    let dir = tempfile::TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(&dir.path().join("log")));
    let mut wire = site.server.connect();
    fill(&mut wire);
    let schedule = "schedule-set daily 5 cron=0_8_*_*_1-5 tz=Europe/Berlin tube=quiet\r\nhello";
    assert_eq!(wire.ask(schedule), "SCHEDULE_SET");
    set_some_aside(&site);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| work(&site, &is_over));
        let screenshot = std::env::var_os("BSD_SCREENSHOT");
        if screenshot.is_some() {
            // Until there is something to be seen.
            std::thread::sleep(Duration::from_secs(150));
        }
        let mut command = Command::new(node);
        command
            .env("NODE_PATH", &modules)
            .arg(script("console.js"))
            .args([site.address.to_string(), site.server.port().to_string()])
            .arg(chromium)
            .args(screenshot)
            .stdout(Stdio::null());
        // It ends itself if one of its steps takes too long.
        let is_right = command.status().unwrap().success();
        is_over.store(true, Ordering::Relaxed);
        assert!(is_right, "{command:?} failed");
    });
}
