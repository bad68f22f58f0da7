//! `ratelimit.v1.ReservationService`: units that are held before the work and settled after it.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rlaas_auth::{Tenant, deadline};
use rlaas_limiter::{CheckError, Deadline, Limiter, OpenReservation, Reserved, Settled, Settling};
use rlaas_proto::ratelimit::v1::reservation_service_server::ReservationService;
use rlaas_proto::ratelimit::v1::{
    CancelRequest, CancelResponse, CheckRequest, CommitRequest, CommitResponse, ExtendRequest,
    ExtendResponse, ReserveRequest, ReserveResponse, Settlement,
};
use rlaas_proto::status::invalid;
use rlaas_proto::values::{check_request, micros, timestamp};
use rlaas_proto::verdict_messages::response;
use rlaas_telemetry::metrics::{EventLabels, Metrics, ReasonLabels};
use tonic::{Extensions, Request, Response, Status};

use super::decision_events::{self, Origin};
use super::status;
use super::undecided;
use super::v1::set_tenant;
use super::verdict_headers::VerdictHeaders;
use super::{request_log, v1::API};
use crate::algorithm::Cost;
use crate::clock::{Micros, Timestamp};
use crate::rules::{self, Costs, Key};
use rlaas_limiter::reservation::Reservation;

/// First byte of an id: the version of its form.
const VERSION: u8 = 1;

/// `ratelimit.v1.ReservationService`. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct Service {
    limiter: Limiter,
    metrics: Arc<Metrics>,
}

impl Service {
    pub(super) fn new(limiter: Limiter, metrics: Arc<Metrics>) -> Self {
        Self { limiter, metrics }
    }

    /// Reads an id that a caller with these extensions sends.
    fn open(&self, extensions: &Extensions, id: &str) -> Result<OpenReservation, Status> {
        let project = Tenant::from_extensions(extensions).map_or("", Tenant::project);
        let reservation = decode(id, project).ok_or_else(|| {
            self.rejected("reservation_id", "reservation_id must be one that Reserve returned")
        })?;
        let is_own = |key: &Key| key.project_name().as_deref() == Some(project);
        if reservation.keys.iter().all(is_own) {
            Ok(reservation)
        } else {
            Err(status::grpc(&CheckError::NoReservation))
        }
    }

    async fn settle(
        &self,
        extensions: &Extensions,
        id: &str,
        settling: Settling<'_>,
        until: Deadline,
    ) -> Result<Settled, Status> {
        let reservation = self.open(extensions, id)?;
        let limiter = Tenant::limiter(Tenant::from_extensions(extensions), &self.limiter);
        let settled = limiter.settle(&reservation, settling, until).await;
        settled.map_err(|error| undecided(&error))
    }

    /// Decides a request, and holds its cost.
    async fn hold(
        &self,
        extensions: &Extensions,
        wanted: &CheckRequest,
        ttl: Option<&prost_types::Duration>,
        until: Deadline,
    ) -> Result<Response<ReserveResponse>, Status> {
        let ttl = self.ttl(ttl)?;
        let tenant = Tenant::from_extensions(extensions);
        let wanted = self.request(wanted, tenant.map_or("", Tenant::project))?;
        let limiter = Tenant::limiter(tenant, &self.limiter);
        let (decided, reservation) = match limiter.reserve(&wanted, ttl, until).await {
            Ok(Reserved { verdict, reservation }) => (Ok(verdict), reservation),
            Err(error) => (Err(error), None),
        };
        let origin = Origin { api: API, method: "Reserve" };
        decision_events::decided(&self.metrics, &self.limiter, origin, &wanted, &decided);
        let verdict = decided.map_err(|error| undecided(&error))?;
        request_log::decided(API, verdict.is_allowed(), &verdict.decisions);
        if !verdict.replayed {
            self.count(if verdict.is_allowed() { "reserved" } else { "denied" });
        }
        let message = ReserveResponse {
            verdict: Some(response(&verdict)),
            reservation_id: reservation.as_ref().map(encode).unwrap_or_default(),
            expires_at: reservation.map(|reservation| timestamp(reservation.ends_at)),
        };
        Ok(VerdictHeaders::add(extensions, &verdict, message))
    }

