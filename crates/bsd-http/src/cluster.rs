//! The cluster that this server is a member of: its leader, its members and their progress, and
//! changes of it.
//!
//! Nothing here asks the engine. The report of the loop is a tenth of a second old at most. The
//! loop answers requests, and they are waited for without holding up others.

use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::answer::{Answer, Problem, Said, json};
use super::api::fields::{Fields, needed};
use super::exposition::{Kind, Page};
use super::{Membership, ServerHandles, State};
use bsd::SetupError;
use bsd_cluster::member::NodeId;
use bsd_net::{
    Ask, ClusterDesk, MemberReport, MemberStanding as Standing, Report, Stage, Unarchived,
};

/// Where the cluster is seen and asked.
pub type Desk = ClusterDesk;

/// Time for the loop to answer a request.
const ASK_TIME: Duration = Duration::from_secs(10);
/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Digits of a member's id.
const ID_SIZE: usize = 16;

/// The server is, or waits to be, a member of a cluster.
pub(super) fn check_there(handles: &ServerHandles) -> Result<(), Problem> {
    desk(handles).map(|_| ())
}

/// This member's view of the cluster.
pub(super) fn report(handles: &ServerHandles) -> Result<Report, Problem> {
    Ok(desk(handles)?.report())
}

/// `None`: the server was started to serve alone.
pub(super) fn membership(handles: &ServerHandles) -> Option<Membership> {
    Some(membership_of(&handles.cluster.as_ref()?.report()))
}

fn membership_of(report: &Report) -> Membership {
    let voters = report.members.iter().filter(|member| member.votes);
    let follows = report.standing == Standing::Follows;
    let leader = report.leader.as_ref().filter(|_| follows);
    let heard = report.members.iter().find(|member| member.leads);
    let heard = heard.and_then(|leader| leader.heard_ms);
    Membership {
        role: report.standing.word(),
        id: report.node.clone(),
        is_member: !matches!(report.standing, Standing::Waiting | Standing::Removed),
        voters: voters.count(),
        lacks: report.ledger_lacks,
        leader_http: leader.and_then(|leader| link(&leader.http)),
        as_of: heard
            .filter(|_| follows && report.applied >= report.committed)
            .map(Duration::from_millis),
    }
}

/// An address of HTTP that another member has told, if it is nothing else.
fn link(told: &str) -> Option<String> {
    let address = ["http://", "https://"]
        .iter()
        .find_map(|scheme| told.strip_prefix(scheme))?;
    address.parse::<SocketAddr>().ok()?;
    Some(told.to_owned())
}

/// Who leads, for a request that the leader is to answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// This server, or it is in no cluster.
    Here,
    /// This server does not, and knows no one who does.
    NoOne,
    /// Another member, and where HTTP reaches it is not known.
    Somewhere,
    /// Another member.
    At(Leader),
}

/// Another member that leads, and is reached over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leader {
    /// `http://ADDR` or `https://ADDR`.
    pub(super) http: String,
    pub(super) address: SocketAddr,
    pub(super) has_tls: bool,
    /// Where its peers reach it: a member's certificate is for that.
    pub(super) host: Option<IpAddr>,
    /// The id of this server.
    pub(super) asked_by: String,
}

impl Leader {
    /// It is on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.address.ip().is_loopback()
    }
}

/// Who leads.
pub(super) fn lead(handles: &ServerHandles) -> Lead {
    match &handles.cluster {
        None => Lead::Here,
        Some(desk) => lead_of(&desk.report()),
    }
}

fn lead_of(report: &Report) -> Lead {
    match report.standing {
        Standing::Leads => return Lead::Here,
        Standing::Follows => {}
        _ => return Lead::NoOne,
    }
    let address = leader_http(report).and_then(|http| {
        let (scheme, address) = http.split_once("://")?;
        Some((scheme == "https", address.parse().ok()?, http))
    });
    let Some((has_tls, address, http)) = address else {
        return Lead::Somewhere;
    };
    let mut members = report.members.iter();
    let peer = members.find(|it| it.leads).map(|it| &it.peer);
    let host = peer.and_then(|peer| peer.parse::<SocketAddr>().ok());
    Lead::At(Leader {
        address,
        has_tls,
        host: host.map(|host| host.ip()),
        asked_by: report.node.clone(),
        http,
    })
}

