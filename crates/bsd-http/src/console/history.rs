//! How it was before: of the whole server an hour with a sample every 10 seconds, a day with one a
//! minute, and a week with one every 10 minutes. All of it is in memory, in less than 1 MiB, whatever
//! happens: a restart begins again. `tube_history` has what is kept of tubes.

use std::collections::VecDeque;

use super::percentiles::{self, Marks};
use super::ring::{Merge, Ring};
use super::span::Span;
use super::tube_history::TubeHistory;
use crate::snapshot::Snapshot;
use bsd::histogram::Reading;
use bsd::protocol::Op;
use bsd::types::Time;

/// Seconds between two samples.
const EVERY: u32 = 10;
/// What is kept: how many samples are one, and the number of those. An hour, a day and a week.
const RINGS: [(u32, usize); 3] = [(1, 360), (6, 1440), (60, 1008)];
/// Seconds that are remembered at most: a week.
const SECONDS_MAX: u64 = 7 * 86_400;
/// A rate is taken over this time, or less soon after the start.
const RATE_NS: i64 = 10_000_000_000;

/// Where the samples of a span are kept, and how many they are.
fn samples(span: Span) -> (usize, usize) {
    match span.0 {
        "10min" => (0, 60),
        "24h" => (1, RINGS[1].1),
        "7d" => (2, RINGS[2].1),
        _ => (0, RINGS[0].1),
    }
}

/// State of the server at one time, and its work in the 10 seconds before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Jobs.
    pub(super) ready: u32,
    pub(super) reserved: u32,
    pub(super) delayed: u32,
    pub(super) buried: u32,
    /// A second.
    pub(super) rates: Rates,
    /// The age of the oldest ready job, seconds.
    pub(super) oldest: f32,
    pub(super) clients: u32,
    /// How long a sync took, seconds: on the average, and at most.
    pub(super) sync: f32,
    pub(super) sync_max: f32,
    /// How long jobs waited, and were worked on, seconds: percentiles.
    pub(super) waits: [f32; 3],
    pub(super) holds: [f32; 3],
    /// Bytes.
    pub(super) unsynced: u32,
    /// KiB.
    pub(super) live: u32,
    pub(super) dead: u32,
    pub(super) memory: u32,
}

/// Events a second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rates {
    pub(super) puts: f32,
    pub(super) reserves: f32,
    pub(super) deletes: f32,
    pub(super) timeouts: f32,
    /// Deliveries that failed.
    pub(super) failures: f32,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    puts: u64,
    reserves: u64,
    deletes: u64,
    timeouts: u64,
    failures: u64,
}

impl Totals {
    fn of(snapshot: &Snapshot) -> Totals {
        let figures = &snapshot.figures;
        let commands = |op: Op| figures.commands[op as usize];
        Totals {
            puts: figures.queue.total_jobs,
            reserves: figures.waits.counts.iter().sum(),
            deletes: commands(Op::Delete),
            timeouts: figures.queue.timeouts,
            failures: failures(snapshot),
        }
    }

    fn since(&self, before: &Totals, ns: i64) -> Rates {
        let seconds = (ns as f32 / 1e9).max(0.001);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f32 / seconds;
        Rates {
            puts: rate(self.puts, before.puts),
            reserves: rate(self.reserves, before.reserves),
            deletes: rate(self.deletes, before.deletes),
            timeouts: rate(self.timeouts, before.timeouts),
            failures: rate(self.failures, before.failures),
        }
    }
}

impl Merge for Sample {
    fn merge(&mut self, other: &Sample) {
        let Sample { rates, .. } = other;
        for (one, other) in [
            (&mut self.ready, other.ready),
            (&mut self.reserved, other.reserved),
            (&mut self.delayed, other.delayed),
            (&mut self.buried, other.buried),
            (&mut self.clients, other.clients),
            (&mut self.unsynced, other.unsynced),
            (&mut self.live, other.live),
            (&mut self.dead, other.dead),
            (&mut self.memory, other.memory),
        ] {
            *one = (*one).max(other);
        }
        for (one, other) in [
            (&mut self.rates.puts, rates.puts),
            (&mut self.rates.reserves, rates.reserves),
            (&mut self.rates.deletes, rates.deletes),
            (&mut self.rates.timeouts, rates.timeouts),
            (&mut self.rates.failures, rates.failures),
            (&mut self.oldest, other.oldest),
            (&mut self.sync, other.sync),
            (&mut self.sync_max, other.sync_max),
        ] {
            *one = one.max(other);
        }
        let times = self.waits.iter_mut().zip(&other.waits);
        for (one, other) in times.chain(self.holds.iter_mut().zip(&other.holds)) {
            *one = one.max(*other);
        }
    }
}