    fn count(&self, event: &'static str) {
        self.metrics.reservations.get_or_create(&EventLabels { event }).inc();
    }

    fn rejected(&self, field: &'static str, problem: &str) -> Status {
        request_log::rejected(API, field, problem);
        self.metrics.rejected.get_or_create(&ReasonLabels { reason: field }).inc();
        invalid(problem)
    }

    fn request<'a>(
        &self,
        message: &'a CheckRequest,
        project: &'a str,
    ) -> Result<rules::Request<'a>, Status> {
        let request = check_request(message)
            .map_err(|error| self.rejected(error.violation().path, &error.to_string()))?;
        Ok(request.in_project(project))
    }

    fn ttl(&self, given: Option<&prost_types::Duration>) -> Result<Option<Micros>, Status> {
        let is_valid = |ttl: &Micros| (Reservation::MIN_HOLD..=Reservation::MAX_HOLD).contains(ttl);
        let valid = |ttl| micros(ttl).filter(is_valid).ok_or("ttl must be 100ms to 24h");
        given.map(valid).transpose().map_err(|problem| self.rejected("ttl", problem))
    }

    fn cost(&self, field: &'static str, units: u64) -> Result<Cost, Status> {
        cost(field, units).map_err(|problem| self.rejected(field, &problem))
    }

    fn costs<'a>(
        &self,
        field: &'static str,
        costs: &'a std::collections::HashMap<String, u64>,
    ) -> Result<Costs<'a>, Status> {
        let most = rules::Request::MAX_COSTS;
        if costs.len() > most || costs.values().any(|units| *units > u32::MAX.into()) {
            let problem = format!("{field} must have at most {most} entries of 0 to {}", u32::MAX);
            return Err(self.rejected(field, &problem));
        }
        Ok(Costs::Map(costs))
    }
}

#[tonic::async_trait]
impl ReservationService for Service {
    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let until = deadline(request.metadata());
        let (_, extensions, message) = request.into_parts();
        let ReserveRequest { request, ttl } = message;
        let mut wanted = request.unwrap_or_default();
        let project = set_tenant(Tenant::from_extensions(&extensions), &mut wanted);
        let reserved = self.hold(&extensions, &wanted, ttl.as_ref(), until).await;
        reserved.inspect_err(|status| {
            undecided::count_check(&self.limiter, project, &wanted, status.code());
        })
    }

    async fn extend(
        &self,
        request: Request<ExtendRequest>,
    ) -> Result<Response<ExtendResponse>, Status> {
        let until = deadline(request.metadata());
        let (_, extensions, message) = request.into_parts();
        let ttl = self.ttl(message.ttl.as_ref())?;
        let cost = self.cost("cost", message.cost.unwrap_or_default())?;
        let costs = self.costs("costs", &message.costs)?;
        let reservation = self.open(&extensions, &message.reservation_id)?;
        let extended = self.limiter.extend(&reservation, cost, costs, ttl, until).await;
        let (verdict, ends_at) = extended.map_err(|error| undecided(&error))?;
        self.count(if verdict.is_allowed() { "extended" } else { "denied" });
        let (shown, expires_at) = (Some(response(&verdict)), Some(timestamp(ends_at)));
        let message = ExtendResponse { verdict: shown, expires_at };
        Ok(VerdictHeaders::add(&extensions, &verdict, message))
    }

    async fn commit(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        let until = deadline(request.metadata());
        let (_, extensions, message) = request.into_parts();
        let actual = message.actual.map(|units| self.cost("actual", units)).transpose()?;
        let actuals = self.costs("actuals", &message.actuals)?;
        let settling = Settling { actual, actuals };
        let id = &*message.reservation_id;
        let Some(mut wanted) = message.request else {
            let settled = self.settle(&extensions, id, settling, until).await?;
            self.count("committed");
            return Ok(Response::new(committed(settled)));
        };
        let reservation = match id {
            "" => None,
            id => Some(self.open(&extensions, id)?),
        };
        let tenant = Tenant::from_extensions(&extensions);
        let project = set_tenant(tenant, &mut wanted);
        let wanted = self.request(&wanted, project)?;
        let limiter = Tenant::limiter(tenant, &self.limiter);
        let settled = limiter.settle_or_count(reservation.as_ref(), &wanted, settling, until).await;
        let settled = settled.map_err(|error| undecided(&error))?;
        self.count(if settled.reported { "reported" } else { "committed" });
        Ok(Response::new(committed(settled)))
    }

    async fn cancel(
        &self,
        request: Request<CancelRequest>,
    ) -> Result<Response<CancelResponse>, Status> {
        let until = deadline(request.metadata());
        let (_, extensions, message) = request.into_parts();
        let id = &message.reservation_id;
        let settled = self.settle(&extensions, id, Settling::CANCEL, until).await?;
        self.count("cancelled");
        let CommitResponse { settlements, replayed, .. } = committed(settled);
        Ok(Response::new(CancelResponse { settlements, replayed }))
    }
}

