//! Bearer tokens of an OpenID Connect issuer: signed JSON Web Tokens that name their roles.
//!
//! A token is refused by the cheapest check that it fails: length, form, algorithm, key, claims, and
//! only then the signature. What a token says about its key beyond the name is not read: keys come
//! from the discovery document of the configured issuer alone (`fetch`, `refresh`).
//!
//! **Source:** RFC 7519, RFC 8725, RFC 9068 section 4.

mod claims;
mod compact;
mod fetch;
mod keys;
mod refresh;
mod settings;
mod url;
mod verified;

pub use claims::ClaimPath;
pub use refresh::KeysAwaited;
pub use settings::{
    Issuer, IssuerError, IssuerTrust, IssuerTrustError, OidcSettings, TokenAlgorithm,
};

use std::sync::Arc;

use thiserror::Error;

use self::claims::RegisteredClaims;
pub(super) use self::compact::has_form;
use self::compact::{MAX_TOKEN, UnverifiedToken};
use self::refresh::IssuerKeys;
use self::verified::{VerifiedToken, VerifiedTokens};
use super::caller::Caller;
use super::token::TokenHash;
use crate::clock::{Clock, Micros, Timestamp};

/// Longest time for which a token is not verified again.
const MAX_REMEMBERED: Micros = Micros::from_secs(600);

/// The reason why a token of the issuer is refused. Never shows the token.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TokenError {
    /// Not a signed token, or too long.
    #[error("bearer token must be a signed JSON Web Token of at most {MAX_TOKEN} bytes")]
    Malformed,
    /// An algorithm that is not accepted.
    #[error("bearer token is signed by an algorithm that is not accepted")]
    Algorithm,
    /// A key that the issuer does not have, or none.
    #[error("bearer token is not signed by a known key of the issuer")]
    UnknownKey,
    /// A required claim is missing or has another type.
    #[error("bearer token must have the claims iss, aud, exp and sub, each of its type")]
    Claims,
    /// Another issuer.
    #[error("bearer token is of another issuer")]
    Issuer,
    /// Another audience.
    #[error("bearer token is for another audience")]
    Audience,
    /// Its time is over.
    #[error("bearer token has expired")]
    Expired,
    /// Its time has not begun.
    #[error("bearer token is not valid yet")]
    NotYetValid,
    /// The signature is not by the key.
    #[error("bearer token has an invalid signature")]
    Signature,
    /// The keys of the issuer were never fetched.
    #[error("keys of the issuer of bearer tokens are not available")]
    KeysUnavailable,
}

impl TokenError {
    /// Every reason.
    #[cfg(test)]
    pub(super) const ALL: [Self; 10] = [
        Self::Malformed,
        Self::Algorithm,
        Self::UnknownKey,
        Self::Claims,
        Self::Issuer,
        Self::Audience,
        Self::Expired,
        Self::NotYetValid,
        Self::Signature,
        Self::KeysUnavailable,
    ];

    /// Returns the value of the label `reason` of metrics.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Malformed => "oidc_malformed",
            Self::Algorithm => "oidc_algorithm",
            Self::UnknownKey => "oidc_unknown_key",
            Self::Claims => "oidc_claims",
            Self::Issuer => "oidc_issuer",
            Self::Audience => "oidc_audience",
            Self::Expired => "oidc_expired",
            Self::NotYetValid => "oidc_not_yet_valid",
            Self::Signature => "oidc_signature",
            Self::KeysUnavailable => "oidc_keys_unavailable",
        }
    }
}

/// Verifies the tokens of one issuer.
#[derive(Debug)]
pub(super) struct OidcVerifier {
    settings: OidcSettings,
    keys: Arc<IssuerKeys>,
    verified: VerifiedTokens,
    clock: Clock,
}

impl OidcVerifier {
    /// Creates the verifier. It has no keys until [`Self::run`] has fetched them.
    pub(super) fn new(settings: OidcSettings, clock: Clock) -> Self {
        Self { settings, keys: Arc::default(), verified: VerifiedTokens::default(), clock }
    }

    pub(super) fn settings(&self) -> &OidcSettings {
        &self.settings
    }

    /// Keeps the keys up to date. Never returns.
    pub(super) async fn run(&self) {
        self.keys.run(&self.settings, |keys| self.verified.retain(keys)).await;
    }

    /// Returns the caller with a token.
    ///
    /// # Errors
    ///
    /// [`TokenError`].
    pub(super) fn verify(&self, token: &[u8], hash: TokenHash) -> Result<Caller, TokenError> {
        let now = now(&self.clock);
        let known = self.verified.find(&hash, now).filter(|known| self.keys.contains(&known.key));
        let verified = known.map_or_else(|| self.verify_anew(token, hash, now), Ok)?;
        Ok(verified.caller)
    }

    /// Returns a fetch after which a token that was refused for this reason may be valid.
    pub(super) fn keys_awaited(&self, refused: TokenError) -> Option<KeysAwaited> {
        match refused {
            TokenError::UnknownKey => self.keys.request_fetch(now(&self.clock)),
            TokenError::KeysUnavailable => {}
            _ => return None,
        }
        self.keys.next_fetch()
    }

    /// Verifies a token that is not remembered, and remembers it.
    fn verify_anew(
        &self,
        token: &[u8],
        hash: TokenHash,
        now: Timestamp,
    ) -> Result<VerifiedToken, TokenError> {
        let token = UnverifiedToken::parse(token)?;
        if !self.settings.algorithms.contains(&token.algorithm) {
            return Err(TokenError::Algorithm);
        }
        let keys = self.keys.current().ok_or(TokenError::KeysUnavailable)?;
        let key = keys.find(&token.kid, token.algorithm).ok_or(TokenError::UnknownKey)?;
        let payload = token.payload()?;
        let claims = RegisteredClaims::from_json(&payload)?;
        let actor = claims.check(&self.settings, now)?;
        let (signed, signature) = token.signed_and_signature()?;
        if !key.has_signed(signed, &signature) {
            return Err(TokenError::Signature);
        }
        let all = serde_json::from_slice(&payload).map_err(|_| TokenError::Claims)?;
        let expires = claims.expires();
        let roles = self.settings.roles_claim.roles(&all);
        let grants = match &self.settings.projects_claim {
            Some(projects) => projects.limit(roles, &all),
            None => roles.into(),
        };
        let verified = VerifiedToken {
            caller: Caller::new(actor, grants),
            key: Arc::clone(key),
            remembered_until: expires.min(now + MAX_REMEMBERED),
        };
        self.verified.insert(hash, verified.clone());
        Ok(verified)
    }
}

/// Returns the wall time: times in tokens are by other machines' clocks.
fn now(clock: &Clock) -> Timestamp {
    clock.follow_wall_time();
    clock.now()
}

#[cfg(test)]
mod tests;
