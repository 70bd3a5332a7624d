//! `/api/v1`, the part that changes: what it has done is what the protocol shows, before and after a
//! restart; what it must not do it does not; and what a crash leaves is as documented.

use serde_json::{Value, json};

use crate::api::Description;
use crate::harness::{Launch, wait_until};
use crate::http::Site;
use crate::wire::{Wire, inserted, put_command};

pub(crate) fn memory() -> Site {
    Site::start(Launch::bsd().memory())
}

/// A change of one job, held to the description.
fn change(site: &Site, id: u64, word: &str, body: Value, status: u16) -> Value {
    let described = Description::of(site);
    let path = format!("/api/v1/jobs/{id}/{word}");
    described.send(site, "post", &path, &body, status)
}

fn job(site: &Site, id: u64) -> Value {
    site.get(&format!("/api/v1/jobs/{id}")).json()
}

/// Begin a task, and wait until it is over.
pub(crate) fn task(site: &Site, path: &str, body: Value) -> Value {
    let described = Description::of(site);
    let begun = described.send(site, "post", path, &body, 202);
    over(site, begun["id"].as_u64().unwrap())
}

pub(crate) fn over(site: &Site, id: u64) -> Value {
    let path = format!("/api/v1/tasks/{id}");
    let is_over =
        || !["counting", "running"].contains(&site.get(&path).json()["state"].as_str().unwrap());
    wait_until("the task is over", is_over);
    site.get(&path).json()
}

pub(crate) fn tasks(site: &Site, body: Value) -> Value {
    task(site, "/api/v1/tasks", body)
}

#[test]
fn a_job_is_put_and_changed_and_deleted_as_by_a_client() {
    let dir = tempfile::TempDir::new().unwrap();
    for launch in [Launch::bsd().memory(), Launch::bsd().dir(dir.path())] {
        let site = Site::start(launch);
        let described = Description::of(&site);
        let mut wire = site.server.connect();
        let put = |body: Value, status| {
            let path = "/api/v1/tubes/a%2Fb/jobs";
            described.send(&site, "post", path, &body, status)
        };
        let body = json!({"encoding": "base64", "data": "/wA="});
        let id = put(json!({"body": body, "priority": 7, "ttr": 9}), 201)["id"]
            .as_u64()
            .unwrap();
        let shown = job(&site, id);
        assert_eq!(
            (&shown["tube"], &shown["state"]),
            (&json!("a/b"), &json!("ready"))
        );
        assert_eq!((&shown["priority"], &shown["ttr"]), (&json!(7), &json!(9)));
        assert_eq!(shown["body"]["data"], "/wA=");
        put(json!({"priority": 1}), 400);
        put(json!({"body": {"data": "x"}, "pri": 1}), 400);
        put(json!({"body": {"data": "x".repeat(65536)}}), 413);

        change(&site, id, "priority", json!({"priority": 3}), 200);
        assert_eq!(job(&site, id)["priority"], 3);
        change(&site, id, "delay", json!({"delay": 100}), 200);
        change(&site, id, "priority", json!({"priority": 4}), 200);
        let shown = job(&site, id);
        assert_eq!(
            (&shown["state"], &shown["priority"]),
            (&json!("delayed"), &json!(4))
        );
        assert!(shown["time_left_seconds"].as_f64().unwrap() > 50.0);
        change(&site, id, "kick", json!({}), 200);
        change(&site, id, "bury", json!({}), 200);
        assert_eq!(job(&site, id)["state"], "buried");
        change(&site, id, "kick", json!({}), 200);
        assert_eq!(wire.stat(&format!("stats-job {id}"), "state"), "ready");

        wire.ask("watch a/b");
        assert_eq!(wire.reserve(), id);
        for (word, body) in [
            ("priority", json!({"priority": 1})),
            ("bury", json!({})),
            ("delay", json!({"delay": 1})),
            ("kick", json!({})),
            ("move", json!({"to": "c"})),
        ] {
            change(&site, id, word, body.clone(), 409);
            change(&site, 999, word, body, 404);
        }
        let path = format!("/api/v1/jobs/{id}");
        described.send(&site, "delete", &path, &Value::Null, 409);
        assert_eq!(wire.ask(&format!("release {id} 1 0")), "RELEASED");
        described.send(&site, "delete", &path, &Value::Null, 200);
        described.send(&site, "delete", &path, &Value::Null, 404);
        assert_eq!(wire.ask(&format!("peek {id}")), "NOT_FOUND");
    }
}

