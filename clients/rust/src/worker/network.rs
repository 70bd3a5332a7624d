//! Servers as sources of jobs.

use std::time::Duration;

use super::retry::Retry;
use super::source::{JobSession, JobSource};
use crate::blocking::Client;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::job::{Failed, Inserted, Job, JobId, Put};
use crate::servers::{ServerJob, Servers, ServersClient};

impl JobSource for Config {
    fn open(&self, tubes: &[String]) -> Result<Box<dyn JobSession>> {
        let mut client = Client::new(self.clone());
        client.watch_only(tubes)?;
        client.connect_once()?;
        Ok(Box::new(client))
    }
}

impl JobSource for Servers {
    fn open(&self, tubes: &[String]) -> Result<Box<dyn JobSession>> {
        let mut client = self.client();
        client.watch_only(tubes)?;
        let job = None;
        Ok(Box::new(ServersSession { client, job }))
    }
}

impl Client {
    /// For what only the connection that has reserved a job can do. The job is lost when its connection
    /// is: another one would only be told so, and a server that is away would be waited for.
    fn held(&mut self) -> Result<&mut Client> {
        match self.is_holding_jobs() && self.is_connected() {
            true => Ok(self),
            false => Err(Error::new(
                ErrorKind::NotFound,
                "the connection ended, and the job is not reserved any more",
            )),
        }
    }

    /// As [`Client::fail`], or what `retry` says where the server does not know that.
    fn fail_or_retry(&mut self, id: JobId, text: &str, retry: &Retry) -> Result<Failed> {
        if self.supports("fail")? {
            return Client::fail(self, id, text);
        }
        let stats = self.stats_job(id)?;
        match retry.delay(stats.releases) {
            Some(delay) => Client::release(self, id, stats.pri, delay).map(|()| Failed::Released),
            None => Client::bury(self, id, stats.pri).map(|()| Failed::Buried),
        }
    }

    /// With the reason, where the server can keep it.
    fn bury_saying(&mut self, id: JobId, text: &str) -> Result<()> {
        let pri = self.stats_job(id)?.pri;
        match self.supports("bury-with-reason")? {
            true => self.bury_with_reason(id, pri, text),
            false => Client::bury(self, id, pri),
        }
    }
}

impl JobSession for Client {
    fn put(&mut self, put: Put) -> Result<Inserted> {
        Client::put(self, put)
    }

    fn reserve(&mut self, wait: Duration) -> Result<Option<Job>> {
        // A batch of one says which tube the job is of.
        match self.supports("reserve-batch")? {
            true => self.reserve_batch(1, wait).map(|mut jobs| jobs.pop()),
            false => Client::reserve(self, wait),
        }
    }

    fn delete(&mut self, id: JobId) -> Result<()> {
        Client::delete(self, id)
    }

    fn release(&mut self, id: JobId, delay: Duration) -> Result<()> {
        self.give_back(id, delay)
    }

    fn fail(&mut self, id: JobId, text: &str, retry: &Retry) -> Result<Failed> {
        self.fail_or_retry(id, text, retry)
    }

    fn bury(&mut self, id: JobId, text: &str) -> Result<()> {
        self.bury_saying(id, text)
    }

    fn touch(&mut self, id: JobId) -> Result<()> {
        Client::touch(self.held()?, id)
    }

    fn time_to_run(&mut self, id: JobId) -> Result<Duration> {
        self.held()?.stats_job(id).map(|stats| stats.ttr)
    }
}

/// A session with a list of servers, which has one job at a time.
struct ServersSession {
    client: ServersClient,
    job: Option<ServerJob>,
}

impl ServersSession {
    /// The client of the server that the job is on.
    fn of(&mut self, id: JobId) -> Result<&mut Client> {
        let job = self.job.as_ref().filter(|it| it.job.id == id);
        let gone = || {
            Error::new(
                ErrorKind::NotFound,
                "the job is not reserved by this session",
            )
        };
        self.client.of(job.ok_or_else(gone)?)
    }
}

impl JobSession for ServersSession {
    fn put(&mut self, put: Put) -> Result<Inserted> {
        self.client.put(put)
    }

    fn reserve(&mut self, wait: Duration) -> Result<Option<Job>> {
        self.job = self.client.reserve(wait)?;
        Ok(self.job.as_ref().map(|it| it.job.clone()))
    }

    fn delete(&mut self, id: JobId) -> Result<()> {
        self.of(id)?.delete(id)
    }

    fn release(&mut self, id: JobId, delay: Duration) -> Result<()> {
        self.of(id)?.give_back(id, delay)
    }

    fn fail(&mut self, id: JobId, text: &str, retry: &Retry) -> Result<Failed> {
        self.of(id)?.fail_or_retry(id, text, retry)
    }

    fn bury(&mut self, id: JobId, text: &str) -> Result<()> {
        self.of(id)?.bury_saying(id, text)
    }

    fn touch(&mut self, id: JobId) -> Result<()> {
        JobSession::touch(self.of(id)?, id)
    }

    fn time_to_run(&mut self, id: JobId) -> Result<Duration> {
        self.of(id)?.time_to_run(id)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// A peer that gives one job, and is away then.
    fn serve(listener: TcpListener) {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        let input = BufReader::new(stream.try_clone().unwrap());
        for line in input.lines() {
            let has_asked = line.unwrap().starts_with("reserve");
            let reply = match has_asked {
                true => "RESERVED 1 1\r\nx\r\n",
                false => "UNKNOWN_COMMAND\r\n",
            };
            stream.write_all(reply.as_bytes()).unwrap();
            if has_asked {
                return;
            }
        }
    }

    #[test]
    fn a_job_whose_connection_has_ended_is_lost_and_its_server_is_not_waited_for() {
        for is_touched in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let peer = std::thread::spawn(|| serve(listener));
            let config: Config = address.parse().unwrap();
            let mut client = Client::new(config.timeout(Duration::from_millis(300)));
            assert_eq!(client.reserve(Duration::ZERO).unwrap().unwrap().id, 1);
            peer.join().unwrap();
            let socket = client.socket().unwrap();
            let mut sockets = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
            assert_eq!(poll(&mut sockets, None).unwrap(), 1);
            let result = match is_touched {
                true => JobSession::touch(&mut client, 1),
                false => client.time_to_run(1).map(|_| ()),
            };
            assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
}
