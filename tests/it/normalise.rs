//! Removes allowed differences between the replies of two servers that behave the same, and nothing
//! else.
//!
//! * Ids of jobs become their order of appearance (`#1`, `#2` …), a map for each server.
//! * In `stats`, values that identify the process or the machine, or describe the log's files, are
//!   masked; new numeric keys may follow the last known one.
//! * Ages and times left may differ by one second.
//! * beanstalkd 1.12 does not quote what 1.13 quotes: quotes around a few values are taken off
//!   here, and `faults` tests them.

/// Keys of `stats` and `stats-job` whose values are not compared.
const MASKED: [&str; 14] = [
    "pid",
    "version",
    "rusage-utime",
    "rusage-stime",
    "uptime",
    "binlog-oldest-index",
    "binlog-current-index",
    "binlog-records-migrated",
    "binlog-records-written",
    "binlog-max-size",
    "id",
    "file",
    "hostname",
    "os",
];
/// Keys whose values are compared without the quotes around them.
const QUOTED_SINCE_1_13: [&str; 3] = ["platform", "name", "tube"];
/// Keys whose values may differ by one second.
const CLOCKED: [&str; 3] = ["age", "time-left", "pause-time-left"];

/// The ids that one server has shown, in order of appearance.
#[derive(Debug, Default)]
pub(crate) struct Ids(Vec<u64>);

impl Ids {
    /// The id that appeared as the `ordinal`-th, counted from 1.
    pub(crate) fn id(&self, ordinal: usize) -> Option<u64> {
        self.0.get(ordinal.checked_sub(1)?).copied()
    }

    /// How many ids have appeared.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    fn name(&mut self, id: &str) -> String {
        let Ok(id) = id.parse() else {
            return format!("not an id: {id:?}");
        };
        let known = self.0.iter().position(|seen| *seen == id);
        let index = known.unwrap_or_else(|| {
            self.0.push(id);
            self.0.len() - 1
        });
        format!("#{}", index + 1)
    }
}

/// A reply as it is compared: lines, where the first one is the reply's own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Normal {
    lines: Vec<String>,
    is_server_stats: bool,
}

/// A reply without what may differ.
pub(crate) fn normalise(reply: &[u8], ids: &mut Ids) -> Normal {
    let text = printable(reply);
    let (line, chunk) = text
        .split_once("\\r\\n")
        .unwrap_or((&text, "\\r\\n is missing"));
    let words: Vec<&str> = line.split(' ').collect();
    let (first, is_document) = match words[..] {
        ["INSERTED" | "BURIED", id] => (format!("{} {}", words[0], ids.name(id)), false),
        ["RESERVED" | "FOUND", id, size] => {
            (format!("{} {} {size}", words[0], ids.name(id)), false)
        }
        ["OK", _] => ("OK".to_owned(), true),
        _ => (line.to_owned(), false),
    };
    let mut lines = vec![first];
    if is_document {
        lines.extend(document(chunk, ids));
    } else {
        lines.push(chunk.to_owned());
    }
    let is_server_stats = lines
        .get(2)
        .is_some_and(|line| line.starts_with("current-jobs-urgent"));
    Normal {
        lines,
        is_server_stats,
    }
}

/// How the reply of the server under test differs from the reference; `None` if it does not.
pub(crate) fn difference(reference: &Normal, tested: &Normal) -> Option<String> {
    let common = reference.lines.len();
    for (index, expected) in reference.lines.iter().enumerate() {
        match tested.lines.get(index) {
            Some(got) if is_same_line(expected, got) => {}
            // A document ends with an end of line, so after all keys comes one empty line.
            Some(_) if index + 1 == common && is_more_stats(tested, index) => {}
            got => return Some(format!("line {index}: expected {expected:?}, got {got:?}")),
        }
    }
    let surplus = &tested.lines[common..];
    let is_allowed = surplus.is_empty() || is_more_stats(tested, common - 1);
    (!is_allowed).then(|| format!("surplus lines {surplus:?}"))
}

/// True if all lines from `index` on are new numeric keys of `stats`, then the empty last line.
fn is_more_stats(tested: &Normal, index: usize) -> bool {
    let (Some(more), true) = (tested.lines.get(index..), tested.is_server_stats) else {
        return false;
    };
    let Some((end, keys)) = more.split_last() else {
        return false;
    };
    end.is_empty() && keys.iter().all(|line| number_of(line).is_some())
}

