//! Deletes that can be undone, over the API, in the console and with bsd-ctl; and what an end of the
//! server in between leaves.

use serde_json::{Value, json};

use crate::api::Description;
use crate::console::Page;
use crate::console_forms::{post, submit, word_of};
use crate::ctl::{NOT_DONE, OK, USAGE, command, said};
use crate::harness::{Launch, wait_until};
use crate::http::Site;
use crate::steering::memory;
use crate::wire::Wire;

const TASKS: &str = "/api/v1/tasks";

fn fill(wire: &mut Wire, tube: &str) {
    wire.ask(&format!("use {tube}"));
    for (nth, delay) in [(1, 0), (2, 0), (3, 1000)] {
        wire.send(format!("put {nth} {delay} 60 1\r\nx\r\n"));
        assert!(wire.text().starts_with("INSERTED"));
    }
}

/// The states and priorities of the first three jobs.
fn states(wire: &mut Wire) -> Vec<(String, String)> {
    let ids = 1..=3;
    ids.map(|id| {
        let job = format!("stats-job {id}");
        (wire.stat(&job, "state"), wire.stat(&job, "pri"))
    })
    .collect()
}

fn undoable(tube: &str, seconds: u64) -> Value {
    json!({"action": "delete", "filter": {"tube": tube}, "undo": seconds})
}

fn task(site: &Site, id: u64) -> Value {
    site.get(&format!("{TASKS}/{id}")).json()
}

fn wait_for(site: &Site, id: u64, state: &str) -> Value {
    wait_until(state, || task(site, id)["state"] == state);
    task(site, id)
}

/// Each answer is as the description has it.
#[test]
fn jobs_that_a_task_holds_back_are_brought_back_or_deleted_when_the_time_is_over() {
    let site = memory();
    let described = Description::of(&site);
    let mut wire = site.server.connect();
    fill(&mut wire, "mail");
    let before = states(&mut wire);
    described.send(&site, "post", TASKS, &undoable("mail", 600), 202);
    let held = wait_for(&site, 1, "held");
    assert_eq!((&held["held"], &held["changed"]), (&json!(3), &json!(0)));
    let left = held["undo_left_seconds"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 600.0, "{left}");
    assert!(states(&mut wire).iter().all(|job| job.0 == "buried"));
    let job = site.get("/api/v1/jobs/1").json();
    let text = job["text"]["data"].as_str().unwrap();
    assert!(text.starts_with("held back by task 1 since "), "{text}");
    described.send(&site, "post", "/api/v1/tasks/1/undo", &json!({}), 202);
    let undone = wait_for(&site, 1, "undone");
    assert_eq!(undone["returned"], 3);
    assert_eq!(states(&mut wire), before);
    assert!(site.get("/api/v1/jobs/1").json()["text"].is_null());
    described.send(&site, "post", "/api/v1/tasks/1/undo", &json!({}), 409);
    described.send(&site, "post", "/api/v1/tasks/9/undo", &json!({}), 404);
    described.send(&site, "post", TASKS, &undoable("mail", 601), 400);

    described.send(&site, "post", TASKS, &undoable("mail", 1), 202);
    let done = wait_for(&site, 2, "done");
    assert_eq!((&done["held"], &done["changed"]), (&json!(0), &json!(3)));
    assert_eq!(wire.ask("peek 1"), "NOT_FOUND");
    described.send(&site, "post", "/api/v1/tasks/2/undo", &json!({}), 409);
    let listed = described.send(&site, "get", TASKS, &Value::Null, 200);
    assert_eq!(listed["tasks"][1]["state"], "undone");
}

#[test]
fn a_kill_in_the_minute_leaves_all_jobs_buried_and_they_can_be_kicked() {
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(dir.path());
    let site = Site::start(launch.clone());
    fill(&mut site.server.connect(), "mail");
    site.change("post", TASKS, &undoable("mail", 1));
    wait_for(&site, 1, "held");
    site.server.kill();
    let site = Site::start(launch);
    let mut wire = site.server.connect();
    // More than the time that was asked for is over when this task is.
    site.change("post", TASKS, &undoable("other", 1));
    wait_for(&site, 1, "done");
    assert!(states(&mut wire).iter().all(|job| job.0 == "buried"));
    let kick = [
        "kick",
        "mail",
        "--all",
        "--text",
        "held back by task",
        "--yes",
    ];
    let (code, text) = ctl(&site, &kick);
    assert_eq!(code, OK, "{text}");
    assert!(states(&mut wire).iter().all(|job| job.0 == "ready"));
}

