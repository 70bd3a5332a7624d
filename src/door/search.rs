//! Searches for jobs by tube, state and text in their bodies, page by page.

use std::ops::ControlFlow;

use memchr::memmem::Finder;

use super::call::{Answer, Outcome, SearchCursor, SearchPage};
use super::scan::{COST_MAX, Looked, Scan, Sought};
use super::work::{Slice, Step};
use crate::UsageError;
use crate::pattern::Pattern;
use crate::types::{JobId, JobState, Time};

/// The states in which jobs are searched for, in the order in which they are gone through.
const STATES: [JobState; 3] = [JobState::Ready, JobState::Delayed, JobState::Buried];
/// Bytes that may be looked for in a body.
const CONTAINS_SIZE_MAX: usize = 1024;
/// Jobs of a page.
pub(crate) const FOUND_MAX: u16 = 1000;
/// Bytes that are read for one page, of bodies and of what is known of jobs, more or less by one body.
const PAGE_COST_MAX: usize = 64 << 20;

/// Which jobs a search finds. By default: all jobs that are not reserved.
///
/// ```
/// use bsd::{JobState, Search};
///
/// let search = Search {
///     tubes: "mail*".into(),
///     states: vec![JobState::Buried],
///     contains: b"@example.org".to_vec(),
/// };
/// # assert_ne!(search, Search::default());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// The name of a tube, or a pattern of names: `*` stands for any text, `?` for any one character.
    pub tubes: String,
    /// States of the jobs, some of ready, delayed and buried: reserved jobs are not searched for.
    pub states: Vec<JobState>,
    /// Bytes that are somewhere in the body, at most 1,024. Without any the bodies are not read.
    pub contains: Vec<u8>,
}

impl Default for Search {
    fn default() -> Search {
        Search {
            tubes: "*".to_owned(),
            states: STATES.to_vec(),
            contains: Vec::new(),
        }
    }
}

/// What is looked for.
struct Filter {
    tubes: Pattern,
    contains: Option<Finder<'static>>,
}

impl Sought for Filter {
    fn tubes(&self) -> &Pattern {
        &self.tubes
    }

    fn needs_body(&self) -> bool {
        self.contains.is_some()
    }

    fn matches_body(&self, body: &[u8]) -> bool {
        let contains = self.contains.as_ref();
        contains.is_none_or(|it| it.find(body).is_some())
    }
}

/// A search under way.
pub(crate) struct Searching {
    scan: Scan<Filter>,
    limit: usize,
    jobs: Vec<JobId>,
    cost: usize,
}

impl Searching {
    /// A search for a page of at most `limit` jobs, and 1,000.
    ///
    /// # Errors
    /// What is wrong with the search, or that the cursor is of another one.
    pub(crate) fn new(
        search: &Search,
        after: Option<&SearchCursor>,
        limit: u16,
    ) -> Result<Searching, UsageError> {
        let mut states = STATES.to_vec();
        states.retain(|state| search.states.contains(state));
        if states.is_empty() || search.states.contains(&JobState::Reserved) {
            return Err("a search is for some of ready, delayed and buried jobs".into());
        }
        let contains = &search.contains;
        if contains.len() > CONTAINS_SIZE_MAX {
            return Err(UsageError::new(format_args!(
                "a search is for at most {CONTAINS_SIZE_MAX} bytes, not {}",
                contains.len()
            )));
        }
        let filter = Filter {
            tubes: Pattern::parse(&search.tubes)?,
            contains: (!contains.is_empty()).then(|| Finder::new(contains).into_owned()),
        };
        let scan = Scan::new(filter, states, None);
        let scan = match after {
            None => Some(scan),
            Some(SearchCursor(mark)) => scan.behind(mark),
        };
        Ok(Searching {
            scan: scan.ok_or("the cursor is of a search for other states")?,
            limit: limit.clamp(1, FOUND_MAX).into(),
            jobs: Vec::new(),
            cost: 0,
        })
    }

    /// Look on, until the slice is over or the page is.
    pub(crate) fn step(&mut self, slice: &mut Slice<'_>) -> ControlFlow<Outcome, Step> {
        let mut cost = 0;
        loop {
            match self.scan.look(slice) {
                Looked::Passed => {}
                Looked::Match(id) => self.jobs.push(id),
                Looked::End => return self.end(None),
                Looked::Failed(error) => return ControlFlow::Break(Err(error)),
            }
            let looked = self.scan.take_cost();
            cost += looked;
            // The names of tubes do not count: each page begins with them.
            if let Some(mark) = self.scan.mark() {
                self.cost += looked;
                if self.jobs.len() == self.limit || self.cost >= PAGE_COST_MAX {
                    return self.end(Some(SearchCursor(mark)));
                }
            }
            if cost >= COST_MAX {
                // Not again in this turn.
                return ControlFlow::Continue(Step::NotBefore(Time(slice.now().mono.0 + 1)));
            }
            // A look may read a body.
            if slice.is_over() {
                return ControlFlow::Continue(Step::More);
            }
        }
    }

    fn end(&mut self, next: Option<SearchCursor>) -> ControlFlow<Outcome, Step> {
        let page = SearchPage {
            jobs: std::mem::take(&mut self.jobs),
            unread: self.scan.unread(),
            next,
        };
        ControlFlow::Break(Ok(Answer::Searched(page)))
    }
}
