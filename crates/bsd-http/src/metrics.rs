//! `/metrics`: which families there are, and what each sample is. Written on this thread, from a
//! snapshot, as it leaves.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use tokio::sync::OwnedSemaphorePermit;

use super::State;
use super::answer::{Answer, Content, Problem, page};
use super::api::checks::{Check, Checks, KINDS};
use super::cluster;
use super::exposition::{Format, Kind, Label, Page, seconds};
use super::snapshot::{Snapshot, TubeFigures};
use bsd::attributes::Reason;
use bsd::engine::{Figures, LogFigures, ScheduleFigures};
use bsd::protocol::Op;
use bsd::types::Time;
use bsd_archive::standby::StandbyReport;
use bsd_archive::{Joins, Report};
use bsd_net::{CertificateOf, Pulse, cpu_times};

/// Bytes of a page that are made at a time, give or take a line.
const PART_SIZE: usize = 32 << 10;
/// Name of the sum of tubes without lines of their own: no tube can have a space in its name.
const OTHERS: &str = "other tubes";

/// All metrics; of a loop that is stuck those that it need not be asked for.
pub(super) async fn metrics(state: &State, headers: &HeaderMap) -> Result<Answer, Problem> {
    let permit = state.scrapes.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Problem::unavailable("too many scrapes are under way"))?;
    let snapshot = match (state.doorway.is_open(), &state.handles.standby) {
        // No one is served, which is what a standby is for.
        (false, Some(_)) => None,
        _ => state.snapshots.take(state).await?,
    };
    let format = Format::of(headers);
    let mut first = Page::new(format);
    of_loop(&mut first, state);
    of_process(&mut first, state);
    let archives = state.handles.archives();
    of_archives(&mut first, &archives, state.handles.clock.now().mono);
    of_checks(&mut first, &state.checks);
    if let Some(seat) = &state.handles.standby {
        of_standby(&mut first, &seat.report(), state.handles.clock.now().mono);
    }
    cluster::write_metrics(&mut first, &state.handles);
    let Some(snapshot) = snapshot else {
        first.text.push_str(format.end());
        let content = Content::Parts(Box::new(std::iter::once(first.text.into())));
        return Ok(page(StatusCode::OK, format.content_type(), content));
    };
    of_server(&mut first, &snapshot);
    let parts = Parts {
        first: Some(first.text),
        snapshot,
        format,
        part_size: PART_SIZE,
        family: 0,
        tube: 0,
        _permit: permit,
    };
    let content = Content::Parts(Box::new(parts));
    Ok(page(StatusCode::OK, format.content_type(), content))
}

/// The rest of a page.
struct Parts {
    first: Option<String>,
    snapshot: Arc<Snapshot>,
    format: Format,
    part_size: usize,
    /// Of tubes: the next one to be written, and the next tube in it.
    family: usize,
    tube: usize,
    _permit: OwnedSemaphorePermit,
}

impl Iterator for Parts {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first.into());
        }
        let mut page = Page::new(self.format);
        while self.family <= FAMILIES.len() && page.text.len() < self.part_size {
            match FAMILIES.get(self.family) {
                Some(family) => self.go_on(family, &mut page),
                None => {
                    page.text.push_str(self.format.end());
                    self.family += 1;
                }
            }
        }
        (!page.text.is_empty()).then(|| page.text.into())
    }
}

impl Parts {
    /// Write as much of this family as the part has room for, at least one line, so that each call
    /// makes progress.
    fn go_on(&mut self, family: &Family, page: &mut Page) {
        if self.tube == 0 {
            page.family(family.name, family.kind, family.help);
        }
        for (name, tube) in self.snapshot.tubes_from(self.tube) {
            (family.write)(page, name, tube);
            self.tube += 1;
            if page.text.len() >= self.part_size {
                return;
            }
        }
        // What happens in a tube with lines of its own may be counted there too.
        if self.snapshot.rest_count > 0 || matches!(family.kind, Kind::Histogram) {
            (family.write)(page, OTHERS, &self.snapshot.rest);
        }
        (self.family, self.tube) = (self.family + 1, 0);
    }
}

/// A family with samples of every tube.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    write: fn(&mut Page, &str, &TubeFigures),
}

