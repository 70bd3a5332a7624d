//! The real Prometheus as a child process: it scrapes servers every second and evaluates rules.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{free_port, program, skip, wait_until};
use crate::http;

/// The port that it wants may be taken meanwhile: so often it is started.
const TRIES: usize = 5;

/// A Prometheus that does not outlive its test.
pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
    _dir: TempDir,
}

impl Prometheus {
    /// Scrape these, in a job called `bsd`, with these rules. `None`: it is not installed.
    pub(crate) fn start(targets: &[SocketAddr], rules: &str) -> Option<Prometheus> {
        if program("prometheus").is_none() {
            skip("prometheus is not installed");
            return None;
        }
        let dir = TempDir::new().unwrap();
        let targets: Vec<String> = targets.iter().map(SocketAddr::to_string).collect();
        // JSON is YAML.
        let config = json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "bsd", "static_configs": [{"targets": targets}]}],
        });
        fs::write(dir.path().join("rules.yml"), rules).unwrap();
        fs::write(dir.path().join("prometheus.yml"), config.to_string()).unwrap();
        for _ in 0..TRIES {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
            let mut started = Prometheus {
                child: spawn(&dir, address),
                address,
                _dir: TempDir::new().unwrap(),
            };
            if started.becomes_ready() {
                started._dir = dir;
                return Some(started);
            }
        }
        panic!("it did not start {TRIES} times");
    }

    /// `false`: it has ended, for want of its port.
    fn becomes_ready(&mut self) -> bool {
        let mut has_ended = false;
        wait_until("Prometheus is ready", || {
            has_ended = self.child.try_wait().unwrap().is_some();
            let is_there = TcpStream::connect(self.address).is_ok();
            has_ended || is_there && self.send("/-/ready").status == 200
        });
        !has_ended
    }

    fn send(&self, path: &str) -> http::Answer {
        http::send(self.address, &format!("GET {path}"), &[], b"")
    }

    /// The `data` of an answer of its API, which must be a success.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.send(path).json();
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// Present value of an expression.
    pub(crate) fn query(&self, expression: &str) -> Vec<Value> {
        let path = format!("/api/v1/query?query={}", encoded(expression));
        let data = self.get(&path);
        data["result"].as_array().unwrap().clone()
    }

    /// The alerts that fire, each with the server that it is about, in order.
    pub(crate) fn firing(&self) -> Vec<(String, String)> {
        let data = self.get("/api/v1/alerts");
        let alerts = data["alerts"].as_array().unwrap().iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        sorted(firing.map(|alert| &alert["labels"]))
    }

    /// Those that fire, or have fired within the last hour.
    pub(crate) fn ever_fired(&self) -> Vec<(String, String)> {
        let fired = self.query("count_over_time(ALERTS{alertstate=\"firing\"}[1h])");
        sorted(fired.iter().map(|series| &series["metric"]))
    }

    /// Error of the last scrape of a server; empty: there was no error. `None`: there was no
    /// scrape.
    pub(crate) fn scrape_error(&self, server: SocketAddr) -> Option<String> {
        let data = self.get("/api/v1/targets");
        let targets = data["activeTargets"].as_array().unwrap();
        let instance = server.to_string();
        // It finds out some seconds after its start what it is to scrape.
        let target = targets
            .iter()
            .find(|it| it["labels"]["instance"] == *instance)?;
        (target["health"] != "unknown").then(|| target["lastError"].as_str().unwrap().to_owned())
    }
}

/// Alerts, each with the server that it is about, by their labels.
fn sorted<'a>(labels: impl Iterator<Item = &'a Value>) -> Vec<(String, String)> {
    let label = |labels: &Value, name: &str| labels[name].as_str().unwrap().to_owned();
    let alerts = labels.map(|it| (label(it, "alertname"), label(it, "instance")));
    alerts.collect::<BTreeSet<_>>().into_iter().collect()
}

fn spawn(dir: &TempDir, address: SocketAddr) -> Child {
    let mut command = Command::new("prometheus");
    command
        .current_dir(dir.path())
        .arg("--config.file=prometheus.yml")
        .arg("--storage.tsdb.path=data")
        .arg(format!("--web.listen-address={address}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A text as a part of a query of a URL.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It is reaped only here and by `try_wait`, so its id is its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
