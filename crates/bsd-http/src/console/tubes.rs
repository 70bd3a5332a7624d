//! `/tubes`: all of them, in the order that is wanted, a page at a time. They are sorted here, from
//! the snapshot that all pages share: the engine is not asked.

use hyper::StatusCode;
use maud::{Markup, html};

use super::chart::sparkline;
use super::layout::table;
use super::live::Live;
use super::{PageView, SAID, words};
use crate::answer::Problem;
use crate::query::Query;
use crate::route::Parameter;
use crate::snapshot::TubeFigures;

/// Tubes of a page.
const PAGE_SIZE: usize = 100;
/// The last page that can be asked for.
const PAGE_MAX: u64 = 100_000;
/// Columns that can be sorted by; a minus sign before one: the greatest first.
const SORTS: &[&str] = &[
    "name",
    "-name",
    "ready",
    "-ready",
    "reserved",
    "-reserved",
    "delayed",
    "-delayed",
    "buried",
    "-buried",
    "oldest",
    "-oldest",
    "waiting",
    "-waiting",
    "puts",
    "-puts",
];
/// Each column: its name in an address, and above it.
const COLUMNS: [(&str, &str); 8] = [
    ("name", "Tube"),
    ("ready", "Ready"),
    ("reserved", "Reserved"),
    ("delayed", "Delayed"),
    ("buried", "Buried"),
    ("oldest", "Oldest ready"),
    ("waiting", "Waiting"),
    ("puts", "Puts"),
];

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter::text("q", "Only tubes with this in their names"),
    Parameter::word("sort", "The column that is sorted by", SORTS),
    Parameter::number("page", "The page", 1, PAGE_MAX),
    SAID,
];

/// Which tubes are listed.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    contains: String,
    sort: &'static str,
    /// From 1 on.
    page: usize,
}

impl Listed {
    pub(super) fn parse(query: &Query) -> Result<Listed, Problem> {
        let wanted = query.text("sort").unwrap_or(SORTS[0]);
        let sort = SORTS.iter().find(|sort| **sort == wanted);
        let sort = sort.ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, format!("sort is one of {SORTS:?}"))
        })?;
        let page = query.number("page", 1, PAGE_MAX)?.unwrap_or(1);
        Ok(Listed {
            contains: query.text("q").unwrap_or_default().to_owned(),
            sort,
            page: page as usize,
        })
    }

    /// As it stands in an address.
    pub(super) fn query(&self) -> String {
        self.with(self.sort, self.page)
    }

    fn with(&self, sort: &str, page: usize) -> String {
        let contains = words::escaped(&self.contains);
        format!("q={contains}&sort={sort}&page={page}")
    }

    /// By which column, and whether the greatest is first.
    fn order(&self) -> (&'static str, bool) {
        match self.sort.strip_prefix('-') {
            Some(column) => (column, true),
            None => (self.sort, false),
        }
    }
}

/// A tube, with its name.
type Row<'a> = (&'a str, &'a TubeFigures);

/// Sort key of a column.
fn key(tube: &TubeFigures, column: &str) -> i64 {
    let number = match column {
        "ready" => tube.jobs.ready,
        "reserved" => tube.jobs.reserved,
        "delayed" => tube.jobs.delayed,
        "buried" => tube.jobs.buried,
        "waiting" => tube.waiting,
        "puts" => tube.puts,
        "oldest" => return tube.oldest_ready_ns,
        _ => 0,
    };
    number as i64
}

