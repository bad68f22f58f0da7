//! Sessions of signed-in visitors, in the memory of this instance.
//!
//! A session is found by the SHA-256 of its id, so that neither memory nor timing shows an id. It
//! remembers the credential, not the roles: those are looked up at each request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_auth::Credential;
use rlaas_console::FormSecret;

use super::seal::{Seal, UsedSignIns};
use super::wrong_tokens::WrongTokens;
use crate::clock::{Clock, Micros, Timestamp};

/// Most sessions. Above it the one that was not used for the longest time ends.
const MAX_SESSIONS: usize = 1_000;
/// Most sessions of one caller. Above it the oldest one ends.
const MAX_OF_CALLER: usize = 10;
/// Longest time between two requests of a session.
const MAX_IDLE: Micros = Micros::from_secs(30 * 60);
/// Longest time from sign-in to the end of a session.
const MAX_AGE: Micros = Micros::from_secs(8 * 60 * 60);
/// The same for visitors who signed in at the issuer: it names their roles anew.
const MAX_ISSUED_AGE: Micros = Micros::from_secs(60 * 60);

/// The sessions of an instance.
#[derive(Debug)]
pub struct Sessions {
    clock: Clock,
    /// The secret of forms of local visitors, who need no session.
    local_secret: FormSecret,
    seal: Seal,
    used_sign_ins: UsedSignIns,
    wrong_tokens: WrongTokens,
    by_id: Mutex<HashMap<IdHash, Session>>,
}

/// The SHA-256 of the id of a session.
type IdHash = [u8; SHA256_OUTPUT_LEN];

#[derive(Debug)]
struct Session {
    actor: String,
    credential: Credential,
    form_secret: FormSecret,
    opened: Timestamp,
    used: Timestamp,
}

/// The credential and the secret of a session.
#[derive(Clone, Debug)]
pub(super) struct OpenSession {
    pub(super) credential: Credential,
    pub(super) form_secret: FormSecret,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::with_clock(Clock::default())
    }
}

impl Sessions {
    fn with_clock(clock: Clock) -> Self {
        Self {
            local_secret: FormSecret::new(&random_text().unwrap_or_default()),
            seal: Seal::new(clock.clone()),
            used_sign_ins: UsedSignIns::default(),
            wrong_tokens: WrongTokens::new(clock.clone()),
            clock,
            by_id: Mutex::default(),
        }
    }

    /// Returns the secret of forms of local visitors.
    pub(super) fn local_secret(&self) -> FormSecret {
        self.local_secret.clone()
    }

    /// Returns what seals texts that browsers carry.
    pub(super) fn seal(&self) -> &Seal {
        &self.seal
    }

    /// Returns the sign-ins at the issuer that have ended.
    pub(super) fn used_sign_ins(&self) -> &UsedSignIns {
        &self.used_sign_ins
    }

    /// Returns the wrong tokens of visitors who have not signed in.
    pub(super) fn wrong_tokens(&self) -> &WrongTokens {
        &self.wrong_tokens
    }

    /// Opens a session, and returns its id: 256 random bits as 43 characters.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub(super) fn open(&self, actor: &str, credential: Credential) -> Result<String, Unspecified> {
        let (id, form_secret) = (random_text()?, FormSecret::new(&random_text()?));
        let now = self.clock.now();
        let mut sessions = self.lock();
        sessions.retain(|_, session| !session.has_ended(now));
        let of_caller = sessions.iter().filter(|(_, session)| session.actor == actor);
        let of_caller: Vec<_> = of_caller.map(|(at, session)| (session.opened, *at)).collect();
        if of_caller.len() >= MAX_OF_CALLER
            && let Some((_, oldest)) = of_caller.into_iter().min()
        {
            sessions.remove(&oldest);
        }
        if sessions.len() >= MAX_SESSIONS
            && let Some((_, idle)) = sessions.iter().map(|(at, session)| (session.used, *at)).min()
        {
            sessions.remove(&idle);
        }
        let session =
            Session { actor: actor.to_owned(), credential, form_secret, opened: now, used: now };
        sessions.insert(id_hash(&id), session);
        Ok(id)
    }

    /// Returns the session with an id, which counts as used.
    pub(super) fn find(&self, id: &str) -> Option<OpenSession> {
        let now = self.clock.now();
        self.with_session(id, now, |session| session.used = now)
    }

    /// Returns the session with an id, which does not count as used: its visitor may be away.
    pub(super) fn look_up(&self, id: &str) -> Option<OpenSession> {
        self.with_session(id, self.clock.now(), |_| ())
    }

    fn with_session(
        &self,
        id: &str,
        now: Timestamp,
        change: impl FnOnce(&mut Session),
    ) -> Option<OpenSession> {
        let at = id_hash(id);
        let mut sessions = self.lock();
        let session = sessions.get_mut(&at)?;
        if session.has_ended(now) {
            sessions.remove(&at);
            return None;
        }
        change(session);
        let Session { credential, form_secret, .. } = session;
        Some(OpenSession { credential: credential.clone(), form_secret: form_secret.clone() })
    }

    /// Ends the session with an id, if there is one.
    pub(super) fn end(&self, id: &str) {
        self.lock().remove(&id_hash(id));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IdHash, Session>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn has_ended(&self, now: Timestamp) -> bool {
        now.since(self.used) >= MAX_IDLE || now.since(self.opened) >= self.max_age()
    }

    fn max_age(&self) -> Micros {
        match self.credential {
            Credential::IdToken(_) => MAX_ISSUED_AGE,
            Credential::Token(_) | Credential::Certificate(_) => MAX_AGE,
        }
    }
}

