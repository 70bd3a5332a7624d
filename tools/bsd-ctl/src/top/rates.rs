//! Changes from one round to the next, as lines of 80 columns.

use std::cmp::Reverse;
use std::collections::HashMap;

use bsd::human::Age;
use bsd_tools::yaml::Dictionary;
use serde_json::{Map, Value as Json};

use super::sample::Sample;
use crate::tubes::Sort;
use crate::{json, names};

/// Counters that are shown as one rate, and its label.
type Counted = (&'static [&'static str], &'static str);

/// The rates that are shown, in two lines.
const RATES: [Counted; 7] = [
    // Also those that are put in other ways than by the command.
    (&["total-jobs"], PUT),
    (
        &["cmd-reserve", "cmd-reserve-with-timeout", "cmd-reserve-job"],
        "reserve",
    ),
    (&["cmd-delete"], DELETE),
    (&["job-timeouts"], "timeout"),
    (&["cmd-release"], "release"),
    (&["cmd-bury"], "bury"),
    (&["cmd-kick", "cmd-kick-job"], "kick"),
];
const PUT: &str = "put";
const DELETE: &str = "delete";
/// Of them in the first line.
const RATES_ABOVE: usize = 4;

/// The key of a tube's deleted jobs.
const TUBE_DELETES: &str = "cmd-delete";

/// Columns of a tube behind its name: title, width, key.
const COLUMNS: [(&str, usize, &str); 7] = [
    ("READY", 7, "current-jobs-ready"),
    ("URGENT", 6, "current-jobs-urgent"),
    ("DELAYED", 7, "current-jobs-delayed"),
    ("RESERV", 6, "current-jobs-reserved"),
    ("BURIED", 6, "current-jobs-buried"),
    ("WAIT", 4, "current-waiting"),
    ("PAUSED", 6, "pause-time-left"),
];
const NAME_WIDTH: usize = 17;
const RATE_WIDTH: usize = 6;
/// Characters of a line.
const WIDTH: usize = 80;

/// One round, ready to be shown.
#[derive(Debug)]
pub(super) struct View {
    head: Vec<String>,
    pub(super) tubes: Vec<TubeView>,
    stats: Dictionary,
    rates: Vec<(&'static str, Option<f64>)>,
}

#[derive(Debug)]
pub(super) struct TubeView {
    tube: Dictionary,
    put_rate: Option<f64>,
    delete_rate: Option<f64>,
}

impl View {
    /// The figures of `now`, with rates since `before`.
    pub(super) fn between(
        before: Option<&Sample>,
        now: &Sample,
        sort: Sort,
        is_reversed: bool,
    ) -> View {
        // Another run of the server counts from the beginning.
        let before = before.filter(|before| before.stats.get("id") == now.stats.get("id"));
        let seconds = before.map_or(0.0, |before| now.at - before.at);
        let between = before.map_or(0.0, |before| now.tubes_at - before.tubes_at);
        let rates = RATES.map(|(keys, label)| {
            let rate = before.and_then(|before| match label {
                DELETE if before.is_all && now.is_all => deletes(before, now, between),
                _ => rate(&before.stats, &now.stats, keys, seconds),
            });
            (label, rate)
        });
        let known: HashMap<String, &Dictionary> = before.map_or_else(HashMap::new, |before| {
            let tubes = before.tubes.iter();
            tubes.map(|tube| (tube.text("name"), tube)).collect()
        });
        let tubes = now.tubes.iter().map(|tube| {
            let before = known.get(&tube.text("name"));
            let of = |key| before.and_then(|before| rate(before, tube, &[key], between));
            TubeView {
                tube: tube.clone(),
                put_rate: of("total-jobs"),
                delete_rate: of(TUBE_DELETES),
            }
        });
        let mut view = View {
            head: Vec::new(),
            tubes: tubes.collect(),
            stats: now.stats.clone(),
            rates: rates.to_vec(),
        };
        view.head = head(now, &view.rates);
        view.sort(sort, is_reversed);
        view
    }

    fn sort(&mut self, sort: Sort, is_reversed: bool) {
        match sort {
            Sort::Name => {}
            // What is busiest now stands before what was busy once.
            Sort::Total => self.tubes.sort_by_key(|it| {
                let busy = it.put_rate.unwrap_or(0.0) + it.delete_rate.unwrap_or(0.0);
                Reverse(((busy * 10.0) as u64, it.tube.number("total-jobs")))
            }),
            sort => self
                .tubes
                .sort_by_key(|it| Reverse(it.tube.number(sort.key()))),
        }
        if is_reversed {
            self.tubes.reverse();
        }
    }

    /// The lines above the tubes.
    pub(super) fn head(&self) -> impl Iterator<Item = String> {
        self.head
            .iter()
            .map(|line| line.chars().take(WIDTH).collect())
    }

