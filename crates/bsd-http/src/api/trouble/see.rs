//! Looking at a server: which questions are asked, and when none can be.

use std::collections::HashMap;
use std::sync::Arc;

use super::look::{LookAtHolds, LookAtPolicies, Seen};
use super::tubes;
use crate::State;
use crate::answer::Problem;
use crate::api::run;
use crate::snapshot::Snapshot;

/// Look at the server as it is now. A ready job may have been put this many seconds ago.
pub(crate) async fn see(state: &State, wait_max_seconds: u64) -> Result<Seen, Problem> {
    let mut seen = Seen::outside(state, wait_max_seconds);
    if !state.doorway.is_open() || state.doorway.is_reading_again() {
        // A standby and a member without a leader serve no one, and say so.
        return match seen.standby.is_some() || seen.cluster.is_some() {
            true => Ok(seen),
            false => Err(Problem::unavailable(state.doorway.why_closed().to_string())),
        };
    }
    let Some(snapshot) = state.snapshots.renew(state).await? else {
        if seen.stuck.is_none() {
            return Err(Problem::unavailable("the loop does not answer"));
        }
        return Ok(seen);
    };
    look_at(&mut seen, state, snapshot).await?;
    Ok(seen)
}

/// Look at a server that is open, with a snapshot that the caller already has.
pub(crate) async fn see_in(
    state: &State,
    snapshot: Arc<Snapshot>,
    wait_max_seconds: u64,
) -> Result<Seen, Problem> {
    let mut seen = Seen::outside(state, wait_max_seconds);
    look_at(&mut seen, state, snapshot).await?;
    Ok(seen)
}

async fn look_at(seen: &mut Seen, state: &State, snapshot: Arc<Snapshot>) -> Result<(), Problem> {
    seen.rise = state.past.rise(&snapshot);
    seen.snapshot = Some(snapshot);
    let look = run(&state.doorway, LookAtPolicies::default()).await?;
    if look.hold_back {
        let look = LookAtHolds {
            tubes: tubes::waiting_long(seen),
            holds: HashMap::new(),
        };
        seen.holds = run(&state.doorway, look).await?.holds;
    }
    Ok(())
}