fn is_same_line(expected: &str, got: &str) -> bool {
    expected == got
        || clock_of(expected)
            .zip(clock_of(got))
            .is_some_and(is_within_one)
}

fn is_within_one(pair: ((&str, i64), (&str, i64))) -> bool {
    let ((key, seconds), (other_key, other_seconds)) = pair;
    key == other_key && (seconds - other_seconds).abs() <= 1
}

fn clock_of(line: &str) -> Option<(&str, i64)> {
    number_of(line).filter(|(key, _)| CLOCKED.contains(key))
}

fn number_of(line: &str) -> Option<(&str, i64)> {
    let (key, value) = line.split_once(": ")?;
    Some((key, value.parse().ok()?))
}

fn document(chunk: &str, ids: &mut Ids) -> Vec<String> {
    let text = chunk
        .strip_suffix("\\r\\n")
        .unwrap_or("the chunk's end is missing");
    let lines: Vec<&str> = text.split("\\n").collect();
    let is_job = lines.get(1).is_some_and(|line| line.starts_with("id: "));
    lines
        .iter()
        .map(|line| dictionary_line(line, is_job, ids))
        .collect()
}

fn dictionary_line(line: &str, is_job: bool, ids: &mut Ids) -> String {
    match line.split_once(": ") {
        Some(("id", id)) if is_job => format!("id: {}", ids.name(id)),
        Some((key, value)) if MASKED.contains(&key) && !value.is_empty() => format!("{key}: *"),
        Some((key, value)) if QUOTED_SINCE_1_13.contains(&key) => {
            format!(
                "{key}: {}",
                value.trim_matches(|quote| matches!(quote, '\'' | '"'))
            )
        }
        _ => line.to_owned(),
    }
}

/// Bytes as ASCII: everything else as the escapes that scripts use.
pub(crate) fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(reference: &str, tested: &str) -> Option<String> {
        let normal = |reply: &str| normalise(reply.as_bytes(), &mut Ids::default());
        difference(&normal(reference), &normal(tested))
    }

    #[test]
    fn ids_are_compared_by_order_of_appearance() {
        let (mut here, mut there) = (Ids::default(), Ids::default());
        for (a, b, same) in [("1", "10", true), ("2", "11", true), ("1", "11", false)] {
            let a = normalise(format!("INSERTED {a}\r\n").as_bytes(), &mut here);
            let b = normalise(format!("INSERTED {b}\r\n").as_bytes(), &mut there);
            assert_eq!(difference(&a, &b).is_none(), same);
        }
    }

    #[test]
    fn one_byte_of_a_body_makes_a_difference() {
        assert_eq!(compare("FOUND 1 2\r\nab\r\n", "FOUND 1 2\r\nab\r\n"), None);
        assert!(compare("FOUND 1 2\r\nab\r\n", "FOUND 1 2\r\na\n\r\n").is_some());
        assert!(compare("FOUND 1 2\r\nab\r\n", "FOUND 1 2\r\nab\n").is_some());
    }

    #[test]
    fn an_age_may_differ_by_one_second_and_a_count_by_none() {
        let job = |age, pri| format!("OK 9\r\n---\nid: 3\npri: {pri}\nage: {age}\n\r\n");
        assert_eq!(compare(&job(4, 1), &job(5, 1)), None);
        assert!(compare(&job(4, 1), &job(6, 1)).is_some());
        assert!(compare(&job(4, 1), &job(4, 2)).is_some());
    }

    #[test]
    fn only_server_stats_may_have_more_keys_and_only_numeric_ones_at_the_end() {
        let stats = |more| format!("OK 9\r\n---\ncurrent-jobs-urgent: 0\nos: x\n{more}\r\n");
        assert_eq!(
            compare(&stats(""), &stats("log-bytes: 12\nlog-files: 1\n")),
            None
        );
        assert!(compare(&stats(""), &stats("log: full\n")).is_some());
        assert!(compare(&stats("log-bytes: 12\n"), &stats("")).is_some());
        assert!(
            compare(
                "OK 9\r\n---\nid: 3\n\r\n",
                "OK 9\r\n---\nid: 3\nnew: 1\n\r\n"
            )
            .is_some()
        );
    }

    #[test]
    fn quotes_around_names_are_no_difference_here() {
        let tube = |name| format!("OK 9\r\n---\nname: {name}\n\r\n");
        assert_eq!(compare(&tube("a'b"), &tube("\"a'b\"")), None);
        assert!(compare(&tube("a"), &tube("b")).is_some());
    }
}
