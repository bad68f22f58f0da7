//! `ratelimit.v1`: the service's own protocol.

use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use futures_util::stream::{self, Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::auth::Role;
use super::deadline::deadline;
use super::proto::rate_limit_service_server::RateLimitService;
use super::proto::{
    self, CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse, CheckResult,
    GetConfigRequest, GetConfigResponse, check_response, check_result,
};
use crate::algorithm::{Algorithm, Outcome};
use crate::clock::{Deadline, Span};
use crate::limiter::{Limiter, RuleDecision, Source, Verdict};
use crate::rules::{self, Grant, InvalidRequest, Mode, OnStoreFailure, Rule};
use crate::telemetry::metrics::{ApiLabels, Metrics, ReasonLabels};
use crate::telemetry::sharded::Timing;

/// Most requests in a batch.
const MAX_BATCH: usize = 1_000;
/// Decisions of one batch or stream that are under way at once.
const IN_FLIGHT: usize = 64;

/// `ratelimit.v1.RateLimitService`. Clones share everything.
#[derive(Clone, Debug)]
pub struct Service {
    limiter: Arc<Limiter>,
    metrics: Arc<Metrics>,
    timing: Timing,
}

impl Service {
    /// Answers by what `limiter` decides.
    pub fn new(limiter: Arc<Limiter>, metrics: Arc<Metrics>) -> Self {
        let timing = metrics.check_duration.get_or_create_owned(&ApiLabels { api: "grpc" });
        Self { limiter, metrics, timing }
    }

    async fn decide(
        &self,
        request: &CheckRequest,
        deadline: Deadline,
    ) -> Result<CheckResponse, Status> {
        let timer = self.timing.start();
        let request = parse(request).inspect_err(|error| self.count_rejected(error.field()))?;
        let verdict = self.limiter.check(&request, deadline).await;
        timer.stop();
        Ok(respond(&verdict?))
    }

    /// Decides one of several: its error is its own.
    async fn decide_item(&self, request: &CheckRequest, deadline: Deadline) -> CheckResult {
        let result = match self.decide(request, deadline).await {
            Ok(response) => check_result::Result::Response(response),
            Err(status) => check_result::Result::Error(tonic_types::Status {
                code: status.code().into(),
                message: status.message().to_owned(),
                details: Vec::new(),
            }),
        };
        CheckResult { result: Some(result) }
    }

    fn count_rejected(&self, reason: &'static str) {
        self.metrics.rejected.get_or_create(&ReasonLabels { reason }).inc();
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    type CheckStreamStream = Pin<Box<dyn Stream<Item = Result<CheckResult, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<CheckRequest>,
    ) -> Result<Response<CheckResponse>, Status> {
        self.decide(request.get_ref(), deadline(request.metadata())).await.map(Response::new)
    }

    async fn check_batch(
        &self,
        request: Request<CheckBatchRequest>,
    ) -> Result<Response<CheckBatchResponse>, Status> {
        let deadline = deadline(request.metadata());
        let requests = request.into_inner().requests;
        if requests.len() > MAX_BATCH {
            self.count_rejected("requests");
            let valid = format!("requests: valid is up to {MAX_BATCH} of them");
            return Err(Status::invalid_argument(valid));
        }
        let results = if self.limiter.store().decides_at_once() {
            let mut results = Vec::with_capacity(requests.len());
            for request in &requests {
                results.push(self.decide_item(request, deadline).await);
            }
            results
        } else {
            stream::iter(requests)
                .map(|request| async move { self.decide_item(&request, deadline).await })
                .buffered(IN_FLIGHT)
                .collect()
                .await
        };
        Ok(Response::new(CheckBatchResponse { results }))
    }

    async fn check_stream(
        &self,
        request: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        let (service, deadline) = (self.clone(), deadline(request.metadata()));
        let results = request.into_inner().map(move |request| {
            let service = service.clone();
            async move { Ok(service.decide_item(&request?, deadline).await) }
        });
        // No more is read than is answered: a client that does not read its answers waits.
        Ok(Response::new(Box::pin(results.buffered(IN_FLIGHT))))
    }

    async fn get_config(
        &self,
        _request: Request<GetConfigRequest>,
    ) -> Result<Response<GetConfigResponse>, Status> {
        let snapshot = self.limiter.snapshot();
        Ok(Response::new(GetConfigResponse {
            default_rule: Some(show(snapshot.rules.default_rule())),
            rules: snapshot.rules.iter().map(show).collect(),
            revision: snapshot.revision,
            store: self.limiter.store().name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }))
    }
}

/// The role that a method needs. One that is not named here is for `admin`.
pub(super) fn role_of(method: &str) -> Role {
    match method {
        "Check" | "CheckBatch" | "CheckStream" => Role::Check,
        _ => Role::Admin,
    }
}

fn parse(request: &CheckRequest) -> Result<rules::Request<'_>, InvalidRequest> {
    rules::Request::new(rules::Draft {
        user_id: &request.user_id,
        resource: &request.resource,
        attributes: &request.attributes,
        cost: request.cost,
        dry_run: request.dry_run,
    })
}

