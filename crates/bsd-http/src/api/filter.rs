//! Selects jobs: by tube, state, id, priority, age, what went wrong, and text in the body.

use memchr::memmem::Finder;
use serde_json::{Map, Value, json};

use super::bad;
use super::fields::{Fields, needed};
use super::look::body_value;
use crate::answer::Problem;
use bsd::attributes::{Attributes, Reason};
use bsd::door::Sought;
use bsd::queue::{JobView, Queue};
use bsd::types::{JobId, JobState, Now, SECOND_NS};
pub(crate) use bsd_net::pattern::Pattern;

/// Bytes that may be looked for in a body, or in what a worker said.
const CONTAINS_SIZE_MAX: usize = 1024;
/// Jobs that may be named one by one.
pub(crate) const IDS_MAX: usize = 1000;
/// The states in which jobs can be meant, in the order in which they are gone through.
pub(super) const STATES: [JobState; 3] = [JobState::Ready, JobState::Delayed, JobState::Buried];

/// Parse what tubes are meant.
pub(crate) fn pattern(text: &str) -> Result<Pattern, Problem> {
    Pattern::parse(text).map_err(|error| bad(error.to_string()))
}

/// A range, both ends of it included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    min: u64,
    max: u64,
}

impl Range {
    fn parse(fields: &Fields, min: &str, max: &str) -> Result<Range, Problem> {
        Ok(Range {
            min: fields.number(min, 0, u64::MAX)?.unwrap_or(0),
            max: fields.number(max, 0, u64::MAX)?.unwrap_or(u64::MAX),
        })
    }

    fn has(self, value: u64) -> bool {
        (self.min..=self.max).contains(&value)
    }
}

/// Which jobs are meant.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    pub(super) tube: Pattern,
    /// Some of [`STATES`], in their order.
    pub(super) states: Vec<JobState>,
    /// Only these, in the order of their ids, each once.
    pub(super) listed: Option<Vec<JobId>>,
    ids: Range,
    priorities: Range,
    /// Seconds.
    ages: Range,
    /// Why their last deliveries failed, or they were buried.
    reason: Option<Reason>,
    /// The tubes from which they came as dead letters.
    dead_lettered_from: Option<Pattern>,
    /// In what a worker said of the last failure.
    text: Option<Finder<'static>>,
    contains: Option<Finder<'static>>,
    /// As it was sent, without fields that were left out.
    value: Value,
}

impl Filter {
    /// The names of its fields.
    pub(super) const FIELDS: &[&str] = &[
        "tube",
        "states",
        "ids",
        "id_min",
        "id_max",
        "priority_min",
        "priority_max",
        "age_min_seconds",
        "age_max_seconds",
        "reason",
        "dead_lettered_from",
        "text",
        "contains",
    ];

    /// The tube is never left out: to mean all of them, say `*`.
    pub(crate) fn parse(fields: &Fields) -> Result<Filter, Problem> {
        fields.only(Filter::FIELDS)?;
        let tube = pattern(needed("tube", fields.text("tube")?)?)?;
        let states = match fields.texts("states")? {
            None => STATES.to_vec(),
            Some(words) => parse_states(&words)?,
        };
        let (text, contains) = (part(fields, "text")?, part(fields, "contains")?);
        let ids = Range::parse(fields, "id_min", "id_max")?;
        let priorities = Range::parse(fields, "priority_min", "priority_max")?;
        let ages = Range::parse(fields, "age_min_seconds", "age_max_seconds")?;
        let words: Vec<_> = states.iter().map(|state| state.word()).collect();
        let mut value = json!({"tube": tube.to_string(), "states": words});
        for (range, name, unit) in [(ids, "id", ""), (priorities, "priority", "")]
            .into_iter()
            .chain([(ages, "age", "_seconds")])
        {
            if range.min > 0 {
                value[format!("{name}_min{unit}")] = range.min.into();
            }
            if range.max < u64::MAX {
                value[format!("{name}_max{unit}")] = range.max.into();
            }
        }
        let listed = parse_ids(fields)?;
        if let Some(listed) = &listed {
            value["ids"] = listed.iter().map(|id| id.0).collect();
        }
        let reason = fields.text("reason")?.map(parse_reason).transpose()?;
        if let Some(reason) = reason {
            value["reason"] = reason.word().into();
        }
        let from = fields.text("dead_lettered_from")?;
        let dead_lettered_from = from.map(pattern).transpose()?;
        if let Some(from) = &dead_lettered_from {
            value["dead_lettered_from"] = from.text().into();
        }
        for (name, part) in [("text", &text), ("contains", &contains)] {
            if let Some(part) = part {
                value[name] = body_value(part);
            }
        }
        let finder = |part: Vec<u8>| Finder::new(&part).into_owned();
        Ok(Filter {
            tube,
            states,
            listed,
            ids,
            priorities,
            ages,
            reason,
            dead_lettered_from,
            text: text.map(finder),
            contains: contains.map(finder),
            value,
        })
    }