/// A worker that hangs: it has reserved a job for hours, and answers nothing.
#[test]
fn g51_a_job_is_taken_from_the_client_that_has_reserved_it() {
    let dir = tempfile::TempDir::new().unwrap();
    let launches = [Launch::bsd().memory(), Launch::bsd().dir(dir.path())];
    for (launch, has_log) in launches.into_iter().zip([false, true]) {
        let site = Site::start(launch.clone());
        let (mut hung, mut next) = (site.server.connect(), site.server.connect());
        let ids: Vec<u64> = (0..3)
            .map(|_| {
                hung.send("put 5 0 9999 1\r\nx\r\n");
                inserted(&hung.text()).unwrap()
            })
            .collect();
        for id in &ids {
            assert_eq!(hung.reserve(), *id);
        }
        let holder = &job(&site, ids[0])["reserved_by"];
        let client = site.get(&format!("/api/v1/clients/{holder}")).json();
        assert_eq!(client["reserved"].as_array().unwrap().len(), 3);
        // Who waits gets it at once.
        next.send("reserve\r\n");
        change(&site, ids[0], "release", json!({}), 200);
        assert_eq!(next.text(), format!("RESERVED {} 1\r\nx", ids[0]));
        assert_eq!(next.ask(&format!("delete {}", ids[0])), "DELETED");
        change(&site, ids[0], "release", json!({}), 404);
        // What the worker does then is answered as after its time.
        let body = json!({"priority": 7, "delay": 1000});
        change(&site, ids[1], "release", body.clone(), 200);
        change(&site, ids[1], "release", body, 409);
        assert_eq!(hung.ask(&format!("touch {}", ids[1])), "NOT_FOUND");
        assert_eq!(hung.ask(&format!("release {} 0 0", ids[1])), "NOT_FOUND");
        let shown = job(&site, ids[1]);
        let expected = (&json!("delayed"), &json!(7), &Value::Null);
        assert_eq!(
            (&shown["state"], &shown["priority"], &shown["reserved_by"]),
            expected
        );
        assert_eq!(hung.ask(&format!("delete {}", ids[2])), "DELETED");
        let audit = format!("POST /api/v1/jobs/{}/release: 200: from client ", ids[0]);
        wait_until("it is told", || site.server.stderr().contains(&audit));
        if has_log {
            site.server.kill();
            let server = launch.start();
            let mut wire = server.connect();
            let id = ids[1];
            assert_eq!(wire.stat(&format!("stats-job {id}"), "state"), "delayed");
            assert_eq!(wire.stat(&format!("stats-job {id}"), "pri"), "7");
        }
    }
}

#[test]
fn g51_a_client_is_closed_and_its_jobs_are_ready_again() {
    let site = memory();
    let described = Description::of(&site);
    let close = |path: &str, status| described.send(&site, "delete", path, &Value::Null, status);
    let (mut hung, mut other) = (site.server.connect(), site.server.connect());
    let id = other.put(b"x");
    // It takes none of its replies either.
    hung.send("reserve\r\n");
    wait_until("it has it", || job(&site, id)["state"] == "reserved");
    let client = job(&site, id)["reserved_by"].as_u64().unwrap();
    let path = format!("/api/v1/clients/{client}");
    close(&format!("{path}?address=127.0.0.1:1"), 404);
    let address = site.get(&path).json()["address"]
        .as_str()
        .unwrap()
        .to_owned();
    other.send("reserve\r\n");
    assert_eq!(
        close(&format!("{path}?address={address}"), 200)["id"],
        client
    );
    assert_eq!(other.text(), format!("RESERVED {id} 1\r\nx"));
    assert!(
        hung.rest().ends_with(b"x\r\n"),
        "what it had been sent, and the end"
    );
    close(&path, 404);
    close("/api/v1/clients/4000000000", 404);
    close("/api/v1/clients/x", 400);
    assert_eq!(other.ask(&format!("delete {id}")), "DELETED");
    // Anyone who has the same id now is left alone by who means the one before.
    let mut others: Vec<Wire> = (0..20).map(|_| site.server.connect()).collect();
    assert!(
        others
            .iter_mut()
            .all(|it| it.ask("use t").starts_with("USING"))
    );
    close(&format!("{path}?address={address}"), 404);
    assert!(
        others
            .iter_mut()
            .all(|it| it.ask("use t").starts_with("USING"))
    );
}

