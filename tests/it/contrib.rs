//! The alert rules and the dashboard of `contrib`: they are valid, they name what the server
//! exports, and each alert fires in a real Prometheus when what it is about happens to a real server.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::ROOT;
use crate::faults::{SmallDisk, fill};
use crate::harness::{Launch, bsd_wal, program, skip, wait_until, wait_until_it_is};
use crate::http::Site;
use crate::prometheus::Prometheus;
use crate::strace::{Tracer, end_tracer_of, is_permitted};
use crate::tls::House;
use crate::wire::{Wire, put_command};

const RULES: &str = "contrib/prometheus/bsd.rules.yml";
const UNIT_TESTS: [&str; 2] = [
    "contrib/prometheus/bsd.test.yml",
    "contrib/prometheus/bsd.months.test.yml",
];
/// How long a sync takes on a disk that is slow, microseconds, and a call of one that does not answer:
/// longer than the test.
const SLOW_US: u64 = 600_000;
const NO_ANSWER_US: u64 = 90_000_000;
/// Alerts that also fire when the machine is busy: they count only for servers that are to have them.
const OF_THE_MACHINE: [&str; 1] = ["BsdSyncSlow"];
/// How often something is put, so that there is something to sync.
const PUT_EVERY: Duration = Duration::from_millis(250);
const DASHBOARD: &str = "contrib/grafana/bsd.json";

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// The rest of the lines that begin with this, blanks apart.
fn values<'a>(text: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = text.lines().map(str::trim);
    lines.filter_map(move |line| line.strip_prefix(begin))
}

fn alerts() -> Vec<String> {
    let rules = text(RULES);
    let found: Vec<String> = values(&rules, "- alert: ").map(str::to_owned).collect();
    assert!(found.len() >= 9, "{found:?}");
    found
}

fn promtool(args: &[&str]) {
    let Some(promtool) = program("promtool") else {
        return skip("promtool is not installed");
    };
    let output = Command::new(promtool)
        .args(args)
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
}

#[test]
fn the_rules_are_valid_and_each_fires_and_does_not_fire_in_its_unit_tests() {
    promtool(&["check", "rules", RULES]);
    for tests in UNIT_TESTS {
        promtool(&["test", "rules", tests]);
    }
    let tests = UNIT_TESTS.map(text).concat();
    let page = text("docs/admin.md");
    for alert in alerts() {
        let cases = tests.split("- alertname: ").skip(1);
        let cases: Vec<&str> = cases
            .filter(|case| case.lines().next() == Some(&alert))
            .collect();
        let silent = cases.iter().filter(|case| case.contains("exp_alerts: []"));
        assert_eq!((cases.len(), silent.count()), (2, 1), "{alert}");
        let row = format!("| `{alert}` |");
        assert!(page.contains(&row), "{alert} is not in docs/admin.md");
    }
}

/// A server with a log and an archive.
fn archived(dir: &TempDir) -> Launch {
    let archive = dir.path().join("archive");
    fs::create_dir(&archive).unwrap();
    Launch::bsd()
        .dir(&dir.path().join("log"))
        .arg("--archive")
        .arg(format!("file://{}", archive.display()))
}

/// A server, a standby of it, and a member of a cluster.
fn with_standby(dir: &TempDir) -> Vec<Site> {
    let first = Site::start(archived(dir));
    vec![first, standby(dir), member(dir)]
}

/// The only member of a cluster.
fn member(dir: &TempDir) -> Site {
    let peer = crate::harness::peer_address(0).to_string();
    let launch = Launch::bsd().dir(&dir.path().join("member"));
    Site::start(launch.args(["--cluster", &peer, "--cluster-init"]))
}

/// A standby of the server that [`archived`] launches.
fn standby(dir: &TempDir) -> Site {
    let url = format!("file://{}", dir.path().join("archive").display());
    let launch = Launch::bsd().dir(&dir.path().join("copy"));
    Site::of(crate::archive::follow(launch.args(["--follow", &url])))
}

/// The expressions of all panels, with the variables of the dashboard filled in.
fn expressions() -> Vec<String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                if let Some(Value::String(expression)) = object.get("expr") {
                    let expression = expression.replace("$__rate_interval", "1m");
                    found.push(expression.replace("$instance", ".*").replace("$tube", ".*"));
                }
                object.values().for_each(|value| collect(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(&serde_json::from_str(&text(DASHBOARD)).unwrap(), &mut found);
    assert!(found.len() > 30, "{found:?}");
    found
}

#[test]
fn the_expressions_of_the_dashboard_are_valid() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("rules.json");
    let rule = |(nth, expression): (usize, String)| {
        assert!(!expression.contains('$'), "{expression}");
        serde_json::json!({"record": format!("panel_{nth}"), "expr": expression})
    };
    let rules: Vec<Value> = expressions().into_iter().enumerate().map(rule).collect();
    let rules = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(&file, rules.to_string()).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()]);
}

