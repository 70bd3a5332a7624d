//! A client that blocks: it sends commands and reads what each is answered with. It never waits
//! longer than it was told to, and takes nothing from a server on trust but the length of bodies.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

use crate::address::{Address, Stream};
use crate::yaml::{BadLine, Dictionary, parse_list};

/// A longer line is no line of a reply: `USING` with the longest name is a quarter of it.
const LINE_SIZE_MAX: u64 = 1024;
/// Commands that are sent before the first reply to them is read. Their replies fit into what the
/// system buffers for a socket, so that neither side waits for the other for good.
const WINDOW: usize = 64;

/// Why a server could not be asked, or did not answer as one. After any of these the connection is
/// of no use.
#[derive(Debug)]
pub enum ClientError {
    /// There is no connection.
    Connect(Address, io::Error),
    /// The connection broke, or there was no reply in time.
    Broken(Address, io::Error),
    /// The protocol has no such reply for the command.
    Unexpected {
        /// Who sent it.
        address: Address,
        /// The first word of the command.
        command: String,
        /// The beginning of the reply.
        reply: String,
    },
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientError::Connect(address, error) => write!(
                f,
                "cannot connect to {address}: {}; start a server there, or name another address",
                reason(error)
            ),
            ClientError::Broken(address, error) => write!(
                f,
                "{address}: {}; whether the last command was done is not known: look, and run it \
                 again if it was not",
                reason(error)
            ),
            ClientError::Unexpected {
                address,
                command,
                reply,
            } => {
                let (command, reply) = (command.escape_debug(), reply.escape_debug());
                write!(
                    f,
                    "{address} answered {command} with '{reply}'; {}",
                    advice(&reply.to_string())
                )
            }
        }
    }
}

impl std::error::Error for ClientError {}

/// Its message stays.
impl From<ClientError> for io::Error {
    fn from(error: ClientError) -> io::Error {
        io::Error::other(error)
    }
}

/// A time-out of a socket is told as "would block" or "in progress".
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

/// Remedy for a reply that is an error of the protocol.
fn advice(reply: &str) -> &'static str {
    match reply {
        "UNKNOWN_COMMAND" => "its version does not have this command: use a newer server",
        "OUT_OF_MEMORY" => "it has no room: see its log, and run the command again",
        "INTERNAL_ERROR" => "see its log",
        _ => "is it a server of beanstalkd's protocol?",
    }
}

/// Reply to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The line, without its end.
    pub line: String,
    /// The body or document that follows `FOUND`, `RESERVED` and `OK`; else empty.
    pub data: Vec<u8>,
}

impl Reply {
    /// The number behind this word, where the line is those two and no more than one other.
    #[must_use]
    pub fn number_after(&self, word: &str) -> Option<u64> {
        let mut words = self.line.split(' ');
        (words.next() == Some(word)).then_some(())?;
        words.next()?.parse().ok()
    }
}

