//! What has happened to jobs, as the server's API counts it: of all tubes, and of each that it counts.
//! The protocol tells it of no tube but for puts and deletes, and of all tubes counts commands, whether
//! they found a job or not.

use std::collections::HashMap;

use bsd_tools::yaml::Dictionary;
use serde_json::Value as Json;

use super::TUBES_MAX;
use crate::api::{Api, ApiArgs, escaped};
use crate::{Context, names};

/// The API makes a round over all tubes: of a server with more tubes than this it is not asked.
const ALL_TUBES_MAX: u64 = 20_000;

/// What happens to jobs: what it is called here, and by the API.
pub(super) const KINDS: [(&str, &str); 8] = [
    ("put", "puts"),
    ("reserve", "reserves"),
    ("delete", "deletes"),
    ("timeout", "timeouts"),
    ("release", "releases"),
    ("bury", "buries"),
    ("kick", "kicks"),
    ("fail", "fails"),
];

/// How often each of [`KINDS`] has happened.
pub(super) type Counts = [u64; KINDS.len()];

/// How far the counts were at one time.
#[derive(Debug, Clone)]
pub(super) struct Events {
    /// When they were asked for, seconds on the sampler's clock.
    pub(super) at: f64,
    pub(super) all: Counts,
    /// Of the tubes of the pattern; zeros of one in which nothing was counted yet.
    pub(super) tubes: HashMap<String, Counts>,
}

impl Events {
    /// What the API has answered.
    pub(super) fn of(ranking: &Json, at: f64) -> Events {
        let counts = |of: &Json| KINDS.map(|(_, key)| of[key].as_u64().unwrap_or(0));
        let tubes = ranking["tubes"].as_array().into_iter().flatten();
        let tubes = tubes.filter_map(|tube| {
            let mut events = counts(&tube["tally"]);
            for (count, (_, key)) in events.iter_mut().zip(KINDS) {
                *count = tube[key].as_u64().unwrap_or(*count);
            }
            Some((tube["name"].as_str()?.to_owned(), events))
        });
        Events {
            at,
            all: counts(&ranking["totals"]),
            tubes: tubes.collect(),
        }
    }
}

/// The API, as long as it is that of the server whose `stats` are shown.
pub(super) struct Source {
    api: Option<Api>,
    path: String,
    /// The run of a server that was asked whether the API is its own, and whether it is.
    known: Option<(String, bool)>,
}

impl Source {
    pub(super) fn new(args: &ApiArgs, pattern: Option<&str>, context: &Context<'_>) -> Source {
        let pattern = escaped(pattern.unwrap_or("*"));
        Source {
            api: args.open_hurried(context).ok(),
            path: format!("/ranking?sort=name&limit={TUBES_MAX}&tube={pattern}"),
            known: None,
        }
    }

    /// What has happened in the server with these `stats`, at this time; `None`: it has no API, or that
    /// does not answer now.
    pub(super) fn take(&mut self, stats: &Dictionary, at: f64) -> Option<Events> {
        let api = self.api.as_ref()?;
        let id = stats.text("id");
        if self.known.as_ref().is_none_or(|(known, _)| *known != id) {
            let server = api.get("/server").ok();
            let is_it = !id.is_empty() && server.is_some_and(|server| server["id"] == *id);
            self.known = Some((id, is_it));
        }
        let is_it = self.known.as_ref().is_some_and(|(_, is_it)| *is_it);
        if !is_it || stats.number("current-tubes") > ALL_TUBES_MAX {
            return None;
        }
        let ranking = api.get(&self.path).ok()?;
        Some(Events::of(&ranking, at))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("path", &names::shown(&self.path))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn counts_of_a_tube_are_of_its_tally_and_beside_it() {
        let tally = json!({"reserves": 3, "releases": 4, "buries": 5, "kicks": 6, "timeouts": 7,
            "fails": 8, "wait": {"jobs": 1}});
        let ranking = json!({
            "tubes": [
                {"name": "a", "puts": 1, "deletes": 2, "tally": tally},
                {"name": "b", "puts": 1, "deletes": 0, "tally": null},
            ],
            "totals": {"puts": 2, "reserves": 9, "deletes": 2},
        });
        let events = Events::of(&ranking, 1.5);
        assert_eq!(events.tubes["a"], [1, 3, 2, 7, 4, 5, 6, 8]);
        assert_eq!(events.tubes["b"], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(events.all, [2, 9, 2, 0, 0, 0, 0, 0]);
    }
}
