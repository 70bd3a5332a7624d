//! Style, script and icon: files of the program itself. A browser asks each time whether it has the
//! right one.

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};

use crate::answer::{Answer, Content, page};
use crate::route::Asset;

impl Asset {
    fn parts(self) -> (&'static str, &'static str) {
        match self {
            Asset::Style => ("text/css; charset=utf-8", include_str!("console.css")),
            Asset::Script => ("text/javascript; charset=utf-8", include_str!("console.js")),
            Asset::Icon => ("image/svg+xml", include_str!("icon.svg")),
        }
    }

    /// It, or that it is the one that the browser has.
    pub(super) fn answer(self, headers: &HeaderMap) -> Answer {
        let (kind, text) = self.parts();
        let tag = format!("\"{:08x}\"", crc32fast::hash(text.as_bytes()));
        let known = headers.get(IF_NONE_MATCH);
        let is_known = known.is_some_and(|known| known.as_bytes() == tag.as_bytes());
        let (status, content) = match is_known {
            true => (StatusCode::NOT_MODIFIED, ""),
            false => (StatusCode::OK, text),
        };
        let mut answer = page(status, kind, Content::Whole(Some(content.into())));
        let fields = answer.headers_mut();
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            fields.insert(ETAG, tag);
        }
        answer
    }
}
