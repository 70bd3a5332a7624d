//! How it was in single tubes: ten minutes of the ready jobs of 500 of them; and of the 100 most active of
//! these an hour, a day and a week. All of it is in memory, in less than 1.5 MiB, whatever happens.
//!
//! A tube is as active as it has puts and deletes, those of an hour ago for half. One that is twice as
//! active as the least active of the 100 takes its place, and begins without a past. A tube that is gone
//! keeps its place until another one takes it.

use std::collections::HashMap;

use super::ring::{Merge, Ring};
use super::span::Span;
use crate::snapshot::{Snapshot, TubeFigures};
use bsd::types::{SECOND_NS, Time};

/// Tubes of which samples are kept, the first that have jobs.
pub(super) const TUBES_MAX: usize = 500;
/// Those of them of which more is kept than 10 minutes.
pub(super) const LONG_MAX: usize = 100;
/// Samples of ready jobs that are kept: 10 minutes.
const TUBE_SAMPLES: usize = 60;
/// What is kept of the most active: how many samples are one, and the number of those. An hour, a day and
/// a week.
const RINGS: [(u32, usize); 3] = [(3, 120), (36, 240), (252, 240)];
/// Part of its activity that a tube keeps from one sample to the next: half of it in an hour.
const KEPT: f32 = 0.998;

/// State of a tube at one time, and its work before that.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct TubeSample {
    /// Jobs.
    pub(super) ready: u32,
    pub(super) buried: u32,
    /// A second.
    pub(super) puts: f32,
    pub(super) deletes: f32,
}

impl Merge for TubeSample {
    fn merge(&mut self, other: &TubeSample) {
        self.ready = self.ready.max(other.ready);
        self.buried = self.buried.max(other.buried);
        self.puts = self.puts.max(other.puts);
        self.deletes = self.deletes.max(other.deletes);
    }
}

/// Ready jobs of a tube, and how active it is.
#[derive(Debug)]
struct Short {
    ready: [u32; TUBE_SAMPLES],
    /// Number of samples; the last is the latest.
    count: usize,
    /// The round in which it was there.
    round: u64,
    /// Totals at the last sample.
    puts: u64,
    deletes: u64,
    activity: f32,
}

/// The samples that are kept of tubes.
#[derive(Debug, Default)]
pub(super) struct TubeHistory {
    short: HashMap<Box<str>, Short>,
    long: HashMap<Box<str>, Long>,
    round: u64,
    noted: Option<Time>,
}

#[derive(Debug)]
struct Long {
    rings: [Ring<TubeSample>; RINGS.len()],
    activity: f32,
    round: u64,
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl TubeHistory {
    /// Those that are there go on; free places are for tubes that have jobs.
    pub(super) fn note(&mut self, snapshot: &Snapshot) {
        let at = snapshot.now.mono;
        let since_ns = self.noted.map_or(0, |before| at.since(before));
        self.note_tubes(snapshot.kept_tubes(), since_ns as f32 / SECOND_NS as f32);
        self.noted = Some(at);
    }

    fn note_tubes<'a>(
        &mut self,
        tubes: impl Iterator<Item = (&'a str, &'a TubeFigures)>,
        seconds: f32,
    ) {
        self.round += 1;
        let round = self.round;
        for (name, tube) in tubes {
            let is_new = !self.short.contains_key(name);
            if is_new && (tube.jobs.total() == 0 || self.short.len() >= TUBES_MAX) {
                continue;
            }
            let short = (self.short)
                .entry(name.into())
                .or_insert_with(|| Short::of(tube));
            let sample = short.note(tube, seconds);
            short.round = round;
            if let Some(long) = self.long.get_mut(name) {
                long.push(&sample, short.activity, round);
            }
        }
        self.short
            .retain(|_, tube| tube.round == round && tube.is_of_use());
        for long in self.long.values_mut().filter(|long| long.round < round) {
            let activity = long.activity * KEPT;
            long.push(&TubeSample::default(), activity, round);
        }
        // Free places are taken at once; beside that one changes hands in a round.
        while self.give_a_place() && self.long.len() < LONG_MAX {}
    }

