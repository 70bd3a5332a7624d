//! The console of a cluster of real servers: each member shows and changes the whole of it, by its
//! leader; and what it shows when the leader does not answer.

use std::net::SocketAddr;

use rustix::process::Signal;
use serde_json::json;
use tempfile::{NamedTempFile, TempDir};

use crate::cluster_admin::{Node, SOON, wait_for_members};
use crate::console::{HTML, Page, listen, read_until};
use crate::console_forms::{enter, post, word_of};
use crate::harness::{Launch, Server, peer_address, wait_until, wait_within};
use crate::http::{Answer, Site, tokens};
use crate::http_tls;
use crate::tls::House;

/// A cluster of these, of which the first one leads.
fn unite(nodes: &[Node]) {
    let first = &nodes[0];
    assert_eq!(first.steer("init", &json!({})).status, 202);
    wait_for_members(&[first], 1);
    for (at, node) in nodes.iter().enumerate().skip(1) {
        let asked = node.steer("join", &json!({"address": first.peer}));
        assert_eq!(asked.status, 202, "{asked:?}");
        let known: Vec<&Node> = nodes[..=at].iter().collect();
        wait_for_members(&known, at + 1);
    }
    assert_eq!(first.standing(), "leader");
}

/// The top of a page that `leader` has made and `member` has passed on.
fn from(leader: &Node, member: &Node) -> String {
    let (leader, member) = (leader.id(), member.id());
    format!("From member {leader}, which leads its cluster, through member {member}.")
}

fn location(done: &Page) -> &str {
    assert_eq!(done.answer.status, 303, "{}", done.text);
    done.answer.field("location").unwrap()
}

/// The lines about a form that was sent there, once this many are in the log.
fn audit(node: &Node, path: &str, count: usize) -> Vec<String> {
    let asked = format!("POST {path}: ");
    let lines = || -> Vec<String> {
        let stderr = node.site.server.stderr();
        let lines = stderr.lines().filter(|line| line.contains(&asked));
        lines.map(str::to_owned).collect()
    };
    wait_until("it is in the log", || lines().len() >= count);
    let lines = lines();
    assert_eq!(lines.len(), count, "{lines:?}");
    lines
}

