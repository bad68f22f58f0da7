//! `TopKeys`: the keys of a rule, or of all rules, with the highest counts.

use std::collections::HashMap;

use rlaas_auth::{ProjectId, Role, deadline};
use rlaas_proto::WARNING;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::RuleMode;
use rlaas_proto::rule_messages::mode;
use rlaas_telemetry::top_keys::{
    BusiestKeys, CountQuery, Counter, FoundKey, MAX_COUNTERS, MAX_KEY, Summary, TopKeys, TopKind,
    Window, is_hash,
};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use super::decisions::WatchedProjects;
use super::fleet_top_keys::{FleetAnswers, QueryMessage, SummaryMessage};
use super::projects::{OPERATE, OPERATE_OR_ADMIN, admitted};
use super::{EVERY_PROJECT, KeyView, Service, caller, refusals};
use rlaas_core::plan::{Selector, SelectorTarget};
use rlaas_core::rules::{Mode, Part, RuleSet, Unmatched};
use rlaas_proto::status::{invalid_field, with_reason};

/// Keys of an answer to a request that does not say how many.
const DEFAULT_KEYS: usize = 20;
/// Most bytes of a value that is looked for: no part of a key that is counted in clear has more.
const MAX_VALUE: usize = MAX_KEY;
/// Most rules that are named as keyed otherwise.
const MAX_KEYED_OTHERWISE: usize = 100;

impl Service {
    /// Answers `TopKeys`, with a warning if the store did not tell the counts of other instances.
    pub(super) async fn highest_counts(
        &self,
        request: &Request<proto::TopKeysRequest>,
    ) -> Result<Response<proto::TopKeysResponse>, Status> {
        if request.get_ref().rule.is_empty() {
            Box::pin(self.highest_of_all(request)).await
        } else {
            self.highest_of_rule(request).await
        }
    }

    async fn highest_of_rule(
        &self,
        request: &Request<proto::TopKeysRequest>,
    ) -> Result<Response<proto::TopKeysResponse>, Status> {
        let (caller, message) = (caller(request)?, request.get_ref());
        if message.project_id == EVERY_PROJECT {
            return Err(invalid_field("rule", "must be empty with the project_id -"));
        }
        if !message.value.is_empty() {
            return Err(invalid_field("value", "must be empty with a rule"));
        }
        let id = admitted(caller, &message.project_id, OPERATE_OR_ADMIN)?;
        let snapshot = self.administrator.limiter().project_snapshot(id.as_str());
        let rules = &snapshot.ok_or_else(refusals::no_project)?.rules;
        let view = self.key_view(request, caller.roles_in(&id).contains(Role::Operate)).await?;
        let (kind, window, max_keys) = limits(message)?;
        let query = CountQuery { project: id.as_str(), rule: &message.rule, kind, window };
        let own = self.counts()?.window(&query);
        if own.is_none() && !rules.has_rule(query.rule) {
            let text = "rule must be that of a rule".to_owned();
            return Err(with_reason(Code::NotFound, "UNKNOWN_RULE", text));
        }
        let (own, query_message) = (own.unwrap_or_default(), QueryMessage::new(&query));
        let (fleet, deadline) = (&self.administrator.shared.top_keys, deadline(request.metadata()));
        let all = fleet.add_others(own, &query_message, SummaryMessage::read, deadline).await;
        let mut summary = Summary::default();
        all.answers.iter().for_each(|answer| summary.add(answer));
        let top_key = |counter: &Counter| {
            let (key, mode) = key(rules, query.rule, &counter.key, &view);
            proto::TopKey {
                key: Some(key),
                count: counter.least.saturating_add(summary.error()),
                error: summary.error(),
                project_id: id.to_string(),
                rule: query.rule.to_owned(),
                mode: mode.into(),
            }
        };
        let keys = summary.counters().iter().take(max_keys).map(top_key).collect();
        let total = summary.total();
        Ok(response(all, proto::TopKeysResponse { keys, total, ..Default::default() }))
    }

