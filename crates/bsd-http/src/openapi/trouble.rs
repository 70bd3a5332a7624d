//! The shape of what is wrong.

use serde_json::{Map, Value};

use super::{count, flag, list, object, one_of, or_null, reference, text};
use crate::api::trouble::{Kind, Severity, Subject};

pub(super) fn schemas() -> Map<String, Value> {
    let kinds: Vec<_> = Kind::ALL.iter().map(|kind| kind.word()).collect();
    let severities = Severity::ALL.map(Severity::word);
    let all = [
        (
            "Troubles",
            object(&[
                ("findings", list(reference("Finding"))),
                ("more", object(&severities.map(|word| (word, count())))),
                ("count", count()),
                ("tubes", count()),
                ("tubes_left_out", count()),
                ("follows", flag()),
                ("leader", or_null(text())),
            ]),
        ),
        (
            "Finding",
            object(&[
                ("kind", one_of(&kinds)),
                ("severity", one_of(&severities)),
                (
                    "subject",
                    object(&[("of", one_of(&Subject::WORDS)), ("name", or_null(text()))]),
                ),
                ("why", text()),
                ("do", text()),
                ("link", text()),
            ]),
        ),
    ];
    all.into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}
