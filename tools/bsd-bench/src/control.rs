//! A client that sends one command at a time, for the setup and the results of a measurement.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server without a reply for this long counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A blocking connection.
#[derive(Debug)]
pub(crate) struct Control(BufReader<TcpStream>);

impl Control {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Control> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        Ok(Control(BufReader::new(stream)))
    }

    /// Send a command, and read the first line of its reply, without its end.
    pub(crate) fn ask(&mut self, command: &str) -> io::Result<String> {
        self.0.get_mut().write_all(command.as_bytes())?;
        self.0.get_mut().write_all(b"\r\n")?;
        let mut line = String::new();
        match self.0.read_line(&mut line)? {
            0 => Err(io::Error::other("the server has closed the connection")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// The numbers of `stats`.
    pub(crate) fn stats(&mut self) -> io::Result<HashMap<String, u64>> {
        let line = self.ask("stats")?;
        let size = line
            .strip_prefix("OK ")
            .and_then(|size| size.parse::<usize>().ok());
        let size =
            size.ok_or_else(|| io::Error::other(format!("stats: the server said {line}")))?;
        let mut text = vec![0; size + 2];
        self.0.read_exact(&mut text)?;
        Ok(numbers(&String::from_utf8_lossy(&text)))
    }
}

fn numbers(yaml: &str) -> HashMap<String, u64> {
    let number = |line: &str| {
        let (key, value) = line.split_once(':')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    yaml.lines().filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_among_what_is_none() {
        let numbers =
            numbers("---\ncurrent-jobs-ready: 12\nversion: \"1.13\"\nrusage-utime: 0.1\n");
        assert_eq!(numbers.get("current-jobs-ready"), Some(&12));
        assert_eq!(numbers.len(), 1);
    }
}
