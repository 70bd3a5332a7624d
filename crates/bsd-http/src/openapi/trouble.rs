//! The shapes of what is wrong, of why, and of tubes by rank.

use serde_json::{Map, Value};

use super::{count, flag, list, object, one_of, or_null, reference, text, time};
use crate::api::trouble::{Kind, Severity, Subject};

pub(super) fn schemas() -> Map<String, Value> {
    let kinds: Vec<_> = Kind::ALL.iter().map(|kind| kind.word()).collect();
    let severities = Severity::ALL.map(Severity::word);
    let ranked = [
        ("failures", count()),
        ("set_aside", count()),
        ("puts_refused", count()),
        ("recent_failures", count()),
    ];
    let totals = [
        "puts", "reserves", "deletes", "releases", "buries", "kicks", "timeouts", "fails",
    ];
    let totals = totals.map(|name| (name, count()));
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
        (
            "TubeWhy",
            object(&[
                ("tube", reference("Tube")),
                ("takes_dead_letters", flag()),
                ("policy", or_null(reference("TubeHold"))),
                ("workers", count()),
                ("watchers", list(reference("TubeWatcher"))),
                ("holders", list(reference("TubeHolder"))),
                ("holders_left_out", count()),
                ("reserved_left_out", count()),
                ("findings", list(reference("Finding"))),
                ("follows", flag()),
                ("leader", or_null(text())),
            ]),
        ),
        (
            "TubeHold",
            object(&[
                ("set_for", text()),
                ("max_reserved", or_null(count())),
                ("rate", or_null(text())),
            ]),
        ),
        (
            "TubeWatcher",
            object(&[
                ("client", count()),
                ("address", or_null(text())),
                ("name", or_null(text())),
                ("waits", flag()),
                ("worker", flag()),
            ]),
        ),
        (
            "TubeHolder",
            object(&[
                ("client", count()),
                ("address", or_null(text())),
                ("name", or_null(text())),
                ("jobs", count()),
                ("first_job", count()),
                ("held_seconds", time()),
                ("time_left_seconds", time()),
            ]),
        ),
        (
            "Ranking",
            object(&[
                ("tubes", list(reference("RankedTube"))),
                ("more", count()),
                ("span_seconds", time()),
                ("totals", object(&totals)),
            ]),
        ),
        (
            "RankedTube",
            object(&[&super::tube_fields()[..], &ranked].concat()),
        ),
    ];
    all.into_iter()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}