/// Sort, by name where all else is the same.
fn sort(rows: &mut [Row<'_>], column: &str, is_descending: bool) {
    rows.sort_unstable_by(|one, other| {
        let by_key = key(one.1, column).cmp(&key(other.1, column));
        let by_key = if is_descending {
            by_key.reverse()
        } else {
            by_key
        };
        let by_name = one.0.cmp(other.0);
        let is_by_name = column == "name" && is_descending;
        by_key.then(if is_by_name {
            by_name.reverse()
        } else {
            by_name
        })
    });
}

pub(super) fn content(view: &PageView<'_>, listed: &Listed, live: &Live) -> Markup {
    let all = view.snapshot.kept_tubes();
    let mut rows: Vec<Row<'_>> = all
        .filter(|(name, _)| name.contains(&listed.contains))
        .collect();
    let (column, is_descending) = listed.order();
    sort(&mut rows, column, is_descending);
    let begin = (listed.page - 1).saturating_mul(PAGE_SIZE).min(rows.len());
    let shown = &rows[begin..rows.len().min(begin + PAGE_SIZE)];
    let tubes = view.snapshot.figures.queue.tubes;
    let kept = view.snapshot.kept_tubes().count() as u64;
    let names: Vec<&str> = shown.iter().map(|(name, _)| *name).collect();
    html! {
        (filter(listed))
        (live.listed(&names.join(" ")))
        p {
            (words::counted(rows.len() as u64, "tube"))
            @if !listed.contains.is_empty() { " with “" (listed.contains) "” in their names" }
            @if rows.len() > shown.len() {
                ", " (words::count(begin as u64 + 1)) " to "
                (words::count((begin + shown.len()) as u64)) " here"
            }
            "."
            @if tubes > kept {
                " Only the first " (words::count(kept)) " of " (words::count(tubes))
                " tubes are listed; any tube has its page, at /tubes/NAME."
            }
        }
        div class="cards" { (table("Tubes", &head(listed), &body(view, shown, live))) }
        (pages(listed, rows.len()))
    }
}

fn filter(listed: &Listed) -> Markup {
    html! {
        form class="bar" action="/tubes" {
            label for="contains" { "Name contains" }
            input id="contains" name="q" type="search" value=(listed.contains)
                maxlength="200" autocomplete="off";
            input type="hidden" name="sort" value=(listed.sort);
            button { "Filter" }
        }
    }
}

fn head(listed: &Listed) -> Markup {
    let (sorted, is_descending) = listed.order();
    html! {
        @for (column, name) in COLUMNS {
            // The first time numbers are wanted from the greatest on, names from the first.
            @let is_sorted = column == sorted;
            @let to_descending = if is_sorted { !is_descending } else { column != "name" };
            @let sort = if to_descending { format!("-{column}") } else { column.to_owned() };
            @let order = if is_descending { "descending" } else { "ascending" };
            th scope="col" class=(if column == "name" { "name" } else { "number" })
                aria-sort=[is_sorted.then_some(order)] {
                a href=(format!("/tubes?{}", listed.with(&sort, 1))) {
                    (name)
                    @if is_sorted { span aria-hidden="true" { (if is_descending { " ▼" } else { " ▲" }) } }
                }
            }
        }
        th scope="col" { "Ready, 10 min" }
    }
}

fn body(view: &PageView<'_>, shown: &[Row<'_>], live: &Live) -> Markup {
    let history = view.state.console.history();
    html! {
        @for (name, tube) in shown {
            @let id = |part: &str| format!("tube:{name}:{part}");
            tr {
                th scope="row" class="name" {
                    a href=(format!("/tubes/{}", words::escaped(name))) { (name) }
                    @if tube.pause_left_ns > 0 { " " span class="mark" { "paused" } }
                }
                @for (part, label, count) in [
                    ("ready", "Ready", tube.jobs.ready),
                    ("reserved", "Reserved", tube.jobs.reserved),
                    ("delayed", "Delayed", tube.jobs.delayed),
                    ("buried", "Buried", tube.jobs.buried),
                ] {
                    td class="number" data-label=(label) { (live.text(&id(part), words::count(count))) }
                }
                td class="number" data-label="Oldest" { (live.text(&id("oldest"), words::ns(tube.oldest_ready_ns))) }
                td class="number" data-label="Waiting" { (live.text(&id("waiting"), words::count(tube.waiting))) }
                td class="number" data-label="Puts" { (live.text(&id("puts"), words::count(tube.puts))) }
                td {
                    @if let Some(values) = history.tubes.ready(name) {
                        (sparkline(live, &id("line"), "Ready jobs in the last 10 minutes", &values))
                    }
                }
            }
        }
        @if shown.is_empty() { tr { td colspan="9" { "No tube." } } }
    }
}

fn pages(listed: &Listed, count: usize) -> Markup {
    let last = count.div_ceil(PAGE_SIZE).max(1);
    let to = |page: usize| format!("/tubes?{}", listed.with(listed.sort, page));
    html! {
        @if last > 1 {
            nav class="pages" aria-label="Pages of the list" {
                ul {
                    @if listed.page > 1 {
                        li { a href=(to(1)) { "First" } }
                        li { a href=(to(listed.page - 1)) rel="prev" { "Previous" } }
                    }
                    li { "Page " (words::count(listed.page as u64)) " of " (words::count(last as u64)) }
                    @if listed.page < last {
                        li { a href=(to(listed.page + 1)) rel="next" { "Next" } }
                        li { a href=(to(last)) { "Last" } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tube(ready: u64) -> TubeFigures {
        let mut tube = TubeFigures::default();
        tube.jobs.ready = ready;
        tube
    }

    #[test]
    fn rows_are_sorted_by_a_column_and_then_by_name() {
        let (few, many) = (tube(1), tube(9));
        let mut rows = [("b", &few), ("c", &many), ("a", &few)];
        let mut names = |column, is_descending| {
            sort(&mut rows, column, is_descending);
            rows.map(|(name, _)| name).concat()
        };
        assert_eq!(names("name", false), "abc");
        assert_eq!(names("name", true), "cba");
        assert_eq!(names("ready", false), "abc");
        assert_eq!(names("ready", true), "cab");
    }

    #[test]
    fn every_column_can_be_sorted_by_in_both_orders() {
        for (column, _) in COLUMNS {
            for sort in [column.to_owned(), format!("-{column}")] {
                assert!(SORTS.contains(&&*sort), "{sort}");
            }
        }
        assert_eq!(SORTS.len(), 2 * COLUMNS.len());
    }
}
