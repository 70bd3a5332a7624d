//! What is known of an archive that is being written, for everyone who asks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::joiner::Joins;
use super::order::Orders;
use super::writer::Figures;
use bsd::storage::Trail;
use bsd::storage::format::LogId;
use bsd::types::{Position, SECOND_NS, Time};

/// An archive that lacks something for longer than this, and two intervals, is late.
pub const LAG_MAX_NS: i64 = 15 * SECOND_NS;

/// State of the archive at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The address of the store, without what is secret in it.
    pub place: String,
    /// The epoch of this writer; `None`: it has not begun yet.
    pub epoch: Option<u32>,
    /// Everything before this position can be restored; `None` during a gap and before the first
    /// base.
    pub archived: Option<Position>,
    /// Durable bytes that are not in the archive.
    pub lag_bytes: u64,
    /// The archive has everything that was durable at this moment, by the monotonic clock; before
    /// the first base the moment when the writer began. `None`: it has not begun.
    pub has_all_of: Option<Time>,
    /// A gap is open: until the next base is complete, changes since it began cannot be restored.
    pub is_in_gap: bool,
    /// Bytes of the base that is being made that are in the store, and bytes of all of it.
    pub base: Option<(u64, u64)>,
    /// The interval between two links, in nanoseconds.
    pub interval_ns: i64,
    /// Totals since the start.
    pub figures: Figures,
    /// Calls that failed.
    pub errors: u64,
    /// The current trouble.
    pub trouble: Option<String>,
    /// An object with which the archive would go on is damaged: the trouble says which, or did. Nothing
    /// is put until it is put right.
    pub is_damaged: bool,
    /// The writer has stopped for good, and why.
    pub ended: Option<String>,
    /// What was joined; `None`: this server joins nothing.
    pub joins: Option<Joins>,
    /// This server is a member of a cluster that does not lead: the member that leads writes the archive.
    pub rests: bool,
}

impl Report {
    /// For how long the archive has lacked something, in nanoseconds; 0: it lacks nothing.
    #[must_use]
    pub fn lag_ns(&self, now: Time) -> i64 {
        match self.has_all_of {
            Some(moment) if self.lag_bytes > 0 || self.is_in_gap => now.since(moment).max(0),
            _ => 0,
        }
    }

    /// Progress of the base that ends the gap, in percent.
    #[must_use]
    pub fn base_percent(&self) -> u64 {
        let (done, all) = self.base.unwrap_or((0, 0));
        (100 * done).checked_div(all).unwrap_or(0)
    }

    /// True if the archive lacks more than an interval and an upload explain.
    #[must_use]
    pub fn is_late(&self, now: Time) -> bool {
        let usual_ns = self.interval_ns.saturating_mul(2);
        self.lag_ns(now) > LAG_MAX_NS.saturating_add(usual_ns)
    }

    /// True while links are put, or could be: the writer has begun, nothing fails, and it goes on.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.epoch.is_some() && self.trouble.is_none() && self.ended.is_none()
    }
}