    /// Answers a request for all rules of a project, or of every project of the caller.
    async fn highest_of_all(
        &self,
        request: &Request<proto::TopKeysRequest>,
    ) -> Result<Response<proto::TopKeysResponse>, Status> {
        let (caller, message) = (caller(request)?, request.get_ref());
        // Who looks for a value learns whether it is there.
        let required = if message.value.is_empty() { OPERATE_OR_ADMIN } else { OPERATE };
        let limiter = self.administrator.limiter();
        let projects = WatchedProjects::new(limiter, caller, &message.project_id, required)?;
        let (kind, window, max_keys) = limits(message)?;
        if message.value.len() > MAX_VALUE {
            return Err(invalid_field("value", &format!("must be at most {MAX_VALUE} bytes")));
        }
        let counts = self.counts()?;
        let ids: Option<Vec<String>> =
            projects.ids().map(|ids| ids.iter().map(ToString::to_string).collect());
        let has_projects = ids.as_ref().is_none_or(|ids| !ids.is_empty());
        let hasher = self.administrator.key_hasher();
        let query = QueryMessage::of_all(ids, kind, window, &message.value, hasher.as_ref());
        let all = if has_projects {
            let own = query.busiest(counts, hasher).await.unwrap_or_default();
            let fleet = &self.administrator.shared.top_keys;
            fleet.add_others(own, &query, BusiestKeys::read, deadline(request.metadata())).await
        } else {
            FleetAnswers::default()
        };
        let mut found = BusiestKeys::sum(&all.answers);
        found.truncate(max_keys);
        let (keyed_otherwise, left_out) = if message.value.is_empty() {
            (Vec::new(), 0)
        } else {
            self.keyed_otherwise(&projects)
        };
        let keys = self.found_keys(request, found).await?;
        Ok(response(
            all,
            proto::TopKeysResponse {
                keys,
                keyed_otherwise,
                keyed_otherwise_left_out: left_out,
                ..Default::default()
            },
        ))
    }

    fn counts(&self) -> Result<&TopKeys, Status> {
        self.metrics.top_keys().ok_or_else(|| {
            let text = "telemetry.top-keys is off: set it to true and restart".to_owned();
            with_reason(Code::FailedPrecondition, "TOP_KEYS_OFF", text)
        })
    }

    /// Returns keys of several projects, each as the caller may see it.
    async fn found_keys(
        &self,
        request: &Request<proto::TopKeysRequest>,
        found: Vec<FoundKey>,
    ) -> Result<Vec<proto::TopKey>, Status> {
        let caller = caller(request)?;
        let mut views = HashMap::new();
        for FoundKey { project, .. } in &found {
            if !views.contains_key(project) {
                let id = project_id(project);
                let is_operator = id.is_some_and(|id| caller.roles_in(&id).contains(Role::Operate));
                views.insert(project.clone(), self.key_view(request, is_operator).await?);
            }
        }
        let top_key = |FoundKey { project, rule, key: id, least, error }: FoundKey| {
            let view = &views[&project];
            let snapshot = self.administrator.limiter().project_snapshot(&project);
            let (key, mode) = match snapshot {
                Some(snapshot) => key(&snapshot.rules, &rule, &id, view),
                None => (view.key(Vec::new(), &id), RuleMode::Unspecified),
            };
            let (count, mode) = (least.saturating_add(error), mode.into());
            proto::TopKey { key: Some(key), count, error, project_id: project, rule, mode }
        };
        Ok(found.into_iter().map(top_key).collect())
    }

    /// Returns the rules in force whose keys do not have the user, and the number of further ones.
    fn keyed_otherwise(&self, projects: &WatchedProjects) -> (Vec<proto::RuleRef>, u32) {
        let mut named = Vec::new();
        for state in self.projects.projects() {
            let id = &state.project.id;
            if projects.ids().is_some_and(|ids| !ids.contains(id)) {
                continue;
            }
            let snapshot = self.administrator.limiter().project_snapshot(id.as_str());
            let Some(snapshot) = snapshot else { continue };
            named.extend(
                without_user(&snapshot.rules)
                    .into_iter()
                    .map(|rule| proto::RuleRef { project_id: id.to_string(), rule }),
            );
        }
        let left_out = named.len().saturating_sub(MAX_KEYED_OTHERWISE);
        named.truncate(MAX_KEYED_OTHERWISE);
        (named, u32::try_from(left_out).unwrap_or(u32::MAX))
    }
}

