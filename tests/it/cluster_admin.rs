//! A cluster of three real servers is seen and steered: over the API, by `bsd-ctl`, in the console, in
//! metrics, and by what a load balancer asks.

use std::time::Duration;

use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::api::Description;
use crate::ctl::{NOT_DONE, OK, command, said};
use crate::harness::{Launch, peer_address, wait_until, wait_within};
use crate::http::{Answer, Site, tokens};

const READER: &str = "Authorization: Bearer reader";
const MASTER: &str = "Authorization: Bearer master";
/// A member comes, goes, or leads within this.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// A server that waits to become a member, and where the others reach it.
pub(crate) struct Node {
    pub(crate) site: Site,
    pub(crate) peer: String,
    _dir: TempDir,
}

impl Node {
    pub(crate) fn start(number: u8, tokens: Option<&NamedTempFile>) -> Node {
        let dir = TempDir::new().unwrap();
        let peer = peer_address(number).to_string();
        let log = dir.path().join("log");
        let mut launch = Launch::bsd().dir(&log).args(["--cluster", &peer]);
        if let Some(file) = tokens {
            launch = launch.arg("--http-tokens").arg(file.path());
        }
        // It answers no client as itself while others lead.
        let launch = launch.args(["--http", "127.0.0.1:0"]);
        let site = Site::of(launch.spawn_until_it_says("HTTP on http://"));
        // HTTP is there before the log has been replayed.
        wait_until("the log is replayed", || {
            let ready = String::from_utf8(site.get("/readyz").body).unwrap();
            !ready.contains("is being replayed")
        });
        Node {
            site,
            peer,
            _dir: dir,
        }
    }

    pub(crate) fn three(tokens: Option<&NamedTempFile>) -> [Node; 3] {
        [0, 1, 2].map(|number| Node::start(number, tokens))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.site.send(&format!("GET {path}"), &[MASTER], b"")
    }

    /// A change, with these fields beside the one that says that it is JSON.
    fn post(&self, path: &str, fields: &[&str], body: &Value) -> Answer {
        let fields = [fields, &["Content-Type: application/json"]].concat();
        let body = body.to_string();
        self.site
            .send(&format!("POST {path}"), &fields, body.as_bytes())
    }

    pub(crate) fn steer(&self, word: &str, body: &Value) -> Answer {
        self.post(&format!("/api/v1/cluster/{word}"), &[MASTER], body)
    }