/// The samples that are kept.
#[derive(Debug)]
pub(super) struct History {
    rings: [Ring<Sample>; RINGS.len()],
    /// Samples since the start.
    count: u64,
    pub(super) tubes: TubeHistory,
    /// Totals of the last ten seconds, the oldest first.
    recent: VecDeque<(Time, Totals)>,
    /// As they were at the last sample.
    totals: Totals,
    noted: Option<Time>,
    syncs: Option<Reading>,
    /// The histograms of the times of jobs at the last sample.
    times: Option<(Reading, Reading)>,
    /// What they were before that.
    pub(super) marks: Marks,
}

impl Default for History {
    fn default() -> History {
        History {
            rings: RINGS.map(Ring::new),
            count: 0,
            tubes: TubeHistory::default(),
            recent: VecDeque::new(),
            totals: Totals::default(),
            noted: None,
            syncs: None,
            times: None,
            marks: Marks::default(),
        }
    }
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Deliveries that failed in the tubes that are there.
fn failures(snapshot: &Snapshot) -> u64 {
    let tubes = snapshot.kept_tubes().map(|(_, tube)| tube);
    let failed = tubes.filter_map(|tube| tube.failures.as_ref());
    failed.map(|it| it.by_reason.iter().sum::<u64>()).sum()
}

/// Sessions, but that in which the snapshot was taken.
pub(super) fn clients(snapshot: &Snapshot) -> u64 {
    snapshot.figures.queue.connections.saturating_sub(1)
}

/// The age of the oldest ready job of all tubes, nanoseconds.
pub(super) fn oldest_ready(snapshot: &Snapshot) -> i64 {
    let tubes = snapshot.kept_tubes().map(|(_, tube)| tube.oldest_ready_ns);
    tubes.max().unwrap_or(0).max(snapshot.rest.oldest_ready_ns)
}

impl History {
    /// So it is now; `syncs` is how long syncs have taken so far.
    pub(super) fn note(&mut self, snapshot: &Snapshot, syncs: &Reading) {
        let sample = self.sample(snapshot, syncs);
        self.push(&sample);
        self.syncs = Some(syncs.clone());
        let figures = &snapshot.figures;
        self.times = Some((figures.waits.clone(), figures.holds.clone()));
        self.marks.note(snapshot);
        self.tubes.note(snapshot);
    }

    fn push(&mut self, sample: &Sample) {
        self.count += 1;
        for ring in &mut self.rings {
            ring.push(sample);
        }
    }

    fn sample(&mut self, snapshot: &Snapshot, syncs: &Reading) -> Sample {
        let figures = &snapshot.figures;
        let jobs = &figures.queue.jobs;
        let (totals, at) = (Totals::of(snapshot), snapshot.now.mono);
        let rates = match self.noted {
            Some(before) => totals.since(&self.totals, at.since(before)),
            None => Rates::default(),
        };
        (self.totals, self.noted) = (totals, Some(at));
        let (sync, sync_max) = between(self.syncs.as_ref(), syncs);
        let (waits, holds) = match &self.times {
            Some((waits, holds)) => (Some(waits), Some(holds)),
            None => (None, None),
        };
        let log = figures.log.as_ref();
        let memory = figures.queue_memory + figures.bodies_memory + figures.pauses_memory;
        Sample {
            ready: small(jobs.ready),
            reserved: small(jobs.reserved),
            delayed: small(jobs.delayed),
            buried: small(jobs.buried),
            rates,
            oldest: oldest_ready(snapshot) as f32 / 1e9,
            clients: small(clients(snapshot)),
            sync,
            sync_max,
            waits: percentiles::between(waits, &figures.waits),
            holds: percentiles::between(holds, &figures.holds),
            unsynced: small(log.map_or(0, |log| log.unsynced)),
            live: small(log.map_or(0, |log| log.live >> 10)),
            dead: small(log.map_or(0, |log| log.dead >> 10)),
            memory: small(memory >> 10),
        }
    }

    /// Current rates, a second.
    pub(super) fn rates(&mut self, snapshot: &Snapshot) -> Rates {
        let (at, totals) = (snapshot.now.mono, Totals::of(snapshot));
        if self.recent.back().is_none_or(|(last, _)| *last < at) {
            self.recent.push_back((at, totals));
        }
        // One that is older than ten seconds is kept to count from.
        let is_old = |(time, _): &(Time, Totals)| at.since(*time) >= RATE_NS;
        while self.recent.get(1).is_some_and(is_old) {
            self.recent.pop_front();
        }
        match self.recent.front() {
            Some((before, of)) if *before < at => totals.since(of, at.since(*before)),
            _ => {
                let last = self.rings[0].samples().back();
                last.map_or(Rates::default(), |it| it.rates)
            }
        }
    }

