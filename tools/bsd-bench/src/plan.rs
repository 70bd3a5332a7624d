//! The parameters of a load.

use std::net::SocketAddr;
use std::time::Duration;

use crate::channel::Tls;
use crate::options::{BodySizes, Shape};
use crate::script::{Script, Workload};

/// The parameters of a load.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) address: SocketAddr,
    /// Speak TLS there.
    pub(crate) tls: Option<Tls>,
    pub(crate) shape: Shape,
    pub(crate) workload: Workload,
    /// Stop after this many jobs (in a mix: commands).
    pub(crate) jobs: Option<u64>,
    /// Stop after this time.
    pub(crate) time: Option<Duration>,
    pub(crate) bodies: BodySizes,
    pub(crate) tubes: usize,
    /// The prefix of the tubes' names.
    pub(crate) tube_prefix: &'static str,
    /// Each connection uses all of the tubes, not only its share.
    pub(crate) shares_tubes: bool,
    pub(crate) priorities: u64,
    pub(crate) delay: u64,
    /// Jobs that a [`Workload::Kick`] kicks.
    pub(crate) kick: Option<u64>,
    /// Puts may be refused, the probe's too.
    pub(crate) may_be_refused: bool,
    /// Each connection sends one round and never reads the replies.
    pub(crate) is_deaf: bool,
    /// Open loop: commands per second.
    pub(crate) rate: Option<f64>,
    /// An additional connection measures the latency for another client …
    pub(crate) probe: bool,
    /// … and continues for this long after the rest.
    pub(crate) linger: Duration,
    /// Connections come while the load runs, do one round, and come again.
    pub(crate) herd: bool,
    /// Show the progress on a terminal.
    pub(crate) progress: bool,
}

impl Plan {
    pub(crate) fn new(address: SocketAddr, shape: Shape, workload: Workload) -> Plan {
        Plan {
            address,
            tls: None,
            shape,
            workload,
            jobs: None,
            time: None,
            bodies: BodySizes::fixed(100),
            tubes: 0,
            tube_prefix: "t",
            shares_tubes: false,
            priorities: 1,
            delay: 0,
            kick: None,
            may_be_refused: false,
            is_deaf: false,
            rate: None,
            probe: false,
            linger: Duration::ZERO,
            herd: false,
            progress: false,
        }
    }

    /// The script of its probe.
    pub(crate) fn probe_script(&self) -> Script {
        let mut script = Script::new(Workload::Probe, 1, BodySizes::fixed(100));
        script.may_be_refused = self.may_be_refused;
        script
    }

    /// The script of its connections.
    pub(crate) fn script(&self) -> Script {
        let mut script = Script::new(self.workload, self.shape.pipeline, self.bodies.clone());
        script.priorities = self.priorities;
        script.delay = self.delay;
        script.may_be_refused = self.may_be_refused;
        script.kick = self.kick.unwrap_or(script.kick);
        script
    }
}
