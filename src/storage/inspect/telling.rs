//! The history of a job, in words.

use super::history::{Event, State};
use crate::types::{Counters, JobState};

/// How a time is said: wall time, nanoseconds since 1970.
type Say<'a> = &'a dyn Fn(u64) -> String;

impl Event {
    /// The event in words. `say` tells when a delayed job becomes due.
    #[must_use]
    pub fn in_words(&self, say: Say<'_>) -> String {
        match self {
            Event::Put {
                tube,
                ttr,
                body_size,
                state,
            } => {
                let (pri, delay, due) = (state.pri, state.delay, due(state, say));
                format!(
                    "put in {tube}, {body_size} bytes, pri {pri}, delay {delay}, ttr {ttr}{due}"
                )
            }
            Event::Deleted => "deleted".to_owned(),
            Event::Changed { before, state } => tell_change(before.as_ref(), state, say),
        }
    }
}

fn due(state: &State, say: Say<'_>) -> String {
    let due = state.deadline_wall_ns.map(say);
    due.map_or(String::new(), |due| format!(", due {due}"))
}

fn tell_change(before: Option<&State>, state: &State, say: Say<'_>) -> String {
    let was = before.map(|before| before.counters);
    let mut told = tell_counts(was.unwrap_or_default(), state);
    if before.is_none() {
        told.insert(0, "so far".to_owned());
    }
    let pri = match before {
        Some(before) if before.pri == state.pri => String::new(),
        _ => format!(", pri {}", state.pri),
    };
    let now = match state.state {
        JobState::Ready | JobState::Reserved => "ready".to_owned(),
        JobState::Delayed => format!("delayed by {} s{}", state.delay, due(state, say)),
        JobState::Buried => "buried".to_owned(),
    };
    if told.is_empty() {
        format!("now {now}{pri}")
    } else {
        format!("{}; now {now}{pri}", told.join(", "))
    }
}

/// Later events, according to the counters.
fn tell_counts(was: Counters, state: &State) -> Vec<String> {
    let now = state.counters;
    let with_delay = match state.state {
        JobState::Delayed => "released with delay",
        _ => "released",
    };
    let counts = [
        ("reserved", was.reserves, now.reserves),
        ("timed out", was.timeouts, now.timeouts),
        (with_delay, was.releases, now.releases),
        ("buried", was.buries, now.buries),
        ("kicked", was.kicks, now.kicks),
    ];
    let times = |(what, was, now): (&str, u32, u32)| match now.saturating_sub(was) {
        0 => None,
        1 => Some(what.to_owned()),
        times => Some(format!("{what} {times} times")),
    };
    counts.into_iter().filter_map(times).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(time: u64) -> String {
        format!("at {time}")
    }

    const READY: State = State {
        state: JobState::Ready,
        deadline_wall_ns: None,
        pri: 5,
        delay: 0,
        counters: Counters {
            reserves: 1,
            timeouts: 0,
            releases: 0,
            buries: 0,
            kicks: 0,
        },
    };

    #[test]
    fn what_has_changed_is_told_and_nothing_else() {
        let mut state = READY;
        state.counters.reserves = 3;
        state.counters.timeouts = 1;
        assert_eq!(
            tell_change(Some(&READY), &state, &say),
            "reserved 2 times, timed out; now ready"
        );
        let delayed = State {
            state: JobState::Delayed,
            deadline_wall_ns: Some(1_000_000_000),
            pri: 9,
            delay: 30,
            counters: Counters {
                releases: 1,
                ..READY.counters
            },
        };
        assert_eq!(
            tell_change(Some(&READY), &delayed, &say),
            "released with delay; now delayed by 30 s, due at 1000000000, pri 9"
        );
        assert_eq!(
            tell_change(None, &READY, &say),
            "so far, reserved; now ready, pri 5"
        );
        assert_eq!(tell_change(Some(&READY), &READY, &say), "now ready");
    }
}