/// Those that there are.
const FAMILIES: &[Family] = &[
    Family {
        name: "bsd_tube_jobs",
        kind: Kind::Gauge,
        help: "Jobs in the tube, by state.",
        write: |page, tube, of| {
            for (state, count) in [
                ("ready", of.jobs.ready),
                ("reserved", of.jobs.reserved),
                ("delayed", of.jobs.delayed),
                ("buried", of.jobs.buried),
            ] {
                page.sample("bsd_tube_jobs", &[("tube", tube), ("state", state)], count);
            }
        },
    },
    Family {
        name: "bsd_tube_urgent_jobs",
        kind: Kind::Gauge,
        help: "Ready jobs with a priority below 1024.",
        write: |page, tube, of| {
            page.sample("bsd_tube_urgent_jobs", &[("tube", tube)], of.jobs.urgent)
        },
    },
    Family {
        name: "bsd_tube_oldest_ready_age_seconds",
        kind: Kind::Gauge,
        help: "Since the oldest ready job was put, whatever its priority, to the second; 0 without one.",
        write: |page, tube, of| {
            let age = seconds(of.oldest_ready_ns);
            page.sample("bsd_tube_oldest_ready_age_seconds", &[("tube", tube)], age);
        },
    },
    Family {
        name: "bsd_tube_puts",
        kind: Kind::Counter,
        help: "Jobs put into the tube since it, or the server, began.",
        write: |page, tube, of| page.sample("bsd_tube_puts_total", &[("tube", tube)], of.puts),
    },
    Family {
        name: "bsd_tube_deletes",
        kind: Kind::Counter,
        help: "Jobs deleted from the tube since it, or the server, began.",
        write: |page, tube, of| {
            page.sample("bsd_tube_deletes_total", &[("tube", tube)], of.deletes)
        },
    },
    Family {
        name: "bsd_tube_pauses",
        kind: Kind::Counter,
        help: "Times that the tube was paused.",
        write: |page, tube, of| page.sample("bsd_tube_pauses_total", &[("tube", tube)], of.pauses),
    },
    Family {
        name: "bsd_tube_failures",
        kind: Kind::Counter,
        help: "Deliveries that failed, and jobs that expired or were buried, by reason.",
        write: |page, tube, of| {
            let Some(failures) = &of.failures else { return };
            for (reason, count) in Reason::ALL.into_iter().zip(failures.by_reason) {
                let labels = [("tube", tube), ("reason", reason.word())];
                page.sample("bsd_tube_failures_total", &labels, count);
            }
        },
    },
    Family {
        name: "bsd_tube_set_aside",
        kind: Kind::Counter,
        help: "Jobs whose delivery limit was reached, or that expired.",
        write: |page, tube, of| {
            if let Some(failures) = &of.failures {
                let count = failures.set_aside;
                page.sample("bsd_tube_set_aside_total", &[("tube", tube)], count);
            }
        },
    },
    Family {
        name: "bsd_tube_takes_dead_letters",
        kind: Kind::Gauge,
        help: "1: a policy sends dead letters here. Other tubes have no such line.",
        write: |page, tube, of| {
            if of.takes_dead_letters {
                page.sample("bsd_tube_takes_dead_letters", &[("tube", tube)], 1);
            }
        },
    },
    Family {
        name: "bsd_tube_puts_refused",
        kind: Kind::Counter,
        help: "Puts that the policy of the tube has refused.",
        write: |page, tube, of| {
            if let Some(failures) = &of.failures {
                let count = failures.puts_refused;
                page.sample("bsd_tube_puts_refused_total", &[("tube", tube)], count);
            }
        },
    },
    Family {
        name: "bsd_tube_pause_left_seconds",
        kind: Kind::Gauge,
        help: "What is left of the pause that is on; 0 without one.",
        write: |page, tube, of| {
            let left = seconds(of.pause_left_ns);
            page.sample("bsd_tube_pause_left_seconds", &[("tube", tube)], left);
        },
    },
    Family {
        name: "bsd_tube_users",
        kind: Kind::Gauge,
        help: "Connections that put into the tube.",
        write: |page, tube, of| page.sample("bsd_tube_users", &[("tube", tube)], of.using),
    },
    Family {
        name: "bsd_tube_watchers",
        kind: Kind::Gauge,
        help: "Connections that watch the tube.",
        write: |page, tube, of| page.sample("bsd_tube_watchers", &[("tube", tube)], of.watching),
    },
    Family {
        name: "bsd_tube_waiting",
        kind: Kind::Gauge,
        help: "Connections that watch the tube and wait for a job.",
        write: |page, tube, of| page.sample("bsd_tube_waiting", &[("tube", tube)], of.waiting),
    },
    Family {
        name: "bsd_tube_job_wait_seconds",
        kind: Kind::Histogram,
        help: "From when a job was due first, by its put, to its first reservation.",
        write: |page, tube, of| {
            if let Some(tally) = &of.tally {
                let times = tally.waits.read();
                page.buckets("bsd_tube_job_wait_seconds", &[("tube", tube)], &times);
            }
        },
    },
    Family {
        name: "bsd_tube_job_hold_seconds",
        kind: Kind::Histogram,
        help: "From when a job was reserved, or touched last, to its delete, release or bury.",
        write: |page, tube, of| {
            if let Some(tally) = &of.tally {
                let times = tally.holds.read();
                page.buckets("bsd_tube_job_hold_seconds", &[("tube", tube)], &times);
            }
        },
    },
];

