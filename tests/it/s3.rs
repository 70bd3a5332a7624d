//! S3 for tests, on loopback: moto, which is an S3 of its own as far as archives go, and a store in
//! this process that can be told to fail in every way.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::clients::python_with;
use crate::harness::{Launch, bsd_wal, free_port, wait_until};
use crate::http;

/// Where every archive of these tests is.
pub(crate) const URL: &str = "s3://bucket/archive";

/// Environment of a client of S3, for a store at this address and for no other: without credentials
/// it would ask the cloud for some.
fn environment(store: SocketAddr) -> Vec<String> {
    vec![
        "AWS_ACCESS_KEY_ID=test".to_owned(),
        "AWS_SECRET_ACCESS_KEY=test".to_owned(),
        "AWS_REGION=us-east-1".to_owned(),
        "AWS_ALLOW_HTTP=true".to_owned(),
        "AWS_EC2_METADATA_DISABLED=true".to_owned(),
        format!("AWS_ENDPOINT=http://{store}"),
    ]
}

/// The server, which archives into the store at this address.
pub(crate) fn client_of(store: SocketAddr, launch: Launch) -> Launch {
    client_with("--archive", store, launch)
}

/// The server as a client of it, with the archive for this flag.
pub(crate) fn client_with(flag: &str, store: SocketAddr, launch: Launch) -> Launch {
    client_every(20, flag, store, launch)
}

/// The same, with this interval, in milliseconds.
pub(crate) fn client_every(ms: u64, flag: &str, store: SocketAddr, launch: Launch) -> Launch {
    let words = [vec!["env".to_owned()], environment(store)].concat();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let launch = launch.wrapped(&words);
    launch.args([flag, URL, "--archive-interval", &ms.to_string()])
}

/// The server as a client of a store that speaks TLS, who trusts these authorities and no others.
pub(crate) fn client_over_tls(store: SocketAddr, authorities: &Path, launch: Launch) -> Launch {
    let env = ["env", "-u", "SSL_CERT_DIR"].map(str::to_owned);
    let mut words = [env.to_vec(), environment(store)].concat();
    words.push("AWS_ALLOW_HTTP=false".to_owned());
    words.push(format!("AWS_ENDPOINT=https://localhost:{}", store.port()));
    words.push(format!("SSL_CERT_FILE={}", authorities.display()));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let launch = launch.wrapped(&words);
    launch.args(["--archive", URL, "--archive-interval", "20"])
}

