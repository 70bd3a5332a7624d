//! The shapes of what is wrong, of why, and of tubes by rank.

use serde_json::{Map, Value};

use super::{count, flag, list, object, one_of, or_null, reference, text, time};
use crate::api::trouble::{Kind, Severity, Subject};

pub(super) fn schemas() -> Map<String, Value> {
    let kinds: Vec<_> = Kind::ALL.iter().map(|kind| kind.word()).collect();
    let severities = Severity::ALL.map(Severity::word);
    let ranked = [("failures set_aside puts_refused recent_failures", count())];
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
                ("count tubes tubes_left_out", count()),
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
                ("why do link", text()),
            ]),
        ),
        (
            "TubeWhy",
            object(&[
                ("tube", reference("Tube")),
                ("takes_dead_letters follows", flag()),
                ("policy", or_null(reference("TubeHold"))),
                ("workers holders_left_out reserved_left_out", count()),
                ("watchers", list(reference("TubeWatcher"))),
                ("holders", list(reference("TubeHolder"))),
                ("findings", list(reference("Finding"))),
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
                ("address name", or_null(text())),
                ("waits worker", flag()),
            ]),
        ),
        (
            "TubeHolder",
            object(&[
                ("client jobs first_job", count()),
                ("address name", or_null(text())),
                ("held_seconds time_left_seconds", time()),
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
