//! Changes from one round to the next, as lines of 80 columns.

use std::cmp::Reverse;
use std::collections::HashMap;

use bsd::human::Age;
use bsd_tools::yaml::Dictionary;
use serde_json::{Map, Value as Json};

use super::events::{Counts, Events, KINDS};
use super::sample::Sample;
use crate::tubes::Sort;
use crate::{json, names};

/// The commands of `stats` that stand for each of [`KINDS`], where the API does not tell.
const COMMANDS: [&[&str]; KINDS.len()] = [
    // Also those that are put in other ways than by the command.
    &["total-jobs"],
    &["cmd-reserve", "cmd-reserve-with-timeout", "cmd-reserve-job"],
    &["cmd-delete"],
    &["job-timeouts"],
    &["cmd-release"],
    &["cmd-bury"],
    &["cmd-kick", "cmd-kick-job"],
    // beanstalkd has no such command.
    &[],
];
/// Places in [`KINDS`].
const PUT: usize = 0;
const DELETE: usize = 2;
/// Rates in the first line.
const RATES_ABOVE: usize = 4;

/// Rates of [`KINDS`]; `None`: it cannot be told.
type Rates = [Option<f64>; KINDS.len()];

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
/// Titles of the rates of a tube, in the order of [`KINDS`].
const RATE_TITLES: [&str; KINDS.len()] = [
    "PUT/s", "RES/s", "DEL/s", "TIME/s", "REL/s", "BURY/s", "KICK/s", "FAIL/s",
];
const NAME_WIDTH: usize = 17;
const RATE_WIDTH: usize = 6;
/// Characters of a line.
const WIDTH: usize = 80;

/// What stands behind the name of a tube.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columns {
    /// Jobs by state, and two rates.
    States,
    /// Ready jobs, and all rates.
    Rates,
}

impl Columns {
    pub(super) fn other(self) -> Columns {
        match self {
            Columns::States => Columns::Rates,
            Columns::Rates => Columns::States,
        }
    }
}

/// One round, ready to be shown.
#[derive(Debug)]
pub(super) struct View {
    head: Vec<String>,
    pub(super) tubes: Vec<TubeView>,
    stats: Dictionary,
    rates: Rates,
}

#[derive(Debug)]
pub(super) struct TubeView {
    tube: Dictionary,
    rates: Rates,
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
        let events = before.and_then(|before| Between::of(before, now));
        let rates = std::array::from_fn(|kind| match (&events, before) {
            (Some(events), _) => events.all(kind),
            (None, Some(before)) if kind == DELETE && before.is_all && now.is_all => {
                deletes(before, now, between)
            }
            (None, Some(before)) => rate(&before.stats, &now.stats, COMMANDS[kind], seconds),
            (None, None) => None,
        });
        let known: HashMap<String, &Dictionary> = before.map_or_else(HashMap::new, |before| {
            let tubes = before.tubes.iter();
            tubes.map(|tube| (tube.text("name"), tube)).collect()
        });
        let tubes = now.tubes.iter().map(|tube| {
            let name = tube.text("name");
            let before = known.get(&name);
            let of = |key| before.and_then(|before| rate(before, tube, &[key], between));
            let rates = std::array::from_fn(|kind| match kind {
                PUT => of("total-jobs"),
                DELETE => of(TUBE_DELETES),
                _ => events.as_ref()?.of_tube(&name, kind),
            });
            TubeView {
                tube: tube.clone(),
                rates,
            }
        });
        let mut view = View {
            head: Vec::new(),
            tubes: tubes.collect(),
            stats: now.stats.clone(),
            rates,
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
                let busy: f64 = it.rates.iter().flatten().sum();
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
        let tubes = self.tubes.iter().map(|tube| {
            let mut object = json::object(&tube.tube);
            object.insert("puts-per-second".to_owned(), tube.rates[PUT].into());
            object.insert("deletes-per-second".to_owned(), tube.rates[DELETE].into());
            object.insert("per-second".to_owned(), rates_json(&tube.rates));
            Json::Object(object)
        });
        Map::from_iter([
            ("stats".to_owned(), Json::Object(json::object(&self.stats))),
            ("per-second".to_owned(), rates_json(&self.rates)),
            ("tubes".to_owned(), Json::Array(tubes.collect())),
        ])
    }
}

