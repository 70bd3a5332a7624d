//! How results of the kit's calls are compared with what its scripts expect.

use serde_json::{Value, json};

/// The bytes that a value of a script stands for.
pub(crate) fn bytes(value: &Value) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Object(map) if map.contains_key("hex") => map["hex"]
            .as_str()
            .unwrap()
            .as_bytes()
            .chunks(2)
            .map(byte)
            .collect(),
        Value::Object(map) if map.contains_key("repeat") => {
            let times = map["times"].as_u64().unwrap() as usize;
            map["repeat"].as_str().unwrap().repeat(times).into_bytes()
        }
        other => panic!("{other} stands for no bytes"),
    }
}

/// Bytes as a value of a result.
pub(crate) fn hex(bytes: &[u8]) -> Value {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "hex": digits })
}

/// The one key of an object that has no other, and its value.
fn only(value: &Value) -> Option<(&str, &Value)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    map.iter().next().map(|(key, value)| (key.as_str(), value))
}

fn length(value: &Value) -> Option<usize> {
    match value {
        Value::String(text) => Some(text.chars().count()),
        Value::Array(list) => Some(list.len()),
        value => only(value)
            .filter(|(key, _)| *key == "hex")
            .map(|_| bytes(value).len()),
    }
}

/// Whether a result is as expected.
pub(crate) fn matches(expected: &Value, result: &Value) -> bool {
    let is_bytes = only(result).is_some_and(|(key, _)| key == "hex");
    match (only(expected), result) {
        (Some(("any", _)), result) => !result.is_null(),
        (Some(("at_least", bound)), result) => result
            .as_f64()
            .is_some_and(|it| it >= bound.as_f64().unwrap()),
        (Some(("at_most", bound)), result) => result
            .as_f64()
            .is_some_and(|it| it <= bound.as_f64().unwrap()),
        (Some(("length", count)), result) => {
            length(result).map(|it| json!(it)).as_ref() == Some(count)
        }
        (Some(("has", element)), Value::Array(list)) => list.iter().any(|it| matches(element, it)),
        (Some(("has_not", element)), Value::Array(list)) => {
            !list.iter().any(|it| matches(element, it))
        }
        _ if is_bytes => {
            (expected.is_string() || expected.is_object()) && bytes(expected) == bytes(result)
        }
        (_, Value::Array(list)) => {
            let expected = expected.as_array();
            expected.is_some_and(|it| {
                it.len() == list.len()
                    && it.iter().zip(list).all(|(one, other)| matches(one, other))
            })
        }
        (_, Value::Object(map)) => {
            let expected = expected.as_object();
            expected.is_some_and(|it| {
                it.iter().all(|(key, value)| {
                    let found = map.get(key).unwrap_or(&Value::Null);
                    let is_absent = only(value).is_some_and(|(key, _)| key == "absent");
                    if is_absent {
                        found.is_null()
                    } else {
                        matches(value, found)
                    }
                })
            })
        }
        _ => expected == result,
    }
}

#[test]
fn results_match_as_the_kit_says() {
    let result = json!({"id": 7, "body": hex(b"ab"), "list": [1, 2], "text": "abc"});
    for (expected, is_match) in [
        (json!({"id": 7}), true),
        (json!({"id": 8}), false),
        (json!({"id": {"at_least": 7}, "list": {"has": 2}}), true),
        (json!({"id": {"at_most": 6}}), false),
        (json!({"body": "ab"}), true),
        (json!({"body": {"hex": "6162"}}), true),
        (json!({"body": {"repeat": "a", "times": 2}}), false),
        (json!({"list": [1, {"any": true}]}), true),
        (json!({"list": [1]}), false),
        (json!({"list": {"has_not": 2}}), false),
        (
            json!({"text": {"length": 3}, "body": {"length": 2}, "list": {"length": 2}}),
            true,
        ),
        (json!({"what": {"absent": true}}), true),
        (json!({"id": {"absent": true}}), false),
        (json!({"what": {"any": true}}), false),
    ] {
        assert_eq!(matches(&expected, &result), is_match, "{expected}");
    }
}
