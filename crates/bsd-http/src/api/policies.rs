//! Policies of tubes: which there are, and what they have done.
//!
//! A policy is an object whose fields are the names of [`NAMES`]. It is set as a whole: what a request
//! does not name has its default. It is set for a tube, or for the tubes that match a pattern and have
//! none of their own.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::filter::{Pattern, pattern};
use super::look::LIMIT_DEFAULT;
use super::{LIMIT_MAX, bad, gone, not_found, of_error, run, tube_name};
use crate::answer::{Answer, Problem, Said, json};
use crate::doorway::Doorway;
use crate::query::Query;
use bsd::attributes::Reason;
use bsd::door::{Slice, Step, Work};
use bsd::policy::{DeadLetter, NAMES, PATTERNS_MAX, POLICIES_MAX, Policy};
use bsd::protocol::{Command, SetPolicy};
use bsd::queue::{Queue, TubeFailures};
use bsd::types::{SettingClass, Time};

/// Names of policies that are told of as leading to a dead-letter tube, at most.
const SOURCES_MAX: usize = 20;

/// `GET /api/v1/policies`
pub(crate) async fn list(doorway: &Doorway, query: &Query) -> Result<Answer, Problem> {
    let limit = query.number("limit", 1, LIMIT_MAX as u64)?;
    let listing = Listing {
        after: query.text("after").unwrap_or_default().to_owned(),
        limit: limit.map_or(LIMIT_DEFAULT, |limit| limit as usize),
        found: BTreeMap::new(),
        is_cut: false,
    };
    let listing = run(doorway, listing).await?;
    let last = listing.found.keys().next_back().filter(|_| listing.is_cut);
    let policies = listing.found.iter();
    let policies = policies.map(|(tubes, policy)| json!({"tubes": tubes, "policy": policy}));
    let value = json!({"policies": policies.collect::<Vec<_>>(), "next": last});
    Ok(json(StatusCode::OK, &value))
}

/// `GET /api/v1/tubes/{tube}/policy`
pub(crate) async fn show(doorway: &Doorway, tubes: String) -> Result<Answer, Problem> {
    let found = look(doorway, tubes).await?;
    Ok(json(StatusCode::OK, &found))
}

/// The policy of a tube, or the one that was set for a pattern, as it is answered.
pub(crate) async fn look(doorway: &Doorway, tubes: String) -> Result<Value, Problem> {
    let look = Look {
        tubes: tubes_of(tubes)?,
        found: None,
    };
    let look = run(doorway, look).await?;
    look.found.ok_or_else(|| match look.tubes.name() {
        Some(_) => not_found("there is no such tube, and no policy for one of this name"),
        None => not_found("no policy is set for this pattern"),
    })
}

/// `PUT /api/v1/tubes/{tube}/policy`
pub(crate) async fn set(
    doorway: &Doorway,
    tubes: String,
    fields: &Fields,
) -> Result<Answer, Problem> {
    let (tubes, policy) = (tubes_of(tubes)?, parse(fields)?);
    if policy == Policy::default() {
        return Err(bad(
            "this policy says nothing: name a value, or remove the policy with DELETE",
        ));
    }
    change(doorway, tubes, policy).await
}

/// `DELETE /api/v1/tubes/{tube}/policy`
pub(crate) async fn remove(doorway: &Doorway, tubes: String) -> Result<Answer, Problem> {
    change(doorway, tubes_of(tubes)?, Policy::default()).await
}

async fn change(doorway: &Doorway, tubes: Pattern, policy: Policy) -> Result<Answer, Problem> {
    let said = policy.to_string();
    let change = Change {
        set: SetPolicy { tubes, policy },
        outcome: None,
    };
    let Change { set, outcome } = run(doorway, change).await?;
    outcome.ok_or_else(gone)??;
    let policy = (set.policy != Policy::default()).then(|| policy_value(&set.policy));
    let value = json!({"tubes": set.tubes.text(), "policy": policy});
    Ok(Said(said).with(json(StatusCode::OK, &value)))
}

/// A tube, or a pattern of tubes.
fn tubes_of(text: String) -> Result<Pattern, Problem> {
    let tubes = pattern(&text)?;
    if tubes.name().is_some() {
        tube_name(text)?;
    }
    Ok(tubes)
}

