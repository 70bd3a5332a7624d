//! Schedules for people: over the API, in the console and with `bsd-ctl`. What is set is shown, put at
//! its time, and outlives a `kill -9`; what cannot be set is refused with what to do.

use serde_json::{Value, json};

use crate::api::Description;
use crate::console::Page;
use crate::console_forms::{post, submit, word_of};
use crate::ctl::{NOT_DONE, OK, command, said};
use crate::harness::{Launch, wait_until};
use crate::http::{Site, tokens};
use crate::steering::memory;

const SCHEDULES: &str = "/api/v1/schedules";
/// A page must show it as text.
const HOSTILE: &str = "<script>alert(1)</script>&";

/// Run `bsd-ctl` with these words: its exit code, and all that it wrote.
fn ctl(site: &Site, words: &[&str]) -> (Option<i32>, String) {
    let mut command = command(&site.server.address().to_string());
    command.env("BSD_CTL_HTTP", site.address.to_string());
    said(&command.arg("schedule").args(words).output().unwrap())
}

fn done(site: &Site, words: &[&str]) -> String {
    let (code, said) = ctl(site, words);
    assert_eq!(code, OK, "{words:?}: {said}");
    said
}

/// Ask for a schedule, held to the description.
fn schedule(site: &Site, name: &str, status: u16) -> Value {
    let path = format!("{SCHEDULES}/{name}");
    Description::of(site).check(&site.get(&path), "get", &path, status)
}

/// Change a schedule, or what is below it.
fn change(
    site: &Site,
    (method, below): (&str, &str),
    name: &str,
    body: &Value,
    status: u16,
) -> Value {
    let path = format!("{SCHEDULES}/{name}{below}");
    Description::of(site).send(site, method, &path, body, status)
}

fn set(site: &Site, name: &str, body: &Value) -> Value {
    change(site, ("put", ""), name, body, 200)
}

/// One at eight o'clock in Berlin, from Monday to Friday.
fn daily() -> Value {
    json!({"cron": "0 8 * * 1-5", "tz": "Europe/Berlin", "tube": "mail",
        "body": {"data": HOSTILE}, "priority": 7, "ttr": 60, "key": "daily", "missed": "once"})
}

/// One that puts a job each second.
fn each_second(tube: &str) -> Value {
    json!({"cron": "* * * * * *", "tube": tube, "body": {"data": "tick"}})
}

fn jobs(site: &Site, tube: &str) -> u64 {
    let found = site.get(&format!("/api/v1/tubes/{tube}")).json();
    found["jobs"]["ready"].as_u64().unwrap_or(0)
}

#[test]
fn a_schedule_is_set_as_a_whole_shown_listed_and_deleted_and_outlives_a_kill() {
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(dir.path());
    let mut site = Site::start(launch.clone());
    schedule(&site, "daily", 404);
    let whole = set(&site, "daily", &daily());
    for (name, value) in [
        ("name", json!("daily")),
        ("cron", json!("0 8 * * 1-5")),
        ("tz", json!("Europe/Berlin")),
        ("tube", json!("mail")),
        ("priority", json!(7)),
        ("ttr", json!(60)),
        ("key", json!("daily")),
        ("missed", json!("once")),
        ("paused", json!(false)),
        ("body_size", json!(HOSTILE.len())),
        ("body", json!({"encoding": "text", "data": HOSTILE})),
    ] {
        assert_eq!(whole[name], value, "{name}: {whole}");
    }
    let next = whole["next_firings"].as_array().unwrap();
    assert_eq!(next.len(), 5, "{whole}");
    for at in next.iter().map(|at| at.as_str().unwrap()) {
        let (_, time) = at.split_once('T').unwrap();
        assert!(["08:00:00+01:00", "08:00:00+02:00"].contains(&time), "{at}");
    }
    let plain =
        json!({"cron": "@yearly", "tube": "t", "body": {"encoding": "base64", "data": "/w=="}});
    set(&site, "a%2Fb", &plain);
    for round in 0..2 {
        let found = schedule(&site, "daily", 200);
        assert_eq!(
            (&found["cron"], &found["body"]),
            (&whole["cron"], &whole["body"])
        );
        let found = schedule(&site, "a%2Fb", 200);
        for (name, value) in [
            ("tz", json!("UTC")),
            ("priority", json!(65536)),
            ("ttr", json!(120)),
            ("key", Value::Null),
            ("missed", json!("skip")),
            ("body", plain["body"].clone()),
        ] {
            assert_eq!(found[name], value, "{name}: {found}");
        }
        if round == 0 {
            site.server.signal(rustix::process::Signal::KILL);
            drop(site);
            site = Site::start(launch.clone());
        }
    }
    let names = |query: &str| {
        let path = format!("{SCHEDULES}?{query}");
        let page = Description::of(&site).check(&site.get(&path), "get", &path, 200);
        let all = page["schedules"].as_array().unwrap().iter();
        assert!(all.clone().all(|it| it["body"].is_null()), "{page}");
        let names: Vec<_> = all
            .map(|it| it["name"].as_str().unwrap().to_owned())
            .collect();
        (names, page["next"].clone())
    };
    assert_eq!(names("limit=1"), (vec!["a/b".to_owned()], json!("a/b")));
    assert_eq!(
        names("limit=1&after=a/b"),
        (vec!["daily".to_owned()], Value::Null)
    );
    assert_eq!(names("tube=mail"), (vec!["daily".to_owned()], Value::Null));
    assert_eq!(names("tube=none"), (Vec::new(), Value::Null));
    let gone = change(&site, ("delete", ""), "a%2Fb", &Value::Null, 200);
    assert_eq!(gone, json!({"name": "a/b"}));
    for (method, below) in [
        ("delete", ""),
        ("post", "/run"),
        ("post", "/pause"),
        ("post", "/resume"),
    ] {
        let problem = change(&site, (method, below), "a%2Fb", &json!({}), 404);
        let why = problem["detail"].as_str().unwrap();
        assert!(why.contains("GET /api/v1/schedules"), "{why}");
    }
    wait_until("the log says who has set what", || {
        site.server
            .stderr()
            .contains("DELETE /api/v1/schedules/a%2Fb: 200")
    });
}

