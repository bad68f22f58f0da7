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

use super::{API, Service, parse, parse_descriptors};
use crate::algorithm::Cost;
use crate::api::deadline::deadline;
use crate::api::request_log;
use crate::api::reservations::{decode, encode, ttl};
use crate::api::status::invalid;
use crate::telemetry::metrics::{EventLabels, ReasonLabels};

/// The service of Kuadrant beside Envoy's.
#[derive(Clone, Debug)]
pub(crate) struct Kuadrant(pub(crate) Service);

impl Kuadrant {
    /// Logs what became of a request.
    fn decided<T>(
        &self,
        decided: Result<T, CheckError>,
        verdict: impl Fn(&T) -> &DescriptorVerdict,
    ) -> Result<T, Status> {
        let decided = decided.map_err(|error| self.0.undecided(&error))?;
        let verdict = verdict(&decided);
        let decisions = verdict.answers.iter().flatten().map(|answer| &answer.decided);
        request_log::decided(API, verdict.is_allowed(), decisions);
        Ok(decided)
    }

    fn units(&self, field: &'static str, units: u64) -> Result<Cost, Status> {
        let units = u32::try_from(units);
        units
            .map(Cost::new)
            .map_err(|_| self.rejected(field, &format!("{field} must be 0 to {}", u32::MAX)))
    }

    fn rejected(&self, field: &'static str, problem: &str) -> Status {
        request_log::rejected(API, field, problem);
        self.0.metrics.rejected.get_or_create(&ReasonLabels { reason: field }).inc();
        invalid(problem)
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
        let parsed = parse(request.get_ref()).map_err(|error| service.count_rejected(error))?;
        let looked = service.limiter.look_at_descriptors(&parsed, until).await;
        let verdict = self.decided(looked, |verdict| verdict)?;
        Ok(Response::new(service.respond(request.get_ref(), &verdict)))
    }

    async fn report(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let Self(service) = self;
        let until = deadline(request.metadata());
        let parsed = parse(request.get_ref()).map_err(|error| service.count_rejected(error))?;
        let reported = service.limiter.report_descriptors(&parsed, until).await;
        let verdict = self.decided(reported, |verdict| verdict)?;
        Ok(Response::new(service.respond(request.get_ref(), &verdict)))
    }

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let Self(service) = self;
        let until = deadline(request.metadata());
        let ReserveRequest { domain, descriptors, amount, ttl: wanted } = request.get_ref();
        let amount = self.units("amount", *amount)?;
        let ttl = ttl(wanted.as_ref()).map_err(|problem| self.rejected("ttl", problem))?;
        let parsed = parse_descriptors(domain, descriptors, amount.units())
            .map_err(|error| service.count_rejected(error))?;
        let reserved = service.limiter.reserve_descriptors(&parsed, ttl, until).await;
        let (verdict, reservation) = self.decided(reserved, |(verdict, _)| verdict)?;
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
        let parsed = parse_descriptors(domain, descriptors, actual.units())
            .map_err(|error| service.count_rejected(error))?;
        let reservation = decode(id, "");
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
