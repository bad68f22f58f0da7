//! A rules file: the rules of one project, as people write them.

use rlaas_auth::ProjectId;

use crate::rules::Unmatched;
use crate::rules::spec::RuleSpec;

/// The rules of one project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesFile {
    /// The project that the file names.
    pub project: Option<ProjectId>,
    /// Policy for requests that no rule matches.
    pub unmatched: Option<Unmatched>,
    /// The rules. Those of a file that was read without problems are valid, and none says more than
    /// a rule that is made at run time can.
    pub rules: Vec<RuleSpec>,
}
