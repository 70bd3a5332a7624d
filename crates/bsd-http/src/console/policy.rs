//! The policy of a tube on its page: what it says and where it comes from, what has failed in the
//! tube and how that is sent back, where its dead letters go, and the forms that change it.

use maud::{Markup, html};
use serde_json::Value;

use super::layout::{facts, table};
use super::words;
use bsd::policy::NAMES;

/// All of it, about the tube of this name.
pub(super) fn section(
    tube: &str,
    policy: &Value,
    has_dead_letters: bool,
    form_word: Option<&str>,
) -> Markup {
    let (failures, aside) = (failures(policy), aside(policy));
    html! {
        section aria-labelledby="policy" {
            h2 id="policy" { "Policy" }
            (source(tube, policy))
            (values(policy))
            @if !aside.is_empty() { (facts(&aside)) }
            @if !failures.is_empty() { (failures_table(tube, policy, &failures, form_word)) }
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

/// Reasons of failures, and what a page says for them.
const REASONS: [(&str, &str); 6] = [
    ("released", "Released"),
    ("ttr", "Out of time"),
    ("disconnected", "Disconnected"),
    ("failed", "Failed"),
    ("expired", "Expired"),
    ("buried", "Buried by workers"),
];

/// What has become of jobs since the tube began to exist, without what has not happened.
fn aside(policy: &Value) -> Vec<(&'static str, Markup)> {
    let known = [("Set aside", "set_aside"), ("Puts refused", "puts_refused")];
    let known = known.into_iter().filter_map(|(label, name)| {
        let count = policy[name].as_u64().filter(|count| *count > 0)?;
        Some((label, html! { (words::count(count)) }))
    });
    known.collect()
}

/// A reason, what a page says for it, and how often it was that.
type Failures = (&'static str, &'static str, u64);

/// What has failed since the tube began to exist, by reason.
fn failures(policy: &Value) -> Vec<Failures> {
    let known = REASONS.into_iter().filter_map(|(reason, label)| {
        let count = policy["failures"][reason].as_u64();
        Some((reason, label, count.filter(|count| *count > 0)?))
    });
    known.collect()
}

fn failures_table(
    tube: &str,
    policy: &Value,
    failures: &[Failures],
    form_word: Option<&str>,
) -> Markup {
    let head = html! {
        th scope="col" { "Reason" }
        th scope="col" class="number" { "How often" }
        @if form_word.is_some() { th scope="col" { span class="hidden" { "Send back" } } }
    };
    let rows = html! {
        @for (reason, label, count) in failures {
            tr {
                th scope="row" { (label) }
                td class="number" { (words::count(*count)) }
                @if let Some(word) = form_word { td { (send_back(tube, policy, reason, word)) } }
            }
        }
    };
    table("What has failed here", &head, &rows)
}

/// The form that sends back the jobs of a tube that were set aside for a reason; nothing where they are
/// deleted. They are counted first, and it is asked again.
fn send_back(tube: &str, policy: &Value, reason: &str, form_word: &str) -> Markup {
    let there = policy["policy"]["dead-letter"].as_str().unwrap_or("bury");
    let (there, from) = match there {
        _ if reason == "buried" => (tube, None),
        "delete" => return html! {},
        "bury" => (tube, None),
        there => (there, Some(tube)),
    };
    html! {
        form method="post" action=(to(there, "count")) {
            (of_redrive(form_word))
            input type="hidden" name="reason" value=(reason);
            @if let Some(from) = from { input type="hidden" name="from" value=(from); }
            button { "Send back those" }
        }
    }
}

fn of_redrive(form_word: &str) -> Markup {
    html! {
        input type="hidden" name="form" value=(form_word);
        input type="hidden" name="what" value="redrive";
        @for state in ["ready", "delayed", "buried"] {
            input type="hidden" name="state" value=(state);
        }
    }
}

/// Fields that tell jobs apart by what went wrong with them.
pub(super) fn reasons_asked(of: &str) -> Markup {
    let (reason, said) = (format!("{of}-reason"), format!("{of}-said"));
    html! {
        label for=(reason) { "that failed for this reason" }
        select id=(reason) name="reason" {
            option value="" { "any or none" }
            @for (word, label) in REASONS { option value=(word) { (label) } }
        }
        label for=(said) { "of which a worker said this" }
        input id=(said) name="said" maxlength="1000" autocomplete="off";
    }
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
                (of_redrive(word))
                button { "Send back all" }
                " Each dead letter goes to the tube that it came from. They are counted first."
            }
            details {
                summary { "Send back some" }
                form class="stack" method="post" action=(to(tube, "count")) {
                    (of_redrive(word))
                    (reasons_asked("back"))
                    button { "Count those" }
                }
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
            "<th scope=\"row\">Out of time</th><td class=\"number\">1,200</td></tr>",
            "<dt>Set aside</dt><dd>3</dd>",
            "x&lt;y</a>, <code>m*</code>.",
        ] {
            assert!(looked_at.contains(part), "{part}: {looked_at}");
        }
        assert!(!looked_at.contains("Puts refused"), "{looked_at}");
        let offered = section("mail-1", &policy, true, Some("word")).into_string();
        assert!(offered.contains("action=\"/tubes/mail-1/policy\""));
        for part in [
            "value=\"redrive\"",
            "action=\"/tubes/a%2Fb/count\"",
            "name=\"reason\" value=\"ttr\"",
            "name=\"from\" value=\"mail-1\"",
        ] {
            assert!(offered.contains(part), "{part}: {offered}");
        }
        assert!(!offered.contains("policy/remove"), "it is the pattern's");
        let own = json!({"tube": "t", "set_for": "t", "policy": {"rate": "1/s"}});
        let own = section("t", &own, false, Some("word")).into_string();
        assert!(own.contains("policy/remove") && !own.contains("redrive"));
        let deletes = json!({"policy": {"dead-letter": "delete"}});
        let of = |reason| send_back("t", &deletes, reason, "word").into_string();
        assert!(of("ttr").is_empty() && of("buried").contains("/tubes/t/count"));
    }

    #[test]
    fn every_reason_has_a_label() {
        let reasons = bsd::attributes::Reason::ALL.map(|reason| reason.word());
        assert_eq!(REASONS.map(|(word, _)| word), reasons);
    }
}
