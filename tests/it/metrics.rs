//! `/metrics`: both formats are what their specifications say, and what stands there is what the
//! protocol says.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::clients::python_with;
use crate::harness::{Launch, program, skip, wait_until, wait_until_it_is};
use crate::http::Site;
use crate::wire::Wire;

const OPEN_METRICS: &str = "Accept: application/openmetrics-text; version=1.0.0";

/// A page, checked against what both formats want, and its samples by name and labels.
#[derive(Debug)]
struct Page {
    text: String,
    samples: BTreeMap<String, f64>,
}

impl Page {
    fn of(site: &Site) -> Page {
        let answer = site.get("/metrics");
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        assert_eq!(
            (answer.status, answer.field("content-type")),
            (200, Some(kind))
        );
        Page::read(answer.body, false)
    }

    fn of_open_metrics(site: &Site) -> Page {
        let answer = site.send("GET /metrics", &[OPEN_METRICS], b"");
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        assert_eq!(
            (answer.status, answer.field("content-type")),
            (200, Some(kind))
        );
        Page::read(answer.body, true)
    }

    fn read(body: Vec<u8>, is_open: bool) -> Page {
        let text = String::from_utf8(body).unwrap();
        assert_eq!(text.ends_with("# EOF\n"), is_open);
        assert!(text.ends_with('\n') && !text.contains("\n\n"));
        let mut reader = Reader::new(is_open);
        text.lines().for_each(|line| reader.take(line));
        reader.check_histograms();
        Page {
            text,
            samples: reader.samples,
        }
    }

    fn value(&self, series: &str) -> f64 {
        let found = self.samples.get(series);
        *found.unwrap_or_else(|| panic!("no {series} in\n{}", self.text))
    }
}

/// The format check.
struct Reader {
    is_open: bool,
    family: String,
    kind: String,
    families: BTreeSet<String>,
    samples: BTreeMap<String, f64>,
    histograms: Vec<String>,
}

impl Reader {
    fn new(is_open: bool) -> Reader {
        Reader {
            is_open,
            family: String::new(),
            kind: String::new(),
            families: BTreeSet::new(),
            samples: BTreeMap::new(),
            histograms: Vec::new(),
        }
    }