#[test]
fn what_is_no_schedule_is_refused_with_the_reason() {
    let site = memory();
    let with = |name: &str, value: Value| {
        let mut body = daily();
        body[name] = value;
        body
    };
    for (name, body, status, reason) in [
        ("daily", json!({}), 400, "cron"),
        ("daily", with("cron", Value::Null), 400, "cron"),
        ("daily", with("cron", json!("0 8 * *")), 400, "0 8 * *"),
        (
            "daily",
            with("cron", json!("61 * * * *")),
            400,
            "61 * * * *",
        ),
        (
            "daily",
            with("cron", json!("0 0 30 2 *")),
            400,
            "0 0 30 2 *",
        ),
        ("daily", with("cron", json!(8)), 400, "cron is a text"),
        (
            "daily",
            with("tz", json!("Europe/Berlim")),
            400,
            "Europe/Berlin",
        ),
        (
            "daily",
            with("tz", json!("../etc/passwd")),
            400,
            "time zone",
        ),
        ("daily", with("tube", Value::Null), 400, "tube"),
        ("daily", with("tube", json!("-mail")), 400, "-mail"),
        (
            "daily",
            with("tube", json!("mail paused=yes")),
            400,
            "mail paused=yes",
        ),
        ("daily", with("ttr", json!(0)), 400, "ttr"),
        ("daily", with("priority", json!(-1)), 400, "priority"),
        ("daily", with("key", json!("a b")), 400, "key"),
        ("daily", with("missed", json!("never")), 400, "missed"),
        ("daily", with("paused", json!("yes")), 400, "paused"),
        ("daily", with("body", Value::Null), 400, "body"),
        ("daily", with("more", json!(1)), 400, "more"),
        (
            "daily",
            with("body", json!({"data": "x".repeat(64 << 10)})),
            413,
            "bytes too many",
        ),
        ("-daily", daily(), 400, "-daily"),
        ("a%20b", daily(), 400, "a b"),
    ] {
        let problem = change(&site, ("put", ""), name, &body, status);
        let why = problem["detail"].as_str().unwrap();
        assert!(why.contains(reason), "{reason}: {why}");
    }
    assert_eq!(site.get(SCHEDULES).json()["schedules"], json!([]));
}

