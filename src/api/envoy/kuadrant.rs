//! `kuadrant.service.ratelimit.v1`: the limits of Envoy's files, looked at, reported, and reserved.
//!
//! **Source:** Kuadrant/limitador, `limitador-server/proto/kuadrantrls.proto` and pull request 515;
//! Kuadrant's RFC 0021.

use rlaas_limiter::reservation::Reservation;
use rlaas_limiter::{CheckError, DescriptorVerdict};
use rlaas_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use rlaas_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rlaas_proto::kuadrant::service::ratelimit::v1::rate_limit_service_server::RateLimitService;
use rlaas_proto::kuadrant::service::ratelimit::v1::{
    CommitRequest, CommitResponse, ReserveRequest, ReserveResponse,
};
use rlaas_proto::values::micros;
use rlaas_telemetry::metrics::EventLabels;
use tonic::{Request, Response, Status};

use super::{API, Service, log_decided, parse_descriptors};
use crate::api::decision_events::{self, Origin};
use crate::api::reservations::{cost, decode, encode};
use crate::clock::Micros;
use crate::rules::descriptors::DescriptorRequest;
use rlaas_auth::deadline;

/// The service of Kuadrant beside Envoy's.
#[derive(Clone, Debug)]
pub(crate) struct Kuadrant(pub(crate) Service);

impl Kuadrant {
    /// Returns the response to a request that was looked at, and counts for a project, or was reported.
    fn answer(
        &self,
        request: &RateLimitRequest,
        decided: Result<DescriptorVerdict, CheckError>,
        project: Option<&str>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (domain, descriptors) = (&request.domain, request.descriptors.len());
        let decided = decided.or_else(|error| self.0.deny(domain, descriptors, error));
        let verdict = match project {
            Some(project) => self.0.counted(project, decided)?,
            None => decided?,
        };
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

    fn count(&self, event: &'static str) {
        self.0.metrics.reservations.get_or_create(&EventLabels { event }).inc();
    }
}

/// Returns the time to hold: that of the request in the range of holds; `None` for none, and for 0.
fn hold_for(ttl: Option<&prost_types::Duration>) -> Option<Micros> {
    let ttl = ttl.filter(|ttl| (ttl.seconds, ttl.nanos) != (0, 0))?;
    let shortest = if ttl.seconds < 0 { Reservation::MIN_HOLD } else { Reservation::MAX_HOLD };
    let wanted = micros(ttl).unwrap_or(shortest);
    Some(wanted.clamp(Reservation::MIN_HOLD, Reservation::MAX_HOLD))
}

#[tonic::async_trait]
impl RateLimitService for Kuadrant {
    async fn check_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let Self(service) = self;
        let domain = &request.get_ref().domain;
        service.admit(domain)?;
        let until = deadline(request.metadata());
        let mut project = service.project_of(domain);
        let looked = async {
            let parsed = service.parse(request.get_ref())?;
            project = parsed.project();
            let looked = service.limiter.look_at_descriptors(&parsed, until).await;
            service.without_rule(&parsed, looked)
        };
        let looked = looked.await;
        self.answer(request.get_ref(), looked, Some(project))
    }

    async fn report(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let Self(service) = self;
        service.require_rules()?;
        let until = deadline(request.metadata());
        let reported = async {
            let parsed = service.parse(request.get_ref())?;
            let reported = service.limiter.report_descriptors(&parsed, until).await;
            let reported = service.without_rule(&parsed, reported);
            self.show("Report", &parsed, &reported);
            reported
        };
        self.answer(request.get_ref(), reported.await, None)
    }

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let Self(service) = self;
        let until = deadline(request.metadata());
        let ReserveRequest { domain, descriptors, amount, ttl } = request.get_ref();
        service.admit(domain)?;
        let mut project = service.project_of(domain);
        let hold_for = hold_for(ttl.as_ref());
        let reserved = async {
            let parsed = service.in_project(parse_descriptors(domain, descriptors, *amount))?;
            project = parsed.project();
            let reserved = service.limiter.reserve_descriptors(&parsed, hold_for, until).await;
            let (decided, reservation) = match reserved {
                Ok((verdict, reservation)) => (Ok(verdict), reservation),
                Err(error) => (Err(error), None),
            };
            let decided = service.without_rule(&parsed, decided);
            self.show("Reserve", &parsed, &decided);
            Ok((decided?, reservation))
        };
        let (decided, reservation) = match reserved.await {
            Ok((verdict, reservation)) => (Ok(verdict), reservation),
            Err(error) => (service.deny(domain, descriptors.len(), error), None),
        };
        let verdict = service.counted(project, decided)?;
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
        service.require_rules()?;
        let until = deadline(request.metadata());
        let CommitRequest { domain, descriptors, reservation_id: id, actual_amount } =
            request.get_ref();
        let actual = cost("actual_amount", *actual_amount)
            .map_err(|problem| service.rejected("actual_amount", problem))?;
        let settled = async {
            let parsed = parse_descriptors(domain, descriptors, actual.units());
            let parsed = service.in_project(parsed)?;
            let reservation = decode(id, parsed.project());
            if reservation.is_none() && !id.is_empty() {
                return Ok(None);
            }
            let limiter = &service.limiter;
            let settling = limiter.settle_descriptors(&parsed, reservation.as_ref(), actual, until);
            settling.await.map(Some)
        };
        let released = match settled.await {
            Ok(released) => released,
            // There is nothing to settle of a request that was denied.
            Err(error) => service.deny(domain, 0, error).map(|_denied| None)?,
        };
        if let Some(released) = released {
            self.count(if released { "committed" } else { "reported" });
        }
        let reservation_released = released.unwrap_or(false);
        Ok(Response::new(CommitResponse { reservation_released }))
    }
}
