//! The baseline: tonic's service on hyper-util, which the service is built on, with a prepared response.

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rlaas_proto::ratelimit::v1::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use rlaas_proto::ratelimit::v1::{
    CheckBatchRequest, CheckBatchResponse, CheckRequest, CheckResponse, CheckResult,
    GetConfigRequest, GetConfigResponse, ReportRequest, ReportResponse, RuleDecision,
};
use tokio_stream::Empty;
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

/// Serves the prepared response until the process is killed.
pub(crate) fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("an address");
        eprintln!(" serving grpc={} ", listener.local_addr().expect("an address"));
        let service = RateLimitServiceServer::new(Echo { response: response() });
        loop {
            let (connection, _) = listener.accept().await.expect("a connection");
            connection.set_nodelay(true).expect("a connection");
            let service = service.clone();
            let calls = service_fn(move |request| service.clone().call(request));
            let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            builder.http2().max_concurrent_streams(1024);
            tokio::spawn(async move {
                _ = builder.serve_connection(TokioIo::new(connection), calls).await;
            });
        }
    });
}

struct Echo {
    response: CheckResponse,
}

fn response() -> CheckResponse {
    CheckResponse {
        allowed: true,
        current_count: 1,
        ttl: 60,
        limit: 1_000_000_000,
        remaining: 999_999_999,
        reset_after: Some(prost_types::Duration { seconds: 59, nanos: 999_000_000 }),
        rule: "default".to_owned(),
        algorithm: 1,
        source: 1,
        reason: 1,
        decisions: vec![RuleDecision {
            window: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            rule: "default".to_owned(),
            algorithm: 1,
            allowed: true,
            current_count: 1,
            ttl: 60,
            limit: 1_000_000_000,
            remaining: 999_999_999,
            reset_after: Some(prost_types::Duration { seconds: 59, nanos: 999_000_000 }),
            reason: 1,
            ..RuleDecision::default()
        }],
        ..CheckResponse::default()
    }
}

#[tonic::async_trait]
impl RateLimitService for Echo {
    type CheckStreamStream = Empty<Result<CheckResult, Status>>;

    async fn check(&self, _: Request<CheckRequest>) -> Result<Response<CheckResponse>, Status> {
        Ok(Response::new(self.response.clone()))
    }

    async fn check_batch(
        &self,
        _: Request<CheckBatchRequest>,
    ) -> Result<Response<CheckBatchResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn check_stream(
        &self,
        _: Request<Streaming<CheckRequest>>,
    ) -> Result<Response<Self::CheckStreamStream>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }

    async fn get_config(
        &self,
        _: Request<GetConfigRequest>,
    ) -> Result<Response<GetConfigResponse>, Status> {
        Err(Status::unimplemented("echo"))
    }
}