fn rates_json(rates: &Rates) -> Json {
    let rates = KINDS.iter().zip(rates);
    let rates = rates.map(|((label, _), rate)| ((*label).to_owned(), (*rate).into()));
    Json::Object(rates.collect())
}

/// What has happened between two rounds, as the API counts it.
struct Between<'a> {
    before: &'a Events,
    now: &'a Events,
}

impl<'a> Between<'a> {
    fn of(before: &'a Sample, now: &'a Sample) -> Option<Between<'a>> {
        let (before, now) = (before.events.as_ref()?, now.events.as_ref()?);
        (now.at > before.at).then_some(Between { before, now })
    }

    fn rate(&self, before: &Counts, now: &Counts, kind: usize) -> Option<f64> {
        let grown = now[kind].checked_sub(before[kind])?;
        Some(grown as f64 / (self.now.at - self.before.at))
    }

    fn all(&self, kind: usize) -> Option<f64> {
        self.rate(&self.before.all, &self.now.all, kind)
    }

    fn of_tube(&self, name: &str, kind: usize) -> Option<f64> {
        let (before, now) = (self.before.tubes.get(name)?, self.now.tubes.get(name)?);
        self.rate(before, now, kind)
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
    if keys.is_empty() {
        return None;
    }
    let grown = |key: &&str| Some(now.number(key).checked_sub(before.number(key))? as f64);
    let grown: f64 = keys.iter().map(grown).sum::<Option<f64>>()?;
    (seconds > 0.0).then(|| grown / seconds)
}