/// Run `bsd-wal` as a client of it: its exit code, and all that it wrote.
pub(crate) fn wal(store: SocketAddr, args: &[impl AsRef<OsStr>]) -> (Option<i32>, String) {
    let mut command = Command::new("env");
    command.args(environment(store)).arg(bsd_wal()).args(args);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

/// moto, with an empty bucket.
pub(crate) struct Moto {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Moto {
    /// `None`: it is not installed.
    pub(crate) fn start() -> Option<Moto> {
        let python = python_with("moto.server")?;
        // Another process may take the port before it does.
        (0..5).find_map(|_| Moto::start_at(&python, free_port()))
    }

    fn start_at(python: &std::path::Path, port: u16) -> Option<Moto> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut command = Command::new(python);
        command.args(["-c", "from moto.server import main; main()"]);
        command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut moto = Moto {
            child: child.unwrap(),
            address,
        };
        let mut has_ended = false;
        wait_until("moto answers", || {
            has_ended = moto.child.try_wait().unwrap().is_some();
            has_ended || TcpStream::connect(address).is_ok()
        });
        if has_ended {
            return None;
        }
        let made = http::send(address, "PUT /bucket", &[], b"");
        assert_eq!(made.status, 200, "{made:?}");
        Some(moto)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // It is reaped only here and by `try_wait`, so its id is its own.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long a slow store takes.
const SLOW: Duration = Duration::from_secs(2);

/// How the store in this process answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// Each request gets 500.
    Fails,
    /// Each request gets 403.
    Forbids,
    /// Requests are taken, and not answered.
    Silent,
    /// Each answer takes [`SLOW`].
    Slow,
    /// No put is taken.
    Full,
    /// A link is given out when this many are asked for at the same time.
    Together,
    /// A put overwrites what is there, although it says `If-None-Match`.
    Overwrites,
}

struct Shared {
    mood: Mood,
    objects: BTreeMap<String, Vec<u8>>,
    requests: u64,
    /// Connections that get no answer.
    kept: Vec<Box<dyn Send>>,
    /// Requests for links that came in [`Mood::Together`].
    gathered: usize,
}

/// This many requests wait for each other in [`Mood::Together`].
const TOGETHER: usize = 8;

/// A small store, with as much of S3 as an archive needs. It serves until the process ends.
#[derive(Clone)]
pub(crate) struct SmallS3 {
    pub(crate) address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
    has_gathered: Arc<Condvar>,
}

impl SmallS3 {
    pub(crate) fn start(mood: Mood) -> SmallS3 {
        SmallS3::serve(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), mood)
    }

    pub(crate) fn serve(listener: TcpListener, mood: Mood) -> SmallS3 {
        SmallS3::serve_in(listener, mood, Ok)
    }

    /// One that speaks TLS.
    pub(crate) fn start_tls(config: Arc<rustls::ServerConfig>) -> SmallS3 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        SmallS3::serve_in(listener, Mood::Well, move |stream| {
            let session =
                rustls::ServerConnection::new(config.clone()).map_err(io::Error::other)?;
            Ok(rustls::StreamOwned::new(session, stream))
        })
    }

    fn serve_in<S: Read + Write + Send + 'static>(
        listener: TcpListener,
        mood: Mood,
        dress: impl Fn(TcpStream) -> io::Result<S> + Send + 'static,
    ) -> SmallS3 {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(Shared {
            mood,
            objects: BTreeMap::new(),
            requests: 0,
            kept: Vec::new(),
            gathered: 0,
        }));
        let store = SmallS3 {
            address,
            shared,
            has_gathered: Arc::default(),
        };
        let serving = store.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Ok(stream) = dress(stream) else { continue };
                let serving = serving.clone();
                // A client that has gone is no error here.
                thread::spawn(move || serving.answer(stream).ok());
            }
        });
        store
    }

    /// Those that wait for an answer lose their connection.
    pub(crate) fn set(&self, mood: Mood) {
        let mut shared = self.shared.lock().unwrap();
        shared.mood = mood;
        shared.kept.clear();
    }

    pub(crate) fn requests(&self) -> u64 {
        self.shared.lock().unwrap().requests
    }

    fn answer(&self, mut stream: impl Read + Write + Send + 'static) -> io::Result<()> {
        let request = Request::read(&mut stream)?;
        let mut shared = self.shared.lock().unwrap();
        shared.requests += 1;
        if shared.mood == Mood::Together && request.key.contains("/chain/") {
            shared.gathered += 1;
            self.has_gathered.notify_all();
            let is_alone =
                |shared: &mut Shared| shared.mood == Mood::Together && shared.gathered < TOGETHER;
            let waited = self.has_gathered.wait_while(shared, is_alone);
            shared = waited.unwrap();
        }
        let (status, body) = match shared.mood {
            Mood::Silent => {
                shared.kept.push(Box::new(stream));
                return Ok(());
            }
            Mood::Full if request.method == "PUT" => {
                ("507 Insufficient Storage", problem("InsufficientStorage"))
            }
            Mood::Fails => ("500 Internal Server Error", problem("InternalError")),
            Mood::Forbids => ("403 Forbidden", problem("AccessDenied")),
            mood => request.apply(&mut shared.objects, mood == Mood::Overwrites),
        };
        let whole = shared.objects.get(&request.key).map_or(0, Vec::len);
        let is_slow = shared.mood == Mood::Slow;
        drop(shared);
        if is_slow {
            thread::sleep(SLOW);
        }
        let size = body.len();
        let range = request.range.map_or(String::new(), |(from, _)| {
            format!(
                "Content-Range: bytes {from}-{}/{whole}\r\n",
                from + size.max(1) - 1
            )
        });
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {size}\r\nETag: \"tag\"\r\n\
             Last-Modified: Sun, 22 Nov 2026 00:00:00 GMT\r\n{range}Connection: close\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), &body].concat())?;
        stream.flush()
    }
}