/// Where an archive reports, for those who ask. It is made first: there may be questions before there
/// is a writer.
#[derive(Debug, Clone, Default)]
pub struct Reporter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    place: String,
    /// The last report, and the position after which the writer needs the log.
    last: Mutex<(Report, Option<Position>)>,
    /// There is another report.
    changed: Condvar,
    /// The durable end is known without the writer, which may be waiting for its store. `None`: nothing
    /// is to be archived.
    trail: Mutex<Option<Arc<Trail>>>,
    /// Nothing is, because another member leads.
    rests: AtomicBool,
    joins: Mutex<Option<Joins>>,
    orders: Orders,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reporter {
    /// Of the archive at this address.
    #[must_use]
    pub fn at(url: &str) -> Reporter {
        Reporter(Arc::new(Shared {
            place: without_secrets(url),
            ..Shared::default()
        }))
    }

    /// The address of the store, without what is secret in it.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.0.place
    }

    /// Where bases are asked for.
    #[must_use]
    pub fn orders(&self) -> &Orders {
        &self.0.orders
    }

    /// Current state.
    #[must_use]
    pub fn report(&self) -> Report {
        let trail = self.trail();
        let (mut report, needs) = locked(&self.0.last).clone();
        if let Some(trail) = trail {
            if needs.is_some_and(|at| trail.after(at).is_none()) {
                // It is certain, and begins with the next call of the store that is answered.
                report.is_in_gap = true;
                report.archived = None;
                report.figures.gaps += 1;
            }
            report.lag_bytes = trail.bytes_after(report.archived.unwrap_or(Position::ZERO));
        }
        report.place.clone_from(&self.0.place);
        report.rests = self.0.rests.load(Ordering::SeqCst);
        report.joins.clone_from(&locked(&self.0.joins));
        report
    }

    fn trail(&self) -> Option<Arc<Trail>> {
        locked(&self.0.trail).clone()
    }

    /// The log whose archive is being written; `None`: the writer has not begun, or is in trouble.
    pub(super) fn archived_log(&self) -> Option<LogId> {
        let is_up = self.report().is_up();
        self.trail().filter(|_| is_up)?.log()
    }

    pub(super) fn set_joins(&self, joins: &Joins) {
        *locked(&self.0.joins) = Some(joins.clone());
    }

    /// Puts are refused, because each of these archives lacks something older than the limit.
    #[must_use]
    pub fn are_late(all: &[Reporter], now: Time) -> bool {
        let trails: Vec<_> = all.iter().filter_map(Reporter::trail).collect();
        trails.len() == all.len() && Trail::are_late(&trails, now)
    }

    /// The log that this trail tells of is to be archived from now on. Nothing is known of that.
    pub(super) fn begin(&self, trail: Arc<Trail>) {
        let mut current = locked(&self.0.trail);
        *current = Some(trail);
        self.forget();
        self.0.rests.store(false, Ordering::SeqCst);
    }

    /// Another member leads from now on, and archives.
    pub(super) fn rest(&self, now: Time) {
        self.0.orders.close(
            "this member of the cluster does not lead, and writes no archive",
            now,
        );
        let mut current = locked(&self.0.trail);
        *current = None;
        self.forget();
        self.0.rests.store(true, Ordering::SeqCst);
    }

    /// Totals stay, and so does the end.
    fn forget(&self) {
        let mut last = locked(&self.0.last);
        let Report {
            figures,
            errors,
            interval_ns,
            ended,
            ..
        } = std::mem::take(&mut last.0);
        last.0 = Report {
            figures,
            errors,
            interval_ns,
            ended,
            ..Report::default()
        };
        last.1 = None;
    }

    /// What the writer says of the log that `trail` tells of, if that is still to be archived: the call
    /// of the store from which it comes may have lasted for a minute.
    pub(super) fn publish(&self, trail: &Arc<Trail>, report: &Report, needs: Option<Position>) {
        let current = locked(&self.0.trail);
        if current.as_ref().is_some_and(|it| Arc::ptr_eq(it, trail)) {
            self.set(report, needs);
        }
    }

    /// `needs`: the writer needs what follows this position.
    pub fn set(&self, report: &Report, needs: Option<Position>) {
        let mut last = locked(&self.0.last);
        last.0.clone_from(report);
        last.1 = needs;
        self.0.changed.notify_all();
    }

    /// See [`Archive::wait_for_claim`].
    pub(super) fn wait_for_claim(&self, wait: Duration) -> bool {
        let last = self.0.last.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner);
        let is_open = |(report, _): &mut (Report, Option<Position>)| {
            report.epoch.is_none() && report.ended.is_none()
        };
        let waited = self.0.changed.wait_timeout_while(last, wait, is_open);
        let (last, _) = waited.unwrap_or_else(PoisonError::into_inner);
        last.0.epoch.is_some()
    }
}

/// An address without the name of a user, a password, or parameters.
fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_without_what_is_secret_in_it() {
        for (url, shown) in [
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            ("file:///srv/a@b", "file:///srv/a@b"),
            ("s3://key:secret@bucket/a?token=b#c", "s3://bucket/a"),
            ("az://container", "az://container"),
            ("nowhere", "nowhere"),
        ] {
            let reporter = Reporter::at(url);
            assert_eq!(
                (reporter.place(), &*reporter.report().place),
                (shown, shown)
            );
        }
    }

    #[test]
    fn a_claim_is_waited_for_until_it_is_there_or_cannot_come_and_not_for_ever() {
        let with = |epoch: Option<u32>, ended: Option<&str>| {
            let reporter = Reporter::default();
            let report = Report {
                epoch,
                ended: ended.map(str::to_owned),
                ..Report::default()
            };
            reporter.set(&report, None);
            reporter
        };
        let long = Duration::from_secs(600);
        assert!(with(Some(2), None).wait_for_claim(long));
        assert!(!with(None, Some("it has another writer")).wait_for_claim(long));
        assert!(!with(None, None).wait_for_claim(Duration::ZERO));
        // From another thread, before or after the wait has begun.
        let reporter = with(None, None);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| reporter.wait_for_claim(long));
            let report = Report {
                epoch: Some(2),
                ..Report::default()
            };
            reporter.set(&report, None);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn a_report_is_late_only_while_something_is_missing() {
        let mut report = Report {
            has_all_of: Some(Time(100)),
            ..Report::default()
        };
        assert_eq!(report.lag_ns(Time(700)), 0);
        report.lag_bytes = 1;
        assert_eq!(report.lag_ns(Time(700)), 600);
        report.lag_bytes = 0;
        report.is_in_gap = true;
        assert_eq!(report.lag_ns(Time(700)), 600);
        report.has_all_of = None;
        assert_eq!(report.lag_ns(Time(700)), 0, "the writer has not begun");
    }
}
