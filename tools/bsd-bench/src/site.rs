//! HTTP of a server, as a client asks for it, and clients that keep asking.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

use crate::process::{now, sleep_until};

/// An answer that takes longer is none.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// How often a task that runs is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A server over HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    address: SocketAddr,
    agent: Agent,
}

impl Site {
    pub(crate) fn new(address: SocketAddr) -> Site {
        let config = Agent::config_builder()
            .timeout_global(Some(ANSWER_TIME))
            .build();
        Site {
            address,
            agent: config.new_agent(),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The answer to a GET, and how long it took.
    ///
    /// # Errors
    /// No reply came, or it is a refusal.
    pub(crate) fn get(&self, path: &str) -> io::Result<(Vec<u8>, Duration)> {
        let begin = now();
        let request = self.agent.get(self.url(path));
        let request = request.header("Accept", "application/openmetrics-text, */*;q=0.5");
        let mut answer = request.call().map_err(|error| said(path, &error))?;
        let mut body = Vec::new();
        answer.body_mut().as_reader().read_to_end(&mut body)?;
        Ok((body, now() - begin))
    }

    /// The same, with a JSON document to a POST.
    pub(crate) fn post(&self, path: &str, body: &Value) -> io::Result<(Value, Duration)> {
        let begin = now();
        let request = self.agent.post(self.url(path));
        let request = request.header("Content-Type", "application/json");
        let answer = request.send(body.to_string());
        let mut answer = answer.map_err(|error| said(path, &error))?;
        let text = answer.body_mut().read_to_vec();
        let text = text.map_err(|error| said(path, &error))?;
        let value = serde_json::from_slice(&text).map_err(io::Error::other)?;
        Ok((value, now() - begin))
    }

    /// Start a task or a search, which is found below `list` then, and wait for its end, or until
    /// `is_over`. Returns it as it is then, and the longest time that one answer took.
    pub(crate) fn run_task(
        &self,
        path: &str,
        list: &str,
        body: &Value,
        is_over: &AtomicBool,
    ) -> io::Result<(Value, Duration)> {
        let (mut task, mut longest) = self.post(path, body)?;
        let path = format!("{list}/{}", task["id"]);
        while !is_done(&task) && !is_over.load(Ordering::Relaxed) {
            sleep_until(now() + LOOK_EVERY)?;
            let (text, took) = self.get(&path)?;
            longest = longest.max(took);
            task = serde_json::from_slice(&text).map_err(io::Error::other)?;
        }
        Ok((task, longest))
    }

    /// Value of a line of the metrics; 0 if the line is missing.
    pub(crate) fn metric(&self, series: &str) -> io::Result<f64> {
        let (page, _) = self.get("/metrics")?;
        let page = String::from_utf8_lossy(&page);
        let values = page.lines().filter_map(|line| line.strip_prefix(series));
        let value = values.filter_map(|rest| rest.trim().parse().ok()).next();
        Ok(value.unwrap_or(0.0))
    }
}

fn is_done(task: &Value) -> bool {
    !matches!(task["state"].as_str(), Some("counting" | "running"))
}

fn said(path: &str, error: &ureq::Error) -> io::Error {
    io::Error::other(format!("{path}: {error}"))
}

/// Clients that keep looking, each on a thread of its own, until this is dropped.
#[derive(Debug)]
pub(crate) struct Watchers {
    is_over: Arc<AtomicBool>,
    /// Scrapes, events of the console, and searches that have ended.
    pub(crate) seen: Arc<[AtomicU64; 3]>,
    threads: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// A scrape a second, an open console, and one search after the other.
    pub(crate) fn start(site: &Site, search: &Value) -> Watchers {
        let mut watchers = Watchers {
            is_over: Arc::default(),
            seen: Arc::default(),
            threads: Vec::new(),
        };
        watchers.spawn(0, site, |site, is_over, seen| {
            while !is_over.load(Ordering::Relaxed) {
                let begin = now();
                site.get("/metrics")?;
                seen.fetch_add(1, Ordering::Relaxed);
                sleep_until(begin + Duration::from_secs(1))?;
            }
            Ok(())
        });
        watchers.spawn(1, site, |site, is_over, seen| {
            let events = site.agent.get(site.url("/events?of=overview&span=10m"));
            let events = events.config().timeout_global(None).build().call();
            let mut events = events.map_err(|error| said("/events", &error))?;
            let mut events = events.body_mut().as_reader();
            let mut buffer = [0; 4096];
            while !is_over.load(Ordering::Relaxed) && events.read(&mut buffer)? > 0 {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let search = search.clone();
        watchers.spawn(2, site, move |site, is_over, seen| {
            while !is_over.load(Ordering::Relaxed) {
                let path = "/api/v1/search";
                site.run_task(path, path, &search, is_over)?;
                seen.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        watchers
    }

    fn spawn(
        &mut self,
        at: usize,
        site: &Site,
        watch: impl Fn(&Site, &AtomicBool, &AtomicU64) -> io::Result<()> + Send + 'static,
    ) {
        let (site, is_over, seen) = (site.clone(), self.is_over.clone(), self.seen.clone());
        self.threads.push(std::thread::spawn(move || {
            if let Err(error) = watch(&site, &is_over, &seen[at]) {
                eprintln!("bsd-bench: someone who looked stopped: {error}");
            }
        }));
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of it has been printed.
            let _ = thread.join();
        }
    }
}
