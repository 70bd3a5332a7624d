//! From a request to an answer.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderName, HeaderValue, LINK};
use hyper::{Request, StatusCode};
use tokio::time::{sleep, timeout};
use tracing::info;

use super::answer::{Answer, Problem, Said, WrongToken, json};
use super::api::fields::{Fields, check_kind};
use super::api::{
    archive, checks, clear, clients, drain, events, history, jobs, log, look, policies, ranking,
    schedules, search, standby, tasks, trouble, why,
};
use super::body::{self, Limit};
use super::caller::Caller;
use super::cluster::Lead;
use super::console::View;
use super::guard::Asker;
use super::places::{CONNECTIONS_MAX, REQUEST_TIME, Watch};
use super::query::{Query, decode};
use super::relay::{self, Complete, Passed};
use super::route::{Action, Page, Role, Route, Shape};
use super::routes::{Found, find};
use super::{Membership, State, cluster, console, health, metrics, openapi};
use bsd::clock::utc;

/// Role of a member of a cluster.
const ROLE: HeaderName = HeaderName::from_static("bsd-role");
/// When what a member that follows shows was what the leader had.
const AS_OF: HeaderName = HeaderName::from_static("bsd-as-of");

/// The target of the lines that say who changed what.
pub(super) const AUDIT: &str = "bsd::audit";

/// Answer a request, whatever it is.
pub(super) async fn answer(
    request: Request<Incoming>,
    caller: &Caller,
    state: &Arc<State>,
    watch: &Arc<Watch>,
) -> Answer {
    let browser = console::Browser::of(&request);
    let answered = match timeout(REQUEST_TIME, serve(request, caller, state, watch)).await {
        Ok(answered) => answered,
        Err(_) => Err(Problem::unavailable(format!(
            "it took more than {} seconds",
            REQUEST_TIME.as_secs()
        ))),
    };
    let is_guess = match &answered {
        Ok(answer) => answer.extensions().get::<WrongToken>().is_some(),
        Err(problem) => problem.is_guess,
    };
    if is_guess {
        put_off(caller, state, watch).await;
    }
    let mut answer = answered.unwrap_or_else(|problem| match browser {
        Some(browser) => browser.show(&problem),
        None => problem.answer(),
    });
    if watch.is_for_probes() {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    answer
}

/// A wrong token was sent. Its answer is delayed, and its connection gives way to others meanwhile.
async fn put_off(caller: &Caller, state: &State, watch: &Watch) {
    watch.begin();
    let now = state.handles.clock.now().mono;
    let due = state.access.guesses.note(caller.address(), now);
    let wait = u64::try_from(due.since(now)).unwrap_or_default();
    sleep(Duration::from_nanos(wait)).await;
}

async fn serve(
    request: Request<Incoming>,
    caller: &Caller,
    state: &Arc<State>,
    watch: &Arc<Watch>,
) -> Result<Answer, Problem> {
    state.access.check_host(request.headers())?;
    let route = route(&request)?;
    if watch.is_for_probes() && !route.is_probe() {
        return Err(Problem::unavailable(format!(
            "all {CONNECTIONS_MAX} places for HTTP connections are at work; try again"
        )));
    }
    let asker = state.access.check(route, request.headers())?;
    let line = (route.role == Role::Admin || route.is_form())
        .then(|| format!("{} {}", request.method(), request.uri().path()));
    let is_of_api = request.uri().path().starts_with("/api/");
    let mut answered = act(route, request, asker, state, watch).await;
    if let Ok(answer) = answered.as_mut()
        && is_of_api
        && let Some(membership) = cluster::membership(&state.handles)
    {
        mark(answer, &membership, state.handles.clock.now().wall_ns);
    }
    let (status, said) = match &answered {
        Ok(answer) => (answer.status(), answer.extensions().get::<Said>()),
        Err(problem) => (problem.status, None),
    };
    // What anyone may ask for fills no log: something must have come of it.
    let is_told = route.role != Role::Anyone || said.is_some();
    if let Some(line) = line.filter(|_| is_told) {
        let said = said
            .map(|said| said.0.trim())
            .filter(|said| !said.is_empty());
        let (status, said) = (status.as_u16(), said.map(|said| format!(": {said}")));
        let said = said.unwrap_or_default();
        info!(target: AUDIT, "audit: {caller}, {asker}: {line}: {status}{said}");
    }
    answered
}

/// A member of a cluster names its role in each answer of the API. A follower shows its own copy:
/// its time, and where the leader is.
fn mark(answer: &mut Answer, membership: &Membership, wall_ns: u64) {
    let headers = answer.headers_mut();
    headers.insert(ROLE, HeaderValue::from_static(membership.role));
    if let Some(as_of) = membership.as_of {
        let ago = u64::try_from(as_of.as_nanos()).unwrap_or(u64::MAX);
        let at = utc(wall_ns.saturating_sub(ago));
        headers.extend(HeaderValue::try_from(at).ok().map(|at| (AS_OF, at)));
    }
    if let Some(http) = &membership.leader_http {
        let there = HeaderValue::try_from(format!("<{http}>; rel=\"leader\""));
        headers.extend(there.ok().map(|there| (LINK, there)));
    }
}

fn route(request: &Request<Incoming>) -> Result<&'static Route, Problem> {
    match find(request.method(), request.uri().path()) {
        Found::Route(route) => Ok(route),
        Found::Methods(methods) => Err(Problem {
            allow: Some(methods.join(", ")),
            ..Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "this path has other methods",
            )
        }),
        Found::Nothing => Err(Problem::new(StatusCode::NOT_FOUND, "there is no such path")),
    }
}

