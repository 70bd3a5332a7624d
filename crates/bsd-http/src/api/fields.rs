//! Fields of the body of a request: a JSON object whose fields are known.

use base64::Engine as _;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use serde_json::{Map, Value};

use super::bad;
use crate::answer::Problem;

/// The fields of an object. One that is `null` is taken as not there.
#[derive(Debug, Default)]
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    /// An object; no bytes are an object without fields.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Fields, Problem> {
        if bytes.is_empty() {
            return Ok(Fields::default());
        }
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(fields)) => Ok(Fields(fields)),
            Ok(_) => Err(bad("the request is an object in JSON")),
            Err(error) => Err(bad(format!("the request is no JSON: {error}"))),
        }
    }

    /// No other fields than these are there.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Problem> {
        match self.0.keys().find(|name| !known.contains(&&***name)) {
            None => Ok(()),
            Some(name) => Err(bad(format!(
                "there is no field {name:?} here, only {known:?}"
            ))),
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// A text, if it is there.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        let text = |value: &'_ Value| value.is_string();
        match self.get(name) {
            None => Ok(None),
            Some(value) if text(value) => Ok(value.as_str()),
            Some(_) => Err(bad(format!("{name} is a text"))),
        }
    }

    /// All fields that are there, each a text or a number.
    pub(super) fn words(&self) -> Result<Vec<(&str, String)>, Problem> {
        let there = self.0.iter().filter(|(_, value)| !value.is_null());
        let word = |(name, value): (&'_ String, &Value)| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            _ => Err(bad(format!("{name} is a text or a number"))),
        };
        there
            .map(|(name, value)| Ok((&**name, word((name, value))?)))
            .collect()
    }

    /// A number in this range, if it is there.
    pub(super) fn number(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, Problem> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let number = value
            .as_u64()
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| bad(format!("{name} is a whole number from {min} to {max}")))?;
        Ok(Some(number))
    }

    /// A number that a job may have as its priority, delay or time to run.
    pub(super) fn number_of_job(&self, name: &str, min: u64) -> Result<Option<u32>, Problem> {
        let number = self.number(name, min, u32::MAX.into())?;
        Ok(number.map(|number| number as u32))
    }

    /// Whether a flag is set.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(bad(format!("{name} is true or false"))),
        }
    }

    /// A list of texts, if it is there.
    pub(super) fn texts(&self, name: &str) -> Result<Option<Vec<&str>>, Problem> {
        let wrong = || bad(format!("{name} is a list of texts"));
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let items = value.as_array().ok_or_else(wrong)?;
        let texts = items.iter().map(|item| item.as_str().ok_or_else(wrong));
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// A list of whole numbers, if it is there.
    pub(super) fn numbers(&self, name: &str) -> Result<Option<Vec<u64>>, Problem> {
        let wrong = || bad(format!("{name} is a list of whole numbers"));
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let items = value.as_array().ok_or_else(wrong)?;
        let numbers = items.iter().map(|item| item.as_u64().ok_or_else(wrong));
        numbers.collect::<Result<_, _>>().map(Some)
    }

    /// An object, if it is there.
    pub(super) fn object(&self, name: &str) -> Result<Option<Fields>, Problem> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Fields(fields.clone()))),
            Some(_) => Err(bad(format!("{name} is an object"))),
        }
    }

    /// Bytes, as a job's body is shown: `{"encoding": "text" or "base64", "data": …}`.
    pub(super) fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, Problem> {
        let Some(fields) = self.object(name)? else {
            return Ok(None);
        };
        fields.only(&["encoding", "data"])?;
        let data = fields.text("data")?;
        let data = data.ok_or_else(|| bad(format!("{name} needs its data")))?;
        match fields.text("encoding")?.unwrap_or("text") {
            "text" => Ok(Some(data.as_bytes().to_vec())),
            "base64" => {
                let decoded = base64::engine::general_purpose::STANDARD.decode(data);
                decoded
                    .map(Some)
                    .map_err(|error| bad(format!("the data of {name} are no base64: {error}")))
            }
            _ => Err(bad("encoding is text or base64")),
        }
    }
}

/// A field that has to be there.
pub(crate) fn needed<T>(name: &str, value: Option<T>) -> Result<T, Problem> {
    value.ok_or_else(|| bad(format!("the field {name:?} is missing")))
}

/// A request that would change something has to say that it is JSON: a form of another site's page
/// cannot.
pub(crate) fn check_kind(headers: &HeaderMap) -> Result<(), Problem> {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    match kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json")) {
        true => Ok(()),
        false => Err(Problem::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send JSON, and say so: `Content-Type: application/json`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_known_and_of_their_kind() {
        let fields =
            Fields::parse(br#"{"n":5,"t":"x","f":true,"l":["a"],"i":[7,1],"z":null}"#).unwrap();
        assert!(fields.only(&["n", "t", "f", "l", "i", "z"]).is_ok());
        assert!(fields.only(&["n"]).is_err());
        assert_eq!(fields.number("n", 1, 5).unwrap(), Some(5));
        assert!(fields.number("n", 1, 4).is_err());
        assert!(fields.number("t", 1, 4).is_err());
        assert_eq!(fields.text("t").unwrap(), Some("x"));
        assert!(fields.text("n").is_err() && fields.flag("n").is_err());
        assert_eq!(fields.texts("l").unwrap(), Some(vec!["a"]));
        assert_eq!(fields.numbers("i").unwrap(), Some(vec![7, 1]));
        assert!(fields.numbers("l").is_err() && fields.numbers("n").is_err());
        assert_eq!(fields.text("z").unwrap(), None);
        for wrong in ["[]", "1", "{", "{\"a\":1}x", "\u{0}"] {
            assert!(Fields::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_are_text_or_base64() {
        for (text, wanted) in [
            (r#"{"b":{"data":"x"}}"#, Some(&b"x"[..])),
            (
                r#"{"b":{"encoding":"base64","data":"/w=="}}"#,
                Some(b"\xff"),
            ),
            (r#"{"b":{"encoding":"base64","data":"/"}}"#, None),
            (r#"{"b":{"encoding":"rot13","data":"x"}}"#, None),
            (r#"{"b":{"encoding":"text"}}"#, None),
            (r#"{"b":"x"}"#, None),
        ] {
            let found = Fields::parse(text.as_bytes()).unwrap().bytes("b");
            assert_eq!(found.ok().flatten().as_deref(), wanted, "{text}");
        }
    }
}