/// Returns the names of the rules that can refuse a request and have no user in their keys.
fn without_user(rules: &RuleSet) -> Vec<String> {
    let has_user = |part: &Part| matches!(part, Part::UserId | Part::AttributeOrUserId(_));
    let applies = rules.unmatched() == Unmatched::DefaultRule;
    let flat = rules.iter().skip(usize::from(!applies));
    let flat = flat.filter(|rule| rule.mode != Mode::Off && !rule.key_by.iter().any(has_user));
    let mut names: Vec<String> = flat.map(|rule| rule.name.to_string()).collect();
    let placed = rules.descriptors().placed();
    let placed = placed.iter().filter(|placed| {
        placed.rule.mode != Mode::Off && !placed.path.iter().any(|step| step.key == "user_id")
    });
    names.extend(placed.map(|placed| placed.rule.name.to_string()));
    names.dedup();
    names
}

fn project_id(id: &str) -> Option<ProjectId> {
    if id.is_empty() { Some(ProjectId::UNNAMED) } else { id.parse().ok() }
}

/// Returns a response with the instances that it covers.
fn response<A>(
    all: FleetAnswers<A>,
    message: proto::TopKeysResponse,
) -> Response<proto::TopKeysResponse> {
    let FleetAnswers { instances, missing, problem, .. } = all;
    let coverage = proto::Coverage {
        instances: instances.into_iter().collect(),
        missing: missing.into_iter().collect(),
    };
    let mut response =
        Response::new(proto::TopKeysResponse { coverage: Some(coverage), ..message });
    let warning = problem.map(|error| format!("counts of some instances alone: {error}"));
    if let Some(Ok(warning)) = warning.map(MetadataValue::try_from) {
        response.metadata_mut().insert(WARNING, warning);
    }
    response
}

/// Reads the kind, the window and the number of keys.
fn limits(request: &proto::TopKeysRequest) -> Result<(TopKind, Window, usize), Status> {
    let kind = match proto::TopKind::try_from(request.kind) {
        Ok(proto::TopKind::Denied) => TopKind::Denied,
        Ok(proto::TopKind::NearLimit) => TopKind::NearLimit,
        Ok(proto::TopKind::Used) => TopKind::Used,
        Ok(proto::TopKind::Unspecified) | Err(_) => {
            let problem = "must be TOP_KIND_DENIED, TOP_KIND_NEAR_LIMIT or TOP_KIND_USED";
            return Err(invalid_field("kind", problem));
        }
    };
    let window = match request.window.as_ref().map(|window| (window.seconds, window.nanos)) {
        None | Some((900, 0)) => Window::Quarter,
        Some((3_600, 0)) => Window::Hour,
        Some(_) => return Err(invalid_field("window", "must be 900s or 3600s")),
    };
    let max_keys = match usize::try_from(request.max_keys) {
        Ok(0) => DEFAULT_KEYS,
        Ok(most) => most.min(MAX_COUNTERS),
        Err(_) => return Err(invalid_field("max_keys", "must not be negative")),
    };
    Ok((kind, window, max_keys))
}

/// Returns a key that was counted, and the mode of its rule for it. Of a long key its hash alone is known,
/// which could be the id of another key: it has no parts and no mode.
fn key(rules: &RuleSet, rule: &str, id: &str, view: &KeyView) -> (proto::KeyRef, RuleMode) {
    let selector = Selector { target: SelectorTarget::Id(id), rule: Some(rule) };
    let selected =
        rules.select(&selector).ok().filter(|_| !is_hash(id)).and_then(|mut keys| keys.pop());
    let mode = selected.as_ref().map_or(RuleMode::Unspecified, |key| mode(key.hit.mode));
    (view.key(selected.map(|key| key.parts).unwrap_or_default(), id), mode)
}
