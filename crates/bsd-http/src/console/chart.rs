//! A line of numbers as SVG, with a scale beside it and the time below. Paths are made here, in a
//! dozen lines: a crate for charts would bring fonts, colours and styles of its own, which the policy
//! of the pages forbids.
//!
//! The drawing is stretched to its place, so its words stand around it as text of the page. The
//! numbers of the lines are in the page, too: the script shows those of the time under the pointer,
//! or of the one that was chosen by the arrow keys.

use std::fmt::Write;

use maud::{Markup, html};

use super::history::{History, Sample};
use super::live::Live;
use super::span::{SPANS, Span};
use super::words;

/// Points of a chart.
const POINTS: usize = 240;
/// A drawing has this size, and is scaled to its place.
const WIDTH: f32 = 480.0;
const HEIGHT: f32 = 100.0;

/// One line of a chart.
pub(super) struct Line {
    pub(super) name: &'static str,
    /// Which of the colours of lines.
    pub(super) colour: usize,
    pub(super) values: Vec<Option<f32>>,
}

/// A line of a chart, in a colour of its own.
pub(super) fn line(
    history: &History,
    span: Span,
    (name, colour): (&'static str, usize),
    of: fn(&Sample) -> f32,
) -> Line {
    Line {
        name,
        colour,
        values: history.line(span, POINTS, of),
    }
}

/// What the numbers of a chart are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Count,
    /// A second.
    Rate,
    /// Seconds.
    Time,
    Bytes,
}

impl Unit {
    /// For the script, which says numbers as [`Unit::said`] does.
    fn word(self) -> &'static str {
        match self {
            Unit::Count => "count",
            Unit::Rate => "rate",
            Unit::Time => "time",
            Unit::Bytes => "bytes",
        }
    }

    fn said(self, value: f32) -> String {
        match self {
            Unit::Count => words::count(value as u64),
            Unit::Rate => format!("{} /s", words::rate(value.into())),
            Unit::Time => words::time(value.into()),
            Unit::Bytes => words::bytes(value as u64),
        }
    }

    /// On a scale, where times are whole.
    fn on_a_scale(self, value: f32) -> String {
        match self {
            Unit::Time if value >= 60.0 => whole_time(value),
            unit => unit.said(value),
        }
    }

    /// The number at the top of a scale on which `most` is: one that is easy to say, as is its half.
    fn top(self, most: f32) -> f32 {
        let steps: &[f32] = match self {
            Unit::Time if most > 10.0 => {
                return TIMES
                    .into_iter()
                    .find(|time| *time >= most)
                    .unwrap_or_else(|| {
                        let days = (most / 86_400.0 / 2.0).ceil();
                        days * 2.0 * 86_400.0
                    });
            }
            _ => &[1.0, 2.0, 4.0, 10.0],
        };
        let (base, least) = match self {
            Unit::Count => (10.0_f32, 2.0),
            Unit::Rate => (10.0, 1.0),
            Unit::Time => (10.0, 1e-4),
            Unit::Bytes => (2.0, 1024.0),
        };
        let most = most.max(least);
        if self == Unit::Bytes {
            return base.powf(most.log2().ceil());
        }
        let power = base.powf(most.log10().floor());
        let step = steps.iter().find(|step| **step * power >= most * 0.999);
        step.unwrap_or(&10.0) * power
    }
}

/// Times that are easy to halve, seconds.
const TIMES: [f32; 12] = [
    20.0, 60.0, 120.0, 240.0, 600.0, 1200.0, 3600.0, 7200.0, 14_400.0, 28_800.0, 43_200.0, 86_400.0,
];

/// `30 min`, `1 h`, `3.5 d`
fn whole_time(seconds: f32) -> String {
    let (value, unit) = match seconds {
        seconds if seconds >= 2.0 * 86_400.0 => (seconds / 86_400.0, "d"),
        seconds if seconds >= 3600.0 => (seconds / 3600.0, "h"),
        seconds => (seconds / 60.0, "min"),
    };
    format!("{value} {unit}")
}

/// How far back the charts go.
pub(super) fn spans(path: &str, span: Span, history: &History) -> Markup {
    html! {
        div class="spans" {
            h2 { "Over time" }
            nav class="tabs" aria-label="How far back" {
                ul {
                    @for word in SPANS {
                        @let current = (*word == span.0).then_some("true");
                        li { a href=(format!("{path}?span={word}")) aria-current=[current] { (word) } }
                    }
                }
            }
            small {
                "Kept in memory since the start: " (words::seconds(history.seconds()))
                ", at most 7 days."
            }
        }
    }
}

/// The path of these numbers from left to right, of which `most` is at the top. Where nothing is
/// known there is nothing.
pub(super) fn path(values: &[Option<f32>], most: f32, width: f32, height: f32) -> String {
    let step = width / (values.len().max(2) - 1) as f32;
    let (mut path, mut is_down) = (String::new(), false);
    for (at, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_down = false;
            continue;
        };
        let (x, y) = (at as f32 * step, height - value / most.max(1e-9) * height);
        let letter = if is_down { 'L' } else { 'M' };
        // A string takes everything.
        let _ = write!(path, "{letter}{x:.1} {y:.1}");
        if !is_down && values.get(at + 1).is_none_or(Option::is_none) {
            // A single point would not be seen.
            let _ = write!(path, "h0.1");
        }
        is_down = true;
    }
    path
}

