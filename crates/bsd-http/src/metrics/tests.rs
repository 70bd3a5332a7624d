mod families;
mod log;
mod members;
mod memory;
mod rest;
mod tally;

use tokio::sync::Semaphore;

use super::*;
use crate::snapshot::targets;
use bsd::attributes::Unique;
use bsd::clock::Clock;
use bsd::engine::{Engine, Options, ReplySink, ScheduleChange};
use bsd::pattern::Pattern;
use bsd::protocol::{Command, Conflict, JobKey, PutWith, Reply, Request, SetPolicy, SetSchedule};
use bsd::schedule::Schedule;
use bsd::types::{ClientId, JobId, Now, Position, Ticket};
use bsd_archive::follow;

fn written(write: impl FnOnce(&mut Page)) -> String {
    let mut page = Page::new(Format::OpenMetrics);
    write(&mut page);
    page.text
}

/// Value of a sample on the page, named with its labels.
fn value(page: &str, sample: &str) -> f64 {
    let mut lines = page.lines();
    let found = lines.find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    let found = found.unwrap_or_else(|| panic!("no {sample} in {page}"));
    found.parse().unwrap()
}

/// Every sample of a page is one of these, and has this value.
fn assert_samples(page: &str, samples: &[(&str, f64)]) {
    for (sample, expected) in samples {
        assert_eq!(value(page, sample), *expected, "{sample}");
    }
    let count = page.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(
        count,
        samples.len(),
        "a sample that is not compared: {page}"
    );
}

#[test]
fn t22_each_sample_of_an_archive_is_what_its_writer_reports() {
    let report = Report {
        epoch: Some(2),
        lag_bytes: 3,
        has_all_of: Some(Time(1_000_000_000)),
        errors: 4,
        figures: bsd_archive::Figures {
            links: 5,
            bytes: 6,
            gaps: 7,
            bases: 8,
            base_wall_ns: 9_000_000_000,
        },
        joins: Some(bsd_archive::Joins {
            objects: 10,
            failures: 11,
            wall_ns: 12_000_000_000,
            links: Some((13, 14)),
            trouble: None,
        }),
        ..Report::default()
    };
    let expected = [
        ("bsd_archive_lag_seconds", 1.5),
        ("bsd_archive_up", 1.0),
        ("bsd_archive_lag_bytes", 3.0),
        ("bsd_archive_in_gap", 0.0),
        ("bsd_archive_epoch", 2.0),
        ("bsd_archive_last_base_timestamp_seconds", 9.0),
        ("bsd_archive_links_total", 5.0),
        ("bsd_archive_bytes_total", 6.0),
        ("bsd_archive_bases_total", 8.0),
        ("bsd_archive_gaps_total", 7.0),
        ("bsd_archive_joined_total", 10.0),
        ("bsd_archive_join_failures_total", 11.0),
        ("bsd_archive_last_join_timestamp_seconds", 12.0),
        ("bsd_archive_joined_links", 13.0),
        ("bsd_archive_single_links", 14.0),
        ("bsd_archive_errors_total", 4.0),
    ];
    let page = |report: &Report| {
        written(|page| of_archives(page, std::slice::from_ref(report), Time(2_500_000_000)))
    };
    assert_samples(&page(&report), &expected);
    let up = |change: fn(&mut Report)| {
        let mut report = report.clone();
        change(&mut report);
        value(&page(&report), "bsd_archive_up")
    };
    assert_eq!(up(|it| it.trouble = Some(String::new())), 0.0);
    assert_eq!(up(|it| it.ended = Some(String::new())), 0.0);
    assert_eq!(up(|it| it.epoch = None), 0.0);
    let gap = Report {
        is_in_gap: true,
        ..report.clone()
    };
    assert_eq!(value(&page(&gap), "bsd_archive_in_gap"), 1.0);
    // Those of the first are as they were without a second one.
    let both = [report.clone(), gap];
    let both = written(|page| of_archives(page, &both, Time(2_500_000_000)));
    let second = "bsd_archive_in_gap{repository=\"2\"}";
    assert_eq!(value(&both, "bsd_archive_in_gap"), 0.0);
    assert_eq!(value(&both, second), 1.0);
    for line in page(&report).lines() {
        assert!(both.contains(line), "{line}");
    }
    assert_eq!(written(|page| of_archives(page, &[], Time(0))), "");
}

