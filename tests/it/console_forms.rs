//! The console's forms and sessions: what they change and say, from where they have to come, and who
//! may send them.

use crate::console::{HTML, Page, listen, memory, read_until};
use crate::harness::{Launch, wait_until};
use crate::http::{Site, tokens};
use crate::wire::Wire;

/// Post the fields of a form, without the secret of the process.
pub(crate) fn post(site: &Site, path: &str, fields: &[&str], form: &str) -> Page {
    let kind = "Content-Type: application/x-www-form-urlencoded";
    let fields = [&[HTML, kind], fields].concat();
    let answer = site.send(&format!("POST {path}"), &fields, form.as_bytes());
    let text = String::from_utf8(answer.body.clone()).unwrap();
    Page { answer, text }
}

/// The word that stands in the forms of a page.
pub(crate) fn word_of(page: &Page) -> String {
    let (_, rest) = page.text.split_once("name=\"form\" value=\"").unwrap();
    rest.split_once('"').unwrap().0.to_owned()
}

/// Send a form as a browser does, and load the page that it is sent to.
pub(crate) fn submit(site: &Site, path: &str, form: &str) -> Page {
    let word = word_of(&Page::shown(site, "/tubes/default"));
    let done = post(site, path, &[], &format!("form={word}&{form}"));
    assert_eq!(done.answer.status, 303, "{path} {form}: {}", done.text);
    Page::shown(site, done.answer.field("location").unwrap())
}

/// Every form, and something to send by it.
const FORMS: [(&str, &str); 21] = [
    ("/tubes/default/put", "body=x"),
    ("/tubes/default/pause", "seconds=0"),
    ("/tubes/default/count", "what=delete&state=buried"),
    ("/tubes/default/policy", "delivery-limit=5"),
    ("/tubes/default/policy/remove", ""),
    (
        "/schedules",
        "schedule=s&cron=0+1+*+*+*&tz=UTC&tube=t&body=x",
    ),
    ("/schedules/s/run", ""),
    ("/schedules/s/pause", ""),
    ("/schedules/s/resume", ""),
    ("/schedules/s/delete", ""),
    ("/jobs/1/kick", ""),
    ("/jobs/1/bury", ""),
    ("/jobs/1/redrive", ""),
    ("/jobs/1/release", ""),
    ("/clients/0/close", ""),
    ("/jobs/1/delay", "delay=5"),
    ("/jobs/1/priority", "priority=5"),
    ("/jobs/1/move", "to=elsewhere"),
    ("/tasks/1/run", "most=1"),
    ("/tasks/1/cancel", ""),
    ("/tasks/1/undo", ""),
];

#[test]
fn forms_come_from_pages_of_this_process_and_from_no_other_site() {
    let site = memory();
    site.server.connect().put(b"one");
    let word = word_of(&Page::shown(&site, "/jobs/1"));
    for (path, form) in FORMS.into_iter().chain([("/jobs/1/delete", "")]) {
        for (fields, sent) in [
            (&[][..], form.to_owned()),
            (&[], format!("form={}&{form}", "0".repeat(word.len()))),
            (
                &["Origin: http://evil.example"],
                format!("form={word}&{form}"),
            ),
            (
                &["Sec-Fetch-Site: same-site"],
                format!("form={word}&{form}"),
            ),
        ] {
            let done = post(&site, path, fields, &sent);
            assert_eq!(done.answer.status, 403, "{path} {sent}");
        }
    }
    let mut wire = site.server.connect();
    assert_eq!(wire.stat("stats-job 1", "state"), "ready");
    assert_eq!(wire.stat("stats", "total-jobs"), "1");
    let origin = format!("Origin: http://{}", site.address);
    let done = post(&site, "/jobs/1/bury", &[&origin], &format!("form={word}"));
    assert_eq!(done.answer.status, 303);
    assert_eq!(wire.stat("stats-job 1", "state"), "buried");
}

#[test]
fn g44_a_page_knows_when_its_list_is_one_of_before() {
    let site = memory();
    let mut wire = site.server.connect();
    wire.put(b"x");
    let listed = |path: &str| {
        let page = Page::shown(&site, path);
        let (_, rest) = page
            .text
            .split_once("<span hidden><span id=\"listed\">")
            .unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    };
    let paths = ["/tubes", "/tubes/default"];
    let before = paths.map(&listed);
    assert_eq!(paths.map(&listed), before);
    wire.put(b"y");
    wire.ask("use other");
    wait_until("both are others", || {
        let now = paths.map(&listed);
        now[0] != before[0] && now[1] != before[1]
    });
    let before = listed("/tasks");
    submit(&site, "/tubes/default/count", "what=delete&state=ready");
    assert_ne!(listed("/tasks"), before);
}