/// The keys of a document whose values are text.
fn texts(command: &str) -> &'static [&'static str] {
    match command {
        "stats" => &["version", "id", "hostname", "os", "platform"],
        "stats-tube" => &["name"],
        _ => &["tube", "state"],
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<Stream>,
    address: Address,
}

impl Client {
    /// Connect. Connecting, each read and each write take at most `timeout` each.
    ///
    /// # Errors
    /// No one answers there in time.
    pub fn connect(address: &Address, timeout: Duration) -> Result<Client, ClientError> {
        match Stream::connect(address, timeout) {
            Ok(stream) => Ok(Client {
                stream: BufReader::new(stream),
                address: address.clone(),
            }),
            Err(error) => Err(ClientError::Connect(address.clone(), error)),
        }
    }

    /// The server.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Send one command, a line without its end, and read its reply.
    ///
    /// # Errors
    /// The connection broke.
    pub fn ask(&mut self, command: &str) -> Result<Reply, ClientError> {
        self.send(format!("{command}\r\n").as_bytes())?;
        self.reply()
    }

    /// Send many commands, some at a time, and hand each reply to `each`, in order.
    ///
    /// # Errors
    /// The connection broke, or `each` refused a reply.
    pub fn ask_all(
        &mut self,
        commands: &[String],
        mut each: impl FnMut(usize, Reply) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        for (window, some) in commands.chunks(WINDOW).enumerate() {
            let lines: String = some
                .iter()
                .map(|command| format!("{command}\r\n"))
                .collect();
            self.send(lines.as_bytes())?;
            for at in 0..some.len() {
                let reply = self.reply()?;
                each(window * WINDOW + at, reply)?;
            }
        }
        Ok(())
    }

    /// Send bytes as they are: commands and bodies with their ends.
    ///
    /// # Errors
    /// The connection broke.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let sent = self.stream.get_mut().write_all(bytes);
        sent.map_err(|error| self.broken(error))
    }

    /// Read the next reply.
    ///
    /// # Errors
    /// The connection broke, or the bytes are no reply.
    pub fn reply(&mut self) -> Result<Reply, ClientError> {
        let line = self.read_line().map_err(|error| self.broken(error))?;
        let words: Vec<&str> = line.split(' ').collect();
        let size = match words[..] {
            ["OK", size] | ["FOUND" | "RESERVED", _, size] => size.parse::<u64>().ok(),
            _ => None,
        };
        let data = match size {
            Some(size) => self.read_data(size).map_err(|error| self.broken(error))?,
            None => Vec::new(),
        };
        Ok(Reply { line, data })
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.stream)
            .take(LINE_SIZE_MAX)
            .read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None if line.len() as u64 == LINE_SIZE_MAX || line.ends_with(b"\n") => {
                let begin = line[..line.len().min(40)].escape_ascii();
                Err(io::Error::other(format!(
                    "'{begin}' is no reply of beanstalkd's protocol"
                )))
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Memory grows with what arrives, not with what is announced.
    fn read_data(&mut self, size: u64) -> io::Result<Vec<u8>> {
        let mut data = Vec::new();
        (&mut self.stream)
            .take(size.saturating_add(2))
            .read_to_end(&mut data)?;
        match data.strip_suffix(b"\r\n") {
            Some(whole) if whole.len() as u64 == size => {
                data.truncate(size as usize);
                Ok(data)
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn broken(&self, error: io::Error) -> ClientError {
        ClientError::Broken(self.address.clone(), error)
    }

    /// The error for a reply that the protocol does not have for this command.
    #[must_use]
    pub fn unexpected(&self, command: &str, reply: &str) -> ClientError {
        let word = command.split(' ').next().unwrap_or_default();
        ClientError::Unexpected {
            address: self.address.clone(),
            command: word.to_owned(),
            reply: reply.chars().take(80).collect(),
        }
    }

    /// The document of `stats`.
    ///
    /// # Errors
    /// The connection broke, or the answer is no document.
    pub fn stats(&mut self) -> Result<Dictionary, ClientError> {
        let reply = self.ask("stats")?;
        let found = self.dictionary("stats", &reply)?;
        found.ok_or_else(|| self.unexpected("stats", &reply.line))
    }

    /// The document of a tube; `None`: there is no such tube. `name` must be a tube's name.
    ///
    /// # Errors
    /// The connection broke, or the answer is no document.
    pub fn tube(&mut self, name: &str) -> Result<Option<Dictionary>, ClientError> {
        let reply = self.ask(&format!("stats-tube {name}"))?;
        self.dictionary("stats-tube", &reply)
    }

    /// The document of a job; `None`: there is no such job.
    ///
    /// # Errors
    /// The connection broke, or the answer is no document.
    pub fn job(&mut self, id: u64) -> Result<Option<Dictionary>, ClientError> {
        let reply = self.ask(&format!("stats-job {id}"))?;
        self.dictionary("stats-job", &reply)
    }

    /// The document of a job with what it has beyond a plain one; `None`: there is no such job, or the
    /// server tells of no such thing, as beanstalkd.
    ///
    /// # Errors
    /// The connection broke, or the answer is no document.
    pub fn job_extended(&mut self, id: u64) -> Result<Option<Dictionary>, ClientError> {
        let reply = self.ask(&format!("stats-job-extended {id}"))?;
        match reply.line.starts_with("OK ") {
            true => self.dictionary("stats-job-extended", &reply),
            false => Ok(None),
        }
    }

    /// The names of all tubes, in the server's order.
    ///
    /// # Errors
    /// The connection broke, or the answer is no list.
    pub fn tube_names(&mut self) -> Result<Vec<String>, ClientError> {
        let reply = self.ask("list-tubes")?;
        if !reply.line.starts_with("OK ") {
            return Err(self.unexpected("list-tubes", &reply.line));
        }
        parse_list(&reply.data).map_err(|BadLine(line)| self.unexpected("list-tubes", &line))
    }

    /// The documents of these tubes, those apart that have gone in the meantime. All names must be
    /// names of tubes.
    ///
    /// # Errors
    /// The connection broke, or an answer is no document.
    pub fn tubes(&mut self, names: &[String]) -> Result<Vec<Dictionary>, ClientError> {
        let commands: Vec<String> = names
            .iter()
            .map(|name| format!("stats-tube {name}"))
            .collect();
        let mut replies = Vec::with_capacity(names.len());
        self.ask_all(&commands, |_, reply| {
            replies.push(reply);
            Ok(())
        })?;
        let found = replies
            .iter()
            .map(|reply| self.dictionary("stats-tube", reply));
        found.filter_map(Result::transpose).collect()
    }

    fn dictionary(&self, command: &str, reply: &Reply) -> Result<Option<Dictionary>, ClientError> {
        match &*reply.line {
            "NOT_FOUND" => Ok(None),
            line if line.starts_with("OK ") => Dictionary::parse(&reply.data, texts(command))
                .map(Some)
                .map_err(|BadLine(line)| self.unexpected(command, &line)),
            line => Err(self.unexpected(command, line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A client, and a server that says this and then closes the connection.
    fn answered(bytes: &'static [u8]) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(bytes).unwrap();
        });
        Client::connect(&address, Duration::from_secs(10)).unwrap()
    }

    #[test]
    fn a_reply_is_read_with_its_data() {
        let mut client = answered(b"FOUND 7 4\r\na\r\nb\r\nINSERTED 12\r\n");
        let reply = client.reply().unwrap();
        assert_eq!((&*reply.line, &*reply.data), ("FOUND 7 4", &b"a\r\nb"[..]));
        let reply = client.reply().unwrap();
        assert_eq!(reply.number_after("INSERTED"), Some(12));
        assert_eq!(reply.number_after("BURIED"), None);
        let error = client.reply().unwrap_err().to_string();
        assert!(
            error.contains("the server closed the connection"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_server_of_the_protocol_is_told_by_what_it_says() {
        for (bytes, expected) in [
            (&[b'x'; 2000][..], "is no reply of beanstalkd's protocol"),
            (
                b"HTTP/1.1 400 Bad Request\n\n",
                "is no reply of beanstalkd's protocol",
            ),
            (
                b"HTTP/1.1 400 Bad Request\r\n\r\n",
                "is it a server of beanstalkd's protocol?",
            ),
            (b"OK 99999999999\r\n---\n", "closed the connection"),
            (b"OK 4\r\nnose\r\n", "answered stats with 'nose'"),
            (b"UNKNOWN_COMMAND\r\n", "use a newer server"),
            (b"NOT_FOUND\r\n", "answered stats with 'NOT_FOUND'"),
        ] {
            let error = answered(bytes)
                .stats_without_asking()
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    impl Client {
        /// The scripted server reads nothing, and may be gone before it could.
        fn stats_without_asking(&mut self) -> Result<Dictionary, ClientError> {
            let reply = self.reply()?;
            let found = self.dictionary("stats", &reply)?;
            found.ok_or_else(|| self.unexpected("stats", &reply.line))
        }
    }

    #[test]
    fn who_does_not_answer_is_waited_for_no_longer_than_said() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tcp(listener.local_addr().unwrap().to_string());
        let mut client = Client::connect(&address, Duration::from_millis(20)).unwrap();
        let error = client.stats().unwrap_err().to_string();
        assert!(error.contains("no answer in time"), "{error}");
        drop(listener);
        let error = Client::connect(&address, Duration::from_secs(5)).unwrap_err();
        assert!(
            error.to_string().contains("cannot connect to 127.0.0.1:"),
            "{error}"
        );
    }

    #[test]
    fn a_unix_socket_that_no_one_accepts_on_does_not_hold_up_for_good() {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let connect = || Client::connect(&Address::Unix(path.clone()), Duration::from_millis(20));
        let mut clients = Vec::new();
        let error = loop {
            match connect() {
                Ok(client) => clients.push(client),
                Err(error) => break error.to_string(),
            }
            assert!(clients.len() < 10, "the queue of connections has no end");
        };
        assert!(error.contains("no answer in time"), "{error}");
    }
}
