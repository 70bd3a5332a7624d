//! Every family of the page is compared with another source in one of the tests here: a new sample
//! cannot come without one.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::tests::closed;
use bsd_net::{Lines, MemberStanding};

/// Everything that may be on a page.
fn whole_page() -> String {
    let now = Clock::start().now();
    let mut state = closed();
    let (output, _reader) = UnixStream::pair().unwrap();
    state.handles.lines = Some(Lines::start(OwnedFd::from(output), |_| ()).unwrap());
    state
        .handles
        .pulse
        .set_certificate_end(CertificateOf::Clients, Some(1));
    let options = Options {
        dir: Some("/d".into()),
        fs: Arc::new(bsd::storage::SimFs::new(1)),
        ..Options::default()
    };
    let figures = Engine::open(&options, now).unwrap().figures(now);
    let snapshot = Snapshot::sample(figures, now, &["a"], 2);
    let report = bsd_net::Report {
        standing: MemberStanding::Leads,
        ..bsd_net::Report::default()
    };
    written(|page| {
        of_loop(page, &state);
        of_process(page, &state);
        of_archives(page, &[Report::default()], now.mono);
        of_checks(page, &state.checks);
        of_standby(page, &StandbyReport::default(), now.mono);
        cluster::write_report(page, &report);
        of_server(page, &snapshot);
        for family in FAMILIES {
            page.family(family.name, family.kind, family.help);
        }
    })
}

/// Sources of the tests that compare samples.
const TESTS: [&str; 6] = [
    include_str!("../tests.rs"),
    include_str!("log.rs"),
    include_str!("members.rs"),
    include_str!("memory.rs"),
    include_str!("rest.rs"),
    include_str!("tally.rs"),
];

/// A sample of the family is named as a text.
fn is_named(test: &str, family: &str) -> bool {
    ["", "_total", "_info", "_count"].iter().any(|suffix| {
        let sample = format!("\"{family}{suffix}");
        let mut found = test.match_indices(&sample);
        found.any(|(at, _)| {
            let next = test[at + sample.len()..].chars().next();
            next.is_some_and(|next| !next.is_ascii_alphanumeric() && next != '_')
        })
    })
}

#[test]
fn t22_every_family_on_the_page_is_compared_with_another_source() {
    let page = whole_page();
    let families: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert!(families.len() > 80, "{}", families.len());
    for (nth, family) in families.iter().enumerate() {
        assert!(!families[..nth].contains(family), "{family} is there twice");
        let is_compared = TESTS.iter().any(|test| is_named(test, family));
        assert!(is_compared, "{family} is compared with nothing");
    }
}
