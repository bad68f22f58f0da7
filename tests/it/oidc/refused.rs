//! Tokens that are refused, each with its reason; none is ever logged.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tonic::Code;

use super::issuer::IssuerProcess;
use super::signing::{SigningKey, claims, encoded, now, with};
use super::{check, code, http, keys, refused, serve};

/// Invalid tokens with the reason and the text of their refusal. `own` is a key of the issuer.
fn invalid(
    issuer: &str,
    own: &SigningKey,
    genuine: &str,
) -> Vec<(String, &'static str, &'static str)> {
    const MALFORMED: &str = "bearer token must be a signed JSON Web Token of at most 8192 bytes";
    const UNKNOWN: &str = "bearer token is not signed by a known key of the issuer";
    const ALGORITHM: &str = "bearer token is signed by an algorithm that is not accepted";
    const CLAIMS: &str =
        "bearer token must have the claims iss, aud, exp and sub, each of its type";
    const SIGNATURE: &str = "bearer token has an invalid signature";
    let foreign = SigningKey::new("foreign");
    let by_own = |name: &str, value: Value| own.token(&with(issuer, name, value));
    let brought = json!({ "alg": "EdDSA", "kid": "foreign", "jwk": foreign.public(),
        "jku": format!("{issuer}/jwks"), "x5u": format!("{issuer}/jwks") });
    let renamed = json!({ "alg": "EdDSA", "kid": "ed", "jwk": foreign.public() });
    let [head, payload, signature] = genuine.split('.').collect::<Vec<_>>()[..] else {
        panic!("{genuine}")
    };
    let tampered = encoded(&claims(issuer));
    let none = format!("{}.{payload}.", encoded(&json!({ "alg": "none", "kid": "rsa" })));
    let none_signed = format!("{}.{payload}.{signature}", encoded(&json!({ "alg": "none" })));
    let mut without_expiry = claims(issuer);
    without_expiry.as_object_mut().expect("an object").remove("exp");
    vec![
        (by_own("aud", json!("other")), "oidc_audience", "bearer token is for another audience"),
        (by_own("iss", json!("https://a")), "oidc_issuer", "bearer token is of another issuer"),
        (by_own("exp", json!(now() - 1)), "oidc_expired", "bearer token has expired"),
        (by_own("nbf", json!(now() + 90)), "oidc_not_yet_valid", "bearer token is not valid yet"),
        (by_own("iat", json!(now() + 90)), "oidc_not_yet_valid", "bearer token is not valid yet"),
        (by_own("exp", json!("4000000000")), "oidc_claims", CLAIMS),
        (by_own("sub", json!(7)), "oidc_claims", CLAIMS),
        (own.token(&without_expiry), "oidc_claims", CLAIMS),
        (foreign.token(&claims(issuer)), "oidc_unknown_key", UNKNOWN),
        (foreign.token_with(&brought, &claims(issuer)), "oidc_unknown_key", UNKNOWN),
        (foreign.token_with(&renamed, &claims(issuer)), "oidc_signature", SIGNATURE),
        (format!("{head}.{tampered}.{signature}"), "oidc_signature", SIGNATURE),
        (format!("{head}.{payload}."), "oidc_signature", SIGNATURE),
        (none, "oidc_algorithm", ALGORITHM),
        (none_signed, "oidc_algorithm", ALGORITHM),
        (by_shared_secret(own, &claims(issuer)), "oidc_algorithm", ALGORITHM),
        (by_own("more", json!("m".repeat(8_192))), "oidc_malformed", MALFORMED),
        ("a.b.c".to_owned(), "oidc_malformed", MALFORMED),
        ("..".to_owned(), "oidc_malformed", MALFORMED),
    ]
}

/// Returns a token that is signed with the public key as the secret of an HMAC.
fn by_shared_secret(own: &SigningKey, claims: &Value) -> String {
    let header = json!({ "alg": "HS256", "kid": "ed", "typ": "JWT" });
    let signed = format!("{}.{}", encoded(&header), encoded(claims));
    let public = own.public();
    let secret = URL_SAFE_NO_PAD.decode(public["x"].as_str().expect("a text")).expect("base64url");
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
    let signature = ring::hmac::sign(&secret, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

#[tokio::test]
async fn invalid_tokens_are_refused_with_their_reason_and_never_logged() {
    let own = SigningKey::new("ed");
    let Some(issuer) = IssuerProcess::start(0, &keys(&own)) else { return };
    let server = serve(issuer.name(), "");
    let genuine = issuer.token("shop", "RS256").await;
    assert_eq!(code(&server, &genuine).await, Code::Ok);
    for (token, reason, text) in invalid(issuer.name(), &own, &genuine) {
        let before = refused(&server, reason).await;
        let status = check(&server, &token).await.expect_err(reason);
        assert_eq!((status.code(), status.message()), (Code::Unauthenticated, text), "{token}");
        let (status, response) = http(&server, "GET", "/v1/admin/audit", &token, "").await;
        assert!(status == 401 && response.contains(text), "{token}: {response}");
        let challenge = "www-authenticate: Bearer error=\"invalid_token\"\r\n";
        assert!(response.contains(challenge), "{response}");
        assert_eq!(refused(&server, reason).await - before, 2, "{reason}: {token}");
        let parts = token.split('.').filter(|part| part.len() > 10);
        for part in parts {
            assert!(!server.log().contains(part), "{part}: {}", server.log());
        }
    }
    assert!(server.log().contains("reason=\"expired token\""), "{}", server.log());
    assert_eq!(code(&server, &genuine).await, Code::Ok);
}
