//! `TopKeys`: the keys of a rule, or of all rules, with the highest counts.

use std::cmp::Reverse;
use std::collections::HashMap;

use rlaas_auth::{ProjectId, Role, deadline};
use rlaas_proto::WARNING;
use rlaas_proto::ratelimit::admin::v1 as proto;
use rlaas_proto::ratelimit::v1::RuleMode;
use rlaas_proto::rule_messages::mode;
use rlaas_telemetry::top_keys::{BusiestKeys, FoundKey, MAX_COUNTERS, MAX_KEY, TopKeys, is_hash};
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use super::decisions::WatchedProjects;
use super::fleet_top_keys::{FleetAnswers, QueryMessage};
use super::messages::key_state;
use super::projects::{OPERATE, OPERATE_OR_ADMIN};
use super::stats::StatsScope;
use super::{EVERY_PROJECT, KeyView, MAX_TIME, Service, caller};
use rlaas_core::clock::Deadline;
use rlaas_core::plan::{Selector, SelectorTarget};
use rlaas_core::rules::{Mode, Part, RuleSet, Unmatched};
use rlaas_proto::status::{invalid_field, with_reason};

/// Keys of a list of an answer to a request that does not say how many.
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
        let (caller, message) = (caller(request)?, request.get_ref());
        let (is_hour, max_keys) = limits(message)?;
        // Who looks for a value learns whether it is there.
        let required = if message.value.is_empty() { OPERATE_OR_ADMIN } else { OPERATE };
        let limiter = self.administrator.limiter();
        let projects = WatchedProjects::new(limiter, caller, &message.project_id, required)?;
        let counts = self.counts()?;
        if !message.rule.is_empty() {
            let snapshot = limiter.project_snapshot(&message.project_id);
            if !snapshot.is_some_and(|snapshot| snapshot.rules.has_rule(&message.rule)) {
                let text = "rule must be that of a rule".to_owned();
                return Err(with_reason(Code::NotFound, "UNKNOWN_RULE", text));
            }
        }
        let ids: Option<Vec<String>> =
            projects.ids().map(|ids| ids.iter().map(ToString::to_string).collect());
        let has_projects = ids.as_ref().is_none_or(|ids| !ids.is_empty());
        let (hasher, deadline) = (self.administrator.key_hasher(), deadline(request.metadata()));
        let mut query = QueryMessage::new(ids, &message.value, hasher.as_ref());
        (query.rule, query.is_hour) = (message.rule.clone(), is_hour);
        let all = if has_projects {
            let own = query.busiest(counts, hasher).await.unwrap_or_default();
            self.administrator.shared.top_keys.add_others(own, &query, deadline).await
        } else {
            FleetAnswers::default()
        };
        let mut lists = self.lists(request, &all, max_keys).await?;
        if message.with_state && all.problem.is_none() {
            self.add_states(request, &mut lists, deadline.or_within(MAX_TIME)).await?;
        }
        let (keyed_otherwise, keyed_otherwise_left_out) = if message.value.is_empty() {
            (Vec::new(), 0)
        } else {
            self.keyed_otherwise(&projects)
        };
        let [denied, near_limit, used] = lists.map(Some);
        let message = proto::TopKeysResponse {
            denied,
            near_limit,
            used,
            keyed_otherwise,
            keyed_otherwise_left_out,
            coverage: None,
        };
        Ok(response(all, message))
    }

    fn counts(&self) -> Result<&TopKeys, Status> {
        self.metrics.top_keys().ok_or_else(|| {
            let text = "telemetry.top-keys is off: set it to true and restart".to_owned();
            with_reason(Code::FailedPrecondition, "TOP_KEYS_OFF", text)
        })
    }

    /// Returns the keys with the highest counts of each kind, each key as the caller may see it.
    async fn lists(
        &self,
        request: &Request<proto::TopKeysRequest>,
        all: &FleetAnswers,
        max_keys: usize,
    ) -> Result<[proto::TopKeyList; 3], Status> {
        let mut found = all.lists.each_ref().map(|lists| BusiestKeys::sum(lists));
        for keys in &mut found {
            keys.truncate(max_keys);
        }
        let mut views = HashMap::new();
        for FoundKey { project, .. } in found.iter().flatten() {
            if !views.contains_key(project) {
                let view = self.key_view(request, is_operator(request, project)?).await?;
                views.insert(project.clone(), view);
            }
        }
        let top_key = |FoundKey { project, rule, key: id, least, error }: FoundKey| {
            let view = &views[&project];
            let snapshot = self.administrator.limiter().project_snapshot(&project);
            let (key, mode) = match snapshot {
                Some(snapshot) => key(&snapshot.rules, &rule, &id, view),
                None => (view.key(Vec::new(), &id), RuleMode::Unspecified),
            };
            let (key, count, mode) = (Some(key), least.saturating_add(error), mode.into());
            proto::TopKey { key, count, error, project_id: project, rule, mode, state: None }
        };
        let mut totals = all.lists.iter().map(|lists| {
            let totals = lists.iter().map(BusiestKeys::total);
            // Rules that are counted together would count several times.
            if request.get_ref().rule.is_empty() { 0 } else { totals.fold(0, u64::saturating_add) }
        });
        Ok(found.map(|found| proto::TopKeyList {
            keys: found.into_iter().map(top_key).collect(),
            total: totals.next().unwrap_or_default(),
        }))
    }

    /// Adds the states of keys that the caller sees in clear. Without an answer of the store none has one.
    async fn add_states(
        &self,
        request: &Request<proto::TopKeysRequest>,
        lists: &mut [proto::TopKeyList; 3],
        deadline: Deadline,
    ) -> Result<(), Status> {
        let (mut keys, mut selected) = (Vec::new(), Vec::new());
        for top in lists.iter_mut().flat_map(|list| &mut list.keys) {
            let id = top.key.as_ref().map_or("", |key| &key.id);
            if is_hash(id) || !is_operator(request, &top.project_id)? {
                continue;
            }
            if let Some(key) = self.key_by_id(&top.project_id, &top.rule, id) {
                selected.push(key);
                keys.push(top);
            }
        }
        let states = self.states(&selected, deadline).await.unwrap_or_default();
        for (top, state) in keys.into_iter().zip(states) {
            top.state = Some(key_state(state));
        }
        Ok(())
    }

    /// Returns the rules in force whose keys do not have the user, those that deny most first, and the number of
    /// further ones.
    fn keyed_otherwise(&self, projects: &WatchedProjects) -> (Vec<proto::RuleRef>, u32) {
        let points = self.administrator.stats().recent(StatsScope::Fleet, 0);
        let mut all_denied = HashMap::<(&str, &str), u64>::new();
        for (key, counts) in points.iter().flat_map(|point| &point.rules) {
            *all_denied.entry((&*key.project, &*key.rule)).or_default() += counts.denied;
        }
        let mut named = Vec::new();
        for state in self.projects.projects() {
            let id = &state.project.id;
            if projects.ids().is_some_and(|ids| !ids.contains(id)) {
                continue;
            }
            let snapshot = self.administrator.limiter().project_snapshot(id.as_str());
            let Some(snapshot) = snapshot else { continue };
            named.extend(without_user(&snapshot.rules).into_iter().map(|rule| {
                let denied = all_denied.get(&(id.as_str(), &*rule)).copied().unwrap_or_default();
                proto::RuleRef { project_id: id.to_string(), rule, denied }
            }));
        }
        named.sort_by_key(|rule| Reverse(rule.denied));
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

/// Returns `true` if the caller has the role `operate` in a project.
fn is_operator<T>(request: &Request<T>, project: &str) -> Result<bool, Status> {
    let id = if project.is_empty() { Some(ProjectId::UNNAMED) } else { project.parse().ok() };
    let caller = caller(request)?;
    Ok(id.is_some_and(|id| caller.roles_in(&id).contains(Role::Operate)))
}

/// Returns a response with the instances that it covers.
fn response(
    all: FleetAnswers,
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

/// Reads whether the window is an hour, and the most keys, of a request with valid fields.
fn limits(request: &proto::TopKeysRequest) -> Result<(bool, usize), Status> {
    let has_rule = !request.rule.is_empty();
    if has_rule && request.project_id == EVERY_PROJECT {
        return Err(invalid_field("rule", "must be empty with the project_id -"));
    }
    if has_rule && !request.value.is_empty() {
        return Err(invalid_field("value", "must be empty with a rule"));
    }
    if request.value.len() > MAX_VALUE {
        return Err(invalid_field("value", &format!("must be at most {MAX_VALUE} bytes")));
    }
    let is_hour = match request.window.as_ref().map(|window| (window.seconds, window.nanos)) {
        None | Some((900, 0)) => false,
        Some((3_600, 0)) => true,
        Some(_) => return Err(invalid_field("window", "must be 900s or 3600s")),
    };
    let max_keys = match usize::try_from(request.max_keys) {
        Ok(0) => DEFAULT_KEYS,
        Ok(most) => most.min(MAX_COUNTERS),
        Err(_) => return Err(invalid_field("max_keys", "must not be negative")),
    };
    Ok((is_hour, max_keys))
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