#[test]
fn a_schedule_fires_is_paused_resumed_and_run_and_the_metrics_count_it() {
    let dir = tempfile::TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(dir.path()));
    set(&site, "tick", &each_second("ticks"));
    wait_until("it fires", || jobs(&site, "ticks") >= 2);
    let paused = change(&site, ("post", "/pause"), "tick", &json!({}), 200);
    assert_eq!(paused["paused"], true);
    // To set it again ends no pause, but where that is said.
    assert_eq!(set(&site, "tick", &each_second("ticks"))["paused"], true);
    let mut going_on = each_second("ticks");
    going_on["paused"] = json!(false);
    assert_eq!(set(&site, "tick", &going_on)["paused"], false);
    let paused = change(&site, ("post", "/pause"), "tick", &json!({}), 200);
    assert_eq!(paused["paused"], true);
    let fired = schedule(&site, "tick", 200)["fired_up_to"].clone();
    assert!(fired.as_str().unwrap().ends_with("+00:00"), "{fired}");
    let before = jobs(&site, "ticks");
    let run = change(&site, ("post", "/run"), "tick", &json!({}), 201);
    let id = run["id"].as_u64().unwrap();
    let job = site.get(&format!("/api/v1/jobs/{id}")).json();
    assert_eq!(
        (&job["tube"], &job["body"]["data"]),
        (&json!("ticks"), &json!("tick"))
    );
    assert_eq!(
        jobs(&site, "ticks"),
        before + 1,
        "it was put once, and nothing else was"
    );
    let metrics = || String::from_utf8(site.get("/metrics").body).unwrap();
    let line = |name: &str| {
        let page = metrics();
        let mut lines = page.lines();
        let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found
            .unwrap_or_else(|| panic!("no {name} in {page}"))
            .parse::<u64>()
            .unwrap()
    };
    wait_until("the metrics tell of it", || {
        line("bsd_schedules") == 1 && line("bsd_schedule_firings_total") == before
    });
    let resumed = change(&site, ("post", "/resume"), "tick", &json!({}), 200);
    assert_eq!(resumed["paused"], false);
    wait_until("it fires again", || jobs(&site, "ticks") > before + 1);
}

/// The second of the day up to which a schedule has fired.
fn fired_second(schedule: &Value) -> u64 {
    let at = schedule["fired_up_to"].as_str().unwrap();
    let (_, time) = at.split_once('T').unwrap();
    let parts = time[..8]
        .split(':')
        .map(|part| part.parse::<u64>().unwrap());
    parts.fold(0, |sum, part| sum * 60 + part)
}

#[test]
fn a_schedule_fires_once_for_each_second_also_across_a_kill() {
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(dir.path());
    let mut site = Site::start(launch.clone());
    let mut all = each_second("ticks");
    all["missed"] = json!("all");
    let begun = fired_second(&set(&site, "tick", &all));
    for _ in 0..2 {
        let before = jobs(&site, "ticks");
        wait_until("it fires", || jobs(&site, "ticks") > before);
        site.server.signal(rustix::process::Signal::KILL);
        drop(site);
        site = Site::start(launch.clone());
    }
    let before = jobs(&site, "ticks");
    wait_until("it fires", || jobs(&site, "ticks") > before);
    let paused = change(&site, ("post", "/pause"), "tick", &json!({}), 200);
    // Midnight may have come.
    let seconds = (fired_second(&paused) + 86_400 - begun) % 86_400;
    assert_eq!(jobs(&site, "ticks"), seconds, "{paused}");
}

#[test]
fn a_schedule_is_read_with_the_role_read_and_changed_with_the_role_admin() {
    let file = tokens();
    let site = Site::start(Launch::bsd().memory().arg("--http-tokens").arg(file.path()));
    let send = |what: &str, token: &str| {
        let token = format!("Authorization: Bearer {token}");
        let fields = [&*token, "Content-Type: application/json"];
        let body = if what.starts_with("PUT") {
            daily().to_string()
        } else {
            String::new()
        };
        site.send(what, &fields, body.as_bytes()).status
    };
    let put = format!("PUT {SCHEDULES}/daily");
    assert_eq!((send(&put, "reader"), send(&put, "no_one")), (403, 401));
    assert_eq!(send(&put, "master"), 200);
    for what in ["GET", "HEAD"] {
        assert_eq!(
            send(&format!("{what} {SCHEDULES}"), "reader"),
            200,
            "{what}"
        );
        assert_eq!(
            send(&format!("{what} {SCHEDULES}/daily"), "reader"),
            200,
            "{what}"
        );
    }
    for what in [
        format!("POST {SCHEDULES}/daily/pause"),
        format!("POST {SCHEDULES}/daily/resume"),
        format!("POST {SCHEDULES}/daily/run"),
        format!("DELETE {SCHEDULES}/daily"),
    ] {
        assert_eq!(send(&what, "reader"), 403, "{what}");
        let is_done = (200..300).contains(&send(&what, "master"));
        assert!(is_done, "{what}");
    }
    assert_eq!(send(&format!("GET {SCHEDULES}/daily"), "reader"), 404);
    wait_until("the log says what was set", || {
        let said = site.server.stderr();
        said.contains(
            "PUT /api/v1/schedules/daily: 200: cron=0_8_*_*_1-5 tz=Europe/Berlin tube=mail",
        ) && said.contains("POST /api/v1/schedules/daily/run: 201: job ")
    });
}