    /// All jobs of a tube in these states.
    pub(super) fn of_tube(tube: &str, states: Vec<JobState>) -> Result<Filter, Problem> {
        let words: Vec<_> = states.iter().map(|state| state.word()).collect();
        let text = json!({"tube": tube, "states": words}).to_string();
        Filter::parse(&Fields::parse(text.as_bytes())?)
    }

    /// As it was sent.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// The tube whose jobs in these states are meant, all of them; `None`: the filter tells some of them
    /// apart, or means several tubes.
    pub(super) fn whole_tube(&self) -> Option<&str> {
        let said = self.value.as_object().map_or(0, Map::len);
        self.tube
            .name()
            .filter(|_| said == ["tube", "states"].len())
    }

    fn matches_failure(&self, queue: &Queue, id: JobId) -> bool {
        let (from, text) = (self.dead_lettered_from.as_ref(), self.text.as_ref());
        if self.reason.is_none() && from.is_none() && text.is_none() {
            return true;
        }
        let Some(has) = queue.attributes(id).and_then(Attributes::decode) else {
            return false;
        };
        let is_from = |tubes: &Pattern| has.dead_lettered_from.is_some_and(|it| tubes.matches(it));
        let is_in = |text: &Finder<'_>| has.text.is_some_and(|it| text.find(it).is_some());
        self.reason.is_none_or(|reason| has.reason == Some(reason))
            && from.is_none_or(is_from)
            && text.is_none_or(is_in)
    }
}

impl Sought for Filter {
    fn tubes(&self) -> &Pattern {
        &self.tube
    }

    fn listed(&self) -> Option<&[JobId]> {
        self.listed.as_deref()
    }

    fn matches(&self, queue: &Queue, job: &JobView<'_>, now: Now) -> bool {
        let age_ns = now.mono.since(job.created).max(0);
        self.ids.has(job.id.0)
            && self.priorities.has(job.pri.into())
            && self.ages.has((age_ns / SECOND_NS) as u64)
            && self.matches_failure(queue, job.id)
    }

    fn text_size(&self, queue: &Queue, id: JobId) -> usize {
        let list = self.text.as_ref().and_then(|_| queue.attributes(id));
        list.map_or(0, <[u8]>::len)
    }

    fn needs_body(&self) -> bool {
        self.contains.is_some()
    }

    fn matches_body(&self, body: &[u8]) -> bool {
        let contains = self.contains.as_ref();
        contains.is_none_or(|it| it.find(body).is_some())
    }
}

/// Bytes to be looked for.
fn part(fields: &Fields, name: &str) -> Result<Option<Vec<u8>>, Problem> {
    let part = fields.bytes(name)?;
    let is_right = |part: &Vec<u8>| (1..=CONTAINS_SIZE_MAX).contains(&part.len());
    match part.as_ref().is_none_or(is_right) {
        true => Ok(part),
        false => Err(bad(format!("{name} has 1 to {CONTAINS_SIZE_MAX} bytes"))),
    }
}

/// The reasons that jobs may have, by their names.
pub(crate) fn reasons() -> Vec<&'static str> {
    Reason::ALL.map(Reason::word).to_vec()
}

fn parse_reason(word: &str) -> Result<Reason, Problem> {
    Reason::parse(word).ok_or_else(|| bad(format!("reason is one of {:?}", reasons())))
}

/// The ids that are named, in their order, each once.
fn parse_ids(fields: &Fields) -> Result<Option<Vec<JobId>>, Problem> {
    let Some(mut ids) = fields.numbers("ids")? else {
        return Ok(None);
    };
    if !(1..=IDS_MAX).contains(&ids.len()) {
        return Err(bad(format!(
            "ids is a list of 1 to {IDS_MAX} ids; to mean more jobs, say what they have in common"
        )));
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids.into_iter().map(JobId).collect()))
}

