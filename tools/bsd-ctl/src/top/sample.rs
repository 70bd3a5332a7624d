//! The server's figures of one round.

use std::time::Duration;

use bsd::clock::Clock;
use bsd::types::SECOND_NS;
use bsd_tools::address::Address;
use bsd_tools::client::{Client, ClientError};
use bsd_tools::yaml::Dictionary;

use super::events::{Events, Source};
use super::{TUBES_MAX, TopArgs};
use crate::{Context, names};

/// One round.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) address: Address,
    /// When it was taken, seconds on the sampler's clock.
    pub(super) at: f64,
    pub(super) stats: Dictionary,
    /// When the tubes were asked for.
    pub(super) tubes_at: f64,
    /// All tubes of the server are among them.
    pub(super) is_all: bool,
    /// In the order of their names.
    pub(super) tubes: Vec<Dictionary>,
    /// Tubes of the pattern that were not asked for.
    pub(super) left_out: usize,
    /// What has happened to jobs, if the API of this server tells.
    pub(super) events: Option<Events>,
}

/// Takes samples over one connection, which it makes again after an error.
#[derive(Debug)]
pub(super) struct Sampler {
    address: Address,
    timeout: Duration,
    pattern: Option<String>,
    clock: Clock,
    client: Option<Client>,
    source: Source,
}

impl Sampler {
    pub(super) fn new(args: &TopArgs, context: &Context<'_>) -> Sampler {
        let pattern = args.pattern.clone();
        Sampler {
            address: context.global.address.clone(),
            timeout: context.global.timeout,
            source: Source::new(&args.api, pattern.as_deref(), context),
            pattern,
            clock: Clock::start(),
            client: None,
        }
    }

    fn seconds(&self) -> f64 {
        self.clock.now().mono.0 as f64 / SECOND_NS as f64
    }

    pub(super) fn take(&mut self) -> Result<Sample, ClientError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.address, self.timeout)?,
        };
        let stats = client.stats()?;
        let at = self.seconds();
        let mut names = names::matching(&mut client, self.pattern.as_deref())?;
        let left_out = names.len().saturating_sub(TUBES_MAX);
        names.truncate(TUBES_MAX);
        let tubes_at = self.seconds();
        let tubes = client.tubes(&names)?;
        self.client = Some(client);
        let events = self.source.take(&stats, self.seconds());
        Ok(Sample {
            address: self.address.clone(),
            at,
            stats,
            tubes_at,
            is_all: self.pattern.is_none() && left_out == 0,
            tubes,
            left_out,
            events,
        })
    }
}
