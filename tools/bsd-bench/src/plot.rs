//! The picture of a comparison, as SVG: for each load, bars of the rates and curves of the
//! latencies.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::time::Duration;

use bsd::storage::RealFs;
use bsd::storage::disk::{Fs, OpenMode, write_all_at};

use crate::report::{count, median, time};
use crate::results::Results;
use crate::servers::{Kind, Policy, Program};

const BAR_HEIGHT: f64 = 18.0;
const LABEL_WIDTH: f64 = 120.0;
const BARS_WIDTH: f64 = 360.0;
const CURVES_WIDTH: f64 = 380.0;
const CURVES_HEIGHT: f64 = 170.0;
const GAP: f64 = 60.0;
const MARGIN: f64 = 24.0;
const WIDTH: f64 = 2.0 * MARGIN + LABEL_WIDTH + BARS_WIDTH + 2.0 * GAP + CURVES_WIDTH;

/// The frame of a diagram: its corner and size.
#[derive(Debug, Clone, Copy)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// The drawing so far. Writing to a string cannot fail.
#[derive(Debug, Default)]
struct Svg(String);

impl Svg {
    fn rect(&mut self, area: Area, fill: &str) {
        let Area {
            x,
            y,
            width,
            height,
        } = area;
        let _ = writeln!(
            self.0,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        );
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.0,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        );
    }

    fn line(&mut self, points: &[(f64, f64)], stroke: &str, width: f64) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{x:.1},{y:.1} ");
        }
        let path = path.trim_end();
        let _ = writeln!(
            self.0,
            r#"<polyline points="{path}" fill="none" stroke="{stroke}" stroke-width="{width}"/>"#
        );
    }
}

/// The colour of a server in a picture: one per program, lighter without a log.
fn colour(kind: Kind) -> &'static str {
    match (kind.program, kind.policy) {
        (Program::Beanstalkd, Policy::Memory) => "#f2b27a",
        (Program::Beanstalkd, Policy::Interval(0)) => "#b35806",
        (Program::Beanstalkd, _) => "#e08214",
        (Program::Bsd, Policy::Memory) => "#92c5de",
        (Program::Bsd, Policy::Interval(0)) => "#08519c",
        (Program::Bsd, _) => "#4393c3",
        (Program::Echo, Policy::Memory) => "#c7c7c7",
        (Program::Echo, _) => "#7f7f7f",
    }
}

/// The whole picture: a row per load.
pub(crate) fn comparison(results: &Results) -> String {
    let mut svg = Svg::default();
    let bars_height = BAR_HEIGHT * results.servers.len() as f64;
    let row_height = bars_height.max(CURVES_HEIGHT) + GAP;
    let mut y = MARGIN;
    for row in 0..results.shapes.len() {
        let title = format!("{} connections × pipelined commands", results.shapes[row]);
        svg.text(MARGIN, y, "start", &format!("{title}: commands per second"));
        draw_bars(&mut svg, results, row, MARGIN + LABEL_WIDTH, y + 10.0);
        let area = Area {
            x: WIDTH - MARGIN - CURVES_WIDTH,
            y: y + 10.0,
            width: CURVES_WIDTH,
            height: CURVES_HEIGHT,
        };
        svg.text(
            area.x,
            y,
            "start",
            "latency that a share of the commands did not exceed",
        );
        draw_curves(&mut svg, results, row, area);
        y += row_height;
    }
    let body = svg.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH:.0}\" height=\"{y:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn draw_bars(svg: &mut Svg, results: &Results, row: usize, x: f64, mut y: f64) {
    let rates: Vec<f64> = results.cells[row]
        .iter()
        .map(|cell| median(&cell.rates))
        .collect();
    let most = rates.iter().copied().fold(1.0, f64::max);
    for (kind, rate) in results.servers.iter().zip(rates) {
        let width = (BARS_WIDTH - 60.0) * rate / most;
        let area = Area {
            x,
            y,
            width,
            height: BAR_HEIGHT - 4.0,
        };
        let base = y + BAR_HEIGHT - 8.0;
        svg.text(x - 6.0, base, "end", &kind.to_string());
        svg.rect(area, colour(*kind));
        svg.text(x + width + 5.0, base, "start", &count(rate));
        y += BAR_HEIGHT;
    }
}