fn problem(code: &str) -> Vec<u8> {
    format!("<Error><Code>{code}</Code><Message>{code}</Message></Error>").into_bytes()
}

#[derive(Debug)]
struct Request {
    method: String,
    /// Without the bucket.
    key: String,
    query: BTreeMap<String, String>,
    is_conditional: bool,
    range: Option<(usize, usize)>,
    body: Vec<u8>,
}

impl Request {
    fn read(stream: impl Read) -> io::Result<Request> {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut words = first.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut request = Request {
            method: method.to_owned(),
            key: decoded(path.trim_start_matches("/bucket").trim_start_matches('/')),
            query: query
                .split('&')
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (name.to_owned(), decoded(value)))
                .collect(),
            is_conditional: false,
            range: None,
            body: Vec::new(),
        };
        let mut size = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(": ") else {
                break;
            };
            match &*name.to_ascii_lowercase() {
                "content-length" => size = value.parse().unwrap_or(0),
                "if-none-match" => request.is_conditional = true,
                "range" => {
                    let bounds = value.trim_start_matches("bytes=").split_once('-');
                    let bounds = bounds.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                    request.range = bounds;
                }
                _ => {}
            }
        }
        request.body = vec![0; size];
        reader.read_exact(&mut request.body)?;
        Ok(request)
    }

    fn apply(
        &self,
        objects: &mut BTreeMap<String, Vec<u8>>,
        overwrites: bool,
    ) -> (&'static str, Vec<u8>) {
        match &*self.method {
            "PUT" if self.is_conditional && !overwrites && objects.contains_key(&self.key) => {
                ("412 Precondition Failed", problem("PreconditionFailed"))
            }
            "PUT" => {
                objects.insert(self.key.clone(), self.body.clone());
                ("200 OK", Vec::new())
            }
            "GET" if self.key.is_empty() => ("200 OK", self.list(objects)),
            // What a client asks for that was told of a conflict.
            "HEAD" if objects.contains_key(&self.key) => ("200 OK", Vec::new()),
            "HEAD" => ("404 Not Found", Vec::new()),
            "GET" => match (objects.get(&self.key), self.range) {
                (None, _) => ("404 Not Found", problem("NoSuchKey")),
                (Some(body), None) => ("200 OK", body.clone()),
                (Some(body), Some((from, _))) if from >= body.len() => {
                    ("416 Range Not Satisfiable", problem("InvalidRange"))
                }
                (Some(body), Some((from, last))) => {
                    let part = body[from..body.len().min(last + 1)].to_vec();
                    ("206 Partial Content", part)
                }
            },
            "POST" => {
                let text = String::from_utf8_lossy(&self.body).into_owned();
                let keys = text.split("<Key>").skip(1);
                let keys = keys.filter_map(|rest| Some(rest.split_once("</Key>")?.0));
                let mut answer = String::from("<DeleteResult>");
                for key in keys {
                    objects.remove(key);
                    answer.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
                }
                answer.push_str("</DeleteResult>");
                ("200 OK", answer.into_bytes())
            }
            _ => ("405 Method Not Allowed", problem("MethodNotAllowed")),
        }
    }

    fn list(&self, objects: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
        let asked = |name: &str| self.query.get(name).map_or("", String::as_str);
        let (prefix, after) = (asked("prefix"), asked("start-after"));
        let mut answer = String::from("<ListBucketResult>");
        for (key, body) in objects {
            if key.starts_with(prefix) && key.as_str() > after {
                answer.push_str(&format!(
                    "<Contents><Key>{key}</Key><Size>{}</Size><ETag>tag</ETag>\
                     <LastModified>2026-11-22T00:00:00.000Z</LastModified></Contents>",
                    body.len()
                ));
            }
        }
        answer.push_str("</ListBucketResult>");
        answer.into_bytes()
    }
}

/// A part of a URL, without its escapes.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