fn desk(handles: &ServerHandles) -> Result<&Desk, Problem> {
    let desk = handles.cluster.as_ref();
    desk.ok_or_else(|| {
        Problem::new(
            StatusCode::NOT_FOUND,
            "this server is no member of a cluster: it was not started with --cluster",
        )
    })
}

/// `GET /api/v1/cluster`
pub(super) fn show(handles: &ServerHandles) -> Result<Answer, Problem> {
    Ok(json(StatusCode::OK, &value(&report(handles)?)))
}

fn value(report: &Report) -> Value {
    let leader = report
        .leader
        .as_ref()
        .map(|it| json!({"id": it.id, "client": known(&it.client), "http": known(&it.http)}));
    json!({
        "cluster": known(&report.cluster),
        "member": report.node,
        "standing": report.standing.word(),
        "leader": leader,
        "term": report.term,
        "committed": report.committed,
        "applied": report.applied,
        "first": report.first,
        "last": report.last,
        "ledger_bytes": report.ledger_bytes,
        "changing": report.is_changing,
        "joining": report.is_joining,
        "trouble": report.trouble,
        "refused_messages": report.refused,
        "forwarded_clients": report.forwarded,
        "members": report.members.iter().map(of_member).collect::<Vec<_>>(),
    })
}

fn of_member(member: &MemberReport) -> Value {
    json!({
        "id": member.id.to_string(),
        "peer": member.peer,
        "client": known(&member.client),
        "http": known(&member.http),
        "clock_ahead_seconds": member.clock_ahead_ns.map(seconds_of),
        "votes": member.votes,
        "leads": member.leads,
        "this": member.is_this,
        "connected": member.is_connected,
        "matched": member.matched,
        "lag": member.lag,
        "needs_snapshot": member.needs_snapshot,
        "heard_seconds": member.heard_ms.map(|ms| ms as f64 / 1000.0),
    })
}

fn seconds_of(ns: i64) -> f64 {
    (ns / 1_000_000) as f64 / 1000.0
}

/// No one knows an empty text.
fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// Where clients reach the leader, as far as that is known.
fn leader_of(report: &Report) -> Option<&str> {
    report.leader.as_ref().and_then(|it| known(&it.client))
}

/// Where HTTP reaches the leader, as far as that is known.
fn leader_http(report: &Report) -> Option<String> {
    report.leader.as_ref().and_then(|it| link(&it.http))
}

/// The member that leads, and so writes the archive; `None`: no one is known to lead, or the server is no
/// member.
pub(super) fn archives(handles: &ServerHandles) -> Option<String> {
    let report = handles.cluster.as_ref()?.report();
    match report.standing {
        Standing::Leads => Some(report.node),
        _ => report.leader.map(|leader| leader.id),
    }
}

/// Why nothing is archived although another member has an archive, if that is so.
pub(super) fn unarchived(handles: &ServerHandles) -> Option<String> {
    Some(words_of(handles.cluster.as_ref()?.report().unarchived?))
}

/// The same in words.
pub(super) fn words_of(Unarchived { leader, other }: Unarchived) -> String {
    format!(
        "nothing is archived: member {leader} leads, and was started without --archive, which member \
         {other} has"
    )
}