#[test]
fn each_member_shows_the_cluster_and_changes_it_and_is_seen_by_itself() {
    let nodes = Node::three(None);
    unite(&nodes);
    let [leader, member, other] = &nodes;
    let (mut worker, mut wire) = (member.site.server.connect(), other.site.server.connect());
    let id = worker.put(b"held");
    assert_eq!(worker.ask("reserve"), format!("RESERVED {id} 4\r\nheld"));
    let job = format!("/jobs/{id}");
    let form = format!("action=\"{job}/release\"");
    for node in [member, other] {
        let page = Page::shown(&node.site, &job);
        assert!(page.text.contains(&form), "{}", page.text);
        assert!(page.text.contains(&from(leader, node)), "{}", page.text);
        assert_eq!(page.answer.field("cache-control"), Some("no-store"));
        let own = Page::shown(&node.site, "/tubes/default?view=member");
        assert!(own.text.contains("Follower, as of "), "{}", own.text);
        assert_eq!(own.text.matches("href=\"?\"").count(), 1, "{}", own.text);
        // Each link stays in that view.
        for link in [
            "href=\"/?view=member\"",
            "href=\"/tubes?view=member\"",
            "href=\"/tubes/default?state=buried&amp;view=member#jobs\"",
            "name=\"view\" value=\"member\"",
        ] {
            assert!(own.text.contains(link), "{link}: {}", own.text);
        }
        assert!(!own.text.contains("href=\"/tubes\""), "{}", own.text);
        // A job is that of its own copy, and is not changed there.
        let own_job = format!("{job}?view=member");
        wait_until("its copy has the job", || {
            Page::of(&node.site, &own_job).answer.status == 200
        });
        let own = Page::shown(&node.site, &own_job);
        assert!(own.text.contains("Follower, as of "), "{}", own.text);
        assert!(own.text.contains("held"), "{}", own.text);
        assert!(
            !own.text.contains(&form) && !own.text.contains("/delete"),
            "{}",
            own.text
        );
        let found = Page::of(&node.site, &format!("/find?q={id}&view=member"));
        assert_eq!(location(&found), own_job);
        let cluster = Page::shown(&node.site, "/cluster");
        assert!(
            cluster.text.contains("This member follows"),
            "{}",
            cluster.text
        );
        assert!(cluster.text.contains("events?of=cluster&amp;view=member"));
    }
    let page = Page::shown(&leader.site, &job);
    assert!(
        page.text.contains("This member leads its cluster."),
        "{}",
        page.text
    );

    // Forms, which the leader's page has brought.
    let word = word_of(&Page::shown(&member.site, "/tubes/default"));
    let paused = post(
        &member.site,
        "/tubes/default/pause",
        &[],
        &format!("form={word}&seconds=60"),
    );
    let there = Page::shown(&member.site, location(&paused));
    assert!(there.text.contains("class=\"said\""), "{}", there.text);
    let tube = wire.ask("stats-tube default");
    assert!(tube.contains("\npause: 60\n"), "{tube}");
    let said = wire.ask("put 0 600 60 4\r\nlate");
    let late = said.strip_prefix("INSERTED ").unwrap().trim().to_owned();
    let kick = format!("/jobs/{late}/kick");
    let kicked = post(&other.site, &kick, &[], &format!("form={word}"));
    assert_eq!(
        location(&kicked).split('?').next().unwrap(),
        format!("/jobs/{late}")
    );
    let state = &leader.get(&format!("/api/v1/jobs/{late}")).json()["state"];
    assert_eq!(state, "ready");
    let at_leader = format!("passed on to the leader at http://{}", leader.site.address);
    let line = &audit(other, &kick, 1)[0];
    assert!(line.ends_with(&format!(": 303: {at_leader}")), "{line}");
    audit(leader, &kick, 1);
    // A form of its own copy changes no job.
    let own = word_of(&Page::shown(&member.site, "/tubes/default?view=member"));
    let refused = post(&member.site, &kick, &[], &format!("form={own}"));
    assert_eq!(refused.answer.status, 403, "{}", refused.text);

    // What changes is heard of while it happens.
    let mut stream = listen(&member.site, "tube&name=live");
    read_until(&mut stream, "\n\n");
    assert_eq!(wire.ask("use live"), "USING live");
    wire.put(b"x");
    read_until(&mut stream, "data: ");
}

#[test]
fn a_request_is_passed_on_once_and_who_says_it_was_is_believed_nothing() {
    let nodes = Node::three(None);
    unite(&nodes);
    let [leader, member, other] = &nodes;
    let claim = format!("Bsd-Passed-On: {}", other.id());
    let page = Page::with(&member.site, "/tubes", &[&claim]);
    assert_eq!(page.answer.status, 503, "{}", page.text);
    assert!(page.text.contains("load the page again"), "{}", page.text);
    let word = word_of(&Page::shown(&leader.site, "/tubes/default"));
    let form = format!("form={word}&seconds=60");
    let path = "/tubes/default/pause";
    let refused = post(&member.site, path, &[&claim], &form);
    assert_eq!(refused.answer.status, 503, "{}", refused.text);
    // At the leader it opens nothing, and hides no one.
    let done = post(&leader.site, path, &[&claim], "form=0&seconds=60");
    assert_eq!(done.answer.status, 403, "{}", done.text);
    let cross = [&*claim, "Origin: http://elsewhere.example"];
    let done = post(&leader.site, path, &cross, &form);
    assert_eq!(done.answer.status, 403, "{}", done.text);
    let done = post(&leader.site, path, &[&claim], &form);
    assert_eq!(done.answer.status, 303, "{}", done.text);
    // The one that came by the member is not there; the origin of another site ends before a line.
    let lines = audit(leader, path, 2);
    let is_plain = |line: &String| line.contains("audit: 127.0.0.1:");
    assert!(lines.iter().all(is_plain), "{lines:?}");
    assert!(
        lines.iter().all(|line| !line.contains(&other.id())),
        "{lines:?}"
    );
    // A server that is no member of a cluster does not care.
    let alone = Site::start(Launch::bsd().memory());
    let page = Page::with(&alone, "/", &[&claim]);
    assert_eq!(page.answer.status, 200, "{}", page.text);
    assert!(!page.text.contains("which leads"), "{}", page.text);
}

