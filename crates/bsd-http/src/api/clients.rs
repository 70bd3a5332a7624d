//! Connected clients: address, used and watched tubes, reserved jobs, and unread replies; and the
//! end of a connection. Sessions of the server's own threads are not among them.

use hyper::StatusCode;
use serde_json::{Value, json};

use super::look::{LIMIT_DEFAULT, job_value};
use super::{LIMIT_MAX, bad, gone, not_found, of_error, run};
use crate::answer::{Answer, Problem, Said, json};
use crate::doorway::Doorway;
use crate::query::Query;
use crate::snapshot::LOOK_AFTER;
use bsd::door::{JobError, Slice, Step, Work};
use bsd::engine::Link;
use bsd::queue::ClientView;
use bsd::types::ClientId;

/// `GET /api/v1/clients`
pub(crate) async fn clients(doorway: &Doorway, query: &Query) -> Result<Answer, Problem> {
    let limit = query.number("limit", 1, LIMIT_MAX as u64)?;
    let after = query.number("after", 0, u32::MAX.into())?;
    let listing = Listing {
        next: after.map_or(0, |after| (after as u32).saturating_add(1)),
        limit: limit.map_or(LIMIT_DEFAULT, |limit| limit as usize),
        found: Vec::new(),
        last: None,
    };
    let listing = run(doorway, listing).await?;
    let value = json!({"clients": listing.found, "next": listing.last});
    Ok(json(StatusCode::OK, &value))
}

/// `GET /api/v1/clients/{client}`
pub(crate) async fn client(doorway: &Doorway, id: &str) -> Result<Answer, Problem> {
    let id = client_id(id)?;
    match run(doorway, Look { id, found: None }).await?.found {
        Some(Some(value)) => Ok(json(StatusCode::OK, &value)),
        Some(None) => Err(not_found("no such client is connected")),
        None => Err(gone()),
    }
}

/// `DELETE /api/v1/clients/{client}`: close its connection, if it is still the same client. Its id
/// may belong by now to another one, from another address.
pub(crate) async fn close(
    doorway: &Doorway,
    id: &str,
    address: Option<&str>,
) -> Result<Answer, Problem> {
    let id = client_id(id)?;
    let closing = Closing {
        id,
        address: address.map(str::to_owned),
        closed: None,
    };
    match run(doorway, closing).await?.closed.ok_or_else(gone)? {
        Ok(Some(peer)) => Ok(Said(peer).with(json(StatusCode::OK, &json!({"id": id.0})))),
        Ok(None) => Err(not_found("no such client is connected, or not from there")),
        Err(error) => Err(of_error(&error)),
    }
}

struct Closing {
    id: ClientId,
    address: Option<String>,
    /// Where it was connected from.
    closed: Option<Result<Option<String>, JobError>>,
}

impl Work for Closing {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let link = slice.link(self.id);
        let peer = link.map(|link| link.peer.map(|peer| peer.to_string()));
        let is_meant = |peer: &Option<String>| self.address.is_none() || *peer == self.address;
        self.closed = Some(match peer.filter(is_meant) {
            None => Ok(None),
            Some(peer) => {
                let said = peer.unwrap_or_else(|| "a socket of this machine".to_owned());
                slice
                    .close(self.id)
                    .map(|is_closed| is_closed.then_some(said))
            }
        });
        Step::Done
    }
}

fn client_id(text: &str) -> Result<ClientId, Problem> {
    let id = text.parse().map(ClientId);
    id.map_err(|_| bad("a client's id is a number"))
}

/// A page of clients, by their ids.
struct Listing {
    next: u32,
    limit: usize,
    found: Vec<Value>,
    /// The last one of a page that is full.
    last: Option<String>,
}

impl Work for Listing {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        for looks in 1.. {
            if self.next >= slice.engine().queue().clients_bound() {
                return Step::Done;
            }
            let id = ClientId(self.next);
            self.next += 1;
            self.found.extend(shown(id, slice));
            if self.found.len() == self.limit {
                self.last = Some(id.0.to_string());
                return Step::Done;
            }
            if looks % LOOK_AFTER == 0 && slice.is_over() {
                break;
            }
        }
        Step::More
    }
}

struct Look {
    id: ClientId,
    found: Option<Option<Value>>,
}

impl Work for Look {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let mut found = shown(self.id, slice);
        if let Some(value) = &mut found {
            let queue = slice.engine().queue();
            let watched = queue.watched(self.id).take(LIMIT_MAX);
            value["watches"] = watched.collect();
            value["reserved"] = reserved(self.id, slice);
        }
        self.found = Some(found);
        Step::Done
    }
}

fn shown(id: ClientId, slice: &Slice<'_>) -> Option<Value> {
    let view = slice.engine().queue().client_view(id)?;
    let link = slice.link(id)?;
    Some(client_value(id, &view, link))
}

/// Jobs that a client has reserved, those first whose time is up first.
fn reserved(id: ClientId, slice: &Slice<'_>) -> Value {
    let queue = slice.engine().queue();
    let first = queue.client_view(id).and_then(|view| view.first_reserved);
    let marks = std::iter::successors(first, |mark| queue.reserved_behind(id, *mark));
    let jobs = marks.take(LIMIT_MAX).filter_map(|mark| queue.job(mark.id));
    jobs.map(|job| job_value(queue, &job, slice.now()))
        .collect()
}

fn client_value(id: ClientId, client: &ClientView<'_>, link: Link) -> Value {
    json!({
        "id": id.0,
        "address": link.peer.map(|peer| peer.to_string()),
        "name": link.name.as_deref(),
        "unread_bytes": link.unread,
        "uses": client.used,
        "watched_tubes": client.watched,
        "has_reserved": client.first_reserved.is_some(),
        "waits": client.is_waiting,
        "producer": client.is_producer,
        "worker": client.is_worker,
    })
}