/// `GET /leader`: 200 where this member leads, 503 elsewhere. A report that is not made again any more
/// says nothing: another member may lead since.
pub(super) fn leader(state: &State) -> Result<Answer, Problem> {
    let report = report(&state.handles)?;
    let is_running = state.handles.pulse.stage() == Stage::Running && !state.is_stuck();
    let leads = report.standing == Standing::Leads && is_running;
    let status = match leads {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let value = json!({
        "leads": leads,
        "leader": leader_of(&report),
        "http": leader_http(&report),
    });
    Ok(json(status, &value))
}

/// Jobs are changed by the leader alone.
pub(super) fn check_leads(handles: &ServerHandles) -> Result<(), Problem> {
    let Some(desk) = &handles.cluster else {
        return Ok(());
    };
    let report = desk.report();
    if report.standing == Standing::Leads {
        return Ok(());
    }
    Err(Problem::unavailable(match leader_of(&report) {
        Some(client) if report.standing == Standing::Follows => {
            let there = leader_http(&report);
            let there = there.map_or("ask that one".to_owned(), |http| format!("ask {http}"));
            format!(
                "this server follows another member of its cluster, and jobs are changed by the \
                 leader alone: {there}; clients of the leader connect to {client}"
            )
        }
        _ => why_unready(&report).unwrap_or_else(|| "no member of the cluster leads".to_owned()),
    }))
}

/// Why clients of this member are not served, if they are not.
pub(super) fn why_not_ready(handles: &ServerHandles) -> Option<String> {
    why_unready(&handles.cluster.as_ref()?.report())
}

fn why_unready(report: &Report) -> Option<String> {
    if let Some(class) = report.ledger_lacks {
        let (lack, relief) = (class.lack(), class.relief());
        return Some(format!(
            "{lack}: this member agrees to nothing until there is room; {relief}"
        ));
    }
    let why = match report.standing {
        Standing::Leads => return None,
        Standing::Follows if leader_of(report).is_some() => return None,
        Standing::Follows => "it is not known yet where clients reach the leader",
        Standing::Alone if report.trouble.is_some() => return report.trouble.clone(),
        Standing::Alone => "no member of the cluster is known to lead: clients wait",
        Standing::Waiting if report.is_joining => "it asks to be added to a cluster",
        Standing::Waiting => {
            "it is no member of a cluster yet: begin one with `bsd-ctl cluster init`, or join one \
             with `bsd-ctl cluster add ADDR`"
        }
        Standing::Removed => "it was removed from its cluster",
    };
    Some(why.to_owned())
}

/// `POST /api/v1/cluster/…`: the change that `word` names. The answer means that it was begun; the
/// report shows when it is done.
pub(super) async fn steer(
    handles: &ServerHandles,
    word: &str,
    fields: &Fields,
) -> Result<Answer, Problem> {
    let desk = desk(handles)?;
    let ask = parse(word, fields)?;
    let said = wait(desk.ask(ask)).await?;
    let said = said.map_err(|why| Problem::new(StatusCode::CONFLICT, why.to_string()))?;
    let answer = json(StatusCode::ACCEPTED, &json!({"answer": said}));
    Ok(Said(said).with(answer))
}

fn parse(word: &str, fields: &Fields) -> Result<Ask, Problem> {
    let bad = |detail: &str| Problem::new(StatusCode::BAD_REQUEST, detail);
    let member = || {
        fields.only(&["member"])?;
        let text = needed("member", fields.text("member")?)?;
        let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(text, 16) {
            Ok(id) if is_hex && text.len() == ID_SIZE => Ok(NodeId(id)),
            _ => Err(bad("member is the id of a member: 16 hexadecimal digits")),
        }
    };
    match word {
        "init" => fields.only(&[]).map(|()| Ask::Init),
        "join" => {
            fields.only(&["address"])?;
            let address = needed("address", fields.text("address")?)?.parse();
            let wrong = "address is where the other members reach one of them: IP:PORT";
            address.map(Ask::Join).map_err(|_| bad(wrong))
        }
        "remove" => member().map(Ask::Remove),
        "transfer" => member().map(Ask::Transfer),
        _ => Err(bad("there is nothing of that name to be asked")),
    }
}

/// The loop's answer. The channel is one of threads, so it is looked at again and again; that holds
/// up no one.
async fn wait(
    answer: Receiver<Result<String, SetupError>>,
) -> Result<Result<String, SetupError>, Problem> {
    let begun = Instant::now();
    loop {
        match answer.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Disconnected) => {
                return Err(Problem::unavailable("the server is stopping"));
            }
            Err(TryRecvError::Empty) if begun.elapsed() >= ASK_TIME => {
                return Err(Problem::unavailable(format!(
                    "the loop has not answered for {} seconds, and may do it yet: look at \
                     /api/v1/cluster",
                    ASK_TIME.as_secs()
                )));
            }
            Err(TryRecvError::Empty) => sleep(LOOK_EVERY).await,
        }
    }
}

