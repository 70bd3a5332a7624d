//! What is wrong now, why, and what to do, at the top of the overview and of the page of a tube. The
//! list is that of `/api/v1/trouble`; here it gets its looks.

use maud::{Markup, html};
use serde_json::Value;

use super::live::Live;
use super::words;
use crate::State;
use crate::answer::Problem;
use crate::api::trouble::{Finding, Kind, Severity, Subject, Troubles, WAIT_MAX_SECONDS};
use crate::api::trouble::{findings, look_for, see_in};
use crate::api::why;
use crate::snapshot::Snapshot;
use hyper::StatusCode;
use std::sync::Arc;

/// Findings of a kind that are shown at once; the others are folded up.
const OF_A_KIND: usize = 3;
/// Clients that a page of a tube names.
const HOLDERS_MAX: usize = 3;

/// What is wrong, as this snapshot has it.
pub(super) async fn in_snapshot(
    state: &State,
    snapshot: Arc<Snapshot>,
) -> Result<Troubles, Problem> {
    let seen = see_in(state, snapshot, WAIT_MAX_SECONDS).await?;
    Ok(findings(&seen))
}

/// What is wrong with a server that has no snapshot, if that is known.
pub(super) async fn without_snapshot(state: &State) -> Option<Troubles> {
    let troubles = look_for(state, WAIT_MAX_SECONDS).await.ok()?;
    (!troubles.findings.is_empty()).then_some(troubles)
}

/// A part of the page that says which findings it shows: when there are others, the page is loaded
/// again.
pub(super) fn digest(troubles: &Troubles) -> String {
    let shown = troubles.findings.iter().map(id);
    shown.collect::<Vec<_>>().join(" ")
}

/// What tells findings apart.
fn id(finding: &Finding) -> String {
    let name = finding.subject.name().unwrap_or_default();
    format!("{}:{}:{name}", finding.kind.word(), finding.subject.word())
}

/// All of them, the most urgent first; those of a kind stand together.
pub(super) fn list(troubles: &Troubles, live: &Live) -> Markup {
    let notices = Severity::Notice as usize;
    let is_notice = |it: &&Finding| it.severity() == Severity::Notice;
    let told = troubles.findings.iter().filter(is_notice).count() as u64;
    let told = told + troubles.more[notices];
    html! {
        section class="wrong" aria-labelledby="wrong" {
            h2 id="wrong" {
                @match troubles.count() - told {
                    0 => "Nothing is wrong",
                    1 => "1 thing is wrong",
                    count => { (words::count(count)) " things are wrong" }
                }
                @if told > 0 { ", " (words::counted(told, "notice")) }
            }
            @if troubles.count() == 0 { p class="well" { "Jobs that are ready are being done." } }
            @if let Some(leader) = &troubles.follows {
                p { small {
                    "Tubes are judged by the leader"
                    @if let Some(http) = leader { ": " a href=(format!("{http}/")) { (http) } } "."
                } }
            }
            ul class="findings" {
                @for of_kind in troubles.findings.chunk_by(|one, other| one.kind == other.kind) {
                    (of_a_kind(of_kind, live))
                }
            }
            @for (severity, more) in Severity::ALL.iter().zip(troubles.more) {
                @if more > 0 {
                    p { small { (words::count(more)) " more, " (severity.word()) "." } }
                }
            }
        }
    }
}

fn of_a_kind(findings: &[Finding], live: &Live) -> Markup {
    let first = &findings[0];
    let severity = first.severity().word();
    let (shown, folded) = findings.split_at(findings.len().min(OF_A_KIND));
    html! {
        li class=(format!("finding {severity}")) {
            p class="what" {
                span class=(format!("mark {severity}")) { (severity) } " "
                @if findings.len() == 1 { (line(first, live)) } @else {
                    b { (words::count(findings.len() as u64)) " " (of_many(first.kind)) }
                }
            }
            @if findings.len() > 1 { ul { @for it in shown { li { (line(it, live)) } } } }
            @if !folded.is_empty() {
                details {
                    summary { (words::count(folded.len() as u64)) " more of these" }
                    ul { @for it in folded { li { (line(it, live)) } } }
                }
            }
            p class="todo" { (with_commands(&first.what_to_do)) }
        }
    }
}

/// What is said of several of a kind.
fn of_many(kind: Kind) -> &'static str {
    match kind {
        Kind::NoWorkers => "tubes have ready jobs, and no worker takes them",
        Kind::Paused => "tubes with ready jobs are paused",
        Kind::WaitsLong => "tubes have jobs that wait long",
        Kind::Failures => "tubes have deliveries that fail",
        Kind::SetAside => "tubes have jobs that were given up",
        Kind::PutsRefused => "tubes refuse puts",
        Kind::DeadLetters => "tubes hold dead letters",
        Kind::Buried => "tubes have buried jobs",
        Kind::MemberAway => "members are away",
        Kind::MemberLags => "members are behind",
        Kind::ClocksApart => "members have another time",
        Kind::CertificateEnds | Kind::CertificateExpired => "certificates",
        Kind::CheckFailed | Kind::CheckOld => "checks of the log",
        _ => "of these",
    }
}