/// The counters of `stats`, and more of the kind.
fn of_server(page: &mut Page, snapshot: &Snapshot) {
    use Kind::{Counter, Gauge, Info};
    let figures = &snapshot.figures;
    let queue = &figures.queue;
    let system = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    page.family("bsd", Info, "What runs here.");
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("protocol", bsd::engine::PROTOCOL_VERSION),
        ("pid", &std::process::id().to_string()),
        ("id", &figures.run_id),
        ("hostname", &text(system.nodename())),
        ("os", &text(system.version())),
        ("platform", &text(system.machine())),
    ];
    page.sample("bsd_info", &labels, 1);
    page.single(
        "bsd_uptime_seconds",
        Gauge,
        "Since the start.",
        figures.uptime_seconds,
    );
    // A queue that begins to lead, or to follow, is younger than the process.
    let started = snapshot.now.to_wall(Time(0)) / 1_000_000_000;
    let help = "When the process started, since 1970.";
    page.single("process_start_time_seconds", Gauge, help, started);
    let draining = u8::from(figures.is_draining);
    page.single(
        "bsd_draining",
        Gauge,
        "1: puts are refused because someone said so.",
        draining,
    );

    page.family("bsd_jobs", Gauge, "Jobs, by state.");
    for (state, count) in [
        ("ready", queue.jobs.ready),
        ("reserved", queue.jobs.reserved),
        ("delayed", queue.jobs.delayed),
        ("buried", queue.jobs.buried),
    ] {
        page.sample("bsd_jobs", &[("state", state)], count);
    }
    let urgent = queue.jobs.urgent;
    page.single(
        "bsd_urgent_jobs",
        Gauge,
        "Ready jobs with a priority below 1024.",
        urgent,
    );
    page.single("bsd_puts", Counter, "Jobs put.", queue.total_jobs);
    page.single(
        "bsd_key_conflicts",
        Counter,
        "Puts of clients that were answered EXISTS: another job has their key.",
        figures.key_conflicts,
    );
    page.single(
        "bsd_job_timeouts",
        Counter,
        "Reservations that ran out of time.",
        queue.timeouts,
    );
    let failures = &queue.failures;
    page.family(
        "bsd_failures",
        Counter,
        "Deliveries that failed, and jobs that expired or were buried, in all tubes, by reason.",
    );
    for (reason, count) in Reason::ALL.into_iter().zip(failures.by_reason) {
        page.sample("bsd_failures_total", &[("reason", reason.word())], count);
    }
    page.single(
        "bsd_set_aside",
        Counter,
        "Jobs whose delivery limit was reached, or that expired, in all tubes.",
        failures.set_aside,
    );
    page.single(
        "bsd_puts_refused",
        Counter,
        "Puts that policies of tubes have refused.",
        failures.puts_refused,
    );
    let size = figures.job_size_max;
    page.single(
        "bsd_job_size_max_bytes",
        Gauge,
        "The largest body that a put may have.",
        size,
    );
    page.histogram(
        "bsd_job_wait_seconds",
        "From when a job was due first, by its put, to its first reservation.",
        &figures.waits,
    );
    page.histogram(
        "bsd_job_hold_seconds",
        "From when a job was reserved, or touched last, to its delete, release or bury.",
        &figures.holds,
    );

    of_schedules(page, &figures.schedules);

    page.family("bsd_commands", Counter, "Commands run.");
    for (command, op) in COMMANDS {
        let count = figures.commands[op as usize];
        page.sample("bsd_commands_total", &[("command", command)], count);
    }
    page.single("bsd_tubes", Gauge, "Tubes.", queue.tubes);
    let help = "Tubes that are summed up, past --http-tubes-max.";
    page.single("bsd_tubes_summed_up", Gauge, help, snapshot.rest_count);
    page.single("bsd_connections", Gauge, "Sessions.", queue.connections);
    page.single(
        "bsd_connections_opened",
        Counter,
        "Sessions ever opened.",
        queue.total_connections,
    );
    page.single(
        "bsd_producers",
        Gauge,
        "Sessions that have put a job.",
        queue.producers,
    );
    page.single(
        "bsd_workers",
        Gauge,
        "Sessions that have reserved, or tried to.",
        queue.workers,
    );
    page.single(
        "bsd_waiting",
        Gauge,
        "Sessions that wait for a job.",
        queue.waiting,
    );

    of_memory(page, figures);
    if let Some(log) = &figures.log {
        of_log(page, log);
    }
}

