//! `envoy.service.ratelimit.v3`: the rate limit service of Envoy.
//!
//! **Source:** envoyproxy/envoy, `api/envoy/service/ratelimit/v3/rls.proto`. Behaviour that the proto
//! does not define follows envoyproxy/ratelimit, except where that server guesses or crashes.

pub(super) mod json;
pub(super) mod kuadrant;
mod metadata;
mod unmatched;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use rlaas_auth::{ApiKeys, Permission, ProjectId, deadline};
use rlaas_limiter::headers::{LimitHeaders, retry_after};
use rlaas_limiter::observer::DecidedRequest;
use rlaas_proto::envoy::config::core::v3::HeaderValue;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rlaas_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use rlaas_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rlaas_proto::envoy::r#type::v3::RateLimitUnit;
use rlaas_proto::status::{invalid, not_ready};
use rlaas_telemetry::log;
use rlaas_telemetry::metrics::{ApiLabels, Metrics, ReasonLabels};
use rlaas_telemetry::sharded::ShardedHistogram;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::ApiSettings;
use super::decision_events::{self, Origin};
use super::request_log;
use super::status;
use super::traces::{TracedDecision, is_sampled};
use super::undecided;
use crate::algorithm::{Cost, Limit, Outcome, Window};
use crate::calendar::CalendarUnit;
use crate::clock::{Deadline, Micros};
use crate::rules::descriptors::{
    DescriptorRequest, HitsAddend, InvalidDescriptor, LimitOverride, RequestDescriptor,
};
use crate::rules::{Grant, Mode};
use rlaas_limiter::{
    CheckError, DescriptorAnswer, DescriptorVerdict, Limiter, RuleDecision, Source, Verdict,
};

/// Settings of Envoy's rate limit service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoySettings {
    /// Maximum time for a response.
    pub deadline: Duration,
    /// Headers that Envoy adds to the responses to its clients.
    pub headers: LimitHeaders,
    /// Whether responses have `dynamic_metadata`.
    pub metadata: DynamicMetadata,
    /// Projects that decide the requests of a domain, by its name.
    pub projects: BTreeMap<String, ProjectId>,
    /// Name of the entry that names the project of requests of other domains.
    pub project_entry: Option<String>,
    /// Decides requests without that entry, in domains that have no rules.
    pub missing_entry: MissingEntry,
}

/// Decides requests without the entry that names their project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingEntry {
    /// They pass.
    Allow,
    /// They are denied.
    Deny,
}

/// Whether responses have `dynamic_metadata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DynamicMetadata {
    /// Every response has it.
    Always,
    /// No response has it.
    Never,
}

impl Default for EnvoySettings {
    fn default() -> Self {
        let deadline = Duration::from_millis(15);
        Self {
            deadline,
            headers: LimitHeaders::None,
            metadata: DynamicMetadata::Never,
            projects: BTreeMap::new(),
            project_entry: None,
            missing_entry: MissingEntry::Deny,
        }
    }
}

impl EnvoySettings {
    /// Returns `true` if requests may be in projects.
    pub fn names_projects(&self) -> bool {
        !self.projects.is_empty() || self.project_entry.is_some()
    }
}

/// Name of this protocol in metrics and logs.
const API: &str = "envoy";
/// What those who watch decisions see of requests.
const ORIGIN: Origin = Origin { api: API, method: "ShouldRateLimit" };

/// `envoy.service.ratelimit.v3.RateLimitService`. Clones share their state.
#[derive(Clone, Debug)]
pub struct Service {
    limiter: Limiter,
    metrics: Arc<Metrics>,
    timing: ShardedHistogram,
    settings: Arc<EnvoySettings>,
    /// Knows whether the projects in force are known.
    api_keys: ApiKeys,
    /// Whether a management server has sent the rules; `None`: they come from files.
    rules_known: Option<watch::Receiver<bool>>,
}

impl Service {
    /// Creates the service over `limiter`.
    pub fn new(limiter: Limiter, metrics: Arc<Metrics>) -> Self {
        let timing = metrics.check_duration.get_or_create_owned(&ApiLabels { api: API });
        let (settings, api_keys) = (Arc::default(), ApiKeys::default());
        Self { limiter, metrics, timing, settings, api_keys, rules_known: None }
    }

    /// Replaces the settings.
    #[must_use]
    pub fn with_settings(self, settings: &ApiSettings) -> Self {
        let ApiSettings { envoy, api_keys, rules_known, .. } = settings;
        let rules_known = rules_known.clone().map(|rules| rules.known);
        let settings = Arc::new(envoy.clone());
        Self { settings, api_keys: api_keys.clone(), rules_known, ..self }
    }

