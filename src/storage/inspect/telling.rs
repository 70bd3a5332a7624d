//! The history of a job, in words.

use super::history::{Event, State};
use crate::attributes::{Attributes, RESERVED_SINCE};
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
            Event::Attributes(list) => match attributes_in_words(list, say) {
                words if words.is_empty() => "a plain job again".to_owned(),
                words => words,
            },
            Event::Changed { before, state } => tell_change(before.as_ref(), state, say),
        }
    }
}

/// A list of attributes in words; empty without attributes. `say` tells times. Bytes that a terminal
/// might obey are escaped.
#[must_use]
pub fn attributes_in_words(list: &[u8], say: &dyn Fn(u64) -> String) -> String {
    let found = Attributes::decode(list).unwrap_or_default();
    let failures = |count: u32| match count {
        1 => "1 failure".to_owned(),
        count => format!("{count} failures"),
    };
    let told = [
        found.key.map(|key| format!("key {key}")),
        found
            .unique
            .map(|unique| format!("unique {}", unique.word())),
        found.group.map(|group| format!("group {group}")),
        found.tube.map(|tube| format!("moved to {tube}")),
        found
            .counted_from
            .map(|reserves| format!("counted from reserve {reserves}")),
        found.failures.map(failures),
        found
            .reason
            .map(|reason| format!("reason {}", reason.word())),
        found
            .text
            .map(|text| format!("text \"{}\"", text.escape_ascii())),
        found
            .dead_lettered_from
            .map(|tube| format!("dead letter from {tube}")),
        found.counted_since_wall_ns.map(|at| match at {
            RESERVED_SINCE => "reserved since".to_owned(),
            at => format!("since {}", say(at)),
        }),
    ];
    told.into_iter().flatten().collect::<Vec<_>>().join(", ")
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
    use crate::attributes::Reason;

    fn say(time: u64) -> String {
        format!("at {time}")
    }

    const READY: State = State {
        state: JobState::Ready,
        deadline_wall_ns: None,
        pri: 5,
        delay: 0,
        counters: Counters::new([1, 0, 0, 0, 0]),
    };

    #[test]
    fn attributes_are_told_one_by_one_and_none_is_a_plain_job() {
        let attributes = Attributes {
            key: Some("a-5"),
            tube: Some("dead"),
            counted_from: Some(4),
            failures: Some(1),
            reason: Some(Reason::Failed),
            text: Some(b"no\nhost"),
            dead_lettered_from: Some("mail"),
            counted_since_wall_ns: Some(7),
            ..Attributes::default()
        };
        let reserved = Attributes {
            counted_since_wall_ns: Some(RESERVED_SINCE),
            ..attributes
        };
        let told = Event::Attributes(reserved.encode().unwrap()).in_words(&say);
        assert!(
            told.ends_with("dead letter from mail, reserved since"),
            "{told}"
        );
        let event = Event::Attributes(attributes.encode().unwrap());
        assert_eq!(
            event.in_words(&say),
            "key a-5, moved to dead, counted from reserve 4, 1 failure, reason failed, text \"no\\nhost\", \
             dead letter from mail, since at 7"
        );
        assert_eq!(
            Event::Attributes(Vec::new()).in_words(&say),
            "a plain job again"
        );
    }

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
