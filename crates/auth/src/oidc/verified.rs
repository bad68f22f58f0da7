//! Tokens that were verified: remembered by hash, so that a signature is checked once.
//!
//! Only valid tokens get here, so that nobody can fill it without the issuer. Two generations bound
//! it: when the recent one is full, the older one is dropped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlaas_core::clock::Timestamp;

use super::super::caller::Caller;
use super::super::token::TokenHash;
use super::keys::{KeySet, PublicKey};

/// Maximum number of tokens in a generation.
const MAX_GENERATION: usize = 5_000;

/// A token whose signature and claims were checked.
#[derive(Clone, Debug)]
pub(super) struct VerifiedToken {
    pub(super) caller: Caller,
    pub(super) key: Arc<PublicKey>,
    /// Time from which the token must be verified again.
    pub(super) remembered_until: Timestamp,
}

/// The tokens that were verified, at most 10,000.
#[derive(Debug, Default)]
pub(super) struct VerifiedTokens(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    recent: HashMap<TokenHash, VerifiedToken>,
    older: HashMap<TokenHash, VerifiedToken>,
}

impl VerifiedTokens {
    /// Returns a token that need not be verified again.
    pub(super) fn find(&self, hash: &TokenHash, now: Timestamp) -> Option<VerifiedToken> {
        let mut generations = self.lock();
        if let Some(token) = generations.recent.get(hash) {
            return Some(token.clone()).filter(|token| now < token.remembered_until);
        }
        let token = generations.older.remove(hash).filter(|token| now < token.remembered_until)?;
        generations.insert(*hash, token.clone());
        Some(token)
    }

    /// Remembers a token.
    pub(super) fn insert(&self, hash: TokenHash, token: VerifiedToken) {
        self.lock().insert(hash, token);
    }

    /// Forgets the tokens whose key is not in the set.
    pub(super) fn retain(&self, keys: &KeySet) {
        let Generations { recent, older } = &mut *self.lock();
        for generation in [recent, older] {
            generation.retain(|_, token| keys.contains(&token.key));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    fn insert(&mut self, hash: TokenHash, token: VerifiedToken) {
        if self.recent.len() >= MAX_GENERATION {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(hash, token);
    }
}

#[cfg(test)]
mod tests {
    use rlaas_core::clock::Micros;

    use super::super::settings::TokenAlgorithm;
    use super::*;
    use crate::roles::Roles;

    const UNTIL: Timestamp = Timestamp::from_millis(1_000);

    fn hash(number: usize) -> TokenHash {
        TokenHash::from_token(number.to_string().as_bytes())
    }

    fn token() -> VerifiedToken {
        let keys = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a",
            "x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        let keys = KeySet::from_json(keys.as_bytes(), &KeySet::default()).expect("a key set");
        let key = keys.find("a", TokenAlgorithm::EdDsa).expect("a key");
        VerifiedToken {
            caller: Caller::new("oidc:a#b", Roles::ALL),
            key: Arc::clone(key),
            remembered_until: UNTIL,
        }
    }

    #[test]
    fn token_is_remembered_until_its_time() {
        let tokens = VerifiedTokens::default();
        tokens.insert(hash(1), token());
        let before = Timestamp::from_micros(UNTIL.as_micros() - 1);
        assert!(tokens.find(&hash(1), before).is_some());
        assert!(tokens.find(&hash(1), UNTIL).is_none());
        assert!(tokens.find(&hash(1), UNTIL + Micros::from_secs(1)).is_none());
        assert!(tokens.find(&hash(2), before).is_none());
    }

    #[test]
    fn at_most_10_000_tokens_are_remembered_and_used_ones_stay() {
        let (tokens, token) = (VerifiedTokens::default(), token());
        tokens.insert(hash(0), token.clone());
        for number in 1..=30_000 {
            tokens.insert(hash(number), token.clone());
            if number % 1_000 == 0 {
                assert!(tokens.find(&hash(0), Timestamp::EPOCH).is_some(), "{number}");
            }
            let generations = tokens.lock();
            let count = generations.recent.len() + generations.older.len();
            assert!(count <= 2 * MAX_GENERATION, "{count}");
        }
        assert!(tokens.find(&hash(1), Timestamp::EPOCH).is_none());
        assert!(tokens.find(&hash(30_000), Timestamp::EPOCH).is_some());
    }

    #[test]
    fn tokens_go_with_their_key() {
        let (tokens, token) = (VerifiedTokens::default(), token());
        tokens.insert(hash(1), token);
        tokens.retain(&KeySet::default());
        assert!(tokens.find(&hash(1), Timestamp::EPOCH).is_none());
    }
}