fn head(now: &Sample, rates: &Rates) -> Vec<String> {
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
    let shown = KINDS.iter().zip(rates);
    let shown = shown.map(|((label, _), rate)| format!("{label} {}", show_rate(*rate)));
    let shown: Vec<String> = shown.collect();
    let (above, below) = shown.split_at(RATES_ABOVE);
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
        format!("per second: {}", above.join(", ")),
        format!("            {}", below.join(", ")),
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
pub(super) fn titles(columns: Columns) -> String {
    let titles: String = match columns {
        Columns::States => {
            let states = COLUMNS.map(|(title, width, _)| format!(" {title:>width$}"));
            let rates = [PUT, DELETE].map(|kind| RATE_TITLES[kind]);
            states.concat() + &aligned(&rates)
        }
        Columns::Rates => aligned(&["READY"]) + &aligned(&RATE_TITLES),
    };
    format!("{:<NAME_WIDTH$}{titles}", "TUBE")
}

/// Columns of the width of a rate.
fn aligned(texts: &[impl std::fmt::Display]) -> String {
    let columns = texts.iter().map(ToString::to_string);
    columns
        .map(|text| format!(" {text:>RATE_WIDTH$}"))
        .collect()
}

impl TubeView {
    /// A line of at most 80 characters.
    pub(super) fn line(&self, columns: Columns) -> String {
        let number = |key: &str| short(self.tube.number(key));
        let rates = self.rates.map(show_rate);
        let values = match columns {
            Columns::States => {
                let states = COLUMNS.map(|(_, width, key)| format!(" {:>width$}", number(key)));
                states.concat() + &aligned(&[&rates[PUT], &rates[DELETE]])
            }
            Columns::Rates => aligned(&[number("current-jobs-ready")]) + &aligned(&rates),
        };
        let name = fitted(&names::shown(&self.tube.text("name")));
        format!("{name:<NAME_WIDTH$}{values}")
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
            events: None,
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_rounds_of_one_server() {
        let before = sample(1.0, "ab", 10, &[("a", 5, 0), ("b", 900, 7)]);
        let now = sample(3.0, "ab", 30, &[("a", 25, 0), ("b", 900, 7), ("c", 1, 1)]);
        let view = View::between(Some(&before), &now, Sort::Total, false);
        assert_eq!(view.rates[PUT], Some(10.0));
        let lines = view.tubes.iter().map(|tube| tube.line(Columns::States));
        let lines: Vec<String> = lines.collect();
        assert!(
            lines[0].starts_with("a ") && lines[0].ends_with("   10.0      0"),
            "{lines:?}"
        );
        assert!(lines[1].starts_with("b "), "{lines:?}");
        assert!(lines[2].ends_with("     -      -"), "{lines:?}");
        let other = sample(3.0, "cd", 30, &[]);
        let view = View::between(Some(&before), &other, Sort::Name, false);
        assert_eq!(view.rates[PUT], None);
    }

    #[test]
    fn rates_are_those_of_jobs_where_the_api_counts_them() {
        let with = |at, all: Counts, tube: Counts| Sample {
            events: Some(Events {
                at: at + 0.5,
                all,
                tubes: HashMap::from([("a".to_owned(), tube)]),
            }),
            ..sample(at, "ab", 900, &[("a", 5, 1), ("b", 6, 2)])
        };
        let before = with(1.0, [0; 8], [9; 8]);
        let now = with(
            3.0,
            [2, 4, 6, 8, 10, 12, 14, 16],
            [9, 11, 9, 13, 15, 17, 9, 19],
        );
        let view = View::between(Some(&before), &now, Sort::Name, false);
        assert_eq!(
            view.rates,
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].map(Some)
        );
        let of_tube = [0.0, 1.0, 0.0, 2.0, 3.0, 4.0, 0.0, 5.0].map(Some);
        assert_eq!(view.tubes[0].rates, of_tube);
        let line = view.tubes[0].line(Columns::Rates);
        let shown: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(
            shown,
            ["a", "1", "0", "1.0", "0", "2.0", "3.0", "4.0", "0", "5.0"]
        );
        // The API does not count this one: the protocol tells of puts and deletes.
        let unknown = [Some(0.0), None, Some(0.0), None, None, None, None, None];
        assert_eq!(view.tubes[1].rates, unknown);
        assert_eq!(view.json()["tubes"][0]["per-second"]["fail"], 5.0);
        assert_eq!(view.json()["per-second"]["reserve"], 2.0);
        // A round without the API.
        let without = sample(5.0, "ab", 900, &[("a", 5, 1)]);
        let view = View::between(Some(&now), &without, Sort::Name, false);
        assert_eq!((view.rates[PUT], view.tubes[0].rates[1]), (Some(0.0), None));
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
        assert_eq!(view.rates[DELETE], Some(13.0));
    }

    #[test]
    fn g41_all_ways_to_reserve_count_and_all_rates_fit_in_80_columns() {
        let sample = |at, count: u64| {
            let keys = COMMANDS.iter().copied().flatten();
            let counts: String = keys.map(|key| format!("{key}: {count}\n")).collect();
            let stats = format!("---\nid: ab\n{counts}");
            Sample {
                stats: Dictionary::parse(stats.as_bytes(), &["id"]).unwrap(),
                ..sample(at, "ab", 0, &[])
            }
        };
        let between = |before, now| View::between(Some(&before), &now, Sort::Name, false);
        let view = between(sample(1.0, 0), sample(3.0, 20));
        assert_eq!((KINDS[1].0, view.rates[1]), ("reserve", Some(30.0)));
        assert_eq!(view.rates[7], None, "beanstalkd does not have it");
        for grown in [0, 793, 12_345, u64::MAX / 4] {
            let view = between(sample(1.0, 0), sample(2.0, grown));
            let head = view.head().collect::<Vec<_>>().join("\n");
            for ((label, _), rate) in KINDS.iter().zip(&view.rates) {
                let whole = format!("{label} {}", show_rate(*rate));
                assert!(head.contains(&whole), "{whole}: {head}");
            }
            assert!(head.lines().all(|line| line.len() <= 80), "{head}");
        }
    }

    #[test]
    fn a_line_has_80_columns_whatever_is_in_it() {
        for columns in [Columns::States, Columns::Rates] {
            assert_eq!(titles(columns).len(), 80, "{columns:?}");
        }
        let name = "x".repeat(200);
        let huge = sample(2.0, "a", u64::MAX, &[(&name, u64::MAX, u64::MAX)]);
        let before = sample(1.0, "a", 0, &[(&name, 0, 0)]);
        let view = View::between(Some(&before), &huge, Sort::Ready, true);
        let lines = |columns| view.tubes.iter().map(move |tube| tube.line(columns));
        let tubes = lines(Columns::States).chain(lines(Columns::Rates));
        for line in view.head().chain(tubes) {
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
