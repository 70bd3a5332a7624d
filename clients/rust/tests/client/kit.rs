//! The kit of scripts that the clients share: `clients/kit/README.md` says what they are.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bsd_client::{Client, Config, Servers, score};
use serde_json::{Map, Value, json};

use crate::harness::{Server, skip};
use crate::kit_calls::{Outcome, call, kind};
use crate::kit_match::{bytes, matches};
use crate::secure;

/// How long a step may take.
const STEP: Duration = Duration::from_secs(10);

pub(crate) fn kit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kit")
}

/// The scripts of a folder, by their names.
pub(crate) fn scripts(folder: &str) -> Vec<(String, Value)> {
    let Ok(entries) = fs::read_dir(kit().join(folder)) else {
        skip("the kit is missing");
        return Vec::new();
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "json"));
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let script = serde_json::from_slice(&fs::read(path).unwrap());
        (
            name.clone(),
            script.unwrap_or_else(|error| panic!("{name}: {error}")),
        )
    };
    paths.iter().map(read).collect()
}

/// The variables of a script.
#[derive(Debug)]
pub(crate) struct Variables(BTreeMap<String, Value>);

impl Variables {
    pub(crate) fn new(script: &str) -> Variables {
        static SCRIPTS: AtomicU64 = AtomicU64::new(0);
        let number = SCRIPTS.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut all = BTreeMap::from([
            (
                "tube".to_owned(),
                json!(format!("script-{script}-{number}")),
            ),
            ("now".to_owned(), json!(now.as_secs())),
        ]);
        for role in ["all", "put", "work", "read", "tube"] {
            all.insert(format!("token_{role}"), json!(format!("kit-{role}")));
        }
        Variables(all)
    }

    /// A value with its variables replaced.
    pub(crate) fn fill(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.fill_text(text),
            Value::Array(list) => list.iter().map(|it| self.fill(it)).collect(),
            Value::Object(map) => {
                let filled = map.iter().map(|(key, it)| (key.clone(), self.fill(it)));
                Value::Object(filled.collect())
            }
            other => other.clone(),
        }
    }

    fn fill_text(&self, text: &str) -> Value {
        let get = |name: &str| {
            let value = self.0.get(name);
            value.unwrap_or_else(|| panic!("the script names {name}, which is not there"))
        };
        if let Some(name) = text.strip_prefix("${").and_then(|it| it.strip_suffix('}'))
            && !name.contains('}')
        {
            return get(name).clone();
        }
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("${") {
            let (name, behind) = after.split_once('}').unwrap();
            filled.push_str(before);
            match get(name) {
                Value::String(text) => filled.push_str(text),
                other => filled.push_str(&other.to_string()),
            }
            rest = behind;
        }
        Value::String(filled + rest)
    }

    pub(crate) fn save(&mut self, step: &Value, result: &Value) {
        for (key, name) in step["save"].as_object().into_iter().flatten() {
            let name = name.as_str().unwrap().to_owned();
            self.0.insert(name, result[key].clone());
        }
    }
}

/// Whether a call ended as its step says. An `Err` says how not.
pub(crate) fn check(step: &Value, result: &Outcome, variables: &Variables) -> Result<(), String> {
    match (result, &step["error"]) {
        (Ok(result), Value::Null) => {
            let expected = variables.fill(&step["expect"]);
            match expected.is_null() || matches(&expected, result) {
                true => Ok(()),
                false => Err(format!("{result} does not match {expected}")),
            }
        }
        (Ok(result), error) => Err(format!("{result}, and not the error {error}")),
        (Err(kind), Value::String(expected)) if kind == expected => Ok(()),
        (Err(kind), Value::Array(some)) if some.iter().any(|it| it == kind) => Ok(()),
        (Err(kind), error) => Err(format!("error {kind}, and not {error}")),
    }
}

/// A connection of a script.
#[derive(Default)]
struct Connection {
    client: Option<Client>,
    is_over: Arc<AtomicBool>,
}

/// A call under way on another thread, and the name of its connection.
struct Spawned {
    connection: String,
    thread: JoinHandle<(Client, Outcome)>,
}