fn committed(settled: Settled) -> CommitResponse {
    let Settled { settlements, replayed, reported } = settled;
    let settlements = settlements.into_iter().map(|(rule, settlement)| Settlement {
        rule,
        charged: settlement.charged,
        returned: settlement.returned,
        debt: settlement.debt,
        uncounted: settlement.uncounted,
    });
    CommitResponse { settlements: settlements.collect(), replayed, reported }
}

/// Logs a call that was not decided, and returns its status.
fn undecided(error: &CheckError) -> Status {
    request_log::undecided(API, error);
    status::grpc(error)
}

/// Reads the units of a field.
pub(super) fn cost(field: &str, units: u64) -> Result<Cost, String> {
    let cost = u32::try_from(units).map(Cost::new);
    cost.map_err(|_| format!("{field} must be 0 to {}", u32::MAX))
}

/// Returns the id of a reservation: its version, number and end, and the keys that it holds.
pub(super) fn encode(reservation: &OpenReservation) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend(reservation.number.to_be_bytes());
    bytes.extend(reservation.ends_at.as_micros().to_be_bytes());
    for key in &reservation.keys {
        let text = key.as_bytes();
        bytes.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        bytes.extend(text);
    }
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Reads an id; `None` if it is none.
pub(super) fn decode(id: &str, project: &str) -> Option<OpenReservation> {
    let bytes = Some(id).filter(|id| id.len() <= Reservation::MAX_ID)?;
    let bytes = URL_SAFE_NO_PAD.decode(bytes).ok()?;
    let rest = bytes.strip_prefix(&[VERSION])?;
    let (number, rest) = rest.split_first_chunk::<16>()?;
    let (ends_at, mut rest) = rest.split_first_chunk::<8>()?;
    let mut keys = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let (text, after) = after.split_at_checked(u16::from_be_bytes(*length).into())?;
        keys.push(Key::from_text(str::from_utf8(text).ok()?)?);
        rest = after;
    }
    let is_once = |key: &Key| keys.iter().filter(|other| *other == key).count() == 1;
    let is_whole = rest.is_empty()
        && (1..=Reservation::MAX_HITS).contains(&keys.len())
        && keys.iter().all(is_once);
    is_whole.then(|| OpenReservation {
        project: project.to_owned(),
        number: u128::from_be_bytes(*number),
        ends_at: Timestamp::from_micros(u64::from_be_bytes(*ends_at)),
        keys,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_was_and_no_other_text_is_one() {
        let keys = vec![Key::from_encoded("tokens", "alice"), Key::from_encoded("", "a%3Ab:c")];
        let ends_at = Timestamp::from_micros(1_700_000_100_000_001);
        let open = OpenReservation { project: String::new(), number: u128::MAX - 7, ends_at, keys };
        let id = encode(&open);
        assert_eq!(decode(&id, ""), Some(open.clone()));
        let twice = OpenReservation { keys: vec![open.keys[0].clone(); 2], ..open };
        assert_eq!(decode(&encode(&twice), ""), None, "the same key twice");
        for cut in 0..id.len() {
            assert!(decode(&id[..cut], "").is_none_or(|one| one.keys.len() == 1), "{cut}");
        }
        let long = "A".repeat(Reservation::MAX_ID + 1);
        for text in ["", "x", "AQ", "!!!!", &format!("{id}A"), &format!("Ag{}", &id[2..]), &long] {
            assert_eq!(decode(text, ""), None, "{text}");
        }
    }
}
