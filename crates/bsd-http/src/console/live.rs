//! Changes of a page while it is open. A page is written with a [`Live`], which remembers the parts
//! that have a name. To see the changes, the page is written again, and its parts are compared. So
//! a page and its updates are made by the same lines.

use std::cell::RefCell;
use std::collections::HashMap;

use hyper::body::Bytes;
use maud::{Markup, html};
use serde_json::json;

/// A part of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(String),
}

/// The parts of a page that have names.
#[derive(Debug, Default)]
pub(super) struct Live(RefCell<Vec<(String, Part)>>);

impl Live {
    /// A text that changes. The name is the id of its element, and in a page once.
    pub(super) fn text(&self, id: &str, text: impl Into<String>) -> Markup {
        let text = text.into();
        let markup = html! { span id=(id) { (text) } };
        self.0.borrow_mut().push((id.to_owned(), Part::Text(text)));
        markup
    }

    /// The source of a list of the page, in any form. When it changes, the list is an old one, and
    /// the page says so.
    pub(super) fn listed(&self, from: &str) -> Markup {
        let digest = format!("{:08x}", crc32fast::hash(from.as_bytes()));
        html! { span hidden { (self.text("listed", digest)) } }
    }

    /// The source of a list of the page, in any form, where nothing is typed on the page. When it
    /// changes, the page is loaded again.
    pub(super) fn reload(&self, from: &str) -> Markup {
        let digest = format!("{:08x}", crc32fast::hash(from.as_bytes()));
        html! { span hidden { (self.text("reload", digest)) } }
    }

    /// A path of a drawing that changes.
    pub(super) fn path(&self, id: &str, class: &str, path: String) -> Markup {
        let markup = html! { path id=(id) class=(class) d=(path) {} };
        self.0.borrow_mut().push((id.to_owned(), Part::Path(path)));
        markup
    }
}

/// The content of a page that the browser has.
#[derive(Debug, Default)]
pub(super) struct Said(HashMap<String, Part>);

impl Said {
    /// The changes, as an event; `None` without changes.
    pub(super) fn news(&mut self, live: Live) -> Option<Bytes> {
        let (mut texts, mut paths) = (serde_json::Map::new(), serde_json::Map::new());
        for (id, part) in live.0.into_inner() {
            if self.0.get(&id) == Some(&part) {
                continue;
            }
            match &part {
                Part::Text(text) => texts.insert(id.clone(), text.clone().into()),
                Part::Path(path) => paths.insert(id.clone(), path.clone().into()),
            };
            self.0.insert(id, part);
        }
        let is_empty = texts.is_empty() && paths.is_empty();
        let data = json!({"texts": texts, "paths": paths});
        (!is_empty).then(|| format!("data: {data}\n\n").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_said() {
        let mut said = Said::default();
        let written = |ready: &str| {
            let live = Live::default();
            let _ = live.text("ready", ready);
            let _ = live.path("line", "", "M0 0".into());
            live
        };
        let text = |bytes: Option<Bytes>| bytes.map(|it| String::from_utf8(it.to_vec()).unwrap());
        assert_eq!(
            text(said.news(written("1"))).unwrap(),
            "data: {\"paths\":{\"line\":\"M0 0\"},\"texts\":{\"ready\":\"1\"}}\n\n"
        );
        assert_eq!(text(said.news(written("1"))), None);
        assert_eq!(
            text(said.news(written("2</p>\n"))).unwrap(),
            "data: {\"paths\":{},\"texts\":{\"ready\":\"2</p>\\n\"}}\n\n"
        );
    }
}