/// The numbers of the lines, for the script.
fn numbers(lines: &[Line]) -> String {
    let mut text = String::from("[");
    for (nth, line) in lines.iter().enumerate() {
        text.push_str(if nth > 0 { ",[" } else { "[" });
        for (at, value) in line.values.iter().enumerate() {
            if at > 0 {
                text.push(',');
            }
            // A string takes everything.
            let _ = match value {
                None => write!(text, "null"),
                Some(value) if value.fract() == 0.0 => write!(text, "{value:.0}"),
                Some(value) => write!(text, "{value:.6}"),
            };
        }
        text.push(']');
    }
    text.push(']');
    text
}

/// A chart with a title, its lines named below it with their latest values.
pub(super) fn chart(
    live: &Live,
    id: &str,
    title: &str,
    span: Span,
    lines: &[Line],
    unit: Unit,
) -> Markup {
    let known = lines.iter().flat_map(|line| line.values.iter().flatten());
    let top = unit.top(known.fold(0.0_f32, |most, value| most.max(*value)));
    let names: Vec<&str> = lines.iter().map(|line| line.name).collect();
    let label = format!("{title}, last {}: {}", span.0, names.join(", "));
    let seconds = span.seconds();
    let scale = |part: &str, value: f32| live.text(&format!("{id}-{part}"), unit.on_a_scale(value));
    html! {
        figure class="chart" tabindex="0" data-unit=(unit.word()) data-seconds=(seconds)
            aria-label=(label) {
            figcaption {
                b { (title) }
                ul class="legend" {
                    @for (nth, line) in lines.iter().enumerate() {
                        @let latest = line.values.last().copied().flatten();
                        @let latest = latest.map_or("–".to_owned(), |value| unit.said(value));
                        li data-name=(line.name) {
                            @if lines.len() > 1 {
                                span class=(format!("key line-{}", line.colour)) {}
                                (line.name) " "
                            }
                            b { (live.text(&format!("{id}-{nth}-latest"), latest)) }
                        }
                    }
                }
            }
            div class="plot" {
                div class="scale" aria-hidden="true" {
                    (scale("top", top)) (scale("half", top / 2.0)) span { "0" }
                }
                div class="drawing" {
                    svg viewBox=(format!("0 -1 {WIDTH} {}", HEIGHT + 2.0)) preserveAspectRatio="none"
                        aria-hidden="true" {
                        path class="grid" d=(grid()) {}
                        @for (nth, line) in lines.iter().enumerate() {
                            (live.path(
                                &format!("{id}-{nth}"),
                                &format!("line line-{}", line.colour),
                                path(&line.values, top, WIDTH, HEIGHT),
                            ))
                        }
                    }
                }
                div class="times" aria-hidden="true" {
                    span { (whole_time(seconds as f32)) " ago" }
                    span { (whole_time(seconds as f32 / 2.0)) " ago" }
                    span { "now" }
                }
            }
            span hidden class="values" { (live.text(&format!("{id}-values"), numbers(lines))) }
        }
    }
}

/// Lines at the top, the half and the bottom, and at the quarters of the time.
fn grid() -> String {
    let half = HEIGHT / 2.0;
    let mut grid = format!("M0 0H{WIDTH}M0 {half}H{WIDTH}M0 {HEIGHT}H{WIDTH}");
    for nth in 1..4 {
        // A string takes everything.
        let _ = write!(grid, "M{} 0V{HEIGHT}", WIDTH / 4.0 * nth as f32);
    }
    grid
}

/// A line as high as a word.
pub(super) fn sparkline(live: &Live, id: &str, label: &str, values: &[Option<f32>]) -> Markup {
    let most = values.iter().flatten().fold(0.0_f32, |a, b| a.max(*b));
    html! {
        svg class="spark" viewBox="0 -1 120 22" preserveAspectRatio="none" role="img"
            aria-label=(label) {
            (live.path(id, "line line-0", path(values, most, 120.0, 20.0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_gaps_where_nothing_is_known() {
        let values = [None, Some(0.0), Some(10.0), None, Some(5.0)];
        assert_eq!(
            path(&values, 10.0, 40.0, 20.0),
            "M10.0 20.0L20.0 0.0M40.0 10.0h0.1"
        );
        assert_eq!(path(&[], 0.0, 40.0, 20.0), "");
        assert_eq!(path(&[Some(0.0)], 0.0, 40.0, 20.0), "M0.0 20.0h0.1");
    }

    #[test]
    fn a_scale_ends_with_a_number_that_is_easy_to_say_and_to_halve() {
        for (unit, most, said) in [
            (Unit::Count, 0.0, "2 1"),
            (Unit::Count, 3.0, "4 2"),
            (Unit::Count, 1234.0, "2,000 1,000"),
            (Unit::Count, 10_000_000.0, "10,000,000 5,000,000"),
            (Unit::Rate, 0.3, "1.0 /s 0.5 /s"),
            (Unit::Rate, 4500.0, "10,000 /s 5,000 /s"),
            (Unit::Time, 0.0003, "400 µs 200 µs"),
            (Unit::Time, 90.0, "2 min 1 min"),
            (Unit::Time, 90_000.0, "2 d 24 h"),
            (Unit::Bytes, 0.0, "1.0 KiB 512 B"),
            (Unit::Bytes, 3_000_000.0, "4.0 MiB 2.0 MiB"),
        ] {
            let top = unit.top(most);
            assert!(top >= most, "{unit:?} {most}: {top}");
            let found = format!("{} {}", unit.on_a_scale(top), unit.on_a_scale(top / 2.0));
            assert_eq!(found, said, "{unit:?} {most}");
        }
    }

    #[test]
    fn the_numbers_of_a_chart_are_in_the_page() {
        let lines = [vec![None, Some(2.0)], vec![Some(0.25), None]].map(|values| Line {
            name: "x",
            colour: 0,
            values,
        });
        assert_eq!(numbers(&lines), "[[null,2],[0.250000,null]]");
    }
}
