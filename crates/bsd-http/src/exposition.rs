//! The two formats of Prometheus: its text format 0.0.4, and OpenMetrics 1.0. They differ in the
//! names of counters' families, in how a text that is no number is said, and in the last line.

use std::fmt::{Display, Write};

use hyper::header::{ACCEPT, HeaderMap};

use bsd::histogram::Reading;

/// One of the formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    OpenMetrics,
}

/// Kind of the samples of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only grows, but for restarts; its samples' names end in `_total`.
    Counter,
    Gauge,
    Histogram,
    /// Always 1; its labels carry the content. Its sample's name ends in `_info`.
    Info,
}

impl Format {
    /// The one that the client likes best of those that it takes; the text format where it does not
    /// say.
    pub(super) fn of(headers: &HeaderMap) -> Format {
        let said = headers.get_all(ACCEPT).iter();
        let said = said.filter_map(|value| value.to_str().ok());
        let ranges = said.flat_map(|value| value.split(','));
        let mut best = (0, Format::Text);
        for (quality, format) in ranges.filter_map(range) {
            let is_better = quality > best.0;
            let is_as_good = quality == best.0 && quality > 0 && format == Format::OpenMetrics;
            if is_better || is_as_good {
                best = (quality, format);
            }
        }
        best.1
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// End of the page, after all families.
    pub(super) fn end(self) -> &'static str {
        match self {
            Format::Text => "",
            Format::OpenMetrics => "# EOF\n",
        }
    }
}

/// A format and its weight, in thousandths; `None` for a format that is not supported.
fn range(range: &str) -> Option<(u32, Format)> {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next()?.to_ascii_lowercase();
    let (mut version, mut quality) = (None, 1.0);
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        match name.trim() {
            "version" => version = Some(value.trim().trim_matches('"')),
            "q" => quality = value.trim().parse().unwrap_or(0.0),
            _ => {}
        }
    }
    let format = match (&*kind, version) {
        ("application/openmetrics-text", None | Some("1.0.0")) => Format::OpenMetrics,
        ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Format::Text,
        _ => return None,
    };
    Some(((f64::clamp(quality, 0.0, 1.0) * 1000.0) as u32, format))
}

/// A label: name and value.
pub(super) type Label<'a> = (&'a str, &'a str);

/// A page that is being written.
#[derive(Debug)]
pub(super) struct Page {
    format: Format,
    pub(super) text: String,
}

impl Page {
    pub(super) fn new(format: Format) -> Page {
        Page {
            format,
            text: String::new(),
        }
    }

    /// Begin a family; `name` is without `_total` and `_info`. Its samples follow, and no others.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let (suffix, word) = match (self.format, kind) {
            (Format::Text, Kind::Counter) => ("_total", "counter"),
            (Format::OpenMetrics, Kind::Counter) => ("", "counter"),
            (_, Kind::Gauge) => ("", "gauge"),
            (_, Kind::Histogram) => ("", "histogram"),
            (Format::Text, Kind::Info) => ("_info", "gauge"),
            (Format::OpenMetrics, Kind::Info) => ("", "info"),
        };
        self.line(format_args!("# HELP {name}{suffix} {help}"));
        self.line(format_args!("# TYPE {name}{suffix} {word}"));
    }

    /// A sample; `name` is with `_total` or `_info`.
    pub(super) fn sample(&mut self, name: &str, labels: &[Label<'_>], value: impl Display) {
        self.text.push_str(name);
        let mut separator = '{';
        for (name, value) in labels {
            self.text.push(separator);
            separator = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.push_escaped(value);
            self.text.push('"');
        }
        if separator == ',' {
            self.text.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    /// A family with one sample.
    pub(super) fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.family(name, kind, help);
        match kind {
            Kind::Counter => self.sample(&format!("{name}_total"), &[], value),
            _ => self.sample(name, &[], value),
        }
    }

    /// Families of one kind with one sample each: name, help and value.
    pub(super) fn singles<const N: usize>(&mut self, kind: Kind, families: [(&str, &str, u64); N]) {
        for (name, help, value) in families {
            self.single(name, kind, help, value);
        }
    }

    /// A family with one histogram.
    pub(super) fn histogram(&mut self, name: &str, help: &str, reading: &Reading) {
        self.family(name, Kind::Histogram, help);
        self.buckets(name, &[], reading);
    }

    /// The samples of one histogram of a family.
    pub(super) fn buckets(&mut self, name: &str, labels: &[Label<'_>], reading: &Reading) {
        let mut count = 0;
        let bucket = format!("{name}_bucket");
        let bounds = reading.bounds.iter().map(|bound| Some(*bound));
        for (bound, more) in bounds.chain([None]).zip(&reading.counts) {
            count += more;
            let bound = bound.map_or("+Inf".to_owned(), |bound| format!("{:?}", seconds(bound)));
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), count);
        }
        let sum = seconds(reading.sum_ns as i64);
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    fn push_escaped(&mut self, value: &str) {
        for char in value.chars() {
            match char {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            }
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A string takes everything.
        let _ = writeln!(self.text, "{line}");
    }
}

/// Nanoseconds as seconds.
pub(super) fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::histogram::{Histogram, SHORT};

    fn format(accept: &'static str) -> Format {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        Format::of(&headers)
    }

    #[test]
    fn the_format_is_the_one_that_is_liked_best() {
        use Format::{OpenMetrics, Text};
        assert_eq!(Format::of(&HeaderMap::new()), Text);
        for (accept, wanted) in [
            ("*/*", Text),
            ("text/plain", Text),
            ("application/openmetrics-text", OpenMetrics),
            ("application/openmetrics-text; version=1.0.0", OpenMetrics),
            (
                "application/openmetrics-text; version=0.0.1, */*;q=0.1",
                Text,
            ),
            ("application/openmetrics-text;q=0.4, text/plain;q=0.5", Text),
            (
                "text/plain;q=0.5, application/openmetrics-text;q=0.5",
                OpenMetrics,
            ),
            ("application/openmetrics-text;q=0, text/html", Text),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                OpenMetrics,
            ),
        ] {
            assert_eq!(format(accept), wanted, "{accept}");
        }
    }

    #[test]
    fn counters_and_infos_are_named_as_each_format_wants() {
        for (format, family) in [(Format::Text, "a_total"), (Format::OpenMetrics, "a")] {
            let mut page = Page::new(format);
            page.single("a", Kind::Counter, "help", 7);
            let wanted = format!("# HELP {family} help\n# TYPE {family} counter\na_total 7\n");
            assert_eq!(page.text, wanted);
        }
    }

    #[test]
    fn values_of_labels_are_escaped() {
        let mut page = Page::new(Format::Text);
        page.sample("a", &[("b", "c\\d\"e\nf"), ("g", "")], 1);
        assert_eq!(page.text, "a{b=\"c\\\\d\\\"e\\nf\",g=\"\"} 1\n");
    }

    #[test]
    fn buckets_add_up() {
        let histogram = Histogram::new(SHORT);
        for ns in [5_000, 20_000, i64::from(u32::MAX) * 100] {
            histogram.note(ns);
        }
        let mut page = Page::new(Format::OpenMetrics);
        page.histogram("a", "help", &histogram.read());
        for line in [
            "a_bucket{le=\"1e-5\"} 1",
            "a_bucket{le=\"2.5e-5\"} 2",
            "a_bucket{le=\"10.0\"} 2",
            "a_bucket{le=\"+Inf\"} 3",
            "a_sum 429.4967545",
            "a_count 3",
        ] {
            assert!(
                page.text.lines().any(|it| it == line),
                "{line}\n{}",
                page.text
            );
        }
    }
}
