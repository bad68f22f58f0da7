//! What those who show the configuration ask of projects.

use std::fmt::Debug;
use std::sync::Arc;

use rlaas_core::rules::RuleSet;

use super::project_id::ProjectId;

/// The projects, as the configuration in force shows them.
pub trait ConfiguredProjects: Debug + Send + Sync {
    /// Returns the rules of files of a project, if a file names it.
    fn files_beside(&self, id: &ProjectId) -> Option<Arc<RuleSet>>;

    /// Returns the revision of the catalogue in force; 0 if there is none.
    fn catalogue_revision(&self) -> u64;
}