fn line(finding: &Finding, live: &Live) -> Markup {
    html! {
        a href=(link(finding)) { (name(&finding.subject)) } ": "
        (live.text(&format!("why:{}", id(finding)), &*finding.why))
    }
}

/// The subject as a page calls it.
fn name(subject: &Subject) -> String {
    match subject {
        Subject::Server => "This server".into(),
        Subject::Tube(name) => format!("Tube {name}"),
        Subject::Member(name) => format!("Member {name}"),
        Subject::Archive(name) => match name {
            None => "The archive".into(),
            Some(name) => format!("The {name} archive"),
        },
        Subject::Certificate(shown_to) => format!("The certificate for {shown_to}"),
        Subject::Check(kind) => format!("The {kind}"),
        Subject::Schedules => "Schedules".into(),
    }
}

/// The page that says more, and there the part that does.
fn link(finding: &Finding) -> String {
    let of_subject = finding.subject.link();
    if let Some((part, _)) = part_of_tube(finding.kind.word()) {
        return format!("{of_subject}{part}");
    }
    match finding.kind {
        Kind::LoopStuck | Kind::DiskFull | Kind::DiskLow => "/durability#log".into(),
        Kind::MemoryFull | Kind::MemoryHigh => "/durability#memory".into(),
        Kind::ArchiveRefuses => "/durability#archive".into(),
        Kind::NoLeader | Kind::LedgerFull => "/cluster".into(),
        Kind::Descriptors | Kind::Timeouts => "/clients".into(),
        _ => of_subject,
    }
}

/// The part of the page of a tube that shows or ends what a finding of this kind is about, and what
/// a link to it says.
fn part_of_tube(kind: &str) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        "buried" => ("?state=buried#jobs", "The buried jobs"),
        "failures" => ("?state=delayed#jobs", "Jobs that are tried again"),
        "dead-letters" => ("?state=ready#jobs", "The dead letters"),
        "waits-long" => ("?state=reserved#jobs", "The reserved jobs"),
        "no-workers" => ("?state=ready#jobs", "The ready jobs"),
        "paused" => ("#pause-tube", "End the pause"),
        "set-aside" | "puts-refused" => ("#policy", "Its policy"),
        _ => return None,
    })
}