    /// The most active tube without a place gets one, if there is one free or one that is less than half
    /// as active.
    fn give_a_place(&mut self) -> bool {
        let without = self.short.iter();
        let without =
            without.filter(|(name, tube)| tube.activity > 0.0 && !self.long.contains_key(*name));
        let Some((name, tube)) = without.max_by(|a, b| a.1.activity.total_cmp(&b.1.activity))
        else {
            return false;
        };
        let name = name.clone();
        if self.long.len() >= LONG_MAX {
            let least = self.long.iter();
            let least = least.min_by(|a, b| a.1.activity.total_cmp(&b.1.activity));
            let least = least.filter(|(_, it)| it.activity * 2.0 < tube.activity);
            let Some(least) = least.map(|(name, _)| name.clone()) else {
                return false;
            };
            self.long.remove(&least);
        }
        let long = Long {
            rings: RINGS.map(Ring::new),
            activity: tube.activity,
            round: self.round,
        };
        self.long.insert(name, long);
        true
    }

    /// Ready jobs of a tube in the last 10 minutes, if it is one of those that are watched.
    pub(super) fn ready(&self, name: &str) -> Option<Vec<Option<f32>>> {
        let tube = self.short.get(name)?;
        let known = TUBE_SAMPLES - tube.count;
        let line = tube.ready.iter().enumerate();
        Some(
            line.map(|(at, ready)| (at >= known).then_some(*ready as f32))
                .collect(),
        )
    }

    /// One number of each sample of a span of more than 10 minutes, the latest last; `None` where nothing
    /// is known, and for a tube of which no more is kept.
    pub(super) fn line(
        &self,
        name: &str,
        span: Span,
        of: fn(&TubeSample) -> f32,
    ) -> Option<Vec<Option<f32>>> {
        let nth = match span.0 {
            "1h" => 0,
            "24h" => 1,
            "7d" => 2,
            _ => return None,
        };
        let samples = self.long.get(name)?.rings[nth].samples();
        let mut line = vec![None; RINGS[nth].1];
        let behind = line.len() - samples.len();
        for (value, sample) in line[behind..].iter_mut().zip(samples) {
            *value = Some(of(sample));
        }
        Some(line)
    }
}

impl Long {
    fn push(&mut self, sample: &TubeSample, activity: f32, round: u64) {
        (self.activity, self.round) = (activity, round);
        for ring in &mut self.rings {
            ring.push(sample);
        }
    }
}

impl Short {
    /// Without samples. What was done before is not counted.
    fn of(tube: &TubeFigures) -> Short {
        Short {
            ready: [0; TUBE_SAMPLES],
            count: 0,
            round: 0,
            puts: tube.puts,
            deletes: tube.deletes,
            activity: 0.0,
        }
    }

    fn note(&mut self, tube: &TubeFigures, seconds: f32) -> TubeSample {
        self.ready.rotate_left(1);
        self.ready[TUBE_SAMPLES - 1] = small(tube.jobs.ready);
        self.count = (self.count + 1).min(TUBE_SAMPLES);
        let puts = tube.puts.saturating_sub(self.puts);
        let deletes = tube.deletes.saturating_sub(self.deletes);
        (self.puts, self.deletes) = (tube.puts, tube.deletes);
        self.activity = self.activity * KEPT + (puts + deletes) as f32;
        let rate = |count: u64| count as f32 / seconds.max(0.001);
        TubeSample {
            ready: small(tube.jobs.ready),
            buried: small(tube.jobs.buried),
            puts: rate(puts),
            deletes: rate(deletes),
        }
    }

