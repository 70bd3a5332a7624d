//! Pages in a member's own view keep it: each link and each form leads to a page in that view, but for
//! the link that leads back to the cluster's.
//!
//! A page is a text that this program has written. Names and bodies in it are escaped: a `<` begins a
//! tag, which ends with the next `>`, and no attribute has a `"` in its value.

use hyper::header::{HeaderValue, LOCATION};

use crate::answer::Answer;
use crate::relay;

/// Paths that are the same in every view, or belong to no page.
const OUTSIDE: [&str; 5] = ["/static/", "/metrics", "/api/", "/login", "/logout"];
/// The parameter, in a form that browsers send as part of an address.
const FIELD: &str = "<input type=\"hidden\" name=\"view\" value=\"member\">";

/// The page with addresses that keep the view.
pub(super) fn kept(page: &str) -> String {
    let mut kept = String::with_capacity(page.len() + page.len() / 8);
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        let (before, tag) = rest.split_at(at);
        kept.push_str(before);
        let end = tag.find('>').map_or(tag.len(), |end| end + 1);
        let (tag, behind) = tag.split_at(end);
        rest = behind;
        if tag.starts_with("<a ") {
            push_with(tag, " href=\"", &mut kept);
        } else if tag.starts_with("<form ") && tag.contains(" method=\"post\"") {
            push_with(tag, " action=\"", &mut kept);
        } else {
            kept.push_str(tag);
            if tag.starts_with("<form ") && !tag.contains(" method=\"dialog\"") {
                kept.push_str(FIELD);
            }
        }
    }
    kept.push_str(rest);
    kept
}

/// Push a tag, in which the address of this attribute keeps the view.
fn push_with(tag: &str, attribute: &str, kept: &mut String) {
    let found = tag.split_once(attribute);
    let found = found.and_then(|(before, rest)| Some((before, rest.split_once('"')?)));
    match found.filter(|(_, (address, _))| is_kept(address)) {
        Some((before, (address, behind))) => {
            let (path, part) = match address.find('#') {
                Some(at) => address.split_at(at),
                None => (address, ""),
            };
            let path = relay::with_own_view(path).replace("&view=", "&amp;view=");
            kept.push_str(&[before, attribute, &path, part, "\"", behind].concat());
        }
        None => kept.push_str(tag),
    }
}

/// It is the address of a page of the console. A `?` alone leads back.
fn is_kept(address: &str) -> bool {
    let is_page = address.starts_with('/') && !address.starts_with("//");
    let is_of_this_page = address.starts_with('?') && address != "?";
    let is_outside = OUTSIDE.iter().any(|path| address.starts_with(path));
    (is_page && !is_outside) || is_of_this_page
}

/// Where a browser is sent it sees the same view.
pub(super) fn keep_place(answer: &mut Answer) {
    let place = answer.headers().get(LOCATION);
    let place = place.and_then(|place| place.to_str().ok());
    let Some(place) = place.filter(|place| is_kept(place)) else {
        return;
    };
    if let Ok(place) = HeaderValue::try_from(relay::with_own_view(place)) {
        answer.headers_mut().insert(LOCATION, place);
    }
}

/// The address is one of a page in a member's own view.
pub(super) fn is_of(address: &str) -> bool {
    let query = address.split_once('?').map(|(_, query)| query);
    relay::own_view(query).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_forms_lead_to_the_same_view_and_one_link_leads_back() {
        for (written, expected) in [
            ("<a href=\"/\">x</a>", "<a href=\"/?view=member\">x</a>"),
            (
                "<a class=\"b\" href=\"/tubes/a?state=buried&amp;after=1#jobs\">",
                "<a class=\"b\" href=\"/tubes/a?state=buried&amp;after=1&amp;view=member#jobs\">",
            ),
            (
                "<a href=\"?sort=name\">",
                "<a href=\"?sort=name&amp;view=member\">",
            ),
            (
                "<form method=\"post\" action=\"/tasks/1/cancel\">",
                "<form method=\"post\" action=\"/tasks/1/cancel?view=member\">",
            ),
        ] {
            let around = |it: &str| format!("<p>1 &lt; 2{it} &gt;");
            assert_eq!(kept(&around(written)), around(expected));
        }
        let form = "<form class=\"find\" action=\"/find\">";
        assert_eq!(kept(form), format!("{form}{FIELD}"));
        for same in [
            "<a href=\"?\">The leader's view, here</a>",
            "<a href=\"#jobs\">",
            "<a href=\"http://10.0.0.1:11380/\">",
            "<a href=\"/metrics\">",
            "<link href=\"/static/console.css\">",
            "<form method=\"post\" action=\"/logout\">",
            "<form method=\"dialog\">",
            "a name: &lt;a href=&quot;/&quot;&gt;",
            "<td title=\"a href=/\">",
            "<",
            "",
        ] {
            assert_eq!(kept(same), same);
        }
    }

    #[test]
    fn an_address_says_which_view_it_is_of() {
        assert!(is_of("/tubes?view=member") && is_of("/tubes?sort=name&view=member"));
        assert!(!is_of("/tubes") && !is_of("/tubes?q=view%3Dmember"));
    }
}
