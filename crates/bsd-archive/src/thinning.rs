//! Which bases stay of each day and each week: the last one of it.
//!
//! Days are those of UTC, weeks those of ISO 8601, from Monday on. They are counted back from the
//! moment up to which the archive goes, whose own day and week are the first ones. A base belongs to
//! the day at which it was put.
//!
//! The last base of a week is the last one of its day, too: what stays for a week stayed for a day
//! before.

use std::collections::{BTreeMap, BTreeSet};

const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// The first Monday was the 5th of January, 1970.
const DAYS_BEFORE_MONDAY: u64 = 3;

/// Days and weeks of which a base stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Thinning {
    pub(super) days: u64,
    pub(super) weeks: u64,
    /// Up to where the archive goes, ns since 1970.
    pub(super) end_ns: u64,
}

/// A day or a week, counted from the one of the first of January, 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Span {
    Day(u64),
    Week(u64),
}

fn day(wall_ns: u64) -> u64 {
    wall_ns / DAY_NS
}

fn week(wall_ns: u64) -> u64 {
    (day(wall_ns) + DAYS_BEFORE_MONDAY) / 7
}

impl Thinning {
    /// Whether a base stays for any day or week.
    pub(super) fn is_on(&self) -> bool {
        self.days > 0 || self.weeks > 0
    }

    /// The spans of this moment for which a base stays.
    fn spans(&self, wall_ns: u64) -> impl Iterator<Item = Span> {
        let is_among = |span: u64, end: u64, count: u64| span.saturating_add(count) > end;
        let (day_of, week_of) = (day(wall_ns), week(wall_ns));
        let is_day = is_among(day_of, day(self.end_ns), self.days);
        let is_week = is_among(week_of, week(self.end_ns), self.weeks);
        let day = (self.days > 0 && is_day).then_some(Span::Day(day_of));
        let week = (self.weeks > 0 && is_week).then_some(Span::Week(week_of));
        day.into_iter().chain(week)
    }

    /// The numbers of the bases that stay, of these: their numbers, and when they were put.
    pub(super) fn chosen(&self, bases: impl Iterator<Item = (u64, u64)>) -> BTreeSet<u64> {
        let mut last: BTreeMap<Span, u64> = BTreeMap::new();
        for (number, wall_ns) in bases {
            for span in self.spans(wall_ns) {
                let of_span = last.entry(span).or_default();
                *of_span = number.max(*of_span);
            }
        }
        last.into_values().collect()
    }

    /// Whether each span for which a base of the time `wall_ns` would stay has one of these.
    pub(super) fn can_spare(&self, wall_ns: u64, others: impl Iterator<Item = (u64, u64)>) -> bool {
        self.can_spare_between(wall_ns, wall_ns, others)
    }