/// All of them together: how many there are, and what has become of their firings.
fn of_schedules(page: &mut Page, schedules: &ScheduleFigures) {
    use Kind::{Counter, Gauge};
    let gauges = [
        ("bsd_schedules", "Schedules.", schedules.schedules as u64),
        (
            "bsd_schedules_paused",
            "Schedules that are paused.",
            schedules.paused as u64,
        ),
        (
            "bsd_schedule_firings_waiting",
            "Firings that wait for room for their jobs.",
            schedules.waiting as u64,
        ),
    ];
    page.singles(Gauge, gauges);
    let counters = [
        (
            "bsd_schedule_firings",
            "Firings of schedules that have put a job.",
            schedules.fired,
        ),
        (
            "bsd_schedule_key_conflicts",
            "Firings that have put none: another job has the key.",
            schedules.key_conflicts,
        ),
        (
            "bsd_schedule_missed",
            "How often a schedule was found to have missed firings, whatever became of them.",
            schedules.missed,
        ),
        (
            "bsd_schedule_given_up",
            "Firings that waited for room, and were given up: too many came after them.",
            schedules.given_up,
        ),
    ];
    page.singles(Counter, counters);
}

fn of_memory(page: &mut Page, figures: &Figures) {
    use Kind::Gauge;
    page.family("bsd_memory_bytes", Gauge, "Memory by use, as counted.");
    let jobs = figures.queue_memory.saturating_sub(figures.clients_memory);
    for (of, bytes) in [
        ("jobs", jobs),
        ("clients", figures.clients_memory),
        ("bodies", figures.bodies_memory),
        ("pauses", figures.pauses_memory),
    ] {
        page.sample("bsd_memory_bytes", &[("use", of)], bytes);
    }
    let bound = figures.memory_max.unwrap_or(0);
    page.single(
        "bsd_memory_max_bytes",
        Gauge,
        "The bound of jobs and tubes; 0: none.",
        bound,
    );
    let missing = figures.memory_missing;
    let full = u8::from(missing.is_some());
    page.single(
        "bsd_memory_full",
        Gauge,
        "1: puts are refused for want of memory.",
        full,
    );
    let missing = missing.unwrap_or(0);
    let help = "What was missing for the put that was refused last.";
    page.single("bsd_memory_missing_bytes", Gauge, help, missing);
}