#[test]
fn g32_the_end_of_each_certificate_is_a_sample_and_one_that_there_is_not_is_none() {
    let pulse = Pulse::default();
    let page = |pulse: &Pulse| written(|page| of_certificates(page, pulse));
    assert_eq!(page(&pulse), "");
    pulse.set_certificate_end(CertificateOf::Members, Some(-1));
    let of = |who: &str| format!("bsd_tls_certificate_expiry_seconds{{shown_to=\"{who}\"}}");
    assert_samples(&page(&pulse), &[(&of("members"), -1.0)]);
    pulse.set_certificate_end(CertificateOf::Clients, Some(2));
    let both = [(&*of("clients"), 2.0), (&*of("members"), -1.0)];
    assert_samples(&page(&pulse), &both);
    pulse.set_certificate_end(CertificateOf::Members, None);
    assert_samples(&page(&pulse), &both[..1]);
}

#[test]
fn t22_each_sample_of_a_standby_is_what_it_reports_and_it_is_up_only_without_trouble() {
    let report = StandbyReport {
        at: Some(Position::ZERO),
        wall_ns: 2_000_000_000,
        jobs: 3,
        figures: follow::Figures {
            links: 4,
            records: 5,
            restores: 6,
        },
        current_at: Some(Time(1_000_000_000)),
        ..StandbyReport::default()
    };
    let page =
        |report: &StandbyReport| written(|page| of_standby(page, report, Time(8_500_000_000)));
    let expected = [
        ("bsd_standby_promoted", 0.0),
        ("bsd_standby_up", 1.0),
        ("bsd_standby_jobs", 3.0),
        ("bsd_standby_durable_timestamp_seconds", 2.0),
        ("bsd_standby_lag_seconds", 7.5),
        ("bsd_standby_records_total", 5.0),
        ("bsd_standby_restores_total", 6.0),
    ];
    assert_samples(&page(&report), &expected);
    let troubled = StandbyReport {
        trouble: Some("the store is away".to_owned()),
        is_promoted: true,
        ..report.clone()
    };
    assert_eq!(value(&page(&troubled), "bsd_standby_up"), 0.0);
    assert_eq!(value(&page(&troubled), "bsd_standby_promoted"), 1.0);
    let empty = StandbyReport { at: None, ..report };
    assert_eq!(value(&page(&empty), "bsd_standby_up"), 0.0);
}

/// The system counts it in ticks of a hundredth of a second.
#[cfg(target_os = "linux")]
#[test]
fn t22_processor_time_and_memory_are_what_the_system_says() {
    let proc = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap();
    let of_system = || -> f64 {
        let stat = proc("stat");
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks = fields.split_whitespace().skip(11).take(2);
        ticks.map(|it| it.parse::<f64>().unwrap() / 100.0).sum()
    };
    // Enough to tell a second from a millisecond.
    let mut sum = 0_u64;
    while of_system() < 0.2 {
        sum = (0..1_000_000).fold(sum, |sum, it| std::hint::black_box(sum ^ it));
    }
    let before = of_system();
    let page = written(of_processor);
    let after = of_system();
    let mode = |mode: &str| value(&page, &format!("bsd_cpu_seconds_total{{mode=\"{mode}\"}}"));
    let shown = mode("user") + mode("system");
    assert!(
        before - 0.05 <= shown && shown <= after + 0.05,
        "{before} {shown} {after}"
    );
    let status = proc("status");
    let resident = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
    let resident = resident.unwrap().trim().strip_suffix(" kB").unwrap();
    let resident = resident.trim().parse::<u64>().unwrap() * 1024;
    let page = written(|page| of_process(page, &crate::tests::closed()));
    let shown = value(&page, "process_resident_memory_bytes") as u64;
    assert!(
        (resident / 2..resident * 2).contains(&shown),
        "{shown}, {resident}"
    );
}

