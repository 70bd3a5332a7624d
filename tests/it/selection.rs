//! Changes that someone has confirmed: what is changed is what was shown, and never more of it.

use serde_json::{Value, json};

use crate::console::Page;
use crate::console_forms::{post, submit, word_of};
use crate::harness::{Launch, wait_until};
use crate::http::Site;
use crate::steering::{counts, fill, memory, task, tasks};

/// Reason of a task that would change more than it may.
const MORE: &str = "more jobs match than the 9 that `most` allows; nothing was changed: count them \
                    again, and look";

#[test]
fn a_task_that_would_change_more_than_was_shown_changes_nothing() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "t", 10);
    let before = counts(&site, "t");
    let filter = json!({"tube": "t"});
    let redrive = |body: Value| task(&site, "/api/v1/tubes/t/redrive", body);
    let actions = [
        json!({"action": "delete"}),
        json!({"action": "kick"}),
        json!({"action": "bury"}),
        json!({"action": "delay", "delay": 5}),
        json!({"action": "priority", "priority": 5}),
        json!({"action": "move", "to": "u", "kick": true}),
    ];
    for mut action in actions {
        (action["filter"], action["most"]) = (filter.clone(), json!(9));
        let ended = tasks(&site, action);
        assert_eq!(
            (&ended["state"], &ended["reason"], &ended["changed"]),
            (&json!("failed"), &json!(MORE), &json!(0)),
            "{ended}"
        );
        assert_eq!(ended["most"], 9);
    }
    for body in [json!({"to": "u", "most": 9}), json!({"most": 9})] {
        let ended = redrive(body);
        assert_eq!(
            (&ended["state"], &ended["reason"]),
            (&json!("failed"), &json!(MORE))
        );
    }
    assert_eq!((counts(&site, "t"), counts(&site, "u")), (before, [0; 3]));
    // As many as were shown.
    let ended = redrive(json!({"to": "u", "most": 10}));
    assert_eq!(
        (&ended["state"], &ended["changed"]),
        (&json!("done"), &json!(10))
    );
    assert_eq!(
        (counts(&site, "t"), counts(&site, "u")),
        ([10, 10, 0], [10, 0, 0])
    );
    let none = tasks(
        &site,
        json!({"action": "delete", "filter": filter, "most": 0}),
    );
    assert_eq!(
        (&none["state"], &none["matched"]),
        (&json!("failed"), &json!(20))
    );
    for most in [json!(-1), json!("9"), json!(1.5)] {
        let body = json!({"action": "delete", "filter": {"tube": "t"}, "most": most});
        assert_eq!(
            site.change("post", "/api/v1/tasks", &body).status,
            400,
            "{body}"
        );
    }
}

fn stage(site: &Site, id: u64, wanted: &str) -> Page {
    let path = format!("/tasks/{id}");
    wait_until(wanted, || Page::shown(site, &path).part("stage") == wanted);
    Page::shown(site, &path)
}

#[test]
fn jobs_that_come_while_someone_confirms_are_not_changed_unseen() {
    let site = memory();
    let mut wire = site.server.connect();
    wire.put(b"one");
    submit(&site, "/tubes/default/count", "what=delete&state=ready");
    let counted = stage(&site, 1, "done");
    assert!(
        counted.text.contains("name=\"most\" value=\"1\""),
        "{}",
        counted.text
    );
    wire.put(b"two");
    let word = word_of(&counted);
    let unsaid = post(&site, "/tasks/1/run", &[], &format!("form={word}"));
    assert_eq!(unsaid.answer.status, 400, "it must say how many were shown");
    submit(&site, "/tasks/1/run", "most=1");
    let refused = stage(&site, 2, "failed");
    assert!(
        refused.text.contains("nothing was changed"),
        "{}",
        refused.text
    );
    assert!(
        refused
            .text
            .contains("<a href=\"/tubes/default?state=ready#jobs\">Back to the tube</a>")
    );
    assert_eq!(counts(&site, "default"), [2, 0, 0]);
    submit(&site, "/tubes/default/count", "what=delete&state=ready");
    stage(&site, 3, "done");
    submit(&site, "/tasks/3/run", "most=2");
    stage(&site, 4, "done");
    assert_eq!(counts(&site, "default"), [0; 3]);
}

/// The ids of the jobs of a tube that are in a state, in the order of their turn.
fn ids(site: &Site, tube: &str, state: &str) -> Vec<u64> {
    let path = format!("/api/v1/tubes/{tube}/jobs?limit=250&state={state}");
    let listed = site.get(&path).json();
    let jobs = listed["jobs"].as_array().unwrap();
    jobs.iter().map(|job| job["id"].as_u64().unwrap()).collect()
}