fn ctl(site: &Site, words: &[&str]) -> (Option<i32>, String) {
    let mut command = command(&site.server.address().to_string());
    command.env("BSD_CTL_HTTP", site.address.to_string());
    said(&command.args(words).output().unwrap())
}

#[test]
fn bsd_ctl_deletes_and_clears_with_an_undo() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "mail");
    let before = states(&mut wire);
    let ways: [&[&str]; 3] = [
        &["delete", "--tube", "mail", "--undo", "60", "--yes"],
        &["delete", "1", "2", "3", "--undo", "1m", "--yes"],
        &[
            "clear", "mail", "--state", "ready", "--state", "delayed", "--undo", "60", "--yes",
        ],
    ];
    for words in ways {
        let (code, text) = ctl(&site, words);
        assert_eq!(code, OK, "{words:?}: {text}");
        let (_, rest) = text.split_once("`bsd-ctl undo ").unwrap();
        let id = rest.split('`').next().unwrap();
        assert!(text.starts_with("3 jobs "), "{text}");
        assert!(states(&mut wire).iter().all(|job| job.0 == "buried"));
        let undone = ctl(&site, &["undo", id]);
        assert_eq!(undone, (OK, "3 jobs brought back\n".to_owned()));
        assert_eq!(states(&mut wire), before, "{words:?}");
    }
    let (code, text) = ctl(&site, ways[0]);
    assert_eq!(code, OK, "{text}");
    wire.ask("kick-job 2");
    let (_, rest) = text.split_once("`bsd-ctl undo ").unwrap();
    let (code, text) = ctl(&site, &["undo", rest.split('`').next().unwrap()]);
    assert_eq!(code, NOT_DONE, "{text}");
    assert!(
        text.contains("1 job: kicked, reserved, moved or changed"),
        "{text}"
    );
    assert_eq!(ctl(&site, &["undo", "1"]).0, NOT_DONE);
    let (code, _) = ctl(&site, &["delete", "1", "--undo", "11m"]);
    assert_eq!(code, USAGE);
}

#[test]
fn the_console_shows_which_jobs_before_and_has_a_button_that_brings_them_back() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "mail");
    let before = states(&mut wire);
    submit(
        &site,
        "/tubes/mail/count",
        "what=delete&state=ready&state=delayed",
    );
    wait_for(&site, 1, "done");
    let asked = Page::shown(&site, "/tasks/1").text;
    for part in [
        ">Delete 3 jobs<",
        "name=\"undo\" value=\"yes\" checked",
        "The first of them",
        "href=\"/jobs/3\"",
    ] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    submit(&site, "/tasks/1/run", "most=3&undo=yes");
    let id = 2 + u64::from(task(&site, 2)["dry_run"] == true);
    wait_for(&site, id, "held");
    let page = Page::shown(&site, &format!("/tasks/{id}"));
    assert_eq!(page.part("held"), "3");
    assert!(page.part("left").contains(" s"), "{}", page.text);
    assert!(page.text.contains(">Undo<"), "{}", page.text);
    let undone = submit(&site, &format!("/tasks/{id}/undo"), "");
    assert!(
        undone.text.contains("Its jobs are brought back."),
        "{}",
        undone.text
    );
    wait_for(&site, id, "undone");
    assert_eq!(states(&mut wire), before);
    let page = Page::shown(&site, &format!("/tasks/{id}")).text;
    assert!(
        page.contains("3 jobs") && page.contains(" brought back."),
        "{page}"
    );

    // One job.
    let ask = Page::shown(&site, "/jobs/1/delete").text;
    assert!(ask.contains("name=\"undo\" value=\"yes\" checked"), "{ask}");
    submit(&site, "/jobs/1/delete", "undo=yes&tube=mail");
    wait_for(&site, id + 1, "held");
    submit(&site, &format!("/tasks/{}/undo", id + 1), "");
    wait_for(&site, id + 1, "undone");
    assert_eq!(states(&mut wire), before);
    let word = word_of(&Page::shown(&site, "/tubes/default"));
    wire.ask("watch mail");
    wire.ask("reserve");
    for (job, status) in [(1, 409), (99, 404)] {
        let path = format!("/jobs/{job}/delete");
        let done = post(&site, &path, &[], &format!("form={word}&undo=yes"));
        assert_eq!(done.answer.status, status, "{}", done.text);
    }
}