#[test]
fn a_person_logs_in_at_any_member_and_is_known_to_the_leader() {
    let file = tokens();
    let nodes = Node::three(Some(&file));
    unite(&nodes);
    let [leader, member, _] = &nodes;
    let master = enter(&member.site, "master");
    let page = Page::with(&member.site, "/tubes/default", &[&master]);
    assert!(page.text.contains(&from(leader, member)), "{}", page.text);
    assert_eq!(page.answer.field("set-cookie"), None);
    let (leave, rest) = page
        .text
        .split_once("action=\"/logout\"")
        .map(|(_, rest)| {
            let (_, rest) = rest.split_once("name=\"form\" value=\"").unwrap();
            rest.split_once('"').unwrap()
        })
        .unwrap();
    let (_, rest) = rest.split_once("name=\"form\" value=\"").unwrap();
    let word = rest.split_once('"').unwrap().0;
    assert_ne!(leave, word, "each member has its own");
    let path = "/tubes/default/pause";
    let form = format!("form={word}&seconds=60");
    let done = post(&member.site, path, &[&master], &form);
    assert_eq!(done.answer.status, 303, "{}", done.text);
    for node in [leader, member] {
        let lines = audit(node, path, 1);
        assert!(lines[0].contains("the token in line 3"), "{lines:?}");
    }
    // The leader knows no session of another member, and a reader changes nothing anywhere.
    let page = Page::with(&leader.site, "/", &[&master]);
    assert_eq!(page.answer.status, 303, "{}", page.text);
    let reader = enter(&member.site, "reader");
    let page = Page::with(&member.site, "/tubes/default", &[&reader]);
    assert!(page.text.contains(&from(leader, member)), "{}", page.text);
    assert!(!page.text.contains(path), "{}", page.text);
    let refused = post(&member.site, path, &[&reader], &form);
    assert_eq!(refused.answer.status, 403, "{}", refused.text);
    let shown = ["Authorization: Bearer reader"];
    let page = Page::with(&member.site, "/", &shown);
    assert!(page.text.contains(&from(leader, member)), "{}", page.text);
    let left = post(
        &member.site,
        "/logout",
        &[&master],
        &format!("form={leave}"),
    );
    assert_eq!(left.answer.status, 303, "{}", left.text);
    let page = Page::with(&member.site, "/", &[&master]);
    assert!(location(&page).starts_with("/login?to="), "{}", page.text);
}

#[test]
fn a_leader_with_other_tokens_is_told_of_and_nothing_is_changed() {
    let (all, one) = (tokens(), NamedTempFile::new().unwrap());
    let text = std::fs::read_to_string(all.path()).unwrap();
    // The leader knows the master, and another reader.
    let lines: Vec<&str> = text.lines().filter(|it| !it.starts_with("read:")).collect();
    std::fs::write(one.path(), format!("{}\n", lines.join("\n"))).unwrap();
    let nodes = [Node::start(0, Some(&one)), Node::start(1, Some(&all))];
    unite(&nodes);
    let [_, member] = &nodes;
    let reader = ["Authorization: Bearer reader"];
    let page = Page::with(&member.site, "/tubes", &reader);
    assert_eq!(page.answer.status, 200, "{}", page.text);
    for words in [
        "Follower, as of ",
        "This is its own copy: ",
        "the same --http-tokens",
    ] {
        assert!(page.text.contains(words), "{words}: {}", page.text);
    }
    // A copy shows a job, and says why it was asked.
    let id = member.site.server.connect().put(b"x");
    wait_until("the job is there", || {
        let page = Page::with(&member.site, &format!("/jobs/{id}"), &reader);
        page.answer.status == 200 && page.text.contains("the same --http-tokens")
    });
    let stopped = post(&member.site, "/find/1/cancel", &reader, "form=0");
    assert_eq!(stopped.answer.status, 503, "{}", stopped.text);
    assert!(
        stopped.text.contains("nothing was changed"),
        "{}",
        stopped.text
    );
    let page = Page::with(&member.site, "/tubes", &["Authorization: Bearer master"]);
    assert!(
        page.text.contains("which leads its cluster"),
        "{}",
        page.text
    );
}

