//! `/cluster`: the leader, the members, and their lags. The page changes nothing: `bsd-ctl cluster`
//! does.

use maud::{Markup, html};

use super::layout::{facts, table};
use super::live::Live;
use super::{PageView, words};
use crate::cluster;
use bsd_net::{MemberReport, MemberStanding as Standing, Report};

pub(super) fn content(view: &PageView<'_>, live: &Live) -> Markup {
    match cluster::report(&view.state.handles) {
        Ok(report) => of(&report, live),
        // The page is not shown then.
        Err(problem) => html! { p { (problem.detail) } },
    }
}

fn of(report: &Report, live: &Live) -> Markup {
    let (mark, sentence) = judge(report);
    html! {
        p class="lead" {
            span class=(format!("mark {mark}")) { (live.text("standing", report.standing.word())) }
            " " (live.text("cluster-verdict", sentence))
        }
        @if !report.members.is_empty() { (members(report, live)) (numbers(report, live)) }
    }
}

/// The class of the mark, and in one sentence how things are.
fn judge(report: &Report) -> (&'static str, String) {
    let away = report.members.iter().filter(|it| !it.is_connected).count();
    match report.standing {
        Standing::Waiting if report.is_joining => {
            let why = report.trouble.as_ref();
            let why = why.map_or(String::new(), |why| format!(" Not yet: {why}."));
            let asks = "This server asks to be added to a cluster.";
            ("delayed", format!("{asks}{why}"))
        }
        Standing::Waiting => (
            "delayed",
            "This server is no member of a cluster yet: bsd-ctl cluster init begins one, bsd-ctl \
             cluster add ADDR joins one."
                .into(),
        ),
        Standing::Alone => (
            "full",
            "No member is known to lead: clients wait until one does.".into(),
        ),
        Standing::Removed => (
            "full",
            "This server was removed from its cluster: stop it. To add it again, move its directory \
             elsewhere first."
                .into(),
        ),
        Standing::Leads | Standing::Follows if away > 0 => (
            "delayed",
            format!("Jobs are served; {away} of the members cannot be reached from here."),
        ),
        Standing::Leads | Standing::Follows if report.members.len() < 3 => (
            "delayed",
            "Jobs are served; with fewer than three members the loss of one stops the cluster."
                .into(),
        ),
        Standing::Leads => (
            "durable",
            "This member leads, and reaches all others.".into(),
        ),
        Standing::Follows => (
            "durable",
            "This member follows, and passes its clients on to the leader.".into(),
        ),
    }
}

fn state_of(member: &MemberReport) -> &'static str {
    match member {
        it if it.leads => "leads",
        it if it.needs_snapshot => "gets a copy",
        it if it.votes => "follows",
        _ => "learning",
    }
}

fn or_dash(number: Option<u64>) -> String {
    number.map_or("–".into(), words::count)
}

fn members(report: &Report, live: &Live) -> Markup {
    let head = html! {
        th scope="col" { "Member" }
        @for name in ["Others reach it at", "Clients reach it at", "State", "Connected"] {
            th scope="col" { (name) }
        }
        @for name in ["Entries behind", "Last heard of"] {
            th scope="col" class="number" { (name) }
        }
    };
    let text = |member: &MemberReport, what: &str, text: String| {
        live.text(&format!("member-{}-{what}", member.id), text)
    };
    let rows = html! {
        @for it in &report.members {
            @let heard = it.heard_ms.filter(|_| !it.is_this);
            @let heard = heard.map_or("–".into(), |ms| format!("{:.1} s ago", ms as f64 / 1000.0));
            @let connected = if it.is_connected { "yes" } else { "no" };
            tr {
                th scope="row" {
                    (it.id) @if it.is_this { " " span class="mark" { "this server" } }
                }
                td { (it.peer) }
                td { @if it.client.is_empty() { "–" } @else { (it.client) } }
                td { (text(it, "state", state_of(it).into())) }
                td { (text(it, "connected", connected.into())) }
                td class="number" { (text(it, "lag", or_dash(it.lag))) }
                td class="number" { (text(it, "heard", heard)) }
            }
        }
    };
    html! {
        (table("Members", &head, &rows))
        p { small {
            "Only the leader knows how far the others are behind. "
            code { "bsd-ctl cluster" } " adds and removes members, and transfers leadership."
        } }
    }
}

fn numbers(report: &Report, live: &Live) -> Markup {
    let count = |id: &str, number: u64| live.text(id, words::count(number));
    let leader = report.leader.as_ref().map_or("–", |leader| &leader.id);
    let changing = if report.is_changing { "yes" } else { "no" };
    html! {
        section aria-labelledby="entries" {
            h2 id="entries" { "What is agreed" }
            (facts(&[
                ("Cluster", html! { (report.cluster) }),
                ("Leader", live.text("leader", leader)),
                ("Term", count("term", report.term)),
                ("Last entry on a majority", count("committed", report.committed)),
                ("Last entry applied here", count("applied", report.applied)),
                ("Last entry here", count("last-entry", report.last)),
                ("First entry kept", count("first-entry", report.first)),
                ("Ledger", live.text("ledger-bytes", words::bytes(report.ledger_bytes))),
                ("Clients passed on", count("forwarded", report.forwarded)),
                ("A change is under way", live.text("changing", changing)),
                ("Messages refused", count("refused-messages", report.refused)),
            ]))
        }
    }
}