#[test]
fn g44_a_task_that_is_over_is_not_said_to_have_begun() {
    let site = memory();
    site.server.connect().put(b"x");
    let word = word_of(&Page::shown(&site, "/tubes/default"));
    let counted = format!("form={word}&what=delete&state=ready");
    let counted = post(&site, "/tubes/default/count", &[], &counted);
    let path = counted.answer.field("location").unwrap().to_owned();
    wait_until("it has counted", || {
        Page::shown(&site, &path).text.contains("Delete 1 job")
    });
    let run = post(
        &site,
        &format!("{path}/run"),
        &[],
        &format!("form={word}&most=1"),
    );
    let path = run.answer.field("location").unwrap().to_owned();
    let task = || site.get("/api/v1/tasks").json()["tasks"][0].clone();
    wait_until("it is over", || {
        task()["changed"] == 1 && task()["state"] == "done"
    });
    let page = Page::shown(&site, &path);
    assert!(page.text.contains(">done<"), "{}", page.text);
    assert!(!page.text.contains("has begun"), "{}", page.text);
}

#[test]
fn g51_a_job_is_taken_from_a_client_and_a_client_is_closed_by_a_form() {
    let site = memory();
    let mut worker = site.server.connect();
    let id = worker.put(b"x");
    assert_eq!(worker.reserve(), id);
    let page = Page::shown(&site, &format!("/jobs/{id}"));
    let (_, rest) = page.text.split_once(" by <a href=\"/clients/").unwrap();
    let client = rest.split('"').next().unwrap();
    assert!(
        page.text
            .contains(&format!("action=\"/jobs/{id}/release\""))
    );
    let said = submit(&site, &format!("/jobs/{id}/release"), "");
    assert!(said.text.contains("Job 1 was released."), "{}", said.text);
    assert_eq!(worker.ask(&format!("delete {id}")), "DELETED");
    let page = Page::shown(&site, &format!("/clients/{client}"));
    let (_, rest) = page.text.split_once("name=\"address\" value=\"").unwrap();
    let address = rest.split('"').next().unwrap().to_owned();
    let path = format!("/clients/{client}/close");
    let said = submit(&site, &path, &format!("address={address}"));
    let words = format!("The connection of client {client} is closed.");
    assert!(said.text.contains(&words), "{}", said.text);
    assert_eq!(worker.rest(), b"");
}

#[test]
fn forms_do_what_they_say_and_say_what_was_done() {
    let site = memory();
    let mut wire = site.server.connect();
    let put = submit(
        &site,
        "/tubes/default/put",
        "body=a%26b%0D%0A%3Cc%3E&priority=7&ttr=9",
    );
    assert!(
        put.text.contains(">Job 1 was put into default.<"),
        "{}",
        put.text
    );
    assert_eq!(wire.ask("peek 1"), "FOUND 1 7\r\na&b\n<c>");
    let job = |wire: &mut Wire, key: &str| wire.stat("stats-job 1", key);
    assert_eq!(
        (job(&mut wire, "pri"), job(&mut wire, "ttr")),
        ("7".into(), "9".into())
    );
    submit(&site, "/jobs/1/bury", "");
    assert_eq!(job(&mut wire, "state"), "buried");
    submit(&site, "/jobs/1/delay", "delay=100");
    assert_eq!(job(&mut wire, "state"), "delayed");
    submit(&site, "/jobs/1/kick", "");
    assert_eq!(job(&mut wire, "state"), "ready");
    submit(&site, "/jobs/1/priority", "priority=3");
    assert_eq!(job(&mut wire, "pri"), "3");
    let moved = submit(&site, "/jobs/1/move", "to=else%2Fwhere");
    assert!(moved.text.contains("Job 1 was moved."), "{}", moved.text);
    assert_eq!(job(&mut wire, "tube"), "\"else/where\"");
    let paused = submit(&site, "/tubes/default/pause", "seconds=3600");
    assert!(
        paused.text.contains("default is paused for 1 h 0 min."),
        "{}",
        paused.text
    );
    assert_eq!(wire.stat("stats-tube default", "pause"), "3600");
    let ask = Page::shown(&site, "/jobs/1/delete");
    assert!(ask.text.contains("<h1>Delete job 1?</h1>") && ask.text.contains("Delete 1 job<"));
    assert_eq!(job(&mut wire, "state"), "ready", "it was only asked");
    let gone = submit(&site, "/jobs/1/delete", "");
    assert!(gone.text.contains("Job 1 was deleted."), "{}", gone.text);
    assert_eq!(wire.ask("peek 1"), "NOT_FOUND");
    let word = word_of(&Page::shown(&site, "/tubes/default"));
    for (path, form, status) in [
        ("/jobs/1/kick", "", 404),
        ("/jobs/x/kick", "", 400),
        ("/tubes/-bad/put", "body=x", 400),
        ("/tubes/default/put", "body=x&delay=soon", 400),
        ("/tubes/default/count", "what=delete", 400),
        ("/tasks/7/run", "", 404),
    ] {
        let done = post(&site, path, &[], &format!("form={word}&{form}"));
        assert_eq!(done.answer.status, status, "{path}: {}", done.text);
        assert!(done.text.contains("</html>"), "{path}");
    }
    wait_until("the log says what was done", || {
        let said = site.server.stderr();
        said.contains(": POST /jobs/1/delete: 303") && said.contains(": POST /jobs/1/kick: 404")
    });
}

