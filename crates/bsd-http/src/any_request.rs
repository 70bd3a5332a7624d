//! Invariants of any request, as far as it can be read without an engine: no panic, and a parsed
//! request is written again in the same words. The fuzz target `request` uses it.

use hyper::Method;
use hyper::header::{HOST, HeaderMap, HeaderValue, ORIGIN};
use serde_json::Value;

use super::api::fields::Fields;
use super::api::filter::{Filter, Pattern};
use super::api::{policies, tasks};
use super::guard::Access;
use super::query::{Query, decode};
use super::routes::{Found, find};

/// Panics unless all holds. The first line is a path with its query, the second a host, and the
/// rest a body.
pub fn any_request(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    any_path(line());
    any_host(line());
    any_body(line());
}

fn any_path(target: &str) {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    for method in [Method::GET, Method::PUT, Method::POST, Method::DELETE] {
        let Found::Route(route) = find(&method, path) else {
            continue;
        };
        // Either may be refused.
        let _ = decode(route.captured(path).unwrap_or_default());
        if let Ok(query) = Query::parse(Some(query), route.parameters) {
            let known = route.parameters.iter();
            for parameter in known.filter(|it| query.text(it.name).is_some()) {
                let number = query.number(parameter.name, 1, 10);
                assert!(number.is_err() || matches!(number, Ok(Some(1..=10))));
            }
        }
    }
    if let Ok(pattern) = Pattern::parse(path) {
        let is_plain = !path.contains(['*', '?']);
        assert!(!is_plain || pattern.matches(path), "{path}");
        assert_eq!(pattern.matches(query), is_match(path, query), "{target}");
    }
}

/// Whether a pattern matches a name: the rule itself, with no regard to time.
fn is_match(pattern: &str, name: &str) -> bool {
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for of_pattern in pattern.bytes() {
        let mut next = vec![false; name.len() + 1];
        for at in 0..=name.len() {
            next[at] |= of_pattern == b'*' && (reached[at] || at > 0 && next[at - 1]);
            if at > 0 && (of_pattern == b'?' || of_pattern == name.as_bytes()[at - 1]) {
                next[at] |= reached[at - 1];
            }
        }
        reached = next;
    }
    reached[name.len()]
}

/// A page under a name of its own is never taken for one of this server.
fn any_host(line: &str) {
    let Ok(value) = HeaderValue::from_str(line) else {
        return;
    };
    let mut headers = HeaderMap::new();
    headers.insert(HOST, value.clone());
    headers.insert(ORIGIN, value);
    let is_ours = Access::new(None, Vec::new(), (0, false))
        .check_host(&headers)
        .is_ok();
    let may_be_ours = line.starts_with(|it: char| it.is_ascii_digit() || it == '[')
        || line.to_ascii_lowercase().starts_with("localhost");
    assert!(!is_ours || may_be_ours, "{line}");
}

fn any_body(body: &str) {
    let Ok(fields) = Fields::parse(body.as_bytes()) else {
        return;
    };
    tasks::any_plan(&fields);
    policies::any_policy(&fields);
    if let Ok(filter) = Filter::parse(&fields) {
        let value: &Value = filter.value();
        let again = Fields::parse(value.to_string().as_bytes()).and_then(|it| Filter::parse(&it));
        let again = again.unwrap_or_else(|problem| panic!("{value}: {problem:?}"));
        assert_eq!(again.value(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::any_request;

    #[test]
    fn fuzz_target_request() {
        let target = bsd::check::corpus::Target {
            name: "request",
            check: any_request,
            size_max: 200,
            runs: 2000,
        };
        target.check_corpus();
        target.check_random();
    }
}
