//! The documents that `stats`, `stats-tube`, `stats-job` and `list-tubes` are answered with.
//!
//! They are a small part of YAML: `---`, then one `key: value` or `- value` a line. beanstalkd 1.13
//! and bsd put some values in double quotes, earlier ones put none; both are read. A line that is
//! neither is an error: it is better to show nothing than half.

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Digits alone, without quotes.
    Number(u64),
    /// Digits with a point, such as processor times in seconds.
    Decimal(f64),
    /// Anything else, without its quotes.
    Text(String),
}

/// Keys and values, in the order in which the server sent them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Dictionary(pub Vec<(String, Value)>);

/// A line of a document that is neither key nor value, or no entry of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadLine(pub String);

impl Dictionary {
    /// Reads a document of keys and values. The values of `texts` are text, whatever they look
    /// like: a tube may be called `7`, a version is no fraction. Bytes that are not UTF-8 become
    /// U+FFFD.
    ///
    /// # Errors
    /// The line that is neither key nor value.
    pub fn parse(document: &[u8], texts: &[&str]) -> Result<Dictionary, BadLine> {
        let text = String::from_utf8_lossy(document);
        let entry = |line: &str| {
            let (key, value) = line
                .split_once(':')
                .ok_or_else(|| BadLine(line.to_owned()))?;
            let value = match value.trim() {
                value if texts.contains(&key) => parse_text(value),
                value => parse_value(value),
            };
            Ok((key.to_owned(), value))
        };
        lines(&text)
            .map(entry)
            .collect::<Result<_, _>>()
            .map(Dictionary)
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value)
    }

    /// The number of a key, 0 where the key is missing.
    #[must_use]
    pub fn number(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        }
    }

    /// The text of a key as the server wrote it, empty where the key is missing.
    #[must_use]
    pub fn text(&self, key: &str) -> String {
        self.get(key).map(Value::to_string).unwrap_or_default()
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Decimal(number) => number.fmt(f),
            Value::Text(text) => f.write_str(text),
        }
    }
}

/// Reads a document that is a list, such as the names of all tubes.
///
/// # Errors
/// The line that is no entry of a list.
pub(crate) fn parse_list(document: &[u8]) -> Result<Vec<String>, BadLine> {
    let text = String::from_utf8_lossy(document);
    let entry = |line: &str| {
        let value = line
            .strip_prefix("- ")
            .ok_or_else(|| BadLine(line.to_owned()))?;
        Ok(unquoted(value).unwrap_or_else(|| value.to_owned()))
    };
    lines(&text).map(entry).collect()
}

/// Split at line feeds alone: any other control character may be part of a name.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.split('\n').enumerate();
    lines.filter_map(|(number, line)| {
        let is_begin = number == 0 && line == "---";
        (!is_begin && !line.is_empty()).then_some(line)
    })
}

fn parse_text(text: &str) -> Value {
    Value::Text(unquoted(text).unwrap_or_else(|| text.to_owned()))
}

fn parse_value(text: &str) -> Value {
    if let Some(text) = unquoted(text) {
        return Value::Text(text);
    }
    let is_of = |allowed: fn(u8) -> bool| !text.is_empty() && text.bytes().all(allowed);
    if is_of(|byte| byte.is_ascii_digit())
        && let Ok(number) = text.parse()
    {
        return Value::Number(number);
    }
    if is_of(|byte| byte.is_ascii_digit() || byte == b'.')
        && text.bytes().filter(|byte| *byte == b'.').count() == 1
        && let Ok(number) = text.parse()
    {
        return Value::Decimal(number);
    }
    Value::Text(text.to_owned())
}

/// The text between double quotes. A backslash stands before a character that is meant as it is, or
/// before `u` and four hexadecimal digits.
fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let mut out = String::new();
    let mut rest = inner.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => out.push(unescaped(&mut rest)?),
            _ => out.push(letter),
        }
    }
    Some(out)
}

fn unescaped(rest: &mut std::str::Chars<'_>) -> Option<char> {
    let letter = rest.next()?;
    if letter != 'u' {
        return Some(letter);
    }
    let digits = rest.as_str().get(..4)?;
    let code = u32::from_str_radix(digits, 16).ok()?;
    rest.nth(3);
    char::from_u32(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_all_versions_are_read() {
        let document = b"---\nname: \"a:b\"\nid: 12ab\nuptime: 7\nversion: 1.10\ntube: 7\n\
            rusage-utime: 0.250000\nos: \"#1 \\\"SMP\\\" \\u0041\"\nold: t1\nversion2: \"1.13\"\n";
        let found = Dictionary::parse(document, &["version", "tube"]).unwrap();
        let text = |text: &str| Value::Text(text.to_owned());
        for (key, value) in [
            ("name", text("a:b")),
            ("id", text("12ab")),
            ("uptime", Value::Number(7)),
            ("version", text("1.10")),
            ("tube", text("7")),
            ("rusage-utime", Value::Decimal(0.25)),
            ("os", text("#1 \"SMP\" A")),
            ("old", text("t1")),
            ("version2", text("1.13")),
        ] {
            assert_eq!(found.get(key), Some(&value), "{key}");
        }
        assert_eq!(found.number("uptime"), 7);
        assert_eq!((found.number("os"), found.get("none")), (0, None));
        assert_eq!(found.0[0].0, "name", "the server's order");
    }

    #[test]
    fn a_list_has_the_names_as_they_are() {
        let names = parse_list(b"---\n- default\n- \"quoted\"\n- a\rb\n").unwrap();
        assert_eq!(names, ["default", "quoted", "a\rb"]);
        assert_eq!(parse_list(b"---\n").unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_no_document_is_refused_with_the_line() {
        assert_eq!(
            Dictionary::parse(b"---\na: 1\n\xffnoise\n", &[]),
            Err(BadLine("\u{fffd}noise".to_owned()))
        );
        assert_eq!(
            parse_list(b"---\n- a\nb: 1\n"),
            Err(BadLine("b: 1".to_owned()))
        );
        for odd in [
            "\"",
            "\"\\\"",
            "\"\\u12\"",
            "\"\\ud800\"",
            "1.2.3",
            ".",
            "99999999999999999999",
        ] {
            assert!(matches!(parse_value(odd), Value::Text(_)), "{odd}");
        }
    }
}
