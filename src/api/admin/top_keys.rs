//! `TopKeys`: the keys of a rule with the highest counts.

use rlaas_proto::WARNING;
use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Response, Status};

use super::fleet_top_keys::FleetCounts;
use super::projects::{OPERATE_OR_ADMIN, admitted};
use super::{KeyView, Service, caller, refusals};
use crate::api::auth::Role;
use crate::api::deadline::deadline;
use crate::api::status::{invalid_field, with_reason};
use crate::plan::{Selector, SelectorTarget};
use crate::rules::RuleSet;
use crate::telemetry::top_keys::{CountQuery, Counter, MAX_COUNTERS, TopKind, Window};

/// Keys of an answer to a request that does not say how many.
const DEFAULT_KEYS: usize = 20;

impl Service {
    /// Answers `TopKeys`, with a warning if the store did not tell the counts of other instances.
    pub(super) async fn highest_counts(
        &self,
        request: &Request<proto::TopKeysRequest>,
    ) -> Result<Response<proto::TopKeysResponse>, Status> {
        let (caller, message) = (caller(request)?, request.get_ref());
        let id = admitted(caller, &message.project_id, OPERATE_OR_ADMIN)?;
        let snapshot = self.administrator.limiter().project_snapshot(id.as_str());
        let rules = &snapshot.ok_or_else(refusals::no_project)?.rules;
        let view = self.key_view(request, caller.roles_in(&id).contains(Role::Operate)).await?;
        let query = query(message)?;
        let max_keys = match usize::try_from(message.max_keys) {
            Ok(0) => DEFAULT_KEYS,
            Ok(most) => most.min(MAX_COUNTERS),
            Err(_) => return Err(invalid_field("max_keys", "must not be negative")),
        };
        let Some(top_keys) = self.metrics.top_keys() else {
            let text = "telemetry.top-keys is off: set it to true and restart".to_owned();
            return Err(with_reason(Code::FailedPrecondition, "TOP_KEYS_OFF", text));
        };
        let own = top_keys.window(&query);
        if own.is_none() && !rules.has_rule(query.rule) {
            let text = "rule must be that of a rule".to_owned();
            return Err(with_reason(Code::NotFound, "UNKNOWN_RULE", text));
        }
        let fleet = &self.administrator.shared.top_keys;
        let deadline = deadline(request.metadata());
        let counts = fleet.add_others(own.unwrap_or_default(), &query, deadline).await;
        let FleetCounts { summary, instances, missing, problem } = counts;
        let top_key = |counter: &Counter| proto::TopKey {
            key: Some(key(rules, query.rule, &counter.key, &view)),
            count: counter.least.saturating_add(summary.error()),
            error: summary.error(),
            ..proto::TopKey::default()
        };
        let mut response = Response::new(proto::TopKeysResponse {
            keys: summary.counters().iter().take(max_keys).map(top_key).collect(),
            total: summary.total(),
            coverage: Some(proto::Coverage {
                instances: instances.into_iter().collect(),
                missing: missing.into_iter().collect(),
            }),
            ..proto::TopKeysResponse::default()
        });
        let warning = problem.map(|error| format!("counts of some instances alone: {error}"));
        if let Some(Ok(warning)) = warning.map(MetadataValue::try_from) {
            response.metadata_mut().insert(WARNING, warning);
        }
        Ok(response)
    }
}

fn query(request: &proto::TopKeysRequest) -> Result<CountQuery<'_>, Status> {
    let proto::TopKeysRequest { project_id: project, rule, kind, window, .. } = request;
    if rule.is_empty() {
        return Err(invalid_field("rule", "must be the name of a rule"));
    }
    let kind = match proto::TopKind::try_from(*kind) {
        Ok(proto::TopKind::Denied) => TopKind::Denied,
        Ok(proto::TopKind::NearLimit) => TopKind::NearLimit,
        Ok(proto::TopKind::Used) => TopKind::Used,
        Ok(proto::TopKind::Unspecified) | Err(_) => {
            let problem = "must be TOP_KIND_DENIED, TOP_KIND_NEAR_LIMIT or TOP_KIND_USED";
            return Err(invalid_field("kind", problem));
        }
    };
    let window = match window.as_ref().map(|window| (window.seconds, window.nanos)) {
        None | Some((900, 0)) => Window::Quarter,
        Some((3_600, 0)) => Window::Hour,
        Some(_) => return Err(invalid_field("window", "must be 900s or 3600s")),
    };
    Ok(CountQuery { project, rule, kind, window })
}

fn key(rules: &RuleSet, rule: &str, id: &str, view: &KeyView) -> proto::KeyRef {
    let selector = Selector { target: SelectorTarget::Id(id), rule: Some(rule) };
    let selected = rules.select(&selector).ok().and_then(|mut keys| keys.pop());
    view.key(selected.map(|key| key.parts).unwrap_or_default(), id)
}
