//! Values of the server, as JSON. Numbers are exact, keys are the server's.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bsd_tools::yaml::{Dictionary, Value};
use serde_json::{Map, Value as Json};

pub(crate) fn object(dictionary: &Dictionary) -> Map<String, Json> {
    let entries = dictionary.0.iter();
    entries
        .map(|(key, value)| (key.clone(), json(value)))
        .collect()
}

fn json(value: &Value) -> Json {
    match value {
        Value::Number(number) => (*number).into(),
        Value::Decimal(number) => (*number).into(),
        Value::Text(text) if text == "true" || text == "false" => (text == "true").into(),
        Value::Text(text) => text.clone().into(),
    }
}

/// Text as `body`, all else as `body_base64`.
pub(crate) fn add_body(object: &mut Map<String, Json>, body: &[u8]) {
    let (key, value) = match std::str::from_utf8(body) {
        Ok(text) => ("body", text.to_owned()),
        Err(_) => ("body_base64", STANDARD.encode(body)),
    };
    object.insert(key.to_owned(), value.into());
}