/// The policy that these fields say.
fn parse(fields: &Fields) -> Result<Policy, Problem> {
    let mut words = Vec::new();
    for (name, value) in fields.words()? {
        // It would be two values.
        if name.contains(' ') || value.contains(' ') {
            return Err(bad(format!("{name:?} or its value has a blank in it")));
        }
        words.push(format!("{name}={value}"));
    }
    let policy = words.join(" ").parse::<Policy>();
    policy.map_err(|error| bad(error.to_string()))
}

/// A policy with what it says, and nothing of what has its default.
fn policy_value(policy: &Policy) -> Value {
    let values = policy.values().into_iter();
    let values = values.map(|(name, value)| (name.to_owned(), value_of(name, value)));
    Value::Object(values.collect::<Map<_, _>>())
}

/// A number where the name is one of a number: a tube may be called `7`.
fn value_of(name: &str, value: String) -> Value {
    if WORDS.contains(&name) {
        return value.into();
    }
    serde_json::from_str(&value).unwrap_or_else(|_| value.into())
}

/// Names of values that are texts, whatever they look like.
const WORDS: [&str; 3] = ["dead-letter", "expired", "rate"];

/// Whether values of this name are numbers.
pub(crate) fn is_number(name: &str) -> bool {
    !WORDS.contains(&name)
}

/// What has failed, by reason.
fn failures_value(failures: &TubeFailures) -> Value {
    let counts = Reason::ALL.into_iter().zip(failures.by_reason);
    let counts = counts.map(|(reason, count)| (reason.word().to_owned(), count.into()));
    Value::Object(counts.collect::<Map<_, _>>())
}

/// A page of policies, by the names and patterns under which they were set. There are so few that one
/// step looks at all.
struct Listing {
    after: String,
    limit: usize,
    found: BTreeMap<String, Value>,
    /// There are more than are kept.
    is_cut: bool,
}

impl Work for Listing {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        for (tubes, policy) in slice.engine().queue().policies() {
            let last = self.found.keys().next_back();
            let is_full = self.found.len() == self.limit;
            let is_behind = is_full && last.is_some_and(|last| tubes > &**last);
            if tubes <= &*self.after {
                continue;
            }
            if !is_behind {
                self.found.insert(tubes.to_owned(), policy_value(policy));
            }
            if self.found.len() > self.limit {
                self.found.pop_last();
            }
            self.is_cut |= is_full;
        }
        Step::Done
    }
}

struct Look {
    tubes: Pattern,
    found: Option<Value>,
}

impl Work for Look {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let queue = slice.engine().queue();
        self.found = match self.tubes.name() {
            Some(tube) => of_tube(queue, tube, slice.now().mono),
            None => of_pattern(queue, self.tubes.text()),
        };
        Step::Done
    }
}

fn of_pattern(queue: &Queue, text: &str) -> Option<Value> {
    let mut policies = queue.policies();
    let (set_for, policy) = policies.find(|(set_for, _)| *set_for == text)?;
    Some(json!({"tube": null, "set_for": set_for, "policy": policy_value(policy)}))
}

fn of_tube(queue: &Queue, tube: &str, now: Time) -> Option<Value> {
    let policy = queue.policy_of(tube);
    if policy.is_none() && !queue.tube_exists(tube) {
        return None;
    }
    let failures = queue.tube_failures(tube, now);
    Some(json!({
        "tube": tube,
        "set_for": policy.map(|(set_for, _)| set_for),
        "policy": policy.map(|(_, policy)| policy_value(policy)),
        "jobs": queue.job_count(tube),
        "bytes": queue.body_bytes(tube),
        "failures": failures_value(&failures),
        "set_aside": failures.set_aside,
        "puts_refused": failures.puts_refused,
        "dead_letters_of": sources(queue, tube),
    }))
}

/// The names and patterns of tubes whose dead letters go to a tube, the first of them.
fn sources<'a>(queue: &'a Queue, tube: &str) -> Vec<&'a str> {
    let leads_there = |policy: &Policy| match &policy.dead_letter {
        DeadLetter::Tube(to) => **to == *tube,
        DeadLetter::Bury | DeadLetter::Delete => false,
    };
    let policies = queue.policies();
    let sources = policies.filter(|(_, policy)| leads_there(policy));
    sources.map(|(tubes, _)| tubes).take(SOURCES_MAX).collect()
}