fn respond(verdict: &Verdict) -> CheckResponse {
    let decided = describe(verdict.deciding());
    CheckResponse {
        allowed: verdict.is_allowed(),
        current_count: decided.current_count,
        ttl: decided.ttl,
        limit: decided.limit,
        remaining: decided.remaining,
        retry_after: decided.retry_after,
        reset_after: decided.reset_after,
        rule: decided.rule,
        algorithm: decided.algorithm,
        source: source(verdict.deciding().source).into(),
        delay: decided.delay,
        reason: decided.reason,
        decisions: verdict.decisions.iter().map(describe).collect(),
    }
}

fn describe(decided: &RuleDecision) -> proto::RuleDecision {
    let decision = &decided.decision;
    let retry_after = match decision.outcome {
        Outcome::Denied { retry_after } => Some(duration(retry_after)),
        Outcome::Allowed | Outcome::Impossible => None,
    };
    proto::RuleDecision {
        rule: decided.rule.to_string(),
        algorithm: algorithm(decided.algorithm).into(),
        allowed: decision.is_allowed(),
        current_count: int64(decision.current_count),
        ttl: int64(decision.ttl.as_secs_ceil()),
        limit: int64(units(decided.grant)),
        remaining: int64(decision.remaining),
        retry_after,
        reset_after: Some(duration(decision.reset_after)),
        delay: (decided.algorithm == Algorithm::LeakyBucket && decision.is_allowed())
            .then(|| duration(decision.delay)),
        reason: reason(decided).into(),
        shadow: decided.mode == Mode::Shadow,
    }
}

fn show(rule: &Rule) -> proto::Rule {
    let limit = match rule.grant {
        Grant::Limited(limit) => Some(limit),
        Grant::Banned | Grant::Unlimited => None,
    };
    proto::Rule {
        name: rule.name.to_string(),
        algorithm: algorithm(rule.algorithm).into(),
        max_requests: int64(units(rule.grant)),
        window: limit.map(|limit| duration(limit.window())),
        fail_open: rule.on_store_failure == OnStoreFailure::Allow,
        burst: limit.map_or(0, |limit| int64(limit.burst())),
        shadow: rule.mode == Mode::Shadow,
    }
}

/// Units per window; without bound is the largest number there is.
fn units(grant: Grant) -> u64 {
    match grant {
        Grant::Limited(limit) => limit.units(),
        Grant::Banned => 0,
        Grant::Unlimited => u64::MAX,
    }
}

/// An algorithm has its canonical name on the wire, in the proto's spelling.
fn algorithm(algorithm: Algorithm) -> proto::Algorithm {
    static ON_THE_WIRE: LazyLock<Vec<proto::Algorithm>> = LazyLock::new(|| {
        let name = |algorithm: &Algorithm| algorithm.lua_name().to_uppercase();
        let on_the_wire = |name: String| proto::Algorithm::from_str_name(&name).unwrap_or_default();
        Algorithm::ALL.iter().map(name).map(on_the_wire).collect()
    });
    ON_THE_WIRE[algorithm as usize]
}

fn source(source: Source) -> check_response::Source {
    match source {
        Source::Store => check_response::Source::Store,
        Source::DenyCache => check_response::Source::DenyCache,
        Source::FailOpen => check_response::Source::FailOpen,
        Source::FailClosed => check_response::Source::FailClosed,
        Source::LocalFallback => check_response::Source::LocalFallback,
    }
}

fn reason(decided: &RuleDecision) -> check_response::Reason {
    match (decided.source, decided.decision.outcome) {
        (Source::FailOpen | Source::FailClosed, _) => check_response::Reason::StoreUnavailable,
        _ if decided.grant == Grant::Banned => check_response::Reason::Banned,
        _ if decided.grant == Grant::Unlimited => check_response::Reason::Unlimited,
        (_, Outcome::Allowed) => check_response::Reason::WithinLimit,
        (_, Outcome::Denied { .. }) => check_response::Reason::OverLimit,
        (_, Outcome::Impossible) => check_response::Reason::CostAboveLimit,
    }
}

fn duration(span: Span) -> prost_types::Duration {
    let micros = span.as_micros();
    prost_types::Duration {
        seconds: int64(micros / 1_000_000),
        nanos: i32::try_from(micros % 1_000_000 * 1_000).expect("less than a second"),
    }
}

fn int64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