#[test]
fn jobs_are_meant_one_by_one_where_they_are_in_the_tube_and_state() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "t", 10);
    fill(&mut wire, "u", 1);
    let (ready, buried) = (ids(&site, "t", "ready"), ids(&site, "t", "buried"));
    let elsewhere = ids(&site, "u", "ready")[0];
    wire.ask("watch t");
    let reserved = wire.reserve();
    assert_eq!(reserved, ready[0]);
    // Twice the same, one that is reserved, one of another tube, and one that there is not.
    let meant = [buried[3], ready[4], buried[3], reserved, elsewhere, 99_999];
    let body = json!({"action": "delete", "filter": {"tube": "t", "ids": meant}, "most": 2});
    let done = tasks(&site, body);
    assert_eq!(
        (&done["state"], &done["changed"]),
        (&json!("done"), &json!(2)),
        "{done}"
    );
    assert_eq!(counts(&site, "t"), [8, 10, 9]);
    assert!(!ids(&site, "t", "buried").contains(&buried[3]));
    assert!(!ids(&site, "t", "ready").contains(&ready[4]));
    assert_eq!(ids(&site, "u", "ready"), [elsewhere]);
    let body = json!({"action": "move", "to": "u", "filter": {"tube": "*", "states": ["ready"],
        "ids": [ready[5], elsewhere, buried[0]]}});
    let done = tasks(&site, body);
    assert_eq!(
        (&done["matched"], &done["changed"]),
        (&json!(1), &json!(1)),
        "{done}"
    );
    assert_eq!(ids(&site, "u", "ready").len(), 2);
    // A search has them in the order of their ids, a page at a time.
    let mut sorted = ids(&site, "t", "ready");
    let mut after = json!(null);
    sorted.sort_unstable();
    let mut found = Vec::new();
    for nth in 1.. {
        let filter = json!({"tube": "t", "ids": sorted, "contains": {"data": "ready"}});
        let body = json!({"filter": filter, "limit": 3, "after": after});
        assert_eq!(site.change("post", "/api/v1/search", &body).status, 202);
        let path = format!("/api/v1/search/{nth}");
        wait_until("it is over", || site.get(&path).json()["jobs"].is_array());
        let page = site.get(&path).json();
        let jobs = page["jobs"].as_array().unwrap();
        found.extend(jobs.iter().map(|job| job["id"].as_u64().unwrap()));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(found, sorted);
}

#[test]
fn no_more_than_a_thousand_jobs_are_named_one_by_one() {
    let site = memory();
    for (count, status) in [(0_u64, 400), (1000, 202), (1001, 400)] {
        let ids: Vec<u64> = (1..=count).collect();
        let body = json!({"action": "delete", "filter": {"tube": "*", "ids": ids}});
        assert_eq!(
            site.change("post", "/api/v1/tasks", &body).status,
            status,
            "{count}"
        );
    }
}

#[test]
fn jobs_are_ticked_on_the_page_of_their_tube() {
    let site = memory();
    let mut wire = site.server.connect();
    for body in ["one", "two", "three"] {
        wire.put(body.as_bytes());
    }
    let page = Page::shown(&site, "/tubes/default");
    let boxes = "type=\"checkbox\" name=\"id\"";
    assert_eq!(page.text.matches(boxes).count(), 3);
    let ticked = |page: &Page, id: u64| page.text.contains(&format!("value=\"{id}\" checked"));
    assert!(!ticked(&page, 1));
    assert!(
        page.text
            .contains("href=\"/tubes/default?state=ready&amp;select=all#jobs\"")
    );
    let all = Page::shown(&site, "/tubes/default?state=ready&select=all");
    assert!((1..=3).all(|id| ticked(&all, id)), "{}", all.text);
    // Nothing ticked is nothing meant, and not all.
    let word = word_of(&page);
    let none = format!("form={word}&selection=yes&state=ready&what=delete");
    let none = post(&site, "/tubes/default/count", &[], &none);
    assert_eq!(none.answer.status, 400);
    assert!(none.text.contains("no job is selected"), "{}", none.text);
    let two = "selection=yes&state=ready&what=bury&to=&id=1&id=3";
    submit(&site, "/tubes/default/count", two);
    let counted = stage(&site, 1, "done");
    let question = "Bury 2 jobs of default that are ready, of the 2 selected?";
    assert!(counted.text.contains(question), "{}", counted.text);
    submit(&site, "/tasks/1/run", "most=2");
    stage(&site, 2, "done");
    assert_eq!(ids(&site, "default", "buried"), [1, 3]);
    assert_eq!(ids(&site, "default", "ready"), [2]);
    let buried = Page::shown(&site, "/tubes/default?state=buried");
    assert!(
        !buried
            .text
            .contains("<option value=\"bury\">Bury</option><option value=\"move\">")
    );
}

#[test]
fn a_body_past_a_mebibyte_is_not_looked_into_and_no_more_than_a_kibibyte_looked_for() {
    let site = Site::start(Launch::bsd().memory().arg("-z").arg("2000000"));
    let mut wire = site.server.connect();
    wire.put(&vec![b'x'; 1 << 20]);
    wire.put(&vec![b'x'; (1 << 20) + 1]);
    for (size, status) in [(1024, 202), (1025, 400)] {
        let filter = json!({"tube": "*", "contains": {"data": "x".repeat(size)}});
        let body = json!({"filter": filter});
        let answer = site.change("post", "/api/v1/search", &body);
        assert_eq!(answer.status, status, "{size}");
    }
    let path = "/api/v1/search/1";
    wait_until("it is over", || site.get(path).json()["jobs"].is_array());
    let found = site.get(path).json();
    assert_eq!(
        (&found["matched"], &found["unread"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(found["jobs"][0]["id"], 1);
}
