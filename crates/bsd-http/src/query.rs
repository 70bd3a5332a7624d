//! The query of a request (behind the `?`), and names in its path.

use hyper::StatusCode;

use super::answer::Problem;
use super::route::Parameter;

/// Parameters by name, each of them once, and none that is not known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Those of what a form sends in an address: there a plus sign is a blank.
    pub(super) fn of_form(text: Option<&str>, known: &[Parameter]) -> Result<Query, Problem> {
        let text = text.map(|text| text.replace('+', "%20"));
        Query::parse(text.as_deref(), known)
    }

    /// Those of a request to a route with these.
    pub(super) fn parse(text: Option<&str>, known: &[Parameter]) -> Result<Query, Problem> {
        let mut query = Query::default();
        let pairs = text.unwrap_or_default().split('&');
        for pair in pairs.filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if !known.iter().any(|it| it.name == name) {
                return Err(bad(format!("there is no parameter {name:?} here")));
            }
            if query.text(&name).is_some() {
                return Err(bad(format!("the parameter {name:?} is there twice")));
            }
            query.0.push((name, value));
        }
        Ok(query)
    }

    /// The value of a parameter, if it is there.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(it, _)| it == name);
        found.map(|(_, value)| &**value)
    }

    /// The value of a parameter that is a number in this range.
    pub(super) fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Problem> {
        let parse = |text: &str| {
            let number = text
                .parse()
                .ok()
                .filter(|number| (min..=max).contains(number));
            number.ok_or_else(|| bad(format!("{name} is a number from {min} to {max}")))
        };
        self.text(name).map(parse).transpose()
    }
}

/// The text that percent signs stand for; a plus sign is one.
pub(super) fn decode(text: &str) -> Result<String, Problem> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => hex(rest.next())
                .zip(hex(rest.next()))
                .map(|(high, low)| 16 * high + low),
            other => Some(other),
        };
        bytes.push(decoded.ok_or_else(|| bad("a percent sign is followed by two digits"))?);
    }
    String::from_utf8(bytes).map_err(|_| bad("names and values are UTF-8"))
}

/// A name as it stands in an address.
pub(super) fn encode(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(byte.into());
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

fn hex(byte: Option<u8>) -> Option<u8> {
    (byte? as char).to_digit(16).map(|digit| digit as u8)
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Parameter] = &[Parameter::text("a", ""), Parameter::number("n", "", 1, 10)];

    #[test]
    fn parameters_are_known_and_there_once() {
        let query = Query::parse(Some("a=x%2Fy+z&n=10"), KNOWN).unwrap();
        assert_eq!(query.text("a"), Some("x/y+z"));
        assert_eq!(query.number("n", 1, 10).unwrap(), Some(10));
        assert_eq!(Query::parse(None, KNOWN).unwrap(), Query::default());
        for wrong in [
            "b=1", "a=1&a=2", "a=%", "a=%2", "a=%zz", "a=%ff", "%61%=1", "a=%+1",
        ] {
            assert!(Query::parse(Some(wrong), KNOWN).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_bounded() {
        for (text, is_right) in [
            ("1", true),
            ("10", true),
            ("0", false),
            ("11", false),
            ("x", false),
            ("", false),
            ("-1", false),
        ] {
            let query = Query::parse(Some(&format!("n={text}")), KNOWN).unwrap();
            assert_eq!(query.number("n", 1, 10).is_ok(), is_right, "{text}");
        }
    }
}