/// The text of the reply to `stats` or `stats-tube`.
struct Yaml(String);

impl ReplySink for Yaml {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        if let Reply::Report(report) = reply {
            let mut text = Vec::new();
            report.write(&mut text);
            self.0 = String::from_utf8(text).unwrap();
        }
    }
}

impl Yaml {
    fn of(engine: &mut Engine, client: ClientId, command: Command<'_>, now: Now) -> Yaml {
        let mut yaml = Yaml(String::new());
        engine.run(client, Request::Command(command), now, &mut yaml);
        engine.commit(now).unwrap();
        yaml
    }

    fn number(&self, key: &str) -> f64 {
        let mut lines = self.0.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        found
            .unwrap_or_else(|| panic!("no {key} in {}", self.0))
            .parse()
            .unwrap()
    }
}

/// An engine of which every number is another, as far as that can be.
fn busy(now: Now) -> (Engine, ClientId) {
    let mut engine = Engine::open(&Options::default(), now).unwrap();
    let client = engine.connect();
    let put = |pri, delay| Command::put(pri, delay, 100, b"12345");
    let mut commands = vec![Command::Use("a".into()), Command::Watch("a".into())];
    commands.extend((0..12).map(|_| put(2000, 0)));
    commands.extend((0..3).map(|_| put(1, 0)));
    commands.extend((0..4).map(|_| put(5, 500)));
    commands.extend((1..=5).map(|id| Command::ReserveJob(JobId(id))));
    commands.extend((1..=2).map(|id| Command::Bury {
        id: JobId(id),
        pri: 7,
    }));
    commands.extend((1..=1).map(|id| Command::Delete(JobId(id))));
    commands.push(Command::Touch(JobId(3)));
    commands.push(Command::pause_tube("a", 60));
    for command in commands {
        Yaml::of(&mut engine, client, command, now);
    }
    (engine, client)
}

/// Counts the puts that are answered `EXISTS`.
struct Conflicts(f64);

impl ReplySink for Conflicts {
    fn reply(&mut self, _: ClientId, _: Ticket, reply: Reply<'_>) {
        self.0 += f64::from(matches!(reply, Reply::Exists(_)));
    }
}

#[test]
fn puts_whose_key_another_job_has_are_counted() {
    let now = Clock::start().now();
    let mut engine = Engine::open(&Options::default(), now).unwrap();
    let (client, mut conflicts) = (engine.connect(), Conflicts(0.0));
    for key in ["a", "b", "a", "a"] {
        let key = JobKey {
            name: key.into(),
            unique: Unique::Exists,
            conflict: Conflict::Keep,
        };
        let put = PutWith {
            tube: None,
            pri: 0,
            delay: 0,
            ttr: 1,
            at: None,
            key: Some(key),
            group: None,
            body: b"x"[..].into(),
        };
        let put = Request::Command(Command::PutWith(Box::new(put)));
        engine.run(client, put, now, &mut conflicts);
    }
    let snapshot = Snapshot::sample(engine.figures(now), now, &["a"], 2);
    let page = written(|page| of_server(page, &snapshot));
    assert_eq!(conflicts.0, 2.0);
    assert_eq!(value(&page, "bsd_key_conflicts_total"), conflicts.0);
}

