//! Which jobs are meant: flags that several commands have, as the filter of the API.

use bsd_tools::human::parse_age;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

/// Which of the jobs of a tube, beside their state.
#[derive(Args, Default)]
pub(crate) struct Pick {
    /// Only jobs whose bodies contain this text
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    contains: Option<String>,
    /// Only jobs that were put at least this long ago: 90, 5m, 2h, 3d
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    older_than: Option<u64>,
    /// Only jobs that failed for this reason last
    #[arg(long, value_enum)]
    reason: Option<Reason>,
    /// Only jobs of which a worker said a text with this part when it failed
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    text: Option<String>,
}

impl Pick {
    /// Nothing is said.
    pub(crate) fn is_all(&self) -> bool {
        self.contains.is_none()
            && self.older_than.is_none()
            && self.reason.is_none()
            && self.text.is_none()
    }

    /// Add it to a filter.
    pub(crate) fn add_to(&self, filter: &mut Value) {
        if let Some(text) = &self.contains {
            filter["contains"] = json!({"data": text});
        }
        if let Some(age) = self.older_than {
            filter["age_min_seconds"] = age.into();
        }
        if let Some(reason) = self.reason {
            filter["reason"] = reason.word().into();
        }
        if let Some(text) = &self.text {
            filter["text"] = json!({"data": text});
        }
    }
}

/// Why the last delivery of a job failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reason {
    Released,
    Ttr,
    Disconnected,
    Failed,
    Expired,
    Buried,
}

impl Reason {
    /// As the API has it.
    fn word(self) -> &'static str {
        match self {
            Reason::Released => "released",
            Reason::Ttr => "ttr",
            Reason::Disconnected => "disconnected",
            Reason::Failed => "failed",
            Reason::Expired => "expired",
            Reason::Buried => "buried",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bsd::attributes;

    #[test]
    fn each_reason_of_the_server_may_be_named() {
        let known = Reason::value_variants().iter().map(|it| it.word());
        assert!(known.eq(attributes::Reason::ALL.map(attributes::Reason::word)));
    }
}
