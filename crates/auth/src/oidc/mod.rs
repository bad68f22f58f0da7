//! Bearer tokens of an OpenID Connect issuer: signed JSON Web Tokens that name their roles.
//!
//! A token is refused by the cheapest check that it fails: length, form, algorithm, key, claims, and
//! only then the signature. What a token says about its key beyond the name is not read: keys come
//! from the discovery document of the configured issuer alone (`fetch`, `refresh`).
//!
//! Visitors of the console sign in at the issuer by the code flow (`code_flow`). Their ID tokens are for
//! the console alone: no API call is permitted by one.
//!
//! **Source:** RFC 7519, RFC 8725, RFC 9068 section 4.

mod claim_path;
mod claims;
mod client;
mod code_flow;
mod compact;
mod fetch;
mod keys;
mod refresh;
mod settings;
mod url;
mod verified;

pub use claim_path::ClaimPath;
pub use client::{ClientSecret, ConsoleClient, RedirectUri, RedirectUriError};
pub use code_flow::{CodeFlow, CodeFlowError, CodeRequest, refusal};
pub use refresh::KeysAwaited;
pub use settings::{
    Issuer, IssuerError, IssuerTrust, IssuerTrustError, OidcSettings, TokenAlgorithm,
};

use std::sync::Arc;

use rlaas_core::clock::{Clock, Micros, Timestamp};
use thiserror::Error;
use tokio::sync::Semaphore;

use self::claims::RegisteredClaims;
use self::code_flow::{ExchangeLog, MAX_EXCHANGES};
pub(super) use self::compact::has_form;
use self::compact::{MAX_TOKEN, UnverifiedToken};
use self::keys::KeySet;
use self::refresh::IssuerKeys;
use self::verified::{VerifiedToken, VerifiedTokens};
use super::caller::Caller;
use super::token::TokenHash;

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
    /// An ID token of another sign-in.
    #[error("ID token is of another sign-in")]
    Nonce,
    /// The keys of the issuer were never fetched.
    #[error("keys of the issuer of bearer tokens are not available")]
    KeysUnavailable,
}

impl TokenError {
    /// Every reason.
    #[cfg(test)]
    pub(super) const ALL: [Self; 11] = [
        Self::Malformed,
        Self::Algorithm,
        Self::UnknownKey,
        Self::Claims,
        Self::Issuer,
        Self::Audience,
        Self::Expired,
        Self::NotYetValid,
        Self::Signature,
        Self::Nonce,
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
            Self::Nonce => "oidc_nonce",
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
    /// Apart from the others, since the same token is not valid for both.
    verified_id_tokens: VerifiedTokens,
    /// Bounds the codes that are exchanged at the same time.
    exchanges: Semaphore,
    exchange_log: ExchangeLog,
    clock: Clock,
}

impl OidcVerifier {
    /// Creates the verifier. It has no keys until [`Self::run`] has fetched them.
    pub(super) fn new(settings: OidcSettings, clock: Clock) -> Self {
        Self {
            settings,
            keys: Arc::default(),
            verified: VerifiedTokens::default(),
            verified_id_tokens: VerifiedTokens::default(),
            exchanges: Semaphore::new(MAX_EXCHANGES),
            exchange_log: ExchangeLog::default(),
            clock,
        }
    }

    pub(super) fn settings(&self) -> &OidcSettings {
        &self.settings
    }

    /// Keeps the keys up to date. Never returns.
    pub(super) async fn run(&self) {
        let changed = |keys: &KeySet| {
            self.verified.retain(keys);
            self.verified_id_tokens.retain(keys);
        };
        self.keys.run(&self.settings, changed).await;
    }

    /// Returns the caller with a token.
    ///
    /// # Errors
    ///
    /// [`TokenError`].
    pub(super) fn verify(&self, token: &[u8], hash: TokenHash) -> Result<Caller, TokenError> {
        self.verify_for(&self.settings.audiences, &self.verified, token, hash)
    }

    /// Returns the visitor with an ID token, which must be issued for the console. `None` if the
    /// console is no client of the issuer.
    ///
    /// # Errors
    ///
    /// [`TokenError`].
    pub(super) fn verify_id_token(
        &self,
        token: &[u8],
        hash: TokenHash,
    ) -> Result<Option<Caller>, TokenError> {
        let Some(client) = &self.settings.console else { return Ok(None) };
        let audience = std::slice::from_ref(&client.client_id);
        self.verify_for(audience, &self.verified_id_tokens, token, hash).map(Some)
    }

    /// Checks that a verified ID token is of the sign-in with this nonce.
    ///
    /// # Errors
    ///
    /// [`TokenError`].
    pub(super) fn check_sign_in(&self, token: &[u8], nonce: &str) -> Result<(), TokenError> {
        let client = self.settings.console.as_ref().ok_or(TokenError::Audience)?;
        claims::check_id_token(token, &client.client_id, nonce)
    }

    fn verify_for(
        &self,
        audiences: &[String],
        remembered: &VerifiedTokens,
        token: &[u8],
        hash: TokenHash,
    ) -> Result<Caller, TokenError> {
        let now = now(&self.clock);
        let known = remembered.find(&hash, now).filter(|known| self.keys.contains(&known.key));
        if let Some(known) = known {
            return Ok(known.caller);
        }
        let verified = self.verify_anew(token, audiences, now)?;
        remembered.insert(hash, verified.clone());
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

    /// Verifies a token that is not remembered.
    fn verify_anew(
        &self,
        token: &[u8],
        audiences: &[String],
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
        let actor = claims.check(&self.settings, audiences, now)?;
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
        Ok(VerifiedToken {
            caller: Caller::new(actor, grants),
            key: Arc::clone(key),
            remembered_until: expires.min(now + MAX_REMEMBERED),
        })
    }
}

/// Returns the wall time: times in tokens are by other machines' clocks.
fn now(clock: &Clock) -> Timestamp {
    clock.follow_wall_time();
    clock.now()
}

#[cfg(test)]
mod tests;