#[test]
fn what_was_done_is_said_once() {
    let site = memory();
    let word = word_of(&Page::shown(&site, "/tubes/default"));
    let done = post(
        &site,
        "/tubes/default/put",
        &[],
        &format!("form={word}&body=x"),
    );
    let place = done.answer.field("location").unwrap();
    assert!(Page::shown(&site, place).text.contains("was put into"));
    assert!(!Page::shown(&site, place).text.contains("was put into"));
}

#[test]
fn many_jobs_are_counted_and_changed_when_their_number_was_seen() {
    let site = memory();
    let mut wire = site.server.connect();
    for body in ["apple", "pear", "apple tart"] {
        wire.put(body.as_bytes());
    }
    let form = "what=bury&state=ready&with=apple&rate=&delay=&to=";
    let counted = submit(&site, "/tubes/default/count", form);
    wait_until("they are counted", || {
        Page::shown(&site, "/tasks/1").part("stage") == "done"
    });
    assert!(
        counted.text.contains("with “apple” in their bodies"),
        "{}",
        counted.text
    );
    let counted = Page::shown(&site, "/tasks/1");
    assert!(counted.text.contains(">Bury 2 jobs<"), "{}", counted.text);
    assert_eq!(wire.stat("stats-tube default", "current-jobs-buried"), "0");
    submit(&site, "/tasks/1/run", "most=2");
    wait_until("they are changed", || {
        Page::shown(&site, "/tasks/2").part("stage") == "done"
    });
    assert_eq!(Page::shown(&site, "/tasks/2").part("changed"), "2");
    assert_eq!(wire.stat("stats-tube default", "current-jobs-buried"), "2");
    assert_eq!(wire.stat("stats-job 2", "state"), "ready");
    let word = word_of(&Page::shown(&site, "/tubes/default"));
    let again = post(&site, "/tasks/2/run", &[], &format!("form={word}"));
    assert_eq!(again.answer.status, 409, "it has done more than count");
    let slow = "what=kick&state=buried&rate=1";
    submit(&site, "/tubes/default/count", slow);
    wait_until("they are counted", || {
        Page::shown(&site, "/tasks/3").part("stage") == "done"
    });
    submit(&site, "/tasks/3/run", "most=2");
    submit(&site, "/tasks/4/cancel", "");
    wait_until("it is cancelled", || {
        ["cancelled", "done"].contains(&Page::shown(&site, "/tasks/4").part("stage"))
    });
    let all = Page::shown(&site, "/tasks");
    assert_eq!(all.part("task:2:changed"), "2");
    assert_eq!(all.part("task:1:matched"), "2");
    let mut stream = listen(&site, "tasks");
    read_until(&mut stream, "\"task:2:changed\":\"2\"");
}

fn guarded(file: &tempfile::NamedTempFile) -> Site {
    let launch = Launch::bsd().memory();
    Site::start(launch.arg("--http-tokens").arg(file.path()))
}

/// The cookie of who shows this token.
pub(crate) fn enter(site: &Site, token: &str) -> String {
    let word = word_of(&Page::shown(site, "/login"));
    let form = format!("form={word}&to=%2Ftubes%3Fsort%3Dname&token={token}");
    let done = post(site, "/login", &[], &form);
    let place = done.answer.field("location");
    assert_eq!(
        (done.answer.status, place),
        (303, Some("/tubes?sort=name")),
        "{}",
        done.text
    );
    let cookie = done.answer.field("set-cookie").unwrap();
    assert!(
        cookie.ends_with("; Path=/; Max-Age=43200; SameSite=Strict; HttpOnly"),
        "{cookie}"
    );
    format!("Cookie: {}", cookie.split_once(';').unwrap().0)
}

