//! `/durability`: how safe the jobs are at this moment, and how that was before.

use maud::{Markup, html};

use super::chart::{Unit, chart, line, spans};
use super::history::Sample;
use super::layout::{facts, table};
use super::live::Live;
use super::span::Span;
use super::{PageView, words};
use crate::api::checks::Check;
use crate::api::log::LogView;
use crate::{Membership, cluster};
use bsd::ErrorClass;
use bsd::clock::utc;
use bsd::engine::{Figures, LogFigures, SegmentFigures};
use bsd::histogram::Reading;
use bsd::storage::SyncPolicy;
use bsd::storage::format::file_name;
use bsd::types::{SegmentId, Time};
use bsd_archive::{Joins, Report};

/// In one sentence, whether acknowledged jobs are safe.
pub(super) fn verdict(view: &PageView<'_>, live: &Live) -> Markup {
    let membership = cluster::membership(&view.state.handles);
    let (mark, sentence) = judge(&view.snapshot.figures, membership.as_ref());
    html! {
        span class=(format!("mark {mark}")) { (live.text("verdict-mark", mark)) } " "
        (live.text("verdict", sentence))
    }
}

/// A word, and the sentence.
fn judge(figures: &Figures, membership: Option<&Membership>) -> (&'static str, String) {
    if let Some(membership) = membership {
        return judge_member(figures, membership);
    }
    let Some(log) = &figures.log else {
        let sentence = "There is no log: every job is gone when the process ends.";
        return ("memory", sentence.into());
    };
    if let Some(missing) = log.missing {
        let missing = words::bytes(missing);
        let sentence = match log.lacking {
            ErrorClass::Descriptors => "No more files can be opened: puts are refused.".into(),
            _ => format!("The disk is full: puts are refused, {missing} are missing."),
        };
        return ("full", sentence);
    }
    let sentence = match log.sync {
        SyncPolicy::Always => {
            "Every job that was acknowledged is on stable storage: a power cut loses none.".into()
        }
        SyncPolicy::Interval(ms) => format!(
            "A power cut loses what was acknowledged in the last {ms} ms; a killed process nothing."
        ),
        SyncPolicy::Never => {
            "A power cut loses what the system has not written; a killed process nothing.".into()
        }
    };
    match log.sync {
        SyncPolicy::Always => ("durable", sentence),
        SyncPolicy::Interval(_) | SyncPolicy::Never => ("delayed", sentence),
    }
}

/// Of a member the ledger is synced before every reply, whatever `-f` says of the log beside it.
fn judge_member(figures: &Figures, member: &Membership) -> (&'static str, String) {
    let (voters, majority) = (member.voters, member.majority());
    if !member.is_member || voters == 0 {
        let sentence = "This server is no member of a cluster now, and takes no jobs.";
        return ("delayed", sentence.into());
    }
    let log = figures.log.as_ref().filter(|log| log.missing.is_some());
    if let Some(class) = member.lacks.or(log.map(|log| log.lacking)) {
        let sentence = match class {
            ErrorClass::Descriptors => {
                "This member can open no more files: it takes part again when it can."
            }
            _ => "The disk of this member is full: it takes part again when there is room.",
        };
        return ("full", sentence.into());
    }
    if voters == 1 {
        let sentence = "Every job that was acknowledged is on stable storage, of this member alone: a \
                        power cut loses none, the loss of its disk all of them.";
        return ("delayed", sentence.into());
    }
    let borne = match majority - 1 {
        1 => "any one disk".to_owned(),
        some => format!("any {some} disks"),
    };
    let more = match voters - majority {
        0 => String::new(),
        _ => format!("The loss of {majority} disks may lose jobs. "),
    };
    let sentence = format!(
        "Every job that was acknowledged is on stable storage of {majority} of {voters} members: a \
         power cut loses none, nor does the loss of {borne}. {more}The loss of all {voters} disks \
         loses every job."
    );
    ("durable", sentence)
}

fn policy(log: Option<&LogFigures>, membership: Option<&Membership>) -> String {
    if let Some(member) = membership {
        return match member.is_member {
            true => format!(
                "on {} of {} members, before each reply",
                member.majority(),
                member.voters
            ),
            false => "--cluster: no member now".into(),
        };
    }
    match log.map(|log| log.sync) {
        None => "--memory: no log".into(),
        Some(SyncPolicy::Always) => "-f 0: before each reply".into(),
        Some(SyncPolicy::Interval(ms)) => format!("-f {ms}: within {ms} ms"),
        Some(SyncPolicy::Never) => "-F: when the system does".into(),
    }
}

