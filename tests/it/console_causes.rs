//! The console says what is wrong and why, what is in jobs, and where a text is.

use crate::console::{HTML, Page, memory};
use crate::console_forms::{post, submit, word_of};
use crate::harness::{Launch, wait_until};
use crate::http::{Site, tokens};
use crate::wire::{Wire, put_command};

fn has(page: &Page, parts: &[&str]) {
    for part in parts {
        assert!(page.text.contains(part), "no {part} in {}", page.text);
    }
}

/// Wait until the page that shares a snapshot with others has all of these.
fn shows(site: &Site, path: &str, parts: &[&str]) -> Page {
    wait_until(parts[0], || {
        let page = Page::shown(site, path);
        parts.iter().all(|part| page.text.contains(part))
    });
    Page::shown(site, path)
}

/// Three tubes: one without workers, one paused, and one whose jobs were buried.
fn trouble(wire: &mut Wire) {
    wire.ask("use idle");
    wire.put(b"one");
    wire.ask("use paused");
    wire.put(b"two");
    assert_eq!(wire.ask("pause-tube paused 3600"), "PAUSED");
    wire.ask("use given-up");
    for _ in 0..5 {
        let id = wire.put(b"three");
        wire.ask("watch given-up");
        assert_eq!(wire.reserve(), id);
        assert_eq!(wire.ask(&format!("bury {id} 5")), "BURIED");
    }
}

#[test]
fn the_overview_begins_with_what_is_wrong_and_leads_to_what_ends_it() {
    let site = memory();
    let empty = Page::shown(&site, "/");
    has(
        &empty,
        &["The first three steps", "bsd-ctl put default hello"],
    );
    assert!(!empty.text.contains("Nothing is wrong"), "{}", empty.text);
    let mut wire = site.server.connect();
    trouble(&mut wire);
    let page = shows(
        &site,
        "/",
        &[
            "2 things are wrong, 1 notice",
            "<a href=\"/tubes/idle?state=ready#jobs\">Tube idle</a>",
            "1 job is ready, and no connection watches the tube.",
            "<a href=\"/tubes/paused#pause-tube\">Tube paused</a>",
            "<code>bsd-ctl unpause paused</code> ends the pause.",
            "<a href=\"/tubes/given-up?state=buried#jobs\">Tube given-up</a>",
            "5 jobs are buried.",
        ],
    );
    let place = |part: &str| page.text.find(part).unwrap();
    assert!(place("Tube idle") < place("Tube given-up"), "by urgency");
    assert!(place("Tube given-up") < place("class=\"tiles\""), "first");
    assert!(
        !page.text.contains("The first three steps"),
        "{}",
        page.text
    );
    submit(&site, "/tubes/paused/pause", "seconds=0");
    for id in 1..=7 {
        wire.ask(&format!("delete {id}"));
    }
    shows(&site, "/", &["Nothing is wrong"]);
}

#[test]
fn a_tube_says_why_its_jobs_wait_and_who_has_them() {
    let site = memory();
    let mut wire = site.server.connect();
    trouble(&mut wire);
    has(
        &Page::shown(&site, "/tubes/idle"),
        &["1 job is ready, and no connection watches the tube."],
    );
    has(
        &Page::shown(&site, "/tubes/paused"),
        &[
            "The tube is paused for another",
            "<a href=\"/tubes/paused#pause-tube\">End the pause</a>",
            "id=\"pause-tube\"",
        ],
    );
    wire.ask("watch idle");
    assert_eq!(wire.reserve(), 1);
    let page = Page::shown(&site, "/tubes/idle?state=reserved");
    has(
        &page,
        &[
            "<a href=\"/tubes/idle?state=reserved#jobs\">Reserved</a> by <a href=\"/clients/",
            "(1 job, for ",
            "data-label=\"Has it\"",
            "formaction=\"/jobs/1/release\"",
        ],
    );
    wire.ask("use idle");
    wire.put(b"next");
    let well = Page::shown(&site, "/tubes/idle");
    has(
        &well,
        &["Nothing is wrong here: 1 connection watches the tube"],
    );
}

#[test]
fn a_list_shows_what_is_in_each_job_and_why_it_failed() {
    let site = Site::start(Launch::bsd().memory().arg("-z").arg("100000"));
    let mut wire = site.server.connect();
    wire.put(b"{\"mail\": \"a@<b>\"}");
    wire.put(b"a:1:{s:2:\"id\";i:7;}");
    wire.put(&[0, 255, 1]);
    wire.put(&vec![b'x'; 70_000]);
    let page = Page::shown(&site, "/tubes/default");
    has(
        &page,
        &[
            "{&quot;mail&quot;: &quot;a@&lt;b&gt;&quot;}",
            "<small>PHP</small>",
            "00 ff 01",
            "more than 64 KiB",
        ],
    );
    assert!(!page.text.contains("a@<b>"), "{}", page.text);
    assert_eq!(wire.reserve(), 1);
    assert_eq!(wire.ask("bury-with-reason 1 5 11\r\nno <postbox"), "BURIED");
    let buried = Page::shown(&site, "/tubes/default?state=buried");
    has(&buried, &["Why it failed", "<q>no &lt;postbox</q>"]);
}