#[test]
fn a_moved_job_is_the_same_but_for_its_tube_also_after_a_restart() {
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(dir.path());
    let site = Site::start(launch.clone());
    let mut wire = site.server.connect();
    wire.ask("use from");
    for delay in [0, 0, 1000] {
        wire.send(put_command(5, delay, b"body"));
        wire.text();
    }
    wire.ask("watch from");
    let buried = wire.reserve();
    assert_eq!(wire.ask(&format!("bury {buried} 9")), "BURIED");
    let kept = |job: &Value| {
        let names = [
            "state", "priority", "delay", "ttr", "reserves", "buries", "body",
        ];
        names.map(|name| job[name].clone())
    };
    let mut moved = Vec::new();
    for id in 1..=3 {
        let before = job(&site, id);
        let moved_to = change(&site, id, "move", json!({"to": "to"}), 200);
        assert_eq!(moved_to["id"], id);
        let after = job(&site, id);
        assert_eq!(kept(&before), kept(&after));
        assert!(after["age_seconds"].as_f64() >= before["age_seconds"].as_f64());
        assert_eq!(after["tube"], "to");
        moved.push((id, after));
    }
    assert_eq!(change(&site, 2, "move", json!({"to": "to"}), 200)["id"], 2);
    let (id, _) = moved.remove(0);
    change(&site, id, "move", json!({"to": "third", "kick": true}), 200);
    let kicked = job(&site, id);
    assert_eq!(
        (&kicked["tube"], &kicked["state"], &kicked["kicks"]),
        (&json!("third"), &json!("ready"), &json!(1))
    );
    site.server.kill();
    let site = Site::start(launch);
    for (id, before) in moved {
        assert_eq!(kept(&job(&site, id)), kept(&before));
    }
    let counts = site.get("/api/v1/server").json();
    assert_eq!(
        (&counts["jobs"]["ready"], &counts["jobs"]["delayed"]),
        (&json!(2), &json!(1))
    );
}

#[test]
fn anyone_who_waits_for_a_job_gets_one_that_is_moved() {
    let site = memory();
    let mut wire = site.server.connect();
    wire.ask("use from");
    wire.put(b"body");
    let mut worker = site.server.connect();
    worker.ask("watch to");
    worker.send("reserve\r\n");
    change(&site, 1, "move", json!({"to": "to"}), 200);
    assert_eq!(worker.text(), "RESERVED 1 4\r\nbody");
}

#[test]
fn tubes_are_paused_one_by_one_and_by_pattern() {
    let site = memory();
    let described = Description::of(&site);
    let mut wire = site.server.connect();
    for tube in ["mail/a", "mail/b", "other"] {
        wire.ask(&format!("watch {tube}"));
    }
    let seconds = json!({"seconds": 100});
    described.send(&site, "post", "/api/v1/tubes/other/pause", &seconds, 200);
    described.send(&site, "post", "/api/v1/tubes/none/pause", &seconds, 404);
    let body = json!({"tube": "mail/*", "seconds": 50});
    let paused = described.send(&site, "post", "/api/v1/pause", &body, 200);
    assert_eq!(paused["tubes"], 2);
    let of = |wire: &mut Wire, tube: &str| wire.stat(&format!("stats-tube {tube}"), "pause");
    for (tube, pause) in [
        ("mail/a", "50"),
        ("mail/b", "50"),
        ("other", "100"),
        ("default", "0"),
    ] {
        assert_eq!(of(&mut wire, tube), pause, "{tube}");
    }
    let body = json!({"tube": "*", "seconds": 0});
    assert_eq!(
        described.send(&site, "post", "/api/v1/pause", &body, 200)["tubes"],
        4
    );
    assert_eq!(of(&mut wire, "mail/a"), "0");
}

