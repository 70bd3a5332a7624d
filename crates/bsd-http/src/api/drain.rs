//! `/api/v1/drain`: whether the server takes jobs.
//!
//! The mode is of the process, not of the log: a restart ends it. SIGUSR1 begins it too.

use hyper::StatusCode;
use serde_json::json;

use super::fields::Fields;
use super::run;
use crate::answer::{Answer, Problem, Said, json};
use crate::doorway::Doorway;
use bsd::door::{Slice, Step, Work};

/// `POST` begins the draining, `DELETE` ends it. Either is answered the same where it was so before.
pub(crate) async fn drain(
    doorway: &Doorway,
    fields: &Fields,
    is_on: bool,
) -> Result<Answer, Problem> {
    fields.only(&[])?;
    let drain = Drain {
        is_on,
        was_on: false,
    };
    let drain = run(doorway, drain).await?;
    let said = match drain.was_on == is_on {
        true => "it was so before",
        false if is_on => "puts are refused",
        false => "puts are taken again",
    };
    let value = json!({"draining": is_on});
    Ok(Said(said.to_owned()).with(json(StatusCode::OK, &value)))
}

struct Drain {
    is_on: bool,
    was_on: bool,
}

impl Work for Drain {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.was_on = slice.engine().is_draining();
        slice.drain(self.is_on);
        Step::Done
    }
}
