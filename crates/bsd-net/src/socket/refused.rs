//! Why an address cannot be listened on, and what helps; and who has it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::{Address, Port};
use bsd::sys::processes;

/// How long anyone who has an address may take to connect, and for each part of an answer.
const PATIENCE: Duration = Duration::from_millis(300);
/// Parts of an answer that are waited for, and their bytes.
const PARTS_MAX: usize = 16;
const ANSWER_SIZE_MAX: usize = 16 << 10;

/// In words, why this address could not be bound.
#[must_use]
pub fn why_not_bound(address: &Address, error: &io::Error) -> String {
    let why = match address {
        Address::Tcp { host, port, .. } => of_tcp(host, port, error.kind()),
        Address::Unix { path, .. } => of_unix(path, error.kind()),
    };
    why.unwrap_or_else(|| error.to_string())
}

fn of_tcp(host: &str, port: &Port, kind: ErrorKind) -> Option<String> {
    let number = port.number().ok()?;
    Some(match kind {
        ErrorKind::AddrInUse => {
            let who = who_has(host, number);
            format!("{who}; another port is -p PORT, or -l HOST:PORT")
        }
        ErrorKind::AddrNotAvailable => {
            "this machine has no such address; `ip address` lists those that it has, and -l 0.0.0.0 \
             is all of them"
                .to_owned()
        }
        ErrorKind::PermissionDenied => format!(
            "port {port} is for root alone, as those below 1024 are; take another one with -p PORT, \
             or start as root and give -u USER"
        ),
        _ => return None,
    })
}

fn of_unix(path: &Path, kind: ErrorKind) -> Option<String> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let dir = dir.display();
    Some(match kind {
        ErrorKind::NotFound => {
            format!("there is no directory {dir}; make it, or give another path")
        }
        ErrorKind::NotADirectory => format!("{dir} is no directory; give another path"),
        ErrorKind::PermissionDenied => format!(
            "this user may make no socket in {dir}; give a directory that it may write, or let it"
        ),
        ErrorKind::AddrInUse if UnixStream::connect(path).is_err() => {
            "something of that name is there that is no socket; move it, or give another path"
                .to_owned()
        }
        ErrorKind::AddrInUse => {
            let stream = UnixStream::connect(path).ok();
            let said = stream.and_then(|stream| {
                stream.set_read_timeout(Some(PATIENCE)).ok()?;
                stats_of(stream)
            });
            let who = said.as_deref().and_then(server_of);
            let who = who.unwrap_or_else(|| "another process listens there".to_owned());
            format!("{who}; another path is another -l unix:PATH")
        }
        ErrorKind::InvalidInput | ErrorKind::InvalidFilename => {
            "the path of a socket has 107 bytes at most; give a shorter one".to_owned()
        }
        _ => return None,
    })
}

/// Who listens at this port of this machine, in a sentence.
pub fn who_has(host: &str, port: u16) -> String {
    let server = stats_at(host, port).as_deref().and_then(server_of);
    server.unwrap_or_else(|| match processes::listener_at(port) {
        Some(pid) => {
            let line = processes::command_line(pid).unwrap_or_default();
            let words: Vec<&str> = line.split('\0').filter(|word| !word.is_empty()).collect();
            let command: String = words.join(" ").escape_debug().take(80).collect();
            format!("process {pid} ({command}) listens there")
        }
        None => {
            format!("another process listens there (as root, `ss -ltnp sport = :{port}` names it)")
        }
    })
}

/// Where anyone who listens at this address answers.
fn stats_at(host: &str, port: u16) -> Option<String> {
    let mut found = (host, port).to_socket_addrs().ok()?;
    let mut address: SocketAddr = found.next()?;
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stats_of(stream)
}

/// The `stats` of a server of beanstalkd's protocol; other bytes of other servers.
fn stats_of(mut stream: impl Read + Write) -> Option<String> {
    stream.write_all(b"stats\r\n").ok()?;
    let mut answer = Vec::new();
    for _ in 0..PARTS_MAX {
        let mut part = [0; 4096];
        match stream.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(count) => answer.extend_from_slice(&part[..count]),
        }
        if answer.ends_with(b"\n\r\n") || answer.len() > ANSWER_SIZE_MAX {
            break;
        }
    }
    let text = String::from_utf8(answer).ok()?;
    text.starts_with("OK ").then_some(text)
}

/// Which server says this, and what to do about it.
fn server_of(stats: &str) -> Option<String> {
    let value = |key: &str| {
        let mut lines = stats.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))?;
        Some(
            value
                .trim_matches('"')
                .escape_debug()
                .take(40)
                .collect::<String>(),
        )
    };
    let (version, pid) = (value("version")?, value("pid")?);
    // Only bsd has this key.
    Some(match value("memory-full") {
        Some(_) => format!("another bsd-server (process {pid}) listens there; stop that one first"),
        None => format!(
            "beanstalkd {version} (process {pid}) listens there; to take over its jobs stop it, and \
             start bsd-server with its directory and --import (docs/migration.md)"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::parse(host, &Port::Number(port)).unwrap()
    }

    fn said(address: &Address, kind: ErrorKind) -> String {
        why_not_bound(address, &io::Error::from(kind))
    }

    #[test]
    fn g44_why_an_address_cannot_be_had_is_said_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let unix = |path: &str| Address::Unix {
            path: dir.path().join(path),
            mode: None,
        };
        let (low, here) = (tcp("127.0.0.1", 80), dir.path().display());
        for (said, expected) in [
            (
                said(&low, ErrorKind::PermissionDenied),
                "port 80 is for root".to_owned(),
            ),
            (
                said(&low, ErrorKind::AddrNotAvailable),
                "no such address".to_owned(),
            ),
            (
                said(&unix("no/such"), ErrorKind::NotFound),
                format!("there is no directory {here}/no; make it"),
            ),
            (
                said(&unix("s"), ErrorKind::PermissionDenied),
                format!("may make no socket in {here};"),
            ),
            (
                said(&unix("s"), ErrorKind::AddrInUse),
                "that is no socket".to_owned(),
            ),
            (
                said(&unix("s"), ErrorKind::InvalidInput),
                "107 bytes".to_owned(),
            ),
        ] {
            assert!(said.contains(&expected), "{said}");
            assert!(!said.contains("os error"), "{said}");
        }
    }

    #[test]
    fn g44_who_has_a_port_is_named_and_beanstalkd_with_the_way_to_migrate() {
        let stats = "OK 9\r\n---\nversion: \"1.13\"\npid: 7\n";
        let beanstalkd = server_of(stats).unwrap();
        assert!(
            beanstalkd.starts_with("beanstalkd 1.13 (process 7)"),
            "{beanstalkd}"
        );
        assert!(beanstalkd.contains("--import"), "{beanstalkd}");
        let bsd = server_of(&format!("{stats}memory-full: 0\n")).unwrap();
        assert!(bsd.starts_with("another bsd-server (process 7)"), "{bsd}");
        assert_eq!(server_of("HTTP/1.1 400 Bad Request"), None);
        // This process has this one, and answers nothing.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let said = said(&tcp("0.0.0.0", port), ErrorKind::AddrInUse);
        let expected = match cfg!(target_os = "linux") {
            true => format!("process {} (", std::process::id()),
            false => "another process".to_owned(),
        };
        assert!(said.starts_with(&expected), "{said}");
    }
}