#[test]
fn without_its_leader_a_member_shows_its_own_copy_until_another_one_leads() {
    let nodes = Node::three(None);
    unite(&nodes);
    let [leader, member, other] = &nodes;
    let (was, address) = (leader.id(), leader.site.address);
    leader.site.server.signal(Signal::KILL);
    wait_until("the leader is gone", || {
        std::net::TcpStream::connect(address).is_err()
    });
    let page = Page::shown(&member.site, "/tubes");
    let own = format!("This is its own copy: the leader at http://{address} does not answer this");
    let after = [
        "No leader is known",
        "which leads its cluster",
        "This member leads",
    ];
    let is_after = after.iter().any(|words| page.text.contains(words));
    assert!(page.text.contains(&own) || is_after, "{}", page.text);
    let leads = |node: &Node| node.standing() == "leader";
    wait_within(SOON, "another one leads", || leads(member) || leads(other));
    let (leader, member) = if leads(member) {
        (member, other)
    } else {
        (other, member)
    };
    let words = from(leader, member);
    assert!(!words.contains(&format!("From member {was}")));
    wait_within(SOON, "its pages are shown", || {
        Page::of(&member.site, "/tubes").text.contains(&words)
    });
}

/// A member whose HTTP and whose links are encrypted.
struct Encrypted {
    _server: Server,
    at: SocketAddr,
    peer: SocketAddr,
    _dir: TempDir,
}

impl Encrypted {
    /// Browsers know the authority of `doors`, members that of `house`, if they have one.
    fn start(doors: &House, house: Option<&House>) -> Encrypted {
        // A certificate names one address for all.
        let (dir, peer) = (TempDir::new().unwrap(), peer_address(0));
        let launch = Launch::bsd().dir(&dir.path().join("log"));
        let launch = launch.arg(format!("--cluster={peer}"));
        let files = [
            ("--cluster-cert", "cert.pem"),
            ("--cluster-key", "key.pem"),
            ("--cluster-ca", "ca.pem"),
        ];
        let launch = house.into_iter().fold(launch, |launch, house| {
            files.iter().fold(launch, |launch, (flag, name)| {
                launch.arg(flag).arg(house.path(name))
            })
        });
        let (server, at) = http_tls::spawn(doors, launch);
        Encrypted {
            _server: server,
            at,
            peer,
            _dir: dir,
        }
    }

    fn ask(&self, doors: &House, line: &str, body: &str) -> Answer {
        let mut stream = http_tls::connect(self.at, doors.client());
        let fields = format!("{HTML}\r\nContent-Type: application/json\r\n");
        http_tls::ask(&mut stream, line, &fields, body).unwrap()
    }

    fn page(&self, doors: &House) -> String {
        String::from_utf8(self.ask(doors, "GET /tubes", "").body).unwrap()
    }

    fn standing(&self, doors: &House) -> String {
        let report = self.ask(doors, "GET /api/v1/cluster", "").json();
        report["standing"].as_str().unwrap().to_owned()
    }
}

/// Two members, of which the first one leads.
fn two(doors: &House, house: Option<&House>) -> [Encrypted; 2] {
    let pair = [(); 2].map(|()| Encrypted::start(doors, house));
    let [leader, member] = &pair;
    let begun = leader.ask(doors, "POST /api/v1/cluster/init", "{}");
    assert_eq!(begun.status, 202, "{begun:?}");
    wait_within(SOON, "it leads", || leader.standing(doors) == "leader");
    let join = json!({"address": leader.peer.to_string()}).to_string();
    let asked = member.ask(doors, "POST /api/v1/cluster/join", &join);
    assert_eq!(asked.status, 202, "{asked:?}");
    wait_within(SOON, "it follows", || {
        let report = member.ask(doors, "GET /api/v1/cluster", "").json();
        report["standing"] == "follower" && report["leader"]["http"].is_string()
    });
    pair
}

#[test]
fn pages_come_from_a_leader_over_tls_by_the_certificates_of_the_members() {
    let (doors, house) = (House::new(), House::new());
    let host = peer_address(0).ip().to_string();
    house.certify_for("a member", &[host, "localhost".to_owned()]);
    let [leader, member] = &two(&doors, Some(&house));
    let page = member.page(&doors);
    assert!(page.contains("which leads its cluster"), "{page}");
    assert!(leader.page(&doors).contains("This member leads"));
}

#[test]
fn a_leader_over_tls_that_cannot_be_checked_is_not_asked() {
    let doors = House::new();
    let [_, member] = &two(&doors, None);
    let page = member.page(&doors);
    assert!(page.contains("This is its own copy: "), "{page}");
    assert!(page.contains("no --cluster-cert"), "{page}");
}
