//! The public keys of an issuer: JSON Web Key Sets, and signatures by their keys.
//!
//! Keys of other types, for other uses or without a name are skipped.
//!
//! **Source:** RFC 7517 sections 4 and 5, RFC 7518 section 6, RFC 8037 section 2.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::settings::TokenAlgorithm;

/// Maximum number of keys in a set.
const MAX_KEYS: usize = 100;
/// Length of the modulus of RSA keys, in bytes: 2048 to 8192 bits.
const RSA_MODULUS: std::ops::RangeInclusive<usize> = 256..=1024;
/// Length of a coordinate on P-256, and of a key of Ed25519, in bytes.
const COORDINATE: usize = 32;

/// A public key for one algorithm.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PublicKey {
    kid: String,
    algorithm: TokenAlgorithm,
    material: KeyMaterial,
}

#[derive(Debug, PartialEq, Eq)]
enum KeyMaterial {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point of P-256.
    Point(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// The keys of an issuer. A key that stays is the same allocation in the next set.
#[derive(Clone, Debug, Default)]
pub(super) struct KeySet(Vec<Arc<PublicKey>>);

/// The error for a document that is not a set of keys.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum KeySetError {
    #[error("not a JSON Web Key Set")]
    Json,
    #[error("more than {MAX_KEYS} keys")]
    TooMany,
}

#[derive(Deserialize)]
struct KeyDocument {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct JsonWebKey {
    kty: String,
    kid: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Parses a document. The keys that are in `before` too are shared with it.
    ///
    /// # Errors
    ///
    /// [`KeySetError`].
    pub(super) fn from_json(document: &[u8], before: &Self) -> Result<Self, KeySetError> {
        let document: KeyDocument =
            serde_json::from_slice(document).map_err(|_| KeySetError::Json)?;
        if document.keys.len() > MAX_KEYS {
            return Err(KeySetError::TooMany);
        }
        let keys = document.keys.into_iter().filter_map(PublicKey::from_json);
        let shared = keys.map(|key| {
            let same = before.0.iter().find(|known| ***known == key);
            same.map_or_else(|| Arc::new(key), Arc::clone)
        });
        Ok(Self(shared.collect()))
    }

    /// Returns the key with this name, if it is for the algorithm.
    pub(super) fn find(&self, kid: &str, algorithm: TokenAlgorithm) -> Option<&Arc<PublicKey>> {
        self.0.iter().find(|key| key.kid == kid && key.algorithm == algorithm)
    }

    /// Returns `true` if the set has this allocation of a key.
    pub(super) fn contains(&self, key: &Arc<PublicKey>) -> bool {
        self.0.iter().any(|known| Arc::ptr_eq(known, key))
    }

    /// Returns `true` if both sets have the same allocations of keys.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.len() == other.len() && other.0.iter().all(|key| self.contains(key))
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl PublicKey {
    fn from_json(key: Value) -> Option<Self> {
        let key: JsonWebKey = serde_json::from_value(key).ok()?;
        let is_for_signatures = key.purpose.as_ref().is_none_or(|purpose| purpose == "sig")
            && key
                .key_ops
                .as_ref()
                .is_none_or(|all| all.iter().any(|operation| operation == "verify"));
        let (algorithm, material) = match (&*key.kty, key.crv.as_deref()) {
            ("RSA", _) => (TokenAlgorithm::Rs256, rsa(key.n.as_deref()?, key.e.as_deref()?)?),
            ("EC", Some("P-256")) => {
                let (x, y) = (coordinate(key.x.as_deref()?)?, coordinate(key.y.as_deref()?)?);
                (TokenAlgorithm::Es256, KeyMaterial::Point([vec![4], x, y].concat()))
            }
            ("OKP", Some("Ed25519")) => {
                (TokenAlgorithm::EdDsa, KeyMaterial::Ed25519(coordinate(key.x.as_deref()?)?))
            }
            _ => return None,
        };
        let is_for_algorithm = key.alg.as_ref().is_none_or(|name| name == algorithm.name());
        (is_for_signatures && is_for_algorithm).then_some(Self {
            kid: key.kid,
            algorithm,
            material,
        })
    }

    /// Returns `true` if the signature of a message is by this key.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match &self.material {
            KeyMaterial::Rsa { n, e } => RsaPublicKeyComponents { n, e }.verify(
                &RSA_PKCS1_2048_8192_SHA256,
                message,
                signature,
            ),
            KeyMaterial::Point(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            KeyMaterial::Ed25519(key) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature)
            }
        };
        verified.is_ok()
    }
}