/// A text in which commands stand in backticks.
fn with_commands(text: &str) -> Markup {
    html! {
        @for (nth, part) in text.split('`').enumerate() {
            @if nth % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

/// What is wrong with a tube, and who has its reserved jobs.
pub(super) async fn of_tube(state: &State, name: &str) -> Result<Markup, Problem> {
    let answer = match why::why(state, name.to_owned()).await {
        Ok(answer) => answer,
        // The page says the same of a tube that is gone.
        Err(problem) if problem.status == StatusCode::NOT_FOUND => return Ok(html! {}),
        Err(problem) => return Err(problem),
    };
    let value = answer.body().value();
    Ok(findings_of(&value))
}

fn findings_of(value: &Value) -> Markup {
    let none = Vec::new();
    let list = |name: &str| value[name].as_array().unwrap_or(&none);
    let (findings, holders) = (list("findings"), list("holders"));
    let path = path_of(value);
    html! {
        @if !findings.is_empty() {
            section class="wrong" aria-label="What is wrong" {
                ul class="findings" {
                    @for finding in findings {
                        @let severity = finding["severity"].as_str().unwrap_or_default();
                        li class=(format!("finding {severity}")) {
                            p class="what" {
                                span class=(format!("mark {severity}")) { (severity) } " "
                                (finding["why"].as_str().unwrap_or_default())
                            }
                            p class="todo" {
                                (with_commands(finding["do"].as_str().unwrap_or_default()))
                                (way(&path, finding["kind"].as_str().unwrap_or_default()))
                            }
                        }
                    }
                }
            }
        }
        @if findings.is_empty() { (no_cause(value)) }
        @if !holders.is_empty() { p class="holders" { (holders_of(value, holders)) } }
    }
}

/// The page of the tube.
fn path_of(value: &Value) -> String {
    let tube = value["tube"]["name"].as_str().unwrap_or_default();
    format!("/tubes/{}", words::escaped(tube))
}

/// A link to the part of the page that a finding of this kind is about.
fn way(path: &str, kind: &str) -> Markup {
    html! {
        @if let Some((part, text)) = part_of_tube(kind) {
            " " a href=(format!("{path}{part}")) { (text) }
        }
    }
}

/// Of a tube with ready jobs and nothing wrong: how many connections take its jobs.
fn no_cause(value: &Value) -> Markup {
    let tube = &value["tube"];
    let count = |of: &Value| of.as_u64().unwrap_or(0);
    let (ready, watchers) = (count(&tube["jobs"]["ready"]), count(&tube["watchers"]));
    html! {
        @if ready > 0 && value["follows"] != true {
            p class="well" {
                "Nothing is wrong here: " (words::counted(watchers, "connection"))
                @if watchers == 1 { " watches" } @else { " watch" }
                " the tube, and the oldest ready job was put "
                (words::time(tube["oldest_ready_age_seconds"].as_f64().unwrap_or(0.0))) " ago."
            }
        }
    }
}

/// Those that have had a job of the tube for longest.
fn holders_of(value: &Value, holders: &[Value]) -> Markup {
    let left_out = value["holders_left_out"].as_u64().unwrap_or(0);
    let more = holders.len().saturating_sub(HOLDERS_MAX) as u64 + left_out;
    html! {
        a href=(format!("{}?state=reserved#jobs", path_of(value))) { "Reserved" }
        " by "
        @for (nth, holder) in holders.iter().take(HOLDERS_MAX).enumerate() {
            @if nth > 0 { ", " }
            a href=(format!("/clients/{}", holder["client"])) { "client " (holder["client"]) }
            " (" (words::counted(holder["jobs"].as_u64().unwrap_or(0), "job")) ", for "
            (words::time(holder["held_seconds"].as_f64().unwrap_or(0.0))) ")"
        }
        @if more > 0 { " and " (words::counted(more, "other client")) }
        "."
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn finding(kind: Kind, subject: Subject) -> Finding {
        Finding {
            kind,
            subject,
            why: "It is <so>.".into(),
            what_to_do: "Say `bsd-ctl <x>`.".into(),
        }
    }

    #[test]
    fn findings_are_text_and_lead_to_the_part_that_says_more() {
        let name = Subject::Tube("a/<b>".into());
        let mut findings = vec![finding(Kind::DiskFull, Subject::Server)];
        findings.extend(vec![finding(Kind::Buried, name); 5]);
        let troubles = Troubles {
            findings,
            more: [0, 0, 7],
            ..Troubles::default()
        };
        let shown = list(&troubles, &Live::default()).into_string();
        for part in [
            "1 thing is wrong, 12 notices",
            "<b>5 tubes have buried jobs</b>",
            "href=\"/durability#log\">This server</a>",
            "href=\"/tubes/a%2F%3Cb%3E?state=buried#jobs\">Tube a/&lt;b&gt;</a>",
            "It is &lt;so&gt;.",
            "Say <code>bsd-ctl &lt;x&gt;</code>.",
            "<summary>2 more of these</summary>",
            "7 more, notice.",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        let none = list(&Troubles::default(), &Live::default()).into_string();
        assert!(none.contains("Nothing is wrong"), "{none}");
    }

    #[test]
    fn a_tube_says_who_has_its_jobs() {
        let holder = |client| json!({"client": client, "jobs": 2, "held_seconds": 61.0});
        let value = json!({"tube": {"name": "a/b"}, "findings": [], "holders_left_out": 3,
            "holders": [holder(1), holder(2), holder(3), holder(4)]});
        let shown = findings_of(&value).into_string();
        let said = "<a href=\"/clients/1\">client 1</a> (2 jobs, for 1 min 1 s), ";
        assert!(shown.contains(said), "{shown}");
        assert!(shown.contains("and 4 other clients."), "{shown}");
        assert!(
            shown.contains("/tubes/a%2Fb?state=reserved#jobs"),
            "{shown}"
        );
    }

    #[test]
    fn a_tube_says_why_its_jobs_wait_and_leads_to_what_ends_that() {
        let finding = json!({"kind": "paused", "severity": "warning", "why": "It is <so>.",
            "do": "Say `x`."});
        let tube = json!({"name": "a/b", "jobs": {"ready": 2}, "watchers": 1,
            "oldest_ready_age_seconds": 61.0});
        let shown = |findings: Value| {
            let value = json!({"tube": tube.clone(), "findings": findings, "holders": []});
            findings_of(&value).into_string()
        };
        let paused = shown(json!([finding]));
        for part in [
            "It is &lt;so&gt;.",
            "Say <code>x</code>.",
            "<a href=\"/tubes/a%2Fb#pause-tube\">End the pause</a>",
        ] {
            assert!(paused.contains(part), "{part}: {paused}");
        }
        assert!(!paused.contains("Nothing is wrong"), "{paused}");
        let well = shown(json!([]));
        let said = "1 connection watches the tube, and the oldest ready job was put 1 min 1 s ago.";
        assert!(well.contains(said), "{well}");
    }

    #[test]
    fn each_part_of_a_tube_is_of_a_kind_that_there_is() {
        let parts = Kind::ALL
            .iter()
            .filter(|kind| part_of_tube(kind.word()).is_some());
        assert_eq!(parts.count(), 8);
    }
}
