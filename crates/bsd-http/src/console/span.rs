//! How far back a chart goes.

/// How far back a chart may go.
pub(super) const SPANS: &[&str] = &["10min", "1h", "24h", "7d"];

/// How far back a chart goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub(super) &'static str);

impl Span {
    /// The one of this name, or an hour.
    pub(super) fn of(word: Option<&str>) -> Span {
        let found = SPANS.iter().find(|span| Some(**span) == word);
        Span(found.unwrap_or(&SPANS[1]))
    }

    /// Of the page of a tube: the one of this name, or 10 minutes.
    pub(super) fn of_tube(word: Option<&str>) -> Span {
        Span::of(Some(word.unwrap_or(SPANS[0])))
    }

    /// Its length.
    pub(super) fn seconds(self) -> u64 {
        match self.0 {
            "10min" => 600,
            "24h" => 86_400,
            "7d" => 7 * 86_400,
            _ => 3600,
        }
    }
}
