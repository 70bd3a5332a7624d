//! `GET /api/v1/events`: what happens to jobs, as it happens, as server-sent events.
//!
//! The engine's thread writes into a ring ([`Feed`]), from which each stream reads at its own pace.
//! A stream that is too slow is told how many events of all tubes it has missed.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::{Sender, channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use super::filter::{Pattern, pattern};
use super::run;
use crate::answer::{Answer, Content, Problem, page};
use crate::doorway::Doorway;
use crate::query::Query;
use bsd::door::{Slice, Step, Work};
use bsd::engine::{Feed, Told};
use bsd::queue::Happened;
use bsd::types::{JobId, SECOND_NS};

/// Streams of events at a time.
const LISTENERS_MAX: usize = 8;
/// Events that are read at a time.
const BATCH: usize = 256;
/// How long events are left to gather: so often the loop wakes this thread, and no more.
const GATHER: Duration = Duration::from_millis(20);
/// Something is said so often, if only to see whether someone is there.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// The words for what happens.
pub(crate) const WORDS: &[&str] = &[
    "put", "reserve", "delete", "release", "return", "timeout", "bury", "kick", "delay",
    "priority", "move", "pause", "lost",
];

/// Shared state of all streams.
#[derive(Debug)]
pub(crate) struct Streams {
    permits: Arc<Semaphore>,
    feed: Mutex<Weak<Feed>>,
    news: Arc<Notify>,
}

impl Default for Streams {
    fn default() -> Streams {
        Streams {
            permits: Arc::new(Semaphore::new(LISTENERS_MAX)),
            feed: Mutex::default(),
            news: Arc::default(),
        }
    }
}

impl Streams {
    /// The feed of all streams that are open.
    fn feed(&self) -> Arc<Feed> {
        let mut feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        feed.upgrade().unwrap_or_else(|| {
            let news = self.news.clone();
            let new = Arc::new(Feed::new(move || news.notify_waiters()));
            *feed = Arc::downgrade(&new);
            new
        })
    }
}

/// Tell what happens, from now on.
pub(crate) async fn events(
    doorway: &Doorway,
    streams: &Streams,
    query: &Query,
) -> Result<Answer, Problem> {
    let pattern = query.text("tube").map(pattern).transpose()?;
    let permit = streams.permits.clone().try_acquire_owned();
    let permit = permit.map_err(|_| {
        Problem::unavailable(format!(
            "{LISTENERS_MAX} others listen to events, and no more can; end one of them"
        ))
    })?;
    let listen = Listen {
        feed: streams.feed(),
        from: 0,
    };
    let Listen { feed, from } = run(doorway, listen).await?;
    let (sender, events) = channel(1);
    let stream = Stream {
        feed,
        next: from,
        pattern,
        sender,
    };
    tokio::spawn(stream.tell(streams.news.clone(), permit));
    let content = Content::Events {
        events,
        watch: None,
    };
    Ok(page(StatusCode::OK, "text/event-stream", content))
}

struct Listen {
    feed: Arc<Feed>,
    from: u64,
}

impl Work for Listen {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        self.from = slice.listen(&self.feed);
        Step::Done
    }
}

/// Someone who listens.
struct Stream {
    feed: Arc<Feed>,
    /// The number of the next event.
    next: u64,
    pattern: Option<Pattern>,
    sender: Sender<Bytes>,
}

impl Stream {
    /// Until no one listens.
    async fn tell(mut self, news: Arc<Notify>, _permit: OwnedSemaphorePermit) {
        let mut said = Some(": listening\n\n".to_owned());
        loop {
            if let Some(text) = said.take()
                && self.sender.send(text.into()).await.is_err()
            {
                return;
            }
            // What comes while it is read is heard of.
            let mut heard = pin!(news.notified());
            heard.as_mut().enable();
            let read = self.feed.read(self.next, BATCH);
            if read.is_empty() {
                match timeout(SAY_EVERY, first_of(heard, self.sender.closed())).await {
                    Ok(First::Of) => sleep(GATHER).await,
                    Ok(First::Or) => return,
                    Err(_) => said = Some(": still here\n\n".to_owned()),
                }
                continue;
            }
            said = Some(self.text(&read)).filter(|text| !text.is_empty());
        }
    }

    /// Text of these events.
    fn text(&mut self, read: &[Told]) -> String {
        let mut text = String::new();
        for told in read {
            let lost = told.number - self.next;
            self.next = told.number + 1;
            if lost > 0 {
                add(
                    &mut text,
                    told.number,
                    &json!({"event": "lost", "events": lost}),
                );
            }
            if self.is_meant(told) {
                add(&mut text, told.number, &value(told));
            }
        }
        text
    }

    fn is_meant(&self, told: &Told) -> bool {
        let matches = |tube: &str| self.pattern.as_ref().is_none_or(|it| it.matches(tube));
        let to = match &told.event.what {
            Happened::Move { to } => matches(to),
            _ => false,
        };
        to || matches(&told.event.tube)
    }
}

fn add(text: &mut String, number: u64, value: &Value) {
    text.push_str(&format!("id: {number}\ndata: {value}\n\n"));
}

fn value(told: &Told) -> Value {
    let event = &told.event;
    let mut value = json!({
        "time": told.wall_ns as f64 / SECOND_NS as f64,
        "tube": &*event.tube,
    });
    if event.job != JobId(0) {
        value["job"] = json!(event.job.0);
    }
    let word = match &event.what {
        Happened::Put {
            pri,
            delay,
            body_size,
        } => {
            value["priority"] = json!(pri);
            value["delay"] = json!(delay);
            value["body_size"] = json!(body_size);
            "put"
        }
        Happened::Release { pri, delay } => {
            (value["priority"], value["delay"]) = (json!(pri), json!(delay));
            "release"
        }
        Happened::Bury { pri } => {
            value["priority"] = json!(pri);
            "bury"
        }
        Happened::Priority { pri } => {
            value["priority"] = json!(pri);
            "priority"
        }
        Happened::Delay { delay } => {
            value["delay"] = json!(delay);
            "delay"
        }
        Happened::Move { to } => {
            value["to"] = json!(&**to);
            "move"
        }
        Happened::Pause { seconds } => {
            value["seconds"] = json!(seconds);
            "pause"
        }
        Happened::Reserve => "reserve",
        Happened::Delete => "delete",
        Happened::Return => "return",
        Happened::TimeOut => "timeout",
        Happened::Kick => "kick",
    };
    value["event"] = json!(word);
    value
}

/// Which of two came first.
enum First {
    Of,
    Or,
}

async fn first_of(of: impl Future, or: impl Future) -> First {
    let (mut of, mut or) = (pin!(of), pin!(or));
    std::future::poll_fn(|context| {
        if of.as_mut().poll(context).is_ready() {
            return Poll::Ready(First::Of);
        }
        or.as_mut().poll(context).map(|_| First::Or)
    })
    .await
}