/// Returns an RSA key whose size is accepted. Numbers are written without leading zeros.
fn rsa(n: &str, e: &str) -> Option<KeyMaterial> {
    let number = |text: &str| {
        let bytes = decoded(text)?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Some(bytes[zeros..].to_vec())
    };
    let (n, e) = (number(n)?, number(e)?);
    RSA_MODULUS.contains(&n.len()).then_some(KeyMaterial::Rsa { n, e })
}

fn coordinate(text: &str) -> Option<Vec<u8>> {
    decoded(text).filter(|bytes| bytes.len() == COORDINATE)
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// RFC 7517 appendix A.1, the keys without private parts; RFC 8037 appendix A.2.
    fn document() -> Value {
        json!({ "keys": [
            {"kty": "EC", "crv": "P-256", "use": "enc", "kid": "1",
             "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
             "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "2",
             "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        ] })
    }

    fn parse(document: &Value) -> Result<KeySet, KeySetError> {
        KeySet::from_json(document.to_string().as_bytes(), &KeySet::default())
    }

    #[test]
    fn signature_of_the_standard_is_verified() {
        // RFC 8037 appendix A.4.
        let signed = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
        let signature = "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt\
                         9g7sVvpAr_MuM0KAg";
        let signature = decoded(signature).expect("base64url");
        let keys = parse(&document()).expect("a key set");
        let key = keys.find("2", TokenAlgorithm::EdDsa).expect("a key");
        assert!(key.has_signed(signed, &signature));
        assert!(!key.has_signed(&signed[1..], &signature));
        assert!(!key.has_signed(signed, &signature[1..]));
        assert!(!key.has_signed(signed, &[]));
    }

    #[test]
    fn keys_for_something_else_are_skipped() {
        assert_eq!(parse(&document()).map(|keys| keys.len()), Ok(1));
        let mut keys = document();
        let key = keys["keys"][1].take();
        for (name, value) in [
            ("use", json!("enc")),
            ("key_ops", json!(["sign"])),
            ("alg", json!("HS256")),
            ("alg", json!("RS256")),
            ("crv", json!("X25519")),
            ("kty", json!("oct")),
            ("kid", json!(null)),
            ("x", json!("AA")),
            ("x", json!("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo=")),
        ] {
            let mut other = key.clone();
            other[name] = value;
            let found = parse(&json!({ "keys": [other] })).map(|keys| keys.len());
            assert_eq!(found, Ok(0), "{name}");
        }
        for bits in [1024, 16384] {
            let n = URL_SAFE_NO_PAD.encode(vec![0xff; bits / 8]);
            let rsa = json!({ "kty": "RSA", "kid": "1", "n": n, "e": "AQAB" });
            assert_eq!(parse(&json!({ "keys": [rsa] })).map(|keys| keys.len()), Ok(0), "{bits}");
        }
    }

    #[test]
    fn document_has_at_most_100_keys() {
        let keys = |count| json!({ "keys": vec![document()["keys"][1].clone(); count] });
        assert_eq!(parse(&keys(100)).map(|keys| keys.len()), Ok(100));
        assert!(matches!(parse(&keys(101)), Err(KeySetError::TooMany)));
        for other in ["", "{}", "[]", r#"{"keys":{}}"#, "<html>"] {
            let parsed = KeySet::from_json(other.as_bytes(), &KeySet::default());
            assert!(matches!(parsed, Err(KeySetError::Json)), "{other}");
        }
    }

    #[test]
    fn key_that_stays_is_shared_and_a_new_one_with_its_name_is_not() {
        let before = parse(&document()).expect("a key set");
        let key = before.find("2", TokenAlgorithm::EdDsa).expect("a key");
        let mut text = document();
        let again = KeySet::from_json(text.to_string().as_bytes(), &before).expect("a key set");
        assert!(again.contains(key));
        text["keys"][1]["x"] = text["keys"][0]["x"].clone();
        let other = KeySet::from_json(text.to_string().as_bytes(), &before).expect("a key set");
        assert!(!other.contains(key) && other.find("2", TokenAlgorithm::EdDsa).is_some());
        assert!(other.find("2", TokenAlgorithm::Rs256).is_none());
    }
}
