//! The policy of a tube on its page: what it says and where it comes from, what has failed in the
//! tube, where its dead letters go, and the forms that change it.

use maud::{Markup, html};
use serde_json::Value;

use super::layout::facts;
use super::words;
use bsd::policy::NAMES;

/// All of it, about the tube of this name.
pub(super) fn section(
    tube: &str,
    policy: &Value,
    has_dead_letters: bool,
    form_word: Option<&str>,
) -> Markup {
    let failed = failed(policy);
    html! {
        section aria-labelledby="policy" {
            h2 id="policy" { "Policy" }
            (source(tube, policy))
            (values(policy))
            @if !failed.is_empty() { (facts(&failed)) }
            @if has_dead_letters { (dead_letters(tube, policy, form_word)) }
            @if let Some(word) = form_word { (forms(tube, policy, word)) }
        }
    }
}

fn source(tube: &str, policy: &Value) -> Markup {
    match policy["set_for"].as_str() {
        None => html! { p { "It has none: the server does nothing with its jobs of itself." } },
        Some(name) if name == tube => html! { p { "It is the tube's own." } },
        Some(pattern) => html! { p { "It is that of " code { (pattern) } "." } },
    }
}

/// What the policy says. A tube that dead letters go to has a page.
fn values(policy: &Value) -> Markup {
    let known = NAMES.iter().filter_map(|(name, ..)| {
        let value = policy["policy"].get(name)?;
        Some((*name, value_of(name, &text_of(value))))
    });
    let known: Vec<_> = known.collect();
    html! { @if !known.is_empty() { (facts(&known)) } }
}

fn value_of(name: &str, value: &str) -> Markup {
    let is_tube = name == "dead-letter" && !["bury", "delete"].contains(&value);
    html! {
        @if is_tube {
            a href=(format!("/tubes/{}", words::escaped(value))) { (value) }
        } @else {
            (value)
        }
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// What has failed since the tube began to exist, without what has not.
fn failed(policy: &Value) -> Vec<(&'static str, Markup)> {
    [
        ("Released", &policy["failures"]["released"]),
        ("Out of time", &policy["failures"]["ttr"]),
        ("Disconnected", &policy["failures"]["disconnected"]),
        ("Failed", &policy["failures"]["failed"]),
        ("Expired", &policy["failures"]["expired"]),
        ("Buried by workers", &policy["failures"]["buried"]),
        ("Set aside", &policy["set_aside"]),
        ("Puts refused", &policy["puts_refused"]),
    ]
    .into_iter()
    .filter_map(|(label, value)| {
        let count = value.as_u64().filter(|count| *count > 0)?;
        Some((label, html! { (words::count(count)) }))
    })
    .collect()
}

/// Where the dead letters of this tube come from, and the way back. They are counted first, and it is
/// asked again.
fn dead_letters(tube: &str, policy: &Value, form_word: Option<&str>) -> Markup {
    let none = Vec::new();
    let sources = policy["dead_letters_of"].as_array().unwrap_or(&none);
    html! {
        @if !sources.is_empty() {
            p {
                "Dead letters come here from "
                @for (nth, source) in sources.iter().filter_map(Value::as_str).enumerate() {
                    @if nth > 0 { ", " }
                    @if source.contains(['*', '?']) { code { (source) } } @else {
                        a href=(format!("/tubes/{}", words::escaped(source))) { (source) }
                    }
                }
                "."
            }
        }
        @if let Some(word) = form_word {
            form class="bar" method="post" action=(to(tube, "count")) {
                input type="hidden" name="form" value=(word);
                input type="hidden" name="what" value="redrive";
                @for state in ["ready", "delayed", "buried"] {
                    input type="hidden" name="state" value=(state);
                }
                button { "Send back all" }
                " Each dead letter goes to the tube that it came from. They are counted first."
            }
        }
    }
}

fn to(tube: &str, what: &str) -> String {
    format!("/tubes/{}/{what}", words::escaped(tube))
}

/// Forms that set and remove it. (A name of a policy has a minus sign, so no field hides what scripts
/// know of a form.)
fn forms(tube: &str, policy: &Value, form_word: &str) -> Markup {
    let hidden = html! { input type="hidden" name="form" value=(form_word); };
    let is_own = policy["set_for"].as_str() == Some(tube);
    html! {
        details {
            summary { "Set the policy" }
            form class="stack" method="post" action=(to(tube, "policy")) {
                (hidden)
                @for (name, kind, meaning, usual) in NAMES {
                    @let id = format!("policy-{name}");
                    @let value = policy["policy"].get(name).map(text_of);
                    label for=(id) { (name) ": " (meaning) }
                    input id=(id) name=(name) value=[value] maxlength="200" autocomplete="off"
                        placeholder=(usual) title=(kind);
                }
                button { "Set" }
                small {
                    "What is left empty has its default. "
                    @if !is_own { "The tube has a policy of its own then." }
                }
            }
        }
        @if is_own {
            form class="bar" method="post" action=(to(tube, "policy/remove")) {
                (hidden)
                button { "Remove the policy" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_section_says_where_the_policy_is_from_and_offers_only_what_may_be_done() {
        let policy = json!({"tube": "mail-1", "set_for": "mail-*",
            "policy": {"delivery-limit": 8, "dead-letter": "a/b"},
            "failures": {"released": 0, "ttr": 1200, "disconnected": 0, "failed": 0, "expired": 0,
                "buried": 0},
            "set_aside": 3, "puts_refused": 0, "dead_letters_of": ["x<y", "m*"]});
        let looked_at = section("mail-1", &policy, true, None).into_string();
        assert!(!looked_at.contains("<form"), "{looked_at}");
        for part in [
            "It is that of <code>mail-*</code>.",
            "<a href=\"/tubes/a%2Fb\">a/b</a>",
            "<dt>delivery-limit</dt><dd>8</dd>",
            "<dt>Out of time</dt><dd>1,200</dd>",
            "<dt>Set aside</dt><dd>3</dd>",
            "x&lt;y</a>, <code>m*</code>.",
        ] {
            assert!(looked_at.contains(part), "{part}: {looked_at}");
        }
        assert!(!looked_at.contains("Puts refused"), "{looked_at}");
        let offered = section("mail-1", &policy, true, Some("word")).into_string();
        assert!(offered.contains("action=\"/tubes/mail-1/policy\""));
        assert!(offered.contains("value=\"redrive\""), "{offered}");
        assert!(!offered.contains("policy/remove"), "it is the pattern's");
        let own = json!({"tube": "t", "set_for": "t", "policy": {"rate": "1/s"}});
        let own = section("t", &own, false, Some("word")).into_string();
        assert!(own.contains("policy/remove") && !own.contains("redrive"));
    }
}
