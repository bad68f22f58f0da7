//! Sealed texts: a browser carries them for this instance, and can neither read nor change them. A
//! sign-in that was sealed is used once.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use crate::clock::{Clock, Micros, Timestamp};

/// Longest sealed text, in characters.
const MAX_SEALED: usize = 8 * 1024;
/// Bytes of the time at which a text was sealed.
const TIME_LEN: usize = 8;

/// Seals texts, by a key that this process alone has. Without random numbers it seals nothing.
pub(super) struct Seal {
    key: Option<LessSafeKey>,
    random: SystemRandom,
    clock: Clock,
}

/// The purpose of a sealed text. It can be opened for the same purpose alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealPurpose<'a> {
    pub(super) name: &'static str,
    /// The visitor whose text it is; empty if it is for any.
    pub(super) owner: &'a str,
    /// Longest time between sealing and opening.
    pub(super) max_age: Micros,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Seal {
    pub(super) fn new(clock: Clock) -> Self {
        let random = SystemRandom::new();
        let mut bytes = [0; 32];
        let filled = random.fill(&mut bytes).ok();
        let key = filled.and_then(|()| UnboundKey::new(&CHACHA20_POLY1305, &bytes).ok());
        Self { key: key.map(LessSafeKey::new), random, clock }
    }

    /// Returns a text as visible characters without meaning. `None` without random numbers.
    pub(super) fn seal(&self, purpose: SealPurpose<'_>, text: &str) -> Option<String> {
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).ok()?;
        let now = self.clock.now().as_micros().to_be_bytes();
        let mut content = [&now, text.as_bytes()].concat();
        let (aad, unique) = (purpose.aad(), Nonce::assume_unique_for_key(nonce));
        self.key.as_ref()?.seal_in_place_append_tag(unique, aad, &mut content).ok()?;
        Some(URL_SAFE_NO_PAD.encode([&nonce[..], &content].concat()))
    }

    /// Returns the text, if it was sealed by this process, for this purpose, and not long ago.
    pub(super) fn open(&self, purpose: SealPurpose<'_>, sealed: &str) -> Option<String> {
        if sealed.len() > MAX_SEALED {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, content) = bytes.split_first_chunk::<NONCE_LEN>()?;
        let mut content = content.to_vec();
        let unique = Nonce::assume_unique_for_key(*nonce);
        let opened = self.key.as_ref()?.open_in_place(unique, purpose.aad(), &mut content).ok()?;
        let (time, text) = opened.split_first_chunk::<TIME_LEN>()?;
        let at = Timestamp::from_micros(u64::from_be_bytes(*time));
        let is_recent = self.clock.now().since(at) <= purpose.max_age;
        is_recent.then(|| String::from_utf8(text.to_vec()).ok()).flatten()
    }
}

impl SealPurpose<'_> {
    fn aad(self) -> Aad<Vec<u8>> {
        Aad::from([self.name.as_bytes(), b"\0", self.owner.as_bytes()].concat())
    }
}

/// Most sign-ins that are remembered. Above it the oldest one is forgotten.
const MAX_REMEMBERED: usize = 4_096;

/// The states of sign-ins whose code was exchanged.
#[derive(Debug, Default)]
pub(super) struct UsedSignIns(Mutex<UsedStates>);

#[derive(Debug, Default)]
struct UsedStates {
    all: HashSet<Arc<str>>,
    /// Oldest first.
    order: VecDeque<Arc<str>>,
}

impl UsedSignIns {
    /// Uses up a sign-in. Returns `false` if it was used before.
    pub(super) fn use_up(&self, state: &str) -> bool {
        let state = Arc::<str>::from(state);
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !used.all.insert(Arc::clone(&state)) {
            return false;
        }
        if used.order.len() == MAX_REMEMBERED
            && let Some(oldest) = used.order.pop_front()
        {
            used.all.remove(&oldest);
        }
        used.order.push_back(state);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    const HOUR: Micros = Micros::from_secs(3_600);

    fn seal() -> (Seal, ManualClock) {
        let clock = ManualClock::new(Timestamp::EPOCH + HOUR);
        (Seal::new(Clock::Manual(clock.clone())), clock)
    }

    fn purpose(name: &'static str, owner: &'static str) -> SealPurpose<'static> {
        SealPurpose { name, owner, max_age: HOUR }
    }

    #[test]
    fn a_text_opens_for_its_purpose_and_its_visitor_alone() {
        let (seal, _) = seal();
        for text in ["", "banned alice", "\0<script>\u{202e}"] {
            let sealed = seal.seal(purpose("done", "ops"), text).expect("random numbers");
            assert!(
                sealed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            );
            assert_eq!(seal.open(purpose("done", "ops"), &sealed).as_deref(), Some(text));
            assert_eq!(seal.open(purpose("done", "other"), &sealed), None);
            assert_eq!(seal.open(purpose("sign-in", "ops"), &sealed), None);
            assert_eq!(self::seal().0.open(purpose("done", "ops"), &sealed), None, "other process");
        }
    }

    #[test]
    fn a_text_that_was_changed_or_is_old_does_not_open() {
        let (seal, clock) = seal();
        let sealed = seal.seal(purpose("done", ""), "text").expect("random numbers");
        for at in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).expect("text");
            assert_eq!(seal.open(purpose("done", ""), &changed), None, "{at}");
        }
        for other in ["", "A", "\u{202e}", &sealed[1..], &"A".repeat(MAX_SEALED + 1)] {
            assert_eq!(seal.open(purpose("done", ""), other), None, "{other}");
        }
        clock.set(clock.now() + HOUR);
        assert!(seal.open(purpose("done", ""), &sealed).is_some());
        clock.set(clock.now() + Micros::from_micros(1));
        assert_eq!(seal.open(purpose("done", ""), &sealed), None);
    }
}

#[cfg(test)]
mod used_sign_ins_tests {
    use super::*;

    #[test]
    fn a_sign_in_is_used_once_and_a_bounded_number_is_remembered() {
        let used = UsedSignIns::default();
        let state = |number: usize| format!("state-{number}");
        for number in 0..MAX_REMEMBERED {
            assert!(used.use_up(&state(number)));
        }
        assert!(!used.use_up(&state(0)) && !used.use_up(&state(MAX_REMEMBERED - 1)));
        assert!(used.use_up(&state(MAX_REMEMBERED)));
        assert!(!used.use_up(&state(1)) && used.use_up(&state(0)), "the oldest one is forgotten");
        let lengths = |used: &UsedStates| (used.all.len(), used.order.len());
        assert_eq!(lengths(&used.0.lock().expect("no panic")), (MAX_REMEMBERED, MAX_REMEMBERED));
    }
}