/// Each number is what the jobs of the tubes, and the looks at the schedules, say.
#[test]
fn what_the_page_says_of_schedules_is_what_they_have_put() {
    let begin = Clock::start().now();
    let later = |seconds: i64| {
        Now::new(
            Time(begin.mono.0 + seconds * 1_000_000_000),
            begin.wall_ns + seconds as u64 * 1_000_000_000,
        )
    };
    let mut engine = Engine::open(&Options::default(), begin).unwrap();
    let client = engine.connect();
    let closed = SetPolicy {
        tubes: Pattern::parse("closed").unwrap(),
        policy: "max-jobs=0".parse().unwrap(),
    };
    let closed = Command::SetPolicy(Box::new(closed));
    Yaml::of(&mut engine, client, closed, begin);
    let each_second = |tube: &str| Schedule {
        cron: "* * * * * *".to_owned(),
        tube: tube.to_owned(),
        ..Schedule::default()
    };
    let (mut keyed, mut paused) = (each_second("keyed"), each_second("paused"));
    (keyed.key, paused.is_paused) = (Some("k".to_owned()), true);
    for schedule in [each_second("plain"), each_second("closed"), keyed, paused] {
        let set = SetSchedule {
            name: schedule.tube.clone(),
            schedule,
            keeps_pause: false,
        };
        let set = engine.set_schedule(&set, begin);
        assert_eq!(set.unwrap(), ScheduleChange::Done);
    }
    let tick = |engine: &mut Engine, at: Now| {
        engine.tick(at, &mut Conflicts(0.0)).unwrap();
        engine.commit(at).unwrap();
    };
    (0..=3).for_each(|second| tick(&mut engine, later(second)));
    // Nothing of an hour is made up for, but for its last minute.
    tick(&mut engine, later(3600));
    (1..9).for_each(|nth| tick(&mut engine, later(3600 + nth * 2)));
    let at = later(3620);
    let snapshot = Snapshot::sample(engine.figures(at), at, &["a"], 2);
    let page = written(|page| of_server(page, &snapshot));
    let queue = engine.queue();
    let jobs = |tube: &str| queue.job_count(tube) as f64;
    assert!(jobs("plain") > 60.0 && jobs("paused") + jobs("closed") == 0.0);
    assert_eq!(jobs("keyed"), 1.0);
    let waiting = engine.schedules().map(|it| it.waiting as f64).sum::<f64>();
    for (sample, expected) in [
        ("bsd_schedules", engine.schedules().count() as f64),
        ("bsd_schedules_paused", 1.0),
        ("bsd_schedule_firings_waiting", waiting),
        ("bsd_schedule_firings_total", jobs("plain") + jobs("keyed")),
        // It has fired as often as the one without a key.
        ("bsd_schedule_key_conflicts_total", jobs("plain") - 1.0),
        ("bsd_schedule_missed_total", 3.0),
        ("bsd_schedule_given_up_total", 0.0),
    ] {
        assert_eq!(value(&page, sample), expected, "{sample}");
    }
    assert!(waiting > 60.0, "{waiting}");
    (0..60).for_each(|nth| tick(&mut engine, later(3620 + nth * 2)));
    let figures = engine.figures(later(3740)).schedules;
    let page = written(|page| of_schedules(page, &figures));
    let waiting = value(&page, "bsd_schedule_firings_waiting");
    assert_eq!(waiting, bsd::schedule::MISSED_MAX as f64);
    let jobs = engine.queue().job_count("plain") as f64;
    let given_up = value(&page, "bsd_schedule_given_up_total");
    assert_eq!(
        given_up + waiting,
        jobs,
        "the tube that is closed has had as many firings"
    );
}