fn id_hash(id: &str) -> IdHash {
    let mut hash = IdHash::default();
    hash.copy_from_slice(digest(&SHA256, id.as_bytes()).as_ref());
    hash
}

/// Returns 256 random bits as text for URLs.
pub(super) fn random_text() -> Result<String, Unspecified> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rlaas_auth::ShownToken;

    use super::*;
    use crate::clock::ManualClock;

    fn sessions() -> (Sessions, ManualClock) {
        let clock = ManualClock::new(Timestamp::EPOCH + MAX_AGE);
        (Sessions::with_clock(Clock::Manual(clock.clone())), clock)
    }

    fn credential() -> Credential {
        Credential::Certificate(Arc::from(["ops".to_owned()]))
    }

    fn open(sessions: &Sessions, actor: &str) -> String {
        sessions.open(actor, credential()).expect("random numbers")
    }

    fn pass(clock: &ManualClock, span: Micros) {
        clock.set(clock.now() + span);
    }

    #[test]
    fn ids_and_secrets_are_random_and_of_256_bits() {
        let (sessions, _) = sessions();
        let (one, other) = (open(&sessions, "ops"), open(&sessions, "ops"));
        assert_ne!(one, other);
        assert_eq!(one.len(), 43);
        let secret = |id| sessions.find(id).expect("a session").form_secret;
        let (one, other) = (secret(&one), secret(&other));
        assert!(one != other && one != sessions.local_secret());
        assert!(one.is(&one.masked()) && !one.is(&other.masked()) && !one.is(one.as_str()));
        assert!(!FormSecret::new("").is(""));
        assert_eq!(format!("{one:?}"), "***");
    }

    #[test]
    fn a_session_ends_when_it_is_idle_and_when_it_is_old() {
        let (sessions, clock) = sessions();
        let id = open(&sessions, "ops");
        let almost = MAX_IDLE - Micros::from_micros(1);
        pass(&clock, almost);
        assert!(sessions.find(&id).is_some());
        pass(&clock, MAX_IDLE);
        assert!(sessions.find(&id).is_none());
        let id = open(&sessions, "ops");
        pass(&clock, almost);
        assert!(sessions.look_up(&id).is_some());
        pass(&clock, Micros::from_micros(1));
        assert!(sessions.look_up(&id).is_none(), "watching does not keep it open");
        let id = open(&sessions, "ops");
        for _ in 0..16 {
            pass(&clock, almost);
            assert!(sessions.find(&id).is_some());
        }
        pass(&clock, almost);
        assert!(sessions.find(&id).is_none(), "8 h after its sign-in");
        assert!(sessions.lock().is_empty());
    }

    #[test]
    fn a_session_by_the_issuer_ends_after_an_hour() {
        let (sessions, clock) = sessions();
        let of_issuer = Credential::IdToken(ShownToken::of_issuer(b"a.b.c"));
        let id = sessions.open("oidc:a#b", of_issuer).expect("random numbers");
        for _ in 0..3 {
            pass(&clock, Micros::from_secs(20 * 60 - 1));
            assert!(sessions.find(&id).is_some());
        }
        pass(&clock, Micros::from_secs(3));
        assert!(sessions.find(&id).is_none());
    }

    #[test]
    fn the_oldest_session_of_a_caller_ends_and_no_other() {
        let (sessions, clock) = sessions();
        let other = open(&sessions, "other");
        let ids: Vec<String> = (0..=MAX_OF_CALLER)
            .map(|_| {
                pass(&clock, Micros::from_secs(1));
                open(&sessions, "ops")
            })
            .collect();
        let is_open: Vec<bool> = ids.iter().map(|id| sessions.find(id).is_some()).collect();
        assert_eq!(is_open.iter().filter(|open| **open).count(), MAX_OF_CALLER);
        assert!(!is_open[0] && sessions.find(&other).is_some());
    }

    #[test]
    fn sessions_are_bounded_and_the_one_that_idles_ends() {
        let (sessions, clock) = sessions();
        let ids: Vec<String> = (0..MAX_SESSIONS)
            .map(|number| {
                pass(&clock, Micros::from_millis(1));
                open(&sessions, &number.to_string())
            })
            .collect();
        assert!(sessions.find(&ids[0]).is_some());
        let last = open(&sessions, "last");
        assert_eq!(sessions.lock().len(), MAX_SESSIONS);
        assert!(sessions.find(&ids[1]).is_none(), "the one that was not used for the longest time");
        assert!(sessions.find(&ids[0]).is_some() && sessions.find(&last).is_some());
    }

    #[test]
    fn a_session_that_was_ended_is_not_found() {
        let (sessions, _) = sessions();
        let id = open(&sessions, "ops");
        sessions.end(&id);
        for id in [&*id, "", "unknown"] {
            assert!(sessions.find(id).is_none());
            sessions.end(id);
        }
    }
}
