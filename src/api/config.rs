//! `GetConfig`: the rules in force as protobuf messages, in pages.
//!
//! A message has every field of a rule that affects a decision. For rules from Envoy's files it also
//! has the name and the path of the descriptor.

use std::collections::HashSet;

use rlaas_auth::{ConfiguredProjects, ProjectId};
use rlaas_proto::ratelimit::v1 as proto;
use rlaas_proto::rule_messages::{descriptor_message, rule_message, run_time_origin};
use rlaas_proto::values::unmatched;

use crate::rules::descriptors::PlacedRule;
use crate::rules::{Rule, RuleSet, Violation};
use rlaas_limiter::Snapshot;

/// Maximum number of rules in a page.
const MAX_PAGE: usize = 1_000;

/// Returns the requested page.
///
/// # Errors
///
/// [`Violation`] for the first field that is not valid.
pub(super) fn page(
    snapshot: &Snapshot,
    store: &str,
    projects: Option<&dyn ConfiguredProjects>,
    request: &proto::GetConfigRequest,
) -> Result<proto::GetConfigResponse, Violation> {
    let invalid_size =
        |_| Violation { path: "page_size", must: format!("must be 0, or 1 to {MAX_PAGE}").into() };
    let invalid_token = |_| Violation {
        path: "page_token",
        must: "must be the next_page_token of the previous response".into(),
    };
    let size = match usize::try_from(request.page_size).map_err(invalid_size)? {
        0 => usize::MAX,
        size => size.min(MAX_PAGE),
    };
    // The token is the position of the first rule of the page.
    let first: usize = match request.page_token.as_str() {
        "" => 0,
        token => token.parse().map_err(invalid_token)?,
    };
    let rules = all(&snapshot.rules);
    let next = first.saturating_add(size);
    let has_more = next < rules.len();
    let page = rules.into_iter().skip(first).take(size);
    let project = snapshot.rules.project();
    let files = ProjectId::try_from(project.to_owned()).ok();
    let files = files.and_then(|id| projects?.files_beside(&id));
    let files = files.iter().flat_map(|files| files.iter()).map(|rule| &*rule.name);
    let files: HashSet<&str> = files.chain([Rule::DEFAULT]).collect();
    Ok(proto::GetConfigResponse {
        default_rule: Some(rule_message(snapshot.rules.default_rule())),
        next_page_token: if has_more { next.to_string() } else { String::new() },
        rules: page.map(|rule| in_force(rule, project, &files)).collect(),
        revision: snapshot.revision,
        store: store.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        unmatched: unmatched(snapshot.rules.unmatched()).into(),
        catalogue_revision: projects.map_or(0, ConfiguredProjects::catalogue_revision),
    })
}

/// Returns the message of a rule in force. `files` has the names of the project's flat rules of
/// files.
fn in_force(rule: AnyRule<'_>, project: &str, files: &HashSet<&str>) -> proto::Rule {
    match rule {
        AnyRule::Flat(rule) if !files.contains(&*rule.name) => proto::Rule {
            origin: Some(run_time_origin(project, rule.revision)),
            ..rule_message(rule)
        },
        of_file => of_file.message(),
    }
}

/// A flat rule or a descriptor's rule.
enum AnyRule<'a> {
    Flat(&'a Rule),
    Descriptor(PlacedRule<'a>),
}

impl AnyRule<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Flat(rule) => &rule.name,
            Self::Descriptor(placed) => &placed.rule.name,
        }
    }

    fn message(self) -> proto::Rule {
        match self {
            Self::Flat(rule) => rule_message(rule),
            Self::Descriptor(placed) => descriptor_message(placed),
        }
    }
}

/// Returns the default rule, then all others sorted by name.
fn all(rules: &RuleSet) -> Vec<AnyRule<'_>> {
    let mut all: Vec<_> = rules.iter().map(AnyRule::Flat).collect();
    all.extend(rules.descriptors().placed().into_iter().map(AnyRule::Descriptor));
    all[1..].sort_by(|left, right| left.name().cmp(right.name()));
    all
}
