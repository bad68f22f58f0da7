// The server of the documentation's examples. It allows two requests per minute for each user.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use rlaas_proto::ratelimit::v1 as proto;
use tonic::{Request as Incoming, Response, Status};

#[derive(Default)]
struct Example(Mutex<HashMap<String, rlaas_core::algorithm::State>>);

#[tonic::async_trait]
impl proto::rate_limit_service_server::RateLimitService for Example {
    async fn check(
        &self,
        request: Incoming<proto::CheckRequest>,
    ) -> Result<Response<proto::CheckResponse>, Status> {
        use proto::check_response::{Reason, Source};
        use rlaas_core::algorithm::{Algorithm, Cost, Limit, Outcome};
        use rlaas_core::clock::{Micros, SystemClock};

        let limit = Limit::new(2, Micros::from_secs(60)).map_err(|_| Status::internal("limit"))?;
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.entry(request.into_inner().user_id).or_default();
        let now = SystemClock::new().now();
        let decision = Algorithm::Gcra.take(state, &limit, now, Cost::ONE);
        let retry_after = match decision.outcome {
            Outcome::Denied { retry_after } => Some(retry_after.as_secs_ceil().cast_signed()),
            Outcome::Allowed | Outcome::Impossible => None,
        };
        Ok(Response::new(proto::CheckResponse {
            allowed: decision.is_allowed(),
            limit: 2,
            remaining: decision.remaining,
            retry_after: retry_after.map(|seconds| prost_types::Duration { seconds, nanos: 0 }),
            rule: "default".to_owned(),
            source: Source::Store.into(),
            reason: if retry_after.is_some() { Reason::OverLimit } else { Reason::WithinLimit }
                .into(),
            ..proto::CheckResponse::default()
        }))
    }

    async fn check_batch(
        &self,
        _: Incoming<proto::CheckBatchRequest>,
    ) -> Result<Response<proto::CheckBatchResponse>, Status> {
        Err(Status::unimplemented("not part of the example"))
    }

    type CheckStreamStream = std::pin::Pin<
        Box<
            dyn tonic::codegen::tokio_stream::Stream<Item = Result<proto::CheckResult, Status>>
                + Send,
        >,
    >;

    async fn check_stream(
        &self,
        _: Incoming<tonic::Streaming<proto::CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        Err(Status::unimplemented("not part of the example"))
    }

    async fn report(
        &self,
        _: Incoming<proto::ReportRequest>,
    ) -> Result<Response<proto::ReportResponse>, Status> {
        Err(Status::unimplemented("not part of the example"))
    }

    async fn get_config(
        &self,
        _: Incoming<proto::GetConfigRequest>,
    ) -> Result<Response<proto::GetConfigResponse>, Status> {
        Err(Status::unimplemented("not part of the example"))
    }
}

/// Starts the server on a free port, and returns its address.
async fn serve() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("its address").to_string();
    let service = proto::rate_limit_service_server::RateLimitServiceServer::new(Example::default());
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(service, incoming));
    address
}