pub(super) fn content(view: &PageView<'_>, span: Span, live: &Live) -> Markup {
    let snapshot = &*view.snapshot;
    let figures = &snapshot.figures;
    let syncs = view.state.handles.pulse.syncs();
    let membership = cluster::membership(&view.state.handles);
    html! {
        p class="lead" { (verdict(view, live)) }
        (facts(&[
            ("Sync policy", html! { (policy(figures.log.as_ref(), membership.as_ref())) }),
            ("Syncs", live.text("syncs", words::count(syncs.counts.iter().sum()))),
            ("Half of the syncs took", live.text("sync-50", quantile(&syncs, 0.5))),
            ("99 of 100 took", live.text("sync-99", quantile(&syncs, 0.99))),
        ]))
        @if let Some(log) = &figures.log { (of_log(log, live)) }
        @let archives = view.state.handles.archives();
        @if archives.is_empty() && view.state.handles.archive_rests() {
            (of_resting_archive(
                cluster::archives(&view.state.handles),
                cluster::unarchived(&view.state.handles),
                live,
            ))
        } @else {
            (of_archives(&archives, view.state.handles.clock.now().mono, live))
        }
        @if figures.log.is_some() { (of_checks(view.state.checks.all(), live)) }
        (memory(figures, live))
        @if figures.log.is_some() { (map(&view.log.files)) (oldest(&view.log)) (damage(&view.log.files)) }
        (charts(view, span, live))
        @if figures.log.is_some() { (list(&view.log.files)) }
    }
}

/// The bound below which so large a part of all times is.
fn quantile(reading: &Reading, part: f64) -> String {
    let all: u64 = reading.counts.iter().sum();
    let wanted = (all as f64 * part).ceil() as u64;
    let mut seen = 0;
    for (at, count) in reading.counts.iter().enumerate() {
        seen += count;
        if all > 0 && seen >= wanted {
            return match reading.bounds.get(at) {
                Some(bound) => format!("≤ {}", words::ns(*bound)),
                None => format!(
                    "> {}",
                    words::ns(reading.bounds.last().copied().unwrap_or(0))
                ),
            };
        }
    }
    "–".into()
}

fn of_log(log: &LogFigures, live: &Live) -> Markup {
    let bytes = |id: &str, number: u64| live.text(id, words::bytes(number));
    let count = |id: &str, number: u64| live.text(id, words::count(number));
    let compacting = if log.is_compacting { "yes" } else { "no" };
    let full = match log.missing {
        None => "no".to_owned(),
        Some(missing) => format!("yes: {} are missing", words::bytes(missing)),
    };
    html! {
        section aria-labelledby="log" {
            h2 id="log" { "The log" }
            (facts(&[
                ("Not yet durable", bytes("unsynced", log.unsynced)),
                ("Became durable", bytes("synced", log.synced)),
                ("Live", bytes("live", log.live)),
                ("Dead", bytes("dead", log.dead)),
                ("Set aside", bytes("reserved", log.reserved)),
                ("Files", count("segments", log.segments)),
                ("Written now", count("current", log.current_segment.into())),
                ("Turns that wrote", count("writes", log.writes)),
                ("Records written", count("written", log.records_written)),
                ("Records copied", count("migrated", log.records_migrated)),
                ("Compactions", count("compactions", log.compactions)),
                ("Compacting", live.text("compacting", compacting)),
                ("Disk full", live.text("full", full)),
            ]))
        }
    }
}

fn of_archives(reports: &[Report], now: Time, live: &Live) -> Markup {
    let are_two = reports.len() > 1;
    let first = if are_two {
        "The first archive"
    } else {
        "The archive"
    };
    let names = [("", first), ("second-", "The second archive")];
    html! {
        @for (report, (prefix, title)) in reports.iter().zip(names) {
            section aria-labelledby=(format!("{prefix}archive")) {
                h2 id=(format!("{prefix}archive")) { (title) }
                @if are_two { p { code { (report.place) } } }
                (of_archive(report, now, live, prefix))
            }
        }
    }
}

