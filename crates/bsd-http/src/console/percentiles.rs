//! How long jobs waited and were worked on, in percentiles: of all tubes together, from the two
//! histograms that the engine has anyway, and of one tube, from its tally, if it has one.
//!
//! A histogram has counts since the start. Kept here is what they were each minute of an hour and each
//! half hour of a week, in some 100 KiB; what was counted in between is the difference of two of them.

use std::collections::VecDeque;

use maud::{Markup, html};
use serde_json::Value;

use super::layout::table;
use super::live::Live;
use super::span::Span;
use super::words;
use crate::snapshot::Snapshot;
use bsd::histogram::{LONG, Reading, quantile};
use bsd::types::{SECOND_NS, Time};

/// Counts of a histogram of the times of jobs.
type Counts = [u64; LONG.len() + 1];
/// What is kept: the seconds between two, and how many. An hour and a week, and one before it.
const RINGS: [(i64, usize); 2] = [(60, 61), (1800, 337)];
/// Bytes that all of it takes at most.
#[cfg(test)]
pub(super) const BYTES_MAX: usize = 128 << 10;
/// Which percentiles, by their names and parts.
pub(super) const OF: [(&str, f64); 3] = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)];

/// The counts of both histograms at one time.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    at: Time,
    waits: Counts,
    holds: Counts,
}

impl Mark {
    fn of(snapshot: &Snapshot) -> Mark {
        let figures = &snapshot.figures;
        Mark {
            at: snapshot.now.mono,
            waits: counts(&figures.waits),
            holds: counts(&figures.holds),
        }
    }
}

fn counts(reading: &Reading) -> Counts {
    let mut counts = Counts::default();
    for (count, read) in counts.iter_mut().zip(&reading.counts) {
        *count = *read;
    }
    counts
}

/// The marks that are kept.
#[derive(Debug)]
pub(super) struct Marks([VecDeque<Mark>; RINGS.len()]);

impl Default for Marks {
    fn default() -> Marks {
        Marks(RINGS.map(|(_, most)| VecDeque::with_capacity(most)))
    }
}

/// Times of jobs between two marks.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Times {
    jobs: u64,
    /// Seconds, as [`OF`] names them; 0 without jobs.
    pub(super) of: [f64; OF.len()],
}

impl Times {
    fn between(before: &Counts, now: &Counts) -> Times {
        let mut more = *now;
        for (count, before) in more.iter_mut().zip(before) {
            *count = count.saturating_sub(*before);
        }
        Times {
            jobs: more.iter().sum(),
            of: OF.map(|(_, part)| quantile(LONG, &more, part)),
        }
    }
}

impl Marks {
    /// So it is now. A mark that comes too early is left out.
    pub(super) fn note(&mut self, snapshot: &Snapshot) {
        let mark = Mark::of(snapshot);
        for (ring, (seconds, most)) in self.0.iter_mut().zip(RINGS) {
            let is_due = |last: &Mark| mark.at.since(last.at) >= seconds * SECOND_NS;
            if !ring.back().is_none_or(is_due) {
                continue;
            }
            if ring.len() == most {
                ring.pop_front();
            }
            ring.push_back(mark);
        }
    }

    /// How long jobs waited, and how long they were worked on, within a span that ends now; since the
    /// start, if that is not as long ago.
    pub(super) fn within(&self, span: Span, snapshot: &Snapshot) -> [Times; 2] {
        let now = Mark::of(snapshot);
        let span_ns = span.seconds() as i64 * SECOND_NS;
        let ring = &self.0[usize::from(span.seconds() > 3600)];
        let is_old = |mark: &&Mark| now.at.since(mark.at) >= span_ns;
        let before = ring.iter().rev().find(is_old).copied().unwrap_or_default();
        [
            Times::between(&before.waits, &now.waits),
            Times::between(&before.holds, &now.holds),
        ]
    }
}

/// Percentiles of two readings of a histogram.
pub(super) fn between(before: Option<&Reading>, now: &Reading) -> [f32; OF.len()] {
    let before = before.map(counts).unwrap_or_default();
    Times::between(&before, &counts(now)).of.map(|it| it as f32)
}

/// A table of them.
pub(super) fn section(marks: &Marks, span: Span, snapshot: &Snapshot, live: &Live) -> Markup {
    let within = format!("Times of jobs, last {}", span.0);
    shown(&within, marks.within(span, snapshot), live)
}

/// The same of one tube, by its tally as the API shows it, since it, or the server, began; nothing
/// without a tally.
pub(super) fn of_tube(tally: &Value, live: &Live) -> Markup {
    if tally.is_null() {
        return html! {};
    }
    let times = ["wait", "hold"].map(|kind| {
        let times = &tally[kind];
        let seconds = |name: &str| times[format!("{name}_seconds")].as_f64();
        Times {
            jobs: times["jobs"].as_u64().unwrap_or(0),
            of: OF.map(|(name, _)| seconds(name).unwrap_or(0.0)),
        }
    });
    shown("Times of its jobs, since it began", times, live)
}

fn shown(title: &str, [waits, holds]: [Times; 2], live: &Live) -> Markup {
    let rows = [
        ("Waited, until the first reserve", "waits", waits),
        (
            "Worked on, until the delete, release or bury",
            "holds",
            holds,
        ),
    ];
    let head = html! {
        th scope="col" { (title) }
        th scope="col" class="number" { "Jobs" }
        @for (name, _) in OF { th scope="col" class="number" { (name) } }
    };
    let body = html! {
        @for (name, id, times) in &rows {
            tr {
                th scope="row" { (name) }
                td class="number" data-label="Jobs" {
                    (live.text(&format!("{id}-jobs"), words::count(times.jobs)))
                }
                @for ((word, _), seconds) in OF.iter().zip(times.of) {
                    @let said = match times.jobs { 0 => "–".to_owned(), _ => words::time(seconds) };
                    td class="number" data-label=(word) { (live.text(&format!("{id}-{word}"), said)) }
                }
            }
        }
    };
    html! {
        section aria-labelledby="times" {
            h2 id="times" { "Waiting and work" }
            (table("Percentiles of the times of jobs", &head, &body))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(seconds: i64, count: u64) -> Mark {
        let mut mark = Mark {
            at: Time(seconds * SECOND_NS),
            ..Mark::default()
        };
        mark.waits[0] = count;
        mark
    }

    #[test]
    fn what_is_kept_of_a_week_is_less_than_128_kib() {
        let bytes: usize = RINGS.iter().map(|(_, most)| most * size_of::<Mark>()).sum();
        assert!(bytes < BYTES_MAX, "{bytes}");
        for (ring, (_, most)) in Marks::default().0.iter().zip(RINGS) {
            assert!(ring.capacity() < most + most / 8);
        }
    }

    #[test]
    fn jobs_are_counted_between_two_marks() {
        let times = Times::between(&mark(0, 5).waits, &mark(0, 12).waits);
        assert_eq!(times.jobs, 7);
        assert!(
            times.of.iter().all(|it| *it > 0.0 && *it <= 0.001),
            "{times:?}"
        );
    }
}
