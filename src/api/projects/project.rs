//! A project as it is stored.

use std::fmt;
use std::str::FromStr;

use ring::error::Unspecified;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{ApiKey, Etag};
use crate::clock::Timestamp;
use crate::rules::Unmatched;

/// The id of a project: 1 to 63 lower case letters, digits or `-`, beginning with a letter; or
/// empty, the [unnamed project](ProjectId::UNNAMED).
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectId(String);

/// A project with its API keys.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Project {
    /// Never changes.
    pub id: ProjectId,
    /// Name for people: up to [`Project::MAX_NAME_LEN`] bytes.
    pub display_name: String,
    /// Policy for requests that no rule matches.
    pub unmatched: ProjectUnmatched,
    /// Changes with the name and the policy.
    pub etag: Etag,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of the last change, but for those of keys and rules.
    pub updated_at: Timestamp,
    /// API keys, those that ended included.
    pub keys: Vec<ApiKey>,
}

/// The policy of a project for requests that no rule matches, as it is stored.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProjectUnmatched {
    /// The default rule decides.
    Default,
    /// They pass.
    Allow,
    /// They are refused.
    #[default]
    Deny,
}

impl From<Unmatched> for ProjectUnmatched {
    fn from(policy: Unmatched) -> Self {
        match policy {
            Unmatched::DefaultRule => Self::Default,
            Unmatched::Allow => Self::Allow,
            Unmatched::Deny => Self::Deny,
        }
    }
}

impl From<ProjectUnmatched> for Unmatched {
    fn from(policy: ProjectUnmatched) -> Self {
        match policy {
            ProjectUnmatched::Default => Self::DefaultRule,
            ProjectUnmatched::Allow => Self::Allow,
            ProjectUnmatched::Deny => Self::Deny,
        }
    }
}

/// A field of a project or of a key that is not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum InvalidProject {
    /// The id.
    #[error("id must be 1 to 63 lower case letters, digits or '-', and begin with a letter")]
    Id,
    /// The name for people.
    #[error("display_name must be at most {} bytes", Project::MAX_NAME_LEN)]
    DisplayName,
    /// The environment of a key.
    #[error("environment must be 1 to 16 lower case letters or digits")]
    Environment,
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
    type Err = InvalidProject;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let begins = text.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
        if !begins || text.len() > Self::MAX_LEN || !text.bytes().all(is_valid) {
            return Err(InvalidProject::Id);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ProjectId {
    type Error = InvalidProject;

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

impl Project {
    /// Most bytes of a name for people.
    pub const MAX_NAME_LEN: usize = 128;

    /// Creates a project without keys.
    ///
    /// # Errors
    ///
    /// [`InvalidProject::DisplayName`].
    pub fn new(id: ProjectId, display_name: &str, now: Timestamp) -> Result<Self, InvalidProject> {
        let display_name = Self::check_name(display_name)?;
        Ok(Self {
            id,
            display_name,
            unmatched: ProjectUnmatched::default(),
            etag: Etag::default(),
            created_at: now,
            updated_at: now,
            keys: Vec::new(),
        })
    }

    /// Changes the name for people.
    ///
    /// # Errors
    ///
    /// [`InvalidProject::DisplayName`].
    pub fn rename(&mut self, display_name: &str, now: Timestamp) -> Result<(), InvalidProject> {
        self.display_name = Self::check_name(display_name)?;
        self.updated_at = now;
        Ok(())
    }

    fn check_name(text: &str) -> Result<String, InvalidProject> {
        let is_valid = text.len() <= Self::MAX_NAME_LEN;
        is_valid.then(|| text.to_owned()).ok_or(InvalidProject::DisplayName)
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
            assert_eq!(wrong.parse::<ProjectId>(), Err(InvalidProject::Id), "{wrong}");
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

    #[test]
    fn name_for_people_is_bounded() {
        let id: ProjectId = "a".parse().expect("an id");
        let long = "é".repeat(65);
        assert_eq!(
            Project::new(id.clone(), &long, Timestamp::EPOCH).err(),
            Some(InvalidProject::DisplayName)
        );
        let mut project = Project::new(id, "A", Timestamp::EPOCH).expect("a project");
        assert_eq!(project.rename(&long, Timestamp::EPOCH), Err(InvalidProject::DisplayName));
        assert_eq!(project.display_name, "A");
    }
}
