//! Projects, keys, rules and revisions as messages.

use std::num::NonZeroU64;

use prost::Message;
use prost_reflect::DynamicMessage;
use rlaas_auth::ProjectId;
use rlaas_projects::registry::ProjectState;
use rlaas_projects::{ApiKey, ApiKeyState, Revision, RuleChange, RuleRecord};
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1;
use rlaas_proto::rule_messages::{rule_message, run_time_origin};
use rlaas_proto::values::{timestamp, unmatched};

use rlaas_core::clock::Timestamp;
use rlaas_core::rules::spec::{Field, RuleSpec};
use rlaas_core::rules::{Rule, Unmatched};
use rlaas_proto::json::POOL;

/// Returns a project. `of_files` is the policy that files have for it, `rules` the number of those in force.
pub(super) fn project(
    state: &ProjectState,
    of_files: Option<Unmatched>,
    rules: usize,
    now: Timestamp,
) -> proto::Project {
    let project = &state.project;
    let keys = project.keys.iter().filter(|key| key.state(now) == ApiKeyState::Active).count();
    // One that is not stored, or was not when it was first written.
    let time = |time: Timestamp| (time != Timestamp::EPOCH).then(|| timestamp(time));
    let policy = of_files.unwrap_or_else(|| project.unmatched.into());
    proto::Project {
        id: project.id.to_string(),
        display_name: project.display_name.clone(),
        unmatched: unmatched(policy).into(),
        revision: state.revision,
        etag: if project.id.is_unnamed() { String::new() } else { project.etag.to_string() },
        created_at: time(project.created_at),
        updated_at: time(project.updated_at),
        keys: u32::try_from(keys).unwrap_or(u32::MAX),
        rules: u32::try_from(rules).unwrap_or(u32::MAX),
    }
}

pub(super) fn key(project: &ProjectId, key: &ApiKey, now: Timestamp) -> proto::ApiKey {
    use proto::api_key::State;
    let state = match key.state(now) {
        ApiKeyState::Active => State::Active,
        ApiKeyState::Expired => State::Expired,
        ApiKeyState::Revoked => State::Revoked,
    };
    proto::ApiKey {
        id: key.id.clone(),
        project_id: project.to_string(),
        display_name: key.display_name.clone(),
        environment: key.environment.clone(),
        state: state.into(),
        created_at: Some(timestamp(key.created_at)),
        expires_at: key.expires_at.map(timestamp),
        // Only lists have it.
        last_used_at: None,
        replaced_by: key.replaced_by.clone().unwrap_or_default(),
        revoked_at: key.revoked_at.map(timestamp),
        attributes: key.attributes.clone().into_iter().collect(),
    }
}

/// Returns a rule that was made at run time.
pub(super) fn rule(project: &ProjectId, record: &RuleRecord, hidden: bool) -> proto::ProjectRule {
    proto::ProjectRule {
        project_id: project.to_string(),
        rule: Some(spec(project, &record.spec, record.revision)),
        etag: record.etag.to_string(),
        created_at: Some(timestamp(record.created_at)),
        updated_at: Some(timestamp(record.updated_at)),
        hidden,
    }
}

/// Returns a rule of a file.
pub(super) fn file_rule(project: &ProjectId, rule: &Rule) -> proto::ProjectRule {
    let (project_id, rule) = (project.to_string(), Some(rule_message(rule)));
    proto::ProjectRule { project_id, rule, ..proto::ProjectRule::default() }
}

fn spec(project: &ProjectId, spec: &RuleSpec, revision: Option<NonZeroU64>) -> v1::Rule {
    let origin = run_time_origin(project.as_str(), revision);
    let built = spec.build().map(|rule| rule_message(&rule));
    // A later release may have written it.
    let name = || match &spec.name {
        Field::Set(name) => name.clone(),
        Field::Unset | Field::Unreadable => String::new(),
    };
    let message = built.unwrap_or_else(|_| v1::Rule { name: name(), ..v1::Rule::default() });
    v1::Rule { origin: Some(origin), ..message }
}

pub(super) fn change(project: &ProjectId, change: &RuleChange) -> proto::RuleChange {
    use proto::rule_change::Kind;
    let message = |rule: &Option<RuleSpec>| rule.as_ref().map(|rule| spec(project, rule, None));
    let (before, after) = (message(&change.before), message(&change.after));
    let kind = match (&before, &after) {
        (None, _) => Kind::Created,
        (Some(_), None) => Kind::Deleted,
        (Some(_), Some(_)) => Kind::Updated,
    };
    let changed = before.as_ref().zip(after.as_ref());
    let changed_fields = changed
        .map(|(before, after)| prost_types::FieldMask { paths: differing_fields(before, after) });
    let rule_name = change.name.clone();
    proto::RuleChange { kind: kind.into(), rule_name, before, after, changed_fields }
}

/// Returns the names of the fields in which two rules differ.
fn differing_fields(before: &v1::Rule, after: &v1::Rule) -> Vec<String> {
    let descriptor = POOL.get_message_by_name("ratelimit.v1.Rule").expect("a message of ours");
    let dynamic = |rule: &v1::Rule| {
        DynamicMessage::decode(descriptor.clone(), &*rule.encode_to_vec())
            .expect("the same message")
    };
    let (before, after) = (dynamic(before), dynamic(after));
    let differs = |field: &prost_reflect::FieldDescriptor| {
        before.has_field(field) != after.has_field(field)
            || before.get_field(field) != after.get_field(field)
    };
    descriptor.fields().filter(differs).map(|field| field.name().to_owned()).collect()
}

pub(super) fn revision(project: &ProjectId, revision: &Revision) -> proto::Revision {
    proto::Revision {
        project_id: project.to_string(),
        revision: revision.number,
        created_at: Some(timestamp(revision.at)),
        actor: revision.actor.clone(),
        action: revision.action.clone(),
        reason: revision.reason.clone(),
        changed_rules: u32::try_from(revision.changes.len()).unwrap_or(u32::MAX),
    }
}
