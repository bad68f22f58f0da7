// The server that plays `clients/cases.yaml`, whose head says how, to the tests of every client.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rlaas_proto::ERROR_DOMAIN;
use rlaas_proto::ratelimit::v1 as proto;
use serde::Deserialize;
use tokio::net::TcpListener;
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Code, Request as Incoming, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use proto::check_response::{Reason, Source};
use proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use proto::reservation_service_server::{ReservationService, ReservationServiceServer};

/// The table.
pub(crate) const TABLE: &str = include_str!("../../../../clients/cases.yaml");

/// Time that a reservation stands.
const HOLD: Duration = Duration::from_secs(90);

/// What the server reads of the table.
#[derive(Deserialize)]
struct Table {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    answers: Vec<CaseAnswer>,
    reserve: Option<CaseAnswer>,
    #[serde(default)]
    metadata: HashMap<String, String>,
}

/// A message of any method, or a status.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct CaseAnswer {
    status: Option<String>,
    error_info: Option<String>,
    after: Option<f64>,
    allowed: bool,
    rule: String,
    limit: i64,
    remaining: i64,
    retry_after: Option<f64>,
    reset_after: Option<f64>,
    reason: Option<String>,
    settlements: Vec<Settlement>,
}

#[derive(Clone, Deserialize)]
struct Settlement {
    rule: String,
    charged: u64,
    returned: u64,
}

/// The calls that a user has made of a method.
#[derive(Default)]
struct CaseCalls {
    count: usize,
    request_ids: HashSet<String>,
}

struct Player {
    cases: Vec<Case>,
    /// By `METHOD/USER`.
    calls: Mutex<HashMap<String, CaseCalls>>,
}

impl Player {
    fn new() -> Self {
        let table: Table = serde_saphyr::from_str(TABLE).expect("clients/cases.yaml is valid");
        Self { cases: table.cases, calls: Mutex::default() }
    }

    /// Counts a call, and returns its answer. A method that is not the one of the case is answered
    /// alike, by a count of its own.
    async fn play(
        &self,
        (method, user, request_id): (&str, &str, &str),
        metadata: &MetadataMap,
    ) -> Result<CaseAnswer, Status> {
        let name = user.split_once('@').map_or(user, |(name, _)| name);
        let case = self.cases.iter().find(|case| case.name == name);
        let case = case.ok_or_else(|| Status::not_found(format!("there is no case {name}")))?;
        let index = self.record(method, user, request_id);
        for (name, value) in &case.metadata {
            if metadata.get(name).is_none_or(|sent| sent.as_bytes() != value.as_bytes()) {
                return Err(Status::unauthenticated(format!("the metadata {name} is another")));
            }
        }
        let answer = case.reserve.as_ref().filter(|_| method == "Reserve");
        let answer = answer.or(case.answers.get(index)).or(case.answers.last());
        let answer = answer.expect("a case has an answer");
        if let Some(seconds) = answer.after {
            #[expect(clippy::disallowed_methods, reason = "the case is an answer that is late")]
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        }
        match &answer.status {
            None => Ok(answer.clone()),
            Some(code) => Err(status(code, answer.error_info.as_deref())),
        }
    }

    /// Counts a call, and returns the number of those before it.
    fn record(&self, method: &str, user: &str, request_id: &str) -> usize {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = calls.entry(format!("{method}/{user}")).or_default();
        if !request_id.is_empty() {
            calls.request_ids.insert(request_id.to_owned());
        }
        calls.count += 1;
        calls.count - 1
    }

    /// Tells what calls there were, named as `METHOD/USER`.
    fn seen(&self, name: &str) -> proto::CheckResponse {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = calls.get(name).map_or((0, 0), |calls| (calls.count, calls.request_ids.len()));
        let [current_count, remaining] = [seen.0, seen.1].map(|n| i64::try_from(n).unwrap_or(0));
        proto::CheckResponse {
            allowed: true,
            current_count,
            remaining,
            ..proto::CheckResponse::default()
        }
    }
}

/// Returns the code with a name such as `NOT_FOUND`.
pub(crate) fn code(name: &str) -> Code {
    let name = name.replace('_', "");
    let mut codes = (0..=16).map(Code::from);
    let code = codes.find(|code| format!("{code:?}").eq_ignore_ascii_case(&name));
    code.expect("a code of gRPC")
}

fn status(code_name: &str, error_info: Option<&str>) -> Status {
    let (code, message) = (code(code_name), "as the case says");
    let Some(reason) = error_info else { return Status::new(code, message) };
    let details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, HashMap::new());
    Status::with_error_details(code, message, details)
}