    /// The same of a base whose time is not known, but lies between these two.
    pub(super) fn can_spare_between(
        &self,
        from_ns: u64,
        to_ns: u64,
        others: impl Iterator<Item = (u64, u64)>,
    ) -> bool {
        let others: BTreeSet<Span> = others.flat_map(|(_, at)| self.spans(at)).collect();
        let mut days = day(from_ns)..=day(to_ns.min(self.end_ns).max(from_ns));
        days.all(|day| self.spans(day * DAY_NS).all(|span| others.contains(&span)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_NS: u64 = 3600 * 1_000_000_000;
    /// The 28th of November 2026, a Saturday, at midnight.
    const SATURDAY: u64 = 20_785;

    fn at(day: u64, hour: u64) -> u64 {
        day * DAY_NS + hour * HOUR_NS
    }

    fn thinning(days: u64, weeks: u64) -> Thinning {
        Thinning {
            days,
            weeks,
            end_ns: at(SATURDAY, 12),
        }
    }

    /// Numbers of bases and their times: at 8 and at 20 on each of the last 40 days.
    fn bases() -> impl Iterator<Item = (u64, u64)> {
        let days = SATURDAY - 39..=SATURDAY;
        let times = days.flat_map(|day| [at(day, 8), at(day, 20)]);
        let past = times.filter(|time| *time <= at(SATURDAY, 12));
        past.enumerate().map(|(nth, time)| (nth as u64 + 1, time))
    }

    #[test]
    fn weeks_begin_on_monday_in_utc() {
        let times = [(4, 23, 0), (5, 0, 1), (11, 23, 1), (12, 0, 2)];
        for (of_january, hour, expected) in times {
            assert_eq!(week(at(of_january - 1, hour)), expected, "{of_january}");
        }
        assert_eq!(bsd::clock::utc(at(SATURDAY, 0)), "2026-11-28T00:00:00.000Z");
        // Saturday is the sixth day.
        assert_eq!((SATURDAY + DAYS_BEFORE_MONDAY) % 7, 5);
    }

    #[test]
    fn the_last_base_of_each_day_and_week_stays_and_the_day_of_the_end_is_the_first() {
        // The last day has one base, number 79, and all others two: an even number is the last one.
        assert_eq!(bases().last(), Some((79, at(SATURDAY, 8))));
        let chosen = |days, weeks| -> Vec<u64> {
            let chosen = thinning(days, weeks).chosen(bases());
            chosen.into_iter().collect()
        };
        assert_eq!(chosen(0, 0), [0; 0]);
        assert_eq!(chosen(1, 0), [79]);
        assert_eq!(chosen(4, 0), [74, 76, 78, 79]);
        assert_eq!(chosen(0, 1), [79], "of this week, which began on Monday");
        // Sunday the 22nd, six days before, and those before it.
        assert_eq!(chosen(0, 4), [40, 54, 68, 79]);
        assert_eq!(chosen(2, 2), [68, 78, 79]);
        assert_eq!(chosen(u64::MAX, 0).len(), 40);
    }

    #[test]
    fn what_stays_now_stayed_before_with_the_same_numbers_of_days_and_weeks() {
        let mut kept: Option<BTreeSet<u64>> = None;
        let all: Vec<(u64, u64)> = bases().collect();
        for end in SATURDAY..SATURDAY + 60 {
            let later = Thinning {
                end_ns: at(end, 12),
                ..thinning(5, 3)
            };
            let there = all.iter().copied();
            let there = there.filter(|it| kept.as_ref().is_none_or(|kept| kept.contains(&it.0)));
            let chosen = later.chosen(there);
            // As if nothing had been removed.
            assert_eq!(chosen, later.chosen(all.iter().copied()));
            kept = Some(chosen);
        }
        assert_eq!(kept, Some(BTreeSet::new()));
    }

    #[test]
    fn a_base_can_be_spared_where_its_day_and_its_week_have_another() {
        let of_days = thinning(30, 0);
        let others = |without: u64| bases().filter(move |it| it.0 != without);
        assert!(of_days.can_spare(at(SATURDAY - 1, 20), others(78)));
        assert!(!of_days.can_spare(at(SATURDAY, 8), others(79)));
        assert!(thinning(0, 1).can_spare(at(SATURDAY, 8), others(79)));
        assert!(thinning(0, 0).can_spare(at(SATURDAY, 8), others(79)));
    }

    #[test]
    fn a_base_of_an_unknown_time_can_be_spared_where_each_day_that_may_be_its_own_has_another() {
        let without = |day: u64| bases().filter(move |it| self::day(it.1) != day);
        let spares = |it: Thinning, from: u64, to: u64, without_day: u64| {
            it.can_spare_between(at(from, 20), at(to, 8), without(without_day))
        };
        let days = thinning(30, 0);
        assert!(spares(days, SATURDAY - 3, SATURDAY - 1, SATURDAY - 9));
        assert!(!spares(days, SATURDAY - 3, SATURDAY - 1, SATURDAY - 2));
        assert!(!days.can_spare_between(at(SATURDAY, 8), u64::MAX, without(SATURDAY)));
        // Thursday's week has another one; of longer ago than four days none stays.
        assert!(spares(
            thinning(0, 9),
            SATURDAY - 3,
            SATURDAY - 1,
            SATURDAY - 2
        ));
        assert!(spares(
            thinning(4, 0),
            SATURDAY - 9,
            SATURDAY - 7,
            SATURDAY - 8
        ));
        assert!(thinning(0, 0).can_spare_between(0, u64::MAX, without(SATURDAY)));
    }
}