#[test]
fn t22_what_stats_says_is_what_the_page_says() {
    let now = Clock::start().now();
    let (mut engine, client) = busy(now);
    let yaml = Yaml::of(&mut engine, client, Command::Stats, now);
    let snapshot = Snapshot::sample(engine.figures(now), now, &["a"], 2);
    let page = written(|page| of_server(page, &snapshot));
    for (sample, key) in [
        ("bsd_jobs{state=\"ready\"}", "current-jobs-ready"),
        ("bsd_jobs{state=\"reserved\"}", "current-jobs-reserved"),
        ("bsd_jobs{state=\"delayed\"}", "current-jobs-delayed"),
        ("bsd_jobs{state=\"buried\"}", "current-jobs-buried"),
        ("bsd_urgent_jobs", "current-jobs-urgent"),
        ("bsd_puts_total", "total-jobs"),
        ("bsd_job_timeouts_total", "job-timeouts"),
        ("bsd_job_size_max_bytes", "max-job-size"),
        ("bsd_tubes", "current-tubes"),
        ("bsd_connections", "current-connections"),
        ("bsd_connections_opened_total", "total-connections"),
        ("bsd_producers", "current-producers"),
        ("bsd_workers", "current-workers"),
        ("bsd_waiting", "current-waiting"),
        ("bsd_uptime_seconds", "uptime"),
    ] {
        assert_eq!(value(&page, sample), yaml.number(key), "{sample}");
    }
    for (command, _) in COMMANDS {
        // beanstalkd counts no quits.
        let key = format!("cmd-{command}");
        if yaml.0.contains(&format!("{key}: ")) {
            let sample = format!("bsd_commands_total{{command=\"{command}\"}}");
            assert_eq!(value(&page, &sample), yaml.number(&key), "{sample}");
        }
    }
    assert_eq!(value(&page, "bsd_jobs{state=\"ready\"}"), 10.0);
    assert_eq!(value(&page, "bsd_draining"), 0.0);
    engine.drain();
    let snapshot = Snapshot::sample(engine.figures(now), now, &["a"], 2);
    let page = written(|page| of_server(page, &snapshot));
    assert_eq!(value(&page, "bsd_draining"), 1.0);
}

#[test]
fn t22_what_stats_tube_says_is_what_the_page_says_of_the_tube() {
    // The age of a job is known to the second.
    let now = Now {
        mono: Time(10_000_000_000),
        ..Clock::start().now()
    };
    let (mut engine, client) = busy(now);
    let yaml = Yaml::of(&mut engine, client, Command::StatsTube("a".into()), now);
    let later = Time(now.mono.0 + 2_000_000_000);
    let tube = TubeFigures::of(engine.queue(), "a", later).unwrap();
    let page = written(|page| {
        for family in FAMILIES {
            (family.write)(page, "a", &tube);
        }
    });
    let samples = [
        (
            "bsd_tube_jobs{tube=\"a\",state=\"ready\"}",
            "current-jobs-ready",
        ),
        (
            "bsd_tube_jobs{tube=\"a\",state=\"reserved\"}",
            "current-jobs-reserved",
        ),
        (
            "bsd_tube_jobs{tube=\"a\",state=\"delayed\"}",
            "current-jobs-delayed",
        ),
        (
            "bsd_tube_jobs{tube=\"a\",state=\"buried\"}",
            "current-jobs-buried",
        ),
        ("bsd_tube_urgent_jobs{tube=\"a\"}", "current-jobs-urgent"),
        ("bsd_tube_puts_total{tube=\"a\"}", "total-jobs"),
        ("bsd_tube_deletes_total{tube=\"a\"}", "cmd-delete"),
        ("bsd_tube_pauses_total{tube=\"a\"}", "cmd-pause-tube"),
        ("bsd_tube_users{tube=\"a\"}", "current-using"),
        ("bsd_tube_watchers{tube=\"a\"}", "current-watching"),
        ("bsd_tube_waiting{tube=\"a\"}", "current-waiting"),
    ];
    let mut expected: Vec<_> = samples
        .map(|(sample, key)| (sample, yaml.number(key)))
        .into();
    expected.push(("bsd_tube_pause_left_seconds{tube=\"a\"}", 58.0));
    expected.push(("bsd_tube_oldest_ready_age_seconds{tube=\"a\"}", 2.0));
    assert_samples(&page, &expected);
}