impl CaseAnswer {
    fn verdict(self) -> proto::CheckResponse {
        let duration = |seconds: f64| {
            Duration::from_secs_f64(seconds).try_into().expect("a duration of a table is short")
        };
        let reason = self.reason.map_or(Reason::WithinLimit, |name| {
            Reason::from_str_name(&name).expect("a reason has a name of the proto")
        });
        proto::CheckResponse {
            allowed: self.allowed,
            rule: self.rule,
            limit: self.limit,
            remaining: self.remaining,
            retry_after: self.retry_after.map(duration),
            reset_after: self.reset_after.map(duration),
            reason: reason.into(),
            source: Source::Store.into(),
            ..proto::CheckResponse::default()
        }
    }

    fn settlements(self) -> Vec<proto::Settlement> {
        let message = |Settlement { rule, charged, returned }| proto::Settlement {
            rule,
            charged,
            returned,
            ..proto::Settlement::default()
        };
        self.settlements.into_iter().map(message).collect()
    }
}

/// A call without a request, or of another method than those of the table.
fn unplayed<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not part of the cases"))
}

#[tonic::async_trait]
impl RateLimitService for Player {
    async fn check(
        &self,
        request: Incoming<proto::CheckRequest>,
    ) -> Result<Response<proto::CheckResponse>, Status> {
        let proto::CheckRequest { user_id, request_id, .. } = request.get_ref();
        if let Some(calls) = user_id.strip_prefix("calls/") {
            return Ok(Response::new(self.seen(calls)));
        }
        let answer = self.play(("Check", user_id, request_id), request.metadata()).await?;
        Ok(Response::new(answer.verdict()))
    }

    async fn report(
        &self,
        request: Incoming<proto::ReportRequest>,
    ) -> Result<Response<proto::ReportResponse>, Status> {
        let Some(message) = &request.get_ref().request else { return unplayed() };
        let call = ("Report", &*message.user_id, &*message.request_id);
        let verdict = Some(self.play(call, request.metadata()).await?.verdict());
        Ok(Response::new(proto::ReportResponse { verdict, uncounted: 0 }))
    }

    async fn check_batch(
        &self,
        _: Incoming<proto::CheckBatchRequest>,
    ) -> Result<Response<proto::CheckBatchResponse>, Status> {
        unplayed()
    }

    type CheckStreamStream = tonic::codegen::BoxStream<proto::CheckResult>;

    async fn check_stream(
        &self,
        _: Incoming<tonic::Streaming<proto::CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        unplayed()
    }

    async fn get_config(
        &self,
        _: Incoming<proto::GetConfigRequest>,
    ) -> Result<Response<proto::GetConfigResponse>, Status> {
        unplayed()
    }
}

#[tonic::async_trait]
impl ReservationService for Player {
    async fn reserve(
        &self,
        request: Incoming<proto::ReserveRequest>,
    ) -> Result<Response<proto::ReserveResponse>, Status> {
        let Some(message) = &request.get_ref().request else { return unplayed() };
        let call = ("Reserve", &*message.user_id, &*message.request_id);
        let verdict = self.play(call, request.metadata()).await?.verdict();
        let held = verdict.allowed;
        #[expect(clippy::disallowed_methods, reason = "clients compare it with the wall clock")]
        let expires_at = SystemTime::now() + HOLD;
        Ok(Response::new(proto::ReserveResponse {
            verdict: Some(verdict),
            reservation_id: if held { message.user_id.clone() } else { String::new() },
            expires_at: held.then(|| expires_at.into()),
        }))
    }

    async fn commit(
        &self,
        request: Incoming<proto::CommitRequest>,
    ) -> Result<Response<proto::CommitResponse>, Status> {
        let call = ("Commit", &*request.get_ref().reservation_id, "");
        let settlements = self.play(call, request.metadata()).await?.settlements();
        Ok(Response::new(proto::CommitResponse { settlements, ..Default::default() }))
    }

    async fn cancel(
        &self,
        request: Incoming<proto::CancelRequest>,
    ) -> Result<Response<proto::CancelResponse>, Status> {
        let call = ("Cancel", &*request.get_ref().reservation_id, "");
        let settlements = self.play(call, request.metadata()).await?.settlements();
        Ok(Response::new(proto::CancelResponse { settlements, replayed: false }))
    }

    async fn extend(
        &self,
        _: Incoming<proto::ExtendRequest>,
    ) -> Result<Response<proto::ExtendResponse>, Status> {
        unplayed()
    }
}

/// Plays the table on a socket, for ever.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), tonic::transport::Error> {
    let player = Arc::new(Player::new());
    let services = Routes::new(RateLimitServiceServer::from_arc(player.clone()))
        .add_service(ReservationServiceServer::from_arc(player));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Server::builder().serve_with_incoming(services.prepare(), incoming).await
}
