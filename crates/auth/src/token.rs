//! Hashes of bearer tokens.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// The SHA-256 of a token. Never shown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; SHA256_OUTPUT_LEN]);

impl TokenHash {
    /// Hashes a token.
    pub fn from_token(token: &[u8]) -> Self {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, token).as_ref());
        Self(hash)
    }

    /// Compares in constant time, so that the duration reveals nothing about the hashes.
    pub(super) fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// The reason why a text is not the hash of a token. Never shows the text.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum HashError {
    /// Not 64 hexadecimal digits.
    #[error("must be the SHA-256 of a token: 64 hexadecimal digits")]
    Digits,
    /// The hash of an empty string: the usual result of hashing an unset variable.
    #[error("must be the SHA-256 of a token, not of an empty string")]
    Empty,
}

impl FromStr for TokenHash {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.as_bytes();
        if digits.len() != 2 * SHA256_OUTPUT_LEN || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(HashError::Digits);
        }
        let mut hash = [0; SHA256_OUTPUT_LEN];
        for (index, byte) in hash.iter_mut().enumerate() {
            let pair = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(pair, 16).map_err(|_| HashError::Digits)?;
        }
        if Self(hash) == Self::from_token(b"") { Err(HashError::Empty) } else { Ok(Self(hash)) }
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6234 test vector.
    const ABC: &str = "BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn hash_is_64_digits_and_not_that_of_an_empty_string() {
        assert_eq!(ABC.parse(), Ok(TokenHash::from_token(b"abc")));
        assert_eq!(ABC.to_lowercase().parse(), Ok(TokenHash::from_token(b"abc")));
        for text in ["", "abc", &ABC[1..], &format!("{ABC}0"), &ABC.replace('f', "g")] {
            assert_eq!(text.parse::<TokenHash>(), Err(HashError::Digits), "{text}");
        }
        assert_eq!("é".repeat(32).parse::<TokenHash>(), Err(HashError::Digits));
        let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(nothing.parse::<TokenHash>(), Err(HashError::Empty));
        assert_eq!(format!("{:?}", TokenHash::from_token(b"abc")), "***");
    }
}