    pub(super) fn json(&self) -> Map<String, Json> {
        let rates = self.rates.iter();
        let rates = rates.map(|(label, rate)| ((*label).to_owned(), (*rate).into()));
        let tubes = self.tubes.iter().map(|tube| {
            let mut object = json::object(&tube.tube);
            object.insert("puts-per-second".to_owned(), tube.put_rate.into());
            object.insert("deletes-per-second".to_owned(), tube.delete_rate.into());
            Json::Object(object)
        });
        Map::from_iter([
            ("stats".to_owned(), Json::Object(json::object(&self.stats))),
            ("per-second".to_owned(), Json::Object(rates.collect())),
            ("tubes".to_owned(), Json::Array(tubes.collect())),
        ])
    }
}

/// Jobs that were deleted from all tubes; the command also counts where it found none. A tube that
/// is new, or was there before under this name, has begun from 0.
fn deletes(before: &Sample, now: &Sample, seconds: f64) -> Option<f64> {
    let known = before.tubes.iter();
    let known = known.map(|tube| (tube.text("name"), tube.number(TUBE_DELETES)));
    let known: HashMap<String, u64> = known.collect();
    let grown = now.tubes.iter().map(|tube| {
        let count = tube.number(TUBE_DELETES);
        let before = known.get(&tube.text("name")).copied().unwrap_or(0);
        count.checked_sub(before).unwrap_or(count)
    });
    let grown = grown.fold(0, u64::saturating_add);
    (seconds > 0.0).then(|| grown as f64 / seconds)
}

/// Of all these together; `None`: it cannot be told.
fn rate(before: &Dictionary, now: &Dictionary, keys: &[&str], seconds: f64) -> Option<f64> {
    let grown = |key: &&str| Some(now.number(key).checked_sub(before.number(key))? as f64);
    let grown: f64 = keys.iter().map(grown).sum::<Option<f64>>()?;
    (seconds > 0.0).then(|| grown / seconds)
}

fn head(now: &Sample, rates: &[(&str, Option<f64>)]) -> Vec<String> {
    let number = |key: &str| short(now.stats.number(key));
    let jobs = |state: &str| number(&format!("current-jobs-{state}"));
    let draining = if now.stats.text("draining") == "true" {
        ", DRAINING"
    } else {
        ""
    };
    let left_out = match now.left_out {
        0 => String::new(),
        left_out => format!(", of which {left_out} are not asked for"),
    };
    let shown = |rates: &[(&str, Option<f64>)]| {
        let rates = rates.iter();
        let rates = rates.map(|(label, rate)| format!("{label} {}", show_rate(*rate)));
        rates.collect::<Vec<_>>().join(", ")
    };
    let (above, below) = rates.split_at(RATES_ABOVE);
    vec![
        format!(
            "{}, version {}, up {}{draining}",
            names::shown(&now.address.to_string()),
            names::shown(&now.stats.text("version")),
            Age(now.stats.number("uptime")),
        ),
        format!(
            "jobs: {} ready ({} urgent), {} reserved, {} delayed, {} buried",
            jobs("ready"),
            jobs("urgent"),
            jobs("reserved"),
            jobs("delayed"),
            jobs("buried"),
        ),
        format!("per second: {}", shown(above)),
        format!("            {}", shown(below)),
        format!(
            "clients: {} connected, {} producers, {} workers, {} waiting",
            number("current-connections"),
            number("current-producers"),
            number("current-workers"),
            number("current-waiting"),
        ),
        format!("tubes: {}{left_out}", number("current-tubes")),
    ]
}

/// The titles of the tubes' columns.
pub(super) fn titles() -> String {
    let columns = COLUMNS.map(|(title, width, _)| format!(" {title:>width$}"));
    format!(
        "{:<NAME_WIDTH$}{} {:>RATE_WIDTH$} {:>RATE_WIDTH$}",
        "TUBE",
        columns.concat(),
        "PUT/s",
        "DEL/s"
    )
}

impl TubeView {
    /// A line of at most 80 characters.
    pub(super) fn line(&self) -> String {
        let columns = COLUMNS.map(|(_, width, key)| {
            let number = short(self.tube.number(key));
            format!(" {number:>width$}")
        });
        let [put, delete] = [self.put_rate, self.delete_rate].map(show_rate);
        let name = fitted(&names::shown(&self.tube.text("name")));
        format!(
            "{name:<NAME_WIDTH$}{} {put:>RATE_WIDTH$} {delete:>RATE_WIDTH$}",
            columns.concat()
        )
    }
}

/// The beginning and the end of a name that is too long.
fn fitted(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= NAME_WIDTH {
        return name.to_owned();
    }
    let half = (NAME_WIDTH - 1) / 2;
    let (begin, end) = (&letters[..half], &letters[letters.len() - half..]);
    begin.iter().chain(&['~']).chain(end).collect()
}

/// A number of at most five characters.
fn short(number: u64) -> String {
    const UNITS: [&str; 5] = ["k", "M", "G", "T", "P"];
    if number < 10_000 {
        return number.to_string();
    }
    let mut value = number as f64;
    let mut unit = "";
    for next in UNITS {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    match value < 9.95 {
        true => format!("{value:.1}{unit}"),
        false => format!("{value:.0}{unit}"),
    }
}

fn show_rate(rate: Option<f64>) -> String {
    match rate {
        None => "-".to_owned(),
        Some(0.0) => "0".to_owned(),
        Some(rate) if rate < 99.95 => format!("{rate:.1}"),
        Some(rate) => short(rate.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: f64, id: &str, puts: u64, tubes: &[(&str, u64, u64)]) -> Sample {
        let stats = format!("---\ntotal-jobs: {puts}\nid: {id}\nversion: \"1.13\"\nuptime: 7\n");
        let tubes = tubes.iter().map(|(name, total, ready)| {
            let tube = format!("name: {name}\ntotal-jobs: {total}\ncurrent-jobs-ready: {ready}\n");
            Dictionary::parse(tube.as_bytes(), &["name"]).unwrap()
        });
        Sample {
            address: "q".parse().unwrap(),
            at,
            stats: Dictionary::parse(stats.as_bytes(), &["id"]).unwrap(),
            tubes_at: at,
            is_all: false,
            tubes: tubes.collect(),
            left_out: 0,
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_rounds_of_one_server() {
        let before = sample(1.0, "ab", 10, &[("a", 5, 0), ("b", 900, 7)]);
        let now = sample(3.0, "ab", 30, &[("a", 25, 0), ("b", 900, 7), ("c", 1, 1)]);
        let view = View::between(Some(&before), &now, Sort::Total, false);
        assert_eq!(view.rates[0], ("put", Some(10.0)));
        let lines: Vec<String> = view.tubes.iter().map(TubeView::line).collect();
        assert!(
            lines[0].starts_with("a ") && lines[0].ends_with("   10.0      0"),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("b "), "{lines:?}");
        assert!(lines[2].ends_with("     -      -"), "{lines:?}");
        let other = sample(3.0, "cd", 30, &[]);
        let view = View::between(Some(&before), &other, Sort::Name, false);
        assert_eq!(view.rates[0], ("put", None));
    }

    #[test]
    fn deletes_are_those_of_the_tubes_where_all_are_asked_for() {
        let with = |at, deletes: &[(&str, u64)]| {
            let tubes = deletes.iter().map(|(name, count)| {
                let tube = format!("name: {name}\ncmd-delete: {count}\n");
                Dictionary::parse(tube.as_bytes(), &["name"]).unwrap()
            });
            Sample {
                tubes: tubes.collect(),
                is_all: true,
                ..sample(at, "ab", 0, &[])
            }
        };
        let before = with(1.0, &[("a", 5), ("gone", 3), ("again", 9)]);
        let now = with(3.0, &[("a", 25), ("new", 4), ("again", 2)]);
        let view = View::between(Some(&before), &now, Sort::Name, false);
        assert_eq!(view.rates[2], (DELETE, Some(13.0)));
    }

    #[test]
    fn g41_all_ways_to_reserve_count_and_all_rates_fit_in_80_columns() {
        let sample = |at, count: u64| {
            let keys = RATES.iter().flat_map(|(keys, _)| *keys);
            let counts: String = keys.map(|key| format!("{key}: {count}\n")).collect();
            let stats = format!("---\nid: ab\n{counts}");
            Sample {
                stats: Dictionary::parse(stats.as_bytes(), &["id"]).unwrap(),
                ..sample(at, "ab", 0, &[])
            }
        };
        let between = |before, now| View::between(Some(&before), &now, Sort::Name, false);
        let view = between(sample(1.0, 0), sample(3.0, 20));
        assert_eq!(view.rates[1], ("reserve", Some(30.0)));
        for grown in [0, 793, 12_345, u64::MAX / 4] {
            let view = between(sample(1.0, 0), sample(2.0, grown));
            let head = view.head().collect::<Vec<_>>().join("\n");
            for (label, rate) in &view.rates {
                let whole = format!("{label} {}", show_rate(*rate));
                assert!(head.contains(&whole), "{whole}: {head}");
            }
            assert!(head.lines().all(|line| line.len() <= 80), "{head}");
        }
    }

    #[test]
    fn a_line_has_80_columns_whatever_is_in_it() {
        assert_eq!(titles().len(), 80);
        let name = "x".repeat(200);
        let huge = sample(2.0, "a", u64::MAX, &[(&name, u64::MAX, u64::MAX)]);
        let before = sample(1.0, "a", 0, &[(&name, 0, 0)]);
        let view = View::between(Some(&before), &huge, Sort::Ready, true);
        for line in view.head().chain(view.tubes.iter().map(TubeView::line)) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (number, expected) in [
            (9999, "9999"),
            (10_000, "10k"),
            (999_499, "999k"),
            (999_500, "1.0M"),
            (1_500_000, "1.5M"),
            (u64::MAX, "18447P"),
        ] {
            assert_eq!(short(number), expected);
        }
        assert_eq!(show_rate(Some(12.34)), "12.3");
        assert_eq!(show_rate(Some(99.96)), "100");
    }
}
