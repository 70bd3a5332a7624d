//! How a browser hears of what changes: the page is written again each second, and the parts that
//! are new are sent.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use maud::Markup;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::{Instant, timeout};

use super::layout::STANDING;
use super::live::{Live, Said};
use super::subject::Subject;
use super::{PageView, cluster, durability, overview, past, search, tasks, tube, tubes, viewer};
use crate::State;
use crate::answer::{Answer, Content, Problem, page};
use crate::cluster::Lead;
use crate::query::Query;

/// Open streams at a time.
pub(super) const STREAMS_MAX: usize = 16;
/// Interval of updates of a page.
const TICK: Duration = Duration::from_secs(1);
/// Something is said so often, if only to see whether someone is there.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// A stream ends after this, and the browser opens another: so a viewer whose rights have ended
/// sees no more.
const STREAM_TIME: Duration = Duration::from_secs(600);

/// The page, or the part of it that changes.
pub(super) fn content(subject: &Subject, view: &PageView<'_>, live: &Live) -> Markup {
    if let Some(sentence) = viewer::standing_now(view.state) {
        // It stands above the content, once.
        let _ = live.text(STANDING, sentence);
    }
    match subject {
        Subject::Overview(span) => overview::content(view, *span, live),
        Subject::Tubes(listed) => tubes::content(view, listed, live),
        Subject::Tube(name, span) => tube::numbers(view, (name, *span), live),
        Subject::Durability(span) => durability::content(view, *span, live),
        Subject::Cluster => cluster::content(view, live),
        Subject::Tasks => tasks::content(view.state, live),
        Subject::Task(id) => tasks::one(view.state, id, live),
        Subject::History(id) => past::reading(view.state, id, live),
        Subject::Search(id) => search::searching(view.state, id, live),
    }
}

/// Say what changes, as long as someone listens.
pub(super) fn events(state: &Arc<State>, query: &Query) -> Result<Answer, Problem> {
    let subject = Subject::parse(query)?;
    let permit = state.console.streams.clone().try_acquire_owned();
    let permit = permit.map_err(|_| Problem::unavailable("too many pages are open"))?;
    let (sender, events) = channel(1);
    tokio::spawn(tell(state.clone(), subject, sender, permit));
    let content = Content::Events {
        events,
        watch: None,
    };
    Ok(page(StatusCode::OK, "text/event-stream", content))
}

/// Until no one listens, or the time is over.
async fn tell(
    state: Arc<State>,
    subject: Subject,
    sender: Sender<Bytes>,
    _permit: OwnedSemaphorePermit,
) {
    let (begun, mut said) = (Instant::now(), Said::default());
    let mut last = begun;
    let leads = || crate::cluster::lead(&state.handles) == Lead::Here;
    let led = leads();
    // A browser that asks again hears of the next leader.
    while begun.elapsed() < STREAM_TIME && (leads() || !led) {
        let news = look(&state, &subject, &mut said).await;
        let is_quiet = last.elapsed() >= SAY_EVERY;
        let event = news.or_else(|| is_quiet.then(|| Bytes::from_static(b": still here\n\n")));
        if let Some(event) = event {
            last = Instant::now();
            if sender.send(event).await.is_err() {
                return;
            }
        }
        if timeout(TICK, sender.closed()).await.is_ok() {
            return;
        }
    }
}

/// The changes; `None` from a server that does not answer.
async fn look(state: &State, subject: &Subject, said: &mut Said) -> Option<Bytes> {
    let view = PageView::of(subject, state).await.ok()?;
    let live = Live::default();
    let _ = content(subject, &view, &live);
    said.news(live)
}
