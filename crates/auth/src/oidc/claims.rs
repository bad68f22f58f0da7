//! The claims that every token must have, and those of an ID token: its sign-in and its client.
//!
//! **Source:** RFC 7519 section 4.1; OpenID Connect Core 1.0, sections 2 and 3.1.3.7.

use std::time::Duration;

use rlaas_core::clock::{Micros, Timestamp};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;
use subtle::ConstantTimeEq;

use super::TokenError;
use super::compact::UnverifiedToken;
use super::settings::OidcSettings;

/// Time by which the clock of the issuer may be ahead, for `nbf` and `iat`.
pub(super) const MAX_CLOCK_SKEW: Micros = Micros::from_secs(60);

/// Maximum length of the name of a caller, in bytes: the audit keeps as many.
const MAX_ACTOR: usize = 256;

/// The claims that are checked before the signature is. A name that is given twice is an error.
#[derive(Debug, Deserialize)]
pub(super) struct RegisteredClaims {
    iss: String,
    sub: String,
    aud: AudienceClaim,
    exp: NumericDate,
    nbf: Option<NumericDate>,
    iat: Option<NumericDate>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AudienceClaim {
    One(String),
    Several(Vec<String>),
}

/// A time in seconds since the Unix epoch, which may have a fraction.
#[derive(Clone, Copy, Debug)]
struct NumericDate(Timestamp);

impl<'de> Deserialize<'de> for NumericDate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        if seconds < 0.0 {
            return Ok(Self(Timestamp::EPOCH));
        }
        let since_epoch = Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)?;
        Ok(Self(Timestamp::EPOCH + Micros::from(since_epoch)))
    }
}

impl RegisteredClaims {
    /// Parses the claims of a token.
    ///
    /// # Errors
    ///
    /// [`TokenError::Claims`].
    pub(super) fn from_json(payload: &[u8]) -> Result<Self, TokenError> {
        serde_json::from_slice(payload).map_err(|_| TokenError::Claims)
    }

    /// Checks who issued the token, for which audiences, and when. Returns the name of its caller.
    ///
    /// # Errors
    ///
    /// A [`TokenError`]: the first requirement that is not met.
    pub(super) fn check(
        &self,
        settings: &OidcSettings,
        audiences: &[String],
        now: Timestamp,
    ) -> Result<String, TokenError> {
        let is_later = |date: Option<NumericDate>| {
            date.is_some_and(|NumericDate(date)| date > now + MAX_CLOCK_SKEW)
        };
        if self.iss != settings.issuer.name() {
            return Err(TokenError::Issuer);
        }
        if !self.audiences().iter().any(|audience| audiences.contains(audience)) {
            return Err(TokenError::Audience);
        }
        if self.expires() <= now {
            return Err(TokenError::Expired);
        }
        if is_later(self.nbf) || is_later(self.iat) {
            return Err(TokenError::NotYetValid);
        }
        let actor = self.actor();
        let is_named = !self.sub.is_empty() && actor.len() <= MAX_ACTOR;
        if is_named { Ok(actor) } else { Err(TokenError::Claims) }
    }

    /// Returns the name of the caller: `oidc:ISSUER#SUBJECT`. No issuer contains a `#`.
    fn actor(&self) -> String {
        format!("oidc:{}#{}", self.iss, self.sub)
    }

    /// Returns the end of the token.
    pub(super) fn expires(&self) -> Timestamp {
        self.exp.0
    }

    fn audiences(&self) -> &[String] {
        match &self.aud {
            AudienceClaim::One(audience) => std::slice::from_ref(audience),
            AudienceClaim::Several(audiences) => audiences,
        }
    }
}

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
pub(super) fn check_id_token(token: &[u8], client_id: &str, nonce: &str) -> Result<(), TokenError> {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn required_claims_have_their_types_and_are_given_once() {
        let valid = json!({ "iss": "i", "sub": "s", "aud": ["a"], "exp": 1.5, "nbf": -1 });
        let parse = |claims: &str| RegisteredClaims::from_json(claims.as_bytes()).map(|_| ());
        assert_eq!(parse(&valid.to_string()), Ok(()));
        for name in ["iss", "sub", "aud", "exp"] {
            let mut without = valid.clone();
            without.as_object_mut().expect("an object").remove(name);
            assert_eq!(parse(&without.to_string()), Err(TokenError::Claims), "{name}");
        }
        for (name, value) in [
            ("iss", json!(["i"])),
            ("sub", json!(1)),
            ("aud", json!(1)),
            ("aud", json!(["a", 1])),
            ("exp", json!("1")),
            ("exp", json!(1e300)),
            ("exp", json!(null)),
            ("nbf", json!("1")),
            ("iat", json!({})),
        ] {
            let mut with = valid.clone();
            with[name] = value;
            assert_eq!(parse(&with.to_string()), Err(TokenError::Claims), "{with}");
        }
        let twice = r#"{"iss":"i","sub":"s","aud":"a","exp":1,"exp":9}"#;
        for other in [twice, "", "[]", "null", "{", r#"{"iss":"i"}{}"#] {
            assert_eq!(parse(other), Err(TokenError::Claims), "{other}");
        }
    }
}
