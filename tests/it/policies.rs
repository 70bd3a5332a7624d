//! Policies of tubes for people: over the API, in the console and with `bsd-ctl`. What is set is what
//! the protocol shows, dead letters say why they are ones, and go back where they came from.

use serde_json::{Value, json};

use crate::ROOT;
use crate::api::Description;
use crate::console::Page;
use crate::console_forms::{post, submit, word_of};
use crate::ctl::{NOT_DONE, OK, command, said};
use crate::harness::{Launch, wait_until};
use crate::http::{Site, tokens};
use crate::steering::{memory, over, task};
use crate::wire::Wire;

/// What a worker says of a failure: a page must show it as text.
const HOSTILE: &str = "<script>alert(1)</script>\u{1b}[2J";

/// Run `bsd-ctl` with these words: its exit code, and all that it wrote.
fn ctl(site: &Site, words: &[&str]) -> (Option<i32>, String) {
    let mut command = command(&site.server.address().to_string());
    command.env("BSD_CTL_HTTP", site.address.to_string());
    said(&command.args(words).output().unwrap())
}

fn done(site: &Site, words: &[&str]) -> String {
    let (code, said) = ctl(site, words);
    assert_eq!(code, OK, "{words:?}: {said}");
    said
}

/// Ask for the policy of a tube, held to the description.
fn policy_of(site: &Site, tube: &str, status: u16) -> Value {
    let path = format!("/api/v1/tubes/{tube}/policy");
    Description::of(site).check(&site.get(&path), "get", &path, status)
}

fn change(site: &Site, method: &str, tube: &str, body: &Value, status: u16) -> Value {
    let path = format!("/api/v1/tubes/{tube}/policy");
    Description::of(site).send(site, method, &path, body, status)
}

fn job(site: &Site, id: u64) -> Value {
    let path = format!("/api/v1/jobs/{id}");
    Description::of(site).check(&site.get(&path), "get", &path, 200)
}

/// Put a job into the tube `mail`, whose limit is two, and let both deliveries fail.
fn dead_letter(wire: &mut Wire) -> u64 {
    wire.ask("use mail");
    wire.ask("watch mail");
    let id = wire.put(b"body");
    assert_eq!(wire.reserve(), id);
    assert_eq!(wire.ask(&format!("release {id} 7 0")), "RELEASED");
    assert_eq!(wire.reserve(), id);
    let fail = format!("fail {id} {}\r\n{HOSTILE}", HOSTILE.len());
    assert_eq!(wire.ask(&fail), "DEAD_LETTERED mail-dead");
    id
}

/// A server whose tube `mail` sends dead letters to `mail-dead`.
fn with_dead_letters() -> Site {
    let site = memory();
    let policy = json!({"delivery-limit": 2, "dead-letter": "mail-dead"});
    change(&site, "put", "mail", &policy, 200);
    site
}