/// The metrics of a text, each with what stands there.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_part(letter));
    words
        .filter(|word| word.starts_with("bsd_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

/// The names of all samples and families of servers of each kind.
fn exported() -> BTreeSet<String> {
    let dir = TempDir::new().unwrap();
    #[allow(unused_mut, reason = "without TLS there is no other")]
    let mut sites = with_standby(&dir);
    sites.push(Site::start(
        House::new().launch().memory().args(["--max-memory", "1g"]),
    ));
    tell_of_checks(&sites[0], false);
    // Before its first reserve a tube has no histograms.
    let mut wire = sites[0].server.connect();
    wire.put(b"body");
    wire.reserve();
    let page = |site: &Site| String::from_utf8(site.get("/metrics").body).unwrap();
    let pages: String = sites.iter().map(page).collect();
    let lines = pages
        .lines()
        .filter_map(|line| match line.strip_prefix("# ") {
            Some(comment) => comment.strip_prefix("TYPE "),
            None => Some(line),
        });
    lines.flat_map(metrics_in).collect()
}

/// The pages of the handbook, each with its name.
fn pages() -> Vec<(String, String)> {
    let docs = Path::new(ROOT).join("docs");
    let entries = fs::read_dir(docs).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names = names.filter(|name| name.ends_with(".md"));
    let names = names.map(|name| format!("docs/{name}"));
    let names = names.chain(["README.md".to_owned()]);
    names.map(|name| (name.clone(), text(&name))).collect()
}

#[test]
fn each_metric_that_a_page_names_is_exported() {
    let exported = exported();
    // A name that ends so stands for all that begin with it.
    let exists = |name: &String| match name.ends_with('_') {
        true => exported.iter().any(|it| it.starts_with(name)),
        false => exported.contains(name),
    };
    let (mut seen, mut missing) = (0, Vec::new());
    for (page, text) in pages() {
        let spans = text.split('`').skip(1).step_by(2);
        let names: BTreeSet<String> = spans.flat_map(metrics_in).collect();
        seen += names.len();
        missing.extend(
            names
                .iter()
                .filter(|it| !exists(it))
                .map(|it| format!("{page}: {it}")),
        );
    }
    assert!(seen > 80, "{seen}");
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn each_alert_that_a_page_names_exists_and_each_alert_is_on_a_page() {
    let alerts: BTreeSet<String> = alerts().into_iter().collect();
    let mut named = BTreeSet::new();
    for (_, text) in pages() {
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
        let is_alert = |word: &&str| {
            let rest = word.strip_prefix("Bsd").unwrap_or_default();
            // An exception of a client is called so too.
            rest.starts_with(|letter: char| letter.is_ascii_uppercase()) && *word != "BsdError"
        };
        named.extend(words.filter(is_alert).map(str::to_owned));
    }
    assert_eq!(named, alerts);
}

#[test]
fn rules_and_dashboard_name_only_what_the_server_exports() {
    let exported = exported();
    let rules = text(RULES);
    let of_rules = values(&rules, "expr: ").map(str::to_owned);
    let all = expressions().into_iter().chain(of_rules);
    for expression in all {
        let names = metrics_in(&expression);
        assert!(
            names.iter().all(|name| exported.contains(name)),
            "{expression}"
        );
        assert!(!names.is_empty() || expression.starts_with("up{"));
    }
}

/// A server, and the alert that is to fire for it.
struct Case {
    site: Site,
    alert: Option<&'static str>,
    /// Others that fire for it too.
    more: &'static [&'static str],
    /// Values that must outlive it.
    _with: Vec<Box<dyn std::any::Any>>,
}

impl Case {
    fn of(launch: Launch, alert: Option<&'static str>) -> Case {
        Case::at(Site::start(launch), alert)
    }

    fn at(site: Site, alert: Option<&'static str>) -> Case {
        Case {
            site,
            alert,
            more: &[],
            _with: Vec::new(),
        }
    }

    fn with(mut self, what: impl std::any::Any) -> Case {
        self._with.push(Box::new(what));
        self
    }
}

/// The alerts without the time for which they must hold, and with a minute that is short.
fn at_once() -> String {
    let rules = text(RULES);
    let lines = rules
        .lines()
        .map(|line| match line.trim().starts_with("for: ") {
            true => "        for: 0s",
            false => line,
        });
    let rules: String = lines.map(|line| format!("{line}\n")).collect();
    assert!(rules.contains("[1m]"));
    assert!(rules.contains("bsd_archive_lag_seconds > 60"));
    let rules = rules.replace(
        "bsd_archive_lag_seconds > 60",
        "bsd_archive_lag_seconds > 5",
    );
    rules.replace("[1m]", "[10s]")
}

fn prometheus(cases: &[Case]) -> Option<Prometheus> {
    let targets: Vec<SocketAddr> = cases.iter().map(|case| case.site.address).collect();
    let prometheus = Prometheus::start(&targets, &at_once())?;
    for target in targets {
        wait_until("every server was scraped", || {
            prometheus.scrape_error(target).is_some()
        });
    }
    Some(prometheus)
}

/// The alerts that are to fire, each with the server that it is about, in order.
fn expected(cases: &[Case]) -> Vec<(String, String)> {
    let of_case = |case: &Case| {
        let address = case.site.address.to_string();
        let alerts = case.alert.iter().chain(case.more);
        let alerts = alerts.map(|alert| ((*alert).to_owned(), address.clone()));
        alerts.collect::<Vec<_>>()
    };
    let mut expected: Vec<(String, String)> = cases.iter().flat_map(of_case).collect();
    expected.sort();
    expected
}

/// Wait until these alerts fire, and no others do.
fn assert_fires(prometheus: &Prometheus, cases: &[Case]) {
    let expected = expected(cases);
    wait_until_it_is(&expected, "the alerts that fire", || {
        let mut firing = prometheus.firing();
        firing.retain(|it| expected.contains(it) || !OF_THE_MACHINE.contains(&it.0.as_str()));
        firing
    });
}

fn memory() -> Launch {
    Launch::bsd().memory()
}

/// A server on the log that others would have left behind: this is done with one, and what it dumps is
/// changed.
fn with_a_past(
    happen: impl FnOnce(&mut Wire),
    change: impl FnOnce(&str) -> String,
    alert: &'static str,
) -> Case {
    let dir = TempDir::new().unwrap();
    let (log, old) = (dir.path().join("log"), dir.path().join("old"));
    let server = Launch::bsd().dir(&log).start();
    happen(&mut server.connect());
    assert_eq!(server.stop().code, Some(0));
    let wal = |args: &[&Path], input: Stdio| {
        let mut command = Command::new(bsd_wal());
        let output = command.args(args).stdin(input).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let dump = wal(&["dump".as_ref(), &log, "--json".as_ref()], Stdio::null());
    let file = dir.path().join("jobs");
    fs::write(&file, change(&dump)).unwrap();
    wal(
        &["load".as_ref(), &file, "--output".as_ref(), &old],
        Stdio::null(),
    );
    Case::of(Launch::bsd().dir(&old), Some(alert)).with(dir)
}

/// A dump in which the first value of this name is another one.
fn with_value(dump: &str, name: &str, value: &str) -> String {
    let name = format!("\"{name}\":\"");
    let (before, rest) = dump.split_once(&name).unwrap();
    let (_, after) = rest.split_once('"').unwrap();
    format!("{before}{name}{value}\"{after}")
}

/// A server with a job that was put an hour ago.
fn with_an_old_job() -> Case {
    let put = |wire: &mut Wire| _ = wire.put(b"body");
    let change = |dump: &str| with_value(dump, "created", "2026-01-31T12:00:00Z");
    with_a_past(put, change, "BsdJobWaitsLong")
}

/// A server that was down at the turn of a year.
fn with_a_missed_firing() -> Case {
    let set = |wire: &mut Wire| {
        let set = "schedule-set year 0 cron=0_0_1_1_* tube=default\r\n";
        assert_eq!(wire.ask(set), "SCHEDULE_SET");
    };
    let change = |dump: &str| {
        let lines = dump.lines().map(|line| match line.contains("\"fired\"") {
            true => with_value(line, "value", "1600000000000000000"),
            false => line.to_owned(),
        });
        lines.map(|line| format!("{line}\n")).collect()
    };
    with_a_past(set, change, "BsdScheduleMissed")
}

/// A server with a schedule that puts into a tube which takes nothing. (So few firings that none is given
/// up while the test goes on.)
fn with_a_schedule_that_waits() -> Case {
    let case = Case::of(memory(), Some("BsdScheduleWaits"));
    let mut wire = case.site.server.connect();
    assert_eq!(wire.ask("set-policy full max-jobs=0"), "POLICY_SET");
    let set = "schedule-set often 0 cron=*/10_*_*_*_*_* tube=full\r\n";
    assert_eq!(wire.ask(set), "SCHEDULE_SET");
    case
}

/// A server that was told of a backup, and of a verification that found damage.
fn badly_checked(dir: &TempDir) -> Case {
    let case = Case::of(Launch::bsd().dir(dir.path()), Some("BsdCheckFailed"));
    tell_of_checks(&case.site, true);
    case
}

fn tell_of_checks(site: &Site, has_failed: bool) {
    for (check, failed) in [
        ("backup", false),
        ("verify", has_failed),
        ("rehearsal", false),
    ] {
        let told = serde_json::json!({"check": check, "failed": failed});
        let answer = site.change("post", "/api/v1/log/checks", &told);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

fn drained() -> Case {
    let case = Case::of(memory(), Some("BsdDrainsLong"));
    case.site.server.signal(Signal::USR1);
    case
}

fn full_of_memory() -> Case {
    let launch = memory().arg("--max-memory").arg("1m");
    let mut case = Case::of(launch, Some("BsdMemoryFull"));
    case.more = &["BsdMemoryHigh"];
    fill(&mut case.site.server.connect(), 10_000);
    case
}

/// Some of everything.
fn busy() -> Vec<Case> {
    let dir = TempDir::new().unwrap();
    let sites = with_standby(&dir).into_iter();
    let mut cases: Vec<Case> = sites.map(|site| Case::at(site, None)).collect();
    let mut wire = cases[0].site.server.connect();
    for _ in 0..5 {
        wire.put(b"body");
    }
    let id = wire.reserve();
    assert_eq!(wire.ask(&format!("delete {id}")), "DELETED");
    let first = cases.remove(0).with(dir).with(wire);
    cases.insert(0, first);
    cases
}

#[test]
fn alerts_fire_for_what_happens_to_the_queue_and_every_panel_shows_something() {
    let mut cases = busy();
    let grows = Case::of(memory(), Some("BsdBuriedGrows"));
    let buried = grows.site.server.connect();
    let checked = TempDir::new().unwrap();
    cases.extend([with_an_old_job(), drained(), full_of_memory()]);
    cases.extend([badly_checked(&checked), grows, unwatched()]);
    let hangs = Case::of(memory(), Some("BsdJobTimeouts"));
    let hanging = hangs.site.server.connect();
    cases.push(hangs);
    let poisoned = Case::of(memory(), Some("BsdDeadLetters"));
    let mut poison = poisoned.site.server.connect();
    let policy = "set-policy default delivery-limit=1 dead-letter=delete";
    assert_eq!(poison.ask(policy), "POLICY_SET");
    // The first sample of a counter is no rate.
    set_aside(&mut poison, 1);
    cases.push(poisoned);
    let dying = Case::of(memory(), Some("BsdDeadLettersGrow"));
    let mut dead = dying.site.server.connect();
    let policy = "set-policy default delivery-limit=1 dead-letter=dead";
    assert_eq!(dead.ask(policy), "POLICY_SET");
    set_aside(&mut dead, 1);
    cases.push(dying);
    cases.last_mut().unwrap().more = &["BsdDeadLetters", "BsdFailuresGrow"];
    let fails = Case::of(memory(), Some("BsdFailuresGrow"));
    let mut failing = fails.site.server.connect();
    let policy = "set-policy default delivery-limit=1000";
    assert_eq!(failing.ask(policy), "POLICY_SET");
    fail(&mut failing, 1);
    cases.push(fails);
    cases.extend([with_a_missed_firing(), with_a_schedule_that_waits()]);
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    let healthy = cases[0].site.address;
    assert_eq!(prometheus.scrape_error(healthy).as_deref(), Some(""));
    // Only OpenMetrics has information as a type of its own.
    wait_until("it is known what the metrics are", || {
        prometheus.get("/api/v1/metadata?metric=bsd")["bsd"][0]["type"] == "info"
    });
    bury(buried, 20);
    set_aside(&mut poison, 20);
    set_aside(&mut dead, 20);
    fail(&mut failing, 20);
    let _hanging = let_time_out(hanging, 20);
    assert_fires(&prometheus, &cases);
    for expression in &expressions() {
        wait_until(&format!("{expression} has a value"), || {
            !prometheus.query(expression).is_empty()
        });
    }
}

/// A server with a job in a tube that no one watches.
fn unwatched() -> Case {
    let case = Case::of(memory(), Some("BsdNoWorkers"));
    let mut wire = case.site.server.connect();
    assert_eq!(wire.ask("use mail"), "USING mail");
    wire.put(b"body");
    case
}

/// Reserve this many jobs, each for a second, and do nothing with them.
fn let_time_out(mut wire: Wire, count: usize) -> Wire {
    for _ in 0..count {
        wire.send("put 0 0 1 4\r\nbody\r\n");
        assert!(wire.text().starts_with("INSERTED"));
        wire.reserve();
    }
    wire
}

/// This many jobs fail as often as they may.
fn set_aside(wire: &mut Wire, count: usize) {
    for _ in 0..count {
        let id = wire.put(b"body");
        assert_eq!(wire.reserve(), id);
        assert_eq!(wire.ask(&format!("release {id} 0 0")), "RELEASED");
    }
}

/// A job fails this often, and is ready again.
fn fail(wire: &mut Wire, count: usize) {
    wire.put(b"body");
    for _ in 0..count {
        let id = wire.reserve();
        assert_eq!(wire.ask(&format!("release {id} 0 0")), "RELEASED");
    }
}

fn bury(mut wire: Wire, count: usize) {
    for _ in 0..count {
        wire.put(b"body");
        let id = wire.reserve();
        assert_eq!(wire.ask(&format!("bury {id} 0")), "BURIED");
    }
}

/// One server whose store is away, and which holds nothing for it, and its standby; another whose
/// store is well.
#[test]
fn alerts_fire_for_an_archive_that_is_away_behind_and_has_a_gap() {
    use crate::archive_seen::{Away, archived_at};
    let (well, dir) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let away = Away::new(dir.path());
    let launch = archived_at(&dir.path().join("log"), &away.url()).args([
        "-s",
        "65536",
        "--archive-hold-max",
        "1",
    ]);
    let mut case = Case::of(launch, Some("BsdArchiveDown"));
    case.more = &["BsdArchiveLags", "BsdArchiveGap"];
    let copied = dir.path().join("copy");
    let follow = Launch::bsd().dir(&copied).args(["--follow", &away.url()]);
    let follow = crate::archive::follow(follow.args(["--archive-interval", "20"]));
    let cases = [
        case,
        Case::at(Site::of(follow), Some("BsdStandbyLags")),
        Case::of(archived(&well), None),
    ];
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    let gauge = |name: &str| format!("{name}{{instance=\"{}\"}} == 1", cases[0].site.address);
    wait_until("the archive is written", || {
        !prometheus.query(&gauge("bsd_archive_up")).is_empty()
    });
    assert_fires_nothing(&prometheus);
    away.go();
    let mut wire = cases[0].site.server.connect();
    for _ in 0..10 {
        wire.put(&[b'x'; 60_000]);
    }
    assert_fires(&prometheus, &cases);
    away.come_back();
    assert_fires_nothing(&prometheus);
}

#[test]
fn an_alert_fires_for_a_server_that_has_gone() {
    let cases = [
        Case::of(memory(), None),
        Case::of(memory(), Some("BsdDown")),
    ];
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    assert_fires_nothing(&prometheus);
    cases[1].site.server.signal(Signal::KILL);
    assert_fires(&prometheus, &cases);
}

fn assert_fires_nothing(prometheus: &Prometheus) {
    assert_fires(prometheus, &[]);
}

/// Three members: one goes, and then the next one.
#[test]
fn alerts_fire_for_a_cluster_that_has_lost_a_member_and_one_that_has_no_leader() {
    let dir = TempDir::new().unwrap();
    let peers = [0, 1, 2].map(|nth| crate::harness::peer_address(nth).to_string());
    let cases = [0, 1, 2].map(|nth| {
        let [own, first] = [&peers[nth], &peers[0]];
        let launch = Launch::bsd().dir(&dir.path().join(nth.to_string()));
        let launch = launch.args(["--cluster", own, "--http", "127.0.0.1:0"]);
        let launch = match nth {
            0 => launch.arg("--cluster-init"),
            _ => launch.args(["--cluster-join", first]),
        };
        // Only the leader answers as itself.
        Case::at(Site::of(launch.spawn_bound()), None)
    });
    wait_until("three members vote", || {
        let report = cases[0].site.get("/api/v1/cluster").json();
        let members = report["members"].as_array().cloned().unwrap_or_default();
        members.iter().filter(|it| it["votes"] == true).count() == 3
    });
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    assert_fires_nothing(&prometheus);
    let [mut first, mut second, mut third] = cases;
    third.site.server.signal(Signal::KILL);
    third.alert = Some("BsdDown");
    first.alert = Some("BsdClusterMemberAway");
    let cases = [first, second, third];
    assert_fires(&prometheus, &cases);
    [first, second, third] = cases;
    second.site.server.signal(Signal::KILL);
    second.alert = Some("BsdDown");
    first.alert = Some("BsdClusterNoLeader");
    assert_fires(&prometheus, &[first, second, third]);
}

/// A process that is stopped altogether cannot say so.
#[test]
fn an_alert_fires_for_a_server_that_is_stopped_and_goes_away_when_it_goes_on() {
    let cases = [Case::of(memory(), Some("BsdDown"))];
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    cases[0].site.server.signal(Signal::STOP);
    assert_fires(&prometheus, &cases);
    cases[0].site.server.signal(Signal::CONT);
    assert_fires_nothing(&prometheus);
}

#[test]
fn an_alert_fires_for_a_full_disk_and_goes_away_when_there_is_room() {
    let (Some(disk), Some(launch)) = (SmallDisk::mount("8m"), Launch::bsd_alone()) else {
        return;
    };
    let launch = launch.dir(&disk.path().join("log")).arg("-s").arg("256k");
    let cases = [Case::of(launch, Some("BsdDiskFull"))];
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    let mut wire = cases[0].site.server.connect();
    let ids = fill(&mut wire, 20_000);
    assert_fires(&prometheus, &cases);
    crate::faults::delete_all(&mut wire, &ids);
    wait_until("nothing fires", || {
        wire.try_put(b"x");
        let firing = prometheus.firing();
        firing
            .iter()
            .all(|it| OF_THE_MACHINE.contains(&it.0.as_str()))
    });
}

#[test]
fn g32_an_alert_fires_for_a_certificate_that_is_over() {
    let (fresh, over) = (House::new(), House::new());
    let old = over.authority.issue_until("the server", 2020);
    old.be_the_servers(&over);
    let cases = [
        Case::of(fresh.launch().memory(), None),
        Case::of(over.launch().memory(), Some("BsdCertificateEnds")),
    ];
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    assert_fires(&prometheus, &cases);
}

/// The disk answers late, or not at all: beside the loop, and in it.
#[test]
fn alerts_fire_for_a_disk_that_is_slow_or_does_not_answer() {
    let Some(launch) = Launch::bsd_alone().filter(|_| is_permitted()) else {
        return;
    };
    let traced = |policy: &str, call: &str, inject: &str, alert| {
        let dir = TempDir::new().unwrap();
        let tracer = Tracer::of(call).inject(&format!("{call}:{inject}"));
        let launch = launch.clone().dir(&dir.path().join("log"));
        let case = Case::of(tracer.wrap(launch.arg("-f").arg(policy)), Some(alert));
        case.with(tracer).with(dir)
    };
    let slow = format!("delay_enter={SLOW_US}");
    // A start has some of these calls, and they are counted for each thread.
    let no_answer = format!("delay_enter={NO_ANSWER_US}:when=20+");
    // Where syncs take long, a thread beside the loop does them; writes are always the loop's.
    let cases = [
        traced("1", "fdatasync", &slow, "BsdSyncSlow"),
        traced("1", "fdatasync", &no_answer, "BsdSyncLags"),
        traced("0", "pwrite64", &no_answer, "BsdLoopStuck"),
    ];
    let Some(prometheus) = prometheus(&cases) else {
        return;
    };
    let mut wires: Vec<_> = cases.iter().map(|it| it.site.server.connect()).collect();
    let expected = expected(&cases);
    wait_until_it_is(&expected, "the alerts that have fired", || {
        for wire in &mut wires {
            // Of the replies none is waited for.
            let _ = wire.try_send(&put_command(0, 0, b"x"));
        }
        std::thread::sleep(PUT_EVERY);
        let mut fired = prometheus.ever_fired();
        fired.retain(|it| expected.contains(it));
        fired
    });
    // What is being delayed does not end before its delay is over.
    cases
        .iter()
        .for_each(|it| end_tracer_of(it.site.server.id()));
}