/// Roles of a member.
const ROLES: [Standing; 4] = [
    Standing::Leads,
    Standing::Follows,
    Standing::Alone,
    Standing::Removed,
];

/// Of a server that is no member yet there is nothing.
pub(super) fn write_metrics(page: &mut Page, handles: &ServerHandles) {
    let report = handles.cluster.as_ref().map(Desk::report);
    if let Some(report) = report.filter(|report| report.standing != Standing::Waiting) {
        write_report(page, &report);
    }
}

pub(super) fn write_report(page: &mut Page, report: &Report) {
    use Kind::{Counter, Gauge};
    let count = |is: fn(&MemberReport) -> bool| {
        let members = report.members.iter();
        members.filter(|member| is(member)).count() as u64
    };
    let gauges = [
        (
            "bsd_cluster_is_leader",
            "1: this member leads.",
            (report.standing == Standing::Leads).into(),
        ),
        (
            "bsd_cluster_has_leader",
            "1: this member leads, or follows one that does; 0: clients wait here.",
            matches!(report.standing, Standing::Leads | Standing::Follows).into(),
        ),
        (
            "bsd_cluster_term",
            "How often a leader was sought.",
            report.term,
        ),
        (
            "bsd_cluster_committed_entry",
            "The last entry that is known to be on a majority.",
            report.committed,
        ),
        (
            "bsd_cluster_applied_entry",
            "The last entry whose changes are in the queue here.",
            report.applied,
        ),
        (
            "bsd_cluster_last_entry",
            "The last entry of the ledger here.",
            report.last,
        ),
        (
            "bsd_cluster_ledger_bytes",
            "Bytes of the ledger on the disk.",
            report.ledger_bytes,
        ),
        (
            "bsd_cluster_ledger_full",
            "1: the ledger has no room, and this member agrees to nothing.",
            report.ledger_lacks.is_some().into(),
        ),
        (
            "bsd_cluster_members",
            "Members, this one included.",
            count(|_| true),
        ),
        (
            "bsd_cluster_voters",
            "Members that vote.",
            count(|it| it.votes),
        ),
        (
            "bsd_cluster_connected_members",
            "Members that this one is connected to, itself included.",
            count(|it| it.is_connected),
        ),
        (
            "bsd_cluster_changing",
            "1: a member is being added or removed.",
            report.is_changing.into(),
        ),
        (
            "bsd_cluster_unarchived",
            "1: nothing is archived: the member that leads was started without an archive.",
            report.unarchived.is_some().into(),
        ),
        (
            "bsd_cluster_forwarded_clients",
            "Clients that are passed on to the leader, or wait for one.",
            report.forwarded,
        ),
    ];
    page.singles(Gauge, gauges);
    let roles = "What this member is: 1 for that role, 0 for the others.";
    page.family("bsd_cluster_role", Gauge, roles);
    for role in ROLES {
        let is = u64::from(report.standing == role);
        page.sample("bsd_cluster_role", &[("role", role.word())], is);
    }
    let help = "Messages of other members that were refused.";
    page.single(
        "bsd_cluster_refused_messages",
        Counter,
        help,
        report.refused,
    );
    let mut each = |name, help, value: fn(&MemberReport) -> Option<u64>| {
        page.family(name, Gauge, help);
        for member in &report.members {
            if let Some(value) = value(member) {
                let labels = [("member", &*member.id.to_string()), ("peer", &*member.peer)];
                page.sample(name, &labels, value);
            }
        }
    };
    each(
        "bsd_cluster_member_connected",
        "1: this member is connected to that one.",
        |it| Some(it.is_connected.into()),
    );
    // What only the leader knows has no sample elsewhere.
    each(
        "bsd_cluster_member_lag_entries",
        "Entries that this member does not have, as the leader knows.",
        |it| it.lag,
    );
    each(
        "bsd_cluster_member_needs_copy",
        "1: this member is so far behind that it gets a copy of the whole log.",
        |it| it.lag.map(|_| it.needs_snapshot.into()),
    );
    let name = "bsd_cluster_member_clock_ahead_seconds";
    let help = "By how much that member's clock is at least ahead of the one here, when it was \
                connected to last; below 0: behind.";
    page.family(name, Gauge, help);
    for member in &report.members {
        if let Some(ns) = member.clock_ahead_ns {
            let labels = [("member", &*member.id.to_string()), ("peer", &*member.peer)];
            page.sample(name, &labels, seconds_of(ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::exposition::Format;
    use crate::tests::{closed, paused};
    use crate::{LEADER, openapi};
    use bsd::ErrorClass;
    use bsd_net::LeaderReport;

    const ALL: [Standing; 5] = [
        Standing::Waiting,
        Standing::Follows,
        Standing::Alone,
        Standing::Leads,
        Standing::Removed,
    ];

    fn parsed(word: &str, body: &str) -> Result<Ask, StatusCode> {
        let fields = Fields::parse(body.as_bytes()).unwrap();
        parse(word, &fields).map_err(|problem| problem.status)
    }

    #[test]
    fn the_description_has_the_words_of_all_standings() {
        assert_eq!(ALL.map(Standing::word), openapi::STANDINGS);
    }

    #[test]
    fn g12_a_follower_says_as_of_when_it_is_and_where_the_leader_is() {
        let leader = |http: &str| LeaderReport {
            http: http.to_owned(),
            ..LeaderReport::default()
        };
        let heard = MemberReport {
            id: NodeId(1),
            peer: String::new(),
            client: String::new(),
            http: String::new(),
            clock_ahead_ns: None,
            votes: true,
            leads: true,
            is_this: false,
            is_connected: true,
            matched: None,
            lag: None,
            needs_snapshot: false,
            heard_ms: Some(150),
        };
        let follower = Report {
            standing: Standing::Follows,
            leader: Some(leader("http://10.0.0.1:11380")),
            committed: 7,
            applied: 7,
            members: vec![heard],
            ..Report::default()
        };
        let it = membership_of(&follower);
        assert_eq!((it.role, it.is_behind()), ("follower", true));
        assert_eq!(it.as_of, Some(Duration::from_millis(150)));
        assert_eq!(it.leader_http.as_deref(), Some("http://10.0.0.1:11380"));
        let late = Report {
            applied: 6,
            ..follower.clone()
        };
        assert_eq!(membership_of(&late).as_of, None, "it has not all of that");
        for told in [
            "",
            "10.0.0.1:1",
            "javascript:alert(1)",
            "http://evil/",
            "https://",
        ] {
            let report = Report {
                leader: Some(leader(told)),
                ..follower.clone()
            };
            assert_eq!(membership_of(&report).leader_http, None, "{told}");
        }
        let leads = Report {
            standing: Standing::Leads,
            ..follower
        };
        let it = membership_of(&leads);
        assert_eq!((it.role, it.is_behind()), (LEADER, false));
        assert_eq!((it.as_of, it.leader_http), (None, None));
        let waits = membership_of(&Report::default());
        assert!(!waits.is_member && !waits.is_behind());
    }

    #[test]
    fn g12_exactly_one_role_of_a_member_is_1() {
        for standing in ALL.into_iter().filter(|it| *it != Standing::Waiting) {
            let report = Report {
                standing,
                ..Report::default()
            };
            let mut page = Page::new(Format::OpenMetrics);
            write_report(&mut page, &report);
            let lines = page.text.lines();
            let ones: Vec<_> = lines
                .filter(|line| line.starts_with("bsd_cluster_role{") && line.ends_with(" 1"))
                .collect();
            let word = standing.word();
            assert_eq!(ones, [format!("bsd_cluster_role{{role=\"{word}\"}} 1")]);
        }
    }

    #[test]
    fn only_a_member_that_knows_where_the_leader_is_is_ready() {
        let report = |standing, leader: Option<&str>| Report {
            standing,
            leader: leader.map(|client| LeaderReport {
                id: "1".to_owned(),
                client: client.to_owned(),
                http: String::new(),
            }),
            ..Report::default()
        };
        for standing in ALL {
            let is_ready = [Standing::Leads, Standing::Follows].contains(&standing);
            let why = why_unready(&report(standing, Some("127.0.0.1:1")));
            assert_eq!(why.is_none(), is_ready, "{standing:?}: {why:?}");
        }
        assert!(why_unready(&report(Standing::Follows, Some(""))).is_some());
        let lacks = |class| {
            let report = Report {
                ledger_lacks: Some(class),
                ..report(Standing::Follows, Some("127.0.0.1:1"))
            };
            why_unready(&report).unwrap()
        };
        assert!(lacks(ErrorClass::Full).contains("the disk is full"));
        assert!(lacks(ErrorClass::Descriptors).contains("limit of open files"));
    }

    #[test]
    fn a_request_is_for_the_leader_that_another_member_knows_the_address_of() {
        let report = |standing, http: &str| Report {
            standing,
            node: "00000000000000ff".to_owned(),
            leader: Some(LeaderReport {
                id: "1".to_owned(),
                client: String::new(),
                http: http.to_owned(),
            }),
            ..Report::default()
        };
        let http = "https://10.0.0.1:80";
        assert_eq!(lead_of(&report(Standing::Leads, http)), Lead::Here);
        for standing in [Standing::Alone, Standing::Waiting, Standing::Removed] {
            assert_eq!(lead_of(&report(standing, http)), Lead::NoOne);
        }
        for unknown in ["", "10.0.0.1:80", "https://host:80", "ftp://10.0.0.1:80"] {
            assert_eq!(
                lead_of(&report(Standing::Follows, unknown)),
                Lead::Somewhere
            );
        }
        let leader = Leader {
            http: http.to_owned(),
            address: "10.0.0.1:80".parse().unwrap(),
            has_tls: true,
            host: None,
            asked_by: "00000000000000ff".to_owned(),
        };
        assert_eq!(lead_of(&report(Standing::Follows, http)), Lead::At(leader));
    }

    #[test]
    fn what_is_asked_is_a_whole_id_or_an_address() {
        let bad = Err(StatusCode::BAD_REQUEST);
        let id = r#"{"member":"00000000000000ff"}"#;
        assert_eq!(parsed("remove", id), Ok(Ask::Remove(NodeId(255))));
        assert_eq!(parsed("transfer", id), Ok(Ask::Transfer(NodeId(255))));
        for body in [
            r#"{"member":"ff"}"#,
            r#"{"member":"+0000000000000ff"}"#,
            r#"{"member":1}"#,
            r#"{"id":"00000000000000ff"}"#,
            "{}",
        ] {
            assert_eq!(parsed("remove", body), bad, "{body}");
        }
        let address = r#"{"address":"127.0.0.1:12301"}"#;
        let wanted = "127.0.0.1:12301".parse().unwrap();
        assert_eq!(parsed("join", address), Ok(Ask::Join(wanted)));
        assert_eq!(parsed("join", r#"{"address":"host:1"}"#), bad);
        assert_eq!(parsed("init", "{}"), Ok(Ask::Init));
        assert_eq!(parsed("init", id), bad);
    }

    #[test]
    fn a_loop_that_does_not_answer_is_waited_for_for_10_seconds_by_16_at_most() {
        paused(async {
            let mut state = closed();
            state.handles.cluster = Some(ClusterDesk::new(Arc::new(|| {})));
            let fields = Fields::default();
            for nth in 0..=16 {
                let begun = Instant::now();
                let refused = steer(&state.handles, "init", &fields).await.unwrap_err();
                let (status, seconds) = match nth {
                    16 => (StatusCode::CONFLICT, 0),
                    _ => (StatusCode::SERVICE_UNAVAILABLE, ASK_TIME.as_secs()),
                };
                assert_eq!(refused.status, status, "{nth}: {refused:?}");
                assert_eq!(begun.elapsed().as_secs(), seconds, "{nth}");
            }
        });
    }
}
