//! What would be in force with other rules of a project.

use super::{ProjectState, Registry};
use crate::projects::ProjectRules;
use crate::rules::RuleSet;
use crate::rules::spec::Problem;

impl Registry {
    /// Returns what would be in force if a project had these rules at run time, with the rules of
    /// files and the modes that are set.
    ///
    /// # Errors
    ///
    /// All [`Problem`]s, each with the path of its field.
    pub fn with_rules(
        &self,
        state: &ProjectState,
        rules: &ProjectRules,
    ) -> Result<RuleSet, Vec<Problem>> {
        let built = rules.build()?;
        let (id, files) = (&state.project.id, self.files());
        let rules = match files.rules(id) {
            Some(of_files) => {
                let more = built.iter().skip(1).cloned();
                let together = RuleSet::clone(of_files).with_more(more);
                if together.max_matches() > RuleSet::MAX_MATCHES {
                    return Err(vec![too_many_matches()]);
                }
                together
            }
            None => built,
        };
        let rules = if id.is_unnamed() {
            rules
        } else {
            let unmatched = files.unmatched(id).unwrap_or(state.project.unmatched.into());
            let rules = rules.in_project(id.as_str()).with_unmatched(unmatched);
            match files.unnamed.hashed_parts() {
                Some(hashed) => rules.with_hashed_parts(hashed.clone()),
                None => rules,
            }
        };
        Ok(self.0.limiter.with_set_modes(rules))
    }
}

/// Returns the problem of rules that can't be in force beside those of files.
pub(crate) fn too_many_matches() -> Problem {
    let text = format!(
        "must have at most {} rules that one request can match, those of files included",
        RuleSet::MAX_MATCHES
    );
    Problem { field: "rules".to_owned(), text }
}
