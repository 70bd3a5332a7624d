//! `/login`, where HTTP is served to holders of tokens: a token is shown once, and a cookie stands
//! for it.

use hyper::StatusCode;
use hyper::header::{HeaderValue, SET_COOKIE};
use maud::{Markup, html};

use super::layout::{Frame, Place};
use super::viewer::Viewer;
use super::{Asked, go_to, words};
use crate::State;
use crate::answer::{Answer, Problem, Said, WrongToken};
use crate::route::{Parameter, Role};

pub(super) const PARAMETERS: &[Parameter] = &[Parameter::text(
    "to",
    "Where to go when the token was right",
)];

/// The form.
pub(super) fn page(state: &State, asked: &Asked) -> Answer {
    let to = asked.query.text("to").unwrap_or("/");
    match state.access.has_tokens() {
        true => form(state, StatusCode::OK, to, None),
        false => go_to("/"),
    }
}

/// Where a request that needs a token is sent to be let in.
pub(super) fn way(path_and_query: &str) -> Answer {
    go_to(&format!("/login?to={}", words::escaped(path_and_query)))
}

fn form(state: &State, status: StatusCode, to: &str, why: Option<&str>) -> Answer {
    let frame = Frame {
        place: Place::Elsewhere,
        title: "Who is there?".to_owned(),
        events: None,
        viewer: Viewer::no_one(),
        content: content(&state.console.form_word, to, why),
    };
    frame.answer(status)
}

fn content(form_word: &str, to: &str, why: Option<&str>) -> Markup {
    html! {
        p { "This server is for holders of a token of its file " code { "--http-tokens" } "." }
        form class="stack" method="post" action="/login" {
            input type="hidden" name="form" value=(form_word);
            input type="hidden" name="to" value=(to);
            @if let Some(why) = why { p class="why" role="alert" id="why" { (why) } }
            label for="token" { "Token" }
            input id="token" name="token" type="password" autocomplete="current-password" required
                maxlength="1000" aria-describedby=[why.map(|_| "why")];
            button { "Enter" }
        }
    }
}

/// A token was shown.
pub(super) fn enter(
    state: &State,
    token: Option<&str>,
    to: Option<&str>,
) -> Result<Answer, Problem> {
    let to = to.filter(|to| is_here(to)).unwrap_or("/");
    let token = token.unwrap_or_default().trim();
    let refused = |why| form(state, StatusCode::FORBIDDEN, to, Some(why));
    let holder = match state.access.holder(token) {
        Some(holder) if holder.role != Role::Anyone => holder,
        Some(_) => return Ok(refused("This token opens nothing over HTTP.")),
        None => {
            let mut answer = refused("No line of the file is that of this token.");
            answer.extensions_mut().insert(WrongToken);
            return Ok(answer);
        }
    };
    let cookie = state.access.sessions.begin(holder, token);
    let cookie = cookie.map_err(|error| {
        Problem::unavailable(format!("the system gives no random bytes: {error}"))
    })?;
    let said = Said(format!("the token in line {}", holder.line));
    Ok(said.with(with_cookie(go_to(to), &cookie)))
}

/// The session is to end.
pub(super) fn leave(state: &State, asked: &Asked) -> Answer {
    let sessions = &state.access.sessions;
    let holder = sessions.find(&asked.headers);
    let answer = with_cookie(go_to("/login"), &sessions.end(&asked.headers));
    match holder {
        None => answer,
        Some(holder) => Said(format!("the token in line {}", holder.line)).with(answer),
    }
}

fn with_cookie(mut answer: Answer, cookie: &str) -> Answer {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        answer.headers_mut().insert(SET_COOKIE, cookie);
    }
    answer
}

/// It is a path of this server, and no address of another.
fn is_here(to: &str) -> bool {
    let is_plain = |byte: u8| (b'!'..=b'~').contains(&byte) && byte != b'\\';
    to.starts_with('/') && !to.starts_with("//") && to.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_leads_nowhere_else() {
        for (to, is_let) in [
            ("/", true),
            ("/tubes?q=a%2Fb", true),
            ("//evil.example", false),
            ("https://evil.example", false),
            ("/\\evil.example", false),
            ("/\r\nx: y", false),
            ("", false),
        ] {
            assert_eq!(is_here(to), is_let, "{to}");
        }
    }
}