const PAGES: [&str; 13] = [
    "/",
    "/tubes",
    "/tubes/default",
    "/schedules",
    "/jobs/1",
    "/jobs/1/delete",
    "/jobs/1/body",
    "/durability",
    "/clients",
    "/tasks",
    "/events?of=overview",
    "/find?q=1",
    "/find/1",
];

#[test]
fn anyone_who_has_shown_no_token_is_asked_for_one() {
    let file = tokens();
    let site = guarded(&file);
    for path in PAGES {
        let guess = (path == "/").then_some("Authorization: Bearer no_one");
        for field in [None, guess, Some("Cookie: bsd-0=x")] {
            let page = Page::with(&site, path, field.as_slice());
            let place = page.answer.field("location").unwrap_or_default();
            assert_eq!(page.answer.status, 303, "{path}");
            assert!(place.starts_with("/login?to=%2F"), "{path}: {place}");
            assert!(page.text.is_empty());
            assert_eq!(site.get(path).status, 401, "for a program");
        }
    }
    assert_eq!(site.get("/static/console.css").status, 200);
    let word = word_of(&Page::shown(&site, "/login"));
    for (form, status) in [
        (format!("form={word}&token=no_one"), 403),
        (format!("form={word}"), 403),
        ("token=reader".to_owned(), 403),
        (
            format!("form={word}&to=%2F%2Fevil.example&token=reader"),
            303,
        ),
    ] {
        let done = post(&site, "/login", &[], &form);
        assert_eq!(done.answer.status, status, "{form}");
        assert_eq!(
            done.answer.field("set-cookie").is_some(),
            status == 303,
            "{form}"
        );
        if status == 303 {
            assert_eq!(done.answer.field("location"), Some("/"));
        }
    }
    let open = memory();
    assert_eq!(
        Page::of(&open, "/login").answer.field("location"),
        Some("/"),
        "no one is asked"
    );
}

#[test]
fn a_role_is_held_to_whatever_is_sent() {
    let file = tokens();
    let site = guarded(&file);
    site.server.connect().put(b"one");
    let (reader, master) = (enter(&site, "reader"), enter(&site, "master"));
    for who in [&*reader, "Authorization: Bearer reader"] {
        for path in PAGES
            .iter()
            .filter(|path| !path.starts_with("/find") && !path.starts_with("/events"))
        {
            let page = Page::with(&site, path, &[who]);
            assert_eq!(page.answer.status, 200, "{path}");
            let forms = page.text.matches("method=\"post\"").count();
            let of_session = page.text.matches("action=\"/logout\"").count();
            assert_eq!(forms, of_session, "{path} offers nothing: {}", page.text);
        }
    }
    let word = word_of(&Page::with(&site, "/jobs/1", &[&master]));
    for (path, form) in FORMS.into_iter().chain([("/jobs/1/delete", "")]) {
        let form = format!("form={word}&{form}");
        for who in [&*reader, "Authorization: Bearer reader"] {
            let done = post(&site, path, &[who], &form);
            assert_eq!(done.answer.status, 403, "{path} {who}");
        }
        let done = post(&site, path, &[], &form);
        assert_eq!(done.answer.status, 303, "{path}: to be asked for a token");
        assert!(done.answer.field("location").unwrap().starts_with("/login"));
    }
    let mut wire = site.server.connect();
    assert_eq!(wire.stat("stats-job 1", "state"), "ready");
    assert_eq!(wire.stat("stats", "total-jobs"), "1");
    let done = post(&site, "/jobs/1/bury", &[&master], &format!("form={word}"));
    assert_eq!(done.answer.status, 303);
    assert_eq!(wire.stat("stats-job 1", "state"), "buried");
    let api = site.send("GET /api/v1/server", &[&*master], b"");
    assert_eq!(api.status, 401, "a session opens pages alone");
    let left = post(&site, "/logout", &[&master], &format!("form={word}"));
    assert!(
        left.answer
            .field("set-cookie")
            .unwrap()
            .contains("Max-Age=0")
    );
    assert_eq!(
        Page::with(&site, "/", &[&master]).answer.status,
        303,
        "it is over"
    );
    wait_until("the log says who it was", || {
        let said = site.server.stderr();
        said.contains("the token in line 3: POST /jobs/1/bury: 303")
            && said.contains("POST /login: 303: the token in line 2")
            && said.contains("POST /logout: 303")
    });
    let said = site.server.stderr();
    assert!(
        !said.contains("reader") && !said.contains("master"),
        "{said}"
    );
}