#[test]
fn what_stats_policy_says_is_what_the_page_says_and_a_tube_without_failures_has_no_sample() {
    let now = Clock::start().now();
    let (mut engine, client) = busy(now);
    let policy = "delivery-limit=1 dead-letter=dead max-jobs=2"
        .parse()
        .unwrap();
    let set = SetPolicy {
        tubes: Pattern::parse("p").unwrap(),
        policy,
    };
    let put = Command::Put {
        tube: Some("p".into()),
        pri: 0,
        delay: 0,
        ttr: 100,
        body: b"12345".into(),
    };
    let reserve = |id| Command::ReserveJob(JobId(id));
    for command in [
        Command::SetPolicy(Box::new(set)),
        put.clone(),
        put.clone(),
        put,
        reserve(20),
        reserve(21),
        Command::Fail {
            id: JobId(20),
            text: b"why".into(),
        },
        Command::Release {
            id: JobId(21),
            pri: 0,
            delay: 0,
        },
    ] {
        Yaml::of(&mut engine, client, command, now);
    }
    let page = |name: &str| {
        let mut tube = TubeFigures::of(engine.queue(), name, now.mono).unwrap();
        tube.takes_dead_letters = targets(engine.queue()).contains(name);
        written(|page| {
            for family in FAMILIES {
                (family.write)(page, name, &tube);
            }
        })
    };
    let (failed, dead) = (page("p"), page("dead"));
    assert!(!dead.contains("bsd_tube_failures_total"), "{dead}");
    assert!(!dead.contains("bsd_tube_set_aside_total"), "{dead}");
    assert!(!dead.contains("bsd_tube_puts_refused_total"), "{dead}");
    assert!(!failed.contains("bsd_tube_takes_dead_letters"), "{failed}");
    let yaml = Yaml::of(&mut engine, client, Command::StatsPolicy("p".into()), now);
    assert!(yaml.0.contains("dead-letter: \"dead\"\n"), "{}", yaml.0);
    let takes = value(&dead, "bsd_tube_takes_dead_letters{tube=\"dead\"}");
    assert_eq!(takes, 1.0);
    // One tube has failures, so those of all are its own.
    let snapshot = Snapshot::sample(engine.figures(now), now, &[], 2);
    let all = written(|page| of_server(page, &snapshot));
    for reason in Reason::ALL.map(Reason::word) {
        let sample = format!("bsd_tube_failures_total{{tube=\"p\",reason=\"{reason}\"}}");
        let total = yaml.number(&format!("total-{reason}"));
        assert_eq!(value(&failed, &sample), total);
        let sample = format!("bsd_failures_total{{reason=\"{reason}\"}}");
        assert_eq!(value(&all, &sample), total);
    }
    for (name, of_all, key, count) in [
        (
            "bsd_tube_set_aside_total",
            "bsd_set_aside_total",
            "total-set-aside",
            2.0,
        ),
        (
            "bsd_tube_puts_refused_total",
            "bsd_puts_refused_total",
            "total-puts-refused",
            1.0,
        ),
    ] {
        let shown = value(&failed, &format!("{name}{{tube=\"p\"}}"));
        assert_eq!((shown, yaml.number(key)), (count, count), "{name}");
        assert_eq!(value(&all, of_all), count, "{of_all}");
    }
    let fresh = Engine::open(&Options::default(), now).unwrap().figures(now);
    let fresh = Snapshot::sample(fresh, now, &[], 2);
    let page = written(|page| of_server(page, &fresh));
    assert_eq!(value(&page, "bsd_failures_total{reason=\"ttr\"}"), 0.0);
}

#[test]
fn a_page_is_the_same_in_parts_of_any_size() {
    let now = Clock::start().now();
    let figures = Engine::open(&Options::default(), now).unwrap().figures(now);
    let snapshot = Arc::new(Snapshot::sample(figures, now, &["a", "some-tube", "b"], 2));
    let whole = |part_size| {
        let parts = Parts {
            first: None,
            snapshot: snapshot.clone(),
            format: Format::OpenMetrics,
            part_size,
            family: 0,
            tube: 0,
            _permit: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
        };
        let text: Vec<u8> = parts.take(10_000).flatten().collect();
        String::from_utf8(text).unwrap()
    };
    let page = whole(usize::MAX);
    assert!(page.ends_with("# EOF\n") && page.contains("\"other tubes\""));
    for part_size in 1..page.len() + 2 {
        assert_eq!(whole(part_size), page, "in parts of {part_size}");
    }
}
