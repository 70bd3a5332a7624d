//! Who looks at a page: what may be offered, and what there is to be told.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::{Asked, Console, View};
use crate::guard::Asker;
use crate::relay::{self, OWN_VIEW};
use crate::route::Role;
use crate::{LEADER, Membership, State, cluster};
use bsd::clock::utc;

/// Things to be told that are kept for those who did something.
const SAID_MAX: usize = 64;

/// Which member of a cluster has made a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// In words.
    pub(super) sentence: String,
    /// They change while the page is open.
    pub(super) is_live: bool,
    /// The leader's console, if that is another one.
    pub(super) leader: Option<String>,
    /// Why the leader has not made it.
    pub(super) why: Option<String>,
    /// The same page of another member: its address, and what to call it.
    pub(super) other: Option<(&'static str, &'static str)>,
    /// This member does not lead, and the page is its own.
    pub(super) is_own: bool,
}

/// Who looks.
#[derive(Debug)]
pub(super) struct Viewer {
    pub(super) role: Role,
    /// Word of the form that ends the session of the viewer, if there is one: of the member at which
    /// it was begun.
    pub(super) leave_word: Option<String>,
    /// Secret that every form has to send with it; `None` for viewers without the right to change
    /// anything.
    pub(super) form_word: Option<String>,
    /// The server is one of several.
    pub(super) sees_cluster: bool,
    /// The page was asked for in the view of a member that follows, and its links keep that.
    pub(super) keeps_own_view: bool,
    /// Which member of a cluster says all this.
    pub(super) standing: Option<Standing>,
    /// Result of the last change.
    pub(super) said: Option<String>,
}

impl Viewer {
    pub(super) fn of(state: &State, asked: &Asked) -> Viewer {
        let role = asked.asker.role();
        let has_session = matches!(asked.asker, Asker::Token(_))
            && state.access.sessions.find(&asked.headers).is_some();
        let standing = standing(state, asked);
        let leads = standing.as_ref().is_some_and(|standing| !standing.is_own);
        let passed_on = relay::passed_on_by(&asked.headers).filter(|_| leads);
        let leave_word = match passed_on {
            Some((_, word)) => word.map(ToOwned::to_owned),
            None => has_session.then(|| state.console.form_word.clone()),
        };
        let is_known = role >= Role::Admin || leave_word.is_some();
        let said = asked.query.text("said");
        Viewer {
            role,
            leave_word,
            form_word: is_known.then(|| state.console.form_word.clone()),
            sees_cluster: cluster::check_there(&state.handles).is_ok(),
            keeps_own_view: asked.view == View::Own && !leads && standing.is_some(),
            standing,
            said: said.and_then(|word| state.console.told(word)),
        }
    }

    /// Of a page that is for anyone.
    pub(super) fn no_one() -> Viewer {
        Viewer {
            role: Role::Anyone,
            leave_word: None,
            form_word: None,
            sees_cluster: false,
            keeps_own_view: false,
            standing: None,
            said: None,
        }
    }

    /// The secret for forms that change something, for viewers that may.
    pub(super) fn admin(&self) -> Option<&str> {
        let word = self.form_word.as_deref();
        word.filter(|_| self.role >= Role::Admin)
    }

    /// The same for forms that change a job: a member that does not lead changes none.
    pub(super) fn changer(&self) -> Option<&str> {
        let standing = self.standing.as_ref();
        self.admin()
            .filter(|_| standing.is_none_or(|it| !it.is_own))
    }
}

/// For the top of every page of a member of a cluster.
fn standing(state: &State, asked: &Asked) -> Option<Standing> {
    let membership = cluster::membership(&state.handles)?;
    let is_own = membership.role != LEADER;
    let by = relay::passed_on_by(&asked.headers).filter(|_| !is_own);
    let sentence = match by {
        Some((by, _)) => format!(
            "From member {}, which leads its cluster, through member {by}.",
            membership.id
        ),
        None => standing_of(&membership, state.handles.clock.now().wall_ns),
    };
    let other = match &asked.view {
        View::Own | View::Instead(_) if is_own => Some(("?", "The leader's view, here")),
        _ if by.is_some() => Some((OWN_VIEW, "That member's own view")),
        _ => None,
    };
    let why = asked.view.why().filter(|_| is_own);
    Some(Standing {
        sentence,
        is_live: by.is_none(),
        leader: membership.leader_http,
        why: why.map(ToOwned::to_owned),
        other,
        is_own,
    })
}

/// The sentence, for a page that is open while it changes.
pub(super) fn standing_now(state: &State) -> Option<String> {
    let membership = cluster::membership(&state.handles)?;
    Some(standing_of(&membership, state.handles.clock.now().wall_ns))
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