#[test]
fn a_body_is_a_file_that_no_browser_takes_for_a_page() {
    let site = Site::start(Launch::bsd().memory().arg("-z").arg("2000000"));
    let mut wire = site.server.connect();
    let bodies = [&b"<script>alert(1)</script>"[..], &[b'x'; 1 << 20]];
    for (id, body) in (1..).zip(bodies) {
        assert_eq!(wire.put(body), id);
        let answer = site.send(&format!("GET /jobs/{id}/body"), &[HTML], b"");
        assert_eq!((answer.status, &*answer.body), (200, body));
        for (field, value) in [
            ("content-type", "application/octet-stream"),
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.field(field), Some(value), "{field}");
        }
        let name = format!("attachment; filename=\"job-{id}\"");
        assert_eq!(answer.field("content-disposition"), Some(&*name));
        assert!(answer.field("content-security-policy").is_some());
    }
    let large = Page::shown(&site, "/jobs/2");
    has(&large, &["the beginning", "href=\"/jobs/2/body\""]);
    assert!(large.text.len() < 100_000, "{} bytes", large.text.len());
    wire.put(&vec![b'x'; (1 << 20) + 1]);
    assert_eq!(Page::of(&site, "/jobs/3/body").answer.status, 413);
    has(&Page::shown(&site, "/jobs/3"), &["bsd-ctl job 3 --body"]);
    assert_eq!(Page::of(&site, "/jobs/9/body").answer.status, 404);
}

/// The page that a search leads to, when it is over.
fn found(site: &Site, query: &str) -> Page {
    let page = Page::of(site, &format!("/find?q={query}"));
    let place = page.answer.field("location").unwrap().to_owned();
    assert!(place.starts_with("/find/"), "{query}: {place}");
    shows(site, &place, &["that were looked at"])
}

#[test]
fn g44_the_one_that_is_looked_for_is_found_by_its_id_name_or_body() {
    let site = memory();
    for (wanted, place) in [
        ("12", "/jobs/12"),
        ("+7+", "/jobs/7"),
        ("", "/tubes"),
        ("+", "/tubes"),
    ] {
        let page = Page::of(&site, &format!("/find?q={wanted}"));
        assert_eq!(
            (page.answer.status, page.answer.field("location")),
            (303, Some(place)),
            "{wanted:?}"
        );
    }
    let mut wire = site.server.connect();
    wire.ask("use mail");
    wire.put(b"to c++ \"quoted\"");
    wire.put(b"number 12");
    wire.ask("use other");
    wire.put(b"from mail");
    wire.send(put_command(0, 100_000, b"mail later"));
    wire.text();
    let page = found(&site, "mail");
    has(
        &page,
        &[
            "Search for “mail”",
            "<a href=\"/tubes/mail\">mail</a>",
            "href=\"/jobs/3\"",
            "href=\"/jobs/4\"",
            "Of 4 jobs that were looked at, 2 have this in their bodies.",
        ],
    );
    // As it was typed.
    has(&found(&site, "c%2B%2B+%22quoted%22"), &["href=\"/jobs/1\""]);
    has(&found(&site, "12&in=bodies"), &["href=\"/jobs/2\""]);
    let in_tube = found(&site, "mail&tube=other");
    has(&in_tube, &["In bodies of tube other", "href=\"/jobs/3\""]);
    assert!(
        !in_tube.text.contains("In names of tubes"),
        "{}",
        in_tube.text
    );
    let none = found(&site, "%3Cb%3Enone");
    has(&none, &["No job has this in its body.", "&lt;b&gt;none"]);
    assert!(!none.text.contains("<b>none"), "{}", none.text);
    assert_eq!(Page::of(&site, "/find/99").answer.status, 404);
}

#[test]
fn no_other_site_begins_a_search() {
    let site = memory();
    for from in ["cross-site", "same-site"] {
        let field = format!("Sec-Fetch-Site: {from}");
        let page = Page::with(&site, "/find?q=word", &[&field]);
        assert_eq!(page.answer.status, 403, "{from}");
    }
    let list = site.get("/api/v1/search").json();
    assert_eq!(list["searches"].as_array().map(Vec::len), Some(0), "{list}");
    let page = Page::with(&site, "/find?q=word", &["Sec-Fetch-Site: same-origin"]);
    assert_eq!(page.answer.status, 303);
}

#[test]
fn a_reader_searches_and_ends_its_own_searches_alone() {
    let file = tokens();
    let launch = Launch::bsd().memory();
    let site = Site::start(launch.arg("--http-tokens").arg(file.path()));
    let (reader, master) = (
        "Authorization: Bearer reader",
        "Authorization: Bearer master",
    );
    let begin = |who: &str, text: &str| {
        let page = Page::with(&site, &format!("/find?q={text}"), &[who]);
        page.answer.field("location").unwrap().to_owned()
    };
    let word = word_of(&Page::with(&site, "/tubes/default", &[master]));
    let of_master = begin(master, "one");
    let stop = |place: &str, who: &str, form: &str| {
        let done = post(&site, &format!("{place}/cancel"), &[who], form);
        done.answer.status
    };
    let form = format!("form={word}");
    assert_eq!(stop(&of_master, reader, "form=0"), 403, "no word of a page");
    assert_eq!(stop(&of_master, reader, &form), 403, "of another one");
    let own = begin(reader, "two");
    assert_eq!(stop(&own, reader, &form), 303);
    let nothing = Page::of(&site, "/find?q=word");
    assert!(
        nothing
            .answer
            .field("location")
            .unwrap()
            .starts_with("/login")
    );
}

#[test]
fn a_page_lists_the_hundred_reserved_jobs_that_are_held_for_longest() {
    let site = memory();
    let mut wire = site.server.connect();
    for _ in 0..120 {
        let id = wire.put(b"x");
        assert_eq!(wire.reserve(), id);
    }
    let page = Page::shown(&site, "/tubes/default?state=reserved");
    assert_eq!(page.text.matches("formaction=\"/jobs/").count(), 100);
    has(&page, &["href=\"/jobs/1\"", "href=\"/jobs/100\""]);
    assert!(!page.text.contains("href=\"/jobs/101\""), "{}", page.text);
}
