//! Where explained rules come from: files, or changes at run time.

use std::collections::HashMap;

use rlaas_auth::ProjectId;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::admin::v1::rule_explanation::Applies;
use rlaas_proto::ratelimit::v1::rule_origin::Kind;
use rlaas_proto::rule_messages::{origin, run_time_origin};

use super::Projects;
use rlaas_core::rules::Rule;
use rlaas_core::rules::descriptors::Descriptors;

/// Most rules of an explanation.
const MAX_RULES: usize = 100;

/// Adds the origins of rules, the rules that files hide, and the revision of what was made at run
/// time.
pub(super) fn add(response: &mut proto::ExplainResponse, projects: &Projects, project: &ProjectId) {
    let files = projects.files_beside(project);
    let of_files = files.iter().flat_map(|files| files.iter());
    let of_files: HashMap<&str, &str> = of_files.map(|rule| (&*rule.name, &*rule.file)).collect();
    let state = projects.project(project).ok();
    let of_run_time = |name: &str| {
        let record = state.as_ref().and_then(|state| state.rules.rule(name));
        run_time_origin(project.as_str(), record.and_then(|record| record.revision))
    };
    for rule in &mut response.rules {
        rule.origin = Some(match (rule.rule.as_str(), of_files.get(rule.rule.as_str())) {
            (Rule::DEFAULT, _) => origin(Kind::BuiltIn, ""),
            (_, Some(file)) => origin(Kind::File, file),
            (name, None) => of_run_time(name),
        });
    }
    if let Some(state) = &state {
        let hidden = state.rules.iter().filter(|(name, _)| of_files.contains_key(name));
        let left = MAX_RULES.saturating_sub(response.rules.len());
        response.rules.extend(hidden.take(left).map(|(name, _)| proto::RuleExplanation {
            rule: name.to_owned(),
            origin: Some(of_run_time(name)),
            applies: Applies::Hidden.into(),
            ..proto::RuleExplanation::default()
        }));
    }
    response.catalogue_revision = projects.catalogue_revision();
}

/// Adds the origins of rules of descriptors.
pub(super) fn add_to_descriptors(
    response: &mut proto::ExplainDescriptorsResponse,
    descriptors: &Descriptors,
) {
    for rule in response.descriptors.iter_mut().filter_map(|descriptor| descriptor.rule.as_mut()) {
        let of_file = descriptors.every().find(|of_file| *of_file.name == *rule.rule);
        rule.origin = Some(origin(Kind::EnvoyFile, of_file.map_or("", |of_file| &of_file.file)));
    }
}
