//! `/api/v1`: what it says is what the protocol says, and as its description says.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::Launch;
use crate::http::{Answer, Site};
use crate::wire::put_command;

fn start() -> Site {
    Site::start(Launch::bsd().memory())
}

/// Faults of a value by a schema of the document: as much of JSON Schema as that uses.
pub(crate) fn faults(value: &Value, schema: &Value, document: &Value, at: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let found = document.pointer(reference.strip_prefix('#').unwrap());
        return faults(value, found.expect(reference), document, at);
    }
    if let Some(any) = schema["anyOf"].as_array() {
        let is_one = any
            .iter()
            .any(|it| faults(value, it, document, at).is_empty());
        return Vec::from_iter((!is_one).then(|| format!("{at}: {value} is none of {any:?}")));
    }
    let is_right = match schema["type"].as_str().expect("a type") {
        "object" => return object_faults(value, schema, document, at),
        "array" => {
            let Some(items) = value.as_array() else {
                return vec![format!("{at}: {value} is no array")];
            };
            let of_item = |item| faults(item, &schema["items"], document, at);
            return items.iter().flat_map(of_item).collect();
        }
        "integer" => value.is_u64(),
        "number" => value.as_f64().is_some_and(|number| number >= 0.0),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    let words = schema["enum"].as_array();
    let is_word = words.is_none_or(|words| words.contains(value));
    Vec::from_iter((!is_right || !is_word).then(|| format!("{at}: {value} is no {schema}")))
}

fn object_faults(value: &Value, schema: &Value, document: &Value, at: &str) -> Vec<String> {
    let Some(fields) = value.as_object() else {
        return vec![format!("{at}: {value} is no object")];
    };
    let Some(properties) = schema["properties"].as_object() else {
        return Vec::new();
    };
    assert_eq!(schema["additionalProperties"], false, "{at}");
    let mut found = Vec::new();
    for required in schema["required"].as_array().unwrap() {
        if !fields.contains_key(required.as_str().unwrap()) {
            found.push(format!("{at}: {required} is missing"));
        }
    }
    for (name, value) in fields {
        match properties.get(name) {
            Some(schema) => found.extend(faults(value, schema, document, &format!("{at}.{name}"))),
            None => found.push(format!("{at}: {name} is not described")),
        }
    }
    found
}

/// The description, and what it says of GET of a path.
pub(crate) struct Description(Value);

impl Description {
    pub(crate) fn of(site: &Site) -> Description {
        Description(site.get("/api/v1/openapi.json").json())
    }

    /// Ask, and hold the answer to the description.
    pub(crate) fn get(&self, site: &Site, path: &str, status: u16) -> Value {
        self.check(&site.get(path), "get", path, status)
    }

    /// What it says of this request.
    fn operation(&self, method: &str, path: &str) -> &Value {
        let path = path.split('?').next().unwrap();
        let is_of = |pattern: &&String| {
            let mut parts = pattern.split('/').zip(path.split('/'));
            pattern.split('/').count() == path.split('/').count()
                && parts.all(|(wanted, found)| wanted == found || wanted.starts_with('{'))
        };
        let paths = self.0["paths"].as_object().unwrap();
        let found = paths.get(path).map(|_| path);
        let found = found.or_else(|| paths.keys().find(is_of).map(String::as_str));
        &self.0["paths"][found.expect(path)][method]
    }

    /// Send a change, and hold it and the answer to the description.
    pub(crate) fn send(
        &self,
        site: &Site,
        method: &str,
        path: &str,
        body: &Value,
        status: u16,
    ) -> Value {
        let operation = self.operation(method, path);
        let taken = &operation["requestBody"]["content"]["application/json"]["schema"];
        if taken.is_object() && status < 300 {
            let faults = faults(body, taken, &self.0, path);
            assert!(faults.is_empty(), "{faults:#?}");
        }
        let answer = site.change(method, path, body);
        self.check(&answer, method, path, status)
    }

    /// The same as [`Description::check`], where the path has no braces.
    pub(crate) fn hold(
        &self,
        answer: &Answer,
        (method, _): (&str, &str),
        path: &str,
        status: u16,
    ) -> Value {
        self.check(answer, method, path, status)
    }

