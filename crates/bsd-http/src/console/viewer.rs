//! Who looks at a page: what may be offered, and what there is to be told.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Asked, Console};
use crate::cluster;
use crate::guard::Asker;
use crate::route::Role;
use crate::{Membership, State};
use bsd::clock::utc;

/// Things to be told that are kept for those who did something.
const SAID_MAX: usize = 64;

/// Who looks.
#[derive(Debug)]
pub(super) struct Viewer {
    pub(super) role: Role,
    /// A session can be ended.
    pub(super) has_session: bool,
    /// Secret that every form has to send with it; `None` for viewers without the right to change
    /// anything.
    pub(super) form_word: Option<String>,
    /// The server is one of several.
    pub(super) sees_cluster: bool,
    /// Its role in the cluster, in words, and the leader's console if that is another one.
    pub(super) standing: Option<(String, Option<String>)>,
    /// Result of the last change.
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
            sees_cluster: cluster::check_there(&state.handles).is_ok(),
            standing: standing(state),
            said: said.and_then(|word| state.console.told(word)),
        }
    }

    /// Of a page that is for anyone.
    pub(super) fn no_one() -> Viewer {
        Viewer {
            role: Role::Anyone,
            has_session: false,
            form_word: None,
            sees_cluster: false,
            standing: None,
            said: None,
        }
    }

    /// The secret for forms that change something, for viewers that may.
    pub(super) fn admin(&self) -> Option<&str> {
        let word = self.form_word.as_deref();
        word.filter(|_| self.role >= Role::Admin)
    }
}

/// Role of a member of a cluster, for the top of every page, and the address of the leader's
/// console.
fn standing(state: &State) -> Option<(String, Option<String>)> {
    let membership = cluster::membership(&state.handles)?;
    let sentence = standing_of(&membership, state.handles.clock.now().wall_ns);
    Some((sentence, membership.leader_http))
}

/// The sentence, for a page that is open while it changes.
pub(super) fn standing_now(state: &State) -> Option<String> {
    standing(state).map(|(sentence, _)| sentence)
}

fn standing_of(membership: &Membership, wall_ns: u64) -> String {
    if !membership.is_behind() {
        return match membership.is_member {
            true => "This member leads its cluster.".into(),
            false => "This server is no member of a cluster now.".into(),
        };
    }
    let as_of = match membership.as_of {
        Some(ago) => {
            let ago = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
            format!("as of {}", utc(wall_ns.saturating_sub(ago)))
        }
        None => "which may lack what others have".into(),
    };
    let role = match membership.role {
        "follower" => "Follower",
        _ => "No leader is known",
    };
    format!(
        "{role}, {as_of}: jobs that became due are shown as delayed, reserved ones as ready. Jobs are \
         changed by the leader alone."
    )
}

impl Console {
    /// Keep a sentence for a browser that is sent to another page: the word by which it is found
    /// there.
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

    /// The kept result; it is shown once.
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
