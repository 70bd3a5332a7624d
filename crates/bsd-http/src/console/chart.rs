//! A line of numbers as SVG. Paths are made here, in a dozen lines: a crate for charts would bring
//! fonts, colours and styles of its own, which the policy of the pages forbids.

use std::fmt::Write;

use maud::{Markup, html};

use super::history::{History, SPANS, Sample, Span};
use super::live::Live;
use super::words;

/// Points of a chart.
const POINTS: usize = 240;
/// A drawing has this size, and is scaled to its place.
const WIDTH: f32 = 480.0;
const HEIGHT: f32 = 100.0;

/// One line of a chart.
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) values: Vec<Option<f32>>,
}

/// A line of a chart.
pub(super) fn line(
    history: &History,
    span: Span,
    name: &'static str,
    of: fn(&Sample) -> f32,
) -> Line {
    let values = history.line(span, POINTS, of);
    Line { name, values }
}

/// How far back the charts go.
pub(super) fn spans(path: &str, span: Span, history: &History) -> Markup {
    html! {
        nav class="spans" aria-label="How far back" {
            h2 { "Over time" }
            ul {
                @for word in SPANS {
                    @let current = (*word == span.0).then_some("true");
                    li { a href=(format!("{path}?span={word}")) aria-current=[current] { (word) } }
                }
            }
            small { "remembered: " (words::seconds(history.seconds())) ", at most 24 h" }
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

/// A chart with a title, its lines named below it with their latest values, each of them `said`.
pub(super) fn chart(
    live: &Live,
    id: &str,
    title: &str,
    span: Span,
    lines: &[Line],
    said: impl Fn(f32) -> String,
) -> Markup {
    let known = lines.iter().flat_map(|line| line.values.iter().flatten());
    let most = known.fold(0.0_f32, |most, value| most.max(*value));
    let names: Vec<&str> = lines.iter().map(|line| line.name).collect();
    let label = format!("{title}, last {}: {}", span.0, names.join(", "));
    html! {
        figure class="chart" {
            figcaption {
                b { (title) }
                span class="most" { "top: " (live.text(&format!("{id}-most"), said(most))) }
            }
            svg viewBox=(format!("0 -2 {WIDTH} {}", HEIGHT + 4.0)) preserveAspectRatio="none"
                role="img" aria-label=(label) {
                path class="grid" d=(format!("M0 {HEIGHT}H{WIDTH}M0 0H{WIDTH}")) {}
                @for (nth, line) in lines.iter().enumerate() {
                    (live.path(
                        &format!("{id}-{nth}"),
                        &format!("line line-{nth}"),
                        path(&line.values, most, WIDTH, HEIGHT),
                    ))
                }
            }
            ul class="legend" {
                @for (nth, line) in lines.iter().enumerate() {
                    @let latest = line.values.last().copied().flatten().map_or("–".to_owned(), &said);
                    li {
                        span class=(format!("key line-{nth}")) {}
                        (line.name) " "
                        b { (live.text(&format!("{id}-{nth}-latest"), latest)) }
                    }
                }
            }
        }
    }
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
}
