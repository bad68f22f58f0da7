//! The id of a project: whose a call is.

use std::fmt;
use std::str::FromStr;

use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_core::rules::Violation;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The id of a project: 1 to 63 lower case letters, digits or `-`, beginning with a letter; or
/// empty, the [unnamed project](ProjectId::UNNAMED).
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectId(String);

/// A text that is no id of a project.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("{}", self.violation())]
pub struct InvalidProjectId;

impl InvalidProjectId {
    /// Returns the requirement that an id does not meet.
    pub fn violation(self) -> Violation {
        let must = "must be 1 to 63 lower case letters, digits or '-', and begin with a letter";
        Violation { path: "id", must: must.into() }
    }
}

impl ProjectId {
    /// The project of requests without an API key. It always exists, and has the rules of files.
    pub const UNNAMED: Self = Self(String::new());
    /// Most bytes of an id.
    pub const MAX_LEN: usize = 63;
    /// Length of an id that the service makes.
    const RANDOM_LEN: usize = 12;

    /// Makes a random id, of 12 characters.
    ///
    /// # Errors
    ///
    /// [`Unspecified`] if the system has no random numbers.
    pub fn random() -> Result<Self, Unspecified> {
        const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut bytes = [0; Self::RANDOM_LEN];
        SystemRandom::new().fill(&mut bytes)?;
        let mut letters = bytes.map(|byte| LETTERS[usize::from(byte) % LETTERS.len()]);
        // The first is a letter.
        letters[0] = LETTERS[usize::from(bytes[0]) % 16];
        Ok(Self(letters.map(char::from).iter().collect()))
    }

    /// Returns `true` for the project of requests without an API key.
    pub fn is_unnamed(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProjectId {
    type Err = InvalidProjectId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let begins = text.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
        if !begins || text.len() > Self::MAX_LEN || !text.bytes().all(is_valid) {
            return Err(InvalidProjectId);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ProjectId {
    type Error = InvalidProjectId;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text.is_empty() { Ok(Self::UNNAMED) } else { text.parse() }
    }
}

impl From<ProjectId> for String {
    fn from(id: ProjectId) -> Self {
        id.0
    }
}

impl fmt::Display for ProjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_part_of_keys_and_paths() {
        for id in ["a", "shop-1", &"a".repeat(63)] {
            assert_eq!(id.parse::<ProjectId>().expect("an id").as_str(), id);
        }
        for wrong in ["", "_", "-", "1a", "A", "a:b", "a/b", "a%", "ä", "a\0", &"a".repeat(64)] {
            assert_eq!(wrong.parse::<ProjectId>(), Err(InvalidProjectId), "{wrong}");
            let json = serde_json::to_string(wrong).expect("JSON");
            let is_stored = serde_json::from_str::<ProjectId>(&json).is_ok();
            assert_eq!(is_stored, wrong.is_empty(), "{wrong}");
        }
    }

    #[test]
    fn random_ids_are_ids() {
        let ids: std::collections::HashSet<_> =
            (0..200).map(|_| ProjectId::random().expect("random numbers")).collect();
        assert_eq!(ids.len(), 200);
        for id in &ids {
            assert_eq!(id.as_str().parse::<ProjectId>().as_ref(), Ok(id));
            assert_eq!(id.as_str().len(), 12);
        }
    }
}