    fn report(&self) -> Value {
        let answer = self.get("/api/v1/cluster");
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub(crate) fn id(&self) -> String {
        self.report()["member"].as_str().unwrap().to_owned()
    }

    pub(crate) fn standing(&self) -> String {
        self.report()["standing"].as_str().unwrap().to_owned()
    }

    /// All of this many members vote and are connected, as this one knows.
    fn sees(&self, count: usize) -> bool {
        let report = self.report();
        let members = report["members"].as_array().unwrap();
        let is_well = |it: &Value| it["votes"] == true && it["connected"] == true;
        members.len() == count && members.iter().all(is_well) && !report["leader"].is_null()
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        let line = text
            .lines()
            .find(|line| line.split([' ', '{']).next() == Some(name))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// `bsd-ctl cluster` with these words: its exit code, and all that it wrote.
    fn ctl(&self, words: &[&str]) -> (Option<i32>, String) {
        let mut command = command(&self.site.server.address().to_string());
        command.env("BSD_CTL_HTTP", self.site.address.to_string());
        said(&command.arg("cluster").args(words).output().unwrap())
    }

    fn ctl_done(&self, words: &[&str]) -> String {
        let (code, said) = self.ctl(words);
        assert_eq!(code, OK, "{words:?}: {said}");
        said
    }
}

/// Until each of them sees this many members, and knows who leads.
pub(crate) fn wait_for_members(nodes: &[&Node], count: usize) {
    wait_within(SOON, "the members know of each other", || {
        nodes.iter().all(|node| node.sees(count))
    });
}

fn detail(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    let kind = answer.field("content-type");
    assert_eq!(kind, Some("application/problem+json"), "{answer:?}");
    answer.json()["detail"].as_str().unwrap().to_owned()
}

/// Requests by path, with a body that could be right.
fn routes(peer: &str) -> [(&'static str, Value); 4] {
    let member = json!({"member": "00000000000000ff"});
    [
        ("init", json!({})),
        ("join", json!({"address": peer})),
        ("remove", member.clone()),
        ("transfer", member),
    ]
}

#[test]
fn a_server_that_is_alone_has_no_cluster() {
    let site = Site::start(Launch::bsd().memory());
    let described = Description::of(&site);
    for path in ["/leader", "/api/v1/cluster"] {
        let problem = described.check(&site.get(path), "get", path, 404);
        assert!(problem["detail"].as_str().unwrap().contains("--cluster"));
    }
    for (word, body) in routes("127.0.0.1:1") {
        let path = format!("/api/v1/cluster/{word}");
        described.send(&site, "post", &path, &body, 404);
    }
    assert_eq!(site.get("/cluster").status, 404);
    let page = String::from_utf8(site.get("/").body).unwrap();
    assert!(!page.contains("href=\"/cluster\""), "{page}");
    let metrics = String::from_utf8(site.get("/metrics").body).unwrap();
    assert!(!metrics.contains("bsd_cluster_"));
    let mut command = command(&site.server.address().to_string());
    command.env("BSD_CTL_HTTP", site.address.to_string());
    let (code, said) = said(&command.args(["cluster", "status"]).output().unwrap());
    assert_eq!(code, NOT_DONE, "{said}");
    assert!(said.contains("is no member of a cluster"), "{said}");
}

/// Begin a cluster of these over the API.
fn unite(nodes: &[Node; 3], described: &Description) {
    let [first, second, third] = nodes;
    let begun = first.steer("init", &json!({}));
    described.check(&begun, "post", "/api/v1/cluster/init", 202);
    wait_for_members(&[first], 1);
    for (node, count) in [(second, 2), (third, 3)] {
        let path = "/api/v1/cluster/join";
        let asked = node.steer("join", &json!({"address": first.peer}));
        described.check(&asked, "post", path, 202);
        wait_for_members(&[first, node], count);
    }
    wait_for_members(&[first, second, third], 3);
}

#[test]
fn a_cluster_is_begun_joined_seen_and_steered_over_the_api() {
    let alone = Site::start(Launch::bsd().memory());
    let described = Description::of(&alone);
    let file = tokens();
    let nodes = Node::three(Some(&file));
    let [first, second, third] = &nodes;

    // No one is a member yet.
    let ready = first.site.get("/readyz");
    assert_eq!(ready.status, 503);
    let reason = ready.json()["reasons"][0].as_str().unwrap().to_owned();
    assert!(reason.contains("no member of a cluster yet"), "{reason}");
    let no_one = described.check(&first.site.get("/leader"), "get", "/leader", 503);
    assert_eq!(
        no_one,
        json!({"leads": false, "leader": null, "http": null})
    );
    assert_eq!(first.metric("bsd_cluster_members"), None);
    let path = "/api/v1/cluster";
    let waiting = described.check(&first.get(path), "get", path, 200);
    assert_eq!(waiting["standing"], "waiting");
    assert_eq!(waiting["cluster"], Value::Null);
    let why = detail(
        &first.steer("transfer", &json!({"member": first.id()})),
        409,
    );
    assert_eq!(why, "this server is no member of a cluster");

    // Who may not, may not, and who is a page of another site may not either.
    assert_eq!(first.site.get(path).status, 401);
    assert_eq!(
        first
            .site
            .send("GET /api/v1/cluster", &[READER], b"")
            .status,
        200
    );
    for (word, body) in routes(&second.peer) {
        let path = format!("/api/v1/cluster/{word}");
        assert_eq!(first.post(&path, &[], &body).status, 401, "{word}");
        assert_eq!(first.post(&path, &[READER], &body).status, 403, "{word}");
        let forged = [MASTER, "Origin: http://evil.example"];
        assert_eq!(first.post(&path, &forged, &body).status, 403, "{word}");
        let as_form = first.site.send(&format!("POST {path}"), &[MASTER], b"{}");
        assert_eq!(as_form.status, 415, "{word}");
        let more = json!({"more": 1});
        assert_eq!(first.steer(word, &more).status, 400, "{word}");
    }
    assert_eq!(first.standing(), "waiting");

    unite(&nodes, &described);
    let leads = |node: &Node| node.site.get("/leader").status == 200;
    assert_eq!(nodes.each_ref().map(leads), [true, false, false]);
    let clients = nodes
        .each_ref()
        .map(|it| it.site.server.address().to_string());
    for node in &nodes {
        let status = if leads(node) { 200 } else { 503 };
        let told = node.site.get("/leader");
        let told = described.check(&told, "get", "/leader", status);
        assert_eq!(told["leader"], clients[0]);
        wait_until("it is ready", || node.site.get("/readyz").status == 200);
        let report = described.check(&node.get(path), "get", path, 200);
        assert_eq!(report["members"].as_array().unwrap().len(), 3);
        let members = report["members"].as_array().unwrap();
        assert!(members.iter().all(|it| it["lag"].is_null() != leads(node)));
        assert_eq!(node.metric("bsd_cluster_members"), Some(3.0));
        assert_eq!(node.metric("bsd_cluster_connected_members"), Some(3.0));
        let is_leader = f64::from(u8::from(leads(node)));
        assert_eq!(node.metric("bsd_cluster_is_leader"), Some(is_leader));
        assert_eq!(node.metric("bsd_cluster_has_leader"), Some(1.0));
        let lag = node.metric("bsd_cluster_member_lag_entries");
        assert_eq!(lag.is_some(), leads(node));
        let page = String::from_utf8(node.get("/cluster").body).unwrap();
        assert!(
            page.contains("href=\"/cluster\"") && page.contains(&second.id()),
            "{page}"
        );
    }
    let events = second.site.send("GET /events?of=cluster", &[MASTER], b"");
    assert_eq!(events.status, 200);

    // Twice is once too often.
    for (word, body) in routes(&second.peer) {
        let path = format!("/api/v1/cluster/{word}");
        let refused = first.steer(word, &body);
        described.check(&refused, "post", &path, 409);
    }
    let why = detail(
        &second.steer("transfer", &json!({"member": third.id()})),
        409,
    );
    assert_eq!(why, format!("member {} leads: ask that one", first.id()));
    let why = detail(
        &first.steer("transfer", &json!({"member": first.id()})),
        409,
    );
    assert_eq!(why, format!("member {} leads already", first.id()));
    assert_eq!(first.steer("remove", &json!({"member": "ff"})).status, 400);
    assert_eq!(
        second.steer("join", &json!({"address": "host:1"})).status,
        400
    );

    // The leader changes jobs, others say who that is.
    let job = json!({"body": {"data": "one"}});
    let jobs = "/api/v1/tubes/default/jobs";
    for (path, body) in [
        (jobs, &job),
        ("/api/v1/jobs/1/bury", &json!({})),
        ("/api/v1/jobs/1/redrive", &json!({})),
        ("/api/v1/tubes/default/pause", &json!({"seconds": 1})),
        ("/api/v1/pause", &json!({"tube": "*", "seconds": 1})),
        ("/api/v1/tubes/default/clear", &json!({"states": ["ready"]})),
        ("/api/v1/tubes/default/redrive", &json!({})),
        (
            "/api/v1/tasks",
            &json!({"action": "kick", "filter": {"tube": "*"}}),
        ),
        ("/api/v1/drain", &json!({})),
    ] {
        let why = detail(&second.post(path, &[MASTER], body), 503);
        assert!(
            why.contains(&clients[0]) && why.contains("leader"),
            "{path}: {why}"
        );
    }
    assert_eq!(first.post(jobs, &[MASTER], &job).status, 201);
    wait_until("what the leader has put is seen elsewhere", || {
        third.get("/api/v1/tubes/default").json()["jobs"]["ready"] == 1
    });

    // Leadership is transferred.
    let target = json!({"member": second.id()});
    let path = "/api/v1/cluster/transfer";
    described.check(&first.steer("transfer", &target), "post", path, 202);
    wait_within(SOON, "the second one leads", || {
        leads(second) && !leads(first)
    });
    wait_for_members(&[first, second, third], 3);
    assert_eq!(second.post(jobs, &[MASTER], &job).status, 201);

    // A member goes for ever.
    let gone = third.id();
    third.site.server.signal(rustix::process::Signal::KILL);
    wait_within(SOON, "the leader misses it", || {
        second.metric("bsd_cluster_connected_members") == Some(2.0)
    });
    let target = json!({ "member": gone });
    let path = "/api/v1/cluster/remove";
    described.check(&second.steer("remove", &target), "post", path, 202);
    wait_for_members(&[first, second], 2);
    let audit = second.site.server.stderr();
    let line = format!("POST /api/v1/cluster/remove: 202: removing member {gone}");
    assert!(
        audit.contains("audit: ") && audit.contains(&line),
        "{audit}"
    );

    // Alone of two it knows no one who leads, and says so.
    first.site.server.signal(rustix::process::Signal::KILL);
    wait_within(SOON, "no one leads, and it has read its log again", || {
        let ready = second.site.get("/readyz");
        let reason = || ready.json()["reasons"][0].to_string();
        ready.status == 503 && reason().contains("is known to lead")
    });
    assert!(!leads(second));
    assert_eq!(second.metric("bsd_cluster_has_leader"), Some(0.0));
    assert_eq!(second.post(jobs, &[MASTER], &job).status, 503);
}

#[test]
fn bsd_ctl_begins_a_cluster_adds_shows_hands_over_and_removes() {
    let nodes = Node::three(None);
    let [first, second, third] = &nodes;
    let (code, told) = first.ctl(&["status"]);
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.contains("no member yet"), "{told}");

    // No one is there: it is said why, and it goes on asking.
    let (code, told) = second.ctl(&["add", &first.peer, "--at-most", "3"]);
    assert_eq!(code, NOT_DONE, "{told}");
    assert!(told.contains("is no member of a cluster itself"), "{told}");
    assert!(first.ctl_done(&["init"]).contains("1 member"));
    let (code, told) = first.ctl(&["init"]);
    assert_eq!(code, NOT_DONE);
    assert!(told.contains("a member of a cluster already"), "{told}");
    wait_within(SOON, "it is added", || second.standing() == "follower");
    wait_for_members(&[first, second], 2);
    let told = third.ctl_done(&["add", &first.peer]);
    assert!(told.contains("3 members"), "{told}");
    wait_for_members(&[first, second, third], 3);

    let table = first.ctl_done(&["status"]);
    assert!(table.contains("the leader"), "{table}");
    let rows: Vec<&str> = table
        .lines()
        .skip_while(|it| !it.starts_with("MEMBER"))
        .collect();
    assert_eq!(rows.len(), 4, "{table}");
    for node in &nodes {
        let row = rows.iter().find(|row| row.starts_with(&node.id())).unwrap();
        assert!(row.contains(&node.peer) && row.contains(" yes"), "{table}");
        let state = if node.peer == first.peer {
            " leads "
        } else {
            " follows "
        };
        assert!(row.contains(state), "{table}");
    }
    let json: Value = serde_json::from_str(&second.ctl_done(&["status", "--json"])).unwrap();
    assert_eq!(json["standing"], "follower");
    assert_eq!(json["leader"]["id"], first.id());

    // By address, and by the beginning of an id.
    assert!(
        first
            .ctl_done(&["transfer", &second.peer])
            .contains("leads")
    );
    wait_for_members(&[first, second, third], 3);
    let (code, told) = first.ctl(&["transfer", &third.peer]);
    assert_eq!(code, NOT_DONE);
    assert!(
        told.contains(&format!("member {} leads", second.id())),
        "{told}"
    );
    let beginning = &third.id()[..12];
    let (code, told) = second.ctl(&["remove", beginning]);
    assert_eq!(code, NOT_DONE);
    assert!(
        told.contains(&third.peer) && told.contains("--yes"),
        "{told}"
    );
    assert!(second.sees(3), "nothing was done");
    let (code, told) = second.ctl(&["remove", "absent", "--yes"]);
    assert_eq!(code, NOT_DONE);
    assert!(told.contains("has no member absent"), "{told}");
    let told = second.ctl_done(&["remove", beginning, "--yes"]);
    assert!(told.contains("2 members"), "{told}");
    wait_within(SOON, "it knows that it was removed", || {
        third.standing() == "removed"
    });
    let (code, told) = third.ctl(&["status"]);
    assert_eq!(code, NOT_DONE);
    assert!(told.contains("move its directory elsewhere"), "{told}");
    assert_eq!(third.site.get("/readyz").status, 503);
}

#[test]
fn t25_the_status_of_a_cluster_without_a_leader_is_not_well() {
    let nodes = [0, 1].map(|number| Node::start(number, None));
    let [first, second] = &nodes;
    first.ctl_done(&["init"]);
    second.ctl_done(&["add", &first.peer]);
    wait_for_members(&[first, second], 2);
    for node in &nodes {
        node.ctl_done(&["status"]);
    }
    second.site.server.signal(rustix::process::Signal::KILL);
    wait_within(SOON, "no one leads", || {
        first.ctl(&["status", "--json"]).0 == NOT_DONE && first.standing() == "no leader"
    });
    let (code, table) = first.ctl(&["status"]);
    assert_eq!(code, NOT_DONE, "{table}");
    assert!(table.contains("a follower without a leader"), "{table}");
}

/// The reports of each of three members about itself: in the console, the API and the metrics.
#[test]
fn g11_g12_a_member_says_what_is_acknowledged_where_and_a_follower_that_it_follows() {
    let alone = Site::start(Launch::bsd().memory());
    let described = Description::of(&alone);
    let of_one = alone.get("/api/v1/server");
    assert_eq!(
        of_one.field("bsd-role"),
        None,
        "a single server is no member"
    );
    let nodes = Node::three(None);
    let text = |node: &Node, path: &str| String::from_utf8(node.get(path).body).unwrap();
    let waiting = text(&nodes[0], "/durability");
    assert!(waiting.contains("takes no jobs"), "{waiting}");
    assert!(!waiting.contains("500 ms"), "{waiting}");
    unite(&nodes, &described);
    let [first, ..] = &nodes;
    let console = format!("http://{}", first.site.address);
    for node in &nodes {
        let leads = node.peer == first.peer;
        for path in ["/", "/durability"] {
            let page = text(node, &format!("{path}?view=member"));
            assert!(page.contains("of 2 of 3 members"), "{page}");
            assert!(!page.contains("500 ms"), "{page}");
        }
        assert!(
            text(node, "/durability?view=member").contains("on 2 of 3 members, before each reply")
        );
        let path = "/api/v1/log";
        let log = described.check(&node.get(path), "get", path, 200);
        assert_eq!(
            (&log["sync"], &log["sync_interval_ms"]),
            (&json!("majority"), &Value::Null)
        );

        let role = if leads { "leader" } else { "follower" };
        let metrics = text(node, "/metrics");
        for (word, is) in [
            ("leader", leads),
            ("follower", !leads),
            ("no leader", false),
        ] {
            let line = format!("\nbsd_cluster_role{{role=\"{word}\"}} {}\n", u8::from(is));
            assert!(metrics.contains(&line), "{line} {metrics}");
        }
        for path in [
            "/api/v1/tubes",
            "/api/v1/tubes/default/jobs",
            "/api/v1/schedules",
            "/api/v1/server",
        ] {
            let answer = node.get(path);
            assert_eq!(answer.field("bsd-role"), Some(role), "{answer:?}");
            assert_eq!(answer.field("bsd-as-of").is_some(), !leads, "{answer:?}");
            let there = format!("<{console}>; rel=\"leader\"");
            let there = Some(&*there).filter(|_| !leads);
            assert_eq!(answer.field("link"), there, "{answer:?}");
        }
        for path in [
            "/",
            "/tubes",
            "/tubes/default",
            "/schedules",
            "/clients",
            "/durability",
        ] {
            let page = text(node, &format!("{path}?view=member"));
            assert_eq!(page.contains("Follower, as of "), !leads, "{path}: {page}");
            let link = format!("href=\"{console}/\"");
            assert_eq!(page.contains(&link), !leads, "{path}: {page}");
        }
        let told = node.site.get("/leader").json();
        assert_eq!(told["http"], console);
        assert_eq!(node.report()["leader"]["http"], console);
        if !leads {
            let job = json!({"body": {"data": "one"}});
            let why = detail(&node.post("/api/v1/tubes/default/jobs", &[], &job), 503);
            assert!(why.contains(&format!("ask {console}")), "{why}");
            for (method, below) in [
                ("put", ""),
                ("delete", ""),
                ("post", "/run"),
                ("post", "/pause"),
            ] {
                let path = format!("/api/v1/schedules/daily{below}");
                let refused = node.site.change(method, &path, &json!({}));
                let why = detail(&refused, 503);
                assert!(why.contains(&format!("ask {console}")), "{why}");
            }
        }
    }
}