async fn act(
    route: &'static Route,
    request: Request<Incoming>,
    asker: Asker,
    state: &Arc<State>,
    watch: &Arc<Watch>,
) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let (query, is_own_view) = match route.shape {
        Shape::Page => relay::own_view(head.uri.query()),
        _ => (head.uri.query().map(ToOwned::to_owned), false),
    };
    let query = match route.shape {
        // Addresses of pages are made by forms.
        Shape::Page => Query::of_form(query.as_deref(), route.parameters)?,
        _ => Query::parse(query.as_deref(), route.parameters)?,
    };
    let path = head.uri.path();
    let captured = decode(route.captured(path).unwrap_or_default())?;
    let held = state.places.hold(watch);
    let (mut fields, mut form) = (Fields::default(), Vec::new());
    if route.takes.is_some() {
        check_kind(&head.headers)?;
        let sent = body::read(&head.headers, body, Limit::of(route), &held).await?;
        fields = Fields::parse(&sent)?;
    } else if route.is_form() {
        form = body::read(&head.headers, body, Limit::of(route), &held).await?;
    }
    watch.work();
    let mut view = match is_own_view {
        true => View::Own,
        false => View::Any,
    };
    if let Action::Console(page) = route.action
        && page.is_of_cluster()
        && !is_own_view
        && !(route.is_form() && console::is_own_form(state, page, &form))
    {
        let complete = Complete {
            head: &head,
            body: &form,
            asker,
        };
        match relay::pass_on(state, &complete).await? {
            Passed::Answered(answer) => return Ok(answer),
            Passed::Here(why) => view = why.map_or(View::Any, View::Instead),
        }
        if page == Page::Events && cluster::lead(&state.handles) != Lead::Here {
            return Err(Problem::unavailable(
                "the page came from the leader, which does not answer now",
            ));
        }
    }
    let (doorway, handles) = (&state.doorway, &state.handles);
    if route.action.is_of_leader() {
        cluster::check_leads(handles)?;
    }
    match route.action {
        Action::Health => Ok(health::health(handles)),
        Action::Readiness => Ok(health::readiness(state).await),
        Action::Metrics => metrics::metrics(state, &head.headers).await,
        Action::Description => Ok(json(StatusCode::OK, &openapi::document())),
        Action::Server => look::server(state).await,
        Action::Trouble => trouble::trouble(state, &query).await,
        Action::Ranking => ranking::ranking(state, &query).await,
        Action::Why => why::why(state, captured).await,
        Action::Tubes => look::tubes(doorway, &query).await,
        Action::Tube => look::tube(doorway, captured).await,
        Action::Jobs => look::jobs(doorway, captured, &query).await,
        Action::Job => look::job(doorway, &captured).await,
        Action::History => history::history(state, &captured, asker).await,
        Action::CancelHistory => history::cancel(state, &captured, asker),
        Action::Log => log::log(state).await,
        Action::Clients => clients::clients(doorway, &query).await,
        Action::Client => clients::client(doorway, &captured).await,
        Action::CloseClient => clients::close(doorway, &captured, query.text("address")).await,
        Action::Policies => policies::list(doorway, &query).await,
        Action::Policy => policies::show(doorway, captured).await,
        Action::SetPolicy => policies::set(doorway, captured, &fields).await,
        Action::RemovePolicy => policies::remove(doorway, captured).await,
        Action::Schedules => schedules::list(doorway, &query).await,
        Action::Schedule => schedules::show(doorway, captured).await,
        Action::SetSchedule => schedules::set(doorway, captured, &fields).await,
        Action::DeleteSchedule => schedules::delete(doorway, captured).await,
        Action::RunSchedule => schedules::run_now(doorway, captured, &fields).await,
        Action::PauseSchedule => {
            schedules::set_paused(doorway, captured, route.last() == "pause", &fields).await
        }
        Action::Put => jobs::put(doorway, captured, &fields).await,
        Action::Delete => jobs::change(doorway, &captured, "delete", &fields).await,
        Action::Change => jobs::change(doorway, &captured, route.last(), &fields).await,
        Action::Release => jobs::release(doorway, &captured, &fields).await,
        Action::Pause => jobs::pause(doorway, captured, &fields).await,
        Action::PauseMany => jobs::pause_many(doorway, &fields).await,
        Action::Tasks => Ok(state.tasks.list()),
        Action::Task => state.tasks.show(&captured),
        Action::StartTask => tasks::start(doorway, &state.tasks, &fields, asker),
        Action::CancelTask => state.tasks.cancel(&captured, asker),
        Action::UndoTask => {
            fields.only(&[])?;
            state.tasks.undo(&captured, asker)
        }
        Action::Search => search::start(doorway, &state.searches, &fields, asker),
        Action::Searches => Ok(state.searches.list()),
        Action::Found => state.searches.show(&captured),
        Action::CancelSearch => state.searches.cancel(&captured, asker),
        Action::Clear => clear::clear(doorway, captured, &fields).await,
        Action::Redrive => tasks::redrive(doorway, &state.tasks, captured, &fields, asker),
        Action::Events => events::events(doorway, &state.streams, &query).await,
        Action::Drain => drain::drain(doorway, &fields, true).await,
        Action::Undrain => drain::drain(doorway, &fields, false).await,
        Action::NoteCheck => checks::note(handles, &state.checks, &fields),
        Action::Standby => standby::show(state),
        Action::Promote => standby::promote(state, &fields),
        Action::ArchiveBase => archive::show(state),
        Action::MakeBase => archive::ask(state, &fields),
        Action::Leader => cluster::leader(state),
        Action::Cluster => cluster::show(handles),
        Action::Steer => cluster::steer(handles, route.last(), &fields).await,
        Action::Console(page) => {
            let asked = console::Asked {
                asker,
                captured,
                query,
                headers: head.headers,
                body: form,
                view,
            };
            let why = asked.view.why().map(ToOwned::to_owned);
            let answered = console::answer(page, asked, state).await;
            answered.map_err(|problem| match why {
                // Not all that the leader shows is in a copy.
                Some(why) if problem.status == StatusCode::SERVICE_UNAVAILABLE => Problem {
                    detail: format!("{}; {why}", problem.detail),
                    ..problem
                },
                _ => problem,
            })
        }
    }
}
