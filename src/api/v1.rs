//! `ratelimit.v1.RateLimitService`, the native gRPC protocol.

use std::fmt::Display;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::{BoxFuture, Either};
use futures_util::stream::{self, Stream, StreamExt};
use prost::Message;
use rlaas_auth::{CallProject, ConfiguredProjects, Permission, StreamAccess, Tenant, deadline};
use rlaas_limiter::headers::LimitHeaders;
use rlaas_proto::ratelimit::v1::rate_limit_service_server::RateLimitService;
use rlaas_proto::ratelimit::v1::{
    CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse, CheckResult,
    GetConfigRequest, GetConfigResponse, ReportRequest, ReportResponse,
};
use rlaas_proto::status::{invalid, unknown_project};
use rlaas_proto::values::check_request;
use rlaas_proto::verdict_messages::{response, result, short_result};
use rlaas_telemetry::metrics::{ApiLabels, Metrics, ReasonLabels};
use rlaas_telemetry::sharded::ShardedHistogram;
use tonic::{Code, Extensions, Request, Response, Status, Streaming};

use super::config;
use super::decision_events::{self, Origin};
use super::request_log;
use super::status::{self, Interruption};
use super::traces::{BatchStats, TracedDecision, is_sampled};
use super::unary::encoded_after;
use super::undecided;
use super::verdict_headers::VerdictHeaders;
use crate::clock::Deadline;
use crate::rules;
use rlaas_limiter::{CheckError, Limiter, Reported, StartedCheck, Verdict};

/// Name of this protocol in metrics and logs.
pub(super) const API: &str = "grpc";
/// A report counts all of its cost.
const NO_REPORT: &str = "at_least must be 0 in a report";

/// Maximum number of requests in a batch.
const MAX_BATCH: usize = 1_000;
/// Maximum number of concurrent decisions of one batch or stream.
const IN_FLIGHT: usize = 64;

type Checked = Result<Response<CheckResponse>, Status>;

/// The response to `Check`: at once, or after the store has answered.
pub(super) type Checking = Either<Ready<Checked>, BoxFuture<'static, Checked>>;

/// A [`CheckBatchResponse`] with encoded results: in a list, bytes are written as messages are. Else the
/// length of a result would be computed again for each message that has it in it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedBatch {
    #[prost(bytes = "vec", repeated, tag = "1")]
    results: Vec<Vec<u8>>,
}

fn checked(result: Checked) -> Checking {
    Either::Left(ready(result))
}

/// `ratelimit.v1.RateLimitService`. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct Service {
    limiter: Limiter,
    projects: Option<Arc<dyn ConfiguredProjects>>,
    metrics: Arc<Metrics>,
    timing: ShardedHistogram,
    headers: LimitHeaders,
}

impl Service {
    /// Creates the service over `limiter`.
    pub(super) fn new(
        limiter: Limiter,
        projects: Option<Arc<dyn ConfiguredProjects>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let timing = metrics.check_duration.get_or_create_owned(&ApiLabels { api: API });
        Self { limiter, projects, metrics, timing, headers: LimitHeaders::None }
    }

    /// Sets the rate limit headers in the metadata of responses to `Check`.
    pub(super) fn with_headers(self, headers: LimitHeaders) -> Self {
        Self { headers, ..self }
    }

    /// Validates a request and begins its decision.
    fn start(
        &self,
        tenant: Option<&Tenant>,
        request: &CheckRequest,
        deadline: Deadline,
    ) -> Result<StartedCheck, Status> {
        let project = tenant.map_or("", Tenant::project);
        let parsed = self.parse(project, request);
        let parsed = parsed.map_err(|invalid| self.undecided(project, request, invalid))?;
        Ok(Tenant::limiter(tenant, &self.limiter).begin(&parsed, deadline))
    }