#[test]
fn a_policy_is_set_as_a_whole_shown_and_removed_and_outlives_a_restart() {
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(dir.path());
    let mut site = Site::start(launch.clone());
    policy_of(&site, "mail", 404);
    assert_eq!(policy_of(&site, "default", 200)["policy"], Value::Null);
    let first = json!({"delivery-limit": "8", "rate": "10/m"});
    change(&site, "put", "mail", &first, 200);
    let second = json!({"retry-min": 5, "retry-multiplier": 1.5, "dead-letter": "7"});
    let set = change(&site, "put", "mail", &second, 200);
    let whole = json!({"retry-min": 5, "retry-multiplier": 1.5, "retry-max": 86400,
        "retry-jitter": 0, "dead-letter": "7"});
    assert_eq!(set, json!({"tubes": "mail", "policy": whole}));
    change(&site, "put", "mail-*", &json!({"max-jobs": 0}), 200);
    for (tube, wrong, status) in [
        ("mail", json!({}), 400),
        ("mail", json!({"dead-letter": "bury"}), 400),
        ("mail", json!({"limit": 8}), 400),
        ("mail", json!({"delivery-limit": 0}), 400),
        ("mail", json!({"delivery-limit": [8]}), 400),
        ("mail", json!({"delivery-limit": "1 rate=1/s"}), 400),
        ("-mail", json!({"delivery-limit": 8}), 400),
        ("a%20b", json!({"delivery-limit": 8}), 400),
    ] {
        let problem = change(&site, "put", tube, &wrong, status);
        assert!(problem["detail"].as_str().unwrap().len() > 10, "{problem}");
    }
    for round in 0..2 {
        let found = policy_of(&site, "mail", 200);
        assert_eq!(
            (&found["set_for"], &found["policy"]),
            (&json!("mail"), &whole)
        );
        let found = policy_of(&site, "mail-1", 200);
        assert_eq!(found["set_for"], "mail-*", "{found}");
        let found = policy_of(&site, "mail-*", 200);
        assert_eq!(
            (&found["tube"], &found["set_for"]),
            (&Value::Null, &json!("mail-*"))
        );
        policy_of(&site, "mail*", 404);
        let mut wire = site.server.connect();
        assert_eq!(wire.stat("stats-policy mail", "retry-min"), "5");
        wire.ask("use mail-1");
        assert_eq!(wire.try_put(b"x"), "OUT_OF_MEMORY");
        wire.ask("use default");
        if round == 0 {
            drop(wire);
            drop(site);
            site = Site::start(launch.clone());
        }
    }
    let mut listed = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/api/v1/policies?limit=1{after}");
        let described = Description::of(&site);
        let page = described.check(&site.get(&path), "get", &path, 200);
        let policies = page["policies"].as_array().unwrap().iter();
        listed.extend(policies.map(|it| it["tubes"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(listed, ["mail", "mail-*"]);
    let removed = change(&site, "delete", "mail-*", &Value::Null, 200);
    assert_eq!(removed, json!({"tubes": "mail-*", "policy": null}));
    change(&site, "delete", "mail-*", &Value::Null, 404);
    change(&site, "delete", "mail-1", &Value::Null, 404);
    policy_of(&site, "mail-1", 404);
    wait_until("the log says who has set what", || {
        let said = site.server.stderr();
        said.contains("DELETE /api/v1/tubes/mail-*/policy: 200")
    });
}

#[test]
fn a_dead_letter_says_why_it_is_one_and_goes_back() {
    let site = with_dead_letters();
    let mut wire = site.server.connect();
    let id = dead_letter(&mut wire);
    let shown = job(&site, id);
    for (name, value) in [
        ("tube", json!("mail-dead")),
        ("state", json!("ready")),
        ("deliveries", json!(0)),
        ("failures", json!(2)),
        ("reason", json!("failed")),
        ("text", json!({"encoding": "text", "data": HOSTILE})),
        ("dead_lettered_from", json!("mail")),
    ] {
        assert_eq!(shown[name], value, "{name}: {shown}");
    }
    assert!(shown["dead_lettered_at"].as_str().unwrap().ends_with('Z'));
    let found = policy_of(&site, "mail", 200);
    assert_eq!(found["failures"]["released"], 1, "{found}");
    assert_eq!(
        (&found["failures"]["failed"], &found["set_aside"]),
        (&json!(1), &json!(1))
    );
    let dead = policy_of(&site, "mail-dead", 200);
    assert_eq!(dead["dead_letters_of"], json!(["mail"]));
    assert_eq!(dead["policy"], Value::Null);
    // A list has no texts of workers.
    let listed = site.get("/api/v1/tubes/mail-dead/jobs").json();
    assert_eq!(listed["jobs"][0]["reason"], "failed");
    assert_eq!(listed["jobs"][0]["text"], Value::Null);

    let said = done(&site, &["job", &id.to_string()]);
    for part in [
        "reason: failed\n",
        "dead letter of: mail\n",
        "a worker said: <script>alert(1)</script>\\u{1b}[2J\n",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let metrics = || String::from_utf8(site.get("/metrics").body).unwrap();
    wait_until("the metrics tell of it", || {
        let page = metrics();
        page.contains("bsd_tube_failures_total{tube=\"mail\",reason=\"failed\"} 1\n")
            && page.contains("bsd_tube_set_aside_total{tube=\"mail\"} 1\n")
            && page.contains("bsd_tube_puts_refused_total{tube=\"mail\"} 0\n")
    });
    assert!(!metrics().contains("bsd_tube_set_aside_total{tube=\"default\"}"));

    let path = format!("/api/v1/jobs/{id}/redrive");
    let described = Description::of(&site);
    let sent = described.send(&site, "post", &path, &json!({}), 200);
    assert_eq!(sent, json!({"id": id}));
    let shown = job(&site, id);
    assert_eq!(
        (&shown["tube"], &shown["state"]),
        (&json!("mail"), &json!("ready"))
    );
    assert_eq!(shown["dead_lettered_from"], Value::Null);
    assert_eq!(wire.reserve(), id);
    described.send(&site, "post", &path, &json!({}), 409);
    described.send(&site, "post", "/api/v1/jobs/999/redrive", &json!({}), 404);
}

#[test]
fn all_dead_letters_of_a_tube_go_back_at_a_rate_and_other_jobs_stay() {
    let site = with_dead_letters();
    let mut wire = site.server.connect();
    let dead: Vec<u64> = (0..5).map(|_| dead_letter(&mut wire)).collect();
    wire.ask("use mail-dead");
    let plain = wire.put(b"plain");
    let buried = wire.put(b"buried");
    done(&site, &["bury", &buried.to_string()]);
    let reason = |word: &str| {
        let filter = json!({"tube": "*", "reason": word, "dead_lettered_from": "ma?l"});
        let body = json!({"action": "redrive", "filter": filter, "dry_run": true});
        task(&site, "/api/v1/tasks", body)["matched"].clone()
    };
    assert_eq!((reason("failed"), reason("ttr")), (json!(5), json!(0)));
    let path = "/api/v1/tubes/mail-dead/redrive";
    let counted = task(&site, path, json!({"dry_run": true}));
    assert_eq!(
        (&counted["matched"], &counted["changed"]),
        (&json!(6), &json!(0))
    );
    let said = done(&site, &["redrive", "mail-dead", "--rate", "1000", "--yes"]);
    assert_eq!(said, "6 jobs of mail-dead ready again\n");
    for id in dead {
        assert_eq!(job(&site, id)["tube"], "mail");
    }
    for id in [plain, buried] {
        let shown = job(&site, id);
        assert_eq!(
            (&shown["tube"], &shown["state"]),
            (&json!("mail-dead"), &json!("ready"))
        );
    }
}

#[test]
fn bsd_ctl_sets_shows_and_removes_policies() {
    let site = memory();
    let set = [
        "policy",
        "set",
        "mail-*",
        "delivery-limit=1",
        "dead-letter=delete",
    ];
    assert_eq!(
        done(&site, &set),
        "mail-* has the policy dead-letter=delete delivery-limit=1\n"
    );
    let mut wire = site.server.connect();
    for line in ["use mail-1", "watch mail-1"] {
        wire.ask(line);
    }
    let (id, _) = (wire.put(b"x"), wire.put(b"y"));
    assert_eq!(wire.reserve(), id);
    assert_eq!(wire.ask(&format!("release {id} 0 0")), "RELEASED");
    assert_eq!(wire.ask(&format!("peek {id}")), "NOT_FOUND");
    let said = done(&site, &["policy", "show", "mail-1"]);
    assert!(
        said.starts_with("policy of mail-1, set for mail-*\n"),
        "{said}"
    );
    for line in [
        "delivery-limit         1",
        "released               1",
        "set aside              1",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let listed: Value = serde_json::from_str(&done(&site, &["policy", "show", "--json"])).unwrap();
    let policy = json!({"delivery-limit": 1, "dead-letter": "delete"});
    assert_eq!(listed, json!([{"tubes": "mail-*", "policy": policy}]));
    assert!(done(&site, &["policy", "show"]).contains("mail-*"));
    let removed = done(&site, &["policy", "remove", "mail-*"]);
    assert_eq!(removed, "the policy of mail-* is removed\n");
    for (words, code, reason) in [
        (
            &["policy", "remove", "mail-*"][..],
            NOT_DONE,
            "no policy is set for exactly this",
        ),
        (&["policy", "show", "mail-1"], NOT_DONE, "has no policy"),
        (
            &["policy", "show", "nowhere"],
            NOT_DONE,
            "there is no such tube",
        ),
        (
            &["policy", "set", "mail", "limit=1"],
            Some(5),
            "a policy has no 'limit'",
        ),
        (
            &["policy", "set", "mail", "dead-letter=bury"],
            Some(5),
            "says nothing",
        ),
    ] {
        let (found, said) = ctl(&site, words);
        assert_eq!(found, code, "{words:?}: {said}");
        assert!(said.contains(reason), "{words:?}: {said}");
    }
}

#[test]
fn the_console_sets_a_policy_shows_why_jobs_failed_and_sends_them_back() {
    let site = memory();
    let mut wire = site.server.connect();
    wire.ask("use mail");
    let form = "delivery-limit=2&dead-letter=mail-dead&rate=&retry-min=";
    let page = submit(&site, "/tubes/mail/policy", form);
    assert!(
        page.text.contains("mail has this policy now."),
        "{}",
        page.text
    );
    assert!(page.text.contains("It is the tube's own."), "{}", page.text);
    assert!(
        page.text
            .contains("<a href=\"/tubes/mail-dead\">mail-dead</a>")
    );
    let id = dead_letter(&mut wire);
    let tube = Page::shown(&site, "/tubes/mail");
    assert_eq!(tube.fact("Set aside"), "1");
    let failed = "<th scope=\"row\">Failed</th><td class=\"number\">1</td>";
    assert!(tube.text.contains(failed), "{}", tube.text);
    let dead = Page::shown(&site, "/tubes/mail-dead");
    for part in [
        // An escape character is no text.
        "failed: <q>&lt;script&gt;alert(1)&lt;/script&gt;\u{fffd}[2J</q>".to_owned(),
        "dead letter of <a href=\"/tubes/mail\">mail</a>".to_owned(),
        format!("formaction=\"/jobs/{id}/redrive\""),
    ] {
        assert!(dead.text.contains(&part), "{part}: {}", dead.text);
    }
    assert!(dead.text.contains("Send back all"), "{}", dead.text);
    assert!(
        dead.text
            .contains("Dead letters come here from <a href=\"/tubes/mail\">mail</a>")
    );
    let page = Page::shown(&site, &format!("/jobs/{id}"));
    assert_eq!(
        (page.fact("Reason"), page.fact("Deliveries that failed")),
        ("failed", "2")
    );
    assert_eq!(
        page.fact("Dead letter of"),
        "<a href=\"/tubes/mail\">mail</a>"
    );
    assert!(!page.text.contains("<script>alert"), "{}", page.text);
    // An escape character is no text: it is shown byte by byte.
    assert!(
        page.text.contains("3c 73 63 72 69 70 74 3e"),
        "{}",
        page.text
    );
    assert!(page.text.contains(">Send back<"), "{}", page.text);
    let page = submit(&site, &format!("/jobs/{id}/redrive"), "");
    assert!(
        page.text.contains(&format!("Job {id} was sent back.")),
        "{}",
        page.text
    );
    assert_eq!(wire.stat(&format!("stats-job {id}"), "tube"), "\"mail\"");
    assert!(!page.text.contains(">Send back<"), "{}", page.text);

    assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    let again = dead_letter(&mut wire);
    let all = "what=redrive&state=ready&state=delayed&state=buried";
    submit(&site, "/tubes/mail-dead/count", all);
    over(&site, 1);
    let counted = Page::shown(&site, "/tasks/1");
    assert!(counted.text.contains("Send back 1 job"), "{}", counted.text);
    submit(&site, "/tasks/1/run", "most=1");
    over(&site, 2);
    assert_eq!(wire.stat(&format!("stats-job {again}"), "tube"), "\"mail\"");
    send_back_some(&site, &mut wire, again);

    let word = word_of(&Page::shown(&site, "/tubes/mail"));
    for (form, status) in [("delivery-limit=none", 400), ("rate=", 400)] {
        let form = format!("form={word}&{form}");
        let refused = post(&site, "/tubes/mail/policy", &[], &form);
        assert_eq!(refused.answer.status, status, "{form}");
    }
    let page = submit(&site, "/tubes/mail/policy/remove", "");
    assert!(
        page.text
            .contains("mail has no policy of its own any more."),
        "{}",
        page.text
    );
    assert!(page.text.contains("It has none"), "{}", page.text);
    wait_until("the log says what was set", || {
        let line = "POST /tubes/mail/policy: 303: delivery-limit=2 dead-letter=mail-dead";
        site.server.stderr().contains(line)
    });
}

/// The page of a tube offers to send back those that failed for a reason, wherever they are.
fn send_back_some(site: &Site, wire: &mut Wire, id: u64) {
    assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    let dead = [dead_letter(wire), dead_letter(wire)];
    let page = Page::shown(site, "/tubes/mail");
    for part in [
        "action=\"/tubes/mail-dead/count\"",
        "name=\"reason\" value=\"failed\"",
        "name=\"from\" value=\"mail\"",
    ] {
        assert!(page.text.contains(part), "{part}: {}", page.text);
    }
    let those = "what=redrive&state=ready&state=delayed&state=buried";
    for (more, nth, count) in [
        ("reason=ttr&from=mail", 3, 0),
        ("reason=failed&from=post", 4, 0),
        ("reason=failed&said=nothing", 5, 0),
        ("reason=failed&from=mail&said=alert%281%29", 6, 2),
    ] {
        submit(site, "/tubes/mail-dead/count", &format!("{those}&{more}"));
        assert_eq!(over(site, nth)["matched"], count, "{more}");
    }
    let counted = Page::shown(site, "/tasks/6");
    let question = "Send back 2 jobs of mail-dead that are ready or delayed or buried, with the \
                    reason failed, dead letters of mail, of which a worker said “alert(1)”?";
    assert!(counted.text.contains(question), "{}", counted.text);
    submit(site, "/tasks/6/run", "most=2");
    over(site, 7);
    for id in dead {
        assert_eq!(wire.stat(&format!("stats-job {id}"), "tube"), "\"mail\"");
    }
}

#[test]
fn a_policy_is_read_with_the_role_read_and_changed_with_the_role_admin() {
    let file = tokens();
    let launch = Launch::bsd().memory();
    let site = Site::start(launch.arg("--http-tokens").arg(file.path()));
    let path = "/api/v1/tubes/mail/policy";
    let send = |method: &str, token: &str| {
        let token = format!("Authorization: Bearer {token}");
        let fields = [&*token, "Content-Type: application/json"];
        let body: &[u8] = if method == "PUT" {
            b"{\"rate\":\"1/s\"}"
        } else {
            b""
        };
        site.send(&format!("{method} {path}"), &fields, body).status
    };
    assert_eq!(
        (send("PUT", "reader"), send("DELETE", "reader")),
        (403, 403)
    );
    assert_eq!(send("GET", "reader"), 404);
    assert_eq!((send("PUT", "master"), send("GET", "reader")), (200, 200));
    let other = [
        "Authorization: Bearer master",
        "Content-Type: application/json",
    ];
    let from_elsewhere = [&other[..], &["Origin: http://evil.example"]].concat();
    let body = b"{\"rate\":\"2/s\"}";
    assert_eq!(
        site.send(&format!("PUT {path}"), &from_elsewhere, body)
            .status,
        403
    );
    assert_eq!(send("DELETE", "master"), 200);
    wait_until("the log says what was set", || {
        let said = site.server.stderr();
        said.contains("PUT /api/v1/tubes/mail/policy: 200: rate=1/s")
    });
}

#[test]
fn the_page_of_the_api_has_each_value_of_a_policy() {
    let page = std::fs::read_to_string(std::path::Path::new(ROOT).join("docs/api.md")).unwrap();
    for (name, ..) in bsd::policy::NAMES {
        let row = format!("`{name}`");
        let mut rows = page.lines().filter(|line| line.starts_with("| `"));
        let is_there = rows.any(|line| line.split(" | ").next().unwrap().contains(&row));
        assert!(is_there, "{name} is not in docs/api.md");
    }
}