    /// Hold an answer to the description.
    pub(crate) fn check(&self, answer: &Answer, method: &str, path: &str, status: u16) -> Value {
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let responses = &self.operation(method, path)["responses"];
        let described = match &responses[status.to_string()] {
            Value::Null => &responses["default"],
            described => described,
        };
        let kind = answer.field("content-type").unwrap();
        let schema = &described["content"][kind]["schema"];
        assert!(
            schema.is_object(),
            "{method} {path}: {status} {kind} is not described"
        );
        let value = answer.json();
        let faults = faults(&value, schema, &self.0, path);
        assert!(faults.is_empty(), "{faults:#?}");
        value
    }
}

#[test]
fn the_description_names_every_route_once_and_all_that_it_refers_to() {
    let site = start();
    let document = Description::of(&site).0;
    assert_eq!(document["openapi"], "3.1.0");
    let mut ids = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(
                ids.insert(operation["operationId"].to_string()),
                "{method} {path}"
            );
            assert!(
                operation["summary"].as_str().unwrap().len() > 4,
                "{method} {path}"
            );
        }
    }
    assert!(ids.len() >= 8);
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let (pointer, _) = reference.split_once('"').unwrap();
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
}

#[test]
fn every_answer_is_as_described() {
    let dir = tempfile::TempDir::new().unwrap();
    let log = Launch::bsd().dir(&dir.path().join("log"));
    for launch in [Launch::bsd().memory(), log] {
        let site = Site::start(launch);
        let mut wire = site.server.connect();
        for (nth, body) in [&b"text"[..], b"\xff\xfe", b""].into_iter().enumerate() {
            assert_eq!(wire.put(body), nth as u64 + 1);
        }
        wire.send(put_command(7, 100_000, b"later"));
        wire.text();
        wire.reserve();
        assert_eq!(wire.ask("bury 1 5"), "BURIED");
        wire.reserve();
        wire.ask("pause-tube default 100");
        let described = Description::of(&site);
        for (path, status) in [
            ("/healthz", 200),
            ("/readyz", 200),
            ("/api/v1/openapi.json", 200),
            ("/api/v1/server", 200),
            ("/api/v1/server?x=1", 400),
            ("/api/v1/tubes", 200),
            ("/api/v1/tubes?limit=0", 400),
            ("/api/v1/tubes?limit=251", 400),
            ("/api/v1/tubes/default", 200),
            ("/api/v1/tubes/none", 404),
            ("/api/v1/tubes/-none", 400),
            ("/api/v1/tubes/%zz", 400),
            ("/api/v1/tubes/default/jobs", 200),
            ("/api/v1/tubes/default/jobs?state=delayed", 200),
            ("/api/v1/tubes/default/jobs?state=buried", 200),
            ("/api/v1/tubes/default/jobs?state=reserved", 400),
            ("/api/v1/tubes/default/jobs?after=1", 400),
            ("/api/v1/tubes/default/jobs?state=buried&after=0.3", 410),
            ("/api/v1/tubes/none/jobs", 404),
            ("/api/v1/trouble", 200),
            ("/api/v1/trouble?wait_max_seconds=0", 200),
            ("/api/v1/trouble?wait_max_seconds=-1", 400),
            ("/api/v1/tubes/default/why", 200),
            ("/api/v1/tubes/none/why", 404),
            ("/api/v1/ranking", 200),
            ("/api/v1/ranking?sort=age&tube=d*", 200),
            ("/api/v1/ranking?sort=beauty", 400),
            ("/api/v1/ranking?limit=1001", 400),
            ("/api/v1/clients", 200),
            ("/api/v1/clients?after=0&limit=1", 200),
            ("/api/v1/clients?limit=0", 400),
            ("/api/v1/clients/9999", 404),
            ("/api/v1/clients/x", 400),
            ("/api/v1/jobs/1", 200),
            ("/api/v1/jobs/2", 200),
            ("/api/v1/jobs/3", 200),
            ("/api/v1/jobs/4", 200),
            ("/api/v1/jobs/5", 404),
            ("/api/v1/jobs/0", 404),
            ("/api/v1/jobs/x", 400),
            ("/api/v1/jobs/18446744073709551616", 400),
        ] {
            described.get(&site, path, status);
        }
        site.server.signal(rustix::process::Signal::USR1);
        crate::harness::wait_until("it drains", || site.get("/readyz").status == 503);
        described.get(&site, "/readyz", 503);
    }
}