    /// Validates a request in a project.
    fn parse<'a>(
        &self,
        project: &'a str,
        request: &'a CheckRequest,
    ) -> Result<rules::Request<'a>, Status> {
        let parsed = check_request(request).map_err(|error| {
            self.count_rejected(error.violation().path, error);
            invalid(error)
        });
        parsed.map(|request| request.in_project(project))
    }

    async fn decide(
        &self,
        tenant: Option<&Tenant>,
        request: &CheckRequest,
        deadline: Deadline,
    ) -> Result<Verdict, Status> {
        let mut timer = self.timing.start();
        let decided = match self.start(tenant, request, deadline)? {
            StartedCheck::Decided(decided) => decided,
            StartedCheck::Pending(pending) => pending.finish().await,
        };
        timer.lap();
        self.record("CheckStream", tenant.map_or("", Tenant::project), request, decided)
    }

    /// Decides a `Check`, unless it has to wait for the store.
    pub(super) fn begin_check(self: &Arc<Self>, request: Request<CheckRequest>) -> Checking {
        let deadline = deadline(request.metadata());
        let (_, extensions, mut request) = request.into_parts();
        let tenant = Tenant::from_extensions(&extensions);
        set_tenant(tenant, &mut request);
        let mut timer = self.timing.start();
        match self.start(tenant, &request, deadline) {
            Ok(StartedCheck::Decided(decided)) => {
                timer.lap();
                checked(self.answer(&extensions, &request, decided))
            }
            Ok(StartedCheck::Pending(pending)) => {
                let service = Arc::clone(self);
                Either::Right(Box::pin(async move {
                    let mut timer = service.timing.start();
                    let decided = pending.finish().await;
                    timer.lap();
                    service.answer(&extensions, &request, decided)
                }))
            }
            Err(invalid) => checked(Err(invalid)),
        }
    }

    /// Returns the response to a `Check`.
    fn answer(
        &self,
        extensions: &Extensions,
        request: &CheckRequest,
        decided: Result<Verdict, CheckError>,
    ) -> Result<Response<CheckResponse>, Status> {
        let tenant = Tenant::from_extensions(extensions);
        let project = tenant.map_or("", Tenant::project);
        let verdict = self.record("Check", project, request, decided)?;
        let mut response = Response::new(response(&verdict));
        if is_sampled(extensions) {
            response.extensions_mut().insert(TracedDecision::from_verdict(&verdict));
        }
        if self.headers != LimitHeaders::None {
            VerdictHeaders::insert(self.headers, &verdict, response.metadata_mut().as_mut());
        }
        Ok(response)
    }

    /// As `check_batch`, whose results are encoded one by one.
    pub(super) fn check_encoded_batch(
        &self,
        request: Request<CheckBatchRequest>,
    ) -> BoxFuture<'_, Result<Response<EncodedBatch>, Status>> {
        Box::pin(async move {
            let response = self.decide_batch(request, |result| encoded_after(0, &result)).await?;
            Ok(response.map(|results| EncodedBatch { results }))
        })
    }

    /// Decides the requests of a batch. Returns each result as `make` makes it.
    async fn decide_batch<R: Default>(
        &self,
        request: Request<CheckBatchRequest>,
        make: fn(CheckResult) -> R,
    ) -> Result<Response<Vec<R>>, Status> {
        let (deadline, mut stats) = (deadline(request.metadata()), BatchStats::default());
        let (_, extensions, batch) = request.into_parts();
        let CheckBatchRequest { mut requests, decisions_wanted } = batch;
        let result = if decisions_wanted == Some(false) { short_result } else { result };
        let is_sampled = is_sampled(&extensions);
        let tenant = Tenant::from_extensions(&extensions);
        let project = tenant.map_or("", Tenant::project);
        if requests.len() > MAX_BATCH {
            let problem = format!("requests must have at most {MAX_BATCH} entries");
            self.count_rejected("requests", &problem);
            undecided::count(&self.limiter, project, Code::InvalidArgument);
            return Err(Status::invalid_argument(problem));
        }
        for request in &mut requests {
            set_tenant(tenant, request);
        }
        let mut results = Vec::with_capacity(requests.len());
        let mut waiting = Vec::new();
        let mut timer = self.timing.start();
        for request in &requests {
            let decided = match self.start(tenant, request, deadline) {
                Ok(StartedCheck::Decided(decided)) => {
                    timer.lap();
                    self.record("CheckBatch", project, request, decided)
                }
                Ok(StartedCheck::Pending(pending)) => {
                    waiting.push((results.len(), pending));
                    results.push(R::default());
                    continue;
                }
                Err(invalid) => Err(invalid),
            };
            stats.count(decided.as_ref());
            results.push(make(result(decided.as_ref())));
        }
        let mut finished = stream::iter(waiting)
            .map(|(position, pending)| async move {
                let mut timer = self.timing.start();
                let decided = pending.finish().await;
                timer.lap();
                (position, decided)
            })
            .buffer_unordered(IN_FLIGHT);
        while let Some((position, decided)) = finished.next().await {
            let decided = self.record("CheckBatch", project, &requests[position], decided);
            stats.count(decided.as_ref());
            results[position] = make(result(decided.as_ref()));
        }
        drop(finished);
        let mut response = Response::new(results);
        if is_sampled {
            response.extensions_mut().insert(TracedDecision::Batch(stats));
        }
        Ok(response)
    }

    /// Logs a decision, and offers it to those who record or watch decisions. Counts a request without one,
    /// and returns its status.
    #[inline]
    fn record(
        &self,
        method: &'static str,
        project: &str,
        request: &CheckRequest,
        decided: Result<Verdict, CheckError>,
    ) -> Result<Verdict, Status> {
        log(&decided);
        if decision_events::are_wanted(&self.metrics)
            && let Ok(request) = check_request(request)
        {
            let (request, origin) = (request.in_project(project), Origin { api: API, method });
            decision_events::decided(&self.metrics, &self.limiter, origin, &request, &decided);
        }
        decided.map_err(|error| self.undecided(project, request, status::grpc(&error)))
    }

    /// Counts a request without a verdict. Returns its status.
    #[cold]
    fn undecided(&self, project: &str, request: &CheckRequest, status: Status) -> Status {
        undecided::count_check(&self.limiter, project, request, status.code());
        status
    }

    /// Counts and logs an invalid request.
    fn count_rejected(&self, reason: &'static str, problem: impl Display) {
        request_log::rejected(API, reason, problem);
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
        Arc::new(self.clone()).begin_check(request).await
    }

    async fn check_batch(
        &self,
        request: Request<CheckBatchRequest>,
    ) -> Result<Response<CheckBatchResponse>, Status> {
        let response = self.decide_batch(request, |result| result).await?;
        Ok(response.map(|results| CheckBatchResponse { results }))
    }

    async fn check_stream(
        &self,
        request: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        let (service, deadline) = (self.clone(), deadline(request.metadata()));
        let (_, extensions, requests) = request.into_parts();
        let tenant = Tenant::from_extensions(&extensions).cloned();
        let access = extensions.get::<StreamAccess>().cloned();
        let results = requests.map(move |request| {
            let (service, tenant) = (service.clone(), tenant.clone());
            let is_admitted = access.as_ref().is_none_or(StreamAccess::is_admitted);
            async move {
                if !is_admitted {
                    return Err(Interruption::AccessEnded.into());
                }
                // That of tonic for a message that is no valid protobuf is INTERNAL.
                let mut request = request.map_err(|status| match status.code() {
                    Code::Internal => invalid(status.message()),
                    _ => status,
                })?;
                set_tenant(tenant.as_ref(), &mut request);
                let decided = service.decide(tenant.as_ref(), &request, deadline).await;
                Ok(result(decided.as_ref()))
            }
        });
        // Back pressure: no further request is read while the client does not read its responses.
        Ok(Response::new(Box::pin(results.buffered(IN_FLIGHT))))
    }

    async fn report(
        &self,
        request: Request<ReportRequest>,
    ) -> Result<Response<ReportResponse>, Status> {
        let deadline = deadline(request.metadata());
        let (_, extensions, message) = request.into_parts();
        let tenant = Tenant::from_extensions(&extensions);
        let mut request = message.request.unwrap_or_default();
        let project = set_tenant(tenant, &mut request);
        let request = self.parse(project, &request)?;
        if request.at_least().is_some() {
            self.count_rejected("at_least", NO_REPORT);
            return Err(invalid(NO_REPORT));
        }
        let limiter = Tenant::limiter(tenant, &self.limiter);
        let reported = limiter.report(&request, deadline).await;
        match &reported {
            Ok(Reported { verdict, .. }) => {
                request_log::decided(API, verdict.is_allowed(), &verdict.decisions);
            }
            Err(error) => request_log::undecided(API, error),
        }
        let reported = reported.map_err(|error| status::grpc(&error))?;
        let verdict = Some(response(&reported.verdict));
        let message = ReportResponse { verdict, uncounted: reported.uncounted };
        Ok(VerdictHeaders::add(&extensions, &reported.verdict, message))
    }

    async fn get_config(
        &self,
        request: Request<GetConfigRequest>,
    ) -> Result<Response<GetConfigResponse>, Status> {
        let extensions = request.extensions();
        let asked = extensions.get::<CallProject>();
        let project = match asked {
            Some(CallProject(project)) => project.as_str(),
            None => Tenant::from_extensions(extensions).map_or("", Tenant::project),
        };
        let snapshot = self.limiter.project_snapshot(project);
        let snapshot = snapshot.ok_or_else(|| match asked {
            Some(_) => unknown_project("project_id"),
            None => status::grpc(&CheckError::UnknownProject),
        })?;
        let (store, message) = (self.limiter.store().name(), request.get_ref());
        let config = config::page(&snapshot, store, self.projects.as_deref(), message);
        config.map(Response::new).map_err(|violation| {
            self.count_rejected(violation.path, &violation);
            invalid(violation)
        })
    }
}

/// Logs a decision.
fn log(decided: &Result<Verdict, CheckError>) {
    match decided {
        Ok(verdict) => request_log::decided(API, verdict.is_allowed(), &verdict.decisions),
        Err(error) => request_log::undecided(API, error),
    }
}

/// Returns what a method requires of callers: a role that reads the configuration unless it is
/// listed here.
pub(super) fn permission_of(method: &str) -> Permission {
    match method {
        "Check" | "CheckBatch" | "CheckStream" | "Report" => Permission::Decisions,
        _ => Permission::ProjectConfiguration,
    }
}

/// Returns `true` if the responses of a method are a stream.
pub(super) fn is_stream(method: &str) -> bool {
    method == "CheckStream"
}

/// Sets what the API key of a call says in a request. Returns the id of its project.
pub(super) fn set_tenant<'a>(tenant: Option<&'a Tenant>, request: &mut CheckRequest) -> &'a str {
    Tenant::set_attributes(tenant, &mut request.attributes);
    tenant.map_or("", Tenant::project)
}