/// Both axes are logarithmic: horizontally the share that took longer, vertically the time.
fn draw_curves(svg: &mut Svg, results: &Results, row: usize, area: Area) {
    let curves: Vec<_> = results.cells[row]
        .iter()
        .map(|cell| cell.latency.curve())
        .collect();
    let Some(scale) = Scale::of(curves.iter().flatten(), area) else {
        return;
    };
    scale.draw_grid(svg);
    for (kind, curve) in results.servers.iter().zip(&curves) {
        let points: Vec<_> = curve.iter().map(|&point| scale.place(point)).collect();
        svg.line(&points, colour(*kind), 1.8);
    }
}

/// The position of a value in a diagram of curves.
#[derive(Debug, Clone, Copy)]
struct Scale {
    area: Area,
    /// Nines across.
    nines: f64,
    /// Powers of ten of the times, lowest and highest.
    low: f64,
    high: f64,
}

impl Scale {
    fn of<'a>(points: impl Iterator<Item = &'a (f64, f64)>, area: Area) -> Option<Scale> {
        let (mut nines, mut low, mut high) = (0f64, f64::MAX, f64::MIN);
        for &(fraction, micros) in points {
            nines = nines.max(-(1.0 - fraction).log10());
            low = low.min(micros.max(0.01).log10().floor());
            high = high.max(micros.max(0.01).log10().ceil());
        }
        let high = high.max(low + 1.0);
        (nines > 0.0).then_some(Scale {
            area,
            nines,
            low,
            high,
        })
    }

    fn place(&self, (fraction, micros): (f64, f64)) -> (f64, f64) {
        let across = -(1.0 - fraction).log10() / self.nines;
        let up = (micros.max(0.01).log10() - self.low) / (self.high - self.low);
        let Area {
            x,
            y,
            width,
            height,
        } = self.area;
        (x + across * width, y + (1.0 - up) * height)
    }

    fn draw_grid(&self, svg: &mut Svg) {
        let (left, right) = (self.area.x, self.area.x + self.area.width);
        for power in self.low as i32..=self.high as i32 {
            let micros = 10f64.powi(power);
            let (_, y) = self.place((0.0, micros));
            svg.line(&[(left, y), (right, y)], "#dddddd", 1.0);
            let name = time(Duration::from_secs_f64(micros / 1e6));
            svg.text(left - 4.0, y + 4.0, "end", &name);
        }
        let bottom = self.area.y + self.area.height;
        for (nines, name) in ["0", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"]
            .iter()
            .enumerate()
        {
            if nines as f64 <= self.nines {
                let x = left + nines as f64 / self.nines * self.area.width;
                svg.line(&[(x, self.area.y), (x, bottom)], "#dddddd", 1.0);
                svg.text(x, bottom + 15.0, "middle", name);
            }
        }
    }
}

/// Write a text, such as a picture, to a file, and replace an existing one.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let named = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot write {}: {error}", path.display()),
        )
    };
    let mode = if path.exists() {
        OpenMode::ReadWrite
    } else {
        OpenMode::CreateNew
    };
    let file = RealFs.open(path, mode).map_err(named)?;
    file.set_size(0).map_err(named)?;
    write_all_at(&*file, text.as_bytes(), 0).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Area = Area {
        x: 0.0,
        y: 0.0,
        width: 100.0,
        height: 100.0,
    };

    #[test]
    fn a_tenth_of_the_share_left_is_a_step_across_and_ten_times_the_time_a_step_up() {
        let points = [(0.0, 1.0), (0.99, 100.0)];
        let scale = Scale::of(points.iter(), AREA).unwrap();
        let near = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() + (a.1 - b.1).abs() < 1e-6;
        assert!(near(scale.place((0.0, 1.0)), (0.0, 100.0)));
        assert!(near(scale.place((0.9, 10.0)), (50.0, 50.0)));
        assert!(near(scale.place((0.99, 100.0)), (100.0, 0.0)));
        assert!(Scale::of([].iter(), AREA).is_none());
    }

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::default();
        svg.text(0.0, 0.0, "start", "a<b & c");
        assert!(svg.0.contains(">a&lt;b &amp; c<"));
    }
}