/// Jobs of two tubes, in all states in which one can be: ready, delayed and buried.
pub(crate) fn fill(wire: &mut Wire, tube: &str, of_each: u64) {
    wire.ask(&format!("use {tube}"));
    wire.ask(&format!("watch {tube}"));
    wire.ask("ignore default");
    for nth in 0..of_each {
        let pri = 100 + nth as u32 % 7;
        wire.send(put_command(1, 0, format!("{tube} buried {nth}").as_bytes()));
        inserted(&wire.text()).unwrap();
        let id = wire.reserve();
        assert_eq!(wire.ask(&format!("bury {id} {pri}")), "BURIED");
    }
    for nth in 0..of_each {
        let pri = 100 + nth as u32 % 7;
        wire.send(put_command(
            pri,
            0,
            format!("{tube} ready {nth}").as_bytes(),
        ));
        inserted(&wire.text()).unwrap();
        wire.send(put_command(
            pri,
            1000,
            format!("{tube} delayed {nth}").as_bytes(),
        ));
        inserted(&wire.text()).unwrap();
    }
    wire.ask("watch default");
    wire.ask(&format!("ignore {tube}"));
}

pub(crate) fn counts(site: &Site, tube: &str) -> [u64; 3] {
    let found = site.get(&format!("/api/v1/tubes/{tube}")).json();
    let of = |state: &str| found["jobs"][state].as_u64().unwrap_or(0);
    [of("ready"), of("delayed"), of("buried")]
}

#[test]
fn a_task_counts_first_and_changes_what_it_has_counted_and_nothing_else() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "a", 40);
    fill(&mut wire, "b", 40);
    let all = |tube: &str| json!({"tube": tube});
    let dry = tasks(
        &site,
        json!({"action": "delete", "filter": all("a"), "dry_run": true}),
    );
    assert_eq!(
        (&dry["state"], &dry["matched"], &dry["changed"]),
        (&json!("done"), &json!(120), &json!(0))
    );
    assert_eq!(counts(&site, "a"), [40, 40, 40]);
    let wanted = json!({"tube": "a", "contains": {"data": "ready 1"}});
    let found = tasks(&site, json!({"action": "bury", "filter": wanted}));
    assert_eq!(
        (&found["matched"], &found["changed"]),
        (&json!(11), &json!(11))
    );
    assert_eq!(counts(&site, "a"), [29, 40, 51]);
    let found = tasks(&site, json!({"action": "kick", "filter": all("a")}));
    assert_eq!(found["changed"], 91);
    assert_eq!(counts(&site, "a"), [120, 0, 0]);
    let wanted = json!({"tube": "a", "priority_min": 101, "priority_max": 102});
    let found = tasks(
        &site,
        json!({"action": "priority", "priority": 5000, "filter": wanted}),
    );
    let changed = found["changed"].as_u64().unwrap();
    assert_eq!((&found["matched"], changed), (&json!(changed), 36));
    let wanted = json!({"tube": "?", "priority_min": 5000, "states": ["ready"]});
    let found = tasks(
        &site,
        json!({"action": "delay", "delay": 77, "filter": wanted}),
    );
    assert_eq!(found["changed"], changed);
    assert_eq!(counts(&site, "a"), [120 - changed, changed, 0]);
    let found = tasks(
        &site,
        json!({"action": "move", "to": "c", "filter": all("*")}),
    );
    assert_eq!(found["changed"], 240);
    assert_eq!(counts(&site, "c"), [120 - changed + 40, changed + 40, 40]);
    let found = tasks(
        &site,
        json!({"action": "delete", "filter": {"tube": "c", "id_max": 1000}}),
    );
    assert_eq!(
        (&found["state"], &found["changed"]),
        (&json!("done"), &json!(240))
    );
    assert_eq!(wire.stat("stats", "current-jobs-ready"), "0");
}