#[test]
fn bsd_ctl_sets_lists_shows_pauses_resumes_runs_and_deletes_schedules() {
    let site = memory();
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("body");
    std::fs::write(&file, b"to: ann\n\x1b[2J").unwrap();
    let body = format!("@{}", file.display());
    let set = [
        "set",
        "mail",
        "--cron",
        "0 8 * * 1-5",
        "--tz",
        "Europe/Berlin",
        "--tube",
        "mail",
        "--body",
        &body,
        "--pri",
        "5",
        "--ttr",
        "2m",
        "--key",
        "daily",
        "--missed",
        "once",
    ];
    let said = done(&site, &set);
    assert!(
        said.starts_with("schedule mail is set; it is due at 2"),
        "{said}"
    );
    assert!(said.contains("T08:00:00+0"), "{said}");
    let whole = schedule(&site, "mail", 200);
    assert_eq!(
        (&whole["priority"], &whole["ttr"], &whole["missed"]),
        (&json!(5), &json!(120), &json!("once"))
    );
    let listed = done(&site, &["list"]);
    assert!(
        listed.contains("mail") && listed.contains("0 8 * * 1-5"),
        "{listed}"
    );
    let listed: Value = serde_json::from_str(&done(&site, &["list", "--json"])).unwrap();
    assert_eq!(listed[0]["name"], "mail", "{listed}");
    let said = done(&site, &["show", "mail"]);
    for part in [
        "schedule mail\n",
        "Europe/Berlin",
        "daily",
        "to: ann\n\\u{1b}[2J",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let shown: Value = serde_json::from_str(&done(&site, &["show", "mail", "--json"])).unwrap();
    assert_eq!(
        shown["next_firings"].as_array().unwrap().len(),
        5,
        "{shown}"
    );
    assert_eq!(
        done(&site, &["run", "mail"]),
        "job 1 was put by schedule mail\n"
    );
    assert_eq!(
        done(&site, &["pause", "mail"]),
        "schedule mail: it is paused\n"
    );
    assert!(done(&site, &["list"]).contains("paused"));
    assert!(done(&site, &["resume", "mail"]).starts_with("schedule mail: it is due at 2"));
    assert_eq!(
        done(&site, &["delete", "mail"]),
        "schedule mail is deleted\n"
    );
    let bad_zone = [
        "set",
        "x",
        "--cron",
        "* * * * *",
        "--tz",
        "Nowhere",
        "--tube",
        "t",
        "--body",
        "b",
    ];
    let bad_cron = [
        "set", "x", "--cron", "* * * *", "--tube", "t", "--body", "b",
    ];
    for (words, code, reason) in [
        (&["show", "mail"][..], NOT_DONE, "there is no schedule"),
        (&["delete", "mail"], NOT_DONE, "there is no schedule"),
        (&["run", "mail"], NOT_DONE, "there is no schedule"),
        (&bad_zone, NOT_DONE, "Nowhere"),
        (&bad_cron, Some(5), "* * * *"),
        (
            &["set", "x", "--tube", "t", "--body", "b"],
            Some(5),
            "--cron",
        ),
        (
            &[
                "set",
                "a b",
                "--cron",
                "* * * * *",
                "--tube",
                "t",
                "--body",
                "b",
            ],
            Some(5),
            "no name of",
        ),
        (
            &[
                "set",
                "x",
                "--cron",
                "* * * * *",
                "--tube",
                "t",
                "--body",
                "@/nowhere",
            ],
            Some(2),
            "the body cannot be read from /nowhere",
        ),
    ] {
        let (found, said) = ctl(&site, words);
        assert_eq!(found, code, "{words:?}: {said}");
        assert!(said.contains(reason), "{words:?}: {said}");
    }
}

#[test]
fn the_console_sets_shows_pauses_resumes_runs_and_deletes_schedules() {
    let site = memory();
    let mut wire = site.server.connect();
    let empty = Page::shown(&site, "/schedules");
    assert!(empty.text.contains("No schedule is set."), "{}", empty.text);
    let form = "schedule=daily&cron=0+8+*+*+1-5&tz=Europe%2FBerlin&tube=mail&missed=once&key=&ttr=\
                &priority=7&body=%3Cscript%3Ealert(1)%3C%2Fscript%3E%0D%0Aend";
    let page = submit(&site, "/schedules", form);
    assert!(
        page.text.contains("Schedule daily is set."),
        "{}",
        page.text
    );
    assert_eq!((page.fact("State"), page.fact("Priority")), ("on", "7"));
    assert_eq!(page.fact("Tube"), "<a href=\"/tubes/mail\">mail</a>");
    assert!(!page.text.contains("<script>alert"), "{}", page.text);
    assert_eq!(
        page.text.matches("T08:00:00+0").count(),
        10,
        "five, each twice: {}",
        page.text
    );
    let whole = schedule(&site, "daily", 200);
    assert_eq!(whole["body"]["data"], "<script>alert(1)</script>\nend");
    let page = submit(&site, "/schedules/daily/run", "");
    assert!(
        page.text.contains("Job 1 was put by schedule daily."),
        "{}",
        page.text
    );
    assert_eq!(wire.stat("stats-job 1", "tube"), "\"mail\"");
    let tube = Page::shown(&site, "/tubes/mail");
    assert!(
        tube.text.contains("<a href=\"/schedules/daily\">daily</a>"),
        "{}",
        tube.text
    );
    assert!(
        !Page::shown(&site, "/tubes/default")
            .text
            .contains("/schedules/daily")
    );
    let page = submit(&site, "/schedules/daily/pause", "");
    assert!(
        page.text.contains("Schedule daily is paused."),
        "{}",
        page.text
    );
    assert!(
        Page::shown(&site, "/schedules")
            .text
            .contains(">paused</span>")
    );
    // A change by the form keeps what the page has shown.
    let again = "schedule=daily&cron=0+9+*+*+*&tz=UTC&tube=mail&missed=skip&body=x&paused=yes";
    submit(&site, "/schedules", again);
    let whole = schedule(&site, "daily", 200);
    assert_eq!(
        (&whole["cron"], &whole["paused"]),
        (&json!("0 9 * * *"), &json!(true))
    );
    let page = submit(&site, "/schedules/daily/resume", "");
    assert!(
        page.text.contains("Schedule daily puts again."),
        "{}",
        page.text
    );
    // What a browser would change stays.
    let bytes =
        json!({"cron": "0 1 * * *", "tube": "t", "body": {"encoding": "base64", "data": "/w=="}});
    set(&site, "bytes", &bytes);
    assert!(
        Page::shown(&site, "/schedules/bytes")
            .text
            .contains("name=\"keep\"")
    );
    submit(
        &site,
        "/schedules",
        "schedule=bytes&cron=0+2+*+*+*&tz=UTC&tube=t&missed=skip&keep=yes",
    );
    let kept = schedule(&site, "bytes", 200);
    assert_eq!(
        (&kept["cron"], &kept["body"]),
        (&json!("0 2 * * *"), &bytes["body"])
    );
    let word = word_of(&Page::shown(&site, "/schedules"));
    for (form, status, reason) in [
        ("schedule=x&cron=never&tz=UTC&tube=t&body=b", 400, "never"),
        (
            "schedule=x&cron=0+1+*+*+*&tz=Nowhere&tube=t&body=b",
            400,
            "Nowhere",
        ),
        ("schedule=&cron=0+1+*+*+*&tz=UTC&tube=t&body=b", 400, "name"),
        (
            "schedule=none&cron=0+1+*+*+*&tz=UTC&tube=t&keep=yes",
            404,
            "no schedule",
        ),
    ] {
        let refused = post(&site, "/schedules", &[], &format!("form={word}&{form}"));
        assert_eq!(refused.answer.status, status, "{form}: {}", refused.text);
        assert!(refused.text.contains(reason), "{form}: {}", refused.text);
    }
    let ask = Page::shown(&site, "/schedules/daily/delete");
    assert!(
        ask.text.contains("<h1>Delete schedule daily?</h1>"),
        "{}",
        ask.text
    );
    schedule(&site, "daily", 200);
    let page = submit(&site, "/schedules/daily/delete", "");
    assert!(
        page.text.contains("Schedule daily was deleted."),
        "{}",
        page.text
    );
    schedule(&site, "daily", 404);
    wait_until("the log says what was set", || {
        let said = site.server.stderr();
        said.contains("POST /schedules: 303: cron=0_8_*_*_1-5 tz=Europe/Berlin")
            && said.contains("POST /schedules/daily/delete: 303")
    });
}