    /// Decides one request.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT`, counted in metrics, if the request is not valid; another code if there is no
    /// decision.
    pub(super) async fn decide(
        &self,
        request: &RateLimitRequest,
        deadline: Deadline,
    ) -> Result<DescriptorVerdict, Status> {
        self.admit(&request.domain)?;
        let timer = self.timing.start();
        let parsed = match self.parse(request) {
            Ok(parsed) => parsed,
            Err(error) => {
                timer.stop();
                let denied = self.deny(&request.domain, request.descriptors.len(), error);
                return self.counted(self.project_of(&request.domain), denied);
            }
        };
        let verdict = self.limiter.check_descriptors(&parsed, deadline).await;
        let verdict = self.without_rule(&parsed, verdict);
        timer.stop();
        let (metrics, limiter) = (&self.metrics, &self.limiter);
        decision_events::descriptors_decided(metrics, limiter, ORIGIN, &parsed, &verdict);
        let verdict = verdict.map_err(|error| self.undecided(&error)).inspect(log_decided);
        if verdict.as_ref().is_ok_and(|verdict| !verdict.is_refused) {
            return verdict;
        }
        // A charge after the response is no request.
        if self.limiter.is_charge(&parsed) {
            verdict
        } else {
            self.counted(parsed.project(), verdict)
        }
    }

    /// As [`Service::require_rules`], for a request that is counted.
    fn admit(&self, domain: &str) -> Result<(), Status> {
        self.require_rules().inspect_err(|status| {
            undecided::count(&self.limiter, self.project_of(domain), status.code());
        })
    }

    /// Returns the project of a domain; empty if its requests name theirs, or have none.
    fn project_of(&self, domain: &str) -> &str {
        self.settings.projects.get(domain).map_or("", ProjectId::as_str)
    }

    /// Counts a request on which the limiter has no verdict: it has failed, or is denied for that.
    fn counted(
        &self,
        project: &str,
        decided: Result<DescriptorVerdict, Status>,
    ) -> Result<DescriptorVerdict, Status> {
        match &decided {
            Ok(verdict) if verdict.is_refused => {
                self.limiter.count_undecided(project, DecidedRequest::NoRule);
            }
            Ok(_) => {}
            Err(status) => undecided::count(&self.limiter, project, status.code()),
        }
        decided
    }

    /// Fails while a management server has sent no rules yet.
    fn require_rules(&self) -> Result<(), Status> {
        if self.rules_known.as_ref().is_none_or(|known| *known.borrow()) {
            return Ok(());
        }
        Err(not_ready("the management server has sent no rules yet (envoy.xds)"))
    }

    /// Checks the fields of a request against their bounds, and finds its project.
    fn parse<'a>(
        &'a self,
        request: &'a RateLimitRequest,
    ) -> Result<DescriptorRequest<'a>, CheckError> {
        self.in_project(parse(request))
    }

    /// Logs a request that was not decided, and returns its status.
    fn undecided(&self, error: &CheckError) -> Status {
        if let CheckError::Descriptor(error) = error {
            return self.count_rejected(*error);
        }
        request_log::undecided(API, error);
        if matches!(error, CheckError::UnknownProject) {
            return if self.api_keys.are_projects_known() {
                Status::not_found("no such project: see envoy.projects and envoy.project-entry")
            } else {
                not_ready("the projects in force are not known")
            };
        }
        status::grpc(error)
    }

    /// Returns the response to a decided request.
    pub(super) fn respond(
        &self,
        request: &RateLimitRequest,
        verdict: &DescriptorVerdict,
    ) -> RateLimitResponse {
        let mut response = respond(verdict, self.settings.headers);
        if self.settings.metadata == DynamicMetadata::Always {
            response.dynamic_metadata = Some(metadata::dynamic_metadata(request, verdict));
        }
        response
    }

    fn count_rejected(&self, error: InvalidDescriptor) -> Status {
        self.rejected(error.field(), error)
    }

    /// Logs and counts a request whose field is not valid, and returns its status.
    fn rejected(&self, field: &'static str, problem: impl Display) -> Status {
        request_log::rejected(API, field, &problem);
        self.metrics.rejected.get_or_create(&ReasonLabels { reason: field }).inc();
        invalid(problem)
    }
}

#[tonic::async_trait]
impl RateLimitService for Service {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let deadline = deadline(request.metadata()).or_within(self.settings.deadline);
        let decided = self.decide(request.get_ref(), deadline).await;
        let verdict =
            decided.inspect_err(|status| self.metrics.envoy.count_error(status.code()))?;
        let mut response = Response::new(self.respond(request.get_ref(), &verdict));
        if is_sampled(request.extensions()) {
            response.extensions_mut().insert(TracedDecision::from_descriptors(&verdict));
        }
        Ok(response)
    }
}

/// Logs a decided request.
fn log_decided(verdict: &DescriptorVerdict) {
    let decisions = verdict.answers.iter().flatten().map(|answer| &answer.decided);
    request_log::decided(API, verdict.is_allowed(), decisions);
}