/// A buried job whose priority is changed comes last among them: the task meets the others once each,
/// and leaves them in their order.
#[test]
fn buried_jobs_get_another_priority_one_by_one() {
    let site = memory();
    let mut wire = site.server.connect();
    let bury = |wire: &mut Wire, pri: u64| {
        let id = wire.put(b"x");
        wire.reserve();
        assert_eq!(wire.ask(&format!("bury {id} {pri}")), "BURIED");
        id
    };
    let ids: Vec<u64> = (0..100).map(|nth| bury(&mut wire, nth % 2)).collect();
    let (even, odd): (Vec<u64>, Vec<u64>) = ids.iter().partition(|id| *id % 2 == ids[0] % 2);
    let change = |filter: Value, priority: u64| {
        let asked = json!({"action": "priority", "priority": priority, "filter": filter});
        let done = tasks(&site, asked);
        assert_eq!(done["state"], "done", "{done}");
        (done["matched"].clone(), done["changed"].clone())
    };
    let filter = json!({"tube": "default", "states": ["buried"], "priority_min": 1});
    assert_eq!(change(filter, 7), (json!(50), json!(50)));
    // More than the scan keeps in mind, all of them changed one after the other.
    let filter = json!({"tube": "default"});
    assert_eq!(change(filter, 9), (json!(100), json!(100)));
    let kicked: Vec<u64> = (0..100)
        .map(|_| {
            let said = wire.ask("peek-buried");
            let id = said.split(' ').nth(1).unwrap().parse().unwrap();
            wire.ask("kick 1");
            id
        })
        .collect();
    assert_eq!(kicked, [even, odd].concat());
    assert_eq!(wire.stat(&format!("stats-job {}", ids[0]), "pri"), "9");
}

