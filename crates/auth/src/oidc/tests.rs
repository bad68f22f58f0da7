//! Tokens that are signed here, checked with keys that were put in force and a clock that is set.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use ring::signature::{Ed25519KeyPair, KeyPair};
use rlaas_core::clock::ManualClock;
use serde_json::{Value, json};

use super::super::grants::Grants;
use super::super::roles::{Role, Roles};
use super::claims::MAX_CLOCK_SKEW;
use super::keys::KeySet;
use super::*;

const ISSUER: &str = "http://127.0.0.1:1/a";
const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// A verifier with the keys `a` and `b`, and its clock.
struct TestedVerifier {
    verifier: OidcVerifier,
    clock: ManualClock,
}

impl TestedVerifier {
    fn new() -> Self {
        let settings = OidcSettings {
            issuer: ISSUER.parse().expect("an issuer"),
            audiences: vec!["rlaas".to_owned(), "limits".to_owned()],
            algorithms: vec![TokenAlgorithm::EdDsa, TokenAlgorithm::Rs256],
            trust: IssuerTrust::none(),
            roles_claim: ClaimPath::default(),
            projects_claim: None,
            console: None,
        };
        let clock = ManualClock::new(NOW);
        let verifier = OidcVerifier::new(settings, Clock::Manual(clock.clone()));
        let subject = Self { verifier, clock };
        subject.set_keys(&["a", "b"]);
        subject
    }

    /// Puts keys in force, as the background task does.
    fn set_keys(&self, kids: &[&str]) {
        let keys = kids.iter().map(|kid| {
            let x = URL_SAFE_NO_PAD.encode(key(kid).public_key());
            json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": x })
        });
        let document = json!({ "keys": keys.collect::<Vec<_>>() }).to_string();
        let before = self.verifier.keys.current().unwrap_or_default();
        let keys = KeySet::from_json(document.as_bytes(), &before).expect("a key set");
        self.verifier.verified.retain(&keys);
        self.verifier.keys.replace(keys);
    }

    fn verify(&self, token: &str) -> Result<Caller, TokenError> {
        self.verifier.verify(token.as_bytes(), TokenHash::from_token(token.as_bytes()))
    }

    fn refusal(&self, token: &str) -> Option<TokenError> {
        self.verify(token).err()
    }
}

/// Returns the key whose name begins with this letter.
fn key(kid: &str) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[kid.as_bytes()[0]; 32]).expect("32 bytes")
}

fn seconds(at: Timestamp) -> u64 {
    at.as_millis() / 1_000
}

fn claims() -> Value {
    json!({
        "iss": ISSUER, "sub": "alice", "aud": "rlaas", "roles": ["check", "admin", "root"],
        "exp": seconds(NOW) + 3_600,
    })
}

/// Returns the claims with another one.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn header(kid: &str) -> Value {
    json!({ "alg": "EdDSA", "kid": kid })
}

