//! Changes that somebody has confirmed: what is changed is what was shown, and never more of it.

use serde_json::json;

use crate::console::Page;
use crate::console_forms::{post, submit, word_of};
use crate::harness::wait_until;
use crate::http::Site;
use crate::steering::{counts, fill, memory, task, tasks};

/// What a task ends with that would change more than it may.
const MORE: &str = "more jobs match than the 9 that `most` allows; nothing was changed: count them \
                    again, and look";

#[test]
fn a_task_that_would_change_more_than_was_shown_changes_nothing() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "t", 10);
    let before = counts(&site, "t");
    let filter = json!({"tube": "t"});
    let [clear, redrive] =
        ["clear", "redrive"].map(|word| (format!("/api/v1/tubes/{{tube}}/{word}"), word));
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
    for ((pattern, word), body) in [
        (&clear, json!({"states": ["ready"], "most": 9})),
        (&redrive, json!({"to": "u", "most": 9})),
        (&redrive, json!({"most": 9})),
    ] {
        let ended = task(&site, pattern, &format!("/api/v1/tubes/t/{word}"), body);
        assert_eq!(
            (&ended["state"], &ended["reason"]),
            (&json!("failed"), &json!(MORE))
        );
    }
    assert_eq!((counts(&site, "t"), counts(&site, "u")), (before, [0; 3]));
    // As many as were shown.
    let (pattern, word) = &redrive;
    let body = json!({"to": "u", "most": 10});
    let ended = task(&site, pattern, &format!("/api/v1/tubes/t/{word}"), body);
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
        (&json!("failed"), &json!(1))
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
fn jobs_that_come_while_somebody_confirms_are_not_changed_unseen() {
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
            .contains("<a href=\"/tubes/default\">Back to the tube</a>")
    );
    assert_eq!(counts(&site, "default"), [2, 0, 0]);
    submit(&site, "/tubes/default/count", "what=delete&state=ready");
    stage(&site, 3, "done");
    submit(&site, "/tasks/3/run", "most=2");
    stage(&site, 4, "done");
    assert_eq!(counts(&site, "default"), [0; 3]);
}