fn of_archive(report: &Report, now: Time, live: &Live, prefix: &str) -> Markup {
    let text = |id: &str, text: String| live.text(&format!("{prefix}{id}"), text);
    let of = &report.figures;
    let archived = report.archived.map_or("–".into(), |at| at.to_string());
    let epoch = report.epoch.map_or("not begun".into(), |it| it.to_string());
    let base = match of.base_wall_ns {
        0 => "none".into(),
        wall => utc(wall),
    };
    let gap = if report.is_in_gap { "yes" } else { "no" };
    html! {
        p { (text("archive-state", state_of(report))) }
        (facts(&[
            ("Can be restored up to", text("archived", archived)),
            ("Not yet archived", text("archive-lag", words::bytes(report.lag_bytes))),
            ("Behind", text("archive-behind", words::ns(report.lag_ns(now)))),
            ("In a gap", text("archive-gap", gap.into())),
            ("Gaps", text("archive-gaps", words::count(of.gaps))),
            ("Epoch", text("archive-epoch", epoch)),
            ("Last base", text("archive-base", base)),
            ("Bases", text("archive-bases", words::count(of.bases))),
            ("Links put", text("archive-links", words::count(of.links))),
            ("Bytes of them", text("archive-bytes", words::bytes(of.bytes))),
            ("Calls that failed", text("archive-errors", words::count(report.errors))),
        ]))
        @match &report.joins {
            Some(joins) => (of_joins(joins, live, prefix)),
            None => p { "Its links are not joined here." },
        }
    }
}

fn of_joins(joins: &Joins, live: &Live, prefix: &str) -> Markup {
    let text = |id: &str, text: String| live.text(&format!("{prefix}{id}"), text);
    let last = match joins.wall_ns {
        0 => "not yet".into(),
        wall => utc(wall),
    };
    let links = |count: Option<u64>| count.map_or("–".into(), words::count);
    let trouble = joins.trouble.clone().unwrap_or_else(|| "none".into());
    html! {
        h3 { "Links that have aged" }
        (facts(&[
            ("Looked through", text("joins-last", last)),
            ("In joined objects", text("joins-joined", links(joins.links.map(|it| it.0)))),
            ("Objects of their own", text("joins-single", links(joins.links.map(|it| it.1)))),
            ("Joined objects made", text("joins-objects", words::count(joins.objects))),
            ("Passes that failed", text("joins-failures", words::count(joins.failures))),
            ("Trouble", text("joins-trouble", trouble)),
        ]))
    }
}

/// On a member that does not lead.
fn of_resting_archive(by: Option<String>, unarchived: Option<String>, live: &Live) -> Markup {
    let sentence = match (unarchived, by) {
        (Some(why), _) => format!("It is not written: {why}."),
        (None, Some(member)) => format!("Member {member} leads, and writes it."),
        (None, None) => "No member is known to lead: it is not written.".to_owned(),
    };
    html! {
        section aria-labelledby="archive" {
            h2 id="archive" { "The archive" }
            p { (live.text("archive-state", sentence)) }
        }
    }
}

/// In one sentence.
fn state_of(report: &Report) -> String {
    match (&report.ended, &report.trouble, report.epoch) {
        (Some(why), _, _) => format!("It has ended: {why}"),
        (None, Some(trouble), _) => format!("It cannot be written: {trouble}. It is tried again."),
        (None, None, None) => "It has not begun.".into(),
        (None, None, Some(_)) if report.is_in_gap => {
            "There is a gap: what is new can be restored when the next base is complete.".into()
        }
        (None, None, Some(_)) => "It is written.".into(),
    }
}

/// Last checks of the log, as their scripts reported them.
fn of_checks([backup, verify, rehearsal]: [Option<Check>; 3], live: &Live) -> Markup {
    let said = |check: Option<Check>| match check {
        None => "not told of one since the start".to_owned(),
        Some(check) => {
            let word = if check.has_failed { "FAILED " } else { "" };
            let note = if check.note.is_empty() { "" } else { ": " };
            format!("{word}{}{note}{}", utc(check.wall_ns), check.note)
        }
    };
    html! {
        section aria-labelledby="checks" {
            h2 id="checks" { "Backups and checks" }
            (facts(&[
                ("Last backup", live.text("last-backup", said(backup))),
                ("Last verification", live.text("last-verify", said(verify))),
                ("Last rehearsal", live.text("last-rehearsal", said(rehearsal))),
            ]))
            p { "As " code { "bsd-ctl note" } " tells the server: it does not see them itself." }
        }
    }
}

