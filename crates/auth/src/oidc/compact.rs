//! The compact form of tokens: header, payload and signature, in base64url, with dots between them.
//!
//! The header selects a key of the issuer and nothing else: `jku`, `x5u`, `jwk` and `x5c`, which
//! bring or name a key, are not read.
//!
//! **Source:** RFC 7515 sections 3.1, 4.1 and 5.2; RFC 8725 section 3.11 (`typ`).

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::TokenError;
use super::settings::TokenAlgorithm;

/// Maximum length of a token, in bytes.
pub(super) const MAX_TOKEN: usize = 8 * 1024;

/// Types of tokens for callers. Others, such as `logout+jwt`, are for something else.
const TYPES: [&str; 3] = ["JWT", "at+jwt", "application/at+jwt"];

/// A token of which only the header was read.
#[derive(Debug)]
pub(super) struct UnverifiedToken<'a> {
    pub(super) algorithm: TokenAlgorithm,
    /// Name of the key.
    pub(super) kid: String,
    /// The signed part: header and payload.
    signed: &'a [u8],
    payload: &'a [u8],
    signature: &'a [u8],
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    /// Extensions that the recipient must understand.
    crit: Option<IgnoredAny>,
}

/// Returns `true` if a bearer token has the form of a signed token: two dots.
pub(crate) fn has_form(token: &[u8]) -> bool {
    token.split(|byte| *byte == b'.').count() == 3
}

impl<'a> UnverifiedToken<'a> {
    /// Reads the header of a token.
    ///
    /// # Errors
    ///
    /// [`TokenError::Malformed`], [`TokenError::Algorithm`], and [`TokenError::UnknownKey`] if the
    /// header names no key.
    pub(super) fn parse(token: &'a [u8]) -> Result<Self, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Malformed);
        };
        let signed = &token[..header.len() + 1 + payload.len()];
        let header: Header =
            serde_json::from_slice(&decoded(header)?).map_err(|_| TokenError::Malformed)?;
        let is_for_callers =
            |typ: &String| TYPES.iter().any(|known| known.eq_ignore_ascii_case(typ));
        if header.crit.is_some() || !header.typ.as_ref().is_none_or(is_for_callers) {
            return Err(TokenError::Malformed);
        }
        let algorithm = TokenAlgorithm::from_name(&header.alg).ok_or(TokenError::Algorithm)?;
        let kid = header.kid.ok_or(TokenError::UnknownKey)?;
        Ok(Self { algorithm, kid, signed, payload, signature })
    }

    /// Returns the bytes that the signature covers, and the signature.
    pub(super) fn signed_and_signature(&self) -> Result<(&'a [u8], Vec<u8>), TokenError> {
        Ok((self.signed, decoded(self.signature)?))
    }

    /// Returns the claims in JSON.
    pub(super) fn payload(&self) -> Result<Vec<u8>, TokenError> {
        decoded(self.payload)
    }
}

/// Decodes base64url. Padding, other letters and spare bits are errors, so a token has one form.
fn decoded(part: &[u8]) -> Result<Vec<u8>, TokenError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(header: &str) -> Result<String, TokenError> {
        let token = format!("{}.e30.AA", URL_SAFE_NO_PAD.encode(header));
        UnverifiedToken::parse(token.as_bytes()).map(|token| token.kid)
    }

    #[test]
    fn header_has_an_accepted_algorithm_and_a_key() {
        let brought = r#"{"alg":"ES256","kid":"k","jku":"https://a","x5u":1,"jwk":{},"x5c":[]}"#;
        for header in [
            brought,
            r#"{"alg":"RS256","kid":"k","typ":"JWT"}"#,
            r#"{"alg":"EdDSA","kid":"k","typ":"AT+JWT"}"#,
        ] {
            assert_eq!(parse(header), Ok("k".to_owned()), "{header}");
        }
        for (header, error) in [
            (r#"{"alg":"none","kid":"k"}"#, TokenError::Algorithm),
            (r#"{"alg":"nOnE","kid":"k"}"#, TokenError::Algorithm),
            (r#"{"alg":"HS256","kid":"k"}"#, TokenError::Algorithm),
            (r#"{"alg":"RS256"}"#, TokenError::UnknownKey),
            (r#"{"alg":"RS256","kid":null}"#, TokenError::UnknownKey),
            (r#"{"alg":"RS256","kid":7}"#, TokenError::Malformed),
            (r#"{"alg":["RS256"],"kid":"k"}"#, TokenError::Malformed),
            (r#"{"kid":"k"}"#, TokenError::Malformed),
            (r#"{"alg":"none","alg":"RS256","kid":"k"}"#, TokenError::Malformed),
            (r#"{"alg":"RS256","kid":"k","crit":["exp"]}"#, TokenError::Malformed),
            (r#"{"alg":"RS256","kid":"k","typ":"logout+jwt"}"#, TokenError::Malformed),
            ("[]", TokenError::Malformed),
            ("", TokenError::Malformed),
        ] {
            assert_eq!(parse(header), Err(error), "{header}");
        }
    }

    #[test]
    fn token_has_three_parts_of_base64url_and_at_most_8_kib() {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"RS256","kid":"k"}"#);
        let parse = |token: &str| {
            let token = UnverifiedToken::parse(token.as_bytes())?;
            let (signed, _signature) = token.signed_and_signature()?;
            assert_eq!(signed, format!("{header}.e30").as_bytes());
            token.payload()
        };
        assert_eq!(parse(&format!("{header}.e30.AA")), Ok(b"{}".to_vec()));
        let long = format!("{header}.{}.AA", "e".repeat(MAX_TOKEN));
        for token in [
            "",
            "..",
            &header,
            &format!("{header}.e30"),
            &format!("{header}.e30.AA.AA"),
            &format!("{header}.e30.AB"),
            &format!("{header}.e30.AA=="),
            &format!("{header}.e30.+/"),
            &format!("{header}=.e30.AA"),
            &long,
        ] {
            assert_eq!(parse(token), Err(TokenError::Malformed), "{token}");
        }
        assert!(has_form(b"a.b.c") && !has_form(b"a.b") && !has_form(b"a.b.c.d"));
    }
}
