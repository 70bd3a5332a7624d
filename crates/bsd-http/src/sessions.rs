//! Sessions of browsers that have shown a token. A browser cannot send a token with each page that it
//! asks for; so it shows it once, and gets a cookie. The cookie is a random word that means
//! something here alone, for some hours; it is sent with no request that a page of another site
//! makes, and no script can read it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::{COOKIE, HeaderMap};
use tokio::time::Instant;

use super::holder::Holder;
use bsd_net::secrets::{is_same, random_word};

/// Sessions that are open at a time. Who begins another ends the first one of the token that has the
/// most, so that no token ends the only session of another one.
pub(super) const SESSIONS_MAX: usize = 256;
/// A session ends after this.
pub(super) const SESSION_TIME: Duration = Duration::from_secs(12 * 3600);

struct Session {
    word: String,
    holder: Holder,
    /// A member that follows shows it to its leader.
    token: Secret,
    begun: Instant,
}

/// A text whose bytes are gone with it.
struct Secret(Vec<u8>);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Who fills what no one reads again may leave it out.
        std::hint::black_box(&self.0);
    }
}

/// Those that are open.
#[derive(Default)]
pub(super) struct Sessions {
    /// The one that was opened first is first.
    open: Mutex<VecDeque<Session>>,
    /// Of the cookie: servers on one machine share their cookies, whatever their ports.
    name: String,
    /// Browsers send the cookie over TLS alone.
    is_secure: bool,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sessions", self.open().len())
    }
}

impl Sessions {
    /// Of a server on this port, over TLS or not.
    pub(super) fn new(port: u16, has_tls: bool) -> Sessions {
        Sessions {
            open: Mutex::default(),
            name: format!("bsd-{port}"),
            is_secure: has_tls,
        }
    }

    fn open(&self) -> MutexGuard<'_, VecDeque<Session>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open one for who has shown this token: the value of the field `Set-Cookie`.
    pub(super) fn begin(&self, holder: Holder, token: &str) -> std::io::Result<String> {
        let word = random_word()?;
        let cookie = self.cookie(&word, SESSION_TIME);
        let mut open = self.open();
        open.push_back(Session {
            word,
            holder,
            token: Secret(token.as_bytes().to_vec()),
            begun: Instant::now(),
        });
        if open.len() > SESSIONS_MAX {
            let mut counts = BTreeMap::<usize, usize>::new();
            for session in &*open {
                *counts.entry(session.holder.line).or_default() += 1;
            }
            let most = counts.into_iter().max_by_key(|(_, count)| *count);
            let is_of_most = |it: &Session| most.is_some_and(|(line, _)| line == it.holder.line);
            if let Some(first) = open.iter().position(is_of_most) {
                open.remove(first);
            }
        }
        Ok(cookie)
    }

    /// End the session of a request: the value of the field `Set-Cookie`.
    pub(super) fn end(&self, headers: &HeaderMap) -> String {
        if let Some(word) = self.word(headers) {
            self.open()
                .retain(|it| !is_same(it.word.as_bytes(), word.as_bytes()));
        }
        self.cookie("", Duration::ZERO)
    }

    /// The owner of the session of a request.
    pub(super) fn find(&self, headers: &HeaderMap) -> Option<Holder> {
        self.look(headers, |session| session.holder)
    }

    /// The token with which the session of a request was begun.
    pub(super) fn token(&self, headers: &HeaderMap) -> Option<String> {
        let token = self.look(headers, |session| session.token.0.clone())?;
        String::from_utf8(token).ok()
    }

    /// Cookies are sent over TLS alone.
    pub(super) fn is_secure(&self) -> bool {
        self.is_secure
    }

    fn look<T>(&self, headers: &HeaderMap, look: impl FnOnce(&Session) -> T) -> Option<T> {
        let word = self.word(headers)?;
        let mut open = self.open();
        open.retain(|session| session.begun.elapsed() < SESSION_TIME);
        let found = open
            .iter()
            .find(|it| is_same(it.word.as_bytes(), word.as_bytes()));
        found.map(look)
    }