/// The states that these words name, in the order in which they are gone through.
pub(super) fn parse_states(words: &[&str]) -> Result<Vec<JobState>, Problem> {
    let is_known = |word: &&str| STATES.iter().any(|state| state.word() == *word);
    if words.is_empty() || !words.iter().all(is_known) {
        let known = STATES.map(JobState::word);
        return Err(bad(format!("states is a list of some of {known:?}")));
    }
    let mut states = STATES.to_vec();
    states.retain(|state| words.contains(&state.word()));
    Ok(states)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_text_and_a_question_mark_any_character() {
        for (pattern, name, is_match) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "b", false),
            ("*", "x", true),
            ("**", "x", true),
            ("a*", "a", true),
            ("*a", "bba", true),
            ("*a", "bab", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("?", "x", true),
            ("?", "xy", false),
            ("a?c", "abc", true),
            ("*?", "x", true),
            ("a/*/b", "a/x/y/b", true),
        ] {
            let found = Pattern::parse(pattern).unwrap().matches(name);
            assert_eq!(found, is_match, "{pattern} {name}");
        }
        assert!(Pattern::parse("").is_err() && Pattern::parse("a b").is_err());
        assert_eq!(Pattern::parse("a/b").unwrap().name(), Some("a/b"));
        assert_eq!(Pattern::parse("a?").unwrap().name(), None);
    }

    #[test]
    fn what_was_said_is_said_again() {
        for text in [
            r#"{"states":["ready","buried"],"tube":"*"}"#,
            r#"{"age_min_seconds":5,"id_max":9,"priority_min":1,"states":["delayed"],"tube":"t"}"#,
            r#"{"ids":[1,7,18446744073709551615],"states":["buried"],"tube":"*"}"#,
            r#"{"contains":{"data":"x","encoding":"text"},"states":["ready"],"tube":"t"}"#,
            r#"{"dead_lettered_from":"m*","reason":"ttr","states":["ready"],"tube":"t"}"#,
            r#"{"states":["ready"],"text":{"data":"no host","encoding":"text"},"tube":"t"}"#,
        ] {
            let fields = Fields::parse(text.as_bytes()).unwrap();
            let filter = Filter::parse(&fields).unwrap();
            let again: Value = serde_json::from_str(text).unwrap();
            assert_eq!(*filter.value(), again);
        }
        for wrong in [
            r#"{}"#,
            r#"{"tube":"t","states":[]}"#,
            r#"{"tube":"t","states":["reserved"]}"#,
            r#"{"tube":"t","contains":{"data":""}}"#,
            r#"{"tube":"t","text":{"data":""}}"#,
            r#"{"tube":"t","id_min":-1}"#,
            r#"{"tube":"t","reason":"TTR"}"#,
            r#"{"tube":"t","dead_lettered_from":""}"#,
            r#"{"tube":"t","ids":[]}"#,
            r#"{"tube":"t","ids":[-1]}"#,
            r#"{"tube":"t","ids":7}"#,
            r#"{"ids":[7]}"#,
            r#"{"tube":"t","state":"ready"}"#,
        ] {
            let fields = Fields::parse(wrong.as_bytes()).unwrap();
            assert!(Filter::parse(&fields).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_whole_tube_is_one_of_whose_jobs_nothing_but_the_states_is_said() {
        for (text, whole) in [
            (r#"{"tube":"t"}"#, Some("t")),
            (r#"{"tube":"t","states":["buried"]}"#, Some("t")),
            (r#"{"tube":"t*"}"#, None),
            (r#"{"tube":"t","id_min":0}"#, Some("t")),
            (r#"{"tube":"t","id_min":1}"#, None),
            (r#"{"tube":"t","ids":[1]}"#, None),
            (r#"{"tube":"t","reason":"ttr"}"#, None),
            (r#"{"tube":"t","text":{"data":"x"}}"#, None),
            (r#"{"tube":"t","contains":{"data":"x"}}"#, None),
        ] {
            let fields = Fields::parse(text.as_bytes()).unwrap();
            let filter = Filter::parse(&fields).unwrap();
            assert_eq!(filter.whole_tube(), whole, "{text}");
        }
    }
}