fn memory(figures: &Figures, live: &Live) -> Markup {
    let bytes = |id: &str, number: u64| live.text(id, words::bytes(number));
    let jobs = figures.queue_memory.saturating_sub(figures.clients_memory);
    let bound = figures.memory_max.map_or("none".to_owned(), words::bytes);
    let full = match figures.memory_missing {
        None => "no".to_owned(),
        Some(missing) => format!("yes: {} are missing", words::bytes(missing)),
    };
    html! {
        section aria-labelledby="memory" {
            h2 id="memory" { "Memory" }
            (facts(&[
                ("Jobs", bytes("memory-jobs", jobs)),
                ("Clients", bytes("memory-clients", figures.clients_memory)),
                ("Bodies", bytes("memory-bodies", figures.bodies_memory)),
                ("Pauses", bytes("memory-pauses", figures.pauses_memory)),
                ("Bound", html! { (bound) }),
                ("Reached", live.text("memory-full", full)),
            ]))
        }
    }
}

/// Each file a bar: how much of it is alive, from below.
fn map(segments: &[SegmentFigures]) -> Markup {
    let largest = segments.iter().map(|it| it.size).max().unwrap_or(0).max(1);
    let width = segments.len().max(24) * 4;
    let height = |bytes: u64| format!("{:.1}", bytes as f64 / largest as f64 * 40.0);
    let label = format!(
        "Files of the log: {}; the list below says the same",
        segments.len()
    );
    html! {
        section aria-labelledby="map" {
            h2 id="map" { "Files of the log" }
            svg class="map" viewBox=(format!("0 0 {width} 40")) preserveAspectRatio="none" role="img"
                aria-label=(label) {
                @for (at, it) in segments.iter().enumerate() {
                    @let (x, live) = (at * 4, it.size - it.dead.min(it.size));
                    rect class="dead" x=(x) y="0" width="3" height=(height(it.size))
                        transform="matrix(1 0 0 -1 0 40)" {}
                    rect class=(if it.damaged > 0 { "damaged" } else { "live" }) x=(x) y="0"
                        width="3" height=(height(live)) transform="matrix(1 0 0 -1 0 40)" {}
                }
            }
            ul class="legend" {
                li { span class="key live" {} "live" }
                li { span class="key dead" {} "dead" }
                li { span class="key damaged" {} "with damage" }
            }
        }
    }
}

/// The reason why the first file of the log cannot be dropped.
fn oldest(log: &LogView) -> Markup {
    html! {
        @if let Some(oldest) = log.oldest {
            p {
                "The oldest job is " a href=(format!("/jobs/{}", oldest.id)) { "job " (oldest.id) }
                ", in segment " (oldest.segment.0) ": "
                @match log.files.iter().find(|it| it.first == oldest.segment.0) {
                    Some(it) => {
                        "its file is alive with " (words::bytes(it.size - it.dead.min(it.size)))
                        " of " (words::bytes(it.size)) "."
                    }
                    None => { "its file is before those that are shown." }
                }
            }
        }
    }
}

/// Where the log is damaged.
fn damage(segments: &[SegmentFigures]) -> Markup {
    let damaged: Vec<_> = segments.iter().filter(|it| it.damaged > 0).collect();
    html! {
        @for it in &damaged {
            p class="why" {
                "Damage in " (file_name(SegmentId(it.first), it.generation)) ": "
                @for (nth, range) in it.damage.iter().enumerate() {
                    @if nth > 0 { ", " } "bytes " (range.start) " to " (range.end)
                }
                ". It was found when they were read; "
                code { "bsd-wal verify --live" } " says which jobs it is about."
            }
        }
        @if damaged.is_empty() {
            p { small {
                "No damage was found by reading. All of the log is read by a start, and by "
                code { "bsd-wal verify --live" } "."
            } }
        }
    }
}

fn charts(view: &PageView<'_>, span: Span, live: &Live) -> Markup {
    let history = view.state.console.history();
    let line = |name, of: fn(&Sample) -> f32| line(&history, span, name, of);
    let syncs = [
        line(("on the average", 0), |it| it.sync),
        line(("at most", 1), |it| it.sync_max),
    ];
    let unsynced = [line(("Not yet durable", 0), |it| it.unsynced as f32)];
    let log = [
        line(("live", 0), |it| it.live as f32 * 1024.0),
        line(("dead", 1), |it| it.dead as f32 * 1024.0),
    ];
    let memory = [line(("Memory", 0), |it| it.memory as f32 * 1024.0)];
    html! {
        (spans("/durability", span, &history))
        div class="charts" {
            (chart(live, "sync-time", "Syncs took", span, &syncs, Unit::Time))
            (chart(live, "unsynced-bytes", "Not yet durable", span, &unsynced, Unit::Bytes))
            (chart(live, "log-bytes", "The log", span, &log, Unit::Bytes))
            (chart(live, "memory-bytes", "Memory", span, &memory, Unit::Bytes))
        }
    }
}

