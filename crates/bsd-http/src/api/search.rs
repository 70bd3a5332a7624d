//! Search for jobs: by tube, state, id, priority, age, and text in their bodies. A search is long
//! work that ends with a page of results, and the place where the next page begins.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::fields::{Fields, needed};
use super::filter::Filter;
use super::look::{LIMIT_DEFAULT, job_value};
use super::register::{End, Progress, Register, Stage, Told};
use super::{LIMIT_MAX, bad};
use crate::answer::{Answer, Problem};
use crate::doorway::Doorway;
use crate::guard::Asker;
use bsd::door::{COST_MAX, JobError, Looked, Scan, Slice, Step, Work};
use bsd::types::{JobId, Time};

/// Why a search cannot go on.
const BAD_MARK: &str = "after is what `next` of the search before was";

/// The request.
#[derive(Debug)]
struct Wanted {
    filter: Filter,
    limit: usize,
    after: Option<String>,
}

impl Wanted {
    fn parse(fields: &Fields) -> Result<Wanted, Problem> {
        fields.only(&["filter", "limit", "after"])?;
        let limit = fields.number("limit", 1, LIMIT_MAX as u64)?;
        Ok(Wanted {
            filter: Filter::parse(&needed("filter", fields.object("filter")?)?)?,
            limit: limit.map_or(LIMIT_DEFAULT, |limit| limit as usize),
            after: fields.text("after")?.map(ToOwned::to_owned),
        })
    }

    fn scan(&self) -> Result<Scan<Filter>, Problem> {
        let scan = Scan::new(self.filter.clone(), self.filter.states.clone(), None);
        match &self.after {
            None => Ok(scan),
            Some(after) => scan.behind(after).ok_or_else(|| bad(BAD_MARK)),
        }
    }

    fn value(&self) -> Value {
        json!({"filter": self.filter.value(), "limit": self.limit, "after": self.after})
    }
}

/// `POST /api/v1/search`
pub(crate) fn start(
    doorway: &Doorway,
    searches: &Register,
    fields: &Fields,
    asker: Asker,
) -> Result<Answer, Problem> {
    let wanted = Wanted::parse(fields)?;
    let scan = wanted.scan()?;
    searches.start(doorway, (wanted.value(), asker), |progress| Search {
        limit: wanted.limit,
        scan,
        found: Vec::new(),
        next: None,
        error: None,
        is_cancelled: false,
        progress,
    })
}

/// A search under way.
struct Search {
    limit: usize,
    scan: Scan<Filter>,
    found: Vec<Value>,
    next: Option<String>,
    error: Option<JobError>,
    is_cancelled: bool,
    progress: Arc<Progress>,
}

impl Work for Search {
    fn step(&mut self, slice: &mut Slice<'_>) -> Step {
        let step = self.go_on(slice);
        let progress = &self.progress;
        progress
            .stage
            .store(Stage::Running as u8, Ordering::Relaxed);
        Progress::set(&progress.matched, self.found.len() as u64);
        Progress::set(&progress.looked_at, self.scan.looked_at());
        Progress::set(&progress.unread, self.scan.unread());
        step
    }
}

impl Told for Search {
    fn end(self) -> End {
        End {
            reason: self.error.map(|error| error.to_string()),
            is_cancelled: self.is_cancelled,
            is_undone: false,
            found: Some(json!({"jobs": self.found, "next": self.next})),
        }
    }
}

impl Search {
    fn go_on(&mut self, slice: &mut Slice<'_>) -> Step {
        if self.progress.is_cancelled() {
            self.is_cancelled = true;
            self.next = self.scan.mark();
            return Step::Done;
        }
        let mut cost = 0;
        loop {
            match self.scan.look(slice) {
                Looked::Passed => {}
                Looked::Match(id) => self.find(id, slice),
                Looked::End => return Step::Done,
                Looked::Failed(error) => {
                    self.error = Some(error);
                    return Step::Done;
                }
            }
            if self.found.len() == self.limit {
                self.next = self.scan.mark();
                return Step::Done;
            }
            cost += self.scan.take_cost();
            if cost >= COST_MAX {
                // Not again in this turn.
                return Step::NotBefore(Time(slice.now().mono.0 + 1));
            }
            // A look may read a body.
            if slice.is_over() {
                break;
            }
        }
        Step::More
    }

    fn find(&mut self, id: JobId, slice: &Slice<'_>) {
        let queue = slice.engine().queue();
        let job = queue.job(id);
        let value = job.map(|job| job_value(queue, &job, slice.now()));
        self.found.extend(value);
    }
}