/// The validation above, tried.
#[test]
fn a_value_that_is_not_as_described_is_found() {
    let site = start();
    let document = Description::of(&site).0;
    let schema = &document["components"]["schemas"]["Body"];
    for (value, is_right) in [
        (r#"{"encoding":"text","data":""}"#, true),
        (r#"{"encoding":"rot13","data":""}"#, false),
        (r#"{"encoding":"text","data":1}"#, false),
        (r#"{"encoding":"text"}"#, false),
        (r#"{"encoding":"text","data":"","more":1}"#, false),
        ("[]", false),
    ] {
        let value = serde_json::from_str(value).unwrap();
        let found = faults(&value, schema, &document, "body");
        assert_eq!(found.is_empty(), is_right, "{value}: {found:?}");
    }
}

#[test]
fn a_job_is_as_the_protocol_says() {
    let site = start();
    let mut wire = site.server.connect();
    wire.ask("use a/tube");
    wire.put(b"with \"quotes\"");
    wire.put(&[0, 159, 146, 150]);
    let job = site.get("/api/v1/jobs/1").json();
    assert_eq!(job["tube"], "a/tube");
    assert_eq!(job["state"], "ready");
    assert_eq!(job["body"]["data"], "with \"quotes\"");
    assert_eq!(job["time_left_seconds"], Value::Null);
    let job = site.get("/api/v1/jobs/2").json();
    assert_eq!(job["body"]["encoding"], "base64");
    assert_eq!(job["body"]["data"], "AJ+Slg==");
    let tube = site.get("/api/v1/tubes/a%2Ftube").json();
    assert_eq!(
        (&tube["name"], &tube["jobs"]["ready"]),
        (&"a/tube".into(), &2.into())
    );
    let server = site.get("/api/v1/server").json();
    assert_eq!(
        (&server["jobs"]["ready"], &server["puts"]),
        (&2.into(), &2.into())
    );
    assert_eq!(server["log"], Value::Null);
}

#[test]
fn a_body_past_64_kib_is_left_out() {
    let site = Site::start(Launch::bsd().memory().arg("-z").arg("4m"));
    let mut wire = site.server.connect();
    wire.put(&vec![b'x'; (64 << 10) + 1]);
    wire.put(&vec![b'x'; 64 << 10]);
    let job = site.get("/api/v1/jobs/1").json();
    assert_eq!(
        (&job["body"], &job["body_size"]),
        (&Value::Null, &((64 << 10) + 1).into())
    );
    let job = site.get("/api/v1/jobs/2").json();
    assert_eq!(job["body"]["data"].as_str().unwrap().len(), 64 << 10);
}

#[test]
fn pages_of_jobs_follow_each_other() {
    let site = start();
    let mut wire = site.server.connect();
    let mut wanted: Vec<(u64, u64)> = Vec::new();
    for nth in 0..60 {
        let pri = nth * 7 % 5;
        wire.send(put_command(pri as u32, 0, b"ready"));
        wanted.push((pri, crate::wire::inserted(&wire.text()).unwrap()));
        wire.send(put_command(0, 1000, b"delayed"));
        wire.text();
    }
    wanted.sort_unstable();
    let list = |state: &str, limit: usize| {
        let mut listed = Vec::new();
        let mut after = String::new();
        loop {
            let path = format!("/api/v1/tubes/default/jobs?state={state}&limit={limit}{after}");
            let page = site.get(&path).json();
            let jobs = page["jobs"].as_array().unwrap();
            assert!(jobs.len() <= limit);
            assert!(
                jobs.iter()
                    .all(|job| job["state"] == state && job["body"].is_null())
            );
            let of_job = |job: &Value| (job["priority"].as_u64(), job["id"].as_u64());
            listed.extend(jobs.iter().map(of_job));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return listed,
            }
        }
    };
    let wanted: Vec<_> = wanted
        .into_iter()
        .map(|(pri, id)| (Some(pri), Some(id)))
        .collect();
    for limit in [1, 7, 60, 61] {
        assert_eq!(list("ready", limit), wanted, "{limit}");
        assert_eq!(list("delayed", limit).len(), 60, "{limit}");
    }
    for _ in 0..3 {
        let id = wire.reserve();
        wire.ask(&format!("bury {id} 9"));
    }
    assert_eq!(list("buried", 2).len(), 3);
}

/// Page by page every tube is listed once, in order, also with those that come between.
#[test]
fn pages_of_tubes_follow_each_other() {
    let site = start();
    let mut wire = site.server.connect();
    let mut names: BTreeSet<String> = (0..249).map(|nth| format!("t{}", nth * 7 % 249)).collect();
    for name in &names {
        wire.ask(&format!("watch {name}"));
    }
    names.insert("default".to_owned());
    let names: Vec<String> = names.into_iter().collect();
    let of_page = |page: &Value| -> Vec<String> {
        let tubes = page["tubes"].as_array().unwrap().iter();
        tubes
            .map(|tube| tube["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for limit in [1, 7, 100, 249, 250] {
        let mut listed = Vec::new();
        let mut after = String::new();
        loop {
            let page = site
                .get(&format!("/api/v1/tubes?limit={limit}&after={after}"))
                .json();
            let found = of_page(&page);
            assert!(found.len() <= limit);
            listed.extend(found);
            match page["next"].as_str() {
                Some(next) => next.clone_into(&mut after),
                None => break,
            }
        }
        assert_eq!(listed, names, "{limit}");
    }
    let page = site.get("/api/v1/tubes?contains=24").json();
    let wanted: Vec<_> = names
        .iter()
        .filter(|name| name.contains("24"))
        .cloned()
        .collect();
    assert_eq!((of_page(&page), &page["next"]), (wanted, &Value::Null));
}

#[test]
fn who_has_the_jobs_of_a_tube_is_told_however_many_they_are() {
    let site = start();
    let (mut one, mut other) = (site.server.connect(), site.server.connect());
    for tube in ["busy", "else"] {
        one.ask(&format!("use {tube}"));
        one.ask(&format!("watch {tube}"));
        (0..300).for_each(|_| _ = one.put(b"x"));
    }
    other.ask("watch busy");
    (0..40).for_each(|_| _ = other.reserve());
    (0..560).for_each(|_| _ = one.reserve());
    let described = Description::of(&site);
    let path = "/api/v1/tubes/busy/why";
    let why = described.get(&site, path, 200);
    let holders = why["holders"].as_array().unwrap();
    let mut jobs: Vec<_> = holders.iter().map(|it| it["jobs"].as_u64()).collect();
    jobs.sort_unstable();
    assert_eq!(jobs, [Some(40), Some(260)], "{why:#}");
    assert_eq!(why["reserved_left_out"], 0, "{why:#}");
}

#[test]
fn clients_are_listed_with_what_they_use_watch_and_have_reserved() {
    let site = start();
    let mut wires: Vec<_> = (0..5).map(|_| site.server.connect()).collect();
    wires[0].ask("use busy");
    wires[0].put(b"1");
    wires[0].put(b"2");
    wires[1].ask("watch busy");
    assert_eq!((wires[1].reserve(), wires[1].reserve()), (1, 2));
    wires[2].ask("watch one");
    wires[2].send("reserve\r\n");
    let described = Description::of(&site);
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let path = format!("/api/v1/clients?limit=2{after}");
        let page = described.get(&site, &path, 200);
        found.extend(page["clients"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(found.len(), 5, "{found:#?}");
    let address = |client: &Value| client["address"].as_str().unwrap().to_owned();
    assert!(
        found
            .iter()
            .all(|client| address(client).starts_with("127.0.0.1:"))
    );
    let one = |wanted: &dyn Fn(&Value) -> bool| {
        let client = found.iter().find(|client| wanted(client)).unwrap();
        let path = format!("/api/v1/clients/{}", client["id"]);
        described.get(&site, &path, 200)
    };
    let worker = one(&|client| client["has_reserved"] == true);
    let ids: Vec<_> = worker["reserved"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| &job["id"])
        .collect();
    assert_eq!(ids, [1, 2]);
    assert_eq!(worker["watches"], serde_json::json!(["default", "busy"]));
    let producer = one(&|client| client["producer"] == true);
    assert_eq!(
        (&producer["uses"], &producer["watched_tubes"]),
        (&"busy".into(), &1.into())
    );
    crate::harness::wait_until("one waits", || {
        let page = site.get("/api/v1/clients").json();
        page["clients"]
            .as_array()
            .unwrap()
            .iter()
            .any(|client| client["waits"] == true)
    });
    drop(wires);
    crate::harness::wait_until("all have left", || {
        site.get("/api/v1/clients").json()["clients"]
            .as_array()
            .unwrap()
            .is_empty()
    });
}