/// A script under way.
struct Run {
    config: Config,
    variables: Variables,
    connections: BTreeMap<String, Connection>,
    spawned: BTreeMap<String, Spawned>,
}

impl Run {
    fn step(&mut self, step: &Value) -> Result<(), String> {
        let result = match step["join"].as_str() {
            Some(name) => self.join(name),
            None if step["spawn"].is_string() => {
                self.spawn(step);
                return Ok(());
            }
            None if !step["until"].is_null() => return self.until(step),
            None => self.call(step),
        };
        check(step, &result, &self.variables)?;
        if let Ok(result) = &result {
            self.variables.save(step, result);
        }
        Ok(())
    }

    fn parts(&self, step: &Value) -> (String, String, Map<String, Value>) {
        let text = |key: &str| step[key].as_str().map(str::to_owned);
        let args = self.variables.fill(&step["args"]);
        let args = args.as_object().cloned().unwrap_or_default();
        let connection = text("client").unwrap_or_else(|| "main".to_owned());
        (connection, text("call").unwrap(), args)
    }

    fn call(&mut self, step: &Value) -> Outcome {
        let (connection, name, args) = self.parts(step);
        let config = self.config.clone();
        let connection = self.connections.entry(connection).or_default();
        match &*name {
            "abort" => {
                connection.is_over.store(true, Ordering::SeqCst);
                return Ok(json!({}));
            }
            "open" => {
                let config = match args.get("token").and_then(Value::as_str) {
                    Some(token) => config.token(token),
                    None => config,
                };
                let client = Client::connect(config);
                connection.client = Some(client.map_err(|error| kind(&error))?);
                return Ok(json!({}));
            }
            "close" => {
                if let Some(client) = &mut connection.client {
                    client.close();
                }
                return Ok(json!({}));
            }
            _ => {}
        }
        let client = connection.client.get_or_insert_with(|| Client::new(config));
        call(client, &name, &args, None)
    }

