//! Attributes of jobs and settings as JSON: objects in the lines of a dump, in both directions.
//!
//! What is not in the object, the job does not have. Bytes in UTF-8 are text in `text` and `value`;
//! any others are in `text_base64` and `value_base64`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bsd::UsageError;
use bsd::attributes::{Attributes, Reason, Unique};
use bsd::storage::inspect::SettingRecord;
use bsd::types::SettingClass;
use serde::{Deserialize, Serialize};

use crate::human::{parse_timestamp, timestamp};

/// The attributes of a job.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AttributesObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// Only of a record: that of a job says which tube it is in.
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    tube: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted_from: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead_lettered_from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counted_since: Option<String>,
}

impl AttributesObject {
    /// The object of a list; `None` for a plain job.
    pub(crate) fn of_job(list: &[u8]) -> Option<AttributesObject> {
        (!list.is_empty()).then(|| AttributesObject::of(list))
    }

    /// The object of a list.
    pub(crate) fn of(list: &[u8]) -> AttributesObject {
        let found = Attributes::decode(list).unwrap_or_default();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (text, text_base64) = match found.text {
            None => (None, None),
            Some(bytes) => text_or_base64(bytes),
        };
        AttributesObject {
            key: owned(found.key),
            unique: owned(found.unique.map(Unique::word)),
            group: owned(found.group),
            tube: owned(found.tube),
            counted_from: found.counted_from,
            failures: found.failures,
            reason: owned(found.reason.map(Reason::word)),
            text,
            text_base64,
            dead_lettered_from: owned(found.dead_lettered_from),
            counted_since: found.counted_since_wall_ns.map(timestamp),
        }
    }

    /// The list of the object.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn list(&self) -> Result<Vec<u8>, UsageError> {
        let time = |text: &Option<String>| text.as_deref().map(parse_timestamp).transpose();
        let text = bytes(&self.text, &self.text_base64, "text")?;
        let attributes = Attributes {
            key: self.key.as_deref(),
            unique: word(&self.unique, Unique::parse, "unique")?,
            group: self.group.as_deref(),
            tube: None,
            counted_from: self.counted_from,
            failures: self.failures,
            reason: word(&self.reason, Reason::parse, "reason")?,
            text: text.as_deref(),
            dead_lettered_from: self.dead_lettered_from.as_deref(),
            counted_since_wall_ns: time(&self.counted_since)?,
        };
        attributes.encode().ok_or_else(|| {
            "an attribute of the job is longer than it can be, or has characters that no tube's name \
             has"
                .into()
        })
    }
}

fn word<T>(
    word: &Option<String>,
    parse: fn(&str) -> Option<T>,
    name: &str,
) -> Result<Option<T>, UsageError> {
    let Some(word) = word else { return Ok(None) };
    let known = parse(word).ok_or_else(|| format!("{word:?} is no value of \"{name}\""))?;
    Ok(Some(known))
}

/// A setting of the log.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettingObject {
    class: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

impl SettingObject {
    /// The object of a setting; one without a value removes it.
    pub(crate) fn of(class: SettingClass, name: &str, value: &[u8]) -> SettingObject {
        let (value, value_base64) = text_or_base64(value);
        SettingObject {
            class: class.word().to_owned(),
            name: name.to_owned(),
            value,
            value_base64,
        }
    }

    /// The setting of the object.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn record(self) -> Result<SettingRecord, UsageError> {
        let value = bytes(&self.value, &self.value_base64, "value")?;
        let class = SettingClass::parse(&self.class)
            .ok_or_else(|| format!("{:?} is no class of a setting", self.class))?;
        Ok(SettingRecord {
            class,
            name: self.name,
            value: value.ok_or("a setting has \"value\" or \"value_base64\"")?,
        })
    }
}

fn text_or_base64(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

fn bytes(
    text: &Option<String>,
    base64: &Option<String>,
    name: &str,
) -> Result<Option<Vec<u8>>, UsageError> {
    match (text, base64) {
        (None, None) => Ok(None),
        (Some(text), None) => Ok(Some(text.clone().into_bytes())),
        (None, Some(base64)) => STANDARD
            .decode(base64)
            .map(Some)
            .map_err(|error| format!("\"{name}_base64\" is no base64: {error}").into()),
        (Some(_), Some(_)) => {
            Err(format!("there is one of \"{name}\" and \"{name}_base64\", not both").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::attributes::RESERVED_SINCE;

    #[test]
    fn attributes_are_read_as_they_were_printed() {
        for (text, since) in [
            (&b"no host"[..], 1_800_000_000_123_456_789),
            (b"\xff", RESERVED_SINCE),
            (b"", 1),
        ] {
            let list = Attributes {
                key: Some("a-5"),
                unique: Some(Unique::Waiting),
                group: Some("g"),
                tube: None,
                counted_from: Some(3),
                failures: Some(0),
                reason: Some(Reason::Disconnected),
                text: Some(text),
                dead_lettered_from: Some("mail"),
                counted_since_wall_ns: Some(since),
            };
            let list = list.encode().expect("attributes");
            let text = serde_json::to_string(&AttributesObject::of(&list)).expect("JSON");
            let read: AttributesObject = serde_json::from_str(&text).expect("an object");
            assert_eq!(read.list(), Ok(list), "{text}");
        }
        assert!(AttributesObject::of_job(b"").is_none());
    }

    #[test]
    fn what_is_wrong_with_attributes_is_said() {
        let refused = |text: &str| {
            let read: AttributesObject = serde_json::from_str(text).expect("an object");
            read.list().expect_err("it is refused").to_string()
        };
        assert!(refused(r#"{"unique":"always"}"#).contains("no value of \"unique\""));
        assert!(refused(r#"{"reason":"x"}"#).contains("no value of \"reason\""));
        assert!(refused(r#"{"key":"a b"}"#).contains("characters"));
        assert!(refused(r#"{"text":"a","text_base64":"YQ=="}"#).contains("not both"));
        assert!(serde_json::from_str::<AttributesObject>(r#"{"tube":"t"}"#).is_err());
    }

    #[test]
    fn settings_are_read_as_they_were_printed() {
        for value in [&b"retry-min=5"[..], b"\xff\0"] {
            let object = SettingObject::of(SettingClass::Policy, "mail-*", value);
            let text = serde_json::to_string(&object).expect("JSON");
            let read: SettingObject = serde_json::from_str(&text).expect("an object");
            let expected = SettingRecord {
                class: SettingClass::Policy,
                name: "mail-*".to_owned(),
                value: value.to_vec(),
            };
            assert_eq!(read.record(), Ok(expected));
        }
    }
}
