//! What would be in force with other rules of a project.

use std::ops::ControlFlow;

use super::{ProjectState, Registry};
use crate::projects::ProjectRules;
use crate::projects::dry_runs::DryRuns;
use crate::rules::RuleSet;
use crate::rules::spec::Problem;

impl Registry {
    /// Returns the dry runs, which pause while a revision is made.
    pub fn dry_runs(&self) -> &DryRuns {
        &self.0.dry_runs
    }

    /// Returns what would be in force if a project had these rules at run time, with the rules of
    /// files and the modes that are set. Calls `pause` again and again; if that breaks, returns
    /// `None`.
    pub fn with_rules(
        &self,
        state: &ProjectState,
        rules: &ProjectRules,
        pause: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Option<Result<RuleSet, Vec<Problem>>> {
        let built = match rules.build_in_steps(pause)? {
            Ok(built) => built,
            Err(problems) => return Some(Err(problems)),
        };
        let (id, files) = (&state.project.id, self.files());
        let rules = match files.rules(id) {
            Some(of_files) => {
                let more = built.iter().skip(1).cloned();
                let together = RuleSet::clone(of_files).with_more(more);
                if together.max_matches() > RuleSet::MAX_MATCHES {
                    return Some(Err(vec![too_many_matches()]));
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
        pause().continue_value()?;
        Some(Ok(self.0.limiter.with_set_modes(rules)))
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