    fn cookie(&self, word: &str, time: Duration) -> String {
        let (name, seconds) = (&self.name, time.as_secs());
        let secure = if self.is_secure { "; Secure" } else { "" };
        format!("{name}={word}; Path=/; Max-Age={seconds}; SameSite=Strict; HttpOnly{secure}")
    }

    fn word<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let fields = headers.get_all(COOKIE).iter();
        let cookies = fields.filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|value| value.split(';'));
        pairs.find_map(|pair| pair.trim().strip_prefix(&*self.name)?.strip_prefix('='))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Role;

    const HOLDER: Holder = Holder {
        role: Role::Read,
        line: 3,
    };

    fn sent(cookie: &str) -> HeaderMap {
        let (pair, _) = cookie.split_once(';').unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, format!("other=1; {pair}").parse().unwrap());
        headers
    }

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_is_ended() {
        let sessions = Sessions::new(80, false);
        let cookie = sessions.begin(HOLDER, "one").unwrap();
        assert!(cookie.contains("SameSite=Strict; HttpOnly"), "{cookie}");
        let headers = sent(&cookie);
        assert_eq!(sessions.find(&headers), Some(HOLDER));
        assert_eq!(sessions.token(&headers).as_deref(), Some("one"));
        assert_eq!(sessions.find(&HeaderMap::new()), None);
        for wrong in ["bsd-80=;", "bsd-80=0;", "bsd-8=x;"] {
            assert_eq!(sessions.find(&sent(wrong)), None, "{wrong}");
        }
        assert_eq!(
            Sessions::new(81, false).find(&headers),
            None,
            "another server's"
        );
        assert!(sessions.end(&headers).contains("Max-Age=0"));
        assert_eq!(sessions.find(&headers), None);
        assert_eq!(sessions.token(&headers), None);
    }

    #[test]
    fn past_the_bound_the_oldest_session_ends() {
        let sessions = Sessions::new(80, false);
        let cookies: Vec<_> = (0..=SESSIONS_MAX)
            .map(|_| sent(&sessions.begin(HOLDER, "one").unwrap()))
            .collect();
        assert_eq!(sessions.find(&cookies[0]), None);
        let others = cookies[1..].iter();
        assert!(others.into_iter().all(|it| sessions.find(it).is_some()));
    }

    #[test]
    fn g34_anyone_who_begins_many_sessions_ends_their_own() {
        let sessions = Sessions::new(80, false);
        let other = Holder { line: 4, ..HOLDER };
        let admins = sent(&sessions.begin(other, "two").unwrap());
        let many: Vec<_> = (0..2 * SESSIONS_MAX)
            .map(|_| sent(&sessions.begin(HOLDER, "one").unwrap()))
            .collect();
        assert_eq!(sessions.find(&admins), Some(other));
        assert_eq!(sessions.open().len(), SESSIONS_MAX);
        let kept = many.iter().filter(|it| sessions.find(it).is_some());
        assert_eq!(kept.count(), SESSIONS_MAX - 1);
        let last = sent(&sessions.begin(other, "two").unwrap());
        assert_eq!(
            [&admins, &last].map(|it| sessions.find(it)),
            [Some(other); 2]
        );
    }

    #[test]
    fn over_tls_the_cookie_is_sent_over_tls_alone() {
        let sessions = Sessions::new(80, true);
        let cookies = [
            sessions.begin(HOLDER, "one").unwrap(),
            sessions.end(&HeaderMap::new()),
        ];
        assert!(
            cookies.iter().all(|cookie| cookie.ends_with("; Secure")),
            "{cookies:?}"
        );
    }

    #[test]
    fn a_session_ends_with_its_time() {
        let sessions = Sessions::new(80, false);
        let headers = sent(&sessions.begin(HOLDER, "one").unwrap());
        let long_ago = Instant::now().checked_sub(SESSION_TIME).unwrap();
        sessions.open()[0].begun = long_ago;
        assert_eq!(sessions.find(&headers), None);
    }
}
