//! A project as it is stored.

use rlaas_auth::{InvalidProjectId, ProjectId};
use rlaas_core::clock::Timestamp;
use rlaas_core::rules::{Unmatched, Violation};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{ApiKey, Etag};

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
#[error("{}", self.violation())]
pub enum InvalidProject {
    /// The id.
    Id(#[from] InvalidProjectId),
    /// The name for people.
    DisplayName,
    /// The environment of a key.
    Environment,
    /// An end of a key that is not in the future.
    ExpiresAt,
    /// Too many attributes of a key, or too long ones.
    Attributes,
    /// A grace that is too long.
    Grace,
}

impl InvalidProject {
    /// Returns the field, and what it must be.
    pub fn violation(self) -> Violation {
        let (path, must) = match self {
            Self::Id(error) => return error.violation(),
            Self::DisplayName => {
                let must = format!("must be at most {} bytes", Project::MAX_NAME_LEN);
                ("display_name", must.into())
            }
            Self::Environment => {
                ("environment", "must be 1 to 16 lower case letters or digits".into())
            }
            Self::ExpiresAt => ("expires_at", "must be in the future".into()),
            Self::Attributes => {
                let must = "must have at most 16 entries, of 1 to 64 bytes per name and at most 256 per value; \
                            those of all keys of a project at most 64 KiB in JSON";
                ("attributes", must.into())
            }
            Self::Grace => ("grace", "must be 0 s to 30 d".into()),
        };
        Violation { path, must }
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