/// Signs a token with the key `by`.
fn signed(header: &Value, claims: &Value, by: &str) -> String {
    let encoded = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encoded(header), encoded(claims));
    let signature = URL_SAFE_NO_PAD.encode(key(by).sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

fn token(claims: &Value) -> String {
    signed(&header("a"), claims, "a")
}

#[test]
fn valid_token_names_its_caller_and_its_roles() {
    let subject = TestedVerifier::new();
    for claims in [claims(), with("aud", json!(["other", "limits"])), with("extra", json!([{}]))] {
        let caller = subject.verify(&token(&claims)).expect("a valid token");
        assert_eq!(caller.actor(), "oidc:http://127.0.0.1:1/a#alice");
        let roles: Roles = [Role::Check, Role::Admin].into_iter().collect();
        assert_eq!(*caller.grants(), roles.into());
    }
    let caller = subject.verify(&token(&with("roles", json!("admin")))).expect("a caller");
    assert_eq!(*caller.grants(), Grants::default());
}

#[test]
fn token_of_another_issuer_audience_or_time_is_refused() {
    let subject = TestedVerifier::new();
    let (now, skew) = (seconds(NOW), MAX_CLOCK_SKEW.as_micros() / 1_000_000);
    for (name, value, error) in [
        ("iss", json!("http://127.0.0.1:1/a/"), TokenError::Issuer),
        ("iss", json!("https://evil.example"), TokenError::Issuer),
        ("aud", json!("rlaas2"), TokenError::Audience),
        ("aud", json!([]), TokenError::Audience),
        ("exp", json!(now), TokenError::Expired),
        ("exp", json!(-1), TokenError::Expired),
        ("nbf", json!(now + skew + 1), TokenError::NotYetValid),
        ("iat", json!(now + skew + 1), TokenError::NotYetValid),
        ("sub", json!(""), TokenError::Claims),
        ("sub", json!("s".repeat(240)), TokenError::Claims),
        ("sub", json!(null), TokenError::Claims),
    ] {
        let claims = with(name, value);
        assert_eq!(subject.refusal(&token(&claims)), Some(error), "{claims}");
    }
    for (name, value) in [("nbf", json!(now + skew)), ("iat", json!(now + skew)), ("iat", json!(0))]
    {
        assert_eq!(subject.refusal(&token(&with(name, value))), None, "{name}");
    }
}

#[test]
fn token_that_nobody_signed_is_refused() {
    let subject = TestedVerifier::new();
    let valid = token(&claims());
    let [head, payload, signature] = valid.split('.').collect::<Vec<_>>()[..] else {
        panic!("{valid}")
    };
    let forged = URL_SAFE_NO_PAD.encode(with("roles", json!(["operate"])).to_string());
    let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none","kid":"a"}"#);
    let shared = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","kid":"a"}"#);
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "c",
        "x": URL_SAFE_NO_PAD.encode(key("c").public_key()) });
    let brought = json!({ "alg": "EdDSA", "kid": "c", "jwk": jwk, "jku": "http://127.0.0.1:1/c" });
    let other_key = json!({ "alg": "EdDSA", "kid": "a", "jwk": jwk });
    for (token, error) in [
        (format!("{head}.{forged}.{signature}"), TokenError::Signature),
        (format!("{head}.{payload}."), TokenError::Signature),
        (format!("{head}.{payload}.AAAA"), TokenError::Signature),
        (signed(&header("a"), &claims(), "b"), TokenError::Signature),
        (signed(&other_key, &claims(), "c"), TokenError::Signature),
        (signed(&brought, &claims(), "c"), TokenError::UnknownKey),
        (signed(&header("c"), &claims(), "c"), TokenError::UnknownKey),
        (signed(&json!({ "alg": "EdDSA" }), &claims(), "a"), TokenError::UnknownKey),
        (signed(&json!({ "alg": "RS256", "kid": "a" }), &claims(), "a"), TokenError::UnknownKey),
        (signed(&json!({ "alg": "ES256", "kid": "a" }), &claims(), "a"), TokenError::Algorithm),
        (format!("{none}.{payload}."), TokenError::Algorithm),
        (format!("{shared}.{payload}.{signature}"), TokenError::Algorithm),
        (format!("{valid}{}", "A".repeat(MAX_TOKEN)), TokenError::Malformed),
    ] {
        assert_eq!(subject.refusal(&token), Some(error), "{token}");
        assert_eq!(subject.refusal(&token), Some(error), "{token} again");
    }
}

#[test]
fn remembered_token_ends_with_its_time() {
    let subject = TestedVerifier::new();
    let token = token(&with("exp", json!(seconds(NOW) + 60)));
    subject.verify(&token).expect("a valid token");
    subject.clock.set(NOW + Micros::from_secs(59));
    assert!(subject.verify(&token).is_ok());
    subject.clock.set(NOW + Micros::from_secs(60));
    assert_eq!(subject.refusal(&token), Some(TokenError::Expired));
}

#[test]
fn remembered_token_ends_with_its_key() {
    let subject = TestedVerifier::new();
    let (a, b) = (token(&claims()), signed(&header("b"), &claims(), "b"));
    subject.verify(&a).expect("a valid token");
    assert_eq!(subject.refusal(&b), None);
    subject.set_keys(&["b", "c"]);
    assert_eq!(subject.refusal(&a), Some(TokenError::UnknownKey));
    assert_eq!(subject.refusal(&b), None);
    assert_eq!(subject.refusal(&signed(&header("c"), &claims(), "c")), None);
}

#[test]
fn without_keys_no_token_is_valid_and_only_signed_ones_wait() {
    let subject = TestedVerifier::new();
    let verifier =
        OidcVerifier::new(subject.verifier.settings.clone(), subject.verifier.clock.clone());
    let subject = TestedVerifier { verifier, clock: subject.clock };
    assert_eq!(subject.refusal(&token(&claims())), Some(TokenError::KeysUnavailable));
    assert_eq!(subject.refusal("a.b.c"), Some(TokenError::Malformed));
    for error in TokenError::ALL {
        let waits = matches!(error, TokenError::UnknownKey | TokenError::KeysUnavailable);
        assert_eq!(subject.verifier.keys_awaited(error).is_some(), waits, "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn changed_token_is_never_valid(position in 0_usize..1_000, letter in "[A-Za-z0-9_.-]") {
        let subject = TestedVerifier::new();
        let mut changed = token(&claims()).into_bytes();
        let position = position % changed.len();
        prop_assume!(changed[position] != letter.as_bytes()[0]);
        changed[position] = letter.as_bytes()[0];
        let changed = String::from_utf8(changed).expect("ASCII");
        prop_assert!(subject.verify(&changed).is_err(), "{}", changed);
    }

    #[test]
    fn any_bytes_are_refused(token in proptest::collection::vec(any::<u8>(), 0..200)) {
        let subject = TestedVerifier::new();
        let hash = TokenHash::from_token(&token);
        prop_assert!(subject.verifier.verify(&token, hash).is_err());
    }
}