fn list(segments: &[SegmentFigures]) -> Markup {
    let head = html! {
        th scope="col" class="number" { "Segments" }
        @for name in ["Size", "Live", "Dead", "Damaged", "Rewritten"] {
            th scope="col" class="number" { (name) }
        }
    };
    let rows = html! {
        @for it in segments.iter().rev() {
            tr {
                th scope="row" class="number" {
                    (it.first) @if it.last != it.first { "–" (it.last) }
                    @if it.is_open { " " span class="mark" { "written now" } }
                }
                td class="number" { (words::bytes(it.size)) }
                td class="number" { (words::bytes(it.size - it.dead.min(it.size))) }
                td class="number" { (words::bytes(it.dead)) }
                td class="number" { (words::bytes(it.damaged)) }
                td class="number" { (words::count(it.generation.into())) }
            }
        }
    };
    html! { div class="long" { (table("Files of the log, the latest first", &head, &rows)) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::clock::Clock;
    use bsd::engine::{Engine, Options};
    use bsd::histogram::{Histogram, SHORT};
    use bsd::storage::SimFs;

    /// As a member keeps its log, and in memory.
    fn figures(log: SyncPolicy) -> Figures {
        let dir = Some("/log".into());
        let options = Options {
            dir,
            fs: std::sync::Arc::new(SimFs::new(1)),
            sync: log,
            ..Options::default()
        };
        let now = Clock::start().now();
        Engine::open(&options, now).unwrap().figures(now)
    }

    #[test]
    fn g11_of_a_member_it_is_said_what_a_majority_has_and_not_what_its_own_log_syncs() {
        let figures = figures(SyncPolicy::Interval(500));
        let (mark, alone) = judge(&figures, None);
        assert_eq!((mark, alone.contains("last 500 ms")), ("delayed", true));
        assert_eq!(policy(figures.log.as_ref(), None), "-f 500: within 500 ms");
        let member = |voters| Membership {
            id: String::new(),
            role: "follower",
            is_member: true,
            voters,
            lacks: None,
            leader_http: None,
            as_of: None,
        };
        for (voters, mark, words, wanted) in [
            (
                1,
                "delayed",
                "the loss of its disk all",
                "on 1 of 1 members",
            ),
            (
                2,
                "durable",
                "loss of any one disk. The loss of all 2",
                "on 2 of 2 members",
            ),
            (
                3,
                "durable",
                "loss of any one disk. The loss of 2 disks may",
                "on 2 of 3 members",
            ),
            (
                5,
                "durable",
                "loss of any 2 disks. The loss of 3 disks may",
                "on 3 of 5 members",
            ),
        ] {
            let (marked, sentence) = judge(&figures, Some(&member(voters)));
            assert_eq!(marked, mark, "{sentence}");
            assert!(sentence.contains(words), "{voters}: {sentence}");
            assert!(sentence.contains("power cut loses none"), "{sentence}");
            let policy = policy(figures.log.as_ref(), Some(&member(voters)));
            assert!(policy.starts_with(wanted), "{policy}");
            assert!(![&*sentence, &*policy].iter().any(|it| it.contains("500")));
        }
        let full = Membership {
            lacks: Some(ErrorClass::Full),
            ..member(3)
        };
        assert_eq!(judge(&figures, Some(&full)).0, "full");
        let outside = Membership {
            is_member: false,
            ..member(0)
        };
        assert!(judge(&figures, Some(&outside)).1.contains("takes no jobs"));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let histogram = Histogram::new(SHORT);
        assert_eq!(quantile(&histogram.read(), 0.5), "–");
        for _ in 0..99 {
            histogram.note(20_000);
        }
        histogram.note(i64::MAX);
        assert_eq!(quantile(&histogram.read(), 0.5), "≤ 25 µs");
        assert_eq!(quantile(&histogram.read(), 0.99), "≤ 25 µs");
        assert_eq!(quantile(&histogram.read(), 1.0), "> 10 s");
    }
}