fn of_log(page: &mut Page, log: &LogFigures) {
    use Kind::{Counter, Gauge};
    let gauges = [
        (
            "bsd_log_live_bytes",
            "What a rewritten log would have.",
            log.live,
        ),
        (
            "bsd_log_dead_bytes",
            "What compaction would save.",
            log.dead,
        ),
        (
            "bsd_log_reserved_bytes",
            "What is set aside for records to come.",
            log.reserved,
        ),
        (
            "bsd_log_spooled_bytes",
            "What is on the disk of bodies on their way, beside the log.",
            log.spooled,
        ),
        (
            "bsd_log_unsynced_bytes",
            "What is written and not known to be durable.",
            log.unsynced,
        ),
        ("bsd_log_segments", "Files of the log.", log.segments),
        (
            "bsd_log_first_segment",
            "The number of the first file.",
            log.first_segment.into(),
        ),
        (
            "bsd_log_current_segment",
            "The number of the file that is written.",
            log.current_segment.into(),
        ),
        (
            "bsd_log_segment_max_bytes",
            "The bound of a file's size.",
            log.segment_size.into(),
        ),
        (
            "bsd_log_compacting",
            "1: a compaction is under way.",
            log.is_compacting.into(),
        ),
        (
            "bsd_disk_full",
            "1: puts, or deletes too, are refused for want of room on the disk.",
            log.missing.is_some().into(),
        ),
        (
            "bsd_disk_missing_bytes",
            "What was missing for the command that was refused last.",
            log.missing.unwrap_or(0),
        ),
    ];
    page.singles(Gauge, gauges);
    let counters = [
        (
            "bsd_log_writes",
            "Turns of the loop in which the log was written to.",
            log.writes,
        ),
        ("bsd_log_synced_bytes", "What became durable.", log.synced),
        (
            "bsd_log_records_written",
            "Records appended.",
            log.records_written,
        ),
        (
            "bsd_log_records_migrated",
            "Records that compaction copied.",
            log.records_migrated,
        ),
        (
            "bsd_log_compactions",
            "Compactions that have taken effect.",
            log.compactions,
        ),
    ];
    page.singles(Counter, counters);
}

/// Of a server that joins no links: 0.
fn of_joins(report: &Report, of: fn(&Joins) -> u64) -> u64 {
    report.joins.as_ref().map_or(0, of)
}