    /// One number of each sample of a span, the latest last; `None` where nothing is known. Not more
    /// than `points`: of samples that are drawn together the greatest.
    pub(super) fn line(
        &self,
        span: Span,
        points: usize,
        of: impl Fn(&Sample) -> f32,
    ) -> Vec<Option<f32>> {
        let (ring, wanted) = samples(span);
        let each = wanted.div_ceil(points).max(1);
        let mut line = vec![None; wanted.div_ceil(each)];
        for (age, sample) in self.rings[ring]
            .samples()
            .iter()
            .rev()
            .take(wanted)
            .enumerate()
        {
            let at = line.len() - 1 - age / each;
            let value: &mut Option<f32> = &mut line[at];
            *value = Some(value.map_or(of(sample), |it| it.max(of(sample))));
        }
        line
    }

    /// Since when samples are there, seconds.
    pub(super) fn seconds(&self) -> u64 {
        (self.count.saturating_sub(1) * u64::from(EVERY)).min(SECONDS_MAX)
    }
}

/// Average and longest of the durations noted between two readings, seconds.
fn between(before: Option<&Reading>, now: &Reading) -> (f32, f32) {
    let (mut count, mut sum, mut most) = (0, now.sum_ns, 0.0);
    for (at, noted) in now.counts.iter().enumerate() {
        let more = noted - before.map_or(0, |before| before.counts[at]);
        count += more;
        if more > 0 {
            let bound = now.bounds.get(at).or(now.bounds.last());
            most = bound.map_or(0.0, |bound| *bound as f32 / 1e9);
        }
    }
    sum -= before.map_or(0, |before| before.sum_ns);
    match count {
        0 => (0.0, 0.0),
        _ => (sum as f32 / count as f32 / 1e9, most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::span::SPANS;
    use bsd::histogram::{Histogram, SHORT};

    fn history(samples: impl Iterator<Item = u32>) -> History {
        let mut history = History::default();
        for ready in samples {
            history.push(&Sample {
                ready,
                ..Sample::default()
            });
        }
        history
    }

    #[test]
    fn all_that_is_remembered_takes_less_than_a_mebibyte() {
        let of_server: usize = RINGS
            .iter()
            .map(|(_, most)| most * size_of::<Sample>())
            .sum();
        assert!(of_server + percentiles::BYTES_MAX < 1 << 20, "{of_server}");
        for (ring, (_, most)) in History::default().rings.iter().zip(RINGS) {
            assert!(ring.samples().capacity() < most + most / 8);
        }
    }

    #[test]
    fn a_line_ends_with_the_latest_and_begins_with_what_is_not_known() {
        let history = history(1..=3);
        let line = history.line(Span("10min"), 60, |sample| sample.ready as f32);
        assert_eq!(line.len(), 60);
        assert_eq!(line[56..], [None, Some(1.0), Some(2.0), Some(3.0)]);
    }

    #[test]
    fn samples_that_are_drawn_together_are_the_greatest_of_them() {
        let history = history((0..8640 + 5).map(|nth| nth % 36));
        let line = history.line(Span("24h"), 240, |sample| sample.ready as f32);
        assert_eq!(line, vec![Some(35.0); 240]);
    }

    #[test]
    fn a_week_is_remembered_and_what_is_older_is_not() {
        let per_week = 7 * 8640;
        let history = history((0..per_week + 600).map(|nth| u32::from(nth == 700) * 9));
        let of = |span| history.line(Span(span), 2000, |sample| sample.ready as f32);
        for span in SPANS {
            let line = of(span);
            assert!(line.iter().all(Option::is_some), "{span}");
            let is_peak = line.contains(&Some(9.0));
            assert_eq!(is_peak, *span == "7d", "{span}");
        }
        let kept = |span: &&'static str| {
            let (ring, count) = samples(Span(span));
            u64::from(EVERY * RINGS[ring].0) * count as u64
        };
        let lengths = SPANS.iter().map(|span| Span(span).seconds());
        assert!(lengths.eq(SPANS.iter().map(kept)));
        assert_eq!(history.seconds(), 7 * 86_400);
    }

    #[test]
    fn times_between_two_readings_are_those_noted_between_them() {
        let histogram = Histogram::new(SHORT);
        histogram.note(1_000_000_000);
        let before = histogram.read();
        assert_eq!(between(Some(&before), &histogram.read()), (0.0, 0.0));
        histogram.note(40_000);
        histogram.note(60_000);
        let (mean, most) = between(Some(&before), &histogram.read());
        assert!((mean - 50e-6).abs() < 1e-9, "{mean}");
        assert!((most - 100e-6).abs() < 1e-9, "{most}");
    }
}
