//! The documents of replies: YAML, of which servers write a small part.
//!
//! A document is a list of words, or a map of words to words or to such a list. Each entry is a line.

use crate::error::{Error, Result};

/// A value of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Word(String),
    /// A list; of maps, each line of a map is an item: `id: 17`.
    List(Vec<String>),
}

fn text(bytes: &[u8]) -> Result<&str> {
    let text = std::str::from_utf8(bytes);
    text.map_err(|error| Error::protocol("the document is no text").because(error))
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(str::trim_end);
    lines.filter(|line| !line.is_empty() && *line != "---")
}

/// The items of a list.
pub(crate) fn list(bytes: &[u8]) -> Result<Vec<String>> {
    let mut items = Vec::new();
    for line in lines(text(bytes)?) {
        match line.strip_prefix("- ") {
            Some(item) => items.push(word(item)),
            None if matches!(line, "[]" | "--- []") => {}
            None => return Err(Error::protocol(format!("{line:?} is no item of a list"))),
        }
    }
    Ok(items)
}

/// The ids of a list.
pub(crate) fn ids(bytes: &[u8]) -> Result<Vec<u64>> {
    let number = |item: String| {
        let wrong = |_| Error::protocol(format!("{item:?} is no id"));
        item.parse().map_err(wrong)
    };
    list(bytes)?.into_iter().map(number).collect()
}

/// The entries of a map, in their order.
pub(crate) fn map(bytes: &[u8]) -> Result<Vec<(String, Value)>> {
    let mut entries: Vec<(String, Value)> = Vec::new();
    for line in lines(text(bytes)?) {
        let is_of_list = line.starts_with("- ") || line.starts_with("  ");
        if is_of_list {
            let item = line.strip_prefix("- ").unwrap_or(line).trim_start();
            match entries.last_mut() {
                Some((_, Value::List(items))) => items.push(word(item)),
                Some((_, value)) if *value == Value::Word(String::new()) => {
                    *value = Value::List(vec![word(item)]);
                }
                _ => return Err(Error::protocol(format!("{line:?} is in no list"))),
            }
            continue;
        }
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| Error::protocol(format!("{line:?} is no entry of a map")))?;
        let value = match value.trim_start() {
            "[]" => Value::List(Vec::new()),
            value => Value::Word(word(value)),
        };
        entries.push((name.to_owned(), value));
    }
    Ok(entries)
}

/// A word without its quotes and escapes.
fn word(word: &str) -> String {
    let inner = word
        .strip_prefix('"')
        .and_then(|word| word.strip_suffix('"'));
    match inner {
        Some(inner) if word.len() >= 2 => unescape(inner),
        _ => word.to_owned(),
    }
}

fn unescape(inner: &str) -> String {
    let mut out = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('0') => out.push('\0'),
            Some('a') => out.push('\u{7}'),
            Some('b') => out.push('\u{8}'),
            Some('v') => out.push('\u{b}'),
            Some('f') => out.push('\u{c}'),
            Some('e') => out.push('\u{1b}'),
            Some('x') => out.push(escaped(&mut chars, 2)),
            Some('u') => out.push(escaped(&mut chars, 4)),
            Some('U') => out.push(escaped(&mut chars, 8)),
            Some(other) => out.push(other),
            None => out.push('\\'),
        }
    }
    out
}

/// A character by its number, of which this many digits follow.
fn escaped(chars: &mut std::str::Chars<'_>, digits: usize) -> char {
    let digits: String = chars.by_ref().take(digits).collect();
    let number = u32::from_str_radix(&digits, 16).ok();
    number.and_then(char::from_u32).unwrap_or('\u{fffd}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, value: &str) -> (String, Value) {
        (name.to_owned(), Value::Word(value.to_owned()))
    }

    #[test]
    fn a_map_has_words_lists_and_lists_of_maps() {
        let read =
            map(b"---\nnext: 0\njobs:\n- id: 17\n  size: 120\nname: \"a\\n\\x01b\"\nnone: []\n");
        let jobs = ["id: 17", "size: 120"].map(str::to_owned).to_vec();
        let expected = vec![
            entry("next", "0"),
            ("jobs".to_owned(), Value::List(jobs)),
            entry("name", "a\n\u{1}b"),
            ("none".to_owned(), Value::List(Vec::new())),
        ];
        assert_eq!(read.unwrap(), expected);
    }

    #[test]
    fn a_list_is_empty_or_has_items() {
        assert_eq!(list(b"--- []\n").unwrap(), Vec::<String>::new());
        assert_eq!(
            list(b"---\n- default\n- \"a\"\n").unwrap(),
            ["default", "a"]
        );
        assert_eq!(ids(b"---\n- 2\n").unwrap(), [2]);
        assert!(list(b"what").is_err() && ids(b"---\n- a\n").is_err() && map(b"what").is_err());
    }
}