    fn until(&mut self, step: &Value) -> Result<(), String> {
        let expected = self.variables.fill(&step["until"]);
        let end = Instant::now() + STEP;
        loop {
            let result = self.call(step);
            if let Ok(result) = &result
                && matches(&expected, result)
            {
                self.variables.save(step, result);
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("{result:?} does not come to match {expected}"));
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    fn spawn(&mut self, step: &Value) {
        let (name, call_name, args) = self.parts(step);
        let config = self.config.clone();
        let connection = self.connections.entry(name.clone()).or_default();
        let client = connection.client.take();
        let mut client = client.unwrap_or_else(|| Client::new(config));
        connection.is_over = Arc::default();
        let is_over = connection.is_over.clone();
        let thread = std::thread::spawn(move || {
            let result = call(&mut client, &call_name, &args, Some(&*is_over));
            (client, result)
        });
        let spawned = step["spawn"].as_str().unwrap().to_owned();
        let connection = name;
        self.spawned.insert(spawned, Spawned { connection, thread });
    }

    fn join(&mut self, name: &str) -> Outcome {
        let spawned = self.spawned.remove(name).unwrap();
        let (client, result) = spawned.thread.join().unwrap();
        self.connections
            .get_mut(&spawned.connection)
            .unwrap()
            .client = Some(client);
        result
    }
}

/// Run a script. `None`: it was skipped, because the server has not what it needs.
fn run(name: &str, script: &Value, config: &Config) -> Option<()> {
    let needs = script["needs"].as_array().cloned().unwrap_or_default();
    if !needs.is_empty() {
        let mut client = Client::connect(config.clone()).unwrap();
        let words = client.capabilities().unwrap();
        let has = |word: &Value| words.iter().any(|it| Some(it.as_str()) == word.as_str());
        if !needs.iter().all(has) {
            println!("skipped: {name}: the server has not all of {needs:?}");
            return None;
        }
    }
    let mut run = Run {
        config: config.clone(),
        variables: Variables::new(name),
        connections: BTreeMap::new(),
        spawned: BTreeMap::new(),
    };
    for (number, step) in script["steps"].as_array().unwrap().iter().enumerate() {
        if let Err(why) = run.step(step) {
            panic!("{name}, step {}: {why}\n{step}", number + 1);
        }
    }
    Some(())
}

/// What the scripts of a run are for.
struct Target<'a> {
    server: &'a str,
    config: Config,
}

/// Run all scripts for this server: how many were run.
fn run_all(target: &Target<'_>) -> usize {
    let of = |script: &Value| match script["server"].as_str() {
        None | Some("plain") => !["small", "draining"].contains(&target.server),
        Some(server) => server == target.server,
    };
    let mut count = 0;
    for (name, script) in scripts("scripts") {
        if of(&script) && run(&name, &script, &target.config).is_some() {
            count += 1;
        }
    }
    println!("{count} scripts of the kit were run: {}", target.server);
    count
}

fn server_for(kind: &str, dir: &Path) -> Option<Server> {
    match kind {
        "small" => Server::bsd(&["-z", "100"]),
        "tokens" => {
            let file = dir.join("kit-tokens");
            let roles = ["all", "put", "work", "read", "tube"].map(|role| {
                let token = sha256(&format!("kit-{role}"));
                let role = if role == "tube" {
                    "all:kit-tube-*"
                } else {
                    role
                };
                format!("{role} {token}\n")
            });
            fs::write(&file, roles.concat()).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            Server::bsd(&["--auth-file", file.to_str().unwrap()])
        }
        "draining" => {
            let server = Server::bsd(&[])?;
            server.drain();
            Some(server)
        }
        "old" => Server::bsd(&["--protocol", "beanstalkd"]),
        _ => Server::bsd(&[]),
    }
}

fn sha256(text: &str) -> String {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_scripts_of_the_kit_hold_at_bsd() {
    let dir = tempfile::tempdir().unwrap();
    for kind in ["plain", "old", "small", "draining", "tokens"] {
        let Some(server) = server_for(kind, dir.path()) else {
            return;
        };
        let mut config = server.config().timeout(STEP);
        if kind == "tokens" {
            config = config.token("kit-all");
        }
        run_all(&Target {
            server: kind,
            config,
        });
    }
}

#[test]
fn the_scripts_of_the_kit_hold_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    if let Some((_server, config)) = secure::tls_server(dir.path(), &[]) {
        let config = config.timeout(STEP);
        let server = "plain";
        run_all(&Target { server, config });
    }
}

#[test]
fn the_scripts_of_the_kit_hold_at_beanstalkd() {
    for kind in ["plain", "old", "small", "draining"] {
        let args: &[&str] = if kind == "small" { &["-z", "100"] } else { &[] };
        let Some(server) = Server::beanstalkd_with(args) else {
            return;
        };
        if kind == "draining" {
            server.drain();
        }
        let config = server.config().timeout(STEP);
        run_all(&Target {
            server: kind,
            config,
        });
    }
}

#[test]
fn tubes_are_placed_as_the_kit_says() {
    let Ok(text) = fs::read(kit().join("placement.json")) else {
        return skip("the kit is missing");
    };
    let cases: Vec<Value> = serde_json::from_slice(&text).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let tube = case["tube"].as_str().unwrap();
        for (server, expected) in case["scores"].as_object().unwrap() {
            assert_eq!(
                score(server, tube).to_string(),
                expected.as_str().unwrap(),
                "{case}"
            );
        }
        let config: Config = "127.0.0.1:1".parse().unwrap();
        let names = case["servers"].as_array().unwrap().iter();
        let list = names.map(|name| (name.as_str().unwrap(), config.clone()));
        let servers = Servers::new(list).unwrap();
        assert_eq!(
            servers.place(tube),
            case["server"].as_str().unwrap(),
            "{case}"
        );
    }
}

/// The bytes of a value, or none where there is no value.
pub(crate) fn bytes_or_none(value: &Value) -> Vec<u8> {
    match value {
        Value::Null => Vec::new(),
        value => bytes(value),
    }
}
