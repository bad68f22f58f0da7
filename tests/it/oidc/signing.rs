//! Tokens that the tests sign: with a key of the issuer, or with one that it does not have.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

/// The audience of the tokens.
pub(crate) const AUDIENCE: &str = "rlaas";

/// A private key, the same for each name.
#[derive(Debug)]
pub(crate) struct SigningKey {
    kid: String,
    seed: [u8; 32],
    pair: Ed25519KeyPair,
}

impl SigningKey {
    pub(crate) fn new(kid: &str) -> Self {
        let mut seed = [7; 32];
        seed[..kid.len()].copy_from_slice(kid.as_bytes());
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).expect("32 bytes");
        Self { kid: kid.to_owned(), seed, pair }
    }

    /// Returns the public key as a JWK.
    pub(crate) fn public(&self) -> Value {
        let x = URL_SAFE_NO_PAD.encode(self.pair.public_key());
        json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": self.kid, "x": x })
    }

    /// Returns the private key as a JWK.
    pub(crate) fn private(&self) -> Value {
        let mut key = self.public();
        key["d"] = URL_SAFE_NO_PAD.encode(self.seed).into();
        key
    }

    /// Signs a token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({ "alg": "EdDSA", "kid": self.kid }), claims)
    }

    /// Signs a token with this header.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = format!("{}.{}", encoded(header), encoded(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

/// Returns a part of a token.
pub(crate) fn encoded(part: &Value) -> String {
    URL_SAFE_NO_PAD.encode(part.to_string())
}

/// Returns the claims of a valid token with every role.
pub(crate) fn claims(issuer: &str) -> Value {
    json!({
        "iss": issuer, "aud": AUDIENCE, "sub": "alice", "exp": now() + 600,
        "roles": ["check", "operate", "admin"],
    })
}

/// Returns the claims of a valid token with another claim.
pub(crate) fn with(issuer: &str, name: &str, value: Value) -> Value {
    let mut claims = claims(issuer);
    claims[name] = value;
    claims
}

/// Returns the time in seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    rlaas::clock::Clock::default().now().as_millis() / 1_000
}
