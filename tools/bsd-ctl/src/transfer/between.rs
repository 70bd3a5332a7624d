//! `bsd-ctl move --to`: the jobs of a tube, from one running server to another. Over the protocol, with
//! the client of this repository: so with TLS, with tokens, and from and to beanstalkd as well.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bsd_client::{Error, ErrorKind, JobId, State, TubeStats};
use bsd_tools::human::{Meter, count};
use clap::Args;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::carry::{Carrier, Tally};
use super::end::End;
use super::{BATCH_JOBS, BATCH_SIZE};
use crate::confirm::confirm;
use crate::tls::for_protocol;
use crate::{Context, EXIT_OK, Failure, names, note};

/// Jobs of a page of which some stay: more, so that the others are found soon.
const PAGE_JOBS: u16 = 1000;

/// Another server.
#[derive(Args)]
pub(crate) struct Elsewhere {
    /// Move them to this server: HOST, HOST:PORT, tls:HOST:PORT or unix:PATH; members of a cluster with
    /// commas between them
    #[arg(
        long = "to",
        id = "server",
        value_name = "SERVER",
        conflicts_with_all = [
            "kick", "contains", "older_than", "reason", "text", "rate", "detach",
        ]
    )]
    pub(crate) server: Option<String>,
    /// The file whose first line is the token for that server
    #[arg(long, value_name = "FILE", requires = "server")]
    to_token_file: Option<PathBuf>,
    /// The certificates of the authority that has signed that server's (PEM)
    #[arg(long, value_name = "FILE", requires = "server")]
    to_tls_ca: Option<PathBuf>,
    /// The certificate to show there, if that server asks for one (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["server", "to_tls_key"])]
    to_tls_cert: Option<PathBuf>,
    /// The private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["server", "to_tls_cert"])]
    to_tls_key: Option<PathBuf>,
    /// Take them from this server, named as with --to [default: that of -a]
    #[arg(long = "from", value_name = "SERVER", requires = "server")]
    source: Option<String>,
}

/// What is moved.
pub(crate) struct What<'a> {
    pub(crate) pattern: &'a str,
    /// The tube there, if it has another name.
    pub(crate) tube: Option<&'a str>,
    /// In this order: a delayed job that is ready in the meantime is met among the ready ones.
    pub(crate) states: Vec<State>,
    pub(crate) limit: Option<u64>,
    pub(crate) is_yes: bool,
}

impl Elsewhere {
    fn carrier(
        &self,
        server: &str,
        api: &crate::api::ApiArgs,
        context: &Context<'_>,
    ) -> Result<Carrier, Failure> {
        let from = match &self.source {
            Some(source) => source.clone(),
            None => context.global.address.to_string(),
        };
        let (token, tls) = api.for_protocol()?;
        let source = End::config(&from, token, tls, context)?;
        let (cert, key) = (self.to_tls_cert.as_deref(), self.to_tls_key.as_deref());
        let tls = for_protocol(self.to_tls_ca.as_deref(), cert, key)?;
        let target = End::config(server, self.to_token_file.as_ref(), tls, context)?;
        let mut carrier = Carrier {
            source: End::open(&from, "--token-file", source)?,
            // A put that was not answered is not repeated: with a key, its own copy would be the other job.
            target: End::open(server, "--to-token-file", target.repeats(false))?,
            tally: Tally::default(),
        };
        carrier.check_apart()?;
        Ok(carrier)
    }

    pub(crate) fn run(
        &self,
        server: &str,
        what: &What<'_>,
        api: &crate::api::ApiArgs,
        context: &mut Context<'_>,
    ) -> Result<u8, Failure> {
        let mut carrier = self.carrier(server, api, context)?;
        let tubes = carrier.tubes(what.pattern)?;
        let movable = carrier.count(&tubes, &what.states)?;
        let movable = what.limit.map_or(movable, |limit| limit.min(movable));
        if movable == 0 {
            return Err(Failure::NotDone(format!(
                "no job of {} can be moved{}; `bsd-ctl tubes` shows where jobs are",
                what.pattern,
                carrier.reserved(&tubes)
            )));
        }
        let asked = format!(
            "move {} of {} to {server}",
            count(movable, "job"),
            what.pattern
        );
        confirm(&asked, movable, what.is_yes)?;
        let done = carrier.run(&tubes, what, movable);
        let Tally { moved, .. } = carrier.tally;
        context.tell(
            carrier.tally.json(),
            format_args!(
                "{} of {} moved to {server}",
                count(moved, "job"),
                what.pattern
            ),
        )?;
        carrier.notes(&tubes);
        done?;
        match carrier.tally.left.is_empty() {
            true => Ok(EXIT_OK),
            false => Err(Failure::NotDone(format!(
                "not all was moved: {} at {}",
                match carrier.tally.left.len() {
                    1 => "1 job is still".to_owned(),
                    left => format!("{left} jobs are still"),
                },
                carrier.source.name
            ))),
        }
    }
}