    fn take(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(help.ends_with('.') && !help.contains('\\'), "{line}");
            assert!(
                self.families.insert(name.to_owned()),
                "a family twice: {line}"
            );
            assert!(is_name(name), "{line}");
            name.clone_into(&mut self.family);
            self.kind.clear();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!((name, &*self.kind), (&*self.family, ""), "{line}");
            let is_total = name.ends_with("_total");
            assert_eq!(is_total, kind == "counter" && !self.is_open, "{line}");
            let is_known = ["counter", "gauge", "histogram"].contains(&kind);
            assert!(is_known || self.is_open && kind == "info", "{line}");
            kind.clone_into(&mut self.kind);
            if kind == "histogram" {
                self.histograms.push(name.to_owned());
            }
        } else if line != "# EOF" {
            self.take_sample(line);
        }
    }

    fn take_sample(&mut self, line: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap()),
            None => (series, ""),
        };
        let suffix = name.strip_prefix(&*self.family);
        let suffix = suffix.unwrap_or_else(|| panic!("{line} in {}", self.family));
        let allowed: &[&str] = match (&*self.kind, self.is_open) {
            ("counter", true) => &["_total"],
            ("info", true) => &["_info"],
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        assert!(allowed.contains(&suffix), "{line} in {}", self.family);
        check_labels(labels);
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        assert!(value.is_finite() && value >= 0.0, "{line}");
        let is_new = self.samples.insert(series.to_owned(), value).is_none();
        assert!(is_new, "a series twice: {line}");
    }

    fn check_histograms(&self) {
        assert!(self.histograms.len() >= 5, "{:?}", self.histograms);
        for name in &self.histograms {
            let prefix = format!("{name}_bucket{{");
            // By the labels that are not the bound, which is the last.
            let mut all: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
            for (series, count) in &self.samples {
                let Some(labels) = series.strip_prefix(&prefix) else {
                    continue;
                };
                let (others, bound) = labels.rsplit_once("le=\"").unwrap();
                let bound = bound.strip_suffix("\"}").unwrap().replace("+Inf", "inf");
                let others = others.trim_end_matches(',');
                let buckets = all.entry(others).or_default();
                buckets.push((bound.parse().unwrap(), *count));
            }
            // Only tubes may have none yet.
            assert!(!all.is_empty() || name.starts_with("bsd_tube_"), "{name}");
            for (labels, mut buckets) in all {
                buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
                assert!(buckets.is_sorted_by(|one, other| one.0 < other.0 && one.1 <= other.1));
                let (last, count) = *buckets.last().unwrap();
                assert!(last.is_infinite());
                let labels = match labels {
                    "" => String::new(),
                    labels => format!("{{{labels}}}"),
                };
                assert_eq!(count, self.samples[&format!("{name}_count{labels}")]);
                assert!(self.samples.contains_key(&format!("{name}_sum{labels}")));
            }
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.bytes().all(is_word) && name.as_bytes()[0].is_ascii_lowercase()
}

/// `name="value",…`, with nothing in a value that is not escaped.
fn check_labels(labels: &str) {
    let mut rest = labels;
    while !rest.is_empty() {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{labels}"));
        assert!(is_name(name.trim_start_matches(',')), "{labels}");
        let mut is_escaped = false;
        let end = value.find(|char| match char {
            _ if is_escaped => {
                is_escaped = false;
                false
            }
            '\\' => {
                is_escaped = true;
                false
            }
            other => other == '"',
        });
        rest = &value[end.unwrap_or_else(|| panic!("{labels}")) + 1..];
    }
}

fn memory() -> Launch {
    Launch::bsd().memory()
}

/// A server with a log in a directory that goes with it, some of everything, and a client that has a
/// job reserved.
fn busy() -> (TempDir, Site, Wire) {
    let dir = TempDir::new().unwrap();
    let site = Site::start(Launch::bsd().dir(&dir.path().join("log")));
    let mut wire = site.server.connect();
    wire.ask("use a-tube");
    for _ in 0..7 {
        wire.put(b"body");
    }
    wire.ask("watch a-tube");
    for _ in 0..4 {
        wire.reserve();
    }
    assert_eq!(wire.ask("delete 1"), "DELETED");
    assert_eq!(wire.ask("release 2 5 100"), "RELEASED");
    assert_eq!(wire.ask("bury 3 5"), "BURIED");
    wire.ask("pause-tube a-tube 1000");
    wire.ask("stats-tube a-tube");
    (dir, site, wire)
}

#[test]
fn both_formats_are_as_specified() {
    let (_dir, site, _wire) = busy();
    let names = |page: &Page| page.samples.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(
        names(&Page::of(&site)),
        names(&Page::of_open_metrics(&site))
    );
}

/// Numbers of `stats`, and their names here.
const KEYS: [(&str, &str); 29] = [
    ("current-jobs-urgent", "bsd_urgent_jobs"),
    ("current-jobs-ready", "bsd_jobs{state=\"ready\"}"),
    ("current-jobs-reserved", "bsd_jobs{state=\"reserved\"}"),
    ("current-jobs-delayed", "bsd_jobs{state=\"delayed\"}"),
    ("current-jobs-buried", "bsd_jobs{state=\"buried\"}"),
    ("job-timeouts", "bsd_job_timeouts_total"),
    ("total-jobs", "bsd_puts_total"),
    ("max-job-size", "bsd_job_size_max_bytes"),
    ("current-tubes", "bsd_tubes"),
    ("current-connections", "bsd_connections"),
    ("current-producers", "bsd_producers"),
    ("current-workers", "bsd_workers"),
    ("current-waiting", "bsd_waiting"),
    ("total-connections", "bsd_connections_opened_total"),
    ("rusage-utime", "bsd_cpu_seconds_total{mode=\"user\"}"),
    ("rusage-stime", "bsd_cpu_seconds_total{mode=\"system\"}"),
    ("uptime", "bsd_uptime_seconds"),
    ("binlog-oldest-index", "bsd_log_first_segment"),
    ("binlog-current-index", "bsd_log_current_segment"),
    ("binlog-records-migrated", "bsd_log_records_migrated_total"),
    ("binlog-records-written", "bsd_log_records_written_total"),
    ("binlog-max-size", "bsd_log_segment_max_bytes"),
    ("draining", "bsd_draining"),
    ("disk-full", "bsd_disk_full"),
    ("disk-missing-bytes", "bsd_disk_missing_bytes"),
    ("memory-full", "bsd_memory_full"),
    ("memory-missing-bytes", "bsd_memory_missing_bytes"),
    ("version", "bsd_info"),
    ("pid", "bsd_info"),
];

/// Figures that grow when they are looked at: the session that asks, time, and the cost of a
/// request.
const MOVING: [&str; 9] = [
    "current-connections",
    "total-connections",
    "rusage-utime",
    "rusage-stime",
    "uptime",
    "draining",
    "version",
    "pid",
    "cmd-stats",
];

#[test]
fn every_key_of_stats_is_a_metric_with_its_value() {
    let (_dir, site, _wire) = busy();
    let mut wire = site.server.connect();
    // The log may write a record of its own between the two.
    wait_until_it_is(&Vec::<String>::new(), "the keys that differ", || {
        let stats = wire.ask("stats");
        keys_that_differ(&stats, &Page::of(&site))
    });
}

/// Each key must be there; those that move are not compared.
fn keys_that_differ(stats: &str, page: &Page) -> Vec<String> {
    let mut seen = 0;
    let mut differ = Vec::new();
    for (key, value) in stats.lines().filter_map(|line| line.split_once(": ")) {
        let series = match key.strip_prefix("cmd-") {
            Some(command) => format!("bsd_commands_total{{command=\"{command}\"}}"),
            None => match KEYS.iter().find(|(it, _)| *it == key) {
                Some((_, series)) => (*series).to_owned(),
                None => {
                    let is_text = ["id", "hostname", "os", "platform"].contains(&key);
                    assert!(is_text, "{key} is no metric");
                    assert!(page.text.contains(&format!("{key}=\"")), "{key}");
                    continue;
                }
            },
        };
        seen += 1;
        let is_there = page.samples.keys().any(|it| it.starts_with(&series));
        assert!(is_there, "{key}: {series}");
        if !MOVING.contains(&key) && page.value(&series) != value.parse::<f64>().unwrap() {
            differ.push(format!("{key}: {value}, {}", page.value(&series)));
        }
    }
    assert!(seen > 45, "{seen}");
    differ
}

#[test]
fn a_tube_has_its_jobs_its_oldest_and_its_pause() {
    let (_dir, site, _wire) = busy();
    let page = Page::of(&site);
    for (series, wanted) in [
        ("bsd_tube_jobs{tube=\"a-tube\",state=\"ready\"}", 3.0),
        ("bsd_tube_jobs{tube=\"a-tube\",state=\"delayed\"}", 1.0),
        ("bsd_tube_jobs{tube=\"a-tube\",state=\"buried\"}", 1.0),
        ("bsd_tube_puts_total{tube=\"a-tube\"}", 7.0),
        ("bsd_tube_deletes_total{tube=\"a-tube\"}", 1.0),
        ("bsd_tube_pauses_total{tube=\"a-tube\"}", 1.0),
        ("bsd_tube_jobs{tube=\"default\",state=\"ready\"}", 0.0),
        ("bsd_tubes_summed_up", 0.0),
    ] {
        assert_eq!(page.value(series), wanted, "{series}");
    }
    assert!(page.value("bsd_tube_oldest_ready_age_seconds{tube=\"a-tube\"}") > 0.0);
    assert!(page.value("bsd_tube_pause_left_seconds{tube=\"a-tube\"}") > 900.0);
}

#[test]
fn g54_a_tube_that_has_vanished_keeps_its_totals_and_goes_on_when_it_comes_back() {
    let (_dir, site, mut wire) = busy();
    let puts = "bsd_tube_puts_total{tube=\"short-lived\"}";
    let mut come_and_go = || {
        wire.ask("use short-lived");
        for _ in 0..2 {
            let id = wire.put(b"x");
            wire.ask(&format!("delete {id}"));
        }
        wire.ask("use default");
    };
    for total in [2_u64, 4] {
        come_and_go();
        wait_until("a fresh page tells of it", || {
            Page::of(&site).samples.get(puts) == Some(&(total as f64))
        });
        let tube = site.get("/api/v1/tubes/short-lived").json();
        assert_eq!(tube["exists"], false);
        assert_eq!(tube["puts"], total);
        assert_eq!(tube["jobs"]["ready"], 0);
    }
    let tubes = site.get("/api/v1/tubes").json();
    let mut names = tubes["tubes"].as_array().unwrap().iter();
    assert!(names.all(|tube| tube["name"] != "short-lived"));
}

#[test]
fn times_and_the_log_are_counted() {
    let (_dir, site, _wire) = busy();
    let page = Page::of(&site);
    assert_eq!(page.value("bsd_job_wait_seconds_count"), 4.0);
    assert_eq!(page.value("bsd_job_hold_seconds_count"), 3.0);
    // All of it has happened in one tube or another.
    for (name, count) in [
        ("bsd_tube_job_wait_seconds_count{", 4.0),
        ("bsd_tube_job_hold_seconds_count{", 3.0),
    ] {
        let of_tubes = page.samples.iter().filter(|(it, _)| it.starts_with(name));
        assert_eq!(of_tubes.map(|(_, it)| it).sum::<f64>(), count, "{name}");
    }
    for series in [
        "bsd_log_sync_seconds_count",
        "bsd_log_sync_seconds_sum",
        "bsd_loop_turn_seconds_count",
        "bsd_loop_calls_seconds_count",
        "bsd_log_writes_total",
        "bsd_log_synced_bytes_total",
        "bsd_log_live_bytes",
        "bsd_log_reserved_bytes",
        "bsd_log_segments",
        "bsd_memory_bytes{use=\"jobs\"}",
        "process_resident_memory_bytes",
    ] {
        assert!(page.value(series) > 0.0, "{series}");
    }
    wait_until("all is synced", || {
        Page::of(&site).value("bsd_log_unsynced_bytes") == 0.0
    });
}

/// Without a log there is nothing to say of one.
#[test]
fn a_server_in_memory_has_no_metrics_of_a_log() {
    let site = Site::start(memory());
    let page = Page::of(&site);
    let of_log = page.samples.keys().filter(|it| it.starts_with("bsd_log_"));
    assert!(
        of_log
            .into_iter()
            .all(|it| it.starts_with("bsd_log_sync_seconds"))
    );
}

#[test]
fn tubes_past_the_bound_are_summed_up() {
    let site = Site::start(memory().arg("--http-tubes-max").arg("5"));
    let mut wire = site.server.connect();
    for nth in 0..20 {
        wire.ask(&format!("use t{nth}"));
        wire.put(b"body");
    }
    let page = Page::of(&site);
    assert_eq!(page.value("bsd_tubes_summed_up"), 16.0);
    assert_eq!(
        page.value("bsd_tube_jobs{tube=\"other tubes\",state=\"ready\"}"),
        16.0
    );
    let own = |series: &&String| series.starts_with("bsd_tube_users{");
    assert_eq!(page.samples.keys().filter(own).count(), 6);
}

/// A page of many parts, made of a snapshot of many slices.
#[test]
fn twenty_thousand_tubes_are_in_one_scrape() {
    let site = Site::start(memory().arg("--http-tubes-max").arg("100000"));
    let mut wire = site.server.connect();
    for nth in 0..20_000 {
        wire.send(format!("use tube-{nth}\r\nput 0 0 1 1\r\nx\r\n"));
        wire.reply();
        wire.reply();
    }
    for page in [Page::of(&site), Page::of_open_metrics(&site)] {
        assert_eq!(
            page.value("bsd_tube_jobs{tube=\"tube-19999\",state=\"ready\"}"),
            1.0
        );
        let own = |series: &&String| series.starts_with("bsd_tube_waiting{");
        assert_eq!(page.samples.keys().filter(own).count(), 20_001);
    }
}

/// One snapshot a second, no matter who asks.
#[test]
fn scrapes_share_a_snapshot_and_come_to_a_fresh_one() {
    let site = Site::start(memory());
    let first = Page::of(&site).value("bsd_puts_total");
    site.server.connect().put(b"body");
    wait_until("the snapshot is fresh", || {
        Page::of(&site).value("bsd_puts_total") == first + 1.0
    });
}

/// It reads the text format alone: a counter's family has another name in OpenMetrics.
#[test]
fn promtool_finds_nothing_to_complain_of() {
    let Some(promtool) = program("promtool") else {
        return skip("promtool is not installed");
    };
    let (_dir, site, _wire) = busy();
    let page = Page::of(&site);
    check_with(
        Command::new(&promtool).args(["check", "metrics"]),
        &page.text,
    );
}

/// The parsers of Prometheus's own client for Python.
#[test]
fn the_parsers_of_the_python_client_read_both_formats() {
    const READ: &str = "import sys; text = sys.stdin.read(); \
        families = list(text_string_to_metric_families(text)); \
        assert len(families) > 40, len(families)";
    let Some(python) = python_with("prometheus_client") else {
        return;
    };
    let (_dir, site, _wire) = busy();
    for (module, page) in [
        ("prometheus_client.parser", Page::of(&site)),
        (
            "prometheus_client.openmetrics.parser",
            Page::of_open_metrics(&site),
        ),
    ] {
        let program = format!("from {module} import text_string_to_metric_families; {READ}");
        check_with(Command::new(&python).args(["-c", &program]), &page.text);
    }
}

fn check_with(command: &mut Command, text: &str) {
    let mut child = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
