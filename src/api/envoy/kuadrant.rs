//! `kuadrant.service.ratelimit.v1`: the limits of Envoy's files, looked at, reported, and reserved.
//!
//! **Source:** Kuadrant/limitador, `limitador-server/proto/kuadrantrls.proto` and pull request 515;
//! Kuadrant's RFC 0021.

use rlaas_limiter::{CheckError, DescriptorVerdict};
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use rlaas_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_server::RateLimitService;
use rlaas_proto::kuadrant::service::ratelimit::v1::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use tonic::{Request, Response, Status};

use super::{API, Service, log_decided, parse_descriptors};
use crate::algorithm::Cost;
use crate::api::deadline::deadline;
use crate::api::decision_events::{self, Origin};
use crate::api::reservations::{cost, decode, encode, ttl};
use crate::rules::descriptors::DescriptorRequest;
use crate::telemetry::metrics::EventLabels;

/// The service of Kuadrant beside Envoy's.
#[derive(Clone, Debug)]
pub(crate) struct Kuadrant(pub(crate) Service);

impl Kuadrant {
    /// Returns the response to a request that was looked at or reported.
    fn answer(
        &self,
        request: &RateLimitRequest,
        decided: Result<DescriptorVerdict, CheckError>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let verdict = decided.map_err(|error| self.0.undecided(&error))?;
        log_decided(&verdict);
        Ok(Response::new(self.0.respond(request, &verdict)))
    }

    /// Offers a decision to those who record or watch decisions.
    fn show(
        &self,
        method: &'static str,
        request: &DescriptorRequest<'_>,
        decided: &Result<DescriptorVerdict, CheckError>,
    ) {
        let (Service { metrics, limiter, .. }, origin) = (&self.0, Origin { api: API, method });
        decision_events::descriptors_decided(metrics, limiter, origin, request, decided);
    }

    fn units(&self, field: &'static str, units: u64) -> Result<Cost, Status> {
        cost(field, units).map_err(|problem| self.0.rejected(field, problem))
    }

    fn count(&self, event: &'static str) {
        self.0.metrics.reservations.get_or_create(&EventLabels { event }).inc();
    }
}

#[tonic::async_trait]
impl RateLimitService for Kuadrant {
    async fn check_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let Self(service) = self;
        let until = deadline(request.metadata());
        let parsed = service.parse(request.get_ref())?;
        let looked = service.limiter.look_at_descriptors(&parsed, until).await;
        let looked = service.refused_without_rule(&parsed, looked);
        self.answer(request.get_ref(), looked)
    }

    async fn report(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let Self(service) = self;
        let until = deadline(request.metadata());
        let parsed = service.parse(request.get_ref())?;
        let reported = service.limiter.report_descriptors(&parsed, until).await;
        self.show("Report", &parsed, &reported);
        self.answer(request.get_ref(), reported)
    }

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let Self(service) = self;
        let until = deadline(request.metadata());
        let ReserveRequest { domain, descriptors, amount, ttl: wanted } = request.get_ref();
        let amount = self.units("amount", *amount)?;
        let ttl = ttl(wanted.as_ref()).map_err(|problem| service.rejected("ttl", problem))?;
        let parsed = service.in_project(parse_descriptors(domain, descriptors, amount.units()))?;
        let reserved = service.limiter.reserve_descriptors(&parsed, ttl, until).await;
        let (decided, reservation) = match reserved {
            Ok((verdict, reservation)) => (Ok(verdict), reservation),
            Err(error) => (Err(error), None),
        };
        let decided = service.refused_without_rule(&parsed, decided);
        self.show("Reserve", &parsed, &decided);
        let verdict = decided.map_err(|error| service.undecided(&error))?;
        log_decided(&verdict);
        let is_allowed = verdict.is_allowed();
        self.count(if is_allowed { "reserved" } else { "denied" });
        Ok(Response::new(ReserveResponse {
            code: if is_allowed { Code::Ok } else { Code::OverLimit }.into(),
            reservation_id: reservation.as_ref().map(encode).unwrap_or_default(),
        }))
    }

    async fn commit(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        let Self(service) = self;
        let until = deadline(request.metadata());
        let CommitRequest { domain, descriptors, reservation_id: id, actual_amount } =
            request.get_ref();
        let actual = self.units("actual_amount", *actual_amount)?;
        let parsed = service.in_project(parse_descriptors(domain, descriptors, actual.units()))?;
        let reservation = decode(id, parsed.project());
        if reservation.is_none() && !id.is_empty() {
            return Ok(Response::new(CommitResponse { reservation_released: false }));
        }
        let settled =
            service.limiter.settle_descriptors(&parsed, reservation.as_ref(), actual, until);
        let released = settled.await.map_err(|error| service.undecided(&error))?;
        self.count(if released { "committed" } else { "reported" });
        Ok(Response::new(CommitResponse { reservation_released: released }))
    }
}