impl Carrier {
    fn asked<T>(&self, answer: Result<T, Error>) -> Result<T, Failure> {
        answer.map_err(|error| self.source.failure(&error))
    }

    /// # Errors
    /// Both are one server: its jobs would go round for ever.
    fn check_apart(&mut self) -> Result<(), Failure> {
        let [one, other] = [&mut self.source, &mut self.target].map(|end| {
            let stats = end.client.stats().map_err(|error| end.failure(&error))?;
            Ok::<_, Failure>(stats.get("id").unwrap_or_default().to_owned())
        });
        match one? {
            id if !id.is_empty() && id == other? => Err(Failure::NotDone(format!(
                "{} and {} are one server: name the new tube without --to",
                self.source.name, self.target.name
            ))),
            _ => Ok(()),
        }
    }

    /// The tubes of a pattern.
    fn tubes(&mut self, pattern: &str) -> Result<Vec<String>, Failure> {
        if !names::is_pattern(pattern) {
            return Ok(vec![pattern.to_owned()]);
        }
        let tubes = self.source.client.tubes();
        let mut tubes = self.asked(tubes)?;
        tubes.retain(|name| names::matches(pattern, name));
        tubes.sort();
        Ok(tubes)
    }

    fn stats(&mut self, tube: &str) -> Result<Option<TubeStats>, Failure> {
        match self.source.client.stats_tube(tube) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            answer => self.asked(answer).map(Some),
        }
    }

    /// Jobs of these tubes that are in one of the states.
    fn count(&mut self, tubes: &[String], states: &[State]) -> Result<u64, Failure> {
        let mut found = 0;
        for tube in tubes {
            let Some(stats) = self.stats(tube)? else {
                continue;
            };
            let of = |state: &State| match state {
                State::Ready => stats.ready,
                State::Delayed => stats.delayed,
                State::Buried => stats.buried,
                _ => stats.reserved,
            };
            found += states.iter().map(of).sum::<u64>();
        }
        Ok(found)
    }

    /// A half-sentence about jobs that workers have.
    fn reserved(&mut self, tubes: &[String]) -> String {
        match self.count(tubes, &[State::Reserved]) {
            Ok(0) | Err(_) => String::new(),
            Ok(1) => ": 1 is reserved by a worker".to_owned(),
            Ok(reserved) => format!(": {reserved} are reserved by workers"),
        }
    }

    /// Move jobs until none is left, or the limit is reached.
    fn run(&mut self, tubes: &[String], what: &What<'_>, movable: u64) -> Result<(), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let set = signal_hook::flag::register(signal, Arc::clone(&stop));
            set.map_err(|error| Failure::Input(format!("signals cannot be caught: {error}")))?;
        }
        let mut meter = Meter::counting("moving", "jobs");
        for tube in tubes {
            let to = what.tube.unwrap_or(tube);
            for state in &what.states {
                loop {
                    let ids = self.find(tube, *state, what.limit)?;
                    if ids.is_empty() {
                        break;
                    }
                    let done = self.carry((tube, to), *state, &ids);
                    done.map_err(|failure| self.explained(failure))?;
                    meter.show(self.tally.moved, movable.max(self.tally.moved));
                    if stop.load(Ordering::Relaxed) {
                        let why = Failure::NotDone("stopped".to_owned());
                        return Err(self.explained(why));
                    }
                }
            }
        }
        Ok(())
    }

    /// What to do after this.
    fn explained(&self, failure: Failure) -> Failure {
        let go_on = format!(
            "the rest is at {}; run the command again to go on",
            self.source.name
        );
        match failure {
            Failure::NotDone(why) => Failure::NotDone(format!("{why}; {go_on}")),
            Failure::Input(why) => Failure::Input(format!("{why}; {go_on}")),
            other => other,
        }
    }

    /// Jobs to be moved next; empty: no more jobs, or the limit is reached.
    fn find(
        &mut self,
        tube: &str,
        state: State,
        limit: Option<u64>,
    ) -> Result<Vec<JobId>, Failure> {
        let room = limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.tally.moved));
        let room = room.min(BATCH_JOBS as u64) as usize;
        let found = match self.source.client.supports("list-jobs") {
            Ok(true) => self.list(tube, state, room),
            Ok(false) => self.peek(tube, state, room),
            Err(error) => Err(error),
        };
        self.asked(found)
    }

    fn list(&mut self, tube: &str, state: State, room: usize) -> Result<Vec<JobId>, Error> {
        let mut after = None;
        let page_jobs = match self.tally.left.is_empty() {
            true => BATCH_JOBS as u16,
            false => PAGE_JOBS,
        };
        loop {
            let client = &mut self.source.client;
            let page = match client.list_jobs(tube, state, after.as_deref(), page_jobs) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                page => page?,
            };
            let (mut ids, mut size) = (Vec::new(), 0);
            for (id, bytes) in page.jobs {
                size += bytes;
                let is_full = ids.len() == room || (size > BATCH_SIZE && !ids.is_empty());
                if is_full {
                    break;
                }
                match self.tally.left.contains(&id) {
                    true => size -= bytes,
                    false => ids.push(id),
                }
            }
            if !ids.is_empty() || page.next.is_none() || room == 0 {
                return Ok(ids);
            }
            after = page.next;
        }
    }

    /// beanstalkd shows the next job alone.
    fn peek(&mut self, tube: &str, state: State, room: usize) -> Result<Vec<JobId>, Error> {
        if room == 0 {
            return Ok(Vec::new());
        }
        let client = &mut self.source.client;
        client.use_tube(tube)?;
        let found = match state {
            State::Delayed => client.peek_delayed(),
            State::Buried => client.peek_buried(),
            _ => client.peek_ready(),
        };
        match found {
            Ok(job) if self.tally.left.contains(&job.id) => Ok(Vec::new()),
            Ok(job) => Ok(vec![job.id]),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// What a user has to know beside the number of jobs.
    fn notes(&mut self, tubes: &[String]) {
        let (source, target) = (self.source.name.clone(), self.target.name.clone());
        let tally = &self.tally;
        for (jobs, why) in [
            (
                tally.keys,
                format!("not moved: other jobs have their keys at {target}"),
            ),
            (
                tally.too_big,
                format!("not moved: their bodies are too large for {target}; see its -z"),
            ),
            (
                tally.needs,
                format!("not moved: they have a key or a group, and {target} knows neither"),
            ),
            (
                tally.twice,
                "taken by workers of both servers meanwhile".to_owned(),
            ),
            (
                tally.unknown,
                format!("still at {source}, and {target} may have copies: it did not answer"),
            ),
        ] {
            if jobs > 0 {
                note(format_args!("{}: {why}", count(jobs, "job")));
            }
        }
        if !tally.at_both.is_empty() {
            let ids: Vec<String> = tally.at_both.iter().map(JobId::to_string).collect();
            note(format_args!(
                "{} at {target}, and may still be at {source}; delete them there: `bsd-ctl -a {source} \
                 delete --yes {}`",
                match ids.len() {
                    1 => "1 job is".to_owned(),
                    jobs => format!("{jobs} jobs are"),
                },
                ids.join(" ")
            ));
        }
        if let Ok(reserved @ 1..) = self.count(tubes, &[State::Reserved]) {
            note(format_args!(
                "{} left at {source}: workers have them; run the command again later",
                count(reserved, "reserved job")
            ));
        }
    }
}

impl Tally {
    fn json(&self) -> serde_json::Value {
        json!({
            "moved": self.moved, "left": self.left.len(), "keys": self.keys,
            "too_big": self.too_big, "needs_bsd": self.needs, "unknown": self.unknown,
            "twice": self.twice, "at_both": self.at_both,
        })
    }
}
