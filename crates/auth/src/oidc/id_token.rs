//! Claims of ID tokens beyond those of every token: for which sign-in, and for which client.
//!
//! **Source:** OpenID Connect Core 1.0, sections 2 and 3.1.3.7.

use serde::Deserialize;
use serde_json::Value;
use subtle::ConstantTimeEq;

use super::TokenError;
use super::compact::UnverifiedToken;

#[derive(Debug, Deserialize)]
struct IdTokenClaims {
    nonce: Option<String>,
    aud: Value,
    /// The client that the token was issued to, if the audience has others.
    azp: Option<String>,
}

/// Checks that a verified ID token is of the sign-in with this nonce, and for this client.
///
/// # Errors
///
/// [`TokenError::Nonce`], [`TokenError::Audience`], [`TokenError::Claims`].
pub(super) fn check(token: &[u8], client_id: &str, nonce: &str) -> Result<(), TokenError> {
    let payload = UnverifiedToken::parse(token)?.payload()?;
    let claims: IdTokenClaims = serde_json::from_slice(&payload).map_err(|_| TokenError::Claims)?;
    let shown = claims.nonce.unwrap_or_default();
    if nonce.is_empty() || !bool::from(shown.as_bytes().ct_eq(nonce.as_bytes())) {
        return Err(TokenError::Nonce);
    }
    let is_for_others = claims.aud.as_array().is_some_and(|all| all.len() > 1);
    match claims.azp {
        Some(azp) if azp == client_id => Ok(()),
        None if !is_for_others => Ok(()),
        _ => Err(TokenError::Audience),
    }
}