/// Returns what a method requires of callers: the same for every method.
pub(super) fn permission_of(_method: &str) -> Permission {
    Permission::Descriptors
}

/// Checks the fields of a request against their bounds.
pub(crate) fn parse(
    request: &RateLimitRequest,
) -> Result<DescriptorRequest<'_>, InvalidDescriptor> {
    parse_descriptors(&request.domain, &request.descriptors, request.hits_addend.max(1).into())
}

/// Checks descriptors. `hits` applies to those that have no `hits_addend` of their own.
fn parse_descriptors<'a>(
    domain: &'a str,
    descriptors: &'a [RateLimitDescriptor],
    hits: u64,
) -> Result<DescriptorRequest<'a>, InvalidDescriptor> {
    if descriptors.len() > DescriptorRequest::MAX_DESCRIPTORS {
        return Err(InvalidDescriptor::Descriptors);
    }
    let parsed = descriptors.iter().enumerate();
    let parsed = parsed.map(|(index, descriptor)| parse_one(index, descriptor, hits));
    DescriptorRequest::new(domain, parsed.collect::<Result<_, _>>()?)
}

/// Parses a descriptor. `hits` applies if the descriptor has no `hits_addend` of its own.
fn parse_one(
    index: usize,
    descriptor: &RateLimitDescriptor,
    hits: u64,
) -> Result<RequestDescriptor<'_>, InvalidDescriptor> {
    let units = u32::try_from(descriptor.hits_addend.unwrap_or(hits));
    let cost = Cost::new(units.map_err(|_| InvalidDescriptor::Hits { index })?);
    let limit = descriptor.limit.map(|limit| parse_override(index, limit));
    Ok(RequestDescriptor {
        entries: descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect(),
        limit: limit.transpose()?,
        hits: if descriptor.is_negative_hits {
            HitsAddend::Credit(cost)
        } else {
            HitsAddend::Take(cost)
        },
    })
}

fn parse_override(
    index: usize,
    limit: RateLimitOverride,
) -> Result<LimitOverride, InvalidDescriptor> {
    let seconds = match limit.unit() {
        RateLimitUnit::Second => 1,
        RateLimitUnit::Minute => MINUTE,
        RateLimitUnit::Hour => HOUR,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Month => MONTH,
        RateLimitUnit::Year => YEAR,
        RateLimitUnit::Unknown => return Err(InvalidDescriptor::Unit { index }),
    };
    let number = u64::from(limit.unit_multiplier.unwrap_or(1));
    // Longer windows are out of range.
    let window = Micros::from_secs((seconds * number).min(1 << 32));
    if Limit::new(1, window).is_err() {
        return Err(InvalidDescriptor::Unit { index });
    }
    // Callers send larger numbers to mean "no limit".
    let units = u64::from(limit.requests_per_unit).min(Limit::MAX_UNITS);
    if units < limit.requests_per_unit.into() {
        log::warn_limit_capped(units);
    }
    LimitOverride::new(units, window).map_err(|error| InvalidDescriptor::Limit { index, error })
}

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;
const MONTH: u64 = 30 * DAY;
const YEAR: u64 = 365 * DAY;

fn respond(verdict: &DescriptorVerdict, headers: LimitHeaders) -> RateLimitResponse {
    let is_allowed = verdict.is_allowed();
    RateLimitResponse {
        overall_code: if is_allowed { Code::Ok } else { Code::OverLimit }.into(),
        statuses: verdict.answers.iter().map(|answer| status(answer.as_ref(), verdict)).collect(),
        response_headers_to_add: response_headers(verdict, headers),
        ..RateLimitResponse::default()
    }
}

fn response_headers(verdict: &DescriptorVerdict, headers: LimitHeaders) -> Vec<HeaderValue> {
    if headers == LimitHeaders::None {
        return Vec::new();
    }
    let Some(folded) = verdict.folded() else { return Vec::new() };
    let mut limits = match headers {
        LimitHeaders::Draft | LimitHeaders::Both => LimitHeaders::Draft.for_verdict(&folded),
        LimitHeaders::Legacy | LimitHeaders::None => Vec::new(),
    };
    if let Some(answer) = nearest(verdict).filter(|_| headers != LimitHeaders::Draft) {
        let verdict = Verdict::from_decisions([answer.decided.clone()].into());
        limits.extend(LimitHeaders::Legacy.for_verdict(&verdict));
        let reset = until_reset(Some(answer)).filter(|_| answer.decided.grant == Grant::Banned);
        limits.extend(reset.map(|reset| ("ratelimit-reset", reset.seconds.to_string())));
    }
    let header = |(key, value): (&str, String)| HeaderValue {
        key: key.to_owned(),
        value,
        raw_value: Vec::new(),
    };
    limits.into_iter().chain(retry_after(&folded)).map(header).collect()
}

