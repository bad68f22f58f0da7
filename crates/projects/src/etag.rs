//! Etags: versions of stored objects, as callers quote them.

use std::fmt;

use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

/// A version of a stored object, as callers quote it: random, so that an object which is made again
/// has another one.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Etag(pub u64);

impl Etag {
    /// The etag of nothing.
    const NOTHING: Self = Self(u64::MAX);

    /// Makes a random etag.
    ///
    /// # Errors
    ///
    /// [`Unspecified`] if the system has no random numbers.
    pub fn random() -> Result<Self, Unspecified> {
        let mut bytes = [0; 8];
        SystemRandom::new().fill(&mut bytes)?;
        Ok(Self(u64::from_be_bytes(bytes)))
    }

    /// Reads what a caller quotes; `None` if it is empty, and nothing is compared. A text that this
    /// service never writes is the etag of nothing.
    pub fn quoted(text: &str) -> Option<Self> {
        let known = u64::from_str_radix(text, 16).ok().map(Self);
        let known = known.filter(|etag| etag.to_string() == text).unwrap_or(Self::NOTHING);
        (!text.is_empty()).then_some(known)
    }
}

/// Writes 16 hexadecimal digits.
impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_read_as_they_are_written() {
        for number in [0, 1, 0xabc, u64::MAX - 1] {
            assert_eq!(Etag::quoted(&Etag(number).to_string()), Some(Etag(number)));
        }
        assert_eq!(Etag::quoted(""), None);
        for other in ["x", "abc", "+000000000000001", "0000000000000ABC"] {
            assert_eq!(Etag::quoted(other), Some(Etag::NOTHING), "{other}");
        }
    }
}
