//! What a load is to be.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::driver::Load;
use crate::options::{BodySizes, Shape};
use crate::script::{Script, Workload};
use crate::tally::Outcome;

/// What a load is to be.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    pub(crate) shape: Shape,
    pub(crate) workload: Workload,
    /// Stop after so many jobs (of a mix: commands).
    pub(crate) jobs: Option<u64>,
    /// Stop after so long.
    pub(crate) time: Option<Duration>,
    pub(crate) bodies: BodySizes,
    pub(crate) tubes: usize,
    pub(crate) priorities: u64,
    pub(crate) delay: u64,
    /// Jobs that a [`Workload::Kick`] kicks.
    pub(crate) kick: Option<u64>,
    /// Open loop: commands a second.
    pub(crate) rate: Option<f64>,
    /// One more connection measures what another client feels …
    pub(crate) probe: bool,
    /// … and goes on for so long after the rest.
    pub(crate) linger: Duration,
    /// Connections come while the load runs, do one round, and come again.
    pub(crate) herd: bool,
    /// Tell a terminal how far it is.
    pub(crate) progress: bool,
}

impl Plan {
    pub(crate) fn new(address: SocketAddr, shape: Shape, workload: Workload) -> Plan {
        Plan {
            address,
            shape,
            workload,
            jobs: None,
            time: None,
            bodies: BodySizes::fixed(100),
            tubes: 0,
            priorities: 1,
            delay: 0,
            kick: None,
            rate: None,
            probe: false,
            linger: Duration::ZERO,
            herd: false,
            progress: false,
        }
    }

    /// Run it from beginning to end.
    pub(crate) fn run(&self) -> io::Result<Outcome> {
        Load::new(self)?.run()
    }

    /// What its connections send.
    pub(crate) fn script(&self) -> Script {
        let mut script = Script::new(self.workload, self.shape.pipeline, self.bodies.clone());
        script.priorities = self.priorities;
        script.delay = self.delay;
        script.kick = self.kick.unwrap_or(script.kick);
        script
    }
}