/// Returns the answer with a limit that the older headers tell of: the last that denies, else the first of
/// those with the fewest units left, shadows and quotas included.
///
/// **Source:** envoyproxy/ratelimit, `LIMIT_RESPONSE_HEADERS_ENABLED`.
fn nearest(verdict: &DescriptorVerdict) -> Option<&DescriptorAnswer> {
    let is_limited = |answer: &&DescriptorAnswer| answer.decided.grant != Grant::Unlimited;
    let limited = verdict.answers.iter().flatten().filter(is_limited);
    let denies = |answer: &&DescriptorAnswer| answer.decided.denial() == (Mode::Enforced, true);
    let left = |answer: &&DescriptorAnswer| answer.decided.decision.remaining.max(0);
    limited.clone().rfind(denies).or_else(|| limited.min_by_key(left))
}

/// Returns the status of a descriptor. It has no `current_limit` if no rule matched or the rule is
/// unlimited.
fn status(answer: Option<&DescriptorAnswer>, verdict: &DescriptorVerdict) -> DescriptorStatus {
    let Some(DescriptorAnswer { decided, window, limit_name, .. }) = answer else {
        let code = if verdict.is_refused { Code::OverLimit } else { Code::Ok };
        return DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    };
    let units = match decided.grant {
        Grant::Limited(limit) => limit.units(),
        Grant::Banned => 0,
        Grant::Unlimited => {
            let limit_remaining = u32::MAX;
            let code = Code::Ok.into();
            return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
        }
    };
    let (unit, unit_multiplier) = units_of(*window);
    DescriptorStatus {
        code: if passes(decided) { Code::Ok } else { Code::OverLimit }.into(),
        current_limit: Some(RateLimit {
            name: limit_name.as_deref().unwrap_or_default().to_owned(),
            requests_per_unit: u32::try_from(units).unwrap_or(u32::MAX),
            unit: unit.into(),
            unit_multiplier,
        }),
        // The message has no larger numbers, here and above.
        limit_remaining: u32::try_from(decided.decision.remaining.max(0)).unwrap_or(u32::MAX),
        duration_until_reset: until_reset(answer),
    }
}

/// Returns `true` if the status of the descriptor is `OK`.
pub(crate) fn passes(decided: &RuleDecision) -> bool {
    decided.decision.is_allowed() || decided.mode.is_shadow()
}

/// Returns the time until reset in whole seconds, rounded up: Envoy's headers have no fractions.
fn until_reset(answer: Option<&DescriptorAnswer>) -> Option<prost_types::Duration> {
    let decided = &answer?.decided;
    let span = match (decided.source, decided.decision.outcome) {
        (Source::FailOpen, _) => return None,
        (Source::FailClosed, Outcome::Denied { retry_after }) => retry_after,
        _ => decided.decision.reset_after,
    };
    let seconds = i64::try_from(span.as_secs_ceil()).unwrap_or(i64::MAX);
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// Returns the unit of a window and, if it has several, their number; `Unknown` for other windows.
fn units_of(window: Window) -> (Unit, Option<u32>) {
    let (length, exact) = (window.length(), unit(window));
    let seconds = length.as_micros() / 1_000_000;
    let is_whole = length == Micros::from_secs(seconds) && window.calendar().is_none();
    let units = [(Unit::Day, DAY), (Unit::Hour, HOUR), (Unit::Minute, MINUTE), (Unit::Second, 1)];
    match units.into_iter().find(|(_, each)| is_whole && seconds.is_multiple_of(*each)) {
        Some((unit, each)) if exact == Unit::Unknown => (unit, u32::try_from(seconds / each).ok()),
        _ => (exact, None),
    }
}

/// Returns the unit whose length is `window`, or `Unknown`.
pub(super) fn unit(window: Window) -> Unit {
    let of_calendar = window.calendar().map(|calendar| match calendar.unit() {
        CalendarUnit::Day => Unit::Day,
        CalendarUnit::Week => Unit::Week,
        CalendarUnit::Month => Unit::Month,
        CalendarUnit::Quarter => Unit::Unknown,
        CalendarUnit::Year => Unit::Year,
    });
    of_calendar.unwrap_or_else(|| unit_of_length(window.length()))
}

fn unit_of_length(window: Micros) -> Unit {
    match window.as_micros() {
        1_000_000 => Unit::Second,
        micros if !micros.is_multiple_of(1_000_000) => Unit::Unknown,
        micros => match micros / 1_000_000 {
            MINUTE => Unit::Minute,
            HOUR => Unit::Hour,
            DAY => Unit::Day,
            WEEK => Unit::Week,
            MONTH => Unit::Month,
            YEAR => Unit::Year,
            _ => Unit::Unknown,
        },
    }
}
