//! `TopKeys`: the keys of a rule with the highest counts.

use rlaas_proto::ratelimit::admin::v1 as proto;
use tonic::metadata::MetadataValue;
use tonic::{Response, Status};

use super::WARNING;
use crate::admin::{FleetCounts, KeyView, TopKeysError};
use crate::api::status::{invalid_field, with_reason};
use crate::plan::{Selector, SelectorTarget};
use crate::rules::RuleSet;
use crate::telemetry::top_keys::{CountQuery, Counter, MAX_COUNTERS, TopKind, Window};

/// Keys of an answer to a request that does not say how many.
const DEFAULT_KEYS: usize = 20;

/// A valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TopKeysQuery<'a> {
    pub(super) counts: CountQuery<'a>,
    max_keys: usize,
}

impl<'a> TopKeysQuery<'a> {
    /// Parses a request.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT`, with the field.
    pub(super) fn new(request: &'a proto::TopKeysRequest) -> Result<Self, Status> {
        let proto::TopKeysRequest { project_id: project, rule, kind, window, max_keys } = request;
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
        let max_keys = match usize::try_from(*max_keys) {
            Ok(0) => DEFAULT_KEYS,
            Ok(most) => most.min(MAX_COUNTERS),
            Err(_) => return Err(invalid_field("max_keys", "must not be negative")),
        };
        Ok(Self { counts: CountQuery { project, rule, kind, window }, max_keys })
    }

    /// Returns the response with the highest counts, with a warning if the store did not tell those
    /// of other instances.
    pub(super) fn response(
        &self,
        rules: &RuleSet,
        counts: FleetCounts,
        view: &KeyView,
    ) -> Response<proto::TopKeysResponse> {
        let FleetCounts { summary, instances, missing, problem } = counts;
        let message = |counter: &Counter| proto::TopKey {
            key: Some(self.key(rules, &counter.key, view)),
            count: counter.least.saturating_add(summary.error()),
            error: summary.error(),
        };
        let mut response = Response::new(proto::TopKeysResponse {
            keys: summary.counters().iter().take(self.max_keys).map(message).collect(),
            total: summary.total(),
            coverage: Some(proto::Coverage {
                instances: instances.into_iter().collect(),
                missing: missing.into_iter().collect(),
            }),
        });
        let warning = problem.map(|error| format!("counts of some instances alone: {error}"));
        if let Some(Ok(warning)) = warning.map(MetadataValue::try_from) {
            response.metadata_mut().insert(WARNING, warning);
        }
        response
    }

    fn key(&self, rules: &RuleSet, id: &str, view: &KeyView) -> proto::KeyRef {
        let selector = Selector { target: SelectorTarget::Id(id), rule: Some(self.counts.rule) };
        let selected = rules.select(&selector).ok().and_then(|mut keys| keys.pop());
        view.key(selected.map(|key| key.parts).unwrap_or_default(), id)
    }
}

/// Returns the status of a request whose keys can't be counted.
pub(super) fn refused(error: TopKeysError) -> Status {
    let (code, reason) = match error {
        TopKeysError::Off => (tonic::Code::FailedPrecondition, "TOP_KEYS_OFF"),
        TopKeysError::UnknownRule => (tonic::Code::NotFound, "UNKNOWN_RULE"),
    };
    with_reason(code, reason, error.to_string())
}
