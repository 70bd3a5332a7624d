//! The metrics of the loop, of the process and of checks, and those that `stats` does not have.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::*;
use crate::api::fields::Fields;
use crate::tests::closed;
use bsd::types::SECOND_NS;
use bsd_net::Lines;

#[test]
fn t22_what_the_loop_noted_is_on_the_page() {
    let state = closed();
    let pulse = &state.handles.pulse;
    let ms = |ms: i64| Time(ms * 1_000_000);
    for (begin, end) in [(1000, 1002), (1010, 1013)] {
        pulse.wake(ms(begin));
        pulse.sleep(ms(end), Some(ms(begin + 10)));
    }
    pulse.note_calls(7_000_000);
    (0..3).for_each(|_| pulse.note_sync(4_000_000));
    let page = written(|page| of_loop(page, &state));
    for (name, count, sum) in [
        ("bsd_loop_turn_seconds_count", 2.0, 0.005),
        ("bsd_loop_calls_seconds_count", 1.0, 0.007),
        ("bsd_log_sync_seconds_count", 3.0, 0.012),
    ] {
        assert_eq!(value(&page, name), count, "{name}");
        let sum_name = name.replace("_count", "_sum");
        assert!((value(&page, &sum_name) - sum).abs() < 1e-9, "{sum_name}");
    }
    // The next turn was to begin at 1.02 seconds, by a clock that goes on.
    let before = state.handles.clock.now().mono.since(ms(1020)).max(0);
    let page = written(|page| of_loop(page, &state));
    let after = state.handles.clock.now().mono.since(ms(1020)).max(0);
    let shown = value(&page, "bsd_loop_late_seconds");
    assert!(
        seconds(before) <= shown && shown <= seconds(after),
        "{before} {shown} {after}"
    );
}

/// Standard error is closed: every line is lost.
#[test]
fn t22_lines_that_were_lost_are_counted() {
    let (output, reader) = UnixStream::pair().unwrap();
    drop(reader);
    let mut lines = Lines::start(OwnedFd::from(output), |_| ()).unwrap();
    for _ in 0..3 {
        lines.write_all(b"lost\n").unwrap();
        lines.drain(Duration::from_secs(20));
    }
    let mut state = closed();
    state.handles.lines = Some(lines);
    let page = written(|page| of_process(page, &state));
    assert_eq!(value(&page, "bsd_lines_dropped_total"), 3.0);
    state.handles.lines = None;
    assert!(!written(|page| of_process(page, &state)).contains("bsd_lines_dropped"));
}

#[test]
fn t22_checks_are_those_that_the_server_was_told_of() {
    let mut state = closed();
    state.handles.dir = Some("/nowhere".into());
    let page = |state: &State| written(|page| of_checks(page, &state.checks));
    let of = |name: &str, check: &str| format!("{name}{{check=\"{check}\"}}");
    let (at, failed, good) = (
        "bsd_check_timestamp_seconds",
        "bsd_check_failed",
        "bsd_check_last_success_timestamp_seconds",
    );
    let kinds = ["backup", "verify", "rehearsal"].map(|kind| of(good, kind));
    let none = [0, 1, 2].map(|nth: usize| (&*kinds[nth], 0.0));
    assert_samples(&page(&state), &none);
    let tell = |state: &State, body: &str| {
        let fields = Fields::parse(body.as_bytes()).unwrap();
        crate::api::checks::note(&state.handles, &state.checks, &fields).unwrap();
    };
    let before = state.handles.clock.now().wall_ns / SECOND_NS as u64;
    tell(&state, r#"{"check":"backup"}"#);
    tell(&state, r#"{"check":"verify","failed":true}"#);
    let after = state.handles.clock.now().wall_ns / SECOND_NS as u64;
    let page = page(&state);
    let is_now = |sample: &str| {
        let shown = value(&page, sample) as u64;
        assert!((before..=after).contains(&shown), "{sample}: {shown}");
    };
    is_now(&of(at, "backup"));
    is_now(&of(at, "verify"));
    is_now(&of(good, "backup"));
    assert_eq!(value(&page, &of(good, "verify")), 0.0);
    assert_eq!(value(&page, &of(good, "rehearsal")), 0.0);
    assert_eq!(value(&page, &of(failed, "backup")), 0.0);
    assert_eq!(value(&page, &of(failed, "verify")), 1.0);
    assert_eq!(
        page.lines().filter(|line| !line.starts_with('#')).count(),
        7
    );
}

/// Figures that `stats` has only as text, or not at all.
#[test]
fn t22_times_of_jobs_and_what_runs_here_are_what_this_test_did() {
    let now = Clock::start().now();
    let mut engine = Engine::open(&Options::default(), now).unwrap();
    let client = engine.connect();
    let later = |ms: i64| {
        Now::new(
            Time(now.mono.0 + ms * 1_000_000),
            now.wall_ns + ms as u64 * 1_000_000,
        )
    };
    let put = Command::put(1, 0, 100, b"");
    for _ in 0..2 {
        Yaml::of(&mut engine, client, put.clone(), now);
    }
    Yaml::of(
        &mut engine,
        client,
        Command::ReserveJob(JobId(1)),
        later(300),
    );
    Yaml::of(
        &mut engine,
        client,
        Command::ReserveJob(JobId(2)),
        later(500),
    );
    Yaml::of(&mut engine, client, Command::Delete(JobId(1)), later(2300));
    let yaml = Yaml::of(&mut engine, client, Command::Stats, later(5000));
    let names = ["a", "b", "c", "d", "e"];
    let snapshot = Snapshot::sample(engine.figures(later(5000)), later(5000), &names, 2);
    let page = written(|page| of_server(page, &snapshot));
    for (name, count, sum) in [
        ("bsd_job_wait_seconds_count", 2.0, 0.8),
        ("bsd_job_hold_seconds_count", 1.0, 2.0),
    ] {
        assert_eq!(value(&page, name), count, "{name}");
        let sum_name = name.replace("_count", "_sum");
        assert!((value(&page, &sum_name) - sum).abs() < 1e-9, "{sum_name}");
    }
    assert_eq!(value(&page, "bsd_tubes_summed_up"), 3.0);
    // The engine began with the clock.
    let started = value(&page, "process_start_time_seconds");
    let expected = now.wall_ns / 1_000_000_000;
    assert!(
        (started - expected as f64).abs() <= 1.0,
        "{started}, {expected}"
    );
    let mut lines = page.lines();
    let info = lines.find(|line| line.starts_with("bsd_info{")).unwrap();
    for key in ["pid", "id", "hostname", "os", "platform"] {
        let mut found = yaml.0.lines();
        let said = found.find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let said = said.unwrap().trim_matches('"');
        assert!(info.contains(&format!("{key}=\"{said}\"")), "{key}: {info}");
    }
    assert!(
        page.contains("\n# TYPE bsd info\n"),
        "the family is \"bsd\""
    );
}