/// The loop knows nothing of them, and need not be asked. Samples of the first archive have no label,
/// so that alerts and pages for one archive are right with two.
fn of_archives(page: &mut Page, reports: &[Report], now: Time) {
    use Kind::{Counter, Gauge};
    if reports.is_empty() {
        return;
    }
    let mut each = |name: &str, kind, help: &str, value: &dyn Fn(&Report) -> String| {
        page.family(name, kind, help);
        let name = match kind {
            Counter => format!("{name}_total"),
            _ => name.to_owned(),
        };
        let labels: [&[Label<'_>]; 2] = [&[], &[("repository", "2")]];
        for (report, labels) in reports.iter().zip(labels) {
            page.sample(&name, labels, value(report));
        }
    };
    let lag = |it: &Report| seconds(it.lag_ns(now)).to_string();
    let help = "For how long the archive has lacked something that is durable here; 0: it has all.";
    each("bsd_archive_lag_seconds", Gauge, help, &lag);
    type Value = fn(&Report) -> u64;
    let gauges: [(&str, &str, Value); 8] = [
        (
            "bsd_archive_up",
            "1: the archive is written; 0: its writer has not begun, or is in trouble, or has ended.",
            |it| it.is_up().into(),
        ),
        (
            "bsd_archive_lag_bytes",
            "What is durable here and not in the archive; in a gap what is held for it.",
            |it| it.lag_bytes,
        ),
        (
            "bsd_archive_in_gap",
            "1: until the next base is complete, what is new cannot be restored.",
            |it| it.is_in_gap.into(),
        ),
        (
            "bsd_archive_epoch",
            "The epoch of the archive that this server has begun; 0: none yet.",
            |it| it.epoch.unwrap_or(0).into(),
        ),
        (
            "bsd_archive_last_base_timestamp_seconds",
            "When the last base was made, since 1970; 0: none is known.",
            |it| it.figures.base_wall_ns / 1_000_000_000,
        ),
        (
            "bsd_archive_last_join_timestamp_seconds",
            "When links were last looked through, to join those that have aged, since 1970; 0: not yet.",
            |it| of_joins(it, |joins| joins.wall_ns / 1_000_000_000),
        ),
        (
            "bsd_archive_joined_links",
            "Links that are in joined objects, by the last look; 0 before it.",
            |it| of_joins(it, |joins| joins.links.unwrap_or_default().0),
        ),
        (
            "bsd_archive_single_links",
            "Links that are objects of their own, by the last look; 0 before it.",
            |it| of_joins(it, |joins| joins.links.unwrap_or_default().1),
        ),
    ];
    for (name, help, value) in gauges {
        each(name, Gauge, help, &|it| value(it).to_string());
    }
    let counters: [(&str, &str, Value); 7] = [
        ("bsd_archive_links", "Links put.", |it| it.figures.links),
        ("bsd_archive_bytes", "Bytes of links put.", |it| {
            it.figures.bytes
        }),
        ("bsd_archive_bases", "Bases completed.", |it| {
            it.figures.bases
        }),
        ("bsd_archive_gaps", "Gaps begun.", |it| it.figures.gaps),
        (
            "bsd_archive_joined",
            "Objects into which links were joined.",
            |it| of_joins(it, |joins| joins.objects),
        ),
        (
            "bsd_archive_join_failures",
            "Passes over the links that failed, or found damage.",
            |it| of_joins(it, |joins| joins.failures),
        ),
        (
            "bsd_archive_errors",
            "Calls of the store that failed.",
            |it| it.errors,
        ),
    ];
    for (name, help, value) in counters {
        each(name, Counter, help, &|it| value(it).to_string());
    }
}

/// A check that was never reported has no sample; one without a success has a 0.
fn of_checks(page: &mut Page, checks: &Checks) {
    type Value = fn(&Check) -> u64;
    let families: [(&str, &str, Value); 2] = [
        (
            "bsd_check_timestamp_seconds",
            "When the server was last told of a backup, a verification or a rehearsal, since 1970.",
            |check| check.wall_ns / 1_000_000_000,
        ),
        (
            "bsd_check_failed",
            "1: the last one failed, or found damage.",
            |check| check.has_failed.into(),
        ),
    ];
    let (checks, successes) = (checks.all(), checks.successes());
    for (name, help, value) in families {
        page.family(name, Kind::Gauge, help);
        for (kind, check) in KINDS.iter().zip(&checks) {
            if let Some(check) = check {
                page.sample(name, &[("check", kind)], value(check));
            }
        }
    }
    let name = "bsd_check_last_success_timestamp_seconds";
    let help = "When the server was last told of a backup, a verification or a rehearsal that \
                succeeded, since 1970; 0: it was not since its start.";
    page.family(name, Kind::Gauge, help);
    for (kind, wall_ns) in KINDS.iter().zip(successes) {
        page.sample(name, &[("check", kind)], wall_ns / 1_000_000_000);
    }
}

/// There is no loop yet that could be asked.
fn of_standby(page: &mut Page, report: &StandbyReport, now: Time) {
    use Kind::{Counter, Gauge};
    let gauges = [
        (
            "bsd_standby_promoted",
            "0: this is a standby, which serves no one; 1: it was told to take over.",
            report.is_promoted.into(),
        ),
        (
            "bsd_standby_up",
            "1: the standby follows; 0: it is in trouble, or has no copy yet.",
            (report.trouble.is_none() && report.at.is_some()).into(),
        ),
        ("bsd_standby_jobs", "Jobs of the copy.", report.jobs),
        (
            "bsd_standby_durable_timestamp_seconds",
            "When the last change of the copy was durable where it was made, since 1970.",
            report.wall_ns / 1_000_000_000,
        ),
    ];
    page.singles(Gauge, gauges);
    let help = "How long ago the copy had everything that was archived.";
    let since = report.current_at.map_or(0, |at| now.since(at));
    page.single("bsd_standby_lag_seconds", Gauge, help, seconds(since));
    let counters = [
        (
            "bsd_standby_records",
            "Records applied.",
            report.figures.records,
        ),
        (
            "bsd_standby_restores",
            "Copies restored.",
            report.figures.restores,
        ),
    ];
    page.singles(Counter, counters);
}

fn of_loop(page: &mut Page, state: &State) {
    let pulse = &state.handles.pulse;
    let late = pulse.beat(state.handles.clock.now().mono).late;
    let help = "For how long the loop should have turned and has not.";
    let late = seconds(i64::try_from(late.as_nanos()).unwrap_or(i64::MAX));
    page.single("bsd_loop_late_seconds", Kind::Gauge, help, late);
    let help = "How long a turn of the loop took, its wait for the disk included.";
    page.histogram("bsd_loop_turn_seconds", help, &pulse.turns());
    let help = "How long calls of other threads took of a turn.";
    page.histogram("bsd_loop_calls_seconds", help, &pulse.calls());
    let help = "From when the loop had something synced to when it knew that it was.";
    page.histogram("bsd_log_sync_seconds", help, &pulse.syncs());
    of_certificates(page, pulse);
}

fn of_certificates(page: &mut Page, pulse: &Pulse) {
    let ends = [
        ("clients", CertificateOf::Clients),
        ("members", CertificateOf::Members),
    ]
    .map(|(shown_to, of)| (shown_to, pulse.certificate_end(of)));
    if ends.iter().all(|(_, end)| end.is_none()) {
        return;
    }
    let name = "bsd_tls_certificate_expiry_seconds";
    let help = "When the certificate that these are shown ends, since 1970.";
    page.family(name, Kind::Gauge, help);
    for (shown_to, end) in ends {
        if let Some(end) = end {
            page.sample(name, &[("shown_to", shown_to)], end);
        }
    }
}

fn of_process(page: &mut Page, state: &State) {
    use Kind::{Counter, Gauge};
    of_processor(page);
    if let Some(bytes) = bsd::sys::processes::resident_memory() {
        let name = "process_resident_memory_bytes";
        page.single(
            name,
            Gauge,
            "Memory that the process has, all of it.",
            bytes,
        );
    }
    if let Some(lines) = &state.handles.lines {
        let help = "Lines that standard error did not take.";
        page.single("bsd_lines_dropped", Counter, help, lines.dropped_in_all());
    }
}

fn of_processor(page: &mut Page) {
    let (user_us, system_us) = cpu_times();
    page.family("bsd_cpu_seconds", Kind::Counter, "Processor time used.");
    for (mode, us) in [("user", user_us), ("system", system_us)] {
        page.sample(
            "bsd_cpu_seconds_total",
            &[("mode", mode)],
            seconds(us as i64 * 1000),
        );
    }
}

/// All commands, by the names that they have in the protocol.
const COMMANDS: [(&str, Op); Op::COUNT] = [
    ("put", Op::Put),
    ("peek", Op::Peek),
    ("peek-ready", Op::PeekReady),
    ("peek-delayed", Op::PeekDelayed),
    ("peek-buried", Op::PeekBuried),
    ("reserve", Op::Reserve),
    ("reserve-with-timeout", Op::ReserveWithTimeout),
    ("reserve-job", Op::ReserveJob),
    ("delete", Op::Delete),
    ("release", Op::Release),
    ("use", Op::Use),
    ("watch", Op::Watch),
    ("ignore", Op::Ignore),
    ("bury", Op::Bury),
    ("kick", Op::Kick),
    ("kick-job", Op::KickJob),
    ("touch", Op::Touch),
    ("stats", Op::Stats),
    ("stats-job", Op::StatsJob),
    ("stats-tube", Op::StatsTube),
    ("list-tubes", Op::ListTubes),
    ("list-tube-used", Op::ListTubeUsed),
    ("list-tubes-watched", Op::ListTubesWatched),
    ("pause-tube", Op::PauseTube),
    ("capabilities", Op::Capabilities),
    ("abort", Op::Abort),
    ("put-with", Op::PutWith),
    ("delete-batch", Op::DeleteBatch),
    ("touch-batch", Op::TouchBatch),
    ("release-batch", Op::ReleaseBatch),
    ("list-jobs", Op::ListJobs),
    ("reserve-batch", Op::ReserveBatch),
    ("fail", Op::Fail),
    ("bury-with-reason", Op::BuryWithReason),
    ("move-job", Op::MoveJob),
    ("clear-tube", Op::ClearTube),
    ("stats-job-extended", Op::StatsJobExtended),
    ("set-policy", Op::SetPolicy),
    ("stats-policy", Op::StatsPolicy),
    ("schedule-set", Op::ScheduleSet),
    ("schedule-delete", Op::ScheduleDelete),
    ("stats-schedule", Op::StatsSchedule),
    ("quit", Op::Quit),
];

#[cfg(test)]
mod tests;
