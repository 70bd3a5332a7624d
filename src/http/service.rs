//! From a request to an answer.

use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use tokio::time::timeout;
use tracing::info;

use super::answer::{Answer, Problem, json};
use super::connections::REQUEST_TIME;
use super::query::{Query, decode};
use super::routes::{Action, Found, Role, Route, find};
use super::{State, api, health, metrics, openapi};

/// The target of the lines that say who changed what.
pub(super) const AUDIT: &str = "bsd::audit";

/// Answer a request, whatever it is.
pub(super) async fn answer(request: Request<Incoming>, peer: SocketAddr, state: &State) -> Answer {
    let answered = match timeout(REQUEST_TIME, serve(request, peer, state)).await {
        Ok(answered) => answered,
        Err(_) => Err(Problem::unavailable(format!(
            "it took more than {} seconds",
            REQUEST_TIME.as_secs()
        ))),
    };
    answered.unwrap_or_else(|problem| problem.answer())
}

async fn serve(
    request: Request<Incoming>,
    peer: SocketAddr,
    state: &State,
) -> Result<Answer, Problem> {
    state.access.check_host(request.headers())?;
    let route = route(&request)?;
    let asker = state.access.check(route, request.headers())?;
    let line = (route.role == Role::Admin)
        .then(|| format!("{} {}", request.method(), request.uri().path()));
    let answered = act(route, request, state).await;
    if let Some(line) = line {
        let status = match &answered {
            Ok(answer) => answer.status(),
            Err(problem) => problem.status,
        };
        info!(target: AUDIT, "audit: {peer}, {asker}: {line}: {}", status.as_u16());
    }
    answered
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
    state: &State,
) -> Result<Answer, Problem> {
    let query = Query::parse(request.uri().query(), route.parameters)?;
    let path = request.uri().path();
    let captured = decode(route.captured(path).unwrap_or_default())?;
    match route.action {
        Action::Health => Ok(health::health(state)),
        Action::Readiness => Ok(health::readiness(state).await),
        Action::Metrics => metrics::metrics(state, request.headers()).await,
        Action::Description => Ok(json(StatusCode::OK, &openapi::document())),
        Action::Server => api::server(state).await,
        Action::Tubes => api::tubes(state, &query).await,
        Action::Tube => api::tube(state, captured).await,
        Action::Jobs => api::jobs(state, captured, &query).await,
        Action::Job => api::job(state, &captured).await,
    }
}
