//! Who looks at a page: what may be offered, and what there is to be told.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Asked, Console};
use crate::http::State;
use crate::http::cluster;
use crate::http::guard::Asker;
use crate::http::routes::Role;

/// Things to be told that are kept for those who did something.
const SAID_MAX: usize = 64;

/// Who looks.
#[derive(Debug)]
pub(super) struct Viewer {
    pub(super) role: Role,
    /// A session can be ended.
    pub(super) has_session: bool,
    /// What every form has to send with it; nothing for who may change nothing.
    pub(super) form_word: Option<String>,
    /// The server is one of several.
    pub(super) sees_cluster: bool,
    /// What came of what was done.
    pub(super) said: Option<String>,
}

impl Viewer {
    pub(super) fn of(state: &State, asked: &Asked) -> Viewer {
        let role = asked.asker.role();
        let has_session = matches!(asked.asker, Asker::Token(_))
            && state.access.sessions.find(&asked.headers).is_some();
        let is_known = role >= Role::Admin || has_session;
        let said = asked.query.text("said");
        Viewer {
            role,
            has_session,
            form_word: is_known.then(|| state.console.form_word.clone()),
            sees_cluster: cluster::check_there(state).is_ok(),
            said: said.and_then(|word| state.console.told(word)),
        }
    }

    /// Of a page that is for anybody.
    pub(super) fn nobody() -> Viewer {
        Viewer {
            role: Role::Anyone,
            has_session: false,
            form_word: None,
            sees_cluster: false,
            said: None,
        }
    }

    /// The word for forms that change something, for those who may.
    pub(super) fn admin(&self) -> Option<&str> {
        let word = self.form_word.as_deref();
        word.filter(|_| self.role >= Role::Admin)
    }
}

impl Console {
    /// Keep a sentence for who is sent to another page: the word by which it is found there.
    pub(super) fn tell(&self, sentence: String) -> String {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == SAID_MAX {
            said.pop_front();
        }
        // It opens nothing: who guesses it reads a sentence.
        let word = self.told.fetch_add(1, Ordering::Relaxed).to_string();
        said.push_back((word.clone(), sentence));
        word
    }

    /// What was kept; it is told once.
    fn told(&self, word: &str) -> Option<String> {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let at = said.iter().position(|(it, _)| it == word)?;
        said.remove(at).map(|(_, sentence)| sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_kept_until_64_others_were() {
        let console = Console::new().unwrap();
        let words: Vec<_> = (0..=SAID_MAX)
            .map(|nth| console.tell(format!("{nth} was done")))
            .collect();
        assert_eq!(SAID_MAX, 64);
        assert_eq!(console.told(&words[0]), None, "too many have come since");
        for (nth, word) in words.iter().enumerate().skip(1) {
            assert_eq!(console.told(word), Some(format!("{nth} was done")));
            assert_eq!(console.told(word), None, "it is said once");
        }
    }
}