#[test]
fn jobs_that_are_reserved_or_come_later_are_left_alone() {
    let site = memory();
    let mut wire = site.server.connect();
    for _ in 0..3 {
        wire.put(b"x");
    }
    let mut worker = site.server.connect();
    let reserved = worker.reserve();
    let described = Description::of(&site);
    let clear = |body: Value, status| {
        let path = "/api/v1/tubes/default/clear";
        described.send(&site, "post", path, &body, status)
    };
    let all = json!(["ready", "delayed", "buried"]);
    clear(json!({}), 400);
    clear(json!({"states": ["reserved"]}), 400);
    let counted = clear(json!({"states": all, "dry_run": true}), 200);
    assert_eq!(
        (&counted["matched"], &counted["deleted"]),
        (&json!(2), &json!(0))
    );
    let refused = clear(json!({"states": all, "most": 1}), 409);
    let why = refused["detail"].as_str().unwrap();
    assert!(why.contains("more jobs match than the 1"), "{why}");
    let cleared = clear(json!({"states": all, "most": 2}), 200);
    assert_eq!(
        (&cleared["matched"], &cleared["deleted"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(clear(json!({"states": all}), 200)["deleted"], 0);
    assert_eq!(worker.ask(&format!("delete {reserved}")), "DELETED");
}

/// More jobs than a batch has, in two states of three: what is cleared is gone for every command, and
/// after a crash.
#[test]
fn a_clear_deletes_many_jobs_at_once_whether_it_is_asked_as_a_clear_or_as_a_task() {
    const JOBS: u64 = 3000;
    let dir = tempfile::TempDir::new().unwrap();
    let launch = Launch::bsd().dir(dir.path());
    let site = Site::start(launch.clone());
    let fill = |wire: &mut Wire, tube: &str| {
        wire.ask(&format!("use {tube}"));
        let put = |nth: u64| put_command(5, if nth.is_multiple_of(3) { 1000 } else { 0 }, b"x");
        wire.send((0..JOBS).flat_map(put).collect::<Vec<u8>>());
        for _ in 0..JOBS {
            inserted(&wire.text()).unwrap();
        }
    };
    let mut wire = site.server.connect();
    fill(&mut wire, "one");
    fill(&mut wire, "two");
    let path = "/api/v1/tubes/one/clear";
    let body = json!({"states": ["ready", "buried"]});
    let cleared = site.change("post", path, &body).json();
    assert_eq!(cleared["deleted"], 2 * JOBS / 3, "{cleared}");
    let filter = json!({"tube": "two", "states": ["delayed"]});
    let begun = json!({"action": "delete", "filter": filter, "most": JOBS / 3});
    let done = tasks(&site, begun);
    assert_eq!(
        (&done["state"], &done["matched"], &done["changed"]),
        (&json!("done"), &json!(JOBS / 3), &json!(JOBS / 3))
    );
    let left = |site: &Site| [counts(site, "one"), counts(site, "two")];
    let wanted = [[0, JOBS / 3, 0], [2 * JOBS / 3, 0, 0]];
    assert_eq!(left(&site), wanted);
    site.server.kill();
    assert_eq!(left(&Site::start(launch)), wanted);
}

#[test]
fn buried_jobs_are_redriven_at_a_rate_and_the_task_can_be_cancelled() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "dead", 30);
    let path = "/api/v1/tubes/dead/redrive";
    let found = task(&site, path, json!({"rate": 1000, "to": "live"}));
    assert_eq!(found["changed"], 30);
    assert!(found["took_seconds"].as_f64().unwrap() >= 0.029);
    assert_eq!(
        (counts(&site, "dead"), counts(&site, "live")),
        ([30, 30, 0], [30, 0, 0])
    );
    fill(&mut wire, "dead", 30);
    let described = Description::of(&site);
    let begun = described.send(&site, "post", path, &json!({"rate": 1}), 202);
    let id = begun["id"].as_u64().unwrap();
    let one = format!("/api/v1/tasks/{id}");
    wait_until("it has begun", || site.get(&one).json()["changed"] == 1);
    described.send(&site, "delete", &one, &Value::Null, 200);
    let found = over(&site, id);
    assert_eq!(found["state"], "cancelled");
    assert!(found["changed"].as_u64().unwrap() < 30);
    let listed = site.get("/api/v1/tasks").json();
    assert_eq!(listed["tasks"][0]["id"], id);
}

#[test]
fn so_many_tasks_and_no_more_run_at_a_time() {
    let site = memory();
    let mut wire = site.server.connect();
    fill(&mut wire, "dead", 30);
    let described = Description::of(&site);
    let path = "/api/v1/tubes/dead/redrive";
    let slow = json!({"rate": 1});
    for _ in 0..8 {
        described.send(&site, "post", path, &slow, 202);
    }
    described.send(&site, "post", path, &slow, 429);
    described.send(&site, "delete", "/api/v1/tasks/1", &Value::Null, 200);
    over(&site, 1);
    described.send(&site, "post", path, &slow, 202);
    described.send(&site, "delete", "/api/v1/tasks/99", &Value::Null, 404);
}

/// All that a search finds, page by page, as pairs of tube and id.
fn search(site: &Site, filter: &Value, limit: usize) -> Vec<(String, u64)> {
    let described = Description::of(site);
    let mut found = Vec::new();
    let mut after = Value::Null;
    loop {
        let body = json!({"filter": filter, "limit": limit, "after": after});
        let path = "/api/v1/search";
        let begun = described.send(site, "post", path, &body, 202);
        let one = format!("/api/v1/search/{}", begun["id"]);
        wait_until("the search is over", || {
            site.get(&one).json()["jobs"].is_array()
        });
        let over = described.send(site, "get", &one, &Value::Null, 200);
        assert_eq!(
            (&over["state"], &over["reason"]),
            (&json!("done"), &Value::Null)
        );
        let jobs = over["jobs"].as_array().unwrap();
        assert_eq!(over["matched"], jobs.len());
        let of_job = |job: &Value| {
            let tube = job["tube"].as_str().unwrap().to_owned();
            (tube, job["id"].as_u64().unwrap())
        };
        found.extend(jobs.iter().map(of_job));
        after = over["next"].clone();
        if after.is_null() {
            return found;
        }
    }
}

#[test]
fn a_search_finds_what_matches_page_by_page_and_nothing_else() {
    let dir = tempfile::TempDir::new().unwrap();
    for launch in [Launch::bsd().memory(), Launch::bsd().dir(dir.path())] {
        let site = Site::start(launch);
        let mut wire = site.server.connect();
        fill(&mut wire, "a", 30);
        fill(&mut wire, "b.c", 30);
        for limit in [1, 7, 250] {
            let all = search(&site, &json!({"tube": "*"}), limit);
            let mut once = all.clone();
            once.sort();
            once.dedup();
            assert_eq!((all.len(), once.len()), (180, 180), "{limit}");
            assert!(
                all.is_sorted_by_key(|(tube, _)| tube.clone()),
                "tubes by name"
            );
            let filter = json!({"tube": "b.?", "states": ["buried", "delayed"],
                "contains": {"data": "ed 2"}});
            assert_eq!(search(&site, &filter, limit).len(), 22, "{limit}");
        }
        let bytes = json!({"encoding": "base64", "data": "IHJlYWR5IDU="});
        let found = search(&site, &json!({"tube": "a", "contains": bytes}), 5);
        let shown = job(&site, found[0].1);
        assert_eq!(
            (found.len(), &shown["body"]["data"]),
            (1, &json!("a ready 5"))
        );
        assert_eq!(search(&site, &json!({"tube": "none"}), 5), []);
        let old = json!({"tube": "*", "age_min_seconds": 10_000});
        assert_eq!(search(&site, &old, 5), []);
        for body in [
            json!({"filter": {"tube": "a"}, "limit": 251}),
            json!({"filter": {"tube": "a"}, "after": "x"}),
            json!({"filter": {}}),
            json!({"tube": "a"}),
        ] {
            assert_eq!(
                site.change("post", "/api/v1/search", &body).status,
                400,
                "{body}"
            );
        }
    }
}

/// Between two pages the job at which the first ended is deleted.
#[test]
fn a_search_goes_on_behind_a_job_that_is_gone() {
    let site = memory();
    let mut wire = site.server.connect();
    for _ in 0..4 {
        wire.put(b"x");
    }
    let described = Description::of(&site);
    let path = "/api/v1/search";
    let find = |id: u64, after: &Value| {
        let body = json!({"filter": {"tube": "default"}, "limit": 2, "after": after});
        described.send(&site, "post", path, &body, 202);
        let one = format!("/api/v1/search/{id}");
        wait_until("the search is over", || {
            site.get(&one).json()["jobs"].is_array()
        });
        site.get(&one).json()
    };
    let first = find(1, &Value::Null);
    assert_eq!(first["jobs"][1]["id"], 2);
    wire.ask("delete 2");
    let second = find(2, &first["next"]);
    assert_eq!(
        (&second["jobs"][0]["id"], &second["jobs"][1]["id"]),
        (&json!(3), &json!(4))
    );
    let listed = described.send(&site, "get", path, &Value::Null, 200);
    assert_eq!(listed["searches"].as_array().unwrap().len(), 2);
    described.send(&site, "delete", "/api/v1/search/2", &Value::Null, 200);
    described.send(&site, "delete", "/api/v1/search/3", &Value::Null, 404);
}

#[test]
fn a_change_comes_from_this_server_in_json_and_within_bounds() {
    let site = memory();
    site.server.connect().put(b"x");
    let kick = "POST /api/v1/jobs/1/bury";
    let json = "Content-Type: application/json";
    let large = format!("{{\"x\":\"{}\"}}", "x".repeat(2 << 20));
    for (fields, body, status) in [
        (&[][..], &b""[..], 415),
        (&["Content-Type: text/plain"], b"{}", 415),
        (
            &["Content-Type: application/x-www-form-urlencoded"],
            b"a=b",
            415,
        ),
        (&[json, "Origin: http://evil.example"], b"{}", 403),
        (&[json, "Sec-Fetch-Site: cross-site"], b"{}", 403),
        (&[json], b"{", 400),
        (&[json], b"[]", 400),
        (&[json], b"{\"to\":1}", 400),
        (&[json], large.as_bytes(), 413),
        (
            &["Content-Type: application/json; charset=utf-8"],
            b"{}",
            200,
        ),
    ] {
        let answer = site.send(kick, fields, body);
        assert_eq!(answer.status, status, "{fields:?}: {}", answer.head);
        let state = if status == 200 { "buried" } else { "ready" };
        assert_eq!(job(&site, 1)["state"], state, "{fields:?}");
    }
    let delete = "DELETE /api/v1/jobs/1";
    assert_eq!(
        site.send(delete, &["Origin: http://evil.example"], b"")
            .status,
        403
    );
    assert_eq!(site.send(delete, &[], b"").status, 200);
}

#[test]
fn every_change_has_a_line_that_says_who_and_what() {
    let site = memory();
    site.server.connect().put(b"x");
    change(&site, 1, "move", json!({"to": "there"}), 200);
    change(&site, 9, "kick", json!({}), 404);
    tasks(
        &site,
        json!({"action": "delete", "filter": {"tube": "there"}}),
    );
    site.get("/api/v1/server");
    for wanted in [
        "anyone here: POST /api/v1/jobs/1/move: 200: to there",
        "anyone here: POST /api/v1/jobs/9/kick: 404",
        "anyone here: POST /api/v1/tasks: 202: task 1: {\"action\":\"delete\"",
    ] {
        wait_until(wanted, || site.server.stderr().contains(wanted));
    }
    assert_eq!(site.server.stderr().matches("audit: ").count(), 3);
}

/// The numbers that the bodies of a tube are, in the order of their turn.
fn numbers(wire: &mut Wire, tube: &str) -> Vec<u64> {
    wire.ask(&format!("watch {tube}"));
    wire.ask("ignore default");
    let mut found = Vec::new();
    loop {
        wire.send("reserve-with-timeout 0\r\n");
        let reply = wire.reply();
        let Some((_, body)) = crate::wire::job_of(&reply) else {
            break;
        };
        found.push(std::str::from_utf8(body).unwrap().parse().unwrap());
    }
    wire.ask("watch default");
    wire.ask(&format!("ignore {tube}"));
    found
}

/// A crash in the middle leaves the first of the changes done: of a clear the last of the jobs, of
/// a move each job in the one tube or in the other.
#[test]
fn a_crash_in_the_middle_of_a_task_leaves_the_first_of_its_changes() {
    const JOBS: u64 = 10_000;
    for action in ["delete", "move"] {
        let dir = tempfile::TempDir::new().unwrap();
        let launch = Launch::bsd().dir(dir.path());
        let site = Site::start(launch.clone());
        let mut wire = site.server.connect();
        wire.ask("use from");
        let puts: Vec<u8> = (0..JOBS)
            .flat_map(|nth| put_command(5, 0, format!("{nth}").as_bytes()))
            .collect();
        wire.send(puts);
        for _ in 0..JOBS {
            inserted(&wire.text()).unwrap();
        }
        let mut body = json!({"action": action, "rate": 10_000, "filter": {"tube": "from"}});
        if action == "move" {
            body["to"] = json!("to");
        }
        let begun = site.change("post", "/api/v1/tasks", &body);
        assert_eq!(begun.status, 202, "{begun:?}");
        wait_until("some are changed", || {
            site.get("/api/v1/tasks/1").json()["changed"]
                .as_u64()
                .unwrap()
                > JOBS / 20
        });
        site.server.kill();
        let site = Site::start(launch);
        let mut wire = site.server.connect();
        let (left, moved) = (numbers(&mut wire, "from"), numbers(&mut wire, "to"));
        let first = JOBS - left.len() as u64;
        assert!(
            (1..JOBS).contains(&first),
            "it was killed in the middle: {first}"
        );
        assert!(
            left.iter().copied().eq(first..JOBS),
            "{action}: what is left is the rest"
        );
        match action {
            "move" => assert!(
                moved.iter().copied().eq(0..first),
                "nothing is lost or there twice"
            ),
            _ => assert!(moved.is_empty()),
        }
    }
}