    /// It had a ready job, or was active, or may yet be.
    fn is_of_use(&self) -> bool {
        self.count < TUBE_SAMPLES
            || self.ready.iter().any(|ready| *ready > 0)
            || self.activity > 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tube(ready: u64, puts: u64) -> TubeFigures {
        let mut tube = TubeFigures {
            puts,
            ..TubeFigures::default()
        };
        tube.jobs.ready = ready;
        tube
    }

    fn note(history: &mut TubeHistory, tubes: &[(String, TubeFigures)]) {
        let tubes = tubes.iter().map(|(name, tube)| (&**name, tube));
        history.note_tubes(tubes, 10.0);
    }

    #[test]
    fn all_that_is_remembered_of_tubes_takes_less_than_one_and_a_half_mebibytes() {
        // The longest name, and what a map has beside it.
        let name = 200;
        let short = 2 * (size_of::<(Box<str>, Short)>() + 1) + name;
        let of_rings: usize = RINGS
            .iter()
            .map(|(_, most)| most * size_of::<TubeSample>())
            .sum();
        let long = 2 * (size_of::<(Box<str>, Long)>() + 1) + name + of_rings;
        let all = TUBES_MAX * short + LONG_MAX * long;
        assert!(all < 3 << 19, "{all}");
        for (each, most) in RINGS {
            assert!(Ring::<TubeSample>::new((each, most)).samples().capacity() < most + most / 8);
        }
        let seconds = RINGS.map(|(each, most)| each as usize * 10 * most);
        assert_eq!(seconds, [3600, 86_400, 7 * 86_400]);
    }

    #[test]
    fn an_hour_a_day_and_a_week_of_a_tube_are_kept() {
        let mut history = TubeHistory::default();
        for nth in 0..=8640 * 7 {
            note(
                &mut history,
                &[("t".into(), tube(u64::from(nth == 5) * 9 + 1, nth * 20))],
            );
        }
        for span in ["1h", "24h", "7d"] {
            let line = |of| history.line("t", Span(span), of).unwrap();
            let ready = line(|it| it.ready as f32);
            assert!(ready.iter().all(Option::is_some), "{span}");
            assert_eq!(ready.contains(&Some(10.0)), span == "7d", "{span}");
            assert_eq!(line(|it| it.puts).last(), Some(&Some(2.0)), "{span}");
        }
        assert_eq!(history.line("t", Span("10min"), |_| 0.0), None);
        assert_eq!(history.line("other", Span("1h"), |_| 0.0), None);
    }

    #[test]
    fn the_most_active_hundred_tubes_have_a_past_and_no_more() {
        let mut history = TubeHistory::default();
        let many = |round: u64| -> Vec<(String, TubeFigures)> {
            let one = |nth: u64| (format!("t{nth:04}"), tube(1, round * (nth + 1)));
            (0..800).map(one).collect()
        };
        for round in 0..1000 {
            note(&mut history, &many(round));
            assert!(history.long.len() <= LONG_MAX && history.short.len() <= TUBES_MAX);
        }
        assert_eq!(
            (history.long.len(), history.short.len()),
            (LONG_MAX, TUBES_MAX)
        );
        // Of the 500 that are watched the last are the most active.
        assert!(history.long.contains_key("t0499") && !history.long.contains_key("t0000"));
        // One that was not gets a place when it is twice as active as another.
        let mut tubes = many(1000);
        tubes[0].1.puts = 1_000_000;
        note(&mut history, &tubes);
        assert!(history.long.contains_key("t0000"));
        assert_eq!(history.long.len(), LONG_MAX);
    }

    #[test]
    fn a_tube_that_is_gone_keeps_its_past_until_another_needs_the_place() {
        let mut history = TubeHistory::default();
        for nth in 0..10 {
            note(&mut history, &[("t".into(), tube(4, nth))]);
        }
        note(&mut history, &[]);
        note(&mut history, &[]);
        note(&mut history, &[]);
        let line = history.line("t", Span("1h"), |it| it.ready as f32).unwrap();
        assert_eq!(line.last(), Some(&Some(0.0)));
        assert!(line.contains(&Some(4.0)));
        assert_eq!(history.ready("t"), None);
    }
}