/// Sets a policy, or removes one.
struct Change {
    set: SetPolicy,
    outcome: Option<Result<(), Problem>>,
}

impl Work for Change {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.outcome = Some(self.run(slice));
        Step::Done
    }
}

impl Change {
    fn run(&self, slice: &mut Slice<'_>) -> Result<(), Problem> {
        let SetPolicy { tubes, policy } = &self.set;
        let engine = slice.engine();
        // Also one that this version does not understand can be removed.
        let is_set = engine.setting(SettingClass::Policy, tubes.text()).is_some();
        let is_removed = *policy == Policy::default();
        if is_removed && !is_set {
            return Err(not_found("no policy is set for exactly this"));
        }
        if !is_removed && !engine.queue().has_room_for_policy(tubes) {
            return Err(Problem::new(
                StatusCode::INSUFFICIENT_STORAGE,
                format!(
                    "there may be {POLICIES_MAX} policies of tubes and {PATTERNS_MAX} of patterns: \
                     remove one, or set one for a pattern"
                ),
            ));
        }
        let set = slice.run(Command::SetPolicy(Box::new(self.set.clone())));
        set.map(drop).map_err(|error| of_error(&error))
    }
}

/// Check that a parsed policy is written in the same words again.
#[cfg(any(test, feature = "sim"))]
pub(crate) fn any_policy(fields: &Fields) {
    let Ok(policy) = parse(fields) else {
        return;
    };
    let value = policy_value(&policy);
    let again = Fields::parse(value.to_string().as_bytes()).and_then(|it| parse(&it));
    let again = again.unwrap_or_else(|problem| panic!("{value}: {problem:?}"));
    assert_eq!(again, policy);
}

/// The names of the values of a policy.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Policy, Problem> {
        parse(&Fields::parse(text.as_bytes())?)
    }

    #[test]
    fn values_are_texts_or_numbers_and_are_shown_as_what_they_are() {
        let text = r#"{"delivery-limit":8,"dead-letter":"007","retry-min":"5","retry-max":60,
            "retry-multiplier":1.5,"rate":"100/s","max-bytes":18446744073709551615,"max-jobs":null}"#;
        let policy = parsed(text).unwrap();
        let value = policy_value(&policy);
        let wanted = json!({"delivery-limit": 8, "dead-letter": "007", "retry-min": 5,
            "retry-multiplier": 1.5, "retry-max": 60, "retry-jitter": 0, "rate": "100/s",
            "max-bytes": u64::MAX});
        assert_eq!(value, wanted);
        assert_eq!(parsed(&value.to_string()).unwrap(), policy);
    }

    #[test]
    fn what_is_no_policy_is_refused_and_no_value_is_two() {
        for (text, reason) in [
            (r#"{"limit":8}"#, "a policy has no 'limit'"),
            (r#"{"delivery-limit":0}"#, "a number, at least 1"),
            (r#"{"delivery-limit":-1}"#, "a number, at least 1"),
            (r#"{"delivery-limit":1.5}"#, "a number, at least 1"),
            (r#"{"delivery-limit":"8 rate=5/s"}"#, "a blank in it"),
            (r#"{"rate=5/s delivery-limit":8}"#, "a blank in it"),
            (r#"{"delivery-limit":true}"#, "a text or a number"),
            (r#"{"delivery-limit":[8]}"#, "a text or a number"),
            (r#"{"retry-max":5}"#, "without retry-min"),
        ] {
            let problem = parsed(text).unwrap_err();
            assert_eq!(problem.status, StatusCode::BAD_REQUEST, "{text}");
            assert!(problem.detail.contains(reason), "{text}: {problem:?}");
        }
    }

    #[test]
    fn a_policy_is_for_a_name_of_a_tube_or_a_pattern() {
        for (text, is_right) in [
            ("mail", true),
            ("mail-*", true),
            ("-*", true),
            ("-mail", false),
            ("a b", false),
            ("", false),
        ] {
            assert_eq!(tubes_of(text.to_owned()).is_ok(), is_right, "{text}");
        }
    }

    #[test]
    fn each_name_of_a_word_is_a_name_of_a_policy() {
        assert!(WORDS.iter().all(|word| names().any(|name| name == *word)));
    }
}
